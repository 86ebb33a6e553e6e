"""Measure and print, so that a figure means the same on a quiet and on a busy machine.

* Both sides of a ratio compute in one thread. A peer whose threads wait for each other on a busy machine would make
  ours look faster than it is, and the number of cores would be part of every ratio.
* Times are processor time of this process: what others use of the machine is not counted.
* The smallest of several repetitions counts: whatever disturbs a measurement makes it longer.
* Limits in seconds were set on one processor. A slower one is given as much more as it needs for a fixed piece of work
  that is measured at the same moment; a faster one is given no less.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

CLOCK = time.process_time
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
_YARDSTICK_SECONDS = 0.009  # on the processor that limits in seconds were set on

missed: list[str] = []  # what has missed its limit so far


def one_thread_each() -> dict[str, str]:
    """Return the environment in which what is loaded later, here or in another process, starts one thread only."""
    return os.environ | dict.fromkeys(THREADS, "1")


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which whatever is loaded already computes in one thread: BLAS, OpenMP, numba."""
    numba = sys.modules.get("numba")
    before = numba.get_num_threads() if numba else 1
    if numba:
        numba.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        if numba:
            numba.set_num_threads(before)


def best_of(repeats: int, function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the smallest processor time of several calls in one thread, and the last answer."""
    best, answer = float("inf"), None
    with one_thread():
        for _ in range(repeats):
            started = CLOCK()
            answer = function()
            best = min(best, CLOCK() - started)
    return best, answer


def limit(seconds: float) -> float:
    """Return a limit in seconds as it is on this processor, at this moment."""
    return seconds * max(1.0, best_of(7, _yardstick)[0] / _YARDSTICK_SECONDS)


def line(what: str, seconds: float, target: str = "", met: bool | None = None, more: str = "") -> None:
    """Print one measurement with its target and whether it is met."""
    verdict = "" if met is None else ("  ok" if met else "  MISSED")
    print(f"{what:<58} {seconds:>10.4f} s   {more:<34} {target}{verdict}", flush=True)
    if met is False:
        missed.append(what)


def timed(what: str, seconds: float, most: float, more: str = "", met: bool = True) -> None:
    """Print one measurement that has to be below a limit in seconds, and whatever else has to be `met`."""
    here = limit(most)
    stretched = f" ({here:.3g} s on this processor)" if here > most else ""
    line(what, seconds, f"≤ {most:g} s{stretched}", met and seconds <= here, more)


def _yardstick() -> None:
    """A fixed piece of work: the interpreter, many small array operations, a few larger products."""
    counts: dict[int, int] = {}
    for k in range(30_000):
        counts[k % 97] = counts.get(k % 97, 0) + k
    small = np.arange(12.0)
    for _ in range(2500):
        small = np.maximum(small * 0.5, 1.0)
    large = np.ones((192, 192))
    for _ in range(12):
        large = large @ large / 192
