"""Whitening, leverages, rank reduction, and whole numbers of pulls."""

from __future__ import annotations

import heapq
import tracemalloc
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestpolicy.design import g_optimal_design, leverages, rank_reduction, rounded_counts, whiten
from bestpolicy.errors import InvalidInput


def feature_sets() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal((400, 6))
    return {
        "gaussian": gaussian,
        "simplex": rng.dirichlet(np.ones(6), 400),
        "one-hot": np.eye(6)[rng.integers(0, 6, 400)],
        "column scales": gaussian * np.logspace(-8, 8, 6),
        "correlated": gaussian @ np.triu(np.ones((6, 6))) @ np.diag(np.logspace(0, 4, 6)),
        "polynomials": np.vander(np.linspace(-1, 1, 400), 6),
        "one column": gaussian[:, :1],
    }


SETS = feature_sets()


@pytest.mark.parametrize("tolerance", [0.1, 1e-6])
@pytest.mark.parametrize("name", SETS)
def test_norms_after_whitening(name, tolerance):
    features = SETS[name]
    dimension = features.shape[1]
    design = g_optimal_design(features, tolerance=tolerance)
    whitening = whiten(features, design)
    white = whitening.features(features)
    assert np.linalg.norm(white, axis=1).max() <= 1
    assert np.linalg.norm(white, axis=1).max() >= 1 - 1e-9

    rng = np.random.default_rng(1)
    for _ in range(20):
        theta = np.linalg.lstsq(features / features.std(axis=0).max(), rng.uniform(size=len(features)), rcond=None)[0]
        rewards = features @ theta
        white_theta = whitening.parameters(theta)
        np.testing.assert_allclose(white @ white_theta, rewards, atol=1e-8 * np.abs(rewards).max())
        bound = (1 + tolerance) * dimension * np.max(rewards**2)
        assert np.sum(white_theta**2) <= bound * (1 + 1e-9)

    points = white[design.indices]
    information = (points.T * design.weights) @ points * design.worst_leverage
    np.testing.assert_allclose(information, np.eye(dimension), atol=1e-7)
    np.testing.assert_allclose(whitening.inverse @ whitening.transform, np.eye(dimension), atol=1e-7)


def test_parameters_of_several_states_at_once():
    features = SETS["gaussian"]
    whitening = whiten(features, g_optimal_design(features))
    mu = np.random.default_rng(0).standard_normal((2, 9, 6))
    stacked = features.reshape(20, 20, 6)
    np.testing.assert_allclose(
        np.einsum("sad,htd->hsat", whitening.features(stacked), whitening.parameters(mu)),
        np.einsum("sad,htd->hsat", stacked, mu),
        atol=1e-12,
    )


def test_whitening_refuses_a_design_of_other_features():
    design = g_optimal_design(SETS["gaussian"])
    with pytest.raises(InvalidInput, match=r"dimension 6"):
        whiten(SETS["one column"], design)
    with pytest.raises(InvalidInput, match=r"at least \d+ rows"):
        whiten(SETS["gaussian"][:7], design)
    with pytest.raises(InvalidInput, match=r"span"):
        whiten(np.zeros_like(SETS["gaussian"]) + np.eye(6)[0], design)


@pytest.mark.parametrize("name", SETS)
def test_leverages(name):
    features = SETS[name]
    gram = features.T @ features
    expected = np.sum(np.linalg.qr(features)[0] ** 2, axis=1)
    np.testing.assert_allclose(leverages(features, gram), expected, rtol=1e-6)


def test_leverages_need_little_memory():
    features = np.random.default_rng(0).standard_normal((200_000, 10))
    tracemalloc.start()
    leverages(features, np.eye(10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < features.nbytes / 2


def test_leverages_refuse_what_is_not_positive_definite():
    with pytest.raises(InvalidInput, match=r"positive definite"):
        leverages(np.eye(2), np.ones((2, 2)) - 2 * np.eye(2))
    with pytest.raises(InvalidInput, match=r"\(2, 2\) and \(3, 3\)"):
        leverages(np.eye(2), np.eye(3))


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("scales", [np.ones(6), np.logspace(-8, 8, 6), np.logspace(8, -8, 6)])
def test_rank_reduction(rank, scales):
    rng = np.random.default_rng(rank)
    features = rng.standard_normal((100, rank)) @ rng.standard_normal((rank, 6)) * scales
    basis = rank_reduction(features)
    assert basis.shape == (6, rank)
    np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(features @ basis @ basis.T, features, atol=1e-12 * np.abs(features).max())
    reduced = features @ basis
    assert g_optimal_design(reduced).dimension == rank
    assert rank_reduction(reduced).shape == (rank, rank)
    # The same linear functions: every column is a combination of the reduced ones.
    normal = reduced / np.linalg.norm(reduced, axis=0)
    for column in features.T:
        fitted = normal @ np.linalg.lstsq(normal, column, rcond=None)[0]
        np.testing.assert_allclose(fitted, column, atol=1e-9 * np.abs(column).max())


def test_full_rank_is_left_alone():
    for features in SETS.values():
        np.testing.assert_array_equal(rank_reduction(features), np.eye(features.shape[1]))


def test_rank_does_not_depend_on_units_or_repetition():
    rng = np.random.default_rng(8)
    features = np.column_stack([rng.standard_normal((60, 3)), np.ones(60), np.zeros(60)])
    features = np.column_stack([features, features[:, 0] - features[:, 1]])
    for units in (np.ones(6), 10.0 ** rng.uniform(-9, 9, 6)):
        assert rank_reduction(np.tile(features * units, (50, 1))).shape == (6, 4)
    nearly = np.column_stack([features[:, 0], features[:, 0] + 1e-9 * features[:, 1]])
    assert rank_reduction(nearly).shape == (2, 2)


def test_rank_reduction_refuses_zeros():
    with pytest.raises(InvalidInput, match=r"all zero"):
        rank_reduction(np.zeros((3, 2)))


def schedule(weights: list[float], total: int) -> list[int]:
    """Stride scheduling, pull by pull, in rational arithmetic."""
    counts = [0] * len(weights)
    queue = [(Fraction(0), pair) for pair in range(len(weights))]
    for _ in range(total):
        _, pair = heapq.heappop(queue)
        counts[pair] += 1
        heapq.heappush(queue, (counts[pair] / Fraction(weights[pair]), pair))
    return counts


weight_lists = st.lists(st.floats(1e-6, 1), min_size=1, max_size=8) | st.lists(
    st.sampled_from([0.25, 0.5, 0.125, 1 / 3]), min_size=1, max_size=8
)


@settings(max_examples=200, deadline=None)
@given(weight_lists, st.integers(0, 200))
def test_counts_are_those_of_the_schedule(weights, total):
    assert rounded_counts(weights, total).tolist() == schedule(weights, total)


@settings(max_examples=100, deadline=None)
@given(weight_lists, st.integers(0, 10**16), st.integers(0, 50))
def test_counts_add_up_and_never_decrease(weights, total, more):
    before, after = rounded_counts(weights, total), rounded_counts(weights, total + more)
    assert before.dtype == np.int64
    assert sum(before.tolist()) == total
    assert sum(after.tolist()) == total + more
    assert np.all(after >= before)
    # Gram(counts) >= (total - K) Lambda(w), pair by pair and exactly.
    mass = sum(Fraction(weight) for weight in weights)
    for count, weight in zip(before.tolist(), weights, strict=True):
        assert count >= (total - len(weights)) * Fraction(weight) / mass
        assert count < total * Fraction(weight) / mass + 1


def test_one_pull_more_is_one_count_more():
    weights = g_optimal_design(SETS["gaussian"]).weights
    for start in (0, 10**6, 10**16 - 40):
        counts = [rounded_counts(weights, start + step) for step in range(40)]
        for before, after in pairwise(counts):
            assert np.sort(after - before).tolist() == [0] * (len(weights) - 1) + [1]


def test_the_gram_matrix_follows_the_design():
    features = SETS["polynomials"]
    design = g_optimal_design(features)
    points = features[design.indices]
    information = (points.T * design.weights) @ points
    for total in (len(points), 10**3, 10**7):
        counts = rounded_counts(design.weights, total)
        surplus = (points.T * counts) @ points - (total - len(points)) * information
        assert np.linalg.eigvalsh(surplus).min() >= -1e-9 * total


def test_ties_go_to_the_first_and_extremes_work():
    assert rounded_counts([0.25] * 4, 6).tolist() == [2, 2, 1, 1]
    assert rounded_counts([1e-300, 1.0], 5).tolist() == [1, 4]
    assert rounded_counts([1.0], np.int64(2**63 - 1)).tolist() == [2**63 - 1]
    assert rounded_counts(np.full(1275, 1 / 1275), 10**16).sum() == 10**16


@pytest.mark.parametrize(
    ("weights", "total", "message"),
    [
        ([], 3, "weights"),
        ([0.5, 0.0], 3, "positive"),
        ([0.5, -0.5], 3, "positive"),
        ([np.nan], 3, "finite"),
        ([[0.5, 0.5]], 3, "vector"),
        ([1.0], -1, "total"),
        ([1.0], 2.5, "integer"),
        ([1.0], 2**63, "total"),
    ],
)
def test_malformed_weights_and_totals_are_refused(weights, total, message):
    with pytest.raises(InvalidInput, match=message):
        rounded_counts(weights, total)
