"""The model nearest to M under linear constraints, by an interior-point method.

For weights ω on the pairs, minimise over linear models M' = M + (dθ, dμ)

    Σ_x ω_x [ kl(r_x, r'_x) + KL(p_x || p'_x) ]     subject to     ⟨g_j, (dθ, dμ)⟩ ≥ b_j,   Σ_s' dμ(s') = 0,

with p' = p + Φ dμ ≥ 0 and r' = r + Φ dθ ∈ [0, 1]. This is convex: -log of linear functions. Its own divergence keeps
p' away from 0 wherever p > 0; where p = 0 a barrier is needed, and the natural one is to smooth the truth,
p_τ = (p + τ/S)/(1+τ), with τ → 0. At weight τ the value is within about 2τ of the optimum.

The Hessian is block diagonal: one d×d block ΦᵀWΦ per next state, and one for the rewards. The blocks are coupled by the
d equations Σ dμ = 0 (per stage) and the few constraints, so a Newton step costs S factorisations of d×d matrices and
one small system. Features with a single nonzero entry per row (tabular, aggregated) have diagonal blocks.
Slacks of the constraints are variables too, which lets the method start from a point that violates them.

The method is used to *find* models. Whatever it returns is verified elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.bounds.divergence import reward_divergence, transition_divergence
from bestpolicy.bounds.tables import Truth
from bestpolicy.problem import FloatArray

Change = tuple[FloatArray, FloatArray]
"""(dθ, dμ) of shapes (stages, d) and (stages, S, d)."""

_DENSE_LIMIT = 3e7  # entries of the table of φφᵀ
_ACCURACY = 2e-4  # relative accuracy of the value


@dataclass(frozen=True, eq=False)
class Constraint:
    """⟨g, (dθ, dμ)⟩ ≥ level.

    Attributes
    ----------
    theta_gradient : array (stages, d)
    mu_gradient : array (stages, S, d)
    level : float
    """

    theta_gradient: FloatArray
    mu_gradient: FloatArray
    level: float


class NearestModel:
    """Solver for a fixed truth.

    Parameters
    ----------
    truth : Truth
    rewards_known : bool
        Keep the rewards as they are: what is observed without noise cannot be changed at a finite divergence.
    """

    def __init__(self, truth: Truth, *, rewards_known: bool = False) -> None:
        self.truth = truth
        self.rewards_known = rewards_known
        features = truth.features
        self.diagonal = bool(((features != 0).sum(axis=1) == 1).all())
        if self.diagonal:
            self._triangle = np.diag(np.linalg.norm(features, axis=0))
        else:
            self._triangle = np.linalg.qr(features, mode="r")
        self._inverse_triangle: FloatArray = np.linalg.inv(self._triangle)
        self.features: FloatArray = features @ self._inverse_triangle
        self.rows: FloatArray = np.ascontiguousarray(truth.rows.transpose(0, 2, 1))  # (stages, S, n)
        n, d = self.features.shape
        self._products: FloatArray | None = None
        if self.diagonal:
            self._products = self.features**2
        elif n * d * d <= _DENSE_LIMIT:
            self._products = (self.features[:, :, None] * self.features[:, None, :]).reshape(n, d * d)
        self._uniform = self._inward(truth.toward_uniform)
        smallest = min(self.rows.min(), truth.rewards.min(), 1 - truth.rewards.max())
        self._cold_smoothing = 0.03 if smallest < 1e-4 else 1e-7

    def divergences(self, change: Change) -> FloatArray:
        """KL of M from M + change at the allowed pairs, (stages, n)."""
        truth = self.truth
        moved = truth.features @ change[1].transpose(0, 2, 1)
        return reward_divergence(truth.rewards, change[0] @ truth.features.T) + transition_divergence(
            truth.rows, moved
        )

    def solve(
        self,
        weights: FloatArray,
        constraints: list[Constraint],
        start: Change | None = None,
        *,
        expected: float = 0.0,
    ) -> Change | None:
        """Find the nearest model; None if the iteration fails.

        Parameters
        ----------
        weights : array (stages, n)
            Positive.
        constraints : list of Constraint
            M violates at least one of them.
        start : Change, optional
            A strictly positive model near the answer.
        expected : float, optional
            A guess of the optimal value; a good one saves most of the path.
        """
        task = _Task(
            weights,
            [self._gradient(constraint) for constraint in constraints],
            np.array([constraint.level for constraint in constraints]),
        )
        if expected > 0:
            # Near M the problem is almost quadratic, and a few Newton steps without any path will do.
            smoothing = 0.5 * _ACCURACY * expected
            iterate = self._initial(task, start, smoothing)
            if self._settle(iterate, task, smoothing, 6):
                return self._outward(iterate)
        smoothing = self._cold_smoothing if start is None else min(self._cold_smoothing, 1e-3)
        iterate = self._initial(task, start, smoothing)
        for _ in range(16):
            if self._settle(iterate, task, smoothing, 25) is None:
                return None
            change = self._outward(iterate)
            value = float((weights * self.divergences(change)).sum())
            if smoothing <= _ACCURACY * value or smoothing < 1e-14:
                return change
            smoothing = max(0.1 * smoothing, 0.5 * _ACCURACY * value)
        return self._outward(iterate)

    def _initial(self, task: _Task, start: Change | None, smoothing: float) -> _Iterate:
        """Start strictly inside: a mixture with the uniform model."""
        theta, mu = (smoothing / (1 + smoothing) * part for part in self._uniform)
        if start is not None:
            warm = self._inward(start)
            theta, mu = (
                (1 - smoothing) * old + smoothing * new for old, new in zip(warm, self._uniform, strict=True)
            )
        if self.rewards_known:
            theta = np.zeros_like(theta)
        reached = np.array([_inner(gradient, (theta, mu)) for gradient in task.gradients])
        return _Iterate(theta, mu, np.maximum(reached - task.levels, 0.1 * np.abs(task.levels) + 1e-12))

    def _settle(self, iterate: _Iterate, task: _Task, smoothing: float, steps: int) -> bool | None:
        """Take Newton steps until they are small; False if they did not get small, None if they broke down."""
        for _ in range(steps):
            with np.errstate(all="ignore"):
                relative_step = self._newton_step(iterate, task, smoothing)
            if not np.isfinite(relative_step):
                return None
            if relative_step < 0.05:
                return True
        return False

    def curvature(self, weights: FloatArray, smoothing: float) -> tuple[FloatArray, FloatArray]:
        """Inverse Fisher blocks of the smoothed truth in whitened coordinates: (stages, d, d), (stages, S, d, d)."""
        rewards, rows = self._smoothed(smoothing)
        theta_inverse = self._inverse(self._blocks(weights / (rewards * (1 - rewards))))
        mu_inverse = self._inverse(self._blocks(weights[:, None, :] / rows))
        if self.diagonal:
            eye = np.eye(self.features.shape[1])
            theta_inverse, mu_inverse = theta_inverse[..., None] * eye, mu_inverse[..., None] * eye
        return (np.zeros_like(theta_inverse) if self.rewards_known else theta_inverse), mu_inverse

    def _newton_step(
        self,
        iterate: _Iterate,
        task: _Task,
        smoothing: float,
    ) -> float:
        """Move the iterate by a damped Newton step; return the largest relative change it asked for."""
        truth, features = self.truth, self.features
        weights, gradients, levels = task.weights, task.gradients, task.levels
        target_rewards, target_rows = self._smoothed(smoothing)
        rewards = truth.rewards + iterate.theta @ features.T
        rows = self.rows + iterate.mu @ features.T
        pull = weights[:, None, :] * target_rows / rows
        up, down = weights * target_rewards / rewards, weights * (1 - target_rewards) / (1 - rewards)
        theta_inverse = self._inverse(self._blocks(up / rewards + down / (1 - rewards)))
        mu_inverse = self._inverse(self._blocks(pull / rows))
        if self.rewards_known:
            theta_inverse = np.zeros_like(theta_inverse)
        theta_free = self._times(theta_inverse, (up - down) @ features)
        mu_free = self._times(mu_inverse, pull @ features)
        theta_towards = [self._times(theta_inverse, g[0]) for g in gradients]
        mu_towards = [self._times(mu_inverse, g[1]) for g in gradients]
        # Multipliers of Σ dμ = 0, as functions of those of the constraints.
        total = mu_inverse.sum(axis=1)
        drift = [free.sum(axis=1) for free in (mu_free, *mu_towards)]
        if self.diagonal:
            balanced = [part / total for part in drift]
        else:
            balanced = [np.linalg.solve(total, part[..., None])[..., 0] for part in drift]
        mu_free = mu_free - self._times(mu_inverse, balanced[0][:, None, :])
        mu_towards = [
            part - self._times(mu_inverse, balance[:, None, :])
            for part, balance in zip(mu_towards, balanced[1:], strict=True)
        ]
        reached = np.array([_inner(g, (iterate.theta, iterate.mu)) for g in gradients])
        # A single constraint is tight at the solution: no slack, no barrier.
        slack = iterate.slack if len(levels) > 1 else np.zeros(1)
        barrier = smoothing * float(weights.sum())
        system = np.array(
            [[_inner(g, other) for other in zip(theta_towards, mu_towards, strict=True)] for g in gradients]
        ) + np.diag(slack**2 / barrier)
        # Constraints may say the same thing twice.
        system += 1e-13 * np.diag(system).max() * np.eye(len(system))
        if not np.diag(system).min() > 0:
            return float("nan")
        violation = reached - slack - levels
        multipliers = np.linalg.solve(
            system, -violation + slack - np.array([_inner(g, (theta_free, mu_free)) for g in gradients])
        )
        theta_step = theta_free + sum(m * part for m, part in zip(multipliers, theta_towards, strict=True))
        mu_step = mu_free + sum(m * part for m, part in zip(multipliers, mu_towards, strict=True))
        slack_step = slack - slack**2 * multipliers / barrier
        reward_move, row_move = theta_step @ features.T, mu_step @ features.T
        relative = [row_move / rows, reward_move / rewards, -reward_move / (1 - rewards)]
        if len(levels) > 1:
            relative.append(slack_step / slack)
        towards_zero = max(float(-part.min()) for part in relative)
        damping = min(1.0, 0.9 / towards_zero) if towards_zero > 0 else 1.0
        iterate.theta = iterate.theta + damping * theta_step
        mu = iterate.mu + damping * mu_step
        iterate.mu = mu - mu.mean(axis=1, keepdims=True)
        iterate.slack = slack + damping * slack_step
        return max(float(np.abs(part).max()) for part in relative[:3]) if damping == 1.0 else 1.0

    def _smoothed(self, smoothing: float) -> tuple[FloatArray, FloatArray]:
        states = self.truth.problem.states
        return (
            (self.truth.rewards + smoothing / 2) / (1 + smoothing),
            (self.rows + smoothing / states) / (1 + smoothing),
        )

    def _blocks(self, weights: FloatArray) -> FloatArray:
        """ΦᵀWΦ for weights (..., n): (..., d, d), or its diagonal (..., d)."""
        d = self.features.shape[1]
        if self._products is None:
            flat = weights.reshape(-1, weights.shape[-1])
            blocks = np.stack([(self.features.T * row) @ self.features for row in flat])
        else:
            blocks = weights.reshape(-1, weights.shape[-1]) @ self._products
        return blocks.reshape(*weights.shape[:-1], *((d,) if self.diagonal else (d, d)))

    def _inverse(self, blocks: FloatArray) -> FloatArray:
        if self.diagonal:
            return 1.0 / blocks
        # Scaling to a unit diagonal first keeps weights of very different size apart.
        scale = 1.0 / np.sqrt(np.einsum("...ii->...i", blocks))
        scaled = blocks * scale[..., :, None] * scale[..., None, :]
        scaled = scaled + 1e-14 * np.eye(scaled.shape[-1])
        inverse: FloatArray = np.linalg.inv(scaled) * scale[..., :, None] * scale[..., None, :]
        return inverse

    def _times(self, inverse: FloatArray, vectors: FloatArray) -> FloatArray:
        if self.diagonal:
            return inverse * vectors
        product: FloatArray = np.matmul(inverse, vectors[..., None])[..., 0]
        return product

    def _gradient(self, constraint: Constraint) -> Change:
        return constraint.theta_gradient @ self._inverse_triangle, constraint.mu_gradient @ self._inverse_triangle

    def _inward(self, change: Change) -> Change:
        return change[0] @ self._triangle.T, change[1] @ self._triangle.T

    def _outward(self, iterate: _Iterate) -> Change:
        return iterate.theta @ self._inverse_triangle.T, iterate.mu @ self._inverse_triangle.T


@dataclass(frozen=True, eq=False)
class _Task:
    weights: FloatArray
    gradients: list[Change]
    levels: FloatArray


@dataclass(eq=False)
class _Iterate:
    theta: FloatArray
    mu: FloatArray
    slack: FloatArray


def _inner(first: Change, second: Change) -> float:
    return float((first[0] * second[0]).sum() + (first[1] * second[1]).sum())
