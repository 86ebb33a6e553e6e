"""Lemmas K and L: against brute force, at the right level, and broken on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from bestpolicy.stopping.episodes import points_of
from bestpolicy.stopping.lemmas import means
from bestpolicy.stopping.lemmas.means import highest_means, lowest_mean, nats_upwards


def brute_force(points, weights, nats, top):
    """The bound of Lemma K on a fine grid of ν."""
    share = weights / weights.sum()
    nu = top + np.concatenate([[0.0], np.exp(np.linspace(-25, 12, 20_000))])
    with np.errstate(divide="ignore"):
        return (nu - np.exp((share * np.log(nu[:, None] - points)).sum(axis=1) - nats)).min()


def bound(points, weights, nats, top):
    rows = np.zeros(len(points), np.int64)
    return highest_means(np.asarray(points), np.asarray(weights, float), rows, np.array([nats]), np.array([top]))[0]


def test_the_upper_bound_is_the_minimum_over_all_bets():
    rng = np.random.default_rng(0)
    for _ in range(60):
        size, top, count = rng.integers(1, 6), rng.uniform(0.5, 8), 10 ** rng.uniform(0, 6)
        points = rng.uniform(0, top, size)
        if rng.random() < 0.4:
            points[0] = top
        weights = rng.dirichlet(np.ones(size)) * count
        nats = float(nats_upwards(np.array([count]), 0.01)[0])
        best = brute_force(points, weights, nats, top)
        mine = bound(points, weights, nats, top)
        mean = (weights * points).sum() / count
        assert best - 1e-6 * top <= mine <= best + 0.02 * (best - mean) + 1e-8


def test_several_samples_at_once_are_several_samples():
    rng = np.random.default_rng(1)
    points, weights = rng.uniform(0, 2, 12), rng.uniform(1, 9, 12)
    rows = np.array([2, 0, 1] * 4)
    nats, top = np.array([0.1, 0.02, 0.5]), np.array([2.0, 2.5, 3.0])
    together = highest_means(points, weights, rows, nats, top)
    for row in range(3):
        alone = bound(points[rows == row], weights[rows == row], nats[row], top[row])
        assert together[row] == pytest.approx(alone, rel=1e-12)


def test_the_upper_bound_grows_with_samples_range_and_confidence():
    points, weights = np.array([0.2, 0.7, 1.0]), np.array([5.0, 3.0, 2.0])
    here = bound(points, weights, 0.05, 1.2)
    assert bound(points + np.array([0.0, 0.1, 0.0]), weights, 0.05, 1.2) > here
    assert bound(points, weights, 0.06, 1.2) > here
    assert bound(points, weights, 0.05, 1.3) >= here - 1e-9


@pytest.mark.parametrize("limit", [0.8, 1.3, 5.0])
def test_sums_of_rewards_stand_for_the_rewards(limit):
    rng = np.random.default_rng(2)
    for _ in range(40):
        rewards, following = rng.beta(0.5, 0.5, 30), rng.uniform(0, 1.2)
        samples = np.minimum(limit, rewards + following)
        top = min(limit, 1 + following + 0.1)
        exact = bound(samples, np.ones(30), 0.08, top)
        arguments = (np.array([following]), np.array([30]), np.array([rewards.sum()]), np.array([0]), limit)
        points, weights, _ = points_of(*arguments)
        assert weights.sum() == pytest.approx(30)
        assert bound(np.minimum(points, top), weights, 0.08, top) >= exact - 1e-9


def fails_from_above(delta, factor=1.0, law=0.85, runs=400, most=150):
    """How often Lemma K fails at some time, with its threshold times a factor."""
    rng, failures = np.random.default_rng(3), 0
    counts = np.arange(1, most + 1, dtype=float)
    nats = nats_upwards(counts, delta) * factor
    for _ in range(runs):
        won = np.cumsum(rng.random(most) < law).astype(float)
        points = np.concatenate([np.zeros(most), np.ones(most)])
        weights, rows = np.concatenate([counts - won, won]), np.tile(np.arange(most), 2)
        used = weights > 0
        bounds = highest_means(points[used], weights[used], rows[used], nats, np.ones(most))
        failures += bool((bounds < law).any())
    return failures


def test_the_upper_bound_holds_at_all_times_with_the_right_probability():
    assert binomtest(fails_from_above(0.5), 400, 0.5, alternative="greater").pvalue > 0.01
    assert binomtest(fails_from_above(0.1), 400, 0.1, alternative="greater").pvalue > 0.01
    assert binomtest(fails_from_above(0.1, 0.3), 400, 0.1, alternative="greater").pvalue < 1e-6  # it would be noticed


def fails_from_below(delta, law=0.2, runs=60):
    rng, failures = np.random.default_rng(4), 0
    times = np.unique(np.ceil(1.2 ** np.arange(30)).astype(int))
    for _ in range(runs):
        won = np.cumsum(rng.random(times[-1]) < law)[times - 1]
        sums = [(int(n), float(w)) for n, w in zip(times, won, strict=True)]
        failures += any(lowest_mean(n, w, w, 1.0, delta) > law for n, w in sums)
    return failures


def test_the_lower_bound_holds_at_all_times_with_the_right_probability():
    assert binomtest(fails_from_below(0.5), 60, 0.5, alternative="greater").pvalue > 0.01
    assert binomtest(fails_from_below(0.1), 60, 0.1, alternative="greater").pvalue > 0.01
    too_bold = means.BETS * (0.1 / means.BETS) ** 0.3  # what the best of all bets has to reach, times 0.3
    assert binomtest(fails_from_below(too_bold), 60, 0.1, alternative="greater").pvalue < 1e-6  # it would be noticed


def test_the_lower_bound_is_where_the_test_turns():
    rng = np.random.default_rng(5)
    bets = means.LARGEST_BET * means.RATIO ** -np.arange(means.BETS)
    for _ in range(20):
        samples, limit = rng.beta(2, 3, rng.integers(5, 400)) * 3, 3.5
        grid = np.linspace(0, samples.mean(), 5001)
        distance = (samples[None] - grid[:, None]) / limit
        exponent = bets * distance.sum(axis=1)[:, None] + (np.log1p(-bets) + bets) * (distance**2).sum(axis=1)[:, None]
        refuted = np.exp(exponent).mean(axis=1) >= 20
        expected = grid[np.flatnonzero(~refuted)[0]]
        found = lowest_mean(len(samples), samples.sum(), (samples**2).sum(), limit, 0.05)
        assert found == pytest.approx(expected, abs=1e-3)
        assert (np.diff(refuted.astype(int)) <= 0).all()
