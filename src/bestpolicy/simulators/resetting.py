"""Gymnasium environments through `reset` and `step` alone.

Most environments cannot be put into a state: they begin where they like and go on from there. Whole episodes of them
are enough for algorithms that follow policies (``algorithm="forward"``), whose claims are about where `reset` begins.

**The end of an episode.** A step that *terminates* leads to one extra state, the end, which pays 0 at every later step;
the rest of the episode is filled in without a step. *Truncation* is no termination: a time limit is no part of the
state, so what would have come is unknown. A limit of at least `horizon` steps is never felt; a shorter one is refused.

**States** are what `step` returns: the process must be Markov in them. Spaces that can be listed (Discrete,
MultiDiscrete, MultiBinary, and tuples of them) are, and so is ``states=[…]``. Otherwise observations are numbered as
they appear, up to the number that ``states=`` states; the file of a study keeps them, but several workers would number
them differently, so they need a list.

**Randomness.** Every episode begins with ``reset(seed=…)`` and a seed of its own, drawn from the stream of the query:
so episodes are independent even if an environment makes its world from the seed, and one that was interrupted can be
simulated again as it was. All chance must come from that seed, in ``env.np_random`` or otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from inspect import signature
from itertools import accumulate, product
from math import inf, prod
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.inputs import number, shown, whole
from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.problem import Problem
from bestpolicy.problem.names import key_of, plain, positions_of
from bestpolicy.problem.units import Units
from bestpolicy.samples import Episodes, Tally, require_episodes
from bestpolicy.simulators.calls import Calls, current_calls
from bestpolicy.simulators.environments import (
    checked_mask,
    checked_range,
    import_gymnasium,
    list_labels,
    make_environment,
    name_of,
)
from bestpolicy.simulators.stepping import chosen
from bestpolicy.simulators.trajectories import Room, pieces

_LISTED = 100_000  # states of a space up to which it is listed
_REWARD = (
    "Give reward_range=(low, high), the lowest and the highest that can ever occur; clipping would bias the answer."
)


class ResetSimulator:
    """Episodes of a Gymnasium environment that can only be reset and stepped.

    Parameters
    ----------
    env : gymnasium.Env, str, or callable
        An environment, the name that ``gymnasium.make`` knows it by, its class, or a function that makes one. Workers
        on other processes make their own from a name, a class or a function.
    horizon : int
        H, the number of steps that count. The environment's own time limit must not be shorter.
    states : sequence or int, optional
        All observations; or the largest number of them, which are then numbered as they appear. The observation space
        is listed by default.
    actions : sequence, optional
        All actions, where the space is not Discrete.
    reward_range : (low, high)
        The lowest and the highest reward that can ever occur. It is widened to hold 0, which the end pays.
    return_limit : float, optional
        The rewards from any step on never sum to more than this, whatever is done: 1 if all there is to win is one
        reward of 1 at the end. Not below 0, which is left to be earned once it is over. It can save most of the
        episodes; the guarantee then relies on it, and an episode that exceeds it is an error.
    stationary : bool
        Whether the environment behaves alike at every step (most do, unless a clock is part of them). It can save most
        of the episodes; the guarantee then relies on it.
    mask : bool array (n, A), optional
        Actions that are allowed. All by default.

    Attributes
    ----------
    problem : Problem
        State i < n is ``states[i]``; state n is the end.
    states, actions : list
        The environment's own; states so far, if they are numbered as they appear.
    units : Units
        Its rewards, and all this, ready for JSON.
    parameters : dict
        What algorithm "forward" shall know besides.
    """

    def __init__(
        self,
        env: Any,
        *,
        horizon: int,
        states: Sequence[Any] | int | None = None,
        actions: Sequence[Any] | None = None,
        reward_range: tuple[float, float] | None = None,
        return_limit: float | None = None,
        stationary: bool = False,
        mask: ArrayLike | None = None,
    ) -> None:
        gymnasium = import_gymnasium()
        makes = isinstance(env, str | type) or (callable(env) and not hasattr(env, "step"))
        self._make = env if makes else None
        self._env = self._made(env)
        self._horizon = whole("horizon", horizon, 1)
        _require_long_limit(self._env, self._horizon)
        _require_seeds(self._env)
        self.actions = list_labels(gymnasium, self._env, "action_space", "actions", actions)
        positions_of(self.actions, "actions")
        self.states, most = _labels(gymnasium, self._env, states)
        self._grows = most > len(self.states)
        self._number = positions_of(self.states, "states") if self.states else {}
        self._end, self._noted = most, 0
        low, high = checked_range(reward_range)
        low, high = min(low, 0.0), max(high, 0.0)
        self._low, self._high, self._scale = low, high, high - low
        allowed = np.vstack(
            [checked_mask(mask, (most, len(self.actions))), np.eye(1, len(self.actions), dtype=np.bool_)]
        )
        problem = Problem.tabular(*allowed.shape, horizon=self._horizon, mask=allowed, ends=[most])
        self._problem = problem.in_units(Units(self._scale, low))
        # Once it is over nothing more is paid, so that no limit is below 0.
        self.return_limit = inf if return_limit is None else number("return_limit", return_limit, least=0.0)
        left = np.arange(self._horizon, 0, -1)
        limits = (self.return_limit - left * low) / self._scale
        self.stationary = bool(stationary)
        tight = limits.tolist() if return_limit is not None else inf
        self.parameters = {"forward": {"return_limits": tight, "stationary": self.stationary}}
        self._lock = Lock()  # an environment is in one episode at a time

    def _made(self, env: Any) -> Any:
        made = make_environment(import_gymnasium(), env) if isinstance(env, str) else env
        made = made() if self._make is not None and not isinstance(env, str) else made
        if not (hasattr(made, "reset") and hasattr(made, "step")):
            raise InvalidInput(
                f"env must be a Gymnasium environment, its name, or what makes it. Got {shown(made)} instead."
            )
        return made

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None} | ({"_env": None} if self._make is not None else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def __repr__(self) -> str:
        return f"ResetSimulator({name_of(self._environment)}, {self.problem!r})"

    @property
    def _environment(self) -> Any:
        if self._env is None:
            self._env = self._made(self._make)
        return self._env

    @property
    def problem(self) -> Problem:
        """The problem with rewards in [0, 1], the end included."""
        return self._problem

    @property
    def numbers_as_they_appear(self) -> bool:
        """Whether observations get their numbers when they are first seen."""
        return self._grows

    @property
    def units(self) -> Units:
        """What rewards, states and actions mean, those seen so far."""
        unseen = [None] * (self._end - len(self.states))
        return Units(
            self._scale,
            self._low,
            states=[*(plain(state) for state in self.states), *unseen, "the end"],
            actions=[plain(action) for action in self.actions],
            environment=name_of(self._environment),
            own_states=max(1, len(self.states)),
        )

    def know_states(self, labels: Sequence[Any] | None) -> None:
        """Take over the numbers that observations had in a study."""
        if not self._grows or labels is None:
            return
        known = [label for label in labels[: self._end] if label is not None]
        mine = [key_of(plain(state)) for state in self.states]
        theirs = [key_of(label) for label in known]
        if mine[: len(theirs)] != theirs[: len(mine)]:
            raise InvalidInput(
                "the simulator has numbered its observations in another order than the study. Make a new one for it."
            )
        self.states += known[len(mine) :]
        self._number = {key: index for index, key in enumerate(map(key_of, self.states))}

    def rollout(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        """Simulate episodes of a policy from wherever the environment begins.

        Raises
        ------
        SimulatorError
            If a step fails, or returns what it must not; its ``partial`` has all episodes up to there. The one that
            broke off is among them, with a return of 0.
        """
        require_episodes(episodes, self.problem, rng)
        if episodes.start is not None:
            raise InvalidInput(
                "start is not for an environment that can only be reset: it begins where it likes. Leave it out."
            )
        with self._lock:
            return self._episodes(episodes, rng)

    def _episodes(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        problem, calls, tally, before = self.problem, current_calls() or Calls(), Tally.empty(self.problem), 0
        self._recall(calls.told)
        play = _Player(episodes, rng)
        for count in pieces(problem, episodes.count):
            room = Room(problem, count, calls, rng)
            room.states[room.done :], room.rewards[room.done :] = self._end, problem.end_reward
            for i in range(room.done, count):
                states: list[int] = []  # of the episode, as far as it came
                actions: list[int] = []
                paid: list[float] = []
                try:
                    self._follow(play, calls, states, actions, paid, int(rng.integers(2**31)))
                except Exception as error:
                    last = len(actions) - 1
                    where = f"episode {before + i + 1} could not begin"
                    if last >= 0:
                        where = f"step {last} of episode {before + i + 1}, from state {states[last]}"
                    self._write(room, i, states, actions, paid)
                    partial = room.counted(i + (last >= 0), [problem.stages] * i + [last])
                    raise SimulatorError(f"{where}: {one_line(error)}", tally + partial) from error
                self._write(room, i, states, actions, paid)
                room.note((i + 1) * problem.stages, rng, self._news)
            tally, before = tally + room.counted(), before + count
        return tally

    def _write(self, room: Room, i: int, states: list[int], actions: list[int], paid: list[float]) -> None:
        """Put an episode into its place; what follows its end is there already."""
        room.states[i, : len(states)], room.actions[i, : len(actions)] = states, actions
        room.rewards[i, : len(paid)] = (np.array(paid) - self._low) / self._scale

    def _follow(
        self, play: _Player, calls: Calls, states: list[int], actions: list[int], paid: list[float], seed: int
    ) -> None:
        """Play one episode; the lists tell how far it came, if it fails."""
        env, horizon = self._environment, self._horizon
        began = env.reset(seed=seed)  # another one each time, or all episodes would be the same
        states.append(self._numbered(began[0] if isinstance(began, tuple) else began))
        for step in range(horizon):
            calls.tick()
            action = play(step, states[-1])
            actions.append(action)
            observation, reward, terminated, truncated = self._answer(env.step(self.actions[action]))
            paid.append(reward)
            if terminated:
                break
            states.append(self._numbered(observation))
            if truncated and step + 1 < horizon:
                raise InvalidInput(
                    f"the environment cut the episode short after {step + 1} steps, of horizon={horizon}: its "
                    f"time limit is shorter. Make it with max_episode_steps={horizon} or more, or give "
                    f"horizon={step + 1}."
                )
        most = max(accumulate(reversed(paid)))
        if most > self.return_limit + 1e-12 * abs(self.return_limit):
            raise InvalidInput(
                f"rewards of an episode sum to {most:g} from some step on, more than return_limit="
                f"{self.return_limit:g}. Give a limit that holds for every episode, or none."
            )

    def _answer(self, answer: Any) -> tuple[Any, float, Any, Any]:
        """Return what a step came to."""
        try:
            observation, reward, terminated, truncated, _ = answer
            paid = float(reward)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"step must return (observation, reward, terminated, truncated, info). Got {shown(answer)} instead."
            ) from None
        if not self._low <= paid <= self._high:
            what = _REWARD if paid == paid else "Find out why: leaving it out would bias the answer."
            raise InvalidInput(f"reward {reward!r} is not in [{self._low:g}, {self._high:g}]. {what}")
        return observation, paid, terminated, truncated

    def _news(self) -> bytes:
        """Observations that got their numbers since this was last asked, for the record of episodes."""
        if not self._grows or self._noted == len(self.states):
            return b""
        first, self._noted = self._noted, len(self.states)
        return json.dumps([first, [plain(state) for state in self.states[first:]]]).encode()

    def _recall(self, told: list[bytes]) -> None:
        """Take over the numbers that observations of episodes on record have."""
        for first, labels in map(json.loads, told):
            self.know_states([*map(plain, self.states[:first]), *labels])
        self._noted = len(self.states)

    def _numbered(self, observation: Any) -> int:
        try:
            key = key_of(observation)
            known = self._number.get(key)
        except TypeError:
            raise InvalidInput(
                f"observation {shown(observation)} cannot be told from others: it must be a number, a text, an array, "
                "or a tuple or dictionary of them. Wrap the environment to make it so (gymnasium.ObservationWrapper)."
            ) from None
        if known is not None:
            return known
        if not self._grows:
            raise InvalidInput(
                f"observation {shown(observation)} is not one of the {len(self.states)} states. List all of them: "
                "states=[…]."
            )
        if len(self.states) >= self._end:
            raise InvalidInput(
                f"more than {self._end} observations appeared, the number that states={self._end} states. Give a "
                "larger one; if there is no end of them, wrap the environment to tell fewer apart."
            )
        self.states.append(observation)
        self._number[key] = len(self.states) - 1
        return len(self.states) - 1


class _Player:
    """The policy of episodes, as a function of step and state."""

    def __init__(self, episodes: Episodes, rng: np.random.Generator) -> None:
        self._policy, self._rng = episodes.policy, rng
        self._known: list[list[int]] | None = None if episodes.is_stochastic else episodes.policy.tolist()

    def __call__(self, step: int, state: int) -> int:
        if self._known is not None:
            return self._known[step][state]
        return int(chosen(self._policy[step], np.array([state]), self._rng)[0])


def _labels(gymnasium: Any, env: Any, states: Sequence[Any] | int | None) -> tuple[list[Any], int]:
    """Return the observations that are known, and how many there may be."""
    if isinstance(states, int | np.integer):
        return [], whole("states", states, 1)
    if states is not None:
        assert not isinstance(states, int)
        listed = list_labels(gymnasium, env, "observation_space", "states", states)
        return listed, len(listed)
    listed = _members(gymnasium.spaces, getattr(env, "observation_space", None))
    return listed, len(listed)


def _members(spaces: Any, space: Any) -> list[Any]:
    """List a space."""
    size = _size(spaces, space)
    if size > _LISTED:
        what = f"has {size:g} members" if size < inf else f"is {space}, which has no end"
        raise InvalidInput(
            f"the observation space {what}. Give states=, the observations that can occur, or how many there may be."
        )
    if isinstance(space, spaces.Discrete):
        return list(range(int(space.start), int(space.start + space.n)))
    if isinstance(space, spaces.Tuple):
        return [tuple(parts) for parts in product(*(_members(spaces, part) for part in space.spaces))]
    shape = (2,) * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else space.nvec.ravel().tolist()
    return [np.array(parts).reshape(space.shape) for parts in product(*map(range, shape))]


def _size(spaces: Any, space: Any) -> float:
    if isinstance(space, spaces.Discrete):
        return float(space.n)
    if isinstance(space, spaces.Tuple):
        return prod(_size(spaces, part) for part in space.spaces)
    if isinstance(space, spaces.MultiDiscrete):
        return float(np.prod(space.nvec.astype(np.float64)))
    return float(2.0 ** min(1000, np.prod(space.shape))) if isinstance(space, spaces.MultiBinary) else inf


def _require_long_limit(env: Any, horizon: int) -> None:
    """Raise InvalidInput if a time limit would cut episodes short."""
    layer = env
    while layer is not None:
        limit = getattr(layer, "_max_episode_steps", None) if type(layer).__name__ == "TimeLimit" else None
        if isinstance(limit, int) and limit < horizon:
            raise InvalidInput(
                f"the environment's time limit of {limit} steps is shorter than horizon={horizon}. Make it with "
                f"max_episode_steps={horizon} or more, or give horizon={limit}."
            )
        layer = getattr(layer, "env", None) if layer is not getattr(env, "unwrapped", None) else None


def _require_seeds(env: Any) -> None:
    """Raise InvalidInput if `reset` takes no seed: nothing could be repeated."""
    try:
        signature(env.reset).bind(seed=0)
    except TypeError:
        raise InvalidInput(
            "reset must take a seed: give the environment a method reset(self, *, seed=None, options=None) that calls "
            "super().reset(seed=seed), and draw from self.np_random."
        ) from None
    except ValueError:  # it has no signature that could be looked at
        return


__all__ = ["ResetSimulator"]
