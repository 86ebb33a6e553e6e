"""An inventory with room for 60 units, and hats over the stock after the order as its features."""

from __future__ import annotations

import numpy as np

import bestpolicy as bp

ROOM, ORDERS = 60, np.arange(0, 21, 5)
EXACT = np.arange(ROOM + 1)  # a knot at every stock: what follows an order depends on the stock after it alone
COARSE = np.linspace(0, ROOM, 4)


def step(stock, order, rng):
    after = stock + ORDERS[order]
    sold = np.minimum(after, rng.integers(0, 11, len(stock)))
    return sold - 0.2 * (after - sold), after - sold


def hats(knots) -> bp.CallableSimulator:
    after = np.add.outer(np.arange(ROOM + 1), ORDERS)
    features = np.stack([np.interp(after, knots, hat) for hat in np.eye(len(knots))], axis=-1)
    problem = bp.Problem(features, discount=0.8, mask=after <= ROOM)
    return bp.CallableSimulator(problem, step, vectorized=True, reward_range=(-12.0, 10.0))


def true_loss(policy) -> float:
    """What a policy loses in the worst state, in units of sold goods."""
    after = np.add.outer(np.arange(ROOM + 1), ORDERS)
    demand = np.arange(11)
    sold = np.minimum(after[..., None], demand)
    rewards = (sold - 0.2 * (after[..., None] - sold)).mean(axis=-1)
    chances = np.zeros((*after.shape, ROOM + 1))
    for state, order in np.argwhere(after <= ROOM):
        np.add.at(chances[state, order], after[state, order] - sold[state, order], 1 / 11)
    own = np.arange(ROOM + 1)
    best = np.zeros(ROOM + 1)
    for _ in range(200):
        best = np.where(after <= ROOM, rewards + 0.8 * chances @ best, -np.inf).max(axis=1)
    values = np.linalg.solve(np.eye(ROOM + 1) - 0.8 * chances[own, policy], rewards[own, policy])
    return float((best - values).max())
