"""How far is it? One line that changes, on a terminal and in a notebook, while a run goes on."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

import numpy as np
from scipy.optimize import nnls

from bestpolicy.study import Study

_REST = 0.2  # seconds between two changes of the line

History = list[tuple[float, float]]


class ProgressLine:
    """A line on a stream that is written anew.

    Parameters
    ----------
    stream : text stream
        Standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._begun = time.monotonic()
        self._history: History = [(self._begun, 0.0)]
        self._shown, self._width = 0.0, 0

    def look(self, study: Study) -> None:
        """A look at the data is over."""
        self._history.append((time.monotonic(), float(study.samples)))
        self.tick(study, 0)

    def tick(self, study: Study, made: int) -> None:
        """So many calls of the query under way are made."""
        now = time.monotonic()
        if now - self._shown >= _REST:
            self._shown = now
            under_way = f", {made:,} of {study.asked_calls:,} calls until the next look" if made else ""
            self._write(f"{now - self._begun:.0f} s: {progress_line(study, self._history)}{under_way}")

    def end(self) -> None:
        """Leave nothing behind."""
        if self._width:
            self._write("")

    def _write(self, text: str) -> None:
        text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        try:
            self._stream.write("\r" + text.ljust(self._width) + ("\r" if not text else ""))
            self._stream.flush()
        except (OSError, ValueError, UnicodeError):  # nobody can see it
            self._width = 0
        else:
            self._width = len(text)


def progress_line(study: Study, history: History) -> str:
    """Describe the state of a study in one line; `history` has (time, samples) after each look at the data."""
    if not study.checks:
        return f"{study.samples:.3g} samples, before the first look"
    check = study.checks[-1]
    done = min(1.0, check.statistic / check.threshold) if check.threshold > 0 else 1.0
    forecast = study.forecast()
    end = "too early to tell the end"
    if 0 < forecast < float("inf"):
        end = f"~{forecast:.2g} in all"
        left = seconds_left(history, forecast)
        end += "" if left is None else f", {left:.0f} s left"
    return f"{study.samples:.3g} samples {bar(done, 10)} {done:.2f}, gap {check.gap:.2g}, {end}"


def seconds_left(history: History, forecast: float) -> float | None:
    """Extrapolate a run whose time goes into looks (a fixed price each) and into samples (a price each)."""
    times, samples = np.array(history[-30:]).T
    if len(times) < 4 or samples[-2] <= 0:
        return None
    looks = np.arange(len(times))
    price, _ = nnls(np.column_stack([looks, samples - samples[0]]), times - times[0])
    growth = max(samples[-1] / samples[-2], 1.001)
    looks_left = max(0.0, np.log(forecast / samples[-1]) / np.log(growth))
    return float(price[0] * looks_left + price[1] * max(0.0, forecast - samples[-1]))


def bar(share: float, width: int) -> str:
    """A share as a bar of letters."""
    full = round(width * share)
    return "█" * full + "░" * (width - full)
