"""Pictures over states: where was sampled, what each state is worth and plays, and which decisions were hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import require_whole
from bestpolicy.errors import InvalidInput
from bestpolicy.pictures import Chart, Drawn, grid_chart, policy_figure
from bestpolicy.pictures.drawing import INK, SERIES, WIDTH, appearance, new_figure, plain, shades, style
from bestpolicy.pictures.labels import Labels
from bestpolicy.pictures.maps import colour_bar, heat_map
from bestpolicy.problem import Problem
from bestpolicy.report.estimates import Estimates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_STATES = 200
MOST_GAPS = 15
_MOST_STEPS = 12
_MOST_NUMBERS = 30  # columns in which a number can be read
_LONGEST_TICK = 14
_LONGEST_DECISION = 36
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

    def chart(self, problem: Problem) -> Chart:
        """Where the states of a problem stand on it."""
        signs = [self.arrows[a] if a < len(self.arrows) else str(a) for a in range(problem.actions)]
        return grid_chart(self.rows, self.columns, problem.states, signs)


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
        mesh = heat_map(axis, table.T, cmap=shades(), vmin=0.0)
        colour_bar(figure, mesh, [axis], "% of calls")
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
    """Draw the policy on a grid (some of its steps if episodic): colour is value, pale signs are not sure yet."""
    problem = estimates.problem
    grid.require_room(problem.states)
    return policy_figure(grid.chart(problem), drawn(estimates), _NUMBERS, episodic=problem.horizon is not None)


def drawn(estimates: Estimates) -> Drawn:
    """What a chart shows of each state."""
    problem = estimates.problem
    return Drawn(
        estimates.policy,
        estimates.values,
        None if problem.horizon is not None else estimates.value_errors,
        estimates.sureness >= 2,
        (problem.mask.sum(axis=1) > 1) & (estimates.rivals >= 0).any(axis=0),
    )


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
        axis.set_yticks(range(len(hardest)), [_brief(estimates, *place, labels) for place in hardest])
        axis.set_ylim(len(hardest) - 0.4, -0.6)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("advantage over the next best, ± 2 standard errors", loc="right")
        axis.grid(True, axis="x")
    return figure


def decision(estimates: Estimates, stage: int, state: int, labels: Labels = _NUMBERS) -> str:
    """Name a decision: ``state 3: action 1 over 0``."""
    step = f"step {stage}, " if estimates.problem.horizon is not None else ""
    played, rival = (labels.action(int(actions[stage, state])) for actions in (estimates.policy, estimates.rivals))
    return f"{step}state {labels.state(state)}: action {played} over {rival}"


def _brief(estimates: Estimates, stage: int, state: int, labels: Labels) -> str:
    """Name a decision where room is scarce: ``3: run over repair``."""
    step = f"step {stage}, " if estimates.problem.horizon is not None else ""
    played, rival = (labels.action(int(actions[stage, state])) for actions in (estimates.policy, estimates.rivals))
    text = f"{step}{labels.state(state)}: {played} over {rival}"
    return plain(text if len(text) <= _LONGEST_DECISION else text[: _LONGEST_DECISION - 1] + "…")


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
        mesh = heat_map(
            policy, np.ma.asarray(table), cmap=palette, norm=BoundaryNorm(np.arange(-0.5, actions), actions)
        )
        bar = colour_bar(figure, mesh, [policy], "action")
        named = range(actions) if actions <= 12 else range(0)
        bar.set_ticks(named, labels=[_short(labels.action(a)) for a in named])
        if len(states) <= _MOST_NUMBERS:
            for (row, column), action in np.ndenumerate(table):
                policy.text(column + 0.5, row + 0.5, str(action), ha="center", va="center", color="white", fontsize=7.5)
        colour_bar(figure, heat_map(value, np.ma.asarray(estimates.values[np.ix_(stages, states)])), [value], "value")
        for axis in (policy, value):
            axis.invert_yaxis()
            axis.set_ylabel("step")
            every = max(1, len(stages) // _MOST_STEPS)
            axis.set_yticks(np.arange(len(stages))[::every] + 0.5, [str(h) for h in stages[::every]])
        _state_ticks(value, states, labels, centred=True)
    return figure


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
