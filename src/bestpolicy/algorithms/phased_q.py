"""Phased Q-learning: value iteration in which every backup is a mean over fresh samples (Kearns and Singh 1999).

    Q_0 = 0
    for t = 1, …, T
        draw m fresh samples (r, s') of every pair
        Q_t(s, a) = mean of r + γ max_a' Q_{t-1}(s', a')
    return the greedy policy of Q_T

Guarantee (own proof; the reference hides its constants). With n allowed pairs and L = 1/(1-γ), let

    T = ⌈ log(4L²/ε) / log(1/γ) ⌉,      m = ⌈ 8 L⁶ log(2nT/δ) / ε² ⌉.

Given Q_{t-1}, which is in [0, L], the m samples of r + γ max Q_{t-1}(s') are independent and in [0, L], so by
Hoeffding all n·T backups are within w = L √(log(2nT/δ)/2m) ≤ ε/(4L²) of their means with probability 1 - δ. Then ‖Q_T
- Q*‖ ≤ γ^T L + L w ≤ ε/(2L), and a greedy policy loses at most 2L times that: ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log, nan
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import LEAST_EPSILON, FixedBudget, useful
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.algorithms.tabular import ONLY_DISCOUNTED, EmpiricalModel, equal_pulls, table
from bestpolicy.planning import action_gap
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class PhasedQ:
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
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return "" if problem.horizon is None else ONLY_DISCOUNTED

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """n·T·m, exactly."""
        if epsilon < LEAST_EPSILON:
            return inf
        phases, samples = phases_and_samples(problem, epsilon, delta)
        return len(problem.pairs) * phases * samples

    def run(self, task: Task) -> Run:
        """Make T backups of m samples a pair."""
        problem, epsilon, delta = task.problem, task.epsilon, task.delta
        samples_in_all = self.predicted_samples(problem, nan, epsilon, delta)
        budget = FixedBudget(problem, epsilon, samples_in_all, "phased Q-learning (own proof)")
        phases, samples = phases_and_samples(problem, epsilon, delta)

        values, check = np.zeros(problem.states), None
        for phase in range(1, phases + 1):
            tally = yield Request(equal_pulls(problem, samples), check)
            q_values = table(problem, EmpiricalModel.of(problem, tally).backup(values))
            values = q_values.max(axis=1)
            policy = q_values.argmax(axis=1)
            check = budget.check(phase * tally.samples, policy[None], action_gap(problem, q_values[None]))
        assert isinstance(check, Check)
        return check


def phases_and_samples(problem: Problem, epsilon: float, delta: float) -> tuple[int, int]:
    """T, and m samples of each pair in each phase."""
    epsilon, limit = useful(epsilon, problem), float(problem.value_limits[0])
    phases = max(1, ceil(log(4 * limit**2 / epsilon) / log(1 / problem.continuation)))
    return phases, ceil(8 * limit**6 * log(2 * len(problem.pairs) * phases / delta) / epsilon**2)
