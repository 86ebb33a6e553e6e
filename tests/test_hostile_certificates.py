"""Certificates of strangers: a file cannot make the checker crash, starve or lie."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import unicodedata
import zlib
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.certificate import make_certificate
from bestpolicy.errors import InvalidInput, TooLarge
from bestpolicy.verification import protocol, verify, verify_text
from bestpolicy.verification.reading import VERSION, Budget, Node, digest
from tests.models import random_mdp
from tests.test_cli import assert_one_error_line, run

FILES = sorted((Path(__file__).parent / "data" / "certificates").glob("*.json"))
KEPT = {file.stem: json.loads(file.read_text()) for file in FILES}
MDP = random_mdp(1, states=4, actions=2, dimension=3, discount=0.6)


@pytest.fixture(scope="module")
def result():
    return bp.identify(bp.ExactSimulator(MDP), epsilon=0.3, delta=0.1, algorithm="tight", seed=1)


@pytest.fixture(scope="module")
def document(result):
    return make_certificate(result)


def text_of(document):
    """Return the text with a checksum that fits."""
    return json.dumps(document | {"sha256": digest(document)})


def outcome(text):
    """What becomes of a text: a verdict, or None; a foreign exception, even one that was caught, is no answer."""
    try:
        return verify_text(text)
    except InvalidInput as error:
        message = str(error)
    assert "cannot be checked" not in message
    assert message.isprintable()
    return None


@cache
def least_epsilon(name):
    """What the checker can certify of a kept certificate, which is hardly less than what the file claims."""
    document = deepcopy(KEPT[name])
    document["claim"]["epsilon"] = 0.0
    return verify_text(text_of(document)).recomputed_epsilon


def assert_harmless(name, text, what):
    """The file is refused, or it claims no more than what the one that it was made of proves, of the same policy."""
    found = outcome(text)
    if found is not None and found.valid:
        assert found.epsilon >= least_epsilon(name) * (1 - 1e-5), what
        if name != "no-choice":  # there every policy is optimal, whatever the samples say
            assert found.delta >= 0.1, what
            assert contents(json.loads(text)["claim"]["policy"]) == POLICIES[name], what


def contents(node):
    return zlib.decompress(base64.b64decode(node["data"]))


POLICIES = {name: contents(document["claim"]["policy"]) for name, document in KEPT.items()}

# --- every field, every array, every byte


def places(node, path=()):
    """Every field of a document; an array is one field, and so are its three parts."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


VALUES = (None, True, "text", -1, 0, 0.5, 1e300, 10**18, 10**400, 5e-324, [], {"a": {"b": [None]}})
LITERALS = ("NaN", "1e999", "9" * 5000, '"\\ud800\\u001b[2J"', "[" * 500 + "]" * 500)


# One of so many changes is tried: a few of each field, array and text in the quick suite, all of them in the studies.
ONE_OF = pytest.mark.parametrize("one_of", [13, pytest.param(1, marks=pytest.mark.study)], ids=["some", "all"])


@ONE_OF
@pytest.mark.parametrize("name", KEPT)
def test_no_field_can_be_bent(name, one_of):
    """Removed, or replaced by what it should not be; the checksum fits each time."""
    document, bent = deepcopy(KEPT[name]), 0
    changes = [(kind, value) for kind, values in (("value", VALUES), ("literal", LITERALS)) for value in values]
    for path in list(places(document)):
        parent, key = at(document, path[:-1]), path[-1]
        kept = parent[key]
        for kind, value in [*changes, ("removed", None)]:
            bent += 1
            if bent % one_of or (kind == "removed" and not isinstance(parent, dict)):
                continue
            parent[key] = value if kind == "value" else "HERE"
            if kind == "removed":
                del parent[key]
            text = text_of(document)
            text = text.replace('"HERE"', value) if kind == "literal" else text
            assert_harmless(name, text, (path, kind, str(value)[:20]))
            parent[key] = kept
    assert bent > 60 * len(changes)
    assert verify_text(text_of(document)).valid  # all is as it was


@ONE_OF
@pytest.mark.parametrize("name", KEPT)
def test_no_array_can_be_bent(name, one_of):
    document, bent = deepcopy(KEPT[name]), 0
    arrays = [
        path for path in places(document) if isinstance(at(document, path), dict) and "dtype" in at(document, path)
    ]
    assert arrays
    for path in arrays:
        node = at(document, path)
        kept, values = dict(node), np.frombuffer(contents(node), node["dtype"]).reshape(node["shape"])
        for change in bent_arrays(values):
            bent += 1
            if bent % one_of:
                continue
            own = np.ascontiguousarray(change)
            packed = base64.b64encode(zlib.compress(own.tobytes())).decode()
            node.update(dtype=own.dtype.str, shape=list(own.shape), data=packed)
            assert_harmless(name, text_of(document), (path, change))
        node.update(kept)
    assert verify_text(text_of(document)).valid


def bent_arrays(values):
    """Other types, shapes and numbers."""
    yield from (values.astype(dtype) for dtype in ("<f8", "<i8", "|b1", "<f4", ">f8", "<c16"))
    yield from (values[:0], values[..., None], values.reshape(-1), np.concatenate([values, values]), values[::-1])
    for number in (np.nan, np.inf, -np.inf, 1e300, -1e300, 5e-324, 0, -1, 1, 2**62, -(2**62)):
        for where in (slice(None), slice(0, 1)):
            with np.errstate(all="ignore"):
                changed = values.astype(np.float64)
                changed.reshape(-1)[where] = number
                yield changed.astype(values.dtype) if values.dtype.kind != "i" or abs(number) < 2**63 else changed
    if values.dtype.kind == "i":
        for number in (np.iinfo(np.int64).max, np.iinfo(np.int64).min):
            yield np.full_like(values, number)


def test_indices_that_increase_only_by_overflow():
    for path, words in (("pairs", "'pairs' is not a list"), ("cells", "cells of the counts")):
        document = deepcopy(KEPT["lag-T"])
        node = document["proof"]["samples"][path]
        values = np.frombuffer(contents(node), "<i8").copy()
        values[1:3] = np.iinfo(np.int64).max, -2
        assert (np.diff(values) > 0).all()
        node["data"] = base64.b64encode(zlib.compress(values.tobytes())).decode()
        assert words in str(outcome(text_of(document)))


@ONE_OF
@pytest.mark.parametrize("name", KEPT)
def test_no_byte_can_be_bent(name, one_of):
    text, rng = json.dumps(KEPT[name], indent=1).encode(), np.random.default_rng(0)
    for _ in range(150 // one_of):
        changed = bytearray(text)
        for place in rng.integers(len(text), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        assert_harmless(name, changed.decode("utf-8", "replace"), "bytes")
        cut = np.sort(rng.integers(len(text), size=2))
        assert_harmless(name, (text[: cut[0]] + text[cut[1] :]).decode(), "cut")


@pytest.mark.parametrize("name", KEPT)
def test_a_smaller_epsilon_is_never_accepted(name):
    document, least = deepcopy(KEPT[name]), least_epsilon(name)
    assert KEPT[name]["claim"]["epsilon"] * (1 + 1e-6) >= least >= 0.9 * KEPT[name]["claim"]["epsilon"]
    for epsilon in (least / 2, least * (1 - 1e-4), 1e-300, 0.0):
        document["claim"]["epsilon"] = epsilon
        assert verify_text(text_of(document)).valid == (epsilon >= least), epsilon


# --- budgets


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on memory")
def test_hostile_files_stay_within_their_budget():
    """In a process that has 2 GB: none of them gets a MemoryError, is killed, or takes for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(bp.__file__).parent.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    answers = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}
    assert len(answers) > 60
    harmless = {"run__seed of 400 digits", "no-choice of 10000 stages", "no-choice of 1000000 stages"}
    assert {name for name, (verdict, *_) in answers.items() if verdict == "VALID"} == harmless
    for name, (_, what) in answers.items():
        assert "cannot be checked" not in what, name
        assert ("more memory than there is" in what) == (name == "more than the computer has"), name
    for name in ("bomb [20000000, 2, 1]", "20000² counts", "tight-e of 1000000 stages", "10^7 lists"):
        assert "GB of memory, and 1 is the limit" in answers[name][1]


def test_the_limit_can_be_chosen(tmp_path):
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(KEPT["tight"]))
    assert verify(file, limit_gb=0.01).valid
    with pytest.raises(TooLarge, match=r"limit_gb must be larger.*GB of memory"):
        verify(file, limit_gb=1e-5)
    assert_one_error_line(run("verify", file, "--limit-gb", 1e-5), "--limit-gb must be larger")
    assert run("verify", file, "--limit-gb", 5).returncode == 0
    for wrong in (0, -1, float("nan"), "1", None, True):
        with pytest.raises(InvalidInput, match="limit_gb must be a positive number"):
            verify(file, limit_gb=wrong)


def test_work_is_limited_as_memory_is():
    budget = Budget(2.0)
    budget.work(1.9e11, "this")
    with pytest.raises(InvalidInput, match=r"that would take it to 2\.1 minutes of work, and 2 is the limit"):
        budget.work(0.2e11, "that")
    for name in KEPT:
        if name != "no-choice":
            with (
                mock.patch("bestpolicy.verification.reading._STEPS_PER_GB", 1e4),
                pytest.raises(InvalidInput, match="minutes of work"),
            ):
                verify_text(json.dumps(KEPT[name]))


# --- what is no certificate


def test_whatever_is_given_the_answer_is_one_exception(tmp_path):
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe")
    np.savez(tmp_path / "model.npz", a=np.zeros(3))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("Dear reader,\n")
    (tmp_path / "locked").write_text("{}")
    paths = [tmp_path / name for name in ("folder.json", "pipe", "model.npz", "picture.png", "empty", "text", "none")]
    for wrong in (None, 3, 1.5, [], {}, object(), b"none", "", "a\0b", "\ud800", "x" * 10**5, *paths):
        with pytest.raises(InvalidInput) as caught:
            verify(wrong)
        assert "cannot be checked" not in str(caught.value)
        assert str(caught.value).isprintable()
    for wrong in (None, 3, b"{}", ["{}"]):
        with pytest.raises(InvalidInput, match="must be a str"):
            verify_text(wrong)
    for path in paths:
        assert_one_error_line(run("verify", path))
    with mock.patch("builtins.open", side_effect=PermissionError(13, "Permission denied")), pytest.raises(InvalidInput):
        verify(tmp_path / "locked")


def test_a_model_that_is_none(document):
    for wrong in (3, "two-state", MDP.problem):
        with pytest.raises(InvalidInput, match="model must be a LinearMDP"):
            verify_text(json.dumps(document), wrong)


def test_what_nobody_foresaw_is_one_exception_too(document):
    for error, words in ((KeyError("x"), "cannot be checked"), (MemoryError(), "more memory than there is")):
        with (
            mock.patch("bestpolicy.verification._certified", side_effect=error),
            pytest.raises(InvalidInput, match=words),
        ):
            verify_text(json.dumps(document))


# --- versions


def test_all_versions_up_to_the_current_one_are_read():
    assert {document["version"] for document in KEPT.values()} <= set(range(1, VERSION + 1))
    for version in (0, VERSION + 1, -1, 1.0, True, "1", None):
        with pytest.raises(InvalidInput, match=f"versions 1 to {VERSION}"):
            verify_text(text_of(KEPT["tight"] | {"version": version}))


def test_older_files_keep_the_shares_of_their_version(document):
    """A theorem that a later version adds takes from the others, but not in files that were written before."""
    later = {"T": 0.4, "P": 0.3, "F": 0.1, "N": 0.2}
    lagged = {name: document for name, document in KEPT.items() if name.startswith("lag")}
    assert {document["claim"]["theorem"] for document in lagged.values()} == set("TPF")
    with mock.patch.dict(protocol.SHARES, {VERSION: later}), mock.patch.dict(protocol.THEOREMS, N=None):
        assert protocol.shares_of(VERSION) == later
        for name, kept in lagged.items():
            found = verify_text(json.dumps(kept))
            assert found.valid, name
            assert any("shares of format version 1" in item for item in found.trusted)
        with (
            mock.patch("bestpolicy.verification.THEOREMS", ("N",)),
            pytest.raises(InvalidInput, match="has no theorem 'N'"),
        ):
            verify_text(text_of(KEPT["lag-T"] | {"claim": KEPT["lag-T"]["claim"] | {"theorem": "N"}}))


def test_a_field_that_is_absent_is_not_there():
    node = Node({"null": None, "no": False}, "a node")
    assert [node.has(key) for key in ("null", "no", "absent")] == [False, True, False]


# --- contradictions

CONTRADICTIONS = {
    "rounds": {"run.rounds": 1},
    "algorithm": {"run.algorithm": "gss"},
    "asked_was_certified": {"claim.asked_was_certified": False},
    "rule": {"claim.rule": "Theorem T (A)"},
    "lag_share": {"run.parameters.lag_share": 0.2},
    "value_span": {"run.parameters.value_span": 0.5},
    "labels: states": {"problem.labels": {"states": ["one"]}},
    "labels: actions": {"problem.labels": {"actions": ["go", "stop", "stay"]}},
    "labels: own_states": {"problem.labels": {"own_states": 5}},
    "labels: reward_scale": {"problem.labels": {"reward_scale": 2.0}},
    "labels: reward_offset": {"problem.labels": {"reward_offset": 1.0}},
    "assumptions": {
        "assumptions": [{"assumption": "samples are independent given the sampled pairs", "checked": True}]
    },
}


@pytest.mark.parametrize("field", CONTRADICTIONS)
def test_contradictions_are_refused_by_name(document, field):
    changed = deepcopy(document)
    for path, value in CONTRADICTIONS[field].items():
        *parents, key = path.split(".")
        at(changed, parents)[key] = value
    found = verify_text(text_of(changed))
    assert found.reasons == [f"the field {field!r} contradicts what was found"]


def test_more_contradictions(document):
    changed = deepcopy(document)
    changed["claim"]["asked_epsilon"] = 0.2  # then 0.265 does not reach it
    assert "asked_was_certified" in str(verify_text(text_of(changed)))
    changed["claim"]["asked_was_certified"] = False
    assert verify_text(text_of(changed)).missed_epsilon == 0.2
    episodic = json.loads(json.dumps(KEPT["tight-e"] | {"version": VERSION}))
    assert verify_text(text_of(episodic)).valid
    episodic["claim"]["rule"] = "Theorem T (A)"
    assert "'rule'" in str(verify_text(text_of(episodic)))
    paper = deepcopy(KEPT["gss"])
    paper["run"]["algorithm"] = "gss-e"
    assert "'algorithm'" in str(verify_text(text_of(paper)))


def test_every_field_has_a_place(document):
    """What is written and not known to the checker is refused, wherever it is."""
    for path in [(), *places(document)]:
        changed = deepcopy(document)
        node = at(changed, path)
        if (
            isinstance(node, dict)
            and path[-2:] != ("run", "parameters")
            and path[-1:] not in (("parameters",), ("versions",))
        ):
            node["approved"] = True
            with pytest.raises(InvalidInput, match="unknown field 'approved'"):
                verify_text(text_of(changed))


def test_names_are_taken_on_trust_and_have_to_fit(result):
    units = bp.Units(states=["a", "b", "c", "d"], actions=["left", "right"], environment="Lake")
    for states, listed in ((units.states, True), (["a", "b"], False)):
        named = replace(result.origin.settings, units=replace(units, states=states, actions=states and units.actions))
        written = make_certificate(replace(result, origin=replace(result.origin, settings=named)))
        assert ("states" in written["problem"]["labels"]) == listed  # names that do not fit are not written
        found = verify_text(json.dumps(written))
        assert found.valid
        assert any("names of states and actions" in item for item in found.trusted)
    assert not any("names of states" in item for item in verify_text(json.dumps(make_certificate(result))).trusted)


# --- the chain of hashes


def test_the_head_of_the_chain_is_written_and_read(result):
    chain = {"root": "0" * 64, "head": "ab" * 32, "rows": 7}
    assert verify_text(json.dumps(make_certificate(result))).chain is None
    written = make_certificate(replace(result, origin=replace(result.origin, chain=chain)))
    found = verify_text(json.dumps(written))
    assert found.valid
    assert found.chain == chain == found.to_dict()["chain"]
    assert any("the study's file (--store) can show" in item for item in found.trusted)
    for key, value in (
        ("root", "0" * 63),
        ("head", "G" * 64),
        ("head", "A" * 64),
        ("rows", 0),
        ("rows", "7"),
        ("more", 1),
    ):
        changed = deepcopy(written)
        changed["run"]["chain"][key] = value
        with pytest.raises(InvalidInput, match="chain"):
            verify_text(text_of(changed))


# --- terminals

NASTY = "\x1b[2J\x1b[Hvalid: \x07\r\n\x9b31m\u202e\u2066\ud800[bold red]optimal[/]\x00"


def test_nothing_in_a_file_commands_the_terminal(document, tmp_path):
    """A certificate could clear the screen and print a verdict of its own."""
    file, changed = tmp_path / "certificate.json", deepcopy(document)
    changed["run"] |= {"warnings": [NASTY], "algorithm": NASTY, "versions": {NASTY: NASTY}}
    changed["problem"]["labels"] = {"states": [NASTY] * 4, "environment": NASTY}
    for damage in ({}, {"theorem": NASTY}, {"epsilon": NASTY}, {"rule": NASTY}, {NASTY: 1}):
        own = deepcopy(changed)
        own["claim"] |= damage
        file.write_text(text_of(own))
        done = run("verify", file)
        printed = done.stdout + done.stderr
        assert {unicodedata.category(char) for char in printed.replace("\n", "")} <= {
            *("Lu", "Ll", "Lo", "Nd", "Zs", "Sm", "So", "Sc", "Sk"),
            *("Po", "Ps", "Pe", "Pd", "Pc", "Pi", "Pf"),
        }
        assert all(
            line.startswith(("valid: ", "NOT valid: ", "  taken on trust: ", "Error: "))
            for line in printed.splitlines()
        )
        assert done.returncode == (0 if not damage else 1 if "rule" in damage else 2)
    file.write_text(text_of(changed))
    assert json.loads(run("verify", file, "--json").stdout)["valid"]
    assert str(verify(file)).isprintable()
