"""Settings as users give them, checked at the border."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, isfinite
from os import PathLike
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput, did_you_mean


def number(
    name: str, value: Any, *, above: float | None = None, least: float = 0.0, below: float | None = None
) -> float:
    """Return a finite number that is larger than `above` (or at least `least`) and smaller than `below`."""
    given = _as_number(value)
    low = given > above if above is not None else given >= least
    if not isfinite(given) or not low or (below is not None and not given < below):
        if above is not None and below is not None:
            expected = f"strictly between {above:g} and {below:g}"
        else:
            expected = f"a finite number > {above:g}" if above is not None else f"a finite number ≥ {least:g}"
        raise InvalidInput(f"{name} must be {expected}. Got {value!r} instead.")
    return given


def whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least `least`; 1e6 is one, too."""
    given = _as_number(value)
    if not isfinite(given) or given != floor(given) or given < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {value!r} instead.")
    return int(value)


def interval(name: str, value: Any) -> tuple[float, float]:
    """Return two finite numbers, the smaller one first."""
    try:
        low, high = (as_float(limit) for limit in value)
    except (TypeError, ValueError):
        low = high = inf
    if not -inf < low < high < inf:
        raise InvalidInput(f"{name} must be two finite numbers, low < high. Got {value!r} instead.")
    return low, high


def require_whole(least: int, **values: Any) -> None:
    """Raise InvalidInput unless every value is a whole number of at least `least`, such as the size of an array."""
    for name, value in values.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {value!r} instead.")


def require_positive(**values: Any) -> None:
    """Raise InvalidInput unless every value is a positive finite number."""
    for name, value in values.items():
        if not 0 < _as_number(value) < inf:
            raise InvalidInput(f"{name} must be a positive number. Got {value!r} instead.")


def require_fraction(**values: Any) -> None:
    """Raise InvalidInput unless every value lies in [0, 1]."""
    for name, value in values.items():
        if not 0 <= _as_number(value) <= 1:
            raise InvalidInput(f"{name} must lie between 0 and 1. Got {value!r} instead.")


def word(name: str, value: Any) -> str:
    """Return a text that can be typed and printed: not empty, on one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidInput(f"{name} must be a text of one line that is not empty. Got {value!r} instead.")
    return value


def choice(name: str, value: Any, known: Sequence[str], remedy: str = "") -> None:
    """Raise InvalidInput unless a value is one of those that are known."""
    if value not in known:
        hint = did_you_mean(str(value), known) + (remedy and f" {remedy}")
        raise InvalidInput(f"{name} must be one of {', '.join(known)}. Got {value!r} instead.{hint}")


def function(name: str, value: Any, call: str) -> Any:
    """Return something that can be called; `call` says how it will be."""
    if not callable(value):
        raise InvalidInput(f"{name} must be a function, called as {call}. Got {value!r} instead.")
    return value


def file_path(name: str, value: Any) -> str | PathLike[str]:
    """Return the path of a file."""
    text = str(value).strip()
    odd = not text or "\0" in text or text == ":memory:" or text.startswith("file:")  # SQLite has its own use for them
    if odd or not isinstance(value, str | PathLike):
        raise InvalidInput(f"{name} must be the path of a file. Got {value!r} instead.")
    return value


def as_float(value: Any) -> float:
    """Return a value as a number; nan if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _as_number(value: Any) -> float:
    """Return a value as a number; nan if it is a text or a truth value, too."""
    return float("nan") if isinstance(value, bool | np.bool_ | str | bytes) else as_float(value)
