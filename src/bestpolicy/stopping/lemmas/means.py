"""The mean of bounded variables, bounded from above (Lemma K) and from below (Lemma L) at all times at once.

**Lemma K.** X_1, X_2, … are independent with one law on [0, B] and mean m. For c ≥ 0 put

    m⁺(x_1, …, x_n; c) = min over ν ≥ B of  ν - e^-c·(Π_i (ν - x_i))^(1/n).

With c_n = (log(1/δ) + log(2√(n+1)))/n, with probability at least 1-δ: m ≤ m⁺(X_1, …, X_n; c_n) at every n ≥ 1. In place
of the minimum *any* ν ≥ B may be taken, and m⁺ does not decrease in any x_i, in B, or in c.

*Proof.* If m = B then all X_i are B, and ν - e^-c(ν-B) ≥ B for c ≥ 0. Else let m < B. For u in [0, 1] the product
M_n(u) = Π_i (1-u + u(B-X_i)/(B-m)) has non-negative factors of mean 1: it is a non-negative martingale with M_0 = 1. So
is its average W_n over u with the law Beta(1/2, 1/2). The product is Σ_k e_k u^k(1-u)^(n-k) with e_k ≥ 0; for each k
the average of u^k(1-u)^(n-k) is at least 1/(2√(n+1)) of its largest value (Cover and Ordentlich 1996), so max_u M_n(u)
≤ 2√(n+1)·W_n. By Ville's inequality, with probability at least 1-δ, W_n < 1/δ at all n, hence Σ_i
log(1-u+u(B-X_i)/(B-m)) ≤ n·c_n for all n and u. Given ν ≥ B take u = (B-m)/(ν-m) in (0, 1]. Then 1-u+u(B-X_i)/(B-m) =
(ν-X_i)/(ν-m), so the geometric mean of ν-X_i is at most e^(c_n)(ν-m): m ≤ ν - e^(-c_n)·(Π(ν-X_i))^(1/n). Each of these
bounds grows with x_i and c, and a larger B leaves fewer ν to choose from.

*Sums are enough.* Let X = min(b, R + y) for several samples with one y, of whose rewards R in [0, 1] only the sum is
known, and t = min(1, b - y) > 0. The function φ(r) = log(ν - min(b, r+y)) is concave and decreasing up to r = t, and
constant after. So φ(r) ≥ φ(0) - (r/t)(φ(0) - φ(t)) for all r in [0, 1]: of N samples with sum R, min(N, R/t) at y + t
and the others at y give a larger m⁺ than the samples do. For rewards of 0 and 1 nothing is lost.

**Lemma L.** X_1, X_2, … are independent with one law on [0, b] and mean v; λ_1, …, λ_J in (0, 0.55]. Put ξ_i =
(X_i-m)/b and

    T_n(m) = (1/J) Σ_j exp(λ_j Σ_i ξ_i + (log(1-λ_j) + λ_j) Σ_i ξ_i²).

With probability at least 1-δ, at all n: v ≥ inf{m in [0, mean of X_1..X_n] : T_n(m) < 1/δ}. It needs n, ΣX and ΣX²
only.

*Proof.* exp(λξ + ξ²(log(1-λ)+λ)) ≤ 1 + λξ for ξ ≥ -1 and λ in [0, 1) (Fan, Grama, Liu 2015), and X_i ≥ 0, v ≤ b make
ξ_i ≥ -1 at m = v. So T_n(v) is at most the mixture of the martingales Π(1+λ_jξ_i), and stays below 1/δ with probability
at least 1-δ (Ville). With a = (mean - m)/b in [0, 1] the exponent is n(λa - |ψ|(a² + sample variance/b²)), ψ =
log(1-λ)+λ, whose derivative in a is n(λ - 2|ψ|a) > 0 for a ≤ 1, because λ/(2|ψ|) > 1.1 for λ ≤ 0.55: T_n decreases in m
up to the mean, where it is at most 1. So v < inf{…} would mean T_n(v) ≥ 1/δ.
"""

from __future__ import annotations

from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray

_SEARCH = 8  # improvements of ν: any ν is allowed, and the third is mostly right to four digits
_ROOM = 1e-11  # relative to ν: more than all rounding errors
LARGEST_BET, BETS, RATIO = 0.55, 24, 1.6
_BISECTIONS = 60


def nats_upwards(counts: FloatArray, delta: float) -> FloatArray:
    """Return c_n of Lemma K."""
    nats: FloatArray = (-log(delta) + np.log(2 * np.sqrt(counts + 1))) / counts
    return nats


def highest_means(
    points: FloatArray, weights: FloatArray, rows: IntArray, nats: FloatArray, top: FloatArray
) -> FloatArray:
    """Return m⁺ of several samples at once, rounded up.

    Parameters
    ----------
    points, weights : array (P,)
        Where samples lie, and how many do; weights are positive.
    rows : int array (P,)
        To which of n samples they belong; each has some.
    nats, top : array (n,)
        c and B.
    """
    size = len(nats)

    def total(values: FloatArray) -> FloatArray:
        return np.bincount(rows, weights=values, minlength=size).astype(np.float64, copy=False)

    share = weights / total(weights)[rows]
    mean = total(share * points)
    spread = total(share * (points - mean[rows]) ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.ones(size, np.bool_)
        free[rows[points >= top[rows]]] = False  # where no sample lies at B, B itself may be the best ν
        best = np.where(free, top - np.exp(total(share * np.log(top[rows] - points)) - nats), top)
        best = np.where(free, best + _ROOM * top, top)
        least = top + 1e-3 * (top - mean) + 1e-300  # closer ones are hardly better
        nu = np.maximum(mean + np.sqrt(spread / (2 * nats)), least)  # right if ν is large
        low, high = least, np.full(size, np.inf)  # the best ν lies between
        for _ in range(_SEARCH):
            gaps = nu[rows] - points
            centre, inverse = total(share * np.log(gaps)), total(share / gaps)
            bound = nu - np.exp(centre - nats) + _ROOM * nu
            best = np.fmin(best, bound)  # not a number where all samples lie at B
            excess = np.maximum(centre + np.log(inverse), 0.0)  # falls from ∞ or less to 0; the best ν has c
            low, high = np.where(excess > nats, nu, low), np.where(excess > nats, high, nu)
            proposed = np.fmax(mean + (nu - mean) * np.sqrt(excess / nats), least)
            inside = (proposed > low) & (proposed < high)
            halfway = top + np.sqrt((low - top) * np.minimum(high - top, 1e3 * top))
            nu = np.where(inside, proposed, halfway)
    return np.minimum(best, top)


def lowest_mean(count: int, total: float, squares: float, limit: float, delta: float) -> float:
    """Return the bound of Lemma L, rounded down; 0 without samples."""
    if count < 1:
        return 0.0
    bets = LARGEST_BET * RATIO ** -np.arange(BETS, dtype=np.float64)
    psi = np.log1p(-bets) + bets
    mean = min(max(total / count, 0.0), limit)
    variance = max(squares / count - mean**2, 0.0) / limit**2 * (1 + 1e-12) + 1e-15

    def is_refuted(value: float) -> bool:
        distance = (mean - value) / limit
        exponents = count * (bets * distance + psi * (distance**2 + variance))
        largest = float(exponents.max())
        return largest + log(float(np.exp(exponents - largest).mean())) >= -log(delta) * (1 + 1e-12)

    low, high = 0.0, mean  # the mean itself is never refuted
    if not is_refuted(low):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return max(0.0, low - 1e-12 * limit)


def samples_needed(width: float, variance: float, limit: float, delta: float) -> float:
    """About how many samples of some variance bring the bound of Lemma L so close to their mean."""
    nats = -log(delta) + log(BETS) / 2  # several neighbouring bets are nearly the best
    return nats * (2 * variance / width**2 + 2 * limit / width)


__all__ = ["highest_means", "lowest_mean", "nats_upwards", "samples_needed"]
