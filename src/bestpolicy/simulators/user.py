"""Wrap a user's own simulator.

The function is called once per sample, or once per block of samples in its vectorised form. What comes back is
checked: rewards are never clipped and bad output is never skipped, because either would break the guarantee
without a word. The first bad answer raises a `SimulatorError` that names the pair and carries what was measured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from math import isnan
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.inputs import function, interval, of_type, shown
from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Pulls, Tally, require_pulls

_BLOCK = 2**18


class CallableSimulator:
    """Simulator made from a function.

    Parameters
    ----------
    problem : Problem
    step : callable
        ``step(state, action, rng) -> (reward, next_state)`` with the reward in [0, 1] and the next state in
        0..S-1. If the problem is episodic and the function has a parameter named ``stage``, it is passed too
        (0..H-1); without one the simulator is taken to be the same at every step.
    vectorized : bool
        If True, `step` takes and returns arrays of equal length: ``step(states, actions, rng) -> (rewards,
        next_states)``.
    reward_range : (low, high)
        The lowest and the highest reward that can ever occur, [0, 1] by default. Others are mapped there, and ε is
        then in your own units of reward.

    Attributes
    ----------
    units : Units
        `identify` takes ε, and reports it, in these units of reward.
    """

    def __init__(
        self,
        problem: Problem,
        step: Callable[..., tuple[Any, Any]],
        *,
        vectorized: bool = False,
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        of_type("problem", problem, Problem)
        self._problem = problem
        self.step = function("step", step, "step(state, action, rng) -> (reward, next_state)")
        self.vectorized = vectorized
        self._takes_stage = _takes_stage(problem, step)
        self._low, self._high = interval("reward_range", reward_range)
        self.units = Units.of_range((self._low, self._high))

    @property
    def problem(self) -> Problem:
        """The problem that the simulator belongs to."""
        return self._problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        require_pulls(pulls, self.problem, rng)
        tally = Tally.empty(self.problem, pulls.pairs)
        for stage, counts in enumerate(pulls.counts):
            extra = {"stage": stage} if self._takes_stage else {}
            for pairs in _blocks(pulls.pairs, counts):
                states, actions = np.divmod(pairs, self.problem.actions)
                measure = self._call_block if self.vectorized else self._call_each
                rewards, next_states, failure = measure(states, actions, rng, extra)
                done = len(rewards)
                rewards = (rewards - self._low) / self.units.reward_scale
                tally += Tally.from_samples(self.problem, states[:done], actions[:done], rewards, next_states, stage)
                if failure is not None:
                    place = f"(state {states[done]}, action {actions[done]})" + (
                        f" at step {stage}" if self.problem.horizon is not None else ""
                    )
                    message, cause = failure
                    raise SimulatorError(f"pair {place}: {message}", partial=tally) from cause
        return tally

    def _call_each(
        self, states: IntArray, actions: IntArray, rng: np.random.Generator, extra: dict[str, int]
    ) -> _Measured:
        rewards, next_states = np.empty(len(states)), np.empty(len(states), dtype=np.int64)
        for i, (state, action) in enumerate(zip(states.tolist(), actions.tolist(), strict=True)):
            try:
                answer = self.step(state, action, rng, **extra)
            except Exception as error:
                return rewards[:i], next_states[:i], (one_line(error), error)
            try:
                reward, next_state = answer
            except (TypeError, ValueError):
                return rewards[:i], next_states[:i], (_not_two(answer), None)
            problem = self._fault(reward, next_state)
            if problem:
                return rewards[:i], next_states[:i], (problem, None)
            rewards[i], next_states[i] = reward, next_state
        return rewards, next_states, None

    def _call_block(
        self, states: IntArray, actions: IntArray, rng: np.random.Generator, extra: dict[str, int]
    ) -> _Measured:
        nothing = np.empty(0), np.empty(0, dtype=np.int64)
        try:
            answer = self.step(states, actions, rng, **extra)
        except Exception as error:
            return *nothing, (f"{one_line(error)} (vectorised call that starts at this pair)", error)
        try:
            rewards, next_states = (np.asarray(part) for part in answer)
        except (TypeError, ValueError):
            return *nothing, (_not_two(answer), None)
        if rewards.shape != states.shape or next_states.shape != states.shape:
            shapes = f"{rewards.shape} and {next_states.shape}"
            return *nothing, (f"step returned arrays of shapes {shapes}, expected {states.shape} twice.", None)
        good = _plausible(rewards, next_states, self._low, self._high, self.problem.states)
        if not good.all():
            first = int(np.argmin(good))
            fault = self._fault(rewards[first], next_states[first])
            return rewards[:first], next_states[:first], (fault or "step returned bad output.", None)
        return rewards, next_states, None

    def _fault(self, reward: Any, next_state: Any) -> str | None:
        """Say what is wrong with one answer of the simulator, or None."""
        low, high, states = self._low, self._high, self.problem.states
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            return f"reward {shown(reward)} is not a number."
        if isnan(value):
            return f"reward nan is not in [{low:g}, {high:g}]. Find out why: leaving it out would bias the answer."
        if not low <= value <= high:
            return (
                f"reward {value!r} is not in [{low:g}, {high:g}]. Give reward_range=(low, high), the lowest and the "
                "highest that can ever occur; clipping rewards would bias the answer."
            )
        try:
            known = float(next_state) == int(next_state) and 0 <= int(next_state) < states
        except (TypeError, ValueError, OverflowError):
            known = False
        if known:
            return None
        got = f"{next_state:g}" if isinstance(next_state, float | np.number) else shown(next_state)
        return f"next state {got} is not one of 0..{states - 1}. Return the number of a state, counted from 0."


_Measured = tuple[FloatArray, IntArray, tuple[str, BaseException | None] | None]


def _blocks(pairs: IntArray, counts: IntArray) -> Iterator[IntArray]:
    """Spread the pulls of one stage over blocks of bounded size."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _BLOCK):
        yield pairs[np.searchsorted(ends, np.arange(begin, min(begin + _BLOCK, total)), side="right")]


def _plausible(rewards: Any, next_states: Any, low: float, high: float, states: int) -> BoolArray:
    try:
        with np.errstate(invalid="ignore"):
            return np.asarray(
                (rewards >= low)
                & (rewards <= high)
                & (next_states >= 0)
                & (next_states < states)
                & (next_states == np.floor(next_states))
            )
    except TypeError:
        return np.zeros(rewards.shape, dtype=np.bool_)


def _not_two(answer: Any) -> str:
    return f"step must return (reward, next_state). Got {shown(answer)} instead."


def _takes_stage(problem: Problem, step: Callable[..., Any]) -> bool:
    """Whether the function wants to know the stage; complain if it cannot be called at all."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return False
    staged = problem.horizon is not None and "stage" in signature.parameters
    try:
        signature.bind(0, 0, None, **({"stage": 0} if staged else {}))
    except TypeError:
        more = ", and may take one named stage" if problem.horizon is not None else ""
        raise InvalidInput(
            f"step must take three arguments, step(state, action, rng){more}. Its signature is {signature} instead."
        ) from None
    return staged
