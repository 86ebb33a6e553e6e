"""Shortcuts for one-hot and sparse features give what the general path gives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import issparse

import bestpolicy as bp
from bestpolicy._numerics.arrays import axes_of, compact, diagonal_of, solve
from bestpolicy.design import g_optimal_design, leverages, rank_reduction, whiten
from bestpolicy.diagnostics.assumptions import check_features
from tests.models import paper_check


def one_hot(states=60, actions=5, seed=0) -> bp.LinearMDP:
    """A random finite MDP large enough to be stored as sparse; coordinates of different lengths, some pairs shared."""
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(0.5, 2, (states - 1) * actions)
    features = np.zeros((states, actions, len(lengths)))
    features[:-1] = np.diag(lengths).reshape(states - 1, actions, -1)
    features[-1] = features[0]
    d = features.shape[2]
    mu = rng.dirichlet(np.full(states, 0.1), d).T / lengths
    problem = bp.Problem(features, discount=0.8)
    return bp.LinearMDP(problem, theta=rng.random(d) / lengths, mu=mu)


def rotation(dimension: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(dimension, dimension)))[0]


@pytest.fixture(scope="module")
def twins():
    """The same MDP in two coordinate systems: one in which it is sparse, one in which it is not."""
    mdp = one_hot()
    turn = rotation(mdp.problem.dimension)
    turned = mdp.problem.with_features(mdp.problem.features @ turn)
    return mdp, bp.LinearMDP(turned, theta=mdp.theta[0] @ turn, mu=mdp.mu[0] @ turn)


def test_the_structure_is_recognised_in_one_of_them_only(twins):
    sparse, general = (mdp.problem for mdp in twins)
    assert issparse(sparse.matrix)
    assert not issparse(general.matrix)
    assert axes_of(sparse.pair_features) is not None
    assert axes_of(general.pair_features) is None
    assert np.array_equal(sparse.matrix.toarray(), sparse.features.reshape(-1, sparse.dimension))


def test_designs_agree(twins):
    sparse, general = (g_optimal_design(mdp.problem.pair_features, tolerance=1e-6) for mdp in twins)
    assert np.array_equal(sparse.indices, general.indices)
    np.testing.assert_allclose(sparse.weights, general.weights, atol=1e-8)
    assert sparse.worst_leverage == pytest.approx(general.worst_leverage, rel=1e-5)
    rows = twins[0].problem.pair_features
    information = (rows[sparse.indices].T * sparse.weights) @ rows[sparse.indices]
    by_hand = np.einsum("nd,nd->n", rows @ np.linalg.inv(information), rows)
    assert by_hand.max() == pytest.approx(sparse.worst_leverage)


def test_the_longest_row_of_an_axis_is_taken():
    rows = np.array([[0.0, 2.0], [0.0, -3.0], [1.0, 0.0], [0.0, 0.0], [-0.5, 0.0]])
    design = g_optimal_design(rows)
    assert design.indices.tolist() == [1, 2]
    assert design.weights.tolist() == [0.5, 0.5]
    assert design.worst_leverage == 2.0
    white = whiten(rows, design).features(rows)
    np.testing.assert_allclose(np.abs(white).max(axis=0), 1.0)


def test_whitening_and_leverages_agree(twins):
    found = []
    for mdp in twins:
        rows = mdp.problem.pair_features
        whitening = whiten(rows, g_optimal_design(rows))
        np.testing.assert_allclose(whitening.transform @ whitening.inverse, np.eye(rows.shape[1]), atol=1e-10)
        white = whitening.features(rows)
        found.append(white @ white.T)
        gram = rows.T @ rows
        np.testing.assert_allclose(leverages(rows, gram), leverages(compact(rows), gram), rtol=1e-12)
        np.testing.assert_allclose(leverages(rows, gram), np.sum(np.linalg.qr(rows)[0] ** 2, axis=1), rtol=1e-8)
    # The design of the general path is optimal up to its tolerance of a thousandth.
    np.testing.assert_allclose(*found, atol=2e-3)


def test_sparse_rows_with_a_gram_matrix_that_is_not_diagonal():
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((600, 120)) < 0.03, rng.normal(size=(600, 120)), 0.0)
    gram = rows.T @ rows + 0.1 * np.eye(120)
    assert issparse(compact(rows))
    np.testing.assert_allclose(leverages(compact(rows), gram), leverages(rows, gram), rtol=1e-12)


def test_checks_agree(twins):
    """Least squares, planning and the stopping rule, from the same samples."""
    sparse = twins[0]
    pairs = sparse.problem.pairs
    tally = bp.ExactSimulator(sparse).sample(bp.Pulls(pairs, np.full((1, len(pairs)), 10**6)), np.random.default_rng(0))
    a, b = (bp.least_squares(mdp.problem.matrix, tally, ridge=0.01) for mdp in twins)
    assert diagonal_of(a.gram[0]) is not None
    assert diagonal_of(b.gram[0]) is None
    predictions = [mdp.problem.pair_features @ fit.mu[0].T for mdp, fit in zip(twins, (a, b), strict=True)]
    np.testing.assert_allclose(*predictions, atol=1e-10)
    whole = bp.least_squares(sparse.problem.features, tally, ridge=0.01)
    np.testing.assert_allclose(whole.mu, a.mu, atol=1e-12)

    checks = [paper_check(mdp.problem, 0.1, 0.1, tally) for mdp in twins]
    assert checks[0].statistic == pytest.approx(checks[1].statistic, rel=1e-6)  # rounding is bounded, not equal
    assert checks[0].gap == pytest.approx(checks[1].gap, abs=1e-10)
    assert np.array_equal(checks[0].policy, checks[1].policy)
    started = paper_check(sparse.problem, 0.1, 0.1, tally, start=np.zeros((1, 60), np.int64))
    assert np.array_equal(started.policy, checks[0].policy)


def test_values_agree(twins):
    sparse, general = twins
    np.testing.assert_allclose(sparse.values, general.values, atol=1e-12)
    np.testing.assert_allclose(sparse.policy_values(sparse.policy), general.values, atol=1e-12)
    rewards = sparse.rewards[np.arange(60), sparse.policy]
    kernel = sparse.transitions[np.arange(60), sparse.policy]
    np.testing.assert_allclose(np.linalg.solve(np.eye(60) - 0.8 * kernel, rewards), sparse.values, atol=1e-12)


def test_a_missing_axis_is_a_lack_of_rank():
    features = np.delete(np.eye(300), 7, axis=0)
    problem = bp.Problem(features[:, None, :], discount=0.5)
    rank, _ = check_features(problem)
    assert (rank.measured, rank.passed) == (299, False)
    assert np.array_equal(features @ rank_reduction(features), np.eye(299))
    with pytest.raises(bp.InvalidInput, match="rank 299, expected 300"):
        g_optimal_design(features)


def test_what_is_not_diagonal_is_seen():
    assert diagonal_of(np.array([[1.0, 1e-300], [0.0, 1.0]])) is None
    assert axes_of(np.array([[1.0, 0.0], [1.0, 1e-300]])) is None
    assert axes_of(np.vstack([np.eye(20), np.eye(20)[3] + np.eye(20)[7], np.zeros(20)])) is None
    np.testing.assert_allclose(solve(np.diag([2.0, 4.0]), np.ones((2, 1))), [[0.5], [0.25]])
    with pytest.raises(np.linalg.LinAlgError):
        solve(np.diag([2.0, 0.0]), np.ones((2, 1)))
    with pytest.raises(bp.InvalidInput, match="positive definite"):
        leverages(np.eye(2), np.diag([1.0, -1.0]))
