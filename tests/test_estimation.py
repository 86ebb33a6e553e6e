"""Tallies add; least squares from counts equals plain least squares on the samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bestpolicy as bp
from tests.models import random_mdp

MDP = random_mdp(0, states=5, actions=3, dimension=4)
EPISODIC = random_mdp(1, states=4, actions=2, dimension=3, horizon=3)


def draw(mdp: bp.LinearMDP, count: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    states, actions = rng.integers(mdp.problem.states, size=count), rng.integers(mdp.problem.actions, size=count)
    stages = rng.integers(mdp.problem.stages, size=count)
    rewards, following = rng.random(count), rng.integers(mdp.problem.states, size=count)
    return states, actions, rewards, following, stages


def same(a: bp.Tally, b: bp.Tally) -> None:
    np.testing.assert_array_equal(a.pairs, b.pairs)
    np.testing.assert_array_equal(a.next_counts, b.next_counts)
    np.testing.assert_allclose(a.next_rewards, b.next_rewards, atol=1e-12)
    np.testing.assert_allclose(a.squared_rewards, b.squared_rewards, atol=1e-12)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 1000), st.booleans())
def test_tallies_add_like_the_samples_they_hold(first, second, seed, episodic):
    mdp = EPISODIC if episodic else MDP
    a, b = draw(mdp, first, seed), draw(mdp, second, seed + 1)

    def tally(samples):
        return bp.Tally.from_samples(mdp.problem, *samples)

    both = tally(tuple(np.concatenate(parts) for parts in zip(a, b, strict=True)))
    same(tally(a) + tally(b), both)
    same(tally(b) + tally(a), both)
    assert both.samples == first + second


@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
def test_counts_are_what_a_loop_counts(mdp):
    samples = draw(mdp, 200, 3)
    tally = bp.Tally.from_samples(mdp.problem, *samples)
    counts, rewards, squares = (
        array.copy() for array in (tally.next_counts, tally.next_rewards, tally.squared_rewards)
    )
    for state, action, reward, following, stage in zip(*samples, strict=True):
        k = np.searchsorted(tally.pairs, state * mdp.problem.actions + action)
        counts[stage, k, following] -= 1
        rewards[stage, k, following] -= reward
        squares[stage, k] -= reward**2
    assert (counts == 0).all()
    np.testing.assert_allclose(rewards, 0, atol=1e-12)
    np.testing.assert_allclose(squares, 0, atol=1e-12)


def _turned(tally, **changes):
    arrays = {name: getattr(tally, name).copy() for name in ("pairs", "next_counts", "next_rewards", "squared_rewards")}
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    return bp.Tally(**arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_rewards": lambda r: 5 * r}, r"not in \[0, 1\]"),
        ({"next_rewards": lambda r: r * np.nan}, r"not in \[0, 1\]"),
        ({"next_rewards": lambda r: -r}, r"not in \[0, 1\]"),
        ({"squared_rewards": lambda q: 0 * q}, "squared rewards"),
        ({"squared_rewards": lambda q: 2 * q}, "squared rewards"),
        ({"squared_rewards": lambda q: q * np.nan}, "squared rewards"),
        ({"next_counts": lambda c: -c}, "negative count"),
        ({"next_counts": lambda c: c.astype(float)}, "whole numbers"),
        ({"next_counts": lambda c: c[0]}, "shape"),
        ({"next_rewards": lambda r: r[:, :, :-1]}, "shapes"),
        ({"squared_rewards": lambda q: q[0]}, "shapes"),
        ({"squared_rewards": lambda q: q.astype(str)}, "numbers"),
        ({"pairs": lambda p: p[::-1]}, "increasing"),
        ({"pairs": lambda p: p - 1}, "flat pair indices"),
    ],
)
def test_a_tally_refuses_sums_that_no_samples_have(changes, message):
    tally = bp.ExactSimulator(MDP).sample(
        bp.Pulls(MDP.problem.pairs, np.full((1, len(MDP.problem.pairs)), 50)), np.random.default_rng(0)
    )
    _turned(tally)  # as it is, it is accepted
    with pytest.raises(bp.InvalidInput, match=message):
        _turned(tally, **changes)


def test_a_tally_cannot_be_changed_once_it_is_checked():
    tally = bp.ExactSimulator(MDP).sample(
        bp.Pulls(MDP.problem.pairs, np.full((1, len(MDP.problem.pairs)), 50)), np.random.default_rng(0)
    )
    rewards = tally.next_rewards.copy()
    own = bp.Tally(tally.pairs, tally.next_counts, rewards, tally.squared_rewards)
    rewards *= 5
    np.testing.assert_array_equal(own.next_rewards, tally.next_rewards)
    with pytest.raises(ValueError, match="read-only"):
        own.next_rewards *= 5


@pytest.mark.parametrize("ridge", [0.25, 0.0, 3.0])
@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
def test_estimates_agree_with_plain_lstsq(mdp, ridge):
    states, actions, rewards, following, stages = draw(mdp, 300, 7)
    tally = bp.Tally.from_samples(mdp.problem, states, actions, rewards, following, stages)
    estimate = bp.least_squares(mdp.problem.features, tally, ridge=ridge)
    d = mdp.problem.dimension
    for h in range(mdp.problem.stages):
        own = stages == h
        design = np.vstack([mdp.problem.features[states[own], actions[own]], np.sqrt(ridge) * np.eye(d)])
        targets = np.column_stack([rewards[own], np.eye(mdp.problem.states)[following[own]]])
        padded = np.vstack([targets, np.zeros((d, targets.shape[1]))])
        reference = np.linalg.lstsq(design, padded, rcond=None)[0]
        np.testing.assert_allclose(estimate.theta[h], reference[:, 0], atol=1e-10)
        np.testing.assert_allclose(estimate.mu[h], reference[:, 1:].T, atol=1e-10)
        np.testing.assert_allclose(estimate.gram[h], design.T @ design, atol=1e-10)


def test_unregularised_rows_sum_to_one():
    """Because all-ones is in the span of the features."""
    tally = bp.Tally.from_samples(MDP.problem, *draw(MDP, 300, 1))
    estimate = bp.least_squares(MDP.problem.features, tally, ridge=0.0)
    np.testing.assert_allclose((MDP.problem.features @ estimate.mu[0].T).sum(axis=-1), 1, atol=1e-10)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (([9], [0], [0.5], [0]), "states must lie in 0..4"),
        (([0], [-1], [0.5], [0]), "actions must lie in"),
        (([0], [0], [1.5], [0]), "do not clip"),
        (([0], [0], [np.nan], [0]), "finite"),
        (([0], [0], [0.5], [5]), "next_states must lie in"),
        (([0, 1], [0], [0.5], [0]), "same length"),
        (([0.5], [0], [0.5], [0]), "whole numbers"),
    ],
)
def test_bad_samples_are_refused(sample, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.Tally.from_samples(MDP.problem, *sample)


def test_pulls_minus_tally():
    pulls = bp.Pulls(np.array([0, 4]), np.array([[2, 1]]))
    partial = bp.Tally.from_samples(MDP.problem, [0, 1], [0, 1], [0.5, 1.0], [1, 2])
    np.testing.assert_array_equal(pulls.minus(partial).counts, [[1, 0]])
    with pytest.raises(bp.InvalidInput, match="not asked for"):
        bp.Pulls(np.array([0]), np.array([[5]])).minus(partial)
    with pytest.raises(bp.InvalidInput, match="more samples"):
        pulls.minus(partial + partial)
