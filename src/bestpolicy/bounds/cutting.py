"""Cutting planes: the allocation that no found alternative can fool, and the alternatives that fool it most.

The linear programme max_ω min_k Σ ω KL_k over the alternatives found so far has an optimum ω that trusts them too
much. So new alternatives are sought at a point between it and the best allocation tried so far (in-out separation),
with a trace of uniform sampling mixed in, which keeps every divergence in sight. Several targets are searched in
each iteration: those with the lowest prediction, which is the quadratic estimate corrected by what the target's last
search gave.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.search import Search
from bestpolicy.problem import FloatArray

_TARGETS, _ATTEMPTS = 6, 12  # successful and other searches per iteration
_SWEEP = 40  # searches of the last look around
_SLEEP = 8  # iterations for which a target that only repeats others is left alone
_NODE_LIMIT = 60
_PATIENCE, _PROGRESS = 25, 1.005  # iterations in which the bound has to grow by this factor
_EFFORT, _ENOUGH = 30, 0.01  # after so many iterations this gap will do
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
        self._corrections = np.ones(len(search.targets))
        self._tried = np.zeros(len(search.targets), dtype=np.int64)
        self._asleep_until = np.zeros(len(search.targets), dtype=np.int64)
        self._kinds = np.array([int(target.seeded) for target in search.targets], dtype=np.int64)
        self._luck = np.ones((2, 2))  # (kind, failures and successes)
        self._history = [0.0]
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
        self._explore(query, _TARGETS, _ATTEMPTS)
        if self.alternatives:
            self._solve_programme()
            self._recentre(query)
        self._history.append(self.time)
        if self.gap <= tolerance and monotonic() < self.deadline:
            # Before the end, look at every target that might be cheaper than the estimate says.
            self._explore(self.centre, _SWEEP, _SWEEP, within=1.3)
            self._solve_programme()
            self._recentre(query)
            self.finished = self.gap <= tolerance
        stalled = len(self._history) > _PATIENCE and self.time < _PROGRESS * self._history[-_PATIENCE]
        self.finished = self.finished or stalled
        self._mixture = float(np.clip(self.gap / 10, 1e-4, 0.05))
        self.out_of_time = not self.finished and monotonic() >= self.deadline

    def _between(self) -> FloatArray:
        return 0.5 * (self.centre + self._vertex)

    def _explore(self, query: FloatArray, wanted: int, attempts: int, within: float = np.inf) -> None:
        search = self.search
        estimates = search.estimates(query)
        # A kind of target that mostly comes to nothing has to wait.
        doubts = self._luck.sum(axis=1) / self._luck[:, 1]
        predictions = estimates * self._corrections * np.where(self._tried > 0, 1.0, doubts[self._kinds])
        costs = np.einsum("khn,hn->k", self._planes, query)
        cheapest: dict[int, int] = {}
        for k in np.argsort(-costs):
            cheapest[self._owners[k]] = int(k)
        for target, k in cheapest.items():
            if target >= 0:
                predictions[target] = min(predictions[target], costs[k])
        lowest = costs.min(initial=np.inf)
        successes = 0
        order = np.argsort(predictions)
        order = order[self._asleep_until[order] <= self._iterations]
        promising = order[predictions[order] <= within * lowest][:attempts]
        # A quarter of the effort goes to targets never tried: estimates are poor where ε is large.
        fresh = order[self._tried[order] == 0][: attempts // 4] if search.reference.epsilon > 0 else order[:0]
        for target in [*fresh, *promising[~np.isin(promising, fresh)]]:
            if successes >= wanted + len(fresh) or monotonic() > self.deadline:
                break
            self._tried[target] += 1
            known = cheapest.get(int(target))
            start = None
            if known is not None:
                start = self.alternatives[known].theta_change, self.alternatives[known].mu_change
            found = search.find(
                query,
                search.targets[target],
                start,
                expected=float(predictions[target]),
                deadline=self.deadline,
            )
            self._luck[self._kinds[target], int(found is not None)] += 1
            if found is None:
                self._corrections[target] *= 10
                continue
            cost = search.cost(query, found)
            if self._is_known(found, query, cost):
                # Many targets may lead to the same model; let others have their turn.
                self._corrections[target] = cost / estimates[target]
                self._asleep_until[target] = self._iterations + _SLEEP
                continue
            if search.reference.epsilon > 0 and cost < 1.2 * lowest:
                found = search.shrunk(found, _NODE_LIMIT, self.deadline)
            self._corrections[target] = cost / estimates[target]
            lowest = min(lowest, cost)
            successes += 1
            self.add(found, int(target))

    def _is_known(self, alternative: Alternative, query: FloatArray, cost: float) -> bool:
        """Whether a plane at hand is all but the same."""
        plane = alternative.divergences.reshape(len(query), -1)[:, self.search.truth.problem.pairs]
        costs = np.einsum("khn,hn->k", self._planes, query)
        return any(
            float((query * np.abs(self._planes[k] - plane)).sum()) < 1e-3 * cost
            for k in np.flatnonzero(np.abs(costs - cost) < 1e-3 * cost)
        )

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
        values = [np.einsum("khn,hn->k", self._planes, point).min() for point in (query, self.centre)]
        if values[0] >= values[1]:
            self.centre = query
        self.gap = float(1.0 / (self.time * max(values)) - 1.0)


def _distribution(values: FloatArray) -> FloatArray:
    clipped = np.maximum(values, 0.0)
    distribution: FloatArray = clipped / clipped.sum(axis=1, keepdims=True)
    return distribution
