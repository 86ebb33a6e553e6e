"""docs/paper-map.md is complete and true."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (TESTS.parent / "docs" / "paper-map.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| statement")
]


def test_every_statement_has_a_line():
    expected = [f"Thm {i}" for i in range(1, 7)] + [f"Prop {i}" for i in (1, 2, 3, 4, 5, 15, 16)]
    expected += [f"Lem {i}" for i in (*range(6, 15), 17, 18, 19)] + ["Alg 1", "Alg 2"]
    assert set(expected) <= {row[0] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_code_and_test_exist(row):
    _, _, code, test = row
    name = code.strip("`")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute), name
    file, _, function = test.strip("`").partition("::")
    functions = {
        node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert function in functions if function else functions


def test_citations_in_the_code_are_on_the_map():
    cited = set()
    for file in (TESTS.parent / "src").rglob("*.py"):
        for citation in re.findall(r"\[TJP ([^\]]*)\]", file.read_text()):
            cited.update(re.findall(r"(?:Thm|Prop|Lem|Alg) \d+", citation.replace(".", "")))
    assert cited
    assert cited <= {row[0] for row in ROWS}
