"""Interim whitening and rounding (to be replaced)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bestpolicy.design.g_optimal import Design

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Whitening:
    """phi' = phi @ transform."""

    transform: Floats
    inverse: Floats

    def features(self, features: Floats) -> Floats:
        """Whiten features."""
        return features @ self.transform

    def parameters(self, parameters: Floats) -> Floats:
        """Whiten parameters."""
        return parameters @ self.inverse.T


def whiten(features: Floats, design: Design) -> Whitening:
    """Whiten."""
    x = features[design.indices]
    lam = (x.T * design.weights) @ x
    e, u = np.linalg.eigh(lam)
    s = np.sqrt(design.worst_leverage)
    return Whitening(u / np.sqrt(e) @ u.T / s, (u * np.sqrt(e)) @ u.T * s)


def leverages(features: Floats, matrix: Floats) -> Floats:
    """phi' M^-1 phi."""
    z = np.linalg.solve(np.linalg.cholesky(matrix), features.T)
    return np.einsum("dn,dn->n", z, z)


def rounded_counts(weights: Floats, total: int) -> NDArray[np.int64]:
    """Stride scheduling."""
    counts = np.ceil(np.maximum(weights * (total - len(weights)), 0)).astype(np.int64)
    while counts.sum() < total:
        counts[np.argmin(counts / weights)] += 1
    return counts


def rank_reduction(features: Floats) -> Floats:
    """Basis."""
    _, s, vt = np.linalg.svd(features, full_matrices=False)
    return vt[s > 1e-10 * s[0]].T
