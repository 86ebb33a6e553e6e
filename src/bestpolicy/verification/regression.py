"""The unregularised least-squares model of a certificate, and how it answers to an error vector.

    G = Σφφᵀ/u,   θ̂ = G⁻¹Σφr/u,   μ̂(s) = G⁻¹Σ_{s'=s}φ/u,   x = θ̂ - θ + γ(μ̂-μ)ᵀV  for a fixed function V.

For a policy π, discounted: J = (I - γμ̂ᵀΦ_π)⁻¹, ξ̂ = Jθ̂, Q̂ = Φξ̂; with the reward parameter θ̂ - x instead of θ̂ all values
move by φᵀJx. Episodic, with K_h = μ̂_hᵀΦ_{π,h+1}: ξ̂_h = θ̂_h + K_hξ̂_{h+1}, moved by Σ_{j≥h} K_h⋯K_{j-1}x_j. If |vᵀx| ≤
√(vᵀMv) for all v, then values of φ at stage h move by at most √(φᵀM̃_hφ), M̃ = JMJᵀ, or M̃_h = M_h + K_hM̃_{h+1}K_hᵀ.

J is large along the constant functions, which differences of features do not see. So in a discounted problem responses
Jᵀ(φ - φ') are computed one by one and measured in M: in M̃ their squares would drown in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.noise import widths
from bestpolicy.verification.reading import STAGE, Floats, Ints, Rejected
from bestpolicy.verification.rounding import EPS, MARGIN, WEIGHTED, least_squares, relative_error, reward_sum_errors

_WORST_CONDITION = 1e11


@dataclass(frozen=True, eq=False)
class Regression:
    """The model of given samples, with bounds on its errors.

    Attributes
    ----------
    features : array (S, A, d)
    longest : float
        max ‖φ‖.
    rows : array (K, d)
        Features of the pairs that might be sampled.
    inverse, theta, mu : arrays (stages, d, d), (stages, d) and (stages, S, d)
        G⁻¹, θ̂ and μ̂.
    defect : float
        Relative error of G⁻¹.
    sizes : array (stages,)
        ‖Σ_s|μ̂(s)|‖.
    reward_errors, row_errors : arrays (stages,)
        z_r and z_p.
    """

    case: Case
    samples: Samples
    features: Floats
    longest: float
    rows: Floats
    inverse: Floats
    theta: Floats
    mu: Floats
    defect: float
    sizes: Floats
    reward_errors: Floats
    row_errors: Floats

    @classmethod
    def fit(cls, case: Case, samples: Samples, coordinates: Coordinates) -> Regression:
        """Estimate the model."""
        features = coordinates.features
        rows, sums = features.reshape(-1, features.shape[2])[samples.pairs], reward_sum_errors(samples)
        states, _, dimension = features.shape
        case.budget.hold(case.stages * dimension * (3 * states + 4 * len(rows) + 4 * dimension), "its estimates")
        products = (len(rows) * (dimension + states) + states * dimension + 20 * dimension**2) * dimension
        case.budget.work(case.stages * (products + STAGE), "its estimates")
        solved = [
            least_squares(
                rows,
                samples.weights[stage],
                np.column_stack([samples.weighted_rewards[stage], samples.weighted_counts[stage]]),
                error=coordinates.error,
                ones=coordinates.ones,
                longest=coordinates.longest,
                sums=float(sums[stage]),
                a=WEIGHTED if samples.are_weighted else 0.0,
            )
            for stage in range(case.stages)
        ]
        inverse, theta, mu, defects, *errors = (np.array(column) for column in zip(*solved, strict=True))
        worst = float(defects.max())
        return cls(case, samples, features, coordinates.longest, rows, inverse, theta, mu, worst, *errors)

    @property
    def equation_errors(self) -> Floats:
        """z = z_r + z_p L of every stage."""
        return self.reward_errors + self.row_errors * self.case.limits

    def moments(self, weights: Floats) -> Floats:
        """Σ_k weight_k φ_kφ_kᵀ per stage or more, (stages, d, d)."""
        found = np.array([(self.rows.T * row) @ self.rows for row in weights])
        room = (len(self.rows) + 6) * EPS * np.trace(found, axis1=1, axis2=2)
        larger: Floats = found + room[:, None, None] * np.eye(self.rows.shape[1])
        return larger

    def sample_deviations(self, following: Floats) -> Floats:
        """Sample standard deviation of R + γV(S') or more, (stages, K), for V (stages, S) at the next state."""
        samples, gamma = self.samples, self.case.gamma
        counts, pulls = samples.counts.astype(np.float64), np.maximum(samples.pulls, 1).astype(np.float64)
        means = np.einsum("hks,hs->hk", counts, following) / pulls
        centred = gamma * (following[:, None, :] - means[:, :, None])  # a common level would cost digits
        total = samples.rewards.sum(axis=2) + (counts * centred).sum(axis=2)
        squares = samples.squares + 2 * (samples.rewards * centred).sum(axis=2) + (counts * centred**2).sum(axis=2)
        variances = np.maximum(squares - total**2 / pulls, 0.0) / np.maximum(pulls - 1, 1)
        length = 1 + gamma * np.ptp(following, axis=1)[:, None]
        added = np.where(samples.squares == samples.rewards.sum(axis=2), 0.0, pulls)
        room = 2 * EPS * (4 * (counts.shape[2] + 8) * length**2 + added)
        deviations: Floats = np.sqrt(variances + np.where(samples.pulls > 1, room, 0.0))
        return deviations


@dataclass(frozen=True, eq=False)
class Response:
    """Values of a policy in an estimated model and how they move.

    Attributes
    ----------
    played : array (stages, S, d)
        φ(s, π(s)).
    values, q_values : arrays (stages, S) and (stages, S, A)
    parameters : array (stages, d)
        ξ̂.
    links : array (stages, d, d)
        J, or K_h.
    r : float
        Relative error of responses.
    residuals : array (stages,)
        ‖ξ̂ - θ̂ - γμ̂ᵀV̂‖, at most.
    """

    model: Regression
    played: Floats
    values: Floats
    q_values: Floats
    parameters: Floats
    links: Floats
    r: float
    residuals: Floats

    @classmethod
    def of(cls, model: Regression, policy: Ints) -> Response:
        """Evaluate a policy (stages, S)."""
        case, theta, mu = model.case, model.theta, model.mu
        states, dimension = model.features.shape[0], model.features.shape[2]
        played = model.features[np.arange(states), policy]
        # K_h is a product of S terms; the largest entries of the played features bound its error.
        spread = case.following(np.linalg.norm(np.abs(played).max(axis=1), axis=1))
        inaccuracy = case.gamma * (states + 4) * EPS * float((model.sizes * spread).max())
        if case.horizon is None:
            system = np.eye(dimension) - case.gamma * (mu[0].T @ played[0])
            if not np.linalg.cond(system) < _WORST_CONDITION:
                raise Rejected("the values of the policy in the estimated model are not determined")
            links, parameters = np.linalg.inv(system)[None], np.linalg.solve(system, theta[0])[None]
            size = float(np.linalg.norm(links[0]))
            left = float(np.linalg.norm(np.eye(dimension) - system @ links[0]))
            left += ((2 * dimension + 6) * EPS * float(np.linalg.norm(system)) + inaccuracy) * size
        else:
            links, parameters = np.zeros((case.stages, dimension, dimension)), theta.copy()
            chain, total = np.zeros((dimension, dimension)), 0.0  # Σ over later stages of K⋯K(K⋯K)ᵀ
            for stage in reversed(range(case.stages)):
                if stage < case.stages - 1:
                    links[stage] = mu[stage].T @ played[stage + 1]
                    parameters[stage] += links[stage] @ parameters[stage + 1]
                chain = np.eye(dimension) + links[stage] @ chain @ links[stage].T
                total += float(np.trace(chain))
            left = inaccuracy * sqrt(total)
        values = np.einsum("hsd,hd->hs", played, parameters)
        q_values = np.stack([model.features @ row for row in parameters])
        ahead = case.following(values)
        rest = theta + case.gamma * np.einsum("hsd,hs->hd", mu, ahead) - parameters
        sizes = np.linalg.norm(theta, axis=1) + np.linalg.norm(parameters, axis=1)
        sizes = sizes + case.gamma * model.sizes * np.abs(ahead).max(axis=1)
        residuals = np.linalg.norm(rest, axis=1) + (states + 6) * EPS * sizes
        r = relative_error(left)
        if not r < 1:
            raise Rejected("the values of the policy cannot be computed in double precision")
        return cls(model, played, values, q_values, parameters, links, r, MARGIN * residuals)

    def moved(self, differences: Floats) -> Floats:
        """Differences of features (stages, …, d), or the responses to them where there is one stage."""
        return differences @ self.links[0] if self.model.case.horizon is None else differences

    def carried(self, matrices: Floats) -> Floats:
        """Matrices (m, stages, d, d) in which what `moved` returns is measured: M, or M̃ with room for its rounding."""
        case, dimension = self.model.case, self.links.shape[-1]
        if case.horizon is None:
            return matrices
        result = matrices.copy()
        for stage in reversed(range(case.stages - 1)):
            pulled = self.links[stage] @ result[:, stage + 1] @ self.links[stage].T
            # What rounding adds here is carried on like the matrix itself.
            room = (4 * dimension + 8) * EPS * float((self.links[stage] ** 2).sum())
            room = room * np.trace(result[:, stage + 1], axis1=1, axis2=2)
            result[:, stage] += pulled + room[:, None, None] * np.eye(dimension)
        traces = (4 * dimension + 8) * EPS * np.trace(result, axis1=2, axis2=3)
        larger: Floats = result + traces[:, :, None, None] * np.eye(dimension)
        return larger

    @cached_property
    def product_errors(self) -> Floats:
        """p of every stage: errors of φᵀξ̂."""
        dimension = self.parameters.shape[1]
        errors: Floats = np.linalg.norm(self.parameters, axis=1) * (MARGIN * (dimension + 4) * EPS * self.model.longest)
        return errors

    def rounding(self, directions: Floats) -> Floats:
        """How well differences of values along directions that `moved` returned, (stages, …, d), are known."""
        model, case = self.model, self.model.case
        local = model.equation_errors
        residuals = self.residuals + case.gamma * model.sizes * case.following(self.product_errors)
        sources = case.gamma * model.sizes * case.following(local) + residuals
        squares = self.carried(sources[None, :, None, None] ** 2 * np.eye(directions.shape[-1]))
        flat = directions.reshape(case.stages, -1, directions.shape[-1])
        spread = sqrt(case.stages) * (1 + self.r)
        found = np.empty(flat.shape[:2])
        for stage in range(case.stages):
            along = spread * widths(squares[:, stage], flat[stage])
            found[stage] = 2 * (local[stage] + self.product_errors[stage]) + along
        return found.reshape(directions.shape[:-1])

    @property
    def equation_rounding(self) -> Floats:
        """How well Q̂ solves its equation, apart from noise, (stages,)."""
        found: Floats = self.model.equation_errors + 2 * self.product_errors + self.model.longest * self.residuals
        return found
