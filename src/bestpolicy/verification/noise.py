"""Where the error vector of a least-squares model must lie: Lemmas S, B and V.

b_i ∈ R^D known before sample i, noise η_i, S = Σb_iη_i, Γ > 0 fixed before the samples, D = d × stages.

- **S**: η_i sub-Gaussian with s_i, Σ̄ ≥ Σs_i²b_ib_iᵀ. With probability at least 1-δ, always
  ‖S‖²_{(Γ+Σ̄)⁻¹} ≤ 2 log(1/δ) + log det(I + Γ⁻¹Σ̄).
- **B**: |η_i| ≤ Λ, Σ̄ ≥ ΣVar(η_i)b_ib_iᵀ, β = sup ‖b‖ in Γ⁻¹, R = √(2 log(2/δ) + capacity) + √(2D), g(a) =
  2(eᵃ-1-a)/a². With probability at least 1-δ, whenever log det(I + Γ⁻¹Σ̄) ≤ capacity,
  ‖S‖²_{(Γ+Σ̄)⁻¹} ≤ g(RΛβ)(2 log(2/δ) + log det(I + Γ⁻¹Σ̄)).
- **V**: n samples in an interval of length Λ with variance v and sample variance V̂. With probability at least 1-e⁻ˡ,
  at all n ≥ n_0 together √v ≤ b + √(V̂ + b²), b = (Λ/2)√(l/m), m = ⌊n_0/2⌋. n_0 runs over 2, 3, 4, … (ratio 5/4), the
  i-th with l = log(K i(i+1)/δ), for each of K pairs.

Room is left for rounding (`rounding`): eigenvalues and norms with Γ⁻¹ are off by 8dε·cond(Γ); if the G⁻¹ in use has
relative error δ, widths in H = Γ_i + Σ̄ have √cond(H)·δ; and the product that makes M, and those with it, are off by
(6d+10)ε‖G⁻¹‖²‖H‖.

S and B are used for Γ, 4Γ, 16Γ, … with shares q_i of δ, Σq_i ≤ 1. Then |vᵀG⁻¹S| ≤ √(vᵀMv) for all v, M = radius² ·
G⁻¹(Γ_i + Σ̄)G⁻¹, for each scale i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.rounding import EPS

KEPT = 8  # scales of smallest volume; the others do not matter
_FUNCTIONS = 4096  # relative error, in ε, of logarithms, of g, and of sums of weights


@dataclass(frozen=True, eq=False)
class Prior:
    """Γ of the first scale (stages, d, d), the capacity of Lemma B, sup ‖b‖ in Γ⁻¹ per stage, and the shares q."""

    base: Floats
    capacity: float
    largest: Floats
    shares: Floats

    @classmethod
    def read(cls, node: Node, stages: int, rows: Floats) -> Prior:
        """Read a prior; the norms are measured on the features (K, d) of all pairs that might be sampled, u ≥ 1."""
        node.only("base", "capacity", "shares")
        dimension = rows.shape[1]
        base = node.array("base", "f", (stages, dimension, dimension))
        shares = node.array("shares", "f", (None,))
        if not 1 <= len(shares) <= 64 or (shares <= 0).any() or shares.sum() > 1 + 1e-12:
            raise Rejected("the shares of the scales are not positive with sum at most 1")
        symmetric = np.abs(base - base.swapaxes(1, 2)).max() <= 1e-9 * np.abs(base).max()
        if not symmetric or not (np.linalg.eigvalsh(base)[:, 0] > 0).all():
            raise Rejected("the prior is not positive definite")
        base = (base + base.swapaxes(1, 2)) / 2
        norms = np.einsum("kd,hdk->hk", rows, np.linalg.solve(base, np.broadcast_to(rows.T, (stages, *rows.T.shape))))
        return cls(base, node.number("capacity", 0, 1e9), np.sqrt(norms.max(axis=1)), shares)

    def stage(self, index: int) -> Prior:
        """Return the prior of one stage alone."""
        one = slice(index, index + 1)
        return Prior(self.base[one], self.capacity, self.largest[one], self.shares)

    @cached_property
    def condition(self) -> float:
        """cond(Γ), the worst of all stages, or more."""
        values = np.linalg.eigvalsh(self.base)
        least = values[:, 0] - 8 * values.shape[1] * EPS * values[:, -1]
        if not (least > 0).all():
            raise Rejected("the prior is too badly conditioned for double precision")
        return float((values[:, -1] / least).max())

    @property
    def accuracy(self) -> float:
        """Relative error of what is computed with Γ⁻¹."""
        return float(8 * self.base.shape[1] * EPS * self.condition)

    @property
    def factors(self) -> Floats:
        """1, 4, 16, …"""
        return np.power(4.0, np.arange(len(self.shares)))

    def eigenvalues(self, spread: Floats) -> Floats:
        """Eigenvalues of Γ⁻¹Σ̄ over all stages, (D,)."""
        found = [eigh(one, gamma, eigvals_only=True) for one, gamma in zip(spread, self.base, strict=True)]
        eigenvalues: Floats = np.maximum(np.concatenate(found), 0.0)
        raised: Floats = eigenvalues + self.accuracy * eigenvalues.max()
        return raised

    def sub_gaussian(
        self, inverse: Floats, defect: float, spread: Floats, delta: float, log_count: float = 0.0
    ) -> Floats:
        """M of Lemma S, (m, stages, d, d); `log_count` is the log of the number of noises that share δ."""
        eigenvalues = self.eigenvalues(spread)
        dets = np.log1p(eigenvalues[:, None] / self.factors).sum(axis=0)
        radii = 2 * log_count - 2 * np.log(self.shares * delta) + dets
        return self._matrices(inverse, defect, spread, eigenvalues, radii)

    def bernstein(self, inverse: Floats, defect: float, spread: Floats, ranges: Floats, delta: float) -> Floats:
        """M of Lemma B, (m, stages, d, d), for the scales within the capacity."""
        eigenvalues = self.eigenvalues(spread)
        dets = np.log1p(eigenvalues[:, None] / self.factors).sum(axis=0)
        logs = np.log(2 / (self.shares * delta))
        reach = np.sqrt(2 * logs + self.capacity) + np.sqrt(2 * len(eigenvalues))
        largest = float((ranges * self.largest).max()) * (1 + self.accuracy)
        inflation = bennett(reach * largest / np.sqrt(self.factors))
        radii = np.where(dets <= self.capacity, inflation * (2 * logs + dets), np.inf)
        return self._matrices(inverse, defect, spread, eigenvalues, radii)

    def _matrices(self, inverse: Floats, defect: float, spread: Floats, eigenvalues: Floats, radii: Floats) -> Floats:
        dimension = inverse.shape[1]
        volumes = len(eigenvalues) * np.log(radii) + np.log(self.factors + eigenvalues[:, None]).sum(axis=0)
        least = max(0.0, float(eigenvalues.min() - 2 * self.accuracy * eigenvalues.max()))
        norms, found = (inverse**2).sum(axis=(1, 2)), []
        for i in np.argsort(volumes)[:KEPT]:
            if np.isfinite(radii[i]):
                middle = self.factors[i] * self.base + spread
                condition = self.condition * (self.factors[i] + eigenvalues.max()) / (self.factors[i] + least)
                radius = radii[i] * (1 + np.sqrt(condition) * defect) ** 2 * (1 + (_FUNCTIONS + len(eigenvalues)) * EPS)
                room = (6 * dimension + 10) * EPS * norms * np.sqrt((middle**2).sum(axis=(1, 2)))
                found.append(radius * (inverse @ middle @ inverse + room[:, None, None] * np.eye(dimension)))
        return np.array(found).reshape(-1, *inverse.shape)


def bennett(a: Floats) -> Floats:
    """g(a) = 2(eᵃ-1-a)/a² for a ≥ 0; inf where it overflows."""
    large = np.clip(a, 0.01, 600.0)
    series = 1 + a / 3 + a**2 / 12 + a**3 / 60 + a**4 / 300  # the last coefficient, 1/360, is rounded up
    return np.where(a < 0.01, series, np.where(a <= 600, 2 * (np.expm1(large) - large) / large**2, np.inf))


def widths(matrices: Floats, vectors: Floats) -> Floats:
    """min over M (m, d, d) of √(vᵀMv) for vectors (n, d)."""
    squared = np.full(len(vectors), np.inf)
    for matrix in matrices:
        squared = np.minimum(squared, ((vectors @ matrix) * vectors).sum(axis=1))
    found: Floats = np.sqrt(np.maximum(squared, 0.0))
    return found


def variance_limits(deviations: Floats, pulls: Ints, ranges: Floats, delta: float) -> Floats:
    """Lemma V: bounds on variances, (stages, K), from bounds on sample standard deviations and ranges (stages,)."""
    sizes = [2]
    while sizes[-1] * 5 // 4 <= pulls.max():
        sizes.append(max(sizes[-1] + 1, sizes[-1] * 5 // 4))
    number = np.searchsorted(np.array(sizes), pulls, side="right")  # how many of the sizes are at most n
    size = np.array(sizes)[np.maximum(number - 1, 0)]
    logs = np.log(pulls.size * np.maximum(number, 1) * (number + 1.0) / delta)
    term = ranges[:, None] / 2 * np.sqrt(logs / (size // 2))
    always = np.broadcast_to(ranges[:, None] ** 2 / 4, pulls.shape)
    return np.where(number > 0, np.minimum(always, (term + np.sqrt(deviations**2 + term**2)) ** 2), always)
