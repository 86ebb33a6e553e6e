"""hull: certificates where states cannot be listed, by Theorems F± (`stopping.hull`) and H (`stopping.hull_gaps`).

    sample every pair of the feature map a little: the past
    repeat
        solve the past's model; how many test samples would certify ε, now and after a larger past, by either theorem?
        if a larger past is cheaper in all: sample more for it
        else begin a lag of the cheaper theorem: fix vectors, bets and counts from the past; spend the next share of δ
            sample for it, look, sample more, look, …
            if it certifies ε: done
            else its samples become past

What is certified by any lag stays certified. Before the first lag nothing is: `forecast` says when it should be.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, nan
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import require_whole
from bestpolicy.algorithms.hull_gaps import GapPlan, least_samples, suits
from bestpolicy.algorithms.hull_plan import CANDIDATES, PastModel, Plan
from bestpolicy.algorithms.protocol import About, Remembered, Request, Run, Task
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.samples import Drawn, Draws
from bestpolicy.samples.kept import Kept
from bestpolicy.stopping.hull import Lag, Verdict, nats, share
from bestpolicy.stopping.hull_gaps import GapLag
from bestpolicy.stopping.rule import Check, Proof

LOOKS = (0.6, *(0.65 + 0.05 * i for i in range(14)), 1.45, 1.6, 1.8, 2.0)  # times the planned number of test samples
_GROWTH = 1.25  # steps in which a larger past is considered
_MOST_LAGS = 40  # by then nothing is left of δ
_SAFETY = 0.97  # lags are planned for a little less than what was asked
_WORTH = 0.9  # of the samples: what makes Theorem H worth its looks


@dataclass(frozen=True)
class Hull:
    """Certify a policy in every state of a `FeatureProblem`.

    Parameters
    ----------
    first : int
        Samples of every pair to begin with.
    most_kept : int
        Samples whose next states are kept, to plan with and for tests of Theorem H: memory and the size of a study's
        file stay bounded. Where more would be needed, Theorem F± is used, whose tests keep sums only.
    gaps : bool
        Whether Theorem H may be used.
    """

    name: ClassVar[str] = "hull"
    about: ClassVar[About] = About(
        setting="discounted or episodic",
        features="linear",
        assumption="a FeatureProblem: convex features of states that need not be listed",
        guarantee="within ε of optimal in every state",
        complexity="d / ((1-γ)³ε²)",
        constants="own proof",
        reference="Theorems F± and H",
        writes_certificates=True,
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False

    first: int = 100
    most_kept: int = 2**20
    gaps: bool = True

    def __post_init__(self) -> None:
        require_whole(2, first=self.first)
        require_whole(1, most_kept=self.most_kept)

    def unsuitable(self, problem: Problem | FeatureProblem) -> str:
        """Say why the algorithm cannot run on the problem; empty if it can."""
        if isinstance(problem, FeatureProblem):
            return ""
        return "its states are listed: use 'sharp', which needs far fewer samples there."

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Return nothing: checks carry forecasts."""
        return nan

    def run(self, task: Task) -> Run:
        """Alternate between a past and lags that test what was chosen from it."""
        state = _Progress(task, task.problem)  # type: ignore[arg-type]
        begin = np.full((state.problem.stages, state.problem.places), self.first, np.int64)
        yield from state.sample(Draws(begin), None)
        for number in range(1, _MOST_LAGS + 1):
            delta = share(number) * task.delta
            lag = yield from self._prepare(state, number, delta)
            testing = self._test_gaps(state, lag) if isinstance(lag, GapLag) else self._test(state, lag)
            check = yield from testing
            if check.passed:
                return check
        return state.check()

    def _test(self, state: _Progress, lag: Lag) -> Generator[Request, Drawn, Check]:
        """Sample for a lag of Theorem F± and look, until it certifies ε or is given up."""
        test: Drawn | None = None
        for times in LOOKS:
            more = np.maximum(np.rint(times * lag.unit).astype(np.int64) - (0 if test is None else test.counts), 0)
            if state.problem.coefficients is not None:
                more = np.array(lag.unit)  # Lemma E counts whole multiples
            drawn = yield from state.sample(self._draws(state, more, lag), lag)
            test = drawn if test is None else Drawn.total([test, drawn])
            test = test.without_kept()
            check = state.look(lag, test)
            if check.passed:
                break
        return check

    def _test_gaps(self, state: _Progress, lag: GapLag) -> Generator[Request, Drawn, Check]:
        """The same for one of Theorem H, whose looks are at counts that were fixed."""
        test = Drawn.nothing(state.problem, Draws(0 * lag.counts[:1]))
        for number, counts in enumerate(lag.counts):
            while (test.counts[0] < counts).any():
                drawn = yield from state.sample(Draws(counts - test.counts), lag)
                test = Drawn.total([test, drawn.only_kept()])
            check = state.look_at_gaps(lag, test, number)
            if check.passed:
                break
        return check

    def _draws(self, state: _Progress, counts: IntArray, lag: Lag | None) -> Draws:
        keep = state.kept + int(counts.sum()) <= self.most_kept
        return Draws(counts, keep, None if lag is None else lag.bets)

    def _prepare(self, state: _Progress, number: int, delta: float) -> Generator[Request, Drawn, Lag | GapLag]:
        """Let the past grow until a lag now is the cheapest, and fix that."""
        while True:
            known = state.recalled_lag(number)
            if known is not None:
                return known
            if state.replaying:  # the file knows what was asked; it is the past that grew
                yield from state.sample(Draws(np.zeros_like(state.past.counts)), None)
                continue
            model = PastModel(state.problem, state.past)
            plan = model.plan(_SAFETY * state.task.epsilon, nats(state.problem, delta, len(CANDIDATES)))
            wanted, test = self._cheapest(plan, state)
            shares, gaps = plan.shares, self._by_gaps(model, number, delta, state, wanted + test)
            if gaps is not None:
                shares, (wanted, test) = gaps.shares[None], gaps.samples_needed
            state.plan(model, state.samples + max(0.0, wanted - state.kept) + test)
            wanted = min(wanted, 2.0 * state.kept)  # what looks right from few samples may not be
            more = np.maximum(np.ceil(wanted * shares).astype(np.int64) - state.past.counts, 0)
            if wanted > 1.05 * state.kept and more.any() and state.kept + int(more.sum()) <= self.most_kept:
                yield from state.sample(Draws(more), None)
                continue
            if gaps is not None:
                return gaps.lag(state.samples, self.most_kept - state.kept)
            unit = np.maximum(np.ceil(min(test, 1e12) * plan.shares), 8).astype(np.int64)
            return model.lag(plan, number, delta, unit, state.samples)

    def _by_gaps(self, model: PastModel, number: int, delta: float, state: _Progress, samples: float) -> GapPlan | None:
        """Return a plan for Theorem H, if that should do with fewer samples in all than the other."""
        problem, most = state.problem, min(_WORTH * samples, float(self.most_kept))
        if not self.gaps or not suits(problem) or most < least_samples(problem, delta):
            return None
        plan = GapPlan(model, number, delta, _SAFETY * state.task.epsilon, most)
        return plan if isfinite(sum(plan.samples_needed)) else None

    def _cheapest(self, plan: Plan, state: _Progress) -> tuple[float, float]:
        """Return the size of the past, at least the present one, that makes past and test together cheapest."""
        goal, size = _SAFETY * state.task.epsilon, float(state.kept)
        best = size, plan.samples_needed(goal, size)
        while size < 2 * sum(best) and size < 1e15:
            size *= _GROWTH
            needed = plan.samples_needed(goal, size)
            if size + needed < sum(best):
                best = size, needed
        return best[0], min(best[1], 1e15)


@dataclass(eq=False)
class _Progress:
    """What a run has sampled, concluded and decided so far."""

    task: Task
    problem: FeatureProblem
    past: Drawn = field(init=False)
    samples: int = 0
    verdict: Verdict | None = None
    lag: Lag | GapLag | None = None
    proof: Proof | None = None
    forecast: float = nan
    vectors: FloatArray | None = None
    _memory: Remembered | None = None

    def __post_init__(self) -> None:
        self.past = Drawn.nothing(self.problem, Draws(np.zeros((self.problem.stages, self.problem.places), np.int64)))
        self._memory = self.task.recall()

    @property
    def replaying(self) -> bool:
        """Whether the next request is one of a run that is resumed."""
        return self._memory is not None

    @property
    def kept(self) -> int:
        """Number of past samples."""
        return len(self.past.place)

    def recalled_lag(self, number: int) -> Lag | GapLag | None:
        """Return the lag of this number, if the run that is resumed had begun it."""
        known = {} if self._memory is None else self._memory.decided
        if "lag" not in known or known["lag"]["number"] != number:
            return None
        kind = Lag if "bets" in known["lag"] else GapLag
        return kind.from_dict(known["lag"])

    def sample(self, draws: Draws, lag: Lag | GapLag | None) -> Generator[Request, Drawn, Drawn]:
        """Ask for samples; what is kept of them becomes past."""
        decided: dict[str, Any] = {}
        if lag is not None and lag is not self.lag:
            decided, self.lag = {"lag": lag.to_dict()}, lag
        check = self.check() if self.vectors is not None or self.verdict is not None else None
        if self._memory is not None:  # as it was then
            check = None if self._memory.check is None else replace(self._memory.check, proof=self.proof)
            if check is not None:
                self.vectors, self.forecast = np.asarray(check.policy), check.forecast
        drawn = yield Request(draws, check, decided)
        self._memory = self.task.recall()
        self.samples += drawn.samples
        self.past = Drawn.total([self.past, drawn.only_kept()])
        return drawn

    def plan(self, model: PastModel, forecast: float) -> None:
        """Remember the past's own policy, and how many samples should do."""
        limit, centre = self.problem.value_limits, model.centre.vectors
        slack = np.broadcast_to(limit[:, None], (2, self.problem.stages, 1))
        self.vectors = np.concatenate([np.stack([centre, centre]), slack], axis=2)
        self.forecast = forecast

    def look(self, lag: Lag, test: Drawn) -> Check:
        """Look at a test; what any lag has certified stays certified."""
        verdict = lag.look(self.problem, test)
        return self._know(
            verdict, Proof("F±", fixed=lag.to_dict(), fresh=test.to_dict() | {"candidate": verdict.candidate})
        )

    def look_at_gaps(self, lag: GapLag, test: Drawn, number: int) -> Check:
        """The same by Theorem H."""
        verdict, found = lag.look(self.problem, Kept(self.problem, test), number)
        return self._know(verdict, Proof("H", fixed=lag.to_dict(), fresh=found))

    def _know(self, verdict: Verdict, proof: Proof) -> Check:
        if isfinite(verdict.epsilon) and (self.verdict is None or verdict.epsilon < self.verdict.epsilon):
            self.verdict, self.proof = verdict, proof
        return self.check()

    def check(self) -> Check:
        """Return what is known now."""
        rounds = self.samples // self.problem.stages
        suffix = "" if self.problem.horizon is None else "-E"
        if self.verdict is None:
            vectors = self.vectors
            if vectors is None:
                vectors = np.zeros((2, self.problem.stages, self.problem.dimension + 1))
            epsilon = inf
        else:
            vectors, epsilon = self.verdict.vectors, self.verdict.epsilon
        goal = self.task.epsilon
        reached = goal / epsilon if 0 < epsilon < inf else 0.0
        found = Check(
            rounds,
            self.samples,
            vectors,  # type: ignore[arg-type]
            reached,
            1.0,
            epsilon <= goal,
            epsilon,
            nan,
            f"Theorem {'F±' if self.proof is None else self.proof.theorem}{suffix}",
            self.proof,
            0 if self.lag is None else self.lag.number,
            float(ceil(self.forecast)) if isfinite(self.forecast) else nan,
        )
        return replace(found, gap=inf)
