"""Is M' an alternative? No policy may be ε-optimal in both M and M'; or no policy of a given set.

Only such an M' may enter a lower bound: the event "the answer is ε-optimal in M" is then likely under M and unlikely
under M'. It is not enough that π*_M is not ε-optimal in M', because an algorithm may answer with another policy of
Π_ε(M). Three tests, from cheap to strong; each is a proof, with a margin for the errors of the computation:

1. *One state.* π ∈ Π_ε(M) implies Σ_a π(a|s) g(s,a) ≤ ε for the gaps g = V* - Q* of M, and likewise g' for M'. If some
   state s and weight ν have (1-ν) g(s,a) + ν g'(s,a) > ε for every a, no distribution over actions satisfies both. This
   holds for stochastic policies as well.
2. *Restricted values.* Let N be the actions that some policy of Π_ε(M) may play. If the best policy within N loses more
   than ε in M' somewhere, the sets are disjoint. Deterministic policies; stochastic ones too if ε = 0, where N is the
   set of optimal actions and the test is exact.
3. *Branch and bound* over deterministic policies: a node keeps a set of actions for each state; the best policy of the
   node bounds all of them in either model, actions whose choice already loses more than ε are struck out, and what is
   left is split at one state. An empty tree is a proof. A policy found in both sets, or a spent node limit, is a "no".

In a discounted model π is ε-optimal if it loses at most ε from every state. In an episodic model only losses from the
first step count, so an action at step h matters as much as its state is certain to be reached: the least probability
of reaching it, over the policies of the node, is what weighs its loss. At ε = 0 any positive probability will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.bounds.tables import Solution, Table, evaluate, solve
from bestpolicy.errors import InvalidInput

_TILTS = 1 / (1 + np.exp(-np.linspace(-9.0, 9.0, 37)))


@dataclass(frozen=True)
class Certificate:
    """Proof that no policy is ε-optimal in both models.

    Attributes
    ----------
    test : {"one state", "restricted values", "branch and bound"}
    all_policies : bool
        Whether stochastic policies are covered; deterministic ones always are.
    epsilon : float
        The ε for which it was made; it holds for every smaller one.
    margin : float
        By how much the test was passed, beyond ε and beyond the errors of the computation (nan for the tree).
    stage, state : int
        Where.
    nodes : int
        Size of the tree.
    """

    test: str
    all_policies: bool
    epsilon: float
    margin: float
    stage: int
    state: int
    nodes: int = 0


class Reference:
    """What is known of Π_ε(M) before any alternative is looked at.

    Attributes
    ----------
    table : Table
    epsilon : float
    optimum : Solution
    actions : bool array (stages, S, A)
        N: an ε-optimal policy of M (deterministic if ε > 0) uses no other actions, except where it cannot matter.
    checkpoints : bool array (stages, S)
        Where a loss of more than ε in M' refutes every policy that uses N.
    incumbent : Solution
        Of the best policy that uses N.

    With actions `within` which alone count, N is what is left of it, and alternatives are models in which no policy of
    Π_ε(M) that uses these actions is ε-optimal: the same tests prove it (`groups`).
    """

    def __init__(self, table: Table, epsilon: float, within: BoolArray | None = None) -> None:
        problem = table.problem
        self.table, self.epsilon = table, epsilon
        self.optimum = solve(table, table.everything)
        if problem.horizon is not None and epsilon == 0:
            self.actions, self.checkpoints = self._optimal_and_certainly_reached()
        else:
            self.actions = self._playable(table.everything)
            self.checkpoints = np.zeros((problem.stages, problem.states), dtype=np.bool_)
            self.checkpoints[0] = True
        self.incumbent = self.optimum
        if within is not None:
            self.actions = self.actions & within
            if not self.actions.any(axis=2).all():
                raise InvalidInput("no policy that loses at most ε uses these actions.")
            self.incumbent = solve(table, self.actions, self.optimum.policy)

    def _playable(self, actions: BoolArray) -> BoolArray:
        """Actions that some policy can play, whenever it comes by, without losing more than ε."""
        table, epsilon = self.table, self.epsilon
        node = shrink(table, self.optimum, actions, epsilon)
        assert node is not None  # the optimal policy survives
        actions = node.actions.copy()
        for stage, state, action in np.argwhere(actions & (actions.sum(axis=2, keepdims=True) > 1)):
            if not actions[stage, state, action] or epsilon == 0:
                continue
            probe = actions.copy()
            probe[stage, state] = False
            probe[stage, state, action] = True
            best = solve(table, probe, self.optimum.policy)
            if (self.optimum.values[0] - best.values[0] > epsilon + 2 * (self.optimum.error + best.error)).any():
                actions[stage, state, action] = False
        return actions

    def _optimal_and_certainly_reached(self) -> tuple[BoolArray, BoolArray]:
        """Stage by stage: optimal actions where every optimal policy arrives, all actions elsewhere."""
        problem, rows = self.table.problem, self.table.rows
        optimal = self.optimum.values[:, :, None] - self.optimum.q_values <= 4 * self.optimum.error
        actions = np.broadcast_to(problem.mask, optimal.shape).copy()
        reached = np.zeros((problem.stages, problem.states), dtype=np.bool_)
        for stage in range(problem.stages):
            reached[stage] = (least_reach(rows, actions, stage) > 0).any(axis=0)
            actions[stage][reached[stage]] = optimal[stage][reached[stage]]
        return actions, reached


def certify(reference: Reference, other: Table, *, node_limit: int = 0, deadline: float = np.inf) -> Certificate | None:
    """Try to prove that Π_ε(M) and Π_ε(M') are disjoint.

    Parameters
    ----------
    reference : Reference
        M and ε.
    other : Table
        M', with rows that are distributions, positive where M's are.
    node_limit : int, optional
        Largest size of the tree; 0 for the first two tests only.
    deadline : float, optional
        `time.monotonic()` at which to give up.

    Returns
    -------
    Certificate or None
        None means "not proved", never "proved to be wrong".
    """
    epsilon = reference.epsilon
    optimum = solve(other, other.everything, reference.optimum.policy)
    if epsilon > 0:
        # Only the first stage counts for losses above 0.
        first_gaps = _gaps(reference.optimum)[0], _gaps(optimum)[0]
        slack = 2 * (reference.optimum.error + optimum.error)
        tilted = np.stack([(1 - t) * first_gaps[0] + t * first_gaps[1] for t in _TILTS]).min(axis=2).max(axis=0)
        margin, state = float(tilted.max() - epsilon - slack), int(tilted.argmax())
        if margin > 0:
            return Certificate("one state", True, epsilon, margin, 0, state)
    within = solve(other, reference.actions, reference.optimum.policy)
    losses = np.where(reference.checkpoints, optimum.values - within.values, -np.inf)
    margin = float(losses.max() - epsilon - 2 * (optimum.error + within.error))
    if margin > 0:
        stage, state = (int(i) for i in np.unravel_index(losses.argmax(), losses.shape))
        return Certificate("restricted values", epsilon == 0, epsilon, margin, stage, state)
    if node_limit > 0 and epsilon > 0:
        nodes = _search_tree(reference, other, optimum, node_limit, deadline)
        if nodes is not None:
            return Certificate("branch and bound", False, epsilon, float("nan"), 0, int(losses[0].argmax()), nodes)
    return None


@dataclass(frozen=True, eq=False)
class Node:
    """A product set of policies and what it loses in a model.

    Attributes
    ----------
    actions : bool array (stages, S, A)
    best : Solution
        Of the best policy of the set.
    losses : array (stages, S, A)
        Lower bound on the loss of every policy of the set that plays this action here.
    """

    actions: BoolArray
    best: Solution
    losses: FloatArray


def shrink(table: Table, optimum: Solution, actions: BoolArray, epsilon: float) -> Node | None:
    """Strike out actions that no ε-optimal policy within the set can play; None if no policy is left."""
    start = optimum.policy
    while True:
        best = solve(table, actions, start)
        limit = epsilon + 2 * (optimum.error + best.error)
        if (optimum.values[0] - best.values[0] > limit).any():
            return None
        losses = _choice_losses(table, optimum, best, actions)
        kept = actions & (losses <= limit)
        if not kept.any(axis=2).all():
            return None
        if (kept == actions).all():
            return Node(actions, best, losses)
        actions, start = kept, best.policy


def least_reach(rows: FloatArray, actions: BoolArray, stage: int) -> FloatArray:
    """Least probability, over the policies of a product set, of being in state s at a stage, (start, s)."""
    reach = np.eye(rows.shape[1])
    for earlier in reversed(range(stage)):
        moved = rows[earlier] @ reach
        reach = np.where(actions[earlier][:, :, None], moved, np.inf).min(axis=1)
    return reach


def _choice_losses(table: Table, optimum: Solution, best: Solution, actions: BoolArray) -> FloatArray:
    losses = np.empty(best.q_values.shape)
    losses[0] = optimum.values[0][:, None] - best.q_values[0]
    before = optimum.values[0] - best.values[0]
    for stage in range(1, table.problem.stages):
        regret = best.values[stage][:, None] - best.q_values[stage]
        reach = least_reach(table.rows, actions, stage)
        # From the start that is hurt most; regrets within the set are not negative, outside of it they do not matter.
        regret = np.where(actions[stage], regret, 0.0)
        with np.errstate(invalid="ignore"):
            losses[stage] = (before[:, None, None] + reach[:, :, None] * regret).max(axis=0)
    return losses


def _search_tree(reference: Reference, other: Table, optimum: Solution, node_limit: int, deadline: float) -> int | None:
    """Return the number of nodes of a tree that proves disjointness, or None."""
    problem = reference.table.problem
    # Actions with identical features are identical in both models: one of them stands for all.
    stack = [reference.actions & problem.distinct]
    stack[0] |= ~stack[0].any(axis=2, keepdims=True) & reference.actions
    nodes = 0
    while stack:
        nodes += 1
        if nodes > node_limit or monotonic() > deadline:
            return None
        pair = _shrink_in_both(reference, other, optimum, stack.pop())
        if pair is None:
            continue
        here, there = pair
        worse = np.where(here.actions, np.maximum(here.losses, there.losses), np.inf)
        candidates = [worse.argmin(axis=2)] + ([here.best.policy, there.best.policy] if nodes == 1 else [])
        if any(_is_common(reference, other, optimum, policy) for policy in candidates):
            return None
        choices = here.actions.sum(axis=2)
        if choices.max() == 1:
            return None
        # Split where the best that can be done in both models is worst: contradictions show up soonest there.
        stage, state = np.unravel_index(np.where(choices > 1, worse.min(axis=2), -np.inf).argmax(), choices.shape)
        for action in np.argsort(worse[stage, state])[: choices[stage, state]][::-1]:
            child = here.actions.copy()
            child[stage, state] = False
            child[stage, state, action] = True
            stack.append(child)
    return nodes


def _shrink_in_both(
    reference: Reference, other: Table, optimum: Solution, actions: BoolArray
) -> tuple[Node, Node] | None:
    while True:
        here = shrink(reference.table, reference.optimum, actions, reference.epsilon)
        there = None if here is None else shrink(other, optimum, here.actions, reference.epsilon)
        if here is None or there is None:
            return None
        if (there.actions == here.actions).all():
            return here, there
        actions = there.actions


def _is_common(reference: Reference, other: Table, optimum: Solution, policy: IntArray) -> bool:
    """Whether the policy is ε-optimal in both models, errors of the computation forgiven."""
    for table, best in ((reference.table, reference.optimum), (other, optimum)):
        value = evaluate(table, policy)
        if (best.values[0] - value.values[0]).max() > reference.epsilon + 2 * (best.error + value.error):
            return False
    return True


def _gaps(solution: Solution) -> FloatArray:
    return solution.values[:, :, None] - solution.q_values
