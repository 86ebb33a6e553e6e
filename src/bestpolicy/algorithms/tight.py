"""tight: sample a G-optimal design, certify at any time by Theorem T (T-E if episodic) and, since lags, by T, P and F.

    compute ω* = argmin_ω max_{s,a} ‖φ(s,a)‖²_{Λ(ω)⁻¹}
    repeat
        sample towards an allocation: ω*, which `adaptive` chooses anew now and then
        look: which ε does each of the tests in use certify, and for which policy?
        now and then start new tests from what is known by now (`stopping.lags`)
    until the certified ε is at most the asked one
    return that policy with its ε

The certificate holds at all times together, so a run may be stopped at any moment and still has the best
(policy, ε) that any of its checks has certified. With ε = 0 the run goes on until the policy is certified optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, frozen
from bestpolicy._numerics.inputs import as_float, number
from bestpolicy.algorithms.protocol import About, Request, Run, Task, begin_with_design, check_times
from bestpolicy.design import Design, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check, Past, Terms, Verdict
from bestpolicy.stopping.lags import Schedule, first_past
from bestpolicy.stopping.rule import theorem_of


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
        return nan

    def candidates(self, problem: Problem, design: Design) -> IntArray:
        """Positions in ``problem.pairs`` of the pairs that may be sampled: those of the design."""
        return design.indices

    def steer(self, sampling: AllocationSampling, schedule: Schedule, verdict: Verdict) -> AllocationSampling:
        """Return how to go on sampling: as before."""
        return sampling

    def run(self, task: Task) -> Run:
        """Sample until the asked ε is certified; samples from elsewhere are pooled with ours, but for the lags."""
        problem = task.problem
        design, decided = begin_with_design(task, self.design_tolerance)
        whitened = whitened_problem(problem, design)
        candidates, shares = with_shares(problem, design, self.candidates(problem, design), task.own_data)
        first = first_past(whitened, candidates, shares, task.delta * (1 - self.lag_share))
        terms = Terms(whitened, task.epsilon, self.value_span / task.reward_scale)
        schedule = Schedule(terms, problem.pairs[candidates], first, task.delta, self.lag_share)
        if task.own_data is not None:
            schedule.add(task.own_data)
        had = schedule.main.evidence.tally.samples
        sampling, report = AllocationSampling.of(shares, problem.stages), Report(schedule, design)

        smallest = 4 * problem.stages * max(problem.dimension, len(design.indices))
        for samples in check_times(smallest, self.check_ratio):
            pulls = sampling.until(had + samples, schedule.main.evidence.tally)
            batch = yield Request(pulls, report.check, decided)
            schedule.add(batch, sampling.weights)
            past = task.recall()
            if past is not None and past.check is not None:
                decided = past.decided
                report.recall(past.check)
            else:
                verdict = report.look()
                decided = {} if report.passed else self._decide(schedule, sampling, verdict)
            if report.passed:
                break
            if "lag" in decided:
                schedule.start(Past.from_dict(decided["lag"]))
            if "sampling" in decided:
                sampling = sampling.redirected(**decided["sampling"])
        assert report.check is not None
        return report.check

    def _decide(self, schedule: Schedule, sampling: AllocationSampling, verdict: Verdict) -> dict[str, Any]:
        """Fix what the samples to come are for: tests that start with them, where they are drawn."""
        past, steered = schedule.choose(verdict), self.steer(sampling, schedule, verdict)
        lag = {} if past is None else {"lag": past.to_dict()}
        return lag | ({} if steered is sampling else {"sampling": steered.direction})


@dataclass(frozen=True, eq=False)
class AllocationSampling:
    """Pull pairs towards shares that may change on the way.

    Attributes
    ----------
    everywhere, allocation : arrays (stages, K)
        Shares of the G-optimal design, the stages alike, and shares to aim at; both sum to 1.
    weights : array (stages, K)
        u of the samples to be drawn next, for the regression.
    designed : int
        Number of samples when the allocation was last changed.
    """

    everywhere: FloatArray
    allocation: FloatArray
    weights: FloatArray
    designed: int = 0

    def redirected(self, allocation: FloatArray, weights: FloatArray, designed: int) -> AllocationSampling:
        """Return the sampling that goes on towards other shares."""
        return AllocationSampling(self.everywhere, allocation, weights, designed)

    @property
    def direction(self) -> dict[str, Any]:
        """What `redirected` needs to come back to this sampling."""
        return {"allocation": self.allocation, "weights": self.weights, "designed": self.designed}

    @classmethod
    def of(cls, shares: FloatArray, stages: int) -> AllocationSampling:
        """Return the sampling of a design, in the same way at every stage."""
        everywhere = np.tile(shares / stages, (stages, 1))
        return cls(everywhere, everywhere, np.ones(everywhere.shape))

    def until(self, samples: int, tally: Tally) -> Pulls:
        """Pulls that lead from a tally to `samples` samples, as near to the allocation as the batch allows."""
        missing = np.maximum(whole_counts(self.allocation * samples) - tally.pulls, 0)
        batch = samples - tally.samples
        return Pulls(
            tally.pairs, missing if missing.sum() <= batch else whole_counts(missing * (batch / missing.sum()))
        )


def whole_counts(counts: FloatArray) -> IntArray:
    """Round counts to whole numbers with the same total, by largest remainders."""
    rounded = np.floor(counts)
    short = round(float(counts.sum() - rounded.sum()))
    largest = np.argsort(np.round(rounded - counts, 6).ravel(), kind="stable")[:short]
    rounded.ravel()[largest] += 1
    return rounded.astype(np.int64)


def with_shares(
    problem: Problem, design: Design, candidates: IntArray, own_data: Tally | None
) -> tuple[IntArray, FloatArray]:
    """Pairs that may be sampled, those of samples from elsewhere included, and the design's shares on them.

    They have to be fixed before any sample; whoever brings samples chose their pairs without regard to outcomes.
    """
    shares = np.zeros(len(problem.pairs))
    shares[design.indices] = design.weights
    if own_data is not None:
        candidates = np.union1d(candidates, np.searchsorted(problem.pairs, own_data.pairs))
    return candidates, shares[candidates]


def whitened_problem(problem: Problem, design: Design) -> Problem:
    """Return the problem in the coordinates of the design, with equal features equal to the last bit.

    Copies of an action are told by equality; rounding in the change of coordinates must not part them.
    """
    rows, position = np.unique(problem.features.reshape(-1, problem.dimension), axis=0, return_inverse=True)
    whitened = whiten(problem.pair_features, design).features(rows)
    return problem.with_features(frozen(whitened[position.ravel()].reshape(problem.features.shape)))


class Report:
    """The best (policy, ε) certified so far, as a `Check`.

    Parameters
    ----------
    schedule : Schedule
    design : Design
        For proofs.
    """

    def __init__(self, schedule: Schedule, design: Design) -> None:
        self.schedule, self.design = schedule, design
        self.check: Check | None = None

    @property
    def passed(self) -> bool:
        """Whether what was asked is certified."""
        return self.check is not None and self.check.passed

    @property
    def certified(self) -> float:
        """The best ε so far."""
        return inf if self.check is None else self.check.epsilon

    def recall(self, check: Check) -> None:
        """Take a check of a run that is resumed, with the proof that belongs to it."""
        proof = None if self.check is None else self.check.proof
        if check.epsilon < self.certified:
            proof = self.schedule.proof(check.lag, theorem_of(check.rule)).with_design(self.design)
        self.check = replace(check, proof=proof)

    def look(self) -> Verdict:
        """Let all tests look; return the verdict on all samples.

        The statistic is how far what was asked has been reached, against a threshold of 1: the larger of
        (asked ε)/(certified ε) and the least resolved gap in units of its width.
        """
        tally, asked = self.schedule.main.evidence.tally, self.schedule.terms.epsilon
        statements = self.schedule.look()
        main = statements[0][0]
        best = replace(main.check(tally, asked), epsilon=inf)
        if self.check is not None and self.certified < inf:
            best = replace(self.check, rounds=tally.rounds, samples=tally.samples)
        # All statements hold on the same event, at all times: the best one is kept.
        for verdict, proof in statements:
            if verdict.epsilon < best.epsilon:
                lag = 0 if proof.past is None else proof.past.number
                best = replace(verdict.check(tally, asked), proof=proof.with_design(self.design), lag=lag)
        passed = best.epsilon <= asked
        reached = asked / best.epsilon if best.epsilon > 0 else 1.0
        nearly = min(1.0, max(reached, *(verdict.resolved for verdict, _ in statements)))
        statistic = max(1.0, reached) if passed else nearly
        self.check = replace(best, passed=passed, statistic=statistic, gap=main.gap)
        return main
