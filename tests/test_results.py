"""What a result offers beyond its claim: values, rows, frames, pictures; and ε as a share of the range of values."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.study.values import estimated_q_values
from tests.test_cli import run

TABLE = bp.instances.load("riverswim")


@pytest.fixture(scope="module")
def result():
    return bp.identify(bp.ExactSimulator(TABLE), epsilon=0.5, delta=0.1, algorithm="tight", seed=0)


def test_values_are_near_the_truth_and_consistent(result):
    assert np.abs(result.values - TABLE.policy_values(result.policy)).max() < 0.1
    allowed = TABLE.problem.mask
    truth = TABLE.policy_q_values(result.policy)
    assert np.abs(result.q_values - truth)[allowed].max() < 0.1
    assert np.isnan(result.q_values[~allowed]).all()
    assert result.values.tolist() == result.q_values[np.arange(len(result.policy)), result.policy].tolist()


def test_values_by_steps_and_in_other_coordinates():
    for name in ("simplex", "riverswim-episodic"):
        mdp = bp.instances.load(name)
        found = bp.identify(bp.ExactSimulator(mdp), epsilon="20%", delta=0.1, algorithm="tight", seed=0)
        assert found.values.shape == found.policy.shape
        assert np.abs(found.values - mdp.policy_values(found.policy)).max() < 0.03 * mdp.problem.value_limits[0]


def step(state, action, rng, stage):
    return (10.0 if action == "<b>" else -10.0) * (1 + stage), state


def test_rows_are_in_the_users_units_and_names(tmp_path):
    how = {"states": ["x", ("y", 1)], "actions": ["a", "<b>"], "horizon": 2, "reward_range": (-20, 20)}
    how |= {"epsilon": "60%", "delta": 0.1, "algorithm": "tight", "seed": 0, "store": tmp_path / "run.db"}
    found = bp.identify(step, **how)
    assert found.asked_epsilon == pytest.approx(0.6 * 40 * 2)
    expected = [(0, "x", "<b>", 30.0), (0, ("y", 1), "<b>", 30.0), (1, "x", "<b>", 20.0), (1, ("y", 1), "<b>", 20.0)]
    again = bp.identify(step, **how)  # from the file
    for each in (found, again):
        rows = [tuple(row.values()) for row in each.rows()]
        assert [row[:3] for row in rows] == [row[:3] for row in expected]
        assert [row[3] for row in rows] == pytest.approx([row[3] for row in expected])
    page = found._repr_html_()
    assert "<td>&lt;b&gt;</td><td>30</td>" in page
    assert "<b>The policy is within" in page


def test_pairs_without_samples_have_no_value():
    problem = bp.Problem.tabular(2, 2, discount=0.5)
    study = bp.Study(problem, epsilon=0.5, delta=0.1, algorithm="tight")
    with pytest.raises(bp.InvalidInput, match="nothing was measured"):
        _ = study.result().values
    assert [row["value"] for row in study.result().rows()] == pytest.approx([np.nan] * 2, nan_ok=True)
    nothing_to_choose = bp.Study(
        bp.Problem.tabular(2, 1, discount=0.5), epsilon=0.5, delta=0.1, algorithm="gss"
    ).result()
    assert "<td>nan</td>" in nothing_to_choose._repr_html_()
    tally = bp.Tally.from_samples(problem, [0, 1], [0, 1], [1.0, 0.0], [0, 1])
    found = estimated_q_values(problem, tally, np.array([[0, 1]]), bp.Units(reward_scale=2.0, reward_offset=-1.0))
    assert np.isnan(found[0]).tolist() == [[False, True], [True, False]]
    assert found[0, 0, 0] == pytest.approx(2.0)  # 1 for ever
    assert found[0, 1, 1] == pytest.approx(-2.0)


def test_frames_need_pandas(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(bp.InvalidInput, match="to_frame needs pandas"):
        result.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: ("frame", rows)))
    assert result.to_frame() == ("frame", result.rows())


def test_the_picture_has_what_was_certified(result):
    certified, evidence = result.plot("run").axes
    assert certified.lines[0].get_ydata()[-1] == result.epsilon
    assert result.asked_epsilon in [line.get_ydata()[0] for line in certified.lines[1:]]
    assert evidence.get_xlabel() == "simulator calls"


@pytest.mark.parametrize(
    ("given", "expected"), [("5%", 0.05), (" 2.5 % ", 0.025), ("1e-1%", 0.001), ("0%", 0.0), ("200%", 2.0)]
)
def test_shares_are_of_the_range_of_values(given, expected):
    units = bp.Units.of_range((-3, 7))
    study = bp.Study(bp.Problem.tabular(2, 2, discount=0.9), epsilon=given, delta=0.1, units=units, algorithm="tight")
    assert study.asked_epsilon == pytest.approx(expected * 100)
    study = bp.Study(bp.Problem.tabular(2, 2, horizon=3), epsilon=given, delta=0.1, units=units, algorithm="tight")
    assert study.asked_epsilon == pytest.approx(expected * 30)


@pytest.mark.parametrize("given", ["5", "5% of V", "-5%", "five %", "%", "1.2.3%", "nan%"])
def test_other_shares_are_refused(given):
    with pytest.raises(bp.InvalidInput, match="epsilon must be a number ≥ 0, a share of the range"):
        bp.Study(bp.Problem.tabular(2, 2, discount=0.9), epsilon=given, delta=0.1, algorithm="gss")


def test_shares_can_be_typed():
    done = run(
        "identify", "two-state", "--epsilon", "20%", "--delta", 0.1, "--algorithm", "tight", "--seed", 0, "--json"
    )
    assert '"asked_epsilon": 0.4' in done.stdout
    assert run("identify", "two-state", "--epsilon", "x%", "--delta", 0.1).returncode == 2
