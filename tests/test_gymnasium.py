"""Gymnasium environments as simulators: distributions, terminal states, units, and what is refused."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
from scipy.stats import chisquare

import bestpolicy as bp
from bestpolicy.simulators.gymnasium import GymSimulator
from bestpolicy.testing import check_generative_model
from tests.examples import run_example

GAMMA = 0.9


@pytest.fixture
def gym():
    return pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install bestpolicy[gym]")


@pytest.fixture
def toys(gym):
    from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv, TaxiEnv

    return {
        "lake": FrozenLakeEnv(map_name="4x4", is_slippery=True),
        "cliff": CliffWalkingEnv(),
        "slippery cliff": CliffWalkingEnv(is_slippery=True),
        "taxi": TaxiEnv(),
    }


def table_step(env, state: int, action: int):
    """One step of the environment itself from a given state."""
    env.s = state
    return env.step(action)[:3]


def mean_steps(env) -> tuple[np.ndarray, np.ndarray]:
    """Mean rewards (n, A), and probabilities (n, A, n) of going on in each state."""
    states, actions = env.observation_space.n, env.action_space.n
    rewards, onward = np.zeros((states, actions)), np.zeros((states, actions, states))
    for s, a in np.ndindex(states, actions):
        for p, following, r, terminated in env.P[s][a]:
            rewards[s, a] += p * r
            onward[s, a, following] += p * (not terminated)
    return rewards, onward


def value_iteration(env, horizon: int | None = None) -> np.ndarray:
    """Optimal values in the environment's own states and units: an episode is worth nothing once it has ended."""
    rewards, onward = mean_steps(env)
    values, stages = np.zeros(len(rewards)), []
    for _ in range(horizon or 300):  # 0.9³⁰⁰ < 1e-13
        values = (rewards + (1.0 if horizon else GAMMA) * (onward @ values)).max(axis=1)
        stages.append(values)
    return np.array(stages[::-1]) if horizon else values


def visited(env) -> set[int]:
    """States in which an episode can take a decision, found by a depth-first search."""
    found = set(np.flatnonzero(env.initial_state_distrib).tolist())
    waiting = list(found)
    while waiting:
        for outcomes in env.P[waiting.pop()].values():
            for p, following, _, terminated in outcomes:
                if p > 0 and not terminated and following not in found:
                    found.add(int(following))
                    waiting.append(int(following))
    return found


def normalised_values(model: GymSimulator) -> np.ndarray:
    """Optimal values of the simulator's problem, from 10⁷ samples of each pair (exact if deterministic)."""
    problem = model.problem
    tally = model.sample(
        bp.Pulls(problem.pairs, np.full((problem.stages, len(problem.pairs)), 10**7)), np.random.default_rng(0)
    )
    means, rows = tally.reward_sums[0] / 1e7, tally.next_counts[0] / 1e7
    values = np.zeros(problem.states)
    q_values = np.full(problem.mask.shape, -np.inf)
    for _ in range(500):
        q_values.reshape(-1)[problem.pairs] = means + problem.discount * (rows @ values)
        values = q_values.max(axis=1)
    return values


@pytest.mark.parametrize("name", ["lake", "cliff", "slippery cliff"])
def test_values_are_those_of_the_environment(toys, name):
    env = toys[name]
    model = GymSimulator(env, discount=GAMMA)
    live = sorted(visited(env))
    assert model.env_values(model.truth().values)[live] == pytest.approx(value_iteration(env)[live], abs=1e-9)


def test_values_of_taxi_are_those_of_the_environment(toys):
    model = GymSimulator(toys["taxi"], discount=GAMMA)
    live = sorted(visited(toys["taxi"]))
    assert len(live) == 400
    assert model.problem.dimension == 2401
    assert (model.units.reward_offset, model.units.reward_scale) == (-10.0, 30.0)
    expected = value_iteration(toys["taxi"])[live]
    assert model.env_values(normalised_values(model))[live] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["lake", "slippery cliff"])
def test_values_with_a_horizon_are_those_of_the_environment(toys, name):
    env = toys[name]
    model = GymSimulator(env, horizon=8)
    live = sorted(visited(env))
    found = model.env_values(model.truth().values)
    assert found.shape == (8, env.observation_space.n)
    assert found[:, live] == pytest.approx(value_iteration(env, horizon=8)[:, live], abs=1e-9)


def test_losses_scale_with_the_rewards(toys):
    model = GymSimulator(toys["slippery cliff"], discount=GAMMA)
    mdp, env = model.truth(), toys["slippery cliff"]
    policy = mdp.problem.mask.argmax(axis=1)
    rows = np.arange(48)
    transitions, rewards = np.zeros((48, 48)), np.zeros(48)
    for s in rows:
        for p, following, r, terminated in env.P[s][model.env_policy(policy)[s]]:
            rewards[s] += p * r
            transitions[s, following] += p * (not terminated)
    live = sorted(visited(env))
    own = np.linalg.solve(np.eye(48) - GAMMA * transitions, rewards)
    loss = (value_iteration(env) - own)[live].max()
    assert model.units.reward_scale * mdp.loss(policy) == pytest.approx(loss)
    assert model.env_values(mdp.policy_values(policy))[live] == pytest.approx(own[live])


@pytest.mark.parametrize("name", ["lake", "slippery cliff", "taxi"])
def test_samples_are_distributed_as_steps_are(toys, name):
    env = toys[name]
    model = GymSimulator(env, discount=GAMMA)
    check_generative_model(model)
    env.reset(seed=1)
    end, draws = len(model.states), 1500
    for pair in model.problem.pairs[:: max(1, len(model.problem.pairs) // 12)]:
        state, action = model.problem.pair(pair)
        if state not in visited(env):
            continue
        tally = model.sample(bp.Pulls([pair], [[10**6]]), np.random.default_rng(0))
        shares = tally.next_counts[0, 0] / 1e6
        counts, rewards = np.zeros(end + 1), np.zeros(end + 1)
        for _ in range(draws):
            following, reward, terminated = table_step(env, state, action)
            arrival = end if terminated else following
            counts[arrival] += 1
            rewards[arrival] += (reward - model.units.reward_offset) / model.units.reward_scale
        seen = shares > 0
        assert (counts[~seen] == 0).all()
        assert seen.sum() == 1 or chisquare(counts[seen], draws * shares[seen]).pvalue > 1e-4
        mean = tally.next_rewards[0, 0][seen] / tally.next_counts[0, 0][seen]
        assert mean == pytest.approx(rewards[seen] / counts[seen], abs=0.06)


def test_two_rewards_on_the_way_to_one_state_are_both_seen(toys):
    """From the start of the slippery cliff walk, a step may end there again with -100 or with -1."""
    model = GymSimulator(toys["slippery cliff"], discount=GAMMA)
    tally = model.sample(bp.Pulls([36 * 4 + 1], [[30000]]), np.random.default_rng(0))
    assert tally.next_counts[0, 0, 36] == pytest.approx(20000, abs=500)
    fallen, stayed = 0.0, 0.99
    assert tally.next_rewards[0, 0, 36] / tally.next_counts[0, 0, 36] == pytest.approx((fallen + stayed) / 2, abs=0.02)
    assert tally.squared_rewards[0, 0] == pytest.approx(2 * 10000 * 0.99**2, rel=0.05)


@pytest.mark.parametrize(
    ("name", "live", "over", "zero"),
    [("lake", 11, [5, 7, 11, 12, 15], 0.0), ("cliff", 37, range(37, 48), 1.0), ("taxi", 400, [0, 85, 410, 475], 1 / 3)],
)
def test_the_end_of_an_episode(toys, name, live, over, zero):
    model = GymSimulator(toys[name], discount=GAMMA)
    problem, end = model.problem, len(model.states)
    assert problem.states == end + 1
    assert (problem.mask.sum(axis=1) > 1).sum() == live
    assert (problem.distinct.sum(axis=1) == 1)[[*over, end]].all()  # one action: no tie that never resolves
    for state in (*over, end):
        assert np.array_equal(problem.features[state, 0], problem.features[end, 0])
        tally = model.sample(bp.Pulls([state * problem.actions], [[50]]), np.random.default_rng(0))
        assert tally.next_counts[0, 0, end] == 50  # also where the table says that one may go on
        assert tally.reward_sums[0, 0] == pytest.approx(50 * zero)
    assert model.env_policy(problem.mask.argmax(axis=1)).shape == (end,)


def test_states_out_of_reach_can_be_asked_for(toys):
    model = GymSimulator(toys["cliff"], discount=GAMMA, everywhere=True)
    several = model.problem.mask.sum(axis=1) > 1
    assert several[:47].all()
    assert not several[47:].any()  # the goal is still the end
    assert model.problem.dimension == 47 * 4 + 1


class Ring:
    """A table without end, reward -3 to 5; action 1 is missing in state 0."""

    initial_state_distrib = (1.0, 0.0, 0.0)

    def __init__(self, gym):
        self.observation_space, self.action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
        self.unwrapped = self
        self.P = {
            0: {0: [(1.0, 1, -3.0, False)]},
            1: {0: [(0.5, 2, 5.0, False), (0.5, 2, 0.0, False)], 1: [(1.0, 0, 1.0, False)]},
            2: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 0.0, False)]},
        }


def test_a_task_without_end_gets_none(gym):
    model = GymSimulator(Ring(gym), discount=0.5)
    assert model.problem.states == 3
    assert model.problem.mask.tolist() == [[True, False], [True, True], [True, True]]
    assert model.problem.dimension == 5
    assert (model.units.reward_offset, model.units.reward_scale) == (-3.0, 8.0)
    assert model.env_policy([0, 1, 0]).tolist() == [0, 1, 0]
    check_generative_model(model)
    ring = Ring(gym)
    ring.P[2][0] = [(0.7, 0, 0.0, False)]
    with pytest.raises(bp.InvalidInput, match=r"\(2, 0\): probabilities sum to 0.7"):
        GymSimulator(ring, discount=0.5)
    ring.P[2][0] = [(1.0, 9, 0.0, False)]
    with pytest.raises(bp.InvalidInput, match=r"\(2, 0\): next state 9"):
        GymSimulator(ring, discount=0.5)
    ring.P[2] = {}
    with pytest.raises(bp.InvalidInput, match="no action is allowed in state 2"):
        GymSimulator(ring, discount=0.5)
    with pytest.raises(bp.InvalidInput, match=r"pair \(state 1, action 0\): reward 5 is outside"):
        GymSimulator(Ring(gym), discount=0.5, reward_range=(-3, 4))


def test_a_mask_is_kept(toys):
    env = toys["taxi"]
    mask = np.array([env.action_mask(state) for state in range(500)], dtype=bool)
    mask[~mask.any(axis=1), 0] = True
    model = GymSimulator(env, discount=GAMMA, mask=mask)
    live = sorted(visited(env))
    assert np.array_equal(model.problem.mask[live], mask[live])
    assert model.problem.dimension == mask[live].sum() + 1
    with pytest.raises(bp.InvalidInput, match="mask must have shape"):
        GymSimulator(env, discount=GAMMA, mask=mask[:5])


def set_lake(env, state):
    env.unwrapped.s = state


def test_any_environment_whose_state_can_be_set(gym):
    env = gym.make("FrozenLake-v1")
    model = GymSimulator(
        env, discount=GAMMA, set_state=set_lake, reward_range=(0, 1), terminal_states=[5, 7, 11, 12, 15]
    )
    check_generative_model(model, samples=30)
    exact = GymSimulator(env, discount=GAMMA)
    assert np.array_equal(model.problem.features, exact.problem.features)
    assert np.array_equal(model.problem.mask, exact.problem.mask)
    pulls = bp.Pulls([14 * 4 + 2], [[3000]])
    stepped = model.sample(pulls, np.random.default_rng(3)).next_counts[0, 0]
    assert stepped.nonzero()[0].tolist() == [10, 14, 16]
    assert chisquare(stepped[stepped > 0]).pvalue > 1e-4
    other = model.sample(pulls, np.random.default_rng(4)).next_counts[0, 0]
    assert not np.array_equal(stepped, other)


def test_without_the_terminal_states_the_end_is_still_found(gym):
    model = GymSimulator(gym.make("FrozenLake-v1"), horizon=3, set_state=set_lake, reward_range=(0, 1))
    check_generative_model(model, samples=8)
    assert model.problem.dimension == 65


def test_a_reward_out_of_range_names_the_pair_and_keeps_the_rest(gym):
    model = GymSimulator(gym.make("FrozenLake-v1"), discount=GAMMA, set_state=set_lake, reward_range=(0, 0.5))
    with pytest.raises(bp.SimulatorError, match=r"pair \(state 14, action 2\).*reward 1 is outside") as caught:
        model.sample(bp.Pulls([0, 14 * 4 + 2], [[7, 100]]), np.random.default_rng(0))
    assert caught.value.partial.pulls[0, 0] == 7


def walk(gym):
    """A functional environment on the tuples (0,), …, (4,): a random walk that ends at 4 with reward 2."""
    from gymnasium.experimental.functional import FuncEnv

    class Walk(FuncEnv):
        observation_space = gym.spaces.Box(0, 4)
        action_space = gym.spaces.Discrete(2, start=1)

        def transition(self, state, action, rng, params=None):
            return (max(0, state[0] + (1 if rng.random() < 0.2 + 0.3 * action else -1)),)

        def reward(self, state, action, next_state, rng, params=None):
            return 2.0 if next_state[0] == 4 else -0.5

        def terminal(self, state, rng, params=None):
            return state[0] == 4

    return Walk()


def test_a_functional_environment(gym):
    states = [(i,) for i in range(5)]
    model = GymSimulator(walk(gym), discount=0.8, states=states, reward_range=(-0.5, 2))
    assert model.actions == [1, 2]
    assert model.problem.mask.sum(axis=1).tolist() == [2, 2, 2, 2, 1, 1]
    check_generative_model(model, samples=40)
    tally = model.sample(bp.Pulls([3 * 2 + 1], [[2000]]), np.random.default_rng(0))
    assert tally.next_counts[0, 0, 5] == pytest.approx(1600, abs=90)
    assert tally.next_rewards[0, 0, 5] == tally.next_counts[0, 0, 5]
    assert tally.next_rewards[0, 0, 2] == 0
    result = bp.identify(model, epsilon=3.0, delta=0.1, algorithm="gss", seed=0, max_samples=10**5)
    assert set(result.policy) <= {1, 2}  # the environment's own actions


def test_a_policy_of_a_functional_environment_is_certified(gym):
    model = GymSimulator(walk(gym), discount=0.5, states=[(i,) for i in range(5)], reward_range=(-0.5, 2))
    result = bp.identify(model, epsilon=0.8, delta=0.1, algorithm="tight", seed=0)
    assert result.certified
    up = {1: 0.5, 2: 0.8}  # by hand: a step up from state 3 ends the walk with reward 2, any other costs 0.5

    def backup(values, state, action):
        ahead = 2.0 if state == 3 else -0.5 + 0.5 * values[state + 1]
        return up[action] * ahead + (1 - up[action]) * (-0.5 + 0.5 * values[max(0, state - 1)])

    best, own = np.zeros(4), np.zeros(4)
    for _ in range(60):
        best = np.array([max(backup(best, s, a) for a in up) for s in range(4)])
        own = np.array([backup(own, s, result.policy[s]) for s in range(4)])
    assert (best - own).max() <= result.epsilon <= 0.8


def test_a_functional_environment_with_its_own_randomness(gym):
    seen = []

    def convert(rng):
        seen.append(int(rng.integers(2**31)))
        return np.random.default_rng(seen[-1])

    model = GymSimulator(
        walk(gym), discount=0.8, states=[(i,) for i in range(5)], reward_range=(-1, 2), convert_rng=convert
    )
    seen.clear()
    model.sample(bp.Pulls([0], [[20]]), np.random.default_rng(0))
    assert len(set(seen)) == len(seen) == 60  # transition, reward and end have a stream each


def test_clusters_and_own_features(toys):
    env = toys["lake"]
    clusters = np.arange(16) // 4
    model = GymSimulator(env, discount=GAMMA, features=clusters)
    features = model.problem.features
    assert model.problem.dimension == 4 * 4 + 1
    assert np.array_equal(features[0], features[1])
    assert np.array_equal(features[5, 0], features[16, 0])  # a hole belongs to the end, not to its row
    assert not np.array_equal(features[5, 0], features[4, 0])
    report = bp_diagnostics(model)
    assert not report.passed  # rows of the lake do not behave alike

    whole = np.random.default_rng(0).normal(size=(16, 4, 7))
    array, function = (GymSimulator(env, discount=GAMMA, features=given) for given in (whole, lambda s, a: whole[s, a]))
    assert array.problem.dimension == 8
    assert np.array_equal(array.problem.pair_features, function.problem.pair_features)
    assert np.array_equal(array.problem.features[1, 2, :7], whole[1, 2])
    with pytest.raises(bp.InvalidInput, match="one-hot"):
        array.truth()


def bp_diagnostics(model):
    from bestpolicy.diagnostics import check_linearity, sample_for_diagnostics

    return check_linearity(model.problem, sample_for_diagnostics(model, 10**5, np.random.default_rng(0)))


def test_one_hot_features_pass_the_diagnostics(toys):
    assert bp_diagnostics(GymSimulator(toys["lake"], discount=GAMMA)).passed


def test_a_table_travels_without_its_environment(gym):
    model = GymSimulator("FrozenLake-v1", discount=GAMMA)
    twin = copy.deepcopy(model)
    pulls = bp.Pulls([0, 5], [[100, 100]])
    a, b = (m.sample(pulls, np.random.default_rng(0)) for m in (model, twin))
    assert np.array_equal(a.next_counts, b.next_counts)
    problem = "Problem(17 states (6 of them ends), 4 actions, d=45, discount 0.9)"
    assert repr(model) == f"GymSimulator({problem}, reward = 0 + 1·normalised)"


def test_a_table_draws_millions_in_no_time(toys):
    model = GymSimulator(toys["taxi"], discount=GAMMA)
    pulls = bp.Pulls(model.problem.pairs, np.full((1, len(model.problem.pairs)), 10**8))
    assert model.sample(pulls, np.random.default_rng(0)).samples == 10**8 * len(model.problem.pairs)


def brute_force_loss(table, policy, discount: float) -> float:
    """Largest loss of a policy in any state of a table in which actions may be missing and nothing ends."""
    best, own = np.zeros(len(table)), np.zeros(len(table))
    for _ in range(100):
        q_values = [
            {a: sum(p * (r + discount * values[t]) for p, t, r, _ in outcomes) for a, outcomes in row.items()}
            for values in (best, own)
            for row in table.values()
        ]
        best = np.array([max(row.values()) for row in q_values[: len(table)]])
        own = np.array([row[a] for row, a in zip(q_values[len(table) :], policy, strict=True)])
    return float((best - own).max())


def test_states_that_behave_alike_share_their_samples(gym):
    """A task in which every state has a twin that leads where it leads: half the dimension, one policy for both."""
    ring = Ring(gym)
    ring.observation_space = gym.spaces.Discrete(6)
    ring.initial_state_distrib = [1 / 6] * 6
    ring.P |= {s + 3: {a: list(outcomes) for a, outcomes in ring.P[s].items()} for s in range(3)}
    model = GymSimulator(ring, discount=0.5, features=[0, 1, 2, 0, 1, 2])
    assert model.problem.dimension == 5
    result = bp.identify(model, epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
    assert result.certified
    assert np.array_equal(result.policy[:3], result.policy[3:])
    assert brute_force_loss(ring.P, result.policy, 0.5) <= 0.5


def test_labels_say_what_the_numbers_mean(gym, toys):
    import json

    lake = GymSimulator(gym.make("FrozenLake-v1"), discount=GAMMA).units.to_dict()
    assert lake["environment"] == "FrozenLake-v1"
    assert lake["states"] == [*range(16), "the end"]
    assert lake["actions"] == [0, 1, 2, 3]
    assert GymSimulator(toys["cliff"], discount=GAMMA).units.reward_scale == 100
    states = [(np.int64(i),) for i in range(5)]
    walked = GymSimulator(walk(gym), discount=0.8, states=states, reward_range=(-0.5, 2)).units.to_dict()
    assert json.loads(json.dumps(walked)) == {
        "environment": "Walk",
        "states": [[0], [1], [2], [3], [4], "the end"],
        "actions": [1, 2],
        "reward_offset": -0.5,
        "reward_scale": 2.5,
        "reward_bias": 0.0,
        "own_states": 5,
    }
    assert "the end" not in GymSimulator(Ring(gym), discount=0.5).units.states


def whole_table(outcome):
    return {s: {a: [outcome] for a in range(2)} for s in range(3)}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "no action is allowed in state 0"),
        (5, r"P\[state\]\[action\]. Got int"),
        (np.ones((3, 2, 3)) / 3, r"entry \(state, action\) = \(0, 0\): expected a list of"),
        (whole_table((1.0, 0, 1.0)), "expected a list of"),
        (whole_table(("x", 0, 1.0, False)), "expected a list of"),
        (whole_table((1.0, 0, None, False)), "expected a list of"),
        (whole_table((1.0, 0, float("inf"), False)), "reward inf"),
        (whole_table((float("nan"), 0, 1.0, False)), "sum to nan"),
        ({**whole_table((1.0, 0, 0.0, False)), 1: {0: [(1.5, 0, 0.0, False), (-0.5, 1, 0.0, False)]}}, "include -0.5"),
        ({0: {0: [(1.0, 1, -1e308, False)]}, 1: {0: [(1.0, 2, 1e308, False)]}, 2: {0: [(1.0, 0, 0, False)]}}, "span"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(gym, table, message):
    ring = Ring(gym)
    ring.P = table
    with pytest.raises(bp.InvalidInput, match=message):
        GymSimulator(ring, discount=0.5)


def test_rewards_on_the_way_out_count_and_those_beyond_do_not(gym):
    """Leaving pays 7 or 3; what the table says of the state that was left to does not matter."""
    ring = Ring(gym)
    ring.P = {
        0: {0: [(1.0, 1, 0.0, False)], 1: [(1.0, 2, 7.0, True)]},
        1: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 2, 3.0, True)]},
        2: {0: [(1.0, 2, 99.0, True)], 1: [(1.0, 0, -99.0, False)]},
    }
    model = GymSimulator(ring, discount=0.9)
    assert (model.units.reward_offset, model.units.reward_scale) == (0.0, 7.0)
    assert model.env_values(model.truth().values)[:2] == pytest.approx([7.0, 6.3])


def test_what_would_be_ignored_or_misread_is_refused(gym, toys):
    lake = toys["lake"]
    wrong = {
        "env must be a Gymnasium environment": {"env": type(lake)},
        "Gymnasium cannot make 'NoSuchLake-v1'": {"env": "NoSuchLake-v1"},
        "terminal_states= goes with set_state=": {"terminal_states": [5]},
        "terminal_states must be a list": {"terminal_states": 5},
        "convert_rng= is for functional": {"convert_rng": lambda rng: rng},
        "set_state must be a function": {"set_state": 5},
        "mask must hold only True and False": {"mask": np.full((16, 4), 0.5)},
        "two finite numbers": {"reward_range": (0, 1, 2)},
        "states must be a list": {"states": 16},
        "states must be a list of numbers": {"states": [{1}, {2}]},
        "an array of numbers": {"features": [[1], [1, 2]]},
        r"vector of numbers, but not so for 0, 0 \(ZeroDivisionError": {"features": lambda s, a: 1 / 0},
        "Without discounting, give a horizon": {"discount": 1},
    }
    for message, options in wrong.items():
        with pytest.raises(bp.InvalidInput, match=message):
            GymSimulator(**{"env": lake, "discount": GAMMA} | options)
    nowhere = type(lake)()
    nowhere.initial_state_distrib = np.zeros(16)
    with pytest.raises(bp.InvalidInput, match="initial_state_distrib must give each of the 16 states"):
        GymSimulator(nowhere, discount=GAMMA)


def test_observations_that_are_dictionaries(gym):
    class Switch(gym.Env):
        """Observations {"on": 0 or 1}; action 1 flips the switch, being on pays 1."""

        observation_space = gym.spaces.Dict({"on": gym.spaces.Discrete(2)})
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.on = 0
            return {"on": 0}, {}

        def step(self, action):
            self.on ^= int(action)
            return {"on": np.int64(self.on)}, float(self.on), False, False, {}

    def set_switch(env, state):
        env.on = state["on"]

    states = [{"on": 0}, {"on": 1}]
    model = GymSimulator(Switch(), discount=0.5, states=states, set_state=set_switch, reward_range=(0, 1))
    check_generative_model(model, samples=20)
    result = bp.identify(model, epsilon=0.5, delta=0.1, algorithm="tight", seed=0)
    assert result.certified
    assert result.policy.tolist() == [1, 0]


def test_what_cannot_work_is_refused_with_a_remedy(gym, toys):
    cart = gym.make("CartPole-v1")
    with pytest.raises(bp.InvalidInput, match=r"no transition table.*set_state="):
        GymSimulator(cart, discount=GAMMA)
    with pytest.raises(bp.InvalidInput, match=r"observation_space is Box.*states="):
        GymSimulator(cart, discount=GAMMA, set_state=set_lake, reward_range=(0, 1))
    lake = toys["lake"]
    with pytest.raises(bp.InvalidInput, match=r"reward_range=.* is needed"):
        GymSimulator(lake, discount=GAMMA, set_state=set_lake)
    for limits in ((1, 0), (0, float("inf")), (0, float("nan"))):
        with pytest.raises(bp.InvalidInput, match="low < high"):
            GymSimulator(lake, discount=GAMMA, set_state=set_lake, reward_range=limits)
    with pytest.raises(bp.InvalidInput, match="either discount or horizon"):
        GymSimulator(lake)
    with pytest.raises(bp.InvalidInput, match="terminal state 99"):
        GymSimulator(lake, discount=GAMMA, set_state=set_lake, reward_range=(0, 1), terminal_states=[99])
    with pytest.raises(bp.InvalidInput, match="list each one once"):
        GymSimulator(lake, discount=GAMMA, states=[0, 0])
    for features, message in (("onehot", "one-hot"), (np.ones((3, 4, 2)), "clusters of the 16 states")):
        with pytest.raises(bp.InvalidInput, match=message):
            GymSimulator(lake, discount=GAMMA, features=features)
    with pytest.raises(bp.InvalidInput, match="equal length"):
        GymSimulator(lake, discount=GAMMA, features=lambda s, a: np.ones(1 + s % 2))


def test_wrappers_that_the_table_does_not_know_are_refused(gym, toys):
    doubled = gym.wrappers.TransformReward(gym.make("FrozenLake-v1"), lambda r: 2 * r)
    with pytest.raises(bp.InvalidInput, match="TransformReward"):
        GymSimulator(doubled, discount=GAMMA)
    sampled = GymSimulator(doubled, discount=GAMMA, set_state=set_lake, reward_range=(0, 2))
    tally = sampled.sample(bp.Pulls([14 * 4 + 2], [[50]]), np.random.default_rng(0))
    assert tally.next_rewards[0, 0, 16] == tally.next_counts[0, 0, 16] > 0
    fickle = type(toys["taxi"])(fickle_passenger=True)
    with pytest.raises(bp.InvalidInput, match="fickle"):
        GymSimulator(fickle, discount=GAMMA)


def test_an_unknown_next_state_is_an_error(gym):
    model = GymSimulator(walk(gym), discount=0.8, states=[(0,), (1,)], reward_range=(-1, 2))
    with pytest.raises(bp.SimulatorError, match=r"pair \(state 1, action 0\).*next state \(2,\) is not one of the 2"):
        model.sample(bp.Pulls([2], [[100]]), np.random.default_rng(0))


def loss_in_play(env, policy, discount: float) -> float:
    """Largest loss of a policy in a state where an episode can be, by plain value iteration on the table."""
    rewards, onward = mean_steps(env)
    states = len(rewards)
    best, own = np.zeros(states), np.zeros(states)
    for _ in range(int(np.log(1e-9) / np.log(discount))):
        best = (rewards + discount * (onward @ best)).max(axis=1)
        own = (rewards + discount * (onward @ own))[np.arange(states), policy]
    live = sorted(visited(env))
    return float((best - own)[live].max())


@pytest.mark.parametrize(
    ("name", "algorithm", "discount", "epsilon"),
    [
        ("lake", "gss", 0.9, 0.05),
        ("cliff", "gss", 0.9, 5.0),
        ("cliff", "sharp", 0.99, 0.7),
        pytest.param("taxi", "gss", 0.9, 3.0, marks=pytest.mark.study),
        pytest.param("taxi", "sharp", 0.99, 0.8, marks=pytest.mark.study),
    ],
)
def test_a_policy_is_certified_in_the_units_of_the_environment(toys, name, algorithm, discount, epsilon):
    env = toys[name]
    result = bp.identify(GymSimulator(env, discount=discount), epsilon=epsilon, delta=0.1, algorithm=algorithm, seed=0)
    assert_within(result, env, discount, epsilon)


@pytest.mark.parametrize(("example", "algorithm", "epsilon"), [("frozen_lake", "sharp", 0.05), ("taxi", "gss", 3.0)])
def test_the_policies_of_the_examples_are_as_good_as_they_say(example, algorithm, epsilon):
    found = run_example(example)[0]
    assert (found["result"].algorithm, found["result"].asked_epsilon) == (algorithm, epsilon)
    assert_within(found["result"], found["env"].unwrapped, found["model"].problem.discount, epsilon)


def assert_within(result, env, discount: float, epsilon: float) -> None:
    assert result.certified
    assert result.epsilon <= epsilon
    assert result.policy.shape == (env.observation_space.n,)
    assert loss_in_play(env, result.policy, discount) <= epsilon
    assert loss_in_play(env, np.full(env.observation_space.n, 3), discount) > epsilon  # it is not for nothing


def test_epsilon_is_in_the_units_of_the_environment(toys):
    """The cliff's rewards span 100: asking for 10 asks for 0.1 of the normalised problem."""
    model = GymSimulator(toys["cliff"], discount=0.3)
    assert model.units.reward_scale == 100
    result = bp.identify(model, epsilon=10.0, delta=0.1, algorithm="gss", seed=0, max_samples=10**5)
    study = bp.Study(model.problem, epsilon=0.1, delta=0.1, algorithm="gss", seed=0, max_samples=10**5)
    plain = bp.drive(study, bp.ExactSimulator(model.truth()))
    assert result.threshold == plain.threshold
    assert result.gap == pytest.approx(100 * study.checks[-1].gap, abs=5)
    assert result.asked_epsilon == 10.0


def test_without_gymnasium_there_is_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(bp.InvalidInput, match=r"pip install bestpolicy\[gym\]"):
        GymSimulator(object(), discount=0.9)


def test_a_certificate_names_the_states_and_actions_of_the_environment(gym, tmp_path):
    simulator = bp.GymSimulator(gym.make("FrozenLake-v1"), discount=0.5)
    result = bp.identify(simulator, epsilon=0.3, delta=0.1, algorithm="gss", seed=0, store=tmp_path / "run.db")
    result.save(tmp_path / "certificate.json")
    labels = json.loads((tmp_path / "certificate.json").read_text())["problem"]["labels"]
    assert labels["states"] == [*range(16), "the end"]
    assert labels["actions"] == [0, 1, 2, 3]
    assert bp.Study.resume(tmp_path / "run.db").units.states == labels["states"]


def test_a_policy_has_the_same_shape_from_identify_and_from_resume(gym, tmp_path):
    model = GymSimulator(gym.make("FrozenLake-v1"), discount=0.8)
    result = bp.identify(model, epsilon=3.0, delta=0.1, algorithm="gss", seed=0, store=tmp_path / "run.db")
    assert result.policy.shape == (16,)
    np.testing.assert_array_equal(bp.Study.resume(tmp_path / "run.db").result().policy, result.policy)
