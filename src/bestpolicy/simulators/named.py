"""A user's own simulator, of states and actions that are called what the user calls them.

Every pair has a coordinate of its own (`Problem.tabular`), with which any finite problem is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import function, shown
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.problem.names import Names, key_of, listed, plain_names, positions_of
from bestpolicy.problem.truncation import Truncated
from bestpolicy.simulators.user import CallableSimulator


class NamedSimulator(CallableSimulator):
    """Simulator made from a function of states and actions that have names.

    ``identify(step, states=…, actions=…, …)`` makes one; to go on with a stored study by `drive`, make it yourself.

    Parameters
    ----------
    step : callable
        ``step(state, action, rng) -> (reward, next_state)``, with the states and actions that are listed here. If the
        problem is episodic and the function has a parameter named ``stage``, it is passed too (0..H-1).
    states : sequence
        All of them: texts, numbers, tuples, or anything else that is hashable.
    actions : sequence or callable
        All of them; or ``actions(state)``, a list of those that are allowed in a state.
    discount, horizon
        Exactly one of them, as in `Problem`.
    reward_range : (low, high)
        The lowest and the highest reward that can ever occur; `Truncated` if there are none.
    ends : sequence, optional
        States in which the process is over, listed in `states` or not: `step` is never asked about them, every later
        reward is 0.
    features : array (S, A, d), optional
        Of all pairs; by default each of them has a coordinate of its own.

    Attributes
    ----------
    names : Names
    units : Units
    road : str
        Why the states are listed, if that was a choice.
    """

    road = ""

    def __init__(
        self,
        step: Callable[..., tuple[Any, Any]],
        *,
        states: Iterable[Any],
        actions: Iterable[Any] | Callable[[Any], Iterable[Any]],
        discount: float | None = None,
        horizon: int | None = None,
        reward_range: tuple[float, float] | Truncated = (0.0, 1.0),
        ends: Iterable[Any] = (),
        features: FloatArray | None = None,
    ) -> None:
        function("step", step, "step(state, action, rng) -> (reward, next_state)")
        known = _listed("states", states, "range(12) for twelve numbered ones")
        over = {key_of(end): end for end in (_listed("ends", ends) if not _is_empty(ends) else [])}
        listed_already = {key_of(state) for state in known}
        known += [end for key, end in over.items() if key not in listed_already]
        self._number = positions_of(known, "states")
        allowed = []
        if callable(actions):
            allowed = [
                [] if key_of(state) in over else _listed(f"actions({shown(state)})", actions(state)) for state in known
            ]
        every = list({key_of(name): name for some in allowed for name in some}.values()) or _listed("actions", actions)
        position = positions_of(every, "actions")
        mask = None
        if allowed:
            mask = np.zeros((len(known), len(every)), np.bool_)
            for row, some in zip(mask, allowed, strict=True):
                row[[position[key_of(name)] for name in some]] = True
        self.names = Names(tuple(known), tuple(every))
        numbers = sorted(self._number[key] for key in over)
        time: dict[str, Any] = {"discount": discount, "horizon": horizon}
        if features is None:
            problem = Problem.tabular(len(known), len(every), mask=mask, ends=numbers, **time)
        else:
            problem = Problem(features, **time)
        super().__init__(problem, step, reward_range=reward_range)
        self.units = replace(
            self.units,
            states=plain_names(known, "states"),
            actions=plain_names(every, "actions"),
        )

    def __repr__(self) -> str:
        return f"NamedSimulator({self.problem!r})"

    def _pair(self, state: int, action: int) -> str:
        return self.names.pair(state, action)

    def _function(self) -> Callable[..., Any]:
        step, states, actions, number = self.step, self.names.states, self.names.actions, self._number

        def numbered(state: int, action: int, rng: np.random.Generator, **extra: int) -> Any:
            answer = step(states[state], actions[action], rng, **extra)
            try:
                reward, following = answer
            except (TypeError, ValueError):
                return answer  # said where it is looked at
            try:
                return reward, number[following]
            except (KeyError, TypeError):
                return reward, self._found(following)

        return numbered

    def _found(self, state: Any) -> int:
        """Return the number of a state that may be an array or a list, or say that there is none."""
        try:
            return self._number[key_of(state)]
        except (KeyError, TypeError):
            raise InvalidInput(
                f"next state {shown(state)} is not one of the states that were listed: {listed(self.names.states)}. "
                "Add it to states=, or to ends= if the process is over there, or mend step."
            ) from None


def _is_empty(given: Any) -> bool:
    """Whether nothing was given; what has no length is something."""
    return hasattr(given, "__len__") and len(given) == 0


def _listed(name: str, given: Any, example: str = "") -> list[Any]:
    """Return what a user lists."""
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
        hint = f" ({example})" if example else ""
        raise InvalidInput(f"{name} must be a list of all of them{hint}. Got {shown(given)} instead.")
    found = list(given)
    if not found:
        raise InvalidInput(f"{name} must not be empty: every state needs an action.")
    return found
