"""What a problem's states and actions are called in an environment: any labels that can be told apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from bestpolicy.errors import InvalidInput


def key_of(label: Any) -> Hashable:
    """Return something hashable that equal labels share, be they numbers, arrays, tuples or dictionaries of them."""
    if hasattr(label, "tolist"):
        label = label.tolist()
    if isinstance(label, dict):
        return frozenset((name, key_of(value)) for name, value in label.items())
    return tuple(map(key_of, label)) if isinstance(label, list | tuple) else label


def positions_of(labels: Iterable[Any], name: str) -> dict[Hashable, int]:
    """Return where each label is in the list, by its key."""
    try:
        keys = [key_of(label) for label in labels]
        positions = {key: index for index, key in enumerate(keys)}
    except TypeError as error:
        raise InvalidInput(
            f"{name} must be a list of numbers, strings, tuples, arrays or dictionaries of them ({error})."
        ) from None
    if not keys or len(positions) < len(keys):
        raise InvalidInput(f"{name} must list each one once, and there must be some.")
    return positions


def plain(label: Any) -> Any:
    """Return a label as JSON can hold it."""
    if hasattr(label, "tolist"):
        label = label.tolist()
    if isinstance(label, dict):
        return {str(name): plain(value) for name, value in label.items()}
    if isinstance(label, list | tuple):
        return [plain(part) for part in label]
    return label if label is None or isinstance(label, bool | int | float | str) else str(label)
