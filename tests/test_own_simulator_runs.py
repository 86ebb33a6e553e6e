"""A newcomer's run: progress in Python, a simulator of one's own on the command line, and plans that are refused."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import pytest

import bestpolicy as bp
from bestpolicy.run.arguments import wants_line
from bestpolicy.run.progress import ProgressLine
from tests.test_cli import assert_one_error_line, run, run_installed

MODULE = """
import bestpolicy as bp

def step(state, action, rng):
    return 0.6 * float(rng.random() < 0.5) + 0.4 * (action == "right"), rng.choice(["in", "out"])

simulator = bp.NamedSimulator(step, states=["in", "out"], actions=["left", "right"], discount=0.5)
number = 3

def make():
    return simulator

def fails():
    raise KeyError("what")
"""
HOW = ("--epsilon", "30%", "--delta", 0.1, "--algorithm", "tight", "--seed", 1)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Path of a module of its own name: modules are imported once."""
    stem = "own_sim_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{stem}.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(tmp_path / f"{stem}.py")


def test_an_environment_that_can_only_be_reset_is_run_resumed_and_verified(own, tmp_path):
    pytest.importorskip("gymnasium")
    Path(own).write_text("from tests.corridors import Lift, lift\n")
    how = ("--epsilon", 1.5, "--delta", 0.1, "--seed", 0)
    files = ("--store", tmp_path / "run.db", "--certificate", tmp_path / "policy.json")
    assert run("identify", f"{own}:lift", *how, *files, "--max-samples", 400).returncode == 3
    rest = ("--model", f"{own}:lift", "--max-samples", 1e5, "--certificate", tmp_path / "policy.json")
    done = run("resume", tmp_path / "run.db", *rest)
    assert done.returncode == 0, done.stderr
    assert "forward" in done.stdout
    assert "[2, 1]" in done.stdout  # states as the environment calls them
    found = run("verify", tmp_path / "policy.json", "--store", tmp_path / "run.db")
    assert "valid: the policy is within 1." in found.stdout
    assert_one_error_line(run("identify", f"{own}:Lift", *how), "bestpolicy.ResetSimulator(env, horizon=…")
    assert_one_error_line(run("identify", f"{own}:lift", *how, "--algorithm", "tight"), "use algorithm='forward'")


def test_a_simulator_of_ones_own_is_run_resumed_and_reported(own, tmp_path):
    store = tmp_path / "run.db"
    short = run("identify", f"{own}:simulator", *HOW, "--store", store, "--max-samples", 100)
    assert short.returncode == 3
    assert f"--model {own}:simulator" in short.stderr
    assert_one_error_line(run("resume", store, "--max-samples", 1e6), "a simulator of your own", "--model")
    done = run("resume", store, "--max-samples", 1e6, "--model", f"{own}:simulator")
    assert done.returncode == 0, done.stderr
    assert "policy: in: right, out: right" in done.stdout
    again = json.loads(run("resume", store, "--json").stdout)  # ended: the file is enough
    assert again["names"]["actions"] == ["left", "right"]
    assert run("studies", store).returncode == 0
    page = tmp_path / "report.html"
    assert run("report", store, "--output", page, "--no-bounds").returncode == 0
    assert "right" in page.read_text()


def test_the_command_gives_what_python_gives(own):
    typed = json.loads(run("identify", f"{own}:make", *HOW, "--json").stdout)
    module = {}
    exec(MODULE, module)
    result = bp.identify(module["simulator"], epsilon="30%", delta=0.1, algorithm="tight", seed=1)
    assert (typed["samples"], typed["epsilon"]) == (result.samples, result.epsilon)


def test_worker_processes_find_the_module(own):
    done = run_installed("identify", f"{own}:simulator", *HOW, "--workers", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certified"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("{}:simulatr", ("nothing named", "Did you mean 'simulator'?")),
        ("{}:number", ("must be a simulator", "Got int")),
        ("{}:step", ("must be a simulator or a function without arguments", "NamedSimulator(step")),
        ("{}:fails", ("KeyError",)),
        ("nowhere.py:simulator", ("no such file: nowhere.py",)),
    ],
)
def test_what_is_no_simulator_is_one_line(own, typed, words):
    assert_one_error_line(run("identify", typed.format(own), *HOW), *words)


def test_broken_and_hidden_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_own_module.py").write_text("import nothing_like_this")
    assert_one_error_line(
        run("identify", tmp_path / "broken_own_module.py:sim", *HOW), "cannot be imported", "nothing_like"
    )
    (tmp_path / "json.py").write_text(MODULE)
    assert_one_error_line(run("identify", tmp_path / "json.py:simulator", *HOW), "the name of another module")
    (tmp_path / "two words.py").write_text(MODULE)
    assert_one_error_line(run("identify", tmp_path / "two words.py:simulator", *HOW), "a name that Python can import")


# --- progress


def step(state, action, rng):
    time.sleep(0.002)
    return float(rng.random() < 0.5), state


CALL = {
    "states": [0, 1],
    "actions": [0, 1],
    "discount": 0.5,
    "epsilon": "60%",
    "delta": 0.1,
    "seed": 0,
    "algorithm": "tight",
}


def test_progress_is_one_line_that_goes_away(monkeypatch):
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setenv("COLUMNS", "200")
    bp.identify(step, **CALL, max_seconds=1.2, progress=True)
    text = seen.getvalue()
    assert "calls until the next look" in text
    assert "\n" not in text
    assert text.endswith("\r")
    assert text.split("\r")[-2].strip() == ""


def test_progress_is_for_those_who_can_see_it(monkeypatch):
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", seen)
    assert not wants_line(None)
    monkeypatch.setattr(seen, "isatty", lambda: True)
    assert wants_line(None)
    assert not wants_line(False)
    monkeypatch.setattr(sys, "stderr", None)  # a program without a console
    assert not wants_line(None)
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert wants_line(None)


def test_a_closed_stream_is_no_failure():
    stream = io.StringIO()
    stream.close()
    study = bp.Study(bp.Problem.tabular(2, 2, discount=0.5), epsilon=0.5, delta=0.1, algorithm="tight")
    line = ProgressLine(stream)
    line.tick(study, 1)
    line.end()


def test_progress_must_be_one():
    with pytest.raises(bp.InvalidInput, match="progress must be a function"):
        bp.identify(step, **CALL, progress=3)


# --- plans that nobody wants


def test_a_plan_of_a_hundred_million_calls_is_refused(tmp_path):
    how = CALL | {"states": range(200), "epsilon": 0.5, "discount": 0.9, "algorithm": "gss"}
    with pytest.raises(bp.InvalidInput) as caught:
        bp.identify(step, **how, store=tmp_path / "run.db")
    said = str(caught.value)
    assert "'gss' would begin with" in said
    assert "days, if a call takes a millisecond. Try algorithm='sharp' or algorithm='tight'" in said
    assert not list(tmp_path.iterdir())
    spent = bp.identify(step, **how, max_samples=1000)
    assert spent.outcome == "sample budget spent"
    meant = bp.identify(step, **how, largest_batch=float("inf"), max_seconds=0.5)
    assert meant.outcome == "time budget spent"


def test_models_that_are_known_may_be_sampled_as_often_as_one_likes():
    model = bp.ExactSimulator(bp.instances.load("riverswim"))
    result = bp.identify(model, epsilon=0.5, delta=0.1, seed=0, algorithm="gss")
    assert result.samples > 10**8
