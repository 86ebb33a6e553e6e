"""How far is it? One line that changes, on a terminal and in a notebook, while a run goes on."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from bestpolicy.study import Study
from bestpolicy.study.forecast import in_time

_REST = 0.2  # seconds between two changes of the line


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
        self._shown, self._width = 0.0, 0

    def look(self, study: Study) -> None:
        """A look at the data is over."""
        self.tick(study, 0)

    def tick(self, study: Study, made: int) -> None:
        """So many calls of the query under way are made."""
        now = time.monotonic()
        if now - self._shown >= _REST:
            self._shown = now
            under_way = f", {made:,} of {study.asked_calls:,} calls until the next look" if made else ""
            self._write(f"{now - self._begun:.0f} s: {progress_line(study)}{under_way}")

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


def progress_line(study: Study) -> str:
    """Describe the state of a study in one line."""
    if not study.checks:
        return f"{study.samples:.3g} samples, before the first look"
    check = study.checks[-1]
    done = min(1.0, check.statistic / check.threshold) if check.threshold > 0 else 1.0
    ahead = study.outlook()
    end = str(ahead) if not ahead.high < float("inf") else f"{ahead} in all"
    least, most = (in_time(seconds) for seconds in study.seconds_left())
    if ahead.high < float("inf") and study.pace.looks:
        end += f", {least if least == most else f'{least} to {most}'} left"
    return f"{study.samples:.3g} samples {bar(done, 10)} {done:.2f}, gap {check.gap:.2g}, {end}"


def bar(share: float, width: int) -> str:
    """A share as a bar of letters."""
    full = round(width * share)
    return "█" * full + "░" * (width - full)
