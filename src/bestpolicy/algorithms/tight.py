"""tight: sample a G-optimal design, certify by Theorem T (T-E if episodic) at any time.

    compute ω* = argmin_ω max_{s,a} ‖φ(s,a)‖²_{Λ(ω)⁻¹}
    repeat
        sample pairs in the proportions of ω*
        look: which ε is certified for the optimal policy of the estimated model?
    until the certified ε is at most the asked one
    return that policy with its ε

The certificate holds at all times together, so a run may be stopped at any moment and still has the best
(policy, ε) that any of its checks has certified. With ε = 0 the run goes on until the policy is certified
optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np

from bestpolicy.algorithms.protocol import About, Request, Run
from bestpolicy.algorithms.sampling import check_times
from bestpolicy.design import Design, g_optimal_design, rounded_counts, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem, frozen
from bestpolicy.stopping import Check
from bestpolicy.stopping.ellipsoids import make_prior
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lag import Lag
from bestpolicy.stopping.tight import TightRule
from bestpolicy.stopping.verdict import Split, Verdict

_CRITICAL = 300  # directions that a prior or a design is made for
_IN_SIGHT = 0.2  # share of what is asked from which on a lag pays
_LAG_RATIO = 4.0


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
    about: ClassVar[About] = About(
        setting="discounted or episodic",
        features="linear",
        assumption="",
        guarantee="an ε for the policy at every check, and within the asked ε of optimal in every state at the end",
        complexity="max over (s,a) of ‖y(s,a)‖² (d + log 1/δ) / (Δ(s,a) + (1-γ)ε)², y the direction that decides it",
        constants="own proof",
        reference="bestpolicy, Theorem T (docs/explanation/tight.md)",
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False  # its set of pairs and its prior are fixed before any sample

    design_tolerance: float = 1e-3
    check_ratio: float = 1.1
    value_span: float = inf
    lag_share: float = 0.35

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

    def run(
        self,
        problem: Problem,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
        own_data: Tally | None = None,
    ) -> Run:
        """Sample the design until the asked ε is certified."""
        design = g_optimal_design(problem.pair_features, tolerance=self.design_tolerance)
        whitened = whitened_problem(problem, design)
        rule = tight_rule(
            whitened, design.indices, design.weights, epsilon, delta * (1 - self.lag_share), self.value_span
        )

        evidence = Evidence.empty(problem, problem.pairs[design.indices])
        report, lags = Report(epsilon), Lags(rule, epsilon, delta * self.lag_share)
        for rounds in check_times(4 * max(problem.dimension, len(design.indices)), self.check_ratio):
            wanted = rounded_counts(design.weights, rounds)
            missing = Pulls(evidence.tally.pairs, np.maximum(wanted - evidence.tally.pulls, 0))
            batch = yield Request(missing, report.check)
            evidence = evidence.add(batch)
            verdict = rule.look(evidence)
            if report.add(evidence, verdict, rule.proof(evidence), *lags.look(batch)).passed:
                break
            lags.maybe_start(evidence, verdict)
        assert report.check is not None
        return report.check


def whitened_problem(problem: Problem, design: Design) -> Problem:
    """Return the problem in the coordinates of the design, with equal features equal to the last bit.

    Copies of an action are told by equality; rounding in the change of coordinates must not part them.
    """
    rows, position = np.unique(problem.features.reshape(-1, problem.dimension), axis=0, return_inverse=True)
    whitened = whiten(problem.pair_features, design).features(rows)
    return problem.with_features(frozen(whitened[position.ravel()].reshape(problem.features.shape)))


def tight_rule(
    whitened: Problem, candidates: IntArray, shares: FloatArray, epsilon: float, delta: float, value_span: float = inf
) -> TightRule:
    """Return the rule with everything that has to be fixed before sampling.

    Parameters
    ----------
    whitened : Problem
    candidates : int array (K,)
        Positions in ``problem.pairs`` of the only pairs that will ever be sampled.
    shares : array (K,)
        The G-optimal design on them.
    epsilon, delta, value_span : float
    """
    sampled = whitened.pair_features[candidates]
    information = (sampled.T * shares) @ sampled
    prior = make_prior(
        np.broadcast_to(information, (whitened.stages, *information.shape)),
        sampled,
        first_rounds=10.0 * whitened.dimension,
        least_variance=0.01,
        delta=delta,
    )
    # The event that bounds ‖p̂ - p‖₁ only serves positive ε, and a certified optimum needs none of it.
    split = Split() if epsilon > 0 else Split(0.1, 0.75, 0.15, 0.0)
    return TightRule(whitened, prior, delta, split, value_span)


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
    worst = np.argsort(-slopes / accuracies)[:_CRITICAL]
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

    def look(self, batch: Tally, weights: FloatArray | None = None) -> list[tuple[str, Verdict, dict[str, Any]]]:
        """Take in a batch; return the verdicts of the lags in use, with the names of their statements and proofs."""
        found: list[tuple[str, Verdict, dict[str, Any]]] = []
        if len(self.active) == 2 and self.active[1].evidence.tally.samples > self.active[1].started:
            self.active = self.active[1:]  # the newer one has seen half of all samples by now
        for lag in self.active:
            lag.add(batch, weights)
            found += lag.look()
        return found

    def maybe_start(self, evidence: Evidence, verdict: Verdict) -> None:
        """Start a lag if the end is in sight and the last one lies far enough back."""
        reached = reached_share(verdict, self.epsilon)
        samples = evidence.tally.samples
        stuck = verdict.propagation is not None and not len(verdict.metrics)  # Theorem T cannot speak at all
        recent = bool(self.active) and samples < _LAG_RATIO * self.active[-1].started
        if recent or not verdict.slopes.any() or (reached < _IN_SIGHT and not stuck):
            return
        self.started += 1
        growth = 0.5 / max(reached, 0.18) ** 2
        directions = critical_directions(self.rule.problem, verdict, self.epsilon)
        share = self.delta / (self.started * (self.started + 1))
        lag = Lag(self.rule, evidence, verdict, directions, growth, share, self.started)
        self.active = [*self.active[-1:], lag]


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

    def add(
        self,
        evidence: Evidence,
        verdict: Verdict,
        own_proof: dict[str, Any],
        *others: tuple[str, Verdict, dict[str, Any]],
    ) -> Check:
        """Take verdicts into account, the main rule's with its proof first; return the check to report.

        The statistic is how far what was asked has been reached, against a threshold of 1: the larger of
        (asked ε)/(certified ε) and the least resolved gap in units of its width.
        """
        suffix = "-E" if evidence.tally.pulls.shape[0] > 1 else ""
        before = self.check
        policy, certified, name, proof = verdict.policy, inf, "Theorem T" + suffix, None
        if before is not None and before.epsilon < inf:
            policy, certified, name, proof = before.policy, before.epsilon, before.rule, before.proof
        # All statements hold on the same event, at all times: the best one is kept.
        for theorem, found, its_proof in (("Theorem T", verdict, own_proof), *others):
            if found.epsilon < certified:
                policy, certified, proof = found.policy, found.epsilon, its_proof
                name = theorem + suffix + (f" ({found.criterion})" if found.criterion else "")
        passed = certified <= self.epsilon
        reached = self.epsilon / certified if certified > 0 else 1.0
        self.check = Check(
            rounds=evidence.tally.rounds,
            samples=evidence.tally.samples,
            policy=policy,
            statistic=max(1.0, reached)
            if passed
            else min(1.0, max(reached, *(found.resolved for found in (verdict, *(v for _, v, _ in others))))),
            threshold=1.0,
            passed=passed,
            epsilon=certified,
            gap=verdict.gap,
            rule=name,
            proof=proof,
        )
        return self.check
