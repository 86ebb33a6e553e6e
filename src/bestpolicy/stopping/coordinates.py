"""Coordinates to certify in: those of the algorithm, to the last digit.

The truth is linear in the features that the user gave. An algorithm works in other coordinates, φ' = φT, which it
got by multiplying in double precision. If the features are badly conditioned, digits cancel in that product: rows are
off by up to d·u·|φ||T|, at a condition number of 10¹¹ in the fifth digit, and in features that are off like that the
truth is *not* linear. Least squares then has a bias that no number of samples removes and no ellipsoid covers.

So the rules multiply again. Any T will do, as long as it is known: one with φT ≈ φ' is found by least squares, and the
product is formed as accurately as if there were half as many digits more [1]_. What is left is bounded:

    ‖φ'(s,a) - φ(s,a)T‖ ≤ `error`        at all allowed pairs, for the φ' that are used from then on.

*Product.* Rows of the left and columns of the right factor are cut into slices of so few bits that products of leading
slices are exact; only their sum is rounded. With β bits a slice, α and b the largest entries of a row and a column,

    |error of an entry| ≤ ε|entry| + 32 d·ε·2^-β·α·b,        ε = 2⁻⁵².

*All-ones.* Rows of transition probabilities sum to 1, so the all-ones function is linear in the features; in features
that were rounded it is so up to some `ones`, which is measured. In such features transitions and rewards are linear up
to as much, too: expectations of functions with values in [0, 1] are taken to be off by at most `ones`.

References
----------
.. [1] K. Ozaki, T. Ogita, S. Oishi, S. M. Rump. Error-free transformations of matrix multiplication by using fast
   routines of matrix multiplication and its applications. Numerical Algorithms 59, 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log2

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, frozen
from bestpolicy._numerics.sparsity import axes_of
from bestpolicy._numerics.threads import one_thread
from bestpolicy.problem import Problem

EPS = 2.0**-52  # twice the largest relative error of one operation: room for all products of errors
_FAR = 1e-3  # coordinates that are further than this from any linear map of the features are none


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A problem in coordinates that are known well.

    Attributes
    ----------
    problem : Problem
    transform : array (d, d), optional
        T, from the user's features to those of `problem`; None if the algorithm's own is used.
    longest : float
        max ‖φ'‖ over the allowed pairs.
    error : float
        max ‖φ' - φT‖; inf if the coordinates are not a linear map of the user's.
    moved : float
        Largest distance of φ' from what the algorithm had computed.
    ones : float
        By how much the all-ones function misses the span of the features, at most.
    """

    problem: Problem
    transform: FloatArray | None
    longest: float
    error: float
    moved: float
    ones: float


def coordinates_of(problem: Problem) -> Coordinates:
    """Return the accurate coordinates of a problem; they are computed once."""
    known: Coordinates | None = problem.__dict__.get("_coordinates")
    if known is None:
        with one_thread():
            known = _computed(problem)
        known.problem.__dict__["_coordinates"] = replace(known, moved=0.0)
        problem.__dict__["_coordinates"] = known
    return known


def _computed(problem: Problem) -> Coordinates:
    source, own = problem.source, problem.pair_features
    if source is problem:
        return Coordinates(problem, None, _longest(own), 0.0, 0.0, _misfit_of_ones(own))
    given = source.pair_features
    scaled = _scaling_error(given, own)
    if scaled is not None:
        return Coordinates(problem, None, _longest(own), scaled * _longest(own), 0.0, _misfit_of_ones(own))
    transform = _fitted(given, own)
    mended, errors = accurate_product(given, transform)
    length = max(1.0, _longest(mended))
    if _longest(own) <= 1 < length:  # who relies on ‖φ'‖ ≤ 1 has to find it still
        transform = transform / (length * (1 + 4 * EPS))
        mended, errors = accurate_product(given, transform)
    moved = _longest(mended - own)
    if not moved <= _FAR * _longest(own):
        return Coordinates(problem, None, _longest(own), inf, 0.0, inf)
    features = problem.features.copy()
    features[problem.mask] = mended
    return Coordinates(
        problem.with_features(frozen(features)),
        frozen(transform),
        _longest(mended),
        float(errors.max()),
        moved,
        _misfit_of_ones(mended),
    )


def _longest(rows: FloatArray) -> float:
    return float(np.sqrt(np.einsum("nd,nd->n", rows, rows).max()) * (1 + rows.shape[1] * EPS))


def _scaling_error(given: FloatArray, own: FloatArray) -> float | None:
    """Relative error of `own` if it is `given` with other scales of the axes that its rows lie on; None if not."""
    axes, others = axes_of(given), axes_of(own)
    if axes is None or others is None or not np.array_equal(axes[0], others[0]) or not axes[1].all():
        return None
    lowest, highest = _extremes(axes[0], own.sum(axis=1) / given.sum(axis=1), given.shape[1])
    spread = float(((highest - lowest) / np.abs(highest + lowest)).max())
    return spread + 2 * EPS if spread <= 8 * EPS else None


def _extremes(axis: IntArray, numbers: FloatArray, dimension: int) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest number of every axis that occurs."""
    lowest, highest = np.full(dimension, inf), np.full(dimension, -inf)
    np.minimum.at(lowest, axis, numbers)
    np.maximum.at(highest, axis, numbers)
    used = lowest <= highest
    return lowest[used], highest[used]


def _fitted(given: FloatArray, own: FloatArray) -> FloatArray:
    """T (d, d) with given · T ≈ own, as well as double precision finds it."""
    scales = np.abs(given).max(axis=0)
    basis, triangle = np.linalg.qr(given / scales)
    transform = np.linalg.solve(triangle, basis.T @ own)
    # What is as small as rounding is zero in the algorithm's own transform, and features without signs stay so.
    transform[np.abs(transform) <= 64 * len(transform) * EPS * np.abs(own).max()] = 0.0
    unscaled: FloatArray = transform / scales[:, None]
    return unscaled


def _misfit_of_ones(rows: FloatArray) -> float:
    """max |1 - rows·v| for a good v, with what rounding hides of it."""
    count, dimension = rows.shape
    axes = axes_of(rows)
    if axes is not None:
        # One entry a row: the best constant of an axis is the inverse of the middle of its entries.
        low, high = _extremes(axes[0], rows.sum(axis=1), dimension)
        return float(np.where(low * high > 0, (high - low) / np.abs(high + low), 1.0).max()) + 4 * EPS
    gram, vector, rest = rows.T @ rows, np.zeros(dimension), np.ones(count)
    try:
        for _ in range(3):
            vector = vector + np.linalg.solve(gram, rows.T @ rest)
            rest = 1 - rows @ vector
    except np.linalg.LinAlgError:
        return inf
    size = np.abs(rows) @ np.abs(vector)
    return float((np.abs(rest) + (dimension + 2) * EPS * (1 + size)).max())


def accurate_product(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the product of (n, d) and (d, k) matrices, and bounds (n,) on the Euclidean error of its rows."""
    dimension = left.shape[1]
    # Units of the columns cancel; powers of two do so exactly.
    exponents = np.frexp(np.abs(left).max(axis=0))[1]
    left, right = np.ldexp(left, -exponents), np.ldexp(right, exponents[:, None])
    bits = (52 - ceil(log2(max(dimension, 2)))) // 2
    a, b = _slices(left, bits), [piece.T for piece in _slices(right.T, bits)]
    small = a[1] @ b[1] + (a[0] @ b[2] + a[2] @ b[0]) + (a[1] @ b[2] + a[2] @ b[1]) + a[2] @ b[2]
    product = a[0] @ b[0] + ((a[0] @ b[1] + a[1] @ b[0]) + small)
    sizes = np.abs(left).max(axis=1) * float(np.linalg.norm(np.abs(right).max(axis=0)))
    errors = EPS * np.sqrt((product**2).sum(axis=1)) + 32 * dimension * EPS * 2.0**-bits * sizes
    return product, errors


def _slices(matrix: FloatArray, bits: int) -> list[FloatArray]:
    """Three matrices with exactly the given sum; rows of the first two lie on grids of `bits` bits."""
    slices, rest = [], matrix
    for _ in range(2):
        exponents = np.frexp(np.abs(rest).max(axis=1, keepdims=True))[1]
        anchor = np.ldexp(0.75, exponents + 53 - bits)  # adding and subtracting it rounds to the grid
        leading = (rest + anchor) - anchor
        slices.append(leading)
        rest = rest - leading
    return [*slices, rest]
