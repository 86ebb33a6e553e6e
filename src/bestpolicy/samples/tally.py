"""Pulls of pairs, which a simulator may be asked for, and what it answers.

The state of a run is a sum. All that a least-squares method or a certificate needs to know of the samples at a
pair are the counts of next states, the rewards summed by next state, and the sum of squared rewards: a `Tally`.
Tallies add, so batches, workers and resumed runs all come down to ``a + b``. A tally checks itself: sums that no
samples with rewards in [0, 1] have are refused, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import Array, FloatArray, IntArray, as_numbers, as_whole, frozen, require_table
from bestpolicy._numerics.inputs import of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem

_MOST = 2**62  # samples: any two such numbers can be added up


@dataclass(frozen=True, eq=False)
class Pulls:
    """How often to simulate which pairs.

    Attributes
    ----------
    pairs : int array (K,)
        Flat pair indices s·A + a, strictly increasing.
    counts : int array (stages, K)
        Number of simulator calls per stage and pair.
    """

    pairs: IntArray
    counts: IntArray

    def __post_init__(self) -> None:
        pairs, counts = as_whole("pairs", self.pairs), as_whole("counts", self.counts)
        if pairs.ndim != 1:
            raise InvalidInput(f"pairs must have shape (K,). Got {pairs.shape} instead.")
        if counts.ndim != 2 or counts.shape[1] != len(pairs):
            raise InvalidInput(f"counts must have shape (stages, {len(pairs)}). Got {counts.shape} instead.")
        if (np.diff(pairs) <= 0).any() or (pairs < 0).any() or (counts < 0).any():
            raise InvalidInput("pairs must be strictly increasing and counts must not be negative.")
        _require_countable("counts", counts)
        object.__setattr__(self, "pairs", frozen(pairs))
        object.__setattr__(self, "counts", frozen(counts))

    @cached_property
    def total(self) -> int:
        """Number of simulator calls."""
        return int(self.counts.sum())

    def split(self, limit: int | None) -> list[Pulls]:
        """Cut into pieces of at most `limit` simulator calls; the pieces depend on nothing but the pulls and it."""
        if limit is None or self.total <= limit:
            return [self]
        flat, (stages, columns) = self.counts.ravel(), self.counts.shape
        ends = np.cumsum(flat)
        begins = np.arange(0, self.total, limit)
        until = np.minimum(begins + limit, self.total)
        first, last = np.searchsorted(ends, begins, side="right"), np.searchsorted(ends, until, side="left")
        pieces = []
        for begin, end, low, high in zip(begins.tolist(), until.tolist(), first.tolist(), last.tolist(), strict=True):
            if low == high and stages == 1:  # most pieces, where a pair is simulated often
                pieces.append(Pulls._trusted(self.pairs[low : low + 1], np.array([[end - begin]])))
                continue
            part = flat[low : high + 1].copy()
            part[-1] -= ends[high] - end
            part[0] -= begin - (ends[low] - flat[low])
            index = low + np.flatnonzero(part)
            pairs, counts = index % columns, part[index - low]
            if stages == 1:
                pieces.append(Pulls._trusted(self.pairs[pairs], counts[None]))
            else:
                used, position = np.unique(pairs, return_inverse=True)
                spread = np.zeros((stages, len(used)), np.int64)
                spread[index // columns, position] = counts
                pieces.append(Pulls._trusted(self.pairs[used], spread))
        return pieces

    @classmethod
    def _trusted(cls, pairs: IntArray, counts: IntArray) -> Pulls:
        """Return parts of pulls, which need not be checked again."""
        pulls = object.__new__(cls)
        object.__setattr__(pulls, "pairs", frozen(pairs))
        object.__setattr__(pulls, "counts", frozen(counts))
        return pulls

    def equals(self, other: object) -> bool:
        """Whether the same is to be simulated."""
        if not isinstance(other, Pulls):
            return False
        return np.array_equal(self.pairs, other.pairs) and np.array_equal(self.counts, other.counts)

    def answered_by(self, tally: Tally) -> bool:
        """Whether the tally has exactly what is to be simulated."""
        same = tally.pairs is self.pairs or np.array_equal(tally.pairs, self.pairs)
        return same and tally.samples == self.total and bool((tally.pulls == self.counts).all())

    def minus(self, tally: Tally) -> Pulls:
        """Return what is still to be simulated once `tally` is in."""
        if not np.isin(tally.pairs[tally.pulls.sum(axis=0) > 0], self.pairs).all():
            raise InvalidInput("the tally has samples of a pair that was not asked for.")
        rest = self.counts.copy()
        known = np.isin(tally.pairs, self.pairs)
        rest[:, np.searchsorted(self.pairs, tally.pairs[known])] -= tally.pulls[:, known]
        if (rest < 0).any():
            raise InvalidInput("the tally has more samples of a pair than were asked for.")
        return Pulls(self.pairs, rest)

    def cut(self, left: int, anytime: bool) -> Pulls:
        """Cut to what is left of a budget; what means nothing unless it is complete is not begun."""
        if self.total <= left:
            return self
        share = left / self.total if anytime else 0.0
        return Pulls(self.pairs, np.floor(self.counts * share).astype(np.int64))

    def fitted(self, tally: Tally) -> Tally:
        """Return an answer over exactly the pairs that were asked for; a simulator may list more, without samples."""
        return tally.at(self.pairs)

    def describe(self, problem: Problem) -> str:
        """Say where it begins, for an error."""
        state, action = problem.pair(int(self.pairs[0]))
        return f"from pair (state {state}, action {action}) on"


@dataclass(frozen=True, eq=False)
class Followed:
    """What a tally remembers of whole episodes, beyond their steps; it adds up as tallies do.

    Attributes
    ----------
    squared_returns : float
        Sum of the squared returns of the episodes, in which those that broke off count as 0.
    forfeited : float
        Sum of the rewards of those that broke off, up to there.
    broken : int array (B, 2)
        Stage and pair of the steps that broke an episode off: visits whose outcome nobody knows.
    """

    squared_returns: float = 0.0
    forfeited: float = 0.0
    broken: IntArray = field(default_factory=lambda: np.zeros((0, 2), np.int64))

    def __add__(self, other: Followed) -> Followed:
        if other is NOTHING_FOLLOWED:
            return self
        return Followed(
            self.squared_returns + other.squared_returns,
            self.forfeited + other.forfeited,
            np.concatenate([self.broken, other.broken]),
        )


NOTHING_FOLLOWED = Followed()

_SLACK = 1e-9  # per sample: what sums of rewards may be off by, added up in another order
_SMALL = 2**16  # entries of a table up to which sums of whole tables are over before those of cells have begun
_DENSE_ROWS = 512  # states up to which rewards of a pair are added up with all that did not occur, as ever: same bits
_CHUNK = 2**20  # entries of tables that are made only to be added up
_FIELDS = ("next_counts", "next_rewards", "squared_rewards")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Tally:
    """Everything worth remembering of a set of samples; tallies add.

    Only what occurred is kept: *cells* (stage, pair, next state) with their counts and sums of rewards. The tables
    `next_counts` and `next_rewards` of all that could have occurred are made when they are asked for.

    Parameters
    ----------
    pairs : int array (K,)
        Flat pair indices s·A + a, strictly increasing.
    next_counts : int array (stages, K, S)
        How often each next state followed.
    next_rewards : array (stages, K, S)
        Sum of the rewards that came with each next state.
    squared_rewards : array (stages, K)
        Sum of the squared rewards.

    Attributes
    ----------
    shape : tuple
        (stages, K, S).
    followed : Followed
        What is remembered of whole episodes, if the samples come from such (`Tally.from_episodes`).

    Raises
    ------
    InvalidInput
        If no samples with rewards in [0, 1] could have these sums. A certificate that rests on them would be false.
    """

    pairs: IntArray
    shape: tuple[int, int, int]
    squared_rewards: FloatArray
    followed: Followed = NOTHING_FOLLOWED

    def __init__(
        self, pairs: IntArray, next_counts: IntArray, next_rewards: FloatArray, squared_rewards: FloatArray
    ) -> None:
        pairs = as_whole("pairs of a tally", pairs, floats=False)
        counts = as_whole("next_counts of a tally", next_counts, floats=False)
        rewards, squares = (
            as_numbers(f"{name} of a tally", array).astype(np.float64, copy=False)
            for name, array in (("next_rewards", next_rewards), ("squared_rewards", squared_rewards))
        )
        _require_increasing(pairs)
        if counts.ndim != 3 or counts.shape[1] != len(pairs):
            raise InvalidInput(
                f"next_counts of a tally must have shape (stages, {len(pairs)}, states). Got {counts.shape} instead."
            )
        if rewards.shape != counts.shape or squares.shape != counts.shape[:2]:
            raise InvalidInput(
                f"next_rewards and squared_rewards of a tally must have shapes {counts.shape} and {counts.shape[:2]}. "
                f"Got {rewards.shape} and {squares.shape} instead."
            )
        self._keep(_own(pairs), _own(counts), _own(rewards), _own(squares))
        self._check_sums()

    def _keep(self, pairs: IntArray, counts: IntArray, rewards: FloatArray, squares: FloatArray) -> None:
        """Take over tables."""
        self.__dict__.update(
            pairs=frozen(pairs),
            shape=counts.shape,
            next_counts=frozen(counts),
            next_rewards=frozen(rewards),
            squared_rewards=frozen(squares),
        )

    def __repr__(self) -> str:
        return f"Tally({self.samples} samples of {len(self.pairs)} pairs, shape {self.shape})"

    def _check_sums(self) -> None:
        """Refuse sums that no samples with rewards in [0, 1] have."""
        if self._has_tables:
            counts, rewards = self.next_counts, self.next_rewards
        else:
            counts, rewards = self.counts, self.rewards
        squares = self.squared_rewards
        if counts.min(initial=0) < 0:
            raise InvalidInput("next_counts of a tally has a negative count.")
        _require_countable("next_counts", counts)
        # Not-a-number fails every comparison, so it is caught as well.
        if not (rewards.min(initial=0.0) >= 0 and (counts * (1 + _SLACK) - rewards).min(initial=0.0) >= 0):
            raise InvalidInput("the tally has rewards that are not in [0, 1]. Map them there affinely, do not clip.")
        sums = self.reward_sums
        # A reward in [0, 1] is at least its square; given their sum, squares are least if rewards are equal.
        equal = rewards * (rewards / np.maximum(counts, 1))
        least = equal.sum(axis=2) if self._has_tables else self._by_pair(equal)
        slack = _SLACK * self.pulls
        if not ((squares <= sums + slack).all() and (squares >= least - slack).all()):
            raise InvalidInput(
                "the tally has sums of squared rewards that do not fit to its rewards: they must lie between "
                "Σ (sum of rewards)²/count over the next states, and the sum of the rewards."
            )

    @classmethod
    def _trusted(
        cls, pairs: IntArray, next_counts: IntArray, next_rewards: FloatArray, squared_rewards: FloatArray
    ) -> Tally:
        """Return the tally of parts or sums of tallies, which need not be checked again."""
        tally = object.__new__(cls)
        tally._keep(pairs, next_counts, next_rewards, squared_rewards)
        return tally

    @classmethod
    def _of_cells(
        cls,
        shape: tuple[int, int, int],
        pairs: IntArray,
        cells: IntArray,
        counts: IntArray,
        rewards: FloatArray,
        squared_rewards: FloatArray,
    ) -> Tally:
        """Return the tally of cells, strictly increasing, that need not be checked again."""
        tally = object.__new__(cls)
        tally.__dict__.update(
            pairs=frozen(pairs),
            shape=shape,
            cells=frozen(cells),
            counts=frozen(counts),
            rewards=frozen(rewards),
            squared_rewards=frozen(squared_rewards),
        )
        return tally

    @classmethod
    def empty(cls, problem: Problem, pairs: ArrayLike = ()) -> Tally:
        """Return a tally without samples (of the given pairs)."""
        of_type("problem", problem, Problem)
        index = as_whole("pairs", pairs).ravel()
        shape = (problem.stages, index.size, problem.states)
        nothing = np.zeros(0, np.int64)
        return cls._of_cells(shape, index, nothing, nothing, np.zeros(0), np.zeros(shape[:2]))

    @classmethod
    def from_cells(
        cls,
        problem: Problem,
        pairs: ArrayLike,
        cells: ArrayLike,
        counts: ArrayLike,
        rewards: ArrayLike,
        squared_rewards: ArrayLike,
    ) -> Tally:
        """Return the tally of what occurred; it takes no table of all that could have.

        Parameters
        ----------
        problem : Problem
        pairs : int array (K,)
            Flat pair indices s·A + a, strictly increasing.
        cells : int array (C,)
            (stage·K + position among `pairs`)·S + next state of what occurred, strictly increasing.
        counts, rewards : array (C,)
            How often it did, and the sum of the rewards that came with it.
        squared_rewards : array (stages, K)
            Sum of the squared rewards of each stage and pair.
        """
        of_type("problem", problem, Problem)
        index, cell, number = (
            as_whole(f"{name} of a tally", value, floats=False).copy()
            for name, value in (("pairs", pairs), ("cells", cells), ("counts", counts))
        )
        sums, squares = (
            as_numbers(f"{name} of a tally", value).astype(np.float64)
            for name, value in (("rewards", rewards), ("squared_rewards", squared_rewards))
        )
        _require_increasing(index)
        shape = (problem.stages, len(index), problem.states)
        if cell.ndim != 1 or not cell.shape == number.shape == sums.shape or squares.shape != shape[:2]:
            raise InvalidInput(
                f"cells, counts and rewards of a tally must have one length, and squared_rewards shape {shape[:2]}. "
                f"Got {cell.shape}, {number.shape}, {sums.shape} and {squares.shape} instead."
            )
        if not are_cells(cell, shape):
            raise InvalidInput(f"cells of a tally must be strictly increasing and lie in 0..{prod(shape) - 1}.")
        tally = cls._of_cells(shape, index, cell, number, sums, squares)
        tally._check_sums()
        return tally

    @classmethod
    def from_samples(
        cls,
        problem: Problem,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_states: ArrayLike,
        stages: ArrayLike | int = 0,
    ) -> Tally:
        """Count samples that were drawn one by one; all arrays have the same length n."""
        of_type("problem", problem, Problem)
        given = {"states": states, "actions": actions, "next_states": next_states, "stages": stages}
        s, a, next_s, h = (as_whole(name, value).ravel() for name, value in given.items())
        r = as_numbers("rewards", rewards).astype(np.float64, copy=False).ravel()
        if not len(s) == len(a) == len(r) == len(next_s):
            raise InvalidInput("states, actions, rewards and next_states must have the same length.")
        if len(h) not in (1, len(s)):
            raise InvalidInput(f"stages must be one number, or {len(s)} as there are states. Got {len(h)} instead.")
        h = np.broadcast_to(h, len(s))
        for name, index, size in (
            ("states", s, problem.states),
            ("actions", a, problem.actions),
            ("next_states", next_s, problem.states),
            ("stages", h, problem.stages),
        ):
            if len(index) and not (index.min() >= 0 and index.max() < size):
                raise InvalidInput(f"{name} must lie in 0..{size - 1}. Got {index.min()}..{index.max()} instead.")
        if not ((r >= 0) & (r <= 1)).all():
            raise InvalidInput("rewards must be finite and lie in [0, 1]; map them there affinely, do not clip.")
        if not problem.mask[s, a].all():
            raise InvalidInput("a sample comes from an action that is not allowed in its state.")
        pairs, position = np.unique(s * problem.actions + a, return_inverse=True)
        shape, row = (problem.stages, len(pairs), problem.states), h * len(pairs) + position
        squares = np.bincount(row, weights=r * r, minlength=shape[0] * shape[1]).astype(np.float64, copy=False)
        return cls._counted(shape, pairs, row, next_s, np.ones(len(r), np.int64), r, squares.reshape(shape[:2]))

    @classmethod
    def _counted(
        cls,
        shape: tuple[int, int, int],
        pairs: IntArray,
        rows: IntArray,
        next_states: IntArray,
        counts: IntArray,
        rewards: FloatArray,
        squared_rewards: FloatArray,
    ) -> Tally:
        """Add up, in their order, outcomes of rows stage·K + position; the sums are checked."""
        cells = group = rows * shape[2] + next_states
        as_tables = prod(shape) <= max(_SMALL, 4 * len(rows))
        if not as_tables:
            cells, group = np.unique(cells, return_inverse=True)
        number = np.zeros(prod(shape) if as_tables else len(cells), np.int64)
        np.add.at(number, group, counts)
        sums = np.bincount(group, weights=rewards, minlength=len(number)).astype(np.float64, copy=False)
        if as_tables:
            tally = cls._trusted(pairs, number.reshape(shape), sums.reshape(shape), squared_rewards)
        else:
            tally = cls._of_cells(shape, pairs, cells, number, sums, squared_rewards)
        tally._check_sums()
        return tally

    def __add__(self, other: Tally) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        if self.shape[::2] != other.shape[::2]:
            raise InvalidInput("these tallies belong to different problems.")
        if self.samples + other.samples > _MOST:
            raise InvalidInput("these tallies have more than 2^62 samples together, too many to count.")
        same = np.array_equal(self.pairs, other.pairs)
        pairs = self.pairs if same else np.union1d(self.pairs, other.pairs)
        if not _as_tables(pairs, [self, other]):
            return Tally._merged(pairs, [self, other])
        a, b = (self, other) if same else (self._over(pairs), other._over(pairs))
        return Tally._trusted(
            pairs,
            a.next_counts + b.next_counts,
            a.next_rewards + b.next_rewards,
            a.squared_rewards + b.squared_rewards,
        ).with_followed(self.followed + other.followed)

    @classmethod
    def total(cls, tallies: Sequence[Tally]) -> Tally:
        """Add up tallies of one problem, in their order; the sums are checked."""
        first = tallies[0]
        if len(tallies) == 1:
            first._check_sums()
            return first
        if len({tally.shape[::2] for tally in tallies}) > 1:
            raise InvalidInput("these tallies belong to different problems.")
        pairs = np.unique(np.concatenate([tally.pairs for tally in tallies]))
        if not _as_tables(pairs, tallies):
            total = cls._merged(pairs, tallies)
            total._check_sums()
            return total
        whole = first._over(pairs)
        sums = [getattr(whole, name).copy() for name in _FIELDS]
        for tally in tallies[1:]:
            position = slice(None) if len(tally.pairs) == len(pairs) else np.searchsorted(pairs, tally.pairs)
            for array, name in zip(sums, _FIELDS, strict=True):
                array[:, position] += getattr(tally, name)
        return cls(pairs, *map(frozen, sums)).with_followed(_all_followed(tallies))

    @classmethod
    def _merged(cls, pairs: IntArray, tallies: Sequence[Tally]) -> Tally:
        """Add up the cells of tallies over the union of their pairs, in their order."""
        parts = [tally._over(pairs) for tally in tallies]
        shape = (parts[0].shape[0], len(pairs), parts[0].shape[2])
        cells, counts, rewards = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("cells", "counts", "rewards")
        )
        order = np.argsort(cells, kind="stable")
        ordered = cells[order]
        first = np.flatnonzero(np.diff(ordered, prepend=-1))
        group = np.cumsum(np.diff(ordered, prepend=-1) > 0) - 1
        number = np.add.reduceat(counts[order], first) if len(first) else counts
        # One after the other, as tables would be added up.
        sums = np.bincount(group, weights=rewards[order], minlength=len(first)).astype(np.float64, copy=False)
        squares = parts[0].squared_rewards.copy()
        for part in parts[1:]:
            squares += part.squared_rewards
        merged = cls._of_cells(shape, pairs, ordered[first], number, sums, squares)
        return merged.with_followed(_all_followed(tallies))

    def with_followed(self, followed: Followed) -> Tally:
        """Return the same samples, as those of episodes of which this is known besides."""
        if followed is self.followed:
            return self
        tally = object.__new__(type(self))
        tally.__dict__.update(self.__dict__, followed=followed)
        return tally

    @property
    def squared_returns(self) -> float:
        """Sum of the squared returns of the episodes."""
        return self.followed.squared_returns

    @property
    def returns(self) -> float:
        """Sum of the returns of the episodes; one that broke off counts as 0."""
        return float(self.rewards.sum()) - self.followed.forfeited

    @property
    def episodes(self) -> int:
        """Number of episodes, those that broke off included."""
        return int(self.pulls[0].sum()) + int((self.followed.broken[:, 0] == 0).sum())

    @property
    def broken_episodes(self) -> int:
        """Number of episodes that broke off."""
        return len(self.followed.broken)

    @classmethod
    def from_episodes(
        cls,
        problem: Problem,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        lengths: ArrayLike | None = None,
    ) -> Tally:
        """Count whole episodes of an episodic problem.

        Parameters
        ----------
        problem : Problem
        states : int array (n, H + 1)
            Where each of n episodes was, the state after the last step included.
        actions : int array (n, H)
        rewards : array (n, H)
        lengths : int array (n,), optional
            Number of steps of each episode, H by default. A shorter one broke off: what followed its next action nobody
            knows, so that it counts as a return of 0, and that step as a visit without an outcome. What stands in the
            arrays behind is ignored.
        """
        of_type("problem", problem, Problem)
        horizon = problem.stages
        s, a = as_whole("states", states), as_whole("actions", actions)
        r = as_numbers("rewards", rewards).astype(np.float64, copy=False)
        if problem.horizon is None or s.ndim != 2 or s.shape[1] != horizon + 1:
            raise InvalidInput(f"states must have shape (n, H + 1), H = {problem.horizon}. Got {s.shape} instead.")
        if not a.shape == r.shape == (len(s), horizon):
            raise InvalidInput(
                f"actions and rewards must have shape {(len(s), horizon)}. Got {a.shape} and {r.shape} instead."
            )
        steps = np.full(len(s), horizon) if lengths is None else as_whole("lengths", lengths)
        if steps.shape != (len(s),) or (len(s) and not (steps.min() >= 0 and steps.max() <= horizon)):
            raise InvalidInput(f"lengths must be {len(s)} numbers from 0 to {horizon}.")
        taken = np.arange(horizon) < steps[:, None]
        stage = np.broadcast_to(np.arange(horizon), taken.shape)
        tally = cls.from_samples(problem, s[:, :-1][taken], a[taken], r[taken], s[:, 1:][taken], stage[taken])
        earned, whole = np.where(taken, r, 0.0).sum(axis=1), steps == horizon
        ended = np.flatnonzero(~whole)
        last = s[ended, steps[ended]], a[ended, steps[ended]]
        if (
            len(ended)
            and not ((last[0] >= 0) & (last[0] < problem.states) & (last[1] >= 0) & (last[1] < problem.actions)).all()
        ):
            raise InvalidInput("an episode that broke off needs the state and the action of the step that broke.")
        broken = np.stack([steps[ended], last[0] * problem.actions + last[1]], axis=1)
        return tally.with_followed(
            Followed(float((earned[whole] ** 2).sum()), float(earned[ended].sum()), frozen(broken))
        )

    def at(self, pairs: IntArray) -> Tally:
        """Return the samples of the given pairs, in their order; there are none of others."""
        if np.array_equal(self.pairs, pairs):
            return self
        known = np.isin(self.pairs, pairs)
        if self._has_tables:
            tables = (getattr(self, name)[:, known] for name in _FIELDS)
            return Tally._trusted(self.pairs[known], *tables)._over(pairs).with_followed(self.followed)
        stages, before, states = self.shape
        row, following = np.divmod(self.cells, states)
        stage, position = np.divmod(row, max(1, before))
        kept, place = known[position], np.cumsum(known) - 1
        some = self.pairs[known]
        return (
            Tally._of_cells(
                (stages, len(some), states),
                some,
                (stage[kept] * len(some) + place[position[kept]]) * states + following[kept],
                self.counts[kept],
                self.rewards[kept],
                self.squared_rewards[:, known],
            )
            ._over(pairs)
            .with_followed(self.followed)
        )

    def _over(self, pairs: IntArray) -> Tally:
        """Return the same samples over a larger set of pairs."""
        if len(pairs) == len(self.pairs):
            return self
        stages, before, states = self.shape
        position = np.searchsorted(pairs, self.pairs)
        shape = (stages, len(pairs), states)
        squares = np.zeros(shape[:2])
        squares[:, position] = self.squared_rewards
        if self._has_tables and prod(shape) <= _SMALL:
            counts, rewards = np.zeros(shape, np.int64), np.zeros(shape)
            counts[:, position], rewards[:, position] = self.next_counts, self.next_rewards
            return Tally._trusted(pairs, counts, rewards, squares)
        row, following = np.divmod(self.cells, states)
        stage, place = np.divmod(row, max(1, before))
        cells = (stage * len(pairs) + position[place]) * states + following
        return Tally._of_cells(shape, pairs, cells, self.counts, self.rewards, squares)

    @property
    def _has_tables(self) -> bool:
        return "next_counts" in self.__dict__

    @cached_property
    def cells(self) -> IntArray:
        """What occurred: (stage·K + position of the pair)·S + next state, strictly increasing, (C,)."""
        return frozen(np.flatnonzero(self.next_counts).astype(np.int64, copy=False))

    @cached_property
    def counts(self) -> IntArray:
        """How often each of `cells` occurred, (C,)."""
        return frozen(self.next_counts.reshape(-1)[self.cells])

    @cached_property
    def rewards(self) -> FloatArray:
        """Sum of the rewards that came with each of `cells`, (C,)."""
        return frozen(self.next_rewards.reshape(-1)[self.cells])

    @cached_property
    def next_counts(self) -> IntArray:
        """How often each next state followed, (stages, K, S); too large a table is refused."""
        return self._table(self.counts)

    @cached_property
    def next_rewards(self) -> FloatArray:
        """Sum of the rewards that came with each next state, (stages, K, S); too large a table is refused."""
        return self._table(self.rewards)

    def _table(self, values: Array) -> Array:
        require_table(f"a table of all next states, {' x '.join(map(str, self.shape))}", prod(self.shape))
        table = np.zeros(self.shape, values.dtype)
        table.reshape(-1)[self.cells] = values
        return cast(Array, frozen(table))

    @cached_property
    def pulls(self) -> IntArray:
        """Number of samples per stage and pair, (stages, K)."""
        if self._has_tables:
            pulls: IntArray = self.next_counts.sum(axis=2)
            return pulls
        pulls = np.zeros(self.shape[0] * self.shape[1], np.int64)
        row = self.cells // max(1, self.shape[2])
        first = np.flatnonzero(np.diff(row, prepend=-1))
        if len(first):
            pulls[row[first]] = np.add.reduceat(self.counts, first)
        return pulls.reshape(self.shape[:2])

    @cached_property
    def reward_sums(self) -> FloatArray:
        """Sum of rewards per stage and pair, (stages, K)."""
        if self.shape[2] > _DENSE_ROWS:
            return self._by_pair(self.rewards)
        if self._has_tables:
            sums: FloatArray = self.next_rewards.sum(axis=2)
            return sums
        return self._by_pair_densely(self.rewards)

    def _by_pair(self, values: FloatArray) -> FloatArray:
        """Add up values of cells by stage and pair, (stages, K)."""
        stages, pairs, states = self.shape
        sums = np.bincount(self.cells // max(1, states), weights=values, minlength=stages * pairs)
        return sums.astype(np.float64, copy=False).reshape(stages, pairs)

    def _by_pair_densely(self, values: FloatArray) -> FloatArray:
        """Add up values of cells as a table of all next states would be, to the last bit."""
        stages, pairs, states = self.shape
        sums, step = np.zeros(stages * pairs), max(1, _CHUNK // max(1, states))
        for start in range(0, len(sums), step):
            rows = np.zeros((min(step, len(sums) - start), states))
            begin, end = np.searchsorted(self.cells, (start * states, (start + step) * states))
            rows.reshape(-1)[self.cells[begin:end] - start * states] = values[begin:end]
            sums[start : start + step] = rows.sum(axis=1)
        return sums.reshape(stages, pairs)

    @cached_property
    def samples(self) -> int:
        """Number of simulator calls."""
        return int(self.pulls.sum())

    @property
    def rounds(self) -> int:
        """Rounds t: samples per stage (a round of an episodic problem simulates one pair at every stage)."""
        return int(self.pulls.sum(axis=1).max()) if len(self.pairs) else 0


def require_pulls(pulls: Pulls, problem: Problem, rng: np.random.Generator) -> None:
    """Raise InvalidInput unless a simulator of the problem can draw the pulls with the generator."""
    of_type("pulls", pulls, Pulls)
    of_type("rng", rng, np.random.Generator)
    allowed = problem.mask.reshape(-1)
    if len(pulls.counts) != problem.stages:
        raise InvalidInput(f"pulls are of {len(pulls.counts)} steps, but the problem has {problem.stages}.")
    if len(pulls.pairs) and not (pulls.pairs[-1] < len(allowed) and allowed[pulls.pairs].all()):
        raise InvalidInput("pulls ask for a pair that is not allowed in the problem.")


def answer_ends(pulls: Pulls, problem: Problem) -> tuple[Pulls, Tally | None]:
    """Return what has to be simulated, and the samples of ends among the pulls, if any, which are known.

    An end leads to the last of the problem's ends and pays ``end_reward``, whatever is done.
    """
    over = np.zeros(0, np.bool_) if not len(problem.ends) else problem.is_end[pulls.pairs // problem.actions]
    if not over.any():
        return pulls, None
    pairs, counts = pulls.pairs[over], pulls.counts[:, over]
    row = np.flatnonzero(counts)
    number = counts.reshape(-1)[row]
    cells, paid = row * problem.states + problem.ends[-1], problem.end_reward
    known = Tally.from_cells(problem, pairs, cells, number, number * paid, counts * paid**2)
    return Pulls(pulls.pairs[~over], pulls.counts[:, ~over]), known


def _require_countable(name: str, counts: IntArray) -> None:
    if not counts.sum(dtype=np.float64) <= _MOST:
        raise InvalidInput(f"{name} must sum to 2^62 at most. Got {counts.sum(dtype=np.float64):.3g} instead.")


def _require_increasing(pairs: IntArray) -> None:
    if pairs.ndim != 1 or (pairs[1:] <= pairs[:-1]).any() or (len(pairs) and pairs[0] < 0):
        raise InvalidInput("the pairs of a tally must be flat pair indices, strictly increasing.")


def are_cells(cells: IntArray, shape: tuple[int, ...]) -> bool:
    """Whether these are indices into a table of some shape, strictly increasing."""
    return not len(cells) or bool(cells[0] >= 0 and cells[-1] < prod(shape) and (cells[1:] > cells[:-1]).all())


def _as_tables(pairs: IntArray, tallies: Sequence[Tally]) -> bool:
    """Whether to add up tallies over the union of their pairs as tables: small ones, and those there are already."""
    stages, _, states = tallies[0].shape
    if stages * len(pairs) * states <= _SMALL:
        return True
    return all(tally._has_tables and len(tally.pairs) == len(pairs) for tally in tallies)


def _all_followed(tallies: Sequence[Tally]) -> Followed:
    followed = NOTHING_FOLLOWED
    for tally in tallies:
        followed += tally.followed
    return followed


def _own(array: Array) -> Array:
    """Whoever could still write into it could undo the check."""
    return array.copy() if array.flags.writeable else array


__all__ = ["Pulls", "Tally"]
