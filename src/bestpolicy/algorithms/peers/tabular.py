"""What the tabular algorithms share: the model that the counts make, its optimal policy, equal pulls.

A tabular algorithm looks at the features of no pair. Its model of a discounted problem has, for each allowed pair, the
mean reward and the frequencies of next states; these are distributions, so all that is true of an MDP is true of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import number
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally


@dataclass(frozen=True)
class LooksAgain:
    """What the algorithms share that look at the data again and again."""

    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False

    check_ratio: float = 1.05

    def __post_init__(self) -> None:
        number("check_ratio", self.check_ratio, above=1)


@dataclass(frozen=True, eq=False)
class EmpiricalModel:
    """Means over the samples of each allowed pair, in the order of ``problem.pairs``.

    Attributes
    ----------
    problem : Problem
    rewards : array (n,)
    transitions : array (n, S)
    """

    problem: Problem
    rewards: FloatArray
    transitions: FloatArray

    @classmethod
    def of(cls, problem: Problem, tally: Tally) -> EmpiricalModel:
        """Return the model of a tally that has samples of every allowed pair."""
        pulls = tally.pulls[0]
        return cls(problem, tally.reward_sums[0] / pulls, tally.next_counts[0] / pulls[:, None])

    def backup(self, values: FloatArray) -> FloatArray:
        """Mean of r + γ V(s') at each pair, (n,)."""
        return self.rewards + self.problem.continuation * (self.transitions @ values)


def table(problem: Problem, numbers: FloatArray) -> FloatArray:
    """Put numbers (n,) of the allowed pairs into an array (S, A); -inf where an action is not allowed."""
    filled = np.full(problem.mask.shape, -np.inf)
    filled.ravel()[problem.pairs] = numbers
    return filled


@dataclass(frozen=True, eq=False)
class TabularPlan:
    """An optimal policy (S,) of a model, its values (S,) and action values (S, A)."""

    policy: IntArray
    values: FloatArray
    q_values: FloatArray


def plan(model: EmpiricalModel, start: IntArray | None = None) -> TabularPlan:
    """Policy iteration with exact evaluation, so optimal up to rounding."""
    problem = model.problem
    everywhere = np.arange(problem.states)
    position = np.cumsum(problem.mask).reshape(problem.mask.shape) - 1  # of a pair in problem.pairs
    # Changing one's mind for less than the rounding error of a solve would make the iteration cycle.
    hysteresis = 1e-14 * problem.value_limits[0] ** 2
    policy = table(problem, model.rewards).argmax(axis=1) if start is None else start
    while True:
        played = position[everywhere, policy]
        system = np.eye(problem.states) - problem.continuation * model.transitions[played]
        values = np.linalg.solve(system, model.rewards[played]).astype(np.float64, copy=False)
        q_values = table(problem, model.backup(values))
        improved = q_values.max(axis=1) > q_values[everywhere, policy] + hysteresis
        if not improved.any():
            return TabularPlan(policy.astype(np.int64), values, q_values)
        policy = np.where(improved, q_values.argmax(axis=1), policy)


def equal_pulls(pairs: IntArray, count: int) -> Pulls:
    """Pull each of some pairs `count` times."""
    return Pulls(pairs, np.full((1, len(pairs)), count))
