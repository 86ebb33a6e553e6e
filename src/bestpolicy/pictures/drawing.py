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
from math import floor, log10
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from bestpolicy.errors import InvalidInput
from bestpolicy.errors import plain as on_one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#767676"  # contrast of at least 4.5 to white and to black
SERIES = ("#3273b8", "#d1602a", "#159070", "#a05fb0", "#a37b10", "#5e88a8", "#c8517f", "#6f8a2f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SEQUENCE = "viridis"
WIDTH = 4.7  # inches: as wide as a phone, whose reader reads the letters; a desk shows it larger
_PIXELS = 160  # an inch, where a picture in the picture has pixels
_LONGEST = 48
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_REFERENCE = re.compile(r"(?:^|url\()#([^\s)]+)")  # in an attribute: href or clip-path
_FONTS = "'DejaVu Sans', sans-serif"
_SVG = "{http://www.w3.org/2000/svg}"
ElementTree.register_namespace("", _SVG[1:-1])
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.8,
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": 8.5,
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
    "legend.fontsize": 8.0,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "patch.linewidth": 0.0,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
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


def appearance(number: int) -> dict[str, Any]:
    """Marker and colour of the n-th series; 64 of them differ."""
    turn = number // len(SERIES)
    return {"marker": MARKERS[(number + turn) % len(MARKERS)], "color": SERIES[number % len(SERIES)]}


def shades() -> Any:
    """Return a colour map from faint to full of one hue, which suits any background."""
    require_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("shades", [to_rgba(SERIES[0], 0.1), to_rgba(SERIES[0], 1.0)])


def style() -> Any:
    """Return the context in which titles, legends and labels take on the house style."""
    return require_matplotlib().rc_context(_STYLE)


def plain(text: object) -> str:
    """Return someone's text as matplotlib prints it literally: no mathematics, no control characters, not too long."""
    printable = on_one_line(text)
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
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    side = axis.xaxis if which == "x" else axis.yaxis
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    low, high = sorted(side.get_view_interval())
    decades = log10(high / low) if low > 0 else 1.0
    subdivisions = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    side.set_major_locator(LogLocator(base=10, subs=subdivisions, numticks=8))
    side.set_major_formatter(FuncFormatter(power_of_ten))
    side.set_minor_locator(NullLocator())


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
        figure.savefig(buffer, format="svg", metadata=nothing, dpi=_PIXELS)
    root = ElementTree.fromstring(buffer.getvalue())
    used = {match for each in root.iter() for value in each.attrib.values() for match in _REFERENCE.findall(value)}
    for each in root.iter():
        attributes = each.attrib
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        for key, value in attributes.items():
            if key == "id":
                value = f"{name}-{value}"
            value = _REFERENCE.sub(lambda match: match[0].replace("#", f"#{name}-"), value)
            attributes[key] = value.replace(INK, "currentColor").replace(_FONTS, "inherit")
    for parent in root.findall(f".//{_SVG}style/.."):
        parent.remove(parent[0])  # rules for the whole page; they stand in its own style sheet
    width, height = (float(root.attrib.pop(side).removesuffix("pt")) for side in ("width", "height"))
    root.attrib.update(
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        style=f"max-width: {width * 1.85:.0f}px",
    )
    root.attrib["aria-label"] = on_one_line(description)
    root.attrib["class"] = "wide" if width > 400 else ""
    return ElementTree.tostring(root, encoding="unicode")
