"""A file that runs survive in.

One SQLite file holds any number of studies, each under a name: what the problem is, the settings, the seed, every
request with what was decided with it, every tally that was told, every check, the result, the versions. To resume a
study is to add up the answers to each request and to go on from what was decided last: nothing is worked out again,
so a study may move between machines. What comes after is what would have come without the interruption.

Each answer is one transaction in write-ahead mode: after a crash or a kill the file holds every answer that was told
and nothing else. One process writes at a time (an operating-system lock, which a killed process cannot leave
behind); readers never block it, and need no right to write. Arrays are stored as plain NumPy bytes, never pickled:
reading a stranger's file runs no code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from os import PathLike
from typing import Any

from bestpolicy._numerics.arrays import IntArray
from bestpolicy._version import versions
from bestpolicy.errors import InvalidInput, did_you_mean
from bestpolicy.problem import Problem
from bestpolicy.problem.files import from_file, to_bytes
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check
from bestpolicy.study.database import Database
from bestpolicy.study.encoding import pack, policy_from_bytes, policy_to_bytes, tally_from_bytes, tally_to_bytes, unpack
from bestpolicy.study.result import Outcome
from bestpolicy.study.settings import Settings


@dataclass(frozen=True, eq=False)
class Asked:
    """A request of a study's algorithm.

    Attributes
    ----------
    first : int
        Index of its first query.
    looks : int
        Number of checks before it.
    pulls : Pulls
        What the algorithm wants, whatever the budget.
    decided : dict
        What else it has fixed with them.
    """

    first: int
    looks: int
    pulls: Pulls
    decided: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Record:
    """What a file says of a study.

    Attributes
    ----------
    name, fingerprint, created : str
        Its name, which problem it is about, and when it began (UTC).
    settings : Settings
        What was asked, and how.
    versions : dict
    result : dict or None
        As printed by ``--json``, once the study has ended.
    samples, answers : int
        Simulator calls and answers stored.
    checks : list of dict
        The looks at the data, without their policies.
    forecast : float, optional
        Simulator calls that it should need in all; None if it is too early to tell.
    """

    name: str
    fingerprint: str
    created: str
    settings: Settings
    versions: dict[str, str]
    result: dict[str, Any] | None
    samples: int
    answers: int
    checks: list[dict[str, Any]]
    forecast: float | None = None

    def __repr__(self) -> str:
        asked = f"{self.settings.algorithm} for ε = {self.settings.asked_epsilon:g}, δ = {self.settings.delta:g}"
        known = f"ε = {self.epsilon:g} certified" if self.epsilon < inf else "nothing certified"
        return f"Record({self.name!r}: {asked}; {known}, {self.samples} samples, {self.outcome})"

    @property
    def epsilon(self) -> float:
        """What is certified so far, in the user's units; inf if nothing is."""
        known = self.checks[-1].get("epsilon") if self.checks else None
        return inf if known is None else float(known)

    @property
    def outcome(self) -> Outcome:
        """Why it ended, if it has."""
        return Outcome.RUNNING if self.result is None else Outcome(self.result["outcome"])


class Store:
    """A file of studies, open for reading or for writing.

    Parameters
    ----------
    path : path
    write : bool
        Take the writer's lock; the file is made if there is none.
    """

    def __init__(self, path: str | PathLike[str], *, write: bool = False) -> None:
        self._db = Database(path, write=write)
        self.path = self._db.path

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._db.close()

    def names(self) -> list[str]:
        """Names of the studies, oldest first."""
        with self._db.errors():
            return [row[0] for row in self._db.execute("SELECT name FROM study ORDER BY id")]

    def attempts(self, fingerprint: str) -> int:
        """Number of studies of a problem."""
        with self._db.errors():
            rows = self._db.execute("SELECT COUNT(*) FROM study WHERE fingerprint = ?", (fingerprint,))
            return int(rows.fetchone()[0])

    def create(
        self, name: str, fingerprint: str, problem: bytes, settings: Settings, own_data: Tally | None = None
    ) -> int:
        """Begin a study and return its number."""
        if name in self.names():
            raise InvalidInput(
                f"{self.path} already has a study named {name!r}. Go on with it (bestpolicy resume, or in Python "
                f"drive(Study.resume({str(self.path)!r}, {name!r}), simulator)), or give another name."
            )
        with self._db.transaction():
            cursor = self._db.execute(
                "INSERT INTO study (name, fingerprint, problem, settings, versions, own) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    name,
                    fingerprint,
                    problem,
                    json.dumps(settings.to_dict()),
                    json.dumps(versions()),
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
        with self._db.errors():
            return int(self._db.execute("SELECT id FROM study WHERE name = ?", (name,)).fetchone()[0])

    def problem(self, study: int) -> Problem:
        """Return the problem that the study belongs to."""
        with self._db.errors():
            content = bytes(self._db.execute("SELECT problem FROM study WHERE id = ?", (study,)).fetchone()[0])
        return from_file(io.BytesIO(content), self.path)[0]

    def own_data(self, study: int) -> Tally | None:
        """Return the samples from elsewhere that the study began with."""
        with self._db.errors():
            (content,) = self._db.execute("SELECT own FROM study WHERE id = ?", (study,)).fetchone()
        return None if content is None else tally_from_bytes(content)

    def append(self, study: int, position: int, query: int, attempt: int, tally: Tally) -> None:
        """Store one answer, in a transaction of its own."""
        row = (study, position, query, attempt, tally.samples, tally_to_bytes(tally))
        with self._db.errors():  # one statement is a transaction by itself
            self._db.execute("INSERT INTO answer VALUES (?, ?, ?, ?, ?, ?)", row)

    def answers(self, study: int) -> Iterator[tuple[int, int, Tally]]:
        """Return (query, attempt, tally) of every answer, in the order in which they were told."""
        with self._db.errors():
            rows = self._db.execute(
                "SELECT query, attempt, tally FROM answer WHERE study = ? ORDER BY position", (study,)
            )
            for query, attempt, blob in rows:
                yield query, attempt, tally_from_bytes(blob)

    def requests(self, study: int) -> list[Asked]:
        """Return the requests of a study; none if an older version did not store them."""
        with self._db.errors():
            if not self._db.has_table("asked"):
                return []
            rows = self._db.execute(
                "SELECT first, looks, content FROM asked WHERE study = ? ORDER BY position", (study,)
            )
            found = [(first, looks, unpack(content)) for first, looks, content in rows]
        return [Asked(first, looks, Pulls(**known["pulls"]), known["decided"]) for first, looks, known in found]

    def record(
        self,
        study: int,
        checks: Sequence[Check],
        first: int,
        requests: Sequence[tuple[int, Asked]],
        result: dict[str, Any] | None,
    ) -> None:
        """Store the checks from position `first` on, requests by position, and the result if there is one."""
        rows = []
        for i in range(first, len(checks)):
            same = i > 0 and checks[i].policy is checks[i - 1].policy
            policy = None if same else policy_to_bytes(checks[i].policy)
            rows.append((study, i, json.dumps(checks[i].to_dict()), policy))
        asked = []
        for position, one in requests:
            content = {"pulls": {"pairs": one.pulls.pairs, "counts": one.pulls.counts}, "decided": one.decided}
            asked.append((study, position, one.first, one.looks, pack(content)))
        with self._db.transaction():
            self._db.executemany("INSERT OR REPLACE INTO looked VALUES (?, ?, ?, ?)", rows)
            self._db.executemany("INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?)", asked)
            if result is not None:
                self._db.execute("UPDATE study SET result = ? WHERE id = ?", (json.dumps(result), study))

    def reopen(self, study: int) -> None:
        """Forget the result of a study that goes on."""
        with self._db.transaction():
            self._db.execute("UPDATE study SET result = NULL WHERE id = ?", (study,))

    def trace(self, study: int) -> list[Check]:
        """Return the checks of a study, without their proofs; none if an older version did not store the policies."""
        checks: list[Check] = []
        policy: IntArray | None = None
        with self._db.errors():
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

    def change_settings(self, study: int, settings: Settings) -> None:
        """Store other settings of a study."""
        with self._db.transaction():
            self._db.execute("UPDATE study SET settings = ? WHERE id = ?", (json.dumps(settings.to_dict()), study))

    def read(self, study: int) -> Record:
        """Return what the file says of a study."""
        with self._db.errors():
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
            Settings.from_dict(json.loads(settings)),
            json.loads(versions),
            None if result is None else json.loads(result),
            samples,
            answers,
            checks,
        )


def count_attempts(path: str | PathLike[str] | None, fingerprint: str) -> int:
    """Number of studies of a problem in a file, one that is at hand included; 1 without a file."""
    if path is None:
        return 1
    with Store(path) as store:
        return max(1, store.attempts(fingerprint))


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
        settings: Settings,
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

    def requests(self) -> list[Asked]:
        """Return the requests so far."""
        return self._store.requests(self._study)

    def trace(self) -> list[Check]:
        """Return the checks so far, without their proofs."""
        return self._store.trace(self._study)

    def looks(self) -> list[dict[str, Any]]:
        """Return the numbers of the checks so far; older versions did not store the policies that belong to them."""
        return self._store.read(self._study).checks

    def record(
        self,
        checks: Sequence[Check],
        first: int,
        requests: Sequence[tuple[int, Asked]],
        result: dict[str, Any] | None,
    ) -> None:
        """Store the checks from position `first` on, requests by position, and the result if there is one."""
        self._store.record(self._study, checks, first, requests, result)

    def change_settings(self, settings: Settings) -> None:
        """Store other settings, such as a new budget."""
        self._store.change_settings(self._study, settings)

    def close(self) -> None:
        """Close the file."""
        self._store.close()
