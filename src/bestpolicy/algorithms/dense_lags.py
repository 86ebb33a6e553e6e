"""The lags of a run of `sharp` with features: the samples since each, and which of them is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.dense.bets import Snapshot
from bestpolicy.stopping.dense.kernel import Kernel
from bestpolicy.stopping.dense.theorem_i import Book, Lag
from bestpolicy.stopping.dense.theorem_ud import PathBook, new_kernel
from bestpolicy.stopping.evidence import Evidence

_BOOKS = 6  # policies of a lag whose sums are kept


@dataclass(frozen=True, eq=False)
class Focus:
    """Where looks take long: the lag of a theorem that is looked at, with one policy.

    Attributes
    ----------
    lag : int
        Its number.
    policy : int array (stages, S)
    ready : int
        Batches of the run from which on it is looked at: those before have to be read first.
    """

    lag: int
    policy: IntArray
    ready: int


class Running:
    """A lag, and all samples since."""

    def __init__(self, lag: Lag, nothing: Evidence) -> None:
        self.lag, self._evidence = lag, nothing
        self.samples = self._counted = 0  # samples, and batches that are in the evidence
        self.batches = list[tuple[Snapshot, Tally]]()
        self._books = dict[bytes, Book | PathBook]()
        self._entered = dict[bytes, int]()  # batches that are in each of the books
        self._kernel: Kernel | None = None
        self._told = 0  # batches that are in the kernel

    def add(self, snapshot: Snapshot, batch: Tally) -> None:
        """Take in a batch."""
        self.batches.append((snapshot, batch))
        self.samples += batch.samples

    @property
    def evidence(self) -> Evidence:
        """All samples, weighted as their snapshots say."""
        for snapshot, batch in _joined(self.batches[self._counted :]):
            self._evidence = self._evidence.add(batch, snapshot.weights)
        self._counted = len(self.batches)
        return self._evidence

    def book(self, problem: Problem, sampled: FloatArray, policy: IntArray, most: int | None = None) -> Book | PathBook:
        """Return what a policy makes of the samples; it is the same whether it is asked now or was before.

        With `most` it takes in no more batches than that: all at once may take longer than a look.
        """
        key = policy.tobytes()
        if key not in self._books:
            favourite = self.lag.policies.favourite.tobytes()
            for old in [old for old in self._books if old != favourite][: max(0, len(self._books) - _BOOKS + 1)]:
                del self._books[old], self._entered[old]
            self._books[key], self._entered[key] = self._new(problem, sampled, policy), 0
        book, begin = self._books[key], self._entered[key]
        end = len(self.batches) if most is None else min(begin + most, len(self.batches))
        for snapshot, batch in _joined(self.batches[begin:end]):
            book.enter(snapshot, batch)
        self._entered[key] = end
        if self._kernel is not None:  # which all policies share
            for snapshot, batch in self.batches[self._told : end]:
                self._kernel.enter(snapshot, batch)
            self._told = max(self._told, end)
        return book

    def keep(self, policies: list[IntArray]) -> None:
        """Forget what other policies make of the samples: it can be had again, and takes much memory."""
        known = {policy.tobytes() for policy in policies}
        for other in [key for key in self._books if key not in known]:
            del self._books[other], self._entered[other]

    def _new(self, problem: Problem, sampled: FloatArray, policy: IntArray) -> Book | PathBook:
        if self.lag.theorem == "I":
            return Book(problem, sampled, self.lag, policy)
        if self._kernel is None:
            self._kernel = new_kernel(problem, sampled, self.lag)
        return PathBook(problem, sampled, self.lag, policy, self._kernel)


def _joined(batches: list[tuple[Snapshot, Tally]]) -> list[tuple[Snapshot, Tally]]:
    """Put batches in a row with one snapshot together."""
    found = list[tuple[Snapshot, Tally]]()
    for snapshot, batch in batches:
        if found and found[-1][0].same(snapshot):
            found[-1] = snapshot, found[-1][1] + batch
        else:
            found.append((snapshot, batch))
    return found
