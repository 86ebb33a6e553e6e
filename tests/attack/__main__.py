"""Run all attacks, or some: ``python -m tests.attack [class …] [--seed N] [--share 0.1] [--output FILE]``.

Prints a table and the failures with what makes them happen again; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bestpolicy import __version__
from tests.attack import files, flips, inputs, kills, workers
from tests.attack.sandbox import Found

CLASSES: dict[str, tuple[Callable[[int, int], Found], int]] = {
    "inputs": (inputs.attack, 1000),
    "flips": (flips.attack, 1000),
    "kills": (kills.attack, 220),  # some come too late to kill
    "files": (files.attack, 1000),  # all that there are
    "workers": (workers.attack, 1000),
}


def code() -> str:
    """Which code is attacked."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    known = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return f"version {__version__}, commit {known}, Python {platform.python_version()} on {platform.machine()}"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("classes", nargs="*", choices=[[], *CLASSES], metavar="class", help=", ".join(CLASSES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the attacks")
    parser.add_argument("--output", type=Path, help="a text file for the table and the failures")
    chosen = parser.parse_args(arguments)
    os.environ["BESTPOLICY_ATTACK"] = "1"  # bombs of full size
    lines = [f"Attacks on {code()}, seed {chosen.seed}", "", f"{'class':28}{'tried':>8}{'handled':>10}{'failed':>8}"]
    print("\n".join(lines), flush=True)
    failures = []
    for name in chosen.classes or CLASSES:
        attack, count = CLASSES[name]
        begun = time.monotonic()
        found = attack(max(1, round(count * chosen.share)), chosen.seed)
        handled = max(0, found.tried - len(found.failures))
        lines.append(f"{found.name:28}{found.tried:8}{handled:10}{len(found.failures):8}")
        print(f"{lines[-1]}   ({time.monotonic() - begun:.0f} s)", flush=True)
        failures += found.failures
    if failures:
        lines += ["", "What failed:", *failures]
        print("\n".join(["", "What failed:", *failures]))
    if chosen.output is not None:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text("\n".join(lines) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
