"""Transductive designs: which pairs to sample so that given linear functions are known well.

With pairs x_k ∈ R^d (already divided by the standard deviation of their noise) and directions c_j (already
divided by the accuracy that is wanted of c_jᵀθ), the design problem is

    minimise over the simplex   f(w) = max_j c_jᵀ Λ(w)⁻¹ c_j,        Λ(w) = Σ_k w_k x_k x_kᵀ.

The least-squares estimate from n samples has variance c_jᵀΛ(w)⁻¹c_j/n in direction j, so f(w) is the number
of samples per unit of log-confidence. G-optimal design is the special case c = x. f is convex.

**Certificate.** h_j(w) = 1/(c_jᵀΛ(w)⁻¹c_j) is homogeneous of degree 1 and quasi-concave, hence concave, with the
gradient ∂h_j/∂w_k = (x_kᵀΛ⁻¹c_j)²h_j². By homogeneity its tangent at any w has no constant term, so for every design w'

    1/f(w') = min_j h_j(w') ≤ min over tangents (j, w) of Σ_k w'_k ∂h_j/∂w_k(w),

and the largest value of the right side over the simplex, a linear program, bounds 1/f from above: no design can do
better than its inverse, which is returned with the design.

**Method.** Multiplicative updates first: the maximum is replaced by the p-norm of the variances q_j, and
w_k ← w_k √g_k, normalised, with g_k = Σ_j λ_j (x_kᵀΛ⁻¹c_j)², λ_j ∝ q_j^{p-1} (they decrease the criterion for fixed λ;
Yu 2010). Then cutting planes: solve the linear program, go half-way from the best design to its solution, add the
tangents there, until the two bounds meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.optimize import linprog

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FloatArray, frozen

_POWERS = (2.0, 6.0, 18.0)
_SWEEPS = 30
_PLANES = 60  # linear programs at most
_TANGENTS = 12  # directions that get a tangent at each point
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
    for power in _POWERS:
        working = _worst(features, directions, weights)
        for _ in range(_SWEEPS):
            weights = _kept_invertible(weights * np.sqrt(_gains(features, working, weights, power)))
    return _cutting_planes(features, directions, weights, tolerance)


def _cutting_planes(
    features: FloatArray, directions: FloatArray, weights: FloatArray, tolerance: float
) -> TransductiveDesign:
    best, value = weights, inf
    bound, tangents = inf, np.empty((0, len(features)))
    point = weights
    for _ in range(_PLANES):
        variances, slopes = _tangents(features, directions, point)
        tangents = np.vstack([tangents, slopes])
        if variances.max() < value:
            best, value = point, float(variances.max())
        # The program is scaled by the value, so that its tolerances are relative ones.
        solution = linprog(
            np.append(np.zeros(len(features)), -1.0),
            A_ub=np.column_stack([-value * tangents, np.ones(len(tangents))]),
            b_ub=np.zeros(len(tangents)),
            A_eq=np.append(np.ones(len(features)), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0, None)] * len(features) + [(None, None)],
        )
        if not solution.success:
            break
        target = np.clip(solution.x[:-1], 0.0, None)
        # Weak duality with the program's own multipliers: no trust in the solver is needed.
        shares = np.clip(-solution.ineqlin.marginals, 0.0, None)
        if shares.sum() > 0:
            bound = min(bound, float((shares @ tangents).max() / shares.sum()))
        if value * bound <= 1 + tolerance:
            break
        point = _kept_invertible(0.5 * best + 0.5 * target / target.sum())
    return TransductiveDesign(weights=frozen(best), value=value, lower_bound=1 / bound)


def _information(features: FloatArray, weights: FloatArray) -> FloatArray:
    information: FloatArray = (features.T * weights) @ features
    return information


def _variances(features: FloatArray, directions: FloatArray, weights: FloatArray) -> FloatArray:
    inverse = np.linalg.inv(_information(features, weights))
    variances: FloatArray = np.einsum("jd,jd->j", directions @ inverse, directions)
    return variances


def _worst(features: FloatArray, directions: FloatArray, weights: FloatArray) -> FloatArray:
    if len(directions) <= _WORKING:
        return directions
    return directions[np.argsort(_variances(features, directions, weights))[-_WORKING:]]


def _gains(features: FloatArray, directions: FloatArray, weights: FloatArray, power: float) -> FloatArray:
    """g_k = Σ_j λ_j (x_kᵀΛ⁻¹c_j)² for λ ∝ q^{p-1}, (K,)."""
    pulled = directions @ np.linalg.inv(_information(features, weights))
    variances = np.einsum("jd,jd->j", pulled, directions)
    shares = (variances / variances.max()) ** (power - 1)
    gains: FloatArray = ((features @ pulled.T) ** 2) @ (shares / shares.sum())
    return gains


def _tangents(features: FloatArray, directions: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variances of all directions (J,), and gradients of h_j for the worst of them, (m, K)."""
    pulled = directions @ np.linalg.inv(_information(features, weights))
    variances: FloatArray = np.einsum("jd,jd->j", pulled, directions)
    worst = np.argsort(variances)[-_TANGENTS:]
    slopes: FloatArray = (pulled[worst] @ features.T) ** 2 / variances[worst, None] ** 2
    return variances, slopes


def _kept_invertible(weights: FloatArray) -> FloatArray:
    """Normalise, with a trace of every pair: Λ stays invertible where the directions leave a subspace alone."""
    kept: FloatArray = (1 - _TRACE) * weights / weights.sum() + _TRACE / len(weights)
    return kept
