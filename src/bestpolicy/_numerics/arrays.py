"""Arrays that are checked once at the border, and read-only after; structure that makes products of them quick.

One-hot features, which describe every finite problem, and those of aggregated states have one entry per pair. In
d dimensions their Gram matrix is diagonal, so that what takes d³ operations in general (designs, whitening, least
squares, leverages) takes about d. It is recognised here and nowhere else, from the numbers themselves; those who
use it have one formula for both cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, issparse

from bestpolicy._numerics.memory import usable_memory
from bestpolicy.errors import InvalidInput

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Matrix: TypeAlias = Any  # a 2-d NumPy array or a SciPy sparse array: both know @, T, * (by entries) and indices
Sparse: TypeAlias = tuple[Any, ...]  # SciPy sparse arrays, one for each stage

LARGEST_TABLE = 2**27  # entries of an array, 1 GiB, that is made where a sparse one would do
LARGE = 2**16  # entries below which a dense product is over before a sparse one has begun
_FEW = 0.05  # share of non-zero entries up to which the sparse one wins


def as_numbers(name: str, value: Any) -> NDArray[Any]:
    """Return `value` as an array of real numbers of whatever type; what is none raises InvalidInput.

    Texts, dates and masked entries would become numbers without a word.
    """
    try:
        if np.ma.is_masked(value):
            raise InvalidInput(f"{name} must not have masked entries. Fill them in.")
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(isinstance(entry, str | bytes | None) for entry in array.flat):
            array = array.astype(np.float64)
    except InvalidInput:
        raise
    except Exception as error:  # whatever the user's object raises
        raise InvalidInput(f"{name} must be an array of numbers ({error!s:.200}).") from None
    if array.dtype.kind not in "biuf":
        complex_ones = array.dtype.kind == "c"
        got = "complex ones" if complex_ones else f"an array of {array.dtype} instead"
        raise InvalidInput(f"{name} must be an array of {'real ' if complex_ones else ''}numbers. Got {got}.")
    return array


def as_floats(name: str, value: Any, axes: tuple[str, ...]) -> FloatArray:
    """Return `value` as a read-only float64 array with as many axes as `axes` names.

    Copies unless the array is read-only already, so that nobody can change it afterwards.
    """
    with enough_memory(f"a copy of {name}", 8 * np.size(value) if isinstance(value, np.ndarray) else 0):
        array = np.asarray(as_numbers(name, value), dtype=np.float64, order="C")
        if array is value and array.flags.writeable:
            array = array.copy()
    if array.ndim != len(axes):
        expected = f"({', '.join(axes)})"
        raise InvalidInput(f"{name} must have shape {expected}. Got shape {array.shape} instead.")
    return frozen(array)


def as_whole(name: str, value: Any, *, floats: bool = True) -> IntArray:
    """Return `value` as an array of int64; unless `floats` is False 3.0 is a whole number, too."""
    array = as_numbers(name, value)
    if array.dtype.kind != "i" and array.size:
        with enough_memory(name, 8 * array.size), np.errstate(invalid="ignore"):
            fits = (np.abs(array) < 2.0**63) & (array == np.floor(array)) if array.dtype.kind in "uf" else np.False_
        if not fits.all() or (array.dtype.kind == "f" and not floats):
            raise InvalidInput(f"{name} must hold whole numbers below 2^63. Got an array of {array.dtype} instead.")
    return array.astype(np.int64, copy=False)


def as_model_part(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return θ or μ as an array of this shape; a tuple of sparse matrices, one for each stage, stays one."""
    if type(value) is np.ndarray and value.dtype == np.float64 and value.shape == shape:
        return value
    sparse = isinstance(value, tuple) and len(value) > 0 and all(issparse(part) for part in value)
    array = value if sparse else as_numbers(name, value)
    known = (len(value), *value[0].shape) if sparse else array.shape
    if known != shape:
        raise InvalidInput(f"{name} must have shape {shape}. Got shape {known} instead.")
    return array


@contextmanager
def enough_memory(what: str, needed: int) -> Iterator[None]:
    """Say what takes more memory than there is, and how much at least (0 if unknown)."""
    try:
        yield
    except MemoryError:
        least = f", {readable_size(needed)} at least" if needed else ""
        raise InvalidInput(f"{what} takes more memory than this process can get{least}. Give it more.") from None


def require_table(what: str, entries: int) -> None:
    """Raise InvalidInput if a table of so many numbers is more than can be worked with."""
    if entries > LARGEST_TABLE and entries > usable_memory() // 128:
        raise InvalidInput(
            f"{what}, would take {readable_size(8 * entries)} of memory. Use what works on the cells that occurred."
        )


def readable_size(size: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"


def frozen(array: Array) -> Array:
    """Return a read-only view of the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def compact(matrix: FloatArray) -> Matrix:
    """Return a matrix in the form in which products with it are cheapest: sparse if large and mostly zeros."""
    if matrix.size < LARGE or np.count_nonzero(matrix) > _FEW * matrix.size:
        return matrix
    return csr_array(matrix)


def dense(matrix: Matrix) -> FloatArray:
    """Return a matrix as a NumPy array."""
    array: FloatArray = matrix.toarray() if issparse(matrix) else matrix
    return array


def gram_matrix(rows: Matrix, weights: FloatArray, ridge: float) -> Matrix:
    """Return Σ_k weight_k x_k x_kᵀ + ridge·I, (d, d), for the rows x_k of a matrix; sparse if that is."""
    products = (rows.T * weights) @ rows
    identity = eye_array if issparse(products) else np.eye
    return products + ridge * identity(rows.shape[1])


def diagonal_of(matrix: Matrix) -> FloatArray | None:
    """Return the diagonal of a square matrix that has no other entries, None for any other."""
    diagonal: FloatArray = matrix.diagonal()
    entries = matrix.count_nonzero() if issparse(matrix) else np.count_nonzero(matrix)
    return diagonal if entries == np.count_nonzero(diagonal) else None


def axes_of(rows: FloatArray) -> tuple[IntArray, FloatArray] | None:
    """Return the axis (n,) that each row of an (n, d) matrix lies on and its length (n,); None if one does not.

    A row of zeros lies on axis 0 with length 0.
    """
    # Most matrices show in their first rows that they are not of this kind.
    if np.count_nonzero(rows[:8], axis=1).max() > 1 or np.count_nonzero(rows) > len(rows):
        return None
    row, axis = np.nonzero(rows)
    if (np.diff(row) == 0).any():
        return None
    axes, lengths = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    axes[row], lengths[row] = axis, np.abs(rows[row, axis])
    return axes, lengths


def solve(matrix: Matrix, right: FloatArray) -> FloatArray:
    """Solve matrix · x = right, (d, d) and (d, k): by division if the matrix is diagonal."""
    diagonal = diagonal_of(matrix)
    if diagonal is None:
        return np.linalg.solve(dense(matrix), right).astype(np.float64, copy=False)
    if not diagonal.all():
        raise np.linalg.LinAlgError("Singular matrix")
    return right / diagonal[:, None]


def by_stage(left: FloatArray, right: FloatArray) -> FloatArray:
    """Σ_k left[j, h, k]·right[h, k, …] for each stage h, shape (J, stages, …); einsum looks for a way each time.

    >>> by_stage(np.ones((4, 2, 3)), np.ones((2, 3, 5, 6))).shape
    (4, 2, 5, 6)
    """
    stages, inner, *rest = right.shape
    product = left.swapaxes(0, 1) @ right.reshape(stages, inner, -1)
    return product.swapaxes(0, 1).reshape(len(left), stages, *rest)
