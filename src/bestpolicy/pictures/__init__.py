"""Pictures of runs and policies, as a result draws them and a page shows them. They need the extra ``report``."""

from __future__ import annotations

from bestpolicy.pictures.chart import Axis, Chart, chart_of, grid_chart, list_chart
from bestpolicy.pictures.maps import Drawn, policy_figure

__all__ = ["Axis", "Chart", "Drawn", "chart_of", "grid_chart", "list_chart", "policy_figure"]
