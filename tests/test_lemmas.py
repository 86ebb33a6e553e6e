"""The paper's lemmas, checked on random models by plain NumPy; where the paper is wrong, the counterexample."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bestpolicy as bp
from tests.models import random_mdp

SEEDS = st.integers(0, 10**6)


def two_models(seed: int, **size: int) -> tuple[bp.LinearMDP, bp.LinearMDP]:
    """Return two linear MDPs with the same features."""
    first, second = random_mdp(seed, **size), random_mdp(seed + 1, **size)
    parameters = (second.theta, second.mu) if first.problem.horizon else (second.theta[0], second.mu[0])
    return first, bp.LinearMDP(first.problem, theta=parameters[0], mu=parameters[1])


def errors(first: bp.LinearMDP, second: bp.LinearMDP, values: np.ndarray) -> np.ndarray:
    """max_{s,a} |φ'(θ-θ' + γ(μ-μ')'V)| per stage; `values` (stages, S) are those of the next stage."""
    problem = first.problem
    difference = first.theta - second.theta
    difference = difference + problem.continuation * np.einsum("hsd,hs->hd", first.mu - second.mu, values)
    return np.abs(problem.pair_features @ difference.T).max(axis=0)


def following(problem: bp.Problem, values: np.ndarray) -> np.ndarray:
    if problem.horizon is None:
        return values[None]
    return np.vstack([values[1:], np.zeros((1, problem.states))])


@given(SEEDS, st.sampled_from([None, 3]))
@settings(max_examples=40, deadline=None)
def test_gap_bound(seed, horizon):
    """[TJP Lem 6] If π*_M is not ε-optimal in M': Δ(M)+ε ≤ ‖V*_M - V'^π*‖ + ‖Q*_M - Q'*‖ (at some step)."""
    first, second = two_models(seed, horizon=horizon)
    epsilon = 0.5 * second.loss(first.policy)
    assume(epsilon > 1e-6)
    values = np.abs(first.values - second.policy_values(first.policy))
    q_values = np.abs(first.q_values - second.q_values)
    if horizon is None:
        assert first.gap + epsilon <= values.max() + q_values.max() + 1e-9
    else:
        assert (first.gap + epsilon <= values.max(axis=1) + q_values.max(axis=(1, 2)) + 1e-9).any()


@given(SEEDS, st.sampled_from([None, 3]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_value_differences(seed, horizon, optimal):
    """[TJP Lem 7, 8] Values differ by at most Σ_h max |φ'(θ-θ'+γ(μ-μ')'V)| (with V_{h+1}, not V_h as printed)."""
    first, second = two_models(seed, horizon=horizon)
    problem = first.problem
    if optimal:
        values, q_values, others = first.values, first.q_values, second.q_values
    else:
        policy = np.random.default_rng(seed).integers(problem.actions, size=first.policy.shape)
        values, q_values = first.policy_values(policy), first.policy_q_values(policy)
        others = second.policy_q_values(policy)
    bounds = errors(first, second, following(problem, values))
    if horizon is None:
        assert np.abs(q_values - others).max() <= bounds[0] / (1 - problem.discount) + 1e-9
    else:
        tails = bounds[::-1].cumsum()[::-1]
        assert (np.abs(q_values - others).max(axis=(1, 2)) <= tails + 1e-9).all()


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_smallest_vector_that_resolves_a_gap(seed):
    """[TJP Lem 9] inf Σ‖x_i‖²_{Λ_i} subject to Σ|φ_i'x_i| ≥ Δ is Δ²/Σ‖φ_i‖²_{Λ_i⁻¹}: attained, and nothing beats it."""
    rng = np.random.default_rng(seed)
    phi, roots = rng.standard_normal((3, 4)), rng.standard_normal((3, 4, 4))
    matrices, delta = roots @ roots.swapaxes(1, 2) + 0.1 * np.eye(4), 0.7
    inverse_norms = np.einsum("id,ide,ie->i", phi, np.linalg.inv(matrices), phi)
    value = delta**2 / inverse_norms.sum()
    best = delta / inverse_norms.sum() * np.linalg.solve(matrices, phi[..., None])[..., 0]
    assert np.abs((phi * best).sum(axis=1)).sum() == pytest.approx(delta)
    assert np.einsum("id,ide,ie->", best, matrices, best) == pytest.approx(value)
    for _ in range(50):
        other = rng.standard_normal((3, 4))
        other *= delta / np.abs((phi * other).sum(axis=1)).sum()
        assert np.einsum("id,ide,ie->", other, matrices, other) >= value * (1 - 1e-9)


@given(SEEDS, st.sampled_from([None, 3]))
@settings(max_examples=30, deadline=None)
def test_values_are_linear_and_their_parameters_short(seed, horizon):
    """[TJP Lem 13] Q^π = Φξ, ξ = θ + γμ'V^π, ‖ξ‖ ≤ √d·range, in normalised coordinates."""
    mdp = random_mdp(seed, horizon=horizon)
    policy = np.random.default_rng(seed).integers(mdp.problem.actions, size=mdp.policy.shape)
    evaluation = mdp.evaluate(policy)
    values = following(mdp.problem, mdp.policy_values(policy))
    if horizon is None:
        expected = mdp.rewards + mdp.problem.discount * mdp.transitions @ values[0]
    else:
        expected = np.stack([mdp.rewards[h] + mdp.transitions[h] @ values[h] for h in range(horizon)])
    np.testing.assert_allclose(mdp.policy_q_values(policy), expected, atol=1e-10)
    limit = np.sqrt(mdp.problem.dimension) * mdp.problem.value_limits[0]
    assert np.linalg.norm(evaluation.parameters, axis=1).max() <= limit + 1e-9


@given(SEEDS, st.sampled_from([None, 3]))
@settings(max_examples=30, deadline=None)
def test_gap_difference(seed, horizon):
    """[TJP Lem 17] |Δ(M̂) - Δ(M)| ≤ 2 Σ max |φ'x| (over 1-γ), here for two true models."""
    first, second = two_models(seed, horizon=horizon)
    bounds = errors(first, second, following(first.problem, first.values))
    limit = 2 * bounds.sum() / ((1 - first.problem.discount) if horizon is None else 1)
    assert abs(first.gap - second.gap) <= limit + 1e-9


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.floats(1, 100))
def test_logarithm_bound(a, b, beyond):
    """[TJP Lem 19] t ≥ 2a log 2a + 2b suffices for t > a log t + b."""
    t = (2 * a * log(2 * a) + 2 * b) * beyond
    assume(t > 0)
    assert t > a * log(t) + b


def test_net_step_of_the_paper_drops_a_cross_term():
    """[TJP Lem 12] Its proof uses ‖a+b‖² ≤ ‖a‖²+‖b‖²; with d = t = φ = λ = 1 that fails. Theorem R does without."""
    x, y = 1.0, 1.2  # X(V'), X(V)
    left, right = y**2 / 2, x**2 / 2 + (y - x) ** 2
    assert left == pytest.approx(0.72)
    assert right == pytest.approx(0.54)
    assert left > right


def test_net_of_clipped_values():
    """[TJP Lem 14] ‖clip(max φ'ξ) - clip(max φ'ξ')‖∞ ≤ ‖ξ-ξ'‖ when ‖φ‖ ≤ 1: a net of the ball is one of the class."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((30, 4, 5))
    features /= np.linalg.norm(features, axis=2).max()
    for _ in range(200):
        a = 10 * rng.standard_normal(5)
        b = a + rng.standard_normal(5) * rng.random()
        values = [np.clip((features @ xi).max(axis=1), 0, 4) for xi in (a, b)]
        assert np.abs(values[0] - values[1]).max() <= np.linalg.norm(a - b) + 1e-12


def test_slack_of_theorem_r():
    """(√A/2+1)² + η ≤ 2 log(1/δ_t) + d log(8e⁴dt²) on a grid of d and t: the paper's β pays for the repaired net."""
    for d in (1, 2, 3, 5, 10, 30, 100, 1000):
        for t in (1, 2, 3, 10, 100, 10**4, 10**8, 10**12):
            for delta_t in (1.0, 0.1, 1e-6):
                net = d * log(1 + 40 * np.sqrt(d * t))
                a = 2 * (net + log(1 / delta_t)) + d * log(1 + t)
                # The square bounds the noise; the ridge adds 1 + η, of which the √e in B pays 1.
                assert (np.sqrt(a) / 2 + 1) ** 2 + 0.1 <= 2 * log(1 / delta_t) + d * log(8 * d * t**2) + 4 * d
