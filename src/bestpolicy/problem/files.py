"""Model files: one ``.npz`` of plain arrays, never a pickle, so that loading a stranger's file runs no code.

Keys: features (S, A, d), or table (2,), the numbers of states and actions, if every pair has a coordinate of its own;
discount or horizon; optionally mask (S, A), of a table end_states (n,), in which the process is over, and end_reward,
what each step pays there (`Problem.end_reward`), theta ((d,) or (H, d)) and mu ((S, d) or (H, S, d)). A sparse μ has
three keys instead: probabilities and next_states (n,), those of each coordinate one after the other, and ends
(m, d + 1), where those of each begin and end; m is 1, if all steps are alike, or H.

A small file may unpack to anything, so the names, types and shapes that it declares are weighed before any array is
made: memory is limited to `max_bytes`, else to the environment variable BESTPOLICY_MAX_MODEL_BYTES, else to 1 GiB, and
the work of checking the model in proportion.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from os import PathLike
from typing import Any, BinaryIO

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, Sparse, enough_memory, frozen, readable_size
from bestpolicy._numerics.inputs import file_path, whole
from bestpolicy.errors import BestPolicyError, InvalidInput, did_you_mean
from bestpolicy.problem.problem import Problem

LIMIT = "BESTPOLICY_MAX_MODEL_BYTES"  # the environment variable
_LIMIT = 2**30
_SPARSE = ("probabilities", "next_states", "ends")
_ENDS = ("end_states", "end_reward")
_KEYS = ("features", "theta", "mu", "discount", "horizon", "mask", "table", *_SPARSE, *_ENDS)
_BYTES_A_PAIR = 32  # that a table takes
_OPERATIONS_A_BYTE = 2**11  # of the limit: minutes of checks at 1 GiB
_LONGEST_READ = 2**20  # of what is packed: NumPy reads less at a time, and no list of six members is as long
_LONGEST_HEADER = 2**13  # of an array; NumPy's own have 128 bytes


def read_arrays(
    path: str | PathLike[str], max_bytes: int | None = None
) -> tuple[Problem, FloatArray | None, FloatArray | Sparse | None]:
    """Read a problem and, if the file has them, θ and μ."""
    name, limit = file_path("path", path), _limit(max_bytes)
    if os.path.isdir(name):
        raise InvalidInput(f"{name} is a folder. Give the path of an .npz model file.")
    if not os.path.isfile(name):
        raise InvalidInput(f"no such file: {name}. Give the path of an .npz model file.")
    with _one_error(name), open(name, "rb") as file:
        return from_file(file, name, limit)


def from_file(
    file: BinaryIO, path: str, max_bytes: int | None = None
) -> tuple[Problem, FloatArray | None, FloatArray | Sparse | None]:
    """Read a problem and, if it has them, θ and μ from an open file; `path` is its name in messages."""
    limit = _limit(max_bytes)
    with _one_error(path):
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise InvalidInput(f"{path} is a single array, not an .npz archive of named arrays.")
        archive = zipfile.ZipFile(_Frugal(file))
        members = _members(archive, path)
        shapes = {key: _declared_shape(archive, member, f"{key} in {path}") for key, member in members.items()}
        table = _table(_array(archive, members["table"]), path) if "table" in members else None
        with enough_memory(f"reading {path}", _require_within(limit, path, shapes, table)):
            arrays = {key: frozen(_array(archive, member)) for key, member in members.items()}
            known: dict[str, Any] = {key: _scalar(path, arrays, key) for key in ("discount", "horizon")}
            known["mask"] = arrays.get("mask")
            problem = (
                Problem(arrays["features"], **known)
                if table is None
                else Problem.tabular(*table, **known, ends=arrays.get("end_states", ()))
            )
            if "end_reward" in arrays:
                problem = problem.with_end_reward(_scalar(path, arrays, "end_reward"))
            mu = _sparse_mu(problem, arrays, path) if _SPARSE[0] in arrays else arrays.get("mu")
    return problem, arrays.get("theta"), mu


def write_arrays(
    path: str | PathLike[str],
    problem: Problem,
    *,
    theta: FloatArray | None = None,
    mu: FloatArray | Sparse | None = None,
) -> None:
    """Write a problem and, if given, θ and μ."""
    write_file(path, to_bytes(problem, theta=theta, mu=mu))


def write_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file, or say why that cannot be done."""
    name = file_path("path", path)
    try:
        with open(name, "wb") as file:
            file.write(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"cannot write {name}: {reason}. Give a file in a folder that exists and may be written."
        ) from None


def to_bytes(problem: Problem, *, theta: FloatArray | None = None, mu: FloatArray | Sparse | None = None) -> bytes:
    """Return the content of a model file."""
    arrays: dict[str, Any] = {}
    if problem.given_features is None:
        arrays["table"] = np.array(problem.mask.shape, np.int64)
    else:
        arrays["features"] = problem.given_features
    if problem.discount is not None:
        arrays["discount"] = np.float64(problem.discount)
    if problem.horizon is not None:
        arrays["horizon"] = np.int64(problem.horizon)
    if not problem.mask.all():
        arrays["mask"] = problem.mask
    if len(problem.ends):
        arrays |= {"end_states": problem.ends, "end_reward": np.float64(problem.end_reward)}
    if theta is not None and mu is not None:
        arrays |= {"theta": theta} | (_sparse_arrays(mu) if isinstance(mu, tuple) else {"mu": mu})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _sparse_arrays(mu: Sparse) -> dict[str, Any]:
    """Return the arrays of a sparse μ; of equal steps only one is kept."""
    steps = [one.T.tocsr() for one in (mu[:1] if all(one is mu[0] for one in mu) else mu)]
    begins = np.cumsum([0, *(step.nnz for step in steps)])[:-1]
    return {
        "probabilities": np.concatenate([step.data for step in steps]),
        "next_states": np.concatenate([step.indices for step in steps]).astype(np.int64),
        "ends": np.stack([begin + step.indptr.astype(np.int64) for begin, step in zip(begins, steps, strict=True)]),
    }


def _sparse_mu(problem: Problem, arrays: dict[str, Any], path: str) -> Sparse:
    """Return the sparse μ of each step, (S, d)."""
    data, indices, ends = (arrays[key] for key in _SPARSE)
    shape = (problem.dimension, problem.states)
    right = data.ndim == 1 and data.shape == indices.shape and ends.ndim == 2 and ends.shape[1] == shape[0] + 1
    if not right or len(ends) not in (1, problem.stages) or any(a.dtype.kind not in "iu" for a in (indices, ends)):
        raise InvalidInput(f"{path}: probabilities (n,), next_states (n,) and ends (1 or steps, d + 1) do not fit.")
    flat = ends.reshape(-1)
    joined = (ends[1:, 0] == ends[:-1, -1]).all() and flat[0] == 0 and flat[-1] == len(data)
    if not joined or (np.diff(flat) < 0).any() or indices.min(initial=0) < 0 or indices.max(initial=0) >= shape[1]:
        raise InvalidInput(f"{path}: next_states must be states, and ends must cut them into those of each coordinate.")
    steps = []
    for row in ends.astype(np.int64):
        some = slice(int(row[0]), int(row[-1]))
        rows = (data[some].astype(np.float64), indices[some].astype(np.int64), row - row[0])
        steps.append(csr_array(rows, shape=shape).T)
    return tuple(steps) if len(steps) == problem.stages else tuple(steps * problem.stages)


@contextmanager
def _one_error(path: str) -> Iterator[None]:
    """Whatever the readers of files, archives and arrays raise becomes one error."""
    try:
        yield
    except BestPolicyError:
        raise
    except Exception as error:  # they have dozens of kinds of exceptions for what is broken
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InvalidInput(
            f"{path} is not a readable .npz file{reason}. Save plain arrays with numpy.savez or LinearMDP.save."
        ) from None


def _members(archive: zipfile.ZipFile, path: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by key; refuse what is no key of a model."""
    members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    if unknown := sorted(set(members) - set(_KEYS)):
        hint = did_you_mean(unknown[0], _KEYS)
        raise InvalidInput(f"{path} has an unknown key {unknown[0]!r:.80}. Expected {', '.join(_KEYS)}.{hint}")
    if len(members) < len(archive.infolist()):
        raise InvalidInput(f"{path} has two arrays of the same name. Save each once, with numpy.savez.")
    if ("features" in members) == ("table" in members):
        wrong = "has both features and table. Keep one" if "table" in members else "lacks the key 'features' (S, A, d)"
        raise InvalidInput(f"{path} {wrong}. It has: {', '.join(members) or 'nothing'}.")
    if 0 < len(members.keys() & {*_SPARSE}) < len(_SPARSE) or ("mu" in members and _SPARSE[0] in members):
        raise InvalidInput(f"{path} must have mu, or all of {', '.join(_SPARSE)}. It has: {', '.join(members)}.")
    if members.keys() & {*_ENDS} and not members.keys() >= {"table", *_ENDS}:
        raise InvalidInput(
            f"{path} must have all of table, {', '.join(_ENDS)}, or no ends. It has: {', '.join(members)}."
        )
    return members


def _table(sizes: Any, path: str) -> tuple[int, int]:
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise InvalidInput(f"table in {path} must be the numbers of states and actions, two whole numbers.")
    return int(sizes[0]), int(sizes[1])


class _Frugal:
    """A file of which only little is read at a time, however long the list of members says that it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _LONGEST_READ:
            raise ValueError("the list of members is too long")
        return self._file.read(size)


def _declared_shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> tuple[int, ...]:
    """Return the shape of a member from its first bytes; refuse what is no plain array of numbers."""
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidInput(f"{name} is encrypted or packed in an unusual way. Save it with numpy.savez.")
    with archive.open(member) as stream:
        start = io.BytesIO(stream.read(_LONGEST_HEADER))
    version = np.lib.format.read_magic(start)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(start)
    if dtype.hasobject:
        raise InvalidInput(f"{name} holds pickled objects. Save plain arrays with numpy.savez or LinearMDP.save.")
    if dtype.kind not in "biuf":
        raise InvalidInput(f"{name} must hold real numbers. Got {dtype} instead.")
    if any(size < 1 for size in shape):
        raise InvalidInput(f"{name} must not be empty. Got shape {shape!s:.80} instead.")
    if member.file_size != start.tell() + prod(shape) * dtype.itemsize:
        raise InvalidInput(f"{name} is not as long as its shape {shape!s:.80} says. Save it again with numpy.savez.")
    return tuple(shape)


def _require_within(limit: int, path: str, shapes: dict[str, tuple[int, ...]], table: tuple[int, int] | None) -> int:
    """Return how many bytes a model takes; raise InvalidInput if they, or the work of checking it, are too many."""
    entries = sum(map(prod, shapes.values()))
    if table is None:
        *pairs, dimension = shapes["features"] or (1,)
        needed = 8 * (entries + dimension**2)
        operations = prod(pairs) * dimension * (dimension + prod(shapes.get("mu", ())[:-1]))
    else:
        needed = 24 * entries + _BYTES_A_PAIR * prod(table)
        operations = 100 * (entries + prod(table))
    if needed > limit or operations > _OPERATIONS_A_BYTE * limit:
        least = max(needed, -(-operations // _OPERATIONS_A_BYTE))
        raise InvalidInput(
            f"{path} would take {readable_size(needed)} of memory and {operations:.1g} multiplications, more than a "
            f"limit of {readable_size(limit)} allows. If you trust it: LinearMDP.load(path, max_bytes={least}), or set "
            f"the environment variable {LIMIT}={least}."
        )
    return needed


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        stream.read(1)  # beyond the end, where the checksum is compared
    return array


def _limit(max_bytes: int | None) -> int:
    if max_bytes is not None:
        return whole("max_bytes", max_bytes, 1)
    text = os.environ.get(LIMIT, "")
    return whole(LIMIT, int(text) if text.isdecimal() and len(text) < 20 else text or _LIMIT, 1)


def _scalar(path: str, arrays: dict[str, Any], key: str) -> Any:
    if key not in arrays:
        return None
    value = arrays[key]
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise InvalidInput(f"{key} in {path} must be a single number. Got {value.dtype} {value.shape} instead.")
    return value.item()
