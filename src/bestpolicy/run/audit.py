"""What can be said of a certificate without believing in its features: rollouts, and tests of the features themselves.

**Rollouts.** Returns of independent rollouts of π from s_0, cut after T steps, are bounded and independent whatever the
features: betting against each possible mean (Lemma W, with a fixed mixture of stakes) gives limits that hold for all
numbers of rollouts at once, with probability 1 - δ for all starts together; what is cut off is worth between 0 and
γ^T·L. If such an interval lies outside of what was certified for s_0, then the model is refuted at that level: the
features do not fit (or an event of probability δ has happened).

*Proof for mixtures.* For fixed stakes λ_k and weights w_k, Σ_k w_k Π_i (1 + λ_k(m - Y_i)) is a non-negative martingale
of mean 1 at the true mean m, and it increases in m: Ville's inequality, as in `stopping.lemmas.wagers`. ∎

**Misfit.** At a pair (s, a) with weights φ_c on the anchors, D = Y(s, a) - Σ_c φ_c Y(anchor c) has mean ζ(s, a), the
error of interpolation of the one function in question, whatever the coupling. With the same random numbers for all of
them it varies little. Many pairs with few samples choose the worst (screening); fresh samples of these give their ζ
with limits by Lemma W; the range of D is twice that of Y. This is no bound on the supremum over a continuum: nothing
measured is.
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
from bestpolicy.stopping.hull import value_ranges
from bestpolicy.study.feature_result import FeatureResult
from bestpolicy.study.result import at_most

_STAKES = np.array([0.9, 0.6, 0.4, 0.25, 0.15, 0.1, 0.06, 0.04, 0.025, 0.015, 0.01])  # of 1/(range)
_CUT = 1e-3  # of L: what a rollout that is cut may miss
_SCREENED, _CONFIRMED = 32, 2000  # samples of a pair: of all, and of the worst
_WORST = 8


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
    problem, begin, rng = _checked(result, simulator, starts, seed)
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
    found = np.array([_interval(some, most, level) for some in returns.reshape(len(begin), many)])
    found[:, 1] += rest
    own = result.values(begin)
    measured = found * scale + offset * limit
    return Audit(begin, measured, own, own[:, 1] - measured[:, 0], float(delta), many)


def _interval(outcomes: FloatArray, most: float, level: float) -> tuple[float, float]:
    """Limits of the mean of numbers in [0, most]."""
    stakes = _STAKES / most

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


@dataclass(frozen=True, eq=False)
class Misfit:
    """The largest interpolation error that was found, in your units of reward.

    Attributes
    ----------
    zeta, width : float
        The largest of the confirmed errors (0 if none is positive), and how far its upper limit is above.
    state, action
        Where it was found.
    pairs : int
        How many were tested.
    epsilon, at_zeta : float
        What is certified if features are exact, and if they misfit by no more than zeta + width anywhere.
    """

    zeta: float
    width: float
    state: FloatArray
    action: int
    pairs: int
    epsilon: float
    at_zeta: float

    def __str__(self) -> str:
        return (
            f"ε = {at_most(self.epsilon)}. If the interpolation error is nowhere larger than the largest found at "
            f"{self.pairs} tested pairs (ζ = {self.zeta:.3g} ± {self.width:.2g}), ε = {at_most(self.at_zeta)}."
        )


def misfit(
    result: FeatureResult,
    simulator: FeatureSimulator,
    states: ArrayLike,
    *,
    delta: float = 0.05,
    seed: int = 0,
) -> Misfit:
    """Test the features of a result at states, with every allowed action: how wrong is interpolation there?

    It needs a feature map with anchors and a simulator whose `step` uses `rng` alike in all states, so that common
    random numbers make differences small; otherwise it is as right, and wider.
    """
    problem, begin, _ = _checked(result, simulator, states, seed)
    anchors = problem.feature_map.anchors
    if anchors is None or problem.horizon is not None:
        raise InvalidInput("misfit is for discounted problems whose feature map has anchors that can be simulated.")
    place = np.flatnonzero(problem.allowed(begin).reshape(-1))
    row, action = np.divmod(place, problem.actions)
    tester = _Tester(result, simulator, anchors)
    screened = np.array(
        [
            tester.differences(begin[i], int(a), _SCREENED, (seed, 0, n)).mean(axis=1)
            for n, (i, a) in enumerate(zip(row, action, strict=True))
        ]
    )
    worst = [(int(i), side) for side in (0, 1) for i in np.argsort(-screened[:, side])[:_WORST]]
    level = log(2 * len(worst) / number("delta", delta, above=0, below=1))
    best = (-1.0, 0.0, 0)
    for n, (i, side) in enumerate(worst):
        found = tester.differences(begin[row[i]], int(action[i]), _CONFIRMED, (seed, 1, n))[side]
        reach = 2 * tester.range
        high = _interval(found + tester.range, reach, level)[1] - tester.range
        if high > best[0] + best[1]:
            best = float(found.mean()), float(high - found.mean()), i
    scale = result._units.reward_scale
    zeta, width = max(0.0, best[0]) * scale, best[1] * scale
    at = result.epsilon_at(max(0.0, zeta + width))
    return Misfit(zeta, width, begin[row[best[2]]], int(action[best[2]]), len(row), result.epsilon, at)


class _Tester:
    """Differences between a pair and its interpolation, with common random numbers."""

    def __init__(self, result: FeatureResult, simulator: FeatureSimulator, anchors: Any) -> None:
        self.problem, self.simulator, self.anchors = result.policy.problem, simulator, anchors
        self.vectors = result._vectors[::-1, 0, :-1]  # ξ⁺, ξ⁻
        low, high, _ = value_ranges(self.problem, result._vectors[::-1, :, :-1])
        self.low, self.high = low[:, 0], high[:, 0]
        least, most = self.problem.remainder_limits
        self.range = float((most - least).max() + self.problem.continuation * (self.high - self.low).max())
        if self.problem.remainder is None:  # at other pairs R' has other limits
            self.range += 1.0

    def outcomes(self, state: FloatArray, action: int, samples: int, seed: tuple[int, ...]) -> FloatArray:
        """R' + γV^±(S') of a pair, (2, n)."""
        states, actions = np.repeat(state[None], samples, axis=0), np.full(samples, action)
        rewards, following = self.simulator.call(states, actions, np.random.default_rng(seed))
        scaled = (rewards - self.simulator.low) / self.simulator.units.reward_scale
        values = np.clip(self.problem.values(following, np.ascontiguousarray(self.vectors.T)), self.low, self.high)
        found: FloatArray = scaled - self.problem.known(states, actions) + self.problem.continuation * values.T
        return found

    def differences(self, state: FloatArray, action: int, samples: int, seed: tuple[int, ...]) -> FloatArray:
        """D of V⁺, and of V⁻ the other way round, (2, n); each is harmful where its mean is positive."""
        index, weight = self.problem.feature_map.weights(state[None], np.array([action]))
        mixed = sum(
            weight[0, i] * self.outcomes(self.anchors[0][c], int(self.anchors[1][c]), samples, seed)
            for i, c in enumerate(index[0])
            if weight[0, i] > 0
        )
        found: FloatArray = (self.outcomes(state, action, samples, seed) - mixed) * np.array([[1.0], [-1.0]])
        return found


def _checked(result: Any, simulator: Any, starts: ArrayLike, seed: int) -> tuple[Any, FloatArray, np.random.Generator]:
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
