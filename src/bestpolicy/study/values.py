"""What the samples say of a policy's values. These are estimates; what is certified is its loss alone.

They come from the least-squares model of all samples (of a table: the frequencies themselves), in which the policy is
evaluated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.estimation import least_squares
from bestpolicy.planning import evaluate_policy
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.samples import Tally


def estimated_q_values(problem: Problem, tally: Tally, policy: IntArray, units: Units) -> FloatArray:
    """Return Q̂^π in the user's units, (stages, S, A); nan for pairs that a table has no samples of, or does not allow.

    Parameters
    ----------
    problem : Problem
    tally : Tally
        All samples.
    policy : int array (stages, S)
    units : Units
    """
    mu: Any
    with one_thread():
        if problem.is_tabular:
            theta, mu = _frequencies(problem, tally)
        else:
            model = least_squares(problem.matrix, tally, ridge=1 / problem.dimension)
            theta, mu = model.theta, model.mu
        parameters = evaluate_policy(problem, theta, mu, policy).parameters
    limits = problem.value_limits[:, None]
    q_values: FloatArray = np.stack([np.asarray(problem.matrix @ row, dtype=np.float64) for row in parameters])
    q_values = np.minimum(np.maximum(q_values, 0.0), limits) * units.reward_scale
    q_values += units.reward_offset * limits
    unknown = np.broadcast_to(~problem.mask.ravel(), q_values.shape).copy()
    if problem.is_tabular:
        sampled = np.zeros(q_values.shape, np.bool_)
        sampled[:, tally.pairs] = tally.pulls > 0
        unknown |= ~sampled
    q_values[unknown] = np.nan
    by_state: FloatArray = q_values.reshape(problem.stages, *problem.mask.shape)
    return by_state


def _frequencies(problem: Problem, tally: Tally) -> tuple[FloatArray, tuple[csc_array, ...]]:
    """Mean rewards and frequencies of next states, as θ and sparse μ of a table."""
    assert problem.columns is not None
    columns = problem.columns[np.searchsorted(problem.pairs, tally.pairs)]
    often = np.maximum(tally.pulls, 1)
    theta = np.zeros((problem.stages, problem.dimension))
    theta[:, columns] = tally.reward_sums / often
    states, rows = problem.states, tally.cells // problem.states
    stage, place = np.divmod(rows, max(1, len(tally.pairs)))
    shares = tally.counts / often[stage, place]
    mu = []
    for h in range(problem.stages):
        some = stage == h
        entries = shares[some], (tally.cells[some] % states, columns[place[some]])
        mu.append(csc_array(entries, shape=(states, problem.dimension)))
    return theta, tuple(mu)
