"""Theorem U: in a table, the loss of a policy that was fixed beforehand is one number, and so is what is tested.

*Setting.* Pairs k at states s_k, rewards in [0, 1], step g (γ, or 1 in episodes, where every (stage, state) is a state
and the one after the last stage is an end); ends are states without pairs and with known value. V^π is the value of π,
A_k = r_k + g p_k V^π - V^π(s_k), D* = V* - V^π ≥ 0. L(s) bounds the discounted number of steps from s.
F0 is the past; a `Lag` holds what is fixed by it. Hats are frequencies of *fresh* samples only, n_k = c·n0_k of them,
Ψ̂ = (I - gP̂_π)⁻¹ and Ψ̃ with the past's P̃, V̂ = Ψ̂r̂_π, Â_k = r̂_k + g p̂_k V̂ - V̂(s_k). With X_k = R + gV^π(S') at pair
k, a fixed law given F0, x_k is its fresh mean minus its expectation, u = V̂ - V^π, ũ = Ψ̃x_π. All of these are 0 at ends.

*Identities.* (1) u = Ψ̂x_π. (2) A_k = Â_k - (x_k + g p̂_k u - u(s_k)). (3) u = ũ + gΨ̂(P̂_π - P̃_π)ũ. (4) With ỹ_k = e_k +
(g p̃_k - e_{s_k})Ψ̃ (on the pairs of π) and ŷ_k likewise, x_k + g p̂_k u - u(s_k) = ỹ_k·x + g Σ_j ŷ_kj (p̂_j - p̃_j)ũ;
ỹ = ŷ = 0 at the pairs of π. (5) (p̂_j - p̃_j)ũ = Σ_s' (p̂_j - p̃_j)(s')(ũ(s') - ũ(ref_j)).
*Proof.* V̂ = r̂_π + gP̂_πV̂ and V^π = r̂_π - x_π + gP̂_πV^π give (1); Q̂_k = Q_k + x_k + g p̂_k u gives (2); Ψ̂ - Ψ̃ =
gΨ̂(P̂_π - P̃_π)Ψ̃ gives (3), and inserted into the left side (4); rows of P̂ - P̃ sum to 0, hence (5).

*Events*, each with its share of the lag's confidence δ', given F0 and at all looks at once, because what stands behind
each is a product over samples with mean at most 1 (Lemma E with stakes per sample, Ville's inequality):

- adv, for f = 0 and f = 1 (no union: Lemma J): e_k = -ỹ_k·x + g f(p_k - p̂_k)U satisfies Σ_k o_k e_k ≤ Σ_k o_k first_k
  for the weights o = occ* below, which are unknown and fixed. Lemma E in direction -1 at k with law X_k + g f U(S') and
  -ỹ_kj at pair j of π with law X_j; at the pairs of π only g f U(S').
- loc: |ũ(a) - ũ(b)| ≤ U1(a, b) for a any state and b any reference. ref: |ũ(s) - νũ| ≤ U1ref(s). pair: |x_k| ≤ w_k.
- start: |fresh mean of R + gṼ(S') minus its expectation| ≤ e_s at the pairs of π, Ṽ known.
- law: ‖(p̂_k - p_k) on B_k‖₁ ≤ d_k. Of the |B_k| + 1 symbols "a state of B_k" and "other", half the l₁ distance of two
  laws is attained on a subset A. For each A Hoeffding's exp(λ(1_A - p(A)) - λ²/8) has mean at most 1, so p̂(A) - p(A) ≤
  l'/(λn) + λ/8 with l' = l + (|B_k|+1) log 2, and d_k is twice that, λ being best at the planned look.
- out: p_k(outside B_k) ≤ out_k = (l/n + 1.6095 p̂_k(outside))/0.8: E Π(1 - 0.8·1{outside}) ≤ exp(-0.8 n p(outside)).

law, out, pair are used at the pairs of π and of *one* optimal policy, which is fixed given F0: unions over 2n pairs. It
is optimal from every state, so a start distribution needs no others.
Centres are m_k = m̃_k + g(V^π - Ṽ)(ref_k): unknown but fixed; what Lemma E needs of them is bounded below.

*The look* (consequences of the events, nothing is random any more).

1. Start. b = |r̂ + g p̂Ṽ - Ṽ| + e bounds the Bellman residual of Ṽ along π, so |V^π - Ṽ| ≤ D0 if D0 ≥ b + gP_πD0 (true
   kernel, by *shift* below). Then |u(a) - u(b)| ≤ D(a, b) := |(V̂-Ṽ)(a) - (V̂-Ṽ)(b)| + D0(a) + D0(b); V^π in Ṽ ± D0.
2. Squares. X_k - m_k = [R + g(V̂(S') - V̂(ref_k) + Ṽ(ref_k)) - m̃_k] - g(u(S') - u(ref_k)): by Minkowski its root mean
   square is at most that of the bracket plus g√(Σ p̂_k(s')D(s', ref_k)²).
3. Ranges. They go over *all* states that may follow, seen or not: V^π(s') - V^π(ref_k) ≤ (V̂+Uref)(s') -
   (V̂-Uref)(ref_k), where Uref(s) ≥ |u(s) - νu|; R in [0, 1].
4. Widths U1, U1ref, w by Lemma E. m_j = Σ_s' |p̂_j - p̃_j|(s')U1(s', ref_j) ≥ |(p̂_j - p̃_j)ũ| by (5). New D(a, b) =
   min{D, U1(a, b) + g|Ψ̂_a - Ψ̂_b|m_π, |Ψ̂_a - Ψ̂_b|w_π}, by (3) and (1); Uref alike. Along π, w_k may be replaced by
   e + g(d_k·max over B_k of |h - h(ref_k)| + (out_k + p̂_k(outside))·max|h - h(ref_k)|), h = V^π - Ṽ = (V̂ - Ṽ) - u:
   x_k is the noise of Ṽ plus g(p̂_k - p_k)h. Back to 2, some times: Lemma E is monotone in squares and ranges and its
   bets are fixed, so all rounds live on the same events. The events loc, ref and pair are divided among two bets, since
   one that is best for the final squares is too bold for the first ones.
5. gain_k = Â_k + first_k + g(m_k + |(g p̂_k - e_s)Ψ̂|m_π) + g f p̂_kU - f U(s_k) at rivals; first_k + g f p̂_kU - f U(s_k)
   at the pairs of π. Another form, by (1), (2) and event pair alone: f = 0, Â_k + w_k + |(g p̂_k - e_s)Ψ̂|w_π.
6. Any Z, 0 at ends, with Z(s) ≥ gain_k + g(p̂_k Z + shift_k(Z)) for all k at s: ε = max(0, max_s (fU + Z)(s)); from a
   start distribution ρ: ρ·(fU + Z). If f = 0 and no gain is positive, ε = 0: π is optimal.

*Shift.* (p_k - p̂_k)Z ≤ shift_k(Z) = d_k(hi - lo)/2 + out_k(max Z - mid)⁺ + p̂_k(outside)(mid - min Z)⁺, hi and lo the
extreme values on B_k and mid their mean: subtract mid, which changes nothing, and split at B_k. Z may depend on the
data. If a candidate Z misses its condition by at most c, Z + cL meets it for the true kernel, as 1 + g p_k L ≤ L(s_k).

**Theorem U.** Given F0, with probability at least 1 - δ', at every look of the lag max_s (V* - V^π)(s) ≤ ε (over the
first stage if episodic; or ρ·(V* - V^π) ≤ ε). If the lags' δ' sum to at most δ, some look of a run is wrong with
probability at most δ, whenever lags begin.

*Proof.* Let s0 be an argmax of D* (over the states that are claimed; or drawn from ρ), π* an optimal policy and occ*_k
the discounted expected number of visits of k from s0 under π*. Given F0 π is fixed, hence so are D*, s0, π*, occ*. By
the performance difference lemma D*(s0) = Σ occ*_k A_k; and U(s0) = Σ occ*_k (U(s_k) - g p_k U), as for every function
that vanishes at ends. So

    D*(s0) - f U(s0) = Σ occ*_k [A_k + g f p_k U - f U(s_k)] ≤ Σ occ*_k gain_k,

by (2), (4), event adv, which bounds the *sum*, and the bound on what is left of (4). By 6 and law and out, gain_k ≤
Z(s_k) - g p_k Z at the pairs of π*; so the sum is at most Z(s0), and D*(s0) ≤ (fU + Z)(s0).

Neither A_k ≤ gain_k nor D* ≤ Z in every state is claimed, and nothing inside the averaged event may be chosen pair by
pair after the look; whole forms may, each has its share.

*Rounding.* Ψ̃ is any fixed matrix B with E = I - (I - gP̃_π)B: (3) gains Ψ̂Ex_π. Ψ̂ is B̂ with Ê = I - B̂(I - gP̂_π), V̂ has a
residual ê: a difference of two rows of Ψ̂, times a vector, is off by at most 2L‖Ê‖max|vector|, and (1) gains Ψ̂ê. All of
these are measured and added; conditions on Z are checked in floating point and met with room.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS, one_thread
from bestpolicy.errors import InvalidInput
from bestpolicy.stopping.lemmas.betting import width
from bestpolicy.stopping.tables.lag import PLANNED, Lag, planned_bets
from bestpolicy.stopping.tables.model import Chain, Table, TableSamples, kernel_of
from bestpolicy.stopping.tables.rows import DenseRows, SparseRows, Sums, at_hub, is_small

_COARSE, _FINE = 15, 5  # rounds at most
_STILL = 0.95  # a round that lowers no difference further than to this is the last one
_STAKES = (1.0, 0.35)  # bets of loc, ref, pair in terms of the planned ones: small ones work while D is still large
_ROOM = 1e-9  # relative room for rounding of what is not measured


@dataclass(frozen=True, eq=False)
class Observed:
    """What was found of squares and ranges, arrays (M,) named as in ``Lag``; the next bets learn from it."""

    squares: FloatArray
    template_squares: FloatArray
    start_squares: FloatArray
    up: FloatArray
    down: FloatArray


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a look says.

    Attributes
    ----------
    policy : int array (n,)
        π: the pair that is played at each live state of the chain.
    epsilon : float
        Bound on its loss; inf if nothing can be said.
    forms : array (3,)
        The bound without template, with it, and by event pair.
    gains : array (M,)
        Of the best form.
    observed : Observed
    low, high : arrays (N,)
        V^π lies between them in every state, on the same events.
    """

    policy: IntArray
    epsilon: float
    forms: FloatArray
    gains: FloatArray
    observed: Observed
    low: FloatArray
    high: FloatArray

    def value_floor(self, chain: Chain, offset: float) -> float:
        """Return a lower bound on the largest |V* + offset| (at the start, if the claim is about one).

        On the events of the theorem V* ≥ V^π ≥ low, and V* ≤ V^π + ε ≤ high + ε where the claim holds. So at each state
        |V* + offset| is at least low + offset and at least -(high + ε + offset). That is no further event: it holds
        whenever ε does, at all looks of all lags together.
        """
        if chain.start is None:
            low, high = self.low[chain.claimed], self.high[chain.claimed]
        else:
            low, high = np.array([chain.start @ self.low]), np.array([chain.start @ self.high])
        room = _ROOM * (float(chain.longest.max()) + abs(offset))
        found = np.maximum(low + offset, -(high + self.epsilon + offset)) - room
        return max(0.0, float(found.max(initial=0.0)))


@one_thread()
def look(table: Table, lag: Lag, fresh: TableSamples, units: int, rehearsed: Sums | None = None) -> Verdict:
    """Look at `units`·n0 fresh samples of each pair.

    Parameters
    ----------
    table : Table
    lag : Lag
    fresh : TableSamples
        Drawn after the lag was fixed, and no others.
    units : int
        c: one of ``lag.looks``.
    rehearsed : Sums, optional
        For rehearsals: estimates of what a real look of a large table computes.
    """
    return _begin(table, lag, fresh, units, rehearsed).verdict()


@one_thread()
def observe(table: Table, lag: Lag, fresh: TableSamples, units: int, rehearsed: Sums | None = None) -> Observed:
    """Squares and ranges alone, which do not hang on the bets of event adv."""
    return _begin(table, lag, fresh, units, rehearsed).observe()


def _begin(table: Table, lag: Lag, fresh: TableSamples, units: int, rehearsed: Sums | None) -> Look:
    chain = table.chain
    lag.check(chain)
    if units not in lag.looks:
        raise InvalidInput(f"A lag fixes its looks: {lag.looks.tolist()}. Got {units} instead.")
    if (fresh.pulls != units * lag.unit).any():
        raise InvalidInput("A look needs exactly its planned number of fresh samples of every pair.")
    if fresh.rewards.min(initial=0.0) < 0 or (fresh.rewards > fresh.counts * (1 + 1e-12)).any():
        raise InvalidInput("Rewards must lie in [0, 1].")
    sums, room = fresh.reward_sums, 1e-9 * fresh.pulls
    if (fresh.squares > sums + room).any() or (sums**2 / fresh.pulls > fresh.squares + room).any():
        raise InvalidInput("Sums of squared rewards contradict the sums of rewards.")
    return Look(chain, lag, chain.successors(table, fresh), units, rehearsed)


def _least_width(nats: float, bets: FloatArray, squares: FloatArray, reach: FloatArray) -> FloatArray:
    """Return the smallest width of the bets that an event is divided among."""
    least: FloatArray = np.minimum.reduce([width(nats, stake * bets, squares, reach) for stake in _STAKES])
    return least


class Look:
    """One look, in the order of the theorem's six steps."""

    def __init__(self, chain: Chain, lag: Lag, fresh: TableSamples, units: int, rehearsed: Sums | None = None) -> None:
        self.chain, self.lag, self.fresh, self.units = chain, lag, fresh, units
        self.pulls = fresh.pulls.astype(np.float64)
        self.unit = lag.unit.astype(np.float64)
        shape = (len(chain.state), chain.size)
        self.past = lag.kernel(chain)
        self.seen = kernel_of(fresh.pair, fresh.next_state, fresh.counts / self.pulls[fresh.pair], shape)
        self.longest = float(chain.longest.max())
        self._union_of_entries()
        self._estimate(rehearsed)
        self._laws()

    # --- what is compared

    def _union_of_entries(self) -> None:
        """Successors of the past and fresh ones of every pair, and the directions (state, reference) among them."""
        chain, lag, fresh = self.chain, self.lag, self.fresh
        keys = fresh.pair * chain.size + fresh.next_state
        past_keys = lag.pair * chain.size + lag.successor
        both = np.union1d(keys, past_keys)
        self.pair, self.state = both // chain.size, both % chain.size
        self.fresh_probability = np.zeros(len(both))
        self.fresh_probability[np.searchsorted(both, keys)] = fresh.counts / self.pulls[fresh.pair]
        past_probability = np.zeros(len(both))
        past_probability[np.searchsorted(both, past_keys)] = self.past.data
        self.in_support = past_probability > 0
        self.difference = np.abs(self.fresh_probability - past_probability)
        self.outside = np.bincount(self.pair, self.fresh_probability * (past_probability == 0), len(chain.state))
        reference = lag.reference[self.pair]
        low, high = np.minimum(self.state, reference), np.maximum(self.state, reference)
        found, index = np.unique(low * chain.size + high, return_inverse=True)
        same = found // chain.size == found % chain.size
        self.left, self.right = found[~same] // chain.size, found[~same] % chain.size
        position = np.cumsum(~same) - 1
        self.direction = np.where(low == high, len(self.left), position[index])  # the last one is no difference at all

    def _estimate(self, rehearsed: Sums | None) -> None:
        chain, lag, fresh = self.chain, self.lag, self.fresh
        given = (chain, lag, self.past, self.seen, self.left, self.right)
        self.rows: DenseRows | SparseRows
        if is_small(chain):
            self.rows = DenseRows(*given)
        else:
            self.rows = SparseRows(*given, self.pair, self.direction, self.difference, rehearsed)
        rewards = fresh.reward_sums / self.pulls
        ends = chain.step * (self.seen @ chain.known)
        self.values = chain.known + self.rows.times((rewards + ends)[lag.policy])
        self.advantages = rewards + chain.step * (self.seen @ self.values) - self.values[chain.state]
        self.residual = np.abs(self.advantages[lag.policy]) + 16 * EPS * self.longest
        self.advantages[lag.policy] = 0.0

    def _laws(self) -> None:
        """Events law and out: d_k and out_k."""
        lag, live = self.lag, len(self.lag.policy)
        symbols = np.bincount(lag.pair, minlength=len(self.pulls)) + 1
        nats = lag.nats("law", 2 * live) + symbols * log(2)
        bets = np.sqrt(8 * nats / (PLANNED * self.unit))
        self.distance = 2 * (nats / (bets * self.pulls) + bets / 8)
        self.beyond = np.minimum((lag.nats("out", 2 * live) / self.pulls + 1.6095 * self.outside) / 0.8, 1.0)
        self.lag_starts = np.searchsorted(lag.pair, np.arange(len(self.pulls)))

    def shift(self, values: FloatArray) -> FloatArray:
        """Bound (M,) on (p_k - p̂_k)Z."""
        on_support = values[self.lag.successor]
        high = np.maximum.reduceat(on_support, self.lag_starts)
        low = np.minimum.reduceat(on_support, self.lag_starts)
        middle = (high + low) / 2
        above = np.maximum(self.chain.highest(values) - middle, 0)
        below = np.maximum(middle + self.chain.highest(-values), 0)
        bound: FloatArray = self.distance * (high - low) / 2 + self.beyond * above + self.outside * below
        return bound

    # --- step 1

    def _start(self) -> FloatArray:
        """D0 ≥ |V^π - Ṽ|, (N,)."""
        chain, lag = self.chain, self.lag
        played = lag.policy
        squares = self.mean_squares(chain.step * lag.values, -lag.centres)
        self.start_squares = squares
        up = 1 + chain.step * chain.highest(lag.values) - lag.centres
        down = lag.centres + chain.step * chain.highest(-lag.values)
        reach = (np.maximum(up, down) / self.unit)[played]
        nats = lag.nats("start", 2 * len(played))
        bets = planned_bets(nats, (lag.start_squares / self.unit)[played], reach)
        error = width(nats / self.units, bets, (squares / self.unit)[played], reach)
        means = (self.fresh.reward_sums / self.pulls + chain.step * (self.seen @ lag.values))[played]
        self.start_error = self._finite(error)
        gap = np.abs(means - lag.values[chain.live]) + error
        bound = np.zeros(chain.size)
        if not np.isfinite(gap).all():
            return chain.longest
        extra = np.zeros(len(played))
        for _ in range(6):
            bound = np.minimum(self.rows.times(gap + chain.step * extra), 2 * chain.longest)
            extra = self.shift(bound)[played]
        # Whatever the bound is now, lifted by what it lacks it satisfies its condition in the true kernel.
        needed = gap + chain.step * (self.seen[played] @ bound + self.shift(bound)[played])
        short = max(float((needed - bound[chain.live]).max()), 0.0)
        return np.minimum((bound + short * chain.longest) * (1 + _ROOM), chain.longest)

    def mean_squares(self, function: FloatArray, offsets: FloatArray) -> FloatArray:
        """Fresh mean squares (M,) of R + function(S') + offset_k, not smaller for rounding."""
        fresh = self.fresh
        moved = function[fresh.next_state] + offsets[fresh.pair]
        terms = np.bincount(fresh.pair, 2 * fresh.rewards * moved + fresh.counts * moved**2, len(self.pulls))
        sizes = np.bincount(fresh.pair, 2 * fresh.rewards * np.abs(moved) + fresh.counts * moved**2, len(self.pulls))
        total = fresh.squares + terms + 16 * EPS * (fresh.squares + sizes)
        return np.maximum(total, 0.0) / self.pulls

    # --- steps 2 to 4

    def _refine(self) -> None:
        chain, lag, played = self.chain, self.lag, self.lag.policy
        start = self._start()
        change = self.values - lag.values
        self.low = np.maximum(lag.values - start, np.minimum(chain.known, 0))
        self.high = np.minimum(lag.values + start, np.maximum(chain.longest, chain.known))
        hub_change, hub_start = self._at_hub(change), self._at_hub(start)
        self.from_hub = np.abs(change - hub_change) + start + hub_start
        local = np.abs(change[self.left] - change[self.right]) + start[self.left] + start[self.right]
        centred = lag.values[lag.reference] - self.values[lag.reference]
        offsets = chain.step * centred - lag.centres
        template_mean = self.past @ lag.template
        self.bracket = np.sqrt(self.mean_squares(chain.step * self.values, offsets))
        joint = chain.step * (self.values + lag.template)
        self.bracket_template = np.sqrt(self.mean_squares(joint, offsets - chain.step * template_mean))

        nats_local = lag.nats("loc", 2 * len(_STAKES) * self._local_directions())
        nats_hub = lag.nats("ref", 2 * len(_STAKES) * chain.size)
        nats_pair = lag.nats("pair", 4 * len(_STAKES) * len(played))
        squares0, reach0 = lag.squares / self.unit, np.maximum(lag.up, lag.down) / self.unit
        hub_bets = planned_bets(nats_hub, *self.rows.first_hub(squares0[played], reach0[played]))
        pair_bets = planned_bets(nats_pair, squares0, reach0)
        local_bets = None
        self.noise, self.mismatch = np.full(len(self.pulls), inf), np.full(len(self.pulls), inf)
        rounds = _COARSE - _FINE if self.rows.local_is_cheap else 0
        while rounds < _COARSE + _FINE:
            self._squares_and_ranges(local)
            squares, reach = self.squares / self.unit, np.maximum(self.up, self.down) / self.unit
            fine = self.rows.local_is_cheap or rounds >= _COARSE
            noise = _least_width(nats_pair / self.units, pair_bets, squares, reach)
            noise[played] = np.minimum(noise[played], self._start_noise(change, hub_change, local))
            self.noise = np.minimum(self.noise, noise)
            along, reach_along = squares[played], reach[played]
            sums = self.rows.first_hub(along, reach_along)
            first_hub = _least_width(nats_hub / self.units, hub_bets, *sums)
            first = first_hub[self.left] + first_hub[self.right]
            if fine:
                if local_bets is None:
                    local_bets = planned_bets(nats_local, *self.rows.first_local(squares0[played], reach0[played]))
                sums = self.rows.first_local(along, reach_along)
                first = np.minimum(first, _least_width(nats_local / self.units, local_bets, *sums))
            terms = self.difference * np.append(self._finite(first), 0.0)[self.direction]
            self.mismatch = np.minimum(self.mismatch, np.bincount(self.pair, terms, len(self.pulls)))
            mismatch, noise = self._finite(self.mismatch[played]), self._finite(self.noise[played] + self.residual)
            slack = self._slack(mismatch, noise)
            both = np.stack([mismatch, noise], axis=1)
            second, crude = self.rows.second_hub(both).T
            bound = np.minimum(first_hub + chain.step * second, crude) + slack
            self.from_hub = np.minimum(self.from_hub, bound)
            around = self.rows.times(noise) + slack
            self.low = np.maximum(self.low, self.values - around)
            self.high = np.minimum(self.high, self.values + around)
            new = np.minimum(local, self.from_hub[self.left] + self.from_hub[self.right])
            if fine:
                second, crude = self.rows.second_local(both).T
                new = np.minimum(new, np.minimum(first + chain.step * second, crude) + slack)
            # Coarse rounds, by way of the hub, are over when they do not help; then so are fine ones.
            still = bool((new >= _STILL * local).all())
            local = new
            rounds += 1
            if still:
                if fine:
                    break
                rounds = _COARSE
        self.apart = local
        self._squares_and_ranges(local)

    def _at_hub(self, values: FloatArray) -> FloatArray:
        return at_hub(self.chain, self.lag.hub, values)

    def _start_noise(self, change: FloatArray, hub_change: FloatArray, local: FloatArray) -> FloatArray:
        """Bound |x| at the pairs of π by events start and law: x_k is the noise of Ṽ plus g(p̂_k - p_k)(V^π - Ṽ)."""
        chain, lag, played = self.chain, self.lag, self.lag.policy
        at = lag.reference
        apart = np.abs(change[self.state] - change[at[self.pair]]) + np.append(local, 0.0)[self.direction]
        starts = np.searchsorted(self.pair, np.arange(len(self.pulls)))
        nearby = np.maximum.reduceat(np.where(self.in_support, apart, 0.0), starts)
        reach = np.abs(change - hub_change) + self.from_hub
        anywhere = chain.highest(reach) + reach[at]
        moved = self.distance * nearby + (self.beyond + self.outside) * anywhere
        noise: FloatArray = self.start_error + chain.step * moved[played]
        return noise

    def _finite(self, values: Any) -> FloatArray:
        """Replace inf, which 0 times would be nan, by what no bound survives."""
        finite: FloatArray = np.minimum(values, 1e100)
        return finite

    def _local_directions(self) -> int:
        """Number of (state, reference) that the union of event loc is over."""
        sizes = np.diff(np.append(self.chain.blocks, self.chain.size))
        references, first = np.unique(self.lag.reference, return_index=True)
        return int(sizes[self.chain.block[first]].sum()) if len(references) else 1

    def _slack(self, mismatch: FloatArray, noise: FloatArray) -> float:
        """What the rounding of resolvents and values may add to any difference of two rows times a vector."""
        rows, largest, most = self.rows, float(noise.max()), float(mismatch.max())
        return (
            2
            * self.longest
            * (rows.defect_past * largest + float(self.residual.max()) + rows.defect * (largest + most))
        )

    def _squares_and_ranges(self, local: FloatArray) -> None:
        """Steps 2 and 3."""
        chain, lag = self.chain, self.lag
        apart = np.append(local, 0.0)[self.direction]
        spread = chain.step * np.sqrt(np.bincount(self.pair, self.fresh_probability * apart**2, len(self.pulls)))
        self.squares = (self.bracket + spread) ** 2
        self.template_squares = (self.bracket_template + spread) ** 2
        over, under = self.values + self.from_hub, self.values - self.from_hub
        at = lag.reference
        rise = np.minimum(chain.highest(over) - under[at], chain.highest(self.high) - self.low[at])
        fall = np.minimum(over[at] + chain.highest(-under), self.high[at] + chain.highest(-self.low))
        self.up = 1 + chain.step * (rise + lag.values[at]) - lag.centres
        self.down = lag.centres + chain.step * (fall - lag.values[at])

    # --- steps 5 and 6

    def verdict(self) -> Verdict:
        """Gains of every form, and the smallest bound."""
        observed = self.observe()
        chain, lag, played = self.chain, self.lag, self.lag.policy
        squares, up, down = self.squares / self.unit, self.up / self.unit, self.down / self.unit
        size = len(self.pulls)
        total, reach = self.rows.first_rival(squares[played], up[played], down[played])
        mismatch, noise = self._finite(self.mismatch[played]), self._finite(self.noise[played] + self.residual)
        second, crude = self.rows.second_rival(np.stack([mismatch, noise], axis=1)).T
        slack = self._slack(mismatch, noise) + 64 * EPS * self.longest
        second = chain.step * (self._finite(self.mismatch) + second) + slack
        crude = self.noise + crude + slack

        rise = chain.step * (chain.highest(lag.template) - self.past @ lag.template)
        own = [squares, observed.template_squares / self.unit]
        unseen = [up, up + rise / self.unit]
        forms, gains_of = np.full(3, inf), np.zeros((3, size))
        self.firsts = firsts = np.zeros((2, size))
        for form in range(2):
            if lag.shares[form] == 0:
                continue
            g0, b0 = own[form] + total, np.maximum(unseen[form], reach)
            g0[played], b0[played] = form * own[1][played], form * (rise / self.unit)[played]
            firsts[form] = width(lag.form_nats(form) / self.units, lag.bets[form], g0, b0)
            if form == 0:
                firsts[form][played] = 0.0
            extra = np.array(second)
            extra[played] = 0.0
            drift = form * (chain.step * (self.seen @ lag.template) - lag.template[chain.state])
            gains_of[form] = self.advantages + firsts[form] + extra + drift
            forms[form] = self._bound(gains_of[form], form * lag.template, form == 0)
        crude[played] = 0.0
        gains_of[2] = self.advantages + crude
        forms[2] = self._bound(gains_of[2], np.zeros(chain.size), True)
        best = int(np.argmin(forms))
        return Verdict(played, float(forms[best]), forms, gains_of[best], observed, self.low, self.high)

    def observe(self) -> Observed:
        """Steps 1 to 4."""
        self._refine()
        chain, lag, fresh = self.chain, self.lag, self.fresh
        moved = chain.step * (lag.template[fresh.next_state] - (self.past @ lag.template)[fresh.pair])
        alone = np.bincount(fresh.pair, fresh.counts * moved**2, len(self.pulls)) / self.pulls * (1 + _ROOM)
        squares = np.array(self.template_squares)
        squares[lag.policy] = alone[lag.policy]
        return Observed(self.squares, squares, self.start_squares, self.up, self.down)

    def _bound(self, gains: FloatArray, template: FloatArray, exact: bool) -> float:
        """Step 6: the bound on the loss that these gains prove."""
        chain = self.chain
        if not np.isfinite(gains).all():
            return inf
        if exact and gains.max() <= 0:
            return 0.0
        # Z may be as large as one likes. If it is far below its top somewhere, pairs pay for what may lead to the top
        # unseen, and what is gained by its being low may be lost again: it is tried with several floors.
        values = chain.optimal(self.seen, gains, np.zeros(chain.size))
        floors = {-inf, min(float(values.min()), 0.0) / 2, 0.0} if template.any() else {-inf}
        return min(self._above(gains, template, values, floor) for floor in sorted(floors))

    def _above(self, gains: FloatArray, template: FloatArray, values: FloatArray, floor: float) -> float:
        """Step 6 for one Z, which is nowhere below the floor; `values` is where the search for it begins."""
        chain, ends = self.chain, np.zeros(self.chain.size)
        for _ in range(3):
            extra = self.shift(np.maximum(values, floor))
            values = chain.optimal(self.seen, gains + chain.step * extra, ends, values, floor=floor)
        bound = inf
        for _ in range(4):
            needed = chain.best(gains + chain.step * (self.seen @ values + self.shift(values)))
            room = _ROOM * float(np.abs(needed).max()) + 64 * EPS * self.longest
            short = max(float((needed - values)[chain.live].max()), 0.0) + room
            bound = min(bound, chain.worth(template + values + short * chain.longest))
            values[chain.live] = np.maximum(needed[chain.live], floor)
        return max(bound, 0.0) * (1 + _ROOM)
