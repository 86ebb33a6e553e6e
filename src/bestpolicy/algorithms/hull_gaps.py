"""The next lag of Theorem H, from the past, and how many samples it should take.

The lag's policy is that of the past's own solution. To know beforehand what a test of n samples would certify, the
rule itself is applied to a part of the past, as if it were a test with these counts whose model is off by what is
usual. None of this has to be right: whatever is fixed here, Theorem H holds.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.hull_plan import PastModel
from bestpolicy.problem import FeatureProblem
from bestpolicy.samples.kept import Kept
from bestpolicy.stopping.hull_gaps import Excess, GapLag, Seen, everywhere, function_limits, noise, response_of
from bestpolicy.stopping.lemmas.betting import best_bets

LOOKS = (0.55, 0.65, 0.75, 0.85, 1.0, 1.3, 2.0)  # times the planned number of test samples
BETS = 4  # on each direction
PAST = 0.3  # of the test: a past of this size is worth its samples
_DEVIATIONS = 1.0  # by which the test's model will be off the past's
_PART = 5000  # past samples that a forecast looks at
_UNIFORM = 0.2  # share of the samples that every anchor gets its part of
_MIXING = 60  # steps towards an allocation
_PRECISION = 1.1  # of a forecast


def suits(problem: FeatureProblem) -> bool:
    """Return whether Theorem H is about problems of this kind."""
    return problem.horizon is None and problem.coefficients is None and problem.best_limits is not None


def least_samples(problem: FeatureProblem, delta: float) -> float:
    """Return how many samples Theorem H needs at least: Ω√(l/2n)·L must be less than Ω at every anchor."""
    d, limit = problem.dimension, float(problem.value_limits[0])
    return d * 0.5 * log((5 + 2 * BETS) * len(LOOKS) * d / delta) * limit**2


class GapPlan:
    """What a lag of Theorem H would fix now.

    Parameters
    ----------
    model : PastModel
    number : int
    delta : float
        What the lag may spend.
    epsilon, most : float
        What is to be certified, and with how many samples at most, those of the past included.
    """

    def __init__(self, model: PastModel, number: int, delta: float, epsilon: float, most: float) -> None:
        self.model, self.problem, self.number, self.delta = model, model.problem, number, delta
        self.epsilon, self.most = epsilon, most
        gamma, self.vector = self.problem.continuation, model.centre.vectors[0]
        _, kernel = model.step(0, self.vector)
        self.kernel = kernel / kernel.sum(axis=1, keepdims=True)
        self.response = response_of(self.kernel, gamma)
        self.weights = (1.0 - gamma) * self.response.mean(axis=0)
        self.weights /= self.weights.sum()
        self.rows = self.response - self.weights @ self.response
        low, high = function_limits(self.problem, self.vector)
        least, most = self.problem.remainder_limits
        means, _ = model.moments(self.vector[None])
        self.centres = np.clip(means[0], least + gamma * low, most + gamma * high)
        self.ranges = most - least + gamma * (high - low)
        self.spread = model.spread[0]

    @cached_property
    def shares(self) -> FloatArray:
        """Shares of the samples that make the largest of Σ_j q_ij² v_j/n_j small."""
        pull, d = self.rows**2 * self.spread, len(self.spread)
        mixture, total = np.full(d, 1.0 / d), np.zeros(d)
        for _ in range(_MIXING):
            shares = np.sqrt(mixture @ pull)
            shares /= shares.sum()
            total += shares
            lost = pull @ (1.0 / np.maximum(shares, 1e-12))
            mixture = mixture * np.exp(2.0 * (lost / lost.max() - 1.0))
            mixture /= mixture.sum()
        found: FloatArray = steady(_UNIFORM / d + (1.0 - _UNIFORM) * total / total.sum())
        return found

    def counts(self, samples: float) -> IntArray:
        """Return counts (d,) of a test of about so many samples."""
        found: IntArray = np.maximum(np.ceil(steady(samples * self.shares)), 8).astype(np.int64)
        return found

    def lag(self, started: int, room: float) -> GapLag:
        """Fix everything; looks are at as many samples as there is room for."""
        samples = self.samples_needed[1]
        looks = tuple(times for times in LOOKS if int(self.counts(times * samples).sum()) <= room)
        return self._lag(samples, float(self.model.counts.sum()), looks or LOOKS[:1], started)

    def _lag(self, samples: float, past: float, looks: tuple[float, ...] = LOOKS, started: int = 0) -> GapLag:
        """Fix everything for a test of about so many samples: each bet suits the z that those before it lead to."""
        counts = np.stack([self.counts(times * samples) for times in looks])
        parts = self.number, started, self.delta, self.vector, self.kernel, self.weights, self.centres, counts
        box, directions = np.full(counts.shape, inf), np.full((len(looks), BETS, len(self.vector)), inf)
        lag = GapLag(*parts, box, directions)
        for bet in range(BETS):
            for look, n in enumerate(counts):
                z = self.noise(lag, look, past)
                reach = self.ranges + self.problem.continuation * float((z + self.drift(n, past)).max())
                total = (np.sqrt(self.spread) + self.problem.continuation * float(z.max())) ** 2 / n
                box[look] = best_bets(lag.level, total, reach / n)
                widest = (np.abs(self.rows) * reach / n).max(axis=1)
                directions[look, bet] = best_bets(lag.level, self.rows**2 @ total, widest)
        return lag

    def drift(self, n: IntArray, past: float) -> FloatArray:
        """Return by how much ξ̂ will be off ξ̃, (d,)."""
        before = np.maximum(past * self.shares, self.model.counts[0])
        found: FloatArray = _DEVIATIONS * np.sqrt(self.rows**2 @ (self.spread * (1.0 / n + 1.0 / before)))
        return found

    def noise(self, lag: GapLag, look: int, past: float) -> FloatArray:
        """Return the z that is expected."""
        n = lag.counts[look]
        both = 1.0 / n + 1.0 / np.maximum(past * self.shares, self.model.counts[0])
        moved = np.sqrt(self.kernel * (1.0 - self.kernel) * both[:, None] * (2 / np.pi))
        return noise(self.problem, lag, look, Seen(self.response, self.drift(n, past), moved, self.spread))[0]

    @cached_property
    def _part(self) -> Kept:
        """A part of the past."""
        model = self.model
        step = max(1, len(model.place) // _PART)
        return Kept(self.problem, model.drawn(slice(0, None, step)))

    def forecast(self, samples: float, past: float) -> float:
        """Return the ε that a test of so many samples should certify at its planned look, after so many past ones."""
        lag = self._lag(samples, past, (1.0,))
        z = self.noise(lag, 0, past) + self.drift(lag.counts[0], past)
        gamma, limit = self.problem.continuation, float(self.problem.value_limits[0])
        still = np.zeros(len(z))
        most = everywhere(z, still, still, gamma, limit)
        # The looks of the lag share what it may spend; this one has it for itself.
        level = lag.level + np.log(len(LOOKS))
        excess = Excess(self.problem, self._part, lag, z * np.sqrt(level / lag.level), still, most)
        return excess.bound(np.sqrt(level / (2.0 * lag.counts[0])))[0]

    @cached_property
    def samples_needed(self) -> tuple[float, float]:
        """Sizes of a past, at least the present one, and of a test that should certify ε; inf if that is too much."""
        now = float(self.model.counts.sum())
        low, high = 1.0, min(self.most - now, self.most / (1.0 + PAST))

        def reached(test: float) -> bool:
            return self.forecast(test, max(now, PAST * test)) <= self.epsilon

        if high <= low or not reached(high):
            return now, inf
        while high > low * _PRECISION:
            middle = max(float(np.sqrt(low * high)), 0.4 * high)
            low, high = (low, middle) if reached(middle) else (middle, high)
        return max(now, PAST * high), high
