"""Aggregation, hard and soft: pairs that are taken for alike share a coordinate, or weigh several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_floats, as_numbers, frozen
from bestpolicy._numerics.inputs import function, number, whole
from bestpolicy.errors import InvalidInput, one_line
from bestpolicy.features.base import FeatureMap, Weights, checked_pairs, checked_states, culprit, named
from bestpolicy.features.grids import regular_nodes
from bestpolicy.features.objects import Objects

_BLOCK = 2**22  # distances that are worked out at once


class Aggregation(FeatureMap):
    """Hard aggregation: each pair belongs to one of d classes, and those of a class are taken for alike.

    Parameters
    ----------
    classes : callable
        ``classes(states (n, k), actions (n,))`` returns the class of each pair, a whole number in 0..d-1.
    representatives : (states (d, k), actions (d,))
        A pair of each class, in order: what is simulated.
    objects : Objects, optional
        If states are objects: `classes` gets a list of them.
    """

    def __init__(
        self, classes: Callable[[Any, IntArray], Any], representatives: Any, *, objects: Objects | None = None
    ) -> None:
        self._classes = function("classes", classes, "classes(states, actions) -> whole numbers")
        self.objects = objects
        states = representatives[0] if objects is None else objects.rows(representatives[0], "representatives")
        states = np.asarray(states)
        if states.ndim != 2 or not states.shape[0]:
            raise InvalidInput(f"states of representatives must have shape (d, k). Got shape {states.shape} instead.")
        self.state_dimension, self.dimension = states.shape[1], states.shape[0]
        self._pairs = checked_pairs(representatives, self)
        found = self.weights(*self._pairs)[0][:, 0]
        if not (found == np.arange(self.dimension)).all():
            first = int(np.flatnonzero(found != np.arange(self.dimension))[0])
            raise InvalidInput(
                f"representative {first}, {named(*self._pairs, first)}, belongs to class {found[first]}, not {first}."
            )

    @property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """The representatives."""
        return self._pairs

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weight 1 for the class."""
        try:
            found = np.asarray(as_numbers("classes", self._classes(self.given(states), actions)))
        except InvalidInput:
            raise
        except Exception as error:
            where = culprit(lambda some, chosen: self._classes(self.given(some), chosen), states, actions)
            raise InvalidInput(f"classes failed at {where} ({one_line(error)}).") from error
        if found.shape != (len(states),):
            raise InvalidInput(f"classes must return shape ({len(states)},). Got {found.shape} instead.")
        with np.errstate(invalid="ignore"):
            good = (found >= 0) & (found < self.dimension) & (found == np.floor(found))
        if not good.all():
            first = int(np.argmin(good))
            raise InvalidInput(
                f"{named(states, actions, first)} has the class {found[first]}, which is none of "
                f"0..{self.dimension - 1}."
            )
        return found.astype(np.int64)[:, None], np.ones((len(states), 1))


class Tiles(FeatureMap):
    """One tiling of a box into cells, the classes of a hard aggregation; the middle of a cell represents it.

    (Tile coding proper, with several tilings, is a mean of such maps whose cells overlap: no pair has the features of a
    single cell, so nothing is certified about it from cells. `Hats` do what it is for.)

    Parameters
    ----------
    axes : sequence of arrays
        Edges of the cells along each coordinate of the state, strictly increasing.

    Examples
    --------
    >>> Tiles([[0, 1, 2], [0, 5, 10]])([[1.5, 5.0]], [0]).toarray()
    array([[0., 0., 0., 1.]])
    """

    kind: ClassVar[str] = "tiles"

    def __init__(self, axes: Sequence[ArrayLike]) -> None:
        self.axes = tuple(as_floats(f"axis {i}", axis, ("edges",)) for i, axis in enumerate(axes))
        if not self.axes or any(len(axis) < 2 or not (np.diff(axis) > 0).all() for axis in self.axes):
            raise InvalidInput("axes must be arrays of two or more edges each, strictly increasing.")
        self.state_dimension = len(self.axes)
        self._sizes = [len(axis) - 1 for axis in self.axes]
        self.dimension = int(np.prod(self._sizes))

    @cached_property
    def nodes(self) -> FloatArray:
        """The middles of the cells."""
        return frozen(regular_nodes([(axis[:-1] + axis[1:]) / 2 for axis in self.axes]))

    @cached_property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """The middles of the cells, with action 0."""
        return self.nodes, frozen(np.zeros(self.dimension, np.int64))

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weight 1 for the cell."""
        index = np.zeros(len(states), np.int64)
        for i, (axis, size) in enumerate(zip(self.axes, self._sizes, strict=True)):
            outside = (states[:, i] < axis[0]) | (states[:, i] > axis[-1])
            if outside.any():
                where = named(states, row=int(outside.argmax()))
                raise InvalidInput(
                    f"{where} lies outside of the tiles, [{axis[0]:g}, {axis[-1]:g}] in coordinate {i}. Widen the axes."
                )
            index = index * size + np.clip(np.searchsorted(axis, states[:, i], side="right") - 1, 0, size - 1)
        return index[:, None], np.ones((len(states), 1))

    def to_dict(self) -> dict[str, Any] | None:
        """Return the edges."""
        return {"kind": self.kind, "axes": [axis.tolist() for axis in self.axes]}


class SoftAggregation(FeatureMap):
    """Soft aggregation: normalised Gaussian kernels around centres. Convex, but no pair has a unit vector for features.

    Parameters
    ----------
    centres : array (d, k)
    width : float or array (k,)
        Standard deviation of the kernels, in the units of each coordinate.

    Examples
    --------
    >>> SoftAggregation([[0.0], [1.0]], width=0.5)([[0.5]], [0]).toarray()
    array([[0.5, 0.5]])
    """

    kind: ClassVar[str] = "soft aggregation"

    def __init__(self, centres: ArrayLike, width: ArrayLike) -> None:
        self.centres = as_floats("centres", centres, ("d", "k"))
        self.dimension, self.state_dimension = self.centres.shape
        checked_states(self.centres, self.state_dimension, "centres")
        given = np.atleast_1d(np.asarray(width, dtype=np.float64))
        for each in given:
            number("width", float(each), above=0)
        self.width = frozen(np.broadcast_to(given, (self.state_dimension,)).copy())

    @property
    def nodes(self) -> FloatArray | None:
        """The centres; their features are *not* the unit vectors."""
        return None

    @cached_property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """The centres, with action 0."""
        return self.centres, frozen(np.zeros(self.dimension, np.int64))

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weights of all centres."""
        scaled, centres = states / self.width, self.centres / self.width
        found = np.empty((len(states), self.dimension))
        step = max(1, _BLOCK // (self.dimension * self.state_dimension))
        for first in range(0, len(states), step):
            some = scaled[first : first + step, None, :] - centres
            exponents = -0.5 * (some**2).sum(axis=2)
            kernels = np.exp(exponents - exponents.max(axis=1, keepdims=True))
            found[first : first + step] = kernels / kernels.sum(axis=1, keepdims=True)
        return np.broadcast_to(np.arange(self.dimension), found.shape), found

    def to_dict(self) -> dict[str, Any] | None:
        """Return centres and widths."""
        return {"kind": self.kind, "centres": self.centres.tolist(), "width": self.width.tolist()}


class Actions(FeatureMap):
    """One-hot features of the action alone.

    Parameters
    ----------
    actions : int
        How many there are.
    state_dimension : int
    """

    kind: ClassVar[str] = "actions"

    def __init__(self, actions: int, state_dimension: int) -> None:
        self.dimension = whole("actions", actions, 1)
        self.state_dimension = whole("state_dimension", state_dimension, 0)

    @property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """Every action, in the state of zeros."""
        return np.zeros((self.dimension, self.state_dimension)), np.arange(self.dimension)

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weight 1 for the action."""
        if len(actions) and not (actions.min() >= 0 and actions.max() < self.dimension):
            raise InvalidInput(f"actions must be in 0..{self.dimension - 1}. Got {actions.min()} to {actions.max()}.")
        return actions[:, None], np.ones((len(states), 1))

    def to_dict(self) -> dict[str, Any] | None:
        """Return how many actions and coordinates there are."""
        return {"kind": self.kind, "actions": self.dimension, "state_dimension": self.state_dimension}
