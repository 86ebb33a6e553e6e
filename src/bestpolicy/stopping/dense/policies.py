"""A prior over policies: what it costs to look at a policy other than the one that the past prefers.

A test that is fixed for *every* policy beforehand, policy π at the share q(π) of its confidence, may be read at
whichever policy the samples suggest: the shares of all wrong policies together are at most 1. Half of the prior is
on the past's own policy; the other half chooses the action of each (stage, state) by itself, with odds exp(-z²/2),
z being the estimated gap in standard deviations. So where the past was undecided another action costs little, and
the sum over all policies of the product is 1, whatever actions are not allowed or are copies of others.

With features, actions of different states are decided together: by ξ, which has d dimensions only. So if ε > 0, where
many policies will do, most of the second half is on policies that are greedy if the past errs by as much as it may,
each as often as it was drawn: Σ_π q(π) ≤ FAVOURED + DRAWN·Σ frequencies + the rest = 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady

FAVOURED = 0.5  # share of the past's own policy
DRAWN = 0.35  # share of those that were drawn, if there are any
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
    drawn : int array (n, stages, S)
        Policies with a weight of their own, all different.
    frequencies : array (n,)
        Their weights, which sum to at most 1.
    """

    favourite: IntArray
    log_odds: FloatArray
    drawn: IntArray = field(default_factory=lambda: np.zeros((0, 1, 1), np.int64))
    frequencies: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, favourite: IntArray, scores: FloatArray, mask: BoolArray) -> PolicyPrior:
        """Return the prior for estimated gaps in standard deviations (stages, S, A); those of the favourite are 0."""
        far = np.minimum(np.abs(scores), _FARTHEST) ** 2 / 2
        odds = np.where(mask, steady(np.exp(-far)), 0.0)
        return cls(favourite, np.log(np.maximum(odds / odds.sum(axis=2, keepdims=True), _LEAST)))

    def log_weight(self, policy: IntArray) -> float:
        """Return log q(π)."""
        chosen = np.take_along_axis(self.log_odds, policy[:, :, None], axis=2)
        share = DRAWN if len(self.drawn) else 0.0
        weight = log(1 - FAVOURED - share) + float(chosen.sum())
        if np.array_equal(policy, self.favourite):
            weight = float(np.logaddexp(weight, log(FAVOURED)))
        if len(self.drawn):
            for frequency in self.frequencies[(self.drawn == policy).all(axis=(1, 2))]:
                weight = float(np.logaddexp(weight, log(share * frequency)))
        return weight
