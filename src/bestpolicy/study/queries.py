"""What a study asks: a batch at a time, within the budget, cut into queries that may be answered in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Drawn, Draws, Episodes, Pulls, Tally, Wanted

FIRST_OF_TEST = 2**48  # index of the first query that tests the features: the algorithm's have numbers below


@dataclass(frozen=True)
class Query:
    """Pairs to simulate, or episodes.

    Attributes
    ----------
    index : int
        Position of the query in the study, among those of the algorithm or those that test the features.
    wanted : Pulls or Episodes
        How often to simulate which pairs, per stage; or how many episodes of which policy.
    seed : int
        The study's seed.
    attempt : int
        Grows when the rest of a query is asked again after a partial answer.
    """

    index: int
    wanted: Wanted
    seed: int
    attempt: int = 0

    @property
    def pulls(self) -> Pulls:
        """How often to simulate which pairs, if that is what it asks for."""
        if not isinstance(self.wanted, Pulls):
            raise InvalidInput(
                "this query asks for episodes, not for pulls of pairs: answer it with model.rollout(query.wanted, "
                "query.rng())."
            )
        return self.wanted

    @property
    def tests(self) -> bool:
        """Whether it is one that tests the features."""
        return self.index >= FIRST_OF_TEST

    @property
    def name(self) -> str:
        """What to call it."""
        number = self.index - FIRST_OF_TEST * self.tests
        return f"query {number}" + " of the test of the features" * self.tests

    def rng(self) -> np.random.Generator:
        """Return the random stream that belongs to this query."""
        key = (1, self.index, self.attempt)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


class Batch:
    """The queries of one request of an algorithm, and their answers.

    Parameters
    ----------
    queries : iterable of Query

    Attributes
    ----------
    waiting : dict of int to Query
        Those that await an answer, by index.
    """

    def __init__(self, queries: Iterable[Query] = ()) -> None:
        self.waiting = {query.index: query for query in queries}
        self._answers: dict[int, Tally] = {}

    @property
    def begun(self) -> bool:
        """Whether there is an answer, if only in part."""
        return bool(self._answers)

    @property
    def missing(self) -> int:
        """Simulator calls whose answers are awaited."""
        return sum(query.wanted.total for query in self.waiting.values())

    def accept(self, query: Query, tally: Tally, rest: Wanted | None) -> bool:
        """Take an answer and what it leaves open; return whether nothing is awaited any longer."""
        self.add(query.index, tally)
        if rest is not None and rest.total:
            self.waiting[query.index] = replace(query, wanted=rest, attempt=query.attempt + 1)
            return False
        del self.waiting[query.index]
        return not self.waiting

    def add(self, index: int, tally: Tally) -> None:
        """Take an answer to a query, or another part of it."""
        known = self._answers.get(index)
        self._answers[index] = tally if known is None else known + tally

    def total(self, *, of_test: bool = False) -> Tally | None:
        """Sum of all answers to the algorithm, or to the test, in the order of the queries: the same bits each time."""
        answers = [answer for index, answer in sorted(self._answers.items()) if (index >= FIRST_OF_TEST) == of_test]
        return type(answers[0]).total(answers) if answers else None


def check_tally(problem: Problem, tally: Any, wanted: Wanted) -> None:
    """Refuse what cannot be an answer; a tally has checked its own sums."""
    if isinstance(wanted, Draws):
        if not isinstance(tally, Drawn):
            raise InvalidInput(f"an answer must be what was Drawn (see Drawn.of). Got {type(tally).__name__} instead.")
        wanted.check(problem, tally)  # type: ignore[arg-type]
        return
    if not isinstance(tally, Tally):
        raise InvalidInput(f"an answer must be a Tally (see Tally.from_samples). Got {type(tally).__name__} instead.")
    shape = (problem.stages, len(tally.pairs), problem.states)
    if tally.shape != shape:
        raise InvalidInput(
            f"the tally must have shape (stages, pairs, states) = {shape}. Got {tally.shape} instead; "
            "does it belong to another problem?"
        )
    allowed = problem.mask.ravel()
    if len(tally.pairs) and not (tally.pairs[-1] < len(allowed) and allowed[tally.pairs].all()):
        raise InvalidInput("the tally has a pair that the problem does not have or does not allow.")
    if isinstance(wanted, Episodes):
        wanted.check(problem, tally)
