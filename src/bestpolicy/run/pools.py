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
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from bestpolicy.errors import InvalidInput, one_line
from bestpolicy.run.measure import BEGUN, begin_worker, measure, measure_on_dask
from bestpolicy.samples import Tally
from bestpolicy.simulators import GenerativeModel
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

    Attributes
    ----------
    begun : dict of Future to float
        When the queries that are being answered began.
    """

    def __init__(self, executor: Executor, hire: Hire | None) -> None:
        self._hire = hire
        self.begun: dict[Answer, float] = {}
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

    def send(self, model: GenerativeModel, query: Query) -> Answer:
        """Hand a query to a worker."""
        with _no_interrupts() if self._hire is not None else nullcontext():
            future = self._executor.submit(measure, model, query, self._processes)
        if self._size is not None:
            self.begun[future] = time.monotonic()
        return future

    def look(self, flying: dict[Answer, Query]) -> int:
        """See which queries have begun; return how many were simulated again behind our back, which is none."""
        if self._size is None:
            for future in flying:
                if future.running():
                    self.begun.setdefault(future, time.monotonic())
        return 0

    def suspects(self, broken: list[Answer], flying: dict[Answer, Query]) -> list[Answer]:
        """When a worker dies the whole executor breaks: any query that had begun may be to blame."""
        return [future for future in flying if future in self.begun] or broken[:1]

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

    def __init__(self, executor: Any) -> None:
        self._executor, self._client = executor, executor._client
        self._address = self._client.scheduler.address
        self.begun: dict[Answer, float] = {}
        self._keys: dict[str, Answer] = {}
        self._workers: dict[Answer, str] = {}
        self._repeated: list[str] = []
        self._looked = self._seen = time.monotonic()
        self._reported = False
        _listen(self)

    def has_room(self, flying: dict[Answer, Query]) -> bool:
        """Whether more queries can be handed in."""
        return True

    def send(self, model: GenerativeModel, query: Query) -> Answer:
        """Hand in a query, under a key of its own: Dask keeps what came of a key, errors too."""
        key = f"measure-{uuid4().hex}"
        future: Answer = self._executor.submit(measure_on_dask, model, query, key, key=key, pure=False)
        self._keys[key] = future
        future.add_done_callback(lambda _: self._forget(key))
        return future

    def _forget(self, key: str) -> None:
        """Keep nothing of a query that is done, so that the cluster can forget its answer, too."""
        self._workers.pop(self._keys.pop(key), None)

    def hear(self, message: dict[str, Any]) -> None:
        """Take a message from the cluster; in another thread."""
        if message.get("action") == "remove-worker":
            lost = {*message.get("processing-tasks", ()), *message.get("lost-computed-tasks", ())}
            self._repeated.extend(key for key in lost if key in self._keys)
        future = self._keys.get(message.get("begun", ""))
        if future is not None:
            self._workers[future], self.begun[future] = message["worker"], time.monotonic()

    def look(self, flying: dict[Answer, Query]) -> int:
        """Return how many queries are simulated again because a worker was lost; fail if there are no workers."""
        now = time.monotonic()
        if now > self._looked + _LOOK_EVERY:
            self._looked = now
            if self._has_workers():
                self._seen, self._reported = now, False
            elif now > self._seen + WITHOUT_WORKERS:
                raise Irreplaceable(
                    f"the Dask cluster has had no workers for {WITHOUT_WORKERS:g} s. Start some with `dask worker "
                    f"{self._address}`, wait for them with client.wait_for_workers(1), and go on"
                )
            elif now > self._seen + _REPORT_AFTER and not self._reported:
                self._reported = True
                logger.warning(
                    "the Dask cluster at %s has no workers; waiting up to %g s for some", self._address, WITHOUT_WORKERS
                )
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
        workers = {self._workers[future] for future in guilty if future in self._workers and not future.done()}
        for future in guilty:
            future.cancel()
        if workers:
            try:
                self._client.restart_workers(list(workers), raise_for_error=False)
            except Exception as error:
                raise Irreplaceable(f"its worker could not be restarted ({one_line(error)})") from error
        return guilty

    def dismiss(self, *, kill: bool) -> None:
        """Nothing to do: the cluster is somebody else's."""


_listening: WeakKeyDictionary[Any, WeakSet[DaskPool]] = WeakKeyDictionary()


def _listen(pool: DaskPool) -> None:
    """Have a pool hear what the cluster says of its queries and workers."""
    client = pool._client
    if client in _listening:
        _listening[client].add(pool)
        return
    pools = _listening[client] = WeakSet([pool])
    before = client._event_handlers.get("all")  # a client has one handler for a topic

    def hear(event: tuple[float, Any]) -> Any:
        for each in list(pools) if isinstance(event[1], dict) else ():
            each.hear(event[1])
        return None if before is None else before(event)

    client.subscribe_topic("all", hear)
    client.subscribe_topic(BEGUN, hear)


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
