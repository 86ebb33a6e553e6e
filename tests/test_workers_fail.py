"""Whatever a simulator does is one clear error; what was measured is kept, and the file is free at once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest

import bestpolicy as bp
from tests.models import near_tie

MDP = near_tie(0.3)
SETTINGS = {"epsilon": 1.0, "delta": 0.1, "algorithm": "gss", "seed": 2, "calls_per_query": 2000}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", "tests.test_workers_fail"])
POOL = partial(ProcessPoolExecutor, 2, CONTEXT)


class Own(BaseException):
    """Neither an Exception, nor can it be unpickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


class Careless(bp.SimulatorError):
    """An error of ours that somebody has changed."""

    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")


def recurse(depth=0):
    return recurse(depth + 1) + 1


def generate():
    yield 1
    raise GeneratorExit("enough")


def deed(name, tally):
    """Do what simulators should not do, or return what they should not return."""
    if name == "sys.exit":
        sys.exit("enough")
    if name == "GeneratorExit":
        list(generate())
    if name == "own":
        raise Own("this", "that")
    if name == "mute":
        raise Mute
    if name == "careless":
        raise Careless(7, "bad luck")
    if name == "recursion":
        recurse()
    if name == "memory":
        raise MemoryError("no room")
    if name == "wrong type":
        return [lambda: 0]
    if name == "too few":
        return bp.Tally.from_samples(MDP.problem, [1], [0], [0.5], [1])
    if name == "os._exit":
        os._exit(3)
    if name == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    return tally


class Bad(bp.ExactSimulator):
    """Does its deed wherever a query begins with the third pair."""

    def __init__(self, deed):
        super().__init__(MDP)
        self.deed = deed

    def sample(self, pulls, rng):
        tally = super().sample(pulls, rng)
        return deed(self.deed, tally) if pulls.pairs[0] == 2 else tally


EVERYWHERE = {
    "sys.exit": "the simulator raised SystemExit: enough",
    "GeneratorExit": "the simulator raised GeneratorExit: enough",
    "own": "the simulator raised Own: this and that",
    "mute": "the simulator raised Mute",
    "careless": "7: bad luck",
    "recursion": "the simulator raised RecursionError",
    "memory": "the simulator raised MemoryError: no room",
    "wrong type": "the simulator's answer cannot be used: an answer must be a Tally .*Got list",
    "too few": "the simulator's answer cannot be used: .*samples were asked for, the tally has 1",
}
DEADLY = dict.fromkeys(["os._exit", "SIGKILL"], "its worker died: it was killed, ran out of memory")
CASES = [(where, name) for where in ("here", "threads", "processes", "my processes") for name in EVERYWHERE]
CASES += [(where, name) for where in ("processes", "my processes") for name in DEADLY]


@pytest.fixture(scope="module")
def expected():
    return bp.identify(bp.ExactSimulator(MDP), **SETTINGS)


@pytest.fixture
def executor(request):
    """No executor, a function that makes one, or an executor that stays with its owner."""
    if request.param == "here":
        yield None
    elif request.param == "processes":
        yield POOL
    else:
        with POOL() if request.param == "my processes" else ThreadPoolExecutor(2) as pool:
            yield pool


@pytest.mark.parametrize(("executor", "name"), CASES, indirect=["executor"])
def test_it_is_one_error_and_the_study_goes_on_in_this_process(executor, expected, tmp_path, name):
    store = tmp_path / "run.db"
    with pytest.raises(bp.SimulatorError, match=(EVERYWHERE | DEADLY)[name]) as caught:
        bp.identify(Bad(name), **SETTINGS, executor=executor, store=store)
    error = caught.value
    if isinstance(executor, ProcessPoolExecutor) and name in DEADLY:  # any of two queries may have done it
        assert "Give executor= a function that makes an executor, and workers will be replaced" in str(error)
    else:
        assert re.search(r"query \d+ \(from pair \(state 1, action 0\) on\)", str(error)), str(error)
    assert "\n" not in str(error)
    study = bp.Study.resume(store)  # while the exception, and all that its traceback holds, is still there
    assert study.samples == error.study.samples
    assert study.settings.failures > 0
    assert bp.drive(study, bp.ExactSimulator(MDP)).statistic == expected.statistic


def local_simulator():
    class Local(bp.ExactSimulator):
        pass

    return Local(MDP)


class Locked(bp.ExactSimulator):
    def __init__(self):
        super().__init__(MDP)
        self.lock = threading.Lock()


@pytest.mark.parametrize("make", [local_simulator, Locked])
def test_a_simulator_that_cannot_travel_is_no_failure_of_it(tmp_path, make):
    """It was never called, so that no outcome can have made it fail: nothing is in doubt."""
    store = tmp_path / "run.db"
    with pytest.raises(bp.SimulatorError, match=r"query \d .*pickle.*must stand at the top of a module"):
        bp.identify(make(), **SETTINGS, executor=POOL, store=store)
    study = bp.Study.resume(store)
    assert study.settings.failures == 0
    study.close()


class Asleep(bp.ExactSimulator):
    """Hangs until it is woken, in threads."""

    def __init__(self):
        super().__init__(MDP)
        self.wake = threading.Event()

    def sample(self, pulls, rng):
        self.wake.wait()
        return super().sample(pulls, rng)


def test_workers_that_hang_and_cannot_be_replaced_are_said():
    model = Asleep()
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(bp.SimulatorError, match=r"query 0 .*no answer within 0.05 s. Give executor= a function"):
            bp.identify(model, **SETTINGS, executor=pool, query_seconds=0.05)
        model.wake.set()


def test_an_executor_that_was_shut_down_is_said():
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(bp.SimulatorError, match=r"query 0 .*cannot schedule new futures after shutdown"):
        bp.identify(bp.ExactSimulator(MDP), **SETTINGS, executor=pool)


class Interrupted(bp.ExactSimulator):
    def sample(self, pulls, rng):
        if pulls.pairs[0] == 2:
            raise KeyboardInterrupt
        return super().sample(pulls, rng)


@pytest.mark.parametrize("executor", ["here", "threads", "processes"], indirect=True)
def test_an_interrupt_stays_one(executor, tmp_path):
    store = tmp_path / "run.db"
    result = bp.identify(Interrupted(MDP), **SETTINGS, executor=executor, store=store)
    assert result.outcome == "interrupted"
    study = bp.Study.resume(store)
    assert study.samples == result.samples
    study.close()


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(1), GeneratorExit()])
def test_the_file_is_free_whatever_ends_the_run(tmp_path, error):
    store = tmp_path / "run.db"

    def progress(study):
        raise error

    with pytest.raises(type(error)):
        bp.identify(bp.ExactSimulator(MDP), **SETTINGS, store=store, progress=progress)
    bp.Study.resume(store).close()
    other = bp.ExactSimulator(bp.instances.load("riverswim"))
    with pytest.raises(bp.InvalidInput, match="another problem") as caught:
        bp.drive(bp.Study.resume(store), other)
    assert caught.value.__traceback__ is not None  # it holds the study
    bp.Study.resume(store).close()


class Broken(bp.ExactSimulator):
    def sample(self, pulls, rng):
        sys.exit("enough")


def test_the_file_is_free_when_the_first_call_fails(tmp_path):
    store = tmp_path / "run.db"
    with pytest.raises(bp.SimulatorError, match="the simulator raised SystemExit: enough") as caught:
        bp.identify(Broken(MDP), **SETTINGS, store=store)
    assert caught.value.study is not None
    bp.Study.resume(store).close()


def test_a_study_that_let_go_of_its_file_takes_it_again(expected, tmp_path):
    """Also when its owner goes on by hand; never if the file has gone on without it."""
    store, model = tmp_path / "run.db", bp.ExactSimulator(MDP)
    with pytest.raises(bp.SimulatorError) as caught:
        bp.identify(Bad("memory"), **SETTINGS, store=store)
    study = caught.value.study
    query = study.ask()[0]
    study.tell(query, model.sample(query.pulls, query.rng()))
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study.resume(store)
    study.close()
    other = bp.Study.resume(store)
    assert other.samples == study.samples
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.drive(study, model)
    query = other.ask()[0]
    other.tell(query, model.sample(query.pulls, query.rng()))
    other.close()
    with pytest.raises(bp.StoreError, match=r"has been changed in .* since it was opened"):
        bp.drive(study, model)
    assert bp.drive(other, model).statistic == expected.statistic
    assert bp.Study.resume(store).result().statistic == expected.statistic


def test_a_study_that_nobody_has_any_more_frees_its_file(tmp_path):
    store = tmp_path / "run.db"
    with bp.Study(MDP.problem, **SETTINGS, store=store) as study:
        query = study.ask()[0]
        study.tell(query, bp.ExactSimulator(MDP).sample(query.pulls, query.rng()))
    study = bp.Study.resume(store)
    study.mine = study  # a circle
    del study
    gc.collect()
    bp.Study.resume(store).close()
