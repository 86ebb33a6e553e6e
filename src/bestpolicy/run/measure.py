"""What runs where the simulator is, in this process or on a worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from glob import escape, glob
from hashlib import sha256
from typing import Any, cast

from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.samples import Draws, Episodes, Tally, answer_ends
from bestpolicy.simulators import ForwardModel, GenerativeModel, Model
from bestpolicy.simulators.calls import Calls, Paused, recording
from bestpolicy.study import Query, Study
from bestpolicy.study.queries import check_tally

BEGUN = "bestpolicy-begun"  # what a Dask worker's message that it begins is filed under


Stopping = Callable[[], bool]


@dataclass(frozen=True)
class Record:
    """Where the calls of a query are put on record, and when to stop.

    Attributes
    ----------
    path : str, optional
        File beside that of the study; none without one.
    key : bytes
        Stands for the query.
    until : float, optional
        Deadline, on this machine's `time.monotonic`.
    """

    path: str | None = None
    key: bytes = bytes(32)
    until: float | None = None

    @classmethod
    def of(cls, study: Study, query: Query, until: float | None = None) -> Record:
        """Return the record of a query of a study."""
        if study.calls_file is None or isinstance(query.wanted, Draws):  # these begin anew, as they were
            return cls(until=until)
        path, root = study.calls_file
        digest = sha256(f"{root} {query.seed} {query.index} {query.attempt} ".encode())
        query.wanted.sign(digest)
        return cls(f"{path}.{query.index}", digest.digest(), until)

    def open(self, stopping: Stopping = lambda: False) -> Calls:
        """Open the file, to take what it holds and to add to it."""
        return Calls(self.path, self.key, self.until, stopping)

    def remove(self) -> None:
        """Remove the file: the query is answered."""
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)


def remove_records(study: Study) -> None:
    """Remove what an interrupted run of a study that has ended may have left beside its file."""
    if study.calls_file is not None:
        for path in glob(escape(study.calls_file[0]) + ".*"):
            with suppress(OSError):
                os.unlink(path)


def measure(model: Model, query: Query, end_with_parent: bool = False, calls: Record | Calls | None = None) -> Tally:
    """Answer one query."""
    if end_with_parent:
        _end_with_parent(os.getpid())
    kept = calls.open() if isinstance(calls, Record) else calls or Calls()
    with simulating(), recording(kept):
        wanted = query.wanted
        if isinstance(wanted, Episodes):
            tally = cast(ForwardModel, model).rollout(wanted, query.rng())
        elif isinstance(wanted, Draws):
            tally = cast(Any, model).sample(wanted, query.rng())
        else:
            pulls, known = answer_ends(wanted, model.problem)  # no simulator has to know what comes after the end
            tally = cast(GenerativeModel, model).sample(pulls, query.rng())
            tally = tally if known is None else tally + known
        check_tally(model.problem, tally, wanted)
        if not wanted.answered_by(tally) and wanted.minus(tally).total:
            raise InvalidInput(f"{wanted.total} samples were asked for, the tally has {tally.samples}.")
    return tally


@contextmanager
def simulating() -> Iterator[None]:
    """Make a `SimulatorError`, which survives every journey, of whatever goes wrong in here; Ctrl-C is Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, Paused):
        raise
    except InvalidInput as error:
        failure = SimulatorError(f"the simulator's answer cannot be used: {one_line(error)}")
        failure.final = True
        raise failure from error
    except BaseException as error:
        if type(error) is SimulatorError:
            error.final = error.final or isinstance(error.__cause__, InvalidInput)  # a cause does not travel
            raise
        raise SimulatorError(one_line(error), getattr(error, "partial", None)) from error


def measure_on_dask(model: Model, query: Query, key: str) -> Tally:
    """Say that the query begins, and answer it."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(BEGUN, {"begun": key, "worker": worker.address})
    return measure(model, query)


def begin_worker(initializer: Callable[..., object] | None = None, arguments: tuple[Any, ...] = ()) -> None:
    """Prepare a process: it ends with the one that started it, and leaves Ctrl-C to that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(os.getpid())
    if initializer is not None:
        initializer(*arguments)


@cache
def _end_with_parent(process: int) -> None:
    """Have this process end when the one that started it does, whatever the simulator is doing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    with suppress(ImportError, AttributeError, OSError):
        # On Linux the kernel does it: there a simulator that lets no other thread run cannot prevent it.
        import fcntl

        pipe = parent.sentinel  # closes with the parent
        fcntl.fcntl(pipe, fcntl.F_SETOWN, process)
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
