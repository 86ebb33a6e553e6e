"""Ends: states in which the process is over, for users: in problems, files, simulators, runs and certificates."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from benchmarks.sparse import HANDS, blackjack
from scipy.stats import binomtest, chi2

import bestpolicy as bp
from bestpolicy.certificate import make_certificate
from bestpolicy.problem.files import read_arrays, write_arrays
from bestpolicy.samples import answer_ends
from bestpolicy.stopping.tables.look import look
from bestpolicy.testing import check_generative_model
from bestpolicy.verification import verify_text
from bestpolicy.verification.reading import digest
from tests.test_tables import HOSTILE, bad_policy, make_lag

SHARP = {"algorithm": "sharp", "delta": 0.1, "seed": 0}


def queue_step(state, action, rng):  # of many at once
    """Serve up to three customers, slowly for nothing or fast for 0.5 a step; each that waits costs 1 a step."""
    assert (state < 3).all(), "nobody simulates what comes after the end"
    served = rng.random(len(state)) < np.array([0.3, 0.9])[action]
    return -(state + 1.0) - 0.5 * action, np.where(served & (state == 0), 3, state - served)


def queue(**kind):
    """States 0 to 2 are one to three customers; state 3, when all are served, is the end."""
    problem = bp.Problem.tabular(4, 2, ends=[3], **(kind or {"discount": 0.9}))
    return bp.CallableSimulator(problem, queue_step, vectorized=True, reward_range=(-3.5, 0))


def truth_of_queue(**kind):
    """The same as a table with one more state like others, in rewards (r + 3.5)/3.5, in which the end pays 1."""
    transitions, rewards = np.zeros((4, 2, 4)), np.ones((4, 2))
    transitions[3, :, 3] = 1.0
    for state in range(3):
        for action, chance in enumerate((0.3, 0.9)):
            transitions[state, action, state] = 1 - chance
            transitions[state, action, 3 if state == 0 else state - 1] = chance
            rewards[state, action] = (2.5 - state - 0.5 * action) / 3.5
    return bp.LinearMDP.from_table(transitions, rewards, **(kind or {"discount": 0.9}))


# --- problems


def test_ends_share_a_coordinate_and_decide_nothing():
    mask = np.array([[1, 1], [0, 0], [0, 1], [1, 1]])
    problem = bp.Problem.tabular(4, 2, discount=0.5, mask=mask, ends=[3, 1])
    np.testing.assert_array_equal(problem.mask, [[1, 1], [1, 0], [0, 1], [1, 0]])
    assert problem.ends.tolist() == [1, 3]
    assert problem.open_pairs.tolist() == [0, 1, 5]
    assert problem.dimension == 4
    assert problem.is_tabular
    assert problem.columns.tolist() == [0, 1, 3, 2, 3]
    np.testing.assert_array_equal(problem.features[problem.mask].argmax(axis=1), problem.columns)
    np.testing.assert_array_equal(np.asarray(problem.matrix), problem.features.reshape(-1, 4))
    assert "2 of them ends" in repr(problem)


def test_ends_are_part_of_what_a_problem_is():
    problems = [
        bp.Problem.tabular(3, 2, discount=0.5, ends=ends, mask=[[1, 1], [1, 0], [1, 0]]) for ends in ([], [1], [2])
    ]
    problems += [problems[1].with_end_reward(0.5), problems[1].without_ends]
    assert len({problem.fingerprint for problem in problems}) == 5
    same = bp.Problem(problems[1].features, discount=0.5, mask=problems[1].mask)
    assert problems[1].without_ends.fingerprint == same.fingerprint  # what older files have


@pytest.mark.parametrize("ends", [[4], [-1], [0.5], "end", [[1]], [0, 1, 2, 3], [True, False, False, True]])
def test_ends_that_are_none_are_refused(ends):
    with pytest.raises(bp.InvalidInput, match="ends"):
        bp.Problem.tabular(4, 2, discount=0.5, ends=ends)


def test_a_mask_without_actions_says_what_to_do():
    with pytest.raises(bp.InvalidInput, match="ends="):
        bp.Problem.tabular(2, 2, discount=0.5, mask=[[1, 1], [0, 0]])


@pytest.mark.parametrize("kind", [{"discount": 0.5}, {"horizon": 3}])
def test_files_keep_ends(tmp_path, kind):
    problem = bp.Problem.tabular(4, 2, ends=[1, 3], **kind).with_end_reward(0.25)
    write_arrays(tmp_path / "problem.npz", problem)
    again, *_ = read_arrays(tmp_path / "problem.npz")
    assert again.fingerprint == problem.fingerprint
    assert again.end_reward == 0.25
    with np.load(tmp_path / "problem.npz") as file:
        arrays = dict(file)
    for name, change in {
        "lacks": {"end_reward": None},
        "odd": {"end_states": np.array([9])},
        "far": {"end_reward": 2.0},
    }.items():
        kept = {key: value for key, value in (arrays | change).items() if value is not None}
        np.savez(tmp_path / f"{name}.npz", **kept)
        with pytest.raises(bp.InvalidInput, match="end"):
            read_arrays(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("kind", [{"discount": 0.9}, {"horizon": 4}])
def test_a_model_with_ends_is_one_in_which_they_stay_and_pay_nothing(tmp_path, kind):
    rng = np.random.default_rng(0)
    transitions, rewards = rng.dirichlet(np.ones(5), (5, 2)), rng.random((5, 2))
    model = bp.LinearMDP.from_table(transitions, rewards, ends=[1, 4], **kind)
    transitions[[1, 4]], rewards[[1, 4]] = np.eye(5)[[1, 4]][:, None], 0.0
    plain = bp.LinearMDP.from_table(transitions, rewards, **kind)
    np.testing.assert_allclose(model.values, plain.values, atol=1e-12)
    model.save(tmp_path / "model.npz")
    assert bp.LinearMDP.load(tmp_path / "model.npz").fingerprint == model.fingerprint
    with pytest.raises(bp.InvalidInput, match="that of the ends"):
        bp.LinearMDP(model.problem.with_end_reward(0.5), theta=np.squeeze(model.theta), mu=np.squeeze(model.mu))


# --- units


def test_an_end_pays_nothing_in_the_users_units():
    simulator = queue()
    assert simulator.problem.end_reward == 1.0
    low, high = simulator.units.reward_range
    assert low + (high - low) * simulator.problem.end_reward == 0.0
    with pytest.raises(bp.InvalidInput, match="must hold 0"):
        bp.CallableSimulator(simulator.problem, queue_step, reward_range=(-3.5, -1))
    with pytest.raises(bp.InvalidInput, match="in_units"):
        bp.Study(bp.Problem.tabular(4, 2, discount=0.9, ends=[3]), units=simulator.units, epsilon=1, delta=0.1)
    bp.Study(simulator.problem, units=simulator.units, epsilon=1, delta=0.1).close()


def test_what_is_best_hangs_on_what_the_end_pays():
    """Leaving costs 1 once, staying 0.3 at each step: an end that paid the lowest reward would make staying best."""

    def step(state, action, rng):
        return (-1.0, 1) if action else (-0.3, 0)

    for horizon in (None, 12):
        kind = {"discount": 0.9} if horizon is None else {"horizon": horizon}
        problem = bp.Problem.tabular(2, 2, ends=[1], **kind)
        result = bp.identify(bp.CallableSimulator(problem, step, reward_range=(-1, 1)), epsilon=0.5, **SHARP)
        assert result.certified
        assert np.atleast_2d(result.policy)[0, 0] == 1


@pytest.mark.parametrize("kind", [{"discount": 0.9}, {"horizon": 5}])
def test_an_affine_map_of_rewards_changes_no_verdict(kind):
    """Rewards in the units of [0, 1], where the end pays 3/8, and mapped to [-6, 10], where it pays 0."""

    def step(state, action, rng, scale=1.0, low=0.0):
        reward = np.where(action == 1, rng.integers(0, 9, len(state)) / 8, 0.125)
        return low + scale * reward, rng.integers(0, 3, len(state))

    problem = bp.Problem.tabular(3, 2, ends=[2], **kind)
    plain = bp.CallableSimulator(problem.with_end_reward(0.375), step, vectorized=True)
    in_own = lambda states, actions, rng: step(states, actions, rng, 16.0, -6.0)  # noqa: E731
    mapped = bp.CallableSimulator(problem, in_own, vectorized=True, reward_range=(-6, 10))
    assert plain.problem.fingerprint == mapped.problem.fingerprint
    one = bp.identify(plain, epsilon=1.5, **SHARP)
    other = bp.identify(mapped, epsilon=24.0, **SHARP)
    assert one.certified
    assert [check.samples for check in one.checks] == [check.samples for check in other.checks]
    assert other.epsilon == pytest.approx(16 * one.epsilon, rel=1e-9)
    np.testing.assert_array_equal(one.policy, other.policy)


# --- simulators


@pytest.mark.parametrize("algorithm", ["sharp", "tight"])
def test_nobody_is_asked_for_what_comes_after_the_end(algorithm):
    result = bp.identify(queue(), epsilon=8, delta=0.1, algorithm=algorithm, seed=0)
    assert result.certified
    truth = truth_of_queue()
    assert 3.5 * truth.loss(result.policy) <= result.epsilon


def test_a_simulator_of_ones_own_is_not_asked_either():
    class Own:
        problem, units, calls = queue().problem, queue().units, 0

        def sample(self, pulls, rng):
            assert (pulls.pairs < 6).all()
            return queue().sample(pulls, rng)

    check_generative_model(Own())
    with ThreadPoolExecutor(1) as executor:
        result = bp.identify(Own(), epsilon=15, delta=0.1, algorithm="tight", seed=0, executor=executor)
    assert result.certified


def test_samples_of_ends_are_known():
    problem = bp.Problem.tabular(3, 2, horizon=2, ends=[0, 2]).with_end_reward(0.25)
    pulls = bp.Pulls(problem.pairs, np.arange(8).reshape(2, 4))
    rest, known = answer_ends(pulls, problem)
    assert rest.pairs.tolist() == problem.open_pairs.tolist() == [2, 3]
    np.testing.assert_array_equal(known.pulls, [[0, 3], [4, 7]])
    np.testing.assert_allclose(known.reward_sums, 0.25 * known.pulls)
    assert (known.next_counts[..., :2] == 0).all()
    model = bp.LinearMDP(problem, theta=np.full((2, 3), 0.25), mu=np.tile(np.eye(3)[2][:, None], (2, 1, 3)))
    drawn = bp.ExactSimulator(model, rewards="deterministic").sample(pulls, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn.at(known.pairs).next_counts, known.next_counts)


@pytest.mark.parametrize("next_state", [4, -1, None, "over"])
def test_a_next_state_that_is_not_listed_is_one_error(next_state):
    problem = bp.Problem.tabular(4, 2, discount=0.9, ends=[3])
    simulator = bp.CallableSimulator(problem, lambda state, action, rng: (0.0, next_state))
    with pytest.raises(bp.SimulatorError, match=r"not one of 0\.\.3.*ends"):
        bp.identify(simulator, epsilon=1, **SHARP)


# --- runs and certificates


@pytest.mark.parametrize("kind", [{"discount": 0.9}, {"horizon": 4}])
def test_a_certificate_with_ends_is_recomputed(tmp_path, kind):
    simulator, truth = queue(**kind), truth_of_queue(**kind)
    result = bp.identify(simulator, epsilon=6, store=tmp_path / "run.db", **SHARP)
    assert result.certified
    assert 3.5 * truth.loss(result.policy) <= result.epsilon
    result.save(tmp_path / "certificate.json")
    for store in (None, tmp_path / "run.db"):
        found = bp.verify(tmp_path / "certificate.json", store=store)
        assert found.valid
        assert found.recomputed_epsilon <= found.epsilon * (1 + 1e-6)
        assert any("1 of the states the process is over, and each later reward is 0" in item for item in found.trusted)
    again = bp.Study.resume(tmp_path / "run.db").result()
    again.save(tmp_path / "again.json")
    assert bp.verify(tmp_path / "again.json").valid


def forged(document, **changes):
    """The document with other ends, and a fingerprint and checksum that fit."""
    problem = document["problem"]
    case = verify_text.__globals__["Case"]
    problem["ends"] |= changes
    ends = np.frombuffer(
        bp.certificate.zlib.decompress(bp.certificate.base64.b64decode(problem["ends"]["states"]["data"])), "<i8"
    )
    features, mask = (
        np.frombuffer(
            bp.certificate.zlib.decompress(bp.certificate.base64.b64decode(problem[name]["data"])),
            problem[name]["dtype"],
        ).reshape(problem[name]["shape"])
        for name in ("features", "mask")
    )
    reward = problem["ends"]["reward"]
    known = case(features, mask, problem["discount"], problem["horizon"], ends=ends, end_reward=reward)
    problem["fingerprint"] = known.fingerprint
    document.pop("sha256")
    return json.dumps(document | {"sha256": digest(document)})


def test_no_other_ends_pass():
    result = bp.identify(queue(), epsilon=9, **SHARP)
    encoded = make_certificate.__globals__["_encoded"]
    assert verify_text(forged(make_certificate(result))).valid
    for changes in (
        {"reward": 0.9},
        {"states": encoded(np.array([2]), "<i8")},
        {"states": encoded(np.array([2, 3]), "<i8")},
    ):
        assert not verify_text(forged(make_certificate(result), **changes)).valid
    for states in ([4], [3, 3], []):
        with pytest.raises(bp.InvalidInput, match="strictly increasing"):
            verify_text(json.dumps(make_certificate(result) | {"problem": make_certificate(result)["problem"] | {
                "ends": {"states": encoded(np.array(states), "<i8"), "reward": 1.0}}}))  # fmt: skip
    older = make_certificate(result) | {"version": 2}
    older.pop("sha256")
    assert not verify_text(json.dumps(older | {"sha256": digest(older)})).valid


def test_files_without_ends_are_as_before():
    result = bp.identify(bp.ExactSimulator(bp.instances.load("riverswim")), epsilon=3, **SHARP)
    document = make_certificate(result)
    assert document["version"] == 2
    assert "ends" not in document["problem"]


def test_a_study_of_before_goes_on_with_a_simulator_that_knows_its_ends(tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    simulator = bp.GymSimulator(gymnasium.make("FrozenLake-v1", desc=["SF", "HG"]), discount=0.5)
    before = simulator.problem.without_ends
    study = bp.Study(
        before, epsilon=1, delta=0.1, algorithm="tight", seed=0, units=simulator.units, store=tmp_path / "run.db"
    )
    study.close()
    assert bp.drive(bp.Study.resume(tmp_path / "run.db"), simulator).certified


def test_own_data_of_ends_teach_nothing():
    simulator = queue()
    pulls = bp.Pulls(simulator.problem.pairs, np.full((1, 7), 60))
    own = simulator.sample(pulls, np.random.default_rng(0))
    assert bp.identify(simulator, epsilon=8, own_data=own, **SHARP).certified


@pytest.mark.parametrize("start", [3, [0.5, 0.0, 0.0, 0.5]])
def test_a_start_may_be_an_end(tmp_path, start):
    result = bp.identify(queue(), epsilon=9, start=start, **SHARP)
    assert result.certified
    result.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json").valid


def test_the_example_plays_blackjack():
    """Against the game as worked out for the benchmark: where each pair leads, and what it pays."""
    source = (Path(__file__).parent.parent / "examples" / "blackjack.py").read_text()
    found: dict = {}
    exec(source.split("result =")[0], found)
    game, simulator = blackjack(), found["simulator"]
    places = [found["HANDS"].index((total, card, int(ace))) for card in range(1, 11) for total, ace in HANDS] + [280]
    number = 400
    pulls = bp.Pulls(simulator.problem.open_pairs, np.full((1, 560), number))
    tally = simulator.sample(pulls, np.random.default_rng(0))
    drawn = np.zeros((281, 2, 281))
    drawn[:280] = tally.next_counts[0].reshape(280, 2, 281)
    drawn = drawn[np.ix_(places, [0, 1], places)][:280].reshape(560, 281)
    kernel, rewards, _ = game.model
    expected = number * kernel.toarray()
    assert (drawn[expected == 0] == 0).all()
    off = (drawn - expected)[expected > 0] ** 2 / expected[expected > 0]
    assert chi2.sf(off.sum(), (expected > 0).sum() - 560) > 1e-4
    paid = np.zeros((281, 2))
    paid[:280] = tally.reward_sums[0].reshape(280, 2)
    z = (paid[places][:280].ravel() / number - rewards) * np.sqrt(4 * number)  # rewards lie in [0, 1]
    assert np.abs(z).max() < 5
    assert simulator.problem.end_reward == 0.5


# --- the theorem


def test_a_known_end_is_an_absorbing_state_that_needs_no_samples():
    """Against the same problem whose end has a pair of its own."""
    known = bp.identify(queue(), epsilon=9, **SHARP)
    sampled = bp.identify(bp.ExactSimulator(truth_of_queue(), rewards="deterministic"), epsilon=9 / 3.5, **SHARP)
    assert known.samples < sampled.samples
    np.testing.assert_array_equal(known.policy[:3], sampled.policy[:3])


def false_bounds(name, runs, **options):
    """How many lags on a bad policy state less than its loss."""
    problem, wrong = HOSTILE[name](), 0
    policy = bad_policy(problem)
    for number in range(runs):
        rng = np.random.default_rng([7, number])
        lag = make_lag(problem, rng, policy=policy, **options)
        fresh = problem.sample(10 * lag.unit, rng)
        wrong += look(problem.table, lag, fresh, 10).epsilon < problem.loss(policy) - 1e-9
    return wrong


def test_bounds_with_ends_are_seldom_false():
    assert binomtest(false_bounds("trapdoor in episodes", 30, planned=400), 30, 0.5, "greater").pvalue > 1e-3


@pytest.mark.study
@pytest.mark.parametrize("delta", [0.5, 0.1])
@pytest.mark.parametrize("name", ["trapdoor", "trapdoor in episodes"])
def test_bounds_with_ends_are_seldom_false_in_a_thousand_lags(name, delta):
    planned = 100_000 if name == "trapdoor" else 1000
    wrong = false_bounds(name, 1000, delta=delta, past=300, planned=planned)
    assert binomtest(wrong, 1000, delta, "greater").pvalue > 1e-3
