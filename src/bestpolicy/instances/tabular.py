"""Tabular models as linear ones, and random tabular models.

Every finite MDP is a linear MDP with one-hot features: give each allowed pair its own coordinate,

    φ(s, a) = e_(s,a),     μ(s')_(s,a) = p(s'|s, a),     θ_(s,a) = r(s, a),

so that d is the number of allowed pairs. Nothing is shared between pairs: the G-optimal design is uniform,
and the linear algorithms can be compared with the tabular ones on equal terms.

Random models with independent rows mix in one step, so all states have nearly the same value; what remains to
be found is which immediate reward is best. Identification is as hard as the smallest gap happens to be.
Models with normalised uniform rows are those of the experiments with KLB-TS (Al Marjani and Proutière 2021). Those in
which each pair leads to few states (*Garnets*) keep some structure, and can be large: they never become arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import BoolArray, FloatArray, as_floats, as_numbers
from bestpolicy._numerics.inputs import require_positive, require_whole
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.construction import default_discount, model_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem


def tabular(
    transitions: ArrayLike,
    rewards: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "tabular",
) -> LinearMDP:
    """Return a tabular model as a linear one, with one-hot features.

    Parameters
    ----------
    transitions : array (S, A, S), or (H, S, A, S) if episodic
        Probabilities of the next state. Without the step axis an episodic model is the same at every step.
    rewards : array (S, A), or (H, S, A) if episodic
        Mean rewards in [0, 1].
    mask : bool array (S, A), optional
        True where the action is allowed. Rows of other pairs are ignored.
    discount, horizon
        Exactly one of them.
    name : str, optional
        Shown in reports.
    """
    steps = () if horizon is None else ("H",)
    rows = _with_or_without_steps("transitions", transitions, ("S", "A", "S"), steps)
    means = _with_or_without_steps("rewards", rewards, ("S", "A"), steps)
    shape = rows.shape[-3:-1]
    if means.shape[-2:] != shape or rows.shape[-1] != shape[0]:
        raise InvalidInput(
            f"transitions (S, A, S) and rewards (S, A) must agree. Got {rows.shape} and {means.shape} instead."
        )
    allowed = np.ones(shape, dtype=np.bool_) if mask is None else as_numbers("mask", mask) != 0
    if allowed.shape != shape:
        raise InvalidInput(f"mask must have shape (S, A) = {shape}. Got {allowed.shape} instead.")
    require_room("transitions", allowed.size * int(allowed.sum()))
    problem = Problem(_one_hot(allowed), discount=discount, horizon=horizon, mask=mask)
    require_room("horizon", problem.stages * problem.states * problem.dimension)
    theta = means[..., problem.mask].reshape(-1, problem.dimension)
    mu = np.swapaxes(rows[..., problem.mask, :], -1, -2).reshape(-1, problem.states, problem.dimension)
    for array, values in (("rewards", theta), ("transitions", mu)):
        if len(values) not in (1, problem.stages):
            raise InvalidInput(f"{array} must be of {problem.stages} steps, the horizon. Got {len(values)} instead.")
    theta, mu = (np.broadcast_to(values, (problem.stages, *values.shape[1:])) for values in (theta, mu))
    return model_of(problem, theta, mu, name)


def random_tabular(
    *,
    states: int = 2,
    actions: int = 2,
    concentration: float | None = None,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "random-tabular",
) -> LinearMDP:
    """Return a tabular model with independent random rows and rewards.

    Drawn in this order: the rows p(·|s, a), pair by pair, then the mean rewards, uniform on [0, 1].

    Parameters
    ----------
    states, actions : int
    concentration : float, optional
        Rows are Dirichlet with this parameter (small: sparse). By default uniform numbers divided by their
        sum.
    seed : int
    discount, horizon
        At most one of them; discount 0.5 by default. With a horizon the same model repeats at every step.
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, states=states, actions=actions)
    require_room("states or actions", (states * actions) ** 2)
    require_whole(0, seed=seed)
    rng = np.random.default_rng(seed)
    if concentration is None:
        rows = rng.uniform(size=(states, actions, states))
        rows /= rows.sum(axis=2, keepdims=True)
    else:
        require_positive(concentration=concentration)
        rows = rng.dirichlet(np.full(states, concentration), size=(states, actions))
    rewards = rng.uniform(size=(states, actions))
    discount = default_discount(discount, horizon, 0.5)
    return tabular(rows, rewards, discount=discount, horizon=horizon, name=name)


def garnet(
    *,
    states: int = 100,
    actions: int = 4,
    successors: int = 5,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "garnet",
) -> LinearMDP:
    """Return a random table in which each pair leads to few states; it may be large (10⁵ pairs and more).

    Drawn in this order: for each pair its successors, without repetition; their probabilities, Dirichlet with
    parameter 1, pair by pair; the mean rewards, uniform on [0, 1].

    Parameters
    ----------
    states, actions : int
    successors : int
        Next states of each pair, from 1 to `states`.
    seed : int
    discount, horizon
        At most one of them; discount 0.9 by default. With a horizon the same model repeats at every step.
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, states=states, actions=actions, successors=successors)
    if successors > states:
        raise InvalidInput(f"successors must be {states} at most, the number of states. Got {successors} instead.")
    pairs = states * actions
    require_room("states, actions or successors", pairs * successors)
    require_whole(0, seed=seed)
    rng = np.random.default_rng(seed)
    following = np.stack([rng.choice(states, successors, replace=False) for _ in range(pairs)])
    weights = rng.dirichlet(np.ones(successors), pairs)
    rows = (weights.ravel(), following.ravel(), np.arange(0, pairs * successors + 1, successors))
    return LinearMDP.from_table(
        csr_array(rows, shape=(pairs, states)),
        rng.uniform(size=(states, actions)),
        discount=default_discount(discount, horizon, 0.9),
        horizon=horizon,
        name=name,
    )


def _one_hot(allowed: BoolArray) -> FloatArray:
    """Features (S, A, d) with one coordinate for each allowed pair; zeros elsewhere."""
    features = np.zeros((allowed.size, int(allowed.sum())))
    features[np.flatnonzero(allowed), np.arange(features.shape[1])] = 1.0
    return features.reshape(*allowed.shape, -1)


def _with_or_without_steps(name: str, value: ArrayLike, axes: tuple[str, ...], steps: tuple[str, ...]) -> FloatArray:
    array = as_numbers(name, value)
    return as_floats(name, array, (*steps, *axes) if steps and array.ndim == len(axes) + 1 else axes)
