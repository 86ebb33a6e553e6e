"""What the families share: their clock, models that repeat at every step, and checks of their parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.errors import InvalidInput
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


def require_whole(least: int, **values: int) -> None:
    """Raise InvalidInput unless every value is a whole number of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InvalidInput(f"{name} must be a whole number of at least {least}. Got {value!r} instead.")


def require_positive(**values: float) -> None:
    """Raise InvalidInput unless every value is a positive finite number."""
    for name, value in values.items():
        if not _is_number(value) or not 0 < value < np.inf:
            raise InvalidInput(f"{name} must be a positive number. Got {value!r} instead.")


def require_fraction(**values: float) -> None:
    """Raise InvalidInput unless every value lies in [0, 1]."""
    for name, value in values.items():
        if not _is_number(value) or not 0 <= value <= 1:
            raise InvalidInput(f"{name} must lie between 0 and 1. Got {value!r} instead.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
