"""Rollouts of a fixed policy, as populations.

Rollouts that follow the same policy do not care which of them is where, so it is enough to know how many are in each
state: these counts are the pulls of the next step, and the counts of next states are those of the step after. A
million million rollouts cost what one does, and their mean return has exactly the law of drawing them one by one.
Rollouts from different start pairs are asked for one after the other, because a `Tally` does not say which of
two rollouts that meet in a state came from where.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.algorithms.protocol import Request
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check


def mean_return(
    problem: Problem, start: int, policy: IntArray, rollouts: int, length: int, check: Check | None = None
) -> Generator[Request, Tally, float]:
    """Estimate Q^π of a pair: ``value = yield from mean_return(...)`` (discounted problems).

    Parameters
    ----------
    problem : Problem
    start : int
        Flat index of the pair from which all rollouts start.
    policy : int array (S,)
        Followed from the second step on.
    rollouts, length : int
        How many, and how many steps each takes; rollouts · length simulator calls in all.
    check : Check, optional
        What to report on the way.

    Returns
    -------
    float
        Mean of Σ_{t < length} γᵗ r_t.
    """
    pairs, counts = np.array([start]), np.array([rollouts])
    total, weight = 0.0, 1.0
    for _ in range(length):
        tally = yield Request(Pulls(pairs, counts[None]), check)
        total += weight * float(tally.next_rewards.sum())
        weight *= problem.continuation
        population = tally.next_counts[0].sum(axis=0)
        states = np.flatnonzero(population)
        pairs, counts, check = states * problem.actions + policy[states], population[states], None
    return total / rollouts
