"""Coordinates for features: in which arithmetic is accurate, in which the theorems' norms hold, of full rank.

Linear models do not care about coordinates: x . theta = (x T) . (T^-1 theta). Two others do.

*The theorems* assume norms: |phi| <= 1, |theta| <= sqrt(d) and |mu' V| <= sqrt(d) max|V|. Nobody has to be asked for
them. With a design w whose largest leverage is sigma <= (1 + eta) d, put

    phi' = Lambda(w)^{-1/2} phi / sqrt(sigma),        theta' = sqrt(sigma) Lambda(w)^{1/2} theta.

Then |phi'|^2 = leverage / sigma <= 1, and |theta'|^2 = sigma sum_k w_k (phi_k . theta)^2 <= (1 + eta) d max r^2 for
rewards r = phi . theta; the same holds for mu' V in place of theta. Any square root of Lambda^-1 will do. The one
used here is the inverse of a triangular factor, whose accuracy does not depend on the units of the columns.

*The solver* of designs is only as accurate as its coordinates z = x T:

1. Columns are divided by a power of two near their largest entry, which costs no rounding and removes units.
2. T makes the Gram matrix of all rows the identity. Then, for every unit vector u, the n numbers (z_i . u)^2
   sum to 1 and their maximum is at least 1/n, so the information matrix of an optimal design has eigenvalues
   between 1/(n d) and 1. Double precision is ample from there on, whatever the features looked like.
3. Where T is so ill conditioned that x T would lose the digits that the tolerance asks for, the product is formed
   once with more digits (`accurate_product`), and the rows are replaced by it.

The rank is decided on columns of unit norm: a direction counts when its singular value exceeds
``RANK_TOLERANCE * d`` times the largest. Neither units nor the number of rows change the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky as cholesky_factor
from scipy.linalg import lu, qr, solve_triangular, svdvals
from scipy.sparse import issparse

from bestpolicy._numerics.arrays import FloatArray, Matrix, as_numbers, axes_of, dense, diagonal_of, enough_memory
from bestpolicy._numerics.inputs import shown
from bestpolicy._numerics.reproducible import EPS, accurate_product
from bestpolicy.errors import ConvergenceError, InvalidInput

if TYPE_CHECKING:
    from bestpolicy.design.g_optimal import Design

RANK_TOLERANCE = 16 * EPS
# Above this ratio of eigenvalues a Gram matrix no longer tells rank from rounding, and QR has to be asked.
_SAFE_GRAM_CONDITION = 1e10
_CHUNK_ELEMENTS = 1 << 17


def as_feature_matrix(features: ArrayLike) -> FloatArray:
    """Return `features` as a finite float64 matrix of shape (n, d), or say what is wrong with it."""
    given = as_numbers("features", features)
    with enough_memory("a copy of features", 8 * given.size):
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


def squared_norms(rows: FloatArray) -> FloatArray:
    """Squared Euclidean norms (n,) of the rows of an (n, d) matrix."""
    norms: FloatArray = np.einsum("ij,ij->i", rows, rows)
    return norms


def column_scales(features: FloatArray) -> FloatArray:
    """Powers of two (d,) near the largest magnitude of each column; 1 for a column of zeros."""
    largest = np.maximum(features.max(axis=0), -features.min(axis=0))
    exponents = np.frexp(largest)[1].clip(-1000, 1000)
    return np.where(largest > 0, np.ldexp(1.0, exponents), 1.0)


def equilibrated_factor(features: FloatArray, scales: FloatArray) -> tuple[FloatArray, FloatArray]:
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


def numerical_rank(singular_values: FloatArray) -> int:
    """Number of singular values, of unit-norm columns, that rounding cannot explain."""
    threshold = RANK_TOLERANCE * len(singular_values) * singular_values.max()
    return int(np.count_nonzero(singular_values > threshold))


def _from_axes(features: FloatArray, scales: FloatArray) -> tuple[FloatArray, float] | None:
    """Whiten features that each lie on an axis, which takes no more than scales; None for all others."""
    axes = axes_of(features)
    if axes is None:
        return None
    axis, lengths = axes
    squares = np.bincount(axis, (lengths / scales[axis]) ** 2, minlength=features.shape[1])
    _require_rank(int(np.count_nonzero(squares)), features.shape[1])
    return np.diag(1 / (np.sqrt(squares) * scales)), 1.0


def _from_gram(features: FloatArray, scales: FloatArray) -> tuple[FloatArray, float] | None:
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


def _from_qr(features: FloatArray, scales: FloatArray) -> tuple[FloatArray, float]:
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


def whitening_transform(features: FloatArray) -> tuple[FloatArray, float]:
    """Return T (d, d) with T' X'X T = I for the features X, and the condition number of X with unit-norm columns.

    Raises
    ------
    InvalidInput
        If the rank of the features is below d.
    """
    scales = column_scales(features)
    return _from_axes(features, scales) or _from_gram(features, scales) or _from_qr(features, scales)


def well_conditioned(features: FloatArray, precision: float) -> tuple[FloatArray, FloatArray]:
    """Rows (n, d) and T (d, d): rows @ T is whitened, and plain arithmetic gives it to the relative `precision`.

    The rows are the features themselves or, where their conditioning demands it, the features times an invertible
    matrix.
    """
    for _ in range(3):
        transform, condition = whitening_transform(features)
        if diagonal_of(transform) is not None:  # one product for each entry, whatever the dimension
            return features, transform
        # Row by row, the rounding of x T is at most d eps |x| |T|, and | |x| |T| | <= sqrt(d) condition |x T|.
        if features.shape[1] ** 1.5 * EPS * condition <= precision:
            return features, transform
        chunks = row_chunks(*features.shape)
        features = np.concatenate([accurate_product(features[chunk], transform)[0] for chunk in chunks])
    raise ConvergenceError(
        f"the features are too ill conditioned (condition number {condition:.1e} after whitening) or too many (d = "
        f"{features.shape[1]}) for a design to be certified to {precision:.1e}. Ask for a larger tolerance, or use "
        "features of a smaller dimension."
    )


@dataclass(frozen=True, eq=False)
class Whitening:
    """Coordinates phi' = phi @ transform, with theta' chosen such that phi' . theta' = phi . theta.

    Attributes
    ----------
    transform : ndarray, shape (d, d)
        Matrix from the right for features.
    inverse : ndarray, shape (d, d)
        Its inverse.
    """

    transform: FloatArray
    inverse: FloatArray

    def features(self, features: ArrayLike) -> FloatArray:
        """Features (..., d) in the new coordinates."""
        given, scales = np.asarray(features, dtype=np.float64), self._scales
        return given @ self.transform if scales is None else given * scales

    @cached_property
    def _scales(self) -> FloatArray | None:
        """The transform, where it only changes the scales of the coordinates."""
        return diagonal_of(self.transform)

    def parameters(self, parameters: ArrayLike) -> FloatArray:
        """Parameters (..., d), such as theta or the rows of mu, in the new coordinates."""
        return np.asarray(parameters, dtype=np.float64) @ self.inverse.T


def whiten(features: ArrayLike, design: Design) -> Whitening:
    """Coordinates in which Lambda(w) is a multiple of the identity and no feature is longer than 1.

    Parameters
    ----------
    features : array_like, shape (n, d)
        Feature vectors that the design was made for.
    design : Design
        Weights on some of their rows.

    Raises
    ------
    InvalidInput
        If the design does not belong to these features.
    """
    if not all(hasattr(design, name) for name in ("dimension", "indices", "weights", "worst_leverage")):
        raise InvalidInput(f"design must be a Design. Got {shown(design)} instead.")
    matrix = as_feature_matrix(features)
    if matrix.shape[1] != design.dimension or design.indices.max() >= len(matrix):
        raise InvalidInput(
            f"the design is for features of dimension {design.dimension} with at least {design.indices.max() + 1} "
            f"rows. Got shape {matrix.shape}. Pass the features that the design was computed from."
        )
    scales = column_scales(matrix)
    root = _root(np.sqrt(design.weights)[:, None] * (matrix[design.indices] / scales))
    if not np.all(np.diag(root)):
        raise InvalidInput(
            "the rows of the design do not span R^d. Pass the features that the design was computed from."
        )
    diagonal = diagonal_of(root)
    inverse = solve_triangular(root, np.eye(design.dimension)) if diagonal is None else np.diag(1 / diagonal)
    unscaled = Whitening(inverse / scales[:, None], root * scales)
    # What the products give in floating point is what must not exceed 1, so that is what is measured.
    longest = np.sqrt(max(squared_norms(unscaled.features(matrix[chunk])).max() for chunk in row_chunks(*matrix.shape)))
    length = max(longest, np.sqrt(design.worst_leverage)) * (1 + 4 * design.dimension * EPS)
    return Whitening(unscaled.transform / length, unscaled.inverse * length)


def _root(rows: FloatArray) -> FloatArray:
    """Upper triangular R (d, d) with R'R = rows' rows and a diagonal that is not negative: there is one only."""
    axes = axes_of(rows)
    if axes is None:
        root = np.linalg.qr(rows, mode="r")
        return np.asarray(root * np.where(np.diag(root) < 0, -1.0, 1.0)[:, None])
    axis, lengths = axes
    return np.diag(np.sqrt(np.bincount(axis, lengths**2, minlength=rows.shape[1])))


def leverages(features: Matrix, gram: Matrix) -> FloatArray:
    """Leverages phi' G^-1 phi of all features, in pieces so that no second (n, d) array is needed.

    Parameters
    ----------
    features : array_like or sparse array, shape (n, d)
        Feature vectors phi.
    gram : array_like or sparse array, shape (d, d)
        Positive definite matrix G, for instance the Gram matrix of a sample or Lambda(w).

    Returns
    -------
    ndarray, shape (n,)
        The leverages.
    """
    matrix = features if issparse(features) else as_numbers("features", features).astype(np.float64, copy=False)
    square = gram if issparse(gram) else as_numbers("gram", gram).astype(np.float64, copy=False)
    if matrix.ndim != 2 or square.shape != (matrix.shape[1],) * 2:
        raise InvalidInput(
            f"features must have shape (n, d) and the matrix shape (d, d). Got {matrix.shape} and {square.shape}."
        )
    diagonal = diagonal_of(square)
    try:
        divided = _division_by_root(square, diagonal)
    except (np.linalg.LinAlgError, ValueError) as error:  # one that is not finite is no better
        raise InvalidInput(
            "the matrix must be positive definite. Sample pairs whose features span R^d, or use "
            "features @ rank_reduction(features)."
        ) from error
    result = np.empty(matrix.shape[0])
    stays_sparse = issparse(matrix) and diagonal is not None
    for chunk in row_chunks(matrix.shape[0], 1 if stays_sparse else matrix.shape[1]):
        rows = divided(matrix[chunk])
        result[chunk] = (rows * rows).sum(axis=1)
    return result


def _division_by_root(gram: Matrix, diagonal: FloatArray | None) -> Callable[[Matrix], Matrix]:
    """Return a function that maps rows phi to rows of squared norm phi' G^-1 phi."""
    if diagonal is None:
        factor = cholesky_factor(dense(gram), lower=True)
        return lambda rows: solve_triangular(factor, dense(rows).T, lower=True).T
    if not (diagonal > 0).all():
        raise np.linalg.LinAlgError("not positive definite")
    return lambda rows: rows * (1 / np.sqrt(diagonal))


def rank_reduction(features: ArrayLike) -> FloatArray:
    """Orthonormal basis B of the row space: features @ B has full rank and spans the same linear functions.

    The rank counts the singular values, after scaling the columns to norm 1, that exceed 16 d eps times the largest
    (eps = 2.2e-16), so that it depends neither on units nor on the number of rows. Features of full rank get the
    identity.

    Parameters
    ----------
    features : array_like, shape (n, d)
        Feature vectors of rank r >= 1.

    Returns
    -------
    ndarray, shape (d, r)
        Basis vectors in its columns.
    """
    matrix = as_feature_matrix(features)
    basis = _row_space(matrix)
    # The reduced columns have units of their own; a direction that is at the limit may fail the test in these.
    while (smaller := _row_space(matrix @ basis)).shape[1] < basis.shape[1]:
        basis = np.linalg.qr(basis @ smaller)[0]
    return basis


def _row_space(matrix: FloatArray) -> FloatArray:
    """Orthonormal basis (d, r) of the row space; the identity if the rank is full."""
    dimension = matrix.shape[1]
    axes = axes_of(matrix)
    if axes is not None and axes[1].any():
        return np.eye(dimension)[:, np.unique(axes[0][axes[1] > 0])]
    factor, norms = equilibrated_factor(matrix, column_scales(matrix))
    _, singular_values, right = np.linalg.svd(factor)
    if singular_values[0] == 0:
        raise InvalidInput("features are all zero; expected at least one feature vector that is not.")
    rank = numerical_rank(singular_values)
    if rank == dimension:
        return np.eye(dimension)
    # Undoing the scaling mixes magnitudes. Elimination, which takes the largest rows for pivots, leaves a well
    # conditioned basis in echelon form, and orthonormalising it from its last vector on keeps the columns of large
    # scale out of the directions of small scale.
    permutation, echelon, _ = lu((right[:rank] * norms).T, p_indices=True)
    return np.linalg.qr(echelon[permutation][:, ::-1])[0]
