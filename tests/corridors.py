"""A corridor that can only be reset and stepped, and what may happen in it; by itself a run of it on two processes."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

import bestpolicy as bp
from bestpolicy.simulators import calls

gymnasium = pytest.importorskip("gymnasium")

LIMITED = {"epsilon": 0.2, "delta": 0.1, "seed": 1, "max_samples": 1000, "calls_per_query": 50}


class Corridor(gymnasium.Env):
    """Walk from 0 to 3; each step goes on with probability 0.8 if action 1 is played, and 3 pays 1 and ends it."""

    def __init__(self, observe=lambda place: place, reward=1.0, fail=None):
        self.observation_space = gymnasium.spaces.Discrete(4)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.observe, self.reward, self.fail = observe, reward, fail
        self.seeds, self.steps = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.place = int(self.np_random.integers(2))
        return self.observe(self.place), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fail:
            raise RuntimeError("the motor is hot")
        self.place = min(self.place + int(action == 1 and self.np_random.random() < 0.8), 3)
        return self.observe(self.place), self.reward * (self.place == 3), self.place == 3, False, {}


class Lift(gymnasium.Env):
    """(floor, whether somebody calls) from a random floor; to arrive at a call from the top pays 1. It never ends."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)])
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.floor, self.call = int(self.np_random.integers(3)), 0
        return (self.floor, self.call), {}

    def step(self, action):
        self.floor = min(max(self.floor + action - 1, 0), 2)
        paid = self.call * (self.floor == 2)
        self.call = 0 if paid else max(self.call, int(self.np_random.random() < 0.5))
        return (self.floor, self.call), float(paid), False, False, {}


class Counted(Corridor):
    """Puts every episode that begins, and every one that ends, into a file; each is on record as soon as it is over."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)
        calls._PAUSE, calls._SHARE = 0.0, 0

    def write(self, name):
        with open(self.folder / name, "ab", buffering=0) as file:
            file.write(b".")

    def reset(self, *, seed=None, options=None):
        self.write("begun")
        return super().reset(seed=seed)


class Deadly(Counted):
    """Kills the process that it is in once, in the midst of an episode."""

    def step(self, action):
        if self.steps == 13:
            try:
                (self.folder / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def make(env=None, **options):
    return bp.ResetSimulator(env or Corridor(), **{"horizon": 5, "reward_range": (0, 1), "return_limit": 1} | options)


lift = bp.ResetSimulator(Lift, horizon=4, reward_range=(0, 1), stationary=True)


def pool(method, workers):
    return partial(ProcessPoolExecutor, workers, get_context(method))


if __name__ == "__main__":
    where = sys.argv[1]
    result = bp.identify(make(partial(Counted, where)), **LIMITED, store=f"{where}/run.db", executor=pool("fork", 2))
    print(result.to_dict())
