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
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from math import inf
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.inputs import file_path, of_type, whole, word
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import (
    ALGORITHMS,
    Algorithm,
    Choice,
    find_algorithm,
    is_default,
    make_algorithm,
    parameters_of,
)
from bestpolicy.algorithms.protocol import Request, Run, Task
from bestpolicy.certificate import Origin
from bestpolicy.diagnostics.assumptions import check_features, require
from bestpolicy.errors import InvalidInput, StoreError, did_you_mean
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.feature_policy import FeaturePolicy
from bestpolicy.problem.units import Units
from bestpolicy.samples import Pulls, Tally, Wanted
from bestpolicy.stopping import Check
from bestpolicy.stopping.hull import per_misfit
from bestpolicy.stopping.rule import Proof
from bestpolicy.study.checked import require_problem, settings_of, start_distribution, too_many
from bestpolicy.study.feature_result import FeatureResult
from bestpolicy.study.forecast import Outlook, Pace, in_time, outlook
from bestpolicy.study.journal import Asked, Record, answered, damage, pack, rows_of_checks, tally_to_bytes
from bestpolicy.study.linearity import Linearity, LinearityTest
from bestpolicy.study.misfit import NO_TIME, FeatureMisfit
from bestpolicy.study.past import Past
from bestpolicy.study.patience import TimeUp, patiently
from bestpolicy.study.queries import FIRST_OF_TEST, Batch, Query, check_tally
from bestpolicy.study.result import FINAL, Outcome, Result, at_least, explain, so_far
from bestpolicy.study.settings import Settings
from bestpolicy.study.store import Store, StudyFile, count_attempts

_MOST_QUERIES = 10**6  # that one request may be split into


class Study:
    """A run whose loop belongs to the caller.

    Parameters
    ----------
    problem : Problem
    epsilon : float or str
        The policy shall be within `epsilon` ≥ 0 of optimal; 0 asks for an optimal policy. A share such as "5%" is one
        of the range that values can take: (high - low)/(1 - discount) or (high - low)·horizon, for rewards from low to
        high; "5% of V*" is one of the largest |V*|, which the run finds out (for tables, with "sharp").
    delta : float
        Allowed probability of error, in (0, 1).
    algorithm : str or Algorithm, optional
        By default, or if it is "auto", the one that fits the problem: "sharp", or "adaptive" with samples from
        elsewhere (`bestpolicy.algorithms.default_name`). The paper's own are "gss" and "gss-e".
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
        (algorithm "sharp"). A policy that is good from there may be bad elsewhere. Every state by default; wherever the
        simulator itself begins, if the algorithm follows trajectories.
    largest_batch : float, optional
        Refuse to begin if the first batch of the algorithm is of more simulator calls than this.
    linearity : float, optional
        Whether rewards and transitions are linear in the features is tested while the run goes on, unless the features
        are one-hot: with as many calls as the claim needs, and at least this share of the algorithm's. Features that
        do not fit end the run with the outcome "in doubt"; of those that fit, one run in a hundred at most. 0.05 by
        default, 0 for no test.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        epsilon: float | str,
        delta: float,
        algorithm: str | Algorithm | Choice | None = None,
        seed: int | None = None,
        max_samples: int | None = None,
        calls_per_query: int | None = None,
        store: str | PathLike[str] | None = None,
        name: str = "study",
        origin: dict[str, str] | None = None,
        units: Units | None = None,
        own_data: Tally | None = None,
        start: int | ArrayLike | None = None,
        largest_batch: float | None = None,
        linearity: float | None = None,
        **gone: Any,
    ) -> None:
        if gone:
            raise InvalidInput(_replaced(gone))
        if own_data is not None and not isinstance(own_data, Tally):
            raise InvalidInput(f"own_data must be a Tally (see Tally.from_samples). Got {own_data!r} instead.")
        require_problem(problem)
        if units is not None:
            of_type("units", units, Units)
        if origin is not None:
            of_type("origin", origin, dict)
            for text in (*origin, *origin.values()):
                of_type("each of origin", text, str)
        settings, found = settings_of(
            problem,
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            seed=seed,
            max_samples=max_samples,
            calls_per_query=calls_per_query,
            units=units,
            origin=origin,
            start=start,
            own_data=own_data is not None,
            linearity=linearity,
        )
        self._set_up(problem, settings, found, name)
        if own_data is not None and not self.algorithm.takes_own_data:
            able = ", ".join(repr(name) for name, kind in ALGORITHMS.items() if kind.takes_own_data)
            raise InvalidInput(
                f"algorithm {self.algorithm.name!r} cannot use own data: its proof is about samples of its own choice. "
                f"Use one of {able}, or leave own_data out."
            )
        try:
            self._start(own_data, None if store is None else file_path("store", store), largest_batch)
        except BaseException:
            self.close()
            raise

    def _set_up(self, problem: Problem, settings: Settings, algorithm: Algorithm, name: str) -> None:
        """Take what was checked; nothing runs yet."""
        self.problem, self.settings, self.algorithm, self.name = problem, settings, algorithm, word("name", name)
        if isinstance(problem, Problem):
            require(check_features(problem))

        self.checks: list[Check] = []
        self.samples = self.broken_episodes = 0
        self.outcome = Outcome.RUNNING
        self.stop_requested = False
        self._cut_short = False  # whether a look at the data was
        self.unfinished = 0  # calls of a query under way that are on record
        self._started = time.monotonic()
        self._driven = self._started  # since when this process drives it
        self._looks = (0, 0.0, 0.0)  # how many, the seconds of all, of the last one
        self._began_with = 0  # samples that were there when this process began
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
        self._measured: Tally | None = None
        self._largest_batch = inf  # of the first request
        self.largest_plan = inf  # calls that a run may need; whoever drives it ends it if more are in sight
        self._linearity = LinearityTest(problem, settings, [])
        self._tested_alone: int | None = None  # rounds of the test since the algorithm was done
        self._known_linearity: Linearity | None = None  # of a study that had ended
        self._fit: FeatureMisfit | str | None = None  # of a feature map, or why it was not tested

    def _start(
        self, own_data: Tally | None, store: str | PathLike[str] | None = None, largest_batch: float | None = None
    ) -> None:
        """Let the algorithm say what it wants first, and then begin the study in the store."""
        self._own_samples, self._measured = 0 if own_data is None else own_data.samples, own_data
        self._largest_batch = inf if largest_batch is None else largest_batch
        stream = np.random.SeedSequence(self.seed, spawn_key=(0,))
        # Every policy is within the largest value of optimal: no algorithm has to cope with a larger ε.
        most, scale = min(self.settings.epsilon, float(self.problem.value_limits[0])), self.units.reward_scale
        rng, memory = np.random.default_rng(stream), iter(self._past.memory(scale, self.settings.truncation_loss))
        begin = start_distribution(self.problem, self.settings)
        offset = self.units.reward_offset * float(self.problem.value_limits[0]) / scale
        given = Task(self.problem, most, self.delta, rng, own_data, scale, memory, begin, self.settings.share, offset)
        self._run = self.algorithm.run(given)
        if not self.problem.has_choice:
            self._record(_nothing_to_choose(self.problem))
            self.stop(Outcome.CERTIFIED)
        else:
            try:
                self._advance(None)
            except TimeUp:
                if self._replaying:
                    raise
                self.stop(Outcome.TIME)  # nothing was asked yet, so there is nothing to store
                return
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
        max_samples: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        problem: FeatureProblem | None = None,
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
            A new budget, what was used so far included; the old one by default, none if it is `math.inf`.
        progress : callable, optional
            Called as ``progress(answers replayed, answers in all)``.
        problem : FeatureProblem, optional
            Needed if the study's problem has functions of yours, which no file can hold.
        """
        store = file_path("store", store)
        with Store(store) as reader:
            number = reader.find(name)
            record = reader.read(number)
        if problem is not None:
            record.knowing(problem.in_units(record.settings.units))  # type: ignore[arg-type]
        budget = _checked_budget(max_samples, record)
        study = cls._from_record(record, algorithm, budget)
        study._store, study._ended_chain = store, record.chain
        if _has_ended(record, budget) and len(record.trace) == len(record.checks):
            study._own_samples = 0 if record.own_data is None else record.own_data.samples
            study._end_as(record)
            return study
        file = StudyFile.open(store, number, record)
        try:
            with one_thread():
                study._replay(record, progress)
        except TimeUp:
            file.close()
            return cls._from_record(record, algorithm, budget)._out_of_time(record, store)
        except BaseException:
            file.close()
            raise
        study._file = file
        if study.settings != record.settings and (not study.done or study.outcome is Outcome.DOUBT):
            file.append(_settings_row(study.settings))
        if study.done:
            study._save()
        return study

    @classmethod
    def _from_record(cls, record: Record, algorithm: str | Algorithm | None, budget: int | None) -> Study:
        settings, problem = record.settings, record.problem
        if is_default(algorithm) or (isinstance(algorithm, str) and algorithm == settings.algorithm):
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
        study, settings = cls.__new__(cls), replace(settings, max_samples=budget)
        study._set_up(problem, settings, chosen, record.name)
        return study

    def _end_as(self, record: Record) -> None:
        """Take over the end of a study from its file."""
        assert record.result is not None
        self.checks, self.samples = list(record.trace), record.samples
        self.broken_episodes = int(record.result.get("broken_episodes", 0))
        self.outcome, self._seconds = Outcome(record.result["outcome"]), float(record.result["seconds"])
        if "linearity" in record.result:
            with damage("what was found of the features"):
                self._known_linearity = Linearity.from_dict(record.result["linearity"])
        if isinstance(self.problem, FeatureProblem):
            with damage("what was found of the features"):
                known = record.result.get("misfit")
                self._fit = record.result.get("untested") if known is None else FeatureMisfit.from_dict(known)

    def _out_of_time(self, record: Record, store: str) -> Study:
        """Be over before anything could go on: what is stored stays as it is."""
        self._store, self._ended_chain = store, record.chain
        self.checks, self.samples = list(record.trace), record.samples
        self.outcome, self._seconds, self._cut_short = Outcome.TIME, 0.0, True
        return self

    def _replay(self, record: Record, progress: Callable[[int, int], None] | None = None) -> None:
        """Add up the stored answers request by request, and then ask under the present budget."""
        told, tested = deque(record.told()), deque(record.told(of_test=True))
        answers = len(told)
        self._past = Past.of(record, told)
        self._replaying = True
        with damage("a round of the test of the features"):
            self._linearity = LinearityTest(self.problem, self.settings, record.rounds)
        with self._damage():
            self._start(record.own_data)
        for position, (first, following) in enumerate(self._past.complete):
            batch = Batch()
            while told and told[0][0] < following:
                query, _, tally = told.popleft()
                batch.add(query, tally)
                self._asked = max(first, self._asked, query + 1)
            if not batch.begun:
                raise StoreError(
                    f"the answers to query {first} are missing: the file is damaged. Take a copy that is whole."
                )
            with damage("a round of the test of the features"):
                self.samples += self._linearity.settle_again(position, tested)
            with self._damage():
                whole = batch.total()
                assert whole is not None
                self.samples += whole.samples
                self.broken_episodes += whole.broken_episodes
                self._advance(whole)
            if progress is not None:
                progress(answers - len(told), answers)
        told += tested
        while told and not self.done:
            index, attempt, tally = told.popleft()
            current = self._batch.waiting.get(index)
            try:
                if current is None or attempt != current.attempt:
                    raise InvalidInput("it was not asked for.")
                rest = None if current.wanted.answered_by(tally) else current.wanted.minus(tally)
            except InvalidInput as error:
                raise StoreError(
                    f"the stored answer to query {index} does not fit: other versions may have written it ({error})"
                ) from None
            with self._damage():
                self._accept(current, tally, rest)
            if progress is not None:
                progress(answers - len(told), answers)
        self._replaying, self._began_with, self._driven = False, self.samples, time.monotonic()
        self._saved = 0 if self._past.rebuilt else min(len(self._past.checks), len(self.checks))
        if self.done:
            return
        if not self._batch.begun:  # nothing of the last batch was answered: it may be cut to the budget anew
            self._asked -= sum(not query.tests for query in self._batch.waiting.values())
            self._go_on()
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
        record.knowing(self.problem)
        again = self._from_record(record, self.algorithm, record.settings.max_samples)
        again._replay(record)
        return again.checks[-1].proof if again.checks else None

    def _all_samples(self) -> Tally | None:
        """Add up all answers, which a study that had ended has in its file alone."""
        if self._run is not None or self._store is None:
            return self._measured
        with Store(self._store) as reader:
            record = reader.read(reader.find(self.name))
        if not record.is_listed:
            return None
        parts = [*([] if record.own_data is None else [record.own_data]), *(tally for _, _, tally in record.told())]
        return Tally.total(parts) if parts else None

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

    @property
    def linearity(self) -> Linearity | None:
        """What was tested of the features so far; None if nothing is."""
        return self._known_linearity or self._linearity.summary(self.units)

    @property
    def fit_is_known(self) -> bool:
        """Whether the feature map was tested, or could not be."""
        return self._fit not in (None, NO_TIME)

    def know_fit(self, found: FeatureMisfit | str) -> None:
        """Take what was found of a feature map after a certificate, or why it was not tested, also into the file.

        If the features do not fit then the outcome becomes "in doubt".
        """
        if self._store is not None and self._file is None:  # it had ended before
            with Store(self._store) as reader:
                number = reader.find(self.name)
                self._file = StudyFile.open(self._store, number, reader.read(number))
        self._fit = found
        if isinstance(found, FeatureMisfit):
            self.samples += found.calls
            if found.in_doubt:
                self.warn(found.sentence)
                self.outcome = Outcome.DOUBT
        if self._file is not None:
            self._file.append(("ended", json.dumps(self.result().to_dict()).encode()))
            self.close()

    def warn(self, *warnings: str) -> None:
        """Remember what casts doubt on the guarantee, for the result."""
        self._change(warnings=(*self.settings.warnings, *warnings))

    def name_states(self, names: list[Any] | None) -> None:
        """Remember the names of states, for a simulator that numbers them as they appear."""
        if names != self.units.states:
            own = None if names is None else max(1, sum(name is not None for name in names[:-1]))
            self._change(units=replace(self.units, states=names, own_states=own))

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
        if not isinstance(query, Query) or not self._was_asked(query.index) or query.seed != self.seed:
            shown = query.name if isinstance(query, Query) else repr(query)
            raise InvalidInput(f"{shown} was never asked. Tell only what this study's ask() returned.")
        current = self._batch.waiting.get(query.index)
        if current is None or query.attempt < current.attempt or self.done:
            return
        check_tally(self.problem, tally, current.wanted)
        rest = None if current.wanted.answered_by(tally) else current.wanted.minus(tally)
        if rest is not None and rest.total and not partial:
            raise InvalidInput(
                f"{query.name} asked for {current.wanted.total} samples, the tally has {tally.samples}. "
                "Tell all of them, or pass partial=True to be asked for the rest."
            )
        if self._file is not None:  # first of all: if that fails, nothing has happened
            self._file.append(answered(query.index, query.attempt, tally_to_bytes(tally)))
        self._accept(current, tally, rest)
        self._save()

    def _accept(self, query: Query, tally: Tally, rest: Wanted | None) -> None:
        self.samples += tally.samples
        self.broken_episodes += tally.broken_episodes
        if not self._batch.accept(query, tally, rest):
            return
        own, of_test = self._batch.total(), self._batch.total(of_test=True)
        if of_test is not None:
            self._linearity.settle(of_test)
            if self._linearity.in_doubt:
                self._doubt()
                return
        if own is not None:
            self._advance(own)
        else:
            assert self._tested_alone is not None
            self._tested_alone += 1
            self._go_on()

    def _was_asked(self, index: int) -> bool:
        return 0 <= index < self._asked or FIRST_OF_TEST <= index < self._linearity.asked

    def _doubt(self) -> None:
        """End, because the features do not fit."""
        found = self.linearity
        assert found is not None
        if found.sentence not in self.settings.warnings:
            self.warn(found.sentence)
        self.stop(Outcome.DOUBT)

    def request_stop(self) -> None:
        """Ask whoever drives the study to stop it once the query in flight is answered; safe in a signal handler."""
        self.stop_requested = True

    def stop(self, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End the study now; `result` then says what is certified so far."""
        if not self.done:
            self.outcome = outcome
            self._seconds = time.monotonic() - self._started
            if self._run is not None:
                with suppress(ValueError):  # it may be at a look that nobody waits for any longer
                    self._run.close()
            self._save()

    def result(self) -> Result:
        """Return what is known now, certified or not."""
        last = self.checks[-1] if self.checks else None
        policy = last.policy if last else self.problem.any_policy
        restored = self._run is None
        ahead, where = self.outlook(), self.settings.where
        explanation = explain(
            self.outcome,
            last,
            self.delta,
            self.max_samples,
            ahead,
            self._unfit_batch(),
            where,
            self.asked_epsilon,
            self._per_misfit,
        )
        if self.settings.share and self.outcome is Outcome.CERTIFIED and last is not None:
            explanation += (
                f" That is at most {100 * self.settings.share:g} % of the largest |V*|, which is at least "
                f"{at_least(last.value_floor)}."
            )
        if self.settings.truncation_loss and last and last.epsilon < inf:
            explanation += f" {self.settings.truncation}"
        if ahead.low > self.largest_plan and self.outcome is Outcome.BUDGET:
            days = self.pace.seconds(self.checks, ahead.low)
            explanation = (
                f"The run ended early: it should need {ahead} calls of your simulator, {in_time(days)} or more; "
                f"{so_far(last, where, self._per_misfit)}. Ask for a larger epsilon; if you mean it, give max_samples= "
                "(a budget) or largest_batch=math.inf."
            )
        tested = self.linearity
        if tested is not None and not tested.in_doubt and last is not None:
            explanation += f" {tested.sentence}"
            if self._tested_alone is not None and self.outcome is not Outcome.CERTIFIED:
                explanation += " Only this test is not done: give it more calls, or run without it (linearity=0)."
        if self._per_misfit and last is not None and last.epsilon < inf:
            explanation += self._fit_in_words
        if self._cut_short:
            explanation += " A look at the data takes longer than was left of it: give more time, or another algorithm."
        if self.unfinished:
            explanation += f" {self.unfinished:,} calls of the batch under way are kept for when the run goes on."
        kind, more = self._kind
        return kind(
            **more,
            algorithm=self.algorithm.name,
            asked_epsilon=self.asked_epsilon,
            delta=self.delta,
            policy=self._played(policy),
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
            broken_episodes=self.broken_episodes,
            unfinished_calls=self.unfinished,
            outlook=None if self.outcome in FINAL else ahead,
            linearity=tested,
            origin=Origin(
                self.problem,
                self.settings,
                self._store,
                partial(count_attempts, self._store, self.problem.fingerprint),
                self._own_samples,
                self._proof if restored else None,
                self._ended_chain if self._file is None else self._file.chain,
                self._all_samples,
            ),
        )

    @property
    def _kind(self) -> tuple[type[Result], dict[str, Any]]:
        """The kind of the result, and what only that has."""
        if not isinstance(self.problem, FeatureProblem):
            return Result, {}
        known = {"untested": self._fit} if isinstance(self._fit, str) else {"misfit": self._fit}
        return FeatureResult, known

    @property
    def _per_misfit(self) -> float:
        """By how much ε grows with the misfit of a feature map; 0 where nothing rests on one."""
        mapped = isinstance(self.problem, FeatureProblem) and self.problem.has_choice
        return per_misfit(self.problem) if mapped else 0.0  # type: ignore[arg-type]

    @property
    def _fit_in_words(self) -> str:
        """What was found of the fit of a feature map; a warning says it if that is in doubt."""
        if isinstance(self._fit, FeatureMisfit):
            return "" if self._fit.in_doubt else f" {self._fit.sentence}"
        return f" Whether they fit was not tested{f': {self._fit}' if self._fit else ''}."

    def _played(self, policy: Any) -> Any:
        """Return a policy as the user plays it."""
        if isinstance(self.problem, FeatureProblem):
            return FeaturePolicy(self.problem, policy[0, :, :-1])
        return self.units.policy(policy)[0] if self.problem.horizon is None else self.units.policy(policy)

    def forecast(self) -> float:
        """Simulator calls that the whole run should need, judged by its checks; nan if it is too early to tell."""
        return self.outlook().expected

    def outlook(self) -> Outlook:
        """Range of the simulator calls that the whole run should need, judged by its checks; those of the test too."""
        own, more = outlook(self.settings, self.algorithm, self.problem, self.checks), self._linearity.expected
        return replace(own, low=own.low + more, expected=own.expected + more, high=own.high + more) if more else own

    @property
    def pace(self) -> Pace:
        """How fast the run is, as far as this process has driven it."""
        looks, looking, last = self._looks
        simulating = max(0.0, time.monotonic() - self._driven - looking)
        return Pace(self.samples - self._began_with, simulating, looks, looking, last)

    def seconds_left(self) -> tuple[float, float]:
        """Least and most seconds until the end, at the pace of this process; nan if nothing is known of it."""
        ahead, pace = self.outlook(), self.pace
        return pace.seconds(self.checks, ahead.low), pace.seconds(self.checks, ahead.high)

    def _advance(self, tally: Tally | None) -> None:
        """Give the algorithm its tally and see what it wants next."""
        assert self._run is not None
        if tally is not None and isinstance(tally, Tally):  # others are kept by whom they concern
            self._measured = tally if self._measured is None else self._measured + tally
        begun = time.monotonic()
        try:
            request, check = patiently(partial(self._look, self._run, tally))
        except TimeUp:
            self._cut_short = True
            raise
        took = time.monotonic() - begun
        if tally is not None and not self._replaying:
            self._looks = (self._looks[0] + 1, self._looks[1] + took, took)
        if request is None:
            assert check is not None
            self._record(check)
            if check.passed:
                self._tested_alone = 0
                self._go_on()
                return
            self.stop(Outcome.NO_GUARANTEE if self.algorithm.about.guarantee == "none" else Outcome.GAVE_UP)
            return
        if request.check is not None:
            self._record(request.check)
        position, self._requests = self._requests, self._requests + 1
        known = self._past.request(position)
        if known is not None and not self.algorithm.anytime and not known.wanted.equals(request.wanted):
            # A proof about batches of certain sizes says nothing of others.
            raise StoreError(
                f"the study asked for {known.wanted.total} simulator calls where {self.algorithm.name!r} asks "
                f"for {request.wanted.total} now: other versions may have written it. Begin it anew."
            )
        self._request = known or Asked(self._asked, len(self.checks), request.wanted, request.decided)
        if known is None:
            self._unsaved.append((position, self._request))
        elif self._past.rebuilt:  # what was decided has not been stored yet
            self._request = replace(known, looks=len(self.checks), decided=request.decided)
            self._unsaved.append((position, self._request))
        if position >= len(self._past.complete):
            self._issue()

    def _look(self, run: Run, tally: Tally | None) -> tuple[Request | None, Check | None]:
        """Return what the algorithm wants next, or its last check. Only the algorithm itself changes meanwhile."""
        try:
            with one_thread():
                if tally is None:
                    return next(run), None
                assert self._request is not None
                return run.send(self._request.wanted.fitted(tally)), None
        except StopIteration as end:
            return None, end.value

    def _go_on(self) -> None:
        """Ask what the algorithm wants; once it is done, what the test of the features wants."""
        if self._tested_alone is None:
            self._issue()
        elif self._linearity.complete:
            self.stop(Outcome.CERTIFIED)
        else:
            limit = self.max_samples
            self._batch = Batch(self._test_queries(None, inf if limit is None else limit - self.samples))
            if not self._batch.waiting and not self._replaying:
                self.stop(Outcome.BUDGET)

    def _test_queries(self, batch: Wanted | None, room: float) -> Iterator[Query]:
        """Return queries of a round of the test that goes with a batch, or comes alone; none if there is no room."""
        own = self.samples - self._linearity.calls + (0 if batch is None else batch.total)
        pulls = self._linearity.ask(
            self._requests - 1 if self._tested_alone is None else self._requests + self._tested_alone,
            own,
            -inf if self._replaying else room,
            self._measured,
            self.checks[-1].gap / self.units.reward_scale if self.checks else inf,
            alone=batch is None,
        )
        if pulls is not None:
            parts = pulls.split(self.settings.calls_per_query)
            yield from (Query(self._linearity.number(), part, self.seed) for part in parts)

    def _issue(self) -> None:
        """Ask what the algorithm wants, as far as the budget goes."""
        assert self._request is not None
        limit = self.settings.budget_at(self._asked) if self._replaying else self.max_samples
        wanted = self._request.wanted
        if limit is not None:
            known = 0 if self._replaying else self._linearity.calls_with(self._requests - 1)
            wanted = wanted.cut(max(0, limit - self.samples - known), self.algorithm.anytime)
        if wanted.total == 0:
            self._batch = Batch()
            if not self._replaying:
                self.stop(Outcome.BUDGET)
            return
        if not self._replaying and self.settings.budgets[-1][1] != limit:
            self._change(budgets=(*self.settings.budgets, (self._asked, limit)))
        if self._asked == 0 and wanted.total > self._largest_batch:
            raise InvalidInput(too_many(wanted.total, self.algorithm.name, self.problem))
        if wanted.total // (self.settings.calls_per_query or wanted.total) > _MOST_QUERIES:
            raise InvalidInput(
                f"calls_per_query must be larger: {self.settings.calls_per_query} would make more than "
                f"{_MOST_QUERIES:,} queries of the {wanted.total:,} simulator calls that are wanted now."
            )
        parts: list[Wanted] = [*wanted.split(self.settings.calls_per_query)]
        queries = [Query(self._asked + i, part, self.seed) for i, part in enumerate(parts)]
        self._asked += len(parts)
        if isinstance(wanted, Pulls):
            room = inf if limit is None else limit - self.samples - wanted.total
            queries += self._test_queries(wanted, room)
        self._batch = Batch(queries)

    def _unfit_batch(self) -> str:
        """Name the batch that did not fit into the budget; a run that can be cut short spends what there is."""
        done = self._tested_alone is not None
        if self._request is None or done or (self.algorithm.anytime and self.samples):
            return ""
        return f"The {'next' if self.samples else 'first'} batch of {self._request.wanted.total} simulator calls"

    def _save(self) -> None:
        """Store new checks and requests, and the result if the study is over."""
        if self._file is None or self._end_saved:
            return
        if self.done or self._unsaved or self._linearity.unsaved or self._saved < len(self.checks):
            rows = [*rows_of_checks(self.checks, self._saved)]
            rows += [request.row(position) for position, request in self._unsaved]
            rows += [("test", pack(one)) for one in self._linearity.unsaved]
            if self.done:
                rows.append(("ended", json.dumps(self.result().to_dict()).encode()))
            self._file.append(*rows)
            self._saved, self._unsaved, self._end_saved = len(self.checks), [], self.done
            self._linearity.unsaved.clear()
            if self.done:
                self.close()

    @property
    def asked_calls(self) -> int:
        """Simulator calls that are awaited until the next look at the data."""
        return self._batch.missing

    @property
    def calls_file(self) -> tuple[str, str] | None:
        """Where calls under way are put on record, and what stands for the study there; None without a file."""
        if self._file is None:
            return None
        return f"{os.path.abspath(self._file.path)}-calls-{self._file.number}", str(self._file.chain["root"])

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
        scale, lost = self.units.reward_scale, self.settings.truncation_loss
        epsilon, gap, floor = check.epsilon * scale + lost, check.gap * scale, check.value_floor * scale
        self.checks.append(replace(check, policy=policy, epsilon=epsilon, gap=gap, value_floor=floor))


def _settings_row(settings: Settings) -> tuple[str, bytes]:
    return "settings", json.dumps(settings.to_dict()).encode()


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


def _has_ended(record: Record, budget: int | None) -> bool:
    """Whether nothing more is to be simulated, so that the file knows everything."""
    if record.result is None:
        return False
    if record.result["outcome"] == Outcome.BUDGET:
        return budget == record.settings.max_samples
    return record.result["outcome"] in FINAL


def _checked_budget(max_samples: float | None, record: Record) -> int | None:
    """Return the budget that a study goes on with."""
    if max_samples is None:
        return record.settings.max_samples
    if max_samples == inf:
        return None
    budget = whole("max_samples", max_samples, 1)
    if budget < record.samples:
        raise InvalidInput(
            f"max_samples must be at least {record.samples}, what the study has used so far: it is the budget of the "
            f"whole study. Got {max_samples} instead."
        )
    return budget


def _nothing_to_choose(problem: Problem) -> Check:
    """Without a state that has two distinct actions every policy is optimal, and no sample is needed."""
    policy = problem.any_policy
    return Check(0, 0, policy, inf, 0.0, True, 0.0, inf, "no state has two distinct actions", proof=Proof("no choice"))
