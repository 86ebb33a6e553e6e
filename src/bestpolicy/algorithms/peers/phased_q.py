"""Phased Q-learning: value iteration in which every backup is a mean over fresh samples (Kearns and Singh 1999).

    Q_0 = 0
    for t = 1, …, T
        draw m_t fresh samples (r, s') of every pair
        Q_t(s, a) = mean of r + γ max_a' Q_{t-1}(s', a')
    return the greedy policy of Q_T

The reference draws equally many samples in all phases. But an error of an early phase has shrunk by γ a phase when the
last one comes, so few samples will do at first. Guarantee (own proof; the reference hides its constants). With n
allowed pairs, L = 1/(1-γ), η = ε/(2L) and q = γ^{2/3}, let

    T = ⌈ log(64L/η) / log(1/γ) ⌉,    w = (η - γᵀL)(1-q)/(1-q^T),    m_t = ⌈ q^{T-t} L² log(2nT/δ) / (2w²) ⌉.

Given Q_{t-1}, which is in [0, L], the m_t samples of r + γ max Q_{t-1}(s') are independent and in [0, L]. By Hoeffding
a single backup of phase t misses its mean by more than w_t = L √(log(2nT/δ)/2m_t) ≤ w γ^{-(T-t)/3} with probability at
most δ/(nT); there are n in each of T phases, so all hold together with probability 1 - δ. Then ‖Q_t - Q*‖ ≤ γ‖Q_{t-1} -
Q*‖ + w_t, hence

    ‖Q_T - Q*‖ ≤ γᵀL + Σ_t γ^{T-t} w_t ≤ γᵀL + w Σ_t q^{T-t} = γᵀL + w (1-q^T)/(1-q) = η,

and a greedy policy loses at most 2L times that: ε. Of all m_t with the same sum of errors Σ_t γ^{T-t} w_t these have
the least sum (Lagrange: γ^{T-t} w_t/m_t is the same for all t). For large L they sum to (27/4) L⁷ log(2nT/δ)/ε² a pair,
where equal ones would need a factor log(4L²/ε) more, about; and the error of Q_t is halved in some 3 log 2/log(1/γ)
phases, from the first to the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, log
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.peers.budget import MAX_SAMPLES, Budgeted, FixedBudget, useful
from bestpolicy.algorithms.peers.tabular import equal_pulls, table
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class PhasedQ(Budgeted):
    """Phased Q-learning, for discounted problems and ε > 0."""

    name: ClassVar[str] = "phased-q"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="S A / ((1-γ)⁷ ε²)",
        constants="own proof",
        reference="Kearns, Singh: Finite-Sample Convergence Rates for Q-Learning and Indirect Algorithms (1999)",
    )

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """n·Σm."""
        return len(problem.pairs) * Phases.of(problem, len(problem.pairs), epsilon, delta).samples

    def run(self, task: Task) -> Run:
        """Make T backups of ever more samples."""
        budget, problem = FixedBudget.of(self, task, "phased Q-learning (own proof)"), task.problem
        phases = Phases.of(problem, len(problem.pairs), task.epsilon, task.delta)
        return (yield from back_up(budget, phases, problem.pairs, partial(table, problem)))


def back_up(budget: FixedBudget, phases: Phases, pairs: IntArray, extend: Callable[[FloatArray], FloatArray]) -> Run:
    """Repeat value iteration from fresh samples of some pairs (K,); `extend` takes numbers at them to all, (S, A)."""
    problem, done, check = budget.problem, 0, None
    values = np.zeros(problem.states)
    for samples in phases.sizes:
        tally = yield Request(equal_pulls(pairs, samples), check)
        targets = (tally.reward_sums[0] + problem.continuation * (tally.next_counts[0] @ values)) / samples
        q_values = extend(targets)
        values = np.clip(q_values.max(axis=1), 0.0, problem.value_limits[0])
        done += tally.samples
        check = budget.check(done, q_values.argmax(axis=1), q_values)
    assert check is not None
    return check


@dataclass(frozen=True)
class Phases:
    """Backups of ever more samples.

    Attributes
    ----------
    number : int
        T.
    last : float
        Samples of each pair in the last one, not rounded.
    ratio : float
        q: a phase has q times the samples of the next one.
    """

    number: int
    last: float
    ratio: float

    @classmethod
    def of(cls, problem: Problem, pairs: int, epsilon: float, delta: float, growth: float = 1.0) -> Phases:
        """Return the phases for so many pairs, if errors at them grow by the factor `growth` elsewhere."""
        gamma, limit = problem.continuation, float(problem.value_limits[0])
        accuracy = useful(epsilon, problem) / (2 * limit)
        number = max(1, ceil(log(64 * limit / accuracy) / log(1 / gamma)))
        ratio = gamma ** (2 / 3)
        width = (accuracy - gamma**number * limit) * (1 - ratio) / (1 - ratio**number)
        return cls(number, (growth * limit / width) ** 2 * log(2 * pairs * number / delta) / 2, ratio)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each pair, phase by phase."""
        return _sizes(self)

    @property
    def samples(self) -> float:
        """Samples of each pair in all, an int if anybody could count that far."""
        exact = self.last * (1 - self.ratio**self.number) / (1 - self.ratio)
        return exact if exact > MAX_SAMPLES else sum(self.sizes)


@lru_cache(maxsize=8)
def _sizes(phases: Phases) -> tuple[int, ...]:
    return tuple(ceil(phases.last * phases.ratio**before) for before in reversed(range(phases.number)))
