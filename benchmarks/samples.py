"""Samples to a certificate: gss, tight, adaptive and sharp against the lower bound on any algorithm.

One row per instance, δ and ε (0, 1 % and 5 % of the largest value 1/(1-γ) or H): simulator calls of each algorithm
(geometric mean over the seeds), the lower bound on the expected calls of every (ε, δ)-correct algorithm, whichever
steps it samples how often, and their ratios. A star marks a missed target. Options:
``python -m benchmarks.samples [--seeds N] [--seconds S] [--deltas …] [--shares …] [instances …]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite, log

import numpy as np

import bestpolicy as bp
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.gss import GSS, GSSE
from bestpolicy.algorithms.sharp import Sharp
from bestpolicy.algorithms.tight import Tight

SMOKE = ("B1", "B11", "B15")
CORE = ("B3", "B5", "B6", "B8", "B9", "B10")
OTHERS = ("riverswim", "simplex-episodic", "universal-episodic")
UNEQUAL = ("unequal gaps", "unequal variances")
# Garivier and Kaufmann 2016, section 6: T* = 989.8 and 326.6 samples per unit of kl(δ, 1-δ).
BANDITS = {"four arms": (0.5, 0.45, 0.43, 0.4), "five arms": (0.3, 0.21, 0.2, 0.19, 0.18)}
DELTAS = (0.1, 0.05, 1e-6)
SHARES = (0.0, 0.01, 0.05)  # ε as a share of the largest value
GSS_PREDICTED = 1e15  # beyond it the crossing t = U·β is printed instead of a run (they agree to a few per cent)
TARGETS = {0.05: 60.0, 1e-6: 20.0}  # samples over the lower bound at ε = 0
ADAPTIVE_LIMITS = {True: 0.5, False: 1.3}


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
    own = {UNEQUAL[0]: unequal_gaps, UNEQUAL[1]: unequal_variances}
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


def rows(name: str, options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Measure one instance."""
    mdp = load(name)
    largest = float(mdp.problem.value_limits[0])
    epsilons = [share * largest for share in options.shares if share > 0 or mdp.gap > 1e-6]
    bounds = bp.bounds.lower_bounds(mdp, epsilons, 0.05, max_seconds=options.seconds)
    for delta in options.deltas:
        for epsilon, bound in zip(epsilons, bounds, strict=True):
            yield {
                "delta": delta,
                "epsilon": epsilon,
                "gss": gss_samples(mdp, epsilon, delta),
                "tight": mean_samples(mdp, Tight(), epsilon, delta, options.seeds),
                "adaptive": mean_samples(mdp, Adaptive(), epsilon, delta, options.seeds),
                "sharp": mean_samples(mdp, Sharp(), epsilon, delta, options.seeds),
                "lower": replace(bound, delta=delta).samples_lower_bound,
            }


def line(name: str, row: dict[str, float]) -> str:
    """Format a row; a star after a ratio marks a missed target."""
    saving, against = row["gss"] / row["tight"], row["tight"] / row["lower"] if row["lower"] > 0 else inf
    share = row["adaptive"] / row["tight"]
    missed = row["epsilon"] == 0 and not against <= TARGETS.get(row["delta"], inf)
    return (
        f"{name:20s} {row['delta']:<8g} {row['epsilon']:<5g} {row['gss']:9.2e} {row['tight']:9.2e} "
        f"{row['adaptive']:9.2e} {row['lower']:9.2e} {saving:9.1e}{_star(not saving >= 1000)} "
        f"{against:7.1f}{_star(missed)} {share:6.2f}{_star(not share <= ADAPTIVE_LIMITS[name in UNEQUAL])} "
        f"{row['sharp']:9.2e} {row['sharp'] / row['lower'] if row['lower'] > 0 else inf:8.1f} "
        f"{min(row['tight'], row['adaptive']) / row['sharp']:7.2f}"
    )


def _star(missed: bool) -> str:
    return "*" if missed else " "


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("instances", nargs="*", default=[*SMOKE, *CORE, *OTHERS, *UNEQUAL, *BANDITS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the lower bounds of an instance")
    parser.add_argument("--deltas", type=float, nargs="+", default=DELTAS)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="ε over the largest value")
    options = parser.parse_args([] if arguments is None else arguments)
    print(
        f"{'instance':20s} {'delta':8s} {'eps':5s} {'gss':>9s} {'tight':>9s} {'adaptive':>9s} {'lower':>9s} "
        f"{'gss/tight':>10s} {'t/lower':>8s} {'a/tight':>7s} {'sharp':>10s} {'s/lower':>8s} {'saving':>7s}"
    )
    savings = []
    for name in options.instances:
        for row in rows(name, options):
            print(line(name, row), flush=True)
            savings.append(row["gss"] / row["tight"])
    known = [log(saving) for saving in savings if isfinite(saving)]
    print(f"geometric mean of gss/tight: {np.exp(np.mean(known)):.2e}; * marks a missed target")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
