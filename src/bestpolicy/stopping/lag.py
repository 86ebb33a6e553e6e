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

**Theorem P** (fixed policy). Let π be chosen by the past and x = θ̂ - θ + γ(μ̂ - μ)ᵀV^π, the noise of the
fixed function V^π on the samples to come. Then ξ^π = θ̂ + γμ̂ᵀΦ_πξ^π - x, so ξ^π = J(θ̂ - x) exactly as soon
as I - γμ̂ᵀΦ_π is invertible: *no contraction is needed*, |P̂| plays no part, and A^π(s,a) = -Δ̂(s,a) - yᵀx ≤
ρ(s,a). Range and variances are refined as in Theorem T with ω = 0 (V^π = V̂ - Ψx). If ρ ≤ 0 everywhere then π
is optimal (policy improvement); always V* - V^π ≤ max ρ⁺/(1-γ), or Σ_h max ρ_h⁺ (performance difference). It
certifies where Theorem T cannot: many states, few samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.ellipsoids import Prior, largest_norms
from bestpolicy.stopping.evidence import Evidence, fit, second_moments
from bestpolicy.stopping.fresh import FreshRule
from bestpolicy.stopping.tight import TightRule
from bestpolicy.stopping.verdict import Split, Verdict

# The moment of the decision is known within a factor of a few, so a few scales suffice.
_SHARES = np.array([0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01])
_MOVING, _FIXED, _FRESH = 0.55, 0.35, 0.1  # shares of a lag's δ for Theorems T, P and F
_PRIOR_FIELDS = ("base", "capacity", "largest", "shares")


@dataclass(frozen=True, eq=False)
class Choice:
    """What the samples before a lag choose for it.

    Attributes
    ----------
    number : int
        Position of the lag among those of the run, from 1 on.
    started : int
        Number of samples before it.
    prior : Prior
    policy : int array (stages, S)
        For Theorems P and F.
    values : array (1, S), optional
        V of Theorem F.
    """

    number: int
    started: int
    prior: Prior
    policy: IntArray
    values: FloatArray | None

    @classmethod
    def of(
        cls,
        rule: TightRule,
        evidence: Evidence,
        verdict: Verdict,
        directions: FloatArray,
        growth: float,
        delta: float,
        number: int,
    ) -> Choice:
        """Choose from all samples so far.

        Parameters
        ----------
        rule : TightRule
            The rule for all samples.
        evidence : Evidence
            All samples so far.
        verdict : Verdict
            Of the rule on that evidence.
        directions : array (J, stages·d)
            Critical directions y over the accuracy they need.
        growth : float
            By what factor the evidence will probably have grown when it decides.
        delta : float
            What the lag may spend.
        number : int
            Position of the lag among those of the run, from 1 on: it decides `delta`.
        """
        values = None
        if rule.problem.horizon is None and verdict.propagation is not None:
            values = np.clip(verdict.propagation.values, 0.0, rule.problem.value_limits[:, None])
        prior = lagged_prior(rule.problem, evidence, verdict, directions, growth, delta)
        return cls(number, evidence.tally.samples, prior, verdict.policy, values)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and arrays, for the file of a study."""
        return vars(self) | {"prior": {name: getattr(self.prior, name) for name in _PRIOR_FIELDS}}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Choice:
        """Return what `to_dict` has written."""
        return cls(**(known | {"prior": Prior(**known["prior"])}))


class Lag:
    """A certificate for the samples to come, tuned by those that came.

    Parameters
    ----------
    rule : TightRule
        The rule for all samples; problem, split and value span are taken from it.
    pairs : int array (K,)
        The only pairs that will ever be sampled.
    choice : Choice
        What the samples so far have chosen.
    delta : float
        What this lag may spend.
    """

    def __init__(self, rule: TightRule, pairs: IntArray, choice: Choice, delta: float) -> None:
        self.number, self.started = choice.number, choice.started
        split = rule.split
        alone = Split(split.sub_gaussian, 1 - split.sub_gaussian - split.variance, split.variance, 0.0)
        self.evidence = Evidence.empty(rule.problem, pairs)
        prior = choice.prior
        self._moving = replace(rule, prior=prior, delta=delta * _MOVING)
        self._fixed = replace(rule, prior=prior, delta=delta * _FIXED, split=alone, policy=choice.policy)
        self._fresh: FreshRule | None = None
        if choice.values is not None:
            self._fresh = FreshRule(rule.problem, prior, delta * _FRESH, choice.policy, choice.values)

    def add(self, batch: Tally, weights: FloatArray | None = None) -> None:
        """Take in samples that were drawn after the lag."""
        self.evidence = self.evidence.add(batch, weights)

    def look(self) -> list[tuple[str, Verdict, dict[str, Any]]]:
        """Verdicts of Theorems T, P and F on the samples since the lag, by name and with their proofs."""
        evidence = self.evidence
        fixed = self._fixed.look(evidence)
        found = [
            ("Theorem T", self._moving.look(evidence), self.proof("Theorem T")),
            ("Theorem P", fixed, self.proof("Theorem P")),
        ]
        if self._fresh is not None:
            loss = self._fresh.loss(evidence)
            informative = loss < self._fresh.problem.value_limits[0]
            verdict = replace(fixed, epsilon=loss if informative else inf, resolved=0.0, criterion="")
            found.append(("Theorem F", verdict, self.proof("Theorem F")))
        return found

    def proof(self, theorem: str) -> dict[str, Any]:
        """Return what others need to look at the evidence as one of the theorems does."""
        rule: TightRule | FreshRule | None = {"T": self._moving, "P": self._fixed, "F": self._fresh}[theorem[-1]]
        assert rule is not None
        return rule.proof(self.evidence) | {"lag": {"number": self.number, "started": self.started}}


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
    log_term = 2 * log(2 / (_SHARES[0] * delta))
    best, chosen = np.inf, np.ones_like(values)
    for power in (0.5, 1.0):
        for sharpness in (0.3, 1.0, 3.0, 10.0, 30.0):
            for floor in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
                precision = sharpness * values**power + floor
                cost = (loads * (1 + 1 / precision)).sum(axis=(1, 2)).max() * (log_term + np.log1p(precision).sum())
                if cost < best:
                    best, chosen = cost, precision
    root = factor @ vectors
    base = (root / chosen[:, None, :]) @ root.swapaxes(1, 2) / 4  # the scales 4ⁱ start a step below the guess
    return Prior(base, float(np.log1p(6 * chosen).sum()), largest_norms(base, model.sampled), _SHARES)
