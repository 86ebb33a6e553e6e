"""Features that do not fit are found while a run goes on, features that do are left in peace."""

from __future__ import annotations

import itertools
from math import comb, exp, log

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.diagnostics import doubt
from bestpolicy.diagnostics.doubt import Doubt, Round
from bestpolicy.report import report_page
from bestpolicy.study.linearity import MOST
from bestpolicy.study.linearity import next_values as estimated_values
from tests.hats import COARSE, EXACT, hats, true_loss
from tests.models import random_mdp
from tests.test_cli import run

HATS = {"epsilon": "5%", "delta": 0.05, "algorithm": "tight", "max_samples": 10**6}


# --- the bets


def one_contrast() -> Doubt:
    """A base of one pair and one pair held out, with the same feature."""
    problem = bp.Problem(np.ones((2, 1, 1)), discount=0.5)
    return Doubt(problem, np.array([0]), np.ones(1), np.array([[1]]), 1)


def expected_winnings(chance: float, stake: float, centre: float, counts: tuple[int, int] = (3, 2)) -> np.ndarray:
    """Means of e⁺ and e⁻ over all outcomes of rewards 0 and 1 with one chance at both pairs: exact."""
    means = np.zeros(2)
    for ones in itertools.product(*(range(count + 1) for count in counts)):
        test = one_contrast()
        centres = np.full((1, 1), centre)
        fixed = test.held_out, np.array([counts[0]]), counts[1], np.zeros((1, 2)), centres, centres
        bets = Round(*fixed, np.full((1, 1, 3), stake))
        following = np.zeros((1, 2, 2), np.int64)
        following[0, :, 0] = counts
        sums = np.zeros((1, 2, 2))
        sums[0, :, 0] = ones
        test.take(bets, bp.Tally(np.array([0, 1]), following, sums, np.array([ones], float)))
        weight = np.prod([comb(n, k) * chance**k * (1 - chance) ** (n - k) for n, k in zip(counts, ones, strict=True)])
        means += weight * np.exp(test._wealth[0, 0, 0])
    return means


def test_no_bet_wins_on_average_and_none_is_idle():
    """Theorem D for one round, by enumeration; a penalty that is too small by one part in a hundred would show."""
    for chance, share, centre in itertools.product((0.01, 0.5, 0.9), (0.1, 0.75), (0.0, 0.5, 1.0)):
        assert expected_winnings(chance, 2 * share, centre).max() <= 1 + 1e-12
    rare = expected_winnings(0.995, 0.75, 1.0, (400, 1)).max()
    assert 1 - 1e-5 < rare <= 1 + 1e-12


def test_doubt_is_raised_at_its_level_and_not_before():
    assert doubt.LEVEL == 0.01
    test = one_contrast()
    assert test.nats == pytest.approx(log(6 / 0.01))
    for evidence, raised in ((log(99.0), False), (log(101.0), True)):
        test._best = evidence
        assert test.in_doubt is raised


def fitting(kind: str, seed: int):
    """A simulator whose features fit."""
    if kind == "hats":
        return hats(EXACT)
    if kind == "aggregated":  # a table whose states are twins
        rng = np.random.default_rng(seed)
        features = np.eye(8)[np.add.outer(2 * (np.arange(12) % 4), np.arange(2))]
        problem = bp.Problem(features, discount=0.8)
        mu = rng.dirichlet(np.full(12, 0.3), size=8).T
        return bp.ExactSimulator(bp.LinearMDP(problem, theta=rng.uniform(size=8), mu=mu))
    if kind == "episodic":
        return bp.ExactSimulator(random_mdp(seed, horizon=3))
    return bp.ExactSimulator(bp.instances.load({"simplex": "simplex", "ball": "B11"}[kind]))


def raised(simulator, seed: int, misfit: float, most: int) -> Doubt:
    """Play rounds that grow, with values as they are estimated on the way."""
    problem, rng = simulator.problem, np.random.default_rng(seed)
    test, seen = Doubt.begin(problem, rng), None
    while test.calls < most and not test.in_doubt:
        bets = test.plan(2 * test.calls, misfit, estimated_values(problem, seen))
        tally = simulator.sample(test.pulls(bets), rng)
        test.take(bets, tally)
        seen = tally if seen is None else seen + tally
    return test


@pytest.mark.parametrize("kind", ["aggregated", "simplex", "ball", "hats", "episodic"])
def test_features_that_fit_are_doubted_no_more_often_than_the_level_says(kind, monkeypatch):
    monkeypatch.setattr(doubt, "LEVEL", 0.2)
    runs = 6 if kind == "hats" else 15
    alarms = sum(raised(fitting(kind, seed), seed, 0.05, 20_000).in_doubt for seed in range(runs))
    assert binomtest(alarms, runs, 0.2, alternative="greater").pvalue > 1e-3


@pytest.mark.study
@pytest.mark.parametrize("kind", ["aggregated", "simplex", "ball", "hats", "episodic"])
def test_whole_runs_on_features_that_fit_are_rarely_in_doubt(kind):
    settings = {"epsilon": "10%", "delta": 0.1, "algorithm": "tight", "linearity": 0.05, "max_samples": 10**5}
    outcomes = [bp.identify(fitting(kind, seed), seed=seed, **settings).outcome for seed in range(60)]
    assert binomtest(outcomes.count("in doubt"), 60, doubt.LEVEL, alternative="greater").pvalue > 1e-3


class Bent(bp.ExactSimulator):
    """Some pairs pay more than the features say, by `bend`."""

    bend, bent = 0.3, np.arange(0, 99, 3)

    def sample(self, pulls, rng):
        tally = super().sample(pulls, rng)
        chance = np.where(np.isin(tally.pairs, self.bent), self.bend / (1 - self._mean_rewards[:, tally.pairs]), 0.0)
        unpaid = (tally.next_counts - tally.next_rewards).astype(np.int64)
        rewards = tally.next_rewards + rng.binomial(unpaid, np.broadcast_to(chance[..., None], unpaid.shape))
        return bp.Tally(tally.pairs, tally.next_counts, rewards, rewards.sum(axis=2))


def test_what_could_hide_is_what_would_have_been_found():
    """A misfit of the size that the test says it finds with probability .95 is found about as often."""
    found, runs, misfit = 0, 40, 0.1
    for seed in range(runs):
        mdp, rng = random_mdp(seed, states=8, discount=0.5), np.random.default_rng(seed)
        drawn = Doubt.begin(mdp.problem, rng)
        test = Doubt(mdp.problem, drawn.base, drawn.weights, drawn.screened[:, :1], 1)
        model = Bent(bp.LinearMDP(mdp.problem, theta=0.8 * mdp.theta[0], mu=mdp.mu[0]))
        model.bent, model.bend, values = test.screened[0], misfit, np.zeros((1, 8))
        while test.hidden > misfit:
            bets = test.plan(test.calls_to_find(misfit, values) if test.rounds else 0, misfit, values)
            test.take(bets, model.sample(test.pulls(bets), rng))
            assert test.rounds < 20
        found += test.in_doubt
    assert binomtest(found, runs, 0.95, alternative="less").pvalue > 1e-3


# --- runs


def test_coarse_hats_are_certified_without_a_test_and_wrongly_so():
    result = bp.identify(hats(COARSE), seed=0, linearity=0, **HATS)
    assert result.certified
    assert result.linearity is None
    assert true_loss(result.policy) > 5.5 > result.epsilon


@pytest.mark.parametrize("seed", range(2))
def test_coarse_hats_are_in_doubt(seed):
    result = bp.identify(hats(COARSE), seed=seed, **HATS)
    assert (result.certified, result.outcome) == (False, "in doubt")
    assert result.samples < 10**5
    assert "Take finer features" in result.explanation


@pytest.mark.study
def test_coarse_hats_are_never_certified():
    for seed in range(100):
        result = bp.identify(hats(COARSE), seed=seed, **HATS)
        assert (result.certified, result.outcome) == (False, "in doubt")
        assert result.samples < 10**5


def loose(seed: int = 0, **more):
    """Settings of a run that is certified at once, so that most of its calls are the test's."""
    return {"epsilon": 0.8, "delta": 0.1, "algorithm": "tight", "seed": seed, "linearity": 0.05} | more


@pytest.mark.parametrize("horizon", [None, 3])
def test_the_test_is_as_large_as_the_claim_needs(horizon):
    mdp = random_mdp(3, horizon=horizon)
    result = bp.identify(bp.ExactSimulator(mdp), **loose())
    alone = bp.identify(bp.ExactSimulator(mdp), **loose(linearity=0))
    assert result.certified
    tested = result.linearity
    assert tested.hidden <= tested.counts == pytest.approx(0.8 / (2 * (horizon or 5)))
    assert tested.complete
    assert result.samples == alone.samples + tested.calls
    assert result.statistic == alone.statistic  # the algorithm's own samples are the same
    assert f"a misfit below {tested.hidden:.2g} there would not have been found" in result.explanation
    finer = bp.identify(bp.ExactSimulator(mdp), **loose(epsilon=0.4))
    assert finer.linearity.hidden < tested.hidden
    assert tested.calls < finer.linearity.calls <= MOST


def test_a_budget_counts_the_test_and_may_end_it():
    simulator = bp.ExactSimulator(random_mdp(3))
    whole = bp.identify(simulator, **loose())
    short = bp.identify(simulator, **loose(max_samples=whole.samples - 500))
    assert short.samples <= whole.samples - 500 < short.outlook.expected
    assert (short.outcome, short.certified) == ("sample budget spent", False)
    assert "could move the claim by ε" in short.explanation
    assert "Only this test is not done" in short.explanation
    assert "Only this test" not in whole.explanation
    assert "Only this test" not in bp.identify(simulator, **loose(epsilon=0.01, max_samples=1000)).explanation


def by_hand(study: bp.Study, simulator, *, reverse: bool = False, most: float = np.inf) -> bp.Study:
    told = 0
    while not study.done and told < most:
        for query in study.ask()[:: -1 if reverse else 1]:
            if told < most:
                study.tell(query, simulator.sample(query.pulls, query.rng()))
                told += 1
    return study


@pytest.mark.parametrize("horizon", [None, 3])
def test_a_study_goes_on_with_its_test_from_its_file(tmp_path, horizon):
    mdp = random_mdp(3, horizon=horizon)
    settings = loose(calls_per_query=5000)
    simulator = bp.ExactSimulator(mdp)
    straight = by_hand(bp.Study(mdp.problem, **settings), simulator, reverse=True).result()
    store = tmp_path / "run.db"
    by_hand(bp.Study(mdp.problem, **settings, store=store), simulator, most=2).close()
    parts = 0
    while not (study := bp.Study.resume(store)).done:
        by_hand(study, simulator, most=3).close()
        parts += 1
    assert parts > 3
    again = bp.Study.resume(store).result()
    for one in (study.result(), again):
        assert one.certified
        assert (one.samples, one.statistic) == (straight.samples, straight.statistic)
        assert one.linearity == straight.linearity
    assert bp.studies(store)[0].samples == straight.samples
    again.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json", store=store).order_shown


def test_doubt_survives_in_the_file_and_in_the_certificate(tmp_path):
    mdp = random_mdp(3)
    store, path = tmp_path / "run.db", tmp_path / "certificate.json"
    model = Bent(bp.LinearMDP(mdp.problem, theta=0.6 * mdp.theta[0], mu=mdp.mu[0]))
    result = bp.identify(model, **loose(epsilon=3.0), store=store)
    assert result.outcome is bp.Outcome.DOUBT
    again = bp.identify(model, **loose(epsilon=3.0), store=store)
    assert (again.outcome, again.samples, again.linearity) == (result.outcome, result.samples, result.linearity)
    assert again.warnings == result.warnings
    assert result.epsilon < np.inf
    result.save(path)
    verdict = bp.verify(path)
    assert verdict.in_doubt
    assert str(verdict).startswith("in doubt")
    done = run("verify", path)
    assert done.returncode == 1
    assert done.stdout.startswith("in doubt")
    assert "nothing is certified of this policy" in report_page(store)


def test_the_command_line_tests_a_simulator_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from tests.hats import COARSE, hats\nsimulator = hats(COARSE)\n")
    asked = ("--epsilon", "5%", "--delta", 0.05, "--algorithm", "tight", "--seed", 0)
    done = run("identify", f"{file}:simulator", *asked)
    assert done.returncode == 3
    assert "in doubt" in done.stdout
    assert run("identify", f"{file}:simulator", *asked, "--linearity", 0).returncode == 0


def test_one_hot_features_are_not_tested_and_linearity_is_not_taken_on_trust(tmp_path):
    problem = bp.Problem(np.eye(4).reshape(2, 2, 4), discount=0.5)
    simulator = bp.CallableSimulator(problem, lambda state, action, rng: (float(action), state))
    result = bp.identify(simulator, epsilon=0.5, delta=0.1, algorithm="tight", seed=0)
    assert result.certified
    assert result.linearity is None
    path = tmp_path / "certificate.json"
    result.save(path)
    assert "linear" not in " ".join(bp.verify(path).trusted)
    assert "are linear in the features" not in path.read_text()


def test_the_evidence_is_the_average_of_all_bets():
    test = raised(fitting("simplex", 0), 0, 0.05, 5000)
    assert exp(test.evidence) >= float(np.exp(test._wealth).mean()) * (1 - 1e-9)
    assert test.hidden < np.inf


def test_which_pairs_span_all_features_does_not_hang_on_last_bits():
    features = bp.instances.load("hard-discounted").problem.pair_features  # many of them are equally long
    rng, expected = np.random.default_rng(0), doubt._spanning(features)
    assert np.linalg.matrix_rank(features[expected]) == features.shape[1] == len(expected)
    for _ in range(20):
        nearly = features * (1 + 1e-14 * rng.standard_normal(features.shape))
        np.testing.assert_array_equal(doubt._spanning(nearly), expected)
