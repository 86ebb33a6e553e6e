"""Samples where states cannot be listed: what is asked for, `Draws`, and what comes back, `Drawn`.

What a theorem needs of a sample depends on what the sample is for. From samples of the *past* functions are chosen: of
them reward and next state are kept. On samples of a *test* these functions are known: of each only a few scalars count,
Y = R' + γV(S') for every function V, and of these only sums over samples: how many, ΣY, ΣY², and the gains of bets,
Σ log(1 ± λ(u - Y)), on a grid of u that was fixed before. So a test takes O(K·grid) memory, whatever the number of
samples. All of it adds up, over batches, workers and resumed runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_whole, frozen
from bestpolicy._numerics.inputs import of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FeatureProblem

_FIELDS = ("counts", "sums", "squares", "gains", "stage", "place", "rewards", "states")


@dataclass(frozen=True, eq=False)
class Bets:
    """Known functions and the bets on their means, all of it fixed before the samples.

    Attributes
    ----------
    vectors : array (F, stages, d)
        The function V of a sample at some stage is clip(f(·, ξ), low, high) with ξ of the next stage; 0 after the last.
    low, high : arrays (F, stages)
    sides : int array (F,)
        1 for a limit from above, -1 for one from below.
    stakes : array (F, stages, K)
        λ ≥ 0, below 1/(range of Y).
    grid : array (F, stages, K, G)
        Values u at which gains are added up, increasing, inside the range of Y.
    """

    vectors: FloatArray
    low: FloatArray
    high: FloatArray
    sides: IntArray
    stakes: FloatArray
    grid: FloatArray

    def outcomes(self, problem: FeatureProblem, stage: int, rewards: FloatArray, states: FloatArray) -> FloatArray:
        """Return Y of samples, (F, n)."""
        following = stage + 1 if problem.horizon is not None else 0
        if following == problem.stages and problem.horizon is not None:
            return np.tile(rewards, (len(self.sides), 1))
        values = problem.values(states, np.ascontiguousarray(self.vectors[:, following].T)).T
        limits = self.low[:, following, None], self.high[:, following, None]
        outcomes: FloatArray = rewards + problem.continuation * np.clip(values, *limits)
        return outcomes

    def sums(
        self, problem: FeatureProblem, stage: int, place: IntArray, outcomes: FloatArray
    ) -> tuple[FloatArray, ...]:
        """Return ΣY (F, K), ΣY² (F, K) and gains (F, K, G) of samples at one stage."""
        order = np.argsort(place, kind="stable")
        place, outcomes = place[order], outcomes[:, order]
        present, first = np.unique(place, return_index=True)
        shape = len(self.sides), problem.places
        sums, squares = np.zeros(shape), np.zeros(shape)
        gains = np.zeros((*shape, self.grid.shape[3]))
        if len(present):
            sums[:, present] = np.add.reduceat(outcomes, first, axis=1)
            squares[:, present] = np.add.reduceat(outcomes**2, first, axis=1)
            for i, side in enumerate(self.sides):
                stake = self.stakes[i, stage, place, None] * side
                single = np.log1p(stake * (self.grid[i, stage, place] - outcomes[i, :, None]))
                gains[i, present] = np.add.reduceat(single, first, axis=0)
        return sums, squares, gains

    def to_dict(self) -> dict[str, Any]:
        """Return everything as arrays."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Draws:
    """How often to simulate which of a problem's pairs, and what to remember of it.

    Attributes
    ----------
    counts : int array (stages, K)
        Simulator calls per stage and pair.
    keep : bool
        Whether to keep rewards and next states.
    bets : Bets, optional
        The test that the samples are for.
    """

    counts: IntArray
    keep: bool = True
    bets: Bets | None = None

    def __post_init__(self) -> None:
        counts = as_whole("counts", self.counts)
        if counts.ndim != 2 or (counts < 0).any():
            raise InvalidInput(f"counts must have shape (stages, K), and none below 0. Got shape {counts.shape}.")
        object.__setattr__(self, "counts", frozen(counts))

    @cached_property
    def total(self) -> int:
        """Number of simulator calls."""
        return int(self.counts.sum())

    def split(self, limit: int | None) -> list[Draws]:
        """Cut into pieces of at most `limit` simulator calls."""
        if limit is None or self.total <= limit:
            return [self]
        ends = np.cumsum(self.counts.reshape(-1))
        pieces = []
        for begin in range(0, self.total, limit):
            until = np.minimum(ends, begin + limit) - np.minimum(ends, begin)
            part = np.diff(until, prepend=0)
            pieces.append(replace(self, counts=part.reshape(self.counts.shape)))
        return pieces

    def cut(self, left: int, anytime: bool) -> Draws:
        """Cut to what is left of a budget."""
        if self.total <= left:
            return self
        share = max(0, left) / self.total if anytime else 0.0
        return replace(self, counts=np.floor(self.counts * share).astype(np.int64))

    def equals(self, other: Any) -> bool:
        """Whether the same is to be simulated."""
        return isinstance(other, Draws) and np.array_equal(self.counts, other.counts) and self.keep == other.keep

    def answered_by(self, drawn: Any) -> bool:
        """Whether that is exactly what was asked for."""
        return bool((drawn.counts == self.counts).all())

    def minus(self, drawn: Any) -> Draws:
        """Return what is still to be simulated."""
        rest = self.counts - drawn.counts
        if (rest < 0).any():
            raise InvalidInput("the answer has more samples of a pair than were asked for.")
        return replace(self, counts=rest)

    def fitted(self, drawn: Any) -> Any:
        """Return an answer as it is."""
        return drawn

    def describe(self, problem: Any) -> str:
        """Say where it begins, for an error."""
        first = int(np.flatnonzero(self.counts.reshape(-1))[0]) % self.counts.shape[1] if self.total else 0
        return f"from pair number {first} of the feature map on"

    def check(self, problem: FeatureProblem, drawn: Drawn) -> None:
        """Raise InvalidInput unless an answer has the right form, and numbers that rewards in [0, 1] allow."""
        functions, grid = (0, 0) if self.bets is None else (len(self.bets.sides), self.bets.grid.shape[3])
        shape = problem.stages, problem.places
        kept = drawn.samples if self.keep else 0
        wide = problem.feature_map.state_dimension
        expected = {
            "counts": shape,
            "sums": (functions, *shape),
            "squares": (functions, *shape),
            "gains": (functions, *shape, grid),
            "stage": (kept,),
            "place": (kept,),
            "rewards": (kept,),
            "states": (kept, wide),
        }
        for name, size in expected.items():
            if getattr(drawn, name).shape != size:
                raise InvalidInput(
                    f"{name} of the answer must have shape {size}. Got {getattr(drawn, name).shape} instead."
                )
        if not all(np.isfinite(getattr(drawn, name)).all() for name in ("sums", "squares", "gains", "states")):
            raise InvalidInput("the answer has numbers that are not finite.")
        low, high = problem.remainder_limits[:, drawn.place] if kept else np.zeros((2, 0))
        if not ((drawn.rewards >= low - 1e-9) & (drawn.rewards <= high + 1e-9)).all():
            raise InvalidInput("the answer has rewards outside of their limits.")


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was simulated: sums for a test, and samples that are kept; answers add up.

    Attributes
    ----------
    counts : int array (stages, K)
    sums, squares : arrays (F, stages, K)
        ΣY and ΣY² for every function of the test.
    gains : array (F, stages, K, G)
        Σ log(1 ± λ(u - Y)).
    stage, place : int arrays (n,)
        Of samples that are kept: stage and number of the pair.
    rewards : array (n,)
        R', without the known part.
    states : array (n, k)
        The next states.
    """

    counts: IntArray
    sums: FloatArray
    squares: FloatArray
    gains: FloatArray
    stage: IntArray
    place: IntArray
    rewards: FloatArray
    states: FloatArray

    broken_episodes = 0

    @classmethod
    def of(
        cls, problem: FeatureProblem, draws: Draws, stage: int, place: IntArray, rewards: FloatArray, states: FloatArray
    ) -> Drawn:
        """Return what is to be remembered of samples at one stage; rewards come without the known part."""
        of_type("draws", draws, Draws)
        shape = problem.stages, problem.places
        counts = np.zeros(shape, np.int64)
        counts[stage] = np.bincount(place, minlength=problem.places)
        functions, grid = (0, 0) if draws.bets is None else (len(draws.bets.sides), draws.bets.grid.shape[3])
        sums, squares = np.zeros((functions, *shape)), np.zeros((functions, *shape))
        gains = np.zeros((functions, *shape, grid))
        if draws.bets is not None:
            outcomes = draws.bets.outcomes(problem, stage, rewards, states)
            sums[:, stage], squares[:, stage], gains[:, stage] = draws.bets.sums(problem, stage, place, outcomes)
        kept = slice(None) if draws.keep else slice(0, 0)
        stages = np.full(len(place), stage, np.int64)
        return cls(counts, sums, squares, gains, stages[kept], place[kept], rewards[kept], states[kept])

    @classmethod
    def nothing(cls, problem: FeatureProblem, draws: Draws) -> Drawn:
        """Return the answer without samples."""
        none = np.zeros(0)
        states = np.zeros((0, problem.feature_map.state_dimension))
        return cls.of(problem, draws, 0, np.zeros(0, np.int64), none, states)

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Drawn:
        """Return what `to_dict` has written."""
        if set(known) != set(_FIELDS):
            raise ValueError("its fields do not fit")
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as arrays."""
        return {name: getattr(self, name) for name in _FIELDS}

    @cached_property
    def samples(self) -> int:
        """Number of simulator calls."""
        return int(self.counts.sum())

    @property
    def rounds(self) -> int:
        """Simulator calls, by the number of stages."""
        return self.samples // len(self.counts)

    def __add__(self, other: Drawn) -> Drawn:
        return Drawn.total([self, other])

    @classmethod
    def total(cls, parts: list[Drawn]) -> Drawn:
        """Sum of answers to the same test, or to none."""
        if len(parts) == 1:
            return parts[0]
        if len({part.gains.shape for part in parts}) > 1:
            raise InvalidInput("answers to different tests do not add up.")
        added = [sum((getattr(part, name) for part in parts[1:]), getattr(parts[0], name)) for name in _FIELDS[:4]]
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS[4:]]
        return cls(*added, *joined)

    def without_kept(self) -> Drawn:
        """Return the sums alone: what a test needs."""
        none = np.zeros(0, np.int64)
        return replace(self, stage=none, place=none, rewards=np.zeros(0), states=self.states[:0])

    def only_kept(self) -> Drawn:
        """Return the samples that are kept, without sums: what becomes past."""
        shape = self.counts.shape
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, (self.stage, self.place), 1)
        empty = np.zeros((0, *shape))
        return replace(self, counts=counts, sums=empty, squares=empty, gains=np.zeros((0, *shape, 0)))
