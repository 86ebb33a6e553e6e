"""Transductive designs: which pairs to sample so that given linear functions are known well.

With pairs x_k ∈ R^d (already divided by the standard deviation of their noise) and directions c_j (already
divided by the accuracy that is wanted of c_jᵀθ), the design problem is

    minimise over the simplex   f(w) = max_j q_j(w),     q_j(w) = c_jᵀ Λ(w)⁻¹ c_j,     Λ(w) = Σ_k w_k x_k x_kᵀ.

The least-squares estimate from n samples has variance q_j/n in direction j, so f(w) is the number of samples per
unit of log-confidence. G-optimal design is the special case c = x. f is convex.

**Certificate.** h_j(w) = 1/q_j(w) is homogeneous of degree 1 and quasi-concave, hence concave, with the gradient
∂h_j/∂w_k = (x_kᵀΛ⁻¹c_j)²/q_j². By homogeneity its tangent has no constant term, so for every design w' and all shares λ

    1/f(w') ≤ Σ_j λ_j h_j(w') ≤ Σ_k w'_k Σ_j λ_j ∂h_j/∂w_k(w) ≤ max_k Σ_j λ_j (x_kᵀΛ(w)⁻¹c_j)²/q_j(w)²,

and no design can do better than the inverse of the right side, which is returned with the design.

**Method.** The maximum is replaced by a p-norm of the q_j, p = 1, 2, 4, …, and

    w_k ← w_k g_k^{1/(p+1)}, normalised,      g_k = Σ_j q_j^{p-1} (x_kᵀΛ⁻¹c_j)²,

never increases Σ_j q_j^p. *Proof.* By Gauss and Markov q_j(w') = min {Σ_k a_k²/w'_k : Σ_k a_k x_k = c_j}. The choice
a_jk = w_k x_kᵀΛ(w)⁻¹c_j is feasible, and optimal at w' = w. With v_jk = a_jk²/(w_k q_j), whose sum over k is 1,
Jensen's inequality gives q_j(w')^p ≤ q_j^p Σ_k v_jk (w_k/w'_k)^p; so Σ_j q_j(w')^p ≤ Σ_k (w_k/w'_k)^p w_k g_k, with
equality at w' = w. The right side is least on the simplex at w'_k ∝ w_k g_k^{1/(p+1)}. ∎ At a minimum g_k is
the same at all pairs with weight and not larger elsewhere, so λ_j ∝ q_j^{p+1} makes the certificate tight up to the
difference of norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, frozen
from bestpolicy.errors import InvalidInput

_POWERS = tuple(2.0**i for i in range(8))
_SWEEPS = 40  # for each power, at most
_TRACE = 1e-5  # share that every pair keeps, so that Λ stays invertible


@dataclass(frozen=True, eq=False)
class TransductiveDesign:
    """A design with a bound on how far from optimal it is.

    Attributes
    ----------
    weights : array (K,)
        Shares of the pairs; they sum to 1.
    value : float
        max_j c_jᵀΛ(w)⁻¹c_j.
    lower_bound : float
        No design has a smaller value.
    """

    weights: FloatArray
    value: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Relative distance from optimal: value/lower_bound - 1 at most."""
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else inf


def transductive_design(features: FloatArray, directions: FloatArray, *, tolerance: float = 0.05) -> TransductiveDesign:
    """Return a design that minimises the largest variance of the given directions.

    Parameters
    ----------
    features : array (K, d), or (stages, K, d)
        Pairs, divided by their noise's standard deviation; they must span R^d. Pairs of different stages have nothing
        in common: they are K·stages vectors with stages·d entries, but what is zero is neither kept nor multiplied.
    directions : array (J, d), or (J, stages·d)
        Linear functions, divided by the accuracy that is wanted.
    tolerance : float
        Stop once the design is within this relative distance of optimal. What was reached comes with the design.
    """
    blocks = features if features.ndim == 3 else features[None]
    if blocks.ndim != 3 or directions.ndim != 2 or blocks[:, 0].size != directions.shape[1] or not len(directions):
        raise InvalidInput(
            f"features (K, d) and directions (J, d) must agree in d. Got {features.shape} and {directions.shape}."
        )
    features = blocks
    weights = _kept_invertible(np.ones(features[:, :, 0].size))
    variances, slopes = _slopes(features, directions, weights)
    best, value, bound = weights, inf, inf
    for power in _POWERS:
        boost = 1.0
        for _ in range(_SWEEPS):
            if variances.max() < value:
                best, value = weights, float(variances.max())
            shares = variances / variances.max()
            tilted = shares ** (power + 1)
            bound = min(bound, float((slopes @ (tilted / variances**2)).max() / tilted.sum()))
            if value * bound <= 1 + tolerance:
                return TransductiveDesign(frozen(best), value, 1 / bound)
            gains = slopes @ shares ** (power - 1)
            gains /= gains.max()
            # Longer steps than the proof grants are taken as long as they help, and else taken back.
            for step in (boost, 1.0):
                moved = _kept_invertible(weights * gains ** (step / (power + 1)))
                there = _slopes(features, directions, moved)
                if step == 1.0 or ((there[0] / variances.max()) ** power).sum() <= (shares**power).sum():
                    break
            boost = 1.0 if step < boost else min(1.5 * boost, power + 1)
            settled = np.abs(there[0] / variances - 1).max() < tolerance / 1000
            weights, (variances, slopes) = moved, there
            if settled:
                break
    return TransductiveDesign(frozen(best), value, 1 / bound)


def _slopes(features: FloatArray, directions: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variances q_j of all directions, (J,), and (x_kᵀΛ⁻¹c_j)², (stages·K, J), from features (stages, K, d)."""
    stages, pairs, dimension = features.shape
    columns = np.ascontiguousarray(directions.reshape(-1, stages, dimension).transpose(1, 2, 0))  # (stages, d, J)
    information = (features.swapaxes(1, 2) * weights.reshape(stages, 1, pairs)) @ features
    pulled = np.linalg.inv(information) @ columns
    variances: FloatArray = (pulled * columns).sum(axis=(0, 1))
    slopes = (features @ pulled).reshape(stages * pairs, -1)
    return variances, np.square(slopes, out=slopes)


def _kept_invertible(weights: FloatArray) -> FloatArray:
    """Normalise, with a trace of every pair: Λ stays invertible where the directions leave a subspace alone."""
    kept: FloatArray = (1 - _TRACE) * weights / weights.sum() + _TRACE / len(weights)
    return kept
