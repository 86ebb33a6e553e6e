"""Pictures that compare: algorithms on instances, and measured growth against a theorem's."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy.comparison import Comparison, Summary
from bestpolicy.errors import InvalidInput
from bestpolicy.pictures.drawing import INK, SERIES, WIDTH, appearance, logarithmic, new_figure, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 80
_LONGEST = 30  # letters of a name beside the picture
_ROW_INCHES, _HEADING = 0.19, 1.5  # height of a line, and of an instance's name in lines


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw the simulator calls of algorithms on instances, with their spread.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    matplotlib.figure.Figure
        Per instance the algorithms, best first: runs as small dots, the middle half as a bar and the median as a
        symbol, a hollow square if some run ended without a certificate; the lower bound as a vertical line.
    """
    groups = by_instance(comparison.summary)
    if not groups:
        raise InvalidInput("there are no runs to draw. Give a comparison in which something has run.")
    bounds = {bound.instance: bound.samples for bound in comparison.lower_bounds}
    samples: dict[tuple[str, str], list[int]] = {}
    for row in comparison.rows:
        samples.setdefault((row.instance, row.algorithm), []).append(max(row.samples, 1))
    drawn = sum(map(len, groups.values()))
    rows = min(drawn, MOST_LINES) + _HEADING * len(groups)
    figure, (axis,) = new_figure(WIDTH, 0.75 + _ROW_INCHES * rows)
    names: dict[float, str] = {}
    heads: list[int] = []
    position, left = 0.0, MOST_LINES
    with style():
        for instance, entries in groups.items():
            shown = entries[:left]
            left -= len(shown)
            if not shown:
                break
            position += _HEADING
            heads.append(len(names))
            names[position - 1.0] = _short(instance)
            _floor(axis, position - 0.45, position + len(shown) - 0.55, bounds.get(instance))
            for entry in shown:
                _spread(axis, position, entry, samples[instance, entry.algorithm])
                names[position] = _short(entry.algorithm)
                position += 1.0
        axis.set_yticks(list(names), list(names.values()))
        for number in heads:
            axis.get_yticklabels()[number].set_fontweight("bold")
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(position - 0.4, 0.0)
        axis.set_xlabel("simulator calls")
        logarithmic(axis, "x")
        axis.grid(True, axis="x")
        _legend(axis)
    return figure


def by_instance(summary: Sequence[Summary]) -> dict[str, list[Summary]]:
    """The entries of each instance: who simulates pairs, then who follows policies; who was always certified first."""
    groups: dict[str, list[Summary]] = {}
    for entry in summary:
        groups.setdefault(entry.instance, []).append(entry)
    return {
        instance: sorted(
            entries,
            key=lambda entry: (not entry.simulates_pairs, entry.certified < entry.runs, entry.median_samples),
        )
        for instance, entries in groups.items()
    }


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


def _spread(axis: Axes, height: float, entry: Summary, samples: Sequence[int]) -> None:
    sure = entry.certified == entry.runs
    colour = SERIES[0] if sure else SERIES[1]
    if len(samples) > 1:
        axis.plot(samples, np.full(len(samples), height), ".", color=colour, alpha=0.35, markersize=4)
        quartiles = [max(entry.lower_quartile, 1.0), max(entry.upper_quartile, 1.0)]
        axis.plot(quartiles, [height, height], color=colour, linewidth=3.5, solid_capstyle="butt", alpha=0.75)
    axis.plot(
        max(entry.median_samples, 1.0),
        height,
        marker="o" if sure else "s",
        color=colour,
        markerfacecolor=colour if sure else "none",
        markeredgewidth=1.4,
        markersize=5.5,
        linestyle="none",
        label="certified" if sure else "not always certified",
    )


def _floor(axis: Axes, top: float, bottom: float, bound: float | None) -> None:
    if bound is not None and 1 <= bound < inf:
        axis.plot([bound, bound], [top, bottom], color=INK, linewidth=2.2, label="lower bound")


def _legend(axis: Axes) -> None:
    """One entry a kind of mark, above the picture."""
    handles, names = axis.get_legend_handles_labels()
    kinds = dict(zip(names, handles, strict=True))
    axis.legend(
        list(kinds.values()),
        list(kinds),
        ncols=len(kinds),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.2,
        handletextpad=0.4,
    )


def _short(name: str) -> str:
    return plain(name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…")
