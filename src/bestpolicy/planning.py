"""Planning in d or S dimensions, whichever are fewer.

In a linear model the action values are Q = Φξ with ξ = θ + γ μᵀV (per stage h: ξ_h = θ_h + μ_hᵀV_{h+1}), so a
policy π of a discounted model is evaluated by one d×d solve,

    ξ^π = (I - γ K_π)⁻¹ θ,     K_π = μᵀΦ_π = Σ_s μ(s) φ(s, π(s))ᵀ,

or, if S < d, by one S×S solve, V^π = (I - γ Φ_πμᵀ)⁻¹ Φ_πθ and ξ^π = θ + γ μᵀV^π; an episodic model by backward
induction on the ξ_h. A sparse μ, of a table, stays sparse, and so does the S×S system.

Estimated models have signed kernels, for which the optimal values need not exist. The planner therefore solves
the *clipped* equation V = clip(max_a Φ(θ + γ μᵀV), 0, L), which has a solution for every model and the same one
for a true model. It does so by policy iteration in which "the value is clipped here" is one more choice of a
state (a Newton method on a piecewise linear equation; a handful of d×d solves), and falls back on sweeps where
that does not settle. Whatever happens, the residual

    ρ = max_s |V(s) - clip(max_a Q(s, a))|,      Q = Φ(θ + γ μᵀV)

of what is returned is measured in one last pass and returned with it. In a model whose rows are distributions
|V - V*| ≤ ρ/(1-γ) follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.sparse import eye_array, issparse
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import gmres, splu

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix, Sparse, as_model_part, as_whole, dense
from bestpolicy._numerics.inputs import of_type
from bestpolicy._numerics.reproducible import greedy, one_thread
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem

_MAX_IMPROVEMENTS = 60
_MAX_SWEEPS = 100
_DIRECT = 1000  # states up to which a sparse system is solved as a dense one
_NARROW = 8.0  # times the root of the number of states: what a grid with a few layers has
_MAX_REFINEMENTS = 8
_FIRST_SWEEPS, _SETTLED = 10_000, 50


@dataclass(frozen=True, eq=False)
class Plan:
    """An optimal policy of a (true or estimated) model, with the quality of its computation.

    Attributes
    ----------
    policy : int array (stages, S)
        Greedy for `q_values`; of actions that are tied up to rounding the first.
    values : array (stages, S)
        V, clipped to the possible range: clip(max_a Φ·value_parameters).
    q_values : array (stages, S, A)
        Q = Φ·parameters, not clipped; -inf where the action is not allowed.
    parameters : array (stages, d)
        ξ = θ + γ μᵀV (of the next stage's V if episodic).
    value_parameters : array (stages, d)
        The vector that generates `values`.
    residuals : array (stages,)
        max_s |V - clip(max_a Q)|.
    gap : float
        min over states of best minus second best Q, identical actions merged; inf if there is no choice anywhere.
    error_bound : float
        Bound on max |V - V*| that follows from the residuals if the rows of the model are distributions.
    """

    policy: IntArray
    values: FloatArray
    q_values: FloatArray
    parameters: FloatArray
    value_parameters: FloatArray
    residuals: FloatArray
    gap: float
    error_bound: float


@one_thread()
def optimal_plan(problem: Problem, theta: FloatArray, mu: FloatArray | Sparse, start: IntArray | None = None) -> Plan:
    """Plan in the model (θ, μ), in the coordinates of ``problem.features``.

    Parameters
    ----------
    problem : Problem
    theta : array (stages, d)
    mu : array (stages, S, d), or tuple of sparse (S, d)
        One for each stage.
    start : int array (stages, S), optional
        A policy to start from; only speed depends on it.
    """
    theta, mu, start = _checked(problem, theta, mu, start)
    if problem.horizon is None:
        value_parameters = _solve_clipped(problem, theta[0], mu[0], None if start is None else start[0])[None]
        values = _clipped_values(problem, _q_values(problem, value_parameters[0]), 0)[None]
        parameters = (theta[0] + problem.continuation * (mu[0].T @ values[0]))[None]
        q_values = _q_values(problem, parameters[0])[None]
    else:
        values = np.zeros((problem.stages + 1, problem.states))
        parameters = np.empty((problem.stages, problem.dimension))
        q_values = np.empty((problem.stages, problem.states, problem.actions))
        for stage in reversed(range(problem.stages)):
            parameters[stage] = theta[stage] + mu[stage].T @ values[stage + 1]
            q_values[stage] = _q_values(problem, parameters[stage])
            values[stage] = _clipped_values(problem, q_values[stage], stage)
        value_parameters, values = parameters, values[:-1]
    residuals = np.abs(values - np.clip(q_values.max(axis=2), 0.0, problem.value_limits[:, None])).max(axis=1)
    return Plan(
        policy=greedy(q_values),
        values=values,
        q_values=q_values,
        parameters=parameters,
        value_parameters=value_parameters,
        residuals=residuals,
        gap=action_gap(problem, q_values),
        error_bound=_accumulated(problem, residuals),
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy in a model, with the residual of the computation and the bound that follows.

    Attributes
    ----------
    values : array (stages, S)
    parameters : array (stages, d)
        ξ^π, so that Q^π = Φξ^π.
    residuals : array (stages,)
        max_s |V(s) - Q(s, π(s))|.
    error_bound : float
        Bound on max |V - V^π| if the rows of the model are distributions.
    """

    values: FloatArray
    parameters: FloatArray
    residuals: FloatArray
    error_bound: float


@one_thread()
def evaluate_policy(problem: Problem, theta: FloatArray, mu: FloatArray | Sparse, policy: IntArray) -> Evaluation:
    """Evaluate a policy (stages, S) in the model (θ, μ), as for `optimal_plan`; values are not clipped."""
    theta, mu, policy = _checked(problem, theta, mu, () if policy is None else policy)
    parameters = np.empty((problem.stages, problem.dimension))
    values = np.zeros((problem.stages + 1, problem.states))
    played = [_played_features(problem, policy[h]) for h in range(problem.stages)]
    if problem.horizon is None:
        values[0] = values[1] = played[0] @ _fixed_point(played[0], theta[0], mu[0], problem.continuation)
    for stage in reversed(range(problem.stages)):
        parameters[stage] = theta[stage] + problem.continuation * (mu[stage].T @ values[stage + 1])
        if problem.horizon is not None:
            values[stage] = played[stage] @ parameters[stage]
    residuals = np.array([np.abs(values[h] - played[h] @ parameters[h]).max() for h in range(problem.stages)])
    return Evaluation(values[:-1], parameters, residuals, _accumulated(problem, residuals))


def _checked(problem: Problem, theta: Any, mu: Any, policy: Any) -> tuple[Any, Any, Any]:
    """Return what belongs to the problem, or say what does not."""
    of_type("problem", problem, Problem)
    sizes = (problem.stages, problem.states, problem.dimension)
    theta, mu = as_model_part("theta", theta, sizes[::2]), as_model_part("mu", mu, sizes)
    plain = type(policy) is np.ndarray and policy.dtype == np.int64 and policy.shape == sizes[:2]
    if policy is not None and not (plain and policy.min() >= 0 and policy.max() < problem.actions):
        given = as_whole("policy", policy, floats=False)
        if given.shape != sizes[:2]:
            raise InvalidInput(f"policy must have shape {sizes[:2]}. Got shape {given.shape} instead.")
        policy = problem.stage_policy(given[0] if problem.horizon is None else given)
    return theta, mu, policy


def action_gap(problem: Problem, q_values: FloatArray) -> float:
    """Smallest difference of best and second-best action value, identical actions merged [TJP Sec. 3.2].

    Parameters
    ----------
    q_values : array (stages, S, A)
    """
    if problem.actions == 1:
        return float("inf")
    merged = np.where(problem.distinct, q_values, -np.inf)
    top = np.partition(merged, problem.actions - 2, axis=2)[:, :, -2:]
    return float((top[:, :, 1] - top[:, :, 0]).min())


def _accumulated(problem: Problem, residuals: FloatArray) -> float:
    """Sum the residuals over the stages that a value looks at: ρ/(1-γ) or Σ_h ρ_h."""
    return float(residuals.sum() * (1.0 if problem.discount is None else problem.value_limits[0]))


def _q_values(problem: Problem, parameters: FloatArray) -> FloatArray:
    q_values: FloatArray = (problem.matrix @ parameters).reshape(problem.mask.shape)
    if len(problem.pairs) < problem.mask.size:
        q_values[~problem.mask] = -np.inf
    return q_values


def _clipped_values(problem: Problem, q_values: FloatArray, stage: int) -> FloatArray:
    values: FloatArray = np.minimum(np.maximum(q_values.max(axis=1), 0.0), problem.value_limits[stage])
    return values


def _played_features(problem: Problem, policy: IntArray) -> Matrix:
    return problem.matrix[np.arange(problem.states) * problem.actions + policy]


def _fixed_point(played: Matrix, theta: FloatArray, mu: Matrix, gamma: float) -> FloatArray:
    """Return ξ = θ + γ μᵀ(played ξ), from played features (S, d)."""
    states, dimension = mu.shape
    if issparse(mu):
        parameters: FloatArray = theta + gamma * (mu.T @ _sparse_values(played @ mu.T, played @ theta, gamma))
    elif dimension <= states:
        parameters = np.linalg.solve(np.eye(dimension) - gamma * (mu.T @ played), theta)
    else:
        values = np.linalg.solve(np.eye(states) - gamma * (played @ mu.T), played @ theta)
        parameters = theta + gamma * (mu.T @ values)
    return parameters.astype(np.float64, copy=False)


def _sparse_values(kernel: Matrix, rewards: FloatArray, gamma: float) -> FloatArray:
    """Return V = r + γ P V, (S,), as exactly as rounding allows, for P that is sparse with rows of distributions."""
    if len(rewards) <= _DIRECT:
        exact = np.linalg.solve(np.eye(len(rewards)) - gamma * dense(kernel), rewards)
        return np.asarray(exact, np.float64)
    limit, system = 1.0 / (1.0 - gamma), (eye_array(len(rewards)) - gamma * kernel).tocsr()
    if _is_narrow(system):
        return np.asarray(splu(system.tocsc()).solve(rewards), np.float64)
    precision = 4e-15 * max(limit * float(np.abs(rewards).max(initial=0.0)), 1.0)
    values: FloatArray = np.zeros(len(rewards))
    residual, size = rewards, np.inf
    for _ in range(_MAX_REFINEMENTS):
        correction, _ = gmres(system, residual, rtol=1e-7, restart=50, maxiter=10)
        corrected = rewards - system @ (values + correction)
        if not np.abs(corrected).max() < size / 2:
            break
        values, residual, size = values + correction, corrected, float(np.abs(corrected).max())
        if size <= precision:
            return values
    for _ in range(int(min(40 * limit, 100_000))):  # what is left shrinks by γ each time
        following = rewards + gamma * (kernel @ values)
        moved, values = float(np.abs(following - values).max()), following
        if moved <= precision:
            break
    return values


def _is_narrow(system: Matrix) -> bool:
    """Whether states can be put into an order, as on a line or a grid, in which each leads only to some close to it.

    Elimination is cheap then. Where it is not, chains mix fast, and iteration is.
    """
    place = np.argsort(reverse_cuthill_mckee(system))
    entries = system.tocoo()
    return int(np.abs(place[entries.row] - place[entries.col]).max()) <= _NARROW * sqrt(len(place))


def _solve_clipped(problem: Problem, theta: FloatArray, mu: Matrix, start: IntArray | None) -> FloatArray:
    """Return ξ with V = clip(max_a Φξ) ≈ clip(max_a Φ(θ + γ μᵀV)), by policy iteration with clipping."""
    limit, gamma, everywhere = problem.value_limits[0], problem.continuation, np.arange(problem.states)
    # Changing one's mind for less than rounding error would make the iteration cycle.
    hysteresis = limit * (max(1e-13, 1e-14 * limit) if issparse(mu) else 1e-13)
    policy = _first_policy(problem, theta, mu) if start is None else start
    free = np.ones(problem.states, dtype=np.bool_)  # where the value is not clipped
    constants = np.zeros(problem.states)
    parameters = theta
    for _ in range(_MAX_IMPROVEMENTS):
        weights = mu if free.all() else mu * free[:, None]
        try:
            parameters = _fixed_point(
                _played_features(problem, policy), theta + gamma * (mu.T @ constants), weights, gamma
            )
        except np.linalg.LinAlgError:
            break
        q_values = _q_values(problem, parameters)
        best = q_values.max(axis=1)
        improved = best > q_values[everywhere, policy] + hysteresis
        clipped_now = (best > limit + hysteresis) | (best < -hysteresis)
        was_clipped = ~free & ((best >= limit - hysteresis) | (best <= hysteresis))
        now_free = ~(clipped_now | was_clipped)
        now_constants = np.where(now_free, 0.0, np.where(best > limit / 2, limit, 0.0))
        if not improved.any() and (now_free == free).all() and (now_constants == constants).all():
            return parameters
        policy = np.where(improved, q_values.argmax(axis=1), policy)
        free, constants = now_free, now_constants
    return _sweep(problem, theta, mu, parameters)


def _first_policy(problem: Problem, theta: FloatArray, mu: Matrix) -> IntArray:
    """Return a policy to start from; in a large table rewards may be far away, and sweeps carry them fast."""
    q_values = _q_values(problem, theta)
    policy: IntArray = q_values.argmax(axis=1)
    changed = 0
    for sweep in range(int(min(10 * problem.value_limits[0], _FIRST_SWEEPS)) if issparse(mu) else 0):
        values, before = _clipped_values(problem, q_values, 0), policy
        q_values = _q_values(problem, theta + problem.continuation * (mu.T @ values))
        policy = q_values.argmax(axis=1)
        changed = changed if np.array_equal(policy, before) else sweep
        gained = _clipped_values(problem, q_values, 0) - values
        if sweep >= changed + _SETTLED or np.ptp(gained) <= 1e-6:  # what all states gain alike changes no policy
            break
    return policy


def _sweep(problem: Problem, theta: FloatArray, mu: Matrix, parameters: FloatArray) -> FloatArray:
    """Clipped value iteration, for models in which policy iteration does not settle; keeps the best iterate."""
    best_residual, best_parameters = np.inf, parameters
    values = _clipped_values(problem, _q_values(problem, parameters), 0)
    for _ in range(_MAX_SWEEPS):
        following = theta + problem.continuation * (mu.T @ values)
        next_values = _clipped_values(problem, _q_values(problem, following), 0)
        residual = float(np.abs(next_values - values).max())
        if residual < best_residual:
            best_residual, best_parameters = residual, parameters
        if residual <= 1e-13 * problem.value_limits[0]:
            break
        parameters, values = following, next_values
    return best_parameters


__all__ = ["Evaluation", "Plan", "action_gap", "evaluate_policy", "optimal_plan"]
