"""UCRL-VTR: value-targeted regression in linear mixtures (Jia, Yang, Szepesvári and Wang 2020; Ayoub et al. 2020; in
the form that He, Zhou and Gu 2021 analyse), stopped by a certificate.

    Σ_h = I, b_h = 0 for every step
    repeat
        for steps h from the last to the first, ŵ = Σ_h⁻¹b_h and x_V(s,a) = (P_j V(s,a))_j:
            U(s,a) = r⁺ + x_Uᵀŵ + β_h‖x_U‖_{Σ_h⁻¹}, U(s) = max_a U(s,a), never beyond [0, H-h];   π greedy
            L(s) = r⁻ + x_Lᵀŵ - β_h‖x_L‖_{Σ_h⁻¹}  at a = π(s)
        play π for some episodes
        each visit of step h: Σ_h += xxᵀ, b_h += x·U_{h+1}(s')  with x = x_U(s,a), U = U_{h+1} of *these* episodes
    until U - L ≤ ε at the start; return π

    β_h = ((H-h-1)/2)·√(2 log(2H/δ) + log det Σ_h) + ‖w‖.

*Guarantee.* Targets of an episode have the U that was fixed before it, so their noise, in an interval of length H-h-1,
has mean zero given the past: by the statement of `ridge` (δ/2H each, all times) ‖ŵ - w‖_{Σ_h} ≤ β_h. The ellipsoid is
about the weights, so it bounds x_Vᵀw for every V, chosen from the data or not: U ≥ V* and L ≤ V^π by induction.
Rewards, known in the references, are learned by least squares on the features with the other half of δ. ‖w‖ ≤ 1
because weights are those of a mean. Targets are never recomputed with a later U: the proof needs them as they were.
(The references write H where (H-h-1)/2 suffices.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.mixtures import (
    Kernels,
    LearnedRewards,
    kernels_by_step,
    known_kernels,
    without_kernels,
)
from bestpolicy.algorithms.peers.online import Bounds, Counting, FollowsPolicies, about, best_values, played
from bestpolicy.algorithms.peers.ridge import Fit
from bestpolicy.algorithms.protocol import About, Task
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally


@dataclass(frozen=True)
class UCRLVTR(FollowsPolicies):
    """Value-targeted regression with a certificate, from episodes of a linear mixture.

    Its parameters are those of `Explores`, and

    Attributes
    ----------
    kernels : array (m, S, A, S) or (H, m, S, A, S)
        The kernels whose mixture the problem is; their weights must not be negative and sum to 1.
    """

    name: ClassVar[str] = "ucrl-vtr"
    about: ClassVar[About] = about(
        features="linear",
        assumption="a mixture of known kernels",
        complexity="m² H³ log(1/δ) / ε² episodes, m kernels",
        constants="own proof, half of the reference's radius; with a stop and for unknown rewards",
        reference="Jia, Yang, Szepesvári, Wang (2020); He, Zhou, Gu: Logarithmic Regret for RL (2021)",
    )
    rule: ClassVar[str] = "UCRL-VTR (own proof)"

    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kernels", known_kernels(self.kernels))

    def unsuitable(self, problem: Problem) -> str:
        """Episodic mixtures only."""
        return super().unsuitable(problem) or without_kernels(self.kernels, problem)

    def learner(self, task: Task, start: FloatArray) -> ValueTargets:
        """Return the regressions of all steps."""
        return ValueTargets(self, task, start)


class ValueTargets(Counting[UCRLVTR]):
    """U and L from regressions whose targets stay what they were."""

    def __init__(self, algorithm: UCRLVTR, task: Task, start: FloatArray) -> None:
        super().__init__(algorithm, task, start)
        problem, self.kernels = self.problem, kernels_by_step(algorithm.kernels, task.problem)
        self.learned = LearnedRewards(problem, self.delta / 2)
        bases = self.kernels.shape[2]
        self.grams, self.sums = np.tile(np.eye(bases), (problem.stages, 1, 1)), np.zeros((problem.stages, bases))
        self.targets = np.zeros((problem.stages, problem.states))  # U_{h+1} of the policy that is being played

    def add(self, tally: Tally) -> None:
        """Regress the values that were targets when the episodes began."""
        full = tally.at(self.problem.pairs)
        for h, values in enumerate(self.targets):
            x = self.kernels[h] @ values
            self.grams[h] += (x.T * full.pulls[h]) @ x
            self.sums[h] += x.T @ (full.next_counts[h] @ values)
        super().add(tally)

    def bounds(self, number: int) -> Bounds:
        """Bound V*, and the value of the greedy policy."""
        problem, steps = self.problem, self.problem.stages
        known = self.rewards
        lowest, highest = self.learned.bounds(self.tally) if known is None else (known, known)
        upper, lower = np.zeros(problem.states), np.zeros(problem.states)
        q_values = np.empty((steps, *problem.mask.shape))
        policy = np.empty((steps, problem.states), np.int64)
        for h in reversed(range(steps)):
            self.targets[h] = upper
            fit, kernel = Fit(np.eye(len(self.sums[h])), self.grams[h]), self.kernels[h]
            weights, radius = (
                np.linalg.solve(fit.gram, self.sums[h]),
                fit.radius(steps - h - 1, self.delta / (2 * steps), 1.0),
            )
            above = kernel @ upper
            q_upper = highest[h] + above @ weights + radius * fit.widths_of(above)
            q_values[h], upper = best_values(problem, np.clip(q_upper, 0.0, steps - h))
            policy[h] = greedy(q_values[h])
            chosen = played(problem, policy[h])
            below = kernel[chosen] @ lower
            lower = np.clip(lowest[h][chosen] + below @ weights - radius * fit.widths_of(below), 0.0, steps - h)
        return Bounds(policy, policy, float(self.start @ (upper - lower)), q_values)
