"""G-optimal designs: which feature vectors to sample so that every prediction is accurate.

Given feature vectors x_1, ..., x_n in R^d, weights w on the simplex have the information matrix
Lambda(w) = sum_i w_i x_i x_i' and the leverages g_i(w) = x_i' Lambda(w)^-1 x_i. Least squares from t samples drawn
by w predicts x_i . theta with a variance proportional to g_i(w) / t. A *G-optimal* design minimises max_i g_i(w).

Kiefer and Wolfowitz [1]_: the minimum is d, and it is attained where log det Lambda(w) is largest (D-optimality).
Since sum_i w_i g_i(w) = d for every w, the number max_i g_i(w) >= d that comes with a design is its own
certificate. A design with max_i g_i <= (1 + eta) d is optimal up to the factor 1 + eta, and this is all that the
theorems ask of it. Some optimal design has at most d (d + 1) / 2 points.

The method:

1. `whitening`: coordinates in which rounding does no harm.
2. `d_optimal`: weights on a small working set of rows, in about ten Newton steps; all rows are then asked whether they
   should join it.
3. At most d (d + 1) / 2 points with all but the same information matrix M, their weights rounded to a grid: the same
   ones on every processor. The lightest points are dropped if together they hold a share rho of the trace of M^-1 M:
   what remains is at least (1 - rho) M, so no leverage grows by more than 1 / (1 - rho). Then Caratheodory's theorem:
   among more points than M has entries there is a combination of the matrices z_i z_i' that vanishes; moving the
   weights along it until the first one is zero removes a point and keeps M. The combinations are read off the reduced
   echelon form of the matrices, as in the simplex method.

The leverages of all rows under the weights that are returned are computed last, and are the certificate.
First-order methods (Frank-Wolfe, multiplicative updates) take a number of passes over the rows that grows like
1 / tolerance [2]_. Here it is ten to twenty, whatever the tolerance.

References
----------
.. [1] J. Kiefer, J. Wolfowitz. The equivalence of two extremum problems. Canadian Journal of Mathematics 12, 1960.
.. [2] M. J. Todd. Minimum-Volume Ellipsoids: Theory and Algorithms. SIAM, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray, axes_of
from bestpolicy._numerics.inputs import as_float, shown
from bestpolicy._numerics.reproducible import grid_shares, one_thread
from bestpolicy.design.d_optimal import Frame, initial_working_set, optimal_weights
from bestpolicy.design.whitening import as_feature_matrix, squared_norms, well_conditioned
from bestpolicy.errors import ConvergenceError, InvalidInput

_TIGHTEST, _LOOSEST = 1e-10, 1.0
_GRID = 2.0**32
_INDEPENDENT = 1e-6  # what is left of a matrix z z' that those before it do not combine to


@dataclass(frozen=True, eq=False)
class Design:
    """Weights on a few rows of a feature matrix, with the certificate of their optimality.

    Attributes
    ----------
    indices : ndarray of int64, shape (K,)
        Rows that carry weight, in increasing order; K <= d (d + 1) / 2.
    weights : ndarray of float64, shape (K,)
        Their weights: positive, with sum 1.
    worst_leverage : float
        max over all rows of x' Lambda(w)^-1 x, at least d up to rounding: the certificate.
    worst_index : int
        The row that attains it.
    tolerance : float
        What was asked for: worst_leverage <= (1 + tolerance) * dimension.
    dimension : int
        The dimension d, which is the rank of the features.
    """

    indices: IntArray
    weights: FloatArray
    worst_leverage: float
    worst_index: int
    tolerance: float
    dimension: int


def g_optimal_design(features: ArrayLike, *, tolerance: float = 1e-3) -> Design:
    """Weights on the rows of a feature matrix that minimise the largest leverage.

    Parameters
    ----------
    features : array_like, shape (n, d)
        Feature vectors, of rank d. Duplicates, rows of zeros and columns of any scale are welcome.
    tolerance : float
        The largest leverage is at most (1 + tolerance) d; between 1e-10 and 1.

    Returns
    -------
    Design
        The rows that carry weight, their weights, and the largest leverage over all rows.

    Raises
    ------
    InvalidInput
        If the features are not a finite matrix of rank d, or the tolerance is out of range.
    ConvergenceError
        If the conditioning of the features does not allow that tolerance. No design is returned that misses it.

    Examples
    --------
    Quadratic regression on [-1, 1] is best sampled at both ends and in the middle, equally often:

    >>> x = np.linspace(-1, 1, 201)
    >>> design = g_optimal_design(np.column_stack([np.ones_like(x), x, x**2]), tolerance=1e-6)
    >>> x[design.indices]
    array([-1.,  0.,  1.])
    >>> design.weights.round(3)
    array([0.333, 0.333, 0.333])
    """
    matrix = as_feature_matrix(features)
    if isinstance(tolerance, str | bytes) or not _TIGHTEST <= as_float(tolerance) <= _LOOSEST:
        raise InvalidInput(f"tolerance must be between {_TIGHTEST:g} and {_LOOSEST:g}. Got {shown(tolerance)} instead.")
    try:
        with one_thread():
            return _certified_design(matrix, tolerance)
    except np.linalg.LinAlgError as error:
        raise ConvergenceError(
            f"rounding made an information matrix singular before the tolerance {tolerance:g} was reached. "
            "Ask for a larger tolerance, or remove features that are nearly linearly dependent."
        ) from error


def _certified_design(features: FloatArray, tolerance: float) -> Design:
    """Solve, reduce the support, certify; again with more digits if the reduction cost too many."""
    on_axes = _design_on_axes(features, tolerance)
    if on_axes is not None:
        return on_axes
    frame = Frame(*well_conditioned(features, tolerance / 20))
    working = initial_working_set(frame)
    weights = np.full(len(working), 1.0 / len(working))
    for gap in (tolerance / 2, tolerance / 20):
        working, weights = optimal_weights(frame, working, weights, gap)
        indices, reduced = _reduced_support(frame, working, weights, tolerance / 8)
        reduced = grid_shares(reduced, tolerance / (16 * frame.dimension))
        indices, reduced = indices[reduced > 0], reduced[reduced > 0]
        frame.adopt(indices, reduced)
        drift = np.abs(frame.information(indices, reduced) - np.eye(frame.dimension)).max()
        leverages = frame.leverages()
        worst = int(leverages.argmax())
        if leverages[worst] <= (1 + tolerance) * frame.dimension and drift <= tolerance / 10:
            return _design(indices, reduced, float(leverages[worst]), worst, tolerance, frame.dimension)
    raise ConvergenceError(
        f"the largest leverage is {leverages[worst]:.12g} with a rounding error of {drift:.1e}, which does not certify "
        f"the tolerance {tolerance:g} in dimension {frame.dimension}. Ask for a larger tolerance."
    )


def _design_on_axes(features: FloatArray, tolerance: float) -> Design | None:
    """The design for features that each lie on an axis: the longest of every axis, equally often.

    A row has the leverage d (length / longest)^2 <= d, so it is optimal. None for all other features.
    """
    axes = axes_of(features)
    if axes is None:
        return None
    axis, lengths = axes
    dimension = features.shape[1]
    order = np.lexsort((-lengths, axis))
    occupied, first = np.unique(axis[order], return_index=True)
    longest = order[first]
    if len(occupied) < dimension or not lengths[longest].all():
        return None  # the rank is too small: the general method says so
    worst = int(longest.min())
    return _design(longest, np.full(dimension, 1 / dimension), float(dimension), worst, tolerance, dimension)


def _reduced_support(frame: Frame, working: IntArray, weights: FloatArray, share: float) -> tuple[IntArray, FloatArray]:
    """At most d (d + 1) / 2 rows with the information matrix of the adopted design, up to the `share` of it."""
    kept = drop_negligible(frame.points(working), weights, share)
    indices, weights = working[kept], weights[kept]
    if len(indices) > moment_count(frame.dimension):
        frame.adopt(indices, weights)
        weights = caratheodory(frame.points(indices), weights)
        indices, weights = indices[weights > 0], weights[weights > 0]
    return indices, weights / weights.sum()


def _design(
    indices: IntArray, weights: FloatArray, worst_leverage: float, worst_index: int, tolerance: float, dimension: int
) -> Design:
    order = np.argsort(indices)
    indices, weights = indices[order], weights[order]
    indices.flags.writeable = weights.flags.writeable = False
    return Design(indices, weights, worst_leverage, worst_index, tolerance, dimension)


def moment_count(dimension: int) -> int:
    """Number d (d + 1) / 2 of distinct entries of an information matrix: an optimal design needs no more points."""
    return dimension * (dimension + 1) // 2


def drop_negligible(points: FloatArray, weights: FloatArray, share: float) -> IntArray:
    """Points (k,) that remain when the lightest ones are dropped: with a sum of w_i |z_i|^2 of at most `share`.

    The points (m, d) are in coordinates where M(w) is the identity.
    """
    traces = weights * squared_norms(points)
    order = np.argsort(traces, kind="stable")
    negligible = np.searchsorted(np.cumsum(traces[order]), share, side="right")
    return np.sort(order[negligible:])


def caratheodory(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Weights (m,), at most d (d + 1) / 2 of them positive, with the same M(w), up to a rounding of 1e-9.

    Symmetric sets of points have many such weights. Points and weights are rounded to a grid, and rows are combined
    number by number, so that every processor takes the same ones.
    """
    table = _rounded(_moments(_rounded(points)).T)
    weights = _rounded(weights)
    basis: list[int] = []
    for column in range(table.shape[1]):
        if len(basis) < len(table):
            free = np.abs(table[len(basis) :, column])
            row = len(basis) + int(free.argmax())
            if free.max() > _INDEPENDENT:
                _pivot(table, len(basis), row, column)
                basis.append(column)
                continue
        _move_to_basis(table, weights, basis, column)
    return weights


def _move_to_basis(table: FloatArray, weights: FloatArray, basis: list[int], column: int) -> None:
    """Empty the point `column`, a combination of those in the basis, or one of these in exchange for it."""
    combination = table[: len(basis), column].copy()
    held = weights[basis]
    # Weight that leaves the column arrives in the basis as its combination; where that is negative it may run out.
    falling = np.flatnonzero(combination < -_INDEPENDENT)
    steps = held[falling] / -combination[falling]
    if len(steps) == 0 or steps.min() >= weights[column]:
        weights[basis] = np.maximum(held + weights[column] * combination, 0.0)
        weights[column] = 0.0
        return
    # Among those that run out together, the largest pivot keeps the elimination stable.
    together = falling[steps <= steps.min() + 1e-12]
    leaver = int(together[combination[together].argmin()])
    weights[basis] = np.maximum(held + steps.min() * combination, 0.0)
    weights[column] -= steps.min()
    weights[basis[leaver]] = 0.0
    _pivot(table, leaver, leaver, column)
    basis[leaver] = column


def _pivot(table: FloatArray, target: int, row: int, column: int) -> None:
    """Make `column` the unit vector of the row `target`, with the entry in `row` for pivot."""
    if row != target:
        table[[target, row]] = table[[row, target]]
    table[target] /= table[target, column]
    factors = table[:, column].copy()
    factors[target] = 0.0
    table -= factors[:, None] * table[target]


def _moments(points: FloatArray) -> FloatArray:
    """Rows of the d (d + 1) / 2 distinct entries of z z'."""
    row, column = np.triu_indices(points.shape[1])
    return points[:, row] * points[:, column]


def _rounded(numbers: FloatArray) -> FloatArray:
    return np.rint(numbers * _GRID) / _GRID
