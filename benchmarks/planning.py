"""Planning in d dimensions against QuantEcon's solvers on the same models in the same run."""

from __future__ import annotations

import time

import numpy as np
from quantecon.markov import DiscreteDP

import bestpolicy as bp
from benchmarks.timing import best_of, line

DISCOUNT = 0.99


def model(states: int, actions: int, dimension: int) -> tuple[bp.Problem, np.ndarray, np.ndarray]:
    """Return features in the simplex with random θ and μ."""
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(dimension), size=(states, actions))
    features.flags.writeable = False
    theta = rng.uniform(size=(1, dimension))
    mu = np.ascontiguousarray(rng.dirichlet(np.full(states, 0.3), size=dimension).T)[None]
    return bp.Problem(features, discount=DISCOUNT), theta, mu


def quantecon_best(problem: bp.Problem, theta: np.ndarray, mu: np.ndarray, values: np.ndarray) -> tuple[float, str]:
    """Return the smallest solving time over QuantEcon's methods (building its arrays is not counted)."""
    transitions = problem.features @ mu[0].T
    transitions /= transitions.sum(axis=2, keepdims=True)
    peer = DiscreteDP(problem.features @ theta[0], transitions, problem.discount)
    best, name = float("inf"), ""
    for method in ("policy_iteration", "modified_policy_iteration"):
        started = time.perf_counter()
        answer = peer.solve(method=method, epsilon=1e-6)
        seconds = time.perf_counter() - started
        assert np.abs(answer.v - values).max() < 1e-4
        if seconds < best:
            best, name = seconds, method
    return best, name


def main() -> None:
    """Time plans of three sizes; the two smaller ones against QuantEcon."""
    for states, dimension, target in ((1000, 10, 40), (10_000, 20, 300)):
        problem, theta, mu = model(states, 10, dimension)
        seconds, plan = best_of(5, lambda p=problem, t=theta, m=mu: bp.optimal_plan(p, t, m))
        peer, name = quantecon_best(problem, theta, mu, plan.values[0])
        more = f"{peer / seconds:.0f} × faster than {name}"
        line(f"planning S={states} A=10 d={dimension} γ=.99", seconds, f"≥ {target} ×", peer / seconds >= target, more)
    problem, theta, mu = model(100_000, 10, 50)
    seconds, plan = best_of(3, lambda: bp.optimal_plan(problem, theta, mu))
    more = f"error bound {plan.error_bound:.1e}"
    line("planning S=100000 A=10 d=50 γ=.99", seconds, "≤ 1.5 s", seconds <= 1.5, more)


if __name__ == "__main__":
    main()
