"""Upper bounds on the variances of R + γV*(S'), at all times and all sampled pairs.

**Lemma V.** X_1, X_2, … i.i.d. in an interval of length Λ with variance v; V̂_n the sample variance (n-1 in
the denominator). For n_0 ≥ 2, m = ⌊n_0/2⌋ and l > 0, with probability at least 1 - e^{-l}, for *all* n ≥ n_0
together,

    v ≤ V̂_n + 2b√v,  that is  √v ≤ b + √(V̂_n + b²),      b = (Λ/2)√(l/m).

*Proof.* Z = (X-X')²/2 has mean v, lies in [0, Λ²/2], so E e^{-λZ} ≤ 1 - λv + λ²E[Z²]/2 ≤ exp(-λv + λ²Λ²v/4).
V̂_{n_0} is the average of (X_i-X_j)²/2 over pairs, i.e. the average over all orders of the mean of m disjoint
pairs; by Jensen E exp(-mλV̂_{n_0}) ≤ exp(-mλv + mλ²Λ²v/4). A U-statistic is a reverse martingale, so
exp(-mλV̂_n), n ≥ n_0, is a reverse submartingale and Doob's maximal inequality gives the same bound for the
smallest of all later V̂_n as for V̂_{n_0}. Markov with λ = (2/Λ)√(l/(mv)).

(For one fixed n the result is the step before last of Maurer and Pontil 2009, Theorem 10, whose final form √v
≤ √V̂ + 2b is weaker.)

The n-th sample of a pair is i.i.d. whatever the sampling rule. Taking the lemma at n_1 < n_2 < … (ratio 5/4)
with confidence δ/(K i(i+1)) each, K the number of (stage, pair)s that may be sampled, all bounds hold at all
times with probability at least 1-δ.

V* is unknown; the sample standard deviation is a seminorm, so that of R + γV*(S') is at most that of R +
γV̂(S') plus γ times that of V* - V̂, which the caller bounds.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.samples import Tally
from bestpolicy.stopping.coordinates import EPS


def _grid() -> IntArray:
    sizes = [2]
    while sizes[-1] < 10**17:
        sizes.append(max(sizes[-1] + 1, sizes[-1] * 5 // 4))
    return np.array(sizes, dtype=np.int64)


GRID = _grid()


def sample_variances(tally: Tally, values: FloatArray, continuation: float) -> FloatArray:
    """Sample variance of R + γV(S') at each stage and pair, (stages, K), not smaller for rounding; 0 where n < 2.

    Parameters
    ----------
    tally : Tally
    values : array (stages, S)
        V at the state that follows each stage.
    continuation : float
        γ.
    """
    pulls = np.maximum(tally.pulls, 1)
    counts = tally.next_counts
    centre = (counts @ values[:, :, None])[:, :, 0] / pulls
    # Values are centred pair by pair: otherwise a large common level would drown the variance in rounding.
    moved = continuation * (values[:, None, :] - centre[:, :, None])
    first = tally.reward_sums + (counts * moved).sum(axis=2)
    second = tally.squared_rewards + ((2 * tally.next_rewards + counts * moved) * moved).sum(axis=2)
    spread: FloatArray = np.clip(second - first**2 / pulls, 0.0, None)
    # Numbers in an interval of this length are squared, and their sums over S states and over the samples rounded;
    # sums of rewards that are all 0 or 1 are exact.
    length = 1 + continuation * np.ptp(values, axis=1)[:, None]
    added = np.where(tally.squared_rewards == tally.reward_sums, 0, pulls)
    room = (4 * (counts.shape[2] + 8) * length**2 + added) * EPS
    variances: FloatArray = spread / np.maximum(pulls - 1, 1) + np.where(tally.pulls > 1, 2 * room, 0.0)
    return variances


def deviation_terms(pulls: IntArray, ranges: FloatArray, delta: float) -> FloatArray:
    """b of Lemma V at each stage and pair, (stages, K); inf where n < 2.

    Parameters
    ----------
    pulls : int array (stages, K)
    ranges : array (stages,)
        Λ: length of the interval that R + γV*(S') lies in.
    delta : float
    """
    index = np.searchsorted(GRID, pulls, side="right")  # 1-based position of the last grid point ≤ n; 0 if n < 2
    start = GRID[np.maximum(index - 1, 0)]
    log_terms = np.log(pulls.size * np.maximum(index, 1) * (index + 1.0) / delta)
    terms = ranges[:, None] / 2 * np.sqrt(log_terms / (start // 2))
    return np.where(index > 0, terms, np.inf)


def variance_bounds(sample_deviations: FloatArray, terms: FloatArray, ranges: FloatArray) -> FloatArray:
    """v̄ ≥ Var(R + γV*(S')) at each stage and pair, (stages, K).

    Parameters
    ----------
    sample_deviations : array (stages, K)
        Bounds on the sample standard deviation of R + γV*(S').
    terms : array (stages, K)
        b of Lemma V.
    ranges : array (stages,)
        Λ; a variable in an interval of that length has variance at most Λ²/4.
    """
    finite = np.where(np.isfinite(terms), terms, 0.0)
    bound = (finite + np.sqrt(sample_deviations**2 + finite**2)) ** 2
    crude = np.broadcast_to(ranges[:, None] ** 2 / 4, bound.shape)
    return np.where(np.isfinite(terms), np.minimum(bound, crude), crude)
