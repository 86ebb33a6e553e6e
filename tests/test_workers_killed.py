"""Kills and Ctrl-C: worker processes end with the one that started them, and the file is free at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

import bestpolicy as bp
from bestpolicy.study.store import Store
from tests.stuck import MDP, SETTINGS

ROOT = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


@pytest.fixture
def begin(tmp_path):
    """Start a run with two worker processes and wait until both are stuck; return it with their numbers."""
    started: list[subprocess.Popen] = []

    def begin(method):
        marks = tmp_path / "marks"
        marks.mkdir()
        command = [sys.executable, "-m", "tests.stuck", method, str(tmp_path)]
        pipe = subprocess.PIPE
        run = subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        started.append(run)
        while len(stuck := list(marks.glob("stuck-*"))) < 2 or stored(tmp_path) < len(list(marks.glob("answer-*"))):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.05)
        return run, [int(path.name.split("-")[1]) for path in stuck]

    yield begin
    for run in started:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def stored(folder) -> int:
    if not (folder / "run.db").exists():
        return 0
    with Store(folder / "run.db") as file:
        return file.read(file.find(None)).answers if file.names() else 0


def alive(process) -> bool:
    """Whether a process runs; one that nobody has asked how it ended does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
        return not subprocess.run(["kill", "-0", str(process)], capture_output=True, check=False).returncode
    return state not in "ZX"


def wait_until_gone(processes) -> None:
    """They are stuck for ten minutes, unless somebody ends them."""
    give_up = time.monotonic() + 120
    while any(alive(process) for process in processes):
        assert time.monotonic() < give_up, "workers outlive the process that started them"
        time.sleep(0.02)


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.study)])
def test_workers_of_a_killed_process_end_and_hold_no_lock(begin, tmp_path, method):
    run, workers = begin(method)
    assert all(alive(worker) for worker in workers)
    run.kill()
    run.wait()
    study = bp.Study.resume(tmp_path / "run.db")  # at once, whatever the workers do
    answers = list((tmp_path / "marks").glob("answer-*"))
    assert study.samples == sum(int(path.name.split("-")[1]) for path in answers) > 0
    wait_until_gone(workers)
    assert bp.drive(study, bp.ExactSimulator(MDP)).samples == bp.identify(bp.ExactSimulator(MDP), **SETTINGS).samples


@pytest.mark.parametrize("whom", ["process", "group"])
def test_ctrl_c_loses_what_is_being_simulated_and_leaves_no_worker(begin, tmp_path, whom):
    """A terminal sends it to the whole group: the workers leave it to the process that started them."""
    run, workers = begin("spawn")
    (os.kill if whom == "process" else os.killpg)(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=300)
    answers = list((tmp_path / "marks").glob("answer-*"))
    assert out.split() == ["interrupted", str(sum(int(path.name.split("-")[1]) for path in answers))]
    assert "Traceback" not in err
    assert not any(alive(worker) for worker in workers)
    assert stored(tmp_path) == len(answers)
    bp.Study.resume(tmp_path / "run.db").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_that_forgets_a_study_does_not_free_its_file(tmp_path):
    script = textwrap.dedent(
        """
        import gc, os, subprocess, sys
        import bestpolicy as bp

        mdp, store = bp.instances.load("two-state"), sys.argv[1]
        study = bp.Study(mdp.problem, epsilon=0.3, delta=0.1, seed=0, store=store)
        if os.fork() == 0:
            del study
            gc.collect()
            os._exit(0)
        os.wait()
        assert os.path.exists(store + "-lock")
        other = "import sys, bestpolicy as bp; bp.Study.resume(sys.argv[1])"
        done = subprocess.run([sys.executable, "-c", other, store], capture_output=True, text=True)
        assert "another process is writing" in done.stderr, done.stderr
        """
    )
    store = str(tmp_path / "run.db")
    done = subprocess.run([sys.executable, "-c", script, store], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
