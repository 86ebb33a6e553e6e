"""The paper's threshold, its repairs, and the events behind its guarantee at their stated rates."""

from __future__ import annotations

from dataclasses import replace
from math import e, log, pi, sqrt

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
import bestpolicy.stopping.paper as module
from bestpolicy.algorithms.gss import DesignSampling
from bestpolicy.design import g_optimal_design, whiten
from bestpolicy.stopping.paper import confidence, inverse_rate, threshold
from tests.models import near_tie, paper_check, random_mdp


def whitened(mdp: bp.LinearMDP) -> tuple[bp.Problem, DesignSampling]:
    design = g_optimal_design(mdp.problem.pair_features)
    problem = mdp.problem.with_features(whiten(mdp.problem.pair_features, design).features(mdp.problem.features))
    return problem, DesignSampling(mdp.problem, design)


def draw(mdp: bp.LinearMDP, rounds: int, seed: int) -> bp.Tally:
    _, sampling = whitened(mdp)
    rng = np.random.default_rng(seed)
    return bp.ExactSimulator(mdp).sample(sampling.until(rounds, sampling.empty_tally(), rng), rng)


def test_threshold_as_printed():
    problem = random_mdp(0, dimension=4).problem
    delta, t, d = 0.05, 1e6, 4
    printed = 12 / 5 * (2 * log(sqrt(e) * pi**2 / 6 * t**2 / delta) + d * log(8 * e**4 * d * t**2))
    assert threshold(problem, delta, t) == pytest.approx(printed)
    episodic = random_mdp(0, dimension=4, horizon=3).problem
    printed = 3 * 12 / 5 * (2 * log(sqrt(e) * pi**2 / 6 * t**2 / (delta / 3)) + d * log(8 * e**4 * d * t**2))
    assert threshold(episodic, delta, t) == pytest.approx(printed)


@pytest.mark.parametrize("mdp", [random_mdp(0, discount=0.7), random_mdp(0, horizon=3)])
def test_statistic_equals_its_definition(mdp):
    """Z = 3(1-γ)⁴(Δ̂+ε-2γρ/(1-γ))²/(10 max φ'G⁻¹φ), from scratch, in the user's own coordinates."""
    epsilon, delta = 0.3, 0.1
    problem, _ = whitened(mdp)
    tally = draw(mdp, 5000, 1)
    check = paper_check(problem, epsilon, delta, tally)
    phi = problem.features.reshape(-1, problem.dimension)
    gram = (phi[tally.pairs].T * tally.pulls[0]) @ phi[tally.pairs] + np.eye(problem.dimension) / problem.dimension
    leverage = max(row @ np.linalg.inv(gram) @ row for row in phi)
    values = np.zeros(problem.states)
    gaps = []
    gamma, limits = problem.continuation, problem.value_limits
    for step in range(3000 if problem.horizon is None else problem.stages):
        h = 0 if problem.horizon is None else problem.stages - 1 - step
        theta = np.linalg.solve(gram, phi[tally.pairs].T @ tally.reward_sums[h])
        mu = np.linalg.solve(gram, phi[tally.pairs].T @ tally.next_counts[h])
        q_values = (phi @ (theta + gamma * mu @ values)).reshape(problem.mask.shape)
        ordered = np.sort(q_values, axis=1)
        gaps.append((ordered[:, -1] - ordered[:, -2]).min())
        values = np.clip(q_values.max(axis=1), 0, limits[h])
    gap = gaps[-1] if problem.horizon is None else min(gaps)
    factor = (1 - gamma) ** 4 if problem.horizon is None else 1 / problem.stages**3
    assert check.gap == pytest.approx(gap, rel=1e-6)
    assert check.statistic == pytest.approx(3 * factor * (gap + epsilon) ** 2 / (10 * leverage), rel=1e-6)
    assert check.threshold == pytest.approx(threshold(problem, delta, 5000))


def test_a_residual_is_paid_for(monkeypatch):
    """Planning with error must lower the statistic by 2γρ/(1-γ) inside the square."""
    mdp = random_mdp(0, discount=0.7)
    problem, _ = whitened(mdp)
    tally = draw(mdp, 5000, 1)
    honest = paper_check(problem, 0.3, 0.1, tally)
    plan_exactly = module.optimal_plan

    def sloppy(*arguments):
        plan = plan_exactly(*arguments)
        rho = 0.02
        return replace(plan, residuals=np.array([rho]), error_bound=rho / (1 - problem.discount))

    monkeypatch.setattr(module, "optimal_plan", sloppy)
    resolved = honest.gap + 0.3
    ratio = (resolved - 2 * 0.7 * 0.02 / 0.3) ** 2 / resolved**2
    assert paper_check(problem, 0.3, 0.1, tally).statistic == pytest.approx(honest.statistic * ratio, rel=1e-9)


def test_outside_the_ball_nothing_is_certified(monkeypatch):
    mdp = near_tie(0.3)
    problem, _ = whitened(mdp)
    tally = draw(mdp, 10**9, 1)
    assert paper_check(problem, 0.3, 0.1, tally).passed
    plan_exactly = module.optimal_plan

    def far(*arguments):
        return replace(plan_exactly(*arguments), value_parameters=np.full((1, problem.dimension), 1e3))

    monkeypatch.setattr(module, "optimal_plan", far)
    assert not paper_check(problem, 0.3, 0.1, tally).passed


def test_before_the_features_are_spanned_the_leverage_is_large_but_finite():
    mdp = random_mdp(0)
    problem, _sampling = whitened(mdp)
    tally = draw(mdp, 1, 0)
    check = paper_check(problem, 0.3, 0.1, tally)
    assert 0 <= check.statistic < check.threshold
    assert np.isfinite(check.statistic)


@pytest.mark.parametrize("kind", ["discounted", "episodic"])
def test_proposition_3_event(kind):
    """‖θ̂-θ+γ(μ̂-μ)'V̂‖²_G ≤ 2L²B(δ,t) at all looked-at t, in at least 1-δ of runs; a thousandth of B is too little."""
    time = {"discount": 0.6} if kind == "discounted" else {"horizon": 2}
    mdp = random_mdp(3, states=4, actions=2, dimension=3, **time)
    problem, sampling = whitened(mdp)
    design_white = whiten(mdp.problem.pair_features, sampling.design)
    theta, mu = design_white.parameters(mdp.theta), design_white.parameters(mdp.mu)
    limit, stages, delta, runs = problem.value_limits[0], problem.stages, 0.1, 300
    worst = np.zeros(runs)
    simulator = bp.ExactSimulator(mdp)
    for run in range(runs):
        rng = np.random.default_rng(run)
        tally = sampling.empty_tally()
        for t in (3, 5, 10, 30, 100, 1000, 10**5):
            tally += simulator.sample(sampling.until(t, tally, rng), rng)
            estimate = bp.least_squares(problem.features, tally, ridge=1 / problem.dimension)
            plan = bp.optimal_plan(problem, estimate.theta, estimate.mu)
            following = plan.values if stages == 1 else np.vstack([plan.values[1:], np.zeros((1, problem.states))])
            for h in range(stages):
                x = estimate.theta[h] - theta[h] + problem.continuation * (estimate.mu[h] - mu[h]).T @ following[h]
                allowed = 2 * limit**2 * confidence(delta / stages, t, problem.dimension)
                worst[run] = max(worst[run], x @ estimate.gram[h] @ x / allowed)
    assert binomtest(int((worst > 1).sum()), runs, delta, alternative="greater").pvalue > 1e-3
    assert (worst > 0.001).mean() > delta  # the test could fail


def test_proposition_2_design_concentration():
    """i.i.d. draws from the design: σ(ω_t) ≤ 2(1+η)d after 10 d log(2d/δ) rounds, with probability 1-δ."""
    features = random_mdp(1, states=10, actions=4, dimension=5).problem.pair_features
    design = g_optimal_design(features)
    d, delta, runs = 5, 0.2, 2000
    rng = np.random.default_rng(0)

    def failures(rounds: int) -> int:
        bad = 0
        for _ in range(runs):
            counts = rng.multinomial(rounds, design.weights)
            sampled = features[design.indices]
            matrix = (sampled.T * counts) @ sampled / rounds
            if np.linalg.matrix_rank(matrix) < d:
                bad += 1
                continue
            leverage = np.einsum("ni,ij,nj->n", features, np.linalg.inv(matrix), features).max()
            bad += leverage > 2 * (1 + design.tolerance) * d
        return bad

    enough = int(np.ceil(10 * d * log(2 * d / delta)))
    assert binomtest(failures(enough), runs, delta, alternative="greater").pvalue > 1e-3
    assert failures(2 * d) > delta * runs  # the test could fail


def test_inverse_rate_is_the_inverse_of_the_printed_bound():
    problem = random_mdp(0, discount=0.9).problem
    assert 1 / inverse_rate(problem, 0.25, 4.0) == pytest.approx(10 * 4 / (3 * 0.1**4 * 0.25**2))
    episodic = random_mdp(0, horizon=5).problem
    assert 1 / inverse_rate(episodic, 0.25, 4.0) == pytest.approx(10 * 5**3 * 4 / (3 * 0.25**2))
