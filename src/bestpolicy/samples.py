"""What is asked of a simulator and what it answers.

The state of a run is a sum. All that a least-squares method or a certificate needs to know of the samples at a
pair are the counts of next states, the rewards summed by next state, and the sum of squared rewards: a `Tally`.
Tallies add, so batches, workers and resumed runs all come down to ``a + b``. A tally checks itself: sums that no
samples with rewards in [0, 1] have are refused, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_numbers, as_whole, frozen
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

    def equals(self, other: Pulls) -> bool:
        """Whether the same is to be simulated."""
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


_FIELDS = ("pairs", "next_counts", "next_rewards", "squared_rewards")
_SLACK = 1e-9  # per sample: what sums of rewards may be off by, added up in another order


@dataclass(frozen=True, eq=False)
class Tally:
    """Everything worth remembering of a set of samples; tallies add.

    Attributes
    ----------
    pairs : int array (K,)
        Flat pair indices s·A + a, strictly increasing.
    next_counts : int array (stages, K, S)
        How often each next state followed.
    next_rewards : array (stages, K, S)
        Sum of the rewards that came with each next state.
    squared_rewards : array (stages, K)
        Sum of the squared rewards.

    Raises
    ------
    InvalidInput
        If no samples with rewards in [0, 1] could have these sums. A certificate that rests on them would be false.
    """

    pairs: IntArray
    next_counts: IntArray
    next_rewards: FloatArray
    squared_rewards: FloatArray

    def __post_init__(self) -> None:
        pairs, counts = (
            as_whole(f"{name} of a tally", getattr(self, name), floats=False) for name in ("pairs", "next_counts")
        )
        rewards, squares = (
            as_numbers(f"{name} of a tally", getattr(self, name)).astype(np.float64, copy=False)
            for name in ("next_rewards", "squared_rewards")
        )
        if pairs.ndim != 1 or (pairs[1:] <= pairs[:-1]).any() or (len(pairs) and pairs[0] < 0):
            raise InvalidInput("the pairs of a tally must be flat pair indices, strictly increasing.")
        if counts.ndim != 3 or counts.shape[1] != len(pairs):
            raise InvalidInput(
                f"next_counts of a tally must have shape (stages, {len(pairs)}, states). Got {counts.shape} instead."
            )
        if rewards.shape != counts.shape or squares.shape != counts.shape[:2]:
            raise InvalidInput(
                f"next_rewards and squared_rewards of a tally must have shapes {counts.shape} and {counts.shape[:2]}. "
                f"Got {rewards.shape} and {squares.shape} instead."
            )
        for name, array in zip(_FIELDS, (pairs, counts, rewards, squares), strict=True):
            # Whoever could still write into it could undo the check.
            object.__setattr__(self, name, frozen(array.copy() if array.flags.writeable else array))
        self._check_sums()

    def _check_sums(self) -> None:
        """Refuse sums that no samples with rewards in [0, 1] have."""
        counts, rewards, squares = self.next_counts, self.next_rewards, self.squared_rewards
        if counts.min(initial=0) < 0:
            raise InvalidInput("next_counts of a tally has a negative count.")
        _require_countable("next_counts", counts)
        # Not-a-number fails every comparison, so it is caught as well.
        if not (rewards.min(initial=0.0) >= 0 and (counts * (1 + _SLACK) - rewards).min(initial=0.0) >= 0):
            raise InvalidInput("the tally has rewards that are not in [0, 1]. Map them there affinely, do not clip.")
        sums = self.reward_sums
        # A reward in [0, 1] is at least its square; given their sum, squares are least if rewards are equal.
        least = (rewards * (rewards / np.maximum(counts, 1))).sum(axis=2)
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
        for name, array in zip(_FIELDS, (pairs, next_counts, next_rewards, squared_rewards), strict=True):
            object.__setattr__(tally, name, frozen(array))
        return tally

    @classmethod
    def empty(cls, problem: Problem, pairs: ArrayLike = ()) -> Tally:
        """Return a tally without samples (of the given pairs)."""
        of_type("problem", problem, Problem)
        index = as_whole("pairs", pairs).ravel()
        shape = (problem.stages, index.size, problem.states)
        return cls._trusted(index, np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape[:2]))

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
        shape = (problem.stages, len(pairs), problem.states)
        cell = (h * len(pairs) + position) * problem.states + next_s
        return cls(
            pairs,
            np.bincount(cell, minlength=shape[0] * shape[1] * shape[2]).astype(np.int64).reshape(shape),
            _weighted_counts(cell, r, shape),
            _weighted_counts(h * len(pairs) + position, r * r, shape[:2]),
        )

    def __add__(self, other: Tally) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        if self.next_counts.shape[::2] != other.next_counts.shape[::2]:
            raise InvalidInput("these tallies belong to different problems.")
        if self.samples + other.samples > _MOST:
            raise InvalidInput("these tallies have more than 2^62 samples together, too many to count.")
        if np.array_equal(self.pairs, other.pairs):
            a, b = self, other
        else:
            pairs = np.union1d(self.pairs, other.pairs)
            a, b = self._over(pairs), other._over(pairs)
        return Tally._trusted(
            a.pairs,
            a.next_counts + b.next_counts,
            a.next_rewards + b.next_rewards,
            a.squared_rewards + b.squared_rewards,
        )

    @classmethod
    def total(cls, tallies: Sequence[Tally]) -> Tally:
        """Add up tallies of one problem, in their order; the sums are checked."""
        if len({tally.next_counts.shape[::2] for tally in tallies}) > 1:
            raise InvalidInput("these tallies belong to different problems.")
        first = tallies[0]
        if len(tallies) == 1:
            first._check_sums()
            return first
        pairs = np.unique(np.concatenate([tally.pairs for tally in tallies]))
        whole = first._over(pairs)
        sums = [getattr(whole, name).copy() for name in _FIELDS[1:]]
        for tally in tallies[1:]:
            position = slice(None) if len(tally.pairs) == len(pairs) else np.searchsorted(pairs, tally.pairs)
            for array, name in zip(sums, _FIELDS[1:], strict=True):
                array[:, position] += getattr(tally, name)
        return cls(pairs, *map(frozen, sums))

    def at(self, pairs: IntArray) -> Tally:
        """Return the samples of the given pairs, in their order; there are none of others."""
        if np.array_equal(self.pairs, pairs):
            return self
        known = np.isin(self.pairs, pairs)
        counts, rewards, squares = (
            self.next_counts[:, known],
            self.next_rewards[:, known],
            self.squared_rewards[:, known],
        )
        return Tally._trusted(self.pairs[known], counts, rewards, squares)._over(pairs)

    def _over(self, pairs: IntArray) -> Tally:
        """Return the same samples over a larger set of pairs."""
        stages, _, states = self.next_counts.shape
        position = np.searchsorted(pairs, self.pairs)
        counts = np.zeros((stages, len(pairs), states), np.int64)
        rewards = np.zeros((stages, len(pairs), states))
        squares = np.zeros((stages, len(pairs)))
        counts[:, position], rewards[:, position] = self.next_counts, self.next_rewards
        squares[:, position] = self.squared_rewards
        return Tally._trusted(pairs, counts, rewards, squares)

    @cached_property
    def pulls(self) -> IntArray:
        """Number of samples per stage and pair, (stages, K)."""
        pulls: IntArray = self.next_counts.sum(axis=2)
        return pulls

    @cached_property
    def reward_sums(self) -> FloatArray:
        """Sum of rewards per stage and pair, (stages, K)."""
        sums: FloatArray = self.next_rewards.sum(axis=2)
        return sums

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


def _require_countable(name: str, counts: IntArray) -> None:
    if not counts.sum(dtype=np.float64) <= _MOST:
        raise InvalidInput(f"{name} must sum to 2^62 at most. Got {counts.sum(dtype=np.float64):.3g} instead.")


def _weighted_counts(cell: IntArray, weights: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    sums = np.bincount(cell, weights=weights, minlength=int(np.prod(shape)))
    return sums.astype(np.float64, copy=False).reshape(shape)


__all__ = ["Pulls", "Tally"]
