"""A file that runs survive in.

One SQLite file holds any number of studies, each under a name and each as a journal: rows that are only ever appended,
one for everything that was asked, told, decided and found.

    begun       name, settings, versions, the fingerprint of the problem and the SHA-256 of its bytes
    problem     the problem
    own data    samples from elsewhere, if there are any
    asked       a request of the algorithm, with whatever it has decided
    answer      to a query: a tally
    look        at the data, with the policy if it is another than before
    test        what a round of the test of the features has fixed, and the pairs that it asks for
    tested      to a query of such a round: a tally
    settings    that have changed, such as a new budget
    ended       the result; void once the study goes on

Every row carries SHA-256(chain of the row before, kind, content), and the file says how many rows there should be and
what the last one's chain is. So a flipped bit, an edited number or a lost row does not go unnoticed: nothing is shown
and nothing goes on before the chain has been checked. It also shows the order of things: what was decided stands before
the samples that it was decided for.

To resume a study is to add up the answers to each request and to go on from what was decided last: nothing is worked
out again, so a study may move between machines. What comes after is what would have come without the interruption.
Each answer is one transaction in write-ahead mode: after a crash or a kill the file holds every answer that was told
and nothing else. One process writes at a time; readers never block it, and need no right to write.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from math import inf
from os import PathLike
from typing import Any

from bestpolicy._numerics.inputs import file_path, of_type
from bestpolicy._version import versions
from bestpolicy.errors import InvalidInput, StoreError, did_you_mean
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.feature_files import feature_problem_to_bytes
from bestpolicy.problem.files import to_bytes
from bestpolicy.samples import Tally
from bestpolicy.study.database import COMPARISONS, STUDIES, Database, Format
from bestpolicy.study.journal import (
    Record,
    Row,
    answered,
    begun,
    chained,
    damage,
    looked,
    pack,
    samples_told,
    tally_to_bytes,
    unpack,
)
from bestpolicy.study.migration import TABLES, OldStudy, take_old_tables
from bestpolicy.study.settings import Settings

_ROOM = 2**40  # row p of study n has the id n·2⁴⁰ + p


_FORMAT = Format(
    what="a file of studies",
    application=STUDIES,
    schema=4,
    tables=(
        "CREATE TABLE study (id INTEGER PRIMARY KEY, rows INTEGER NOT NULL, head BLOB NOT NULL)",
        "CREATE TABLE entry (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, content BLOB NOT NULL, chain BLOB NOT NULL)",
    ),
    source="Give a file that `--store` or Study(store=...) has written",
    others={COMPARISONS: "It keeps runs of `bestpolicy compare`; for a table of them add --output table.json there"},
    older=TABLES,
    migrate=lambda connection: _migrate(connection),
)


class Store:
    """A file of studies, open for reading or for writing.

    Parameters
    ----------
    path : path
    write : bool
        Take the writer's lock; the file is made if there is none.
    """

    def __init__(self, path: str | PathLike[str], *, write: bool = False) -> None:
        self._db = Database(path, _FORMAT, write=write)
        self.path = self._db.path

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    def names(self) -> dict[str, int]:
        """Names of the studies with their numbers, oldest first."""
        return {known["name"]: number for number, known in self._beginnings().items()}

    def attempts(self, fingerprint: str) -> int:
        """Number of studies of a problem."""
        return sum(known["fingerprint"] == fingerprint for known in self._beginnings().values())

    def _beginnings(self) -> dict[int, dict[str, str]]:
        with self._db.snapshot():
            numbers = [row[0] for row in self._db.execute("SELECT id FROM study ORDER BY id")]
            if any(not 0 < number < 2**63 // _ROOM for number in numbers):
                raise StoreError(f"{self.path} is damaged: the number of a study is none. Take a copy that is whole.")
            query = "SELECT kind, content, chain FROM entry WHERE id = ?"
            first = {number: self._db.execute(query, (number * _ROOM,)).fetchone() for number in numbers}
        known = {}
        for number, row in first.items():
            with damage(f"{self.path}: row 0 of study {number}"):
                kind, content, chain = row
                if chained(b"", kind, content) != chain:
                    raise ValueError("its checksum is wrong; nothing of this study can be rescued")
                known[number] = {key: str(json.loads(content)[key]) for key in ("name", "fingerprint")}
        return known

    def find(self, name: str | None) -> int:
        """Return the number of a study; without a name, of the only one."""
        if name is not None:
            of_type("name", name, str)
        names = self.names()
        if name is None and len(names) == 1:
            (name,) = names
        if name not in names:
            hint = did_you_mean(name, names) if name else ""
            known = ", ".join(names) or "none"
            asked = f"no study named {name!r} in {self.path}" if name else f"{self.path} has {len(names)} studies"
            raise InvalidInput(f"{asked}. Give the name of one of them: {known}.{hint}")
        return names[name]

    def read(self, study: int) -> Record:
        """Return what the file says of a study, its chain having been checked."""
        rows, head, trouble = self.whole_rows(study)
        if trouble:
            raise StoreError(f"{self.path}: {trouble}")
        return Record.of(rows, {"root": chained(b"", *rows[0]).hex(), "head": head.hex(), "rows": len(rows)})

    def head(self, study: int) -> tuple[bytes, str]:
        """Return the chain and the kind of the last row, unchecked: another chain is another journal."""
        query = "SELECT head, (SELECT kind FROM entry WHERE entry.id = ? + rows - 1) FROM study WHERE id = ?"
        chain, kind = self._db.execute(query, (study * _ROOM, study)).fetchone()
        return bytes(chain), str(kind)

    def whole_rows(self, study: int) -> tuple[list[Row], bytes, str]:
        """Return the rows of a study up to the first that is not as written, their chain, and what is wrong then."""
        rows: list[Row] = []
        chain = b""
        wrong = ""
        with self._db.snapshot():
            try:
                expected = self._db.execute("SELECT rows, head FROM study WHERE id = ?", (study,)).fetchone()
                for number, kind, content, stored in self._db.execute(
                    "SELECT id, kind, content, chain FROM entry WHERE id >= ? AND id < ? ORDER BY id",
                    (study * _ROOM, (study + 1) * _ROOM),
                ):
                    if number != study * _ROOM + len(rows):
                        wrong = "is missing"
                    elif type(kind) is not str or type(content) is not bytes or chained(chain, kind, content) != stored:
                        wrong = "is not what was written: its checksum is wrong"
                    if wrong:
                        break
                    rows.append((kind, content))
                    chain = stored
                if not wrong and (not rows or expected != (len(rows), chain)):
                    wrong = "is missing, or the end of the journal is not what was written"
            except sqlite3.Error as error:
                wrong = f"cannot be read ({error})"
        return rows, chain, "" if not wrong else f"row {len(rows)} of study {study} {wrong}. {_rescue(rows)}"

    def begin(self, rows: Iterable[Row], name: str) -> StudyFile:
        """Begin a study with its first rows."""
        if name in self.names():
            raise InvalidInput(
                f"{self.path} already has a study named {name!r}. Go on with it (bestpolicy resume, or in Python "
                f"drive(Study.resume({self.path!r}, {name!r}), simulator)), or give another name."
            )
        rows = list(rows)
        with self._db.transaction():  # all of it, or a kill would leave a study without a first row
            number = 1 + (self._db.execute("SELECT MAX(id) FROM study").fetchone()[0] or 0)
            count, chain = _insert(self._db.execute, number, rows)
            self._db.execute("INSERT INTO study VALUES (?, ?, ?)", (number, count, chain))
        known = {"root": chained(b"", *rows[0]).hex(), "head": chain.hex(), "rows": count}
        return StudyFile(self.path, number, name, known, self)

    def append(self, study: int, before: tuple[int, bytes], rows: Iterable[Row]) -> tuple[int, bytes]:
        """Append rows after those that there are, all in one transaction; return how many there are and the chain."""
        with self._db.transaction():
            if self._db.execute("SELECT rows, head FROM study WHERE id = ?", (study,)).fetchone() != before:
                raise StoreError(
                    f"the study has been changed in {self.path} since it was opened, so this one cannot go on. "
                    "Resume it from the file."
                )
            count, chain = _insert(self._db.execute, study, rows, *before)
            self._db.execute("UPDATE study SET rows = ?, head = ? WHERE id = ?", (count, chain, study))
        return count, chain


def _insert(
    execute: Callable[..., object], study: int, rows: Iterable[Row], count: int = 0, chain: bytes = b""
) -> tuple[int, bytes]:
    """Insert rows after so many with this chain; return how many there are then, and the chain."""
    for kind, content in rows:
        chain = chained(chain, kind, content)
        execute("INSERT INTO entry VALUES (?, ?, ?, ?)", (study * _ROOM + count, kind, content, chain))
        count += 1
    return count, chain


def _rescue(rows: list[Row]) -> str:
    """Say what can be saved of a damaged study."""
    kinds = [kind for kind, _ in rows]
    if kinds[:2] != ["begun", "problem"]:
        return "Nothing of it can be rescued: take a copy of the file that is whole."
    answers, calls = samples_told(rows)
    return (
        f"The {answers} answers before it ({calls:,} simulator calls) are whole: `bestpolicy rescue` copies them "
        "into a new file, with which to go on."
    )


def rescue(path: str | PathLike[str], new: str | PathLike[str]) -> list[Record]:
    """Copy what is whole of a damaged file into a new one; `Study.resume` goes on from there.

    Of every study all rows up to the first damaged one are kept. What follows from them is simulated again.

    Parameters
    ----------
    path : path
        The damaged file.
    new : path
        A file that does not exist yet.

    Returns
    -------
    list of Record
        What could be rescued.
    """
    path, new = file_path("path", path), file_path("new", new)
    records = []
    with Store(path) as damaged, Store(new, write=True) as target:
        if target.names():
            raise InvalidInput(f"{new} has studies already. Give the path of a new file.")
        with damaged._db.errors():
            numbers = [row[0] for row in damaged._db.execute("SELECT DISTINCT id / ? FROM entry ORDER BY 1", (_ROOM,))]
        for number in numbers:
            rows, _, _ = damaged.whole_rows(number)
            while rows and rows[-1][0] == "look":  # what was decided from it is lost
                rows.pop()
            if [kind for kind, _ in rows[:2]] == ["begun", "problem"]:
                file = target.begin(rows, json.loads(rows[0][1])["name"])
                records.append(target.read(file.number))
    return records


def count_attempts(path: str | PathLike[str] | None, fingerprint: str) -> int:
    """Number of studies of a problem in a file, one that is at hand included; 1 without a file."""
    if path is None:
        return 1
    with Store(path) as store:
        return max(1, store.attempts(fingerprint))


class StudyFile:
    """One study in a file, as the `Study` itself appends to it.

    It can be let go of (`close`) and is then taken again when there is something to write, unless somebody else has
    gone on with the study in the meantime.
    """

    def __init__(
        self, path: str | PathLike[str], number: int, name: str, chain: dict[str, Any], store: Store | None = None
    ) -> None:
        self.path, self.number, self.name = path, number, name
        self._store, self._root = store, chain["root"]
        self._end = (int(chain["rows"]), bytes.fromhex(chain["head"]))

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        name: str,
        problem: Problem,
        settings: Settings,
        own_data: Tally | None = None,
    ) -> StudyFile:
        """Begin a study in a file."""
        content = feature_problem_to_bytes(problem) if isinstance(problem, FeatureProblem) else to_bytes(problem)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        rows: list[Row] = [begun(name, problem.fingerprint, content, settings.to_dict(), versions(), now)]
        rows.append(("problem", content))
        if own_data is not None:
            rows.append(("own data", tally_to_bytes(own_data)))
        store = Store(path, write=True)
        try:
            return store.begin(rows, name)
        except BaseException:
            store.close()
            raise

    @classmethod
    def open(cls, path: str | PathLike[str], number: int, record: Record) -> StudyFile:
        """Take the writer's lock, to go on from what was read."""
        file = cls(path, number, record.name, record.chain)
        try:
            file.append()
        except BaseException:
            file.close()
            raise
        return file

    @property
    def chain(self) -> dict[str, Any]:
        """Root, head and number of rows, as a certificate carries them."""
        return {"root": self._root, "head": self._end[1].hex(), "rows": self._end[0]}

    def append(self, *rows: Row) -> None:
        """Append rows, all or none."""
        if self._store is None:
            self._store = Store(self.path, write=True)
        self._end = self._store.append(self.number, self._end, rows)

    def close(self) -> None:
        """Let go of the file."""
        if self._store is not None:
            self._store.close()
            self._store = None


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables of older versions to the present form: the same rows, in the order in which they came about."""
    studies = take_old_tables(connection)
    for statement in _FORMAT.tables:
        connection.execute(statement)
    for number, old in studies.items():
        first = begun(old.name, old.fingerprint, old.problem, old.settings, old.versions, old.created)
        rows = [first, ("problem", old.problem)]
        rows += [("own data", old.own_data)] if old.own_data is not None else []
        rows += _in_order(old)
        rows += [("ended", old.result.encode())] if old.result is not None else []
        connection.execute("INSERT INTO study VALUES (?, ?, ?)", (number, *_insert(connection.execute, number, rows)))


def _in_order(old: OldStudy) -> Iterator[Row]:
    """Return looks, requests and answers in the order in which they came about."""
    looks = deque(looked(i, numbers, policy) for i, (numbers, policy) in enumerate(old.looks))
    answers, passed = deque(old.answers), 0
    ends = [*(first for first, _, _ in old.requests), inf][1:]
    for position, ((first, before, content), end) in enumerate(zip(old.requests, ends, strict=True)):
        for _ in range(min(before - passed, len(looks))):
            yield looks.popleft()
        passed = before
        yield "asked", pack({"position": position, "first": first, "looks": before} | unpack(content))
        while answers and answers[0][0] < end:
            yield answered(*answers.popleft())
    yield from (answered(*answer) for answer in answers)
    yield from looks
