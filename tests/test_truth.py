"""What is printed is true: recipes repeat, ends name their cause, an algorithm that does not fit is left out alone."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import Tight
from bestpolicy.design.anchors import anchors
from bestpolicy.study.result import gave_up


def step(state, action, rng):
    return 0.5 * float(rng.random() < 0.5) + 0.5 * (action == "up"), "b" if rng.random() < 0.5 else "a"


def test_the_recipe_has_all_that_decides_the_answer(tmp_path):
    simulator = bp.NamedSimulator(step, states=["a", "b"], actions=["up", "down"], discount=0.5)
    how = {"epsilon": 0.6, "delta": 0.1, "algorithm": "sharp", "calls_per_query": 50, "start": "b"}
    result = bp.identify(simulator, **how, store=tmp_path / "run.db")
    page = bp.report.report_page(str(tmp_path / "run.db"))
    (recipe,) = re.findall(r"bestpolicy\.identify\([^<]*\)", page)
    again = eval(unescape(recipe), {"bestpolicy": bp, "simulator": simulator})
    assert (again.samples, again.epsilon, again.where) == (result.samples, result.epsilon, "from state b")


def test_giving_up_names_its_cause():
    assert "tied" in gave_up(10**16, 0.0)
    assert "ask for an epsilon above 0" in gave_up(10**16, 0.0)
    assert "smaller than samples and arithmetic in 64 bits can show" in gave_up(10**16, 1e-9)
    assert "all samples of its plan" in gave_up(1000, 0.1)


class Broken(Tight):
    """An algorithm that cannot even say whether it fits."""

    name = "broken"

    def unsuitable(self, problem):
        raise np.linalg.LinAlgError("singular")


def test_one_algorithm_that_does_not_fit_is_left_out_alone():
    model = bp.instances.load("two-state")
    found = bp.compare([model], [Broken(), "tight"], epsilon=0.5, delta=0.1, runs=1, lower_bounds=False)
    assert [row.algorithm for row in found.rows] == ["tight"]
    assert found.skipped[0].reason == "LinAlgError: singular"


@pytest.mark.parametrize("rotated", [False, True])
def test_many_features_are_not_ill_conditioned(rotated):
    """Once refused at d ≥ 320 as "ill conditioned (condition number 1.0e+00)"."""
    problem = bp.Problem.tabular(180, 2, discount=0.9)
    if rotated:
        turn = np.linalg.qr(np.random.default_rng(0).standard_normal((360, 360)))[0]
        problem = bp.Problem(problem.features @ turn, discount=0.9)
    assert len(anchors(problem).pairs) == 360
