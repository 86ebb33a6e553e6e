"""The test of the features that a study makes beside its algorithm (`diagnostics.doubt`).

With each batch of the algorithm may go a round of the test: as many calls as the algorithm has made by then, until the
test is large enough for the claim that is asked; then the share of the calls that `Study` was told. Once the algorithm
has its certificate, rounds go on alone until the test is large enough: a claim for which the certificate needs next to
nothing is tested as hard as any other. Only what would take more than a million calls, and more than the certificate
itself took, is left at that; the result says what could still hide.

What a round fixes stands in the file before its samples, and is taken from there when the study is resumed. Its queries
have numbers, and so random streams, of their own: the algorithm's samples are the same with and without a test.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.diagnostics.doubt import LEVEL, Doubt, Round
from bestpolicy.estimation import least_squares
from bestpolicy.planning import optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Pulls, Tally
from bestpolicy.study.queries import FIRST_OF_TEST
from bestpolicy.verification.claim import MISFIT

if TYPE_CHECKING:
    from bestpolicy.study.settings import Settings

SHARE = 0.05  # of the algorithm's calls, once the test is large enough for the claim
MOST = 10**6  # calls of the test, unless the certificate takes more
_GROWTH = 0.25  # a round that adds less than this part to the calls so far waits
_FALLBACK = 0.01  # of the largest value: what to look for while nothing says how much would count


@dataclass(frozen=True)
class Linearity:
    """What a run says of the fit of its features.

    Attributes
    ----------
    calls : int
        Simulator calls of the test, which are part of `Result.samples`.
    pairs : int
        Held-out pairs (times steps if episodic) that were tested.
    level : float
        Probability, at most, with which features that fit are doubted. It is not part of δ.
    in_doubt : bool
        Whether the features do not fit.
    hidden : float
        A misfit of rewards and next values (in your units of reward) that would have been found at any of these pairs
        with probability .95; a smaller one may be there. inf if the test was too short to find anything.
    counts : float
        The misfit that could move the claim by the asked ε.
    complete : bool
        Whether the test was as large as the claim needs, or as large as it may be.
    where : str
        The pair with the most evidence, and by how much it misfits.
    """

    calls: int
    pairs: int
    level: float
    in_doubt: bool
    hidden: float
    counts: float
    complete: bool
    where: str

    @property
    def sentence(self) -> str:
        """What was tested and found, for people."""
        if self.in_doubt:
            return (
                f"{MISFIT}: at {self.where} what the other pairs predict (features that fit are doubted in "
                f"{100 * self.level:g} % of runs at most). Take finer features, or one-hot ones; or, if you know that "
                "the misfit does no harm, run without the test (linearity=0)."
            )
        return f"That the features fit was {self.words}."

    @property
    def words(self) -> str:
        """How far it was tested."""
        tested = f"tested with {self.calls:,} of the calls at {self.pairs} pairs"
        if self.hidden == inf:
            return f"{tested}, too few to find anything"
        enough = "" if self.hidden <= self.counts else f", and {self.counts:.2g} could move the claim by ε"
        return f"{tested}: a misfit below {self.hidden:.2g} there would not have been found{enough}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        plain = dict(vars(self)) | {"hidden": self.hidden if isfinite(self.hidden) else None}
        return plain | {"counts": self.counts if isfinite(self.counts) else None}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Linearity:
        """Read what `to_dict` wrote."""
        return cls(
            **known | {name: inf if known[name] is None else float(known[name]) for name in ("hidden", "counts")}
        )


@dataclass(frozen=True, eq=False)
class Trial:
    """A round, with which batch it goes, and the number of its first query."""

    batch: int
    first: int
    bets: Round

    def to_dict(self, held_out: dict[str, Any]) -> dict[str, Any]:
        """Return everything, for the study's file."""
        return {"batch": self.batch, "first": self.first, "bets": dict(vars(self.bets)), "pairs": held_out}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Trial:
        """Read what `to_dict` wrote."""
        return cls(int(known["batch"]), int(known["first"]), Round(**known["bets"]))


class LinearityTest:
    """The test of one study.

    Parameters
    ----------
    problem : Problem
    settings : Settings
    stored : list of dict
        The rounds that a study's file knows, which is resumed.
    """

    def __init__(self, problem: Problem, settings: Settings, stored: list[dict[str, Any]]) -> None:
        self._problem, self._epsilon = problem, settings.epsilon
        self.share = settings.linearity if isinstance(problem, Problem) else 0.0  # feature maps are tested by `run`
        self._gap = inf  # as estimated, for a claim with ε = 0
        self._stored = [Trial.from_dict(known) for known in stored]
        self.unsaved: list[dict[str, Any]] = []
        self.asked = FIRST_OF_TEST
        self._own_calls, self._expected = 0, 0.0
        self._current: Trial | None = None
        self._doubt: Doubt | None = Doubt.from_dict(problem, stored[0]["pairs"]) if stored else None
        self._begun, self._seed = bool(stored) or self.share == 0, settings.seed

    def _begin(self) -> Doubt | None:
        """Choose the pairs to test, when they are needed for the first time."""
        if not self._begun:
            self._begun, stream = True, np.random.SeedSequence(self._seed, spawn_key=(3,))
            with one_thread():
                self._doubt = Doubt.begin(self._problem, np.random.default_rng(stream))
        return self._doubt

    @property
    def in_doubt(self) -> bool:
        """Whether the features do not fit."""
        return self._doubt is not None and self._doubt.in_doubt

    @property
    def counts(self) -> float:
        """The misfit that could move the claim by the asked ε, or, of an optimal policy, by the gap."""
        moved = self._epsilon or (self._gap if isfinite(self._gap) else 0.0)
        limit = float(self._problem.value_limits[0])
        return moved / (2 * limit)

    @property
    def calls(self) -> int:
        """Calls that were made so far."""
        return 0 if self._doubt is None else self._doubt.calls

    @property
    def expected(self) -> float:
        """Calls that it should take in all, as far as is known."""
        return max(self.calls, min(self._expected, max(MOST, self._own_calls)))

    @property
    def complete(self) -> bool:
        """Whether the test is as large as it has to be, or may be."""
        doubt = self._begin()
        if doubt is None:
            return True
        return doubt.hidden <= self.counts or doubt.calls + doubt.smallest > max(MOST, self._own_calls)

    def ask(
        self, batch: int, calls: int, room: float, measured: Tally | None, gap: float, *, alone: bool
    ) -> Pulls | None:
        """Return what to simulate with a batch; None if nothing.

        Parameters
        ----------
        batch : int
            Its number.
        calls : int
            Calls of the algorithm, those of the batch included.
        room : float
            Calls that the budget leaves.
        measured : Tally, optional
            The algorithm's samples before the batch.
        gap : float
            As it estimates it.
        alone : bool
            Whether the algorithm is done.
        """
        self._gap, self._own_calls, doubt = gap, calls, self._begin()
        if doubt is None:
            return None
        known = self._with(batch)
        if known is None:
            bets = self._planned(calls, room, measured, alone)
            if bets is None:
                return None
            known = Trial(batch, self.asked, bets)
            self._stored.append(known)
            self.unsaved.append(known.to_dict(doubt.to_dict()))
        self._current, self.asked = known, known.first
        return doubt.pulls(known.bets)

    def number(self) -> int:
        """Return a number for a query of the round."""
        self.asked += 1
        return self.asked - 1

    def calls_with(self, batch: int) -> int:
        """Calls of the round that was planned with a batch, if there is one."""
        known = self._with(batch)
        return 0 if known is None or self._doubt is None else self._doubt.pulls(known.bets).total

    def _with(self, batch: int) -> Trial | None:
        return next((trial for trial in self._stored if trial.batch == batch), None)

    def _planned(self, calls: int, room: float, measured: Tally | None, alone: bool) -> Round | None:
        doubt = self._doubt
        assert doubt is not None
        first = doubt.rounds == 0
        largest = max(MOST, calls)
        usual = self.share * calls - doubt.calls
        most = min(largest - doubt.calls, room) if alone else min(max(usual, min(calls, largest) - doubt.calls), room)
        if first and not alone:
            most = min(room, doubt.smallest)
        least = doubt.smallest if first or alone else max(doubt.smallest, _GROWTH * doubt.calls)
        if most < least:
            return None
        with one_thread():
            values = next_values(self._problem, None if first else measured)
            sought = self.counts or _FALLBACK * float(self._problem.value_limits[0])
            if first:
                return doubt.plan(doubt.smallest, sought, values)
            needed = doubt.calls_to_find(sought, values) if self.counts else 0.0
            self._expected = doubt.calls + needed
            wanted = needed if alone else max(needed, usual)
            if wanted < least and not alone:
                return None
            wanted = min(wanted, doubt.calls)  # what is wrong by much is found long before all calls are made
            return doubt.plan(min(max(wanted, doubt.smallest), most), sought, values)

    def settle(self, tally: Tally) -> None:
        """Settle the round with its samples."""
        assert self._doubt is not None
        assert self._current is not None
        with one_thread():
            self._doubt.take(self._current.bets, tally)
        self._current = None

    def settle_again(self, batch: int, answers: deque[tuple[int, int, Tally]]) -> int:
        """Settle the round of a batch with its answers, the first ones of a file; return how many calls it had."""
        known = self._with(batch)
        if known is None or self._doubt is None:
            return 0
        wanted, told = self._doubt.pulls(known.bets), dict[int, Tally]()
        while sum(tally.samples for tally in told.values()) < wanted.total:
            query, _, tally = answers.popleft()
            told[query] = told[query] + tally if query in told else tally
            self.asked = max(self.asked, query + 1)
        whole = Tally.total([tally for _, tally in sorted(told.items())])
        if not wanted.answered_by(whole):
            raise ValueError("its answers are others than what was asked")
        self._current = known
        self.settle(whole)
        return whole.samples

    def summary(self, units: Units) -> Linearity | None:
        """What a result says of it; None if nothing is tested."""
        doubt = self._doubt
        if doubt is None:
            return None
        suspect, scale = doubt.suspect, units.reward_scale
        state, action = self._problem.pair(suspect.pair)
        names = units.names(self._problem)
        step = f" at step {suspect.stage}" if self._problem.horizon is not None else ""
        where = (
            f"(state {names.states[state]}, action {names.actions[action]}){step} reward plus next value is "
            f"{scale * suspect.misfit:.2g} off"
        )
        complete = doubt.in_doubt or self.complete
        hidden, counts = scale * doubt.hidden, scale * self.counts
        pairs = doubt.held_out.size if doubt.rounds > 1 else 0
        return Linearity(doubt.calls, pairs, LEVEL, doubt.in_doubt, hidden, counts, complete, where)


def next_values(problem: Problem, measured: Tally | None) -> FloatArray:
    """Estimate the optimal values at the next states of each stage, (stages, S); 0 without samples."""
    values = np.zeros((problem.stages + 1, problem.states))
    if measured is not None:
        model = least_squares(problem.matrix, measured, ridge=1 / problem.dimension)
        values[: problem.stages] = optimal_plan(problem, model.theta, model.mu).values
    following: FloatArray = values[:1] if problem.horizon is None else values[1:]
    return following
