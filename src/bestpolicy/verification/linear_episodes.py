"""Theorem O-L: upper and lower values of a linear MDP from its episodes, stage by stage.

In coordinates with (1/P)Σφφᵀ = I over all P allowed pairs, Φv = 1, λ = 0.02, q uniform on states:

    G = λI + Σφφᵀ,   θ̂ = G⁻¹(Σφr + λv/2),   μ̂ = G⁻¹(Σφ1{s'} + λv·q),   P̂ = Φμ̂ᵀ,
    Q* = Φθ̂ + P̂V* - Φx,   x = G⁻¹(Σφη + λζ),   ‖ζ‖ ≤ H-h-½,   η the noise of the fixed function V* of the next stage.

Lemmas S, B and V (`noise`) at 0.1, 0.75 and 0.15 of δ/H with Γ = 0.1·I, 0.4·I, …, range 1 + max U - min L,
variances from the sample deviation of R + (U+L)/2 (with Σr² ≤ Σr) plus √(Σ((U-L)/2)²/(n-1)). Then |φᵀx| ≤ w = min_M
√(φᵀMφ) + λ(H-h-½)‖G⁻¹φ‖, and

    φᵀθ̂ - w + p̂⁺L - p̂⁻U ≤ Q* ≤ φᵀθ̂ + w + p̂⁺U - p̂⁻L.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from bestpolicy.verification.case import Case
from bestpolicy.verification.noise import Prior, variance_limits, widths
from bestpolicy.verification.reading import Floats, Ints
from bestpolicy.verification.rounding import EPS

_RIDGE, _BASE, _EVENTS = 0.02, 0.1, (0.1, 0.75, 0.15)
_LARGEST = 2**22


def applies(case: Case, limits: Floats) -> bool:
    """Whether the run has used this theorem: pairs share features, limits are trivial, tables are small."""
    pairs = int(case.mask.sum())
    shared = case.has_features and case.features.shape[2] < pairs
    return bool(shared and (limits == case.limits).all() and pairs * len(case.mask) <= _LARGEST)


@dataclass(frozen=True, eq=False)
class Linear:
    """Features of the allowed pairs in good coordinates, v, and the prior of a stage."""

    case: Case
    rows: Floats
    ones: Floats
    prior: Prior
    delta: float

    @classmethod
    def of(cls, case: Case, delta: float) -> Linear | None:
        """Prepare it, unless double precision cannot; δ is that of all its events and stages together."""
        given = case.features[case.mask]
        case.budget.hold(4.0 * len(given) * len(case.mask), "a table of transitions")
        case.budget.work(50.0 * case.stages * len(given) * (given.shape[1] ** 2 + len(case.mask)), "the regression")
        try:
            root = np.linalg.cholesky(given.T @ given / len(given))
        except np.linalg.LinAlgError:
            return None
        rows = solve_triangular(root, given.T, lower=True).T
        if not np.abs(rows.T @ rows / len(rows) - np.eye(rows.shape[1])).max() <= 1e-7:
            return None
        ones = rows.T @ np.ones(len(rows)) / len(rows)
        dimension = rows.shape[1]
        shares = np.array([0.9 / 14] * 14 + [0.1 / (k * (k + 1)) for k in range(1, 19)])
        nats = log(2 * case.stages / (shares[0] * delta))
        grid = np.geomspace(0.02, 5.0, 200)
        ratio = float(grid[((1 + grid) * (2 * nats + dimension * np.log1p(1 / grid))).argmin()])
        base = _BASE * np.eye(dimension)[None]
        largest = np.sqrt((rows**2).sum(axis=1).max() / _BASE)
        return cls(case, rows, ones, Prior(base, dimension * log(1 + 2 / ratio), np.array([largest]), shares), delta)

    def bounds(
        self, pair: Ints, state: Ints, counts: Ints, rewards: Floats, stage: int, upper: Floats, lower: Floats
    ) -> tuple[Floats, Floats]:
        """Upper and lower bounds on Q* of all allowed pairs from outcomes of a stage, given those of the next."""
        rows, left, states = self.rows, self.case.stages - stage, len(self.case.mask)
        place = np.searchsorted(np.flatnonzero(self.case.mask.reshape(-1)), pair)
        pulls = np.zeros(len(rows), np.int64)
        np.add.at(pulls, place, counts)
        gram = (rows.T * pulls) @ rows
        gram[np.diag_indices_from(gram)] += _RIDGE
        factor = cho_factor(gram)
        inverse = cho_solve(factor, np.eye(len(gram)))
        table = np.zeros((len(rows), states))
        np.add.at(table, (place, state), counts.astype(np.float64))
        earned = np.bincount(place, rewards, len(rows))
        wanted = np.column_stack([rows.T @ earned + _RIDGE * self.ones / 2, rows.T @ table])
        wanted[:, 1:] += _RIDGE / states * self.ones[:, None]
        found = cho_solve(factor, wanted)
        found += cho_solve(factor, wanted - gram @ found)
        left_over = np.linalg.norm(wanted - gram @ found, axis=0)
        left_over += 4 * len(gram) * EPS * (np.linalg.norm(gram) * np.linalg.norm(found, axis=0))
        left_over += 4 * len(gram) * EPS * np.linalg.norm(wanted, axis=0)
        norms = np.linalg.norm(rows, axis=1)
        error = norms * float(left_over[0] + left_over[1:] @ np.maximum(upper, 1.0)) / _RIDGE
        wide = self._wide(place, state, counts, rewards, pulls, gram, inverse, upper, lower)
        wide = wide + _RIDGE * (left - 0.5) * np.linalg.norm(rows @ inverse, axis=1) * (1 + 1e-6) + error
        reward, kernel = rows @ found[:, 0], rows @ found[:, 1:]
        positive, negative = np.where(kernel > 0, kernel, 0.0), np.where(kernel < 0, -kernel, 0.0)
        high = reward + wide + positive @ upper - negative @ lower + 1e-10 * left
        low = reward - wide + positive @ lower - negative @ upper - 1e-10 * left
        return np.clip(high, 0.0, left), np.clip(low, 0.0, left)

    def _wide(
        self,
        place: Ints,
        state: Ints,
        counts: Ints,
        rewards: Floats,
        pulls: Ints,
        gram: Floats,
        inverse: Floats,
        upper: Floats,
        lower: Floats,
    ) -> Floats:
        size, rows = len(pulls), self.rows
        sub_gaussian, bernstein, variance = (share * self.delta / self.case.stages for share in _EVENTS)
        span = np.array([1.0 + upper.max() - lower.min()])
        off = float(np.linalg.norm(np.eye(len(gram)) - inverse @ gram))
        off = off / (1 - off) if off < 0.5 else np.inf
        crude = (span[0] / 2) ** 2 * ((rows.T * pulls) @ rows)
        middle, half = (upper + lower) / 2, (upper - lower) / 2
        y = (middle - middle.mean())[state]
        most = np.maximum(pulls, 2)
        first = np.bincount(place, rewards + counts * y, size)
        second = np.bincount(place, rewards + 2 * rewards * y + counts * y * y, size)
        spread = np.maximum(second - first**2 / most, 0.0) / (most - 1) + 1e-10 * (1 + np.ptp(middle)) ** 2
        apart = np.bincount(place, counts * half[state] ** 2, size) / (most - 1)
        limits = variance_limits((np.sqrt(spread) + np.sqrt(apart))[None], pulls[None], span, variance)[0]
        moments = (rows.T * (pulls * limits)) @ rows
        matrices = np.concatenate(
            [
                self.prior.sub_gaussian(inverse[None], off, crude[None], sub_gaussian),
                self.prior.bernstein(inverse[None], off, moments[None], span, bernstein),
            ]
        )
        return widths(matrices[:, 0], rows) * (1 + 1e-9)
