"""What Theorems T, P and F want fixed before the samples, and how a certificate shows that it was.

A run of `tight` or `adaptive` fixes beforehand how δ is shared: 1 - lag_share for the rule on all samples; of
lag_share, 1/(j(j+1)) for the j-th *lag*, a certificate that starts anew in the middle of the run with a prior (and, for
P and F, a policy and a function) chosen from the samples before it; and each lag shares its part between Theorems T, P
and F. The format fixes those shares, the shares of the scales, the split between the events, and the prior of the rule
on all samples, which is a function of the features, the design and δ:

    Γ = c · (d/10) · Λ(w),   capacity = D log(1 + 2/c),   c minimising (1+c)(2l + D log(1+1/c)), l = log(2/(q_0 δ)).

So none of it can be chosen in hindsight. What a file cannot show is that a lag's prior and policy come from the samples
before the lag, that it was the j-th, and that no other run was made.
"""

from __future__ import annotations

from math import inf, log

import numpy as np

from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.noise import Prior
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.regression import Regression
from bestpolicy.verification.tight import Spending, certified_by_f, certified_by_t_or_p

PARTS = {"T": 0.55, "P": 0.35, "F": 0.1}  # of a lag's δ
LAG_SHARES = (0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01)
OPTIMAL_ONLY, NEAR_OPTIMAL = (0.1, 0.75, 0.15, 0.0), (0.1, 0.65, 0.15, 0.1)  # events H, B, V, L
_FIRST_SCALES, _ALL_SCALES = 14, 32
_EQUAL = 1e-9


def main_shares() -> Floats:
    """Shares of the scales of the rule on all samples: nine tenths evenly over the first 14, the rest falling off."""
    tail = np.arange(1, _ALL_SCALES - _FIRST_SCALES + 1)
    return np.concatenate([np.full(_FIRST_SCALES, 0.9 / _FIRST_SCALES), 0.1 / (tail * (tail + 1.0))])


def certified_epsilon(
    case: Case, theorem: str, proof: Node, policy: Ints, delta: float, asked: float, target: float
) -> tuple[float, int, list[str]]:
    """Return the ε that the samples certify, their number, and what has to be taken on trust."""
    coordinates = Coordinates.read(proof, case)
    samples = Samples.read(proof.child("samples"), case)
    if not np.isin(coordinates.design_pairs, samples.pairs).all():
        raise Rejected("the pairs that might be sampled lack some of the design's")
    model = Regression.fit(case, samples, coordinates.features)
    prior = Prior.read(proof.child("prior"), case.stages, model.rows)
    lag_share = proof.number("lag_share", 0.0, 1.0)
    count, trusted = int(samples.pulls.sum()), list[str]()
    if proof.has("lag"):
        lag = proof.child("lag")
        number, started = lag.whole("number", 1, 10**6), lag.whole("started", 1)
        own = delta * lag_share / (number * (number + 1)) * PARTS[theorem]
        _require(np.array_equal(prior.shares, LAG_SHARES), "the shares of the scales are not those of the format")
        fixed = {"T": "the prior", "P": "the prior and the policy", "F": "the prior, the policy and the function V"}
        trusted.append(f"{fixed[theorem]} of lag {number} were chosen from the first {started:,} simulator calls only")
        count += started
    else:
        _require(theorem == "T", f"Theorem {theorem} needs a lag")
        own = delta * (1 - lag_share)
        _require(np.allclose(prior.shares, main_shares(), rtol=_EQUAL, atol=0), "the shares of the scales are changed")
        _require_main_prior(prior, coordinates.information, own)
    _require(own > 0, "nothing of δ is left for this certificate")
    if theorem == "F":
        _require(case.horizon is None, "Theorem F is for discounted problems")
        values = proof.array("values", "f", policy.shape)
        spending = Spending(prior, own / 3, own / 3, own / 3, 0.0)
        return certified_by_f(model, policy, values, spending), count, trusted
    split = NEAR_OPTIMAL if theorem == "T" and asked > 0 else OPTIMAL_ONLY
    spending = Spending(prior, *(own * share for share in split))
    span = inf
    if proof.has("value_span"):
        span = proof.number("value_span", 0.0, 1e300)
        if theorem == "T":
            trusted.append(f"the user's word that optimal values differ by at most {span:g} between states")
    found = certified_by_t_or_p(model, policy, spending, fixed=theorem == "P", value_span=span, target=target)
    return found, count, trusted


def _require_main_prior(prior: Prior, information: Floats, delta: float) -> None:
    stages, dimension, _ = prior.base.shape
    size = stages * dimension
    ratio = prior.base[0, 0, 0] / (0.1 * dimension * information[0, 0])
    expected = ratio * 0.1 * dimension * information
    off = np.abs(prior.base - expected).max() / np.abs(expected).max()
    _require(off <= _EQUAL, "the prior is not the one that follows from the design")

    def cost(c: Floats) -> Floats:
        price: Floats = (1 + c) * (2 * log(2 / (prior.shares[0] * delta)) + size * np.log1p(1 / c))
        return price

    best = cost(np.geomspace(0.02, 5.0, 200)).min()
    _require(abs(cost(np.array([ratio]))[0] - best) <= _EQUAL * best, "the size of the prior does not follow from δ")
    capacity = size * log(1 + 2 / ratio)
    _require(abs(prior.capacity - capacity) <= _EQUAL * capacity, "the capacity does not follow from the prior")


def _require(good: bool, complaint: str) -> None:
    if not good:
        raise Rejected(complaint)
