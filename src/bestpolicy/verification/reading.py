"""A certificate file, read with suspicion.

The file is one JSON object of plain numbers and of arrays written as ``{"dtype", "shape", "data"}`` with the bytes
(little-endian) in base64. Nothing in it is executed, and nothing is allocated that its own length does not pay for,
so a stranger's file may be opened. The SHA-256 covers the canonical form (sorted keys, no spaces) of everything else
in the file: any change of a number shows. It is not a signature: whoever changes a number can compute it anew, which
is why everything is recomputed as well.

Two kinds of trouble are told apart: `InvalidInput`, the file cannot be understood; `Rejected`, it can, but does not
prove what it claims.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from math import isfinite, isnan, prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bestpolicy.errors import InvalidInput

FORMAT, VERSION = "bestpolicy certificate", 1
LARGEST_FILE = LARGEST_ARRAY = 1 << 31  # bytes
LARGEST_TABLE = 2 * 10**8  # entries of (stages, sampled pairs, states)
_DTYPES = {"f": "<f8", "i": "<i8", "b": "|b1"}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rejected(Exception):
    """The file can be read, but does not prove what it claims."""


def not_below_zero(bound: float) -> float:
    """Return max(0, bound), but never 0 for what is not a number: overflow must not look like a proof."""
    if isnan(bound):
        raise Rejected("the numbers are too large to compute with")
    return max(0.0, bound)


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of everything in a document but its field ``sha256``, in hexadecimal."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a certificate file."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"path must be the path of a certificate file. Got {path!r} instead.")
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise InvalidInput(f"no such file: {name}. Give a file that Result.save wrote.")
    if os.path.getsize(name) > LARGEST_FILE:
        raise InvalidInput(f"{name} is larger than {LARGEST_FILE >> 20} MiB, too large for a certificate.")
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{name} cannot be read as text ({error}). Give a file that Result.save wrote.") from None


def parse(text: str) -> Node:
    """Return the document as a node, or say why it is not a certificate of this format."""
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        what = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInput(f"the certificate is not JSON, or was cut off: {what}. Ask for the file again.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput("the file is not a certificate. Give a file that Result.save wrote.")
    if document.get("version") != VERSION:
        raise InvalidInput(
            f"the certificate has format version {document.get('version')!r}, this program checks version {VERSION}. "
            "Use the bestpolicy that wrote it."
        )
    return Node(document, "the certificate")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


@dataclass(frozen=True)
class Node:
    """A JSON object whose fields are checked as they are taken."""

    fields: dict[str, Any]
    name: str

    def _take(self, key: str) -> Any:
        if key not in self.fields:
            raise InvalidInput(f"{self.name} lacks the field {key!r}. Ask for the file again.")
        return self.fields[key]

    def _wrong(self, key: str, expected: str) -> NoReturn:
        raise InvalidInput(f"{self.name}: {key!r} must be {expected}. Got {str(self.fields[key])[:60]!r} instead.")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._take(key) is not None

    def child(self, key: str) -> Node:
        """Return an object."""
        value = self._take(key)
        if not isinstance(value, dict):
            self._wrong(key, "an object")
        return Node(value, f"{self.name} → {key}")

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._take(key)
        if not isinstance(value, str):
            self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(key, "a list of texts")
        return list(value)

    def number(self, key: str, least: float, most: float) -> float:
        """Return a finite number in [least, most]."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not isfinite(value):
            self._wrong(key, "a finite number")
        if not least <= value <= most:
            self._wrong(key, f"a number from {least:g} to {most:g}")
        return float(value)

    def whole(self, key: str, least: int, most: int = 10**18) -> int:
        """Return a whole number in [least, most]."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._wrong(key, f"a whole number from {least} to {most}")
        return value

    def array(self, key: str, kind: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return a finite array of kind "f", "i" or "b"; None in the shape stands for any length."""
        node = self.child(key)
        dtype, sizes, data = node.text("dtype"), node._take("shape"), node.text("data")
        if dtype != _DTYPES[kind]:
            node._wrong("dtype", repr(_DTYPES[kind]))
        whole = isinstance(sizes, list) and all(type(size) is int and 0 <= size < 2**40 for size in sizes)
        fits = whole and len(sizes) == len(shape)
        if not fits or any(want not in (None, size) for want, size in zip(shape, sizes, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            node._wrong("shape", f"[{expected}]")
        size = prod(sizes) * np.dtype(dtype).itemsize
        if size > LARGEST_ARRAY:
            raise InvalidInput(f"{node.name}: an array of {size:.2g} bytes is too large to check.")
        try:
            content = zlib.decompressobj().decompress(base64.b64decode(data, validate=True), size + 1)
        except (binascii.Error, ValueError, zlib.error):
            raise InvalidInput(f"{node.name}: 'data' is not base64 of zlib's format. Ask for the file again.") from None
        if len(content) != size:
            raise InvalidInput(f"{node.name} has {len(content)} bytes or more, its shape {sizes} needs {size}.")
        if kind == "b" and content.strip(b"\x00\x01"):
            raise InvalidInput(f"{node.name} must hold only true and false.")
        array = np.frombuffer(content, dtype=dtype).reshape(sizes)
        if kind == "f" and not np.isfinite(array).all():
            raise InvalidInput(f"{node.name} has entries that are not finite.")
        return array.astype({"f": np.float64, "i": np.int64, "b": np.bool_}[kind])
