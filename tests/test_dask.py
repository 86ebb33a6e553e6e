"""Dask: a real scheduler with worker processes on the loopback; they are killed, hang, exit, and join late."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from tests.examples import run_example
from tests.models import near_tie

distributed = pytest.importorskip("distributed")
import dask  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
MDP = near_tie(0.3)
FEW_LOOKS = bp.algorithms.GSS(check_ratio=2.0)
SETTINGS = {"epsilon": 1.5, "delta": 0.1, "seed": 2, "calls_per_query": 1000, "algorithm": FEW_LOOKS}
ON_LOOPBACK = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}


def test_a_cluster_gives_the_same_answer(monkeypatch):
    workers = []

    def get_executor(client, **options):
        workers.extend(client.scheduler_info()["workers"])
        return original(client, **options)

    original = distributed.Client.get_executor
    monkeypatch.setattr(distributed.Client, "get_executor", get_executor)
    found = run_example("dask_cluster")[0]
    there = found["result"]
    here = bp.identify(found["simulator"], epsilon=0.1, delta=0.1, algorithm="tight", seed=0, calls_per_query=50)
    assert len(workers) == 2
    assert here.certified
    assert there.epsilon == here.epsilon
    assert there.statistic == here.statistic
    assert there.samples == here.samples
    np.testing.assert_array_equal(there.policy, here.policy)


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(n_workers=2, silence_logs=logging.CRITICAL, **ON_LOOPBACK) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def expected():
    return bp.identify(bp.ExactSimulator(MDP), **SETTINGS)


class Troubled(bp.ExactSimulator):
    """Does a deed at its first query, or at every query that begins with the third pair."""

    def __init__(self, deed, folder, always=False):
        super().__init__(MDP)
        self.deed, self.folder, self.always = deed, folder, always

    def sample(self, pulls, rng):
        if self.always and pulls.pairs[0] == 2:
            (self.folder / f"{time.monotonic_ns()}-{os.getpid()}").touch()
            self.do(self.deed)
        elif not self.always:
            mark = self.folder / "done"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                self.do(self.deed)
        return super().sample(pulls, rng)

    def do(self, deed):
        if deed == "raise":
            raise KeyError("no such thing")
        if deed == "exit":
            sys.exit("enough")
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


def test_episodes_are_followed_on_a_cluster_even_if_a_worker_is_killed(client, tmp_path):
    from tests.corridors import LIMITED, Deadly, make  # they need Gymnasium

    result = bp.identify(make(partial(Deadly, str(tmp_path))), **LIMITED, executor=client.get_executor)
    here = bp.identify(make(), **LIMITED)
    assert (tmp_path / "killed").exists()
    assert [check.statistic for check in result.checks] == [check.statistic for check in here.checks]
    assert (result.samples, result.epsilon) == (here.samples, here.epsilon)
    np.testing.assert_array_equal(result.policy, here.policy)


class Clock:
    """The time, but once a worker hangs it flies until workers are restarted: no busy machine is that slow."""

    def __init__(self, mark, client, monkeypatch):
        self.mark, self.restarted, self.ahead = mark, False, 0.0
        original = client.restart_workers

        def restart_workers(workers, **options):
            self.restarted = True
            return original(workers, **options)

        monkeypatch.setattr(client, "restart_workers", restart_workers)
        for module in ("workers", "pools"):
            monkeypatch.setattr(sys.modules[f"bestpolicy.run.{module}"], "time", self)

    def monotonic(self):
        if self.mark.exists() and not self.restarted:
            self.ahead += 100
        return time.monotonic() + self.ahead


@pytest.mark.parametrize("deed", ["raise", "exit", "kill", "hang"])
def test_what_goes_wrong_once_is_done_again_and_said(client, expected, tmp_path, monkeypatch, deed):
    clock = Clock(tmp_path / "done", client, monkeypatch) if deed == "hang" else None
    model = Troubled(deed, tmp_path)
    result = bp.identify(model, **SETTINGS, executor=client.get_executor(), query_seconds=1000)
    assert clock is None or clock.restarted
    assert (tmp_path / "done").exists()
    assert result.statistic == expected.statistic
    assert result.samples == expected.samples
    (warning,) = result.warnings
    assert "the simulator failed" in warning


@pytest.mark.parametrize(
    ("deed", "times", "message"),
    [
        ("raise", 3, "failed 3 times; last: the simulator raised KeyError: 'no such thing'"),
        ("exit", 3, "failed 3 times; last: the simulator raised SystemExit: enough"),
        ("kill", 2, "its worker died"),
    ],
)
def test_what_always_goes_wrong_is_given_up_and_kept(client, expected, tmp_path, deed, times, message):
    """Each attempt is one: Dask would give the same error again for the same key.

    Of a worker that died it knows only which queries were there.
    """
    store, marks = tmp_path / "run.db", tmp_path / "marks"
    marks.mkdir()
    culprit = r"\(state 1, action 0\)" if deed != "kill" else r"\(state \d, action \d\)"  # or one that waited beside it
    with pytest.raises(bp.SimulatorError, match=rf"query \d+ \(from pair {culprit} on\)") as caught:
        bp.identify(Troubled(deed, marks, True), **SETTINGS, executor=client.get_executor, store=store)
    assert message in str(caught.value)
    assert len(list(marks.iterdir())) >= times
    study = bp.Study.resume(store)
    assert study.samples == caught.value.study.samples
    assert bp.drive(study, bp.ExactSimulator(MDP)).statistic == expected.statistic


class Asleep(bp.ExactSimulator):
    """Hangs until it is woken; its cluster is in this process."""

    wake = threading.Event()

    def sample(self, pulls, rng):
        self.wake.wait()
        return super().sample(pulls, rng)


def test_a_worker_that_hangs_and_cannot_be_restarted_is_said():
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        try:
            with pytest.raises(bp.SimulatorError, match=r"query 0 .*no answer within 0.05 s. .*nanny"):
                bp.identify(Asleep(MDP), **SETTINGS, executor=client.get_executor(), query_seconds=0.05)
        finally:
            Asleep.wake.set()


def test_an_empty_cluster_is_reported_and_given_up_and_workers_may_join_by_its_address(
    expected, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(sys.modules["bestpolicy.run.pools"], "WITHOUT_WORKERS", 2.0)
    monkeypatch.setattr(sys.modules["bestpolicy.run.pools"], "_REPORT_AFTER", 0.0)
    store, workers = tmp_path / "run.db", []
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    with (
        distributed.LocalCluster(n_workers=0, silence_logs=logging.CRITICAL, **ON_LOOPBACK) as cluster,
        distributed.Client(cluster) as client,
    ):
        try:
            with pytest.raises(bp.SimulatorError, match=r"no workers for 2 s.*everything.*is kept") as caught:
                bp.identify(bp.ExactSimulator(MDP), **SETTINGS, executor=client.get_executor(), store=store)
            assert "has no workers; waiting 2 s" in caplog.text
            assert cluster.scheduler_address in str(caught.value)
            for _ in range(2):
                command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
                arguments = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path)]
                workers.append(subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.DEVNULL))
            client.wait_for_workers(2)
            model = Troubled("kill", tmp_path)  # one of the two dies, and nobody starts it again
            result = bp.drive(bp.Study.resume(store), model, executor=client.get_executor())
            assert result.statistic == expected.statistic
            assert len(client.nthreads()) == 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
