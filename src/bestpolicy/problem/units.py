"""What a problem's numbers mean to its user: rewards in the user's units, names of states and actions.

A problem has rewards in [0, 1] and numbered states and actions. A simulator whose own differ says how, in its optional
attribute ``units``; then ε, gaps and values are reported in the user's units, and files and pages use the names.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy._numerics.inputs import interval, number, shown, whole
from bestpolicy.errors import InvalidInput
from bestpolicy.problem.names import Names
from bestpolicy.problem.problem import Problem
from bestpolicy.problem.truncation import Truncated


@dataclass(frozen=True)
class Units:
    """Rewards, states and actions as the user knows them.

    Attributes
    ----------
    reward_scale, reward_offset : float
        A reward of the user's is offset + scale · (reward in [0, 1]).
    states, actions : list, optional
        Their names, ready for JSON.
    environment : str
        Where they come from.
    own_states : int, optional
        Show policies for the first so many states only (others, such as the end of a game, were added), and as the
        user's own actions.
    reward_bias : float
        What a step can add to the loss of a policy because rewards are truncated to their range (`Truncated`), in the
        user's units.
    """

    reward_scale: float = 1.0
    reward_offset: float = 0.0
    states: list[Any] | None = None
    actions: list[Any] | None = None
    environment: str = ""
    own_states: int | None = None
    reward_bias: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward_scale", number("reward_scale", self.reward_scale, above=0))
        object.__setattr__(self, "reward_offset", number("reward_offset", self.reward_offset, least=-inf))
        object.__setattr__(self, "reward_bias", number("reward_bias", self.reward_bias))
        interval("reward_offset and reward_scale", self.reward_range)
        if self.own_states is not None:
            whole("own_states", self.own_states, 1)
        if not isinstance(self.environment, str):
            raise InvalidInput(f"environment must be a text. Got {shown(self.environment)} instead.")
        for name in ("states", "actions", "environment"):
            try:
                json.dumps(getattr(self, name), allow_nan=False, ensure_ascii=False).encode()
            except Exception as error:  # whatever is among the names
                raise InvalidInput(
                    f"{name} of units must be ready for JSON: texts, finite numbers, lists of them ({error!s:.200})."
                ) from None

    @classmethod
    def of_range(cls, reward_range: tuple[float, float] | Truncated) -> Units:
        """Return the units of rewards in [low, high]."""
        if isinstance(reward_range, Truncated):
            low, high = reward_range.low, reward_range.high
            return cls(reward_scale=high - low, reward_offset=low, reward_bias=reward_range.charge)
        low, high = interval("reward_range", reward_range)
        return cls(reward_scale=high - low, reward_offset=low)

    @classmethod
    def of(cls, simulator: Any, default: Units | None = None) -> Units:
        """Return the units of a simulator, its attribute ``units``; the default if it declares none."""
        units = getattr(simulator, "units", None)
        if units is not None and not isinstance(units, Units):
            raise InvalidInput(f"units of a simulator must be bestpolicy.Units. Got {shown(units)} instead.")
        return units or default or cls()

    @property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward."""
        return self.reward_offset, self.reward_offset + self.reward_scale

    def names(self, problem: Problem) -> Names:
        """Return what the states and actions of a problem are called; by their numbers where nothing is known."""
        known = ((self.states, problem.states), (self.actions, problem.actions))
        fitting = [labels if isinstance(labels, list) and len(labels) == number else None for labels, number in known]
        return Names.of(fitting[0], fitting[1], (problem.states, problem.actions))

    def policy(self, staged: IntArray) -> IntArray:
        """Return a policy (stages, S) as the user plays it."""
        if self.own_states is None:
            return staged
        shown_part = staged[:, : self.own_states]
        return shown_part if self.actions is None else np.asarray(self.actions)[shown_part]

    def truncation_loss(self, problem: Problem) -> float:
        """Return what truncated rewards may add to the loss of a policy."""
        return self.reward_bias * float(problem.value_limits[0])

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)
