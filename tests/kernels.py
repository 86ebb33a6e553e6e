"""Which BLAS kernels and vector instructions this processor can run: other machines, as far as they can be had here.

OpenBLAS and NumPy choose code for the processor when they are loaded. Environment variables make them choose that of
another one, in a fresh process. There is one process for each such machine, kept for all tests that ask for it, as
starting it takes longer than most of what it is asked to do.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent

# By architecture, oldest first; OpenBLAS knows more names, but most of them stand for the code of one of these.
_KERNELS = {
    "x86_64": ("Prescott", "Nehalem", "Sandybridge", "Haswell", "SkylakeX"),
    "amd64": ("Prescott", "Nehalem", "Sandybridge", "Haswell", "SkylakeX"),
    "aarch64": ("ARMV8", "NEOVERSEN1", "NEOVERSEV1"),
    "arm64": ("ARMV8", "NEOVERSEN1", "VORTEX"),
}

# Products, factorisations and eigenvalues, so that code which this processor lacks is met here and not in a test.
_PROBE = """
import numpy as np, threadpoolctl
matrix = np.random.default_rng(0).normal(size=(65, 65))
square = matrix @ matrix.T + np.eye(65)
for answer in (matrix @ matrix[0], matrix[0] @ matrix[1], np.linalg.inv(matrix), np.linalg.cholesky(square)):
    assert np.isfinite(answer).all()
assert np.linalg.eigvalsh(square).min() > 0 and np.linalg.svd(matrix)[1].min() > 0
print(*[each["architecture"] for each in threadpoolctl.threadpool_info() if each["internal_api"] == "openblas"][:1])
"""

# Runs one script after the other, each in a namespace of its own, and answers with what it printed or how it failed.
_MACHINE = """
import contextlib, io, json, os, sys, traceback
answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
for line in sys.stdin:
    script, *sys.argv[1:] = json.loads(line)
    printed, failure = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    except BaseException:
        failure = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failure]), file=answers, flush=True)
"""


@cache
def runnable_kernels() -> list[str]:
    """Names for OPENBLAS_CORETYPE that run here and choose different code, oldest first; empty without OpenBLAS."""
    names = _KERNELS.get(platform.machine().lower(), ())
    machines = {name: _Machine({"OPENBLAS_CORETYPE": name}) for name in names}
    for machine in machines.values():
        machine.ask(_PROBE)
    found: dict[str, str] = {}
    for name, machine in machines.items():
        try:
            chosen = machine.answer().strip()
        except MachineError:  # a kernel that this processor cannot run dies of an illegal instruction
            chosen = ""
        if chosen and found.setdefault(chosen, name) == name:  # an unknown name changes nothing
            _machines[_key(machine.environment)] = machine
        else:
            machine.close()
    return list(found.values())


@cache
def dispatched_features() -> list[str]:
    """Vector instructions beyond the least that this NumPy requires, for NPY_DISABLE_CPU_FEATURES."""
    try:
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    except ImportError:  # NumPy 1
        from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    return [feature for feature in __cpu_dispatch__ if __cpu_features__.get(feature)]


@cache
def other_machines() -> dict[str, dict[str, str]]:
    """Environments in which a process computes as on another processor, by a name for messages.

    The last of them has the oldest kernel, and no vector instructions either that NumPy and the C library could do
    without.
    """
    oldest, *newer = runnable_kernels() or [""]
    without = {"OPENBLAS_CORETYPE": oldest} if oldest else {}
    if dispatched_features():
        without["NPY_DISABLE_CPU_FEATURES"] = " ".join(dispatched_features())
    if platform.libc_ver()[0] == "glibc":  # its exp, log and pow, too, have versions for newer processors
        without["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4"
    return {kernel: {"OPENBLAS_CORETYPE": kernel} for kernel in newer} | {"no vector instructions": without}


def extreme_machines() -> dict[str, dict[str, str]]:
    """The newest and the oldest of the other machines."""
    return dict(list(other_machines().items())[-2:])


def outputs(script: str, *arguments: str, machines: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """What a script prints on each of the other machines, with the arguments in sys.argv; raises where it fails."""
    chosen = other_machines() if machines is None else machines
    asked = {}
    for name, environment in chosen.items():
        asked[name] = _machines.setdefault(_key(environment), _Machine(environment))
        asked[name].ask(script, *arguments)
    return {name: machine.answer() for name, machine in asked.items()}


class MachineError(AssertionError):
    """A script that failed, or took its process with it."""


class _Machine:
    """A process of its own, started when it is first asked."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.process: subprocess.Popen[str] | None = None

    def ask(self, script: str, *arguments: str) -> None:
        if self.process is None:
            own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MACHINE],
                env=own | self.environment,
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            atexit.register(self.close)
        print(json.dumps([script, *arguments]), file=self.process.stdin, flush=True)

    def answer(self) -> str:
        assert self.process is not None
        line = self.process.stdout.readline()
        if not line:
            raise MachineError(f"with {self.environment}: the process ended with exit code {self.process.wait()}")
        printed, failure = json.loads(line)
        if failure is not None:
            raise MachineError(f"with {self.environment}:\n{failure}")
        return str(printed)

    def close(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.kill()
            self.process = None


_machines: dict[tuple[tuple[str, str], ...], _Machine] = {}


def _key(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(environment.items()))
