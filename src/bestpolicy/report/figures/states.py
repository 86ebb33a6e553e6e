"""Pictures over states: where was sampled, what each state is worth and plays, and which decisions were hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import require_whole
from bestpolicy.errors import InvalidInput
from bestpolicy.report.estimates import Estimates
from bestpolicy.report.figures.drawing import INK, SEQUENCE, SERIES, WIDTH, appearance, new_figure, plain, shades, style
from bestpolicy.report.labels import Labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_STATES = 200
MOST_GAPS = 15
_MOST_STEPS = 12
_MOST_NUMBERS = 30  # columns in which a number can be read
_MOST_TILES = 600
_LONGEST_TICK = 14
_NUMBERS = Labels()


@dataclass(frozen=True)
class Grid:
    """States laid out row by row; states beyond rows × columns (an end of all episodes, say) are not drawn.

    Attributes
    ----------
    rows, columns : int
    arrows : str
        One character per action; the numbers of the actions if empty.
    """

    rows: int
    columns: int
    arrows: str = ""

    def __post_init__(self) -> None:
        require_whole(1, rows=self.rows, columns=self.columns)

    def require_room(self, states: int) -> None:
        """Refuse more cells than there are states."""
        cells = self.rows * self.columns
        if cells > states:
            raise InvalidInput(
                f"a grid of {self.rows} x {self.columns} has {cells} cells, the problem only {states} states."
            )


def shown_states(interest: FloatArray) -> IntArray:
    """The states to draw, in their order: all, or the most interesting ones of a large problem."""
    if len(interest) <= MOST_STATES:
        return np.arange(len(interest))
    return np.sort(np.argsort(-interest, kind="stable")[:MOST_STATES])


def cut_note(states: int, which: str) -> str:
    """Say which states are drawn if not all are; empty otherwise."""
    return "" if states <= MOST_STATES else f"The {MOST_STATES} {which} of {states:,} states are drawn."


def design_figure(estimates: Estimates, labels: Labels = _NUMBERS) -> Figure:
    """Draw the share of all simulator calls that each state and action got, summed over steps."""
    problem = estimates.problem
    pulls = estimates.pulls.sum(axis=0).astype(np.float64)
    states = shown_states(pulls.sum(axis=1))
    share = 100 * pulls[states] / max(pulls.sum(), 1.0)
    table = np.ma.masked_where(~problem.mask[states] | (share == 0), share)
    height = min(1.5 + 0.26 * problem.actions, 6.0)
    figure, (axis,) = new_figure(WIDTH, height)
    with style():
        mesh = _heat_map(axis, table.T, cmap=shades(), vmin=0.0)
        _colour_bar(figure, mesh, axis, "% of calls")
        _state_ticks(axis, states, labels, centred=True)
        _action_ticks(axis, problem.actions, labels)
        axis.set_ylabel("action")
    return figure


def states_figure(estimates: Estimates, labels: Labels = _NUMBERS) -> Figure:
    """Draw each state's value and action; per step if episodic.

    Returns
    -------
    matplotlib.figure.Figure
        Discounted: values with bars of two standard errors; the symbol is the action that the policy plays.
        Episodic: the policy and its values as maps of steps and states.
    """
    problem = estimates.problem
    states = shown_states(-estimates.sureness.min(axis=0))
    draw = _by_state if problem.horizon is None else _by_step
    return draw(estimates, states, labels)


def grid_figure(estimates: Estimates, grid: Grid) -> Figure:
    """Draw the policy on a grid (its first step if episodic): colour is value, pale signs are not sure yet."""
    grid.require_room(estimates.problem.states)
    cells = grid.rows * grid.columns
    size = max(0.28, min(0.75, 6.0 / grid.columns))
    figure, (axis,) = new_figure(max(3.2, grid.columns * size + 1.3), max(2.0, grid.rows * size + 0.6))
    values = estimates.values[0, :cells].reshape(grid.rows, grid.columns)
    with style():
        mesh = _heat_map(axis, np.ma.asarray(values[::-1]))
        axis.set_aspect("equal")
        axis.set_axis_off()
        bar = _colour_bar(figure, mesh, axis, "value")
        bar.outline.set_visible(False)
        if cells <= 1600:
            _signs(axis, estimates, grid, mesh)
    return figure


def gaps_figure(estimates: Estimates, labels: Labels = _NUMBERS) -> Figure | None:
    """Draw the decisions that were hardest, with bars of two standard errors; None if there was nothing to decide."""
    hardest = estimates.hardest(MOST_GAPS)
    if not hardest:
        return None
    figure, (axis,) = new_figure(WIDTH, 0.9 + 0.27 * len(hardest))
    with style():
        for row, (stage, state) in enumerate(hardest):
            gap, error = estimates.gaps[stage, state], estimates.gap_errors[stage, state]
            colour = SERIES[0] if gap > 2 * error else SERIES[1]
            axis.errorbar(gap, row, xerr=2 * error, fmt="o" if gap > 2 * error else "s", color=colour, elinewidth=1.4)
        axis.axvline(0.0, color=INK, linewidth=1.0)
        axis.set_yticks(range(len(hardest)), [plain(decision(estimates, *place, labels)) for place in hardest])
        axis.set_ylim(len(hardest) - 0.4, -0.6)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("estimated advantage over the next best action, ± 2 standard errors")
        axis.grid(True, axis="x")
    return figure


def decision(estimates: Estimates, stage: int, state: int, labels: Labels = _NUMBERS) -> str:
    """Name a decision: ``state 3: action 1 over 0``."""
    step = f"step {stage}, " if estimates.problem.horizon is not None else ""
    played, rival = (labels.action(int(actions[stage, state])) for actions in (estimates.policy, estimates.rivals))
    return f"{step}state {labels.state(state)}: action {played} over {rival}"


def _by_state(estimates: Estimates, states: IntArray, labels: Labels) -> Figure:
    figure, (axis,) = new_figure(WIDTH, 3.0)
    actions = estimates.policy[0, states]
    position = np.arange(len(states))
    with style():
        for action in np.unique(actions):
            here = actions == action
            axis.errorbar(
                position[here],
                estimates.values[0, states[here]],
                yerr=2 * estimates.value_errors[0, states[here]],
                linestyle="none",
                elinewidth=1.2,
                **appearance(int(action)),
                label=plain(f"action {labels.action(int(action))}"),
            )
        axis.set_ylabel("value")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(True, axis="y")
        axis.margins(x=0.03)
        _state_ticks(axis, states, labels, centred=False)
        if len(np.unique(actions)) <= 12:
            axis.legend(ncols=6, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handletextpad=0.2)
    return figure


def _by_step(estimates: Estimates, states: IntArray, labels: Labels) -> Figure:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    problem = estimates.problem
    stages = np.unique(np.linspace(0, problem.stages - 1, min(problem.stages, 60)).round().astype(int))
    height = min(1.2 + 0.24 * len(stages), 4.0)
    figure, (policy, value) = new_figure(WIDTH, 2 * height, 2, sharex=True)
    with style():
        actions = problem.actions
        palette = ListedColormap([SERIES[a % len(SERIES)] for a in range(actions)])
        table = estimates.policy[np.ix_(stages, states)]
        mesh = _heat_map(
            policy, np.ma.asarray(table), cmap=palette, norm=BoundaryNorm(np.arange(-0.5, actions), actions)
        )
        bar = _colour_bar(figure, mesh, policy, "action")
        named = range(actions) if actions <= 12 else range(0)
        bar.set_ticks(named, labels=[_short(labels.action(a)) for a in named])
        if len(states) <= _MOST_NUMBERS:
            for (row, column), action in np.ndenumerate(table):
                policy.text(column + 0.5, row + 0.5, str(action), ha="center", va="center", color="white", fontsize=7.5)
        _colour_bar(figure, _heat_map(value, np.ma.asarray(estimates.values[np.ix_(stages, states)])), value, "value")
        for axis in (policy, value):
            axis.invert_yaxis()
            axis.set_ylabel("step")
            every = max(1, len(stages) // _MOST_STEPS)
            axis.set_yticks(np.arange(len(stages))[::every] + 0.5, [str(h) for h in stages[::every]])
        _state_ticks(value, states, labels, centred=True)
    return figure


def _signs(axis: Axes, estimates: Estimates, grid: Grid, mesh: Any) -> None:
    sure = estimates.sureness[0] >= 2
    free = (estimates.problem.mask.sum(axis=1) > 1) & (estimates.rivals[0] >= 0)
    colours = mesh.to_rgba(estimates.values[0, : grid.rows * grid.columns])
    for state, colour in enumerate(colours):
        row, column = divmod(state, grid.columns)
        action = int(estimates.policy[0, state])
        sign = grid.arrows[action] if action < len(grid.arrows) else str(action)
        light = float(colour[:3] @ (0.299, 0.587, 0.114)) > 0.55
        axis.text(
            column + 0.5,
            grid.rows - row - 0.5,
            sign if free[state] else "·",
            ha="center",
            va="center",
            color="black" if light else "white",
            alpha=1.0 if sure[state] or not free[state] else 0.5,
            fontsize=max(6.0, min(13.0, 120.0 / grid.columns)),
        )


def _heat_map(axis: Axes, table: Any, **colours: Any) -> Any:
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


def _colour_bar(figure: Figure, mesh: Any, axis: Axes, label: str) -> Any:
    bar = figure.colorbar(mesh, ax=axis, fraction=0.05, pad=0.02, aspect=14)
    bar.outline.set_visible(False)
    bar.set_label(label)
    return bar


def _state_ticks(axis: Axes, states: IntArray, labels: Labels, *, centred: bool) -> None:
    every = max(1, -(-len(states) // 20))
    names = [_short(labels.state(int(s))) for s in states[::every]]
    axis.set_xticks(np.arange(len(states))[::every] + (0.5 if centred else 0.0), names)
    for name, tick in zip(names, axis.get_xticklabels(), strict=True):
        tick.set_rotation(90.0 if len(name) * len(names) > 80 else 0.0)  # letters that fit side by side
    axis.set_xlabel("state")


def _action_ticks(axis: Axes, actions: int, labels: Labels) -> None:
    every = max(1, -(-actions // 16))
    axis.set_yticks(np.arange(actions)[::every] + 0.5, [_short(labels.action(a)) for a in range(0, actions, every)])


def _short(label: str) -> str:
    return plain(label if len(label) <= _LONGEST_TICK else label[: _LONGEST_TICK - 1] + "…")
