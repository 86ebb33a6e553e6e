"""What can be said of a certificate without believing in its features: rollouts.

**Rollouts.** Returns of independent rollouts of π from s_0, cut after T steps, are bounded and independent whatever the
features: betting against each possible mean (Lemma W, with a fixed mixture of stakes) gives limits that hold for all
numbers of rollouts at once, with probability 1 - δ for all starts together; what is cut off is worth between 0 and
γ^T·L. If such an interval lies outside of what was certified for s_0, then the model is refuted at that level: the
features do not fit (or an event of probability δ has happened).

*Proof for mixtures.* For fixed stakes λ_k and weights w_k, Σ_k w_k Π_i (1 + λ_k(m - Y_i)) is a non-negative martingale
of mean 1 at the true mean m, and it increases in m: Ville's inequality, as in `stopping.lemmas.wagers`. ∎
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import BoolArray, FloatArray
from bestpolicy._numerics.inputs import number, of_type, whole
from bestpolicy.errors import InvalidInput
from bestpolicy.features.base import named
from bestpolicy.simulators import FeatureSimulator
from bestpolicy.study.feature_result import FeatureResult

STAKES = np.array([0.9, 0.6, 0.4, 0.25, 0.15, 0.1, 0.06, 0.04, 0.025, 0.015, 0.01])  # of 1/(range)
_CUT = 1e-3  # of L: what a rollout that is cut may miss


@dataclass(frozen=True, eq=False)
class Audit:
    """Values of a policy by rollouts beside what was certified; all in your units.

    Attributes
    ----------
    starts : array (n, k)
    measured : array (n, 2)
        Limits of V^π by rollouts alone, all of them right with probability 1 - `delta`.
    certified : array (n, 2)
        What the certificate says of V^π and V*.
    loss : array (n,)
        Upper limit of V*(s) - V^π(s) in which only the upper bound on V* rests on the features.
    delta : float
    rollouts : int
    """

    starts: FloatArray
    measured: FloatArray
    certified: FloatArray
    loss: FloatArray
    delta: float
    rollouts: int

    @property
    def disagrees(self) -> BoolArray:
        """Starts at which rollouts refute the certificate, (n,)."""
        found: BoolArray = (self.measured[:, 1] < self.certified[:, 0]) | (self.measured[:, 0] > self.certified[:, 1])
        return found

    @property
    def passed(self) -> bool:
        """Whether nothing is refuted."""
        return not bool(self.disagrees.any())

    def __str__(self) -> str:
        if self.passed:
            return (
                f"{self.rollouts:,} rollouts from each of {len(self.starts)} starts agree with what was certified "
                f"(at level {self.delta:g}). That is no proof of it elsewhere."
            )
        first = int(self.disagrees.argmax())
        (low, high), (least, most) = self.measured[first], self.certified[first]
        return (
            f"REFUTED at level {self.delta:g}: from {named(self.starts, row=first)} the policy is worth {low:.4g} to "
            f"{high:.4g} by rollouts, and {least:.4g} to {most:.4g} were certified. The features do not fit: the "
            "certificate holds for the interpolated model, not for this simulator. Refine them."
        )


def audit(
    result: FeatureResult,
    simulator: FeatureSimulator,
    starts: ArrayLike,
    *,
    rollouts: int = 1000,
    delta: float = 0.05,
    seed: int = 0,
) -> Audit:
    """Measure a certified policy by rollouts, without any assumption about features.

    Parameters
    ----------
    result : FeatureResult
        Of `identify` on a `FeatureProblem`.
    simulator : FeatureSimulator
        Its `step` is called at whatever states the policy visits.
    starts : array (n, k)
    rollouts : int
        From each start.
    delta : float
        Allowed probability that any of the limits is wrong.
    seed : int
    """
    problem, begin, rng = checked(result, simulator, starts, seed)
    number("delta", delta, above=0, below=1)
    many, limit = whole("rollouts", rollouts, 1), float(problem.value_limits[0])
    steps = problem.stages if problem.discount is None else ceil(log(_CUT) / log(problem.discount))
    gamma, scale, offset = problem.continuation, result._units.reward_scale, result._units.reward_offset
    states, returns, weight = np.repeat(begin, many, axis=0), np.zeros(len(begin) * many), 1.0
    for step in range(steps):
        actions = result.policy(states, step if problem.horizon is not None else 0)
        rewards, states = simulator.call(states, actions, rng, step)
        returns += weight * (rewards - offset) / scale
        weight *= gamma
    rest = 0.0 if problem.discount is None else weight * limit
    most = limit - rest
    level = log(2 * len(begin) / delta)
    found = np.array([mean_limits(some, most, level) for some in returns.reshape(len(begin), many)])
    found[:, 1] += rest
    own = result.values(begin)
    measured = found * scale + offset * limit
    return Audit(begin, measured, own, own[:, 1] - measured[:, 0], float(delta), many)


def mean_limits(outcomes: FloatArray, most: float, level: float) -> tuple[float, float]:
    """Limits of the mean of numbers in [0, most]."""
    stakes = STAKES / most

    def wealth(mean: float, side: float) -> float:
        gains = np.log1p(side * stakes[:, None] * (mean - outcomes)).sum(axis=1)
        return float(np.logaddexp.reduce(gains) - log(len(stakes)))

    ends = []
    for side, trivial, centre in ((-1.0, 0.0, outcomes.mean()), (1.0, most, outcomes.mean())):
        inside, outside = float(centre), trivial
        if wealth(outside, side) < level:
            ends.append(trivial)
            continue
        for _ in range(32):  # `outside` always has enough wealth
            middle = 0.5 * (inside + outside)
            inside, outside = (inside, middle) if wealth(middle, side) >= level else (middle, outside)
        ends.append(outside)
    return ends[0], ends[1]


def checked(result: Any, simulator: Any, starts: ArrayLike, seed: int) -> tuple[Any, FloatArray, np.random.Generator]:
    """Return the problem, states and random numbers of a test of a result, if they belong together."""
    if not isinstance(result, FeatureResult):
        raise InvalidInput(f"result must be one of a FeatureProblem. Got {type(result).__name__} instead.")
    of_type("simulator", simulator, FeatureSimulator)
    problem = result.policy.problem
    if simulator.problem.fingerprint != problem.fingerprint:
        raise InvalidInput("the simulator belongs to another problem than the result.")
    begin = problem.states_of(starts)
    if not len(begin):
        raise InvalidInput("starts must have one state at least.")
    return problem, begin, np.random.default_rng(whole("seed", seed, 0))
