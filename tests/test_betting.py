"""Lemma E and Lemma J: means of what is bet are at most 1, and widths hold as often as they say."""

from __future__ import annotations

import itertools
from math import log

import numpy as np
import pytest
from scipy.stats import binomtest

from bestpolicy.stopping.lemmas.betting import best_bets, psi, width

LAWS = [
    (np.array([0.0, 1.0]), np.array([0.5, 0.5])),
    (np.array([0.0, 1.0]), np.array([0.999, 0.001])),
    (np.array([0.0, 1.0]), np.array([0.02, 0.98])),
    (np.array([0.0, 0.3, 1.0]), np.array([0.1, 0.8, 0.1])),
]


def fair(law, centre, stake, reach):
    """E exp(t(X-μ) - ψ·t²(X-m)²), which may not exceed 1."""
    values, weights = law
    penalty = psi(np.array(abs(stake) * reach)) * stake**2 * (values - centre) ** 2
    return float(weights @ np.exp(stake * (values - weights @ values) - penalty))


@pytest.mark.parametrize("law", LAWS)
def test_what_is_bet_has_a_mean_of_at_most_one(law):
    for centre, sign, x in itertools.product((0.0, 0.2, 0.5, 0.9, 1.0), (1, -1), (0.01, 0.3, 0.9, 0.999)):
        reach = max(centre if sign > 0 else 1 - centre, 0.05)  # on the unfavourable side
        assert fair(law, centre, sign * x / reach, reach) <= 1 + 1e-12


def test_a_range_that_forgets_unseen_values_would_be_noticed():
    assert fair(LAWS[1], 0.0, -3.0, 0.05) > 1.001


def test_psi_increases_from_a_half():
    grid = psi(np.array([0.0, 1e-6, 1e-4, 1.1e-4, 0.1, 0.5, 0.99]))
    assert grid[0] == 0.5
    assert (np.diff(grid) >= 0).all()
    assert psi(np.array([1.0, 2.0])).tolist() == [np.inf, np.inf]


def test_best_bets_are_nearly_best():
    for nats, squares, reach in itertools.product((0.1, 1.0, 5.0), (0.0, 1e-6, 1e-2, 10.0), (1e-5, 1e-2, 3.0)):
        one = np.array([squares]), np.array([reach])
        bets = best_bets(nats, *one)
        grid = np.logspace(-9, 9, 20001)
        best = width(nats, grid, np.full(grid.shape, squares), np.full(grid.shape, reach)).min()
        assert bets[0] * reach < 1
        assert width(nats, bets, *one)[0] <= 1.15 * best


def test_bets_of_directions_that_vanish():
    zero = np.zeros(1)
    assert width(3.0, best_bets(3.0, zero, zero), zero, zero)[0] < 1e-100


def coverage(runs, scale, rng, *, looks=(6, 8, 10, 14, 20), delta=0.02):
    """How often a direction over three pairs exceeds `scale` times its width at some look."""
    laws = LAWS[:1] + LAWS[2:]
    unit, direction = np.array([3, 10, 5]), np.array([1.0, -0.7, 0.4])
    means = np.array([weights @ values for values, weights in laws])
    centres = np.array([0.45, 0.97, 0.4])
    reach = (np.where(direction > 0, direction * centres, -direction * (1 - centres)) / unit).max()
    spread = np.array([weights @ (values - m) ** 2 for (values, weights), m in zip(laws, centres, strict=True)])
    bets = best_bets(-log(delta) / 10, np.array([(direction**2 / unit) @ spread]), np.array([reach]))
    failed = 0
    for _ in range(runs):
        draws = [
            rng.choice(values, size=looks[-1] * n, p=weights) for (values, weights), n in zip(laws, unit, strict=True)
        ]
        for units in looks:
            seen = [each[: units * n] for each, n in zip(draws, unit, strict=True)]
            noise = direction @ (np.array([each.mean() for each in seen]) - means)
            squares = (direction**2 / unit) @ [((each - m) ** 2).mean() for each, m in zip(seen, centres, strict=True)]
            if noise > scale * width(-log(delta) / units, bets, np.array([squares]), np.array([reach]))[0]:
                failed += 1
                break
    return failed


def test_all_looks_together_fail_as_rarely_as_one_may():
    assert binomtest(coverage(600, 1.0, np.random.default_rng(1)), 600, 0.02, "greater").pvalue > 1e-3


def test_half_the_width_is_noticed():
    assert binomtest(coverage(600, 0.5, np.random.default_rng(1)), 600, 0.02, "greater").pvalue < 1e-3


@pytest.mark.parametrize(("scale", "holds"), [(1.0, True), (0.4, False)])
def test_weights_that_nobody_knows_cost_nothing(scale, holds):
    """Lemma J: 40 coins, weights unknown; Σ o_k e_k stays below Σ o_k width_k without a union over k."""
    rng, delta, count, runs = np.random.default_rng(2), 0.1, 40, 1000
    weights = rng.exponential(size=count)
    common = rng.random((runs, 1, 50)) < 0.5  # the same coins for all pairs: independence is not needed
    coins = np.repeat(common, count, axis=1).astype(float)
    noise = coins.mean(axis=2) - 0.5
    squares = np.full(count, 0.25 / 50)
    reach = np.full(count, 0.5 / 50)
    bets = best_bets(-log(delta), squares, reach) * rng.uniform(0.7, 1.0, count)
    limit = scale * weights @ width(-log(delta), bets, squares, reach)
    failed = int((noise @ weights > limit).sum())
    assert (binomtest(failed, runs, delta, "greater").pvalue > 1e-3) == holds
