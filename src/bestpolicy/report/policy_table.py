"""The policy as a table that can be read, sorted, copied and downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.comparison.comparison import to_csv
from bestpolicy.pictures.labels import Labels
from bestpolicy.problem import Problem
from bestpolicy.report.estimates import Estimates
from bestpolicy.report.page import data_link

_ROWS_SHOWN = 500
_ROWS_OPEN = 30
_FULL_ROWS = 20_000  # beyond it the file holds the actions alone
_LARGEST_FILE = 2_500_000


def policy_table(problem: Problem, policy: IntArray, estimates: Estimates | None, labels: Labels) -> dict[str, Any]:
    """Return the first rows, and all of them as a file.

    Parameters
    ----------
    problem : Problem
    policy : int array (stages, S)
    estimates : Estimates, optional
        Of that policy.
    labels : Labels
    """
    columns = [*(["step"] if problem.horizon is not None else []), "state", "action"]
    kept = len(columns)
    if estimates is not None:
        columns += ["value", "rival", "gap", "gap_error"]
        kept = len(columns) if policy.size <= _FULL_ROWS else kept
    text = to_csv(
        columns[:kept], ([text for text, _ in row[:kept]] for row in _rows(problem, policy, estimates, labels))
    )
    return {
        "columns": [(column.replace("_", " "), "number") for column in columns],
        "rows": list(islice(_rows(problem, policy, estimates, labels), _ROWS_SHOWN)),
        "total": policy.size,
        "open": policy.size <= _ROWS_OPEN,
        "csv": data_link(text) if len(text) <= _LARGEST_FILE else "",
        "estimated": estimates is not None,
    }


def _rows(
    problem: Problem, policy: IntArray, estimates: Estimates | None, labels: Labels
) -> Iterator[list[tuple[str, float | str]]]:
    """Per step and state, cells of (text, what to sort by)."""
    for stage, actions in enumerate(policy.tolist()):
        for state, action in enumerate(actions):
            row: list[tuple[str, float | str]] = [(str(stage), stage)] if problem.horizon is not None else []
            row += [(labels.state(state), state), (labels.action(action), action)]
            yield row if estimates is None else row + _estimates(estimates, stage, state, labels)


def _estimates(estimates: Estimates, stage: int, state: int, labels: Labels) -> list[tuple[str, float | str]]:
    rival = int(estimates.rivals[stage, state])
    value = _short(estimates.values[stage, state])
    if rival < 0:
        return [value, *[("", "")] * 3]
    gap, error = _short(estimates.gaps[stage, state]), _short(estimates.gap_errors[stage, state])
    return [value, (labels.action(rival), rival), gap, error]


def _short(number: Any) -> tuple[str, float]:
    value = float(f"{float(number):.6g}")
    return str(value), value
