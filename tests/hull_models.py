"""Small problems whose states are not listed, with the truth known: hats are exact, demands have five values."""

from __future__ import annotations

import numpy as np

import bestpolicy as bp

DEMANDS, CHANCES = np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.1, 0.2, 0.3, 0.3, 0.1])
ORDERS = np.array([0.0, 2.0, 4.0])
GRID = np.linspace(0, 8, 5)


def after_order(states, actions):
    return np.minimum(states + ORDERS[actions][:, None], 8.0)


def cost(states, actions):
    return -(0.05 * ORDERS[actions] + 0.05 * (actions > 0))


def sold(points, demand):
    """What is earned, and what is left."""
    sales = np.minimum(points, demand)
    left = points - sales
    return 0.2 * sales - 0.01 * left, left


HATS = bp.features.Hats([GRID], point=after_order)


def step(states, actions, rng):
    """A node drawn with the hats' weights, a demand: the features are exact."""
    index, weight = HATS.weights(states, actions)
    chosen = (np.cumsum(weight, axis=1) < rng.random((len(states), 1))).sum(axis=1).clip(max=1)
    points = HATS.nodes[index[np.arange(len(states)), chosen], 0]
    rewards, left = sold(points, rng.choice(DEMANDS, len(states), p=CHANCES))
    return rewards + cost(states, actions), left[:, None]


def problem(**time):
    return bp.FeatureProblem(
        HATS, actions=3, known_reward=cost, known_best=(0, 0), remainder=(-0.08, 0.8), **(time or {"discount": 0.8})
    )


def simulator(**time):
    return bp.CallableSimulator(problem(**time), step, vectorized=True, reward_range=(-0.33, 0.8))


def true_vectors(model, policy=None, rounds=400):
    """ξ of V*, or of V^π for a policy's vectors (stages, d), by expectations over demands; in units of [0, 1]."""
    known, d = model.problem, len(GRID)
    points = np.repeat(GRID, len(DEMANDS))
    rewards, left = sold(points, np.tile(DEMANDS, d))
    rewards = (rewards - model.units.reward_offset) / model.units.reward_scale
    choices = known.choices(left[:, None])

    def backed(vector, played):
        if vector is None:
            values = np.zeros(len(left))
        elif played is None:
            values = choices.best(vector[:, None])[:, 0]
        else:
            rows = choices.greedy(played)
            values = choices.known[rows] + choices.features[rows] @ vector
        return (rewards + known.continuation * values).reshape(d, -1) @ CHANCES

    if known.horizon is None:
        vector = np.zeros(d)
        for _ in range(rounds):
            vector = backed(vector, None if policy is None else policy[0])
        return vector[None]
    vectors, following = np.zeros((known.stages, d)), None
    for stage in reversed(range(known.stages)):
        last = stage + 1 == known.stages
        vectors[stage] = backed(following, None if policy is None or last else policy[stage + 1])
        following = vectors[stage]
    return vectors


def truth(model, result, states):
    """V^π and V* in some states at the first step, in the user's units, (n, 2)."""
    known, units = model.problem, model.units
    best, own = true_vectors(model), true_vectors(model, result.policy.vectors)
    choices = known.choices(states)
    rows = choices.greedy(result.policy.vectors[0])
    values = np.stack([choices.known[rows] + choices.features[rows] @ own[0], choices.best(best[0][:, None])[:, 0]], 1)
    return values * units.reward_scale + units.reward_offset * known.value_limits[0]
