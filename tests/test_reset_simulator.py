"""Environments that can only be reset and stepped: what is played, and one clear error for each that cannot be used."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.errors import InvalidInput, SimulatorError
from bestpolicy.samples import Episodes
from tests.corridors import Corridor, gymnasium, lift, make


def always(model, action=1):
    return np.where(model.problem.mask[:, action], action, 0)[None].repeat(model.problem.stages, axis=0)


def simulate(model, count=50, seed=0):
    episodes = Episodes(always(model), count)
    tally = model.rollout(episodes, np.random.default_rng(seed))
    episodes.check(model.problem, tally)
    return tally


def test_a_policy_is_certified_by_reset_and_step():
    model = make(stationary=True)
    result = bp.identify(model, epsilon=0.3, delta=0.1, seed=0)
    assert result.certified
    assert result.algorithm == "forward"
    assert result.where == "on average over the simulator's own starts"
    assert result.policy.shape == (5, 4)
    assert (result.policy[0, :2] == 1).all()
    assert "own starts" in str(result)


def test_a_candidate_that_was_named_too_early_does_not_stop_the_search():
    """What seemed good after a few episodes is named; what seems best later is too far from what is possible to be."""
    result = bp.identify(lift, epsilon=1.0, delta=0.1, seed=0, max_samples=20_000)
    assert result.certified
    assert result.samples < 5000
    assert result.policy.shape == (4, 6)


def test_the_certificate_says_that_it_is_about_the_simulators_own_starts(tmp_path):
    result = bp.identify(make(stationary=True), epsilon=0.5, delta=0.1, seed=0, store=tmp_path / "run.db")
    result.save(tmp_path / "policy.json")
    found = bp.verify(tmp_path / "policy.json", store=tmp_path / "run.db")
    assert found.valid, found.reasons
    assert found.where == "on average over the simulator's own starts"
    assert any("behaves alike at every step" in item for item in found.trusted)


def test_the_number_of_observations_is_taken_on_trust(tmp_path):
    result = bp.identify(make(states=6, stationary=True), epsilon=0.8, delta=0.1, seed=0, store=tmp_path / "run.db")
    result.save(tmp_path / "policy.json")
    found = bp.verify(tmp_path / "policy.json", store=tmp_path / "run.db")
    assert found.valid, found.reasons
    assert any("no more than 6 observations can occur, of which 3 did" in item for item in found.trusted)


def test_every_episode_has_a_seed_of_its_own():
    env = Corridor()
    model = make(env)
    first = simulate(model, 40, seed=1)
    assert None not in env.seeds
    assert len(set(env.seeds)) == 40  # with one seed all episodes would be the same
    assert 0 < first.returns < 40
    assert 0 < first.next_counts[0].sum(axis=0)[1] < 40  # not all alike
    again = simulate(model, 40, seed=1)
    np.testing.assert_array_equal(first.next_counts, again.next_counts)


def test_what_follows_the_end_is_filled_in_without_steps():
    env = Corridor()
    tally = simulate(make(env), 100)
    assert tally.samples == 500
    assert env.steps < 500
    assert tally.returns == tally.squared_returns <= 100


def test_rewards_below_zero_shift_the_end_as_well():
    model = make(Corridor(reward=-2.0), reward_range=(-2, 0), return_limit=None)
    tally = simulate(model)
    assert model.units.reward_range == (-2.0, 0.0)
    lost = 50 * 5 - tally.returns  # 1 a step, but for the reward at the end
    assert lost == pytest.approx(50, abs=20)


def test_observations_are_numbered_as_they_appear_and_kept(tmp_path):
    labels = {0: ("a", 1), 1: np.array([1, 2]), 2: {"x": 2}, 3: "three"}
    options = {"epsilon": 0.9, "delta": 0.2, "seed": 3, "max_samples": 3000}

    def fresh():
        return make(Corridor(observe=labels.get), states=6)

    model = fresh()
    whole = bp.identify(model, **options)
    assert len(model.states) == 3  # the last one is only seen when it is over
    path = tmp_path / "run.db"
    study = bp.Study(
        fresh().problem, epsilon=0.9, delta=0.2, seed=3, max_samples=3000, algorithm=_forward(), store=path
    )
    study.close()
    bp.drive(bp.Study.resume(path), fresh(), progress=lambda study: setattr(study, "stop_requested", True))
    resumed = bp.Study.resume(path)
    assert [name for name in resumed.units.states if name][:-1]
    again = bp.drive(resumed, fresh())
    assert again.samples == whole.samples
    assert again.epsilon == whole.epsilon
    with ThreadPoolExecutor(1) as executor, pytest.raises(InvalidInput, match="executor is not for"):
        bp.identify(fresh(), executor=executor, **options)


def _forward():
    from bestpolicy.algorithms import make_algorithm

    return make_algorithm("forward", make().parameters["forward"])


def test_spaces_that_can_be_listed_are_listed():
    spaces = gymnasium.spaces
    env = Corridor(observe=lambda place: (place // 2, np.array([place % 2, 0])))
    env.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])])
    model = make(env)
    assert model.problem.states == 13
    assert simulate(model).episodes == 50
    env.observation_space = spaces.MultiBinary(3)
    env.observe = lambda place: np.array([place >= 1, place >= 2, place >= 3], int)
    assert make(env).problem.states == 9
    assert simulate(make(env)).episodes == 50


def test_workers_make_their_own_environment():
    model = make("FrozenLake-v1", horizon=10)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(simulate(model, 5).next_counts, simulate(other, 5).next_counts)


# --- what cannot be used


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: make(Corridor(reward=2.0), return_limit=None), r"reward 2.0 is not in \[0, 1\]. Give reward_range"),
        (lambda: make(Corridor(observe=lambda place: {1, place}), states=9), "cannot be told from others.*Wrap"),
        (lambda: make(Corridor(observe=lambda place: place + 0.5), states=1), "more than 1 observations.*larger one"),
        (lambda: make(Corridor(observe=lambda place: place + 0.5)), "is not one of the 4 states. List all"),
        (lambda: make(Corridor(fail=7)), "the motor is hot"),
        (lambda: make(Corridor(), return_limit=0.5), "more than return_limit=0.5. Give a limit"),
        (lambda: make(gymnasium.wrappers.TimeLimit(Corridor(), 3)), "time limit of 3 steps is shorter.*horizon=3"),
    ],
)
def test_environments_that_cannot_be_used_say_so_and_what_to_do(model, what):
    with pytest.raises((SimulatorError, InvalidInput), match=what):
        bp.identify(model(), epsilon=0.1, delta=0.1, seed=0)


def test_a_limit_that_shows_only_when_it_is_felt():
    class Hidden(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, over, _, info = self.env.step(action)
            return observation, reward, over, True, info

    with pytest.raises(SimulatorError, match="cut the episode short after 1 steps"):
        simulate(make(Hidden(Corridor())))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"reward_range": None}, "reward_range"),
        ({"horizon": 0}, "horizon"),
        ({"env": lambda: 3}, "must be a Gymnasium environment"),
        ({"env": "NoSuchGame-v7"}, "cannot make"),
        ({"states": 0}, "states"),
        ({"actions": 7}, "actions"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, what):
    with pytest.raises(InvalidInput, match=what):
        make(**options)


def test_a_space_without_an_end_needs_a_number_of_states():
    env = Corridor()
    env.observation_space = gymnasium.spaces.Box(0, 1)
    with pytest.raises(InvalidInput, match="Give states="):
        make(env)
    with pytest.raises(InvalidInput, match="Leave it out"):
        make().rollout(Episodes(always(make()), 1, 0), np.random.default_rng(0))


# --- failures


def test_nothing_is_lost_and_an_episode_that_broke_off_counts(tmp_path):
    env = Corridor(fail=300)
    with pytest.raises(SimulatorError, match="the motor is hot") as caught:
        bp.identify(make(env), epsilon=0.3, delta=0.1, seed=0, store=tmp_path / "run.db")
    error = caught.value
    assert "step" in str(error)
    told = error.study.samples
    assert told > 200
    error.study.close()
    resumed = bp.Study.resume(tmp_path / "run.db")
    assert resumed.samples == told
    assert resumed.broken_episodes == 1
    result = bp.drive(resumed, make(env))
    assert result.certified
    assert result.broken_episodes == 1
    assert "1 episodes broke off" in str(result)
    assert not result.warnings  # it counts as a return of 0, so nothing is in doubt
    result.save(tmp_path / "policy.json")
    assert bp.verify(tmp_path / "policy.json", store=tmp_path / "run.db").valid
    assert bp.Study.resume(tmp_path / "run.db").result().broken_episodes == 1


def test_workers_tell_what_broke_off_and_go_on():
    with ThreadPoolExecutor(1) as executor:
        result = bp.identify(make(Corridor(fail=100)), epsilon=0.6, delta=0.1, seed=0, executor=executor)
    assert result.certified
    assert result.broken_episodes == 1
    assert not result.warnings


class Slow(Corridor):
    """Lets other threads go first at every step."""

    def step(self, action):
        time.sleep(1e-4)
        return super().step(action)


def _put(env, state):
    env.place = state


@pytest.mark.parametrize("kind", ["reset", "set"])
def test_threads_share_one_environment_without_disturbing_each_other(kind):
    if kind == "reset":
        model, start = make(Slow()), None
    else:
        model, start = bp.GymSimulator(Slow(), horizon=5, reward_range=(0, 1), set_state=_put), 0

    def answer(seed):
        return model.rollout(Episodes(always(model), 5, start), np.random.default_rng(seed))

    alone = [answer(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as executor:
        together = list(executor.map(answer, range(8)))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.next_counts, other.next_counts)


class Seldom(Corridor):
    """Breaks its promise once: in the so-manyth episode that arrives it pays more than was said."""

    def __init__(self, after, reward):
        super().__init__()
        self.left, self.much = after, reward

    def step(self, action):
        observation, reward, over, truncated, info = super().step(action)
        self.left -= over
        return observation, self.much if over and not self.left else reward, over, truncated, info


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"reward_range": (0, 3)}, "more than return_limit=1"),
        ({"return_limit": None}, r"reward 2.0 is not in \[0, 1\]"),
    ],
)
def test_a_promise_that_is_broken_ends_the_run_and_is_not_tried_again(workers, options, what):
    with ThreadPoolExecutor(1) as executor, pytest.raises(SimulatorError, match=what) as caught:
        bp.identify(
            make(Seldom(60, 2.0), **options), epsilon=0.4, delta=0.1, seed=0, executor=executor if workers else None
        )
    assert caught.value.final
    assert caught.value.study.samples > 100
    assert not caught.value.study.done


def test_a_broken_promise_of_single_steps_ends_the_run_as_well():
    steps = iter(range(10**9))
    problem = bp.Problem.tabular(2, 2, discount=0.5)
    model = bp.CallableSimulator(problem, lambda state, action, rng: (2.0 if next(steps) == 300 else 0.5, action))
    with ThreadPoolExecutor(1) as executor, pytest.raises(SimulatorError, match=r"2.0 is not in \[0, 1\]"):
        bp.identify(model, epsilon=0.4, delta=0.1, seed=0, executor=executor, algorithm="tight")


def test_a_limit_below_zero_is_refused_for_the_end_pays_nothing():
    with pytest.raises(InvalidInput, match="return_limit"):
        make(Corridor(reward=-2.0), reward_range=(-2, 0), return_limit=-1)
    assert simulate(make(Corridor(reward=-2.0), reward_range=(-2, 0), return_limit=0)).episodes == 50


class NoStart(Corridor):
    """Fails to begin, once."""

    def reset(self, *, seed=None, options=None):
        if len(self.seeds) == 30:
            self.seeds.append(None)
            raise RuntimeError("not now")
        return super().reset(seed=seed)


@pytest.mark.parametrize("workers", [False, True])
def test_a_failing_reset_casts_doubt(workers):
    """It is drawn again: if some beginnings fail, others are seen too often."""
    model, options = make(NoStart()), {"epsilon": 0.6, "delta": 0.1, "seed": 0}
    if workers:
        with ThreadPoolExecutor(1) as executor:
            result = bp.identify(model, executor=executor, **options)
    else:
        with pytest.raises(SimulatorError, match=r"could not begin.*not now") as caught:
            bp.identify(model, **options)
        result = bp.drive(caught.value.study, model)
    assert result.certified
    assert not result.broken_episodes
    assert len(result.warnings) == 1


# --- the end is known


def test_the_end_is_an_end_of_the_problem():
    model = make(Corridor(reward=-2.0), reward_range=(-2, 1), return_limit=None)
    assert model.problem.ends.tolist() == [4]
    assert model.problem.end_reward == pytest.approx(2 / 3)
    assert simulate(model, 20).next_rewards[:, -1, -1].sum() > 0


class Paying(Corridor):
    """The corridor without an end, so that rewards may be shifted: each step pays `low`, but for `high` at 3."""

    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, self.low + (self.high - self.low) * float(reward), False, truncated, info


def test_shifted_and_scaled_rewards_change_no_verdict(tmp_path):
    """An affine map of rewards, and of ε and the limit with it, changes nothing but the units."""
    found = []
    for low, high in ((0.0, 1.0), (-1.0, 1.0)):  # in steps, 0 to 5 become -5 to 5
        model = make(Paying(low, high), reward_range=(low, high), return_limit=5 * high, stationary=True)
        result = bp.identify(model, epsilon=1.5 * (high - low), delta=0.1, seed=0, store=tmp_path / f"{low}.db")
        result.save(tmp_path / f"{low}.json")
        verdict = bp.verify(tmp_path / f"{low}.json", store=tmp_path / f"{low}.db")
        assert verdict.valid, verdict.reasons
        found.append(result)
    one, other = found
    assert other.certified
    assert one.samples == other.samples
    assert other.epsilon == pytest.approx(2 * one.epsilon)
    np.testing.assert_array_equal(one.policy, other.policy)


def test_the_true_loss_at_a_random_start_is_that_of_the_start(tmp_path):
    model = bp.GymSimulator("FrozenLake-v1", horizon=2)  # too short to reach the goal, but from beside it
    result = bp.identify(model, epsilon=0.35, delta=0.1, seed=0, algorithm=_limited())
    result.save(tmp_path / "policy.json")
    truth = model.truth()
    everywhere = truth.loss(result.checks[-1].policy)
    assert everywhere > result.epsilon  # the claim is about the start alone
    found = bp.verify(tmp_path / "policy.json", truth)
    assert found.valid, found.reasons
    assert found.true_loss <= result.epsilon


def _limited():
    from bestpolicy.algorithms import make_algorithm

    return make_algorithm("forward", {"return_limits": 1.0, "stationary": True})
