"""What the loop and an algorithm say to each other, and what many algorithms begin with."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, ClassVar, Protocol

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.design import Design, g_optimal_design
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally, Wanted
from bestpolicy.stopping import Check

MAX_ROUNDS = 10**16  # counts stay exact in float64, and no simulator will ever get there
MAX_CALLS = 2**62  # of all steps of an episode together, which are counted in 64 bits


@dataclass(frozen=True, eq=False)
class Request:
    """What an algorithm wants next, and what it has concluded so far.

    Attributes
    ----------
    wanted : Pulls or Episodes
        Pairs to simulate, or episodes of a policy.
    check : Check, optional
        Its latest look at the data.
    decided : dict
        What else it has fixed before this is simulated, and must not work out again when the run is resumed:
        arrays, numbers and texts, nested as need be. The file of the study keeps it.
    """

    wanted: Wanted
    check: Check | None = None
    decided: dict[str, Any] = field(default_factory=dict)

    @property
    def pulls(self) -> Pulls:
        """The pairs to simulate, where it is pairs."""
        assert isinstance(self.wanted, Pulls)
        return self.wanted


@dataclass(frozen=True, eq=False)
class Remembered:
    """A request of a run that is resumed: the look before it, if there was one, and what was decided then."""

    check: Check | None
    decided: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Task:
    """What an algorithm is given to run.

    Attributes
    ----------
    problem : Problem
    epsilon, delta : float
        What to certify, in the problem's units of reward.
    rng : Generator
        The only randomness that the algorithm may use.
    own_data : Tally, optional
        Samples from elsewhere.
    start : array (S,), optional
        The claim is about this distribution over states; about every state by default.
    reward_scale : float
        The user's unit of reward in the problem's, for parameters that users give in their own.
    share, offset : float
        If the share is positive, ε is to be at most this share of the largest |V* + offset| (of the start's, if the
        claim is about one), which the run has to find out; `epsilon` is the most that this can be. Algorithms that
        cannot do it are not asked (`takes_share`).
    memory : iterator of Remembered
        The requests of a run that is resumed, the first one first; nothing in a new run.
    """

    problem: Problem
    epsilon: float
    delta: float
    rng: np.random.Generator
    own_data: Tally | None = None
    reward_scale: float = 1.0
    memory: Iterator[Remembered] = field(default_factory=lambda: iter(()))
    start: FloatArray | None = None
    share: float = 0.0
    offset: float = 0.0

    def recall(self) -> Remembered | None:
        """Return what was decided before the next request; None where the run has not yet been.

        An algorithm that recalls is resumed without looking at the data again. One that does not is replayed.
        """
        return next(self.memory, None)


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
    sampling : {"pairs", "episodes", "one trajectory"}
        What it asks a simulator for. Those that follow trajectories claim something of the start only (`Task.start`).
    """

    setting: str
    features: str
    assumption: str
    guarantee: str
    complexity: str
    constants: str
    reference: str
    writes_certificates: bool = False
    sampling: str = "pairs"


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

    def run(self, task: Task) -> Run:
        """Yield requests, receive their tallies, return the last check."""
        ...


def begin_with_design(task: Task, tolerance: float) -> tuple[Design, dict[str, Any]]:
    """Return a G-optimal design, and what to decide with the first request; a run that is resumed keeps its own."""
    past = task.recall()
    if past is not None and "design" in past.decided:
        design = Design(**past.decided["design"])
    else:
        design = g_optimal_design(task.problem.pair_features, tolerance=tolerance)
    return design, {"design": vars(design)}


def check_times(first: float, ratio: float, calls: int = 1) -> Iterator[int]:
    """Rounds of so many calls after which to look at the data: geometric, every one if the ratio is 1.

    The rules hold at all times together, so looking on a sparse grid keeps their guarantee.
    """
    most = min(MAX_ROUNDS, MAX_CALLS // calls)
    rounds = max(1, min(ceil(min(first, most)), most))
    while rounds < most:
        yield rounds
        rounds = max(rounds + 1, ceil(rounds * ratio))
    yield most
