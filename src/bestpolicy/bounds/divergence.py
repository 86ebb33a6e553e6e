"""Kullback-Leibler divergences: how well one sample tells two models apart.

A sample of a pair (s, a) is a reward and a next state. If the two are *independent given the pair in both models*,
which is assumed throughout this room, the divergence of the joint laws is the sum [TJP eq. KLMDP]

    KL_{M|M'}(s, a) = KL(q_M || q_M') + KL(p_M || p_M'),

and for Bernoulli rewards the first term is kl(r, r'). It is infinite unless M is absolutely continuous with respect
to M' (what can happen in M can happen in M').

Near-identical models have divergences of second order, far below the first-order terms of Σ p log(p/p'). They are
therefore computed from the *difference* δ = p' - p: with f(u) = u - log(1+u) ≥ 0,

    KL(p || p + δ) = Σ_{p>0} p f(δ/p) + Σ_{p=0} δ,

in which nothing cancels (the two forms agree because Σδ = 0).

What a divergence implies for means of f ∈ [0, M_f], with z = |E_p f - E_p' f|:

* Pinsker, i.e. Hoeffding's lemma with Donsker-Varadhan: KL ≥ 2 z²/M_f², and 2 cannot be improved. The paper states
  the weaker constant 6/5 [TJP Lem 10]; its proof has a slip, its statement is true.
* With a small variance under p more is true, the "refined bound" that the paper announces: KL ≥ min(z²/(12 Var_p f),
  z/(5 M_f)). It follows from Bernstein's inequality and Var_p' f ≤ 2 Var_p f + 4 M_f² KL.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, as_numbers
from bestpolicy._numerics.inputs import number, of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP

PAPER_CONSTANT = 6 / 5
"""k in KL ≥ k z²/M_f², as printed in the paper."""
PINSKER_CONSTANT = 2.0
"""The largest k for which KL ≥ k z²/M_f² holds."""

_SERIES_TERMS = 10
_SERIES_RADIUS = 0.2


def bernoulli_kl(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """kl(x, y) = x log(x/y) + (1-x) log((1-x)/(1-y)), elementwise; inf where y excludes what x allows."""
    first, second = (as_numbers(name, value).astype(np.float64) for name, value in (("x", x), ("y", y)))
    for name, probabilities in (("x", first), ("y", second)):
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise InvalidInput(f"{name} must be probabilities in [0, 1].")
    try:
        first, second = np.broadcast_arrays(first, second)
    except ValueError:
        raise InvalidInput(f"x and y must have shapes that fit. Got {first.shape} and {second.shape}.") from None
    return reward_divergence(first, second - first)


def confidence_divergence(delta: float) -> float:
    """kl(δ, 1-δ) = (1-2δ) log((1-δ)/δ), and 0 for δ ≥ 1/2, where no lower bound holds [TJP Prop. 1].

    The paper's proposition needs δ < 1/2: an algorithm that may be wrong half of the time need not sample at all.
    """
    number("delta", delta, above=0, below=1)
    return 0.0 if delta >= 0.5 else (1 - 2 * delta) * log((1 - delta) / delta)


def excess(u: FloatArray) -> FloatArray:
    """f(u) = u - log(1+u) for u ≥ -1, elementwise, to full relative precision also near 0."""
    u = np.asarray(u, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = u - np.log1p(u)
        # log(1+u) = 2 artanh(w), w = u/(2+u), and u - 2w = u²/(2+u): first-order terms are gone before any rounding.
        w = u / (2 + u)
        square = w * w
        tail = np.zeros_like(u)
        for k in range(_SERIES_TERMS, 0, -1):
            tail = square * (tail + 1.0 / (2 * k + 1))
        series = u * w - 2 * w * tail
    return np.where(np.abs(u) < _SERIES_RADIUS, series, direct)


def reward_divergence(means: FloatArray, change: FloatArray) -> FloatArray:
    """kl(r, r + change) for Bernoulli rewards with means r, elementwise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(means > 0, means * excess(change / means), change)
        down = np.where(means < 1, (1 - means) * excess(-change / (1 - means)), -change)
    # At r = 0 or 1 one outcome is impossible; its half of the sum is the linear term alone.
    divergence: FloatArray = np.maximum(up + down, 0.0)
    return divergence


def transition_divergence(rows: FloatArray, change: FloatArray) -> FloatArray:
    """KL(p || p + change), summed over the last axis, for distributions `rows` and changes that sum to 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(rows > 0, rows * excess(change / rows), change)
    divergence: FloatArray = np.maximum(terms.sum(axis=-1), 0.0)
    return divergence


def model_divergence(mdp: LinearMDP, other: LinearMDP) -> FloatArray:
    """KL_{M|M'}(s, a) of two models with the same pairs, (S, A) or (H, S, A); 0 where not allowed.

    Rewards are Bernoulli and independent of the next state. Entries of the transition matrices are cleaned of
    rounding dirt as the simulator does it.
    """
    of_type("mdp", mdp, LinearMDP)
    of_type("other", other, LinearMDP)
    problem = mdp.problem
    same = (
        other.problem.mask.shape == problem.mask.shape
        and other.problem.stages == problem.stages
        and bool((other.problem.mask == problem.mask).all())
    )
    if not same:
        raise InvalidInput("the two models must have the same states, actions, mask and number of steps.")
    first, second = np.clip(mdp.rewards, 0.0, 1.0), np.clip(other.rewards, 0.0, 1.0)
    divergence = reward_divergence(first, second - first)
    rows = mdp.transitions
    divergence = divergence + transition_divergence(rows, other.transitions - rows)
    return np.where(problem.mask, divergence, 0.0)


def refined_divergence(shift: float, variance: float, ceiling: float) -> float:
    """Least divergence of two laws whose means of f ∈ [0, ceiling] differ by `shift`: min(z²/(12 Var), z/(5 M_f)).

    Parameters
    ----------
    shift : float
        z = |E_M f - E_M' f|.
    variance : float
        Var_M(f) under the first law.
    ceiling : float
        M_f, the largest value of f.
    """
    number("shift", shift), number("variance", variance), number("ceiling", ceiling, above=0)
    if shift == 0:
        return 0.0
    quadratic = float("inf") if variance == 0 else shift * (shift / (12 * variance))
    return min(quadratic, shift / (5 * ceiling))
