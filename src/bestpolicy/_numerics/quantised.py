"""Decisions that do not hang on the last bit.

Processors round differently: the order in which a matrix product adds up its terms depends on the kernel that the
BLAS library picks for them, and so do a few functions of NumPy. Estimates may differ by that, in digits that nobody
reads. What is *decided* from them must not: which pairs to sample and how often, which of two tied actions to play,
which random numbers a simulator draws. So whatever is decided is first rounded to a grid that is coarse against
rounding errors and fine against everything that matters; and what is drawn from is added up term by term. Sums,
products, quotients and square roots of single numbers are the same on every processor.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray

_SIGNIFICANT_BITS = 30
_TIED = 1e-10  # actions closer than this, relative to the largest value, are tied: rounding errors are far smaller


def steady(values: FloatArray) -> FloatArray:
    """Round to nine digits, so that numbers that differ by rounding errors only are equal."""
    fraction, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.rint(fraction * 2.0**_SIGNIFICANT_BITS), exponent - _SIGNIFICANT_BITS)
    return rounded


def grid_shares(weights: FloatArray, step: float) -> FloatArray:
    """Round shares to whole multiples of a power of two of at most `step`, and let them sum to 1 again."""
    units = np.rint(weights * 2.0 ** ceil(-log2(step)))
    shares: FloatArray = units / units.sum()
    return shares


def greedy(q_values: FloatArray) -> IntArray:
    """Best action (…,) for values (…, A); of tied ones the first."""
    finite = np.where(np.isfinite(q_values), q_values, 0.0)
    best = q_values.max(axis=-1, keepdims=True)
    chosen: IntArray = (q_values >= best - _TIED * np.abs(finite).max(initial=0.0)).argmax(axis=-1).astype(np.int64)
    return chosen


def ordered_product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return left·rightᵀ, (n, m), for matrices (n, d) and (m, d), adding up column by column."""
    product = np.zeros((len(left), len(right)))
    for column, entries in enumerate(left.T):
        rows = np.flatnonzero(entries)
        if len(rows) < len(left):
            product[rows] += entries[rows, None] * right[:, column]
        else:
            product += entries[:, None] * right[:, column]
    return product
