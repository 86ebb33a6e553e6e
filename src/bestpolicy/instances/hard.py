"""The worst cases of the theory: models made to be hard to tell apart.

Lower bounds are proved with families of models that differ in a few signs. An action is a vector of k signs,
a ∈ {±1}^k, and the probability of getting to the place that pays is a constant plus a small inner product ⟨a,
w⟩: each sign has to be learned, and each shows only in a small change of a probability. Here d = k + 2.

*Discounted* (Zhou, He and Gu 2021). Two places: x₁ pays 1, x₀ nothing.

    p(x₁|x₀, a) = (1-γ) + ⟨a, w⟩,  w = (Δ/k, …, Δ/k),     p(x₀|x₁) = 1-γ,
    φ(x₀, a) = (αa, β, 0),  φ(x₁) = (0, 0, 1),            α² = Δ/(k(1+Δ)),  β² = 1/(1+Δ) .

*Episodic* (Zhou, Gu and Szepesvári 2021). An episode passes through x₀, x₁, …; from each one may jump to the
good state, which pays 1 per step and is never left. The signs of w_h are those of its step.

    p_h(good|x_h, a) = 1/H + ⟨a, w_h⟩,  w_h ∈ {±Δ/k}^k,   else x_{h+1},
    φ(x_h, a) = (α, βa, 0),  φ(good) = (0, 0, 1),         α² = 1/(1+Δ),  β² = Δ/(k(1+Δ)) .

The actions of the state that pays do the same, so only one is allowed there.

An action of the last step comes too late to be paid: in the episodic model as published all actions are
equally good there, and the gap over all steps is 0. (A method that looks at the gap plus ε is not hurt.) With
`pay_on_arrival` the reward is the probability of being in the good state *after* the action; then every step
counts, and the optimal policy is unique.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import number, of_type, require_whole, shown
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.construction import model_of, problem_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem


def hard_discounted(
    *,
    dimension: int = 5,
    tilt: float = 0.05,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "hard-discounted",
) -> LinearMDP:
    """Return the two-state model behind the lower bounds for discounted problems.

    State 0 is x₀, state 1 is x₁. The actions of x₀ are all 2^(d-2) sign vectors, the best of which is the
    last.

    Parameters
    ----------
    dimension : int
        d ≥ 3.
    tilt : float
        Δ in (0, 1-γ]: the best action adds this much to the probability of getting to x₁, the worst subtracts
        it.
    discount, horizon
        At most one of them; discount 0.9 by default. With a horizon H, 1-γ is replaced by 1/H.
    name : str, optional
        Shown in reports.
    """
    signs = _sign_vectors(dimension)
    number("tilt", tilt, above=1e-100)
    alpha, beta = np.sqrt(tilt / (signs.shape[1] * (1 + tilt))), np.sqrt(1 / (1 + tilt))
    features = np.zeros((2, len(signs), dimension))
    features[0, :, :-2] = alpha * signs
    features[0, :, -2] = beta
    features[1, :, -1] = 1.0
    mask = np.ones((2, len(signs)), dtype=np.bool_)
    mask[1, 1:] = False
    problem = problem_of(features, discount, horizon, 0.9, mask)
    rate = 1 / problem.stages if problem.discount is None else 1 - problem.discount
    _check_tilt(tilt, rate)
    slopes = np.full(signs.shape[1], tilt / signs.shape[1]) / alpha
    mu = np.array([[*-slopes, (1 - rate) / beta, rate], [*slopes, rate / beta, 1 - rate]])
    return model_of(problem, [np.eye(dimension)[-1]], [mu], name)


def hard_episodic(
    *,
    dimension: int = 4,
    horizon: int = 4,
    tilt: float = 0.2,
    pay_on_arrival: bool = False,
    seed: int = 0,
    name: str = "hard-episodic",
) -> LinearMDP:
    """Return the model behind the lower bounds for episodic problems.

    States 0 to H-1 are passed one a step, state H is the end of the way (never before the last step), and
    state H + 1 is the good one. Only state h can be met at step h besides the good one; the others behave
    like it. Drawn: the signs of w_h, step by step.

    Parameters
    ----------
    dimension : int
        d ≥ 3; there are 2^(d-2) actions.
    horizon : int
        H ≥ 2.
    tilt : float
        Δ in (0, 1/H]: the best action adds this much to the probability of a jump, the worst subtracts it.
    pay_on_arrival : bool
        Pay for being in the good state after the action instead of before, so that the last action counts.
    seed : int
    name : str, optional
        Shown in reports.
    """
    signs = _sign_vectors(dimension)
    require_sizes(2, horizon=horizon)
    require_room("horizon or dimension", (horizon + 2) * max(horizon, len(signs)) * dimension)
    require_whole(0, seed=seed)
    of_type("pay_on_arrival", pay_on_arrival, bool)
    _check_tilt(tilt, 1 / horizon)
    count, states = signs.shape[1], horizon + 2
    alpha, beta = np.sqrt(1 / (1 + tilt)), np.sqrt(tilt / (count * (1 + tilt)))
    features = np.zeros((states, len(signs), dimension))
    features[:-1, :, 0] = alpha
    features[:-1, :, 1:-1] = beta * signs
    features[-1, :, -1] = 1.0
    mask = np.ones((states, len(signs)), dtype=np.bool_)
    mask[-1, 1:] = False
    problem = Problem(features, horizon=horizon, mask=mask)
    rng = np.random.default_rng(seed)
    thetas, mus = [], []
    for step in range(horizon):
        slopes = tilt / count * rng.choice([-1, 1], size=count) / beta
        mu = np.zeros((states, dimension))
        mu[step + 1, :-1] = [(1 - 1 / horizon) / alpha, *-slopes]
        mu[-1] = [1 / horizon / alpha, *slopes, 1]
        mus.append(mu)
        thetas.append(mu[-1] if pay_on_arrival else np.eye(dimension)[-1])
    return model_of(problem, thetas, mus, name)


def _sign_vectors(dimension: int) -> FloatArray:
    """Return all sign vectors of length d-2, shape (2^(d-2), d-2)."""
    require_whole(3, dimension=dimension)
    if dimension > 18:
        raise InvalidInput(f"dimension must be at most 18 (there are 2^(d-2) actions). Got {shown(dimension)} instead.")
    return np.array(list(product((-1.0, 1.0), repeat=dimension - 2)))


def _check_tilt(tilt: float, rate: float) -> None:
    number("tilt", tilt, above=1e-100)
    largest = min(rate, 1 - rate)
    if tilt > largest:
        raise InvalidInput(f"tilt must be at most {largest:g}, or probabilities leave [0, 1]. Got {tilt:g} instead.")
