"""KLB-TS: track the allocation that tells the best policy from all others, stop when KL balls leave no other.

    sample every pair once
    repeat
        plan in the empirical model: policy π, values V, gaps Δ(s,a)
        compute its times T₁…T₄ and the allocation ω that follows from them
        sample so that the counts track t·ω, and no count falls behind √t - SA/2
    until  max_{s, a≠π} (√(T₁x_r) + √(T₂x_p))/√n(s,a)  +  max_s (√(T₃x_r) + √(T₄x_p))/√n(s,π(s))  <  1
    return π

(Al Marjani and Proutière 2021; formulas of the authors' code.) Let Var and MD be the variance and the largest
deviation of V(s') from its mean at a pair, Var* and MD* their maxima over the pairs that π plays, Δ the smallest gap,
and x = (MD*/((1-γ)Δ))^{4/3}. Then

    T₁ = 2/Δ(s,a)²,     T₂ = max( 16 Var/Δ(s,a)², 6 (MD/Δ(s,a))^{4/3} ),      T₃ = 2/((1-γ)Δ)²,
    T₄ = min( max( 27/(Δ²(1-γ)³), 8/(Δ(1-γ)^{5/2}), 14x ) if Δ ≤ 1.5/√(1-γ),  max( 16 Var*/((1-γ)Δ)², 6x ) ).

With H(s,a) = T₁ + T₂ and H* = S(T₃ + T₄) the allocation is ω(s,a) ∝ H(s,a) for a ≠ π(s) and ω(s,π(s)) ∝ √(H* ΣH)/S.
It minimises max H(s,a)/ω(s,a) + max (H*/S)/ω(s,π(s)); the least value U* = (√ΣH + √H*)² is the price of a unit of
log(1/δ).

Guarantee: the policy is optimal with probability 1 - δ; ε is ignored. If the optimum is not unique, the run does not
end.

1. For frequencies of m outcomes, n KL(p̂, p) ≤ x(δ', n, m) = log(1/δ') + (m-1)(1 + log(1 + n/(m-1))) at all n with
   probability 1 - δ' (`kl_ball`; with m = 2 also for means of variables in [0, 1]). With δ' =
   δ/(4S³A), all rewards (m = 2, x_r) and transitions (m = S, x_p) together fail with less than δ. All n are covered,
   so looks may be rare.
2. In a model inside these balls, with differences dr and dp from the empirical one and z = max_s |V^π - V| between the
   values of π in both, Q^π(s,a) - V^π(s) ≤ -Δ(s,a) + |dr + γ dp·V|(s,a) + (1+γ) z. So no action improves on π if the
   rule holds, for each of its four parts bounds its share: T₁ and T₃ by Pinsker's inequality, T₂ (with D = Δ(s,a)) and
   the second part of T₄ (with D = (1-γ)Δ, as z ≤ max_s |dr + γ dp·V|(s,π(s))/(1-γ)) by this lemma of our own:

   If KL(p̂, p) ≤ c and q² = Tc ≤ 1 with T ≥ max(16 Var/D², 6 (MD/D)^{4/3}), then |dp·V| ≤ qD/2.

   Let X = V - p̂·V or its negative, M = max X ≤ MD, f = p·X > 0, s = f/M, ρ = Var/M² and t = s/ρ. For 0 ≤ λ < 1/(M-f)
   the mean of 1 + λ(f-X) under p is 1, so KL(p̂, p) ≥ E_p̂ log(1 + λ(f-X)) by Jensen. Up to M this logarithm lies above
   the parabola in X that touches it at -Var/M and meets it at M (its third derivative is negative), so its mean is
   least if these are the only values of X; the best λ then gives the divergence of two coins, c ≥ g/(1+ρ) with g =
   -log(1-s) - ρ log(1+t) ≥ sφ + s²/2, where φ = 1 - log(1+t)/t = ∫₀¹ ty/(1+ty) dy. If t ≤ 8/5, then φ ≥ t/4, so 4ρg ≥
   s² + 2s²ρ ≥ (1+ρ)s² and c ≥ s²/4ρ = f²/(4 Var): f ≤ 2√(c Var) ≤ qD/2. If t > 8/5, then φ ≥ 2/5 and ρ ≤ (5/8)s, so by
   s^{1/3} ≤ (2+s)/3 we have (1+ρ)(2s)^{4/3}/6 ≤ s(.28 + .41s) ≤ g, that is c ≥ (2f/M)^{4/3}/6: (2f/D)^{4/3} ≤ Tc = q²,
   f ≤ qD/2.
3. The first part of T₄ is about whole trajectories. Let L = 1/(1-γ), c = x_p/n, q = √(T₄c), and q_r = √(T₃x_r/n). In a
   ball |dp·V| ≤ √(2c)σ(V) + (4/3)MD*·c, with σ of the other model, σ(V) ≤ σ(V^π) + z, and discounted sums of σ(V^π) are
   at most L^{3/2}/√2 (total variance). So z ≤ q_rΔ/2 + √c L^{3/2} + √(2c)Lz + (4/3)MD*·Lc, where the times make the
   second term at most .193 qΔ, and, if Δ ≤ 1.5√L, the last .099 qΔ and √(2c)L at most .409 q. As q + q_r < 1, this
   gives z ≤ (q + q_r)Δ/2. If Δ > 1.5√L, this part is left out.

The authors take for x_r the smaller of x(δ', n, 2) and 3 log(4 + log n) + log(1/δ') + ..., of which we know no proof
with their constants: only x is used here. But for that, and for 1.5√L, the constants are those of the authors' code;
the proofs are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.peers.budget import look, only_discounted
from bestpolicy.algorithms.peers.kl_ball import threshold
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, LooksAgain, TabularPlan, equal_pulls, plan
from bestpolicy.algorithms.protocol import MAX_ROUNDS, About, Request, Run, Task
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check

_LEAST_GAP = 1e-9  # estimated gaps may be 0; the times shall stay finite


@dataclass(frozen=True)
class KLBTS(LooksAgain):
    """KL-Ball Track-and-Stop, for discounted problems with a unique optimal policy.

    Attributes
    ----------
    check_ratio : float
        Plan, and look whether to stop, each time the number of samples has grown by this factor.
    """

    name: ClassVar[str] = "klb-ts"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="unique optimal policy, at least two states",
        guarantee="optimal, whatever ε is asked",
        complexity="U* log 1/δ, with U* from gaps and variances of the model",
        constants="exact, but for the threshold of the rewards and where gaps are very large; all of them proved here",
        reference="Al Marjani, Proutière: Adaptive Sampling for Best Policy Identification in MDPs (2021)",
    )

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems with two states or more, and no two equal actions in a state."""
        if problem.horizon is not None:
            return only_discounted(problem)
        if problem.states == 1:
            return "its threshold is not defined for a single state; use 'action-elimination' or 'tight'."
        doubled = np.flatnonzero((problem.mask & ~problem.distinct).any(axis=1))
        if len(doubled):
            return (
                f"state {doubled[0]} has two actions with equal features, so the optimal policy may not be unique and "
                "the run would not end. Mask all but one of them, or use 'tight'."
            )
        return ""

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone: the cost depends on the variances too."""
        return float("nan")

    def run(self, task: Task) -> Run:
        """Track the allocation of the empirical model until its policy is certified optimal."""
        problem, delta = task.problem, task.delta
        tally = yield Request(equal_pulls(problem.pairs, 1))
        look = Look.at(problem, tally)
        check = look.check(problem, tally, delta)
        while not check.passed and tally.samples < MAX_ROUNDS:
            samples = max(tally.samples + 1, ceil(tally.samples * self.check_ratio))
            counts = tracked_counts(tally.pulls[0], look.times.allocation, samples)
            tally += yield Request(Pulls(problem.pairs, (counts - tally.pulls[0])[None]), check)
            look = Look.at(problem, tally, look.best.policy)
            check = look.check(problem, tally, delta)
        return check


@dataclass(frozen=True, eq=False)
class Times:
    """The characteristic times of a model. Pairs are in the order of ``problem.pairs``.

    Attributes
    ----------
    played : int array (S,)
        Pairs (s, π(s)).
    rivals : int array (n - S,)
        All other pairs.
    rewards, transitions : array (n - S,)
        T₁ and T₂ of the rivals.
    played_rewards, played_transitions : float
        T₃ and T₄.
    """

    played: IntArray
    rivals: IntArray
    rewards: FloatArray
    transitions: FloatArray
    played_rewards: float
    played_transitions: float

    @classmethod
    def of(cls, model: EmpiricalModel, best: TabularPlan) -> Times:
        """Compute the times at an optimal plan of the model."""
        problem = model.problem
        states, actions = np.divmod(problem.pairs, problem.actions)
        is_played = actions == best.policy[states]
        played, rivals = np.flatnonzero(is_played), np.flatnonzero(~is_played)
        gaps = np.maximum((best.values[:, None] - best.q_values).ravel()[problem.pairs][rivals], _LEAST_GAP)

        means = model.transitions @ best.values
        variances = np.maximum(model.transitions @ best.values**2 - means**2, 0.0)
        deviations = np.maximum(best.values.max() - means, means - best.values.min())
        discounted, least = 1 - problem.continuation, float(gaps.min())
        variance, deviation = float(variances[played].max()), float(deviations[played].max())
        power = (deviation / (discounted * least)) ** (4 / 3)
        of_trajectories = max(27 / (least**2 * discounted**3), 8 / (least * discounted**2.5), 14 * power)
        return cls(
            played,
            rivals,
            rewards=2 / gaps**2,
            transitions=np.maximum(16 * variances[rivals] / gaps**2, 6 * (deviations[rivals] / gaps) ** (4 / 3)),
            played_rewards=2 / (discounted * least) ** 2,
            played_transitions=min(
                of_trajectories if least <= 1.5 / sqrt(discounted) else inf,
                max(16 * variance / (discounted * least) ** 2, 6 * power),
            ),
        )

    @property
    def allocation(self) -> FloatArray:
        """ω, (n,): the shares of samples that make the price of a unit of log(1/δ) least."""
        rival, states = self.rewards + self.transitions, len(self.played)
        shares = np.empty(states + len(rival))
        shares[self.rivals] = rival
        shares[self.played] = sqrt(states * (self.played_rewards + self.played_transitions) * rival.sum()) / states
        normalised: FloatArray = shares / shares.sum()
        return normalised


@dataclass(frozen=True, eq=False)
class Look:
    """The empirical model at some time: its best policy and its characteristic times."""

    best: TabularPlan
    times: Times

    @classmethod
    def at(cls, problem: Problem, tally: Tally, start: IntArray | None = None) -> Look:
        """Plan in the model of a tally."""
        model = EmpiricalModel.of(problem, tally)
        best = plan(model, start)
        return cls(best, Times.of(model, best))

    def check(self, problem: Problem, tally: Tally, delta: float) -> Check:
        """Stop if the left side of the rule is below 1; the statistic is its inverse."""
        times, pulls = self.times, tally.pulls[0].astype(np.float64)
        share = delta / (4 * problem.states**3 * problem.actions)
        reward_terms = threshold(share, pulls, 2) / pulls
        transition_terms = threshold(share, pulls, problem.states) / pulls
        of_rivals = np.sqrt(times.rewards * reward_terms[times.rivals]) + np.sqrt(
            times.transitions * transition_terms[times.rivals]
        )
        of_played = np.sqrt(times.played_rewards * reward_terms[times.played]) + np.sqrt(
            times.played_transitions * transition_terms[times.played]
        )
        unresolved = float(of_rivals.max() + of_played.max())
        policy, q_values, certified = self.best.policy, self.best.q_values, 0.0 if unresolved < 1 else inf
        return look(problem, tally.samples, policy, q_values, 1 / unresolved, certified, unresolved < 1, "KLB-TS")


def tracked_counts(counts: IntArray, allocation: FloatArray, total: int) -> IntArray:
    """Return the counts (n,) to which D-tracking leads, with a fixed allocation, after `total` samples.

    Sampling the pair with the largest t·ω - N again and again lifts the lowest N to a common t·ω - level; before that,
    pairs that have fallen behind √t - n/2 are lifted to it, even if that takes more than `total`.
    """
    least = np.maximum(counts, ceil(sqrt(total) - len(counts) / 2))
    total = max(total, int(least.sum()))
    wanted = total * steady(allocation)
    lifts = np.sort(wanted - least)[::-1]
    # With the k most wanted pairs lifted: Σ_k (wanted - level) + Σ_rest least = total.
    levels = (np.cumsum(lifts) - (total - least.sum())) / np.arange(1, len(lifts) + 1)
    level = levels.max()
    exact = np.maximum(wanted - level, least)
    lifted: IntArray = np.maximum(np.floor(exact), least).astype(np.int64)
    short = max(0, total - int(lifted.sum()))
    order = np.argsort(lifted - exact, kind="stable")  # largest remainders first
    lifted[order] += short // len(lifted)  # rounding of very large numbers
    lifted[order[: short % len(lifted)]] += 1
    return lifted
