"""What is known of the rest of ξ^π while one direction of it is tested: Theorem P's ellipsoids, and what follows
from them.

Theorem P (`tight`), on the samples since the lag and with the share q(π) of its part of δ, confines ξ^π to ellipsoids
C = {ξ̂ + Jx: xᵀM⁻¹x ≤ 1}, at all times at once, and Lemma N (`box`) to a box. On these events, at any time,

- V^π(s) - f_kᵀξ^π, a state's value less what a centre has of it, lies within ‖(φ(s,π(s)) - f_k)ᵀA‖ (or ‖…ᵀB‖₁) of what
  ξ̂ says; hence ranges of R + gV^π(S') around its centre, over *all* states, seen or not;
- Σζ(ξ)², a quadratic function of ξ, is its value at ξ̂ plus its gradient times Jx plus what is quadratic in x; the
  last is at most λ_max(M^½ S M^½), S = g²Σ(φ_π(S') - f)(φ_π(S') - f)ᵀ by pair, and the sum of squared widths at the
  states that were seen, by the ellipsoid (its trace, where the dimension is large) or by the box."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.stopping.dense.bets import Entry, lengths
from bestpolicy.stopping.dense.box import Box, Frame
from bestpolicy.stopping.evidence import Evidence, Model, fit
from bestpolicy.stopping.lemmas.propagation import Propagation, propagate
from bestpolicy.stopping.rounding import Rounding
from bestpolicy.stopping.tight import Refinement, Split, TightTest

SPLIT = Split(0.1, 0.75, 0.15, 0.0)  # of Theorem P's part of δ, for its events
EXACT = 40  # dimension up to which largest eigenvalues are computed
_ROOM = 1e-9  # relative room for what rounding does to quadratic forms
LEAST_REACH = 0.05
_ROUNDS, _SAME = 4, 0.9  # of boxes; a round that leaves as much gains less than it costs
_TOGETHER = 200_000  # numbers up to which all differences of states and pairs are formed


@dataclass(frozen=True, eq=False)
class Surroundings:
    """ξ^π as the samples since a lag confine it.

    Attributes
    ----------
    model : Model
        The estimate from these samples.
    propagation : Propagation
        Of π in it.
    metrics : array (m, stages, d, d)
        M of the ellipsoids, for directions of x.
    rounding : Rounding
    gaps : array (stages, S, A)
        V̂ - Q̂.
    root : array (stages, d, d)
        A with ‖vᵀA‖ the width of vᵀξ at the stage that follows, in the smallest of the ellipsoids.
    box : Box, optional
        Where ξ^π lies, too.
    """

    model: Model
    propagation: Propagation
    metrics: FloatArray
    rounding: Rounding
    gaps: FloatArray
    root: FloatArray
    box: Box | None = None

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
        found = refinement.verdict().metrics
        if not len(found):
            return None
        metrics = refinement.rounding.dominating(found)
        root = _smallest_root(propagation, metrics)
        return cls(model, propagation, metrics, refinement.rounding, refinement.gaps, root)

    def widths(self, columns: FloatArray) -> FloatArray:
        """How large functionals of x may be by the ellipsoids, (stages, n), for columns (stages, d, n)."""
        squares = [np.einsum("hdn,hde,hen->hn", columns, metric, columns, optimize=True) for metric in self.metrics]
        found: FloatArray = np.sqrt(np.clip(np.min(squares, axis=0), 0.0, None)) * (1 + _ROOM)
        return found

    def refined(
        self, entries: list[Entry], frame: Frame, failure: float, whole: bool
    ) -> tuple[Surroundings, list[Spread]]:
        """Intersect with the boxes of Lemma N, a few times, if all batches are there; and what is known of each."""
        around, spreads = self, [Spread.of(entry, self) for entry in entries]
        for _ in range(_ROUNDS if whole else 0):
            box = Box.of(around, frame, spreads, failure)
            if box is None:
                break
            before = sum(float(spread.drifts.sum()) for spread in spreads)
            around = replace(around, box=box)
            spreads = [Spread.of(entry, around) for entry in entries]
            if sum(float(spread.drifts.sum()) for spread in spreads) > _SAME * before:
                break
        return around, spreads


def _smallest_root(propagation: Propagation, metrics: FloatArray) -> FloatArray:
    carried = propagation.carried(metrics)
    pulled = propagation.pulled_back(metrics) if propagation.problem.horizon is None else carried
    # What all values have in common is seen by nobody, and large.
    ahead = propagation.played - propagation.played.mean(axis=1, keepdims=True)
    sizes = np.einsum("hsd,mhde,hse->m", ahead, pulled, ahead, optimize=True)
    eigenvalues, vectors = np.linalg.eigh(carried[int(sizes.argmin())])
    root = vectors * np.sqrt(np.clip(eigenvalues, 0.0, None) * (1 + _ROOM))[:, None, :]
    return propagation.following(propagation.moved(root))


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
        room = 2 * propagation.following(around.rounding.values)
        middle = np.einsum("hkd,hd->hk", bets.means, parameters)
        ahead = propagation.following(propagation.played)
        far = [_farthest(ahead, bets.means, values, middle, around.root, 2)]
        drifts = entry.drifts(around.root, room, 2)
        if around.box is not None:
            far.append(_farthest(ahead, bets.means, values, middle, around.box.root, 1))
            drifts = np.minimum(drifts, entry.drifts(around.box.root, room, 1))
        rise, fall = (np.minimum.reduce(each) + room[:, None] for each in zip(*far, strict=True))
        up, down = bets.reach(rise * (1 + _ROOM), fall * (1 + _ROOM))
        squares, slopes = entry.squares(values, parameters)
        gamma = bets.problem.continuation
        length = 1 + gamma * (rise + fall)
        squares = squares + entry.tally.pulls * length**2 * 1e-13
        drifts = gamma**2 * drifts * (1 + _ROOM)
        return cls(entry, squares, slopes, np.maximum(up, LEAST_REACH), np.maximum(down, LEAST_REACH), drifts)


def _farthest(
    ahead: FloatArray, means: FloatArray, values: FloatArray, middle: FloatArray, root: FloatArray, power: int
) -> tuple[FloatArray, FloatArray]:
    """Bounds on V^π(s) - f_kᵀξ^π and its negative, over all states s, (stages, U) each; widths are p-norms."""
    centre = ahead.mean(axis=1, keepdims=True)
    states, pairs = (ahead - centre) @ root, (means - centre) @ root
    if states.shape[1] * pairs.size > _TOGETHER:  # the triangle inequality through the centre
        width, other = lengths(states, power), lengths(pairs, power)
        high, low = (values + width).max(axis=1)[:, None], (values - width).min(axis=1)[:, None]
        return high - middle + other, middle + other - low
    widths = lengths(pairs[:, :, None, :] - states[:, None, :, :], power)
    apart = values[:, None, :] - middle[:, :, None]
    return (widths + apart).max(axis=2), (widths - apart).max(axis=2)


def largest_drifts(moments: FloatArray, around: Surroundings, continuation: float) -> FloatArray:
    """g²·λ_max(AᵀSA) of moments S (stages, K, d, d), (stages, K)."""
    root = around.root[:, None]
    shapes = root.swapaxes(2, 3) @ moments @ root
    traces = np.trace(shapes, axis1=2, axis2=3)
    largest = np.clip(np.linalg.eigvalsh(shapes)[..., -1], 0.0, None) + 1e-11 * traces
    drifts: FloatArray = continuation**2 * largest
    return drifts


__all__ = ["EXACT", "SPLIT", "Spread", "Surroundings", "largest_drifts"]
