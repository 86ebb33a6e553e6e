"""What the uncertified plug-in needs is what its runs say, and shown where it is asked for.

That the same seed gives the same number on every processor is in test_processors.py.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from math import sqrt

import numpy as np
import pytest
from scipy.stats import binom

import bestpolicy as bp
from bestpolicy import report
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, plan
from bestpolicy.bounds import price
from bestpolicy.bounds.price import estimate, loss_from, plug_in_samples, regression_weights
from bestpolicy.estimation import least_squares
from bestpolicy.report.accounts import from_store
from bestpolicy.report.live import LivePage
from tests.models import near_tie, random_mdp, tabular_mdp
from tests.test_cli import run
from tests.test_report_page import check_page, make_study

ASKED = {"epsilon": 0.3, "delta": 0.1}


def bandit(worse: float, better: float) -> bp.LinearMDP:
    """One state, the second arm is better; of tied arms the plug-in takes the first."""
    return tabular_mdp(np.ones((1, 2, 1)), np.array([[worse, better]]), discount=0.5)


def chance_of_the_better_arm(worse: float, better: float, samples: int) -> float:
    heads = np.arange(samples + 1)
    return float((binom.pmf(heads, samples, better) * binom.cdf(heads - 1, samples, worse)).sum())


@pytest.mark.parametrize(("worse", "better"), [(0.3, 0.5), (0.05, 0.2)])
def test_a_bandit_against_the_closed_form(worse, better):
    runs, share = 400, 0.95
    found = plug_in_samples(bandit(worse, better), 0.0, share=share, runs=runs, max_seconds=np.inf)
    assert found.reason == "reached"
    assert found.samples == 2 * found.per_pair
    noise = 4 * sqrt(share * (1 - share) / runs)
    assert chance_of_the_better_arm(worse, better, found.per_pair) > share - noise
    assert chance_of_the_better_arm(worse, better, found.per_pair * 4 // 5) < share + noise


def test_a_bandit_against_counting():
    """Every run of every number of samples, by hand."""
    model, runs, seed = bp.ExactSimulator(bandit(0.3, 0.5)), 40, 7

    def good(size: int) -> int:
        pulls = bp.Pulls(np.arange(2), np.full((1, 2), size))
        tallies = (model.sample(pulls, np.random.default_rng([seed, size, number])) for number in range(runs))
        return sum(tally.reward_sums[0, 1] > tally.reward_sums[0, 0] for tally in tallies)

    found = plug_in_samples(model.mdp, 0.1, share=0.9, runs=runs, seed=seed, max_seconds=np.inf)
    before = max(size for size in price._GRID if size < found.per_pair)
    assert good(found.per_pair) >= 36 > good(before)
    doubled = next(2**k for k in range(20) if good(2**k) >= 36)
    assert doubled / 2 < found.per_pair <= doubled


def test_nothing_to_decide_takes_one_sample_of_each_pair():
    assert plug_in_samples(bandit(0.3, 0.5), 0.4).samples == 2  # the loss of the worse arm, exactly
    episodic = random_mdp(0, discount=None, horizon=3)
    assert plug_in_samples(episodic, 3.0).samples == 3 * len(episodic.problem.pairs)


@pytest.mark.parametrize("mdp", [near_tie(0.2), random_mdp(1), random_mdp(2, discount=None, horizon=3)])
def test_a_larger_epsilon_never_takes_more(mdp):
    needed = [plug_in_samples(mdp, epsilon, runs=20).samples for epsilon in (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] > needed[-1] == mdp.problem.stages * len(mdp.problem.pairs)


def test_the_estimate_of_a_table_is_its_means_and_that_of_features_least_squares():
    rng = np.random.default_rng(3)
    for mdp in (near_tie(0.2), random_mdp(1), random_mdp(2, discount=None, horizon=3)):
        problem = mdp.problem
        pulls = bp.Pulls(problem.pairs, np.full((problem.stages, len(problem.pairs)), 50))
        tally = bp.ExactSimulator(mdp).sample(pulls, rng)
        theta, mu = estimate(tally, 50, regression_weights(problem))
        expected = least_squares(problem.features, tally, ridge=0.0)
        np.testing.assert_allclose(theta, expected.theta, atol=1e-9)
        np.testing.assert_allclose(mu, expected.mu, atol=1e-9)
    tally = bp.ExactSimulator(near_tie(0.2)).sample(bp.Pulls(np.arange(4), np.full((1, 4), 50)), rng)
    theta, mu = estimate(tally, 50, regression_weights(near_tie(0.2).problem))
    model = EmpiricalModel.of(near_tie(0.2).problem, tally)
    np.testing.assert_allclose(bp.planning.optimal_plan(model.problem, theta, mu).values[0], plan(model).values)


def test_other_coordinates_of_the_same_features_change_nothing():
    mdp, basis = random_mdp(1), np.array([[1.0, 2, 0, 0], [0, 3, 1, 0], [0, 0, 0.1, 1], [1, 0, 0, 20]])
    problem, back = mdp.problem.with_features(mdp.problem.features @ basis), np.linalg.inv(basis).T
    other = bp.LinearMDP(problem, theta=mdp.theta[0] @ back, mu=mdp.mu[0] @ back)
    assert plug_in_samples(other, 0.1, runs=20) == plug_in_samples(mdp, 0.1, runs=20)


def test_a_sparse_table_has_the_estimate_of_a_dense_one():
    mdp = bp.instances.load("riverswim")
    table = bp.LinearMDP.from_table(mdp.transitions, mdp.rewards, discount=mdp.problem.discount)
    assert table.kernel is not None
    assert mdp.kernel is None
    pulls = bp.Pulls(mdp.problem.pairs, np.full((1, len(mdp.problem.pairs)), 30))
    tally, weights = bp.ExactSimulator(table).sample(pulls, np.random.default_rng(0)), regression_weights(mdp.problem)
    (theta, mu), (same, sparse) = (estimate(tally, 30, weights, sparse=sparse) for sparse in (False, True))
    np.testing.assert_array_equal(theta, same)
    np.testing.assert_array_equal(mu[0], sparse[0].toarray())
    # Other random numbers, but the same law: two estimates of one number.
    assert 1 / 3 < plug_in_samples(table, 0.1).samples / plug_in_samples(mdp, 0.1).samples < 3


def test_a_start_takes_fewer_samples_than_every_state():
    """Only the first of two bandits is where the run starts, and its arms are easier to tell apart."""
    transitions = np.zeros((2, 2, 2))
    transitions[0, :, 0] = transitions[1, :, 1] = 1.0
    mdp = tabular_mdp(transitions, np.array([[0.2, 0.8], [0.5, 0.45]]), discount=0.5)
    everywhere, easy, hard = (plug_in_samples(mdp, 0.0, start=start).samples for start in (None, 0, 1))
    assert easy < hard <= everywhere
    assert plug_in_samples(mdp, 0.0, start=[1, 0]).samples == easy
    assert plug_in_samples(mdp, 0.0, start=[0.5, 0.5]).samples == everywhere
    assert loss_from(mdp, np.array([[1, 1]]), np.array([0.5, 0.5])) == pytest.approx(0.05)
    assert loss_from(mdp, np.array([[1, 1]]), None) == pytest.approx(0.1)


def test_masked_actions_are_not_sampled():
    features = np.array([[[1.0, 0], [0, 1], [0, 0]]])
    problem = bp.Problem(features, discount=0.5, mask=[[True, True, False]])
    mdp = bp.LinearMDP(problem, theta=[0.3, 0.5], mu=[[1.0, 1.0]])
    found, plain = plug_in_samples(mdp, 0.0), plug_in_samples(bandit(0.3, 0.5), 0.0)
    assert (found.samples, found.per_pair) == (plain.samples, plain.per_pair)


def test_another_seed_is_another_estimate():
    found = {plug_in_samples(near_tie(0.1), 0.0, seed=seed, runs=20).samples for seed in range(6)}
    assert len(found) > 1


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("_DOUBLINGS", 2, "sample limit"), ("_LARGEST", 7, "too large"), (None, None, "time limit")],
)
def test_what_is_not_found_is_no_number(monkeypatch, limit, value, reason):
    if limit:
        monkeypatch.setattr(price, limit, value)
    found = plug_in_samples(near_tie(0.01), 0.0, max_seconds=np.inf if limit else 1e-12)
    assert (found.samples, found.per_pair, found.reason) == (None, None, reason)
    assert found.price(100) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mdp": "two-state"}, "mdp must be a LinearMDP"),
        ({"epsilon": -1}, "epsilon"),
        ({"share": 1.0}, "share must be strictly between 0 and 1"),
        ({"runs": 0}, "runs"),
        ({"seed": -1}, "seed"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"rewards": "gaussian"}, "rewards must be one of"),
        ({"start": 2}, "start must be one of 2 states"),
        ({"start": [0.5, 0.6]}, "start must be a distribution over 2 states"),
        ({"start": [1.0]}, "start must be a distribution over 2 states"),
    ],
)
def test_bad_input_is_refused(change, words):
    with pytest.raises(bp.InvalidInput, match=words):
        plug_in_samples(**({"mdp": near_tie(0.3), "epsilon": 0.1} | change))


def test_a_comparison_has_the_price(tmp_path):
    options = {**ASKED, "runs": 2, "lower_bounds": False, "store": tmp_path / "runs.db"}
    plain = bp.compare("two-state", ["tight", "plug-in-no-guarantee"], **options)
    assert "plug_in" not in plain.to_dict()
    assert "price" not in plain.to_csv()
    done: list[str] = []
    found = bp.compare(
        "two-state",
        ["tight", "plug-in-no-guarantee"],
        **options,
        price=True,
        progress=lambda *what: done.append(what[2]),
    )
    assert set(done) == {"plug-in on two-state"}  # the runs are those of the store
    assert found.rows == plain.rows
    (plug_in,) = found.plug_in
    assert plug_in.samples == plug_in_samples(bp.instances.load("two-state"), 0.3).samples
    tight, unproved = found.summary
    assert tight.price == tight.median_samples / plug_in.samples
    assert unproved.price is None  # nothing was certified
    found.save(tmp_path / "found.json")
    assert bp.Comparison.load(tmp_path / "found.json") == found
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["price"] for row in rows] == [*(str(row.samples / plug_in.samples) for row in found.rows[:2]), "", ""]
    page = report.report_page(tmp_path / "found.json")
    check_page(page)
    assert f'data-value="{tight.price}"' in page
    assert f"{plug_in.samples} on two-state" in page
    assert "uncertified plug-in" not in report.report_page(plain)


def test_a_price_that_was_not_found_is_a_dash(tmp_path):
    found = bp.compare("two-state", "tight", **ASKED, runs=1, lower_bounds=False, price=True, price_seconds=1e-12)
    assert found.plug_in[0].samples is None
    assert found.summary[0].price is None
    assert bp.Comparison.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "uncertified plug-in" not in report.report_page(found)


@pytest.mark.parametrize("damage", [3, [{"instance": "two-state"}], [{"samples": 1.5}]])
def test_a_damaged_price_is_refused(damage):
    with pytest.raises(bp.InvalidInput, match="'plug_in'"):
        bp.Comparison.from_dict(bp.Comparison({}, ()).to_dict() | {"plug_in": damage})


def test_the_command_line():
    asked = ("--epsilon", 0.3, "--delta", 0.1, "--runs", 1, "--no-bounds", "--price")
    done = run("compare", "two-state", "--algorithms", "tight", *asked)
    assert done.returncode == 0
    needed = plug_in_samples(bp.instances.load("two-state"), 0.3).samples
    assert f"the uncertified plug-in needs {needed} samples to be within ε in 95 % of 60 runs" in done.stdout
    assert "price" in done.stdout.splitlines()[4]


def test_the_page_of_a_study_has_the_price(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bestpolicy.report.study_part"], "_pictures", lambda *_: [])
    monkeypatch.setattr(report, "PRICE_SECONDS", float("inf"))
    monkeypatch.setattr(report, "BOUND_SECONDS", 0.1)
    path = tmp_path / "run.db"
    make_study(path)
    page = report.report_page(path)
    needed = plug_in_samples(bp.instances.load("two-state"), 0.3).samples
    samples = int(check_page(page).facts["Simulator calls"])
    assert float(check_page(page).facts["The price of certainty"]) == samples / needed
    assert f"times the {needed} simulator calls that the uncertified plug-in needs to be within ε in 95" in page
    assert "price of certainty" not in report.report_page(path, bounds=False)
    assert "price of certainty" not in LivePage(path).look()[1]
    monkeypatch.setattr(report, "PRICE_SECONDS", 1e-12)
    assert "price of certainty" not in report.report_page(path)


def test_an_uncertified_study_has_no_price(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "BOUND_SECONDS", 0.1)
    make_study(tmp_path / "run.db", epsilon=0.001, max_samples=500)
    assert "price of certainty" not in report.report_page(tmp_path / "run.db")


def test_the_page_of_a_claim_at_a_start_is_about_that_start(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bestpolicy.report.study_part"], "_pictures", lambda *_: [])
    monkeypatch.setattr(report, "PRICE_SECONDS", float("inf"))
    make_study(tmp_path / "run.db", model="riverswim", algorithm="sharp", epsilon=0.3, start=0)
    facts = check_page(report.report_page(tmp_path / "run.db")).facts
    mdp = bp.instances.load("riverswim")
    needed = plug_in_samples(mdp, 0.3, start=0).samples
    assert float(facts["The price of certainty"]) == int(facts["Simulator calls"]) / needed
    assert "Lower bound for any algorithm" not in facts  # that is about claims in every state
    policy = from_store(tmp_path / "run.db").policy
    assert float(facts["True loss (the model is known)"]) == loss_from(mdp, policy, np.eye(6)[0])
