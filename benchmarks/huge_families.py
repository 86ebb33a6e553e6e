"""Families whose states cannot be listed: inventories of one and two products, and three queues (10⁶ states).

The law at a general pair is the mixture of the nodes' laws with the hats' weights, so that the features are exact; only
nodes are simulated.
"""

from __future__ import annotations

import numpy as np

import bestpolicy as bp

ORDERS = np.array([(a, b) for a in (0.0, 2.5, 5.0) for b in (0.0, 2.5, 5.0) if a + b <= 7.5])
PRICES, HOLDING, COSTS, FIXED = np.array([1.0, 1.3]), np.array([0.06, 0.08]), np.array([0.45, 0.6]), 0.6
SHAPES, SCALES, LARGEST = np.array([2.0, 4.0]), np.array([1.6, 0.7]), 8.0
INVENTORY_RANGE = (-(2.5 * 0.45 + 5 * 0.6 + FIXED) - 1.4, LARGEST * 2.3)

ROUTES = [(queue, effort) for queue in range(3) for effort in (0, 1)]
WEIGHTS, SERVICES = np.array([1.0, 1.4, 2.0]), np.array([9.0, 7.0, 5.0])
LONGEST, EFFORT = 99.0, 0.06


def after_order(states, actions):
    """Stock after an order; what does not fit is lost."""
    return np.minimum(states + ORDERS[actions], 10.0)


def order_cost(states, actions):
    """Minus what an order costs."""
    return -(ORDERS[actions] @ COSTS + FIXED * ORDERS[actions].any(axis=1))


def sell(points, rng):
    """Demands, sales and holding costs from a stock."""
    demand = np.minimum(rng.gamma(SHAPES, SCALES, (len(points), 2)), LARGEST)
    sales = np.minimum(points, demand)
    left = points - sales
    return sales @ PRICES - left @ HOLDING, left


def inventory(grid: int, discount: float = 0.95, horizon: int | None = None):
    """Simulator of the inventory with grid x grid nodes."""
    hats = bp.features.Hats([np.linspace(0, 10, grid)] * 2, point=after_order)
    time = {"discount": discount} if horizon is None else {"horizon": horizon}
    problem = bp.FeatureProblem(
        hats, actions=len(ORDERS), known_reward=order_cost, known_best=(0, 0), remainder=(-1.4, 18.4), **time
    )

    def step(states, actions, rng):
        rewards, left = sell(_mixed(hats, states, actions, rng), rng)
        return rewards + order_cost(states, actions), left

    return bp.CallableSimulator(problem, step, vectorized=True, reward_range=INVENTORY_RANGE)


def one_product(grid: int, discount: float = 0.9):
    """Simulator of the first product alone, with orders of 0, 2.5, 5 and 7.5."""
    orders = 2.5 * np.arange(4)

    def after(states, actions):
        return np.minimum(states + orders[actions][:, None], 10.0)

    def cost(states, actions):
        return -(COSTS[0] * orders[actions] + FIXED * (actions > 0))

    hats = bp.features.Hats([np.linspace(0, 10, grid)], point=after)
    problem = bp.FeatureProblem(
        hats, actions=4, discount=discount, known_reward=cost, known_best=(0, 0), remainder=(-0.6, LARGEST)
    )

    def step(states, actions, rng):
        points = _mixed(hats, states, actions, rng)
        sales = np.minimum(points, np.minimum(rng.gamma(SHAPES[0], SCALES[0], points.shape), LARGEST))
        left = points - sales
        return (PRICES[0] * sales - HOLDING[0] * left)[:, 0] + cost(states, actions), left

    lowest = -(7.5 * COSTS[0] + FIXED) - 0.6
    return bp.CallableSimulator(problem, step, vectorized=True, reward_range=(lowest, LARGEST))


def after_route(states, actions):
    """Lengths after a batch of 9 was routed to a queue, with extra effort or not."""
    queue, effort = np.array(ROUTES)[actions].T
    points = states - 6.0 * effort[:, None]
    points[np.arange(len(states)), queue] += 9.0
    return np.clip(points, 0.0, LONGEST)


def effort_cost(states, actions):
    """Minus what extra effort costs."""
    return -EFFORT * np.array(ROUTES)[actions][:, 1]


def serve(points, rng):
    """Arrivals, services and holding costs."""
    following = np.clip(points + rng.poisson(3.0, points.shape) - rng.poisson(SERVICES, points.shape), 0.0, LONGEST)
    return 1.0 - following @ WEIGHTS / (LONGEST * WEIGHTS.sum()), following


def queues(grid: int, discount: float = 0.95):
    """Simulator of the network with grid x grid x grid nodes."""
    axis = np.rint(np.linspace(0, LONGEST, grid))
    hats = bp.features.Hats([axis] * 3, point=after_route)
    problem = bp.FeatureProblem(
        hats, actions=6, discount=discount, known_reward=effort_cost, known_best=(0, 0), remainder=(0, 1)
    )

    def step(states, actions, rng):
        rewards, following = serve(_mixed(hats, states, actions, rng), rng)
        return rewards + effort_cost(states, actions), following

    return bp.CallableSimulator(problem, step, vectorized=True, reward_range=(-EFFORT, 1.0), step_from=serve)


def hill(grid: int = 6, discount: float = 0.8):
    """A car on a hill, as in docs/how-to/unlisted-states.md: its goal has an edge that grid x grid nodes do not see."""

    def drive(states, actions, rng):
        position, velocity = states.T.copy()
        for _ in range(4):
            push = 0.0015 * (actions - 1) * (1 + 0.5 * rng.standard_normal(len(position)))
            velocity = np.clip(velocity + push - 0.0025 * np.cos(3 * position), -0.07, 0.07)
            position = np.clip(position + velocity, -1.2, 0.6)
            velocity = np.where((position <= -1.2) & (velocity < 0), 0.0, velocity)
        there = position >= 0.5
        position, velocity = np.where(there, -0.5, position), np.where(there, 0.0, velocity)
        return there.astype(float), np.stack([position, velocity], axis=1)

    axes = [np.linspace(-1.2, 0.6, grid), np.linspace(-0.07, 0.07, grid)]
    maps = bp.features.Blocks([bp.features.Hats(axes)] * 3)
    return bp.CallableSimulator(bp.FeatureProblem(maps, actions=3, discount=discount), drive, vectorized=True)


def _mixed(hats, states, actions, rng):
    """A node drawn with the hats' weights."""
    index, weight = hats.weights(states, actions)
    chosen = (np.cumsum(weight, axis=1) < rng.random((len(states), 1))).sum(axis=1).clip(max=index.shape[1] - 1)
    return hats.nodes[index[np.arange(len(states)), chosen]]
