"""Time of a look at the data by `tight` and by `adaptive`, in seconds of processor time.

A look costs the same whatever the number of samples; it grows with the states, the actions and the dimension. Limits:
0.05 s with 50 states, 4 actions and d = 10, and 2 s with 5,000 states, 5 actions and d = 20, for every look of a run;
for the median of the first looks 0.2 s with d = 100, 1 s with 10,000 states and d = 30, and 10 s and 2 GB with d = 500.
"""

from __future__ import annotations

import resource

import numpy as np

import bestpolicy as bp
from benchmarks.timing import CLOCK, missed, one_thread, timed
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.tight import Tight

SIZES = (((50, 4, 10), 0.05, 5), ((5000, 5, 20), 2.0, 1))  # with limit and repetitions
LARGE = (((200, 3, 100), 0.2, 12), ((10_000, 2, 30), 1.0, 8), ((1000, 3, 500), 10.0, 3))  # with limit and looks
MEMORY = 2.0  # GB
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


if __name__ == "__main__":
    main()
