"""GSS and GSS-E end to end: right on every instance, as dear as predicted, wrong at most δ of the time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS, GSS, GSSE, check_times
from bestpolicy.stopping import paper
from tests.models import near_tie, random_mdp

NAMES = [instance.name for instance in bp.instances.catalogue()]


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_is_solved_at_the_predicted_price(name):
    mdp = bp.instances.load(name)
    epsilon, delta = 0.04 * mdp.problem.value_limits[0], 0.1
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=delta, algorithm="gss", seed=11)
    assert result.certified
    assert mdp.is_near_optimal(result.policy, epsilon)
    predicted = ALGORITHMS[result.algorithm]().predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    assert 0.8 < result.samples / predicted < 1.6
    assert result.statistic > result.threshold


@pytest.mark.parametrize("name", ["two-state", "universal", "simplex-gap", "hard-discounted", "lock"])
def test_epsilon_zero_finds_the_optimal_policy(name):
    mdp = bp.instances.load(name)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0, delta=0.05, algorithm="gss", seed=3)
    assert result.certified
    assert result.epsilon == 0
    np.testing.assert_array_equal(result.policy, mdp.policy)


@pytest.mark.parametrize("sampling", ["rounded", "random"])
@pytest.mark.parametrize("mdp", [near_tie(0.3), random_mdp(2, states=3, actions=2, dimension=3, horizon=2)])
def test_both_ways_of_sampling(mdp, sampling):
    kind = GSS if mdp.problem.horizon is None else GSSE
    epsilon = 0.3
    result = bp.identify(
        bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, seed=0, algorithm=kind(sampling=sampling, check_ratio=1.02)
    )
    predicted = kind().predicted_samples(mdp.problem, mdp.gap, epsilon, 0.1)
    assert 0.9 < result.samples / predicted < 1.2
    assert mdp.is_near_optimal(result.policy, epsilon)


def test_checking_every_round_stops_no_later_than_the_grid():
    mdp = near_tie(0.5, discount=0.02)
    every, grid = (
        bp.identify(
            bp.ExactSimulator(mdp, rewards="deterministic"),
            epsilon=1.02,
            delta=0.9,
            seed=0,
            algorithm=GSS(check_ratio=ratio),
        )
        for ratio in (1.0, 1.05)
    )
    assert [check.rounds for check in every.checks] == list(range(1, every.rounds + 1))
    assert every.rounds <= grid.rounds <= 1.06 * every.rounds + 1


def test_check_times_are_a_geometric_grid():
    times = [t for t, _ in zip(check_times(10, 1.5), range(6), strict=False)]
    assert times == [10, 15, 23, 35, 53, 80]
    assert [t for t, _ in zip(check_times(1, 1.0), range(4), strict=False)] == [1, 2, 3, 4]


@pytest.mark.parametrize("settings", [{"check_ratio": 0.9}, {"design_tolerance": 0.5}, {"design_tolerance": 0}])
def test_bad_parameters(settings):
    with pytest.raises(bp.InvalidInput):
        GSS(**settings)


def test_bad_sampling_is_refused():
    with pytest.raises(bp.InvalidInput, match="rounded"):
        bp.identify(bp.ExactSimulator(near_tie(0.3)), epsilon=1, delta=0.1, algorithm=GSS(sampling="sobol"))


def test_gss_on_an_episodic_problem_is_gss_e():
    mdp = random_mdp(2, states=3, actions=2, dimension=3, horizon=2)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=1, delta=0.1, seed=0, algorithm="gss")
    assert result.algorithm == "gss-e"
    assert result.samples == 2 * result.rounds
    assert result.policy.shape == (2, 3)


def test_forbidden_actions_are_never_simulated_nor_played():
    mdp = bp.instances.load("lock")

    class Guarded(bp.ExactSimulator):
        def sample(self, pulls, rng):
            assert mdp.problem.mask.ravel()[pulls.pairs].all()
            return super().sample(pulls, rng)

    result = bp.identify(Guarded(mdp), epsilon=0.1, delta=0.1, algorithm="gss", seed=0)
    mdp.problem.stage_policy(result.policy)


def test_duplicated_features_and_useless_scales_do_not_matter():
    """The same model with a doubled action and badly scaled features: same policy, about the same price."""
    mdp = random_mdp(4, states=5, actions=2, dimension=4, discount=0.6)
    scale = np.array([1e-5, 1e5, 1.0, 30.0])
    features = np.concatenate([mdp.problem.features, mdp.problem.features[:, :1]], axis=1) * scale
    other = bp.LinearMDP(bp.Problem(features, discount=0.6), theta=mdp.theta[0] / scale, mu=mdp.mu[0] / scale)
    first, second = (
        bp.identify(bp.ExactSimulator(m), epsilon=0.1, delta=0.1, algorithm="gss", seed=1) for m in (mdp, other)
    )
    assert second.certified
    assert other.is_near_optimal(second.policy, 0.1)
    assert 0.85 < second.samples / first.samples < 1.15


TIES = {
    "discounted": (near_tie(0.05, discount=0.3), GSS),
    "episodic": (random_mdp(8, states=2, actions=2, dimension=3, horizon=2), GSSE),
}


@pytest.mark.parametrize("kind", TIES)
def test_coverage(kind, monkeypatch):
    """Wrong in at most δ of the runs; and the same test shows mistakes once the threshold is too small.

    Runs are the same each time, so the level of the test costs no false alarms: it finds an error rate of one in five.
    """
    mdp, algorithm = TIES[kind]
    delta, runs = 0.1, 50

    def mistakes(algorithm):
        wrong = 0
        for seed in range(runs):
            result = bp.identify(
                bp.ExactSimulator(mdp), epsilon=0, delta=delta, seed=seed, algorithm=algorithm, max_samples=10**14
            )
            wrong += result.certified and not mdp.is_near_optimal(result.policy, 0)
        return wrong

    assert binomtest(mistakes(algorithm(check_ratio=1.5)), runs, delta, alternative="greater").pvalue > 0.05
    proved = paper.threshold
    monkeypatch.setattr(paper, "threshold", lambda *arguments: proved(*arguments) / 100_000)
    monkeypatch.setattr(algorithm, "first_check", lambda self, problem, epsilon, delta: 8)
    assert binomtest(mistakes(algorithm(check_ratio=1.3)), runs, delta, alternative="greater").pvalue < 1e-6
