"""What the algorithms share that follow one endless trajectory of a discounted problem, without resets."""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally


def last_state(problem: Problem, first: int, tally: Tally) -> int:
    """Return where a walk has ended: visits minus arrivals is 1 at its first state and -1 at its last."""
    balance = np.zeros(problem.states, np.int64)
    balance[first] = 1
    np.add.at(balance, tally.cells % problem.states, tally.counts)
    np.add.at(balance, tally.pairs // problem.actions, -tally.pulls[0])
    return int(balance.argmax())


def as_probabilities(problem: Problem, policy: IntArray) -> FloatArray:
    """Return a policy of actions (S,) as one of probabilities (S, A)."""
    return np.eye(problem.actions)[policy]


def uniform_policy(problem: Problem) -> FloatArray:
    """Return the policy that plays all allowed actions equally often, (S, A)."""
    policy: FloatArray = problem.mask / problem.mask.sum(axis=1, keepdims=True)
    return policy
