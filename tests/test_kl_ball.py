"""The largest mean over a KL ball, against its dual problem, a general solver, and limits that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize, minimize_scalar

from tests.kl_ball import kl_max


def dual_value(p: np.ndarray, f: np.ndarray, radius: float) -> float:
    """min over ν ≥ max f of ν - exp(Σ p log(ν - f) - c): both multipliers of the problem, one of them solved for."""
    top, support = f.max(), p > 0

    def dual(log_u: float) -> float:
        u = np.exp(log_u)
        return float(top + u - np.exp(p[support] @ np.log(u + (top - f[support])) - radius))

    grid = np.linspace(-300, 25, 2000)
    best = int(np.argmin([dual(x) for x in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return min(dual(grid[best]), minimize_scalar(dual, bounds=around, method="bounded", options={"xatol": 1e-12}).fun)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    support = p > 0
    return float(p[support] @ np.log(p[support] / q[support]))


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_dual_problem(seed):
    rng = np.random.default_rng(seed)
    states = int(rng.integers(2, 8))
    p = rng.dirichlet(np.full(states, 0.7))
    if seed % 3 == 0:  # a next state that was never seen
        p[rng.integers(states)] = 0
        p /= p.sum()
    f = rng.normal(size=states) * 10 ** rng.uniform(-1, 1)
    radius = 10 ** rng.uniform(-6, 1.5)
    assert abs(kl_max(p[None], f, radius)[0] - dual_value(p, f, radius)) <= 1e-9 * np.ptp(f)


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_general_solver(seed):
    rng = np.random.default_rng(100 + seed)
    p, f, radius = rng.dirichlet(np.full(4, 3.0)), rng.uniform(size=4), 10 ** rng.uniform(-3, -1)
    found = minimize(
        lambda q: -q @ f,
        p,
        jac=lambda q: -f,
        method="SLSQP",
        bounds=[(1e-9, 1)] * 4,
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(4)},
            {"type": "ineq", "fun": lambda q: radius - divergence(p, q), "jac": lambda q: p / q},
        ],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert divergence(p, found.x) <= radius * (1 + 1e-6)
    assert kl_max(p[None], f, radius)[0] == pytest.approx(found.x @ f, abs=1e-7)


@pytest.mark.parametrize("mean", [1e-6, 0.2, 0.9])
@pytest.mark.parametrize("radius", [1e-5, 0.1, 3.0])
def test_two_outcomes_are_the_usual_kl_bound(mean, radius):
    def excess(q: float) -> float:
        return mean * np.log(mean / q) + (1 - mean) * np.log((1 - mean) / (1 - q)) - radius

    bound = brentq(excess, mean, 1 - 1e-15, xtol=1e-15) if excess(1 - 1e-15) > 0 else 1.0
    assert kl_max(np.array([[1 - mean, mean]]), np.array([0.0, 1.0]), radius)[0] == pytest.approx(bound, abs=1e-9)


def test_rows_are_treated_by_themselves_and_limits_are_right():
    f = np.array([0.0, 1.0, 2.0])
    p = np.array([[0.0, 0, 0], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [1, 0, 0], [0, 0, 1]])
    radius = np.array([1.0, 0.0, np.inf, 0.5, 3.0])
    # No samples; a ball that is a point; no constraint; all mass moved from the bottom; all mass at the top already.
    expected = [2.0, 1.3, 2.0, 2 * (1 - np.exp(-0.5)), 2.0]
    np.testing.assert_allclose(kl_max(p, f, radius), expected, atol=1e-12)
    np.testing.assert_array_equal(kl_max(p, np.ones(3), 0.1), np.ones(5))
    assert kl_max(p[1:2], f, 1e-14)[0] == pytest.approx(1.3 + np.sqrt(2e-14 * 0.61), abs=1e-12)  # √(2c·variance)
    assert -kl_max(p[1:2], -f, 0.1)[0] < 1.3 < kl_max(p[1:2], f, 0.1)[0]
