"""Pairs from whose samples all other pairs follow, and what it costs to extrapolate from them.

In a linear MDP φ(s,a) = Σ_k c_k φ_k implies r(s,a) = Σ_k c_k r_k and P(s,a) = Σ_k c_k P_k. So K pairs whose features
φ_1, ..., φ_K span R^d tell everything, and errors at them grow by no more than the *extrapolation constant*
L = max_{s,a} Σ_k |c_k(s,a)|. Probabilities sum to 1, hence so do the c_k, and L ≥ 1.

* A *barycentric spanner* is a basis of d of the features with all |c_k| ≤ 1, so that L ≤ d. A greedy choice, and swaps
  as long as the volume grows by more than the factor 1 + 10⁻⁴, find one up to that factor [1]_.
* *Anchors* are the corners of the convex hull of all features. From them no error grows (c ≥ 0, so L = 1), but there
  may be many; if there are just d, they are the best spanner too. They are found one by one [2]_: each pair is compared
  with the hull of the corners known so far (non-negative least squares), and if it lies outside, the pair farthest in
  the direction of the difference is a new corner.

Both are properties of the span of the features, and are computed in orthonormal coordinates: no others matter. Of
several choices that are equally good but for rounding the first is made: the same pairs on every machine.

References
----------
.. [1] B. Awerbuch, R. Kleinberg. Online linear optimization and adaptive routing. J. Comput. Syst. Sci. 74, 2008.
.. [2] K. L. Clarkson. More output-sensitive geometric algorithms. FOCS 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, frozen
from bestpolicy._numerics.reproducible import one_thread, steady
from bestpolicy.design.whitening import row_chunks, squared_norms, well_conditioned
from bestpolicy.problem import Problem

_GROWTH = 1e-4
_INSIDE = 1e-9  # distance at which a feature counts as inside a hull; features have length √d on average
_TIE = 1e-11


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """Some pairs, and every pair as a combination of them.

    Attributes
    ----------
    problem : Problem
    pairs : int array (K,)
        The chosen pairs, flat indices in increasing order.
    coefficients : array (n, K)
        Of every allowed pair: features = coefficients @ features of the chosen ones.
    constant : float
        L, the largest sum of absolute coefficients.
    """

    problem: Problem
    pairs: IntArray
    coefficients: FloatArray
    constant: float

    def table(self, chosen: FloatArray) -> FloatArray:
        """Extend numbers (K,) at the chosen pairs to all, (S, A); -inf where the action is not allowed."""
        table = np.full(self.problem.mask.shape, -np.inf)
        table[self.problem.mask] = self.coefficients @ chosen
        return table


@lru_cache(maxsize=8)
def barycentric_spanner(problem: Problem) -> Extrapolation:
    """Choose d pairs such that none needs a coefficient larger than 1 (up to 10⁻⁴); the corners if there are just d."""
    with one_thread():
        points = _orthonormal(problem)
        chosen, coefficients = _spanner(points)
        if coefficients.min() < -_INSIDE:  # else these are the corners
            corners = _corners(points, at_most=points.shape[1])
            if corners is not None:
                chosen, coefficients = corners, _in_basis(points, corners)
    return _extrapolation(problem, chosen, coefficients)


@lru_cache(maxsize=8)
def anchors(problem: Problem) -> Extrapolation:
    """Choose the corners of the convex hull of the features: all coefficients are ≥ 0, and L = 1."""
    with one_thread():
        points = _orthonormal(problem)
        chosen, coefficients = _spanner(points)
        if coefficients.min() < -_INSIDE:
            corners = _corners(points, at_most=len(points))
            assert corners is not None
            hull = np.ascontiguousarray(points[corners].T)
            chosen, coefficients = corners, np.zeros((len(points), len(corners)))
            for row in np.setdiff1d(np.arange(len(points)), corners):
                coefficients[row] = _nearest(hull, points[row])[0]
    coefficients = np.maximum(coefficients, 0.0)
    coefficients[chosen] = np.eye(len(chosen))
    return _extrapolation(problem, chosen, coefficients / coefficients.sum(axis=1, keepdims=True))


def why_no_anchors(problem: Problem) -> str:
    """Say why anchors are of no use; empty if they are: all features are corners, and more than a basis of them."""
    corners = len(anchors(problem).pairs)
    if corners == problem.dimension or corners < len(np.unique(problem.pair_features, axis=0)):
        return ""
    return f"it has no anchors, as all {corners} pairs are corners of the convex hull of the features"


def _extrapolation(problem: Problem, chosen: IntArray, coefficients: FloatArray) -> Extrapolation:
    order = np.argsort(chosen)
    ordered = np.ascontiguousarray(coefficients[:, order])
    constant = max(1.0, float(np.abs(ordered).sum(axis=1).max()))
    # All coefficients of a simplex are ≥ 0 and sum to 1 but for rounding, which must not make an error grow.
    constant = 1.0 if constant <= 1 + len(chosen) * _INSIDE else constant
    return Extrapolation(problem, frozen(problem.pairs[chosen[order]]), frozen(ordered), constant)


def _orthonormal(problem: Problem) -> FloatArray:
    """Features of the allowed pairs in coordinates where their second moment is the identity, (n, d)."""
    attainable = 4 * problem.dimension**1.5 * np.finfo(np.float64).eps
    rows, transform = well_conditioned(problem.pair_features, precision=max(1e-12, attainable))
    points: FloatArray = rows @ transform * np.sqrt(len(rows))
    return points


def _in_basis(points: FloatArray, chosen: IntArray) -> FloatArray:
    coefficients: FloatArray = np.linalg.solve(points[chosen].T, points.T).T.astype(np.float64)
    coefficients[chosen] = np.eye(len(chosen))
    return coefficients


def _spanner(points: FloatArray) -> tuple[IntArray, FloatArray]:
    """Rows of locally largest volume, and the coefficients of all rows."""
    chosen = _pivots(points)
    coefficients = _in_basis(points, chosen)
    while True:
        row, column = np.unravel_index(steady(np.abs(coefficients)).argmax(), coefficients.shape)
        pivot = coefficients[row, column]
        if abs(pivot) <= 1 + _GROWTH:
            return chosen, _in_basis(points, chosen)
        chosen[column] = row
        change = coefficients[row].copy()
        change[column] -= 1.0
        coefficients = coefficients - np.outer(coefficients[:, column] / pivot, change)


def _pivots(points: FloatArray) -> IntArray:
    """Rows each of which is the farthest from the span of those before it (QR with pivoting)."""
    left = points.copy()
    chosen = np.empty(points.shape[1], dtype=np.int64)
    for k in range(len(chosen)):
        chosen[k] = steady(squared_norms(left)).argmax()
        direction = left[chosen[k]] / np.linalg.norm(left[chosen[k]])
        for chunk in row_chunks(*points.shape):
            left[chunk] -= np.outer(left[chunk] @ direction, direction)
    return chosen


def _nearest(hull: FloatArray, point: FloatArray) -> tuple[FloatArray, float]:
    """Weights ≥ 0 of the columns whose sum is nearest to the point, and how far from it that is."""
    from scipy.optimize import nnls  # it takes as long to load as all of NumPy

    weights, distance = nnls(hull, point)
    return weights, float(distance)


def _corners(points: FloatArray, at_most: int) -> IntArray | None:
    """Rows that are corners of the convex hull; None if there are more than `at_most`."""
    lengths = squared_norms(points)
    corners = _obvious_corners(points)
    hull = np.ascontiguousarray(points[corners].T)
    for row in np.setdiff1d(np.arange(len(points)), corners):
        while len(corners) <= at_most:
            weights, distance = _nearest(hull, points[row])
            if distance <= _INSIDE:
                break
            direction = (points[row] - hull @ weights) / distance
            corners.append(_corner_towards(points, lengths, direction, corners, int(row)))
            hull = np.ascontiguousarray(points[corners].T)
    return np.array(corners, dtype=np.int64) if len(corners) <= at_most else None


def _obvious_corners(points: FloatArray) -> list[int]:
    """Rows that no other row surpasses in their own direction from the centre; the longest row is one of them."""
    centre = points.mean(axis=0)
    corners = []
    for chunk in row_chunks(len(points), len(points)):
        reach = (points[chunk] - centre) @ points.T
        rows = np.arange(len(points))[chunk]
        reach[np.arange(len(rows)), rows] -= (
            _TIE  # a duplicate, or a row of the same face, is not surpassed for certain
        )
        corners += rows[reach.argmax(axis=1) == rows].tolist()
    farthest = int(squared_norms(points - centre).argmax())
    return corners or [farthest]


def _corner_towards(
    points: FloatArray, lengths: FloatArray, direction: FloatArray, known: list[int], otherwise: int
) -> int:
    """Return the row farthest in a direction; of several such rows, which form a face, the longest is a corner."""
    reach = points @ direction
    face = np.flatnonzero(reach >= reach.max() - _TIE)
    corner = int(face[lengths[face].argmax()])
    return otherwise if corner in known else corner  # rounding: it lies outside all the same
