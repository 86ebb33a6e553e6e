"""What `identify` and `drive` were given, checked at the border."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

from bestpolicy._numerics.inputs import function, number
from bestpolicy.algorithms import Algorithm, Choice, choose_algorithm, is_default, make_algorithm
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.names import Names
from bestpolicy.problem.units import Units
from bestpolicy.simulators import (
    CallableSimulator,
    ExactSimulator,
    FeatureSimulator,
    ForwardModel,
    GenerativeModel,
    GymSimulator,
    Model,
    NamedSimulator,
    ResetSimulator,
)
from bestpolicy.simulators.mapped import mapped_simulator
from bestpolicy.study import Study


def as_simulator(model: Any, told: dict[str, Any]) -> Model:
    """Return a simulator as it is, and a function as one of named states and actions."""
    if isinstance(model, Model) or not callable(model):
        if told:
            raise InvalidInput(
                f"{next(iter(told))} goes with a function, identify(step, states=…, actions=…, …). A "
                f"{type(model).__name__} knows its own; leave it out."
            )
        return model  # type: ignore[no-any-return]
    if isinstance(model, type) or "states" not in told or "actions" not in told:
        raise InvalidInput(
            "a function needs the states and actions that it is about: identify(step, states=[…], actions=[…], "
            f"discount=…, …). Got {type(model).__name__} without them."
        )
    if "features" in told:
        return mapped_simulator(model, **told)  # type: ignore[return-value]
    return NamedSimulator(model, **told)


def calls_a_function(model: Any) -> bool:
    """Whether a function of the user's is called for the samples, so that each of them costs time."""
    return isinstance(model, CallableSimulator | FeatureSimulator | ResetSimulator) or (
        isinstance(model, GymSimulator) and not model.has_table
    )


def tested_share(model: Any, linearity: float | None) -> float | None:
    """Return the share of the calls that tests the features; a model that is known to be linear needs no test."""
    return 0.0 if linearity is None and isinstance(model, ExactSimulator) else linearity


def numbered_start(model: Model, start: Any) -> Any:
    """Return a start by the numbers of states, if the simulator has names for them."""
    names = getattr(model, "names", None)
    if not isinstance(names, Names) or start is None:
        return start
    if isinstance(start, Mapping):
        chances = np.zeros(len(names.states))
        for state, chance in start.items():
            chances[names.number(state)] += number("start", chance)
        return chances
    try:
        return names.number(start)
    except InvalidInput:
        if isinstance(start, str | bytes) or np.ndim(start) == 0 or len(start) != len(names.states):
            raise
        return start


def require_same_problem(study: Study, model: Model) -> None:
    same = model.problem.fingerprint == study.problem.fingerprint
    if (
        not same
        and isinstance(study.problem, Problem)
        and len(model.problem.ends)
        and study.problem.given_features is not None
    ):  # begun by an older version
        same = model.problem.without_ends.fingerprint == study.problem.fingerprint
    if not same:
        raise InvalidInput(
            "the simulator belongs to another problem than the study: features, mask, ends, discount or horizon "
            "differ. Build it as it was when the study began."
        )
    known, grows = Units.of(model, study.units), getattr(model, "numbers_as_they_appear", False)
    for what, before, after in (
        ("states", study.units.states, known.states),
        ("actions", study.units.actions, known.actions),
    ):
        if before is not None and after is not None and before != after and not grows:
            raise InvalidInput(
                f"the simulator's {what} are others than those that the study began with, or in another order. Give "
                "them as they were."
            )
    own, mapping = (units.reward_range for units in (study.units, known))
    if mapping != own:
        was, now = (f"[{low:g}, {high:g}]" for low, high in (own, mapping))
        raise InvalidInput(
            f"the study maps rewards from {was} into [0, 1], the simulator from {now}: their samples must not be "
            "pooled. Give the reward_range with which the study began."
        )


def check_arguments(model: Any, executor: Any, max_seconds: Any, query_seconds: Any, progress: Any) -> None:
    if not isinstance(model, Model) or not isinstance(model.problem, Problem | FeatureProblem):
        raise InvalidInput(
            "model must be a function, with states= and actions=, or have a `problem` and a `sample(pulls, rng)`. "
            f"Got {type(model).__name__}; wrap a model in ExactSimulator (or solve it: model.policy), an environment "
            "in GymSimulator."
        )
    if executor is not None and not isinstance(executor, Executor):
        function("executor", executor, "executor() -> concurrent.futures.Executor, unless it is an Executor itself")
    if progress is not None and not isinstance(progress, bool):
        function("progress", progress, "progress(study)")
    for name, seconds in (("max_seconds", max_seconds), ("query_seconds", query_seconds)):
        if seconds is not None:
            number(name, seconds, above=0)


def wants_line(progress: bool | None) -> bool:
    """Whether to show a line: as asked, else where somebody can see it change."""
    if progress is not None:
        return progress
    return bool(getattr(sys.stderr, "isatty", bool)()) or "ipykernel" in sys.modules


def share_names(study: Study, model: Model, executor: Any) -> None:
    """Have a simulator that numbers observations as they appear know the numbers that the study has for them."""
    if not getattr(model, "numbers_as_they_appear", False):
        return
    if executor is not None:
        raise InvalidInput(
            "executor is not for observations that are numbered as they appear, which workers would do differently. "
            "List them: states=[…] (those of a simulator after a run without workers are its attribute `states`)."
        )
    model.know_states(study.units.states)  # type: ignore[union-attr]
    study.name_states(Units.of(model).states)  # it may have numbered more of them already


def suited(algorithm: str | Algorithm | None, model: Model, **known: bool) -> Choice:
    """Return the algorithm as named or by default, with what the simulator knows that bears on it."""
    choice = choose_algorithm(algorithm, model.problem, pairs=isinstance(model, GenerativeModel), **known)
    own, name = getattr(model, "parameters", None), choice.algorithm.name
    by_name = is_default(algorithm) or isinstance(algorithm, str)
    if by_name and isinstance(own, dict) and name in own:
        choice = choice._replace(algorithm=make_algorithm(name, own[name]))
    road = getattr(model, "road", "")
    if choice.why and road:
        choice = choice._replace(why=f"{choice.why}: {road}")
    require_sampling(choice.algorithm, model)
    return choice


def require_sampling(algorithm: Algorithm, model: Model) -> None:
    """Refuse an algorithm that asks for what the simulator cannot do."""
    able = isinstance(model, GenerativeModel), isinstance(model, ForwardModel)
    wants = algorithm.about.sampling
    if wants == "pairs" and not able[0]:
        raise InvalidInput(
            f"algorithm {algorithm.name!r} simulates single pairs, and this environment can only be reset and stepped: "
            "use algorithm='forward'."
        )
    if wants == "episodes" and not able[1]:
        raise InvalidInput(
            f"algorithm {algorithm.name!r} follows policies, and {type(model).__name__} has no method "
            "`rollout(episodes, rng)`: give it one, or use an algorithm that simulates pairs, such as 'tight'."
        )
    if wants == "one trajectory" and not all(able):
        raise InvalidInput(
            f"algorithm {algorithm.name!r} follows one endless trajectory, which needs a simulator with `rollout` and "
            "`sample`, such as ExactSimulator or CallableSimulator: one that can begin anywhere, so that a run can be "
            "resumed."
        )
