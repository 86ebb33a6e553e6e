"""Theorem I: one bet against each rival of a policy; no union over rivals, no price for the dimension.

*Setting.* Words and letters are those of `bets`. A policy is optimal if no rival has a positive advantage, and if
none has more than e then V* - V^π ≤ eL, L = 1/(1-γ) or H (performance difference). In an episodic problem that is so,
too, if none of step h has more than p_he, with p_h > 0 and Σp_h ≤ H: V* - V^π ≤ Σ_h (the largest advantage at step h).
A *lag* is a stopping time; all below is conditional on the samples before it, and *predictable* means: a function of
the samples before a sample.

**Lemma E** (in the form needed here). Let X have mean μ, m and τ be numbers, R > 0 with sgn(τ)(X - m) ≤ R and |τ|R < 1.
With ψ(x) = (-log(1-x) - x)/x²,  E exp(-τ(X - μ) - ψ(|τ|R)τ²(X - m)²) ≤ 1.

*Proof.* log(1+z) ≥ z - ψ(b)z² for z ≥ -b, 0 < b < 1 (`betting`). With z = -τ(X - m) ≥ -|τ|R the exponential of
-τ(X-m) - ψτ²(X-m)² is at most 1 - τ(X - m), whose mean is 1 - τ(μ - m) ≤ exp(-τ(μ - m)). ∎ It is used for a
*hypothesis* ξ: X = r + gV_ξ(s'), μ = φᵀξ, so that X - μ = η(ξ), X - m = ζ(ξ). Centre and range may depend on the
hypothesis, which is a constant; ψ increases, so a larger R only lowers the exponent.

**What a lag fixes.** Its share δ' of δ; a prior q over policies (`policies`); for each policy a test of Theorem P
(`nuisance`), with q(π)·δ'·SHARES[1]; a frame of Lemma N (`box`), with q(π)·δ'·SHARES[2]; shares q_m, which sum to at
most 1, of a few sizes; portions p_h of the steps (p = 1 if discounted), p_j being that of rival j's. Snapshots, and
with them directions, variances and centres, are renewed with every batch, and bets are turned (`bets`). For rival j
of π and size m let

    L_m(ξ; R) = Σ_i [-τ_i η_i(ξ) - ψ(|τ_i|R_i) τ_i² ζ_i(ξ)²]        over the samples since the lag.

**The look.** C is the set that Theorem P and Lemma N leave at this time; R̄ bounds the ranges of ζ(ξ) for all
ξ in C; sizes with |τ_i|R̄_i ≥ 0.9 for some i are left out. For an excess e ≥ 0, *rival j is refuted* if

    log Σ_m q_m exp(inf {L_m(ξ; R̄): ξ ∈ C, c_jᵀξ ≥ p_je}) ≥ log(1/(SHARES[0]·δ'·q(π))),        (1)

where the infimum over nothing is +∞. ε = L·(the least e on a grid at which all rivals are refuted).

**Theorem I.** Given the past of the lag, with probability at least 1 - δ', at all times and for all policies max_s
(V* - V^π)(s) ≤ ε. Nothing is assumed of the estimates, the sampling is any predictable one.

*Proof.* Fix π, and let j be *the* rival with the largest A/p_j, A = c_jᵀξ^π: it is not known, but a constant.
Let Z_m = exp L_m(ξ^π; R(ξ^π)) with the true ranges, bets being 0 from the first sample on at which |τ|R ≥ 1: by
Lemma E a non-negative supermartingale that starts at 1, and so is Σ_m q_m Z_m. By Ville's inequality it ever
exceeds 1/(SHARES[0]δ'q(π)) with probability at most SHARES[0]δ'q(π). Suppose it does not, and that Theorem P's
and Lemma N's events hold, which fail with probability (SHARES[1] + SHARES[2])δ'q(π). At any time ξ^π ∈ C, so R̄ ≥
R(ξ^π), and for sizes that
are not left out no bet was set to 0 and L_m(ξ^π; R̄) ≤ log Z_m. If max (V* - V^π) > ε then A > p_je for the e of this
look: else no rival would have more than its p·e. So ξ^π is among those over which (1) takes its infimum, and
Σ_m q_m Z_m ≥ the left side's exponential ≥ 1/(SHARES[0]δ'q(π)), a contradiction. Sum over π. ∎

A wrong policy passes only if its one worst rival is refuted too, so every rival is tested at the full confidence
(an intersection-union test); and as this rival is the same for all ε, so is the confidence for all ε at once.

**The infimum.** L_m is a number plus a functional of ξ minus a convex quadratic. At ξ = ξ̂ + Jx the quadratic is
its value at ξ̂, plus its gradient, which joins the functional, plus at most `drift` (`nuisance`). What remains is
the least ℓᵀx over xᵀM⁻¹x ≤ 1, yᵀx ≥ t: with s² = yᵀMy, k = ℓᵀMy/s² and p = ‖ℓ - ky‖_M it is kt' - p√(1 - t'²/s²) at
t' = max(t, -ks²/‖ℓ‖_M), and there is nothing to minimise over if t > s: in the coordinates M^½ the minimum over the
slice yᵀx = t' is attained at a point opposite to ℓ's part across y, and as a function of t' this is convex with its
minimum at -ks²/‖ℓ‖_M. The hardest rivals have the least over the box, too (`box`); the larger of the two bounds counts.

What is quadratic is bounded twice: pair by pair, each at its own worst x, and for all pairs of all stages at once,
which have one x: with ω_k = ψ(largest |τ|R̄)τ_k² it is xᵀJᵀ(Σ_k ω_kS_k)Jx ≤ λ_max(BᵀΣ_k ω_kS_kB), B = JM^½.

**Quickly.** ψ(x) ≤ 1/2 + x/3 + x²/(4(1-x)) (compare the series), so Σ ψτ²Σζ² for all sizes follows from three sums by
rival. For most rivals it need not be known well: ψ at the largest |τ|R̄ and Σ_k τ_k²Σζ² as a quadratic form of d×d
matrices, with (√a + √b)² for what ζ(ξ̂) and the drift give together (Minkowski), refute them at once. Only the hardest
are looked at pair by pair, and more of them only while one that is not might be the hardest of all.

**Rounding.** What keeps the equations from holding exactly (`rounding`) shifts η by at most z̄ and advantages by
`margins`: Σ|τ|z̄, and as much again for the sums, is taken off L, and e is raised by the margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import exp, floor, inf, log, log2
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, by_stage
from bestpolicy._numerics.reproducible import EPS, one_thread, steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.dense.bets import Bets, Rivals, Snapshot
from bestpolicy.stopping.dense.box import Frame, LeastInBox
from bestpolicy.stopping.dense.entries import Entry, entered
from bestpolicy.stopping.dense.nuisance import SPLIT, Spread, Surroundings, largest_drifts
from bestpolicy.stopping.dense.policies import LEAST_LOG_WEIGHT, PolicyPrior
from bestpolicy.stopping.evidence import Evidence, second_moments
from bestpolicy.stopping.lemmas.deviations import Prior
from bestpolicy.stopping.rule import Past
from bestpolicy.stopping.tight import TightTest

SHARES = (0.9, 0.05, 0.05)  # of the lag's δ: for the bets, for the ellipsoids, for the box
SIZES = 2.0 ** (-np.arange(5) / 2)  # of bets, in terms of the largest
SIZE_SHARES = (0.12, 0.16, 0.4, 0.22, 0.1)  # most lags end at six to ten times the samples that they began with
OLD_SIZE_SHARES = (0.25, 0.3, 0.25, 0.12, 0.08)  # of lags in older files
BOLDEST = 0.9  # of |τ|R̄
SOONEST = 1.0  # the largest bets are best if the end is at this many times the past
ABOVE = 1.4  # times the gap that the first snapshot sees: the largest bets are not smaller
CAUTION, OLD_CAUTION = 0.5, 0.4  # of |τ|R, as the snapshot of a batch expects it; of lags in older files
STEERING = 0.5  # how much bets may be turned, in terms of their own length
STEERED = 200_000  # stakes of all rivals on all pairs up to which they are
_USUAL, _AHEAD = 2, 0.2  # size that they are turned for, and share of all samples that is expected to rest on them
_HARD, _AT_ONCE = 256, 48  # rivals that are looked at pair by pair, at most, and so many at a time
_JOINT = 60  # stages·d up to which all pairs are looked at together
_STEPS = 64  # of the grid of ε to a factor of 2
_FINEST = 64 * 40


@dataclass(frozen=True, eq=False)
class Lag:
    """What the past fixes.

    Attributes
    ----------
    number, started : int
        Which lag of the run, and after how many samples it began.
    delta : float
        δ'.
    prior : Prior
        Of Theorem P.
    policies : PolicyPrior
    asked : float
        The ε that is wanted; it is tried beside the grid.
    theorem : {"I", "UD"}
        What is said of the samples since.
    sigma, gamma : arrays (d, d)
        Σ0 and Γ0 of Theorem UD.
    bet : float
        a of Theorem UD.
    spikes : array (M,)
        a_m over a; none: no state is looked at alone (older files, and where it would take long).
    size_shares : array (sizes,)
        q_m.
    caution : float
        What |τ|R is kept below at every batch, as its snapshot expects it; 0: at the first one only (older files).
    soonest, above : float
        The largest size of bets is best if the end is at so many times the past, and no less than so many times the
        gap that the first snapshot sees. Theorem UD has sizes of its own.
    steering : float
        How much bets may be turned; 0: not at all (older files).
    portions : array (stages,)
        p_h; none: 1 (older files).
    """

    number: int
    started: int
    delta: float
    prior: Prior
    policies: PolicyPrior
    frame: Frame
    asked: float = 0.0
    theorem: str = "I"
    sigma: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    gamma: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    bet: float = 0.0
    spikes: FloatArray = field(default_factory=lambda: np.zeros(0))
    size_shares: FloatArray = field(default_factory=lambda: np.array(OLD_SIZE_SHARES))
    caution: float = 0.0
    soonest: float = 1.5
    above: float = 0.0
    steering: float = 0.0
    portions: FloatArray = field(default_factory=lambda: np.zeros(0))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and arrays, for the file of a study."""
        parts = {"prior": prior_fields(self.prior), "policies": vars(self.policies), "frame": vars(self.frame)}
        return vars(self) | parts

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Lag:
        """Return what `to_dict` has written."""
        parts = {"policies": PolicyPrior(**known["policies"]), "frame": Frame(**known["frame"])}
        return cls(**(known | parts | {"prior": Prior(**known["prior"])}))


def prior_fields(prior: Prior) -> dict[str, Any]:
    """Return what a prior was made of."""
    return {name: getattr(prior, name) for name in ("base", "capacity", "largest", "shares")}


@dataclass(frozen=True)
class Outcome:
    """What a look says: the ε that it certifies, and how far it is on the way to the asked one, up to 1.

    `loose` is how much larger Σζ² might be than what was seen because values are not known well, in terms of that;
    `missing` what bets on each rival of the policy (J,) have still to earn, in terms of what they have to in all.
    """

    epsilon: float
    reached: float
    loose: float = 1.0
    missing: FloatArray | None = field(default=None, compare=False)


def on_grid(epsilon: float, limit: float) -> float:
    """Round ε up to limit·2^(-i/64), which is what looks say; 0 stays, and what is no news is inf."""
    if not 0 < epsilon < limit:
        return 0.0 if epsilon <= 0 else inf
    place = floor(-log2(epsilon / limit) * _STEPS * (1 - 1e-9))
    return limit * 2.0 ** (-min(place, _FINEST) / _STEPS) if place > 0 else inf


class Book:
    """All batches since a lag, as one policy sees them, and Theorem I's look at them.

    Parameters
    ----------
    problem : Problem
        In accurate coordinates.
    sampled : array (K, d)
        Features of the pairs that may be sampled.
    lag : Lag
    policy : int array (stages, S)
    """

    def __init__(self, problem: Problem, sampled: FloatArray, lag: Lag, policy: IntArray) -> None:
        self.problem, self.sampled, self.lag, self.policy = problem, sampled, lag, policy
        weight = lag.policies.log_weight(policy)
        self.negligible = weight < LEAST_LOG_WEIGHT
        weight = max(weight, LEAST_LOG_WEIGHT)
        self.nats = -log(SHARES[0] * lag.delta) - weight
        past = Past(lag.prior, lag.number, lag.started, policy)
        self.test = TightTest(problem, past, SHARES[1] * lag.delta * exp(weight), SPLIT, inf, policy)
        self.rivals = Rivals.of(problem, policy)
        self.entries = list[Entry]()
        self.sizes, self.whole = np.zeros((len(SIZES), len(self.rivals))), True
        self._left: FloatArray | float = 0.0  # ℓ(ξ) that bets of finished entries have, for size 1
        shape = (len(self.rivals), problem.stages)
        self._number, self._absolute = np.zeros(shape[0]), np.zeros(shape)  # of finished entries
        self._functional = np.zeros((*shape, problem.dimension))

    def enter(self, snapshot: Snapshot, tally: Tally) -> None:
        """Take in a batch, over all pairs that may be sampled, with the snapshot that was taken before it."""
        known = len(self.entries)
        entry = entered(self.entries, lambda: self._bets(snapshot), snapshot, tally)
        if entry is None:
            self.whole = False
            return
        self.whole &= entry.tally.samples == tally.samples
        if len(self.entries) > known > 0:  # nothing is added to the last one any more
            last = self.entries[-2]
            number, functional = last.earned()
            self._number, self._functional = self._number + number, self._functional + functional
            self._absolute = self._absolute + last.absolute
            last.forget()

    def _bets(self, snapshot: Snapshot) -> Bets:
        """The bets of a new snapshot; the first one fixes the sizes, from what is known at the lag."""
        bets = Bets(self.problem, self.rivals, self.policy, snapshot, self.sampled)
        if not bets.possible or not len(self.rivals):
            return bets
        if self.entries and self.lag.steering and self._few:
            self._steer(bets)
        boldest = bets.boldest()
        if not self.entries:
            largest = np.sqrt(2 * (self.nats + 1.5) * bets.spread / (self.lag.soonest * self.lag.started))
            gaps = -np.einsum("jd,jd->j", self.rivals.differences, bets.response.parameters[self.rivals.stage])
            largest = np.maximum(largest, self.lag.above * gaps)
            self.sizes = SIZES[:, None] * np.minimum(largest, (self.lag.caution or OLD_CAUTION) / boldest)
        if self.lag.caution:
            bets.soften(np.minimum(1.0, self.lag.caution / (self.sizes[0] * boldest)))
        return bets

    @property
    def _few(self) -> bool:
        """Whether stakes of all rivals on all pairs may be formed at once."""
        pairs, dimension = self.sampled.shape
        return len(self.rivals) * self.problem.stages * max(int(pairs), int(dimension)) <= STEERED

    def _steer(self, bets: Bets) -> None:
        """Turn new bets so that what earlier ones leave across the rivals' directions is taken back."""
        entry, response = self.entries[-1], bets.response
        slopes = entry.slopes(response.following(response.values), response.following(response.parameters))
        stakes = entry.bets.stakes(np.arange(len(self.rivals)))
        bent = response.preceding(by_stage(stakes**2, slopes))
        self._left = self._left + entry.earned()[1] - 0.5 * self.sizes[_USUAL, :, None, None] * bent
        total = self.lag.started + sum(each.tally.samples for each in self.entries)
        bets.turn(response.answered(self._left), _AHEAD * total, self.lag.steering)

    @property
    def number(self) -> FloatArray:
        """What -Σ τη(ξ)/α is without ξ, (J,)."""
        return self._number + self.entries[-1].earned()[0] if self.entries else self._number

    @property
    def functional(self) -> FloatArray:
        """What it has of ξ, (J, stages, d)."""
        return self._functional + self.entries[-1].earned()[1] if self.entries else self._functional

    @property
    def absolute(self) -> FloatArray:
        """Σ|τ|/α or a little more, (J, stages)."""
        return self._absolute + self.entries[-1].absolute if self.entries else self._absolute

    @one_thread()
    def look(self, fresh: Evidence) -> Outcome:
        """Return the ε that the samples since the lag certify for the policy; inf if they say nothing."""
        if not len(self.rivals):
            return Outcome(0.0, 1.0)
        around = self._around(fresh) if self.entries and not self.negligible else None
        if around is None:
            return Outcome(inf, 0.0)
        around, spreads = around.refined(
            self.entries, self.lag.frame, SHARES[2] * exp(-self.nats) / SHARES[0], self.whole
        )
        evidence = _Evidence(self, around, spreads)
        limit = float(self.problem.value_limits[0])
        # The larger the excess the more rivals are refuted: those that are at some excess stay so at all larger ones.
        left, loose = np.flatnonzero(evidence.at(0.0) < self.nats), looseness(spreads)
        if not len(left):
            return Outcome(0.0, 1.0, loose)
        low, high = 0, _FINEST  # grid points limit·2^(-i/64): the first one is trivial, the last one is not reached
        while high - low > 1:
            middle = (low + high) // 2
            still = left[evidence.at(2.0 ** (-middle / _STEPS), left) < self.nats]
            low, high, left = (low, middle, still) if len(still) else (middle, high, left)
        epsilon, asked = limit * 2.0 ** (-low / _STEPS) if low else inf, self.lag.asked
        earned = steady(np.clip(evidence.at(asked / limit) / self.nats, 0.0, 1.0))
        least = float(earned.min())
        if 0 < asked < epsilon and least >= 1:
            epsilon = asked
        return Outcome(epsilon, least, loose, 1 - earned)

    def _around(self, fresh: Evidence) -> Surroundings | None:
        known = self.whole and all(entry.second is not None for entry in self.entries)
        return Surroundings.of(self.test, fresh, self.entries if known else ())


def looseness(spreads: list[Spread]) -> float:
    """Return the sum of drifts over that of squares."""
    drifts = sum(float(spread.drifts.sum()) for spread in spreads)
    squares = sum(float(spread.squares.sum()) for spread in spreads)
    return float(steady(np.array(drifts / max(squares, 1e-300))))


class _Evidence:
    """The left side of (1) for all rivals, as a function of the excess."""

    def __init__(self, book: Book, around: Surroundings, spreads: list[Spread]) -> None:
        problem, rivals, propagation = book.problem, book.rivals, around.propagation
        self.book, self.around, self.spreads = book, around, spreads
        self.start = around.gaps[rivals.place] - around.rounding.margins[rivals.place]
        self.portions = book.lag.portions[rivals.stage] if book.lag.portions.size else np.ones(len(rivals))
        unit = (problem.dimension + problem.states + len(book.sampled) + 1000) * EPS * (1 + problem.value_limits[0])
        self.functional = book.functional
        here = book.number + np.einsum("jhd,hd->j", self.functional, propagation.parameters)
        self.here = here - book.absolute @ (around.rounding.equations + unit)
        self.directions = propagation.directions(rivals.stage, rivals.differences)
        answered = propagation.answered(self.functional)
        self.easy = _Side(
            book.lag.size_shares,
            book.sizes * self.here - _easy_costs(book, spreads),
            [[LeastLinear(metric, self.directions, answered) for metric in around.metrics]],
            book.sizes,
        )
        self.hard = np.zeros(0, np.int64)
        self.close: _Side | None = None
        self._look_closely(book.lag.asked / float(problem.value_limits[0]))

    def _look_closely(self, excess: float) -> None:
        """Look at the hardest rivals pair by pair, and at more of them while one of these might be the hardest."""
        first = self.easy.at(self.start + excess * self.portions)
        order = np.argsort(steady(np.where(np.isfinite(first), first, np.copysign(1e300, first))), kind="stable")
        while len(self.hard) < min(_HARD, len(order)):
            more = order[len(self.hard) : len(self.hard) + _AT_ONCE]
            if len(self.hard):
                least = min(self.book.nats, float(self.at(excess, self.hard).min()))
                if not first[more[0]] < least:
                    break
            hard = np.sort(more)
            side = self._closer(hard)
            self.close = side if self.close is None else self.close.with_more(side)
            self.hard = np.concatenate([self.hard, hard])

    @cached_property
    def _slopes(self) -> list[FloatArray]:
        propagation = self.around.propagation
        point = propagation.following(propagation.values), propagation.following(propagation.parameters)
        return [spread.entry.slopes(*point) for spread in self.spreads]

    @cached_property
    def _drifts(self) -> FloatArray:
        """What all batches together may have by second moments, (stages, K); inf where these are not known."""
        book, entries = self.book, self.book.entries
        shape = (book.problem.stages, len(book.sampled))
        if any(entry.second is None for entry in entries):
            return np.full(shape, inf)
        moments = np.zeros((*shape, book.problem.dimension, book.problem.dimension))
        for place, entry in enumerate(entries):
            moments[:, entry.bets.used] += self._moments[place] if self._roots else entry.moments()
        return largest_drifts(moments, self.around, book.problem.continuation)

    @cached_property
    def _moments(self) -> list[FloatArray]:
        """Of every batch; they are small where they are asked for more than once."""
        return [entry.moments() for entry in self.book.entries]

    @cached_property
    def _roots(self) -> list[FloatArray]:
        """B, for the ξ of the stage that follows, of the smaller ellipsoids; none where there are no second moments."""
        propagation, problem = self.around.propagation, self.book.problem
        if problem.stages * problem.dimension > _JOINT or any(entry.second is None for entry in self.book.entries):
            return []
        sizes = np.trace(propagation.carried(self.around.metrics), axis1=2, axis2=3).sum(axis=1)
        found = []
        for place in np.argsort(steady(sizes), kind="stable")[:2]:
            values, vectors = np.linalg.eigh(self.around.metrics[place])
            root = vectors * np.sqrt(np.clip(values, 0.0, None) * (1 + 1e-9))[:, None, :]
            found.append(propagation.following(propagation.spread_out(root)))
        return found

    def _closer(self, hard: IntArray) -> _Side:
        """What the bets on some rivals have earned, pair by pair."""
        book, around, propagation = self.book, self.around, self.around.propagation
        moments = self._moments if self._roots else []
        costs, gradients = _hard_costs(book, self.spreads, self._slopes, self._drifts, self._roots, moments, hard)
        directions, scales = self.directions[hard], []
        for size, slopes in zip(book.sizes[:, hard, None, None], gradients, strict=True):
            shifted = propagation.answered(size * self.functional[hard] - propagation.preceding(slopes))
            least: list[LeastLinear | LeastInBox] = [
                LeastLinear(metric, directions, shifted) for metric in around.metrics
            ]
            if around.box is not None:
                least.append(LeastInBox(around.box.answered(directions), around.box.answered(shifted)))
            scales.append(least)
        levels = book.sizes[:, hard] * self.here[hard] - costs
        return _Side(book.lag.size_shares, levels, scales, np.ones((len(SIZES), len(hard))))

    def at(self, excess: float, some: IntArray | None = None) -> FloatArray:
        """For all rivals, or for some, (n,)."""
        some = np.arange(len(self.start)) if some is None else some
        start = self.start + excess * self.portions
        found = self.easy.at(start[some], some)
        place = np.full(len(self.start), -1)
        place[self.hard] = np.arange(len(self.hard))
        close = np.flatnonzero(place[some] >= 0)
        if len(close):
            assert self.close is not None
            nearer = self.close.at(start[some[close]], place[some[close]])
            found[close] = np.maximum(found[close], nearer)
        return found


@dataclass(frozen=True, eq=False)
class _Side:
    """Levels (sizes, J) without the functional, and least functionals: of every size, or one that is multiplied."""

    shares: FloatArray
    levels: FloatArray
    least: list[list[LeastLinear | LeastInBox]]
    factors: FloatArray

    def at(self, start: FloatArray, some: IntArray | slice = slice(None)) -> FloatArray:
        """For some of the rivals, in the order of their excess (n,)."""
        best = [np.max([each.over(start, some) for each in scale], axis=0) for scale in self.least]
        empty = np.isposinf(best[0])
        finite = np.where(empty, 0.0, np.array(best))
        levels = self.levels[:, some] + self.factors[:, some] * finite
        found = np.logaddexp.reduce(np.log(self.shares)[:, None] + levels, axis=0)
        found = np.where(empty, inf, found)
        return np.where(np.isnan(found), -inf, found)

    def with_more(self, other: _Side) -> _Side:
        """Return the same for these rivals and then those of another side."""
        least = [
            [mine.with_more(theirs) for mine, theirs in zip(*scales, strict=True)]  # type: ignore[arg-type]
            for scales in zip(self.least, other.least, strict=True)
        ]
        levels, factors = (
            np.concatenate([getattr(self, name), getattr(other, name)], axis=1) for name in ("levels", "factors")
        )
        return _Side(self.shares, levels, least, factors)


class LeastLinear:
    """The least ℓᵀx over xᵀM⁻¹x ≤ 1 and yᵀx ≥ t, for many (y, ℓ) at once.

    Parameters
    ----------
    metric : array (stages, d, d)
        M.
    directions, functionals : arrays (n, stages, d)
        y and ℓ.
    """

    def __init__(self, metric: FloatArray, directions: FloatArray, functionals: FloatArray) -> None:
        along = by_stage(directions, metric)
        self.width = np.sqrt(np.maximum(np.einsum("jhd,jhd->j", along, directions), 1e-300))
        self.slope = np.einsum("jhd,jhd->j", along, functionals) / self.width**2
        rest = functionals - self.slope[:, None, None] * directions
        across = np.einsum("jhd,jhd->j", by_stage(rest, metric), rest)
        self.across = np.sqrt(np.clip(across, 0.0, None)) * (1 + 1e-9)
        self.length = np.sqrt(self.across**2 + (self.slope * self.width) ** 2)
        self.free = -self.slope * self.width**2 / np.maximum(self.length, 1e-300)  # yᵀx where nothing is asked of it

    def over(self, start: FloatArray, some: IntArray | slice = slice(None)) -> FloatArray:
        """For t (n,), of some of them; +inf where no x has yᵀx ≥ t."""
        width = self.width[some]
        rest = np.sqrt(np.clip(1 - (start / width) ** 2, 0.0, None))
        bound = np.where(
            start <= self.free[some], -self.length[some], self.slope[some] * start - self.across[some] * rest
        )
        return np.where(start > width, inf, bound)

    def with_more(self, other: LeastLinear) -> LeastLinear:
        """Return these and then those of another one."""
        both: LeastLinear = object.__new__(LeastLinear)
        for name, mine in vars(self).items():
            setattr(both, name, np.concatenate([mine, getattr(other, name)]))
        return both


def above_psi(x: FloatArray) -> FloatArray:
    """1/2 + x/3 + x²/(4(1-x)) ≥ ψ(x) for x < 0.9; inf beyond."""
    inside = np.minimum(x, BOLDEST)
    return np.where(x < BOLDEST, 0.5 + inside / 3 + inside**2 / (4 * (1 - inside)), inf)


def _easy_costs(book: Book, spreads: list[Spread]) -> FloatArray:
    """Bounds on Σψτ²Σζ(ξ)² over C for every size and rival, (sizes, J), by quadratic forms alone."""
    boldest, total = np.zeros(len(book.rivals)), np.zeros(len(book.rivals))
    everyone = np.arange(len(book.rivals))
    for spread in spreads:
        bets = spread.entry.bets
        boldest = np.maximum(boldest, bets.peaks * max(spread.up.max(), spread.down.max()))
        directions = bets.directions(everyone)
        numbers = (np.sqrt(spread.squares) + np.sqrt(spread.drifts)) ** 2
        form = second_moments(bets.sampled, numbers / bets.variances**2)
        total += np.einsum("jhd,jhd->j", by_stage(directions, form), directions)
    factor = above_psi(book.sizes * boldest)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(factor), factor * book.sizes**2 * np.clip(total, 0.0, None) * (1 + 1e-9), inf)


def _hard_costs(
    book: Book,
    spreads: list[Spread],
    slopes: list[FloatArray],
    together: FloatArray,
    roots: list[FloatArray],
    moments: list[FloatArray],
    hard: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """The same for some rivals, pair by pair, (sizes, n), but for the gradient, (sizes, n, stages, d).

    Given gradients of Σζ² of every batch, what all batches together may drift by pair, (stages, K), and B, with second
    moments of every batch if there are some.
    """
    sizes = book.sizes[:, hard]
    stages, dimension = book.problem.stages, book.problem.dimension
    costs, gradients = np.zeros(sizes.shape), np.zeros((*sizes.shape, stages, dimension))
    shape = (stages, len(book.sampled))
    drifts = np.zeros(shape)
    boldest, largest = np.zeros(len(hard)), np.zeros((len(hard), *shape))
    forms = np.zeros((len(hard), stages, dimension, dimension) if roots else 0)
    for place, (spread, slope) in enumerate(zip(spreads, slopes, strict=True)):
        bets = spread.entry.bets
        stakes = bets.stakes(hard)
        reach = np.where(stakes > 0, spread.up, spread.down)
        np.abs(stakes, out=stakes)
        reach *= stakes
        stakes *= stakes
        if roots:
            forms += by_stage(stakes, moments[place])
        top = reach.max(axis=(1, 2))
        boldest = np.maximum(boldest, top)
        largest[:, :, bets.used] = np.maximum(largest[:, :, bets.used], stakes)
        drifts[:, bets.used] += spread.drifts
        rest = sizes / (4 * (1 - np.minimum(sizes * top, BOLDEST)))
        for factor in (0.5 * sizes**2, sizes**3 / 3, sizes**3 * rest):
            costs += factor * np.einsum("jhk,hk->j", stakes, spread.squares)
            gradients += factor[:, :, None, None] * by_stage(stakes, slope)
            stakes *= reach
    drifts = np.minimum(drifts, together)
    factor = above_psi(sizes * boldest)
    drift = np.einsum("jhk,hk->j", largest, drifts)
    for root in roots:
        shapes = book.problem.continuation**2 * np.einsum("hdn,jhde,hem->jnm", root, forms, root, optimize=True)
        drift = np.minimum(drift, np.clip(np.linalg.eigvalsh(shapes)[:, -1], 0.0, None) * (1 + 1e-9))
    drifted = np.where(np.isfinite(factor), factor, 0.0) * sizes**2 * drift
    return np.where(np.isfinite(factor), (costs + drifted) * (1 + 1e-9), inf), gradients
