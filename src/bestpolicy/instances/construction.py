"""What the families share: limits on their sizes, their clock, and models that may repeat at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import require_whole, shown
from bestpolicy._numerics.memory import usable_memory
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem

_LARGEST = 2**29  # numbers in an array, 4 GiB


def require_sizes(least: int, **sizes: int) -> None:
    """Raise InvalidInput unless each is a whole number of at least `least`, and arrays of such sizes can be made."""
    require_whole(least, **sizes)
    for name, size in sizes.items():
        require_room(name, size)


def require_room(names: str, entries: int) -> None:
    """Raise InvalidInput if an array of so many numbers, which follow from the named parameters, is too large."""
    if entries > min(_LARGEST, usable_memory() // 32):  # there are a few of them
        raise InvalidInput(f"{names} must be smaller: an array would have {shown(entries)} numbers.")


def default_discount(discount: float | None, horizon: int | None, default: float) -> float | None:
    """Return the discount to use: the family's own if the caller gave neither discount nor horizon."""
    return default if discount is None and horizon is None else discount


def problem_of(
    features: FloatArray, discount: float | None, horizon: int | None, default: float, mask: ArrayLike | None = None
) -> Problem:
    """Build a problem with the family's own discount unless the caller gave a discount or a horizon."""
    problem = Problem(features, discount=default_discount(discount, horizon, default), horizon=horizon, mask=mask)
    require_room("horizon", problem.stages * problem.states * problem.dimension)
    return problem


def model_of(
    problem: Problem, thetas: FloatArray | Sequence[FloatArray], mus: FloatArray | Sequence[FloatArray], name: str
) -> LinearMDP:
    """Build a model from θ (d,) and μ (S, d) of each stage; if there is only one of each, it repeats at every stage."""
    if problem.horizon is None:
        return LinearMDP(problem, theta=thetas[0], mu=mus[0], name=name)
    repeats = problem.stages // len(thetas)
    return LinearMDP(problem, theta=np.stack([*thetas] * repeats), mu=np.stack([*mus] * repeats), name=name)
