"""Files that want more than they are worth: run in a process of its own, which has 2 GB of memory and no more.

Prints a line for each file: its name, and what became of it.
"""

from __future__ import annotations

import base64
import io
import json
import resource
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification import verify
from bestpolicy.verification.reading import digest

KEPT = Path(__file__).parent / "data" / "certificates"
MEMORY, LITTLE = 2 << 30, 3 << 28


def packed(shape: list[int], dtype: str = "<f8", size: int | None = None) -> dict[str, object]:
    """Zeros, as a certificate holds them, `size` of them whatever the shape says."""
    stream, left = zlib.compressobj(1), (int(np.prod(shape)) if size is None else size) * np.dtype(dtype).itemsize
    parts = []
    while left:
        parts.append(stream.compress(bytes(min(left, 1 << 24))))
        left -= min(left, 1 << 24)
    data = b"".join([*parts, stream.flush()])
    return {"dtype": dtype, "shape": shape, "data": base64.b64encode(data).decode()}


def changed(name: str, **changes: object) -> str:
    """Return a kept certificate with other fields, and a checksum that fits; a__b is the field b of a."""
    document = json.loads((KEPT / f"{name}.json").read_text())
    for path, value in changes.items():
        node = document
        for key in path.split("__")[:-1]:
            node = node[key]
        node[path.split("__")[-1]] = value
    return json.dumps(document | {"sha256": digest(document)})


def documents() -> Iterator[tuple[str, str]]:
    """Texts that claim to be certificates."""
    features = "problem__features"
    for shape in (
        [10**9, 10**9, 3],
        [10**12, 1, 1],
        [2**62, 2**62, 2**62],
        [-4, 2, 3],
        [4, -2, -3],
        [1.5, 2, 3],
        [[4], 2, 3],
    ):
        yield f"features {shape}", changed("tight", **{features: packed(shape, size=24)})
    yield "features [true, 2, 3]", changed("tight", **{features: packed([True, 2, 3], size=6)})
    for shape in ([2 * 10**7, 2, 1], [10**3, 1, 10**4]):
        yield f"bomb {shape}", changed("tight", **{features: packed(shape)})
    yield "bomb in a small shape", changed("tight", **{features: packed([4, 2, 3], size=10**7)})
    inner = packed([4, 2, 3])
    twice = base64.b64encode(zlib.compress(base64.b64decode(inner["data"]))).decode()  # type: ignore[arg-type]
    yield "packed twice", changed("tight", **{features: inner | {"data": twice}})
    for dtype in ("|O", "<f4", "<c16", "<U9999999", "|V99999999", "<M8[s]"):
        yield f"dtype {dtype}", changed("tight", **{features: inner | {"dtype": dtype}})
    for horizon in (10**6, 10**9, 10**18, 10**400):
        time = {"problem__horizon": horizon, "problem__discount": None}
        yield f"horizon 1e{len(str(horizon)) - 1}", changed("tight", **time)
    yield from long_episodes()
    yield from many_pairs()
    for field in ("claim__epsilon", "run__samples", "run__attempts", "run__seed", "proof__lag_share", "version"):
        yield f"{field} of 400 digits", changed("tight", **{field: 10**400})
    text = changed("tight")
    for number in ("1e999", "-1e999", "NaN", "Infinity", "9" * 10**5, "1" + "0" * 4000 + ".0"):
        yield f"δ = {number[:10]}", text.replace('"delta": 0.1', f'"delta": {number}')
    yield "two deltas", text.replace('"delta": 0.1', '"delta": 0.1, "delta": 0.2')
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        yield (
            f"depth 900 of {opening}",
            changed("tight", x=0).replace('"x": 0', f'"x": {opening * 900}0{closing * 900}'),
        )
        yield f"depth 10^6 of {opening}", opening * 10**6
    yield "10^7 lists", changed("tight", x=0).replace('"x": 0', '"x": [' + "[]," * 10**7 + "0]")
    yield "10^7 objects", changed("tight", x=0).replace('"x": 0', '"x": [' + "{}," * 10**7 + "0]")
    yield "10^7.5 spaces beyond ASCII", text.replace("Theorem T (B)", "🂡") + " " * (3 * 10**7)
    yield "warnings of 10^7 letters", changed("tight", run__warnings=["\x1b" * 10**7])


def long_episodes() -> Iterator[tuple[str, str]]:
    """Episodes that fit together, of many stages: a kilobyte for each million of numbers."""
    for stages in (10**4, 10**6):
        for name in ("gss-e", "tight-e", "no-choice"):
            document = json.loads((KEPT / f"{name}.json").read_text())
            problem, states = document["problem"], document["problem"]["features"]["shape"][0]
            problem |= {"horizon": stages, "discount": None}
            problem["fingerprint"] = fingerprint(problem)
            changes: dict[str, object] = {"problem": problem, "claim__policy": packed([stages, states], "<i8")}
            changes |= {"run__samples": stages * 100, "run__rounds": 100}
            if name != "no-choice":
                pairs = document["proof"]["samples"]["pairs"]["shape"][0]
                nothing = {
                    key: packed([0], dtype) for key, dtype in (("cells", "<i8"), ("counts", "<i8"), ("rewards", "<f8"))
                }
                samples = document["proof"]["samples"] | nothing | {"squares": packed([stages, pairs])}
                changes["proof__samples"] = samples
            if name == "tight-e":
                changes["proof__prior__base"] = packed([stages, 3, 3])
            changes["run__algorithm"] = "gss-e" if name != "tight-e" else "tight"
            yield f"{name} of {stages} stages", changed(name, **changes)


def many_pairs() -> Iterator[tuple[str, str]]:
    """One-hot features: as many pairs as states, and a table of counts with the square of that."""
    for states in (3000, 20000):
        features = np.zeros((states, 1, 2))
        features[:, 0, 0] = 1.0
        features[: states // 2, 0] = (0.0, 1.0)
        problem = json.loads((KEPT / "tight.json").read_text())["problem"]
        problem["features"] = array(features, "<f8")
        problem["fingerprint"] = fingerprint(problem)
        changes: dict[str, object] = {"problem": problem, "claim__policy": packed([1, states], "<i8")}
        changes |= {
            "proof__transform": array(np.eye(2), "<f8"),
            "proof__samples__pairs": array(np.arange(states), "<i8"),
        }
        changes |= {
            "proof__design_pairs": array([0, states - 1], "<i8"),
            "proof__design_weights": array([0.5, 0.5], "<f8"),
        }
        yield f"{states}² counts", changed("tight", **changes)


def array(values: object, dtype: str) -> dict[str, object]:
    own = np.ascontiguousarray(values, dtype)
    return {"dtype": dtype, "shape": list(own.shape), "data": base64.b64encode(zlib.compress(own.tobytes())).decode()}


def fingerprint(problem: dict[str, dict[str, str]]) -> str:
    features, shape = problem["features"], tuple(problem["features"]["shape"])
    found = sha256(f"{shape} {problem['discount']!r} {problem['horizon']!r} ".encode())
    found.update(zlib.decompress(base64.b64decode(features["data"])))
    found.update(bytes([1]) * (shape[0] * shape[1]))  # type: ignore[operator]
    return found.hexdigest()


def archives() -> Iterator[tuple[str, bytes]]:
    """Archives, whole and broken: none of them is a certificate."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, features=np.zeros((1000, 1000)), discount=0.5)
    yield "npz", buffer.getvalue()
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
    yield "npy of 10^18", npy
    for flaw in ("bomb", "twice", "crc", "encrypted", "overlap", "cut"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("features.npy", npy + bytes(10**6))
            if flaw == "twice":
                archive.filelist.append(archive.filelist[0])
        content = bytearray(buffer.getvalue())
        if flaw == "crc":
            content[14] ^= 255
        if flaw == "encrypted":
            content[6] |= 1
        if flaw == "overlap":
            content[-4] = 1
        yield f"zip, {flaw}", bytes(content[:-9] if flaw == "cut" else content)
    yield "PNG", b"\x89PNG\r\n\x1a\n" + bytes(100)
    yield "UTF-16", changed("tight").encode("utf-16")
    yield "BOM", b"\xef\xbb\xbf" + changed("tight").encode()
    yield "surrogates in UTF-8", b'{"format": "\xed\xa0\x80"}'
    yield "NUL", b"\x00" * 1000
    yield "empty", b""


def main() -> None:
    """Check all of them."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "certificate.json"
        with file.open("wb") as large:
            large.truncate(10**12)  # takes no room on most disks
        report("a file of 10^12 bytes", file)
        for name, text in documents():
            file.write_text(text)
            report(name, file)
        file.write_text(changed("tight", problem__features=packed([4 * 10**7, 1, 1])))
        resource.setrlimit(resource.RLIMIT_AS, (LITTLE, MEMORY))  # so that less has to be packed to be too much
        report("more than the computer has", file, limit_gb=1000)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for name, content in archives():
            file.write_bytes(content)
            report(name, file)


def report(name: str, file: Path, limit_gb: float = 1.0) -> None:
    try:
        found = verify(file, limit_gb=limit_gb)
        print(name, "VALID" if found.valid else "not valid", found.reasons, sep="\t")
    except InvalidInput as error:
        print(name, "InvalidInput", " ".join(str(error).split())[:300], sep="\t")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
