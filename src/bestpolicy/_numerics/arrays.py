"""Arrays that are checked once at the border, and read-only after."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bestpolicy.errors import InvalidInput

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def as_floats(name: str, value: Any, axes: tuple[str, ...]) -> FloatArray:
    """Return `value` as a read-only float64 array with as many axes as `axes` names.

    Copies unless the array is read-only already, so that nobody can change it afterwards.
    """
    try:
        if np.iscomplexobj(value):
            raise InvalidInput(f"{name} must be an array of real numbers. Got complex ones.")
        array = np.asarray(value, dtype=np.float64, order="C")
        if array is value and array.flags.writeable:
            array = array.copy()
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be an array of numbers ({error}).") from None
    if array.ndim != len(axes):
        expected = f"({', '.join(axes)})"
        raise InvalidInput(f"{name} must have shape {expected}. Got shape {array.shape} instead.")
    return frozen(array)


def frozen(array: Array) -> Array:
    """Return a read-only view of the array."""
    view = array.view()
    view.flags.writeable = False
    return view
