"""PPQ, OPPQ, LSPI-G, the linear plug-in and LAVI: exactness, budgets, identities, coverage, masks, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, log, log2, sqrt

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS, LAVI, LSPIG, OPPQ, PPQ, LinearPlugIn, Task, make_algorithm, parameters_of
from bestpolicy.algorithms.peers import variance_reduced
from bestpolicy.algorithms.peers.budget import rounded_up
from bestpolicy.algorithms.peers.lspi_g import mean_return
from bestpolicy.algorithms.peers.variance_reduced import lower_means
from bestpolicy.algorithms.protocol import Algorithm
from bestpolicy.design.anchors import anchors, barycentric_spanner
from bestpolicy.samples import Pulls, Tally
from tests.models import random_mdp, tabular_mdp
from tests.test_cli import assert_one_error_line
from tests.test_cli import run as command

DISCOUNTED = [PPQ(), OPPQ(), LSPIG(), LinearPlugIn()]
ALL = [*DISCOUNTED, LAVI()]
COMPETITORS = [
    name for name, kind in ALGORITHMS.items() if not kind.about.writes_certificates and kind.about.sampling == "pairs"
]
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


def phase_budget(gamma: float, pairs: int, epsilon: float, delta: float, spread: float = 1.0) -> int:
    """Samples of each pair in all phases."""
    limit, accuracy = 1 / (1 - gamma), epsilon * (1 - gamma) / 2
    phases = ceil(log(64 * limit / accuracy) / log(1 / gamma))
    shares = [gamma ** (2 * k / 3) for k in range(phases)]
    last = (spread * limit * sum(shares) / (accuracy - gamma**phases * limit)) ** 2
    return sum(ceil(last * log(2 * pairs * phases / delta) / 2 * share) for share in shares)


def ppq_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    spread = rounded_up(barycentric_spanner(problem).constant)
    return problem.dimension * phase_budget(problem.discount, problem.dimension, epsilon, delta, spread)


def plug_in_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    corners, gamma = len(anchors(problem).pairs), problem.discount
    limit, accuracy = 1 / (1 - gamma), epsilon * (1 - gamma) / 2
    hoeffding = ceil(2 * log(2 * corners / delta) * limit**6 / epsilon**2)
    coefficients = [7 / 6 * limit**2, sqrt(1 + gamma) / 2 * limit**1.5 + gamma * limit * accuracy, -accuracy]
    bernstein = 1 + ceil(2 * log(4 * corners / delta) / max(np.roots(coefficients)) ** 2)
    return corners * min(hoeffding, bernstein)


def lspi_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    def effective(accuracy: float) -> int:
        return ceil(log(1 / (accuracy * (1 - gamma))) / log(1 / gamma))

    gamma = problem.discount
    design = LSPIG().design(problem)
    points, g = len(design.indices), rounded_up(design.worst_leverage)
    iterations, length = effective(gamma * epsilon / 2), effective((1 - gamma) ** 2 * epsilon / (8 * g**0.5))
    rollouts = ceil(32 * g / ((1 - gamma) ** 6 * epsilon**2) * log(2 * points * iterations / delta))
    return iterations * points * length * rollouts


def oppq_rounds(problem: bp.Problem, epsilon: float, delta: float) -> Iterator[tuple[float, int, int, int, float]]:
    """u, m, R, m₁ and the share b of every round."""
    gamma, corners = problem.discount, len(anchors(problem).pairs)
    beta = 1 / (1 - gamma)
    rounds, steps = ceil(log2(beta / epsilon)), ceil(log(16) / log(1 / gamma)) - 1
    confidence, of_steps = log(8 * corners * rounds / delta), log(4 * steps * corners * rounds / delta)
    for i in range(1, rounds + 1):
        u = min(beta, 2 ** (rounds + 1 - i) * epsilon)
        linear = sqrt(1 + gamma) * beta**1.5 + gamma * beta * u
        a, d = 2 * steps * (gamma * beta) ** 2 * of_steps, 2 * confidence * (linear / u) ** 2
        b = (1 / 2 - gamma ** (steps + 1)) * a ** (1 / 3) / (a ** (1 / 3) + d ** (1 / 3))
        c = 1 / 2 - gamma ** (steps + 1) - b
        x = max(np.roots([7 / 3 * beta**2, linear, -c * u]))
        yield u, 1 + ceil(2 * confidence / x**2), steps, ceil(a / steps / b**2), b


def oppq_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    return len(anchors(problem).pairs) * sum(m + r * m1 for _, m, r, m1, _ in oppq_rounds(problem, epsilon, delta))


def lavi_budget(problem: bp.Problem, epsilon: float, delta: float) -> int:
    def cost(pairs: int, spread: float) -> int:
        steps = range(1, problem.horizon + 1)  # left to go
        errors = [k ** (2 / 3) / sum(j ** (2 / 3) for j in steps) * epsilon / (2 * spread) for k in steps]
        means = zip(steps, errors, strict=True)
        return pairs * sum(ceil(k**2 * log(2 * pairs * problem.horizon / delta) / (2 * e**2)) for k, e in means)

    spanner = barycentric_spanner(problem)
    return min(cost(len(anchors(problem).pairs), 1), cost(problem.dimension, rounded_up(spanner.constant)))


BUDGETS = [("ppq", ppq_budget, name, 0.25) for name in ("B1", "B3", "B5", "B10")]
BUDGETS += [("linear-plug-in", plug_in_budget, name, 0.25) for name in ("B1", "B3", "B10")]
BUDGETS += [("lspi-g", lspi_budget, "B1", 0.5), ("lspi-g", lspi_budget, "B11", 2.0)]
BUDGETS += [("oppq", oppq_budget, name, 0.25) for name in ("B1", "B3", "B7")]
BUDGETS += [("lavi", lavi_budget, name, 0.3) for name in ("riverswim-episodic", "simplex-episodic", "ball-episodic")]


@pytest.mark.parametrize(("algorithm", "formula", "name", "epsilon"), BUDGETS)
def test_samples_are_those_of_the_formula(algorithm, formula, name, epsilon):
    mdp = bp.instances.load(name)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, algorithm=algorithm, seed=1)
    assert formula(mdp.problem, epsilon, 0.1) == pytest.approx(result.samples, rel=1e-9)
    assert ALGORITHMS[algorithm]().predicted_samples(mdp.problem, mdp.gap, epsilon, 0.1) == result.samples
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
    assert sizes == pytest.approx({"ppq": 2.52e8, "oppq": 3.23e6, "linear-plug-in": 3.85e6}, rel=0.01)
    assert LinearPlugIn("hoeffding").predicted_samples(simplex, 0, 0.25, 0.1) == pytest.approx(8.76e6, rel=0.01)
    episodic = bp.instances.simplex(states=5, actions=3, dimension=3, horizon=3).problem
    assert LAVI().predicted_samples(episodic, 0, 0.3, 0.1) == 35208


@pytest.mark.parametrize("name", ["riverswim-episodic", "simplex-episodic", "ball-episodic"])
def test_the_steps_of_lavi_have_the_samples_that_the_proof_needs(name):
    """A mean at step h is in [0, H-h]. The errors of all steps sum up to ε/2, and other sizes would be dearer."""
    problem, epsilon = bp.instances.load(name).problem, 0.4
    chosen, samples = LAVI().sizes(problem, epsilon, 0.1)
    sizes, ranges = np.array(samples), np.arange(problem.horizon, 0, -1)
    confidence = log(2 * len(chosen.pairs) * problem.horizon / 0.1)

    def error(sizes: np.ndarray) -> float:
        return float(chosen.constant * (ranges * np.sqrt(confidence / (2 * sizes))).sum())

    assert 0.999 < error(sizes) / (epsilon / 2) <= 1
    for shares in (np.ones(len(sizes)), ranges, ranges**2):
        needed = shares * (error(shares) / (epsilon / 2)) ** 2
        assert needed.sum() > 1.01 * sizes.sum()


def test_last_bits_do_not_decide_how_much_is_sampled():
    """Constants of linear solvers come from other bits on other machines; simple fractions among them as well."""
    for constant in (2.0, 3.0, 7 / 3, 1.25, 2.3474944209840904, 5.000016697922073):
        assert len({rounded_up(constant * (1 + k * 2e-16)) for k in range(-20, 21)}) == 1
        assert constant < rounded_up(constant) <= constant + 1.1e-6
    assert rounded_up(1.0) == 1


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
    assert check.samples == pairs * phase_budget(gamma, pairs, 1.0, 0.1)


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
@pytest.mark.parametrize("known", [True, False])
def test_oppq_on_one_hot_features_is_variance_reduced_q_value_iteration(name, known):
    mdp = bp.instances.load(name)
    problem, gamma = mdp.problem, mdp.problem.discount
    beta, epsilon, delta = 1 / (1 - gamma), 0.5, 0.1
    told = np.where(problem.mask, mdp.rewards, 0)
    algorithm = OPPQ(rewards=told.tolist()) if known else OPPQ()
    history = iter(play(algorithm, mdp, epsilon, delta, sampled(mdp, np.random.default_rng(5))))
    rounds = ceil(log2(beta / epsilon))
    confidence = log(8 * len(problem.pairs) / (delta / rounds))
    v, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
    for u, m, steps, m1, b in oppq_rounds(problem, epsilon, delta):
        v0 = v.copy()
        tally, check = next(history)
        counts = table(tally, problem.mask.shape)[1]
        assert m == int(counts.sum(axis=2).max())
        x = sqrt(2 * confidence / (m - 1))
        y = np.zeros(problem.mask.shape)
        for k, pair in enumerate(tally.pairs):
            outcomes = np.arange(problem.states)
            rewards = np.zeros(problem.states)
            square = 0.0
            if not known:
                rewards = tally.next_rewards[0, k]
                square = tally.squared_rewards[0, k]
            values, seen = gamma * v0, tally.next_counts[0, k]
            mean = sum(seen[s] * values[s] + rewards[s] for s in outcomes) / m
            square += sum(seen[s] * values[s] ** 2 + 2 * rewards[s] * values[s] for s in outcomes)
            spread = sqrt(max(square / m - mean**2, 0.0))
            largest = gamma * (v0.max() - v0.min()) + (0 if known else 1)
            y[divmod(pair, problem.actions)] = mean - x * spread - 7 / 6 * largest * x**2
        g = np.zeros_like(y)
        for step in range(steps + 1):
            if step:
                tally, check = next(history)
                counts = table(tally, problem.mask.shape)[1]
                assert counts.sum(axis=2).max() == m1
                g = gamma * counts @ (v - v0) / m1 - (1 - gamma) * b * u / 2
            q = np.where(problem.mask, known * told + np.clip(y + g, 0, gamma * beta if known else beta), -np.inf)
            for s in range(problem.states):
                if q[s].max() > v[s] + 1e-12:
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
    failures = sum(loss > epsilon for loss in losses(algorithm, mdp, epsilon, 80))
    assert binomtest(failures, 80, 0.1, alternative="greater").pvalue > 0.05  # the same runs each time: no false alarms


def few(samples: float) -> int:
    return max(2, int(samples) // 10_000)


CARELESS = {
    PPQ: ("phases", lambda phases: replace(phases, last=phases.last / 10_000)),
    LinearPlugIn: ("samples_per_anchor", few),
    LAVI: ("sizes", lambda sizes: (sizes[0], [few(samples) for samples in sizes[1]])),
    OPPQ: (
        "rounds",
        lambda rounds: [replace(r, references=few(r.references), increments=few(r.increments)) for r in rounds],
    ),
}
WHERE = {OPPQ: variance_reduced}  # else a method of the class itself


@pytest.mark.parametrize("kind", CARELESS, ids=ids)
def test_a_budget_ten_thousand_times_too_small_is_noticed(kind, monkeypatch):
    method, spoilt = CARELESS[kind]
    where = WHERE.get(kind, kind)
    honest = getattr(where, method)
    monkeypatch.setattr(where, method, lambda *arguments: spoilt(honest(*arguments)))
    mdp = bp.instances.load("B1", discount=0.2)
    if kind is LAVI:
        mdp = random_mdp(3, states=2, actions=2, dimension=3, horizon=2)
    failures = sum(loss > 0.9 * mdp.gap for loss in losses(kind(), mdp, 0.9 * mdp.gap, 200))
    assert binomtest(failures, 200, 0.1, alternative="greater").pvalue < 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_the_error_of_the_linear_plug_in_is_what_the_bernstein_proof_says(seed):
    """Whatever the samples: with the least a that bounds their errors at the anchors, the bound on Q̂ - Q* holds."""
    rng = np.random.default_rng(seed)
    gamma = float(rng.choice([0.3, 0.8, 0.95]))
    mdp = random_mdp(seed, states=5, actions=3, dimension=4, discount=gamma, masked=True)
    corners, limit, samples = anchors(mdp.problem), 1 / (1 - gamma), int(10 ** rng.uniform(1.5, 5))
    tally = sampled(mdp, rng)(Pulls(corners.pairs, np.full((1, len(corners.pairs)), samples)))
    rewards, rows = tally.reward_sums[0] / samples, tally.next_counts[0] / samples

    def variances(values: np.ndarray) -> np.ndarray:
        squares = tally.squared_rewards[0] + 2 * gamma * tally.next_rewards[0] @ values
        squares = squares / samples + gamma**2 * rows @ values**2
        return np.maximum(squares - (rewards + gamma * rows @ values) ** 2, 0)

    def mixed(values: np.ndarray) -> np.ndarray:
        """Variances at all pairs, of the mixture."""
        means = rewards + gamma * rows @ values
        return corners.coefficients @ (variances(values) + means**2) - (corners.coefficients @ means) ** 2

    # The least a with |e| ≤ a σ̂ + (7/6) L a² at the anchors, then at every pair.
    errors = np.abs(rewards + gamma * rows @ mdp.values - mdp.q_values.ravel()[corners.pairs])
    spreads = np.sqrt(variances(mdp.values))
    a = ((np.sqrt(spreads**2 + 14 / 3 * limit * errors) - spreads) / (7 / 3 * limit)).max()
    everywhere = np.abs(corners.coefficients @ (rewards + gamma * rows @ mdp.values) - q_of(mdp))
    assert (everywhere <= a * np.sqrt(mixed(mdp.values)) + 7 / 6 * limit * a**2 + 1e-12).all()
    assert (corners.coefficients @ spreads <= np.sqrt(mixed(mdp.values)) + 1e-12).all()

    # Policies of the estimated model: the optimal one there, and the one that is optimal in truth.
    position = np.cumsum(mdp.problem.mask).reshape(mdp.problem.mask.shape) - 1
    all_rewards, all_rows = corners.coefficients @ rewards, corners.coefficients @ rows
    q_values = q_of(mdp)
    for _ in range(2000):
        filled = np.full(mdp.problem.mask.shape, -np.inf)
        filled[mdp.problem.mask] = q_values
        q_values = all_rewards + gamma * all_rows @ filled.max(axis=1)
    for policy in (filled.argmax(axis=1), mdp.policy):
        played = position[np.arange(mdp.problem.states), policy]
        system = np.eye(mdp.problem.states) - gamma * all_rows[played]
        values = np.linalg.solve(system, all_rewards[played])
        variance_of_return = np.linalg.solve(
            np.eye(mdp.problem.states) - gamma**2 * all_rows[played], mixed(values)[played]
        )
        assert variance_of_return.max() <= limit**2 / 4
        sums = np.linalg.solve(system, np.sqrt(np.maximum(mixed(values)[played], 0)))
        assert sums.max() <= sqrt(1 + gamma) / 2 * limit**1.5
    if a * gamma * limit < 1:
        bound = (a * sqrt(1 + gamma) / 2 * limit**1.5 + 7 / 6 * limit**2 * a**2) / (1 - a * gamma * limit)
        assert np.abs(q_values - q_of(mdp)).max() <= bound


def q_of(mdp: bp.LinearMDP) -> np.ndarray:
    """Q* of the allowed pairs."""
    return mdp.q_values.ravel()[mdp.problem.pairs]


def joint_tally(rng: np.random.Generator, probabilities: np.ndarray, samples: int) -> Tally:
    """Samples of pairs at which rewards, 0 or 1, go along with next states: (K, S, 2) probabilities."""
    pairs, states, _ = probabilities.shape
    drawn = np.stack([rng.multinomial(samples, p.ravel()).reshape(states, 2) for p in probabilities])
    rewards = drawn[:, :, 1].astype(float)
    return Tally(np.arange(pairs), drawn.sum(axis=2)[None], rewards[None], rewards.sum(axis=1)[None])


@pytest.mark.parametrize("with_rewards", [True, False])
def test_lower_means_are_below_and_close(with_rewards):
    """Of 2 + 2 estimates to both sides, with the union bound of the proof; and no wider than it says."""
    rng = np.random.default_rng(2)
    probabilities, values = rng.dirichlet(np.full(6, 0.5), size=2).reshape(2, 3, 2), np.array([3.0, 0.5, 5.0])
    outcomes = values[:, None] + with_rewards * np.array([0.0, 1.0])
    truth = (probabilities * outcomes).sum(axis=(1, 2))
    deviations = np.sqrt((probabilities * outcomes**2).sum(axis=(1, 2)) - truth**2)
    samples, delta, failures, above = 50, 0.3, 0, 0
    width = sqrt(2 * log(4 * 2 / delta) / (samples - 1))
    for _ in range(1000):
        lower = lower_means(joint_tally(rng, probabilities, samples), values, width, with_rewards)
        upper = lower + 2 * width * deviations + 7 / 3 * (4.5 + with_rewards) * width**2
        above += bool((lower > truth).any())
        failures += not ((lower <= truth) & (truth <= upper)).all()
    assert binomtest(failures, 1000, delta, alternative="greater").pvalue > 1e-3
    assert binomtest(above, 1000, delta / 2, alternative="greater").pvalue > 1e-3


def test_fifty_fair_coins_at_once_are_hardly_ever_overestimated():
    """At this size half the width would fail in most runs, and one without the union bound in 15 % of them."""
    samples, delta, failures = 10**8, 0.1, [0, 0, 0]
    heads = np.random.default_rng(3).binomial(samples, 0.5, size=(400, 50))
    widths = [sqrt(2 * log(k / delta) / (samples - 1)) for k in (100, 2)]
    for row in heads:
        counts = np.stack([samples - row, row], axis=1)[None]
        tally = Tally(np.arange(50), counts, np.zeros(counts.shape), np.zeros((1, 50)))
        for k, width in enumerate((widths[0], widths[0] / 2, widths[1])):
            failures[k] += bool((lower_means(tally, np.array([0.0, 1.0]), width, False) > 0.5).any())
    assert binomtest(failures[0], len(heads), delta, alternative="greater").pvalue > 1e-3
    assert failures[1] > 200
    assert binomtest(failures[2], len(heads), delta, alternative="greater").pvalue < 1e-3


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
    for epsilon in (2.5875531007922487e-7, 3e-7, 5e-7):  # 10^16 calls and more
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


def test_an_unknown_budget_is_refused_with_a_hint():
    with pytest.raises(bp.InvalidInput, match=r"one of smallest, hoeffding, bernstein\. Got 'bernstien'.*'bernstein'"):
        LinearPlugIn("bernstien")


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


@pytest.mark.parametrize("answers", [1, 2])
def test_a_study_that_was_begun_with_longer_phases_is_refused(answers, tmp_path, monkeypatch):
    """As another version may have written it: what is proved is proved of one schedule, not of two halves."""
    mdp, store, honest = bp.instances.load("B1"), tmp_path / "run.db", PPQ.phases
    with monkeypatch.context() as patched:
        patched.setattr(PPQ, "phases", lambda *arguments: replace(honest(*arguments), last=1e6))
        study = bp.Study(mdp.problem, epsilon=0.7, delta=0.1, algorithm="ppq", seed=3, store=store)
        for _ in range(answers):
            (query,) = study.ask()
            study.tell(query, bp.ExactSimulator(mdp).sample(query.pulls, query.rng()))
        study.close()
    with pytest.raises(bp.StoreError, match="other versions may have written it"):
        bp.Study.resume(store)


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
    assert "PPQ-Learning budget (own proof)" in " ".join(done.stdout.split())
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
