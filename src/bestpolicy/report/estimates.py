"""What the samples say of each state: value, best action, rival, and how sure that is.

These numbers explain; they certify nothing. They come from the least-squares model of all samples, with standard
errors by propagation of the measured noise: with x_h the error of θ̂_h + γμ̂_hᵀV_{h+1}, a policy's values move by

    x_h + γK_h x_{h+1} + …,    K_h = μ̂_hᵀΦ_{π,h+1}    (discounted: (I - γK)⁻¹x),

and Cov(x_h) = G⁻¹ (Σ_k n_k v_k φ_kφ_kᵀ) G⁻¹ where v_k is the empirical variance of r + γV(s') at pair k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_whole
from bestpolicy._numerics.inputs import number, of_type
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms.tight import whitened_problem
from bestpolicy.design import g_optimal_design
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Estimate, least_squares
from bestpolicy.planning import evaluate_policy, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally


@dataclass(frozen=True, eq=False)
class Estimates:
    """Per stage and state, in the user's units of reward.

    Attributes
    ----------
    problem : Problem
    policy : int array (stages, S)
    values, value_errors : arrays (stages, S)
        Of the policy in the estimated model, with standard errors.
    rivals : int array (stages, S)
        The best action that the policy does not play; -1 where there is none.
    gaps, gap_errors : arrays (stages, S)
        By how much the policy's action beats its rival; inf and 0 where there is none.
    pulls : int array (stages, S, A)
        Simulator calls.
    """

    problem: Problem
    policy: IntArray
    values: FloatArray
    value_errors: FloatArray
    rivals: IntArray
    gaps: FloatArray
    gap_errors: FloatArray
    pulls: IntArray

    @cached_property
    def sureness(self) -> FloatArray:
        """Gap over its standard error, (stages, S); inf where there is no rival."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.gap_errors > 0, self.gaps / self.gap_errors, np.inf)
        return np.where(self.rivals < 0, np.inf, ratio)

    def hardest(self, count: int) -> list[tuple[int, int]]:
        """(stage, state) whose action was hardest to tell from its rival, hardest first."""
        flat = self.sureness.ravel()
        order = np.argsort(flat, kind="stable")[:count]
        return [divmod(int(i), self.problem.states) for i in order if np.isfinite(flat[i])]


def estimate(
    problem: Problem, tally: Tally, policy: IntArray | None = None, *, scale: float = 1.0, offset: float = 0.0
) -> Estimates:
    """Estimate the model from a tally.

    Parameters
    ----------
    problem : Problem
    tally : Tally
    policy : int array (stages, S), optional
        The one to describe; by default the best one of the estimated model.
    scale, offset : float
        The problem's rewards 0 and 1 are `offset` and `offset + scale` in the user's units.
    """
    of_type("problem", problem, Problem)
    of_type("tally", tally, Tally)
    scale, offset = number("scale", scale, above=0), number("offset", offset, least=-inf)
    if tally.pulls.shape[0] != problem.stages or tally.shape[2] != problem.states:
        raise InvalidInput("the tally does not belong to this problem: its numbers of steps or states differ.")
    if not np.isin(tally.pairs, problem.pairs).all():
        raise InvalidInput("the tally has samples of a pair that is not allowed.")
    with one_thread():
        white = whitened_problem(problem, g_optimal_design(problem.pair_features, tolerance=1e-2))
        model = least_squares(white.features, tally, ridge=1 / problem.dimension)
        chosen = optimal_plan(white, model.theta, model.mu).policy if policy is None else as_whole("policy", policy)
        return _describe(white, model, tally, chosen, scale, offset)


def _describe(
    problem: Problem, model: Estimate, tally: Tally, policy: IntArray, scale: float, offset: float
) -> Estimates:
    evaluation = evaluate_policy(problem, model.theta, model.mu, policy)
    values = np.clip(evaluation.values, 0.0, problem.value_limits[:, None])
    covariances = _covariances(problem, model, tally, policy, values)
    everywhere = np.arange(problem.states)
    shape = (problem.stages, problem.states)
    rivals, gaps = np.full(shape, -1, dtype=np.int64), np.full(shape, np.inf)
    value_errors, gap_errors = np.empty(shape), np.zeros(shape)
    for stage in range(problem.stages):
        played = problem.features[everywhere, policy[stage]]
        value_errors[stage] = _lengths(played, covariances[stage])
        q_values = problem.features @ evaluation.parameters[stage]
        played_values = q_values[everywhere, policy[stage]]
        others = np.where(_rival_actions(problem, policy[stage]), q_values, -np.inf)
        best = others.argmax(axis=1)
        some = np.isfinite(others.max(axis=1))
        rivals[stage, some] = best[some]
        gaps[stage, some] = (played_values - others[everywhere, best])[some]
        difference = problem.features[everywhere, best] - played
        gap_errors[stage] = np.where(some, _lengths(difference, covariances[stage]), 0.0)
    pulls = np.zeros((problem.stages, problem.mask.size), dtype=np.int64)
    pulls[:, tally.pairs] = tally.pulls
    return Estimates(
        problem,
        policy,
        values * scale + offset * problem.value_limits[:, None],
        value_errors * scale,
        rivals,
        gaps * scale,
        gap_errors * scale,
        pulls.reshape(problem.stages, *problem.mask.shape),
    )


def _covariances(
    problem: Problem, model: Estimate, tally: Tally, policy: IntArray, values: FloatArray
) -> list[FloatArray]:
    """Covariance of the errors of the action values' parameters per stage, (d, d) each."""
    gamma, episodic = problem.continuation, problem.horizon is not None
    sampled = problem.features.reshape(-1, problem.dimension)[tally.pairs]
    covariances: list[FloatArray] = []
    for stage in reversed(range(problem.stages)):
        last = episodic and stage == problem.stages - 1
        following = np.zeros(problem.states) if last else values[stage + 1 if episodic else stage]
        variances = _variances(tally, stage, gamma * following)
        inverse = np.linalg.inv(model.gram[stage])
        covariance = inverse @ (sampled.T * (tally.pulls[stage] * variances)) @ sampled @ inverse
        if not episodic:
            played = problem.features[np.arange(problem.states), policy[0]]
            try:
                response = np.linalg.inv(np.eye(problem.dimension) - gamma * (model.mu[0].T @ played))
            except np.linalg.LinAlgError:
                response = np.eye(problem.dimension) * problem.value_limits[0]
            return [response @ covariance @ response.T]
        if not last:
            played = problem.features[np.arange(problem.states), policy[stage + 1]]
            carry = model.mu[stage].T @ played
            covariance = covariance + carry @ covariances[-1] @ carry.T
        covariances.append(covariance)
    return covariances[::-1]


def _variances(tally: Tally, stage: int, following: FloatArray) -> FloatArray:
    """Empirical variance of r + γV(s') per pair, (K,); where it cannot be measured, that of the others."""
    pulls = tally.pulls[stage].astype(np.float64)
    counts, rewards = tally.next_counts[stage], tally.next_rewards[stage]
    some = np.maximum(pulls, 1.0)
    mean = (rewards.sum(axis=1) + counts @ following) / some
    square = (tally.squared_rewards[stage] + 2 * rewards @ following + counts @ following**2) / some
    variances: FloatArray = np.clip(square - mean**2, 0.0, None) * some / np.maximum(pulls - 1, 1.0)
    enough = pulls >= 2
    usual = float(variances[enough].mean()) if enough.any() else 0.25 * (1 + float(np.ptp(following))) ** 2
    return np.where(enough, variances, usual)


def _rival_actions(problem: Problem, actions: IntArray) -> FloatArray:
    """Allowed actions whose features differ from those of the action played, bool (S, A)."""
    played = problem.features[np.arange(problem.states), actions]
    rivals: FloatArray = problem.mask & (problem.features != played[:, None, :]).any(axis=2)
    return rivals


def _lengths(vectors: FloatArray, metric: FloatArray) -> FloatArray:
    lengths: FloatArray = np.sqrt(np.clip(np.einsum("sd,sd->s", vectors @ metric, vectors), 0.0, None))
    return lengths
