"""Samples to a certificate: tight, adaptive and sharp against the lower bound on any algorithm; which targets are met.

One row per instance, δ and ε (0, 1 % and 5 % of the largest value 1/(1-γ) or H): simulator calls of each algorithm
(geometric mean over the seeds), the lower bound on the expected calls of every (ε, δ)-correct algorithm, whichever
steps it samples how often, calls of `sharp` over it, and calls of the best of `tight` and `adaptive` over those of
`sharp`. At the end stands for each target whether it is met; instances whose bound is below 1,000 calls are shown but
are not in the means. Instances are measured beside one another, as many as there are processors; nothing is begun after
``--minutes``. ``--gss`` shows the paper's rule, too. Options:
``python -m benchmarks.samples [--seeds N] [--seconds S] [--minutes M] [--deltas …] [--shares …] [instances …]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf, log
from time import time
from typing import Any

import numpy as np

import bestpolicy as bp
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.gss import GSS, GSSE
from bestpolicy.algorithms.sharp import Sharp
from bestpolicy.algorithms.tight import Tight

INSTANCES = (
    "B1", "B15", "B11", "B3", "B5", "B6", "B8", "B9", "B10", "riverswim", "ball of 8", "simplex of 8", "simplex of 20",
    "table of 4", "table of 6", "episodes of 4", "simplex-episodic", "riverswim-episodic", "universal-episodic",
)  # fmt: skip
UNEQUAL = ("unequal gaps", "unequal variances")
# Garivier and Kaufmann 2016, section 6: T* = 989.8 and 326.6 samples per unit of kl(δ, 1-δ).
BANDITS = {"four arms": (0.5, 0.45, 0.43, 0.4), "five arms": (0.3, 0.21, 0.2, 0.19, 0.18)}
DELTAS = (0.05, 1e-6)
SHARES = (0.0, 0.01, 0.05)  # ε as a share of the largest value
GSS_PREDICTED = 1e15  # beyond it the crossing t = U·β is printed instead of a run (they agree to a few per cent)
LEAST_BOUND = 1000.0  # calls, for an instance to count in means
# Of samples over the lower bound at ε = 0: the mean, the largest, and the largest of the bandits.
TARGETS = {0.05: (5.0, 8.0, 6.0), 1e-6: (2.0, 3.5, 2.3)}
WORSE = 1.3  # than adaptive, at most, at ε = 0
SAVING = 3.5  # over the best of tight and adaptive, with ε > 0 and δ = 0.05
OWN = {
    "ball of 8": lambda: bp.instances.ball(states=20, actions=3, dimension=8, discount=0.8),
    "simplex of 8": lambda: bp.instances.simplex(states=20, actions=3, dimension=8, discount=0.8),
    "simplex of 20": lambda: bp.instances.simplex(states=40, actions=3, dimension=20, discount=0.8),
    "table of 4": lambda: bp.instances.random_tabular(states=4, actions=2, discount=0.8),
    "table of 6": lambda: bp.instances.random_tabular(states=6, actions=3, discount=0.8),
    "episodes of 4": lambda: bp.instances.random_tabular(states=4, actions=2, horizon=3),
}


def unequal_gaps() -> bp.LinearMDP:
    """Eight states with three actions: one state's best action is hard to find, the others' are easy."""
    rng = np.random.default_rng(0)
    rewards = np.tile([0.3, 0.7, 0.2], (8, 1))
    rewards[0] = [0.5, 0.52, 0.45]
    return bp.instances.tabular(rng.dirichlet(np.ones(8), size=(8, 3)), rewards, discount=0.8, name=UNEQUAL[0])


def unequal_variances() -> bp.LinearMDP:
    """Eight states with two actions and equal gaps; only one state is noisy."""
    transitions = np.zeros((8, 2, 8))
    transitions[:, :, 0] = 1.0
    rewards = np.tile([0.02, 0.0], (8, 1))
    rewards[0] = [0.51, 0.49]
    return bp.instances.tabular(transitions, rewards, discount=0.8, name=UNEQUAL[1])


def bandit(name: str) -> bp.LinearMDP:
    """One state, which every action leads back to: the future is the same whatever is done, and is hardly counted."""
    means = BANDITS[name]
    return bp.instances.tabular(np.ones((1, len(means), 1)), [means], discount=0.01, name=name)


def load(name: str) -> bp.LinearMDP:
    """Build an instance by name."""
    if name in BANDITS:
        return bandit(name)
    own = OWN | {UNEQUAL[0]: unequal_gaps, UNEQUAL[1]: unequal_variances}
    return own[name]() if name in own else bp.instances.load(name)


def mean_samples(mdp: bp.LinearMDP, algorithm: object, epsilon: float, delta: float, seeds: int) -> float:
    """Geometric mean of the simulator calls; nan if a run was not certified."""
    logs = []
    for seed in range(seeds):
        result = bp.identify(
            bp.ExactSimulator(mdp), epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed, max_samples=10**11
        )
        assert not result.certified or mdp.is_near_optimal(result.policy, result.epsilon)
        logs.append(log(result.samples) if result.certified else float("nan"))
    return float(np.exp(np.mean(logs)))


def gss_samples(mdp: bp.LinearMDP, epsilon: float, delta: float) -> float:
    """Simulator calls of the paper's rule."""
    algorithm = GSS() if mdp.problem.horizon is None else GSSE()
    predicted = algorithm.predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    if predicted > GSS_PREDICTED:
        return predicted
    model = bp.ExactSimulator(mdp)
    return float(bp.identify(model, epsilon=epsilon, delta=delta, algorithm=algorithm, seed=0).samples)


def rows(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one instance."""
    if time() > options.until:
        return []
    mdp, found = load(name), list[dict[str, Any]]()
    largest = float(mdp.problem.value_limits[0])
    shares = [share for share in options.shares if share > 0 or mdp.gap > 1e-6]
    epsilons = [share * largest for share in shares]
    bounds = bp.bounds.lower_bounds(mdp, epsilons, 0.05, max_seconds=options.seconds)
    for delta in options.deltas:
        for share, epsilon, bound in zip(shares, epsilons, bounds, strict=True):
            if (share > 0 and delta < min(DELTAS[:1])) or time() > options.until:
                continue
            calls = {
                kind.name: mean_samples(mdp, kind(), epsilon, delta, options.seeds) for kind in (Tight, Adaptive, Sharp)
            }
            lower = replace(bound, delta=delta).samples_lower_bound
            row = {"name": name, "delta": delta, "share": share, "lower": lower, **calls}
            found.append(row | ({"gss": gss_samples(mdp, epsilon, delta)} if options.gss else {}))
    return found


def line(row: dict[str, Any]) -> str:
    """Format a row."""
    over = row["sharp"] / row["lower"] if row["lower"] > 0 else inf
    saving = min(row["tight"], row["adaptive"]) / row["sharp"]
    shown = f"{row['name']:20s} {row['delta']:<6g} {row['share']:<5g} {row['lower']:9.2e}"
    calls = " ".join(f"{row[name]:9.2e}" for name in ("tight", "adaptive", "sharp"))
    return f"{shown} {calls} {over:8.2f} {saving:7.2f}" + (f" {row['gss']:9.2e}" if "gss" in row else "")


def verdicts(found: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each target whether it is met, as far as there are rows for it."""

    def said(name: str, value: float, limit: float, most: bool = True) -> str:
        met = value <= limit if most else value >= limit
        return f"{'PASS' if met else 'MISS'}  {name}: {value:.2f} ({'at most' if most else 'at least'} {limit:g})"

    for delta, (mean, largest, arms) in TARGETS.items():
        exact = [row for row in found if row["share"] == 0 and row["delta"] == delta and row["sharp"] == row["sharp"]]
        over = [
            row["sharp"] / row["lower"] for row in exact if row["lower"] > LEAST_BOUND and row["name"] not in BANDITS
        ]
        bandits = [row["sharp"] / row["lower"] for row in exact if row["name"] in BANDITS]
        if over:
            yield said(f"ε = 0, δ = {delta:g}, over the bound, mean of {len(over)}", float(np.mean(over)), mean)
            yield said(f"ε = 0, δ = {delta:g}, over the bound, largest", max(over), largest)
        if bandits:
            yield said(f"ε = 0, δ = {delta:g}, over the bound, bandits", max(bandits), arms)
        if exact:
            worst = max(row["sharp"] / row["adaptive"] for row in exact)
            yield said(f"ε = 0, δ = {delta:g}, over adaptive, largest", worst, WORSE)
    for share in sorted({row["share"] for row in found} - {0.0}):
        savings = [
            min(row["tight"], row["adaptive"]) / row["sharp"]
            for row in found
            if row["share"] == share and row["sharp"] == row["sharp"]
        ]
        mean = float(np.exp(np.mean(np.log(savings))))
        yield said(f"ε = {share:.0%}, times fewer than tight and adaptive, mean of {len(savings)}", mean, SAVING, False)
        yield said(f"ε = {share:.0%}, times fewer than tight and adaptive, least", min(savings), 1.0, False)


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and which targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("instances", nargs="*", default=[*INSTANCES, *UNEQUAL, *BANDITS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the lower bounds of an instance, at most")
    parser.add_argument("--minutes", type=float, default=90.0, help="after which nothing more is begun")
    parser.add_argument("--deltas", type=float, nargs="+", default=DELTAS)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="ε over the largest value")
    parser.add_argument("--gss", action="store_true", help="run the paper's rule, too")
    options = parser.parse_args([] if arguments is None else arguments)
    options.until = time() + 60 * options.minutes
    print(
        f"{'instance':20s} {'delta':6s} {'eps':5s} {'lower':>9s} {'tight':>9s} {'adaptive':>9s} {'sharp':>9s} "
        f"{'s/lower':>8s} {'saving':>7s}" + (f" {'gss':>9s}" if options.gss else "")
    )
    found = list[dict[str, Any]]()
    with ProcessPoolExecutor() as pool:
        for some in pool.map(partial(rows, options=options), options.instances):
            for row in some:
                print(line(row), flush=True)
            found += some
    for verdict in verdicts(found):
        print(verdict)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
