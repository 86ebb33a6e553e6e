"""Simulators: the same law however it is drawn, faults that name the pair, nothing measured lost."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

import bestpolicy as bp
from bestpolicy.testing import check_generative_model
from tests.models import random_mdp

MDP = random_mdp(0, states=4, actions=2, dimension=4)
PULLS = bp.Pulls(np.array([0, 3, 6]), np.array([[2000, 1000, 500]]))


def step(state, action, rng):
    reward = float(rng.random() < MDP.rewards[state, action])
    return reward, int(rng.choice(4, p=MDP.transition_rows(np.array([state * 2 + action]))[0]))


def vectorized_step(states, actions, rng):
    rewards = (rng.random(len(states)) < MDP.rewards[states, actions]).astype(float)
    cumulative = MDP.transition_rows(states * 2 + actions).cumsum(axis=1)
    return rewards, (rng.random(len(states))[:, None] > cumulative).sum(axis=1)


SIMULATORS = {
    "exact": bp.ExactSimulator(MDP),
    "callable": bp.CallableSimulator(MDP.problem, step),
    "vectorized": bp.CallableSimulator(MDP.problem, vectorized_step, vectorized=True),
}


@pytest.mark.parametrize("name", SIMULATORS)
def test_draws_follow_the_model(name):
    tally = SIMULATORS[name].sample(PULLS, np.random.default_rng(1))
    np.testing.assert_array_equal(tally.pulls, PULLS.counts)
    rows = MDP.transition_rows(PULLS.pairs)
    for k, count in enumerate(PULLS.counts[0]):
        assert chisquare(tally.next_counts[0, k], count * rows[k]).pvalue > 1e-4
        mean = MDP.rewards.ravel()[PULLS.pairs[k]]
        assert abs(tally.reward_sums[0, k] - count * mean) < 4 * np.sqrt(count * mean * (1 - mean))
    np.testing.assert_allclose(tally.squared_rewards, tally.reward_sums)  # rewards are 0 or 1


def test_batched_and_looped_draws_have_the_same_joint_law():
    """Next state and reward together, exact counts against one call at a time."""
    tables = []
    for name in ("exact", "callable", "vectorized"):
        tally = SIMULATORS[name].sample(PULLS, np.random.default_rng(5))
        ones = tally.next_rewards[0, 0]
        tables.append(np.concatenate([ones, tally.next_counts[0, 0] - ones]))
    assert chi2_contingency(np.array(tables)).pvalue > 1e-3


def test_small_batches_add_up_to_the_law_of_a_large_one():
    simulator = SIMULATORS["exact"]
    rng = np.random.default_rng(2)
    small = sum(
        (simulator.sample(bp.Pulls(PULLS.pairs, np.full((1, 3), 7)), rng) for _ in range(300)),
        bp.Tally.empty(MDP.problem),
    )
    rows = MDP.transition_rows(PULLS.pairs)
    for k in range(3):
        assert chisquare(small.next_counts[0, k], 2100 * rows[k]).pvalue > 1e-4


def test_huge_batches_are_exact_in_mean_and_variance():
    pulls = bp.Pulls(np.array([5]), np.array([[10**11]]))
    simulator = bp.ExactSimulator(MDP)
    p = MDP.transition_rows(np.array([5]))[0]
    draws = np.array([simulator.sample(pulls, np.random.default_rng(i)).next_counts[0, 0] for i in range(400)])
    assert (draws.sum(axis=1) == 10**11).all()
    z = (draws - 1e11 * p) / np.sqrt(1e11 * p * (1 - p))
    assert np.abs(z.mean(axis=0)).max() < 4 / np.sqrt(400)
    assert np.abs(z.var(axis=0) - 1).max() < 4 * np.sqrt(2 / 400)


def test_deterministic_rewards():
    tally = bp.ExactSimulator(MDP, rewards="deterministic").sample(PULLS, np.random.default_rng(0))
    means = MDP.rewards.ravel()[PULLS.pairs]
    np.testing.assert_allclose(tally.reward_sums[0], PULLS.counts[0] * means)
    np.testing.assert_allclose(tally.squared_rewards[0], PULLS.counts[0] * means**2)
    with pytest.raises(bp.InvalidInput, match="Did you mean 'bernoulli'"):
        bp.ExactSimulator(MDP, rewards="bernouli")


def test_episodic_steps_receive_their_stage():
    mdp = random_mdp(3, states=3, actions=2, dimension=3, horizon=4)
    seen = []

    def staged(state, action, rng, stage):
        seen.append(stage)
        return 0.5, stage % 3

    simulator = bp.CallableSimulator(mdp.problem, staged)
    tally = simulator.sample(bp.Pulls(np.array([1]), np.full((4, 1), 2)), np.random.default_rng(0))
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_array_equal(tally.next_counts[:, 0].argmax(axis=1), [0, 1, 2, 0])
    stationary = bp.CallableSimulator(mdp.problem, lambda state, action, rng: (1.0, state))
    assert stationary.sample(bp.Pulls(np.array([2]), np.ones((4, 1), int)), np.random.default_rng(0)).samples == 4


class Crash(RuntimeError):
    pass


def crash(text="database gone"):
    raise Crash(text)


FAULTS = {
    "reward above one": (lambda: (1.5, 0), r"reward 1\.5 is not in \[0, 1\]"),
    "negative reward": (lambda: (-0.1, 0), "not in"),
    "NaN reward": (lambda: (float("nan"), 0), "reward nan"),
    "reward is text": (lambda: ("much", 0), "not a number"),
    "swapped": (lambda: (3, 0.5), r"reward 3\.0 is not in .* Are the two swapped\? .* \(reward, next_state\), in this"),
    "reward too large": (lambda: (1.5, 0), r"would bias the answer\.$"),
    "unknown next state": (lambda: (0.5, 4), r"next state 4 is not one of 0\.\.3"),
    "negative next state": (lambda: (0.5, -1), "next state -1"),
    "fractional next state": (lambda: (0.5, 1.5), "next state 1.5"),
    "next state is None": (lambda: (0.5, None), "next state None"),
    "crash": (crash, "the simulator raised Crash: database gone"),
    "crash in two lines": (lambda: crash("no\n  disk"), "Crash: no disk$"),
    "one value": (lambda: 7, r"step must return \(reward, next_state\)\. Got 7 instead"),
    "three values": (lambda: (0.5, 1, {}), r"step must return \(reward, next_state\)\. Got \(0\.5, 1, \{\}\) instead"),
    "no value": (lambda: None, r"step must return \(reward, next_state\)\. Got None instead"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_pair_and_keep_what_was_measured(fault):
    answer, message = FAULTS[fault]
    calls = []

    def faulty(state, action, rng):
        calls.append((state, action))
        return answer() if len(calls) == 5 else (0.25, 1)

    simulator = bp.CallableSimulator(MDP.problem, faulty)
    with pytest.raises(bp.SimulatorError, match=r"pair \(state 1, action 1\): .*" + message) as caught:
        simulator.sample(bp.Pulls(np.array([0, 3]), np.array([[3, 3]])), np.random.default_rng(0))
    assert caught.value.partial.samples == 4
    np.testing.assert_array_equal(caught.value.partial.pulls, [[3, 1]])
    if fault.startswith("crash"):
        assert isinstance(caught.value.__cause__, Crash)


@pytest.mark.parametrize("fault", ["swapped", "NaN reward", "unknown next state", "fractional next state"])
def test_vectorised_faults_keep_what_came_before_them(fault):
    answer, message = FAULTS[fault]

    def faulty(states, actions, rng):
        rewards, following = np.full(len(states), 0.5), np.ones(len(states))
        rewards[4], following[4] = answer()
        return rewards, following

    simulator = bp.CallableSimulator(MDP.problem, faulty, vectorized=True)
    with pytest.raises(bp.SimulatorError, match=r"pair \(state 1, action 1\): .*" + message) as caught:
        simulator.sample(bp.Pulls(np.array([0, 3]), np.array([[3, 3]])), np.random.default_rng(0))
    np.testing.assert_array_equal(caught.value.partial.pulls, [[3, 1]])


def test_vectorised_crash_and_wrong_shapes():
    pulls = bp.Pulls(np.array([0, 3]), np.array([[3, 3]]))
    for bad, message in (
        (lambda s, a, rng: crash(), "Crash"),
        (lambda s, a, rng: (np.zeros(2), np.zeros(2)), "shapes"),
        (lambda s, a, rng: 3, "step must return"),
        (lambda s, a, rng: (np.zeros(6),) * 3, "step must return"),
    ):
        simulator = bp.CallableSimulator(MDP.problem, bad, vectorized=True)
        with pytest.raises(bp.SimulatorError, match=r"pair \(state 0, action 0\): .*" + message):
            simulator.sample(pulls, np.random.default_rng(0))


@pytest.mark.parametrize("vectorized", [False, True])
def test_rewards_of_another_range_are_mapped_and_reported_in_their_own_units(vectorized):
    """The same dice with rewards ten times as large, less three: the same run, and ten times the ε."""

    def ten_times(*arguments):
        rewards, following = (vectorized_step if vectorized else step)(*arguments)
        return 10 * rewards - 3, following

    plain = bp.CallableSimulator(MDP.problem, vectorized_step if vectorized else step, vectorized=vectorized)
    scaled = bp.CallableSimulator(MDP.problem, ten_times, vectorized=vectorized, reward_range=(-3, 7))
    settings = {"delta": 0.1, "algorithm": "tight", "seed": 0, "max_samples": 2000}
    ours = bp.identify(scaled, epsilon=1.0, **settings)
    theirs = bp.identify(plain, epsilon=0.1, **settings)
    assert ours.samples == theirs.samples
    assert ours.epsilon == pytest.approx(10 * theirs.epsilon)
    assert [c.gap for c in ours.checks] == pytest.approx([10 * c.gap for c in theirs.checks])
    with pytest.raises(bp.SimulatorError, match=r"reward -3.0 is not in \[0, 7\]. Give reward_range"):
        bp.identify(
            bp.CallableSimulator(MDP.problem, ten_times, vectorized=vectorized, reward_range=(0, 7)),
            epsilon=1,
            **settings,
        )
    for nonsense in (3, (1, 0), (0, np.inf), (0, "x"), (0, 1, 2)):
        with pytest.raises(bp.InvalidInput, match="reward_range must be two finite numbers"):
            bp.CallableSimulator(MDP.problem, step, reward_range=nonsense)


def test_what_cannot_be_a_simulator_is_refused_before_the_first_call():
    for make, message in (
        (lambda: bp.CallableSimulator(MDP.problem, 3), "step must be a function.*Got 3"),
        (lambda: bp.CallableSimulator(MDP, step), "problem must be a Problem. Got LinearMDP"),
        (
            lambda: bp.CallableSimulator(MDP.problem, lambda state, action: (0, 0)),
            r"three arguments.*\(state, action\)",
        ),
        (lambda: bp.ExactSimulator(MDP.problem), "LinearMDP.*Got Problem.*CallableSimulator"),
    ):
        with pytest.raises(bp.InvalidInput, match=message):
            make()
    bp.CallableSimulator(MDP.problem, lambda *arguments: (0.5, 0))
    bp.CallableSimulator(MDP.problem, lambda state, action, rng, extra=None: (0.5, 0))


@pytest.mark.parametrize("name", SIMULATORS)
def test_good_simulators_pass_the_conformance_check(name):
    check_generative_model(SIMULATORS[name])


def test_bad_simulators_fail_the_conformance_check():
    class Hoarder(bp.ExactSimulator):
        """Uses randomness of its own."""

        def sample(self, pulls, rng):
            return super().sample(pulls, np.random.default_rng())

    class Short(bp.ExactSimulator):
        def sample(self, pulls, rng):
            return super().sample(bp.Pulls(pulls.pairs, np.maximum(pulls.counts - 1, 0)), rng)

    class Rich(bp.ExactSimulator):
        def sample(self, pulls, rng):
            tally = super().sample(pulls, rng)
            return bp.Tally(tally.pairs, tally.next_counts, 3.0 * tally.next_counts, tally.squared_rewards)

    class Wrong(bp.ExactSimulator):
        def sample(self, pulls, rng):
            return [1, 2]

    for kind, message in (
        (Hoarder, "no randomness but"),
        (Short, "came back"),
        (Rich, r"not in \[0, 1\]"),
        (Wrong, "Tally"),
    ):
        with pytest.raises(bp.InvalidInput, match=message):
            check_generative_model(kind(MDP))
    with pytest.raises(bp.InvalidInput, match="sample"):
        check_generative_model(object())
