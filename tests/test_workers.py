"""Workers: the answer does not depend on them, and their failures are survived or reported."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import count

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.study.store import Store
from tests.models import near_tie

MDP = near_tie(0.3)
SETTINGS = {"epsilon": 0.6, "delta": 0.1, "algorithm": "gss", "seed": 2, "calls_per_query": 2000}
# Workers are forked from a server that has loaded everything: processes that start in no time, however many are lost.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", "tests.test_workers"])
POOL = partial(ProcessPoolExecutor, 2, CONTEXT)


def test_the_answer_does_not_depend_on_the_workers():
    simulator = bp.ExactSimulator(MDP)
    here = bp.identify(simulator, **SETTINGS)
    threads = bp.identify(simulator, **SETTINGS, executor=ThreadPoolExecutor(3))
    processes = bp.identify(simulator, **SETTINGS, executor=POOL)
    assert here.statistic == threads.statistic == processes.statistic
    assert here.samples == processes.samples
    assert here.certified


class Unreliable(bp.ExactSimulator):
    """Dies, raises or hangs at chosen queries until a file says that it has done so."""

    def __init__(self, mdp, folder, deeds):
        super().__init__(mdp)
        self.folder, self.deeds = folder, deeds

    def sample(self, pulls, rng):
        for deed in self.deeds:
            mark = self.folder / deed
            if not mark.exists():
                mark.touch()
                if deed.startswith("die"):
                    os._exit(1)
                if deed.startswith("hang"):
                    time.sleep(120)
                raise bp.SimulatorError("out of coffee")
        return super().sample(pulls, rng)


class Clock:
    """The time, but once a worker hangs it flies until there are other workers: no busy machine is that slow."""

    def __init__(self, folder):
        self.hung, self.hired, self.ahead = folder / "hang", 0, 0.0

    def monotonic(self):
        if self.hung.exists() and self.hired == 1:
            self.ahead += 100
        return time.monotonic() + self.ahead

    def hire(self):
        self.hired += 1
        return POOL()


@pytest.mark.parametrize("deed", ["raise", "die", "hang"])
def test_workers_that_die_raise_or_hang_are_replaced(tmp_path, monkeypatch, deed):
    expected = bp.identify(bp.ExactSimulator(MDP), **SETTINGS)
    model, clock = Unreliable(MDP, tmp_path, [deed]), Clock(tmp_path)
    for module in ("workers", "pools"):
        monkeypatch.setattr(sys.modules[f"bestpolicy.run.{module}"], "time", clock)
    result = bp.identify(model, **SETTINGS, executor=clock.hire, query_seconds=1000)
    assert [path.name for path in tmp_path.iterdir()] == [deed]
    assert clock.hired == (1 if deed == "raise" else 2)
    assert result.statistic == expected.statistic


class Squeamish(bp.ExactSimulator):
    """Draws on its own, and raises at what it does not like, though not for ever."""

    def __init__(self, mdp):
        super().__init__(mdp)
        self.rng, self.raised = np.random.default_rng(0), 0

    def sample(self, pulls, rng):
        tally = super().sample(pulls, self.rng)
        if self.raised < 2 and tally.reward_sums.sum() < 0.9 * tally.samples:
            self.raised += 1
            raise bp.SimulatorError("a bad day")
        return tally


@pytest.mark.parametrize("where", ["here", "on workers"])
def test_failures_that_may_depend_on_outcomes_are_said_wherever_the_claim_is(tmp_path, where):
    """Simulated again until it pleases: the samples are biased, and nothing in them shows it."""
    store, file = tmp_path / "run.db", tmp_path / "certificate.json"
    asked = {"epsilon": 1.0, "delta": 0.1, "algorithm": "tight", "seed": 2}
    model = Squeamish(MDP)
    if where == "here":
        study = bp.Study(MDP.problem, **asked, store=store)
        while not study.done:
            try:
                bp.drive(study, model)
            except bp.SimulatorError as error:
                study = error.study
        result = study.result()
    else:
        result = bp.identify(model, **asked, store=store, calls_per_query=20, executor=ThreadPoolExecutor(1))
    (warning,) = result.warnings
    assert "the simulator failed" in warning
    assert "biased" in result.explanation
    again = bp.Study.resume(store)
    assert again.settings.failures > 0
    assert again.result().warnings == result.warnings
    result.save(file)
    assert bp.verify(file).warnings == [warning]
    assert warning in bp.report.report_page(store)
    assert bp.identify(bp.ExactSimulator(MDP), **asked).warnings == ()


class Hopeless(bp.ExactSimulator):
    def sample(self, pulls, rng):
        if pulls.pairs[0] == 2:
            raise bp.SimulatorError("never works")
        return super().sample(pulls, rng)


def test_a_query_that_always_fails_is_reported_and_the_study_goes_on(tmp_path):
    store = tmp_path / "run.db"
    with pytest.raises(bp.SimulatorError, match=r"query \d+ .*state 1, action 0.*3 times; last: never works") as caught:
        bp.identify(Hopeless(MDP), **SETTINGS, executor=ThreadPoolExecutor(2), store=store)
    caught.value.study.close()
    result = bp.drive(bp.Study.resume(store), bp.ExactSimulator(MDP))
    assert result.statistic == bp.identify(bp.ExactSimulator(MDP), **SETTINGS).statistic


def test_slow_workers_overlap():
    """Four queries on four threads wait together, not one after the other."""
    together, calls = threading.Barrier(4), count()

    class Slow(bp.ExactSimulator):
        def sample(self, pulls, rng):
            if next(calls) < 4:
                together.wait(timeout=60)  # for the other three; an error if they do not come
            return super().sample(pulls, rng)

    study = bp.Study(
        MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=0, calls_per_query=3000, max_samples=12_000
    )
    bp.drive(study, Slow(MDP), executor=ThreadPoolExecutor(4))
    assert next(calls) >= 4


def test_a_polite_stop_begins_nothing_more():
    """As the command line does at the first Ctrl-C: what is in flight is answered, and nothing else is begun."""
    calls = count()
    study = bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=0, calls_per_query=1)

    class Stopping(bp.ExactSimulator):
        def sample(self, pulls, rng):
            next(calls)
            study.request_stop()
            return super().sample(pulls, rng)

    waiting = len(study.ask())
    result = bp.drive(study, Stopping(MDP), executor=ThreadPoolExecutor(2))
    begun = next(calls)
    assert result.outcome == "interrupted"
    assert result.samples == begun < waiting


@pytest.mark.study
def test_workers_killed_again_and_again_do_not_change_the_answer(tmp_path):
    """SIGKILL to a random worker now and then, with a store: the same bits as without workers."""
    crews, chance, killed, store = [], random.Random(1), [], tmp_path / "run.db"
    settings = {"epsilon": 0.3, "delta": 0.1, "algorithm": "gss", "seed": 2, "calls_per_query": 500}

    def hire():
        crews.append(POOL())
        return crews[-1]

    def kill(over):
        told = 0
        while not over.wait(0.02):
            workers = [w for w in dict(getattr(crews[-1], "_processes", None) or {}).values() if w.is_alive()]
            with Store(store) as file:
                answers = file.read(file.find(None)).answers
            if workers and answers >= told + 30 and len(killed) < 10:
                told = answers
                os.kill(chance.choice(workers).pid, signal.SIGKILL)
                killed.append(answers)

    study = bp.Study(MDP.problem, **settings, store=store)
    over = threading.Event()
    killer = threading.Thread(target=kill, args=(over,))
    crews.append(POOL())
    killer.start()
    try:
        result = bp.drive(study, bp.ExactSimulator(MDP), executor=hire)
    finally:
        over.set()
        killer.join()
    assert len(killed) >= 5
    assert result.statistic == bp.identify(bp.ExactSimulator(MDP), **settings).statistic
