"""Measured samples against the exponents of the paper's two sample-complexity theorems: docs/explanation/scaling.md.

``python -m benchmarks.scaling [--figure FILE.svg] [--quick]`` varies one of d, 1/(1-γ), Δ, ε, log 1/δ, H and the number
of states on a family of models whose gap is known in closed form, so that the others stay as they are. It runs gss
(gss-e if episodic) and tight, and prints log-log slopes: of the samples measured, of the bound that [TJP Thm 3, Thm 5]
prove (with its logarithms, on the same points), and the leading exponent that one reads off the theorems; then the
ratio of gss's samples to `predicted_rounds`, and tight's slope.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

import bestpolicy as bp
from bestpolicy.algorithms import GSS, GSSE, Algorithm, Tight
from bestpolicy.bounds.paper import expected_rounds_bound, predicted_rounds

PICTURE = Path(__file__).parent.parent / "docs" / "explanation" / "scaling.svg"
GRID = 1.02  # ratio of successive looks at the data: measured times are rounded up by at most this factor
SPREAD = 0.5  # reward of a good state minus that of a bad one


def halves(
    *,
    clusters: int = 2,
    copies: int = 1,
    gap: float = 0.2,
    discount: float | None = 0.6,
    horizon: int | None = None,
    leave: float = 1.0,
) -> bp.LinearMDP:
    """A model in which every state's second action is worse by exactly `gap`, whatever the other parameters.

    Half of the states are good (reward 3/4), half are bad (1/4). With probability `leave` the state is left for a
    uniformly drawn good one with probability (1 ± η)/2, + for the first action; else one stays. Good and bad states
    differ in value by D = SPREAD/(1 - γ(1 - leave)), so the actions differ by γ·leave·η·D, and η is chosen to make
    that the gap. In an episode D = SPREAD from step to step; at the last step the actions differ in reward instead.

    Parameters
    ----------
    clusters, copies : int
        Even number of kinds of states, and states of each kind (which share their features). d = 2·clusters.
    gap : float
    discount, horizon : optional
        One of them; `leave` must be 1 in an episode.
    leave : float
        Probability of leaving a state; 1 mixes at once, small values slowly.
    """
    states = clusters * copies
    good = np.arange(states) % clusters < clusters // 2
    gamma = 1.0 if discount is None else discount
    worth = SPREAD / (1 - gamma * (1 - leave)) if horizon is None else SPREAD
    sign = np.array([1.0, -1.0])
    towards = (1 + sign * gap / (gamma * leave * worth)) / 2
    arrival = np.where(good, towards[:, None], 1 - towards[:, None]) / (states / 2)  # (A, S)
    # Staying means staying within the cluster, so that copies behave alike.
    cluster = np.arange(states) % clusters
    stay = np.equal.outer(np.arange(clusters), cluster) / copies
    rows = leave * arrival + (1 - leave) * stay[:, None, :]  # (clusters, A, S)
    rewards = np.tile(np.where(good[:clusters], 0.5 + SPREAD / 2, 0.5 - SPREAD / 2)[:, None], (1, 2))
    features = np.eye(2 * clusters).reshape(clusters, 2, -1)[cluster]
    problem = bp.Problem(features, discount=discount, horizon=horizon)
    theta, mu = rewards.ravel(), rows.reshape(-1, states).T
    if horizon is not None:
        last = (rewards + sign * gap / 2).ravel()
        theta, mu = np.stack([theta] * (horizon - 1) + [last]), np.stack([mu] * horizon)
    return bp.LinearMDP(problem, theta=theta, mu=mu, name="halves")


@dataclass(frozen=True)
class Sweep:
    """One quantity that varies.

    Attributes
    ----------
    name : str
        The quantity.
    exponent : str
        What the theorem says of it, logarithms left out.
    points : sequence of float
        Its values.
    setting : callable
        From a value to a model, ε and δ.
    """

    name: str
    exponent: str
    points: Sequence[float]
    setting: Callable[[float], tuple[bp.LinearMDP, float, float]]


SWEEPS = (
    Sweep("d", "1 to 2", (4, 8, 16, 32, 64), lambda x: (halves(clusters=int(x) // 2), 0.0, 0.05)),
    Sweep("1/(1-γ)", "4", (2, 4, 8, 16, 32, 64), lambda x: (halves(discount=1 - 1 / x), 0.0, 0.05)),
    Sweep(
        "1/(1-γ), slow",
        "4",
        (2, 4, 8, 16, 32, 64),
        lambda x: (halves(discount=1 - 1 / x, leave=1 / x, gap=0.1), 0.0, 0.05),
    ),
    Sweep("Δ", "-2", (0.0125, 0.025, 0.05, 0.1, 0.2), lambda x: (halves(gap=x), 0.0, 0.05)),
    Sweep("Δ+ε", "-2", (0.05, 0.1, 0.2, 0.4, 0.8), lambda x: (halves(gap=0.005), x - 0.005, 0.05)),
    Sweep("log 1/δ, large", "1", (80, 160, 320, 640), lambda x: (halves(), 0.0, float(np.exp(-x)))),
    Sweep("log 1/δ, small", "0 to 1", (2, 4, 8, 16), lambda x: (halves(), 0.0, float(np.exp(-x)))),
    Sweep("H", "5", (2, 4, 8, 16), lambda x: (halves(horizon=int(x), discount=None), 0.0, 0.05)),
    Sweep("states", "0", (4, 16, 64, 256), lambda x: (halves(copies=int(x) // 2), 0.0, 0.05)),
)


@dataclass(frozen=True)
class Curve:
    """Simulator calls along a sweep, each an array over its points."""

    points: np.ndarray
    gss: np.ndarray
    tight: np.ndarray
    predicted: np.ndarray
    bound: np.ndarray


def measure(sweep: Sweep, seeds: int) -> Curve:
    """Run the algorithms along a sweep: gss with one seed, because its samples hardly vary, tight with several."""
    rows = []
    for value in sweep.points:
        mdp, epsilon, delta = sweep.setting(value)
        stages = mdp.problem.stages
        paper = GSS(check_ratio=GRID) if mdp.problem.horizon is None else GSSE(check_ratio=GRID)
        rows.append(
            (
                mean_samples(mdp, paper, epsilon, delta, 1),
                mean_samples(mdp, Tight(), epsilon, delta, seeds),
                stages * predicted_rounds(mdp.problem, mdp.gap, epsilon, delta),
                stages * expected_rounds_bound(mdp.problem, mdp.gap, epsilon, delta, grid_ratio=GRID),
            )
        )
    return Curve(np.array(sweep.points), *np.array(rows).T)


def mean_samples(mdp: bp.LinearMDP, algorithm: Algorithm, epsilon: float, delta: float, seeds: int) -> float:
    """Geometric mean of the simulator calls to the certificate."""
    logs = []
    for seed in range(seeds):
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed)
        assert result.certified
        assert mdp.is_near_optimal(result.policy, result.epsilon)
        logs.append(log(result.samples))
    return float(np.exp(np.mean(logs)))


def slope(points: np.ndarray, samples: np.ndarray) -> float:
    """Least-squares slope of log samples on log points."""
    return float(np.polyfit(np.log(points), np.log(samples), 1)[0])


def line(sweep: Sweep, curve: Curve) -> str:
    """One row of the table."""
    ratio = curve.gss / curve.predicted
    points = f"{curve.points[0]:g} … {curve.points[-1]:g}"
    tight = slope(curve.points, curve.tight)
    return (
        f"{sweep.name:16s} {points:14s} {sweep.exponent:>9s} {slope(curve.points, curve.bound):7.2f} "
        f"{slope(curve.points, curve.gss):7.2f} {ratio.min():9.2f} … {ratio.max():.2f} {tight:8.2f} "
        f"{(curve.gss / curve.tight).min():9.0e} … {(curve.gss / curve.tight).max():.0e}"
    )


def draw(curves: dict[str, Curve], target: Path) -> None:
    """One panel a sweep: measured samples as marks, the prediction as a line."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "scaling", "font.size": 8}):
        figure = Figure(figsize=(7.4, 6.6), layout="constrained")
        for axes, (name, curve) in zip(figure.subplots(3, 3).ravel(), curves.items(), strict=False):
            axes.loglog(curve.points, curve.predicted, "k-", lw=0.8, label="t = U*·β(δ, t)")
            axes.loglog(curve.points, curve.gss, "o", ms=4, label="gss, measured")
            axes.loglog(curve.points, curve.tight, "s--", ms=3, lw=0.8, label="tight, measured")
            axes.set_title(f"{name}: slope {slope(curve.points, curve.gss):.2f}", fontsize=9)
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.set_xticks(curve.points, [f"{value:g}" for value in curve.points])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        figure.supylabel("simulator calls")
        figure.savefig(target, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, default=None, help=f"where to draw it, e.g. {PICTURE.name}")
    parser.add_argument("--quick", action="store_true", help="one seed, and only the first points of each sweep")
    options = parser.parse_args(arguments)
    print(
        f"{'quantity':16s} {'from … to':14s} {'exponent':>9s} {'bound':>7s} {'gss':>7s} {'gss/predicted':>16s} "
        f"{'tight':>8s} {'gss/tight':>17s}"
    )
    curves = {}
    for sweep in SWEEPS:
        if options.quick:
            sweep = Sweep(sweep.name, sweep.exponent, sweep.points[:2], sweep.setting)
        curves[sweep.name] = measure(sweep, 1 if options.quick else 2)
        print(line(sweep, curves[sweep.name]), flush=True)
    if options.figure is not None:
        draw(curves, options.figure)


if __name__ == "__main__":
    main()
