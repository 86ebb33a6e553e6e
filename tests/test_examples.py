"""Every example runs as it is (dask_cluster in test_dask.py)."""

from __future__ import annotations

import ast

import pytest
from benchmarks.resets import CASES

from tests.examples import EXAMPLES, run_example

# What "blackjack" simulates is compared with the game in test_ends.py.
LONG = {"blackjack", "blackjack_reset", "frozen_lake_8x8_reset", "taxi_reset"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.study] * (path.stem in LONG))
        for path in EXAMPLES
        if path.stem != "dask_cluster"
    ],
)
def test_runs(name):
    _, printed = run_example(name)
    assert printed.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_newcomer_writes_few_lines(path):
    """From the simulator to the certificate, blank lines and what explains left out."""
    if path.stem == "blackjack":  # the rules of a game, for many hands at once
        return
    tree = ast.parse(path.read_text())
    explained = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    lines = enumerate(path.read_text().splitlines(), start=1)
    written = [line for number, line in lines if number not in explained and line.strip() and line.strip()[0] != "#"]
    assert len(written) <= 25, len(written)


def test_pictures_come_with_it():
    known, printed = run_example("simpy_queue")
    assert known["result"].certified
    assert known["result"].action((0, 3)) == 1
    assert "(3, 3): 0" in printed


def test_the_lake_is_certified_by_few_episodes():
    known, _ = run_example("frozen_lake_reset")
    assert known["result"].certified
    assert known["result"].epsilon <= 0.1
    assert known["result"].rounds <= 25_000


@pytest.mark.study
@pytest.mark.parametrize(("name", "most"), [("frozen_lake_8x8_reset", 25_000), ("taxi_reset", 300_000)])
def test_larger_games_are_certified_at_their_start(name, most):
    known, _ = run_example(name)
    assert known["result"].certified
    assert known["result"].rounds <= most
    case = next(
        case for case in CASES if case.name == known["env"].spec.id and case.horizon == known["model"].problem.horizon
    )
    game, policy = case.law(known["env"]), known["result"].policy
    lost = game.value(case.horizon) - game.value(case.horizon, policy)
    assert 0 <= lost + 1e-9 <= known["result"].epsilon
    assert (
        game.value(case.horizon) - game.value(case.horizon, 0 * policy) > known["result"].epsilon
    )  # one could lose more


@pytest.mark.study
def test_blackjack_is_certified_at_its_start():
    known, printed = run_example("blackjack_reset")
    assert known["result"].certified
    assert "own starts" in printed
