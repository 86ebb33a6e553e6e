"""Interpolation on a grid: hat functions (multilinear) and simplices (barycentric).

Both give a point of the box the weights of nearby nodes, whose own features are unit vectors. In k dimensions hats use
the 2^k corners of a cell, simplices the k + 1 corners of one of its simplices (Kuhn's triangulation): the coordinates
inside the cell are sorted, t_(1) ≥ … ≥ t_(k), and the walk from the lowest corner that adds one axis after the other in
that order meets the corners with weights 1 - t_(1), t_(1) - t_(2), …, t_(k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_floats, as_numbers, frozen
from bestpolicy._numerics.inputs import function
from bestpolicy.errors import InvalidInput, one_line
from bestpolicy.features.base import TOLERANCE, FeatureMap, Weights, checked_pairs, culprit, named
from bestpolicy.features.objects import Objects

Point = Callable[[FloatArray, IntArray], Any]


class Grid(FeatureMap):
    """What hats and simplices share.

    Parameters
    ----------
    axes : sequence of arrays
        Nodes along each coordinate of a point, strictly increasing, two at least.
    point : callable, optional
        ``point(states (n, k), actions (n,))`` returns the points (n, len(axes)) that decide what happens: the stock
        after an order, say. By default it is the state itself, whatever the action (see `Blocks` for one grid per
        action).
    state_dimension : int, optional
        k; that of a point by default.
    pairs : (states, actions), optional
        Pairs at which the point is the first node, the second, …, to be simulated. By default the nodes themselves with
        action 0, if these have that point. Otherwise give them, or simulate points (`CallableSimulator(step_from=)`).
    objects : Objects, optional
        If states are objects: `point` gets a list of them.
    """

    def __init__(
        self,
        axes: Sequence[ArrayLike],
        point: Point | None = None,
        *,
        state_dimension: int | None = None,
        pairs: Any = None,
        objects: Objects | None = None,
    ) -> None:
        self.objects = objects
        self.axes = tuple(_checked_axis(i, axis) for i, axis in enumerate(axes))
        if not self.axes:
            raise InvalidInput("axes must have one array of nodes at least.")
        self.point = None if point is None else function("point", point, "point(states, actions) -> points")
        self.shape = tuple(len(axis) for axis in self.axes)
        self.dimension = int(np.prod(self.shape))
        known = len(self.axes) if state_dimension is None else state_dimension
        self.state_dimension = known if objects is None else objects.size
        if self.point is None and self.state_dimension != len(self.axes):
            raise InvalidInput("without a point= the grid must have as many axes as states have coordinates.")
        self._given = None if pairs is None else checked_pairs(pairs, self)
        self._strides = np.array([int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape))], np.int64)

    @cached_property
    def nodes(self) -> FloatArray:
        """All nodes, (d, len(axes)), the last coordinate running fastest."""
        return frozen(np.stack([each.reshape(-1) for each in np.meshgrid(*self.axes, indexing="ij")], axis=1))

    @cached_property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """Pairs whose points are the nodes."""
        if self._given is not None:
            states, actions = self._given
            off = np.abs(self.points(states, actions) - self.nodes).max(axis=1) if len(states) == len(self.nodes) else 1
            if not np.all(np.asarray(off) <= TOLERANCE * (1 + np.abs(self.nodes).max())):
                raise InvalidInput(
                    f"pairs must be {self.dimension} pairs whose points are the nodes, in the order of `nodes`."
                )
            return self._given
        if self.state_dimension != len(self.axes):
            return None
        states, actions = self.nodes, np.zeros(self.dimension, np.int64)
        try:
            there = np.abs(self.points(states, actions) - self.nodes).max() <= TOLERANCE
        except InvalidInput:
            return None
        return (states, frozen(actions)) if there else None

    def points(self, states: FloatArray, actions: IntArray) -> FloatArray:
        """Return the points of pairs, inside the box."""
        if self.point is None:
            found = states
        else:
            try:
                found = np.asarray(as_numbers("points", self.point(self.given(states), actions)), dtype=np.float64)
            except InvalidInput:
                raise
            except Exception as error:
                where = culprit(lambda some, chosen: self.point(self.given(some), chosen), states, actions)  # type: ignore[misc]
                raise InvalidInput(f"point failed at {where} ({one_line(error)}).") from error
            if found.shape != (len(states), len(self.axes)):
                raise InvalidInput(
                    f"point must return shape ({len(states)}, {len(self.axes)}). Got {found.shape} at "
                    f"{named(states, actions)}."
                )
        low, high = (np.array([axis[end] for axis in self.axes]) for end in (0, -1))
        slack = TOLERANCE * (high - low)
        inside = ((found >= low - slack) & (found <= high + slack)).all(axis=1)
        if not inside.all():
            first = int(np.argmin(inside))
            box = " x ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
            where = named(states, actions, first)
            at = "" if self.point is None else f" has the point {named(found, row=first).removeprefix('state ')}, which"
            raise InvalidInput(
                f"{where}{at} lies outside of the grid {box}. Widen the axes, or keep states inside (clip them in the "
                "simulator, if that is what the system does)."
            )
        return np.clip(found, low, high)

    def _cells(self, points: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the lowest corner of each point's cell (n, k'), and where the point is in it, in [0, 1]."""
        corner = np.empty(points.shape, np.int64)
        inside = np.empty(points.shape)
        for i, axis in enumerate(self.axes):
            corner[:, i] = np.clip(np.searchsorted(axis, points[:, i], side="right") - 1, 0, len(axis) - 2)
            low = axis[corner[:, i]]
            inside[:, i] = (points[:, i] - low) / (axis[corner[:, i] + 1] - low)
        return corner, inside

    def to_dict(self) -> dict[str, Any] | None:
        """Return the axes, if the point is the state itself."""
        if self.point is not None or self._given is not None or self.objects is not None:
            return None
        return {"kind": self.kind, "axes": [axis.tolist() for axis in self.axes]}


class Hats(Grid):
    """Multilinear interpolation: products of hat functions.

    >>> import numpy as np
    >>> grid = Hats([np.linspace(0, 10, 3), [0.0, 1.0]])
    >>> grid([[2.5, 0.0]], [0]).toarray()
    array([[0.5, 0. , 0.5, 0. , 0. , 0. ]])
    """

    kind: ClassVar[str] = "hats"

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weights of the 2^k corners of a point's cell."""
        corner, inside = self._cells(self.points(states, actions))
        index = (corner @ self._strides)[:, None]
        weight = np.ones((len(states), 1))
        for i, stride in enumerate(self._strides):
            t = inside[:, i : i + 1]
            index = np.concatenate([index, index + stride], axis=1)
            weight = np.concatenate([weight * (1.0 - t), weight * t], axis=1)
        return index, weight


class Simplices(Grid):
    """Barycentric interpolation on Kuhn's triangulation of the grid: k + 1 weights in k dimensions.

    >>> grid = Simplices([[0.0, 1.0], [0.0, 1.0]])
    >>> grid([[0.75, 0.25]], [0]).toarray()
    array([[0.25, 0.  , 0.5 , 0.25]])
    """

    kind: ClassVar[str] = "simplices"

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Weights of the corners of a point's simplex."""
        corner, inside = self._cells(self.points(states, actions))
        order = np.argsort(-inside, axis=1, kind="stable")
        sorted_inside = np.take_along_axis(inside, order, axis=1)
        ends = np.ones((len(states), 1)), np.zeros((len(states), 1))
        weight = -np.diff(np.concatenate([ends[0], sorted_inside, ends[1]], axis=1), axis=1)
        steps = np.cumsum(self._strides[order], axis=1)
        first = (corner @ self._strides)[:, None]
        return np.concatenate([first, first + steps], axis=1), weight


def regular_nodes(axes: Sequence[FloatArray]) -> FloatArray:
    """All combinations of the axes' numbers, (d, k)."""
    return np.array(list(product(*axes)))


def _checked_axis(number: int, axis: ArrayLike) -> FloatArray:
    nodes = as_floats(f"axis {number}", axis, ("nodes",))
    if len(nodes) < 2 or not np.isfinite(nodes).all() or not (np.diff(nodes) > 0).all():
        raise InvalidInput(f"axis {number} must be two or more finite numbers, strictly increasing.")
    return nodes
