"""How long a run has been going, how fast it is, and when it should end: one line for people who watch it.

A file says when a study began and what it has measured, but not when. So the speed is that of the answers which have
arrived while somebody watched; before there are any, it is the average since the study began.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

from bestpolicy.report.words import count_roughly, figure
from bestpolicy.study import Record
from bestpolicy.study.forecast import Outlook

_REMEMBERED = 40  # answers that the speed is taken from
_SILENCE = 60.0  # seconds without an answer that are worth a word


class Clock:
    """Watches a study.

    Attributes
    ----------
    outlook : Outlook, optional
        Simulator calls that it should need in all.
    """

    def __init__(self) -> None:
        self.outlook: Outlook | None = None
        self._seen: list[tuple[float, int]] = []
        self._begun: datetime | None = None
        self._seconds: float | None = None

    def observe(self, now: float, record: Record) -> None:
        """Take note of what the file says at a time (of a clock that only goes forwards)."""
        try:
            self._begun = datetime.fromisoformat(record.created).replace(tzinfo=UTC)
        except ValueError:
            self._begun = None
        self._seconds = None if record.result is None else float(record.result["seconds"])
        if not self._seen or record.samples != self._seen[-1][1]:
            self._seen = [*self._seen[1 - _REMEMBERED :], (now, record.samples)]

    def line(self, now: float, today: datetime | None = None) -> str:
        """Say it; `today` is the time of day, of this machine by default."""
        wall = datetime.now(UTC) if today is None else today
        if not self._seen:
            return ""
        samples = self._seen[-1][1]
        if self._seconds is not None:
            rate = f", {_speed(samples / self._seconds)} on average" if self._seconds > 0 and samples else ""
            return f"The run is over. Its last stretch took {duration(self._seconds)}{rate}."
        parts, age = [], None if self._begun is None else max(0.0, (wall - self._begun).total_seconds())
        if age is not None:
            parts.append(f"Begun {duration(age)} ago")
        speed = self.calls_per_second(now, age)
        if speed > 0:
            parts.append(_speed(speed))
        parts.append(self._end(samples, speed, wall))
        silent = now - self._seen[-1][0]
        if silent > _SILENCE:
            parts.append(f"nothing new for {duration(silent)}")
        return " · ".join(parts)

    def _end(self, samples: int, speed: float, wall: datetime) -> str:
        """When it should be over, as a range."""
        if self.outlook is None or not speed > 0 or not self.outlook.high < inf:
            return "too early to tell the end"
        low, high = (max(0.0, end - samples) / speed for end in (self.outlook.low, self.outlook.high))
        between = dict.fromkeys((duration(low), duration(high)))
        until = dict.fromkeys((_moment(wall, low), _moment(wall, high)))
        return f"{' to '.join(between)} left, until {' to '.join(until)}"

    def calls_per_second(self, now: float, age: float | None) -> float:
        """Simulator calls a second: as seen, or on average since the study began."""
        (first, before), (_, samples) = self._seen[0], self._seen[-1]
        if samples > before and now > first:
            return (samples - before) / (now - first)
        return samples / age if age else 0.0


def duration(seconds: float) -> str:
    """A time for people: ``8 s``, ``3 min 20 s``, ``2 h 5 min``, ``12 days``."""
    if not seconds < inf:
        return "for ever"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 and whole % 60 else "")
    if whole < 48 * 3600:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86400:,} days"


def _speed(calls: float) -> str:
    return f"{figure(calls, 2) if calls < 10 else count_roughly(calls)} calls a second"


def _moment(wall: datetime, left: float) -> str:
    if left > 3650 * 86400:
        return "some later year"
    end = (wall + timedelta(seconds=left)).astimezone()
    return f"{end:%H:%M}" if left < 20 * 3600 else f"{end:%Y-%m-%d %H:%M}"
