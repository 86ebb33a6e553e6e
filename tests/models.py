"""Small models for the tests, built with plain NumPy."""

from __future__ import annotations

import itertools

import numpy as np

import bestpolicy as bp
from bestpolicy.stopping import Check, Evidence, PaperRule, Past, Terms
from bestpolicy.stopping.lags import first_past
from bestpolicy.stopping.tight import TheoremT, TightTest


def random_mdp(
    seed: int,
    states: int = 6,
    actions: int = 3,
    dimension: int = 4,
    discount: float | None = 0.8,
    horizon: int | None = None,
    masked: bool = False,
) -> bp.LinearMDP:
    """Features in the simplex, so that any stochastic mu gives a linear MDP."""
    rng = np.random.default_rng(seed)
    features = rng.dirichlet(np.ones(dimension), size=(states, actions))
    corners = rng.choice(states * actions, dimension, replace=False)
    features.reshape(-1, dimension)[corners] = np.eye(dimension)
    mask = np.ones((states, actions), bool)
    if masked:
        mask = rng.random((states, actions)) < 0.7
        mask[np.arange(states), rng.integers(actions, size=states)] = True
        mask.reshape(-1)[corners] = True
    stages = () if horizon is None else (horizon,)
    theta = rng.uniform(size=(*stages, dimension))
    mu = np.swapaxes(rng.dirichlet(np.ones(states), size=(*stages, dimension)), -1, -2)
    problem = bp.Problem(features, discount=None if horizon else discount, horizon=horizon, mask=mask)
    return bp.LinearMDP(problem, theta=theta, mu=mu, name=f"random-{seed}")


def tabular_mdp(transitions: np.ndarray, rewards: np.ndarray, **time: float) -> bp.LinearMDP:
    """One-hot features."""
    states, actions, _ = transitions.shape
    features = np.eye(states * actions).reshape(states, actions, -1)
    mu = transitions.reshape(states * actions, states).T
    problem = bp.Problem(features, **time)
    if problem.horizon is None:
        return bp.LinearMDP(problem, theta=rewards.ravel(), mu=mu)
    repeat = (problem.horizon, *([1] * 2))
    return bp.LinearMDP(problem, theta=np.tile(rewards.ravel(), repeat[:2]), mu=np.tile(mu, repeat))


def all_policies(mdp: bp.LinearMDP) -> list[tuple[int, ...]]:
    """Every deterministic stationary policy that respects the mask."""
    return list(itertools.product(*(np.flatnonzero(row).tolist() for row in mdp.problem.mask)))


def plain_values(mdp: bp.LinearMDP, policy: tuple[int, ...]) -> np.ndarray:
    """V^π by an S×S solve."""
    rows = np.arange(mdp.problem.states)
    p, r = mdp.transitions[rows, policy], mdp.rewards[rows, policy]
    return np.linalg.solve(np.eye(len(rows)) - mdp.problem.discount * p, r)


def near_tie(gap: float, discount: float = 0.5) -> bp.LinearMDP:
    """One state that matters, two actions whose mean rewards differ by `gap`."""
    transitions = np.full((2, 2, 2), 0.5)
    rewards = np.array([[0.5, 0.5 + gap], [0.2, 0.9]])
    return tabular_mdp(transitions, rewards, discount=discount)


def first_test(
    whitened: bp.Problem, candidates: np.ndarray, shares: np.ndarray, epsilon: float, delta: float
) -> TightTest:
    """The test that `tight` fixes before the first sample."""
    return TheoremT().fix(Terms(whitened, epsilon), first_past(whitened, candidates, shares, delta), delta)


def paper_check(
    whitened: bp.Problem, epsilon: float, delta: float, tally: bp.Tally, start: np.ndarray | None = None
) -> Check:
    """What the paper's rule says of a tally."""
    test = PaperRule().fix(Terms(whitened, epsilon), Past(), delta)
    return test.look(Evidence.of(tally), start).check(tally, epsilon)
