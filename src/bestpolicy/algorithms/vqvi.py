"""Variance-reduced Q-value iteration: halve the error of a lower bound on V* again and again (Sidford and others
2018).

    v = 0, u = 1/(1-γ)
    while u > ε
        v₀ = v;  from m₁ samples of every pair bound P v₀ from below by w, and the rewards by r
        Q = r + γw
        R times
            v = max(v, max_a Q), keeping the action that attains it
            from m₂ fresh samples of every pair bound P(v - v₀) from below by g;   Q = r + γ(w + g)
        v = max(v, max_a Q), keeping the action that attains it
        u = u/2
    return the kept actions

The increments v - v₀ are small, so few samples do for them; the many samples for v₀ are drawn once in a halving.

Constants: those that the reference gives as sufficient, (4, 8192, 128), with the repairs below; own proof for what is
run. Let L = 1/(1-γ), n the number of allowed pairs, K = ⌈log₂(L/ε)⌉ the number of halvings, δ' = δ/K (the reference
passes δ to each), ū = min(u, √L), c = log(10n/δ') and α = c/m₁. Then

    m₁ = ⌈ 8192 L³ c / ū² ⌉,      R = ⌈ 4 L log(2L/u) ⌉,      m₂ = ⌈ 128 L² log(2Rn/δ') ⌉,
    w = mean - √(2ασ̂²) - 4α^{3/4}‖v₀‖ - (2/3)α‖v₀‖,    r = max(0, mean - √(α/2)),    g = mean - (1-γ)u/8.

Repairs: ū in place of u in m₁, which the proof needs while u > √L; 2L/u in place of L/u in R, which
would be 0 at first; 10 in place of 8 in c, for rewards that are learned, at no price, from the same samples.

Claim: with probability 1 - δ' a halving keeps v ≤ T_π v, hence v ≤ V^π ≤ V*, and turns V* - v ≤ u into V* - v ≤ u/2.

1. By Bernstein for the mean of v₀(s') and Hoeffding for it, for v₀(s')² and for the reward, each of which fails at
   some pair with at most δ'/5: |σ̂² - σ²| ≤ 3‖v₀‖²√(α/2), w ≤ P v₀ and r is at most the mean reward. As long as v ≤
   V* the increments are in [0, u], so by Hoeffding all g ≤ P(v - v₀) ≤ g + (1-γ)u/4, but for 2Rn(δ'/2Rn)⁴ < δ'/64.
2. So Q ≤ r + γPv throughout, and v ≤ T_π v is kept where an action is replaced and, v growing, where it is not.
3. P v₀ - w ≤ 2√(2α)σ(v₀) + 8α^{3/4}L + (4/3)αL with σ(v₀) ≤ σ(V*) + u. For π* optimal γ(I - γP^{π*})⁻¹σ(V*) ≤
   L^{3/2}/√2, because (I - γ²P^{π*})⁻¹γ²σ²(V*) is the variance of a return, at most L²/4. Hence, with √(2α) ≤ ū/(64
   L^{3/2}),

       γ(I - γP^{π*})⁻¹(P v₀ - w) ≤ ū/45 + ūu/(32√L) + ū^{3/2}/(107 L^{1/4}) + ū²/(6144 L) ≤ 0.064 u,

   and L·√(2α) ≤ u/64 for the rewards. With u/4 for g, and γ^R u ≤ (u/2L)⁴u ≤ u/16 for what is left of the first
   error, the new error is at most 0.4 u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log, log2, nan, sqrt
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.budget import FixedBudget
from bestpolicy.algorithms.protocol import About, Request, Run
from bestpolicy.algorithms.rewards import known_rewards, lower_rewards, reward_table, why_not_these
from bestpolicy.algorithms.tabular import (
    LEAST_EPSILON,
    ONLY_DISCOUNTED,
    equal_pulls,
    table,
)
from bestpolicy.estimation import Tally
from bestpolicy.planning import action_gap
from bestpolicy.problem import FloatArray, IntArray, Problem
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class VQVI:
    """Variance-reduced Q-value iteration, for discounted problems and ε > 0.

    Attributes
    ----------
    rewards : table (S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    name: ClassVar[str] = "vqvi"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="",
        guarantee="an ε for the policy after every halving, at the end the asked one, in every state",
        complexity="S A / ((1-γ)³ ε²)",
        constants="exact, with repairs; own proof",
        reference="Sidford, Wang, Wu, Yang, Ye: Near-Optimal Time and Sample Complexities for Solving MDPs (2018)",
    )
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    rewards: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", reward_table(self.rewards))

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        if problem.horizon is not None:
            return ONLY_DISCOUNTED
        return why_not_these(reward_table(self.rewards), problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Σ over the halvings of n·(m₁ + R·m₂), exactly."""
        if epsilon < LEAST_EPSILON:
            return inf
        return len(problem.pairs) * sum(
            halving.first + halving.sweeps * halving.fresh for halving in halvings(problem, epsilon, delta)
        )

    def run(
        self,
        problem: Problem,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
        own_data: Tally | None = None,
    ) -> Run:
        """Halve the error until it is at most ε."""
        samples_in_all = self.predicted_samples(problem, nan, epsilon, delta)
        budget = FixedBudget(problem, epsilon, samples_in_all, "variance-reduced QVI (own proof)")
        known = reward_table(self.rewards)
        gamma = problem.continuation

        bound = LowerBound(problem)
        made, check = 0, None
        for halving in halvings(problem, epsilon, delta):
            start = bound.values
            tally = yield Request(equal_pulls(problem, halving.first), check)
            made += tally.samples
            means = halving.lower_means(tally, start)
            # Hoeffding's log(2n/(δ'/5)) is the c of the docstring.
            rewards = (
                lower_rewards(tally.reward_sums[0], halving.first, halving.delta / 5)
                if known is None
                else known_rewards(known, problem)
            )
            bound.improve(rewards + gamma * means)
            for _ in range(halving.sweeps):
                tally = yield Request(equal_pulls(problem, halving.fresh))
                made += tally.samples
                growth = tally.next_counts[0] @ (bound.values - start) / halving.fresh - halving.error / (
                    8 * halving.limit
                )
                bound.improve(rewards + gamma * (means + growth))
            check = budget.check(made, bound.policy[None], action_gap(problem, bound.q_values[None]))
            check = replace(check, epsilon=halving.error / 2)
        assert isinstance(check, Check)
        return check


@dataclass(frozen=True)
class Halving:
    """The sizes of a halving.

    Attributes
    ----------
    error : float
        u, the bound on V* - v at its beginning.
    limit, delta : float
        L and δ'.
    first, sweeps, fresh : int
        m₁, R and m₂.
    logarithm : float
        c.
    """

    error: float
    limit: float
    delta: float
    first: int
    sweeps: int
    fresh: int
    logarithm: float

    def lower_means(self, tally: Tally, values: FloatArray) -> FloatArray:
        """Lower bounds w on P v₀ at the allowed pairs, (n,)."""
        frequencies = tally.next_counts[0] / self.first
        means = frequencies @ values
        variances = np.maximum(frequencies @ values**2 - means**2, 0.0)
        alpha, size = self.logarithm / self.first, float(values.max())
        lower: FloatArray = means - np.sqrt(2 * alpha * variances) - (4 * alpha**0.75 + 2 / 3 * alpha) * size
        return lower


def halvings(problem: Problem, epsilon: float, delta: float) -> list[Halving]:
    """Return the sizes of all halvings; at least one, which any ε ≥ L is content with."""
    limit, pairs = float(problem.value_limits[0]), len(problem.pairs)
    number = max(1, ceil(log2(limit / epsilon)))
    share = delta / number
    logarithm = log(10 * pairs / share)
    found = []
    for step in range(number):
        error = limit / 2**step
        sweeps = ceil(4 * limit * log(2 * limit / error))
        first = ceil(8192 * limit**3 * logarithm / min(error, sqrt(limit)) ** 2)
        fresh = ceil(128 * limit**2 * log(2 * sweeps * pairs / share))
        found.append(Halving(error, limit, share, first, sweeps, fresh, logarithm))
    return found


class LowerBound:
    """v ≤ T_π v, and the actions π that attain it.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.values: FloatArray = np.zeros(problem.states)
        self.policy: IntArray = problem.mask.argmax(axis=1).astype(np.int64)
        self.q_values: FloatArray = table(problem, np.zeros(len(problem.pairs)))

    def improve(self, lower_q: FloatArray) -> None:
        """Take lower bounds (n,) on r + γPv into account."""
        self.q_values = table(self.problem, lower_q)
        best = self.q_values.max(axis=1)
        self.policy = np.where(best > self.values, self.q_values.argmax(axis=1), self.policy)
        self.values = np.maximum(self.values, best)
