"""Theorem F±: certificates in every state of spaces that nobody lists, as a statistician would test them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from math import log

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms.hull import Hull
from bestpolicy.algorithms.hull_plan import CANDIDATES, PastModel
from bestpolicy.samples import Bets, Drawn, Draws
from bestpolicy.stopping.hull import nats, outcome_ranges, share
from bestpolicy.stopping.lemmas.wagers import limits
from bestpolicy.verification.hull import share as share_again
from bestpolicy.verification.reading import digest
from tests.hull_models import GRID, ORDERS, problem, simulator, step, true_vectors, truth

STATES = np.linspace(0, 8, 33)[:, None]
HOW = {"epsilon": "8%", "delta": 0.1, "seed": 1}


# --- Lemma W


def wagered(outcomes, stake, grid, side):
    """A test of one function at one pair, from its outcomes."""
    stakes, points = np.full((1, 1, 1), stake), np.asarray(grid, float)[None, None, None]
    bets = Bets(np.zeros((1, 1, 1)), np.zeros((1, 1)), np.ones((1, 1)), np.array([side]), stakes, points)
    gains = np.log1p(side * stake * (points - np.reshape(outcomes, (-1, 1, 1, 1, 1)))).sum(axis=0)
    n = np.array([[len(outcomes)]])
    empty = np.zeros(0)
    sums = np.full((1, 1, 1), np.sum(outcomes))
    drawn = Drawn(n, sums, sums, gains, empty.astype(int), empty.astype(int), empty, np.zeros((0, 1)))
    return bets, drawn


def limit(outcomes, level, side, stake=0.3, points=25):
    bets, drawn = wagered(outcomes, stake, np.linspace(0, 1, points), side)
    zero = np.zeros((1, 1, 1))
    return float(limits(bets, drawn, zero, zero + 1, level)[0, 0, 0])


@pytest.mark.parametrize("side", [1, -1])
def test_limits_are_wrong_as_rarely_as_they_say(side):
    rng, wrong, runs = np.random.default_rng(0), 0, 800
    for _ in range(runs):
        outcomes = rng.beta(0.4, 1.2, 200)
        wrong += side * (limit(outcomes, log(1 / 0.2), side) - 0.25) <= 0
    assert binomtest(wrong, runs, 0.2, alternative="greater").pvalue > 1e-6
    assert wrong > 0  # the lemma is not idle, and a level that is too small is noticed:
    broken = sum(side * (limit(rng.beta(0.4, 1.2, 200), 0.0, side, stake=0.1) - 0.25) <= 0 for _ in range(300))
    assert binomtest(broken, 300, 0.2, alternative="greater").pvalue < 1e-6


def test_chords_of_a_grid_are_above_the_exact_limit_and_close_to_it():
    outcomes = np.random.default_rng(1).beta(0.4, 1.2, 400)
    for side in (1, -1):
        fine, coarse = (limit(outcomes, 3.0, side, points=points) for points in (4001, 12))
        assert side * (coarse - fine) >= -1e-12
        assert abs(coarse - fine) < 0.005


def test_what_no_bet_excludes_is_the_end_of_the_range():
    assert limit([0.5], 3.0, 1) == 1.0
    assert limit([0.5], 3.0, -1) == 0.0
    bets, drawn = wagered([0.5], 1.5, [0.2, 0.9], 1)
    with pytest.raises(ValueError, match="too large"):
        limits(bets, drawn, np.zeros((1, 1, 1)), np.ones((1, 1, 1)), 1.0)


# --- the theorem


@pytest.mark.parametrize("time", [{"discount": 0.8}, {"horizon": 4}])
def test_brackets_hold_everywhere_and_the_loss_is_below_epsilon(time):
    model = simulator(**time)
    result = bp.identify(model, **HOW)
    assert result.certified
    lower, upper = result.values(STATES).T
    own, best = truth(model, result, STATES).T
    assert (lower <= own + 1e-9).all()
    assert (best <= upper + 1e-9).all()
    assert (best - own).max() <= result.epsilon
    assert (upper - lower).max() <= result.epsilon + 1e-9
    assert result.epsilon <= result.asked_epsilon


def fixed_lag(model, rng):
    """A lag with δ = 0.5, chosen from a past that stays as it is."""
    known = model.problem
    past = PastModel(known, model.sample(Draws(np.full((1, len(GRID)), 150)), rng))
    plan = past.plan(0.3, nats(known, 0.5, len(CANDIDATES)))
    return past.lag(plan, 1, 0.5, np.full((1, len(GRID)), 250), 0)


def outcomes_of_a_test(model, lag, best, rng, level_shift=0.0):
    """Whether limits, and whether brackets, of a test were wrong."""
    known = model.problem
    drawn = model.sample(Draws(lag.unit, False, lag.bets), rng)
    ranges = outcome_ranges(known, lag.bets.low, lag.bets.high)
    found_limits = limits(lag.bets, drawn, *ranges, max(1e-6, nats(known, 0.5, lag.candidates) + level_shift))
    wrong = (lag.bets.sides[:, None, None] * (found_limits - exact_means(model, lag)) < -1e-9).any()
    verdict = lag.look(known, drawn)
    plus, slack = verdict.vectors[1, 0, :-1], verdict.vectors[1, 0, -1]
    outside = (known.values(STATES, best[:, None]) > known.values(STATES, plus[:, None]) + slack + 1e-9).any()
    return wrong, outside


def exact_means(model, lag):
    """ξ(V) of the lag's functions, from the law of demands."""
    from tests.hull_models import CHANCES, DEMANDS, sold

    rewards, left = sold(np.repeat(GRID, 5), np.tile(DEMANDS, len(GRID)))
    scaled = (rewards - model.units.reward_offset) / model.units.reward_scale
    found = lag.bets.outcomes(model.problem, 0, scaled, left[:, None])
    return (found.reshape(len(found), len(GRID), 5) @ CHANCES)[:, None, :]


def test_limits_of_a_lag_are_wrong_as_rarely_as_they_say():
    model, rng, runs = simulator(), np.random.default_rng(5), 100
    lag, best = fixed_lag(model, rng), true_vectors(model)[0]
    seen = np.array([outcomes_of_a_test(model, lag, best, rng) for _ in range(runs)])
    assert binomtest(int(seen[:, 0].sum()), runs, 0.5, alternative="greater").pvalue > 1e-6
    assert seen[:, 1].sum() <= seen[:, 0].sum()  # a bracket is wrong only if a limit is
    broken = sum(outcomes_of_a_test(model, lag, best, rng, level_shift=-4)[0] for _ in range(runs))
    assert binomtest(int(broken), runs, 0.5, alternative="greater").pvalue < 1e-4  # a smaller threshold is noticed


@pytest.mark.study
def test_coverage_of_whole_runs():
    """300 runs at δ = 0.3: brackets and ε."""
    model, wrong = simulator(), 0
    for seed in range(300):
        result = bp.identify(model, epsilon="10%", delta=0.3, seed=seed, linearity=0)
        own, best = truth(model, result, STATES).T
        lower, upper = result.values(STATES).T
        wrong += bool((lower > own + 1e-9).any() or (upper < best - 1e-9).any() or (best - own).max() > result.epsilon)
    print(f"wrong in {wrong} of 300 runs")
    assert binomtest(wrong, 300, 0.3, alternative="greater").pvalue > 1e-6


def test_shares_of_delta_sum_to_one():
    assert sum(share(j) for j in range(1, 100)) == pytest.approx(1.0)
    assert [share(j) for j in range(1, 20)] == [share_again(j) for j in range(1, 20)]


def test_what_a_lag_fixes_does_not_see_its_samples():
    """The same past gives the same lag, whatever comes later."""
    model = simulator()
    lags = []
    for seed in (1, 2):
        run = Hull(gaps=False).run(task_of(model))
        request, rng = next(run), np.random.default_rng(0)
        while request.wanted.bets is None:
            request = run.send(model.sample(request.wanted, rng))
        lags.append(request.decided["lag"])
        request = run.send(model.sample(request.wanted, np.random.default_rng(seed)))  # other samples of the test
        later = request.wanted.bets
        if later is not None and "lag" not in request.decided:
            np.testing.assert_array_equal(later.stakes, lags[-1]["bets"]["stakes"])
            np.testing.assert_array_equal(later.grid, lags[-1]["bets"]["grid"])
    for name in ("vectors", "stakes", "grid", "low", "high"):
        np.testing.assert_array_equal(lags[0]["bets"][name], lags[1]["bets"][name])


def task_of(model):
    from bestpolicy.algorithms.protocol import Task

    return Task(model.problem, 0.05 * float(model.problem.value_limits[0]), 0.1, np.random.default_rng(0))


def test_actions_do_not_hang_on_who_else_is_asked_about():
    result = bp.identify(simulator(), **HOW)
    states = np.random.default_rng(3).uniform(0, 8, (500, 1))
    together = result.policy(states)
    assert together.tolist() == [int(result.policy(row[None])[0]) for row in states]
    assert result.action(states[0]) == together[0]


def test_pairs_that_are_no_anchors():
    centres = np.linspace(0, 1, 3)[:, None]
    soft = bp.features.SoftAggregation(centres, width=0.3)
    known = bp.FeatureProblem(bp.features.Product(soft, bp.features.Actions(2, 0)), actions=2, discount=0.5)
    means = np.array([[0.2, 0.5], [0.6, 0.3], [0.9, 0.1]])

    def soft_step(states, actions, rng):
        weight = np.cumsum(soft(states, actions).toarray(), axis=1)
        centre = (weight < rng.random((len(states), 1))).sum(axis=1).clip(max=2)
        return (rng.random(len(states)) < means[centre, actions]).astype(float), rng.random((len(states), 1))

    model = bp.CallableSimulator(known, soft_step, vectorized=True)
    result = bp.identify(model, epsilon="30%", delta=0.2, seed=0, max_samples=10**6)
    assert result.certified
    assert result.values([[0.0], [1.0]])[:, 0].min() >= 0


# --- runs


def test_runs_that_are_interrupted_go_on_bit_for_bit(tmp_path):
    model, looks = simulator(), []
    whole = bp.identify(model, **HOW)

    def stop(study):
        looks.append(study.samples)
        if len(looks) in (2, 5):
            raise KeyboardInterrupt

    for _ in range(3):
        result = bp.identify(model, **HOW, store=tmp_path / "run.db", progress=stop)
    assert result.certified
    assert (result.epsilon, result.samples) == (whole.epsilon, whole.samples)
    np.testing.assert_array_equal(result.policy.vectors, whole.policy.vectors)
    again = bp.identify(model, **HOW, store=tmp_path / "run.db")  # from the file alone
    np.testing.assert_array_equal(again.values(STATES), whole.values(STATES))
    (record,) = bp.studies(tmp_path / "run.db")
    assert record.samples == whole.samples
    with pytest.raises(bp.InvalidInput, match="functions of yours that no file can hold"):
        bp.Study.resume(tmp_path / "run.db")
    assert bp.Study.resume(tmp_path / "run.db", problem=problem()).done


def test_workers_give_the_same_answer_whoever_they_are():
    model = simulator()
    found = [
        bp.identify(model, **HOW, calls_per_query=700, executor=workers)
        for workers in (None, lambda: ThreadPoolExecutor(3))
    ]
    assert found[0].epsilon == found[1].epsilon
    np.testing.assert_array_equal(found[0].policy.vectors, found[1].policy.vectors)


def test_ask_and_tell():
    model = simulator()
    study = bp.Study(model.problem, **HOW, units=model.units, calls_per_query=5000)
    while not study.done:
        for query in study.ask():
            study.tell(query, model.sample(query.wanted, query.rng()))
    assert study.result().certified
    with pytest.raises(bp.InvalidInput, match="needs states that are listed"):
        bp.Study(model.problem, epsilon=0.1, delta=0.1, algorithm="tight")
    with pytest.raises(bp.InvalidInput, match="its states are listed"):
        bp.Study(bp.Problem.tabular(2, 2, discount=0.5), epsilon=0.1, delta=0.1, algorithm="hull")


def test_memory_is_bounded():
    model = simulator()
    result = bp.identify(model, **HOW, algorithm=Hull(most_kept=1500))
    assert result.certified


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r, s: (r, s * np.nan), r"state \(\d\), action 0 leads to state \(nan\), which is no state"),
        (lambda r, s: (r, s - 9.0), r"outside of the grid \[0, 8\]"),
        (lambda r, s: (r, s[:-1]), r"Got shapes \(\d+,\) and \(\d+, 1\)"),
        (lambda r, s: (r + 2.0, s), r"reward .* of state \(\d\), action 0 is not in \[-0.33, 0.8\]"),
        (lambda r, s: r, "must return"),
    ],
)
def test_bad_answers_end_with_one_error_that_names_the_state(change, said):
    calls = []

    def bad(states, actions, rng):
        calls.append(len(states))
        answer = step(states, actions, rng)
        return change(*answer) if len(calls) > 1 else answer

    model = bp.CallableSimulator(problem(), bad, vectorized=True, reward_range=(-0.33, 0.8))
    with pytest.raises(bp.SimulatorError, match=said) as failure:
        bp.identify(model, **HOW)
    assert failure.value.study.samples == calls[0]  # nothing measured is lost
    assert bp.drive(failure.value.study, simulator()).certified


def test_functions_are_called_one_by_one_too():
    def single(state, action, rng):
        rewards, following = step(state[None], np.array([action]), rng)
        return rewards[0], following[0]

    model = bp.CallableSimulator(problem(), single, reward_range=(-0.33, 0.8))
    result = bp.identify(model, epsilon="20%", delta=0.2, seed=0, max_samples=20_000)
    assert result.samples <= 20_000
    assert result.policy([[0.0]]).shape == (1,)


def test_a_problem_says_what_it_cannot_be():
    hats = bp.features.Hats([[0.0, 1.0]])
    for options, said in (
        ({"discount": 0.5, "horizon": 3}, "either discount or horizon"),
        ({"discount": 0.5, "known_best": (0, 0)}, "goes with a known_reward"),
        ({"discount": 0.5, "mask": lambda states: np.ones((len(states), 3))}, "mask must return"),
        ({"discount": 0.5, "mask": lambda states: np.zeros((len(states), 2))}, r"allows no action in state \(0\)"),
        ({"discount": 0.5, "known_reward": lambda states, actions: states}, "known_reward must return shape"),
    ):
        with pytest.raises(bp.InvalidInput, match=said):
            bp.FeatureProblem(hats, actions=2, **options)
    unreachable = bp.features.Hats([[0.0, 1.0]], point=lambda states, actions: states * 0 + 0.5)
    with pytest.raises(bp.InvalidInput, match="step_from"):
        bp.CallableSimulator(bp.FeatureProblem(unreachable, actions=2, discount=0.5), step, vectorized=True)


# --- certificates


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hull")
    result = bp.identify(simulator(), **HOW, store=folder / "run.db")
    result.save(folder / "certificate.json")
    return folder, result


def test_another_program_comes_to_the_same_epsilon(saved):
    folder, result = saved
    checked = bp.verify(folder / "certificate.json")
    assert checked.valid, checked.reasons
    assert checked.recomputed_epsilon == pytest.approx(result.epsilon, rel=1e-9)
    assert "Theorem F±" in str(checked)
    assert any("misfit" in item for item in checked.trusted)
    ordered = bp.verify(folder / "certificate.json", store=folder / "run.db")
    assert ordered.order_shown, ordered.reasons


def test_the_policy_of_a_certificate(saved):
    folder, result = saved
    policy = bp.load_policy(folder / "certificate.json", problem=problem())
    np.testing.assert_array_equal(policy(STATES), result.policy(STATES))
    with pytest.raises(bp.InvalidInput, match="functions of yours"):
        bp.load_policy(folder / "certificate.json")
    with pytest.raises(bp.InvalidInput, match="about another problem"):
        bp.load_policy(folder / "certificate.json", problem=problem(discount=0.7))


def test_ready_made_problems_need_nothing_but_the_file(tmp_path):
    grid = bp.features.Blocks([bp.features.Hats([np.linspace(0, 1, 3)])] * 2)
    known = bp.FeatureProblem(grid, actions=2, discount=0.5)

    def drift(states, actions, rng):
        rewards = (rng.random(len(states)) < np.where(actions == 1, states[:, 0], 0.5)).astype(float)
        return rewards, np.clip(states + 0.5 * (rng.random((len(states), 1)) < 0.5) - 0.25, 0, 1)

    result = bp.identify(
        bp.CallableSimulator(known, drift, vectorized=True),
        epsilon="20%", delta=0.1, seed=0, store=tmp_path / "run.db",
    )  # fmt: skip
    result.save(tmp_path / "certificate.json")
    assert bp.load_policy(tmp_path / "certificate.json")([[0.0], [1.0]]).tolist() == [0, 1]
    assert bp.Study.resume(tmp_path / "run.db").result().epsilon == result.epsilon


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("gains", "gains do not fit"),
        ("epsilon", "the samples certify only"),
        ("delta", "more than its share"),
        ("vectors", "not the one that the lag has fixed"),
        ("sums", "do not fit"),
    ],
)
def test_what_is_changed_in_a_file_is_noticed(saved, tmp_path, field, said):
    from bestpolicy.certificate import _encoded

    folder, _ = saved
    document = json.loads((folder / "certificate.json").read_text())
    proof, claim = document["proof"], document["claim"]
    if field == "epsilon":
        claim["epsilon"] *= 0.9
    elif field == "delta":
        proof["lag"]["delta"] *= 1.1
    else:
        place = claim if field == "vectors" else proof
        from bestpolicy.problem.feature_policy import _array

        place[field] = _encoded(_array(place[field]) * 1.5 + 0.01, "<f8")
    document["sha256"] = digest(document)
    (tmp_path / "changed.json").write_text(json.dumps(document))
    checked = bp.verify(tmp_path / "changed.json")
    assert not checked.valid
    assert said in str(checked)


def test_epsilon_grows_with_the_misfit(saved):
    _, result = saved
    assert result.epsilon_at(0.0) == result.epsilon
    assert result.epsilon_at(0.01) == pytest.approx(result.epsilon + 2 * 0.01 / (1 - 0.8))
    assert len(ORDERS) == result.policy.problem.actions


def test_pages_say_what_a_claim_rests_on_and_show_the_policy(saved):
    folder, result = saved
    for source in (result, folder / "run.db", folder / "certificate.json"):
        page = bp.report.report_page(source)
        assert "if the features fit; with an interpolation error of up to ζ" in page
        assert "Every look at the data" in page or source == folder / "certificate.json"
        shown = source is result  # the problem has functions, which are in no file
        assert ("The policy and its values" in page) is shown
        assert ("optimal value at most" in page) is shown
        assert ("functions of yours are in no file" in page) is not shown
    with pytest.raises(bp.InvalidInput, match="for states that are listed"):
        bp.report.report_page(result, grid=(1, 2))


# --- more traps


def test_coefficients_of_pairs_that_are_no_anchors_are_exact():
    """Without a ridge: combinations of the pairs' features are the unit vectors to 1e-10, also if badly conditioned."""
    for width in (0.1, 0.3, 1.0):
        soft = bp.features.SoftAggregation(np.linspace(0, 1, 4)[:, None], width=width)
        rows = soft(*soft.pairs).toarray()
        assert soft.coefficients is not None
        np.testing.assert_allclose(soft.coefficients @ rows, np.eye(4), rtol=0, atol=1e-10)
    assert np.linalg.cond(rows) > 100


def test_looks_at_bets_are_free():
    """The best of many looks is wrong as rarely as a single one: the level is not shared between them."""
    rng, wrong, runs = np.random.default_rng(4), 0, 150
    for _ in range(runs):
        outcomes = rng.beta(0.4, 1.2, 300)
        wrong += min(limit(outcomes[:n], log(1 / 0.3), 1) for n in range(10, 301, 10)) <= 0.25
    assert binomtest(wrong, runs, 0.3, alternative="greater").pvalue > 1e-6
    assert wrong > 0


def test_it_is_for_states_that_cannot_be_listed_only():
    listed = bp.Problem.tabular(3, 2, discount=0.5)
    assert "states are listed" in Hull().unsuitable(listed)
    assert bp.algorithms.default_name(listed)[0] == "sharp"
    assert bp.algorithms.default_name(problem())[0] == "hull"
