"""What a simulator answers.

The state of a run is a sum. All that a least-squares method or a certificate needs to know of the samples at a
pair are the counts of next states, the rewards summed by next state, and the sum of squared rewards: a `Tally`.
Tallies add, so batches, workers and resumed runs all come down to ``a + b``. A tally checks itself: sums that no
samples with rewards in [0, 1] have are refused, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import Array, FloatArray, IntArray, as_numbers, as_whole, frozen
from bestpolicy._numerics.inputs import of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples.cells import MOST, Cells, are_cells, require_increasing


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

_SMALL = 2**16  # entries of a table up to which sums of whole tables are over before those of cells have begun
_FIELDS = ("next_counts", "next_rewards", "squared_rewards")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Tally(Cells):
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
        require_increasing(pairs)
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

    def __repr__(self) -> str:
        return f"Tally({self.samples} samples of {len(self.pairs)} pairs, shape {self.shape})"

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
        require_increasing(index)
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
        if self.samples + other.samples > MOST:
            raise InvalidInput("these tallies have more than 2^62 samples together, too many to count.")
        same = np.array_equal(self.pairs, other.pairs)
        pairs = self.pairs if same else np.union1d(self.pairs, other.pairs)
        few = same and self._has_tables and 4 * len(other.cells) <= prod(self.shape)  # to be added to a table of many
        if not few and not _as_tables(pairs, [self, other]):
            return Tally._merged(pairs, [self, other])
        a, b = (self, other) if same else (self._over(pairs), other._over(pairs))
        counts, rewards = (_added(a, b, *names) for names in (("next_counts", "counts"), ("next_rewards", "rewards")))
        total = Tally._trusted(pairs, counts, rewards, a.squared_rewards + b.squared_rewards)
        return total.with_followed(self.followed + other.followed)

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


def _added(a: Tally, b: Tally, table: str, cells: str) -> Any:
    """Add tables; of a second tally with few cells these only, and no table is made of it."""
    first = getattr(a, table)
    if 4 * len(b.cells) > first.size:
        return first + getattr(b, table)
    total = first.copy()
    total.reshape(-1)[b.cells] += getattr(b, cells)
    return total


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


__all__ = ["Followed", "Tally"]
