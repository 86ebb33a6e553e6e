"""Episodes step by step, with whatever takes a step from given states.

If a step fails, the episodes whose step it was have broken off. They must not be forgotten, nor simulated again: a
simulator that fails more often on losing outcomes would make every policy look better. So the error carries a tally in
which they count as a return of 0, and the step that broke as a visit without an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import SimulatorError
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.samples.episodes import start_law

_KEPT = 2**16  # steps that are kept as they are before they are counted

Failure = tuple[str, BaseException | None]
# (stage, states, actions, rng) -> rewards in [0, 1] and next states of the first so many, and what failed after them.
Advance = Callable[[int, IntArray, IntArray, np.random.Generator], tuple[FloatArray, IntArray, Failure | None]]


def follow(
    problem: Problem, episodes: Episodes, advance: Advance, rng: np.random.Generator, *, at_once: int = 1
) -> Tally:
    """Simulate episodes from a given start in step, so many at once; or one walk.

    Raises
    ------
    SimulatorError
        If a step fails; its ``partial`` has all that came before, and the episodes that it broke off.
    """
    if episodes.is_walk:
        return _walk(problem, episodes, advance, rng)
    tally, waiting = Tally.empty(problem), list[tuple[IntArray, IntArray, FloatArray, IntArray]]()
    assert episodes.start is not None
    law, left = start_law(episodes.start, problem.states), episodes.count
    failure = None
    while left and failure is None:
        number = min(left, at_once)
        *block, failure, where = _block(problem, episodes, law, number, advance, rng)
        waiting.append(tuple(block))
        left -= number
        if not left or failure is not None or len(waiting) * number * problem.stages > _KEPT:
            tally += Tally.from_episodes(problem, *(np.concatenate(column) for column in zip(*waiting, strict=True)))
            waiting = []
    if failure is not None:
        message, cause = failure
        raise SimulatorError(f"{where}: {message}", partial=tally) from cause
    return tally


def chosen(policy: Any, states: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the actions of a policy at a stage, drawn if it gives probabilities."""
    if policy.ndim == 1:
        actions: IntArray = policy[states]
        return actions
    ends = np.cumsum(policy[states], axis=1)
    drawn: IntArray = (ends <= rng.random((len(states), 1)) * ends[:, -1:]).sum(axis=1)
    return drawn


def _block(
    problem: Problem, episodes: Episodes, law: FloatArray, number: int, advance: Advance, rng: np.random.Generator
) -> tuple[Any, ...]:
    """Take some episodes through all steps; return states, actions, rewards, lengths, what failed, and where."""
    horizon = problem.stages
    states, actions = np.zeros((number, horizon + 1), np.int64), np.zeros((number, horizon), np.int64)
    rewards = np.zeros((number, horizon))
    states[:, 0] = rng.choice(problem.states, size=number, p=law)
    for stage in range(horizon):
        actions[:, stage] = chosen(episodes.policy[stage], states[:, stage], rng)
        paid, following, failure = advance(stage, states[:, stage], actions[:, stage], rng)
        done = len(paid)
        rewards[:done, stage], states[:done, stage + 1] = paid, following
        if failure is not None:  # none of the others has an outcome, and none will get one
            lengths = np.where(np.arange(number) < done, stage + 1, stage)
            if stage + 1 < horizon:
                actions[:done, stage + 1] = chosen(episodes.policy[stage + 1], states[:done, stage + 1], rng)
            where = f"pair (state {states[done, stage]}, action {actions[done, stage]}) at step {stage}"
            return states, actions, rewards, lengths, failure, where
    return states, actions, rewards, np.full(number, horizon), None, ""


def _walk(problem: Problem, episodes: Episodes, advance: Advance, rng: np.random.Generator) -> Tally:
    state, tally = np.array([episodes.start]), Tally.empty(problem)
    rows: list[tuple[int, int, float, int]] = []

    def counted() -> Tally:
        s, a, r, following = (
            (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.empty(0, int)] * 4
        )
        return Tally.from_samples(problem, s, a, r, following)

    for _ in range(episodes.steps):
        action = chosen(episodes.policy, state, rng)
        paid, following, failure = advance(0, state, action, rng)
        if failure is not None:
            message, cause = failure
            place = f"pair (state {state[0]}, action {action[0]})"
            raise SimulatorError(f"{place}: {message}", partial=tally + counted()) from cause
        rows.append((int(state[0]), int(action[0]), float(paid[0]), int(following[0])))
        state = np.asarray(following, np.int64)
        if len(rows) > _KEPT:
            tally, rows = tally + counted(), []
    return tally + counted()
