"""When to start a lag, and which directions to tune it for.

A lag is a certificate that starts anew in the middle of a run, with a prior and a policy that the samples so far have
chosen (`bestpolicy.stopping.lag`). When to start one is a matter of efficiency alone: any stopping time is as valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.quantised import steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lag import Choice, Lag
from bestpolicy.stopping.tight import TightRule
from bestpolicy.stopping.verdict import Verdict

_CRITICAL = 300  # directions that a prior or a design is made for
_IN_SIGHT = 0.2  # share of what is asked from which on a lag pays
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
    worst = np.argsort(steady(-slopes / accuracies), kind="stable")[:_CRITICAL]
    found = []
    for stage in range(problem.stages):
        here = worst[rivals[worst, 0] == stage]
        state, action = rivals[here, 1], rivals[here, 2]
        vectors = problem.features[state, action] - verdict.propagation.played[stage, state]
        directions = verdict.propagation.directions(stage, vectors / accuracies[here, None])
        found.append(directions.reshape(len(here), -1))
    return np.concatenate(found)


class Lags:
    """The lagged certificates of a run: started when the main one is within reach of its end.

    Parameters
    ----------
    rule : TightRule
    epsilon, delta : float
        What is asked, and what all lags together may spend: 1/(j(j+1)) of it on the j-th.
    """

    def __init__(self, rule: TightRule, epsilon: float, delta: float) -> None:
        self.rule, self.epsilon, self.delta = rule, epsilon, delta
        self.started, self.active = 0, list[Lag]()

    def add(self, batch: Tally, weights: FloatArray | None = None) -> None:
        """Take in a batch."""
        if len(self.active) == 2 and self.active[1].evidence.tally.samples > self.active[1].started:
            self.active = self.active[1:]  # the newer one has seen half of all samples by now
        for lag in self.active:
            lag.add(batch, weights)

    def look(self) -> list[tuple[str, Verdict, dict[str, Any]]]:
        """Return the verdicts of the lags in use, with the names of their statements and proofs."""
        return [found for lag in self.active for found in lag.look()]

    def choose(self, evidence: Evidence, verdict: Verdict) -> Choice | None:
        """Say what a lag shall start with, if the end is in sight and the last one lies far enough back."""
        reached = reached_share(verdict, self.epsilon)
        samples = evidence.tally.samples
        stuck = verdict.propagation is not None and not len(verdict.metrics)  # Theorem T cannot speak at all
        recent = bool(self.active) and samples < _LAG_RATIO * self.active[-1].started
        if self.delta == 0 or recent or not verdict.slopes.any() or (reached < _IN_SIGHT and not stuck):
            return None
        number = self.started + 1
        growth = 0.5 / max(reached, 0.18) ** 2
        directions = critical_directions(self.rule.problem, verdict, self.epsilon)
        return Choice.of(self.rule, evidence, verdict, directions, growth, self._share(number), number)

    def start(self, pairs: IntArray, choice: Choice) -> None:
        """Start a lag."""
        self.started = choice.number
        self.active = [*self.active[-1:], Lag(self.rule, pairs, choice, self._share(choice.number))]

    def proof(self, number: int, theorem: str) -> dict[str, Any]:
        """Return what proves the statement of a lag in use."""
        return next(lag.proof(theorem) for lag in self.active if lag.number == number)

    def _share(self, number: int) -> float:
        return self.delta / (number * (number + 1))
