"""Rewards without a bound: what truncation costs is part of the ε that is stated, and never silent."""

import json
from math import exp

import numpy as np
import pytest
from scipy.stats import poisson

import bestpolicy as bp
from bestpolicy.certificate import make_certificate
from bestpolicy.problem.truncation import Truncated
from bestpolicy.verification import verify_text
from bestpolicy.verification.reading import digest

RATES = np.array([[2.0, 1.0], [0.5, 1.5]])  # mean revenue of (state, action); the next state is a coin
CHANCES = np.array([[0.3, 0.6], [0.5, 0.8]])  # of state 1
NAMES = {"states": ["slow", "busy"], "actions": ["low", "high"], "discount": 0.6}


def sell(state, action, rng):
    s, a = NAMES["states"].index(state), NAMES["actions"].index(action)
    return rng.poisson(RATES[s, a]), NAMES["states"][int(rng.random() < CHANCES[s, a])]


def beyond(limit):
    """E(R - limit)⁺, the largest of all pairs."""
    numbers = np.arange(200)
    return max(float(poisson.pmf(numbers, rate) @ np.maximum(numbers - limit, 0)) for rate in RATES.ravel())


def exact(rewards):
    kernel = np.stack([1 - CHANCES, CHANCES], axis=2)
    return bp.LinearMDP.from_table(kernel, rewards, 0.6)


@pytest.mark.parametrize("limit", [3, 6])
def test_what_is_stated_is_true_of_the_rewards_that_were_not_truncated(limit, tmp_path):
    rewards, bias = bp.Truncated(0, limit, bias=beyond(limit)), beyond(limit)
    asked = 1.0 + bias / 0.4
    result = bp.identify(
        sell,
        **NAMES,
        reward_range=rewards,
        epsilon=asked,
        delta=0.1,
        algorithm="tight",
        seed=1,
        store=tmp_path / "r.db",
    )
    assert result.certified
    assert bias / 0.4 < result.epsilon <= asked
    assert f"{bias / 0.4:.4g} is for rewards beyond [0, {limit}]" in result.explanation
    numbers = np.arange(200)
    truncated = poisson.pmf(numbers[:, None, None], RATES) * np.minimum(numbers, limit)[:, None, None]
    truth, counted = exact(RATES / 10), exact(truncated.sum(axis=0) / 10)
    policy = [NAMES["actions"].index(result.action(state)) for state in NAMES["states"]]
    loss, seen = (10 * model.loss(policy) for model in (truth, counted))
    assert loss <= seen + bias / 0.4 + 1e-9  # the claim of `problem/truncation.py`
    assert loss <= result.epsilon
    again = bp.identify(
        sell,
        **NAMES,
        reward_range=rewards,
        epsilon=asked,
        delta=0.1,
        algorithm="tight",
        seed=1,
        store=tmp_path / "r.db",
    )
    assert (again.epsilon, again.samples) == (result.epsilon, result.samples)
    assert bp.Study.resume(tmp_path / "r.db").result().epsilon == result.epsilon


def test_a_policy_may_lose_all_that_truncation_costs():
    """One action pays 1, the other 2h with probability 0.5/h: their means are alike, their truncated ones are not."""
    limit, chance = 4.0, 0.125
    charged = Truncated(0, limit, second_moment=(2 * limit) ** 2 * chance).bias
    assert charged == pytest.approx(limit * chance)  # equality: what is beyond is h with this probability
    assert 1.0 - charged == pytest.approx(limit * chance)


@pytest.mark.parametrize("algorithm", ["tight", "sharp"])
def test_certificates_say_what_was_truncated(algorithm):
    rewards = bp.Truncated(0, 5, second_moment=6.5)
    result = bp.identify(
        sell, **NAMES, reward_range=rewards, epsilon=2.0, delta=0.1, algorithm=algorithm, seed=0, max_samples=10**5
    )
    assert result.certified
    document = make_certificate(result)
    assert document["version"] >= 4
    assert document["claim"]["reward_bias"] == 6.5 / 20
    found = verify_text(json.dumps(document))
    assert found.valid
    assert found.recomputed_epsilon == pytest.approx(result.epsilon, rel=0.03)
    assert any("rewards beyond that range count as its ends" in word for word in found.trusted)
    for bias in (0.0, 3.0):  # less was charged than is said, or more than ε itself
        claim = document["claim"] | {
            "reward_bias": bias,
            "epsilon": document["claim"]["epsilon"] - 6.5 / 20 / 0.4 + bias,
        }
        claim = claim if bias else document["claim"] | {"reward_bias": 0.5}
        forged = document | {"claim": claim}
        assert not verify_text(json.dumps(forged | {"sha256": digest(forged)})).valid
    older = document | {"version": 3}
    assert not verify_text(json.dumps(older | {"sha256": digest(older)})).valid


def test_truncation_is_never_silent():
    with pytest.raises(bp.SimulatorError, match=r"bestpolicy.Truncated\(low, high"):
        bp.identify(sell, **NAMES, reward_range=(0, 2), epsilon=2, delta=0.1, seed=0)
    with pytest.raises(bp.SimulatorError, match="not in"):  # below, where nothing is truncated
        bp.identify(sell, **NAMES, reward_range=bp.Truncated(0.5, 9, bias=0.1), epsilon=2, delta=0.1, seed=0)
    with pytest.raises(bp.InvalidInput, match=r"epsilon must be larger than 0.5"):
        bp.identify(sell, **NAMES, reward_range=bp.Truncated(0, 9, bias=0.2), epsilon=0.5, delta=0.1, seed=0)
    with pytest.raises(bp.InvalidInput, match="either bias"):
        bp.Truncated(0, 9)
    with pytest.raises(bp.InvalidInput, match="positive number"):
        bp.Truncated(0, 9, second_moment=3, side="both")
    features = bp.instances.load("simplex").problem
    with pytest.raises(bp.InvalidInput, match="for tables"):
        bp.CallableSimulator(features, lambda s, a, rng: (0, 0), reward_range=bp.Truncated(0, 1, bias=0.1))


@pytest.mark.parametrize(("low", "high", "side"), [(0.0, 3.0, "above"), (-2.0, 3.0, "both"), (-2.0, 0.0, "below")])
def test_second_moments_bound_what_lies_beyond(low, high, side):
    """Exactly, for laws of two sizes: an exponential one, and the one that the constant is sharp for."""
    for scale in (0.5, 2.0):
        above = scale * exp(-high / scale) if high > 0 else 0.0
        bound = Truncated(low, high, second_moment=2 * scale**2, side=side)
        assert bound.bias is not None
        assert (
            max(above if side != "below" else 0.0, scale * exp(low / scale) if side != "above" else 0.0) <= bound.bias
        )
    assert bound.charge == bound.bias * (2 if side == "both" else 1)
