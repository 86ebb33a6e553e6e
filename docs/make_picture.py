"""Make docs/picture.svg: certified ε against simulator calls on one instance, every point a run.

Run as ``python docs/make_picture.py``; it needs matplotlib (the extra ``report``).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

import bestpolicy as bp

INSTANCE, DELTA, SEED = "riverswim", 0.05, 0


def anytime_curve(algorithm: str, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """Certified ε at every check of one run."""
    simulator = bp.ExactSimulator(bp.instances.load(INSTANCE))
    result = bp.identify(simulator, epsilon=smallest, delta=DELTA, seed=SEED, algorithm=algorithm)
    known = [check for check in result.checks if np.isfinite(check.epsilon) and check.epsilon > 0]
    return np.array([check.samples for check in known]), np.array([check.epsilon for check in known])


def stopping_curve(algorithm: str, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples of one run for each asked ε."""
    simulator = bp.ExactSimulator(bp.instances.load(INSTANCE))
    runs = [bp.identify(simulator, epsilon=e, delta=DELTA, seed=SEED, algorithm=algorithm) for e in asked]
    return np.array([run.samples for run in runs]), asked


def main() -> None:
    """Draw."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "bestpolicy", "svg.fonttype": "none", "font.size": 11})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    asked = np.geomspace(0.05, 10, 9)
    for name, (samples, epsilon) in {
        "gss (the paper's rule)": stopping_curve("gss", asked),
        "tight": anytime_curve("tight", 0.05),
        "adaptive": anytime_curve("adaptive", 0.05),
    }.items():
        axes.loglog(samples, epsilon, label=name, linewidth=2)
    axes.set(
        xlabel="simulator calls",
        ylabel="certified distance from optimal (ε)",
        title=f"{INSTANCE}: what is certified with probability {1 - DELTA:g}",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(Path(__file__).parent / "picture.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
