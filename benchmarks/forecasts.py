"""Do runs end within the range that was forecast? ``python -m benchmarks.forecasts [--seeds N] [--first-seed N]``.

Built-in instances, certified by `sharp` (tables and features), `adaptive`, `tight` and `forward`. A line says, for runs
of which 10, 30 and 60 % were over, how many ended within the range of simulator calls that the progress line showed
then, and in brackets the median of its upper end over its lower end; ∞ if the range had no upper end. Runs of fewer
than ten looks at the 10 % mark have none there, and are left out of that column. Missed if less than 80 % of all ranges
with an upper end hold.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from math import inf
from statistics import median

import bestpolicy as bp
from benchmarks import timing
from bestpolicy.study.forecast import Outlook

MARKS = (0.1, 0.3, 0.6)
WANTED = 0.8
TABLES = ("riverswim", "grid", "riverswim-episodic")
FEATURES = ("simplex", "universal", "inventory-episodic")
CASES = {
    "sharp, tables": ("sharp", TABLES),
    "sharp, features": ("sharp", FEATURES),
    "adaptive": ("adaptive", ("riverswim", "two-state", "simplex", "universal")),
    "tight": ("tight", ("riverswim", "two-state", "simplex", "queue-episodic")),
    "forward": ("forward", ("riverswim-episodic", "simplex-episodic", "queue-episodic")),
}
SHARES = (0.05, 0.15)  # of the largest value: ε
DELTA = 0.1


@dataclass
class Line:
    """Ranges of one algorithm: the factor between their ends, and whether the run ended within."""

    within: dict[float, list[bool]] = field(default_factory=lambda: {mark: [] for mark in MARKS})
    widths: dict[float, list[float]] = field(default_factory=lambda: {mark: [] for mark in MARKS})

    def add(self, seen: list[tuple[int, Outlook]], samples: int) -> None:
        """Take a run that is over."""
        for mark in MARKS:
            stated = [ahead for calls, ahead in seen if calls <= mark * samples]
            if stated:
                self.within[mark].append(stated[-1].low <= samples <= stated[-1].high)
                self.widths[mark].append(stated[-1].high / stated[-1].low if stated[-1].high < inf else inf)


def run(algorithm: str, name: str, share: float, seed: int, line: Line) -> None:
    """Certify a policy, and compare its end with what was said on the way."""
    mdp, seen = bp.instances.load(name), list[tuple[int, Outlook]]()
    result = bp.identify(
        bp.ExactSimulator(mdp),
        epsilon=share * float(mdp.problem.value_limits[0]),
        delta=DELTA,
        algorithm=algorithm,
        start=0 if algorithm == "forward" else None,
        seed=seed,
        progress=lambda study: seen.append((study.samples, study.outlook())),
    )
    line.add(seen, result.samples)


def main(seeds: int = 1, first: int = 100) -> None:
    """Print a line for each algorithm, and one for all."""
    print(f"{'':18} {'runs':>4}  " + "  ".join(f"{f'at {mark:.0%}':>16}" for mark in MARKS))
    every = Line()
    for label, (algorithm, names) in CASES.items():
        line = Line()
        for name in names:
            for share in SHARES:
                for seed in range(first, first + seeds):
                    run(algorithm, name, share, seed, line)
        for mark in MARKS:
            every.within[mark] += line.within[mark]
            every.widths[mark] += line.widths[mark]
        print(_text(label, line), flush=True)
    print(_text("all", every))
    bounded = [
        held
        for mark in MARKS
        for held, width in zip(every.within[mark], every.widths[mark], strict=True)
        if width < inf
    ]
    held = sum(bounded) / len(bounded)
    print(f"{held:.0%} of {len(bounded)} ranges with an upper end hold; {WANTED:.0%} are wanted.")
    if held < WANTED:
        timing.missed.append(f"forecasts: {held:.0%} within the range")


def _text(label: str, line: Line) -> str:
    columns = []
    for mark in MARKS:
        held, width = line.within[mark], median(line.widths[mark]) if line.widths[mark] else inf
        shown = f"{width:.1f}" if width < inf else "∞"
        columns.append(f"{f'{sum(held)}/{len(held)} ({shown})':>16}")
    return f"{label:18} {max(map(len, line.within.values())):>4}  " + "  ".join(columns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=100)
    given = parser.parse_args()
    main(given.seeds, given.first_seed)
    sys.exit(bool(timing.missed))
