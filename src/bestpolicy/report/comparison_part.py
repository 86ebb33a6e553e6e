"""What a page says of a comparison of algorithms."""

from __future__ import annotations

from typing import Any

from bestpolicy.report import words
from bestpolicy.report.comparison import Table
from bestpolicy.report.figures.comparing import MOST_LINES, comparison_figure, lines_of
from bestpolicy.report.figures.drawing import require_matplotlib, to_svg
from bestpolicy.report.page import Picture, data_link, to_csv

_ROWS_SHOWN = 500


def comparison_part(table: Table, *, source: str = "") -> dict[str, Any]:
    """All that a page says of a comparison."""
    require_matplotlib()
    lines = lines_of(table.rows)
    pictures = []
    if lines:
        svg = to_svg(comparison_figure(table.rows, table.lower_bounds), "comparison", _comparison_in_words(table))
        caption = (
            "A symbol is the median over runs, a bar the middle half, small dots single runs; hollow symbols had runs "
            "that ended without a certificate. A vertical line is a lower bound on what any algorithm needs on average."
        )
        if len(lines) > MOST_LINES:
            caption += f" The first {MOST_LINES} of {len(lines)} lines are drawn."
        pictures.append(Picture("Simulator calls", svg, caption))
    return {
        "headline": words.comparison_headline(table.medians()),
        "pictures": pictures,
        "lines": [(line, words) for line in table.lines()],
        "spread": any(line.runs > 1 for line in table.lines()),
        "rows": table.rows[:_ROWS_SHOWN],
        "all_rows": len(table.rows),
        "columns": _columns(table.rows),
        "csv": data_link(
            to_csv(_columns(table.rows), ([row.get(c) for c in _columns(table.rows)] for row in table.rows))
        ),
        "skipped": table.skipped,
        "settings": _settings(table.settings),
        "lower_bounds": table.lower_bounds,
        "source": source,
    }


def _comparison_in_words(table: Table) -> str:
    medians = "; ".join(f"{line.algorithm} on {line.instance} {line.median:,.0f}" for line in table.lines()[:12])
    return f"Median simulator calls: {medians}."


def _settings(settings: dict[str, Any]) -> list[tuple[str, str]]:
    simple = [(str(key), value) for key, value in settings.items() if isinstance(value, str | int | float)]
    return [(key.replace("_", " "), str(value)) for key, value in simple]


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(key) for row in rows for key in row))
