"""The numeric lower bound: how long it takes, how close it comes, and how far above it GSS is predicted to be.

``python -m benchmarks.bounds [NAME…]`` prints one line per model and ε at δ = 0.05: the certified characteristic time,
the search gap (how much better the search thinks it could get), the predicted samples of GSS over the bound, and for
episodic models by how much the bound on algorithms that sample in rounds, counted in calls, is above that for any.
"""

from __future__ import annotations

import sys

import numpy as np

import bestpolicy as bp
from benchmarks.timing import line
from bestpolicy.bounds import lower_bound, predicted_samples

DELTA = 0.05
LIMIT = 60.0
NAMES = ("two-state", "riverswim", "simplex", "ball", "low-rank", "inventory", "universal", "simplex-gap")
EPISODIC = ("riverswim-episodic", "ball-episodic", "simplex-episodic")
EPSILONS = (0.0, 0.1)


def linear_model(states: int, actions: int, dimension: int) -> bp.LinearMDP:
    """Return a random model with features in the simplex."""
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(dimension), size=(states, actions))
    mu = rng.dirichlet(np.ones(states), size=dimension).T
    problem = bp.Problem(features, discount=0.9)
    return bp.LinearMDP(
        problem, theta=rng.uniform(size=dimension), mu=mu, name=f"linear {states}x{actions} d{dimension}"
    )


def tabular_model(states: int, actions: int) -> bp.LinearMDP:
    """Return a random tabular model."""
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(states), size=(states, actions))
    mdp = bp.instances.tabular(transitions, rng.uniform(size=(states, actions)), discount=0.9)
    mdp.name = f"tabular {states}x{actions}"
    return mdp


def measure(mdp: bp.LinearMDP, epsilon: float) -> None:
    """Bound one model and print what came out."""
    bound = lower_bound(mdp, epsilon, DELTA, max_seconds=LIMIT)
    predicted = predicted_samples(mdp.problem, mdp.gap, epsilon, DELTA)
    ratio = predicted / bound.samples_lower_bound if bound.samples_lower_bound else float("nan")
    gap = f"{100 * bound.search_gap:.1f} %" if np.isfinite(bound.search_gap) else "-"
    more = f"T ≥ {bound.characteristic_time:.4g}, gap {gap}, gss/bound {ratio:.1e}"
    if mdp.problem.stages > 1 and bound.characteristic_time > 0:
        more += f", in rounds/any {mdp.problem.stages * bound.characteristic_rounds / bound.characteristic_time:.2f}"
    line(f"{mdp.name}, ε = {epsilon:g}", bound.seconds, f"< {LIMIT:g} s", bound.seconds < LIMIT + 1, more)


def main(names: list[str] | None = None) -> None:
    """Print the table."""
    models = [bp.instances.load(name) for name in names or (*NAMES, *EPISODIC)]
    if not names:
        models += [linear_model(50, 5, 10), tabular_model(50, 5)]
    for mdp in models:
        for epsilon in EPSILONS:
            measure(mdp, epsilon)


if __name__ == "__main__":
    main(sys.argv[1:])
