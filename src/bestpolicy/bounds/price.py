"""The price of certainty: what a guarantee costs beside being right without knowing it.

The *plug-in* draws n samples of every allowed pair (at every step, if episodic), estimates the model and plays an
optimal policy of the estimate. It stops when it is told to and promises nothing. On a known model one can count,
though, how large n must be for its policy to be within ε of optimal in, say, 95 % of runs. No learner can read that
number off its samples; it is the yardstick for those that certify: their samples over those of the plug-in are the
*price*.

n is the first number of a grid (1, 2, 3, … and eight to an octave later on) with which at least that share of `runs`
independent runs is good: doubling until it is, then bisection. A number is given up as soon as too many of its runs are
bad, and accepted as soon as enough are good, so the answer is that of all runs. It is an estimate:
with 60 runs another seed moves it by a tenth to a third (standard deviation over seeds, four built-in instances).

Losses are those in the worst state, or from a start if one is given. Means over n samples are the estimate of a table.
For other features it is least squares with equal weights, and values are clipped to what is possible, as `planning`
does for all estimated models.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix, Sparse, as_floats, dense, diagonal_of
from bestpolicy._numerics.inputs import number, of_type, whole
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.planning import optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators import ExactSimulator
from bestpolicy.simulators.exact import RewardLaw

_DOUBLINGS = 40
_PER_OCTAVE = 8
_GRID = sorted({round(2 ** (step / _PER_OCTAVE)) for step in range(_DOUBLINGS * _PER_OCTAVE + 1)})
_LARGEST = 2 * 10**7  # possible next states of all pairs: beyond, one run alone would take longer than most limits
_SAME = 1e-9  # of the largest value: losses that differ by less are equal


@dataclass(frozen=True)
class PlugInSamples:
    """What the uncertified plug-in needs on a known model, estimated from runs of it.

    Attributes
    ----------
    samples : int or None
        Simulator calls; None if they were not found.
    per_pair : int or None
        Calls for each allowed pair (and step).
    epsilon, share : float
        The policy is within `epsilon` of optimal in at least this share of the runs.
    runs, seed : int
        How many were made with each number of samples, at most, and their seed.
    reason : str
        "reached", "time limit", "sample limit", or "too large": why the search ended.
    """

    samples: int | None
    per_pair: int | None
    epsilon: float
    share: float
    runs: int
    seed: int
    reason: str

    def price(self, samples: float) -> float | None:
        """Return how many times as many samples somebody else took; None if it is not known."""
        return None if self.samples is None else float(samples) / self.samples


def plug_in_samples(
    mdp: LinearMDP,
    epsilon: float,
    *,
    share: float = 0.95,
    runs: int = 60,
    seed: int = 0,
    max_seconds: float = 60.0,
    rewards: RewardLaw = "bernoulli",
    start: int | ArrayLike | None = None,
) -> PlugInSamples:
    """Estimate how many samples the uncertified plug-in needs to be within ε of optimal in most runs.

    The same seed gives the same number on every machine, unless the time limit gives none.

    Parameters
    ----------
    mdp : LinearMDP
    epsilon : float
        ε ≥ 0, in units of normalised rewards.
    share : float, optional
        Of the runs that must be good, in (0, 1).
    runs : int, optional
        With each number of samples that is tried.
    seed : int, optional
    max_seconds : float, optional
        Give up then, without a number: what was found by then would depend on the machine.
    rewards : {"bernoulli", "deterministic"}, optional
        Law of the rewards, as in `ExactSimulator`.
    start : int or array (S,), optional
        The loss that counts is that from this state, or from this distribution over states; by default the worst one.

    Returns
    -------
    PlugInSamples
    """
    of_type("mdp", mdp, LinearMDP)
    epsilon, share = number("epsilon", epsilon), number("share", share, above=0, below=1)
    runs, seed = whole("runs", runs, 1), whole("seed", seed, 0)
    deadline = monotonic() + number("max_seconds", max_seconds, above=0, infinite=True)
    simulator = ExactSimulator(mdp, rewards)
    problem = mdp.problem

    def ended(per_pair: int | None, reason: str) -> PlugInSamples:
        samples = None if per_pair is None else per_pair * problem.stages * len(problem.pairs)
        return PlugInSamples(samples, per_pair, epsilon, share, runs, seed, reason)

    if _next_states(mdp) > _LARGEST:
        return ended(None, "too large")
    plug_in = _PlugIn(simulator, epsilon, start_weights(problem, start), deadline)
    needed = ceil(share * runs - 1e-9)
    with one_thread():
        try:
            for doublings in range(_DOUBLINGS + 1):
                if plug_in.is_good_enough(2**doublings, needed, runs, seed):
                    break
            else:
                return ended(None, "sample limit")
            tried = [size for size in _GRID if 2**doublings < 2 * size <= 2 ** (doublings + 1)]
            first = bisect_left(
                tried[:-1], True, key=lambda size: plug_in.is_good_enough(size, needed, runs, seed)
            )  # the last one is good
        except TimeoutError:
            return ended(None, "time limit")
    return ended(tried[first], "reached")


class _PlugIn:
    """Runs of the plug-in on one model.

    Parameters
    ----------
    simulator : ExactSimulator
    epsilon : float
        What counts as a good policy.
    start : array (S,) or None
        Where.
    deadline : float
        On the monotonic clock; `TimeoutError` is raised then.
    """

    def __init__(self, simulator: ExactSimulator, epsilon: float, start: FloatArray | None, deadline: float) -> None:
        self._simulator, self._start, self._deadline = simulator, start, deadline
        self._limit = epsilon + _SAME * float(simulator.problem.value_limits[0])
        self._weights = regression_weights(simulator.problem)
        self._known: dict[bytes, bool] = {}  # most runs end with one of a few policies
        self._last: IntArray | None = None

    def is_good_enough(self, per_pair: int, needed: int, runs: int, seed: int) -> bool:
        """Whether so many of the runs with `per_pair` samples of each pair are good."""
        good = 0
        for run in range(runs):
            if monotonic() > self._deadline:
                raise TimeoutError
            good += self._is_good(self._policy(per_pair, np.random.default_rng([seed, per_pair, run])))
            if good >= needed or good + runs - run - 1 < needed:
                break
        return good >= needed

    def _policy(self, per_pair: int, rng: np.random.Generator) -> IntArray:
        problem = self._simulator.problem
        pulls = Pulls(problem.pairs, np.full((problem.stages, len(problem.pairs)), per_pair))
        sparse = self._simulator.mdp.kernel is not None
        theta, mu = estimate(self._simulator.sample(pulls, rng), per_pair, self._weights, sparse=sparse)
        self._last = optimal_plan(problem, theta, mu, start=self._last).policy  # runs are alike: a good place to start
        return self._last

    def _is_good(self, policy: IntArray) -> bool:
        key = policy.tobytes()
        if key not in self._known:
            self._known[key] = loss_from(self._simulator.mdp, policy, self._start) <= self._limit
        return self._known[key]


def start_weights(problem: Problem, start: int | ArrayLike | None) -> FloatArray | None:
    """Return a start, a state or a distribution, as a distribution (S,); None for every state."""
    if start is None:
        return None
    if np.ndim(start) == 0:
        state = whole("start", start, 0)
        if state >= problem.states:
            raise InvalidInput(f"start must be one of {problem.states} states, from 0. Got {state} instead.")
        weights: FloatArray = np.zeros(problem.states)
        weights[state] = 1.0
        return weights
    weights = as_floats("start", start, ("states",))
    if weights.shape != (problem.states,) or not ((weights >= 0).all() and abs(weights.sum() - 1) <= 1e-9):
        raise InvalidInput(f"start must be a distribution over {problem.states} states: not negative, with sum 1.")
    return weights


def loss_from(mdp: LinearMDP, policy: IntArray, start: FloatArray | None) -> float:
    """V* - V^π of a policy (stages, S) in the worst state, or from a start distribution (S,)."""
    losses = mdp.plan.values[0] - mdp.evaluate(policy if mdp.problem.horizon is not None else policy[0]).values[0]
    return max(0.0, float(losses.max() if start is None else losses @ start))


def _next_states(mdp: LinearMDP) -> int:
    """Count the entries of all distributions of next states that are kept."""
    if mdp.kernel is not None:
        return sum(int(step.nnz) for step in mdp.kernel)
    return mdp.problem.stages * len(mdp.problem.pairs) * mdp.problem.states


def regression_weights(problem: Problem) -> Matrix:
    """Return W (d, n): least squares with equal weights turns means y at the allowed pairs into parameters W y."""
    rows = problem.matrix[problem.pairs]
    lengths = diagonal_of(rows.T @ rows)
    if lengths is None:
        return np.linalg.pinv(dense(rows)).astype(np.float64, copy=False)
    return rows.T / lengths[:, None]


def estimate(
    tally: Tally, per_pair: int, weights: Matrix, *, sparse: bool = False
) -> tuple[FloatArray, FloatArray | Sparse]:
    """Return θ̂ (stages, d) and μ̂ (stages, S, d), or sparse ones, of `per_pair` samples of each allowed pair."""
    theta = np.stack([weights @ (sums / per_pair) for sums in tally.reward_sums])
    if sparse:
        stages, pairs, states = tally.shape
        row, following = np.divmod(tally.cells, states)
        seen = csr_array((tally.counts / per_pair, (row, following)), shape=(stages * pairs, states))
        steps = (seen[stage * pairs : (stage + 1) * pairs] for stage in range(stages))
        return theta, tuple((csr_array(weights) @ step).T.tocsr() for step in steps)
    mu = np.stack([np.ascontiguousarray((weights @ (counts / per_pair)).T) for counts in tally.next_counts])
    return theta, mu
