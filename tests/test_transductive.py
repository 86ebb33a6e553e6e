"""Transductive designs against a second solver, on designs that runs asked for."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import adaptive
from bestpolicy.design.transductive import TransductiveDesign, transductive_design


def random_table() -> bp.LinearMDP:
    rng = np.random.default_rng(0)
    return bp.instances.tabular(rng.dirichlet(np.ones(6), size=(6, 2)), rng.uniform(size=(6, 2)), discount=0.9)


INSTANCES = {
    "random table": random_table,
    "queue": lambda: bp.instances.load("queue"),
    "riverswim": lambda: bp.instances.load("riverswim"),
    "simplex": lambda: bp.instances.load("simplex"),
}


def least_value(features: np.ndarray, directions: np.ndarray) -> float:
    """min_w max_j c_jᵀΛ(w)⁻¹c_j as a cone programme: q_j = min {Σ a_k²/w_k : Σ a_k x_k = c_j}."""
    cvxpy = pytest.importorskip("cvxpy")
    scale = np.linalg.norm(directions, axis=1).max()
    weights, level = cvxpy.Variable(len(features), nonneg=True), cvxpy.Variable()
    parts = [cvxpy.Variable((2, len(features))) for _ in directions]  # a, and bounds on a²/w
    constraints = [cvxpy.sum(weights) == 1]
    for direction, part in zip(directions / scale, parts, strict=True):
        constraints += [features.T @ part[0] == direction, cvxpy.sum(part[1]) <= level]
        # a² ≤ w·b, all pairs at once: ‖(2a, w - b)‖ ≤ w + b.
        both = cvxpy.vstack([2 * part[0], weights - part[1]])
        constraints.append(cvxpy.SOC(weights + part[1], both, axis=0))
    problem = cvxpy.Problem(cvxpy.Minimize(level), constraints)
    problem.solve(solver="CLARABEL")
    return float(problem.value * scale**2)


@pytest.mark.parametrize("name", INSTANCES)
def test_designs_of_runs_are_within_a_tenth_of_the_optimum(name, monkeypatch):
    asked = []

    def noted(features, directions, tolerance):
        design = transductive_design(features, directions, tolerance=tolerance)
        asked.append((features, directions, design))
        return design

    monkeypatch.setattr(adaptive, "transductive_design", noted)
    mdp = INSTANCES[name]()
    epsilon = 0.05 * float(mdp.problem.value_limits[0])
    bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.05, algorithm="adaptive", seed=0, max_samples=10**6)
    assert asked
    features, directions, design = asked[-1]
    worst = np.argsort(-np.einsum("jd,jd->j", directions, directions))[:12]
    few = transductive_design(features, directions[worst], tolerance=0.1)
    optimum = least_value(features[0], directions[worst])
    assert few.lower_bound <= optimum * (1 + 1e-5)
    assert optimum * (1 - 1e-5) <= few.value <= 1.11 * optimum
    assert design.gap <= 0.11


@pytest.mark.parametrize(("lower_bound", "used"), [(1.0, False), (9.9, True)])
def test_a_design_that_did_not_converge_is_not_used(lower_bound, used, monkeypatch):
    found = []

    def poor(features, directions, tolerance):
        shares = np.full(features.shape[0] * features.shape[1], 1e-3)
        shares[0] = 1.0
        return TransductiveDesign(shares / shares.sum(), 10.0, lower_bound)

    def noted(*arguments):
        found.append(focused(*arguments))
        return found[-1]

    focused = adaptive.focused_allocation
    monkeypatch.setattr(adaptive, "transductive_design", poor)
    monkeypatch.setattr(adaptive, "focused_allocation", noted)
    simulator = bp.ExactSimulator(random_table())
    result = bp.identify(simulator, epsilon=0.5, delta=0.05, algorithm="adaptive", seed=0, max_samples=20_000)
    assert result.samples > 19_000
    assert found
    assert all((one is not None) == used for one in found)
