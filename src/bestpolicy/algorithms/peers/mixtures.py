"""What algorithms for linear mixtures share: known kernels, values that they predict, rewards by least squares.

In a linear mixture p(s'|s,a) = Σ_j w_j·P_j(s'|s,a) with kernels P_j that the learner knows and weights that it does
not. Weights w ≥ 0 that sum to 1 have norm at most 1. With x_V(s,a) = (P_j V(s,a))_j the mean of V(s') is x_Vᵀw for
*every* V, so one ellipsoid around the weights, from whatever targets, bounds all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.algorithms.peers.online import nested
from bestpolicy.algorithms.peers.ridge import Coordinates, Fit
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally

Kernels = Sequence[Any]


def known_kernels(kernels: Kernels | None) -> Any:
    """Return kernels as nested tuples, ready to be a parameter of a frozen algorithm; None if there are none."""
    if kernels is None:
        return None
    values: FloatArray
    try:
        values = np.asarray(kernels, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    sums = values.sum(axis=-1) if values.ndim in (4, 5) else np.empty(0)
    if not (sums.size and (values >= 0).all() and np.isclose(sums, 1.0).all()):
        raise InvalidInput(
            "kernels must be an array (m, S, A, S), or (H, m, S, A, S), of transition probabilities with sum 1: "
            "see instances.universal_mixture."
        )
    return nested(values.tolist())


def without_kernels(kernels: Kernels | None, problem: Problem) -> str:
    """Say why there is no mixture to learn; empty if there is."""
    if kernels is None:
        return "it learns mixtures of kernels that it knows: give kernels=, as of instances.universal_mixture."
    shape, wanted = np.shape(kernels), (*problem.mask.shape, problem.states)
    if shape[-3:] == wanted and (len(shape) == 4 or (problem.horizon is not None and shape[0] == problem.stages)):
        return ""
    return f"kernels must have shape (m, S, A, S) with (S, A, S) = {wanted}, one for each step if there are five axes."


def kernels_by_step(kernels: Kernels | None, problem: Problem) -> FloatArray:
    """Return the kernels at the allowed pairs, (stages, n, m, S)."""
    values = np.asarray(kernels, dtype=np.float64)
    full = np.broadcast_to(values, (problem.stages, *values.shape[-4:]))
    flat = full.reshape(*full.shape[:2], -1, problem.states)[:, :, problem.pairs]
    return np.ascontiguousarray(flat.swapaxes(1, 2))


class LearnedRewards:
    """Bounds on mean rewards by least squares in the features, step by step.

    Parameters
    ----------
    problem : Problem
    delta : float
        For all steps together.
    """

    def __init__(self, problem: Problem, delta: float) -> None:
        self.problem, self.share = problem, delta / problem.stages
        self.coordinates = Coordinates.of(problem)

    def bounds(self, tally: Tally) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds (stages, n), from all samples so far."""
        full = tally.at(self.problem.pairs)
        lowest, highest = (np.empty(full.pulls.shape) for _ in range(2))
        for h, visits in enumerate(full.pulls.astype(np.float64)):
            fit = Fit.of(self.coordinates.features, visits)
            means, width = (
                fit.predict(full.reward_sums[h]),
                fit.radius(1.0, self.share, self.coordinates.norm) * fit.widths,
            )
            lowest[h], highest[h] = np.clip(means - width, 0.0, 1.0), np.clip(means + width, 0.0, 1.0)
        return lowest, highest
