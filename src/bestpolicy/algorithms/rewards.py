"""Mean rewards, for the algorithms whose papers take them as known.

Either the user knows them and says so, as a table (S, A), or they are learned first, at the pairs from which all other
rewards follow (the anchors, or every pair). Learned ones are estimated from below: with n samples of each of K pairs,

    r̂ = max(0, mean - w),    w = √( log(2K/δ) / 2n ),    so that    r̂ ≤ r ≤ r̂ + 2w

at all of them together with probability 1 - δ (Hoeffding, both sides, K pairs: own proof). Hence n = 2 log(2K/δ)/η²
gives accuracy η = 2w.

An algorithm that is run with r̂ instead of r, and ends with a value v ≤ T̂_π v (T̂ with r̂) within ε' of the optimal value
for r̂, is right about the true rewards too: v ≤ T_π v, hence v ≤ V^π; and the optimal value for r̂ is at least
V* - η/(1-γ). So V* - V^π ≤ ε' + η/(1-γ), with the two probabilities of error added. The same holds of
r̂(s,a) = Σ_k F_k(s,a) r̂_k with anchors, because F ≥ 0 and the weights of a pair sum to 1.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import ceil, log, sqrt

import numpy as np

from bestpolicy.algorithms.protocol import Request
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem

RewardTable = tuple[tuple[float, ...], ...]


def reward_table(rewards: Sequence[Sequence[float]] | None) -> RewardTable | None:
    """Return known mean rewards as nested tuples, ready to be a parameter of a frozen algorithm; None if to be learned.

    Raises
    ------
    InvalidInput
        Unless they are a table of numbers in [0, 1].
    """
    if rewards is None:
        return None
    try:
        table = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.ndim != 2 or not ((table >= 0) & (table <= 1)).all():
        raise InvalidInput("rewards must be a table (S, A) of mean rewards in [0, 1]; leave it out to learn them.")
    return tuple(tuple(row) for row in table.tolist())


def why_not_these(table: RewardTable | None, problem: Problem) -> str:
    """Say why known rewards do not fit the problem; empty if they do."""
    if table is None or (len(table), len(table[0]) if table else 0) == problem.mask.shape:
        return ""
    return f"rewards must have shape (S, A) = {problem.mask.shape}, one mean reward for each pair."


def known_rewards(table: RewardTable, problem: Problem) -> FloatArray:
    """Return the known rewards of the allowed pairs, in the order of ``problem.pairs``."""
    return np.asarray(table, dtype=np.float64).ravel()[problem.pairs]


def reward_samples(pairs: int, accuracy: float, delta: float) -> int:
    """Samples of each of so many pairs after which all lower estimates are within `accuracy`."""
    return ceil(2 * log(2 * pairs / delta) / accuracy**2)


def learn_rewards(
    problem: Problem, pairs: IntArray, accuracy: float, delta: float
) -> Generator[Request, Tally, FloatArray]:
    """Learn the rewards of `pairs` (discounted problems) from below: ``lower = yield from learn_rewards(...)``.

    Parameters
    ----------
    pairs : int array (K,)
        Flat pair indices, strictly increasing.
    accuracy, delta : float
        With probability 1 - delta all of lower ≤ r ≤ lower + accuracy.

    Returns
    -------
    array (K,)
    """
    samples = reward_samples(len(pairs), accuracy, delta)
    tally = yield Request(Pulls(pairs, np.full((1, len(pairs)), samples)))
    return lower_rewards(tally.reward_sums[0], samples, delta)


def lower_rewards(sums: FloatArray, samples: int, delta: float) -> FloatArray:
    """Lower estimates from the sum of `samples` rewards at each pair."""
    width = sqrt(log(2 * len(sums) / delta) / (2 * samples))
    return np.maximum(sums / samples - width, 0.0)
