"""What a comparison found: its rows, what could not run, and the summary drawn from them.

The file format is one JSON object::

    {"format": "bestpolicy comparison", "version": 2, "settings": {…}, "rows": [{…}], "skipped": [{…}],
     "lower_bounds": [{…}], "plug_in": [{…}], "summary": [{…}]}

with the attributes of `Trial`, `Skipped`, `InstanceBound`, `InstancePlugIn` and `Summary` as keys, and null for what is
not known; ``plug_in`` is there only if the price was asked for. The summary follows from the rows; it is written for
other programs and not read back. In version 1 what was asked was
called ``epsilon``, and what is certified ``certified_epsilon``; before version 3 all claims were about every state.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.special import betaincinv

from bestpolicy.errors import InvalidInput

FORMAT = "bestpolicy comparison"
VERSION = 3
_LARGEST_FILE = 2**26  # bytes; hundreds of thousands of runs
CONFIDENCE = 0.95  # of the limit on the failure probability
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "int | None": (int, type(None)),
}


@dataclass(frozen=True)
class Trial:
    """One run of one algorithm on one instance.

    Attributes
    ----------
    algorithm, instance : str
    seed : int
    asked_epsilon, delta : float
        What was asked.
    samples : int
        Simulator calls.
    loss : float
        True loss of the returned policy, V*(s) - V^π(s), from the known model: where the claim is, so in the worst
        state if it is about every state.
    certified : bool
        Whether the algorithm vouches for `asked_epsilon` with probability 1 - `delta`.
    epsilon : float or None
        What it vouches for at the end; None if nothing.
    outcome : str
        Why the run ended.
    seconds : float
    scope : str
        Where the policy is claimed to be good: "every state", "state 0", "the start".
    sampling : str
        What the algorithm asks a simulator for: "pairs", "episodes" or "one trajectory".
    loss_anywhere : float or None
        Its loss in the worst state, if that is not what is claimed.
    """

    algorithm: str
    instance: str
    seed: int
    asked_epsilon: float
    delta: float
    samples: int
    loss: float
    certified: bool
    epsilon: float | None
    outcome: str
    seconds: float
    scope: str = "every state"
    sampling: str = "pairs"
    loss_anywhere: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the algorithm vouched for a policy that is not within ε of optimal."""
        return self.certified and self.loss > self.asked_epsilon


@dataclass(frozen=True)
class Skipped:
    """An algorithm that cannot run on an instance, and why."""

    algorithm: str
    instance: str
    reason: str


@dataclass(frozen=True)
class InstanceBound:
    """Lower bound on the mean samples of any (ε, δ)-correct algorithm on an instance.

    Attributes
    ----------
    instance : str
    samples : float or None
        None if it could not be computed.
    reason : str
        Why its search ended: "time limit" says that it could be better.
    """

    instance: str
    samples: float | None
    reason: str


@dataclass(frozen=True)
class InstancePlugIn:
    """What the uncertified plug-in needs on an instance: see `bestpolicy.bounds.plug_in_samples`.

    Attributes
    ----------
    instance : str
    samples : int or None
        With which it is within ε of optimal in most runs; None if that was not found.
    share : float
        In which share of them.
    runs : int
        From how many that was estimated.
    reason : str
        "reached", or why there is no number.
    """

    instance: str
    samples: int | None
    share: float
    runs: int
    reason: str


@dataclass(frozen=True)
class Summary:
    """The runs of one algorithm on one instance.

    Attributes
    ----------
    algorithm, instance : str
    runs : int
    median_samples, lower_quartile, upper_quartile : float
    worst_loss : float
    certified : int
        Runs that ended with a certificate.
    failures : int
        Those of them whose policy is not within ε.
    failure_limit : float
        The failure probability is at most this with confidence 95 % (exact binomial).
    median_seconds : float
    ratio_to_bound, ratio_to_best : float or None
        Median samples over the lower bound on any algorithm's mean, and over the least median on the instance. Only
        if every run was certified: what an unfinished run has used says little of what it needs. The bound is for
        claims about every state by simulating pairs; the best is that of those which sample alike.
    price : float or None
        Median samples over those of the uncertified plug-in, if that was asked for and every run was certified.
    scope, sampling : str
        As in `Trial`.
    """

    algorithm: str
    instance: str
    runs: int
    median_samples: float
    lower_quartile: float
    upper_quartile: float
    worst_loss: float
    certified: int
    failures: int
    failure_limit: float
    median_seconds: float
    ratio_to_bound: float | None
    ratio_to_best: float | None
    price: float | None = None
    scope: str = "every state"
    sampling: str = "pairs"

    @property
    def simulates_pairs(self) -> bool:
        """Whether it needs a simulator that can be put into any state; if not, it follows policies."""
        return self.sampling == "pairs"


Entry = TypeVar("Entry", Trial, Skipped, InstanceBound, InstancePlugIn)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Many algorithms on many instances.

    Attributes
    ----------
    settings : dict
        asked_epsilon, delta, runs, seed, budgets, algorithms with their parameters, instances with their sizes,
        version, and whether it was interrupted.
    rows : tuple of Trial
        By instance, algorithm and seed, in the order in which they were asked for.
    skipped : tuple of Skipped
    lower_bounds : tuple of InstanceBound
    plug_in : tuple of InstancePlugIn
        Empty unless the price was asked for.
    """

    settings: dict[str, Any]
    rows: tuple[Trial, ...]
    skipped: tuple[Skipped, ...] = ()
    lower_bounds: tuple[InstanceBound, ...] = ()
    plug_in: tuple[InstancePlugIn, ...] = ()

    def __repr__(self) -> str:
        pairs = {(row.algorithm, row.instance) for row in self.rows}
        algorithms, instances = len({a for a, _ in pairs}), len({i for _, i in pairs})
        return (
            f"Comparison({algorithms} algorithms on {instances} instances: {len(self.rows)} runs, "
            f"{sum(row.failed for row in self.rows)} failures, {len(self.skipped)} skipped)"
        )

    @property
    def interrupted(self) -> bool:
        """Whether runs are missing because somebody pressed Ctrl-C."""
        return bool(self.settings.get("interrupted", False))

    @property
    def summary(self) -> tuple[Summary, ...]:
        """One entry per algorithm and instance, in the order of the rows."""
        groups: dict[tuple[str, str], list[Trial]] = {}
        for row in self.rows:
            groups.setdefault((row.instance, row.algorithm), []).append(row)
        medians = {key: float(np.median([row.samples for row in rows])) for key, rows in groups.items()}
        pairs = {key: rows[0].sampling == "pairs" for key, rows in groups.items()}
        complete = {key for key, rows in groups.items() if all(row.certified for row in rows)}
        bounds = {bound.instance: bound.samples for bound in self.lower_bounds}
        plug_in = self._plug_in_samples
        summaries = []
        for key, rows in groups.items():
            instance, algorithm = key
            rivals = [other for other in complete if other[0] == instance and pairs[other] == pairs[key]]
            best = min((medians[other] for other in rivals), default=None)
            comparable = key in complete and pairs[key]
            failures = sum(row.failed for row in rows)
            quartiles = np.percentile([row.samples for row in rows], [25, 75])
            summaries.append(
                Summary(
                    algorithm=algorithm,
                    instance=instance,
                    runs=len(rows),
                    median_samples=medians[key],
                    lower_quartile=float(quartiles[0]),
                    upper_quartile=float(quartiles[1]),
                    worst_loss=max(row.loss for row in rows),
                    certified=sum(row.certified for row in rows),
                    failures=failures,
                    failure_limit=binomial_limit(failures, len(rows)),
                    median_seconds=float(np.median([row.seconds for row in rows])),
                    ratio_to_bound=_ratio(medians[key], bounds.get(instance)) if comparable else None,
                    ratio_to_best=_ratio(medians[key], best) if key in complete else None,
                    price=_ratio(medians[key], plug_in.get(instance)) if comparable else None,
                    scope=rows[0].scope,
                    sampling=rows[0].sampling,
                )
            )
        return tuple(summaries)

    @property
    def _plug_in_samples(self) -> dict[str, int | None]:
        return {entry.instance: entry.samples for entry in self.plug_in}

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "skipped": [asdict(entry) for entry in self.skipped],
            "lower_bounds": [asdict(bound) for bound in self.lower_bounds],
            **({"plug_in": [asdict(entry) for entry in self.plug_in]} if self.plug_in else {}),
            "summary": [asdict(entry) for entry in self.summary],
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Comparison:
        """Build a comparison from what `to_dict` returned."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidInput(f"this is not a comparison: its format must be {FORMAT!r}.")
        if content.get("version") not in (1, 2, VERSION):
            raise InvalidInput(f"version {content.get('version')} of the format is not known here. Upgrade to read it.")
        settings = content.get("settings")
        if not isinstance(settings, dict):
            raise InvalidInput("the comparison is damaged: 'settings' must be an object.")
        return cls(
            settings={"asked_epsilon" if name == "epsilon" else name: value for name, value in settings.items()},
            rows=_read(Trial, content, "rows"),
            skipped=_read(Skipped, content, "skipped"),
            lower_bounds=_read(InstanceBound, content, "lower_bounds"),
            plug_in=_read(InstancePlugIn, content, "plug_in") if "plug_in" in content else (),
        )

    def to_csv(self) -> str:
        """Return the rows as CSV, with a heading; what is not known is empty.

        The last column is the price, if it was asked for: of certified runs only.
        """
        return to_csv(self.columns, self.cells())

    @property
    def columns(self) -> list[str]:
        """Headings of `cells`."""
        return [field.name for field in fields(Trial)] + ["price"] * bool(self.plug_in)

    def cells(self) -> list[list[Any]]:
        """Return what there is to know of each run, in the order of `columns`."""
        return [[*asdict(row).values()] + [self._price(row)] * bool(self.plug_in) for row in self.rows]

    def _price(self, row: Trial) -> float | None:
        comparable = row.certified and row.sampling == "pairs"
        return _ratio(row.samples, self._plug_in_samples.get(row.instance)) if comparable else None

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file: the rows if it ends with ``.csv``, else everything as JSON."""
        as_csv = Path(path).suffix == ".csv"
        text = self.to_csv() if as_csv else json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Comparison:
        """Read a JSON file that `save` wrote."""
        try:
            if Path(path).stat().st_size > _LARGEST_FILE:
                raise ValueError(f"it is larger than {_LARGEST_FILE // 2**20} MB")
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as error:
            what = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
            raise InvalidInput(f"cannot read {path}: {what}. Give a JSON file of 'bestpolicy compare'.") from None


def to_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def binomial_limit(failures: int, runs: int, confidence: float = CONFIDENCE) -> float:
    """Exact upper confidence limit (Clopper and Pearson) on a probability after so many failures in so many runs."""
    return 1.0 if failures >= runs else float(betaincinv(failures + 1, runs - failures, confidence))


def _read(kind: type[Entry], content: dict[str, Any], part: str) -> tuple[Entry, ...]:
    """Build the entries of one part of a document, each of whose fields must be there and of its type."""
    entries, types = content.get(part), {field.name: str(field.type) for field in fields(kind)}
    optional = {field.name for field in fields(kind) if field.default is not MISSING}  # that older versions lack
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput(f"the comparison is damaged: {part!r} must be a list of objects.")
    entries = [up_to_date(entry) for entry in entries]
    for number, entry in enumerate(entries):
        where = f"the comparison is damaged: entry {number} of {part!r}"
        odd = sorted((entry.keys() ^ types.keys()) - (optional - entry.keys()))
        if odd:
            raise InvalidInput(f"{where} lacks {odd[0]!r}." if odd[0] in types else f"{where} has {odd[0]!r} besides.")
        for name, value in entry.items():
            if type(value) not in _TYPES[types[name]] or (isinstance(value, float) and not isfinite(value)):
                raise InvalidInput(f"{where}: {name!r} must be of type {types[name]}. Got {value!r:.40} instead.")
    return tuple(kind(**entry) for entry in entries)


def up_to_date(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of a run in the words of today; it may be of the first version."""
    if "certified_epsilon" not in entry:
        return entry
    asked = {"asked_epsilon": entry["epsilon"]} if "epsilon" in entry else {}
    kept = {name: value for name, value in entry.items() if name != "certified_epsilon"}
    return kept | asked | {"epsilon": entry["certified_epsilon"]}


def _ratio(samples: float, reference: float | None) -> float | None:
    return samples / reference if reference and reference >= 1 else None  # a bound below one sample bounds nothing
