"""The competitors that follow policies: as dear as prototypes, wrong at most δ of the time, right in their parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb, log, sqrt

import numpy as np
import pytest
from benchmarks.forward import MODELS, REFERENCE, build
from scipy.optimize import linprog, minimize
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy import instances
from bestpolicy.algorithms import (
    BPIUCBVI,
    BPIUCRL,
    LSVIUCB,
    PEDEL,
    RFLIN,
    UCFH,
    UCLK,
    UCRLVTR,
    LSVIUCBNoGuarantee,
    MDPNaS,
)
from bestpolicy.algorithms.peers import bpi_ucbvi, bpi_ucrl, kl_ball, lsvi_ucb, mdp_nas, pedel, rflin, ridge, ucfh
from bestpolicy.algorithms.peers.klb_ts import Times
from bestpolicy.algorithms.peers.online import StepMeans
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, plan
from bestpolicy.bounds import lsvi_ucb_episodes, rflin_episodes
from bestpolicy.errors import InvalidInput
from bestpolicy.samples import Episodes, Tally
from tests.followed import broken, follow, losses
from tests.kl_ball import kl_max
from tests.models import random_mdp

TWO = MODELS["two-3"]()

# Places where a run of the benchmark is cheap, one for each algorithm, and what a mutation changes.
CHEAP = {
    "bpi-ucrl": ("two-5", 2.5),
    "bpi-ucrl known r": ("two-5", 0.5),
    "ucfh": ("two-5", 2.5),
    "bpi-ucbvi": ("two-5", 0.5),
    "lsvi-ucb": ("universal", 0.3),
    "lsvi-ucb states": ("universal", 0.3),
    "lsvi-ucb c=.1": ("universal", 0.3),
    "ucrl-vtr known r": ("universal", 0.3),
    "rflin": ("tiny", 0.2),
    "pedel": ("tiny", 0.2),
    "uclk known r": ("B11", 0.5),
    "mdp-nas": ("B1", 0.5),
}
THRESHOLDS = {
    "bpi-ucrl": (bpi_ucrl, "threshold"),
    "ucfh": (ucfh, "width"),
    "bpi-ucbvi": (bpi_ucbvi, "log_terms"),
    "lsvi-ucb": (lsvi_ucb, "explicit_radius"),
    "ucrl-vtr known r": (ridge.Fit, "radius"),
    "rflin": (ridge.Fit, "radius"),
    "pedel": (PEDEL, "beta"),
    "uclk known r": (ridge.Fit, "radius"),
    "mdp-nas": (mdp_nas, "limit"),
}


DEAR = ("pedel", "uclk known r", "mdp-nas")


def factor(label: str) -> float:
    """What one run needs, in units of the mean of the prototypes."""
    place = CHEAP[label]
    mdp = MODELS[place[0]]()
    course = follow(build(label, place, mdp), mdp, place[1])
    assert losses(mdp, course.last)[0] <= place[1]
    return course.samples / mdp.problem.stages / REFERENCE[label][place]


def allowed(label: str) -> float:
    return 2.0 if label in ("rflin", "pedel") else 1.5


@pytest.mark.parametrize(
    "label", [pytest.param(label, marks=pytest.mark.study) if label in DEAR else label for label in CHEAP]
)
def test_as_dear_as_the_prototypes(label):
    assert 1 / allowed(label) < factor(label) < allowed(label)


@pytest.mark.parametrize(
    "label", [pytest.param(label, marks=pytest.mark.study) if label in DEAR else label for label in THRESHOLDS]
)
def test_a_threshold_times_three_tenths_would_be_noticed(label, monkeypatch):
    owner, name = THRESHOLDS[label]
    true = getattr(owner, name)

    def small(*arguments):
        found = true(*arguments)
        return tuple(0.3 * part for part in found) if isinstance(found, tuple) else 0.3 * found

    monkeypatch.setattr(owner, name, small)
    assert factor(label) < 1 / allowed(label)


def test_every_competitor_is_held_to_a_reference():
    followers = {name for name, kind in bp.algorithms.ALGORITHMS.items() if kind.about.sampling != "pairs"}
    held = {label.split()[0] for label in CHEAP} | {"lsvi-ucb-no-guarantee", "forward"}
    assert followers == held
    assert {label.split()[0] for label in THRESHOLDS} | {"lsvi-ucb-no-guarantee", "forward"} == held


# --- wrong at most δ of the time


def near_tie() -> bp.LinearMDP:
    """Two steps of two states in which most policies lose more than the ε that is asked below."""
    transitions = np.array([[[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.5], [0.2, 0.8]]])
    rewards = np.array([[0.55, 0.1], [0.1, 0.9]])
    return bp.LinearMDP.from_table(transitions, rewards, horizon=2)


COVERAGE = [
    (BPIUCRL(check_ratio=1.7), 0.5, 25),
    (UCFH(check_ratio=1.7), 0.5, 40),
    (BPIUCBVI(check_ratio=3.0), 0.5, 25),
    (LSVIUCB(check_ratio=3.0), 0.5, 20),
    (RFLIN(check_ratio=2.0), 0.5, 12),
    (PEDEL(check_ratio=2.0), 0.5, 8),
]


@pytest.mark.parametrize(("algorithm", "epsilon", "runs"), COVERAGE, ids=lambda case: getattr(case, "name", None))
def test_wrong_at_most_delta_of_the_time(algorithm, epsilon, runs):
    """At every look. Runs are the same each time, so the level of the test costs no false alarms."""
    mdp, delta = near_tie(), 0.5
    worst = max(losses(mdp, follow_constant(mdp, actions))[0] for actions in product(range(2), repeat=4))
    assert worst > epsilon  # a wrong policy would show
    failures = sum(broken(follow(algorithm, mdp, epsilon, delta, seed), mdp) for seed in range(runs))
    assert binomtest(failures, runs, delta, alternative="greater").pvalue > 0.05


def follow_constant(mdp: bp.LinearMDP, actions: tuple[int, ...]) -> object:
    class Played:
        policy = np.array(actions).reshape(2, 2)

    return Played


MIXED = {"ucrl-vtr known r": ("universal", 0.4), "uclk known r": ("B11", 1.0), "mdp-nas": ("B1", 0.5)}


def wrong_in_mixtures_and_walks(label: str, runs: int, ratio: float) -> int:
    """How many runs certify, at some look, less than the policy loses where the claim is; a wrong one would show."""
    place = MIXED[label]
    mdp, horizon = MODELS[place[0]](), MODELS[place[0]]().problem.horizon
    start = None if horizon is None else 0
    states = mdp.problem.states
    constant = [np.full(states if horizon is None else (horizon, states), action) for action in range(2)]
    lost = np.max([mdp.plan.values[0] - mdp.evaluate(policy).values[0] for policy in constant], axis=0)
    assert (lost.max() if start is None else lost[start]) > place[1]
    algorithm = replace(build(label, place, mdp), check_ratio=ratio)
    return sum(broken(follow(algorithm, mdp, place[1], 0.5, seed, start), mdp, start) for seed in range(runs))


@pytest.mark.parametrize(("label", "runs"), [("ucrl-vtr known r", 12), ("uclk known r", 6), ("mdp-nas", 5)])
def test_mixtures_and_walks_are_wrong_at_most_delta_of_the_time(label, runs):
    failures = wrong_in_mixtures_and_walks(label, runs, 2.0)
    assert binomtest(failures, runs, 0.5, alternative="greater").pvalue > 0.05


@pytest.mark.study
@pytest.mark.parametrize(
    ("label", "runs", "ratio"), [("ucrl-vtr known r", 200, 1.5), ("uclk known r", 200, 1.5), ("mdp-nas", 25, 2.0)]
)
def test_mixtures_and_walks_are_wrong_at_most_delta_of_the_time_in_many_runs(label, runs, ratio):
    failures = wrong_in_mixtures_and_walks(label, runs, ratio)
    print(f"{label}: {failures} of {runs} runs wrong at δ = 0.5")
    assert binomtest(failures, runs, 0.5, alternative="greater").pvalue > 0.05


@pytest.mark.study
@pytest.mark.parametrize(("algorithm", "epsilon", "runs"), COVERAGE, ids=lambda case: getattr(case, "name", None))
def test_wrong_at_most_delta_of_the_time_in_many_runs(algorithm, epsilon, runs):
    failures = sum(broken(follow(algorithm, near_tie(), epsilon, 0.5, seed), near_tie()) for seed in range(10 * runs))
    print(f"{algorithm.name}: {failures} of {10 * runs} runs wrong at δ = 0.5")
    assert binomtest(failures, 10 * runs, 0.5, alternative="greater").pvalue > 0.05


@pytest.mark.study
@pytest.mark.parametrize("label", ["ucrl-vtr", "uclk", "mdp-nas", "bpi-ucrl", "ucfh", "rflin", "pedel"])
def test_wrong_at_most_delta_of_the_time_where_it_is_dear(label):
    """Mixtures and walks, and smaller accuracies: policies lose up to 0.47 on universal, 2.0 on two-5."""
    place = {"uclk": ("B11", 0.5), "mdp-nas": ("B1", 0.5), "ucrl-vtr": ("universal", 0.3)}.get(label, ("two-3", 0.3))
    mdp, runs, delta = MODELS[place[0]](), 60, 0.5
    algorithm = build(label, place, mdp)
    start = None if label in ("uclk", "mdp-nas") else 0
    failures = sum(broken(follow(algorithm, mdp, place[1], delta, seed, start), mdp, start) for seed in range(runs))
    print(f"{label}: {failures} of {runs} runs wrong at δ = 0.5 on {place[0]}")
    assert binomtest(failures, runs, delta, alternative="greater").pvalue > 0.05


@pytest.mark.parametrize("algorithm", [BPIUCRL(), UCFH(), UCFH(stationary=True), BPIUCBVI(constants="derived")])
def test_bounds_hold_at_every_look_and_pair(algorithm):
    """U ≥ Q* at all steps and pairs, not only where the claim is, at δ = 0.5."""
    mdp, runs, wrong = near_tie(), 12, 0
    for seed in range(runs):
        rng, simulator = np.random.default_rng(seed), bp.ExactSimulator(mdp)
        task = bp.algorithms.Task(mdp.problem, 0.5, 0.5, rng, start=np.eye(2)[0])
        learner = algorithm.learner(task, task.start)
        failed = False
        for look, count in enumerate((1, 2, 4, 10, 30, 100, 300, 1000), 1):
            known = learner.bounds(look)
            learner.add(simulator.rollout(Episodes(known.play, count, 0), rng))
            failed |= bool((learner.bounds(look).q_values < mdp.q_values - 1e-9).any())
        wrong += failed
    assert binomtest(wrong, runs, 0.5, alternative="greater").pvalue > 0.05


# --- the parts


def test_the_dual_of_the_kl_ball_agrees_with_another_solver():
    rng = np.random.default_rng(0)
    for _ in range(100):
        size, rows = int(rng.integers(2, 12)), 20
        draws = int(10 ** rng.uniform(0, 9))
        p = rng.multinomial(draws, rng.dirichlet(np.full(size, 0.5), size=rows)) / draws
        f, radius = rng.random(size) * rng.choice([1e-3, 1, 50]), 10 ** rng.uniform(-9, 1.5, rows)
        apart = (kl_ball.largest_means(p, f, radius) - kl_max(p, f, radius)) / np.ptp(f)
        assert -1e-9 < apart.min() <= apart.max() < 1e-7


def test_kl_balls_without_draws_and_without_bounds():
    p = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    radius = np.array([0.1, np.inf, 0.0, 1e-14])
    np.testing.assert_allclose(kl_ball.largest_means(p, np.array([1.0, 3.0]), radius), [3, 3, 2, 2], atol=2e-6)
    same = kl_ball.largest_means(p, np.array([2.0, 2.0]), radius)
    np.testing.assert_allclose(same, 2.0)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_size_of_kl_balls_is_what_the_proof_says(scale):
    """Frequencies of three outcomes, looked at after every draw: inside at all times, or not."""
    delta, runs, times, p = 0.5, 300, np.arange(1, 1001), np.array([0.05, 0.15, 0.8])
    rng = np.random.default_rng(1)
    counts = np.cumsum(rng.multinomial(1, p, size=(runs, len(times))), axis=1)
    shares = counts / times[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = times * np.where(shares > 0, shares * np.log(shares / p), 0.0).sum(axis=2)
    outside = (divergence > scale * kl_ball.threshold(delta, times.astype(float), 3)).any(axis=1).sum()
    assert (binomtest(int(outside), runs, delta, alternative="greater").pvalue > 1e-3) == (scale == 1.0)
    exact = [log(1 / delta) + log(comb(n + 2, 2)) for n in (1, 10, 1000)]
    assert (kl_ball.threshold(delta, np.array([1.0, 10.0, 1000.0]), 3) >= exact).all()


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_means_of_numbers_between_obey_the_ball_of_a_coin(scale):
    """Rewards that are no coins, half of them in between."""
    delta, runs, times = 0.5, 300, np.arange(1, 1001)
    rng = np.random.default_rng(2)
    values = np.where(
        rng.random((runs, len(times))) < 0.5, rng.random((runs, len(times))), rng.random((runs, 1000)) < 0.1
    )
    true = 0.5 * 0.5 + 0.5 * 0.1
    means = np.clip(np.cumsum(values, axis=1) / times, 1e-12, 1 - 1e-12)
    divergence = times * (means * np.log(means / true) + (1 - means) * np.log((1 - means) / (1 - true)))
    outside = (divergence > scale * kl_ball.threshold(delta, times.astype(float), 2)).any(axis=1).sum()
    assert binomtest(int(outside), runs, delta, alternative="greater").pvalue > 1e-3 or scale < 1


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_intervals_of_ucfh_are_what_the_proof_says(scale):
    """Means of a coin at all times; all of δ for one law."""
    problem, delta, runs, times = TWO.problem, 0.5, 300, np.arange(1.0, 1501.0)
    laws = len(problem.pairs) * (problem.states + 1) * problem.stages
    logs = ucfh.log_terms(problem, times, delta * laws, stationary=False)
    means = np.cumsum(np.random.default_rng(3).random((runs, len(times))) < 0.5, axis=1) / times
    outside = (np.abs(means - 0.5) > scale * ucfh.width(times, means * (1 - means), logs)).any(axis=1).sum()
    assert (binomtest(int(outside), runs, delta, alternative="greater").pvalue > 1e-3) == (scale == 1.0)


def test_pooling_leaves_the_number_of_statements_as_it_must_be():
    """Laws that differ from step to step are H times as many; one law for all steps is one: laws are bounded."""
    problem, visits = TWO.problem, np.array([5.0])
    apart = ucfh.log_terms(problem, visits, 0.1, False) - ucfh.log_terms(problem, visits, 0.1, True)
    assert apart == pytest.approx(log(problem.stages))
    expected = log(6 * len(problem.pairs) * (problem.states + 1) * problem.stages * 30 / 0.1)
    assert ucfh.log_terms(problem, visits, 0.1, False) == pytest.approx(expected)
    # Functions of the next value are H, pooled or not: who bounds those keeps H·S·A statements.
    mdp = MODELS["two-3"]()
    tally = bp.ExactSimulator(mdp).rollout(Episodes(np.zeros((3, 2), int), 50, 0), np.random.default_rng(0))
    pooled, apart = StepMeans.of(mdp.problem, tally, True), StepMeans.of(mdp.problem, tally)
    assert pooled.visits.shape == apart.visits.shape
    assert (pooled.visits[0] == apart.visits.sum(axis=0)).all()


def test_the_best_law_in_intervals_is_that_of_a_linear_programme():
    rng = np.random.default_rng(4)
    for _ in range(30):
        size = int(rng.integers(2, 7))
        p, f = rng.dirichlet(np.ones(size)), rng.normal(size=size)
        least, most = np.maximum(p - rng.random(size) / 4, 0), np.minimum(p + rng.random(size) / 4, 1)
        solved = linprog(-f, A_eq=np.ones((1, size)), b_eq=[1.0], bounds=list(zip(least, most, strict=True)))
        assert ucfh.best_mean(least[None], most[None], f)[0] == pytest.approx(-solved.fun)


def test_the_bernstein_inequality_of_bpi_ucbvi_follows_from_freedmans_on_a_grid():
    """Its form at all times is quoted from memory: a grid with ratio 1 + 1/(2L) gives less, at every n and variance."""
    for share in (0.3, 0.01, 1e-4, 1e-8, 1e-15):
        nats, ratio = log(1 / share), 1 + 0.5 / log(1 / share) if share < 0.2 else 1.4
        n = np.unique(np.round(np.logspace(0, 12, 400)))
        look = np.floor(np.log(n) / log(ratio))
        ours = nats + np.log(2 * (look + 1) * (look + 2))  # two sides, Σ 1/((k+1)(k+2)) = 1
        theirs = nats + np.log(8 * np.e * (n + 1))
        for variance in (0.25, 0.05, 1e-3, 0.0):
            # Freedman up to the end of a cell: S_n ≤ √(2Nvx) + x/3 with N ≤ ratio·n.
            grid = np.sqrt(2 * variance * ratio * ours / n) + ours / (3 * n)
            quoted = np.sqrt(2 * variance * theirs / n) + 3 * theirs / n
            assert (grid <= quoted).all(), (share, variance)


def test_beta_of_lsvi_ucb_solves_its_equation():
    for d, horizon, k, delta in ((4, 5, 10**6, 0.1), (10, 10, 10**9, 1e-4), (3, 1, 1, 0.5)):
        beta, eta = lsvi_ucb.explicit_radius(d, horizon, k, delta), d * horizon / k
        cover = d * log(1 + 8 * horizon * sqrt(d * k) / eta) + d**2 * log(1 + 8 * sqrt(d) * beta**2 / eta**2)
        nats = d / 2 * log(1 + k) + cover + log(2 * horizon / delta)
        assert beta == pytest.approx(4 * horizon * sqrt(d) + sqrt(4 * horizon**2 * nats + 8 * (d * horizon) ** 2))
        of_states = lsvi_ucb.explicit_radius(d, horizon, k, delta, states=2)
        nats = d / 2 * log(1 + k) + min(cover, 4 * log(1 + horizon / eta)) + log(2 * horizon / delta)
        assert of_states <= 4 * horizon * sqrt(d) + sqrt(4 * horizon**2 * nats + 8 * (d * horizon) ** 2) + 1e-9


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_radius_of_least_squares_is_what_the_proof_says(scale):
    """A direction that looks back at what it has seen, and a coin whose mean it does not know."""
    runs, delta, outside = 50, 0.5, 0
    rng = np.random.default_rng(5)
    for _ in range(runs):
        gram, sums, hit = np.eye(2), np.zeros(2), False
        for _ in range(40):
            x = np.array([1.0, 0.0]) if sums[0] < 0 else np.array([0.6, 0.8])
            gram, sums = gram + np.outer(x, x), sums + x * (rng.random() < 0.5) - x / 2
            error = sqrt(sums @ np.linalg.solve(gram, sums))
            hit |= error > scale * ridge.Fit(np.eye(2), gram).radius(1.0, delta, 0.0)
        outside += hit
    assert (binomtest(outside, runs, delta, alternative="greater").pvalue > 1e-3) == (scale == 1.0)


def test_least_squares_of_a_step_agrees_with_a_plain_loop():
    mdp = random_mdp(3, states=4, actions=3, dimension=5, horizon=3)
    coordinates, rng = ridge.Coordinates.of(mdp.problem), np.random.default_rng(0)
    assert np.linalg.norm(coordinates.features, axis=1).max() <= 1
    assert coordinates.norm**2 <= 1.002 * 5
    policy = np.zeros((3, 4), int)
    tally = bp.ExactSimulator(mdp).rollout(Episodes(policy, 30, 0), rng).at(mdp.problem.pairs)
    fit, values = ridge.Fit.of(coordinates.features, tally.pulls[1].astype(float)), rng.random(4)
    gram, right = np.eye(5), np.zeros(5)
    for k, x in enumerate(coordinates.features):
        for s in range(4):
            gram += tally.next_counts[1, k, s] * np.outer(x, x)
            right += x * (tally.next_rewards[1, k, s] + tally.next_counts[1, k, s] * values[s])
    expected = coordinates.features @ np.linalg.solve(gram, right)
    np.testing.assert_allclose(fit.predict(tally.reward_sums[1] + tally.next_counts[1] @ values), expected)
    leverage = [x @ np.linalg.solve(gram, x) for x in coordinates.features]
    np.testing.assert_allclose(fit.widths**2, leverage)
    assert fit.log_det == pytest.approx(np.linalg.slogdet(gram)[1])


def test_targets_of_value_regression_stay_what_they_were():
    """The sums of UCRL-VTR are those of a loop over episodes with the values that each of them was played for."""
    mdp, mixture = MODELS["universal"](), instances.universal_mixture(actions=2, seed=29, horizon=3)
    task = bp.algorithms.Task(mdp.problem, 0.3, 0.1, np.random.default_rng(0), start=np.eye(8)[0])
    learner = UCRLVTR(kernels=mixture.kernels.tolist()).learner(task, task.start)
    gram, sums = np.stack([np.eye(3)] * 3), np.zeros((3, 3))
    for look in range(4):
        known = learner.bounds(look)
        values = learner.targets.copy()
        tally = bp.ExactSimulator(mdp).rollout(Episodes(known.play, 40, 0), task.rng)
        learner.add(tally)
        learner.bounds(look + 1)
        for h in range(3):
            for k, pair in enumerate(tally.pairs):
                x = np.array([mixture.kernels[h, j].reshape(-1, 8)[pair] @ values[h] for j in range(3)])
                for s in range(8):
                    gram[h] += tally.next_counts[h, k, s] * np.outer(x, x)
                    sums[h] += tally.next_counts[h, k, s] * x * values[h, s]
    np.testing.assert_allclose(learner.grams, gram)
    np.testing.assert_allclose(learner.sums, sums)


def test_shares_that_a_chain_can_keep_up_are_the_best_ones():
    """The linear programmes of MDP-NaS against a general solver."""
    mdp = random_mdp(4, states=3, actions=2, dimension=4, discount=0.7)
    problem = mdp.problem
    model = EmpiricalModel(problem, mdp.rewards.ravel()[problem.pairs], mdp.transition_rows(problem.pairs))
    times = Times.of(model, plan(model))
    shares = mdp_nas.best_shares(model, times)
    rivals, ours = times.rewards + times.transitions, times.played_rewards + times.played_transitions
    leaving = np.zeros((problem.states, len(problem.pairs)))
    leaving[problem.pairs // problem.actions, np.arange(len(problem.pairs))] = 1
    flow = leaving - model.transitions.T
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(flow @ shares, 0, atol=1e-9)

    def price(omega: np.ndarray) -> float:
        return float((rivals / omega[times.rivals]).max() + ours / omega[times.played].min())

    size = len(shares)
    start = np.append(np.maximum(shares, 1e-4), [0.0, 0.0])
    start[-2:] = np.log((rivals / start[times.rivals]).max() * 2), np.log(ours / start[times.played].min() * 2)
    constraints = [
        {"type": "eq", "fun": lambda x: (flow @ x[:size])[:-1]},
        {"type": "eq", "fun": lambda x: x[:size].sum() - 1},
        {"type": "ineq", "fun": lambda x: x[times.rivals] * np.exp(x[-2]) / rivals - 1},
        {"type": "ineq", "fun": lambda x: x[times.played] * np.exp(x[-1]) / ours - 1},
    ]
    bounds = [(1e-9, 1)] * size + [(None, None)] * 2
    options = {"ftol": 1e-13, "maxiter": 500}
    found = minimize(
        lambda x: np.logaddexp(x[-2], x[-1]), start, constraints=constraints, bounds=bounds, options=options
    )
    assert price(shares) == pytest.approx(np.exp(found.fun), rel=0.03)


# --- traps


def test_what_later_steps_showed_stays_out_of_the_data_of_a_step(monkeypatch):
    """RFLIN regresses a step on the episodes that explored it, and on no others."""
    mdp = MODELS["tiny"]()
    seen = {}
    true = rflin.bounds

    def watched(problem, radii, explored, rewards, start):
        seen["explored"] = explored
        return true(problem, radii, explored, rewards, start)

    monkeypatch.setattr(rflin, "bounds", watched)
    course = follow(RFLIN(check_ratio=1.5), mdp, 0.5)
    assert course.last.passed
    # The first episodes explore the last step; the data of step 0 begin after them.
    of_last = int(seen["explored"][1].pulls[1].sum())
    played = np.cumsum([answer.episodes for answer in course.answers])
    boundary = int(np.flatnonzero(played == of_last)[0])
    early, late = Tally.total(course.answers[: boundary + 1]), Tally.total(course.answers[boundary + 1 :])
    for tally, explored, step in ((early, seen["explored"][1], 1), (late, seen["explored"][0], 0)):
        both = (part.at(mdp.problem.pairs) for part in (tally, explored))
        ours, theirs = both
        np.testing.assert_array_equal(ours.next_counts[step], theirs.next_counts[step])
    assert early.pulls[0].sum() > 0


def test_navigation_does_not_look_at_the_outcomes_of_its_step():
    """PEDEL and RFLIN steer by the steps before: outcomes of the step itself, or later, change nothing."""
    from bestpolicy.algorithms.peers.navigation import way_to

    mdp = MODELS["two-3"]()
    rng, problem = np.random.default_rng(0), mdp.problem
    tally = bp.ExactSimulator(mdp).rollout(Episodes(np.zeros((3, 2), int), 200, 0), rng).at(problem.pairs)
    counts = tally.next_counts.copy()
    counts[1:] = counts[1:, :, ::-1]
    other = Tally(tally.pairs, counts, np.zeros(counts.shape), np.zeros(counts.shape[:2]))
    goal, features = rng.random(len(problem.pairs)), ridge.Coordinates.of(problem).features
    one, two = (way_to(problem, features, known, goal, 1, np.eye(2)[0]) for known in (tally, other))
    np.testing.assert_array_equal(one.policy, two.policy)
    assert one.value == two.value


def test_the_policies_of_pedel_do_not_depend_on_the_kernel():
    problem, start = TWO.problem, np.eye(2)[0]
    policies = pedel.all_policies(problem, start)
    assert len(policies) == 2 ** (1 + 2 * 2)  # A^{1 + S(H-1)}: which states can be reached is not known
    assert len(np.unique(policies.reshape(len(policies), -1), axis=0)) == len(policies)
    assert (policies[:, 0, 1] == policies[0, 0, 1]).all()
    stuck = np.zeros((2, 2, 2))
    stuck[:, :, 0] = 1  # state 1 is never reached
    other = bp.LinearMDP.from_table(stuck, np.full((2, 2), 0.5), horizon=3)
    np.testing.assert_array_equal(pedel.all_policies(other.problem, start), policies)
    with pytest.raises(InvalidInput, match="goes through all deterministic policies"):
        pedel.all_policies(MODELS["universal"]().problem, np.full(8, 1 / 8))


def test_estimates_of_pedel_are_exact_on_exact_data():
    """V̂ = V for every policy if the frequencies are the true probabilities, where Λ has a range of its own."""
    mdp = TWO
    problem, features = mdp.problem, ridge.Coordinates.of(mdp.problem).features
    start, policies = np.eye(2)[0], pedel.all_policies(mdp.problem, np.eye(2)[0])
    values, occupied = np.zeros(len(policies)), np.broadcast_to(start, (len(policies), 2))
    for h in range(3):
        visits = np.array([3, 5, 0, 0]) if h == 0 else np.array([4, 1, 7, 2])
        counts = visits[:, None] * mdp.transitions[h].reshape(4, 2)
        expected = np.einsum("ps,psd->pd", occupied, features[pedel.played(problem, policies[:, h])])
        gram = (features.T * visits) @ features
        weights = expected @ np.linalg.pinv(gram) @ features.T
        shown = Tally(
            problem.pairs, np.stack([np.diag(visits)[:, :2]] * 3).astype(int), np.zeros((3, 4, 2)), np.zeros((3, 4))
        )
        design = pedel.Design.of(features, problem, Tally.empty(problem), h)
        assert design.goal(expected, 1.0) is not None  # nothing is covered yet
        assert shown.shape == (3, 4, 2)
        values = values + weights @ (visits * mdp.rewards[h].ravel())
        occupied = weights @ counts
    true = [mdp.policy_values(policy)[0, 0] for policy in policies]
    np.testing.assert_allclose(values, true, atol=1e-9)


# --- what they say


def test_budgets_that_nobody_can_run():
    """Within a factor 1.05 of what the prototypes' formulas gave."""
    expected = {
        "two-5": (1.3e10, None),
        "rs5-5": (2.1e11, 1.2e13),
        "universal": (4.3e9, 2.9e11),
        "simplex10": (1.3e10, 2e12),
    }
    for name, (lsvi, reward_free) in expected.items():
        problem, epsilon = MODELS[name]().problem, 0.3 if name == "universal" else 0.5
        assert lsvi_ucb_episodes(problem, epsilon, 0.1) == pytest.approx(lsvi, rel=0.05)
        if reward_free:
            assert rflin_episodes(problem, epsilon, 0.1) == pytest.approx(reward_free, rel=0.06)
    with pytest.raises(InvalidInput, match="must be episodic"):
        rflin_episodes(MODELS["B1"]().problem, 0.1, 0.1)


def test_claims_are_about_the_start():
    result = bp.identify(bp.ExactSimulator(near_tie()), epsilon=1.5, delta=0.1, algorithm=UCFH(), seed=0, start=1)
    assert result.certified
    assert "from state 1" in result.explanation
    law = [0.25, 0.75]
    result = bp.identify(bp.ExactSimulator(near_tie()), epsilon=1.5, delta=0.1, algorithm=BPIUCRL(), seed=0, start=law)
    assert result.certified
    assert "on average over the start distribution" in result.explanation


def test_one_trajectory_claims_every_state_or_the_start():
    mdp, mixture = MODELS["B11"](), instances.universal_mixture()
    algorithm = UCLK(kernels=mixture.kernels.tolist(), rewards=mdp.rewards.tolist(), check_ratio=1.5)
    everywhere, at_start = (follow(algorithm, mdp, 2.0, start=start) for start in (None, 3))
    assert at_start.samples <= everywhere.samples
    assert losses(mdp, everywhere.last).max() <= 2.0
    assert at_start.requests[0].wanted.start == 3


def test_nothing_is_certified_without_a_guarantee():
    algorithm = LSVIUCBNoGuarantee(constant=0.05)
    result = bp.identify(bp.ExactSimulator(near_tie()), epsilon=0.5, delta=0.1, algorithm=algorithm, seed=0, start=0)
    assert not result.certified
    assert result.epsilon == np.inf


@pytest.mark.parametrize(
    ("algorithm", "problem", "words"),
    [
        ("bpi-ucrl", "two-state", "give the problem a horizon"),
        ("mdp-nas", "universal-episodic", "discounted"),
        ("ucrl-vtr", "universal-episodic", "give kernels="),
        ("uclk", "universal", "give kernels="),
        ("pedel", "riverswim-episodic", "all deterministic policies"),
        (BPIUCRL(rewards=[[0.5, 0.5]]), "universal-episodic", "rewards must have shape"),
        (UCRLVTR(kernels=np.ones((1, 2, 2, 2)) / 2), "universal-episodic", "kernels must have shape"),
    ],
)
def test_what_cannot_run_says_why(algorithm, problem, words):
    simulator = bp.ExactSimulator(bp.instances.load(problem))
    with pytest.raises(InvalidInput, match=words):
        bp.identify(simulator, epsilon=0.5, delta=0.1, algorithm=algorithm, seed=0)


def test_a_start_has_to_be_known():
    with pytest.raises(InvalidInput, match="give start="):
        bp.identify(bp.ExactSimulator(near_tie()), epsilon=0.5, delta=0.1, algorithm="ucfh", seed=0)


@pytest.mark.parametrize(
    ("build_it", "words"),
    [
        (lambda: BPIUCRL(rewards=[0.5]), "rewards must be a table"),
        (lambda: UCFH(rewards=[[2.0]]), "rewards must be a table"),
        (lambda: UCRLVTR(kernels=[[1.0]]), "kernels must be an array"),
        (lambda: UCLK(kernels=np.ones((1, 2, 2, 2))), "kernels must be an array"),
        (lambda: MDPNaS(check_ratio=1.0), "check_ratio"),
        (lambda: BPIUCBVI(constants="mine"), "constants"),
        (lambda: LSVIUCB(cover="all"), "cover"),
        (lambda: LSVIUCBNoGuarantee(constant=0.0), "constant"),
    ],
)
def test_bad_parameters(build_it, words):
    with pytest.raises(InvalidInput, match=words):
        build_it()
