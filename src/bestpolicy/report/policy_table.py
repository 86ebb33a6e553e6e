"""The policy as a table that can be read, sorted, copied and downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from bestpolicy.problem import IntArray, Problem
from bestpolicy.report.estimates import Estimates
from bestpolicy.report.page import data_link, to_csv

_ROWS_SHOWN = 500
_ROWS_OPEN = 30
_FULL_ROWS = 20_000  # beyond it the file holds the actions alone
_LARGEST_FILE = 2_500_000


def policy_table(problem: Problem, policy: IntArray | None, found: Estimates | None) -> dict[str, Any] | None:
    """Return the first rows, and all of them as a file; None if no policy is known.

    Parameters
    ----------
    problem : Problem
    policy : int array (stages, S), optional
        The one that a certificate is about.
    found : Estimates, optional
        Of that policy, or of the best one so far.
    """
    chosen = policy if policy is not None else None if found is None else found.policy
    if chosen is None:
        return None
    columns = [*(["step"] if problem.horizon is not None else []), "state", "action"]
    kept = len(columns)
    if found is not None:
        columns += ["value", "rival", "gap", "gap_error"]
        kept = len(columns) if chosen.size <= _FULL_ROWS else kept
    text = to_csv(columns[:kept], (row[:kept] for row in _rows(problem, chosen, found)))
    return {
        "columns": columns,
        "rows": list(islice(_rows(problem, chosen, found), _ROWS_SHOWN)),
        "total": chosen.size,
        "open": chosen.size <= _ROWS_OPEN,
        "csv": data_link(text) if len(text) <= _LARGEST_FILE else "",
        "certain": policy is not None,
        "estimated": found is not None,
    }


def _rows(problem: Problem, policy: IntArray, found: Estimates | None) -> Iterator[list[Any]]:
    for stage, actions in enumerate(policy.tolist()):
        for state, action in enumerate(actions):
            row = [state, action] if problem.horizon is None else [stage, state, action]
            yield row if found is None else row + _estimates(found, stage, state)


def _estimates(found: Estimates, stage: int, state: int) -> list[Any]:
    rival = int(found.rivals[stage, state])
    gap = [rival, _short(found.gaps[stage, state]), _short(found.gap_errors[stage, state])] if rival >= 0 else [""] * 3
    return [_short(found.values[stage, state]), *gap]


def _short(number: Any) -> float:
    return float(f"{float(number):.6g}")
