"""Sphinx: a plain site from Markdown pages, docstrings, examples that are run, and `--help`. No network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import pages

import bestpolicy

project = "bestpolicy"
author = "The bestpolicy authors"
copyright = author
version = release = bestpolicy.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "formulas"]
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
default_role = "py:obj"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
autodoc_type_aliases = {
    name: name for name in ("FloatArray", "IntArray", "BoolArray", "ArrayLike", "Source", "Model", "Figure")
}
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
pygments_style = "friendly"

html_theme = "furo"
html_title = "bestpolicy"
html_static_path = ["_static"]
html_css_files = ["plain.css"]
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False


def setup(app: Any) -> None:
    """Write the pages that are made anew at each build, and mend docstrings on their way to the reader."""
    app.connect("builder-inited", lambda app: pages.write_all(Path(app.srcdir)))
    app.connect("autodoc-process-signature", pages.readable_signature)
    app.connect("autodoc-process-docstring", pages.readable_docstring, priority=100)
