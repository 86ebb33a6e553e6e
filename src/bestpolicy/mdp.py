"""The truth: a linear MDP, its values and its files.

Transition probabilities are p(s'|s,a) = φ(s,a)ᵀμ(s'), mean rewards r(s,a) = φ(s,a)ᵀθ [TJP eq. linmdp]; episodic
models have one (θ_h, μ_h) per step. Learners never see this object: simulators draw from it, and studies of the
algorithms use it to say how good the policy that came out really is.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from os import PathLike
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import Array, FloatArray, IntArray, as_floats
from bestpolicy._numerics.inputs import number, of_type
from bestpolicy._numerics.reproducible import ordered_product
from bestpolicy.diagnostics.assumptions import check_features, check_model, require
from bestpolicy.errors import InvalidInput
from bestpolicy.planning import Evaluation, Plan, evaluate_policy, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.problem.files import read_arrays, write_arrays
from bestpolicy.problem.problem import HUGE

_KEPT_ENTRIES = 2_000_000  # of a table of transition probabilities: larger ones are made anew where they are needed


class LinearMDP:
    """A discounted or episodic linear MDP with rewards in [0, 1].

    Parameters
    ----------
    problem : Problem
    theta : array (d,) or (H, d)
    mu : array (S, d) or (H, S, d)
    name : str, optional
        Shown in reports.
    """

    def __init__(self, problem: Problem, *, theta: ArrayLike, mu: ArrayLike, name: str = "model") -> None:
        self.problem = problem
        of_type("problem", problem, Problem)
        self.theta, self.mu = stage_parameters(problem, theta, mu)
        self.name = str(name)
        require(check_features(problem) + check_model(problem, self.theta, self.mu))

    def __repr__(self) -> str:
        return f"LinearMDP({self.name}: {self.problem!r})"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the problem, θ and μ, in hexadecimal."""
        digest = sha256(self.problem.fingerprint.encode())
        digest.update(np.ascontiguousarray(self.theta).data)
        digest.update(np.ascontiguousarray(self.mu).data)
        return digest.hexdigest()

    @cached_property
    def rewards(self) -> FloatArray:
        """Mean rewards, (S, A) or (H, S, A)."""
        flat = self.problem.features.reshape(-1, self.problem.dimension)
        rewards = ordered_product(self.theta, flat).reshape(-1, *self.problem.mask.shape)
        return self._unstaged(np.where(self.problem.mask, rewards, 0.0))

    @property
    def transitions(self) -> FloatArray:
        """Transition probabilities, (S, A, S) or (H, S, A, S), made anew at each call; zeros where not allowed."""
        rows = np.stack([self.transition_rows(self.problem.pairs, h) for h in range(self.problem.stages)])
        full = np.zeros((self.problem.stages, self.problem.mask.size, self.problem.states))
        full[:, self.problem.pairs] = rows
        return self._unstaged(full.reshape(self.problem.stages, *self.problem.mask.shape, -1))

    def transition_rows(self, pairs: IntArray, stage: int | slice = 0) -> FloatArray:
        """Distributions of the next state at some pairs (flat indices), (K, S), free of rounding dirt.

        Simulators draw from them, so they are the same to the last bit on every processor. A slice of stages gives
        (stages, K, S).
        """
        if self._all_rows is not None:
            rows: FloatArray = self._all_rows[stage][..., pairs, :]
            return rows
        flat = self.problem.features.reshape(-1, self.problem.dimension)
        return _distributions(flat[pairs], self.mu[stage])

    @cached_property
    def _all_rows(self) -> FloatArray | None:
        """Distributions of the next state at all pairs, (stages, S·A, S), unless they are many."""
        if self.problem.stages * self.problem.mask.size * self.problem.states > _KEPT_ENTRIES:
            return None
        rows = np.zeros((self.problem.stages, self.problem.mask.size, self.problem.states))
        rows[:, self.problem.pairs] = _distributions(self.problem.pair_features, self.mu)
        return rows

    @cached_property
    def plan(self) -> Plan:
        """Optimal values, policy and gap, with the residual of the computation."""
        return optimal_plan(self.problem, self.theta, self.mu)

    @property
    def policy(self) -> IntArray:
        """An optimal policy, (S,) or (H, S)."""
        return self._unstaged(self.plan.policy)

    @property
    def values(self) -> FloatArray:
        """V*, (S,) or (H, S)."""
        return self._unstaged(self.plan.values)

    @property
    def q_values(self) -> FloatArray:
        """Q*, (S, A) or (H, S, A); -inf where the action is not allowed."""
        return self._unstaged(self.plan.q_values)

    @property
    def parameters(self) -> FloatArray:
        """ξ* with Q* = Φξ*, (d,) or (H, d)."""
        return self._unstaged(self.plan.parameters)

    @property
    def gap(self) -> float:
        """Δ: smallest V*(s) - Q*(s,a) over actions that are not optimal, identical actions merged."""
        return self.plan.gap

    def evaluate(self, policy: ArrayLike) -> Evaluation:
        """Value of a policy, with the residual of the computation."""
        return evaluate_policy(self.problem, self.theta, self.mu, self.problem.stage_policy(policy))

    def policy_values(self, policy: ArrayLike) -> FloatArray:
        """V^π, (S,) or (H, S)."""
        return self._unstaged(self.evaluate(policy).values)

    def policy_q_values(self, policy: ArrayLike) -> FloatArray:
        """Q^π, (S, A) or (H, S, A); -inf where the action is not allowed."""
        q_values = np.einsum("sad,hd->hsa", self.problem.features, self.evaluate(policy).parameters, optimize=True)
        return self._unstaged(np.where(self.problem.mask, q_values, -np.inf))

    def loss(self, policy: ArrayLike, start: ArrayLike | None = None) -> float:
        """max_s V*(s) - V^π(s), or its mean over a start distribution; at the first step if episodic."""
        behind = self.plan.values[0] - self.evaluate(policy).values[0]
        return max(0.0, float(behind.max() if start is None else np.asarray(start) @ behind))

    def is_near_optimal(self, policy: ArrayLike, epsilon: float) -> bool:
        """Whether the policy is in Π_ε; losses below the precision of the computation count as 0."""
        slack = self.plan.error_bound + self.evaluate(policy).error_bound
        return self.loss(policy) <= number("epsilon", epsilon, infinite=True) + slack

    @cached_property
    def variances(self) -> FloatArray:
        """Var(R + γV*(s')) for Bernoulli rewards independent of s', (S, A) or (H, S, A) [TJP Sec. 4]."""
        problem = self.problem
        following = (
            self.plan.values
            if problem.horizon is None
            else np.vstack([self.plan.values[1:], np.zeros((1, problem.states))])
        )
        variances = np.empty((problem.stages, *problem.mask.shape))
        for stage, values in enumerate(following):
            moments = problem.features @ (self.mu[stage].T @ np.column_stack([values, values**2]))
            mean_reward = problem.features @ self.theta[stage]
            spread = np.clip(moments[..., 1] - moments[..., 0] ** 2, 0.0, None)
            variances[stage] = mean_reward * (1 - mean_reward) + problem.continuation**2 * spread
        return self._unstaged(np.where(problem.mask, variances, 0.0))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to an ``.npz`` file (plain arrays, never pickled)."""
        write_arrays(path, self.problem, theta=self._unstaged(self.theta), mu=self._unstaged(self.mu))

    @classmethod
    def load(cls, path: str | PathLike[str], *, max_bytes: int | None = None) -> LinearMDP:
        """Read a model from an ``.npz`` file with features, theta, mu, discount or horizon, and optionally mask.

        A file that unpacks to more than `max_bytes` is refused before anything is unpacked; so is one whose model would
        take a long time to check. The limit is 1 GiB by default, or what the environment variable
        ``BESTPOLICY_MAX_MODEL_BYTES`` says, for the command line, too.
        """
        problem, theta, mu = read_arrays(path, max_bytes)
        if theta is None or mu is None:
            raise InvalidInput(
                f"{path} lacks theta or mu, so it describes a problem, not a model to simulate. Add them; or wrap a "
                "simulator of your own in CallableSimulator, in Python."
            )
        return cls(problem, theta=theta, mu=mu, name=str(path))

    def _unstaged(self, array: Array) -> Array:
        return array if self.problem.horizon is not None else cast(Array, array[0])


def _distributions(features: FloatArray, mu: FloatArray) -> FloatArray:
    """Return Φμᵀ, (…, K, S), from features (K, d) and μ (…, S, d), with rows that are distributions."""
    product = ordered_product(features, mu.reshape(-1, mu.shape[-1])).reshape(len(features), *mu.shape[:-1])
    rows: FloatArray = np.ascontiguousarray(np.clip(product, 0.0, None).swapaxes(0, -2))
    rows /= rows.sum(axis=-1, keepdims=True)
    return rows


def stage_parameters(problem: Problem, theta: ArrayLike, mu: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Validate the shapes of θ and μ and give them the stage axis: (stages, d) and (stages, S, d)."""
    axes = () if problem.horizon is None else ("H",)
    sizes = {"H": problem.stages, "S": problem.states, "d": problem.dimension}
    staged = []
    for name, value, own_axes in (("theta", theta, ("d",)), ("mu", mu, ("S", "d"))):
        array = as_floats(name, value, (*axes, *own_axes))
        expected = tuple(sizes[axis] for axis in (*axes, *own_axes))
        if array.shape != expected:
            letters = ", ".join((*axes, *own_axes))
            swapped = (*expected[:-2], *expected[:-3:-1])
            hint = f" Transpose it: numpy.swapaxes({name}, -1, -2)." if array.shape == swapped else ""
            raise InvalidInput(f"{name} must have shape ({letters}) = {expected}. Got {array.shape} instead.{hint}")
        if not np.isfinite(array).all():
            raise InvalidInput(f"{name} must be finite. Entry {tuple(np.argwhere(~np.isfinite(array))[0])} is not.")
        if max(array.max(), -array.min()) > HUGE:
            raise InvalidInput(f"{name} must be of moderate size, up to {HUGE:g}. Scale it, or the features.")
        staged.append(array.reshape(problem.stages, *(sizes[axis] for axis in own_axes)))
    return staged[0], staged[1]


__all__ = ["LinearMDP"]
