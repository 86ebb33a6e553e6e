"""Samples of every algorithm on the same instances, beside what earlier prototypes needed.

δ = 0.1 throughout. A cell is the median over the seeds, in brackets the figure of the prototypes (1 to 3 seeds), and
the factor between them, with a star if it is beyond 2, and with a dagger if it is below 1/2 because the algorithm is
in a better form here than the prototype was: the same guarantee is proved with fewer samples. (plug-in and
linear-plug-in take the Bernstein budget where that is smaller than Hoeffding's; the phases of phased-q and ppq grow;
lavi knows that values at step h are at most H-h; vqvi and oppq have the constants that their proof needs.) `>` marks
runs that ended without a certificate; `!` that the algorithm promises nothing; a dash that it cannot run there.
Algorithms whose papers take rewards as known are given them, as the prototypes were; the prototype of lspi-g did not
prune its design. klb-ts finds an optimal policy, whatever ε is asked.

A second table has the algorithms that follow policies, with rewards unknown, in transitions, and beside each what its
claim is about. ``make bench-forward`` compares these in more places. The last line says whether `tight` needs fewer
samples than every other algorithm with a guarantee that simulates pairs. Options: ``python -m benchmarks.compare
[--seeds N] [--seconds S] [--workers N]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import bestpolicy as bp
from bestpolicy import instances
from bestpolicy.algorithms import ALGORITHMS, Algorithm
from bestpolicy.comparison import Summary

DELTA = 0.1
OURS = ("tight", "adaptive")
BETTER_FORM = ("plug-in", "linear-plug-in", "ppq", "oppq", "lavi", "phased-q", "vqvi")
FACTOR = 2.0
WIDTH = 28
PAIRS = {name: kind for name, kind in ALGORITHMS.items() if kind.about.sampling == "pairs"}
FOLLOWERS = {name: kind for name, kind in ALGORITHMS.items() if kind.about.sampling != "pairs"}


@dataclass(frozen=True)
class Column:
    """An instance with its ε, and the prototypes' samples on it."""

    heading: str
    build: Callable[[], bp.LinearMDP]
    epsilon: float
    reference: dict[str, float]


SMALL = (
    Column(
        "simplex 6x3 d4",
        lambda: instances.simplex(states=6, actions=3, dimension=4, seed=1, discount=0.8),
        0.25,
        {
            "gss": 7.8e7,
            "plug-in": 5.3e7,
            "plug-in-no-guarantee": 2.5e5,
            "action-elimination": 2.7e8,
            "klb-ts": 5.3e8,
            "vqvi": 2.3e9,
            "phased-q": 8.9e9,
            "ppq": 1.7e9,
            "oppq": 4.6e8,
            "lspi-g": 4.0e12,
        },
    ),
    Column(
        "two-state d4",
        lambda: instances.load("two-state"),
        0.1,
        {
            "gss": 1.4e6,
            "plug-in": 2.2e5,
            "plug-in-no-guarantee": 1.4e4,
            "action-elimination": 8.4e4,
            "klb-ts": 5.2e4,
            "vqvi": 1.7e8,
            "phased-q": 1.1e7,
            "ppq": 1.1e7,
            "oppq": 1.7e8,
            "lspi-g": 1.9e9,
        },
    ),
    Column(
        "aggregated 12x2 d6",
        lambda: instances.aggregated_riverswim(states=3, copies=4, seed=0, discount=0.8),
        0.25,
        {
            "gss": 1.1e8,
            "plug-in": 7.4e7,
            "plug-in-no-guarantee": 3.4e5,
            "action-elimination": 2.0e8,
            "klb-ts": 1.5e8,
            "vqvi": 3.2e9,
            "phased-q": 1.2e10,
            "ppq": 2.6e9,
            "oppq": 7.3e8,
            "lspi-g": 8.4e12,
        },
    ),
    Column(
        "riverswim 5x2 d10",
        lambda: instances.riverswim(states=5, discount=0.8),
        0.25,
        {
            "gss": 3.3e8,
            "plug-in": 2.7e7,
            "plug-in-no-guarantee": 1.2e5,
            "action-elimination": 1.3e8,
            "klb-ts": 7.4e7,
            "vqvi": 1.2e9,
            "phased-q": 4.6e9,
            "ppq": 4.6e9,
            "oppq": 1.3e9,
            "lspi-g": 5.4e12,
        },
    ),
    Column(
        "ball 8x4 d4",
        lambda: instances.ball(states=8, actions=4, dimension=4, seed=1, discount=0.8),
        0.25,
        {
            "gss": 7.3e7,
            "plug-in": 1.0e8,
            "plug-in-no-guarantee": 4.7e5,
            "action-elimination": 2.3e8,
            "klb-ts": 6.2e8,
            "vqvi": 4.4e9,
            "phased-q": 1.7e10,
            "lspi-g": 7.5e12,
        },
    ),
)
LARGER = (
    Column(
        "simplex 100x10 d5",
        lambda: instances.load("simplex-large", discount=0.8),
        0.25,
        {"gss": 1.3e8, "plug-in": 5.0e9, "linear-plug-in": 1.2e7, "ppq": 2.1e9, "action-elimination": 7.6e9},
    ),
    Column(
        "ball 40x10 d5",
        lambda: instances.load("ball", discount=0.8),
        0.25,
        {"gss": 1.2e8, "plug-in": 1.8e9, "linear-plug-in": 6.3e7, "ppq": 1.2e10, "action-elimination": 1.7e9},
    ),
    Column(
        "simplex-gap 8x2 d4",
        lambda: instances.load("simplex-gap"),
        0.02,
        {
            "gss": 1.0e8,
            "plug-in": 7.2e9,
            "linear-plug-in": 1.4e9,
            "ppq": 3.9e11,
            "action-elimination": 1.1e7,
            "klb-ts": 1.7e6,
        },
    ),
    Column(
        "simplex 5x3 d3 H3",
        lambda: instances.simplex(states=5, actions=3, dimension=3, seed=0, horizon=3),
        0.3,
        {"lavi": 8.4e4},
    ),
)


FOLLOWED = (
    Column("universal-episodic H3", lambda: instances.load("universal-episodic"), 0.5, {}),
    Column("simplex 3x3 d3 H2", lambda: instances.simplex(states=3, actions=3, dimension=3, horizon=2), 0.5, {}),
    Column("two-state d4", lambda: instances.load("two-state"), 0.5, {"mdp-nas": 9.98e4}),
    Column("universal d4", lambda: instances.load("universal"), 0.5, {"uclk": 3.1e5}),
)
MIXTURES = {
    "universal-episodic H3": {"actions": 2, "seed": 29, "horizon": 3},
    "universal d4": {},
}


def followers_for(column: Column) -> list[Algorithm]:
    """Every algorithm that follows policies; those for mixtures know the kernels, where there are any."""
    known: dict[str, Any] = {}
    if column.heading in MIXTURES:
        known = {"kernels": instances.universal_mixture(**MIXTURES[column.heading]).kernels.tolist()}
    mixed = ("ucrl-vtr", "uclk")
    return [kind(**known) if name in mixed else kind() for name, kind in FOLLOWERS.items()]


def algorithms_for(mdp: bp.LinearMDP) -> list[Algorithm]:
    """Every algorithm that simulates pairs, told the rewards if its paper takes them as known and it can be told."""
    found = []
    for kind in PAIRS.values():
        told = mdp.problem.horizon is None and any(field.name == "rewards" for field in fields(kind))  # type: ignore[arg-type]
        found.append(kind(rewards=mdp.rewards.tolist()) if told else kind())  # type: ignore[call-arg]
    return found


def measure(column: Column, options: argparse.Namespace, followed: bool = False) -> dict[str, Summary]:
    """Run everything that fits on an instance; return the summaries by algorithm."""
    mdp = column.build()
    found = bp.compare(
        mdp,
        followers_for(column) if followed else algorithms_for(mdp),
        epsilon=column.epsilon,
        delta=DELTA,
        runs=options.seeds,
        max_seconds=options.seconds,
        workers=options.workers,
        lower_bounds=False,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    assert not any(row.failed for row in found.rows), "a policy that was vouched for is not within ε"
    return {entry.algorithm.partition("(")[0]: entry for entry in found.summary}


def cell(entry: Summary | None, reference: float | None) -> str:
    """Format the samples of an algorithm beside the reference."""
    text = "–"
    if entry is not None:
        name = entry.algorithm.partition("(")[0]
        promised = ALGORITHMS[name].about.guarantee != "none"
        mark = "" if entry.certified == entry.runs else (">" if promised else "!")
        text = f"{mark}{entry.median_samples:.1e}"
    if reference is not None:
        text += f" [{reference:.1e}]"
    if entry is not None and reference is not None:
        factor = entry.median_samples / reference
        beyond = "†" if factor < 1 and name in BETTER_FORM else "*"
        text += f" {factor:.2g}" + ("" if 1 / FACTOR <= factor <= FACTOR else beyond)
    return text.replace("e+0", "e").replace("e+", "e")


def exceptions(column: Column, found: dict[str, Summary]) -> list[str]:
    """Algorithms with a guarantee that needed no more samples than `tight` there."""
    tight = found["tight"]
    if tight.certified < tight.runs:
        return [f"tight was not certified on {column.heading}"]
    return [
        f"{name} on {column.heading} ({entry.median_samples:.1e} against {tight.median_samples:.1e})"
        for name, entry in found.items()
        if name not in OURS and entry.certified == entry.runs and entry.median_samples <= tight.median_samples
    ]


def print_followers(options: argparse.Namespace) -> None:
    """Print the table of those that follow policies."""
    tables = [measure(column, options, followed=True) for column in FOLLOWED]
    print("following policies from state 0: transitions, and what the claim is about")
    print(f"{'':23s}" + "".join(f"{f'{column.heading}, ε={column.epsilon:g}':{WIDTH + 5}s}" for column in FOLLOWED))
    for name in FOLLOWERS:
        cells = []
        for found, column in zip(tables, FOLLOWED, strict=True):
            entry = found.get(name)
            scope = "" if entry is None else f", {entry.scope if entry.certified else 'nothing'}"
            cells.append(cell(entry, column.reference.get(name)) + scope)
        print(f"{name:23s}" + "".join(f"{text:{WIDTH + 5}s}" for text in cells), flush=True)
    print()


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a single run")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args([] if arguments is None else arguments)
    missed, compared = [], 0
    for columns in (SMALL, LARGER):
        tables = []
        for column in columns:
            tables.append(measure(column, options))
            missed += exceptions(column, tables[-1])
            compared += sum(entry.certified == entry.runs for name, entry in tables[-1].items() if name not in OURS)
        print(f"{'':21s}" + "".join(f"{f'{column.heading}, ε={column.epsilon:g}':{WIDTH}s}" for column in columns))
        for name in PAIRS:
            pairs = zip(tables, columns, strict=True)
            cells = [cell(found.get(name), column.reference.get(name)) for found, column in pairs]
            print(f"{name:21s}" + "".join(f"{text:{WIDTH}s}" for text in cells), flush=True)
        print()
    print_followers(options)
    if missed:
        print(f"tight needs fewer samples in {compared - len(missed)} of {compared} cells; not: {'; '.join(missed)}")
    else:
        print(f"tight needs fewer samples than every competitor with a guarantee, in all {compared} cells")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
