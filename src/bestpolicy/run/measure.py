"""What runs where the simulator is, in this process or on a worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from bestpolicy.errors import InvalidInput, SimulatorError, one_line
from bestpolicy.samples import Tally
from bestpolicy.simulators import GenerativeModel
from bestpolicy.study import Query
from bestpolicy.study.queries import check_tally

BEGUN = "bestpolicy-begun"  # what a Dask worker's message that it begins is filed under


def measure(model: GenerativeModel, query: Query, end_with_parent: bool = False) -> Tally:
    """Answer one query."""
    if end_with_parent:
        _end_with_parent(os.getpid())
    with simulating():
        tally = model.sample(query.pulls, query.rng())
        check_tally(model.problem, tally)
        if not query.pulls.answered_by(tally) and query.pulls.minus(tally).total:
            raise InvalidInput(f"{query.pulls.total} samples were asked for, the tally has {tally.samples}.")
    return tally


@contextmanager
def simulating() -> Iterator[None]:
    """Make a `SimulatorError`, which survives every journey, of whatever goes wrong in here; Ctrl-C is Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except InvalidInput as error:
        raise SimulatorError(f"the simulator's answer cannot be used: {one_line(error)}") from error
    except BaseException as error:
        if type(error) is SimulatorError:
            raise
        raise SimulatorError(one_line(error), getattr(error, "partial", None)) from error


def measure_on_dask(model: GenerativeModel, query: Query, key: str) -> Tally:
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
