"""What an environment tells about itself, checked at the border: its table, spaces, names, beginnings and rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import BoolArray, as_numbers
from bestpolicy._numerics.inputs import interval
from bestpolicy.errors import InvalidInput

_OTHER_WAYS = (
    "Give set_state=function(env, state) and reward_range=(low, high), use a functional environment (FuncEnv), or "
    "wrap your own function in CallableSimulator."
)
# Wrappers that change nothing of what a single step from a given state returns.
_HARMLESS = (
    "TimeLimit",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RecordEpisodeStatistics",
    "RecordVideo",
    "HumanRendering",
    "RenderCollection",
)


def import_gymnasium() -> ModuleType:
    try:
        return import_module("gymnasium")
    except ImportError:
        raise InvalidInput("GymSimulator needs Gymnasium 1.0 or later: pip install bestpolicy[gym]") from None


def checked_options(
    set_state: Any, convert_rng: Any, terminal_states: Any, tabular: bool, functional: bool
) -> list[Any]:
    """Return the terminal states; raise InvalidInput for what would be ignored, or cannot be used."""
    for name, given in (("set_state", set_state), ("convert_rng", convert_rng)):
        if given is not None and not callable(given):
            raise InvalidInput(f"{name} must be a function. Got {given!r} instead.")
    if convert_rng is not None and not functional:
        raise InvalidInput("convert_rng= is for functional environments (FuncEnv); leave it out.")
    if not isinstance(terminal_states, Iterable):
        raise InvalidInput(f"terminal_states must be a list. Got {terminal_states!r} instead.")
    over = list(terminal_states)
    if over and tabular:
        raise InvalidInput("terminal_states= goes with set_state=; a transition table knows where episodes end.")
    return over


def name_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def require_table(env: Any) -> None:
    """Raise InvalidInput unless the environment has a table that says all there is to say about its steps."""
    core = getattr(env, "unwrapped", None)
    if core is None or isinstance(env, type):
        raise InvalidInput(f"env must be a Gymnasium environment or the name of one. Got {env!r} instead.")
    if getattr(core, "P", None) is None:
        raise InvalidInput(f"{env} has no transition table (env.unwrapped.P). {_OTHER_WAYS}")
    if getattr(core, "fickle_passenger", False):
        raise InvalidInput("with fickle_passenger=True, Taxi's steps are not those of its table, nor Markov.")
    while env is not core:
        if type(env).__name__ not in _HARMLESS:
            raise InvalidInput(
                f"wrapper {type(env).__name__} may change what a step returns, which the transition table does not "
                "know. Pass env.unwrapped to do without it, or set_state= to sample through it."
            )
        env = env.env


def make_environment(gymnasium: ModuleType, name: str) -> Any:
    try:
        return gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise InvalidInput(f"Gymnasium cannot make {name!r}: {error}") from None


def list_labels(gymnasium: ModuleType, env: Any, space: str, name: str, labels: Sequence[Any] | None) -> list[Any]:
    """Return all states or actions of the environment: those listed, else those of its Discrete space."""
    if labels is not None:
        if not isinstance(labels, Iterable) or isinstance(labels, str):
            raise InvalidInput(f"{name} must be a list of all of them. Got {labels!r} instead.")
        return list(labels)
    declared = getattr(env, space, None)
    if not isinstance(declared, gymnasium.spaces.Discrete):
        raise InvalidInput(f"the environment's {space} is {declared}, not Discrete. List all of them: {name}=[…].")
    return list(range(int(declared.start), int(declared.start + declared.n)))


def initial_states(env: Any, states: int) -> BoolArray | None:
    """Return where episodes begin, (n,), or None if the environment does not tell."""
    law = getattr(env.unwrapped, "initial_state_distrib", None)
    if law is None:
        return None
    begins = np.asarray(law) > 0
    if begins.shape != (states,) or not begins.any():
        raise InvalidInput(
            f"initial_state_distrib must give each of the {states} states its probability. Got {law!r:.80}. Mend it, "
            "or remove it to have the policy certified in every state."
        )
    return begins


def checked_mask(mask: ArrayLike | None, shape: tuple[int, int]) -> BoolArray:
    allowed = np.ones(shape, np.bool_) if mask is None else as_numbers("mask", mask)
    if allowed.shape != shape:
        raise InvalidInput(f"mask must have shape (states, actions) = {shape}. Got {allowed.shape} instead.")
    if not np.isin(allowed, (0, 1)).all():
        raise InvalidInput("mask must hold only True and False (or 1 and 0).")
    return allowed.astype(np.bool_)


def checked_range(limits: tuple[float, float] | None) -> tuple[float, float]:
    if limits is None:
        raise InvalidInput(
            "reward_range=(low, high) is needed: this environment does not tell the range of its rewards."
        )
    return interval("reward_range", limits)
