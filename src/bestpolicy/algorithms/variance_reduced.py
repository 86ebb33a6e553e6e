"""Variance-reduced value iteration from below, at K pairs from which all others follow.

    v = 0, π = any policy, β = 1/(1-γ)
    for u = β, β/2, ..., R' times                                       (V* - v ≤ u when it begins, u/2 when it ends)
        v₀ = v;  from m samples of each of the K pairs: w, lower estimate of P v₀, and r, lower estimate of the reward
        for j = 0, ..., R
            g = lower estimate of P(v - v₀) from m₁ fresh samples of each of them         (0 if j = 0)
            Q = F (r + γ clip(w + g, 0, β));   where max_a Q > v, set v to it and π to its action
    return π

    R' = ⌈log₂(β/ε)⌉,   δ' = δ/R',   ℓ = log(10K/δ'),   m = ⌈8192 ℓ β³ / min(u, √β)²⌉,   a = ℓ/m
    R = ⌈4β log(2β/u)⌉,   m₁ = ⌈128 β² log(2RK/δ')⌉
    w = ŵ - √(2aσ̂²) - 4a^¾ ‖v₀‖ - ⅔a‖v₀‖,   r = max(0, r̂ - √(a/2)),   g = mean of v(s') - v₀(s'), less (1-γ)u/8

F extends numbers at the K pairs to all: φ(s,a) = Σ_k F_k(s,a) φ_k with F ≥ 0 and Σ_k F_k = 1. With anchors this is
`OPPQ`; with all pairs, F = 1, it is `VQVI`. The increments v - v₀ are small, so few samples do for them; the many
samples for v₀ are drawn once in a round.

(4, 8192, 128) are the constants that Sidford et al. (2018) call sufficient, with repairs: δ/R' for each round, where
they pass δ to each; √β in m, without which the sum below is not small enough in the first rounds of large β; 2β/u in R,
where β/u makes it 0 at first; 10 in ℓ, where they have 8, for rewards that are learned, at no price, from the same
samples. The proof of what is run is our own. With probability 1 - δ' a round keeps v ≤ T_π v, hence v ≤ V^π ≤ V*, and
turns V* - v ≤ u into V* - v ≤ u/2:

* Lower estimates. Bernstein for the mean of v₀, and Hoeffding for those of v₀, v₀² (which together bound |σ̂² - σ²| by
  2.2√a‖v₀‖²) and the rewards, give w ≤ P v₀ ≤ w + 2√(2aσ²) + 6.1a^¾‖v₀‖ + 1.4a‖v₀‖ and r ≤ true ≤ r + √(2a) at all K
  pairs but for ⅘δ'. As long as v₀ ≤ v ≤ V* ≤ v₀ + u, Hoeffding with range u gives g ≤ P(v - v₀) ≤ g + (1-γ)u/4 in all
  R steps but for 2RK(δ'/2RK)⁴ ≤ δ'/8.
* From below. Then Q is at most the true reward plus γPv, because F ≥ 0; so v ≤ T_π v is kept where an action is
  replaced and, v growing, where it is not.
* Progress. V* - v shrinks by γP_{π*} a step up to the widths above: in the end it is at most γᴿu + u/4, plus the
  discounted sum of the widths of r and γw along π*. Mixtures vary more than their parts: Σ_k F_k σ_k ≤ σ ≤ σ(V*) + u/2;
  and γ(I - γP)⁻¹ σ(V*) ≤ β^{3/2}/√2, because (I - γ²P)⁻¹ γ²σ²(V*) is the variance of a return in [0, β]. The m above
  makes that sum at most (.016 + .023 + .016 + .008)u, and γᴿ ≤ (u/2β)⁴ ≤ 1/16: less than u/2 in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log, log2, sqrt

import numpy as np

from bestpolicy.algorithms.budget import FixedBudget
from bestpolicy.algorithms.protocol import Request, Run
from bestpolicy.algorithms.rewards import lower_rewards
from bestpolicy.estimation import Pulls
from bestpolicy.planning import action_gap
from bestpolicy.problem import FloatArray, IntArray, Problem


@dataclass(frozen=True)
class Round:
    """What is fixed of a round before the first sample.

    Attributes
    ----------
    error : float
        u, the error with which it begins.
    references : int
        m, the samples of each pair at its beginning.
    steps, increments : int
        R, and the samples m₁ of each pair in a step.
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
        """Samples of each pair."""
        return self.references + self.steps * self.increments


def rounds(problem: Problem, pairs: int, epsilon: float, delta: float) -> list[Round]:
    """Compute all numbers of samples of K pairs from (ε, δ); one round at least, which any ε ≥ β is content with."""
    limit = float(problem.value_limits[0])
    number = max(1, ceil(log2(limit / epsilon)))
    share = delta / number
    sizes = []
    for error in (limit / 2**i for i in range(number)):
        references = ceil(8192 * log(10 * pairs / share) * limit**3 / min(error, sqrt(limit)) ** 2)
        steps = ceil(4 * limit * log(2 * limit / error))
        increments = ceil(128 * limit**2 * log(2 * steps * pairs / share))
        sizes.append(Round(error, references, steps, increments, share))
    return sizes


def halve_the_error(
    budget: FixedBudget,
    sizes: list[Round],
    pairs: IntArray,
    table: Callable[[FloatArray], FloatArray],
    known_rewards: FloatArray | None,
) -> Run:
    """Come nearer to V* from below, round by round.

    Parameters
    ----------
    budget : FixedBudget
    sizes : list of Round
    pairs : int array (K,)
        The pairs to sample.
    table : callable
        F: extends numbers (K,) at these pairs to all, (S, A); -inf where an action is not allowed.
    known_rewards : array (S, A), optional
        Learned if not given.
    """
    problem, done, check = budget.problem, 0, None
    limit = float(problem.value_limits[0])

    def pulls(samples: int) -> Pulls:
        return Pulls(pairs, np.full((1, len(pairs)), samples))

    values, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
    for each in sizes:
        start = values
        tally = yield Request(pulls(each.references), check)
        # A fifth of δ' for each of four events makes the ℓ of the formulas.
        reference = following = lower_mean(tally.next_counts[0], start, each.delta / 5)
        rewards = known_rewards
        if rewards is None:
            rewards = table(lower_rewards(tally.reward_sums[0], each.references, each.delta / 5))
        for step in range(each.steps + 1):
            if step > 0:
                tally = yield Request(pulls(each.increments))
                increment = tally.next_counts[0] @ (values - start) / each.increments
                following = reference + increment - each.error / (8 * limit)
            q_values = rewards + problem.continuation * table(np.clip(following, 0.0, limit))
            values, policy = improved(values, policy, q_values)
        done += len(pairs) * each.samples
        check = budget.check(done, policy[None], action_gap(problem, q_values[None]))
        check = replace(check, epsilon=each.error / 2)
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
