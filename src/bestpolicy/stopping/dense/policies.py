"""A prior over policies: what it costs to look at a policy other than the one that the past prefers.

A test that is fixed for *every* policy beforehand, policy π at the share q(π) of its confidence, may be read at
whichever policy the samples suggest: the shares of all wrong policies together are at most 1. Half of the prior is
on the past's own policy; the other half chooses the action of each (stage, state) by itself, with odds exp(-z²/2),
z being the estimated gap in standard deviations. So where the past was undecided another action costs little, and
the sum over all policies of the product is 1, whatever actions are not allowed or are copies of others."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady

FAVOURED = 0.5  # share of the past's own policy
LEAST_LOG_WEIGHT = -600.0  # of a policy that is looked at: beyond it shares of δ are no longer numbers
_LEAST = 1e-300  # probability of what is not allowed: files have no infinite numbers
_FARTHEST = 8.0  # standard deviations: no allowed action costs more than this many squared, halved


@dataclass(frozen=True, eq=False)
class PolicyPrior:
    """Weights of all policies, which sum to at most 1.

    Attributes
    ----------
    favourite : int array (stages, S)
        The past's own policy.
    log_odds : array (stages, S, A)
        Logarithms of the probability of each action; very small where it is not allowed.
    """

    favourite: IntArray
    log_odds: FloatArray

    @classmethod
    def of(cls, favourite: IntArray, scores: FloatArray, mask: BoolArray) -> PolicyPrior:
        """Return the prior for estimated gaps in standard deviations (stages, S, A); those of the favourite are 0."""
        far = np.minimum(np.abs(scores), _FARTHEST) ** 2 / 2
        odds = np.where(mask, steady(np.exp(-far)), 0.0)
        return cls(favourite, np.log(np.maximum(odds / odds.sum(axis=2, keepdims=True), _LEAST)))

    def log_weight(self, policy: IntArray) -> float:
        """Return log q(π)."""
        chosen = np.take_along_axis(self.log_odds, policy[:, :, None], axis=2)
        spread = log(1 - FAVOURED) + float(chosen.sum())
        favoured = log(FAVOURED) if np.array_equal(policy, self.favourite) else -inf
        return float(np.logaddexp(favoured, spread))
