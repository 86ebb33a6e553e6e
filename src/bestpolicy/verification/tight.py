"""Theorems T, T-E, P and F, recomputed.

**T.** x is the error vector of the fixed function V*. Then V* solves the estimated model with reward parameter
θ̂ - x, so with y(s,a) the response of Q(s,a) - V(s) to x: adv(s,a) ≤ ρ(s,a) := w(y) - Δ̂(s,a), ρ = 0 at π's action,
w(v) = min √(vᵀMv) over the ellipsoids. ω := V* - V_x obeys |ω| ≤ W, W ≥ max_a{ρ + γ|P̂|W}; its negative part is at most
N, a super-solution of u = γ|P̂_π|u + γn_π W̄ (n the negative mass); |V* - V̂| ≤ D, D ≥ res + max_a{w(φ) + γ|P̂|D}. Range
and variances of R + γV*(S') start at what is known of V* beforehand and shrink with these bounds; all rounds hold on
one event. (A) ρ ≤ 0: π is optimal. (B) V* - V^π ≤ W̄ + (γ/(1-γ))(W̄ + N̄)·½ max_s‖p̂-p‖₁ along π, the distance bounded by
Lemma S over all signs f ∈ {-1,1}^S, or by 2 + 2n. Episodic: W̄_0 + Σ_h ½‖p̂_h-p_h‖₁(W̄_{h+1} + N̄_{h+1}).

**P.** π fixed before the samples; x is the error of V^π, ω = 0, no kernel is needed: V* - V^π ≤ max ρ⁺/(1-γ), or
Σ_h max ρ_h⁺.

**F.** π and V fixed before the samples, |T̂V - TV| ≤ w(φ) =: e. With c⁺ = max[T̂V + e - V] and c⁻ = max[V - T̂V + e
along π], V* - V^π ≤ max over rivals a of [T̂V + e + γc⁺/(1-γ) - V + c⁻/(1-γ)], and not below 0.

To w(y), res, e and the rest comes what rounding may have added (`rounding`); rows of P̂ sum to 1 up to z_p, which adds
γ/(1-γ)·z_p·W̄ to (B).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.kernel import Kernel
from bestpolicy.verification.noise import KEPT, Prior, variance_limits, widths
from bestpolicy.verification.reading import STAGE, Floats, Ints, not_below_zero
from bestpolicy.verification.regression import Regression, Response
from bestpolicy.verification.rounding import EPS, MARGIN, dominating

_ROUNDS = 12
_REFINING = 4  # ellipsoids of either kind that serve to bound ranges and variances
_ALL_PAIRS = 1000  # states up to which all differences of two values are bounded one by one


@dataclass(frozen=True, eq=False)
class Spending:
    """The prior, and what is spent of δ on the events H, B, V and L (absolute numbers)."""

    prior: Prior
    sub_gaussian: float
    bernstein: float
    variance: float
    kernel: float


class Rounds:
    """Theorem T or, with a `fixed` policy, P."""

    def __init__(self, model: Regression, policy: Ints, spending: Spending, fixed: bool) -> None:
        self.model, self.case, self.policy, self.spending = model, model.case, policy, spending
        case, (states, actions, dimension), pairs = model.case, model.features.shape, len(model.rows)
        matrices, pairwise = dimension**2, states**2 if states <= _ALL_PAIRS else 0
        entries = 3 * states * actions * (dimension + 4) + 8 * states * dimension + 100 * matrices
        case.budget.hold(case.stages * entries + 4 * pairs * matrices + 6 * pairwise, "its estimates")
        steps = KEPT / 2 * (2 * states * actions + 8 * pairs * dimension) * matrices + pairs * states * (8 + matrices)
        steps += KEPT * pairwise * (dimension + 30) + 100 * dimension * matrices + (pairs / 4 + 5) * STAGE
        self.steps = case.stages * steps
        self.response = Response.of(model, policy)
        self.kernel = None if fixed else Kernel(model.case, model.features, model.mu, model.longest * model.sizes)
        played = self.response.played
        self.turns = self.response.moved(model.features[None] - played[:, :, None, :])
        self.swings = self.response.moved(played - played.mean(axis=1, keepdims=True))
        self.margins = self.response.rounding(self.turns)
        self.value_errors = 2 * self.response.rounding(self.swings).max(axis=1)
        self.rival = self.case.rivals(policy)
        self.laws = model.samples.counts / np.maximum(model.samples.pulls, 1)[:, :, None]
        pulls = model.samples.pulls.astype(np.float64)
        self.unbiased = pulls / np.maximum(pulls - 1, 1)
        self.squares = model.moments(model.samples.weights_squared)

    def epsilon(self, value_span: float, target: float) -> float:
        """Return the ε that is certified; refining stops at the target."""
        case, model, response, spending = self.case, self.model, self.response, self.spending
        limits = case.limits if case.horizon is None else np.append(case.limits[1:], 0.0)
        ranges = 1 + case.gamma * np.minimum(limits, inf if self.kernel is None else value_span)
        ranges = ranges * (1 + 8 * EPS)
        variances = np.broadcast_to(ranges[:, None] ** 2 / 4, self.laws.shape[:2])
        deviations = model.sample_deviations(case.following(response.values))
        quiet = np.empty((0, *model.inverse.shape))
        best = inf
        for _ in range(_ROUNDS):
            case.budget.work(self.steps, "its confidence sets")
            spread = ranges[:, None, None] ** 2 / 4 * self.squares
            loud = spending.prior.sub_gaussian(model.inverse, model.defect, spread, spending.sub_gaussian)
            self.ellipsoids = ellipsoids = np.concatenate([loud, quiet])
            carried = response.carried(dominating(ellipsoids, response.r))
            excess = self._excess(carried)
            upper = np.zeros(response.values.shape)
            errors = None
            if self.kernel is not None:
                upper = self.kernel.super_solution(excess)
                errors = self.kernel.super_solution(self._value_gains(ellipsoids))
            spans = self._omega_spans(upper)
            best = min(best, self._loss(excess, upper, spans))
            if best <= target:
                break
            leading = np.concatenate([carried[:_REFINING], carried[len(loud) : len(loud) + _REFINING]])
            ranges = np.minimum(ranges, self._ranges(leading, spans, errors))
            drift = self._drift(leading, upper, spans, errors)
            limited = variance_limits(deviations + case.gamma * drift, model.samples.pulls, ranges, spending.variance)
            variances = np.minimum(variances, limited)
            spread = model.moments(model.samples.weights_squared * variances)
            quiet = spending.prior.bernstein(model.inverse, model.defect, spread, ranges, spending.bernstein)
        return best

    def _excess(self, carried: Floats) -> Floats:
        """ρ, (stages, S, A); 0 at the policy's action and its copies."""
        found = np.zeros(self.rival.shape)
        for stage, turns in enumerate(self.turns):
            slopes = widths(carried[:, stage], turns.reshape(-1, turns.shape[-1])).reshape(self.rival.shape[1:])
            found[stage] = slopes - (self.response.values[stage][:, None] - self.response.q_values[stage])
        excess: Floats = np.where(self.rival, found + self.margins, 0.0)
        return excess

    def _value_gains(self, ellipsoids: Floats) -> Floats:
        """res + w(φ), (stages, S, A)."""
        case, response, features = self.case, self.response, self.model.features
        best = np.where(case.mask, response.q_values, -inf).max(axis=2)
        residuals = np.abs(response.values - best).max(axis=1) + response.equation_rounding
        flat = features.reshape(-1, features.shape[2])
        own = np.array([widths(ellipsoids[:, stage], flat) for stage in range(case.stages)])
        gains: Floats = own.reshape(self.rival.shape) + residuals[:, None, None]
        return gains

    def _omega_spans(self, upper: Floats) -> Floats:
        """W̄ + N̄, (stages,): bounds on the span of ω."""
        largest: Floats = upper.max(axis=1)
        if self.kernel is None or not self.kernel.negative.any():
            return largest
        ahead = self.case.following(largest)
        gains = self.case.gamma * self.kernel.negative * ahead[:, None, None]
        played = np.arange(self.rival.shape[2]) == self.policy[:, :, None]
        below = self.kernel.super_solution(np.where(played, gains, -inf))
        spans: Floats = largest + np.minimum(largest, below.max(axis=1))
        return spans

    def _ranges(self, carried: Floats, omega_spans: Floats, errors: Floats | None) -> Floats:
        """1 + γ span(V) of the next stage, (stages,)."""
        case = self.case
        spans = np.empty(case.stages)
        for stage, (values, swings) in enumerate(zip(self.response.values, self.swings, strict=True)):
            radius = widths(carried[:, stage], swings)
            spread = (values + radius).max() - (values - radius).min()
            if len(values) <= _ALL_PAIRS:
                pairwise = np.full((len(values), len(values)), inf)
                for matrix in carried[:, stage]:
                    inner = swings @ matrix @ swings.T
                    own = np.diag(inner)
                    pairwise = np.minimum(pairwise, own[:, None] + own - 2 * inner + self._room(matrix, stage))
                spread = min(spread, (values[:, None] - values + np.sqrt(np.maximum(pairwise, 0))).max())
            spans[stage] = spread + omega_spans[stage] + self.value_errors[stage]
            if errors is not None:
                high = np.minimum(values + errors[stage], case.limits[stage]).max()
                spans[stage] = min(spans[stage], high - np.maximum(values - errors[stage], 0.0).min())
        spans = np.maximum(spans, 0.0) + 8 * EPS * case.limits
        ranges: Floats = (1 + case.gamma * case.following(spans)) * (1 + 8 * EPS)
        return ranges

    def _room(self, matrix: Floats, stage: int) -> float:
        """What quadratic forms and covariances of a stage's values may lose to rounding."""
        terms = len(self.swings[stage]) + 8 * self.swings.shape[-1] + 32
        return float(terms * EPS * np.trace(matrix) * (self.swings[stage] ** 2).sum(axis=1).max())

    def _drift(self, carried: Floats, upper: Floats, omega_spans: Floats, errors: Floats | None) -> Floats:
        """Bounds on the sample standard deviation of V(S') - V̂(S'), (stages, K)."""
        case = self.case
        omega = np.einsum("hks,hs->hk", self.laws, case.following(upper) ** 2)
        omega = np.minimum(omega, case.following(omega_spans)[:, None] ** 2 / 4)
        drift: Floats = self._linear_deviations(carried) + np.sqrt(omega) + case.following(self.value_errors)[:, None]
        if errors is not None:
            crude = np.einsum("hks,hs->hk", self.laws, case.following(errors) ** 2)
            drift = np.minimum(drift, np.sqrt(crude))
        return drift * np.sqrt(self.unbiased)

    def _linear_deviations(self, carried: Floats) -> Floats:
        """√λ_max(MC), C the empirical covariance of the response of S', (stages, K)."""
        found = np.zeros(self.laws.shape[:2])
        for stage in range(self.case.stages):
            ahead = stage if self.case.horizon is None else stage + 1
            if ahead == self.case.stages:
                continue
            covariances = np.zeros((self.laws.shape[1], *self.model.inverse.shape[1:]))
            for pair, law in enumerate(self.laws[stage]):
                seen = np.flatnonzero(law)
                if len(seen):
                    rows = self.swings[ahead][seen]
                    rows = rows - law[seen] @ rows
                    covariances[pair] = (rows.T * law[seen]) @ rows
            least = np.full(len(covariances), inf)
            for matrix in carried[:, ahead]:
                values, vectors = np.linalg.eigh(matrix)
                root = vectors * np.sqrt(np.maximum(values, 0.0))
                most = np.linalg.eigvalsh(root.T @ covariances @ root)[:, -1] + self._room(matrix, ahead)
                least = np.minimum(least, most)
            found[stage] = np.sqrt(np.maximum(least, 0.0))
        return found

    def _loss(self, excess: Floats, upper: Floats, omega_spans: Floats) -> float:
        case = self.case
        if (excess <= 0).all():
            return 0.0
        if self.kernel is None:
            worst = np.maximum(excess, 0.0).max(axis=(1, 2)).sum()
            return float(worst / (1 - case.gamma) if case.horizon is None else worst)
        halves, rows, largest = self._kernel_distances() / 2, self.model.row_errors, upper.max(axis=1)
        if case.horizon is None:
            beyond = halves[0] * omega_spans[0] + rows[0] * largest[0]
            return float(largest[0] + case.gamma / (1 - case.gamma) * beyond)
        return float(largest[0] + (halves[:-1] * omega_spans[1:] + rows[:-1] * largest[1:]).sum())

    def _kernel_distances(self) -> Floats:
        """Bounds on max_s‖p̂ - p‖₁ along the policy, (stages,)."""
        assert self.kernel is not None
        case, spending, rows = self.case, self.spending, self.model.row_errors
        states = np.arange(len(self.model.features))
        found = np.array([2 + 2 * self.kernel.negative[h, states, row].max() for h, row in enumerate(self.policy)])
        found = found + rows
        if spending.kernel > 0:
            signs = len(states) * log(2) + log(case.stages)
            for stage in range(case.stages):
                one = slice(stage, stage + 1)
                matrices = spending.prior.stage(stage).sub_gaussian(
                    self.model.inverse[one], self.model.defect, self.squares[one], spending.kernel, signs
                )
                measured = widths(matrices[:, 0], self.response.played[stage]).max() + rows[stage]
                found[stage] = min(found[stage], measured)
        return found


def certified_by_f(model: Regression, policy: Ints, values: Floats, spending: Spending) -> float:
    """Return the ε that Theorem F certifies for a policy and a function V, (1, S), fixed before the samples."""
    case: Case = model.case
    ranges = (1 + case.gamma * np.ptp(values, axis=1)) * (1 + 8 * EPS)
    squares = model.samples.weights_squared
    loud = spending.prior.sub_gaussian(
        model.inverse, model.defect, ranges[:, None, None] ** 2 / 4 * model.moments(squares), spending.sub_gaussian
    )
    variances = variance_limits(model.sample_deviations(values), model.samples.pulls, ranges, spending.variance)
    quiet = spending.prior.bernstein(
        model.inverse, model.defect, model.moments(squares * variances), ranges, spending.bernstein
    )
    features, limit = model.features, case.limits[0]
    parameters = model.theta[0] + case.gamma * (model.mu[0].T @ values[0])
    backed_up = features @ parameters
    errors = widths(np.concatenate([loud, quiet])[:, 0], features.reshape(-1, features.shape[2]))
    errors = errors.reshape(case.mask.shape) + rounding_of_f(model, values, parameters)
    upper = np.where(case.mask, backed_up + errors, -inf)
    states, own = np.arange(len(features)), policy[0]
    above = (upper.max(axis=1) - values[0]).max()
    below = (values[0] - (backed_up - errors)[states, own]).max()
    # Copies of the policy's action have its value: the proof may take the policy's own for them.
    rivals = np.where(case.rivals(policy)[0], upper, -inf).max(axis=1)
    return not_below_zero(float((rivals + case.gamma * above * limit - values[0] + below * limit).max()))


def rounding_of_f(model: Regression, values: Floats, parameters: Floats) -> float:
    """What rounding may add to |T̂V - TV|, and to what Theorem F makes of it."""
    states, _, dimension = model.features.shape
    terms = np.linalg.norm(model.theta[0]) + model.sizes[0] * np.abs(values).max()
    products = (states + 6) * terms + (dimension + 4) * np.linalg.norm(parameters)
    largest = max(float(model.case.limits[0]), 1 + float(np.abs(values).max()))
    own = model.longest * products * EPS + 8 * EPS * largest
    return float(model.reward_errors[0] + model.row_errors[0] * largest + MARGIN * own)
