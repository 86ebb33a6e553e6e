"""The unregularised least-squares model of a certificate, and how it answers to an error vector.

    G = Σφφᵀ/u,   θ̂ = G⁻¹Σφr/u,   μ̂(s) = G⁻¹Σ_{s'=s}φ/u,   x = θ̂ - θ + γ(μ̂-μ)ᵀV  for a fixed function V.

For a policy π, discounted: J = (I - γμ̂ᵀΦ_π)⁻¹, ξ̂ = Jθ̂, Q̂ = Φξ̂; with the reward parameter θ̂ - x instead of θ̂ all values
move by φᵀJx. Episodic, with K_h = μ̂_hᵀΦ_{π,h+1}: ξ̂_h = θ̂_h + K_hξ̂_{h+1}, moved by Σ_{j≥h} K_h⋯K_{j-1}x_j. If |vᵀx| ≤
√(vᵀMv) for all v, then values of φ at stage h move by at most √(φᵀM̃_hφ), M̃ = JMJᵀ, or M̃_h = M_h + K_hM̃_{h+1}K_hᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.reading import Floats, Ints, Rejected

_WORST_CONDITION = 1e11


@dataclass(frozen=True, eq=False)
class Regression:
    """θ̂ (stages, d), μ̂ (stages, S, d), G⁻¹ (stages, d, d), and Σφφᵀ/u² (stages, d, d) of given samples."""

    case: Case
    samples: Samples
    features: Floats
    rows: Floats
    inverse: Floats
    theta: Floats
    mu: Floats

    @classmethod
    def fit(cls, case: Case, samples: Samples, features: Floats) -> Regression:
        """Estimate the model in the coordinates of the features (S, A, d)."""
        rows = features.reshape(-1, features.shape[2])[samples.pairs]
        inverses, thetas, mus = [], [], []
        for stage in range(case.stages):
            gram = (rows.T * samples.weights[stage]) @ rows
            eigenvalues = np.linalg.eigvalsh(gram)
            if not eigenvalues[0] * _WORST_CONDITION > eigenvalues[-1]:
                raise Rejected("the samples do not determine a model: their features do not span all directions")
            inverses.append(np.linalg.inv(gram))
            thetas.append(np.linalg.solve(gram, rows.T @ samples.weighted_rewards[stage]))
            mus.append(np.linalg.solve(gram, rows.T @ samples.weighted_counts[stage]).T)
        return cls(case, samples, features, rows, np.array(inverses), np.array(thetas), np.array(mus))

    def moments(self, weights: Floats) -> Floats:
        """Σ_k weight_k φ_kφ_kᵀ per stage, (stages, d, d)."""
        return np.array([(self.rows.T * row) @ self.rows for row in weights])

    def sample_deviations(self, following: Floats) -> Floats:
        """Sample standard deviation of R + γV(S'), (stages, K), for V (stages, S) at the next state."""
        samples, gamma = self.samples, self.case.gamma
        counts, pulls = samples.counts.astype(np.float64), np.maximum(samples.pulls, 1).astype(np.float64)
        means = np.einsum("hks,hs->hk", counts, following) / pulls
        centred = gamma * (following[:, None, :] - means[:, :, None])  # a common level would cost digits
        total = samples.rewards.sum(axis=2) + (counts * centred).sum(axis=2)
        squares = samples.squares + 2 * (samples.rewards * centred).sum(axis=2) + (counts * centred**2).sum(axis=2)
        deviations: Floats = np.sqrt(np.maximum(squares - total**2 / pulls, 0.0) / np.maximum(pulls - 1, 1))
        return deviations


@dataclass(frozen=True, eq=False)
class Response:
    """Values of a policy in an estimated model and how they move.

    Attributes
    ----------
    played : array (stages, S, d)
        φ(s, π(s)).
    values, q_values : arrays (stages, S) and (stages, S, A)
    """

    case: Case
    played: Floats
    values: Floats
    q_values: Floats
    links: Floats  # J (1, d, d), or K_h (H, d, d)

    @classmethod
    def of(cls, model: Regression, policy: Ints) -> Response:
        """Evaluate a policy (stages, S)."""
        case, theta, mu = model.case, model.theta, model.mu
        played = model.features[np.arange(len(model.features)), policy]
        if case.horizon is None:
            system = np.eye(theta.shape[1]) - case.gamma * (mu[0].T @ played[0])
            if not np.linalg.cond(system) < _WORST_CONDITION:
                raise Rejected("the values of the policy in the estimated model are not determined")
            links, parameters = np.linalg.inv(system)[None], np.linalg.solve(system, theta[0])[None]
        else:
            links, parameters = np.zeros((case.stages, *model.inverse.shape[1:])), theta.copy()
            for stage in reversed(range(case.stages - 1)):
                links[stage] = mu[stage].T @ played[stage + 1]
                parameters[stage] += links[stage] @ parameters[stage + 1]
        values = np.einsum("hsd,hd->hs", played, parameters)
        q_values = np.stack([model.features @ row for row in parameters])
        return cls(case, played, values, q_values, links)

    def pulled_back(self, matrices: Floats) -> Floats:
        """M̃ of each M, (m, stages, d, d)."""
        if self.case.horizon is None:
            moved: Floats = self.links @ matrices @ self.links.swapaxes(1, 2)
            return moved
        result = matrices.copy()
        for stage in reversed(range(self.case.stages - 1)):
            result[:, stage] += self.links[stage] @ result[:, stage + 1] @ self.links[stage].T
        return result
