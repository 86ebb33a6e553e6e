"""Workers that die, hang, raise and lie, in pools of processes and threads and on a Dask cluster.

The answer must be that of an undisturbed run, or the failure one exception of this package.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import bestpolicy as bp
from tests.attack.kills import differences
from tests.attack.sandbox import Found, attempt
from tests.models import near_tie

MDP = near_tie(0.3)
_ASKED: dict[str, Any] = {"epsilon": 0.6, "delta": 0.1, "algorithm": "tight", "seed": 2, "calls_per_query": 100}


class Disturbed(bp.ExactSimulator):
    """Does something bad the first few times that it is asked; files count how often."""

    def __init__(self, folder: str, deed: str, times: int) -> None:
        super().__init__(MDP)
        self.folder, self.deed, self.times = folder, deed, times

    def sample(self, pulls: bp.Pulls, rng: np.random.Generator) -> bp.Tally:
        """Misbehave, or answer."""
        for number in range(self.times):
            try:
                os.close(os.open(Path(self.folder, str(number)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return self._misbehave(pulls, rng)
        return super().sample(pulls, rng)

    def _misbehave(self, pulls: bp.Pulls, rng: np.random.Generator) -> Any:
        if self.deed == "exit":
            os._exit(1)
        if self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.deed == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.deed == "hang":
            time.sleep(1000)
        if self.deed == "raise":
            raise RuntimeError("out of coffee")
        if self.deed == "raise something that cannot be pickled":
            raise _Unpicklable
        if self.deed == "answer nothing":
            return None
        if self.deed == "answer too little":
            return super().sample(bp.Pulls(pulls.pairs, pulls.counts // 2), rng)
        if self.deed == "exhaust the memory":
            return bytearray(10**15)
        raise SystemExit(3)


class _Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


class _Forgetful(Executor):
    """Never answers some futures, and breaks them instead."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Answer at once, or cancel."""
        future: Future[Any] = Future()
        self.submitted += 1
        if self.submitted % 7 == 0:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(call(*arguments, **options))
        return future


def _pool() -> Executor:
    return ProcessPoolExecutor(2, get_context("fork"))


def _disturbed(deed: str, times: int, hire: Any, seconds: float | None) -> str:
    """Run with workers that misbehave; an exception of the package is fine where they never stop doing so."""
    expected = bp.identify(bp.ExactSimulator(MDP), **_ASKED)
    with tempfile.TemporaryDirectory() as folder:
        model = Disturbed(folder, deed, times)
        found = bp.identify(model, **_ASKED, executor=hire, query_seconds=seconds)
    return _compared(expected, found)


def _compared(expected: bp.Result, found: bp.Result) -> str:
    from dataclasses import replace

    return differences(expected, replace(found, warnings=expected.warnings))


def _killed_from_outside(count: int) -> str:
    """Workers are killed by somebody else while they work."""
    expected = bp.identify(bp.ExactSimulator(MDP), **_ASKED)
    pools: list[ProcessPoolExecutor] = []

    def hire() -> Executor:
        pools.append(ProcessPoolExecutor(2, get_context("fork")))
        return pools[-1]

    def kill() -> None:
        for _ in range(count):
            time.sleep(0.05)
            for process in list((pools[-1]._processes or {}).values())[:1] if pools else []:
                process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = bp.identify(bp.ExactSimulator(MDP), **_ASKED, executor=hire)
    finally:
        killer.join()
    return _compared(expected, found)


def _on_dask(deed: str, times: int) -> str:
    """Run on a cluster whose workers die; the nannies start others."""
    import distributed

    expected = bp.identify(bp.ExactSimulator(MDP), **_ASKED)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=60) as cluster,
        distributed.Client(cluster) as client,
    ):
        warnings.simplefilter("ignore")
        model = Disturbed(folder, deed, times)
        found = bp.identify(model, **_ASKED, executor=lambda: client.get_executor(retries=5))
    return _compared(expected, found)


def scenarios() -> dict[str, Callable[[], str]]:
    """All of them, by name."""
    found: dict[str, Callable[[], str]] = {}
    deeds = ("exit", "kill", "segfault", "raise", "raise something that cannot be pickled", "answer nothing")
    for deed in (*deeds, "answer too little", "exhaust the memory", "leave"):
        for times in (1, 1000):
            found[f"pool: {deed}, {times} times"] = partial(_disturbed, deed, times, _pool, None)
    found["pool: hang, 1 times"] = partial(_disturbed, "hang", 1, _pool, 3.0)
    found["threads: raise, 1 times"] = partial(_disturbed, "raise", 1, partial(ThreadPoolExecutor, 3), None)
    found["an executor that forgets"] = partial(_disturbed, "raise", 0, _Forgetful, None)
    found["an executor that is none"] = partial(_disturbed, "raise", 0, lambda: 5, None)
    found["a pool that is shut down"] = partial(_disturbed, "raise", 0, _shut_down, None)
    found["pool: killed from outside"] = partial(_killed_from_outside, 3)
    for deed in ("exit", "raise", "answer nothing"):
        found[f"dask: {deed}, 1 times"] = partial(_on_dask, deed, 1)
    return found


def _shut_down() -> Executor:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    return pool


def attack(count: int, seed: int = 0) -> Found:
    """Let workers misbehave in all these ways, or in some by chance."""
    found, listed = Found("workers and clusters"), list(scenarios().items())
    random.Random(seed).shuffle(listed)
    for name, run in listed[:count]:
        found.note(f"python -m tests.attack workers --seed {seed} ({name})", attempt(run, memory=2**40))
    return found
