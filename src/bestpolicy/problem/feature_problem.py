"""A decision problem whose states nobody lists: what the learner knows of it is a feature map.

States are rows of an array (n, k), as many as there may be, a continuum included. The kernel and the mean rewards are
linear in known features, p(·|s, a) = Σ_i φ_i(s, a) μ_i(·) and E[R|s, a] = g(s, a) + φ(s, a)ᵀθ, with φ(s, a) in the unit
simplex of R^d (`bestpolicy.features`) and g a known function, 0 unless it is given: what an order costs, say. Rewards
lie in [0, 1]; R' = R - g is what has to be learnt. A vector ξ stands for the function

    f(s, ξ) = max over allowed a of g(s, a) + φ(s, a)ᵀξ,

and for the policy that plays the first maximiser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray, as_numbers, frozen
from bestpolicy._numerics.inputs import function, interval, of_type, whole
from bestpolicy.errors import InvalidInput, one_line
from bestpolicy.features import FeatureMap
from bestpolicy.features.base import culprit, named
from bestpolicy.problem.problem import _checked_discount

if TYPE_CHECKING:
    from bestpolicy.problem.units import Units

_BLOCK = 2**16  # pairs whose features are made at once
_TIED = 1e-12  # of the largest value: actions as good as this are taken for tied, and the first of them is played
_PROBES = 64  # pairs at which a problem is looked at to tell it from others
_DIGITS = 1e6
_TRIED = 1000  # pairs at whose states actions are compared


@dataclass(frozen=True, eq=False)
class Choices:
    """All that can be done in some states.

    Attributes
    ----------
    features : sparse array (m, d)
        Of the allowed pairs, state by state.
    place : int array (m,)
        Where each of them stands in a table (n, A).
    known : array (m,)
        g.
    shape : (int, int)
        (n, A).
    """

    features: csr_array
    place: IntArray
    known: FloatArray
    shape: tuple[int, int]

    def q_values(self, vector: FloatArray) -> FloatArray:
        """Return g + φᵀξ, (n, A); -inf where an action is not allowed."""
        return self._table(self.known + self.features @ vector)

    def _table(self, numbers: FloatArray) -> FloatArray:
        if len(numbers) == self.shape[0] * self.shape[1]:
            return numbers.reshape(self.shape)
        table = np.full(self.shape, -np.inf)
        table.reshape(-1)[self.place] = numbers
        return table

    def best(self, vectors: FloatArray) -> FloatArray:
        """Return f(s, ξ) for vectors (d, F), (n, F)."""
        numbers = self.known[:, None] + np.asarray(self.features @ vectors)
        if len(numbers) == self.shape[0] * self.shape[1]:
            found: FloatArray = numbers.reshape(*self.shape, -1).max(axis=1)
            return found
        table = np.full((self.shape[0] * self.shape[1], numbers.shape[1]), -np.inf)
        table[self.place] = numbers
        best: FloatArray = table.reshape(*self.shape, -1).max(axis=1)
        return best

    def greedy(self, vector: FloatArray) -> IntArray:
        """Return the rows of `features` that the policy of a vector plays, (n,)."""
        chosen = first_best(self.q_values(vector))
        if len(self.place) == self.shape[0] * self.shape[1]:
            return np.arange(self.shape[0]) * self.shape[1] + chosen
        rows: IntArray = np.searchsorted(self.place, np.arange(self.shape[0]) * self.shape[1] + chosen)
        return rows


def first_best(q_values: FloatArray) -> IntArray:
    """Return the first of the best actions, (n,); by row, so that it does not matter who else is asked about."""
    best = q_values.max(axis=1, keepdims=True)
    chosen: IntArray = (q_values >= best - _TIED * np.maximum(1.0, np.abs(best))).argmax(axis=1).astype(np.int64)
    return chosen


@dataclass(frozen=True, eq=False, repr=False)
class FeatureProblem:
    """A feature map, discount or horizon, and what else is known of a problem whose states nobody lists.

    Parameters
    ----------
    feature_map : FeatureMap
        One of `bestpolicy.features`. If it has `objects`, states are objects, and all functions get lists of them.
    actions : int
        How many there are.
    discount : float, optional
        γ in (0, 1). Give either `discount` or `horizon`.
    horizon : int, optional
    mask : callable, optional
        ``mask(states (n, k))`` returns the actions that are allowed, bool (n, A). All are by default.
    known_reward : callable, optional
        ``known_reward(states (n, k), actions (n,))`` returns g (n,), the part of the mean reward that need not be
        learnt, in your units of reward. The simulator returns whole rewards, g included.
    known_best : (low, high), optional
        Limits of max_a g(s, a) over all states, in your units: (0, 0) if doing nothing costs nothing, is allowed
        everywhere, and nothing pays. They sharpen the certificate; without them values are cut to what rewards allow.
    remainder : (low, high), optional
        Limits of R - g at the pairs that are simulated, if they are narrower than those of rewards; in your units.
    """

    feature_map: FeatureMap
    actions: int
    discount: float | None = None
    horizon: int | None = None
    mask: Callable[[FloatArray], Any] | None = None
    known_reward: Callable[[FloatArray, IntArray], Any] | None = None
    known_best: tuple[float, float] | None = None
    remainder: tuple[float, float] | None = None
    reward_scale: float = 1.0
    reward_offset: float = 0.0

    def __init__(
        self,
        feature_map: FeatureMap,
        *,
        actions: int,
        discount: float | None = None,
        horizon: int | None = None,
        mask: Callable[[FloatArray], Any] | None = None,
        known_reward: Callable[[FloatArray, IntArray], Any] | None = None,
        known_best: tuple[float, float] | None = None,
        remainder: tuple[float, float] | None = None,
    ) -> None:
        of_type("feature_map", feature_map, FeatureMap)
        self._keep(feature_map=feature_map, actions=whole("actions", actions, 1))
        self._keep(discount=_checked_discount(discount, horizon))
        self._keep(horizon=None if horizon is None else whole("horizon", horizon, 1))
        self._keep(mask=None if mask is None else function("mask", mask, "mask(states) -> (n, A)"))
        reward = "known_reward(states, actions) -> (n,)"
        self._keep(known_reward=None if known_reward is None else function("known_reward", known_reward, reward))
        self._keep(known_best=_limits("known_best", known_best), remainder=_limits("remainder", remainder))
        if known_reward is None and known_best is not None:
            raise InvalidInput(
                "known_best goes with a known_reward. Leave it out: where nothing is known it is (0, 0)."
            )
        _ = self.fingerprint, self.coefficients  # tries the functions, and the pairs that will be simulated
        self._require_difference()

    def _require_difference(self) -> None:
        """Raise InvalidInput if actions are all the same wherever it can be seen: then any policy would be optimal."""
        if self.feature_map.pairs is None or self.actions == 1:
            return
        states = np.unique(self.feature_map.pairs[0][:_TRIED], axis=0)
        q = self.choices(states).q_values(np.random.default_rng(0).random(self.dimension))
        chosen = np.isfinite(q).sum(axis=1) > 1
        least = np.where(np.isfinite(q), q, np.inf).min(axis=1)
        if chosen.any() and (q.max(axis=1) == least)[chosen].all():
            raise InvalidInput(
                "the feature map does not tell actions apart: in all states that it names they have the same features. "
                "Say to which point an action leads (point=, of Hats, Simplices, Tiles), or give each features of "
                f"its own: bestpolicy.features.Blocks([feature_map] * {self.actions})."
            )

    def _keep(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def in_units(self, units: Units) -> FeatureProblem:
        """Return the problem whose rewards are mapped into [0, 1]; simulators do it."""
        return self._with(units.reward_scale, units.reward_offset)

    def _with(self, scale: float, offset: float) -> FeatureProblem:
        other = object.__new__(FeatureProblem)
        other._keep(**{name: getattr(self, name) for name in self.__dataclass_fields__})
        other._keep(reward_scale=scale, reward_offset=offset)
        return other

    def __repr__(self) -> str:
        map_name = type(self.feature_map).__name__
        return f"FeatureProblem({map_name}, d={self.dimension}, {self.actions} actions, {self.time_description})"

    @property
    def dimension(self) -> int:
        """d."""
        return self.feature_map.dimension

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
        """Largest possible value at each stage, (stages,)."""
        if self.discount is not None:
            return frozen(np.array([1.0 / (1.0 - self.discount)]))
        return frozen(np.arange(self.stages, 0, -1, dtype=np.float64))

    @property
    def has_choice(self) -> bool:
        """Whether there is anything to decide."""
        return self.actions > 1

    @property
    def any_policy(self) -> FloatArray:
        """Vectors of a policy of which nothing is known, (2, stages, d + 1)."""
        vectors = np.zeros((2, self.stages, self.dimension + 1))
        vectors[:, :, -1] = self.value_limits
        return vectors

    @property
    def is_tabular(self) -> bool:
        """No: states are not listed."""
        return False

    # --- what is simulated

    @property
    def places(self) -> int:
        """Number K of pairs (or nodes) that are simulated."""
        pairs = self.feature_map.pairs
        return self.dimension if pairs is None else len(pairs[1])

    @property
    def coefficients(self) -> FloatArray | None:
        """Combinations (d, K) of the simulated pairs that give the unit vectors; None if they are the unit vectors."""
        return self.feature_map.coefficients

    @cached_property
    def known_at_places(self) -> FloatArray:
        """g at the pairs that are simulated, (K,), in [0, 1] units; 0 at nodes, whose rewards come without it."""
        pairs = self.feature_map.pairs
        return frozen(np.zeros(self.places) if pairs is None else self.known(*pairs))

    @cached_property
    def remainder_limits(self) -> FloatArray:
        """Limits of R' at the pairs that are simulated, (2, K), in [0, 1] units."""
        if self.remainder is not None:
            low, high = ((limit - self.reward_offset) / self.reward_scale for limit in self.remainder)
            return frozen(np.repeat([[low], [high]], self.places, axis=1))
        return frozen(np.stack([-self.known_at_places, 1.0 - self.known_at_places]))

    @property
    def best_limits(self) -> tuple[float, float] | None:
        """Limits of max_a g(s, a), in [0, 1] units; None if nobody knows."""
        if self.known_reward is None:
            return 0.0, 0.0
        if self.known_best is None:
            return None
        low, high = self.known_best
        return low / self.reward_scale, high / self.reward_scale

    # --- what can be done

    def known(self, states: FloatArray, actions: IntArray) -> FloatArray:
        """Return g of pairs, (n,), in [0, 1] units."""
        if self.known_reward is None:
            return np.zeros(len(states))
        try:
            found = np.asarray(
                as_numbers("known_reward", self.known_reward(self.feature_map.given(states), actions)), dtype=np.float64
            )
        except InvalidInput:
            raise
        except Exception as error:
            call, given = self.known_reward, self.feature_map.given
            where = culprit(lambda some, chosen: call(given(some), chosen), states, actions)
            raise InvalidInput(f"known_reward failed at {where} ({one_line(error)}).") from error
        if found.shape != (len(states),):
            raise InvalidInput(f"known_reward must return shape ({len(states)},). Got {found.shape} instead.")
        if not np.isfinite(found).all():
            first = int(np.argmin(np.isfinite(found)))
            raise InvalidInput(f"known_reward is {found[first]} at {named(states, actions, first)}.")
        return found / self.reward_scale

    def allowed(self, states: FloatArray) -> BoolArray:
        """Return which actions are allowed, (n, A)."""
        shape = len(states), self.actions
        if self.mask is None:
            return np.ones(shape, np.bool_)
        try:
            found = np.asarray(as_numbers("mask", self.mask(self.feature_map.given(states))))
        except InvalidInput:
            raise
        except Exception as error:
            mask, given, none = self.mask, self.feature_map.given, np.zeros(len(states), np.int64)
            where = culprit(lambda some, _: mask(given(some)), states, none).partition(", action")[0]
            raise InvalidInput(f"mask failed at {where} ({one_line(error)}).") from error
        if found.shape != shape or not np.isin(found, (0, 1)).all():
            raise InvalidInput(f"mask must return True and False, of shape {shape}. Got shape {found.shape} instead.")
        if not found.any(axis=1).all():
            first = int(np.argmin(found.any(axis=1)))
            raise InvalidInput(f"mask allows no action in {named(states, row=first)}. Allow one at least.")
        return found.astype(np.bool_)

    def choices(self, states: FloatArray) -> Choices:
        """Return all that can be done in states, whose rows are known to be states."""
        place = np.flatnonzero(self.allowed(states).reshape(-1))
        row, action = np.divmod(place, self.actions)
        some = states[row]
        return Choices(self.feature_map.of(some, action), place, self.known(some, action), (len(states), self.actions))

    def blocks(self, states: FloatArray) -> Iterator[tuple[slice, Choices]]:
        """Go through many states a few at a time."""
        step = max(1, _BLOCK // self.actions)
        for first in range(0, len(states), step):
            part = slice(first, min(first + step, len(states)))
            yield part, self.choices(states[part])

    def states_of(self, states: ArrayLike) -> FloatArray:
        """Return states as numbers (n, k), checked."""
        return self.feature_map.rows(states)

    def values(self, states: FloatArray, vectors: FloatArray) -> FloatArray:
        """Return f(s, ξ) for vectors (d, F), (n, F)."""
        found = np.empty((len(states), vectors.shape[1]))
        for part, choices in self.blocks(states):
            found[part] = choices.best(vectors)
        return found

    def greedy(self, states: FloatArray, vector: FloatArray) -> IntArray:
        """Return the actions that the policy of a vector plays, (n,)."""
        found = np.empty(len(states), np.int64)
        for part, choices in self.blocks(states):
            found[part] = first_best(choices.q_values(vector))
        return found

    # --- which problem it is

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that makes the problem and that a file can hold; functions are told apart by what they return."""
        own = self.feature_map.to_dict()
        return {
            "feature_map": own,
            "actions": self.actions,
            "discount": self.discount,
            "horizon": self.horizon,
            "dimension": self.dimension,
            "state_dimension": self.feature_map.state_dimension,
            "known_best": None if self.known_best is None else list(self.known_best),
            "remainder": None if self.remainder is None else list(self.remainder),
            "functions": {
                "feature_map": own is None,
                "mask": self.mask is not None,
                "known_reward": self.known_reward is not None,
            },
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the description and of features, mask and known rewards at some of the simulated pairs."""
        digest = sha256(json.dumps(self.description, sort_keys=True).encode())
        pairs = self.feature_map.pairs
        if pairs is not None:
            some = np.unique(np.linspace(0, self.places - 1, _PROBES).astype(np.int64))
            states, actions = np.array(pairs[0][some]), np.array(pairs[1][some])
            allowed = self.allowed(states)
            off = ~((actions >= 0) & (actions < self.actions) & allowed[np.arange(len(some)), actions % self.actions])
            if off.any():
                raise InvalidInput(
                    f"{named(states, actions, int(off.argmax()))}, which is to be simulated, is not allowed. Give "
                    "other pairs to the feature map."
                )
            plain = self._with(1.0, 0.0)  # whatever the units, it is the same problem
            choices = plain.choices(states)
            for numbers in (choices.features.toarray(), choices.known, plain.known(states, actions)):
                digest.update(np.rint(numbers * _DIGITS).astype("<i8").tobytes())
            digest.update(allowed.tobytes())
        return digest.hexdigest()


def _limits(name: str, given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    low, high = (float(limit) for limit in given)
    return (low, high) if low == high else interval(name, given)
