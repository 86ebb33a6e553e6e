"""How time and memory grow with S, A and d, end to end; each size in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bestpolicy as bp
from benchmarks.timing import CLOCK, line, one_thread_each, timed

SIZES = ((1000, 10, 20), (10_000, 10, 20), (100_000, 10, 20), (10_000, 40, 20), (10_000, 10, 40))


def run_size(states: int, actions: int, dimension: int) -> None:
    """Build a model, certify a policy, print seconds of processor time, samples and peak memory in MB."""
    started = CLOCK()
    mdp = bp.instances.simplex(states=states, actions=actions, dimension=dimension, seed=0, discount=0.9)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.05, seed=0)
    seconds = CLOCK() - started
    assert result.certified
    assert mdp.is_near_optimal(result.policy, 0.5)
    print(seconds, result.samples, peak_megabytes())


def peak_megabytes() -> float:
    """Largest memory of this process (the kernel's VmHWM: getrusage would count the parent's as well)."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith("VmHWM"):
            return int(entry.split()[1]) / 1024
    return float("nan")


def main() -> None:
    """Time every size."""
    for size in SIZES:
        command = [sys.executable, "-m", "benchmarks.growth", *map(str, size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread_each())
        seconds, samples, peak = map(float, done.stdout.split())
        states, actions, dimension = size
        what = f"model, design and gss: S={states} A={actions} d={dimension}"
        more = f"{samples:.2g} samples, peak {peak:.0f} MB"
        if size == (10_000, 10, 20):
            timed(what, seconds, 20.0, more)
        elif size == (100_000, 10, 20):
            line(what, seconds, "≤ 2048 MB", peak <= 2048, more)
        else:
            line(what, seconds, more=more)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_size(*map(int, sys.argv[1:]))
    else:
        main()
