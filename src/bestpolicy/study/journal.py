"""The rows of a study's journal, and what they say when they are read together.

Each row is a kind and its content, as plain bytes, never pickled: reading a stranger's file runs no code. Sizes that a
row declares are checked against its length, and against a limit, before anything is allocated.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from math import inf, prod
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import BestPolicyError, StoreError
from bestpolicy.problem import Problem
from bestpolicy.problem.feature_files import MARK, feature_problem_from
from bestpolicy.problem.files import from_file
from bestpolicy.samples import Bets, Drawn, Draws, Episodes, Followed, Pulls, Tally, Wanted, are_cells
from bestpolicy.stopping import Check
from bestpolicy.study.queries import FIRST_OF_TEST
from bestpolicy.study.result import Outcome
from bestpolicy.study.settings import Settings

Row = tuple[str, bytes]

_TALLY = b"tally 2\n"
_EPISODES = b"tally 3\n"  # what is known of whole episodes comes first: how many bytes, and then those of `pack`
_DRAWN = b"drawn 1\n"  # where states cannot be listed; then what `pack` makes of it
_MOST = 2**62  # cells that a tally may have room for
_DTYPES = ("<i8", "<f8", "|b1")
_SYMPTOMS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_QUERY = 16  # bytes that say which query an answer belongs to, and which attempt at it


def chained(before: bytes, kind: str, content: bytes) -> bytes:
    """Return the chain of a row."""
    found = sha256(before + kind.encode() + b"\0")
    found.update(content)
    return found.digest()


def begun(
    name: str, fingerprint: str, problem: bytes, settings: dict[str, Any], versions: dict[str, str], created: str
) -> Row:
    """Return the first row of a study, from which all that decides it follows."""
    known = {"name": name, "fingerprint": fingerprint, "problem": sha256(problem).hexdigest(), "settings": settings}
    return "begun", json.dumps(known | {"versions": versions, "created": created}).encode()


def answered(query: int, attempt: int, tally: bytes) -> Row:
    """Return the row of an answer."""
    kind = "tested" if query >= FIRST_OF_TEST else "answer"
    return kind, query.to_bytes(8, "little") + attempt.to_bytes(8, "little") + tally


def samples_told(rows: list[Row]) -> tuple[int, int]:
    """Return the number of answers among the rows, and of the samples in them."""
    answers = [samples_in(content[_QUERY:]) for kind, content in rows if kind in ("answer", "tested")]
    return len(answers), sum(answers)


def looked(position: int, numbers: dict[str, Any], policy: IntArray | None) -> Row:
    """Return the row of a look at the data; it replaces whatever was found there and after."""
    known: dict[str, Any] = {"position": position, "numbers": numbers}
    return "look", pack(known if policy is None else known | {"policy": policy})


@dataclass(frozen=True, eq=False)
class Asked:
    """A request of a study's algorithm.

    Attributes
    ----------
    first : int
        Index of its first query.
    looks : int
        Number of checks before it.
    wanted : Pulls or Episodes
        What the algorithm wants, whatever the budget.
    decided : dict
        What else it has fixed with them.
    """

    first: int
    looks: int
    wanted: Wanted
    decided: dict[str, Any]

    def row(self, position: int) -> Row:
        """Return its row; it replaces whatever was asked there and after."""
        known: dict[str, Any] = {"position": position, "first": self.first, "looks": self.looks}
        if isinstance(self.wanted, Pulls):
            known["pulls"] = {"pairs": self.wanted.pairs, "counts": self.wanted.counts}
        elif isinstance(self.wanted, Draws):  # its bets are those of the latest lag that was decided
            known["draws"] = {"counts": self.wanted.counts, "keep": self.wanted.keep}
            known["draws"]["tests"] = self.wanted.bets is not None
        else:
            known["episodes"] = dict(vars(self.wanted))
        return "asked", pack(known | {"decided": self.decided})


def rows_of_checks(checks: list[Check], first: int) -> Iterator[Row]:
    """Return the rows of the checks from position `first` on."""
    for i in range(first, len(checks)):
        same = i > 0 and checks[i].policy is checks[i - 1].policy
        yield looked(i, checks[i].to_dict(), None if same else checks[i].policy)


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
    chain : dict
        ``root``, ``head`` and the number of ``rows`` of its journal, as a certificate carries them.
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
    chain: dict[str, Any]
    forecast: float | None = None
    _rows: dict[str, list[bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: list[Row], chain: dict[str, Any]) -> Record:
        """Read the rows of a journal."""
        by_kind: dict[str, list[bytes]] = {}
        for kind, content in rows:
            by_kind.setdefault(kind, []).append(content)
        with damage("its first row"):
            known = json.loads(by_kind["begun"][0])
            settings = json.loads(by_kind["settings"][-1]) if "settings" in by_kind else known["settings"]
            name, fingerprint, created = (str(known[key]) for key in ("name", "fingerprint", "created"))
            versions = {str(key): str(value) for key, value in known["versions"].items()}
            if sha256(by_kind["problem"][0]).hexdigest() != known["problem"]:
                raise ValueError("the problem is another one")
        with damage("a result or a look"):
            last = next((row for row in reversed(rows) if row[0] in ("ended", "answer", "tested")), ("", b""))
            result = json.loads(last[1]) if last[0] == "ended" else None
            looks = [_numbers(look) for look in _latest(by_kind.get("look", []))]
            answers, samples = samples_told(rows)
            if result is not None:
                samples += int(result.get("misfit", {}).get("calls", 0))  # their answers are not kept
                _require_agreement(result, samples, looks[-1] if looks else {}, settings)
        return cls(
            name=name,
            fingerprint=fingerprint,
            created=created,
            settings=Settings.from_dict(settings),
            versions=versions,
            result=result,
            samples=samples,
            answers=answers,
            checks=looks,
            chain=chain,
            _rows=by_kind,
        )

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

    def to_dict(self) -> dict[str, Any]:
        """Return what is worth printing, ready for JSON."""
        listed = {entry.name: getattr(self, entry.name) for entry in fields(self) if not entry.name.startswith("_")}
        return listed | {"settings": self.settings.to_dict()}

    @cached_property
    def problem(self) -> Problem:
        """The problem that the study belongs to."""
        content, what = self._rows["problem"][0], f"the problem of study {self.name!r}"
        if content.startswith(MARK):
            described = feature_problem_from(json.loads(content[len(MARK) :]), what).in_units(self.settings.units)
            return self._checked(described)  # type: ignore[arg-type]
        problem = from_file(io.BytesIO(content), what)[0]
        return self._checked(problem)

    def knowing(self, problem: Problem) -> Record:
        """Return the record with its problem, where that has functions which no file can hold."""
        self.__dict__["problem"] = self._checked(problem)
        return self

    @property
    def description(self) -> dict[str, Any]:
        """What the file holds of a problem whose states nobody lists: all but functions."""
        with damage("the problem"):
            found: dict[str, Any] = json.loads(self._rows["problem"][0].removeprefix(MARK))
            return found

    @property
    def is_listed(self) -> bool:
        """Whether the states of its problem are listed."""
        return not self._rows["problem"][0].startswith(MARK)

    def _checked(self, problem: Problem) -> Problem:
        if problem.fingerprint != self.fingerprint:
            raise StoreError(f"study {self.name!r} says that it is about another problem than the one it holds.")
        return problem

    @cached_property
    def own_data(self) -> Tally | None:
        """Samples from elsewhere that the study began with."""
        return tally_from_bytes(self._rows["own data"][0]) if "own data" in self._rows else None

    def told(self, *, of_test: bool = False) -> Iterator[tuple[int, int, Tally]]:
        """Return (query, attempt, tally) of every answer to the algorithm, or to the test, in the order of telling."""
        for content in self._rows.get("tested" if of_test else "answer", []):
            query, attempt = (int.from_bytes(content[i : i + 8], "little") for i in (0, 8))
            yield query, attempt, tally_from_bytes(content[_QUERY:])

    @cached_property
    def requests(self) -> list[Asked]:
        """What was asked; nothing if an older version did not store it."""
        with damage("a request"):
            known, lag = [], None
            for one in _latest(self._rows.get("asked", [])):
                decided = dict(one["decided"])
                lag = decided.get("lag", lag)
                known.append(Asked(int(one["first"]), int(one["looks"]), _wanted(one, lag), decided))
            return known

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds of the test of the features."""
        with damage("a round of the test"):
            return [unpack(content) for content in self._rows.get("test", [])]

    @cached_property
    def trace(self) -> list[Check]:
        """The checks, without their proofs; none if an older version did not store the policies."""
        checks: list[Check] = []
        policy: IntArray | None = None
        with damage("a look"):
            for look in _latest(self._rows.get("look", [])):
                policy = look.get("policy", policy)
                if policy is None:
                    return []
                numbers: dict[str, Any] = {
                    key: inf if value is None else value for key, value in look["numbers"].items()
                }
                checks.append(Check(policy=policy, **numbers))
        return checks


def _wanted(request: dict[str, Any], lag: dict[str, Any] | None) -> Wanted:
    """Return what a request asks for."""
    if "draws" in request:
        draws = request["draws"]
        bets = Bets(**lag["bets"]) if draws["tests"] and lag is not None else None
        return Draws(draws["counts"], bool(draws["keep"]), bets)
    return Pulls(**request["pulls"]) if "pulls" in request else Episodes(**request["episodes"])


def _latest(contents: list[bytes]) -> list[dict[str, Any]]:
    """Return what holds of rows of which each replaces what was at its position and after."""
    known: list[dict[str, Any]] = []
    for content in contents:
        one = unpack(content)
        position = int(one["position"])
        if not 0 <= position <= len(known):
            raise ValueError(f"nothing stands before position {position}")
        known[position:] = [one]
    return known


_WHOLE, _REAL = ("rounds", "samples", "lag"), ("statistic", "threshold", "epsilon", "gap", "forecast", "value_floor")


def _numbers(look: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a look, which are of the right kinds."""
    for key, value in look["numbers"].items():
        if key in _WHOLE:
            right = type(value) is int
        elif key in _REAL:
            right = value is None or (type(value) in (int, float) and abs(value) < inf)
        else:
            right = type(value) is {"passed": bool, "rule": str}[key]
        if not right or (key in (*_WHOLE, "epsilon") and value is not None and not value >= 0):
            raise ValueError(f"{key} is {value!r:.40}")
    return dict(look["numbers"])


def _require_agreement(result: dict[str, Any], samples: int, last: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuse a result that is another than what the rows before it come to."""
    outcome, certified, _ = Outcome(result["outcome"]), result["certified"], float(result["seconds"])
    if certified is not (outcome is Outcome.CERTIFIED) or (certified and not last.get("passed")):
        raise ValueError(f"it ended as {outcome}, which its last look does not say")
    for name, known in (("samples", samples), ("delta", settings["delta"])):
        if result[name] != known:
            raise ValueError(f"{name} of the result is {result[name]!r:.40}, that of the rows {known!r:.40}")
    least, claimed = (inf if known is None else known for known in (last.get("epsilon"), result["epsilon"]))
    asked = float(settings.get("epsilon", -1.0))  # the first versions wrote what was asked
    if claimed != least and not claimed == asked >= least:
        raise ValueError(f"epsilon of the result is {claimed!r:.40}, that of the last look {least!r:.40}")


@contextmanager
def damage(what: str) -> Iterator[None]:
    """Turn whatever a reader of rows raises into one error."""
    try:
        yield
    except BestPolicyError:
        raise
    except _SYMPTOMS as error:
        raise StoreError(f"{what} is damaged ({error}). Take a copy of the file that is whole.") from None


# --- bytes


def tally_to_bytes(tally: Tally) -> bytes:
    """Return a tally as bytes; of the next states only those that occurred.

    A mark, four whole numbers (stages, pairs, states, and cells in use), and then the arrays one after the other, all
    little-endian with eight bytes a number. A tally of episodes has another mark, and before all that how many bytes
    say what is known of whole episodes, and these (`pack`).
    """
    if isinstance(tally, Drawn):
        return _DRAWN + pack(tally.to_dict())
    if tally.followed is not Tally.followed:
        known = pack(dict(vars(tally.followed)))
        steps = tally_to_bytes(tally.with_followed(Tally.followed))
        return b"".join((_EPISODES, len(known).to_bytes(8, "little"), known, steps))
    sizes = np.array([*tally.shape, len(tally.cells)], "<i8")
    whole = (array.astype("<i8", copy=False).tobytes() for array in (sizes, tally.pairs, tally.cells, tally.counts))
    real = (array.astype("<f8", copy=False).tobytes() for array in (tally.rewards, tally.squared_rewards))
    return b"".join((_TALLY, *whole, *real))


def tally_from_bytes(data: bytes) -> Tally:
    """Read a tally that `tally_to_bytes` wrote; its sums were checked then, and their total is where they are used."""
    try:
        if data.startswith(_DRAWN):
            return Drawn.from_dict(unpack(data[len(_DRAWN) :]))  # type: ignore[return-value]
        if data.startswith(_EPISODES):
            known, steps = _divided(data)
            return tally_from_bytes(steps).with_followed(_followed(unpack(known)))
        if not data.startswith(_TALLY):
            return _tally_of_the_first_version(data)
        start = len(_TALLY)
        stages, pairs, states, used = np.frombuffer(data, "<i8", 4, start).tolist()
        if min(stages, pairs, states, used) < 0 or len(data) != start + 8 * (4 + pairs + 3 * used + stages * pairs):
            raise ValueError("its length does not fit")
        whole = np.frombuffer(data, "<i8", pairs + 2 * used, start + 32).astype(np.int64)
        real = np.frombuffer(data, "<f8", used + stages * pairs, start + 32 + whole.nbytes).astype(np.float64)
        index, cells, counts = whole[:pairs], whole[pairs : pairs + used], whole[pairs + used :]
        return _of_cells((stages, pairs, states), index, cells, counts, real[:used], real[used:])
    except (ValueError, IndexError, EOFError, TypeError, OverflowError) as error:
        raise StoreError(f"a stored tally is damaged ({error}). Take a copy of the file that is whole.") from None


def samples_in(data: bytes) -> int:
    """Return the number of samples of a tally that `tally_to_bytes` wrote."""
    if data.startswith(_EPISODES):
        return samples_in(_divided(data)[1])
    if data.startswith(_DRAWN) or not data.startswith(_TALLY):
        return tally_from_bytes(data).samples
    try:
        pairs, used = (int.from_bytes(data[start : start + 8], "little") for start in (16, 32))
        return int(np.frombuffer(data, "<i8", used, 40 + 8 * (pairs + used)).sum())
    except (ValueError, OverflowError) as error:
        raise StoreError(f"a stored tally is damaged ({error}). Take a copy of the file that is whole.") from None


def _divided(data: bytes) -> tuple[bytes, bytes]:
    """Return what is known of whole episodes, and their steps."""
    end = 16 + int.from_bytes(data[8:16], "little")
    return data[16:end], data[end:]


def _followed(known: dict[str, Any]) -> Followed:
    squared, forfeited, broken = float(known["squared_returns"]), float(known["forfeited"]), known["broken"]
    if not (squared >= 0 and forfeited >= 0) or broken.ndim != 2 or broken.shape[1] != 2 or broken.dtype.kind != "i":
        raise ValueError("what it says of whole episodes does not fit")
    return Followed(squared, forfeited, broken)


def _tally_of_the_first_version(data: bytes) -> Tally:
    buffer = io.BytesIO(data)
    shape, *arrays = (np.lib.format.read_array(buffer, allow_pickle=False) for _ in range(6))
    return _of_cells(tuple(shape.tolist()), *arrays)


def _of_cells(
    shape: tuple[int, ...],
    pairs: IntArray,
    cells: IntArray,
    counts: IntArray,
    rewards: FloatArray,
    squares: FloatArray,
) -> Tally:
    stages, known, states = shape
    if stages * known * states > _MOST:
        raise ValueError(f"it would have {stages * known * states:.2g} cells")
    if not len(pairs) == known or not are_cells(cells, shape):
        raise ValueError("its cells are not in order")
    return Tally._of_cells((stages, known, states), pairs, cells, counts, rewards, squares.reshape(stages, known))


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
