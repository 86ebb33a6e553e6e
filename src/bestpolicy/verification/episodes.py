"""Theorem O: what episodes alone prove of a policy at their start.

Rewards in [0, 1], H steps; limits l_h that rewards from step h on never exceed in sum. n visits of a triple (h, s,
a), T triples (the same ones pooled over h if all steps are alike; T stays), m⁺ as below. With U_H = 0, backwards:

    Q̄ = l_h if n = 0, else min(l_h, m⁺ of min(l_h, r_i + U(s'_i))),   B = min(l_h, 1 + max U),   U = max_a Q̄;

    m⁺ = min over ν ≥ B of ν - e^-c·(geometric mean of ν - x_i),   c = (log(T/δ_U) + log(2√(n+1)))/n,   δ_U = 0.7·δ.

Any ν is allowed, so the minimum need not be exact. Of rewards that came with one next state only the sum R of N is
known: R/t of them at y + t, the others at y = U(s'), t = min(1, l_h - y), give the largest m⁺. Visits whose outcome is
not known lie at B. A random start is one more variable, U_0(s_0), with T + 1 for T. At known ends U is what is left to
be paid, and they count for nothing in T.

Where pairs share features (and limits are trivial), Theorem O-L (`linear_episodes`) at half of δ_U bounds Q* as
well, and the smaller bound counts; Theorem O has the other half.

The policy is the j-th that was named, and has n episodes of its own (among all, with its actions at every step) with
returns X_i: at δ_j = 0.3·δ/(j(j+1)) its
value is at least inf{m ≤ mean: average over λ of exp(λΣξ_i + (log(1-λ)+λ)Σξ_i²) < 1/δ_j}, ξ = (X-m)/l_0, for λ =
0.55·1.6^-k, k = 0, …, 23. What is certified is U at the start minus that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.claim import Claim
from bestpolicy.verification.linear_episodes import Linear, applies
from bestpolicy.verification.reading import STAGE, Floats, Ints, Node, Rejected, not_below_zero

_UPPER, _STEPS, _ROOM = 0.7, 60, 1e-11
_BETS = 0.55 / 1.6 ** np.arange(24.0)


def certified_epsilon(case: Case, claim: Claim, proof: Node, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that the episodes certify, their number of steps, and what is trusted."""
    if case.horizon is None:
        raise Rejected("Theorem O is about episodes, and the problem has a discount")
    proof.only("limits", "stationary", "policy", "samples")
    visits = _Visits.read(proof.child("samples"), case)
    limits, alike = proof.array("limits", "f", (case.stages,)), proof.flag("stationary")
    if (limits <= 0).any() or (limits > case.limits).any():
        raise Rejected("a limit of returns is not positive, or larger than the number of steps")
    visits.check(claim.start)
    number, episodes, returns, squares = _own_returns(case, proof.child("policy"), visits, policy, claim.start)
    room = 1e-9 * (1 + episodes) * case.stages**2
    if returns > limits[0] * episodes + room or squares > limits[0] * returns + room:
        raise Rejected("the returns of the policy exceed their limit")
    if returns**2 > episodes * (squares + room):
        raise Rejected("the squared returns of the policy are too small for its returns")
    upper = _upper_value(case, visits, limits, alike, claim.delta, claim.start)
    lower = _lower_value(episodes, returns, squares, float(limits[0]), 0.3 * claim.delta / (number * (number + 1)))
    return not_below_zero(upper - lower), int(visits.counts.sum()), _trusted(case, limits, alike, number)


def own_starts(case: Case, claim: Claim) -> tuple[Floats, float]:
    """Return where the n episodes began, as shares, and what a mean over them may be off by.

    A mean of n draws in [0, 1] exceeds its expectation by √(log(1/δ)/2n) with probability δ at most (Hoeffding).
    """
    first = _Visits.read(claim.document.child("proof").child("samples"), case).first
    number = max(1, int(first.sum()))
    return first / number, float(np.sqrt(-log(claim.delta) / (2 * number)))


def _own_returns(
    case: Case, node: Node, visits: _Visits, policy: Ints, start: Floats | None
) -> tuple[int, int, float, float]:
    """Return the policy's number, its episodes, and the sums of their returns and of their squares.

    Its episodes are such, play what it plays, and are among all episodes. Those that broke off have a return of 0,
    whatever they had earned (`forfeited`).
    """
    node.only("number", "squares", "forfeited", "samples")
    own = _Visits.read(node.child("samples"), case)
    own.check(start)
    actions = case.mask.shape[1]
    stages, pairs = np.append(own.stage, own.broken[:, 0]), np.append(own.pair, own.broken[:, 1])
    if (policy[stages, pairs // actions] != pairs % actions).any():
        raise Rejected("the policy's own episodes play what the policy does not")
    own.require_among(visits)
    episodes, forfeited = int(own.first.sum()), node.number("forfeited", 0.0, 1e300)
    if not episodes:
        raise Rejected("the policy has no episode of its own")
    room = 1e-9 * (1 + episodes) * case.stages
    if forfeited > own.broken[:, 0].sum() + room:
        raise Rejected("the episodes that broke off had earned more than 1 a step")
    returns = float(own.rewards.sum()) - forfeited
    if returns < -room:
        raise Rejected("the episodes that broke off had earned more than all episodes")
    return node.whole("number", 1), episodes, max(returns, 0.0), node.number("squares", 0.0, 1e300)


def _trusted(case: Case, limits: Floats, alike: bool, number: int) -> list[str]:
    found = [
        f"the policy was named as number {number} before the episodes that count for its value, which are all of its "
        "own since, and the squares of their returns sum up to what the file says; δ was fixed before sampling"
    ]
    if alike:
        found.append("the environment behaves alike at every step (the user's word)")
    if (limits < case.limits).any():
        found.append(f"the rewards of an episode never sum to more than {limits[0]:g}, in [0, 1] (the user's word)")
    return found


@dataclass(frozen=True, eq=False)
class _Visits:
    """Outcomes (stage, pair, next state) with counts and sums of rewards, and visits without an outcome."""

    case: Case
    stage: Ints
    pair: Ints
    state: Ints
    counts: Ints
    rewards: Floats
    broken: Ints

    @classmethod
    def read(cls, node: Node, case: Case) -> _Visits:
        node.only("pairs", "cells", "counts", "rewards", "broken")
        pairs, states = case.pairs(node, "pairs"), len(case.features)
        cells, counts = node.array("cells", "i", (None,)), node.array("counts", "i", (None,))
        rewards, broken = node.array("rewards", "f", (len(cells),)), node.array("broken", "i", (None, 2))
        case.budget.work(2000.0 * case.stages * (len(cells) + case.mask.size) + STAGE * case.stages, "the episodes")
        case.budget.hold(20.0 * case.stages * case.mask.size + 20 * len(cells), "the episodes")
        if len(cells) != len(counts) or (np.diff(cells) <= 0).any() or (cells < 0).any():
            raise Rejected("the cells of the counts are not strictly increasing indices")
        if len(cells) and cells[-1] >= case.stages * len(pairs) * states:
            raise Rejected("the cells of the counts are not strictly increasing indices")
        if (counts < 1).any() or counts.sum(dtype=np.float64) > 2.0**62:
            raise Rejected("a count of samples is not positive, or too large")
        if (rewards < 0).any() or (rewards > counts * (1 + 1e-9)).any():
            raise Rejected("the samples do not fit together: a sum of rewards is not between 0 and their number")
        allowed = case.mask.reshape(-1)
        if len(broken) and (broken.min() < 0 or (broken >= [case.stages, len(allowed)]).any()):
            raise Rejected("an episode broke off where there is no step")
        if not allowed[broken[:, 1]].all():
            raise Rejected("an episode broke off at an action that is not allowed")
        row, state = np.divmod(cells, states)
        stage, place = np.divmod(row, max(1, len(pairs)))
        return cls(case, stage, pairs[place], state, counts, rewards, broken)

    @property
    def begun(self) -> Ints:
        """How often a step began in a state, (H, S)."""
        shape, actions = (self.case.stages, len(self.case.features)), self.case.mask.shape[1]
        table = np.zeros(shape, np.int64)
        np.add.at(table, (self.stage, self.pair // actions), self.counts)
        np.add.at(table, (self.broken[:, 0], self.broken[:, 1] // actions), 1)
        return table

    @property
    def first(self) -> Ints:
        """How often an episode began in a state."""
        first: Ints = self.begun[0]
        return first

    def check(self, start: Floats | None) -> None:
        """Episodes are at each step where the step before has led, and begin at the start."""
        arrived = np.zeros_like(self.begun)
        np.add.at(arrived, (self.stage, self.state), self.counts)
        if (self.begun[1:] != arrived[:-1]).any():
            raise Rejected("the samples are not those of episodes: steps do not begin where the step before has led")
        if start is not None and self.first[start == 0].any():
            raise Rejected("an episode begins elsewhere than at the start")

    def require_among(self, others: _Visits) -> None:
        """These visits are among the others, and leave outcomes that can be."""
        index, among = self._index, others._index
        place = np.searchsorted(among, index)
        known = place < len(among)
        known[known] = among[place[known]] == index[known]
        if not known.all() or (self.counts > others.counts[place]).any():
            raise Rejected("the policy's own episodes are not among all episodes")
        counts, rewards = others.counts[place] - self.counts, others.rewards[place] - self.rewards
        room = 1e-9 * (1.0 + others.counts[place])
        if (rewards < -room).any() or (rewards > counts + room).any():
            raise Rejected("the policy's own episodes have other rewards than they have among all episodes")
        broken, times = np.unique(self.broken, axis=0, return_counts=True)
        for step, number in zip(broken, times, strict=True):
            if (others.broken == step).all(axis=1).sum() < number:
                raise Rejected("the policy's own episodes broke off where no episode did")

    @property
    def _index(self) -> Ints:
        """Of each outcome, increasing."""
        index: Ints = (self.stage * self.case.mask.size + self.pair) * len(self.case.features) + self.state
        return index


def _upper_value(case: Case, visits: _Visits, limits: Floats, alike: bool, delta: float, start: Floats | None) -> float:
    pairs, states = case.mask.size, len(case.features)
    triples = case.stages * int(case.open.sum()) + (start is None)
    linear = Linear.of(case, 0.5 * _UPPER * delta) if applies(case, limits) else None
    nats = log(triples / ((0.5 if linear is not None else 1.0) * _UPPER * delta))
    values, least = np.zeros(states), np.zeros(states)
    for stage in reversed(range(case.stages)):
        limit = float(limits[stage])
        here = np.ones(len(visits.stage), np.bool_) if alike else visits.stage == stage
        lost = visits.broken[np.ones(len(visits.broken), np.bool_) if alike else visits.broken[:, 0] == stage, 1]
        top = min(limit, 1 + float(values.max()))
        y = values[visits.state[here]]
        count, earned, pair = visits.counts[here].astype(np.float64), visits.rewards[here], visits.pair[here]
        reach = np.clip(limit - y, 0.0, 1.0)
        high = np.where(reach > 0, np.minimum(count, earned / np.where(reach > 0, reach, 1.0)), count)
        points = np.concatenate([np.minimum(y, top), np.minimum(y + reach, top), np.full(len(lost), top)])
        weights = np.concatenate([count - high, high, np.ones(len(lost))])
        rows = np.concatenate([pair, pair, lost])
        bounds = np.minimum(limit, _largest_means(points, weights, rows, pairs, nats, top, limit))
        if linear is not None and not len(visits.broken):
            outcomes = visits.pair[here], visits.state[here], visits.counts[here], visits.rewards[here]
            high, low = linear.bounds(*outcomes, stage, values, least)
            allowed = case.mask.reshape(-1)
            bounds[allowed] = np.minimum(bounds[allowed], high)
            table = np.zeros(pairs)
            table[allowed] = low
            least = table.reshape(case.mask.shape).max(axis=1)
        values = np.where(case.mask, bounds.reshape(case.mask.shape), -np.inf).max(axis=1)
        values[case.ends] = case.end_reward * (case.stages - stage)  # all that is left to be paid there
    if start is not None:
        return float(start @ values)
    seen = np.flatnonzero(visits.first)
    weights, rows = visits.first[seen].astype(np.float64), np.zeros(len(seen), np.int64)
    return float(_largest_means(values[seen], weights, rows, 1, nats, float(values.max()), float(limits[0]))[0])


def _largest_means(
    points: Floats, weights: Floats, rows: Ints, size: int, nats: float, top: float, unseen: float
) -> Floats:
    """m⁺ of each row, by bisection for where the derivative in ν vanishes; `unseen` for rows without samples."""
    known = weights > 0
    points, weights, rows = points[known], weights[known], rows[known]
    number = np.bincount(rows, weights, size)
    some = number > 0
    safe = np.where(some, number, 1.0)
    cost = (nats + np.log(2 * np.sqrt(safe + 1))) / safe
    share = weights / safe[rows]

    def evaluated(nu: Floats) -> tuple[Floats, Floats]:
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps = nu[rows] - points
            centre = np.bincount(rows, share * np.log(gaps), size)
            slope = centre + np.log(np.bincount(rows, share / gaps, size)) - cost  # positive: a larger ν is better
            bound = nu - np.exp(centre - cost) + _ROOM * nu
        return np.where(np.isnan(bound), np.inf, bound), slope

    low, high = np.full(size, -30.0), np.full(size, 30.0)  # of log(ν - B)
    best = np.minimum(evaluated(np.full(size, top))[0], top)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        bound, slope = evaluated(top + np.exp(middle))
        best = np.minimum(best, bound)
        up = ~(slope <= 0)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return np.where(some, best, unseen)


def _lower_value(episodes: int, returns: float, squares: float, limit: float, delta: float) -> float:
    """The largest value that the policy's own returns refute, and all below it; 0 if they refute none."""
    mean = min(returns / episodes, limit)
    spread = max(squares / episodes - mean**2, 0.0) / limit**2 + 1e-14
    bend = np.log(1 - _BETS) + _BETS

    def is_refuted(value: float) -> bool:
        distance = (mean - value) / limit
        exponents = episodes * (_BETS * distance + bend * (distance**2 + spread))
        return bool(np.logaddexp.reduce(exponents) - log(len(_BETS)) >= -log(delta))

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, mean
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low - 1e-12 * limit
