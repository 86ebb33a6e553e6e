"""What states and actions are called: anything that can be told apart, such as texts, numbers and tuples.

A problem numbers its states and actions; names are for people and leave the mathematics alone, so they are no part of a
problem's fingerprint. Files and pages have them as `plain` text, numbers and lists (in `Units`); who runs a simulator
of named states gets the very objects back.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from bestpolicy._numerics.inputs import shown
from bestpolicy.errors import InvalidInput

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")
_FEW = 8  # names that an error lists


@dataclass(frozen=True)
class Names:
    """States and actions of a problem by number.

    Attributes
    ----------
    states, actions : tuple
        The user's own; numbers if they have no names.
    """

    states: tuple[Any, ...]
    actions: tuple[Any, ...]

    @classmethod
    def of(cls, states: list[Any] | None, actions: list[Any] | None, size: tuple[int, int]) -> Names:
        """Return names as files have them, as far as there are any; lists become tuples, which are hashable."""
        known = zip((states, actions), size, strict=True)
        return cls(*(tuple(range(n)) if names is None else tuple(map(key_of, names)) for names, n in known))

    @cached_property
    def _positions(self) -> dict[Hashable, int]:
        as_in_files = {key_of(plain(state)): number for number, state in enumerate(self.states)}
        return as_in_files | {key_of(state): number for number, state in enumerate(self.states)}

    def number(self, state: Any) -> int:
        """Return the number of a state."""
        for key in (key_of(state), key_of(plain(state))):
            with suppress(KeyError, TypeError):
                return self._positions[key]
        raise InvalidInput(f"{shown(state)} is not one of the states: {listed(self.states)}.")

    def pair(self, state: int, action: int) -> str:
        """Return a pair in words, ``(state 'worn', action 'run')``."""
        return f"(state {shown(self.states[state])}, action {shown(self.actions[action])})"


def listed(names: Iterable[Any]) -> str:
    """Return the first few names, and how many there are if that is not all."""
    every = list(names)
    text = ", ".join(map(shown, every[:_FEW]))
    return text if len(every) <= _FEW else f"{text}, … ({len(every):,} in all)"


def key_of(label: Any) -> Hashable:
    """Return something hashable that equal labels share, be they numbers, arrays, tuples or dictionaries of them."""
    if type(label) is int or type(label) is str:  # most are
        return label
    if hasattr(label, "tolist"):
        label = label.tolist()
    if isinstance(label, dict):
        return frozenset((name, key_of(value)) for name, value in label.items())
    return tuple(map(key_of, label)) if isinstance(label, list | tuple) else label


def positions_of(labels: Iterable[Any], name: str) -> dict[Hashable, int]:
    """Return where each label is in the list, by its key."""
    try:
        labels = list(labels)
        keys = [key_of(label) for label in labels]
        positions = {key: index for index, key in enumerate(keys)}
    except TypeError as error:
        raise InvalidInput(
            f"{name} must be a list of numbers, strings, tuples, arrays or dictionaries of them ({error})."
        ) from None
    if not keys:
        raise InvalidInput(f"{name} must list each one once, and there must be some.")
    if len(positions) < len(keys):  # a dictionary keeps the last place of a key
        again = next(label for index, label in enumerate(labels) if positions[keys[index]] != index)
        raise InvalidInput(f"{name} must list each one once. {shown(again)} is there more than once.")
    return positions


def plain(label: Any) -> Any:
    """Return a label as JSON can hold it."""
    if hasattr(label, "tolist"):
        label = label.tolist()
    if isinstance(label, dict):
        return {str(name): plain(value) for name, value in label.items()}
    if isinstance(label, list | tuple):
        return [plain(part) for part in label]
    if isinstance(label, set | frozenset):  # their order is another one in each process
        return "{" + ", ".join(sorted(str(plain(part)) for part in label)) + "}"
    if isinstance(label, Enum):
        return label.name
    return label if label is None or isinstance(label, bool | int | float | str) else str(label)


def plain_names(labels: Iterable[Any], name: str) -> list[Any]:
    """Return labels as files and pages have them: each its own, and the same in every process."""
    texts: list[Any] = []
    first: dict[Hashable, Any] = {}
    for label in labels:
        text = plain(label)
        if _ADDRESS.search(str(text)):
            raise InvalidInput(
                f"{name} must have names: {shown(label)} has none. Give its class a method __str__ that says what "
                "tells it from others, or use texts, numbers or tuples."
            )
        if (key := key_of(text)) in first:
            raise InvalidInput(
                f"{name} must have names of their own. {shown(first[key])} and {shown(label)} are both called {text!r}."
            )
        first[key] = label
        texts.append(text)
    return texts
