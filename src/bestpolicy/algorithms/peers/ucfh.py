"""UCFH: optimistic plans over intervals for every transition probability (Dann and Brunskill 2015).

    for every (s, a, s') with n visits of (s, a):  p(s'|s,a) within  p̂ ± min( √(l/2n), √(2p̂(1-p̂)l/(n-1)) + 7l/(3(n-1)) )
    U: the best values over all policies and all laws in the intervals, steps from the last to the first
    play the greedy policy π of U;  L: its worst values over the laws in the intervals
    until U - L ≤ ε at the start; return π

The reference bounds the number of episodes in which a policy worse than ε is played, takes rewards as known and the
law as the same at every step, and returns nothing. The intervals are its own; the stop is ours, and so is the
logarithm,

    l = log( 6·N·n(n+1)/δ ),      N = S·A·(S+1), times H if every step has a law of its own,

for any schedule of updates (the reference's δ₁ holds for its own).

*Guarantee.* For a single (s, a, s') and a single n, Hoeffding's inequality fails with probability at most 2e^{-l} and
the empirical Bernstein bound of Maurer and Pontil (2009; with the unbiased variance np̂(1-p̂)/(n-1)) with 4e^{-l} in
both directions: together δ/(N·n(n+1)), which sums to δ over all n, all next states and the mean reward (the S+1-st).
n-th visits are independent draws whatever the policies. Then U ≥ V* and L ≤ V^π by induction. That a law must have its
square root of the variance near the empirical one, too, is left out: more laws make wider bounds.

*Pooled steps* need no union over the steps, because what is bounded is the one law, not a function of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import of_type
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.online import Bounds, Counting, FollowsPolicies, StepMeans, about, best_values, played
from bestpolicy.algorithms.protocol import About, Task
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class UCFH(FollowsPolicies):
    """Upper-confidence fixed-horizon learning with a certificate, from episodes.

    Its parameters are those of `Explores`, and

    Attributes
    ----------
    stationary : bool
        Whether law and rewards are the same at every step, as in the reference: the guarantee then relies on it.
    """

    name: ClassVar[str] = "ucfh"
    about: ClassVar[About] = about(
        features="tabular",
        complexity="S² A H² log(1/δ) / ε² episodes",
        constants="own proof: the intervals of the reference, with a stop and for unknown rewards",
        reference="Dann, Brunskill: Sample Complexity of Episodic Fixed-Horizon Reinforcement Learning (2015)",
    )
    rule: ClassVar[str] = "UCFH (own proof)"

    stationary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        of_type("stationary", self.stationary, bool)

    def learner(self, task: Task, start: FloatArray) -> Intervals:
        """Return bounds over intervals."""
        return Intervals(self, task, start)


class Intervals(Counting[UCFH]):
    """U and L over intervals around all that was seen."""

    def bounds(self, number: int) -> Bounds:
        """Bound V*, and the value of the greedy policy."""
        problem, alike = self.problem, self.algorithm.stationary
        means = StepMeans.of(problem, self.tally, alike)
        logarithms = log_terms(problem, means.visits, self.delta, alike)
        centre, n, l_term = means.transitions, means.visits[:, :, None], logarithms[:, :, None]
        radius = width(n, centre * (1 - centre), l_term)
        least, most = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
        highest, lowest = self._rewards(means, logarithms)
        upper, lower = np.zeros(problem.states), np.zeros(problem.states)
        q_values = np.empty((problem.stages, *problem.mask.shape))
        policy = np.empty((problem.stages, problem.states), np.int64)
        for h in reversed(range(problem.stages)):
            limit = problem.stages - h
            following = best_mean(least[h], most[h], upper)
            q_values[h], upper = best_values(problem, np.minimum(highest[h] + following, limit))
            policy[h] = greedy(q_values[h])
            chosen = played(problem, policy[h])
            worst = -best_mean(least[h][chosen], most[h][chosen], -lower)
            lower = np.clip(lowest[h][chosen] + worst, 0.0, limit)
        return Bounds(policy, policy, float(self.start @ (upper - lower)), q_values)

    def _rewards(self, means: StepMeans, logarithms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on mean rewards, (H, n) each."""
        if self.rewards is not None:
            return self.rewards, self.rewards
        variances = np.maximum(means.squares - means.rewards**2, 0.0)
        radius = width(means.visits, variances, logarithms)
        return np.minimum(means.rewards + radius, 1.0), np.maximum(means.rewards - radius, 0.0)


def log_terms(problem: Problem, visits: FloatArray, delta: float, stationary: bool) -> FloatArray:
    """Return l of every number of visits."""
    laws = len(problem.pairs) * (problem.states + 1) * (1 if stationary else problem.stages)
    terms: FloatArray = log(6 * laws / delta) + np.log(np.maximum(visits * (visits + 1), 1))
    return terms


def width(visits: FloatArray, variances: FloatArray, logarithms: FloatArray) -> FloatArray:
    """Return how far a mean in [0, 1] may be from what was seen; the variances divide by n, not n - 1."""
    more = np.maximum(visits - 1, 1)
    hoeffding = np.sqrt(logarithms / (2 * np.maximum(visits, 1)))
    bernstein = np.sqrt(2 * variances * logarithms / more) + 7 * logarithms / (3 * more)
    radius: FloatArray = np.where(visits > 1, np.minimum(hoeffding, bernstein), hoeffding)
    return np.where(visits > 0, radius, 1.0)


def best_mean(least: FloatArray, most: FloatArray, values: FloatArray) -> FloatArray:
    """Return max q·f over laws q with least ≤ q ≤ most, for each row: what is free goes to the largest f first."""
    order = np.argsort(-values, kind="stable")
    low, room = least[:, order], (most - least)[:, order]
    free = 1 - low.sum(axis=1, keepdims=True)
    given = np.clip(free - (np.cumsum(room, axis=1) - room), 0.0, room)
    means: FloatArray = ((low + given) * values[order]).sum(axis=1)
    return means
