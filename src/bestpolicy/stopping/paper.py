"""The paper's stopping rule, repaired so that its guarantee is true of the code (Theorem R).

The rule of [TJP Sec. 5.3, Alg 1, 2] stops when Z(t) = t / U(M̂, ω_t) exceeds β(δ, t) (episodic: H·β(δ/H, t)), with

    U(M, ω) = 10 σ(ω) / (3 (1-γ)⁴ (Δ+ε)²)          or   10 H³ σ(ω) / (3 (Δ+ε)²),
    β(δ, t) = (12/5) B(δ, t),   B(δ, t) = 2 log(√e ζ(2) t²/δ) + d log(8e⁴ d t²).

As printed it is not proved for what a program computes: the least-squares model is signed, its optimal values may
not exist or leave [0, 1/(1-γ)], and planning has a residual. With the *same* β the following is proved, for any
predictable sampling rule and any subset of check times. In whitened coordinates, with G = Σφφᵀ + I/d:

1. V̂ = clip(max_a φᵀξ) for a ξ with ‖ξ‖ ≤ 10 √d L, L = 1/(1-γ) (or H); outside the ball the rule does not stop;
2. Q̂ = Φ(θ̂ + γ μ̂ᵀV̂), not clipped; Δ̂ = min_s [Q̂(s, π̂(s)) - max Q̂ of other actions], for a π̂ that is greedy up to σ
   (Δ̂ may be below 0 then); ρ the residual |V̂ - clip(max_a Q̂)|;
3. Δ̂ + ε is replaced by [Δ̂ + ε - (γ(2ρ + σ) + 2z̄)/(1-γ)]₊, z̄ a bound on what rounding adds to the equation of a pair
   (episodic: - Σ_h (2ρ_h + σ_h + 2z̄_h));
4. t/σ(ω_t) is replaced by 1 / max φᵀG⁻¹φ, which is larger, and defined from the first sample on.

Proof idea: with e = max|φᵀ(θ̂ - θ + γ(μ̂-μ)ᵀV̂)|, Q̂ differs from Q* by at most (e + z̄ + γρ)/(1-γ), and from Q^π̂ by at
most (e + z̄ + γ(ρ + σ))/(1-γ). If π̂ loses more than ε then, at the state where it loses most, some action a' has Q* =
V*, and ε < Q*(s,a') - Q^π̂(s,π̂(s)) while Δ̂ ≤ Q̂(s,π̂(s)) - Q̂(s,a'). So a wrong stop needs ‖θ̂-θ+γ(μ̂-μ)ᵀV̂‖²_G > 2L²B;
the class of clipped values has a net small enough for a union bound, and B pays for it.

**Rounding.** ξ̂ = θ̂ + γμ̂ᵀV̂ as computed leaves g = Gξ̂ - Σφ(r + γV̂(s')), which is measured, and Q = r + γpV̂ is linear in
the features up to fL (`rounding`, with ‖ξ‖ ≤ √(1.1d) L). So z̄ = √l·(‖g‖_{G⁻¹} + √t(fL + a_r)) + fL plus the errors of
the products, where l = max φᵀG⁻¹φ.

**How long it takes.** The rule stops at the first t with t/U(M̂, ω_t) > β(δ, t). Since M̂ → M that is near the solution
of t = U* β(δ, t), and β is affine in log t, so that Newton's method finds it to full precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, exp, inf, log, pi, sqrt

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix, dense, diagonal_of
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.design import leverages
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import least_squares
from bestpolicy.planning import Plan, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.rounding import ALLOWANCE, coordinates_of, sum_errors
from bestpolicy.stopping.rule import FixedTest, Past, Proof, Terms, Verdict

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
    return 3 * factor * (float(resolved) * float(resolved)) / (10 * leverage)  # inf, not an error, if huge


@dataclass(frozen=True)
class PaperRule:
    """Theorem R on whitened features: nothing of the past is used, and all samples are seen."""

    def fix(self, terms: Terms, past: Past, delta: float) -> PaperTest:
        """Return the test; the past may be empty, ``Past()``."""
        return PaperTest(terms.problem, past, delta, terms.epsilon)


@dataclass(frozen=True, eq=False)
class PaperTest(FixedTest):
    """Theorem R (discounted) and R-E (episodic) for one ε."""

    epsilon: float

    def look(self, fresh: Evidence, start: IntArray | None = None) -> Verdict:
        """Look at the data; to plan from the last policy is faster."""
        problem, tally = self.problem, fresh.tally
        estimate = least_squares(problem.matrix, tally, ridge=1 / problem.dimension)
        plan = optimal_plan(problem, estimate.theta, estimate.mu, start)
        in_ball = np.linalg.norm(plan.value_parameters, axis=1).max() <= (
            10 * sqrt(problem.dimension) * problem.value_limits[0]
        )
        # Stages share their pulls in GSS-E; if they did not, the worst of them would count.
        grams = {id(gram): gram for gram in estimate.gram}
        leverage = max(float(leverages(problem.matrix, gram)[problem.pairs].max()) for gram in grams.values())
        bounds = {key: _eigenvalue_bounds(gram) for key, gram in grams.items()}
        condition = max(largest / smallest for smallest, largest in bounds.values())
        worst = leverage * (1 + 8 * problem.dimension * EPS * condition)
        gap, shortfalls = played_gap(problem, plan.q_values, plan.policy)
        local = equation_errors(problem, tally, plan, worst, np.array([bounds[id(gram)][0] for gram in estimate.gram]))
        lost = problem.continuation * shortfalls + 2 * ALLOWANCE * local
        steps = 1.0 if problem.discount is None else problem.value_limits[0]
        correction = 2 * problem.continuation * plan.error_bound + float(lost.sum() * steps)
        resolved = max(0.0, gap + self.epsilon - correction) if in_ball and correction < inf else 0.0
        statistic, limit = inverse_rate(problem, resolved, worst), threshold(problem, self.delta, tally.rounds)
        epsilon = self.epsilon if statistic > limit else inf
        return Verdict(self.named("R"), plan.policy, epsilon, statistic, plan.gap, threshold=limit)

    def proof(self, fresh: Evidence) -> Proof:
        """Return what others need to look at the samples as this test does."""
        return Proof("R", fresh, self.coordinates.transform)


def played_gap(problem: Problem, q_values: FloatArray, policy: IntArray) -> tuple[float, FloatArray]:
    """Return min_s [Q(s, π(s)) - max Q of actions other than π(s)], and max_s [max_a Q - Q(s, π(s))] per stage.

    Actions with the same features are one action; without a choice anywhere the gap is inf.
    """
    others = np.where(problem.distinct, q_values, -inf)
    played = np.take_along_axis(q_values, policy[:, :, None], axis=2)[:, :, 0]
    np.put_along_axis(others, policy[:, :, None], -inf, axis=2)
    features = problem.source.features
    for stage, state in np.argwhere(~problem.distinct[np.arange(problem.states), policy]):
        # A copy is played: the first action with its features is no other.
        same = (features[state] == features[state, policy[stage, state]]).all(axis=1)
        others[stage, state, same] = -inf
    shortfalls: FloatArray = (q_values.max(axis=2) - played).max(axis=1)
    return float((played - others.max(axis=2)).min()), shortfalls


def equation_errors(problem: Problem, tally: Tally, plan: Plan, leverage: float, smallest: FloatArray) -> FloatArray:
    """z̄ of every stage, (stages,).

    Parameters
    ----------
    problem : Problem
        In accurate coordinates.
    tally : Tally
    plan : Plan
        From the ridge estimate with these samples.
    leverage : float
        max φᵀG⁻¹φ.
    smallest : array (stages,)
        Lower bounds on the eigenvalues of G.
    """
    known, gamma, dimension = coordinates_of(problem), problem.continuation, problem.dimension
    sampled, limits = problem.matrix[tally.pairs], problem.value_limits
    ahead = plan.values if problem.horizon is None else np.append(plan.values[1:], np.zeros_like(plan.values[:1]), 0)
    misfit = (known.error * sqrt(1.1 * dimension) + known.ones) * limits + sum_errors(tally)
    lengths = np.linalg.norm([plan.parameters, plan.value_parameters], axis=2).max(axis=0)
    products = (dimension + 4) * EPS * known.longest * lengths
    parameters = plan.parameters.T  # (d, stages); below, pairs are rows and stages columns
    outcomes = tally.reward_sums + gamma * (tally.next_counts @ ahead[:, :, None])[:, :, 0]
    left = tally.pulls.T * (sampled @ parameters) - outcomes.T
    rest = np.linalg.norm(sampled.T @ left + parameters / dimension, axis=0)
    # ‖Σφ_kc_k‖ in G⁻¹ is at most √t·max|c_k/n_k|: so much for sums over d features and S states; then a sum over k.
    inner = (dimension + problem.states + 8) * EPS * ((abs(sampled) @ np.abs(parameters)).max(axis=0) + limits)
    outer = (len(tally.pairs) + 4) * EPS * (known.longest * np.abs(left).sum(axis=0) + lengths)
    # The values are those of the class up to the error of a product, once for the data and once for the plan.
    found = (rest + outer) / np.sqrt(smallest) + np.sqrt(tally.pulls.sum(axis=1)) * (misfit + inner + products)
    errors: FloatArray = sqrt(leverage) * found + misfit + 3 * products
    return errors


def _eigenvalue_bounds(gram: Matrix) -> tuple[float, float]:
    """Lower and upper bound on the eigenvalues of a Gram matrix with its ridge."""
    diagonal = diagonal_of(gram)
    if diagonal is not None:
        return float(diagonal.min()), float(diagonal.max())
    matrix = dense(gram)
    dimension = len(matrix)
    # In whitened coordinates with the samples of a design, G is nearly a multiple of the identity.
    middle = float(np.trace(matrix)) / dimension
    distance = float(np.linalg.norm(matrix - middle * np.eye(dimension))) * (1 + 1e-6)
    if distance > 0.1 * middle:
        eigenvalues = np.linalg.eigvalsh(matrix)
        room = 8 * dimension * EPS * float(eigenvalues[-1])
        return max(1 / dimension, float(eigenvalues[0]) - room) * (1 - 1e-9), float(eigenvalues[-1]) + room
    return middle - distance, middle + distance


def predicted_rounds(
    problem: Problem, gap: float, epsilon: float, delta: float, leverage: float | None = None
) -> float:
    """Rounds after which GSS (discounted) or GSS-E (episodic) is expected to stop: t = U(M, ω) β(δ, t).

    Parameters
    ----------
    problem : Problem
    gap, epsilon, delta : float
        Δ, ε and δ; inf is returned if Δ + ε = 0, where the rule never stops.
    leverage : float, optional
        Worst leverage of the design, d by default.

    Returns
    -------
    float
        At least 1. The threshold grows like log t, so from here on the statistic t/U stays above it.
    """
    return crossing(pace(problem, gap, epsilon, leverage), *threshold_line(problem, delta))


def crossing(rate: float, slope: float, intercept: float) -> float:
    """Last t ≥ 1 at which rate·t = slope·log t + intercept; 1 if the left side is never below, inf if rate is 0.

    In u = log t the difference rate·eᵘ - slope·u - intercept is convex and negative at u = 0, so it has exactly one
    root u > 0, which Newton's method reaches monotonically from the right. (The other crossing has t < 1.)
    """
    if rate <= 0:
        return inf
    if rate >= intercept:
        return 1.0
    # t ≤ 2a log 2a + 2b solves t ≥ a log t + b, in logarithms so that the smallest rates do not overflow.
    larger = 2 * max(slope * max(1.0, log(slope) - log(rate) + 1.0), intercept)
    u = log(2 * larger) - log(rate)
    for _ in range(200):
        grown = exp(u + log(rate))
        step = (grown - slope * u - intercept) / (grown - slope)
        u -= step
        if abs(step) <= 1e-15 * max(1.0, u):
            break
    return exp(u) if u < 709 else inf


def threshold_line(problem: Problem, delta: float) -> tuple[float, float]:
    """Slope and intercept of the threshold, which is affine in log t."""
    if not 0 < delta < 1:
        raise InvalidInput(f"delta must lie strictly between 0 and 1. Got {delta!r} instead.")
    intercept = threshold(problem, delta, 1.0)
    return threshold(problem, delta, e) - intercept, intercept


def pace(problem: Problem, gap: float, epsilon: float, leverage: float | None) -> float:
    """1/U(M, ω), with d for the worst leverage if none is given; inf if there is no choice anywhere (Δ = inf)."""
    if not (gap >= 0 and epsilon >= 0):
        raise InvalidInput(f"gap and epsilon must not be negative. Got {gap!r} and {epsilon!r} instead.")
    resolved = float(gap) + min(float(epsilon), 1e100)  # whose square is a number; no value is as large
    return inverse_rate(problem, resolved, float(problem.dimension) if leverage is None else leverage)
