"""Theorem U: in a table, a bound on the loss of one policy that was fixed before the samples.

*Setting.* g is γ, or 1 in episodes, whose (stage, state)s are the states here. Ends are states without pairs, with
known value: V, V̂ and Ṽ have it there, noise, u, U, Z and L are 0 there, and B, B̂ are inverses on the other states. π
is the policy, V its value, A_k = r_k + g p_k V - V(s_k). Hats are frequencies of the fresh samples (c·n0_k of pair k,
c the look's units), tildes are the lag's: P̃ and Ṽ. B approximates (I - gP̃_π)⁻¹, and B̂ = (I - gP̂_π)⁻¹; V̂ is what the
samples say of V. x_k is the mean of X_k = R + gV(S') over the fresh samples minus its expectation, u = V̂ - V, ũ = Bx_π.
Then

    u = ũ + B̂(g(P̂_π - P̃_π)ũ + Ex_π + e),      E = I - (I - gP̃_π)B,   e = r̂_π + gP̂_πV̂ - V̂ up to sign,
    A_k = Â_k - (ỹ_k·x + g(p̂_k - p̃_k)ũ + (g p̂_k - 1_{s_k})(u - ũ)),      ỹ_k = 1_k + (g p̃_k - 1_{s_k})B.

*Lemma E.* For a fixed direction y, centres m and bet λ (in units: all with n0), with probability at least 1 - e^-l, at
all looks: Σ y_k(X̄_k - EX_k) ≤ (l/c)/λ + λψ(λβ)G, where G = Σ y_k²/n0_k · mean (X_k - m_k)², β ≥ |y_k|/n0_k times how
far X_k may lie from m_k on the side that y_k makes unfavourable, and ψ(b) = (-log(1-b) - b)/b²; nothing if λβ ≥ 1.

*Events*, each with its share of the lag's δ (`tables.EVENTS`; what is left of 1 is for the two forms of adv):

- adv: for f = 0 and f = 1 the *sum* over pairs of e_k = -ỹ_k·x + gf(p_k - p̂_k)U, weighted with how often an optimal
  policy visits them, is at most that of first_k, the lemma's bounds (one lemma for a mixture; no union over pairs);
- loc: |ũ(a) - ũ(b)| ≤ U1(a, b), b a reference; ref: |ũ(s) - νũ| ≤ U1ref(s); pair: |x_k| ≤ w_k (two bets, `STAKES`);
- start: |mean of R + gṼ(S') minus its expectation| ≤ e_s along π;
- law: |p̂_k - p_k|₁ on B_k ≤ d_k, Hoeffding's bound for each subset of |B_k| + 1 symbols; out: p_k(outside B_k) ≤ out_k.

law, out and pair are needed at the pairs of π and of one optimal policy only: unions over 2n pairs.

*What follows*, with U of the lag and shift_k(Z) = d_k(hi-lo)/2 + out_k(max Z - mid)⁺ + p̂_k(outside)(mid - min Z)⁺ ≥
(p_k - p̂_k)Z, where hi, lo, mid are of Z on B_k:

1. D0 ≥ |V - Ṽ| if D0 ≥ |r̂ + gp̂Ṽ - Ṽ| + e + g(p̂D0 + shift(D0)) along π.
2. Centres are m̃_k + g(V - Ṽ)(ref_k). Squares around them: those of R + g(V̂(S') - V̂(ref) + Ṽ(ref)) - m̃, and by
   Minkowski g·D(S', ref) more, D(a, b) ≥ |u(a) - u(b)|. Ranges: over all states that may follow, seen or not.
3. From these U1, U1ref and w, and m_j = Σ|p̂_j - p̃_j|U1(·, ref_j), hence better D, and again. All on the same events.
4. gain_k = Â_k + first_k + g(m_k + |(gp̂_k - 1_s)B̂|m_π) + f(g p̂_kU - U(s_k)), without Â and second order at pairs of π.
   Also, by event pair alone, gain_k = Â_k + w_k + |(gp̂_k - 1_s)B̂|w_π with f = 0.
5. If Z(s) ≥ gain_k + g(p̂_kZ + shift_k(Z)) for all pairs, then V* - V ≤ fU + Z at the state (of the first stage) where
   it is largest, or on average over the start. A Z that misses this by c ≥ 0 meets it with cL added, L the largest
   value of a state, as L(s) ≥ 1 + g p_k L; c may be negative where that is an equality, which ends exclude. If all
   gains are at most 0 and f = 0, then π is optimal.

The proof is the statement of who made the file; `tests` compare the two programs, which share no code, and both with
the truth. *Rounding:* E, e and the residual of B̂ are measured; sums of n products are taken to be off by nε times their
absolute values; and every bound is raised by a part in 10⁹, which is far more than what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bestpolicy.verification.case import Case
from bestpolicy.verification.claim import Claim
from bestpolicy.verification.reading import Budget, Floats, Ints, Node, Rejected
from bestpolicy.verification.rounding import EPS
from bestpolicy.verification.rows import HELD, Columns, Given, Matrices, at_hub
from bestpolicy.verification.tables import EVENTS, LOOKS, Fixed, Fresh, Process, require

PLANNED = 10  # units at which bets are best
STAKES = (1.0, 0.35)
_BOLDEST = 0.88  # of λβ
_COARSE, _FINE = 20, 12  # rounds at most: by way of the hub, then for every direction by itself
_STILL = 0.97  # a round that lowers nothing further than to this is the last of its kind
_ROOM = 1 + 1e-9
_SMALL = 400  # states up to which a policy is evaluated by a solve
_TINY = 64  # states up to which that takes less time than sweeps, however soon they settle
_TABLE = 2**16  # entries up to which frequencies are also kept as an array
_SWEEPS = 20_000
_HUGE = 1e100


def certified_epsilon(case: Case, claim: Claim, proof: Node, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that the fresh samples certify, how many samples are behind it, and what is taken on trust."""
    proof.only("lag", "units", "samples")
    require(case.is_table, "Theorem U is for problems whose pairs share no features")
    pairs, live = case.stages * int(case.open.sum()), case.stages * len(case.mask)
    what = f"a table of {live:,} states and {pairs:,} pairs"
    held = 7 * live**2 if live <= HELD else 400 * live
    case.budget.hold(60 * pairs + held + 2**21, what)
    case.budget.work(40 * live * pairs + (4 * live**3 if live <= HELD else 400 * live**2), what)
    process = Process.of(case)
    own, going = np.cumsum(case.open.reshape(-1)) - 1, np.flatnonzero(case.open.any(axis=1))
    of_stage = own[going * case.mask.shape[1] + policy[:, going]]
    played = (of_stage + (len(process.state) // case.stages) * np.arange(case.stages)[:, None]).reshape(-1)
    fixed = Fixed.read(proof.child("lag"), process, played, claim.delta)
    units = proof.whole("units", 1)
    require(units in LOOKS, f"no look is planned at {units} units")
    fresh = Fresh.read(proof.child("samples"), case, process, units * fixed.unit)
    entries = len(fixed.pair) + len(fresh.pair)
    case.budget.hold(40 * entries, f"{entries:,} successors")
    passes = _COARSE * 10 * live**2 if live <= HELD else 40 * live * entries
    case.budget.work(passes + 8 * live * entries + _SWEEPS * entries, "the look")
    least = min(LOOKS) * len(process.state) * (fixed.number - 1)
    require(fixed.started >= least, f"lag {fixed.number} cannot have started after {fixed.started:,} samples")
    trusted = [
        "δ and how lags share it (format version 2) were fixed before sampling",
        f"the lag, all that is said to be fixed, was chosen from the first {fixed.started:,} samples only",
        f"it was number {fixed.number} of the lags of the run that looked",
    ]
    if len(case.ends):
        pays = claim.reward_offset + claim.reward_scale * case.end_reward
        pays = 0.0 if abs(pays) <= 1e-9 * claim.reward_scale else pays
        trusted.append(
            f"the user's word that in {len(case.ends):,} of the states the process is over, and each later reward "
            f"is {pays:g}"
        )
    if claim.start is not None:
        trusted.append("the start was chosen before sampling")
    start = None if claim.start is None else np.append(claim.start, np.zeros(process.size - len(claim.start)))
    epsilon = Look(process, fixed, fresh, units, case.budget, start).epsilon(claim.target)
    return epsilon, fixed.started + int(fresh.pulls.sum()), trusted


class Look:
    """One look, step by step."""

    def __init__(
        self, process: Process, fixed: Fixed, fresh: Fresh, units: int, budget: Budget, start: Floats | None = None
    ) -> None:
        self.process, self.fixed, self.fresh, self.units = process, fixed, fresh, units
        self.budget, self.start = budget, start
        self.pairs, self.played = len(process.state), fixed.policy
        self.unit = fixed.unit.astype(np.float64)
        self.limit = float(process.longest.max())
        self.block_of = process.block_of
        shape = (self.pairs, process.size)
        self.past = csr_array((fixed.probability, (fixed.pair, fixed.successor)), shape=shape)
        frequency = fresh.counts / fresh.pulls[fresh.pair]
        self.seen = csr_array((frequency, (fresh.pair, fresh.successor)), shape=shape)
        self._compare(frequency)
        self._invert()
        self._laws()

    def nats(self, event: str, union: int) -> float:
        """log(union/(share·δ)) of an event, for each unit."""
        return log(union / (EVENTS[event] * self.fixed.delta)) / self.units

    # --- what is compared

    def _compare(self, frequency: Floats) -> None:
        """Everything that has followed a pair, then or now, and the directions (state, reference) that this needs."""
        fixed, fresh, size = self.fixed, self.fresh, self.process.size
        now, before = fresh.pair * size + fresh.successor, fixed.pair * size + fixed.successor
        keys = np.union1d(now, before)
        self.entry_pair, self.entry_state = np.divmod(keys, size)
        self.frequency, old = np.zeros(len(keys)), np.zeros(len(keys))
        self.frequency[np.searchsorted(keys, now)] = frequency
        old[np.searchsorted(keys, before)] = fixed.probability
        self.supported = old > 0
        self.moved = np.abs(self.frequency - old)
        self.outside = np.bincount(self.entry_pair, self.frequency * ~self.supported, self.pairs)
        self.terms = int(np.bincount(self.entry_pair).max()) + 8
        at = fixed.reference[self.entry_pair]
        lower, upper = np.minimum(self.entry_state, at), np.maximum(self.entry_state, at)
        directions, self.direction = np.unique(lower * size + upper, return_inverse=True)
        self.left, self.right = np.divmod(directions, size)  # of the same state: no difference, all widths are 0

    def _invert(self) -> None:
        process, played = self.process, self.played
        self.rewards = np.bincount(self.fresh.pair, self.fresh.rewards, self.pairs) / self.fresh.pulls
        self.given = Given(
            process,
            self.fixed,
            self.past,
            self.seen,
            self.left,
            self.right,
            self.entry_pair,
            self.direction,
            self.moved,
        )
        self.rows = Matrices(self.given) if len(process.live) <= HELD else Columns(self.given)
        paid = self.rewards + process.step * (self.seen @ process.known)
        self.values = process.known + self.rows.times(paid[played])
        self.advantages = self.rewards + process.step * (self.seen @ self.values) - self.values[process.state]
        self.fuzz = self.terms * EPS * 4 * self.limit  # of an advantage
        self.residual = np.abs(self.advantages[played]) + self.fuzz
        self.advantages[played] = 0.0

    def _laws(self) -> None:
        union = 2 * len(self.process.live)
        symbols = np.bincount(self.fixed.pair, minlength=self.pairs) + 1
        nats = self.units * self.nats("law", union) + symbols * log(2)
        stake = np.sqrt(8 * nats / (PLANNED * self.unit))
        self.distance = 2 * (nats / (stake * self.fresh.pulls) + stake / 8) * _ROOM
        nats_out = self.units * self.nats("out", union)
        out = (nats_out / self.fresh.pulls + 1.6095 * self.outside) / 0.8
        self.beyond = np.minimum(out * _ROOM, 1.0)
        self.support_starts = np.searchsorted(self.fixed.pair, np.arange(self.pairs))

    def shift(self, values: Floats) -> Floats:
        """Bound on (p_k - p̂_k)Z, (M,)."""
        known = values[self.fixed.successor]
        high = np.maximum.reduceat(known, self.support_starts)
        low = np.minimum.reduceat(known, self.support_starts)
        middle = (high + low) / 2
        above = np.maximum(self.process.largest(values) - middle, 0.0)
        below = np.maximum(self.process.largest(-values) + middle, 0.0)
        bound: Floats = self.distance * (high - low) / 2 + self.beyond * above + self.outside * below
        return bound

    def mean_squares(self, function: Floats, offset: Floats) -> Floats:
        """Mean of (R + function(S') + offset_k)² over the fresh samples, (M,)."""
        fresh = self.fresh
        moved = function[fresh.successor] + offset[fresh.pair]
        cross, square = 2 * fresh.rewards * moved, fresh.counts * moved**2
        total = fresh.squares + np.bincount(fresh.pair, cross + square, self.pairs)
        size = fresh.squares + np.bincount(fresh.pair, np.abs(cross) + square, self.pairs)
        found: Floats = np.maximum(total + self.terms * EPS * size, 0.0) / fresh.pulls
        return found

    # --- step 1

    def _from_the_start(self) -> Floats:
        """D0, (N,)."""
        process, fixed, played = self.process, self.fixed, self.played
        squares = self.mean_squares(process.step * fixed.values, -fixed.centres)
        up = 1 + process.step * process.largest(fixed.values) - fixed.centres
        down = fixed.centres + process.step * process.largest(-fixed.values)
        reach = (np.maximum(up, down) / self.unit)[played]
        nats = self.nats("start", 2 * len(played))
        bets = planned_bets(nats * self.units, (fixed.start_squares / self.unit)[played], reach)
        self.start_error = np.minimum(width(nats, bets, (squares / self.unit)[played], reach), _HUGE)
        mean = (self.rewards + process.step * (self.seen @ fixed.values))[played]
        gap = np.abs(mean - fixed.values[process.live]) + self.start_error + self.fuzz
        least, most = process.longest * _ROOM, 2 * process.longest
        if gap.max() >= _HUGE:
            return least
        bound, extra = np.zeros(process.size), np.zeros(len(played))
        for _ in range(12):
            bound = np.minimum(self.rows.times(gap + process.step * extra), most)
            extra = self.shift(bound)[played]
            needed = gap + process.step * (self.seen[played] @ bound + extra)
            lacks = max(0.0, float((needed - bound[process.live]).max())) + self.fuzz
            least = np.minimum(least, (bound + lacks * process.longest) * _ROOM)
        return least

    # --- steps 2 and 3

    def epsilon(self, target: float) -> float:
        """Return the smallest bound; refinement ends once it is at most the target."""
        best = inf
        for _ in self._rounds():
            for bound in self._bounds():
                best = min(best, bound)
                if best <= target:
                    return best
        return best

    def _rounds(self) -> Iterator[None]:
        """Refine D, and pause once by way of the hub, and after every round for single directions."""
        process, fixed = self.process, self.fixed
        start = self._from_the_start()
        change = self.values - fixed.values
        change_hub, start_hub = self._hub(change), self._hub(start)
        self.low = np.maximum(fixed.values - start, 0.0)
        self.high = np.minimum(fixed.values + start, (process.longest + process.known) * _ROOM)
        self.from_hub = np.abs(change - change_hub) + start + start_hub + self.fuzz
        apart = np.abs(change[self.left] - change[self.right]) + start[self.left] + start[self.right] + self.fuzz
        self.apart = np.where(self.left == self.right, 0.0, apart)
        offset = process.step * (fixed.values - self.values)[fixed.reference] - fixed.centres
        mean = process.step * (self.past @ fixed.template)
        self.root = np.sqrt(self.mean_squares(process.step * self.values, offset))
        both = process.step * (self.values + fixed.template)
        self.root_template = np.sqrt(self.mean_squares(both, offset - mean))
        self.noise, self.mismatch = np.full(self.pairs, _HUGE), np.full(self.pairs, _HUGE)
        self._prepare_bets()
        self._measure()
        for fine, rounds in ((False, _COARSE), (True, _FINE)):
            for _ in range(rounds):
                before = self.apart
                if fine:
                    self.budget.work(8 * len(process.live) * (len(self.left) + self.pairs), "refining the look")
                self._refine(change, change_hub, fine)
                self._measure()
                if fine:
                    yield
                if (self.apart >= _STILL * before).all():
                    break
            if not fine:
                yield

    def _hub(self, values: Floats) -> Floats:
        return at_hub(self.given, values)

    def _prepare_bets(self) -> None:
        """Bets of events ref and pair."""
        fixed, played = self.fixed, self.played
        self.square0 = fixed.squares / self.unit
        self.reach0 = np.maximum(fixed.up, fixed.down) / self.unit
        self.nats_hub = self.nats("ref", 2 * len(STAKES) * self.process.size)
        self.nats_pair = self.nats("pair", 4 * len(STAKES) * len(self.process.live))
        sizes, at = np.diff(self.process.blocks), np.unique(fixed.reference)
        self.nats_local = self.nats("loc", 2 * len(STAKES) * int(sizes[self.block_of[at]].sum()))
        expected = self.rows.from_hub(self.square0[played], self.reach0[played])
        self.bets_hub = planned_bets(self.nats_hub * self.units, *expected)
        self.bets_pair = planned_bets(self.nats_pair * self.units, self.square0, self.reach0)
        self.bets_local: Floats | None = None

    def _measure(self) -> None:
        """Step 2: squares and ranges."""
        process, fixed, at = self.process, self.fixed, self.fixed.reference
        squared = np.bincount(self.entry_pair, self.frequency * self.apart[self.direction] ** 2, self.pairs)
        spread: Floats = process.step * np.sqrt(squared)
        self.squares = (self.root + spread) ** 2 * _ROOM
        self.squares_template = (self.root_template + spread) ** 2 * _ROOM
        over, under = self.values + self.from_hub, self.values - self.from_hub
        rise = np.minimum(process.largest(over) - under[at], process.largest(self.high) - self.low[at])
        fall = np.minimum(over[at] + process.largest(-under), self.high[at] + process.largest(-self.low))
        self.up = 1 + process.step * (rise + fixed.values[at]) - fixed.centres + self.fuzz
        self.down = fixed.centres + process.step * (fall - fixed.values[at]) + self.fuzz

    def _refine(self, change: Floats, change_hub: Floats, fine: bool) -> None:
        """Step 3."""
        process, played, step = self.process, self.played, self.process.step
        squares, reach = self.squares / self.unit, np.maximum(self.up, self.down) / self.unit
        noise = least_width(self.nats_pair, self.bets_pair, squares, reach)
        noise[played] = np.minimum(noise[played], self._noise_by_law(change, change_hub))
        self.noise = np.minimum(self.noise, noise)
        w = np.minimum(self.noise[played] + self.residual, _HUGE)
        tiny = (process.size + self.terms) * EPS * 4 * self.limit * float(w.max())
        along, reach_along = squares[played], reach[played]
        first_hub = least_width(self.nats_hub, self.bets_hub, *self.rows.from_hub(along, reach_along))
        first_hub = np.minimum(first_hub + tiny, _HUGE)
        first = first_hub[self.left] + first_hub[self.right]
        if fine:
            if self.bets_local is None:
                expected = self.rows.between(self.square0[played], self.reach0[played])
                self.bets_local = planned_bets(self.nats_local * self.units, *expected)
            sums = self.rows.between(along, reach_along)
            first = np.minimum(first, least_width(self.nats_local, self.bets_local, *sums) + tiny)
        first = np.where(self.left == self.right, 0.0, first)
        mismatch = np.bincount(self.entry_pair, self.moved * first[self.direction], self.pairs) + tiny
        self.mismatch = np.minimum(self.mismatch, mismatch)
        m = np.minimum(self.mismatch[played], _HUGE)
        self.slack = self._slack(m, w)
        both = np.stack([m, w], axis=1)
        hub_m, hub_w = self.rows.seen_from_hub(both).T
        around = np.minimum(first_hub + step * hub_m, hub_w) + self.slack
        self.from_hub = np.minimum(self.from_hub, around * _ROOM)
        apart = self.from_hub[self.left] + self.from_hub[self.right]
        if fine:
            second, crude = self.rows.seen_between(both).T
            apart = np.minimum(apart, (np.minimum(first + step * second, crude) + self.slack) * _ROOM)
        self.apart = np.where(self.left == self.right, 0.0, np.minimum(self.apart, apart))
        near = (self.rows.times(w) + self.slack) * _ROOM
        self.low, self.high = np.maximum(self.low, self.values - near), np.minimum(self.high, self.values + near)

    def _noise_by_law(self, change: Floats, change_hub: Floats) -> Floats:
        """|x| along π, which is the noise of Ṽ plus g(p̂ - p)(V - Ṽ)."""
        at = self.fixed.reference
        near = np.abs(change[self.entry_state] - change[at[self.entry_pair]]) + self.apart[self.direction]
        starts = np.searchsorted(self.entry_pair, np.arange(self.pairs))
        nearby = np.maximum.reduceat(np.where(self.supported, near, 0.0), starts)
        reach = np.abs(change - change_hub) + self.from_hub
        anywhere = self.process.largest(reach) + reach[at]
        moved = self.distance * nearby + (self.beyond + self.outside) * anywhere
        found: Floats = self.start_error + self.process.step * moved[self.played] + self.fuzz
        return found

    def _slack(self, m: Floats, w: Floats) -> float:
        """What E, e and the residual of B̂ add to a difference of two rows of B̂ times a vector."""
        most, largest = float(m.max()), float(w.max())
        past, now = self.rows.defect_past, self.rows.defect
        missing = past * largest + float(self.residual.max()) + now * (most + largest)
        return 2 * self.limit * missing * (1 + 2 * now)

    # --- steps 4 and 5

    def _bounds(self) -> Iterator[float]:
        """Yield the bounds of all forms; the one that is seldom the smallest comes last."""
        process, fixed, played, step = self.process, self.fixed, self.played, self.process.step
        squares, up, down = self.squares / self.unit, self.up / self.unit, self.down / self.unit
        m = np.minimum(self.mismatch[played], _HUGE)
        w = np.minimum(self.noise[played] + self.residual, _HUGE)
        total, reach = self.rows.at_pairs(squares[played], up[played], down[played])
        second, crude = self.rows.seen_at_pairs(np.stack([m, w], axis=1)).T
        tiny = self.slack + (process.size + self.terms) * EPS * 8 * self.limit * float(w.max()) + self.fuzz
        rival = np.ones(self.pairs, np.bool_)
        rival[played] = False
        second = np.where(rival, (step * (self.mismatch + second) + tiny) * _ROOM, 0.0)
        crude = np.where(rival, (self.noise + crude + tiny) * _ROOM, 0.0)

        mean = self.past @ fixed.template
        rise = step * (process.largest(fixed.template) - mean) / self.unit
        moved = step * (fixed.template[self.fresh.successor] - mean[self.fresh.pair])
        alone = np.bincount(self.fresh.pair, self.fresh.counts * moved**2, self.pairs) / self.fresh.pulls / self.unit
        drift = step * (self.seen @ fixed.template) - fixed.template[process.state]
        steepness = self.terms * EPS * 4 * float(np.abs(fixed.template).max())
        nats = [-log(share * fixed.delta) / self.units if share > 0 else inf for share in fixed.shares.tolist()]
        nothing = np.zeros(process.size)
        if nats[1] < inf:
            sums = np.where(rival, self.squares_template / self.unit + total, alone) * _ROOM
            range_of = np.where(rival, np.maximum(up + rise, reach), rise) + steepness / self.unit
            first = width(nats[1], fixed.bets[1], sums, range_of) * _ROOM
            yield from self._losses(self.advantages + first + second + drift + steepness, fixed.template)
        if nats[0] < inf:
            first = width(nats[0], fixed.bets[0], (squares + total) * _ROOM, np.maximum(up, reach))
            yield from self._losses(self.advantages + np.where(rival, first * _ROOM, 0.0) + second, nothing)
        yield from self._losses(self.advantages + crude, nothing)

    def _losses(self, gains: Floats, template: Floats) -> Iterator[float]:
        """Yield bounds on the loss that follow from the gains; by any Z, the better the smaller."""
        if np.isnan(gains).any():
            raise Rejected("the numbers are too large to compute with")
        if gains.max() >= _HUGE / 10:
            yield inf
        elif gains.max() <= 0 and not template.any():
            yield 0.0
        else:
            yield self._over(gains, template, -_HUGE)
            # A Z that is nowhere below a floor may do better: pairs that may lead to its top unseen pay for its depth.
            lowest = min(float(self._optimal(gains, np.zeros(self.process.size)).min()), 0.0)
            for share in (0.0, 0.5):
                yield self._over(gains, template, share * lowest)

    def _over(self, gains: Floats, template: Floats, floor: float) -> float:
        """Return the bound by the best Z that is found above a floor."""
        process = self.process
        values, bound = np.zeros(process.size), inf
        for number in range(8):
            before, values = bound, self._optimal(gains + process.step * self.shift(values), values, floor)
            candidate = values
            for _ in range(4):
                needed = process.best(gains + process.step * (self.seen @ candidate + self.shift(candidate)))
                size = float(np.abs(needed).max() + np.abs(candidate).max() + np.abs(gains).max())
                # Z may be raised by multiples of L; and lowered, if L(s) = 1 + g p_k L whatever p_k is.
                lacks = float((needed - candidate)[process.live].max()) + self.terms * EPS * 8 * size
                lacks = lacks if process.is_level else max(lacks, 0.0)
                above = template + candidate + lacks * process.longest
                worth = float(above[: process.blocks[1]].max() if self.start is None else self.start @ above)
                bound = min(bound, worth + 1e-12 * float(np.abs(above).max()))
                candidate = process.spread(np.maximum(needed[process.live], floor))
            if number >= 4 and bound >= before * (1 - 1e-8):
                break
        return max(bound, 0.0) * _ROOM

    def _optimal(self, gains: Floats, values: Floats, floor: float = -_HUGE) -> Floats:
        """Value of the best choice of pairs among what was seen, or of stopping, which is worth the floor, nearly."""
        process, before, settled = self.process, None, True
        scale = 1e-11 * float(np.abs(gains).max())
        for _ in range(60):
            numbers = gains + process.step * (self.seen @ values)
            best = process.best(numbers)
            near = numbers >= best[process.state] - scale
            chosen = np.minimum.reduceat(np.where(near, np.arange(self.pairs), self.pairs), process.first)
            going = best[process.live] > floor
            choice = np.where(going, chosen, -1)
            if settled and before is not None and np.array_equal(choice, before):
                break
            before, paid = choice, np.where(going, gains[chosen], floor)
            values, settled = process.spread(np.maximum(best[process.live], floor)), False
            # Where nobody stops and no end comes early, values that move alike differ from the limit by one number.
            alike = process.is_level and process.step < 1 and bool(going.all())
            solved = len(chosen) <= (_TINY if alike and process.step < 0.999 else 0 if alike else _SMALL)
            rows: Any = None if solved else self.seen[chosen]
            for _ in range(0 if solved else _SWEEPS // 60):
                following = process.spread(paid + process.step * going * (rows @ values))
                moved = (following - values)[process.live]
                settled = bool((np.ptp(moved) if alike else np.abs(moved).max()) <= scale)
                values = following
                if settled:
                    values = values + alike * process.step / max(1 - process.step, EPS) * float(moved.mean())
                    break
            if not settled and len(chosen) <= _SMALL:
                system = np.eye(len(chosen)) - process.step * going[:, None] * self._among_live(chosen)
                found: Any = np.linalg.solve(system, paid)
                values, settled = process.spread(found), True
        return values

    def _among_live(self, chosen: Ints) -> Floats:
        """Frequencies (n, n) of live states after the chosen pairs."""
        found: Floats
        if self.pairs * self.process.size > _TABLE:
            found = self.seen[chosen][:, self.process.live].toarray()
        else:
            found = self._whole[chosen]
        return found

    @cached_property
    def _whole(self) -> Floats:
        """All frequencies of live states, for a table so small that to take rows of a sparse matrix takes longer."""
        found: Floats = self.seen.toarray()[:, self.process.live]
        return found


# --- Lemma E


def psi(b: Floats) -> Floats:
    """(-log(1-b) - b)/b² for 0 ≤ b < 1, not smaller for rounding."""
    series = 0.5 + b * (1 / 3 + b * (1 / 4 + b * (1 / 5 + b)))
    safe = np.maximum(b, 1e-3)
    found: Floats = np.where(b < 1e-3, series, (-np.log1p(-safe) - safe) / safe**2)
    return found * (1 + 1e-10)


def width(nats: float, bets: Floats, squares: Floats, reach: Floats) -> Floats:
    """The lemma's bound, (l/c)/λ + λψ(λβ)G; inf where λβ is not below 1."""
    b = bets * reach
    inside = b < 1 - 1e-12
    bound = nats / bets + bets * psi(np.where(inside, b, 0.0)) * squares
    found: Floats = np.where(inside & (bound < _HUGE), bound, inf)
    return found


def least_width(nats: float, bets: Floats, squares: Floats, reach: Floats) -> Floats:
    """The smaller one of the two bets of an event."""
    found: Floats = np.minimum.reduce([width(nats, stake * bets, squares, reach) for stake in STAKES])
    return found


def planned_bets(nats: float, squares: Floats, reach: Floats) -> Floats:
    """Bets that make the bound small at the planned look: x = λβ with x/(1-x) + log(1-x) = (l/c)β²/G, by bisection."""
    nats = nats / PLANNED
    squares = np.maximum(squares, 1e-300)
    ratio = np.minimum(nats * reach / squares * reach, 1e9)
    low, high = np.maximum(ratio, np.sqrt(2 * ratio)), ratio + np.sqrt(2 * ratio)
    for _ in range(50):
        middle = (low + high) / 2
        above = middle - np.log1p(middle) > ratio
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    usual = np.minimum(high / (1 + high), _BOLDEST) / np.maximum(reach, 1e-300)
    found: Floats = np.minimum(np.where(ratio > 1e-6, usual, np.sqrt(2 * nats / squares)), 1e200)
    return found
