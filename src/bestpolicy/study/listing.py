"""Which studies are in a file, and how far is each?"""

from __future__ import annotations

from dataclasses import replace
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
    return [replace(one, forecast=stored_forecast(one.settings, one.problem, one.trace)) for one in records]
