"""Pictures that compare: algorithms on instances, and measured growth against a theorem's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FloatArray
from bestpolicy.report.figures.drawing import INK, WIDTH, appearance, logarithmic, new_figure, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 80


def comparison_figure(rows: Sequence[Mapping[str, Any]], lower_bounds: Mapping[str, float] | None = None) -> Figure:
    """Draw the simulator calls of algorithms on instances, with their spread.

    Parameters
    ----------
    rows : sequence of dict
        One per run, with instance, algorithm, samples and certified; all instances that fit are drawn, in order.
    lower_bounds : dict, optional
        Per instance, the calls that every algorithm needs.

    Returns
    -------
    matplotlib.figure.Figure
        Per instance and algorithm, runs as small dots, the middle half as a bar and the median as a symbol, hollow if
        some run ended without a certificate; the lower bound as a vertical line.
    """
    lines = lines_of(rows)[:MOST_LINES]
    if not lines:
        raise InvalidInput("there are no runs to draw. Give rows with instance, algorithm and samples.")
    algorithms = list(dict.fromkeys(algorithm for _, algorithm in lines))
    position, heights, labels = 0.0, [], []
    for index, (instance, _) in enumerate(lines):
        first = index == 0 or lines[index - 1][0] != instance
        position += 0.75 if first and index else 0.0
        heights.append(position)
        labels.append(plain(instance) if first else "")
        position += 0.5
    figure, (axis,) = new_figure(WIDTH, max(1.6, 0.9 + 0.36 * position))
    seen = set[str]()
    with style():
        for height, (instance, algorithm) in zip(heights, lines, strict=True):
            runs = [row for row in rows if (row["instance"], row["algorithm"]) == (instance, algorithm)]
            number = algorithms.index(algorithm)
            _spread(axis, height, runs, number, "" if algorithm in seen else plain(algorithm))
            seen.add(algorithm)
        _floors(axis, lines, heights, lower_bounds or {})
        starts = [i for i, label in enumerate(labels) if label]
        ends = [*starts[1:], len(lines)]
        middles = [(heights[a] + heights[b - 1]) / 2 for a, b in zip(starts, ends, strict=True)]
        axis.set_yticks(middles, [labels[i] for i in starts])
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(position - 0.1, -0.45)
        axis.set_xlabel("simulator calls")
        logarithmic(axis, "x")
        axis.grid(True, axis="x")
        columns = min(5, len(seen) + 1)
        axis.legend(ncols=columns, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handletextpad=0.4)
    return figure


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(instance, algorithm) of the rows that can be drawn, grouped by instance, in order of appearance."""
    drawn = [row for row in rows if row["samples"] is not None and row["samples"] > 0]
    instances = dict.fromkeys(row["instance"] for row in drawn)
    return [
        (instance, algorithm)
        for instance in instances
        for algorithm in dict.fromkeys(row["algorithm"] for row in drawn if row["instance"] == instance)
    ]


def scaling_figure(
    x: ArrayLike,
    samples: ArrayLike,
    *,
    slope: float | None = None,
    labels: Sequence[str] = (),
    xlabel: str = "x",
    ylabel: str = "simulator calls",
    slope_label: str = "",
) -> Figure:
    """Draw measured samples against a quantity on logarithmic axes, with the slope that a theorem states.

    Parameters
    ----------
    x : array (n,)
        What was varied: 1/ε, d, 1/(1-γ), …
    samples : array (n,), (series, n) or (series, n, repetitions)
        What was measured; nan where it was not. Of repetitions, the median and the middle half are drawn.
    slope : float, optional
        Exponent of the theorem: a line of that slope through the last point of each series.
    labels : sequence of str
        Names of the series.
    xlabel, ylabel, slope_label : str
    """
    at, measured = np.asarray(x, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    measured = (
        measured[None, :, None] if measured.ndim == 1 else measured[:, :, None] if measured.ndim == 2 else measured
    )
    if at.ndim != 1 or measured.ndim != 3 or measured.shape[1] != len(at) or not len(at):
        raise InvalidInput(f"samples must have shape (n,), (series, n) or (series, n, repetitions) with n = {at.size}.")
    if not (at > 0).all() or (measured <= 0).any():
        raise InvalidInput("x and samples must be positive: the axes are logarithmic.")
    if labels and len(labels) != len(measured):
        raise InvalidInput(f"give one label per series. Got {len(labels)} for {len(measured)}.")
    figure, (axis,) = new_figure(6.2, 3.8)
    with style():
        for number, series in enumerate(measured):
            look = appearance(number)
            known = np.isfinite(series).any(axis=1)
            low, middle, high = np.nanpercentile(series[known], (25, 50, 75), axis=1)
            axis.fill_between(at[known], low, high, color=look["color"], alpha=0.25, linewidth=0)
            name = plain(labels[number]) if labels else None
            axis.plot(at[known], middle, label=name, **look)
            if slope is not None and known.any():
                line = middle[-1] * (at / at[known][-1]) ** slope
                stated = slope_label or f"slope {slope:g}"
                label = plain(stated) if number == len(measured) - 1 else None
                axis.plot(at, line, color=INK, linestyle="--", linewidth=1.2, label=label)
        axis.set_xlabel(plain(xlabel))
        axis.set_ylabel(plain(ylabel))
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.grid(True)
        if labels or slope is not None:
            axis.legend()
    return figure


def _spread(axis: Axes, height: float, runs: Sequence[Mapping[str, Any]], number: int, label: str) -> None:
    samples: FloatArray = np.array([float(row["samples"]) for row in runs if row["samples"]])
    low, middle, high = np.percentile(samples, (25, 50, 75))
    look = appearance(number)
    colour = look["color"]
    if len(samples) > 1:
        axis.plot(samples, np.full(len(samples), height), ".", color=colour, alpha=0.35, markersize=4)
        axis.plot([low, high], [height, height], color=colour, linewidth=3.5, solid_capstyle="butt", alpha=0.75)
    sure = all(row.get("certified") for row in runs)
    axis.plot(
        middle,
        height,
        **look,
        markerfacecolor=colour if sure else "none",
        markeredgewidth=1.4,
        markersize=6,
        linestyle="none",
        label=label or None,
    )


def _floors(
    axis: Axes, lines: Sequence[tuple[str, str]], heights: Sequence[float], lower_bounds: Mapping[str, float]
) -> None:
    label: str | None = "lower bound"
    for instance in dict.fromkeys(instance for instance, _ in lines):
        bound = lower_bounds.get(instance)
        if bound is None or not isfinite(bound) or bound < 1:
            continue
        here = [height for height, (own, _) in zip(heights, lines, strict=True) if own == instance]
        axis.plot([bound, bound], [min(here) - 0.25, max(here) + 0.25], color=INK, linewidth=2.2, label=label)
        label = None
