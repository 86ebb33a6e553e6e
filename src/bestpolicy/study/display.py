"""A result in a notebook: as a table of HTML, as a frame, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from bestpolicy.errors import InvalidInput
from bestpolicy.stopping import Check

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
    try:
        figure_kind = import_module("matplotlib.figure").Figure
    except ImportError:
        raise InvalidInput("plot needs matplotlib: pip install bestpolicy[report]") from None
    figure: Figure = figure_kind(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    known = [check for check in checks if isfinite(check.epsilon)]
    axes.step([check.samples for check in known], [check.epsilon for check in known], where="post", label="certified ε")
    if asked > 0:
        axes.axhline(asked, linestyle="--", color="gray", label="asked for")
    axes.set(xlabel="simulator calls", ylabel="ε", title="" if known else "nothing is certified so far")
    if known and min(check.epsilon for check in known) > 0:
        axes.set(xscale="log", yscale="log")
    axes.legend()
    return figure
