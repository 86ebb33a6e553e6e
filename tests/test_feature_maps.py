"""Feature maps: convex combinations, unit vectors at the anchors, and one clear error for what is no state."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.features import from_dict

AXES = [np.linspace(0, 10, 4), np.array([0.0, 1.0, 4.0])]


def everywhere(box, n=400, seed=0):
    rng = np.random.default_rng(seed)
    low, high = (np.array(end, dtype=float) for end in zip(*box, strict=True))
    states = low + (high - low) * rng.random((n, len(box)))
    states[:8] = np.where(rng.random((8, len(box))) < 0.5, low, high)  # corners, too
    return states, rng.integers(0, 2, n)


MAPS = {
    "hats": bp.features.Hats(AXES),
    "simplices": bp.features.Simplices(AXES),
    "tiles": bp.features.Tiles(AXES),
    "soft": bp.features.SoftAggregation(np.array([[0.0, 0.0], [5.0, 2.0], [10.0, 4.0]]), width=[3.0, 1.5]),
    "product": bp.features.Product(bp.features.Hats(AXES[:1]), bp.features.Tiles(AXES[1:])),
    "blocks": bp.features.Blocks([bp.features.Hats(AXES), bp.features.Simplices(AXES)]),
    "aggregation": bp.features.Aggregation(
        lambda states, actions: (states[:, 0] > 5).astype(int), (np.array([[1.0, 1.0], [9.0, 1.0]]), [0, 0])
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_features_are_convex_combinations(name):
    rows = MAPS[name](*everywhere([(0, 10), (0, 4)]))
    assert rows.shape == (400, MAPS[name].dimension)
    assert rows.data.min() >= 0
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in MAPS if name != "soft"])
def test_anchors_have_the_unit_vectors(name):
    states, actions = MAPS[name].anchors
    np.testing.assert_array_equal(MAPS[name](states, actions).toarray(), np.eye(MAPS[name].dimension))
    np.testing.assert_array_equal(MAPS[name].hull.toarray(), np.eye(MAPS[name].dimension))


def test_without_anchors_combinations_of_pairs_give_the_unit_vectors():
    """Without a ridge: to 1e-10, whatever the conditioning."""
    soft = bp.features.SoftAggregation(np.linspace(0, 1, 7)[:, None], width=0.2)
    assert soft.anchors is None
    rows = soft(*soft.pairs).toarray()
    assert np.linalg.cond(rows) > 50
    np.testing.assert_allclose(soft.coefficients @ rows, np.eye(7), atol=1e-10)
    with pytest.raises(bp.InvalidInput, match="must span all 7 dimensions"):
        _ = bp.features.SoftAggregation(np.linspace(0, 1, 7)[:, None], width=50.0).coefficients


@pytest.mark.parametrize("name", ["hats", "simplices"])
def test_interpolation_is_exact_for_linear_functions(name):
    states, actions = everywhere([(0, 10), (0, 4)])
    nodes = MAPS[name].nodes
    linear = nodes @ [2.0, -3.0] + 1.0
    np.testing.assert_allclose(MAPS[name](states, actions) @ linear, states @ [2.0, -3.0] + 1.0, atol=1e-12)


def test_simplices_use_few_weights():
    cube = bp.features.Simplices([np.linspace(0, 1, 3)] * 4)
    rows = cube(*everywhere([(0, 1)] * 4))
    assert rows.nnz <= 400 * 5
    assert bp.features.Hats([np.linspace(0, 1, 3)] * 4)(*everywhere([(0, 1)] * 4)).nnz == 400 * 16


def test_points_after_a_decision():
    grid = bp.features.Hats([np.linspace(0, 10, 6)], point=lambda states, actions: states[:, :1] + actions[:, None])
    np.testing.assert_array_equal(grid([[1.0]], [1]).toarray(), [[0, 1, 0, 0, 0, 0]])
    assert grid.anchors is not None  # nothing is ordered at the nodes
    moved = bp.features.Hats([np.linspace(0, 10, 6)], point=lambda states, actions: states[:, :1] * 0 + 5.0)
    assert moved.pairs is None  # no pair is known whose point is a node
    with pytest.raises(bp.InvalidInput, match="whose points are the nodes"):
        _ = bp.features.Hats([[0.0, 1.0]], pairs=([[0.0], [0.5]], [0, 0])).pairs


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([[1.0, np.nan]], r"state \(1, nan\)"),
        ([[1.0, 2.0], [11.0, 2.0]], r"state \(11, 2\), action 0 lies outside of the grid \[0, 10\] x \[0, 4\]"),
        ([[1.0, 2.0, 3.0]], r"shape \(n, 2\)"),
        ([1.0, 2.0], r"shape \(n, 2\)"),
        ([["a", "b"]], "numbers"),
    ],
)
def test_what_is_no_state_is_named(states, said):
    with pytest.raises(bp.InvalidInput, match=said):
        MAPS["hats"](states, np.zeros(len(states), int))


def test_features_of_your_own_are_checked():
    def bad(states, actions):
        return np.stack([states[:, 0], 1 - states[:, 0]], axis=1)

    given = bp.features.Custom(bad, dimension=2, state_dimension=1, pairs=([[1.0], [0.0]], [0, 0]))
    assert given.anchors is not None
    assert given([[0.5]], [0]).toarray().tolist() == [[0.5, 0.5]]
    with pytest.raises(bp.InvalidInput, match=r"At state \(1.5\), action 1 .* smallest being -0.5"):
        given([[0.5], [1.5]], [0, 1])
    wrong = bp.features.Custom(bad, dimension=3, state_dimension=1, pairs=([[1.0], [0.0], [0.5]], [0, 0, 0]))
    with pytest.raises(bp.InvalidInput, match=r"must return shape \(1, 3\)"):
        wrong([[0.5]], [0])
    with pytest.raises(bp.InvalidInput, match="belongs to class 1, not 0"):
        bp.features.Aggregation(lambda states, actions: np.ones(len(states)), ([[1.0], [2.0]], [0, 0]))


@pytest.mark.parametrize("name", [name for name in MAPS if name != "aggregation"])
def test_ready_made_maps_survive_a_file(name):
    """As JSON, without pickles; one that holds a function does not."""
    known = json.loads(json.dumps(MAPS[name].to_dict()))
    states, actions = everywhere([(0, 10), (0, 4)])
    assert (from_dict(known)(states, actions) != MAPS[name](states, actions)).nnz == 0
    assert MAPS["aggregation"].to_dict() is None
    with pytest.raises(bp.InvalidInput, match="unknown kind"):
        from_dict({"kind": "os.system"})


# --- states that are objects


@dataclass(frozen=True)
class Shop:
    milk: float
    open: bool


SHOPS = bp.features.Objects(lambda s: [s.milk, s.open], lambda n: Shop(float(n[0]), bool(n[1])), size=2)


def weights_of(states, actions):
    assert all(isinstance(state, Shop) for state in states)
    full = np.array([state.milk for state in states]) * (np.asarray(actions) == 0)
    return np.stack([1 - full, full], axis=1)


def trade(states, actions, rng):
    assert all(isinstance(state, Shop) for state in states)
    paid = (rng.random(len(states)) < 0.2 + 0.5 * weights_of(states, actions)[:, 1]).astype(float)
    return paid, [Shop(float(x), bool(x < 0.5)) for x in rng.random(len(states))]


def shop_problem(**more):
    custom = bp.features.Custom(
        weights_of, dimension=2, objects=SHOPS, pairs=([Shop(0.0, True), Shop(1.0, True)], [0, 0])
    )
    return bp.FeatureProblem(custom, actions=2, discount=0.5, **more)


def test_states_may_be_objects(tmp_path):
    known = shop_problem(mask=lambda states: np.array([[True, state.open] for state in states]))
    model = bp.CallableSimulator(known, trade, vectorized=True)
    result = bp.identify(model, epsilon="20%", delta=0.2, seed=0, store=tmp_path / "run.db")
    assert result.certified
    assert result.policy([Shop(0.9, True), Shop(0.9, False)]).tolist() == [0, 0]
    assert result.action(Shop(0.9, True)) == 0
    assert result.values([Shop(0.5, True)]).shape == (1, 2)
    again = bp.Study.resume(tmp_path / "run.db", problem=known).result()
    assert again.epsilon == result.epsilon

    def one(state, action, rng):
        rewards, following = trade([state], np.array([action]), rng)
        return rewards[0], following[0]

    slow = bp.identify(
        bp.CallableSimulator(known, one), epsilon="60%", delta=0.3, seed=0, linearity=0, max_samples=2000
    )
    assert slow.samples
    with pytest.raises(bp.InvalidInput, match=r"'a shop' cannot be encoded"):
        result.policy(["a shop"])
    said, nowhere = r"encode must return 2 finite numbers. Got \[nan, 1.0\] for next states", Shop(float("nan"), True)
    broken = bp.CallableSimulator(known, lambda s, a, rng: (np.zeros(len(s)), [nowhere] * len(s)), vectorized=True)
    with pytest.raises(bp.SimulatorError, match=said):
        bp.identify(broken, epsilon="20%", delta=0.2, seed=0)


def test_maps_of_objects_say_what_they_are():
    classes = bp.features.Aggregation(
        lambda states, actions: [int(state.milk > 0.5) for state in states],
        ([Shop(0.0, True), Shop(1.0, True)], [0, 0]),
        objects=SHOPS,
    )
    assert classes([Shop(0.7, False)], [0]).toarray().tolist() == [[0.0, 1.0]]
    hats = bp.features.Hats(
        [[0.0, 1.0]], point=lambda states, actions: [[state.milk] for state in states], objects=SHOPS
    )
    assert hats([Shop(0.25, True)], [0]).toarray().tolist() == [[0.75, 0.25]]
    blocks = bp.features.Blocks([classes, classes])
    assert blocks([Shop(0.7, True)], [1]).toarray().tolist() == [[0.0, 0.0, 0.0, 1.0]]
    with pytest.raises(bp.InvalidInput, match="not for objects"):
        bp.features.Product(classes, bp.features.Actions(2, 0))
    with pytest.raises(bp.InvalidInput, match="state_dimension must be given"):
        bp.features.Custom(weights_of, dimension=2, pairs=([[0.0]], [0]))


# --- what users get wrong


def slide(states, actions, rng):
    return (rng.random(len(states)) < states[:, 0]).astype(float), rng.choice([0.0, 1.0, 0.3, 0.77], (len(states), 1))


def fails(weights, states):
    if np.isclose(states, 0.77).any():
        raise ValueError("no such state")
    return weights


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda w, s: np.where(np.isclose(s, 0.77), w - [[0.5, -0.5]], w), r"At state \(0.77\), action 0 .* -0.27"),
        (lambda w, s: np.where(np.isclose(s, 0.77), 1.5 * w, w), r"At state \(0.77\), action 0 they sum to 1.5"),
        (lambda w, s: np.where(np.isclose(s, 0.77), np.nan, w), r"At state \(0.77\), action 0 they sum to nan"),
        (fails, r"failed at state \(0.77\), action 0 .*no such state"),
    ],
)
def test_what_is_wrong_at_a_visited_state_is_one_error_that_names_it(spoilt, said):
    calls, right = [], []

    def features(states, actions):
        place = np.where(actions == 1, 1 - states[:, 0], states[:, 0])
        weights = np.stack([1 - place, place], axis=1)
        return spoilt(weights, states) if calls and not right else weights

    def step(states, actions, rng):
        rewards, following = slide(states, actions, rng)
        if len(right) + len(calls) == 0 and len(states) > 2:
            following = np.rint(following)  # the first batch sees nothing of it
        return rewards, following

    custom = bp.features.Custom(features, dimension=2, state_dimension=1, pairs=([[0.0], [1.0]], [0, 0]))
    model = bp.CallableSimulator(bp.FeatureProblem(custom, actions=2, discount=0.5), step, vectorized=True)
    study = bp.Study(model.problem, epsilon="5%", delta=0.1, seed=0, units=model.units)
    (query,) = study.ask()
    study.tell(query, model.sample(query.wanted, query.rng()))
    before = study.samples
    calls.append(True)
    with pytest.raises(bp.SimulatorError, match=said):
        bp.drive(study, model)
    assert study.samples >= before > 0  # nothing measured is lost
    right.append(True)
    assert bp.drive(study, model).epsilon < np.inf


def test_functions_that_fail_name_the_state():
    def picky(states, actions=None):
        if (states > 5).any():
            raise ValueError("too much")
        return np.ones((len(states), 2)) if actions is None else states

    grid = bp.features.Blocks([bp.features.Hats([[0.0, 5.0]])] * 2)
    states = np.array([[1.0], [2.0], [5.5], [3.0]])
    for problem, call, said in (
        (bp.FeatureProblem(grid, actions=2, discount=0.5, mask=picky), "allowed", r"mask failed at state \(5.5\) "),
        (
            bp.FeatureProblem(
                grid, actions=2, discount=0.5, known_reward=lambda s, a: picky(s, a)[:, 0], known_best=(0, 5)
            ),
            "known",
            r"known_reward failed at state \(5.5\), action 1",
        ),
    ):
        arguments = (states,) if call == "allowed" else (states, np.ones(4, int))
        with pytest.raises(bp.InvalidInput, match=said):
            getattr(problem, call)(*arguments)


@pytest.mark.parametrize("pairs", [([[0.0], [0.0]], [0, 0]), ([[0.5], [0.5]], [0, 1]), ([[0.0]], [0])])
def test_pairs_that_do_not_span_are_refused_before_anything_runs(pairs):
    def features(states, actions):
        return np.stack([1 - states[:, 0], states[:, 0]], axis=1)

    custom = bp.features.Custom(features, dimension=2, state_dimension=1, pairs=pairs)
    with pytest.raises(bp.InvalidInput, match="must span all 2 dimensions"):
        bp.FeatureProblem(custom, actions=2, discount=0.5)


def test_maps_that_do_not_tell_actions_apart_are_refused():
    hats = bp.features.Hats([[0.0, 1.0]])
    with pytest.raises(bp.InvalidInput, match=r"does not tell actions apart.*Blocks\(\[feature_map\] \* 3\)"):
        bp.FeatureProblem(hats, actions=3, discount=0.5)
    bp.FeatureProblem(hats, actions=1, discount=0.5)
    bp.FeatureProblem(bp.features.Blocks([hats] * 3), actions=3, discount=0.5)
    paid = bp.FeatureProblem(hats, actions=3, discount=0.5, known_reward=lambda states, actions: 0.1 * actions)
    assert paid.has_choice  # they differ in what is known
