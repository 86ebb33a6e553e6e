"""UCLK: value-targeted regression along one trajectory of a discounted linear mixture (Zhou, He and Gu 2021), stopped
by a certificate.

    Σ = I, b = 0, U = 1/(1-γ) everywhere; walk from the first state
    repeat
        follow the greedy policy of U until det Σ has doubled
        each step: Σ += xxᵀ, b += x·U(s')  with x = x_U(s,a) of this epoch
        ŵ = Σ⁻¹b;  U ← min(U, max_a r⁺ + γ(x_Uᵀŵ + β‖x_U‖_{Σ⁻¹})) again and again, from 1/(1-γ) down;  π greedy
        L ← max(L, r⁻ + γ(x_Lᵀŵ - β‖x_L‖_{Σ⁻¹}) at π) again and again, from 0 up
    until U - L ≤ ε in every state (or at the start, if one is named); return π

    β = (1/(2(1-γ)))·√(2 log(2/δ) + log det Σ) + ‖w‖.

*Guarantee.* The reference bounds the regret along its own trajectory, which says nothing of the policy that comes out;
the certificate is ours. As in `ucrl_vtr` the ellipsoid around the weights holds at all times and for every V (one
statement, so no union over epochs), and rewards are learned with the other half of δ. If U ≥ V* then its backup is
above V*, too, whatever was iterated before: every iterate is a bound, so the iteration may end anywhere, and need not
contract. Likewise L ≤ V^π. The reference also keeps weights to those that make distributions; here values are clipped
instead (a superset).

States that the trajectory does not come back to keep wide bounds: a certificate for every state needs a chain that
mixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, nan
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import number
from bestpolicy._numerics.reproducible import greedy, steady
from bestpolicy.algorithms.peers.budget import only_discounted
from bestpolicy.algorithms.peers.mixtures import (
    Kernels,
    LearnedRewards,
    kernels_by_step,
    known_kernels,
    without_kernels,
)
from bestpolicy.algorithms.peers.online import (
    Bounds,
    RewardTable,
    best_values,
    certified_look,
    known_rewards,
    misfit,
    played,
    rewards_by_step,
)
from bestpolicy.algorithms.peers.ridge import Fit
from bestpolicy.algorithms.peers.walks import as_probabilities, last_state
from bestpolicy.algorithms.protocol import About, Request, Run, Task, check_times
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally

_PRECISION = 1e-5  # of the iterations, in units of the largest value


@dataclass(frozen=True)
class UCLK:
    """Value-targeted regression with a certificate, from one trajectory of a discounted linear mixture.

    Attributes
    ----------
    check_ratio : float
        Look at the data each time the number of steps has grown by this factor.
    rewards : table (S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    kernels : array (m, S, A, S)
        The kernels whose mixture the problem is; their weights must not be negative and sum to 1.
    """

    name: ClassVar[str] = "uclk"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="a mixture of known kernels, whose states are met again and again",
        guarantee="an ε for the policy at every look, at the end the asked one, in every state or at the start",
        complexity="m² log(1/δ) / ((1-γ)⁴ ε²) steps, m kernels, along its trajectory",
        constants="own proof, half of the reference's radius; with a stop and for unknown rewards",
        reference="Zhou, He, Gu: Provably Efficient RL for Discounted MDPs with Feature Mapping (2021)",
        sampling="one trajectory",
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False
    takes_start: ClassVar[bool] = True

    check_ratio: float = 1.05
    rewards: RewardTable | None = None
    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        number("check_ratio", self.check_ratio, above=1)
        object.__setattr__(self, "rewards", known_rewards(self.rewards))
        object.__setattr__(self, "kernels", known_kernels(self.kernels))

    def unsuitable(self, problem: Problem) -> str:
        """Discounted mixtures only."""
        return (
            only_discounted(problem, "ucrl-vtr")
            or misfit(self.rewards, problem)
            or without_kernels(self.kernels, problem)
        )

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone: the cost depends on what the trajectory meets."""
        return nan

    def run(self, task: Task) -> Run:
        """Follow optimistic policies until the bounds meet."""
        problem, learner = task.problem, ValueTargets(self, task)
        state = 0 if task.start is None else int(task.start.argmax())
        known, done = learner.bounds(), 0
        learner.begin_epoch()
        policy, check = known.play, None
        for steps in check_times(1, self.check_ratio):
            asked = Episodes(as_probabilities(problem, policy[0]), 1, state, steps - done)
            tally = yield Request(asked, check)
            state, done = last_state(problem, state, tally), done + tally.samples
            learner.add(tally)
            known = learner.bounds()
            check = certified_look(known, task, done, "UCLK (own proof)")
            if check.passed:
                break
            if learner.doubled:
                learner.begin_epoch()
                policy = known.play
        assert check is not None
        return check


class ValueTargets:
    """U and L from one regression, whose targets change with the epochs."""

    def __init__(self, algorithm: UCLK, task: Task) -> None:
        self.problem, self.start = task.problem, task.start
        rewards = rewards_by_step(algorithm.rewards, task.problem)
        self.known = None if rewards is None else (rewards, rewards)
        self.share = task.delta if self.known else task.delta / 2
        self.learned = None if self.known else LearnedRewards(task.problem, task.delta / 2)
        self.kernel = kernels_by_step(algorithm.kernels, task.problem)[0]
        self.tally = Tally.empty(task.problem, task.problem.pairs)
        bases = self.kernel.shape[1]
        self.gram, self.sums, self.log_det = np.eye(bases), np.zeros(bases), 0.0
        self.upper: FloatArray = np.full(task.problem.states, task.problem.value_limits[0])
        self.targets = self.upper

    def begin_epoch(self) -> None:
        """Take the values of the last look for targets."""
        self.targets, self.log_det = self.upper, self._fit.log_det

    @property
    def doubled(self) -> bool:
        """Whether det Σ has doubled since the epoch began."""
        return bool(steady(np.array(self._fit.log_det - self.log_det)) >= log(2))

    @property
    def _fit(self) -> Fit:
        return Fit(np.eye(len(self.gram)), self.gram)

    def add(self, tally: Tally) -> None:
        """Regress the values that are targets in this epoch."""
        full, x = tally.at(self.problem.pairs), self.kernel @ self.targets
        self.gram = self.gram + (x.T * full.pulls[0]) @ x
        self.sums = self.sums + x.T @ (full.next_counts[0] @ self.targets)
        self.tally += tally

    def bounds(self) -> Bounds:
        """Bound V*, and the value of the greedy policy."""
        problem, fit = self.problem, self._fit
        limit, gamma = float(problem.value_limits[0]), problem.continuation
        lowest, highest = self.known or self.learned.bounds(self.tally)  # type: ignore[union-attr]
        weights = np.linalg.solve(fit.gram, self.sums)
        radius, rounds = fit.radius(limit, self.share, 1.0), ceil(log(1 / _PRECISION) * limit)
        root = radius * np.linalg.inv(np.linalg.cholesky(fit.gram)).T  # ‖x‖_{Σ⁻¹} = |x·root|/radius

        def following(kernel: FloatArray, values: FloatArray, sign: int) -> FloatArray:
            x = kernel @ values
            mean: FloatArray = x @ weights + sign * np.sqrt(((x @ root) ** 2).sum(axis=1))
            return np.clip(mean, values.min(), values.max())

        upper: FloatArray = np.full(problem.states, limit)
        for _ in range(rounds):
            q_values, best = best_values(problem, highest[0] + gamma * following(self.kernel, upper, 1))
            upper = np.minimum(upper, best)
        policy: IntArray = greedy(q_values)
        chosen = played(problem, policy)
        lower, kernel = np.zeros(problem.states), self.kernel[chosen]
        for _ in range(rounds):
            lower = np.maximum(lower, lowest[0][chosen] + gamma * following(kernel, lower, -1))
        self.upper = upper
        apart = upper - lower
        epsilon = float(apart.max() if self.start is None else self.start @ apart)
        return Bounds(policy[None], policy[None], epsilon, q_values[None])
