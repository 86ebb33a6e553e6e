"""A few attacks of each class, and damage to every format of file; `make attack` runs them all."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bestpolicy as bp
from bestpolicy.errors import BestPolicyError
from tests.attack import files, flips, inputs, kills, workers
from tests.attack.__main__ import main
from tests.models import near_tie

MDP = near_tie(0.3)


def test_no_call_and_no_command_ends_with_a_foreign_exception(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = inputs.attack(60, seed=1)
    assert found.tried == 60
    assert not found.failures


def test_killed_runs_go_on_as_on_another_processor():
    found = kills.attack(2, seed=1)
    assert not found.failures


def test_hostile_files_are_refused():
    found = files.attack(30, seed=1, kinds=("certificate", "model"))
    assert found.tried == 30
    assert not found.failures


def test_forged_journals_are_refused_or_fit_together():
    found = files.attack(6, seed=1, kinds=("forged store",))
    assert found.tried == 6
    assert not found.failures


def test_workers_that_misbehave_are_replaced_or_reported():
    for name in ("pool: exit, 1 times", "an executor that forgets", "an executor that is none"):
        assert workers.scenarios()[name]() == "" if "none" not in name else _refused(workers.scenarios()[name])


def _refused(call) -> bool:
    try:
        call()
    except BestPolicyError:
        return True
    return False


@cache
def contents() -> dict[str, bytes]:
    """A file of every format."""
    found = {"certificate": (files.DATA / "certificates" / "gss.json").read_bytes()}
    found["store"] = flips.untouched_file(flips.unfinished)
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"attack-{os.getpid()}"
    try:
        MDP.save(path)
        found["model"] = path.read_bytes()
        path.unlink()
        bp.compare(MDP, "tight", epsilon=1.0, delta=0.1, runs=1, store=path, lower_bounds=False)
        found["comparison"] = path.read_bytes()
    finally:
        for file in path.parent.glob(path.name + "*"):
            file.unlink()
    return found


def read(kind: str, path: Path) -> None:
    """Read a file of some format in all ways that there are."""
    readers = {
        "certificate": (bp.verify,),
        "model": (bp.LinearMDP.load,),
        "store": (bp.studies, bp.Study.resume),
        "comparison": (
            lambda path: bp.compare(MDP, "tight", epsilon=1.0, delta=0.1, runs=1, store=path, lower_bounds=False),
        ),
    }
    for reader in readers[kind]:
        try:
            reader(path)
        except BestPolicyError:
            continue


@pytest.mark.parametrize("kind", ["certificate", "model", "store", "comparison"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_to_a_file_is_survived_or_said(tmp_path, kind, data):
    content = contents()[kind]
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 7))
        content = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
    else:
        content = content[:at]
    for old in tmp_path.iterdir():
        old.unlink()
    path = tmp_path / "file"
    path.write_bytes(content)
    read(kind, path)


WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["identify", "two-state", "verify", "--epsilon", "--delta", "--json", "0.5", "-1", "nan", "--", "-h"]
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=st.lists(WORDS, max_size=6))
def test_no_command_line_ends_with_a_traceback(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    if not {"demo", "watch", "compare"} & set(line):
        assert inputs.run_command(line) == ""


def test_flips_change_no_number_unnoticed():
    found = flips.attack(30, seed=1, readers=("resume", "studies"))
    assert found.tried == 30
    assert not found.failures


def test_the_sandbox_notices_what_is_not_handled():
    """The attack itself must be able to fail."""
    assert "ZeroDivisionError" in files.attempt(lambda: str(1 // 0))
    assert "signal 9" in files.attempt(lambda: os.kill(os.getpid(), 9))
    assert "no answer" in files.attempt(lambda: __import__("time").sleep(9), seconds=0.2)
    assert files.attempt(lambda: bp.verify("/nonexistent")) == ""
    assert "MemoryError" in files.attempt(lambda: str(len(bytes(4 * 2**30))))


@pytest.mark.study
def test_all_attacks():
    assert main([]) == 0
