"""What holds at all times with any predictable sampling: ellipsoids around estimates, bounds on variances.

Setting. F_i is the history, b_i ∈ R^D is known before sample i, η_i is its noise (mean zero given the
history), S_t = Σ_{i≤t} b_i η_i. Episodic problems concatenate the stages: D = dH, and b_i is non-zero only in
the block of its stage.

**Lemma S** (sub-Gaussian). Let E[exp(l η_i) | F_{i-1}] ≤ exp(l² s_i²/2) for all l, Σ_t = Σ s_i² b_i b_iᵀ, Γ >
0 fixed beforehand. Then

    P( ∃t: ‖S_t‖²_{(Γ+Σ_t)⁻¹} > 2 log(1/δ) + log det(I + Γ⁻¹Σ_t) ) ≤ δ.

*Proof.* exp(uᵀS_t - uᵀΣ_t u/2) is a supermartingale for every u; so is its average over u ~ N(0, Γ⁻¹), which
equals det(I + Γ⁻¹Σ_t)^{-1/2} exp(‖S_t‖²_{(Γ+Σ_t)⁻¹}/2); Ville's inequality.

**Lemma B** (Bernstein). Let |η_i| ≤ Λ_i, Var(η_i | F_{i-1}) = v_i, Σ_t = Σ v_i b_i b_iᵀ, β ≥ Λ_i ‖b_i‖_{Γ⁻¹}
always, R > 0 fixed beforehand, κ = g(Rβ) with g(a) = 2(eᵃ - 1 - a)/a². With probability at least 1-δ, at all
t with √(2 log(2/δ) + log det(I + Γ⁻¹Σ_t)) + √(2D) ≤ R,

    ‖S_t‖²_{(Γ+Σ_t)⁻¹} ≤ κ (2 log(2/δ) + log det(I + Γ⁻¹Σ_t)).

*Proof.* For ‖u‖_Γ ≤ R, |uᵀb_i|Λ_i ≤ Rβ, so E exp(uᵀb_i η_i) ≤ exp(κ v_i (uᵀb_i)²/2) (Bennett; g increases):
exp(uᵀS_t - κuᵀΣ_t u/2) is a supermartingale. Average it over N(0, (κΓ)⁻¹) truncated to ‖u‖_Γ ≤ R: the average
is at least det(I + Γ⁻¹Σ)^{-1/2} exp(‖S‖²_{(Γ+Σ)⁻¹}/2κ) × (posterior mass of the ball), the posterior being
N(m, (κ(Γ+Σ))⁻¹) with ‖m‖_Γ ≤ ‖S‖_{(Γ+Σ)⁻¹}/κ and a centred part of E‖·‖²_Γ ≤ D/κ. At the boundary the side
condition makes the mass at least 1/2 (Chebyshev, κ ≥ 1), and the average is even and convex along rays, hence
larger beyond the boundary; Ville.

Both stay true when Σ_t is replaced by any Σ̄ ≥ Σ_t and Λ by anything larger (left side falls, right side
grows; the side condition is tested with Σ̄). Hence x = G⁻¹S_t satisfies |vᵀx| ≤ √(vᵀMv) for *all* v at once,
M = radius² · G⁻¹(Γ+Σ̄)G⁻¹.

**Side condition.** R is fixed through a *capacity*: the largest log det that the lemma is to serve, R = √(2
log(2/δ) + capacity) + √(2D).

**Scales.** How large Σ_t will be is not known beforehand, so the lemmas are used for Γ_i = 4ⁱΓ_0, i = 0, 1,
…, with confidence q_i δ each, Σ q_i = 1: nine tenths spread evenly over the first scales, the rest falling
off. At any time, and for each direction, the best scale counts.

**Rounding.** Eigenvalues of Γ⁻¹Σ̄ are raised by what they may have lost, 8dε·cond(Γ)·λ_max. The inverse that was
computed, G', leaves I - G'G = R, so ‖G⁻¹v‖ ≤ ‖G'v‖(1 + δ') with δ' = ‖R‖/(1 - ‖R‖), and in the norm of H = Γ_i + Σ̄
the relative error is √cond(H)·δ', where cond(H) ≤ cond(Γ)(4ⁱ + λ_max)/(4ⁱ + λ_min): widths grow by that much. The
product G'HG' and widths measured with it are off by less than (6d+10)ε‖G'‖²‖H‖ along unit vectors, which is added to
its diagonal.

**Lemma V.** X_1, X_2, … i.i.d. in an interval of length Λ with variance v; V̂_n the sample variance (n-1 in
the denominator). For n_0 ≥ 2, m = ⌊n_0/2⌋ and l > 0, with probability at least 1 - e^{-l}, for *all* n ≥ n_0
together,

    v ≤ V̂_n + 2b√v,  that is  √v ≤ b + √(V̂_n + b²),      b = (Λ/2)√(l/m).

*Proof.* Z = (X-X')²/2 has mean v, lies in [0, Λ²/2], so E e^{-λZ} ≤ 1 - λv + λ²E[Z²]/2 ≤ exp(-λv + λ²Λ²v/4).
V̂_{n_0} is the average of (X_i-X_j)²/2 over pairs, i.e. the average over all orders of the mean of m disjoint
pairs; by Jensen E exp(-mλV̂_{n_0}) ≤ exp(-mλv + mλ²Λ²v/4). A U-statistic is a reverse martingale, so
exp(-mλV̂_n), n ≥ n_0, is a reverse submartingale and Doob's maximal inequality gives the same bound for the
smallest of all later V̂_n as for V̂_{n_0}. Markov with λ = (2/Λ)√(l/(mv)).

(For one fixed n the result is the step before last of Maurer and Pontil 2009, Theorem 10, whose final form √v
≤ √V̂ + 2b is weaker.)

The n-th sample of a pair is i.i.d. whatever the sampling rule. Taking the lemma at n_1 < n_2 < … (ratio 5/4)
with confidence δ/(K i(i+1)) each, K the number of (stage, pair)s that may be sampled, all bounds hold at all
times with probability at least 1-δ.

V* is unknown; the sample standard deviation is a seminorm, so that of R + γV*(S') is at most that of R +
γV̂(S') plus γ times that of V* - V̂, which the caller bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.samples import Tally

_EVEN = 14  # scales that share nine tenths of the confidence: they span a factor 4¹³ in samples × variance
_SCALES = 32
_KEPT = 2  # scales worth measuring directions with; the others are far off
_FUNCTIONS = 4096  # relative error, in ε, of logarithms, of g, and of sums of weights over thousands of batches


def _shares() -> FloatArray:
    index = np.arange(_SCALES)
    tail = np.maximum(index - _EVEN + 1, 1)
    shares: FloatArray = np.where(index < _EVEN, 0.9 / _EVEN, 0.1 / (tail * (tail + 1)))
    return shares


SHARES = _shares()
FACTORS = np.power(4.0, np.arange(_SCALES, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Prior:
    """What has to be fixed before the samples that it is used on.

    Attributes
    ----------
    base : array (stages, d, d)
        Γ_0, positive definite.
    capacity : float
        Largest log det(I + Γ⁻¹Σ) at which Lemma B is to be used.
    largest : array (stages,)
        Supremum of ‖b‖ in Γ_0⁻¹ over all pairs that may be sampled and all weights that may be used.
    shares : array (scales,)
        q_i, with sum at most 1.
    """

    base: FloatArray
    capacity: float
    largest: FloatArray
    shares: FloatArray = field(default_factory=lambda: SHARES)

    @property
    def factors(self) -> FloatArray:
        """4ⁱ, (scales,)."""
        factors: FloatArray = FACTORS[: len(self.shares)]
        return factors

    def around(self, distance: float) -> Prior:
        """Return the prior for features that are up to `distance` away from those it was made for."""
        if distance == 0:
            return self
        least = np.sqrt(np.linalg.eigvalsh(self.base)[:, 0])
        return replace(self, largest=self.largest + (1 + 1e-6) * distance / least)

    @property
    def total_dimension(self) -> int:
        """D: d times the number of stages."""
        stages, dimension, _ = self.base.shape
        return int(stages * dimension)

    @cached_property
    def _inverse_root(self) -> FloatArray:
        """L⁻¹ of Γ_0 = LLᵀ."""
        return np.linalg.inv(np.linalg.cholesky(self.base))

    def eigenvalues(self, spread: FloatArray) -> FloatArray:
        """Eigenvalues of Γ_0⁻¹Σ, (stages, d), for Σ (stages, d, d)."""
        root = self._inverse_root
        values = np.clip(np.linalg.eigvalsh(root @ spread @ root.swapaxes(1, 2)), 0.0, None)
        raised: FloatArray = values + self.accuracy * values.max()
        return raised

    @cached_property
    def conditions(self) -> FloatArray:
        """Condition number of Γ_0, (stages,)."""
        values = np.linalg.eigvalsh(self.base)
        least = np.maximum(values[:, 0] - 8 * values.shape[1] * EPS * values[:, -1], 0.0)
        with np.errstate(divide="ignore"):
            ratios: FloatArray = values[:, -1] / least
        return ratios

    @property
    def condition(self) -> float:
        """Condition number of Γ_0, the worst of all stages."""
        return float(self.conditions.max())

    @cached_property
    def accuracy(self) -> float:
        """Relative error of what is computed with Γ_0⁻¹."""
        return float(8 * self.base.shape[1] * EPS * self.condition)

    def log_determinants(self, eigenvalues: FloatArray) -> FloatArray:
        """log det(I + Γ_i⁻¹Σ) of every scale, (scales,)."""
        total: FloatArray = np.log1p(eigenvalues[..., None] / self.factors).sum(axis=(0, 1))
        return total


def best_ratio(dimension: int, log_term: float) -> float:
    """The c that minimises (1+c)(2l + d log(1+1/c)): the best size of Γ relative to Σ."""
    grid = np.geomspace(0.02, 5.0, 200)
    cost = (1 + grid) * (2 * log_term + dimension * np.log1p(1 / grid))
    return float(grid[cost.argmin()])


def make_prior(
    information: FloatArray, features: FloatArray, *, first_rounds: float, least_variance: float, delta: float
) -> Prior:
    """Return the prior Γ_0 = c_0 · first_rounds · least_variance · Λ, from quantities known before any sample.

    Parameters
    ----------
    information : array (stages, d, d)
        Λ(ω) of the design that will roughly be followed.
    features : array (K, d)
        Features of all pairs that may be sampled; weights are at least 1.
    first_rounds, least_variance : float
        Number of rounds and variance of a sample from which on the bound is to be sharp.
    delta : float
        Confidence, for the choice of c_0.
    """
    dimension = information.shape[0] * information.shape[1]
    ratio = best_ratio(dimension, log(2 / (SHARES[0] * delta)))
    base = ratio * first_rounds * least_variance * information
    return Prior(base, dimension * log(1 + 2 / ratio), largest_norms(base, features))


def largest_norms(base: FloatArray, features: FloatArray) -> FloatArray:
    """max_k ‖φ_k‖ in Γ⁻¹ per stage, (stages,), for Γ (stages, d, d) and features (K, d)."""
    norms = np.einsum("kd,hde,ke->hk", features, np.linalg.inv(base), features, optimize=True)
    largest: FloatArray = np.sqrt(norms.max(axis=1))
    return largest


def sub_gaussian_ellipsoids(
    prior: Prior,
    gram_inverse: FloatArray,
    spread: FloatArray,
    log_count: float,
    delta: float,
    defect: float = 0.0,
    kept: int = _KEPT,
) -> FloatArray:
    """Matrices M of Lemma S for the most useful scales, (scales kept, stages, d, d).

    Parameters
    ----------
    prior : Prior
    gram_inverse : array (stages, d, d)
    spread : array (stages, d, d)
        Σ̄ ≥ Σ s_i² b_i b_iᵀ.
    log_count : float
        log of the number of noise sequences that share δ (0 for one).
    delta : float
    defect : float
        δ' of the inverse.
    kept : int
        How many scales; more where directions differ much.
    """
    eigenvalues = prior.eigenvalues(spread)
    radii = 2 * (np.log(1 / (prior.shares * delta)) + log_count) + prior.log_determinants(eigenvalues)
    return _shaped(prior, gram_inverse, spread, eigenvalues, radii, defect, kept)


def sub_gaussian_ellipsoids_by_stage(
    prior: Prior, gram_inverse: FloatArray, spread: FloatArray, log_count: float, delta: float, defect: float = 0.0
) -> FloatArray:
    """Matrices M of Lemma S for every stage by itself, as if there were no other, (scales kept, stages, d, d).

    The parameters are those of `sub_gaussian_ellipsoids`, and so are the results for each stage alone; but thousands
    of stages are done together.
    """
    stages, dimension, _ = prior.base.shape
    root, factors = prior._inverse_root, prior.factors
    accuracies = 8 * dimension * EPS * prior.conditions
    values = np.clip(np.linalg.eigvalsh(root @ spread @ root.swapaxes(1, 2)), 0.0, None)
    eigenvalues = values + (accuracies * values.max(axis=1))[:, None]
    log_determinants = np.log1p(eigenvalues[..., None] / factors).sum(axis=1)
    radii = 2 * (np.log(1 / (prior.shares * delta)) + log_count) + log_determinants
    volumes = np.log(radii) * dimension + np.log(factors + eigenvalues[..., None]).sum(axis=1)
    kept = np.argsort(volumes, axis=1)[:, :_KEPT]
    chosen, radii = factors[kept], np.take_along_axis(radii, kept, axis=1)
    most = eigenvalues.max(axis=1)
    least = np.maximum(eigenvalues.min(axis=1) - 2 * accuracies * most, 0.0)
    conditions = prior.conditions[:, None] * (chosen + most[:, None]) / (chosen + least[:, None])
    growth = (1 + np.sqrt(conditions) * defect) ** 2 * (1 + (_FUNCTIONS + dimension) * EPS)
    unit = (6 * dimension + 10) * EPS * (gram_inverse**2).sum(axis=(1, 2))
    ellipsoids = np.empty((kept.shape[1], stages, dimension, dimension))
    for position, ellipsoid in enumerate(ellipsoids):
        inner = chosen[:, position, None, None] * prior.base + spread
        ellipsoid[...] = gram_inverse @ inner @ gram_inverse
        np.einsum("hdd->hd", ellipsoid)[...] += (unit * np.sqrt((inner**2).sum(axis=(1, 2))))[:, None]
        ellipsoid *= (radii * growth)[:, position, None, None]
    return ellipsoids


def bernstein_ellipsoids(
    prior: Prior,
    gram_inverse: FloatArray,
    spread: FloatArray,
    ranges: FloatArray,
    delta: float,
    defect: float = 0.0,
    kept: int = _KEPT,
) -> FloatArray:
    """Matrices M of Lemma B for the most useful scales at which its side condition holds, (scales kept, stages, d, d).

    As for Lemma S, but that `spread` is Σ̄ ≥ Σ v_i b_i b_iᵀ, and `ranges` (stages,) bound |η| at each stage.
    """
    eigenvalues = prior.eigenvalues(spread)
    log_terms = np.log(2 / (prior.shares * delta))
    log_determinants = prior.log_determinants(eigenvalues)
    limits = np.sqrt(2 * log_terms + prior.capacity) + np.sqrt(2 * prior.total_dimension)
    largest = float((ranges * prior.largest).max()) * (1 + prior.accuracy)
    inflation = bennett(limits * largest / np.sqrt(prior.factors))
    radii = np.where(log_determinants <= prior.capacity, inflation * (2 * log_terms + log_determinants), np.inf)
    return _shaped(prior, gram_inverse, spread, eigenvalues, radii, defect, kept)


def bennett(exponents: FloatArray) -> FloatArray:
    """g(a) = 2(eᵃ - 1 - a)/a² ≥ 1, for a ≥ 0; inf where it overflows."""
    a = np.minimum(exponents, 500.0)
    small = a < 1e-2
    safe = np.where(small, 1.0, a)
    # 1 + a/3 + a²/12 + a³/60 + …: the last term is doubled to stay on the safe side.
    value = np.where(small, 1 + a / 3 + a**2 / 12 + a**3 / 30, 2 * (np.expm1(safe) - safe) / safe**2)
    return np.where(exponents < 500.0, value, np.inf)


def widths(metrics: FloatArray, vectors: FloatArray) -> FloatArray:
    """min over M of √(vᵀMv), (…, n), for metrics (m, …, d, d) and vectors (…, n, d); inf if there is no metric."""
    best = np.full(vectors.shape[:-1], np.inf)
    for metric in metrics:
        np.minimum(best, np.einsum("...d,...d->...", vectors @ metric, vectors), out=best)
    roots: FloatArray = np.sqrt(np.clip(best, 0.0, None))
    return roots


def staged_widths(metrics: FloatArray, vectors: FloatArray) -> FloatArray:
    """Widths of vectors (stages, …, d) in metrics (m, stages, d, d), (stages, …)."""
    flat = vectors.reshape(len(vectors), -1, vectors.shape[-1])
    return widths(metrics, flat).reshape(vectors.shape[:-1])


def _shaped(
    prior: Prior,
    gram_inverse: FloatArray,
    spread: FloatArray,
    eigenvalues: FloatArray,
    radii: FloatArray,
    defect: float,
    number: int,
) -> FloatArray:
    """radius² · G⁻¹(Γ_i + Σ)G⁻¹ for the scales with the smallest volume, not smaller for rounding."""
    volumes = np.log(radii) * prior.total_dimension + np.log(prior.factors + eigenvalues[..., None]).sum(axis=(0, 1))
    kept = np.argsort(volumes)[:number]
    kept = kept[np.isfinite(radii[kept])]
    factors = FACTORS[kept]
    most, least = eigenvalues.max(axis=1), eigenvalues.min(axis=1)
    least = np.maximum(least - 2 * prior.accuracy * most, 0.0)
    conditions = prior.condition * ((factors[:, None] + most) / (factors[:, None] + least)).max(axis=1)
    growth = (1 + np.sqrt(conditions) * defect) ** 2 * (1 + (_FUNCTIONS + prior.total_dimension) * EPS)
    inner = factors[:, None, None, None] * prior.base + spread
    shapes = gram_inverse @ inner @ gram_inverse
    unit = (6 * gram_inverse.shape[-1] + 10) * EPS * (gram_inverse**2).sum(axis=(1, 2))
    np.einsum("mhdd->mhd", shapes)[...] += (unit * np.sqrt((inner**2).sum(axis=(2, 3))))[:, :, None]
    ellipsoids: FloatArray = (radii[kept] * growth)[:, None, None, None] * shapes
    return ellipsoids


def _grid() -> IntArray:
    sizes = [2]
    while sizes[-1] < 10**17:
        sizes.append(max(sizes[-1] + 1, sizes[-1] * 5 // 4))
    return np.array(sizes, dtype=np.int64)


GRID = _grid()


def sample_variances(tally: Tally, values: FloatArray, continuation: float) -> FloatArray:
    """Sample variance of R + γV(S') at each stage and pair, (stages, K), not smaller for rounding; 0 where n < 2.

    Parameters
    ----------
    tally : Tally
    values : array (stages, S)
        V at the state that follows each stage.
    continuation : float
        γ.
    """
    pulls = np.maximum(tally.pulls, 1)
    counts = tally.next_counts.astype(np.float64)
    # Around the middle of all values: a large common level would drown the variance in rounding.
    lowest, highest = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    moved = continuation * (values - (lowest + highest) / 2)
    powers = np.stack([moved, moved**2], axis=2)
    sums = counts @ powers
    first = tally.reward_sums + sums[:, :, 0]
    second = tally.squared_rewards + 2 * (tally.next_rewards @ moved[:, :, None])[:, :, 0] + sums[:, :, 1]
    spread: FloatArray = np.clip(second - first**2 / pulls, 0.0, None)
    # Numbers in an interval of this length are squared, and their sums over S states and over the samples rounded:
    # three sums of at most n·length², each off by (S + 8)ε of that, over n - 1 ≥ n/2; and once more for the rewards'.
    # Sums of rewards that are all 0 or 1 are exact.
    length = 1 + continuation * np.ptp(values, axis=1)[:, None]
    added = np.where(tally.squared_rewards == tally.reward_sums, 0, pulls)
    room = (4 * (counts.shape[2] + 8) * length**2 + added) * EPS
    variances: FloatArray = spread / np.maximum(pulls - 1, 1) + np.where(tally.pulls > 1, 2 * room, 0.0)
    return variances


def deviation_terms(pulls: IntArray, ranges: FloatArray, delta: float) -> FloatArray:
    """b of Lemma V at each stage and pair, (stages, K); inf where n < 2.

    Parameters
    ----------
    pulls : int array (stages, K)
    ranges : array (stages,)
        Λ: length of the interval that R + γV*(S') lies in.
    delta : float
    """
    index = np.searchsorted(GRID, pulls, side="right")  # 1-based position of the last grid point ≤ n; 0 if n < 2
    start = GRID[np.maximum(index - 1, 0)]
    log_terms = np.log(pulls.size * np.maximum(index, 1) * (index + 1.0) / delta)
    terms = ranges[:, None] / 2 * np.sqrt(log_terms / (start // 2))
    return np.where(index > 0, terms, np.inf)


def variance_bounds(sample_deviations: FloatArray, terms: FloatArray, ranges: FloatArray) -> FloatArray:
    """v̄ ≥ Var(R + γV*(S')) at each stage and pair, (stages, K).

    Parameters
    ----------
    sample_deviations : array (stages, K)
        Bounds on the sample standard deviation of R + γV*(S').
    terms : array (stages, K)
        b of Lemma V.
    ranges : array (stages,)
        Λ; a variable in an interval of that length has variance at most Λ²/4.
    """
    finite = np.where(np.isfinite(terms), terms, 0.0)
    bound = (finite + np.sqrt(sample_deviations**2 + finite**2)) ** 2
    crude = np.broadcast_to(ranges[:, None] ** 2 / 4, bound.shape)
    return np.where(np.isfinite(terms), np.minimum(bound, crude), crude)
