"""The store: kills, crashes, second writers, damaged files; resumed runs equal uninterrupted ones."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.store import Store, tally_from_bytes, tally_to_bytes
from tests.models import near_tie, random_mdp

MDP = near_tie(0.3)

SCRIPT = textwrap.dedent(
    """
    import sys
    import bestpolicy as bp
    from bestpolicy.algorithms import GSS
    from tests.models import near_tie

    mdp = near_tie(0.3)
    store = sys.argv[1]
    import os
    if os.path.exists(store):
        study = bp.Study.resume(store)
    else:
        algorithm = GSS(check_ratio=1.01, sampling="random")
        study = bp.Study(mdp.problem, epsilon=0.3, delta=0.1, seed=3, algorithm=algorithm, calls_per_query=20_000,
                         store=store)
    print("ready", flush=True)
    bp.drive(study, bp.ExactSimulator(mdp))
    """
)


def uninterrupted() -> bp.Result:
    study = bp.Study(
        MDP.problem,
        epsilon=0.3,
        delta=0.1,
        seed=3,
        algorithm=bp.algorithms.GSS(check_ratio=1.01, sampling="random"),
        calls_per_query=20_000,
    )
    return bp.drive(study, bp.ExactSimulator(MDP))


@pytest.mark.parametrize("wanted", [8, pytest.param(50, marks=pytest.mark.study)])
def test_a_run_killed_again_and_again_equals_the_uninterrupted_one(tmp_path, wanted):
    """SIGKILL at random moments (short after the start, before, between and during writes), many resumes."""
    store, chance = tmp_path / "run.db", random.Random(1)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    kills = 0
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OPENBLAS_NUM_THREADS": "1"}
    for _ in range(2 * wanted):
        process = subprocess.Popen(
            [sys.executable, str(script), str(store)], stdout=subprocess.PIPE, text=True, env=environment
        )
        process.stdout.readline()
        time.sleep(chance.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        if kills >= wanted:
            break
    assert kills >= wanted // 2
    with Store(store) as file:
        seen = file.read(file.find(None))
    if seen.result is None:
        assert seen.samples > 0
        bp.drive(bp.Study.resume(store), bp.ExactSimulator(MDP))
    result, expected = bp.Study.resume(store).result(), uninterrupted()
    assert result.samples == expected.samples
    assert result.statistic == expected.statistic
    np.testing.assert_array_equal(result.policy, expected.policy)
    assert [c.statistic for c in result.checks] == [c.statistic for c in expected.checks]


def test_stopping_at_every_answer_loses_nothing(tmp_path):
    """The same, answer by answer, without processes."""
    store = tmp_path / "run.db"
    settings = {"epsilon": 0.6, "delta": 0.1, "seed": 3, "calls_per_query": 25_000}
    simulator = bp.ExactSimulator(MDP)
    study = bp.Study(MDP.problem, **settings, store=store)
    while not study.done:
        query = study.ask()[-1]
        study.tell(query, simulator.sample(query.pulls, query.rng()))
        study.close()
        study = bp.Study.resume(store)
    expected = bp.drive(bp.Study(MDP.problem, **settings), simulator)
    assert study.result().statistic == expected.statistic
    assert study.result().samples == expected.samples


def test_one_writer_at_a_time_and_readers_do_not_mind(tmp_path):
    store = tmp_path / "run.db"
    study = bp.Study(MDP.problem, epsilon=0.6, delta=0.1, seed=3, store=store)
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study(MDP.problem, epsilon=0.6, delta=0.1, store=store, name="other")
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study.resume(store)
    with Store(store) as reader:
        assert reader.names() == ["study"]
        result = bp.drive(study, bp.ExactSimulator(MDP))  # writes while the reader is open
        assert reader.read(reader.find(None)).samples == result.samples
    bp.Study(MDP.problem, epsilon=0.6, delta=0.1, store=store, name="other").close()
    with Store(store) as reader:
        assert reader.names() == ["study", "other"]
        record = reader.read(reader.find("study"))
    assert record.result["certified"]
    assert record.fingerprint == MDP.problem.fingerprint
    assert record.versions["numpy"] == np.__version__
    assert len(record.checks) == len(result.checks)
    with pytest.raises(bp.InvalidInput, match="Give the name of one of them"):
        bp.Study.resume(store)


def test_failed_writes_change_nothing(tmp_path):
    """A read-only file, a full disk: a clear error, and what was there can still be read and resumed."""
    store = tmp_path / "run.db"
    study = bp.Study(MDP.problem, epsilon=0.6, delta=0.1, seed=3, store=store)
    simulator = bp.ExactSimulator(MDP)
    study._file._store._db.execute("PRAGMA max_page_count = 1")  # the disk is full now
    error = None
    while error is None:
        (query,) = study.ask()
        try:
            study.tell(query, simulator.sample(query.pulls, query.rng()))
        except bp.StoreError as caught:
            error = str(caught)
    assert "full" in error
    assert "still there" in error
    assert study.ask() == [query]
    samples = study.samples
    study.close()
    resumed = bp.Study.resume(store)
    assert resumed.samples == samples
    assert bp.drive(resumed, simulator).certified
    with pytest.raises(bp.StoreError, match="cannot write"):
        bp.Study(MDP.problem, epsilon=0.6, delta=0.1, store=tmp_path / "no" / "such" / "folder.db")


@pytest.mark.parametrize("damage", ["truncated", "foreign", "text", "newer", "pickle", "empty"])
def test_damaged_and_foreign_files(tmp_path, damage):
    store = tmp_path / "run.db"
    bp.drive(bp.Study(MDP.problem, epsilon=0.6, delta=0.1, seed=3, store=store), bp.ExactSimulator(MDP))
    content = store.read_bytes()
    if damage == "truncated":
        store.write_bytes(content[: len(content) // 2])
    elif damage == "foreign":
        store.unlink()
        sqlite3.connect(store).execute("CREATE TABLE mine (x)").connection.close()
    elif damage == "text":
        store.write_text("hello " * 1000)
    elif damage == "newer":
        with sqlite3.connect(store) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    elif damage == "pickle":
        store.write_bytes(pickle.dumps({"a": 1}) * 100)
    else:
        store.write_bytes(b"")
    with pytest.raises(bp.BestPolicyError) as caught:
        bp.Study.resume(store)
    assert str(store) in str(caught.value) or "damaged" in str(caught.value)


def test_tallies_survive_the_journey():
    mdp = random_mdp(1, states=5, actions=2, dimension=3, horizon=2)
    rng = np.random.default_rng(0)
    tally = bp.ExactSimulator(mdp).sample(bp.Pulls(np.array([1, 4, 7]), np.array([[5, 0, 2], [1, 1, 9]])), rng)
    again = tally_from_bytes(tally_to_bytes(tally))
    for name in ("pairs", "next_counts", "next_rewards", "squared_rewards"):
        np.testing.assert_array_equal(getattr(again, name), getattr(tally, name))
    with pytest.raises(bp.StoreError, match="damaged"):
        tally_from_bytes(tally_to_bytes(tally)[:-9])


def test_resuming_with_another_simulator_is_refused(tmp_path):
    bp.Study(MDP.problem, epsilon=0.6, delta=0.1, seed=3, store=tmp_path / "run.db").close()
    study = bp.Study.resume(tmp_path / "run.db")
    with pytest.raises(bp.InvalidInput, match="another problem"):
        bp.drive(study, bp.ExactSimulator(near_tie(0.3, discount=0.7)))
    study.close()
