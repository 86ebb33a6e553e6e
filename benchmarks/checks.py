"""Time of one look at the data by `tight`, in seconds of processor time.

A look costs the same whatever the number of samples; it grows with the states, the actions and the dimension. Limits:
0.05 s with 50 states, 4 actions and d = 10, and 2 s with 5,000 states, 5 actions and d = 20.
"""

from __future__ import annotations

import numpy as np

import bestpolicy as bp
from benchmarks.timing import CLOCK, one_thread, timed
from bestpolicy.algorithms.tight import Tight

SIZES = (((50, 4, 10), 0.05, 5), ((5000, 5, 20), 2.0, 1))  # with limit and repetitions
FAMILIES = {"simplex": bp.instances.simplex, "ball": bp.instances.ball}


def look_times(mdp: bp.LinearMDP) -> list[float]:
    """Processor time of every look of a run."""
    simulator, found = bp.ExactSimulator(mdp), []
    study = bp.Study(mdp.problem, epsilon=0.1, delta=0.05, algorithm=Tight(check_ratio=1.6), seed=0)
    while not study.done:
        for query in study.ask():
            tally = simulator.sample(query.pulls, query.rng())
            begin = CLOCK()
            study.tell(query, tally)
            found.append(CLOCK() - begin)
    return found


def main() -> None:
    """Print the worst time of a look on each model."""
    for (states, actions, dimension), most, repeats in SIZES:
        for name, family in FAMILIES.items():
            mdp = family(states=states, actions=actions, dimension=dimension, seed=1, discount=0.9)
            with one_thread():  # runs are the same, look by look
                times = np.min([look_times(mdp) for _ in range(repeats)], axis=0)
            what = f"worst look of tight, {name} S={states} A={actions} d={dimension}"
            more = f"median {np.median(times):.4f} s of {len(times)}"
            timed(what, max(times), most, more)


if __name__ == "__main__":
    main()
