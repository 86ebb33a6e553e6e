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

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, frozen
from bestpolicy._numerics.inputs import as_float, number
from bestpolicy.algorithms.lags import Lags
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.algorithms.sampling import AllocationSampling, begin_with_design, check_times
from bestpolicy.design import Design, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.ellipsoids import make_prior
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lag import Choice
from bestpolicy.stopping.tight import TightRule
from bestpolicy.stopping.verdict import Split, Verdict


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
        A bound on span(V*) = max V* - min V* that the user vouches for, in the user's units of reward: the guarantee
        then relies on it.
    lag_share : float
        Share of δ for certificates that start anew in the middle of the run, tuned by the samples so far.
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
        writes_certificates=True,
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = True

    design_tolerance: float = 1e-3
    check_ratio: float = 1.1
    value_span: float = inf
    lag_share: float = 0.35

    def __post_init__(self) -> None:
        number("design_tolerance", self.design_tolerance, above=0)
        number("check_ratio", self.check_ratio, above=1)
        number("lag_share", self.lag_share, below=1)
        if not as_float(self.value_span) >= 0:
            raise InvalidInput(f"value_span must not be negative. Got {self.value_span!r} instead.")

    def unsuitable(self, problem: Problem) -> str:
        """Runs on every problem."""
        return ""

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone: the cost depends on how errors cancel along trajectories."""
        return float("nan")

    def run(self, task: Task) -> Run:
        """Sample until the asked ε is certified; samples from elsewhere are pooled with ours, but for the lags."""
        problem, epsilon = task.problem, task.epsilon
        design, decided = begin_with_design(task, self.design_tolerance)
        whitened = whitened_problem(problem, design)
        candidates, shares = self.candidates(problem, design, task.own_data)
        span = self.value_span / task.reward_scale
        rule = tight_rule(whitened, candidates, shares, epsilon, task.delta * (1 - self.lag_share), span)

        evidence = Evidence.empty(problem, problem.pairs[candidates])
        if task.own_data is not None:
            evidence = evidence.add(task.own_data)
        had = evidence.tally.samples
        sampling = AllocationSampling.of(shares, problem.stages)
        lags = Lags(rule, epsilon, task.delta * self.lag_share)
        report = Report(epsilon, rule, lags, design)
        first = 4 * problem.stages * max(problem.dimension, len(design.indices))
        for samples in check_times(first, self.check_ratio):
            batch = yield Request(sampling.until(had + samples, evidence.tally), report.check, decided)
            evidence = evidence.add(batch, sampling.weights)
            lags.add(batch, sampling.weights)
            past = task.recall()
            if past is not None and past.check is not None:
                decided = past.decided
                report.recall(past.check, evidence)
            else:
                verdict = rule.look(evidence)
                report.add(evidence, verdict)
                if not report.passed:
                    decided = self.decide(lags, sampling, whitened, evidence, verdict, epsilon)
            if report.passed:
                break
            if "lag" in decided:
                lags.start(evidence.tally.pairs, Choice.from_dict(decided["lag"]))
            if "sampling" in decided:
                sampling = sampling.redirected(**decided["sampling"])
        assert report.check is not None
        return report.check

    def decide(
        self,
        lags: Lags,
        sampling: AllocationSampling,
        whitened: Problem,
        evidence: Evidence,
        verdict: Verdict,
        epsilon: float,
    ) -> dict[str, Any]:
        """Fix what the samples to come are for: a lag that starts with them, where they are drawn."""
        decided: dict[str, Any] = {}
        choice = lags.choose(evidence, verdict)
        if choice is not None:
            decided["lag"] = choice.to_dict()
        steered = self.steer(sampling, whitened, evidence, verdict, epsilon)
        if steered is not sampling:
            decided["sampling"] = steered.direction
        return decided

    def candidates(self, problem: Problem, design: Design, own_data: Tally | None) -> tuple[IntArray, FloatArray]:
        """Pairs that may be sampled (positions in ``problem.pairs``), and the design's shares on them.

        They have to be fixed before any sample; whoever brings samples chose their pairs without regard to outcomes.
        """
        shares = np.zeros(len(problem.pairs))
        shares[design.indices] = design.weights
        known = design.indices
        if own_data is not None:
            known = np.union1d(known, np.searchsorted(problem.pairs, own_data.pairs))
        return known, shares[known]

    def steer(
        self, sampling: AllocationSampling, whitened: Problem, evidence: Evidence, verdict: Verdict, epsilon: float
    ) -> AllocationSampling:
        """Return how to go on sampling: as before."""
        return sampling


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


class Report:
    """The best (policy, ε) certified so far, as a `Check`.

    Parameters
    ----------
    epsilon : float
        What is asked.
    rule : TightRule
        For all samples.
    lags : Lags
    design : Design
    """

    def __init__(self, epsilon: float, rule: TightRule, lags: Lags, design: Design) -> None:
        self.epsilon, self.rule, self.lags, self.design = epsilon, rule, lags, design
        self.check: Check | None = None

    @property
    def passed(self) -> bool:
        """Whether what was asked is certified."""
        return self.check is not None and self.check.passed

    def recall(self, check: Check, evidence: Evidence) -> None:
        """Take a check of a run that is resumed, with the proof that belongs to it."""
        proof = None if self.check is None else self.check.proof
        if check.epsilon < (inf if self.check is None else self.check.epsilon):
            theorem = check.rule.partition(" (")[0].removesuffix("-E")
            proof = self.lags.proof(check.lag, theorem) if check.lag else self.rule.proof(evidence)
            proof |= {"design": self.design}
        self.check = replace(check, proof=proof)

    def add(self, evidence: Evidence, verdict: Verdict) -> None:
        """Take the verdict on all samples into account, and those of the lags.

        The statistic is how far what was asked has been reached, against a threshold of 1: the larger of
        (asked ε)/(certified ε) and the least resolved gap in units of its width.
        """
        suffix = "-E" if evidence.tally.pulls.shape[0] > 1 else ""
        before = self.check
        others = self.lags.look()
        policy, certified, name, lag, proof = verdict.policy, inf, "Theorem T" + suffix, 0, None
        if before is not None and before.epsilon < inf:
            policy, certified, name, lag, proof = (
                before.policy,
                before.epsilon,
                before.rule,
                before.lag,
                before.proof,
            )
        # All statements hold on the same event, at all times: the best one is kept.
        for theorem, found, its_proof in (("Theorem T", verdict, self.rule.proof(evidence)), *others):
            if found.epsilon < certified:
                policy, certified, proof = found.policy, found.epsilon, its_proof | {"design": self.design}
                lag = its_proof.get("lag", {}).get("number", 0)
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
            lag=lag,
            proof=proof,
        )
