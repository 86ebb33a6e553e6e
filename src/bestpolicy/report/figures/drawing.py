"""How the pictures look: one palette for all, and SVG that takes its text colour from the page around it.

Pictures are made through `matplotlib.figure.Figure`, so no global state is touched and nothing is ever shown. Text,
axes and grid lines have one mid-grey that can be read on white and on black; in a page it becomes ``currentColor``.
The series colours are told apart with any kind of colour vision and stand out from both backgrounds, and no picture
relies on colour alone.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from math import floor, log10
from typing import TYPE_CHECKING, Any

from bestpolicy.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#767676"  # contrast of at least 4.5 to white and to black
SERIES = ("#3273b8", "#d1602a", "#159070", "#a05fb0", "#a37b10", "#5e88a8", "#c8517f", "#6f8a2f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SEQUENCE = "viridis"
_LONGEST = 48
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "grid.color": INK,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "patch.linewidth": 0.0,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


def require_matplotlib() -> Any:
    """Import matplotlib, or say how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidInput("pictures need matplotlib. Install it with: pip install 'bestpolicy[report]'") from None
    return matplotlib


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure (in inches) with its panels, row by row; it belongs to no window."""
    matplotlib = require_matplotlib()
    from matplotlib.figure import Figure as NewFigure

    with matplotlib.rc_context(_STYLE):
        figure: Figure = NewFigure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, **subplots)
    return figure, list(panels.ravel())


def style() -> Any:
    """Return the context in which titles, legends and labels take on the house style."""
    return require_matplotlib().rc_context(_STYLE)


def plain(text: object) -> str:
    """Return someone's text as matplotlib prints it literally: no mathematics, no control characters, not too long."""
    printable = "".join(c if c.isprintable() else " " for c in str(text))
    short = printable if len(printable) <= _LONGEST else printable[: _LONGEST - 1] + "…"
    return short.replace("$", r"\$")


def power_of_ten(value: float, _: object = None) -> str:
    """Label a tick of a logarithmic axis: 100, 1,000, 10⁴; nothing between powers of ten unless small numbers."""
    if value <= 0:
        return ""
    exponent = floor(log10(value) + 1e-9)
    lead = value / 10.0**exponent
    if abs(lead - round(lead)) > 1e-6:
        return ""
    if -3 <= exponent <= 3:
        return f"{value:,.{max(0, -exponent)}f}"
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    return power if round(lead) == 1 else f"{round(lead)}·{power}"


def logarithmic(axis: Axes, which: str) -> None:
    """Make an axis ("x" or "y") logarithmic with labels in plain text and ticks that are never too few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    side = axis.xaxis if which == "x" else axis.yaxis
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    low, high = sorted(side.get_view_interval())
    decades = log10(high / low) if low > 0 else 1.0
    subdivisions = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    side.set_major_locator(LogLocator(base=10, subs=subdivisions, numticks=8))
    side.set_major_formatter(FuncFormatter(power_of_ten))
    side.set_minor_formatter(NullFormatter())


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as SVG to be put inside a page.

    Parameters
    ----------
    figure : Figure
    name : str
        Unique in the page: the identifiers inside begin with it.
    description : str
        What the picture shows, for those who cannot see it.
    """
    matplotlib = require_matplotlib()
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(_STYLE | {"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that matplotlib's font lacks; the reader's browser has it
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", text))
    text = re.sub(r' id="([\w-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = (
        text.replace(INK, "currentColor")
        .replace("'DejaVu Sans', sans-serif", "inherit")
        .replace("'DejaVu Sans'", "inherit")
    )
    width, height = (float(number) for number in re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2])
    label = f'role="img" aria-label="{escape(description)}" style="max-width: {width * 4 / 3:.0f}px"'
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" {label} '
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = text[text.index(">") + 1 :]
    return re.sub(r"\n\s*", "\n", opening + namespaces + body).strip()
