"""The one shape of stopping rules.

A certificate is a test that the past sets up: whatever a theorem needs fixed (a prior, a policy, a function) is fixed
by samples already seen, or beforehand where there are none, and it concludes from samples still to come. A `Rule` fixes
a `Test` from a `Past`; the test looks at the evidence since, as often as one likes, and says which ε it proves for
which policy, with a typed `Proof` for those who want to check it. Who spends which share of δ is decided in `lags`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.design import Design
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lemmas.ellipsoids import Prior
from bestpolicy.stopping.verdict import Verdict

_PRIOR_FIELDS = ("base", "capacity", "largest", "shares")


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
    """What is fixed before the samples that a test will see.

    Attributes
    ----------
    prior : Prior
    number : int
        Position among the pasts of a run: 0 is before the first sample.
    started : int
        Number of samples that fixed it.
    policy : int array (stages, S), optional
        The best one so far, for theorems about a fixed policy.
    values : array (1, S), optional
        Its values as estimated, for theorems about a fixed function.
    """

    prior: Prior
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
    theorem : {"R", "T", "P", "F", "no choice"}
    samples : Evidence or Tally, optional
        Weighted, or plain (Theorem R).
    transform : array (d, d), optional
        The coordinates of the test: φ times this.
    past : Past, optional
    value_span : float
    design : Design, optional
        That the run began with.
    """

    theorem: str
    samples: Evidence | Tally | None = None
    transform: FloatArray | None = None
    past: Past | None = None
    value_span: float = inf
    design: Design | None = field(default=None, repr=False)

    @property
    def tally(self) -> Tally | None:
        """The samples without weights."""
        return self.samples.tally if isinstance(self.samples, Evidence) else self.samples

    def with_design(self, design: Design) -> Proof:
        """Return the proof with the design of its run."""
        return replace(self, design=design)


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

    @property
    def theorem(self) -> str:
        """Its letter."""
        ...

    def fix(self, terms: Terms, past: Past, delta: float) -> Test | None:
        """Return the test that a past sets up; None where the theorem has nothing to say from it."""
        ...
