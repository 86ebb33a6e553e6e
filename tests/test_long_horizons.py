"""Episodes of many steps: the work grows with their number and no faster, and what does not fit is refused at once."""

import tracemalloc

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms.protocol import MAX_CALLS, check_times
from bestpolicy.design.transductive import transductive_design
from bestpolicy.simulators import exact
from bestpolicy.stopping import lags
from bestpolicy.stopping.lemmas.deviations import make_prior, sub_gaussian_ellipsoids, sub_gaussian_ellipsoids_by_stage


def repeated(horizon: int, seed: int = 0) -> bp.LinearMDP:
    """Return a model that is the same at every step."""
    rng = np.random.default_rng(seed)
    features = rng.dirichlet(np.full(3, 0.5), size=(4, 2))
    features.reshape(-1, 3)[:3] = np.eye(3)
    theta, mu = rng.uniform(size=3), rng.dirichlet(np.ones(4), size=3).T
    problem = bp.Problem(features, horizon=horizon)
    return bp.LinearMDP(problem, theta=np.tile(theta, (horizon, 1)), mu=np.tile(mu, (horizon, 1, 1)))


@pytest.mark.parametrize(
    ("horizon", "bytes_needed"), [(10**7, "9.1e+10 bytes"), (10**400, "10^404 bytes")], ids=["10^7", "10^400"]
)
def test_a_horizon_that_no_machine_could_cope_with_is_refused_with_what_it_would_take(horizon, bytes_needed):
    with pytest.raises(bp.InvalidInput, match=r"is too long: .* seconds") as refusal:
        bp.Problem(repeated(2).problem.features, horizon=horizon)
    assert bytes_needed in str(refusal.value)


def test_ten_thousand_steps_are_looked_at():
    simulator = bp.ExactSimulator(repeated(10**4))
    for algorithm in ("gss-e", "tight"):
        study = bp.Study(simulator.problem, epsilon=3000.0, delta=0.1, algorithm=algorithm, seed=0, linearity=0)
        (query,) = study.ask()
        study.tell(query, simulator.sample(query.pulls, query.rng()))
        assert study.result().policy.shape == (10**4, 4)
        assert len(study.checks) == 1


def test_memory_of_a_design_grows_with_the_horizon_and_no_faster():
    rng = np.random.default_rng(5)
    features, directions = rng.normal(size=(300, 4, 3)), rng.normal(size=(5, 900))
    tracemalloc.start()
    try:
        transductive_design(features, directions, tolerance=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * features.nbytes  # as vectors with all their zeros, the pairs would be 300 times as large


def test_a_step_without_a_critical_direction_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(lags, "_CRITICAL", 2)
    mdp = repeated(8)
    for algorithm in ("tight", "adaptive"):
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=1.0, delta=0.1, algorithm=algorithm, seed=1)
        assert result.certified
        assert mdp.loss(result.policy) <= 1.0


def test_a_design_of_stages_is_that_of_one_long_vector():
    rng = np.random.default_rng(3)
    stages, pairs, dimension = 4, 6, 3
    features, directions = rng.normal(size=(stages, pairs, dimension)), rng.normal(size=(9, stages * dimension))
    long = np.zeros((stages, pairs, stages, dimension))
    for stage in range(stages):
        long[stage, :, stage] = features[stage]
    blocks = transductive_design(features, directions)
    whole = transductive_design(long.reshape(stages * pairs, -1), directions)
    np.testing.assert_allclose(blocks.weights, whole.weights, rtol=1e-6, atol=1e-9)
    assert blocks.value == pytest.approx(whole.value)
    assert blocks.lower_bound == pytest.approx(whole.lower_bound)


def test_ellipsoids_of_all_stages_are_those_of_each_stage_alone():
    rng = np.random.default_rng(4)
    roots = rng.normal(size=(3, 5, 2, 2))
    information, spread, inverse = roots @ roots.swapaxes(2, 3) + 0.1 * np.eye(2)
    features = rng.normal(size=(7, 2))
    prior = make_prior(information, features, first_rounds=10.0, least_variance=0.01, delta=0.1)
    together = sub_gaussian_ellipsoids_by_stage(prior, inverse, 1e3 * spread, 2.0, 0.05, 1e-12)
    for stage in range(5):
        one = slice(stage, stage + 1)
        alone = type(prior)(prior.base[one], prior.capacity, prior.largest[one], prior.shares)
        expected = sub_gaussian_ellipsoids(alone, inverse[one], 1e3 * spread[one], 2.0, 0.05, 1e-12)
        np.testing.assert_allclose(together[:, one], expected, rtol=1e-10)


def test_the_samples_do_not_depend_on_how_many_steps_are_drawn_at_a_time(monkeypatch):
    simulator = bp.ExactSimulator(repeated(7))
    pulls = bp.Pulls(np.array([0, 3, 5]), np.arange(21).reshape(7, 3) * 50)
    whole = simulator.sample(pulls, np.random.default_rng(1))
    monkeypatch.setattr(exact, "_ENTRIES", 1)
    stepwise = simulator.sample(pulls, np.random.default_rng(1))
    assert np.array_equal(whole.next_counts, stepwise.next_counts)
    assert np.array_equal(whole.next_rewards, stepwise.next_rewards)


def test_counts_of_long_episodes_stay_within_64_bits():
    last = list(check_times(1e15, 1e3, calls=10**5))[-1]
    assert last * 10**5 <= MAX_CALLS < 2**63
