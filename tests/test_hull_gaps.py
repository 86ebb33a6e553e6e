"""Theorem H: gaps count where states cannot be listed. As a statistician would test it, and its traps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms.hull import Hull
from bestpolicy.algorithms.hull_gaps import BETS, LOOKS, GapPlan
from bestpolicy.algorithms.hull_plan import PastModel
from bestpolicy.algorithms.protocol import Task
from bestpolicy.certificate import _encoded
from bestpolicy.problem.feature_policy import _array
from bestpolicy.samples import Draws
from bestpolicy.samples.kept import Kept
from bestpolicy.stopping import hull_gaps
from bestpolicy.stopping.hull_gaps import Excess, Seen, everywhere, noise
from bestpolicy.verification.reading import digest
from tests.hull_models import GRID, simulator, true_vectors, truth

STATES = np.linspace(0, 8, 65)[:, None]
HOW = {"epsilon": "2%", "delta": 0.1, "seed": 1, "linearity": 0}
D = len(GRID)


def fixed_lag(model, delta=0.5, past=4000, test=8000.0, seed=5):
    rng = np.random.default_rng(seed)
    known = PastModel(model.problem, model.sample(Draws(np.full((1, D), past // D)), rng))
    return GapPlan(known, 1, delta, 0.1, 1e9)._lag(test, float(past), (1.0,))


def looked_at(model, lag, rng):
    """What a test found: the samples, ξ̂ - ξ̃, z, e, and the verdict."""
    test = Kept(model.problem, model.sample(Draws(lag.counts[:1]), rng))
    verdict, found = lag.look(model.problem, test, 0)
    response = np.linalg.inv(np.eye(D) - model.problem.continuation * found["kernel"])
    shift = response @ found["means"] - lag.vector
    z, box = noise(model.problem, lag, 0, Seen(response, shift, np.abs(found["kernel"] - lag.kernel), found["squares"]))
    return test, shift, z, response @ box, verdict, found


def wrong(model, lag, own, loss, rng):
    """Whether z, whether limits of values, and whether ε of a test were wrong."""
    _, shift, z, wide, verdict, _ = looked_at(model, lag, rng)
    off = lag.vector + shift - own  # Jx
    return (
        (np.abs(lag.centred(off)) > z + 1e-12).any(),
        (np.abs(off) > wide + 1e-12).any(),
        loss > verdict.epsilon,
    )


def true_loss(model, lag):
    """sup of V* - V^π over many states, and ξ^π."""
    best, own = true_vectors(model)[0], true_vectors(model, lag.vector[None])[0]
    choices = model.problem.choices(np.linspace(0, 8, 2001)[:, None])
    rows = choices.greedy(lag.vector)
    values = choices.known[rows] + choices.features[rows] @ own
    return float((choices.best(best[:, None])[:, 0] - values).max()), own


def test_bounds_are_wrong_as_rarely_as_they_say():
    model, rng, runs = simulator(), np.random.default_rng(5), 20
    lag = fixed_lag(model)
    loss, own = true_loss(model, lag)
    seen = np.array([wrong(model, lag, own, loss, rng) for _ in range(runs)]).sum(axis=0)
    assert all(binomtest(int(count), runs, 0.5, alternative="greater").pvalue > 1e-6 for count in seen)
    assert seen[2] == 0
    careless = replace(lag, delta=(5 + 2 * BETS) * D * exp(-0.02))  # l = 0.02
    broken = sum(wrong(model, careless, own, loss, rng)[0] for _ in range(10))
    assert broken >= 7  # a level that is too small is noticed


@pytest.mark.study
def test_coverage_of_a_lag_at_one_half():
    """1,000 tests of one lag at δ = 0.5: how often a bound on noise, a bracket, and ε are wrong."""
    model, rng, runs = simulator(), np.random.default_rng(7), 1000
    for seed in range(2):
        lag = fixed_lag(model, past=400, test=1500.0, seed=seed)
        loss, own = true_loss(model, lag)
        seen = np.array([wrong(model, lag, own, loss, rng) for _ in range(runs)]).sum(axis=0)
        print(f"of {runs}: z {seen[0]}, limits of values {seen[1]}, ε {seen[2]}; loss {loss:.4g}")
        assert (seen <= 0.5 * runs).all()
        assert seen[2] == 0


@pytest.mark.study
def test_coverage_of_whole_runs():
    """300 runs at δ = 0.3: brackets and ε."""
    model, bad, by_gaps = simulator(), 0, 0
    for seed in range(300):
        result = bp.identify(model, epsilon="2%", delta=0.3, seed=seed, linearity=0)
        own, best = truth(model, result, STATES).T
        lower, upper = result.values(STATES).T
        bad += bool((lower > own + 1e-9).any() or (upper < best - 1e-9).any() or (best - own).max() > result.epsilon)
        by_gaps += result.rule == "Theorem H"
    print(f"wrong in {bad} of 300 runs, {by_gaps} of them by Theorem H")
    assert by_gaps > 250
    assert binomtest(bad, 300, 0.3, alternative="greater").pvalue > 1e-6


# --- what it is for


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gaps")
    result = bp.identify(simulator(), **HOW, store=folder / "run.db")
    result.save(folder / "certificate.json")
    return folder, result


def test_small_epsilon_is_certified_by_gaps_with_fewer_samples(saved):
    _, result = saved
    assert result.certified
    assert result.rule == "Theorem H"
    model = simulator()
    own, best = truth(model, result, STATES).T
    lower, upper = result.values(STATES).T
    assert (lower <= own + 1e-9).all()
    assert (best <= upper + 1e-9).all()
    assert (best - own).max() <= result.epsilon <= result.asked_epsilon
    plain = bp.identify(model, **HOW, algorithm=Hull(gaps=False))
    assert plain.rule == "Theorem F±"
    assert result.samples < 0.8 * plain.samples
    assert bp.identify(model, **HOW | {"epsilon": "10%"}).rule == "Theorem F±"
    kept = bp.identify(model, **HOW, algorithm=Hull(most_kept=10**4))  # no room for its samples
    assert kept.certified
    assert kept.rule == "Theorem F±"


def test_a_run_goes_on_bit_for_bit_and_workers_agree(saved, tmp_path):
    _, whole = saved
    model, store = simulator(), tmp_path / "run.db"
    study = bp.Study(model.problem, **HOW, units=model.units, store=store)
    while "vector" not in study._request.decided.get("lag", {}) and not study.done:
        for query in study.ask():
            study.tell(query, model.sample(query.wanted, query.rng()))
    query = study.ask()[0]
    study.tell(query, model.sample(query.wanted, query.rng()))  # a look has failed, or is the last
    study.close()
    again = bp.identify(model, **HOW, store=store)
    assert (again.epsilon, again.samples) == (whole.epsilon, whole.samples)
    np.testing.assert_array_equal(again.policy.vectors, whole.policy.vectors)
    with ThreadPoolExecutor(3) as pool:
        many = bp.identify(model, **HOW, executor=pool, calls_per_query=10**6)
    assert (many.epsilon, many.samples) == (whole.epsilon, whole.samples)


def test_a_budget_that_ends_between_looks_goes_on_at_the_fixed_counts(saved, tmp_path):
    _, whole = saved
    model, store, budget = simulator(), tmp_path / "run.db", saved[1].samples - 700
    short = bp.identify(model, **HOW, store=store, max_samples=budget)
    assert not short.certified
    assert budget - D < short.samples <= budget
    longer = bp.drive(bp.Study.resume(store, problem=model.problem, max_samples=10**6), model)
    assert longer.certified
    assert longer.samples == whole.samples  # the look is at the counts that were fixed for it


# --- traps


def test_what_a_lag_fixes_does_not_see_its_samples():
    model, lags = simulator(), []
    for seed in (1, 2):
        task = Task(model.problem, 0.03 * float(model.problem.value_limits[0]), 0.1, np.random.default_rng(0))
        run, rng = Hull().run(task), np.random.default_rng(0)
        request = next(run)
        while "lag" not in request.decided:
            request = run.send(model.sample(request.wanted, rng))
        lags.append(request.decided["lag"])
        asked = request.wanted.counts
        request = run.send(model.sample(request.wanted, np.random.default_rng(seed)))  # other samples of the test
        np.testing.assert_array_equal(asked[0], lags[-1]["counts"][0])
        np.testing.assert_array_equal(request.wanted.counts[0], lags[-1]["counts"][1] - lags[-1]["counts"][0])
    for name in ("vector", "kernel", "weights", "centres", "counts", "box", "directions"):
        np.testing.assert_array_equal(lags[0][name], lags[1][name])


def test_ties_are_broken_as_played_in_batches_and_one_by_one(saved):
    _, result = saved
    policy = result.policy
    states = np.concatenate([STATES, GRID[:, None], np.random.default_rng(3).uniform(0, 8, (300, 1))])
    together = policy(states)
    assert together.tolist() == [int(policy(row[None])[0]) for row in states]
    choices = policy.problem.choices(states)
    rows = choices.greedy(policy.vectors[0])
    assert (choices.place[rows] % policy.problem.actions == together).all()  # what a test evaluates is what is played
    tied = replace(policy, vectors=np.zeros_like(policy.vectors))  # all orders that cost the same are tied
    assert tied(states).tolist() == [int(tied(row[None])[0]) for row in states]


def test_looks_share_what_a_lag_may_spend(saved):
    model = simulator()
    rng = np.random.default_rng(0)
    past = PastModel(model.problem, model.sample(Draws(np.full((1, D), 300)), rng))
    plan = GapPlan(past, 1, 0.1, 0.1, 1e9)
    one, all_ = plan._lag(5000.0, 1500.0, (1.0,)), plan._lag(5000.0, 1500.0)
    assert one.level == pytest.approx(log((5 + 2 * BETS) * D / 0.1))
    assert all_.level == pytest.approx(one.level + log(len(LOOKS)))
    with pytest.raises(ValueError, match="other counts"):  # no look in between
        all_.look(model.problem, Kept(model.problem, model.sample(Draws(all_.counts[:1] + 1), rng)), 0)


def brute_force(model, lag, test, z, shift, t):
    """mean_j max_a{U(S', a) + γφ_aᵀt}, without leaving out a pair."""
    known, vector = model.problem, lag.vector + shift
    choices = known.choices(test.states)
    rows = choices.features.toarray().reshape(len(test.states), known.actions, D)
    paid = choices.known.reshape(rows.shape[:2])
    every, own = np.arange(len(rows)), known.greedy(test.states, lag.vector)
    b = rows - rows[every, own][:, None]
    upper = paid - paid[every, own][:, None] + b @ vector + np.abs(b) @ z
    return np.bincount(test.place, (upper + known.continuation * rows @ t).max(axis=1), D) / test.counts[0]


@pytest.mark.parametrize("steps", [30, 0])
def test_super_solutions_are_checked_not_assumed(monkeypatch, steps):
    """Also where Newton's method is given no steps at all."""
    monkeypatch.setattr(hull_gaps, "_NEWTON_STEPS", steps)
    model, rng = simulator(), np.random.default_rng(2)
    lag = fixed_lag(model, past=1000, test=2500.0)
    test, shift, z, _, verdict, found = looked_at(model, lag, rng)
    deviation = np.sqrt(lag.level / (2 * lag.counts[0]))
    gamma, limit = model.problem.continuation, float(model.problem.value_limits[0])
    start = min(limit, limit * everywhere(z, shift, 0 * z, gamma, limit))
    excess = Excess(model.problem, test, lag, z, shift, start / limit)
    for omega in (start, 0.2 * start):
        excess._narrow(omega)
        t, reached = excess.super_solution(omega, deviation, 0 * z)
        np.testing.assert_allclose(reached, brute_force(model, lag, test, z, shift, t), rtol=0, atol=1e-9)
        assert ((reached + omega * deviation <= t) | (t == omega)).all()
    if steps:
        assert len(found["omegas"]) > 1
        assert verdict.epsilon < found["omegas"][0]


# --- certificates


def test_another_program_comes_to_the_same_epsilon(saved):
    folder, result = saved
    checked = bp.verify(folder / "certificate.json", store=folder / "run.db")
    assert checked.valid, checked.reasons
    assert checked.order_shown
    assert checked.recomputed_epsilon == pytest.approx(result.epsilon, rel=1e-4)
    assert "Theorem H" in str(checked)
    assert "+ 10ζ" in str(checked)
    policy = bp.load_policy(folder / "certificate.json", problem=simulator().problem)
    assert (policy(STATES) == result.policy(STATES)).all()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("epsilon", "the samples certify only"),
        ("delta", "more than its share"),
        ("vectors", "not the one that the lag has fixed"),
        ("values", "narrower"),
        ("counts", "not those that were fixed"),
        ("squares", "do not fit to the means"),
        ("bounds", "super-solution"),
        ("reached", "less than what the policy itself gives"),
        ("omegas", "begins with less"),
        ("kernel", "is no law"),
    ],
)
def test_what_is_changed_in_a_file_is_noticed(saved, tmp_path, field, said):
    folder, _ = saved
    document = json.loads((folder / "certificate.json").read_text())
    proof, claim = document["proof"], document["claim"]
    if field == "epsilon":
        claim["epsilon"] *= 0.9
    elif field == "delta":
        proof["lag"]["delta"] *= 1.1
    elif field in ("vectors", "values"):
        vectors = _array(claim["vectors"])
        vectors[..., : -1 if field == "vectors" else None] *= 0.9 if field == "vectors" else 1.0
        vectors[..., -1] *= 1.0 if field == "vectors" else 0.5
        claim["vectors"] = _encoded(vectors, "<f8")
    elif field == "counts":
        proof["counts"] = _encoded(np.full(D, 100), "<i8")
    else:
        proof[field] = _encoded(_array(proof[field]) * 0.5, "<f8")
    document["sha256"] = digest(document)
    (tmp_path / "changed.json").write_text(json.dumps(document))
    checked = bp.verify(tmp_path / "changed.json")
    assert not checked.valid
    assert said in str(checked)


def test_a_lag_that_is_not_the_one_of_the_file_is_noticed(saved, tmp_path):
    folder, _ = saved
    document = json.loads((folder / "certificate.json").read_text())
    lag = document["proof"]["lag"]
    lag["centres"] = _encoded(_array(lag["centres"]) + 1e-6, "<f8")
    document["sha256"] = digest(document)
    (tmp_path / "changed.json").write_text(json.dumps(document))
    checked = bp.verify(tmp_path / "changed.json", store=folder / "run.db")
    assert "not what was decided when it began" in str(checked)
