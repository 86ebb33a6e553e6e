"""Measure and print."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_of(repeats: int, function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the smallest time of several calls, and the last answer."""
    best, answer = float("inf"), None
    for _ in range(repeats):
        started = time.perf_counter()
        answer = function()
        best = min(best, time.perf_counter() - started)
    return best, answer


def line(what: str, seconds: float, target: str = "", met: bool | None = None, more: str = "") -> None:
    """Print one measurement with its target and whether it is met."""
    verdict = "" if met is None else ("  ok" if met else "  MISSED")
    print(f"{what:<58} {seconds:>10.4f} s   {more:<34} {target}{verdict}", flush=True)
