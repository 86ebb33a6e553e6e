"""Settings as users give them, checked at the border."""

from __future__ import annotations

from math import floor, isfinite
from os import PathLike
from typing import Any

from bestpolicy.errors import InvalidInput


def number(
    name: str, value: Any, *, above: float | None = None, least: float = 0.0, below: float | None = None
) -> float:
    """Return a finite number that is larger than `above` (or at least `least`) and smaller than `below`."""
    own = as_float(value)
    low = own > above if above is not None else own >= least
    if isinstance(value, bool) or not isfinite(own) or not low or (below is not None and not own < below):
        if above is not None and below is not None:
            expected = f"strictly between {above:g} and {below:g}"
        else:
            expected = f"a finite number > {above:g}" if above is not None else f"a finite number ≥ {least:g}"
        raise InvalidInput(f"{name} must be {expected}. Got {value!r} instead.")
    return own


def whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least `least`; 1e6 is one, too."""
    own = as_float(value)
    if isinstance(value, bool | str) or not isfinite(own) or own != floor(own) or own < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {value!r} instead.")
    return int(value)


def word(name: str, value: Any) -> str:
    """Return a text that can be typed and printed: not empty, on one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidInput(f"{name} must be a text of one line that is not empty. Got {value!r} instead.")
    return value


def function(name: str, value: Any, call: str) -> Any:
    """Return something that can be called; `call` says how it will be."""
    if not callable(value):
        raise InvalidInput(f"{name} must be a function, called as {call}. Got {value!r} instead.")
    return value


def file_path(name: str, value: Any) -> str | PathLike[str]:
    """Return the path of a file."""
    if not isinstance(value, str | PathLike) or not str(value).strip():
        raise InvalidInput(f"{name} must be the path of a file. Got {value!r} instead.")
    return value


def as_float(value: Any) -> float:
    """Return a value as a number; nan if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
