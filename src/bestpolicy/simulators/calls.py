"""Single calls of a simulator, on record as they are answered: who stops in the midst of a query loses next to nothing.

A query may be a million calls. Their outcomes are put on record in a file beside the study's, in the order in which
they were made, each time with the state of the random stream: a call that takes a millisecond or longer as soon as it
is answered, faster ones as many as a millisecond holds. Whoever answers the query again takes what is on record as it
is and goes on with the stream as it was then, so that the answer is to the last bit the one that would have come
without the interruption, wherever that was. A record that is lost or damaged, or belongs to another query, costs no
more than its calls: they are made again, with the same outcome.

Episodes are on record whole (`trajectories`): nobody can put an environment that can only be stepped back into the
midst of one.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf
from typing import Any
from zlib import crc32

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray

_PAUSE = 0.001  # seconds between two entries: what faster calls may lose
_SHARE = 50  # an entry may take one part in so many of the time
_LARGEST = 2**30  # bytes of a record; calls of which there are more are fast
_MARK = b"bpcalls2"
_ENTRY = struct.Struct("<III")  # calls, bytes that go with them, checksum
_STREAM = struct.Struct("<16s16sII")


_CURRENT: ContextVar[Calls | None] = ContextVar("calls", default=None)


class Paused(BaseException):
    """The time is up, or somebody asked to stop, between two calls. Not an error of the simulator's."""


class Calls:
    """Calls of one query.

    Parameters
    ----------
    path : str, optional
        File to keep them in; if it exists and has the same key, what it holds is taken as it is.
    key : bytes
        32 bytes that stand for the query.
    until : float, optional
        When to stop, on the clock of `time.monotonic`.
    stopping : callable, optional
        Whether somebody asked to stop.

    Attributes
    ----------
    kept : int
        Calls on record.
    made : int
        Calls whose outcomes are known.
    due : float
        When `note` wants to be called again.
    told : list of bytes
        What a simulator put on record with its calls, besides them.
    """

    def __init__(
        self,
        path: str | None = None,
        key: bytes = bytes(32),
        until: float | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.due, self.kept, self.made = -inf, 0, 0
        self.told: list[bytes] = []
        self._glance = -inf  # when to ask again whether to stop
        self._until, self._stopping = inf if until is None else until, stopping
        self._rewards, self._next_states = np.zeros(0), np.zeros(0, np.int64)
        self._stream: dict[str, Any] | None = None
        self._taken = self._noted = self._size = 0
        self._before = self._block = 0
        self._path, self._file = path, None if path is None else self._open(path, key)

    def _open(self, path: str, key: bytes) -> int | None:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError:  # the record is a help, not a need
            return None
        with os.fdopen(os.dup(file), "rb") as reader:
            found = reader.read(min(os.fstat(file).st_size, _LARGEST + 2**20))  # room is made for all that is asked
        if found.startswith(_MARK + key):
            self._size = self._read(found, len(_MARK + key))
        else:
            self._size = 0
        os.ftruncate(file, self._size)
        os.lseek(file, 0, os.SEEK_END)
        if not self._size:
            self._size = os.write(file, _MARK + key)
        return file

    @property
    def keeps(self) -> bool:
        """Whether there is a file to keep them in."""
        return self._file is not None

    def _read(self, found: bytes, place: int) -> int:
        """Take all entries that are whole; return where they end."""
        rewards, states = [self._rewards], [self._next_states]
        while place + _ENTRY.size <= len(found):
            count, more, checksum = _ENTRY.unpack_from(found, place)
            begin = place + _ENTRY.size
            end = begin + _STREAM.size + 16 * count + more
            content = found[begin:end]
            if end > len(found) or crc32(content) != checksum:
                break
            self._stream = _unpacked(content)
            rewards.append(np.frombuffer(content, "<f8", count, _STREAM.size).astype(np.float64))
            states.append(np.frombuffer(content, "<i8", count, _STREAM.size + 8 * count).astype(np.int64))
            if more:
                self.told.append(content[-more:])
            place = end
        self._rewards, self._next_states = np.concatenate(rewards), np.concatenate(states)
        self.kept = len(self._rewards)
        return place

    def block(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
        """Return room for the outcomes of the next calls, and how many are known; the stream goes on from there."""
        rewards, next_states = np.empty(size), np.empty(size, dtype=np.int64)
        known = slice(self._taken, min(self._taken + size, len(self._rewards)))
        count = known.stop - known.start
        rewards[:count], next_states[:count] = self._rewards[known], self._next_states[known]
        self._taken, self._noted = known.stop, count
        self._before, self._block = self._before + self._block, size
        self.made = self._before + count
        if self._stream is not None and self._taken == len(self._rewards):
            rng.bit_generator.state = self._stream
            self._stream = None
        return rewards, next_states, count

    def note(
        self, rewards: FloatArray, next_states: IntArray, count: int, rng: np.random.Generator, more: bytes = b""
    ) -> None:
        """Put on record what is new of the first `count` outcomes of the block, and what else goes with it.

        Raises
        ------
        Paused
            If it is time to stop.
        """
        began = time.monotonic()
        self.made = self._before + count
        if self._file is not None and count > self._noted and self._size < _LARGEST:
            self._write(rewards[self._noted : count], next_states[self._noted : count], rng, more)
            self.kept += count - self._noted
            self._noted = count
        now = time.monotonic()
        if now >= self._until or self._stopping():
            raise Paused
        self.due = min(now + max(_PAUSE, _SHARE * (now - began)), self._until)

    def tick(self) -> None:
        """Stop between two steps of an episode if it is time to: it begins anew, and those before it are on record.

        Raises
        ------
        Paused
            If it is time to stop.
        """
        now = time.monotonic()
        if now >= self._glance:
            if now >= self._until or self._stopping():
                raise Paused
            self._glance = min(now + _PAUSE, self._until)

    def _write(self, rewards: FloatArray, next_states: IntArray, rng: np.random.Generator, more: bytes) -> None:
        numbers = rewards.astype("<f8").tobytes(), next_states.astype("<i8").tobytes()
        content = b"".join((_packed(rng), *numbers, more))
        assert self._file is not None
        try:
            self._size += os.write(self._file, _ENTRY.pack(len(rewards), len(more), crc32(content)) + content)
        except OSError:  # the disk is full, say: what is there counts, and nothing more is written
            self.close()

    def close(self, *, remove: bool = False) -> None:
        """Let go of the file; remove it once the query is answered."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if remove and self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)


@contextmanager
def recording(calls: Calls) -> Iterator[None]:
    """Have simulators whose calls can be told apart put them on record here."""
    token = _CURRENT.set(calls)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        calls.close()


def current_calls() -> Calls | None:
    """Return where to put calls on record, if anywhere."""
    return _CURRENT.get()


def tick() -> None:
    """Stop between two steps of an episode if it is time to."""
    calls = _CURRENT.get()
    if calls is not None:
        calls.tick()


def _packed(rng: np.random.Generator) -> bytes:
    known: Any = rng.bit_generator.state
    numbers = (known["state"][name].to_bytes(16, "little") for name in ("state", "inc"))
    return _STREAM.pack(*numbers, known["has_uint32"], known["uinteger"])


def _unpacked(content: bytes) -> dict[str, Any]:
    state, increment, has_half, half = _STREAM.unpack_from(content)
    numbers = {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(increment, "little")}
    return {"bit_generator": "PCG64", "state": numbers, "has_uint32": has_half, "uinteger": half}
