"""Held-out residuals: what the other pairs say about a pair, and by how much chance can be wrong.

Let m_k be the mean, at the k-th sampled pair, of something in [0, 1]: the reward, or the indicator of a next state.
If m = Φθ for some θ, then the mean of pair k follows from those of the others. With n_k samples of pair k, G = Σ n_k
φ_kφ_kᵀ and leverages h_k = n_k φ_kᵀG⁻¹φ_k < 1, its least-squares prediction from the *other* pairs misses by

    e_k = m̂_k - φ_kᵀθ̂₍₋ₖ₎ = Σ_j c_j m̂_j,    c_j = (1{j=k} - n_j φ_kᵀG⁻¹φ_j)/(1 - h_k),    Σ_j c_j φ_j = 0 .

The *held-out residual* e_k is a weighted sum of independent samples with weights c_j/n_j that do not depend on the
outcomes. It has mean zero in every linear model, and Σ_j c_j²/n_j = 1/(n_k(1-h_k)) =: v. Let B = max_j |c_j|/n_j,
V̂ = Σ_j c_j² s_j²/n_j with the sample variances s_j², and a = max_j n_j/(n_j-1). Whatever the model, |e_k - E e_k| is at
most

* √(vL/2) except with probability 2e⁻ᴸ (Hoeffding);
* √(2LV) + BL/3 except with probability 2e⁻ᴸ (Bernstein), where √V ≤ √(V̂ + aB²L/2) + B√(aL/2) except with probability
  e⁻ᴸ: Z = V̂/B² is a sum over pairs of (weights ≤ 1) · n_j s_j², so that one sample changes it by at most 1 and the
  squared changes sum to at most aZ (Maurer and Pontil 2009, proof of Theorem 10, applied pair by pair), which gives
  P(EZ - Z > t) ≤ exp(-t²/(2a EZ)).

The smaller of the two radii fails with probability at most 5e⁻ᴸ. For all next states together, e_k is a vector whose
L1 norm around its mean is at most (√S + √(2L))√v except with probability e⁻ᴸ (its expectation by Jensen and
Cauchy-Schwarz, the deviation by McDiarmid: one sample moves it by at most 2|c_j|/n_j).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally

_BLOCK = 256  # residuals worked out in one go
_DETERMINED = 1e-8  # 1 - leverage from which on other pairs say something about a pair


@dataclass(frozen=True, eq=False)
class Residuals:
    """Some held-out residuals of a stage, all arrays (b,).

    Attributes
    ----------
    stage : int
    pairs, next_states : int array
        Next state -1: not about a single one.
    sizes, radii : array
        Absolute residuals and the bounds on their errors.
    shares : array
        What a unit of E e_k implies for ζ at least: 1/‖c‖₁, or half of it for a residual in L1 norm.
    covers : array
        What a unit of E e_k allows for ζ at most: 1 - h_k, or half of it; 0 if the residual covers only a part.
    """

    stage: int
    pairs: IntArray
    next_states: IntArray
    sizes: FloatArray
    radii: FloatArray
    shares: FloatArray
    covers: FloatArray


class HeldOut:
    """The contrasts that predict each pair of a stage from the others.

    Attributes
    ----------
    index : int array (K,)
        Positions in the tally of the pairs with two samples or more.
    tested : int array
        Positions in `index` of the pairs that the others determine.
    """

    def __init__(self, problem: Problem, tally: Tally, stage: int) -> None:
        self.tally, self.stage = tally, stage
        self.index = np.flatnonzero(tally.pulls[stage] >= 2)
        self.counts = tally.pulls[stage, self.index].astype(np.float64)
        scaled = (
            np.sqrt(self.counts)[:, None] * problem.features.reshape(-1, problem.dimension)[tally.pairs[self.index]]
        )
        lengths = np.sqrt((scaled**2).sum(axis=0))
        scaled /= np.where(lengths > 0, lengths, 1.0)
        left, singular, _ = np.linalg.svd(scaled, full_matrices=False)
        precision = max(scaled.shape) * np.finfo(np.float64).eps
        self.basis = left[:, singular > precision * singular.max(initial=0.0)]
        self.slack = 1.0 - (self.basis**2).sum(axis=1)  # 1 - h
        self.tested = np.flatnonzero(self.slack > _DETERMINED)

    def contrasts(self, rows: IntArray) -> FloatArray:
        """Coefficients c of the held-out residuals of some pairs, (b, K)."""
        projection = -self.basis[rows] @ self.basis.T
        projection[np.arange(len(rows)), rows] += 1.0
        roots = np.sqrt(self.counts)
        coefficients: FloatArray = projection * roots / (roots[rows] * self.slack[rows])[:, None]
        return coefficients

    def reward_residuals(self, confidence: float) -> list[Residuals]:
        """Return how far mean rewards are from their predictions."""
        sums = self.tally.reward_sums[self.stage, self.index]
        squares = self.tally.squared_rewards[self.stage, self.index]
        variances = np.clip(squares - sums**2 / self.counts, 0.0, None) / (self.counts - 1)
        residuals = []
        for rows in self._blocks():
            contrasts = self.contrasts(rows)
            sizes = np.abs(contrasts @ (sums / self.counts))
            radii = sampling_error(contrasts, self.counts, variances[:, None], confidence)[:, 0]
            whole = np.full(len(rows), -1)
            shares = 1.0 / np.abs(contrasts).sum(axis=1)
            residuals.append(Residuals(self.stage, self._pairs(rows), whole, sizes, radii, shares, self.slack[rows]))
        return residuals

    def next_state_residuals(self, confidence: float) -> list[Residuals]:
        """Return how far next-state distributions are from their predictions: state by state, and in L1 norm."""
        shares_of = self.tally.next_counts[self.stage, self.index] / self.counts[:, None]
        variances = shares_of * (1 - shares_of) * (self.counts / (self.counts - 1))[:, None]
        residuals = []
        for rows in self._blocks():
            contrasts, pairs, every = self.contrasts(rows), self._pairs(rows), np.arange(len(rows))
            sizes = np.abs(contrasts @ shares_of)
            radii = sampling_error(contrasts, self.counts, variances, confidence)
            shares = 1.0 / np.abs(contrasts).sum(axis=1)
            top = (sizes / radii).argmax(axis=1)
            one = Residuals(self.stage, pairs, top, sizes[every, top], radii[every, top], shares, np.zeros(len(rows)))
            spread = np.sqrt((contrasts**2 / self.counts).sum(axis=1))
            norm_radii = (np.sqrt(shares_of.shape[1]) + np.sqrt(2 * confidence)) * spread
            whole = np.full(len(rows), -1)
            norms = sizes.sum(axis=1)
            residuals += [one, Residuals(self.stage, pairs, whole, norms, norm_radii, shares / 2, self.slack[rows] / 2)]
        return residuals

    def _blocks(self) -> list[IntArray]:
        return [self.tested[begin : begin + _BLOCK] for begin in range(0, len(self.tested), _BLOCK)]

    def _pairs(self, rows: IntArray) -> IntArray:
        pairs: IntArray = self.tally.pairs[self.index[rows]]
        return pairs


def sampling_error(contrasts: FloatArray, counts: FloatArray, variances: FloatArray, confidence: float) -> FloatArray:
    """Bound |Σ_j c_j m̂_j - its mean| except with probability 5e⁻ᴸ each, for means of samples in [0, 1].

    Parameters
    ----------
    contrasts : array (b, K)
        The coefficients c.
    counts : array (K,)
        Samples per pair, at least 2.
    variances : array (K, F)
        Sample variances of F quantities.
    confidence : float
        L.

    Returns
    -------
    array (b, F)
    """
    weights = contrasts**2 / counts
    largest = (np.abs(contrasts) / counts).max(axis=1)[:, None]
    correction = (counts / (counts - 1)).max() * confidence / 2
    deviation = np.sqrt(weights @ variances + correction * largest**2) + largest * np.sqrt(correction)
    bernstein = np.sqrt(2 * confidence) * deviation + largest * confidence / 3
    hoeffding = np.sqrt(weights.sum(axis=1) * confidence / 2)[:, None]
    radii: FloatArray = np.minimum(bernstein, hoeffding)
    return radii
