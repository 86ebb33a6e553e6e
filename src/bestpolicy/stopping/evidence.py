"""Weighted samples, and the unregularised least-squares model that follows from them.

Sample i of pair k counts with weight 1/u_i, where u_i > 0 was fixed before the sample was drawn (typically a
guess of the variance at k; 1 by default). Re-weighting in hindsight would void every confidence statement, so
the weighted sums are taken at the moment a batch comes in and never redone. With b_i = φ_i/u_i,

    G = Σ φ_i φ_iᵀ/u_i,    θ̂ = G⁻¹ Σ b_i r_i,    μ̂(s) = G⁻¹ Σ_{s'_i = s} b_i,

so rows of P̂ = Φμ̂ᵀ sum to 1 exactly (the all-ones function is linear in the features), and for every fixed V
the error θ̂ - θ + γ(μ̂ - μ)ᵀV equals G⁻¹ Σ b_i η_i(V), η_i(V) = r_i + γV(s'_i) - E[·]: pure noise, no bias. That is
so in exact arithmetic; what solving leaves over is measured here and paid for by the rules (`rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally

_WORST_CONDITION = 1e10  # beyond it a solve has too few correct digits for a certificate
_LARGEST_DEFECT = 0.25  # of an inverse, relative


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
    batches : int
        How many batches were added up.
    """

    tally: Tally
    inverse_weights: FloatArray
    inverse_squares: FloatArray
    rewards: FloatArray
    following: FloatArray | IntArray
    batches: int = 0

    @cached_property
    def unweighted(self) -> bool:
        """Whether all weights were 1: then sums of weights are whole numbers, and exact."""
        return np.array_equal(self.inverse_weights, self.tally.pulls)

    @classmethod
    def empty(cls, problem: Problem, pairs: IntArray) -> Evidence:
        """Return no samples of the pairs that may be sampled."""
        tally = Tally.empty(problem, pairs)
        zeros = np.zeros(tally.pulls.shape)
        return cls(tally, zeros, zeros, zeros, np.zeros(tally.next_counts.shape))

    @classmethod
    def of(cls, tally: Tally) -> Evidence:
        """Return the samples of a tally, all with weight 1."""
        pulls = tally.pulls.astype(np.float64)
        return cls(tally, pulls, pulls, tally.reward_sums, tally.next_counts, 1)

    def add(self, batch: Tally, weights: FloatArray | None = None) -> Evidence:
        """Return the evidence with a batch added.

        Parameters
        ----------
        batch : Tally
            Samples of some of the pairs.
        weights : array (stages, K), optional
            u of this batch's samples, by the pairs of the evidence; fixed before the batch was drawn. 1 if not given.
        """
        placed = batch.at(self.tally.pairs)
        if placed.samples != batch.samples:
            raise InvalidInput("the batch has samples of a pair that was not to be sampled.")
        inverse = np.ones(placed.pulls.shape) if weights is None else 1.0 / weights
        return Evidence(
            self.tally + placed,
            self.inverse_weights + placed.pulls * inverse,
            self.inverse_squares + placed.pulls * inverse**2,
            self.rewards + placed.reward_sums * inverse,
            self._followed(placed, inverse),
            self.batches + 1,
        )

    def _followed(self, batch: Tally, inverse: FloatArray) -> FloatArray:
        """Σ 1/u with those of a batch."""
        if 4 * len(batch.cells) > self.following.size:
            return self.following + batch.next_counts * inverse[:, :, None]
        following = self.following.astype(np.float64)  # a copy: only what occurred is added
        row = batch.cells // batch.shape[2]
        following.reshape(-1)[batch.cells] += batch.counts * inverse.reshape(-1)[row]
        return following


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
    smallest : array (stages,)
        A lower bound on the eigenvalues of G.
    defect : float
        δ/(1-δ) with δ ≥ ‖I - G⁻¹G‖ at all stages, for the inverse that was computed.
    transition_sizes : array (stages,)
        ‖Σ_s|μ̂(s)|‖.
    reward_residuals, transition_residuals : arrays (stages,)
        Bounds on ‖Gθ̂ - Σ b r‖, and on the norm of Σ_s |Gμ̂(s) - Σ_{s'=s} b|.
    """

    gram: FloatArray
    gram_inverse: FloatArray
    theta: FloatArray
    mu: FloatArray
    sampled: FloatArray
    smallest: FloatArray
    defect: float
    transition_sizes: FloatArray
    reward_residuals: FloatArray
    transition_residuals: FloatArray


def fit(problem: Problem, evidence: Evidence) -> Model | None:
    """Return the unregularised least-squares model; None where the samples do not yet determine it.

    Several tests look at the same evidence in the same coordinates: the last model is kept with it.
    """
    kept: tuple[Problem, Model | None] | None = evidence.__dict__.get("_model")
    if kept is None or kept[0] is not problem:
        kept = evidence.__dict__["_model"] = problem, _fitted(problem, evidence)
    return kept[1]


def _fitted(problem: Problem, evidence: Evidence) -> Model | None:
    sampled = problem.features.reshape(-1, problem.dimension)[evidence.tally.pairs]
    gram = second_moments(sampled, evidence.inverse_weights)
    eigenvalues = np.linalg.eigvalsh(gram)
    if not (eigenvalues[:, 0] * _WORST_CONDITION > eigenvalues[:, -1]).all():
        return None
    targets = sampled.T @ np.concatenate([evidence.rewards[:, :, None], evidence.following], axis=2)
    solution = np.linalg.solve(gram, targets)
    inverse = np.linalg.inv(gram).astype(np.float64)
    theta, mu = solution[:, :, 0], solution[:, :, 1:]
    # G and the targets are sums of K products, each residual one of d more; ΣW‖φ‖² = tr G bounds their sizes.
    unit, traces = (len(sampled) + problem.dimension + 6) * EPS, np.trace(gram, axis1=1, axis2=2)
    smallest = eigenvalues[:, 0] - 2 * unit * traces
    norms = np.linalg.norm(inverse, axis=(1, 2))
    left = np.eye(problem.dimension) - inverse @ gram
    defect = float((np.linalg.norm(left, axis=(1, 2)) + unit * norms * traces).max())
    if not (defect < _LARGEST_DEFECT and (smallest > 0).all()):
        return None
    rest = np.abs(gram @ solution - targets)
    sizes = np.linalg.norm(np.abs(mu).sum(axis=2), axis=1)
    largest = np.sqrt((sampled**2).sum(axis=1).max()) * evidence.inverse_weights.sum(axis=1)
    return Model(
        gram=gram,
        gram_inverse=inverse,
        theta=np.ascontiguousarray(theta),
        mu=np.ascontiguousarray(mu.swapaxes(1, 2)),
        sampled=sampled,
        smallest=smallest,
        defect=defect / (1 - defect),
        transition_sizes=sizes,
        reward_residuals=np.linalg.norm(rest[:, :, 0], axis=1)
        + unit * (traces * np.linalg.norm(theta, axis=1) + largest),
        transition_residuals=np.linalg.norm(rest[:, :, 1:].sum(axis=2), axis=1) + unit * (traces * sizes + largest),
    )


def second_moments(sampled: FloatArray, weights: FloatArray) -> FloatArray:
    """Σ_k weight_k φ_k φ_kᵀ per stage, (stages, d, d), from features (K, d) and weights (stages, K)."""
    return (weights[:, None, :] * sampled.T) @ sampled


def dominating_moments(sampled: FloatArray, weights: FloatArray) -> FloatArray:
    """A matrix per stage, (stages, d, d), that no rounding has made smaller than Σ_k weight_k φ_k φ_kᵀ."""
    moments = second_moments(sampled, weights)
    room = (len(sampled) + 6) * EPS * np.trace(moments, axis1=1, axis2=2)
    safe: FloatArray = moments + room[:, None, None] * np.eye(sampled.shape[1])
    return safe
