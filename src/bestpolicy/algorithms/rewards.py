"""Mean rewards, for the algorithms whose papers take them as known.

Either the user knows them and says so, as a table (S, A), or they are learned at the pairs from which all other rewards
follow (the anchors, or every pair), from below: with n samples of each of K pairs,

    r = max(0, mean - w),    w = √( log(2K/δ) / 2n ),    so that    r ≤ true reward ≤ r + 2w

at all of them together with probability 1 - δ (Hoeffding, both sides, K pairs: own proof). Lower rewards keep a method
right that works from below: if v ≤ T_π v with them, so it is with the true ones, hence v ≤ V^π. The same holds of
Σ_k F_k(s,a) r_k with anchors, because F ≥ 0 and the weights of a pair sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FloatArray, Problem

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
    table: FloatArray
    try:
        table = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.ndim != 2 or not ((table >= 0) & (table <= 1)).all():
        raise InvalidInput("rewards must be a table (S, A) of mean rewards in [0, 1]; leave it out to learn them.")
    rows: Any = table.tolist()
    return tuple(tuple(row) for row in rows)


def why_not_these(table: Sequence[Sequence[float]] | None, problem: Problem) -> str:
    """Say why known rewards do not fit the problem; empty if they do."""
    if table is None or (len(table), len(table[0]) if table else 0) == problem.mask.shape:
        return ""
    return f"rewards must have shape (S, A) = {problem.mask.shape}, one mean reward for each pair."


def known_rewards(table: Sequence[Sequence[float]] | None) -> FloatArray | None:
    """Return a table as an array (S, A)."""
    return None if table is None else np.asarray(table, dtype=np.float64)


def lower_rewards(sums: FloatArray, samples: int, delta: float) -> FloatArray:
    """Lower estimates from the sums (K,) of `samples` rewards at each pair."""
    width = sqrt(log(2 * len(sums) / delta) / (2 * samples))
    return np.maximum(sums / samples - width, 0.0)
