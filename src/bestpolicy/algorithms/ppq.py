"""PPQ-Learning: phased Q-learning at d pairs [Yang, Wang 2019, Algorithm 1].

    choose d pairs from which every feature is φ(s,a) = Σ_k c_k(s,a) φ_k,  L = max Σ_k |c_k|     (barycentric spanner)
    Q = 0
    repeat R times
        V(s) = max_a Q(s,a), clipped to [0, 1/(1-γ)]
        y_k  = mean of r + γV(s') over m fresh samples of each of the d pairs
        Q    = Σ_k c_k y_k
    return the greedy policy of Q

    R = ⌈ log(4/(ε(1-γ)²)) / log(1/γ) ⌉,    m = ⌈ 8 L² log(2dR/δ) / ((1-γ)⁶ε²) ⌉

The algorithm is the reference's, but for its rewards, which are known there and learned here along with the rest
(r is linear in the same features). R and m are *our own proof*; the reference hides them in a Θ. V is fixed before its
samples, so E y_k is TV at pair k, and TV = Σ_k c_k TV_k everywhere. By Hoeffding and a union over dR means
|y - TV| ≤ e = √(log(2dR/δ)/2m)/(1-γ), so |Q - TV| ≤ Le in every phase, and clipping brings V only nearer to V*. Hence
|Q - Q*| ≤ Le/(1-γ) + γᴿ/(1-γ) ≤ ε(1-γ)/4 + ε(1-γ)/4 in the end, and a greedy policy loses at most 2|Q - Q*|/(1-γ) ≤ ε.
Fresh samples in every phase are essential: with L > 1 an estimated model need not contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import LEAST_EPSILON, FixedBudget, useful
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.design.anchors import barycentric_spanner
from bestpolicy.estimation import Pulls
from bestpolicy.planning import action_gap
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class PPQ:
    """Parametric phased Q-learning; nothing to set."""

    name: ClassVar[str] = "ppq"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="d L² / ((1-γ)⁷ ε²), where L ≤ d is the extrapolation constant of d pairs",
        constants="own proof",
        reference="Yang, Wang: Sample-Optimal Parametric Q-Learning Using Linearly Additive Features, Algorithm 1",
    )
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return "" if problem.horizon is None else "it is for discounted problems; use 'lavi'."

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """All d·R·m of them."""
        if epsilon < LEAST_EPSILON:
            return inf
        phases, samples = self.sizes(problem, epsilon, delta)
        return problem.dimension * phases * samples

    def sizes(self, problem: Problem, epsilon: float, delta: float) -> tuple[int, int]:
        """Return the number of phases R, and of samples m of each pair in a phase."""
        epsilon, remaining = useful(epsilon, problem), 1 - problem.continuation
        phases = max(1, ceil(log(4 / (epsilon * remaining**2)) / log(1 / problem.continuation)))
        growth = barycentric_spanner(problem).constant
        confidence = log(2 * problem.dimension * phases / delta)
        return phases, ceil(8 * growth**2 * confidence / (remaining**6 * epsilon**2))

    def run(self, task: Task) -> Run:
        """Repeat value iteration from fresh samples of d pairs."""
        problem, epsilon, delta = task.problem, task.epsilon, task.delta
        needed = self.predicted_samples(problem, inf, epsilon, delta)
        budget = FixedBudget(problem, epsilon, needed, "PPQ-Learning budget (own proof)")
        phases, samples = self.sizes(problem, epsilon, delta)
        spanner = barycentric_spanner(problem)
        pulls = Pulls(spanner.pairs, np.full((1, problem.dimension), samples))

        q_values = np.where(problem.mask, 0.0, -np.inf)
        check = None
        for phase in range(1, phases + 1):
            values = np.clip(q_values.max(axis=1), 0.0, problem.value_limits[0])
            tally = yield Request(pulls, check)
            targets = (tally.reward_sums[0] + problem.continuation * (tally.next_counts[0] @ values)) / samples
            q_values = spanner.table(targets)
            check = budget.check(
                phase * pulls.total, q_values.argmax(axis=1)[None], action_gap(problem, q_values[None])
            )
        assert check is not None
        return check
