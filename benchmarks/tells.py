"""Ask and tell: what a study costs per answer, in memory and with a store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

import bestpolicy as bp
from benchmarks.timing import CLOCK, best_of, line, one_thread, timed
from bestpolicy.algorithms import GSS, Request
from bestpolicy.stopping import Check
from bestpolicy.study.store import Store

CALLS, PER_QUERY, CALL_SECONDS = 1000, 20, 1e-3


@dataclass(frozen=True)
class Fidgety(GSS):
    """An algorithm that asks a few samples at a time and looks at nothing, so that only the study costs."""

    name: ClassVar[str] = "fidgety"
    requests: int = 10_000
    pulls: int = 1

    def run(self, task):  # type: ignore[no-untyped-def]
        """Ask the same few samples of four pairs again and again."""
        problem = task.problem
        pulls = bp.Pulls(problem.pairs[:4], np.full((problem.stages, 4), self.pulls))
        for _ in range(self.requests):
            yield Request(pulls)
        policy = np.zeros((problem.stages, problem.states), np.int64)
        return Check(1, 1, policy, 0.0, 1.0, False, np.inf, 0.0, "none")


@contextmanager
def clocked(clock: Callable[[], float], kind: type, *names: str) -> Iterator[list[float]]:
    """Add up the time that is spent in some methods of a class."""
    spent = [0.0]
    originals = {name: getattr(kind, name) for name in names}

    def timed(original):  # type: ignore[no-untyped-def]
        def method(*arguments, **named):  # type: ignore[no-untyped-def]
            started = clock()
            try:
                return original(*arguments, **named)
            finally:
                spent[0] += clock() - started

        return method

    for name, original in originals.items():
        setattr(kind, name, timed(original))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(kind, name, original)


def main() -> None:
    """Time tells into memory, whole requests with the exact simulator, and the share of the store in a slow run."""
    mdp = bp.instances.load("riverswim")
    problem, simulator = mdp.problem, bp.ExactSimulator(mdp)
    count = 500  # short: a repetition that nothing interrupts is what is looked for
    seconds, _ = best_of(25, lambda: tell_into_memory(problem, simulator, count))
    timed(f"{count} tells of small tallies into memory", seconds, count * 1e-4, f"{count / seconds:.3g} tells/s")
    with one_thread():
        own = min(driving_seconds(problem, simulator, count) for _ in range(25))
    more = f"{own / count * 1e6:.3g} µs a request"
    timed(f"{count} requests driven, sampling apart", own, count * 1e-4, more)
    seconds, share = min((slow_run(problem) for _ in range(3)), key=lambda run: run[1])
    what = f"{CALLS} calls of 1 ms, {PER_QUERY} to a query, with a store"
    line(what, seconds, "store ≤ 5 %", share <= 0.05, f"{share:.2%} in the store")


def tell_into_memory(problem: bp.Problem, simulator: bp.ExactSimulator, count: int) -> None:
    """Tell a study the same small tally again and again."""
    pulls = bp.Pulls(problem.pairs[:4], np.ones((1, 4), np.int64))
    tally = simulator.sample(pulls, np.random.default_rng(0))
    study = bp.Study(problem, epsilon=0.1, delta=0.1, seed=0, algorithm=Fidgety(requests=count), linearity=0)
    while not study.done:
        for query in study.ask():
            study.tell(query, bp.Tally(tally.pairs, tally.next_counts, tally.next_rewards, tally.squared_rewards))


def driving_seconds(problem: bp.Problem, simulator: bp.ExactSimulator, count: int) -> float:
    """Return the processor time of a driven run without that of the simulator."""
    study = bp.Study(problem, epsilon=0.1, delta=0.1, seed=0, algorithm=Fidgety(requests=count), linearity=0)
    started = CLOCK()
    with clocked(CLOCK, bp.ExactSimulator, "sample") as simulating:
        bp.drive(study, simulator)
    return CLOCK() - started - simulating[0]


def slow_run(problem: bp.Problem) -> tuple[float, float]:
    """Return the seconds of a run with a slow simulator and a store, and the share of the store in them."""

    def slow(states, actions, rng):  # type: ignore[no-untyped-def]
        time.sleep(len(states) * CALL_SECONDS)
        return np.zeros(len(states)), np.zeros(len(states), np.int64)

    with tempfile.TemporaryDirectory() as folder, clocked(time.perf_counter, Store, "append") as storing:
        study = bp.Study(
            problem,
            epsilon=0.1,
            delta=0.1,
            seed=0,
            algorithm=Fidgety(requests=CALLS // PER_QUERY, pulls=PER_QUERY // 4),
            store=Path(folder) / "run.db",
            linearity=0,
        )
        started = time.perf_counter()
        bp.drive(study, bp.CallableSimulator(problem, slow, vectorized=True))
        seconds = time.perf_counter() - started
    return seconds, storing[0] / seconds


if __name__ == "__main__":
    main()
