"""Spanners and anchors: against convex hulls, linear programs and changes of coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

import bestpolicy as bp
from bestpolicy.design.anchors import anchors, barycentric_spanner, why_no_anchors

BENCHMARK = [f"B{i}" for i in range(1, 16)]
# Extrapolation constants and numbers of corners that the families are built to have.
SIMPLICES = {
    "B1": 4,
    "B2": 12,
    "B3": 4,
    "B4": 5,
    "B6": 8,
    "B9": 18,
    "B11": 4,
    "B12": 61,
    "B13": 11,
    "B14": 18,
    "B15": 4,
}


def inside(point: np.ndarray, others: np.ndarray) -> bool:
    """Whether a point is a convex combination of others, by a linear program."""
    system = np.vstack([others.T, np.ones(len(others))])
    return bool(linprog(np.zeros(len(others)), A_eq=system, b_eq=np.append(point, 1.0)).success)


def plane_problem(points: np.ndarray) -> bp.Problem:
    """One state, one action per point; a constant feature makes convex combinations the only ones that sum to 1."""
    return bp.Problem(np.column_stack([np.ones(len(points)), points])[None], discount=0.9)


@pytest.mark.parametrize("name", BENCHMARK)
def test_every_pair_is_a_combination_of_the_chosen_ones(name):
    problem = bp.instances.load(name).problem
    flat = problem.features.reshape(-1, problem.dimension)
    for choice in (anchors(problem), barycentric_spanner(problem)):
        assert np.isin(choice.pairs, problem.pairs).all()
        assert (np.diff(choice.pairs) > 0).all()
        np.testing.assert_allclose(choice.coefficients @ flat[choice.pairs], problem.pair_features, atol=1e-10)
        np.testing.assert_allclose(choice.coefficients.sum(axis=1), 1.0, atol=1e-9)
    spanner, corners = barycentric_spanner(problem), anchors(problem)
    assert len(spanner.pairs) == problem.dimension
    assert np.abs(spanner.coefficients).max() <= 1 + 2e-4
    assert spanner.constant == pytest.approx(np.abs(spanner.coefficients).sum(axis=1).max(), abs=1e-7)
    assert corners.constant == 1
    assert corners.coefficients.min() >= 0


@pytest.mark.parametrize(("name", "corners"), SIMPLICES.items())
def test_families_with_anchors_have_as_many_as_dimensions(name, corners):
    problem = bp.instances.load(name).problem
    assert len(anchors(problem).pairs) == corners == problem.dimension
    assert barycentric_spanner(problem).constant == 1
    assert why_no_anchors(problem) == ""


def test_families_without_anchors():
    assert "all 400 pairs are corners" in why_no_anchors(bp.instances.load("B5").problem)
    assert why_no_anchors(bp.instances.load("B8").problem)
    assert 2.2 < barycentric_spanner(bp.instances.load("B5").problem).constant < 2.5
    assert why_no_anchors(bp.instances.load("B10").problem) == ""  # fewer corners than pairs, though more than d


@pytest.mark.parametrize("name", ["B8", "B9", "B10", "B13"])
def test_anchors_are_the_pairs_that_no_others_represent(name):
    problem = bp.instances.load(name).problem
    features = problem.pair_features
    corners = [i for i in range(len(features)) if not inside(features[i], np.delete(features, i, axis=0))]
    assert anchors(problem).pairs.tolist() == problem.pairs[corners].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_anchors_are_the_corners_of_the_convex_hull(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(300, 3)) * rng.uniform(0.01, 100, size=3)
    points[200:] = (points[:100] + points[100:200]) / 2  # certainly not corners
    found = anchors(plane_problem(points)).pairs
    assert found.tolist() == sorted(ConvexHull(points).vertices.tolist())


def test_duplicates_and_points_on_a_face_are_not_corners():
    square = np.array([[0.0, 0.0], [1, 0], [1, 1], [0, 1]])
    edges = np.array([[0.5, 0.0], [1, 0.25], [0.5, 0.5], [0, 0.75]])
    problem = plane_problem(np.vstack([edges, square, square]))
    corners = problem.features[0, anchors(problem).pairs, 1:]
    assert sorted(corners.tolist()) == sorted(square.tolist())
    assert why_no_anchors(problem) == ""


def test_a_spanner_of_locally_largest_volume_gives_way_to_corners():
    """The middles of a triangle's sides span it with coefficients ±1: no swap improves on them, the corners do."""
    triangle = np.array([[0.0, 0.0], [1, 0], [0, 1]])
    middles = (triangle + np.roll(triangle, 1, axis=0)) / 2
    problem = plane_problem(np.vstack([middles, triangle]))
    assert barycentric_spanner(problem).pairs.tolist() == [3, 4, 5]
    assert barycentric_spanner(problem).constant == 1


@pytest.mark.parametrize("name", ["B3", "B5", "B7", "B10"])
def test_coordinates_do_not_matter(name):
    problem = bp.instances.load(name).problem
    rng = np.random.default_rng(1)
    change = rng.normal(size=(problem.dimension,) * 2) * 10.0 ** rng.uniform(-3, 3, size=problem.dimension)
    other = problem.with_features(problem.features @ change)
    assert anchors(other).pairs.tolist() == anchors(problem).pairs.tolist()
    spanner, again = barycentric_spanner(problem), barycentric_spanner(other)
    # In B10 many choices have the same volume: the first one is made.
    assert again.pairs.tolist() == spanner.pairs.tolist()
    np.testing.assert_allclose(again.coefficients, spanner.coefficients, atol=1e-7)


def test_pairs_that_are_not_allowed_are_not_chosen():
    full = bp.instances.load("B3").problem
    mask = np.ones(full.mask.shape, bool)
    mask.flat[anchors(full).pairs] = False
    problem = bp.Problem(full.features, discount=0.8, mask=mask)
    for choice in (anchors(problem), barycentric_spanner(problem)):
        assert mask.flat[choice.pairs].all()
        assert len(choice.coefficients) == len(problem.pairs)
        table = choice.table(np.ones(len(choice.pairs)))
        assert (np.isneginf(table) == ~mask).all()
        np.testing.assert_allclose(table[mask], 1.0)
