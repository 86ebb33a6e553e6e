"""The table against other packages measures what is installed, and says what is not."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import first_hour
from benchmarks.first_hour import CONTENDERS, Contender, measured


def test_what_is_not_installed_is_not_measured():
    absent = Contender("nothing", "no_such_package_anywhere", first="", limited="")
    assert measured(absent, sys.executable)[-1] == "not installed: not measured"


def test_a_row_is_what_happens(monkeypatch):
    """A package that keeps a counter in a file, and one that cannot be told when to end."""
    limited = """
import json, pathlib, time
file = pathlib.Path("run.db")
done = json.loads(file.read_text()) if file.exists() else 0
file.write_text(json.dumps(done + 1))
begun = time.monotonic()
while time.monotonic() - begun < 0.2:
    time.sleep(0.01)
"""
    keeps = Contender("keeps", "json", first="print(1)", limited=limited, resumed='print(open("run.db").read())')
    monkeypatch.setattr(first_hour, "SECONDS", 0.1)
    lines, seconds, progress, _, resumed, picture = measured(keeps, sys.executable)
    assert (lines, progress, resumed, picture) == ("1", "none", "the same program goes on", "none of its own")
    assert float(seconds.split()[0]) > 0
    row = measured(Contender("talks", "json", first='print("1\\n2\\n3")', limited=""), sys.executable)
    assert row[2:5] == ("shown", "cannot be told", "starts anew")
    broken = measured(Contender("broken", "json", first="raise ValueError(7)", limited=""), sys.executable)
    assert broken[1] == "failed: ValueError: 7"


def test_the_programs_are_programs():
    for contender in CONTENDERS:
        for text in (contender.first, contender.limited, contender.resumed, contender.picture):
            compile(first_hour.DAY + text, contender.name, "exec")
    ours = CONTENDERS[0]
    done = subprocess.run(
        [sys.executable, "-c", first_hour.DAY + ours.first], capture_output=True, text=True, timeout=600, check=True
    )
    assert "of optimal in every state" in done.stdout
    assert "s: " in done.stderr  # progress, though nobody sees a terminal
