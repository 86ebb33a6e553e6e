"""How wrong the kernel of Theorem UD may be along the one path that matters, recomputed.

Fixed by the lag: Γ0 > 0, a > 0, sizes a_m = a·(multiples), perhaps none. Fixed before a batch, from the counts n_k
that were planned: q_k = n(Σn_kφ_kφ_kᵀ)⁻¹φ_k, used where the batch came in full; f_m = min(1, 0.6/(a_m
max|Γ0^-½q_k|)). Sums: m̃ᵀ = (1/n)Σ1{s'}qᵀ, Q = Σqqᵀ; m̃_mᵀ = (1/n_m)Σf_m1{s'}qᵀ, n_m = Σf_m, Q_s =
Σψ(x_k)f_m²N_k(s)q_kq_kᵀ at x_k = a_mf_m|Γ0^-½q_k|. For the visits occ of one policy, with probability at least 1 - δ_L
for each line (which have half of the share each, or the first one all of it if there are no sizes), at all times,

    Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ ½ span(Z) Σ occ_k w_k for all Z,    w_k = |[(l/a)I + (a/2)Γ0^-½QΓ0^-½]Γ0^½φ_k|/n,
    Σ occ_k (p_k(s) - φ_kᵀm̃_m(s)) ≤ Σ occ_k |[(l'/a_m)I + a_mΓ0^-½Q_sΓ0^-½]Γ0^½φ_k|/n_m for all s and m,

l = S log 2 + log 1/δ_L, l' = log SM/δ_L. (Hoeffding's inequality for f ∈ {-1,1}^S; Lemma E for 1{s'=s} around 0;
Ville's inequality for the direction Σ occ_k φ_k; Cauchy and Schwarz.) What Z has above a level is bounded by the
second, what it has below by the first. Any level will do; the one that costs least on the average is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from bestpolicy.verification.intersection import Proof
from bestpolicy.verification.reading import Floats, Rejected

_WORST = 1e5  # condition of the counts of a batch that counts
_CAUTION = 0.6
_MOST_SIZES = 8
_ROOM = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class Doubt:
    """m̃ (S, d), w_k (S, A), and bounds (S, S, A) on what is expected of each state in excess of m̃, or none."""

    law: Floats
    widths: Floats
    spikes: Floats | None

    def at(self, values: Floats) -> Floats:
        """A bound, along the path, on (p_k - φ_kᵀm̃ᵀ)Z, (S, A)."""
        if self.spikes is None:
            plain: Floats = self.widths * (np.ptp(values) / 2)
            return plain
        above = np.maximum(values[None, :] - values[:, None], 0.0)  # by level
        cost = (values - values.min()) / 2 * self.widths.mean() + above @ self.spikes.mean(axis=(1, 2))
        level = int(cost.argmin())
        below = self.widths * ((values[level] - values.min()) / 2)
        found: Floats = below + np.einsum("s,sta->ta", above[level], self.spikes)
        return found


def read_doubt(read: Proof, gamma: Floats, share: float) -> Doubt:
    """What the batches say, with `share` of the policy's δ'."""
    rows, features = read.model.rows, read.model.features
    states, dimension = len(features), rows.shape[1]
    bet, multiples = read.lag.number("bet", 1e-300, 1e300), np.zeros(0)
    if read.lag.has("spikes"):
        multiples = read.lag.array("spikes", "f", (None,))
        if not 0 < len(multiples) <= _MOST_SIZES or not ((multiples > 1e-3) & (multiples < 1e3)).all():
            raise Rejected("sizes of bets on single states that are none")
        work = states * len(multiples) * dimension**2 * (len(read.batches) * len(rows) + features.shape[1] * states)
        read.case.budget.work(4 * work, "its kernel")
        read.case.budget.hold(16 * len(multiples) * states * dimension**2 + 24 * states * features.size, "its kernel")
    values, vectors = np.linalg.eigh(gamma)
    root, inverse = vectors @ np.diag(np.sqrt(values)) @ vectors.T, vectors @ np.diag(1 / np.sqrt(values)) @ vectors.T
    sizes = bet * multiples
    count, sums, square = 0.0, np.zeros((states, dimension)), np.zeros((dimension, dimension))
    own_count, own_sums = np.zeros(len(sizes)), np.zeros((len(sizes), states, dimension))
    squares = np.zeros((len(sizes), states, dimension, dimension))
    for batch in read.batches:
        planned = batch.planned[0].astype(np.float64)
        gram = rows.T @ (planned[:, None] * rows)
        eigenvalues = np.linalg.eigvalsh(gram)
        if not np.array_equal(batch.pulls[0], planned) or not eigenvalues[0] * _WORST > eigenvalues[-1]:
            continue
        q = planned.sum() * np.linalg.solve(gram, rows.T).T
        led, used = batch.counts[0].T.astype(np.float64), planned > 0
        sums += led @ q
        square += q.T @ (planned[:, None] * q)
        count += planned.sum()
        lengths = np.linalg.norm(q[used] @ inverse, axis=1) * _ROOM
        for place, size in enumerate(sizes):
            factor = min(1.0, _CAUTION / (size * lengths.max()))
            x = size * factor * lengths
            cost = factor**2 * (0.5 + x / 3 + x**2 / (4 * (1 - x)))
            own_count[place] += factor * planned.sum()
            own_sums[place] += factor * (led @ q)
            for state in np.flatnonzero(led[:, used].any(axis=1)):
                squares[place, state] += q[used].T @ ((cost * led[state, used])[:, None] * q[used])
    if not count:
        raise Rejected("no batch tells of the kernel")
    log_share = read.log_share + log(share) - (log(2) if len(sizes) else 0.0)
    inner = (states * log(2) - log_share) / bet * np.eye(dimension) + bet / 2 * inverse @ square @ inverse
    widths: Floats = np.linalg.norm(features @ (root @ inner), axis=2) / count * _ROOM
    law = sums / count
    if not len(sizes):
        return Doubt(law, widths, None)
    nats, spikes = log(states * len(sizes)) - log_share, np.full((states, *widths.shape), np.inf)
    for size, number, mine, forms in zip(sizes, own_count, own_sums, squares, strict=True):
        for state in np.arange(states):
            inner = nats / size * np.eye(dimension) + size * inverse @ forms[state] @ inverse
            found = np.linalg.norm(features @ (root @ inner), axis=2) / number * _ROOM
            found = found + features @ (mine[state] / number - law[state])
            if found.mean() < spikes[state].mean():
                spikes[state] = found
    return Doubt(law, widths, spikes)
