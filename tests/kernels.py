"""Which BLAS kernels and vector instructions this processor can run: other machines, as far as they can be had here.

OpenBLAS and NumPy choose code for the processor when they are loaded. Environment variables make them choose that of
another one, in a fresh process.
"""

from __future__ import annotations

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


@cache
def runnable_kernels() -> list[str]:
    """Names for OPENBLAS_CORETYPE that run here and choose different code, oldest first; empty without OpenBLAS."""
    names = _KERNELS.get(platform.machine().lower(), ())
    probes = [(name, _start(_PROBE, {"OPENBLAS_CORETYPE": name})) for name in names]
    found: dict[str, str] = {}
    for name, probe in probes:
        chosen = probe.communicate()[0].strip()
        # A kernel that this processor cannot run dies of an illegal instruction; an unknown name changes nothing.
        if probe.returncode == 0 and chosen:
            found.setdefault(chosen, name)
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
    """Environments in which a process computes as on another processor, by a name for messages."""
    machines = {kernel: {"OPENBLAS_CORETYPE": kernel} for kernel in runnable_kernels()}
    oldest = dict(machines[runnable_kernels()[0]]) if machines else {}
    if dispatched_features():
        oldest["NPY_DISABLE_CPU_FEATURES"] = " ".join(dispatched_features())
    if platform.libc_ver()[0] == "glibc":  # its exp, log and pow, too, have versions for newer processors
        oldest["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4"
    return machines | {"no vector instructions": oldest}


def outputs(script: str, *arguments: str, machines: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """What a script prints on each of the other machines; raises where it fails."""
    chosen = other_machines() if machines is None else machines
    processes = {name: _start(script, environment, *arguments) for name, environment in chosen.items()}
    printed = {}
    for name, process in processes.items():
        out, err = process.communicate()
        assert process.returncode == 0, f"with {chosen[name]}: {err}"
        printed[name] = out
    return printed


def _start(script: str, environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if name not in ("OPENBLAS_CORETYPE", "OPENBLAS_VERBOSE")}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=own | dict(environment),
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
