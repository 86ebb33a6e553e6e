"""Theorem H: where states cannot be listed, gaps between actions count; for small ε.

Setting as in `stopping.hull`, discounted, with *anchors* (samples at place j have φ = e_j) and known limits of max_a
g. Theorem F± pays for values; Theorem H pays for differences of values under one policy, and only where actions are
close.

A *lag* fixes, from samples of the past: ξ̃ and its policy π (the first maximiser of g + φᵀξ̃, up to ties), a stochastic
matrix K̃, J̃ = (I - γK̃)⁻¹, a law τ over anchors, centres c_j within the range of R'_j + γf(·, ξ̃), and for each of a
fixed list of looks the counts n_j and the bets. Of fresh samples at anchor j: θ̂_j = mean(R' + γg(S', π(S'))), K̂_j =
mean φ(S', π(S')), which is stochastic, J = (I - γK̂)⁻¹, ξ̂ = Jθ̂, V̂ = g_π + φ_πᵀξ̂. Write Cy = y - (τᵀy)1, b = φ(s, a) -
φ(s, π(s)), and x_j for the noise of R' + γV^π(S') at j: its mean over the samples minus its expectation.

    (1)  ξ^π = ξ̂ - Jx.
    (2)  |x_j| ≤ e_j for all j implies |(CJx)_i| ≤ Σ_j |(CJ)_ij| e_j.
    (3)  |(CJ̃x)_i| ≤ h_i for all i implies |(CJx)_i| ≤ h_i + γΣ_j |(CJ)_ij| Σ_k |K̂ - K̃|_jk h_k.
    (4)  Let |CJx| ≤ z, κ = τᵀ(ξ̂ - ξ̃). The noise is that of Y' = R' + γ(V^π - κ_0)(S') with the fixed number κ_0 =
         τᵀ(ξ^π - ξ̃), and √mean(Y' - c)² ≤ √mean(R' + γ(V̂ - κ)(S') - c)² + γ max z, |Y' - c_j| ≤ Λ_j =
         (range of R'_j + γf(·, ξ̃)) + γ max_i(|C(ξ̂ - ξ̃)|_i + z_i).
    (5)  A^π(s, a) ≤ U(s, a) = Δg + bᵀξ̂ + |b|ᵀz; U(s, π(s)) = 0.
    (6)  Let ω = V* - V^π ≤ Ω and (𝓗t)_j = mean_j max_a {U(S', a) + γφ(S', a)ᵀt} + Ω√(l/2n_j), cut at Ω. If 𝓗t̄ ≤ t̄
         then E_j ω(S') ≤ t̄_j for all j.
    (7)  ω(s) ≤ ε = max{γ max t̄, max_i[(ξ̂ - ξ̃ + z + γt̄)_i] + max_j[(z - ξ̂ + ξ̃)_j]} in every state.

e and h come from Hoeffding's inequality (e only, with Λ_j = range of R'_j + γL) and Lemma E (`lemmas.betting`); z is
the smaller of (2) and (3). One alternates between (2), (3) and (4), beginning with e by Hoeffding; there are B bets on
each direction, because those that suit the first, large z do not suit the last. Then one alternates between (6) and
(7), beginning with Ω = min(L, cL), c = max_i[(ξ̂ - ξ̃ + z)_i] + max_j[(z - ξ̂ + ξ̃)_j].

**Theorem H.** With l = log((5 + 2B)dM/δ), M looks, every Ω and ε of every look is a bound with probability at least
1-δ.

*Proof.* Given the past V^π is a fixed function, and so are V*, ω and everything above without a hat. Fix a look. (1)
mean_j(R' + γV^π(S')) = θ̂_j + γ(K̂ξ^π)_j, because V^π = g_π + φ_πᵀξ^π; and it is ξ^π_j + x_j. (2) is plain. (3) J = J̃ +
γJ(K̂ - K̃)J̃, and (K̂ - K̃)1 = 0, so CJx = CJ̃x + γ(CJ)(K̂ - K̃)(CJ̃x). (4) φ_πᵀ1 = 1, so V^π - κ_0 = (V̂ - κ) - φ_πᵀCJx = f(·,
ξ̃) + φ_πᵀC(ξ̂ - ξ̃ - Jx). (5) A^π = Δg + bᵀξ^π, and bᵀ1 = 0. (6) ω = max_a{A^π + γpω}, pω = φᵀt with t_j = E_j ω(S') ≤ Ω;
ω is fixed and lies in [0, sup ω], so t_j ≤ mean_j ω(S') + Ω√(l/2n_j) by Hoeffding's inequality, for whatever Ω ≥ sup
ω: t ≤ 𝓗t. 𝓗 is monotone and contracts, so t lies below its fixed point, which lies below every t̄ with 𝓗t̄ ≤ t̄. (7) Δg +
bᵀξ̃ ≤ 0, as π is greedy: U ≤ φ_aᵀ(ξ̂ - ξ̃ + z) + φ_πᵀ(z - ξ̂ + ξ̃), and features are convex combinations. The start is that
of A^π ≤ c everywhere, which makes ω ≤ cL. *Events* at each look: 2d by Hoeffding and 2d by Lemma E for ±x_j, 2dB by
Lemma E for ±(CJ̃x)_i, d for ω. Lemma E and Hoeffding's inequality are monotone in Λ and in the squares, and their bets
and counts are fixed in absolute units: so all rounds hold on the same events. ∎

*Values.* V^π = f(·, ξ̃) + φ_πᵀ(ξ̂ - ξ̃ - Jx), so that V^π ≥ f(·, ξ̃) - max_i(ξ̃ - ξ̂ + Je)_i and V* ≤ f(·, ξ̃) + max_i(ξ̂ - ξ̃
+ Je)_i + ε (J ≥ 0). These are wider than ε: ε is about the difference.

**No linearity (Theorem M3).** Whatever the kernel, only anchors are simulated, and at anchors the system and its
interpolated model (an anchor is drawn with the weights φ, and simulated) are the same. Theorem H is true of that model
if its mean rewards lie in [0, 1], as they do if g = 0: V°* - V°^π ≤ ε. With ζ⁺ ≥ (TV°* - g)(s, a) - φᵀξ(V°*) and ζ⁻ ≥
φ_πᵀξ(V°^π) - (TV°^π - g)(s, π(s)) everywhere, both ≥ 0: **V* - V^π ≤ ε + (ζ⁺ + ζ⁻)L**. *Proof.* TV°* ≤ V°* + ζ⁺, so
V°* + ζ⁺L is a super-solution of the system's Bellman operator, and V* ≤ V°* + ζ⁺L; likewise V^π ≥ V°^π - ζ⁻L. ∎ So ε
grows as it does for F±, with the misfit of the interpolated model's two value functions, of which f(·, ξ̃) is the
estimate that tests look at.

*Rounding* as in `stopping.hull`; ties are broken bit for bit as played, by the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import FeatureProblem
from bestpolicy.samples.kept import Kept, added
from bestpolicy.stopping.hull import ROUNDING, Verdict
from bestpolicy.stopping.lemmas.betting import width

_ALTERNATIONS = 20  # of (2), (3) and (4), at most
_SAME = 0.999  # what shrinks less has converged
_ROUNDS = 16  # of (6) and (7)
_NEWTON_STEPS = 30
_SETTLED = 1e-4  # of Ω: what moves less is near enough
_WORTH = 0.99  # a round that leaves more than this of Ω is the last
_HOPELESS = 0.3  # of L: what begins with a larger Ω is not worth its rounds


@dataclass(frozen=True, eq=False)
class GapLag:
    """All that is fixed before the samples of a test.

    Attributes
    ----------
    number, started : int
        Which lag it is (1 is the first), and the samples that fixed it.
    delta : float
        What it may spend.
    vector : array (d,)
        ξ̃.
    kernel : array (d, d)
        K̃.
    weights, centres : arrays (d,)
        τ and c.
    counts : int array (M, d)
        Of all samples up to each look.
    box, directions : arrays (M, d) and (M, B, d)
        Bets on ±x_j and ±(CJ̃x)_i.
    """

    number: int
    started: int
    delta: float
    vector: FloatArray
    kernel: FloatArray
    weights: FloatArray
    centres: FloatArray
    counts: IntArray
    box: FloatArray
    directions: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and arrays."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> GapLag:
        """Return what `to_dict` has written."""
        return cls(**known)

    @property
    def level(self) -> float:
        """l."""
        return log((5 + 2 * self.directions.shape[1]) * self.counts.size / self.delta)

    def centred(self, matrix: FloatArray) -> FloatArray:
        """Return C times a matrix, or a vector."""
        found: FloatArray = matrix - self.weights @ matrix
        return found

    def look(self, problem: FeatureProblem, test: Kept, number: int) -> tuple[Verdict, dict[str, Any]]:
        """Certify what the samples up to a look allow; the second is what others need to come to the same verdict."""
        if not np.array_equal(test.counts[0], self.counts[number]):
            raise ValueError("a test has other counts than those that were fixed")
        gamma, limit = problem.continuation, float(problem.value_limits[0])
        means, kernel = test.step(0, self.vector)
        response = response_of(kernel, gamma)
        shift = response @ means - self.vector
        squares = _squares(problem, test, self, shift)
        seen = Seen(response, shift, np.abs(kernel - self.kernel), squares)
        z, box = noise(problem, self, number, seen)
        excess = Excess(problem, test, self, z, shift, everywhere(z, shift, 0.0 * z, gamma, limit))
        epsilon, rounds = excess.bound(np.sqrt(self.level / (2.0 * self.counts[number])))
        wide = response @ box
        slack = [max(0.0, float((sign * shift + wide).max())) + ROUNDING * (1 + limit) * limit for sign in (-1.0, 1.0)]
        vectors = np.stack([np.append(self.vector, slack[0]), np.append(self.vector, slack[1] + epsilon)])
        found = {"look": number, "counts": self.counts[number], "means": means, "kernel": kernel, "squares": squares}
        return Verdict(epsilon, 0, vectors[:, None], np.array([epsilon])), found | rounds


@dataclass(frozen=True, eq=False)
class Seen:
    """What the samples of a test say of its noise: J, ξ̂ - ξ̃, |K̂ - K̃| and mean_j (R' + γ(V̂ - κ) - c_j)²."""

    response: FloatArray
    shift: FloatArray
    moved: FloatArray
    squares: FloatArray


def noise(problem: FeatureProblem, lag: GapLag, number: int, seen: Seen) -> tuple[FloatArray, FloatArray]:
    """Return z and e by (2), (3) and (4), (d,) each."""
    gamma, n, level = problem.continuation, lag.counts[number].astype(np.float64), lag.level
    least, most = problem.remainder_limits
    low, high = function_limits(problem, lag.vector)
    ranges = most - least + gamma * (high - low)
    fixed = lag.centred(response_of(lag.kernel, gamma))
    sizes = np.abs(lag.centred(seen.response))
    apart = np.abs(lag.centred(seen.shift))
    box = (most - least + gamma * float(problem.value_limits[0])) * np.sqrt(level / (2.0 * n))
    z = sizes @ box
    for _ in range(_ALTERNATIONS):
        reach = ranges + gamma * float((apart + z).max())
        total = (np.sqrt(seen.squares) + gamma * float(z.max())) ** 2
        box = np.minimum(box, width(level, lag.box[number], total / n, reach / n))
        both = fixed**2 @ (total / n), (np.abs(fixed) * reach / n).max(axis=1)
        straight = width(level, lag.directions[number], *both).min(axis=0)
        with np.errstate(invalid="ignore"):
            bent = straight + gamma * sizes @ (seen.moved @ straight)
        before, z = z, np.fmin(z, np.minimum(sizes @ box, np.where(np.isfinite(bent), bent, np.inf)))
        if (z > _SAME * before).all():
            break
    return z, box


def response_of(kernel: FloatArray, gamma: float) -> FloatArray:
    """Return (I - γK)⁻¹."""
    found: FloatArray = np.asarray(np.linalg.inv(np.eye(len(kernel)) - gamma * kernel), np.float64)
    return found


def function_limits(problem: FeatureProblem, vector: FloatArray) -> tuple[float, float]:
    """Return limits of f(·, ξ)."""
    assert problem.best_limits is not None
    low, high = problem.best_limits
    return float(vector.min()) + low, float(vector.max()) + high


def everywhere(z: FloatArray, shift: FloatArray, bounds: FloatArray, gamma: float, limit: float) -> float:
    """Return ε of (7)."""
    other = float((shift + z + gamma * bounds).max() + (z - shift).max())
    return max(gamma * float(bounds.max()), other, 0.0) + ROUNDING * (1.0 + limit) * limit


def _squares(problem: FeatureProblem, test: Kept, lag: GapLag, shift: FloatArray) -> FloatArray:
    """Return mean_j (R' + γ(V̂ - κ)(S') - c_j)², (d,)."""
    gamma, moved = problem.continuation, lag.vector + lag.centred(shift)
    outcomes = test.rewards - lag.centres[test.place]
    for part, choices in test.blocks(0):
        rows = choices.greedy(lag.vector)
        outcomes[part] += gamma * (choices.known[rows] + choices.features[rows] @ moved)
    return test.means(0, outcomes**2)


class Excess:
    """By how much actions may beat the policy at the sampled next states, and what that adds up to: (6) and (7).

    At a state 𝓗 needs max_a{U + γφ_aᵀt} = γφ_πᵀt + max(0, max_a{U + γbᵀt}). Pairs for which U + γbᵀt ≤ 0 for all t in
    [0, Ω]^d, bᵀt ≤ Ω·Σb⁺ = Ω|b|₁/2, never count: only the others are kept, fewer as Ω shrinks.
    """

    def __init__(
        self, problem: FeatureProblem, test: Kept, lag: GapLag, z: FloatArray, shift: FloatArray, most: float
    ) -> None:
        self.gamma, self.limit = problem.continuation, float(problem.value_limits[0])
        self.z, self.shift, self.counts = z, shift, test.counts[0]
        self.start = min(self.limit, self.limit * most)
        self.kernel = np.zeros((len(z), len(z)))
        rounding = ROUNDING * (1.0 + self.limit)
        vector, kept = lag.vector + shift, list[tuple[csr_array, FloatArray, IntArray, FloatArray]]()
        for part, choices in test.blocks(0) if self.start < _HOPELESS * self.limit else ():
            state = choices.place // problem.actions
            rows = choices.greedy(lag.vector)
            own = choices.features[rows]
            self.kernel += added(test.place[part], own, len(z))
            value = choices.known + choices.features @ vector
            gain = value - value[rows][state]
            # |b|₁ ≤ 2 and |b|ᵀz ≤ 2 max z: most pairs are out without their b.
            close = np.flatnonzero(gain + 2.0 * float(z.max()) + self.gamma * self.start + rounding > 0)
            close = close[close != rows[state[close]]]
            b = csr_array(choices.features[close] - own[state[close]])
            sizes = abs(b)
            upper = gain[close] + sizes @ z + rounding
            total = np.asarray(sizes.sum(axis=1))
            counts = upper + 0.5 * self.gamma * self.start * total > 0
            kept.append((b[np.flatnonzero(counts)], upper[counts], part.start + state[close[counts]], total[counts]))
        self.kernel /= np.maximum(self.counts, 1)[:, None]
        self.differences = csr_array(vstack([each[0] for each in kept])) if kept else csr_array((0, len(z)))
        self.upper = np.concatenate([np.zeros(0), *(each[1] for each in kept)])
        self._sample = np.concatenate([np.zeros(0, np.int64), *(each[2] for each in kept)])
        self._sizes = np.concatenate([np.zeros(0), *(each[3] for each in kept)])
        self._places = test.place
        self._index()

    def _index(self) -> None:
        """Know which pairs belong to which samples."""
        self._first = np.flatnonzero(np.diff(self._sample, prepend=-1))
        self._owner = np.repeat(np.arange(len(self._first)), np.diff(np.append(self._first, len(self._sample))))
        self._place = self._places[self._sample[self._first]]

    def _narrow(self, omega: float) -> None:
        """Forget pairs that do not count if ω ≤ Ω."""
        rows = np.flatnonzero(self.upper + 0.5 * self.gamma * omega * self._sizes > 0)
        if len(rows) < 0.8 * len(self.upper):
            self.differences, self.upper = self.differences[rows], self.upper[rows]
            self._sample, self._sizes = self._sample[rows], self._sizes[rows]
            self._index()

    def propagated(self, bounds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean_j max_a{U + γφ_aᵀt}, and U and K̂ of the maximisers that it is made of."""
        totals, kernel = np.zeros(len(bounds)), self.kernel
        if len(self._first):
            gains = self.upper + self.gamma * (self.differences @ bounds)
            best = np.maximum.reduceat(gains, self._first)
            better = best > 0
            row = np.flatnonzero(gains == best[self._owner])
            row = row[np.flatnonzero(np.diff(self._owner[row], prepend=-1))][better]
            place = self._place[better]
            n = np.maximum(self.counts, 1)
            totals = np.bincount(place, self.upper[row], len(bounds)) / n
            kernel = kernel + added(place, self.differences[row], len(bounds)) / n[:, None]
        return totals + self.gamma * (kernel @ bounds), totals, kernel

    def super_solution(self, omega: float, deviations: FloatArray, begin: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return t̄ with 𝓗t̄ ≤ t̄, and mean_j max_a{U + γφ_aᵀt̄}: Newton's method, and its residual is added."""
        bounds = begin
        for _ in range(_NEWTON_STEPS):
            _, totals, kernel = self.propagated(np.clip(bounds, 0.0, omega))
            new = response_of(kernel, self.gamma) @ (totals + omega * deviations)
            moved, bounds = float(np.abs(new - bounds).max()), new
            if moved <= _SETTLED * omega:
                break
        bounds = np.clip(bounds, 0.0, omega)
        residual = float((self.propagated(bounds)[0] + omega * deviations - bounds)[bounds < omega].max(initial=0.0))
        bounds = np.minimum(bounds + (residual + ROUNDING) * self.limit, omega)
        reached, _, _ = self.propagated(bounds)
        if ((reached + omega * deviations > bounds) & (bounds < omega)).any():  # never assumed
            bounds = np.full(len(bounds), omega)
            reached, _, _ = self.propagated(bounds)
        return bounds, reached

    def bound(self, deviations: FloatArray) -> tuple[float, dict[str, Any]]:
        """Alternate between (6) and (7); return ε, with Ω, t̄ and mean_j max_a{U + γφ_aᵀt̄} of all rounds."""
        omega, epsilon, found = self.start, self.start, list[tuple[float, FloatArray, FloatArray]]()
        bounds = np.zeros(len(self.z))
        for _ in range(_ROUNDS if self.start < _HOPELESS * self.limit else 0):
            self._narrow(omega)
            bounds, reached = self.super_solution(omega, deviations, bounds)
            epsilon = everywhere(self.z, self.shift, bounds, self.gamma, self.limit)
            found.append((omega, bounds, reached))
            if epsilon > _WORTH * omega:
                break
            omega = epsilon
        epsilon = min(epsilon, omega)
        both = np.array([each[1:] for each in found]).reshape(-1, 2, len(self.z))
        return epsilon, {"omegas": np.array([each[0] for each in found]), "bounds": both[:, 0], "reached": both[:, 1]}
