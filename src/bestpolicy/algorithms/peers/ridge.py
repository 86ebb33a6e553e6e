"""Least squares at each step of an episode: coordinates in which norms are known, widths, radii.

Coordinates are those of `design.whitening`: no feature is longer than 1, and whatever is linear in the features with
values in [-b, b] has a parameter of norm at most √σ·b, σ ≤ 1.001·d. Nobody has to promise norms.

**Radius.** Let targets y_i = φ_iᵀw + η_i, the noise η_i of mean zero and in an interval of length R given the past,
φ_i known before it, ‖w‖ ≤ √σ·b. With G = I + Σφφᵀ and ŵ = G⁻¹Σφy, with probability at least 1 - δ, at all times and
for all φ,

    |φᵀ(ŵ - w)| ≤ ‖φ‖_{G⁻¹}·( (R/2)·√(2 log(1/δ) + log det G) + √σ·b ).

*Proof.* ŵ - w = G⁻¹(Σφη - w). Lemma S of `stopping.lemmas.deviations` with Γ = I and s = R/2 (Hoeffding's lemma),
scaled; ‖w‖_{G⁻¹} ≤ ‖w‖.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.algorithms.peers.budget import rounded_up
from bestpolicy.design import g_optimal_design, whiten
from bestpolicy.problem import Problem

_TOLERANCE = 1e-3  # of the design


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Features (n, d) of the allowed pairs, none longer than 1, and √σ."""

    features: FloatArray
    norm: float

    @classmethod
    def of(cls, problem: Problem) -> Coordinates:
        """Whiten the features of a problem."""
        given = problem.pair_features
        design = g_optimal_design(given, tolerance=_TOLERANCE)
        norm = rounded_up(sqrt(max(design.worst_leverage, problem.dimension)))
        return cls(whiten(given, design).features(given), norm)


@dataclass(frozen=True, eq=False)
class Fit:
    """The matrix G of one step, in coordinates of the pairs."""

    features: FloatArray
    gram: FloatArray

    @classmethod
    def of(cls, features: FloatArray, visits: FloatArray) -> Fit:
        """Return G = I + Σφφᵀ over visits (n,) of the pairs."""
        return cls(features, np.eye(features.shape[1]) + (features.T * visits) @ features)

    @cached_property
    def _factor(self) -> FloatArray:
        return np.linalg.cholesky(self.gram).astype(np.float64, copy=False)

    @property
    def log_det(self) -> float:
        """log det G."""
        return 2 * float(np.log(np.diag(self._factor)).sum())

    @cached_property
    def widths(self) -> FloatArray:
        """‖φ‖_{G⁻¹} of all pairs, (n,)."""
        return self.widths_of(self.features)

    def widths_of(self, vectors: FloatArray) -> FloatArray:
        """‖v‖_{G⁻¹} of vectors (…, d)."""
        flat = vectors.reshape(-1, vectors.shape[-1])
        found: FloatArray = np.sqrt((np.linalg.solve(self._factor, flat.T) ** 2).sum(axis=0))
        return found.reshape(vectors.shape[:-1])

    def predict(self, sums: FloatArray) -> FloatArray:
        """φᵀŵ at all pairs, (n,) or (n, k), for sums (n,) or (n, k) of the targets at each pair."""
        means: FloatArray = self.features @ np.linalg.solve(self.gram, self.features.T @ sums)
        return means

    def radius(self, interval: float, delta: float, norm: float) -> float:
        """Right side of the statement above, without ‖φ‖."""
        return interval / 2 * sqrt(2 * log(1 / delta) + self.log_det) + norm


__all__ = ["Coordinates", "Fit"]
