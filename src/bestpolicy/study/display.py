"""A result in a notebook: as a table of HTML, as a frame, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.certificate import Origin
from bestpolicy.errors import InvalidInput
from bestpolicy.pictures import Drawn, chart_of, list_chart, policy_figure
from bestpolicy.pictures.labels import Labels
from bestpolicy.pictures.progress import progress_figure
from bestpolicy.stopping import Check
from bestpolicy.study.values import estimated_q_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 20

Rows = list[dict[str, Any]]


def as_html(sentence: str, facts: str, rows: Rows) -> str:
    """Return what a notebook shows: the claim, and the first rows of the policy."""
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in names) + "</tr>" for row in rows[:_ROWS])
    more = f"<p>… {len(rows):,} rows in all: result.to_frame()</p>" if len(rows) > _ROWS else ""
    claim = f"<p><b>{escape(sentence)}</b><br>{escape(facts)}</p>"
    return f"{claim}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def as_frame(rows: Rows) -> Any:
    """Return a `pandas.DataFrame`."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise InvalidInput("to_frame needs pandas: pip install pandas. Without it, use result.rows().") from None
    return pandas.DataFrame(rows)


def as_picture(checks: Sequence[Check], asked: float) -> Figure:
    """Draw what was certified after how many simulator calls."""
    if not checks:
        raise InvalidInput("nothing was looked at so far, so there is nothing to draw of the run.")
    return progress_figure([check.to_dict() for check in checks], asked=asked)


def policy_picture(origin: Origin, policy: IntArray, states: Sequence[Any]) -> Figure:
    """Draw a policy (stages, S) where its states stand, with its values as estimated from all samples."""
    problem, units, tally = origin.problem, origin.settings.units, origin.measured()
    values = None
    if tally is not None:
        q_values = estimated_q_values(problem, tally, policy, units)
        values = np.take_along_axis(q_values, policy[:, :, None], axis=2)[:, :, 0]
    chart = chart_of(problem, units, tally) or list_chart(states)
    drawn = Drawn(policy, values, choice=problem.mask.sum(axis=1) > 1)
    return policy_figure(chart, drawn, Labels.of(units, problem), episodic=problem.horizon is not None)
