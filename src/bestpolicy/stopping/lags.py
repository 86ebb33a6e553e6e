"""Which tests run, and who spends which share of δ.

The first test is fixed before the first sample and sees all of them. Whenever the end is in sight, the samples so far
fix a new past (a *lag*, `past`) and with it one test of every rule in the table below; these see the samples since.
When to do so is a matter of efficiency alone: any stopping time is as valid, because each test spends a share of δ that
was fixed beforehand:

    test of all samples   (1 - lag_share)·δ          Theorem T
    tests of lag j        lag_share·δ/(j(j+1))       shared between the rules as the table says

These sum to at most δ. A test that is dropped stays spent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.quantised import steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.fixed import TheoremP
from bestpolicy.stopping.fresh import TheoremF
from bestpolicy.stopping.past import past_of
from bestpolicy.stopping.rule import Past, Proof, Rule, Terms, Test
from bestpolicy.stopping.tight import TheoremT
from bestpolicy.stopping.verdict import Verdict

FIRST: Rule = TheoremT()
RULES: tuple[tuple[Rule, float], ...] = ((TheoremT(), 0.55), (TheoremP(), 0.35), (TheoremF(), 0.1))

_CRITICAL = 300  # directions that a prior or a design is made for
_ENTRIES = 3_000_000  # of all of them together, which are fewer if each is as long as an episode of many steps
_IN_SIGHT = 0.2  # share of what is asked from which on a lag pays
_LEAST_REACHED = 0.18  # what is counted as reached at least, for the guess of how many samples are still to come
_LAG_RATIO = 4.0


def reached_share(verdict: Verdict, epsilon: float) -> float:
    """How far a verdict is on its way to the asked ε; the samples still needed go roughly with its inverse square."""
    return max(verdict.resolved, epsilon / verdict.epsilon if verdict.epsilon > 0 else 1.0)


def critical_directions(problem: Problem, verdict: Verdict, epsilon: float) -> FloatArray:
    """The directions y(s, a) that are hardest to resolve, over the accuracy they need, (J, stages·d).

    With ε > 0 a gap need not be told from 0 but from about (1-γ)ε (ε/H if episodic).
    """
    assert verdict.propagation is not None
    allowance = epsilon / problem.value_limits[0]
    rivals = np.argwhere(verdict.slopes > 0)
    slopes, gaps = (array[tuple(rivals.T)] for array in (verdict.slopes, verdict.gaps))
    # Gaps far below their widths are not known; half a width is what they may well be.
    accuracies = np.maximum(gaps, 0.5 * slopes) + allowance
    worst = np.argsort(steady(-slopes / accuracies), kind="stable")
    worst = worst[: max(1, min(_CRITICAL, _ENTRIES // (problem.stages * problem.dimension)))]
    worst = worst[np.argsort(rivals[worst, 0], kind="stable")]
    stage, state, action = rivals[worst].T
    vectors = problem.features[state, action] - verdict.propagation.played[stage, state]
    directions = verdict.propagation.directions(stage, vectors / accuracies[worst, None])
    return directions.reshape(len(worst), problem.stages * problem.dimension)


class Running:
    """The tests of one past, and the samples that they have seen.

    Parameters
    ----------
    past : Past
    tests : list of Test
    evidence : Evidence
        None yet.
    """

    def __init__(self, past: Past, tests: list[Test], evidence: Evidence) -> None:
        self.past, self.tests, self.evidence = past, tests, evidence

    def add(self, batch: Tally, weights: FloatArray | None = None) -> None:
        """Take in samples that were drawn since the past."""
        self.evidence = self.evidence.add(batch, weights)

    def look(self) -> list[Found]:
        """Return the verdicts of all tests, with their proofs."""
        return [Found(test.look(self.evidence), test.proof(self.evidence)) for test in self.tests]


@dataclass(frozen=True, eq=False)
class Found:
    """A verdict with what proves it."""

    verdict: Verdict
    proof: Proof


class Schedule:
    """The tests of a run.

    Parameters
    ----------
    terms : Terms
    pairs : int array (K,)
        The only pairs that will ever be sampled.
    first : Past
        What is fixed before the first sample.
    delta, lag_share : float
        What all tests together may spend, and the share of it for lags.
    """

    def __init__(self, terms: Terms, pairs: IntArray, first: Past, delta: float, lag_share: float) -> None:
        self.terms, self._pairs, self._delta = terms, pairs, delta * lag_share
        test = FIRST.fix(terms, first, delta * (1 - lag_share))
        assert test is not None
        self.main = Running(first, [test], Evidence.empty(terms.problem, pairs))
        self.lags = list[Running]()
        self._started = 0

    def add(self, batch: Tally, weights: FloatArray | None = None) -> None:
        """Take in a batch."""
        if len(self.lags) == 2 and self.lags[1].evidence.tally.samples > self.lags[1].past.started:
            self.lags = self.lags[1:]  # the newer one has seen half of all samples by now
        for running in (self.main, *self.lags):
            running.add(batch, weights)

    def look(self) -> list[Found]:
        """Return all verdicts, that on all samples first."""
        return [found for running in (self.main, *self.lags) for found in running.look()]

    def choose(self, verdict: Verdict) -> Past | None:
        """Say what new tests shall start from, if the end is in sight and the last ones lie far enough back."""
        evidence, problem = self.main.evidence, self.terms.problem
        reached = reached_share(verdict, self.terms.epsilon)
        samples = evidence.tally.samples
        stuck = verdict.propagation is not None and not len(verdict.metrics)  # Theorem T cannot speak at all
        recent = bool(self.lags) and samples < _LAG_RATIO * self.lags[-1].past.started
        if self._delta == 0 or recent or not verdict.slopes.any() or (reached < _IN_SIGHT and not stuck):
            return None
        number = self._started + 1
        growth = 0.5 / max(reached, _LEAST_REACHED) ** 2
        directions = critical_directions(problem, verdict, self.terms.epsilon)
        return past_of(problem, evidence, verdict, directions, growth, self._share(number), number)

    def start(self, past: Past) -> None:
        """Start the tests of a lag."""
        self._started = past.number
        fixed = [rule.fix(self.terms, past, self._share(past.number) * part) for rule, part in RULES]
        tests = [test for test in fixed if test is not None]
        self.lags = [*self.lags[-1:], Running(past, tests, Evidence.empty(self.terms.problem, self._pairs))]

    def proof(self, number: int, theorem: str) -> Proof:
        """Return what proves the latest statement of a theorem about the samples since a past."""
        running = next(one for one in (self.main, *self.lags) if one.past.number == number)
        proofs = (test.proof(running.evidence) for test in running.tests)
        return next(proof for proof in proofs if proof.theorem == theorem)

    def _share(self, number: int) -> float:
        return self._delta / (number * (number + 1))
