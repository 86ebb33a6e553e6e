"""Theorem F±: two known functions bracket all values, in every state of a space that nobody lists.

Setting. p(·|s, a) = Σ_i φ_i(s, a) μ_i(·), E[R|s, a] = g(s, a) + φ(s, a)ᵀθ, R ∈ [0, 1], φ(s, a) in the unit simplex of
R^d, any measurable space of states. For a bounded V let ξ(V) = θ + γ∫V dμ ∈ R^d, so that (TV)(s, a) = g + φᵀξ(V) in
every state; f(s, ξ) = max_a g + φᵀξ; L = 1/(1-γ), or L_h = H - h.

A *lag* fixes, from samples of the past, vectors ξ⁺ and ξ⁻ (m candidate pairs of them), bets and counts; π plays the
first maximiser of g + φᵀξ⁻. The functions are V^± = clip(f(·, ξ^±), 0, L), and their values lie between a = max(0,
inf_s max_a g + min_j ξ_j) and b = min(L, sup_s max_a g + max_j ξ_j). Say that V⁺ is *cut* if sup_s max_a g + max_j ξ⁺_j
> L (or nobody knows), that V⁻ is if inf_s max_a g + min_j ξ⁻_j < 0 (or nobody knows).

**Theorem F±.** On fresh samples let u_j ≥ ξ(V⁺)_j and l_j ≤ ξ(V⁻)_j for all j with probability at least 1-δ. Put

    c⁺ = max_j (u_j - ξ⁺_j),   c⁻ = max_j (ξ⁻_j - l_j),   each replaced by its positive part if its function is cut.

With probability at least 1-δ, in every state: V* ≤ V⁺ + c⁺L, V^π ≥ V⁻ - c⁻L, and V* - V^π ≤ ε, where

    ε = max(0, max_j (ξ⁺ - ξ⁻)_j) + (c⁺ + c⁻)L.

*Proof.* φ is a convex combination of unit vectors, so φᵀξ(V⁺) ≤ Σφ_j u_j ≤ φᵀξ⁺ + max_j(u_j - ξ⁺_j). Hence TV⁺ ≤ f(·,
ξ⁺) + max_j(u_j - ξ⁺_j) for all allowed pairs. If V⁺ is not cut then f ≤ V⁺, and TV⁺ ≤ V⁺ + c⁺. If it is, TV⁺ ≤ 1 + γL =
L as well, because V⁺ ≤ L and R ≤ 1: TV⁺ ≤ min(f + c⁺, L) ≤ min(f, L) + c⁺ ≤ V⁺ + c⁺ for c⁺ ≥ 0. So U = V⁺ + c⁺L
satisfies max_a TU ≤ V⁺ + c⁺ + γc⁺L = U, and V* ≤ U, because the Bellman operator is a monotone contraction. Likewise
f(s, ξ⁻) = g_π + φ_πᵀξ⁻ ≤ g_π + φ_πᵀξ(V⁻) + max_j(ξ⁻_j - l_j) = T_πV⁻(s) + …; if V⁻ is not cut then V⁻ ≤ f, so V⁻ ≤
T_πV⁻ + c⁻; if it is, V⁻ ≤ max(f, 0) ≤ T_πV⁻ + c⁻ for c⁻ ≥ 0, because V⁻ ≥ 0 and R ≥ 0 make T_πV⁻ ≥ 0. So V⁻ - c⁻L is a
sub-solution for π. Finally f(s, ξ⁺) - f(s, ξ⁻) ≤ max_a φᵀ(ξ⁺ - ξ⁻) ≤ max_j(ξ⁺ - ξ⁻)_j, and to
clip both to [0, L] is monotone and does not expand: V⁺ - V⁻ ≤ max(0, max_j(ξ⁺ - ξ⁻)_j). ∎

**Episodic (F±-E).** With ξ_h^±, V_h^± and V_H^± = 0, u_{h,j} ≥ ξ_h(V⁺_{h+1})_j, c_h^± as above: V*_h ≤ V_h⁺ + Σ_{k≥h}
c_k⁺, V^π_h ≥ V_h⁻ - Σ_{k≥h} c_k⁻, ε = max_j(ξ_0⁺ - ξ_0⁻)_j⁺ + Σ_h(c_h⁺ + c_h⁻). *Proof.* Backward induction: V*_h ≤
max_a T_h(V⁺_{h+1} + Σ_{k>h} c_k⁺) = max_a T_hV⁺_{h+1} + Σ_{k>h} c_k⁺ ≤ V_h⁺ + c_h⁺ + Σ_{k>h} c_k⁺. ∎

**Limits.** *Anchors* (`lemmas.wagers`): ξ(V)_j is the mean of Y = R' + γV(S') at anchor j, and V is known, so that Y is
observed and its range, (range of R'_j) + γ(b - a), is known: Lemma W with l = log(2dmH/δ) (H = 1 if discounted), whose
looks are free. *Pairs that span R^d*: fixed coefficients C with CΦ = I give ξ(V)_j = Σ_k C_jk E_k[Y], and Lemma E
(`lemmas.betting`) its limits with the same l; looks are free if counts are whole multiples of one unit.

**Lags.** Lag j = 1, 2, … may spend δ_j = share_j·δ, Σ share_j = 1, fixed beforehand; it may begin at any stopping time,
and a lag that fails becomes past. P(some lag ever states something false) ≤ Σ_j E[P(· | past_j)] ≤ δ.

**No linearity (Theorem M1).** For any kernel, ξ_j(V) = (TV - g)(anchor j) is what the limits are about, whatever the
features. With ζ⁺ ≥ (TV⁺ - g)(s, a) - φᵀξ(V⁺) and ζ⁻ ≥ φ_πᵀξ(V⁻) - (TV⁻ - g)(s, π(s)) everywhere, both ≥ 0, the same
proof holds with c^± + ζ^±: **ε(ζ) = ε + (ζ⁺ + ζ⁻)L** (episodic: ΣL over stages, H in all). Two known functions, each in
its harmful direction only.

*Rounding.* Values of functions are off by less than `ROUNDING`·(1 + L), and the policy plays an action that may be
worse than the best by as much: both c^± grow by it. Gains are sums of n logarithms, off by less than n²·2⁻⁵⁰ times the
largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import FeatureProblem
from bestpolicy.samples import Bets, Drawn
from bestpolicy.stopping.lemmas.betting import width
from bestpolicy.stopping.lemmas.wagers import limits

ROUNDING = 1e-11
SHARES = (0.7, 0.2, 0.07)  # of δ for the first lags; the rest goes to later ones, 0.7 of it to the next each time
_LATER = 0.3


def share(number: int) -> float:
    """Return the share of δ of lag 1, 2, …; all of them together sum to 1.

    >>> share(1), round(sum(share(j) for j in range(1, 60)), 12)
    (0.7, 1.0)
    """
    if number <= len(SHARES):
        return SHARES[number - 1]
    return (1.0 - sum(SHARES)) * (1.0 - _LATER) * _LATER ** (number - len(SHARES) - 1)


def nats(problem: FeatureProblem, delta: float, candidates: int) -> float:
    """Return l = log(2dmH/δ)."""
    return log(2 * problem.dimension * candidates * problem.stages / delta)


def value_ranges(problem: FeatureProblem, vectors: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a and b of the functions of vectors (…, stages, d), and which are cut below (0) and above (1), (…, 2)."""
    limit, best = problem.value_limits, problem.best_limits
    low, high = vectors.min(axis=-1), vectors.max(axis=-1)
    unknown = best is None
    least, most = (0.0, 0.0) if best is None else best
    below, above = low + least, high + most
    cut = np.stack([(below < 0) | unknown, (above > limit) | unknown], axis=-1)
    a = np.where(cut[..., 0], 0.0, np.minimum(below, limit))
    b = np.where(cut[..., 1], limit, np.maximum(above, 0.0))
    return a, np.maximum(a, b), cut


def outcome_ranges(problem: FeatureProblem, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the limits of Y for functions with limits (F, stages), each (F, stages, K)."""
    least, most = problem.remainder_limits
    gamma = problem.continuation
    if problem.horizon is not None:
        low, high = (np.concatenate([each[:, 1:], np.zeros((len(each), 1))], axis=1) for each in (low, high))
    return least + gamma * low[..., None], most + gamma * high[..., None]


@dataclass(frozen=True, eq=False)
class Lag:
    """All that is fixed before the samples of a test.

    Attributes
    ----------
    number, started : int
        Which lag it is (1 is the first), and the samples that fixed it.
    delta : float
        What it may spend.
    bets : Bets
        2m functions: ξ⁺ of all candidates, then ξ⁻ of all.
    unit : int array (stages, K)
        Counts come in whole multiples of it (Lemma E), or in any number (Lemma W).
    stakes, centres : arrays (2m, stages, d) and (2m, stages, K), optional
        Of Lemma E, for pairs that are no anchors; empty otherwise.
    """

    number: int
    started: int
    delta: float
    bets: Bets
    unit: IntArray
    stakes: FloatArray
    centres: FloatArray

    @property
    def candidates(self) -> int:
        """m."""
        return len(self.bets.sides) // 2

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and arrays."""
        return dict(vars(self)) | {"bets": self.bets.to_dict()}

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Lag:
        """Return what `to_dict` has written."""
        return cls(**known | {"bets": Bets(**known["bets"])})

    def look(self, problem: FeatureProblem, drawn: Drawn) -> Verdict:
        """Certify what the samples of the test allow."""
        m, stages = self.candidates, problem.stages
        plus, minus = self.bets.vectors[:m], self.bets.vectors[m:]
        found = self._limits(problem, drawn)  # (2m, stages, d): u of the first m, l of the others
        _, _, cut = value_ranges(problem, self.bets.vectors)
        rounding = ROUNDING * (1.0 + problem.value_limits)
        above = (found[:m] - plus).max(axis=2)
        below = (minus - found[m:]).max(axis=2)
        above = np.where(cut[:m, :, 1], np.maximum(above, 0.0), above) + rounding
        below = np.where(cut[m:, :, 0], np.maximum(below, 0.0), below) + rounding
        apart = np.maximum((plus - minus)[:, 0].max(axis=1), 0.0)
        if problem.horizon is None:
            total = problem.value_limits[0] * np.stack([below, above])  # (2, m, 1)
        else:
            total = np.flip(np.cumsum(np.flip(np.stack([below, above]), axis=2), axis=2), axis=2)
        epsilons = np.maximum(apart + total[:, :, 0].sum(axis=0), 0.0)
        best = int(np.argmin(epsilons))
        vectors = np.stack([minus[best], plus[best]])
        slack = total[:, best].reshape(2, stages, 1)
        return Verdict(float(epsilons[best]), best, np.concatenate([vectors, slack], axis=2), epsilons)

    def _limits(self, problem: FeatureProblem, drawn: Drawn) -> FloatArray:
        """Return u of the first m functions and l of the others, (2m, stages, d)."""
        low, high = outcome_ranges(problem, self.bets.low, self.bets.high)
        level = nats(problem, self.delta, self.candidates)
        if problem.coefficients is None:
            return limits(self.bets, drawn, low, high, level)
        rounds = int((drawn.counts // self.unit).min())
        coefficients, sides = problem.coefficients, self.bets.sides[:, None, None]
        nothing = np.broadcast_to(sides * np.inf, (*self.centres.shape[:2], problem.dimension))
        if rounds < 1 or (drawn.counts != rounds * self.unit).any():
            return nothing
        means = drawn.sums / drawn.counts
        squares = drawn.squares / drawn.counts - 2 * self.centres * means + self.centres**2
        reach = (np.abs(coefficients) * ((high - low) / self.unit)[:, :, None, :]).max(axis=3)
        spread = (np.maximum(squares, 0.0) / self.unit) @ (coefficients**2).T
        wide = width(level / rounds, self.stakes, spread, reach)
        bound: FloatArray = means @ coefficients.T + sides * wide
        return np.where(np.isfinite(bound), bound, nothing)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one look certifies.

    Attributes
    ----------
    epsilon : float
    candidate : int
        Number of the pair of vectors that gives it.
    vectors : array (2, stages, d + 1)
        ξ⁻ and ξ⁺, each followed by what is to be subtracted from V⁻, and added to V⁺.
    epsilons : array (m,)
        What each candidate certifies.
    """

    epsilon: float
    candidate: int
    vectors: FloatArray
    epsilons: FloatArray


def bracket(problem: FeatureProblem, vectors: FloatArray, states: FloatArray, stage: int = 0) -> FloatArray:
    """Return limits of V^π(s) and V*(s), (n, 2), for the vectors of a verdict."""
    low, high, _ = value_ranges(problem, vectors[:, :, :-1])
    values = problem.values(states, np.ascontiguousarray(vectors[:, stage, :-1].T))
    values = np.clip(values, low[:, stage], high[:, stage]) + vectors[:, stage, -1] * np.array([-1.0, 1.0])
    found: FloatArray = np.clip(values, 0.0, problem.value_limits[stage])
    return found


def per_misfit(problem: FeatureProblem) -> float:
    """Return by how much ε grows with the misfit ζ of the two functions: 2/(1-γ) or 2H (Theorem M1)."""
    return 2.0 * float(problem.value_limits[0])
