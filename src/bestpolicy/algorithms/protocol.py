"""What the loop and an algorithm say to each other."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class Request:
    """What an algorithm wants next, and what it has concluded so far."""

    pulls: Pulls
    check: Check | None = None


Run = Generator[Request, Tally, Check]


@dataclass(frozen=True)
class About:
    """What there is to know of an algorithm before choosing it, in a few words each.

    Attributes
    ----------
    setting : {"discounted", "episodic", "discounted or episodic"}
    features : {"linear", "tabular"}
        Whether it uses the features, or treats every (state, action) pair by itself.
    assumption : str
        What the problem must satisfy beyond being a linear MDP; empty if nothing.
    guarantee : str
        What it promises of the policy, with probability 1 - δ; "none" if nothing: its runs are never certified.
    complexity : str
        Order of its number of samples.
    constants : str
        Begins with "exact" (the reference's own), "reconstructed" (rebuilt by us where the reference hides them) or
        "own proof".
    reference : str
        Who proposed it.
    writes_certificates : bool
        Whether its checks carry what a certificate needs (`Check.proof`).
    """

    setting: str
    features: str
    assumption: str
    guarantee: str
    complexity: str
    constants: str
    reference: str
    writes_certificates: bool = False


class Algorithm(Protocol):
    """What the loop needs of an algorithm.

    Attributes
    ----------
    name : str
    about : About
    anytime : bool
        Whether a check is meaningful after any number of samples. If so, the last batch before the end of a
        budget is cut to fit; if not, a batch that does not fit is not begun.
    takes_own_data : bool
        Whether its rule may use samples from elsewhere, of pairs that were chosen without regard to outcomes.
    """

    name: ClassVar[str]
    about: ClassVar[About]
    anytime: ClassVar[bool]
    takes_own_data: ClassVar[bool]

    def unsuitable(self, problem: Problem) -> str:
        """Say why the algorithm cannot run on the problem; empty if it can."""
        ...

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Simulator calls to expect if the gap is as given (nan if nothing can be said)."""
        ...

    def run(
        self,
        problem: Problem,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
        own_data: Tally | None = None,
    ) -> Run:
        """Yield requests, receive their tallies, return the last check."""
        ...
