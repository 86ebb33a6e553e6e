"""Where the states stand when people draw them: cells of a grid, stock by time, queue by queue.

States that are numbers, tuples, dictionaries or texts of one shape (``"day 3, stock 5"``) have coordinates, and so have
those of a few environments whose numbering is known. A state of another shape, such as the end of a game, has no place;
if there are many of them, or the coordinates fill too little of their box, there is no chart: the states are listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, isqrt, prod
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Tally

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?![\w.])|(?<=[A-Za-z_])\d+")
_MOST_LEVELS = 400
_MOST_WORDS = 12  # levels of an axis that is not of numbers
_LEAST_FILLED = 0.15
_DIRECTIONS: dict[str, tuple[int, int]] = {
    word: step
    for step, words in {
        (0, 1): "up north u n ↑ ^",
        (0, -1): "down south d s ↓ v",
        (-1, 0): "left west l w ← <",
        (1, 0): "right east r e → >",
        (0, 0): "stay wait stop none ·",
    }.items()
    for word in words.split()
}
_ARROWS = {(0, 1): "↑", (0, -1): "↓", (-1, 0): "←", (1, 0): "→", (0, 0): "·"}


@dataclass(frozen=True)
class Axis:
    """One coordinate: its name (empty if it has none), and its levels as they are printed."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates of states.

    Attributes
    ----------
    axes : tuple of Axis
        The first one is drawn from left to right, the second one upwards or downwards; each level of the others has a
        picture of its own.
    places : int array (S, axes)
        Number of the level on each axis; -1 where a state is not drawn.
    upwards : bool
        Which way the second axis goes.
    signs : tuple of str
        Of the actions, if these lead from cell to cell: then the states are a map, and values are its colours.
    """

    axes: tuple[Axis, ...]
    places: IntArray
    upwards: bool = True
    signs: tuple[str, ...] = ()

    @property
    def left_out(self) -> int:
        """Number of states that have no place."""
        return int((self.places < 0).any(axis=1).sum())


def grid_chart(rows: int, columns: int, states: int, signs: Sequence[str] = ()) -> Chart:
    """Lay states out row by row from the top; states beyond rows × columns have no place."""
    numbers = np.arange(states)
    places = np.stack([numbers % columns, numbers // columns], axis=1)
    places[rows * columns :] = -1
    axes = Axis("column", tuple(map(str, range(columns)))), Axis("row", tuple(map(str, range(rows))))
    return Chart(axes, places, upwards=False, signs=tuple(signs))


def list_chart(states: Sequence[Any]) -> Chart:
    """States side by side in their order, for want of anything better."""
    return Chart((Axis("", tuple(map(str, states))),), np.arange(len(states))[:, None])


def chart_of(problem: Problem, units: Units, tally: Tally | None = None) -> Chart | None:
    """Return where the states of a problem stand; None if nothing is known of it.

    Parameters
    ----------
    problem : Problem
    units : Units
        What states and actions are called; names may be hostile.
    tally : Tally, optional
        Samples: they tell which coordinate "up" changes, and which way.
    """
    known = _environment(problem, units.environment)
    if known is not None or units.own_states is not None:
        return known
    states = units.states
    if not isinstance(states, list) or len(states) != problem.states:
        return None
    chart = _from_names(states)
    if chart is None or not isinstance(units.actions, list) or len(units.actions) != problem.actions:
        return chart
    return _oriented(chart, units.actions, problem, tally) if len(chart.axes) > 1 else chart


def _environment(problem: Problem, name: str) -> Chart | None:
    """Environments whose numbering is known. There may be one state more: the end of all episodes."""
    states, side = problem.states, isqrt(problem.states)
    if "FrozenLake" in name and side * side in (states, states - 1) and problem.actions == 4:
        return grid_chart(side, side, states, "←↓→↑")
    if "CliffWalking" in name and states in (48, 49) and problem.actions == 4:
        return grid_chart(4, 12, states, "↑→↓←")
    if name.startswith("Taxi") and states in (500, 501) and problem.actions == 6:
        row, column, passenger, destination = np.unravel_index(np.arange(500), (5, 5, 5, 4))
        places = np.full((states, 4), -1)
        places[:500] = np.stack([column, row, passenger, destination], axis=1)
        five, stops = tuple("01234"), ("R", "G", "Y", "B")
        axes = Axis("column", five), Axis("row", five), Axis("from", (*stops, "taxi")), Axis("to", stops)
        return Chart(axes, places, upwards=False, signs=("↓", "↑", "→", "←", "+", "−"))
    return None


def _from_names(states: Sequence[Any]) -> Chart | None:
    read = [_coordinates(state) for state in states]
    shapes = Counter(shape for shape, _ in read if shape)
    if not shapes:
        return None
    shape, often = shapes.most_common(1)[0]
    if len(states) - often > max(2, len(states) // 10) or often < 3:
        return None
    fitting = [number for number, (own, _) in enumerate(read) if own == shape]
    columns = list(zip(*(read[number][1] for number in fitting), strict=True))
    found = [(name, column, _levels(column)) for name, column in zip(shape, columns, strict=True)]
    found = [(name, column, levels) for name, column, levels in found if len(levels) > 1]
    sizes = [len(levels) for _, _, levels in found]
    if not found or max(sizes) > _MOST_LEVELS or len(fitting) < _LEAST_FILLED * prod(sizes):
        return None
    worded = [len(levels) for _, _, levels in found if not all(map(_is_number, levels))]
    if worded and (len(found) == 1 or max(worded) > _MOST_WORDS):
        return None
    places = np.full((len(states), len(found)), -1, dtype=np.int64)
    for position, (_, column, levels) in enumerate(found):
        where = {level: number for number, level in enumerate(levels)}
        places[fitting, position] = [where[value] for value in column]
    if len(np.unique(places[fitting], axis=0)) < len(fitting):
        return None  # two states in one place: something else tells them apart
    axes = [Axis(name, tuple(map(_printed, levels))) for name, _, levels in found]
    # Pictures of their own are for the axes with the fewest levels; the others keep their order.
    order = sorted(sorted(range(len(axes)), key=lambda i: -sizes[i])[:2])
    order += [i for i in range(len(axes)) if i not in order]
    return Chart(tuple(axes[i] for i in order), places[:, order])


def _coordinates(state: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """(names of coordinates, coordinates) of one state; both empty if it has none."""
    nothing: tuple[tuple[str, ...], tuple[Any, ...]] = ((), ())
    if isinstance(state, str):
        words = [re.sub(r"[^\w ]+", " ", word).strip().replace("_", " ") for word in _NUMBER.split(state)]
        return (tuple(words[:-1]), tuple(map(int, _NUMBER.findall(state)))) if len(words) > 1 else nothing
    if isinstance(state, dict):
        return (tuple(map(str, state)), tuple(state.values())) if all(map(_is_scalar, state.values())) else nothing
    values = _flat(state) if isinstance(state, list) else [state]
    return (("",) * len(values), tuple(values)) if values and all(map(_is_scalar, values)) else nothing


def _flat(values: list[Any]) -> list[Any]:
    return [part for value in values for part in (_flat(value) if isinstance(value, list) else [value])]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _levels(column: Sequence[Any]) -> list[Any]:
    """The levels of a coordinate: numbers in order, with those that are missing if they are few; words as they come."""
    if not all(map(_is_number, column)):
        return list(dict.fromkeys(column))
    distinct = sorted(set(column))
    if all(isinstance(value, int) for value in distinct) and distinct[-1] - distinct[0] < 2 * len(distinct):
        return list(range(distinct[0], distinct[-1] + 1))
    return distinct


def _printed(level: Any) -> str:
    return f"{level:g}" if isinstance(level, float) else str(level)


def _oriented(chart: Chart, actions: list[Any], problem: Problem, tally: Tally | None) -> Chart:
    """Turn the chart the way its actions point, if they are directions."""
    steps = [_DIRECTIONS.get(action.lower()) if isinstance(action, str) else None for action in actions]
    pointing = [step for step in steps if step is not None]
    if len(pointing) < len(steps) or len(set(pointing)) < len(steps) or len(set(pointing) - {(0, 0)}) < 2:
        return chart
    names = [axis.name.lower() for axis in chart.axes[:2]]
    sideways, upwards = (names == ["x", "y"],) * 2  # else the first coordinate is the row, counted from the top
    if tally is not None:
        right, up = _moves(chart, pointing, problem, tally)
        if np.abs([right, up]).max() > 0:
            sideways = abs(right[0]) + abs(up[1]) > abs(right[1]) + abs(up[0])
            upwards = bool(up[1 if sideways else 0] > 0)
    order = [0, 1] if sideways else [1, 0]
    order += range(2, len(chart.axes))
    return replace(
        chart,
        axes=tuple(chart.axes[i] for i in order),
        places=chart.places[:, order],
        upwards=upwards,
        signs=tuple(_ARROWS[step] for step in pointing),
    )


def _moves(
    chart: Chart, steps: Sequence[tuple[int, int]], problem: Problem, tally: Tally
) -> tuple[FloatArray, FloatArray]:
    """How actions that point to the right, and upwards, move the first two coordinates on balance."""
    row, after = np.divmod(tally.cells, problem.states)
    before, action = np.divmod(tally.pairs[row % max(1, len(tally.pairs))], problem.actions)
    seen = (chart.places[before] >= 0).all(axis=1) & (chart.places[after] >= 0).all(axis=1)
    moved = np.sign(chart.places[after, :2] - chart.places[before, :2]) * (tally.counts * seen)[:, None]
    direction = np.array(steps)[action]
    return direction[:, 0] @ moved, direction[:, 1] @ moved
