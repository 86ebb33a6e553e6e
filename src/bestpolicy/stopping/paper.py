"""The paper's stopping rule, repaired so that its guarantee is true of the code (Theorem R).

The rule of [TJP Sec. 5.3, Alg 1, 2] stops when Z(t) = t / U(M̂, ω_t) exceeds β(δ, t) (episodic: H·β(δ/H, t)), with

    U(M, ω) = 10 σ(ω) / (3 (1-γ)⁴ (Δ+ε)²)          or   10 H³ σ(ω) / (3 (Δ+ε)²),
    β(δ, t) = (12/5) B(δ, t),   B(δ, t) = 2 log(√e ζ(2) t²/δ) + d log(8e⁴ d t²).

As printed it is not proved for what a program computes: the least-squares model is signed, its optimal values may
not exist or leave [0, 1/(1-γ)], and planning has a residual. With the *same* β the following is proved, for any
predictable sampling rule and any subset of check times. In whitened coordinates, with G = Σφφᵀ + I/d:

1. V̂ = clip(max_a φᵀξ) for a ξ with ‖ξ‖ ≤ 10 √d L, L = 1/(1-γ) (or H); outside the ball the rule does not stop;
2. Q̂ = Φ(θ̂ + γ μ̂ᵀV̂), not clipped; π̂ greedy; Δ̂ the gap of Q̂; ρ the residual |V̂ - clip(max_a Q̂)|;
3. Δ̂ + ε is replaced by [Δ̂ + ε - 2γρ/(1-γ)]₊ (episodic: - 2 Σ_h ρ_h);
4. t/σ(ω_t) is replaced by 1 / max φᵀG⁻¹φ, which is larger, and defined from the first sample on.

Proof idea: a wrong stop needs an error of at least (Δ̂+ε)/2 in Q̂, hence ‖θ̂-θ+γ(μ̂-μ)ᵀV̂‖²_G > 2L²B; the class of
clipped values has a net small enough for a union bound, and B pays for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log, pi, sqrt

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.design import leverages
from bestpolicy.estimation import least_squares
from bestpolicy.planning import optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.check import Check

ZETA_2 = pi**2 / 6


def confidence(delta: float, rounds: float, dimension: int) -> float:
    """B(δ, t): twice L² times this bounds the squared error of the estimates, at all t [TJP Prop. 3]."""
    return 2 * (log(sqrt(e) * ZETA_2 * rounds**2) - log(delta)) + dimension * (log(8 * dimension * rounds**2) + 4)


def threshold(problem: Problem, delta: float, rounds: float) -> float:
    """β(δ, t), or H·β(δ/H, t) for an episodic problem [TJP Sec. 5.3, Alg 2]."""
    stages = problem.stages
    return stages * 12 / 5 * confidence(delta / stages, rounds, problem.dimension)


def inverse_rate(problem: Problem, resolved: float, leverage: float) -> float:
    """1/U for a resolved gap Δ+ε and worst leverage σ; with the leverage of the Gram matrix itself, t/U = Z."""
    factor = 1 / problem.stages**3 if problem.discount is None else (1 - problem.discount) ** 4
    return 3 * factor * resolved**2 / (10 * leverage)


@dataclass(frozen=True)
class PaperRule:
    """Theorem R on whitened features.

    Attributes
    ----------
    problem : Problem
        In whitened coordinates.
    epsilon, delta : float
    """

    problem: Problem
    epsilon: float
    delta: float

    def check(self, tally: Tally, start: IntArray | None = None) -> Check:
        """Look at the data; to plan from the last policy is faster."""
        problem, rounds = self.problem, tally.rounds
        estimate = least_squares(problem.matrix, tally, ridge=1 / problem.dimension)
        plan = optimal_plan(problem, estimate.theta, estimate.mu, start)
        correction = 2 * problem.continuation * plan.error_bound  # 2γρ/(1-γ), or 2 Σρ_h
        in_ball = np.linalg.norm(plan.value_parameters, axis=1).max() <= (
            10 * sqrt(problem.dimension) * problem.value_limits[0]
        )
        resolved = max(0.0, plan.gap + self.epsilon - correction) if in_ball else 0.0
        # Stages share their pulls in GSS-E; if they did not, the worst of them would count.
        worst = max(float(leverages(problem.matrix, gram)[problem.pairs].max()) for gram in estimate.gram)
        statistic = inverse_rate(problem, resolved, worst)
        limit = self.threshold(rounds)
        passed = statistic > limit
        return Check(
            rounds=rounds,
            samples=tally.samples,
            policy=plan.policy,
            statistic=statistic,
            threshold=limit,
            passed=passed,
            epsilon=self.epsilon if passed else float("inf"),
            gap=plan.gap,
            rule="Theorem R" if problem.discount is not None else "Theorem R-E",
        )

    def threshold(self, rounds: float) -> float:
        """What the statistic has to exceed after `rounds` rounds."""
        return threshold(self.problem, self.delta, rounds)
