"""What running work shows, and how it is stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bestpolicy.errors import plain
from bestpolicy.run.progress import bar, progress_line
from bestpolicy.study import Study

_PATIENCE = 2.0  # seconds after which reading a file is worth a note
_REST = 0.1  # seconds between two changes of a line


@contextmanager
def stop_politely(study: Study) -> Iterator[None]:
    """Let the first Ctrl-C finish what is in flight; the second one stops at once."""

    def first(*_: object) -> None:
        study.request_stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def changing_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line, with a clock, in place of the last one; only a terminal shows it."""
    if not console.is_terminal:
        yield lambda _: None
        return
    begun, line = time.monotonic(), ""

    def draw() -> Text:
        clock = f"{time.monotonic() - begun:.0f} s"
        return Text(plain(f"{clock}  {line}"), no_wrap=True, overflow="ellipsis")

    def show(text: str) -> None:
        nonlocal line
        line = text

    with Live(console=console, transient=True, get_renderable=draw):
        yield show


@contextmanager
def work_progress(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows how much of some work is done, and what it is at."""
    with changing_line(console) as show:
        yield lambda done, total, what: show(f"{bar(done / max(total, 1), 30)} {done}/{total} {what}")


@contextmanager
def study_progress(console: Console) -> Iterator[Callable[[Study], None]]:
    """Yield a function that shows samples so far, how far the statistic is, the gap, the end in sight."""
    shown = 0.0
    with changing_line(console) as show:

        def follow(study: Study) -> None:
            nonlocal shown
            now = time.monotonic()
            if console.is_terminal and study.checks and now - shown >= _REST:
                shown = now
                show(progress_line(study))

        yield follow


@contextmanager
def reading_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many stored answers are read: on a terminal, elsewhere once if it takes long."""
    begun, noted = time.monotonic(), False
    with changing_line(console) as show:

        def follow(done: int, answers: int) -> None:
            nonlocal noted
            show(f"reading stored answers: {done} of {answers} …")
            if not noted and not console.is_terminal and time.monotonic() - begun > _PATIENCE:
                noted = True
                console.print(f"Note: reading {answers} stored answers ({done} so far).")

        yield follow
