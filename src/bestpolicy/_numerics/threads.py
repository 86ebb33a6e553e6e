"""One BLAS thread where it matters.

Many small BLAS calls with several threads can be 30 times slower on a busy machine than with one, and the bits of
a result may depend on the number of threads: the same seed would not give the same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import Any

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which BLAS uses one thread; inside another such context it costs next to nothing."""
    if _here.depth == 0:
        _enter()
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            _leave()


class _Here(local):
    """What holds for one thread: how deep it is inside, and the limits that are its own."""

    depth = 0
    before: tuple[int, ...] = ()


class _Everywhere:
    """What holds for the whole process: how many threads are inside, and the limits that they share."""

    inside = 0
    before: tuple[int, ...] = ()
    lock = Lock()


_here = _Here()


def _enter() -> None:
    common, own = _libraries()
    with _Everywhere.lock:
        if _Everywhere.inside == 0:  # the first one limits BLAS, the last one lets it go
            _Everywhere.before = _limited(common)
        _Everywhere.inside += 1
    _here.before = _limited(own)


def _leave() -> None:
    common, own = _libraries()
    _restore(own, _here.before)
    with _Everywhere.lock:
        _Everywhere.inside -= 1
        if _Everywhere.inside == 0:
            _restore(common, _Everywhere.before)


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """Return the BLAS libraries whose threads belong to the process, and those with a number for each thread."""
    loaded = [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]
    common = [each for each in loaded if each.internal_api == "openblas" and each.threading_layer != "openmp"]
    return common, [each for each in loaded if each not in common]


def _limited(libraries: list[Any]) -> tuple[int, ...]:
    """Let each library use one thread; return how many it had."""
    before = tuple(each.num_threads for each in libraries)
    for each, number in zip(libraries, before, strict=True):
        if number != 1:
            _set_threads(each, 1)
    return before


def _restore(libraries: list[Any], before: tuple[int, ...]) -> None:
    for each, number in zip(libraries, before, strict=True):
        if number != 1:
            _set_threads(each, number)


def _set_threads(library: Any, number: int) -> None:
    # From threadpoolctl 3.8 on the public method does nothing in any thread but the one that called it first.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)
