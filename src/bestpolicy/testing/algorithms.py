"""Does an algorithm keep to what the loop needs of it, and is what it certifies true?"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from scipy.special import bdtrc

from bestpolicy import instances
from bestpolicy._numerics.inputs import whole
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import About, Algorithm, Request, Task, find_algorithm, parameters_of
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.run import drive
from bestpolicy.samples import Episodes, Pulls, Tally
from bestpolicy.simulators import ExactSimulator
from bestpolicy.stopping import Check
from bestpolicy.study import Study

_DELTA = 0.5  # wrong constants show soonest where much may go wrong
_SURE = 1e-3  # how often a sound algorithm may fail the count of false claims
_MOST_REQUESTS = 20_000
_KINDS = {"name": str, "about": About, "anytime": bool, "takes_own_data": bool}
_Step: TypeAlias = tuple[Pulls | Episodes | None, Check | None]  # a request, or the end of a run, which has no pulls
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


def _require(algorithm: Algorithm, fine: Any, reason: str) -> None:
    if not fine:
        raise InvalidInput(f"algorithm {algorithm.name!r}: {reason}")


def _check_declarations(algorithm: Any) -> None:
    """All that is known of it before it runs."""
    if isinstance(algorithm, type):
        raise InvalidInput(f"algorithm must be an object, not a class: pass {algorithm.__name__}().")
    for name, kind in _KINDS.items():
        if not isinstance(getattr(algorithm, name, None), kind):
            raise InvalidInput(f"{type(algorithm).__name__} needs an attribute {name!r} of type {kind.__name__}.")
    for name, known in _CHOICES.items():
        given = getattr(algorithm.about, name)
        _require(algorithm, given in known, f"about.{name} must be one of {', '.join(known)}. Got {given!r} instead.")
    words = algorithm.name.strip() and algorithm.about.guarantee
    _require(algorithm, words, "name and about.guarantee must not be empty; a rule that proves nothing says 'none'.")
    for name in ("unsuitable", "predicted_samples", "run"):
        has = callable(getattr(algorithm, name, None))
        _require(algorithm, has, f"it needs a method {name!r}; see bestpolicy.algorithms.Algorithm.")
    parameters = parameters_of(algorithm)
    try:
        kept = json.loads(json.dumps(parameters)) == parameters
    except (TypeError, ValueError):
        kept = False
    _require(algorithm, kept, f"a file keeps numbers, texts and lists as parameters, but not {parameters!r:.80}.")


def _small_model(algorithm: Algorithm) -> LinearMDP:
    """Return the first small model that the algorithm does not refuse."""
    models = [instances.load("two-state", **clock) for clock in ({"discount": 0.5}, {"horizon": 2})]
    reasons = [str(algorithm.unsuitable(mdp.problem)) for mdp in models]
    reason = f"it cannot run on the small models of this test: {' '.join(reasons)} Give one that suits it (problem=…), "
    _require(algorithm, "" in reasons, reason + "and let unsuitable return an empty text where it can run.")
    return models[reasons.index("")]


@dataclass(frozen=True, eq=False)
class _Rehearsal:
    """An algorithm on a model whose truth is known, asked for some ε at δ = 0.5."""

    algorithm: Algorithm
    mdp: LinearMDP
    epsilon: float

    def require(self, fine: Any, reason: str) -> None:
        _require(self.algorithm, fine, reason)

    @property
    def start(self) -> int | None:
        """Where trajectories begin, and where the claims of those who follow them hold: the first state."""
        return None if self.algorithm.about.sampling == "pairs" else 0

    def check_prediction(self) -> None:
        predicted = self.algorithm.predicted_samples(self.mdp.problem, self.mdp.gap, self.epsilon, _DELTA)
        fine = isinstance(predicted, int | float | np.number) and not predicted < 0
        self.require(fine, f"predicted_samples must be a number ≥ 0, or nan if it cannot say. Got {predicted!r}.")

    def check_repeatable(self, seed: int) -> None:
        """Run it step by step, twice, and with data from elsewhere if it takes them."""
        self.require(
            _told(self.play(seed)) == _told(self.play(seed)),
            "two runs with equal random numbers and equal samples differ. Let pulls and checks depend on what was sent "
            "and on task.rng alone, and keep nothing in the object between runs.",
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
        ends = [
            (result.samples, result.outcome, _told((None, check) for check in result.checks))
            for result in (expected, resumed)
        ]
        self.require(
            ends[0] == ends[1],
            "a run that was interrupted and resumed ends differently from one that was not. Let pulls and checks "
            "depend on what was sent, on task.rng and on what task.recall returned alone.",
        )
        cut = drive(self._study(seed, max_samples=max(1, 2 * expected.samples // 3)), simulator)
        if self.algorithm.anytime and cut.checks:
            self._check_look(cut.checks[-1], (cut.samples,), "after a batch that was cut to the budget")

    def check_claims(self, runs: int, seed: int) -> None:
        """Count the runs in which some check claims what is not true."""
        false = 0
        for number in range(runs):
            boldest = dict[bytes, Check]()  # of each policy: if that is true, so is whatever else is claimed of it
            for _, check in self.play(seed + number):
                if check is not None:
                    policy = np.asarray(check.policy).tobytes()
                    boldest[policy] = min(boldest.get(policy, check), check, key=lambda known: known.epsilon)
            false += not all(map(self._is_true, boldest.values()))
        chance = float(bdtrc(false - 1, runs, _DELTA)) if false else 1.0
        self.require(
            chance >= _SURE,
            f"in {false} of {runs} runs at δ = {_DELTA:g} some check claims an ε that its policy does not have. A "
            f"sound rule does so with probability {chance:.1g}: these confidence bounds are too narrow, or do not "
            "hold at all the times at which it looks.",
        )

    def _is_true(self, check: Check) -> bool:
        policy = check.policy[0] if self.mdp.problem.horizon is None else check.policy
        if self.start is not None:
            return self.mdp.loss(policy, start=np.eye(self.mdp.problem.states)[self.start]) <= check.epsilon + 1e-9
        return self.mdp.is_near_optimal(policy, check.epsilon)

    def play(self, seed: int, own_data: Tally | None = None) -> list[_Step]:
        """Run it step by step, and look at everything that it says."""
        law = None if self.start is None else np.eye(self.mdp.problem.states)[self.start]
        task = Task(self.mdp.problem, self.epsilon, _DELTA, np.random.default_rng(seed), own_data, start=law)
        run: Any = self.algorithm.run(task)
        wanted = "run(task) must be a generator: `yield Request(pulls, check)`."
        self.require(isinstance(run, Generator), f"{wanted} Got {type(run).__name__}.")
        simulator, draws = ExactSimulator(self.mdp), np.random.default_rng((seed, 1))
        samples, sent, brought = 0, None, 0 if own_data is None else own_data.samples
        steps: list[_Step] = []
        while len(steps) < _MOST_REQUESTS:
            before = _bytes(sent, own_data)
            try:
                request = next(run) if sent is None else run.send(sent)
            except StopIteration as end:
                self._check_look(end.value, (samples, samples + brought), "at the end of the run")
                return [*steps, (None, end.value)]
            except Exception as error:
                hint = " A tally must not be changed: add them up." if "read-only" in str(error) else ""
                reason = f"it failed at request {len(steps)}: {error!r}.{hint}"
                raise InvalidInput(f"algorithm {self.algorithm.name!r}: {reason}") from error
            unchanged = _bytes(sent, own_data) == before
            self.require(unchanged, "it changed a tally that it was sent. Add tallies up: `tally = tally + sent`.")
            self._check_request(request)
            if request.check is not None:
                self._check_look(request.check, (samples, samples + brought), f"with request {len(steps)}")
            steps.append((request.wanted, request.check))
            sent = request.wanted.fitted(_simulated(simulator, request.wanted, draws))
            samples += sent.samples
        run.close()
        advice = "Let them grow (by a factor of 1.05, say), or give an easier problem or a larger epsilon."
        self.require(False, f"it has not ended after {_MOST_REQUESTS:,} requests. {advice}")
        return steps

    def _check_request(self, request: Any) -> None:
        problem, kind = self.mdp.problem, type(request).__name__
        fine = isinstance(request, Request) and isinstance(request.wanted, Pulls | Episodes)
        self.require(fine, f"it must yield Request(Pulls(pairs, counts), check). Got {kind}.")
        if isinstance(request.wanted, Episodes):
            self.require(request.wanted.total >= 1, "it asks for nothing. A request needs an episode at least.")
            return
        pairs, shape = request.pulls.pairs, request.pulls.counts.shape
        expected = (problem.stages, len(pairs))
        self.require(shape == expected, f"counts must have shape (stages, pairs) = {expected}. Got {shape} instead.")
        allowed = np.isin(pairs, problem.pairs).all()
        self.require(allowed, "it asks for a pair that is not allowed. Choose among problem.pairs.")
        enough = request.pulls.total >= 1
        self.require(enough, "it asks for nothing. A request needs a pull at least; return the last check to end.")

    def _check_look(self, check: Any, samples: tuple[int, ...], when: str) -> None:
        problem, expected = self.mdp.problem, (self.mdp.problem.stages, self.mdp.problem.states)
        kind = type(check).__name__
        self.require(isinstance(check, Check), f"{when} there must be a bestpolicy.Check. Got {kind} instead.")
        policy = np.asarray(check.policy)
        self.require(
            policy.shape == expected and policy.dtype.kind in "iu",
            f"{when} the policy must be an integer array of shape (stages, states) = {expected}. Got {policy.dtype} "
            f"{policy.shape} instead.",
        )
        known = ((policy >= 0) & (policy < problem.actions)).all()
        allowed = known and problem.mask[np.arange(problem.states), policy].all()
        self.require(allowed, f"{when} the policy plays an action that is not allowed. Look at problem.mask.")
        counted = check.samples in samples
        self.require(counted, f"{when} the check says {check.samples} samples where {samples[0]} were drawn.")
        epsilon, promises = check.epsilon, self.algorithm.about.guarantee
        self.require(epsilon >= 0, f"{when} epsilon must be ≥ 0, and inf if nothing is certified. Got {epsilon!r}.")
        self.require(
            not check.passed or (promises != "none" and epsilon <= self.epsilon * (1 + 1e-9)),
            f"{when} the check has passed with epsilon {epsilon:g}, where {self.epsilon:g} was asked and the "
            f"guarantee is: {promises}. Let it pass only once what was asked is certified.",
        )

    def _study(self, seed: int, **settings: Any) -> Study:
        asked: dict[str, Any] = {"epsilon": self.epsilon, "delta": _DELTA, "algorithm": self.algorithm, "seed": seed}
        asked |= {"start": self.start}
        return Study(self.mdp.problem, **asked, **settings)


def _answer(study: Study, simulator: ExactSimulator) -> int:
    """Answer what a study asks now; return how many queries that were."""
    queries = study.ask()
    for query in queries:
        study.tell(query, _simulated(simulator, query.wanted, query.rng()))
    return len(queries)


def _simulated(simulator: ExactSimulator, wanted: Any, rng: np.random.Generator) -> Tally:
    return simulator.rollout(wanted, rng) if isinstance(wanted, Episodes) else simulator.sample(wanted, rng)


def _told(steps: Iterable[_Step]) -> list[Any]:
    """What steps say, ready to be compared."""
    return [
        (
            wanted and [np.asarray(value).tolist() for value in _asked(wanted)],
            check and (check.to_dict(), np.asarray(check.policy).tolist()),
        )
        for wanted, check in steps
    ]


def _asked(wanted: Pulls | Episodes) -> tuple[Any, ...]:
    return (wanted.policy, wanted.count) if isinstance(wanted, Episodes) else (wanted.pairs, wanted.counts)


def _bytes(*tallies: Tally | None) -> list[bytes]:
    """All that tallies hold."""
    names = ("pairs", "next_counts", "next_rewards", "squared_rewards")
    return [getattr(tally, name).tobytes() for tally in tallies if tally is not None for name in names]
