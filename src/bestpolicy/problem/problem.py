"""What the learner knows before it has seen a single sample.

A `Problem` is the finite set of (state, action) pairs with their features φ(s, a) ∈ R^d, the actions allowed in
each state, and either a discount factor γ (values lie in [0, 1/(1-γ)]) or a horizon H (values of step h lie in
[0, H-h], steps counted from 0). Rewards are in [0, 1]. The transition law and the rewards are hidden from it, except
at *ends*, where the process is over: nothing is decided there, and every later reward is the same known number, the
image of the user's 0. So an end is worth that number times the steps that are left, known beforehand and exactly.

Discounted and episodic problems share their code through a leading *stage* axis: a discounted problem has one
stage that leads back to itself, an episodic problem has H stages, each leading to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import (
    LARGE,
    LARGEST_TABLE,
    BoolArray,
    FloatArray,
    IntArray,
    Matrix,
    as_floats,
    as_numbers,
    as_whole,
    axes_of,
    compact,
    frozen,
    readable_size,
)
from bestpolicy._numerics.inputs import as_float, number, require_fraction, shown, whole
from bestpolicy._numerics.memory import about, usable_memory
from bestpolicy.errors import InvalidInput

if TYPE_CHECKING:
    from bestpolicy.problem.units import Units

HUGE = 1e100  # squares of such numbers, and of their inverses, are numbers still
_DENSE_STATES = 200  # states up to which looks keep tables of transition probabilities
_NUMBERS_A_PAIR = 64  # that a look takes for each step of a table
_LONGEST_LOOK = 60  # seconds; a run has a hundred looks
_NO_ENDS = frozen(np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """Features, discount or horizon, and the actions that are allowed.

    A finite problem whose pairs share nothing (`is_tabular`) needs no features: see `Problem.tabular`.

    Parameters
    ----------
    features : array (S, A, d)
        φ(s, a). Rows of pairs that are not allowed are ignored (and may be anything finite).
    discount : float, optional
        γ in (0, 1). Give either `discount` or `horizon`.
    horizon : int, optional
        H, from 1 to a million.
    mask : bool array (S, A), optional
        True where the action is allowed; every state needs one. All are allowed by default.

    Attributes
    ----------
    ends : int array
        States in which the process is over (`Problem.tabular`), in order; most problems have none. Their mask allows
        the first action alone, which leads to the last of the ends and decides nothing.
    end_reward : float
        What each step pays there, in [0, 1]: the image of the user's 0 (`in_units`).
    """

    discount: float | None
    horizon: int | None
    mask: BoolArray
    dimension: int
    given_features: FloatArray | None  # None if there is no array of them
    ends: IntArray
    end_reward: float

    def __init__(
        self,
        features: ArrayLike,
        *,
        discount: float | None = None,
        horizon: int | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        checked = as_floats("features", features, ("S", "A", "d"))
        if 0 in checked.shape:
            raise InvalidInput(f"features must not be empty. Got shape {checked.shape} instead.")
        allowed = _checked_mask(mask, checked.shape[:2])
        _require_finite_features(checked, allowed)
        self._set(discount, _checked_horizon(horizon, _numbers_a_step(*checked.shape)), allowed, checked)

    def _set(
        self,
        discount: float | None,
        horizon: int | None,
        mask: BoolArray,
        features: FloatArray | None = None,
        ends: IntArray = _NO_ENDS,
        end_reward: float = 0.0,
    ) -> None:
        pairs = int(np.count_nonzero(mask)) - len(ends) + (len(ends) > 0)  # all ends share a coordinate
        dimension = pairs if features is None else int(features.shape[2])
        object.__setattr__(self, "discount", _checked_discount(discount, horizon))
        object.__setattr__(self, "horizon", horizon)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "dimension", dimension)
        object.__setattr__(self, "given_features", features)
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "end_reward", end_reward)

    @classmethod
    def tabular(
        cls,
        states: int,
        actions: int,
        *,
        discount: float | None = None,
        horizon: int | None = None,
        mask: ArrayLike | None = None,
        ends: ArrayLike = (),
    ) -> Problem:
        """Return the problem in which each allowed pair has a coordinate of its own, in the order of `pairs`.

        It is the problem of one-hot features, and has their fingerprint, but takes memory for the pairs alone.

        Parameters
        ----------
        states, actions : int
            How many there are.
        discount, horizon, mask
            As in `Problem`.
        ends : sequence of int, optional
            States in which the process is over: nothing is decided there, and every later reward is 0 in the units of
            the simulator's rewards. They are known, so they need no samples; their rows of the mask are ignored, and
            what a policy says of them means nothing. Together they have one coordinate, the last.
        """
        shape = whole("states", states, 1), whole("actions", actions, 1)
        if shape[0] * shape[1] > LARGEST_TABLE:
            raise InvalidInput(f"states x actions must be {LARGEST_TABLE} at most. Got {about(shape[0] * shape[1])}.")
        problem = object.__new__(cls)
        steps = _checked_horizon(horizon, _NUMBERS_A_PAIR * shape[0] * shape[1])
        over = _checked_ends(ends, shape[0])
        problem._set(discount, steps, _checked_mask(mask, shape, over), ends=over)
        return problem

    def in_units(self, units: Units) -> Problem:
        """Return the problem whose ends pay 0 in some units of reward; itself, if it has no ends.

        Simulators that map rewards into [0, 1] call it; whoever begins a `Study` by hand with ``units=`` does it, too.
        In units of [0, 1] ends pay what they did, 0 unless `with_end_reward` was called.
        """
        low, high = units.reward_range
        if not len(self.ends) or (low, high) == (0.0, 1.0):
            return self
        if not low <= 0.0 <= high:
            raise InvalidInput(
                f"reward_range must hold 0, which is what every step pays once the process is over. Got ({low:g}, "
                f"{high:g}); widen it, or do without ends."
            )
        return self.with_end_reward((0.0 - units.reward_offset) / units.reward_scale)

    def with_end_reward(self, end_reward: float) -> Problem:
        """Return the problem whose ends pay so much at each step, in [0, 1]."""
        require_fraction(end_reward=end_reward)
        return self._with_ends(self.ends, float(end_reward) + 0.0, self.given_features)

    @property
    def without_ends(self) -> Problem:
        """The problem in which ends are states like others, with one action, that have to be sampled."""
        return self._with_ends(_NO_ENDS, 0.0, self.features) if len(self.ends) else self

    def _with_ends(self, ends: IntArray, end_reward: float, features: FloatArray | None = None) -> Problem:
        problem = object.__new__(Problem)
        problem._set(self.discount, self.horizon, self.mask, features, ends, end_reward)
        return problem

    def __repr__(self) -> str:
        states = f"{self.states} state" + "s" * (self.states > 1)
        ends = f" ({len(self.ends)} of them end{'s' * (len(self.ends) > 1)})" if len(self.ends) else ""
        actions = f"{self.actions} action" + "s" * (self.actions > 1)
        return f"Problem({states}{ends}, {actions}, d={self.dimension}, {self.time_description})"

    @property
    def states(self) -> int:
        """Number of states S."""
        return int(self.mask.shape[0])

    @property
    def actions(self) -> int:
        """Number of actions A."""
        return int(self.mask.shape[1])

    @cached_property
    def features(self) -> FloatArray:
        """φ(s, a), (S, A, d); those of `Problem.tabular` are made when asked for, unless they are too large."""
        if self.given_features is not None:
            return self.given_features
        if self.is_large:
            raise InvalidInput(
                f"one-hot features of {self.dimension:,} pairs would take "
                f"{readable_size(8 * self.mask.size * self.dimension)} of memory. Algorithms that work in R^d (gss, "
                "gss-e, tight, adaptive and most competitors) need them; 'sharp' works on the table itself."
            )
        features = np.zeros((self.mask.size, self.dimension))
        features[self.pairs, self.columns] = 1.0
        return frozen(features.reshape(*self.mask.shape, self.dimension))

    @property
    def is_large(self) -> bool:
        """Whether one-hot features of all pairs are too large to be made."""
        return self.mask.size * self.dimension > LARGEST_TABLE

    @property
    def is_tabular(self) -> bool:
        """Whether every allowed pair has a coordinate of its own (all ends together have one): one-hot features."""
        if self.given_features is None:
            return True
        return self.columns is not None and len(self.pairs) == self.dimension

    @cached_property
    def open_pairs(self) -> IntArray:
        """Those of `pairs` that are in states where the process goes on: all, unless there are ends."""
        return self.pairs if not len(self.ends) else frozen(self.pairs[~self.is_end[self.pairs // self.actions]])

    @cached_property
    def is_end(self) -> BoolArray:
        """Whether the process is over, (S,)."""
        over = np.zeros(self.states, np.bool_)
        over[self.ends] = True
        return frozen(over)

    @cached_property
    def columns(self) -> IntArray | None:
        """Coordinates of the allowed pairs, (n,), in the order of `pairs`, if their features are one-hot; else None.

        Pairs may share a coordinate, as those of aggregated states do; every coordinate is that of some pair.
        """
        if self.given_features is None:
            at_end = self.is_end[self.pairs // self.actions]
            return frozen(np.where(at_end, self.dimension - 1, np.cumsum(~at_end) - 1))
        if len(self.pairs) < self.dimension:
            return None
        rows = self.pair_features
        found = axes_of(rows)
        if found is None or not (rows[np.arange(len(rows)), found[0]] == 1.0).all():
            return None
        return frozen(found[0]) if len(np.unique(found[0])) == self.dimension else None

    @property
    def stages(self) -> int:
        """Length of the stage axis: 1 if discounted, H if episodic."""
        return 1 if self.horizon is None else self.horizon

    @property
    def time_description(self) -> str:
        """``discount 0.9`` or ``horizon 5``."""
        return f"discount {self.discount:g}" if self.horizon is None else f"horizon {self.horizon}"

    @property
    def continuation(self) -> float:
        """Weight of the next value: γ if discounted, 1 if episodic."""
        return 1.0 if self.discount is None else self.discount

    @cached_property
    def value_limits(self) -> FloatArray:
        """Largest possible value at each stage, shape (stages,): 1/(1-γ), or H, H-1, …, 1."""
        if self.discount is not None:
            return frozen(np.array([1.0 / (1.0 - self.discount)]))
        return frozen(np.arange(self.stages, 0, -1, dtype=np.float64))

    @cached_property
    def pairs(self) -> IntArray:
        """Flat indices s·A + a of the allowed pairs, sorted, shape (n,)."""
        return frozen(np.flatnonzero(self.mask).astype(np.int64))

    @property
    def pair_features(self) -> FloatArray:
        """Features of the allowed pairs, shape (n, d), in the order of `pairs`."""
        flat = self.features.reshape(-1, self.dimension)
        return flat if self.mask.all() else flat[self.pairs]

    @cached_property
    def matrix(self) -> Matrix:
        """Features of all pairs by flat index, shape (S·A, d), to multiply with: sparse where that is faster."""
        if self.given_features is None and self.mask.size * self.dimension >= LARGE:
            rows = np.concatenate([[0], np.cumsum(self.mask.reshape(-1))])
            ones = np.ones(len(self.pairs)), np.array(self.columns), rows
            return csr_array(ones, shape=(self.mask.size, self.dimension))
        return compact(self.features.reshape(-1, self.dimension))

    @cached_property
    def distinct(self) -> BoolArray:
        """Allowed actions with identical features in a state merged into the first of them, shape (S, A).

        Such actions have the same value in every linear MDP; counted apart they would force the gap to 0.
        """
        if self.is_tabular:
            return self.mask
        probe = self.features @ np.random.default_rng(0).standard_normal(self.dimension)
        distinct = self.mask.copy()
        for later in range(1, self.actions):
            for earlier in range(later):
                # Equal features have equal projections: only those few are compared in full.
                candidates = np.flatnonzero(
                    distinct[:, later] & distinct[:, earlier] & np.isclose(probe[:, later], probe[:, earlier])
                )
                same = (self.features[candidates, later] == self.features[candidates, earlier]).all(axis=1)
                distinct[candidates[same], later] = False
        return frozen(distinct)

    @property
    def has_choice(self) -> bool:
        """Whether some state has two distinct actions."""
        return bool((self.distinct.sum(axis=1) > 1).any())

    @property
    def any_policy(self) -> IntArray:
        """The first allowed action everywhere, (stages, S)."""
        return np.tile(self.mask.argmax(axis=1), (self.stages, 1))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that makes the problem, in hexadecimal."""
        is_table = self.given_features is None
        kind = "table " if is_table and self.is_large else ""
        shape = (*self.mask.shape, self.dimension)
        digest = sha256(f"{kind}{shape} {self.discount!r} {self.horizon!r} ".encode())
        if not kind:
            for some in self._table_features() if is_table else [self.features]:
                digest.update(np.ascontiguousarray(some).data)
        digest.update(np.ascontiguousarray(self.mask).data)
        if len(self.ends):
            digest.update(f" ends {self.end_reward!r} ".encode() + self.ends.astype("<i8").tobytes())
        return digest.hexdigest()

    def _table_features(self) -> Iterator[FloatArray]:
        """One-hot features of all pairs, a few rows at a time."""
        step, first, columns = max(1, 2**17 // self.dimension), 0, self.columns
        assert columns is not None
        for start in range(0, self.mask.size, step):
            allowed = self.mask.reshape(-1)[start : start + step]
            rows, used = np.zeros((len(allowed), self.dimension)), int(np.count_nonzero(allowed))
            rows[allowed, columns[first : first + used]] = 1.0
            yield rows
            first += used

    def pair(self, flat_index: int) -> tuple[int, int]:
        """(state, action) of a flat pair index."""
        state, action = divmod(int(flat_index), self.actions)
        return state, action

    def with_features(self, features: ArrayLike) -> Problem:
        """Return the same problem in other coordinates (an invertible linear map of the features)."""
        other = Problem(features, discount=self.discount, horizon=self.horizon, mask=self.mask)
        # Rounding may tell apart what is identical: which actions are the same is decided in the user's coordinates.
        other.__dict__["distinct"] = self.distinct
        other.__dict__["_source"] = self.source
        return other

    @property
    def source(self) -> Problem:
        """The problem in the coordinates that were given first; itself, unless `with_features` made it."""
        source: Problem = self.__dict__.get("_source", self)
        return source

    def stage_policy(self, policy: ArrayLike) -> IntArray:
        """Validate a policy (S,) or (H, S) and return it with the stage axis, (stages, S)."""
        array = as_numbers("policy", policy)
        shape = (self.states,) if self.horizon is None else (self.stages, self.states)
        if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
            raise InvalidInput(
                f"policy must be an integer array of shape {shape}. Got {array.dtype} {array.shape} instead."
            )
        staged = array.reshape(self.stages, self.states).astype(np.int64)  # too large a number becomes negative
        in_range = (staged >= 0) & (staged < self.actions)
        legal = in_range & self.mask[np.arange(self.states), np.where(in_range, staged, 0)]
        if not legal.all():
            stage, state = np.argwhere(~legal)[0]
            raise InvalidInput(
                f"policy plays action {staged[stage, state]} in state {state}, which is not allowed there."
            )
        return staged


def _require_finite_features(features: FloatArray, mask: BoolArray) -> None:
    finite = np.isfinite(features).all(axis=2)
    if not finite.all():
        state, action = np.argwhere(~finite)[0]
        where = "" if mask[state, action] else " (not allowed there, but it must still be finite: use zeros)"
        raise InvalidInput(f"features of pair (state {state}, action {action}) are not all finite{where}.")
    rows = features.reshape(-1, features.shape[2]) if mask.all() else features[mask]
    sizes = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    extreme = np.flatnonzero((sizes > HUGE) | ((sizes > 0) & (sizes < 1 / HUGE)))
    if len(extreme):
        raise InvalidInput(
            f"features must be of moderate size. In dimension {extreme[0]} the largest is {sizes[extreme[0]]:g}; scale "
            "that to about 1."
        )


def _checked_ends(ends: ArrayLike, states: int) -> IntArray:
    array = as_whole("ends", ends) if np.size(ends) else _NO_ENDS
    if array.ndim != 1 or (len(array) and not 0 <= array.min() <= array.max() < states):
        raise InvalidInput(f"ends must be a list of states, each in 0..{states - 1}. Got {shown(ends)} instead.")
    found = np.unique(array)
    if len(found) == states:
        raise InvalidInput("ends must leave a state in which something is decided. Got all of them.")
    return frozen(found)


def _checked_mask(mask: ArrayLike | None, shape: tuple[int, ...], ends: IntArray = _NO_ENDS) -> BoolArray:
    """Return the mask; it allows the first action alone at ends."""
    if mask is None and not len(ends):
        return frozen(np.ones(shape, dtype=np.bool_))
    array = as_numbers("mask", np.ones(shape, dtype=np.bool_) if mask is None else mask)
    if array.shape != shape:
        raise InvalidInput(f"mask must have shape (S, A) = {shape}. Got {array.shape} instead.")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InvalidInput("mask must hold only True and False (or 1 and 0).")
    allowed = array.astype(np.bool_)
    allowed[ends] = np.arange(shape[1]) == 0
    if not allowed.any(axis=1).all():
        state = int(np.flatnonzero(~allowed.any(axis=1))[0])
        raise InvalidInput(
            f"mask allows no action in state {state}. Allow at least one in every state; if the process is over there, "
            "say so: Problem.tabular(..., ends=[…])."
        )
    return frozen(allowed)


def _checked_discount(discount: float | None, horizon: int | None) -> float | None:
    if (discount is None) == (horizon is None):
        given = "both" if discount is not None else "neither"
        raise InvalidInput(f"give either discount or horizon. Got {given}.")
    if discount is None:
        return None
    if as_float(discount) == 1.0:
        raise InvalidInput(
            f"discount must be strictly between 0 and 1. Got {shown(discount)} instead. Without discounting, give a "
            "horizon instead."
        )
    return number("discount", discount, above=0, below=1)


def _numbers_a_step(states: int, actions: int, dimension: int) -> int:
    """Numbers that a look at the samples takes for each step, as measured; no more than about."""
    pairs, kernel = states * actions, states if states <= _DENSE_STATES else 0
    return 3 * pairs * kernel + 4 * pairs * dimension + 32 * states * dimension + 40 * dimension**2


def _checked_horizon(horizon: int | None, numbers_a_step: int) -> int | None:
    if horizon is None:
        return None
    steps = horizon if type(horizon) is int and horizon > 2**53 else whole("horizon", horizon, 1)
    numbers = 200 + numbers_a_step
    nanoseconds = 60_000 + 20 * numbers
    longest = min(usable_memory() // (8 * numbers), _LONGEST_LOOK * 10**9 // nanoseconds)
    if steps > max(1, longest):
        raise InvalidInput(
            f"horizon {about(steps)} is too long: one look at the samples would take about "
            f"{about(8 * steps * numbers)} bytes and {about(steps * nanoseconds // 10**9)} seconds, and a run has a "
            f"hundred of them. Up to about {about(longest)} steps will do; or use a discount instead."
        )
    return steps
