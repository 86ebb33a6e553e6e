"""Lagged priors: what the past may choose for the future.

The lemmas of `ellipsoids` need Γ, and Theorem P needs its policy, to be fixed before the samples that they
are used on, not before *all* samples. So at some moment (a *lag*; any stopping time) the data seen so far
choose them, and a second certificate starts from nothing, on the samples to come only. Lag number j spends
its own share of δ, fixed beforehand; its statements hold conditionally on the past, hence also without
condition. Everything else is Theorem T word for word, with "before sampling" read as "before the lag".

**Why it pays.** The price of knowing *all* directions at once is log det(I + Γ⁻¹Σ), of order d. But only the
directions y(s,a) of the smallest gaps decide, and those are known roughly from the past. With Γ small along
them and large elsewhere, log det counts only the few directions that matter, and ‖b‖ in Γ⁻¹, hence
Bernstein's κ, falls too. Γ is chosen in coordinates in which Σ is the identity: Γ⁻¹ = τ·(second moment of the
critical directions) + a floor, τ and the floor by a small search. That search is a heuristic; any positive
definite Γ is as valid.
"""

from __future__ import annotations

from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.stopping.evidence import Evidence, fit, second_moments
from bestpolicy.stopping.lemmas.ellipsoids import Prior, largest_norms, make_prior
from bestpolicy.stopping.rule import Past
from bestpolicy.stopping.verdict import Verdict

# The moment of the decision is known within a factor of a few, so a few scales suffice.
LAG_SHARES = np.array([0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01])


def first_past(problem: Problem, candidates: IntArray, shares: FloatArray, delta: float) -> Past:
    """Return what is fixed before the first sample.

    Parameters
    ----------
    problem : Problem
        In the coordinates of the tests.
    candidates : int array (K,)
        Positions in ``problem.pairs`` of the only pairs that will ever be sampled.
    shares : array (K,)
        The G-optimal design on them.
    delta : float
        What the test of all samples may spend.
    """
    sampled = problem.pair_features[candidates]
    information = (sampled.T * shares) @ sampled
    prior = make_prior(
        np.broadcast_to(information, (problem.stages, *information.shape)),
        sampled,
        first_rounds=10.0 * problem.dimension,
        least_variance=0.01,
        delta=delta,
    )
    return Past(prior)


def past_of(
    problem: Problem,
    evidence: Evidence,
    verdict: Verdict,
    directions: FloatArray,
    growth: float,
    delta: float,
    number: int,
) -> Past:
    """Choose from all samples so far.

    Parameters
    ----------
    problem : Problem
        In the coordinates of the tests.
    evidence : Evidence
        All samples so far.
    verdict : Verdict
        On that evidence.
    directions : array (J, stages·d)
        Critical directions y over the accuracy they need.
    growth : float
        By what factor the evidence will probably have grown when it decides.
    delta : float
        What the tests of this past may spend together.
    number : int
        Position among the pasts of the run, from 1 on.
    """
    values = None
    if problem.horizon is None and verdict.propagation is not None:
        values = np.clip(verdict.propagation.values, 0.0, problem.value_limits[:, None])
    prior = lagged_prior(problem, evidence, verdict, directions, growth, delta)
    return Past(prior, number, evidence.tally.samples, verdict.policy, values)


def lagged_prior(
    problem: Problem, evidence: Evidence, verdict: Verdict, directions: FloatArray, growth: float, delta: float
) -> Prior:
    """Γ that is small along the critical directions, (stages, d, d), with what else belongs to a prior."""
    model = fit(problem, evidence)
    assert model is not None
    stages, dimension = problem.stages, problem.dimension
    spread = growth * second_moments(model.sampled, evidence.inverse_squares * verdict.variances)
    spread += 1e-9 * np.trace(spread, axis1=1, axis2=2)[:, None, None] * np.eye(dimension)
    factor = np.linalg.cholesky(spread)
    blocks = directions.reshape(-1, stages, dimension)
    # In the coordinates z = LᵀG⁻¹y, Σ is the identity and the width of y is ‖z‖ in I + C.
    critical = np.einsum("jhd,hde,hef->jhf", blocks, model.gram_inverse, factor, optimize=True)
    norms = np.sqrt((critical**2).sum(axis=(1, 2)))
    critical = critical / norms.max()
    shares = (norms / norms.max()) ** 8
    moment = np.einsum("j,jhd,jhe->hde", shares / shares.sum(), critical, critical, optimize=True)
    values, vectors = np.linalg.eigh(moment)
    values = values / values.max()
    values = np.where(values < 1e-9, 0.0, values)  # rounding errors, whose roots would be felt
    loads = np.einsum("jhd,hde->jhe", critical, vectors) ** 2
    loads = loads.reshape(len(loads), -1)
    log_term = 2 * log(2 / (LAG_SHARES[0] * delta))
    best, chosen = np.inf, np.ones_like(values)
    for power in (0.5, 1.0):
        for sharpness in (0.3, 1.0, 3.0, 10.0, 30.0):
            for floor in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
                precision = sharpness * values**power + floor
                cost = (loads @ (1 + 1 / precision).ravel()).max() * (log_term + np.log1p(precision).sum())
                if cost < best:
                    best, chosen = cost, precision
    root = factor @ vectors
    base = (root / chosen[:, None, :]) @ root.swapaxes(1, 2) / 4  # the scales 4ⁱ start a step below the guess
    return Prior(base, float(np.log1p(6 * chosen).sum()), largest_norms(base, model.sampled), LAG_SHARES)
