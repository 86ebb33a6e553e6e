"""One BLAS thread where it matters.

Many small BLAS calls with several threads can be 30 times slower on a busy machine than with one, and the bits of
a result may depend on the number of threads: the same seed would not give the same answer everywhere.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> Any:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread."""
    context: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return context
