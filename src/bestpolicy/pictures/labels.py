"""What states and actions are called: as in their environment if a study knows that, else by their numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units


@dataclass(frozen=True)
class Labels:
    """Names for people; they may be hostile.

    Attributes
    ----------
    environment : str
        Name of the environment; empty if it is not known.
    states, actions : tuple of str
        Names by number; empty where the numbers will do.
    amounts : tuple of float, optional
        The actions, if they are numbers that mean something, such as how much to order.
    """

    environment: str = ""
    states: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    amounts: tuple[float, ...] | None = None

    @classmethod
    def of(cls, units: Units, problem: Problem) -> Labels:
        """Take the names of a study or a certificate; what does not fit the problem is left out."""
        actions = _texts(units.actions, problem.actions)
        named = bool(actions) and units.own_states is None and all(map(_is_amount, units.actions or ()))
        return cls(
            str(units.environment or ""),
            _texts(units.states, problem.states),
            actions,
            tuple(map(float, units.actions or ())) if named else None,
        )

    def state(self, number: int) -> str:
        """Name of a state."""
        return self.states[number] if self.states else str(number)

    def action(self, number: int) -> str:
        """Name of an action."""
        return self.actions[number] if self.actions else str(number)


def _is_amount(label: Any) -> bool:
    return isinstance(label, int | float) and not isinstance(label, bool) and abs(label) < 1e15


def _texts(labels: Any, count: int) -> tuple[str, ...]:
    if not isinstance(labels, list) or len(labels) != count:
        return ()
    return tuple(map(_text, labels))


def _text(label: Any) -> str:
    if isinstance(label, list):  # a tuple, before it was in a file
        return "(" + ", ".join(map(_text, label)) + ")"
    return label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)
