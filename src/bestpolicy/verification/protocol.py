"""What Theorems T, P and F want fixed before the samples, and how a certificate shows that it was.

A run of `tight` or `adaptive` fixes beforehand how δ is shared: 1 - lag_share for the rule on all samples; of
lag_share, 1/(j(j+1)) for the j-th *lag*, a certificate that starts anew in the middle of the run with a prior (and, for
P and F, a policy and a function) chosen from the samples before it; and each lag shares its part between Theorems T, P
and F. The format fixes those shares (`SHARES`, by its version, so that a new theorem changes nothing for older files),
the shares of the scales, the split between the events, and the prior of the rule on all samples, which is a function of
the features, the design and δ:

    Γ = c · (d/10) · Λ(w),   capacity = D log(1 + 2/c),   c minimising (1+c)(2l + D log(1+1/c)), l = log(2/(q_0 δ)).

So none of it can be chosen in hindsight once δ, lag_share, the design and the pairs are fixed. What a file cannot show
is that *these* were fixed before sampling, that weights were fixed before their samples, that a lag's prior and policy
come from the samples before the lag, that it was the j-th, and that no other run was made: all of it is listed with the
verdict. What can be seen is checked: that the design is nearly G-optimal; that the pairs are those of the design, or
all, where no samples came from elsewhere; that lags lie apart, lag j after 2^(j-1) samples at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, log

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.claim import Claim
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.noise import Prior
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.regression import Regression
from bestpolicy.verification.tight import Rounds, Spending, certified_by_f

LAG_SHARES = (0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01)
OPTIMAL_ONLY, NEAR_OPTIMAL = (0.1, 0.75, 0.15, 0.0), (0.1, 0.65, 0.15, 0.1)  # events H, B, V, L
_FIRST_SCALES, _ALL_SCALES = 14, 32
_EQUAL = 1e-9
_FIELDS = "transform design_pairs design_weights samples prior lag_share lag value_span values"


def main_shares() -> Floats:
    """Shares of the scales of the rule on all samples: nine tenths evenly over the first 14, the rest falling off."""
    tail = np.arange(1, _ALL_SCALES - _FIRST_SCALES + 1)
    return np.concatenate([np.full(_FIRST_SCALES, 0.9 / _FIRST_SCALES), 0.1 / (tail * (tail + 1.0))])


@dataclass(frozen=True, eq=False)
class Facts:
    """What a theorem looks at: samples, policy, prior, its own δ; what was asked and claimed; the rest of the proof."""

    model: Regression
    policy: Ints
    prior: Prior
    delta: float
    asked: float
    target: float
    proof: Node

    @property
    def value_span(self) -> float:
        """The user's bound on the span of the optimal values; inf if none was given."""
        return self.proof.number("value_span", 0.0, 1e300) if self.proof.has("value_span") else inf


def _by_t_or_p(facts: Facts, fixed: bool) -> float:
    split = NEAR_OPTIMAL if facts.asked > 0 and not fixed else OPTIMAL_ONLY
    spending = Spending(facts.prior, *(facts.delta * share for share in split))
    return Rounds(facts.model, facts.policy, spending, fixed).epsilon(facts.value_span, facts.target)


def _by_f(facts: Facts) -> float:
    _require(facts.model.case.horizon is None, "Theorem F is for discounted problems")
    values = facts.proof.array("values", "f", facts.policy.shape)
    third = facts.delta / 3
    return certified_by_f(facts.model, facts.policy, values, Spending(facts.prior, third, third, third, 0.0))


@dataclass(frozen=True)
class Theorem:
    """What the past fixes for a theorem, and its checker."""

    fixed: str
    check: Callable[[Facts], float]


THEOREMS = {
    "T": Theorem("the prior", partial(_by_t_or_p, fixed=False)),
    "P": Theorem("the prior and the policy", partial(_by_t_or_p, fixed=True)),
    "F": Theorem("the prior, the policy and the function V", _by_f),
}
# How a lag's δ is shared, by the version of the format since which it is. Rows are never changed, only added.
SHARES = {1: {"T": 0.55, "P": 0.35, "F": 0.1}}


def shares_of(version: int) -> dict[str, float]:
    """Return the shares of the theorems in files of a version; they were fixed before any sample, and sum to 1."""
    return SHARES[max(since for since in SHARES if since <= version)]


def certified_epsilon(case: Case, claim: Claim, proof: Node, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that the samples certify, their number, and what has to be taken on trust."""
    name, delta, shares = claim.theorem, claim.delta, shares_of(claim.version)
    if name not in shares:
        raise InvalidInput(f"format version {claim.version} has no theorem {name!r}. Ask for the file again.")
    theorem = THEOREMS[name]
    proof.only(*_FIELDS.split())
    _require(name == "F" or not proof.has("values"), f"the field 'values' is not for Theorem {name}")
    coordinates = Coordinates.read(proof, case)
    coordinates.require_design(case)
    samples = Samples.read(proof.child("samples"), case)
    _require_pairs(case, coordinates, samples, claim.own_data)
    model = Regression.fit(case, samples, coordinates)
    prior = Prior.read(proof.child("prior"), case.stages, model.rows)
    lag_share = proof.number("lag_share", -1e300, 1e300)
    _require(0 <= lag_share < 1, f"lag_share must be at least 0 and below 1, and is {lag_share:g}")
    count = int(samples.pulls.sum())
    trusted = [
        f"δ, lag_share ({lag_share:g}), the shares of format version {claim.version}, and whether ε = 0 was asked, "
        "were fixed before sampling",
        "the design, which decides the prior, was fixed before sampling",
        f"the list of {len(samples.pairs):,} pairs that might be sampled was fixed before sampling",
    ]
    if samples.are_weighted:
        trusted.append("the weights of the samples in the regression were fixed before the samples were drawn")
    if proof.has("lag"):
        lag = proof.child("lag")
        lag.only("number", "started")
        number, started = lag.whole("number", 1, 10**6), lag.whole("started", 1)
        _require(started >= 2.0 ** min(number - 1, 100), f"lag {number} cannot have started after {started:,} samples")
        own = delta * lag_share / (number * (number + 1)) * shares[name]
        _require(np.array_equal(prior.shares, LAG_SHARES), "the shares of the scales are not those of the format")
        trusted.append(f"{theorem.fixed} of lag {number} were chosen from the first {started:,} simulator calls only")
        trusted.append(f"it was lag number {number} of the run")
        count += started
    else:
        _require(name == "T", f"Theorem {name} needs a lag")
        own = delta * (1 - lag_share)
        _require(np.allclose(prior.shares, main_shares(), rtol=_EQUAL, atol=0), "the shares of the scales are changed")
        _require_main_prior(prior, coordinates, own)
    _require(own > 0, "nothing of δ is left for this certificate")
    facts = Facts(model, policy, prior, own, claim.asked, claim.target, proof)
    if name == "T" and facts.value_span < inf:
        span = facts.value_span * claim.reward_scale
        trusted.append(f"the user's word that optimal values differ by at most {span:g} between states")
    return theorem.check(facts), count, trusted


def _require_pairs(case: Case, coordinates: Coordinates, samples: Samples, own_data: int) -> None:
    """The pairs that might be sampled: the design's or all, and those of samples from elsewhere."""
    design = coordinates.design_pairs
    _require(bool(np.isin(design, samples.pairs).all()), "the pairs that might be sampled lack some of the design's")
    usual = len(samples.pairs) in (len(design), int(case.mask.sum()))
    _require(usual or own_data > 0, "the pairs that might be sampled are neither those of the design nor all")


def _require_main_prior(prior: Prior, coordinates: Coordinates, delta: float) -> None:
    stages, dimension, _ = prior.base.shape
    information = coordinates.information
    size = stages * dimension
    ratio = prior.base[0, 0, 0] / (0.1 * dimension * information[0, 0])
    expected = ratio * 0.1 * dimension * information
    off = np.abs(prior.base - expected).max() / np.abs(expected).max()
    # The run made it from features that it had multiplied in plain double precision.
    _require(off <= _EQUAL + 8 * coordinates.plain_error, "the prior is not the one that follows from the design")

    def cost(c: Floats) -> Floats:
        price: Floats = (1 + c) * (2 * log(2 / (prior.shares[0] * delta)) + size * np.log1p(1 / c))
        return price

    best = cost(np.geomspace(0.02, 5.0, 200)).min()
    equal = _EQUAL + 8 * coordinates.plain_error
    _require(abs(cost(np.array([ratio]))[0] - best) <= equal * best, "the size of the prior does not follow from δ")
    capacity = size * log(1 + 2 / ratio)
    _require(abs(prior.capacity - capacity) <= equal * capacity, "the capacity does not follow from the prior")


def _require(good: bool, complaint: str) -> None:
    if not good:
        raise Rejected(complaint)
