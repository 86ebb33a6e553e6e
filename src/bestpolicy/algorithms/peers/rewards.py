"""Mean rewards, for the algorithms whose papers take them as known.

The user may know them and say so, as a table (S, A). Otherwise they are learned, in lower estimates of r + γv(s'), at
the pairs from which all others follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem

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
