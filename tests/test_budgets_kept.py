"""Deadlines hold inside batches and looks, an interruption costs one call at most, and the answer is the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import Tight
from bestpolicy.simulators import calls as calls_module
from bestpolicy.simulators.calls import Calls
from bestpolicy.study.patience import TimeUp, patiently, until

CALLS = {"n": 0, "stop_at": -1}


def step(state, action, rng):
    """Rewards whose sums depend on the order of addition; uniform and half-used words of the random stream."""
    CALLS["n"] += 1
    reward = 0.3 * rng.random() + 0.1 * float(rng.integers(3, dtype=np.uint32)) + (0.4 if action == "b" else 0.0)
    if CALLS["n"] == CALLS["stop_at"]:
        raise KeyboardInterrupt
    return reward, int(rng.integers(2))


HOW = {
    "states": [0, 1],
    "actions": ["a", "b"],
    "discount": 0.5,
    "epsilon": 0.6,
    "delta": 0.1,
    "seed": 3,
    "algorithm": "tight",
}


@pytest.fixture(scope="module")
def straight():
    return bp.identify(step, **HOW)


def numbers(result):
    return result.samples, result.epsilon, result.policy.tolist(), [check.statistic for check in result.checks]


def test_interruptions_cost_a_call_each_and_change_nothing(straight, tmp_path, monkeypatch):
    monkeypatch.setattr(calls_module, "_PAUSE", 0.0)
    monkeypatch.setattr(calls_module, "_SHARE", 0)
    draw, stops = np.random.default_rng(5), 0
    CALLS["n"] = 0
    while True:
        CALLS["stop_at"] = CALLS["n"] + int(draw.integers(1, 120))
        result = bp.identify(step, **HOW, store=tmp_path / "run.db")
        if result.outcome != "interrupted":
            break
        stops += 1
        if result.unfinished_calls:
            assert "are kept for when the run goes on" in result.explanation
    CALLS["stop_at"] = -1
    assert stops >= 4
    assert numbers(result) == numbers(straight)
    assert CALLS["n"] == result.samples + stops
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "gone", "empty"])
def test_a_damaged_record_costs_its_calls_alone(straight, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(calls_module, "_PAUSE", 0.0)
    CALLS["n"], CALLS["stop_at"] = 0, 300
    bp.identify(step, **HOW, store=tmp_path / "run.db")
    CALLS["stop_at"] = -1
    (record,) = tmp_path.glob("run.db-calls-*")
    content = record.read_bytes()
    half = len(content) // 2
    if damage == "gone":
        record.unlink()
    else:
        flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        foreign = content[:8] + bytes(32) + content[40:]
        record.write_bytes({"flip": flipped, "cut": content[:half], "foreign": foreign, "empty": b""}[damage])
    assert numbers(bp.identify(step, **HOW, store=tmp_path / "run.db")) == numbers(straight)


def test_vectorised_blocks_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("bestpolicy.simulators.user._BLOCK", 100)
    problem, seen = bp.Problem.tabular(2, 2, discount=0.5), []

    def steps(states, actions, rng):
        if len(seen) == 7 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        seen.append(len(states))
        return 0.4 * actions + 0.6 * rng.random(len(states)), rng.integers(2, size=len(states))

    stopped, how = [True], {"epsilon": 0.6, "delta": 0.1, "seed": 3, "algorithm": "tight"}
    model = bp.CallableSimulator(problem, steps, vectorized=True)
    expected = bp.identify(model, **how)
    asked, stopped[:] = sum(seen), []
    seen.clear()
    monkeypatch.setattr(calls_module, "_PAUSE", 0.0)
    while (result := bp.identify(model, **how, store=tmp_path / "run.db")).outcome == "interrupted":
        pass
    assert stopped == [True]
    assert numbers(result) == numbers(expected)
    assert sum(seen) == asked


PROGRAM = """
import sys, time, bestpolicy as bp
def step(state, action, rng):
    time.sleep(0.003)
    with open("made", "ab", buffering=0) as made:
        made.write(b".")
    return 0.6 * rng.random() + 0.4 * (action == "b"), int(rng.integers(2))
how = {"discount": 0.5, "epsilon": 1.2, "delta": 0.1, "seed": 1, "algorithm": "tight", "store": "run.db"}
print(bp.identify(step, states=[0, 1], actions=["a", "b"], **how).to_dict())
"""


def test_a_kill_costs_a_call(tmp_path):
    made = tmp_path / "made"
    made.touch()
    for wanted in (40, 120):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.DEVNULL)
        while made.stat().st_size < wanted and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)
    result = eval(done.stdout)
    assert result["certified"]
    assert made.stat().st_size <= result["samples"] + 2


def slow(state, action, rng):
    time.sleep(0.01)
    return 0.6 * rng.random() + 0.4 * (action == "b"), int(rng.integers(2))


@pytest.mark.parametrize("kind", ["here", "threads", "processes"])
def test_a_deadline_holds_inside_a_batch(tmp_path, kind):
    executor = {
        "here": None,
        "threads": partial(ThreadPoolExecutor, 2),
        "processes": partial(ProcessPoolExecutor, 1, get_context("fork")),
    }[kind]
    begun = time.monotonic()
    result = bp.identify(
        slow,
        **HOW | {"algorithm": "gss"},
        store=tmp_path / "run.db",
        max_seconds=0.7,
        executor=executor,
        calls_per_query=10**4,
    )
    assert time.monotonic() - begun < 20
    assert result.outcome == "time budget spent"
    records = list(tmp_path.glob("run.db-calls-*"))
    assert records  # what was measured is kept
    if kind == "here":
        assert 5 <= result.unfinished_calls <= 70


class LongLooks(Tight):
    """An algorithm whose looks take long, in small steps of Python."""

    seconds = 0.0
    ended = 0

    def run(self, task):
        steps = super().run(task)
        tally = None
        while True:
            try:
                tally = yield next(steps) if tally is None else steps.send(tally)
            except StopIteration as end:
                return end.value
            try:
                end = time.monotonic() + LongLooks.seconds
                while time.monotonic() < end:
                    time.sleep(0.001)
            except TimeUp:
                LongLooks.ended += 1
                raise


def test_a_deadline_holds_inside_a_look(straight, tmp_path):
    LongLooks.seconds, LongLooks.ended = 60.0, 0
    how = HOW | {"algorithm": LongLooks()}
    for samples in (0, 0):  # the look is taken again, and cut again
        begun = time.monotonic()
        result = bp.identify(step, **how, store=tmp_path / "run.db", max_seconds=0.5)
        assert time.monotonic() - begun < 20
        assert result.outcome == "time budget spent"
        assert "A look at the data takes longer" in result.explanation
        assert result.samples > samples
    while LongLooks.ended < 2 and time.monotonic() - begun < 60:
        time.sleep(0.01)
    assert LongLooks.ended == 2  # nobody goes on in the dark
    LongLooks.seconds = 0.0
    assert numbers(bp.identify(step, **how, store=tmp_path / "run.db")) == numbers(straight)


def test_work_in_time_is_done_as_ever():
    with until(time.monotonic() + 60):
        assert patiently(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            patiently(lambda: 1 // 0)
        with pytest.raises(StopIteration):
            patiently(partial(next, iter(())))
    assert patiently(lambda: 4) == 4


# --- the same call again


def test_the_same_call_goes_on_and_an_ended_one_answers_at_once(straight, tmp_path):
    def never(state, action, rng):
        raise AssertionError

    first = bp.identify(step, **HOW, store=tmp_path / "run.db", max_samples=200)
    assert first.outcome == "sample budget spent"
    assert numbers(bp.identify(never, **HOW, store=tmp_path / "run.db", max_samples=200)) == numbers(first)
    result = bp.identify(step, **HOW | {"seed": None}, store=tmp_path / "run.db")
    assert result.certified
    assert result.seed == HOW["seed"]
    assert numbers(bp.identify(never, **HOW, store=tmp_path / "run.db")) == numbers(result)
    assert len(bp.studies(tmp_path / "run.db")) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.2}, r"epsilon was 0\.6, not 0\.2"),
        ({"delta": 0.2}, "delta was"),
        ({"seed": 4}, "seed was 3, not 4"),
        ({"algorithm": "adaptive"}, "algorithm was 'tight', not 'adaptive'"),
        ({"algorithm": Tight(lag_share=0.5)}, "parameters was"),
        ({"discount": 0.6}, "the problem"),
        ({"states": [1, 0]}, "the states of the simulator"),
        ({"actions": ["b", "a"]}, "the actions of the simulator"),
        ({"reward_range": (0, 2)}, "the reward range of the simulator"),
        ({"calls_per_query": 7}, "calls_per_query was None, not 7"),
        ({"if_exists": "fail"}, "already has a study named"),
        ({"if_exists": "maybe"}, "if_exists must be one of resume, fail"),
    ],
)
def test_another_call_is_another_study(tmp_path_factory, changed, message):
    store = tmp_path_factory.getbasetemp() / "another.db"
    if not store.exists():
        bp.identify(step, **HOW, store=store, max_samples=200)
    with pytest.raises(bp.InvalidInput, match=message):
        bp.identify(step, **HOW | {"store": store} | changed)


def test_own_data_belongs_to_the_call(tmp_path):
    model = bp.NamedSimulator(step, states=[0, 1], actions=["a", "b"], discount=0.5)
    data = model.sample(bp.Pulls(np.arange(4), np.full((1, 4), 5)), np.random.default_rng(0))
    how = {"epsilon": 0.6, "delta": 0.1, "algorithm": "tight", "store": tmp_path / "run.db", "max_samples": 100}
    bp.identify(model, **how, own_data=data)
    bp.identify(model, **how, own_data=data)
    with pytest.raises(bp.InvalidInput, match="own_data"):
        bp.identify(model, **how)


def test_records_are_cheap(tmp_path):
    """Processor time of one entry: a hundred times less than what a call of a millisecond takes, roughly."""
    rng, calls = np.random.default_rng(0), Calls(str(tmp_path / "record"))
    rewards, next_states, _ = calls.block(3000, rng)
    rewards[:], next_states[:] = 0.5, 1
    begun = time.process_time()
    for count in range(1, 3001):
        calls.note(rewards, next_states, count, rng)
    spent = (time.process_time() - begun) / 3000
    calls.close()
    assert Calls(str(tmp_path / "record")).kept == 3000
    assert spent < 50e-6
    print(spent)
