"""The ingredients of Theorem T, one by one: exact identities, ellipsoids, variance bounds, super-solutions."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from scipy.stats import binomtest

from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators import ExactSimulator
from bestpolicy.stopping.evidence import Evidence, fit, second_moments
from bestpolicy.stopping.lemmas.deviations import (
    FACTORS,
    GRID,
    SHARES,
    Prior,
    bennett,
    bernstein_ellipsoids,
    deviation_terms,
    largest_norms,
    make_prior,
    sample_variances,
    sub_gaussian_ellipsoids,
    variance_bounds,
    widths,
)
from bestpolicy.stopping.lemmas.propagation import EstimatedKernel, propagate

from .models import random_mdp


def drawn(mdp, counts, seed=0, weights=None):
    """Evidence from `counts` samples of every allowed pair."""
    pairs = mdp.problem.pairs
    pulls = Pulls(pairs, np.broadcast_to(counts, (mdp.problem.stages, len(pairs))))
    tally = ExactSimulator(mdp).sample(pulls, np.random.default_rng(seed))
    return Evidence.empty(mdp.problem, pairs).add(tally, weights)


def error_vectors(mdp, model):
    """x* = θ̂ - θ + γ(μ̂ - μ)ᵀV* of every stage, (stages, d)."""
    values = mdp.plan.values
    if mdp.problem.horizon is not None:
        values = np.vstack([values[1:], np.zeros((1, mdp.problem.states))])
    change = np.einsum("hsd,hs->hd", model.mu - mdp.mu, values)
    return model.theta - mdp.theta + mdp.problem.continuation * change


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("horizon", [None, 3])
def test_the_truth_solves_the_estimated_kernel_with_another_reward(seed, horizon):
    mdp = random_mdp(seed, horizon=horizon, masked=True)
    model = fit(mdp.problem, drawn(mdp, 30, seed))
    x = error_vectors(mdp, model)
    values = np.vstack([mdp.plan.values[1:], np.zeros((1, mdp.problem.states))]) if horizon else mdp.plan.values
    shifted = model.theta - x + mdp.problem.continuation * np.einsum("hsd,hs->hd", model.mu, values)
    q_values = np.einsum("sad,hd->hsa", mdp.problem.features, shifted)
    np.testing.assert_allclose(
        q_values[:, mdp.problem.mask], mdp.plan.q_values[:, mdp.problem.mask], atol=1e-12 * mdp.problem.value_limits[0]
    )
    rows = np.einsum("sad,htd->hsat", mdp.problem.features, model.mu)
    np.testing.assert_allclose(rows.sum(axis=3), 1.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_gaps_move_linearly_with_the_error(seed):
    """Q_x - V_x = -Δ̂ - yᵀx, and √(yᵀMy) is the pulled-back width."""
    mdp = random_mdp(seed)
    problem, rng = mdp.problem, np.random.default_rng(seed)
    model = fit(problem, drawn(mdp, 50, seed))
    policy = rng.integers(problem.actions, size=(1, problem.states))
    base = propagate(problem, model.theta, model.mu, policy)
    x = 0.01 * rng.standard_normal((1, problem.dimension))
    moved = propagate(problem, model.theta - x, model.mu, policy)
    differences = problem.features - base.played[0][:, None]
    slopes = np.einsum("sad,de->sae", differences, base._links[0])  # rows are y
    gaps, moved_gaps = (p.values[0][:, None] - p.q_values[0] for p in (base, moved))
    np.testing.assert_allclose(moved_gaps, gaps + slopes @ x[0], atol=1e-12)
    root = rng.standard_normal((problem.dimension, problem.dimension))
    metric = root @ root.T
    pulled = base.pulled_back(metric[None, None])[0, 0]
    direct = np.einsum("sad,de,sae->sa", slopes, metric, slopes)
    np.testing.assert_allclose(np.einsum("sad,de,sae->sa", differences, pulled, differences), direct, rtol=1e-9)


def test_the_policys_true_value_differs_by_the_kernels_error_on_omega():
    """V^π - V_x = (I - γP_π)⁻¹ γ(P̂_π - P_π)ω with ω = V* - V_x."""
    mdp = random_mdp(2)
    problem = mdp.problem
    model = fit(problem, drawn(mdp, 40))
    x = error_vectors(mdp, model)
    policy = np.random.default_rng(0).integers(problem.actions, size=(1, problem.states))
    shifted = propagate(problem, model.theta - x, model.mu, policy)
    omega = mdp.values - shifted.values[0]
    played = shifted.played[0]
    true_rows, rows = played @ mdp.mu[0].T, played @ model.mu[0].T
    system = np.eye(problem.states) - problem.discount * true_rows
    expected = np.linalg.solve(system, problem.discount * (rows - true_rows) @ omega)
    np.testing.assert_allclose(mdp.policy_values(policy[0]) - shifted.values[0], expected, atol=1e-12)


def test_episodic_directions_by_hand():
    mdp = random_mdp(1, horizon=3)
    problem = mdp.problem
    model = fit(problem, drawn(mdp, 30))
    policy = mdp.plan.policy
    base = propagate(problem, model.theta, model.mu, policy)
    x = 0.01 * np.random.default_rng(0).standard_normal((3, problem.dimension))
    moved = propagate(problem, model.theta - x, model.mu, policy)
    # Metric xxᵀ in a single stage measures exactly that stage's part of the change.
    change = np.zeros_like(base.values)
    for stage in range(3):
        alone = np.zeros_like(x)
        alone[stage] = x[stage]
        metric = np.zeros((1, 3, problem.dimension, problem.dimension))
        metric[0, stage] = np.outer(x[stage], x[stage])
        pulled = base.pulled_back(metric)[0]
        part = base.values - propagate(problem, model.theta - alone, model.mu, policy).values
        squares = np.einsum("hsd,hde,hse->hs", base.played, pulled, base.played)
        np.testing.assert_allclose(squares, part**2, atol=1e-12)
        change += part
    np.testing.assert_allclose(base.values - moved.values, change, atol=1e-12)


def test_weights_fixed_in_advance_give_weighted_least_squares():
    mdp = random_mdp(0)
    rng = np.random.default_rng(1)
    pairs = mdp.problem.pairs
    weights = rng.uniform(0.2, 1.0, size=(1, len(pairs)))
    plain, weighted = drawn(mdp, 20, 3), drawn(mdp, 20, 3, weights)
    both = plain.add(weighted.tally, weights)
    sampled = mdp.problem.pair_features
    gram = second_moments(sampled, 20 + 20 / weights)[0]
    rewards = plain.tally.reward_sums[0] * (1 + 1 / weights[0])
    np.testing.assert_allclose(fit(mdp.problem, both).theta[0], np.linalg.solve(gram, sampled.T @ rewards))


# --- the events, at δ = .5, where a wrong constant shows -----------------------------------------------------------


def noise_runs(runs, seed, *, scale=1.0, steps=30, rare=0.5):
    """Share of runs in which S_t leaves the ellipsoids of Lemmas S and B at some time, outcome-dependent sampling.

    Two directions; the next pair is the one whose last outcome was high, so the design depends on the noise.
    """
    rng = np.random.default_rng(seed)
    features = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    prior = make_prior(np.eye(2)[None] / 2, features, first_rounds=20, least_variance=0.25, delta=0.5)
    outside = np.zeros(2, int)
    for _ in range(runs):
        counts, total = np.zeros(3), np.zeros(2)
        favourite, left = 0, np.zeros(2, bool)
        for _ in range(steps):
            batch = np.full(3, 8)
            batch[favourite] += 40
            hits = rng.binomial(batch, rare)
            noise = hits - batch * rare
            favourite = int(np.argmax(noise))
            counts += batch
            total += features.T @ noise
            gram = second_moments(features, counts[None])
            inverse = np.linalg.inv(gram)
            x = inverse[0] @ total
            first = sub_gaussian_ellipsoids(prior, inverse, gram / 4, 0.0, 0.5)
            second = bernstein_ellipsoids(prior, inverse, rare * (1 - rare) * gram, np.ones(1), 0.5)
            for which, metrics in enumerate((first, second)):
                for metric in metrics:
                    left[which] |= x @ np.linalg.solve(metric[0] * scale**2, x) > 1
        outside += left
    return outside


@pytest.mark.parametrize("rare", [0.5, 0.02])
def test_the_error_stays_inside_every_ellipsoid(rare):
    runs = 40
    for outside in noise_runs(runs, 0, rare=rare):
        assert binomtest(int(outside), runs, 0.5, alternative="greater").pvalue > 1e-3


def test_a_radius_cut_to_a_third_would_be_noticed():
    runs = 40
    outside = noise_runs(runs, 0, scale=1 / 3)
    assert binomtest(int(outside[0]), runs, 0.5, alternative="greater").pvalue < 1e-3


def threshold_crossings(runs, factor):
    """Runs in which ‖S_t‖² exceeds `factor` × the thresholds of Lemmas S and B (δ = .5, one scale, 40 dimensions).

    In many dimensions log det is most of the threshold and S_t concentrates: a threshold that is too small by half
    has nowhere to hide.
    """
    dimension, samples, delta = 40, 10**6, 0.5
    base = np.eye(dimension)[None] * samples / 4
    prior = Prior(base, dimension * 3.0, largest_norms(base, np.eye(dimension)), np.array([1.0]))
    spread, gram_inverse = base, np.eye(dimension)[None] / samples
    metrics = (
        sub_gaussian_ellipsoids(prior, gram_inverse, spread, 0.0, delta),
        bernstein_ellipsoids(prior, gram_inverse, spread, np.array([1.0]), delta),
    )
    rng = np.random.default_rng(3)
    errors = (rng.binomial(samples, 0.5, (runs, dimension)) - samples / 2) / samples
    return [
        int((np.einsum("rd,de,re->r", errors, np.linalg.inv(metric[0, 0]), errors) > factor).sum())
        for metric in metrics
    ]


def test_a_halved_threshold_would_be_noticed():
    runs = 200
    for crossings in threshold_crossings(runs, 1.0):
        assert binomtest(crossings, runs, 0.5, alternative="greater").pvalue > 1e-3
    for crossings in threshold_crossings(runs, 0.5):
        assert binomtest(crossings, runs, 0.5, alternative="greater").pvalue < 1e-9


def test_shares_and_bennett():
    assert SHARES.sum() <= 1
    assert np.isclose(FACTORS[1] / FACTORS[0], 4)
    a = np.array([1e-9, 1e-3, 0.0099, 0.0101, 1.0, 10.0])
    series = sum(2 * a**k / factorial(k + 2) for k in range(60))
    assert (bennett(a) >= series * (1 - 1e-10)).all()
    np.testing.assert_allclose(bennett(a), series, rtol=1e-6)
    assert np.isinf(bennett(np.array([1e4])))[0]


def test_width_is_the_best_of_all_metrics():
    vectors = np.eye(2)
    assert widths(np.array([np.diag([1.0, 9.0]), np.diag([4.0, 4.0])]), vectors).tolist() == [1.0, 2.0]
    assert np.isinf(widths(np.empty((0, 2, 2)), vectors)).all()


# --- variances -----------------------------------------------------------------------------------------------------


def test_joint_sample_variance_matches_drawing_one_by_one():
    mdp = random_mdp(0)
    rng = np.random.default_rng(0)
    size, values = 500, rng.uniform(0, 5, mdp.problem.states) + 1e4
    next_states = rng.integers(mdp.problem.states, size=size)
    rewards = (next_states % 2) * rng.uniform(size=size)  # reward and next state are dependent
    tally = Tally.from_samples(mdp.problem, np.zeros(size, int), np.zeros(size, int), rewards, next_states)
    found = sample_variances(tally, values[None], 0.8)[0, 0]
    np.testing.assert_allclose(found, np.var(rewards + 0.8 * values[next_states], ddof=1), rtol=1e-9)


def variance_failures(runs, seed, *, scale=1.0, probability=0.3, delta=0.5):
    """Runs in which the bound of Lemma V falls below the variance at some n ≤ 400."""
    rng = np.random.default_rng(seed)
    failures = 0
    n = np.arange(1, 401)
    for _ in range(runs):
        hits = np.cumsum(rng.random(400) < probability)
        spread = np.where(n > 1, (hits - hits**2 / n) / np.maximum(n - 1, 1), 0.0)
        # One pair; the union over pairs has one term. Pulls of shape (400, 1) would be 400 pairs: correct for that.
        terms = deviation_terms(n[:, None], np.ones(400), delta * 400) * scale
        bound = variance_bounds(np.sqrt(spread)[:, None], terms, np.ones(400))[:, 0]
        failures += bool((bound < probability * (1 - probability)).any())
    return failures


@pytest.mark.parametrize("probability", [0.5, 0.3, 0.02])
def test_variance_bounds_hold_at_all_times(probability):
    failures = variance_failures(200, 0, probability=probability)
    assert binomtest(failures, 200, 0.5, alternative="greater").pvalue > 1e-3


def test_variance_bounds_without_their_deviation_would_be_noticed():
    failures = variance_failures(200, 0, scale=1e-6)
    assert binomtest(failures, 200, 0.5, alternative="greater").pvalue < 1e-3


def test_too_few_samples_have_the_crude_variance():
    terms = deviation_terms(np.array([[0, 1, 2]]), np.array([3.0]), 0.1)
    assert np.isinf(terms[0, :2]).all()
    assert variance_bounds(np.zeros((1, 3)), terms, np.array([3.0]))[0, :2].tolist() == [2.25, 2.25]
    assert (np.diff(GRID) > 0).all()


# --- super-solutions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("samples", [4, 30, 1000])
def test_super_solutions_dominate_the_fixed_point(samples, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("bestpolicy.stopping.lemmas.propagation._DENSE_STATES", 0)
    mdp = random_mdp(5, states=12, discount=0.7, masked=True)
    model = fit(mdp.problem, drawn(mdp, samples))
    kernel = EstimatedKernel(mdp.problem, model.mu)
    rows = np.abs(mdp.problem.features @ model.mu[0].T)
    if kernel.contraction is None:
        pytest.skip("no contraction with so few samples")
    weights, _ = kernel.contraction
    masked_rows = np.where(mdp.problem.mask[:, :, None], rows, 0.0)
    assert (mdp.problem.discount * (masked_rows @ weights).max(axis=1) < weights).all()
    gains = np.random.default_rng(0).standard_normal((1, *mdp.problem.mask.shape))
    gains[0, np.arange(12), mdp.policy] = 0.0
    upper = kernel.super_solution(gains)
    fixed = np.zeros(12)
    for _ in range(3000):
        fixed = np.where(mdp.problem.mask, gains[0] + mdp.problem.discount * rows @ fixed, -np.inf).max(axis=1)
    assert (upper[0] >= fixed).all()
    applied = np.where(mdp.problem.mask, gains[0] + mdp.problem.discount * rows @ upper[0], -np.inf).max(axis=1)
    assert (applied <= upper[0]).all()
    if dense:
        assert upper[0].max() <= fixed.max() * (1 + 1e-6)


def test_no_contraction_no_weights():
    """A kernel with rows far from distributions has none, and says so."""
    mdp = random_mdp(0, discount=0.95)
    kernel = EstimatedKernel(mdp.problem, mdp.mu + np.random.default_rng(0).standard_normal(mdp.mu.shape))
    assert kernel.contraction is None
