"""Problem: shapes, masks, identical actions, and errors that say what to do."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp

FEATURES = np.eye(4).reshape(2, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"discount": 1.0}, "give a horizon instead"),
        ({"discount": 0.0}, "strictly between 0 and 1"),
        ({"discount": float("nan")}, "strictly between 0 and 1"),
        ({"discount": "high"}, "discount must be"),
        ({}, "Got neither"),
        ({"discount": 0.9, "horizon": 3}, "Got both"),
        ({"horizon": 0}, "at least 1"),
        ({"horizon": 2.5}, "whole number"),
        ({"discount": 0.9, "mask": np.ones((3, 2), bool)}, r"\(2, 2\)"),
        ({"discount": 0.9, "mask": [[1, 0], [0, 0]]}, "no action in state 1"),
        ({"discount": 0.9, "mask": [[1, 2], [1, 1]]}, "only True and False"),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(arguments, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.Problem(FEATURES, **arguments)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.eye(4), "must have shape"),
        (np.zeros((0, 2, 3)), "empty"),
        ([["a"]], "numbers"),
        ([[1, 2], [3]], "numbers"),
        (np.full((2, 2, 4), np.nan), r"state 0, action 0\) are not all finite"),
    ],
)
def test_bad_features_are_refused(features, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.Problem(features, discount=0.9)


def test_sizes_limits_and_description():
    discounted, episodic = bp.Problem(FEATURES, discount=0.9), bp.Problem(FEATURES, horizon=3)
    assert (discounted.states, discounted.actions, discounted.dimension, discounted.stages) == (2, 2, 4, 1)
    np.testing.assert_allclose(discounted.value_limits, [10.0])
    np.testing.assert_allclose(episodic.value_limits, [3, 2, 1])
    assert "discount 0.9" in repr(discounted)
    assert "horizon 3" in repr(episodic)


def test_arrays_are_copied_and_read_only():
    mine = FEATURES.copy()
    problem = bp.Problem(mine, discount=0.9)
    mine[0, 0, 0] = 7.0
    assert problem.features[0, 0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        problem.features[0, 0, 0] = 2.0


def test_identical_actions_are_merged_within_a_state_only():
    features = np.array([[[1.0, 0], [1, 0], [0, 1]], [[1.0, 0], [0, 1], [0, 1]]])
    problem = bp.Problem(features, discount=0.9)
    np.testing.assert_array_equal(problem.distinct, [[True, False, True], [True, True, False]])
    # An action that is not allowed represents nobody.
    masked = bp.Problem(features, discount=0.9, mask=[[0, 1, 1], [1, 1, 1]])
    np.testing.assert_array_equal(masked.distinct, [[False, True, True], [True, True, False]])


def test_other_coordinates_keep_identical_actions_identical():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 4, 7))
    features[:, 3] = features[:, 1]
    problem = bp.Problem(features, discount=0.9)
    other = problem.with_features(features @ rng.standard_normal((7, 7)))
    np.testing.assert_array_equal(other.distinct, problem.distinct)
    assert not other.distinct[:, 3].any()


@pytest.mark.parametrize("policy", [[0, 2], [0], [[0, 1]], [0.0, 1.0], [-1, 0]])
def test_policies_are_checked(policy):
    with pytest.raises(bp.InvalidInput):
        bp.Problem(FEATURES, discount=0.9).stage_policy(policy)


def test_policy_may_not_play_what_the_mask_forbids():
    problem = bp.Problem(FEATURES, discount=0.9, mask=[[1, 0], [1, 1]])
    with pytest.raises(bp.InvalidInput, match="action 1 in state 0"):
        problem.stage_policy([1, 0])
