"""Theorem O: a certificate from episodes alone, for simulators that can only be reset and stepped.

Steps h = 0, …, H-1; rewards in [0, 1]; a law ν of (R, S') for each triple (h, s, a), unknown; episodes begin in s1. The
policy of an episode may depend on all that was seen before it. *Tapes*: the outcomes of the n-th visits of a triple, n
= 1, 2, …, are independent with law ν whatever the rule that leads there (draw all tapes beforehand, and let the
episodes read them: the same law). The same holds for the returns of the episodes of a policy, counted from when it was
named.

**Upper values.** Let limits l_h ≤ H-h be such that no rewards from step h on ever sum to more than l_h. T is the number
of triples, n their visits, δ_U + δ_M = δ. Backwards from U_H = 0,

    Q̄_h(s, a) = l_h                                           if n = 0,
              = min{l_h, m⁺(min(l_h, r_i + U_{h+1}(s'_i)); c_n)}   else, with B = min{l_h, 1 + max U_{h+1}} and δ_U/T,

    U_h(s) = max_a Q̄_h(s, a)                                   (Lemma K in `lemmas/means.py`, and what it says of sums).

**Lower values.** The j-th policy ever named has L_j, Lemma L from the returns of its own episodes at δ_M/(j(j+1)), b =
l_0.

**Theorem O.** With probability at least 1-δ, at all times, for every j:  V*(s1) - V^{π_j}(s1) ≤ U_0(s1) - L_j.

*Proof.* Call (h, s) reachable if some policy gets there with positive probability. At reachable triples the variable
X = R + V*_{h+1}(S') is fixed by the model, not by the data, and lies in [0, min(l_h, 1 + max V*_{h+1})], the maximum
over what is reachable: playing (s, a) and then optimally, rewards from h on sum to at most l_h given (R, S'), and so
does their mean. Lemma K on each tape: on an event of probability 1-δ_U, Q* = E X ≤ m⁺ of X_i for all reachable
triples and all n. On it U_h ≥ V*_h at reachable (h, s), by induction from H: reachable triples lead to reachable
states, where U_{h+1} ≥ V*_{h+1}, so min(l_h, r_i + U_{h+1}(s'_i)) ≥ X_i and B ≥ sup X, and m⁺ grows with both; where
nothing was seen l_h ≥ Q*. s1 is reachable. Lemma L on the tape of each policy, Σ_j 1/(j(j+1)) = 1: V^{π_j}(s1) ≥ L_j
for all j with probability 1-δ_M. Subtract.

That limits must clip every r_i + U(s'_i), and not U alone, is needed for the induction: with U clipped at 1 and rewards
of 1/2 at each of two steps r_i + U is 1.5, m⁺ with B = 1 would be a bound for nobody.

*A random first state* (of law ρ, unknown): one more tape, of first states, and the variable V*_0(S_0): U_ρ =
m⁺(U_0(s^i)) with B = max U_0, and T + 1 instead of T. Returns are draws from ρ already. If ρ is known, U_ρ = Σ ρ(s)
U_0(s).

*Stationary models*: the tapes of (s, a) may be read as one over all steps. There are still H functions V*_{h+1}, so T
stays. *Known ends*, where the process is over and each step pays a known reward: U there is what is left to be paid.

*Episodes that broke off.* The step that broke is a visit whose outcome nobody knows: it counts as x_i = B. The return
counts as 0. Both are on the safe side of what a whole episode would have shown, whatever makes simulators fail.

*Linear features*: where pairs share features, Theorem O-L (`linear_episodes`) bounds Q* as well, and the smaller of
both bounds is Q̄; δ_U is shared.

*Not claimed*: anything of other starts. Where no episode has been, the policy may be as bad as can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.lemmas.means import highest_means, lowest_mean, nats_upwards
from bestpolicy.stopping.linear_episodes import Regression, is_useful

UPPER_SHARE = 0.7  # of δ, for upper values; the rest is for the returns of policies
LINEAR_SHARE = 0.5  # of that, for Theorem O-L where pairs share features


@dataclass(frozen=True, eq=False)
class Seen:
    """Outcomes of the triples that were visited, by next state.

    Attributes
    ----------
    stage, pair, next_state : int array (C,)
        What occurred; stage is 0 throughout if steps are alike.
    counts, rewards : array (C,)
        How often, and the sum of the rewards that came with it.
    lost : int array (stages, S·A)
        Visits whose outcome is not known.
    first : int array (S,)
        How often episodes began in each state.
    """

    stage: IntArray
    pair: IntArray
    next_state: IntArray
    counts: IntArray
    rewards: FloatArray
    lost: IntArray
    first: IntArray

    @classmethod
    def of(cls, problem: Problem, tally: Tally, stationary: bool) -> Seen:
        """Read a tally of episodes; of a stationary model all steps together."""
        row, following = np.divmod(tally.cells, problem.states)
        stage, place = np.divmod(row, max(1, len(tally.pairs)))
        pair, counts, rewards = tally.pairs[place], tally.counts, tally.rewards
        broken = tally.followed.broken
        lost = np.zeros((problem.stages, problem.mask.size), np.int64)
        np.add.at(lost, (broken[:, 0], broken[:, 1]), 1)
        first = np.bincount(tally.pairs // problem.actions, tally.pulls[0], problem.states).astype(np.int64)
        first += lost[0].reshape(problem.mask.shape).sum(axis=1)
        if stationary:
            key, group = np.unique(pair * problem.states + following, return_inverse=True)
            total = np.zeros(len(key), np.int64)
            np.add.at(total, group, counts)
            rewards = np.bincount(group, rewards, len(key)).astype(np.float64, copy=False)
            pair, following = np.divmod(key, problem.states)
            stage, counts, lost = np.zeros(len(key), np.int64), total, lost.sum(axis=0, keepdims=True)
        return cls(stage, pair, following, counts, rewards, lost, first)

    def at(self, stage: int) -> Seen:
        """Return what was seen at a stage."""
        if len(self.lost) == 1:
            return self
        begin, end = np.searchsorted(self.stage, (stage, stage + 1))
        some = slice(int(begin), int(end))
        cells = {name: getattr(self, name)[some] for name in ("stage", "pair", "next_state", "counts", "rewards")}
        return Seen(**cells, lost=self.lost[stage : stage + 1], first=self.first)

    @cached_property
    def visited(self) -> IntArray:
        """Pairs with a visit, in order; of one stage."""
        return np.union1d(self.pair, np.flatnonzero(self.lost[0]))

    @cached_property
    def places(self) -> IntArray:
        """Position of the pair of each outcome among those visited."""
        return np.searchsorted(self.visited, self.pair)

    @cached_property
    def visits(self) -> FloatArray:
        """Number of visits of each pair in `visited`, those with an outcome."""
        return np.bincount(self.places, self.counts, len(self.visited)).astype(np.float64, copy=False)

    def mean(self, values: FloatArray) -> FloatArray:
        """Average reward plus value of the next state of each pair in `visited`."""
        sums = self.rewards + self.counts * values[self.next_state]
        means: FloatArray = np.bincount(self.places, sums, len(self.visited)) / np.maximum(self.visits, 1)
        return means


@dataclass(frozen=True, eq=False)
class Optimism:
    """What is fixed before the first episode.

    Attributes
    ----------
    problem : Problem
        Episodic.
    delta : float
    limits : array (H,)
        No rewards from step h on ever sum to more than this.
    stationary : bool
        Whether all steps are alike.
    start : array (S,), optional
        Distribution of the first state, if it is known.
    """

    problem: Problem
    delta: float
    limits: FloatArray
    stationary: bool = False
    start: FloatArray | None = None

    @cached_property
    def over(self) -> BoolArray:
        """States in which the process is over, (S,)."""
        ends = np.zeros(self.problem.states, np.bool_)
        ends[getattr(self.problem, "ends", [])] = True
        return ends

    @cached_property
    def regression(self) -> Regression | None:
        """Theorem O-L, where pairs share features, unless these are too badly conditioned for double precision."""
        if not is_useful(self.problem, self.limits):
            return None
        regression = Regression(self.problem, UPPER_SHARE * LINEAR_SHARE * self.delta)
        return regression if regression.is_exact else None

    @cached_property
    def delta_each(self) -> float:
        """Share of δ of each triple, and of the first state."""
        share = UPPER_SHARE * (1 - LINEAR_SHARE) if self.regression is not None else UPPER_SHARE
        open_pairs = int((~self.over[self.problem.pairs // self.problem.actions]).sum())
        return share * self.delta / (self.problem.stages * open_pairs + (self.start is None))

    def end_values(self, stage: int) -> float:
        """What is left to be paid once the process is over."""
        return float(getattr(self.problem, "end_reward", 0.0)) * (self.problem.stages - stage)

    def upper_values(self, seen: Seen) -> tuple[FloatArray, FloatArray]:
        """Return Q̄, (H, S, A), -inf where an action is not allowed, and U, (H + 1, S)."""
        problem = self.problem
        q = np.full((problem.stages, problem.mask.size), -inf)
        values = np.zeros((problem.stages + 1, problem.states))
        least = np.zeros(problem.states)
        for stage in reversed(range(problem.stages)):
            limit, here = float(self.limits[stage]), seen.at(stage)
            q[stage, problem.pairs] = limit
            if len(here.visited):
                q[stage, here.visited] = np.minimum(limit, self._bounds(here, values[stage + 1], limit))
            if self.regression is not None and not seen.lost.any():
                cells = np.searchsorted(problem.pairs, here.pair), here.next_state, here.counts, here.rewards
                high, low = self.regression.bounds(cells, stage, values[stage + 1], least)
                q[stage, problem.pairs] = np.minimum(q[stage, problem.pairs], high)
                table = np.zeros(problem.mask.size)
                table[problem.pairs] = low
                least = table.reshape(problem.mask.shape).max(axis=1)
            values[stage] = q[stage].reshape(problem.mask.shape).max(axis=1)
            values[stage, self.over] = self.end_values(stage)
        return q.reshape(problem.stages, *problem.mask.shape), values

    def _bounds(self, here: Seen, following: FloatArray, limit: float) -> FloatArray:
        """m⁺ of r + U(s') at each visited pair of a stage."""
        top = min(limit, 1.0 + float(following.max()))
        points, weights, rows = points_of(following[here.next_state], here.counts, here.rewards, here.places, limit)
        lost = here.lost[0, here.visited]
        unknown = np.flatnonzero(lost)
        points = np.concatenate([points, np.full(len(unknown), top)])
        weights, rows = np.concatenate([weights, lost[unknown]]), np.concatenate([rows, unknown])
        nats = nats_upwards(here.visits + lost, self.delta_each)
        return highest_means(np.minimum(points, top), weights, rows, nats, np.full(len(nats), top))

    def at_start(self, seen: Seen, values: FloatArray) -> float:
        """Return the upper value of the start, given U_0."""
        if self.start is not None:
            return float((self.start * values).sum())
        begun = np.flatnonzero(seen.first)
        if not len(begun):
            return float(self.limits[0])
        counts = seen.first[begun].astype(np.float64)
        nats = nats_upwards(counts.sum(keepdims=True), self.delta_each)
        top = np.array([float(values.max())])
        return float(highest_means(values[begun], counts, np.zeros(len(begun), np.int64), nats, top)[0])

    def delta_of(self, number: int) -> float:
        """Share of δ of the returns of the policy that was named as the so-manyth."""
        return (1 - UPPER_SHARE) * self.delta / (number * (number + 1))

    def lower_value(self, number: int, episodes: int, returns: float, squares: float) -> float:
        """Return L of that policy from the returns of its own episodes."""
        return lowest_mean(episodes, returns, squares, float(self.limits[0]), self.delta_of(number))


def points_of(
    following: FloatArray, counts: IntArray, rewards: FloatArray, rows: IntArray, limit: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return points and weights that stand for samples min(limit, r + y) of which only the sum of r is known."""
    reach = np.minimum(1.0, limit - following)
    above = reach <= 0
    high = np.where(above, counts, np.minimum(counts, rewards / np.where(above, 1.0, reach)))
    points = np.concatenate([np.minimum(following, limit), np.minimum(following + 1.0, limit)])
    weights = np.concatenate([counts - high, high])
    some = weights > 0
    return points[some], weights[some], np.concatenate([rows, rows])[some]


__all__ = ["UPPER_SHARE", "Optimism", "Seen", "points_of"]
