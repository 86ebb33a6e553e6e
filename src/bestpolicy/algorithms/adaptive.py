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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.protocol import About, Request, Run
from bestpolicy.algorithms.sampling import check_times
from bestpolicy.algorithms.tight import (
    Lags,
    Report,
    Tight,
    critical_directions,
    reached_share,
    tight_rule,
    whitened_problem,
)
from bestpolicy.design import Design, g_optimal_design
from bestpolicy.design.transductive import transductive_design
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.verdict import Verdict

_ALL_PAIRS = 2_000_000  # size of a tally up to which every pair may be sampled
_LARGEST_WEIGHT = 16.0
_READY = 0.05  # share of what is asked from which on directions count as known
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
    about: ClassVar[About] = About(
        setting=Tight.about.setting,
        features="linear",
        assumption="",
        guarantee=Tight.about.guarantee,
        complexity="as tight, with the sampling that makes the worst pair cheapest",
        constants="own proof",
        reference=Tight.about.reference,
    )

    redesign_ratio: float = 1.3
    exploration: float = 0.1

    def run(
        self,
        problem: Problem,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
        own_data: Tally | None = None,
    ) -> Run:
        """Sample where the certificate is weakest until the asked ε is certified."""
        g_design = g_optimal_design(problem.pair_features, tolerance=self.design_tolerance)
        whitened = whitened_problem(problem, g_design)
        candidates, shares = _candidates(problem, g_design)
        rule = tight_rule(whitened, candidates, shares, epsilon, delta * (1 - self.lag_share), self.value_span)

        evidence = Evidence.empty(problem, problem.pairs[candidates])
        everywhere = np.tile(shares / problem.stages, (problem.stages, 1))
        allocation, weights = everywhere, np.ones(everywhere.shape)
        redesigned, report, lags = 0, Report(epsilon), Lags(rule, epsilon, delta * self.lag_share)
        first = 4 * problem.stages * max(problem.dimension, len(g_design.indices))
        for samples in check_times(first, self.check_ratio):
            pulls = Pulls(evidence.tally.pairs, _towards(allocation, evidence.tally.pulls, samples))
            batch = yield Request(pulls, report.check)
            evidence = evidence.add(batch, weights)
            verdict = rule.look(evidence)
            if report.add(evidence, verdict, rule.proof(evidence), *lags.look(batch, weights)).passed:
                break
            lags.maybe_start(evidence, verdict)
            # Far from the end the directions are guesses, and the G-optimal design is the better one.
            ready = reached_share(verdict, epsilon) >= _READY and verdict.slopes.any()
            if ready and samples >= self.redesign_ratio * redesigned:
                redesigned = samples
                focused = focused_allocation(whitened, evidence, verdict, epsilon)
                allocation = self.exploration * everywhere + (1 - self.exploration) * focused
                weights = regression_weights(evidence, verdict)
        assert report.check is not None
        return report.check


def focused_allocation(whitened: Problem, evidence: Evidence, verdict: Verdict, epsilon: float) -> FloatArray:
    """Shares (stages, K) that resolve the gaps fastest, as far as the present estimates tell.

    Parameters
    ----------
    whitened : Problem
    evidence : Evidence
    verdict : Verdict
        Of the same evidence.
    epsilon : float
        What is asked; with ε > 0 a gap need not be told from 0 but from about (1-γ)ε (ε/H if episodic).
    """
    stages, dimension = whitened.stages, whitened.dimension
    # Quiet pairs need more than their variance tells: Bernstein's linear term and the prior are felt there.
    deviations = np.sqrt(np.maximum(verdict.variances, _QUIET * verdict.variances.max(axis=1, keepdims=True)))
    sampled = whitened.features.reshape(-1, dimension)[evidence.tally.pairs]
    features = np.zeros((stages, len(sampled), stages, dimension))
    for stage in range(stages):
        features[stage, :, stage] = sampled / deviations[stage, :, None]
    directions = critical_directions(whitened, verdict, epsilon)
    design = transductive_design(features.reshape(-1, stages * dimension), directions, tolerance=0.1)
    return design.weights.reshape(stages, -1)


def regression_weights(evidence: Evidence, verdict: Verdict) -> FloatArray:
    """u of the samples to be drawn next, (stages, K), in [1, 16]: variances relative to the quietest pair."""
    dimension = verdict.metrics.shape[2]
    samples = evidence.tally.pulls.sum(axis=1, keepdims=True)
    crowd = 2000 * dimension * verdict.ranges[:, None] ** 2 / np.maximum(samples, 1)
    quietest = np.maximum(verdict.variances.min(axis=1, keepdims=True), crowd)
    weights: FloatArray = np.clip(verdict.variances / quietest, 1.0, _LARGEST_WEIGHT)
    return weights


def _candidates(problem: Problem, design: Design) -> tuple[IntArray, FloatArray]:
    """Pairs that may be sampled (positions in ``problem.pairs``), and the G-optimal shares on them."""
    count = len(problem.pairs)
    if problem.stages * count * problem.states > _ALL_PAIRS:
        return design.indices, design.weights
    shares = np.zeros(count)
    shares[design.indices] = design.weights
    return np.arange(count), shares


def _towards(allocation: FloatArray, pulls: IntArray, samples: int) -> IntArray:
    """Pulls that bring the counts as near to `allocation` × `samples` as the batch allows."""
    missing = np.maximum(_whole(allocation * samples) - pulls, 0)
    batch = samples - int(pulls.sum())
    return missing if missing.sum() <= batch else _whole(missing * (batch / missing.sum()))


def _whole(counts: FloatArray) -> IntArray:
    """Round counts to whole numbers with the same total, by largest remainders."""
    rounded = np.floor(counts)
    short = round(float(counts.sum() - rounded.sum()))
    largest = np.argsort((rounded - counts).ravel(), kind="stable")[:short]
    rounded.ravel()[largest] += 1
    return rounded.astype(np.int64)
