"""Theorems R and R-E, recomputed: the paper's rule with the repairs that make it true of a program.

In coordinates with ‖φ‖ ≤ 1 and ‖θ‖, ‖μᵀV‖/‖V‖∞ ≤ √(1.1 d) (`coordinates`), with G = Σφφᵀ + I/d and ridge estimates
θ̂, μ̂ after t rounds, take any V = clip(max_a φᵀξ, 0, L) with ‖ξ‖ ≤ 10 √d L, L = 1/(1-γ). Put Q = Φ(θ̂ + γμ̂ᵀV), ρ =
max|V - clip(max_a Q)|, and for a policy π that is greedy for Q up to σ let Δ = min_s[Q(s,π(s)) - max Q of other
actions]. With probability at least 1-δ, at all t together,

    ‖θ̂ - θ + γ(μ̂-μ)ᵀV‖²_G ≤ 2L²B(δ, t),     B = 2 log(√e ζ(2) t²/δ) + d log(8e⁴ d t²),

and then π loses at most ε as soon as (1-γ)⁴(Δ + ε - (γ(2ρ + σ) + 2z)/(1-γ))²₊ > 8 B max φᵀG⁻¹φ. Solved for ε, that is
what is returned here. Episodic: ranges H-h, (Δ + ε - Σ(2ρ_h + σ_h + 2z_h))²₊ > 8 H⁴ B(δ/H, t) max φᵀG_h⁻¹φ.

z is what rounding may add to the equation of a pair (`rounding`). The parameters ξ̂ of Q, as computed, leave g = Gξ̂ -
Σφ(r + γV(s')), which is measured; Q is linear in the features up to f = e√(1.1 d) + τ times L; so z = √l(‖g‖_{G⁻¹} +
√t(fL + a_r)) + fL, with l = max φᵀG⁻¹φ, plus the errors of the products.

The event does not mention ε, so every ε that passes is certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.reading import STAGE, Floats, Ints, Node, Rejected, not_below_zero
from bestpolicy.verification.rounding import EPS, MARGIN, reward_sum_errors

_SWEEPS = 20_000
_TIE = 1e-9  # relative to the largest value


def certified_epsilon(case: Case, proof: Node, policy: Ints, delta: float) -> tuple[float, int]:
    """Return the smallest ε that the samples certify for the policy, and the number of samples."""
    proof.only("transform", "design_pairs", "design_weights", "samples")
    coordinates = Coordinates.read(proof, case)
    coordinates.require_norms(case)
    samples = Samples.read(proof.child("samples"), case)
    features, dimension = coordinates.features, coordinates.features.shape[2]
    rows = features.reshape(-1, dimension)[samples.pairs]
    entries = 8 * case.mask.size + 6 * features[:, 0].size + 4 * dimension**2
    case.budget.hold(case.stages * entries, "its estimates")
    products = (features.size + rows.size * len(features) + features[:, 0].size + 20 * dimension**2) * dimension
    case.budget.work(case.stages * (products + STAGE), "its estimates")
    thetas, mus, least, leverage = [], [], [], 0.0
    for stage in range(case.stages):
        pulls = samples.pulls[stage].astype(np.float64)
        gram = (rows.T * pulls) @ rows + np.eye(dimension) / dimension
        factor = cho_factor(gram, lower=True)
        thetas.append(cho_solve(factor, rows.T @ samples.rewards[stage].sum(axis=1)))
        mus.append(cho_solve(factor, rows.T @ samples.counts[stage]).T)
        allowed = features[case.mask]
        eigenvalues = np.linalg.eigvalsh(gram)
        room = 8 * dimension * EPS * float(eigenvalues[-1])
        least.append(max(float(eigenvalues[0]) - room, (1 - 1e-9) / dimension))  # not below the ridge
        own = float(np.einsum("nd,dn->n", allowed, cho_solve(factor, allowed.T)).max())
        leverage = max(leverage, own * (1 + MARGIN * room / least[-1]))
    theta, mu = np.array(thetas), np.array(mus)
    plan = _plan(case, features, theta, mu, policy)

    states = np.arange(len(features))
    played = plan.q_values[np.arange(case.stages)[:, None], states, policy]
    short = (plan.q_values.max(axis=2) - played).max(axis=1)
    if (short > _TIE * case.limits[0]).any():
        raise Rejected("the policy is not the best one of the estimated model")
    gap = float((played[:, :, None] - np.where(case.rivals(policy), plan.q_values, -np.inf)).min())
    rounds = int(samples.pulls.sum(axis=1).max())
    if rounds == 0:
        raise Rejected("there are no samples")
    local = _equation_errors(case, coordinates, samples, plan, least, leverage)
    lost = float((case.gamma * (2 * plan.residuals + short) + 2 * local).sum())
    bound = 8 * _confidence(delta / case.stages, rounds, dimension) * leverage
    if case.discount is not None:
        needed = sqrt(bound) / (1 - case.discount) ** 2 + lost / (1 - case.discount)
    else:
        needed = case.stages**2 * sqrt(bound) + lost
    return not_below_zero(needed - gap), int(samples.pulls.sum())


@dataclass(frozen=True, eq=False)
class _Plan:
    """V (stages, S), Q (stages, S, A; -inf where not allowed), ξ̂ (stages, d), the largest ‖ξ‖ and ρ (stages,)."""

    values: Floats
    q_values: Floats
    parameters: Floats
    lengths: Floats
    residuals: Floats


def _equation_errors(
    case: Case, coordinates: Coordinates, samples: Samples, plan: _Plan, least: list[float], leverage: float
) -> Floats:
    """z of every stage."""
    features = coordinates.features
    states, _, dimension = features.shape
    rows, ahead = features.reshape(-1, dimension)[samples.pairs], case.following(plan.values)
    misfit = (coordinates.error * sqrt(1.1 * dimension) + coordinates.ones) * case.limits + reward_sum_errors(samples)
    products = (dimension + 4) * EPS * coordinates.longest * plan.lengths
    found = np.empty(case.stages)
    for stage, parameters in enumerate(plan.parameters):
        pulls = samples.pulls[stage].astype(np.float64)
        left = pulls * (rows @ parameters) - samples.rewards[stage].sum(axis=1)
        left = left - case.gamma * (samples.counts[stage] @ ahead[stage])
        rest = rows.T @ left + parameters / dimension
        outer = (len(pulls) + 4) * EPS * (coordinates.longest * float(np.abs(left).sum()) + plan.lengths[stage])
        residual = (float(np.linalg.norm(rest)) + outer) / sqrt(least[stage])
        inner = (dimension + states + 8) * EPS * float((np.abs(rows) @ np.abs(parameters)).max() + case.limits[stage])
        found[stage] = residual + sqrt(pulls.sum()) * (misfit[stage] + inner + products[stage])
    errors: Floats = MARGIN * (sqrt(leverage) * found + misfit + 3 * products)
    return errors


def _confidence(delta: float, rounds: int, dimension: int) -> float:
    """B(δ, t)."""
    return 1 + 2 * (log(pi**2 / 6 * float(rounds) ** 2) - log(delta)) + dimension * (4 + log(8 * dimension * rounds**2))


def _plan(case: Case, features: Floats, theta: Floats, mu: Floats, policy: Ints) -> _Plan:
    ball = 10 * sqrt(features.shape[2]) * case.limits[0]

    def q_of(parameters: Floats) -> Floats:
        return np.where(case.mask, features @ parameters, -np.inf)

    def clipped(q_values: Floats, stage: int) -> Floats:
        values: Floats = np.clip(q_values.max(axis=1), 0.0, case.limits[stage])
        return values

    if case.horizon is not None:
        staged, kept, found, values = [], [], [], np.zeros(len(features))
        for stage in reversed(range(case.stages)):
            parameters = theta[stage] + mu[stage].T @ values
            if not np.linalg.norm(parameters) <= ball:
                raise Rejected("the estimated values leave the ball that Theorem R-E covers")
            staged.append(q_of(parameters))
            values = clipped(staged[-1], stage)
            kept.append(parameters)
            found.append(values)
        parameters = np.array(kept[::-1])
        lengths, nothing = np.linalg.norm(parameters, axis=1), np.zeros(case.stages)  # backward induction is exact
        return _Plan(np.array(found[::-1]), np.array(staged[::-1]), parameters, lengths, nothing)

    # Where nothing is clipped, the policy's own values are the fixed point already; sweeps do the rest.
    played = features[np.arange(len(features)), policy[0]]
    parameters = theta[0]
    try:
        guess = np.linalg.solve(np.eye(len(theta[0])) - case.gamma * (mu[0].T @ played), theta[0])
        parameters = guess if np.linalg.norm(guess) <= ball else parameters
    except np.linalg.LinAlgError:
        pass
    for _ in range(_SWEEPS):
        case.budget.work(4 * features.size + STAGE / 4, "planning")
        values = clipped(q_of(parameters), 0)
        following = theta[0] + case.gamma * (mu[0].T @ values)
        q_values = q_of(following)
        residual = float(np.abs(values - clipped(q_values, 0)).max())
        if residual <= 1e-13 * case.limits[0]:
            break
        if not np.linalg.norm(following) <= ball:
            raise Rejected("the estimated values leave the ball that Theorem R covers")
        parameters = following
    lengths = np.linalg.norm([parameters, following], axis=1).max(keepdims=True)
    return _Plan(values[None], q_values[None], following[None], lengths, np.array([residual]))
