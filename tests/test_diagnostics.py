"""Is a model linear in its features? The test keeps its level, finds what is wrong, and says where and how much."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.diagnostics import check_linearity, sample_for_diagnostics
from bestpolicy.diagnostics.held_out import HeldOut, sampling_error
from tests.models import random_mdp, tabular_mdp


def perturbed(mdp: bp.LinearMDP, pair: tuple[int, int], reward: float = 0.0, mass: float = 0.0, stage: int = 0):
    """A tabular simulator of the same size that differs from `mdp` at one pair (and step)."""
    problem = mdp.problem
    staged = problem.horizon is not None
    transitions = np.where(problem.mask[..., None], mdp.transitions, 1 / problem.states)
    rewards = mdp.rewards.copy()
    at = (stage, *pair) if staged else pair
    rewards[at] += reward if rewards[at] < 0.5 else -reward
    source = transitions[at].argmax()
    target = (source + 1) % problem.states
    moved = min(mass, transitions[at][source])
    transitions[(*at, source)] -= moved
    transitions[(*at, target)] += moved
    if not staged:
        return bp.ExactSimulator(tabular_mdp(transitions, rewards, discount=problem.discount)), (source, target)
    features = np.eye(problem.mask.size).reshape(*problem.mask.shape, -1)
    tabular = bp.Problem(features, horizon=problem.horizon)
    mu = np.swapaxes(transitions.reshape(problem.horizon, -1, problem.states), 1, 2)
    return bp.ExactSimulator(bp.LinearMDP(tabular, theta=rewards.reshape(problem.horizon, -1), mu=mu)), (source, target)


def uneven_tally(mdp: bp.LinearMDP, rng: np.random.Generator, most: int = 60) -> bp.Tally:
    pairs = mdp.problem.pairs
    counts = rng.integers(2, most, size=(mdp.problem.stages, len(pairs)))
    return bp.ExactSimulator(mdp).sample(bp.Pulls(pairs, counts), rng)


@pytest.mark.parametrize("kind", ["discounted", "masked", "episodic", "deterministic", "many states"])
def test_a_linear_model_is_rejected_at_most_as_often_as_the_level_says(kind):
    level, runs = 0.3, 40 if kind == "many states" else 150
    alarms = 0
    for seed in range(runs):
        states = 200 if kind == "many states" else 6
        mdp = random_mdp(seed % 10, states, masked=kind == "masked", horizon=3 if kind == "episodic" else None)
        rng = np.random.default_rng(seed)
        if kind == "deterministic":
            pulls = bp.Pulls(mdp.problem.pairs, rng.integers(2, 9, size=(1, len(mdp.problem.pairs))))
            tally = bp.ExactSimulator(mdp, "deterministic").sample(pulls, rng)
        else:
            tally = uneven_tally(mdp, rng)
        report = check_linearity(mdp.problem, tally, level=level)
        assert report.tested > 0
        alarms += not report.passed
    assert binomtest(alarms, runs, level, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("law", ["fair", "rare", "constant"])
def test_the_sampling_error_holds_and_is_not_idle(law):
    rng = np.random.default_rng(5)
    counts = np.array([400, 150, 60, 900])
    means = {"fair": np.full(4, 0.5), "rare": np.full(4, 0.02), "constant": np.ones(4)}[law]
    contrast = np.array([[1.0, -0.6, 0.3, -0.7]])
    failure = 0.05
    misses, radii, errors = 0, [], []
    for _ in range(2000):
        drawn = rng.binomial(counts, means) / counts
        variances = (drawn * (1 - drawn) * counts / (counts - 1))[:, None]
        radius = sampling_error(contrast, counts.astype(float), variances, np.log(5 / failure))[0, 0]
        error = abs(float(contrast[0] @ (drawn - means)))
        misses += error > radius
        radii.append(radius)
        errors.append(error)
    assert binomtest(misses, 2000, failure, alternative="greater").pvalue > 1e-3
    hoeffding = np.sqrt((contrast[0] ** 2 / counts).sum() * np.log(5 / failure) / 2)
    assert np.mean(radii) <= {"fair": 1.0, "rare": 0.75, "constant": 0.6}[law] * hoeffding + 1e-12
    if law != "constant":
        assert np.mean(radii) <= 5 * np.quantile(errors, 0.95)


def test_a_held_out_residual_is_that_of_a_regression_without_the_pair():
    mdp = random_mdp(3)
    tally = uneven_tally(mdp, np.random.default_rng(0))
    design = HeldOut(mdp.problem, tally, 0)
    contrasts = design.contrasts(design.tested)
    features = mdp.problem.features.reshape(-1, 4)[tally.pairs]
    assert np.abs(contrasts @ features).max() < 1e-12
    counts, means = tally.pulls[0], tally.reward_sums[0] / tally.pulls[0]
    for row, k in enumerate(design.tested):
        others = np.arange(len(means)) != k
        root = np.sqrt(counts[others])
        theta = np.linalg.lstsq(root[:, None] * features[others], root * means[others], rcond=None)[0]
        assert contrasts[row] @ means == pytest.approx(means[k] - features[k] @ theta, abs=1e-12)
        variance = 1 / (counts[k] * design.slack[k])
        assert (contrasts[row] ** 2 / counts).sum() == pytest.approx(variance)


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_reward_is_found_and_its_pair_named(seed):
    mdp = random_mdp(seed)
    model, _ = perturbed(mdp, (2, 1), reward=0.4)
    report = check_linearity(mdp.problem, sample_for_diagnostics(model, 3000, np.random.default_rng(seed)))
    assert report.verdict == "failed"
    assert not report.rewards.passed
    assert report.transitions.passed
    worst = report.worst
    assert (worst.quantity, worst.state, worst.action, worst.stage) == ("mean reward", 2, 1, 0)
    assert worst.residual == pytest.approx(0.4, abs=worst.radius)
    assert report.rewards.failing >= 1  # predictions of other pairs suffer too
    assert report.transitions.failing == 0
    assert f"{report.rewards.failing} of {report.tested} in their rewards, 0 in their next states" in report.sentence()
    assert "the mean reward of (state 2, action 1) is" in report.sentence()
    assert report.misspecification[1] > 0
    assert report.extra_loss[1] > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_transition_is_found_and_its_pair_named(seed):
    mdp = random_mdp(seed)
    model, moved = perturbed(mdp, (4, 2), mass=0.4)
    report = check_linearity(mdp.problem, sample_for_diagnostics(model, 20_000, np.random.default_rng(seed)))
    assert report.rewards.passed
    assert not report.transitions.passed
    assert not report.passed
    worst = report.worst
    assert (worst.quantity, worst.state, worst.action) == ("next-state distribution", 4, 2)
    assert worst.next_state is None or worst.next_state in moved
    assert "of (state 4, action 2) is" in report.sentence()


def test_aggregated_states_that_do_not_behave_alike():
    """A user's own simulator with features that are wrong in a known way: cells of a line, four to a group."""
    features = np.zeros((12, 2, 6))
    for state, action in np.ndindex(12, 2):
        features[state, action, 2 * (state // 4) + action] = 1.0
    problem = bp.Problem(features, discount=0.8)

    def step(state, action, rng):
        arrival = int(np.clip(state + (2 * action - 1) * (rng.random() < 0.8), 0, 11))
        return float(arrival == 11), arrival

    simulator = bp.CallableSimulator(problem, step)
    report = check_linearity(problem, sample_for_diagnostics(simulator, 300, np.random.default_rng(0)))
    # To the right, the last four cells earn 0, 0, 0.8 and 1, to the left 0, 0, 0 and 0.2: no fit is closer than 0.5.
    assert report.rewards.lower <= 0.5 <= report.rewards.upper
    assert report.rewards.lower > 0.25
    assert report.rewards.failing == 5  # those to the right, and cell 11 to the left
    assert report.transitions.failing == 24  # a cell never leads where its neighbour leads
    assert (report.rewards.state, report.rewards.action) == (11, 1)
    zeta = report.rewards.lower + 4 * report.transitions.lower
    assert report.misspecification[1] == pytest.approx(zeta)
    assert report.extra_loss[1] == pytest.approx(min(np.sqrt(6) * 25 * zeta, 5.0))
    assert "A policy may lose up to about 5 more than its epsilon (√d·ζ/(1-γ)²" in report.sentence()


def test_a_difference_spread_over_many_states_is_found():
    rng = np.random.default_rng(0)
    states = 300
    features = np.eye(4)[np.arange(4 * 2).reshape(4, 2) % 4]
    features = np.concatenate([features, np.tile(np.eye(4)[0], (states - 4, 2, 1))])
    problem = bp.Problem(features, discount=0.9)
    law = np.full((4, states), 1 / states)
    tilted = np.where(np.arange(states) % 2, 1.6, 0.4) / states
    pairs = problem.pairs[:40]
    truth = law[problem.pair_features[:40].argmax(axis=1)]
    truth[17] = tilted
    counts = rng.multinomial(2000, truth)[None]
    tally = bp.Tally(pairs, counts, np.zeros(counts.shape), np.zeros(counts.shape[:2]))
    report = check_linearity(problem, tally)
    assert not report.transitions.passed
    assert report.rewards.passed
    assert report.worst.next_state is None  # no single state gives it away
    assert (report.worst.state, report.worst.action) == problem.pair(int(pairs[17]))


def test_a_wrong_step_of_an_episodic_model_is_named():
    mdp = random_mdp(1, horizon=4)
    model, _ = perturbed(mdp, (3, 0), reward=0.4, stage=2)
    report = check_linearity(mdp.problem, sample_for_diagnostics(model, 3000, np.random.default_rng(0)))
    worst = report.worst
    assert not report.passed
    assert (worst.state, worst.action, worst.stage) == (3, 0, 2)
    assert "(state 3, action 0) at step 2" in report.sentence()
    assert "√d·H²·ζ" in report.sentence()
    assert report.pairs == 4 * len(mdp.problem.pairs)


def test_noise_elsewhere_does_not_hide_a_small_misfit():
    mdp = random_mdp(1, horizon=3)
    model, _ = perturbed(mdp, (3, 0), reward=0.1, stage=2)
    counts = np.full((3, len(mdp.problem.pairs)), 3)
    counts[2] = 10**6
    tally = model.sample(bp.Pulls(mdp.problem.pairs, counts), np.random.default_rng(0))
    worst = check_linearity(mdp.problem, tally).worst
    assert (worst.state, worst.action, worst.stage, worst.passed) == (3, 0, 2, False)


def test_the_bounds_on_the_misspecification_hold():
    level, runs, misses = 0.3, 60, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        features = rng.dirichlet(np.ones(3), size=(5, 2))
        problem = bp.Problem(features, discount=0.7)
        bend = rng.uniform(0, 1)
        flat = features.reshape(10, 3)
        rewards = (1 - bend) * flat @ rng.uniform(size=3) + bend * rng.uniform(size=10)
        transitions = (1 - bend) * flat @ rng.dirichlet(np.ones(5), size=3) + bend * rng.dirichlet(np.ones(5), size=10)
        truth = tabular_mdp(transitions.reshape(5, 2, 5), rewards.reshape(5, 2), discount=0.7)
        tally = sample_for_diagnostics(bp.ExactSimulator(truth), 10 ** (2 + seed % 3), rng)
        report = check_linearity(problem, tally, level=level)
        for part, zeta in (
            (report.rewards, best_fit(flat, rewards[:, None])),
            (report.transitions, best_fit(flat, transitions) / 2),
        ):
            assert part.lower <= part.estimate <= part.upper
            misses += not part.lower <= zeta + 1e-9 or not zeta <= part.upper + 1e-9
        if seed % 3 == 2:  # with 10⁴ samples a pair the bounds say something
            assert report.rewards.upper < 0.5
            assert report.transitions.upper < 0.7
    assert binomtest(misses, 2 * runs, level, alternative="greater").pvalue > 1e-3


def best_fit(features: np.ndarray, targets: np.ndarray) -> float:
    """min over linear fits of the largest L1 distance of a row, by linear programming."""
    rows, dimension = features.shape
    columns = targets.shape[1]
    unknowns = columns * dimension + rows * columns + 1  # fit, absolute residuals, and their largest sum
    above, limits = [], []
    for k in range(rows):
        total = np.zeros(unknowns)
        for s in range(columns):
            u = columns * dimension + k * columns + s
            total[u] = 1
            for sign in (1, -1):
                row = np.zeros(unknowns)
                row[s * dimension : (s + 1) * dimension] = sign * features[k]
                row[u] = -1
                above.append(row)
                limits.append(sign * targets[k, s])
        total[-1] = -1
        above.append(total)
        limits.append(0.0)
    answer = linprog(np.eye(unknowns)[-1], A_ub=np.array(above), b_ub=limits, bounds=(None, None))
    assert answer.success
    return float(answer.fun)


def test_masked_pairs_are_neither_sampled_nor_judged():
    mdp = random_mdp(2, masked=True)
    tally = sample_for_diagnostics(bp.ExactSimulator(mdp), 50, np.random.default_rng(0))
    assert np.array_equal(tally.pairs, mdp.problem.pairs)
    assert (tally.pulls == 50).all()
    report = check_linearity(mdp.problem, tally)
    assert report.passed
    assert mdp.problem.mask[report.worst.state, report.worst.action]
    everything = sample_for_diagnostics(bp.ExactSimulator(random_mdp(2)), 50, np.random.default_rng(0))
    with pytest.raises(bp.InvalidInput, match="not allowed"):
        check_linearity(mdp.problem, everything)


def test_only_so_many_pairs_are_sampled():
    model = bp.ExactSimulator(random_mdp(0, states=40))
    tally = sample_for_diagnostics(model, 20, np.random.default_rng(0), max_pairs=30)
    assert len(tally.pairs) == 30
    assert tally.samples == 600
    assert check_linearity(model.problem, tally).pairs == 30
    for bad in ({"samples_per_pair": 1}, {"samples_per_pair": 2, "max_pairs": 0}):
        with pytest.raises(bp.InvalidInput, match="at least"):
            sample_for_diagnostics(model, rng=np.random.default_rng(0), **bad)


def test_few_pairs_tell_nothing():
    mdp = random_mdp(0)
    for most in (1, 4):
        tally = sample_for_diagnostics(bp.ExactSimulator(mdp), 100, np.random.default_rng(1), max_pairs=most)
        report = check_linearity(mdp.problem, tally)
        assert report.verdict == "cannot tell"
        assert report.passed
        assert report.tested == 0
        assert report.sentence().startswith("Cannot tell")
        assert report.misspecification == (0.0, 0.0, pytest.approx(0.5 + 4.0 * 1.0))
    once = bp.ExactSimulator(mdp).sample(
        bp.Pulls(mdp.problem.pairs, np.ones((1, 18), dtype=np.int64)), np.random.default_rng(0)
    )
    assert check_linearity(mdp.problem, once).verdict == "cannot tell"
    assert check_linearity(mdp.problem, bp.Tally.empty(mdp.problem)).verdict == "cannot tell"


def test_one_pair_more_than_features_can_tell():
    features = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])
    problem = bp.Problem(features, discount=0.5, mask=[[True, True], [True, False]])
    truth = tabular_mdp(np.full((2, 2, 2), 0.5), np.array([[0.1, 0.1], [0.9, 0.9]]), discount=0.5)
    pulls = bp.Pulls(problem.pairs, np.full((1, 3), 500))
    report = check_linearity(problem, bp.ExactSimulator(truth).sample(pulls, np.random.default_rng(0)))
    assert report.tested == 3
    assert not report.rewards.passed


def test_tabular_features_fit_everything():
    truth = tabular_mdp(np.full((2, 2, 2), 0.5), np.array([[0.1, 0.3], [0.9, 0.9]]), discount=0.5)
    report = check_linearity(
        truth.problem, sample_for_diagnostics(bp.ExactSimulator(truth), 5, np.random.default_rng(0))
    )
    assert report.verdict == "passed"
    assert report.misspecification == (0.0, 0.0, 0.0)
    assert "every model is linear" in report.sentence()


def test_coordinates_do_not_matter():
    mdp = random_mdp(6)
    tally = sample_for_diagnostics(bp.ExactSimulator(mdp), 200, np.random.default_rng(0))
    skewed = bp.Problem(
        mdp.problem.features @ np.random.default_rng(1).normal(size=(4, 4)) * [1, 1e-3, 1e4, 1], discount=0.8
    )
    a, b = (check_linearity(problem, tally) for problem in (mdp.problem, skewed))
    assert a.worst.residual == pytest.approx(b.worst.residual)
    assert a.misspecification == pytest.approx(b.misspecification)


def test_many_samples_of_sure_rewards_leave_no_doubt():
    mdp = random_mdp(0)
    tally = sample_for_diagnostics(bp.ExactSimulator(mdp, "deterministic"), 10**6, np.random.default_rng(0))
    report = check_linearity(mdp.problem, tally)
    assert report.passed
    assert report.rewards.upper < 1e-4 < report.transitions.upper


def test_what_it_does_to_the_guarantee():
    mdp = random_mdp(0)  # d = 4, discount 0.8
    report = check_linearity(
        mdp.problem, sample_for_diagnostics(bp.ExactSimulator(mdp), 10**9, np.random.default_rng(0))
    )
    _, low, high = report.misspecification
    assert low == 0
    assert high == pytest.approx(report.rewards.upper + 4 * report.transitions.upper)
    assert report.extra_loss[2] == pytest.approx(2 * high * 25)
    assert "No sign of misspecification (18 pairs" in report.sentence()
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "passed"


def test_bad_questions_are_refused():
    mdp = random_mdp(0)
    tally = sample_for_diagnostics(bp.ExactSimulator(mdp), 5, np.random.default_rng(0))
    for level in (0.0, 1.0, float("nan")):
        with pytest.raises(bp.InvalidInput, match="level"):
            check_linearity(mdp.problem, tally, level=level)
    with pytest.raises(bp.InvalidInput, match="does not belong"):
        check_linearity(random_mdp(0, states=7).problem, tally)
    without_ones = bp.Problem(np.random.default_rng(0).normal(size=(6, 3, 4)), discount=0.8)
    with pytest.raises(bp.InvalidInput, match="all-ones"):
        check_linearity(without_ones, tally)
