"""What is known of the rest of ξ^π while one direction of it is tested: Theorem P's ellipsoids, and what follows
from them.

Theorem P (`tight`), on the samples since the lag and with the share q(π) of its part of δ, confines ξ^π to ellipsoids
C = {ξ̂ + Jx: xᵀM⁻¹x ≤ 1}, at all times at once. On that event, at any time,

- V^π(s) lies within w(s) of V̂(s), up to a constant that all states share; so do the centres of bets; hence ranges
  of R + gV^π(S') around its centre, over *all* states, seen or not;
- Σζ(ξ)², a quadratic function of ξ, is its value at ξ̂ plus its gradient times Jx plus what is quadratic in x; the
  last is at most λ_max(M^½ S M^½), S = g²Σ(φ_π(S') - f)(φ_π(S') - f)ᵀ by pair, and λ_max is at most the trace, a
  sum of squared widths, which is what is used where the dimension is large."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.stopping.dense.bets import Entry
from bestpolicy.stopping.evidence import Evidence, fit
from bestpolicy.stopping.lemmas.propagation import Propagation, propagate
from bestpolicy.stopping.rounding import Rounding
from bestpolicy.stopping.tight import Refinement, Split, TightTest

SPLIT = Split(0.1, 0.75, 0.15, 0.0)  # of Theorem P's part of δ, for its events
EXACT = 40  # dimension up to which largest eigenvalues are computed
_ROOM = 1e-9  # relative room for what rounding does to quadratic forms
LEAST_REACH = 0.05


@dataclass(frozen=True, eq=False)
class Surroundings:
    """ξ^π as the samples since a lag confine it.

    Attributes
    ----------
    propagation : Propagation
        Of π in the estimate from these samples.
    metrics : array (m, stages, d, d)
        M of the ellipsoids, for directions of x.
    rounding : Rounding
    gaps : array (stages, S, A)
        V̂ - Q̂.
    root : array (stages, d, d)
        A with ‖vᵀA‖ the width of vᵀξ at the stage that follows, in the smallest of the ellipsoids.
    widths : array (stages, S)
        Of V^π at the states that follow, in comparison with their mean.
    """

    propagation: Propagation
    metrics: FloatArray
    rounding: Rounding
    gaps: FloatArray
    root: FloatArray
    widths: FloatArray

    @classmethod
    def of(cls, test: TightTest, fresh: Evidence) -> Surroundings | None:
        """Look at the samples since the lag; None where they do not yet determine anything."""
        problem, policy = test.problem, test.policy
        assert policy is not None
        model = fit(problem, fresh)
        propagation = None if model is None else propagate(problem, model.theta, model.mu, policy)
        if model is None or propagation is None:
            return None
        refinement = Refinement(test, fresh, model, None, propagation)
        verdict = refinement.verdict()
        if not len(verdict.metrics):
            return None
        metrics = refinement.rounding.dominating(verdict.metrics)
        carried = propagation.carried(metrics)
        pulled = propagation.pulled_back(metrics) if problem.horizon is None else carried
        smallest = int(np.trace(pulled, axis1=2, axis2=3).sum(axis=1).argmin())
        eigenvalues, vectors = np.linalg.eigh(carried[smallest])
        root = vectors * np.sqrt(np.clip(eigenvalues, 0.0, None) * (1 + _ROOM))[:, None, :]
        root = propagation.following(propagation.moved(root))
        ahead = propagation.following(propagation.played)
        widths = np.sqrt((((ahead - ahead.mean(axis=1, keepdims=True)) @ root) ** 2).sum(axis=2))
        widths = widths + propagation.following(refinement.rounding.values)[:, None]
        return cls(propagation, metrics, refinement.rounding, refinement.gaps, root, widths * (1 + _ROOM))


@dataclass(frozen=True, eq=False)
class Spread:
    """What is known of ζ in one batch: arrays (stages, U), but for slopes (stages, U, d).

    Attributes
    ----------
    entry : Entry
    squares, slopes : arrays
        Σζ(ξ̂)² and its gradient in the ξ of the stage that follows.
    up, down : arrays
        Ranges of ζ(ξ^π).
    drifts : array
        Bounds on what is quadratic in Σζ(ξ^π)², by traces.
    """

    entry: Entry
    squares: FloatArray
    slopes: FloatArray
    up: FloatArray
    down: FloatArray
    drifts: FloatArray

    @classmethod
    def of(cls, entry: Entry, around: Surroundings) -> Spread:
        """Evaluate a batch."""
        propagation, bets = around.propagation, entry.bets
        values, parameters = propagation.following(propagation.values), propagation.following(propagation.parameters)
        ahead = propagation.following(propagation.played)
        centres = np.sqrt((((bets.means - ahead.mean(axis=1, keepdims=True)) @ around.root) ** 2).sum(axis=2))
        centres = (centres + propagation.following(around.rounding.values)[:, None]) * (1 + _ROOM)
        middle = np.einsum("hkd,hd->hk", bets.means, parameters)
        high, low = (values + around.widths).max(axis=1), (values - around.widths).min(axis=1)
        up, down = bets.reach(high, low, np.stack([middle - centres, middle + centres]))
        squares, slopes = entry.squares(values, parameters)
        gamma = bets.problem.continuation
        length = 1 + gamma * (high - low)[:, None]
        squares = squares + entry.tally.pulls * length**2 * 1e-13
        drifts = gamma**2 * entry.drifts(around.widths, centres)
        return cls(
            entry, squares, slopes, np.maximum(up, LEAST_REACH), np.maximum(down, LEAST_REACH), drifts * (1 + _ROOM)
        )


def largest_drifts(moments: FloatArray, around: Surroundings, continuation: float) -> FloatArray:
    """g²·λ_max(AᵀSA) of moments S (stages, K, d, d), (stages, K)."""
    root = around.root[:, None]
    shapes = root.swapaxes(2, 3) @ moments @ root
    traces = np.trace(shapes, axis1=2, axis2=3)
    largest = np.clip(np.linalg.eigvalsh(shapes)[..., -1], 0.0, None) + 1e-11 * traces
    drifts: FloatArray = continuation**2 * largest
    return drifts


__all__ = ["EXACT", "SPLIT", "Spread", "Surroundings", "largest_drifts"]
