"""Well conditioned coordinates for a set of feature vectors.

Optimal designs and leverages do not change when every feature vector x is replaced by z = x T with an invertible
T. The solver is free to choose T, and its arithmetic is only as good as that choice. The choice made here:

1. Columns are divided by a power of two near their largest entry, which costs no rounding and removes units.
2. T makes the Gram matrix of all rows the identity. Then, for every unit vector u, the n numbers (z_i . u)^2
   sum to 1 and their maximum is at least 1/n, so the information matrix of an optimal design has eigenvalues
   between 1/(n d) and 1. Double precision is ample from there on, whatever the features looked like.
3. Where T is so ill conditioned that x T would lose the digits that the tolerance asks for, the product is formed
   once with an error-free splitting [1]_, and the rows are replaced by it.

The rank is decided on columns of unit norm: a direction counts when its singular value exceeds
``RANK_TOLERANCE * d`` times the largest. Neither units nor the number of rows change the verdict.

References
----------
.. [1] K. Ozaki, T. Ogita, S. Oishi, S. M. Rump. Error-free transformations of matrix multiplication by using fast
   routines of matrix multiplication and its applications. Numerical Algorithms 59, 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, solve_triangular, svdvals

from bestpolicy._numerics.sparsity import axes_of
from bestpolicy.errors import ConvergenceError, InvalidInput

Floats: TypeAlias = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
RANK_TOLERANCE = 16 * EPS
# Above this ratio of eigenvalues a Gram matrix no longer tells rank from rounding, and QR has to be asked.
_SAFE_GRAM_CONDITION = 1e10
_CHUNK_ELEMENTS = 1 << 17


def as_feature_matrix(features: ArrayLike) -> Floats:
    """Return `features` as a finite float64 matrix of shape (n, d), or say what is wrong with it."""
    given = np.asarray(features)
    if given.dtype.kind not in "biuf":
        raise InvalidInput(f"features must be an (n, d) array of real numbers. Got entries of type {given.dtype}.")
    matrix = np.ascontiguousarray(given, dtype=np.float64)
    if given.ndim != 2 or 0 in given.shape:
        raise InvalidInput(
            f"features must have shape (n, d) with n >= 1 rows and d >= 1 columns. Got shape {given.shape}. "
            "Reshape features (S, A, d) with features.reshape(-1, d)."
        )
    # NaN and inf survive min and max, so two cheap reductions stand in for a test of every entry.
    if not (np.isfinite(matrix.max()) and np.isfinite(matrix.min())):
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise InvalidInput(
            f"features must be finite. Got {matrix[row, column]} in row {row}, column {column}. "
            "Remove that row or mend the feature map."
        )
    return matrix


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Slices that cut `rows` into pieces small enough to stay in the processor's cache."""
    size = max(64, _CHUNK_ELEMENTS // columns)
    return (slice(start, start + size) for start in range(0, rows, size))


def squared_norms(rows: Floats) -> Floats:
    """Squared Euclidean norms (n,) of the rows of an (n, d) matrix."""
    norms: Floats = np.einsum("ij,ij->i", rows, rows)
    return norms


def column_scales(features: Floats) -> Floats:
    """Powers of two (d,) near the largest magnitude of each column; 1 for a column of zeros."""
    largest = np.maximum(features.max(axis=0), -features.min(axis=0))
    exponents = np.frexp(largest)[1].clip(-1000, 1000)
    return np.where(largest > 0, np.ldexp(1.0, exponents), 1.0)


def equilibrated_factor(features: Floats, scales: Floats) -> tuple[Floats, Floats]:
    """Upper triangular R (d, d) and column norms (d,) such that features = Q R diag(norms), columns of R of norm 1.

    The R factor is accumulated chunk by chunk, so memory stays bounded. Columns of zeros keep norm 1.
    """
    dimension = features.shape[1]
    factor = np.zeros((0, dimension))
    for chunk in row_chunks(len(features), dimension):
        factor = qr(np.vstack((factor, features[chunk] / scales)), mode="r", check_finite=False)[0][:dimension]
    factor = np.vstack((factor, np.zeros((dimension - len(factor), dimension))))
    norms = np.sqrt(squared_norms(factor.T))
    norms[norms == 0] = 1.0
    return factor / norms, norms * scales


def numerical_rank(singular_values: Floats) -> int:
    """Number of singular values, of unit-norm columns, that rounding cannot explain."""
    threshold = RANK_TOLERANCE * len(singular_values) * singular_values.max()
    return int(np.count_nonzero(singular_values > threshold))


def _from_axes(features: Floats, scales: Floats) -> tuple[Floats, float] | None:
    """Whiten features that each lie on an axis, which takes no more than scales; None for all others."""
    axes = axes_of(features)
    if axes is None:
        return None
    axis, lengths = axes
    squares = np.bincount(axis, (lengths / scales[axis]) ** 2, minlength=features.shape[1])
    _require_rank(int(np.count_nonzero(squares)), features.shape[1])
    return np.diag(1 / (np.sqrt(squares) * scales)), 1.0


def _from_gram(features: Floats, scales: Floats) -> tuple[Floats, float] | None:
    """Whiten by a Cholesky factor of the Gram matrix; None where its conditioning forbids that."""
    gram = np.zeros((features.shape[1],) * 2)
    for chunk in row_chunks(*features.shape):
        scaled = features[chunk] / scales
        gram += scaled.T @ scaled
    norms = np.sqrt(np.diag(gram))
    if norms.min() == 0:
        return None
    gram /= np.outer(norms, norms)
    eigenvalues = np.linalg.eigvalsh(gram)
    if eigenvalues[0] * _SAFE_GRAM_CONDITION < eigenvalues[-1]:
        return None
    inverse = solve_triangular(np.linalg.cholesky(gram), np.eye(len(gram)), lower=True)
    transform = np.ascontiguousarray((inverse / (norms * scales)).T)
    return transform, float(np.sqrt(eigenvalues[-1] / eigenvalues[0]))


def _from_qr(features: Floats, scales: Floats) -> tuple[Floats, float]:
    """Whiten by a QR factorisation, which also decides the rank."""
    factor, norms = equilibrated_factor(features, scales)
    singular_values = svdvals(factor)
    dimension = features.shape[1]
    _require_rank(numerical_rank(singular_values), dimension)
    transform = solve_triangular(factor, np.eye(dimension)) / norms[:, None]
    return transform, float(singular_values[0] / singular_values[-1])


def _require_rank(rank: int, dimension: int) -> None:
    if rank < dimension:
        raise InvalidInput(
            f"features have rank {rank}, expected {dimension} (one per column). "
            "Use features @ rank_reduction(features) instead: it has full rank and spans the same linear functions."
        )


def whitening_transform(features: Floats) -> tuple[Floats, float]:
    """Return T (d, d) with T' X'X T = I for the features X, and the condition number of X with unit-norm columns.

    Raises
    ------
    InvalidInput
        If the rank of the features is below d.
    """
    scales = column_scales(features)
    return _from_axes(features, scales) or _from_gram(features, scales) or _from_qr(features, scales)


def well_conditioned(features: Floats, precision: float) -> tuple[Floats, Floats]:
    """Rows (n, d) and T (d, d): rows @ T is whitened, and plain arithmetic gives it to the relative `precision`.

    The rows are the features themselves or, where their conditioning demands it, the features times an invertible
    matrix.
    """
    for _ in range(3):
        transform, condition = whitening_transform(features)
        # Row by row, the rounding of x T is at most d eps |x| |T|, and | |x| |T| | <= sqrt(d) condition |x T|.
        if features.shape[1] ** 1.5 * EPS * condition <= precision:
            return features, transform
        features = _accurate_product(features, transform)
    raise ConvergenceError(
        f"the features are too ill conditioned (condition number {condition:.1e} after whitening) for a design "
        f"to be certified to {precision:.1e}. Ask for a larger tolerance, or use features of a smaller dimension."
    )


def _accurate_product(left: Floats, right: Floats) -> Floats:
    """Product of (n, d) and (d, d) matrices with about 16 more bits than float64 arithmetic gives.

    Each factor is cut into slices of so few bits that the products of leading slices are exact in float64 [1].
    """
    scales = column_scales(left)
    right = right * scales[:, None]
    bits = (53 - int(np.ceil(np.log2(len(right)))) - 1) // 2
    right_slices = [piece.T for piece in _slices(right.T, bits)]
    product = np.empty((len(left), right.shape[1]))
    for chunk in row_chunks(*left.shape):
        a = _slices(left[chunk] / scales, bits)
        b = right_slices
        small = a[0] @ b[2] + a[1] @ b[1] + a[2] @ b[0]
        product[chunk] = a[0] @ b[0] + (a[0] @ b[1] + a[1] @ b[0] + small)
    return product


def _slices(matrix: Floats, bits: int) -> list[Floats]:
    """Three matrices that add up to `matrix`; in the first two every row fits on a grid of `bits` bits."""
    slices, rest = [], matrix
    for _ in range(2):
        exponents = np.frexp(np.abs(rest).max(axis=1, keepdims=True))[1]
        # Adding and subtracting this number rounds to a multiple of 2^(exponent - bits).
        anchor = np.ldexp(0.75, exponents + 53 - bits)
        leading = (rest + anchor) - anchor
        slices.append(leading)
        rest = rest - leading
    return [*slices, rest]
