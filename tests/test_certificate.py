"""Certificates: what is saved can be checked by others, and nothing else passes."""

from __future__ import annotations

import ast
import base64
import json
import zlib
from copy import deepcopy
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import Adaptive, Tight
from bestpolicy.algorithms.tight import whitened_problem
from bestpolicy.certificate import make_certificate
from bestpolicy.errors import BestPolicyError, InvalidInput
from bestpolicy.stopping import lags
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.lags import LAG_SHARES
from bestpolicy.stopping.lemmas.deviations import SHARES
from bestpolicy.stopping.tight import Split
from bestpolicy.verification import protocol, verify, verify_text
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import VERSION, Rejected, digest
from tests.models import first_test, near_tie, random_mdp
from tests.test_cli import assert_one_error_line, run

DISCOUNTED = random_mdp(1, states=4, actions=2, dimension=3, discount=0.6)
EPISODIC = random_mdp(1, states=4, actions=2, dimension=3, horizon=3)
OLD = Path(__file__).parent / "data" / "certificates"
MASKED = random_mdp(5, states=5, actions=3, dimension=4, discount=0.7, masked=True)


def identified(mdp, algorithm, epsilon=0.3, **settings):
    return bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, algorithm=algorithm, seed=1, **settings)


@pytest.fixture(scope="module")
def documents():
    """One certificate of each kind."""
    runs = {
        "gss": identified(DISCOUNTED, "gss"),
        "gss-e": identified(EPISODIC, "gss"),
        "tight": identified(DISCOUNTED, "tight"),
        "optimal": identified(DISCOUNTED, "tight", 0.0),
        "weighted": identified(near_tie(0.01), Adaptive(check_ratio=1.5), 0.0),
    }
    return {name: make_certificate(result) for name, result in runs.items()}


def array(node):
    return np.frombuffer(zlib.decompress(base64.b64decode(node["data"])), node["dtype"]).reshape(node["shape"]).copy()


def stored(values, node):
    node["data"] = base64.b64encode(zlib.compress(np.ascontiguousarray(values, node["dtype"]).tobytes())).decode()


def verdict_on(document, model=None, *, mend=True):
    """Check a document, with a checksum that fits again if it is to be mended."""
    if mend:
        document = document | {"sha256": digest(document)}
    return verify_text(json.dumps(document), model)


def label(algorithm):
    return getattr(algorithm, "name", algorithm)


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 0.0])
@pytest.mark.parametrize("algorithm", ["gss", Tight(check_ratio=1.3), Adaptive(check_ratio=1.3)], ids=label)
@pytest.mark.parametrize("mdp", [DISCOUNTED, EPISODIC, MASKED], ids=["discounted", "episodic", "masked"])
def test_what_is_saved_can_be_checked(mdp, algorithm, epsilon, tmp_path):
    result = identified(mdp, algorithm, epsilon)
    result.save(tmp_path / "certificate.json")
    found = verify(tmp_path / "certificate.json", mdp)
    assert found.valid, found.reasons
    assert (found.epsilon, found.delta, found.samples, found.attempts) == (result.epsilon, 0.1, result.samples, 1)
    assert found.recomputed_epsilon <= result.epsilon * (1 + 1e-6) + 1e-9
    assert found.true_loss == pytest.approx(mdp.loss(result.policy), abs=1e-9)
    assert f"Theorem {found.theorem}" in result.rule
    assert "taken" not in str(found)
    assert found.trusted


def test_every_certified_epsilon_of_a_run_is_reproduced():
    """An audit: the checker certifies by itself what the rules certify, at every look and not only at the end."""
    for mdp, algorithm in ((EPISODIC, Tight(check_ratio=1.5)), (MASKED, Adaptive(check_ratio=1.5))):
        study = bp.Study(mdp.problem, epsilon=0.01, delta=0.2, algorithm=algorithm, seed=3, max_samples=30_000)
        simulator, last, looks = bp.ExactSimulator(mdp), inf, 0
        while not study.done:
            for query in study.ask():
                study.tell(query, simulator.sample(query.pulls, query.rng()))
            result = study.result()
            if result.epsilon < last:
                last, looks = result.epsilon, looks + 1
                assert verdict_on(make_certificate(result), mdp, mend=False).valid
        assert looks > 3


def test_all_theorems_of_a_lag_are_reproduced(monkeypatch):
    """Theorems T, P and F on the samples since a lag, also where another one certified more."""
    seen = []

    def spy(self, look=lags.Schedule.look):
        statements = look(self)
        seen.extend((verdict, proof) for verdict, proof in statements if verdict.epsilon < inf and proof.past.number)
        return statements

    monkeypatch.setattr(lags.Schedule, "look", spy)
    mdp = bp.instances.ball(states=40, actions=3, dimension=4, seed=0, discount=0.8)
    result = identified(mdp, Tight(check_ratio=1.5), 0.0)
    assert {proof.theorem for _, proof in seen} == {"T", "P", "F"}
    for verdict, proof in seen[:: max(1, len(seen) // 12)]:
        check = replace(result.checks[-1], policy=verdict.policy, epsilon=verdict.epsilon, proof=proof)
        found = verdict_on(make_certificate(replace(result, epsilon=verdict.epsilon, checks=(check,))))
        assert found.valid, (proof.theorem, found.reasons)
        assert any(f"lag {proof.past.number}" in item for item in found.trusted)


def test_the_format_fixes_the_shares_that_the_rules_use():
    np.testing.assert_allclose(protocol.main_shares(), SHARES, rtol=1e-12)
    np.testing.assert_array_equal(protocol.LAG_SHARES, LAG_SHARES)
    assert {letter: part for letter, (_, part) in lags.RULES.items()} == protocol.shares_of(VERSION)
    for version in range(1, VERSION + 1):
        assert protocol.shares_of(version).keys() <= protocol.THEOREMS.keys()
        assert sum(protocol.shares_of(version).values()) == pytest.approx(1.0)
    split = Split()
    assert (split.sub_gaussian, split.bernstein, split.variance, split.kernel) == protocol.NEAR_OPTIMAL


def test_the_users_word_on_the_span_is_recorded():
    result = identified(DISCOUNTED, Tight(value_span=float(np.ptp(DISCOUNTED.values))), 0.0)
    document = make_certificate(result)
    found = verdict_on(document)
    assert found.valid
    assert any("user's word" in item for item in found.trusted)
    assert any("differ by at most" in item["assumption"] and not item["checked"] for item in document["assumptions"])


def test_anytime_certificates_and_their_absence(tmp_path):
    partial = identified(DISCOUNTED, "tight", 0.0, max_samples=700)
    assert not partial.certified
    assert partial.epsilon < inf
    partial.save(tmp_path / "anytime.json")
    assert verify(tmp_path / "anytime.json").epsilon == partial.epsilon
    for nothing in (
        identified(DISCOUNTED, "gss", max_samples=1000),
        bp.Study(DISCOUNTED.problem, epsilon=0.1, delta=0.1, algorithm="gss").result(),
    ):
        with pytest.raises(InvalidInput, match=r"nothing is certified yet.*larger"):
            nothing.save(tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_nothing_to_choose():
    problem = bp.Problem(np.repeat(np.eye(2)[:, None], 2, axis=1), discount=0.5)
    result = bp.Study(problem, epsilon=0.0, delta=0.1, algorithm="gss").result()
    found = verdict_on(make_certificate(result))
    assert found.valid
    assert "no state has two distinct actions" in str(found)
    document = make_certificate(identified(DISCOUNTED, "tight", 0.0))
    document["claim"]["theorem"] = "no choice"
    assert "two distinct actions" in str(verdict_on(document))


def test_other_units_of_reward():
    units = bp.Units(reward_scale=10.0)
    study = bp.Study(DISCOUNTED.problem, epsilon=3.0, delta=0.1, algorithm="tight", seed=1, units=units)
    result = bp.drive(study, bp.ExactSimulator(DISCOUNTED))
    found = verdict_on(make_certificate(result), DISCOUNTED)
    assert found.valid
    assert 1.0 < found.epsilon <= 3.0


def test_samples_from_elsewhere_and_warnings_are_told():
    simulator = bp.ExactSimulator(DISCOUNTED)
    pulls = bp.Pulls(DISCOUNTED.problem.pairs, np.full((1, 8), 100_000))
    own = simulator.sample(pulls, np.random.default_rng(0))
    study = bp.Study(DISCOUNTED.problem, epsilon=0.3, delta=0.1, algorithm="gss", seed=1, own_data=own)
    result = replace(bp.drive(study, simulator), warnings=("the data are not linear",))
    found = verdict_on(make_certificate(result))
    assert found.valid
    assert found.samples < identified(DISCOUNTED, "gss").samples
    assert any("800,000 samples came from elsewhere" in item for item in found.trusted)
    assert "IN DOUBT: the data are not linear" in str(found)


def test_a_proof_that_does_not_hold_is_not_written(tmp_path):
    result = identified(DISCOUNTED, "tight")
    with pytest.raises(BestPolicyError, match=r"own check.*certify only"):
        replace(result, epsilon=result.epsilon / 2).save(tmp_path / "wrong.json")
    assert not (tmp_path / "wrong.json").exists()


def test_only_the_last_check_keeps_its_proof():
    result = identified(DISCOUNTED, "tight", 0.0)
    assert [check.proof is not None for check in result.checks] == [False] * (len(result.checks) - 1) + [True]
    assert "proof" not in result.checks[-1].to_dict()


# --- attempts --------------------------------------------------------------------------------------------------------


def test_the_file_says_how_often_it_was_tried(tmp_path):
    store = tmp_path / "runs.db"
    for name in ("first", "second"):
        identified(DISCOUNTED, "tight", store=store, name=name)
    identified(EPISODIC, "tight", store=store, name="another problem")
    result = identified(DISCOUNTED, "tight", store=store, name="third")
    result.save(tmp_path / "certificate.json")
    found = verify(tmp_path / "certificate.json")
    assert found.attempts == 3
    assert "on record: 3" in str(found)
    resumed = bp.Study.resume(store, "first")
    assert make_certificate(resumed.result())["run"]["attempts"] == 3
    resumed.close()


# --- tampering -------------------------------------------------------------------------------------------------------


def leaves(node, path=()):
    """Every number and every array of a document."""
    if isinstance(node, dict) and set(node) == {"dtype", "shape", "data"}:
        yield path
    elif isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
    elif isinstance(node, int | float):
        yield path


@pytest.mark.parametrize("kind", ["gss-e", "optimal", "weighted"])
def test_any_change_of_a_number_is_noticed(documents, kind):
    paths = list(leaves(documents[kind]))
    assert len(paths) > 15
    for path in paths:
        document = deepcopy(documents[kind])
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if isinstance(parent[path[-1]], dict):
            values = array(parent[path[-1]])
            last = values.reshape(-1)[-1]
            values.reshape(-1)[-1] = ~last if values.dtype == bool else np.nextafter(last, 9) if last % 1 else last + 1
            stored(values, parent[path[-1]])
        else:
            parent[path[-1]] = not parent[path[-1]] if parent[path[-1]] in (True, False) else parent[path[-1]] + 1
        try:
            found = verdict_on(document, mend=False)
        except InvalidInput:
            continue
        assert not found.valid, path
        assert "checksum" in str(found)


def claim(**values):
    return lambda document: document["claim"].update(values)


def entry(path, change):
    """Change an array inside the document."""

    def apply(document):
        node = document
        for key in path.split("."):
            node = node[key]
        values = array(node)
        stored(change(values), node)

    return apply


def other_policy(document):
    node = document["claim"]["policy"]
    policy = array(node)
    policy.reshape(-1)[0] = 1 - policy.reshape(-1)[0]
    stored(policy, node)


def set_first(value):
    def change(values):
        values.reshape(-1)[0] = value
        return values

    return change


HARMFUL = {
    "smaller epsilon": (claim(epsilon=0.1), "certify"),
    "smaller delta": (claim(delta=1e-30), "at δ = 1e-30|does not follow from δ"),
    "another policy": (other_policy, "policy"),
    "no delta": (claim(delta=0.0), "strictly between"),
    "negative count": (entry("proof.samples.counts", set_first(-5)), "not positive"),
    "reward sum above its count": (entry("proof.samples.rewards", lambda r: r + 10**9), "sum of rewards exceeds"),
    "negative rewards": (entry("proof.samples.rewards", lambda r: r - 10**9), "negative"),
    "squares above the sums": (entry("proof.samples.squares", lambda r: r * 3), "squared rewards exceeds"),
    "squares too small": (entry("proof.samples.squares", lambda r: r * 0), "squared rewards is smaller"),
    "more samples than the run had": (entry("proof.samples.counts", lambda n: n * 7), "the run had"),
    "pairs in disorder": (entry("proof.samples.pairs", lambda pairs: pairs[::-1]), "strictly increasing"),
    "features": (entry("problem.features", set_first(0.123)), "fingerprint"),
    "design": (entry("proof.design_weights", set_first(0.9)), "sum to 1"),
    "fewer samples": (entry("proof.samples.counts", lambda n: np.maximum(n // 9, 1)), "rewards exceeds"),
}


@pytest.mark.parametrize("change", HARMFUL)
@pytest.mark.parametrize("kind", ["gss", "gss-e", "tight"])
def test_harmful_changes_are_rejected_though_the_checksum_fits(documents, kind, change):
    document = deepcopy(documents[kind])
    assert verdict_on(document).valid
    apply, words = HARMFUL[change]
    apply(document)
    found = verdict_on(document)
    assert not found.valid
    assert any(word in str(found) for word in words.split("|")), found
    assert str(found).startswith("NOT valid: ")


PRIVATE = {
    "prior": (entry("proof.prior.base", lambda base: base * 0.5), "does not follow from δ"),
    "prior entry": (entry("proof.prior.base", set_first(1e-3)), "follow"),
    "indefinite prior": (entry("proof.prior.base", lambda base: -base), "not positive definite"),
    "capacity": (lambda document: document["proof"]["prior"].update(capacity=1.0), "capacity"),
    "shares": (entry("proof.prior.shares", lambda q: q[::-1]), "shares"),
    "shares above 1": (entry("proof.prior.shares", lambda q: q * 2), "sum at most 1"),
    "theorem": (claim(theorem="P"), "needs a lag"),
    "all of delta": (lambda document: document["proof"].update(lag_share=0.9), "does not follow"),
}


@pytest.mark.parametrize("change", PRIVATE)
def test_what_had_to_be_fixed_beforehand_cannot_be_chosen_afterwards(documents, change):
    document = deepcopy(documents["optimal"])
    apply, words = PRIVATE[change]
    apply(document)
    assert words in str(verdict_on(document))


def test_weights_have_to_fit_to_the_counts(documents):
    assert documents["weighted"]["proof"]["samples"]["weighted"] is not None
    for field in ("weights", "weights_squared", "rewards", "counts"):
        for factor in (3.0, -1.0):
            document = deepcopy(documents["weighted"])
            entry(f"proof.samples.weighted.{field}", lambda values, factor=factor: values * factor)(document)
            assert "do not fit together" in str(verdict_on(document))


def test_coordinates_that_break_the_norms_are_rejected(documents):
    for factor, words in ((2.0, "squared length"), (0.5, "norms")):
        document = deepcopy(documents["gss"])
        entry("proof.transform", lambda values, factor=factor: values * factor)(document)
        assert words in str(verdict_on(document))


# --- what no file can show -------------------------------------------------------------------------------------------

DESIGN, PAIRS, SHARE, WEIGHTS = ("the design", "the list of", "lag_share", "the weights of the samples")


def on_trust(document, words):
    """Whether an item is taken on trust, according to the checker and to the file itself."""
    listed = any(words in item for item in verdict_on(document).trusted)
    stated = any(words in item["assumption"] and not item["checked"] for item in document["assumptions"])
    assert listed == stated
    return listed


@pytest.mark.parametrize("kind", ["gss", "tight", "optimal", "weighted"])
def test_what_was_to_be_fixed_before_the_samples_is_listed(documents, kind):
    document = documents[kind]
    assert on_trust(document, DESIGN)
    assert on_trust(document, PAIRS) == on_trust(document, SHARE) == (kind != "gss")
    assert on_trust(document, WEIGHTS) == (kind == "weighted")


def test_weights_in_hindsight_make_a_false_file_that_is_valid_on_trust_alone():
    """Samples of the worse action that paid nothing count a little less, once that is known."""
    mdp = near_tie(0.02)
    result, problem = identified(mdp, "tight", 0.0), mdp.problem
    pulls = bp.Pulls(problem.pairs, np.full((1, 4), 100_000))
    tally = bp.ExactSimulator(mdp).sample(pulls, np.random.default_rng(0))
    design = bp.design.g_optimal_design(problem.pair_features)
    rule = first_test(
        whitened_problem(problem, design), np.arange(4), design.weights, 0.0, 0.1 * (1 - Tight().lag_share)
    )
    paid, unpaid = tally.next_rewards, tally.next_counts - tally.next_rewards
    for discount, complaint in ((1.3, ""), (20.0, "squared weights exceed")):
        factors = np.where(np.arange(4) == 0, 1 / discount, 1.0)[None, :, None]
        evidence = Evidence(
            tally,
            (paid + factors * unpaid).sum(axis=2),
            (paid + factors**2 * unpaid).sum(axis=2),
            tally.reward_sums,
            paid + factors * unpaid,
        )
        verdict = rule.look(evidence)
        assert verdict.epsilon == 0.0
        assert mdp.loss(verdict.policy[0]) > 0.01
        check = replace(result.checks[-1], policy=verdict.policy, epsilon=0.0, proof=rule.proof(evidence))
        document = make_certificate(replace(result, samples=400_000, rounds=400_000, checks=(check,)))
        found = verdict_on(document)
        assert found.valid == (not complaint)
        assert complaint in str(found)
        assert complaint or on_trust(document, WEIGHTS)
        assert not verdict_on(document, mdp).valid


def test_weights_have_to_be_between_a_sixteenth_and_one(documents):
    document = deepcopy(documents["weighted"])
    counts = array(document["proof"]["samples"]["counts"]).sum()
    weights = array(document["proof"]["samples"]["weighted"]["weights"])
    assert weights.sum() < counts
    entry("proof.samples.weighted.weights_squared", lambda values: weights)(document)
    assert "squared weights exceed" in str(verdict_on(document))


def rebuilt_prior(document, design_weights=None, lag_share=None):
    """Change the design or lag_share, and the prior so that it follows from them again."""
    proof = document["proof"]
    if design_weights is not None:
        stored(design_weights, proof["design_weights"])
    if lag_share is not None:
        proof["lag_share"] = document["run"]["parameters"]["lag_share"] = lag_share
    features = array(document["problem"]["features"])
    rows = features.reshape(-1, features.shape[2])[array(proof["design_pairs"])] @ array(proof["transform"])
    information = (rows.T * array(proof["design_weights"])) @ rows
    dimension = features.shape[2]
    delta = document["claim"]["delta"] * (1 - proof["lag_share"])
    grid = np.geomspace(0.02, 5.0, 200)
    logs = 2 * np.log(2 / (protocol.main_shares()[0] * delta))
    ratio = grid[((1 + grid) * (logs + dimension * np.log1p(1 / grid))).argmin()]
    stored(ratio * 0.1 * dimension * information[None], proof["prior"]["base"])
    proof["prior"]["capacity"] = float(dimension * np.log(1 + 2 / ratio))
    return document


def test_a_design_in_hindsight_is_rejected_or_on_trust(documents):
    document = deepcopy(documents["weighted"])  # one-hot features: the weights are the inverse leverages
    assert verdict_on(rebuilt_prior(document)).valid
    document = rebuilt_prior(document, [0.27, 0.23, 0.25, 0.25])
    assert verdict_on(document).valid
    assert on_trust(document, DESIGN)
    document = rebuilt_prior(document, [0.4, 0.2, 0.2, 0.2])
    assert "far from G-optimal: worst leverage 5" in str(verdict_on(document))


def test_a_share_for_lags_in_hindsight_is_rejected_or_on_trust(documents):
    for share, complaint in ((0.0, ""), (0.2, ""), (1.0, "lag_share"), (-0.5, "lag_share"), (7.0, "lag_share")):
        document = deepcopy(documents["optimal"])
        if complaint:
            document["proof"]["lag_share"] = share
        else:
            document = rebuilt_prior(document, lag_share=share)
        found = verdict_on(document)
        assert found.valid == (not complaint), found
        assert f"{complaint} must be at least 0 and below 1" in str(found) or on_trust(document, SHARE)


def test_a_list_of_pairs_in_hindsight_is_rejected_or_on_trust(documents):
    for more, valid in ((0, True), (1, False), (5, True)):  # those of the design, one more, all
        document = deepcopy(documents["optimal"])
        samples = document["proof"]["samples"]
        pairs, cells, squares = (array(samples[key]) for key in ("pairs", "cells", "squares"))
        others = np.setdiff1d(np.arange(8), pairs)[:more]
        every = np.union1d(pairs, others)
        position = np.searchsorted(every, pairs)
        stored(position[cells // 4] * 4 + cells % 4, samples["cells"])
        wide = np.zeros((1, len(every)))
        wide[:, position] = squares
        samples["squares"]["shape"] = list(wide.shape)
        samples["pairs"]["shape"] = [len(every)]
        stored(wide, samples["squares"])
        stored(every, samples["pairs"])
        found = verdict_on(document)
        assert found.valid == valid, found
        assert on_trust(document, PAIRS) if valid else "neither those of the design nor all" in str(found)
        document["run"]["own_data"] = 10  # then other pairs may have been sampled
        assert verdict_on(document).valid


def test_lags_have_to_lie_apart():
    document = json.loads((OLD / "lag-P.json").read_text())
    lag = document["proof"]["lag"]
    assert verdict_on(document).valid
    lag["number"], lag["started"] = 9, 200
    assert "lag 9 cannot have started after 200 samples" in str(verdict_on(document))


@pytest.mark.parametrize("file", sorted(path.name for path in OLD.glob("*.json")))
def test_certificates_of_earlier_programs_are_still_valid(file):
    """Written before weights, designs and shares were listed, and with a fixed margin against rounding."""
    found = verify(OLD / file)
    assert found.valid, found.reasons
    if found.theorem[0] in "TPF":
        assert all(any(words in item for item in found.trusted) for words in (DESIGN, PAIRS, SHARE))
    assert any(WEIGHTS in item for item in found.trusted) == (file == "weighted.json")


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        '{"format": "something else"}',
        '{"format": "bestpolicy certificate", "version": 99}',
        '{"format": "bestpolicy certificate", "version": 1}',
        "[" * 100_000,
        '{"format": NaN}',
        "\x00\x01",
    ],
)
def test_foreign_files_give_clear_errors(text, tmp_path):
    (tmp_path / "foreign.json").write_text(text)
    assert_one_error_line(run("verify", tmp_path / "foreign.json"), "certificate")


def test_malformed_certificates_give_clear_errors(documents):
    text = json.dumps(documents["tight"])
    for cut in range(0, len(text) - 1, len(text) // 25):
        with pytest.raises(InvalidInput):
            verify_text(text[:cut])
    changes = {
        "limit_gb must be larger": lambda d: d["problem"]["features"].update(shape=[2**30, 2**30, 3]),
        "bytes or more": lambda d: d["problem"]["features"].update(shape=[400, 2, 3]),
        "dtype": lambda d: d["problem"]["features"].update(dtype="|O"),
        "base64": lambda d: d["problem"]["features"].update(data="*" * 64),
        "zlib": lambda d: d["problem"]["features"].update(data="AAAA"),
        "finite": lambda d: entry("problem.features", lambda f: f * np.nan)(d),
        "lacks the field": lambda d: d["proof"].pop("prior"),
        "finite number": lambda d: d["claim"].update(epsilon="0.1"),
        "a number from": lambda d: d["claim"].update(epsilon=-1),
        "whole number": lambda d: d["run"].update(samples=1.5),
        "unknown theorem": lambda d: d["claim"].update(theorem="Z"),
        "an object": lambda d: d.update(proof=3),
        "either a discount or a horizon": lambda d: d["problem"].update(horizon=3),
        "policy|shape|fingerprint": lambda d: d["problem"].update(horizon=10**15, discount=None),
    }
    for words, change in changes.items():
        document = deepcopy(documents["tight"])
        change(document)
        try:
            message = str(verdict_on(document))
        except InvalidInput as error:
            message = str(error)
        assert any(word in message for word in words.split("|")), (words, message)


def test_the_checker_shares_no_code_with_the_run():
    files = list((Path(bp.__file__).parent / "verification").glob("*.py"))
    assert len(files) > 5  # they are where the test looks for them
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("bestpolicy") or name.startswith(
                    ("bestpolicy.errors", "bestpolicy.verification")
                )


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path):
    certificate, model = tmp_path / "certificate.json", tmp_path / "model.npz"
    DISCOUNTED.save(model)
    result = identified(DISCOUNTED, "gss")
    result.save(certificate)
    done = run("verify", certificate)
    assert done.returncode == 0
    assert done.stdout.startswith(
        "valid: the policy is within 0.3 of optimal in every state with probability at least 0.9 (Theorem R), from "
        f"{result.samples:,} simulator calls; studies of this problem on record: 1\n"
    )
    assert "taken on trust: the samples were drawn independently" in done.stdout
    answer = json.loads(run("verify", certificate, "--model", model, "--json").stdout)
    assert (answer["valid"], answer["reasons"], answer["theorem"]) == (True, [], "R")
    assert answer["true_loss"] <= 0.3

    EPISODIC.save(model)
    done = run("verify", certificate, "--model", model)
    assert done.returncode == 1
    assert done.stdout.startswith("NOT valid: the certificate is about another problem")

    text = certificate.read_text()
    certificate.write_text(text.replace('"seed": 1', '"seed": 2'))
    done = run("verify", certificate)
    assert done.returncode == 1
    assert done.stdout == "NOT valid: the file was changed after it was written (its checksum does not fit).\n"
    certificate.write_text(text[: len(text) // 2])
    assert_one_error_line(run("verify", certificate), "cut off")
    assert_one_error_line(run("verify", tmp_path / "none.json"), "no such file")


def test_a_policy_that_is_bad_in_the_given_model_is_reported(documents):
    problem = DISCOUNTED.problem
    worse = bp.LinearMDP(problem, theta=1 - DISCOUNTED.theta[0], mu=DISCOUNTED.mu[0])
    found = verdict_on(documents["optimal"], worse)
    assert not found.valid
    assert found.true_loss == pytest.approx(worse.loss(array(documents["optimal"]["claim"]["policy"])[0]), abs=1e-9)
    assert "in the given model the policy loses" in str(found)


@pytest.mark.parametrize("scale", [1.0, 1e-6], ids=["well conditioned", "nearly singular"])
def test_features_without_all_ones_are_rejected(scale):
    """In such features no transition row can sum to 1. Both ways of telling it are tried."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4, 2, 3))
    features[:, :, 2] = features[:, :, 0] + scale * features[:, :, 2]
    with pytest.raises(Rejected, match="all-ones"):
        Case(features, np.ones((4, 2), bool), 0.5, None)._check_features()
    features[:, :, 1] = 1.0
    Case(features, np.ones((4, 2), bool), 0.5, None)._check_features()
