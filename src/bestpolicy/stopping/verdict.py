"""What one look at the evidence certifies, and how δ is shared between the events that it relies on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.stopping.lemmas.propagation import Propagation


def _none() -> FloatArray:
    return np.empty(0)


@dataclass(frozen=True)
class Split:
    """Shares of δ; they sum to at most 1.

    Attributes
    ----------
    sub_gaussian, bernstein, variance, kernel : float
        For the events H, B, V and L.
    """

    sub_gaussian: float = 0.1
    bernstein: float = 0.65
    variance: float = 0.15
    kernel: float = 0.1


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one look at the evidence certifies.

    Attributes
    ----------
    policy : int array (stages, S)
    epsilon : float
        Bound on max_s V*(s) - V^π(s), at the first stage if episodic; 0 if the policy is certified optimal,
        inf if nothing is.
    resolved : float
        Smallest Δ̂/w(y) over all actions that the policy does not play: (A) holds from 1 on.
    gap : float
        Smallest estimated gap.
    criterion : str
        "A", "B" or "" (nothing certified).
    propagation : Propagation, optional
        This and what follows shapes sampling and later tests; only Theorems T and P have it.
    metrics : array (m, stages, d, d)
        M of the ellipsoids in use.
    variances : array (stages, K)
        v̄.
    ranges : array (stages,)
        Λ̄.
    slopes, gaps : arrays (stages, S, A)
        w(y) and Δ̂; slopes are 0 where the action is the policy's, has the same features, or is not allowed.
    margins : array (stages, S, A), optional
        What gaps have to be resolved by beyond their widths, because of rounding.
    """

    policy: IntArray
    epsilon: float
    resolved: float
    gap: float
    criterion: str
    propagation: Propagation | None = None
    metrics: FloatArray = field(default_factory=_none)
    variances: FloatArray = field(default_factory=_none)
    ranges: FloatArray = field(default_factory=_none)
    slopes: FloatArray = field(default_factory=_none)
    gaps: FloatArray = field(default_factory=_none)
    margins: FloatArray | None = None
