"""Time of a look at the data by `tight`, by `adaptive` and by `sharp`, in seconds of processor time.

A look costs the same whatever the number of samples; it grows with the states, the actions and the dimension. Limits:
0.05 s with 50 states, 4 actions and d = 10, and 2 s with 5,000 states, 5 actions and d = 20, for every look of a run;
for the median of the first looks 0.2 s with d = 100, 1 s with 10,000 states and d = 30, and 10 s and 2 GB with d = 500.

Looks of `sharp` take longer from its first lag on, so its runs are whole ones or nearly so, with an ε at which lags
begin and end, and with ε = 0; a look is all that happens from the answer to a request to the next request. The same
limits hold for the median of the looks with a lag; the worst one is printed, and which theorem the lags are of. Each
run is in a process of its own, whose memory is that of `sharp` alone:
``python -m benchmarks.checks FAMILY S A d ε LOOKS``.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from unittest.mock import patch

import numpy as np

import bestpolicy as bp
from benchmarks.timing import CLOCK, missed, one_thread, one_thread_each, timed
from bestpolicy.algorithms import sharp_dense
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.tight import Tight
from bestpolicy.stopping.dense.theorem_i import Lag
from bestpolicy.stopping.evidence import Evidence

SIZES = (((50, 4, 10), 0.05, 5), ((5000, 5, 20), 2.0, 1))  # with limit and repetitions
LARGE = (((200, 3, 100), 0.2, 12), ((10_000, 2, 30), 1.0, 8), ((1000, 3, 500), 10.0, 3))  # with limit and looks
MEMORY = 2.0  # GB
# Of `sharp`: sizes with limit, and ε with the number of looks at most
SHARP = (
    ((200, 3, 100), 0.2, ((0.5, 90), (0.0, 60))),
    ((10_000, 2, 30), 1.0, ((0.5, 70), (0.0, 40))),
    ((1000, 3, 500), 10.0, ((2.0, 60),)),
)
FAMILIES = {"simplex": bp.instances.simplex, "ball": bp.instances.ball}


def look_times(mdp: bp.LinearMDP, algorithm: Tight, most: int = 10_000) -> list[float]:
    """Processor time of the first looks of a run."""
    simulator, found = bp.ExactSimulator(mdp), []
    study = bp.Study(mdp.problem, epsilon=0.1, delta=0.05, algorithm=algorithm, seed=0, linearity=0)
    while not study.done and len(found) < most:
        for query in study.ask():
            tally = simulator.sample(query.pulls, query.rng())
            begin = CLOCK()
            study.tell(query, tally)
            found.append(CLOCK() - begin)
    return found


def sharp_run(mdp: bp.LinearMDP, epsilon: float, most: int) -> tuple[list[float], list[str]]:
    """Processor time of each look of `sharp`, and the theorem of the last lag at each, if there is one."""
    simulator, times, theorems, begun = bp.ExactSimulator(mdp), list[float](), list[str](), [""]

    class Noted(sharp_dense.Running):
        def __init__(self, lag: Lag, nothing: Evidence) -> None:
            begun.append(lag.theorem)
            super().__init__(lag, nothing)

    study = bp.Study(mdp.problem, epsilon=epsilon, delta=0.05, algorithm="sharp", seed=0, linearity=0)
    queries = study.ask()
    with patch.object(sharp_dense, "Running", Noted):
        while not study.done and len(times) < most:
            *others, last = queries
            for query in others:
                study.tell(query, simulator.sample(query.pulls, query.rng()))
            tally = simulator.sample(last.pulls, last.rng())
            begin = CLOCK()
            study.tell(last, tally)
            queries = [] if study.done else study.ask()
            times.append(CLOCK() - begin)
            theorems.append(begun[-1])
    return times, theorems


def measure_sharp(family: str, states: int, actions: int, dimension: int, epsilon: float, most: int) -> None:
    """Print what `sharp_problems` asks a process of its own for."""
    mdp = FAMILIES[family](states=states, actions=actions, dimension=dimension, seed=1, discount=0.9)
    with one_thread():
        times, theorems = sharp_run(mdp, epsilon, most)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(memory, *(f"{seconds}:{theorem}" for seconds, theorem in zip(times, theorems, strict=True)))


def sharp_problems() -> None:
    """Print the median and the worst look of runs of `sharp` with lags, and the memory of the largest problem."""
    for size, most, runs in SHARP:
        for name in FAMILIES:
            for epsilon, looks in runs:
                command = [sys.executable, "-m", "benchmarks.checks", name, *map(str, (*size, epsilon, looks))]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread_each())
                memory, *found = done.stdout.split()
                parts = [each.split(":") for each in found]
                states, _, dimension = size
                for theorem in ("I", "UD"):
                    times = [float(seconds) for seconds, which in parts if which == theorem]
                    if times:
                        what = f"median look of sharp ({theorem}), {name} S={states} d={dimension} ε={epsilon:g}"
                        more = f"worst {max(times):.3f} s of {len(times)}, {float(memory):.2f} GB"
                        fits = dimension < 500 or float(memory) < MEMORY
                        timed(what, float(np.median(times)), most, more, fits)


def small_problems() -> None:
    """Print the worst time of a look of whole runs."""
    for (states, actions, dimension), most, repeats in SIZES:
        for name, family in FAMILIES.items():
            mdp = family(states=states, actions=actions, dimension=dimension, seed=1, discount=0.9)
            with one_thread():  # runs are the same, look by look
                times = np.min([look_times(mdp, Tight(check_ratio=1.6)) for _ in range(repeats)], axis=0)
            what = f"worst look of tight, {name} S={states} A={actions} d={dimension}"
            more = f"median {np.median(times):.4f} s of {len(times)}"
            timed(what, max(times), most, more)


def large_problems() -> None:
    """Print the median time of the first looks, and the memory of all of it."""
    for (states, actions, dimension), most, looks in LARGE:
        for name, family in FAMILIES.items():
            mdp = family(states=states, actions=actions, dimension=dimension, seed=1, discount=0.9)
            for algorithm in (Tight(check_ratio=1.6), Adaptive(check_ratio=1.6)):
                with one_thread():
                    times = look_times(mdp, algorithm, looks)
                what = f"median look of {algorithm.name}, {name} S={states} A={actions} d={dimension}"
                timed(what, float(np.median(times)), most, f"worst {max(times):.3f} s of {len(times)}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"memory of all of these: {memory:.2f} GB, limit {MEMORY:g} GB {'ok' if memory < MEMORY else 'MISSED'}")
    if memory >= MEMORY:
        missed.append("memory of looks")


def main() -> None:
    """Print the times of looks on each model."""
    small_problems()
    large_problems()
    sharp_problems()


if __name__ == "__main__":
    if len(sys.argv) == 7:
        family, *sizes, asked, number = sys.argv[1:]
        measure_sharp(family, *map(int, sizes), float(asked), int(number))
    else:
        main()
