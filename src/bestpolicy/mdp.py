"""The truth: a linear MDP, its values and its files.

Transition probabilities are p(s'|s,a) = φ(s,a)ᵀμ(s'), mean rewards r(s,a) = φ(s,a)ᵀθ [TJP eq. linmdp]; episodic
models have one (θ_h, μ_h) per step. Learners never see this object: simulators draw from it, and studies of the
algorithms use it to say how good the policy that came out really is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from os import PathLike
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csc_array, csr_array, issparse, vstack

from bestpolicy._numerics.arrays import (
    LARGEST_TABLE,
    Array,
    FloatArray,
    IntArray,
    Matrix,
    Sparse,
    as_floats,
    as_numbers,
)
from bestpolicy._numerics.inputs import choice, number, of_type
from bestpolicy._numerics.reproducible import ordered_product
from bestpolicy.diagnostics.assumptions import TOLERANCE, check_features, check_model, require
from bestpolicy.errors import InvalidInput
from bestpolicy.planning import Evaluation, Plan, evaluate_policy, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.problem.files import read_arrays, write_arrays
from bestpolicy.problem.problem import HUGE
from bestpolicy.problem.units import Units

_EXACT = 1e-9  # what is known of ends is known exactly, but for rounding
_KEPT_ENTRIES = 2_000_000  # of a table of transition probabilities: larger ones are made anew where they are needed


Layout = Literal["quantecon", "mdptoolbox"]


@dataclass(frozen=True, eq=False)
class Solution:
    """What is best in a model that is known, in the units of its rewards.

    Attributes
    ----------
    policy : int array (S,) or (H, S)
        Optimal.
    values : array (S,) or (H, S)
        V*.
    q_values : array (S, A) or (H, S, A)
        Q*; -inf where the action is not allowed.
    error_bound : float
        What rounding may have done to the values, at most.
    """

    policy: IntArray
    values: FloatArray
    q_values: FloatArray
    error_bound: float


class LinearMDP:
    """A discounted or episodic linear MDP with rewards in [0, 1].

    Parameters
    ----------
    problem : Problem
    theta : array (d,) or (H, d)
    mu : array (S, d) or (H, S, d)
        With one-hot features also a SciPy sparse array (S, d), or a sequence of H such.
    name : str, optional
        Shown in reports.
    """

    def __init__(self, problem: Problem, *, theta: ArrayLike, mu: Any, name: str = "model") -> None:
        self.problem = problem
        of_type("problem", problem, Problem)
        self.theta, self._mu = stage_parameters(problem, theta, mu)
        self.name = str(name)
        self.units = Units()
        require(check_features(problem) + check_model(problem, self.theta, self._mu))
        _require_ends(problem, self.theta, self._mu)

    @classmethod
    def from_table(
        cls,
        transitions: Any,
        rewards: ArrayLike,
        discount: float | None = None,
        *,
        horizon: int | None = None,
        mask: ArrayLike | None = None,
        ends: ArrayLike = (),
        layout: Layout = "quantecon",
        reward_range: tuple[float, float] = (0.0, 1.0),
        name: str = "table",
    ) -> LinearMDP:
        """Return the model of a table; it takes memory for the transitions that are possible alone.

        What is known need not be sampled: `solve` says what is best.

        >>> import numpy as np
        >>> stay, swap = np.eye(2), np.eye(2)[::-1]
        >>> table = LinearMDP.from_table([stay, swap], np.array([[0, -1], [5, -1]]), 0.5, layout="mdptoolbox",
        ...                              reward_range=(-1, 5))
        >>> table.solve().policy.tolist(), table.solve().values.round(9).tolist()
        ([1, 0], [4.0, 10.0])

        Parameters
        ----------
        transitions : array (S, A, S), or SciPy sparse array (S·A, S) with the row s·A + a for pair (s, a)
            Probabilities of the next state. An episodic model may have H of them, as a sequence or as an array with a
            leading axis; one is the same at every step.
        rewards : array (S, A), or (H, S, A)
            Mean rewards, in `reward_range`.
        discount, horizon
            Exactly one of them.
        mask : bool array (S, A), optional
            True where the action is allowed. Rows of other pairs are ignored.
        ends : sequence of int, optional
            States in which the process is over, and pays nothing any more. What the table says of them is ignored.
        layout : {"quantecon", "mdptoolbox"}
            The second is that of pymdptoolbox: transitions (A, S, S), or A matrices (S, S), sparse or not; rewards
            (S, A), (S,), or by next state (A, S, S).
        reward_range : (low, high)
            Rewards are mapped from there into [0, 1]. `solve` answers in your units; all else is about the model with
            rewards in [0, 1].
        name : str, optional
            Shown in reports.
        """
        choice("layout", layout, ("quantecon", "mdptoolbox"))
        if layout == "mdptoolbox":
            transitions, rewards = _from_mdptoolbox(transitions, rewards)
        means = as_numbers("rewards", rewards).astype(np.float64)
        if means.ndim not in (2, 3) or 0 in means.shape or (means.ndim == 3 and horizon is None):
            raise InvalidInput(f"rewards must have shape (S, A), or (H, S, A) if episodic. Got {means.shape} instead.")
        problem = Problem.tabular(*means.shape[-2:], discount=discount, horizon=horizon, mask=mask, ends=ends)
        if means.ndim == 3 and len(means) != problem.stages:
            raise InvalidInput(f"rewards must be of {problem.stages} steps, the horizon. Got {len(means)} instead.")
        units = Units.of_range(reward_range)
        problem = problem.in_units(units)
        paid = means.reshape(-1, problem.mask.size)[:, problem.open_pairs]
        theta = (paid - units.reward_offset) / units.reward_scale
        good = (theta >= -TOLERANCE) & (theta <= 1 + TOLERANCE)
        if not good.all():
            step, column = np.unravel_index(int(np.argmin(good)), good.shape)
            state, action = problem.pair(int(problem.open_pairs[column]))
            raise InvalidInput(
                f"rewards must lie in reward_range, [{units.reward_offset:g}, "
                f"{units.reward_offset + units.reward_scale:g}]. Got {paid[step, column]:g} at (state {state}, action "
                f"{action}). Give reward_range=(low, high), the lowest and the highest that can ever occur."
            )
        rows = [csr_array(step)[problem.open_pairs] for step in _step_tables(transitions, problem)]
        if len(problem.ends):
            over = csr_array(([1.0], ([0], problem.ends[-1:])), shape=(1, problem.states))
            theta = np.pad(theta, ((0, 0), (0, 1)), constant_values=problem.end_reward)
            rows = [csr_array(vstack([step, over])) for step in rows]
        if horizon is not None:
            theta = np.broadcast_to(theta, (problem.stages, problem.dimension))
        mu = tuple(step.T for step in rows)
        model = cls(
            problem, theta=theta if horizon is not None else theta[0], mu=mu * (problem.stages // len(mu)), name=name
        )
        model.units = units
        return model

    def solve(self) -> Solution:
        """Return what is best, exactly but for rounding; values are in the units of the rewards that were given."""
        scale, offsets = self.units.reward_scale, self.units.reward_offset * self.problem.value_limits
        return Solution(
            policy=self.policy,
            values=self._unstaged(scale * self.plan.values + offsets[:, None]),
            q_values=self._unstaged(scale * self.plan.q_values + offsets[:, None, None]),
            error_bound=scale * self.plan.error_bound,
        )

    @property
    def mu(self) -> Any:
        """μ, (stages, S, d); of a table that would be too large so a tuple of sparse (S, d), one for each stage."""
        if not isinstance(self._mu, tuple):
            return self._mu
        small = self.problem.stages * self.problem.states * self.problem.dimension <= LARGEST_TABLE
        return self._dense_mu if small else self._mu

    @cached_property
    def _dense_mu(self) -> FloatArray:
        return np.stack([step.toarray() for step in self._mu])

    def __repr__(self) -> str:
        return f"LinearMDP({self.name}: {self.problem!r})"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the problem, θ and μ, in hexadecimal."""
        digest = sha256(self.problem.fingerprint.encode())
        digest.update(np.ascontiguousarray(self.theta).data)
        if not isinstance(self._mu, tuple):
            digest.update(np.ascontiguousarray(self._mu).data)
            return digest.hexdigest()
        alike = all(step is self._mu[0] for step in self._mu)
        for step in self._mu[:1] if alike else self._mu:
            for array, kind in ((step.indptr, "<i8"), (step.indices, "<i8"), (step.data, "<f8")):
                digest.update(np.ascontiguousarray(array, dtype=kind).data)
        return digest.hexdigest()

    @cached_property
    def rewards(self) -> FloatArray:
        """Mean rewards, (S, A) or (H, S, A)."""
        if self.kernel is not None:
            rewards = np.zeros((self.problem.stages, self.problem.mask.size))
            rewards[:, self.problem.pairs] = self.theta[:, self.problem.columns]
            return self._unstaged(rewards.reshape(-1, *self.problem.mask.shape))
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
        if self.kernel is not None:
            places = np.searchsorted(self.problem.pairs, pairs)
            steps = self.kernel[stage] if isinstance(stage, slice) else self.kernel[stage : stage + 1]
            found = np.stack([step[places].toarray() for step in steps])
            return found if isinstance(stage, slice) else found[0]
        if self._all_rows is not None:
            rows: FloatArray = self._all_rows[stage][..., pairs, :]
            return rows
        flat = self.problem.features.reshape(-1, self.problem.dimension)
        return _distributions(flat[pairs], self.mu[stage])

    @cached_property
    def kernel(self) -> Sparse | None:
        """Of a model with a sparse μ the distributions of the next state: for each stage a sparse (n, S).

        Rows are in the order of ``problem.pairs``, free of rounding dirt; simulators draw from them.
        """
        if not isinstance(self._mu, tuple):
            return None
        different = {id(step): step for step in self._mu}
        rows = {key: _sparse_distributions(step.T[self.problem.columns]) for key, step in different.items()}
        return tuple(rows[id(step)] for step in self._mu)

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
        return optimal_plan(self.problem, self.theta, self._mu)

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
        return evaluate_policy(self.problem, self.theta, self._mu, self.problem.stage_policy(policy))

    def policy_values(self, policy: ArrayLike) -> FloatArray:
        """V^π, (S,) or (H, S)."""
        return self._unstaged(self.evaluate(policy).values)

    def policy_q_values(self, policy: ArrayLike) -> FloatArray:
        """Q^π, (S, A) or (H, S, A); -inf where the action is not allowed."""
        parameters = self.evaluate(policy).parameters
        if isinstance(self._mu, tuple):
            q_values = (self.problem.matrix @ parameters.T).T.reshape(-1, *self.problem.mask.shape)
        else:
            q_values = np.einsum("sad,hd->hsa", self.problem.features, parameters, optimize=True)
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
        features = problem.matrix if isinstance(self._mu, tuple) else problem.features
        variances = np.empty((problem.stages, *problem.mask.shape))
        for stage, values in enumerate(following):
            moments = features @ (self._mu[stage].T @ np.column_stack([values, values**2]))
            mean_reward = features @ self.theta[stage]
            spread = np.clip(moments[..., 1] - moments[..., 0] ** 2, 0.0, None)
            of_pairs = mean_reward * (1 - mean_reward) + problem.continuation**2 * spread
            variances[stage] = of_pairs.reshape(problem.mask.shape)
        return self._unstaged(np.where(problem.mask, variances, 0.0))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model, with rewards in [0, 1], to an ``.npz`` file (plain arrays, never pickled)."""
        mu = self._mu if isinstance(self._mu, tuple) else self._unstaged(self._mu)
        write_arrays(path, self.problem, theta=self._unstaged(self.theta), mu=mu)

    @classmethod
    def load(cls, path: str | PathLike[str], *, max_bytes: int | None = None) -> LinearMDP:
        """Read a model from an ``.npz`` file with features, theta, mu, discount or horizon, and optionally mask.

        `save` writes others as well, of tables (`from_table`).

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


def _require_ends(problem: Problem, theta: FloatArray, mu: Any) -> None:
    """Raise InvalidInput unless ends are what the problem says: they stay, and pay what it says."""
    if not len(problem.ends):
        return
    last, paid = problem.dimension - 1, theta[:, -1]
    off = float(paid[np.abs(paid - problem.end_reward).argmax()])
    stays = min(float(step[[problem.ends[-1]]][:, [last]].sum()) for step in mu)
    if abs(off - problem.end_reward) > _EXACT or abs(stays - 1) > _EXACT:
        raise InvalidInput(
            f"the last coordinate of theta and mu, that of the ends, must pay {problem.end_reward:g} and lead to state "
            f"{problem.ends[-1]}, the last of them. Got a reward of {off:g} and probability {stays:g}."
        )


def _from_mdptoolbox(transitions: Any, rewards: Any) -> tuple[Any, Any]:
    """Return transitions (S·A, S) and mean rewards (S, A) from the layout of pymdptoolbox."""
    matrices = [csr_array(matrix) if issparse(matrix) else as_numbers("transitions", matrix) for matrix in transitions]
    states = matrices[0].shape[-1] if matrices and matrices[0].ndim else 0
    if not matrices or any(matrix.shape != (states, states) for matrix in matrices):
        found = [matrix.shape for matrix in matrices[:3]]
        raise InvalidInput(f"transitions must be one matrix (S, S) for each action, (A, S, S). Got {found} instead.")
    by_action = not issparse(rewards) and len(rewards) == len(matrices)
    if by_action and all(issparse(paid) or np.ndim(paid) == 2 for paid in rewards):
        products = zip(matrices, rewards, strict=True)
        means = [np.asarray((csr_array(matrix) * csr_array(paid)).sum(axis=1)).ravel() for matrix, paid in products]
        rewards = np.column_stack(means)
    elif np.ndim(rewards) == 1:
        rewards = np.repeat(as_numbers("rewards", rewards)[:, None], len(matrices), axis=1)
    order = np.arange(states * len(matrices)).reshape(len(matrices), states).T.ravel()
    return vstack([csr_array(matrix) for matrix in matrices], format="csr")[order], rewards


def _distributions(features: FloatArray, mu: FloatArray) -> FloatArray:
    """Return Φμᵀ, (…, K, S), from features (K, d) and μ (…, S, d), with rows that are distributions."""
    product = ordered_product(features, mu.reshape(-1, mu.shape[-1])).reshape(len(features), *mu.shape[:-1])
    rows: FloatArray = np.ascontiguousarray(np.clip(product, 0.0, None).swapaxes(0, -2))
    rows /= rows.sum(axis=-1, keepdims=True)
    return rows


def _sparse_distributions(rows: Matrix) -> Matrix:
    """Return sparse rows (n, S) that are distributions, of possible next states alone."""
    clean = rows.tocsr(copy=True)
    np.maximum(clean.data, 0.0, out=clean.data)
    clean.eliminate_zeros()
    clean.data /= np.repeat(clean @ np.ones(clean.shape[1]), np.diff(clean.indptr))
    return clean


def _step_tables(transitions: Any, problem: Problem) -> list[Any]:
    """Return the transitions of one step, or of each, (S·A, S), sparse or not."""
    shape = (problem.mask.size, problem.states)
    if issparse(transitions):
        steps = [transitions]
    elif isinstance(transitions, list | tuple) and transitions and all(map(issparse, transitions)):
        steps = list(transitions)
    else:
        array = as_numbers("transitions", transitions).astype(np.float64, copy=False)
        staged = array.ndim == 4
        right = array.shape[staged:] == (*problem.mask.shape, problem.states)
        steps = list(array.reshape(-1, *shape)) if right and (array.ndim == 3 or staged) else [array]
    if wrong := [step.shape for step in steps if step.shape != shape]:
        raise InvalidInput(
            f"transitions must have shape (S, A, S) = {(*problem.mask.shape, problem.states)}, or be sparse of shape "
            f"(S·A, S) = {shape}. Got {wrong[0]} instead."
        )
    if len(steps) not in {1, problem.stages}:
        raise InvalidInput(f"transitions must be of {problem.stages} steps, the horizon. Got {len(steps)} instead.")
    return steps


def _sparse_parameters(problem: Problem, mu: Any) -> Sparse:
    """Validate a sparse μ and return one for each stage, in one form: by columns, sorted, without zeros."""
    if problem.columns is None:
        raise InvalidInput("a sparse mu needs one-hot features (Problem.tabular). Give it as an array.")
    given = [mu] if issparse(mu) else list(mu)
    if len(given) != problem.stages:
        raise InvalidInput(f"mu must be of {problem.stages} steps. Got {len(given)} instead.")
    expected, known = (problem.states, problem.dimension), {}
    for step in given:
        if id(step) in known:
            continue
        if step.shape != expected or step.dtype.kind not in "biuf":
            raise InvalidInput(
                f"mu must be of real numbers, of shape (S, d) = {expected}. Got {step.dtype} {step.shape} instead."
            )
        own = csc_array(step, dtype=np.float64, copy=True)
        own.sum_duplicates()
        own.eliminate_zeros()
        if not np.isfinite(own.data).all():
            raise InvalidInput("mu must be finite. Not all of its entries are.")
        known[id(step)] = own
    return tuple(known[id(step)] for step in given)


def stage_parameters(problem: Problem, theta: ArrayLike, mu: Any) -> tuple[FloatArray, Any]:
    """Validate the shapes of θ and μ and give them the stage axis: (stages, d) and (stages, S, d).

    A sparse μ becomes a tuple of sparse (S, d).
    """
    sparse = issparse(mu) or (isinstance(mu, list | tuple) and len(mu) > 0 and all(map(issparse, mu)))
    given: list[tuple[str, Any, tuple[str, ...]]] = [("theta", theta, ("d",))]
    given += [] if sparse else [("mu", mu, ("S", "d"))]
    axes = () if problem.horizon is None else ("H",)
    sizes = {"H": problem.stages, "S": problem.states, "d": problem.dimension}
    staged = []
    for name, value, own_axes in given:
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
    return staged[0], _sparse_parameters(problem, mu) if sparse else staged[1]


__all__ = ["LinearMDP", "Solution"]
