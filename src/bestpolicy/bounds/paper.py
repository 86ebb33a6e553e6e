"""What the paper promises: upper bounds on the characteristic time, and the samples its algorithms need.

With Δ the gap, σ(ω) = max φᵀΛ(ω)⁻¹φ the worst leverage of an allocation (d for a G-optimal design), and k the
constant of a bound KL ≥ k z²/M² between divergences and means [TJP Thm 1, Thm 4]

    U(M, ω) = 4 σ(ω) / (k (1-γ)⁴ (Δ+ε)²)     or     4 H³ σ(ω) / (k (Δ+ε)²)   (H steps, counted in rounds),

10/3 in place of 4/k for the paper's k = 6/5, and 2 for Pinsker's k = 2, which is true as well. U*(M) = min_ω U has
σ = d. T*(M) ≤ U*(M): **an upper bound on the lower bound** T* kl(δ, 1-δ); it must never be shown as a lower bound.

GSS stops at the first t with t/U(M̂, ω_t) > β(δ, t) (episodic: H β(δ/H, t)). Since M̂ → M it stops near the solution of
t = U* β(δ, t): `predicted_rounds`. The constant k cancels there, because β is proportional to it.

Its expected stopping time is at most ⌈max(T₁, T₂)⌉ + 2 rounds [TJP Thm 3, Thm 5], where T₁ makes the design concentrate
and T₂ solves 24 U* β(δ, T₂) ≤ T₂. As printed T₂ is too small by more than a factor of 2 (a factor 2 and the U* inside
the logarithm are missing) and the second form of T₁ has a wrong constant; here both are right:

    T₁ = (56d/3) log(2 ζ(2) d) + (112d/3) log(112d/3),
    T₂ = (576H/5) U* [2 log(√e ζ(2) H/δ) + d log(8e⁴d)] + a log a,    a = (1152 (d+2) H/5) U*    (discounted: H = 1).

Checking on a geometric grid of ratio g multiplies max(T₁, T₂) by g.
"""

from __future__ import annotations

from math import ceil, inf, log

from bestpolicy._numerics.inputs import number, of_type, whole
from bestpolicy.bounds.divergence import PAPER_CONSTANT
from bestpolicy.problem import Problem
from bestpolicy.stopping.paper import ZETA_2, crossing, pace, threshold_line


def _require(problem: Problem, gap: float, epsilon: float, leverage: float | None, delta: float = 0.5) -> None:
    """Raise InvalidInput unless these can be a problem, Δ (inf if there is no choice), ε, σ and δ."""
    of_type("problem", problem, Problem)
    number("gap", gap, infinite=True)
    number("epsilon", epsilon)
    number("delta", delta, above=0, below=1)
    if leverage is not None:
        number("leverage", leverage, above=0)


_WRONG_STOP_FACTOR = 24  # proof of Thm 3: from this multiple of U*·β on, the statistic passes with high probability


def time_upper_bound(
    problem: Problem,
    gap: float,
    epsilon: float,
    leverage: float | None = None,
    divergence_constant: float = PAPER_CONSTANT,
) -> float:
    """U(M, ω), in rounds: an upper bound on the characteristic time T* [TJP Thm 1].

    Parameters
    ----------
    problem : Problem
    gap, epsilon : float
        Δ (inf if there is no choice anywhere) and ε; inf is returned if both are 0.
    leverage : float, optional
        σ(ω); by default d, which gives U*(M).
    divergence_constant : float, optional
        `PAPER_CONSTANT` or `PINSKER_CONSTANT`.
    """
    _require(problem, gap, epsilon, leverage)
    number("divergence_constant", divergence_constant, above=0)
    rate = pace(problem, gap, epsilon, leverage)
    return inf if rate == 0 else PAPER_CONSTANT / divergence_constant / rate


def predicted_rounds(
    problem: Problem, gap: float, epsilon: float, delta: float, leverage: float | None = None
) -> float:
    """Rounds after which GSS or GSS-E is expected to stop, where t = U(M, ω) β(δ, t); inf if Δ + ε = 0."""
    _require(problem, gap, epsilon, leverage, delta)
    return crossing(pace(problem, gap, epsilon, leverage), *threshold_line(problem, delta))


def predicted_samples(
    problem: Problem, gap: float, epsilon: float, delta: float, leverage: float | None = None
) -> float:
    """Simulator calls after which GSS or GSS-E is expected to stop: one call per step and round."""
    return predicted_rounds(problem, gap, epsilon, delta, leverage) * problem.stages


def design_phase(dimension: int) -> float:
    """T₁: rounds after which i.i.d. sampling from the design is good with high probability [TJP Thm 3, corrected]."""
    whole("dimension", dimension, 1)
    return 56 * dimension / 3 * log(2 * ZETA_2 * dimension) + 112 * dimension / 3 * log(112 * dimension / 3)


def stopping_phase(problem: Problem, upper: float, delta: float) -> float:
    """T₂: a time with 24 U* β(δ, T₂) ≤ T₂ (episodic: H β(δ/H, T₂)) [TJP Thm 3, Thm 5, corrected].

    Parameters
    ----------
    problem : Problem
    upper : float
        U*(M) with the paper's constant.
    delta : float
    """
    _require(problem, inf, 0.0, None, delta)
    if number("upper", upper, infinite=True) in (0, inf):
        return upper
    slope, intercept = threshold_line(problem, delta)
    a, b = _WRONG_STOP_FACTOR * upper * slope, _WRONG_STOP_FACTOR * upper * intercept
    return 2 * a * log(max(2 * a, 1.0)) + 2 * b


def expected_rounds_bound(
    problem: Problem, gap: float, epsilon: float, delta: float, *, grid_ratio: float = 1.0
) -> float:
    """Proved bound on the expected number of rounds of GSS or GSS-E [TJP Thm 3, Thm 5, corrected].

    Parameters
    ----------
    problem : Problem
    gap, epsilon, delta : float
    grid_ratio : float, optional
        Ratio of successive check times; 1 if every round is checked. A planner without residual is assumed.
    """
    _require(problem, gap, epsilon, None, delta)
    number("grid_ratio", grid_ratio, least=1)
    upper = time_upper_bound(problem, gap, epsilon)
    last = grid_ratio * max(design_phase(problem.dimension), stopping_phase(problem, upper, delta))
    return inf if last == inf else ceil(last) + 2 + (grid_ratio > 1)


def expected_samples_bound(
    problem: Problem, gap: float, epsilon: float, delta: float, *, grid_ratio: float = 1.0
) -> float:
    """Proved bound on the expected number of simulator calls of GSS or GSS-E."""
    return expected_rounds_bound(problem, gap, epsilon, delta, grid_ratio=grid_ratio) * problem.stages


def concentration_rounds(
    dimension: int, delta: float, *, accuracy: float = 0.5, design_tolerance: float = 0.0
) -> float:
    """Samples after which an i.i.d. design concentrates [TJP Prop. 2].

    From t = 2 (1+η)(1/ρ² + 1/(3ρ)) d log(2d/δ) on, (1-ρ)Λ(ω) ≤ Λ(ω_t) ≤ (1+ρ)Λ(ω) holds with probability 1-δ at each
    fixed t, for an η-approximate design ω. At ρ = 1/2 that gives σ(ω_t) ≤ 2(1+η)d.

    Parameters
    ----------
    dimension : int
    delta : float
    accuracy : float, optional
        ρ in (0, 1).
    design_tolerance : float, optional
        η.
    """
    whole("dimension", dimension, 1)
    number("delta", delta, above=0, below=1)
    number("accuracy", accuracy, above=1e-100, below=1)
    number("design_tolerance", design_tolerance)
    factor = 2 * (1 + design_tolerance) * (1 / accuracy**2 + 1 / (3 * accuracy))
    return factor * dimension * log(2 * dimension / delta)


__all__ = [
    "concentration_rounds",
    "crossing",
    "design_phase",
    "expected_rounds_bound",
    "expected_samples_bound",
    "predicted_rounds",
    "predicted_samples",
    "stopping_phase",
    "time_upper_bound",
]
