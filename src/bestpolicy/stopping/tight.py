"""Theorems T and T-E: a certificate around the one fixed function V*. Theorem P: around a policy of the past.

The optimal values of the truth are those of the *estimated* kernel P̂ with the reward parameter θ̂ - x, where
x = θ̂ - θ + γ(μ̂ - μ)ᵀV* is the least-squares noise of the fixed function V* (`propagation`). So no net over
value functions is needed and no 1/(1-γ) is lost: one vector has to be confined (`deviations`, |vᵀx| ≤ w(v)
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
(`rounding`): with the errors z of the equations of V*, everything above holds with ρ + margin in the
place of ρ, and rows of P̂ sum to 1 up to z_p, which adds γ/(1-γ)·z_p·W̄ to (B). Where there is no bound, nothing is
certified.

**Theorem P** (fixed policy). Let π be chosen by the past and x = θ̂ - θ + γ(μ̂ - μ)ᵀV^π, the noise of the
fixed function V^π on the samples to come. Then ξ^π = θ̂ + γμ̂ᵀΦ_πξ^π - x, so ξ^π = J(θ̂ - x) exactly as soon
as I - γμ̂ᵀΦ_π is invertible: *no contraction is needed*, |P̂| plays no part, and A^π(s,a) = -Δ̂(s,a) - yᵀx ≤
ρ(s,a). Range and variances are refined as in Theorem T with ω = 0 (V^π = V̂ - Ψx). If ρ ≤ 0 everywhere then π
is optimal (policy improvement); always V* - V^π ≤ max ρ⁺/(1-γ), or Σ_h max ρ_h⁺ (performance difference). It
certifies where Theorem T cannot: many states, few samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.planning import action_gap, optimal_plan
from bestpolicy.stopping.evidence import Evidence, Model, dominating_moments, fit
from bestpolicy.stopping.lemmas.deviations import (
    bernstein_ellipsoids,
    deviation_terms,
    sample_variances,
    staged_widths,
    sub_gaussian_ellipsoids,
    sub_gaussian_ellipsoids_by_stage,
    variance_bounds,
    widths,
)
from bestpolicy.stopping.lemmas.next_states import NextStates
from bestpolicy.stopping.lemmas.propagation import EstimatedKernel, Propagation, propagate
from bestpolicy.stopping.rounding import Rounding
from bestpolicy.stopping.rule import FixedTest, Past, Proof, Terms, Verdict

_ROUNDS = 6  # refinements of the range and the variances per check
_SAME_RANGE, _SAME_VARIANCE = 0.98, 0.95  # a round that leaves as much gains less than it costs; any would be valid
_CHUNK = 500_000  # entries at a time, where all stages together would fill the memory
_ALL_PAIRS = 400  # states up to which all differences of two states' values are bounded one by one


@dataclass(frozen=True)
class Split:
    """Shares of δ for the events H, B, V and L; they sum to at most 1."""

    sub_gaussian: float = 0.1
    bernstein: float = 0.65
    variance: float = 0.15
    kernel: float = 0.1


_WITHOUT_KERNEL = Split(0.1, 0.75, 0.15, 0.0)


@dataclass(frozen=True)
class TheoremT:
    """The rule: any prior will do, no policy is needed."""

    def fix(self, terms: Terms, past: Past, delta: float) -> TightTest:
        """Return the test around V*."""
        # The event that bounds ‖p̂ - p‖₁ only serves positive ε, and a certified optimum needs none of it.
        split = Split() if terms.epsilon > 0 else _WITHOUT_KERNEL
        return TightTest(terms.problem, past, delta, split, terms.value_span)


@dataclass(frozen=True)
class TheoremP:
    """The rule: it needs a policy."""

    def fix(self, terms: Terms, past: Past, delta: float) -> TightTest | None:
        """Return the test around V^π, without the event about the kernel."""
        if past.policy is None:
            return None
        return TightTest(terms.problem, past, delta, _WITHOUT_KERNEL, terms.value_span, past.policy)


@dataclass(frozen=True, eq=False)
class TightTest(FixedTest):
    """Theorem T (discounted) and T-E (episodic), and P where a policy is given.

    Attributes
    ----------
    split : Split
    value_span : float
        The user's bound on span(V*), at every stage; the guarantee then relies on it.
    policy : int array (stages, S), optional
        A policy fixed before the evidence was drawn: then the test is that of Theorem P.
    """

    split: Split = field(default_factory=Split)
    value_span: float = inf
    policy: IntArray | None = None

    @property
    def theorem(self) -> str:
        """T or P."""
        return "T" if self.policy is None else "P"

    def look(self, fresh: Evidence) -> Verdict:
        """Certify what the evidence allows."""
        problem = self.problem
        model = fit(problem, fresh)
        if model is None:
            return self.nothing(np.zeros((problem.stages, problem.states), np.int64), fresh)
        kernel = EstimatedKernel(problem, model.mu) if self.policy is None else None
        policy = optimal_plan(problem, model.theta, model.mu).policy if self.policy is None else self.policy
        propagation = propagate(problem, model.theta, model.mu, policy)
        if propagation is None or (kernel is not None and not kernel.contracts):
            return self.nothing(policy, fresh, propagation, model)
        return Refinement(self, fresh, model, kernel, propagation).verdict()

    def proof(self, fresh: Evidence) -> Proof:
        """Return what others need to look at the evidence as this test does."""
        return Proof(self.theorem, fresh, self.coordinates.transform, self.past, self.value_span)

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
        """Return a verdict that certifies nothing, with what is known all the same."""
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
        details = (propagation, none, variances, ranges, slopes, gaps)
        return Verdict(self.named(self.theorem), policy, inf, 0.0, gap, "", 1.0, *details)


class Refinement:
    """The alternation of ranges, variances and widths at one time.

    Every round holds on the same event, so it may stop after any number of them. Around a policy fixed beforehand there
    is no kernel to look at: ω = 0, and only the linear part is left.
    """

    def __init__(
        self,
        rule: TightTest,
        evidence: Evidence,
        model: Model,
        kernel: EstimatedKernel | None,
        propagation: Propagation,
    ) -> None:
        self.rule, self.evidence, self.model = rule, evidence, model
        self.kernel, self.propagation = kernel, propagation
        problem = self.problem = rule.problem
        self.rounding = Rounding.of(rule.coordinates, evidence, model, propagation)
        self.gaps = propagation.values[:, :, None] - propagation.q_values
        # Rounding in a change of coordinates may part copies of an action: they are told in the user's features.
        given = problem.source.features
        chosen = given[np.arange(problem.states), propagation.policy]
        self.rival: BoolArray = problem.mask & (given[None] != chosen[:, :, None, :]).any(axis=3)
        self.squared_lengths = (propagation.value_directions**2).sum(axis=2).max(axis=1)  # max_s ‖ψ(s) - ψ̄‖²
        allowed = np.where(problem.mask, propagation.q_values, -np.inf)
        self.residuals = np.abs(propagation.values - allowed.max(axis=2)).max(axis=1)
        self.following = propagation.following(propagation.values)
        tally = evidence.tally
        pulls = np.maximum(tally.pulls, 1)
        self.correction = pulls / np.maximum(pulls - 1, 1)
        self.covariances: tuple[FloatArray, FloatArray] | None = None  # of ψ(S'), for `NextStates`, if they are known

    @cached_property
    def laws(self) -> FloatArray:
        """Of the next state, as observed, (stages, K, S)."""
        tally = self.evidence.tally
        laws: FloatArray = tally.next_counts / np.maximum(tally.pulls, 1)[:, :, None]
        return laws

    def verdict(self) -> Verdict:
        """Refine until a round gains less than it costs, and conclude."""
        best = self._refined(_ROUNDS, True)
        if best is None:
            return self.rule.nothing(self.propagation.policy, self.evidence, self.propagation, self.model)
        return self._concluded(*best)

    def ellipsoids(self, rounds: int) -> FloatArray:
        """M after so many rounds, (m, stages, d, d), where nothing else is asked for; none if nothing is known."""
        best = self._refined(rounds, False)
        none = np.empty((0, *self.model.gram.shape))
        return none if best is None else best[2]["metrics"]

    def _refined(self, rounds: int, gaps: bool) -> tuple[FloatArray, FloatArray, dict[str, Any]] | None:
        """Refine; the excess ρ, W and the rest, from the last round that has bounds; None if no round has."""
        rule, problem, model = self.rule, self.problem, self.model
        delta, split = rule.delta, rule.split
        sampled, tally = model.sampled, self.evidence.tally
        if not self.rounding.bounded:
            return None
        squares = dominating_moments(sampled, self.evidence.inverse_squares)
        deviations = np.sqrt(sample_variances(tally, self.following, problem.continuation))
        ranges = rule.initial_ranges() * (1 + 8 * EPS)
        variances = np.broadcast_to(ranges[:, None] ** 2 / 4, tally.pulls.shape)
        bernstein, best = np.empty((0, *model.gram.shape)), None
        slopes = excess = np.zeros(self.rival.shape)
        for _ in range(rounds):
            spread = ranges[:, None, None] ** 2 / 4 * squares
            hoeffding = sub_gaussian_ellipsoids(
                rule.prior, model.gram_inverse, spread, 0.0, delta * split.sub_gaussian, model.defect
            )
            metrics = np.concatenate([hoeffding, bernstein])
            if not len(metrics):  # δ is too small for any scale
                break
            carried = self.propagation.carried(self.rounding.dominating(metrics))
            if gaps:
                slopes = np.where(self.rival, staged_widths(carried, self.propagation.gap_directions), 0.0)
                excess = np.where(self.rival, slopes - self.gaps + self.rounding.margins, 0.0)
            # W ≥ |ω|; ω = 0 around the value of a fixed policy.
            upper = np.zeros(excess.shape[:2]) if self.kernel is None else self.kernel.super_solution(excess)
            errors = self._errors(metrics)
            if upper is None:
                break
            details = {"slopes": slopes, "metrics": metrics, "variances": variances, "ranges": ranges}
            best = (excess, upper, details)
            # The smallest ellipsoid of either kind serves for what only refines.
            leading = carried[[0, len(hoeffding)]] if len(bernstein) else carried[:1]
            omega_spans = self._omega_span(upper)
            new_ranges = np.minimum(ranges, self._ranges(leading, omega_spans, errors))
            drift = self._drift(leading, upper, omega_spans, errors)
            terms = deviation_terms(tally.pulls, new_ranges, delta * split.variance)
            new_variances = variance_bounds(deviations + problem.continuation * drift, terms, new_ranges)
            new_variances = np.minimum(new_variances, variances)
            settled = (new_ranges > _SAME_RANGE * ranges).all() and (new_variances > _SAME_VARIANCE * variances).all()
            ranges, variances = new_ranges, new_variances
            if settled and len(bernstein):
                break
            spread = dominating_moments(sampled, self.evidence.inverse_squares * variances)
            bernstein = bernstein_ellipsoids(
                rule.prior, model.gram_inverse, spread, ranges, delta * split.bernstein, model.defect
            )
        return best

    def _errors(self, metrics: FloatArray) -> FloatArray | None:
        """D ≥ |V* - V̂|, (stages, S)."""
        if self.kernel is None:
            return None
        features = np.broadcast_to(self.problem.features, self.propagation.gap_directions.shape)
        gains = staged_widths(metrics, features) + (self.residuals + self.rounding.equations)[:, None, None]
        return self.kernel.super_solution(gains)

    def _ranges(self, carried: FloatArray, omega_spans: FloatArray, errors: FloatArray | None) -> FloatArray:
        """Λ̄ ≥ 1 + γ span(V* of the next stage), (stages,)."""
        problem, values = self.problem, self.propagation.values
        rooms = self._quadratic_errors(carried)
        spread = [self._spans(carried[:, some], rooms[:, some], some) for some in self._pieces(problem.states**2)]
        spans = np.concatenate(spread) + omega_spans + self.rounding.values
        if errors is not None:
            high = np.minimum(values + errors, problem.value_limits[:, None]).max(axis=1)
            low = np.maximum(values - errors, 0.0).min(axis=1)
            spans = np.minimum(spans, high - low)
        ahead = self.propagation.following(np.clip(spans, 0.0, None) + 8 * EPS * problem.value_limits)
        ranges: FloatArray = (1 + problem.continuation * ahead) * (1 + 8 * EPS)
        return ranges

    def _pieces(self, entries: int) -> list[slice]:
        """Cut the stages into pieces with so few entries, given those of a stage, that they stay in the cache."""
        step = max(1, _CHUNK // entries)
        return [slice(start, start + step) for start in range(0, self.problem.stages, step)]

    def _spans(self, metrics: FloatArray, rooms: FloatArray, some: slice) -> FloatArray:
        """max_{s,s'} V̂(s) - V̂(s') + w(ψ(s) - ψ(s')) at some stages."""
        values, directions = self.propagation.values[some], self.propagation.value_directions[some]
        spans: FloatArray
        if self.problem.states <= _ALL_PAIRS:
            best = np.full((*values.shape, values.shape[1]), np.inf)
            for metric, room in zip(metrics, rooms, strict=True):
                inner = directions @ metric @ directions.swapaxes(1, 2)
                norms = np.einsum("hss->hs", inner) + room[:, None] / 2
                np.minimum(best, norms[:, :, None] + norms[:, None, :] - 2 * inner, out=best)
            distances = np.sqrt(np.clip(best, 0.0, None))
            spans = (values[:, :, None] - values[:, None, :] + distances).max(axis=(1, 2))
        else:  # the triangle inequality through the mean costs at most a factor 2 of the widths
            radius = widths(metrics, directions)
            spans = (values + radius).max(axis=1) - (values - radius).min(axis=1)
        return spans

    def _quadratic_errors(self, carried: FloatArray) -> FloatArray:
        """What sums of a few products ψᵀMψ', or covariances of ψ over S states, may be off by, (m, stages)."""
        terms = self.problem.states + 8 * self.problem.dimension + 32
        errors: FloatArray = terms * EPS * np.trace(carried, axis1=2, axis2=3) * self.squared_lengths
        return errors

    def _omega_span(self, upper: FloatArray) -> FloatArray:
        """W̄ + N̄ ≥ span(V* - V_x), (stages,)."""
        largest: FloatArray = upper.max(axis=1)
        if self.kernel is not None:
            below = self.kernel.negative_parts(self.propagation.policy, largest, self.rounding.rows)
            largest = largest + below
        return largest

    def _drift(
        self, carried: FloatArray, upper: FloatArray, omega_spans: FloatArray, errors: FloatArray | None
    ) -> FloatArray:
        """Bounds on the sample deviation of V*(S') - V̂(S') at every stage and pair, (stages, K)."""
        linear = self._linear_deviation(carried) + self.propagation.following(self.rounding.values)[:, None]
        if self.kernel is None:  # ω = 0
            alone: FloatArray = np.sqrt(self.correction) * linear
            return alone
        omega = (self.laws @ self.propagation.following(upper)[:, :, None] ** 2)[:, :, 0]
        omega = np.minimum(omega, self.propagation.following(omega_spans)[:, None] ** 2 / 4)
        drift: FloatArray = np.sqrt(self.correction) * (linear + np.sqrt(omega))
        if errors is not None:
            crude = (self.laws @ self.propagation.following(errors)[:, :, None] ** 2)[:, :, 0]
            drift = np.minimum(drift, np.sqrt(self.correction * crude))
        return drift

    def _linear_deviation(self, carried: FloatArray) -> FloatArray:
        """Largest standard deviation of ψ(S')ᵀx over an ellipsoid, or a little more, (stages, K)."""
        pulled = self.propagation.pulled_back(carried) if self.problem.horizon is None else carried
        smallest = np.trace(pulled, axis1=2, axis2=3).sum(axis=1).argmin()  # any would do
        return self._next_states.deviations(self.propagation.following(carried[smallest]))

    @cached_property
    def _next_states(self) -> NextStates:
        """The laws, with ψ(s) at the stage that follows."""
        directions = self.propagation.following(self.propagation.value_directions)
        return NextStates(self.laws, directions, self.evidence.tally.pulls, self.covariances)

    def _concluded(self, excess: FloatArray, upper: FloatArray, details: dict[str, Any]) -> Verdict:
        """Criteria (A) and (B), from the last round that has bounds."""
        problem, rival, slopes = self.problem, self.rival, details["slopes"]
        optimal = bool((excess <= 0).all())
        with np.errstate(divide="ignore"):
            resolved = float((self.gaps[rival] / slopes[rival]).min()) if rival.any() else inf
        if self.kernel is None:
            worst = np.clip(excess, 0.0, None).max(axis=(1, 2))
            loss = float(worst.sum() * (problem.value_limits[0] if problem.horizon is None else 1.0))
        else:
            loss = 0.0 if optimal else self._loss(upper, self.kernel)
        informative = loss < problem.value_limits[0]  # every policy is that good
        return Verdict(
            self.rule.named(self.rule.theorem),
            self.propagation.policy,
            loss if informative else inf,
            max(1.0, resolved) if optimal else min(1.0, max(0.0, resolved)),
            action_gap(problem, np.where(problem.mask, self.propagation.q_values, -np.inf)),
            "A" if optimal else "B" if informative else "",
            propagation=self.propagation,
            gaps=self.gaps,
            **details,
        )

    def _loss(self, upper: FloatArray, kernel: EstimatedKernel) -> float:
        """Criterion (B): bound on V* - V^π, at the first stage if episodic."""
        problem, largest = self.problem, upper.max(axis=1)
        distances, rows = self._kernel_errors(kernel), self.rounding.rows
        spans = self._omega_span(upper)
        if problem.horizon is None:
            gamma = problem.continuation
            return float(largest[0] + gamma / (1 - gamma) * (distances[0] / 2 * spans[0] + rows[0] * largest[0]))
        return float(largest[0] + (distances[:-1] / 2 * spans[1:] + rows[:-1] * largest[1:]).sum())

    def _kernel_errors(self, kernel: EstimatedKernel) -> FloatArray:
        """Bounds on max_s ‖p̂ - p‖₁ along the policy, (stages,)."""
        problem, rule, played = self.problem, self.rule, self.propagation.played
        mass = kernel.played_mass(self.propagation.policy)
        trivial: FloatArray = 2 + 2 * mass.max(axis=1) + self.rounding.rows
        if rule.split.kernel == 0:
            return trivial
        spread = dominating_moments(self.model.sampled, self.evidence.inverse_squares)
        log_count = problem.states * log(2) + log(problem.stages)
        metrics = sub_gaussian_ellipsoids_by_stage(
            rule.prior, self.model.gram_inverse, spread, log_count, rule.delta * rule.split.kernel, self.model.defect
        )
        distances: FloatArray = np.minimum(trivial, widths(metrics, played).max(axis=1) + self.rounding.rows)
        return distances
