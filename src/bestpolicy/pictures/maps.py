"""The policy where its states stand: a map with arrows, actions by two coordinates, a line over one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.pictures.chart import Axis, Chart
from bestpolicy.pictures.drawing import INK, SEQUENCE, SERIES, WIDTH, appearance, new_figure, plain, style
from bestpolicy.pictures.labels import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 24
_MOST_STEPS = 4  # of a map whose policy changes with time
_MOST_TILES = 600
_MOST_SIGNS = 1600
_MOST_KINDS = 12  # actions that a legend names
_LONGEST = 14


@dataclass(frozen=True, eq=False)
class Drawn:
    """What is drawn of each step and state.

    Attributes
    ----------
    policy : int array (stages, S)
    values : array (stages, S), optional
    errors : array (stages, S), optional
        Standard errors of the values.
    sure : bool array (stages, S), optional
        Where the action is told from its rival by two standard errors; elsewhere its sign is pale.
    choice : bool array (S,), optional
        Where there is more than one action.
    """

    policy: IntArray
    values: FloatArray | None = None
    errors: FloatArray | None = None
    sure: Any = None
    choice: Any = None


def policy_figure(chart: Chart, drawn: Drawn, labels: Labels, *, episodic: bool = False) -> Figure:
    """Draw a policy on a chart.

    Parameters
    ----------
    chart : Chart
    drawn : Drawn
    labels : Labels
        What actions are called.
    episodic : bool
        Whether there is a policy for each step.

    Returns
    -------
    matplotlib.figure.Figure
        If actions lead from cell to cell, a map: colours are values and signs are actions. Else colours are actions;
        with two coordinates (a step counts as one) values stand below; with one, both are lines.
    """
    steps = range(len(drawn.policy)) if episodic else range(1)
    with style():
        if chart.signs and len(chart.axes) > 1:
            picked = _spread(len(steps), _MOST_STEPS)
            return _maps(list(_panels(chart, drawn, [steps[i] for i in picked], episodic)), chart, labels)
        if len(chart.axes) == 1:
            return _by_time(chart, drawn, labels) if episodic else _line(chart, drawn, labels)
        if len(chart.axes) == 2 and not episodic:
            (panel,) = _panels(chart, drawn, [0], False)
            return _action_and_value(panel, labels)
        picked = _spread(len(steps), 6)
        return _many(list(_panels(chart, drawn, [steps[i] for i in picked], episodic)), labels)


@dataclass(frozen=True, eq=False)
class _Panel:
    title: str
    across: Axis
    along: Axis
    upwards: bool
    actions: Any  # masked int table, row 0 at the bottom
    values: Any
    sure: Any
    choice: Any


def _panels(chart: Chart, drawn: Drawn, steps: list[int], episodic: bool) -> Iterator[_Panel]:
    """Tables of two coordinates, one for each level of the others; not all if these are many."""
    placed = (chart.places >= 0).all(axis=1)
    others = [_spread(len(axis.levels), MOST_PANELS if len(chart.axes) == 3 else 5) for axis in chart.axes[2:]]
    across, along = chart.axes[:2]
    for step, *chosen in product(steps, *others):
        here = placed & (chart.places[:, 2:] == np.array(chosen, dtype=np.int64)).all(axis=1)
        names = [f"step {step}"] if episodic else []
        names += [
            f"{axis.name} {axis.levels[level]}" if axis.name else f"coordinate {number} = {axis.levels[level]}"
            for number, (axis, level) in enumerate(zip(chart.axes[2:], chosen, strict=True), start=3)
        ]
        yield _panel(", ".join(names), across, along, chart.places[here, :2], here, drawn, step, chart.upwards)


def _panel(
    title: str, across: Axis, along: Axis, places: IntArray, here: Any, drawn: Drawn, step: int, upwards: bool
) -> _Panel:
    shape = len(along.levels), len(across.levels)
    rows = places[:, 1] if upwards else shape[0] - 1 - places[:, 1]

    def table(entries: Any, default: Any) -> Any:
        filled = np.full(shape, default, dtype=np.asarray(entries).dtype)
        filled[rows, places[:, 0]] = entries
        return filled

    missing = table(np.zeros(len(places), np.bool_), True)
    values = None if drawn.values is None else np.ma.masked_invalid(table(drawn.values[step, here], np.nan))
    sure = None if drawn.sure is None else table(drawn.sure[step, here], True)
    choice = None if drawn.choice is None else table(drawn.choice[here], True)
    return _Panel(
        title,
        across,
        along,
        upwards,
        np.ma.array(table(drawn.policy[step, here], 0), mask=missing),
        values,
        sure,
        choice,
    )


def _maps(panels: list[_Panel], chart: Chart, labels: Labels) -> Figure:
    """Values as colours and actions as signs, one map a panel."""
    many, (rows, columns) = len(panels), panels[0].actions.shape
    abreast = 1 if many == 1 else max(1, min(4, many, 24 // columns))
    height = -(-many // abreast)
    size = min(0.62, (WIDTH - 0.8) / (abreast * columns))
    figure, axes = new_figure(
        max(3.2, min(WIDTH, abreast * columns * size + 1.2)),
        max(1.8, height * (rows * size + 0.35) + 0.4),
        height,
        abreast,
    )
    known = [panel.values for panel in panels if panel.values is not None]
    limits = {}
    if known:
        every = np.concatenate([table.compressed() for table in known])
        limits = {"vmin": float(every.min()), "vmax": float(every.max())} if every.size else {}
    mesh = None
    for axis, panel in zip(axes, panels, strict=False):
        shown = panel.actions if panel.values is None else panel.values
        mesh = heat_map(axis, shown if known else np.ma.array(0.0 * shown, mask=shown.mask), **limits)
        axis.set_aspect("equal")
        axis.set_xticks([])
        axis.set_yticks([])
        if panel.title:
            axis.set_title(plain(panel.title), fontsize=7.5, pad=3)
        if panel.actions.size * many <= 3 * _MOST_SIGNS:
            _write(axis, panel, chart.signs, min(13.0, 46 * size), mesh.to_rgba(shown) if known else None)
    for axis in axes[many:]:
        axis.set_axis_off()
    if known:
        colour_bar(figure, mesh, list(axes), "value")
    del labels
    return figure


def _write(axis: Axes, panel: _Panel, signs: tuple[str, ...] | list[str], size: float, colours: Any) -> None:
    """Write what is played into each cell, in black or white, pale where it is not sure, a dot without a choice."""
    for row, column in np.argwhere(~np.ma.getmaskarray(panel.actions)[::-1]).tolist():  # as one reads
        row = len(panel.actions) - 1 - row
        action = int(panel.actions[row, column])
        free = panel.choice is None or bool(panel.choice[row, column])
        sure = panel.sure is None or bool(panel.sure[row, column]) or not free
        light = colours is not None and float(np.asarray(colours)[row, column, :3] @ (0.299, 0.587, 0.114)) > 0.55
        axis.text(
            column + 0.5,
            row + 0.5,
            signs[action] if free and action < len(signs) else "·",
            ha="center",
            va="center",
            color="black" if light else "white",
            alpha=1.0 if sure else 0.55,
            fontsize=max(5.5, size),
        )


def _action_and_value(panel: _Panel, labels: Labels) -> Figure:
    """Two maps, one above the other: what is played, and what a state is worth."""
    rows, columns = panel.actions.shape
    both = panel.values is not None
    height = max(1.6, min(3.6, 0.3 * rows + 0.9))
    figure, axes = new_figure(WIDTH, height * (2 if both else 1) + 0.3, 2 if both else 1)
    kinds = _Kinds(labels, [panel])
    kinds.draw(axes[0], panel, min(8.5, 190 / columns, 190 / rows))
    kinds.explain(figure, axes[:1])
    if both:
        colour_bar(figure, heat_map(axes[1], panel.values), [axes[1]], "value")
    for axis in axes:
        _ticks(axis, panel)
        axis.set_ylabel(plain(panel.along.name or "second coordinate"))
    axes[-1].set_xlabel(plain(panel.across.name or "first coordinate"))
    return figure


def _many(panels: list[_Panel], labels: Labels) -> Figure:
    """Maps of actions side by side."""
    rows, columns = panels[0].actions.shape
    abreast = min(len(panels), 3 if len(panels) > 4 else 2)
    height = -(-len(panels) // abreast)
    width = (WIDTH - 1.0) / abreast
    each = max(0.8, min(2.6, width * rows / columns)) + 0.3
    figure, axes = new_figure(WIDTH, height * each + 0.7, height, abreast, sharex=True, sharey=True)
    kinds = _Kinds(labels, panels)
    for axis, panel in zip(axes, panels, strict=False):
        kinds.draw(axis, panel, min(8.0, 55 * width / columns))
        axis.set_title(plain(panel.title), fontsize=8, pad=3)
        _ticks(axis, panel, 6)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    kinds.explain(figure, axes)
    figure.supxlabel(plain(panels[0].across.name or "first coordinate"), fontsize=8.5, color=INK)
    figure.supylabel(plain(panels[0].along.name or "second coordinate"), fontsize=8.5, color=INK)
    return figure


class _Kinds:
    """Colours of actions: a scale if they are amounts, else one each with a legend."""

    def __init__(self, labels: Labels, panels: list[_Panel]) -> None:
        from matplotlib.colors import ListedColormap, Normalize

        self._labels = labels
        self._used = sorted({int(a) for panel in panels for a in np.unique(panel.actions.compressed())})
        amounts = labels.amounts
        self._amounts = amounts if amounts is not None and len(self._used) > 2 else None
        self._mesh: Any = None
        if self._amounts is not None:
            span = [self._amounts[action] for action in self._used]
            self._settings: dict[str, Any] = {"vmin": min(span), "vmax": max(span)}
        else:
            palette = ListedColormap([SERIES[i % len(SERIES)] for i in range(len(self._used))])
            self._settings = {"cmap": palette, "norm": Normalize(-0.5, len(self._used) - 0.5)}

    def draw(self, axis: Axes, panel: _Panel, size: float) -> None:
        """Colour a map, and write into its cells what is played if that can be read."""
        mask = np.ma.getmaskarray(panel.actions)
        if self._amounts is not None:
            table = np.ma.array(np.asarray(self._amounts)[panel.actions.filled(0)], mask=mask)
            signs = [_short(self._labels.action(a)) for a in range(len(self._amounts))]
        else:
            table = np.ma.array(np.searchsorted(self._used, panel.actions.filled(self._used[0])), mask=mask)
            signs = self._signs()
        self._mesh = heat_map(axis, table, **self._settings)
        if size >= 5.5 and max(map(len, signs)) <= 3 and panel.actions.size <= _MOST_SIGNS:
            _write(axis, panel, signs, size, self._mesh.to_rgba(table) if self._amounts is not None else None)

    def explain(self, figure: Figure, axes: list[Axes]) -> None:
        """Say what the colours mean."""
        if self._amounts is not None:
            colour_bar(figure, self._mesh, axes, "action")
            return
        from matplotlib.patches import Patch

        signs = self._signs()
        shown = self._used[:_MOST_KINDS]
        names = [plain(_named(self._labels.action(action), signs[action])) for action in shown]
        marks = [Patch(color=SERIES[i % len(SERIES)], label=name) for i, name in enumerate(names)]
        abreast = max(1, min(len(names), 60 // (max(map(len, names)) + 6)))
        figure.legend(handles=marks, loc="outside upper left", ncols=abreast, handlelength=1.0)

    def _signs(self) -> list[str]:
        """The shortest beginnings that tell the actions apart, by number."""
        names = [self._labels.action(action) for action in self._used]
        shared = _shared_words(names)
        ends = [name[shared:] for name in names]
        for letters in (1, 2, 3):
            if len({end[:letters] for end in ends}) == len(ends):
                break
        else:
            return [str(action) for action in range(max(self._used) + 1)]
        signs = [""] * (max(self._used) + 1)
        for action, end in zip(self._used, ends, strict=True):
            signs[action] = end[:letters]
        return signs


def _shared_words(names: list[str]) -> int:
    """Letters of the words that all names begin with: of ``serve first`` and ``serve second`` six."""
    first, last = min(names), max(names)  # whatever these begin with, those between them do
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[:alike].rfind(" ") + 1


def _named(name: str, sign: str) -> str:
    return name if name == sign else f"{sign}: {name}"


def _line(chart: Chart, drawn: Drawn, labels: Labels) -> Figure:
    """Action and value over one coordinate."""
    from matplotlib.ticker import MaxNLocator

    here = chart.places[:, 0] >= 0
    order = np.argsort(chart.places[here, 0])
    at, actions = chart.places[here, 0][order], drawn.policy[0, here][order]
    figure, axes = new_figure(
        WIDTH, 4.2 if drawn.values is not None else 2.2, 1 if drawn.values is None else 2, sharex=True
    )
    axis, amounts = axes[0], labels.amounts
    if amounts is not None:
        heights = np.asarray(amounts)[actions]
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=bool((heights == np.round(heights)).all())))
    else:
        used, heights = np.unique(actions, return_inverse=True)
        axis.set_yticks(range(len(used)), [_short(labels.action(int(a))) for a in used])
        axis.set_ylim(-0.5, len(used) - 0.5)
    axis.step(at, heights, where="mid", color=SERIES[0], linewidth=1.2)
    if len(at) <= 80:
        axis.plot(at, heights, "o", color=SERIES[0])
    axis.set_ylabel("action")
    if drawn.values is not None:
        values = drawn.values[0, here][order]
        look = appearance(1) | {"linestyle": "none" if len(at) <= 80 else "-", "marker": "s" if len(at) <= 80 else ""}
        errors = None if drawn.errors is None else 2 * drawn.errors[0, here][order]
        axes[1].errorbar(at, values, yerr=errors, elinewidth=1.2, **look)
        axes[1].set_ylabel("value")
        axes[1].yaxis.set_major_formatter("{x:g}")
    for each in axes:
        each.grid(True)
    every = max(1, -(-len(chart.axes[0].levels) // 12))
    axes[-1].set_xticks(range(0, len(chart.axes[0].levels), every), chart.axes[0].levels[::every])
    axes[-1].set_xlabel(plain(chart.axes[0].name or "state"))
    return figure


def _by_time(chart: Chart, drawn: Drawn, labels: Labels) -> Figure:
    """Steps from left to right, the coordinate upwards: stock by time."""
    stages = _spread(len(drawn.policy), 60)
    here = chart.places[:, 0] >= 0
    shape = len(chart.axes[0].levels), len(stages)
    rows = chart.places[here, 0]

    def table(entries: Any, default: Any) -> Any:
        filled = np.full(shape, default, dtype=np.asarray(entries).dtype)
        filled[rows] = entries[stages][:, here].T
        return filled

    missing = np.ones(shape, np.bool_)
    missing[rows] = False
    panel = _Panel(
        "",
        Axis("step", tuple(map(str, stages))),
        chart.axes[0] if chart.axes[0].name else Axis("state", chart.axes[0].levels),
        True,
        np.ma.array(table(drawn.policy, 0), mask=missing),
        None if drawn.values is None else np.ma.masked_invalid(table(drawn.values, np.nan)),
        None if drawn.sure is None else table(drawn.sure, True),
        None,
    )
    return _action_and_value(panel, labels)


def _spread(count: int, most: int) -> list[int]:
    """So many numbers below `count` at most, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()  # type: ignore[no-any-return]


def _ticks(axis: Axes, panel: _Panel, most: int = 12) -> None:
    for levels, place in ((panel.across.levels, axis.set_xticks), (panel.along.levels, axis.set_yticks)):
        every = max(1, -(-len(levels) // most))
        shown = range(0, len(levels), every)
        down = levels is panel.along.levels and not panel.upwards
        place([(len(levels) - 1 - i if down else i) + 0.5 for i in shown], [_short(levels[i]) for i in shown])


def heat_map(axis: Axes, table: Any, **colours: Any) -> Any:
    """Colour the cells of a table, row 0 at the bottom: tiles if they are few, one image if they are many."""
    rows, columns = table.shape
    for side in axis.spines.values():
        side.set_visible(False)
    axis.tick_params(length=0)
    settings: dict[str, Any] = {"cmap": SEQUENCE} | colours
    if table.size > _MOST_TILES:
        return axis.pcolormesh(np.arange(columns + 1), np.arange(rows + 1), table, rasterized=True, **settings)
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    places = np.argwhere(~np.ma.getmaskarray(table))
    limits = {name: settings.pop(name) for name in ("vmin", "vmax") if name in settings}
    gap = 0.02
    tiles = [Rectangle((x + gap, y + gap), 1 - 2 * gap, 1 - 2 * gap) for y, x in places.tolist()]
    collection = PatchCollection(tiles, linewidth=0, **settings)
    collection.set_array(np.asarray(table[tuple(places.T)], dtype=np.float64))
    collection.set_clim(**limits)
    axis.add_collection(collection)
    axis.set(xlim=(0, columns), ylim=(0, rows))
    return collection


def colour_bar(figure: Figure, mesh: Any, axes: list[Axes], label: str) -> Any:
    """Say what colours mean, beside pictures."""
    bar = figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02, aspect=14)
    bar.outline.set_visible(False)
    bar.set_label(label)
    return bar


def _short(label: str) -> str:
    return plain(label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…")
