"""What a study is begun with, checked: its settings, its algorithm, and where its claims are to hold."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import number
from bestpolicy.algorithms import ALGORITHMS, Algorithm, Choice, choose_algorithm, parameters_of
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.units import Units
from bestpolicy.study.linearity import SHARE
from bestpolicy.study.settings import RESET, Settings, asked


def settings_of(
    problem: Problem,
    *,
    epsilon: float | str,
    delta: float,
    algorithm: str | Algorithm | Choice | None,
    seed: int | None,
    max_samples: int | None,
    calls_per_query: int | None,
    units: Units | None = None,
    origin: dict[str, str] | None = None,
    start: Any = None,
    own_data: bool = False,
    linearity: float | None = None,
) -> tuple[Settings, Algorithm]:
    """Return the settings of a study, checked, and its algorithm; the parameters are those of `Study`."""
    found, why = choose_algorithm(algorithm, problem, own_data=own_data, start=start is not None)
    # Those for tables learn nothing from features, so these cannot mislead them.
    testable = found.about.sampling == "pairs" and found.about.features != "tabular" and not problem.is_tabular
    tested = SHARE if linearity is None else number("linearity", linearity, least=0, below=1)
    if start is None and found.about.sampling == "episodes":
        start = RESET
    most, share = asked(epsilon, problem, units or Units())
    able = problem.is_tabular and getattr(found, "takes_share", False)
    if share and (not able or (units or Units()).reward_bias):
        raise InvalidInput(
            f"epsilon={epsilon!r}, a share of V*, is for tables, with algorithm 'sharp' and rewards that are not "
            "truncated. Give a number, or '5%' (of the range that values can take)."
        )
    settings = Settings(
        most,
        delta,
        found.name,
        parameters_of(found),
        secrets.randbits(63) if seed is None else seed,
        max_samples,
        calls_per_query,
        units or Units(),
        origin or {},
        start=start,
        chosen=why,
        share=share,
        truncation_loss=(units or Units()).truncation_loss(problem),
        linearity=tested if testable else 0.0,
    )
    _require_room(settings)
    _require_start(problem, settings, found)
    _require_ends(problem, settings.units)
    return settings, found


def start_distribution(problem: Problem, settings: Settings) -> FloatArray | None:
    """Return the distribution over states that a claim is about; None if it is about every state."""
    if settings.start is None or isinstance(settings.start, str):
        return None
    if isinstance(settings.start, tuple):
        return np.array(settings.start)
    single = np.zeros(problem.states)
    single[settings.start] = 1.0
    return single


def _require_start(problem: Problem, settings: Settings, algorithm: Algorithm) -> None:
    start = settings.start
    if start is None:
        return
    if not getattr(algorithm, "takes_start", False) and algorithm.about.sampling == "pairs":
        raise InvalidInput(
            f"start is not for algorithm {algorithm.name!r}, whose claims are about every state. Leave it out, or use "
            "'sharp' (for problems whose pairs share no features) or, if the simulator can only be reset and stepped, "
            "'forward'."
        )
    if isinstance(start, str) or isinstance(problem, FeatureProblem):
        return
    if (len(start) != problem.states) if isinstance(start, tuple) else (start >= problem.states):
        raise InvalidInput(
            f"start must be one of the states 0 to {problem.states - 1}, or a distribution over them. Got "
            f"{f'{len(start)} numbers' if isinstance(start, tuple) else start} instead."
        )


def _require_room(settings: Settings) -> None:
    """Raise InvalidInput if truncated rewards may cost all that is asked."""
    lost = settings.truncation_loss
    if lost and not settings.asked_epsilon > lost:
        raise InvalidInput(
            f"epsilon must be larger than {lost:g}, which is what truncating rewards to "
            f"[{settings.units.reward_range[0]:g}, {settings.units.reward_range[1]:g}] may cost. Got "
            f"{settings.asked_epsilon:g} instead; truncate less (a wider range has a smaller bias)."
        )


def _require_ends(problem: Problem, units: Units) -> None:
    """Raise InvalidInput if the ends of a problem pay anything in the user's units of reward."""
    if isinstance(problem, FeatureProblem):
        return
    pays = units.reward_offset + units.reward_scale * problem.end_reward
    if len(problem.ends) and units.reward_range != (0.0, 1.0) and abs(pays) > 1e-9 * units.reward_scale:
        raise InvalidInput(
            f"the ends of the problem would pay {pays:g} at each step in these units of reward, not 0. Give "
            "problem.in_units(units)."
        )


def too_many(calls: int, algorithm: str, problem: Problem) -> str:
    """Say what a plan would cost, and what to do instead."""
    if isinstance(problem, FeatureProblem):
        better = []
    else:
        better = [
            name for name in ("sharp", "tight") if name != algorithm and not ALGORITHMS[name]().unsuitable(problem)
        ]
    others = " or ".join(f"algorithm={name!r}" for name in better)
    hint = f"Try {others}, which begin with few; or ask" if others else "Ask"
    return (
        f"algorithm {algorithm!r} would begin with {calls:.2g} calls of your simulator: {calls / 86.4e6:.2g} days, if "
        f"a call takes a millisecond. {hint} for a larger epsilon. If you mean it, give max_samples= (a budget), or "
        "largest_batch=math.inf."
    )


def require_problem(problem: Any) -> None:
    """Raise InvalidInput if it is none."""
    if not isinstance(problem, Problem | FeatureProblem):
        raise InvalidInput(f"problem must be a Problem. Got {type(problem).__name__} instead.")
