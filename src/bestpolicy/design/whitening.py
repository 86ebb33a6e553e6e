"""Changes of coordinates for features: whitening by a design, reduction to full rank, leverages.

Linear models do not care about coordinates: x . theta = (x T) . (T^-1 theta). The theorems do, because they
assume norms: |phi| <= 1, |theta| <= sqrt(d) and |mu' V| <= sqrt(d) max|V|. Nobody has to be asked for them. With a
design w whose largest leverage is sigma <= (1 + eta) d, put

    phi' = Lambda(w)^{-1/2} phi / sqrt(sigma),        theta' = sqrt(sigma) Lambda(w)^{1/2} theta.

Then |phi'|^2 = leverage / sigma <= 1, and |theta'|^2 = sigma sum_k w_k (phi_k . theta)^2 <= (1 + eta) d max r^2 for
rewards r = phi . theta; the same holds for mu' V in place of theta. Any square root of Lambda^-1 will do. The one
used here is the inverse of a triangular factor, whose accuracy does not depend on the units of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky as cholesky_factor
from scipy.linalg import lu, solve_triangular
from scipy.sparse import issparse

from bestpolicy._numerics.sparsity import Matrix, axes_of, dense, diagonal_of
from bestpolicy.design.conditioning import (
    EPS,
    Floats,
    as_feature_matrix,
    column_scales,
    equilibrated_factor,
    numerical_rank,
    row_chunks,
    squared_norms,
)
from bestpolicy.design.g_optimal import Design
from bestpolicy.errors import InvalidInput


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

    transform: NDArray[np.float64]
    inverse: NDArray[np.float64]

    def features(self, features: ArrayLike) -> NDArray[np.float64]:
        """Features (..., d) in the new coordinates."""
        given, scales = np.asarray(features, dtype=np.float64), self._scales
        return given @ self.transform if scales is None else given * scales

    @cached_property
    def _scales(self) -> NDArray[np.float64] | None:
        """The transform, where it only changes the scales of the coordinates."""
        return diagonal_of(self.transform)

    def parameters(self, parameters: ArrayLike) -> NDArray[np.float64]:
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


def _root(rows: Floats) -> Floats:
    """Upper triangular R (d, d) with R'R = rows' rows and a diagonal that is not negative: there is one only."""
    axes = axes_of(rows)
    if axes is None:
        root = np.linalg.qr(rows, mode="r")
        return np.asarray(root * np.where(np.diag(root) < 0, -1.0, 1.0)[:, None])
    axis, lengths = axes
    return np.diag(np.sqrt(np.bincount(axis, lengths**2, minlength=rows.shape[1])))


def leverages(features: Matrix, gram: Matrix) -> NDArray[np.float64]:
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
    matrix = features if issparse(features) else np.asarray(features, dtype=np.float64)
    square = gram if issparse(gram) else np.asarray(gram, dtype=np.float64)
    if matrix.ndim != 2 or square.shape != (matrix.shape[1],) * 2:
        raise InvalidInput(
            f"features must have shape (n, d) and the matrix shape (d, d). Got {matrix.shape} and {square.shape}."
        )
    diagonal = diagonal_of(square)
    try:
        divided = _division_by_root(square, diagonal)
    except np.linalg.LinAlgError as error:
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


def _division_by_root(gram: Matrix, diagonal: Floats | None) -> Callable[[Matrix], Matrix]:
    """Return a function that maps rows phi to rows of squared norm phi' G^-1 phi."""
    if diagonal is None:
        factor = cholesky_factor(dense(gram), lower=True)
        return lambda rows: solve_triangular(factor, dense(rows).T, lower=True).T
    if not (diagonal > 0).all():
        raise np.linalg.LinAlgError("not positive definite")
    return lambda rows: rows * (1 / np.sqrt(diagonal))


def rank_reduction(features: ArrayLike) -> NDArray[np.float64]:
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


def _row_space(matrix: Floats) -> Floats:
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
