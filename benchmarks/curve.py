"""Certified ε against samples on RiverSwim: the picture of the README and of docs/explanation/tight.md.

``python -m benchmarks.curve [FILE.svg]`` runs tight and adaptive once each (δ = 0.05, seed 0) and draws the best ε
certified so far after every check. sharp plans for the ε that is asked: it runs once for each of several (median of
three seeds). For gss, the samples that its rule needs for each ε.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import bestpolicy as bp
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.gss import GSS
from bestpolicy.algorithms.tight import Tight

DELTA = 0.05
TARGET = 0.02
PICTURE = Path(__file__).parent.parent / "docs" / "explanation" / "tight-curve.svg"


def certified(mdp: bp.LinearMDP, algorithm: Tight) -> tuple[list[int], list[float]]:
    """Samples and certified ε at every check of a run that has certified something."""
    model = bp.ExactSimulator(mdp)
    result = bp.identify(model, epsilon=TARGET, delta=DELTA, algorithm=algorithm, seed=0)
    checks = [check for check in result.checks if np.isfinite(check.epsilon)]
    return [check.samples for check in checks], [check.epsilon for check in checks]


def planned(mdp: bp.LinearMDP) -> tuple[list[int], list[float]]:
    """Samples of sharp for several ε, and these."""
    model, asked = bp.ExactSimulator(mdp), np.geomspace(3.0, TARGET, 9)
    runs = [
        [bp.identify(model, epsilon=one, delta=DELTA, algorithm="sharp", seed=n) for n in range(3)] for one in asked
    ]
    return [int(np.median([run.samples for run in each])) for each in runs], [float(one) for one in asked]


def main(arguments: list[str] | None = None) -> None:
    """Draw the curves and print where they cross a few values of ε."""
    from matplotlib.figure import Figure

    mdp = bp.instances.load("riverswim")
    curves = {name: certified(mdp, kind()) for name, kind in (("tight", Tight), ("adaptive", Adaptive))}
    curves["sharp"] = planned(mdp)
    epsilons = np.geomspace(TARGET, mdp.problem.value_limits[0], 60)
    gss = [GSS().predicted_samples(mdp.problem, mdp.gap, float(epsilon), DELTA) for epsilon in epsilons]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.loglog(gss, epsilons, "k--", label="gss, for an ε asked beforehand")
    for name, (samples, found) in curves.items():
        if name == "sharp":
            axes.loglog(samples, found, "o-", markersize=3, label="sharp, for an ε asked beforehand")
        else:
            axes.step(samples, found, where="post", label=name)
    axes.set_xlabel("simulator calls")
    axes.set_ylabel("certified ε")
    axes.set_title("RiverSwim, six states, γ = 0.9, δ = 0.05")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)  # inside it would hide a curve
    target = Path(arguments[0]) if arguments else PICTURE
    figure.savefig(target, metadata={"Date": None})
    for epsilon in (1.0, 0.1, TARGET):
        row = [f"gss {GSS().predicted_samples(mdp.problem, mdp.gap, epsilon, DELTA):.1e}"]
        for name, (samples, found) in curves.items():
            reached = [n for n, value in zip(samples, found, strict=True) if value <= epsilon]
            row.append(f"{name} {reached[0]:.1e}" if reached else f"{name} -")
        print(f"ε = {epsilon:g}: " + ", ".join(row))


if __name__ == "__main__":
    main(sys.argv[1:])
