"""Hostile files: forged certificates, archives that unpack to more than there is, databases that never end.

Each is read under a limit of memory and time. It must be refused: with an exception of this package, or with a
verification that says "not valid". To accept it, to crash and to hang are failures.
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
from typing import Any

import numpy as np

import bestpolicy as bp
from bestpolicy.verification.reading import digest
from tests.attack.flips import MDP, finished, unfinished, untouched, wrong_with
from tests.attack.sandbox import Found, attempt

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
    columns = {
        "study": ("fingerprint", "problem", "settings", "versions", "result"),
        "answer": ("position", "query", "attempt", "samples", "tally"),
        "looked": ("position", "record", "policy"),
        "asked": ("position", "first", "looks", "content"),
    }
    values = {
        "a text": "'x'",
        "a huge number": "9223372036854775807",
        "minus one": "-1",
        "a fraction": "0.5",
        "a gigabyte": "zeroblob(900000000)",
        "deep JSON": "'" + "[" * 100_000 + "'",
    }
    chance = random.Random(5)
    for table, names in columns.items():
        for column in names:
            what = chance.choice(list(values))
            change = f"UPDATE OR IGNORE {table} SET {column} = {values[what]}"
            write = chance.choice([unfinished, finished])
            yield f"store: {what} as {table}.{column}", partial(_store, write, (change,)), f"{write.__name__} store"
    endless = f"CREATE VIEW {{0}} AS {_ENDLESS} SELECT {{1}} FROM n"
    hostile = {
        "endless answers": (
            "ALTER TABLE answer RENAME TO kept",
            endless.format("answer", "1 AS study, i AS position, i AS query, 0 AS attempt, 1 AS samples, x'' AS tally"),
        ),
        "endless looks": (
            "ALTER TABLE looked RENAME TO kept",
            endless.format("looked", "1 AS study, i AS position, '{}' AS record, NULL AS policy"),
        ),
        "endless requests": (
            "ALTER TABLE asked RENAME TO kept",
            endless.format("asked", "1 AS study, i AS position, i AS first, 0 AS looks, x'' AS content"),
        ),
        "a trigger that never ends": (
            f"CREATE TRIGGER t BEFORE INSERT ON answer BEGIN SELECT COUNT(*) FROM ({_ENDLESS} SELECT i FROM n); END",
        ),
        "a trigger that doubles answers": (
            "CREATE TRIGGER t AFTER INSERT ON looked BEGIN UPDATE answer SET samples = 2 * samples; END",
        ),
        "a schema that is no SQL": ("UPDATE sqlite_master SET sql = 'CREATE TABLE study AS (' WHERE name = 'study'",),
        "no tables": ("DROP TABLE answer", "DROP TABLE looked"),
        "a newer version": ("PRAGMA user_version = 99",),
        "somebody else's application": ("PRAGMA application_id = 1",),
        "an answer that was never told": (
            "INSERT INTO answer SELECT study, 10000, query, attempt, samples, tally FROM answer LIMIT 1",
        ),
        "an answer less": ("DELETE FROM answer WHERE position = 1",),
        "answers in another order": (
            "UPDATE answer SET position = -1 WHERE position = 0",
            "UPDATE answer SET position = 0 WHERE position = 1",
            "UPDATE answer SET position = 1 WHERE position = -1",
        ),
        "another seed": ("UPDATE study SET settings = replace(settings, '\"seed\": 3', '\"seed\": 4')",),
        "another delta": ("UPDATE study SET settings = replace(settings, '\"delta\": 0.1', '\"delta\": 0.0001')",),
        "a smaller epsilon": ("UPDATE looked SET record = replace(record, '\"epsilon\": 0.', '\"epsilon\": 0.0')",),
        "another result": ("UPDATE study SET result = replace(result, '\"samples\": ', '\"samples\": 9')",),
        "a result before the end": ('UPDATE study SET result = \'{"outcome": "certified"}\'',),
    }
    for what, statements in hostile.items():
        write = finished if "another result" in what or "epsilon" in what else unfinished
        yield f"store: {what}", partial(_store, write, statements), f"{write.__name__} store"


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
