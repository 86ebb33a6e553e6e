"""Hostile files: forged certificates, archives that unpack to more than there is, databases that never end.

Each is read under a limit of memory and time. It must be refused: with an exception of this package, or with a
verification that says "not valid". To accept it, to crash and to hang are failures. Of a forged journal whose hashes
fit, nobody can tell what could have been: there whatever is accepted must fit together.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import bestpolicy as bp
from bestpolicy.report.accounts import from_store
from bestpolicy.study.journal import pack, samples_told, tally_from_bytes, tally_to_bytes, unpack
from bestpolicy.study.store import Store
from bestpolicy.verification.reading import digest
from tests.attack.flips import MDP, finished, unfinished, untouched, wrong_with
from tests.attack.sandbox import Found, attempt
from tests.journals import rewrite

DATA = Path(__file__).parent.parent / "data"
Forgery = tuple[str, Callable[[str], None], str]  # its name, what writes it to a path, and what reads it


def accepted(path: str, kind: str) -> str:
    """Read a file in every way that there is for its kind; return who has accepted it."""
    if kind == "certificate":
        if bp.verify(path).valid:
            return "verify accepts it"
    elif kind == "model":
        for reader in (bp.LinearMDP.load, bp.report.report_page):
            try:
                reader(path)
            except bp.BestPolicyError:
                continue
            return f"{reader.__qualname__} accepts it"
    elif kind == "forged store":
        return contradicts_itself(path)
    else:
        write = unfinished if kind == "unfinished store" else finished
        changed = None if kind == "store" else Path(path).read_bytes()  # what was no store is rightly told so
        return wrong_with(path, changed, untouched(write)[1])
    return ""


def forgeries() -> Iterator[Forgery]:
    """All of them."""
    yield from _certificates()
    yield from _models()
    yield from _stores()
    for kind in ("certificate", "model", "store"):
        for name, content in _RUBBISH.items():
            yield f"{kind}: {name}", partial(_write, content), kind
        yield f"{kind}: a folder", os.mkdir, kind
        yield f"{kind}: a pipe that nobody writes to", os.mkfifo, kind
        yield f"{kind}: a link to itself", lambda path: os.symlink(path, path), kind
        yield f"{kind}: an endless device", partial(os.symlink, "/dev/zero"), kind


_RUBBISH = {
    "empty": b"",
    "random": random.Random(0).randbytes(5000),
    "zeros": bytes(100_000),
    "text": b"hello",
    "not utf-8": b"\xff\xfe{",
    "a zip without end": b"PK\x03\x04" + bytes(100),
    "only the head of a database": b"SQLite format 3\0" + bytes(84),
}


def _write(content: bytes, path: str) -> None:
    Path(path).write_bytes(content)


def _changed(file: Path, change: Callable[[Any], None], path: str) -> None:
    """Write a certificate that somebody has changed, with the digest that fits to what it says now."""
    content = json.loads(file.read_text())
    change(content)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        content["sha256"] = digest(content)
    Path(path).write_text(json.dumps(content))


def _set(*keys: str | int, to: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to(content[keys[-1]]) if callable(to) else to

    return change


def _leaves(node: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*keys, key))
    else:
        yield keys


def _certificates() -> Iterator[Forgery]:
    hostile: dict[str, Any] = {
        "a long text": "x" * 10**6,
        "minus one": -1,
        "not a number": float("nan"),
        "infinity": float("inf"),
        "a huge number": 10**4000,
        "a list": [[[]]],
        "a deep list": json.loads("[" * 900 + "]" * 900),
        "nothing": None,
    }
    chance = random.Random(7)
    for name in ("tight", "gss"):
        file = DATA / "certificates" / f"{name}.json"
        content = json.loads(file.read_text())
        for keys in _leaves({key: content[key] for key in ("problem", "claim", "proof")}):
            what, value = chance.choice(list(hostile.items()))
            if keys[-1] in _NOT_CLAIMED:
                continue
            how = partial(_changed, file, _set(*keys, to=value))
            yield f"certificate: {name} with {what} as {'.'.join(map(str, keys))}", how, "certificate"
        for what, change in {
            "half the ε": _set("claim", "epsilon", to=lambda epsilon: epsilon / 2),
            "a millionth of δ": _set("claim", "delta", to=lambda delta: delta / 10**6),
            "rewards on another scale": _set("claim", "reward_scale", to=lambda scale: scale * 4),
            "another discount": _set("problem", "discount", to=lambda discount: 0.9 + discount / 100),
            "another policy": _set("claim", "policy", to=lambda policy: _packed(1 - _unpacked(policy))),
            "twice the counts": _set("proof", "samples", "counts", to=lambda counts: _packed(2 * _unpacked(counts))),
            "no rewards": _set("proof", "samples", "rewards", to=lambda rewards: _packed(0 * _unpacked(rewards))),
            "other features": _set("problem", "features", to=lambda features: _packed(_unpacked(features)[::-1])),
            "arrays that unpack to more than they say": _inflated,
        }.items():
            yield f"certificate: {name} with {what}", partial(_changed, file, change), "certificate"
    text = (DATA / "certificates" / "tight.json").read_text()
    yield "certificate: deep", partial(_write, b"[" * 10**6), "certificate"
    yield "certificate: deep objects", partial(_write, b'{"a":' * 10**5), "certificate"
    yield "certificate: many digits", partial(_write, b'{"delta": ' + b"9" * 10**6 + b"}"), "certificate"
    yield "certificate: cut", partial(_write, text[: len(text) // 2].encode()), "certificate"
    yield "certificate: twice", partial(_write, (text + text).encode()), "certificate"


# What a certificate says about its run, but does not claim, or what is nothing already: to change it is no forgery.
_NOT_CLAIMED = ("labels", "rule", "asked_epsilon", "asked_was_certified", "reward_offset", "horizon", "mask", "lag")
_NOT_CLAIMED += (
    "value_span",
    "values",
    "weighted",
    "transform",
    "prior",
    "lag_share",
    "design_pairs",
    "design_weights",
)


def _unpacked(node: Any) -> Any:
    content = zlib.decompress(base64.b64decode(node["data"]))
    return np.frombuffer(content, node["dtype"]).reshape(node["shape"])


def _packed(array: Any) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _inflated(content: Any) -> None:
    """Let every packed array unpack to much more than its shape says."""
    packer = zlib.compressobj(9)
    piece = b"".join(packer.compress(bytes(2**24)) for _ in range(8)) + packer.flush()
    for keys in list(_leaves(content)):
        if keys[-1] == "data":
            _set(*keys, to=base64.b64encode(piece).decode())(content)


def _npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text) % 65536) + text + data


def _archive(changed: dict[str, bytes | None], path: str, compression: int = zipfile.ZIP_STORED) -> None:
    """Write a model file in which some arrays are others, or are missing."""
    buffer = io.BytesIO()
    arrays = {"features": MDP.problem.features, "discount": np.float64(0.9), "theta": MDP.theta[0], "mu": MDP.mu[0]}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            content = changed.pop(name, buffer.getvalue())
            if content is not None:
                archive.writestr(name + ".npy", content)
        for name, content in changed.items():
            archive.writestr(name + ".npy", content or b"")


def _bomb(path: str) -> None:
    """4 GB of zeros as features, packed into a few MB."""
    header = _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (16384, 16384, 2), }")
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("features.npy", "w", force_zip64=True) as file,
    ):
        file.write(header)
        for _ in range(4096 if os.environ.get("BESTPOLICY_ATTACK") else 64):
            file.write(bytes(2**20))


def _models() -> Iterator[Forgery]:
    def header(descr: str, shape: str, fortran: str = "False") -> bytes:
        return _npy(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}", bytes(64))

    features = {
        "of 10^18 entries": header("'<f8'", "(1000000, 1000000, 1000000)"),
        "whose size overflows": header("'<f8'", "(4294967296, 4294967296, 4294967296)"),
        "of negative size": header("'<f8'", "(-1, 2, 3)"),
        "of objects": header("'|O'", "(3, 2, 3)"),
        "of records": header("[('a', '<f8')]", "(3, 2, 3)"),
        "of texts": header("'<U1000000000'", "(3, 2, 3)"),
        "of dates": header("'<M8[s]'", "(1, 1, 8)"),
        "of no type": header("'<z9'", "(3, 2, 3)"),
        "with code as head": _npy("__import__('os').system('true')"),
        "with a deep head": _npy("(" * 3000 + ")" * 3000),
        "with a long head": _npy("{'descr': '<f8'" + " " * 60000 + "}"),
        "of an unknown version": _npy("{}", b"", b"\x09\x09"),
        "cut": header("'<f8'", "(3, 2, 3)")[:90],
        "pickled": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "not a number": _array(np.full((3, 2, 3), np.nan)),
        "infinite": _array(np.full((3, 2, 3), np.inf)),
        "huge": _array(np.full((3, 2, 3), 1e308)),
        "tiny": _array(np.full((3, 2, 3), 1e-320)),
        "without a state": _array(np.zeros((0, 2, 3))),
        "of one axis": _array(np.ones(3)),
        "complex": _array(np.ones((3, 2, 3), complex)),
        "of rank one": _array(np.ones((3, 2, 3))),
    }
    for what, content in features.items():
        yield f"model: features {what}", partial(_archive, {"features": content}), "model"
    others = {
        "a horizon of 10^18": {"discount": None, "horizon": _array(np.int64(10**18))},
        "a horizon of 10^300": {"discount": None, "horizon": _array(np.float64(1e300))},
        "a horizon of 0": {"discount": None, "horizon": _array(np.int64(0))},
        "a horizon and a discount": {"horizon": _array(np.int64(5))},
        "a text as discount": {"discount": _array(np.array("x"))},
        "a discount of 1": {"discount": _array(np.float64(1.0))},
        "two discounts": {"discount": _array(np.array([0.5, 0.6]))},
        "an array nobody knows": {"evil": _array(np.ones(3))},
        "a mask without actions": {"mask": _array(np.zeros((3, 2), bool))},
        "rewards of 5": {"theta": _array(np.full(3, 5.0))},
        "probabilities of 2": {"mu": _array(2 * MDP.mu[0])},
        "no theta": {"theta": None},
        "no features": {"features": None},
        "mu of 10^15 entries": {"mu": header("'<f8'", "(1000000000, 1000000)")},
    }
    for what, changed in others.items():
        yield f"model: {what}", partial(_archive, dict(changed)), "model"
    yield "model: a bomb", _bomb, "model"
    yield "model: a path that leaves the archive", partial(_archive, {"../../evil": _array(np.ones(3))}), "model"


def _array(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _store(write: Callable[[str], None], statements: tuple[str, ...], path: str) -> None:
    """Write a file of studies, and let somebody change it."""
    Path(path).write_bytes(untouched(write)[0])
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            database.execute(statement)
    database.close()


_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def _stores() -> Iterator[Forgery]:
    """Files that somebody has changed without the hashes, or such that SQLite would do what it should not."""
    columns = {"study": ("id", "rows", "head"), "entry": ("id", "kind", "content", "chain")}
    values = {
        "a text": "'x'",
        "a huge number": "9223372036854775807",
        "minus one": "-1",
        "a fraction": "0.5",
        "a gigabyte": "zeroblob(900000000)",
        "deep JSON": "'" + "[" * 100_000 + "'",
    }
    last = "(SELECT MAX(id) FROM entry)"
    for table, names in columns.items():
        for number, column in enumerate(names):
            for what, value in values.items():
                if column == "id" and not value.lstrip("-").isdigit():  # which SQLite itself refuses
                    continue
                change = f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE id = (SELECT MAX(id) FROM {table})"
                write = (unfinished, finished)[number % 2]
                yield f"store: {what} as {table}.{column}", partial(_store, write, (change,)), f"{write.__name__} store"
    endless = f"CREATE VIEW {{0}} AS {_ENDLESS} SELECT {{1}} FROM n"
    hostile = {
        "endless rows": (
            "ALTER TABLE entry RENAME TO kept",
            endless.format("entry", "i + 1099511627775 AS id, 'look' AS kind, x'' AS content, x'' AS chain"),
        ),
        "endless studies": (
            "ALTER TABLE study RENAME TO kept",
            endless.format("study", "i AS id, 1 AS rows, x'' AS head"),
        ),
        "a trigger that never ends": (
            f"CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT COUNT(*) FROM ({_ENDLESS} SELECT i FROM n); END",
        ),
        "a trigger that forgets": ("CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM entry; END",),
        "an index on what is computed": ("CREATE INDEX i ON entry (hex(content))",),
        "a virtual table": ("CREATE VIRTUAL TABLE v USING fts5(x)",),
        "another table": ("CREATE TABLE more (x)",),
        "a column that is computed": ("ALTER TABLE entry ADD COLUMN more AS (kind || content)",),
        "a schema that is no SQL": ("UPDATE sqlite_master SET sql = 'CREATE TABLE study AS (' WHERE name = 'study'",),
        "no tables": ("DROP TABLE study", "DROP TABLE entry"),
        "no studies": ("DROP TABLE study",),
        "a newer version": ("PRAGMA user_version = 99",),
        "an older version": ("PRAGMA user_version = 3",),
        "the first version": ("PRAGMA user_version = 1",),
        "a version below all": ("PRAGMA user_version = -5",),
        "somebody else's application": ("PRAGMA application_id = 1",),
        "a row more": (f"INSERT INTO entry SELECT id + 1, kind, content, chain FROM entry WHERE id = {last}",),
        "a row less": (f"DELETE FROM entry WHERE id = {last}",),
        "a row less in between": (f"DELETE FROM entry WHERE id = {last} - 4",),
        "no rows at all": ("DELETE FROM entry",),
        "rows in another order": (
            f"UPDATE entry SET id = -1 WHERE id = {last} - 1",
            f"UPDATE entry SET id = {last} + 1 WHERE id = {last}",
            f"UPDATE entry SET id = {last} - 2 WHERE id = -1",
        ),
        "half of a row": (f"UPDATE entry SET content = substr(content, 1, 40) WHERE id = {last} - 1",),
        "another kind of row": (f"UPDATE entry SET kind = 'answer' WHERE id = {last} - 1",),
        "a study more": ("INSERT INTO study SELECT id + 1, rows, head FROM study",),
        "a million studies": (f"{_ENDLESS} INSERT INTO study SELECT i + 1, 1, x'' FROM n LIMIT 1000000",),
        "a smaller epsilon in the first row": (
            "UPDATE entry SET content = CAST(replace(content, 'epsilon\": 0.6', 'epsilon\": 0.1') AS BLOB) "
            "WHERE kind = 'begun'",
        ),
        "another end": (
            "UPDATE entry SET content = CAST(replace(content, 'certified', 'budget') AS BLOB) WHERE kind = 'ended'",
        ),
    }
    for what, statements in hostile.items():
        write = finished if "end" in what.split() else unfinished
        yield f"store: {what}", partial(_store, write, statements), f"{write.__name__} store"
    for what, (write, change) in _forged_journals().items():
        yield f"store: {what}, hashes and all", partial(_rewritten, write, change), "forged store"


Rows = list[tuple[str, bytes]]


def _rewritten(write: Callable[[str], None], change: Callable[[Rows], Rows], path: str) -> None:
    """Write a file of studies whose rows somebody has changed, with hashes that fit."""
    Path(path).write_bytes(untouched(write)[0])
    rewrite(path, "study", change)


def _row(kind: str, change: Callable[[bytes], bytes], which: int = 0) -> Callable[[Rows], Rows]:
    """Change the content of one row of a kind."""

    def changed(rows: Rows) -> Rows:
        place = [i for i, row in enumerate(rows) if row[0] == kind][which]
        return [*rows[:place], (kind, change(rows[place][1])), *rows[place + 1 :]]

    return changed


def _text(kind: str, old: str, new: str) -> Callable[[Rows], Rows]:
    def change(content: bytes) -> bytes:
        assert old.encode() in content, (kind, old)
        return content.replace(old.encode(), new.encode())

    return _row(kind, change)


def _fields(kind: str, which: int = 0, **changed: Any) -> Callable[[Rows], Rows]:
    """Change fields of a row that was packed; a callable gets what is there."""

    def change(content: bytes) -> bytes:
        node = unpack(content)
        return pack(node | {key: to(node[key]) if callable(to) else to for key, to in changed.items()})

    return _row(kind, change, which)


def _json(kind: str, **changed: Any) -> Callable[[Rows], Rows]:
    return _row(kind, lambda content: json.dumps(json.loads(content) | changed).encode())


def _tally(change: Callable[[bp.Tally], dict[str, Any]], which: int = 0) -> Callable[[Rows], Rows]:
    """Change the arrays of an answer, possible or not."""

    def changed(content: bytes) -> bytes:
        tally = tally_from_bytes(content[16:])
        arrays = {
            name: getattr(tally, name).copy() for name in ("pairs", "next_counts", "next_rewards", "squared_rewards")
        }
        forged = arrays | change(tally)
        cells = np.flatnonzero(forged["next_counts"])
        known = {"shape": forged["next_counts"].shape, "pairs": forged["pairs"], "cells": cells}
        known |= {"counts": forged["next_counts"].ravel()[cells], "rewards": forged["next_rewards"].ravel()[cells]}
        known |= {"squared_rewards": forged["squared_rewards"], "followed": bp.Tally.followed}
        return content[:16] + tally_to_bytes(SimpleNamespace(**known))  # type: ignore[arg-type]

    return _row("answer", changed, which)


def _sizes(*sizes: int) -> Callable[[Rows], Rows]:
    start = 16 + len(b"tally 2\n")
    numbers = b"".join(size.to_bytes(8, "little", signed=True) for size in sizes)
    return _row("answer", lambda content: content[:start] + numbers + content[start + len(numbers) :])


def _forged_journals() -> dict[str, tuple[Callable[[str], None], Callable[[Rows], Rows]]]:
    """What a forger makes of the rows of a journal; some of it could have been."""
    begun = {
        "nothing": _row("begun", lambda content: b"{}"),
        "a list": _row("begun", lambda content: b"[]"),
        "deep JSON": _row("begun", lambda content: b"[" * 10**5),
        "not UTF-8": _row("begun", lambda content: b"\xff\xfe"),
        "an endless seed": _text("begun", '"seed": 3', '"seed": 1e999'),
        "a seed of 10^4000": _text("begun", '"seed": 3', '"seed": 1' + "0" * 4000),
        "a seed of many digits": _text("begun", '"seed": 3', '"seed": ' + "9" * 10**5),
        "another seed": _text("begun", '"seed": 3', '"seed": 4'),
        "no epsilon": _text("begun", '"asked_epsilon": 0.6', '"asked_epsilon": NaN'),
        "a smaller epsilon": _text("begun", '"asked_epsilon": 0.6', '"asked_epsilon": 0.5'),
        "another delta": _text("begun", '"delta": 0.1', '"delta": 0.0001'),
        "a delta of text": _text("begun", '"delta": 0.1', '"delta": "0.1"'),
        "two deltas": _text("begun", '"delta": 0.1', '"delta": 0.1, "delta": 0.2'),
        "another algorithm": _text("begun", '"algorithm": "tight"', '"algorithm": "gss"'),
        "an algorithm that is none": _text("begun", '"algorithm": "tight"', '"algorithm": ["tight"]'),
        "a parameter nobody knows": _text("begun", '"check_ratio"', '"evil"'),
        "a parameter of text": _text("begun", '"check_ratio": 1.5', '"check_ratio": "x"'),
        "a ratio of looks of next to nothing": _text("begun", '"check_ratio": 1.5', '"check_ratio": 1.0000000001'),
        "units of nothing": _text("begun", '"reward_scale": 1.0', '"reward_scale": 0.0'),
        "other units": _text("begun", '"reward_scale": 1.0', '"reward_scale": 2.0'),
        "settings of a list": _json("begun", settings=[1, 2]),
        "versions of a number": _json("begun", versions=5),
        "a name of a list": _json("begun", name=["a"]),
        "a name that commands the terminal": _json("begun", name="\x1b[2J\n"),
        "another fingerprint": _json("begun", fingerprint="0" * 64),
        "another hash of the problem": _json("begun", problem="0" * 64),
        "budgets of text": _text("begun", '"budgets": [', '"budgets": ["x", '),
        "failures of text": _text("begun", '"failures": 0', '"failures": "x"'),
        "warnings of numbers": _text("begun", '"warnings": []', '"warnings": [1, null]'),
        "an origin of a list": _text("begun", '"origin": {}', '"origin": [1]'),
    }
    problem = {
        "cut": _row("problem", lambda content: content[:100]),
        "not an archive": _row("problem", lambda content: b"PK"),
        "empty": _row("problem", lambda content: b""),
    }
    asked = {
        "of ones": _row("asked", lambda content: b"\xff" * 8),
        "with nothing in it": _row("asked", lambda content: pack({"position": 0})),
        "for what is none": _fields("asked", pulls={"pairs": 3, "counts": "x"}),
        "for no pair": _fields("asked", pulls={"pairs": np.zeros(0, np.int64), "counts": np.zeros((1, 0), np.int64)}),
        "for pairs that are none": _fields("asked", -1, pulls=lambda pulls: pulls | {"pairs": pulls["pairs"] + 10**6}),
        "for more": _fields("asked", pulls=lambda pulls: pulls | {"counts": pulls["counts"] * 2}),
        "for 2^62 samples": _fields("asked", -1, pulls=lambda pulls: pulls | {"counts": pulls["counts"] * 0 + 2**60}),
        "for less than nothing": _fields("asked", pulls=lambda pulls: pulls | {"counts": -pulls["counts"]}),
        "before all": _fields("asked", position=-7),
        "after all": _fields("asked", -1, position=10**9),
        "of text": _fields("asked", first="x", looks={}),
        "from a query below all": _fields("asked", -1, first=-5),
        "from a query beyond all": _fields("asked", -1, first=10**30),
        "after 10^9 looks": _fields("asked", -1, looks=10**9),
        "after less than no looks": _fields("asked", -1, looks=-3),
        "with nothing decided": _fields("asked", decided={}),
        "with nonsense decided": _fields("asked", decided={"design": "x", "allocation": [1, 2]}),
        "with something else decided": _fields("asked", -1, decided={"a": {"b": np.ones(3)}}),
        "with a list decided": _fields("asked", decided=[1]),
    }
    answer = {
        "cut": _row("answer", lambda content: content[:10]),
        "of text": _row("answer", lambda content: content[:16] + b"hello"),
        "of many pairs": _sizes(1, 2**40, 2**40, 0),
        "of many states": _sizes(2**62, 4, 2**62, 1),
        "of less than no pairs": _sizes(1, -1, 3, 1),
        "to a query beyond all": _row("answer", lambda content: b"\xff" * 8 + content[8:], -1),
        "to an attempt that never was": _row("answer", lambda content: content[:8] + b"\x05" + content[9:], -1),
        "with more samples": _tally(lambda tally: {"next_counts": 2 * tally.next_counts}),
        "with more samples at last": _tally(lambda tally: {"next_counts": 2 * tally.next_counts}, -1),
        "with less than no samples": _tally(lambda tally: {"next_counts": -tally.next_counts}),
        "with other rewards": _tally(lambda tally: {"next_rewards": tally.next_rewards * 0.5}),
        "with rewards beyond all": _tally(lambda tally: {"next_rewards": tally.next_rewards * 1e300}),
        "with rewards that are no numbers": _tally(lambda tally: {"next_rewards": tally.next_rewards * np.nan}),
        "with squares that do not fit": _tally(lambda tally: {"squared_rewards": tally.squared_rewards + 1e6}),
        "with squares that are no numbers": _tally(lambda tally: {"squared_rewards": tally.squared_rewards * np.nan}),
        "of other pairs": _tally(lambda tally: {"pairs": tally.pairs + 1}),
        "of pairs beyond all": _tally(lambda tally: {"pairs": tally.pairs + 10**6}),
        "of pairs in disorder": _tally(lambda tally: {"pairs": tally.pairs[::-1]}),
    }
    look = {
        "of text": _fields("look", numbers={"epsilon": "x"}),
        "of a list": _fields("look", numbers=[1]),
        "of nothing": _fields("look", numbers={}),
        "with a smaller epsilon": _fields("look", -1, numbers=lambda known: known | {"epsilon": 1e-9}),
        "with an epsilon below 0": _fields("look", -1, numbers=lambda known: known | {"epsilon": -1.0}),
        "that passed": _fields("look", numbers=lambda known: known | {"passed": True}),
        "with less than no samples": _fields("look", -1, numbers=lambda known: known | {"samples": -5}),
        "with 10^400 rounds": _fields("look", -1, numbers=lambda known: known | {"rounds": 10**400}),
        "with numbers that are none": _fields("look", -1, numbers=lambda known: known | {"gap": float("nan")}),
        "with a number more": _fields("look", numbers=lambda known: known | {"evil": 1}),
        "with a rule of another name": _fields("look", -1, numbers=lambda known: known | {"rule": "<script>\x1b"}),
        "at a place that is none": _fields("look", position=77),
        "at a place before all": _fields("look", position=-1),
        "with a policy that is none": _fields("look", policy=np.full((1, 3), 10**6)),
        "with a policy of another shape": _fields("look", policy=np.zeros((7, 7), np.int64)),
        "with a policy of text": _fields("look", policy="x"),
        "with a policy of fractions": _fields("look", policy=np.full((1, 3), 0.5)),
    }
    ended = {
        "of a list": _row("ended", lambda content: b"[]"),
        "nobody knows": _json("ended", outcome="splendid"),
        "for another reason": _json("ended", outcome="budget"),
        "with no more than a word": _row("ended", lambda content: b'{"outcome": "certified"}'),
        "with other samples": _json("ended", samples=9),
        "with another epsilon": _json("ended", epsilon=1e-9),
        "with a delta of next to nothing": _json("ended", delta=1e-9),
        "with another policy": _json("ended", policy=[7, 7]),
        "after less than no time": _json("ended", seconds=-1.0),
        "after a time that is none": _json("ended", seconds=float("nan")),
        "after a time of text": _json("ended", seconds="x"),
        "with nothing certified": _json("ended", certified=False),
    }
    others = {
        "rows of no kind": lambda rows: [*rows, ("evil", b"x")],
        "no rows": lambda rows: [],
        "only the first row": lambda rows: rows[:1],
        "no problem": lambda rows: [row for row in rows if row[0] != "problem"],
        "no requests": lambda rows: [row for row in rows if row[0] != "asked"],
        "no answers": lambda rows: [row for row in rows if row[0] != "answer"],
        "no looks": lambda rows: [row for row in rows if row[0] != "look"],
        "everything twice": lambda rows: rows + rows,
        "everything in reverse": lambda rows: rows[::-1],
        "the first row last": lambda rows: [*rows[1:], rows[0]],
        "answers before all": lambda rows: sorted(rows, key=lambda row: row[0] != "answer"),
        "the answers in another order": lambda rows: _reordered(rows, "answer"),
        "the looks in another order": lambda rows: _reordered(rows, "look"),
        "an answer less": lambda rows: _without(rows, "answer", 1),
        "an answer twice": lambda rows: [*rows, next(row for row in rows if row[0] == "answer")],
        "a look less": lambda rows: _without(rows, "look", 0),
        "a request less": lambda rows: _without(rows, "asked", 1),
        "an end before the end": lambda rows: [*rows, ("ended", b'{"outcome": "certified", "seconds": 1}')],
        "an end in the middle": lambda rows: [*rows[:5], ("ended", b'{"outcome": "budget", "seconds": 1}'), *rows[5:]],
        "settings of text": lambda rows: [*rows, ("settings", b'"x"')],
        "settings of nothing": lambda rows: [*rows, ("settings", b"{}")],
        "samples from elsewhere that are none": lambda rows: [*rows, ("own data", b"x")],
        "many looks": lambda rows: [*rows, *[row for row in rows if row[0] == "look"][-1:] * 10**5],
        "many empty rows": lambda rows: [*rows, *[("answer", b"")] * 10**5],
    }
    found = {f"{what} as its first row": (unfinished, change) for what, change in begun.items()}
    found |= {f"a problem that is {what}": (unfinished, change) for what, change in problem.items()}
    found |= {f"a request {what}": (unfinished, change) for what, change in asked.items()}
    found |= {f"an answer {what}": (unfinished, change) for what, change in answer.items()}
    found |= {f"an answer {what}, in the end": (finished, change) for what, change in answer.items()}
    found |= {f"a look {what}": (unfinished, change) for what, change in look.items()}
    found |= {f"a look {what}, in the end": (finished, change) for what, change in look.items()}
    found |= {f"an end {what}": (finished, change) for what, change in ended.items()}
    found |= {what: (unfinished, change) for what, change in others.items()}
    return found


def _reordered(rows: Rows, kind: str) -> Rows:
    """Reverse the order of the rows of a kind among themselves."""
    reverse = iter([row for row in reversed(rows) if row[0] == kind])
    return [next(reverse) if row[0] == kind else row for row in rows]


def _without(rows: Rows, kind: str, which: int) -> Rows:
    place = [i for i, row in enumerate(rows) if row[0] == kind][which]
    return rows[:place] + rows[place + 1 :]


def contradicts_itself(path: str) -> str:
    """Read a journal whose hashes fit in every way: it is refused, or what it says fits together."""
    content, said = Path(path).read_bytes(), list[tuple[Any, ...]]()

    def again() -> str:
        for beside in (path + "-wal", path + "-shm", path + "-lock"):
            if os.path.exists(beside):
                os.unlink(beside)
        Path(path).write_bytes(content)
        return path

    with contextlib.suppress(bp.BestPolicyError):
        for record in bp.studies(again()):
            repr(record), json.dumps(record.to_dict())
            result = record.result or {"samples": record.samples, "delta": record.settings.delta}
            said.append((record.samples, record.settings.delta, record.epsilon))
            said.append((result["samples"], result["delta"], result.get("epsilon", record.epsilon)))
    with contextlib.suppress(bp.BestPolicyError):
        account = from_store(again())
        said.append((account.samples, account.settings.delta, account.epsilon))
        bp.report.report_page(path, bounds=False)
    with contextlib.suppress(bp.BestPolicyError):
        study = bp.Study.resume(again())
        said.append((study.samples, study.delta, study.result().epsilon))
        result = bp.drive(study, bp.ExactSimulator(MDP), max_seconds=2.0)
        with Store(path) as store:
            _, told = samples_told(store.whole_rows(store.find(None))[0])
        if result.samples != told or not result.epsilon >= 0:
            return f"{result.samples} samples and ε = {result.epsilon}, where {told} samples were told"
        study.problem.stage_policy(result.policy)
        with contextlib.suppress(bp.BestPolicyError):
            result.save(path + ".json")
            bp.verify(path + ".json")
    known = {tuple(float("inf") if number is None else number for number in one) for one in said}
    return "" if len(known) <= 1 else f"readers disagree on samples, δ and ε: {sorted(known)}"


def attack(count: int, seed: int = 0, kinds: tuple[str, ...] = ("certificate", "model", "store")) -> Found:
    """Let hostile files be read: all of them, or some by chance."""
    found, listed = Found("hostile files"), [one for one in forgeries() if one[2].endswith(kinds)]
    random.Random(seed).shuffle(listed)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, write, kind) in enumerate(listed[:count]):
            path = os.path.join(folder, f"{number}.{'npz' if kind == 'model' else 'file'}")
            write(path)
            wrong = attempt(partial(accepted, path, kind))
            found.note(f"python -m tests.attack files --seed {seed} ({name})", wrong)
    return found
