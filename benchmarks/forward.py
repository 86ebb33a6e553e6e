"""Episodes of every algorithm that follows policies, beside what earlier prototypes needed.

δ = 0.1 throughout, episodes from state 0, rewards unknown unless "known r" says otherwise; "stationary" algorithms are
told that every step has the same law. A line has the mean over the runs [least, most], in episodes (steps of a walk),
the prototypes' mean of 50 runs, the factor between the two (with a star if it is beyond 1.5, or 2 for pedel and
rflin), the mean in transitions, the largest loss where the claim is, and anywhere. "no guarantee" marks algorithms
that promise nothing. The last lines say whether every factor is within its limit, and whether `forward` needs fewer
episodes than every competitor with a guarantee that knows no more, wherever ε ≤ 0.2 H. Options: ``python -m
benchmarks.forward [--runs N] [--minutes M] [--only TEXT] [--workers N] [--store FILE]``. All cells get their first run,
then all their second one, and so on; `--minutes` begins no round after that time (a run of `pedel` or `rflin` in every
fourth round only), and with `--store` the same command goes on later.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import fmean

import bestpolicy as bp
from bestpolicy import instances
from bestpolicy.algorithms import Algorithm, make_algorithm
from bestpolicy.bounds import lsvi_ucb_episodes, rflin_episodes
from bestpolicy.comparison import Trial

DELTA = 0.1
DEAR = ("pedel", "rflin")
MODELS: dict[str, Callable[[], bp.LinearMDP]] = {
    "two-5": lambda: instances.random_tabular(seed=3, horizon=5),
    "two-3": lambda: instances.random_tabular(seed=3, horizon=3),
    "rs5-5": lambda: instances.riverswim(states=5, horizon=5),
    "rs5-10": lambda: instances.riverswim(states=5, horizon=10),
    "rse": lambda: instances.load("riverswim-episodic"),
    "simplex10": lambda: instances.simplex(states=10, actions=3, dimension=4, seed=0, horizon=5),
    "universal": lambda: instances.load("universal-episodic"),
    "tiny": lambda: instances.simplex(states=3, actions=3, dimension=3, seed=0, horizon=2),
    "B11": lambda: instances.load("universal"),
    "B1": lambda: instances.load("two-state"),
}
STATIONARY = ("two-5", "two-3", "rs5-5", "rs5-10", "rse")
MIXTURES = {
    "universal": lambda: instances.universal_mixture(actions=2, seed=29, horizon=3),
    "B11": lambda: instances.universal_mixture(),
}

Place = tuple[str, float]
FIRST: tuple[Place, ...] = (
    ("two-5", 0.5),
    ("rs5-5", 0.5),
    ("rs5-10", 1.0),
    ("rse", 0.3),
    ("simplex10", 0.5),
    ("universal", 0.3),
)
SECOND: tuple[Place, ...] = (
    ("two-5", 0.1),
    ("two-5", 2.5),
    ("rs5-5", 2.5),
    ("rs5-10", 0.25),
    ("rse", 0.1),
    ("simplex10", 0.2),
    ("simplex10", 2.5),
)


def _means(*rows: tuple[tuple[Place, ...], tuple[float | None, ...]]) -> dict[Place, float]:
    """Return the prototypes' means by place."""
    pairs = (pair for places, means in rows for pair in zip(places, means, strict=True))
    return {place: mean for place, mean in pairs if mean is not None}


# fmt: off
REFERENCE: dict[str, dict[Place, float]] = {
    "forward": _means((FIRST, (1902, 1890, 3989, 6439, 6756, 4111)),
        (SECOND, (4.22e4, 197, 141, 2.22e4, 3.04e4, 6.33e4, 706))),
    "forward stationary": _means((FIRST, (784, 782, 868, 2353, None, None)),
        (SECOND, (1.51e4, None, None, 5507, 1.17e4, None, None))),
    "bpi-ucrl": _means((FIRST, (6080, 3557, 9531, 1.41e4, 5.08e4, 2.75e4)),
        (SECOND, (1.77e5, 189, 284, 7.12e4, 1.09e5, 3.12e5, 1857))),
    "bpi-ucrl known r": _means((FIRST, (40, 1598, 5779, 5097, 1754, 2028))),
    "ucfh": _means((FIRST, (2570, 3124, 2874, 8901, 1.5e5, 5.2e4)),
        (SECOND, (7.35e4, 91, 239, 2.28e4, 5.34e4, 7.32e5, 7992))),
    "ucfh known r": _means((FIRST, (13, 1561, 1694, 3281, 1.13e4, 4142))),
    "bpi-ucbvi": _means((FIRST, (3.16e6, 8.49e6, 1.05e8, 3.48e7, 1.05e8, 1.18e7))),
    "bpi-ucbvi derived": _means((FIRST, (1.97e6, 6.12e6, 6.13e7, 2.09e7, 6.09e7, 7.1e6))),
    "lsvi-ucb": _means((FIRST, (1.01e8, 5.83e8, 4.41e9, 3.53e9, 1.72e8, 4.54e7))),
    "lsvi-ucb states": _means((FIRST, (1.93e7, 6.6e7, 4.9e8, 4.1e8, 7.35e7, 1.75e7))),
    "lsvi-ucb c=1": _means((FIRST, (6.9e6, 5.13e7, 4.09e8, 2.99e8, 1.15e7, 2.9e6))),
    "lsvi-ucb c=.1": _means((FIRST, (5.38e4, 4.23e5, 3.45e6, 2.3e6, 9.35e4, 2.23e4))),
    "ucrl-vtr": {("universal", 0.3): 7.1e4},
    "ucrl-vtr known r": {("universal", 0.3): 6128},
    "rflin": _means((FIRST, (2.38e6, 4.55e6, 6.28e7, 3.48e7, 2.56e6, 4.39e5))) | {("tiny", 0.2): 1.53e5},
    "pedel": {("two-5", 0.5): 3.2e5, ("tiny", 0.2): 1.72e5, ("two-3", 0.3): 1.13e5},
    "pedel printed": {("tiny", 0.2): 4.37e7, ("two-3", 0.3): 5.53e7},
    "uclk": {("B11", 0.5): 3.1e5},
    "uclk known r": {("B11", 0.5): 1.24e5},
    "mdp-nas": {("B1", 0.5): 9.98e4},
}
# fmt: on


def build(label: str, place: Place, mdp: bp.LinearMDP) -> Algorithm:
    """Return the algorithm of a line."""
    name, *words = label.split()
    parameters: dict[str, object] = {}
    if "known" in words:
        parameters["rewards"] = mdp.rewards.tolist()
    if name in ("ucrl-vtr", "uclk"):
        parameters["kernels"] = MIXTURES[place[0]]().kernels.tolist()
    if name == "ucfh" or "stationary" in words:
        parameters["stationary"] = place[0] in STATIONARY
    if name == "bpi-ucbvi":
        parameters["constants"] = "derived" if "derived" in words else "printed"
    if name == "lsvi-ucb":
        parameters["cover"] = "states" if "states" in words else "features"
    if "printed" in words:
        parameters["constants"] = "printed"
    if words and words[0].startswith("c="):
        name, parameters = "lsvi-ucb-no-guarantee", {"constant": float(words[0][2:]), "cover": "features"}
    return make_algorithm(name, parameters)


@dataclass(frozen=True)
class Line:
    """What came of one algorithm at one place."""

    label: str
    place: Place
    trials: tuple[Trial, ...]
    horizon: int
    promises: bool

    @property
    def mean(self) -> float:
        """Mean number of episodes, or of steps of a walk."""
        return fmean(trial.samples for trial in self.trials) / self.horizon

    @property
    def factor(self) -> float:
        """Against the prototypes."""
        return self.mean / REFERENCE[self.label][self.place]

    @property
    def near(self) -> bool:
        """Whether it is within the factor that is allowed; our own may need fewer."""
        limit = 2.0 if self.label.split()[0] in DEAR else 1.5
        return (self.label.startswith("forward") or 1 / limit <= self.factor) and self.factor <= limit

    @property
    def told_more(self) -> bool:
        """Whether it knows rewards, which nobody else does."""
        return "known" in self.label

    def __str__(self) -> str:
        least, most = (f(trial.samples for trial in self.trials) / self.horizon for f in (min, max))
        anywhere = max(trial.loss_anywhere or trial.loss for trial in self.trials)
        parts = (
            f"{self.label:19s}{short(self.mean):>7s} {f'[{short(least)},{short(most)}]':18s}",
            f"{short(REFERENCE[self.label][self.place]):>7s} {self.factor:5.2f}{' ' if self.near else '*'}",
            f"{short(self.mean * self.horizon):>9s} {max(trial.loss for trial in self.trials):9.3g} {anywhere:9.3g}",
            f"{len(self.trials):4d}",
            f"  {self.trials[0].scope if self.promises else 'no guarantee'}",
        )
        return " ".join(parts)


def short(number: float) -> str:
    """Three digits."""
    return f"{number:.3g}".replace("e+0", "e").replace("e+", "e")


def measure(label: str, place: Place, first: int, options: argparse.Namespace) -> tuple[Trial, ...]:
    """Run an algorithm at a place, with the seed `first`, or as many from there on as there are workers."""
    mdp = MODELS[place[0]]()
    algorithm = build(label, place, mdp)
    found = bp.compare(
        mdp,
        [algorithm],
        epsilon=place[1],
        delta=DELTA,
        runs=min(options.workers or 1, options.runs - first),
        seed=first,
        start=0,
        workers=options.workers,
        store=options.store,
        lower_bounds=False,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    assert found.rows, found.skipped
    assert not promises(label) or all(row.certified for row in found.rows), "a run ended without a certificate"
    assert not any(row.failed for row in found.rows), "a policy that was vouched for is not within ε"
    return found.rows


def promises(label: str) -> bool:
    """Whether the algorithm of a line has a guarantee."""
    return "c=" not in label


def measure_all(cells: list[tuple[str, Place]], options: argparse.Namespace) -> list[Line]:
    """Run all cells round by round, until all runs are made or the time is up."""
    begun, trials = time.monotonic(), {cell: list[Trial]() for cell in cells}
    for number, first in enumerate(range(0, options.runs, options.workers or 1)):
        for label, place in cells:
            spared = options.minutes is not None and number % 4 and label.split()[0] in DEAR
            if not spared and (number == 0 or _minutes_since(begun) < (options.minutes or inf)):
                trials[label, place] += measure(label, place, first, options)
    horizons = {name: make().problem.stages for name, make in MODELS.items()}
    return [
        Line(label, place, tuple(made), horizons[place[0]], promises(label)) for (label, place), made in trials.items()
    ]


def _minutes_since(begun: float) -> float:
    return (time.monotonic() - begun) / 60


def dearer_than_forward(lines: list[Line]) -> tuple[int, list[str]]:
    """Return in how many cases `forward` was compared where ε ≤ 0.2 H, and the competitors that needed no more."""
    ours = {(line.label, line.place): line.mean for line in lines if line.label.startswith("forward")}
    compared, missed = 0, []
    for line in lines:
        as_told = "forward stationary" if line.label == "ucfh" and line.place[0] in STATIONARY else "forward"
        mine = ours.get((as_told, line.place))
        rival = line.promises and not line.told_more and not line.label.startswith("forward")
        if mine is None or not rival or line.place[1] > 0.2 * line.horizon:
            continue
        compared += 1
        if line.mean <= mine:
            missed.append(
                f"{line.label} on {line.place[0]}, ε={line.place[1]:g} ({short(line.mean)} against {short(mine)})"
            )
    return compared, missed


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=None, help="begin no run after that time")
    parser.add_argument("--only", default="", help="places or algorithms whose names have this text")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--store", default=None, help="file in which finished runs survive")
    options = parser.parse_args([] if arguments is None else arguments)
    places = dict.fromkeys(place for known in REFERENCE.values() for place in known)
    cells = [(label, place) for place in places for label, known in REFERENCE.items() if place in known]
    cells = [cell for cell in cells if options.only in cell[0] or options.only in cell[1][0]]
    lines = measure_all(cells, options)
    for i, line in enumerate(lines):
        if i == 0 or line.place != lines[i - 1].place:
            steps = f", H = {line.horizon}" if line.horizon > 1 else ""
            print(f"\n{line.place[0]}, ε = {line.place[1]:g}{steps}")
            print(f"{'':19s}   mean [least,most]      prototypes     transitions      loss  anywhere runs  claim about")
        print(line)
    print("\nWhat nobody can run: episodes that the theorems of the references ask for")
    for place in (*FIRST, ("tiny", 0.2)):
        problem = MODELS[place[0]]().problem
        theory = lsvi_ucb_episodes(problem, place[1], DELTA), rflin_episodes(problem, place[1], DELTA)
        print(f"{place[0]:10s} ε = {place[1]:<5g} lsvi-ucb {short(theory[0]):>8s}   rflin {short(theory[1]):>8s}")
    far = [f"{line.label} on {line.place[0]} ({line.factor:.2f})" for line in lines if not line.near]
    compared, missed = dearer_than_forward(lines)
    print(f"\nBeyond the factor: {', '.join(far)}" if far else f"\nAll {len(lines)} means are within their factor")
    if missed:
        print(f"forward needs fewer episodes in {compared - len(missed)} of {compared} cases; not: {'; '.join(missed)}")
    else:
        print(f"forward needs fewer episodes than every competitor with a guarantee, in all {compared} cases")
    return 1 if far or missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
