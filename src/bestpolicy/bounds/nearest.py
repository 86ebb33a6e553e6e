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

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.bounds.divergence import reward_divergence, transition_divergence
from bestpolicy.bounds.tables import Truth

Change = tuple[FloatArray, FloatArray]
"""(dθ, dμ) of shapes (stages, d) and (stages, S, d)."""

_DENSE_LIMIT = 3e7  # entries of the table of φφᵀ
_ACCURACY = 2e-4  # relative accuracy of the value
_SCREEN_SMOOTHING = 1e-2


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
        # Coordinates in which the features are orthonormal; columns that do not mix are only scaled.
        lengths = np.sqrt((features**2).sum(axis=0))
        self._triangle: FloatArray = np.diag(lengths) if self.diagonal else _triangle(features)
        self._inverse_triangle: FloatArray = np.linalg.inv(self._triangle).astype(np.float64)
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
        return reward_divergence(truth.rewards, change[0] @ truth.features.T) + transition_divergence(truth.rows, moved)

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
        task = self._task(weights, constraints)
        if expected > 0:
            # Near M the problem is almost quadratic, and a few Newton steps without any path will do.
            smoothing = 0.5 * _ACCURACY * expected
            iterate = self._initial(task, start, smoothing)
            if self._settle(iterate, task, smoothing, 6):
                return self._plausible(self._outward(iterate))
        smoothing = self._cold_smoothing if start is None else min(self._cold_smoothing, 1e-3)
        iterate = self._initial(task, start, smoothing)
        for _ in range(16):
            if self._settle(iterate, task, smoothing, 25) is None:
                return None
            change = self._outward(iterate)
            value = float((weights * self.divergences(change)).sum())
            if smoothing <= _ACCURACY * value or smoothing < 1e-14:
                return self._plausible(change)
            smoothing = max(0.1 * smoothing, 0.5 * _ACCURACY * value)
        return self._plausible(self._outward(iterate))

    def _initial(self, task: _Task, start: Change | None, smoothing: float) -> _Iterate:
        """Start strictly inside: a mixture with the uniform model."""
        theta, mu = (smoothing / (1 + smoothing) * part for part in self._uniform)
        if start is not None:
            warm = self._inward(start)
            theta, mu = ((1 - smoothing) * old + smoothing * new for old, new in zip(warm, self._uniform, strict=True))
        if self.rewards_known:
            theta = np.zeros_like(theta)
        reached = task.inner(theta[..., None], mu[..., None])[:, 0]
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

    def spreads(self, weights: FloatArray, after: FloatArray, gradients: FloatArray) -> FloatArray:
        """Σ_h y_hᵀB_h y_h: how far a value with gradient y moves per unit of divergence, near M, (targets,).

        Moving it by z costs about z²/(2 Σ_h y_hᵀB_h y_h), with H the Fisher information of the rows, a little smoothed,

            B_h = H₀⁻¹ + Σ V²H⁻¹ - (Σ V H⁻¹)(Σ H⁻¹)⁻¹(Σ V H⁻¹)     (sums over next states, V is `after`).

        Parameters
        ----------
        weights : array (stages, n)
        after : array (stages, S)
            What a unit of probability of a next state is worth: γV, or V_{h+1}.
        gradients : array (targets, stages, d)
            y_h.
        """
        rewards, rows = self._smoothed(_SCREEN_SMOOTHING)
        inverse = self._inverse(self._blocks(weights[:, None, :] / rows))
        theta_inverse = self._inverse(self._blocks(weights / (rewards * (1 - rewards))))
        if self.rewards_known:
            theta_inverse = np.zeros_like(theta_inverse)
        total = inverse.sum(axis=1)
        once, twice = (np.einsum("hs,hs...->h...", factor, inverse) for factor in (after, after**2))
        y = gradients @ self._inverse_triangle
        spreads: FloatArray
        if self.diagonal:
            spreads = np.einsum("thi,hi->t", y**2, theta_inverse + twice - once**2 / total)
        else:
            gain = theta_inverse + twice - once @ np.linalg.solve(total, once)
            spreads = np.einsum("thi,thi->t", np.einsum("thi,hij->thj", y, gain), y)
        return spreads

    def _newton_step(self, iterate: _Iterate, task: _Task, smoothing: float) -> float:
        """Move the iterate by a damped Newton step; return the largest relative change it asked for."""
        truth, features, weights = self.truth, self.features, task.weights
        target_rewards, target_rows = self._smoothed(smoothing)
        rewards = truth.rewards + iterate.theta @ features.T
        rows = self.rows + iterate.mu @ features.T
        inside = self.rewards_known or (rewards.min() > 0 and rewards.max() < 1)
        if not (rows.min() > 0 and inside):
            return float("nan")
        pull = weights[:, None, :] * target_rows / rows
        if self.rewards_known:
            rewards = target_rewards  # whatever is inside: the rewards do not move
        up, down = weights * target_rewards / rewards, weights * (1 - target_rewards) / (1 - rewards)
        theta_inverse = self._inverse(self._blocks(up / rewards + down / (1 - rewards)))
        mu_inverse = self._inverse(self._blocks(pull / rows))
        if self.rewards_known:
            theta_inverse = np.zeros_like(theta_inverse)
        # Column 0 is the step without constraints, the others are the answers to their multipliers.
        theta_steps = self._times(theta_inverse, _beside((up - down) @ features, task.theta_gradients))
        mu_steps = self._times(mu_inverse, _beside(pull @ features, task.mu_gradients))
        total, drift = mu_inverse.sum(axis=1), mu_steps.sum(axis=1)
        drift[..., 0] += iterate.mu.sum(axis=1)  # what rounding has left of Σ dμ is taken out again
        balance = drift / total[..., None] if self.diagonal else np.linalg.solve(total, drift)
        mu_steps = mu_steps - self._times(mu_inverse, balance[:, None])
        products = task.inner(theta_steps, mu_steps)  # (constraints, 1 + constraints)
        # A single constraint is tight at the solution: no slack, no barrier.
        several = len(task.levels) > 1
        slack = iterate.slack if several else np.zeros(1)
        barrier = smoothing * float(weights.sum())
        system = products[:, 1:] + np.diag(slack**2 / barrier)
        # Constraints may say the same thing twice.
        system += 1e-13 * np.diag(system).max() * np.eye(len(system))
        if not np.diag(system).min() > 0:
            return float("nan")
        violation = task.inner(iterate.theta[..., None], iterate.mu[..., None])[:, 0] - slack - task.levels
        multipliers = np.linalg.solve(system, -violation + slack - products[:, 0])
        combination = np.append(1.0, multipliers)
        theta_step, mu_step = theta_steps @ combination, mu_steps @ combination
        slack_step = slack - slack**2 * multipliers / barrier
        if not all(np.isfinite(step).all() for step in (theta_step, mu_step, slack_step)):
            return float("nan")
        reward_move, row_move = theta_step @ features.T, mu_step @ features.T
        relative = [row_move / rows, reward_move / rewards, -reward_move / (1 - rewards)]
        if several:
            relative.append(slack_step / slack)
        towards_zero = max(float(-part.min()) for part in relative)
        damping = min(1.0, 0.9 / towards_zero) if towards_zero > 0 else 1.0
        iterate.theta = iterate.theta + damping * theta_step
        iterate.mu = iterate.mu + damping * mu_step
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

    def _times(self, inverse: FloatArray, columns: FloatArray) -> FloatArray:
        product: FloatArray = inverse[..., None] * columns if self.diagonal else inverse @ columns
        return product

    def _task(self, weights: FloatArray, constraints: list[Constraint]) -> _Task:
        return _Task(
            weights,
            np.stack([c.theta_gradient @ self._inverse_triangle for c in constraints], axis=-1),
            np.stack([c.mu_gradient @ self._inverse_triangle for c in constraints], axis=-1),
            np.array([c.level for c in constraints]),
        )

    def _inward(self, change: Change) -> Change:
        return change[0] @ self._triangle.T, change[1] @ self._triangle.T

    def _plausible(self, change: Change) -> Change | None:
        """Return the change if it leads to a model, up to rounding errors."""
        rows = self.truth.rows + self.truth.features @ change[1].transpose(0, 2, 1)
        return change if rows.min() > -1e-6 else None

    def _outward(self, iterate: _Iterate) -> Change:
        theta, mu = iterate.theta @ self._inverse_triangle.T, iterate.mu @ self._inverse_triangle.T
        # What rounding has left of Σ dμ is taken from the states that are likely anyway.
        shares = self.rows.mean(axis=2)[:, :, None]
        for _ in range(2):
            mu = mu - shares * mu.sum(axis=1, keepdims=True)
        return theta, mu


@dataclass(frozen=True, eq=False)
class _Task:
    """Weights and constraints in whitened coordinates, one constraint per column."""

    weights: FloatArray
    theta_gradients: FloatArray  # (stages, d, m)
    mu_gradients: FloatArray  # (stages, S, d, m)
    levels: FloatArray

    def inner(self, theta: FloatArray, mu: FloatArray) -> FloatArray:
        """⟨g_j, column k⟩ for columns (stages, d, k) and (stages, S, d, k), as (m, k)."""
        count = len(self.levels)
        product: FloatArray = self.theta_gradients.reshape(-1, count).T @ theta.reshape(-1, theta.shape[-1])
        return product + self.mu_gradients.reshape(-1, count).T @ mu.reshape(-1, mu.shape[-1])


@dataclass(eq=False)
class _Iterate:
    theta: FloatArray
    mu: FloatArray
    slack: FloatArray


def _beside(first: FloatArray, others: FloatArray) -> FloatArray:
    return np.concatenate([first[..., None], others], axis=-1)


def _triangle(features: FloatArray) -> FloatArray:
    factor: FloatArray = np.linalg.qr(features)[1].astype(np.float64)
    return factor
