"""Policies that lead episodes to what is wanted at a step, in an optimistic model of the steps before.

    W(s,a) = goal at step h, and p̂W + max W·min(1, ‖φ‖_{G⁻¹}) at the steps before it, the last one first
    W(s) = max_a W(s,a)

p̂ is the least-squares law of a step, G its matrix with ridge 1, from whatever data there are: what is tried seldom
looks good and is tried. Nothing that is certified rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.online import best_values
from bestpolicy.algorithms.peers.ridge import Fit
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally


@dataclass(frozen=True, eq=False)
class Way:
    """A policy (H, S), and what it is hoped to get at the step (from above, as far as the model is right)."""

    policy: IntArray
    value: float


def way_to(problem: Problem, features: FloatArray, tally: Tally, goal: FloatArray, step: int, start: FloatArray) -> Way:
    """Return the way to a goal (n,) ≥ 0 at a step; afterwards it plays the first action of each state."""
    full = tally.at(problem.pairs)
    policy = np.tile(problem.mask.argmax(axis=1), (problem.stages, 1))
    table, values = best_values(problem, goal)
    policy[step] = greedy(table)
    for h in reversed(range(step)):
        fit, largest = Fit.of(features, full.pulls[h].astype(np.float64)), float(values.max())
        hoped = fit.predict(full.next_counts[h] @ values) + largest * np.minimum(1.0, fit.widths)
        table, values = best_values(problem, np.clip(hoped, 0.0, largest))
        policy[h] = greedy(table)
    return Way(policy, float(start @ values))
