"""Theorem F: super- and sub-solutions on fresh samples, with no condition on the estimated kernel.

Let a policy π and a function V be fixed by past samples, in any way, and let e(s,a) bound |T̂V - TV|(s,a) at
all pairs, where (TV)(s,a) = r + γ pV and T̂V = Φ(θ̂ + γμ̂ᵀV) is estimated from samples drawn since. Put

    c⁺ = max_{s,a} [T̂V + e - V(s)],     c⁻ = max_s [V(s) - T̂V(s,π(s)) + e(s,π(s))].

Then V* ≤ V + c⁺/(1-γ) =: U, V^π ≥ V - c⁻/(1-γ) =: Lo, and V* - V^π ≤ max(0, max_{s, a≠π(s)} [T̂V + e +
γc⁺/(1-γ) - Lo(s)]).

*Proof.* TV ≤ V + c⁺, so TU = TV + γc⁺/(1-γ) ≤ U: a super-solution dominates V*. Likewise T_πLo ≥ Lo. Let s
maximise V* - V^π: if π(s) is optimal at s then (V* - V^π)(s) ≤ γ max(V* - V^π), so the maximum is at most 0;
else it equals Q*(s,a) - V^π(s) ≤ TU(s,a) - Lo(s) for some a ≠ π(s). ∎

V is known, so its range and the sample variance of R + γV(S') are observed: e comes from Lemmas S, B and V
without any alternation, and holds at all times since the past ended, with any predictable sampling. The cost
is d-dimensional, whatever the number of states. What rounding may add to the equation of one pair (`rounding`) is part
of e. One 1/(1-γ) is lost against Theorem T, so this is what certifies when Theorem T's contraction fails (many states,
few samples), or what certifies first for large ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.stopping.evidence import Evidence, Model, dominating_moments, fit
from bestpolicy.stopping.lemmas.deviations import (
    bernstein_ellipsoids,
    deviation_terms,
    sample_variances,
    sub_gaussian_ellipsoids,
    variance_bounds,
    widths,
)
from bestpolicy.stopping.rounding import ALLOWANCE, equation_errors
from bestpolicy.stopping.rule import FixedTest, Past, Proof, Terms, Verdict


@dataclass(frozen=True)
class TheoremF:
    """The rule: it needs a policy and a function, and a discounted problem."""

    def fix(self, terms: Terms, past: Past, delta: float) -> FreshTest | None:
        """Return the test around V."""
        if terms.problem.horizon is not None or past.policy is None or past.values is None:
            return None
        return FreshTest(terms.problem, past, delta)


class FreshTest(FixedTest):
    """Theorem F; δ is spent in equal parts on the two ellipsoids and the variances."""

    @property
    def policy(self) -> IntArray:
        """π, (1, S)."""
        assert self.past.policy is not None
        return self.past.policy

    @property
    def values(self) -> FloatArray:
        """V, (1, S)."""
        assert self.past.values is not None
        return self.past.values

    def look(self, fresh: Evidence) -> Verdict:
        """Certify what the samples since the past allow."""
        loss = self.loss(fresh)
        return Verdict("F", self.policy, loss if loss < self.problem.value_limits[0] else inf)

    def proof(self, fresh: Evidence) -> Proof:
        """Return what others need to compute the same loss."""
        return Proof("F", fresh, self.coordinates.transform, self.past)

    def loss(self, evidence: Evidence) -> float:
        """Bound on max_s V*(s) - V^π(s); inf if the evidence does not yet determine a model."""
        problem, values = self.problem, self.values
        model = fit(problem, evidence)
        if model is None:
            return inf
        parameters = model.theta[0] + problem.continuation * (model.mu[0].T @ values[0])
        errors = widths(self._metrics(evidence, model)[:, 0], problem.features.reshape(-1, problem.dimension))
        errors = (errors + ALLOWANCE * self.rounding(evidence, model, parameters)).reshape(problem.mask.shape)
        backed_up = problem.features @ parameters
        upper, lower = np.where(problem.mask, backed_up + errors, -inf), backed_up - errors
        everywhere, limit = np.arange(problem.states), problem.value_limits[0]
        above = float((upper.max(axis=1) - values[0]).max())
        below = float((values[0] - lower[everywhere, self.policy[0]]).max())
        floor = values[0] - below * limit
        rivals = upper.copy()
        rivals[everywhere, self.policy[0]] = -inf
        loss = float((rivals.max(axis=1) + problem.continuation * above * limit - floor).max())
        return max(0.0, loss) if loss < inf else inf

    def rounding(self, evidence: Evidence, model: Model, parameters: FloatArray) -> float:
        """Bound on what rounding adds to |T̂V - TV|, and to what is computed from it."""
        problem, known, limit = self.problem, self.coordinates, float(self.problem.value_limits[0])
        local = equation_errors(known, evidence, model).up_to(problem.value_limits)[0]
        terms = np.linalg.norm(model.theta[0]) + model.transition_sizes[0] * np.abs(self.values).max()
        products = (problem.states + 6) * terms + (problem.dimension + 4) * np.linalg.norm(parameters)
        return float(local + known.longest * products * EPS + 8 * EPS * limit)

    def _metrics(self, evidence: Evidence, model: Model) -> FloatArray:
        """Ellipsoids for the noise of V, (m, 1, d, d)."""
        problem, tally, values, third = self.problem, evidence.tally, self.values, self.delta / 3
        ranges = (1 + problem.continuation * np.ptp(values, axis=1)) * (1 + 8 * EPS)
        spread = ranges[:, None, None] ** 2 / 4 * dominating_moments(model.sampled, evidence.inverse_squares)
        deviations = np.sqrt(sample_variances(tally, values, problem.continuation))
        variances = variance_bounds(deviations, deviation_terms(tally.pulls, ranges, third), ranges)
        quiet = dominating_moments(model.sampled, evidence.inverse_squares * variances)
        return np.concatenate(
            [
                sub_gaussian_ellipsoids(self.prior, model.gram_inverse, spread, 0.0, third, model.defect),
                bernstein_ellipsoids(self.prior, model.gram_inverse, quiet, ranges, third, model.defect),
            ]
        )
