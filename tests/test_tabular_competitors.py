"""The tabular competitors: exact on exact data, as dear as their formulas say, wrong at most δ of the time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log, pi, sqrt

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import (
    ALGORITHMS,
    KLBTS,
    VQVI,
    ActionElimination,
    PhasedQ,
    PlugIn,
    PlugInNoGuarantee,
    make_algorithm,
    parameters_of,
)
from bestpolicy.algorithms.peers import action_elimination as elimination
from bestpolicy.algorithms.peers.klb_ts import Times, threshold, tracked_counts
from bestpolicy.algorithms.peers.phased_q import Phases
from bestpolicy.algorithms.peers.plug_in import samples_each
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, plan
from bestpolicy.algorithms.peers.variance_reduced import rounds
from bestpolicy.samples import Pulls, Tally
from tests.kl_ball import kl_max
from tests.models import all_policies, near_tie, plain_values, random_mdp, tabular_mdp
from tests.test_cli import assert_one_error_line, run

B1 = bp.instances.load("B1")
BUDGETED = [PhasedQ(), *map(PlugIn, ("smallest", "hoeffding", "bernstein", "azar")), PlugInNoGuarantee(), VQVI()]
PROVED = [a for a in BUDGETED if a.about.guarantee != "none"] + [ActionElimination(), KLBTS()]


def label(parameter: object) -> str | None:
    name = getattr(parameter, "name", None)
    return name and f"{name} {getattr(parameter, 'budget', '')}".strip()


@dataclass
class ExpectedSimulator:
    """Answers with expectations, rounded to whole numbers of samples; remembers what it was asked."""

    mdp: bp.LinearMDP

    def __post_init__(self) -> None:
        self.problem, self.asked = self.mdp.problem, []

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        self.asked.append(pulls)
        expected = pulls.counts[0][:, None] * self.mdp.transition_rows(pulls.pairs)
        counts = np.floor(expected).astype(np.int64)
        for row, total, exact in zip(counts, pulls.counts[0], expected, strict=True):
            row[np.argsort(row - exact)[: total - row.sum()]] += 1
        rewards = self.mdp.rewards.ravel()[pulls.pairs]
        return Tally(pulls.pairs, counts[None], (counts * rewards[:, None])[None], (pulls.counts * rewards**2))


@pytest.mark.parametrize("algorithm", [*BUDGETED, ActionElimination(), KLBTS()], ids=label)
@pytest.mark.parametrize("masked", [False, True])
def test_exact_expectations_give_an_optimal_policy_and_forbidden_pairs_are_left_alone(algorithm, masked):
    mdp = random_mdp(11, states=4, actions=3, dimension=4, discount=0.6, masked=masked)
    simulator = ExpectedSimulator(mdp)
    result = bp.identify(simulator, epsilon=0.1, delta=0.1, algorithm=algorithm, seed=0)
    np.testing.assert_array_equal(result.policy, mdp.policy)
    best = max(all_policies(mdp), key=lambda policy: plain_values(mdp, policy).sum())
    np.testing.assert_array_equal(result.policy, best)
    asked = np.unique(np.concatenate([pulls.pairs[pulls.counts[0] > 0] for pulls in simulator.asked]))
    np.testing.assert_array_equal(asked, mdp.problem.pairs)
    assert result.samples == sum(pulls.total for pulls in simulator.asked)
    if masked:  # and one of those would have been best
        free = bp.LinearMDP(bp.Problem(mdp.problem.features, discount=0.6), theta=mdp.theta[0], mu=mdp.mu[0])
        assert not mdp.problem.mask[np.arange(4), free.policy].all()


@pytest.mark.parametrize("algorithm", BUDGETED, ids=label)
@pytest.mark.parametrize(("discount", "epsilon", "delta"), [(0.5, 0.3, 0.1), (0.9, 1.0, 0.01), (0.3, 10.0, 0.5)])
def test_a_fixed_budget_is_its_closed_formula(algorithm, discount, epsilon, delta):
    mdp = random_mdp(3, states=3, actions=3, dimension=3, discount=discount, masked=True)
    pairs, limit = len(mdp.problem.pairs), 1 / (1 - discount)
    useful = min(epsilon, limit)
    accuracy = useful / (2 * limit)
    hoeffding = ceil(2 * log(2 * pairs / delta) / ((1 - discount) ** 6 * useful**2))
    expected = {
        "smallest": lambda: min(hoeffding, _bernstein(pairs, discount, accuracy, delta)),
        "hoeffding": lambda: hoeffding,
        "azar": lambda: ceil(68 * log(12 * pairs / delta) / ((1 - discount) ** 3 * accuracy**2)),
        "bernstein": lambda: _bernstein(pairs, discount, accuracy, delta),
        "aky": lambda: ceil(log(pairs * limit / delta) * limit**3 / useful**2),
        "phased-q": lambda: _phased(pairs, discount, useful, delta),
        "vqvi": lambda: _vqvi(pairs, discount, epsilon, delta),
    }[getattr(algorithm, "budget", algorithm.name)]() * pairs
    assert algorithm.predicted_samples(mdp.problem, mdp.gap, epsilon, delta) == pytest.approx(expected, abs=pairs)
    study = bp.Study(mdp.problem, epsilon=epsilon, delta=delta, algorithm=algorithm, seed=0)
    result = bp.run.drive(study, bp.ExactSimulator(mdp))
    assert result.samples == algorithm.predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    assert mdp.is_near_optimal(result.policy, epsilon)


def _bernstein(pairs: int, gamma: float, accuracy: float, delta: float) -> int:
    """The least N whose error bound is small enough, by search instead of by the root of an equation."""
    limit, logarithm = 1 / (1 - gamma), log(4 * pairs / delta)

    def small_enough(samples: int) -> bool:
        a = sqrt(2 * logarithm / (samples - 1))
        bound = a * sqrt(1 + gamma) / 2 * limit**1.5 + 7 / 6 * limit**2 * a**2
        return a * gamma * limit < 1 and bound / (1 - a * gamma * limit) <= accuracy

    low, high = 2, 2
    while not small_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if small_enough(middle) else (middle, high)
    return high


def _phased(pairs: int, gamma: float, epsilon: float, delta: float) -> int:
    limit, accuracy = 1 / (1 - gamma), epsilon * (1 - gamma) / 2
    phases = next(k for k in range(1, 9999) if gamma**k * limit <= accuracy / 64)
    weights = [gamma ** (2 * k / 3) for k in range(phases)]
    last = log(2 * pairs * phases / delta) / 2 * (limit * sum(weights) / (accuracy - gamma**phases * limit)) ** 2
    return sum(ceil(last * weight) for weight in weights)


def _vqvi(pairs: int, gamma: float, epsilon: float, delta: float) -> int:
    total, limit = 0, 1 / (1 - gamma)
    number = next(k for k in range(1, 99) if limit / 2**k <= epsilon)
    error, share = limit, delta / number
    for left in reversed(range(number)):
        steps = next(k for k in range(999) if gamma ** (k + 1) <= 1 / 16)
        rest, linear = 1 / 2 - gamma ** (steps + 1), sqrt(1 + gamma) * limit**1.5 + gamma * limit * error
        of_means, of_increments = log(8 * pairs / share), log(4 * max(1, steps) * pairs / share)
        dear, cheap = 2 * of_means * (linear / error) ** 2, steps * 2 * (gamma * limit) ** 2 * of_increments
        c = rest / (1 + (cheap / dear) ** (1 / 3))
        root = max(np.roots([7 / 3 * limit**2, linear, -c * error]))
        total += 1 + ceil(2 * of_means / root**2)
        total += steps and steps * ceil(cheap / steps / (rest - c) ** 2)
        error = 2**left * epsilon
    return total


@pytest.mark.parametrize("discount", [0.05, 0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_the_phases_are_as_long_as_their_proof_needs(discount, share):
    """The errors of all backups sum up to what a greedy policy may rely on, and not much less."""
    problem = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=discount)
    limit = 1 / (1 - discount)
    sizes = np.array(Phases.of(problem, 6, share * limit, 0.1).sizes)
    assert (np.diff(sizes) >= 0).all()
    confidence = log(2 * 6 * len(sizes) / 0.1)  # a union over all backups of all phases
    before = np.arange(len(sizes))[::-1]
    error = discount ** len(sizes) * limit + (discount**before * limit * np.sqrt(confidence / (2 * sizes))).sum()
    assert 0.9 < error / (share / 2) <= 1 + 1e-9
    # Phases of equal length, as many as make the two halves of the error equal, would need more.
    equal = max(1, ceil(log(4 * limit / share) / log(1 / discount)))
    assert sizes.sum() < equal * ceil(8 * limit**4 * log(2 * 6 * equal / 0.1) / share**2)


@pytest.mark.parametrize("discount", [0.05, 0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.8])
def test_the_rounds_of_vqvi_are_as_long_as_their_proof_needs(discount, share):
    """What is left of the error after a round, term by term: half of it, and not much less."""
    limit, delta = 1 / (1 - discount), 0.1
    problem, pairs = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=discount), 6
    sizes = rounds(problem, pairs, share * limit, delta)
    assert sizes[0].error == limit
    assert sizes[-1].error / 2 <= share * limit * (1 + 1e-12)
    for each, following in pairwise(sizes):
        assert each.error / 2 <= following.error * (1 + 1e-12)
    failures = 0.0
    for each in sizes:
        failures += 4 * pairs * np.exp(-(each.references - 1) * each.width**2 / 2)
        widths = (sqrt(1 + discount) * limit**1.5 + discount * limit * each.error) * each.width
        widths += 7 / 3 * limit**2 * each.width**2
        if each.steps:
            wrong = np.exp(-2 * each.increments * (each.shift / (discount * each.error)) ** 2)
            failures += 2 * each.steps * pairs * wrong
            widths += 2 * each.shift * limit
        left = discount ** (each.steps + 1) + widths / each.error
        assert 0.49 < left <= 0.5 + 1e-9
    assert 0.5 * delta <= failures <= delta * (1 + 1e-9)


@pytest.mark.parametrize("discount", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("share", [1e-4, 0.01, 0.3, 1.0, 5.0])
def test_the_budget_from_memory_is_covered_by_the_one_that_is_proved(discount, share):
    problem = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=discount)
    epsilon = share / (1 - discount)
    azar, bernstein, smallest = (samples_each(problem, 6, epsilon, 0.1, b) for b in ("azar", "bernstein", "smallest"))
    assert azar >= bernstein >= smallest


def test_the_default_budget_is_the_smallest_and_old_names_keep_their_meaning():
    """How many times less than with Hoeffding's inequality alone, for accurate policies."""
    problems = [bp.Problem(np.eye(6).reshape(3, 2, 6), discount=discount) for discount in (0.8, 0.95, 0.99)]
    for problem, factor in zip(problems, (2.4, 9.0, 44), strict=True):
        epsilon = 0.001 / (1 - problem.continuation)
        default, asked = (
            algorithm.predicted_samples(problem, 0, epsilon, 0.1) for algorithm in (PlugIn(), PlugIn("hoeffding"))
        )
        assert asked == pytest.approx(6 * 2 * log(120) / ((1 - problem.continuation) ** 6 * epsilon**2))
        assert asked / default == pytest.approx(factor, rel=0.05)
    # A study that was stored before there was a default to choose holds the name of its budget.
    stored = make_algorithm("plug-in", {"budget": "hoeffding"})
    assert stored.predicted_samples(problem, 0, epsilon, 0.1) == asked
    short = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=0.1)
    assert PlugIn().predicted_samples(short, 0, 0.5, 0.1) == PlugIn("hoeffding").predicted_samples(short, 0, 0.5, 0.1)


@pytest.mark.parametrize("algorithm", PROVED, ids=label)
def test_wrong_at_most_delta_of_the_time(algorithm):
    """Runs are the same each time, so the level of the test costs no false alarms."""
    delta, epsilon, runs = 0.1, 0.5, 80
    if isinstance(algorithm, ActionElimination | KLBTS):
        algorithm = type(algorithm)(check_ratio=2.0)
    failures = 0
    for seed in range(runs):
        result = bp.identify(bp.ExactSimulator(B1), epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed)
        assert result.certified
        # At every check what is certified then has to be true, not only at the end.
        failures += any(check.epsilon < B1.loss(check.policy[0]) - 1e-12 for check in result.checks)
    assert binomtest(failures, runs, delta, alternative="greater").pvalue > 0.05


def test_the_bounds_of_action_elimination_hold_at_every_check_together():
    """At small numbers of samples, where the bounds are not yet trivial and looks are many."""
    delta, runs, failures, useful = 0.3, 200, 0, 0
    simulator, problem = bp.ExactSimulator(B1), B1.problem
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        bounds, tally = elimination.Bounds(problem, delta), Tally.empty(problem, problem.pairs)
        broken = False
        for total in (10, 30, 100, 300, 1000, 3000):
            more = np.maximum(np.where(bounds.active.ravel(), total, 0) - tally.pulls, 0)
            tally += simulator.sample(Pulls(problem.pairs, more), rng)
            bounds.improve(tally)
            bounds.eliminate()
            broken |= bool((bounds.upper < B1.values).any() or (bounds.lower > B1.values).any())
            broken |= bool((~bounds.active[np.arange(2), B1.policy]).any())
        failures += broken
        useful += bool((bounds.upper < 2).all() and (bounds.lower > 0).all())
    assert useful == runs
    assert binomtest(failures, runs, delta, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("scale", [1.0, 0.15])
def test_the_width_of_action_elimination_is_what_the_proof_says(scale):
    """Means of a fair coin times 1/(1-γ), looked at after every sample: within the width at all times, or not."""
    problem, delta, runs = B1.problem, 0.1, 400
    times = np.arange(1, 2001)
    width = scale * elimination.width(problem, times, delta * len(problem.pairs))  # all of δ for one pair
    flips = np.random.default_rng(0).random((runs, len(times))) < 0.5
    means = 2 * np.cumsum(flips, axis=1) / times
    failures = int((np.abs(means - 1) > width).any(axis=1).sum())
    assert (binomtest(failures, runs, delta, alternative="greater").pvalue > 1e-3) == (scale == 1.0)


def test_thresholds_are_those_of_the_proofs():
    width = elimination.width(B1.problem, np.array([1, 50]), 0.1)
    expected = [2 * (log(pi**2 * 4 * k**2 / 0.3) / (2 * k)) ** 0.5 for k in (1, 50)]  # four pairs, 1/(1-γ) = 2
    np.testing.assert_allclose(width, expected)
    np.testing.assert_allclose(threshold(0.1, np.array([40.0]), 3), log(10) + 2 + 2 * log(1 + 40 / 2))


def test_phased_q_is_the_recursion_on_the_means_of_each_phase():
    mdp = random_mdp(1, states=3, actions=2, dimension=3, discount=0.5)
    study = bp.Study(mdp.problem, epsilon=0.4, delta=0.1, algorithm="phased-q", seed=5)
    simulator, q_values = bp.ExactSimulator(mdp), np.zeros((3, 2))
    while not study.done:
        (query,) = study.ask()
        tally = simulator.sample(query.pulls, query.rng())
        study.tell(query, tally)
        fresh = np.zeros((3, 2))
        for k, pair in enumerate(tally.pairs):
            for next_state in range(3):
                best = max(q_values[next_state])
                fresh[divmod(pair, 2)] += tally.next_rewards[0, k, next_state]
                fresh[divmod(pair, 2)] += 0.5 * best * tally.next_counts[0, k, next_state]
            fresh[divmod(pair, 2)] /= tally.pulls[0, k]
        q_values = fresh
    result = study.result()
    np.testing.assert_array_equal(result.policy, q_values.argmax(axis=1))
    assert result.gap == pytest.approx(np.abs(q_values[:, 0] - q_values[:, 1]).min(), rel=1e-9)
    assert len(result.checks) == ceil(log(64 * 2 / (0.4 * 0.25)) / log(2))


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.999])
def test_the_planner_agrees_with_trying_all_policies(discount):
    mdp = random_mdp(8, states=4, actions=3, dimension=5, discount=discount, masked=True)
    rows = mdp.transition_rows(mdp.problem.pairs)
    found = plan(EmpiricalModel(mdp.problem, mdp.rewards.ravel()[mdp.problem.pairs], rows / rows.sum(1, keepdims=True)))
    best = np.max([plain_values(mdp, policy) for policy in all_policies(mdp)], axis=0)
    np.testing.assert_allclose(found.values, best, rtol=1e-9)
    assert mdp.loss(found.policy) < 1e-9 / (1 - discount)


@pytest.mark.parametrize("algorithm", [ActionElimination, KLBTS])
def test_the_grid_of_checks_hardly_matters(algorithm):
    """On exact data, where nothing else differs: a coarse grid rounds the number of samples up."""
    fine, coarse = (
        bp.identify(
            ExpectedSimulator(B1), epsilon=0.3, delta=0.1, algorithm=algorithm(check_ratio=ratio), seed=0
        ).samples
        for ratio in (1.02, 1.10)
    )
    assert 0.99 < coarse / fine < 1.10


def price_of(times: Times) -> float:
    """U* = (√ΣH + √H*)²."""
    played = len(times.played) * (times.played_rewards + times.played_transitions)
    return float((np.sqrt((times.rewards + times.transitions).sum()) + np.sqrt(played)) ** 2)


def times_of(mdp: bp.LinearMDP) -> Times:
    model = EmpiricalModel(mdp.problem, mdp.rewards.ravel()[mdp.problem.pairs], mdp.transition_rows(mdp.problem.pairs))
    return Times.of(model, plan(model))


def test_the_allocation_of_klb_ts_is_the_best_one():
    times = times_of(random_mdp(4, states=3, actions=3, dimension=5, discount=0.7, masked=True))
    rival = times.rewards + times.transitions
    played = times.played_rewards + times.played_transitions

    def price(allocation: np.ndarray) -> float:
        return float((rival / allocation[times.rivals]).max() + played / allocation[times.played].min())

    assert price(times.allocation) == pytest.approx(price_of(times), rel=1e-9)
    assert times.allocation.sum() == pytest.approx(1)
    n = len(times.allocation)

    # Minimise u + v subject to ω ≥ H/u, ω ≥ H*/(S v) and Σω = 1, in logarithms so that it is convex.
    def total(x: np.ndarray) -> float:
        return float(np.logaddexp(x[-2], x[-1]))

    at_least = [(k, np.log(h), n) for k, h in zip(times.rivals, rival, strict=True)]
    at_least += [(k, np.log(played), n + 1) for k in times.played]
    constraints = [{"type": "ineq", "fun": lambda x, k=k, h=h, j=j: x[k] + x[j] - h} for k, h, j in at_least] + [
        {"type": "ineq", "fun": lambda x: 1 - np.exp(x[:n]).sum()}
    ]
    start = np.append(np.full(n, -np.log(n)), np.log([rival.max() * n, played * n]))
    found = minimize(total, start, method="SLSQP", constraints=constraints, options={"ftol": 1e-13, "maxiter": 1000})
    assert np.exp(found.fun) == pytest.approx(price_of(times), rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_batched_tracking_ends_where_single_steps_do(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12))
    counts, allocation = rng.integers(1, 30, size=n), rng.dirichlet(np.full(n, 0.5))
    total = int(counts.sum() * rng.uniform(1.0, 4)) + 1
    stepwise = counts.copy()
    for t in range(int(counts.sum()), total):
        behind = stepwise < sqrt(t) - n / 2
        stepwise[stepwise.argmin() if behind.any() else (t * allocation - stepwise).argmax()] += 1
    batched = tracked_counts(counts, allocation, total)
    assert batched.sum() >= total
    assert (batched >= counts).all()
    assert np.abs(batched - stepwise).max() <= 2


def test_last_bits_do_not_decide_what_klb_ts_samples():
    rng = np.random.default_rng(0)
    counts, allocation = np.full(50, 10**9), rng.dirichlet(np.full(50, 0.5))
    tracked = tracked_counts(counts, allocation, 10**12)
    for _ in range(20):
        noise = 1 + 1e-14 * rng.uniform(-1, 1, 50)
        np.testing.assert_array_equal(tracked_counts(counts, allocation * noise, 10**12), tracked)
    assert np.abs(tracked / 1e12 - np.maximum(allocation, 1e-3)).max() < 0.01


def test_the_lemma_on_means_in_a_kl_ball():
    """Its two coins: one of the two bounds on the divergence holds everywhere, as the proof says, and with room."""
    s, rho = np.linspace(1e-4, 1 - 1e-9, 1500)[:, None], np.logspace(-6, 6, 1501)
    t = s / rho
    lost = np.where(t < 1e-4, t / 2 - t**2 / 3, 1 - np.log1p(t) / np.maximum(t, 1e-4))  # φ, without cancellation
    divergence = (-np.log1p(-s) - s + s * lost) / (1 + rho)
    assert ((lost >= t / 4) | (t > 1.6)).all()
    assert (lost[t >= 1.6] >= 0.4).all()
    by_variance, by_deviation = divergence / (s**2 / (4 * rho)), divergence / ((2 * s) ** (4 / 3) / 6)
    assert 1.3 < np.maximum(by_variance, by_deviation).min() < 1.5
    assert (by_variance >= 1)[t <= 1.6].all()
    assert (by_deviation >= 1)[t > 1.6].all()
    # No law with the same variance and largest value is nearer to a mean f than the coin.
    rng = np.random.default_rng(1)
    for _ in range(50):
        p, values = rng.dirichlet(np.full(4, 10 ** rng.uniform(-1, 1))), rng.random(4)
        centred = values - p @ values
        largest, variance = centred.max(), p @ centred**2
        radius = 10 ** rng.uniform(-3, 0.5)
        s, rho = kl_max(p[None], centred, radius)[0] / largest, variance / largest**2
        assert (-np.log1p(-s) - rho * np.log1p(s / rho)) / (1 + rho) <= radius * (1 + 1e-9)


def test_the_times_of_klb_ts_bound_what_a_model_in_the_ball_can_do():
    """Means of V are off by at most half of α·gap at c = α²/T₂, which is what T₂ and the second part of T₄ need."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(100):
        p = rng.dirichlet(np.full(3, 10 ** rng.uniform(-2, 0.5)), size=20)
        values = np.array([0.0, rng.uniform(), 1.0]) * rng.choice([-1, 1])
        gap, alpha = 10 ** rng.uniform(-5, 0.3), 10 ** rng.uniform(-2, 0)
        means = p @ values
        variances = np.maximum(p @ values**2 - means**2, 0)
        deviations = np.maximum(values.max() - means, means - values.min())
        time = np.maximum(16 * variances / gap**2, 6 * (deviations / gap) ** (4 / 3))
        worst = max(worst, float(((kl_max(p, values, alpha**2 / time) - means) / (alpha * gap)).max()))
    assert 0.3 < worst < 0.5

    # The first part of T₄ is about whole trajectories: compare with the worst values over all models in the balls.
    for gamma in (0.5, 0.9):
        p, rewards = rng.dirichlet(np.full(4, 0.5), size=4), np.array([0.0, 1.0, 0.3, 0.0])
        values = np.linalg.solve(np.eye(4) - gamma * p, rewards)
        for gap in (0.01, 0.3):
            deviation = max(values.max() - (p @ values).min(), (p @ values).max() - values.min())
            power = (deviation / ((1 - gamma) * gap)) ** (4 / 3)
            radius = 1 / max(27 / (gap**2 * (1 - gamma) ** 3), 8 / (gap * (1 - gamma) ** 2.5), 14 * power)
            above, below = values, values
            for _ in range(round(8 / (1 - gamma))):
                above, below = rewards + gamma * kl_max(p, above, radius), rewards - gamma * kl_max(p, -below, radius)
            assert 0 < (1 + gamma) * max((above - values).max(), (values - below).max()) < gap


@pytest.mark.parametrize(("states", "actions", "discount"), [(2, 2, 0.5), (5, 10, 0.7)])
def test_klb_ts_on_the_random_models_of_its_authors(states, actions, discount):
    """Transitions are uniform numbers divided by their sum. τ is some 20 to 120 times U* log(1/δ) at δ = 0.1."""
    mdp = bp.instances.random_tabular(states=states, actions=actions, discount=discount, seed=3)
    result = bp.identify(
        bp.ExactSimulator(mdp), epsilon=0, delta=0.1, algorithm=KLBTS(check_ratio=1.1), seed=1, max_samples=10**13
    )
    assert result.certified
    assert result.epsilon == 0
    np.testing.assert_array_equal(result.policy, mdp.policy)
    assert 15 < result.samples / (price_of(times_of(mdp)) * log(10)) < 120
    if states == 2:
        assert 3e4 < result.samples < 9e4


@pytest.mark.parametrize(
    ("algorithm", "low", "high"),
    [(ActionElimination(), 6e4, 1.1e5), (PlugIn(), 2.1e5, 2.2e5), (VQVI(), 3.3e5, 3.5e5), (PhasedQ(), 1.7e6, 1.8e6)],
    ids=label,
)
def test_price_on_the_smallest_benchmark(algorithm, low, high):
    result = bp.identify(bp.ExactSimulator(B1), epsilon=0.1, delta=0.1, algorithm=algorithm, seed=0)
    assert low < result.samples < high
    assert B1.is_near_optimal(result.policy, 0.1)


def test_action_elimination_certifies_something_at_any_time_and_ends_at_an_optimum_for_epsilon_zero():
    wide = bp.identify(
        bp.ExactSimulator(B1), epsilon=0.01, delta=0.1, algorithm="action-elimination", seed=0, max_samples=20_000
    )
    assert not wide.certified
    assert wide.samples <= 20_000
    assert B1.loss(wide.policy) <= wide.epsilon < 4
    epsilons = [check.epsilon for check in wide.checks]
    assert epsilons == sorted(epsilons, reverse=True)  # bounds never get worse
    exact = bp.identify(bp.ExactSimulator(B1), epsilon=0, delta=0.1, algorithm="action-elimination", seed=0)
    assert exact.certified
    assert exact.epsilon == 0
    assert 0.3 < exact.samples / ActionElimination().predicted_samples(B1.problem, B1.gap, 0, 0.1) < 1.2


def test_actions_that_are_out_of_the_race_are_not_sampled_any_more():
    simulator = ExpectedSimulator(
        tabular_mdp(np.full((2, 2, 2), 0.5), np.array([[0.0, 1.0], [0.5, 0.55]]), discount=0.5)
    )
    bp.identify(simulator, epsilon=0.01, delta=0.1, algorithm="action-elimination", seed=0)
    drawn = np.array([pulls.counts[0] for pulls in simulator.asked])
    assert drawn[-1, 0] == 0 < drawn[-1, 2]
    assert drawn.sum(axis=0)[0] < 0.1 * drawn.sum(axis=0)[2]


def test_known_rewards_cost_vqvi_nothing_more_and_survive_json():
    known = VQVI(rewards=B1.rewards.tolist())
    result = bp.identify(bp.ExactSimulator(B1), epsilon=0.5, delta=0.1, algorithm=known, seed=0)
    assert result.certified
    assert B1.is_near_optimal(result.policy, result.epsilon)
    assert result.samples == VQVI().predicted_samples(B1.problem, B1.gap, 0.5, 0.1)
    assert make_algorithm("vqvi", json.loads(json.dumps(parameters_of(known)))) == known
    with pytest.raises(bp.InvalidInput, match=r"shape \(S, A\) = \(2, 2\)"):
        bp.Study(B1.problem, epsilon=0.5, delta=0.1, algorithm=VQVI(rewards=[[0.5]]))


@pytest.mark.parametrize("budget", ["aky", "li"])
def test_without_a_guarantee_nothing_is_certified(budget):
    result = bp.identify(
        bp.ExactSimulator(B1), epsilon=0.1, delta=0.1, algorithm=PlugInNoGuarantee(budget=budget), seed=0
    )
    assert not result.certified
    assert result.epsilon == np.inf
    assert not any(check.passed for check in result.checks)
    assert result.outcome == "finished without a guarantee"
    assert "proves nothing of its policy: nothing is certified" in result.explanation
    np.testing.assert_array_equal(result.policy, B1.policy)  # it is good all the same
    done = run("identify", "B1", "--algorithm", "plug-in-no-guarantee", "--epsilon", 0.1, "--delta", 0.1)
    assert done.returncode == 3
    assert "without a guarantee" in done.stdout


@pytest.mark.parametrize("algorithm", BUDGETED, ids=label)
@pytest.mark.parametrize(("epsilon", "words"), [(0.0, "epsilon must be positive"), (1e-7, "more than can be counted")])
def test_an_epsilon_that_would_never_end_is_refused_before_the_first_sample(algorithm, epsilon, words):
    problem = random_mdp(0, discount=0.99).problem
    with pytest.raises(bp.InvalidInput, match=words):
        bp.Study(problem, epsilon=epsilon, delta=0.1, algorithm=algorithm)


def test_what_does_not_suit_is_refused_with_a_remedy():
    for name in ("phased-q", "action-elimination", "plug-in", "plug-in-no-guarantee", "vqvi", "klb-ts"):
        with pytest.raises(bp.InvalidInput, match="discounted problems; use 'gss-e'"):
            bp.Study(random_mdp(0, horizon=2).problem, epsilon=1, delta=0.1, algorithm=name)
    with pytest.raises(bp.InvalidInput, match="single state"):
        bp.Study(bp.Problem(np.eye(2)[None], discount=0.5), epsilon=1, delta=0.1, algorithm="klb-ts")
    features = np.eye(4)[[0, 1, 2, 2]].reshape(2, 2, 4)[:, :, :3]
    doubled = bp.Problem(features, discount=0.5)
    with pytest.raises(bp.InvalidInput, match="state 1 has two actions with equal features"):
        bp.Study(doubled, epsilon=1, delta=0.1, algorithm="klb-ts")
    with pytest.raises(bp.InvalidInput, match="'plug-in-no-guarantee'"):
        PlugIn("aky")
    with pytest.raises(bp.InvalidInput, match="check_ratio"):
        KLBTS(check_ratio=1.0)


def test_a_batch_that_does_not_fit_the_budget_is_not_begun():
    result = bp.identify(bp.ExactSimulator(B1), epsilon=0.1, delta=0.1, algorithm="plug-in", seed=0, max_samples=1000)
    assert result.samples == 0
    assert not result.certified


@pytest.mark.parametrize("name", ["action-elimination", "klb-ts", "vqvi"])
def test_a_run_goes_on_from_its_file_as_if_it_had_never_stopped(tmp_path, name):
    settings = {"epsilon": 0.5, "delta": 0.1, "algorithm": name, "seed": 4}
    straight = bp.identify(bp.ExactSimulator(B1), **settings)
    study, simulator = bp.Study(B1.problem, **settings, store=tmp_path / "run.db"), bp.ExactSimulator(B1)
    for _ in range(6):
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    assert not study.done
    study.close()
    resumed = bp.run.drive(bp.Study.resume(tmp_path / "run.db"), simulator)
    assert resumed.samples == straight.samples
    assert [c.to_dict() for c in resumed.checks] == [c.to_dict() for c in straight.checks]
    np.testing.assert_array_equal(resumed.policy, straight.policy)


def test_on_the_command_line():
    options = ("--epsilon", 0.1, "--delta", 0.1, "--seed", 0, "--json")
    done = run("identify", "B1", "--algorithm", "action-elimination", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certified"]
    assert_one_error_line(
        run("identify", "B1", "--algorithm", "plug-in", "--epsilon", 0, "--delta", 0.1), "epsilon must be positive"
    )


@pytest.mark.parametrize("algorithm", [*BUDGETED, ActionElimination(), KLBTS()], ids=label)
def test_what_is_said_about_an_algorithm(algorithm):
    assert ALGORITHMS[algorithm.name] is type(algorithm)
    assert algorithm.about.features == "tabular"
    assert algorithm.about.constants.startswith(("exact", "reconstructed", "own proof"))
    assert algorithm.unsuitable(near_tie(0.2).problem) == ""
