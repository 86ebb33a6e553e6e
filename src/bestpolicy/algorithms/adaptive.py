"""adaptive: the certificate of `tight`, with samples where they decide.

    start with the G-optimal design
    repeat
        look: which ε is certified for the optimal policy of the estimated model?
        from the estimated directions y(s,a), gaps Δ̂ and variances v̄, now and then solve
            min_ω max_{s,a} yᵀ(Σ_k ω_k φ_kφ_kᵀ/v̄_k)⁻¹y / (Δ̂ + (1-γ)ε)²
        sample towards a mixture of that design with the G-optimal one, with weights 1/v̄ for the regression
    until the certified ε is at most the asked one

Theorem T holds for every predictable sampling rule and predictable weights, so all data are pooled and
nothing is restarted; how good the allocation is affects the number of samples only. Stages of an episode are
concatenated, and each gets the share it deserves.

Weights. A sample's u is fixed when it is drawn. u ≥ 1 always, so the prior does not depend on them; they rise
above 1 only at pairs that are noisier than the quietest, and only once there are so many samples that the
linear term of Bernstein's inequality no longer matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import number
from bestpolicy._numerics.reproducible import grid_shares
from bestpolicy.algorithms.protocol import About
from bestpolicy.algorithms.tight import AllocationSampling, Tight
from bestpolicy.design import Design
from bestpolicy.design.transductive import transductive_design
from bestpolicy.problem import Problem
from bestpolicy.stopping import Evidence, Verdict
from bestpolicy.stopping.lags import Schedule, critical_directions, reached_share

_ALL_PAIRS = 2_000_000  # size of a tally up to which every pair may be sampled
_LARGEST_WEIGHT = 16.0
_READY = 0.05  # share of what is asked from which on directions count as known
_STEP = 1 / 64  # what shares (of the average one) and weights are rounded to
_CROWD = 2000  # samples a dimension from which on the linear term of Bernstein's inequality is small
_WORST_GAP = 1.0  # of a design that is used: twice the samples of the best one
_QUIET = 0.15  # variances below this share of the largest do not count as smaller


@dataclass(frozen=True)
class Adaptive(Tight):
    """Theorem T with a re-designed allocation; the other parameters are those of `Tight`.

    Attributes
    ----------
    redesign_ratio : float
        Solve the design problem anew each time the number of samples has grown by this factor.
    exploration : float
        Share of the G-optimal design in the mixture.
    """

    name: ClassVar[str] = "adaptive"
    about: ClassVar[About] = replace(
        Tight.about, complexity="as tight, with the sampling that makes the worst pair cheapest"
    )

    redesign_ratio: float = 1.3
    exploration: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        number("redesign_ratio", self.redesign_ratio, least=1)
        number("exploration", self.exploration, above=0, below=1)

    def candidates(self, problem: Problem, design: Design) -> IntArray:
        """Every pair, unless there are too many of them."""
        count = len(problem.pairs)
        many = problem.stages * count * problem.states > _ALL_PAIRS
        return design.indices if many else np.arange(count)

    def steer(self, sampling: AllocationSampling, schedule: Schedule, verdict: Verdict) -> AllocationSampling:
        """Solve the design problem anew now and then, once the directions that matter are known roughly."""
        evidence, terms = schedule.main.evidence, schedule.terms
        # Far from the end the directions are guesses, and the G-optimal design is the better one.
        ready = reached_share(verdict, terms.epsilon) >= _READY and verdict.slopes.any()
        samples = evidence.tally.samples
        if not ready or samples < self.redesign_ratio * sampling.designed:
            return sampling
        focused = focused_allocation(terms.problem, evidence, verdict, terms.epsilon)
        if focused is None:
            return replace(sampling, designed=samples)
        allocation = self.exploration * sampling.everywhere + (1 - self.exploration) * focused
        return sampling.redirected(allocation, regression_weights(evidence, verdict), samples)


def focused_allocation(whitened: Problem, evidence: Evidence, verdict: Verdict, epsilon: float) -> FloatArray | None:
    """Shares (stages, K) that resolve the gaps fastest, as far as the present estimates tell; None if none were found.

    Parameters
    ----------
    whitened : Problem
    evidence : Evidence
    verdict : Verdict
        Of the same evidence.
    epsilon : float
        What is asked; with ε > 0 a gap need not be told from 0 but from about (1-γ)ε (ε/H if episodic).
    """
    # Quiet pairs need more than their variance tells: Bernstein's linear term and the prior are felt there.
    deviations = np.sqrt(np.maximum(verdict.variances, _QUIET * verdict.variances.max(axis=1, keepdims=True)))
    sampled = whitened.features.reshape(-1, whitened.dimension)[evidence.tally.pairs]
    directions = critical_directions(whitened, verdict, epsilon)
    design = transductive_design(sampled / deviations[:, :, None], directions, tolerance=0.1)
    if not design.gap <= _WORST_GAP:  # what is sampled now may well be better
        return None
    return grid_shares(design.weights, _STEP / len(design.weights)).reshape(deviations.shape)


def regression_weights(evidence: Evidence, verdict: Verdict) -> FloatArray:
    """u of the samples to be drawn next, (stages, K), in [1, 16]: variances relative to the quietest pair."""
    dimension = verdict.metrics.shape[2]
    samples = evidence.tally.pulls.sum(axis=1, keepdims=True)
    crowd = _CROWD * dimension * verdict.ranges[:, None] ** 2 / np.maximum(samples, 1)
    quietest = np.maximum(verdict.variances.min(axis=1, keepdims=True), crowd)
    weights: FloatArray = np.clip(verdict.variances / quietest, 1.0, _LARGEST_WEIGHT)
    return np.rint(weights / _STEP) * _STEP
