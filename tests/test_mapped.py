"""Finite problems with a feature map: listed or not by their size, and it is said."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.simulators import mapped

MOVES = {"stay": 0, "down": -1, "up": 1}
HOW = {"discount": 0.6, "epsilon": "40%", "delta": 0.3, "seed": 0, "linearity": 0}


def grid(most):
    moves = np.array([*MOVES.values()])
    return bp.features.Hats([np.linspace(0, most, 4)], point=lambda s, a: np.clip(s + moves[a][:, None], 0, most))


def walk_to(most):
    nodes = np.linspace(0, most, 4)

    def walk(state, action, rng):
        """Exactly linear: a node is drawn with the hats' weights, and then it is a draw around there."""
        assert isinstance(state, int)
        point = min(max(state + MOVES[action], 0), most)
        low = min(int(point * 3 / most), 2)
        node = nodes[low + (rng.random() < point * 3 / most - low)]
        return 0.8 * node / most + 0.2 * rng.random(), round(min(max(node + most * (rng.random() - 0.5), 0), most))

    return walk


def test_size_decides_whether_states_are_listed_and_it_is_said(monkeypatch):
    few = bp.identify(walk_to(9), states=range(10), actions=list(MOVES), features=grid(9), **HOW)
    assert few.certified
    assert few.algorithm == "sharp"
    assert "10 states, 3 actions and 4 features are 120 numbers, which are listed" in str(few)
    assert few.action(0) == "up"
    monkeypatch.setattr(mapped, "MOST_NUMBERS", 100)
    many = bp.identify(walk_to(9), states=range(10), actions=list(MOVES), features=grid(9), **HOW)
    assert many.certified
    assert many.algorithm == "hull"
    assert "120 numbers, too many to be listed" in str(many)
    assert many.policy([[0.0]]).tolist() == [2]


def test_ten_million_states_take_the_road_of_those_that_cannot_be_listed():
    most = 9_999_999
    found = bp.identify(
        walk_to(most), states=range(most + 1), actions=list(MOVES), features=grid(most), max_samples=3000, **HOW
    )
    assert found.algorithm == "hull"
    assert "too many to be listed" in str(found)
    assert found.policy([[0.0], [5e6]]).shape == (2,)


def test_what_goes_with_features():
    for more, said in (
        ({"actions": lambda state: ["up"]}, "a list of actions"),
        ({"actions": ["up"], "ends": [3]}, "without ends"),
        ({"actions": ["up"], "features": "one-hot"}, "FeatureMap"),
    ):
        with pytest.raises(bp.InvalidInput, match=said):
            bp.identify(walk_to(9), states=range(10), **{"features": grid(9)} | more, **HOW)
