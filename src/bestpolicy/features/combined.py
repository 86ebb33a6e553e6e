"""Maps made of maps: products, and sums of disjoint blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_whole, frozen
from bestpolicy._numerics.inputs import function, of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.features.base import FeatureMap, Weights, checked_pairs, named


class Product(FeatureMap):
    """Products of two maps' features, which are convex again: φ(s, a) = φ₁(s₁, a) ⊗ φ₂(s₂, a).

    Parameters
    ----------
    first, second : FeatureMap
        The coordinates of a state are those of the first map and then those of the second.

    Examples
    --------
    >>> from bestpolicy.features import Hats, Tiles
    >>> both = Product(Hats([[0.0, 1.0]]), Tiles([[0, 1, 2]]))
    >>> both([[0.25, 1.5]], [0]).toarray()
    array([[0.  , 0.75, 0.  , 0.25]])
    """

    kind: ClassVar[str] = "product"

    def __init__(self, first: FeatureMap, second: FeatureMap) -> None:
        of_type("first", first, FeatureMap)
        of_type("second", second, FeatureMap)
        if first.objects is not None or second.objects is not None:
            raise InvalidInput("a product is of maps for rows of numbers, not for objects. Use Custom.")
        self.first, self.second = first, second
        self.dimension = first.dimension * second.dimension
        self.state_dimension = first.state_dimension + second.state_dimension

    @cached_property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """All combinations of both maps' pairs, if their actions agree or one of them does not look at actions."""
        one, other = self.first.pairs, self.second.pairs
        if one is None or other is None:
            return None
        i, j = (each.reshape(-1) for each in np.meshgrid(*(np.arange(len(p[1])) for p in (one, other)), indexing="ij"))
        states = np.concatenate([one[0][i], other[0][j]], axis=1)
        for actions in (one[1][i], other[1][j]):
            rows = self(states, actions)
            if rows.shape[0] >= self.dimension and np.linalg.matrix_rank(rows.toarray()) == self.dimension:
                return frozen(states), frozen(actions)
        return None

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """All products of weights."""
        split = self.first.state_dimension
        (i, x), (j, y) = self.first.weights(states[:, :split], actions), self.second.weights(states[:, split:], actions)
        index = i[:, :, None] * self.second.dimension + j[:, None, :]
        weight = x[:, :, None] * y[:, None, :]
        return index.reshape(len(states), -1), weight.reshape(len(states), -1)

    def to_dict(self) -> dict[str, Any] | None:
        """Return both maps, if files can hold them."""
        parts = self.first.to_dict(), self.second.to_dict()
        return None if None in parts else {"kind": self.kind, "first": parts[0], "second": parts[1]}


class Blocks(FeatureMap):
    """Disjoint sum: a pair has the features of one of several maps, each in coordinates of its own.

    Parameters
    ----------
    maps : sequence of FeatureMap
    block : callable, optional
        ``block(states, actions)`` says which map a pair belongs to; the action by default: ``Blocks([Hats(axes)] * 3)``
        are hats for each of three actions.
    pairs : (states, actions), optional
        What is simulated, if `block` is given: those of the first map, then those of the second, ….

    Examples
    --------
    >>> from bestpolicy.features import Hats
    >>> Blocks([Hats([[0.0, 1.0]])] * 2)([[0.25], [0.25]], [0, 1]).toarray()
    array([[0.75, 0.25, 0.  , 0.  ],
           [0.  , 0.  , 0.75, 0.25]])
    """

    kind: ClassVar[str] = "blocks"

    def __init__(
        self,
        maps: Sequence[FeatureMap],
        block: Callable[[FloatArray, IntArray], Any] | None = None,
        *,
        pairs: Any = None,
    ) -> None:
        self.maps = tuple(maps)
        for each in self.maps:
            of_type("each of maps", each, FeatureMap)
        if not self.maps or len({each.state_dimension for each in self.maps}) != 1:
            raise InvalidInput("maps must be one or more, all of them for states of the same dimension.")
        self.state_dimension, self.objects = self.maps[0].state_dimension, self.maps[0].objects
        if any(each.objects is not self.objects for each in self.maps):
            raise InvalidInput("maps must all be for the same objects, or all for rows of numbers.")
        self._begin = np.concatenate([[0], np.cumsum([each.dimension for each in self.maps])])
        self.dimension = int(self._begin[-1])
        self._block = None if block is None else function("block", block, "block(states, actions) -> numbers of maps")
        self._given = None if pairs is None else checked_pairs(pairs, self)

    @cached_property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """The pairs of all maps; by default each with the action that stands for its block."""
        if self._given is not None:
            return self._given
        known = [each.pairs for each in self.maps]
        if any(each is None for each in known):
            return None
        states = np.concatenate([each[0] for each in known if each is not None])
        if self._block is None:
            actions = np.repeat(np.arange(len(known)), [len(each[1]) for each in known if each is not None])
        else:
            actions = np.concatenate([each[1] for each in known if each is not None])
        return frozen(states), frozen(actions)

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weights of the map that a pair belongs to, in its block."""
        chosen = actions if self._block is None else as_whole("block", self._block(self.given(states), actions))
        if chosen.shape != (len(states),):
            raise InvalidInput(f"block must return shape ({len(states)},). Got {chosen.shape} instead.")
        known = (chosen >= 0) & (chosen < len(self.maps))
        if not known.all():
            first = int(np.argmin(known))
            raise InvalidInput(
                f"{named(states, actions, first)} belongs to block {chosen[first]}, which is none of "
                f"0..{len(self.maps) - 1}."
            )
        parts = []
        for i, each in enumerate(self.maps):
            rows = np.flatnonzero(chosen == i)
            if len(rows):
                parts.append((rows, i, *each.weights(states[rows], actions[rows])))
        wide = max((part[2].shape[1] for part in parts), default=1)
        index, weight = np.zeros((len(states), wide), np.int64), np.zeros((len(states), wide))
        for rows, i, some, much in parts:
            index[rows, : some.shape[1]] = some + self._begin[i]
            weight[rows, : some.shape[1]] = much
        return index, weight

    def to_dict(self) -> dict[str, Any] | None:
        """Return all maps, if files can hold them."""
        parts = [each.to_dict() for each in self.maps]
        if None in parts or self._block is not None or self._given is not None:
            return None
        return {"kind": self.kind, "maps": parts}
