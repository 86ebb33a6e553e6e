"""The alternation inside Theorems T and P: ranges, variances and widths sharpen each other.

At one time, with the estimated model and a policy given, every round holds on the same event (`tight` has the
proof), so the alternation may stop after any number of rounds. Around a policy fixed beforehand (Theorem P,
`lag`) there is no kernel to look at: ω = 0, and only the linear part is left.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.planning import action_gap
from bestpolicy.problem import Problem
from bestpolicy.stopping.coordinates import EPS
from bestpolicy.stopping.evidence import Evidence, Model, dominating_moments
from bestpolicy.stopping.lemmas.ellipsoids import (
    bernstein_ellipsoids,
    staged_widths,
    sub_gaussian_ellipsoids,
    sub_gaussian_ellipsoids_by_stage,
    widths,
)
from bestpolicy.stopping.lemmas.propagation import EstimatedKernel, Propagation
from bestpolicy.stopping.lemmas.variance import deviation_terms, sample_variances, variance_bounds
from bestpolicy.stopping.rounding import Rounding
from bestpolicy.stopping.verdict import Verdict

if TYPE_CHECKING:
    from bestpolicy.stopping.tight import TightTest

_ROUNDS = 6  # refinements of the range and the variances per check
_SAME_RANGE, _SAME_VARIANCE = 0.98, 0.95  # a round that leaves as much gains less than it costs; any would be valid
_CHUNK = 500_000  # entries at a time, where all stages together would fill the memory
_ALL_PAIRS = 400  # states up to which all differences of two states' values are bounded one by one


class Refinement:
    """The alternation of ranges, variances and widths at one time."""

    def __init__(
        self,
        rule: TightTest,
        evidence: Evidence,
        model: Model,
        kernel: EstimatedKernel | None,
        propagation: Propagation,
        contraction: FloatArray | None,
    ) -> None:
        self.rule, self.evidence, self.model, self.kernel = rule, evidence, model, kernel
        self.propagation, self.contraction = propagation, contraction
        problem = self.problem = rule.problem
        self.rounding = Rounding.of(rule.coordinates, evidence, model, propagation)
        self.gaps = propagation.values[:, :, None] - propagation.q_values
        self.rival = rivals(problem, propagation.policy)
        allowed = np.where(problem.mask, propagation.q_values, -np.inf)
        self.residuals = np.abs(propagation.values - allowed.max(axis=2)).max(axis=1)
        self.following = propagation.following(propagation.values)
        tally = evidence.tally
        pulls = np.maximum(tally.pulls, 1)
        self.correction = pulls / np.maximum(pulls - 1, 1)
        self.laws = tally.next_counts / pulls[:, :, None]  # of the next state, as observed

    def verdict(self) -> Verdict:
        rule, problem, model = self.rule, self.problem, self.model
        delta, split = rule.delta, rule.split
        sampled, tally = model.sampled, self.evidence.tally
        if not self.rounding.bounded:
            return rule.nothing(self.propagation.policy, self.evidence, self.propagation, model)
        squares = dominating_moments(sampled, self.evidence.inverse_squares)
        deviations = np.sqrt(sample_variances(tally, self.following, problem.continuation))
        ranges = rule.initial_ranges() * (1 + 8 * EPS)
        variances = np.broadcast_to(ranges[:, None] ** 2 / 4, tally.pulls.shape)
        none = np.empty((0, *model.gram.shape))
        bernstein, best = none, None
        for _ in range(_ROUNDS):
            spread = ranges[:, None, None] ** 2 / 4 * squares
            hoeffding = sub_gaussian_ellipsoids(
                rule.prior, model.gram_inverse, spread, 0.0, delta * split.sub_gaussian, model.defect
            )
            metrics = np.concatenate([hoeffding, bernstein])
            carried = self.propagation.carried(self.rounding.dominating(metrics))
            slopes = np.where(self.rival, staged_widths(carried, self.propagation.gap_directions), 0.0)
            excess = np.where(self.rival, slopes - self.gaps + self.rounding.margins, 0.0)
            upper = self._upper(excess)
            errors = self._errors(metrics)
            if upper is None:
                break
            best = (slopes, excess, upper, metrics, variances, ranges)
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
        if best is None:
            return rule.nothing(self.propagation.policy, self.evidence, self.propagation, model)
        return self._concluded(*best)

    def _upper(self, excess: FloatArray) -> FloatArray | None:
        """W ≥ |ω|, (stages, S); ω = 0 around the value of a fixed policy."""
        if self.kernel is None:
            return np.zeros(excess.shape[:2])
        return self.kernel.super_solution(excess, self.contraction)

    def _errors(self, metrics: FloatArray) -> FloatArray | None:
        """D ≥ |V* - V̂|, (stages, S)."""
        if self.kernel is None:
            return None
        features = np.broadcast_to(self.problem.features, self.propagation.gap_directions.shape)
        gains = staged_widths(metrics, features) + (self.residuals + self.rounding.equations)[:, None, None]
        return self.kernel.super_solution(gains, self.contraction)

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
        errors: FloatArray = terms * EPS * np.trace(carried, axis1=2, axis2=3) * self._squared_lengths
        return errors

    @cached_property
    def _squared_lengths(self) -> FloatArray:
        """max_s ‖ψ(s) - ψ̄‖², (stages,)."""
        lengths: FloatArray = (self.propagation.value_directions**2).sum(axis=2).max(axis=1)
        return lengths

    def _omega_span(self, upper: FloatArray) -> FloatArray:
        """W̄ + N̄ ≥ span(V* - V_x), (stages,)."""
        largest: FloatArray = upper.max(axis=1)
        if self.kernel is not None:
            below = self.kernel.negative_parts(self.propagation.policy, largest, self.rounding.rows, self.contraction)
            largest = largest + below
        return largest

    def _drift(
        self, carried: FloatArray, upper: FloatArray, omega_spans: FloatArray, errors: FloatArray | None
    ) -> FloatArray:
        """Bounds on the sample deviation of V*(S') - V̂(S') at every stage and pair, (stages, K)."""
        omega = (self.laws @ self.propagation.following(upper)[:, :, None] ** 2)[:, :, 0]
        omega = np.minimum(omega, self.propagation.following(omega_spans)[:, None] ** 2 / 4)
        linear = self._linear_deviation(carried) + self.propagation.following(self.rounding.values)[:, None]
        drift: FloatArray = np.sqrt(self.correction) * (linear + np.sqrt(omega))
        if errors is not None:
            crude = (self.laws @ self.propagation.following(errors)[:, :, None] ** 2)[:, :, 0]
            drift = np.minimum(drift, np.sqrt(self.correction * crude))
        return drift

    def _covariances(self, some: slice) -> FloatArray:
        """Observed covariances of the direction of S' at some stages and every pair, (stages, K, d, d)."""
        laws, rows = self.laws[some], self._next_directions[some]
        dimension = self.problem.dimension
        outer = (rows[:, :, :, None] * rows[:, :, None, :]).reshape(*rows.shape[:2], -1)
        means, second = laws @ rows, (laws @ outer).reshape(*laws.shape[:2], dimension, dimension)
        second -= means[:, :, :, None] * means[:, :, None, :]
        return second

    @cached_property
    def _next_directions(self) -> FloatArray:
        """ψ(s) at the stage that follows, (stages, S, d)."""
        return self.propagation.following(self.propagation.value_directions)

    def _linear_deviation(self, carried: FloatArray) -> FloatArray:
        """Largest standard deviation of ψ(S')ᵀx over an ellipsoid, √λ_max(M·Cov), (stages, K)."""
        pulled = self.propagation.pulled_back(carried) if self.problem.horizon is None else carried
        smallest = np.trace(pulled, axis1=2, axis2=3).sum(axis=1).argmin()  # any would do
        rooms = self._quadratic_errors(carried[smallest : smallest + 1])[0]
        values, vectors = np.linalg.eigh(self.propagation.following(carried[smallest]))
        root = (vectors * np.sqrt(np.clip(values, 0.0, None))[:, None, :])[:, None]
        largest = np.empty(self.laws.shape[:2])
        for some in self._pieces(self.laws.shape[1] * self.problem.dimension**2):
            shapes = root[some].swapaxes(2, 3) @ self._covariances(some) @ root[some]
            largest[some] = np.linalg.eigvalsh(shapes)[..., -1]
        largest = largest + self.propagation.following(rooms)[:, None]
        deviations: FloatArray = np.sqrt(np.clip(largest, 0.0, None))
        return deviations

    def _concluded(
        self,
        slopes: FloatArray,
        excess: FloatArray,
        upper: FloatArray,
        metrics: FloatArray,
        variances: FloatArray,
        ranges: FloatArray,
    ) -> Verdict:
        problem, rival = self.problem, self.rival
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
            policy=self.propagation.policy,
            epsilon=loss if informative else inf,
            resolved=max(1.0, resolved) if optimal else min(1.0, max(0.0, resolved)),
            gap=action_gap(problem, np.where(problem.mask, self.propagation.q_values, -np.inf)),
            criterion="A" if optimal else "B" if informative else "",
            propagation=self.propagation,
            metrics=metrics,
            variances=variances,
            ranges=ranges,
            slopes=slopes,
            gaps=self.gaps,
            margins=self.rounding.margins,
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
        smaller: FloatArray = np.minimum(trivial, widths(metrics, played).max(axis=1) + self.rounding.rows)
        return smaller


def rivals(problem: Problem, policy: IntArray) -> BoolArray:
    """Allowed actions that differ from the policy's in the features that the user gave, (stages, S, A).

    Rounding in a change of coordinates may part copies of an action.
    """
    features = problem.source.features
    played = features[np.arange(problem.states), policy]
    differ: BoolArray = problem.mask & (features[None] != played[:, :, None, :]).any(axis=3)
    return differ
