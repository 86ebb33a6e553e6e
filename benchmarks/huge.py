"""States that cannot be listed: samples and processor time to ε = 5 % of the range, beside those of prototypes.

python -m benchmarks.huge            all sizes; about two minutes
python -m benchmarks.huge quick      the smallest of each family
python -m benchmarks.huge compare    the policy's value by rollouts, beside fitted Q iteration's and a discretisation's
"""

from __future__ import annotations

import sys
import time

import numpy as np

import bestpolicy as bp
from benchmarks.huge_families import inventory, queues

REFERENCE = {  # (family, nodes an axis, ε in per cent): samples, processor seconds of a prototype
    ("inventory", 5, 5.0): (3.0e4, 3),
    ("inventory", 7, 5.0): (6.9e4, 3),
    ("inventory", 10, 5.0): (1.4e5, 17),
    ("inventory", 14, 5.0): (3.0e5, 22),
    ("inventory", 17, 5.0): (4.5e5, 33),
    ("inventory", 5, 1.0): (2.4e5, 6),
    ("inventory", 10, 1.0): (9.5e5, 32),
    ("queues", 3, 5.0): (9.4e4, 4),
    ("queues", 4, 5.0): (2.5e5, 6),
    ("queues", 5, 5.0): (4.4e5, 24),
    ("queues", 6, 5.0): (8.4e5, 37),
    ("queues", 7, 5.0): (1.3e6, 57),
}
FAMILIES = {"inventory": inventory, "queues": queues}


def measure(quick: bool) -> int:
    """Print a table; return how many figures are worse than the prototype's."""
    print(f"{'family':<10} {'d':>4} {'ε':>5} {'samples':>10} {'prototype':>10} {'cpu s':>6} {'prototype':>9}")
    worse = 0
    for (family, grid, percent), (samples, seconds) in REFERENCE.items():
        if quick and grid > 5:
            continue
        model, begun = FAMILIES[family](grid), time.process_time()
        result = bp.identify(model, epsilon=f"{percent}%", delta=0.05, seed=0, max_samples=10**7)
        took = time.process_time() - begun
        ok = result.certified and result.samples <= samples
        worse += not ok
        row = f"{result.samples:>10,} {samples:>10,.0f} {took:>6.1f} {seconds:>9}"
        print(f"{family:<10} {model.problem.dimension:>4} {percent:>4}% {row}{'' if ok else '  WORSE'}", flush=True)
    return worse


def compare() -> None:
    """Values by rollouts from one start, of policies that users would take instead."""
    model, start = inventory(7), np.array([[5.0, 5.0]])
    result = bp.identify(model, epsilon="5%", delta=0.05, seed=0)
    ours = bp.audit(result, model, start, rollouts=2000, seed=1)
    print(f"hull, {result.samples:,} samples: {_shown(ours)}; certified within {result.epsilon:.3g} of optimal")
    for name, vectors in (
        ("fitted Q iteration", _fitted_q(model, result.samples)),
        ("discretise and solve", _cells(model)),
    ):
        other = bp.study.FeatureResult(**vars(result) | {"policy": type(result.policy)(model.problem, vectors)})
        print(f"{name}: {_shown(bp.audit(other, model, start, rollouts=2000, seed=1))}; says nothing of optimality")


def _shown(found: bp.run.Audit) -> str:
    low, high = found.measured[0]
    return f"worth {low:.4g} to {high:.4g} by rollouts"


def _fitted_q(model, samples: int):
    """Fitted Q iteration with the same hats, from uniformly random pairs."""
    known, rng = model.problem, np.random.default_rng(0)
    states, actions = rng.uniform(0, 10, (samples, 2)), rng.integers(0, known.actions, samples)
    rewards, following = model.call(states, actions, rng)
    scaled = (rewards - model.low) / model.units.reward_scale - known.known(states, actions)
    features, choices = known.feature_map(states, actions), known.choices(following)
    gram = (features.T @ features).toarray() + 1e-6 * np.eye(known.dimension)
    vector = np.zeros(known.dimension)
    for _ in range(150):
        targets = scaled + known.continuation * choices.best(vector[:, None])[:, 0]
        vector = np.linalg.solve(gram, features.T @ targets)
    return vector[None]


def _cells(model):
    """A coarse discretisation of the stock, 3 x 3 nodes, solved from 2,000 samples a node; read at the fine nodes."""
    coarse, rng = inventory(3), np.random.default_rng(0)
    from bestpolicy.algorithms.hull_plan import PastModel
    from bestpolicy.samples import Draws

    vector = PastModel(coarse.problem, coarse.sample(Draws(np.full((1, 9), 2000)), rng)).centre.vectors[0]
    nodes = model.problem.feature_map.nodes
    return (coarse.problem.feature_map(nodes, np.zeros(len(nodes), int)) @ vector)[None]


if __name__ == "__main__":
    if "compare" in sys.argv:
        compare()
    else:
        sys.exit(measure("quick" in sys.argv) > 0)
