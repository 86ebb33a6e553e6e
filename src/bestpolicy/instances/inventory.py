"""Stock control: what matters is the stock after the order.

In the evening s items are in stock. An order of a items arrives overnight and brings the stock to y = s + a,
at most N; by the next evening a Poisson demand D has taken min(D, y) of them. Both the next stock and the
sales depend on y alone, and the order costs c per item, which is linear in y and s:

    r(s, a) = r₀ + (price · E min(D, y) - holding · y)/N - c (y - s) .

So the model is linear in φ(s, a) = (e_y, ρ s/N)/√(1 + ρ²), ρ² = 1/(N + 1), with d = N + 2 whatever the number
of orders. (The demand beyond N - 1 is lumped together: no more can be sold.) The features are neither one-hot
nor in a simplex, and there are no anchors. Prices are small fractions of 1, so values are flat and the gaps
small.
"""

from __future__ import annotations

import numpy as np
from scipy.special import pdtr

from bestpolicy._numerics.inputs import require_fraction, require_positive
from bestpolicy.instances.arithmetic import product
from bestpolicy.instances.construction import model_of, problem_of, require_room, require_sizes
from bestpolicy.mdp import LinearMDP


def inventory(
    *,
    capacity: int = 10,
    largest_order: int = 5,
    demand: float = 3.0,
    price: float = 0.6,
    holding_cost: float = 0.2,
    order_cost: float | None = None,
    base_reward: float = 0.3,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "inventory",
) -> LinearMDP:
    """Return a stock-control model with Poisson demand and lost sales.

    State s is the stock before the order, action a the order. Orders that do not fit, s + a > N, are not
    allowed.

    Parameters
    ----------
    capacity : int
        N, the largest stock.
    largest_order : int
        Orders are 0, 1, …, up to this one.
    demand : float
        Mean of the Poisson demand.
    price, holding_cost : float
        For N items sold or kept.
    order_cost : float, optional
        For one item; 0.4/N by default.
    base_reward : float
        r₀, a constant that keeps the rewards within [0, 1].
    discount, horizon
        At most one of them; discount 0.8 by default. With a horizon the same model repeats at every step.
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, capacity=capacity, largest_order=largest_order)
    require_room("capacity or largest_order", (capacity + 2) ** 2 * (largest_order + 1))
    require_positive(demand=demand)
    cost = 0.4 / capacity if order_cost is None else order_cost
    require_fraction(price=price, holding_cost=holding_cost, order_cost=cost, base_reward=base_reward)
    stock, orders = np.arange(capacity + 1), np.arange(largest_order + 1)
    filled = stock[:, None] + orders
    weight = np.sqrt(1 / (capacity + 1))
    norm = np.sqrt(1 + weight**2)
    features = np.zeros((len(stock), len(orders), capacity + 2))
    features[..., :-1] = np.minimum(filled, capacity)[..., None] == stock
    features[..., -1] = weight * stock[:, None] / capacity
    problem = problem_of(features / norm, discount, horizon, 0.8, mask=filled <= capacity)
    demanded = np.diff(pdtr(stock[:-1], demand), prepend=0.0, append=1.0)
    sold = np.minimum.outer(stock, stock)  # (filled stock, demand)
    mu = np.zeros((capacity + 1, capacity + 2))
    np.add.at(mu, (stock[:, None] - sold, stock[:, None]), demanded)
    by_filled = base_reward + (price * product(sold, demanded) - holding_cost * stock) / capacity - cost * stock
    theta = np.append(by_filled, cost * capacity / weight)
    return model_of(problem, [norm * theta], [norm * mu], name)
