"""How a run approached its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.pictures.drawing import INK, SERIES, WIDTH, logarithmic, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 400


def progress_figure(
    checks: Sequence[Mapping[str, Any]],
    *,
    asked: float,
    forecast: float | None = None,
    lower_bound: float | None = None,
) -> Figure:
    """Draw what was certified, and how far the statistic was, against simulator calls.

    Parameters
    ----------
    checks : sequence of dict
        As `Check.to_dict` gives them, at least one.
    asked : float
        The ε that was asked for.
    forecast : float, optional
        Simulator calls that the whole run should need, if it is not over.
    lower_bound : float, optional
        Simulator calls that every algorithm needs.

    Returns
    -------
    matplotlib.figure.Figure
        Certified ε above (left out where nothing was certified before the end), statistic over threshold below.
    """
    shown = _thinned(checks)
    samples = _column(shown, "samples", 1.0)
    epsilon = _column(shown, "epsilon", inf)
    known = np.isfinite(epsilon) & (epsilon > 0)
    with_epsilon = int(known.sum()) > 1
    figure, panels = new_figure(WIDTH, 4.6 if with_epsilon else 2.7, 2 if with_epsilon else 1, sharex=True)
    with style():
        if with_epsilon:
            _certified(panels[0], samples[known], epsilon[known], asked)
        _statistic(panels[-1], samples, shown)
        marks = ((lower_bound, SERIES[2], "--", "lower bound"), (forecast, INK, ":", "forecast"))
        for position, colour, line, label in marks:
            if position is not None and 0 < position < inf:
                for panel in panels:
                    panel.axvline(position, color=colour, linestyle=line, linewidth=1.4)
                _note(panels[0], position, label)
        right = max([samples.max(), *(p for p in (lower_bound, forecast) if p is not None and 0 < p < inf)])
        left = min([samples.min(), *(p for p in (lower_bound,) if p is not None and p >= 1)])
        panels[-1].set_xlim(left / 1.3, right * 1.6)
        panels[-1].set_xlabel("simulator calls")
        logarithmic(panels[-1], "x")
        for panel in panels:
            panel.grid(True)
    return figure


def _thinned(checks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most so many checks, the first and the last among them."""
    if len(checks) <= _MOST_POINTS:
        return list(checks)
    return [checks[i] for i in np.unique(np.linspace(0, len(checks) - 1, _MOST_POINTS).round().astype(int))]


def _column(checks: Sequence[Mapping[str, Any]], key: str, missing: float) -> FloatArray:
    values = [missing if check[key] is None else float(check[key]) for check in checks]
    return np.array([max(value, 1.0) for value in values] if key == "samples" else values)


def _certified(axis: Axes, samples: FloatArray, epsilon: FloatArray, asked: float) -> None:
    axis.step(samples, epsilon, where="post", color=SERIES[0])
    axis.plot(samples[-1], epsilon[-1], "o", color=SERIES[0])
    if asked > 0:
        axis.axhline(asked, color=SERIES[1], linewidth=1.4)
        _note(axis, asked, "asked", across=True)
    low, high = min(epsilon.min(), asked or inf), epsilon.max()
    axis.set_ylim(low / 1.3, high * 1.6)
    axis.set_title("certified distance from optimal, ε")
    logarithmic(axis, "y")


def _statistic(axis: Axes, samples: FloatArray, checks: Sequence[Mapping[str, Any]]) -> None:
    statistic, threshold = _column(checks, "statistic", inf), _column(checks, "threshold", inf)
    with np.errstate(all="ignore"):
        share = np.where(threshold > 0, statistic / threshold, inf)
    good = np.isfinite(share) & (share > 0)
    axis.set_title("evidence: statistic over threshold (the run may stop above 1)")
    axis.axhline(1.0, color=SERIES[1], linewidth=1.4)
    if good.any():
        axis.plot(samples[good], share[good], color=SERIES[0])
        axis.plot(samples[good][-1], share[good][-1], "o", color=SERIES[0])
        low = min(max(share[good].min(), 1e-4), share[good][-1])  # where it stands must be seen
        axis.set_ylim(low / 1.5, max(share[good].max(), 1.0) * 2.0)
        logarithmic(axis, "y")


def _note(axis: Axes, position: float, label: str, across: bool = False) -> None:
    """Write beside a line what it is: at its left end, or along its top."""
    if across:
        axis.annotate(
            label, (0.0, position), (6, 4), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8
        )
    else:
        axis.annotate(
            label,
            (position, 1.0),
            (-4, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            fontsize=8,
        )
