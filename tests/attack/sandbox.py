"""Try something in a process of its own, with limits: whatever it does, the attack goes on and says what happened."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from bestpolicy.errors import BestPolicyError

SECONDS = 60  # without an answer after which something hangs
_END = b"\0"
MEMORY = 2 * 2**30  # bytes of address space beyond those of a process that has just begun


@dataclass
class Found:
    """What came out of one class of attacks.

    Attributes
    ----------
    name : str
    tried : int
    failures : list of str
        One line each, with which it happens again.
    """

    name: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def note(self, how: str, wrong: str) -> None:
        """Count one attack; `wrong` is empty if it was handled."""
        self.tried += 1
        if wrong:
            self.failures.append(f"{how}  # {' '.join(wrong.split())[:300]}")


def attempt(call: Callable[[], str | None], seconds: float = SECONDS, memory: int = MEMORY) -> str:
    """Run a call in a child process; return what went wrong, or nothing.

    The call returns what it finds wrong, or nothing; an exception of this package is a clean refusal.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which BLAS does not have here
        child = os.fork()
    if child == 0:
        os.close(reader)
        _child(call, writer, memory)
    os.close(writer)
    answer = None
    try:
        answer = _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        if answer is None:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # whatever it has started
    if answer is None:
        return f"no answer within {seconds:g} s"
    if os.WIFSIGNALED(status):
        return f"died of signal {os.WTERMSIG(status)}"
    return answer if answer or os.WEXITSTATUS(status) == 0 else f"ended with exit code {os.WEXITSTATUS(status)}"


def _read(reader: int, deadline: float) -> str | None:
    """What the child says until it ends; None if it does not in time."""
    said = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        piece = os.read(reader, 65536)
        said += piece
        if not piece or said.endswith(_END):  # what it has started may keep the pipe open
            return said.removesuffix(_END).decode(errors="replace")


def _child(call: Callable[[], str | None], writer: int, memory: int) -> None:
    try:
        os.setsid()
        gc.disable()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        warnings.simplefilter("ignore")
        used = _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            wrong = call() or ""
        except BestPolicyError:
            wrong = ""
        except BaseException as error:
            wrong = f"{type(error).__name__}: {error}"
        os.write(writer, wrong.encode(errors="replace")[:4000] + _END)
    finally:
        os._exit(0)


def _address_space() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**30
