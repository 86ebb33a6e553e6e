"""Targets: actions to be made attractive by an alternative, one family of alternatives each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.bounds.membership import Reference, least_reach
from bestpolicy.bounds.tables import Truth


@dataclass(frozen=True)
class Target:
    """An action to be made attractive.

    Attributes
    ----------
    stage, state, action : int
    shift : float
        By how much its advantage has to grow, to first order.
    check_stage, check_state : int
        Where the loss of near-optimal policies is measured.
    seeded : bool
        Begin by beating the optimal policy alone, and see which policies that makes attractive. For ε > 0, where it
        often takes several changed actions together to leave Π_ε(M).
    """

    stage: int
    state: int
    action: int
    shift: float
    check_stage: int
    check_state: int
    seeded: bool = False


def all_targets(truth: Truth, reference: Reference) -> list[Target]:
    """List the targets of a model: actions that are not near-optimal, and for ε > 0 all others as seeds."""
    problem = truth.problem
    incumbent, epsilon = reference.incumbent, reference.epsilon
    everywhere = np.arange(problem.states)
    chosen = np.zeros(reference.actions.shape, dtype=np.bool_)
    np.put_along_axis(chosen, incumbent.policy[:, :, None], True, axis=2)
    others = np.broadcast_to(problem.distinct, reference.actions.shape) & ~chosen
    if epsilon == 0:
        others = others & ~reference.actions
    targets = []
    if problem.horizon is None:
        kernel = truth.table.rows[0][everywhere, incumbent.policy[0]]
        visits = np.linalg.inv(np.eye(problem.states) - problem.continuation * kernel)
    for stage in range(problem.stages):
        if problem.horizon is not None:
            reach = least_reach(truth.table.rows, chosen, stage)
        for state, action in np.argwhere(others[stage]):
            gap = float(incumbent.values[stage, state] - incumbent.q_values[stage, state, action])
            check, repeats = (stage, int(state)), 1.0
            if problem.horizon is None:
                rows = truth.table.rows[0][state]
                turn = problem.continuation * (rows[action] - kernel[state]) @ visits[:, state]
                repeats = float(visits[state, state] / (1 - turn))
            elif epsilon > 0:
                check, repeats = (0, int(reach[:, state].argmax())), float(reach[:, state].max())
            if not (reference.checkpoints[check] and repeats > 1e-9):
                continue
            shift = max(gap + epsilon / repeats, 1e-6 * epsilon)  # an incumbent may be that bad already
            place = stage, int(state), int(action), shift, *check
            if not reference.actions[stage, state, action]:
                targets.append(Target(*place))
            if epsilon > 0:
                targets.append(Target(*place, seeded=True))
    return targets


def advantage_gradients(truth: Truth, reference: Reference, targets: list[Target]) -> FloatArray:
    """y_h of each target's advantage at the truth, (targets, stages, d)."""
    problem, table = truth.problem, truth.table
    everywhere, policy = np.arange(problem.states), reference.incumbent.policy
    gradients = np.zeros((len(targets), problem.stages, problem.dimension))
    if not targets:
        return gradients
    stages, states, actions = np.array([(t.stage, t.state, t.action) for t in targets]).T
    direct = problem.features[states, actions] - problem.features[states, policy[stages, states]]
    moved = table.rows[stages, states, actions] - table.rows[stages, states, policy[stages, states]]
    gradients[np.arange(len(stages)), stages] = direct
    played = problem.features[everywhere[None], policy]
    if problem.horizon is None:
        kernel = table.rows[0][everywhere, policy[0]]
        future = np.linalg.solve(np.eye(problem.states) - problem.continuation * kernel, played[0])
        gradients[:, 0] += problem.continuation * moved @ future
    else:
        visits = np.zeros_like(moved)
        for h in range(1, problem.stages):
            visits = visits @ table.rows[h - 1][everywhere, policy[h - 1]]
            visits[stages == h - 1] = moved[stages == h - 1]
            gradients[:, h] += visits @ played[h]
    return gradients
