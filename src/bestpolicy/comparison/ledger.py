"""A file that remembers finished work, so that the same comparison run again does only what is missing.

One SQLite table from a key (what was to be done, in full, as JSON) to a record (what came out, as JSON), with a
checksum of both. Each record is one transaction. A process holds the file alone from opening to closing.
"""

from __future__ import annotations

import json
import sqlite3
from hashlib import sha256
from os import PathLike
from typing import Any

from bestpolicy.errors import StoreError
from bestpolicy.study.database import COMPARISONS, Database, Format

_TABLE = "CREATE TABLE finished (key TEXT PRIMARY KEY, record TEXT NOT NULL, checksum BLOB NOT NULL)"
_FIRST_TABLE = "CREATE TABLE finished (key TEXT PRIMARY KEY, record TEXT NOT NULL)"


def _checksum(key: str, record: str) -> bytes:
    return sha256(f"{key}\0{record}".encode()).digest()


def _migrate(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT key, record FROM finished").fetchall()
    connection.execute("DROP TABLE finished")
    connection.execute(_TABLE)
    for key, record in rows:
        connection.execute("INSERT INTO finished VALUES (?, ?, ?)", (key, record, _checksum(key, record)))


_FORMAT = Format(
    what="a file of comparisons",
    application=COMPARISONS,
    schema=2,
    tables=(_TABLE,),
    source="Give another path",
    older={1: (_FIRST_TABLE,)},
    migrate=_migrate,
)


class Ledger:
    """Finished work by its key.

    Parameters
    ----------
    path : path
        Made if there is none.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._db = Database(path, _FORMAT, write=True)
        self.path = self._db.path

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the record of a key; None if there is none."""
        with self._db.errors():
            row = self._db.execute("SELECT record, checksum FROM finished WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if _checksum(key, row[0]) != row[1]:
            raise StoreError(
                f"{self.path} is damaged: the checksum of a finished run is wrong ({key[:80]}…). Remove the file, and "
                "the comparison is made again."
            )
        return dict(json.loads(row[0]))

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Store a record."""
        text = json.dumps(record, allow_nan=False)
        with self._db.transaction():
            self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?)", (key, text, _checksum(key, text)))
