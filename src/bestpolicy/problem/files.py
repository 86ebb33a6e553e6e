"""Model files: one ``.npz`` of plain arrays, never a pickle, so that loading a stranger's file runs no code.

Keys: features (S, A, d); discount or horizon; optionally mask (S, A), theta ((d,) or (H, d)) and mu ((S, d) or
(H, S, d)).
"""

from __future__ import annotations

import io
import os
import zipfile
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, frozen
from bestpolicy._numerics.inputs import file_path
from bestpolicy.errors import InvalidInput, did_you_mean
from bestpolicy.problem.problem import Problem

_KEYS = ("features", "theta", "mu", "discount", "horizon", "mask")


def read_arrays(path: str | PathLike[str]) -> tuple[Problem, FloatArray | None, FloatArray | None]:
    """Read a problem and, if the file has them, θ and μ."""
    if not os.path.isfile(file_path("path", path)):
        raise InvalidInput(f"no such file: {path}. Give the path of an .npz model file.")
    with open(path, "rb") as file:
        return from_file(file, str(path))


def from_file(file: BinaryIO, path: str) -> tuple[Problem, FloatArray | None, FloatArray | None]:
    """Read a problem and, if it has them, θ and μ from an open file; `path` is its name in messages."""
    arrays = _read(file, path)
    unknown = sorted(set(arrays) - set(_KEYS))
    if unknown:
        hint = did_you_mean(unknown[0], _KEYS)
        raise InvalidInput(f"{path} has an unknown key {unknown[0]!r}. Expected {', '.join(_KEYS)}.{hint}")
    if "features" not in arrays:
        raise InvalidInput(f"{path} lacks the key 'features' (S, A, d). It has: {', '.join(arrays) or 'nothing'}.")
    problem = Problem(
        arrays["features"],
        discount=_scalar(path, arrays, "discount"),
        horizon=_scalar(path, arrays, "horizon"),
        mask=arrays.get("mask"),
    )
    return problem, arrays.get("theta"), arrays.get("mu")


def write_arrays(
    path: str | PathLike[str], problem: Problem, *, theta: FloatArray | None = None, mu: FloatArray | None = None
) -> None:
    """Write a problem and, if given, θ and μ."""
    write_file(path, to_bytes(problem, theta=theta, mu=mu))


def write_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file, or say why that cannot be done."""
    own = file_path("path", path)
    try:
        with open(own, "wb") as file:
            file.write(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"cannot write {os.fspath(own)}: {reason}. Give a file in a folder that exists and may be written."
        ) from None


def to_bytes(problem: Problem, *, theta: FloatArray | None = None, mu: FloatArray | None = None) -> bytes:
    """Return the content of a model file."""
    arrays: dict[str, Any] = {"features": problem.features}
    if problem.discount is not None:
        arrays["discount"] = np.float64(problem.discount)
    if problem.horizon is not None:
        arrays["horizon"] = np.int64(problem.horizon)
    if not problem.mask.all():
        arrays["mask"] = problem.mask
    if theta is not None and mu is not None:
        arrays |= {"theta": theta, "mu": mu}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _read(file: BinaryIO, path: str) -> dict[str, Any]:
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InvalidInput(f"{path} is a single array, not an .npz archive of named arrays.")
        arrays = {key: archive[key] for key in archive.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("something else than arrays")
        return {key: frozen(array) for key, array in arrays.items()}
    except InvalidInput:
        raise
    except MemoryError:
        raise InvalidInput(f"{path} says that it has arrays which need more memory than there is. Mend it.") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        archive = zipfile.is_zipfile(file)
        what = "holds pickled objects" if archive and "pickle" in str(error).lower() else "is not a readable .npz file"
        raise InvalidInput(f"{path} {what}. Save plain arrays with numpy.savez or LinearMDP.save.") from None


def _scalar(path: str, arrays: dict[str, Any], key: str) -> Any:
    if key not in arrays:
        return None
    value = arrays[key]
    if value.size != 1 or not np.issubdtype(value.dtype, np.number):
        raise InvalidInput(f"{key} in {path} must be a single number. Got {value.dtype} {value.shape} instead.")
    return value.item()
