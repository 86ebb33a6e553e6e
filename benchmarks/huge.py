"""States that cannot be listed: samples and processor time to an ε in per cent of the range, beside prototypes'.

python -m benchmarks.huge            all sizes, with what the policies really lose by a fine lattice; some minutes
python -m benchmarks.huge --quick    the smaller ones
python -m benchmarks.huge --rivals   values and losses of what users would take instead, in one run
"""

from __future__ import annotations

import argparse
import sys
import time
from math import nan

import bestpolicy as bp
from benchmarks import huge_truth
from benchmarks.huge_families import inventory, one_product, queues
from benchmarks.huge_rivals import compare

REFERENCE = {  # (family, nodes an axis, ε in per cent): samples, processor seconds of a prototype
    ("inventory", 5, 5.0): (3.0e4, 3),
    ("inventory", 7, 5.0): (6.9e4, 3),
    ("inventory", 10, 5.0): (1.4e5, 17),
    ("inventory", 14, 5.0): (3.0e5, 22),
    ("inventory", 17, 5.0): (4.5e5, 33),
    ("inventory", 5, 1.0): (2.4e5, 6),
    ("inventory", 10, 1.0): (9.5e5, 32),
    ("inventory", 5, 0.2): (1.5e6, 18),
    ("one product", 9, 1.0): (2.2e5, nan),
    ("one product", 9, 0.3): (9e5, nan),
    ("queues", 3, 5.0): (9.4e4, 4),
    ("queues", 4, 5.0): (2.5e5, 6),
    ("queues", 5, 5.0): (4.4e5, 24),
    ("queues", 6, 5.0): (8.4e5, 37),
    ("queues", 7, 5.0): (1.3e6, 57),
}
FAMILIES = {
    "inventory": (inventory, huge_truth.inventory),
    "one product": (one_product, huge_truth.one_product),
    "queues": (queues, huge_truth.queues),
}


def measure(quick: bool) -> int:
    """Print a table; return how many figures are worse than the prototype's, or lose more than ε."""
    heads = (
        f"{'samples':>10} {'prototype':>10} {'cpu s':>6} {'prototype':>9}  {'by':<10} {'certified':>9} {'true loss':>9}"
    )
    print(f"{'family':<11} {'d':>4} {'ε':>5} {heads}")
    worse = 0
    for (family, grid, percent), (samples, seconds) in REFERENCE.items():
        if quick and grid > 5 and family != "one product":
            continue
        build, truth = FAMILIES[family]
        model, begun = build(grid), time.process_time()
        result = bp.identify(model, epsilon=f"{percent}%", delta=0.05, seed=0, max_samples=10**7)
        took = time.process_time() - begun
        span = (model.high - model.low) / (1 - model.problem.discount)
        lost = huge_truth.loss(truth(grid), result.policy)
        ok = result.certified and result.samples <= samples and lost <= result.epsilon
        worse += not ok
        row = f"{result.samples:>10,} {samples:>10,.0f} {took:>6.1f} {seconds:>9.0f}  {result.rule[8:]:<10}"
        found = f"{100 * result.epsilon / span:>8.3f}% {100 * lost / span:>8.3f}%"
        head = f"{family:<11} {model.problem.dimension:>4} {percent:>4}%"
        print(f"{head} {row} {found}{'' if ok else '  WORSE'}", flush=True)
    return worse


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the smaller half of each family")
    parser.add_argument("--rivals", action="store_true", help="what users would take instead")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has stable-baselines3")
    asked = parser.parse_args()
    if asked.rivals:
        compare(asked.python)
    else:
        sys.exit(measure(asked.quick) > 0)
