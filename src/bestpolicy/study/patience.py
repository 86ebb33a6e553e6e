"""A deadline for work that knows of none: a look at the data may take long, and whoever waits may have to go.

The work runs in a thread of its own while somebody waits for it; without a deadline it simply runs. When the time is up
nobody waits any longer, and the thread is ended between two steps of Python. Nothing of its work is used then, and
nothing is lost: what it looked at is stored, and looked at again when the study is resumed.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Answer = TypeVar("Answer")

_UNTIL: contextvars.ContextVar[float | None] = contextvars.ContextVar("until", default=None)
_LOOK_UP = 0.2  # seconds after which an interruption is noticed


class TimeUp(BaseException):
    """The deadline passed before the work was done."""


@contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """Let `patiently` wait no longer than this, on the clock of `time.monotonic`."""
    token = _UNTIL.set(deadline)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def patiently(work: Callable[[], Answer]) -> Answer:
    """Return what the work returns.

    Raises
    ------
    TimeUp
        If the time is up first.
    """
    deadline = _UNTIL.get()
    if deadline is None:
        return work()
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, work()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeUp
            thread.join(min(left, _LOOK_UP))
    except BaseException:
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeUp))
        raise
    succeeded, answer = outcome[0]
    if not succeeded:
        raise answer
    return answer  # type: ignore[no-any-return]
