"""A file that runs survive in.

One SQLite file holds any number of studies, each under a name: what the problem is, the settings, the seed, every
tally that was told, every check, the result, the versions. A study is deterministic given its answers, so to resume
it is to replay the answers into a new `Study` with the same settings; what comes after is bit for bit what would
have come without the interruption.

Each answer is one transaction in write-ahead mode: after a crash or a kill the file holds every answer that was told
and nothing else. One process writes at a time (an operating-system lock, which a killed process cannot leave
behind); readers never block it, and need no right to write. Arrays are stored as plain NumPy bytes, never pickled:
reading a stranger's file runs no code.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from os import PathLike
from typing import Any
from urllib.parse import quote

import numpy as np
import scipy

from bestpolicy._version import __version__
from bestpolicy.errors import InvalidInput, StoreError, did_you_mean
from bestpolicy.estimation import Tally
from bestpolicy.files import from_file, to_bytes
from bestpolicy.problem import FloatArray, IntArray, Problem
from bestpolicy.stopping import Check

SCHEMA = 2
_APPLICATION = 0x62706F6C  # marks the file as ours

_TABLES = """
CREATE TABLE study (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, fingerprint TEXT NOT NULL, problem BLOB NOT NULL,
    settings TEXT NOT NULL, versions TEXT NOT NULL, own BLOB, result TEXT, created TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE answer (
    study INTEGER NOT NULL REFERENCES study(id), position INTEGER NOT NULL, query INTEGER NOT NULL,
    attempt INTEGER NOT NULL, samples INTEGER NOT NULL, tally BLOB NOT NULL, PRIMARY KEY (study, position));
CREATE TABLE looked (
    study INTEGER NOT NULL REFERENCES study(id), position INTEGER NOT NULL, record TEXT NOT NULL, policy BLOB,
    PRIMARY KEY (study, position));
"""  # `policy` is NULL where it is that of the check before

_TALLY = b"tally 2\n"

_REMEDIES = {
    sqlite3.SQLITE_NOTADB: "Give a file that `--store` or Study(store=...) has written",
    sqlite3.SQLITE_CORRUPT: "The file is damaged: take a copy of it that is whole",
    sqlite3.SQLITE_FULL: "The disk is full: make room and go on with `resume`",
    sqlite3.SQLITE_READONLY: "The file or its folder may not be written: change that, or work on a copy",
    sqlite3.SQLITE_CANTOPEN: "Give the path of a file in a folder that exists and may be read (and written, to run)",
}


@dataclass(frozen=True)
class Record:
    """What a file says of a study.

    Attributes
    ----------
    name, fingerprint, created : str
    settings : dict
        epsilon, delta, algorithm and its parameters, seed, max_samples, calls_per_query, model.
    versions : dict
    result : dict or None
        As printed by ``--json``, once the study has ended.
    samples, answers : int
        Simulator calls and answers stored.
    checks : list of dict
    """

    name: str
    fingerprint: str
    created: str
    settings: dict[str, Any]
    versions: dict[str, str]
    result: dict[str, Any] | None
    samples: int
    answers: int
    checks: list[dict[str, Any]]


class Store:
    """A file of studies, open for reading or for writing.

    Parameters
    ----------
    path : path
    write : bool
        Take the writer's lock; the file is made if there is none.
    """

    def __init__(self, path: str | PathLike[str], *, write: bool = False) -> None:
        self.path = os.fspath(path)
        self._lock: int | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if os.path.isdir(self.path):
            raise InvalidInput(f"{self.path} is a folder. Give the path of a file of studies.")
        if not write and not os.path.isfile(self.path):
            raise InvalidInput(
                f"no such file: {self.path}. Give a file that `--store` or Study(store=...) has written."
            )
        if write:
            self._take_lock()
        try:
            with self._errors():
                self._db = sqlite3.connect(self.path, isolation_level=None) if write else self._open_to_read()
                self._prepare(write)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        if hasattr(self, "_db"):
            self._db.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
        if self._lock is not None:
            os.unlink(self.path + "-lock")
            os.close(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        """Names of the studies, oldest first."""
        with self._errors():
            return [row[0] for row in self._db.execute("SELECT name FROM study ORDER BY id")]

    def create(
        self, name: str, fingerprint: str, problem: bytes, settings: dict[str, Any], own_data: Tally | None = None
    ) -> int:
        """Begin a study and return its number."""
        versions = {"bestpolicy": __version__, "numpy": np.__version__, "scipy": scipy.__version__}
        versions["python"] = sys.version.split()[0]
        if name in self.names():
            raise InvalidInput(
                f"{self.path} already has a study named {name!r}. Go on with it (resume), or give another name."
            )
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO study (name, fingerprint, problem, settings, versions, own) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    name,
                    fingerprint,
                    problem,
                    json.dumps(settings),
                    json.dumps(versions),
                    None if own_data is None else tally_to_bytes(own_data),
                ),
            )
            return int(cursor.lastrowid or 0)

    def find(self, name: str | None) -> int:
        """Return the number of a study; without a name, of the only one."""
        names = self.names()
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            hint = did_you_mean(name, names) if name else ""
            known = ", ".join(names) or "none"
            asked = f"no study named {name!r} in {self.path}" if name else f"{self.path} has {len(names)} studies"
            raise InvalidInput(f"{asked}. Give the name of one of them: {known}.{hint}")
        with self._errors():
            return int(self._db.execute("SELECT id FROM study WHERE name = ?", (name,)).fetchone()[0])

    def problem(self, study: int) -> Problem:
        """Return the problem that the study belongs to."""
        with self._errors():
            content = bytes(self._db.execute("SELECT problem FROM study WHERE id = ?", (study,)).fetchone()[0])
        return from_file(io.BytesIO(content), self.path)[0]

    def own_data(self, study: int) -> Tally | None:
        """Return the samples from elsewhere that the study began with."""
        with self._errors():
            (content,) = self._db.execute("SELECT own FROM study WHERE id = ?", (study,)).fetchone()
        return None if content is None else tally_from_bytes(content)

    def append(self, study: int, position: int, query: int, attempt: int, tally: Tally) -> None:
        """Store one answer, in a transaction of its own."""
        row = (study, position, query, attempt, tally.samples, tally_to_bytes(tally))
        with self._errors():  # one statement is a transaction by itself
            self._db.execute("INSERT INTO answer VALUES (?, ?, ?, ?, ?, ?)", row)

    def answers(self, study: int) -> Iterator[tuple[int, int, Tally]]:
        """Return (query, attempt, tally) of every answer, in the order in which they were told."""
        with self._errors():
            rows = self._db.execute(
                "SELECT query, attempt, tally FROM answer WHERE study = ? ORDER BY position", (study,)
            )
            for query, attempt, blob in rows:
                yield query, attempt, tally_from_bytes(blob)

    def record(self, study: int, checks: Sequence[Check], first: int, result: dict[str, Any] | None) -> None:
        """Store the checks from position `first` on, and the result if there is one."""
        rows = []
        for i in range(first, len(checks)):
            same = i > 0 and checks[i].policy is checks[i - 1].policy
            policy = None if same else policy_to_bytes(checks[i].policy)
            rows.append((study, i, json.dumps(checks[i].to_dict()), policy))
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO looked VALUES (?, ?, ?, ?)", rows)
            if result is not None:
                self._db.execute("UPDATE study SET result = ? WHERE id = ?", (json.dumps(result), study))

    def reopen(self, study: int) -> None:
        """Forget the result of a study that goes on."""
        with self._transaction():
            self._db.execute("UPDATE study SET result = NULL WHERE id = ?", (study,))

    def trace(self, study: int) -> list[Check]:
        """Return the checks of a study, without their proofs; none if an older version did not store the policies."""
        checks: list[Check] = []
        policy: IntArray | None = None
        with self._errors():
            columns = [row[1] for row in self._db.execute("PRAGMA table_info(looked)")]
            if "policy" not in columns:
                return []
            rows = self._db.execute("SELECT record, policy FROM looked WHERE study = ? ORDER BY position", (study,))
            for record, blob in rows:
                policy = policy if blob is None else policy_from_bytes(blob)
                if policy is None:
                    return []
                known: dict[str, Any] = json.loads(record)
                known = {key: inf if value is None else value for key, value in known.items()}
                checks.append(Check(policy=policy, **known))
        return checks

    def change_settings(self, study: int, settings: dict[str, Any]) -> None:
        """Store other settings of a study."""
        with self._transaction():
            self._db.execute("UPDATE study SET settings = ? WHERE id = ?", (json.dumps(settings), study))

    def read(self, study: int) -> Record:
        """Return what the file says of a study."""
        with self._errors():
            name, fingerprint, created, settings, versions, result = self._db.execute(
                "SELECT name, fingerprint, created, settings, versions, result FROM study WHERE id = ?", (study,)
            ).fetchone()
            answers, samples = self._db.execute(
                "SELECT COUNT(*), COALESCE(SUM(samples), 0) FROM answer WHERE study = ?", (study,)
            ).fetchone()
            looked = self._db.execute("SELECT record FROM looked WHERE study = ? ORDER BY position", (study,))
            checks = [json.loads(row[0]) for row in looked]
        return Record(
            name,
            fingerprint,
            created,
            json.loads(settings),
            json.loads(versions),
            None if result is None else json.loads(result),
            samples,
            answers,
            checks,
        )

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the file without changing anything, also in a folder where nothing may be written.

        SQLite reads a file in write-ahead mode with the help of files beside it, and fails where it cannot make them.
        Without a log the file is whole by itself; a log that a killed process has left is read with it from a copy.
        """
        address = f"file:{quote(os.path.abspath(self.path))}?mode=ro"
        database = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            database.execute("SELECT COUNT(*) FROM sqlite_master")
            return database
        except sqlite3.OperationalError as error:
            database.close()
            if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        log = self.path + "-wal"
        if not os.path.exists(log) or os.path.getsize(log) == 0:
            return sqlite3.connect(address + "&immutable=1", uri=True, isolation_level=None)
        self._copy = tempfile.TemporaryDirectory()
        copy = os.path.join(self._copy.name, "copy.db")
        try:
            shutil.copyfile(self.path, copy)
            shutil.copyfile(log, copy + "-wal")
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}. Change its permissions.") from None
        return sqlite3.connect(copy, isolation_level=None)

    def _prepare(self, write: bool) -> None:
        self._db.execute("PRAGMA busy_timeout = 10000")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        empty = not self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if empty and write:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA}; {_TABLES} COMMIT;"
            )
        elif application != _APPLICATION:
            remedy = _REMEDIES[sqlite3.SQLITE_NOTADB]
            raise StoreError(f"{self.path} is not a file of studies. {remedy}.")
        elif version > SCHEMA:
            raise StoreError(f"{self.path} was written by a newer bestpolicy (schema {version}). Upgrade to read it.")
        elif version < SCHEMA and write:
            self._db.executescript(
                f"BEGIN; PRAGMA user_version = {SCHEMA}; ALTER TABLE looked ADD COLUMN policy BLOB; COMMIT;"
            )
        if write:
            self._db.execute("PRAGMA synchronous = NORMAL")

    def _take_lock(self) -> None:
        lock_path = self.path + "-lock"
        while self._lock is None:
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise StoreError(f"cannot write {self.path}: {error.strerror}.") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(lock_path) and os.path.samestat(os.fstat(lock), os.stat(lock_path)):
                    self._lock = lock
                else:  # its last owner removed it in the meantime
                    os.close(lock)
            except BlockingIOError:
                os.close(lock)
                raise StoreError(
                    f"another process is writing to {self.path}. Wait for it, or use another file."
                ) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            what = "is not a file of studies" if kind == sqlite3.SQLITE_NOTADB else f"cannot be used ({error})"
            remedy = _REMEDIES.get(kind, "Check the disk and the permissions")
            raise StoreError(f"{self.path} {what}. {remedy}; what was stored before is still there.") from None


class StudyFile:
    """One study in a file, as the `Study` itself uses it."""

    def __init__(self, store: Store, study: int, position: int, name: str, ended: bool = False) -> None:
        self._store, self._study, self._position, self.name = store, study, position, name
        self._ended = ended

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        name: str,
        problem: Problem,
        settings: dict[str, Any],
        own_data: Tally | None = None,
    ) -> StudyFile:
        """Begin a study in a file."""
        store = Store(path, write=True)
        try:
            return cls(store, store.create(name, problem.fingerprint, to_bytes(problem), settings, own_data), 0, name)
        except BaseException:
            store.close()
            raise

    @classmethod
    def open(cls, path: str | PathLike[str], name: str) -> tuple[StudyFile, Problem, Record]:
        """Open a study to go on with it; returns its problem and what the file says of it, too."""
        store = Store(path, write=True)
        try:
            study = store.find(name)
            record = store.read(study)
            file = cls(store, study, record.answers, record.name, record.result is not None)
            return file, store.problem(study), record
        except BaseException:
            store.close()
            raise

    def append(self, query: int, attempt: int, tally: Tally) -> None:
        """Store one answer."""
        if self._ended:
            self._store.reopen(self._study)
            self._ended = False
        self._store.append(self._study, self._position, query, attempt, tally)
        self._position += 1

    def answers(self) -> Iterator[tuple[int, int, Tally]]:
        """Return (query, attempt, tally) of every answer so far."""
        return self._store.answers(self._study)

    def own_data(self) -> Tally | None:
        """Return the samples from elsewhere that the study began with."""
        return self._store.own_data(self._study)

    def record(self, checks: Sequence[Check], first: int, result: dict[str, Any] | None) -> None:
        """Store the checks from position `first` on, and the result if there is one."""
        self._store.record(self._study, checks, first, result)

    def change_settings(self, settings: dict[str, Any]) -> None:
        """Store other settings, such as a new budget."""
        self._store.change_settings(self._study, settings)

    def close(self) -> None:
        """Close the file."""
        self._store.close()


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
    """Read a tally that `tally_to_bytes` wrote."""
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
    except (ValueError, IndexError, EOFError, TypeError) as error:
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
    next_counts, next_rewards = np.zeros(shape, np.int64), np.zeros(shape)
    next_counts.ravel()[cells], next_rewards.ravel()[cells] = counts, rewards
    return Tally(pairs, next_counts, next_rewards, squares.reshape(shape[:2]))


def policy_to_bytes(policy: IntArray) -> bytes:
    """Return a policy as NumPy bytes, in the smallest type that holds it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, policy.astype(np.min_scalar_type(int(policy.max()))), allow_pickle=False)
    return buffer.getvalue()


def policy_from_bytes(data: bytes) -> IntArray:
    """Read a policy that `policy_to_bytes` wrote."""
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False).astype(np.int64)
    except (ValueError, EOFError, TypeError) as error:
        raise StoreError(f"a stored policy is damaged ({error}).") from None
