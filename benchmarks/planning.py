"""Planning in d dimensions against QuantEcon's solvers on the same models in the same run, in one thread each."""

from __future__ import annotations

import numpy as np
from quantecon.markov import DiscreteDP

import bestpolicy as bp
from benchmarks.timing import best_of, line, timed

DISCOUNT = 0.99
# States, dimension, least ratio, QuantEcon's methods. Its policy iteration solves a system of S equations: it is the
# slower one by far already with 1,000 of them.
SIZES = (
    (1000, 10, 15, ("policy_iteration", "modified_policy_iteration")),
    (4000, 20, 100, ("modified_policy_iteration",)),
)


def model(states: int, actions: int, dimension: int) -> tuple[bp.Problem, np.ndarray, np.ndarray]:
    """Return features in the simplex with random θ and μ."""
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(dimension), size=(states, actions))
    features.flags.writeable = False
    theta = rng.uniform(size=(1, dimension))
    mu = np.ascontiguousarray(rng.dirichlet(np.full(states, 0.3), size=dimension).T)[None]
    return bp.Problem(features, discount=DISCOUNT), theta, mu


def quantecon(problem: bp.Problem, theta: np.ndarray, mu: np.ndarray) -> DiscreteDP:
    """Return the model as QuantEcon wants it."""
    transitions = problem.features @ mu[0].T
    transitions /= transitions.sum(axis=2, keepdims=True)
    return DiscreteDP(problem.features @ theta[0], transitions, problem.discount)


def main() -> None:
    """Time plans of three sizes; the two smaller ones against QuantEcon (building its arrays is not counted)."""
    for method in SIZES[0][3]:
        quantecon(*model(20, 2, 3)).solve(method=method, epsilon=1e-6)  # what the first call compiles is not measured
    for states, dimension, least, methods in SIZES:
        problem, theta, mu = model(states, 10, dimension)
        seconds, plan = best_of(20, lambda p=problem, t=theta, m=mu: bp.optimal_plan(p, t, m))
        theirs, peer = {}, quantecon(problem, theta, mu)
        for method in methods:
            theirs[method], answer = best_of(3, lambda p=peer, m=method: p.solve(method=m, epsilon=1e-6))
            assert np.abs(answer.v - plan.values[0]).max() < 1e-4
        name = min(theirs, key=theirs.__getitem__)
        ratio = theirs[name] / seconds
        more = f"{ratio:.0f} × faster than {name}"
        line(f"planning S={states} A=10 d={dimension} γ=.99", seconds, f"≥ {least} ×", ratio >= least, more)
    problem, theta, mu = model(100_000, 10, 50)
    seconds, plan = best_of(3, lambda: bp.optimal_plan(problem, theta, mu))
    timed("planning S=100000 A=10 d=50 γ=.99", seconds, 1.0, f"error bound {plan.error_bound:.1e}")


if __name__ == "__main__":
    main()
