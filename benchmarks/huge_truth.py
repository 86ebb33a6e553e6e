"""What a policy of the families really loses, by a fine lattice that shares nothing with the library.

They are products of one-dimensional laws between decisions: from a node p of the grid coordinate i moves to y with
probability P_i[p, y] on a lattice of m points (all 100 lengths of a queue; 401 stocks, onto which the law of what is
left is projected by linear interpolation). A general point is a mixture of nodes with the weights of its hats, also
one coordinate after the other. So values of nodes X solve X = r + γ(P_1 ⊗ P_2 …)V, V(s) = max_a(cost_a + the
interpolation of X at the point after action a), on a lattice of m^k states. Iterations are ended by MacQueen's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import gamma, poisson

from benchmarks import huge_families as families

FINE = 401  # stocks of a product
EXACT = 1e-5  # of L: how exactly values are found


@dataclass(frozen=True, eq=False)
class Lattice:
    """A family on its lattice.

    Attributes
    ----------
    lines : list of arrays (m,)
        Coordinates of the lattice.
    nodes : list of arrays (g,)
        Of the hats.
    laws : list of arrays (g, m)
        P_i.
    rewards : array (g, g, …)
        Mean rewards of the nodes without their known part.
    costs : array (A,)
        Known rewards.
    moves : list of lists of int arrays (m,)
        Where action a takes each coordinate, as places of the lattice.
    discount : float
    """

    lines: list[Any]
    nodes: list[Any]
    laws: list[Any]
    rewards: Any
    costs: Any
    moves: list[list[Any]]
    discount: float

    @property
    def states(self):
        """All states, (m^k, k)."""
        return np.stack([each.reshape(-1) for each in np.meshgrid(*self.lines, indexing="ij")], axis=1)

    def values(self, actions=None):
        """V* on the lattice, or the values of a policy's actions there."""
        hats = [_hats(line, nodes) for line, nodes in zip(self.lines, self.nodes, strict=True)]
        if actions is not None:
            actions = np.reshape(actions, [len(line) for line in self.lines])
        found, far = self.rewards / (1 - self.discount), self.discount / (1 - self.discount)
        while True:
            on_lattice = _contracted(hats, found)
            best = np.full(on_lattice.shape, -np.inf)
            for a, moves in enumerate(self.moves):
                after = self.costs[a] + on_lattice[np.ix_(*moves)]
                best = np.maximum(best, after) if actions is None else np.where(actions == a, after, best)
            new = self.rewards + self.discount * _contracted(self.laws, best)
            low, high = float((new - found).min()), float((new - found).max())
            if far * (high - low) <= EXACT * np.ptp(self.rewards) / (1 - self.discount):
                return best + far * (low + high) / 2 / self.discount
            found = new + far * (low + high) / 2


def loss(lattice: Lattice, policy) -> float:
    """The largest V* - V^π on the lattice."""
    states = lattice.states
    actions = np.concatenate([policy(part) for part in np.array_split(states, max(1, len(states) // 10**5))])
    return float((lattice.values() - lattice.values(actions)).max())


def inventory(grid: int, discount: float = 0.95) -> Lattice:
    """The lattice of `huge_families.inventory`; orders are whole multiples of its step."""
    line, nodes = np.linspace(0, 10, FINE), np.linspace(0, 10, grid)
    laws = [_left(line, nodes, gamma(a, scale=b)) for a, b in zip(families.SHAPES, families.SCALES, strict=True)]
    earned = [
        price * (nodes - law @ line) - holding * (law @ line)
        for price, holding, law in zip(families.PRICES, families.HOLDING, laws, strict=True)
    ]
    steps = np.rint(families.ORDERS * (FINE - 1) / 10).astype(int)
    moves = [[np.minimum(np.arange(FINE) + step, FINE - 1) for step in order] for order in steps]
    costs = -(families.ORDERS @ families.COSTS + families.FIXED * families.ORDERS.any(axis=1))
    return Lattice([line] * 2, [nodes] * 2, laws, earned[0][:, None] + earned[1], costs, moves, discount)


def one_product(grid: int, discount: float = 0.9) -> Lattice:
    """The lattice of `huge_families.one_product`."""
    line, nodes = np.linspace(0, 10, FINE), np.linspace(0, 10, grid)
    law = _left(line, nodes, gamma(families.SHAPES[0], scale=families.SCALES[0]))
    earned = families.PRICES[0] * (nodes - law @ line) - families.HOLDING[0] * (law @ line)
    orders = 2.5 * np.arange(4)
    moves = [[np.minimum(np.arange(FINE) + int(order * (FINE - 1) / 10), FINE - 1)] for order in orders]
    costs = -(families.COSTS[0] * orders + families.FIXED * (orders > 0))
    return Lattice([line], [nodes], [law], earned, costs, moves, discount)


def queues(grid: int, discount: float = 0.95) -> Lattice:
    """The lattice of `huge_families.queues`: all of its states."""
    line = np.arange(families.LONGEST + 1)
    nodes = np.rint(np.linspace(0, families.LONGEST, grid))
    laws = [_served(line, nodes, service) for service in families.SERVICES]
    held = [weight * (law @ line) for weight, law in zip(families.WEIGHTS, laws, strict=True)]
    total = held[0][:, None, None] + held[1][:, None] + held[2]
    rewards = 1 - total / (families.LONGEST * families.WEIGHTS.sum())
    moves = [
        [np.clip(np.arange(len(line)) + 9 * (i == queue) - 6 * effort, 0, len(line) - 1) for i in range(3)]
        for queue, effort in families.ROUTES
    ]
    costs = np.array([-families.EFFORT * effort for _, effort in families.ROUTES])
    return Lattice([line] * 3, [nodes] * 3, laws, rewards, costs, moves, discount)


def _contracted(matrices, tensor):
    """Apply a matrix to each axis."""
    for axis, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, axis)), 0, axis)
    return tensor


def _hats(line, nodes):
    """Weights of the nodes at the points of a line, (m, g)."""
    return np.stack([np.interp(line, nodes, unit) for unit in np.eye(len(nodes))], axis=1)


def _left(line, nodes, demand):
    """Law of what is left of each node's stock, projected onto the line, (g, m): E of the line's hat functions."""
    fine = np.linspace(0, 10, 50 * (len(line) - 1) + 1)
    law = np.empty((len(nodes), len(line)))
    for i, stock in enumerate(nodes):
        # P(left ≤ y) = P(demand ≥ stock - y), demand cut at LARGEST
        below = np.where(fine >= stock, 1.0, np.where(stock - fine > families.LARGEST, 0.0, demand.sf(stock - fine)))
        area = np.concatenate([[0.0], np.cumsum((below[1:] + below[:-1]) / 2)])[::50] / 50  # ∫P(left ≤ y)dy / step
        rising = np.diff(area, prepend=0.0, append=area[-1] + 1.0)
        law[i] = np.diff(rising)
    return law


def _served(line, nodes, service):
    """Law of a queue's length after arrivals and services, (g, m)."""
    many = np.arange(60)
    change = np.convolve(poisson.pmf(many, 3.0), poisson.pmf(many, service)[::-1])  # from -59 on
    law = np.zeros((len(nodes), len(line)))
    for i, length in enumerate(nodes):
        np.add.at(law[i], np.clip(int(length) + np.arange(len(change)) - 59, 0, len(line) - 1), change)
    return law / law.sum(axis=1, keepdims=True)
