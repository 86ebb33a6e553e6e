"""Certificates of Theorems I and UD: recomputed, compared with the study's file, and refused when touched."""

import base64
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import sharp_dense
from bestpolicy.verification import intersection
from bestpolicy.verification.reading import digest
from tests.models import random_mdp

DISCOUNTED = random_mdp(3, states=5, actions=2, dimension=4, discount=0.6)
DATA = Path(__file__).parent / "data"
EPISODIC = random_mdp(4, states=4, actions=2, dimension=3, horizon=3)


class Case:
    """A run with its file of studies and its certificate."""

    def __init__(self, folder, mdp, epsilon):
        self.mdp, self.folder, self.store = mdp, folder, folder / "run.db"
        asked = {"epsilon": epsilon, "delta": 0.1, "algorithm": "sharp", "seed": 1}
        result = bp.identify(bp.ExactSimulator(mdp), **asked, store=self.store)
        result.save(folder / "c.json")
        self.document = json.loads((folder / "c.json").read_text())

    def verdict(self, store=False, **changed):
        """Of the certificate with some of its parts changed, its checksum computed anew."""
        document = {key: value for key, value in (self.document | changed).items() if key != "sha256"}
        path = self.folder / "changed.json"
        path.write_text(json.dumps(document | {"sha256": digest(document)}))
        return bp.verify(path, model=self.mdp, store=self.store if store else None)

    def with_lag(self, name, change):
        """The proof with one array of its lag changed."""
        packed = self.document["proof"]["lag"][name]
        array = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), packed["dtype"])
        data = base64.b64encode(zlib.compress(change(array).tobytes())).decode()
        return self.document["proof"] | {"lag": self.document["proof"]["lag"] | {name: packed | {"data": data}}}

    def with_batch(self, name, change):
        """The proof with one array of its second batch changed."""
        first, second, *others = self.document["proof"]["batches"]
        packed = second[name]
        array = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), packed["dtype"]).copy()
        change(array)
        data = base64.b64encode(zlib.compress(array.tobytes())).decode()
        batches = [first, second | {name: packed | {"data": data}}, *others]
        return self.document["proof"] | {"batches": batches}


CASES = {
    "I": (DISCOUNTED, 0.0),
    "I of three steps": (EPISODIC, 0.3),
    "UD": (DISCOUNTED, 0.4),
    "UD of many states": (bp.instances.load("simplex"), 0.2),  # the same code takes ten times as long
}


@pytest.fixture(
    scope="module",
    params=["I", "I of three steps", "UD", pytest.param("UD of many states", marks=pytest.mark.study)],
)
def case(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharp_dense, "_BETTER", 0.0)  # Theorem UD wherever it can be
        found = Case(tmp_path_factory.mktemp("case"), *CASES[request.param])
    assert found.document["claim"]["theorem"] == request.param.split()[0]
    return found


def test_it_is_valid_and_the_study_shows_the_order(case):
    assert case.verdict().valid
    verdict = case.verdict(store=True)
    assert verdict.valid, verdict.reasons


def test_what_bets_rest_on_cannot_be_made_up_afterwards(case):
    def nudge(array):
        array[np.flatnonzero(array)[0]] *= 1.001

    for name in ("theta", "links", "variances", "shares"):
        verdict = case.verdict(store=True, proof=case.with_batch(name, nudge))
        assert not verdict.valid
        assert any("fixed before a batch" in reason for reason in verdict.reasons), (name, verdict.reasons)
    lag = case.document["proof"]["lag"] | {"started": case.document["proof"]["lag"]["started"] - 1}
    assert not case.verdict(store=True, proof=case.document["proof"] | {"lag": lag}).valid


def test_a_batch_has_to_be_as_planned(case):
    def less(array):
        array[np.flatnonzero(array)[0]] -= 1

    verdict = case.verdict(proof=case.with_batch("planned", less))
    assert any("planned" in reason for reason in verdict.reasons)


def test_a_lag_of_one_theorem_is_none_of_the_other(case):
    claim = case.document["claim"]
    if claim["theorem"] == "UD":
        assert not case.verdict(claim=claim | {"theorem": "I"}).valid
    elif case.mdp is EPISODIC:
        assert not case.verdict(claim=claim | {"theorem": "UD"}).valid
    else:
        with pytest.raises(bp.InvalidInput, match="sigma"):
            case.verdict(claim=claim | {"theorem": "UD"})


def test_smaller_claims_are_refused(case):
    claim, proof = case.document["claim"], case.document["proof"]
    lag = proof["lag"] | {"delta": proof["lag"]["delta"] * 1e-8}
    verdict = case.verdict(claim=claim | {"delta": claim["delta"] * 1e-8}, proof=proof | {"lag": lag})
    assert not verdict.valid
    assert "certif" in " ".join(verdict.reasons)


def test_policies_that_were_drawn_are_listed_once_with_weights_that_sum_to_one(case):
    lag = case.document["proof"]["lag"]
    assert ("drawn" in lag) == (case.document["claim"]["theorem"] == "UD")
    if "drawn" not in lag:
        return

    shape = lag["drawn"]["shape"]
    for name, change, reason in (
        ("frequencies", lambda numbers: 1.01 * numbers, "sum to more than 1"),
        ("drawn", lambda numbers: np.tile(numbers[: shape[2]], shape[0]), "twice"),
    ):
        verdict = case.verdict(proof=case.with_lag(name, change))
        assert any(reason in each for each in verdict.reasons), verdict.reasons
    verdict = case.verdict(store=True, proof=case.with_lag("frequencies", lambda numbers: numbers[::-1].copy()))
    assert not verdict.valid


@pytest.mark.parametrize(
    ("name", "version", "missing"),
    [
        *(
            (name, *old)
            for name in ("intersection", "paths")
            for old in ((4, "caution"), (5, "steering"), (6, "spikes"))
        ),
        ("steps", 7, "portions"),
    ],
)
def test_certificates_of_older_versions_have_the_bets_of_their_time(name, version, missing):
    path = DATA / f"{name}-{version}.json"
    document = json.loads(path.read_text())
    assert document["version"] == version
    assert missing not in document["proof"]["lag"]
    found = bp.verify(path)
    assert found.valid
    assert found.theorem == {"intersection": "I", "paths": "UD", "steps": "I-E"}[name]


@pytest.mark.parametrize(
    ("name", "version"), [(name, version) for name in ("intersection", "paths") for version in (5, 6)] + [("steps", 7)]
)
def test_studies_that_older_versions_have_begun_are_finished_with_the_bets_they_began_with(tmp_path, name, version):
    store, path = tmp_path / "old.db", tmp_path / "c.json"
    shutil.copy(DATA / f"{name}-begun-{version}.db", store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharp_dense, "_LAG_RATIO", 1e9)  # no lag of this version
        mdp = EPISODIC if name == "steps" else DISCOUNTED
        result = bp.drive(bp.Study.resume(store, name, max_samples=10**6), bp.ExactSimulator(mdp))
    assert result.certified
    result.save(path)
    lag = json.loads(path.read_text())["proof"]["lag"]
    assert ("steering" in lag) == (version >= 6)
    assert not {"spikes", "portions"} & set(lag)
    verdict = bp.verify(path, model=mdp, store=store)
    assert verdict.valid, verdict.reasons


def test_turns_of_bets_are_recomputed(tmp_path, monkeypatch):
    levels = []

    class Noted(intersection.Refutation):
        def __init__(self, read):
            super().__init__(read)
            levels.append(self._level(self.start))

    case = Case(tmp_path, DISCOUNTED, 0.0)
    proof = case.document["proof"]
    monkeypatch.setattr(intersection, "Refutation", Noted)
    for steering in (0.0, proof["lag"]["steering"]):
        case.verdict(proof=proof | {"lag": proof["lag"] | {"steering": steering}})
    assert (levels[0] != levels[1]).any()  # other bets earn something else


@pytest.mark.parametrize("name", ["caution", "soonest", "above", "steering", "size_shares", "spikes", "portions"])
def test_sizes_and_turns_cannot_be_made_up_afterwards(case, name):
    proof = case.document["proof"]
    lag = proof["lag"]
    if name in ("size_shares", "spikes", "portions"):
        needed = {"spikes": case.document["claim"]["theorem"] == "UD", "portions": case.mdp is EPISODIC}
        assert (name in lag) == needed.get(name, True)
        changed = [case.with_lag(name, lambda array: array * 0.99)] if name in lag else []
        changed += [proof | {"lag": {key: value for key, value in lag.items() if key != name}}] if name in lag else []
    else:
        changed = [proof | {"lag": lag | {name: lag[name] * 0.99}}]
    for other in changed:
        verdict = case.verdict(store=True, proof=other)
        assert any("not what was decided" in reason for reason in verdict.reasons), verdict.reasons


def test_bets_on_single_states_are_none_that_could_not_be(case):
    if case.document["claim"]["theorem"] == "UD":
        for change in (lambda array: -array, lambda array: 1e9 * array):
            verdict = case.verdict(proof=case.with_lag("spikes", change))
            assert any("single states" in reason for reason in verdict.reasons), verdict.reasons


def test_portions_of_steps_are_no_more_than_there_are_steps(case):
    if case.mdp is EPISODIC:
        for change in (lambda array: 1.001 * array, lambda array: array * [1, -1, 1], lambda array: 0 * array):
            verdict = case.verdict(proof=case.with_lag("portions", change))
            assert any("portions" in reason for reason in verdict.reasons), verdict.reasons
        verdict = case.verdict(proof=case.with_lag("portions", np.ones_like))
        assert any("certify only" in reason for reason in verdict.reasons), verdict.reasons  # they count
