"""docs/paper-map.md is complete and true."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from bestpolicy.algorithms import ALGORITHMS

TESTS = Path(__file__).parent
STATEMENTS, SYSTEMS = (
    (TESTS.parent / "docs" / "paper-map.md").read_text().split("\n## The systems that the paper cites")
)


def rows(part: str, heading: str) -> list[list[str]]:
    lines = (line for line in part.splitlines() if line.startswith("| ") and not line.startswith(heading))
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in lines]


ROWS = rows(STATEMENTS, "| statement")
CITED = rows(SYSTEMS, "| cited as")

# Every key of a \cite of the paper, in the order in which they appear.
KEYS = [
    "Kearns1999",
    "kakade2003sample",
    "even2006action",
    "azar2013minimax",
    "NIPS2018_7765",
    "pmlr-v125-agarwal20b",
    "li2020breaking",
    "MinimaxOptimalDiscounted",
    "SampleComplexityEpisodicFixedHorizon",
    "EpisodicRLMinimaxRevisited",
    "AdaptiveSamplingBestPolicyIdentification",
    "NavigatingBestPolicy",
    "jin2020provably",
    "he2021logarithmic",
    "wagenmaker2022reward",
    "wagenmaker2022instance",
    "zanette2019limiting",
    "yang2019sample",
    "lattimore2020learning",
    "zhou2021provably",
    "kaufmann2016complexity",
    "al2021navigating",
    "lattimore2020bandit",
    "kiefer1960equivalence",
    "soare2014best",
    "vershynin2018high",
    "tropp2015introduction",
    "NIPS2011_e1d5be1c",
    "abbasi2011improved",
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


def test_every_citation_has_a_row_or_is_said_to_be_of_a_theorem():
    theorems = re.findall(r"[\w-]+\d{4}[\w-]*", SYSTEMS.split("Cited for a theorem")[1])
    listed = [row[0] for row in CITED if row[0] != "not cited"]
    assert sorted([*listed, *theorems]) == sorted(KEYS)


@pytest.mark.parametrize("row", CITED, ids=[f"{row[0]} {row[1]}" for row in CITED])
def test_a_row_says_what_runs_or_why_nothing_can(row):
    _, system, runs, why = row
    assert system
    if runs == "nothing":
        assert len(why) > 20
    else:
        assert runs
        assert set(re.findall(r"`([\w-]+)`", runs)) <= set(ALGORITHMS)
    for name in re.findall(r"`(bestpolicy\.[\w.]+)`", why):
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_competitor_has_a_row():
    named = {name for row in CITED for name in re.findall(r"`([\w-]+)`", row[2])}
    assert named == {name for name, kind in ALGORITHMS.items() if ".peers." in kind.__module__}
