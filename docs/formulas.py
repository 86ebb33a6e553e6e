"""Formulas as MathML, which every browser sets by itself: no script, no font and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, bool]:
    """Offer ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math" tabindex="0">{formula}</div>\n')
    raise nodes.SkipNode
