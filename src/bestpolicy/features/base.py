"""What a feature map is: convex combinations of d points, for states that nobody can list.

φ(s, a) lies in the unit simplex of R^d for every state and action: d weights, not negative, with sum 1. So the hull of
all features is known without listing a single state: the unit vectors e_1, …, e_d. (Features with another known hull of
N points are features of this kind: take the weights of φ(s, a) on those points as the N features.)

*Pairs* are what is simulated: (state, action) pairs whose features span R^d. They are *anchors* if the features of the
j-th of them are e_j, as those of the nodes of a grid are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, eye_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_numbers, as_whole, frozen
from bestpolicy._numerics.inputs import function, of_type, whole
from bestpolicy.errors import InvalidInput, one_line
from bestpolicy.features.objects import Objects

TOLERANCE = 1e-9  # how far weights may be from a convex combination, and a point outside of its box
SPANNED = 1e-10  # how exactly combinations of the pairs' features must give the unit vectors
_SHOWN = 6  # coordinates of a state in an error

Weights = tuple[IntArray, FloatArray]  # which coordinates a row has (n, w), and how much of each


class FeatureMap(ABC):
    """A vectorised map from (state, action) pairs to convex combinations of d points.

    States are rows of an array (n, k); `map(states, actions)` is a sparse array (n, d). A map of your own is a
    `Custom`, or a class with `weights`, `dimension` and `state_dimension`.

    Attributes
    ----------
    dimension : int
        d.
    state_dimension : int
        k.
    pairs : (array (K, k), int array (K,)), or None
        States and actions that are simulated. Their features must span R^d. None if they are points that no pair
        reaches, see `nodes`.
    nodes : array (d, k'), or None
        The points whose features are the unit vectors, where points are what matters (a grid).
    objects : Objects, optional
        How states that are objects become rows.
    """

    dimension: int
    state_dimension: int
    objects: Objects | None = None
    kind: ClassVar[str] = ""  # by which `from_dict` knows it

    @abstractmethod
    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Return coordinates (n, w) and weights (n, w) of pairs; states are finite and of the right shape."""

    def rows(self, states: Any, what: str = "states") -> FloatArray:
        """Return states as finite numbers (n, k): objects, or what is a table of numbers already."""
        if self.objects is not None and not (isinstance(states, np.ndarray) and states.dtype.kind in "fiu"):
            return self.objects.rows(states, what)
        return checked_states(states, self.state_dimension, what)

    def given(self, states: FloatArray) -> Any:
        """Return rows as functions of the user's want them: objects, if states are objects."""
        return states if self.objects is None else self.objects.objects(states)

    @property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """States and actions that are simulated."""
        return None

    @property
    def nodes(self) -> FloatArray | None:
        """Points whose features are the unit vectors."""
        return None

    def to_dict(self) -> dict[str, Any] | None:
        """Return all that makes the map, ready for JSON; None if it holds a function, which no file can."""
        return None

    @property
    def hull(self) -> Any:
        """Points whose convex hull holds all features, (d, d): the unit vectors, as a sparse array."""
        return csr_array(eye_array(self.dimension))

    def __call__(self, states: ArrayLike, actions: ArrayLike) -> csr_array:
        """Return the features of pairs, a sparse array (n, d), all of them checked."""
        rows, chosen = self.rows(states), as_whole("actions", actions)
        if chosen.shape != (len(rows),):
            raise InvalidInput(f"actions must have shape ({len(rows)},), one for each state. Got {chosen.shape}.")
        return self.of(rows, chosen)

    def of(self, states: FloatArray, actions: IntArray) -> csr_array:
        """Return the features of pairs whose states are known to be states."""
        index, weight = self.weights(states, actions)
        wide = index.shape[1]
        rows = np.arange(0, len(states) * wide + 1, wide)
        small = np.int32 if max(self.dimension, rows[-1]) < 2**31 else np.int64
        parts = weight.reshape(-1), index.reshape(-1).astype(small), rows.astype(small)
        return csr_array(parts, shape=(len(states), self.dimension))

    @cached_property
    def coefficients(self) -> FloatArray | None:
        """Combinations (d, K) of the pairs' features that give the unit vectors; None if they *are* the unit vectors.

        They come from the features themselves, without a ridge, and are refined to `SPANNED`.
        """
        if self.pairs is None:
            return None
        rows = self(*self.pairs).toarray()
        if rows.shape[0] == self.dimension and (np.abs(rows - np.eye(self.dimension)) <= TOLERANCE).all():
            return None
        found: FloatArray = np.linalg.pinv(rows.T @ rows, hermitian=True) @ rows.T
        for _ in range(3):
            found += (np.eye(self.dimension) - found @ rows) @ found
        worst = float(np.abs(found @ rows - np.eye(self.dimension)).max())
        if not worst <= SPANNED:
            raise InvalidInput(
                f"the features of the pairs that are simulated must span all {self.dimension} dimensions; they miss a "
                f"unit vector by {worst:.2g}. Give other pairs, or more of them, or a map of fewer dimensions."
            )
        return frozen(found)

    @property
    def anchors(self) -> tuple[FloatArray, IntArray] | None:
        """Pairs whose features are the unit vectors, in order; None if there are none that can be named."""
        return self.pairs if self.pairs is not None and self.coefficients is None else None


class Custom(FeatureMap):
    """Features by a function of your own.

    Parameters
    ----------
    function : callable
        ``function(states (n, k), actions (n,))`` returns an array (n, d), dense or sparse, whose rows are convex
        combinations: not negative, with sum 1. Every row is checked.
    dimension, state_dimension : int
        d and k; the latter is known if states are objects.
    pairs : (states (K, k), actions (K,))
        What is simulated; their features must span R^d. Best are pairs whose features are the unit vectors.
    objects : Objects, optional
        If states are objects: the function gets a list of them.
    """

    def __init__(
        self,
        function_: Any,
        *,
        dimension: int,
        pairs: Any,
        state_dimension: int | None = None,
        objects: Objects | None = None,
    ) -> None:
        self._function = function("function", function_, "function(states, actions) -> (n, d)")
        self.objects, self.dimension = objects, dimension
        self.state_dimension = size_of(state_dimension, objects)
        self._pairs = checked_pairs(pairs, self)

    @property
    def pairs(self) -> tuple[FloatArray, IntArray] | None:
        """What is simulated."""
        return self._pairs

    def weights(self, states: FloatArray, actions: IntArray) -> Weights:
        """Call the function, and check every row."""
        try:
            given = self._function(self.given(states), actions)
        except InvalidInput:
            raise
        except Exception as error:
            where = culprit(lambda some, chosen: self._function(self.given(some), chosen), states, actions)
            raise InvalidInput(f"the feature map failed at {where} ({one_line(error)}).") from error
        if hasattr(given, "toarray"):
            given = given.toarray()
        rows = np.asarray(as_numbers("features", given), dtype=np.float64)
        if rows.shape != (len(states), self.dimension):
            raise InvalidInput(
                f"the feature map must return shape ({len(states)}, {self.dimension}). Got {rows.shape} at "
                f"{named(states, actions)}."
            )
        require_convex(rows, states, actions)
        return np.broadcast_to(np.arange(self.dimension), rows.shape), rows


def require_convex(weights: FloatArray, states: FloatArray, actions: IntArray) -> None:
    """Raise InvalidInput, naming the first pair at fault, unless rows are not negative and sum to 1."""
    with np.errstate(invalid="ignore"):
        good = (weights >= -TOLERANCE).all(axis=1) & (np.abs(weights.sum(axis=1) - 1.0) <= TOLERANCE)
    if not good.all():
        first = int(np.argmin(good))
        raise InvalidInput(
            f"features must be convex combinations: not negative, with sum 1. At {named(states, actions, first)} they "
            f"sum to {weights[first].sum():.6g}, the smallest being {weights[first].min():.6g}."
        )


def named(states: FloatArray, actions: IntArray | None = None, row: int = 0) -> str:
    """Name a state, or a pair, for an error."""
    if not len(states):
        return "no state at all"
    numbers = ", ".join(f"{number:.9g}" for number in states[row][:_SHOWN])
    state = f"state ({numbers}{', …' if states.shape[1] > _SHOWN else ''})"
    return state if actions is None else f"{state}, action {int(actions[row])}"


def culprit(call: Callable[[FloatArray, IntArray], Any], states: FloatArray, actions: IntArray) -> str:
    """Name a pair at which a vectorised function fails, for an error: halves are tried until one pair is left."""
    begin, end = 0, len(states)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            call(states[begin:middle], actions[begin:middle])
        except Exception:
            end = middle
        else:
            begin = middle
    return named(states, actions, begin)


def checked_states(states: Any, dimension: int, what: str = "states") -> FloatArray:
    """Return states as finite numbers (n, k)."""
    array = np.asarray(as_numbers(what, states), dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise InvalidInput(f"{what} must have shape (n, {dimension}), a row each. Got shape {array.shape} instead.")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        first = int(np.argmin(finite))
        raise InvalidInput(f"{what} must be finite numbers. Got {named(array, row=first)}, number {first} of them.")
    return array


def size_of(state_dimension: int | None, objects: Objects | None) -> int:
    """Return k."""
    if objects is not None:
        of_type("objects", objects, Objects)
        return objects.size
    if state_dimension is None:
        raise InvalidInput("state_dimension must be given: how many numbers a state has.")
    return whole("state_dimension", state_dimension, 0)


def checked_pairs(pairs: Any, feature_map: FeatureMap) -> tuple[FloatArray, IntArray]:
    """Return states (K, k) and actions (K,)."""
    try:
        states, actions = pairs
    except (TypeError, ValueError):
        raise InvalidInput("pairs must be two arrays, the states (K, k) and the actions (K,).") from None
    rows, chosen = feature_map.rows(states, "states of pairs"), as_whole("actions of pairs", actions)
    if chosen.shape != (len(rows),):
        raise InvalidInput(f"actions of pairs must have shape ({len(rows)},). Got {chosen.shape} instead.")
    return frozen(rows.copy()), frozen(chosen.copy())
