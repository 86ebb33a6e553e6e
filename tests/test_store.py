"""The store: kills, crashes, second writers, damaged files; resumed runs equal uninterrupted ones."""

from __future__ import annotations

import io
import os
import pickle
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from math import inf
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.certificate import make_certificate
from bestpolicy.study.journal import begun, tally_from_bytes, tally_to_bytes
from bestpolicy.study.store import Store
from tests.models import near_tie, random_mdp

MDP = near_tie(0.3)

KILLS = textwrap.dedent(
    """
    import os, random, signal, sys, time
    import bestpolicy as bp
    from tests.test_store import begin, MDP

    store, wanted = sys.argv[1], int(sys.argv[2])
    chance, kills, mute = random.Random(1), 0, os.open(os.devnull, os.O_WRONLY)
    for _ in range(4 * wanted):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            study = bp.Study.resume(store) if os.path.exists(store) else begin(store)
            os.write(tell, b"x")
            bp.drive(study, bp.ExactSimulator(MDP))
            os._exit(0)
        if chance.random() < 0.8:  # else while it replays
            os.read(ready, 1)
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        os.close(ready), os.close(tell)
        if kills >= wanted:
            break
    print(kills)
    """
)


def begin(store=None) -> bp.Study:
    algorithm = bp.algorithms.GSS(check_ratio=1.01, sampling="random")
    return bp.Study(
        MDP.problem, epsilon=0.3, delta=0.1, seed=3, algorithm=algorithm, calls_per_query=20_000, store=store
    )


@pytest.mark.parametrize("wanted", [8, pytest.param(50, marks=pytest.mark.study)])
def test_a_run_killed_again_and_again_equals_the_uninterrupted_one(tmp_path, wanted):
    """SIGKILL at random moments (while it replays, before, between and during writes), many resumes."""
    store = tmp_path / "run.db"
    paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(store), str(wanted)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=600,
        check=True,
    )
    assert int(done.stdout) >= wanted // 2
    with Store(store) as file:
        seen = file.read(file.find(None))
    if seen.result is None:
        assert seen.samples > 0
        bp.drive(bp.Study.resume(store), bp.ExactSimulator(MDP))
    result, expected = bp.Study.resume(store).result(), bp.drive(begin(), bp.ExactSimulator(MDP))
    assert result.samples == expected.samples
    assert result.statistic == expected.statistic
    np.testing.assert_array_equal(result.policy, expected.policy)
    assert [c.statistic for c in result.checks] == [c.statistic for c in expected.checks]


def test_stopping_at_every_answer_loses_nothing(tmp_path):
    """The same, answer by answer, without processes."""
    store = tmp_path / "run.db"
    settings = {"epsilon": 0.6, "delta": 0.1, "algorithm": "gss", "seed": 3, "calls_per_query": 25_000}
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


@pytest.mark.parametrize("algorithm", ["gss", "tight"])
def test_a_study_that_has_ended_answers_from_its_file(tmp_path, monkeypatch, algorithm):
    store, kind = tmp_path / "run.db", bp.algorithms.ALGORITHMS[algorithm]
    settings = {"epsilon": 0.4, "delta": 0.1, "seed": 3, "algorithm": algorithm, "store": store}
    ended = bp.identify(bp.ExactSimulator(MDP), **settings)
    running = bp.Study(MDP.problem, **settings, name="another")  # somebody writes to the file meanwhile
    with monkeypatch.context() as patch:
        patch.setattr(kind, "run", lambda *_: pytest.fail("replayed"))
        study = bp.Study.resume(store, "study")
    result = study.result()
    assert study.done
    assert study.ask() == []
    for name in (
        "algorithm",
        "certified",
        "epsilon",
        "outcome",
        "explanation",
        "rounds",
        "samples",
        "statistic",
        "seed",
    ):
        assert getattr(result, name) == getattr(ended, name), name
    assert result.to_dict() == ended.to_dict()
    np.testing.assert_array_equal(result.policy, ended.policy)
    assert len(result.checks) == len(ended.checks)
    for ours, theirs in zip(result.checks, ended.checks, strict=True):
        assert ours.to_dict() == theirs.to_dict()
        np.testing.assert_array_equal(ours.policy, theirs.policy)
    assert make_certificate(result) == make_certificate(ended)  # that does replay
    running.close()


@pytest.mark.parametrize(
    ("algorithm", "calls", "first"),
    [("gss", None, 5000), ("gss", 700, 5000), ("tight", None, 100), ("adaptive", 30, 100)],
)
def test_new_budgets_and_kills_give_what_the_new_budgets_alone_give(tmp_path, algorithm, calls, first):
    """A batch that a budget has cut is replayed as it was, also when its queries were split."""
    simulator, budgets = bp.ExactSimulator(MDP), [first, first + 3, 4 * first + 11, 10**6]
    settings = {"epsilon": 0.2 if algorithm == "gss" else 0.001, "delta": 0.1, "seed": 3, "algorithm": algorithm}

    def run(store, killed):
        study = bp.Study(MDP.problem, **settings, calls_per_query=calls, max_samples=budgets[0], store=store)
        for budget in budgets[1:]:
            while not study.done:
                queries = study.ask()
                study.tell(queries[-1], simulator.sample(queries[-1].pulls, queries[-1].rng()))
                if killed and len(study.checks) % 12 == 0:
                    study.close()
                    study = bp.Study.resume(store)
            if study.result().certified:
                break
            assert study.result().outcome is bp.Outcome.BUDGET
            assert study.max_samples - 10 <= study.samples <= study.max_samples
            study = bp.Study.resume(store, max_samples=budget)
        return study

    plain, killed = run(tmp_path / "plain.db", False), run(tmp_path / "killed.db", True)
    assert plain.samples == killed.samples > first + 3
    assert [c.statistic for c in plain.checks] == [c.statistic for c in killed.checks]
    assert plain.settings == killed.settings
    assert bp.Study.resume(tmp_path / "killed.db").result().statistic == killed.result().statistic


def test_a_budget_may_shrink_but_not_below_what_was_used(tmp_path):
    store, simulator = tmp_path / "run.db", bp.ExactSimulator(MDP)
    study = bp.Study(MDP.problem, epsilon=0.1, delta=0.1, algorithm="gss", seed=3, calls_per_query=1000, store=store)
    for query in study.ask()[:3]:
        study.tell(query, simulator.sample(query.pulls, query.rng()))
    study.close()
    with pytest.raises(bp.InvalidInput, match="max_samples must be at least 3000, what the study has used so far"):
        bp.Study.resume(store, max_samples=2999)
    shrunk = bp.Study.resume(store, max_samples=3500)  # the batch that was begun does not fit
    assert shrunk.outcome is bp.Outcome.BUDGET
    assert shrunk.samples == 3000
    grown = bp.Study.resume(store, max_samples=10**9)
    whole = bp.drive(
        bp.Study(MDP.problem, epsilon=0.1, delta=0.1, algorithm="gss", seed=3, calls_per_query=1000), simulator
    )
    assert bp.drive(grown, simulator).statistic == whole.statistic
    fresh = bp.Study(MDP.problem, epsilon=0.1, delta=0.1, algorithm="gss", seed=3, store=store, name="fresh")
    fresh.close()  # nothing answered: the batch is cut anew
    assert bp.drive(bp.Study.resume(store, "fresh", max_samples=500), simulator).samples in range(490, 501)


def test_one_writer_at_a_time_and_readers_do_not_mind(tmp_path):
    store = tmp_path / "run.db"
    study = bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=3, store=store)
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", store=store, name="other")
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study.resume(store)
    with Store(store) as reader:
        assert list(reader.names()) == ["study"]
        result = bp.drive(study, bp.ExactSimulator(MDP))  # writes while the reader is open
        assert reader.read(reader.find(None)).samples == result.samples
    bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", store=store, name="other").close()
    with Store(store) as reader:
        assert list(reader.names()) == ["study", "other"]
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
    study = bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=3, store=store)
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
        bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", store=tmp_path / "no" / "such" / "folder.db")


@contextmanager
def powerless(folder):
    """Nobody may write into the folder: not even we, if we are root."""
    os.chmod(folder, 0o555)
    root = os.geteuid() == 0
    try:
        if root:
            for parent in (folder, *folder.parents):
                if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o005:
                    pytest.skip(f"others may not enter {parent}")
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


@pytest.mark.parametrize("killed", [False, True])
def test_files_in_a_folder_that_may_not_be_written_can_be_read(killed):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        store = folder / "a study? 100%.db"
        finished = bp.identify(bp.ExactSimulator(MDP), epsilon=0.6, delta=0.1, algorithm="gss", seed=3, store=store)
        make_certificate(bp.Study.resume(store).result())  # what Python loads late must not need rights
        if killed:  # the log of a process that was killed holds what the file itself does not
            with Store(store, write=True) as writer:
                writer.begin([begun("other", "", b"", {}, {}, ""), ("problem", b"")], "other")
                kept = {end: Path(f"{store}{end}").read_bytes() for end in ("", "-wal")}
            for end, content in kept.items():
                Path(f"{store}{end}").write_bytes(content)
            assert b"other" not in store.read_bytes()
        before = sorted(os.listdir(folder))
        with powerless(folder):
            with Store(store) as reader:
                assert len(reader.names()) == 1 + killed
                assert reader.read(reader.find("study")).samples == finished.samples
            assert bp.Study.resume(store, "study").result().to_dict() == finished.to_dict()
            assert make_certificate(bp.Study.resume(store, "study").result())["claim"]["epsilon"] == finished.epsilon
            with pytest.raises(bp.StoreError, match=r"cannot write .*Permission denied"):
                bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", store=store, name="new")
        assert sorted(os.listdir(folder)) == before


def test_a_disk_that_fills_up(tmp_path):
    """The operating system refuses to let files grow: a clear error, and all that was told can be read."""
    store, simulator = tmp_path / "run.db", bp.ExactSimulator(MDP)
    study = bp.Study(MDP.problem, epsilon=0.3, delta=0.1, algorithm="gss", seed=3, store=store, calls_per_query=2000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(bp.StoreError, match="still there") as caught:
            bp.drive(study, simulator)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(store) in str(caught.value)
    with Store(store) as reader:
        assert reader.read(reader.find(None)).samples == study.samples > 0
    study.close()
    resumed = bp.drive(bp.Study.resume(store), simulator)
    expected = bp.Study(MDP.problem, epsilon=0.3, delta=0.1, algorithm="gss", seed=3, calls_per_query=2000)
    assert resumed.statistic == bp.drive(expected, simulator).statistic


def test_files_of_the_first_version_can_be_read_and_resumed(tmp_path):
    store = tmp_path / "run.db"
    shutil.copy(Path(__file__).parent / "data" / "studies-schema-2.db", store)
    ended = bp.Study.resume(store, "certified").result()
    with sqlite3.connect(store) as database:
        database.execute("ALTER TABLE looked DROP COLUMN policy")
        database.execute("PRAGMA user_version = 1")
    database.close()
    with Store(store) as reader:
        assert reader.read(reader.find("certified")).result["certified"]
    again = bp.Study.resume(store, "certified").result()
    assert again.statistic == pytest.approx(ended.statistic, rel=1e-6)
    assert again.samples == ended.samples


@pytest.mark.parametrize("damage", ["truncated", "foreign", "text", "newer", "pickle", "empty"])
def test_damaged_and_foreign_files(tmp_path, damage):
    store = tmp_path / "run.db"
    bp.drive(
        bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=3, store=store), bp.ExactSimulator(MDP)
    )
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
    empty = tally_from_bytes(tally_to_bytes(bp.Tally.empty(mdp.problem)))
    assert empty.next_counts.shape == (2, 0, 5)
    for damaged in (
        tally_to_bytes(tally)[:-8],
        tally_to_bytes(tally)[:20],
        b"",
        b"hello",
        tally_to_bytes(tally) + b"x",
    ):
        with pytest.raises(bp.StoreError, match="damaged"):
            tally_from_bytes(damaged)


def test_tallies_of_the_first_version_can_be_read():
    buffer = io.BytesIO()
    for array in ([1, 2, 3], [4, 5], [1, 5], [7, 8], [0.5, 2.0], [[0.25, 1.5]]):
        np.lib.format.write_array(buffer, np.array(array))
    tally = tally_from_bytes(buffer.getvalue())
    np.testing.assert_array_equal(tally.next_counts, [[[0, 7, 0], [0, 0, 8]]])
    np.testing.assert_array_equal(tally.next_rewards, [[[0, 0.5, 0], [0, 0, 2]]])
    np.testing.assert_array_equal(tally.squared_rewards, [[0.25, 1.5]])


def test_the_studies_of_a_file(tmp_path):
    store, model = tmp_path / "run.db", bp.ExactSimulator(bp.instances.load("two-state"))
    asked = {"epsilon": 0.2, "delta": 0.1, "algorithm": "tight", "seed": 0, "store": store}
    result = bp.identify(model, name="whole", **asked)
    short = bp.Study(model.problem, name="short", **asked)
    first, second = bp.studies(store)  # also while one of them is open
    short.close()
    assert (first.name, first.samples, first.epsilon, first.outcome) == (
        "whole",
        result.samples,
        result.epsilon,
        bp.Outcome.CERTIFIED,
    )
    assert first.forecast == result.samples
    assert (first.settings.asked_epsilon, first.settings.algorithm, first.settings.seed) == (0.2, "tight", 0)
    assert first.created <= second.created
    assert (second.name, second.samples, second.epsilon, second.outcome) == ("short", 0, inf, bp.Outcome.RUNNING)
    assert second.forecast is None
    assert repr(second) == "Record('short': tight for ε = 0.2, δ = 0.1; nothing certified, 0 samples, still running)"
    with pytest.raises(bp.InvalidInput, match="no such file"):
        bp.studies(tmp_path / "nowhere.db")
    with pytest.raises(bp.InvalidInput, match="path must be the path of a file"):
        bp.studies(None)


def test_resuming_with_another_simulator_is_refused(tmp_path):
    bp.Study(MDP.problem, epsilon=0.6, delta=0.1, algorithm="gss", seed=3, store=tmp_path / "run.db").close()
    study = bp.Study.resume(tmp_path / "run.db")
    with pytest.raises(bp.InvalidInput, match="another problem"):
        bp.drive(study, bp.ExactSimulator(near_tie(0.3, discount=0.7)))
    study.close()
