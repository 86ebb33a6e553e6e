"""Several right answers: groups of them, and what it takes to verify one, against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from time import monotonic

import numpy as np
import pytest
from benchmarks.samples import BANDITS, bandit
from scipy.optimize import minimize_scalar

import bestpolicy as bp
from bestpolicy.bounds import lower_bound, verification_floor
from bestpolicy.bounds.alternatives import Verifier
from bestpolicy.bounds.groups import answers, covers, grouped_level, largest_probability
from bestpolicy.bounds.lower import _searched
from bestpolicy.bounds.membership import Reference
from bestpolicy.bounds.tables import Truth

KNOWN_TIMES = {"four arms": 989.8, "five arms": 326.6}  # Garivier and Kaufmann 2016


def kl(p, q):
    return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def cost(first, second, epsilon, weights):
    """Least weighted divergence of two arms' means from ones that differ by more than ε, the second being better."""

    def at(x):
        return weights[0] * kl(first, x) + weights[1] * kl(second, x + epsilon)

    return minimize_scalar(at, bounds=(1e-6, 1 - epsilon - 1e-6), method="bounded", options={"xatol": 1e-10}).fun


def verifying_time(means, arm, epsilon):
    """T(¬arm) of a bandit: some other arm is better by more than ε. Brute force over allocations."""
    others = [j for j in range(len(means)) if j != arm]
    best = 0.0
    for own in np.linspace(0.2, 0.6, 21):
        for share in np.linspace(0.5, 1.0, 26) if len(others) == 2 else [1.0]:
            shares = [share, 1 - share][: len(others)]
            rest = (1 - own) * np.array(shares)
            if (rest <= 0).any():
                continue
            pairs = zip(others, rest, strict=True)
            best = max(best, min(cost(means[arm], means[j], epsilon, (own, w)) for j, w in pairs))
    return 1 / best


def arms(means):
    return bp.instances.tabular(np.ones((1, len(means), 1)), [means], discount=0.01)


@pytest.mark.parametrize("name", BANDITS)
def test_published_bandits_have_the_published_times(name):
    assert lower_bound(bandit(name), 0.0, 0.05).characteristic_time == pytest.approx(KNOWN_TIMES[name], rel=1e-3)


@pytest.mark.parametrize(("means", "epsilon"), [((0.6, 0.55), 0.1), ((0.6, 0.55, 0.3), 0.1)])
def test_verifying_an_arm_takes_what_brute_force_says(means, epsilon):
    mdp = arms(means)
    asked = epsilon / 0.99  # a loss of ε a step
    bound = lower_bound(mdp, asked, 1e-6, max_seconds=120.0)
    times = [verifying_time(means, arm, epsilon) for arm in range(2)]
    for arm, time in enumerate(times):
        floor = verification_floor(mdp, [arm], asked)
        assert floor.characteristic_time <= time * (1 + 1e-2)
        assert floor.characteristic_time == pytest.approx(time, rel=3e-2)
    (grouping, *_) = bound.groupings
    assert grouping.times == pytest.approx(times, rel=3e-2)
    assert bound.asymptotic_time == pytest.approx(min(times), rel=3e-2)
    assert bound.samples_lower_bound == max(bound.grouped_samples, replace(bound, groupings=()).samples_lower_bound)


def test_the_grouped_bound_is_what_the_best_distribution_over_answers_needs():
    delta = 0.01
    grid = np.linspace(0.0, 1.0, 121)[1:]
    for times in ((3.0, 3.0), (1.0, 20.0), (5.0, 7.0, 30.0)):
        costs = [np.where(grid > delta, kl(np.clip(grid, 1e-9, 1 - 1e-12), delta), 0.0) * time for time in times]
        if len(times) == 2:
            total, worst = grid[:, None] + grid, np.maximum(costs[0][:, None], costs[1])
        else:
            total = grid[:, None, None] + grid[:, None] + grid
            worst = np.maximum(np.maximum(costs[0][:, None, None], costs[1][:, None]), costs[2])
        brute = worst[total >= 1 - delta].min()
        assert grouped_level(times, delta) == pytest.approx(brute, rel=5e-2)
        assert grouped_level(times, delta) <= brute + 1e-9


def test_no_level_without_confidence_or_with_too_many_groups():
    assert grouped_level((10.0, 10.0), 0.5) == 0.0
    assert grouped_level((10.0,) * 20, 0.05) == 0.0  # every group may be answered with probability δ
    assert largest_probability(100.0, 0.05) == 1.0


def near_tied() -> bp.LinearMDP:
    rng = np.random.default_rng(3)
    rewards = np.array([[0.5, 0.49], [0.4, 0.7], [0.6, 0.59]])
    return bp.instances.tabular(rng.dirichlet(np.ones(3), size=(3, 2)), rewards, discount=0.7)


def test_covers_cover_and_their_members_are_bad_in_every_alternative():
    mdp, epsilon = near_tied(), 0.15
    reference = Reference(Truth(mdp).table, epsilon)
    good = [policy for policy in product((0, 1), repeat=3) if mdp.is_near_optimal(np.array(policy), epsilon)]
    assert len(good) > 1
    found = answers(reference, reference.actions)
    assert found is not None
    assert sorted(tuple(policy[0]) for policy in found) == sorted(good)
    for _, sets in covers(reference):
        members = [[policy for policy in good if within[0][np.arange(3), policy].all()] for within in sets]
        assert sorted(policy for group in members for policy in group) == sorted(good)
        for within, group in zip(sets, members, strict=True):
            verifier = Verifier(mdp, epsilon, within=within)
            for alternative in alternatives_of(mdp, epsilon, within):
                model = alternative.model(mdp)
                assert not any(model.is_near_optimal(np.array(policy), epsilon) for policy in group)
                assert verifier.adopt(alternative) is not None
                assert Verifier(mdp, epsilon).adopt(alternative) is None  # it says nothing about the other answers


def alternatives_of(mdp, epsilon, within):
    return _searched(mdp, epsilon, 0.05, "bernoulli", (), 0.2, monotonic() + 1, None, within).alternatives


def test_single_answers_take_more_than_all_together():
    mdp, epsilon = near_tied(), 0.15
    bound = lower_bound(mdp, epsilon, 1e-6, max_seconds=60.0)
    assert bound.groupings
    for grouping in bound.groupings:
        assert min(grouping.times) >= bound.characteristic_time
    assert bound.asymptotic_time > bound.characteristic_time


def test_only_answers_can_be_verified():
    mdp = near_tied()
    with pytest.raises(bp.InvalidInput, match="lose at most ε"):
        verification_floor(mdp, [0, 0, 0], 0.01)
    with pytest.raises(bp.InvalidInput, match="shape"):
        verification_floor(mdp, [0, 0], 0.01)
