"""Theorem UD: the loss of a policy is one number, in one direction that nobody knows. Discounted problems, ε > 0.

*Setting.* Words and letters are those of `bets` and `theorem_i`; g = γ. Pairs k = (s,a), c_k = φ_k - φ(s,π(s)), 0
at the pairs of π. |u|_A = √(uᵀAu).

**What a lag fixes**, beside what it does for Theorem I: shares SHARES of its δ' for the events below, a matrix Σ0 >
0, the sizes s_m of bets with their shares q_m, and what `kernel` needs. For a batch the snapshot fixes vectors

    T_k = f·J̃G⁻¹φ_k/ṽ_k,      f ≤ 1 a number of the batch that keeps bets moderate where they would be bold.

**Sums** over the samples since the lag: b = ΣTr, B = ΣT(φ - gφ_π(S'))ᵀ, N = Σf, and the kernel m̃ of `kernel`.

**The look.** C is Theorem P's set, or the ball around Lemma N's box, {ξ̂ + x: xᵀM⁻¹x ≤ 1}, R̄ the ranges, z̄_k
a bound on Σζ(ξ)² over C by batch and
pair: (√Σζ(ξ̂)² + √drift)² (Minkowski). Sizes with x_k = s_m|T_k|_{Σ0⁻¹}R̄_k ≥ 0.9 are left out. With Q =
Σψ(x_k)z̄_kT_kT_kᵀ, l = log 1/(SHARES[0]δ'q(π)q_m), Q̃ = Σ0^-½QΣ0^-½, D = I - B/N, ξ̃ = ξ̂ - (Bξ̂ - b)/N and any c >
0

    Σ_t = (1+c) Σ0^½[((l/s)I + sQ̃)/N]²Σ0^½ + (1+1/c) DMDᵀ,        gain_k = c_kᵀξ̃ + |c_k|_{Σ_t},

and any function Z with its residual res = max_k [gain_k + g(φ_kᵀm̃ᵀZ + W_k(Z)) - Z(s_k)], W of `kernel` with the share
SHARES[2]δ'q(π):

    ε = max(0, max_s Z(s) + res/(1-g)),        ε = 0 if no gain is positive.

**Theorem UD.** Given the past of the lag, with probability at least 1 - δ', at all times and for all policies max_s
(V* - V^π)(s) ≤ ε, whatever m, c and Z are chosen at the look.

*Proof.* Fix π. D* = V* - V^π, a state s0 at which it is largest, an optimal policy and its discounted occupancy occ
from s0 (in truth) are unknown constants, and so are u = Σ occ_k c_k and v = Σ occ_k φ_k. D*(s0) = Σ occ_k c_kᵀξ^π =
uᵀξ^π (performance difference); if u = 0 there is no loss.

(i) τ_i = s_m T_iᵀu/|u|_Σ0 is predictable. By Lemma E and Ville's inequality, as in Theorem I, -Σ τη(ξ^π) ≤ log
1/(SHARES[0]δ'q(π)q_m) + Σψ(|τ|R)τ²ζ² for all m and at all times, but with probability SHARES[0]δ'q(π). On Theorem
P's event, |τ_k|R ≤ x_k (Cauchy and Schwarz), so the last sum is at most s²uᵀQu/|u|²_Σ0; and -ΣTη(ξ) = Bξ - b. With
y = Σ0^½u: uᵀ(Bξ^π - b)/N ≤ |y|(l/s + s·yᵀQ̃y/|y|²)/N ≤ |((l/s)I + sQ̃)y|/N. As ξ^π - (Bξ^π - b)/N = ξ̃ + Dx, D*(s0)
≤ uᵀξ̃ + |Dᵀu|_M + |((l/s)I + sQ̃)y|/N ≤ uᵀξ̃ + |u|_Σt ≤ Σ occ_k gain_k: (√α + √β)² ≤ (1+c)α + (1+1/c)β, and a norm
of a sum is at most the sum of norms. (ii) But with probability SHARES[2]δ'q(π), Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ Σ occ_k
W_k(Z) for all Z (`kernel`). (iii) Σ occ_k gain_k ≤ Σ occ_k [Z(s_k) - g p_kZ + res] = Z(s0) + res/(1-g), by (ii) and as
occ telescopes under the true kernel and sums to 1/(1-g). Sum over π. ∎

(i) and (ii) hold as sums along occ only: nothing may be clipped or chosen pair by pair.

**Vectors.** (i) ends with uᵀξ̃ + |u|_Σt, and |u| is at most the sum of |c_k| along the path, but often much smaller.
`paths` bounds the former by a net of directions; the better of both bounds counts.
"""

from __future__ import annotations

from math import exp, inf, log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS, one_thread, steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.dense.bets import Bets, Rivals, Snapshot
from bestpolicy.stopping.dense.entries import Entry, entered
from bestpolicy.stopping.dense.kernel import Doubt, Kernel, roots
from bestpolicy.stopping.dense.nuisance import SPLIT, Spread, Surroundings, is_large, largest_drifts
from bestpolicy.stopping.dense.paths import path_bound
from bestpolicy.stopping.dense.policies import LEAST_LOG_WEIGHT
from bestpolicy.stopping.dense.theorem_i import BOLDEST, OLD_CAUTION, SIZES, Lag, Outcome, above_psi, on_grid
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.rule import Past
from bestpolicy.stopping.tight import TightTest

SHARES = (0.85, 0.05, 0.05, 0.05)  # of the lag's δ: for the bets, the ellipsoids, the kernel, the box
MIXES = (0.05, 0.2, 0.6)  # c
_SOONEST = 1.5  # the largest bets are best if the end is at this many times the past
_PROMISING = 2  # sizes that are looked at where each takes long


class PathBook:
    """All batches since a lag, as one policy sees them, and Theorem UD's look at them.

    Parameters are those of Theorem I's book; a `kernel` if somebody else enters batches there.
    """

    def __init__(
        self, problem: Problem, sampled: FloatArray, lag: Lag, policy: IntArray, kernel: Kernel | None = None
    ) -> None:
        self._shared, self.kernel = kernel is not None, new_kernel(problem, sampled, lag) if kernel is None else kernel
        self.problem, self.sampled, self.lag, self.policy = problem, sampled, lag, policy
        weight = lag.policies.log_weight(policy)
        self.negligible = weight < LEAST_LOG_WEIGHT
        self.log_share = log(lag.delta) + max(weight, LEAST_LOG_WEIGHT)  # of δ'q(π)
        past = Past(lag.prior, lag.number, lag.started, policy)
        self.test = TightTest(problem, past, SHARES[1] * exp(self.log_share), SPLIT, inf, policy)
        self.rivals = Rivals.of(problem, policy)
        dimension = problem.dimension
        self.root, self.inverse_root = roots(lag.sigma)
        self.entries, self.vectors = list[Entry](), list[FloatArray]()
        self.whitened, self.lengths = list[FloatArray](), list[FloatArray]()  # T in the coordinates Σ0^-½
        self.sizes = np.zeros(len(SIZES))
        self.whole = True
        self.rewards, self.features = np.zeros(dimension), np.zeros((dimension, dimension))  # b, B
        self.count = self.absolute = 0.0  # N, Σ|T|
        self.factor = 1.0  # f of the last snapshot

    def enter(self, snapshot: Snapshot, tally: Tally) -> None:
        """Take in a batch, over all pairs that may be sampled, with the snapshot that was taken before it."""
        if not self._shared:
            self.kernel.enter(snapshot, tally)
        known = len(self.entries)
        entry = entered(self.entries, lambda: self._bets(snapshot), snapshot, tally)
        if entry is None:
            self.whole = False
            return
        bets = entry.bets
        if len(self.entries) > known:
            self._fix(bets)
        vectors, lengths = self.vectors[-1], self.lengths[-1]
        self.whole &= entry.tally.samples == tally.samples
        pulls = entry.tally.pulls[0]
        self.rewards += vectors.T @ entry.tally.reward_sums[0]
        seen = pulls[:, None] * bets.sampled - self.problem.continuation * entry.following()[0]
        self.features += vectors.T @ seen
        self.count += self.factor * float(pulls.sum())
        self.absolute += float(pulls @ lengths)

    def _bets(self, snapshot: Snapshot) -> Bets:
        return Bets(self.problem, self.rivals, self.policy, snapshot, self.sampled)

    def _fix(self, bets: Bets) -> None:
        """T of a new snapshot, (U, d); the first one fixes the sizes, from what is known at the lag."""
        response = bets.response.moved(np.eye(self.problem.dimension)[None])[0]
        vectors = (bets.sampled / bets.variances[0][:, None]) @ (bets.precision[0] @ response.T)
        vectors[bets.shares[0] <= 0] = 0.0
        whitened = vectors @ self.inverse_root
        lengths = np.sqrt((whitened**2).sum(axis=1))
        boldest = max(float((lengths * np.max(bets.expected_reach(), axis=0)[0]).max()), 1e-300)
        if not self.vectors:
            nats = -log(SHARES[0]) - self.log_share
            largest = np.sqrt(2 * (nats + 1.5) / (_SOONEST * self.lag.started))
            self.sizes = SIZES * min(largest, (self.lag.caution or OLD_CAUTION) / boldest)
        self.factor = min(1.0, (self.lag.caution or inf) / (float(self.sizes[0]) * boldest))
        self.vectors.append(self.factor * vectors)
        self.whitened.append(self.factor * whitened)
        self.lengths.append(self.factor * lengths)

    @one_thread()
    def look(self, fresh: Evidence) -> Outcome:
        """Return the ε that the samples since the lag certify for the policy; inf if they say nothing."""
        if not len(self.rivals):
            return Outcome(0.0, 1.0)
        if not self.entries or self.negligible or not self.kernel.count:
            return Outcome(inf, 0.0)
        known = self.whole and all(entry.second is not None for entry in self.entries)
        around = Surroundings.of(self.test, fresh, self.entries if known else ())
        if around is None:
            return Outcome(inf, 0.0)
        around, spreads = around.refined(self.entries, self.lag.frame, SHARES[3] * exp(self.log_share), self.whole)
        centre, forms = self._gains(around, spreads)
        if not forms:
            return Outcome(inf, 0.0)
        limit, asked, rivals = float(self.problem.value_limits[0]), self.lag.asked, self.rivals
        law, doubt = self.kernel.sums / self.kernel.count, self.doubt()
        epsilon = inf
        for form in forms:
            place = (rivals.state, rivals.action)
            found = path_bound(self.problem, centre, form, rivals.differences, place, law, doubt, asked)
            epsilon = min(epsilon, found)
            if epsilon <= asked:
                break
        reached = asked / epsilon if epsilon > 0 else 1.0
        stated = asked if epsilon <= asked and asked > 0 else inf
        return Outcome(min(stated, on_grid(epsilon, limit)), min(1.0, float(steady(np.array(reached)))))

    def doubt(self) -> Doubt:
        """How wrong m̃ may be."""
        return self.kernel.doubt(self.problem, self.lag.bet, log(SHARES[2]) + self.log_share)

    def _gains(self, around: Surroundings, spreads: list[Spread]) -> tuple[FloatArray, list[FloatArray]]:
        """c_kᵀξ̃ of the rivals, (J,), and Σ_t by some choices of m and c, the most promising ones."""
        problem, rivals = self.problem, self.rivals
        parameters = around.propagation.parameters[0]
        moved = parameters - (self.features @ parameters - self.rewards) / self.count  # ξ̃
        error = np.eye(problem.dimension) - self.features / self.count  # D
        error = error @ around.propagation.moved(np.eye(problem.dimension)[None])[0]
        metrics = list(around.metrics[:, 0])
        if around.box is not None:  # a cube lies in a ball
            metrics.append(problem.dimension * around.box.pulled[0] @ around.box.pulled[0].T)
        second = min((error @ metric @ error.T for metric in metrics), key=lambda form: float(np.trace(form)))
        unit = (problem.dimension + problem.states + len(self.sampled) + 1000) * EPS * (1 + problem.value_limits[0])
        shift = self.absolute / self.count * (around.rounding.equations[0] + unit)
        room = shift * _lengths(self.lag.sigma, rivals.differences) + around.rounding.margins[rivals.place]
        centre = rivals.differences @ moved + room
        found = list[tuple[float, FloatArray]]()
        for size, share, costs in zip(self.sizes, self.lag.size_shares, self._costs(around, spreads), strict=True):
            if costs is None:
                continue
            nats = -log(SHARES[0] * share) - self.log_share
            inner = (nats / size * np.eye(problem.dimension) + size * costs) / self.count
            first = self.root @ inner
            for mix in MIXES:
                form = (1 + mix) * first @ first.T + (1 + 1 / mix) * second
                found.append((float((centre + _lengths(form, rivals.differences)).max()), form * (1 + 1e-9)))
        found.sort(key=lambda each: each[0])
        return centre, [form for _, form in found[:3]]

    def _costs(self, around: Surroundings, spreads: list[Spread]) -> list[FloatArray | None]:
        """Q̃ of every size, or of the two that promise most where it takes long; None if a size is too bold."""
        sizes, squares, reaches = self.sizes, list[FloatArray](), list[FloatArray]()
        traces = np.zeros(len(sizes))
        for spread, lengths in zip(spreads, self.lengths, strict=True):
            drifts = spread.drifts[0]
            if spread.entry.second is not None:
                moments = spread.entry.moments()
                drifts = np.minimum(drifts, largest_drifts(moments, around, self.problem.continuation)[0])
            squares.append((np.sqrt(spread.squares[0]) + np.sqrt(drifts)) ** 2 * (1 + 1e-9))
            reaches.append(lengths * np.maximum(spread.up[0], spread.down[0]))
            for place, size in enumerate(sizes):
                bold = size * reaches[-1].max() >= BOLDEST
                traces[place] += inf if bold else (above_psi(size * reaches[-1]) * squares[-1]) @ lengths**2
        nats = -np.log(SHARES[0] * self.lag.size_shares) - self.log_share
        promised = steady(nats / sizes + sizes * traces / self.problem.dimension)
        costs: list[FloatArray | None] = [None] * len(sizes)
        number = _PROMISING if is_large(self.problem, len(self.sampled)) else len(sizes)
        for place in np.argsort(promised, kind="stable")[:number]:
            if np.isfinite(promised[place]):
                costs[place] = cost = np.zeros(self.root.shape)
                for square, reach, whitened in zip(squares, reaches, self.whitened, strict=True):
                    cost += (whitened.T * (above_psi(sizes[place] * reach) * square)) @ whitened
        return costs


def new_kernel(problem: Problem, sampled: FloatArray, lag: Lag) -> Kernel:
    """Nothing yet, for what a lag has fixed."""
    return Kernel(problem.states, sampled, lag.gamma, lag.bet * lag.spikes)


def _lengths(form: FloatArray, rows: FloatArray) -> FloatArray:
    lengths: FloatArray = np.sqrt(np.clip(((rows @ form) * rows).sum(axis=1), 0.0, None))
    return lengths


__all__ = ["SHARES", "PathBook", "new_kernel"]
