"""What is known of the rest of ξ^π while one direction of it is tested: Theorem P's ellipsoids, and what follows
from them.

Theorem P (`tight`), on the samples since the lag and with the share q(π) of its part of δ, confines ξ^π to ellipsoids
C = {ξ̂ + Jx: xᵀM⁻¹x ≤ 1}, at all times at once, and Lemma N (`box`) to a box. On these events, at any time,

- V^π(s) - f_kᵀξ^π, a state's value less what a centre has of it, lies within ‖(φ(s,π(s)) - f_k)ᵀA‖ (or ‖…ᵀB‖₁) of what
  ξ̂ says; hence ranges of R + gV^π(S') around its centre, over *all* states, seen or not;
- Σζ(ξ)², a quadratic function of ξ, is its value at ξ̂ plus its gradient times Jx plus what is quadratic in x; the
  last is at most λ_max(M^½ S M^½), S = g²Σ(φ_π(S') - f)(φ_π(S') - f)ᵀ by pair, and the sum of squared widths at the
  states that were seen, by the ellipsoid (its trace, where the dimension is large) or by the box.

**Quickly.** Let c be the mean of φ(s,π(s)) over the states, x = φ(S',π(S')) - c, f' = f - c. The sum of squared widths
by the ellipsoid is Σ‖xᵀA‖² - 2f'ᵀAAᵀΣx + n‖f'ᵀA‖²: sums that a batch has, and one product. That of the box is at most
(√Σ‖xᵀB‖₁² + √n‖f'ᵀB‖₁)² (Minkowski's inequality), which takes the place of a sum over pairs and states where that is
long. So does λ_max ≤ t/d + √((d-1)/d)√(q - t²/d) with t and q the traces of the matrix and of its square (Wolkowicz and
Styan 1980; `next_states`) where there would be many eigenvalues to find. What rounding adds to each width, w, adds to
the root of a sum of n squares at most w√n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.problem import Problem
from bestpolicy.stopping.dense.bets import EXACT
from bestpolicy.stopping.dense.box import Box, Frame
from bestpolicy.stopping.dense.entries import Entry, lengths
from bestpolicy.stopping.evidence import Evidence, Model, fit
from bestpolicy.stopping.lemmas.propagation import Propagation, propagate
from bestpolicy.stopping.rounding import Rounding
from bestpolicy.stopping.tight import Refinement, Split, TightTest

SPLIT = Split(0.1, 0.75, 0.15, 0.0)  # of Theorem P's part of δ, for its events
_ROOM = 1e-9  # relative room for what rounding does to quadratic forms
LEAST_REACH = 0.05
_ROUNDS, _SAME = 4, 0.9  # of boxes; a round that leaves as much gains less than it costs
_TOGETHER = 200_000  # numbers up to which all differences of states and pairs are formed
_FEW = 1_000_000  # d³ times pairs up to which largest eigenvalues are computed
_REFINEMENTS, _FEWER = 6, 3  # rounds of Theorem P, and where each takes long
_LARGE = 1_000_000  # of pairs times squared dimension, from which on that is so


class Measure:
    """Widths of vᵀξ of the stage that follows, p-norms ‖vᵀA‖, for v that lead to states and to centres.

    Parameters
    ----------
    propagation : Propagation
    root : array (stages, d, n)
        A.
    power : {1, 2}
    """

    def __init__(self, propagation: Propagation, root: FloatArray, power: int) -> None:
        self.root, self.power = root, power
        ahead = propagation.following(propagation.played)
        self.centre = ahead.mean(axis=1, keepdims=True)
        self.ahead = ahead - self.centre
        self.values = propagation.following(propagation.values)
        self.states = self.ahead @ root
        self.widths = lengths(self.states, power)  # ‖xᵀA‖
        self.high, self.low = (self.values + self.widths).max(axis=1), (self.values - self.widths).min(axis=1)
        self.form = root @ root.swapaxes(1, 2)
        # By what quadratic forms may be off, relative to the lengths of what goes into them.
        states, dimension = propagation.problem.states, propagation.problem.dimension
        unit = (states + 8 * dimension + min(dimension, EXACT) ** 2 + 32) * EPS
        self.error = unit * np.trace(self.form, axis1=1, axis2=2)[:, None]
        self.longest = lengths(self.ahead, 2).max(axis=1)[:, None]

    def seen(self, entry: Entry, middle: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """How far V(s) may lie above and below its centre, over all states, and √Σwidth² at those that were seen.

        Given what ξ̂ says of the centres, (stages, U); arrays of that shape.
        """
        few = self.states.shape[1] * entry.means.shape[1] * self.root.size <= _TOGETHER * self.root.shape[1]
        if self.power == 1 or few:
            pairs = entry.means @ self.root
            own = lengths(pairs, self.power)
        else:
            mixed = entry.means @ self.form
            length = lengths(entry.means, 2)
            own = np.einsum("hkd,hkd->hk", mixed, entry.means) + self.error * length**2
            own = np.sqrt(np.clip(own, 0.0, None))
        pulls = entry.tally.pulls
        if few:
            every = lengths(pairs[:, :, None, :] - self.states[:, None, :, :], self.power)
            apart = self.values[:, None, :] - middle[:, :, None]
            rise, fall = (every + apart).max(axis=2), (every - apart).max(axis=2)
            stages, count, states = every.shape
            flat = every.reshape(stages * count, states)[entry.places] ** 2 * entry.tally.counts
            sums = np.bincount(entry.places[0], weights=flat, minlength=stages * count).reshape(stages, count)
            return rise, fall, np.sqrt(sums)
        rise, fall = self.high[:, None] - middle + own, middle + own - self.low[:, None]
        if self.power == 1:
            return rise, fall, np.sqrt(entry.by_pair(self.widths**2)) + np.sqrt(pulls) * own
        if entry.second is not None:
            ahead = np.einsum("hkde,hde->hk", entry.second, self.form)
        else:
            ahead = entry.by_pair(self.widths**2)
        sums = ahead - 2 * np.einsum("hkd,hkd->hk", mixed, entry.first) + pulls * own**2
        room = self.error * pulls * (self.longest + length) ** 2
        return rise, fall, np.sqrt(np.clip(sums, 0.0, None) + room)


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
    measures : tuple of Measure
        Widths by the ellipsoid, and by the box if there is one.
    """

    model: Model
    propagation: Propagation
    metrics: FloatArray
    rounding: Rounding
    gaps: FloatArray
    root: FloatArray
    measures: tuple[Measure, ...]
    box: Box | None = None

    @classmethod
    def of(cls, test: TightTest, fresh: Evidence, entries: Sequence[Entry] = ()) -> Surroundings | None:
        """Look at the samples since the lag; None where they do not yet determine anything.

        If `entries` are given, they are all these samples, and have second moments of the next states.
        """
        problem, policy = test.problem, test.policy
        assert policy is not None
        model = fit(problem, fresh)
        propagation = None if model is None else propagate(problem, model.theta, model.mu, policy)
        if model is None or propagation is None:
            return None
        refinement = Refinement(test, fresh, model, None, propagation)
        if entries:
            refinement.covariances = _covariances(entries, propagation, len(fresh.tally.pairs))
        found = refinement.ellipsoids(_FEWER if is_large(problem, len(model.sampled)) else _REFINEMENTS)
        if not len(found):
            return None
        metrics = refinement.rounding.dominating(found)
        root = _smallest_root(propagation, metrics)
        measures = (Measure(propagation, root, 2),)
        return cls(model, propagation, metrics, refinement.rounding, refinement.gaps, root, measures)

    def widths(self, columns: FloatArray) -> FloatArray:
        """How large functionals of x may be by the ellipsoids, (stages, n), for columns (stages, d, n)."""
        squares = [(columns * (metric @ columns)).sum(axis=1) for metric in self.metrics]
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
            measures = (*self.measures, Measure(self.propagation, box.root, 1))
            around = replace(around, box=box, measures=measures)
            spreads = [Spread.of(spread.entry, around, spread) for spread in spreads]
            if sum(float(spread.drifts.sum()) for spread in spreads) > _SAME * before:
                break
        return around, spreads


def is_large(problem: Problem, pairs: int) -> bool:
    """Whether looks take so long that they do without what helps a little only."""
    return problem.stages * pairs * problem.dimension**2 > _LARGE


def _smallest_root(propagation: Propagation, metrics: FloatArray) -> FloatArray:
    carried = propagation.carried(metrics)
    pulled = propagation.pulled_back(metrics) if propagation.problem.horizon is None else carried
    # What all values have in common is seen by nobody, and large.
    ahead = propagation.played - propagation.played.mean(axis=1, keepdims=True)
    sizes = np.einsum("hsd,mhde,hse->m", ahead, pulled, ahead, optimize=True)
    eigenvalues, vectors = np.linalg.eigh(carried[int(sizes.argmin())])
    root = vectors * np.sqrt(np.clip(eigenvalues, 0.0, None) * (1 + _ROOM))[:, None, :]
    return propagation.following(propagation.moved(root))


def _covariances(entries: Sequence[Entry], propagation: Propagation, pairs: int) -> tuple[FloatArray, FloatArray]:
    """Covariances of ψ(S') of every pair, (stages, K, d, d), and what rounding errors are relative to."""
    first = entries[0].bets
    stages, dimension = first.centred.shape[0], first.centred.shape[2]
    pulls, sums = np.zeros((stages, pairs)), np.zeros((stages, pairs, dimension))
    second = np.zeros((stages, pairs, dimension, dimension))
    for entry in entries:
        assert entry.second is not None
        used = entry.bets.used
        pulls[:, used] += entry.tally.pulls
        sums[:, used] += entry.first
        second[:, used] += entry.second
    number = np.maximum(pulls, 1)[:, :, None]
    means = sums / number
    second /= number[:, :, :, None]
    second -= means[:, :, :, None] * means[:, :, None, :]
    found, growth = propagation.as_directions(second)
    ahead = propagation.following(propagation.played) - first.centre
    return found, growth * (ahead**2).sum(axis=2).max(axis=1)


@dataclass(frozen=True, eq=False)
class Spread:
    """What is known of ζ in one batch: arrays (stages, U).

    Attributes
    ----------
    entry : Entry
    squares : array
        Σζ(ξ̂)².
    up, down : arrays
        Ranges of ζ(ξ^π).
    drifts : array
        Bounds on what is quadratic in Σζ(ξ^π)², by traces.
    """

    entry: Entry
    squares: FloatArray
    up: FloatArray
    down: FloatArray
    drifts: FloatArray

    @classmethod
    def of(cls, entry: Entry, around: Surroundings, before: Spread | None = None) -> Spread:
        """Evaluate a batch; what was known `before` the last box holds as well, and the rest is as it was."""
        propagation, bets = around.propagation, entry.bets
        parameters = propagation.following(propagation.parameters)
        room = 2 * propagation.following(around.rounding.values)[:, None]
        middle = np.einsum("hkd,hd->hk", bets.means, parameters)
        gamma, pulls = bets.problem.continuation, entry.tally.pulls
        measures = around.measures if before is None else around.measures[1:]
        found = [measure.seen(entry, middle) for measure in measures]
        rise, fall, roots = (np.minimum.reduce(each) for each in zip(*found, strict=True))
        rise, fall = rise + room, fall + room
        up, down = (np.maximum(each, LEAST_REACH) for each in bets.reach(rise * (1 + _ROOM), fall * (1 + _ROOM)))
        drifts = gamma**2 * (roots + np.sqrt(pulls) * room) ** 2 * (1 + _ROOM)
        if before is not None:
            up, down = np.minimum(up, before.up), np.minimum(down, before.down)
            return cls(entry, before.squares, up, down, np.minimum(drifts, before.drifts))
        squares = entry.squared(propagation.following(propagation.values), parameters)
        unit = max(1e-13, 2 * (bets.problem.states + 32) * EPS)
        squares = squares + pulls * (1 + gamma * (rise + fall)) ** 2 * unit
        return cls(entry, squares, up, down, drifts)


def largest_drifts(moments: FloatArray, around: Surroundings, continuation: float) -> FloatArray:
    """g²·λ_max(AᵀSA) of moments S (stages, K, d, d), or a bound on it, (stages, K)."""
    root, dimension = around.root[:, None], moments.shape[-1]
    shapes = root.swapaxes(2, 3) @ moments @ root
    traces = np.clip(np.trace(shapes, axis1=2, axis2=3), 0.0, None)
    if traces.size * dimension**3 <= _FEW:
        largest = np.clip(np.linalg.eigvalsh(shapes)[..., -1], 0.0, None) + 1e-11 * traces
    else:
        rest = np.clip(np.einsum("hkde,hkde->hk", shapes, shapes) - traces**2 / dimension, 0.0, None)
        rest = np.sqrt((rest + 1e-12 * traces**2) * (dimension - 1) / dimension)
        largest = np.minimum(traces / dimension + rest, traces) * (1 + _ROOM)
    drifts: FloatArray = continuation**2 * largest
    return drifts


__all__ = ["EXACT", "SPLIT", "Measure", "Spread", "Surroundings", "is_large", "largest_drifts"]
