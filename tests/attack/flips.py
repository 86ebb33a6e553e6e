"""Flipped bits and cuts in a file of studies: no number may change unnoticed.

Whatever happens to a byte of the file, resuming, listing and reporting either give what they give with the file as it
was, or refuse with one `StoreError`.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import bestpolicy as bp
from bestpolicy.errors import BestPolicyError, StoreError
from tests.attack.sandbox import Found, attempt
from tests.models import near_tie

MDP = near_tie(0.3)
_CUT = 0.05  # share of the attacks that cut the file, or wipe a piece of it


def begin(store: str | None = None) -> bp.Study:
    """Begin a small study."""
    algorithm = bp.algorithms.Tight(check_ratio=1.5)
    return bp.Study(
        MDP.problem, epsilon=0.6, delta=0.1, seed=3, algorithm=algorithm, calls_per_query=20_000, store=store
    )


def answer(study: bp.Study, queries: int) -> None:
    """Answer some queries of a study."""
    simulator = bp.ExactSimulator(MDP)
    for _ in range(queries):
        query = study.ask()[0]
        study.tell(query, simulator.sample(query.pulls, query.rng()))


def finished(path: str) -> None:
    """Write the file of a study that has ended."""
    bp.drive(begin(path), bp.ExactSimulator(MDP))


def unfinished(path: str) -> None:
    """Write the file of a study that has been left."""
    study = begin(path)
    answer(study, 5)
    study.close()


def resumed(path: str) -> Any:
    """Result of a study that goes on to its end, but for what time it took."""
    return _known(bp.drive(bp.Study.resume(path), bp.ExactSimulator(MDP)).to_dict())


def listed(path: str) -> Any:
    """What the file says of its studies."""
    return [_known(asdict(record)) for record in bp.studies(path)]


def reported(path: str) -> Any:
    """The text of the page about a study, without its figures."""
    page = bp.report.report_page(path, bounds=False).replace(path, "")
    return re.sub(r"<svg.*?</svg>|\d+(\.\d+)? (s|seconds|minutes)\b|\d{4}-\d\d-\d\d[ T][\d:]+", "", page, flags=re.S)


_READERS: dict[str, Callable[[str], Any]] = {"resume": resumed, "studies": listed, "report": reported}
ALL = tuple(_READERS)


def _known(record: dict[str, Any]) -> dict[str, Any]:
    dropped = {key: value for key, value in record.items() if key != "seconds"}
    if isinstance(dropped.get("result"), dict):
        dropped["result"] = _known(dropped["result"])
    return dropped


def damaged(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Return a file with one thing wrong, and what that is."""
    at = chance.randrange(len(content))
    if chance.random() >= _CUT:
        bit = chance.randrange(8)
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :], f"bit {bit} of byte {at} flipped"
    if chance.random() < 0.5:
        return content[:at], f"cut after {at} bytes"
    length = min(chance.choice([16, 512, 4096]), len(content) - at)
    return content[:at] + bytes(length) + content[at + length :], f"{length} bytes from {at} on wiped"


def wrong_with(path: str, content: bytes | None, expected: dict[str, str], readers: tuple[str, ...] = ALL) -> str:
    """Let every reader read a damaged file; return what is wrong with what they say.

    Without a content, what is there is no file.
    """
    for name in readers:
        if content is not None:
            for beside in (path, path + "-wal", path + "-shm", path + "-lock"):
                if os.path.exists(beside):
                    os.unlink(beside)
            Path(path).write_bytes(content)
        try:
            if repr(_READERS[name](path)) != expected[name]:
                return f"{name} says something else than with the file as it was"
        except Exception as error:
            ours = content is not None and content.startswith(b"SQLite format 3\0")  # else it is told so
            if isinstance(error, StoreError if ours else BestPolicyError):
                continue
            return f"{name} raised {type(error).__name__}: {error}"
    return ""


@cache
def untouched_file(write: Callable[[str], None]) -> bytes:
    """Return the file of a study."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.db")
        write(path)
        return Path(path).read_bytes()


@cache
def untouched(write: Callable[[str], None]) -> tuple[bytes, dict[str, str]]:
    """Return the file of a study, and what the readers say of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.db")
        content, expected = untouched_file(write), {}
        for name, reader in _READERS.items():
            Path(path).write_bytes(content)
            expected[name] = repr(reader(path))
    return content, expected


def attack(count: int, seed: int = 0, readers: tuple[str, ...] = ALL) -> Found:
    """Damage files of studies that have ended and of studies that have not, half of the attacks each."""
    found, chance = Found("flips and cuts in stores"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.db")
        for number in range(count):
            write = (finished, unfinished)[number % 2]
            content, expected = untouched(write)
            other, what = damaged(content, chance)
            wrong = attempt(partial(wrong_with, path, other, expected, readers))
            found.note(f"python -m tests.attack flips --seed {seed} ({write.__name__}: {what})", wrong)
    return found
