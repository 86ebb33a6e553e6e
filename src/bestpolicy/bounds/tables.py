"""Models as plain tables: the layer in which alternatives are verified, apart from the algebra that found them.

A `Table` holds mean rewards and rows of transition probabilities. It is planned with dense S×S solves and with the
set of actions restricted state by state, which is what tests on sets of policies need. Every value comes with a
rigorous error: in a model whose rows are distributions |V - V*| ≤ ρ/(1-γ) for the residual ρ of the Bellman equation
(episodic: the sum of the residuals), and the rounding errors of ρ itself are added.

A `Truth` is the model whose samples are being counted, with rows free of rounding dirt exactly as the simulator draws
them. Other models are written as M + (dθ, dμ): small changes keep all their digits, and every M + (dθ, dμ) is linear
in the features by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem

_DIRT = 1e-13  # probabilities below this are rounding errors of a zero
_MAX_IMPROVEMENTS = 200
_LARGEST = 4e7


@dataclass(frozen=True, eq=False)
class Table:
    """Rewards and transition rows of a model.

    Attributes
    ----------
    problem : Problem
    rewards : array (stages, S, A)
    rows : array (stages, S, A, S)
        Zeros where the action is not allowed.
    """

    problem: Problem
    rewards: FloatArray
    rows: FloatArray

    @property
    def everything(self) -> BoolArray:
        """All allowed actions, (stages, S, A)."""
        return np.broadcast_to(self.problem.mask, self.rewards.shape)


@dataclass(frozen=True, eq=False)
class Solution:
    """Optimal values over a product set of policies.

    Attributes
    ----------
    values : array (stages, S)
        The largest value of a policy that uses only the given actions.
    q_values : array (stages, S, A)
        r + γ p·values for every action of the problem, also those outside the set; -inf where not allowed at all.
    policy : int array (stages, S)
    error : float
        Bound on the error of `values` and `q_values`, rounding included.
    """

    values: FloatArray
    q_values: FloatArray
    policy: IntArray
    error: float


def solve(table: Table, actions: BoolArray, start: IntArray | None = None) -> Solution:
    """Plan with the actions (stages, S, A) that are in the set; only speed depends on `start`."""
    problem = table.problem
    if problem.horizon is None:
        values, q_values, policy = _policy_iteration(table, actions[0], None if start is None else start[0])
    else:
        values, q_values, policy = _backward_induction(table, actions)
    achieved = np.where(actions, q_values, -np.inf).max(axis=2)
    residuals = np.abs(achieved - values).max(axis=1) + _rounding(problem)
    error = float(residuals.sum() * (1.0 if problem.discount is None else problem.value_limits[0]))
    return Solution(values, q_values, policy, error)


def evaluate(table: Table, policy: IntArray) -> Solution:
    """Evaluate one policy (stages, S)."""
    actions = np.zeros((table.problem.stages, *table.problem.mask.shape), dtype=np.bool_)
    np.put_along_axis(actions, policy[:, :, None], True, axis=2)
    return solve(table, actions, policy)


def occupancy(table: Table, policy: IntArray, stage: int, state: int) -> FloatArray:
    """Discounted expected visits to each state and stage under a policy started at (stage, state), (stages, S)."""
    problem, everywhere = table.problem, np.arange(table.problem.states)
    visits = np.zeros((problem.stages, problem.states))
    if problem.horizon is None:
        kernel = table.rows[0][everywhere, policy[0]]
        visits[0, state] = 1.0
        visits[0] = np.linalg.solve(np.eye(problem.states) - problem.continuation * kernel.T, visits[0])
        return visits
    visits[stage, state] = 1.0
    for h in range(stage + 1, problem.stages):
        visits[h] = visits[h - 1] @ table.rows[h - 1][everywhere, policy[h - 1]]
    return visits


def following_values(problem: Problem, values: FloatArray) -> FloatArray:
    """Values of the stage after each stage, (stages, S): V itself if discounted, V_{h+1} if episodic."""
    return values if problem.horizon is None else np.vstack([values[1:], np.zeros((1, problem.states))])


class Truth:
    """The model whose samples are being counted.

    Attributes
    ----------
    problem : Problem
    features : array (n, d)
        Of the allowed pairs.
    rewards : array (stages, n)
    rows : array (stages, n, S)
    table : Table
    toward_uniform : tuple of arrays (stages, d), (stages, S, d)
        The change that leads to the model with uniform transitions and rewards 1/2, which is linear in any features
        that admit a linear MDP, and lies inside of the set of models.
    """

    def __init__(self, mdp: LinearMDP) -> None:
        problem = mdp.problem
        entries = problem.stages * len(problem.pairs) * problem.states
        if entries > _LARGEST:
            raise InvalidInput(
                f"the model has {entries:.2g} transition probabilities; numeric lower bounds are computed for at most "
                f"{_LARGEST:.2g}. Try a smaller model of the same family."
            )
        self.problem = problem
        self.features = problem.pair_features
        rows = np.stack([mdp.transition_rows(problem.pairs, stage) for stage in range(problem.stages)])
        rows[rows < _DIRT] = 0.0
        self.rows: FloatArray = rows / rows.sum(axis=2, keepdims=True)
        rewards = np.clip(np.reshape(mdp.rewards, (problem.stages, -1))[:, problem.pairs], 0.0, 1.0)
        rewards[rewards < _DIRT] = 0.0
        rewards[rewards > 1 - _DIRT] = 1.0
        self.rewards: FloatArray = rewards
        total = mdp.mu.sum(axis=1)
        self.toward_uniform: tuple[FloatArray, FloatArray] = (
            total / 2 - mdp.theta,
            total[:, None, :] / problem.states - mdp.mu,
        )
        self.table = self._as_table(self.rewards, self.rows)

    def changed(self, theta_change: FloatArray, mu_change: FloatArray) -> Table:
        """Return the table of the model M + (dθ, dμ)."""
        return self._as_table(
            self.rewards + theta_change @ self.features.T,
            self.rows + self.features @ mu_change.transpose(0, 2, 1),
        )

    def on_pairs(self, values: FloatArray) -> FloatArray:
        """Spread values (stages, n) of the allowed pairs over (stages, S, A), zeros elsewhere."""
        problem = self.problem
        full = np.zeros((len(values), problem.mask.size, *values.shape[2:]))
        full[:, problem.pairs] = values
        return full.reshape(len(values), *problem.mask.shape, *values.shape[2:])

    def _as_table(self, rewards: FloatArray, rows: FloatArray) -> Table:
        return Table(self.problem, self.on_pairs(rewards), self.on_pairs(rows))


def _policy_iteration(
    table: Table, actions: BoolArray, start: IntArray | None
) -> tuple[FloatArray, FloatArray, IntArray]:
    problem, everywhere = table.problem, np.arange(table.problem.states)
    rewards, rows, gamma = table.rewards[0], table.rows[0], problem.continuation
    flat_rows = rows.reshape(-1, problem.states)
    policy = np.where(actions, rewards, -np.inf).argmax(axis=1) if start is None else start
    policy = np.where(actions[everywhere, policy], policy, actions.argmax(axis=1))
    hysteresis = _rounding(problem)  # changing one's mind for less could go on for ever
    for _ in range(_MAX_IMPROVEMENTS):
        system = np.eye(problem.states) - gamma * rows[everywhere, policy]
        values = np.linalg.solve(system, rewards[everywhere, policy])
        q_values = rewards + gamma * (flat_rows @ values).reshape(rewards.shape)
        restricted = np.where(actions, q_values, -np.inf)
        improved = restricted.max(axis=1) > restricted[everywhere, policy] + hysteresis
        if not improved.any():
            break
        policy = np.where(improved, restricted.argmax(axis=1), policy)
    return values[None], np.where(problem.mask, q_values, -np.inf)[None], policy[None].astype(np.int64)


def _backward_induction(table: Table, actions: BoolArray) -> tuple[FloatArray, FloatArray, IntArray]:
    problem = table.problem
    values = np.zeros((problem.stages + 1, problem.states))
    q_values = np.empty(table.rewards.shape)
    for stage in reversed(range(problem.stages)):
        q_values[stage] = table.rewards[stage] + table.rows[stage] @ values[stage + 1]
        values[stage] = np.where(actions[stage], q_values[stage], -np.inf).max(axis=1)
    q_values = np.where(problem.mask, q_values, -np.inf)
    policy = np.where(actions, q_values, -np.inf).argmax(axis=2).astype(np.int64)
    return values[:-1], q_values, policy


def _rounding(problem: Problem) -> float:
    """Bound the rounding error of one Bellman backup: a dot product of S terms below the value limit, and a sum."""
    return float(4 * (problem.states + 2) * np.finfo(np.float64).eps * problem.value_limits[0])
