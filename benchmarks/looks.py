"""How the time and memory of a look of `sharp` grow with the number of pairs: the picture of docs/explanation/sharp.md.

``python -m benchmarks.looks [FILE.svg]`` draws Garnets with four actions and five successors (γ = 0.9), each in a
process of its own: a past of 400 and a look of 2,000 samples of every pair. Printed and drawn are processor seconds of
the first look of a lag, which computes what all its looks share, of the next one and of a rehearsal; and the memory
that looks take beyond what was there before. Limits are 0.1 s at 500 pairs, 1 s at 5,000, 30 s at 50,000, and four
times the samples plus 2 S² numbers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.growth import peak_megabytes
from benchmarks.sparse import garnet
from benchmarks.timing import CLOCK, one_thread_each
from bestpolicy.algorithms.table_past import Past
from bestpolicy.algorithms.table_planner import Planner
from bestpolicy.stopping.tables.lag import PLANNED, SHARES
from bestpolicy.stopping.tables.look import look

PAIRS = (120, 500, 1600, 4000, 5000, 16_000, 50_000)
LIMITS = {500: 0.1, 5000: 1.0, 50_000: 30.0}
PICTURE = Path(__file__).parent.parent / "docs" / "explanation" / "look-growth.svg"
_NUMBERS = 4  # arrays of each entry of a tally


def measure(pairs: int) -> None:
    """Print seconds of looks and of a rehearsal, megabytes, and what the limit of megabytes is."""
    for size in (40, pairs):  # what the first look of a process loads is no matter of its size
        problem, rng = garnet(size // 4, 4, 0.9), np.random.default_rng(0)
        past = problem.sample(np.full(problem.table.pairs, 400), rng)
        epsilon, rest = 0.05 * problem.largest(), 1 - sum(SHARES.values())
        planner = Planner(Past.of(problem.table, past), epsilon, 0.0325, np.array([0.05, rest - 0.05]))
        counts, template = np.full(problem.table.pairs, 2000.0), np.zeros(problem.table.chain.size)
        lag = planner.lag(counts, template, planner.from_the_past(template))
        fresh = problem.sample(PLANNED * lag.unit, rng)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
        before, seconds = peak_megabytes(), []
        for _ in range(2):
            began = CLOCK()
            look(problem.table, lag, fresh, PLANNED)
            seconds.append(CLOCK() - began)
        peak = peak_megabytes() - before
    began = CLOCK()
    planner.rehearse(counts, template, rng, planner.from_the_past(template))
    seconds.append(CLOCK() - began)
    states = problem.table.states
    print(*seconds, peak, 8 * (4 * _NUMBERS * len(fresh.pair) + 2 * states**2) / 2**20)


def main(arguments: list[str] | None = None) -> None:
    """Measure all sizes, print a table and draw it."""
    from matplotlib.figure import Figure

    rows = []
    print(f"{'pairs':>7} {'first look':>10} {'next':>8} {'limit':>6} {'rehearsal':>9} {'MB':>7} {'limit MB':>8}")
    for pairs in PAIRS:
        command = [sys.executable, "-m", "benchmarks.looks", f"--pairs={pairs}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread_each())
        first, following, rehearsal, peak, most = map(float, done.stdout.split())
        rows.append((pairs, first, following, rehearsal, peak, most))
        limit = f"{LIMITS[pairs]:g}" if pairs in LIMITS else ""
        print(
            f"{pairs:7} {first:10.3f} {following:8.3f} {limit:>6} {rehearsal:9.3f} {peak:7.1f} {most:8.1f}", flush=True
        )
    sizes, first_, next_, rehearsals, peaks, limits = np.array(rows).T
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(sizes, first_, "o-", label="first look of a lag")
    left.loglog(sizes, next_, "s-", label="next look")
    left.loglog(sizes, rehearsals, "^:", label="rehearsal")
    left.loglog(list(LIMITS), list(LIMITS.values()), "k_", markersize=14, label="limit")
    left.set_ylabel("processor seconds")
    right.loglog(sizes, np.maximum(peaks, 0.1), "o-", label="first look of a lag")
    right.loglog(sizes, limits, "k--", label="4 × samples + 2 S² numbers")
    right.set_ylabel("megabytes")
    for axes in (left, right):
        axes.set_xlabel("pairs")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(Path(arguments[0]) if arguments else PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("--pairs="):
        measure(int(sys.argv[1].removeprefix("--pairs=")))
    else:
        main(sys.argv[1:])
