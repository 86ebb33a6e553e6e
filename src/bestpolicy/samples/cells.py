"""What samples leave behind: how often each next state followed a pair, and the rewards that came with it.

`Cells` keeps only what occurred, or tables of all that could have, whichever came first, and makes the other when it is
asked for; both give the same sums to the last bit. `Tally` is what the rest of the program knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self, cast

import numpy as np

from bestpolicy._numerics.arrays import Array, FloatArray, IntArray, frozen, require_table
from bestpolicy.errors import InvalidInput

MOST = 2**62  # samples: any two such numbers can be added up
_SLACK = 1e-9  # per sample: what sums of rewards may be off by, added up in another order
_DENSE_ROWS = 512  # states up to which rewards of a pair are added up with all that did not occur, as ever: same bits
_CHUNK = 2**20  # entries of tables that are made only to be added up


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Cells:
    """Counts of next states and sums of rewards, over pairs and stages; `Tally` says what they mean."""

    pairs: IntArray
    shape: tuple[int, int, int]
    squared_rewards: FloatArray

    def _keep(self, pairs: IntArray, counts: IntArray, rewards: FloatArray, squares: FloatArray) -> None:
        """Take over tables."""
        self.__dict__.update(
            pairs=frozen(pairs),
            shape=counts.shape,
            next_counts=frozen(counts),
            next_rewards=frozen(rewards),
            squared_rewards=frozen(squares),
        )

    def _check_sums(self) -> None:
        """Refuse sums that no samples with rewards in [0, 1] have."""
        as_tables = self._has_tables
        if as_tables:
            counts, rewards = self.next_counts, self.next_rewards
        else:
            counts, rewards = self.counts, self.rewards
        squares = self.squared_rewards
        if counts.min(initial=0) < 0:
            raise InvalidInput("next_counts of a tally has a negative count.")
        if (
            as_tables
            and 2 * len(self.cells) < counts.size
            and np.count_nonzero(rewards) == np.count_nonzero(self.rewards)
        ):  # where nothing occurred there are no rewards
            counts, rewards, as_tables = self.counts, self.rewards, False
        require_countable("next_counts", counts)
        # Not-a-number fails every comparison, so it is caught as well.
        if not (rewards.min(initial=0.0) >= 0 and (counts * (1 + _SLACK) - rewards).min(initial=0.0) >= 0):
            raise InvalidInput("the tally has rewards that are not in [0, 1]. Map them there affinely, do not clip.")
        sums = self.reward_sums
        # A reward in [0, 1] is at least its square; given their sum, squares are least if rewards are equal.
        equal = rewards * (rewards / np.maximum(counts, 1))
        least = equal.sum(axis=2) if as_tables else self._by_pair(equal)
        slack = _SLACK * self.pulls
        if not ((squares <= sums + slack).all() and (squares >= least - slack).all()):
            raise InvalidInput(
                "the tally has sums of squared rewards that do not fit to its rewards: they must lie between "
                "Σ (sum of rewards)²/count over the next states, and the sum of the rewards."
            )

    @classmethod
    def _trusted(
        cls, pairs: IntArray, next_counts: IntArray, next_rewards: FloatArray, squared_rewards: FloatArray
    ) -> Self:
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
    ) -> Self:
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

    def compact(self) -> Self:
        """Return the same samples, without tables where what occurred takes less room."""
        if not self._has_tables or 2 * len(self.cells) > prod(self.shape):
            return self
        parts = (self.cells, self.counts, self.rewards, self.squared_rewards)
        tally = self._of_cells(self.shape, self.pairs, *parts)
        kept = {name: value for name, value in self.__dict__.items() if name not in _TABLES}
        tally.__dict__.update(kept)
        return tally

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


_TABLES = ("next_counts", "next_rewards")


def require_countable(name: str, counts: IntArray) -> None:
    if not counts.sum(dtype=np.float64) <= MOST:
        raise InvalidInput(f"{name} must sum to 2^62 at most. Got {counts.sum(dtype=np.float64):.3g} instead.")


def require_increasing(pairs: IntArray) -> None:
    if pairs.ndim != 1 or (pairs[1:] <= pairs[:-1]).any() or (len(pairs) and pairs[0] < 0):
        raise InvalidInput("the pairs of a tally must be flat pair indices, strictly increasing.")


def are_cells(cells: IntArray, shape: tuple[int, ...]) -> bool:
    """Whether these are indices into a table of some shape, strictly increasing."""
    return not len(cells) or bool(cells[0] >= 0 and cells[-1] < prod(shape) and (cells[1:] > cells[:-1]).all())
