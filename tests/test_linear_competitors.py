"""PPQ, OPPQ, LSPI-G, the linear plug-in and LAVI: exactness, budgets, identities, coverage, masks, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import ceil, log, log2

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS, LAVI, LSPIG, OPPQ, PPQ, LinearPlugIn, Task, make_algorithm, parameters_of
from bestpolicy.algorithms.protocol import Algorithm
from bestpolicy.algorithms.rewards import lower_rewards
from bestpolicy.algorithms.rollouts import mean_return
from bestpolicy.algorithms.variance_reduced import lower_mean
from bestpolicy.design.anchors import anchors, barycentric_spanner
from bestpolicy.estimation import Pulls, Tally
from tests.models import random_mdp, tabular_mdp
from tests.test_cli import assert_one_error_line
from tests.test_cli import run as command

DISCOUNTED = [PPQ(), OPPQ(), LSPIG(), LinearPlugIn()]
ALL = [*DISCOUNTED, LAVI()]
COMPETITORS = [name for name, kind in ALGORITHMS.items() if not kind.about.writes_certificates]
Answer = Callable[[Pulls], Tally]


def exact(mdp: bp.LinearMDP) -> Answer:
    """Answers as expected, rounded to whole counts."""

    def answer(pulls: Pulls) -> Tally:
        rewards = mdp.rewards.reshape(mdp.problem.stages, -1)[:, pulls.pairs]
        counts = np.empty((*pulls.counts.shape, mdp.problem.states), np.int64)
        for stage, asked in enumerate(pulls.counts):
            expected = asked[:, None] * mdp.transition_rows(pulls.pairs, stage)
            counts[stage] = np.floor(expected)
            order = np.argsort(counts[stage] - expected, axis=1)
            ranks = np.argsort(order, axis=1)
            counts[stage] += ranks < (asked - counts[stage].sum(axis=1))[:, None]
        return Tally(pulls.pairs, counts, counts * rewards[:, :, None], pulls.counts * rewards**2)

    return answer


def sampled(mdp: bp.LinearMDP, rng: np.random.Generator) -> Answer:
    """Answers of the simulator."""
    return lambda pulls: bp.ExactSimulator(mdp).sample(pulls, rng)


def play(algorithm: Algorithm, mdp: bp.LinearMDP, epsilon: float, delta: float, answer: Answer):
    """Run an algorithm without a study; yield its checks and the tallies it was given, in pairs."""
    run = algorithm.run(Task(mdp.problem, epsilon, delta, np.random.default_rng(0)))
    request = next(run)
    history = []
    while True:
        tally = answer(request.pulls)
        try:
            request = run.send(tally)
            history.append((tally, request.check))
        except StopIteration as end:
            history.append((tally, end.value))
            return history


def ids(algorithm: Algorithm) -> str:
    return algorithm.name


# Exactness: with the true expectations the optimal policy comes out.

EXACT = [(algorithm, name) for algorithm in DISCOUNTED for name in ("B1", "B11", "B15")]
EXACT += [(PPQ(), name) for name in ("B2", "B5", "B6", "B8", "B10")]
EXACT += [(LinearPlugIn(), name) for name in ("B6", "B9", "B10", "B12")]
EXACT += [(OPPQ(), name) for name in ("B7", "B13")]
EXACT += [(LAVI(), name) for name in ("riverswim-episodic", "simplex-episodic", "ball-episodic")]


@pytest.mark.parametrize(
    ("algorithm", "name"), EXACT, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_exact_answers_give_an_optimal_policy(algorithm, name):
    mdp = bp.instances.load(name)
    epsilon = 0.9 * mdp.gap  # a policy that is not optimal loses at least the gap
    *_, (_, check) = play(algorithm, mdp, epsilon, 0.1, exact(mdp))
    assert check.passed
    assert 0 < check.epsilon <= epsilon
    assert mdp.loss(check.policy[0] if mdp.problem.horizon is None else check.policy) < 1e-9


def test_known_rewards_replace_learned_ones():
    mdp = bp.instances.load("B15")
    known = OPPQ(rewards=mdp.rewards.tolist())
    *_, (_, check) = play(known, mdp, 0.1, 0.1, exact(mdp))
    assert mdp.loss(check.policy[0]) == 0
    # They are believed: a table that prefers other actions leads to a policy that is best for it.
    reversed_rewards = 1 - mdp.rewards
    believed = bp.LinearMDP(mdp.problem, theta=1 - mdp.theta[0], mu=mdp.mu[0])
    *_, (_, check) = play(OPPQ(rewards=reversed_rewards.tolist()), mdp, 0.1, 0.1, exact(mdp))
    assert believed.loss(check.policy[0]) <= 0.1
    assert mdp.loss(check.policy[0]) > 0.1


# Budgets: the formulas, written once more.


def ppq_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    gamma, d, spread = problem.discount, problem.dimension, barycentric_spanner(problem).constant
    phases = ceil(log(4 / (epsilon * (1 - gamma) ** 2)) / log(1 / gamma))
    return d * phases * ceil(8 * spread**2 * log(2 * d * phases / delta) / ((1 - gamma) ** 6 * epsilon**2))


def plug_in_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    corners = len(anchors(problem).pairs)
    return corners * ceil(2 * log(2 * corners / delta) / ((1 - problem.discount) ** 6 * epsilon**2))


def lspi_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    def effective(accuracy: float) -> int:
        return ceil(log(1 / (accuracy * (1 - gamma))) / log(1 / gamma))

    gamma = problem.discount
    design = LSPIG().design(problem)
    points, g = len(design.indices), design.worst_leverage
    iterations, length = effective(gamma * epsilon / 2), effective((1 - gamma) ** 2 * epsilon / (8 * g**0.5))
    rollouts = ceil(32 * g / ((1 - gamma) ** 6 * epsilon**2) * log(2 * points * iterations / delta))
    return iterations * points * length * rollouts


def oppq_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    beta, corners, per_anchor = 1 / (1 - problem.discount), len(anchors(problem).pairs), 0
    rounds = ceil(log2(beta / epsilon))
    for i in range(1, rounds + 1):
        u = 2 ** (1 - i) * beta
        steps = ceil(4 * beta * log(2 * beta / u))
        per_anchor += ceil(8192 * beta**3 * max(u**-2, 1 / beta) * log(10 * corners * rounds / delta))
        per_anchor += steps * ceil(128 * beta**2 * log(2 * steps * corners * rounds / delta))
    return corners * per_anchor


def lavi_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    def cost(pairs: int, spread: float) -> int:
        h = problem.horizon
        return pairs * h * ceil(2 * spread**2 * h**4 * log(2 * pairs * h / delta) / epsilon**2)

    spanner = barycentric_spanner(problem)
    return min(cost(len(anchors(problem).pairs), 1), cost(problem.dimension, spanner.constant))


BUDGETS = [("ppq", ppq_budget, name, 0.25) for name in ("B1", "B3", "B5", "B10")]
BUDGETS += [("linear-plug-in", plug_in_budget, name, 0.25) for name in ("B1", "B3", "B10")]
BUDGETS += [("lspi-g", lspi_budget, "B1", 0.5), ("lspi-g", lspi_budget, "B11", 2.0)]
BUDGETS += [("oppq", oppq_budget, name, 0.25) for name in ("B1", "B3", "B7")]
BUDGETS += [("lavi", lavi_budget, name, 0.3) for name in ("riverswim-episodic", "simplex-episodic", "ball-episodic")]


@pytest.mark.parametrize(("algorithm", "formula", "name", "epsilon"), BUDGETS)
def test_samples_are_those_of_the_formula(algorithm, formula, name, epsilon):
    mdp = bp.instances.load(name)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, algorithm=algorithm, seed=1)
    expected = formula(mdp.problem, epsilon, 0.1)
    assert result.samples == expected
    assert ALGORITHMS[algorithm]().predicted_samples(mdp.problem, mdp.gap, epsilon, 0.1) == pytest.approx(expected)
    assert result.certified
    assert 0 < result.epsilon <= epsilon
    assert mdp.loss(result.policy) <= epsilon
    shares = [check.statistic / check.threshold for check in result.checks]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert [check.passed for check in result.checks] == [False] * (len(shares) - 1) + [True]


def test_reference_sizes():
    """Numbers of samples for problems of the literature's size (γ = .8, ε = .25, δ = .1)."""
    simplex = bp.instances.simplex(states=6, actions=3, dimension=4, seed=1, discount=0.8).problem
    sizes = {kind.name: kind().predicted_samples(simplex, 0, 0.25, 0.1) for kind in (PPQ, OPPQ, LinearPlugIn)}
    assert sizes == pytest.approx({"ppq": 1.66e9, "oppq": 4.57e8, "linear-plug-in": 8.76e6}, rel=0.01)
    episodic = bp.instances.simplex(states=5, actions=3, dimension=3, horizon=3).problem
    assert LAVI().predicted_samples(episodic, 0, 0.3, 0.1) == 84132


# Identities: with one-hot features these are the tabular methods, written here in plain loops.


def greedy(q: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, q, -np.inf).argmax(axis=-1)


def table(tally: Tally, shape: tuple[int, ...], stage: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sums of rewards (S, A) and counts of next states (S, A, S)."""
    counts = np.zeros((shape[0] * shape[1], shape[0]))
    rewards = np.zeros(shape[0] * shape[1])
    counts[tally.pairs], rewards[tally.pairs] = tally.next_counts[stage], tally.reward_sums[stage]
    return rewards.reshape(shape), counts.reshape(*shape, shape[0])


@pytest.mark.parametrize("name", ["B1", "B2", "B13"])
def test_ppq_on_one_hot_features_is_phased_q_learning(name):
    mdp = bp.instances.load(name)
    problem, gamma = mdp.problem, mdp.problem.discount
    q = np.zeros(problem.mask.shape)
    for tally, check in play(PPQ(), mdp, 1.0, 0.1, sampled(mdp, np.random.default_rng(5))):
        v = np.where(problem.mask, q, -np.inf).max(axis=1)
        rewards, counts = table(tally, problem.mask.shape)
        pulls = counts.sum(axis=2)
        q = np.where(problem.mask, (rewards + gamma * counts @ v) / np.maximum(pulls, 1), 0.0)
        assert len(np.unique(pulls[problem.mask])) == 1
        np.testing.assert_array_equal(check.policy[0], greedy(q, problem.mask))
    pairs = len(problem.pairs)
    phases = ceil(log(4 / (1 - gamma) ** 2) / log(1 / gamma))
    assert check.samples == pairs * phases * ceil(8 * log(2 * pairs * phases / 0.1) / (1 - gamma) ** 6)


def test_lavi_on_one_hot_features_is_backward_induction():
    mdp = bp.instances.load("riverswim-episodic")
    problem = mdp.problem
    v = np.zeros(problem.states)
    history = play(LAVI(), mdp, 0.5, 0.1, sampled(mdp, np.random.default_rng(5)))
    assert len(history) == problem.horizon
    for stage, (tally, check) in zip(reversed(range(problem.horizon)), history, strict=True):
        assert np.flatnonzero(tally.pulls.sum(axis=1)).tolist() == [stage]
        rewards, counts = table(tally, problem.mask.shape, stage)
        q = (rewards + counts @ v) / np.maximum(counts.sum(axis=2), 1)
        v = np.where(problem.mask, q, -np.inf).max(axis=1)
        np.testing.assert_array_equal(check.policy[stage], greedy(q, problem.mask))


@pytest.mark.parametrize("name", ["B1", "B13"])
def test_oppq_on_one_hot_features_is_variance_reduced_q_value_iteration(name):
    mdp = bp.instances.load(name)
    problem, gamma = mdp.problem, mdp.problem.discount
    beta, epsilon, delta = 1 / (1 - gamma), 0.5, 0.1
    known = OPPQ(rewards=np.where(problem.mask, mdp.rewards, 0).tolist())
    history = iter(play(known, mdp, epsilon, delta, sampled(mdp, np.random.default_rng(5))))
    rounds = ceil(log2(beta / epsilon))
    confidence = log(10 * len(problem.pairs) / (delta / rounds))
    v, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
    for i in range(1, rounds + 1):
        u, v0 = 2 ** (1 - i) * beta, v.copy()
        tally, check = next(history)
        counts = table(tally, problem.mask.shape)[1]
        m = int(counts.sum(axis=2).max())
        assert m == ceil(8192 * beta**3 / min(u, beta**0.5) ** 2 * confidence)
        a = confidence / m
        mean = counts @ v0 / m
        variance = np.maximum(counts @ v0**2 / m - mean**2, 0)
        w = mean - np.sqrt(2 * a * variance) - 4 * a**0.75 * v0.max() - 2 / 3 * a * v0.max()
        g = np.zeros_like(w)
        for step in range(ceil(4 * beta * log(2 * beta / u)) + 1):
            if step:
                tally, check = next(history)
                counts = table(tally, problem.mask.shape)[1]
                g = counts @ (v - v0) / counts.sum(axis=2).max() - (1 - gamma) * u / 8
            q = np.where(problem.mask, mdp.rewards + gamma * np.clip(w + g, 0, beta), -np.inf)
            for s in range(problem.states):
                if q[s].max() > v[s]:
                    v[s], policy[s] = q[s].max(), q[s].argmax()
        np.testing.assert_array_equal(check.policy[0], policy)
    assert next(history, None) is None
    # From below, as promised, and near enough.
    assert (v <= mdp.policy_values(policy) + 1e-12).all()
    assert (mdp.values - v <= epsilon).all()


# Guarantees, by simulation.


def losses(algorithm: Algorithm, mdp: bp.LinearMDP, epsilon: float, runs: int) -> Iterator[float]:
    for seed in range(runs):
        *_, (_, check) = play(algorithm, mdp, epsilon, 0.1, sampled(mdp, np.random.default_rng(seed)))
        yield mdp.loss(check.policy[0] if mdp.problem.horizon is None else check.policy)


@pytest.mark.parametrize("algorithm", ALL, ids=ids)
def test_failures_are_no_more_frequent_than_delta(algorithm):
    mdp = bp.instances.load("B1", discount=0.2)  # a small discount makes short runs
    if algorithm.unsuitable(mdp.problem):
        mdp = random_mdp(3, states=2, actions=2, dimension=3, horizon=2)
    epsilon = 0.9 * mdp.gap  # below the gap only the optimal policy will do
    failures = sum(loss > epsilon for loss in losses(algorithm, mdp, epsilon, 200))
    assert binomtest(failures, 200, 0.1, alternative="greater").pvalue > 1e-3


def test_a_budget_ten_thousand_times_too_small_is_noticed(monkeypatch):
    honest = PPQ.sizes

    def careless(*arguments):
        phases, samples = honest(*arguments)
        return phases, max(1, samples // 10_000)

    monkeypatch.setattr(PPQ, "sizes", careless)
    mdp = bp.instances.load("B1", discount=0.2)
    failures = sum(loss > 0.9 * mdp.gap for loss in losses(PPQ(), mdp, 0.9 * mdp.gap, 200))
    assert binomtest(failures, 200, 0.1, alternative="greater").pvalue < 1e-6


def test_lower_rewards_are_below_and_close():
    rng = np.random.default_rng(1)
    truth, samples, delta = np.array([0.02, 0.3, 0.5, 0.9]), 60, 0.3
    width = (log(2 * 4 / delta) / (2 * samples)) ** 0.5
    failures = 0
    for _ in range(500):
        lower = lower_rewards(rng.binomial(samples, truth).astype(float), samples, delta)
        assert (lower >= 0).all()
        failures += not ((lower <= truth) & (truth <= lower + 2 * width)).all()
    assert failures > 0  # the widths are not absurd
    assert binomtest(failures, 500, delta, alternative="greater").pvalue > 1e-3


def test_lower_means_are_below_and_close():
    rng = np.random.default_rng(2)
    probabilities, values, samples = np.array([[0.1, 0.2, 0.7], [0.9, 0.05, 0.05]]), np.array([3.0, 0.0, 5.0]), 2000
    truth, deviations = probabilities @ values, np.sqrt(probabilities @ values**2 - (probabilities @ values) ** 2)
    delta, failures = 0.2, 0
    a = log(2 * 2 / delta) / samples
    for _ in range(500):
        lower = lower_mean(np.stack([rng.multinomial(samples, p) for p in probabilities]), values, delta)
        width = 2 * np.sqrt(2 * a) * deviations + (6.1 * a**0.75 + 1.4 * a) * 5
        failures += not ((lower <= truth) & (truth <= lower + width)).all()
    assert binomtest(failures, 500, 3 * delta, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize(("estimate", "samples"), [("rewards", 50), ("means", 10**8)])
def test_fifty_fair_coins_at_once_are_hardly_ever_overestimated(estimate, samples):
    """At these sizes half the width would fail in most runs, and one without the union bound in 15 % of them."""
    heads = np.random.default_rng(3).binomial(samples, 0.5, size=(400, 50))
    delta, failures = 0.1, 0
    for row in heads:
        if estimate == "rewards":
            lower = lower_rewards(row.astype(float), samples, delta)
        else:
            lower = lower_mean(np.column_stack([samples - row, row]), np.array([0.0, 1.0]), delta)
        failures += bool((lower > 0.5).any())
    assert binomtest(failures, len(heads), delta / 2, alternative="greater").pvalue > 1e-3


# Rollouts: populations have the law of looped simulation.


def rolled_out(mdp, start, policy, rollouts, length, rng) -> tuple[float, int]:
    """Mean return and simulator calls."""
    run, calls = mean_return(mdp.problem, start, policy, rollouts, length), 0
    request = next(run)
    while True:
        calls += request.pulls.total
        try:
            request = run.send(sampled(mdp, rng)(request.pulls))
        except StopIteration as end:
            return end.value, calls


def test_population_rollouts_have_the_law_of_single_ones():
    mdp = random_mdp(4, states=4, actions=2, dimension=3, discount=0.7)
    policy = np.array([1, 0, 1, 0])
    start, rollouts, length, repetitions = 3, 20, 5, 1500
    rng = np.random.default_rng(0)

    runs = [rolled_out(mdp, start, policy, rollouts, length, rng) for _ in range(repetitions)]
    assert {calls for _, calls in runs} == {rollouts * length}
    batched = np.array([value for value, _ in runs])

    shape = (repetitions, rollouts)
    states, actions = np.full(shape, start // 2), np.full(shape, start % 2)
    looped = np.zeros(shape)
    cumulative = np.cumsum(mdp.transitions, axis=2)
    for step in range(length):
        looped += 0.7**step * (rng.random(shape) < mdp.rewards[states, actions])
        states = (rng.random((*shape, 1)) > cumulative[states, actions]).sum(axis=2).clip(max=3)
        actions = policy[states]
    single = looped.mean(axis=1)

    expected = np.zeros(4)
    everywhere = np.arange(4)
    for _ in range(length - 1):
        expected = mdp.rewards[everywhere, policy] + 0.7 * mdp.transitions[everywhere, policy] @ expected
    exact_mean = mdp.rewards.ravel()[start] + 0.7 * mdp.transitions.reshape(8, 4)[start] @ expected
    for returns in (batched, single):
        assert abs(returns.mean() - exact_mean) < 4 * returns.std() / repetitions**0.5
    assert batched.var() / single.var() == pytest.approx(1, abs=4 * (2 / repetitions) ** 0.5 * 2**0.5)


def test_a_million_million_transitions_are_nothing():
    mdp = bp.instances.simplex(states=6, actions=3, dimension=4, seed=1, discount=0.8)
    policy = np.zeros(6, np.int64)
    value, calls = rolled_out(mdp, 0, policy, 10**12, 60, np.random.default_rng(0))
    assert calls == 60 * 10**12
    assert value == pytest.approx(mdp.policy_q_values(policy)[0, 0], abs=2e-5)


# Masks, settings, errors.


@pytest.mark.parametrize("algorithm", ALL, ids=ids)
def test_pairs_that_are_not_allowed_are_never_drawn_or_played(algorithm):
    horizon = 3 if algorithm.name == "lavi" else None
    for seed in (1, 2):
        mdp = random_mdp(seed, states=5, discount=0.5, horizon=horizon, masked=True)
        assert not mdp.problem.mask.all()
        for tally, check in play(algorithm, mdp, 0.5, 0.1, sampled(mdp, np.random.default_rng(seed))):
            assert mdp.problem.mask.flat[tally.pairs].all()
            if check is not None:
                mdp.problem.stage_policy(check.policy[0] if horizon is None else check.policy)


@pytest.mark.parametrize("algorithm", ALL, ids=ids)
def test_the_wrong_kind_of_time_is_refused_with_a_remedy(algorithm):
    mdp = bp.instances.load("B1" if algorithm.name == "lavi" else "riverswim-episodic")
    remedy = "'ppq'" if algorithm.name == "lavi" else "'lavi'"
    with pytest.raises(bp.InvalidInput, match=f"use {remedy}"):
        bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.1, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["oppq", "linear-plug-in"])
def test_problems_without_anchors_are_refused_with_a_remedy(algorithm):
    with pytest.raises(bp.InvalidInput, match=r"no anchors.*'ppq'"):
        bp.identify(bp.ExactSimulator(bp.instances.load("B5")), epsilon=0.5, delta=0.1, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ALL, ids=ids)
def test_budgets_that_no_one_can_pay_are_refused_before_the_first_sample(algorithm, tmp_path):
    mdp = bp.instances.load("riverswim-episodic" if algorithm.name == "lavi" else "B1")
    model, store = bp.ExactSimulator(mdp), tmp_path / "run.db"
    with pytest.raises(bp.InvalidInput, match="epsilon must be positive"):
        bp.identify(model, epsilon=0.0, delta=0.1, algorithm=algorithm, store=store)
    with pytest.raises(bp.InvalidInput, match="more than can be counted"):
        bp.identify(model, epsilon=1e-12, delta=0.1, algorithm=algorithm, store=store)
    result = bp.identify(model, epsilon=1.0, delta=0.1, algorithm=algorithm, store=store, max_samples=1)
    assert result.samples == 0  # a batch that does not fit is not begun
    assert not result.certified
    assert result.epsilon == np.inf
    assert algorithm.predicted_samples(mdp.problem, 0.1, 0.0, 0.1) == np.inf


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 50.0, 1e200])
@pytest.mark.parametrize("algorithm", [name for name in COMPETITORS if name != "lavi"])
def test_any_positive_epsilon_will_do(algorithm, epsilon):
    mdp = bp.instances.load("B1")
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.9, algorithm=algorithm, seed=0)
    assert result.certified == (algorithm != "plug-in-no-guarantee")
    assert result.samples > 0


def test_budgets_that_no_float_can_hold_are_reached():
    mdp = bp.instances.load("B1")
    for epsilon in (2.5875531007922487e-6, 3e-6, 5e-6):  # 10^16 calls and more
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, algorithm="ppq", seed=0)
        assert result.certified
        assert result.samples > 2**53
    for algorithm in DISCOUNTED:
        assert isinstance(algorithm.predicted_samples(mdp.problem, 0.1, 1e-3, 0.1), int)


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-200])
@pytest.mark.parametrize("discount", [1e-308, 0.5, 1 - 1e-12])
def test_predictions_exist_at_the_ends_of_the_scale(discount, epsilon):
    problem = bp.instances.load("B1", discount=discount).problem
    for name in set(COMPETITORS) - {"lavi"}:
        for asked in (epsilon, 1e-9, 1e300):
            assert not ALGORITHMS[name]().predicted_samples(problem, 0.1, asked, 0.1) <= 0


@pytest.mark.parametrize(
    "rewards", [[[0.1, 1.2], [0.0, 0.0]], [0.1, 0.2], [[0.1, 0.2], [0.3]], [["a", "b"]], [[np.nan]]]
)
def test_known_rewards_must_be_a_table_of_numbers_in_the_unit_interval(rewards):
    with pytest.raises(bp.InvalidInput, match="rewards must be a table"):
        OPPQ(rewards=rewards)


def test_known_rewards_must_fit_the_problem():
    mdp = tabular_mdp(np.full((2, 2, 2), 0.5), np.array([[0.1, 0.9], [0.4, 0.2]]), discount=0.5)
    with pytest.raises(bp.InvalidInput, match=r"shape \(S, A\) = \(2, 2\)"):
        bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.1, algorithm=OPPQ(rewards=[[0.5, 0.5]]))


@pytest.mark.parametrize("algorithm", ALL, ids=ids)
def test_what_there_is_to_know_of_it(algorithm):
    about = algorithm.about
    assert about.features == "linear"
    assert about.setting == ("episodic" if algorithm.name == "lavi" else "discounted")
    assert about.constants.startswith(("exact", "reconstructed", "own proof"))
    assert ALGORITHMS[algorithm.name] is type(algorithm)


# Runs that are stored, interrupted and resumed.

RESUMED = [(PPQ(), "B3"), (LSPIG(), "B1"), (LAVI(), "simplex-episodic"), (OPPQ(), "B1")]
RESUMED += [(OPPQ(rewards=bp.instances.load("B1").rewards.tolist()), "B1")]


@pytest.mark.parametrize(
    ("algorithm", "name"), RESUMED, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_an_interrupted_run_ends_like_one_that_was_not(algorithm, name, tmp_path):
    mdp = bp.instances.load(name)
    model, store = bp.ExactSimulator(mdp), tmp_path / "run.db"
    settings = {"epsilon": 0.7, "delta": 0.1, "algorithm": algorithm, "seed": 3}
    whole = bp.identify(model, **settings)

    def stop_soon(study: bp.Study) -> None:
        if study.samples > whole.samples / 3:
            study.request_stop()

    part = bp.identify(model, **settings, store=store, progress=stop_soon)
    assert not part.certified
    assert 0 < part.samples < whole.samples
    study = bp.Study.resume(store)
    assert study.samples == part.samples
    assert study.algorithm == algorithm
    resumed = bp.drive(study, model)
    assert resumed.certified
    assert resumed.samples == whole.samples
    np.testing.assert_array_equal(resumed.policy, whole.policy)
    assert [check.to_dict() for check in resumed.checks] == [check.to_dict() for check in whole.checks]


def test_a_larger_budget_lets_it_end(tmp_path):
    mdp = bp.instances.load("B3")
    model, store = bp.ExactSimulator(mdp), tmp_path / "run.db"
    needed = int(PPQ().predicted_samples(mdp.problem, 0, 0.25, 0.1))
    part = bp.identify(model, epsilon=0.25, delta=0.1, algorithm="ppq", seed=3, store=store, max_samples=needed - 1)
    assert part.outcome == "sample budget spent"
    assert 0 < part.samples < needed
    whole = bp.drive(bp.Study.resume(store, max_samples=needed), model)
    assert whole.certified
    assert whole.samples == needed


@pytest.mark.parametrize("algorithm", [*ALL, OPPQ(rewards=[[0.5, 1.0]])], ids=ids)
def test_parameters_survive_json(algorithm):
    assert make_algorithm(algorithm.name, json.loads(json.dumps(parameters_of(algorithm)))) == algorithm


# The command line.


def test_the_command_line_runs_them():
    done = command("identify", "B3", "--algorithm", "ppq", "--epsilon", ".25", "--delta", ".1", "--seed", "0")
    assert done.returncode == 0, done.stderr
    assert "PPQ-Learning budget (own proof)" in done.stdout.replace("\n", " ")
    done = command("identify", "B3", "--algorithm", "ppq", "--epsilon", "0", "--delta", ".1")
    assert_one_error_line(done, "epsilon must be positive", "'gss'")
    done = command("identify", "B5", "--algorithm", "linear-plug-in", "--epsilon", ".25", "--delta", ".1")
    assert_one_error_line(done, "no anchors", "'ppq'")


@pytest.mark.parametrize("algorithm", COMPETITORS)
def test_a_certificate_that_nobody_could_write_is_refused_before_the_run(algorithm, tmp_path):
    model = "riverswim-episodic" if algorithm == "lavi" else "B1"
    options = ["--epsilon", "1", "--delta", "0.1", "--algorithm", algorithm, "--certificate", str(tmp_path / "c.json")]
    result = command("identify", model, *options, "--store", str(tmp_path / "run.db"))
    assert_one_error_line(result, "writes no certificates", "choose one of gss, gss-e, tight, adaptive")
    assert not list(tmp_path.iterdir())
