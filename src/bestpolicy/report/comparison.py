"""A table of runs of several algorithms, read with care, and what it comes down to."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput

FORMAT, VERSION = "bestpolicy comparison", 1
_NEEDED = ("algorithm", "instance", "samples", "certified")


@dataclass(frozen=True)
class Line:
    """The runs of one algorithm on one instance; `ratio` is the median over the lower bound."""

    instance: str
    algorithm: str
    runs: int
    certified: int
    median: float
    lower_quartile: float
    upper_quartile: float
    worst_loss: float | None
    ratio: float | None


@dataclass(frozen=True)
class Table:
    """Runs, what was left out, and what no algorithm can beat.

    Attributes
    ----------
    settings : dict
    rows : list of dict
        One per run.
    skipped : list of dict
        algorithm, instance, reason.
    lower_bounds : dict
        Simulator calls by instance.
    """

    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    lower_bounds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, document: Any, name: str) -> Table:
        """Read the document of a comparison; `name` is what it is called in messages."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InvalidInput(f"{name} is not a comparison. Give a JSON file of 'bestpolicy compare'.")
        if document.get("version") != VERSION:
            raise InvalidInput(
                f"{name} has version {document.get('version')!r} of the format, this program reads {VERSION}."
            )
        rows = document.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InvalidInput(f"{name}: 'rows' must be a list of objects, one per run.")
        for number, row in enumerate(rows):
            lacking = [key for key in _NEEDED if key not in row]
            if lacking or not _is_number(row["samples"]):
                what = f"lacks {lacking[0]!r}" if lacking else "has no number of samples"
                raise InvalidInput(f"{name}: row {number} {what}.")
        bounds = [bound for bound in _objects(document, "lower_bounds") if _is_number(bound.get("samples"))]
        settings = document.get("settings")
        return cls(
            settings if isinstance(settings, dict) else {},
            [row | {"instance": str(row["instance"]), "algorithm": str(row["algorithm"])} for row in rows],
            _objects(document, "skipped"),
            {str(bound.get("instance")): float(bound["samples"]) for bound in bounds},
        )

    def lines(self) -> list[Line]:
        """One entry per instance and algorithm, in order of appearance."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault((row["instance"], row["algorithm"]), []).append(row)
        return [self._line(*key, rows) for key, rows in groups.items()]

    def medians(self) -> dict[str, dict[str, float]]:
        """Median calls by instance and algorithm, of algorithms all of whose runs were certified."""
        found: dict[str, dict[str, float]] = {}
        for line in self.lines():
            if line.certified == line.runs:
                found.setdefault(line.instance, {})[line.algorithm] = line.median
        return found

    def _line(self, instance: str, algorithm: str, rows: list[dict[str, Any]]) -> Line:
        samples = [float(row["samples"]) for row in rows]
        losses = [float(row["loss"]) for row in rows if _is_number(row.get("loss"))]
        certified = sum(bool(row["certified"]) for row in rows)
        bound = self.lower_bounds.get(instance, 0.0)
        low, high = np.percentile(samples, (25, 75))
        ratio = median(samples) / bound if bound >= 1 and certified == len(rows) else None
        worst = max(losses, default=None)
        return Line(instance, algorithm, len(rows), certified, median(samples), float(low), float(high), worst, ratio)


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
