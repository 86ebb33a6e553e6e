"""The one shape of stopping rules, and what they say.

A certificate is a test that the past sets up: whatever a theorem needs fixed (a prior, a policy, a function) is fixed
by samples already seen, or beforehand where there are none, and it concludes from samples still to come. A `Rule` fixes
a test from a `Past`; the test looks at the evidence since, as often as one likes, and returns a `Verdict`: which ε it
proves for which policy, with a typed `Proof` for those who want to check it. A run reports verdicts as `Check`. Who
spends which share of δ is decided in `lags`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.design import Design
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lemmas.deviations import Prior
from bestpolicy.stopping.rounding import Coordinates, coordinates_of

if TYPE_CHECKING:
    from bestpolicy.stopping.lemmas.propagation import Propagation

_PRIOR_FIELDS = ("base", "capacity", "largest", "shares")
_LETTERS = ("R", "T", "P", "F", "U", "O", "I", "UD", "F±")
_THEOREMS = {f"Theorem {letter}{suffix}": letter for letter in _LETTERS for suffix in ("", "-E")}


def theorem_of(rule: str) -> str:
    """Return the letter of the theorem that a check names as its rule, such as T for "Theorem T-E (A)"."""
    return _THEOREMS[rule.split(" (")[0]]


@dataclass(frozen=True, eq=False)
class Terms:
    """What all tests of a run have in common.

    Attributes
    ----------
    problem : Problem
        In coordinates in which the features are well conditioned.
    epsilon : float
        What is asked: tests may spend δ differently for 0 and for more.
    value_span : float
        The user's bound on span(V*): the guarantee then relies on it.
    """

    problem: Problem
    epsilon: float
    value_span: float = inf


@dataclass(frozen=True, eq=False)
class Past:
    """What is fixed before the samples that a test will see; nothing by default.

    Attributes
    ----------
    prior : Prior, optional
        For theorems that confine errors to ellipsoids: all but R.
    number : int
        Position among the pasts of a run: 0 is before the first sample.
    started : int
        Number of samples that fixed it.
    policy : int array (stages, S), optional
        The best one so far, for theorems about a fixed policy.
    values : array (1, S), optional
        Its values as estimated, for theorems about a fixed function.
    """

    prior: Prior | None = None
    number: int = 0
    started: int = 0
    policy: IntArray | None = None
    values: FloatArray | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and arrays, for the file of a study."""
        return vars(self) | {"prior": {name: getattr(self.prior, name) for name in _PRIOR_FIELDS}}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Past:
        """Return what `to_dict` has written."""
        return cls(**(known | {"prior": Prior(**known["prior"])}))


@dataclass(frozen=True, eq=False)
class Proof:
    """What others need to come to the same verdict; a certificate shows it as it is.

    Attributes
    ----------
    theorem : {"R", "T", "P", "F", "U", "O", "I", "UD", "F±", "H", "no choice"}
    samples : Evidence, optional
    transform : array (d, d), optional
        The coordinates of the test: φ times this.
    past : Past, optional
        None where nothing of it is used (Theorem R).
    value_span : float
    design : Design, optional
        That the run began with.
    fixed, fresh : dict, optional
        Theorem U: what its lag has fixed, with its ``number`` and how many samples it had ``started`` after; and the
        samples since, with the ``units`` of the look. Numbers and arrays, as a certificate has them. Theorem O: what
        was known beforehand; and the episodes, with the number and the returns of the policy.
    """

    theorem: str
    samples: Evidence | None = None
    transform: FloatArray | None = None
    past: Past | None = None
    value_span: float = inf
    design: Design | None = field(default=None, repr=False)
    fixed: dict[str, Any] | None = field(default=None, repr=False)
    fresh: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def tally(self) -> Tally | None:
        """The samples without weights."""
        return None if self.samples is None else self.samples.tally

    def with_design(self, design: Design) -> Proof:
        """Return the proof with the design of its run."""
        return replace(self, design=design)


@dataclass(frozen=True, eq=False)
class Check:
    """One look of a stopping rule at the data, as a run reports it.

    Attributes
    ----------
    rounds, samples : int
        Rounds t and simulator calls so far (the same if discounted, H calls a round if episodic).
    policy : int array (stages, S)
        The policy that would be returned now.
    statistic, threshold : float
        The run may stop once the statistic exceeds the threshold.
    passed : bool
        Whether what was asked is certified.
    epsilon : float
        What is certified for `policy` at this check (inf if nothing yet).
    gap : float
        Smallest estimated difference of best and second-best action.
    rule : str
        The statement that certifies.
    proof : Proof, optional
        What a certificate needs to show it to others: the samples and all that was fixed before them.
    lag : int
        Number of the lag whose statement it is; 0 for a statement about all samples.
    forecast : float
        Simulator calls that the run is planned to need in all; nan if nothing is planned.
    value_floor : float
        What the largest |V*| is certified to be at least, if that was asked for; else nan.
    """

    rounds: int
    samples: int
    policy: IntArray
    statistic: float
    threshold: float
    passed: bool
    epsilon: float
    gap: float
    rule: str
    proof: Proof | None = field(default=None, repr=False)
    lag: int = 0
    forecast: float = nan
    value_floor: float = nan

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the check, ready for JSON (those that are not finite become None)."""
        numbers = {name: getattr(self, name) for name in ("statistic", "threshold", "epsilon", "gap")}
        finite = {name: float(value) if isfinite(value) else None for name, value in numbers.items()}
        known = {"rounds": self.rounds, "samples": self.samples, "passed": bool(self.passed), "rule": self.rule}
        planned = {name: getattr(self, name) for name in ("forecast", "value_floor")}
        planned = {name: value for name, value in planned.items() if not isnan(value)}
        return known | finite | planned | ({"lag": self.lag} if self.lag else {})


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one look at the evidence certifies.

    Attributes
    ----------
    theorem : str
        Its letter, with -E if the problem is episodic.
    policy : int array (stages, S)
    epsilon : float
        Bound on max_s V*(s) - V^π(s), at the first stage if episodic; 0 if the policy is certified optimal,
        inf if nothing is.
    resolved : float
        How far it is. Theorems T and P: smallest Δ̂/w(y) over all actions that the policy does not play, (A) holds from
        1 on. Theorem R: Z(t). Theorem F does not say.
    gap : float
        Smallest estimated gap.
    criterion : str
        "A", "B" or "" (nothing certified, or the theorem has but one).
    threshold : float
        What `resolved` has to reach.
    propagation : Propagation, optional
        This and what follows shapes sampling and later tests; only Theorems T and P have it.
    metrics : array (m, stages, d, d)
        M of the ellipsoids in use.
    variances : array (stages, K)
        v̄.
    ranges : array (stages,)
        Λ̄.
    slopes, gaps : arrays (stages, S, A)
        w(y) and Δ̂; slopes are 0 where the action is the policy's, has the same features, or is not allowed.
    """

    theorem: str
    policy: IntArray
    epsilon: float
    resolved: float = 0.0
    gap: float = 0.0
    criterion: str = ""
    threshold: float = 1.0
    propagation: Propagation | None = None
    metrics: FloatArray = field(default_factory=lambda: np.empty(0))
    variances: FloatArray = field(default_factory=lambda: np.empty(0))
    ranges: FloatArray = field(default_factory=lambda: np.empty(0))
    slopes: FloatArray = field(default_factory=lambda: np.empty(0))
    gaps: FloatArray = field(default_factory=lambda: np.empty(0))

    def check(self, tally: Tally, asked: float) -> Check:
        """Return what a run says that has these samples and was asked for some ε."""
        rule = f"Theorem {self.theorem}" + (f" ({self.criterion})" if self.criterion else "")
        passed = self.epsilon <= asked
        numbers = (self.resolved, self.threshold, passed, self.epsilon, self.gap)
        return Check(tally.rounds, tally.samples, self.policy, *numbers, rule)


class Test(Protocol):
    """Everything that is fixed; it remains to look."""

    def look(self, fresh: Evidence) -> Verdict:
        """Certify what the samples since the past allow."""
        ...

    def proof(self, fresh: Evidence) -> Proof:
        """Return what proves the verdict on the same samples."""
        ...


class Rule(Protocol):
    """A theorem: its statement and proof stand in its file."""

    def fix(self, terms: Terms, past: Past, delta: float) -> Test | None:
        """Return the test that a past sets up; None where the theorem has nothing to say from it."""
        ...


@dataclass(frozen=True, eq=False)
class FixedTest:
    """What the tests of all theorems have.

    Attributes
    ----------
    problem : Problem
        In coordinates in which the features are well conditioned; they are recomputed to full precision.
    past : Past
    delta : float
    """

    problem: Problem
    past: Past
    delta: float

    def __post_init__(self) -> None:
        known = coordinates_of(self.problem)
        object.__setattr__(self, "problem", known.problem)
        if self.past.prior is not None:
            object.__setattr__(self, "past", replace(self.past, prior=self.past.prior.around(known.moved)))

    @property
    def coordinates(self) -> Coordinates:
        """Those of the problem, with what is known about their accuracy."""
        return coordinates_of(self.problem)

    @property
    def prior(self) -> Prior:
        """Γ and what belongs to it."""
        assert self.past.prior is not None
        return self.past.prior

    def named(self, letter: str) -> str:
        """Return the theorem's name for this kind of problem."""
        return letter if self.problem.horizon is None else f"{letter}-E"
