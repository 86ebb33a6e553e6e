"""Episodes step by step, with whatever takes a step from given states.

If a step fails, the episodes whose step it was have broken off. They must not be forgotten, nor simulated again: a
simulator that fails more often on losing outcomes would make every policy look better. So the error carries a tally in
which they count as a return of 0, and the step that broke as a visit without an outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import SimulatorError
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.samples.episodes import start_law
from bestpolicy.simulators.calls import Calls, current_calls
from bestpolicy.simulators.trajectories import Room, pieces

_KEPT = 2**16  # steps of a walk that are kept as they are before they are counted

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
    calls = current_calls() or Calls()
    if episodes.is_walk:
        return _walk(problem, episodes, advance, rng, calls)
    assert episodes.start is not None
    law, tally, horizon = start_law(episodes.start, problem.states), Tally.empty(problem), problem.stages
    for number in pieces(problem, episodes.count, at_once):
        room = Room(problem, number, calls, rng)
        while room.done < number:
            some = slice(room.done, min(room.done + at_once, number))
            failure = _through(problem, episodes, law, room, some, advance, rng)
            if failure is not None:
                (message, cause), lengths, where = failure
                whole = np.append(np.full(some.start, horizon), lengths)
                raise SimulatorError(f"{where}: {message}", partial=tally + room.counted(some.stop, whole)) from cause
            room.done, room.part = some.stop, 0
            room.note(room.done * horizon, rng)
        tally += room.counted()
    return tally


def chosen(policy: Any, states: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the actions of a policy at a stage, drawn if it gives probabilities."""
    if policy.ndim == 1:
        actions: IntArray = policy[states]
        return actions
    ends = np.cumsum(policy[states], axis=1)
    drawn: IntArray = (ends <= rng.random((len(states), 1)) * ends[:, -1:]).sum(axis=1)
    return drawn


def _through(
    problem: Problem,
    episodes: Episodes,
    law: FloatArray,
    room: Room,
    some: slice,
    advance: Advance,
    rng: np.random.Generator,
) -> tuple[Failure, IntArray, str] | None:
    """Take some episodes through all steps that are not known; return what failed, how long they were, and where."""
    states, actions, rewards = room.states[some], room.actions[some], room.rewards[some]
    number, horizon = actions.shape
    if not room.part:
        states[:, 0] = rng.choice(problem.states, size=number, p=law)
    for stage in range(room.part, horizon):
        actions[:, stage] = chosen(episodes.policy[stage], states[:, stage], rng)
        paid, following, failure = advance(stage, states[:, stage], actions[:, stage], rng)
        done = len(paid)
        rewards[:done, stage], states[:done, stage + 1] = paid, following
        if failure is not None:  # none of the others has an outcome, and none will get one
            lengths = np.where(np.arange(number) < done, stage + 1, stage)
            if stage + 1 < horizon:
                actions[:done, stage + 1] = chosen(episodes.policy[stage + 1], states[:done, stage + 1], rng)
            where = f"pair (state {states[done, stage]}, action {actions[done, stage]}) at step {stage}"
            return failure, lengths, where
        if number == 1 and stage + 1 < horizon:
            room.note(some.start * horizon + stage + 1, rng)
    return None


def _walk(problem: Problem, episodes: Episodes, advance: Advance, rng: np.random.Generator, calls: Calls) -> Tally:
    state, tally, clock = np.array([episodes.start]), Tally.empty(problem), time.monotonic

    def counted(paid: FloatArray, cells: IntArray) -> Tally:
        pair, following = np.divmod(cells, problem.states)
        return Tally.from_samples(problem, *np.divmod(pair, problem.actions), paid, following)

    for begin in range(0, episodes.steps, _KEPT):
        rewards, cells, known = calls.block(min(_KEPT, episodes.steps - begin), rng)
        state = cells[known - 1 : known] % problem.states if known else state
        for i in range(known, len(cells)):
            if clock() >= calls.due:
                calls.note(rewards, cells, i, rng)
            action = chosen(episodes.policy, state, rng)
            paid, following, failure = advance(0, state, action, rng)
            if failure is not None:
                message, cause = failure
                place, partial = f"pair (state {state[0]}, action {action[0]})", counted(rewards[:i], cells[:i])
                raise SimulatorError(f"{place}: {message}", partial=tally + partial) from cause
            rewards[i] = paid[0]
            cells[i] = (state[0] * problem.actions + action[0]) * problem.states + following[0]
            state = np.asarray(following, np.int64)
        calls.note(rewards, cells, len(cells), rng)
        tally += counted(rewards, cells)
    return tally
