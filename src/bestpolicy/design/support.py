"""Fewer support points for the same information matrix.

Two reductions, both of which leave M(w) = sum_i w_i z_i z_i' all but unchanged:

* Dropping points of weight so small that, together, they hold a share rho of the trace of M^-1 M: what remains is at
  least (1 - rho) M, so no leverage grows by more than the factor 1 / (1 - rho).
* Caratheodory's theorem. M has p = d (d + 1) / 2 entries. Among more than p points there is a combination of the
  matrices z_i z_i' that vanishes; moving the weights along it until the first one is zero removes a point and keeps M.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from bestpolicy.design.conditioning import Floats, squared_norms


def moment_count(dimension: int) -> int:
    """Number d (d + 1) / 2 of distinct entries of an information matrix: an optimal design needs no more points."""
    return dimension * (dimension + 1) // 2


def drop_negligible(points: Floats, weights: Floats, share: float) -> NDArray[np.int64]:
    """Points (k,) that remain when the lightest ones, holding at most `share` of the trace, are dropped.

    Parameters
    ----------
    points : ndarray, shape (m, d)
        Points in coordinates where M(w) is the identity.
    weights : ndarray, shape (m,)
        Nonnegative weights.
    share : float
        Bound on the sum of w_i |z_i|^2 over the points that are dropped.
    """
    traces = weights * squared_norms(points)
    order = np.argsort(traces, kind="stable")
    negligible = np.searchsorted(np.cumsum(traces[order]), share, side="right")
    return np.sort(order[negligible:])


def caratheodory(points: Floats, weights: Floats) -> Floats:
    """Weights (m,), at most d (d + 1) / 2 of them positive, with the same M(w).

    Points enter in batches, so that the null spaces stay small when m is far above d (d + 1) / 2.
    """
    weights = weights.copy()
    limit = moment_count(points.shape[1])
    moments = _moments(points)
    batch = max(32, limit // 8)
    active = np.arange(min(limit, len(weights)))
    for start in range(limit, len(weights), batch):
        active = np.append(active, np.arange(start, min(start + batch, len(weights))))
        weights[active] = _eliminate(moments[active], weights[active], limit)
        active = active[weights[active] > 0]
    return weights


def _moments(points: Floats) -> Floats:
    """Rows of the d (d + 1) / 2 distinct entries of z z', off-diagonal ones times sqrt(2)."""
    row, column = np.triu_indices(points.shape[1])
    return points[:, row] * points[:, column] * np.where(row == column, 1.0, np.sqrt(2.0))


def _eliminate(moments: Floats, weights: Floats, limit: int) -> Floats:
    """Set all but `limit` weights to zero without changing weights @ moments."""
    null_space = _null_space(moments)
    for last in range(null_space.shape[1] - 1, -1, -1):
        direction = null_space[:, last]
        # Either sign of the direction empties a point; the larger pivot keeps the elimination stable.
        pivot = max(_first_to_vanish(weights, direction), _first_to_vanish(weights, -direction))[1]
        weights = np.maximum(weights - weights[pivot] / direction[pivot] * direction, 0.0)
        weights[pivot] = 0.0
        # The directions that remain must leave the emptied point alone.
        null_space[:, :last] -= np.outer(direction, null_space[pivot, :last] / direction[pivot])
        null_space[pivot] = 0.0
    return weights


def _first_to_vanish(weights: Floats, direction: Floats) -> tuple[float, int]:
    """Pivot and index of the first weight to reach zero when the direction is subtracted."""
    falling = np.flatnonzero(direction > 0)
    if len(falling) == 0:
        return 0.0, 0
    index = falling[np.argmin(weights[falling] / direction[falling])]
    return float(direction[index]), int(index)


def _null_space(moments: Floats) -> Floats:
    """Orthonormal directions (m, m - p) along which weights can move without changing weights @ moments."""
    reflectors, scalars, _, _ = lapack.dgeqrf(moments)
    count, limit = moments.shape
    last = np.zeros((count, count - limit), order="F")
    last[limit:] = np.eye(count - limit)
    null_space: Floats = lapack.dormqr("L", "N", reflectors, scalars, last, 64 * count)[0]
    return null_space
