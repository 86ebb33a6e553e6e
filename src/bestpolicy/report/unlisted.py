"""What a page knows of a problem whose states nobody lists, and what it shows of it: policy and limits at nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.comparison.comparison import to_csv
from bestpolicy.errors import InvalidInput
from bestpolicy.pictures.drawing import SERIES, WIDTH, new_figure, shades, style, to_svg
from bestpolicy.problem import FeatureProblem
from bestpolicy.problem.feature_files import feature_problem_from
from bestpolicy.problem.units import Units
from bestpolicy.report.page import Picture, data_link
from bestpolicy.stopping.hull import bracket

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS_SHOWN, _ROWS_OPEN = 500, 30
_FINE = {1: 300, 2: 60}  # points of an axis in a picture, by the number of axes
_TESTED_BY = "bp.misfit and bp.audit test it"


@dataclass(frozen=True, eq=False)
class Unlisted:
    """A problem whose states nobody lists, and the two functions that are certified.

    Attributes
    ----------
    description : dict
        What a file holds of the problem.
    problem : FeatureProblem, optional
        In the units of the run. None if it has functions of the user's, which no file holds.
    vectors : array (2, stages, d + 1), optional
        None before the first check.
    units : Units
    fit : str
        What was found of the features' fit.
    in_doubt : bool
        Whether they do not fit.
    """

    description: dict[str, Any]
    problem: FeatureProblem | None
    vectors: FloatArray | None
    units: Units
    fit: str = ""
    in_doubt: bool = False

    @classmethod
    def described(cls, description: dict[str, Any], vectors: Any, units: Units, result: dict[str, Any]) -> Unlisted:
        """Take what a file holds; `result` is as printed for JSON, or empty."""
        problem: FeatureProblem | None = None
        if not any(description["functions"].values()):
            problem = feature_problem_from(description, "the problem").in_units(units)
        found = result.get("misfit") or {}
        fit = f"not tested: {result['untested']}" if result.get("untested") else ""
        if found:
            fit = (
                f"largest error found at {found['pairs']} pairs: ζ = {found['zeta']:.3g} ± {found['width']:.2g}, with "
                f"which ε = {found['at_zeta']:.4g}"
            )
        return cls(description, problem, vectors, units, fit, bool(found.get("in_doubt", False)))

    @property
    def per_misfit(self) -> float:
        """By how much ε grows with ζ."""
        discount, horizon = self.description["discount"], self.description["horizon"]
        return 2.0 * float(horizon) if discount is None else 2.0 / (1.0 - discount)

    @property
    def size(self) -> str:
        """The problem, in words."""
        told = self.description
        time = f"discount {told['discount']:g}" if told["horizon"] is None else f"horizon {told['horizon']}"
        size = f"{told['actions']} actions, {told['dimension']} features"
        return f"states of dimension {told['state_dimension']}, {size}, {time}"

    @property
    def trusted(self) -> tuple[str, str, str]:
        """That the features fit, with a verdict and what is behind it."""
        verdict = "in doubt" if self.in_doubt else "tested" if self.fit.startswith("largest") else "taken on trust"
        return "the kernel and mean rewards are linear in the features", verdict, self.fit or _TESTED_BY

    def known(self, states: FloatArray) -> tuple[IntArray, FloatArray]:
        """Actions (n,) and limits of values (n, 2) in states, at the first step."""
        assert self.problem is not None
        assert self.vectors is not None
        actions = self.problem.greedy(states, np.ascontiguousarray(self.vectors[0, 0, :-1]))
        offset = self.units.reward_offset * self.problem.value_limits[0]
        return actions, bracket(self.problem, self.vectors, states) * self.units.reward_scale + offset

    @property
    def states(self) -> FloatArray | None:
        """States at nodes of the map; None if nobody knows any."""
        if self.problem is None or self.vectors is None:
            return None
        mapped = self.problem.feature_map
        states = mapped.nodes if mapped.pairs is None else mapped.pairs[0]
        if states is None or states.shape[1] != mapped.state_dimension:
            return None
        return np.unique(states, axis=0)

    def table(self) -> dict[str, Any] | None:
        """What is played at the nodes, with limits of values, for the page."""
        states = self.states
        if states is None:
            return None
        try:
            actions, limits = self.known(states)
        except InvalidInput:  # a node need not be a state
            return None
        rows = [
            [(text := _state(state), text), (str(action), action), *((f"{value:.6g}", float(value)) for value in pair)]
            for state, action, pair in zip(states, actions.tolist(), limits, strict=True)
        ]
        columns = ["state", "action", "value at least", "optimal value at most"]
        return {
            "columns": [(column, "number") for column in columns],
            "rows": rows[:_ROWS_SHOWN],
            "total": len(rows),
            "open": len(rows) <= _ROWS_OPEN,
            "csv": data_link(to_csv(columns, ([text for text, _ in row] for row in rows))),
            "estimated": False,
        }

    def picture(self) -> Picture | None:
        """Values over the one coordinate of states, or actions and values over two; None where there are more."""
        states = self.states
        if states is None or states.shape[1] not in _FINE:
            return None
        axes = [
            np.linspace(low, high, _FINE[states.shape[1]])
            for low, high in zip(states.min(0), states.max(0), strict=True)
        ]
        try:
            actions, limits = self.known(np.stack([each.ravel() for each in np.meshgrid(*axes)], axis=1))
        except InvalidInput:
            return None
        caption = (
            "In the band lie the policy's values and optimal ones, with the stated probability, if the features fit."
            if len(axes) == 1
            else "Left, what the policy plays; right, the middle of the limits of its values."
        )
        caption += "" if self.description["horizon"] is None else " At the first step."
        figure = _band(axes[0], actions, limits) if len(axes) == 1 else _maps(axes, actions, limits)
        described = f"Values between {limits.min():.3g} and {limits.max():.3g}; actions {np.unique(actions).tolist()}."
        return Picture("The policy and its values", to_svg(figure, "map", described), caption)


def _state(state: FloatArray) -> str:
    return ", ".join(f"{number:.6g}" for number in state)


def _band(axis: FloatArray, actions: IntArray, limits: FloatArray) -> Figure:
    figure, (above, below) = new_figure(WIDTH, 3.6, 2, sharex=True, height_ratios=[3, 1])
    with style():
        above.fill_between(axis, limits[:, 0], limits[:, 1], color=SERIES[0], alpha=0.3)
        for side in limits.T:
            above.plot(axis, side, color=SERIES[0], linewidth=1.0)
        above.set_ylabel("value")
        below.step(axis, actions, where="mid", color=SERIES[1])
        below.set_ylabel("action")
        below.set_yticks(np.unique(actions))
        below.set_xlabel("state")
    return figure


def _maps(axes: list[FloatArray], actions: IntArray, limits: FloatArray) -> Figure:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    figure, panels = new_figure(WIDTH, 3.2, 1, 2)
    shape = len(axes[1]), len(axes[0])
    played, place = np.unique(actions, return_inverse=True)
    colours = ListedColormap([SERIES[i % len(SERIES)] for i in range(len(played))])
    norm = BoundaryNorm(np.arange(len(played) + 1) - 0.5, len(played)) if len(played) > 1 else None
    with style():
        kinds = panels[0].pcolormesh(*axes, place.reshape(shape), cmap=colours, norm=norm, rasterized=True)
        bar = figure.colorbar(kinds, ax=panels[0], ticks=np.arange(len(played)))
        bar.ax.set_yticklabels([str(action) for action in played])
        panels[0].set_title("action")
        values = panels[1].pcolormesh(*axes, limits.mean(axis=1).reshape(shape), cmap=shades(), rasterized=True)
        figure.colorbar(values, ax=panels[1])
        panels[1].set_title("value")
        for panel in panels:
            panel.set_xlabel("coordinate 0")
            panel.set_ylabel("coordinate 1")
    return figure
