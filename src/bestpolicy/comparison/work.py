"""The work of a comparison: runs, lower bounds and prices, here or on workers, remembered in a file."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite
from multiprocessing import get_context
from os import PathLike
from typing import Any

import numpy as np

from bestpolicy._version import __version__
from bestpolicy.algorithms import Algorithm, parameters_of
from bestpolicy.bounds.lower import lower_bound
from bestpolicy.bounds.price import plug_in_samples
from bestpolicy.comparison.ledger import Ledger
from bestpolicy.errors import BestPolicyError
from bestpolicy.mdp import LinearMDP
from bestpolicy.run import identify
from bestpolicy.samples.episodes import start_law
from bestpolicy.simulators import ExactSimulator
from bestpolicy.study import Outcome

UNFIT = (BestPolicyError, MemoryError, np.linalg.LinAlgError)  # what an algorithm raises on a problem that is too much


def in_words(error: BaseException) -> str:
    """Say why an algorithm cannot run."""
    return str(error) if isinstance(error, BestPolicyError) else f"{type(error).__name__}: {error}"


Record = dict[str, Any]
Start = int | tuple[float, ...]  # a state, or a distribution over states
Progress = Callable[[int, int, str], object]


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is to be done, here or on a worker."""

    instance: str
    name: str
    mdp: LinearMDP
    algorithm: Algorithm
    epsilon: float
    delta: float
    seed: int
    max_samples: int | None
    max_seconds: float | None
    start: Start = 0

    @property
    def begins(self) -> Start | None:
        """Where its episodes begin, if it follows them."""
        return self.start if self.algorithm.about.sampling == "episodes" else None

    @property
    def key(self) -> str:
        """Everything that decides the result."""
        kind = type(self.algorithm)
        begins = {} if self.begins is None else {"start": self.begins}
        return _key(
            **begins,
            model=self.mdp.fingerprint,
            algorithm=[self.algorithm.name, f"{kind.__module__}.{kind.__qualname__}", parameters(self.algorithm)],
            epsilon=self.epsilon,
            delta=self.delta,
            seed=self.seed,
            budgets=[self.max_samples, self.max_seconds],
        )

    @property
    def what(self) -> str:
        """The task in a few words."""
        return f"{self.name} on {self.instance}"

    def perform(self) -> Record | None:
        """Do it; None if interrupted."""
        try:
            result = identify(
                ExactSimulator(self.mdp),
                epsilon=self.epsilon,
                delta=self.delta,
                algorithm=self.algorithm,
                seed=self.seed,
                max_samples=self.max_samples,
                max_seconds=self.max_seconds,
                start=self.begins,
                progress=False,
            )
        except UNFIT as error:
            return {"cannot": in_words(error)}
        if result.outcome is Outcome.INTERRUPTED:
            return None
        # Losses below the precision of the computation count as 0, or ε = 0 would see failures that are none.
        anywhere = 0.0 if self.mdp.is_near_optimal(result.policy, 0.0) else self.mdp.loss(result.policy)
        law = None if self.begins is None else start_law(self.begins, self.mdp.problem.states)
        return {
            "samples": int(result.samples),
            "loss": anywhere if law is None or not anywhere else self.mdp.loss(result.policy, law),
            "certified": bool(result.certified),
            "epsilon": float(result.epsilon) if isfinite(result.epsilon) else None,
            "outcome": str(result.outcome),
            "seconds": round(result.seconds, 4),
            "scope": _scope(self.begins),
            "sampling": self.algorithm.about.sampling,
            "loss_anywhere": None if law is None else anywhere,
        }


def _scope(begins: Start | None) -> str:
    """Where a policy is claimed to be good, in two words."""
    if begins is None:
        return "every state"
    return f"state {begins}" if isinstance(begins, int) else "the start"


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound that is to be computed."""

    instance: str
    mdp: LinearMDP
    epsilon: float
    delta: float
    seconds: float

    @property
    def key(self) -> str:
        """Everything that decides the result."""
        asked = {"epsilon": self.epsilon, "delta": self.delta, "seconds": self.seconds, "sampling": "any"}
        return _key(bound=self.mdp.fingerprint, **asked)

    @property
    def what(self) -> str:
        """The task in a few words."""
        return f"lower bound of {self.instance}"

    def perform(self) -> Record | None:
        """Do it; None if interrupted."""
        try:
            bound = lower_bound(self.mdp, self.epsilon, self.delta, max_seconds=self.seconds)
        except BestPolicyError as error:
            return {"samples": None, "reason": str(error)}
        if bound.interrupted and bound.reason.startswith("interrupted"):
            return None
        return {"samples": float(bound.samples_lower_bound), "reason": bound.reason}


@dataclass(frozen=True, eq=False)
class Price:
    """What the uncertified plug-in needs, which is to be found out."""

    instance: str
    mdp: LinearMDP
    epsilon: float
    seed: int
    seconds: float

    @property
    def key(self) -> str:
        """Everything that decides the result."""
        return _key(plug_in=self.mdp.fingerprint, epsilon=self.epsilon, seed=self.seed, seconds=self.seconds)

    @property
    def what(self) -> str:
        """The task in a few words."""
        return f"plug-in on {self.instance}"

    def perform(self) -> Record | None:
        """Do it; None if interrupted."""
        try:
            found = plug_in_samples(self.mdp, self.epsilon, seed=self.seed, max_seconds=self.seconds)
        except KeyboardInterrupt:
            return None
        return {"samples": found.samples, "share": found.share, "runs": found.runs, "reason": found.reason}


Task = Run | Bound | Price
Finished = Generator[tuple[Task, Record | None], None, None]


def carry_out(
    tasks: Sequence[Task],
    executor: Executor | None,
    workers: int | None,
    store: str | PathLike[str] | None,
    progress: Progress | None,
) -> tuple[dict[str, Record], bool]:
    """Do the tasks that no file remembers; return their records by key, and whether Ctrl-C ended it."""
    ledger = None if store is None else Ledger(store)
    records: dict[str, Record] = {}
    try:
        wanted = {task.key: task for task in tasks}
        if ledger is not None:
            known = {key: ledger.get(key) for key in wanted}
            records = {key: record for key, record in known.items() if record is not None}
        missing = [task for key, task in wanted.items() if key not in records]

        def tell(what: str) -> None:
            if progress is not None:
                progress(len(records), len(wanted), what)

        if missing:
            tell(missing[0].what)
        with closing(_finished(missing, executor, workers)) as finished:
            for task, record in finished:
                if record is None:
                    return records, True
                if ledger is not None and "cannot" not in record:
                    ledger.put(task.key, record)
                records[task.key] = record
                tell(task.what)
    except KeyboardInterrupt:
        return records, True
    except BrokenExecutor:
        raise BestPolicyError(
            "a worker process died, perhaps for want of memory. Use fewer workers; a store keeps what is finished."
        ) from None
    finally:
        if ledger is not None:
            ledger.close()
    return records, False


def _finished(tasks: Sequence[Task], executor: Executor | None, workers: int | None) -> Finished:
    """Perform the tasks and yield each with its record, as they are finished."""
    if executor is not None:
        futures = {executor.submit(task.perform): task for task in tasks}
        try:
            yield from _as_completed(futures)
        finally:
            for future in futures:
                future.cancel()
    elif workers is not None and tasks:
        pool = ProcessPoolExecutor(min(int(workers), len(tasks)), get_context("spawn"))
        try:
            with _no_interrupts():  # inherited by the workers: Ctrl-C is for this process to handle
                futures = {pool.submit(task.perform): task for task in tasks}
            yield from _as_completed(futures)
        except BaseException:
            for process in dict(getattr(pool, "_processes", None) or {}).values():
                process.kill()  # nobody wants to wait for the runs that they are at
            raise
        finally:
            pool.shutdown()
    else:
        for task in tasks:
            yield task, task.perform()


def _as_completed(futures: dict[Future[Record | None], Task]) -> Finished:
    for future in as_completed(futures):
        yield futures[future], future.result()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def parameters(algorithm: Algorithm) -> Record:
    """Parameters of an algorithm as JSON knows them; numbers that are not finite become their names."""
    return {name: _plain(value) for name, value in parameters_of(algorithm).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def _key(**parts: Any) -> str:
    return json.dumps(parts | {"version": __version__}, sort_keys=True)
