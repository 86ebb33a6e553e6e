"""Several right answers: bounds from groups of them.

With ε > 0 an algorithm may return any policy of Π_ε(M). It has to rule out less than the models in which *all* of
them are bad would suggest, but for the one that it returns, it has to rule out all models in which that one is bad.
For a set A of policies let T_A be the value of the programme whose alternatives are models in which no member of A ∩
Π_ε(M) is ε-optimal: T_A grows as A shrinks, and A = Π_ε(M) gives the bound of `lower`.

**Grouped bound** (every δ < 1/2). Let A_1 … A_m cover Π_ε(M), and u(B/T) be the largest p ≤ 1 with kl(p, δ) ≤ B/T, p
≥ δ. Every (ε, δ)-correct algorithm that returns policies of these sets has

    E_M[samples] ≥ B*,        B* the least B with Σ_i u(B/T_{A_i}) ≥ 1-δ.

*Proof.* Let p_i = P_M(answer ∈ A_i ∩ Π_ε(M)); Σ p_i ≥ 1-δ, as the sets cover Π_ε(M). That event has probability at
most δ in every alternative of A_i. If p_i > δ, transportation of measure and an average over alternatives as in
`lower` give E_M[samples] ≥ kl(p_i, δ) T_{A_i}, since kl(p, ·) falls up to p; so p_i ≤ u(E[samples]/T_{A_i}), which is
true of p_i ≤ δ too. Sum over i: B = E[samples] has Σ u ≥ 1-δ, and the left side does not fall in B. ∎

It helps where there are few answers, they are very different, and δ is small: with two, half of log(1/δ) is lost.

**Floor as δ → 0.** For every cover, liminf E_M[samples]/log(1/δ) ≥ min_i T_{A_i} [Degenne, Koolen 2019]: {answer ∈
A_i and samples ≤ n} has probability at most e^x δ under M, plus that of a log-likelihood ratio above x, and for n =
(1-η) T_{A_i} log(1/δ) and x = (1-η/2) log(1/δ) both vanish (ratios are bounded here: all entries of alternatives are
positive). This says nothing about any given δ. For A = {π}, T_A·log(1/δ) is in the same sense what it takes to
*verify* π, the floor of every algorithm that returns π.

The sets here are products: an action for one state, all of Π_ε(M) else, for each near-optimal action of that state;
and single policies, if there are few. So everything that finds and verifies alternatives works on them as on Π_ε(M)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import inf, log

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, IntArray
from bestpolicy.bounds.divergence import confidence_divergence
from bestpolicy.bounds.membership import Reference
from bestpolicy.bounds.tables import evaluate

_MOST_ANSWERS = 6  # single policies that are grouped one by one
_MOST_CANDIDATES = 4096  # policies that are evaluated to find them
_MOST_STATES = 4  # whose near-optimal actions are grouped


@dataclass(frozen=True)
class Grouping:
    """A cover of the ε-optimal policies, and what a bound knows of each of its sets.

    Attributes
    ----------
    stage, state : int or None
        Where the sets differ in their action; None if every set is one policy.
    times : tuple of float
        Certified T_A of each set, in samples, for any sampling.
    rounds : tuple of float
        The same in rounds, for algorithms that sample every step equally often.
    """

    stage: int | None
    state: int | None
    times: tuple[float, ...]
    rounds: tuple[float, ...]

    def samples(self, delta: float) -> float:
        """B* for any sampling."""
        return grouped_level(self.times, delta)

    def rounds_bound(self, delta: float) -> float:
        """B* in rounds."""
        return grouped_level(self.rounds, delta)


def grouped_level(times: Sequence[float], delta: float) -> float:
    """B* of the grouped bound, rounded down, from T_A of every set of a cover."""
    if delta >= 0.5 or len(times) * delta >= 1 - delta:
        return 0.0
    low, high = 0.0, confidence_divergence(delta) * max(times)
    for _ in range(100):
        middle = (low + high) / 2
        reached = sum(largest_probability(middle / time if time > 0 else inf, delta) for time in times)
        low, high = (low, middle) if reached >= 1 - delta else (middle, high)
    return low


def largest_probability(divergence: float, delta: float) -> float:
    """u: the largest p with kl(p, δ) ≤ divergence, or a little more."""
    if divergence >= -log(delta):
        return 1.0
    low, high = delta, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        value = middle * log(middle / delta) + (1 - middle) * log((1 - middle) / (1 - delta))
        low, high = (middle, high) if value <= divergence else (low, middle)
    return high


def only(policy: IntArray, actions: BoolArray) -> BoolArray:
    """The set that has one policy (stages, S), as actions (stages, S, A)."""
    chosen = np.zeros(actions.shape, dtype=np.bool_)
    np.put_along_axis(chosen, policy[:, :, None], True, axis=2)
    return chosen


def covers(reference: Reference) -> Iterator[tuple[tuple[int, int] | None, list[BoolArray]]]:
    """Covers of Π_ε(M) by product sets, (stages, S, A) each: single policies if there are few, actions of one state."""
    actions = reference.actions & reference.table.problem.distinct
    actions |= ~actions.any(axis=2, keepdims=True) & reference.actions
    several = np.argwhere(actions.sum(axis=2) > 1)
    singles = answers(reference, actions) if len(several) > 1 else None  # else they are the actions of one state
    if singles is not None and len(singles) > 1:
        yield None, [only(policy, actions) for policy in singles]
    # Where the second best action is worst, its group and the others have least in common.
    gaps = reference.optimum.values[:, :, None] - reference.optimum.q_values
    worst = np.where(actions, gaps, -inf).max(axis=2)[tuple(several.T)]
    for stage, state in several[np.argsort(-worst, kind="stable")[:_MOST_STATES]]:
        sets = []
        for action in np.flatnonzero(actions[stage, state]):
            group = reference.actions.copy()
            group[stage, state] = False
            group[stage, state, action] = True
            sets.append(group)
        yield (int(stage), int(state)), sets


def answers(reference: Reference, actions: BoolArray) -> list[IntArray] | None:
    """The deterministic policies of Π_ε(M), up to copies of actions; None if there are more than a few."""
    if np.prod(actions.sum(axis=2).astype(np.float64)) > _MOST_CANDIDATES:
        return None
    table, best = reference.table, reference.optimum
    choices = [np.flatnonzero(row) for row in actions.reshape(-1, actions.shape[2])]
    found = (np.array(policy).reshape(actions.shape[:2]) for policy in product(*choices))
    good = (
        policy
        for policy in found
        if (best.values[0] - (value := evaluate(table, policy)).values[0]).max()
        <= reference.epsilon + 2 * (best.error + value.error)
    )
    kept = list(islice(good, _MOST_ANSWERS + 1))
    return kept if len(kept) <= _MOST_ANSWERS else None
