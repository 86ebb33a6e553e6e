"""What the samples since a lag say of the kernel along the one path that matters: for Theorem UD.

*Setting.* Letters are those of `theorem_ud`. For a batch the planned counts n_k fix q_k = n(Σ_k n_k φ_kφ_kᵀ)⁻¹φ_k, n =
Σ_k n_k, so that Σ_k n_k q_kφ_kᵀ = nI. Batches that do not come in full, or whose plan does not determine q, do not
count: that is no matter of their outcomes. Sums over the samples that count: m̃ᵀ = (1/n)Σ 1{S'}qᵀ (S, d), n their
number. occ ≥ 0 are the discounted visits of one policy, the optimal one, from one state: unknown, but constants; v =
Σ occ_k φ_k. A lag fixes a matrix Γ0 > 0, a number a > 0, a few sizes a_m that are multiples of a, and a share δ_L of δ.

**All functions.** With Q = Σqqᵀ and l = S log 2 + log 1/δ_L, but with probability δ_L, at all times and for all Z

    Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ (span Z/2) Σ occ_k w_k,    w_k = |[(l/a)I + (a/2)Γ0^-½QΓ0^-½]Γ0^½φ_k|/n.        (1)

*Proof.* For f ∈ {-1,1}^S the noise of f(S') is sub-Gaussian with constant 1, so exp(a vᵀΣq(p f - f(S'))/|v|_Γ0 -
a²vᵀQv/(2|v|²_Γ0)) is a supermartingale. Union over f, and Ville's inequality: but with probability δ_L, vᵀ(m - m̃)ᵀf ≤
|[(l/a)I + (a/2)Γ0^-½QΓ0^-½]Γ0^½v|/n ≤ Σ occ_k w_k, m being the truth, since Σqφᵀ = nI. The convex hull of {-1,1}^S is
the cube, and rows of p and φᵀm̃ᵀ both sum to 1. ∎

**One state.** Most of S log 2 is paid in vain where Z is large at a few states only, and so it is: what may be lost is
lost where it is doubtful what to do. For every size a_m a batch counts by f = min(1, CAUTION/(a_m max_k
|q_k|_{Γ0⁻¹})), which is known before it. With m̃_mᵀ = (1/n_m)Σ f·1{S'}qᵀ, n_m = Σf, x_k = a_m f|q_k|_{Γ0⁻¹}, ψ of
`theorem_i`, N_k(s) how often k has led to s, Q_s = Σ_k ψ(x_k)f²N_k(s)q_kq_kᵀ (batch by batch), M sizes and l' =
log(S·M/δ_L), but with probability δ_L, at all times, for all s and all m

    Σ occ_k (p_k(s) - φ_kᵀm̃_m(s)) ≤ Σ occ_k |[(l'/a_m)I + a_mΓ0^-½Q_sΓ0^-½]Γ0^½φ_k|/n_m,                      (2)
    w_k^s = |[(l'/a_m)I + a_mΓ0^-½Q_sΓ0^-½]Γ0^½φ_k|/n_m + φ_kᵀ(m̃_m - m̃)(s)        for the best m of each s.

*Proof.* Lemma E (`theorem_i`) for X = 1{S' = s}, the centre 0, R = 1 and τ = a_m f qᵀv/|v|_Γ0, which is at most x_k
(Cauchy and Schwarz): -Στ(X - p(s)) = a_m n_m vᵀ(m - m̃_m)(s)/|v|_Γ0, and Σψτ²X² ≤ a_m²vᵀQ_sv/|v|²_Γ0. Union over s and
m, and Ville's inequality. As for (1), with y = Γ0^½v: vᵀ(m - m̃_m)(s) ≤ |y|(l'/a_m + a_m yᵀΓ0^-½Q_sΓ0^-½y/|y|²)/n_m. ∎

**Together.** Z = min(Z, t) + Σ_s (Z(s) - t)⁺1_s for any t, so

    Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ Σ occ_k W_k(Z),    W_k(Z) = w_k(t - min Z)/2 + Σ_s (Z(s) - t)⁺w_k^s;           (3)

t may be any function of Z, and t = max Z is (1) alone. It is one t for all k: (1) and (2) hold as sums along occ only.
Each of them has one half of the share; (1) has all of it where there are no sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.dense.bets import Snapshot
from bestpolicy.stopping.dense.theorem_i import above_psi

SPIKES = (1.0, 2.0, 4.0)  # a_m over a
CAUTION = 0.6  # what x_k is kept below
_WORST_CONDITION = 1e5  # so that Σqφᵀ is nI but for what the margin of w covers
_ENTRIES = 4_000_000  # of S·(S·A + pairs)·d² up to which single states are looked at
_ROOM = 1 + 1e-8


@dataclass(frozen=True, eq=False)
class Doubt:
    """How wrong the kernel may be: W_k(Z) of (3).

    Attributes
    ----------
    widths : array (S, A)
        w_k.
    spikes : array (S, S, A), optional
        w_k^s, with s first.
    """

    widths: FloatArray
    spikes: FloatArray | None = None

    def of(self, values: FloatArray) -> FloatArray:
        """W_k(Z) of functions (I, S), (I, S, A)."""
        low, level = values.min(axis=1), values.max(axis=1)
        if self.spikes is None:
            plain: FloatArray = self.widths * ((level - low) / 2)[:, None, None]
            return plain
        width, means = self._means
        order = np.argsort(-values, axis=1, kind="stable")
        # The higher t the more by (1), the lower the more by (2): where both change by the same, on the average.
        inside = (np.cumsum(means[order], axis=1) <= width / 2).sum(axis=1)
        ordered = np.take_along_axis(values, order, axis=1)
        level = np.take_along_axis(ordered, np.minimum(inside, values.shape[1] - 1)[:, None], axis=1)[:, 0]
        above = np.clip(values - level[:, None], 0.0, None)
        found: FloatArray = self.widths * ((level - low) / 2)[:, None, None]
        return found + np.tensordot(above, self.spikes, axes=1)

    @cached_property
    def _means(self) -> tuple[float, FloatArray]:
        """w_k and w_k^s (S,), on the average over the pairs."""
        assert self.spikes is not None
        return float(self.widths.mean()), self.spikes.mean(axis=(1, 2))


class Kernel:
    """What all batches since a lag say of the kernel, whatever the policy: sums, before they are divided.

    Parameters
    ----------
    states : int
    sampled : array (K, d)
    gamma : array (d, d)
        Γ0.
    sizes : array (M,)
        a_m; none if single states are not looked at.

    Attributes
    ----------
    count, sums, square
        n, nm̃ (S, d) and Q (d, d).
    counts, own_sums, squares
        n_m, n_m m̃_m and Q_s of every size, (M,), (M, S, d) and (M, S, d, d).
    """

    def __init__(self, states: int, sampled: FloatArray, gamma: FloatArray, sizes: FloatArray) -> None:
        dimension, number = sampled.shape[1], len(sizes)
        self.sampled, self.gamma, self.sizes = sampled, gamma, sizes
        self.count, self.sums, self.square = 0.0, np.zeros((states, dimension)), np.zeros((dimension, dimension))
        self.counts, self.own_sums = np.zeros(number), np.zeros((number, states, dimension))
        self.squares = np.zeros((number, states, dimension, dimension))

    def enter(self, snapshot: Snapshot, tally: Tally) -> None:
        """Count a batch, if it came in full and its plan determines q."""
        counts = snapshot.counts[0]
        gram = (self.sampled.T * counts) @ self.sampled
        values = np.linalg.eigvalsh(gram)
        if not np.array_equal(tally.pulls[0], counts) or not values[0] * _WORST_CONDITION > values[-1]:
            return
        weights = int(counts.sum()) * np.linalg.solve(gram, self.sampled.T).T
        row, state = np.divmod(tally.cells, tally.shape[2])
        cells = csr_array((tally.counts.astype(np.float64), (state, row)), shape=(len(self.sums), len(weights)))
        self.add(weights, counts, cells)

    def add(self, weights: FloatArray, counts: IntArray | FloatArray, cells: Any) -> None:
        """Count q (K, d), how often each pair was drawn (K,), and how often it has led to each state, (S, K)."""
        self.sums += cells @ weights
        self.square += (weights.T * counts) @ weights
        self.count += float(counts.sum())
        if not len(self.sizes):
            return
        used = counts > 0
        weights, led = weights[used], cells.toarray()[:, used]
        lengths = np.sqrt(((weights @ roots(self.gamma)[1]) ** 2).sum(axis=1)) * _ROOM
        products = (weights[:, :, None] * weights[:, None, :]).reshape(len(weights), -1)
        for place, size in enumerate(self.sizes):
            factor = min(1.0, CAUTION / (size * float(lengths.max())))
            self.counts[place] += factor * float(counts.sum())
            self.own_sums[place] += factor * (led @ weights)
            costs = factor**2 * above_psi(size * factor * lengths)
            self.squares[place] += ((led * costs) @ products).reshape(self.squares.shape[1:])

    def doubt(self, problem: Problem, bet: float, log_share: float) -> Doubt:
        """How wrong m̃ may be but with probability exp(log_share), for a."""
        root, inverse = roots(self.gamma)
        identity, flat = np.eye(len(root)), problem.features.reshape(-1, len(root))
        log_share = log_share - (log(2) if len(self.sizes) else 0.0)  # of (1) and of (2)
        nats, shape = problem.states * log(2) - log_share, problem.mask.shape
        rows = flat @ root @ (nats / bet * identity + bet / 2 * (inverse @ self.square @ inverse)) / self.count
        widths = np.sqrt((rows**2).sum(axis=1)).reshape(shape) * _ROOM
        if not len(self.sizes):
            return Doubt(widths)
        nats, law = log(problem.states * len(self.sizes)) - log_share, self.sums / self.count
        best, least = np.zeros((problem.states, *shape)), np.full(problem.states, inf)
        for size, count, sums, squares in zip(self.sizes, self.counts, self.own_sums, self.squares, strict=True):
            inner = nats / size * identity + size * (inverse @ squares @ inverse)  # (S, d, d)
            found = np.sqrt(((flat @ root @ inner) ** 2).sum(axis=2)) / count * _ROOM  # (S, S·A)
            found = (found + (sums / count - law) @ flat.T).reshape(best.shape)
            means = steady(found.mean(axis=(1, 2)))
            better = means < least
            best[better], least[better] = found[better], means[better]
        return Doubt(widths, best)


def with_spikes(problem: Problem, pairs: int) -> bool:
    """Whether looks at single states take little time."""
    return problem.states * (problem.mask.size + pairs) * problem.dimension**2 <= _ENTRIES


def roots(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Symmetric roots of a positive definite matrix and of its inverse."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T


__all__ = ["CAUTION", "SPIKES", "Doubt", "Kernel", "roots", "with_spikes"]
