"""A finite problem with a feature map: listed where that fits into memory, else left unlisted; size decides.

Listed, its features are S·A·d numbers, and rules for listed states need fewer samples. Beyond `MOST_NUMBERS` of them
the states are never listed: `FeatureProblem`, whose memory is about d alone. Either way the simulator says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bestpolicy._numerics.inputs import of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.features import FeatureMap
from bestpolicy.problem import FeatureProblem
from bestpolicy.simulators.feature_user import FeatureSimulator
from bestpolicy.simulators.named import NamedSimulator

MOST_NUMBERS = 2 * 10**7  # in the features of all pairs: 160 MB


def mapped_simulator(
    step: Callable[..., tuple[Any, Any]],
    *,
    features: FeatureMap,
    states: Any,
    actions: Iterable[Any],
    discount: float | None = None,
    horizon: int | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    ends: Iterable[Any] | None = None,
) -> NamedSimulator | FeatureSimulator:
    """Return the simulator of a function of named states and actions; the parameters are those of `NamedSimulator`.

    Parameters
    ----------
    features : FeatureMap
        Of pairs (state, number of the action). A state is a number, a tuple of numbers, or an object (`Objects`).
    """
    of_type("features", features, FeatureMap)
    if callable(actions) or ends is not None:
        raise InvalidInput("features= goes with a list of actions that are all allowed, and without ends.")
    if not hasattr(states, "__len__"):
        states = list(states)
    names = list(actions)
    numbers = len(states) * len(names) * features.dimension
    size = f"{len(states):,} states, {len(names)} actions and {features.dimension} features are {numbers:,} numbers"
    time: dict[str, Any] = {"discount": discount, "horizon": horizon}
    model: NamedSimulator | FeatureSimulator
    if numbers <= MOST_NUMBERS:
        known = list(states)
        table = _features(features, known, len(names))
        model = NamedSimulator(step, states=known, actions=names, reward_range=reward_range, features=table, **time)
        model.road = f"{size}, which are listed"
        return model
    problem = FeatureProblem(features, actions=len(names), **time)
    first = states[0]

    def single(state: Any, action: int, rng: np.random.Generator, **extra: int) -> tuple[Any, Any]:
        own = state if features.objects is not None else _named(state, first)
        reward, following = step(own, names[action], rng, **extra)
        return reward, following if features.objects is not None else np.atleast_1d(following)

    model = FeatureSimulator(problem, single, reward_range=reward_range)
    model.road = f"{size}, too many to be listed"
    return model


def _features(features: FeatureMap, states: list[Any], actions: int) -> Any:
    """Return the features of all pairs, (S, A, d)."""
    rows = features.rows(states if features.objects is not None else np.reshape(states, (len(states), -1)))
    return np.stack([features.of(rows, np.full(len(rows), a)).toarray() for a in range(actions)], axis=1)


def _named(row: Any, like: Any) -> Any:
    """Return a row of numbers as a state of the user's: a number, or a tuple."""
    whole = [type(part) for part in np.atleast_1d(np.asarray(like, dtype=object))]
    parts = [kind(number) for kind, number in zip(whole, row, strict=True)]
    return parts[0] if np.ndim(like) == 0 else tuple(parts)
