"""What a run found, what is certified of it, and why it ended.

Digits that are left out of a claim are never left out in its favour.

>>> claim(0.284400378, 0.05)
'within 0.2845 of optimal in every state with probability at least 0.95'
>>> claim(0.0, 1e-9)
'optimal in every state with probability at least 0.999999999'
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from functools import cached_property
from math import inf, isfinite
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import choice, whole
from bestpolicy._version import __version__
from bestpolicy.certificate import Origin, write_certificate
from bestpolicy.errors import InvalidInput
from bestpolicy.problem.names import Names, key_of
from bestpolicy.problem.units import Units
from bestpolicy.stopping import Check
from bestpolicy.study.display import as_frame, as_html, as_picture, policy_picture
from bestpolicy.study.forecast import Outlook
from bestpolicy.study.linearity import Linearity
from bestpolicy.study.values import estimated_q_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STATES_SHOWN = 30
_ENDLESS = 10**15  # samples: algorithms that end by themselves there would go on for ever
_DIGITS = 4
_DOWN = Context(rounding=ROUND_FLOOR)
_EXACT = 15  # decimal digits that a float holds whatever its last bits: 0.1 * 3 is 0.3


class Outcome(StrEnum):
    """Why a run ended."""

    CERTIFIED = "certified"
    BUDGET = "sample budget spent"
    TIME = "time budget spent"
    INTERRUPTED = "interrupted"
    DOUBT = "in doubt"
    GAVE_UP = "gave up"
    NO_GUARANTEE = "finished without a guarantee"
    RUNNING = "still running"


FINAL = (Outcome.CERTIFIED, Outcome.DOUBT, Outcome.GAVE_UP, Outcome.NO_GUARANTEE)  # nothing more is to be simulated


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run found and what is certified of it.

    Attributes
    ----------
    algorithm : str
    asked_epsilon, delta : float
    policy : int array (S,) or (H, S)
    certified : bool
        Whether the policy is within `epsilon` of optimal with probability at least 1 - delta, as asked.
    epsilon : float
        What is certified (may be better than asked; inf if nothing is).
    outcome : Outcome
    explanation : str
        Why the run ended and what to do, in a sentence.
    rounds, samples : int
        Rounds, and simulator calls (H per round if episodic).
    statistic, threshold, gap : float
        Of the last check.
    rule : str
        The statement that certifies.
    seed : int
    seconds : float
    checks : tuple of Check
        The trace of the run.
    where : str
        Where the claim holds: in every state, or from a start. A policy that is good from there may be bad elsewhere.
    warnings : tuple of str
        What casts doubt on the guarantee, such as data that are not linear in the features.
    broken_episodes : int
        Episodes that broke off because the simulator failed; each counts as a return of 0.
    origin : Origin, optional
        The problem, the settings and the file of the study, for `save`.
    names : Names, optional
        States and actions as the simulator knows them.
    unfinished_calls : int
        Simulator calls of a batch that is not complete. They are kept in the study's file and count when it goes on.
    outlook : Outlook, optional
        Range of the simulator calls that the whole run should need, if it is not over.
    linearity : Linearity, optional
        What was tested of the features, and what misfit could still hide; None if they are one-hot, or not tested.
    """

    algorithm: str
    asked_epsilon: float
    delta: float
    policy: IntArray
    certified: bool
    epsilon: float
    outcome: Outcome
    explanation: str
    rounds: int
    samples: int
    statistic: float
    threshold: float
    gap: float
    rule: str
    seed: int
    seconds: float
    checks: tuple[Check, ...]
    warnings: tuple[str, ...] = ()
    origin: Origin | None = None
    where: str = "in every state"
    broken_episodes: int = 0
    names: Names | None = None
    unfinished_calls: int = 0
    outlook: Outlook | None = None
    linearity: Linearity | None = None

    def action(self, state: Any, step: int = 0) -> Any:
        """Return what the policy does in a state, both by their names (by their numbers where they have none).

        Parameters
        ----------
        state
        step : int
            Of an episodic problem, counted from 0.
        """
        units, names = self._units, self._names
        number, policy = names.number(state), np.atleast_2d(self.policy)
        if not whole("step", step, 0) < len(policy) or number >= policy.shape[1]:
            raise InvalidInput(f"the policy says nothing of state {state!r:.80} at step {step}.")
        played = policy[step, number]
        return names.actions[int(played)] if units.own_states is None else key_of(played)

    @cached_property
    def q_values(self) -> FloatArray:
        """Estimates of the policy's action values, (S, A) or (H, S, A), in your units; nan where nothing is known.

        Estimates: what is certified is that the policy loses no more than `epsilon`.
        """
        origin, last = self.origin, self.checks[-1] if self.checks else None
        tally = None if origin is None else origin.measured()
        if origin is None or last is None or tally is None:
            raise InvalidInput("nothing was measured and looked at so far, so nothing is known of values.")
        found = estimated_q_values(origin.problem, tally, last.policy, self._units)[:, : self.policy.shape[-1]]
        return found[0] if self.policy.ndim == 1 else found

    @cached_property
    def values(self) -> FloatArray:
        """Estimates of the policy's values, (S,) or (H, S), in your units; see `q_values`."""
        played = np.atleast_2d(self.checks[-1].policy if self.checks else self.policy)[:, : self.policy.shape[-1]]
        found = np.take_along_axis(self.q_values, played.reshape(*self.policy.shape, 1), axis=-1)
        return found[..., 0]

    def rows(self) -> list[dict[str, Any]]:
        """Return the policy as a list of rows: step (if episodic), state, action, and its value as estimated."""
        every, episodic = self._names.states[: self.policy.shape[-1]], self.policy.ndim == 2
        try:
            values = np.atleast_2d(self.values)
        except InvalidInput:
            values = np.full(np.atleast_2d(self.policy).shape, np.nan)
        return [
            ({"step": step} if episodic else {})
            | {"state": state, "action": self.action(state, step), "value": float(value)}
            for step, of_step in enumerate(values)
            for state, value in zip(every, of_step, strict=True)
        ]

    def to_frame(self) -> Any:
        """Return `rows` as a `pandas.DataFrame`."""
        return as_frame(self.rows())

    def plot(self, what: str = "policy") -> Figure:
        """Draw the policy, or the run; returns a figure of matplotlib, and shows nothing by itself.

        Parameters
        ----------
        what : {"policy", "run"}
            "policy": what is played where. States that are numbers, tuples or texts with numbers are drawn by these: a
            grid as a grid, stock by time, queue by queue. "run": what was certified after how many simulator calls.
        """
        choice("what", what, ("policy", "run"))
        if what == "run":
            return as_picture(self.checks, self.asked_epsilon)
        if self.origin is None or not self.checks:
            raise InvalidInput("nothing was measured and looked at so far, so there is no policy to draw.")
        return policy_picture(self.origin, self.checks[-1].policy, self._names.states)

    def _repr_html_(self) -> str:
        return as_html(self.explanation, self._facts, self.rows())

    @property
    def _units(self) -> Units:
        return Units() if self.origin is None else self.origin.settings.units

    @cached_property
    def _names(self) -> Names:
        if self.names is not None:
            return self.names
        if self.origin is not None:
            return self._units.names(self.origin.problem)
        return Names(tuple(range(self.policy.shape[-1])), tuple(range(int(self.policy.max()) + 1)))

    def __repr__(self) -> str:
        policy = np.array2string(self.policy, threshold=30, edgeitems=5).replace("\n", "")
        known = f"ε = {at_most(self.epsilon)}" if self.epsilon < inf else "no ε"
        return (
            f"Result({self.outcome}: {known} certified with probability {confidence(self.delta)}, {self.algorithm}, "
            f"{self.samples} samples, {len(self.checks)} checks, policy {policy})"
        )

    def __str__(self) -> str:
        lost = f"{self.broken_episodes} episodes broke off; each counts as a return of 0"
        facts = [self.explanation, self._facts, *([lost] if self.broken_episodes else [])]
        return "\n".join([*facts, self._policy_in_words()])

    @property
    def chosen(self) -> str:
        """Why the algorithm is the one that it is, if it was not named."""
        return "" if self.origin is None else self.origin.settings.chosen

    @property
    def _facts(self) -> str:
        why = f" ({self.chosen})" if self.chosen else ""
        return f"{self.algorithm}{why}, seed {self.seed}: {self.samples:,} simulator calls in {self.seconds:.3g} s"

    def _policy_in_words(self) -> str:
        if self._units.states is None or self._units.own_states is not None:
            return f"policy: {np.array2string(self.policy, threshold=200, max_line_width=110)}"
        every = self._names.states
        said = ", ".join(f"{state}: {self.action(state)}" for state in every[:_STATES_SHOWN])
        more = f", … ({len(every):,} states in all)" * (len(every) > _STATES_SHOWN)
        return f"policy{' at step 0' if self.policy.ndim == 2 else ''}: {said}{more}"

    def save(self, path: str | PathLike[str]) -> None:
        """Write a certificate, one JSON file from which anyone can check what is certified (`bestpolicy verify`).

        It holds the policy (in the problem's states and actions), its ε and δ, and the samples that prove it. The
        rules of `tight` and `adaptive` certify some ε at any time: that can be saved, asked for or not.

        Raises
        ------
        InvalidInput
            If nothing is certified, or the file cannot be written.
        """
        write_certificate(self, path)

    def to_dict(self, model: str | None = None) -> dict[str, Any]:
        """Return what is worth printing, ready for JSON (numbers that are not finite become None)."""
        remembered = self.origin.settings.origin.get("model", "") if self.origin is not None else ""
        return {
            "algorithm": self.algorithm,
            **({"chosen": self.chosen} if self.chosen else {}),
            "model": remembered if model is None else model,
            "asked_epsilon": self.asked_epsilon,
            "delta": self.delta,
            "certified": self.certified,
            "epsilon": _finite(self.epsilon),
            "where": self.where,
            **({"broken_episodes": self.broken_episodes} if self.broken_episodes else {}),
            "outcome": str(self.outcome),
            "explanation": self.explanation,
            "policy": self._json_policy(),
            "rounds": self.rounds,
            "samples": self.samples,
            "statistic": _finite(self.statistic),
            "threshold": _finite(self.threshold),
            "gap": _finite(self.gap),
            "rule": self.rule,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
            **self._json_outlook(),
            **({} if self.linearity is None else {"linearity": self.linearity.to_dict()}),
            "version": __version__,
        } | self._json_names()

    def _json_policy(self) -> Any:
        return self.policy.tolist()

    def _json_outlook(self) -> dict[str, Any]:
        """Range of the calls that the whole run should need, if it is not over and something can be said."""
        if self.outlook is None or not self.outlook.low > 0:
            return {}
        return {"expected_samples": [self.outlook.low, _finite(self.outlook.high)]}

    def _json_names(self) -> dict[str, Any]:
        """What the numbers in the policy are called, if they have names."""
        units = self._units
        known = units.own_states is None and units.states is not None
        return {"names": {"states": units.states, "actions": units.actions}} if known else {}


def explain(
    outcome: Outcome,
    last: Check | None,
    delta: float,
    max_samples: int | None,
    ahead: Outlook,
    unfit: str = "",
    where: str = "in every state",
    asked: float = 0.0,
    per_misfit: float = 0.0,
) -> str:
    """Say why a run ended and what is known, in a sentence; `unfit` names a batch too large for the budget, if any.

    `per_misfit` is by how much ε grows with the misfit ζ of features that are only assumed to fit, see `claim`.
    """
    known = inf if last is None else last.epsilon
    if outcome is Outcome.CERTIFIED and last is not None:
        return f"The policy is {claim(known, delta, where, per_misfit)} ({last.rule})."
    calls = "1 simulator call" if max_samples == 1 else f"{max_samples} simulator calls"
    spent = f"{unfit} does not fit into the budget of {calls}" if unfit else f"The budget of {calls} is spent"
    if outcome is Outcome.DOUBT:
        within = "" if known == inf else f"; what was shown so far ({quality(known)}) would hold if they did"
        return f"Nothing is certified, because the features do not fit{within}."
    why = {
        Outcome.BUDGET: spent,
        Outcome.TIME: "The time is up",
        Outcome.INTERRUPTED: "The run was interrupted",
        Outcome.GAVE_UP: gave_up(0 if last is None else last.samples, asked),
        Outcome.NO_GUARANTEE: "All samples are made, but this algorithm proves nothing of its policy",
        Outcome.RUNNING: "The run is not over",
    }[outcome]
    certified = so_far(last, where, per_misfit)
    if outcome is Outcome.NO_GUARANTEE:
        return f"{why}: nothing is certified."
    needed = f"; {ahead} calls would be needed in all" if 0 < ahead.expected < inf else ""
    return f"{why}: {certified}{needed}."


def so_far(last: Check | None, where: str, per_misfit: float = 0.0) -> str:
    """Say what is certified by now."""
    if last is None or last.epsilon == inf:
        return "nothing is certified so far"
    return f"so far the policy is certified to be {quality(last.epsilon)} {where}{provided(last.epsilon, per_misfit)}"


def gave_up(samples: int, asked: float) -> str:
    """Say why an algorithm ended without the certificate that was asked for, and what to do."""
    if samples < _ENDLESS:
        return "The algorithm has made all samples of its plan without a proof (try a larger epsilon, or 'tight')"
    cause = (
        "two actions seem to be tied, and no number of samples shows which is better (ask for an epsilon above 0)"
        if asked == 0
        else "epsilon is smaller than samples and arithmetic in 64 bits can show (ask for a larger one)"
    )
    return f"{samples:.1e} simulator calls, as many as can be counted exactly, have not been enough: {cause}"


def _finite(number: float) -> float | None:
    return float(number) if isfinite(number) else None


def claim(epsilon: float, delta: float, where: str = "in every state", per_misfit: float = 0.0) -> str:
    """State what is certified, where, and how surely; and on which condition, if ε grows with the misfit of features.

    >>> claim(4.2, 0.05, per_misfit=20.0)
    'within 4.2 of optimal in every state with probability at least 0.95, if the features fit; with an interpolation \
error of up to ζ, within 4.2 + 20ζ'
    """
    sure = f"{quality(epsilon)} {where} with probability at least {confidence(delta)}"
    return f"{sure},{provided(epsilon, per_misfit)}" if per_misfit else sure


def provided(epsilon: float, per_misfit: float) -> str:
    """The condition of a claim that rests on features, and how it depends on their misfit; nothing if it does not."""
    if not per_misfit:
        return ""
    grown = f"{at_most(epsilon)} + {at_most(per_misfit)}ζ"
    return f" if the features fit; with an interpolation error of up to ζ, within {grown}"


def quality(epsilon: float) -> str:
    """How good a policy is: optimal, or within ε of it."""
    return "optimal" if epsilon == 0 else f"within {at_most(epsilon)} of optimal"


def at_most(bound: float) -> str:
    """An upper bound with four digits, rounded up: ``0.2845``, ``12,350``."""
    if bound == 0 or not bound < inf:
        return "0" if bound == 0 else "∞"
    text = f"{_up(bound):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def at_least(bound: float) -> str:
    """A lower bound with four digits, rounded down."""
    if not bound > 0:
        return "0"
    exact = Decimal(f"{bound:.{_EXACT}g}")
    return _plain(exact.quantize(Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1), rounding=ROUND_FLOOR))


def confidence(delta: float) -> str:
    """The probability 1 - δ, rounded down: ``0.95``."""
    return _plain(_DOWN.subtract(Decimal(1), _up(delta)))


def percent(delta: float) -> str:
    """The probability 1 - δ in per cent, rounded down: ``95 %``, ``99.9999 %``."""
    return _plain(100 * _DOWN.subtract(Decimal(1), _up(delta))) + "\N{NO-BREAK SPACE}%"


def _up(number: float) -> Decimal:
    exact = Decimal(f"{number:.{_EXACT}g}")
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1), rounding=ROUND_CEILING)


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
