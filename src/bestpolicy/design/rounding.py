"""From weights to whole numbers of pulls.

Stride scheduling: pull j = 0, 1, 2, ... of pair k is due at time j / w_k, and pulls are made in the order of these
times, ties going to the smaller k. The counts after N pulls depend on the weights and N alone, so a run can be
stopped, resumed or split at any N. Let K be the number of pairs. Before time N - K, pair k is due
ceil((N - K) w_k) times, which makes fewer than N pulls in all; so all of these are among the first N, and

    counts >= (N - K) w,        Gram(counts) >= (N - K) Lambda(w).

The arithmetic is exact: floats are fractions, and Python's integers are as long as need be.
"""

from __future__ import annotations

import heapq
import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bestpolicy._numerics.arrays import as_numbers
from bestpolicy._numerics.inputs import shown
from bestpolicy.errors import InvalidInput


def rounded_counts(weights: ArrayLike, total: SupportsIndex) -> NDArray[np.int64]:
    """Pulls of each pair among the first `total` pulls of the schedule with these weights.

    Parameters
    ----------
    weights : array_like, shape (K,)
        Positive weights. Only their ratios matter.
    total : int
        Number of pulls, from 0 to 2^63 - 1.

    Returns
    -------
    ndarray of int64, shape (K,)
        Counts with sum `total`. They never decrease when `total` grows.
    """
    shares = _integer_shares(weights)
    budget = _budget(total)
    pairs = len(shares)
    due = max(budget - pairs, 0)
    whole = sum(shares)
    counts = [-(-due * share // whole) for share in shares]
    # Fractions with denominators below 2^b differ by more than 2^(-2 b): these integers sort as count / share does.
    bits = 2 * max(shares).bit_length()
    queue = [((count << bits) // share, pair) for pair, (count, share) in enumerate(zip(counts, shares, strict=True))]
    heapq.heapify(queue)
    for _ in range(budget - sum(counts)):
        pair = queue[0][1]
        counts[pair] += 1
        heapq.heapreplace(queue, ((counts[pair] << bits) // shares[pair], pair))
    return np.array(counts, dtype=np.int64)


def _integer_shares(weights: ArrayLike) -> list[int]:
    """Integers in exactly the ratios of the weights."""
    values = as_numbers("weights", weights).astype(np.float64, copy=False)
    if values.ndim != 1 or len(values) == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise InvalidInput(f"weights must be a non-empty vector of positive finite numbers. Got {shown(weights)}.")
    ratios = [value.as_integer_ratio() for value in values.tolist()]
    denominator = max(below for _, below in ratios)
    return [above * (denominator // below) for above, below in ratios]


def _budget(total: SupportsIndex) -> int:
    try:
        budget = operator.index(total)
    except TypeError:
        budget = -1
    if not 0 <= budget < 2**63:
        raise InvalidInput(f"total must be an integer from 0 to 2^63 - 1. Got {shown(total)}.")
    return budget
