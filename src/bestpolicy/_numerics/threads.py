"""One BLAS thread where it matters.

Many small BLAS calls with several threads can be 30 times slower on a busy machine than with one, and the bits of
a result may depend on the number of threads: the same seed would not give the same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> Any:
    return ThreadpoolController()


class _Inside:
    """How many are inside, of all threads: the first one limits BLAS and the last one lets it go."""

    count = 0
    limiter: Any = None
    lock = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which BLAS uses one thread; inside another such context it costs next to nothing."""
    with _Inside.lock:
        if _Inside.count == 0:
            _Inside.limiter = _controller().limit(limits=1, user_api="blas")
        _Inside.count += 1
    try:
        yield
    finally:
        with _Inside.lock:
            _Inside.count -= 1
            if _Inside.count == 0:
                _Inside.limiter.restore_original_limits()
