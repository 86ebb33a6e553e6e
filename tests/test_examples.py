"""Every example runs as it is (dask_cluster in test_dask.py)."""

from __future__ import annotations

import pytest

from tests.examples import EXAMPLES, run_example

LONG = {"blackjack", "blackjack_reset"}  # what it simulates is compared with the game in test_ends.py


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


def test_the_lake_is_certified_by_few_episodes():
    known, _ = run_example("frozen_lake_reset")
    assert known["result"].certified
    assert known["result"].epsilon <= 0.1
    assert known["result"].rounds <= 25_000


@pytest.mark.study
def test_blackjack_is_certified_at_its_start():
    known, printed = run_example("blackjack_reset")
    assert known["result"].certified
    assert "own starts" in printed
