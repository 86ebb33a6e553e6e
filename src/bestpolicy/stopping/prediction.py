"""How long the paper's rule takes: when its statistic crosses its threshold.

The rule stops at the first t with t/U(M̂, ω_t) > β(δ, t) (`paper`). Since M̂ → M that is near the solution of
t = U* β(δ, t), and β is affine in log t, so that Newton's method finds it to full precision.
"""

from __future__ import annotations

from math import e, exp, inf, log

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.stopping.paper import inverse_rate, threshold


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
    resolved = gap + min(epsilon, 1e100)  # whose square is a number; no value is as large
    return inverse_rate(problem, resolved, float(problem.dimension) if leverage is None else leverage)
