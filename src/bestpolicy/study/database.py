"""One SQLite file: its tables, its lock, and what can go wrong with files.

Writing is in write-ahead mode, one process at a time. The writer's lock is SQLite's own, on an empty database beside
the file: it works on every system, a killed process cannot leave it behind, and a forked one does not inherit it.
Readers need no right to write.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from typing import Any
from urllib.parse import quote

from bestpolicy.errors import InvalidInput, StoreError

SCHEMA = 3
_APPLICATION = 0x62706F6C  # marks the file as ours
COMPARISONS = 0x62706F63  # marks a file of `bestpolicy compare --store`

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
_REQUESTS = """
CREATE TABLE asked (
    study INTEGER NOT NULL REFERENCES study(id), position INTEGER NOT NULL, first INTEGER NOT NULL,
    looks INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (study, position));
"""  # `first` is the number of its first query, `looks` the number of checks before it

_REMEDIES = {
    sqlite3.SQLITE_NOTADB: "Give a file that `--store` or Study(store=...) has written",
    sqlite3.SQLITE_CORRUPT: "The file is damaged: take a copy of it that is whole",
    sqlite3.SQLITE_FULL: "The disk is full: make room and go on with `resume`",
    sqlite3.SQLITE_READONLY: "The file or its folder may not be written: change that, or work on a copy",
    sqlite3.SQLITE_CANTOPEN: "Give the path of a file in a folder that exists and may be read (and written, to run)",
}


class Database:
    """The file of a `Store`, open for reading or for writing.

    Parameters
    ----------
    path : path
    write : bool
        Take the writer's lock; the file is made if there is none.
    """

    def __init__(self, path: str | PathLike[str], *, write: bool = False) -> None:
        self.path, self._owner = os.fspath(path), os.getpid()
        self._lock: sqlite3.Connection | None = None
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
            with self.errors():
                self._connection = sqlite3.connect(self.path, isolation_level=None) if write else self._open_to_read()
                self._prepare(write)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and give up the lock; not in a forked process, where neither belongs to us."""
        if os.getpid() != self._owner:
            return
        if hasattr(self, "_connection"):
            self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
        if self._lock is not None:
            with suppress(OSError):  # somebody may have removed the folder; some systems keep what is open
                os.unlink(self.path + "-lock")
            self._lock.close()
            self._lock = None

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(statement, values)

    def has_table(self, name: str) -> bool:
        """Whether the file has a table of that name."""
        return bool(self.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])

    def executemany(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Run one statement for each row."""
        self._connection.executemany(statement, rows)

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
        except sqlite3.DatabaseError as error:
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
        self._connection.execute("PRAGMA busy_timeout = 10000")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        empty = not self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if empty and write:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA}; "
                f"{_TABLES} {_REQUESTS} COMMIT;"
            )
        elif application != _APPLICATION:
            remedy = _REMEDIES[sqlite3.SQLITE_NOTADB]
            if application == COMPARISONS:
                remedy = "It keeps runs of `bestpolicy compare`; for a table of them add --output table.json there"
            raise StoreError(f"{self.path} is not a file of studies. {remedy}.")
        elif version > SCHEMA:
            raise StoreError(f"{self.path} was written by a newer bestpolicy (schema {version}). Upgrade to read it.")
        elif version < SCHEMA and write:
            policies = "ALTER TABLE looked ADD COLUMN policy BLOB;" if version < 2 else ""
            self._connection.executescript(f"BEGIN; PRAGMA user_version = {SCHEMA}; {policies} {_REQUESTS} COMMIT;")
        if write:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _take_lock(self) -> None:
        lock_path = self.path + "-lock"
        while self._lock is None:
            try:
                # Never opened where it exists: to close it again would let go of a lock that this process may hold.
                if not os.path.exists(lock_path):
                    os.close(os.open(lock_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                found = os.stat(lock_path)
            except (FileExistsError, FileNotFoundError):
                if not os.path.isdir(os.path.dirname(os.path.abspath(lock_path))):
                    raise StoreError(f"cannot write {self.path}: no such folder.") from None
                continue  # another process was faster
            except OSError as error:
                raise StoreError(f"cannot write {self.path}: {error.strerror}.") from None
            lock = sqlite3.connect(lock_path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                lock.execute("BEGIN EXCLUSIVE")
                if os.path.exists(lock_path) and os.path.samestat(found, os.stat(lock_path)):
                    self._lock = lock
                else:  # its last owner removed it in the meantime
                    lock.close()
            except sqlite3.OperationalError as error:
                lock.close()
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise StoreError(f"cannot write {self.path}: {error}.") from None
                raise StoreError(
                    f"another process is writing to {self.path}. Wait for it, or use another file."
                ) from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do several things, or none of them."""
        with self.errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say what to do when SQLite fails."""
        try:
            yield
        except sqlite3.Error as error:
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            what = "is not a file of studies" if kind == sqlite3.SQLITE_NOTADB else f"cannot be used ({error})"
            remedy = _REMEDIES.get(kind, "Check the disk and the permissions")
            raise StoreError(f"{self.path} {what}. {remedy}; what was stored before is still there.") from None
