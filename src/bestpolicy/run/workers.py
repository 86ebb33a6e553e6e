"""Answer queries on other processes or machines.

Anything with the interface of `concurrent.futures.Executor` will do: a process pool here, Dask's
``Client.get_executor()`` on a cluster. A query's random stream belongs to the query, so the answer does not depend on
who gives it, nor when, nor how many workers there are.

A query whose worker dies, raises or exceeds its time limit is given to a worker again a bounded number of times; then
the failure is reported with the query that caused it, and everything that was answered is kept. A simulator that broke
a promise on which the guarantee rests (`SimulatorError.final`) is not asked again: no other outcome would mend it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import suppress
from math import inf
from typing import Any

from bestpolicy.errors import BestPolicyError, InvalidInput, SimulatorError, one_line
from bestpolicy.run.measure import Record
from bestpolicy.run.pools import Answer, Irreplaceable, make_pool
from bestpolicy.samples import Episodes
from bestpolicy.simulators import Model
from bestpolicy.simulators.calls import Paused
from bestpolicy.study import Query, Study

_POLL_SECONDS = 0.1
_GRACE = 0.5  # seconds after a deadline that queries which are about to be answered have
_DIED = (
    "its worker died: it was killed, ran out of memory, was ended by the simulator, or could not load it (what the "
    "worker printed says more; on other processes a simulator must stand at the top of a module)"
)
_TO_SEND = (
    "To work on other processes, a simulator and its functions must stand at the top of a module and hold nothing that "
    "cannot be pickled, such as a lock or an open file."
)
_GO_ON = (
    "Nothing is lost: error.study holds what was measured. Mend the simulator and go on with "
    "bestpolicy.drive(error.study, model), or, with store=, by making the same call again."
)


class Crew:
    """Workers that answer the queries of a study.

    Parameters
    ----------
    model : GenerativeModel or ForwardModel
        Sent to the workers with each query, so it must survive the journey (be picklable, for processes).
    executor : Executor, or a function that makes one
        With a function, workers that die or hang are replaced.
    retries : int
        How often a query is tried again.
    query_seconds : float, optional
        Time limit for one query, counted from when it begins (on a new process, its start included).
    """

    def __init__(
        self,
        model: Model,
        executor: Executor | Callable[[], Executor],
        *,
        retries: int = 2,
        query_seconds: float | None = None,
    ) -> None:
        self._model, self._pool = model, make_pool(executor)
        self._retries, self._query_seconds = retries, query_seconds
        self._failures: dict[int, int] = {}
        self._suspects: set[int] = set()
        self._waiting: deque[Query] = deque()
        self._flying: dict[Answer, Query] = {}

    def answer(self, study: Study, until: float | None = None) -> None:
        """Hand out the queries that await an answer, and tell the answers as they come.

        Raises
        ------
        Paused
            When the time is up; what is being simulated then is on record, call by call.
        """
        self._waiting.extend(study.ask())
        deadline = inf if until is None else until
        try:
            while self._waiting or self._flying:
                if study.stop_requested or time.monotonic() > deadline:
                    self._call_back()
                if self._flying and time.monotonic() > deadline + _GRACE:
                    raise Paused
                self._send(study)
                wait(self._flying, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                self._notice(study)
                broken = self._take_answers(study)
                if broken:
                    self._lose(study, self._pool.suspects(broken, self._flying), _DIED)
                self._lose(study, self._overdue(), f"no answer within {self._query_seconds} s")
        except KeyboardInterrupt:
            for future in [each for each in self._flying if _answered(each)]:  # what is being simulated is lost
                with suppress(BestPolicyError):
                    study.tell(self._landed(future), future.result())
            raise

    def dismiss(self) -> None:
        """Let the workers go, whatever they are at."""
        for future in self._flying:
            future.cancel()
        self._pool.dismiss(kill=bool(self._flying))

    def _send(self, study: Study) -> None:
        """Give the free workers something to do. After a death, suspects are tried alone: that finds the guilty one."""
        while self._waiting and self._pool.has_room(self._flying):
            if self._flying and self._suspects:
                break
            query = self._waiting.popleft()
            try:
                future = self._pool.send(self._model, query, Record.of(study, query))
            except Exception as error:
                future = Future()
                future.set_exception(error)
            self._flying[future] = query

    def _call_back(self) -> None:
        """Forget the queries that have not begun."""
        self._waiting.clear()
        for future in [each for each in self._flying if self._pool.begun(each) == inf]:
            if future.cancel():
                self._landed(future)

    def _take_answers(self, study: Study) -> list[Answer]:
        """Tell what was answered, and send again what failed; return the queries whose worker is gone."""
        broken = []
        for future in [each for each in self._flying if each.done()]:
            try:
                tally = future.result()
            except (BrokenExecutor, CancelledError):
                broken.append(future)
            except Exception as error:
                self._try_again(study, self._landed(future), error)
            else:
                query = self._landed(future)
                self._suspects.discard(query.index)
                study.tell(query, tally)
                Record.of(study, query).remove()
        return broken

    def _landed(self, future: Answer) -> Query:
        self._pool.landed(future)
        return self._flying.pop(future)

    def _notice(self, study: Study) -> None:
        try:
            for _ in range(self._pool.look()):
                study.note_failure()
        except Irreplaceable as error:
            raise with_study(study, SimulatorError(f"{error}: everything that was measured is kept.")) from None

    def _overdue(self) -> list[Answer]:
        if self._query_seconds is None:
            return []
        limit = time.monotonic() - self._query_seconds
        return [future for future in self._flying if self._pool.begun(future) < limit and not future.done()]

    def _lose(self, study: Study, guilty: list[Answer], reason: str) -> None:
        """Blame queries for the loss of their workers, and send again what was in flight there."""
        if not guilty:
            return
        try:
            lost = self._pool.give_up(guilty, self._flying)
        except Irreplaceable as error:
            query = min((self._flying[future] for future in guilty), key=lambda each: each.index)
            raise failed(study, query, f"{reason}. {error}") from error
        for future in sorted(lost, key=lambda each: self._flying[each].index, reverse=True):
            begun, query = self._pool.begun(future) < inf, self._landed(future)
            if _answered(future):
                study.tell(query, future.result())
            elif future in guilty:
                if self._pool.falls_as_one:
                    self._suspects.add(query.index)
                self._try_again(study, query, reason)
            else:
                self._waiting.appendleft(query)
                if begun:  # its worker ended with the others, and so did its answer
                    study.note_failure()

    def _try_again(self, study: Study, query: Query, reason: Any) -> None:
        self._failures[query.index] = times = self._failures.get(query.index, 0) + 1
        if times > self._retries or _is_killed_worker(reason) or getattr(reason, "final", False):
            raise failed(study, query, reason, times) from reason if isinstance(reason, BaseException) else None
        if isinstance(query.wanted, Episodes) and _told_in_part(study, query, reason):
            # What broke off counts against the policy; simulated again, it might not have broken off.
            self._waiting.extendleft(rest for rest in study.ask() if rest.index == query.index)
            if not reason.partial.broken_episodes:  # it failed before it began, and begins again elsewhere
                study.note_failure()
            return
        if _may_depend_on_outcomes(reason):
            study.note_failure()
        self._waiting.appendleft(query)


def _answered(future: Answer) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def failed(study: Study, query: Query, reason: Any, times: int = 1) -> SimulatorError:
    """Return the error for a query that was not answered; what it had measured is told to the study."""
    error = reason
    if not isinstance(reason, SimulatorError) or times > 1 or reason.partial is None:
        often = f" failed {times} times; last" if times > 1 else ""
        what = f"{query.name} ({query.wanted.describe(study.problem)}){often}: {_said(reason)}"
        error = SimulatorError(what, getattr(reason, "partial", None))
        error.final = getattr(reason, "final", False)
    counted = isinstance(query.wanted, Episodes) and getattr(error.partial, "broken_episodes", 0) > 0
    told = _told_in_part(study, query, error)
    if _may_depend_on_outcomes(reason) and not (told and counted):
        study.note_failure()
    return with_study(study, error)


def _told_in_part(study: Study, query: Query, reason: Any) -> bool:
    """Tell the study what was measured before a query failed; episodes that broke off are part of it."""
    partial = getattr(reason, "partial", None)
    if partial is not None:
        with suppress(InvalidInput):  # a simulator may make anything of it
            study.tell(query, partial, partial=True)
            return True
    return False


def _said(reason: Any) -> str:
    if isinstance(reason, str):
        return reason
    if isinstance(reason, SimulatorError):
        return one_line(reason)
    if _is_killed_worker(reason):
        # Dask cannot tell which of the queries that were with a worker made it die.
        return f"{_DIED}. Dask has had it, or a query that waited beside it, on {reason.allowed_failures + 1} workers"
    what = f"it did not get to a worker and back ({type(reason).__name__}: {' '.join(str(reason).split())})"
    return f"{what}. {_TO_SEND}" if "pickle" in what else what


def _may_depend_on_outcomes(reason: Any) -> bool:
    """Whether a query was simulated before it failed; other errors are those of the way to the worker and back."""
    return isinstance(reason, SimulatorError | str) or _is_killed_worker(reason)


def _is_killed_worker(reason: Any) -> bool:
    """Whether Dask has given up on a query because several workers died of it."""
    return type(reason).__name__ == "KilledWorker"


def with_study(study: Study, error: SimulatorError) -> SimulatorError:
    """Return an error with the study that it ends, and what to do."""
    error.study = study
    error.add_note(_GO_ON)
    return error
