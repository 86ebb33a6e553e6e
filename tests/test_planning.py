"""Planning against solvers that we did not write, brute force, and its own residual."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantecon.markov import DiscreteDP, backward_induction

import bestpolicy as bp
from bestpolicy.planning import action_gap
from tests.models import all_policies, plain_values, random_mdp


def quantecon_problem(mdp: bp.LinearMDP) -> DiscreteDP:
    rewards = np.where(mdp.problem.mask, mdp.rewards, -np.inf)
    transitions = mdp.transitions.copy()
    transitions[~mdp.problem.mask] = 1 / mdp.problem.states
    return DiscreteDP(rewards, transitions, mdp.problem.discount)


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.9, 0.99]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_discounted_values_agree_with_quantecon(seed, discount, masked):
    mdp = random_mdp(seed, states=12, actions=4, dimension=5, discount=discount, masked=masked)
    reference = quantecon_problem(mdp).solve(method="policy_iteration")
    np.testing.assert_allclose(mdp.values, reference.v, atol=1e-9 / (1 - discount))
    if mdp.gap > 1e-8:
        np.testing.assert_array_equal(mdp.policy, reference.sigma)
    assert mdp.plan.error_bound < 1e-9 / (1 - discount)


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_no_policy_beats_the_plan(seed, masked):
    mdp = random_mdp(seed, states=4, actions=3, dimension=4, masked=masked)
    values = np.array([plain_values(mdp, policy) for policy in all_policies(mdp)])
    np.testing.assert_allclose(mdp.values, values.max(axis=0), atol=1e-10)
    for policy, expected in zip(all_policies(mdp), values, strict=True):
        np.testing.assert_allclose(mdp.policy_values(policy), expected, atol=1e-10)
        assert mdp.loss(policy) == pytest.approx((values.max(axis=0) - expected).max(), abs=1e-9)


def test_episodic_values_agree_with_quantecon():
    stationary = random_mdp(3, states=8, actions=3, dimension=4, discount=0.5)
    horizon = 6
    problem = bp.Problem(stationary.problem.features, horizon=horizon)
    mdp = bp.LinearMDP(
        problem, theta=np.tile(stationary.theta, (horizon, 1)), mu=np.tile(stationary.mu, (horizon, 1, 1))
    )
    undiscounted = DiscreteDP(stationary.rewards, stationary.transitions, 1 - 1e-15)
    values, policy = backward_induction(undiscounted, horizon)
    np.testing.assert_allclose(mdp.values, values[:-1], atol=1e-9)
    np.testing.assert_array_equal(mdp.policy, policy)
    np.testing.assert_allclose(mdp.policy_values(mdp.policy), mdp.values, atol=1e-12)


def test_episodic_brute_force():
    mdp = random_mdp(5, states=3, actions=2, dimension=3, horizon=3)
    p, r = mdp.transitions, mdp.rewards
    best = np.full(3, -np.inf)
    for code in range(2**9):
        policy = np.array([(code >> i) & 1 for i in range(9)]).reshape(3, 3)
        values = np.zeros(3)
        for h in (2, 1, 0):
            rows = np.arange(3)
            values = r[h, rows, policy[h]] + p[h, rows, policy[h]] @ values
        np.testing.assert_allclose(mdp.policy_values(policy)[0], values, atol=1e-12)
        best = np.maximum(best, values)
    np.testing.assert_allclose(mdp.values[0], best, atol=1e-12)


def test_values_that_touch_their_limit():
    """Reward 1 for ever: the value is exactly 1/(1-γ), where clipping begins."""
    mdp = bp.instances.load("sixarms")
    assert mdp.values.max() == pytest.approx(mdp.problem.value_limits[0], rel=1e-12)
    assert mdp.plan.error_bound < 1e-10


@given(st.integers(0, 10**6), st.floats(0.01, 3.0))
@settings(max_examples=40, deadline=None)
def test_signed_models_return_an_honest_residual(seed, noise):
    """Estimated kernels may have no fixed point of the unclipped equation: what is returned says how far it is off."""
    mdp = random_mdp(seed, states=10, actions=3, dimension=4, discount=0.9)
    rng = np.random.default_rng(seed)
    theta = mdp.theta + noise * rng.standard_normal(mdp.theta.shape)
    mu = mdp.mu + noise * rng.standard_normal(mdp.mu.shape) / 10
    plan = bp.optimal_plan(mdp.problem, theta, mu)
    limit = mdp.problem.value_limits[0]
    assert ((plan.values >= 0) & (plan.values <= limit)).all()
    regenerated = np.clip((mdp.problem.features @ plan.value_parameters[0]).max(axis=1), 0, limit)
    np.testing.assert_allclose(plan.values[0], regenerated, atol=1e-12)
    q_values = mdp.problem.features @ (theta[0] + 0.9 * mu[0].T @ plan.values[0])
    residual = np.abs(plan.values[0] - np.clip(q_values.max(axis=1), 0, limit)).max()
    assert plan.residuals[0] == pytest.approx(residual, abs=1e-9 * limit)
    np.testing.assert_allclose(plan.q_values[0], q_values, atol=1e-9 * np.abs(q_values).max())


def test_small_noise_is_planned_exactly():
    residuals, signed = [], 0
    for seed in range(30):
        mdp = random_mdp(seed, states=10, actions=3, dimension=4, discount=0.95)
        rng = np.random.default_rng(seed)
        mu = mdp.mu + 0.003 * rng.standard_normal(mdp.mu.shape)
        signed += (mdp.problem.features @ mu[0].T).min() < 0
        residuals.append(bp.optimal_plan(mdp.problem, mdp.theta, mu).residuals[0])
    assert signed > 5
    assert max(residuals) < 1e-9


def test_gap_merges_identical_actions():
    features = np.array([[[1.0, 0], [1, 0], [0, 1]], [[0.5, 0.5], [0, 1], [0, 1]]])
    problem = bp.Problem(features, discount=0.5)
    q_values = (features @ np.array([1.0, 0.3]))[None]
    assert action_gap(problem, q_values) == pytest.approx(0.35)


def test_badly_scaled_features_give_the_same_values():
    mdp = random_mdp(1, states=10, actions=3, dimension=4, discount=0.95)
    scale = np.array([1e-6, 1e6, 1.0, 1e3])
    problem = bp.Problem(mdp.problem.features * scale, discount=0.95)
    scaled = bp.LinearMDP(problem, theta=mdp.theta[0] / scale, mu=mdp.mu[0] / scale)
    np.testing.assert_allclose(scaled.values, mdp.values, rtol=1e-9)
    assert scaled.gap == pytest.approx(mdp.gap, rel=1e-6)
