"""Own the loop: ask what to simulate, tell what came out.

::

    study = Study(problem, epsilon=0.1, delta=0.05)
    while not study.done:
        for query in study.ask():
            study.tell(query, my_lab.measure(query.pulls, query.rng()))
    result = study.result()

A study is deterministic: the same answers to the same queries give the same result. The random stream of a query
depends on the seed and the query's index alone, whoever answers it and when. With a store everything that is asked,
told and decided is in the file before it counts; `Study.resume` takes it from there as it is.
"""

from __future__ import annotations

import inspect
import json
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import file_path, of_type, whole, word
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import ALGORITHMS, Algorithm, find_algorithm, make_algorithm, parameters_of
from bestpolicy.algorithms.protocol import Run, Task
from bestpolicy.certificate import Origin
from bestpolicy.diagnostics.assumptions import check_features, require
from bestpolicy.errors import InvalidInput, StoreError, did_you_mean
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.rule import Proof
from bestpolicy.study.forecast import forecast
from bestpolicy.study.journal import Asked, Record, answered, damage, rows_of_checks, tally_to_bytes
from bestpolicy.study.past import Past
from bestpolicy.study.queries import Batch, Query, check_tally, cut
from bestpolicy.study.result import Outcome, Result, explain
from bestpolicy.study.settings import Settings
from bestpolicy.study.store import Store, StudyFile, count_attempts

_MOST_QUERIES = 10**6  # that one request may be split into


class Study:
    """A run whose loop belongs to the caller.

    Parameters
    ----------
    problem : Problem
    epsilon : float
        The policy shall be within `epsilon` ≥ 0 of optimal; 0 asks for an optimal policy.
    delta : float
        Allowed probability of error, in (0, 1).
    algorithm : str or Algorithm, optional
        "gss" if discounted and "gss-e" if episodic by default.
    seed : int, optional
        Drawn and recorded if not given.
    max_samples : int, optional
        Budget of simulator calls.
    calls_per_query : int, optional
        Split what is to be simulated between two looks at the data into queries of at most this many simulator
        calls, to be answered in any order. One query by default.
    store : path, optional
        SQLite file in which the study survives; `resume` goes on with it.
    name : str
        Name of the study in that file.
    origin : dict of str, optional
        What the file shall remember of the simulator.
    units : Units, optional
        What rewards in [0, 1], states and actions mean to you. Then epsilon, and all that is reported of ε and gaps,
        is in your own units.
    own_data : Tally, optional
        Samples from elsewhere, of pairs that were chosen without regard to outcomes (a log of transitions, say:
        `Tally.from_samples`). They help to certify, where the algorithm's rule allows it, and cost no samples.
    start : int or array (S,), optional
        Claim something of this start state, or of this distribution over states, only, which can take fewer samples
        (algorithm "sharp"). A policy that is good from there may be bad elsewhere. Every state by default.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        epsilon: float,
        delta: float,
        algorithm: str | Algorithm | None = None,
        seed: int | None = None,
        max_samples: int | None = None,
        calls_per_query: int | None = None,
        store: str | PathLike[str] | None = None,
        name: str = "study",
        origin: dict[str, str] | None = None,
        units: Units | None = None,
        own_data: Tally | None = None,
        start: int | ArrayLike | None = None,
        **gone: Any,
    ) -> None:
        if gone:
            raise InvalidInput(_replaced(gone))
        if own_data is not None and not isinstance(own_data, Tally):
            raise InvalidInput(f"own_data must be a Tally (see Tally.from_samples). Got {own_data!r} instead.")
        _require_problem(problem)
        if units is not None:
            of_type("units", units, Units)
        if origin is not None:
            of_type("origin", origin, dict)
            for text in (*origin, *origin.values()):
                of_type("each of origin", text, str)
        found = find_algorithm(algorithm, problem)
        settings = Settings(
            epsilon,
            delta,
            found.name,
            parameters_of(found),
            secrets.randbits(63) if seed is None else seed,
            max_samples,
            calls_per_query,
            units or Units(),
            origin or {},
            start=start,  # type: ignore[arg-type]
        )
        _require_start(problem, settings, found)
        self._set_up(problem, settings, found, name)
        if own_data is not None and not self.algorithm.takes_own_data:
            able = ", ".join(repr(name) for name, kind in ALGORITHMS.items() if kind.takes_own_data)
            raise InvalidInput(
                f"algorithm {self.algorithm.name!r} cannot use own data: its proof is about samples of its own choice. "
                f"Use one of {able}, or leave own_data out."
            )
        try:
            self._start(own_data, None if store is None else file_path("store", store))
        except BaseException:
            self.close()
            raise

    def _set_up(self, problem: Problem, settings: Settings, algorithm: Algorithm, name: str) -> None:
        """Take what was checked; nothing runs yet."""
        self.problem, self.settings, self.algorithm, self.name = problem, settings, algorithm, word("name", name)
        require(check_features(problem))

        self.checks: list[Check] = []
        self.samples = 0
        self.outcome = Outcome.RUNNING
        self.stop_requested = False
        self._started = time.monotonic()
        self._seconds: float | None = None
        self._run: Run | None = None
        self._past = Past()
        self._request: Asked | None = None  # the latest one of the algorithm, whatever the budget
        self._requests = 0  # how many there were
        self._unsaved: list[tuple[int, Asked]] = []
        self._batch = Batch()
        self._asked = 0
        self._replaying = False
        self._store: str | PathLike[str] | None = None
        self._file: StudyFile | None = None
        self._ended_chain: dict[str, Any] | None = None
        self._saved = 0  # number of checks in the file
        self._end_saved = False
        self._last_check: Check | None = None
        self._own_samples = 0

    def _start(self, own_data: Tally | None, store: str | PathLike[str] | None = None) -> None:
        """Let the algorithm say what it wants first, and then begin the study in the store."""
        self._own_samples = 0 if own_data is None else own_data.samples
        stream = np.random.SeedSequence(self.seed, spawn_key=(0,))
        # Every policy is within the largest value of optimal: no algorithm has to cope with a larger ε.
        asked, scale = min(self.settings.epsilon, float(self.problem.value_limits[0])), self.units.reward_scale
        rng, memory = np.random.default_rng(stream), iter(self._past.memory(scale))
        begin = start_distribution(self.problem, self.settings)
        self._run = self.algorithm.run(Task(self.problem, asked, self.delta, rng, own_data, scale, memory, begin))
        if not (self.problem.distinct.sum(axis=1) > 1).any():
            self._record(_nothing_to_choose(self.problem))
            self.stop(Outcome.CERTIFIED)
        else:
            self._advance(None)
        if store is not None:  # last of all: a study that could not begin leaves no trace
            self._file = StudyFile.create(store, self.name, self.problem, self.settings, own_data)
            self._store = store
            self._save()

    @classmethod
    def resume(
        cls,
        store: str | PathLike[str],
        name: str | None = None,
        *,
        algorithm: str | Algorithm | None = None,
        max_samples: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Study:
        """Go on with a study from its file, exactly where it was.

        A study that has ended answers from the file at once. Otherwise its answers are added up again, and what was
        decided from them is taken from the file: that takes about as long as one look at the data, on any machine.
        (Competitors' algorithms are replayed, which takes the time of all their looks.)

        Parameters
        ----------
        store : path
        name : str, optional
            Needed if the file has several studies.
        algorithm : str or Algorithm, optional
            Needed if the study's algorithm is not one of ours.
        max_samples : int, optional
            A new budget, what was used so far included; the old one by default.
        progress : callable, optional
            Called as ``progress(answers replayed, answers in all)``.
        """
        store = file_path("store", store)
        with Store(store) as reader:
            number = reader.find(name)
            record = reader.read(number)
        _check_budget(max_samples, record)
        study = cls._from_record(record, algorithm, max_samples)
        study._store, study._ended_chain = store, record.chain
        if _has_ended(record, max_samples) and len(record.trace) == len(record.checks):
            study._own_samples = 0 if record.own_data is None else record.own_data.samples
            study._end_as(record)
            return study
        file = StudyFile.open(store, number, record)
        try:
            with one_thread():
                study._replay(record, progress)
        except BaseException:
            file.close()
            raise
        study._file = file
        if study.done:
            study._save()
        elif study.settings != record.settings:
            file.append(_settings_row(study.settings))
        return study

    @classmethod
    def _from_record(cls, record: Record, algorithm: str | Algorithm | None, max_samples: int | None) -> Study:
        settings, problem = record.settings, record.problem
        if algorithm is None or (isinstance(algorithm, str) and algorithm == settings.algorithm):
            try:
                chosen = make_algorithm(settings.algorithm, settings.parameters)
            except InvalidInput as error:
                raise InvalidInput(f"{error} If it is your own, pass it: Study.resume(..., algorithm=...).") from None
        else:
            chosen = find_algorithm(algorithm, problem)
            given = json.loads(json.dumps(parameters_of(chosen)))  # as the file has them
            if (chosen.name, given) != (settings.algorithm, settings.parameters):
                raise InvalidInput(
                    f"the study was begun with algorithm {settings.algorithm!r} and {settings.parameters}. "
                    f"Got {chosen.name!r} with {given} instead; pass the same, or leave it out."
                )
        study = cls.__new__(cls)
        if max_samples is not None:
            settings = replace(settings, max_samples=max_samples)
        study._set_up(problem, settings, chosen, record.name)
        return study

    def _end_as(self, record: Record) -> None:
        """Take over the end of a study from its file."""
        assert record.result is not None
        self.checks, self.samples = list(record.trace), record.samples
        self.outcome, self._seconds = Outcome(record.result["outcome"]), float(record.result["seconds"])

    def _replay(self, record: Record, progress: Callable[[int, int], None] | None = None) -> None:
        """Add up the stored answers request by request, and then ask under the present budget."""
        told = deque(record.told())
        answers = len(told)
        self._past = Past.of(record, told)
        self._replaying = True
        with self._damage():
            self._start(record.own_data)
        for first, following in self._past.complete:
            batch = Batch()
            while told and told[0][0] < following:
                query, _, tally = told.popleft()
                batch.add(query, tally)
                self._asked = max(first, self._asked, query + 1)
            if not batch.begun:
                raise StoreError(
                    f"the answers to query {first} are missing: the file is damaged. Take a copy that is whole."
                )
            with self._damage():
                whole = batch.total()
                self.samples += whole.samples
                self._advance(whole)
            if progress is not None:
                progress(answers - len(told), answers)
        while told and not self.done:
            index, attempt, tally = told.popleft()
            current = self._batch.waiting.get(index)
            try:
                if current is None or attempt != current.attempt:
                    raise InvalidInput("it was not asked for.")
                rest = None if current.pulls.answered_by(tally) else current.pulls.minus(tally)
            except InvalidInput as error:
                raise StoreError(
                    f"the stored answer to query {index} does not fit: other versions may have written it ({error})"
                ) from None
            with self._damage():
                self._accept(current, tally, rest)
            if progress is not None:
                progress(answers - len(told), answers)
        self._replaying = False
        self._saved = 0 if self._past.rebuilt else min(len(self._past.checks), len(self.checks))
        if self.done:
            return
        if not self._batch.begun:  # nothing of the last batch was answered: it may be cut to the budget anew
            self._asked -= len(self._batch.waiting)
            self._issue()
        elif self.max_samples is not None and self.samples + self._batch.missing > self.max_samples:
            self.stop(Outcome.BUDGET)

    def _damage(self) -> AbstractContextManager[None]:
        """Where one of our algorithms fails at what its file remembers, that is to blame."""
        ours = type(self.algorithm) is ALGORITHMS.get(self.algorithm.name)
        return damage("what the file remembers of the run") if ours else nullcontext()

    def _proof(self) -> Proof | None:
        """Add up a study that has ended for what proves its last check."""
        assert self._store is not None
        with Store(self._store) as reader:
            record = reader.read(reader.find(self.name))
        again = self._from_record(record, self.algorithm, None)
        again._replay(record)
        return again.checks[-1].proof if again.checks else None

    @property
    def asked_epsilon(self) -> float:
        """What was asked, in the user's units."""
        return self.settings.asked_epsilon

    @property
    def delta(self) -> float:
        """Allowed probability of error."""
        return self.settings.delta

    @property
    def seed(self) -> int:
        """Seed of all random streams."""
        return self.settings.seed

    @property
    def max_samples(self) -> int | None:
        """Budget of simulator calls."""
        return self.settings.max_samples

    @property
    def units(self) -> Units:
        """What the problem's numbers mean to the user."""
        return self.settings.units

    @property
    def warnings(self) -> tuple[str, ...]:
        """What casts doubt on the guarantee."""
        return self.settings.doubts

    def warn(self, *warnings: str) -> None:
        """Remember what casts doubt on the guarantee, for the result."""
        self._change(warnings=(*self.settings.warnings, *warnings))

    def note_failure(self) -> None:
        """Remember that a query failed and is simulated again: if outcomes made it fail, the samples are biased."""
        self._change(failures=self.settings.failures + 1)

    def _change(self, **changes: Any) -> None:
        """Change settings, also in the file."""
        changed = replace(self.settings, **changes)
        if self._file is not None and changed != self.settings:
            self._file.append(_settings_row(changed))
        self.settings = changed

    def __repr__(self) -> str:
        return f"Study({self.algorithm.name} on {self.problem!r}: {self.samples} samples, {self.outcome})"

    @property
    def done(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.outcome is not Outcome.RUNNING

    def ask(self) -> list[Query]:
        """Return the queries whose answers are awaited (the same ones until they are told)."""
        return [] if self.done else list(self._batch.waiting.values())

    def tell(self, query: Query, tally: Tally, *, partial: bool = False) -> None:
        """Hand in what was measured for a query.

        Parameters
        ----------
        query : Query
            One of those that `ask` returned. Telling a query again that was already told changes nothing.
        tally : Tally
            Exactly the pulls that were asked for.
        partial : bool
            Accept fewer: they are kept, and `ask` then returns the rest of the query.
        """
        if not isinstance(query, Query) or not 0 <= query.index < self._asked or query.seed != self.seed:
            shown = f"query {query.index}" if isinstance(query, Query) else repr(query)
            raise InvalidInput(f"{shown} was never asked. Tell only what this study's ask() returned.")
        current = self._batch.waiting.get(query.index)
        if current is None or query.attempt < current.attempt or self.done:
            return
        check_tally(self.problem, tally)
        rest = None if current.pulls.answered_by(tally) else current.pulls.minus(tally)
        if rest is not None and rest.total and not partial:
            raise InvalidInput(
                f"query {query.index} asked for {current.pulls.total} samples, the tally has {tally.samples}. "
                "Tell all of them, or pass partial=True to be asked for the rest."
            )
        if self._file is not None:  # first of all: if that fails, nothing has happened
            self._file.append(answered(query.index, query.attempt, tally_to_bytes(tally)))
        self._accept(current, tally, rest)
        self._save()

    def _accept(self, query: Query, tally: Tally, rest: Pulls | None) -> None:
        self.samples += tally.samples
        whole_batch = self._batch.accept(query, tally, rest)
        if whole_batch is not None:
            self._advance(whole_batch)

    def request_stop(self) -> None:
        """Ask whoever drives the study to stop it once the query in flight is answered; safe in a signal handler."""
        self.stop_requested = True

    def stop(self, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End the study now; `result` then says what is certified so far."""
        if not self.done:
            self.outcome = outcome
            self._seconds = time.monotonic() - self._started
            if self._run is not None:
                self._run.close()
            self._save()

    def result(self) -> Result:
        """Return what is known now, certified or not."""
        last = self.checks[-1] if self.checks else None
        policy = last.policy if last else np.tile(self.problem.mask.argmax(axis=1), (self.problem.stages, 1))
        restored = self._run is None
        forecast, where = self.forecast(), self.settings.where
        explanation = explain(self.outcome, last, self.delta, self.max_samples, forecast, self._unfit_batch(), where)
        return Result(
            algorithm=self.algorithm.name,
            asked_epsilon=self.asked_epsilon,
            delta=self.delta,
            policy=self.units.policy(policy)[0] if self.problem.horizon is None else self.units.policy(policy),
            certified=self.outcome is Outcome.CERTIFIED,
            epsilon=last.epsilon if last else inf,
            outcome=self.outcome,
            explanation=" BUT IN DOUBT: ".join([explanation, *self.warnings]),
            rounds=self.samples // self.problem.stages,
            samples=self.samples,
            statistic=last.statistic if last else 0.0,
            threshold=last.threshold if last else inf,
            gap=last.gap if last else inf,
            rule=last.rule if last else "",
            seed=self.seed,
            seconds=time.monotonic() - self._started if self._seconds is None else self._seconds,
            checks=tuple(self.checks),
            warnings=self.warnings,
            where=self.settings.where,
            origin=Origin(
                self.problem,
                self.settings,
                self._store,
                partial(count_attempts, self._store, self.problem.fingerprint),
                self._own_samples,
                self._proof if restored else None,
                self._ended_chain if self._file is None else self._file.chain,
            ),
        )

    def forecast(self) -> float:
        """Simulator calls that the whole run should need, judged by its checks; nan if it is too early to tell."""
        return forecast(self.settings, self.algorithm, self.problem, self.checks)

    def _advance(self, tally: Tally | None) -> None:
        """Give the algorithm its tally and see what it wants next."""
        assert self._run is not None
        try:
            with one_thread():
                if tally is None:
                    request = next(self._run)
                else:
                    assert self._request is not None
                    # A simulator may list pairs that it did not sample.
                    request = self._run.send(tally.at(self._request.pulls.pairs))
        except StopIteration as end:
            check: Check = end.value
            self._record(check)
            unproved = Outcome.NO_GUARANTEE if self.algorithm.about.guarantee == "none" else Outcome.GAVE_UP
            self.stop(Outcome.CERTIFIED if check.passed else unproved)
            return
        if request.check is not None:
            self._record(request.check)
        position, self._requests = self._requests, self._requests + 1
        known = self._past.request(position)
        if known is not None and not self.algorithm.anytime and not known.pulls.equals(request.pulls):
            # A proof about batches of certain sizes says nothing of others.
            raise StoreError(
                f"the study asked for {known.pulls.total} simulator calls where algorithm {self.algorithm.name!r} asks "
                f"for {request.pulls.total} now: other versions may have written it. Begin it anew."
            )
        self._request = known or Asked(self._asked, len(self.checks), request.pulls, request.decided)
        if known is None:
            self._unsaved.append((position, self._request))
        elif self._past.rebuilt:  # what was decided has not been stored yet
            self._request = replace(known, looks=len(self.checks), decided=request.decided)
            self._unsaved.append((position, self._request))
        if position >= len(self._past.complete):
            self._issue()

    def _issue(self) -> None:
        """Ask what the algorithm wants, as far as the budget goes."""
        assert self._request is not None
        limit = self.settings.budget_at(self._asked) if self._replaying else self.max_samples
        pulls = self._request.pulls
        if limit is not None:
            pulls = cut(pulls, limit - self.samples, self.algorithm.anytime)
        if pulls.total == 0:
            self._batch = Batch()
            if not self._replaying:
                self.stop(Outcome.BUDGET)
            return
        if not self._replaying and self.settings.budgets[-1][1] != limit:
            self._change(budgets=(*self.settings.budgets, (self._asked, limit)))
        if pulls.total // (self.settings.calls_per_query or pulls.total) > _MOST_QUERIES:
            raise InvalidInput(
                f"calls_per_query must be larger: {self.settings.calls_per_query} would make more than "
                f"{_MOST_QUERIES:,} queries of the {pulls.total:,} simulator calls that are wanted now."
            )
        parts = pulls.split(self.settings.calls_per_query)
        self._batch = Batch(Query(self._asked + i, part, self.seed) for i, part in enumerate(parts))
        self._asked += len(parts)

    def _unfit_batch(self) -> str:
        """Name the batch that did not fit into the budget; a run that can be cut short spends what there is."""
        if self._request is None or (self.algorithm.anytime and self.samples):
            return ""
        return f"The {'next' if self.samples else 'first'} batch of {self._request.pulls.total} simulator calls"

    def _save(self) -> None:
        """Store new checks and requests, and the result if the study is over."""
        if self._file is None or self._end_saved:
            return
        if self.done or self._unsaved or self._saved < len(self.checks):
            rows = [*rows_of_checks(self.checks, self._saved)]
            rows += [request.row(position) for position, request in self._unsaved]
            if self.done:
                rows.append(("ended", json.dumps(self.result().to_dict()).encode()))
            self._file.append(*rows)
            self._saved, self._unsaved, self._end_saved = len(self.checks), [], self.done
            if self.done:
                self.close()

    def reopen(self) -> None:
        """Take the file again after `close`, if there is one and the study is not done; telling more does it, too."""
        if self._file is not None and not self.done:
            self._file.append()

    def close(self) -> None:
        """Let go of the file, if there is one: the study in it can be resumed. To tell this one more takes it again."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    def _record(self, check: Check) -> None:
        if check is self._last_check:  # an algorithm may ask more before it looks again
            return
        self._last_check = check
        policy = check.policy
        if self.checks:
            if np.array_equal(self.checks[-1].policy, policy):
                policy = self.checks[-1].policy  # most policies of a trace are one and the same
            # A check carries over what was certified before it, so only the last one needs its proof.
            self.checks[-1] = replace(self.checks[-1], proof=None)
        scale = self.units.reward_scale
        self.checks.append(replace(check, policy=policy, epsilon=check.epsilon * scale, gap=check.gap * scale))


def start_distribution(problem: Problem, settings: Settings) -> FloatArray | None:
    """Return the distribution over states that a claim is about; None if it is about every state."""
    if settings.start is None:
        return None
    if isinstance(settings.start, tuple):
        return np.array(settings.start)
    single = np.zeros(problem.states)
    single[settings.start] = 1.0
    return single


def _require_start(problem: Problem, settings: Settings, algorithm: Algorithm) -> None:
    start = settings.start
    if start is None:
        return
    if not getattr(algorithm, "takes_start", False):
        raise InvalidInput(
            f"start is not for algorithm {algorithm.name!r}, whose claims are about every state. Leave it out, or use "
            "'sharp' (for problems whose pairs share no features)."
        )
    if (len(start) != problem.states) if isinstance(start, tuple) else (start >= problem.states):
        raise InvalidInput(
            f"start must be one of the states 0 to {problem.states - 1}, or a distribution over them. Got "
            f"{f'{len(start)} numbers' if isinstance(start, tuple) else start} instead."
        )


def _settings_row(settings: Settings) -> tuple[str, bytes]:
    return "settings", json.dumps(settings.to_dict()).encode()


def _require_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise InvalidInput(f"problem must be a Problem. Got {type(problem).__name__} instead.")


def _replaced(gone: dict[str, Any]) -> str:
    """Say what replaces arguments that are no more, or that never were."""
    name = next(iter(gone))
    if name in ("reward_scale", "reward_offset", "labels"):
        return (
            f"{name} is part of units now: Study(..., units=bestpolicy.Units(reward_scale=…, reward_offset=…, "
            "states=[…], actions=[…]))."
        )
    known = (*inspect.signature(Study).parameters,)[1:-1]
    return f"Study has no argument {name!r}. It takes {', '.join(known)}.{did_you_mean(name, known)}"


def _has_ended(record: Record, max_samples: int | None) -> bool:
    """Whether nothing more is to be simulated, so that the file knows everything."""
    if record.result is None:
        return False
    if record.result["outcome"] == Outcome.BUDGET:
        return max_samples is None or max_samples == record.settings.max_samples
    return record.result["outcome"] in (Outcome.CERTIFIED, Outcome.GAVE_UP, Outcome.NO_GUARANTEE)


def _check_budget(max_samples: int | None, record: Record) -> None:
    if max_samples is not None and whole("max_samples", max_samples, 1) < record.samples:
        raise InvalidInput(
            f"max_samples must be at least {record.samples}, what the study has used so far: it is the budget of the "
            f"whole study. Got {max_samples} instead."
        )


def _nothing_to_choose(problem: Problem) -> Check:
    """Without a state that has two distinct actions every policy is optimal, and no sample is needed."""
    policy = np.tile(problem.mask.argmax(axis=1), (problem.stages, 1))
    return Check(0, 0, policy, inf, 0.0, True, 0.0, inf, "no state has two distinct actions", proof=Proof("no choice"))
