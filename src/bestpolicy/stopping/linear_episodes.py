"""Theorem O-L: upper and lower values from episodes of a linear MDP, where pairs learn from each other.

As in Theorem O (`episodes`), but Q*_h(s, a) = φ(s, a)ᵀξ_h for all pairs, and limits are trivial, l_h = H-h: the
identity below is about all states, and with other limits U ≥ V* holds at reachable ones only.

**Coordinates** in which (1/P)Σ_k φ_kφ_kᵀ = I over all P allowed pairs; so ‖x‖² = (1/P)Σ(φ_kᵀx)² ≤ max_k(φ_kᵀx)² for
all x. v is the vector with Φv = 1, q the uniform law on states, λ > 0 fixed. With the data of a stage (of all
stages, if they are alike)

    G = λI + Σφφᵀ,   θ̂ = G⁻¹(Σφr + λv/2),   μ̂(s') = G⁻¹(Σφ1{s'} + λv·q(s')),   P̂ = Φμ̂ᵀ.

**Identity.** Q*_h = Φθ̂ + P̂V*_{h+1} - Φx,  x = G⁻¹(Σ_i φ_iη_i + λζ),  η_i = r_i + V*(s'_i) - Q*(s_i, a_i),  ζ = (½
+ q·V*)v - ξ, ‖ζ‖ ≤ H-h-½. *Proof.* θ̂ + μ̂ᵀV* = G⁻¹(Σφ(φᵀξ + η) + λ(½ + q·V*)v) = ξ + x, as Σφφᵀξ = (G - λI)ξ. And
φ_kᵀζ = ½ + q·V* - Q*_k, a number of [½, H-h-½] minus one of [0, H-h].

**Events**, for the fixed function V*_{h+1} at each h: Lemma S (s_i = Λ/2) and Lemma B at δ_S/H, δ_B/H, Lemma V at
δ_V/H (`lemmas/deviations`), with Γ_0 = 0.1·I and its scales.

**Recursion** from L_H = U_H = 0: range Λ̄ = 1 + max U_{h+1} - min L_{h+1}; V̂ = (U+L)/2, and v̄_k from Lemma V with
the sample deviation of R + V̂(S') (in which Σr² ≤ Σr) plus that of V* - V̂, at most √(n/(n-1)·mean of ((U-L)/2)²);
ellipsoids M;

    w(φ) = min_M √(φᵀMφ) + λ(H-h-½)‖G⁻¹φ‖,
    Qup = φᵀθ̂ + w + p̂⁺U - p̂⁻L,   Qlow = φᵀθ̂ - w + p̂⁺L - p̂⁻U       (p̂ = p̂⁺ - p̂⁻),

cut to [0, H-h]; U_h = max_a min(Qup, Q̄ of Theorem O), L_h = max_a Qlow. **With probability at least 1 - δ_S - δ_B
- δ_V - δ_U always L_h ≤ V*_h ≤ U_h.** *Proof.* Backwards: given it at h+1, Λ̄ is at least the range of R + V*(S')
and v̄_k its variance, so |φᵀG⁻¹Σφη| ≤ min_M √(φᵀMφ) for all φ (Lemmas S and B grow in both), |φᵀx| ≤ w(φ), and p̂V*
lies between p̂⁺L - p̂⁻U and p̂⁺U - p̂⁻L entry by entry. The same event serves all times.

*Where no episode has been*, G⁻¹φ = φ/λ there, so w is vacuous and is cut. *Visits without an outcome* cannot be
regressed on, and leaving them out would be a choice by outcome: with any of them this bound is not used.

*Rounding.* What was solved for leaves a residual; as G ≥ λI, φᵀ(error) ≤ ‖φ‖‖residual‖/λ, which is added to w.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.problem import Problem
from bestpolicy.stopping.lemmas.deviations import (
    SHARES,
    Prior,
    bernstein_ellipsoids,
    best_ratio,
    deviation_terms,
    largest_norms,
    sub_gaussian_ellipsoids,
    variance_bounds,
    widths,
)

Cells = tuple[IntArray, IntArray, IntArray, FloatArray]

RIDGE, BASE = 0.02, 0.1  # λ, and Γ_0 over I
SHARES_OF_EVENTS = (0.1, 0.75, 0.15)  # S, B and V
_SCALES = 8  # that directions are measured with: episodes see some of them often, and others hardly
_LARGEST = 2**22  # entries of P̂ up to which it is made
_EXACT = 1e-7  # how far the mean square of the features may be from I in their coordinates


def is_useful(problem: Problem, limits: FloatArray) -> bool:
    """Whether pairs share features, values are not limited otherwise, and the tables are small enough."""
    if problem.given_features is None or problem.dimension >= len(problem.pairs):
        return False
    return bool((limits == problem.value_limits).all()) and len(problem.pairs) * problem.states <= _LARGEST


@dataclass(frozen=True, eq=False)
class Regression:
    """What is fixed before the first episode.

    Attributes
    ----------
    problem : Problem
    delta : float
        Of all events and stages together.
    """

    problem: Problem
    delta: float

    @cached_property
    def features(self) -> FloatArray:
        """φ of all allowed pairs, (P, d), with mean square I."""
        given = self.problem.pair_features
        values, vectors = np.linalg.eigh(given.T @ given / len(given))
        with np.errstate(divide="ignore", invalid="ignore"):
            rows: FloatArray = given @ (vectors / np.sqrt(values))
        return rows

    @property
    def is_exact(self) -> bool:
        """Whether double precision has found coordinates in which the mean square is I."""
        if not np.isfinite(self.features).all():
            return False
        square = self.features.T @ self.features / len(self.features)
        return bool(np.abs(square - np.eye(len(square))).max() <= _EXACT)

    @cached_property
    def ones(self) -> FloatArray:
        """v, with Φv = 1."""
        ones: FloatArray = self.features.sum(axis=0) / len(self.features)  # the rows have mean square I
        return ones

    @cached_property
    def prior(self) -> Prior:
        """Γ_0 of one stage."""
        dimension = self.features.shape[1]
        base = BASE * np.eye(dimension)[None]
        ratio = best_ratio(dimension, log(2 / (SHARES[0] * self.delta / self.problem.stages)))
        return Prior(base, dimension * log(1 + 2 / ratio), largest_norms(base, self.features))

    def bounds(self, cells: Cells, stage: int, upper: FloatArray, lower: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Qup and Qlow of all allowed pairs, (P,) each.

        Parameters
        ----------
        cells : (place, next state, count, sum of rewards), arrays (C,)
            Outcomes, with the position of their pair among those allowed.
        stage : int
        upper, lower : array (S,)
            U and L of the next stage.
        """
        place, following, counts, rewards = cells
        rows, left = self.features, self.problem.stages - stage
        pulls = np.bincount(place, counts, len(rows)).astype(np.float64, copy=False)
        gram = RIDGE * np.eye(rows.shape[1]) + (rows * pulls[:, None]).T @ rows
        inverse: FloatArray = np.linalg.inv(gram).astype(np.float64, copy=False)
        arrivals = np.zeros((len(rows), self.problem.states + 1))
        np.add.at(arrivals, (place, following), counts)
        arrivals[:, -1] = np.bincount(place, rewards, len(rows))
        pulled = np.append(np.full(self.problem.states, 1 / self.problem.states), 0.5)
        target = rows.T @ arrivals + RIDGE * np.outer(self.ones, pulled)
        solved = inverse @ target
        solved = solved + inverse @ (target - gram @ solved)
        residual = np.linalg.norm(target - gram @ solved, axis=0) + 4 * len(gram) * EPS * (
            np.linalg.norm(gram) * np.linalg.norm(solved, axis=0) + np.linalg.norm(target, axis=0)
        )
        sizes = np.linalg.norm(rows, axis=1)
        room = sizes * float((residual * np.append(np.maximum(upper, 1.0), 1.0)).sum()) / RIDGE
        estimates = rows @ solved
        reward, kernel = estimates[:, -1], estimates[:, :-1]
        width = self._widths(cells, pulls, gram, inverse, upper, lower)
        width = width + RIDGE * (left - 0.5) * np.linalg.norm(rows @ inverse, axis=1) * (1 + 1e-6) + room
        plus, minus = np.maximum(kernel, 0.0), np.maximum(-kernel, 0.0)
        high = reward + width + plus @ upper - minus @ lower
        low = reward - width + plus @ lower - minus @ upper
        return np.clip(high + 1e-10 * left, 0.0, left), np.clip(low - 1e-10 * left, 0.0, left)

    def _widths(
        self,
        cells: Cells,
        pulls: FloatArray,
        gram: FloatArray,
        inverse: FloatArray,
        upper: FloatArray,
        lower: FloatArray,
    ) -> FloatArray:
        """min over ellipsoids of √(φᵀMφ), (P,)."""
        delta, rows = self.delta / self.problem.stages, self.features
        span = np.array([1.0 + float(upper.max()) - float(lower.min())])
        defect = float(np.linalg.norm(np.eye(len(gram)) - inverse @ gram))
        defect = defect / (1 - defect) if defect < 0.5 else np.inf
        squared = span[0] ** 2 / 4 * (rows * pulls[:, None]).T @ rows
        shares = [share * delta for share in SHARES_OF_EVENTS]
        metrics = [*sub_gaussian_ellipsoids(self.prior, inverse[None], squared[None], 0.0, shares[0], defect, _SCALES)]
        deviations = self._deviations(cells, pulls, (upper + lower) / 2, (upper - lower) / 2)
        terms = deviation_terms(pulls.astype(np.int64)[None], span, shares[2])
        variances = variance_bounds(deviations[None], terms, span)[0]
        spread = (rows * (pulls * variances)[:, None]).T @ rows
        metrics += [*bernstein_ellipsoids(self.prior, inverse[None], spread[None], span, shares[1], defect, _SCALES)]
        return widths(np.array(metrics)[:, 0], rows) * (1 + 1e-9)

    def _deviations(self, cells: Cells, pulls: FloatArray, centre: FloatArray, half: FloatArray) -> FloatArray:
        """Bounds on the sample deviation of R + V*(S') at each pair, (P,); 0 where n < 2."""
        place, following, counts, rewards = cells
        values = (centre - centre.mean())[following]
        number = np.maximum(pulls, 2)
        first = np.bincount(place, rewards + counts * values, len(pulls))
        second = np.bincount(place, rewards * (1 + 2 * values) + counts * values**2, len(pulls))
        variance = np.maximum(second - first**2 / number, 0.0) / (number - 1) + 1e-10 * (1 + np.ptp(centre)) ** 2
        apart = np.bincount(place, counts * half[following] ** 2, len(pulls)) / (number - 1)
        found: FloatArray = np.sqrt(variance) + np.sqrt(apart)
        return found


__all__ = ["Regression", "is_useful"]
