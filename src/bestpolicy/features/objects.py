"""States that are objects: how they become rows of numbers, and rows become objects again.

What is stored, sent to workers and looked at are rows of numbers (n, k), whatever states are to you: no file holds
pickles. With an `Objects` a feature map's functions, a mask, known rewards and `step` get lists of your objects, and
results take them; rows are turned into objects and back in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import function, shown, whole
from bestpolicy.errors import InvalidInput, one_line


class Objects:
    """How states that are objects are written as numbers.

    Parameters
    ----------
    encode : callable
        ``encode(state)`` returns k numbers that say all there is to know of it.
    decode : callable
        ``decode(numbers)`` returns the state from a list of k floats.
    size : int
        k.

    Examples
    --------
    >>> stock = Objects(lambda s: [s["milk"], s["eggs"]], lambda n: {"milk": n[0], "eggs": n[1]}, size=2)
    >>> stock.rows([{"milk": 1.0, "eggs": 2.0}])
    array([[1., 2.]])
    >>> stock.objects(stock.rows([{"milk": 1.0, "eggs": 2.0}]))[0]["eggs"]
    2.0
    """

    def __init__(self, encode: Callable[[Any], Any], decode: Callable[[list[float]], Any], *, size: int) -> None:
        self.encode = function("encode", encode, "encode(state) -> numbers")
        self.decode = function("decode", decode, "decode(numbers) -> state")
        self.size = whole("size", size, 1)

    def rows(self, states: Sequence[Any], what: str = "states") -> FloatArray:
        """Return objects as rows (n, k)."""
        found = np.empty((len(states), self.size))
        for i, state in enumerate(states):
            try:
                row = np.asarray(self.encode(state), dtype=np.float64)
            except Exception as error:
                raise InvalidInput(f"{what}: {shown(state)} cannot be encoded ({one_line(error)}).") from error
            if row.shape != (self.size,) or not np.isfinite(row).all():
                got = f"{shown(row.tolist())} for {what} {shown(state)}"
                raise InvalidInput(f"encode must return {self.size} finite numbers. Got {got}.")
            found[i] = row
        return found

    def objects(self, rows: FloatArray) -> list[Any]:
        """Return rows (n, k) as objects."""
        try:
            return [self.decode(row) for row in rows.tolist()]
        except Exception as error:
            raise InvalidInput(f"decode failed ({one_line(error)}).") from error
