"""A file that remembers finished work, so that the same comparison run again does only what is missing.

One SQLite table from a key (what was to be done, in full, as JSON) to a record (what came out, as JSON). Each record is
one transaction. A process holds the file alone from opening to closing; the lock is the operating system's, so a killed
process cannot leave it behind.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

from bestpolicy.errors import StoreError
from bestpolicy.study.database import COMPARISONS

_SCHEMA = 1


class Ledger:
    """Finished work by its key.

    Parameters
    ----------
    path : path
        Made if there is none.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        with self._errors():
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key; None if there is none."""
        with self._errors():
            row = self._db.execute("SELECT record FROM finished WHERE key = ?", (key,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Store a record."""
        with self._errors():
            text = json.dumps(record, allow_nan=False)
            self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?)", (key, text))

    def _prepare(self) -> None:
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        empty = not self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if application != COMPARISONS and not (empty and application == 0):
            raise StoreError(f"{self.path} is not a file of comparisons. Give another path.")
        if version > _SCHEMA:
            raise StoreError(f"{self.path} was written by a newer bestpolicy (schema {version}). Upgrade to read it.")
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # kept from the first transaction on
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(
            f"BEGIN EXCLUSIVE; PRAGMA application_id = {COMPARISONS}; PRAGMA user_version = {_SCHEMA}; "
            "CREATE TABLE IF NOT EXISTS finished (key TEXT PRIMARY KEY, record TEXT NOT NULL); COMMIT;"
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreError(f"another process is using {self.path}. Wait for it, or use another file.") from None
            raise StoreError(
                f"{self.path}: {error}. Check the path, the permissions and that the file is one of ours."
            ) from None
