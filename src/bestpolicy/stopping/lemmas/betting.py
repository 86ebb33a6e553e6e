"""Bets on single directions of independent noise (Lemma E), and on sums whose weights nobody knows (Lemma J).

Setting. Given the past F0, X_ki (i = 1, …, n_k) are independent over pairs k and samples i, identically distributed in
i, with mean μ_k. A direction y over pairs, centres m_k and a bet λ > 0 are fixed by F0 (they may be unknown: they must
be no function of the samples). ψ(b) = (-log(1-b) - b)/b², ψ(0) = 1/2, which increases.

**Lemma E.** Let β ≥ max_k max(y_k⁺·ess sup(m_k - X_k), y_k⁻·ess sup(X_k - m_k))/n_k and λβ < 1. With probability at
least 1 - e^-l

    Σ_k y_k (X̄_k - μ_k) ≤ l/λ + λψ(λβ)G,      G = Σ_k (y_k²/n_k) · (1/n_k) Σ_i (X_ki - m_k)².

*Proof.* (z - log(1+z))/z² decreases on (-1, ∞), so log(1+z) ≥ z - ψ(b)z² for z ≥ -b, b < 1. Let t_k = λy_k/n_k and z =
t_k(X_ki - m_k), which is at least -λβ. Then E exp(z - ψz²) ≤ E(1 + z) = 1 + t_k(μ_k - m_k) ≤ exp(t_k(μ_k - m_k)): the
mean of exp(t_k(X_ki - μ_k) - ψ·t_k²(X_ki - m_k)²) is at most 1. Multiply over the samples; Markov; divide by λ.

*Looks are free.* With counts n_k = c·n0_k and λ = c·λ0 the stake of a sample, t_k = λ0·y_k/n0_k, is the same at every
c, and λβ and ψ too: the products at c = c_1 < c_2 < … are a supermartingale, and by Ville's inequality the lemma holds
at all c at once. In these units

    width = (l/c)/λ0 + λ0·ψ(λ0·β0)·G0,      β0 and G0 with n0_k in place of the first n_k.

A larger β or G only weakens the bound, so both may be replaced by bounds that the samples give (where those make λβ ≥ 1
the width is infinite). With G = 0, all as predicted, λ → 1/β gives l·β: of the direction only its largest entry counts.

**Lemma J.** Let E[exp(λ_k e_k - pen_k)] ≤ 1 given F0 for k = 1, …, K, the bets λ_k > 0 and weights o_k ≥ 0 fixed by F0;
the weights may be unknown. With probability at least 1 - e^-l

    Σ_k o_k e_k ≤ Σ_k o_k (l + pen_k)/λ_k,

at all looks at once if the exponentials are values of non-negative supermartingales that start at 1.

*Proof.* q_k = (o_k/λ_k)/Σ_i(o_i/λ_i) is a fixed law, so M = Σ q_k exp(λ_k e_k - pen_k) has mean at most 1 (is a
supermartingale), and log M ≤ l with probability at least 1 - e^-l (Markov; Ville). The logarithm is concave: Σ q_k(λ_k
e_k - pen_k) ≤ log M ≤ l. Multiply by Σ_i o_i/λ_i.

No union over k is paid, and every k keeps its own bet. What is *not* claimed is the bound for a single k.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray

_NEWTON_STEPS = 6
_LARGEST = 0.88  # of λβ: a bet leaves room for ranges that turn out a little larger


def psi(b: FloatArray) -> FloatArray:
    """Return (-log(1-b) - b)/b² for 0 ≤ b < 1, inf beyond."""
    inside = np.clip(b, 0.0, 1 - 1e-12)
    small = inside < 1e-4
    safe = np.where(small, 0.5, inside)
    value = np.where(small, 0.5 + inside / 3 + inside**2, (-np.log1p(-safe) - safe) / safe**2)
    return np.where(b < 1, value, np.inf)


def width(nats: float, bets: FloatArray, squares: FloatArray, reach: FloatArray) -> FloatArray:
    """Right side of Lemma E in units: l/λ + λψ(λβ)G; inf where λβ ≥ 1.

    Parameters
    ----------
    nats : float
        l/c.
    bets, squares, reach : arrays of one shape
        λ0, G0 and β0.
    """
    allowed = bets * reach < 1
    bound = nats / bets + bets * psi(np.where(allowed, bets * reach, 0.0)) * squares
    return np.where(allowed, bound, np.inf)


def best_bets(nats: float, squares: FloatArray, reach: FloatArray) -> FloatArray:
    """Return bets that make `width` small for the squares and ranges that are expected.

    The best x = λβ solves x/(1-x) + log(1-x) = l·β²/G; a Newton step from above stays above (the left side is convex).
    Any bet is allowed, so nothing hangs on its digits.
    """
    reach = np.maximum(reach, 1e-300)
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.minimum(nats * reach**2 / np.maximum(squares, 1e-300), 1e9)
    first = ratio + np.sqrt(2 * ratio) + 1e-150  # x/(1-x), from above, and exact for small ratios
    odds = np.maximum(first, 1e-4)
    for _ in range(_NEWTON_STEPS):
        odds = np.maximum(odds - (odds - np.log1p(odds) - ratio) * (1 + odds) / odds, 1e-4)
    odds = np.where(first > 1e-3, odds, first)
    bets: FloatArray = np.minimum(odds / (1 + odds), _LARGEST) / reach
    return bets
