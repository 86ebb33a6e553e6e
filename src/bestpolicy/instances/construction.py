"""What the families share: their clock and models that repeat at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem


def discount_or_default(discount: float | None, horizon: int | None, default: float) -> float | None:
    """Return the discount to use: the family's own if the caller gave neither discount nor horizon."""
    return default if discount is None and horizon is None else discount


def stationary_mdp(problem: Problem, *, theta: FloatArray, mu: FloatArray, name: str) -> LinearMDP:
    """Build a model from one θ (d,) and one μ (S, d), which an episodic problem repeats at every step."""
    if problem.horizon is not None:
        theta = np.broadcast_to(theta, (problem.stages, *theta.shape))
        mu = np.broadcast_to(mu, (problem.stages, *mu.shape))
    return LinearMDP(problem, theta=theta, mu=mu, name=name)


def staged_mdp(problem: Problem, *, thetas: Sequence[FloatArray], mus: Sequence[FloatArray], name: str) -> LinearMDP:
    """Build a model from one θ (d,) and one μ (S, d) a stage."""
    if problem.horizon is None:
        return LinearMDP(problem, theta=thetas[0], mu=mus[0], name=name)
    return LinearMDP(problem, theta=np.stack(thetas), mu=np.stack(mus), name=name)
