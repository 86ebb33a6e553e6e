"""The run that `tight` and `adaptive` share: sample, look, and keep the best that is certified.

    compute ω* = argmin_ω max_{s,a} ‖φ(s,a)‖²_{Λ(ω)⁻¹}
    repeat
        sample towards an allocation, ω* at first
        look: which ε does each of the tests in use certify, and for which policy?
        now and then start new tests from what is known by now (`stopping.lags`); choose the allocation anew
    until the certified ε is at most the asked one
    return that policy with its ε

The certificate holds at all times together, so a run may be stopped at any moment and still has the best
(policy, ε) that any of its checks has certified. With ε = 0 the run goes on until the policy is certified optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, frozen
from bestpolicy._numerics.inputs import as_float, number
from bestpolicy.algorithms.protocol import Request, Run, Task
from bestpolicy.algorithms.sampling import AllocationSampling, begin_with_design, check_times
from bestpolicy.design import Design, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.lags import Schedule
from bestpolicy.stopping.past import first_past
from bestpolicy.stopping.rule import Past, Terms
from bestpolicy.stopping.verdict import Verdict


@dataclass(frozen=True)
class Anytime:
    """Parameters of an anytime run.

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


class Steering(Protocol):
    """Where an anytime run samples."""

    def candidates(self, problem: Problem, design: Design) -> IntArray:
        """Positions in ``problem.pairs`` of the pairs that may be sampled; the design's are among them."""
        ...

    def steer(self, sampling: AllocationSampling, schedule: Schedule, verdict: Verdict) -> AllocationSampling:
        """Return how to go on sampling."""
        ...


def run_anytime(task: Task, options: Anytime, steering: Steering) -> Run:
    """Sample until the asked ε is certified; samples from elsewhere are pooled with ours, but for the lags."""
    problem, epsilon = task.problem, task.epsilon
    design, decided = begin_with_design(task, options.design_tolerance)
    whitened = whitened_problem(problem, design)
    candidates, shares = with_shares(problem, design, steering.candidates(problem, design), task.own_data)
    first = first_past(whitened, candidates, shares, task.delta * (1 - options.lag_share))
    terms = Terms(whitened, epsilon, options.value_span / task.reward_scale)
    schedule = Schedule(terms, problem.pairs[candidates], first, task.delta, options.lag_share)
    if task.own_data is not None:
        schedule.main.add(task.own_data)
    had = schedule.main.evidence.tally.samples
    sampling, report = AllocationSampling.of(shares, problem.stages), Report(schedule, design)

    smallest = 4 * problem.stages * max(problem.dimension, len(design.indices))
    for samples in check_times(smallest, options.check_ratio):
        pulls = sampling.until(had + samples, schedule.main.evidence.tally)
        batch = yield Request(pulls, report.check, decided)
        schedule.add(batch, sampling.weights)
        past = task.recall()
        if past is not None and past.check is not None:
            decided = past.decided
            report.recall(past.check)
        else:
            verdict = report.look()
            decided = {} if report.passed else decide(schedule, sampling, steering, verdict)
        if report.passed:
            break
        if "lag" in decided:
            schedule.start(Past.from_dict(decided["lag"]))
        if "sampling" in decided:
            sampling = sampling.redirected(**decided["sampling"])
    assert report.check is not None
    return report.check


def decide(schedule: Schedule, sampling: AllocationSampling, steering: Steering, verdict: Verdict) -> dict[str, Any]:
    """Fix what the samples to come are for: tests that start with them, where they are drawn."""
    decided: dict[str, Any] = {}
    past = schedule.choose(verdict)
    if past is not None:
        decided["lag"] = past.to_dict()
    steered = steering.steer(sampling, schedule, verdict)
    if steered is not sampling:
        decided["sampling"] = steered.direction
    return decided


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
            theorem = check.rule.removeprefix("Theorem ")[0]
            proof = self.schedule.proof(check.lag, theorem).with_design(self.design)
        self.check = replace(check, proof=proof)

    def look(self) -> Verdict:
        """Let all tests look; return the verdict on all samples.

        The statistic is how far what was asked has been reached, against a threshold of 1: the larger of
        (asked ε)/(certified ε) and the least resolved gap in units of its width.
        """
        tally, asked = self.schedule.main.evidence.tally, self.schedule.terms.epsilon
        suffix = "-E" if tally.pulls.shape[0] > 1 else ""
        found = self.schedule.look()
        main = found[0].verdict
        best = Check(tally.rounds, tally.samples, main.policy, 0.0, 1.0, False, inf, main.gap, "Theorem T" + suffix)
        if self.check is not None and self.certified < inf:
            best = replace(self.check, rounds=tally.rounds, samples=tally.samples, gap=main.gap)
        # All statements hold on the same event, at all times: the best one is kept.
        for verdict, proof in ((one.verdict, one.proof) for one in found):
            if verdict.epsilon < best.epsilon:
                rule = f"Theorem {proof.theorem}{suffix}" + (f" ({verdict.criterion})" if verdict.criterion else "")
                lag = 0 if proof.past is None else proof.past.number
                best = replace(best, policy=verdict.policy, epsilon=verdict.epsilon, rule=rule, lag=lag)
                best = replace(best, proof=proof.with_design(self.design))
        passed = best.epsilon <= asked
        reached = asked / best.epsilon if best.epsilon > 0 else 1.0
        nearly = min(1.0, max(reached, *(one.verdict.resolved for one in found)))
        self.check = replace(best, passed=passed, statistic=max(1.0, reached) if passed else nearly)
        return main
