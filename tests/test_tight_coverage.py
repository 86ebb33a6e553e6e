"""Whole runs: at every check the certified ε is at least the true loss, with the promised probability.

The quick runs are few and seeded; `make studies` repeats them by the thousand. A mutation that makes the widths too
small has to be noticed by the same tests.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import Task
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.tight import Tight
from bestpolicy.samples import Pulls
from bestpolicy.simulators import ExactSimulator
from bestpolicy.stopping.evidence import Evidence, fit
from bestpolicy.stopping.lemmas.deviations import make_prior
from bestpolicy.stopping.rule import Past
from bestpolicy.stopping.tight import TightTest

from .models import near_tie, random_mdp, tabular_mdp
from .test_tight_lemmas import error_vectors


def rare_rewards():
    """Two actions that pay 1 with probability about 10⁻³."""
    rewards = np.array([[1e-3, 2e-3], [0.0, 1e-3]])
    return tabular_mdp(np.full((2, 2, 2), 0.5), rewards, discount=0.5)


def deterministic_moves():
    """A ring whose actions go left or right for sure; one place pays."""
    transitions = np.zeros((4, 2, 4))
    for state in range(4):
        transitions[state, 0, (state - 1) % 4] = transitions[state, 1, (state + 1) % 4] = 1
    rewards = np.zeros((4, 2))
    rewards[2], rewards[0, 0] = 0.5, 0.05
    return tabular_mdp(transitions, rewards, discount=0.8)


def patient():
    rng = np.random.default_rng(4)
    return tabular_mdp(rng.dirichlet(np.ones(2), size=(2, 2)), rng.uniform(size=(2, 2)), discount=0.99)


def duplicated_features():
    """The third action is a copy of the first."""
    mdp = random_mdp(3, states=3, actions=3, dimension=3, discount=0.6)
    features = mdp.problem.features.copy()
    features[:, 2] = features[:, 0]
    corners = np.eye(3)
    features[np.arange(3), np.array([0, 1, 0])] = corners
    features[:, 2] = features[:, 0]
    return bp.LinearMDP(bp.Problem(features, discount=0.6), theta=mdp.theta[0], mu=mdp.mu[0])


MODELS = {
    "near tie": lambda: near_tie(0.02),
    "rare rewards": rare_rewards,
    "deterministic": deterministic_moves,
    "gamma .99": patient,
    "duplicates": duplicated_features,
    "masked": lambda: random_mdp(7, states=4, actions=2, dimension=3, discount=0.7, masked=True),
    "episodic": lambda: random_mdp(2, states=3, actions=2, dimension=3, horizon=2),
}


def run_is_wrong(mdp, algorithm, delta, seed, *, epsilon=1e-6, checks=10):
    """Whether some check of a run certifies less than the true loss."""
    rng = np.random.default_rng(seed)
    simulator = ExactSimulator(mdp)
    run = algorithm.run(Task(mdp.problem, epsilon, delta, rng))
    request = next(run)
    try:
        for _ in range(checks):
            request = run.send(simulator.sample(request.pulls, rng))
            if understated(mdp, request.check):
                return True
    except StopIteration as end:
        return understated(mdp, end.value)
    return False


def understated(mdp, check):
    if not np.isfinite(check.epsilon):
        return False
    policy = check.policy if mdp.problem.horizon is not None else check.policy[0]
    return mdp.loss(policy) > check.epsilon + 1e-9


def assert_covered(mdp, algorithm, delta, runs, level=1e-3):
    wrong = sum(run_is_wrong(mdp, algorithm, delta, seed) for seed in range(runs))
    assert binomtest(wrong, runs, delta, alternative="greater").pvalue > level


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("algorithm", "runs"),
    [(Tight(check_ratio=3.0), 8), (Adaptive(check_ratio=3.0, redesign_ratio=20.0), 4)],
    ids=["tight", "adaptive"],
)
def test_certified_epsilon_covers_the_loss(name, algorithm, runs):
    """With so few runs a stricter level: they are the same each time, so it costs no false alarms."""
    assert_covered(MODELS[name](), algorithm, 0.1, runs, level=0.06)


@pytest.mark.study
@pytest.mark.parametrize("delta", [0.5, 0.1])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("algorithm", [Tight(check_ratio=1.5), Adaptive(check_ratio=1.5)], ids=["tight", "adaptive"])
def test_certified_epsilon_covers_the_loss_in_a_thousand_runs(name, algorithm, delta):
    assert_covered(MODELS[name](), algorithm, delta, runs=1000)


def escapes(mdp, runs, *, delta=0.5, checks=8, outcome_dependent=True):
    """Runs in which x* leaves an ellipsoid in use, or a range or variance bound fails, at some check."""
    problem, pairs = mdp.problem, mdp.problem.pairs
    sampled = problem.pair_features
    information = np.broadcast_to(
        sampled.T @ sampled / len(pairs), (problem.stages, problem.dimension, problem.dimension)
    )
    prior = make_prior(information, sampled, first_rounds=40, least_variance=0.05, delta=delta)
    rule = TightTest(problem, Past(prior), delta)
    truth = _true_ranges_and_variances(mdp)
    simulator, escaped = ExactSimulator(mdp), 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        evidence = Evidence.empty(problem, pairs)
        counts = np.full((problem.stages, len(pairs)), 8)
        for _ in range(checks):
            batch = simulator.sample(Pulls(pairs, counts), rng)
            evidence = evidence.add(batch)
            if outcome_dependent:
                # Pairs that paid well get more samples: counts depend on outcomes.
                means = batch.reward_sums / np.maximum(batch.pulls, 1)
                counts = np.where(means >= np.median(means), 2 * counts, counts)
            verdict = rule.look(evidence)
            if _outside(mdp, evidence, verdict, *truth):
                escaped += 1
                break
    return escaped


def _true_ranges_and_variances(mdp):
    problem = mdp.problem
    values = mdp.plan.values
    if problem.horizon is not None:
        values = np.vstack([values[1:], np.zeros((1, problem.states))])
    variances = mdp.variances.reshape(problem.stages, -1)[:, problem.pairs]
    return 1 + problem.continuation * np.ptp(values, axis=1), variances


def _outside(mdp, evidence, verdict, ranges, variances):
    if not len(verdict.metrics):
        return False
    x = error_vectors(mdp, fit(mdp.problem, evidence))
    inside = all(
        sum(xh @ np.linalg.solve(mh, xh) for xh, mh in zip(x, metric, strict=True)) <= 1 + 1e-9
        for metric in verdict.metrics
    )
    return not (inside and (verdict.ranges >= ranges - 1e-9).all() and (verdict.variances >= variances - 1e-9).all())


@pytest.mark.parametrize("name", MODELS)
def test_every_event_holds_under_outcome_dependent_sampling(name):
    runs = 12
    assert binomtest(escapes(MODELS[name](), runs, checks=6), runs, 0.5, alternative="greater").pvalue > 1e-3


@pytest.mark.study
@pytest.mark.parametrize("name", MODELS)
def test_every_event_holds_in_a_thousand_runs(name):
    runs = 1000
    assert binomtest(escapes(MODELS[name](), runs, checks=12), runs, 0.5, alternative="greater").pvalue > 1e-3


# --- a test of the tests ---------------------------------------------------------------------------------------------


def _shrunken(factor):
    from bestpolicy.stopping import tight

    original_h, original_b = tight.sub_gaussian_ellipsoids, tight.bernstein_ellipsoids
    return {
        "sub_gaussian_ellipsoids": lambda *args: original_h(*args) * factor**2,
        "bernstein_ellipsoids": lambda *args: original_b(*args) * factor**2,
    }


def test_widths_cut_to_a_quarter_are_noticed(monkeypatch):
    """A mutation of the certificate: every width is a quarter of what it should be."""
    for name, function in _shrunken(1 / 4).items():
        monkeypatch.setattr(f"bestpolicy.stopping.tight.{name}", function)
    runs = 40
    escaped = escapes(MODELS["near tie"](), runs)
    assert binomtest(escaped, runs, 0.5, alternative="greater").pvalue < 1e-3


def test_a_dropped_variance_term_is_noticed(monkeypatch):
    """A mutation of the certificate: the deviation of the sample variance is left out."""
    monkeypatch.setattr(
        "bestpolicy.stopping.tight.deviation_terms", lambda pulls, ranges, delta: np.full(pulls.shape, 1e-9)
    )
    monkeypatch.setattr("bestpolicy.stopping.tight.Refinement._drift", lambda self, *args: 0.0)
    runs = 40
    escaped = escapes(MODELS["near tie"](), runs)
    assert binomtest(escaped, runs, 0.5, alternative="greater").pvalue < 1e-3


def test_certificates_without_widths_are_wrong(monkeypatch):
    """A mutation of the certificate: without widths nearly tied actions are confused, and the runs show it."""
    for name, function in _shrunken(1e-3).items():
        monkeypatch.setattr(f"bestpolicy.stopping.tight.{name}", function)
    mdp = near_tie(0.005)
    wrong = sum(run_is_wrong(mdp, Tight(), 0.1, seed, epsilon=0.0, checks=2) for seed in range(40))
    assert binomtest(wrong, 40, 0.1, alternative="greater").pvalue < 1e-3


class InCents(ExactSimulator):
    """The same model for someone whose rewards lie in [0, 0.02]."""

    units = bp.Units(reward_scale=0.02)


def test_a_span_that_the_user_vouches_for_is_in_the_users_units():
    """Taken for the problem's own unit it would be fifty times too small, and most claims false."""
    transitions = np.zeros((3, 2, 3))
    transitions[0] = [[0.0, 0.5, 0.5], [0.0, 0.503, 0.497]]  # to heaven or to hell, by a nearly fair coin
    transitions[1, :, 1] = transitions[2, :, 2] = 1.0
    rewards = np.array([[0.0, 0.0], [1.0, 0.9], [0.1, 0.0]])
    mdp, failures, runs, delta = tabular_mdp(transitions, rewards, discount=0.9), 0, 30, 0.02
    span = float(np.ptp(mdp.values)) * InCents.units.reward_scale
    tight = Tight(value_span=span, check_ratio=1.8)
    for seed in range(runs):
        asked = {"epsilon": 0.0, "delta": delta, "algorithm": tight, "seed": seed, "max_samples": 30_000}
        result = bp.identify(InCents(mdp), **asked)
        failures += any(
            mdp.loss(check.policy[0]) * InCents.units.reward_scale > check.epsilon + 1e-12 for check in result.checks
        )
    assert binomtest(failures, runs, delta, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan"), "half"])
def test_the_share_of_lags_is_a_share(share):
    with pytest.raises(bp.InvalidInput, match="lag_share"):
        Tight(lag_share=share)
