"""A certificate file, read with suspicion.

The file is one JSON object of plain numbers and of arrays written as ``{"dtype", "shape", "data"}`` with the bytes
(little-endian) in base64 of zlib's format. Nothing in it is executed, and whatever its numbers ask for is charged to a
`Budget` before it is done, so a stranger's file may be opened. The SHA-256 covers the canonical form (sorted keys, no
spaces) of everything else in the file: any change of a number shows. It is not a signature: whoever changes a number
can compute it anew, which is why everything is recomputed as well.

Two kinds of trouble are told apart: `InvalidInput`, the file cannot be understood; `Rejected`, it can, but does not
prove what it claims.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bestpolicy.errors import LIMIT_GB, InvalidInput, TooLarge

# 3 has ends, 4 truncated rewards and frames (`boxes`), 5 sizes of bets that lags choose; the oldest that will do is
# written
FORMAT, VERSION = "bestpolicy certificate", 8
_STEPS_PER_GB = 1e11  # multiplications in a minute or so
STAGE = 1e6  # what a stage costs in a loop, however small it is
_DEEPEST, _LONGEST = 32, 20_000  # of objects inside objects, and of texts
_DTYPES = {"f": "<f8", "i": "<i8", "b": "|b1"}
_REMEDY = "Give a file that Result.save wrote."
_DATABASE = b"SQLite format 3\0"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rejected(Exception):
    """The file can be read, but does not prove what it claims."""


def not_below_zero(bound: float) -> float:
    """Return max(0, bound), but never 0 for what is not a number: overflow must not look like a proof."""
    if isnan(bound):
        raise Rejected("the numbers are too large to compute with")
    return max(0.0, bound)


def visible(text: str) -> str:
    """Return a text of the file as it may be printed: what a terminal would obey or hide becomes an escape."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Budget:
    """What a file may ask of this computer; memory and work are charged before anything is done.

    Parameters
    ----------
    limit_gb : float
        Memory; each GB comes with about a minute of work.
    """

    def __init__(self, limit_gb: float = LIMIT_GB) -> None:
        if isinstance(limit_gb, bool) or not isinstance(limit_gb, int | float) or not limit_gb > 0:
            raise InvalidInput(f"limit_gb must be a positive number. Got {limit_gb!r} instead.")
        self.limit_gb = limit_gb
        self._entries = self._steps = 0.0

    def hold(self, entries: float, what: str) -> None:
        """Charge memory for so many numbers of eight bytes."""
        self._entries += entries
        self._require(self._entries * 8 / 2**30, f"{what} would take it to {{:.3g}} GB of memory")

    def work(self, steps: float, what: str) -> None:
        """Charge so many multiplications."""
        self._steps += steps
        self._require(self._steps / _STEPS_PER_GB, f"{what} would take it to {{:.3g}} minutes of work")

    def _require(self, needed: float, what: str) -> None:
        if needed > self.limit_gb:
            raise TooLarge(
                f"limit_gb must be larger to check this certificate: {what.format(needed)}, and {self.limit_gb:g} is "
                "the limit. Raise it if you trust the file."
            )


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of everything in a document but its field ``sha256``, in hexadecimal."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_text(path: str | os.PathLike[str], budget: Budget | None = None) -> str:
    """Return the text of a certificate file."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise InvalidInput(f"a certificate is the path of a file. Got {path!r} instead.") from None
    shown = visible(name)
    if not os.path.isfile(name):
        what = "a folder" if os.path.isdir(name) else "not a file" if os.path.exists(name) else "no such file"
        raise InvalidInput(f"{what}: {shown}. {_REMEDY}")
    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            (budget or Budget()).hold(5 / 8 * size, "the file")
            content = file.read(size)
        if content.startswith(_DATABASE):
            raise InvalidInput(f"{shown} is a file of studies, not a certificate. {_REMEDY} (--store is for this one.)")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{shown} cannot be read as text ({error}). {_REMEDY}") from None


def parse(text: str, budget: Budget | None = None) -> Node:
    """Return the document as a node, or say why it is not a certificate of this format."""
    budget = budget or Budget()
    if not isinstance(text, str):
        raise InvalidInput(f"the text of a certificate must be a str. Got {type(text).__name__} instead.")
    values = sum(map(text.count, "[{,:"))
    budget.hold(len(text) * (0.5 if text.isascii() else 4) + 40 * values, "its text")
    try:
        document = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        what = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInput(f"the certificate is not JSON, or was cut off: {what}. Ask for the file again.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f"the file is not a certificate. {_REMEDY}")
    version = document.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise InvalidInput(
            f"the certificate has format version {str(version)[:60]!r}, this program checks versions 1 to {VERSION}. "
            "Use the bestpolicy that wrote it."
        )
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        parts = [part for node in level for part in (node.values() if isinstance(node, dict) else node)]
        level = [part for part in parts if isinstance(part, dict | list)]
    if level:
        raise InvalidInput("the certificate is not one: it nests too deeply. Ask for the file again.")
    return Node(document, "the certificate", budget)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(literal: str) -> float:
    value = float(literal)
    return value if isfinite(value) else _no_number(literal[:60])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are all different: readers do not agree on which of two to take."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a field twice")
    return fields


@dataclass(frozen=True)
class Node:
    """A JSON object whose fields are checked as they are taken."""

    fields: dict[str, Any]
    name: str
    budget: Budget = field(default_factory=Budget)

    def _take(self, key: str) -> Any:
        if key not in self.fields:
            raise InvalidInput(f"{self.name} lacks the field {key!r}. Ask for the file again.")
        return self.fields[key]

    def wrong(self, key: str, expected: str) -> NoReturn:
        """Raise InvalidInput: a field is not what it should be."""
        raise InvalidInput(f"{self.name}: {key!r} must be {expected}. Got {str(self._take(key))[:60]!r} instead.")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(key) is not None

    def only(self, *known: str) -> None:
        """Refuse fields that nobody knows: every field is checked, or listed as trusted."""
        unknown = sorted(set(self.fields) - set(known))
        if unknown:
            raise InvalidInput(f"{self.name} has an unknown field {unknown[0][:60]!r}. A newer program may read it.")

    def child(self, key: str) -> Node:
        """Return an object."""
        value = self._take(key)
        if not isinstance(value, dict):
            self.wrong(key, "an object")
        return Node(value, f"{self.name} → {key}", self.budget)

    def children(self, key: str) -> list[Node]:
        """Return a list of objects."""
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.wrong(key, "a list of objects")
        return [Node(item, f"{self.name} → {key}", self.budget) for item in value]

    def text(self, key: str) -> str:
        """Return a string of decent length."""
        value = self._take(key)
        if not isinstance(value, str) or len(value) > _LONGEST:
            self.wrong(key, f"a text of at most {_LONGEST} characters")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, together of decent length."""
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(key, "a list of texts")
        if len(value) + sum(map(len, value)) > _LONGEST:
            self.wrong(key, f"texts of at most {_LONGEST} characters")
        return list(value)

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """Return a finite number in [least, most]."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            self.wrong(key, "a finite number")
        if not least <= value <= most:
            self.wrong(key, f"a number from {least:g} to {most:g}")
        return float(value)

    def whole(self, key: str, least: int, most: float = 10**18) -> int:
        """Return a whole number in [least, most]."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.wrong(key, f"a whole number from {least}" + (f" to {most}" if most < inf else ""))
        return value

    def array(self, key: str, kind: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return a finite array of kind "f", "i" or "b"; None in the shape stands for any length."""
        node = self.child(key)
        node.only("dtype", "shape", "data")
        dtype, sizes, data = node.text("dtype"), node._take("shape"), node._take("data")
        if dtype != _DTYPES[kind]:
            node.wrong("dtype", repr(_DTYPES[kind]))
        whole = isinstance(sizes, list) and all(type(size) is int and 0 <= size < 2**40 for size in sizes)
        fits = whole and len(sizes) == len(shape)
        if not fits or any(want not in (None, size) for want, size in zip(shape, sizes, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            node.wrong("shape", f"[{expected}]")
        size = prod(sizes) * np.dtype(dtype).itemsize
        self.budget.hold(3 * size / 8, f"{key!r}, an array of {size:.3g} bytes,")
        try:
            stream = zlib.decompressobj()
            content = stream.decompress(base64.b64decode(data, validate=True), size + 1)
        except (TypeError, ValueError, zlib.error):
            raise InvalidInput(f"{node.name}: 'data' is not base64 of zlib's format. Ask for the file again.") from None
        if len(content) != size or not stream.eof or stream.unused_data:
            raise InvalidInput(f"{node.name} has {len(content)} bytes or more, its shape {sizes} needs {size}.")
        if kind == "b" and content.strip(b"\x00\x01"):
            raise InvalidInput(f"{node.name} must hold only true and false.")
        array = np.frombuffer(content, dtype=dtype).reshape(sizes)
        if kind == "f" and not np.isfinite(array).all():
            raise InvalidInput(f"{node.name} has entries that are not finite.")
        return array.astype({"f": np.float64, "i": np.int64, "b": np.bool_}[kind])
