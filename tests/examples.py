"""The examples, each run once as a program of its own, whoever looks at what it leaves behind."""

from __future__ import annotations

import io
import runpy
import tempfile
import warnings
from contextlib import chdir, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@cache
def run_example(name: str) -> tuple[dict[str, Any], str]:
    """Run ``examples/name.py`` as it is, in a folder of its own; return its variables and what it printed."""
    (path,) = (each for each in EXAMPLES if each.stem == name)
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a user's Python does with most of them
        return runpy.run_path(str(path), run_name="__main__"), printed.getvalue()
