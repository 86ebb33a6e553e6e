"""One SQLite file: its tables, its lock, and what can go wrong with files.

Writing is in write-ahead mode, one process at a time. The writer's lock is SQLite's own, on an empty database beside
the file: it works on every system, a killed process cannot leave it behind, and a forked one does not inherit it.
Readers need no right to write.

A file may come from a stranger. So nothing of it is trusted that SQLite would run: it must consist of just the tables
that we make, word for word (no views, triggers, virtual tables or generated columns, which can compute without end),
and sizes and steps are limited as SQLite's authors advise.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from typing import Any
from urllib.parse import quote

from bestpolicy.errors import InvalidInput, StoreError

_REMEDIES = {
    sqlite3.SQLITE_CORRUPT: "The file is damaged: take a copy of it that is whole",
    sqlite3.SQLITE_FULL: "The disk is full: make room and go on with `resume`",
    sqlite3.SQLITE_READONLY: "The file or its folder may not be written: change that, or work on a copy",
    sqlite3.SQLITE_CANTOPEN: "Give the path of a file in a folder that exists and may be read (and written, to run)",
    sqlite3.SQLITE_INTERRUPT: "It takes more work than any file of ours: it is damaged or hostile",
    sqlite3.SQLITE_TOOBIG: "A value in it is larger than any of ours: it is damaged or hostile",
}
STUDIES, COMPARISONS = 0x62706F6C, 0x62706F63  # marks of our files
_LARGEST_VALUE = 2**30 - 1  # bytes of one text or array in a file
_STEPS = 10**9  # of SQLite's machine for one reader; a row takes about twenty


@dataclass(frozen=True)
class Format:
    """What a kind of file looks like.

    Attributes
    ----------
    what : str
        What it is, in words.
    application, schema : int
        Marks of SQLite files: whose they are, and which version of the tables they have.
    tables : tuple of str
        The statements that make the tables.
    source : str
        Where such files come from, as a remedy.
    others : dict of int to str
        What to say of other files of ours, by their marks.
    older : dict of int to tuple of str
        Tables of older schemas.
    migrate : callable, optional
        Brings a file of an older schema to the present one.
    """

    what: str
    application: int
    schema: int
    tables: tuple[str, ...]
    source: str
    others: dict[int, str] = field(default_factory=dict)
    older: dict[int, tuple[str, ...]] = field(default_factory=dict)
    migrate: Callable[[sqlite3.Connection], None] | None = None


class Database:
    """A file of a given format, open for reading or for writing.

    Parameters
    ----------
    path : path
    layout : Format
    write : bool
        Take the writer's lock; the file is made if there is none.
    """

    def __init__(self, path: str | PathLike[str], layout: Format, *, write: bool = False) -> None:
        self.path, self._layout, self._owner = os.fspath(path), layout, os.getpid()
        self._lock: sqlite3.Connection | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if self.path == ":memory:" or not self.path:
            raise InvalidInput(f"{self.path!r} is no file that could outlive the run. Give a path, or leave it out.")
        if os.path.isdir(self.path):
            raise InvalidInput(f"{self.path} is a folder. Give the path of {layout.what}.")
        if not write and not os.path.isfile(self.path):
            raise InvalidInput(f"no such file: {self.path}. {layout.source}.")
        if write:
            self._take_lock()
        try:
            with self.errors():
                self._connection = (
                    self._hardened(sqlite3.connect(self.path, isolation_level=None, check_same_thread=False))
                    if write
                    else self._open_to_read()
                )
                if not write:
                    steps = iter(range(_STEPS // 10**6))
                    self._connection.set_progress_handler(lambda: next(steps, None) is None, 10**6)
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

    @staticmethod
    def _hardened(database: sqlite3.Connection) -> sqlite3.Connection:
        for pragma in ("busy_timeout = 10000", "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
            database.execute(f"PRAGMA {pragma}")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
        database.text_factory = lambda content: content.decode("utf-8", "replace")
        return database

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the file without changing anything, also in a folder where nothing may be written.

        SQLite reads a file in write-ahead mode with the help of files beside it, and fails where it cannot make them.
        Without a log the file is whole by itself; a log that a killed process has left is read with it from a copy.
        """
        address = f"file:{quote(os.path.abspath(os.fsencode(self.path)))}?mode=ro"
        database = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            self._hardened(database).execute("SELECT COUNT(*) FROM sqlite_master")
            return database
        except sqlite3.DatabaseError as error:
            database.close()
            if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        log = self.path + "-wal"
        if not os.path.exists(log) or os.path.getsize(log) == 0:
            return self._hardened(sqlite3.connect(address + "&immutable=1", uri=True, isolation_level=None))
        self._copy = tempfile.TemporaryDirectory()
        copy = os.path.join(self._copy.name, "copy.db")
        try:
            shutil.copyfile(self.path, copy)
            shutil.copyfile(log, copy + "-wal")
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}. Change its permissions.") from None
        return self._hardened(sqlite3.connect(copy, isolation_level=None))

    def _prepare(self, write: bool) -> None:
        layout, execute = self._layout, self.execute
        version, application = (execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
        if write and not execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] and application == 0:
            execute("PRAGMA journal_mode = WAL")
            self._make_tables()
        elif application != layout.application:
            source = layout.others.get(application, layout.source)
            raise StoreError(f"{self.path} is not {layout.what}. {source}.")
        elif version > layout.schema:
            raise StoreError(f"{self.path} was written by a newer bestpolicy (schema {version}). Upgrade to read it.")
        elif version < layout.schema:
            self._require_tables(layout.older.get(version, ()))
            if not write:  # what the file would be, in memory
                old, self._connection = self._connection, sqlite3.connect(":memory:", isolation_level=None)
                old.backup(self._connection)
                old.close()
                self._hardened(self._connection)
            self._migrate()
        self._require_tables(layout.tables)
        if write:
            execute("PRAGMA synchronous = NORMAL")

    def _make_tables(self) -> None:
        with self.transaction():
            self.execute(f"PRAGMA application_id = {self._layout.application}")
            self.execute(f"PRAGMA user_version = {self._layout.schema}")
            for statement in self._layout.tables:
                self.execute(statement)

    def _migrate(self) -> None:
        assert self._layout.migrate is not None
        with self.transaction():
            self._layout.migrate(self._connection)
            self.execute(f"PRAGMA user_version = {self._layout.schema}")

    def _require_tables(self, expected: tuple[str, ...]) -> None:
        """Refuse a file that has anything but these tables."""
        made = [row for row in self.execute("SELECT type, name, sql FROM sqlite_master") if row[2] is not None]
        known = {_words(statement) for statement in expected}
        for kind, name, statement in made:
            if kind != "table" or _words(statement) not in known:
                raise StoreError(
                    f"{self.path} is damaged or not ours: its {kind} {str(name)[:40]!r} is none that we make. "
                    "Take a copy of the file that is whole."
                )
        if len(made) < len({statement.split("(")[0] for statement in known}):
            raise StoreError(f"{self.path} is damaged: a table is missing. Take a copy of the file that is whole.")

    def _take_lock(self) -> None:
        lock_path = self.path + "-lock"
        while self._lock is None:
            try:
                # Never opened where it exists: to close it again would let go of a lock that this process may hold.
                if not os.path.exists(lock_path):
                    os.close(os.open(lock_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                known = os.stat(lock_path)
            except (FileExistsError, FileNotFoundError):
                if not os.path.isdir(os.path.dirname(os.path.abspath(lock_path))):
                    raise StoreError(f"cannot write {self.path}: no such folder.") from None
                continue  # another process was faster
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise StoreError(f"cannot write {self.path}: {why}.") from None
            lock = sqlite3.connect(lock_path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                lock.execute("BEGIN EXCLUSIVE")
                if os.path.exists(lock_path) and os.path.samestat(known, os.stat(lock_path)):
                    self._lock = lock
                else:  # its last owner removed it in the meantime
                    lock.close()
            except sqlite3.Error as error:
                lock.close()
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                    raise StoreError(f"cannot write {self.path}: its lock {lock_path}: {error}.") from None
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
    def snapshot(self) -> Iterator[None]:
        """Read several things as they are at one moment."""
        with self.errors():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say what to do when SQLite fails."""
        try:
            yield
        except UnicodeDecodeError:  # SQLite quotes what it finds in its own words about the file
            raise StoreError(f"{self.path} is damaged. Take a copy of the file that is whole.") from None
        except MemoryError:
            raise StoreError(
                f"{self.path} takes more memory than this process can get: give it more, or the file is hostile."
            ) from None
        except sqlite3.Error as error:
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if kind == sqlite3.SQLITE_NOTADB:
                raise StoreError(f"{self.path} is not {self._layout.what}. {self._layout.source}.") from None
            remedy = _REMEDIES.get(kind, "Check the disk and the permissions")
            raise StoreError(
                f"{self.path} cannot be used ({error}). {remedy}; what was stored before is still there."
            ) from None


def _words(statement: str) -> str:
    return " ".join(str(statement).split())
