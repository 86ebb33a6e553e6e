"""What rounding may do to a look at the data, measured after the fact.

The theorems are about real numbers, the program computes with 53 bits. Everything that has been computed is taken as
it is, and what is missing for the theorems' equations to hold is bounded from measured residuals. Let φ be the features
in use (`coordinates`: ‖φ - φ_userT‖ ≤ e), W_k = Σ1/u the weights, n = ΣW_k, G = ΣW_kφ_kφ_kᵀ exactly, λ ≤ λ_min(G);
and let θ̂, μ̂, ξ̂, J be the numbers that the program has for the least-squares model, the value parameters of its policy
and (I - γK)⁻¹, K = μ̂ᵀΦ_π.

**One equation.** Let Q = r + γpV, 0 ≤ V ≤ L and 0 ≤ Q ≤ L, for V* or any fixed function, and x = G⁻¹Σb_iη_i its noise.
Then at every pair

    Q(s,a) = φᵀ(θ̂ + γμ̂ᵀV - x) + z(s,a),        |z| ≤ z̄ = z_r + z_p·L,

    z_p = (eΞ + τ)(1 + A) + 2aA + ‖φ‖‖Σ_s|ρ_μ(s)|‖/λ,        z_r = a_r A + ‖φ‖‖ρ_θ‖/λ.

*Proof.* Q is linear in the user's features up to τL (`coordinates`), Q ≈ φ_userTξ, and λ‖ξ‖² ≤ ΣW_kQ_k² up to e gives
‖ξ‖ ≤ ΞL with Ξ = (1+τ)√(n/λ)/(1 - e√(n/λ)). So Q(s,a) = φᵀξ up to (eΞ + τ)L at each pair, and G(θ̂ + γμ̂ᵀV - ξ) =
Σb_iη_i + ρ_θ + γρ_μᵀV + Σb_i·(that misfit), with the residuals ρ_θ = Gθ̂ - Σb_ir_i and ρ_μ of the solve. φᵀG⁻¹ times
Σ_kW_kφ_kc_k is at most A max|c|, A = ‖φ‖√(n/λ) (Cauchy–Schwarz). Sums of weights and of rewards are off by relative a
and a_r. ∎

**Gaps.** With ρ_ξ = θ̂ + γKξ̂ - ξ̂, c = φ(s,a) - φ(s,π(s)), y = Jᵀc for the exact J and m_j = Σ_s|μ̂_j(s)|: the exact
advantage of V_x in the equations above is -Δ̂ - yᵀx up to

    margin(s,a) = 2(z̄ + p) + (γz̄‖m‖ + ‖ρ_ξ‖)‖y‖,        p = (d+4)ε‖φ‖‖ξ̂‖, the error of two products.

*Proof.* z moves Q(s,a) - V(s) by z(s,a) - z(s,π) + γ(p̂(s,a) - p̂(s,π))ᵀ(I - γP̂_π)⁻¹z_π, and the last term is γyᵀμ̂ᵀz_π
because (I - γP̂_π)⁻¹ = I + γΦ_πJμ̂ᵀ and I + γKJ = J. The values of ξ̂ differ from those of J θ̂ by φᵀJρ_ξ. ∎
Nothing here grows with 1/(1-γ)² unless the errors y themselves do. Episodic: the same stage by stage, Σ_j‖y_j‖τ_j ≤
√H √(Σ_j τ_j²‖y_j‖²), the width of one more ellipsoid.

**Widths.** If the program's J' leaves I - (I - γK)J' = R, then y = (I - R)⁻ᵀy' for y' = J'ᵀc, so ‖y - y'‖ ≤ r‖y'‖ with
r = ‖R‖/(1 - ‖R‖), and w(y)² ≤ y'ᵀM'y' for M' = (1+r)(M + r·tr(M)·I). In the same way M makes up for what the inverse of
G leaves (`ellipsoids`).

All of this is a bound on *one* computation. The run keeps `ALLOWANCE` times as much: someone who computes anew has
rounding errors of his own, and a margin for them, and is to come to the same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.samples import Tally
from bestpolicy.stopping.coordinates import EPS, Coordinates
from bestpolicy.stopping.evidence import Evidence, Model
from bestpolicy.stopping.lemmas.ellipsoids import staged_widths
from bestpolicy.stopping.lemmas.propagation import Propagation

ALLOWANCE = 4.0
_WEIGHTED_SUMS = 2.0**-42  # relative error of sums of weights that grow from look to look, by 1/2000 or more
_LARGEST_DEFECT = 0.25
_LONGEST_SUM = 2**33  # rewards that anyone adds up one by one; who has more of them has counted outcomes


@dataclass(frozen=True, eq=False)
class EquationErrors:
    """z_r and z_p of every stage, (stages,): an equation with values up to L is off by at most z_r + z_p·L."""

    rewards: FloatArray
    probabilities: FloatArray

    def up_to(self, limits: FloatArray) -> FloatArray:
        """z̄ for values up to the limits, (stages,)."""
        total: FloatArray = self.rewards + self.probabilities * limits
        return total


def equation_errors(coordinates: Coordinates, evidence: Evidence, model: Model) -> EquationErrors:
    """Bound what rounding leaves of the equation of one pair."""
    total = evidence.inverse_weights.sum(axis=1)
    root = np.sqrt(total / model.smallest)
    loss = coordinates.error * root
    parameters = np.where(loss <= 0.5, root * (1 + coordinates.ones) / (1 - np.minimum(loss, 0.5)), inf)
    misfit = coordinates.ones + (coordinates.error * parameters if coordinates.error else 0.0)
    reach = coordinates.longest * root
    solved = coordinates.longest / model.smallest
    weighted = 0.0 if evidence.unweighted else max(_WEIGHTED_SUMS, evidence.batches * EPS)
    return EquationErrors(
        rewards=(sum_errors(evidence.tally) + weighted) * reach + solved * model.reward_residuals,
        probabilities=misfit * (1 + reach) + 2 * weighted * reach + solved * model.transition_residuals,
    )


def sum_errors(tally: Tally) -> FloatArray:
    """a_r: relative error of the sums of rewards, (stages,); 0 where all rewards were 0 or 1."""
    exact = tally.squared_rewards == tally.reward_sums
    terms = np.where(exact, 0, np.minimum(tally.pulls, _LONGEST_SUM) + tally.next_counts.shape[2])
    errors: FloatArray = terms.max(axis=1, initial=0) * (EPS / 2)
    return errors


@dataclass(frozen=True, eq=False)
class Rounding:
    """Bounds on what rounding adds to a look, for one policy.

    Attributes
    ----------
    margins : array (stages, S, A)
        Of w(y) - Δ̂.
    equations : array (stages,)
        Of Q̂ as a solution of its equation with the true V.
    values : array (stages,)
        Of the difference of two states' values.
    rows : array (stages,)
        Of the sum of a row of P̂, which should be 1.
    response : float
        r, relative to the directions y.
    """

    margins: FloatArray
    equations: FloatArray
    values: FloatArray
    rows: FloatArray
    response: float

    @property
    def bounded(self) -> bool:
        """Whether there are bounds at all."""
        return bool(np.isfinite(self.margins).all() and self.response < _LARGEST_DEFECT)

    @classmethod
    def of(
        cls,
        coordinates: Coordinates,
        evidence: Evidence,
        model: Model,
        propagation: Propagation,
        allowance: float = ALLOWANCE,
    ) -> Rounding:
        """Measure the residuals of a look, and take `allowance` times the bounds."""
        problem = coordinates.problem
        gamma, longest = problem.continuation, coordinates.longest
        errors = equation_errors(coordinates, evidence, model)
        local = errors.up_to(problem.value_limits)
        if not np.isfinite(local).all():
            return cls(np.full(propagation.q_values.shape, inf), local, local, errors.probabilities, inf)
        sizes = model.transition_sizes
        lengths = np.linalg.norm(propagation.parameters, axis=1)
        products = (problem.dimension + 4) * EPS * longest * lengths
        residuals = propagation.residuals(model.theta, model.mu, sizes)
        residuals = residuals + gamma * sizes * propagation.following(products)
        sources = gamma * sizes * propagation.following(local) + residuals
        # Σ_j‖y_j‖τ_j over the stages that follow, as the width of one more ellipsoid.
        metrics = propagation.carried(sources[None, :, None, None] ** 2 * np.eye(problem.dimension))
        spread = sqrt(problem.stages) * (1 + (problem.dimension + 4) * EPS)
        moved = spread * staged_widths(metrics, propagation.gap_directions)
        centred = spread * staged_widths(metrics, propagation.value_directions).max(axis=1)
        pairs = 2 * (local + products)
        response = propagation.response_error(sizes)
        return cls(
            margins=allowance * (pairs[:, None, None] + moved),
            equations=allowance * (local + 2 * products + longest * residuals),
            values=allowance * (pairs + 2 * centred),
            rows=allowance * errors.probabilities,
            response=allowance * response,
        )

    def dominating(self, metrics: FloatArray) -> FloatArray:
        """M' of metrics M (m, stages, d, d): widths along the computed directions bound those along the exact ones."""
        traces = np.trace(metrics, axis1=2, axis2=3).max(axis=1)
        ridge = self.response * traces[:, None, None, None] * np.eye(metrics.shape[-1])
        larger: FloatArray = (1 + self.response) * (metrics + ridge)
        return larger
