"""The README's code and commands do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import bestpolicy as bp
from tests.test_cli import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith(".venv/bin/bestpolicy")]


def test_python_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    assert "within 0.2993 of optimal" in said
    assert "good: run, worn: run, broken: repair" in said
    assert "\nrepair\n" in said
    assert bp.verify("certificate.json").valid


def test_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:  # in their order: one writes what the next one reads
        done = run(*shlex.split(command)[1:])
        assert done.returncode == 0, (command, done.stderr)


def test_ci_runs_the_readme_test_command():
    assert "make test" in README
    script = (ROOT / ".ci" / "run").read_text()
    assert [line for line in script.splitlines() if line.startswith("make")] == ["make test"]


def test_local_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
