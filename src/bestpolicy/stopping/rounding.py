"""What rounding may do to a look at the data: coordinates to the last digit, and errors measured after the fact.

**Coordinates.** The truth is linear in the features that the user gave. An algorithm works in other coordinates, φ' =
φT, which it got by multiplying in double precision. If the features are badly conditioned, digits cancel in that
product: rows are off by up to d·u·|φ||T|, at a condition number of 10¹¹ in the fifth digit, and in features that are
off like that the truth is *not* linear. Least squares then has a bias that no number of samples removes and no
ellipsoid covers. So the rules multiply again. Any T will do, as long as it is known: one with φT ≈ φ' is found by least
squares, and the product is formed as accurately as if there were half as many digits more (`accurate_product`). What is
left is bounded:

    ‖φ'(s,a) - φ(s,a)T‖ ≤ `error`        at all allowed pairs, for the φ' that are used from then on.

Rows of transition probabilities sum to 1, so the all-ones function is linear in the features; in features that were
rounded it is so up to some `ones`, which is measured. In such features transitions and rewards are linear up to as
much, too: expectations of functions with values in [0, 1] are taken to be off by at most `ones`.

**A look.** The theorems are about real numbers, the program computes with 53 bits. Everything that has been computed is
taken as it is, and what is missing for the theorems' equations to hold is bounded from measured residuals. Let φ be the
features in use (‖φ - φ_userT‖ ≤ e, and `ones` = τ), W_k = Σ1/u the weights, n = ΣW_k, G = ΣW_kφ_kφ_kᵀ exactly, λ ≤
λ_min(G); and let θ̂, μ̂, ξ̂, J be the numbers that the program has for the least-squares model, the value parameters of
its policy and (I - γK)⁻¹, K = μ̂ᵀΦ_π.

**One equation.** Let Q = r + γpV, 0 ≤ V ≤ L and 0 ≤ Q ≤ L, for V* or any fixed function, and x = G⁻¹Σb_iη_i its noise.
Then at every pair

    Q(s,a) = φᵀ(θ̂ + γμ̂ᵀV - x) + z(s,a),        |z| ≤ z̄ = z_r + z_p·L,

    z_p = (eΞ + τ)(1 + A) + 2aA + ‖φ‖‖Σ_s|ρ_μ(s)|‖/λ,        z_r = a_r A + ‖φ‖‖ρ_θ‖/λ.

*Proof.* Q is linear in the user's features up to τL, Q ≈ φ_userTξ, and λ‖ξ‖² ≤ ΣW_kQ_k² up to e gives
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

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, axes_of, frozen
from bestpolicy._numerics.reproducible import EPS, accurate_product, one_thread
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.lemmas.deviations import staged_widths

if TYPE_CHECKING:
    from bestpolicy.stopping.evidence import Evidence, Model
    from bestpolicy.stopping.lemmas.propagation import Propagation

ALLOWANCE = 4.0
_FAR = 1e-3  # coordinates that are further than this from any linear map of the features are none
_WEIGHTED_SUMS = 2.0**-42  # relative error of sums of weights that grow from look to look, by 1/2000 or more
_LARGEST_DEFECT = 0.25
_LONGEST_SUM = 2**33  # rewards that anyone adds up one by one; who has more of them has counted outcomes


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A problem in coordinates that are known well.

    Attributes
    ----------
    problem : Problem
    transform : array (d, d), optional
        T, from the user's features to those of `problem`; None if the algorithm's own is used.
    longest : float
        max ‖φ'‖ over the allowed pairs.
    error : float
        max ‖φ' - φT‖; inf if the coordinates are not a linear map of the user's.
    moved : float
        Largest distance of φ' from what the algorithm had computed.
    ones : float
        By how much the all-ones function misses the span of the features, at most.
    """

    problem: Problem
    transform: FloatArray | None
    longest: float
    error: float
    moved: float
    ones: float


def coordinates_of(problem: Problem) -> Coordinates:
    """Return the accurate coordinates of a problem; they are computed once."""
    known: Coordinates | None = problem.__dict__.get("_coordinates")
    if known is None:
        with one_thread():
            known = _computed(problem)
        known.problem.__dict__["_coordinates"] = replace(known, moved=0.0)
        problem.__dict__["_coordinates"] = known
    return known


def _computed(problem: Problem) -> Coordinates:
    source, used = problem.source, problem.pair_features
    if source is problem:
        return Coordinates(problem, None, _longest(used), 0.0, 0.0, _misfit_of_ones(used))
    given = source.pair_features
    scaled = _scaling_error(given, used)
    if scaled is not None:
        return Coordinates(problem, None, _longest(used), scaled * _longest(used), 0.0, _misfit_of_ones(used))
    transform = _fitted(given, used)
    mended, errors = accurate_product(given, transform)
    length = max(1.0, _longest(mended))
    if _longest(used) <= 1 < length:  # who relies on ‖φ'‖ ≤ 1 has to find it still
        transform = transform / (length * (1 + 4 * EPS))
        mended, errors = accurate_product(given, transform)
    moved = _longest(mended - used)
    if not moved <= _FAR * _longest(used):
        return Coordinates(problem, None, _longest(used), inf, 0.0, inf)
    features = problem.features.copy()
    features[problem.mask] = mended
    return Coordinates(
        problem.with_features(frozen(features)),
        frozen(transform),
        _longest(mended),
        float(errors.max()),
        moved,
        _misfit_of_ones(mended),
    )


def _longest(rows: FloatArray) -> float:
    return float(np.sqrt(np.einsum("nd,nd->n", rows, rows).max()) * (1 + rows.shape[1] * EPS))


def _scaling_error(given: FloatArray, used: FloatArray) -> float | None:
    """Relative error of `used` if it is `given` with other scales of the axes that its rows lie on; None if not."""
    axes, others = axes_of(given), axes_of(used)
    if axes is None or others is None or not np.array_equal(axes[0], others[0]) or not axes[1].all():
        return None
    lowest, highest = _extremes(axes[0], used.sum(axis=1) / given.sum(axis=1), given.shape[1])
    spread = float(((highest - lowest) / np.abs(highest + lowest)).max())
    return spread + 2 * EPS if spread <= 8 * EPS else None


def _extremes(axis: IntArray, numbers: FloatArray, dimension: int) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest number of every axis that occurs."""
    lowest, highest = np.full(dimension, inf), np.full(dimension, -inf)
    np.minimum.at(lowest, axis, numbers)
    np.maximum.at(highest, axis, numbers)
    used = lowest <= highest
    return lowest[used], highest[used]


def _fitted(given: FloatArray, used: FloatArray) -> FloatArray:
    """T (d, d) with given · T ≈ used, as well as double precision finds it."""
    scales = np.abs(given).max(axis=0)
    basis, triangle = np.linalg.qr(given / scales)
    transform = np.linalg.solve(triangle, basis.T @ used)
    # What is as small as rounding is zero in the algorithm's own transform, and features without signs stay so.
    transform[np.abs(transform) <= 64 * len(transform) * EPS * np.abs(used).max()] = 0.0
    unscaled: FloatArray = transform / scales[:, None]
    return unscaled


def _misfit_of_ones(rows: FloatArray) -> float:
    """max |1 - rows·v| for a good v, with what rounding hides of it."""
    count, dimension = rows.shape
    axes = axes_of(rows)
    if axes is not None:
        # One entry a row: the best constant of an axis is the inverse of the middle of its entries.
        low, high = _extremes(axes[0], rows.sum(axis=1), dimension)
        return float(np.where(low * high > 0, (high - low) / np.abs(high + low), 1.0).max()) + 4 * EPS
    gram, vector, rest = rows.T @ rows, np.zeros(dimension), np.ones(count)
    try:
        for _ in range(3):
            vector = vector + np.linalg.solve(gram, rows.T @ rest)
            rest = 1 - rows @ vector
    except np.linalg.LinAlgError:
        return inf
    size = np.abs(rows) @ np.abs(vector)
    return float((np.abs(rest) + (dimension + 2) * EPS * (1 + size)).max())


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
    ) -> Rounding:
        """Measure the residuals of a look, and take `ALLOWANCE` times the bounds."""
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
            margins=ALLOWANCE * (pairs[:, None, None] + moved),
            equations=ALLOWANCE * (local + 2 * products + longest * residuals),
            values=ALLOWANCE * (pairs + 2 * centred),
            rows=ALLOWANCE * errors.probabilities,
            response=ALLOWANCE * response,
        )

    def dominating(self, metrics: FloatArray) -> FloatArray:
        """M' of metrics M (m, stages, d, d): widths along the computed directions bound those along the exact ones."""
        traces = np.trace(metrics, axis1=2, axis2=3).max(axis=1)
        ridge = self.response * traces[:, None, None, None] * np.eye(metrics.shape[-1])
        larger: FloatArray = (1 + self.response) * (metrics + ridge)
        return larger
