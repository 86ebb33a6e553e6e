"""What a page says of a comparison of algorithms."""

from __future__ import annotations

from typing import Any

from bestpolicy.comparison import Comparison, Summary
from bestpolicy.pictures.drawing import require_matplotlib, to_svg
from bestpolicy.report import words
from bestpolicy.report.figures.comparing import MOST_LINES, by_instance, comparison_figure
from bestpolicy.report.page import Picture, data_link

_ROWS_SHOWN = 500


def comparison_part(comparison: Comparison) -> dict[str, Any]:
    """All that a page says of a comparison."""
    require_matplotlib()
    lines = [entry for entries in by_instance(comparison.summary).values() for entry in entries]
    spread, bounded = any(line.runs > 1 for line in lines), any(line.ratio_to_bound is not None for line in lines)
    priced, scoped = any(line.price is not None for line in lines), any(not line.simulates_pairs for line in lines)
    return {
        "headline": words.comparison_headline(comparison.summary),
        "interrupted": comparison.interrupted,
        "pictures": [_picture(comparison, lines)] if lines else [],
        "lines": lines,
        "words": words,
        "spread": spread,
        "bounded": bounded,
        "scoped": scoped,
        "priced": _plug_in(comparison) if priced else "",
        "rows": comparison.cells()[:_ROWS_SHOWN],
        "all_rows": len(comparison.rows),
        "columns": [(name.replace("_", " "), "") for name in comparison.columns],
        "headings": _headings(spread, bounded, priced, scoped),
        "csv": data_link(comparison.to_csv()),
        "skipped": comparison.skipped,
        "settings": _settings(comparison.settings),
    }


def _picture(comparison: Comparison, lines: list[Summary]) -> Picture:
    caption = "A symbol is the median over runs, a bar the middle half, small dots single runs. "
    if any(line.certified < line.runs for line in lines):
        caption += "Hollow squares had runs that ended without a certificate, so they may need more. "
    if comparison.lower_bounds:
        caption += "A vertical line is a lower bound on what any algorithm needs on average. "
    if len(lines) > MOST_LINES:
        caption += f"The first {MOST_LINES} of {len(lines)} lines are drawn."
    medians = "; ".join(f"{line.algorithm} on {line.instance} {line.median_samples:,.0f}" for line in lines[:12])
    svg = to_svg(comparison_figure(comparison), "comparison", f"Median simulator calls: {medians}.")
    return Picture("Simulator calls", svg, caption.strip())


def _plug_in(comparison: Comparison) -> str:
    """What the price is a multiple of."""
    needs = [entry for entry in comparison.plug_in if entry.samples is not None]
    listed = "; ".join(f"{words.count(entry.samples or 0)} on {entry.instance}" for entry in needs)
    return f"The price is a multiple of the calls {words.plug_in(needs[0].share, needs[0].runs)}: {listed}."


def _headings(spread: bool, bounded: bool, priced: bool, scoped: bool) -> list[tuple[str, str]]:
    numbers = ["median calls", *["middle half"] * spread, *["÷ bound"] * bounded, "÷ best", *["price"] * priced]
    numbers += ["certified", "failures", "worst loss"]
    texts = ["instance", "algorithm", *["simulates", "claim about"] * scoped]
    return [*((name, "") for name in texts), *((name, "number") for name in numbers)]


def _settings(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Those that are worth a line: one word or number each."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            text = str(value) if isinstance(value, str) or key == "seed" else words.figure(value, 6)
            lines.append((str(key).replace("_", " "), text))
    return lines
