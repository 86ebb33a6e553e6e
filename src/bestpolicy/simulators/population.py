"""Episodes of a known model, all at once.

Of many independent episodes of one policy only their *population* matters: how many of them are in which state with
which rewards so far. Given that, the numbers that go on to each outcome are multinomial, cell by cell, so a tally of
whole episodes, their squared returns included, has exactly the law of simulating them one by one. There are at most as
many cells as episodes, and with rewards of 0 and 1 at most S·(h+1) at step h: the cost does not depend on the number of
episodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Followed, Tally
from bestpolicy.samples.episodes import start_law

_ENTRIES = 1_000_000  # of tables of outcomes that are drawn from at a time

# What can follow pairs at a stage: probabilities, next states and rewards, each (n, M).
Outcomes = Callable[[int, IntArray], tuple[FloatArray, IntArray, FloatArray]]


def roll_out(problem: Problem, episodes: Episodes, outcomes: Outcomes, rng: np.random.Generator) -> Tally:
    """Simulate episodes from a given start, or one walk."""
    if episodes.is_walk:
        return _walk(problem, episodes, outcomes, rng)
    assert episodes.start is not None
    state = np.arange(problem.states)
    number = np.asarray(rng.multinomial(episodes.count, start_law(episodes.start, problem.states)), np.int64)
    state, number = state[number > 0], number[number > 0]
    earned = np.zeros(len(state))
    parts: list[tuple[Any, ...]] = []
    for stage in range(problem.stages):
        state, earned, number, pair = _acting(episodes.policy[stage], state, earned, number, problem.actions, rng)
        stepped = [_step(stage, outcomes, *some, rng) for some in _chunks(state, earned, number, pair, problem.states)]
        together = stepped[0] if len(stepped) == 1 else map(np.concatenate, zip(*stepped, strict=True))
        origin, following, reward, count, total = together
        parts.append((np.full(len(origin), stage), origin, following, reward, count))
        state, earned, number = _merged(following, total, count)
    stages, pairs, following, rewards, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    tally = _counted(problem, stages, pairs, following, rewards, counts)
    return tally.with_followed(Followed(float((number * earned**2).sum())))


def _acting(
    policy: Any, state: IntArray, earned: FloatArray, number: IntArray, actions: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """Have each cell of the population play; a policy of probabilities divides it."""
    if policy.ndim == 1:
        return state, earned, number, state * actions + policy[state]
    chances = policy[state]
    divided = np.asarray(rng.multinomial(number, chances / chances.sum(axis=1, keepdims=True)), np.int64)
    cell, action = np.nonzero(divided)
    return state[cell], earned[cell], divided[cell, action], state[cell] * actions + action


def _chunks(
    state: IntArray, earned: FloatArray, number: IntArray, pair: IntArray, width: int
) -> list[tuple[FloatArray, IntArray, IntArray]]:
    """Cells in portions whose outcomes fit into memory."""
    step = max(1, _ENTRIES // max(1, 2 * width))
    if len(state) <= step:
        return [(earned, number, pair)]
    places = range(0, max(1, len(state)), step)
    return [(earned[i : i + step], number[i : i + step], pair[i : i + step]) for i in places]


def _step(
    stage: int, outcomes: Outcomes, earned: FloatArray, number: IntArray, pair: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray, FloatArray, IntArray, FloatArray]:
    """Take a step: pair, next state, reward, number, and rewards so far of all that occurred."""
    chances, following, rewards = outcomes(stage, pair)
    drawn = np.asarray(rng.multinomial(number, chances), np.int64)
    cell, outcome = np.nonzero(drawn)
    reward = rewards[cell, outcome]
    return pair[cell], following[cell, outcome], reward, drawn[cell, outcome], earned[cell] + reward


def _merged(state: IntArray, earned: FloatArray, number: IntArray) -> tuple[IntArray, FloatArray, IntArray]:
    """Put together who is in the same state with the same rewards so far."""
    if not len(state):
        return state, earned, number
    order = np.lexsort((earned, state))
    state, earned = state[order], earned[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (state[1:] != state[:-1]) | (earned[1:] != earned[:-1])
    (first,) = new.nonzero()
    return state[first], earned[first], np.add.reduceat(number[order], first)


def _walk(problem: Problem, episodes: Episodes, outcomes: Outcomes, rng: np.random.Generator) -> Tally:
    """Follow one trajectory, with a card for each pair and each state that tells uniform numbers what to do."""
    length, actions = episodes.steps, problem.actions
    choices = np.cumsum(episodes.policy, axis=1)
    choices = (choices / choices[:, -1:]).tolist()
    cards: dict[int, tuple[list[float], list[int], list[float]]] = {}
    state, pairs, places = int(episodes.start), np.empty(length, np.int64), np.empty(length, np.int64)  # type: ignore[arg-type]
    following, rewards = np.empty(length, np.int64), np.empty(length)
    for i, (first, second) in enumerate(rng.random((length, 2)).tolist()):
        pair = state * actions + bisect_right(choices[state], first)
        if pair not in cards:
            chances, states, paid = (row[0] for row in outcomes(0, np.array([pair])))
            some = np.flatnonzero(chances)
            sums = np.cumsum(chances[some])
            cards[pair] = (sums / sums[-1]).tolist(), states[some].tolist(), paid[some].tolist()
        ends, states, paid = cards[pair]
        place = bisect_right(ends, second)
        state = states[place]
        pairs[i], places[i], following[i], rewards[i] = pair, place, state, paid[place]
    # Equal outcomes are counted before rewards are added up, as everywhere.
    ordered = np.lexsort((places, pairs))
    key = np.stack([pairs, places])[:, ordered]
    first_of = np.flatnonzero(np.append(True, (np.diff(key) != 0).any(axis=0))[:length])
    counts = np.diff(np.append(first_of, length))
    chosen = ordered[first_of]
    stage = np.zeros(len(chosen), np.int64)
    return _counted(problem, stage, pairs[chosen], following[chosen], rewards[chosen], counts)


def _counted(
    problem: Problem, stages: IntArray, pairs: IntArray, following: IntArray, rewards: FloatArray, counts: IntArray
) -> Tally:
    """Return the tally of outcomes with their counts."""
    known, position = np.unique(pairs, return_inverse=True)
    shape, row = (problem.stages, len(known), problem.states), stages * len(known) + position
    squares = np.bincount(row, weights=counts * rewards**2, minlength=shape[0] * shape[1]).astype(
        np.float64, copy=False
    )
    return Tally._counted(shape, known, row, following, counts, counts * rewards, squares.reshape(shape[:2]))
