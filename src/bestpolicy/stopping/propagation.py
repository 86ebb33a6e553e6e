"""How one error vector moves the values of the estimated model.

The truth solves the estimated model with another reward: with x_h = θ̂_h - θ_h + γ(μ̂_h - μ_h)ᵀV*_{h+1},

    Q*_h = Φ(θ̂_h - x_h) + γP̂_h V*_{h+1}        (exactly; discounted: one stage that follows itself).

So for a policy π everything is linear in x. Discounted: with K = μ̂ᵀΦ_π and J = (I - γK)⁻¹, the value of π in
(θ̂ - x, P̂) is V_x = Φ_πJ(θ̂ - x), and V_x - Q_x(s,a) = Δ̂(s,a) + yᵀx, y(s,a) = Jᵀ(φ(s,a) - φ(s,π(s))). A
bound |vᵀx| ≤ √(vᵀMv) for all v therefore becomes √(cᵀM̃c) for c = φ(s,a) - φ(s,π(s)), with the *pulled-back*
metric

    M̃ = J M Jᵀ,        episodic: M̃_h = M_h + K_h M̃_{h+1} K_hᵀ,   K_h = μ̂_hᵀΦ_{π_{h+1}},

a d×d matrix a stage, whatever the number of states.

What is not linear, ω = V* - V_x, obeys ω(s) = max_a{adv(s,a) + γ p̂ω} with adv ≤ ρ, hence |ω| ≤ W for the
fixed point W of the monotone map F(v) = max_a{ρ + γ|P̂|v}. P̂ may have negative entries; F is a contraction
if γ max_a|P̂|h < h for some h > 0. Iteration approaches W from below, which proves nothing, so what is
returned is a *super-solution*, F(W) ≤ W checked elementwise in floating point: it lies above the fixed point.

Size. |P̂|v = P̂v + 2P̂⁻v, and P̂v = Φ(μ̂ᵀv) is d-dimensional. |P̂| is formed only while it is small; else one
pass over the rows measures the negative mass n(s,a) = ‖p̂⁻‖₁, and |P̂|v ≤ Φ(μ̂ᵀv) + 2n·max v serves (an upper
bound on F keeps super-solutions valid).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem

_DENSE_STATES = 200  # states up to which |P̂| is kept and systems of that size are solved
_CHUNK = 250_000  # entries at a time: they stay in the cache
_SAFETY = 1e-9  # relative distance that strict inequalities have to keep from rounding
_MAX_IMPROVEMENTS = 30


class EstimatedKernel:
    """Products with P̂ and |P̂|.

    Parameters
    ----------
    problem : Problem
    mu : array (stages, S, d)
        μ̂.
    """

    def __init__(self, problem: Problem, mu: FloatArray) -> None:
        self.problem = problem
        self.mu = mu
        self._features = problem.features.reshape(-1, problem.dimension)
        self._dense: FloatArray | None = None
        stages, pairs = problem.stages, len(self._features)
        if problem.states <= _DENSE_STATES:
            signed = self._features @ mu.swapaxes(1, 2)
            self._dense = np.abs(signed)
            mass = np.clip(-signed, 0.0, None).sum(axis=2)
        elif (self._features >= 0).all() and (mu >= 0).all():
            mass = np.zeros((stages, pairs))
        else:
            mass = self._measured_mass()
        self.negative_mass = np.where(problem.mask, mass.reshape(stages, *problem.mask.shape), 0.0)

    def _measured_mass(self) -> FloatArray:
        """Negative mass of every row or a little more, in one pass that keeps no row.

        Single precision takes half the time. Its errors are bounded: a product of d terms is off by less than
        (d+3)·u·|φ|ᵀ|μ̂(s')| (rounding of the factors included), and a sum of S numbers by less than S·u of itself.
        """
        stages, pairs, states = self.problem.stages, len(self._features), self.problem.states
        unit = float(np.finfo(np.float32).eps)
        features, mu = self._features.astype(np.float32), self.mu.astype(np.float32)
        mass = np.empty((stages, pairs))
        step = max(1, _CHUNK // states)
        for stage in range(stages):
            for start in range(0, pairs, step):
                rows = features[start : start + step] @ mu[stage].T
                np.minimum(rows, 0.0, out=rows)
                mass[stage, start : start + step] = -rows.sum(axis=1)
            errors = np.abs(self._features) @ np.abs(self.mu[stage]).sum(axis=0)
            mass[stage] = (1 + states * unit) * mass[stage] + (self.problem.dimension + 3) * unit * errors
        return mass

    def expected(self, stage: int, values: FloatArray) -> FloatArray:
        """P̂v, (S, A)."""
        expected: FloatArray = self._features @ (self.mu[stage].T @ values)
        return expected.reshape(self.problem.mask.shape)

    def absolute(self, stage: int, values: FloatArray) -> FloatArray:
        """|P̂|v or an upper bound on it, (S, A), for v ≥ 0."""
        if self._dense is not None:
            product: FloatArray = self._dense[stage] @ values
            return product.reshape(self.problem.mask.shape)
        bound: FloatArray = self.expected(stage, values) + 2 * self.negative_mass[stage] * values.max()
        return bound

    def _solved(self, actions: IntArray, gains: FloatArray) -> FloatArray:
        """v = gain + γ|P̂|v along one action per state (discounted), roughly; any answer is checked by the caller."""
        gamma, states = self.problem.continuation, np.arange(self.problem.states)
        if self._dense is not None:
            rows = self._dense[0].reshape(*self.problem.mask.shape, -1)[states, actions]
            return np.linalg.solve(np.eye(len(states)) - gamma * rows, gains)
        chosen = self.problem.features[states, actions]
        columns = np.column_stack([gains, 2 * gamma * self.negative_mass[0, states, actions]])
        system = np.eye(self.problem.dimension) - gamma * (self.mu[0].T @ chosen)
        response = columns + gamma * chosen @ np.linalg.solve(system, self.mu[0].T @ columns)
        largest = 0.0
        for _ in range(20):
            largest = float((response[:, 0] + largest * response[:, 1]).max())
        return response[:, 0] + largest * response[:, 1]

    def backup(self, stage: int, gains: FloatArray, values: FloatArray) -> FloatArray:
        """Gains + γ|P̂|v per pair, (S, A); -inf where the action is not allowed."""
        total = gains + self.problem.continuation * self.absolute(stage, values)
        return np.where(self.problem.mask, total, -np.inf)

    def contraction(self) -> FloatArray | None:
        """h > 0, (S,), with γ max_a|P̂|h < h at every state of a discounted problem; None if none is found."""
        nothing = np.zeros(self.problem.mask.shape)
        weights = np.ones(self.problem.states)
        for _ in range(_MAX_IMPROVEMENTS):
            q_values = self.backup(0, nothing, weights)
            if (q_values.max(axis=1) < (1 - _SAFETY) * weights).all():
                return weights
            try:
                improved = self._solved(q_values.argmax(axis=1), np.ones(self.problem.states))
            except np.linalg.LinAlgError:
                return None
            if not (np.isfinite(improved).all() and improved.min() > 0):
                return None
            weights = improved
        return None

    def super_solution(self, gains: FloatArray, contraction: FloatArray | None) -> FloatArray | None:
        """V ≥ 0, (stages, S), with V ≥ max_a{gains + γ|P̂|V of the next stage}, checked; None if none is found.

        Parameters
        ----------
        gains : array (stages, S, A)
        contraction : array (S,), optional
            h of `contraction`, for a discounted problem.
        """
        if self.problem.horizon is not None:
            values = np.zeros((self.problem.stages + 1, self.problem.states))
            for stage in reversed(range(self.problem.stages)):
                best = self.backup(stage, gains[stage], values[stage + 1]).max(axis=1)
                values[stage] = np.clip(best, 0.0, None) * (1 + _SAFETY)
            return values[:-1]
        assert contraction is not None
        if not np.isfinite(np.where(self.problem.mask, gains[0], 0.0)).all():
            return None
        values = self._improved(gains[0])
        shrinkage = contraction - self.backup(0, np.zeros_like(gains[0]), contraction).max(axis=1)
        for _ in range(3):
            missing = self.backup(0, gains[0], values).max(axis=1) - values
            if (missing <= 0).all():
                return values[None]
            # F(v + c·h) ≤ F(v) + c·γ max|P̂|h, so this c closes what is missing at every state.
            correction = float((missing / shrinkage).max()) * (1 + _SAFETY) + 1e-14 * values.max() / contraction.min()
            values = values + correction * contraction
        return None

    def negative_parts(self, policy: IntArray, largest: FloatArray, contraction: FloatArray | None) -> FloatArray:
        """Bounds on max(-ω) at each stage, (stages,), given |ω| ≤ `largest` (stages,).

        ω(s) ≥ γp̂(s,π)ω, so ω⁻ ≤ γ|p̂|ω⁻ + γp̂⁻|ω|: zero if P̂ ≥ 0, and small with the negative mass of the played rows.
        """
        everywhere = np.arange(self.problem.states)
        mass = np.array([self.negative_mass[h, everywhere, policy[h]] for h in range(self.problem.stages)])
        if contraction is not None:
            shrinkage = contraction - self.backup(0, np.zeros(self.problem.mask.shape), contraction).max(axis=1)
            ratio = self.problem.continuation * float((mass[0] / shrinkage).max()) * float(contraction.max())
            return np.minimum(largest, ratio * largest)
        parts = np.zeros(self.problem.stages + 1)
        for stage in reversed(range(self.problem.stages - 1)):
            parts[stage] = (mass[stage] * largest[stage + 1] + (1 + 2 * mass[stage]) * parts[stage + 1]).max()
        return np.minimum(largest, parts[:-1])

    def _improved(self, gains: FloatArray) -> FloatArray:
        """Approximate fixed point of v = max_a{gains + γ|P̂|v}, clipped at 0, by policy iteration (discounted)."""
        everywhere = np.arange(self.problem.states)
        values = np.zeros(self.problem.states)
        actions = self.backup(0, gains, values).argmax(axis=1)
        for _ in range(_MAX_IMPROVEMENTS):
            try:
                values = np.clip(self._solved(actions, gains[everywhere, actions]), 0.0, None)
            except np.linalg.LinAlgError:
                break
            better = self.backup(0, gains, values).argmax(axis=1)
            if (better == actions).all():
                break
            actions = better
        return values


@dataclass(frozen=True, eq=False)
class Propagation:
    """A policy's linear response to the error vector, in the estimated model.

    Attributes
    ----------
    policy : int array (stages, S)
    values : array (stages, S)
        V̂ = Φ_πξ̂ of the policy, not clipped.
    q_values : array (stages, S, A)
        Q̂ = Φξ̂.
    played : array (stages, S, d)
        φ(s, π(s)).
    """

    problem: Problem
    policy: IntArray
    values: FloatArray
    q_values: FloatArray
    played: FloatArray
    _links: FloatArray  # J (1, d, d), or K_h (H, d, d)

    def directions(self, stage: int, vectors: FloatArray) -> FloatArray:
        """What the values of vectors (n, d) at a stage depend on: y over all stages, (n, stages, d)."""
        if self.problem.horizon is None:
            response: FloatArray = vectors @ self._links[0]
            return response[:, None, :]
        found = np.zeros((len(vectors), self.problem.stages, self.problem.dimension))
        for later in range(stage, self.problem.stages):
            found[:, later] = vectors
            vectors = vectors @ self._links[later]
        return found

    def pulled_back(self, metrics: FloatArray) -> FloatArray:
        """M̃ for metrics M (m, stages, d, d), same shape."""
        links = self._links
        if self.problem.horizon is None:
            pulled: FloatArray = links @ metrics @ links.swapaxes(1, 2)
            return pulled
        result = metrics.copy()
        for stage in reversed(range(self.problem.stages - 1)):
            result[:, stage] += links[stage] @ result[:, stage + 1] @ links[stage].T
        return result


def propagate(problem: Problem, theta: FloatArray, mu: FloatArray, policy: IntArray) -> Propagation | None:
    """Evaluate a policy (stages, S) in the model (θ̂, μ̂); None if I - γK is singular."""
    played = problem.features[np.arange(problem.states), policy]
    parameters = np.empty((problem.stages, problem.dimension))
    if problem.horizon is None:
        system = np.eye(problem.dimension) - problem.continuation * (mu[0].T @ played[0])
        if not np.linalg.cond(system) < 1e10:
            return None
        links = np.linalg.inv(system)[None]
        parameters[0] = np.linalg.solve(system, theta[0])
    else:
        links = np.zeros((problem.stages, problem.dimension, problem.dimension))
        links[:-1] = mu[:-1].swapaxes(1, 2) @ played[1:]
        parameters[-1] = theta[-1]
        for stage in reversed(range(problem.stages - 1)):
            parameters[stage] = theta[stage] + links[stage] @ parameters[stage + 1]
    return Propagation(
        problem=problem,
        policy=policy,
        values=np.einsum("hsd,hd->hs", played, parameters),
        q_values=np.einsum("sad,hd->hsa", problem.features, parameters, optimize=True),
        played=played,
        _links=links,
    )
