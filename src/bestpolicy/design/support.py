"""Fewer support points for the same information matrix.

Two reductions, both of which leave M(w) = sum_i w_i z_i z_i' all but unchanged:

* Dropping points of weight so small that, together, they hold a share rho of the trace of M^-1 M: what remains is at
  least (1 - rho) M, so no leverage grows by more than the factor 1 / (1 - rho).
* Caratheodory's theorem. M has p = d (d + 1) / 2 entries. Among more than p points there is a combination of the
  matrices z_i z_i' that vanishes; moving the weights along it until the first one is zero removes a point and keeps M.
  The combinations are read off the reduced echelon form of the matrices, as in the simplex method.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bestpolicy.design.conditioning import Floats, squared_norms

_GRID = 2.0**32
_INDEPENDENT = 1e-6  # what is left of a matrix z z' that those before it do not combine to


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
    """Weights (m,), at most d (d + 1) / 2 of them positive, with the same M(w), up to a rounding of 1e-9.

    Symmetric sets of points have many such weights. Points and weights are rounded to a grid, and rows are combined
    number by number, so that every processor takes the same ones.
    """
    table = _rounded(_moments(_rounded(points)).T)
    found = _rounded(weights)
    basis: list[int] = []
    for column in range(table.shape[1]):
        if len(basis) < len(table):
            free = np.abs(table[len(basis) :, column])
            row = len(basis) + int(free.argmax())
            if free.max() > _INDEPENDENT:
                _pivot(table, len(basis), row, column)
                basis.append(column)
                continue
        _move_to_basis(table, found, basis, column)
    return found


def _move_to_basis(table: Floats, weights: Floats, basis: list[int], column: int) -> None:
    """Empty the point `column`, a combination of those in the basis, or one of these in exchange for it."""
    combination = table[: len(basis), column].copy()
    own = weights[basis]
    # Weight that leaves the column arrives in the basis as its combination; where that is negative it may run out.
    falling = np.flatnonzero(combination < -_INDEPENDENT)
    steps = own[falling] / -combination[falling]
    if len(steps) == 0 or steps.min() >= weights[column]:
        weights[basis] = np.maximum(own + weights[column] * combination, 0.0)
        weights[column] = 0.0
        return
    # Among those that run out together, the largest pivot keeps the elimination stable.
    together = falling[steps <= steps.min() + 1e-12]
    leaver = int(together[combination[together].argmin()])
    weights[basis] = np.maximum(own + steps.min() * combination, 0.0)
    weights[column] -= steps.min()
    weights[basis[leaver]] = 0.0
    _pivot(table, leaver, leaver, column)
    basis[leaver] = column


def _pivot(table: Floats, target: int, row: int, column: int) -> None:
    """Make `column` the unit vector of the row `target`, with the entry in `row` for pivot."""
    if row != target:
        table[[target, row]] = table[[row, target]]
    table[target] /= table[target, column]
    factors = table[:, column].copy()
    factors[target] = 0.0
    table -= factors[:, None] * table[target]


def _moments(points: Floats) -> Floats:
    """Rows of the d (d + 1) / 2 distinct entries of z z'."""
    row, column = np.triu_indices(points.shape[1])
    return points[:, row] * points[:, column]


def _rounded(numbers: Floats) -> Floats:
    return np.rint(numbers * _GRID) / _GRID
