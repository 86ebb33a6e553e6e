"""G-optimal designs: the certificate, closed forms, peers, and features that are hard on the arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import solve_triangular

from bestpolicy._numerics.reproducible import accurate_product
from bestpolicy.design import Design, g_optimal_design
from bestpolicy.design.d_optimal import support_threshold
from bestpolicy.design.g_optimal import caratheodory, drop_negligible
from bestpolicy.design.whitening import whitening_transform
from bestpolicy.errors import ConvergenceError, InvalidInput


def leverages_by_qr(features: np.ndarray, design: Design) -> np.ndarray:
    """Leverages from a QR factorisation of the weighted support, in columns of unit norm."""
    scaled = features / np.linalg.norm(features, axis=0)
    root = np.linalg.qr(np.sqrt(design.weights)[:, None] * scaled[design.indices], mode="r")
    return np.sum(solve_triangular(root, scaled.T, trans="T") ** 2, axis=0)


def log_det(features: np.ndarray, design: Design) -> float:
    points = features[design.indices]
    return float(np.linalg.slogdet((points.T * design.weights) @ points)[1])


def check(features: np.ndarray, design: Design, slack: float = 1e-9) -> None:
    """Everything that a design promises, recomputed from the features."""
    dimension = features.shape[1]
    assert design.dimension == dimension
    assert design.indices.dtype == np.int64
    assert np.all(np.diff(design.indices) > 0)
    assert design.indices[0] >= 0
    assert design.indices[-1] < len(features)
    assert dimension <= len(design.indices) <= dimension * (dimension + 1) // 2
    assert np.all(design.weights > 0)
    assert design.weights.sum() == pytest.approx(1, abs=1e-12)
    leverages = leverages_by_qr(features, design)
    assert leverages.max() <= (1 + design.tolerance) * dimension + slack
    assert design.worst_leverage == pytest.approx(leverages.max(), rel=slack)
    assert leverages[design.worst_index] == pytest.approx(leverages.max(), rel=slack)
    assert design.worst_leverage <= (1 + design.tolerance) * dimension


def rbf(points: np.ndarray, centres: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-np.sum((points[:, None] - centres) ** 2, axis=2) / (2 * width**2))


def on_sphere(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    points = rng.standard_normal((count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def families() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    gaussian = rng.standard_normal((3000, 8))
    base = rng.standard_normal((60, 8))
    with_zeros = gaussian[:300].copy()
    with_zeros[::3] = 0
    return {
        "gaussian": gaussian,
        "as many rows as columns": gaussian[:8],
        "one more row than columns": gaussian[:9],
        "one column": gaussian[:, :1],
        "two columns": gaussian[:, :2],
        "simplex": rng.dirichlet(np.ones(8), 2000),
        "sparse simplex": rng.dirichlet(np.full(8, 0.1), 2000),
        "one-hot": np.eye(8)[rng.integers(0, 8, 2000)],
        "one-hot, one row each but the last": np.eye(8)[np.minimum(np.arange(20_000), 7)],
        "unit sphere": on_sphere(rng, 3000, 8),
        "unit circle": on_sphere(rng, 3000, 2),
        "unit ball": on_sphere(rng, 3000, 6) * rng.random((3000, 1)) ** (1 / 6),
        "ball of the paper": np.hstack([np.ones((3000, 1)), on_sphere(rng, 3000, 5)]) / np.sqrt(2),
        "heavy tails": rng.standard_t(1, (3000, 8)),
        "duplicates": base[rng.integers(0, 60, 3000)],
        "near duplicates": base[rng.integers(0, 60, 3000)] + 1e-9 * rng.standard_normal((3000, 8)),
        "column scales": gaussian * np.logspace(-8, 8, 8),
        "row scales": gaussian * 10.0 ** rng.uniform(-6, 6, (3000, 1)),
        "tiny": gaussian * 1e-200,
        "huge": gaussian * 1e200,
        "rows of zeros": with_zeros,
        "radial basis": rbf(rng.random((3000, 2)), rng.random((8, 2)), 0.3),
        "wide radial basis": rbf(rng.random((3000, 2)), rng.random((8, 2)), 1.5),
        "polynomials": np.vander(np.linspace(-1, 1, 4001), 9),
        "small integers": rng.integers(-1, 2, (3000, 6)).astype(float),
    }


FAMILIES = families()


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_certificate_holds(name, tolerance):
    features = FAMILIES[name]
    # The check itself squares entries, which must not overflow; a common factor changes no leverage.
    checked = features / np.abs(features).max() if name in ("tiny", "huge") else features
    condition = np.linalg.cond(checked / np.linalg.norm(checked, axis=0))
    check(checked, g_optimal_design(features, tolerance=tolerance), slack=1e-9 + 1e-13 * condition)


@pytest.mark.parametrize("tolerance", [1.0, 0.1, 1e-8, 1e-10])
def test_every_tolerance_is_kept(tolerance):
    for name in ("gaussian", "simplex", "polynomials", "near duplicates"):
        design = g_optimal_design(FAMILIES[name], tolerance=tolerance)
        assert design.tolerance == tolerance
        check(FAMILIES[name], design, slack=1e-11)


def exact_leverages(features: np.ndarray, design: Design, rows: np.ndarray) -> list[float]:
    """Leverages in rational arithmetic: exact for the floating-point numbers given."""
    dimension = features.shape[1]
    points = [[Fraction(value) for value in row] for row in features[design.indices].tolist()]
    weights = [Fraction(weight) for weight in design.weights.tolist()]
    sides = [[Fraction(value) for value in row] for row in features[rows].tolist()]
    system = [
        [sum(w * p[i] * p[j] for w, p in zip(weights, points, strict=True)) for j in range(dimension)]
        + [side[i] for side in sides]
        for i in range(dimension)
    ]
    for i in range(dimension):
        for k in range(i + 1, dimension):
            ratio = system[k][i] / system[i][i]
            system[k] = [below - ratio * above for below, above in zip(system[k], system[i], strict=True)]
    # Elimination turns the right sides into L^-1 x, and x' Lambda^-1 x = sum_i (L^-1 x)_i^2 / D_i.
    return [
        float(sum(system[i][dimension + k] ** 2 / system[i][i] for i in range(dimension))) for k in range(len(rows))
    ]


def test_the_certificate_is_exact_where_float64_is_not():
    grid = np.linspace(0, 1, 41)[:, None]
    features = rbf(grid, np.linspace(0, 1, 6)[:, None], 3.0)
    assert np.linalg.cond(features / np.linalg.norm(features, axis=0)) > 1e9
    design = g_optimal_design(features, tolerance=1e-6)
    exact = exact_leverages(features, design, np.arange(len(features)))
    assert max(exact) <= (1 + 1e-6) * 6
    assert design.worst_leverage == pytest.approx(max(exact), rel=1e-8)


def test_accurate_products():
    rng = np.random.default_rng(3)
    left = rng.standard_normal((5, 6)) * np.logspace(-3, 3, 6)
    # The rows of `right` are nearly orthogonal to those of `left`: almost every digit cancels.
    right = np.linalg.svd(left)[2].T * 10.0 ** rng.uniform(-4, 4, 6)
    exact = [
        [float(sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True))) for column in right.T.tolist()]
        for row in left.tolist()
    ]
    size = (np.abs(left) @ np.abs(right)).max()
    np.testing.assert_allclose(accurate_product(left, right)[0], exact, rtol=1e-15, atol=1e-19 * size)


@pytest.mark.parametrize(("count", "dimension"), [(12, 3), (40, 4), (60, 6)])
def test_log_det_is_that_of_a_convex_solver(count, dimension):
    cvxpy = pytest.importorskip("cvxpy")
    features = np.random.default_rng(count).standard_normal((count, dimension))
    weights = cvxpy.Variable(count, nonneg=True)
    objective = cvxpy.log_det(features.T @ cvxpy.diag(weights) @ features)
    problem = cvxpy.Problem(cvxpy.Maximize(objective), [cvxpy.sum(weights) == 1])
    problem.solve(solver=cvxpy.CLARABEL)
    design = g_optimal_design(features, tolerance=1e-8)
    assert log_det(features, design) == pytest.approx(problem.value, abs=1e-5)
    assert log_det(features, design) >= problem.value - 1e-6
    full = np.zeros(count)
    full[design.indices] = design.weights
    np.testing.assert_allclose(full, weights.value, atol=1e-3)


def test_one_hot_features_are_sampled_equally():
    design = g_optimal_design(np.eye(7))
    np.testing.assert_array_equal(design.indices, np.arange(7))
    np.testing.assert_allclose(design.weights, 1 / 7, rtol=1e-12)
    assert design.worst_leverage == pytest.approx(7, rel=1e-12)


def test_copies_of_one_hot_features_get_one_row_each():
    features = FAMILIES["one-hot"]
    design = g_optimal_design(features)
    assert len(design.indices) == 8
    np.testing.assert_array_equal(np.sort(features[design.indices].argmax(axis=1)), np.arange(8))
    np.testing.assert_allclose(design.weights, 1 / 8, rtol=1e-12)


def test_the_simplex_is_sampled_at_its_corners():
    features = np.vstack([np.random.default_rng(0).dirichlet(np.ones(5), 1000), np.eye(5)])
    design = g_optimal_design(features, tolerance=1e-6)
    np.testing.assert_array_equal(design.indices, np.arange(1000, 1005))
    np.testing.assert_allclose(design.weights, 0.2, rtol=1e-5)


def test_independent_rows_are_sampled_equally():
    features = np.random.default_rng(1).standard_normal((9, 9))
    np.testing.assert_allclose(g_optimal_design(features, tolerance=1e-9).weights, 1 / 9, rtol=1e-6)


def test_one_dimension_takes_the_largest():
    design = g_optimal_design(np.array([[1.0], [-3.0], [2.0], [0.0]]))
    assert design.indices.tolist() == [1]
    assert design.weights.tolist() == [1.0]


def test_polynomial_regression():
    # Optimal points: the ends and the zeros of the derivative of a Legendre polynomial; equal weights.
    x = np.linspace(-1, 1, 2001)
    quadratic = g_optimal_design(np.vander(x, 3), tolerance=1e-8)
    np.testing.assert_allclose(x[quadratic.indices], [-1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(quadratic.weights, 1 / 3, atol=1e-6)
    inner = np.sqrt(1 / 5)
    points = np.sort(np.append(x, [-inner, inner]))
    cubic = g_optimal_design(np.vander(points, 4), tolerance=1e-8)
    for target in (-1, -inner, inner, 1):
        near = np.abs(points[cubic.indices] - target) < 2e-3
        assert cubic.weights[near].sum() == pytest.approx(1 / 4, abs=1e-4)


def test_duplicates_change_nothing():
    rng = np.random.default_rng(5)
    base = rng.standard_normal((40, 5))
    alone = log_det(base, g_optimal_design(base, tolerance=1e-9))
    for jitter in (0.0, 1e-14, 1e-9, 1e-7):
        copies = np.repeat(base, 50, axis=0) + jitter * rng.standard_normal((2000, 5))
        design = g_optimal_design(copies, tolerance=1e-6)
        check(copies, design)
        assert log_det(copies, design) == pytest.approx(alone, abs=5e-6)
        if jitter == 0:
            assert len(np.unique(copies[design.indices], axis=0)) == len(design.indices)


def test_linear_maps_change_nothing():
    rng = np.random.default_rng(11)
    features = rng.standard_normal((500, 6))
    plain = g_optimal_design(features, tolerance=1e-9)
    maps = {
        "rotation": np.linalg.qr(rng.standard_normal((6, 6)))[0],
        "general": rng.standard_normal((6, 6)),
        "units": np.diag(np.logspace(-8, 8, 6)),
        "ill conditioned": rng.standard_normal((6, 6)) @ np.diag(np.logspace(-3, 3, 6)) @ rng.standard_normal((6, 6)),
    }
    for name, matrix in maps.items():
        mapped = g_optimal_design(features @ matrix, tolerance=1e-9)
        np.testing.assert_array_equal(mapped.indices, plain.indices, err_msg=name)
        np.testing.assert_allclose(mapped.weights, plain.weights, atol=1e-6, err_msg=name)
        assert mapped.worst_leverage == pytest.approx(plain.worst_leverage, rel=1e-8)


def test_rows_inside_the_hull_and_signs_change_nothing():
    features = np.random.default_rng(2).standard_normal((200, 4))
    plain = g_optimal_design(features, tolerance=1e-9)
    more = np.vstack([features * 0.9, -features, features])
    design = g_optimal_design(more, tolerance=1e-9)
    assert log_det(more, design) == pytest.approx(log_det(features, plain), abs=1e-8)
    assert np.all(design.indices >= 200)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5).flatmap(lambda d: arrays(np.int8, st.tuples(st.integers(d, 25), st.just(d)))))
def test_any_integer_features(entries):
    features = entries.astype(float)
    assume(np.linalg.matrix_rank(features) == features.shape[1])
    check(features, g_optimal_design(features, tolerance=1e-5))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.integers(-9, 9), tolerance=st.floats(1e-9, 1))
def test_any_seed_scale_and_tolerance(seed, scale, tolerance):
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 7))
    features = rng.standard_normal((int(rng.integers(dimension, 300)), dimension)) * 10.0**scale
    check(features, g_optimal_design(features, tolerance=tolerance))


def test_the_answer_is_deterministic_and_the_input_untouched():
    features = FAMILIES["unit ball"].copy()
    first, second = g_optimal_design(features), g_optimal_design(features)
    np.testing.assert_array_equal(features, FAMILIES["unit ball"])
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.weights, second.weights)
    assert not first.indices.flags.writeable
    assert not first.weights.flags.writeable


def test_lists_integers_and_strided_arrays_are_welcome():
    assert g_optimal_design([[1, 0], [0, 2], [1, 1]]).dimension == 2
    wide = np.random.default_rng(0).standard_normal((50, 10))
    np.testing.assert_array_equal(g_optimal_design(wide[:, ::2]).weights, g_optimal_design(wide[:, ::2].copy()).weights)


@pytest.mark.parametrize("dimension", [2, 5, 9])
def test_no_support_point_is_ever_excluded(dimension):
    """The bound of Harman and Pronzato, from crude designs: the support of a fine one lies above it."""
    rng = np.random.default_rng(dimension)
    for _ in range(10):
        features = rng.standard_normal((30 * dimension, dimension))
        design = g_optimal_design(features, tolerance=1e-9)
        fine = np.zeros(len(features))
        fine[design.indices] = design.weights
        for mixture in (0.3, 0.1, 0.01):
            # A crude design that gives one support point far too much: the others' leverages fall.
            crude = (1 - mixture) * fine
            crude[rng.choice(design.indices)] += mixture
            root = np.linalg.qr(np.sqrt(crude)[:, None] * features, mode="r")
            leverages = np.sum(solve_triangular(root, features.T, trans="T") ** 2, axis=0)
            assert leverages[design.indices].min() >= support_threshold(leverages.max(), dimension) * (1 - 1e-9)


def test_caratheodory_keeps_the_information_matrix():
    rng = np.random.default_rng(4)
    for count, dimension in ((16, 5), (200, 5), (1000, 3), (40, 1)):
        points = on_sphere(rng, count, dimension) * rng.uniform(0.5, 1, (count, 1))
        weights = rng.dirichlet(np.ones(count))
        reduced = caratheodory(points, weights)
        assert np.all(reduced >= 0)
        assert np.count_nonzero(reduced) <= dimension * (dimension + 1) // 2
        np.testing.assert_allclose((points.T * reduced) @ points, (points.T * weights) @ points, atol=1e-8)


def test_negligible_points_hold_no_more_than_their_share():
    points = np.eye(4)
    kept = drop_negligible(points, np.array([0.5, 1e-9, 0.5, 1e-7]), 1e-8)
    assert kept.tolist() == [0, 2, 3]


def test_dependent_features_are_refused_with_a_remedy():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 5))
    with pytest.raises(InvalidInput, match=r"rank 3, expected 5.*rank_reduction"):
        g_optimal_design(features)
    with pytest.raises(InvalidInput, match=r"rank 3, expected 5"):
        g_optimal_design(features * np.logspace(-8, 8, 5))
    with pytest.raises(InvalidInput, match=r"rank 2, expected 3"):
        g_optimal_design(np.ones((2, 3)) + np.eye(3)[:2])
    with pytest.raises(InvalidInput, match=r"rank 0, expected 2"):
        g_optimal_design(np.zeros((4, 2)))
    with pytest.raises(InvalidInput, match=r"rank 1, expected 2"):
        g_optimal_design(np.array([[1.0, 0.0], [2.0, 0.0]]))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(3), r"shape \(n, d\).*Got shape \(3,\)"),
        (np.ones((2, 3, 4)), r"Got shape \(2, 3, 4\).*reshape"),
        (np.ones((0, 3)), r"Got shape \(0, 3\)"),
        (np.ones((3, 0)), r"Got shape \(3, 0\)"),
        (np.array([[1.0, 2.0], [3.0, np.nan]]), r"finite.*nan in row 1, column 1"),
        (np.array([[1.0, -np.inf], [3.0, 1.0]]), r"finite.*-inf in row 0, column 1"),
        ([["a", "b"]], r"array of numbers"),
        (np.ones((2, 2)) * 1j, r"real numbers"),
    ],
)
def test_malformed_features_are_refused(features, message):
    with pytest.raises(InvalidInput, match=message):
        g_optimal_design(features)


@pytest.mark.parametrize("tolerance", [0, -1e-3, 1e-11, 1.5, np.nan, np.inf])
def test_tolerances_out_of_range_are_refused(tolerance):
    with pytest.raises(InvalidInput, match=r"between 1e-10 and 1"):
        g_optimal_design(np.eye(2), tolerance=tolerance)


@pytest.mark.parametrize("limit", ["_MAX_ITERATIONS", "_MAX_ROUNDS"])
def test_a_missed_tolerance_is_an_error(limit, monkeypatch):
    monkeypatch.setattr(f"bestpolicy.design.d_optimal.{limit}", 1)
    with pytest.raises(ConvergenceError, match=r"larger tolerance"):
        g_optimal_design(FAMILIES["polynomials"], tolerance=1e-6)


def test_a_design_that_misses_its_certificate_is_never_returned(monkeypatch):
    monkeypatch.setattr("bestpolicy.design.g_optimal.drop_negligible", lambda points, weights, share: np.arange(8))
    with pytest.raises(ConvergenceError, match=r"tolerance 0.001"):
        g_optimal_design(FAMILIES["gaussian"])


def test_whitening_makes_the_gram_matrix_the_identity():
    for name in ("gaussian", "column scales", "row scales", "wide radial basis", "polynomials"):
        features = FAMILIES[name]
        transform, condition = whitening_transform(features)
        whitened = features @ transform
        np.testing.assert_allclose(whitened.T @ whitened, np.eye(features.shape[1]), atol=1e-14 * condition + 1e-9)
