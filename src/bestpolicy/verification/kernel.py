"""|P̂| of an estimated model, and functions that dominate fixed points.

Let F(v)(s) = max_a{g(s,a) + γ(|P̂|v)(s,a)}. If γ max_a|P̂|h < h at every state for some h > 0, F is a contraction in the
norm weighted by h, and every v with F(v) ≤ v lies above its fixed point. Such a v is found by policy iteration and
lifted by a multiple of h until the inequality holds in floating point, with room for the rounding of that test.
Episodic: F goes from stage to stage, backward induction gives the fixed point itself, and no h is needed.

With many states |P̂| is not formed. Rows of P̂ sum to 1, |P̂|v = P̂v + 2P̂⁻v ≤ Φ(μ̂ᵀv) + 2n max v with the negative
mass n(s,a) = Σ_s' max(-p̂(s'), 0); a larger F has larger super-solutions, so these are as good.
"""

from __future__ import annotations

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import STAGE, Floats, Ints, Rejected
from bestpolicy.verification.rounding import EPS

_DENSE_STATES = 400
_DENSE_ENTRIES = 4 * 10**7
_BLOCK = 2 * 10**6  # entries of P̂ that are looked at in one go
_IMPROVEMENTS = 100


class Kernel:
    """Products with |P̂|, and super-solutions.

    Parameters
    ----------
    case : Case
    features : array (S, A, d)
        In the coordinates of μ̂.
    mu : array (stages, S, d)
    lengths : array (stages,)
        Bounds on |φ|ᵀΣ_s|μ̂(s)| at all pairs.
    """

    def __init__(self, case: Case, features: Floats, mu: Floats, lengths: Floats) -> None:
        self.case, self.features, self.mu = case, features, mu
        # A row times v is off by less than this times max v: d terms for each of S entries, then S terms.
        self.unit = (len(features) + features.shape[2] + 8) * EPS * (1 + lengths)
        states, actions, dimension = features.shape
        rows = features.reshape(-1, dimension)
        self.negative = np.zeros((case.stages, states, actions))
        small = states <= _DENSE_STATES and case.stages * states * states * actions <= _DENSE_ENTRIES
        entries = case.stages * states * states * actions
        case.budget.hold((entries if small else 0) + 3 * min(entries, _BLOCK), "the estimated transitions")
        case.budget.work(entries * dimension, "the estimated transitions")
        self._dense = np.empty((case.stages, states * actions, states)) if small else None
        step = max(1, _BLOCK // states)
        signs = (rows < 0).any() or (mu < 0).any()
        for stage in range(case.stages):
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                signed = rows[part] @ mu[stage].T
                if signs:
                    self.negative[stage].reshape(-1)[part] = self.unit[stage] - np.minimum(signed, 0.0).sum(axis=1)
                if self._dense is not None:
                    self._dense[stage, part] = np.abs(signed)
        self.negative[:, ~case.mask] = 0.0
        self.weights = self._contraction() if case.horizon is None else None

    def _absolute(self, stage: int, values: Floats) -> Floats:
        """|P̂|v or more, (S, A), for v ≥ 0."""
        if self._dense is not None:
            product: Floats = self._dense[stage] @ values
            return product.reshape(self.case.mask.shape)
        bound: Floats = self.features @ (self.mu[stage].T @ values) + 2 * self.negative[stage] * values.max()
        return bound

    def _room(self, stage: int, gains: Floats, values: Floats) -> float:
        """By how much a backup may be off."""
        sizes = np.where(self.case.mask & np.isfinite(gains), np.abs(gains), 0.0)
        return float(self.unit[stage] * values.max() + 4 * EPS * sizes.max())

    def _backup(self, stage: int, gains: Floats, values: Floats) -> Floats:
        return np.where(self.case.mask, gains + self.case.gamma * self._absolute(stage, values), -np.inf)

    def _evaluate(self, actions: Ints, gains: Floats) -> Floats:
        """v = g + γ|P̂|v along one action per state, as well as floating point allows; the caller checks."""
        gamma, states = self.case.gamma, np.arange(len(self.features))
        if self._dense is not None:
            rows = self._dense[0].reshape(*self.case.mask.shape, -1)[states, actions]
            return np.linalg.solve(np.eye(len(states)) - gamma * rows, gains)
        # v = g + γΦ_a m + 2γn x with m = μ̂ᵀv and x = max v: linear in x, which a few rounds determine.
        chosen, mu = self.features[states, actions], self.mu[0]
        system = np.eye(mu.shape[1]) - gamma * (mu.T @ chosen)
        sources = np.column_stack([gains, 2 * gamma * self.negative[0, states, actions]])
        fixed, slope = (sources + gamma * chosen @ np.linalg.solve(system, mu.T @ sources)).T
        largest = 0.0
        for _ in range(100):
            largest = float((fixed + slope * largest).max())
        values: Floats = fixed + slope * largest
        return values

    def _policy_iteration(self, gains: Floats) -> Floats:
        states = np.arange(len(self.features))
        actions = np.where(self.case.mask, gains, -np.inf).argmax(axis=1)
        values = np.zeros(len(states))
        solving = len(states) ** 3 if self._dense is not None else self.mu[0].size * (self.mu.shape[2] + 100)
        for _ in range(_IMPROVEMENTS):
            self.case.budget.work(solving + 2 * self.features.size + STAGE, "policy iteration")
            try:
                values = np.maximum(self._evaluate(actions, gains[states, actions]), 0.0)
            except np.linalg.LinAlgError:
                break
            backup = self._backup(0, gains, values)
            better = backup.max(axis=1) > backup[states, actions] * (1 + 1e-13) + 1e-300
            if not np.isfinite(values).all() or not better.any():
                break
            actions = np.where(better, backup.argmax(axis=1), actions)
        return values

    def _contraction(self) -> Floats:
        """h > 0 with γ max_a|P̂|h < h at every state."""
        nothing = np.zeros(self.case.mask.shape)
        for attempt in range(2):
            weights = np.ones(len(nothing)) if attempt == 0 else self._policy_iteration(np.ones(nothing.shape))
            if np.isfinite(weights).all() and weights.min() > 0:
                shrunk = self._backup(0, nothing, weights).max(axis=1) + self._room(0, nothing, weights)
                if (shrunk < (1 - 1e-10) * weights).all():
                    return weights
        raise Rejected("the estimated transitions do not contract, which Theorem T needs")

    def super_solution(self, gains: Floats) -> Floats:
        """V ≥ 0, (stages, S), with V ≥ max_a{g + γ|P̂|V of the next stage} for gains g (stages, S, A)."""
        if self.case.horizon is not None:
            staged = np.zeros((self.case.stages + 1, len(self.features)))
            for stage in reversed(range(self.case.stages)):
                best = self._backup(stage, gains[stage], staged[stage + 1]).max(axis=1)
                if staged[stage + 1].any():
                    best = best + self._room(stage, gains[stage], staged[stage + 1])
                staged[stage] = np.maximum(best, 0.0) * (1 + 1e-13)
            return staged[:-1]
        assert self.weights is not None
        values = self._policy_iteration(gains[0])
        if not np.isfinite(values).all():
            values = np.zeros(len(self.features))
        nothing = np.zeros_like(gains[0])
        room = self.weights - self._backup(0, nothing, self.weights).max(axis=1) - self._room(0, nothing, self.weights)
        for attempt in range(6):
            missing = self._backup(0, gains[0], values).max(axis=1) - values
            rounding = self._room(0, gains[0], values)
            if (missing + (rounding if values.max() > 0 else 0.0) <= 0).all():
                return values[None]
            # F(v + c·h) ≤ F(v) + cγ max|P̂|h: this c closes what is missing, with room that grows with the attempts.
            values = values + float(((missing + 2.0 ** (attempt + 1) * rounding) / room).max()) * self.weights
        raise Rejected("no function could be shown to dominate the error of the values")
