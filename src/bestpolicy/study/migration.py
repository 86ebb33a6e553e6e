"""Files of older versions: which tables they had, and what was in them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.errors import BestPolicyError, StoreError
from bestpolicy.study.journal import policy_from_bytes

_STUDY = (
    "CREATE TABLE study ( id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, fingerprint TEXT NOT NULL, "
    "problem BLOB NOT NULL, settings TEXT NOT NULL, versions TEXT NOT NULL, {}result TEXT, "
    "created TEXT DEFAULT CURRENT_TIMESTAMP)"
)
_KEY = "study INTEGER NOT NULL REFERENCES study(id), position INTEGER NOT NULL, "
_ANSWER = (
    f"CREATE TABLE answer ( {_KEY}query INTEGER NOT NULL, attempt INTEGER NOT NULL, samples INTEGER NOT NULL, "
    "tally BLOB NOT NULL, PRIMARY KEY (study, position))"
)
_LOOKED = (
    f"CREATE TABLE looked ( {_KEY}record TEXT NOT NULL, PRIMARY KEY (study, position))",
    f"CREATE TABLE looked ( {_KEY}record TEXT NOT NULL, policy BLOB, PRIMARY KEY (study, position))",
    f"CREATE TABLE looked ( {_KEY}record TEXT NOT NULL, PRIMARY KEY (study, position), policy BLOB)",  # was added
)
_ASKED = (
    f"CREATE TABLE asked ( {_KEY}first INTEGER NOT NULL, looks INTEGER NOT NULL, content BLOB NOT NULL, "
    "PRIMARY KEY (study, position))"
)
_FIRST = tuple(_STUDY.format(own) for own in ("", "own BLOB, "))
_SECOND = (*_FIRST, _ANSWER, *_LOOKED)

TABLES: dict[int, tuple[str, ...]] = {1: _SECOND, 2: _SECOND, 3: (*_SECOND, _ASKED)}


@dataclass(frozen=True)
class OldStudy:
    """A study as the tables of older versions held it."""

    name: str
    fingerprint: str
    problem: bytes
    settings: dict[str, Any]
    versions: dict[str, str]
    created: str
    own_data: bytes | None
    result: str | None
    requests: list[tuple[int, int, bytes]]
    answers: list[tuple[int, int, bytes]]
    looks: list[tuple[dict[str, Any], IntArray | None]]


def take_old_tables(connection: sqlite3.Connection) -> dict[int, OldStudy]:
    """Read all studies from the tables of an older version, and drop these."""
    try:
        return _take(connection)
    except BestPolicyError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the file is damaged ({error}). Take a copy of it that is whole.") from None


def _take(connection: sqlite3.Connection) -> dict[int, OldStudy]:
    def rows(table: str, *columns: str) -> dict[int, list[tuple[Any, ...]]]:
        there = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        listed = ", ".join(column if column in there else f"NULL AS {column}" for column in columns)
        known: dict[int, list[tuple[Any, ...]]] = {}
        if there:
            order = "id" if table == "study" else "study, position"
            for number, *values in connection.execute(
                f"SELECT {order.split(',')[0]}, {listed} FROM {table} ORDER BY {order}"
            ):
                known.setdefault(number, []).append(tuple(values))
        return known

    answers, looks = rows("answer", "query", "attempt", "tally"), rows("looked", "record", "policy")
    asked = rows("asked", "first", "looks", "content")
    studies = {}
    names = ("name", "fingerprint", "problem", "settings", "versions", "created", "own", "result")
    for number, [(name, fingerprint, problem, settings, versions, created, own, result)] in rows(
        "study", *names
    ).items():
        studies[number] = OldStudy(
            str(name),
            str(fingerprint),
            bytes(memoryview(problem)),
            json.loads(settings),
            json.loads(versions),
            str(created),
            own,
            result,
            asked.get(number, []),
            answers.get(number, []),
            [
                (json.loads(record), None if policy is None else policy_from_bytes(policy))
                for record, policy in looks.get(number, [])
            ],
        )
    for table in ("answer", "looked", "asked", "study"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    return studies
