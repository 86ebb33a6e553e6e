"""Kullback-Leibler balls around frequencies: how large they must be, and the largest mean inside.

**Size.** Let p̂ be the frequencies of m outcomes in n independent draws from p. With probability at least 1 - δ, at
all n together,

    n·KL(p̂, p) ≤ log(1/δ) + log C(n+m-1, m-1) ≤ log(1/δ) + (m-1)·log(e(1 + n/(m-1))).

*Proof.* For a law q the likelihood ratio Π q(x_i)/p(x_i) is a martingale with mean 1; so is its average W over q
uniform in the simplex, W = C⁻¹·(Π n_j!/n!)/Π p_j^{n_j} with C = C(n+m-1, m-1). One term of the multinomial theorem is
at most their sum, n!/Π n_j!·Π p̂_j^{n_j} ≤ 1, so W ≥ C⁻¹·Π (p̂_j/p_j)^{n_j} = C⁻¹·exp(n·KL(p̂, p)). W reaches 1/δ at
some n with probability at most δ (Ville). Last, C(N, k) ≤ (eN/k)^k.

*Means of variables in [0, 1]* obey it with m = 2, n·kl(mean, μ) ≤ log(1/δ) + log(e(1+n)): x ->
(q/μ)^x((1-q)/(1-μ))^{1-x} is convex, so its mean is at most that of a coin, which is 1; and g(a) = log Γ(a+1) - a·log
a is concave (its second derivative is Σ_{k≥1} 1/(a+k)² - 1/a < 0) with g(0) = 0, hence subadditive, which replaces the
multinomial theorem for sums that are no whole numbers.

**Largest mean.** For f ≥ 0 on the outcomes (those without draws included)

    max { q·f : KL(p̂, q) ≤ c } = min_{ν ≥ max f} ν - e^{-c} Π_j (ν - f_j)^{p̂_j},

and *every* ν ≥ max f gives an upper bound, so that the search for the best one may end anywhere.

*Proof* of the bound. Σ q_j(ν - f_j) ≥ Σ_{p̂_j > 0} p̂_j·(q_j/p̂_j)(ν - f_j) ≥ Π ((q_j/p̂_j)(ν - f_j))^{p̂_j} =
e^{-KL(p̂, q)} Π (ν - f_j)^{p̂_j} by the inequality of weighted means. Equality where q ∝ p̂/(ν - f), with the rest of
q at the largest f if ν = max f. As a function of ν the right side is convex (a geometric mean is concave).
"""

from __future__ import annotations

from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray

_GRID = 17  # values of log(ν - max f) that are tried first
_STEPS = 5  # of Newton's method from the best of them
_SMALLEST = 1e-12  # radius: a smaller one would take ν so far away that digits are lost
_NEAREST = 1e-9  # to the largest f, in units of the span, at which to look for ν


def threshold(delta: float, pulls: FloatArray, outcomes: int) -> FloatArray:
    """x(δ, n, m), which n·KL(p̂, p) exceeds at some n with probability at most δ."""
    free = outcomes - 1
    limit: FloatArray = log(1 / delta) + free + free * np.log1p(pulls / max(free, 1))
    return limit


def largest_means(frequencies: FloatArray, values: FloatArray, radius: FloatArray) -> FloatArray:
    """Return max q·f over KL(p̂, q) ≤ c, for each row; from above, to about seven digits.

    Parameters
    ----------
    frequencies : array (K, m)
        p̂. A row of zeros, of a pair without draws, gives max f.
    values : array (K, m) or (m,)
        f.
    radius : array (K,)
        c ≥ 0; inf gives max f.
    """
    values = np.broadcast_to(values, frequencies.shape)
    top = values.max(axis=1)
    below = top[:, None] - values
    span = np.maximum(below.max(axis=1), 1e-300)
    known = (frequencies.sum(axis=1) > 0) & (radius < np.inf)
    radius = np.where(known, np.maximum(radius, _SMALLEST), 1.0)
    share = np.where(known, np.exp(-radius), 0.0)

    distance = below / span[:, None]

    def bound(above: FloatArray) -> FloatArray:
        """Of ν = max f + above, (K, G), in units of the span."""
        means = np.einsum("kj,kgj->kg", frequencies, np.log(above[:, :, None] + distance[:, None, :]))
        found: FloatArray = above - share[:, None] * np.exp(means)
        return found

    # The best ν is at most mean + span/√c, roughly: the deviation is below √(2c)·span.
    low, high = log(_NEAREST), np.log(2 + 1 / np.sqrt(radius))
    step = (high - low) / (_GRID - 1)
    tried = np.exp(low + step[:, None] * np.arange(_GRID))
    values = bound(tried)
    place = values.argmin(axis=1)
    best, position = values.min(axis=1), low + step * place
    for _ in range(_STEPS):  # the derivative in log ν vanishes: Σp̂·log(ν-f) + log Σp̂/(ν-f) = c
        above = np.exp(position)
        inverse = 1 / (above[:, None] + distance)
        first, second = (frequencies * inverse).sum(axis=1), (frequencies * inverse**2).sum(axis=1)
        first = np.maximum(first, 1e-300)
        excess = -(frequencies * np.log(inverse)).sum(axis=1) + np.log(first) - radius
        slope = np.minimum(above * (first - second / first), -1e-300)
        position = np.clip(position - np.clip(excess / slope, -step, step), low, high)
        best = np.minimum(best, bound(np.exp(position)[:, None])[:, 0])
    # ν = max f is best where the largest f was never met.
    met_top = ((frequencies > 0) & (distance == 0)).any(axis=1)
    away = np.where(distance > 0, distance, 1.0)
    at_top = np.where(met_top, 0.0, -share * np.exp((frequencies * np.log(away)).sum(axis=1)))
    means: FloatArray = top + span * np.minimum(np.minimum(best, at_top), 0.0)
    return np.where(known, means, top)
