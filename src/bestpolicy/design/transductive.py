"""Transductive designs: which pairs to sample so that given linear functions are known well.

With pairs x_k ∈ R^d (already divided by the standard deviation of their noise) and directions c_j (already
divided by the accuracy that is wanted of c_jᵀθ), the design problem is

    minimise over the simplex   f(w) = max_j c_jᵀ Λ(w)⁻¹ c_j,        Λ(w) = Σ_k w_k x_k x_kᵀ.

The least-squares estimate from n samples has variance c_jᵀΛ(w)⁻¹c_j/n in direction j, so f(w) is the number
of samples per unit of log-confidence. G-optimal design is the special case c = x. f is convex.

**Certificate.** For weights λ on the directions put C = Σ λ_j c_j c_jᵀ, f_λ(w) = tr Λ(w)⁻¹C ≤ f(w), and g_k =
x_kᵀΛ(w)⁻¹CΛ(w)⁻¹x_k. 1/f_λ is homogeneous of degree 1 and quasi-concave, hence concave, and its gradient at w
is g/f_λ², so for every design w'

    f(w') ≥ f_λ(w') ≥ f_λ(w)² / max_k g_k :

a lower bound on the optimum from any w and λ, which is returned with the design.

**Method.** The maximum is replaced by the p-norm of the direction variances q_j, with λ_j ∝ q_j^{p-1} and p
growing; for fixed λ the update w_k ← w_k √g_k, normalised, decreases f_λ at every step (multiplicative
algorithm for linear criteria, Yu 2010)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FloatArray, frozen

_POWERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_SWEEPS = 60
_TRACE = 1e-5
_WORKING = 400  # directions that take part in the updates; the certificate uses all of them


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
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else float("inf")


def transductive_design(
    features: FloatArray, directions: FloatArray, *, tolerance: float = 0.05, start: FloatArray | None = None
) -> TransductiveDesign:
    """Return a design that minimises the largest variance of the given directions.

    Parameters
    ----------
    features : array (K, d)
        Pairs, divided by their noise's standard deviation; they must span R^d.
    directions : array (J, d)
        Linear functions, divided by the accuracy that is wanted.
    tolerance : float
        Stop once the design is within this relative distance of optimal.
    start : array (K,), optional
        Weights to start from, all of them positive; uniform by default.
    """
    if features.ndim != 2 or directions.ndim != 2 or features.shape[1] != directions.shape[1] or not len(directions):
        raise InvalidInput(
            f"features (K, d) and directions (J, d) must agree in d. Got {features.shape} and {directions.shape}."
        )
    weights = np.full(len(features), 1 / len(features)) if start is None else start / start.sum()
    best = _assessed(features, directions, weights, _POWERS[0])
    for power in _POWERS:
        working = _worst(features, directions, weights)
        for _ in range(_SWEEPS):
            gains, _ = _gradient(features, working, weights, power)
            weights = weights * np.sqrt(gains)
            # A trace of every pair keeps Λ invertible where the directions leave a subspace alone.
            weights = (1 - _TRACE) * weights / weights.sum() + _TRACE / len(weights)
        found = _assessed(features, directions, weights, power)
        best = TransductiveDesign(
            weights=found.weights if found.value <= best.value else best.weights,
            value=min(found.value, best.value),
            lower_bound=max(found.lower_bound, best.lower_bound),
        )
        if best.gap <= tolerance:
            break
    return best


def _information(features: FloatArray, weights: FloatArray) -> FloatArray:
    information: FloatArray = (features.T * weights) @ features
    return information


def _variances(features: FloatArray, directions: FloatArray, weights: FloatArray) -> FloatArray:
    inverse = np.linalg.inv(_information(features, weights))
    return np.einsum("jd,jd->j", directions @ inverse, directions)


def _worst(features: FloatArray, directions: FloatArray, weights: FloatArray) -> FloatArray:
    if len(directions) <= _WORKING:
        return directions
    return directions[np.argsort(_variances(features, directions, weights))[-_WORKING:]]


def _gradient(
    features: FloatArray, directions: FloatArray, weights: FloatArray, power: float
) -> tuple[FloatArray, FloatArray]:
    """(g, q): gains of the pairs for λ ∝ q^{p-1}, and the variances q of the directions."""
    inverse = np.linalg.inv(_information(features, weights))
    pulled = directions @ inverse
    variances = np.einsum("jd,jd->j", pulled, directions)
    shares = (variances / variances.max()) ** (power - 1)
    shares /= shares.sum()
    projected = features @ (pulled.T * shares) @ pulled
    # Rounding may take a gain of 0 below it.
    return np.clip(np.einsum("kd,kd->k", projected, features), 0.0, None), variances


def _assessed(features: FloatArray, directions: FloatArray, weights: FloatArray, power: float) -> TransductiveDesign:
    gains, variances = _gradient(features, directions, weights, power)
    return TransductiveDesign(
        weights=frozen(weights),
        value=float(variances.max()),
        lower_bound=float((weights @ gains) ** 2 / gains.max()),
    )
