"""OPPQ-Learning: variance-reduced value iteration from below at anchors [Yang, Wang 2019, Algorithm 2].

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    v = 0, π = any policy, β = 1/(1-γ)
    for u = β, β/2, ..., R' times                                       (V* - v ≤ u when it begins, u/2 when it ends)
        v₀ = v;  from m samples of each anchor: w, lower estimate of P v₀, and r, lower estimate of the reward
        for j = 0, ..., R
            g = lower estimate of P(v - v₀) from m₁ fresh samples of each anchor          (0 if j = 0)
            Q = F (r + γ clip(w + g, 0, β));   where max_a Q > v, set v to it and π to its action
    return π

    R' = ⌈log₂(β/ε)⌉,   δ' = δ/R',   ℓ = log(10K/δ'),   m = ⌈8192 ℓ β³ / min(u, √β)²⌉,   a = ℓ/m
    R = ⌈4β log(2β/u)⌉,   m₁ = ⌈128 β² log(2RK/δ')⌉
    w = ŵ - √(2aσ̂²) - 4a^¾ ‖v₀‖ - ⅔a‖v₀‖,   r = max(0, r̂ - √(a/2)),   g = mean of v(s') - v₀(s'), less (1-γ)u/8

Structure and orders are the reference's. It hides its constants, which are *reconstructed* here from variance-reduced
QVI (Sidford et al. 2018; with one-hot features this is that algorithm), and checked:

* Lower estimates. Bernstein for the mean of v₀, and Hoeffding for those of v₀, v₀² (which together bound |σ̂² - σ²| by
  2.2√a‖v₀‖²) and the rewards, give w ≤ P v₀ ≤ w + 2√(2aσ²) + 6.1a^¾‖v₀‖ + 1.4a‖v₀‖ and r ≤ true ≤ r + √(2a) at all
  anchors but for ⅘δ'. As long as v₀ ≤ v ≤ V* ≤ v₀ + u, Hoeffding with range u gives g ≤ P(v - v₀) ≤ g + (1-γ)u/4 in all
  R steps but for δ'/8.
* From below. Then Q is at most the true reward plus γPv, because F ≥ 0; so v ≤ T_π v ≤ V^π always, and v ≤ V*.
* Progress. V* - v shrinks by γP_{π*} a step up to the widths above: in the end it is at most γᴿu + u/4, plus the
  discounted sum of the widths of r and γw along π*. Mixtures vary more than their parts: Σ_k F_k σ_k ≤ σ ≤ σ(V*) + u/2;
  and γ(I - γP)⁻¹ σ(V*) ≤ β^{3/2}/√2 (total variance of a return in [0, β]). The m above makes that sum at most
  (.016 + .023 + .016 + .008)u, and γᴿ ≤ (u/2β)⁴ ≤ 1/16: less than u/2 in all.

Rewards are known to the reference. Here they are learned from the same samples, unless `rewards` are given.
The minimum with √β in m is ours: with u alone the sum above is not small enough in the first rounds of large β.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log, log2, sqrt
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import FixedBudget
from bestpolicy.algorithms.protocol import About, Request, Run
from bestpolicy.algorithms.rewards import RewardTable, lower_rewards, reward_table, why_not_these
from bestpolicy.design.anchors import anchors, why_no_anchors
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem


@dataclass(frozen=True)
class Round:
    """What is fixed of a round before the first sample.

    Attributes
    ----------
    error : float
        u, the error with which it begins.
    references : int
        m, the samples of each anchor at its beginning.
    steps, increments : int
        R, and the samples m₁ of each anchor in a step.
    delta : float
        δ', its probability of error.
    """

    error: float
    references: int
    steps: int
    increments: int
    delta: float

    @property
    def samples(self) -> int:
        """Samples of each anchor."""
        return self.references + self.steps * self.increments


@dataclass(frozen=True)
class OPPQ:
    """Optimal parametric phased Q-learning.

    Attributes
    ----------
    rewards : table (S, A), optional
        Mean rewards, if they are known; learned by default.
    """

    name: ClassVar[str] = "oppq"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="anchors: pairs whose features have all others in their convex hull",
        guarantee="within ε of optimal in every state",
        complexity="K / ((1-γ)³ ε²), where K ≥ d is the number of anchors",
        constants="reconstructed from variance-reduced QVI",
        reference="Yang, Wang: Sample-Optimal Parametric Q-Learning Using Linearly Additive Features, Algorithm 2",
    )
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    rewards: RewardTable | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", reward_table(self.rewards))

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems with anchors only."""
        if problem.horizon is not None:
            return "it is for discounted problems; use 'lavi'."
        reason = why_no_anchors(problem)
        return f"{reason}. Use 'ppq', which does without." if reason else why_not_these(self.rewards, problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """All K·Σ(m + R·m₁) of them."""
        if not epsilon > 0:
            return inf
        rounds = self.rounds(problem, epsilon, delta)
        return float(len(anchors(problem).pairs) * sum(each.samples for each in rounds))

    def rounds(self, problem: Problem, epsilon: float, delta: float) -> list[Round]:
        """Compute all numbers of samples from (ε, δ)."""
        limit, count = float(problem.value_limits[0]), len(anchors(problem).pairs)
        rounds = max(1, ceil(log2(limit / epsilon)))
        share = delta / rounds
        sizes = []
        for error in (limit / 2**i for i in range(rounds)):
            references = ceil(8192 * log(10 * count / share) * limit**3 / min(error, sqrt(limit)) ** 2)
            steps = ceil(4 * limit * log(2 * limit / error))
            increments = ceil(128 * limit**2 * log(2 * steps * count / share))
            sizes.append(Round(error, references, steps, increments, share))
        return sizes

    def run(
        self, problem: Problem, epsilon: float, delta: float, rng: np.random.Generator, own_data: Tally | None = None
    ) -> Run:
        """Halve the distance to V* from below, round by round."""
        needed = self.predicted_samples(problem, inf, epsilon, delta)
        budget = FixedBudget(problem, epsilon, needed, "OPPQ-Learning budget (constants of vQVI)")
        corners, limit, done = anchors(problem), float(problem.value_limits[0]), 0

        def pulls(samples: int) -> Pulls:
            return Pulls(corners.pairs, np.full((1, len(corners.pairs)), samples))

        values, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
        check = None
        for each in self.rounds(problem, epsilon, delta):
            start = values
            tally = yield Request(pulls(each.references), check)
            reference = following = lower_mean(tally.next_counts[0], start, each.delta / 5)
            if self.rewards is None:
                rewards = corners.table(lower_rewards(tally.reward_sums[0], each.references, each.delta / 5))
            else:
                rewards = np.asarray(self.rewards)
            for step in range(each.steps + 1):
                if step > 0:
                    tally = yield Request(pulls(each.increments))
                    increment = tally.next_counts[0] @ (values - start) / each.increments
                    following = reference + increment - each.error / (8 * limit)
                q_values = rewards + problem.continuation * corners.table(np.clip(following, 0.0, limit))
                values, policy = improved(values, policy, q_values)
            done += pulls(each.samples).total
            check = budget.check(done, policy[None])
        assert check is not None
        return check


def lower_mean(counts: IntArray, values: FloatArray, delta: float) -> FloatArray:
    """Lower estimates of the mean of `values` (S,) from counts of next states (K, S), wrong with probability 3δ."""
    confidence = log(2 * len(counts) / delta)
    samples = counts.sum(axis=1)
    means = counts @ values / samples
    variances = (counts * (values - means[:, None]) ** 2).sum(axis=1) / samples
    share, largest = confidence / samples, values.max()
    lower: FloatArray = means - np.sqrt(2 * share * variances) - (4 * share**0.75 + 2 / 3 * share) * largest
    return lower


def improved(values: FloatArray, policy: IntArray, q_values: FloatArray) -> tuple[FloatArray, IntArray]:
    """Take over the better action values (S, A), and keep value and action elsewhere."""
    best = q_values.max(axis=1)
    better = best > values
    return np.where(better, best, values), np.where(better, q_values.argmax(axis=1), policy)
