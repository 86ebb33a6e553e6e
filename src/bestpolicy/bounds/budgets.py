"""Numbers of episodes that theorems ask for and nobody can run.

*LSVI-UCB.* Its regret after K episodes is at most 2βH√(2dKι) + 2H√(KHι), ι = log(2dKH/δ), with probability 1 - 2δ (the
martingale part has a δ of its own, so δ/2 is used): a policy drawn from those that were played, anew for every
episode, is within ε on average once that is at most Kε, so

    K = ( 2βH√(2dι) + 2√(H³ι) )² / ε²,

with the explicit β of `algorithms.peers.lsvi_ucb`. The form of the regret is quoted from memory.

*RFLIN.* Explored step by step in m = ⌈log₂(4H²/ε)⌉ rounds, the i-th of which covers what is reached with probability
2^-i,

    β = (H/2)√(2 log(4H/δ) + d log(1 + K/d)) + 2H√d,     γ_i = 2^i ε/(8Hmβ),
    K = H Σ_i 2^{i+1}·(2d/γ_i²)·log(1 + K/d).

A feature of length above γ_i can be met (2d/γ_i²)·log(1 + K/d) times; planning then loses at most 2Σ_h Σ_i 2^{1-i}βγ_i
+ H²2^-m ≤ 3ε/4. The constants are our own, of the order of the theorem; what its regret minimiser needs besides is
left out, so this is less than it takes.
"""

from __future__ import annotations

from math import ceil, inf, log, log1p, log2, sqrt

from bestpolicy._numerics.inputs import number, of_type
from bestpolicy.algorithms.peers.lsvi_ucb import explicit_radius
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem

_ROUNDS = 100  # of fixed points whose right side grows like a logarithm


def lsvi_ucb_episodes(problem: Problem, epsilon: float, delta: float) -> float:
    """Return K after which the mixture of all policies that LSVI-UCB has played is within ε, at the start.

    Parameters
    ----------
    problem : Problem
        Episodic.
    epsilon, delta : float
    """
    steps, dimension, epsilon, delta = _checked(problem, epsilon, delta)
    episodes = 1.0
    for _ in range(_ROUNDS):
        iota = log(2 * dimension * episodes * steps / (delta / 2))
        beta = explicit_radius(dimension, steps, int(episodes), delta / 2)
        regret = 2 * beta * steps * sqrt(2 * dimension * iota) + 2 * sqrt(steps**3 * iota)
        episodes = max(1.0, regret**2 / epsilon**2)
        if episodes > 1e300:
            return inf
    return episodes


def rflin_episodes(problem: Problem, epsilon: float, delta: float) -> float:
    """Return how many episodes RFLIN explores with before it plans, at least.

    Parameters
    ----------
    problem : Problem
        Episodic.
    epsilon, delta : float
    """
    steps, dimension, epsilon, delta = _checked(problem, epsilon, delta)
    rounds = max(1, ceil(log2(4 * steps**2 / epsilon)))
    episodes = 1.0
    for _ in range(_ROUNDS):
        growth = log1p(episodes / dimension)
        beta = steps / 2 * sqrt(2 * log(4 * steps / delta) + dimension * growth) + 2 * steps * sqrt(dimension)
        lengths = [2**i * epsilon / (8 * steps * rounds * beta) for i in range(1, rounds + 1)]
        episodes = steps * sum(2 ** (i + 1) * 2 * dimension / gamma**2 * growth for i, gamma in enumerate(lengths, 1))
        if episodes > 1e300:
            return inf
    return episodes


def _checked(problem: Problem, epsilon: float, delta: float) -> tuple[int, int, float, float]:
    of_type("problem", problem, Problem)
    if problem.horizon is None:
        raise InvalidInput("problem must be episodic: give it a horizon.")
    return (
        problem.stages,
        problem.dimension,
        number("epsilon", epsilon, above=1e-100),
        number("delta", delta, above=0, below=1),
    )
