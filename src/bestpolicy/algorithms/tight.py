"""tight: sample a G-optimal design, certify by Theorem T (T-E if episodic) at any time.

    compute ω* = argmin_ω max_{s,a} ‖φ(s,a)‖²_{Λ(ω)⁻¹}
    repeat
        sample pairs in the proportions of ω*
        look: which ε is certified for the optimal policy of the estimated model?
    until the certified ε is at most the asked one
    return that policy with its ε

The certificate holds at all times together, so a run may be stopped at any moment and still has the best (policy, ε) that any
of its checks has certified. With ε = 0 the run goes on until the policy is certified optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.protocol import Request, Run
from bestpolicy.algorithms.sampling import check_times
from bestpolicy.design import Design, g_optimal_design, rounded_counts, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls
from bestpolicy.problem import Problem, frozen
from bestpolicy.stopping import Check
from bestpolicy.stopping.ellipsoids import make_prior
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.tight import Split, TightRule, Verdict


@dataclass(frozen=True)
class Tight:
    """Theorem T on a G-optimal design, for discounted and episodic problems.

    Attributes
    ----------
    design_tolerance : float
        The worst leverage of the design is at most (1 + tolerance)·d.
    check_ratio : float
        Look at the data each time the number of rounds has grown by this factor.
    value_span : float
        A bound on span(V*) = max V* - min V* that the user vouches for: the guarantee then relies on it.
    """

    name: ClassVar[str] = "tight"
    anytime: ClassVar[bool] = True

    design_tolerance: float = 1e-3
    check_ratio: float = 1.1
    value_span: float = inf

    def __post_init__(self) -> None:
        if not self.check_ratio > 1:
            raise InvalidInput(f"check_ratio must be larger than 1. Got {self.check_ratio} instead.")
        if not self.value_span >= 0:
            raise InvalidInput(f"value_span must not be negative. Got {self.value_span} instead.")

    def unsuitable(self, problem: Problem) -> str:
        """Runs on every problem."""
        return ""

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone: the cost depends on how errors cancel along trajectories."""
        return float("nan")

    def run(self, problem: Problem, epsilon: float, delta: float, rng: np.random.Generator) -> Run:
        """Sample the design until the asked ε is certified."""
        design = g_optimal_design(problem.pair_features, tolerance=self.design_tolerance)
        whitened = problem.with_features(frozen(whiten(problem.pair_features, design).features(problem.features)))
        rule = tight_rule(whitened, design, epsilon, delta, self.value_span)

        evidence = Evidence.empty(problem, problem.pairs[design.indices])
        report = Report(epsilon)
        for rounds in check_times(4 * max(problem.dimension, len(design.indices)), self.check_ratio):
            wanted = rounded_counts(design.weights, rounds)
            missing = Pulls(evidence.tally.pairs, np.maximum(wanted - evidence.tally.pulls, 0))
            evidence = evidence.add((yield Request(missing, report.check)))
            if report.add(evidence, rule.look(evidence)).passed:
                break
        assert report.check is not None
        return report.check


def tight_rule(
    whitened: Problem, design: Design, epsilon: float, delta: float, value_span: float = inf,
    least_weight: float = 1.0,
) -> TightRule:
    """Return the rule with everything that has to be fixed before sampling.

    Parameters
    ----------
    whitened : Problem
    design : Design
        Its pairs are the only ones that will ever be sampled.
    epsilon, delta, value_span : float
    least_weight : float
        Smallest weight that a sample will ever get.
    """
    sampled = whitened.pair_features[design.indices]
    information = (sampled.T * design.weights) @ sampled
    prior = make_prior(
        np.broadcast_to(information, (whitened.stages, *information.shape)),
        sampled,
        first_rounds=10.0 * whitened.dimension,
        least_variance=0.01,
        delta=delta,
        least_weight=least_weight,
    )
    # The event that bounds ‖p̂ - p‖₁ only serves positive ε, and a certified optimum needs none of it.
    split = Split() if epsilon > 0 else Split(0.1, 0.75, 0.15, 0.0)
    return TightRule(whitened, prior, delta, split, value_span)


class Report:
    """The best (policy, ε) certified so far, as a `Check`.

    Parameters
    ----------
    epsilon : float
        What is asked.
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.check: Check | None = None

    def add(self, evidence: Evidence, verdict: Verdict, rule: str | None = None) -> Check:
        """Take a verdict into account; return the check to report.

        The statistic is how far what was asked has been reached, against a threshold of 1: the larger of (asked ε)/(certified ε) and
        the least resolved gap in units of its width.
        """
        before = self.check
        name = rule or _statement(evidence.tally.pulls.shape[0] > 1, verdict)
        policy, certified = verdict.policy, verdict.epsilon
        if before is not None and before.epsilon < certified:
            # Both statements hold on the same event: the better one is kept.
            policy, certified, name = before.policy, before.epsilon, before.rule
        passed = certified <= self.epsilon
        reached = self.epsilon / certified if certified > 0 else 1.0
        self.check = Check(
            rounds=evidence.tally.rounds,
            samples=evidence.tally.samples,
            policy=policy,
            statistic=max(1.0, reached) if passed else min(1.0, max(verdict.resolved, reached)),
            threshold=1.0,
            passed=passed,
            epsilon=certified,
            gap=verdict.gap,
            rule=name,
        )
        return self.check


def _statement(episodic: bool, verdict: Verdict) -> str:
    theorem = "Theorem T-E" if episodic else "Theorem T"
    return f"{theorem} ({verdict.criterion})" if verdict.criterion else theorem


