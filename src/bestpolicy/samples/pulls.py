"""How often to simulate which pairs: what a simulator that can be put into any state is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import IntArray, as_whole, frozen
from bestpolicy._numerics.inputs import of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples.cells import require_countable
from bestpolicy.samples.tally import Tally


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
        require_countable("counts", counts)
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

    def sign(self, digest: Any) -> None:
        """Have a hash stand for it."""
        for array in (self.pairs, self.counts):
            digest.update(np.ascontiguousarray(array, dtype="<i8").data)

    def describe(self, problem: Problem) -> str:
        """Say where it begins, for an error."""
        state, action = problem.pair(int(self.pairs[0]))
        return f"from pair (state {state}, action {action}) on"


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


__all__ = ["Pulls"]
