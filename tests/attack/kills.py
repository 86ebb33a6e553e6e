"""Kills: a run that is ended with SIGKILL again and again, and goes on each time as on another processor.

The processes that run are forked from ones in which OpenBLAS has chosen the code of an older processor
(`tests.kernels`); one after the other resumes the same file. What comes out in the end must be what an uninterrupted
run gives here.
"""

from __future__ import annotations

import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bestpolicy as bp
from tests import kernels
from tests.attack.sandbox import Found, attempt
from tests.models import near_tie, random_mdp

MODELS = {"near tie": near_tie(0.3), "episodic": random_mdp(2, states=3, actions=2, dimension=3, horizon=2)}
_RUNS = (  # model, algorithm, ε
    ("near tie", bp.algorithms.GSS(check_ratio=1.01, sampling="random"), 0.3),
    ("near tie", bp.algorithms.Tight(check_ratio=1.02), 0.1),
    ("near tie", bp.algorithms.Adaptive(check_ratio=1.02), 0.1),
    ("episodic", bp.algorithms.Adaptive(check_ratio=1.02), 0.1),
)
KILLS_A_RUN = 10

# In the process of one machine: forks a child that begins or resumes the run, and kills it after a while.
_SCRIPT = """
import os, signal, sys, time
from tests.attack.kills import go_on
folder, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    try:
        go_on(folder, number, lambda: os.write(tell, b"x"))
    finally:
        os._exit(0)
os.close(tell)
os.read(ready, 1)  # or it has ended
os.close(ready)
time.sleep(seconds)
os.kill(child, signal.SIGKILL)
print(os.waitpid(child, 0)[1] == signal.SIGKILL)
"""


def asked(number: int) -> dict[str, Any]:
    """What a run asks for."""
    _model, algorithm, epsilon = _RUNS[number % len(_RUNS)]
    return {"epsilon": epsilon, "delta": 0.1, "algorithm": algorithm, "seed": number, "calls_per_query": 5000}


def go_on(folder: str, number: int, ready: Any = lambda: None) -> bp.Result:
    """Begin a run, or go on with it, until its end or that of the process."""
    path, mdp = os.path.join(folder, f"{number}.db"), MODELS[_RUNS[number % len(_RUNS)][0]]
    try:
        study = bp.Study.resume(path)
    except bp.InvalidInput:  # there is no study yet
        study = bp.Study(mdp.problem, **asked(number), store=path)
    ready()
    return bp.drive(study, bp.ExactSimulator(mdp))


def differences(here: bp.Result, there: bp.Result) -> str:
    """Say in what two results differ; numbers may do so in their last digits."""
    for name in ("samples", "outcome", "certified", "rule", "rounds", "seed", "warnings"):
        if getattr(here, name) != getattr(there, name):
            return f"{name} is {getattr(there, name)!r}, not {getattr(here, name)!r}"
    if not np.array_equal(here.policy, there.policy):
        return "the policies differ"
    if [check.samples for check in here.checks] != [check.samples for check in there.checks]:
        return "the looks differ"
    for name in ("epsilon", "statistic", "threshold", "gap"):
        if not np.isclose(getattr(here, name), getattr(there, name), rtol=1e-9, atol=1e-12):
            return f"{name} is {getattr(there, name)!r}, not {getattr(here, name)!r}"
    return ""


def attack(count: int, seed: int = 0) -> Found:
    """Kill runs `count` times in all, a few times each."""
    found, chance = Found("kills"), random.Random(seed)
    machines = list(kernels.other_machines().items())
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-(-count // KILLS_A_RUN)):
            mdp = MODELS[_RUNS[number % len(_RUNS)][0]]
            expected = bp.identify(bp.ExactSimulator(mdp), **asked(number))
            kills = min(KILLS_A_RUN, count - KILLS_A_RUN * number)
            for _ in range(kills):
                name, environment = chance.choice(machines)
                seconds = str(chance.random() * 0.6 * expected.seconds / kills)
                killed = kernels.outputs(_SCRIPT, folder, str(number), seconds, machines={name: environment})
                found.tried += killed[name].strip() == "True"  # else it had ended
            wrong = attempt(partial(_ended, folder, number, expected))
            if wrong:
                found.failures.append(f"python -m tests.attack kills --seed {seed} (run {number})  # {wrong}")
    return found


def _ended(folder: str, number: int, expected: bp.Result) -> str:
    assert Path(folder, f"{number}.db").exists()
    return differences(expected, go_on(folder, number))
