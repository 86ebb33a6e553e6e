"""A queue with a choice of service levels: any number of actions, the same dimension.

At most N customers wait. In a slot one arrives with probability p, and if the queue is not empty one leaves
with probability q_a, the chosen level of service. Waiting and service cost, r = 1 - w₁ s/N - w₂ q_a.
Everything is linear in the level: a pair is a mixture of "serve for sure" and "do not serve",

    φ(s, a) = e_s ⊗ (1 - q_a, q_a),     d = 2(N + 1) .

So ten service levels cost no more to learn than two, if one knows it: a design needs the lowest and the
highest level only, whereas a tabular method learns each level on its own. For the same reason the optimal
level is always an extreme one; those next to it make the gap small. With the default costs a customer less is
worth at most γ/(1-γ) · w₁/N = w₂ at γ = 0.8, just what serving one costs: never serving is optimal, by a
hair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestpolicy._numerics.arrays import as_floats
from bestpolicy._numerics.inputs import require_fraction
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.construction import model_of, problem_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP


def queue(
    *,
    capacity: int = 8,
    arrival: float = 0.4,
    service_levels: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    waiting_cost: float = 0.6,
    service_cost: float = 0.3,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "queue",
) -> LinearMDP:
    """Return a queue whose service level is chosen in every slot.

    State s is the number of waiting customers, action a the level ``service_levels[a]``.

    Parameters
    ----------
    capacity : int
        N: an arrival at a full queue is lost, unless a customer leaves in the same slot.
    arrival : float
        Probability p of an arrival in a slot.
    service_levels : sequence of float
        Probabilities q_a that a customer leaves; two different ones at least.
    waiting_cost : float
        w₁, paid in full when the queue is full.
    service_cost : float
        w₂, paid in full for service with probability 1. Together at most 1, so that rewards lie in [0, 1].
    discount, horizon
        At most one of them; discount 0.8 by default. With a horizon the same model repeats at every step.
    name : str, optional
        Shown in reports.
    """
    levels = as_floats("service_levels", service_levels, ("A",))
    require_sizes(1, capacity=capacity)
    require_room("capacity", 2 * (capacity + 1) ** 2 * len(levels))
    if not (len(np.unique(levels)) >= 2 and levels.min() >= 0 and levels.max() <= 1):
        raise InvalidInput(
            f"service_levels must hold two different probabilities at least. Got {levels.tolist()} instead."
        )
    require_fraction(arrival=arrival, waiting_cost=waiting_cost, service_cost=service_cost)
    if waiting_cost + service_cost > 1:
        raise InvalidInput(
            f"waiting_cost + service_cost must be at most 1. Got {waiting_cost + service_cost:g} instead."
        )
    waiting = np.arange(capacity + 1)
    features = np.einsum("st,ab->satb", np.eye(capacity + 1), np.column_stack([1 - levels, levels]))
    # Prototype (s, b): s customers wait, and b = 1 of them leaves if there is one.
    mu = np.zeros((capacity + 1, capacity + 1, 2))
    becomes = np.eye(capacity + 1)
    for served in (0, 1):
        left = np.maximum(waiting - served, 0)
        joined = np.minimum(left + 1, capacity)
        mu[:, :, served] = (1 - arrival) * becomes[:, left] + arrival * becomes[:, joined]
    theta = 1 - waiting_cost * waiting[:, None] / capacity - service_cost * np.arange(2)
    problem = problem_of(features.reshape(capacity + 1, len(levels), -1), discount, horizon, 0.8)
    return model_of(problem, [theta.reshape(-1)], [mu.reshape(capacity + 1, -1)], name)
