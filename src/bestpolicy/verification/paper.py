"""Theorems R and R-E, recomputed: the paper's rule with the repairs that make it true of a program.

In coordinates with ‖φ‖ ≤ 1 and ‖θ‖, ‖μᵀV‖/‖V‖∞ ≤ √(1.1 d) (`coordinates`), with G = Σφφᵀ + I/d and ridge estimates
θ̂, μ̂ after t rounds, take any V = clip(max_a φᵀξ, 0, L) with ‖ξ‖ ≤ 10 √d L, L = 1/(1-γ). Put Q = Φ(θ̂ + γμ̂ᵀV), let π be
greedy for Q with gap Δ, and ρ = max|V - clip(max_a Q)|. With probability at least 1-δ, at all t together,

    ‖θ̂ - θ + γ(μ̂-μ)ᵀV‖²_G ≤ 2L²B(δ, t),     B = 2 log(√e ζ(2) t²/δ) + d log(8e⁴ d t²),

and then π loses at most ε as soon as (1-γ)⁴(Δ + ε - 2γρ/(1-γ))²₊ > 8 B max φᵀG⁻¹φ. Solved for ε, that is what is
returned here. Episodic: ranges H-h, (Δ + ε - 2Σρ_h)²₊ > 8 H⁴ B(δ/H, t) max φᵀG_h⁻¹φ.

The event does not mention ε, so every ε that passes is certified.
"""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected, not_below_zero

_SWEEPS = 20_000
_TIE = 1e-9  # relative to the largest value


def certified_epsilon(case: Case, proof: Node, policy: Ints, delta: float) -> tuple[float, int]:
    """Return the smallest ε that the samples certify for the policy, and the number of samples."""
    coordinates = Coordinates.read(proof, case)
    coordinates.require_norms(case)
    samples = Samples.read(proof.child("samples"), case)
    features, dimension = coordinates.features, coordinates.features.shape[2]
    rows = features.reshape(-1, dimension)[samples.pairs]
    thetas, mus, leverage = [], [], 0.0
    for stage in range(case.stages):
        pulls = samples.pulls[stage].astype(np.float64)
        factor = cho_factor((rows.T * pulls) @ rows + np.eye(dimension) / dimension, lower=True)
        thetas.append(cho_solve(factor, rows.T @ samples.rewards[stage].sum(axis=1)))
        mus.append(cho_solve(factor, rows.T @ samples.counts[stage]).T)
        allowed = features[case.mask]
        leverage = max(leverage, float(np.einsum("nd,dn->n", allowed, cho_solve(factor, allowed.T)).max()))
    theta, mu = np.array(thetas), np.array(mus)
    q_values, residual = _plan(case, features, theta, mu, policy)

    states = np.arange(len(features))
    played = q_values[np.arange(case.stages)[:, None], states, policy]
    if (played < q_values.max(axis=2) - _TIE * case.limits[0]).any():
        raise Rejected("the policy is not the best one of the estimated model")
    gap = float((played[:, :, None] - np.where(case.rivals(policy), q_values, -np.inf)).min())
    rounds = int(samples.pulls.sum(axis=1).max())
    if rounds == 0:
        raise Rejected("there are no samples")
    bound = 8 * _confidence(delta / case.stages, rounds, dimension) * leverage
    if case.discount is not None:
        needed = sqrt(bound) / (1 - case.discount) ** 2 + 2 * case.gamma * residual / (1 - case.discount)
    else:
        needed = case.stages**2 * sqrt(bound) + 2 * residual
    return not_below_zero(needed - gap), int(samples.pulls.sum())


def _confidence(delta: float, rounds: int, dimension: int) -> float:
    """B(δ, t)."""
    return 1 + 2 * (log(pi**2 / 6 * float(rounds) ** 2) - log(delta)) + dimension * (4 + log(8 * dimension * rounds**2))


def _plan(case: Case, features: Floats, theta: Floats, mu: Floats, policy: Ints) -> tuple[Floats, float]:
    """Return Q (stages, S, A; -inf where not allowed), and ρ or Σρ_h."""
    ball = 10 * sqrt(features.shape[2]) * case.limits[0]

    def q_of(parameters: Floats) -> Floats:
        return np.where(case.mask, features @ parameters, -np.inf)

    def clipped(q_values: Floats, stage: int) -> Floats:
        values: Floats = np.clip(q_values.max(axis=1), 0.0, case.limits[stage])
        return values

    if case.horizon is not None:
        staged, values = [], np.zeros(len(features))
        for stage in reversed(range(case.stages)):
            parameters = theta[stage] + mu[stage].T @ values
            if not np.linalg.norm(parameters) <= ball:
                raise Rejected("the estimated values leave the ball that Theorem R-E covers")
            staged.append(q_of(parameters))
            values = clipped(staged[-1], stage)
        return np.array(staged[::-1]), 0.0  # backward induction leaves no residual

    # Where nothing is clipped, the policy's own values are the fixed point already; sweeps do the rest.
    played = features[np.arange(len(features)), policy[0]]
    parameters = theta[0]
    try:
        guess = np.linalg.solve(np.eye(len(theta[0])) - case.gamma * (mu[0].T @ played), theta[0])
        parameters = guess if np.linalg.norm(guess) <= ball else parameters
    except np.linalg.LinAlgError:
        pass
    for _ in range(_SWEEPS):
        values = clipped(q_of(parameters), 0)
        following = theta[0] + case.gamma * (mu[0].T @ values)
        q_values = q_of(following)
        residual = float(np.abs(values - clipped(q_values, 0)).max())
        if residual <= 1e-13 * case.limits[0]:
            break
        if not np.linalg.norm(following) <= ball:
            raise Rejected("the estimated values leave the ball that Theorem R covers")
        parameters = following
    return q_values[None], residual
