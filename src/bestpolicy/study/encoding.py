"""Rows of a study as plain bytes, never pickled: reading a stranger's file runs no code.

Sizes that a row declares are checked against its length, and against a limit, before anything is allocated.
"""

from __future__ import annotations

import io
import json
from math import prod
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import StoreError
from bestpolicy.samples import Tally

_TALLY = b"tally 2\n"
_LARGEST = 2**31  # bytes that the arrays of one tally may take
_DTYPES = ("<i8", "<f8", "|b1")


def tally_to_bytes(tally: Tally) -> bytes:
    """Return a tally as bytes; of the next states only those that occurred.

    A mark, four whole numbers (stages, pairs, states, and cells in use), and then the arrays one after the other, all
    little-endian with eight bytes a number.
    """
    cells = np.flatnonzero(tally.next_counts)
    sizes = np.array([*tally.next_counts.shape, len(cells)], "<i8")
    counts, rewards = tally.next_counts.ravel()[cells], tally.next_rewards.ravel()[cells]
    whole = (array.astype("<i8", copy=False).tobytes() for array in (sizes, tally.pairs, cells, counts))
    real = (array.astype("<f8", copy=False).tobytes() for array in (rewards, tally.squared_rewards))
    return b"".join((_TALLY, *whole, *real))


def tally_from_bytes(data: bytes) -> Tally:
    """Read a tally that `tally_to_bytes` wrote; its sums were checked then, and their total is where they are used."""
    try:
        if not data.startswith(_TALLY):
            return _tally_of_the_first_version(data)
        start = len(_TALLY)
        stages, pairs, states, used = np.frombuffer(data, "<i8", 4, start).tolist()
        if min(stages, pairs, states, used) < 0 or len(data) != start + 8 * (4 + pairs + 3 * used + stages * pairs):
            raise ValueError("its length does not fit")
        whole = np.frombuffer(data, "<i8", pairs + 2 * used, start + 32).astype(np.int64)
        real = np.frombuffer(data, "<f8", used + stages * pairs, start + 32 + whole.nbytes).astype(np.float64)
        index, cells, counts = whole[:pairs], whole[pairs : pairs + used], whole[pairs + used :]
        return _spread((stages, pairs, states), index, cells, counts, real[:used], real[used:])
    except (ValueError, IndexError, EOFError, TypeError, OverflowError) as error:
        raise StoreError(f"a stored tally is damaged ({error}). Take a copy of the file that is whole.") from None


def samples_in(data: bytes) -> int:
    """Return the number of samples of a tally that `tally_to_bytes` wrote."""
    if not data.startswith(_TALLY):
        return tally_from_bytes(data).samples
    try:
        pairs, used = (int.from_bytes(data[start : start + 8], "little") for start in (16, 32))
        return int(np.frombuffer(data, "<i8", used, 40 + 8 * (pairs + used)).sum())
    except (ValueError, OverflowError) as error:
        raise StoreError(f"a stored tally is damaged ({error}). Take a copy of the file that is whole.") from None


def _tally_of_the_first_version(data: bytes) -> Tally:
    buffer = io.BytesIO(data)
    shape, *arrays = (np.lib.format.read_array(buffer, allow_pickle=False) for _ in range(6))
    return _spread(tuple(shape.tolist()), *arrays)


def _spread(
    shape: tuple[int, ...],
    pairs: IntArray,
    cells: IntArray,
    counts: IntArray,
    rewards: FloatArray,
    squares: FloatArray,
) -> Tally:
    if 16 * prod(shape) > _LARGEST:
        raise ValueError(f"it would take {16 * prod(shape):.2g} bytes")
    next_counts, next_rewards = np.zeros(shape, np.int64), np.zeros(shape)
    next_counts.ravel()[cells], next_rewards.ravel()[cells] = counts, rewards
    return Tally._trusted(pairs, next_counts, next_rewards, squares.reshape(shape[:2]))


def policy_from_bytes(data: bytes) -> IntArray:
    """Read a policy that an older version stored."""
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False).astype(np.int64)
    except (ValueError, EOFError, TypeError) as error:
        raise StoreError(f"a stored policy is damaged ({error}).") from None


def pack(content: dict[str, Any]) -> bytes:
    """Return nested dicts of arrays, numbers and texts as bytes: their outline as JSON, and then the arrays."""
    arrays: list[bytes] = []

    def outlined(node: Any) -> Any:
        if isinstance(node, np.ndarray):
            plain = np.ascontiguousarray(node, dtype=node.dtype.newbyteorder("<"))
            arrays.append(plain.tobytes())
            return {"array": [plain.dtype.str, *plain.shape]}
        if isinstance(node, dict):
            return {key: outlined(value) for key, value in node.items()}
        return node.item() if isinstance(node, np.generic) else node

    outline = json.dumps(outlined(content)).encode()
    return b"".join((len(outline).to_bytes(8, "little"), outline, *arrays))


def unpack(data: bytes) -> dict[str, Any]:
    """Read what `pack` wrote."""
    start = 8 + int.from_bytes(data[:8], "little")

    def filled(node: Any) -> Any:
        nonlocal start
        if not isinstance(node, dict):
            return node
        if list(node) != ["array"]:
            return {key: filled(value) for key, value in node.items()}
        dtype, *shape = node["array"]
        if dtype not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("an array of an unknown kind")
        array = np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
        start += array.nbytes
        return array.astype(array.dtype.newbyteorder("="))

    try:
        content = filled(json.loads(data[8:start]))
        if not isinstance(content, dict) or start != len(data):
            raise ValueError("its length does not fit")
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise StoreError(f"a stored request is damaged ({error}). Take a copy of the file that is whole.") from None
    return content
