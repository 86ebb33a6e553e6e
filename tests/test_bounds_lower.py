"""The certified lower bound: known solutions, verification by independent means, monotonicity, interruptions."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

import bestpolicy as bp
from bestpolicy.bounds import confidence_divergence, lower_bound, lower_bounds, summarise, table_rows, time_upper_bound
from bestpolicy.bounds.alternatives import Verifier
from bestpolicy.bounds.membership import Reference, certify
from bestpolicy.bounds.search import Search
from bestpolicy.bounds.tables import Truth
from bestpolicy.report import bounds_figure
from tests.models import random_mdp, tabular_mdp

# --- independent means: plain NumPy, one policy at a time


def policy_losses(mdp: bp.LinearMDP) -> dict[tuple[int, ...], float]:
    """max_s V*(s) - V^π(s) of every deterministic policy, by enumeration and S×S solves (first step if episodic)."""
    problem = mdp.problem
    choices = [np.flatnonzero(row).tolist() for row in problem.mask] * problem.stages
    values, everywhere, transitions = {}, np.arange(problem.states), mdp.transitions
    for policy in itertools.product(*choices):
        staged = np.reshape(policy, (problem.stages, problem.states))
        if problem.horizon is None:
            p, r = transitions[everywhere, staged[0]], mdp.rewards[everywhere, staged[0]]
            values[policy] = np.linalg.solve(np.eye(problem.states) - problem.discount * p, r)
        else:
            value = np.zeros(problem.states)
            for h in reversed(range(problem.stages)):
                p, r = transitions[h][everywhere, staged[h]], mdp.rewards[h][everywhere, staged[h]]
                value = r + p @ value
            values[policy] = value
    best = np.max(list(values.values()), axis=0)
    return {policy: float((best - value).max()) for policy, value in values.items()}


def assert_valid(mdp: bp.LinearMDP, bound: bp.bounds.LowerBound) -> None:
    """Check every alternative and the number that rests on them, without the library's own verification."""
    bound = replace(bound, groupings=())  # what groups of answers add has tests of its own
    problem, stages = mdp.problem, mdp.problem.stages
    good = {policy for policy, loss in policy_losses(mdp).items() if loss <= bound.epsilon + 1e-10}
    mask = np.broadcast_to(problem.mask, (stages, *problem.mask.shape))
    r, p = np.reshape(mdp.rewards, mask.shape), np.reshape(mdp.transitions, (*mask.shape, -1))
    exact = {}
    for alternative in bound.every_alternative:
        rows = np.einsum("sad,htd->hsat", problem.features, mdp.mu + alternative.mu_change)
        rewards = np.einsum("sad,hd->hsa", problem.features, mdp.theta + alternative.theta_change)
        assert rows[mask].min() >= 0
        np.testing.assert_allclose(rows[mask].sum(axis=1), 1.0, atol=1e-12)
        assert 0 <= rewards[mask].min() <= rewards[mask].max() <= 1
        assert (rows[mask][p[mask] > 1e-12] > 0).all()
        with np.errstate(divide="ignore", invalid="ignore"):
            divergence = np.where(p > 1e-12, p * np.log(p / rows), 0.0).sum(axis=-1)
            divergence += np.where(r > 0, r * np.log(r / rewards), 0.0)
            divergence += np.where(r < 1, (1 - r) * np.log((1 - r) / (1 - rewards)), 0.0)
        np.testing.assert_allclose(alternative.divergences[mask], divergence[mask], rtol=1e-5, atol=1e-11)
        assert not alternative.divergences[~mask].any()
        exact[alternative] = np.where(mask, divergence, 0.0)
        losses = policy_losses(alternative.model(mdp))
        assert min(losses[policy] for policy in good) > bound.epsilon
    if not bound.alternatives:
        assert bound.samples_lower_bound == bound.rounds_lower_bound == 0
        return
    for weighing, number in (
        (bound.any_sampling, bound.samples_lower_bound),
        (bound.in_rounds, bound.rounds_lower_bound),
    ):
        assert weighing.weights.min() > 0
        assert weighing.weights.sum() == pytest.approx(1.0)
        pairs = zip(weighing.alternatives, weighing.weights, strict=True)
        worst = sum(weight * exact[alternative] for alternative, weight in pairs).reshape(stages, -1).max(axis=1)
        divisor = worst.max() if weighing is bound.any_sampling else worst.sum()
        assert number <= confidence_divergence(bound.delta) / divisor * (1 + 1e-6)
    assert bound.rounds_lower_bound <= bound.samples_lower_bound * (1 + 1e-9)
    assert bound.samples_lower_bound <= stages * bound.rounds_lower_bound * (1 + 1e-9)
    for allocation in (bound.allocation, bound.in_rounds.allocation):
        assert not np.reshape(allocation, mask.shape)[~mask].any()
    assert bound.allocation.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.reshape(bound.in_rounds.allocation, mask.shape).sum(axis=(1, 2)), 1.0)


def best_arm(means: list[float]) -> tuple[float, np.ndarray]:
    """T* and ω* of best-arm identification (Garivier and Kaufmann 2016, Thm 5), means in decreasing order."""
    top = means[0]

    def kl(x: float, y: float) -> float:
        return x * np.log(x / y) + (1 - x) * np.log((1 - x) / (1 - y))

    def middle(ratio: float, mean: float) -> float:
        return (top + ratio * mean) / (1 + ratio)

    def ratio_of(level: float, mean: float) -> float:
        def excess(u: float) -> float:
            ratio = np.exp(u)
            return kl(top, middle(ratio, mean)) + ratio * kl(mean, middle(ratio, mean)) - level

        return float(np.exp(brentq(excess, -30, 25, xtol=1e-13)))

    def balance(level: float) -> float:
        points = [middle(ratio_of(level, mean), mean) for mean in means[1:]]
        return sum(kl(top, point) / kl(mean, point) for point, mean in zip(points, means[1:], strict=True)) - 1

    ceiling = kl(top, means[1])
    high = next(x for x in ceiling * (1 - 10.0 ** -np.arange(1, 9)) if balance(x) > 0)
    level = brentq(balance, 1e-6 * ceiling, high, xtol=1e-15)
    ratios = np.array([1.0] + [ratio_of(level, mean) for mean in means[1:]])
    return float(ratios.sum() / level), ratios / ratios.sum()


def arms(means: list[float], **time: float) -> bp.LinearMDP:
    return tabular_mdp(np.ones((1, len(means), 1)), np.array([means]), **(time or {"discount": 0.9}))


def steps_of_arms(means: list[list[float]]) -> bp.LinearMDP:
    """One state; what is played at one step changes nothing at the next."""
    features = np.eye(len(means[0]))[None]
    mu = np.ones((len(means), 1, len(means[0])))
    return bp.LinearMDP(bp.Problem(features, horizon=len(means)), theta=np.array(means), mu=mu)


ARMS = [
    [0.5, 0.4],
    [0.5, 0.4, 0.3],
    [0.9, 0.8, 0.1],
    [0.6, 0.59, 0.3, 0.3],
    [0.05, 0.03, 0.02],
    [0.99, 0.5, 0.4],
    [0.5] + [0.45] * 7,
]


# --- known solutions


@pytest.mark.parametrize("means", ARMS, ids=str)
def test_agrees_with_best_arm_identification(means):
    time, allocation = best_arm(means)
    bound = lower_bound(arms(means), 0.0, 0.1)
    assert 0.97 * time <= bound.characteristic_time <= 1.001 * time
    assert bound.characteristic_time >= 0.998 * time  # what it really does
    np.testing.assert_allclose(bound.allocation[0], allocation, atol=0.03)
    assert bound.samples_lower_bound == pytest.approx(bound.characteristic_time * confidence_divergence(0.1))
    assert bound.all_policies


def test_one_step_is_best_arm_identification_too():
    bound = lower_bound(arms([0.5, 0.4, 0.3], horizon=1), 0.0, 0.1)
    assert bound.characteristic_time == pytest.approx(best_arm([0.5, 0.4, 0.3])[0], rel=2e-3)
    assert bound.allocation.shape == (1, 1, 3)
    # Without a next step to care for the discounted problem is the same, and a round is a sample.
    discounted = lower_bound(arms([0.5, 0.4, 0.3]), 0.0, 0.1)
    assert bound.samples_lower_bound == pytest.approx(discounted.samples_lower_bound, rel=2e-3)
    for either in (bound, discounted):
        assert either.rounds_lower_bound == either.samples_lower_bound
        assert either.in_rounds.alternatives == either.alternatives
        np.testing.assert_array_equal(either.in_rounds.allocation, either.allocation)


@pytest.mark.parametrize(
    "means",
    [[[0.6, 0.4, 0.3]] * 2, [[0.55, 0.45], [0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4, 0.1], [0.2, 0.5, 0.1]]],
    ids=["equal steps", "one hard step", "other arms"],
)
def test_several_steps_of_arms(means):
    # Steps have alternatives of their own, T_h each. Free samples are split: 1/T = max_ω min_h ω_h/T_h, so T = Σ T_h.
    # A round samples all steps in parallel and is enough when the hardest step has enough: T = max T_h rounds.
    times = [best_arm(sorted(row, reverse=True))[0] for row in means]
    bound = lower_bound(steps_of_arms(means), 0.0, 0.1)
    assert bound.characteristic_time == pytest.approx(sum(times), rel=5e-3)
    assert bound.characteristic_rounds == pytest.approx(max(times), rel=5e-3)
    np.testing.assert_allclose(bound.allocation.sum(axis=(1, 2)), np.array(times) / sum(times), atol=0.01)


def test_the_bound_on_rounds_is_not_for_all_algorithms():
    # The first of six steps is hard. An algorithm that samples all steps equally often needs 16,551 calls at least; a
    # valid one that does not needs half of that. Six times the bound on rounds is no bound on all algorithms.
    mdp = steps_of_arms([[0.55, 0.45]] + [[0.9, 0.1]] * 5)
    bound = lower_bound(mdp, 0.0, 1e-6)
    runs = [
        bp.identify(bp.ExactSimulator(mdp), epsilon=0.0, delta=1e-6, algorithm="adaptive", seed=seed)
        for seed in range(4)
    ]
    assert all(run.certified and mdp.is_near_optimal(run.policy, 0.0) for run in runs)
    mean = np.mean([run.samples for run in runs])
    assert bound.samples_lower_bound < mean < 0.7 * 6 * bound.rounds_lower_bound
    assert bound.samples_lower_bound > 0.9 * bound.rounds_lower_bound


@pytest.mark.parametrize(("seed", "epsilon"), [pytest.param(2, 0.1, marks=pytest.mark.study), (6, 0.0)])
def test_no_weights_do_better(seed, epsilon):
    # min_λ of what divides kl(δ, 1-δ), over all alternatives reported, by a linear programme in λ: variables (λ, u) and
    # u_h ≥ Σ_k λ_k KL_k(h, x) in rounds, one u for all h if steps are free.
    mdp = random_mdp(seed, states=3, actions=2, dimension=3, horizon=3)
    bound = lower_bound(mdp, epsilon, 0.05, tolerance=0.1)
    planes = np.stack([a.divergences.reshape(3, -1) for a in bound.every_alternative])
    scale, (count, stages, n) = planes.max(), planes.shape
    for tops, time in ((1, bound.characteristic_time), (stages, bound.characteristic_rounds)):
        above = np.kron(np.eye(stages), np.ones((n, 1))) if tops > 1 else np.ones((stages * n, 1))
        best = linprog(
            np.append(np.zeros(count), np.ones(tops)),
            A_ub=np.hstack([planes.reshape(count, -1).T / scale, -above]),
            b_ub=np.zeros(stages * n),
            A_eq=np.append(np.ones(count), np.zeros(tops))[None],
            b_eq=[1.0],
        )
        assert time <= (1 + 1e-6) / (scale * best.fun)
        assert time >= (1 - 1e-5) / (scale * best.fun)
    assert bound.samples_lower_bound < 0.95 * 3 * bound.rounds_lower_bound


def test_near_optimal_arms():
    # ε-good arms of M must all be made bad: with γ = 1/2 a loss of ε is a difference of means of ε/2. Two arms, one
    # constraint r'_b ≥ r'_a + ε/2, solved by brute force over the allocation and the mean of the better arm.
    means, epsilon = np.array([0.6, 0.4]), 0.1
    bound = lower_bound(arms(list(means), discount=0.5), epsilon, 0.1)
    x = np.linspace(0.3, 0.6, 3001)
    shares = np.linspace(0.3, 0.7, 401)

    def kl(r: float, q: np.ndarray) -> np.ndarray:
        return r * np.log(r / q) + (1 - r) * np.log((1 - r) / (1 - q))

    value = max((share * kl(0.6, x) + (1 - share) * kl(0.4, x + epsilon / 2)).min() for share in shares)
    assert bound.characteristic_time == pytest.approx(1 / value, rel=2e-3)


# --- every alternative, verified again


SMALL = {
    "two-state": lambda: bp.instances.load("two-state"),
    "tabular": lambda: random_tabular(3, 3, 2, discount=0.8),
    "zeros": lambda: sparse_tabular(),
    "linear": lambda: random_mdp(3, states=4, actions=3, dimension=3),
    "masked": lambda: random_mdp(5, states=5, actions=3, dimension=4, masked=True),
    "episodic": lambda: random_mdp(2, states=3, actions=2, dimension=3, horizon=3),
    "episodic masked": lambda: random_mdp(4, states=3, actions=3, dimension=4, horizon=2, masked=True),
}


def random_tabular(seed: int, states: int, actions: int, **time: float) -> bp.LinearMDP:
    rng = np.random.default_rng(seed)
    return tabular_mdp(rng.dirichlet(np.ones(states), (states, actions)), rng.uniform(size=(states, actions)), **time)


def sparse_tabular() -> bp.LinearMDP:
    """Deterministic transitions and rewards of 0 and 1: alternatives must open new ways."""
    transitions = np.zeros((3, 2, 3))
    transitions[:, 0, 0] = 1.0
    transitions[[0, 1, 2], 1, [1, 2, 2]] = 1.0
    rewards = np.zeros((3, 2))
    rewards[2, 1], rewards[0, 0] = 1.0, 0.1
    return tabular_mdp(transitions, rewards, discount=0.7)


@pytest.mark.parametrize("epsilon", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("name", SMALL)
def test_alternatives_verified_by_enumeration(name, epsilon):
    mdp = SMALL[name]()

    def enough(progress: bp.bounds.Progress) -> None:
        if progress.alternatives >= 8:
            raise KeyboardInterrupt

    bound = lower_bound(mdp, epsilon, 0.05, tolerance=0.05, callback=enough)
    assert_valid(mdp, bound)
    assert bound.characteristic_time > 0
    # The numbers are those that the alternatives give.
    assert 1 / bound.characteristic_time == pytest.approx(largest_averages(bound.any_sampling).max(), rel=1e-6)
    assert 1 / bound.characteristic_rounds == pytest.approx(largest_averages(bound.in_rounds).sum(), rel=1e-6)
    # Theorem 1: T* ≤ U*, so a certified lower value of T* cannot exceed it (features of the simplex: norms hold).
    assert bound.characteristic_rounds <= time_upper_bound(mdp.problem, mdp.gap, epsilon)


def largest_averages(weighing: bp.bounds.Weighing) -> np.ndarray:
    """max over the pairs of Σ λ KL, for each step."""
    average = sum(w * a.divergences for w, a in zip(weighing.weights, weighing.alternatives, strict=True))
    return average.reshape(len(average), -1).max(axis=1)


@given(st.integers(0, 10**6), st.floats(0.01, 0.6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_certificates_agree_with_enumeration(seed, epsilon, episodic):
    time = {"horizon": 2} if episodic else {"discount": 0.7}
    mdp, other = (random_tabular(seed + k, 3, 2, **time) for k in (0, 1))
    reference = Reference(Truth(mdp).table, epsilon)
    certificate = certify(reference, Truth(other).table, node_limit=10**4)
    ours, theirs = policy_losses(mdp), policy_losses(other)
    best_common = min(max(ours[policy], theirs[policy]) for policy in ours)
    if certificate is not None:
        assert best_common > epsilon
    elif best_common > epsilon + 1e-9:
        # Enough nodes for every policy: branch and bound is exact.
        pytest.fail(f"disjoint sets were not recognised, {best_common} > {epsilon}")


def test_losing_the_optimal_policy_is_not_enough():
    # M: arms 0 and 1 are ε-optimal. M': arm 0, which is optimal in M, is not ε-optimal any more, but arm 1 is. An
    # algorithm that always answers "arm 1" is right in both models, so M' proves nothing.
    mdp = arms([0.50, 0.48, 0.30], discount=0.5)
    verifier = Verifier(mdp, epsilon=0.1)
    no_rows = np.zeros((1, 1, 3))
    spoiled = arms([0.40, 0.48, 0.45], discount=0.5)
    assert policy_losses(spoiled)[(0,)] > 0.1 >= policy_losses(spoiled)[(1,)]
    assert verifier.alternative((np.array([[-0.10, 0.0, 0.15]]), no_rows), (0, 0, 2), node_limit=1000) is None
    proper = verifier.alternative((np.array([[-0.08, -0.06, 0.18]]), no_rows), (0, 0, 2))
    assert proper is not None
    assert proper.certificate.test == "restricted values"
    # At ε = 0 the spoiled model is an alternative: arm 0 is the only answer for M.
    assert Verifier(mdp, epsilon=0.0).alternative((np.array([[-0.10, 0.0, 0.15]]), no_rows), (0, 0, 1)) is not None


def test_what_is_not_a_model_is_not_an_alternative():
    mdp = random_tabular(0, 3, 2, discount=0.8)
    verifier = Verifier(mdp, epsilon=0.0)
    bound = lower_bound(mdp, 0.0, 0.1, tolerance=0.1)
    change = bound.alternatives[0].theta_change, bound.alternatives[0].mu_change
    choice = (0, bound.alternatives[0].state, bound.alternatives[0].action)
    assert verifier.alternative(change, choice) is not None
    assert verifier.alternative((0.5 * change[0], 0.5 * change[1]), choice) is None  # not far enough
    too_far = change[0] + 5.0, change[1]
    leaking = change[0], change[1] + 1e-6
    negative = change[0], 1e6 * change[1]
    for broken in (too_far, leaking, negative, (change[0] * np.nan, change[1])):
        assert verifier.alternative(broken, choice) is None


# --- ties, rewards, masks, sizes


def test_nothing_to_tell_apart():
    bound = lower_bound(arms([0.5, 0.5]), 0.0, 0.1)
    assert bound.samples_lower_bound == bound.characteristic_time == 0.0
    assert bound.alternatives == ()
    assert bound.closest is None
    assert "every policy" in bound.reason
    one_action = tabular_mdp(np.full((2, 1, 2), 0.5), np.full((2, 1), 0.5), discount=0.5)
    assert lower_bound(one_action, 0.0, 0.1).samples_lower_bound == 0.0
    assert lower_bound(arms([0.6, 0.5], discount=0.5), 3.0, 0.1).samples_lower_bound == 0.0


def test_several_optimal_policies_must_all_become_bad():
    # Two optimal arms: the alternatives for arm 2 must beat both; less confusing than if only one had to be beaten.
    tied = lower_bound(arms([0.5, 0.5, 0.4], discount=0.5), 0.0, 0.1, tolerance=0.01)
    assert_valid(arms([0.5, 0.5, 0.4], discount=0.5), tied)
    assert 0 < tied.characteristic_time < best_arm([0.5, 0.4])[0]


def test_identical_actions_are_one():
    features = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    mdp = bp.LinearMDP(bp.Problem(features, discount=0.9), theta=np.array([0.5, 0.4]), mu=np.ones((1, 2)))
    bound = lower_bound(mdp, 0.0, 0.1)
    assert bound.characteristic_time == pytest.approx(best_arm([0.5, 0.4])[0], rel=2e-3)


def test_rewards_without_noise():
    mdp = random_tabular(1, 3, 2, discount=0.9)
    noisy = lower_bound(mdp, 0.0, 0.1, tolerance=0.01)
    known = lower_bound(mdp, 0.0, 0.1, tolerance=0.01, rewards="deterministic")
    assert 0 < known.characteristic_time < noisy.characteristic_time
    assert all(not alternative.theta_change.any() for alternative in known.alternatives)
    assert "without noise" in known.assumptions
    assert lower_bound(arms([0.5, 0.4]), 0.0, 0.1, rewards="deterministic").reason == "no alternative model was found"
    with pytest.raises(bp.InvalidInput, match="rewards"):
        lower_bound(mdp, 0.0, 0.1, rewards="gaussian")
    with pytest.raises(bp.InvalidInput, match="epsilon"):
        lower_bound(mdp, -0.1, 0.1)


def test_coordinates_do_not_matter():
    mdp = random_mdp(7, states=5, actions=3, dimension=3)
    turn = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.3, 0.0, 0.5]])
    back = np.linalg.inv(turn)
    turned = bp.LinearMDP(
        mdp.problem.with_features(mdp.problem.features @ turn), theta=back @ mdp.theta[0], mu=mdp.mu[0] @ back.T
    )
    first, second = (lower_bound(model, 0.0, 0.1) for model in (mdp, turned))
    assert first.characteristic_time == pytest.approx(second.characteristic_time, rel=5e-3)


def test_tiny_gaps_keep_their_digits():
    for gap in (1e-3, 1e-5, 1e-7):
        bound = lower_bound(arms([0.5 + gap, 0.5]), 0.0, 0.1)
        assert bound.characteristic_time * gap**2 == pytest.approx(2.0, rel=0.01)  # 8 r(1-r)/gap²


def test_fifty_states_in_seconds():
    mdp = random_mdp(0, states=50, actions=5, dimension=10, discount=0.9)
    started = process_time()
    bound = lower_bound(mdp, 0.0, 0.05, max_seconds=600)
    assert bound.search_gap < 0.05
    assert process_time() - started < 30
    verifier = Verifier(mdp, 0.0)
    for alternative in bound.alternatives:
        assert certify(verifier.reference, verifier.truth.changed(alternative.theta_change, alternative.mu_change))


def test_estimates_are_near_the_truth_for_small_gaps():
    mdp = random_mdp(0, states=8, actions=2, dimension=4)
    search = Search(Verifier(mdp, 0.0))
    weights = np.full((1, len(mdp.problem.pairs)), 1 / len(mdp.problem.pairs))
    estimates = search.estimates(weights)
    target = int(estimates.argmin())
    found = search.find(weights, search.targets[target])
    assert search.cost(weights, found) == pytest.approx(estimates[target], rel=0.1)


def test_too_large_a_model_is_declined(monkeypatch):
    monkeypatch.setattr("bestpolicy.bounds.tables._LARGEST", 10)
    with pytest.raises(bp.InvalidInput, match="smaller model"):
        lower_bound(random_mdp(0), 0.0, 0.1)


# --- monotone where theory says so


@given(st.integers(0, 50), st.floats(1e-6, 0.9), st.floats(1e-6, 0.9))
@settings(max_examples=5, deadline=None)
def test_more_confidence_needs_more_samples(seed, first, second):
    mdp = random_tabular(seed, 2, 2, discount=0.6)
    loose, strict = (lower_bound(mdp, 0.0, delta, tolerance=0.05) for delta in (max(first, second), min(first, second)))
    assert loose.samples_lower_bound <= strict.samples_lower_bound
    assert loose.characteristic_time == strict.characteristic_time


@pytest.mark.parametrize(
    ("seed", "time", "epsilons"), [(4, {"discount": 0.6}, [0.05, 0.0, 0.4, 0.1]), (9, {"horizon": 2}, [0.1, 0.0])]
)
def test_more_precision_needs_more_samples(seed, time, epsilons):
    mdp = random_tabular(seed, 2, 2, **time)
    bounds = lower_bounds(mdp, epsilons, 0.1, max_seconds=600, tolerance=0.05)
    assert [bound.epsilon for bound in bounds] == epsilons
    for number in ("characteristic_time", "characteristic_rounds"):
        times = [getattr(bound, number) for bound in sorted(bounds, key=lambda bound: bound.epsilon)]
        assert times == sorted(times, reverse=True)
    for bound in bounds:
        assert_valid(mdp, bound)


def test_no_bound_without_confidence():
    for mdp in (arms([0.5, 0.4]), arms([0.5, 0.4], horizon=2)):
        bound = lower_bound(mdp, 0.0, 0.5)
        assert bound.samples_lower_bound == bound.rounds_lower_bound == 0.0
        assert bound.characteristic_time > 0
    with pytest.raises(bp.InvalidInput):
        lower_bound(arms([0.5, 0.4]), 0.0, 1.0)


def test_alternatives_can_be_handed_on():
    mdp = bp.instances.load("two-state")
    wide = lower_bound(mdp, 0.1, 0.1)
    narrow = lower_bound(mdp, 0.0, 0.1, also=wide.alternatives, max_seconds=0.0)
    assert narrow.interrupted
    assert narrow.characteristic_time == pytest.approx(wide.characteristic_time, rel=1e-6)
    # The other way round they have to be proved anew, and alternatives of another model are not taken.
    tight = lower_bound(mdp, 0.0, 0.1)
    wrong_way = lower_bound(mdp, 0.1, 0.1, also=tight.alternatives, max_seconds=0.0)
    assert wrong_way.characteristic_time == 0.0
    stolen = lower_bound(random_tabular(0, 2, 2, discount=0.5), 0.0, 0.1, also=wide.alternatives, max_seconds=0.0)
    assert stolen.characteristic_time == 0.0


# --- interruptions and presentation


def test_interruption_returns_a_valid_bound():
    mdp = SMALL["linear"]()
    seen = []

    def impatient(progress: bp.bounds.Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            raise KeyboardInterrupt

    bound = lower_bound(mdp, 0.0, 0.05, callback=impatient)
    assert bound.interrupted
    assert "user" in bound.reason
    assert bound.characteristic_time == pytest.approx(seen[-1].characteristic_time)
    assert bound.characteristic_time > 0
    assert_valid(mdp, bound)
    full = lower_bound(mdp, 0.0, 0.05)
    assert bound.characteristic_time <= full.characteristic_time
    assert not full.interrupted


def test_time_limit_returns_a_valid_bound():
    mdp = random_mdp(0, states=30, actions=4, dimension=6, discount=0.9)
    bound = lower_bound(mdp, 0.0, 0.05, max_seconds=0.3)
    assert bound.interrupted
    assert bound.reason == "time limit"
    assert bound.seconds < 10
    assert lower_bound(mdp, 0.0, 0.05, max_seconds=0.0).samples_lower_bound == 0.0


def test_an_episodic_search_that_runs_out_of_time_or_patience():
    mdp = bp.instances.load("simplex-episodic")
    full = lower_bound(mdp, 0.0, 0.05)
    limited = lower_bound(mdp, 0.0, 0.05, max_seconds=0.2)
    assert limited.interrupted
    assert limited.reason == "time limit"

    def impatient(progress: bp.bounds.Progress) -> None:
        raise KeyboardInterrupt

    broken_off = lower_bound(mdp, 0.0, 0.05, callback=impatient)  # long before the search for rounds
    assert broken_off.rounds_lower_bound > 0
    for bound in (limited, broken_off):
        assert bound.samples_lower_bound <= full.samples_lower_bound * 1.01
        assert bound.rounds_lower_bound <= full.rounds_lower_bound * 1.01
        assert bound.samples_lower_bound <= 3 * bound.rounds_lower_bound * (1 + 1e-9)
    # Weighed anew, what an earlier search found is worth as much as then, for both bounds.
    again = lower_bound(mdp, 0.0, 0.05, also=full.every_alternative, max_seconds=0.0)
    assert again.characteristic_time == pytest.approx(full.characteristic_time, rel=1e-6)
    assert again.characteristic_rounds == pytest.approx(full.characteristic_rounds, rel=1e-6)


def test_summary_is_json_and_the_prediction_is_above_the_bound():
    mdp = bp.instances.load("two-state")
    bound = lower_bound(mdp, 0.1, 0.05, tolerance=0.05)
    summary, rows = summarise(mdp, bound), table_rows(mdp, bound)
    assert json.loads(json.dumps(summary)) == summary
    assert {
        "characteristic_time",
        "allocation",
        "samples_lower_bound",
        "alternatives",
        "upper",
        "predicted",
        "assumptions",
    } <= set(summary)
    assert summary["alternatives"]["closest"]["state"] in (0, 1)
    assert summary["predicted"]["gss"] > summary["samples_lower_bound"]
    assert rows[0].ratio == 1.0
    assert all(row.ratio > 1 for row in rows[1:4])
    tied = lower_bound(arms([0.5, 0.5]), 0.0, 0.1)
    assert summarise(arms([0.5, 0.5]), tied)["predicted"] == {"gss": None}


def test_summary_says_for_which_algorithms_a_bound_holds():
    mdp = SMALL["episodic"]()
    bound = lower_bound(mdp, 0.0, 0.05, tolerance=0.05)
    summary, rows = summarise(mdp, bound), table_rows(mdp, bound)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["samples_lower_bound"] < summary["calls_per_round"] * summary["rounds_lower_bound"]
    assert summary["calls_per_round"] == 3
    assert "any algorithm" in summary["scopes"]["samples_lower_bound"]
    assert "equally often" in summary["scopes"]["rounds_lower_bound"]
    assert summary["characteristic_rounds"] <= summary["upper"]
    free, in_rounds = rows[:2]
    assert (free.what, free.samples, free.ratio) == ("any algorithm, at least", bound.samples_lower_bound, 1.0)
    assert in_rounds.what == "any that samples in rounds, at least"
    assert in_rounds.samples == pytest.approx(3 * bound.rounds_lower_bound)
    assert in_rounds.ratio == pytest.approx(in_rounds.samples / free.samples)
    assert "equally often" in in_rounds.note
    discounted = arms([0.5, 0.4])
    assert not any("rounds" in row.what for row in table_rows(discounted, lower_bound(discounted, 0.0, 0.1)))


def test_runs_need_more_than_the_bound():
    mdp = bp.instances.load("two-state")
    bounds = lower_bounds(mdp, [0.1, 0.5], 0.1, tolerance=0.05)
    for bound in bounds:
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=bound.epsilon, delta=0.1, algorithm="gss", seed=0)
        assert result.samples > bound.samples_lower_bound


@pytest.mark.parametrize("name", ["two-state", "episodic masked"])
def test_figure(name, tmp_path):
    mdp = SMALL[name]()
    bound = lower_bound(mdp, 0.0, 0.05, tolerance=0.5)
    figure = bounds_figure(mdp, bound)
    assert len(figure.axes) == 3
    assert "at least" in figure.axes[0].get_title("left")
    figure.savefig(tmp_path / "bounds.png")
    title = figure.axes[0].get_title("left")
    assert f"{bound.samples_lower_bound:,.0f} samples" in title
    shares = [bar.get_height() for bar in figure.axes[0].patches]
    assert sum(shares) == pytest.approx(1.0)  # over all steps
    empty = replace(bound, any_sampling=replace(bound.any_sampling, alternatives=(), weights=np.zeros(0)))
    assert len(bounds_figure(mdp, empty).axes) == 1
    assert str(bound.closest.state) in bound.closest.describe()
