"""Cutting planes: search alternatives where an allocation is fooled most easily, re-weigh all that were found, repeat.

A verified alternative is a plane, the linear function ω ↦ Σ ω KL_k of the allocation. An episodic problem has two
programmes over the same planes: first that for any sampling, then that for rounds, which starts from what the first
has found. If what the second found in turn would improve the first, the first goes on.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.exploration import Explorer
from bestpolicy.bounds.programme import Programme
from bestpolicy.bounds.search import Search

_EFFORT, _ENOUGH = 30, 0.01  # after so many iterations this gap will do
_SHARE = 2 / 3  # of the time for any sampling, if the search for rounds still has to begin
_NODE_LIMIT = 200


class CuttingPlanes:
    """State of the search.

    Parameters
    ----------
    search : Search
    deadline : float
        `time.monotonic()` at which to stop.

    Attributes
    ----------
    alternatives : list of Alternative
    free, rounds : Programme
        For any sampling, and for rounds that sample every step once; the same object if there is one step.
    out_of_time : bool
    """

    def __init__(self, search: Search, deadline: float) -> None:
        self.search, self.deadline = search, deadline
        self.alternatives: list[Alternative] = []
        stages, n = search.truth.rewards.shape
        self.free = self.rounds = Programme(stages, n, in_rounds=False)
        if stages > 1:
            self.rounds = Programme(stages, n, in_rounds=True)
        self.out_of_time = False
        now = monotonic()
        self._handover = now + _SHARE * (deadline - now)
        self._planes: FloatArray = np.empty((0, stages, n))
        self._owners: list[int] = []  # index of the target, -1 for alternatives that were given
        self._explorer = Explorer(search)
        self._pressed: set[int] = set()

    @property
    def programmes(self) -> tuple[Programme, ...]:
        """The different ones."""
        return (self.free,) if self.free is self.rounds else (self.free, self.rounds)

    @property
    def finished(self) -> bool:
        """Whether no programme has anything left to gain."""
        return all(programme.finished for programme in self.programmes)

    def add(self, alternative: Alternative, owner: int = -1) -> None:
        """Take in a verified alternative; no bound gets worse by it."""
        pairs = self.search.truth.problem.pairs
        plane = alternative.divergences.reshape(self._planes.shape[1], -1)[:, pairs]
        self.alternatives.append(alternative)
        self._owners.append(owner)
        self._planes = np.concatenate([self._planes, plane[None]])
        for programme in self.programmes:
            programme.extend(self._planes)

    def iterate(self, tolerance: float) -> None:
        """Search at one allocation, for the programme whose turn it is, and solve that."""
        others_wait = self.rounds is not self.free and not self.rounds.finished
        if self.free.finished or (others_wait and monotonic() >= self._handover):
            programme, until = self.rounds, self.deadline
        else:
            programme, until = self.free, self._handover if others_wait else self.deadline
        self._advance(programme, tolerance, until)
        if programme.finished:
            for other in self.programmes:
                before = other.time
                if other is not programme and other.finished and self.alternatives:
                    other.solve(self._planes)
                    other.finished = other.time <= (1 + _ENOUGH) * before
        self.out_of_time = not self.finished and monotonic() >= self.deadline

    def exchange(self) -> None:
        """Let each programme profit from all that was found.

        As each has tried the other's λ, rounds ≤ samples ≤ H · rounds holds for what is certified, not only for optima.
        """
        if self.rounds is self.free or not len(self._planes):
            return
        for programme in self.programmes:
            programme.solve(self._planes)
        self.free.adopt(self._planes, self.rounds.weights)
        self.rounds.adopt(self._planes, self.free.weights)

    def _advance(self, programme: Programme, tolerance: float, deadline: float) -> None:
        programme.iterations += 1
        if programme.iterations > _EFFORT:
            tolerance = max(tolerance, _ENOUGH)
        query = programme.query
        self._explore(query, deadline)
        if self.alternatives:
            programme.solve(self._planes)
            programme.recentre(self._planes, query)
        elif self._explorer.exhausted:
            programme.finished = True  # the same search at the same allocation would fail again
        if programme.gap <= tolerance and monotonic() < deadline:
            # Before the end, look at every target that might be cheaper than the estimate says.
            self._explore(programme.centre, deadline, sweep=True)
            self._bring_closer(programme, deadline)
            programme.solve(self._planes)
            programme.recentre(self._planes, query)
            programme.finished = programme.gap <= tolerance
        programme.note()

    def _explore(self, query: FloatArray, deadline: float, *, sweep: bool = False) -> None:
        costs = np.einsum("khn,hn->k", self._planes, query)
        known = {self._owners[k]: (self.alternatives[k], float(costs[k])) for k in np.argsort(-costs)}
        for target, alternative in self._explorer.explore(query, known, deadline, sweep=sweep):
            self.add(alternative, target)

    def _bring_closer(self, programme: Programme, deadline: float) -> None:
        """Let branch and bound improve what the bound rests on, once each."""
        for alternative in [self.alternatives[k] for k in np.flatnonzero(programme.weights)]:
            if self.search.reference.epsilon > 0 and id(alternative) not in self._pressed:
                self._pressed.add(id(alternative))
                closer = self.search.shrunk(alternative, _NODE_LIMIT, deadline)
                if closer is not alternative:
                    self._pressed.add(id(closer))
                    self.add(closer)
