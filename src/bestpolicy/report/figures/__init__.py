"""The pictures: functions that return a `matplotlib.figure.Figure` and never show it."""

from bestpolicy.report.figures.bounds import bounds_figure
from bestpolicy.report.figures.comparing import comparison_figure, scaling_figure
from bestpolicy.report.figures.progress import progress_figure
from bestpolicy.report.figures.states import Grid, design_figure, gaps_figure, grid_figure, states_figure

__all__ = [
    "Grid",
    "bounds_figure",
    "comparison_figure",
    "design_figure",
    "gaps_figure",
    "grid_figure",
    "progress_figure",
    "scaling_figure",
    "states_figure",
]
