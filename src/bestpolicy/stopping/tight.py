"""Theorems T and T-E: a certificate around the one fixed function V*.

The optimal values of the truth are those of the *estimated* kernel P̂ with the reward parameter θ̂ - x, where
x = θ̂ - θ + γ(μ̂ - μ)ᵀV* is the least-squares noise of the fixed function V* (`propagation`). So no net over
value functions is needed and no 1/(1-γ) is lost: one vector has to be confined (`ellipsoids`, |vᵀx| ≤ w(v)
for all v), and its effect on the gaps of the estimated policy π is linear. δ is spent on three or four
events, which all hold together with probability at least 1-δ:

- H: Lemma S for the noise of V* with s_i = Λ*/2, Λ* = 1 + γ span(V*);
- B: Lemma B for the same noise with its variances v*_k = Var_k(R + γV*(S'));
- V: Lemma V, the sample variances of R + γV*(S') at every pair and time;
- L (only if ε > 0): Lemma S for the noises f(S') - pf of all f ∈ {-1, 1}^S (a bound on ‖p̂ - p‖₁).

**The check.** (discounted; episodic: per stage, with the next stage's quantities)
 0. γ max_a|P̂|h < h for some h > 0, or nothing is certified (not needed if episodic).
 1. π optimal in the estimated model, V̂, Q̂, Δ̂ its values and gaps there, not clipped.
 2. Λ̄ = 1/(1-γ) at first (smaller if the user vouches for a bound on span(V*)). Then, a few times: ρ(s,a) =
    w(y(s,a)) - Δ̂(s,a), ρ(s,π(s)) = 0;  W ≥ max_a{ρ + γ|P̂|W};  D ≥ res + max_a{w(φ) + γ|P̂|D}; Λ̄ ← the
    least of Λ̄, 1 + γ(max_{s,s'}[V̂(s)-V̂(s') + w(ψ(s)-ψ(s'))] + W̄ + N̄), 1 + γ(max min(V̂+D, L) - min
    max(V̂-D, 0)); v̄_k from Lemma V with the deviation of V* - V̂ bounded by D, or by that of Ψx plus that of
    ω; new ellipsoids from Λ̄, v̄.
 3. **(A)** ρ ≤ 0 everywhere: π is optimal. **(B)** V* - V^π ≤ W̄ + q(W̄ + N̄), q = (γ/(1-γ)) min(c, max_s
    ℓ(s))/2 with ℓ the bound on ‖p̂ - p‖₁ at (s, π(s)) and c its trivial bound.

**Proof.** (i) *Invariant*: Λ* ≤ Λ̄ and |vᵀx| ≤ w(v). Given it at one round, ω := V* - V_x satisfies |ω| ≤ W
and -ω ≤ N̄ (`propagation`); V_x = V̂ - Ψx gives the first new Λ̄, |Q* - Q̂| ≤ w(φ) + γ|P̂||V* - V̂| gives |V*
- V̂| ≤ D and the second; sample deviations are seminorms, so v*_k ≤ v̄_k, and Lemmas S and B are monotone in
Λ and Σ. (ii) *(A)*: the advantages of V_x in (θ̂ - x, P̂) are at most ρ ≤ 0, so V_x solves the optimality
equation that V* solves; by 0. the solution is unique, so V* = V_x and π attains it. (iii) *(B)*: T_πV_x - V_x
= γ(P̂_π - P_π)ω, so V^π - V_x = (I - γP_π)⁻¹γ(P̂_π - P_π)ω with the true P_π; rows of P̂ - P sum to 0, so
|(p̂-p)ω| ≤ ½‖p̂-p‖₁ span(ω), and span(ω) ≤ W̄ + N̄. Episodic: the same sum along the stages. ∎

All rounds hold on one event, at all times: a policy with its ε from any check may be reported at any later
time.

**Rounding.** ρ, W, D, Λ̄, v̄ and the widths are computed with room for all that floating point may have done to them
(`rounding`, `coordinates`): with the errors z of the equations of V*, everything above holds with ρ + margin in the
place of ρ, and rows of P̂ sum to 1 up to z_p, which adds γ/(1-γ)·z_p·W̄ to (B). Where there is no bound, nothing is
certified.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.planning import action_gap, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.stopping.coordinates import Coordinates, coordinates_of
from bestpolicy.stopping.evidence import Evidence, Model, fit
from bestpolicy.stopping.lemmas.ellipsoids import Prior, staged_widths
from bestpolicy.stopping.lemmas.propagation import EstimatedKernel, Propagation, propagate
from bestpolicy.stopping.refinement import Refinement
from bestpolicy.stopping.rule import Past, Proof, Terms
from bestpolicy.stopping.verdict import Split, Verdict


@dataclass(frozen=True, eq=False)
class TightTest:
    """Theorem T (discounted) and T-E (episodic).

    Attributes
    ----------
    problem : Problem
        In coordinates in which the features are well conditioned; they are recomputed to full precision.
    past : Past
        Its prior and, for Theorem P, its policy.
    delta : float
    split : Split
    value_span : float, optional
        The user's bound on span(V*), at every stage; the guarantee then relies on it.
    policy : int array (stages, S), optional
        A policy fixed before the evidence was drawn: then the test is that of Theorem P (`fixed`).
    """

    problem: Problem
    past: Past
    delta: float
    split: Split = field(default_factory=Split)
    value_span: float = inf
    policy: IntArray | None = None

    def __post_init__(self) -> None:
        known = coordinates_of(self.problem)
        object.__setattr__(self, "problem", known.problem)
        object.__setattr__(self, "past", replace(self.past, prior=self.past.prior.around(known.moved)))

    @property
    def prior(self) -> Prior:
        """Γ and what belongs to it."""
        return self.past.prior

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of the rule, with what is known about their accuracy."""
        return coordinates_of(self.problem)

    def look(self, fresh: Evidence) -> Verdict:
        """Certify what the evidence allows."""
        problem = self.problem
        model = fit(problem, fresh)
        if model is None:
            return self.nothing(np.zeros((problem.stages, problem.states), np.int64), fresh)
        if self.policy is not None:
            propagation = propagate(problem, model.theta, model.mu, self.policy)
            if propagation is None:
                return self.nothing(self.policy, fresh)
            return Refinement(self, fresh, model, None, propagation, None).verdict()
        policy = optimal_plan(problem, model.theta, model.mu).policy
        kernel = EstimatedKernel(problem, model.mu)
        contraction = kernel.contraction() if problem.horizon is None else None
        propagation = propagate(problem, model.theta, model.mu, policy)
        if propagation is None or (problem.horizon is None and contraction is None):
            return self.nothing(policy, fresh, propagation, model)
        return Refinement(self, fresh, model, kernel, propagation, contraction).verdict()

    def proof(self, fresh: Evidence) -> Proof:
        """Return what others need to look at the evidence as this test does."""
        theorem = "T" if self.policy is None else "P"
        return Proof(theorem, fresh, self.coordinates.transform, self.past, self.value_span)

    def initial_ranges(self) -> FloatArray:
        """Λ̄ before any data, (stages,): largest difference of R + γV*(S')."""
        problem = self.problem
        spans = np.append(problem.value_limits[1:], 0.0) if problem.horizon is not None else problem.value_limits
        if self.policy is None:  # the user's word is about V*, not about the value of some policy
            spans = np.minimum(spans, self.value_span)
        ranges: FloatArray = 1 + problem.continuation * spans
        return ranges

    def nothing(
        self,
        policy: IntArray,
        evidence: Evidence,
        propagation: Propagation | None = None,
        model: Model | None = None,
    ) -> Verdict:
        problem = self.problem
        gap = action_gap(problem, propagation.q_values) if propagation is not None else 0.0
        none = np.empty((0, problem.stages, problem.dimension, problem.dimension))
        ranges = self.initial_ranges()
        variances = np.broadcast_to(ranges[:, None] ** 2 / 4, evidence.tally.pulls.shape)
        slopes = gaps = np.zeros((problem.stages, *problem.mask.shape))
        if propagation is not None and model is not None:
            # Not certified, but the shape of the widths helps to choose what to look at next.
            hint = propagation.pulled_back(model.gram_inverse[None] * (10 * ranges[:, None, None] ** 2))
            differences = problem.features[None] - propagation.played[:, :, None, :]
            slopes = np.where(problem.mask, staged_widths(hint, differences), 0.0)
            gaps = propagation.values[:, :, None] - propagation.q_values
        return Verdict(policy, inf, 0.0, gap, "", propagation, none, variances, ranges, slopes, gaps)


@dataclass(frozen=True)
class TheoremT:
    """The rule: any prior will do, no policy is needed."""

    theorem: ClassVar[str] = "T"

    def fix(self, terms: Terms, past: Past, delta: float) -> TightTest:
        """Return the test around V*."""
        # The event that bounds ‖p̂ - p‖₁ only serves positive ε, and a certified optimum needs none of it.
        split = Split() if terms.epsilon > 0 else Split(0.1, 0.75, 0.15, 0.0)
        return TightTest(terms.problem, past, delta, split, terms.value_span)
