"""Largest mean over a Kullback-Leibler ball.

    kl_max(p, f, c) = max { q·f : KL(p, q) ≤ c },      the smallest is -kl_max(p, -f, c).

By duality (Filippi, Cappé, Garivier 2010): let f* = max f and, for u > 0,

    g(u) = Σ p log(f* + u - f) + log Σ p / (f* + u - f),

which decreases from g(0) to 0. The maximiser is q ∝ p / (f* + u - f) with g(u) = c. If f* is attained only where p =
0 and g(0) < c, then u = 0, q ∝ p / (f* - f) keeps the share z = exp(g(0) - c) of the mass, and the rest goes to where
f = f*. With f scaled to [0, 1], g(u) ≤ 1/(4u²) (Kantorovich's inequality), so the root lies below 1/(2√c); it is
found by bisection of log u.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray

_SMALLEST = 1e-300  # a root below it makes no difference to q·f
_BISECTIONS = 70  # of an interval of log u that is at most 1400 long


def kl_max(p: FloatArray, f: FloatArray, radius: FloatArray | float) -> FloatArray:
    """Return max q·f over KL(p, q) ≤ radius, for each row of p.

    Parameters
    ----------
    p : array (K, S)
        Distributions. A row of zeros, of a pair without samples, gives max f.
    f : array (S,)
    radius : array (K,) or float
        c ≥ 0, may be inf.

    Returns
    -------
    array (K,)
    """
    radius = np.broadcast_to(np.asarray(radius, dtype=np.float64), p.shape[:1])
    top, span = f.max(), np.ptp(f)
    values = np.full(len(p), top)
    if span <= 1e-13 * max(1.0, abs(top)):  # nothing to gain, and nothing to divide by
        return values
    below = (top - f) / span  # distance from the top, in [0, 1]
    sampled = p.sum(axis=1) > 0
    still = sampled & (radius <= 0)
    values[still] = p[still] @ f
    moving = np.flatnonzero(sampled & (radius > 0) & (radius < np.inf))
    if len(moving):
        values[moving] = top - span * _least_distance(p[moving], below, radius[moving])
    return values


def _least_distance(p: FloatArray, below: FloatArray, radius: FloatArray) -> FloatArray:
    """Smallest q·below for rows with 0 < radius < inf."""
    at_top = below == 0
    distances = np.empty(len(p))
    # g(0), where the top has no mass; elsewhere it is infinite.
    away = np.where(at_top, 1.0, below)
    with np.errstate(divide="ignore"):  # of rows that have all their mass at the top
        at_zero = np.where((p[:, at_top] > 0).any(axis=1), np.inf, p @ np.log(away) + np.log(p @ (~at_top / away)))
    outside = at_zero < radius
    kept = np.exp(at_zero[outside] - radius[outside])
    distances[outside] = kept * p[outside].sum(axis=1) / (p[outside] @ (~at_top / away))
    inside = np.flatnonzero(~outside)
    if len(inside):
        log_u = _root(p[inside], below, radius[inside])
        weights = p[inside] / (np.exp(log_u)[:, None] + below)
        distances[inside] = (weights @ below) / weights.sum(axis=1)
    return distances


def _root(p: FloatArray, below: FloatArray, radius: FloatArray) -> FloatArray:
    """log u with g(u) = radius, by bisection."""
    low = np.full(len(p), np.log(_SMALLEST))
    high = np.maximum(-np.log(2) - 0.5 * np.log(radius), low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_small = _dual(p, below, np.exp(middle)) > radius
        low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
    found: FloatArray = high
    return found


def _dual(p: FloatArray, below: FloatArray, u: FloatArray) -> FloatArray:
    """g(u), in a form that does not cancel: for large u both terms are small numbers."""
    ratio = below / u[:, None]
    mean = (p / (1 + ratio)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of the branch that is not taken
        logarithm = np.where(u > 1, np.log1p(-(p * ratio / (1 + ratio)).sum(axis=1)), np.log(mean))
    dual: FloatArray = (p * np.log1p(ratio)).sum(axis=1) + logarithm
    return dual
