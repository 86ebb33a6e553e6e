"""Cutting planes: the allocation that no found alternative can fool, and the alternatives that fool it most.

The linear programme max_ω min_k Σ ω KL_k over the alternatives found so far has an optimum ω that trusts them too
much. So new alternatives are sought at a point between it and the best allocation tried so far (in-out separation),
with a trace of uniform sampling mixed in, which keeps every divergence in sight.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.exploration import Explorer
from bestpolicy.bounds.search import Search
from bestpolicy.problem import FloatArray

_PATIENCE, _PROGRESS = 25, 1.005  # iterations in which the bound has to grow by this factor
_EFFORT, _ENOUGH = 30, 0.01  # after so many iterations this gap will do
_REMEMBERED = 10  # allocations
_NODE_LIMIT = 200
_KEPT = 400  # planes in the linear programme


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
    time : float
        Certified characteristic time so far.
    centre : array (stages, n)
        The allocation at which the cheapest alternative found is dearest: nearly optimal once the gap is small.
    gap : float
        Value of the programme over the cheapest alternative at the best allocation tried, minus 1.
    finished, out_of_time : bool
    """

    def __init__(self, search: Search, deadline: float) -> None:
        truth = search.truth
        self.search, self.deadline = search, deadline
        self.alternatives: list[Alternative] = []
        self.time, self.gap = 0.0, float("inf")
        self.finished = self.out_of_time = False
        stages, n = truth.rewards.shape
        self.uniform: FloatArray = np.full((stages, n), 1.0 / n)
        self.centre: FloatArray = self.uniform
        self._vertex: FloatArray = self.uniform  # optimum of the linear programme
        self._planes: FloatArray = np.empty((0, stages, n))
        self._owners: list[int] = []  # index of the target, -1 for alternatives that were given
        self._explorer = Explorer(search)
        self._history = [0.0]
        self._pressed: set[int] = set()
        self._points: list[FloatArray] = []
        self._lambda: FloatArray = np.zeros(0)
        self._iterations = 0
        self._mixture = 0.05

    @property
    def active(self) -> tuple[Alternative, ...]:
        """Alternatives with a positive weight."""
        return tuple(self.alternatives[k] for k in np.flatnonzero(self._lambda))

    @property
    def active_weights(self) -> FloatArray:
        """Their weights λ."""
        return self._lambda[self._lambda > 0]

    def add(self, alternative: Alternative, owner: int = -1) -> None:
        """Take in a verified alternative; the bound never gets worse by it."""
        pairs = self.search.truth.problem.pairs
        plane = alternative.divergences.reshape(len(self.uniform), -1)[:, pairs]
        self.alternatives.append(alternative)
        self._owners.append(owner)
        self._planes = np.concatenate([self._planes, plane[None]])
        self._lambda = np.append(self._lambda, 0.0)
        self._adopt(np.append(np.zeros(len(self._lambda) - 1), 1.0))

    def iterate(self, tolerance: float) -> None:
        """Search at one allocation and solve the linear programme."""
        self._iterations += 1
        if self._iterations > _EFFORT:
            tolerance = max(tolerance, _ENOUGH)
        query = (1 - self._mixture) * self._between() + self._mixture * self.uniform
        self._explore(query)
        if self.alternatives:
            self._solve_programme()
            self._recentre(query)
        elif self._explorer.exhausted:
            self.finished = True  # the same search at the same allocation would fail again
        self._history.append(self.time)
        if self.gap <= tolerance and monotonic() < self.deadline:
            # Before the end, look at every target that might be cheaper than the estimate says.
            self._explore(self.centre, sweep=True)
            self._bring_closer()
            self._solve_programme()
            self._recentre(query)
            self.finished = self.gap <= tolerance
        stalled = len(self._history) > _PATIENCE and self.time <= _PROGRESS * self._history[-_PATIENCE]
        self.finished = self.finished or stalled
        self._mixture = float(np.clip(self.gap / 10, 1e-4, 0.05))
        self.out_of_time = not self.finished and monotonic() >= self.deadline

    def _between(self) -> FloatArray:
        return 0.5 * (self.centre + self._vertex)

    def _explore(self, query: FloatArray, *, sweep: bool = False) -> None:
        costs = np.einsum("khn,hn->k", self._planes, query)
        known = {self._owners[k]: (self.alternatives[k], float(costs[k])) for k in np.argsort(-costs)}
        for target, alternative in self._explorer.explore(query, known, self.deadline, sweep=sweep):
            self.add(alternative, target)

    def _bring_closer(self) -> None:
        """Let branch and bound improve what the bound rests on, once each."""
        for alternative in self.active:
            if self.search.reference.epsilon > 0 and id(alternative) not in self._pressed:
                self._pressed.add(id(alternative))
                closer = self.search.shrunk(alternative, _NODE_LIMIT, self.deadline)
                if closer is not alternative:
                    self._pressed.add(id(closer))
                    self.add(closer)

    def _solve_programme(self) -> None:
        """Optimal ω and λ for the alternatives found; λ is used by weak duality only."""
        from scipy.optimize import linprog

        costs = np.einsum("khn,hn->k", self._planes, self.centre)
        chosen = np.union1d(np.argsort(costs)[:_KEPT], np.flatnonzero(self._lambda))
        planes = self._planes[chosen].reshape(len(chosen), -1)
        stages, n = self.uniform.shape
        scale = 1.0 / self.time if self.time > 0 else float(planes.max(axis=1).min())
        result = linprog(
            np.append(np.zeros(stages * n), -1.0),
            A_ub=np.column_stack([-planes / scale, np.ones(len(chosen))]),
            b_ub=np.zeros(len(chosen)),
            A_eq=np.column_stack([np.kron(np.eye(stages), np.ones(n)), np.zeros(stages)]),
            b_eq=np.ones(stages),
            bounds=[(0, None)] * (stages * n) + [(None, None)],
            method="highs",
        )
        if result.x is None:
            return
        self._vertex = _distribution(result.x[:-1].reshape(stages, n))
        weights = np.zeros(len(self.alternatives))
        weights[chosen] = np.maximum(-result.ineqlin.marginals, 0.0)
        if weights.sum() > 0:
            self._adopt(weights / weights.sum())

    def _adopt(self, weights: FloatArray) -> None:
        """Use the weights λ if they give a better bound; Σ_h max Σ_k λ_k KL_k is what divides kl(δ, 1-δ)."""
        weights = np.where(weights > 1e-9, weights, 0.0)
        weights = weights / weights.sum()
        used = np.flatnonzero(weights)
        worst = np.einsum("k,khn->hn", weights[used], self._planes[used]).max(axis=1).sum()
        # Rounded down by more than the errors of this sum.
        time = float((1 - 1e-12) / worst)
        if time > self.time:
            self.time, self._lambda = time, weights

    def _recentre(self, query: FloatArray) -> None:
        """Pick the best of the last allocations tried; a new alternative may have spoiled the one at hand."""
        self._points = [*self._points[-_REMEMBERED:], query, self.centre]
        values = np.einsum("khn,phn->pk", self._planes, np.stack(self._points), optimize=True).min(axis=1)
        self.centre = self._points[int(values.argmax())]
        self.gap = float(1.0 / (self.time * values.max()) - 1.0)


def _distribution(values: FloatArray) -> FloatArray:
    clipped = np.maximum(values, 0.0)
    distribution: FloatArray = clipped / clipped.sum(axis=1, keepdims=True)
    return distribution
