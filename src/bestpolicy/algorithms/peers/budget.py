"""Runs whose length is fixed before the first sample, and what competitors say when they look at the data.

Such a method knows from (ε, δ) how many samples it takes, and promises nothing before the last of them. Its budget
grows like 1/ε², so ε = 0 is out of reach; and whatever can be counted at all has an ε so far above the rounding errors
of the arithmetic (10⁻⁹ against 10⁻¹⁵, in units of the largest value) that the proofs need not mention them. Every
policy is within the largest value of optimal: a larger ε is taken for that one.

The last bits of what a linear solver returns differ from machine to machine, and a number of samples must not: a run is
begun on one and resumed on another. Such quantities enter a budget rounded up to a few digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, inf, nan
from typing import ClassVar

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.protocol import Task
from bestpolicy.design.anchors import why_no_anchors
from bestpolicy.errors import InvalidInput
from bestpolicy.planning import action_gap
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check

MAX_SAMPLES = 10**18  # beyond it 64-bit counts overflow
LEAST_EPSILON = 1e-9  # with a smaller one no budget that grows like 1/ε² can be counted
_DIGITS, _NOISE = 1e6, 1e-9


def useful(epsilon: float, problem: Problem) -> float:
    """Return ε, or the largest value if that is smaller."""
    return min(epsilon, float(problem.value_limits[0]))


def rounded_up(computed: float) -> float:
    """Return a number of moderate size that is larger by at most 10⁻⁶, and the same whatever its last bits are.

    What is to be computed is often a whole number, or a simple fraction: those are kept off the steps.
    """
    return computed if computed == 1.0 else ceil((computed + _NOISE) * _DIGITS) / _DIGITS


def only_discounted(problem: Problem, instead: str = "gss-e") -> str:
    """Refuse episodic problems, for which there is another algorithm."""
    return "" if problem.horizon is None else f"it is for discounted problems; use {instead!r}."


def only_anchored(problem: Problem) -> str:
    """Refuse episodic problems, and those without anchors."""
    if problem.horizon is not None:
        return only_discounted(problem, "lavi")
    reason = why_no_anchors(problem)
    return reason and f"{reason}. Use 'ppq', which does without."


class Budgeted(ABC):
    """What algorithms share whose number of samples is fixed in advance; for discounted problems by default."""

    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return only_discounted(problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """All of them, exactly."""
        return inf if epsilon < LEAST_EPSILON else self.samples(problem, epsilon, delta)

    @abstractmethod
    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """All simulator calls for an ε that can be counted for."""


@dataclass(frozen=True)
class FixedBudget:
    """A number of samples after which a policy is certified.

    Attributes
    ----------
    problem : Problem
    epsilon : float
    samples : float
        All simulator calls of the run, an int (a float would round large numbers); inf if ε = 0.
    rule : str
        The statement that certifies.

    Raises
    ------
    InvalidInput
        If there is no such number, or nobody could count that far.
    """

    problem: Problem
    epsilon: float
    samples: float
    rule: str

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise InvalidInput(
                "epsilon must be positive for an algorithm whose number of samples is fixed in advance. Got 0; use "
                "'gss', 'tight' or 'adaptive' to ask for an optimal policy."
            )
        if not self.samples <= MAX_SAMPLES:
            raise InvalidInput(
                f"this would take {self.samples:.2g} simulator calls, more than can be counted. Ask for a larger "
                "epsilon, or use 'gss', 'tight' or 'adaptive'."
            )

    @classmethod
    def of(cls, algorithm: Budgeted, task: Task, rule: str) -> FixedBudget:
        """Return what an algorithm says that a task needs."""
        needed = algorithm.predicted_samples(task.problem, nan, task.epsilon, task.delta)
        return cls(task.problem, task.epsilon, needed, rule)

    def check(self, done: int, policy: IntArray, q_values: FloatArray) -> Check:
        """Say which share of the budget is done, and what is certified; the arrays are those of `look`."""
        certified = self.epsilon if done >= self.samples else inf
        share = min(1.0, done / self.samples)
        return look(self.problem, done, policy, q_values, share, certified, certified < inf, self.rule)


def look(
    problem: Problem,
    samples: int,
    policy: IntArray,
    q_values: FloatArray,
    share: float,
    epsilon: float,
    passed: bool,
    rule: str,
) -> Check:
    """Return the check of a rule that stops once a share reaches 1.

    Parameters
    ----------
    problem : Problem
    samples : int
    policy : int array (S,) or (H, S)
    q_values : array (S, A) or (H, S, A)
    share, epsilon : float
        How far it is, and what is certified.
    passed : bool
    rule : str
    """
    gap = action_gap(problem, q_values.reshape(problem.stages, *problem.mask.shape))
    policy = policy.reshape(problem.stages, problem.states)
    return Check(samples // problem.stages, samples, policy, share, 1.0, passed, epsilon, gap, rule)
