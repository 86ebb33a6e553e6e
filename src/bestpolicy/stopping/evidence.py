"""Weighted samples, and the unregularised least-squares model that follows from them.

Sample i of pair k counts with weight 1/u_i, where u_i > 0 was fixed before the sample was drawn (typically a
guess of the variance at k; 1 by default). Re-weighting in hindsight would void every confidence statement, so
the weighted sums are taken at the moment a batch comes in and never redone. With b_i = φ_i/u_i,

    G = Σ φ_i φ_iᵀ/u_i,    θ̂ = G⁻¹ Σ b_i r_i,    μ̂(s) = G⁻¹ Σ_{s'_i = s} b_i,

so rows of P̂ = Φμ̂ᵀ sum to 1 exactly (the all-ones function is linear in the features), and for every fixed V
the error θ̂ - θ + γ(μ̂ - μ)ᵀV equals G⁻¹ Σ b_i η_i(V), η_i(V) = r_i + γV(s'_i) - E[·]: pure noise, no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally

_WORST_CONDITION = 1e10  # beyond it a solve has too few correct digits for a certificate


@dataclass(frozen=True, eq=False)
class Evidence:
    """All samples so far, plain and weighted; evidence adds up batch by batch.

    Attributes
    ----------
    tally : Tally
        The samples without weights, over all K pairs that may ever be sampled.
    inverse_weights, inverse_squares : arrays (stages, K)
        Σ 1/u and Σ 1/u² over the samples of a pair.
    rewards : array (stages, K)
        Σ r/u.
    following : array (stages, K, S)
        Σ 1/u over the samples that led to each state.
    """

    tally: Tally
    inverse_weights: FloatArray
    inverse_squares: FloatArray
    rewards: FloatArray
    following: FloatArray

    @classmethod
    def empty(cls, problem: Problem, pairs: IntArray) -> Evidence:
        """Return no samples of the pairs that may be sampled."""
        tally = Tally.empty(problem, pairs)
        zeros = np.zeros(tally.pulls.shape)
        return cls(tally, zeros, zeros, zeros, np.zeros(tally.next_counts.shape))

    def add(self, batch: Tally, weights: FloatArray | None = None) -> Evidence:
        """Return the evidence with a batch added.

        Parameters
        ----------
        batch : Tally
            Samples of some of the pairs.
        weights : array (stages, K), optional
            u of this batch's samples, by the pairs of the evidence; fixed before the batch was drawn. 1 if not given.
        """
        own = batch.at(self.tally.pairs)
        if own.samples != batch.samples:
            raise InvalidInput("the batch has samples of a pair that was not to be sampled.")
        inverse = np.ones(own.pulls.shape) if weights is None else 1.0 / weights
        return Evidence(
            self.tally + own,
            self.inverse_weights + own.pulls * inverse,
            self.inverse_squares + own.pulls * inverse**2,
            self.rewards + own.reward_sums * inverse,
            self.following + own.next_counts * inverse[:, :, None],
        )


@dataclass(frozen=True, eq=False)
class Model:
    """The least-squares model in the coordinates of ``problem.features``.

    Attributes
    ----------
    gram, gram_inverse : arrays (stages, d, d)
        G and its inverse.
    theta : array (stages, d)
    mu : array (stages, S, d)
    sampled : array (K, d)
        Features of the pairs of the evidence.
    """

    gram: FloatArray
    gram_inverse: FloatArray
    theta: FloatArray
    mu: FloatArray
    sampled: FloatArray


def fit(problem: Problem, evidence: Evidence) -> Model | None:
    """Return the unregularised least-squares model; None where the samples do not yet determine it."""
    sampled = problem.features.reshape(-1, problem.dimension)[evidence.tally.pairs]
    gram = second_moments(sampled, evidence.inverse_weights)
    eigenvalues = np.linalg.eigvalsh(gram)
    if not (eigenvalues[:, 0] * _WORST_CONDITION > eigenvalues[:, -1]).all():
        return None
    targets = sampled.T @ np.concatenate([evidence.rewards[:, :, None], evidence.following], axis=2)
    solution = np.linalg.solve(gram, targets)
    return Model(
        gram=gram,
        gram_inverse=np.linalg.inv(gram).astype(np.float64),
        theta=np.ascontiguousarray(solution[:, :, 0]),
        mu=np.ascontiguousarray(solution[:, :, 1:].swapaxes(1, 2)),
        sampled=sampled,
    )


def second_moments(sampled: FloatArray, weights: FloatArray) -> FloatArray:
    """Σ_k weight_k φ_k φ_kᵀ per stage, (stages, d, d), from features (K, d) and weights (stages, K)."""
    return (weights[:, None, :] * sampled.T) @ sampled
