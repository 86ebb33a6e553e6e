"""Answer queries on other processes or machines.

Anything with the interface of `concurrent.futures.Executor` will do: a process pool here, Dask's
``Client.get_executor()`` on a cluster. A query's random stream belongs to the query, so the answer does not depend on
who gives it, nor when, nor how many workers there are.

A query whose worker dies, raises or exceeds its time limit is given to a worker again a bounded number of times; then
the failure is reported with the query that caused it, and everything that was answered is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any

from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.samples import Tally
from bestpolicy.simulators import GenerativeModel
from bestpolicy.study import Query, Study

_POLL_SECONDS = 0.1


class Crew:
    """Workers that answer the queries of a study.

    Parameters
    ----------
    model : GenerativeModel
        Sent to the workers with each query, so it must survive the journey (be picklable, for processes).
    hire : callable
        Makes an executor; called again when the old one is broken or has a worker that hangs.
    retries : int
        How often a query is tried again.
    query_seconds : float, optional
        Time limit for one query, counted from when it begins (on a new process, its start included).
    """

    def __init__(
        self,
        model: GenerativeModel,
        hire: Callable[[], Executor],
        *,
        retries: int = 2,
        query_seconds: float | None = None,
    ) -> None:
        self._model, self._hire = model, hire
        self._retries, self._query_seconds = retries, query_seconds
        self._executor = hire()
        if not callable(getattr(self._executor, "submit", None)):
            raise InvalidInput(
                f"executor must be, or make, a concurrent.futures.Executor. Got {self._executor!r} instead."
            )
        self._failures: dict[int, int] = {}
        self._begun: dict[Future[Tally], float] = {}
        self._watched = 0.0

    def answer(self, study: Study) -> None:
        """Hand out the queries that await an answer, and tell the answers as they come."""
        flying: dict[Future[Tally], Query] = {}
        try:
            for query in study.ask():
                self._send(query, flying)
            while flying:
                ready, _ = wait(flying, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                wrong: list[tuple[Query, Any]] = []
                broken: list[tuple[Query, Any, bool]] = []
                for future in ready:
                    query = flying.pop(future)
                    begun = self._begun.pop(future, None) is not None
                    try:
                        tally = future.result()
                    except (BrokenExecutor, CancelledError) as error:
                        broken.append((query, error, begun))
                    except (Exception, SystemExit) as error:  # a simulator that leaves its worker
                        wrong.append((query, error))
                    else:
                        study.tell(query, tally)
                self._watch(flying)
                lost = wrong + self._overdue(study, flying) + self._suspects(broken, flying)
                self._try_again(study, lost, flying)
        finally:
            for future in flying:
                future.cancel()

    def dismiss(self) -> None:
        """Let the workers go."""
        _shut_down(self._executor)

    def _send(self, query: Query, flying: dict[Future[Tally], Query]) -> None:
        try:
            future = self._executor.submit(measure, self._model, query)
        except RuntimeError:  # broken, or shut down by somebody
            self._replace_executor()
            try:
                future = self._executor.submit(measure, self._model, query)
            except RuntimeError as error:
                raise SimulatorError(
                    f"the workers are gone ({one_line(error)}). Give executor= a function that makes an executor, and "
                    "they will be replaced; nothing that was told is lost."
                ) from error
        flying[future] = query

    def _watch(self, flying: dict[Future[Tally], Query]) -> None:
        """Note which queries have begun: the clock starts then, not when they are handed in."""
        if time.monotonic() < self._watched + _POLL_SECONDS:
            return
        self._watched = time.monotonic()
        for future in flying:
            if future.running():
                self._begun.setdefault(future, time.monotonic())

    def _suspects(
        self, broken: list[tuple[Query, Any, bool]], flying: dict[Future[Tally], Query]
    ) -> list[tuple[Query, Any]]:
        """When a worker dies the whole pool breaks: only queries that had begun may be to blame."""
        broken.sort(key=lambda entry: entry[0].index)
        suspects = [entry for entry in broken if entry[2]] or broken[:1]
        for query, _, _ in broken:
            if not any(query is suspect[0] for suspect in suspects):
                self._send(query, flying)
        return [(query, reason) for query, reason, _ in suspects]

    def _overdue(self, study: Study, flying: dict[Future[Tally], Query]) -> list[tuple[Query, Any]]:
        """Give up on the queries that take too long, and on the workers that hold them."""
        if self._query_seconds is None:
            return []
        now = time.monotonic()
        late = {future for future in flying if self._begun.get(future, now) < now - self._query_seconds}
        if not late:
            return []
        lost = [(flying[future], f"no answer within {self._query_seconds:g} s") for future in late]
        innocent = [query for future, query in flying.items() if future not in late]
        for future in flying:
            if future in self._begun and future not in late:  # its worker ends with the others, and so does its answer
                study.note_failure()
        flying.clear()
        self._begun.clear()
        self._replace_executor()
        for query in innocent:
            self._send(query, flying)
        return lost

    def _try_again(self, study: Study, lost: list[tuple[Query, Any]], flying: dict[Future[Tally], Query]) -> None:
        for query, reason in lost:
            self._failures[query.index] = self._failures.get(query.index, 0) + 1
            if self._failures[query.index] > self._retries:
                raise failed(study, query, reason, self._failures[query.index]) from (
                    reason if isinstance(reason, BaseException) else None
                )
            study.note_failure()
            self._send(query, flying)

    def _replace_executor(self) -> None:
        for process in dict(getattr(self._executor, "_processes", None) or {}).values():
            process.kill()  # a hung worker would otherwise keep the interpreter from ending
        _shut_down(self._executor)
        self._executor = self._hire()


def measure(model: GenerativeModel, query: Query) -> Tally:
    """Answer one query; runs on the worker."""
    return model.sample(query.pulls, query.rng())


def failed(study: Study, query: Query, reason: Any, times: int = 1) -> SimulatorError:
    """Return the error for a query that was not answered; what it had measured is told to the study."""
    if isinstance(reason, SimulatorError) and times == 1:
        error = reason
    else:
        what = one_line(reason) if isinstance(reason, Exception) else str(reason)
        if times > 1:
            state, action = study.problem.pair(int(query.pulls.pairs[0]))
            place = f"query {query.index} (from pair (state {state}, action {action}) on)"
            what = f"{place} failed {times} times; last: {what}"
        if "pickle" in what:
            what += ". To work on other processes, a simulator and its functions must stand at the top of a module."
        error = SimulatorError(what, getattr(reason, "partial", None))
    if error.partial is not None:
        study.tell(query, error.partial, partial=True)
    study.note_failure()
    error.study = study
    error.add_note(
        "Nothing is lost: error.study holds what was measured. Mend the simulator and go on with "
        "bestpolicy.drive(error.study, model)."
    )
    return error


def _shut_down(executor: Executor) -> None:
    """Let the workers of an executor go; not every kind, Dask's for one, knows that queries can be cancelled."""
    try:
        executor.shutdown(wait=False, cancel_futures=True)
    except TypeError:
        executor.shutdown(wait=False)
