"""Features of an environment's pairs: one-hot, by clusters of states, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, as_floats
from bestpolicy.errors import InvalidInput


def feature_array(features: Any, states: list[Any], actions: list[Any], played: BoolArray, ends: bool) -> FloatArray:
    """Return φ of the problem's pairs, (n, A, d), or (n + 1, A, d + 1) with a coordinate that belongs to the end.

    Parameters
    ----------
    features : "one-hot", clusters (n,), array (n, A, d) or callable
        As in `GymSimulator`.
    states, actions : list
        The environment's own.
    played : bool array (n, A)
        Pairs that an episode can see.
    ends : bool
        Whether there is an end.
    """
    array = _given_features(features, states, actions, played)
    if not ends:
        return array
    full = np.zeros((len(states) + 1, len(actions), array.shape[2] + 1))
    full[:-1, :, :-1][played] = array[played]
    full[..., -1] = 1.0  # what is not played belongs to the end, or is masked
    full[:-1, :, -1][played] = 0.0
    return full


def _given_features(features: Any, states: list[Any], actions: list[Any], played: BoolArray) -> FloatArray:
    if isinstance(features, str) and features != "one-hot":
        raise InvalidInput(f"features must be 'one-hot', an array or a function. Got {features!r} instead.")
    if isinstance(features, str):
        return _one_hot(np.arange(len(states)), played)
    if callable(features):
        return _called(features, states, actions, played)
    try:
        array = np.asarray(features)
    except ValueError as error:  # a ragged list
        raise InvalidInput(f"features must be an array of numbers ({error}).") from None
    if array.shape == (len(states),):
        return _one_hot(array, played)
    if array.shape[:-1] != played.shape:
        raise InvalidInput(
            f"features must be the clusters of the {len(states)} states or an array of shape (states, actions, d), "
            f"here {(*played.shape, 'd')}. Got shape {array.shape} instead."
        )
    return as_floats("features", array, ("S", "A", "d"))


def _called(
    features: Callable[[Any, Any], Any], states: list[Any], actions: list[Any], played: BoolArray
) -> FloatArray:
    pairs, vectors = np.argwhere(played), []
    for state, action in pairs:
        try:
            vectors.append(np.atleast_1d(np.asarray(features(states[state], actions[action]), dtype=np.float64)))
        except Exception as error:
            raise InvalidInput(
                f"features(state, action) must return a vector of numbers, but not so for {states[state]!r}, "
                f"{actions[action]!r} ({type(error).__name__}: {error})."
            ) from error
    lengths = {vector.shape for vector in vectors}
    if len(lengths) > 1 or vectors[0].ndim != 1:
        raise InvalidInput(
            f"features(state, action) must return vectors of equal length. Got shapes {sorted(lengths)}."
        )
    array = np.zeros((*played.shape, len(vectors[0])))
    array[played] = vectors
    return array


def _one_hot(clusters: Any, played: BoolArray) -> FloatArray:
    """Return one coordinate per pair of cluster and action, (n, A, d)."""
    state, action = np.nonzero(played)
    group = np.unique(clusters, return_inverse=True)[1][state] * played.shape[1] + action
    groups, coordinate = np.unique(group, return_inverse=True)
    array = np.zeros((*played.shape, len(groups)))
    array[state, action, coordinate] = 1.0
    return array
