"""Limits of the mean of a bounded variable by betting against them (Lemma W), from sums on a grid.

**Lemma W** (Waudby-Smith and Ramdas 2024). Y_1, Y_2, … are independent with mean m in [a, b]; λ ∈ [0, 1/(b-a)) is
fixed. Put C_n(u) = Σ_{i≤n} log(1 + λ(u - Y_i)) for u ∈ [a, b]. With probability at least 1 - e^-l, for all n at once, m
< u for every u ∈ [a, b] with C_n(u) ≥ l.

*Proof.* 1 + λ(m - Y_i) > 0 has mean 1, so exp C_n(m) is a non-negative martingale that starts at 1, and by Ville's
inequality stays below e^l with probability at least 1 - e^-l. C_n increases in u: C_n(u) ≥ l > C_n(m) implies u > m. ∎

*Grid.* C_n is a sum over samples at every fixed u, and it is concave in u (a sum of logarithms of affine functions). So
between two points u_1 < u_2 of a grid with C_n(u_1) < l ≤ C_n(u_2) it lies above its chord, and the u at which the
chord reaches l has C_n(u) ≥ l: that is the limit, b if no point of the grid reaches l. Its mirror image, with 1 + λ(Y_i
- u) and a grid that is read from above, gives lower limits.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.samples import Bets, Drawn


def limits(bets: Bets, drawn: Drawn, low: FloatArray, high: FloatArray, nats: float) -> FloatArray:
    """Return upper limits of the means of functions on side 1, and lower ones of those on side -1, (F, stages, K).

    Parameters
    ----------
    bets : Bets
    drawn : Drawn
    low, high : arrays (F, stages, K)
        Range of Y.
    nats : float
        l.
    """
    reach = bets.stakes * (high - low)
    if not (reach < 1).all():
        raise ValueError("a stake is too large for the range of its outcomes")
    largest = -np.log1p(-reach)
    rounding = drawn.counts.astype(np.float64) ** 2 * 2.0**-50 * largest
    level = nats + rounding
    gains = drawn.gains
    upper = bets.sides[:, None, None] > 0
    # Read every grid from the side where gains are small: from below for upper limits, from above for lower ones.
    grid = np.where(upper[..., None], bets.grid, bets.grid[..., ::-1])
    gains = np.where(upper[..., None], gains, gains[..., ::-1])
    enough = gains >= level[..., None]
    first = enough.argmax(axis=-1)
    at = np.take_along_axis(grid, first[..., None], axis=-1)[..., 0]
    gain = np.take_along_axis(gains, first[..., None], axis=-1)[..., 0]
    before = np.maximum(first - 1, 0)[..., None]
    from_, less = (np.take_along_axis(each, before, axis=-1)[..., 0] for each in (grid, gains))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((first > 0) & (gain > less), (level - less) / (gain - less), 1.0)
    chord = from_ + np.clip(share, 0.0, 1.0) * (at - from_)
    ends = np.where(upper, high, low)
    found: FloatArray = np.where(enough.any(axis=-1), chord, ends)
    return found
