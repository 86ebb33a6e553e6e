"""Tests of a feature map: how wrong is interpolation, where states cannot be listed?

At a pair (s, a) with weights φ_c on the anchors, D = Y(s, a) - Σ_c φ_c Y(anchor c) has mean ζ(s, a), the error of
interpolation of the one function in question (the values of the next step, if there are episodes), whatever the
coupling. With the same random numbers for all of them it varies little. Many pairs with few samples choose the worst
(screening); fresh samples of these give their ζ with limits by Lemma W; the range of D is twice that of Y. This is no
bound on the supremum over a continuum: nothing measured is.

*All limits are right with probability 1 - δ.* The screening fixes which pairs are confirmed, from samples of its own;
given that, each of them has two limits by betting, each wrong with probability δ/(2·pairs) at *any* number of samples:
so more of them may follow where those so far suggest a misfit that counts and do not show it. ∎

`identify` does it by itself once something is certified, at states that paths from the anchors visit, with a share of
the run's calls (and up to four times that share where more follow); all of it is determined by the seed.
"""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import number, whole
from bestpolicy.diagnostics.doubt import LEVEL
from bestpolicy.errors import BestPolicyError, InvalidInput, one_line
from bestpolicy.problem import FeatureProblem
from bestpolicy.run.audit import checked, mean_limits
from bestpolicy.run.measure import Record
from bestpolicy.simulators import FeatureSimulator
from bestpolicy.simulators.calls import Paused, recording
from bestpolicy.stopping.hull import value_ranges
from bestpolicy.study import Study
from bestpolicy.study.feature_result import FeatureResult
from bestpolicy.study.misfit import NO_TIME, FeatureMisfit

_SCREENED, _CONFIRMED = 32, 2000  # samples of a pair: of all, and of the worst
_WORST = 8  # pairs that are confirmed, for each of the two functions
_FEWEST, _TOO_FEW = 1000, 300  # calls that a run spends on it at least, if its budget allows; fewer show nothing
_PAIRS = 400  # that a run screens at most
_FEW = 8  # samples of each of them
_AGAIN = 20  # times that samples of a pair are doubled
_STEPS = 4  # of the paths whose states are tested
_MORE = 4  # times the share of the calls: what a misfit that counts and is not shown yet may take
_STREAM = 5  # of the study's seed


def misfit(
    result: FeatureResult,
    simulator: FeatureSimulator,
    states: ArrayLike,
    *,
    delta: float = 0.05,
    seed: int = 0,
) -> FeatureMisfit:
    """Test the features of a result at states, with every allowed action, at every step: how wrong are they there?

    It needs a feature map with anchors (or nodes that `step_from` simulates) and a simulator whose `step` uses `rng`
    alike in all states, so that common random numbers make differences small; otherwise it is as right, and wider.
    """
    problem, begin, _ = checked(result, simulator, states, seed)
    wrong = untestable(problem, simulator)
    if wrong:
        raise InvalidInput(f"misfit cannot be tested: {wrong}.")
    place = np.flatnonzero(problem.allowed(begin).reshape(-1))
    row, action = np.divmod(place, problem.actions)
    places = [
        Place(begin[i], int(a), stage) for stage in range(problem.stages) for i, a in zip(row, action, strict=True)
    ]
    return _tested(result, simulator, places, (_SCREENED, _CONFIRMED, _WORST), delta, seed)


def untestable(problem: Any, simulator: Any) -> str:
    """Say why a feature map cannot be tested; nothing if it can."""
    if problem.coefficients is not None:
        return "the feature map has no anchors, pairs whose features are the unit vectors"
    return "" if isinstance(simulator, FeatureSimulator) else "the simulator cannot be called at other states"


def examine(study: Study, simulator: Any, deadline: float | None = None) -> None:
    """Have a study of a feature map that has its certificate know of the features' fit, if it was to be tested.

    A test that the deadline (on the clock of `time.monotonic`) cuts short finds nothing; the same call again tests.
    """
    share, result = study.settings.linearity, study.result()
    if study.fit_is_known or not share or not study.problem.has_choice or not isinstance(result, FeatureResult):
        return
    room = np.inf if study.max_samples is None else study.max_samples - study.samples
    calls = int(min(room, max(_FEWEST, share * study.samples)))
    most = int(min(room, _MORE * max(_FEWEST, share * study.samples)))
    why = untestable(study.problem, simulator)
    if not why and calls < _TOO_FEW:
        why = "no calls of the budget were left for it"
    if not why:
        try:
            with recording(Record(until=deadline).open(lambda: study.stop_requested)):
                found = _within(result, simulator, calls, most)
            study.know_fit(found)
            return
        except Paused:
            why = NO_TIME
        except BestPolicyError as error:
            why = f"the test failed: {one_line(error).rstrip('.')}"
    study.know_fit(why)


def _within(result: FeatureResult, simulator: FeatureSimulator, calls: int, most: int) -> FeatureMisfit:
    """Test with so many calls, half of them for screening, or with `most` of them where more must follow."""
    rng = np.random.default_rng(np.random.SeedSequence(result.seed, spawn_key=(_STREAM,)))
    problem = result.policy.problem
    paths = max(1, min(_PAIRS, calls // 50) // _STEPS)
    states, walked = _visited(result, simulator, paths, rng)
    actions = _random_actions(problem, states, rng)
    stages = (
        np.zeros(len(states), np.int64) if problem.horizon is None else rng.integers(problem.stages, size=len(states))
    )
    index, _ = problem.feature_map.weights(states[:1], actions[:1])
    each = 1 + index.shape[1]  # calls of one difference, at most
    half = (calls - walked) // 2
    many = max(1, min(len(states), half // (_FEW * each)))
    chosen = rng.permutation(len(states))[:many]
    few = min(_FEW, max(1, half // (many * each)))
    worst = max(1, min(_WORST, half // (2 * each * _CONFIRMED)))
    confirmed = max(1, half // (2 * each * worst))
    seed = int(rng.integers(2**62))
    sizes = few, confirmed, worst
    places = [Place(states[i], int(actions[i]), int(stages[i])) for i in chosen]
    found = _tested(result, simulator, places, sizes, LEVEL, seed, most - walked)
    return FeatureMisfit(**vars(found) | {"calls": found.calls + walked})


def _visited(
    result: FeatureResult, simulator: FeatureSimulator, paths: int, rng: np.random.Generator
) -> tuple[FloatArray, int]:
    """Return states of paths that begin at random anchors, and the calls they took.

    Half of the decisions are the policy's, the others random, so that states turn up that either of them leads to.
    """
    problem, seen = result.policy.problem, list[FloatArray]()
    pairs, place = problem.feature_map.pairs, rng.integers(problem.places, size=paths)
    if pairs is None:
        _, states = simulator.from_nodes(place, rng)
    else:
        _, states = simulator.call(pairs[0][place], pairs[1][place], rng)
    seen.append(states)
    for step in range(1, min(_STEPS, problem.horizon or _STEPS)):
        now = 0 if problem.horizon is None else step
        own, other = result.policy(states, now), _random_actions(problem, states, rng)
        _, states = simulator.call(states, np.where(rng.random(len(states)) < 0.5, own, other), rng, now)
        seen.append(states)
    return np.concatenate(seen), paths * len(seen)


def _random_actions(problem: FeatureProblem, states: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return an allowed action for each state, (n,)."""
    allowed = problem.allowed(states)
    drawn: IntArray = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
    return drawn


def _tested(
    result: FeatureResult,
    simulator: FeatureSimulator,
    places: list[Place],
    sizes: tuple[int, int, int],
    delta: float,
    seed: int,
    calls: int = 0,
) -> FeatureMisfit:
    """Screen places, and confirm the worst of them; further, up to so many calls, if what counts is not shown."""
    few, many, most = sizes
    tester = Differences(result, simulator)
    screened = np.array([tester.differences(at, few, (seed, 0, n)).mean(axis=1) for n, at in enumerate(places)])
    worst = [(int(i), side) for side in (0, 1) for i in np.argsort(-screened[:, side], kind="stable")[:most]]
    level = log(2 * len(worst) / number("delta", delta, above=0, below=1))
    scale = result._units.reward_scale
    counts = result.epsilon / (result.epsilon_at(1.0) - result.epsilon) / scale  # the misfit that moves ε by ε
    (mean, high), at, shown, at_shown = (-1.0, -np.inf), places[0], 0.0, places[0]
    for n, (i, side) in enumerate(worst):
        place, outcomes = places[i], np.zeros(0)
        low, top = tester.limits(place)[:, side]
        for again in range(_AGAIN):
            drawn = tester.differences(place, max(many, len(outcomes)), (seed, 1, n, again))[side]
            outcomes = np.concatenate([outcomes, drawn])
            least, limit = (float(end + low) for end in mean_limits(outcomes - low, top - low, level))
            doubled = tester.calls + len(outcomes) * tester.each(place)
            if not least <= counts < outcomes.mean() or doubled > calls:
                break
        if limit > high:
            (mean, high), at = (float(outcomes.mean()), limit), place
        if least > shown:
            shown, at_shown = least, place
    zeta, shown = max(0.0, mean) * scale, shown * scale
    width = max(0.0, high * scale - zeta)
    epsilon_at = result.epsilon_at
    if epsilon_at(shown) > 2 * result.epsilon:
        at = at_shown
    return FeatureMisfit(
        zeta,
        width,
        at.state,
        at.action,
        len(places),
        result.epsilon,
        epsilon_at(zeta + width),
        shown,
        epsilon_at(shown),
        float(delta),
        tester.calls,
    )


class Place(NamedTuple):
    """A pair at a step of an episode (0 if there are none)."""

    state: FloatArray
    action: int
    stage: int = 0


class Differences:
    """Differences between a pair and its interpolation, with common random numbers."""

    def __init__(self, result: FeatureResult, simulator: FeatureSimulator) -> None:
        self.problem, self.simulator, self.calls = result.policy.problem, simulator, 0
        self.vectors = result._vectors[::-1, :, :-1]  # ξ⁺, ξ⁻ of each step
        self.low, self.high, _ = value_ranges(self.problem, self.vectors)

    def each(self, place: Place) -> int:
        """Return the calls that one difference takes."""
        return 1 + int((self._weights(place)[1] > 0).sum())

    def limits(self, place: Place) -> FloatArray:
        """Limits of D of V⁺, and of V⁻ the other way round, (2, 2): below first. They are 2Λ apart.

        R' of the pair is known to be in [-g, 1-g] only: the problem's remainder is about what is simulated.
        """
        index, weight = self._weights(place)
        known = float(self.problem.known(place.state[None], np.array([place.action]))[0])
        least, most = (float(weight @ each[index]) for each in self.problem.remainder_limits)
        following = self._following(place.stage)
        spread = 0.0 if following is None else self.high[:, following] - self.low[:, following]
        spread = self.problem.continuation * np.broadcast_to(spread, 2)
        low, high = -known - most - spread, 1.0 - known - least + spread
        return np.array([[low[0], -high[1]], [high[0], -low[1]]])

    def outcomes(self, place: Place, samples: int, seed: tuple[int, ...]) -> FloatArray:
        """R' + γV^±(S') of a pair, (2, n)."""
        states, actions = np.repeat(place.state[None], samples, axis=0), np.full(samples, place.action)
        rewards, following = self.simulator.call(states, actions, np.random.default_rng(seed), place.stage)
        scaled = (rewards - self.simulator.low) / self.simulator.units.reward_scale
        return self._with_values(scaled - self.problem.known(states, actions), following, place.stage)

    def at_anchor(self, number: int, stage: int, samples: int, seed: tuple[int, ...]) -> FloatArray:
        """The same of an anchor, or of a node that no pair reaches."""
        pairs = self.problem.feature_map.pairs
        if pairs is not None:
            return self.outcomes(Place(pairs[0][number], int(pairs[1][number]), stage), samples, seed)
        rewards, following = self.simulator.from_nodes(np.full(samples, number), np.random.default_rng(seed), stage)
        return self._with_values(rewards, following, stage)

    def differences(self, place: Place, samples: int, seed: tuple[int, ...]) -> FloatArray:
        """D of V⁺, and of V⁻ the other way round, (2, n); each is harmful where its mean is positive."""
        whole("samples", samples, 1)
        mixed = sum(
            share * self.at_anchor(int(c), place.stage, samples, seed)
            for c, share in zip(*self._weights(place), strict=True)
            if share > 0
        )
        found: FloatArray = (self.outcomes(place, samples, seed) - mixed) * np.array([[1.0], [-1.0]])
        return found

    def _weights(self, place: Place) -> tuple[IntArray, FloatArray]:
        index, weight = self.problem.feature_map.weights(place.state[None], np.array([place.action]))
        return index[0], weight[0]

    def _following(self, stage: int) -> int | None:
        """The step whose values come after one; None after the last."""
        if self.problem.horizon is None:
            return 0
        return stage + 1 if stage + 1 < self.problem.horizon else None

    def _with_values(self, rewards: FloatArray, states: FloatArray, stage: int) -> FloatArray:
        self.calls += len(rewards)
        following = self._following(stage)
        if following is None:
            return np.stack([rewards] * 2)
        values = self.problem.values(states, np.ascontiguousarray(self.vectors[:, following].T))
        values = np.clip(values, self.low[:, following], self.high[:, following])
        found: FloatArray = rewards + self.problem.continuation * values.T
        return found
