"""Everything that decides a study but the problem and the answers, made once and kept in its file.

A new option is a field here, with its check, and whatever it is for.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import as_floats
from bestpolicy._numerics.inputs import number, of_type, shown, whole, word
from bestpolicy.errors import InvalidInput, StoreError
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units


@dataclass(frozen=True)
class Settings:
    """What was asked, how, and in whose units.

    Attributes
    ----------
    asked_epsilon, delta : float
        The policy shall be within `asked_epsilon` ≥ 0 of optimal (in the user's units) with probability 1 - `delta`.
    algorithm : str
    parameters : dict
    seed : int
        Drawn if not given.
    max_samples : int, optional
        Budget of simulator calls.
    start : int or tuple of float or "reset", optional
        The claim is about this start state, about this distribution over states, or about wherever the simulator itself
        begins; about every state by default.
    calls_per_query : int, optional
        Largest number of calls of a query; any if not given.
    units : Units
    origin : dict of str
        What the file shall remember of the simulator.
    budgets : tuple of (int, int or None)
        From which query on which budget was in force.
    warnings : tuple of str
        What casts doubt on the guarantee.
    failures : int
        How often the simulator failed and calls were made again.
    share : float
        If positive, ε was asked as this share of the largest |V*|, and `asked_epsilon` is the most that this can be.
    truncation_loss : float
        What truncated rewards may add to the loss of a policy, in the user's units; it is part of every ε.
    chosen : str
        Why the algorithm is the one that it is, if it was not named.
    linearity : float
        Share of the calls that tests whether the features fit, at least; 0: they are not tested.
    """

    asked_epsilon: float
    delta: float
    algorithm: str
    parameters: dict[str, Any] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    max_samples: int | None = None
    calls_per_query: int | None = None
    units: Units = field(default_factory=Units)
    origin: dict[str, str] = field(default_factory=dict)
    budgets: tuple[tuple[int, int | None], ...] = ()
    warnings: tuple[str, ...] = ()
    failures: int = 0
    start: int | tuple[float, ...] | str | None = None
    chosen: str = ""
    truncation_loss: float = 0.0
    share: float = 0.0
    linearity: float = 0.0

    def __post_init__(self) -> None:
        of_type("parameters", self.parameters, dict)
        of_type("origin", self.origin, dict)
        of_type("units", self.units, Units)
        of_type("chosen", self.chosen, str)
        for warning in self.warnings:
            of_type("each of warnings", warning, str)
        # Whatever was given, what is kept is of the right kind.
        self._keep(
            asked_epsilon=number("epsilon", self.asked_epsilon),
            delta=_probability(self.delta),
            algorithm=word("algorithm", self.algorithm),
            seed=whole("seed", self.seed, 0),
            max_samples=None if self.max_samples is None else whole("max_samples", self.max_samples, 1),
            calls_per_query=None if self.calls_per_query is None else whole("calls_per_query", self.calls_per_query, 1),
            budgets=tuple((first, limit) for first, limit in self.budgets) or ((0, self.max_samples),),
            warnings=tuple(self.warnings),
            start=_start(self.start),
            failures=whole("failures", self.failures, 0),
            share=number("share", self.share),
            truncation_loss=number("truncation_loss", self.truncation_loss),
            linearity=number("linearity", self.linearity, least=0, below=1),
        )

    def _keep(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def budget_at(self, query: int) -> int | None:
        """Return the budget that was in force when a query was made; a batch that exceeds it was cut to fit."""
        return [limit for first, limit in self.budgets if first <= query][-1]

    @property
    def where(self) -> str:
        """Where the claim holds, in words."""
        if self.start is None:
            return "in every state"
        if isinstance(self.start, str):
            return "on average over the simulator's own starts"
        if isinstance(self.start, tuple):
            return "on average over the start distribution"
        names = self.units.states
        return f"from state {names[self.start] if names and self.start < len(names) else self.start}"

    @property
    def truncation(self) -> str:
        """What is stated of truncated rewards; empty if there are none."""
        low, high = self.units.reward_range
        return (
            f"Of this ε, {self.truncation_loss:.4g} is for rewards beyond [{low:g}, {high:g}], which count as its ends."
            if self.truncation_loss
            else ""
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """All that casts doubt on the guarantee, failures included."""
        return self.warnings if not self.failures else (*self.warnings, failure_warning(self.failures))

    @property
    def epsilon(self) -> float:
        """The asked ε in the problem's own units, in which rewards lie in [0, 1], less what truncation may cost."""
        return max(0.0, self.asked_epsilon - self.truncation_loss) / self.units.reward_scale

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Settings:
        """Read what `to_dict` wrote, or what the first versions did."""
        try:
            if "units" not in known:
                known = _of_the_first_versions(known)
            listed = {entry.name: known[entry.name] for entry in fields(cls) if entry.name in known}
            return cls(**listed | {"units": Units(**known["units"])})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreError(f"stored settings are damaged ({error}). Take a copy of the file that is whole.") from None


RESET = "reset"  # a start: wherever the simulator itself begins


def absolute_epsilon(epsilon: Any, problem: Problem, units: Units) -> Any:
    """Return ε in the user's units: "5%" is a share of the range that values can take; numbers are as they are.

    Of "5% of V*" it is the most that this can be: the largest |V*| is found out by the run.
    """
    return asked(epsilon, problem, units)[0]


def asked(epsilon: Any, problem: Problem, units: Units) -> tuple[Any, float]:
    """Return ε in the user's units, and the share of V* that it is at most; 0 if no such share was asked."""
    if not isinstance(epsilon, str):
        return epsilon, 0.0
    share = re.fullmatch(r"\s*([0-9.]+(?:[eE]-?[0-9]+)?)\s*%\s*(of\s+V\*)?\s*", epsilon)
    try:
        part = number("epsilon", float(share[1]) if share else None) / 100
    except ValueError:
        raise InvalidInput(
            "epsilon must be a number ≥ 0, a share of the range that values can take such as '5%', or '5% of V*', a "
            f"share of the largest value itself. Got {shown(epsilon)} instead."
        ) from None
    limit = float(problem.value_limits[0])
    if share is not None and share[2]:
        if not 0 < part < 1:
            raise InvalidInput(f"a share of V* must lie between 0% and 100%. Got {shown(epsilon)} instead.")
        return part * max(map(abs, units.reward_range)) * limit, part
    return part * units.reward_scale * limit, 0.0


def _start(start: Any) -> int | tuple[float, ...] | str | None:
    """Return a start state, or a distribution over states whose sum is 1 up to rounding."""
    if start is None or isinstance(start, str | bytes):
        if start is not None and start != RESET:
            raise InvalidInput(f"start must be a state or a distribution over states. Got {shown(start)} instead.")
        return RESET if start else None
    if np.ndim(start) == 0:
        return whole("start", start, 0)
    chances = as_floats("start", start, ("states",))
    if not ((chances >= 0).all() and abs(chances.sum() - 1) <= 1e-9):
        raise InvalidInput("start must be a distribution over states: not negative, with sum 1.")
    return tuple((chances / chances.sum()).tolist())


_FAILED = "the simulator failed"


def failure_warning(failures: int) -> str:
    """Say what failures may have done to the samples."""
    times = "once" if failures == 1 else f"{failures} times"
    return (
        f"{_FAILED} {times} and the calls concerned were made again; if it fails more often on some outcomes than on "
        "others, the samples are biased and the guarantee does not hold."
    )


def is_about_failures(warning: str) -> bool:
    """Whether a warning is one of `failure_warning`."""
    return warning.startswith(_FAILED)


def _of_the_first_versions(known: dict[str, Any]) -> dict[str, Any]:
    labels = known.get("labels") or {}
    named = {key: labels[key] for key in ("states", "actions", "environment") if key in labels}
    scale, offset = known["reward_scale"], known.get("reward_offset", 0.0)
    units = named | {"reward_scale": scale, "reward_offset": offset}
    return known | {"asked_epsilon": known["epsilon"], "units": units, "budgets": known.get("budgets") or ()}


def _probability(delta: Any) -> float:
    if number("delta", delta, above=0, below=1) < 1e-300:
        raise InvalidInput(f"delta must be at least 1e-300, so that its shares are numbers. Got {delta!r} instead.")
    return float(delta)
