"""The workers of a `Crew`: those of an executor on this machine, or of a Dask cluster.

A pool takes queries, knows which of them have begun, and ends workers that are given up.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import inf
from typing import Any
from uuid import uuid4

from bestpolicy.errors import InvalidInput
from bestpolicy.run.measure import BEGUN, Record, begin_worker, measure, measure_on_dask
from bestpolicy.samples import Tally
from bestpolicy.simulators import Model
from bestpolicy.study import Query

WITHOUT_WORKERS = 300.0  # seconds that a cluster may be empty
_REPORT_AFTER = 5.0  # seconds after which that is said
_LOOK_EVERY = 1.0

logger = logging.getLogger(__name__)

Hire = Callable[[], Executor]
Answer = Future[Tally]


class Irreplaceable(Exception):
    """Workers that must be given up cannot be replaced; the message says what would help."""


def make_pool(executor: Executor | Hire) -> LocalPool | DaskPool:
    """Return the pool of an executor, or of those that a function makes."""
    hire = None if isinstance(executor, Executor) else executor
    first = _hired(hire) if hire is not None else executor
    if type(first).__module__.startswith("distributed"):
        return DaskPool(first)
    return LocalPool(first, hire)  # type: ignore[arg-type]


def _hired(hire: Hire) -> Executor:
    executor = hire()
    if not isinstance(executor, Executor):
        raise InvalidInput(f"executor() must return a concurrent.futures.Executor. Got {executor!r} instead.")
    return executor


class LocalPool:
    """Processes or threads of this machine.

    They get no more queries at a time than there are workers: a query that was sent has begun, and its time runs.

    Parameters
    ----------
    executor : Executor
    hire : callable, optional
        Makes another one when this one is broken or hangs.
    """

    falls_as_one = True

    def __init__(self, executor: Executor, hire: Hire | None) -> None:
        self._hire = hire
        self._begun: dict[Answer, float] = {}
        self._take(executor)

    def _take(self, executor: Executor) -> None:
        self._executor = executor
        self._size: int | None = getattr(executor, "_max_workers", None)
        self._processes = isinstance(executor, ProcessPoolExecutor)
        if self._hire is not None and isinstance(executor, ProcessPoolExecutor):
            first = (executor._initializer, executor._initargs)
            executor._initializer, executor._initargs = begin_worker, first

    def has_room(self, flying: dict[Answer, Query]) -> bool:
        """Whether a worker is free, as far as one can know."""
        return self._size is None or len(flying) < self._size

    def send(self, model: Model, query: Query, record: Record) -> Answer:
        """Hand a query to a worker, which puts its calls on record."""
        with _no_interrupts() if self._hire is not None else nullcontext():
            future = self._executor.submit(measure, model, query, self._processes, record)
        self._begun[future] = time.monotonic() if self._size is not None else inf
        return future

    def begun(self, future: Answer) -> float:
        """When a query began to be answered; inf if it has not."""
        if self._begun.get(future) == inf and future.running():
            self._begun[future] = time.monotonic()
        return self._begun.get(future, inf)

    def landed(self, future: Answer) -> None:
        """Forget a query."""
        self._begun.pop(future, None)

    def look(self) -> int:
        """Return how many queries were simulated again behind our back: none."""
        return 0

    def suspects(self, broken: list[Answer], flying: dict[Answer, Query]) -> list[Answer]:
        """When a worker dies the whole executor breaks: any query that had begun may be to blame."""
        return [future for future in flying if self.begun(future) < inf] or broken[:1]

    def give_up(self, guilty: list[Answer], flying: dict[Answer, Query]) -> list[Answer]:
        """End the workers that hold these queries; return all queries that are lost with them."""
        if self._hire is None:
            raise Irreplaceable("Give executor= a function that makes an executor, and workers will be replaced")
        self._end(kill=True)
        self._take(_hired(self._hire))
        return list(flying)

    def dismiss(self, *, kill: bool) -> None:
        """Let the workers go, whatever they are doing; those of somebody else's executor stay."""
        if self._hire is not None:
            self._end(kill=kill)

    def _end(self, *, kill: bool) -> None:
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        for process in processes if kill else ():
            process.kill()
        self._executor.shutdown(wait=bool(processes))  # threads cannot be ended, so nobody waits for them


class DaskPool:
    """Workers of a Dask cluster, through ``client.get_executor()``.

    Dask has queues of its own and restarts workers by itself, so all queries are handed in at once. Workers say when
    they begin, and the scheduler says when a worker is gone; Dask then simulates its queries again elsewhere.
    """

    falls_as_one = False

    def __init__(self, executor: Any) -> None:
        self._executor, self._client = executor, executor._client
        self._address = self._client.scheduler.address
        self._keys: dict[Answer, str] = {}
        self._unfinished: set[str] = set()
        self._heard: dict[str, tuple[float, str]] = {}  # when a query began, and on which worker
        self._repeated: list[str] = []
        self._looked, self._alone = time.monotonic(), 0.0
        # A client has one handler for a topic: somebody else's is called, too, and is back in its place afterwards.
        self._others = {topic: self._client._event_handlers.get(topic) for topic in ("all", BEGUN)}
        self._handlers = {topic: partial(self._hear, topic) for topic in self._others}
        for topic, handler in self._handlers.items():
            self._client.subscribe_topic(topic, handler)

    def has_room(self, flying: dict[Answer, Query]) -> bool:
        """Whether more queries can be handed in."""
        return True

    def send(self, model: Model, query: Query, record: Record) -> Answer:
        """Hand in a query, under a key of its own: Dask keeps what came of a key, errors too.

        Nothing is put on record: the worker may be on another machine.
        """
        key = f"measure-{uuid4().hex}"
        self._unfinished.add(key)
        future: Answer = self._executor.submit(measure_on_dask, model, query, key, key=key, pure=False)
        self._keys[future] = key
        return future

    def begun(self, future: Answer) -> float:
        """When a worker said that it begins with a query; inf if none has."""
        return self._heard.get(self._keys.get(future, ""), (inf, ""))[0]

    def landed(self, future: Answer) -> None:
        """Forget a query, so that the cluster can forget its answer, too."""
        key = self._keys.pop(future, "")
        self._unfinished.discard(key)
        self._heard.pop(key, None)

    def _hear(self, topic: str, event: tuple[float, Any]) -> Any:
        """Take a message from the cluster; in another thread."""
        message = event[1] if isinstance(event[1], dict) else {}
        if message.get("begun") in self._unfinished:
            self._heard[message["begun"]] = time.monotonic(), message["worker"]
        elif message.get("action") == "remove-worker":
            lost = {*message.get("processing-tasks", ()), *message.get("lost-computed-tasks", ())} & self._unfinished
            # A worker that was told to go has begun what it said; one that died may not have come to say so.
            self._repeated += [key for key in lost if key in self._heard or not message.get("expected")]
        other = self._others[topic]
        return None if other is None else other(event)

    def look(self) -> int:
        """Return how many queries are simulated again because a worker was lost; fail if there are no workers."""
        since = time.monotonic() - self._looked
        if since > _LOOK_EVERY:
            self._looked += since
            reported = self._alone > _REPORT_AFTER
            self._alone = 0.0 if self._has_workers() else self._alone + min(since, 2 * _LOOK_EVERY)
            if self._alone > WITHOUT_WORKERS:
                raise Irreplaceable(
                    f"the Dask cluster has had no workers for {WITHOUT_WORKERS:g} s. Start some with `dask worker "
                    f"{self._address}`, wait for them with client.wait_for_workers(1), and go on"
                )
            if self._alone > _REPORT_AFTER and not reported:
                where = self._address
                logger.warning("the Dask cluster at %s has no workers; waiting %g s for some", where, WITHOUT_WORKERS)
        repeated, self._repeated = len(self._repeated), []
        return repeated

    def _has_workers(self) -> bool:
        with suppress(OSError):  # the scheduler is gone
            return self._client.status == "running" and bool(self._client.nthreads())
        return False

    def suspects(self, broken: list[Answer], flying: dict[Answer, Query]) -> list[Answer]:
        """Each query fails for itself."""
        return broken

    def give_up(self, guilty: list[Answer], flying: dict[Answer, Query]) -> list[Answer]:
        """Restart the workers that hold these queries; what else they hold Dask moves elsewhere."""
        held = [self._heard.get(self._keys.get(future, "")) for future in guilty if not future.done()]
        for future in guilty:
            future.cancel()
        workers = list({worker for _, worker in filter(None, held)})
        try:
            if workers:
                self._client.restart_workers(workers, raise_for_error=False)
        except Exception as error:
            raise Irreplaceable(
                f"Its worker could not be restarted ({error}); those that `dask worker` starts by default can be"
            ) from error
        return guilty

    def dismiss(self, *, kill: bool) -> None:
        """Listen no more; the cluster is somebody else's."""
        for topic, handler in self._handlers.items():
            if self._client.status == "running" and self._client._event_handlers.get(topic) is handler:
                self._client.unsubscribe_topic(topic)
                del self._client._event_handlers[topic]
                if self._others[topic] is not None:
                    self._client.subscribe_topic(topic, self._others[topic])


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Have processes that are started in here leave Ctrl-C to this one, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
