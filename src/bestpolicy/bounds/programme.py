"""The linear programme behind a lower bound: weights λ of the alternatives found, and the allocation ω they call for.

Write KL_k(h, x) for the divergence of alternative k at pair x of step h (discounted: one step). What divides kl(δ, 1-δ)
depends on how an algorithm may spend its samples, and so does the set of allocations on the other side of the duality:

    freely:     min_λ max_{h,x} Σ_k λ_k KL_k(h, x)   = max_ω min_k Σ ω KL_k,   ω one distribution over all (h, x);
    in rounds:  min_λ Σ_h max_x Σ_k λ_k KL_k(h, x)   = max_ω min_k Σ ω KL_k,   ω a distribution over x for each h.

The first is the inverse of a number of samples, the second of a number of rounds. For every λ the largest of H numbers
is at most their sum, and their sum at most H times the largest: rounds ≤ samples ≤ H · rounds. A bound for algorithms
that sample in rounds, counted in samples, is thus never below the bound for all algorithms, and up to H times above it:
where one step is hard and the others easy, free samples all go to the hard one.

The left-hand sides are what is certified: they are evaluated for the λ at hand, optimal or not. The right-hand side
tells where to look for more alternatives, at a point between its optimum ω, which trusts the alternatives found so far
too much, and the best allocation tried (in-out separation), with a trace of uniform sampling that keeps every
divergence in sight.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray

_PATIENCE, _PROGRESS = 25, 1.005  # iterations in which the bound has to grow by this factor
_REMEMBERED = 10  # allocations
_KEPT = 400  # planes in the linear programme


class Programme:
    """One of the two programmes, and how far its search is.

    Parameters
    ----------
    stages, n : int
        Steps (1 if discounted) and allowed pairs.
    in_rounds : bool
        Whether every step is sampled equally often.

    Attributes
    ----------
    time : float
        1/(the left-hand side) at `weights`: what is certified so far, 0 at first.
    weights : array (K,)
        λ.
    centre : array (stages, n)
        The allocation at which the cheapest alternative found is dearest: nearly optimal once the gap is small.
    gap : float
        Value of the programme over the cheapest alternative at the best allocation tried, minus 1.
    iterations : int
    finished : bool
    """

    def __init__(self, stages: int, n: int, *, in_rounds: bool) -> None:
        self.in_rounds = in_rounds
        self.time, self.gap = 0.0, float("inf")
        self.weights: FloatArray = np.zeros(0)
        self.uniform: FloatArray = self._distribution(np.ones((stages, n)))
        self.centre: FloatArray = self.uniform
        self.iterations, self.finished = 0, False
        self._vertex: FloatArray = self.uniform  # optimum of the linear programme
        self._points: list[FloatArray] = []
        self._history = [0.0]
        self._mixture = 0.05

    @property
    def query(self) -> FloatArray:
        """Where to look for alternatives next."""
        between = 0.5 * (self.centre + self._vertex)
        return (1 - self._mixture) * between + self._mixture * self.uniform

    def extend(self, planes: FloatArray) -> None:
        """Make room for the last of the planes (K, stages, n); it may be better than all others together."""
        self.weights = np.append(self.weights, 0.0)
        self.adopt(planes, np.append(np.zeros(len(planes) - 1), 1.0))

    def adopt(self, planes: FloatArray, weights: FloatArray) -> None:
        """Use the weights λ if they give a better bound."""
        weights = np.where(weights > 1e-9, weights, 0.0)
        weights = weights / weights.sum()
        used = np.flatnonzero(weights)
        time = characteristic(planes[used], weights[used], in_rounds=self.in_rounds)
        if time > self.time:
            self.time, self.weights = time, weights

    def solve(self, planes: FloatArray) -> None:
        """Find the optimal ω and λ for the planes; λ is used by weak duality only."""
        from scipy.optimize import linprog

        costs = np.einsum("khn,hn->k", planes, self.centre)
        chosen = np.union1d(np.argsort(costs)[:_KEPT], np.flatnonzero(self.weights))
        rows = planes[chosen].reshape(len(chosen), -1)
        stages, n = self.uniform.shape
        totals = np.kron(np.eye(stages), np.ones(n)) if self.in_rounds else np.ones((1, stages * n))
        scale = 1.0 / self.time if self.time > 0 else float(rows.max(axis=1).min())
        result = linprog(
            np.append(np.zeros(stages * n), -1.0),
            A_ub=np.column_stack([-rows / scale, np.ones(len(chosen))]),
            b_ub=np.zeros(len(chosen)),
            A_eq=np.column_stack([totals, np.zeros(len(totals))]),
            b_eq=np.ones(len(totals)),
            bounds=[(0, None)] * (stages * n) + [(None, None)],
            method="highs",
        )
        if result.x is None:
            return
        self._vertex = self._distribution(result.x[:-1].reshape(stages, n))
        weights = np.zeros(len(planes))
        weights[chosen] = np.maximum(-result.ineqlin.marginals, 0.0)
        if weights.sum() > 0:
            self.adopt(planes, weights)

    def recentre(self, planes: FloatArray, query: FloatArray) -> None:
        """Pick the best of the last allocations tried; a new alternative may have spoiled the one at hand."""
        self._points = [*self._points[-_REMEMBERED:], query, self.centre]
        values = np.einsum("khn,phn->pk", planes, np.stack(self._points), optimize=True).min(axis=1)
        self.centre = self._points[int(values.argmax())]
        self.gap = float(1.0 / (self.time * values.max()) - 1.0)

    def note(self) -> None:
        """End an iteration: give up where the bound has not grown for long."""
        self._history.append(self.time)
        stalled = len(self._history) > _PATIENCE and self.time <= _PROGRESS * self._history[-_PATIENCE]
        self.finished = self.finished or stalled
        self._mixture = float(np.clip(self.gap / 10, 1e-4, 0.05))

    def _distribution(self, values: FloatArray) -> FloatArray:
        clipped = np.maximum(values, 0.0)
        distribution: FloatArray = clipped / clipped.sum(axis=1 if self.in_rounds else None, keepdims=True)
        return distribution


def characteristic(divergences: FloatArray, weights: FloatArray, *, in_rounds: bool) -> float:
    """1/max Σ_k λ_k KL_k, or 1/Σ_h max Σ_k λ_k KL_k, for divergences (K, stages, …); rounded down."""
    worst = np.einsum("k,kh...->h...", weights, divergences).reshape(divergences.shape[1], -1).max(axis=1)
    # By more than the errors of these sums.
    return float((1 - 1e-12) / (worst.sum() if in_rounds else worst.max()))
