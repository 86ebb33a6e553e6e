"""Where the states of a study stand: its names tell, or its environment, or that it is a built-in grid."""

from __future__ import annotations

from math import isqrt

from bestpolicy import instances
from bestpolicy.pictures import Chart, chart_of, grid_chart
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Tally


def find_chart(problem: Problem, model: str, units: Units, tally: Tally | None = None) -> Chart | None:
    """Return the chart of a problem whose model has this name; None if its states are best listed."""
    side = isqrt(problem.states)
    if problem.actions == 4 and model.lower() in _built_in() and side * side == problem.states:
        return grid_chart(side, side, problem.states, "↑↓←→")
    return chart_of(problem, units, tally)


def _built_in() -> set[str]:
    grids = [each for each in instances.catalogue() if each.construct is instances.grid]
    return {name.lower() for each in grids for name in (each.name, each.alias) if name}
