"""LinearMDP: values, variance, files, assumptions."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.diagnostics.assumptions import check_features, check_model, check_norms
from tests.models import random_mdp, tabular_mdp

MODELS = [random_mdp(0), random_mdp(1, masked=True), random_mdp(2, horizon=3), random_mdp(3, horizon=2, masked=True)]


@pytest.mark.parametrize("mdp", MODELS)
def test_files_round_trip(mdp, tmp_path):
    mdp.save(tmp_path / "model.npz")
    again = bp.LinearMDP.load(tmp_path / "model.npz")
    for name in ("theta", "mu"):
        np.testing.assert_array_equal(getattr(again, name), getattr(mdp, name))
    np.testing.assert_array_equal(again.problem.features, mdp.problem.features)
    np.testing.assert_array_equal(again.problem.mask, mdp.problem.mask)
    assert (again.problem.discount, again.problem.horizon) == (mdp.problem.discount, mdp.problem.horizon)
    np.testing.assert_array_equal(again.policy, mdp.policy)


@pytest.mark.parametrize("mdp", MODELS)
def test_bellman_equations(mdp):
    values = mdp.values if mdp.problem.horizon is None else np.vstack([mdp.values[1:], np.zeros((1, 6))])
    if mdp.problem.horizon is None:
        q_values = mdp.rewards + mdp.problem.discount * mdp.transitions @ values
    else:
        q_values = np.stack([mdp.rewards[h] + mdp.transitions[h] @ values[h] for h in range(mdp.problem.horizon)])
    allowed = np.broadcast_to(mdp.problem.mask, q_values.shape)
    np.testing.assert_allclose(mdp.q_values[allowed], q_values[allowed], atol=1e-10)
    assert (mdp.q_values[~allowed] == -np.inf).all()
    np.testing.assert_allclose(mdp.q_values.max(axis=-1), mdp.values, atol=1e-10)
    ordered = np.sort(mdp.q_values, axis=-1)
    with np.errstate(invalid="ignore"):
        gaps = ordered[..., -1] - ordered[..., -2]
    assert mdp.gap == pytest.approx(gaps[np.isfinite(gaps)].min())


@pytest.mark.parametrize("mdp", [random_mdp(0), random_mdp(2, horizon=3)])
def test_variance_against_simulation(mdp):
    rng = np.random.default_rng(0)
    stages = range(mdp.problem.stages)
    variances = mdp.variances.reshape(mdp.problem.stages, *mdp.problem.mask.shape)
    rewards = mdp.rewards.reshape(variances.shape)
    for h in stages:
        following = mdp.plan.values[0] if mdp.problem.horizon is None else np.vstack([mdp.values, np.zeros(6)])[h + 1]
        p = mdp.transition_rows(np.array([7]), h)[0]
        draws = (rng.random(200_000) < rewards[h].ravel()[7]) + mdp.problem.continuation * following[
            rng.choice(6, size=200_000, p=p)
        ]
        assert draws.var() == pytest.approx(variances[h].ravel()[7], rel=0.02)
    limit = mdp.problem.value_limits[0]
    assert variances.max() <= limit**2 / 4


def test_near_optimal_policies():
    mdp = random_mdp(5, states=4, actions=2, dimension=4)
    assert mdp.is_near_optimal(mdp.policy, 0)
    worse = mdp.policy.copy()
    state = int(np.argmin(np.diff(np.sort(mdp.q_values, axis=1))[:, 0]))
    worse[state] = 1 - worse[state]
    loss = mdp.loss(worse)
    assert 0 < mdp.gap <= loss + 1e-12
    assert mdp.is_near_optimal(worse, loss)
    assert not mdp.is_near_optimal(worse, loss * (1 - 1e-6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"theta": np.ones(3)}, r"theta must have shape \(d\) = \(4,\)"),
        ({"mu": np.ones((2, 4))}, r"mu must have shape \(S, d\)"),
        ({"theta": np.array([0.1, np.nan, 0, 0])}, "theta must be finite"),
        ({"theta": np.full(4, 1.2)}, "largest mean reward: 1.2"),
        ({"theta": np.array([-0.1, 0, 0, 0])}, "smallest mean reward: -0.1"),
        ({"mu": np.full((6, 4), 0.2)}, "Rescale mu"),
    ],
)
def test_what_is_not_a_linear_mdp(change, message):
    mdp = random_mdp(0)
    parameters = {"theta": mdp.theta[0], "mu": mdp.mu[0]} | change
    with pytest.raises(bp.InvalidInput, match=message):
        bp.LinearMDP(mdp.problem, **parameters)


def test_negative_probabilities_name_the_pair():
    transitions = np.full((2, 2, 2), 0.5)
    transitions[1, 0] = [-0.25, 1.25]
    with pytest.raises(bp.InvalidInput, match=r"-0.25 at \(state 1, action 0\)"):
        tabular_mdp(transitions, np.zeros((2, 2)), discount=0.5)


def test_findings_measure_what_they_say():
    mdp = bp.instances.load("inventory")
    found = {f.name: f for f in check_norms(mdp.problem, mdp.theta, mdp.mu)}
    features = mdp.problem.pair_features
    assert found["largest ‖φ‖ (as given)"].measured == pytest.approx(np.linalg.norm(features, axis=1).max())
    assert found["‖θ‖ (as given)"].measured == pytest.approx(np.linalg.norm(mdp.theta))
    assert found["‖Σ|μ|‖ (as given)"].measured == pytest.approx(np.linalg.norm(np.abs(mdp.mu[0]).sum(axis=0)))
    assert found["largest ‖φ‖ (whitened)"].passed
    assert found["‖θ‖ (whitened)"].passed
    assert all(f.passed for f in check_features(mdp.problem) + check_model(mdp.problem, mdp.theta, mdp.mu))


@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e7])
def test_rank_and_ones_do_not_depend_on_scale(scale):
    mdp = random_mdp(0)
    for spread in (np.ones(4), np.array([1e-6, 1.0, 1e6, 1e3])):
        problem = bp.Problem(mdp.problem.features * spread * scale, discount=0.9)
        assert all(finding.passed for finding in check_features(problem))
    doubled = bp.Problem(np.concatenate([mdp.problem.features * scale] * 2, axis=2), discount=0.9)
    assert [finding.passed for finding in check_features(doubled)] == [False, True]
    shifted = mdp.problem.features.copy()
    shifted[2, 1] *= 1.001
    rank, ones = check_features(bp.Problem(shifted * scale, discount=0.9))
    assert rank.passed
    assert not ones.passed
