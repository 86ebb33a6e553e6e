"""Claims about feature maps say what they rest on, and runs test it: nothing is certified without its ζ."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.run.audit import STAKES, mean_limits
from bestpolicy.run.misfit import Differences, Place, _tested
from bestpolicy.samples import Draws
from bestpolicy.stopping.hull import bracket, outcome_ranges, value_ranges
from bestpolicy.study.result import Outcome
from tests.hull_models import simulator, true_vectors
from tests.test_audit import slider
from tests.test_hull import fixed_lag

HOW = {"epsilon": "10%", "delta": 0.1, "seed": 0}


def test_every_wording_of_a_claim_says_its_condition(tmp_path):
    result = bp.identify(simulator(), **HOW)
    assert result.certified
    said = "if the features fit; with an interpolation error of up to ζ, within "
    per = 2 / (1 - 0.8)
    for text in (result.explanation, str(result), result._repr_html_(), result.to_dict()["explanation"]):
        assert said in text
        assert f"+ {per:g}ζ" in text
    assert "if the features fit" in repr(result)
    assert result.to_dict()["epsilon_per_misfit"] == pytest.approx(per)
    assert result.epsilon_at(0.3) == pytest.approx(result.epsilon + per * 0.3)
    result.save(tmp_path / "certificate.json")
    checked = bp.verify(tmp_path / "certificate.json")
    assert checked.valid
    assert said in str(checked)
    assert f"+ {per:g}ζ" in str(checked)
    assert checked.to_dict()["epsilon_per_misfit"] == pytest.approx(per)
    early = bp.identify(simulator(), **HOW | {"epsilon": "4%"}, max_samples=9000)
    assert early.outcome is Outcome.BUDGET
    assert early.epsilon < np.inf
    assert said in early.explanation
    assert "not tested" in early.explanation


def test_episodes_are_tested_at_their_steps():
    fits = bp.identify(simulator(horizon=3), epsilon="15%", delta=0.1, seed=1)
    assert fits.certified
    assert "+ 6ζ" in fits.explanation
    assert fits.misfit is not None
    bent = bp.identify(slider(bend=1.0, horizon=3), epsilon="15%", delta=0.1, seed=1)
    assert bent.outcome is Outcome.DOUBT
    assert 0 < bent.misfit.shown <= 0.6


def test_the_functions_of_a_step_are_those_of_the_next():
    """The mean outcome at an anchor is near what the vectors of its step say; the last step has the least range."""
    model = simulator(horizon=3)
    result = bp.identify(model, epsilon="5%", delta=0.1, seed=1, linearity=0)
    tester = Differences(result, model)
    for stage in range(3):
        means = tester.at_anchor(2, stage, 20_000, (stage,)).mean(axis=1)
        assert np.abs(means - tester.vectors[:, stage, 2]).max() < 0.1
    spread = [np.diff(tester.limits(Place(np.array([1.5]), 1, stage)), axis=0).max() for stage in range(3)]
    assert spread[0] > spread[1] > spread[2]


def test_a_run_tests_its_features_and_prices_what_it_finds():
    plain = bp.identify(simulator(), **HOW, linearity=0)
    result = bp.identify(simulator(), **HOW)
    found = result.misfit
    assert found is not None
    assert plain.misfit is None
    assert result.samples == plain.samples + found.calls
    assert 300 <= found.calls <= 4 * max(1000, 0.05 * plain.samples)
    assert result.epsilon == plain.epsilon
    assert found.at_zeta == pytest.approx(result.epsilon_at(found.zeta + found.width))
    assert f"at {found.pairs} tested pairs" in result.explanation
    assert bp.identify(simulator(), **HOW).explanation == result.explanation
    full = bp.identify(simulator(), **HOW, max_samples=plain.samples)
    assert full.certified
    assert full.samples == plain.samples
    assert "no calls of the budget were left" in full.explanation


def test_a_misfit_that_is_shown_puts_the_claim_in_doubt(tmp_path):
    store = tmp_path / "run.db"
    result = bp.identify(slider(bend=1.0), **HOW, store=store)
    assert result.outcome is Outcome.DOUBT
    assert not result.certified
    assert result.misfit.in_doubt
    assert result.misfit.shown <= 0.6  # the truth: 0.6·position at most
    assert result.explanation.startswith("Nothing is certified, because the features do not fit")
    result.save(tmp_path / "certificate.json")
    checked = bp.verify(tmp_path / "certificate.json", store=store)
    assert checked.valid
    assert checked.in_doubt
    again = bp.identify(no_longer_there(slider(bend=1.0)), **HOW, store=store)  # from the file alone
    assert (again.outcome, again.explanation, again.samples) == (result.outcome, result.explanation, result.samples)
    assert again.misfit.to_dict() == result.misfit.to_dict()
    (record,) = bp.studies(store)
    assert (record.samples, record.result["outcome"]) == (result.samples, "in doubt")
    assert json.loads(json.dumps(result.to_dict()))["misfit"]["in_doubt"]


def no_longer_there(model):
    def gone(*_):
        raise RuntimeError("called")

    model.step = gone
    return model


def test_a_run_that_ended_before_its_test_is_tested_by_the_same_call(tmp_path):
    store, model = tmp_path / "run.db", slider(bend=1.0)
    whole = bp.identify(model, **HOW)
    study = bp.Study(model.problem, **HOW, units=model.units, store=store)
    while not study.done:
        for query in study.ask():
            study.tell(query, model.sample(query.wanted, query.rng()))
    assert study.result().certified
    assert "not tested" in study.result().explanation
    study.close()
    result = bp.identify(model, **HOW, store=store)
    assert (result.outcome, result.samples, result.explanation) == (whole.outcome, whole.samples, whole.explanation)
    assert bp.Study.resume(store, problem=model.problem).result().outcome is Outcome.DOUBT


def test_a_test_that_fails_is_said_and_nothing_is_lost():
    model = slider(bend=0.0)
    step = model.step

    def picky(states, actions, rng):
        if not np.isin(states, [0.0, 0.5, 1.0]).all():
            raise ValueError("only nodes")
        return step(states, actions, rng)

    model.step = picky
    result = bp.identify(model, **HOW)
    assert result.certified
    assert "not tested: the test failed" in result.explanation
    assert "only nodes" in result.explanation


def test_the_time_limit_bounds_the_test_of_the_fit_too(tmp_path):
    """The certificate is there, and then calls take long: the run ends in time, and says what it left out."""
    model, store = slider(bend=1.0), tmp_path / "run.db"
    study = bp.Study(model.problem, **HOW, units=model.units, store=store)
    while not study.done:
        for query in study.ask():
            study.tell(query, model.sample(query.wanted, query.rng()))
    study.close()
    step, model.step = model.step, lambda *args: (time.sleep(0.4), step(*args))[1]
    begun = time.monotonic()
    result = bp.identify(model, **HOW, store=store, max_seconds=1.0)
    assert time.monotonic() - begun < 4.0
    assert result.certified
    assert "not tested: no time was left for it" in result.explanation
    again = bp.identify(slider(bend=1.0), **HOW, store=store)  # the same call again tests
    assert again.outcome is Outcome.DOUBT


# --- as a statistician would


def test_the_difference_has_twice_the_range_of_an_outcome():
    """With known rewards the limits move, and with a remainder they are those of the simulated pairs."""
    for model in (slider(bend=1.0), simulator()):
        tester = Differences(bp.identify(model, **HOW, linearity=0), model)
        reach = 1.0 + model.problem.continuation * (tester.high - tester.low)[:, 0]
        rng, end = np.random.default_rng(0), 1.0 if model.problem.known_reward is None else 8.0
        for seed in range(20):
            state, action = rng.uniform(0, end, 1), int(rng.integers(model.problem.actions))
            low, high = tester.limits(Place(state, action))
            if model.problem.remainder is None:
                np.testing.assert_allclose(high - low, 2 * reach)
            found = tester.differences(Place(state, action), 200, (seed,))
            assert (found >= low[:, None] - 1e-12).all()
            assert (found <= high[:, None] + 1e-12).all()
    tester = Differences(bp.identify(slider(bend=1.0), **HOW, linearity=0), slider(bend=1.0))
    low, high = tester.limits(Place(np.array([0.25]), 1))
    assert (low < -1.0).all()  # Λ alone would be too narrow: the worst reward at the pair, the best at the anchors
    assert (high > 1.0).all()


def test_what_is_shown_is_wrong_as_rarely_as_it_says():
    """The interpolated model fits, with noise that common random numbers do not take away: nothing may be shown."""
    model = slider(bend=1.0).interpolated()
    result, runs = bp.identify(model, **HOW, linearity=0), 100
    places = [Place(np.array([0.25]), 0), Place(np.array([0.75]), 1), Place(np.array([0.6]), 0)]
    wrong = sum(_tested(result, model, places, (4, 100, 1), 0.3, seed).shown > 0 for seed in range(runs))
    assert binomtest(wrong, runs, 0.3, alternative="greater").pvalue > 1e-6
    shown = [_tested(result, slider(bend=1.0), places, (8, 400, 2), 0.3, seed).shown for seed in range(5)]
    assert min(shown) > 0  # of the system itself, which is bent, it is


# --- what is checked, not assumed


def test_functions_that_are_no_super_solutions_cost_epsilon_and_break_nothing():
    """ξ⁺ that is too small, and ξ⁻ that is too large, by 0.3 each: what they lack is measured and added."""
    model, rng = simulator(), np.random.default_rng(5)
    good, best = fixed_lag(model, rng), true_vectors(model)[0]
    moved = np.where(np.arange(len(good.bets.sides)) < good.candidates, -0.3, 0.3)[:, None, None]
    vectors = good.bets.vectors + moved
    low, high, _ = value_ranges(model.problem, vectors)
    least, most = outcome_ranges(model.problem, low, high)
    grid = np.linspace(least, most, 200, axis=-1)
    fixed = {"vectors": vectors, "low": low, "high": high, "stakes": 0.3 / (most - least), "grid": grid}
    lag = replace(good, bets=replace(good.bets, **fixed))
    verdict = lag.look(model.problem, model.sample(Draws(lag.unit, False, lag.bets), rng))
    assert verdict.epsilon > good.look(model.problem, model.sample(Draws(good.unit, False, good.bets), rng)).epsilon
    states = np.linspace(0, 8, 33)[:, None]
    lower, upper = bracket(model.problem, verdict.vectors, states).T
    assert (upper >= model.problem.values(states, best[:, None])[:, 0]).all()
    assert (lower <= upper).all()
    assert (verdict.vectors[1, :, -1] >= 0.3).all()  # what V⁺ lacked


def test_the_search_for_a_limit_starts_from_what_bets_exclude():
    """A limit has enough wealth against it, or is the end of the range: never a number that nothing excludes."""
    outcomes = np.random.default_rng(2).beta(2, 5, 300)
    low, high = mean_limits(outcomes, 1.0, 3.0)
    assert 0 < low < outcomes.mean() < high < 1
    for end, side in ((low, -1.0), (high, 1.0)):
        gains = np.log1p(side * STAKES[:, None] * (end - outcomes)).sum(axis=1)
        assert np.logaddexp.reduce(gains) - np.log(len(STAKES)) >= 3.0
    assert mean_limits(outcomes[:3], 1.0, 3.0) == (0.0, 1.0)
