"""Arrays that are checked once at the border, and read-only after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bestpolicy.errors import InvalidInput

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])


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
        with np.errstate(invalid="ignore"):
            fits = (np.abs(array) < 2.0**63) & (array == np.floor(array)) if array.dtype.kind in "uf" else np.False_
        if not fits.all() or (array.dtype.kind == "f" and not floats):
            raise InvalidInput(f"{name} must hold whole numbers below 2^63. Got an array of {array.dtype} instead.")
    return array.astype(np.int64, copy=False)


@contextmanager
def enough_memory(what: str, needed: int) -> Iterator[None]:
    """Say what takes more memory than there is, and how much at least (0 if unknown)."""
    try:
        yield
    except MemoryError:
        least = f", {readable_size(needed)} at least" if needed else ""
        raise InvalidInput(f"{what} takes more memory than this process can get{least}. Give it more.") from None


def readable_size(size: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"


def frozen(array: Array) -> Array:
    """Return a read-only view of the array."""
    view = array.view()
    view.flags.writeable = False
    return view
