"""Does an algorithm keep to what the loop needs of it, and is what it certifies true?"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from copy import deepcopy
from dataclasses import dataclass, fields
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.special import bdtrc

from bestpolicy import instances
from bestpolicy._numerics.arrays import IntArray
from bestpolicy._numerics.inputs import whole
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import About, Algorithm, Request, Task, find_algorithm, parameters_of
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.run import drive
from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators import ExactSimulator
from bestpolicy.stopping import Check
from bestpolicy.study import Study

_DELTA = 0.5  # wrong constants show soonest where much may go wrong
_SURE = 1e-3  # how often a sound algorithm may fail the count of false claims
_MOST_REQUESTS = 20_000
_KINDS = {"name": str, "about": About, "anytime": bool, "takes_own_data": bool}
_CHOICES = {"setting": ("discounted", "episodic", "discounted or episodic"), "features": ("linear", "tabular")}


def check_algorithm(
    algorithm: Algorithm,
    problem: LinearMDP | None = None,
    *,
    epsilon: float | None = None,
    runs: int = 20,
    seed: int = 0,
) -> None:
    """Raise InvalidInput with the first thing that is wrong with an algorithm; return quietly if nothing is.

    The algorithm is run step by step, twice; interrupted, and resumed from a file; and with a budget that is too small.
    Then come `runs` runs at δ = 0.5, of which those are counted in which some check claims what is not true of its
    policy. A sound algorithm has more of them than an exact binomial test allows for one seed in a thousand at most.

    Parameters
    ----------
    algorithm : Algorithm
    problem : LinearMDP, optional
        A small problem whose truth is known; one of two states and two actions by default.
    epsilon : float, optional
        What to ask for; half the gap by default, so that only an optimal policy will do.
    runs : int
        At least 10: fewer could not fail.
    seed : int
    """
    whole("runs", runs, 10)
    _check_declarations(algorithm)
    mdp = _small_model(algorithm) if problem is None else problem
    find_algorithm(algorithm, mdp.problem)
    if epsilon is None:
        epsilon = mdp.gap / 2 if 0 < mdp.gap < inf else 0.05 * float(mdp.problem.value_limits[0])
    rehearsal = _Rehearsal(algorithm, mdp, epsilon)
    with one_thread():
        rehearsal.check_prediction()
        rehearsal.check_repeatable(seed)
        rehearsal.check_stored(seed)
        rehearsal.check_claims(runs, seed)


def _check_declarations(algorithm: Any) -> None:
    """All that is known of it before it runs."""
    if isinstance(algorithm, type):
        raise InvalidInput(f"algorithm must be an object, not a class: pass {algorithm.__name__}().")
    for name, kind in _KINDS.items():
        if not isinstance(getattr(algorithm, name, None), kind):
            raise InvalidInput(f"{type(algorithm).__name__} needs an attribute {name!r} of type {kind.__name__}.")
    for name, known in _CHOICES.items():
        given = getattr(algorithm.about, name)
        if given not in known:
            raise _wrong(algorithm, f"about.{name} must be one of {', '.join(known)}. Got {given!r} instead.")
    if not algorithm.name.strip() or not algorithm.about.guarantee:
        raise _wrong(algorithm, "name and about.guarantee must not be empty; a rule that proves nothing says 'none'.")
    for name in ("unsuitable", "predicted_samples", "run"):
        if not callable(getattr(algorithm, name, None)):
            raise _wrong(algorithm, f"it needs a method {name!r}; see bestpolicy.algorithms.Algorithm.")
    parameters = parameters_of(algorithm)
    try:
        kept = json.loads(json.dumps(parameters)) == parameters
    except (TypeError, ValueError):
        kept = False
    if not kept:
        raise _wrong(algorithm, f"a file keeps numbers, texts and lists as parameters, but not {parameters!r:.80}.")


def _small_model(algorithm: Algorithm) -> LinearMDP:
    """Return the first small model that the algorithm does not refuse."""
    reasons = []
    for clock in ({"discount": 0.5}, {"horizon": 2}):
        mdp = instances.load("two-state", **clock)
        reason = algorithm.unsuitable(mdp.problem)
        if reason == "":
            return mdp
        reasons.append(str(reason))
    raise _wrong(
        algorithm,
        f"it cannot run on the small models of this test: {' '.join(reasons)} Give one that suits it (problem=…), and "
        "let unsuitable return an empty text where it can run.",
    )


@dataclass(frozen=True, eq=False)
class _Step:
    """A request, or the end of a run, which has no pulls."""

    pulls: Pulls | None
    check: Check | None

    def same(self, other: _Step) -> bool:
        if self.pulls is None or other.pulls is None:
            alike = self.pulls is other.pulls
        else:
            alike = self.pulls.equals(other.pulls)
        return alike and _told([self.check]) == _told([other.check])


@dataclass(frozen=True, eq=False)
class _Rehearsal:
    """An algorithm on a model whose truth is known, asked for some ε at δ = 0.5."""

    algorithm: Algorithm
    mdp: LinearMDP
    epsilon: float

    def check_prediction(self) -> None:
        predicted = self.algorithm.predicted_samples(self.mdp.problem, self.mdp.gap, self.epsilon, _DELTA)
        if not isinstance(predicted, int | float | np.number) or predicted < 0:
            raise self.wrong(f"predicted_samples must be a number ≥ 0, or nan if it cannot say. Got {predicted!r}.")

    def check_repeatable(self, seed: int) -> None:
        """Run it step by step, twice, and with data from elsewhere if it takes them."""
        first, again = self.play(seed), self.play(seed)
        steps = zip(first, again, strict=False)
        if len(first) != len(again) or not all(one.same(other) for one, other in steps):
            raise self.wrong(
                "two runs with equal random numbers and equal samples differ. Let pulls and checks depend on what was "
                "sent and on task.rng alone, and keep nothing in the object between runs."
            )
        if self.algorithm.takes_own_data:
            pairs, stages = self.mdp.problem.pairs, self.mdp.problem.stages
            once = Pulls(pairs, np.ones((stages, len(pairs)), dtype=np.int64))
            self.play(seed, ExactSimulator(self.mdp).sample(once, np.random.default_rng(seed)))

    def check_stored(self, seed: int) -> None:
        """Interrupt it half-way and resume it; then let a budget end it."""
        simulator, straight, answered = ExactSimulator(self.mdp), self._study(seed), 0
        while not straight.done:
            answered += _answer(straight, simulator)
        expected = straight.result()
        with TemporaryDirectory() as folder:
            store = Path(folder) / "studies.db"
            study = self._study(seed, store=store)
            for _ in range(answered // 2):
                _answer(study, simulator)
            study.close()
            resumed = drive(Study.resume(store, algorithm=self.algorithm), simulator)
        alike = (expected.samples, expected.outcome) == (resumed.samples, resumed.outcome)
        if not alike or _told(expected.checks) != _told(resumed.checks):
            raise self.wrong(
                "a run that was interrupted and resumed ends differently from one that was not. Let pulls and checks "
                "depend on what was sent, on task.rng and on what task.recall returned alone."
            )
        cut = drive(self._study(seed, max_samples=max(1, 2 * expected.samples // 3)), simulator)
        if self.algorithm.anytime and cut.checks:
            self._check_look(cut.checks[-1], cut.samples, 0, "after a batch that was cut to the budget")

    def check_claims(self, runs: int, seed: int) -> None:
        """Count the runs in which some check claims what is not true."""
        false = 0
        for number in range(runs):
            checks = [step.check for step in self.play(seed + number) if step.check is not None]
            false += not all(self.mdp.is_near_optimal(self._unstaged(check.policy), check.epsilon) for check in checks)
        chance = float(bdtrc(false - 1, runs, _DELTA)) if false else 1.0
        if chance < _SURE:
            raise self.wrong(
                f"in {false} of {runs} runs at δ = {_DELTA:g} some check claims an ε that its policy does not have. A "
                f"sound rule does so with probability {chance:.1g}: these confidence bounds are too narrow, or do not "
                "hold at all the times at which it looks."
            )

    def play(self, seed: int, own_data: Tally | None = None) -> list[_Step]:
        """Run it step by step, and look at everything that it says."""
        task = Task(self.mdp.problem, self.epsilon, _DELTA, np.random.default_rng(seed), own_data)
        run: Any = self.algorithm.run(task)
        if not isinstance(run, Generator):
            raise self.wrong(f"run(task) must be a generator: `yield Request(pulls, check)`. Got {type(run).__name__}.")
        simulator, draws = ExactSimulator(self.mdp), np.random.default_rng((seed, 1))
        samples, sent, own = 0, None, 0 if own_data is None else own_data.samples
        steps: list[_Step] = []
        while len(steps) < _MOST_REQUESTS:
            before = deepcopy((sent, own_data))
            try:
                request = next(run) if sent is None else run.send(sent)
            except StopIteration as end:
                self._check_look(end.value, samples, own, "at the end of the run")
                return [*steps, _Step(None, end.value)]
            except Exception as error:
                hint = " A tally must not be changed: add them up." if "read-only" in str(error) else ""
                raise self.wrong(f"it failed at request {len(steps)}: {error!r}.{hint}") from error
            if not _same_tallies(before, (sent, own_data)):
                raise self.wrong("it changed a tally that it was sent. Add tallies up: `tally = tally + sent`.")
            self._check_request(request)
            if request.check is not None:
                self._check_look(request.check, samples, own, f"with request {len(steps)}")
            steps.append(_Step(request.pulls, request.check))
            sent = simulator.sample(request.pulls, draws).at(request.pulls.pairs)
            samples += sent.samples
        run.close()
        raise self.wrong(
            f"it has not ended after {_MOST_REQUESTS:,} requests. Let them grow (by a factor of 1.05, say), or give an "
            "easier problem or a larger epsilon."
        )

    def _check_request(self, request: Any) -> None:
        problem = self.mdp.problem
        if not isinstance(request, Request) or not isinstance(request.pulls, Pulls):
            raise self.wrong(f"it must yield Request(Pulls(pairs, counts), check). Got {type(request).__name__}.")
        pulls, expected = request.pulls, (problem.stages, len(request.pulls.pairs))
        if pulls.counts.shape != expected:
            raise self.wrong(f"counts must have shape (stages, pairs) = {expected}. Got {pulls.counts.shape} instead.")
        if not np.isin(pulls.pairs, problem.pairs).all():
            raise self.wrong("it asks for a pair that is not allowed. Choose among problem.pairs.")
        if pulls.total < 1:
            raise self.wrong("it asks for nothing. A request needs a pull at least; return the last check to end.")

    def _check_look(self, check: Any, samples: int, own: int, when: str) -> None:
        problem, expected = self.mdp.problem, (self.mdp.problem.stages, self.mdp.problem.states)
        if not isinstance(check, Check):
            raise self.wrong(f"{when} there must be a bestpolicy.Check. Got {type(check).__name__} instead.")
        policy = np.asarray(check.policy)
        if policy.shape != expected or policy.dtype.kind not in "iu":
            raise self.wrong(
                f"{when} the policy must be an integer array of shape (stages, states) = {expected}. Got "
                f"{policy.dtype} {policy.shape} instead."
            )
        known = ((policy >= 0) & (policy < problem.actions)).all()
        if not known or not problem.mask[np.arange(problem.states), policy].all():
            raise self.wrong(f"{when} the policy plays an action that is not allowed. Look at problem.mask.")
        if check.samples not in (samples, samples + own):
            raise self.wrong(f"{when} the check says {check.samples} samples where {samples} were drawn.")
        if isnan(check.epsilon) or check.epsilon < 0:
            raise self.wrong(f"{when} epsilon must be ≥ 0, and inf if nothing is certified. Got {check.epsilon!r}.")
        promises = self.algorithm.about.guarantee
        if check.passed and (promises == "none" or check.epsilon > self.epsilon * (1 + 1e-9)):
            raise self.wrong(
                f"{when} the check has passed with epsilon {check.epsilon:g}, where {self.epsilon:g} was asked and the "
                f"guarantee is: {promises}. Let it pass only once what was asked is certified."
            )

    def _unstaged(self, policy: IntArray) -> IntArray:
        return policy[0] if self.mdp.problem.horizon is None else policy

    def _study(self, seed: int, store: Path | None = None, max_samples: int | None = None) -> Study:
        return Study(
            self.mdp.problem,
            epsilon=self.epsilon,
            delta=_DELTA,
            algorithm=self.algorithm,
            seed=seed,
            max_samples=max_samples,
            store=store,
        )

    def wrong(self, reason: str) -> InvalidInput:
        return _wrong(self.algorithm, reason)


def _wrong(algorithm: Algorithm, reason: str) -> InvalidInput:
    return InvalidInput(f"algorithm {algorithm.name!r}: {reason}")


def _answer(study: Study, simulator: ExactSimulator) -> int:
    """Answer what a study asks now; return how many queries that were."""
    queries = study.ask()
    for query in queries:
        study.tell(query, simulator.sample(query.pulls, query.rng()))
    return len(queries)


def _told(checks: Iterable[Check | None]) -> list[Any]:
    """What checks say, ready to be compared."""
    return [None if check is None else (check.to_dict(), np.asarray(check.policy).tolist()) for check in checks]


def _same_tallies(before: tuple[Tally | None, ...], after: tuple[Tally | None, ...]) -> bool:
    return all(
        np.array_equal(getattr(was, field.name), getattr(now, field.name))
        for was, now in zip(before, after, strict=True)
        if was is not None
        for field in fields(Tally)
    )
