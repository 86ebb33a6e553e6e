"""Mixtures of d prototypes: the standard random linear MDP, in three forms.

Every pair is a mixture of d prototypes, with weights φ(s, a) in the simplex. Prototype k has its own
next-state distribution μ_k and its own mean reward θ_k:

    p(s'|s, a) = Σ_k φ_k(s, a) μ_k(s'),     r(s, a) = Σ_k φ_k(s, a) θ_k .

All assumptions of the theory hold by construction (Jin, Yang, Wang and Jordan 2020, Example 2.2; Yang and
Wang 2019), and d does not grow with the number of states. Three forms:

* `simplex`: d pairs, the *anchors*, are pure prototypes. Sampling the anchors alone is then the G-optimal
  design, and methods that need anchors run as well as the linear ones. Gaps are tiny as a rule: easy to be
  near-optimal, hard to identify the optimum. A small `concentration` pushes pairs to the corners and opens
  the gaps.
* `low_rank`: no anchors, and the features are hidden behind a linear map, so that they are signed and nothing
  of the simplex can be seen. With Λ = Σ ω φφᵀ of the G-optimal design ω and σ = max ‖φ‖²_{Λ⁻¹} (which is d at
  the optimum), φ' = Λ^{-1/2}φ/√σ, θ' = √σ Λ^{1/2}θ, μ' = √σ Λ^{1/2}μ. The norms
  are then what the theory asks for.
* `universal`: μ is itself a mixture Σ_j w_j M_j of known matrices, so the model is both a linear MDP of
  dimension d and a *linear mixture* MDP of dimension m, p = Σ_j w_j (Φ M_j): algorithms for either class run
  on it natively.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import of_type, require_positive, require_whole
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.arithmetic import inverse, lengths, optimal_information, powers, product, square_root
from bestpolicy.instances.construction import model_of, problem_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem

_WHITENING_TOLERANCE = 1e-7


def simplex(
    *,
    states: int = 20,
    actions: int = 4,
    dimension: int = 4,
    concentration: float = 1.0,
    spread: float = 1.0,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "simplex",
) -> LinearMDP:
    """Return a random mixture of prototypes with d anchor pairs.

    Drawn in this order: φ, pair by pair; the anchors' places; then for each step μ_h and θ_h (uniform on [0,
    1]). A discounted model is the first step of the episodic one with the same seed.

    Parameters
    ----------
    states, actions, dimension : int
    concentration : float
        Dirichlet parameter of the features; below 1 they crowd at the corners, which opens the gaps.
    spread : float
        Dirichlet parameter of the next-state distributions; below 1 they are sparse.
    seed : int
    discount, horizon
        At most one of them; discount 0.8 by default. With a horizon every step has its own (θ_h, μ_h).
    name : str, optional
        Shown in reports.
    """
    _check_sizes(states, actions, dimension, seed)
    require_positive(concentration=concentration, spread=spread)
    rng = np.random.default_rng(seed)
    features = _mixture_weights(rng, states, actions, dimension, concentration, anchors=True)
    problem = problem_of(features, discount, horizon, 0.8)
    return model_of(problem, *_prototypes(rng, problem, spread), name)


def low_rank(
    *,
    states: int = 30,
    actions: int = 5,
    dimension: int = 5,
    concentration: float = 1.0,
    spread: float = 1.0,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "low-rank",
) -> LinearMDP:
    """Return a random mixture of prototypes without anchors, in whitened, signed features.

    Drawn like `simplex`, but without anchors.

    Parameters
    ----------
    states, actions, dimension, concentration, spread, seed, discount, horizon, name
        As in `simplex`.
    """
    _check_sizes(states, actions, dimension, seed)
    require_positive(concentration=concentration, spread=spread)
    rng = np.random.default_rng(seed)
    weights = _mixture_weights(rng, states, actions, dimension, concentration, anchors=False)
    to_features, to_parameters = _whitening_maps(weights.reshape(-1, dimension))
    problem = problem_of(product(weights, to_features), discount, horizon, 0.8)
    thetas, mus = ([product(part, to_parameters) for part in parts] for parts in _prototypes(rng, problem, spread))
    return model_of(problem, thetas, mus, name)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A model as a linear mixture: p = Σ_j weights_j kernels_j.

    Attributes
    ----------
    weights : array (m,) or (H, m)
        What a learner of linear mixtures has to find out.
    kernels : array (m, S, A, S) or (H, m, S, A, S)
        Transition kernels, which it knows.
    """

    weights: FloatArray
    kernels: FloatArray


def universal(
    *,
    states: int = 8,
    actions: int = 3,
    dimension: int = 4,
    bases: int = 3,
    spread: float = 0.3,
    sparse_rewards: bool = True,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "universal",
) -> LinearMDP:
    """Return a model that is both a linear MDP with anchors and a linear mixture of known kernels.

    Drawn in this order: φ, pair by pair; the anchors' places; then for each step the matrices M_j, the
    weights w and θ_h. `universal_mixture` returns the second view of the same model.

    Parameters
    ----------
    states, actions, dimension : int
    bases : int
        Number m of known kernels.
    spread : float
        Dirichlet parameter of their rows; below 1 they are sparse.
    sparse_rewards : bool
        Raise the uniform θ to the fourth power, so that few prototypes pay.
    seed : int
    discount, horizon
        At most one of them; discount 0.8 by default. With a horizon every step has its own (θ_h, M_j, w).
    name : str, optional
        Shown in reports.
    """
    of_type("sparse_rewards", sparse_rewards, bool)
    rng, problem = _universal_problem(states, actions, dimension, bases, spread, seed, discount, horizon)
    drawn = [_universal_stage(rng, problem, bases, spread, sparse_rewards) for _ in range(problem.stages)]
    mus = [_mixed(matrices, weights) for matrices, weights, _ in drawn]
    return model_of(problem, [theta for _, _, theta in drawn], mus, name)


def universal_mixture(
    *,
    states: int = 8,
    actions: int = 3,
    dimension: int = 4,
    bases: int = 3,
    spread: float = 0.3,
    seed: int = 0,
    horizon: int | None = None,
) -> Mixture:
    """Return the model of `universal` with the same parameters as a linear mixture.

    Parameters
    ----------
    states, actions, dimension, bases, spread, seed, horizon
        As in `universal`; kernels and weights do not depend on the discount.
    """
    rng, problem = _universal_problem(states, actions, dimension, bases, spread, seed, None, horizon)
    drawn = [_universal_stage(rng, problem, bases, spread, False)[:2] for _ in range(problem.stages)]
    kernels = np.stack([np.einsum("sak,jkn->jsan", problem.features, matrices) for matrices, _ in drawn])
    weights = np.stack([weights for _, weights in drawn])
    return Mixture(weights[0], kernels[0]) if horizon is None else Mixture(weights, kernels)


def _check_sizes(states: int, actions: int, dimension: int, seed: int) -> None:
    require_sizes(1, states=states, actions=actions, dimension=dimension)
    require_room("states, actions or dimension", states * dimension * max(actions, dimension))
    require_whole(0, seed=seed)
    if dimension > states * actions:
        raise InvalidInput(
            f"dimension must be at most the number of pairs, {states * actions}. Got {dimension} instead."
        )


def _mixture_weights(
    rng: np.random.Generator, states: int, actions: int, dimension: int, concentration: float, anchors: bool
) -> FloatArray:
    weights = rng.dirichlet(np.full(dimension, concentration), size=states * actions)
    if anchors:
        weights[rng.choice(states * actions, dimension, replace=False)] = np.eye(dimension)
    return weights.reshape(states, actions, dimension)


def _prototypes(rng: np.random.Generator, problem: Problem, spread: float) -> tuple[list[FloatArray], list[FloatArray]]:
    """Draw rewards (d,) and next-state distributions, as μ (S, d), for each stage."""
    thetas, mus = [], []
    for _ in range(problem.stages):
        mus.append(rng.dirichlet(np.full(problem.states, spread), size=problem.dimension).T)
        thetas.append(rng.uniform(size=problem.dimension))
    return thetas, mus


def _universal_problem(
    states: int,
    actions: int,
    dimension: int,
    bases: int,
    spread: float,
    seed: int,
    discount: float | None,
    horizon: int | None,
) -> tuple[np.random.Generator, Problem]:
    _check_sizes(states, actions, dimension, seed)
    require_sizes(1, bases=bases)
    require_room("bases", bases * states * max(dimension, states * actions))
    require_positive(spread=spread)
    rng = np.random.default_rng(seed)
    features = _mixture_weights(rng, states, actions, dimension, 1.0, anchors=True)
    return rng, problem_of(features, discount, horizon, 0.8)


def _universal_stage(
    rng: np.random.Generator, problem: Problem, bases: int, spread: float, sparse_rewards: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw the matrices M_j (m, d, S), the weights (m,) and θ (d,) of one stage."""
    matrices = rng.dirichlet(np.full(problem.states, spread), size=(bases, problem.dimension))
    weights = rng.dirichlet(np.ones(bases))
    theta = rng.uniform(size=problem.dimension)
    return matrices, weights, powers(theta, 4) if sparse_rewards else theta


def _mixed(matrices: FloatArray, weights: FloatArray) -> FloatArray:
    """Return Σ_j w_j M_j as μ (S, d)."""
    bases, dimension, states = matrices.shape
    return product(weights, matrices.reshape(bases, -1)).reshape(dimension, states).T


def _whitening_maps(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Λ^{-1/2}/√σ and √σ Λ^{1/2} of the G-optimal design."""
    root = square_root(optimal_information(features, _WHITENING_TOLERANCE))
    inverse_root = inverse(root)
    largest = float(lengths(product(features, inverse_root)).max())
    return inverse_root / largest, root * largest
