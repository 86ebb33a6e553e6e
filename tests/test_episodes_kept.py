"""Episodes on other processes, killed and interrupted: the same answer to the last bit, one episode lost at most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import Forward, MDPNaS
from bestpolicy.problem.names import key_of
from bestpolicy.samples import Episodes
from bestpolicy.simulators import calls as calls_module
from bestpolicy.simulators.calls import Calls, recording
from tests.corridors import LIMITED, Corridor, Counted, Deadly, make, pool

ROOT = Path(__file__).parent.parent


def numbers(result):
    return result.samples, result.epsilon, result.policy.tolist(), [check.statistic for check in result.checks]


@pytest.fixture(scope="module")
def straight():
    return bp.identify(make(), **LIMITED)


@pytest.fixture
def at_once(monkeypatch):
    """Everything is on record as soon as it is answered."""
    monkeypatch.setattr(calls_module, "_PAUSE", 0.0)
    monkeypatch.setattr(calls_module, "_SHARE", 0)


# --- interruptions


class Interrupted(Corridor):
    """Somebody presses Ctrl-C at its so-manyth step."""

    stop_at, taken, begun = -1, 0, 0

    def reset(self, *, seed=None, options=None):
        Interrupted.begun += 1
        return super().reset(seed=seed)

    def step(self, action):
        Interrupted.taken += 1
        if Interrupted.taken == Interrupted.stop_at:
            raise KeyboardInterrupt
        return super().step(action)


def until_it_ends(again, clock, spread=400):
    """Interrupt a run again and again; return its result and how often that was."""
    draw, stops = np.random.default_rng(5), 0
    clock.taken = clock.begun = 0
    while True:
        clock.stop_at = clock.taken + int(draw.integers(1, spread))
        result = again()
        if result.outcome != "interrupted":
            clock.stop_at = -1
            return result, stops
        stops += 1


def named(place):
    return [("left", place), np.array([place, 7])][place % 2]


@pytest.mark.parametrize("numbered", [False, True])
def test_interruptions_cost_an_episode_each_and_change_nothing(tmp_path, at_once, numbered):
    """The simulator is a new one each time, and may have to learn from the record how observations are numbered."""
    how = {"epsilon": 0.1, "delta": 0.1, "seed": 1, "max_samples": 4000, "store": tmp_path / "run.db"}

    def fresh():
        return make(Interrupted(named) if numbered else Interrupted(), states=7 if numbered else None)

    result, stops = until_it_ends(lambda: bp.identify(fresh(), **how), Interrupted)
    assert stops >= 4
    assert Interrupted.begun <= result.samples / 5 + stops
    assert numbers(result) == numbers(bp.identify(fresh(), **how | {"store": None}))
    assert [path.name for path in tmp_path.iterdir() if "calls" in path.name] == []


class Clock:
    stop_at, taken, begun = -1, 0, 0


def step(state, action, rng):
    Clock.taken += 1
    reward = 0.3 * rng.random() + 0.1 * float(rng.integers(3, dtype=np.uint32)) + 0.4 * (action == state)
    if Clock.taken == Clock.stop_at:
        raise KeyboardInterrupt
    return reward, int(rng.integers(2))


@pytest.mark.parametrize(
    ("time", "algorithm"), [({"horizon": 3}, Forward(check_ratio=1.5)), ({"discount": 0.5}, MDPNaS(check_ratio=3.0))]
)
def test_where_steps_begin_anywhere_interruptions_cost_a_call_each(tmp_path, at_once, time, algorithm):
    model = bp.CallableSimulator(bp.Problem.tabular(2, 2, **time), step)
    how = {"epsilon": 0.3, "delta": 0.1, "seed": 1, "start": 0 if "horizon" in time else None}
    how |= {"algorithm": algorithm, "max_samples": 1200}
    result, stops = until_it_ends(lambda: bp.identify(model, **how, store=tmp_path / "run.db"), Clock, 250)
    assert stops >= 4
    assert Clock.taken == result.samples + stops
    assert numbers(result) == numbers(bp.identify(model, **how))


def test_a_damaged_record_of_episodes_costs_its_episodes_alone(tmp_path, at_once):
    model = make(Interrupted(named), states=7)
    episodes = Episodes(np.zeros((5, 8), int), 30)
    whole = make(Interrupted(named), states=7).rollout(episodes, np.random.default_rng(0))
    Interrupted.stop_at = Interrupted.taken + 70
    with pytest.raises(KeyboardInterrupt), recording(Calls(str(tmp_path / "record"))):
        model.rollout(episodes, np.random.default_rng(0))
    content, needed = (tmp_path / "record").read_bytes(), []
    for damaged in (content, content[:-1] + bytes([content[-1] ^ 1]), content[: len(content) // 2], b""):
        (tmp_path / "record").write_bytes(damaged)
        fresh, begun = make(Interrupted(named), states=7), Interrupted.begun
        with recording(Calls(str(tmp_path / "record"))):
            again = fresh.rollout(episodes, np.random.default_rng(0))
        np.testing.assert_array_equal(whole.next_counts, again.next_counts)
        np.testing.assert_array_equal(whole.next_rewards, again.next_rewards)
        assert list(map(key_of, fresh.states)) == list(map(key_of, model.states))
        needed.append(Interrupted.begun - begun)
    assert needed[1] == needed[0] + 1
    assert 0 < needed[0] < needed[2] < needed[3] == 30


class Breaks(Corridor):
    """A step fails where a new observation has just been seen."""

    def step(self, action):
        if self.place == 2:
            raise RuntimeError("the motor is hot")
        return super().step(action)


def test_numbers_of_observations_survive_a_failure(tmp_path):
    how = {"epsilon": 0.5, "delta": 0.1, "seed": 4, "max_samples": 3000, "store": tmp_path / "run.db"}
    first = make(Breaks(named), states=7)
    with pytest.raises(bp.SimulatorError, match="the motor is hot"):
        bp.identify(first, **how)
    other = make(Corridor(named), states=7)
    bp.identify(other, **how)
    assert list(map(key_of, other.states))[: len(first.states)] == list(map(key_of, first.states))


# --- other processes


def lines(path):
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize(("method", "workers"), [("fork", 1), ("fork", 2), ("fork", 4), ("spawn", 2)])
def test_a_killed_worker_costs_its_episode(straight, tmp_path, method, workers):
    """The others of a pool end with it."""
    model = make(partial(Deadly, str(tmp_path)))
    result = bp.identify(model, **LIMITED, store=tmp_path / "run.db", executor=pool(method, workers))
    assert numbers(result) == numbers(straight)
    assert (tmp_path / "killed").exists()
    assert lines(tmp_path / "begun") <= result.samples / 5 + workers
    assert not list(tmp_path.glob("*calls*"))


def test_a_killed_parent_costs_an_episode_a_worker(straight, tmp_path):
    begun, kills = tmp_path / "begun", 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "tests.corridors", str(tmp_path)]
    for wanted in (30, 90):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while lines(begun) < wanted and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    result = bp.identify(make(partial(Counted, tmp_path)), **LIMITED, store=tmp_path / "run.db")
    assert kills
    assert numbers(result) == numbers(straight)
    assert lines(begun) <= result.samples / 5 + 2 * kills
