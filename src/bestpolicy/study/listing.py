"""Which studies are in a file, and how far is each?"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from os import PathLike

from bestpolicy._numerics.inputs import file_path
from bestpolicy.study.forecast import stored_forecast
from bestpolicy.study.journal import Record
from bestpolicy.study.store import Store


def studies(path: str | PathLike[str]) -> list[Record]:
    """Return what a file says of each of its studies, oldest first; they may be running.

    >>> import bestpolicy as bp
    >>> [(study.name, study.epsilon, study.outcome) for study in bp.studies("run.db")]  # doctest: +SKIP
    [('study', 0.0981, <Outcome.CERTIFIED: 'certified'>)]

    Parameters
    ----------
    path : path
        A file that ``store=`` or ``--store`` has written.
    """
    with Store(file_path("path", path)) as store:
        records = [store.read(number) for number in store.names().values()]
    return [replace(one, forecast=_forecast(one)) for one in records]


def _forecast(record: Record) -> float | None:
    if record.is_listed:
        return stored_forecast(record.settings, record.problem, record.trace)
    known = record.trace[-1] if record.trace else None
    return known.forecast if known is not None and 0 < known.forecast < inf else None
