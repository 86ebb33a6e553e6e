"""A user's function as the simulator of a problem whose states nobody lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_numbers
from bestpolicy._numerics.inputs import function, interval, of_type, shown
from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.features.base import named
from bestpolicy.problem import FeatureProblem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Drawn, Draws
from bestpolicy.simulators.calls import tick

_BLOCK = 2**16  # calls that are made at once
_SLACK = 1e-9  # of the range: what rounding may do to a reward at its limit

_Answer = tuple[FloatArray, FloatArray]


class FeatureSimulator:
    """What `CallableSimulator` is for a `FeatureProblem`; the parameters are the same, and one more.

    Parameters
    ----------
    problem : FeatureProblem
    step : callable
        ``step(states (n, k), actions (n,), rng)`` returns whole rewards (n,), known part included, and next states (n,
        k); with ``vectorized=False`` ``step(state (k,), action, rng)`` returns one reward and one next state. If the
        problem is episodic and the function has a parameter named ``stage``, it is passed too. If states are objects,
        lists of them come and go.
    vectorized : bool
    reward_range : (low, high)
    step_from : callable, optional
        ``step_from(points (n, k'), rng)`` returns rewards *without* the known part, within the problem's `remainder`,
        and next states: for feature maps whose nodes no pair reaches. It is called instead of `step` for the nodes.

    Attributes
    ----------
    road : str
        Why the states are not listed, if that was a choice.
    """

    road = ""

    def __init__(
        self,
        problem: FeatureProblem,
        step: Callable[..., tuple[Any, Any]],
        *,
        vectorized: bool = False,
        reward_range: tuple[float, float] = (0.0, 1.0),
        step_from: Callable[..., tuple[Any, Any]] | None = None,
        takes_stage: bool = False,
    ) -> None:
        of_type("problem", problem, FeatureProblem)
        self.step, self.vectorized = step, vectorized
        known = "step_from(points, rng) -> (rewards, next_states)"
        self.step_from = None if step_from is None else function("step_from", step_from, known)
        self._takes_stage = takes_stage
        self.low, self.high = interval("reward_range", reward_range)
        self.units = Units.of_range((self.low, self.high))
        self.problem = problem.in_units(self.units)
        if problem.feature_map.pairs is None:
            if step_from is None or problem.feature_map.nodes is None:
                raise InvalidInput(
                    "nobody knows pairs whose points are the nodes of the feature map. Give them to the map (pairs=), "
                    "or step_from=, a function that simulates from points."
                )
            if problem.known_reward is not None and problem.remainder is None:
                raise InvalidInput(
                    "step_from returns rewards without the known part, so the problem must say within which limits: "
                    "FeatureProblem(..., remainder=(low, high))."
                )

    def sample(self, draws: Draws, rng: np.random.Generator) -> Drawn:
        """Simulate each pair as often as asked."""
        of_type("draws", draws, Draws)
        problem, pairs = self.problem, self.problem.feature_map.pairs
        parts = [Drawn.nothing(problem, draws)]
        for stage, counts in enumerate(draws.counts):
            for place in _blocks(counts):
                tick()
                try:
                    if pairs is None:
                        rewards, states = self.from_nodes(place, rng, stage)
                    else:
                        whole, states = self.call(pairs[0][place], pairs[1][place], rng, stage)
                        scaled = (whole - self.low) / self.units.reward_scale
                        rewards = self._within(scaled - problem.known_at_places[place], place)
                    if draws.bets is None:  # a test looks at the features by itself
                        for _ in problem.blocks(states):
                            pass
                    parts.append(Drawn.of(problem, draws, stage, place, rewards, states))
                except InvalidInput as error:
                    at = f" at step {stage}" if problem.horizon is not None else ""
                    raise SimulatorError(
                        f"from pair number {place[0]} of the feature map on{at}: {one_line(error)}",
                        partial=Drawn.total(parts),  # type: ignore[arg-type]
                    ) from error
        return Drawn.total(parts)

    def call(self, states: FloatArray, actions: IntArray, rng: np.random.Generator, stage: int = 0) -> _Answer:
        """Return whole rewards in the user's units, and next states, both checked."""
        extra = {"stage": stage} if self._takes_stage else {}
        tick()
        if self.vectorized:
            given = self.problem.feature_map.given(states)
            answer = self._called(lambda: self.step(given, actions, rng, **extra), states, actions)
            return self._checked(answer, states, actions)
        rewards, following = np.empty(len(states)), np.empty(states.shape)
        for i in range(len(states)):
            tick()
            row = slice(i, i + 1)
            state, action = self.problem.feature_map.given(states[row].copy())[0], int(actions[i])
            one = self._called(partial(self.step, state, action, rng, **extra), states[row], actions[row])
            reward, next_state = _two(one)
            wrapped = np.asarray([reward]), [next_state]
            rewards[row], following[row] = self._checked(wrapped, states[row], actions[row])
        return rewards, following

    def interpolated(self) -> FeatureSimulator:
        """Return the simulator of the interpolated model: an anchor is drawn with the features' weights, and simulated.

        Its kernel is exactly linear in the features, whatever the system is like, and at the anchors both are the same.
        So a certificate of this simulator's problem holds for it with no assumption but independent samples: for a
        system that may be run with randomised rounding of decisions that is an unconditional guarantee.
        """
        feature_map, anchors = self.problem.feature_map, self.problem.feature_map.anchors
        if anchors is None:
            raise InvalidInput("the interpolated model needs a feature map with anchors that can be simulated.")

        def step(states: FloatArray, actions: IntArray, rng: np.random.Generator, stage: int = 0) -> _Answer:
            index, weight = feature_map.weights(states, actions)
            drawn = (np.cumsum(weight, axis=1) < rng.random((len(states), 1))).sum(axis=1)
            place = index[np.arange(len(states)), np.minimum(drawn, index.shape[1] - 1)]
            whole, following = self.call(anchors[0][place], anchors[1][place], rng, stage)
            known = self.problem.known(states, actions) - self.problem.known_at_places[place]
            return whole + known * self.units.reward_scale, following

        given, own = self.problem.in_units(Units()), (self.low, self.high)
        return FeatureSimulator(
            given, step, vectorized=True, reward_range=own, takes_stage=self._takes_stage, step_from=self.step_from
        )

    def from_nodes(self, place: IntArray, rng: np.random.Generator, stage: int = 0) -> _Answer:
        """Return rewards without the known part, in [0, 1] units, and next states, from nodes that no pair reaches."""
        nodes = self.problem.feature_map.nodes
        assert nodes is not None
        assert self.step_from is not None
        points, none = nodes[place], np.zeros(len(place), np.int64)
        extra = {"stage": stage} if self._takes_stage else {}
        answer = self._called(lambda: self.step_from(points, rng, **extra), points, none)  # type: ignore[misc]
        rewards, states = self._arrays(answer, points, none)
        return self._within((rewards - self.low) / self.units.reward_scale, place), states

    def _called(self, call: Callable[[], Any], states: FloatArray, actions: IntArray) -> Any:
        try:
            return call()
        except Exception as error:
            where = named(states, actions)
            raise InvalidInput(f"step failed: {one_line(error)} (in the call that starts at {where}).") from error

    def _arrays(self, answer: Any, states: FloatArray, actions: IntArray) -> _Answer:
        given, following = _two(answer)
        where, wide = named(states, actions), self.problem.feature_map.state_dimension
        rewards = np.asarray(as_numbers("rewards", given), dtype=np.float64)
        found = self._rows(following)
        if rewards.shape != (len(states),) or found.shape != (len(states), wide):
            raise InvalidInput(
                f"step must return rewards ({len(states)},) and next states ({len(states)}, {wide}). Got shapes "
                f"{rewards.shape} and {found.shape} in the call that starts at {where}."
            )
        good = np.isfinite(found).all(axis=1)
        if not good.all():
            first = int(np.argmin(good))
            raise InvalidInput(
                f"{named(states, actions, first)} leads to {named(found, row=first)}, which is no state."
            )
        return rewards, found

    def _rows(self, following: Any) -> FloatArray:
        objects = self.problem.feature_map.objects
        if objects is not None:
            return objects.rows(following, "next states")
        return np.asarray(as_numbers("next states", following), dtype=np.float64)

    def _checked(self, answer: Any, states: FloatArray, actions: IntArray) -> _Answer:
        rewards, found = self._arrays(answer, states, actions)
        with np.errstate(invalid="ignore"):
            good = (rewards >= self.low) & (rewards <= self.high)
        if not good.all():
            first = int(np.argmin(good))
            raise InvalidInput(
                f"reward {float(rewards[first])!r} of {named(states, actions, first)} is not in [{self.low:g}, "
                f"{self.high:g}]. Give reward_range=(low, high), the lowest and the highest that can ever occur; "
                "clipping rewards would bias the answer."
            )
        return rewards, found

    def _within(self, rewards: FloatArray, place: IntArray) -> FloatArray:
        """Refuse rewards without their known part that are outside of the limits that the problem states."""
        low, high = self.problem.remainder_limits[:, place]
        good = (rewards >= low - _SLACK) & (rewards <= high + _SLACK)
        if not good.all():
            first = int(np.argmin(good))
            scale, offset = self.units.reward_scale, self.units.reward_offset
            limits = [float(limit[first]) * scale + offset for limit in (low, high)]
            raise InvalidInput(
                f"a reward without its known part is {rewards[first] * scale + offset:.6g}, outside of [{limits[0]:g}, "
                f"{limits[1]:g}]. Widen the problem's remainder=, or the reward_range."
            )
        return np.clip(rewards, low, high)


def _two(answer: Any) -> tuple[Any, Any]:
    try:
        rewards, states = answer
    except (TypeError, ValueError):
        raise InvalidInput(f"step must return (rewards, next_states). Got {shown(answer)} instead.") from None
    return rewards, states


def _blocks(counts: IntArray) -> Iterator[IntArray]:
    """Spread the calls of one stage over blocks of bounded size."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _BLOCK):
        yield np.searchsorted(ends, np.arange(begin, min(begin + _BLOCK, total)), side="right")
