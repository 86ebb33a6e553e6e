"""Requests for episodes: their verbs, their tallies, what the border refuses, and who can answer them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

import bestpolicy as bp
from bestpolicy.errors import InvalidInput, SimulatorError
from bestpolicy.instances.tabular import random_tabular
from bestpolicy.samples import Episodes, Followed, Tally
from bestpolicy.study.journal import samples_in, tally_from_bytes, tally_to_bytes
from bestpolicy.study.queries import check_tally

MDP = random_tabular(states=4, actions=2, horizon=3, seed=3)
PROBLEM = MDP.problem


def uniform(problem):
    return np.ones((problem.stages, problem.states, problem.actions)) / problem.actions


def some_policy(seed=0):
    return np.random.default_rng(seed).integers(0, 2, (PROBLEM.stages, PROBLEM.states))


def one_by_one(mdp, episodes, rng):
    """Simulate episodes as anybody would."""
    h_max, n = mdp.problem.stages, episodes.count
    states, actions = np.zeros((n, h_max + 1), int), np.zeros((n, h_max), int)
    rewards = np.zeros((n, h_max))
    states[:, 0] = episodes.start
    for i in range(n):
        for h in range(h_max):
            s = states[i, h]
            row = episodes.policy[h, s]
            a = rng.choice(mdp.problem.actions, p=row) if np.ndim(row) else row
            actions[i, h] = a
            rewards[i, h] = rng.random() < mdp.rewards.reshape(h_max, mdp.problem.states, -1)[h, s, a]
            p = mdp.transition_rows(np.array([s * mdp.problem.actions + a]), h)[0]
            states[i, h + 1] = rng.choice(mdp.problem.states, p=p)
    return Tally.from_episodes(mdp.problem, states, actions, rewards)


# --- verbs


def test_episodes_split_cut_and_subtract_as_pulls_do():
    episodes = Episodes(some_policy(), 10, 0)
    assert episodes.total == 30
    assert [piece.count for piece in episodes.split(12)] == [4, 4, 2]
    assert [piece.count for piece in episodes.split(2)] == [1] * 10
    assert episodes.split(None) == [episodes]
    assert episodes.cut(17, anytime=True).count == 5
    assert episodes.cut(17, anytime=False).count == 0
    assert episodes.cut(30, anytime=False) is episodes
    part = bp.ExactSimulator(MDP).rollout(episodes.cut(12, anytime=True), np.random.default_rng(0))
    assert not episodes.answered_by(part)
    assert episodes.minus(part).count == 6
    with pytest.raises(InvalidInput, match="more than asked for"):
        episodes.cut(3, anytime=True).minus(part)
    assert episodes.equals(Episodes(some_policy(), 10, 0))
    assert not episodes.equals(Episodes(some_policy(), 10, 1))


def test_a_walk_goes_on_where_it_was():
    mdp = random_tabular(states=4, actions=2, discount=0.9, seed=3)
    model, policy = bp.ExactSimulator(mdp), np.ones((4, 2)) / 2
    walk = Episodes(policy, 1, 2, length=1000)
    first = model.rollout(walk.cut(300, anytime=True), np.random.default_rng(1))
    rest = walk.minus(first)
    assert rest.length == 700
    second = model.rollout(rest, np.random.default_rng(4))
    rest.check(mdp.problem, second)
    walk.check(mdp.problem, first + second)
    assert walk.answered_by(first + second)
    elsewhere = Episodes(policy, 1, (rest.start + 1) % 4, length=700)
    with pytest.raises(InvalidInput, match="do not join up"):
        elsewhere.check(mdp.problem, second)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Episodes(np.zeros(3, int), 1), "shape"),
        (lambda: Episodes(np.full((3, 4, 2), 0.4), 1), "sum to 1"),
        (lambda: Episodes(some_policy(), 1, 9), "one of the states"),
        (lambda: Episodes(some_policy(), -1), "count"),
        (lambda: Episodes(np.ones((4, 2)) / 2, 2, 0, length=5), "one trajectory"),
    ],
)
def test_episodes_that_make_no_sense_are_refused(make, what):
    with pytest.raises(InvalidInput, match=what):
        make()


# --- the population has the law of single episodes


@pytest.mark.parametrize("policy", [some_policy(), uniform(PROBLEM)], ids=["actions", "probabilities"])
def test_the_population_has_the_law_of_single_episodes(policy):
    episodes, rng = Episodes(policy, 3, 1), np.random.default_rng(5)
    model = bp.ExactSimulator(MDP)

    def kinds(simulate):
        found = {}
        for _ in range(500):
            tally = simulate(episodes, rng)
            episodes.check(PROBLEM, tally)
            key = (round(tally.returns, 9), round(tally.squared_returns, 9))
            found[key] = found.get(key, 0) + 1
        return found

    mine, theirs = kinds(model.rollout), kinds(lambda some, draws: one_by_one(MDP, some, draws))
    keys = [key for key in mine | theirs if mine.get(key, 0) + theirs.get(key, 0) >= 10]
    both = np.array([[found.get(key, 0) for key in keys] for found in (mine, theirs)], float)
    expected = both.sum(axis=0) / 2
    assert len(keys) > 5
    assert chisquare(both.ravel(), np.concatenate([expected, expected]), ddof=len(keys)).pvalue > 1e-3


def test_the_cost_of_a_rollout_does_not_depend_on_the_number():
    tally = bp.ExactSimulator(MDP).rollout(Episodes(some_policy(), 10**12, 0), np.random.default_rng(0))
    staged = MDP.policy_values(some_policy())[0, 0]
    assert tally.returns / 10**12 == pytest.approx(staged, abs=1e-5)
    assert tally.episodes == 10**12


def test_the_simulators_agree_on_moments():
    policy = some_policy(1)
    value = MDP.policy_values(policy)[0, 2]

    def step(state, action, rng, stage):
        p = MDP.transition_rows(np.array([state * 2 + action]), stage)[0]
        return float(rng.random() < MDP.rewards.reshape(3, 4, 2)[stage, state, action]), rng.choice(4, p=p)

    def block(states, actions, rng, stage):
        p = MDP.transition_rows(states * 2 + actions, stage)
        paid = rng.random(len(states)) < MDP.rewards.reshape(3, 4, 2)[stage, states, actions]
        return paid.astype(float), (np.cumsum(p, axis=1) < rng.random((len(states), 1))).sum(axis=1)

    for model in (
        bp.CallableSimulator(PROBLEM, step),
        bp.CallableSimulator(PROBLEM, block, vectorized=True),
        bp.ExactSimulator(MDP, rewards="deterministic"),
    ):
        episodes = Episodes(policy, 3000, 2)
        tally = model.rollout(episodes, np.random.default_rng(4))
        check_tally(PROBLEM, tally, episodes)
        spread = (tally.squared_returns / 3000 - (tally.returns / 3000) ** 2) ** 0.5
        assert abs(tally.returns / 3000 - value) < 4 * spread / 3000**0.5


# --- the border


def tally_of(states, actions, rewards, **more):
    return Tally.from_episodes(PROBLEM, states, actions, rewards, **more)


def test_what_no_episodes_can_have_is_refused():
    policy = np.zeros((3, 4), int)
    episodes = Episodes(policy, 2, 0)
    good = tally_of([[0, 1, 2, 3], [0, 2, 2, 0]], np.zeros((2, 3), int), np.ones((2, 3)))
    check_tally(PROBLEM, good, episodes)
    assert good.squared_returns == 18
    pairs, counts = good.pairs, good.next_counts.copy()
    counts[1] = np.roll(counts[1], 1, axis=0)
    torn = Tally(pairs, counts, counts.astype(float), counts.sum(axis=2).astype(float)).with_followed(good.followed)
    for tally, what in (
        (torn, "leads .* times into state"),
        (tally_of([[1, 1, 2, 3]], np.zeros((1, 3), int), np.ones((1, 3))), "begins in state 1"),
        (tally_of([[0, 1, 2, 3]], [[0, 1, 0]], np.ones((1, 3))), "does not play"),
        (good.with_followed(Followed(17.0)), "too small"),
        (good.with_followed(Followed(18.1)), "too large"),
        (good.with_followed(Followed(float("nan"))), "squared returns"),
    ):
        with pytest.raises(InvalidInput, match=what):
            check_tally(PROBLEM, tally, episodes)


def test_an_episode_that_broke_off_counts_as_nothing_earned():
    states, rewards = [[0, 1, 2, 3], [0, 2, 2, 0], [0, 3, 0, 0]], np.ones((3, 3))
    tally = tally_of(states, np.zeros((3, 3), int), rewards, lengths=[3, 1, 0])
    assert (tally.episodes, tally.broken_episodes, tally.samples) == (3, 2, 4)
    assert (tally.returns, tally.squared_returns) == (3.0, 9.0)
    check_tally(PROBLEM, tally, Episodes(np.zeros((3, 4), int), 3, 0))
    assert Episodes(np.zeros((3, 4), int), 5, 0).minus(tally).count == 2
    again = tally_from_bytes(tally_to_bytes(tally))
    assert again.followed.squared_returns == 9
    np.testing.assert_array_equal(again.followed.broken, tally.followed.broken)
    assert samples_in(tally_to_bytes(tally)) == 4


def test_tallies_of_episodes_add_up():
    model, episodes = bp.ExactSimulator(MDP), Episodes(some_policy(), 7, 0)
    parts = [model.rollout(episodes, np.random.default_rng(i)) for i in range(3)]
    total = Tally.total(parts)
    assert total.episodes == 21
    assert total.squared_returns == parts[0].squared_returns + parts[1].squared_returns + parts[2].squared_returns
    assert total.at(PROBLEM.pairs).squared_returns == total.squared_returns
    assert (parts[0] + parts[1]).squared_returns == parts[0].squared_returns + parts[1].squared_returns


def test_pulls_are_stored_as_before():
    tally = bp.ExactSimulator(MDP).sample(bp.Pulls(PROBLEM.pairs, np.full((3, 8), 5)), np.random.default_rng(0))
    assert tally_to_bytes(tally).startswith(b"tally 2\n")


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_step_that_fails_breaks_off_its_episode_and_no_other(vectorized):
    calls = []

    def step(state, action, rng, stage):
        calls.append(stage)
        if len(calls) == 8:
            raise RuntimeError("the lamp went out")
        one = np.ones_like(state) if vectorized else 1
        return one * 1.0, one * 0

    model = bp.CallableSimulator(PROBLEM, step, vectorized=vectorized)
    episodes = Episodes(np.zeros((3, 4), int), 5, 0)
    if vectorized:
        calls.extend([0] * 6)
    with pytest.raises(SimulatorError, match="the lamp went out") as caught:
        model.rollout(episodes, np.random.default_rng(0))
    partial = caught.value.partial
    check_tally(PROBLEM, partial, episodes)
    if vectorized:  # all are in step, and none of them has an outcome of the second
        assert (partial.episodes, partial.broken_episodes, partial.returns) == (5, 5, 0.0)
    else:
        assert (partial.episodes, partial.broken_episodes, partial.returns) == (3, 1, 6.0)
        assert episodes.minus(partial).count == 2
