"""Many states, few kinds of them: hard state aggregation.

Take a small model and replace each of its states c by a cluster of m states that behave alike. Where the
small model enters c, the large one lands on a random member of the cluster, with probabilities κ(·|c):

    φ(s, a) = φ̄(c(s), a),     μ(s') = κ(s'|c(s')) μ̄(c(s')),     θ = θ̄ .

The large model has m times as many states, but the same dimension, values and gap: V*(s) = V̄*(c(s)). A
method that looks at features pays for the small model; a tabular one pays for the large. Chains such as
RiverSwim have full rank themselves, so this is the way to get one with S much larger than d.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.inputs import of_type, require_positive, require_whole
from bestpolicy.instances.classics import riverswim
from bestpolicy.instances.construction import default_discount, model_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem


def aggregated(
    small: LinearMDP,
    *,
    copies: int = 5,
    concentration: float = 3.0,
    seed: int = 0,
    name: str = "aggregated",
) -> LinearMDP:
    """Return the small model with every state replaced by a cluster of states that behave alike.

    Member j of cluster c is state c·copies + j. Drawn: the probabilities κ(·|c), cluster by cluster.

    Parameters
    ----------
    small : LinearMDP
        Its discount or horizon and its mask carry over.
    copies : int
        States in a cluster.
    concentration : float
        Dirichlet parameter of κ(·|c): large means nearly uniform within the cluster.
    seed : int
    name : str, optional
        Shown in reports.
    """
    of_type("small", small, LinearMDP)
    require_sizes(1, copies=copies)
    require_whole(0, seed=seed)
    require_positive(concentration=concentration)
    clusters = small.problem
    require_room("copies", copies * max(clusters.features.size, small.mu.size))
    arrivals = np.random.default_rng(seed).dirichlet(np.full(copies, concentration), size=clusters.states)
    problem = Problem(
        np.repeat(clusters.features, copies, axis=0),
        discount=clusters.discount,
        horizon=clusters.horizon,
        mask=np.repeat(clusters.mask, copies, axis=0),
    )
    mu = np.repeat(small.mu, copies, axis=1) * arrivals.reshape(-1, 1)
    return model_of(problem, small.theta, mu, name)


def aggregated_riverswim(
    *,
    states: int = 4,
    copies: int = 5,
    concentration: float = 3.0,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "aggregated-riverswim",
) -> LinearMDP:
    """Return RiverSwim in which every place on the river consists of several states.

    Parameters
    ----------
    states : int
        Places on the river; the model has ``states * copies`` states.
    copies, concentration, seed
        As in `aggregated`.
    discount, horizon
        At most one of them; discount 0.8 by default.
    name : str, optional
        Shown in reports.
    """
    river = riverswim(states=states, discount=default_discount(discount, horizon, 0.8), horizon=horizon)
    return aggregated(river, copies=copies, concentration=concentration, seed=seed, name=name)
