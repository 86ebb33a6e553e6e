"""Resuming takes what was asked and decided from the file, on whatever machine, whoever wrote it."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import GSS, Adaptive, Tight, protocol
from bestpolicy.stopping.paper import PaperTest
from bestpolicy.stopping.tight import TightTest
from bestpolicy.study.journal import pack, unpack
from tests.journals import rewrite

DATA = Path(__file__).parent / "data"


def advance(study: bp.Study, model: bp.ExactSimulator, looks: float) -> None:
    while not study.done and len(study.checks) < looks:
        for query in study.ask():
            study.tell(query, model.sample(query.pulls, query.rng()))


@pytest.mark.parametrize("algorithm", [GSS(check_ratio=1.02), Tight(check_ratio=1.03), Adaptive(check_ratio=1.03)])
def test_nothing_is_worked_out_again(tmp_path, monkeypatch, algorithm):
    model, store = bp.ExactSimulator(bp.instances.load("simplex")), tmp_path / "run.db"
    asked = {"epsilon": 0.01, "delta": 0.05, "algorithm": algorithm, "seed": 1}
    study = bp.Study(model.problem, **asked, store=store)
    advance(study, model, 60)
    looks, queries, trace = len(study.checks), study.ask(), study.checks
    study.close()

    called = []
    for owner, name in ((TightTest, "look"), (PaperTest, "look"), (protocol, "g_optimal_design")):
        monkeypatch.setattr(owner, name, lambda *args, name=name, **named: called.append(name))
    again = bp.Study.resume(store)
    assert called == []
    assert len(again.checks) == looks == 60
    assert [(c.samples, c.epsilon, c.policy.tolist()) for c in again.checks] == [
        (c.samples, c.epsilon, c.policy.tolist()) for c in trace
    ]
    for before, after in zip(queries, again.ask(), strict=True):
        np.testing.assert_array_equal(before.pulls.counts, after.pulls.counts)
    monkeypatch.undo()
    straight, resumed = bp.Study(model.problem, **asked), again
    advance(straight, model, 75)
    advance(resumed, model, 75)
    assert [(c.samples, c.epsilon, c.gap) for c in resumed.checks] == [
        (c.samples, c.epsilon, c.gap) for c in straight.checks
    ]


def test_a_look_that_was_not_stored_is_taken_again(tmp_path):
    """Killed between the last answer and its look: one look is all that is missing."""
    model, store = bp.ExactSimulator(bp.instances.load("two-state")), tmp_path / "run.db"
    asked = {"epsilon": 0.0, "delta": 0.05, "algorithm": "adaptive", "seed": 1}
    study = bp.Study(model.problem, **asked, store=store)
    advance(study, model, 20)
    study.close()
    rewrite(store, "study", lambda rows: rows[: max(i for i, row in enumerate(rows) if row[0] == "answer") + 1])
    resumed = bp.Study.resume(store)
    assert len(resumed.checks) == 20
    assert bp.drive(resumed, model).samples == bp.identify(model, **asked).samples


def test_what_was_asked_is_taken_as_it_is(tmp_path):
    """Whatever a newer version would ask: here the file holds pulls that no version asks for."""
    model, store = bp.ExactSimulator(bp.instances.load("two-state")), tmp_path / "run.db"
    study = bp.Study(model.problem, epsilon=0.0, delta=0.05, algorithm="tight", seed=1, store=store)
    advance(study, model, 20)
    (query,) = study.ask()
    study.close()

    def with_other_pulls(rows):
        last = max(i for i, (kind, _) in enumerate(rows) if kind == "asked")
        known = unpack(rows[last][1])
        known["pulls"]["counts"] = known["pulls"]["counts"] + np.array([[3, 1, 4, 1]])
        return [*rows[:last], ("asked", pack(known)), *rows[last + 1 :]]

    rewrite(store, "study", with_other_pulls)
    resumed = bp.Study.resume(store)
    (again,) = resumed.ask()
    np.testing.assert_array_equal(again.pulls.counts, query.pulls.counts + np.array([[3, 1, 4, 1]]))
    advance(resumed, model, 25)
    resumed.close()
    assert len(bp.Study.resume(store).checks) == 25


@pytest.mark.parametrize(
    ("name", "instance"),
    [("tight", "two-state"), ("adaptive", "simplex-episodic"), ("gss", "two-state"), ("plug-in", "two-state")],
)
def test_studies_of_older_versions_go_on(tmp_path, name, instance):
    """The file was written before requests were stored, each study in the middle of a batch."""
    store = tmp_path / "old.db"
    shutil.copy(DATA / "studies-schema-2.db", store)
    model = bp.ExactSimulator(bp.instances.load(instance))
    study = bp.Study.resume(store, name)
    had = study.samples
    assert had > 300
    advance(study, model, len(study.checks) + 2)
    study.close()
    again = bp.Study.resume(store, name)
    assert again.samples == study.samples
    result = bp.drive(again, model) if not again.done else again.result()
    assert result.certified
    assert model.mdp.loss(result.policy) <= result.epsilon + 1e-9
    if name != "plug-in":
        result.save(tmp_path / "certificate.json")
        assert bp.verify(tmp_path / "certificate.json", model.mdp).valid


@pytest.mark.parametrize("name", ["whole", "cut", "paper", "own"])
def test_studies_of_the_third_schema_go_on_as_if_nothing_had_happened(tmp_path, name):
    """The file was written before there was a journal; two of its studies are in the middle of a batch."""
    store, model = tmp_path / "old.db", bp.ExactSimulator(bp.instances.load("two-state"))
    shutil.copy(DATA / "studies-schema-3.db", store)
    before = store.read_bytes()
    (record,) = (one for one in bp.studies(store) if one.name == name)
    assert store.read_bytes() == before  # to read it changes nothing
    study = bp.Study.resume(store, name, max_samples=10**9 if name == "own" else None)
    assert (study.samples, len(study.checks)) == (record.samples, len(record.checks))
    result = bp.drive(study, model) if not study.done else study.result()
    calls = {"cut": 40, "paper": 20000}.get(name)
    asked = {"epsilon": record.settings.asked_epsilon, "delta": 0.1, "seed": record.settings.seed}
    straight = bp.identify(
        model, algorithm=record.settings.algorithm, calls_per_query=calls, own_data=record.own_data, **asked
    )
    assert result.certified
    if name != "own":  # its budget has cut a batch
        assert result.samples == straight.samples
        np.testing.assert_array_equal(result.policy, straight.policy)
    assert [one.name for one in bp.studies(store)] == ["whole", "cut", "paper", "own"]


def test_an_ended_study_of_an_older_version_can_still_be_proved(tmp_path):
    store = tmp_path / "old.db"
    shutil.copy(DATA / "studies-schema-2.db", store)
    result = bp.Study.resume(store, "certified").result()
    assert result.certified
    result.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json").valid


def test_the_package_needs_nothing_that_only_unix_has():
    script = "import sys; sys.modules['fcntl'] = None; import bestpolicy, bestpolicy.study.store, bestpolicy.cli"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_one_process_writes_at_a_time_and_leaves_no_lock(tmp_path):
    store, problem = tmp_path / "run.db", bp.instances.load("two-state").problem
    asked = {"epsilon": 0.3, "delta": 0.1, "algorithm": "tight", "seed": 0}
    study = bp.Study(problem, **asked, store=store)
    with pytest.raises(bp.StoreError, match="another process is writing"):
        bp.Study(problem, **asked, store=store, name="other")
    script = f"import bestpolicy as bp; bp.Study.resume({str(store)!r})"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another process is writing" in other.stderr  # still locked after the attempt in this process
    study.close()
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]
    bp.Study.resume(store).close()


def without_answer(position):
    def change(rows):
        gone = [i for i, (kind, _) in enumerate(rows) if kind == "answer"][position]
        return rows[:gone] + rows[gone + 1 :]

    return change


def test_answers_that_are_gone_are_missed(tmp_path):
    model, store = bp.ExactSimulator(bp.instances.load("two-state")), tmp_path / "run.db"
    study = bp.Study(model.problem, epsilon=0.0, delta=0.05, algorithm="tight", seed=1, store=store)
    advance(study, model, 10)
    study.close()
    rewrite(store, "study", without_answer(4))
    with pytest.raises(bp.StoreError, match="are missing"):
        bp.Study.resume(store)
