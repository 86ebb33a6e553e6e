"""Wrap a user's own simulator.

The function is called once per sample, or once per block of samples in its vectorised form. What comes back is
checked: rewards are never clipped and bad output is never skipped, because either would break the guarantee
without a word. The first bad answer raises a `SimulatorError` that names the pair and carries what was measured.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from math import isnan
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy._numerics.inputs import function, interval, of_type, shown
from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.truncation import Truncated
from bestpolicy.problem.units import Units
from bestpolicy.samples import Episodes, Pulls, Tally, answer_ends, require_episodes, require_pulls
from bestpolicy.simulators.calls import Calls, current_calls, tick
from bestpolicy.simulators.feature_user import FeatureSimulator
from bestpolicy.simulators.stepping import follow

_BLOCK = 2**18
MOST = 1e300  # a reward that is larger is no number


class CallableSimulator:
    """Simulator made from a function.

    Parameters
    ----------
    problem : Problem, or FeatureProblem
        With the latter, whose states nobody lists, you get a `FeatureSimulator`: see there what `step` takes and
        returns. Where the process may be over, say so: ``Problem.tabular(..., ends=[…])``. `step` returns an end as
        any next state, and is never asked for what comes after.
    step : callable
        ``step(state, action, rng) -> (reward, next_state)`` with the reward in [0, 1] and the next state in
        0..S-1. If the problem is episodic and the function has a parameter named ``stage``, it is passed too
        (0..H-1); without one the simulator is taken to be the same at every step.
    vectorized : bool
        If True, `step` takes and returns arrays of equal length: ``step(states, actions, rng) -> (rewards,
        next_states)``.
    reward_range : (low, high)
        The lowest and the highest reward that can ever occur, [0, 1] by default. Others are mapped there, and ε is
        then in your own units of reward. With ends it must hold 0, which is what they pay. If there is no such range,
        `Truncated`, for a table.

    Attributes
    ----------
    problem : Problem
        As given; its ends pay what 0 is mapped to.
    units : Units
        `identify` takes ε, and reports it, in these units of reward.
    """

    def __new__(cls, problem: Any = None, step: Any = None, **options: Any) -> Any:
        """Return a `FeatureSimulator` where states cannot be listed."""
        if not isinstance(problem, FeatureProblem):
            return super().__new__(cls)
        takes_stage = _takes_stage(problem, function("step", step, "step(states, actions, rng)"))
        return FeatureSimulator(problem, step, takes_stage=takes_stage, **options)

    def __init__(
        self,
        problem: Problem,
        step: Callable[..., tuple[Any, Any]],
        *,
        vectorized: bool = False,
        reward_range: tuple[float, float] | Truncated = (0.0, 1.0),
    ) -> None:
        of_type("problem", problem, Problem)
        self.step = function("step", step, "step(state, action, rng) -> (reward, next_state)")
        self.vectorized = vectorized
        self._takes_stage = _takes_stage(problem, step)
        self.units = Units.of_range(reward_range)
        self._low, self._high = self.units.reward_range
        if not isinstance(reward_range, Truncated):
            self._low, self._high = interval("reward_range", reward_range)
        elif not problem.is_tabular:
            raise InvalidInput(
                "reward_range=Truncated(…) is for tables: with features that pairs share, the means of truncated "
                "rewards need not be linear in them. Use Problem.tabular, or name states and actions."
            )
        below, above = reward_range.accepted if isinstance(reward_range, Truncated) else (False, False)
        self._limits = -MOST if below else self._low, MOST if above else self._high
        self._problem = problem.in_units(self.units)

    @property
    def problem(self) -> Problem:
        """The problem that the simulator belongs to."""
        return self._problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        require_pulls(pulls, self.problem, rng)
        pulls, known = answer_ends(pulls, self.problem)
        tally = (
            Tally.empty(self.problem, pulls.pairs) if known is None else known + Tally.empty(self.problem, pulls.pairs)
        )
        calls = current_calls() or Calls()
        for stage, counts in enumerate(pulls.counts):
            extra = {"stage": stage} if self._takes_stage else {}
            for pairs in _blocks(pulls.pairs, counts):
                states, actions = np.divmod(pairs, self.problem.actions)
                measure = self._call_block if self.vectorized else self._call_each
                rewards, next_states, failure = measure(states, actions, rng, extra, calls)
                done = len(rewards)
                rewards = self._mapped(rewards)
                tally += Tally.from_samples(self.problem, states[:done], actions[:done], rewards, next_states, stage)
                if failure is not None:
                    place = self._pair(int(states[done]), int(actions[done]))
                    place += f" at step {stage}" if self.problem.horizon is not None else ""
                    message, cause = failure
                    raise SimulatorError(f"pair {place}: {message}", partial=tally) from cause
        return tally

    def rollout(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        """Simulate episodes, or one walk: one after the other, or all in step if the function is vectorised."""
        require_episodes(episodes, self.problem, rng)
        if episodes.start is None:
            raise InvalidInput("start is needed, a state or a distribution over states: a function has none.")
        return follow(self.problem, episodes, self._advance, rng, at_once=_BLOCK if self.vectorized else 1)

    def _advance(self, stage: int, states: IntArray, actions: IntArray, rng: np.random.Generator) -> _Measured:
        """Take a step with each of several episodes; fewer answers than states come with what went wrong."""
        tick()
        measure, extra = self._call_block if self.vectorized else self._call_each, {"stage": stage}
        rewards, next_states, failure = measure(states, actions, rng, extra if self._takes_stage else {}, Calls())
        return self._mapped(rewards), next_states, failure

    def _mapped(self, rewards: FloatArray) -> FloatArray:
        """Rewards in [0, 1]; those beyond a range that they may be truncated to count as its ends."""
        clipped: FloatArray = np.clip(rewards, self._low, self._high)
        return (clipped - self._low) / self.units.reward_scale

    def _pair(self, state: int, action: int) -> str:
        return f"(state {state}, action {action})"

    def _function(self) -> Callable[..., Any]:
        """What is called with the numbers of a state and an action, and answers with that of the next state."""
        return self.step  # type: ignore[no-any-return]

    def _call_each(
        self, states: IntArray, actions: IntArray, rng: np.random.Generator, extra: dict[str, int], calls: Calls
    ) -> _Measured:
        rewards, next_states, known = calls.block(len(states), rng)
        step, clock = self._function(), time.monotonic
        pairs = zip(states[known:].tolist(), actions[known:].tolist(), strict=True)
        for i, (state, action) in enumerate(pairs, start=known):
            if clock() >= calls.due:
                calls.note(rewards, next_states, i, rng)
            try:
                answer = step(state, action, rng, **extra)
            except Exception as error:
                return rewards[:i], next_states[:i], (one_line(error), error)
            try:
                reward, next_state = answer
            except (TypeError, ValueError):
                return rewards[:i], next_states[:i], _broken(_not_two(answer))
            problem = self._fault(reward, next_state)
            if problem:
                return rewards[:i], next_states[:i], _broken(problem)
            rewards[i], next_states[i] = reward, next_state
        calls.note(rewards, next_states, len(states), rng)
        return rewards, next_states, None

    def _call_block(
        self, states: IntArray, actions: IntArray, rng: np.random.Generator, extra: dict[str, int], calls: Calls
    ) -> _Measured:
        nothing = np.empty(0), np.empty(0, dtype=np.int64)
        all_rewards, all_next_states, known = calls.block(len(states), rng)
        if known == len(states):
            return all_rewards, all_next_states, None
        calls.note(all_rewards, all_next_states, known, rng)
        try:
            answer = self.step(states, actions, rng, **extra)
        except Exception as error:
            return *nothing, (f"{one_line(error)} (vectorised call that starts at this pair)", error)
        try:
            rewards, next_states = (np.asarray(part) for part in answer)
        except (TypeError, ValueError):
            return *nothing, _broken(_not_two(answer))
        if rewards.shape != states.shape or next_states.shape != states.shape:
            shapes = f"{rewards.shape} and {next_states.shape}"
            return *nothing, _broken(f"step returned arrays of shapes {shapes}, expected {states.shape} twice.")
        good = _plausible(rewards, next_states, *self._limits, self.problem.states)
        if not good.all():
            first = int(np.argmin(good))
            fault = self._fault(rewards[first], next_states[first])
            return rewards[:first], next_states[:first], _broken(fault or "step returned bad output.")
        calls.note(rewards.astype(np.float64), next_states.astype(np.int64), len(states), rng)
        return rewards, next_states, None

    def _fault(self, reward: Any, next_state: Any) -> str | None:
        """Say what is wrong with one answer of the simulator, or None."""
        fault = self._plain_fault(reward, next_state)
        if fault is None or self._plain_fault(next_state, reward) is not None:
            return fault
        return f"{fault} Are the two swapped? step must return (reward, next_state), in this order."

    def _plain_fault(self, reward: Any, next_state: Any) -> str | None:
        low, high, states = self._low, self._high, self.problem.states
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            return f"reward {shown(reward)} is not a number."
        if isnan(value):
            return f"reward nan is not in [{low:g}, {high:g}]. Find out why: leaving it out would bias the answer."
        if not self._limits[0] <= value <= self._limits[1]:
            return (
                f"reward {value!r} is not in [{low:g}, {high:g}]. Give reward_range=(low, high), the lowest and the "
                "highest that can ever occur, or bestpolicy.Truncated(low, high, …) if there are none; clipping them "
                "yourself would bias the answer."
            )
        try:
            known = float(next_state) == int(next_state) and 0 <= int(next_state) < states
        except (TypeError, ValueError, OverflowError):
            known = False
        if known:
            return None
        got = f"{next_state:g}" if isinstance(next_state, float | np.number) else shown(next_state)
        return (
            f"next state {got} is not one of 0..{states - 1}. Return the number of a state, counted from 0; where the "
            "process is over, that of an end (Problem.tabular(..., ends=[…]))."
        )


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


def _broken(what: str) -> tuple[str, BaseException]:
    """Say that an answer cannot be used, which no other outcome mends."""
    return what, InvalidInput(what)


def _not_two(answer: Any) -> str:
    return f"step must return (reward, next_state). Got {shown(answer)} instead."


def _takes_stage(problem: Problem | FeatureProblem, step: Callable[..., Any]) -> bool:
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
