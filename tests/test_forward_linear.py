"""Theorem O-L: episodes of a linear MDP, in which pairs learn from each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import Forward
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import episodes as theorem
from bestpolicy.stopping import linear_episodes
from bestpolicy.stopping.episodes import Optimism, Seen
from bestpolicy.stopping.linear_episodes import RIDGE, Regression
from bestpolicy.verification.case import Case
from bestpolicy.verification.linear_episodes import Linear

MDP = bp.instances.load("simplex", states=10, actions=3, dimension=4, seed=0, horizon=3)
PROBLEM = MDP.problem
UNIFORM = np.ones((3, 10, 3)) / 3


def episodes(count, seed):
    return bp.ExactSimulator(MDP).rollout(Episodes(UNIFORM, count, 0), np.random.default_rng(seed))


def both(tally, delta=0.1):
    """Values of both bounds at every stage, from Theorem O-L alone."""
    regression = Regression(PROBLEM, delta)
    seen, upper, lower, found = Seen.of(PROBLEM, tally, False), np.zeros(10), np.zeros(10), []
    for stage in (2, 1, 0):
        here = seen.at(stage)
        cells = np.searchsorted(PROBLEM.pairs, here.pair), here.next_state, here.counts, here.rewards
        high, low = regression.bounds(cells, stage, upper, lower)
        found.append((high.reshape(10, 3), low.reshape(10, 3)))
        upper, lower = (table.reshape(10, 3).max(axis=1) for table in (high, low))
    return [np.array(tables)[::-1] for tables in zip(*found, strict=True)]


def test_the_identity_that_everything_rests_on():
    """Q* = Φθ̂ + P̂V* - Φx with x = G⁻¹(Σφη + λζ), in the product's own coordinates, whatever the data."""
    regression, here = Regression(PROBLEM, 0.1), Seen.of(PROBLEM, episodes(30, 0), False).at(1)
    rows, following = regression.features, MDP.values[2]
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(4), atol=1e-10)
    np.testing.assert_allclose(rows @ regression.ones, 1.0, atol=1e-9)
    place = np.searchsorted(PROBLEM.pairs, here.pair)
    gram = RIDGE * np.eye(4) + (rows[place] * here.counts[:, None]).T @ rows[place]
    q = MDP.q_values[1].reshape(-1)
    parameter = np.linalg.lstsq(rows, q, rcond=None)[0]
    noise = here.rewards + here.counts * (following[here.next_state] - q[place])
    bias = (0.5 + following.mean()) * regression.ones - parameter
    assert np.linalg.norm(bias) <= 3 - 1 - 0.5 + 1e-9
    error = np.linalg.solve(gram, rows[place].T @ noise + RIDGE * bias)
    theta = np.linalg.solve(gram, rows[place].T @ here.rewards + RIDGE * regression.ones / 2)
    arrivals = np.zeros((30, 10))
    np.add.at(arrivals, (place, here.next_state), here.counts)
    mu = np.linalg.solve(gram, rows.T @ arrivals + RIDGE * regression.ones[:, None] / 10)
    np.testing.assert_allclose(rows @ theta + rows @ mu @ following - rows @ error, q, atol=1e-9)


def test_bounds_hold_everywhere_and_close():
    widths = []
    for count in (20, 3000, 10**7):
        high, low = both(episodes(count, 1))
        assert (high >= MDP.q_values).all()
        assert (low <= MDP.q_values).all()
        widths.append((high - low)[0, 0].max())
    assert widths[0] > 1.5
    assert widths[2] < 0.25 < widths[1]


def test_the_smaller_of_both_bounds_counts_and_shares_delta():
    tally, start = episodes(20_000, 2), np.eye(10)[0]
    rule = Optimism(PROBLEM, 0.1, PROBLEM.value_limits, start=start)
    alone = Optimism(bp.Problem.tabular(10, 3, horizon=3), 0.1, PROBLEM.value_limits, start=start)
    q, _ = rule.upper_values(Seen.of(PROBLEM, tally, False))
    apart, _ = alone.upper_values(Seen.of(PROBLEM, tally, False))
    assert rule.regression is not None
    assert alone.regression is None
    assert (q >= MDP.q_values - 1e-12).all()
    assert (q < apart).mean() > 0.6
    assert rule.delta_each == pytest.approx(0.5 * alone.delta_each)
    limited = Optimism(PROBLEM, 0.1, np.array([2.0, 2.0, 1.0]), start=start)
    assert limited.regression is None  # the identity is about all states, reachable or not


def fails(delta, factor, runs, monkeypatch):
    honest = linear_episodes.widths
    monkeypatch.setattr(linear_episodes, "widths", lambda *arguments: factor * honest(*arguments))
    false = 0
    for seed in range(runs):
        tally, wrong = Tally.empty(PROBLEM), False
        for look, count in enumerate((50, 150, 800)):
            tally = tally + episodes(count, (seed, look))
            high, low = both(tally, delta)
            wrong |= bool((high < MDP.q_values).any() or (low > MDP.q_values).any())
        false += wrong
    monkeypatch.setattr(linear_episodes, "widths", honest)
    return false


def test_the_bounds_hold_with_the_right_probability(monkeypatch):
    assert binomtest(fails(0.5, 1.0, 30, monkeypatch), 30, 0.5, alternative="greater").pvalue > 0.01
    assert binomtest(fails(0.5, 0.3, 25, monkeypatch), 25, 0.5, alternative="greater").pvalue < 1e-3  # is noticed


@pytest.mark.study
def test_the_bounds_hold_with_the_right_probability_in_many_runs(monkeypatch):
    false, mutated = fails(0.5, 1.0, 300, monkeypatch), fails(0.5, 0.3, 60, monkeypatch)
    print(f"O-L: {false} of 300 runs wrong at δ = 0.5; {mutated} of 60 with widths times 0.3")
    assert binomtest(false, 300, 0.5, alternative="greater").pvalue > 0.01
    assert binomtest(mutated, 60, 0.5, alternative="greater").pvalue < 1e-3


def test_visits_without_an_outcome_leave_the_regression_out():
    whole = episodes(2000, 3)
    broken = Tally.from_episodes(PROBLEM, [[0, 0, 0, 0]], [[0, 0, 0]], [[0.0, 0, 0]], lengths=[0])
    rule = Optimism(PROBLEM, 0.1, PROBLEM.value_limits, start=np.eye(10)[0])
    without, _ = rule.upper_values(Seen.of(PROBLEM, whole, False))
    with_it, _ = rule.upper_values(Seen.of(PROBLEM, whole + broken, False))
    assert (with_it > without).mean() > 0.5


def test_the_checker_comes_to_the_same_bounds():
    tally, seen = episodes(2000, 4), Seen.of(PROBLEM, episodes(2000, 4), False)
    case = Case(PROBLEM.features, PROBLEM.mask, None, 3)
    linear, (high, low) = Linear.of(case, 0.1), both(tally)
    upper = lower = np.zeros(10)
    for stage in (2, 1, 0):
        here = seen.at(stage)
        mine = linear.bounds(here.pair, here.next_state, here.counts, here.rewards, stage, upper, lower)
        np.testing.assert_allclose(mine[0], high[stage].ravel(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(mine[1], low[stage].ravel(), rtol=1e-3, atol=1e-3)
        upper, lower = (table.reshape(10, 3).max(axis=1) for table in (high[stage], low[stage]))


def test_a_run_is_certified_and_its_certificate_checked(tmp_path):
    options = {"epsilon": 0.9, "delta": 0.1, "seed": 0, "start": 0}
    result = bp.identify(bp.ExactSimulator(MDP), algorithm="forward", store=tmp_path / "run.db", **options)
    assert result.certified
    assert MDP.loss(result.policy, start=np.eye(10)[0]) <= result.epsilon
    result.save(tmp_path / "policy.json")
    found = bp.verify(tmp_path / "policy.json", MDP, store=tmp_path / "run.db")
    assert found.valid, found.reasons
    assert found.recomputed_epsilon == pytest.approx(result.epsilon, rel=0.02)


@pytest.mark.study
@pytest.mark.parametrize(
    ("name", "options", "epsilon", "expected"),
    [
        ("simplex", {"states": 10, "actions": 3, "dimension": 4, "seed": 0, "horizon": 5}, 0.5, 6756),
        ("universal-episodic", {}, 0.3, 4111),
    ],
)
def test_the_number_of_episodes_is_that_of_the_reference(name, options, epsilon, expected):
    mdp, found = bp.instances.load(name, **options), []
    for seed in range(20):
        asked = {"epsilon": epsilon, "delta": 0.1, "algorithm": Forward(), "seed": seed, "start": 0}
        found.append(bp.identify(bp.ExactSimulator(mdp), **asked).rounds)
    assert expected / 1.5 <= np.mean(found) <= expected * 1.5


def test_shares_of_delta_sum_to_one_at_most():
    assert sum(linear_episodes.SHARES_OF_EVENTS) <= 1
    assert 0 < theorem.LINEAR_SHARE < 1


def test_features_that_cannot_be_made_orthogonal_are_not_regressed_on(tmp_path):
    """Both programs do without Theorem O-L then, so that an honest file is accepted."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), 8)
    narrow = weights[:, :1] * 1e-7  # the third feature is the second, but for next to nothing
    features = np.concatenate(
        [weights[:, :1], 1 - weights[:, :1], 1 - weights[:, :1] + narrow * weights[:, 1:2]], axis=1
    )
    problem = bp.Problem(features.reshape(4, 2, 3), horizon=2)
    rule = Optimism(problem, 0.1, problem.value_limits, False, np.eye(4)[0])
    assert rule.regression is None

    def step(state, action, rng):
        return float(rng.random() < 0.5), int(rng.integers(4))

    result = bp.identify(
        bp.CallableSimulator(problem, step), epsilon=1.5, delta=0.2, seed=0, start=0, algorithm="forward"
    )
    result.save(tmp_path / "policy.json")
    assert bp.verify(tmp_path / "policy.json").valid
