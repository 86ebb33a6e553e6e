"""OPPQ-Learning: variance-reduced value iteration from below at anchors [Yang, Wang 2019, Algorithm 2].

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    v = 0, π = any policy, β = 1/(1-γ)
    for u = β, β/2, ..., R' times                                       (V* - v ≤ u when it begins, u/2 when it ends)
        v₀ = v;  w = lower estimate of P v₀ from m samples of each anchor
        for j = 0, ..., R
            g = lower estimate of P(v - v₀) from m₁ fresh samples of each anchor          (0 if j = 0)
            Q = r + γ F clip(w + g, 0, β);   where max_a Q > v, set v to it and π to its action
    return π

    R' = ⌈log₂(β/ε)⌉,   R = ⌈4β log(2β/ε)⌉,   δ' = δ/R',   ℓ = log(8K/δ')
    m  = ⌈8192 ℓ β³ max(1/u², 1/(64β))⌉,   m₁ = ⌈128 β² log(2RK/δ')⌉
    w  = ŵ - √(2aσ̂²) - 4a^¾ ‖v₀‖ - ⅔a‖v₀‖,  a = ℓ/m;    g = mean of v(s') - v₀(s'), less (1-γ)u/8

Structure and orders are the reference's; it hides its constants, which are *reconstructed* here from variance-reduced
QVI (Sidford et al. 2018), and checked:

* Lower estimates. Bernstein for the mean of v₀, and Hoeffding for those of v₀ and v₀² (which together bound |σ̂² - σ²|
  by 2.2√a‖v₀‖²), give w ≤ P v₀ ≤ w + 2√(2aσ²) + 6.1a^¾‖v₀‖ + 1.4a‖v₀‖ at all anchors with probability 1 - ¾δ'. As long
  as v₀ ≤ v ≤ V* ≤ v₀ + u, Hoeffding with range u gives g ≤ P(v - v₀) ≤ g + (1-γ)u/4 in all R steps but for δ'/8.
* From below. Then Q ≤ r + γPv, because F ≥ 0; so v ≤ T_π v ≤ V^π always, and v ≤ V*.
* Progress. V* - v shrinks by γP_{π*} a step up to the widths above: in the end it is at most γᴿu + u/4, plus γ times
  the discounted sum of the widths of w along π*. Mixtures vary more than their parts: Σ_k F_k σ_k ≤ σ ≤ σ(V*) + u/2;
  and γ(I - γP)⁻¹ σ(V*) ≤ β^{3/2}/√2 (total variance of a return in [0, β]). The m above makes that sum at most
  .023u + .125u + .021u, and γᴿ ≤ (ε/2β)⁴ ≤ 1/16: less than u/2 in all.
  The term 1/(64β) is ours. Without it the second round fails if β/2 > 8√β, that is for discounts above .996.

Rewards are known to the reference. Unless `rewards` are given, they are learned at the anchors first, from below
(`bestpolicy.algorithms.rewards`). They take a tenth of δ, and of ε what β/2^R' leaves; if one more round than R' makes
the whole run shorter, because it leaves more, there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log, log2
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import FixedBudget
from bestpolicy.algorithms.protocol import About, Request, Run
from bestpolicy.algorithms.rewards import RewardTable, learn_rewards, reward_samples, reward_table, why_not_these
from bestpolicy.design.anchors import anchors, why_no_anchors
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem

_REWARD_DELTA = 0.1  # share of δ that learning the rewards may use


@dataclass(frozen=True)
class Sizes:
    """Numbers that are fixed before the first sample.

    Attributes
    ----------
    errors : tuple of float
        u, the error with which each round begins.
    references : tuple of int
        m, the samples of each anchor at the beginning of each round.
    steps, increments : int
        R, and the samples m₁ of each anchor in a step.
    confidence : float
        ℓ.
    reward_accuracy, reward_delta : float
        For learning the rewards; 0 if they are known.
    reward_samples : int
        Of each anchor.
    """

    errors: tuple[float, ...]
    references: tuple[int, ...]
    steps: int
    increments: int
    confidence: float
    reward_accuracy: float
    reward_delta: float
    reward_samples: int

    @property
    def per_anchor(self) -> int:
        """Samples of each anchor in the whole run."""
        return self.reward_samples + sum(self.references) + len(self.errors) * self.steps * self.increments


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
        constants="reconstructed from variance-reduced QVI, with a repair for discounts above .996",
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
        """All of them: those of rewards, references and increments."""
        if not epsilon > 0:
            return inf
        return float(len(anchors(problem).pairs) * self.sizes(problem, epsilon, delta).per_anchor)

    def sizes(self, problem: Problem, epsilon: float, delta: float) -> Sizes:
        """Compute all numbers of samples from (ε, δ)."""
        limit, count = float(problem.value_limits[0]), len(anchors(problem).pairs)
        epsilon = min(epsilon, limit)  # every policy is within the limit
        rounds = max(1, ceil(log2(limit / epsilon)))
        if self.rewards is not None:
            return _sizes(limit, count, epsilon, delta, rounds, reward_accuracy=0.0)
        left = {r: (epsilon - limit / 2**r) / limit for r in (rounds, rounds + 1)}
        options = [_sizes(limit, count, epsilon, delta, r, accuracy) for r, accuracy in left.items() if accuracy > 0]
        return min(options, key=lambda option: option.per_anchor)

    def run(
        self, problem: Problem, epsilon: float, delta: float, rng: np.random.Generator, own_data: Tally | None = None
    ) -> Run:
        """Halve the distance to V* from below, round by round."""
        needed = self.predicted_samples(problem, inf, epsilon, delta)
        budget = FixedBudget(problem, epsilon, needed, "OPPQ-Learning budget (constants of vQVI)")
        sizes, corners, limit = self.sizes(problem, epsilon, delta), anchors(problem), float(problem.value_limits[0])
        done = sizes.reward_samples * len(corners.pairs)
        if self.rewards is None:
            lower = yield from learn_rewards(problem, corners.pairs, sizes.reward_accuracy, sizes.reward_delta)
            rewards = corners.table(lower)
        else:
            rewards = np.asarray(self.rewards)

        def pulls(samples: int) -> Pulls:
            return Pulls(corners.pairs, np.full((1, len(corners.pairs)), samples))

        values, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
        check = None
        for error, samples in zip(sizes.errors, sizes.references, strict=True):
            start = values
            tally = yield Request(pulls(samples), check)
            reference = lower_mean(tally.next_counts[0], start, sizes.confidence)
            following = reference
            for step in range(sizes.steps + 1):
                if step > 0:
                    tally = yield Request(pulls(sizes.increments))
                    increment = tally.next_counts[0] @ (values - start) / sizes.increments
                    following = reference + increment - error / (8 * limit)
                q_values = rewards + problem.continuation * corners.table(np.clip(following, 0.0, limit))
                values, policy = improved(values, policy, q_values)
            done += pulls(samples).total + sizes.steps * pulls(sizes.increments).total
            check = budget.check(done, policy[None])
        assert check is not None
        return check


def _sizes(limit: float, count: int, epsilon: float, delta: float, rounds: int, reward_accuracy: float) -> Sizes:
    """Sizes for K anchors and R' rounds, with rewards learned to an accuracy (0: known)."""
    reward_delta = _REWARD_DELTA * delta if reward_accuracy > 0 else 0.0
    round_delta = (delta - reward_delta) / rounds
    confidence = log(8 * count / round_delta)
    errors = tuple(limit / 2**i for i in range(rounds))
    steps = ceil(4 * limit * log(2 * limit / epsilon))
    return Sizes(
        errors=errors,
        references=tuple(ceil(8192 * confidence * limit**3 * max(u**-2, 1 / (64 * limit))) for u in errors),
        steps=steps,
        increments=ceil(128 * limit**2 * log(2 * steps * count / round_delta)),
        confidence=confidence,
        reward_accuracy=reward_accuracy,
        reward_delta=reward_delta,
        reward_samples=reward_samples(count, reward_accuracy, reward_delta) if reward_accuracy > 0 else 0,
    )


def lower_mean(counts: IntArray, values: FloatArray, confidence: float) -> FloatArray:
    """Lower estimates of the mean of `values` (S,) from counts of next states (K, S), by Bernstein's inequality."""
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
