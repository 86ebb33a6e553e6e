"""From what is known to one page of HTML: self-contained, working without network and without scripts."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bestpolicy._version import __version__
from bestpolicy.errors import InvalidInput, plain

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """A figure as SVG with the words around it."""

    title: str
    svg: str
    caption: str


def render(
    *,
    title: str,
    study: dict[str, Any] | None = None,
    comparison: dict[str, Any] | None = None,
    live: str | None = None,
) -> str:
    """Put the parts of a page together; `live` is the version that a served page says it has."""
    try:
        import jinja2
    except ImportError:
        raise InvalidInput("a page needs jinja2. Install it with: pip install 'bestpolicy[report]'") from None
    scripts = {name: _TEMPLATES.joinpath(f"{name}.js").read_text("utf-8") for name in ("page", "live")}
    used = [scripts["page"], scripts["live"]] if live is not None else [scripts["page"]]
    page: str = _template(jinja2).render(
        title=title,
        study=study,
        comparison=comparison,
        live=live,
        style=_TEMPLATES.joinpath("page.css").read_text("utf-8"),
        scripts=used,
        script_hashes=[_sha256(script) for script in used],
        version=__version__,
    )
    return page


@cache
def _template(jinja2: Any) -> Any:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else plain(value),  # but not what is marked as safe
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html")


def data_link(text: str) -> str:
    """Return a link that holds a CSV file."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode(errors="backslashreplace")).decode(
        "ascii"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
