"""Linear plug-in: sample the anchors, plan in the model that they give.

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    draw N samples of each:  r̂_k, P̂_k
    return an optimal policy of the model  r̂ = F r̂_K,  P̂ = F P̂_K

    N = ⌈ 2 log(2K/δ) / ((1-γ)⁶ε²) ⌉

The idea is that of Wang, Yan and Fan (2021), who show K/((1-γ)³ε²) without naming a constant. This N is *our own
proof*. P̂ is stochastic because F ≥ 0, so the estimated Bellman operator T̂ contracts: |Q̂* - Q*| ≤ |(T̂ - T)V*|/(1-γ).
V* is fixed: by Hoeffding and a union over K means |(T̂ - T)V*| ≤ √(log(2K/δ)/2N)/(1-γ) at the anchors, hence at all
their convex combinations. A greedy policy of Q̂* loses at most 2|Q̂* - Q*|/(1-γ) ≤ ε. With combinations that are not
convex T̂ need not contract, and nothing is proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import LEAST_EPSILON, FixedBudget, useful
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.design.anchors import anchors, why_no_anchors
from bestpolicy.estimation import Pulls
from bestpolicy.planning import optimal_plan
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class LinearPlugIn:
    """Plan in a model estimated at the anchors; nothing to set."""

    name: ClassVar[str] = "linear-plug-in"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="anchors: pairs whose features have all others in their convex hull",
        guarantee="within ε of optimal in every state",
        complexity="K / ((1-γ)⁶ ε²), where K ≥ d is the number of anchors",
        constants="own proof",
        reference="cf. Wang, Yan, Fan: Sample-Efficient Reinforcement Learning for Linearly-Parameterized MDPs with a "
        "Generative Model",
    )
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems with anchors only."""
        if problem.horizon is not None:
            return "it is for discounted problems; use 'lavi'."
        reason = why_no_anchors(problem)
        return reason and f"{reason}. Use 'ppq', which does without."

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """All K·N of them."""
        if epsilon < LEAST_EPSILON:
            return inf
        return len(anchors(problem).pairs) * self.samples_per_anchor(problem, epsilon, delta)

    def samples_per_anchor(self, problem: Problem, epsilon: float, delta: float) -> int:
        """Return N."""
        confidence = log(2 * len(anchors(problem).pairs) / delta)
        return ceil(2 * confidence / ((1 - problem.continuation) ** 6 * useful(epsilon, problem) ** 2))

    def run(self, task: Task) -> Run:
        """Sample once, plan once."""
        problem, epsilon, delta = task.problem, task.epsilon, task.delta
        needed = self.predicted_samples(problem, inf, epsilon, delta)
        budget = FixedBudget(problem, epsilon, needed, "linear plug-in budget (own proof)")
        samples = self.samples_per_anchor(problem, epsilon, delta)
        corners = anchors(problem)
        tally = yield Request(Pulls(corners.pairs, np.full((1, len(corners.pairs)), samples)))
        # The estimated model is linear in the coefficients F, which serve as features.
        features = np.zeros((problem.mask.size, len(corners.pairs)))
        features[problem.pairs] = corners.coefficients
        model = problem.with_features(features.reshape(*problem.mask.shape, -1))
        plan = optimal_plan(model, tally.reward_sums / samples, tally.next_counts.swapaxes(1, 2) / samples)
        return budget.check(tally.samples, plan.policy, plan.gap)
