"""Tables: what is kept sparse is what the arrays would be, and large ones never become arrays."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

import bestpolicy as bp
from bestpolicy import planning
from bestpolicy.algorithms import GSS, Request
from bestpolicy.diagnostics.assumptions import check_features
from bestpolicy.instances import garnet
from bestpolicy.instances.loading import load_arrays
from bestpolicy.problem.files import from_file, to_bytes
from bestpolicy.samples import cells
from bestpolicy.samples import tally as tallies
from bestpolicy.stopping import Check
from bestpolicy.study.journal import tally_from_bytes, tally_to_bytes

STATES, ACTIONS = 10_000, 4


@pytest.fixture(scope="module")
def large() -> bp.LinearMDP:
    return garnet(states=STATES, actions=ACTIONS)


def one_hot(mask: np.ndarray) -> np.ndarray:
    features = np.zeros((mask.size, np.count_nonzero(mask)))
    features[np.flatnonzero(mask), np.arange(features.shape[1])] = 1.0
    return features.reshape(*mask.shape, -1)


MASKS = {"all": np.ones((5, 3), bool), "some": np.random.default_rng(3).random((5, 3)) < 0.6}
MASKS["some"][:, 0] = True


# --- problems


@pytest.mark.parametrize("clock", [{"discount": 0.9}, {"horizon": 3}])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_table_is_the_problem_of_one_hot_features(mask, clock):
    table, array = bp.Problem.tabular(5, 3, mask=mask, **clock), bp.Problem(one_hot(mask), mask=mask, **clock)
    assert table.fingerprint == array.fingerprint
    assert "features" not in table.__dict__  # not even for that
    assert table.is_tabular
    assert array.is_tabular
    for name in ("pairs", "distinct", "features", "pair_features", "mask", "columns", "matrix", "value_limits"):
        assert np.array_equal(getattr(table, name), getattr(array, name))
    assert (table.states, table.actions, table.dimension, table.stages) == (5, 3, mask.sum(), array.stages)
    assert repr(table) == repr(array)


def test_one_hot_features_are_recognised_in_any_order_and_nothing_else_is():
    features = one_hot(MASKS["some"])
    order = np.random.default_rng(0).permutation(features.shape[2])
    turned = bp.Problem(features[:, :, order], mask=MASKS["some"], discount=0.9)
    assert turned.is_tabular
    assert np.array_equal(turned.columns[np.argsort(turned.columns)], np.arange(len(order)))
    assert (turned.pair_features[np.arange(len(order)), turned.columns] == 1).all()
    shared = features.copy()
    shared[0] = features[1]  # a coordinate belongs to nobody
    for other in (2 * features, -features, features + 0.1, shared, np.concatenate([features, features], axis=2)):
        problem = bp.Problem(other, mask=MASKS["some"], discount=0.9)
        assert not problem.is_tabular
        assert problem.columns is None


def test_pairs_may_share_a_coordinate():
    """As aggregated states do: a sparse model of them is the same as one of arrays, but it is no table."""
    clusters, rng = np.array([0, 0, 1, 2, 1]), np.random.default_rng(0)
    features = np.eye(6).reshape(3, 2, 6)[clusters]
    problem = bp.Problem(features, discount=0.9)
    assert not problem.is_tabular
    assert np.array_equal(problem.columns, features.reshape(10, 6).argmax(axis=1))
    assert all(finding.passed for finding in check_features(problem))
    theta, mu = rng.random(6), rng.dirichlet(np.ones(5), 6).T
    dense, sparse = (bp.LinearMDP(problem, theta=theta, mu=form(mu)) for form in (np.asarray, csr_array))
    for name in ("rewards", "transitions", "values", "variances", "mu"):
        np.testing.assert_allclose(getattr(sparse, name), getattr(dense, name), rtol=1e-10)


def test_a_large_table_has_everything_but_an_array_of_features(large):
    problem = large.problem
    assert problem.dimension == len(problem.pairs) == STATES * ACTIONS
    assert issparse(problem.matrix)
    assert problem.matrix.shape == (STATES * ACTIONS, STATES * ACTIONS)
    assert problem.distinct.all()
    assert all(finding.passed for finding in check_features(problem))
    with pytest.raises(bp.InvalidInput, match=r"40,000 pairs would take 11\.9 GiB .*tight.*sharp"):
        problem.features  # noqa: B018
    with pytest.raises(bp.InvalidInput, match="would take"):
        bp.Study(problem, epsilon=1, delta=0.1, algorithm="tight")
    others = [
        bp.Problem.tabular(STATES, ACTIONS, discount=0.8),
        bp.Problem.tabular(STATES, ACTIONS, horizon=2),
        bp.Problem.tabular(ACTIONS * 5_000, 2, discount=0.9),
        bp.Problem.tabular(STATES, ACTIONS, discount=0.9, mask=np.eye(1, ACTIONS) + np.zeros((STATES, 1))),
    ]
    assert len({problem.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_features_of_masked_tables_are_multiplied_as_arrays_would_be():
    mask = np.random.default_rng(0).random((300, 3)) < 0.5
    mask[:, 1] = True
    table, array = bp.Problem.tabular(300, 3, mask=mask, discount=0.9), one_hot(mask).reshape(900, -1)
    assert issparse(table.matrix)
    assert np.array_equal(table.matrix.toarray(), array)


@pytest.mark.parametrize("clock", [{"discount": 0.9}, {"horizon": 3}])
@pytest.mark.parametrize("mask", [None, *MASKS.values()])
def test_files_of_tables_hold_no_features(mask, clock):
    problem = bp.Problem.tabular(5, 3, mask=mask, **clock)
    content = to_bytes(problem)
    again, theta, mu = from_file(io.BytesIO(content), "a file")
    assert again.fingerprint == problem.fingerprint
    assert theta is mu is None
    assert again.given_features is None
    assert len(to_bytes(bp.Problem.tabular(STATES, ACTIONS, **clock))) < 2_000


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (2.5, 2), ("x", 2), (2**20, 2**20)])
def test_impossible_tables_are_refused(sizes):
    with pytest.raises(bp.InvalidInput):
        bp.Problem.tabular(*sizes, discount=0.9)


def test_a_table_needs_one_clock_and_a_fitting_mask():
    for wrong in ({}, {"discount": 0.9, "horizon": 2}, {"discount": 0.9, "mask": np.ones((3, 2))}, {"horizon": 10**9}):
        with pytest.raises(bp.InvalidInput):
            bp.Problem.tabular(2, 3, **wrong)


# --- tallies


def drawn(problem: bp.Problem, seed: int, size: int = 40) -> bp.Tally:
    """Samples with rewards that are no round numbers."""
    rng = np.random.default_rng(seed)
    pairs = rng.choice(problem.pairs[: rng.integers(3, len(problem.pairs))], size)
    return bp.Tally.from_samples(
        problem,
        *divmod(pairs, problem.actions),
        rng.random(size),
        rng.integers(0, problem.states, size),
        rng.integers(0, problem.stages, size),
    )


def bits(tally: bp.Tally) -> list[bytes]:
    names = ("pairs", "next_counts", "next_rewards", "squared_rewards", "pulls", "reward_sums", "cells", "rewards")
    return [getattr(tally, name).tobytes() for name in names] + [bytes(str(tally.shape), "ascii")]


@pytest.mark.parametrize("clock", [{"discount": 0.9}, {"horizon": 3}])
def test_sums_of_cells_are_sums_of_tables_to_the_last_bit(clock, monkeypatch):
    problem = bp.Problem.tabular(40, 2, **clock)

    def sums() -> list[list[bytes]]:
        tallies = [drawn(problem, seed) for seed in range(6)]
        total = bp.Tally.total(tallies)
        some = total.pairs[::3]
        one_by_one = sum(tallies[1:], start=tallies[0])
        stored = tally_from_bytes(tally_to_bytes(total))
        results = [*tallies, total, one_by_one, total.at(some), total.at(problem.pairs), stored, stored + total]
        assert bits(total) == bits(one_by_one) == bits(stored)
        return [bits(tally) for tally in results]

    monkeypatch.setattr(tallies, "_SMALL", 2**40)
    as_tables = sums()
    monkeypatch.setattr(tallies, "_SMALL", -1)
    monkeypatch.setattr(cells, "_CHUNK", 100)
    assert sums() == as_tables


def test_tables_of_a_tally_are_what_was_given():
    problem = bp.Problem.tabular(6, 2, discount=0.9)
    tally = drawn(problem, 1)
    again = bp.Tally(tally.pairs, tally.next_counts, tally.next_rewards, tally.squared_rewards)
    cells = bp.Tally.from_cells(problem, tally.pairs, again.cells, again.counts, again.rewards, tally.squared_rewards)
    assert bits(tally) == bits(again) == bits(cells)
    assert np.array_equal(again.counts, again.next_counts[again.next_counts > 0])
    for name in ("cells", "counts", "rewards", "next_counts", "pairs"):
        assert not getattr(cells, name).flags.writeable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pairs", [1, 0]),
        ("pairs", [0]),
        ("cells", [3, 1]),
        ("cells", [1, 1]),
        ("cells", [-1, 3]),
        ("cells", [1, 8]),
        ("cells", [0.5, 1]),
        ("counts", [1, -1]),
        ("counts", [1]),
        ("counts", [2**62, 2**62]),
        ("rewards", [1.5, 0]),
        ("rewards", [np.nan, 0]),
        ("rewards", ["a", "b"]),
        ("squared_rewards", [[0.3, 0.9]]),
        ("squared_rewards", [[0.3, 0.0]]),
        ("squared_rewards", [0.25, 0.25]),
    ],
)
def test_cells_that_no_samples_have_are_refused(name, value):
    problem = bp.Problem.tabular(4, 2, discount=0.9)
    right = {
        "pairs": [0, 1],
        "cells": [1, 6],
        "counts": [1, 1],
        "rewards": [0.5, 0.5],
        "squared_rewards": [[0.25, 0.25]],
    }
    assert bp.Tally.from_cells(problem, **right).samples == 2
    with pytest.raises(bp.InvalidInput):
        bp.Tally.from_cells(problem, **right | {name: value})


def test_a_tally_of_a_large_table_has_no_tables(large):
    tally = bp.ExactSimulator(large).sample(
        bp.Pulls(large.problem.pairs, np.full((1, STATES * ACTIONS), 3)), np.random.default_rng(0)
    )
    assert (tally.pulls == 3).all()
    assert tally.samples == 3 * STATES * ACTIONS
    np.testing.assert_allclose(tally.reward_sums.sum(), tally.rewards.sum())
    twice = tally + tally.at(tally.pairs[::2])
    assert twice.samples == 4.5 * STATES * ACTIONS
    assert tally_to_bytes(tally_from_bytes(tally_to_bytes(twice))) == tally_to_bytes(twice)
    assert not tally._has_tables
    assert not twice._has_tables


# --- models


def tables(states: int, mask: np.ndarray, steps: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.full(states, 0.3), (*steps, *mask.shape))
    rows = np.where(rows > 0.02, rows, 0.0)
    return rows / rows.sum(axis=-1, keepdims=True), rng.random((*steps, *mask.shape))


def as_sparse(rows: np.ndarray):
    if rows.ndim == 3:
        return csr_array(rows.reshape(-1, rows.shape[-1]))
    return [as_sparse(step) for step in rows]


@pytest.mark.parametrize("form", ["array", "sparse"])
@pytest.mark.parametrize(("clock", "steps"), [({"discount": 0.9}, ()), ({"horizon": 3}, ()), ({"horizon": 3}, (3,))])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_table_is_the_linear_model_with_one_hot_features(mask, clock, steps, form):
    rows, rewards = tables(5, mask, steps)
    dense = bp.instances.tabular(rows, rewards, mask=mask, **clock)
    given = rows if form == "array" else as_sparse(rows)
    sparse = bp.LinearMDP.from_table(given, rewards, mask=mask, **clock)
    assert sparse.problem.fingerprint == dense.problem.fingerprint
    policy = np.zeros_like(dense.policy)
    assert np.array_equal(sparse.policy, dense.policy)
    pairs = [
        (sparse.theta, dense.theta),
        (sparse.mu, dense.mu),
        (sparse.rewards, dense.rewards),
        (sparse.transitions, dense.transitions),
        (sparse.values, dense.values),
        (sparse.q_values, dense.q_values),
        (sparse.parameters, dense.parameters),
        (sparse.policy_values(policy), dense.policy_values(policy)),
        (sparse.policy_q_values(policy), dense.policy_q_values(policy)),
        (sparse.variances, dense.variances),
        (sparse.gap, dense.gap),
        (sparse.loss(policy), dense.loss(policy)),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    assert sparse.is_near_optimal(sparse.policy, 0)


@pytest.mark.parametrize(("clock", "steps"), [({"discount": 0.9}, ()), ({"horizon": 3}, ()), ({"horizon": 3}, (3,))])
def test_tables_survive_in_files(clock, steps, tmp_path):
    rows, rewards = tables(5, MASKS["some"], steps)
    model = bp.LinearMDP.from_table(as_sparse(rows), rewards, mask=MASKS["some"], **clock)
    model.save(tmp_path / "model.npz")
    again = bp.LinearMDP.load(tmp_path / "model.npz")
    assert again.fingerprint == model.fingerprint
    assert again.problem.fingerprint == model.problem.fingerprint
    assert again.loss(model.policy) == pytest.approx(0, abs=1e-12)
    pulls = bp.Pulls(model.problem.pairs, np.full((model.problem.stages, len(model.problem.pairs)), 50))
    drawn_from = [bp.ExactSimulator(one).sample(pulls, np.random.default_rng(1)) for one in (model, again)]
    assert bits(drawn_from[0]) == bits(drawn_from[1])


def test_files_of_tables_are_models_on_the_command_line(tmp_path):
    rows, rewards = tables(5, MASKS["some"], (2,))
    model = bp.LinearMDP.from_table(rows, rewards, mask=MASKS["some"], horizon=2)
    model.save(tmp_path / "model.npz")
    problem, theta, mu = load_arrays(tmp_path / "model.npz")
    assert problem.fingerprint == model.problem.fingerprint
    assert np.array_equal(theta, model.theta)
    assert np.array_equal(mu, model.mu)


def test_a_large_table_survives_in_a_small_file(large, tmp_path):
    large.save(tmp_path / "model.npz")
    assert (tmp_path / "model.npz").stat().st_size < 20 * 2**20
    assert bp.LinearMDP.load(tmp_path / "model.npz").fingerprint == large.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"table": np.array([5, 2])},
        {"table": np.array([5.0, 3.0])},
        {"table": np.array([2**40, 2**20])},
        {"next_states": np.full(75, 5)},
        {"next_states": np.full(75, -1)},
        {"ends": np.arange(15)},
        {"ends": np.arange(0, 80, 5)[None, ::-1]},
        {"ends": np.arange(0, 160, 10)[None]},
        {"probabilities": np.full(75, 0.3)},
        {"probabilities": np.full(74, 0.2)},
        {"features": np.zeros((5, 3, 15))},
        {"mu": np.zeros((5, 15))},
        {"ends": None},
        {"table": None},
    ],
)
def test_damaged_files_of_tables_give_one_error(change, tmp_path):
    right = {
        "table": np.array([5, 3]),
        "discount": 0.9,
        "theta": np.zeros(15),
        "probabilities": np.full(75, 0.2),
        "next_states": np.tile(np.arange(5), 15),
        "ends": np.arange(0, 80, 5)[None],
    }
    np.savez(tmp_path / "model.npz", **right)
    assert bp.LinearMDP.load(tmp_path / "model.npz").problem.is_tabular
    np.savez(tmp_path / "model.npz", **{key: value for key, value in (right | change).items() if value is not None})
    with pytest.raises(bp.InvalidInput):
        bp.LinearMDP.load(tmp_path / "model.npz")


@pytest.mark.parametrize("form", ["array", "sparse"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("rows that do not sum to 1", r"sum of a row.*state 2, action 1"),
        ("a negative probability", r"smallest transition probability.*state 2, action 1"),
        ("not a number", "finite|smallest|sum of a row"),
        ("a reward above 1", r"in reward_range, .*state 0, action 2"),
        ("another number of states", "transitions must have shape"),
        ("steps of a discounted table", "transitions must"),
    ],
)
def test_what_is_no_table_is_refused(what, message, form):
    rows, rewards = tables(5, MASKS["all"])
    if what == "rows that do not sum to 1":
        rows[2, 1] *= 0.5
    elif what == "a negative probability":
        rows[2, 1] = [-0.5, 1.5, 0, 0, 0]
    elif what == "not a number":
        rows[2, 1] = np.nan
    elif what == "a reward above 1":
        rewards[0, 2] = 1.5
    elif what == "another number of states":
        rows = rows[..., :4]
    else:
        rows = np.stack([rows, rows])
    with pytest.raises(bp.InvalidInput, match=message):
        bp.LinearMDP.from_table(rows if form == "array" else as_sparse(rows), rewards, discount=0.9)


def test_a_sparse_mu_needs_one_hot_features():
    with pytest.raises(bp.InvalidInput, match="one-hot"):
        bp.LinearMDP(bp.Problem(2 * np.ones((2, 1, 1)), discount=0.9), theta=[0.2], mu=csr_array(np.full((2, 1), 0.25)))


def test_columns_of_a_sparse_model_may_be_in_any_order():
    rows, rewards = tables(5, MASKS["some"])
    table = bp.LinearMDP.from_table(rows, rewards, mask=MASKS["some"], discount=0.9)
    order = np.random.default_rng(0).permutation(table.problem.dimension)
    turned = bp.Problem(table.problem.features[:, :, order], mask=MASKS["some"], discount=0.9)
    model = bp.LinearMDP(turned, theta=table.theta[0, order], mu=csr_array(table.mu[0][:, order]))
    np.testing.assert_array_equal(model.rewards, table.rewards)
    np.testing.assert_array_equal(model.transitions, table.transitions)
    np.testing.assert_allclose(model.values, table.values)


def test_garnets_have_so_many_successors():
    model = garnet(states=20, actions=3, successors=4, seed=2)
    assert (np.diff(model.kernel[0].indptr) == 4).all()
    np.testing.assert_allclose(model.transitions.sum(axis=2), 1)
    assert model.fingerprint == garnet(states=20, actions=3, successors=4, seed=2).fingerprint
    assert model.fingerprint != garnet(states=20, actions=3, successors=4, seed=3).fingerprint
    for wrong in ({"successors": 101}, {"successors": 0}, {"states": 0}, {"states": 2**40}, {"seed": -1}):
        with pytest.raises(bp.InvalidInput):
            garnet(**wrong)


# --- planning


@pytest.mark.parametrize("discount", [0.9, 0.999])
def test_large_tables_are_planned_in(discount):
    model = garnet(states=3_000, discount=discount)
    limit = 1 / (1 - discount)
    assert model.plan.error_bound < 1e-9 * limit
    values, kernel, means = np.zeros(3_000), model.kernel[0], model.rewards.ravel()
    q_values = (means + discount * (kernel @ model.values)).reshape(-1, ACTIONS)
    np.testing.assert_allclose(q_values.max(axis=1), model.values, rtol=1e-10)
    greedy = q_values.argmax(axis=1)
    for _ in range(300):
        values = (means + discount * (kernel @ values)).reshape(-1, ACTIONS).max(axis=1)
    assert (np.abs(values - model.values) <= discount**300 * limit + 1e-8).all()
    assert model.loss(greedy) < 1e-8 * limit
    assert model.loss((greedy + 1) % ACTIONS) > 0.1


@pytest.mark.parametrize("narrow", [True, False])
def test_values_on_a_long_ring_are_exact(narrow, monkeypatch):
    """States that lead to each other in a circle: what a few steps of an iterative solver see of it is nothing."""
    if not narrow:
        monkeypatch.setattr(planning, "_is_narrow", lambda system: False)
    states, gamma = 4_000, 0.99
    ring = csr_array((np.ones(states), (np.arange(states) + 1) % states, np.arange(states + 1)), (states, states))
    rewards = (np.arange(states) == 0).astype(float)
    expected = gamma ** ((-np.arange(states)) % states) / (1 - gamma**states)
    assert planning._is_narrow(ring) == narrow
    np.testing.assert_allclose(planning._sparse_values(ring, rewards, gamma), expected, atol=1e-10)


def test_rewards_far_away_are_found():
    """A corridor in which only the last of many states pays: policies that look one step ahead find nothing."""
    states, gamma = 1_500, 0.995
    left, right = np.maximum(np.arange(states) - 1, 0), np.minimum(np.arange(states) + 1, states - 1)
    successors = np.stack([left, right], axis=1).ravel()
    rows = csr_array((np.ones(2 * states), successors, np.arange(2 * states + 1)), (2 * states, states))
    rewards = np.zeros((states, 2))
    rewards[-1, 1] = 1.0
    model = bp.LinearMDP.from_table(rows, rewards, discount=gamma)
    expected = gamma ** np.arange(states)[::-1] / (1 - gamma)
    np.testing.assert_allclose(model.values, expected, rtol=1e-6, atol=1e-8)
    assert (model.policy[200:] == 1).all()


def test_an_episodic_table_is_planned_in():
    model = garnet(states=2_000, horizon=5)
    values = np.zeros(2_000)
    for step in reversed(range(5)):
        values = (model.rewards[step].ravel() + model.kernel[step] @ values).reshape(-1, ACTIONS).max(axis=1)
        np.testing.assert_allclose(model.values[step], values)
    assert model.loss(model.policy) == 0
    assert "features" not in model.problem.__dict__


# --- simulators


@pytest.mark.parametrize("law", ["bernoulli", "deterministic"])
@pytest.mark.parametrize("clock", [{"discount": 0.9}, {"horizon": 2}])
def test_draws_follow_the_table(law, clock):
    rows, rewards = tables(5, MASKS["some"])
    model = bp.LinearMDP.from_table(rows, rewards, mask=MASKS["some"], **clock)
    problem, n = model.problem, 200_000
    counts = np.full((problem.stages, len(problem.pairs)), n)
    counts[0, 0] = 0
    tally = bp.ExactSimulator(model, rewards=law).sample(bp.Pulls(problem.pairs, counts), np.random.default_rng(2))
    tally._check_sums()
    assert np.array_equal(tally.pulls, counts)
    expected = rows.reshape(-1, 5)[problem.pairs]
    assert not tally.next_counts[:, expected == 0].any()
    np.testing.assert_allclose(tally.next_counts[:, 1:] / n, np.broadcast_to(expected, tally.shape)[:, 1:], atol=0.01)
    means = np.broadcast_to(rewards.ravel()[problem.pairs], counts.shape)
    np.testing.assert_allclose(tally.reward_sums[:, 1:] / n, means[:, 1:], atol=0.01)
    squares = means if law == "bernoulli" else means**2
    np.testing.assert_allclose(tally.squared_rewards[:, 1:] / n, squares[:, 1:], atol=0.01)


def test_functions_answer_large_tables():
    problem = bp.Problem.tabular(STATES, ACTIONS, discount=0.9)

    def step(states, actions, rng):
        return actions / 4, (states + actions) % STATES

    pulls = bp.Pulls(problem.pairs, np.full((1, STATES * ACTIONS), 8))  # more than one block of samples
    tally = bp.CallableSimulator(problem, step, vectorized=True).sample(pulls, np.random.default_rng(0))
    assert pulls.answered_by(tally)
    states, actions = np.divmod(problem.pairs, ACTIONS)
    assert np.array_equal(tally.cells % STATES, (states + actions) % STATES)
    assert np.array_equal(tally.reward_sums[0], 2 * actions)


# --- studies


@dataclass(frozen=True)
class Everything(GSS):
    """Asks every pair a few times, for some rounds, and then believes in what was best; it needs no features."""

    name: ClassVar[str] = "everything"
    anytime: ClassVar[bool] = False
    rounds: int = 4

    def unsuitable(self, problem):
        return None

    def run(self, task):
        problem = task.problem
        total = bp.Tally.empty(problem, problem.pairs)
        for _ in range(self.rounds):
            total += yield Request(bp.Pulls(problem.pairs, np.full((problem.stages, len(problem.pairs)), 2)))
        means = np.full((problem.stages, problem.mask.size), -1.0)
        means[:, problem.pairs] = total.reward_sums / total.pulls
        policy = means.reshape(problem.stages, *problem.mask.shape).argmax(axis=2)
        return Check(self.rounds, total.samples, policy, 0.0, 1.0, False, np.inf, 0.0, "none")


@pytest.mark.parametrize("kind", ["discounted", "episodic", "masked"])
def test_a_large_table_goes_through_a_study_its_file_and_back(kind, large, tmp_path):
    """The tables that are not made would take 3 GB each, the features 12."""
    algorithm = Everything()
    tracemalloc.start()
    try:
        if kind == "episodic":
            model = garnet(states=STATES, horizon=2)
        elif kind == "masked":
            mask = np.random.default_rng(0).random((STATES, ACTIONS)) < 0.7
            mask[:, 0] = True
            rows = large.kernel[0]
            model = bp.LinearMDP.from_table(rows, large.rewards, mask=mask, discount=0.9)
        else:
            model = large
        simulator = bp.ExactSimulator(model)
        known = {"epsilon": 0.1, "delta": 0.1, "seed": 3, "algorithm": algorithm, "calls_per_query": 60_000}
        whole = bp.Study(model.problem, **known)
        bp.drive(whole, simulator)
        begun = bp.Study(model.problem, **known, store=tmp_path / "run.db")
        for _ in range(2):
            for query in begun.ask():
                begun.tell(query, simulator.sample(query.pulls, query.rng()))
        query = begun.ask()[0]
        begun.tell(query, simulator.sample(query.pulls, query.rng()))
        begun.close()
        resumed = bp.Study.resume(tmp_path / "run.db", algorithm=algorithm)
        assert resumed.problem.fingerprint == model.problem.fingerprint
        assert 0 < resumed.samples < whole.samples
        bp.drive(resumed, simulator)
        loss = model.loss(resumed.result().policy)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400 * 2**20
    assert resumed.samples == whole.samples == 8 * len(model.problem.pairs) * model.problem.stages
    assert np.array_equal(resumed.result().policy, whole.result().policy)
    assert 0 < loss < model.problem.value_limits[0]
    assert "features" not in model.problem.__dict__
    assert "features" not in resumed.problem.__dict__


def test_small_tables_run_with_every_kind_of_algorithm(tmp_path):
    rows, rewards = tables(5, MASKS["some"])
    table = bp.LinearMDP.from_table(rows, rewards, mask=MASKS["some"], discount=0.5)
    asked = {"epsilon": 0.5, "delta": 0.1, "seed": 1, "algorithm": "tight", "max_samples": 10**7}
    result = bp.identify(bp.ExactSimulator(table), **asked, store=tmp_path / "run.db")
    assert result.certified
    assert table.loss(result.policy) <= 0.5
    result.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json").valid
