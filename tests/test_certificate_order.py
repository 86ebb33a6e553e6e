"""The study's file shows that what a certificate rests on was fixed before its samples; forged orders are noticed."""

import json

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.study.journal import pack, unpack
from bestpolicy.study.store import Store
from bestpolicy.verification.reading import digest
from tests.journals import rewrite
from tests.models import random_mdp

CASES = {
    "gss": ("two-state", {"epsilon": 0.6}),
    "gss-e": ("simplex-episodic", {"epsilon": 3.0}),
    "tight": ("simplex", {"epsilon": 0.0, "max_samples": 200_000}),
    "adaptive": ("simplex", {"epsilon": 0.3, "calls_per_query": 500}),
}
WITH_LAGS = bp.ExactSimulator(random_mdp(3, states=6, actions=3, dimension=4))


def certified(folder, algorithm, **more):
    name, asked = CASES[algorithm]
    model, store = bp.ExactSimulator(bp.instances.load(name)), folder / "run.db"
    result = bp.identify(model, algorithm=algorithm, delta=0.1, seed=3, store=store, **asked | more)
    assert result.epsilon < np.inf
    result.save(folder / "certificate.json")
    return folder / "certificate.json", store


@pytest.mark.parametrize("algorithm", CASES)
def test_the_file_shows_the_order(tmp_path, algorithm):
    certificate, store = certified(tmp_path, algorithm)
    alone, shown = bp.verify(certificate), bp.verify(certificate, store=store)
    assert alone.valid
    assert not alone.order_shown
    assert any("--store" in item for item in alone.trusted)
    assert shown.valid
    assert shown.order_shown
    assert not any("before" in item for item in shown.trusted)


def test_own_data_budgets_and_lags(tmp_path):
    model = WITH_LAGS
    pulls = bp.Pulls(model.problem.pairs, np.full((1, len(model.problem.pairs)), 40))
    own, store = model.sample(pulls, np.random.default_rng(0)), tmp_path / "run.db"
    lags = set()
    for seed in range(6):
        asked = {"epsilon": 0.0, "delta": 0.1, "seed": seed, "algorithm": "adaptive", "max_samples": 60_000}
        given = own if seed % 2 else None
        result = bp.identify(model, **asked, store=store, name=str(seed), own_data=given, calls_per_query=700)
        if result.epsilon == np.inf:
            continue
        result.save(tmp_path / "certificate.json")
        lags.add(bool(json.loads((tmp_path / "certificate.json").read_text())["proof"]["lag"]))
        assert bp.verify(tmp_path / "certificate.json", store=store).order_shown
        if seed % 2 and lags == {True, False}:  # with own data and without, by a lag and by all samples
            break
    assert True in lags


def test_another_file_shows_nothing(tmp_path):
    certificate, _ = certified(tmp_path, "tight")
    (tmp_path / "other").mkdir()
    _, other = certified(tmp_path / "other", "tight", name="other")
    assert bp.verify(certificate, store=other).reasons == [
        "the file of studies does not hold the study that the certificate comes from"
    ]
    with pytest.raises(bp.InvalidInput, match="no such file"):
        bp.verify(certificate, store=tmp_path / "nowhere.db")
    with pytest.raises(bp.InvalidInput, match="cannot be read"):
        bp.verify(certificate, store=certificate)


def reissued(certificate, store):
    """Let a forger write the chain of his own file into the certificate."""
    document = json.loads(certificate.read_text())
    (record,) = bp.studies(store)
    document["run"]["chain"] = record.chain
    document["sha256"] = digest(document)
    certificate.write_text(json.dumps(document))


def changed(kind, position, **fields):
    def change(rows):
        place = [i for i, row in enumerate(rows) if row[0] == kind][position]
        return [*rows[:place], (kind, pack(unpack(rows[place][1]) | fields)), *rows[place + 1 :]]

    return change


def test_a_changed_journal_is_noticed_even_if_its_chain_is_mended(tmp_path):
    certificate, store = certified(tmp_path, "adaptive")
    rewrite(store, "study", lambda rows: rows[:-1])  # the result is gone
    assert "its chain differs" in bp.verify(certificate, store=store).reasons[0]
    reissued(certificate, store)
    assert bp.verify(certificate, store=store).order_shown  # all that matters still stands there
    answers = [i for i, row in enumerate(_rows(store)) if row[0] == "answer"]

    for change, reason in (
        (lambda rows: [row for i, row in enumerate(rows) if i != answers[1]], "samples"),
        (changed("asked", 0, decided={"design": {"indices": np.array([0]), "weights": np.array([1.0])}}), "design"),
        (lambda rows: [rows[0], rows[1], *sorted(rows[2:], key=lambda row: row[0] != "answer")], "first answer"),
    ):
        before, text = store.read_bytes(), certificate.read_text()
        rewrite(store, "study", change)
        reissued(certificate, store)
        found = bp.verify(certificate, store=store)
        assert not found.valid
        assert reason in found.reasons[0]
        store.write_bytes(before)
        certificate.write_text(text)


def _rows(store):
    with Store(store) as reader:
        return reader.whole_rows(1)[0]


def test_a_lag_that_was_chosen_later_is_noticed(tmp_path):
    model, certificate, store = WITH_LAGS, tmp_path / "certificate.json", tmp_path / "run.db"
    asked = {"epsilon": 0.0, "delta": 0.1, "seed": 0, "algorithm": "tight", "max_samples": 400_000}
    bp.identify(model, **asked, store=store).save(certificate)
    assert json.loads(certificate.read_text())["proof"]["lag"]

    def later(rows):
        """Move what was decided for the lag behind the next batch."""
        place = next(i for i, (k, c) in enumerate(rows) if k == "asked" and "lag" in unpack(c)["decided"])
        following = next(i for i, (k, _) in enumerate(rows) if k == "asked" and i > place)
        one, other = unpack(rows[place][1]), unpack(rows[following][1])
        other["decided"] = other["decided"] | {"lag": one["decided"].pop("lag")}
        moved = list(rows)
        moved[place], moved[following] = ("asked", pack(one)), ("asked", pack(other))
        return moved

    rewrite(store, "study", later)
    reissued(certificate, store)
    found = bp.verify(certificate, store=store)
    assert not found.valid
    assert "began after" in found.reasons[0]
