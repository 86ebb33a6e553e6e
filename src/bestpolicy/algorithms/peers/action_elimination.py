"""Action elimination: bound Q* from both sides, sample only the actions that may still be best.

    all allowed actions are active; U = 1/(1-γ), L = 0
    repeat
        draw new samples of every active pair
        improve  U(s) by max over active a of r̂ + γP̂U + w,    L(s) by max over active a of r̂ + γP̂L - w,
        deactivate the actions whose upper bound is below L(s)
    until one action is left in every state, or max_s (U - L) ≤ (1-γ)ε
    return the actions that attain L

(Even-Dar, Mannor and Mansour 2006, from memory; the constants have a proof of our own.) With n allowed pairs and k
samples of a pair,

    w(k) = 1/(1-γ) · √( log(π² n k² / 3δ) / 2k ).

1. r + γV*(s') is a fixed variable in [0, 1/(1-γ)], so by Hoeffding its mean over the first k samples of a pair is off
   by more than w(k) with probability at most 6δ/(π² n k²). Summed over all k and all pairs this is δ. So with
   probability 1 - δ all means are within w at *all* k: it does not matter when we look, nor which pairs we go on with
   and why.
2. Then V* ≤ T̂V* + w and V* ≥ T̂V* - w with the backup T̂ of the empirical model, which is monotone and contracts: V*
   lies between the optimal values of the model with rewards r̂ - w and with r̂ + w. Also U ≥ V* implies r̂ + γP̂U + w ≥
   Q*, and L ≤ V* implies r̂ + γP̂L - w ≤ Q*. Old bounds stay true, so bounds only ever improve.
3. An action is dropped only if its Q* is below V*: optimal actions stay, and maxima over active actions are enough.
4. The returned π(s) is the action that attained L(s) when it was set, so V*(s) - Q*(s, π(s)) ≤ U(s) - L(s), and it is
   0 where one action is left. Hence V* - V^π ≤ max_s (U - L)/(1-γ) over the other states: an ε certified at every
   check.

U and L bound V*, not V^π: that is why the last step costs a factor 1/(1-γ).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, pi
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.algorithms.peers.budget import look, only_discounted, useful
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, LooksAgain, plan, table
from bestpolicy.algorithms.protocol import MAX_ROUNDS, About, Request, Run, Task, check_times
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class ActionElimination(LooksAgain):
    """Model-based action elimination, for discounted problems.

    Attributes
    ----------
    check_ratio : float
        Look at the data each time the number of samples of an active pair has grown by this factor.
    """

    name: ClassVar[str] = "action-elimination"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="",
        guarantee="an ε for the policy at every check, and within the asked ε of optimal in every state at the end",
        complexity="S A / ((1-γ)⁴ max(Δ, (1-γ)ε)²)",
        constants="own proof",
        reference="Even-Dar, Mannor, Mansour: Action Elimination and Stopping Conditions (2006)",
    )

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return only_discounted(problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Samples of all pairs until 2w/(1-γ) is the gap or (1-γ)ε, as if all gaps were the smallest one."""
        limit = float(problem.value_limits[0])
        accuracy = max(gap, useful(epsilon, problem) / limit)
        if not 0 < accuracy < inf:
            return inf if accuracy == 0 else float("nan")
        samples = 2.0
        for _ in range(100):  # k = 2 L⁴ log(c k²)/accuracy², a contraction
            samples = max(2.0, 2 * limit**4 * _log_term(len(problem.pairs), samples, delta) / accuracy**2)
        return len(problem.pairs) * samples

    def run(self, task: Task) -> Run:
        """Sample active pairs until the bounds are close enough or one action is left everywhere."""
        problem, epsilon, delta = task.problem, task.epsilon, task.delta
        tally = Tally.empty(problem, problem.pairs)
        bounds = Bounds(problem, delta)
        check: Check | None = None
        for samples in check_times(_log_term(len(problem.pairs), 1, delta), self.check_ratio):
            active = np.where(bounds.active.ravel()[problem.pairs], samples, 0)
            pulls = Pulls(problem.pairs, np.maximum(active - tally.pulls, 0))
            if tally.samples + pulls.total > MAX_ROUNDS:
                break
            tally += yield Request(pulls, check)
            bounds.improve(tally)
            bounds.eliminate()
            check = bounds.check(tally, epsilon)
            if check.passed:
                break
        assert check is not None
        return check


def _log_term(pairs: int, samples: float, delta: float) -> float:
    return log(pi**2 * pairs / (3 * delta)) + 2 * log(samples)


def width(problem: Problem, samples: IntArray, delta: float) -> FloatArray:
    """w(k) for k ≥ 1: all means are within it at all k together with probability 1 - δ."""
    logarithms = _log_term(len(problem.pairs), 1, delta) + 2 * np.log(samples)
    radius: FloatArray = problem.value_limits[0] * np.sqrt(logarithms / (2 * samples))
    return radius


class Bounds:
    """U ≥ V* ≥ L, the actions that may be optimal, and the policy that attains L.

    Parameters
    ----------
    problem : Problem
    delta : float
    """

    def __init__(self, problem: Problem, delta: float) -> None:
        self.problem, self.delta = problem, delta
        self.active: BoolArray = problem.mask.copy()
        self.upper: FloatArray = np.full(problem.states, problem.value_limits[0])
        self.lower: FloatArray = np.zeros(problem.states)
        self.policy: IntArray = problem.mask.argmax(axis=1).astype(np.int64)
        self.q_upper: FloatArray = table(problem, np.full(len(problem.pairs), problem.value_limits[0]))
        self.q_lower: FloatArray = table(problem, np.zeros(len(problem.pairs)))

    def improve(self, tally: Tally) -> None:
        """Take the samples so far into account."""
        problem, model = self.problem, EmpiricalModel.of(self.problem, tally)
        radius = width(problem, tally.pulls[0], self.delta)
        allowed = np.where(self.active.ravel()[problem.pairs], 0.0, -np.inf)
        above = plan(replace(model, rewards=model.rewards + radius + allowed))
        below = plan(replace(model, rewards=model.rewards - radius + allowed))
        self.upper = np.minimum(self.upper, above.values)
        self._raise(below.values, below.policy)
        # The plans do not know the older bounds: one backup from the best of both.
        self.q_upper = self._of_active(model.backup(self.upper) + radius)
        self.q_lower = self._of_active(model.backup(self.lower) - radius)
        self.upper = np.minimum(self.upper, self.q_upper.max(axis=1))
        self._raise(self.q_lower.max(axis=1), self.q_lower.argmax(axis=1))

    def _raise(self, lower: FloatArray, attained_by: IntArray) -> None:
        self.policy = np.where(lower > self.lower, attained_by, self.policy)
        self.lower = np.maximum(self.lower, lower)

    def _of_active(self, numbers: FloatArray) -> FloatArray:
        return np.where(self.active, table(self.problem, numbers), -np.inf)

    def eliminate(self) -> None:
        """Drop the actions that cannot be optimal. One always stays: on an unlucky run the bounds may contradict."""
        best = self.q_upper.argmax(axis=1)
        self.active &= self.q_upper >= self.lower[:, None]
        self.active[np.arange(self.problem.states), best] = True
        decided = self.active.sum(axis=1) == 1
        self.policy = np.where(decided, self.active.argmax(axis=1), self.policy)

    def check(self, tally: Tally, epsilon: float) -> Check:
        """Say which ε is certified. The statistic is the share reached of what is asked."""
        undecided = self.active.sum(axis=1) > 1
        gaps = (self.upper - self.lower)[undecided]
        # Every policy is within the largest value, and bounds that contradict each other prove no more than ε = 0.
        limit = float(self.problem.value_limits[0])
        certified = min(max(float(gaps.max()) * limit, 0.0), limit) if undecided.any() else 0.0
        passed = certified <= epsilon
        removable = len(self.problem.pairs) - self.problem.states
        removed = len(self.problem.pairs) - int(self.active.sum())
        reached = 1.0 if passed else max(epsilon / certified, removed / max(removable, 1))
        middle = np.where(self.problem.mask, (self.q_upper + self.q_lower) / 2, -np.inf)
        rule = "action elimination (own proof)"
        return look(self.problem, tally.samples, self.policy, middle, reached, certified, passed, rule)
