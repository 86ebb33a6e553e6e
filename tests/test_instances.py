"""The named instances: reference values, validity by independent arithmetic, and facts worked out by hand."""

from __future__ import annotations

import doctest
from decimal import Decimal
from itertools import combinations
from math import exp, factorial

import numpy as np
import pytest

from bestpolicy import instances
from bestpolicy.errors import InvalidInput
from bestpolicy.instances import Instance
from bestpolicy.mdp import LinearMDP

NAMES = [instance.name for instance in instances.catalogue()]
EPISODIC = [name for name in NAMES if "episodic" in name]

# alias, name, S, A, d, discount, gap, max V*, span V*, ‖θ‖/√d, ‖Σ|μ|‖/√d: as printed in the benchmark.
REFERENCE = """
B1  two-state              2  2  4 .5 .176   1.34 .175 .493 1.00
B2  riverswim              6  2 12 .9 .00103 3.29 2.78 .289 1.00
B3  simplex               20  4  4 .8 7.9e-4 3.48 .164 .642 1.00
B4  simplex-large        100 10  5 .9 1.8e-4 7.29 .215 .625 1.00
B5  ball                  40 10  5 .8 .00604 4.38 .322 .447 .687
B6  aggregated-riverswim  20  2  8 .8 .00731 2.08 1.80 .354 1.00
B7  low-rank              30  5  5 .8 .00271 2.54 .250 .416 1.00
B8  hard-discounted        2  8  5 .9 .0923  7.23 3.08 .447 .672
B9  queue                  9  5 18 .8 .00193 4.41 2.41 .602 1.00
B10 inventory             11  6 12 .8 .00145 1.63 .129 .447 1.00
B11 universal              8  3  4 .8 .0526  2.52 .533 .410 1.00
B12 grid                  16  4 61 .9 .00455 1.83 .908 .129 1.00
B13 lock                   6  3 11 .8 .0529  1.25 .937 .302 1.00
B14 sixarms                7  6 18 .9 .0243  10.0 9.26 .247 1.00
B15 simplex-gap            8  2  4 .8 .208   4.34 .546 .675 1.00
""".strip().splitlines()


@pytest.fixture(scope="module")
def models() -> dict[str, LinearMDP]:
    return {instance.name: instance.load() for instance in instances.catalogue()}


def q_values_by_iteration(mdp: LinearMDP) -> np.ndarray:
    """Q* (stages, S, A) by plain value iteration on the dense matrices; -inf where not allowed."""
    problem = mdp.problem
    rows = np.einsum("sad,hnd->hsan", problem.features, mdp.mu)
    rewards = np.einsum("sad,hd->hsa", problem.features, mdp.theta)
    values, q_values = np.zeros(problem.states), np.empty(rewards.shape)
    sweeps = range(problem.horizon)[::-1] if problem.discount is None else [0] * 400
    for stage in sweeps:
        backed_up = rewards[stage] + (problem.discount or 1.0) * (rows[stage] @ values)
        q_values[stage] = np.where(problem.mask, backed_up, -np.inf)
        values = q_values[stage].max(axis=1)
    return q_values


def smallest_gap(q_values: np.ndarray) -> float:
    top = np.sort(q_values, axis=-1)[..., -2:]
    return float((top[..., 1] - top[..., 0]).min())


def agrees(value: float, printed: str) -> bool:
    half_a_unit = 0.5 * 10.0 ** Decimal(printed).as_tuple().exponent
    return abs(value - float(printed)) <= half_a_unit * (1 + 1e-9)


@pytest.mark.parametrize("line", REFERENCE, ids=lambda line: line.split()[0])
def test_reference_values(models: dict[str, LinearMDP], line: str) -> None:
    _, name, states, actions, dimension, discount, *printed = line.split()
    mdp = models[name]
    problem = mdp.problem
    assert (problem.states, problem.actions, problem.dimension) == (int(states), int(actions), int(dimension))
    assert problem.discount == float(discount)
    q_values = q_values_by_iteration(mdp)
    values = q_values[0].max(axis=1)
    root = np.sqrt(problem.dimension)
    measured = (
        smallest_gap(q_values),
        values.max(),
        np.ptp(values),
        np.linalg.norm(mdp.theta[0]) / root,
        np.linalg.norm(np.abs(mdp.mu[0]).sum(axis=0)) / root,
    )
    assert all(agrees(*pair) for pair in zip(measured, printed, strict=True)), (measured, printed)
    assert np.linalg.norm(problem.pair_features, axis=1).max() == pytest.approx(1.0, abs=1e-9)
    np.testing.assert_allclose(mdp.values, values, atol=1e-9)
    assert mdp.gap == pytest.approx(measured[0], abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_is_a_linear_mdp(models: dict[str, LinearMDP], name: str) -> None:
    mdp = models[name]
    problem = mdp.problem
    allowed = problem.features[problem.mask]
    assert np.linalg.matrix_rank(allowed) == problem.dimension
    ones = np.ones(len(allowed))
    np.testing.assert_allclose(allowed @ np.linalg.lstsq(allowed, ones, rcond=None)[0], ones, atol=1e-9)
    assert np.linalg.norm(allowed, axis=1).max() <= 1 + 1e-9
    for theta, mu in zip(mdp.theta, mdp.mu, strict=True):
        rows, rewards = allowed @ mu.T, allowed @ theta
        assert rows.min() >= -1e-12
        np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-12)
        assert -1e-12 <= rewards.min() <= rewards.max() <= 1 + 1e-12
        assert np.linalg.norm(theta) <= np.sqrt(problem.dimension) * (1 + 1e-6)
        assert np.linalg.norm(np.abs(mu).sum(axis=0)) <= np.sqrt(problem.dimension) * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_no_action_does_the_same_as_an_optimal_one(models: dict[str, LinearMDP], name: str) -> None:
    mdp = models[name]
    problem = mdp.problem
    effects = np.concatenate([mdp.mu, mdp.theta[:, None]], axis=1)  # (stages, S + 1, d)
    for state, best in enumerate(mdp.plan.policy[0]):
        for action in set(np.flatnonzero(problem.mask[state])) - {best}:
            difference = problem.features[state, best] - problem.features[state, action]
            assert np.abs(effects @ difference).max() > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_gap_is_positive_but_for_the_published_episodic_worst_case(models: dict[str, LinearMDP], name: str) -> None:
    mdp = models[name]
    assert mdp.gap == pytest.approx(smallest_gap(q_values_by_iteration(mdp)), abs=1e-9)
    assert (mdp.gap > 1e-4) == (name != "hard-episodic")
    if name in EPISODIC and name != "hard-episodic":
        assert mdp.gap > 0.01


@pytest.mark.parametrize("name", EPISODIC)
def test_episodic_instances_have_a_horizon(models: dict[str, LinearMDP], name: str) -> None:
    problem = models[name].problem
    assert problem.discount is None
    assert 3 <= problem.horizon <= 10


def test_episodic_policies_are_not_trivial(models: dict[str, LinearMDP]) -> None:
    for name in set(EPISODIC) - {"hard-episodic"}:
        policy = models[name].policy
        assert (policy != policy[0]).any(), f"{name}: the same at every step"
        assert (policy != policy[:, :1]).any(), f"{name}: the same in every state"


class TestCatalogue:
    def test_names_and_aliases_are_unique(self) -> None:
        aliases = [instance.alias for instance in instances.catalogue() if instance.alias]
        assert len(set(NAMES)) == len(NAMES)
        assert aliases == [f"B{number}" for number in range(1, 16)]
        assert {instance.family for instance in instances.catalogue()} == {f"F{n}" for n in range(1, 12)}

    def test_aliases_and_case(self) -> None:
        for line in REFERENCE:
            alias, name = line.split()[:2]
            assert instances.load(alias).name == instances.load(alias.lower()).name == name
        assert instances.load("RiverSwim").name == "riverswim"

    def test_listing_builds_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError("a model was built")

        monkeypatch.setattr(LinearMDP, "__init__", fail)
        listed = instances.catalogue()
        assert all(isinstance(instance, Instance) and callable(instance.load) for instance in listed)
        assert all(instance.parameters and repr(instance) for instance in listed)
        listed.clear()
        assert len(instances.catalogue()) == len(NAMES)

    def test_everything_is_documented(self) -> None:
        for instance in instances.catalogue():
            assert instance.summary[0].isupper()
            assert instance.summary.endswith(".")
            assert 30 < len(instance.summary) < 120
            assert set(instance.settings) <= set(instance.parameters)
            documentation = instance.construct.__doc__ or ""
            assert all(parameter in documentation for parameter in instance.parameters)
        for name in instances.__all__:
            assert getattr(instances, name).__doc__

    def test_docstring_examples(self) -> None:
        outcome = doctest.testmod(instances)
        assert outcome.attempted >= 4
        assert outcome.failed == 0

    def test_names_carry_over(self, models: dict[str, LinearMDP]) -> None:
        assert all(mdp.name == name for name, mdp in models.items())
        assert instances.riverswim(name="my river").name == "my river"


class TestOverrides:
    def test_discount_and_horizon_replace_each_other(self) -> None:
        assert instances.load("riverswim", discount=0.95).problem.discount == 0.95
        assert instances.load("simplex-large", horizon=3).problem.horizon == 3
        assert instances.load("queue-episodic", discount=0.5).problem.horizon is None
        assert instances.load("queue-episodic", horizon=7).problem.horizon == 7

    def test_other_parameters_stay_as_they_were(self) -> None:
        assert instances.load("simplex-large", discount=0.5, seed=1).problem.features.shape == (100, 10, 5)

    @pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("hard-episodic")])
    def test_every_instance_has_both_clocks(self, name: str) -> None:
        assert instances.load(name, horizon=4).problem.horizon == 4
        assert instances.load(name, discount=0.6).problem.discount == 0.6

    def test_both_clocks_at_once(self) -> None:
        with pytest.raises(InvalidInput, match="either discount or horizon"):
            instances.load("riverswim", discount=0.9, horizon=3)

    def test_unknown_override_lists_the_parameters(self) -> None:
        with pytest.raises(InvalidInput, match=r"Did you mean 'states'\?.*states, left_reward.*horizon\.$"):
            instances.load("riverswim", state=4)
        with pytest.raises(InvalidInput, match="'hard-episodic' has no parameter 'discount'"):
            instances.load("hard-episodic", discount=0.9)

    def test_unknown_name_lists_the_names(self) -> None:
        with pytest.raises(InvalidInput, match=r"Did you mean 'riverswim'\?.*two-state, riverswim.*episodic"):
            instances.load("river-swim")
        with pytest.raises(InvalidInput, match="there is no instance 7"):
            instances.load(7)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "override", "message"),
        [
            ("riverswim", {"states": 1}, "states must be a whole number of at least 2. Got 1"),
            ("riverswim", {"states": 4.0}, "states must be a whole number"),
            ("riverswim", {"right_reward": 2}, "right_reward must lie between 0 and 1. Got 2"),
            ("riverswim", {"horizon": 0}, "horizon must be a whole number of at least 1"),
            ("riverswim", {"discount": 1.0}, "discount must be strictly between 0 and 1"),
            ("simplex", {"dimension": 81}, "dimension must be at most the number of pairs, 80. Got 81"),
            ("simplex", {"concentration": 0.0}, "concentration must be a positive number. Got 0.0"),
            ("simplex", {"seed": -1}, "seed must be a whole number of at least 0. Got -1"),
            ("ball", {"dimension": 2}, "dimension must be a whole number of at least 3"),
            ("ball", {"contrast": 1.5}, "contrast must lie between 0 and 1"),
            ("hard-discounted", {"tilt": 0.2}, "tilt must be at most 0.1, or probabilities leave"),
            ("hard-discounted", {"tilt": -0.2}, "tilt must be a finite number > 1e-100"),
            ("hard-discounted", {"dimension": 40}, "dimension must be at most 18"),
            ("hard-episodic", {"horizon": 10}, "tilt must be at most 0.1"),
            ("queue", {"service_levels": (0.5, 0.5)}, "two different probabilities"),
            ("queue", {"service_levels": (0.5, 1.5)}, "two different probabilities"),
            ("queue", {"service_levels": "high"}, "service_levels must be an array of numbers"),
            ("queue", {"waiting_cost": 0.9}, r"waiting_cost \+ service_cost must be at most 1"),
            ("inventory", {"order_cost": 0.2}, "smallest mean reward: -"),
            ("sixarms", {"arms": 7}, "arms must be at most 6"),
        ],
    )
    def test_bad_values(self, name: str, override: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            instances.load(name, **override)


class TestSeeds:
    @pytest.mark.parametrize(
        "name", [instance.name for instance in instances.catalogue() if "seed" in instance.parameters]
    )
    def test_seeds_reproduce_and_differ(self, models: dict[str, LinearMDP], name: str) -> None:
        first, again, other = models[name], instances.load(name), instances.load(name, seed=1234)
        np.testing.assert_array_equal(first.mu, again.mu)
        np.testing.assert_array_equal(first.theta, again.theta)
        np.testing.assert_array_equal(first.problem.features, again.problem.features)
        assert not (
            np.array_equal(first.mu, other.mu)
            and np.array_equal(first.theta, other.theta)
            and np.array_equal(first.problem.mask, other.problem.mask)
        )

    @pytest.mark.parametrize("name", ["simplex", "low-rank", "ball", "universal"])
    def test_random_steps_are_independent_and_the_first_is_the_discounted_model(
        self, models: dict[str, LinearMDP], name: str
    ) -> None:
        discounted, episodic = models[name], instances.load(name, horizon=3)
        np.testing.assert_array_equal(episodic.problem.features, discounted.problem.features)
        np.testing.assert_array_equal(episodic.mu[0], discounted.mu[0])
        np.testing.assert_array_equal(episodic.theta[0], discounted.theta[0])
        for one, other in combinations(range(3), 2):
            assert np.abs(episodic.mu[one] - episodic.mu[other]).max() > 1e-3
            assert np.abs(episodic.theta[one] - episodic.theta[other]).max() > 1e-3

    @pytest.mark.parametrize("name", ["riverswim", "aggregated-riverswim", "queue", "inventory", "two-state"])
    def test_stationary_families_repeat(self, models: dict[str, LinearMDP], name: str) -> None:
        episodic = instances.load(name, horizon=3)
        assert all(np.array_equal(mu, models[name].mu[0]) for mu in episodic.mu)
        assert all(np.array_equal(theta, models[name].theta[0]) for theta in episodic.theta)

    @pytest.mark.parametrize(
        ("name", "gap"),
        [
            ("simplex-gap", 0.15),
            ("simplex-episodic", 0.05),
            ("ball-episodic", 0.05),
            ("universal-episodic", 0.05),
        ],
    )
    def test_seeds_chosen_for_their_gap_are_the_first(
        self, models: dict[str, LinearMDP], name: str, gap: float
    ) -> None:
        chosen = next(each for each in instances.catalogue() if each.name == name).settings["seed"]
        assert all(instances.load(name, seed=seed).gap < gap for seed in range(chosen))
        assert models[name].gap >= gap

    def test_simplex_draws_in_the_documented_order(self) -> None:
        rng = np.random.default_rng(5)
        features = np.array([rng.dirichlet([0.7, 0.7, 0.7]) for _ in range(8)])
        features[rng.choice(8, 3, replace=False)] = np.eye(3)
        steps = [([rng.dirichlet([0.4] * 4) for _ in range(3)], rng.uniform(size=3)) for _ in range(2)]
        mdp = instances.simplex(states=4, actions=2, dimension=3, concentration=0.7, spread=0.4, seed=5, horizon=2)
        np.testing.assert_allclose(mdp.problem.features.reshape(8, 3), features, rtol=1e-14)
        for step, (distributions, rewards) in enumerate(steps):
            np.testing.assert_allclose(mdp.mu[step].T, distributions, rtol=1e-14)
            np.testing.assert_allclose(mdp.theta[step], rewards, rtol=1e-14)


class TestTabular:
    def test_a_model_comes_back_as_it_went_in(self) -> None:
        rng = np.random.default_rng(0)
        transitions, rewards = rng.dirichlet(np.ones(3), size=(4, 3, 2)), rng.uniform(size=(4, 3, 2))
        mask = np.array([[True, True], [False, True], [True, True]])
        mdp = instances.tabular(transitions, rewards, mask=mask, horizon=4)
        assert mdp.problem.dimension == 5
        np.testing.assert_allclose(mdp.transitions, transitions * mask[:, :, None])
        np.testing.assert_allclose(mdp.rewards, rewards * mask)
        repeated = instances.tabular(transitions[0], rewards, mask=mask, horizon=4)
        np.testing.assert_allclose(repeated.transitions[3], transitions[0] * mask[:, :, None])

    def test_bad_shapes(self) -> None:
        rows, rewards = np.full((2, 1, 2), 0.5), np.zeros((2, 1))
        with pytest.raises(InvalidInput, match="must agree"):
            instances.tabular(rows, np.zeros((1, 2)), discount=0.9)
        with pytest.raises(InvalidInput, match=r"mask must have shape \(S, A\) = \(2, 1\)"):
            instances.tabular(rows, rewards, mask=np.ones((1, 2)), discount=0.9)
        with pytest.raises(InvalidInput, match=r"transitions must have shape \(S, A, S\)"):
            instances.tabular(rows[None], rewards, discount=0.9)
        with pytest.raises(InvalidInput, match="Got neither"):
            instances.tabular(rows, rewards)

    def test_dirichlet_rows(self) -> None:
        mdp = instances.random_tabular(states=6, actions=3, concentration=0.1, seed=1)
        assert np.median(mdp.transitions.max(axis=2)) > 0.7


class TestClassics:
    def test_riverswim_rows(self, models: dict[str, LinearMDP]) -> None:
        rows = models["riverswim"].transitions
        np.testing.assert_allclose(rows[0, 0], [1, 0, 0, 0, 0, 0])
        np.testing.assert_allclose(rows[3, 0], [0, 0, 1, 0, 0, 0])
        np.testing.assert_allclose(rows[0, 1], [0.7, 0.3, 0, 0, 0, 0])
        np.testing.assert_allclose(rows[2, 1], [0, 0.1, 0.6, 0.3, 0, 0])
        np.testing.assert_allclose(rows[5, 1], [0, 0, 0, 0, 0.7, 0.3])
        expected = np.zeros((6, 2))
        expected[0, 0], expected[5, 1] = 0.05, 1.0
        np.testing.assert_allclose(models["riverswim"].rewards, expected)

    def test_riverswim_without_steps_to_spare_has_ties(self) -> None:
        assert instances.load("riverswim", horizon=3).gap == 0
        assert instances.load("riverswim", horizon=3, rest_reward=0.01).gap == pytest.approx(0.01)

    def test_forked_riverswim(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["forked-riverswim"]
        rows = mdp.transitions
        assert rows.shape == (7, 3, 7)  # 0 spring, 1-3 first river, 4-6 second
        river = instances.riverswim(states=4).transitions
        np.testing.assert_allclose(rows[:4, :2, :4], river)
        second = [0, 4, 5, 6]
        np.testing.assert_allclose(rows[np.ix_([4, 5, 6], [0, 1], second)], river[1:])
        for one, other in ((1, 4), (2, 5)):
            assert rows[one, 2, other] == rows[other, 2, one] == 1
        assert (~mdp.problem.mask).nonzero()[0].tolist() == [0, 3, 6]
        assert (mdp.rewards[0, 0], mdp.rewards[3, 1], mdp.rewards[6, 1]) == (0.05, 1.0, 0.95)
        assert mdp.rewards.sum() == 2.0

    def test_grid(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["grid"]
        rows = mdp.transitions
        up, down, left, right = range(4)
        assert rows[5, up, 1] == rows[5, down, 9] == rows[5, left, 4] == rows[5, right, 6]
        np.testing.assert_allclose(rows[5, up, [1, 9, 4, 6]], [0.85, 0.05, 0.05, 0.05])
        np.testing.assert_allclose(rows[0, up, [0, 1, 4]], [0.9, 0.05, 0.05])
        assert rows[15, 0, 0] == 1
        assert mdp.rewards[15, 0] == 1
        assert mdp.rewards[:15].max() <= 0.02
        assert mdp.problem.mask[15].tolist() == [True, False, False, False]

    def test_lock_opens_with_the_code_only(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["lock"]
        np.testing.assert_array_equal(mdp.policy[:5], np.random.default_rng(0).integers(3, size=5))
        assert mdp.problem.mask.sum(axis=1).tolist() == [2, 2, 2, 2, 2, 1]
        assert mdp.transitions[2, mdp.policy[2], 3] == pytest.approx(0.9)
        # V(0) = (0.9 γ)^5 V(5) + 0.1 γ V(0) (1 + 0.9 γ + …), V(5) = 1 + γ V(0), with γ = 0.8.
        through, back = 0.72**5, 0.08 * (1 - 0.72**5) / 0.28
        start = through / (1 - back - 0.8 * through)
        assert mdp.values[0] == pytest.approx(start)
        assert instances.lock(actions=2).problem.dimension == 11

    def test_sixarms_pays_best_behind_the_narrowest_door(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["sixarms"]
        chance, discount = 0.01, 0.9
        wait = chance * discount * 10 / (1 - discount * (1 - chance))
        assert mdp.values[6] == pytest.approx(10)
        assert mdp.values[0] == pytest.approx(
            max(wait, 0.03 * 0.9 * 10 * 1660 / 6000 / (1 - 0.9 * 0.97), 0.9 * 10 * 50 / 6000)
        )
        assert instances.sixarms(arms=2).problem.mask.all()

    def test_double_chain(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["double-chain"]
        rows = mdp.transitions
        np.testing.assert_allclose(rows[0, 1, [0, 1]], [0.3, 0.7])
        np.testing.assert_allclose(rows[0, 0, [0, 5]], [0.3, 0.7])
        np.testing.assert_allclose(rows[2, 1, [1, 3]], [0.3, 0.7])
        np.testing.assert_allclose(rows[8, 1, [7, 8]], [0.3, 0.7])
        assert rows[1, 0, 0] == rows[5, 0, 0] == rows[6, 0, 5] == 1
        np.testing.assert_allclose(mdp.rewards[:, 0], [0.05, 0, 0, 0, 1, 0, 0, 0, 0.95])
        assert mdp.policy[0] == 1, "the first chain pays more"


class TestAggregation:
    def test_values_are_those_of_the_small_model(self, models: dict[str, LinearMDP]) -> None:
        small = instances.riverswim(states=4, discount=0.8)
        large = models["aggregated-riverswim"]
        np.testing.assert_allclose(large.values, np.repeat(small.values, 5), atol=1e-12)
        assert large.gap == pytest.approx(small.gap)
        assert large.problem.dimension == small.problem.dimension

    def test_lumped_transitions_are_those_of_the_small_model(self, models: dict[str, LinearMDP]) -> None:
        lumped = models["aggregated-riverswim"].transitions.reshape(4, 5, 2, 4, 5).sum(axis=4)
        small = instances.riverswim(states=4).transitions
        for member in range(5):
            np.testing.assert_allclose(lumped[:, member], small, atol=1e-12)
        rng = np.random.default_rng(0)
        arrivals = np.array([rng.dirichlet(np.full(5, 3.0)) for _ in range(4)])
        np.testing.assert_allclose(models["aggregated-riverswim"].transitions[0, 0, :5], arrivals[0])

    def test_masks_and_horizons_carry_over(self) -> None:
        small = instances.lock(horizon=6)
        large = instances.aggregated(small, copies=3)
        np.testing.assert_allclose(large.values, np.repeat(small.values, 3, axis=1), atol=1e-12)
        np.testing.assert_array_equal(large.problem.mask, np.repeat(small.problem.mask, 3, axis=0))


class TestHardInstances:
    def test_discounted_values_in_closed_form(self, models: dict[str, LinearMDP]) -> None:
        mdp, discount, tilt = models["hard-discounted"], 0.9, 0.05
        climb = 1 - discount + tilt
        difference = 1 / (1 - discount * (discount - climb))  # V(x₁) - V(x₀)
        assert mdp.values[1] - mdp.values[0] == pytest.approx(difference)
        assert mdp.values[0] == pytest.approx(discount * climb * difference / (1 - discount))
        # One sign of three turned around takes 2Δ/3 off the chance to climb.
        assert mdp.gap == pytest.approx(discount * 2 * tilt / 3 * difference)
        assert mdp.policy[0] == 7
        np.testing.assert_allclose(mdp.transitions[0, [0, 7], 1], [0.05, 0.15])

    def test_episodic_rows(self, models: dict[str, LinearMDP]) -> None:
        rows = models["hard-episodic"].transitions
        signs = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        rng = np.random.default_rng(0)
        for step in range(4):
            slopes = 0.1 * rng.choice([-1, 1], size=2)
            for state in range(5):
                np.testing.assert_allclose(rows[step, state, :, 5], 0.25 + signs @ slopes, atol=1e-12)
                np.testing.assert_allclose(rows[step, state, :, step + 1], 0.75 - signs @ slopes, atol=1e-12)
            assert rows[step, 5, 0, 5] == 1

    def test_the_last_action_is_never_paid_for(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["hard-episodic"]
        q_values = mdp.q_values[:, :5]
        assert mdp.gap == 0
        np.testing.assert_array_equal(q_values[3], 0.0)
        # Before that, one sign of two turned costs 2Δ/2 of the advantage of the good state, at least 1.
        top = np.sort(q_values[:3], axis=2)[..., -2:]
        assert np.diff(top, axis=2).min() == pytest.approx(0.2)
        assert np.diff(top, axis=2)[2].max() == pytest.approx(0.2)

    def test_paid_on_arrival_the_optimum_is_unique(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["hard-episodic-unique"]
        assert mdp.gap == pytest.approx(0.2)
        np.testing.assert_array_equal(mdp.policy[:3], models["hard-episodic"].policy[:3])


class TestQueueAndInventory:
    def test_queue_rows(self, models: dict[str, LinearMDP]) -> None:
        rows = models["queue"].transitions
        arrival, served = 0.4, 0.25
        np.testing.assert_allclose(
            rows[3, 1, [2, 3, 4]],
            [served * (1 - arrival), served * arrival + (1 - served) * (1 - arrival), (1 - served) * arrival],
        )
        np.testing.assert_allclose(rows[0, :, :2], [[0.6, 0.4]] * 5)
        np.testing.assert_allclose(rows[8, 1, [7, 8]], [served * (1 - arrival), 1 - served * (1 - arrival)])
        assert models["queue"].rewards[4, 2] == pytest.approx(1 - 0.6 * 4 / 8 - 0.3 * 0.5)

    def test_optimal_service_is_extreme(self, models: dict[str, LinearMDP]) -> None:
        patient = instances.queue(discount=0.9)
        assert set(np.unique(patient.policy)) == {0, 4}
        more = instances.queue(discount=0.9, service_levels=np.linspace(0, 1, 21))
        assert more.problem.dimension == patient.problem.dimension
        np.testing.assert_allclose(more.values, patient.values, atol=1e-9)

    def test_at_discount_eight_tenths_service_just_fails_to_pay(self, models: dict[str, LinearMDP]) -> None:
        # A customer less saves at most γ/(1-γ) · 0.6/8 = 0.3, which is the price of serving one.
        assert not models["queue"].policy.any()
        assert instances.load("queue", service_cost=0.28).policy.any()

    def test_next_stock_follows_from_the_poisson_demand(self, models: dict[str, LinearMDP]) -> None:
        mdp = models["inventory"]
        poisson = [exp(-3.0) * 3.0**k / factorial(k) for k in range(11)]
        stock, order = 2, 4
        filled = stock + order
        expected = [1 - sum(poisson[:filled])] + [poisson[filled - left] for left in range(1, filled + 1)]
        np.testing.assert_allclose(mdp.transitions[stock, order, : filled + 1], expected)
        assert mdp.transitions[stock, order, filled + 1 :].max() == pytest.approx(0, abs=1e-15)
        sales = sum(k * poisson[k] for k in range(filled)) + filled * (1 - sum(poisson[:filled]))
        reward = 0.3 + 0.6 * sales / 10 - 0.2 * filled / 10 - 0.04 * order
        assert mdp.rewards[stock, order] == pytest.approx(reward)

    def test_orders_that_do_not_fit_are_not_allowed(self, models: dict[str, LinearMDP]) -> None:
        stock, order = np.indices((11, 6))
        np.testing.assert_array_equal(models["inventory"].problem.mask, stock + order <= 10)


class TestUniversal:
    @pytest.mark.parametrize("horizon", [None, 3])
    def test_the_model_is_a_mixture_of_known_kernels(self, horizon: int | None) -> None:
        mdp = instances.universal(seed=4, horizon=horizon)
        mixture = instances.universal_mixture(seed=4, horizon=horizon)
        np.testing.assert_allclose(mixture.weights.sum(axis=-1), 1.0)
        np.testing.assert_allclose(mixture.kernels.sum(axis=-1), 1.0)
        mixed = (mixture.weights[..., None, None, None] * mixture.kernels).sum(axis=-4)
        np.testing.assert_allclose(mixed, mdp.transitions, atol=1e-12)
        assert mixture.kernels.shape[-4:] == (3, 8, 3, 8)

    def test_rewards_are_sparse_unless_told_otherwise(self) -> None:
        dense, sparse = instances.universal(sparse_rewards=False), instances.universal()
        np.testing.assert_allclose(sparse.theta, dense.theta**4)
        np.testing.assert_array_equal(sparse.mu, dense.mu)


class TestLowRank:
    def test_it_is_the_simplex_model_in_other_coordinates(self, models: dict[str, LinearMDP]) -> None:
        rng = np.random.default_rng(0)
        weights = rng.dirichlet(np.ones(5), size=150)
        prototypes, rewards = rng.dirichlet(np.ones(30), size=5), rng.uniform(size=5)
        mdp = models["low-rank"]
        np.testing.assert_allclose(mdp.transitions.reshape(150, 30), weights @ prototypes, atol=1e-12)
        np.testing.assert_allclose(mdp.rewards.reshape(150), weights @ rewards, atol=1e-12)
        assert mdp.problem.features.min() < -0.1, "signed features hide the simplex"
