"""What the past says where states cannot be listed: a model of d vectors, and from it the next lag of Theorem F±.

The model of samples at K pairs: F̂(ξ) = C·mean_k(R' + γf(S', ξ)), with C = I at anchors. ξ = F̂(ξ) + bonus is solved by
policy iteration: at each sampled next state the best action, then one linear system of d equations.

A lag's vectors solve ξ^± = F̂(ξ^±) ± β with β_j ≈ (width of the test) + 2.5 standard deviations of the difference of
the two samples' means: then c^± ≈ 0, and ε = max_j(ξ⁺ - ξ⁻)_j is the occupancy-weighted sum of 2β. None of this has to
be right: whatever is fixed here, Theorem F± holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.samples import Bets
from bestpolicy.samples.kept import Kept
from bestpolicy.stopping.hull import Lag, outcome_ranges, value_ranges
from bestpolicy.stopping.lemmas.betting import best_bets, width

CANDIDATES = (0.8, 1.0, 1.3)  # times β
DEVIATIONS = 2.5
GRID = 12  # points of a grid of gains: chords between them are nearly exact
MOST_STAKED = 0.9  # of what the range of outcomes allows
_ROUNDS = 40  # of policy iteration
_MIXING = 60  # steps towards an allocation
_REFINEMENTS = 4  # of a plan
_UNIFORM = 0.2  # share of the samples that every place gets its part of


@dataclass(frozen=True, eq=False)
class Solution:
    """A vector for each stage, and the model under its policy.

    Attributes
    ----------
    vectors : array (stages, d)
    kernels : array (stages, d, d)
        K̂ of the policy at the next stage.
    """

    vectors: FloatArray
    kernels: FloatArray


class PastModel(Kept):
    """The model of samples that were kept."""

    def outcomes(self, stage: int, following: FloatArray | None) -> FloatArray:
        """Return R' + γf(S', ξ) of the samples at a stage."""
        found = self.rewards[self._ends[stage] : self._ends[stage + 1]].copy()
        if following is not None:
            for part, choices in self.blocks(stage):
                values = choices.best(following[:, None])[:, 0]
                found[part.start - self._ends[stage] : part.stop - self._ends[stage]] += (
                    self.problem.continuation * values
                )
        return found

    def moments(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return means and variances of R' + γf(S', ξ) by stage and place, (stages, K); no variance is taken for 0."""
        problem = self.problem
        means, variances = np.zeros(self.counts.shape), np.zeros(self.counts.shape)
        for stage in range(problem.stages):
            outcomes = self.outcomes(stage, self._following(vectors, stage))
            place = self.place[self._ends[stage] : self._ends[stage + 1]]
            n = np.maximum(self.counts[stage], 1)
            means[stage] = np.bincount(place, outcomes, problem.places) / n
            squares = (outcomes - means[stage, place]) ** 2
            variances[stage] = np.bincount(place, squares, problem.places) / np.maximum(n - 1, 1)
        return means, variances

    def _following(self, vectors: FloatArray, stage: int) -> FloatArray | None:
        episodic = self.problem.horizon is not None
        following: FloatArray = vectors[min(stage + 1, self.problem.stages - 1) if episodic else 0]
        return following if not episodic or stage + 1 < self.problem.stages else None

    def solve(self, bonus: FloatArray, begin: FloatArray | None = None) -> Solution:
        """Solve ξ = F̂(ξ) + bonus (stages, d)."""
        problem, d = self.problem, self.problem.dimension
        vectors, kernels = np.zeros((problem.stages, d)), np.zeros((problem.stages, d, d))
        if problem.horizon is not None:
            for stage in reversed(range(problem.stages)):
                means, kernels[stage] = self._step(stage, self._following(vectors, stage))
                following = vectors[stage + 1] if stage + 1 < problem.stages else np.zeros(d)
                vectors[stage] = means + kernels[stage] @ following + bonus[stage]
            return Solution(vectors, kernels)
        vectors = vectors if begin is None else begin.copy()
        limit, identity = float(problem.value_limits[0]), np.eye(d)
        for _ in range(_ROUNDS):
            means, kernels[0] = self._step(0, vectors[0])
            new = np.linalg.solve(identity - problem.continuation * kernels[0], means + bonus[0])
            moved = float(np.abs(new - vectors[0]).max())
            if problem.coefficients is not None:  # what does not contract may swing
                new = 0.5 * (new + vectors[0]) if begin is not None else new
            vectors[0] = new
            if moved <= 1e-9 * (1 + limit):
                break
        return Solution(vectors, kernels)

    def _step(self, stage: int, following: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return means of R' + γg, (d,), and K̂, (d, d), for the policy of a vector at the next states."""
        means, kernel = self.step(stage, following)
        if self.problem.coefficients is not None:
            means, kernel = self.problem.coefficients @ means, self.problem.coefficients @ kernel
        return means, kernel

    @cached_property
    def centre(self) -> Solution:
        """The plain solution, without a bonus."""
        return self.solve(np.zeros((self.problem.stages, self.problem.dimension)))

    @cached_property
    def spread(self) -> FloatArray:
        """Variances (stages, K) of outcomes, with a little more for those that few samples have not shown."""
        _, variances = self.moments(self.centre.vectors)
        found: FloatArray = variances + (0.5 * self.ranges(self.centre.vectors) / np.maximum(self.counts, 1)) ** 2
        return found

    def ranges(self, vectors: FloatArray) -> FloatArray:
        """Range of outcomes, (stages, K), for the functions of vectors (stages, d)."""
        low, high, _ = value_ranges(self.problem, vectors[None])
        least, most = outcome_ranges(self.problem, low, high)
        found: FloatArray = (most - least)[0]
        return found

    def sensitivity(self, solution: Solution) -> FloatArray:
        """How much a bonus at (stage, j) moves the value at the hull point i, (d, stages·d)."""
        problem, d = self.problem, self.problem.dimension
        if problem.horizon is None:
            found: FloatArray = np.linalg.inv(np.eye(d) - problem.continuation * solution.kernels[0])
            return found
        parts = [np.eye(d)]
        for stage in range(problem.stages - 1):
            parts.append(parts[-1] @ solution.kernels[stage])
        return np.concatenate(parts, axis=1)

    def plan(self, epsilon: float, level: float) -> Plan:
        """Return how to certify ε: where to sample, and how test samples should turn into ε.

        Optimism plays where little is known, so what bonuses come to is judged by the policies that they lead to.
        """
        problem = self.problem
        wide = self.ranges(self.centre.vectors)
        weights = 2.0 * np.abs(self.sensitivity(self.centre))
        shares = np.full(self.counts.shape, 1.0 / self.counts.size)
        plan = Plan(self, weights, wide, shares, level)
        for _ in range(_REFINEMENTS):
            total = plan.samples_needed(epsilon, float(self.counts.sum()))
            plan = replace(plan, shares=plan.allocated(min(total, 1e15)))
            total = min(plan.samples_needed(epsilon, float(self.counts.sum())), 1e15)
            bonus = plan.bonus(total * plan.shares)
            both = [self.solve(sign * bonus, self.centre.vectors) for sign in (1.0, -1.0)]
            weights = sum((np.abs(self.sensitivity(each)) for each in both), np.zeros(weights.shape))
            wide = np.max([wide, *(self.ranges(each.vectors) for each in both)], axis=0)
            apart = float((both[0].vectors[0] - both[1].vectors[0]).max())
            plan = replace(plan, weights=0.5 * (plan.weights + weights), ranges=wide)
            if apart <= 1.02 * epsilon or problem.coefficients is not None:
                break
        return replace(plan, weights=np.maximum(plan.weights, weights))

    def lag(self, plan: Plan, number: int, delta: float, unit: IntArray, started: int) -> Lag:
        """Fix everything for a test of about so many samples, (stages, K)."""
        problem, m, level = self.problem, len(CANDIDATES), plan.level
        bonus = plan.bonus(unit.astype(np.float64), np.maximum(self.counts, 1))
        ups = [self.solve(times * bonus, self.centre.vectors).vectors for times in CANDIDATES]
        downs = [self.solve(-times * bonus, self.centre.vectors).vectors for times in CANDIDATES]
        vectors, sides = np.stack([*ups, *downs]), np.repeat([1, -1], m)
        low, high, _ = value_ranges(problem, vectors)
        least, most = outcome_ranges(problem, low, high)
        both = [self.moments(each) for each in vectors]
        means, spread = np.stack([each[0] for each in both]), np.stack([each[1] for each in both])
        spread = spread + (0.5 * (most - least) / np.maximum(self.counts, 1)) ** 2
        if problem.coefficients is not None:
            shape = (*means.shape, 0)
            bets = Bets(vectors, low, high, sides, np.zeros(means.shape), np.zeros(shape))
            reach = (np.abs(problem.coefficients) * ((most - least) / unit)[:, :, None, :]).max(axis=3)
            stakes = best_bets(level, (spread / unit) @ (problem.coefficients**2).T, reach)
            return Lag(number, started, delta, bets, unit, stakes, means)
        stakes = np.minimum(np.sqrt(2 * level / (unit * spread)), MOST_STAKED / (most - least))
        wide = level / (unit * stakes) + 0.5 * stakes * spread
        apart = np.sqrt(spread * (1.0 / np.maximum(self.counts, 1) + 1.0 / unit))
        near, far = 0.3 * wide - 3 * apart, 2.0 * wide + 4 * apart
        steps = np.linspace(0.0, 1.0, GRID)
        grid = (means + sides[:, None, None] * near)[..., None] + (sides[:, None, None] * (far - near))[
            ..., None
        ] * steps
        grid = np.sort(np.clip(grid, least[..., None], most[..., None]), axis=-1)
        none = np.zeros((0, 0, 0))
        return Lag(number, started, delta, Bets(vectors, low, high, sides, stakes, grid), unit, none, none)


@dataclass(frozen=True, eq=False)
class Plan:
    """How test samples turn into ε, as the past has it.

    Attributes
    ----------
    model : PastModel
    weights : array (d, stages·d)
        How much a bonus moves ξ⁺ - ξ⁻ at each hull point.
    ranges, shares : arrays (stages, K)
        Range of outcomes, and which share of the samples each place has.
    level : float
        l.
    """

    model: PastModel
    weights: FloatArray
    ranges: FloatArray
    shares: FloatArray
    level: float

    def bonus(self, test: FloatArray, past: FloatArray | None = None) -> FloatArray:
        """Return β, (stages, d): what limits from so many test samples, (stages, K), will be off by."""
        spread, level, coefficients = self.model.spread, self.level, self.model.problem.coefficients
        both = 1.0 / np.maximum(self.model.counts if past is None else past, 1) + 1.0 / test
        if coefficients is None:
            stakes = np.minimum(np.sqrt(2 * level / (test * spread)), MOST_STAKED / self.ranges)
            wide = level / (test * stakes) * (1 + level / (2 * test)) + 0.5 * stakes * spread * (
                1 + stakes * self.ranges / 6
            )
            return wide + DEVIATIONS * np.sqrt(spread * both)
        squares = coefficients**2
        summed = (spread / test) @ squares.T
        reach = (np.abs(coefficients) * (self.ranges / test)[:, None, :]).max(axis=2)
        wide = width(level, best_bets(level, summed, reach), summed, reach)
        return wide + DEVIATIONS * np.sqrt((spread * both) @ squares.T)

    def forecast(self, bonus: FloatArray) -> float:
        """Return the ε that bonuses of this size should lead to."""
        return float((self.weights @ bonus.reshape(-1)).max())

    def samples_needed(self, epsilon: float, past: float) -> float:
        """Return how many test samples should certify ε after so many past ones."""
        before = np.maximum(past * self.shares, self.model.counts)

        def reached(test: float) -> bool:
            return self.forecast(self.bonus(np.maximum(test * self.shares, 1.0), before)) <= epsilon

        low, high = 1.0, 1e15
        if not reached(high):
            return float("inf")
        while high > low * 1.01:
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high

    def allocated(self, total: float) -> FloatArray:
        """Return shares that make the largest ε small: Σ_j o_j(A_j/√n_j + B_j/n_j) for the worst mixture o of rows."""
        uniform = np.full(self.shares.shape, 1.0 / self.shares.size)
        if self.model.problem.coefficients is not None:
            return uniform
        root = ((2 * self.level) ** 0.5 + 1.3 * DEVIATIONS) * np.sqrt(self.model.spread).reshape(-1)
        linear = self.level * self.ranges.reshape(-1)
        mixture = np.full(len(self.weights), 1.0 / len(self.weights))
        counts = total * self.shares.reshape(-1)
        added = np.zeros(len(counts))
        for _ in range(_MIXING):
            visits = mixture @ self.weights
            pull = np.sqrt((visits + 1e-3 * visits.mean()) * (0.5 * root * np.sqrt(counts) + linear))
            counts = total * pull / pull.sum()
            added += counts
            lost = self.weights @ (root / np.sqrt(counts) + linear / counts)
            mixture = mixture * np.exp(4.0 * (lost / lost.max() - 1.0))
            mixture /= mixture.sum()
        found: FloatArray = _UNIFORM * uniform + (1 - _UNIFORM) * (added / added.sum()).reshape(uniform.shape)
        return found
