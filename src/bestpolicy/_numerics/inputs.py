"""Settings as users give them, checked at the border."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import floor, inf, isfinite
from os import PathLike
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput, did_you_mean


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0.0,
    below: float | None = None,
    infinite: bool = False,
) -> float:
    """Return a finite number (inf, too, if `infinite`) larger than `above`, or at least `least`, and below `below`."""
    given = _as_number(value)
    if infinite and given == inf:
        return given
    low = given > above if above is not None else given >= least
    if not isfinite(given) or not low or (below is not None and not given < below):
        if above is not None and below is not None:
            expected = f"strictly between {above:g} and {below:g}"
        else:
            expected = f"a finite number > {above:g}" if above is not None else f"a finite number ≥ {least:g}"
        raise InvalidInput(f"{name} must be {expected}. Got {shown(value)} instead.")
    return given


def whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least `least`; 1e6 is one, too."""
    given = _as_number(value)
    if not isfinite(given) or given != floor(given) or given < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {shown(value)} instead.")
    return int(value)


def interval(name: str, value: Any) -> tuple[float, float]:
    """Return two finite numbers, the smaller one first."""
    try:
        low, high = (_as_number(limit) for limit in value)
    except Exception:  # whatever the user's object raises
        low = high = inf
    if not -inf < low < high < inf:
        raise InvalidInput(f"{name} must be two finite numbers, low < high. Got {shown(value)} instead.")
    return low, high


def require_whole(least: int, **values: Any) -> None:
    """Raise InvalidInput unless every value is a whole number of at least `least`, such as the size of an array."""
    for name, value in values.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64) or value < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {shown(value)} instead.")


def require_positive(**values: Any) -> None:
    """Raise InvalidInput unless every value is a positive finite number."""
    for name, value in values.items():
        if not 0 < _as_number(value) < inf:
            raise InvalidInput(f"{name} must be a positive number. Got {shown(value)} instead.")


def require_fraction(**values: Any) -> None:
    """Raise InvalidInput unless every value lies in [0, 1]."""
    for name, value in values.items():
        if not 0 <= _as_number(value) <= 1:
            raise InvalidInput(f"{name} must lie between 0 and 1. Got {shown(value)} instead.")


def word(name: str, value: Any) -> str:
    """Return a text that can be typed and printed: not empty, on one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidInput(f"{name} must be a text of one line that is not empty. Got {shown(value)} instead.")
    return value


def choice(name: str, value: Any, known: Sequence[str], remedy: str = "") -> None:
    """Raise InvalidInput unless a value is one of those that are known."""
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value if isinstance(value, str) else "", known) + (remedy and f" {remedy}")
        raise InvalidInput(f"{name} must be one of {', '.join(known)}. Got {shown(value)} instead.{hint}")


def function(name: str, value: Any, call: str) -> Any:
    """Return something that can be called; `call` says how it will be."""
    if not callable(value):
        raise InvalidInput(f"{name} must be a function, called as {call}. Got {shown(value)} instead.")
    return value


def of_type(name: str, value: Any, kind: type) -> None:
    """Raise InvalidInput unless a value is of a kind."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be a {kind.__name__}. Got {shown(value)} instead.")


def file_path(name: str, value: Any) -> str:
    """Return the path of a file."""
    path = os.fspath(value) if isinstance(value, str | PathLike) else None
    odd = path in (":memory:", "") or str(path).startswith("file:")  # SQLite has its own use for them
    if odd or not isinstance(path, str) or not path.strip() or "\0" in path:
        raise InvalidInput(f"{name} must be the path of a file. Got {shown(value)} instead.")
    return path


def shown(value: Any) -> str:
    """Return a value as a short text on one line, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of thousands of digits, or whatever the user's object raises
        text = f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else text[:77] + "..."


def as_float(value: Any) -> float:
    """Return a value as a number; nan if it is none."""
    kind = value.dtype.kind if isinstance(value, np.ndarray | np.generic) else "f"
    if kind not in "biuf" or np.ma.isMaskedArray(value) or (isinstance(value, np.ndarray) and value.ndim):
        return float("nan")
    try:
        return float(value)
    except Exception:  # whatever the user's object raises
        return float("nan")


def _as_number(value: Any) -> float:
    """Return a value as a number; nan if it is a text or a truth value, too."""
    return float("nan") if isinstance(value, bool | np.bool_ | str | bytes) else as_float(value)
