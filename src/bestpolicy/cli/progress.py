"""What a running study shows, and how it is stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text
from scipy.optimize import nnls

from bestpolicy.study import Study

_PATIENCE = 2.0  # seconds after which a replay is worth a note


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
def progress_bar(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on a terminal: what is done, what was done last, for how long."""
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield show


class Progress:
    """One line on a terminal: samples so far, how far the statistic is, the gap, the end in sight."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._history: list[tuple[float, float]] = [(time.monotonic(), 0.0)]
        self._shown = 0.0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, study: Study) -> None:
        """Show where the study stands."""
        if self._live is None or not study.checks:
            return
        now = time.monotonic()
        self._history.append((now, float(study.samples)))
        if now - self._shown >= 0.1:
            self._shown = now
            line = Text(progress_line(study, self._history), no_wrap=True, overflow="ellipsis")
            self._live.update(line, refresh=True)


def progress_line(study: Study, history: list[tuple[float, float]]) -> str:
    """Describe the state of a study in one line; `history` has (time, samples) after each look at the data."""
    check = study.checks[-1]
    done = min(1.0, check.statistic / check.threshold) if check.threshold > 0 else 1.0
    bar = "█" * round(10 * done) + "░" * (10 - round(10 * done))
    forecast = study.forecast()
    end = "too early to tell the end"
    if 0 < forecast < float("inf"):
        end = f"~{forecast:.2g} in all"
        left = seconds_left(history, forecast)
        end += "" if left is None else f", {left:.0f} s left"
    return f"{study.samples:.3g} samples {bar} {done:.2f}, gap {check.gap:.2g}, {end}"


def seconds_left(history: list[tuple[float, float]], forecast: float) -> float | None:
    """Extrapolate a run whose time goes into looks (a fixed price each) and into samples (a price each)."""
    times, samples = np.array(history[-30:]).T
    if len(times) < 4 or samples[-2] <= 0:
        return None
    looks = np.arange(len(times))
    price, _ = nnls(np.column_stack([looks, samples - samples[0]]), times - times[0])
    growth = max(samples[-1] / samples[-2], 1.001)
    looks_left = max(0.0, np.log(forecast / samples[-1]) / np.log(growth))
    return float(price[0] * looks_left + price[1] * max(0.0, forecast - samples[-1]))


class Replay:
    """Say that a study is being replayed: a line that moves on a terminal, elsewhere a note if it takes long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._begun = self._shown = time.monotonic()
        self._noted = False

    def __enter__(self) -> Replay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, done: int, answers: int) -> None:
        """Show how many of the stored answers have been replayed."""
        now = time.monotonic()
        if self._live is not None and now - self._shown >= 0.1:
            self._shown = now
            self._live.update(Text(f"replaying {done} of {answers} answers …", no_wrap=True), refresh=True)
        elif self._live is None and not self._noted and now - self._begun > _PATIENCE:
            self._noted = True
            self._console.print(
                f"Note: replaying {answers} stored answers, each look at the data anew ({done} so far)."
            )
