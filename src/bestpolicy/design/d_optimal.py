"""D-optimal weights: column generation over a great many rows, an interior-point method on a few hundred of them.

**Column generation.** A design on n rows needs few of them. The weights are optimised on a *working set* of some
hundred rows; the leverages g_i of all rows under those weights then say which rows it lacks, since g_i <= d holds for
every row at the optimum [1]_:

1. Solve for the weights on the working set, nearly exactly: digits are cheap in an interior-point method, and
   with them the rows that carry no weight stand out.
2. Compute the leverages of all rows. If max g <= (1 + gap) d, stop.
3. Rows of the working set without weight leave; the worst violators enter, no two of them nearly parallel. Near
   duplicates therefore cost nothing, and neighbours on a smooth set of features do not crowd out the others.

Rows that no optimal design can use (`support_threshold`) are not looked at again. About ten rounds are enough,
twenty where almost every row is extreme.

**Interior points.** For m points z_i in R^d the weights solve

    minimise  - log det M(w) + d sum(w)   over w >= 0,        M(w) = sum_i w_i z_i z_i'.

The constraint sum(w) = 1 is not needed: scaling w shows that every minimiser has sum 1. With leverages
g_i = z_i' M(w)^-1 z_i the optimality conditions read

    d - g_i = s_i >= 0,    w_i s_i = 0,

and the Hessian has entries (z_i' M(w)^-1 z_j)^2. Following the central path w_i s_i = mu with Mehrotra's predictor and
corrector takes about ten m x m Cholesky factorisations to any precision, because - log det is self-concordant; near
duplicates or more points than moments, where the optimal weights are not unique, do it no harm [2]_.
On the path g_i < d for every point, and the identity sum_i w_i g_i = d gives sum(w) = 1 + m mu / d. After division by
sum(w), therefore, max_i g_i <= d + m mu: the path carries its own certificate.

Points are dropped on the way once the bound of Harman and Pronzato [3]_ excludes them from every optimal design.

References
----------
.. [1] J. Kiefer, J. Wolfowitz. The equivalence of two extremum problems. Canadian Journal of Mathematics 12, 1960.
.. [2] Z. Lu, T. K. Pong. Computing optimal experimental designs via interior point method. SIAM J. Matrix Anal.
   Appl. 34, 2013.
.. [3] R. Harman, L. Pronzato. Improvements on removing nonoptimal support points in D-optimum design algorithms.
   Statistics & Probability Letters 77, 2007.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS, steady
from bestpolicy.design.whitening import row_chunks, squared_norms
from bestpolicy.errors import ConvergenceError

_MAX_ROUNDS = 300
# From here on no row leaves the working set, which rules out cycles.
_LAST_ROUND_WITH_LEAVERS = 60
# Two rows are nearly parallel when the squared cosine between them, in whitened coordinates, exceeds 1 minus this.
_NEARLY_PARALLEL = 1e-2
_MAX_ITERATIONS = 100
_FRACTION_TO_BOUNDARY = 0.99


@dataclass
class Frame:
    """Rows x (n, d), and T (d, d): in z = x T the information matrix of the latest design is the identity."""

    rows: FloatArray
    transform: FloatArray

    @property
    def dimension(self) -> int:
        return int(self.rows.shape[1])

    def points(self, indices: IntArray) -> FloatArray:
        """Coordinates (k, d) of some rows."""
        return self.rows[indices] @ self.transform

    def information(self, indices: IntArray, weights: FloatArray) -> FloatArray:
        """Information matrix (d, d) of a design in these coordinates."""
        points = self.points(indices)
        return (points * weights[:, None]).T @ points

    def adopt(self, indices: IntArray, weights: FloatArray) -> None:
        """Change coordinates so that the information matrix of this design becomes the identity."""
        factor = np.linalg.cholesky(self.information(indices, weights))
        self.transform = np.ascontiguousarray(solve_triangular(factor, self.transform.T, lower=True).T)

    def leverages(self, rows: FloatArray | None = None) -> FloatArray:
        """Leverages |z|^2 of the given rows, by default of all of them."""
        rows = self.rows if rows is None else rows
        leverages = np.empty(len(rows))
        for chunk in row_chunks(*rows.shape):
            leverages[chunk] = squared_norms(rows[chunk] @ self.transform)
        return leverages


def optimal_weights(frame: Frame, working: IntArray, weights: FloatArray, gap: float) -> tuple[IntArray, FloatArray]:
    """Improve a design until no leverage exceeds (1 + gap) d, or raise ConvergenceError.

    Parameters
    ----------
    frame : Frame
        On return the design is adopted.
    working, weights : ndarray, shape (m,)
        Rows that span R^d and positive weights on them.
    gap : float

    Returns
    -------
    working, weights : ndarray, shape (k,)
        Rows and positive weights with sum 1. Most of the smaller weights are numerically zero.
    """
    dimension = frame.dimension
    candidates, rows = np.arange(len(frame.rows)), frame.rows
    goal = min(gap, 1e-6) / 10
    for round_ in range(_MAX_ROUNDS):
        kept, weights = d_optimal_weights(frame.points(working), weights, goal)
        working = working[kept]
        frame.adopt(working, weights)
        leverages = frame.leverages(rows)
        worst = float(leverages.max())
        if worst <= (1 + gap) * dimension:
            return working, weights
        possible = leverages >= support_threshold(worst, dimension)
        if possible.sum() < len(possible) / 2:
            candidates, rows, leverages = candidates[possible], rows[possible], leverages[possible]
        entering = np.setdiff1d(_violators(frame, candidates, leverages), working)
        if len(entering) == 0:
            goal /= 10
            continue
        if round_ < _LAST_ROUND_WITH_LEAVERS:
            stay = _carry_weight(frame.points(working), weights)
            working, weights = working[stay], weights[stay]
        working = np.append(working, entering)
        weights = np.append(0.9 * weights, np.full(len(entering), 0.1 / len(entering)))
    raise ConvergenceError(
        f"the design did not reach a gap of {gap:.1e} in {_MAX_ROUNDS} rounds; it is at "
        f"{worst / dimension - 1:.1e}. Ask for a larger tolerance."
    )


def _violators(frame: Frame, candidates: IntArray, leverages: FloatArray) -> IntArray:
    """The rows of largest leverage above d, no two of them nearly parallel."""
    dimension = frame.dimension
    limit = max(20, 5 * dimension)
    top = _largest(leverages, 8 * limit)
    # A violation far below the worst one says little yet: the next solution moves it.
    level = dimension + 0.05 * (leverages[top].max() - dimension)
    top = top[leverages[top] > level]
    return spread(frame, candidates[top], leverages[top], limit)


def _carry_weight(points: FloatArray, weights: FloatArray) -> BoolArray:
    """Tell support points from the others by what is larger on the central path: weight or slack."""
    leverages = squared_norms(points)
    carries: BoolArray = weights * len(weights) >= 1 - leverages / leverages.max()
    return carries


def _largest(values: FloatArray, count: int) -> IntArray:
    """Positions of the `count` largest values, in no particular order."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(-steady(values), count)[:count]


def spread(frame: Frame, candidates: IntArray, leverages: FloatArray, limit: int) -> IntArray:
    """At most `limit` candidates by decreasing leverage, without those nearly parallel to an earlier one."""
    candidates = candidates[np.argsort(-steady(leverages), kind="stable")]
    points = frame.points(candidates)
    points /= np.sqrt(squared_norms(points))[:, None]
    free = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    for position in range(len(candidates)):
        if free[position] and len(chosen) < limit:
            chosen.append(position)
            free &= (points @ points[position]) ** 2 < 1 - _NEARLY_PARALLEL
    return candidates[chosen]


def initial_working_set(frame: Frame) -> IntArray:
    """Rows of large leverage under uniform weights, and enough others to span R^d.

    The frame must be that of `well_conditioned`, in which the Gram matrix of all rows is the identity.
    """
    count = len(frame.rows)
    leverages = frame.leverages()
    limit = max(200, 8 * frame.dimension)
    # Regularly spaced rows join the pool because the top may consist of copies of one row.
    pool = np.union1d(_largest(leverages, 4 * limit), np.arange(0, count, max(1, count // (4 * limit))))
    pool = pool[leverages[pool] > 0]
    top = spread(frame, pool, leverages[pool], limit)
    return np.union1d(top, _spanning_rows(frame, top))


def _spanning_rows(frame: Frame, pool: IntArray) -> IntArray:
    """Return d rows that span R^d, from the pool as far as possible.

    With the identity for Gram matrix of all n rows, the squared distances of the rows from a subspace of
    dimension r add up to d - r. So some row is at a distance of at least 1 / sqrt(n), and a row much nearer than
    that need not be taken.
    """
    dimension = frame.dimension
    significant = 0.1 / np.sqrt(len(frame.rows))
    chosen = np.zeros(0, dtype=np.int64)
    complement = np.eye(dimension)
    while True:
        factor, order = qr(complement @ frame.points(pool).T, mode="r", pivoting=True)
        count = np.count_nonzero(np.abs(np.diag(factor)) >= significant)
        chosen = np.append(chosen, pool[order[:count]])
        if len(chosen) >= dimension:
            return chosen[:dimension]
        basis = np.linalg.qr(frame.points(chosen).T)[0]
        complement = np.eye(dimension) - basis @ basis.T
        distances = Frame(frame.rows, frame.transform @ complement).leverages()
        pool = _largest(distances, 4 * dimension)


def support_threshold(worst: float, dimension: int) -> float:
    """Leverage below which a point is in the support of no optimal design, if the largest one is `worst` [3]_."""
    # The excess is absolute, not relative to d: with a relative one true support points are dropped. Its rounding
    # enters through a square root, so it must not be rounded down to zero.
    excess = max(worst - dimension, 0.0) + 64 * EPS * dimension**2
    root = np.sqrt(excess * (4.0 + excess - 4.0 / dimension))
    return float(dimension * (1.0 + (excess - root) / 2.0))


@dataclass
class _Iterate:
    """Primal weights w, dual slacks s, and what follows from w."""

    points: FloatArray
    weights: FloatArray
    slacks: FloatArray
    whitened: FloatArray
    leverages: FloatArray

    @property
    def gap(self) -> float:
        """Relative excess of the largest leverage over d once the weights are scaled to sum 1."""
        return float(self.leverages.max() * self.weights.sum() / self.points.shape[1] - 1.0)

    @property
    def complementarity(self) -> float:
        return float(self.weights @ self.slacks) / len(self.weights)


def d_optimal_weights(points: FloatArray, start: FloatArray, gap: float) -> tuple[IntArray, FloatArray]:
    """Weights with max_i g_i <= (1 + gap) d over a few points (m, d) that span R^d; ConvergenceError if it stalls.

    From positive weights `start` (m,). Returned are the points (k,) that may carry weight, as the others are in no
    optimal design, and their weights, positive with sum 1.
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


def _whiten(points: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows M(w)^{-1/2} z_i and their squared norms, the leverages."""
    information = (points * weights[:, None]).T @ points
    factor = np.linalg.cholesky(information)
    whitened = solve_triangular(factor, points.T, lower=True, check_finite=False).T
    return whitened, squared_norms(whitened)


def _dual_feasible_start(points: FloatArray, start: FloatArray) -> _Iterate:
    """Scale the weights up until every leverage is below d, so that all slacks are positive."""
    _, leverages = _whiten(points, start)
    weights = start * (1.1 * leverages.max() / points.shape[1])
    whitened, leverages = _whiten(points, weights)
    return _Iterate(points, weights, points.shape[1] - leverages, whitened, leverages)


def _without_excluded_points(iterate: _Iterate) -> tuple[_Iterate, BoolArray]:
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


def _longest(values: FloatArray, step: FloatArray) -> float:
    """Largest multiple of the step that keeps positive values nonnegative, at most 100."""
    return 1.0 / max(float((-step / values).max()), 0.01)


class _NewtonSystem:
    """Cholesky factor of (z_i' M^-1 z_j)^2 + diag(s / w)."""

    def __init__(self, whitened: FloatArray, ratio: FloatArray) -> None:
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

    def solve(self, right: FloatArray) -> FloatArray:
        solution: FloatArray = lapack.dpotrs(self._factor, right, lower=False)[0]
        return solution
