"""Which problems are grids, and what their actions look like."""

from __future__ import annotations

from math import isqrt

from bestpolicy import instances
from bestpolicy.problem import Problem
from bestpolicy.report.figures.states import Grid
from bestpolicy.report.labels import Labels


def find_grid(problem: Problem, model: str, labels: Labels) -> Grid | None:
    """Lay out the states of the built-in grid, of FrozenLake and of CliffWalking; None for other problems.

    An environment may have one state more than the grid has cells: the end of all episodes.
    """
    side = isqrt(problem.states)
    if problem.actions != 4:
        return None
    if model.lower() in _built_in() and side * side == problem.states:
        return Grid(side, side, "↑↓←→")
    if "FrozenLake" in labels.environment and side * side in (problem.states, problem.states - 1):
        return Grid(side, side, "←↓→↑")
    if "CliffWalking" in labels.environment and problem.states in (48, 49):
        return Grid(4, 12, "↑→↓←")
    return None


def _built_in() -> set[str]:
    grids = [each for each in instances.catalogue() if each.construct is instances.grid]
    return {name.lower() for each in grids for name in (each.name, each.alias) if name}
