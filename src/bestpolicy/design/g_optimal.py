"""G-optimal designs: which feature vectors to sample so that every prediction is accurate.

Given feature vectors x_1, ..., x_n in R^d, weights w on the simplex have the information matrix
Lambda(w) = sum_i w_i x_i x_i' and the leverages g_i(w) = x_i' Lambda(w)^-1 x_i. Least squares from t samples drawn
by w predicts x_i . theta with a variance proportional to g_i(w) / t. A *G-optimal* design minimises max_i g_i(w).

Kiefer and Wolfowitz [1]_: the minimum is d, and it is attained where log det Lambda(w) is largest (D-optimality).
Since sum_i w_i g_i(w) = d for every w, the number max_i g_i(w) >= d that comes with a design is its own
certificate. A design with max_i g_i <= (1 + eta) d is optimal up to the factor 1 + eta, and this is all that the
theorems ask of it. Some optimal design has at most d (d + 1) / 2 points.

The method, each step in a file of its own:

1. `conditioning`: coordinates in which rounding does no harm.
2. `column_generation`: weights on a small working set of rows; all rows are then asked whether they should join it.
3. `interior_point`: the weights on the working set, in about ten Newton steps.
4. `support`: at most d (d + 1) / 2 points with the same information matrix, their weights rounded to a grid: the
   same ones on every processor.

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
from numpy.typing import ArrayLike, NDArray

from bestpolicy._numerics.quantised import grid_shares
from bestpolicy._numerics.sparsity import axes_of
from bestpolicy._numerics.threads import one_thread
from bestpolicy.design.column_generation import Frame, Indices, initial_working_set, optimal_weights
from bestpolicy.design.conditioning import Floats, as_feature_matrix, well_conditioned
from bestpolicy.design.support import caratheodory, drop_negligible, moment_count
from bestpolicy.errors import ConvergenceError, InvalidInput

_TIGHTEST, _LOOSEST = 1e-10, 1.0


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

    indices: NDArray[np.int64]
    weights: NDArray[np.float64]
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
    if not _TIGHTEST <= tolerance <= _LOOSEST:
        raise InvalidInput(f"tolerance must be between {_TIGHTEST:g} and {_LOOSEST:g}. Got {tolerance!r} instead.")
    try:
        with one_thread():
            return _certified_design(matrix, tolerance)
    except np.linalg.LinAlgError as error:
        raise ConvergenceError(
            f"rounding made an information matrix singular before the tolerance {tolerance:g} was reached. "
            "Ask for a larger tolerance, or remove features that are nearly linearly dependent."
        ) from error


def _certified_design(features: Floats, tolerance: float) -> Design:
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


def _design_on_axes(features: Floats, tolerance: float) -> Design | None:
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


def _reduced_support(frame: Frame, working: Indices, weights: Floats, share: float) -> tuple[Indices, Floats]:
    """At most d (d + 1) / 2 rows with the information matrix of the adopted design, up to the `share` of it."""
    kept = drop_negligible(frame.points(working), weights, share)
    indices, weights = working[kept], weights[kept]
    if len(indices) > moment_count(frame.dimension):
        frame.adopt(indices, weights)
        weights = caratheodory(frame.points(indices), weights)
        indices, weights = indices[weights > 0], weights[weights > 0]
    return indices, weights / weights.sum()


def _design(
    indices: Indices, weights: Floats, worst_leverage: float, worst_index: int, tolerance: float, dimension: int
) -> Design:
    order = np.argsort(indices)
    indices, weights = indices[order], weights[order]
    indices.flags.writeable = weights.flags.writeable = False
    return Design(indices, weights, worst_leverage, worst_index, tolerance, dimension)
