"""Interior-point method for D-optimal weights on a few hundred points.

For m points z_i in R^d the weights solve

    minimise  - log det M(w) + d sum(w)   over w >= 0,        M(w) = sum_i w_i z_i z_i'.

The constraint sum(w) = 1 is not needed: scaling w shows that every minimiser has sum 1. With leverages
g_i = z_i' M(w)^-1 z_i the optimality conditions read

    d - g_i = s_i >= 0,    w_i s_i = 0,

and the Hessian has entries (z_i' M(w)^-1 z_j)^2. Following the central path w_i s_i = mu with Mehrotra's predictor and
corrector takes about ten m x m Cholesky factorisations to any precision, because - log det is self-concordant; near
duplicates or more points than moments, where the optimal weights are not unique, do it no harm [1]_.
On the path g_i < d for every point, and the identity sum_i w_i g_i = d gives sum(w) = 1 + m mu / d. After division by
sum(w), therefore, max_i g_i <= d + m mu: the path carries its own certificate.

Points are dropped on the way once the bound of Harman and Pronzato [2]_ excludes them from every optimal design.

References
----------
.. [1] Z. Lu, T. K. Pong. Computing optimal experimental designs via interior point method. SIAM J. Matrix Anal.
   Appl. 34, 2013.
.. [2] R. Harman, L. Pronzato. Improvements on removing nonoptimal support points in D-optimum design algorithms.
   Statistics & Probability Letters 77, 2007.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, solve_triangular

from bestpolicy.design.conditioning import EPS, Floats, squared_norms
from bestpolicy.errors import ConvergenceError

_MAX_ITERATIONS = 100
_FRACTION_TO_BOUNDARY = 0.99


def support_threshold(worst: float, dimension: int) -> float:
    """Leverage below which a point is in the support of no optimal design [2]_.

    Parameters
    ----------
    worst : float
        Largest leverage over all points under some design (weights that sum to 1), at least `dimension`.
    dimension : int
        Dimension d of the points.
    """
    # The excess is absolute, not relative to d: with a relative one true support points are dropped. Its rounding
    # enters through a square root, so it must not be rounded down to zero.
    excess = max(worst - dimension, 0.0) + 64 * EPS * dimension**2
    root = np.sqrt(excess * (4.0 + excess - 4.0 / dimension))
    return float(dimension * (1.0 + (excess - root) / 2.0))


@dataclass
class _Iterate:
    """Primal weights w, dual slacks s, and what follows from w."""

    points: Floats
    weights: Floats
    slacks: Floats
    whitened: Floats
    leverages: Floats

    @property
    def gap(self) -> float:
        """Relative excess of the largest leverage over d once the weights are scaled to sum 1."""
        return float(self.leverages.max() * self.weights.sum() / self.points.shape[1] - 1.0)

    @property
    def complementarity(self) -> float:
        return float(self.weights @ self.slacks) / len(self.weights)


def d_optimal_weights(points: Floats, start: Floats, gap: float) -> tuple[NDArray[np.int64], Floats]:
    """Weights of a D-optimal design on a small set of points.

    Parameters
    ----------
    points : ndarray, shape (m, d)
        Points that span R^d.
    start : ndarray, shape (m,)
        Positive weights to start from.
    gap : float
        The result satisfies max_i g_i <= (1 + gap) d over the m points.

    Returns
    -------
    kept : ndarray of int64, shape (k,)
        Points that may carry weight; the others are in no optimal design.
    weights : ndarray, shape (k,)
        Positive weights of those points, with sum 1.

    Raises
    ------
    ConvergenceError
        If the method stalls.
    """
    kept = np.arange(len(points))
    iterate = _dual_feasible_start(points, start)
    for _ in range(_MAX_ITERATIONS):
        if iterate.gap <= gap:
            return kept, iterate.weights / iterate.weights.sum()
        iterate, stay = _without_excluded_points(iterate)
        kept = kept[stay]
        _advance(iterate)
    raise ConvergenceError(
        f"the interior-point method stalled at a gap of {iterate.gap:.1e}, {gap:.1e} was asked for. "
        "Ask for a larger tolerance."
    )


def _whiten(points: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Rows M(w)^{-1/2} z_i and their squared norms, the leverages."""
    information = (points * weights[:, None]).T @ points
    factor = np.linalg.cholesky(information)
    whitened = solve_triangular(factor, points.T, lower=True, check_finite=False).T
    return whitened, squared_norms(whitened)


def _dual_feasible_start(points: Floats, start: Floats) -> _Iterate:
    """Scale the weights up until every leverage is below d, so that all slacks are positive."""
    _, leverages = _whiten(points, start)
    weights = start * (1.1 * leverages.max() / points.shape[1])
    whitened, leverages = _whiten(points, weights)
    return _Iterate(points, weights, points.shape[1] - leverages, whitened, leverages)


def _without_excluded_points(iterate: _Iterate) -> tuple[_Iterate, NDArray[np.bool_]]:
    """Drop the points that no optimal design uses, when that makes the next factorisation markedly cheaper."""
    total = iterate.weights.sum()
    threshold = support_threshold(float(iterate.leverages.max() * total), iterate.points.shape[1])
    stay = iterate.leverages * total >= threshold
    if stay.sum() > 0.8 * len(stay):
        return iterate, np.ones(len(stay), dtype=bool)
    points, weights = iterate.points[stay], iterate.weights[stay]
    return _Iterate(points, weights, iterate.slacks[stay], *_whiten(points, weights)), stay


def _advance(iterate: _Iterate) -> None:
    """One predictor-corrector step, in place."""
    weights, slacks = iterate.weights, iterate.slacks
    ratio = slacks / weights
    gradient = iterate.points.shape[1] - iterate.leverages
    newton = _NewtonSystem(iterate.whitened, ratio)

    step = newton.solve(-gradient)
    slack_step = -slacks - ratio * step
    # How far the pure Newton step gets decides how much centring the real step needs.
    mu = iterate.complementarity
    predicted = weights + min(1.0, _longest(weights, step)) * step
    predicted_slacks = slacks + min(1.0, _longest(slacks, slack_step)) * slack_step
    centring = mu * (float(predicted @ predicted_slacks) / len(weights) / mu) ** 3

    target = (centring - step * slack_step) / weights
    step = newton.solve(target - gradient)
    slack_step = target - slacks - ratio * step
    length = min(1.0, _FRACTION_TO_BOUNDARY * min(_longest(weights, step), _longest(slacks, slack_step)))
    iterate.weights = weights + length * step
    iterate.slacks = slacks + length * slack_step
    iterate.whitened, iterate.leverages = _whiten(iterate.points, iterate.weights)


def _longest(values: Floats, step: Floats) -> float:
    """Largest multiple of the step that keeps positive values nonnegative, at most 100."""
    return 1.0 / max(float((-step / values).max()), 0.01)


class _NewtonSystem:
    """Cholesky factor of (z_i' M^-1 z_j)^2 + diag(s / w)."""

    def __init__(self, whitened: Floats, ratio: Floats) -> None:
        hessian = whitened @ whitened.T
        hessian *= hessian
        diagonal = np.einsum("ii->i", hessian)
        diagonal += ratio
        ridge = EPS * diagonal.max()
        for _ in range(8):
            # The transpose is in Fortran order, so LAPACK works on it without a copy.
            self._factor, info = lapack.dpotrf(hessian.T, lower=False, clean=False)
            if info == 0:
                return
            # Near duplicates make the Hessian singular to rounding: a ridge picks one of the equivalent steps.
            diagonal += ridge
            ridge *= 100
        raise ConvergenceError("the Hessian of log det is not positive definite. Ask for a larger tolerance.")

    def solve(self, right: Floats) -> Floats:
        solution: Floats = lapack.dpotrs(self._factor, right, lower=False)[0]
        return solution
