"""Theorem O and the algorithm that rests on it: what is certified holds, and each way to get it wrong is noticed.

Traps of learning from episodes, and the test that each has (`TRAPS`):

1. A known limit of returns must clip every reward plus upper value, not upper values alone.
2. Episodes count in the order in which they were asked for: slow losers must not raise a lower limit.
3. An episode that merely agreed with a policy is not that policy's.
4. A return above its limit is an error.
5. Episodes that all begin with one seed would all be the same.
6. Steps that are alike may be pooled, but there are still H functions to pay for.
7. What episodes for later steps have shown of a step stays out of its regression (rflin); and which policies are
   compared (pedel) must not depend on the true kernel.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import Forward
from bestpolicy.certificate import _encoded
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.tabular import random_tabular
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import episodes as theorem
from bestpolicy.stopping.episodes import Optimism, Seen
from bestpolicy.verification.reading import digest, parse
from tests.kernels import outputs

TWO = random_tabular(seed=3, horizon=5)
SHORT = random_tabular(seed=3, horizon=3)

TRAPS = {
    1: ["test_forward.py::test_a_limit_of_returns_clips_every_reward_plus_value"],
    2: ["test_forward.py::test_the_answer_does_not_depend_on_who_answers_nor_when"],
    3: ["test_forward.py::test_only_episodes_asked_of_a_policy_after_it_was_named_count_for_it"],
    4: [
        "test_forward.py::test_limits_save_episodes_and_hold",
        "test_reset_simulator.py::test_a_promise_that_is_broken_ends_the_run_and_is_not_tried_again",
    ],
    5: ["test_reset_simulator.py::test_every_episode_has_a_seed_of_its_own"],
    6: ["test_forward.py::test_steps_that_are_alike_may_be_pooled_but_pay_for_every_step"],
    7: [
        "test_online_competitors.py::test_what_later_steps_showed_stays_out_of_the_data_of_a_step",
        "test_online_competitors.py::test_navigation_does_not_look_at_the_outcomes_of_its_step",
        "test_online_competitors.py::test_the_policies_of_pedel_do_not_depend_on_the_kernel",
    ],
}


def test_every_trap_has_a_test():
    for number, tests in TRAPS.items():
        assert f"\n{number}. " in __doc__
        for test in tests:
            file, name = test.split("::")
            assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(), test


def bounds_of(problem, tally, delta=0.1, stationary=False, limits=None, start=0):
    law = None if start is None else np.eye(problem.states)[start]
    rule = Optimism(problem, delta, problem.value_limits if limits is None else np.array(limits), stationary, law)
    seen = Seen.of(problem, tally, stationary)
    return rule.upper_values(seen)[1], rule, seen


def uniform_episodes(mdp, count, rng, start=0):
    policy = np.ones((mdp.problem.stages, mdp.problem.states, mdp.problem.actions)) / mdp.problem.actions
    return bp.ExactSimulator(mdp).rollout(Episodes(policy, count, start), rng)


def run(model=None, epsilon=0.8, **more):
    options = {"delta": 0.1, "algorithm": "forward", "seed": 1, "start": 0} | more
    return bp.identify(model or bp.ExactSimulator(SHORT), epsilon=epsilon, **options)


# --- the theorem


def test_upper_values_fall_towards_the_truth_and_stay_above():
    rng = np.random.default_rng(0)
    errors = []
    for count in (10, 10_000, 10_000_000):
        upper, rule, seen = bounds_of(TWO.problem, uniform_episodes(TWO, count, rng))
        assert (upper[:-1] >= TWO.values).all()
        errors.append(rule.at_start(seen, upper[0]) - TWO.values[0, 0])
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def test_steps_that_are_alike_may_be_pooled_but_pay_for_every_step():
    tally = uniform_episodes(TWO, 500, np.random.default_rng(0))
    pooled, rule, _ = bounds_of(TWO.problem, tally, stationary=True)
    apart, other, _ = bounds_of(TWO.problem, tally)
    assert (pooled[:-1] >= TWO.values).all()
    assert pooled[0, 0] < apart[0, 0]
    assert rule.delta_each == other.delta_each == theorem.UPPER_SHARE * 0.1 / (5 * 4)  # T = HSA all the same


def limited():
    """Two steps, return at most 1: action 0 pays 1/2 twice, action 1 pays 1 with probability 0.7, and that is all."""

    def step(state, action, rng, stage):
        if state == 0:
            return (0.5, 1) if action == 0 else (float(rng.random() < 0.7), 2)
        return (0.5, 2) if state == 1 else (0.0, 2)

    problem = bp.Problem.tabular(3, 2, horizon=2, mask=[[1, 1], [1, 0], [1, 0]])
    return bp.CallableSimulator(problem, step)


def test_a_limit_of_returns_clips_every_reward_plus_value():
    model, rng = limited(), np.random.default_rng(1)
    policy = np.array([[[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]] * 2)
    for _ in range(10):
        tally = model.rollout(Episodes(policy, 200, 0), rng)
        upper, _, _ = bounds_of(model.problem, tally, delta=0.5, limits=(1.0, 1.0))
        assert upper[0, 0] >= 1.0 - 1e-9


def test_limits_save_episodes_and_hold():
    result = run(limited(), epsilon=0.25, algorithm=Forward(return_limits=1.0))
    assert result.certified
    assert result.policy[0, 0] == 0
    assert result.samples < run(limited(), epsilon=0.25).samples
    with pytest.raises(InvalidInput, match="exceed their limit"):
        run(bp.ExactSimulator(TWO), algorithm=Forward(return_limits=0.2))


def test_a_random_start_is_one_more_unknown():
    tally = uniform_episodes(TWO, 2000, np.random.default_rng(0), start=np.array([0.5, 0.5]))
    upper, rule, seen = bounds_of(TWO.problem, tally, start=None)
    most = rule.at_start(seen, upper[0])
    assert upper[0].mean() < most < upper[0].max() + 1e-9
    assert rule.delta_each == theorem.UPPER_SHARE * 0.1 / 21


def test_a_visit_without_an_outcome_counts_as_the_best_that_might_have_been():
    whole = Tally.from_episodes(SHORT.problem, np.zeros((40, 4), int), np.zeros((40, 3), int), np.zeros((40, 3)))
    ended = Tally.from_episodes(
        SHORT.problem, np.zeros((40, 4), int), np.zeros((40, 3), int), np.zeros((40, 3)), lengths=[3] * 30 + [1] * 10
    )
    forgotten = Tally.from_episodes(SHORT.problem, np.zeros((30, 4), int), np.zeros((30, 3), int), np.zeros((30, 3)))
    _, rule, _ = bounds_of(SHORT.problem, whole, delta=0.5)
    q = [rule.upper_values(Seen.of(SHORT.problem, tally, False))[0] for tally in (whole, ended, forgotten)]
    assert q[1][1, 0, 0] > q[2][1, 0, 0] > q[0][1, 0, 0]  # at the step where they broke off
    assert ended.episodes == 40


def bandit():
    """One step, one action."""
    return bp.LinearMDP(bp.Problem.tabular(1, 1, horizon=1), theta=[[0.85]], mu=[[[1.0]]])


def violations(runs, delta, factor=1.0, monkeypatch=None):
    """How often an upper value falls below the truth at some look."""
    if monkeypatch is not None:
        honest = theorem.nats_upwards
        monkeypatch.setattr(theorem, "nats_upwards", lambda counts, share: factor * honest(counts, share))
    mdp, failures = bandit(), 0
    for seed in range(runs):
        rng, tally, found = np.random.default_rng(seed), Tally.empty(mdp.problem), False
        for count in (3, 3, 4, 5, 7, 10, 15, 22, 33, 50):
            tally = tally + uniform_episodes(mdp, count, rng)
            found |= bool(bounds_of(mdp.problem, tally, delta)[0][0, 0] < 0.85)
        failures += found
    return failures


def test_upper_values_hold_at_all_looks_with_the_right_probability(monkeypatch):
    assert binomtest(violations(60, 0.5), 60, theorem.UPPER_SHARE * 0.5, alternative="greater").pvalue > 0.01
    allowed = theorem.UPPER_SHARE * 0.1
    mutated = violations(100, 0.1, 0.3, monkeypatch)
    assert binomtest(mutated, 100, allowed, alternative="greater").pvalue < 0.002  # threshold times 0.3 is noticed


@pytest.mark.parametrize("runs", [4, pytest.param(200, marks=pytest.mark.study)])
def test_claims_of_all_checks_hold_with_the_right_probability(runs):
    mdp, false = random_tabular(seed=5, horizon=2), 0
    start = np.eye(2)[0]
    assert max(mdp.loss(np.full((2, 2), a), start=start) for a in (0, 1)) > 0.5  # there is something to lose
    for seed in range(runs):
        study = bp.Study(mdp.problem, epsilon=0.5, delta=0.5, algorithm="forward", seed=seed, start=0)
        bp.drive(study, bp.ExactSimulator(mdp))
        false += any(mdp.loss(check.policy, start=start) > check.epsilon for check in study.checks)
    print(f"forward: {false} of {runs} runs wrong at δ = 0.5")
    assert binomtest(false, runs, 0.5, alternative="greater").pvalue > 0.01
    assert false <= 0.2 * runs


@pytest.mark.study
def test_claims_hold_on_a_tie_of_one_step():
    """The closest case that is known: one step, two actions of almost the same worth, and δ = 0.5."""
    mdp = bp.LinearMDP.from_table(np.ones((1, 2, 1)), np.array([[0.5, 0.52]]), horizon=1)
    runs, false, low = 400, 0, 0
    for seed in range(runs):
        task = {"epsilon": 0.02, "delta": 0.5, "seed": seed, "start": 0, "max_samples": 3000}
        study = bp.Study(mdp.problem, algorithm=Forward(check_ratio=1.3), **task)
        bp.drive(study, bp.ExactSimulator(mdp))
        false += any(mdp.loss(check.policy, start=np.ones(1)) > check.epsilon for check in study.checks)
        rng, tally = np.random.default_rng(seed), Tally.empty(mdp.problem)
        looks = []
        for count in (2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300):
            tally = tally + uniform_episodes(mdp, count, rng)
            looks.append(bounds_of(mdp.problem, tally, 0.5)[0][0, 0] < 0.52)
        low += any(looks)
    print(f"forward on a tie: {false} of {runs} claims wrong, {low} upper values too low at some look, at δ = 0.5")
    assert binomtest(false, runs, 0.5, alternative="greater").pvalue > 0.01
    assert binomtest(low, runs, theorem.UPPER_SHARE * 0.5, alternative="greater").pvalue > 0.01


# --- the run


def test_forward_certifies_and_says_where():
    result = run(bp.ExactSimulator(TWO), epsilon=1.0)
    assert result.certified
    assert result.where == "from state 0"
    assert "from state 0" in result.explanation
    assert TWO.loss(result.policy, start=np.eye(2)[0]) <= result.epsilon <= 1.0
    over = run(start=[0.3, 0.7], epsilon=1.2)
    assert "start distribution" in over.explanation


def test_only_episodes_asked_of_a_policy_after_it_was_named_count_for_it():
    study = bp.Study(SHORT.problem, epsilon=0.5, delta=0.1, algorithm="forward", seed=2, start=0)
    simulator, asked = bp.ExactSimulator(SHORT), []
    while not study.done:
        (query,) = study.ask()
        tally = simulator.rollout(query.wanted, query.rng())
        asked.append((query.wanted.policy, tally.episodes, tally.returns, dict(study._request.decided)))
        study.tell(query, tally)
    proof = study.checks[-1].proof.fresh
    policy, named, mine = study.checks[-1].policy, 0, [0, 0.0]
    for played, count, returns, decided in asked:
        named += "named" in decided
        if named >= proof["number"] and np.array_equal(played, policy):
            mine = [mine[0] + count, mine[1] + returns]
    assert [proof["own"].episodes, proof["own"].returns] == pytest.approx(mine)
    agreed = sum(count for played, count, _, _ in asked if np.array_equal(played[:, 0], policy[:, 0]))
    assert agreed > proof["own"].episodes  # others agreed with it where they went, and do not count
    assert proof["tally"].episodes == sum(count for _, count, _, _ in asked)


def finish(study, simulator, order=1, stop_after=None):
    told = 0
    while not study.done:
        for query in study.ask()[::order]:
            study.tell(query, simulator.rollout(query.wanted, query.rng()))
            told += 1
            if told == stop_after:
                return None
    return study.result()


def same(one, other):
    assert one.samples == other.samples
    assert one.epsilon == other.epsilon
    np.testing.assert_array_equal(one.policy, other.policy)
    assert [check.to_dict() for check in one.checks] == [check.to_dict() for check in other.checks]


def test_the_answer_does_not_depend_on_who_answers_nor_when(tmp_path):
    options = {"epsilon": 1.2, "delta": 0.1, "algorithm": "forward", "seed": 4, "start": 0, "calls_per_query": 6}
    simulator, study = bp.ExactSimulator(SHORT), bp.Study(SHORT.problem, **options)
    first = finish(study, simulator)
    assert study._asked > 1.5 * len(study.checks)  # batches have several queries
    same(first, finish(bp.Study(SHORT.problem, **options), simulator, order=-1))  # losers may be slow
    with ThreadPoolExecutor(2) as two, ThreadPoolExecutor(1) as one:
        for executor in (one, two):
            same(first, bp.identify(simulator, executor=executor, **options))
    for stop in (1, 40):
        path = tmp_path / f"{stop}.db"
        finish(bp.Study(SHORT.problem, store=path, **options), simulator, stop_after=stop)
        same(first, finish(bp.Study.resume(path), simulator))


def test_a_budget_ends_it_with_what_is_known():
    result = run(bp.ExactSimulator(TWO), epsilon=0.01, max_samples=4000)
    assert result.outcome == "sample budget spent"
    assert result.samples <= 4000
    assert 0.01 < result.epsilon < 5


# --- who can run it


def test_who_can_simulate_what_is_said_once_and_clearly():
    class Pairs:
        problem = SHORT.problem

        def sample(self, pulls, rng):
            raise AssertionError

    class Trajectories:
        problem = SHORT.problem

        def rollout(self, episodes, rng):
            raise AssertionError

    with pytest.raises(InvalidInput, match="use algorithm='forward'"):
        bp.identify(Trajectories(), epsilon=0.5, delta=0.1, algorithm="tight")
    with pytest.raises(InvalidInput, match="has no method"):
        bp.identify(Pairs(), epsilon=0.5, delta=0.1, algorithm="forward", start=0)
    discounted = random_tabular(seed=3, discount=0.9)
    with pytest.raises(InvalidInput, match="need a horizon"):
        bp.identify(bp.ExactSimulator(discounted), epsilon=0.5, delta=0.1, algorithm="forward", start=0)
    with pytest.raises(bp.SimulatorError, match="start is needed"):
        bp.identify(bp.ExactSimulator(SHORT), epsilon=0.5, delta=0.1, algorithm="forward")


@pytest.mark.parametrize("wrong", [{"return_limits": -1}, {"return_limits": [1, 0]}, {"stationary": "yes"}])
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Forward(**wrong)


# --- certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forward")
    result = run(bp.ExactSimulator(TWO), epsilon=1.0, store=folder / "run.db")
    result.save(folder / "policy.json")
    return folder / "policy.json", folder / "run.db", result


def test_a_certificate_is_checked_by_others(certificate):
    path, store, result = certificate
    found = bp.verify(path, TWO, store=store)
    assert found.valid, found.reasons
    assert found.order_shown
    assert found.theorem == "O"
    assert found.where == "from state 0"
    assert found.recomputed_epsilon == pytest.approx(result.epsilon, rel=0.02)
    assert "from state 0" in str(found)
    assert any("named as number" in item for item in bp.verify(path).trusted)
    bp.Study.resume(store).result().save(path.with_name("again.json"))
    assert bp.verify(path.with_name("again.json"), store=store).valid


def forged(path, change):
    document = json.loads(path.read_text())
    change(document)
    document["sha256"] = digest(document)
    other = path.with_name("forged.json")
    other.write_text(json.dumps(document))
    return other


def more(field, number):
    def change(document):
        document["proof"]["policy"][field] += number

    return change


def plays(field, change_array):
    """Change an array of the policy's own episodes."""

    def change(document):
        samples = parse(json.dumps(document)).child("proof").child("policy").child("samples")
        dtype = "f" if field == "rewards" else "i"
        array = change_array(samples.array(field, dtype, (None,)).copy())
        document["proof"]["policy"]["samples"][field] = _encoded(array, f"<{dtype}8")

    return change


def plays_otherwise(document):
    """The same episodes for another policy, in states and at steps that they have seen."""
    claim = parse(json.dumps(document)).child("claim")
    document["claim"]["policy"] = _encoded(1 - claim.array("policy", "i", (5, 2)), "<i8")


def claims(field, value):
    def change(document):
        document["claim"][field] = value

    return change


def says(field, value):
    def change(document):
        document["proof"][field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        claims("epsilon", 0.7),
        claims("delta", 0.01),
        plays_otherwise,
        plays("rewards", lambda rewards: rewards * 1.5),
        plays("rewards", lambda rewards: rewards * 0),
        plays("counts", lambda counts: counts * 2),
        plays("counts", lambda counts: counts * 10**6),
        plays("cells", lambda cells: cells + 1),
        more("forfeited", 1.0),
        more("forfeited", -1.0),
        more("squares", 1e6),
    ],
)
def test_forgeries_fail(certificate, change):
    path = forged(certificate[0], change)
    try:
        assert not bp.verify(path).valid
    except InvalidInput:
        assert change is not plays_otherwise


@pytest.mark.parametrize("change", [more("squares", -3.0), more("number", 1), says("stationary", True)])
def test_forgeries_that_need_the_file_of_the_study_fail_with_it(certificate, change):
    path, store, _ = certificate
    assert not bp.verify(forged(path, change), store=store).valid


def test_samples_that_are_no_episodes_prove_nothing(certificate):
    counts = parse(certificate[0].read_text()).child("proof").child("samples").array("counts", "i", (None,))
    counts[0] += 5
    path = forged(certificate[0], lambda file: file["proof"]["samples"].update(counts=_encoded(counts, "<i8")))
    assert "where the step before has led" in str(bp.verify(path))


# --- figures


REFERENCE = {
    "two-5": (lambda: random_tabular(seed=3, horizon=5), 0.5, 1902, 784),
    "rs5-5": (lambda: bp.instances.load("riverswim", states=5, horizon=5), 0.5, 1890, 782),
    "rs5-10": (lambda: bp.instances.load("riverswim", states=5, horizon=10), 1.0, 3989, 868),
    "rse": (lambda: bp.instances.load("riverswim-episodic"), 0.3, 6439, 2353),
    "universal": (lambda: bp.instances.load("universal-episodic"), 0.3, 5992, None),
}


@pytest.mark.study
@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("stationary", [False, True])
def test_the_number_of_episodes_is_that_of_the_reference(name, stationary):
    make, epsilon, apart, pooled = REFERENCE[name]
    expected = pooled if stationary else apart
    if expected is None:
        pytest.skip("no reference")
    mdp, found = make(), []
    for seed in range(20):
        result = run(bp.ExactSimulator(mdp), epsilon=epsilon, seed=seed, algorithm=Forward(stationary=stationary))
        assert mdp.loss(result.policy, start=np.eye(mdp.problem.states)[0]) <= epsilon
        found.append(result.rounds)
    assert expected / 1.5 <= np.mean(found) <= expected * 1.5


EVERYWHERE = """
import json
from hashlib import sha256
import numpy as np
import bestpolicy as bp

class Recorder:
    def __init__(self, mdp):
        self.problem, self.exact, self.asked = mdp.problem, bp.ExactSimulator(mdp), sha256()

    def rollout(self, episodes, rng):
        self.asked.update(episodes.policy.tobytes() + str(episodes.count).encode())
        return self.exact.rollout(episodes, rng)

found = {}
for name, options, epsilon in (("simplex", {"horizon": 2}, 0.9), ("riverswim", {"states": 3, "horizon": 3}, 1.2)):
    recorder = Recorder(bp.instances.load(name, **options))
    result = bp.identify(recorder, epsilon=epsilon, delta=0.1, algorithm="forward", start=0, seed=2)
    found[name] = [result.samples, f"{result.epsilon:.7g}", recorder.asked.hexdigest(), result.policy.ravel().tolist()]
print(json.dumps(found))
"""


@pytest.mark.study
def test_the_same_is_asked_on_every_processor():
    first, *others = (json.loads(text) for text in outputs(EVERYWHERE).values())
    for other in others:
        assert other == first


def test_what_is_claimed_is_rounded_up():
    from bestpolicy._numerics.reproducible import steady_above

    for value in [*np.random.default_rng(0).uniform(0, 10, 1000), 0.0, 1.0, 0.5]:
        assert value <= steady_above(value) <= value * (1 + 3e-9)
    assert steady_above(1.0) == steady_above(1.0 - 2**-53) == steady_above(1.0 + 2**-52)


def test_a_last_answer_without_a_sample_belongs_to_the_file(tmp_path):
    """An episode that broke off at its first step is told without any sample; the look behind it counts it."""
    store, simulator, told = tmp_path / "run.db", bp.ExactSimulator(SHORT), None
    study = bp.Study(
        SHORT.problem, epsilon=1.6, delta=0.1, algorithm="forward", seed=1, start=0, calls_per_query=3, store=store
    )
    while not study.done:
        queries = study.ask()
        for query in queries:
            told = simulator.rollout(query.wanted, query.rng())
            if len(queries) > 2 and query is queries[-1]:
                policy, count = query.wanted.policy, query.wanted.count
                nowhere = np.zeros((count, 4), int)
                actions = np.broadcast_to(policy[:, 0], (count, 3))
                told = Tally.from_episodes(SHORT.problem, nowhere, actions, np.zeros((count, 3)), np.zeros(count, int))
            study.tell(query, told)
    assert told.samples == 0
    assert study.result().certified
    study.result().save(tmp_path / "policy.json")
    found = bp.verify(tmp_path / "policy.json", store=store)
    assert found.valid, found.reasons
