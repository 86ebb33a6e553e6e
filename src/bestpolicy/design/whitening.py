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

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky as cholesky_factor
from scipy.linalg import lu, solve_triangular

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
        return np.asarray(features, dtype=np.float64) @ self.transform

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
    root = np.linalg.qr(np.sqrt(design.weights)[:, None] * (matrix[design.indices] / scales), mode="r")
    if not np.all(np.diag(root)):
        raise InvalidInput(
            "the rows of the design do not span R^d. Pass the features that the design was computed from."
        )
    transform = solve_triangular(root, np.eye(design.dimension)) / scales[:, None]
    # What the products give in floating point is what must not exceed 1, so that is what is measured.
    longest = np.sqrt(max(squared_norms(matrix[chunk] @ transform).max() for chunk in row_chunks(*matrix.shape)))
    length = max(longest, np.sqrt(design.worst_leverage)) * (1 + 4 * design.dimension * EPS)
    return Whitening(transform / length, root * scales * length)


def leverages(features: ArrayLike, gram: ArrayLike, *, cholesky: bool = False) -> NDArray[np.float64]:
    """Leverages phi' G^-1 phi of all features, in pieces so that no second (n, d) array is needed.

    Parameters
    ----------
    features : array_like, shape (n, d)
        Feature vectors phi.
    gram : array_like, shape (d, d)
        Positive definite matrix G, for instance the Gram matrix of a sample or Lambda(w).
    cholesky : bool
        Whether `gram` is the lower Cholesky factor L of G = L L' instead of G.

    Returns
    -------
    ndarray, shape (n,)
        The leverages.
    """
    matrix = np.asarray(features, dtype=np.float64)
    factor = np.asarray(gram, dtype=np.float64)
    if matrix.ndim != 2 or factor.shape != (matrix.shape[1],) * 2:
        raise InvalidInput(
            f"features must have shape (n, d) and the matrix shape (d, d). Got {matrix.shape} and {factor.shape}."
        )
    if not cholesky:
        try:
            factor = cholesky_factor(factor, lower=True)
        except np.linalg.LinAlgError as error:
            raise InvalidInput(
                "the matrix must be positive definite. Sample pairs whose features span R^d, or use "
                "features @ rank_reduction(features)."
            ) from error
    result = np.empty(len(matrix))
    for chunk in row_chunks(*matrix.shape):
        result[chunk] = squared_norms(solve_triangular(factor, matrix[chunk].T, lower=True).T)
    return result


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
