"""How much a linear function of the next state may vary, if all that is known of it is an ellipsoid.

For a law l of the next state S', with direction ψ(s) at state s, and an unknown x with |vᵀx| ≤ √(vᵀMv) for all v,

    sup_x Var_l(ψ(S')ᵀx) = λ_max(B),        B = RᵀCR,  C = Cov_l(ψ(S')),  M = RRᵀ.

There is one law per sampled pair, and one M per round of a look. Eigenproblems of all pairs are what a look would
spend its time on from d = 20 or so on. A variance only needs a bound, so where there is much to do the largest
eigenvalue is bounded from what matrix products say about all pairs together.

**Lemma E** (two moments and a reference). Let B and B̄ be positive semi-definite on a space of n dimensions, λ̄ =
λ_max(B̄), c ≥ 0 any number, and ⟨·,·⟩ the inner product of the parts without trace, ⟨B, B̄⟩ = tr(BB̄) - tr(B)tr(B̄)/n.
Then

    λ_max(B) ≤ tr(B)/n + c(λ̄ - tr(B̄)/n) + √((n-1)/n) √(⟨B, B⟩ - 2c⟨B, B̄⟩ + c²⟨B̄, B̄⟩).

*Proof.* B = cB̄ + eI + Z with e = (tr B - c tr B̄)/n, so that Z has trace 0, and ‖Z‖² (Frobenius) is what is under
the root. Eigenvalues z_1 ≥ … ≥ z_n of Z sum to 0, so z_1² = (z_2 + … + z_n)² ≤ (n-1)(‖Z‖² - z_1²), that is z_1 ≤
√((n-1)/n)‖Z‖. λ_max is subadditive. ∎ With a = λ̄ - tr(B̄)/n and κ² = (n-1)/n the right side is least at c = (⟨B, B̄⟩
- a·√(⟨B,B⟩⟨B̄,B̄⟩ - ⟨B,B̄⟩²)/√(κ²⟨B̄,B̄⟩ - a²))/⟨B̄, B̄⟩ (the last root exists, by the bound for B̄ with c = 0).

It is exact where B has one eigenvalue that is not 0, where all are equal, and where B is a multiple of B̄: for pairs
that lead to few states, for features that treat all directions alike, and for laws that resemble each other. B̄ is
that of all samples together. With c = 0 (Wolkowicz and Styan 1980), n may be the rank of B itself: a law on m states
has at most m - 1; and the bound is then at most tr(B), as tr(B²) ≤ tr(B)².

**Moments.** With g(s,t) = ψ(s)ᵀMψ(t), m = Σ_s l(s) g(s,·) and m̄ = Σ_t l(t)m(t),

    tr(B) = Σ l(s)g(s,s) - m̄,        tr(B²) = Σ l(s)l(t)g(s,t)² - 2Σ l(s)m(s)² + m̄²:

products of the laws with S×S matrices, cheap unless there are many more states than dimensions. If there are,
covariances are formed once for all rounds of a look.

**Rounding.** Let σ = tr(M) max‖ψ‖² ≥ g. Sums of up to S of products of d terms are off by less than ε₁ = (S + 8d +
32)ε σ where they are of the first order in g, and by less than 16ε₁σ where of the second; so λ̄, tr(B) get ε₁, and
what is under the root 16ε₁σ(1+c)²."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS

_CHUNK = 500_000  # entries at a time: they stay in the cache
_FEW = 1_000_000  # K·d³ up to which eigenproblems of all pairs of a stage are solved
_LARGEST_MULTIPLE = 10.0  # of the reference


class _Moments(NamedTuple):
    """What Lemma E needs of all pairs of a stage, (K,) each, and of the reference."""

    traces: FloatArray
    squares: FloatArray
    products: FloatArray  # tr(B·B̄)
    reference: FloatArray  # B̄ (d, d)


class NextStates:
    """Observed laws of the next state, seen through directions.

    Parameters
    ----------
    laws : array (stages, K, S)
        Rows sum to 1, or are 0 where a pair has no samples.
    directions : array (stages, S, d)
        ψ(s).
    pulls : int array (stages, K)
        Samples of each pair.
    known : (array (stages, K, d, d), array (stages,)), optional
        Covariances of ψ(S'), if they are known, and what their rounding errors are relative to, max‖ψ‖² or more.
    """

    def __init__(
        self,
        laws: FloatArray,
        directions: FloatArray,
        pulls: IntArray,
        known: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        self.laws, self.directions, self._pulls, self._known = laws, directions, pulls, known
        self._lengths = (directions**2).sum(axis=2).max(axis=1)
        if known is not None:
            self._lengths = np.maximum(self._lengths, known[1])
        states, dimension = directions.shape[1:]
        self._rank = max(1, min(dimension, states - 1))
        self._few = laws.shape[1] * dimension**3 <= _FEW
        # Covariances are formed once, products of laws with S×S matrices in every one of about four rounds.
        self._wide = (
            not self._few and known is None and 4 * states * (laws.shape[1] + dimension) < laws.shape[1] * dimension**2
        )

    def deviations(self, metrics: FloatArray) -> FloatArray:
        """Bounds on the standard deviation of ψ(S')ᵀx under each law, (stages, K), for metrics (stages, d, d)."""
        states, dimension = self.directions.shape[1:]
        sizes = np.trace(metrics, axis1=1, axis2=2) * self._lengths
        errors = (states + 8 * dimension + 32) * EPS * sizes
        largest = np.zeros(self.laws.shape[:2])
        if self._few:
            roots = square_roots(metrics)
            for some in _pieces(len(metrics), self.laws.shape[1] * dimension**2):
                shapes = roots[some, None].swapaxes(2, 3) @ self._covariances(some) @ roots[some, None]
                largest[some] = np.linalg.eigvalsh(shapes)[..., -1] + errors[some, None]
        else:
            for stage, metric in enumerate(metrics):
                if sizes[stage] > 0:
                    moments = self._from_states(stage, metric) if self._wide else self._from_covariances(stage, metric)
                    largest[stage] = self._bounded(stage, moments, float(errors[stage]), float(sizes[stage]))
        deviations: FloatArray = np.sqrt(np.clip(largest, 0.0, None))
        return deviations

    def _bounded(self, stage: int, moments: _Moments, error: float, size: float) -> FloatArray:
        """Lemma E for all pairs of a stage."""
        traces, squares, products, reference = moments
        dimensions = np.clip(self._support[stage] - 1, 1, self._rank)
        alone = _lemma(traces, dimensions, squares - traces**2 / dimensions, 0.0, 0.0, error, size)
        n = self._rank
        own, trace = float((reference**2).sum() - np.trace(reference) ** 2 / n), float(np.trace(reference))
        if not own > 0:
            return np.minimum(alone, traces + error)
        beyond = float(np.linalg.eigvalsh(reference)[-1]) - trace / n
        rest, inner = squares - traces**2 / n, products - traces * trace / n
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = beyond / np.sqrt((n - 1) / n * own - beyond**2)
            best = (inner - steep * np.sqrt(np.clip(rest * own - inner**2, 0.0, None))) / own
        # Any multiple that is not negative will do, so the errors of this one do not matter.
        multiples = np.clip(np.nan_to_num(best, nan=0.0, posinf=0.0, neginf=0.0), 0.0, _LARGEST_MULTIPLE)
        remaining = rest - 2 * multiples * inner + multiples**2 * own
        together = _lemma(traces, n, remaining, multiples * beyond, multiples, error, size)
        return np.minimum(np.minimum(alone, together), traces + error)

    def _from_states(self, stage: int, metric: FloatArray) -> _Moments:
        laws, rows = self.laws[stage], self.directions[stage]
        moved = rows @ metric
        inner = moved @ rows.T
        means = laws @ inner
        centres = (means * laws).sum(axis=1)
        traces = laws @ np.einsum("ss->s", inner) - centres
        squares = ((laws @ inner**2) * laws).sum(axis=1) - 2 * (laws * means**2).sum(axis=1) + centres**2
        root, pooled = square_roots(metric[None])[0], self._pooled[stage]
        around = metric @ pooled @ metric
        lengths = ((rows @ around) * rows).sum(axis=1)
        mean_rows = laws @ rows
        products = laws @ lengths - ((mean_rows @ around) * mean_rows).sum(axis=1)
        return _Moments(traces, squares, products, root.T @ pooled @ root)

    def _from_covariances(self, stage: int, metric: FloatArray) -> _Moments:
        root, covariances = square_roots(metric[None])[0], self._kept_covariances[stage]
        reference = root.T @ self._pooled[stage] @ root
        traces, squares, products = np.empty((3, len(covariances)))
        for some in _pieces(len(covariances), covariances.shape[1] ** 2):
            shapes = root.T @ covariances[some] @ root
            traces[some] = np.trace(shapes, axis1=1, axis2=2)
            squares[some] = np.einsum("kde,kde->k", shapes, shapes)
            products[some] = np.einsum("kde,de->k", shapes, reference)
        return _Moments(traces, squares, products, reference)

    @cached_property
    def _support(self) -> IntArray:
        """How many states each pair has led to, (stages, K)."""
        support: IntArray = np.count_nonzero(self.laws, axis=2)
        return support

    @cached_property
    def _pooled(self) -> FloatArray:
        """Covariance of ψ(S') over all samples of a stage, (stages, d, d)."""
        shares = self._pulls / np.maximum(self._pulls.sum(axis=1, keepdims=True), 1)
        pooled = (shares[:, None, :] @ self.laws)[:, 0]
        rows = self.directions - pooled[:, None, :] @ self.directions
        covariance: FloatArray = (rows * pooled[:, :, None]).swapaxes(1, 2) @ rows
        return covariance

    @cached_property
    def _kept_covariances(self) -> FloatArray:
        return np.concatenate([self._covariances(slice(h, h + 1)) for h in range(len(self.laws))])

    def _covariances(self, some: slice) -> FloatArray:
        """Covariances of ψ(S') at some stages and every pair, (stages, K, d, d)."""
        if self._known is not None:
            return self._known[0][some]
        laws, rows = self.laws[some], self.directions[some]
        stages, states, dimension = rows.shape
        first, second = np.triu_indices(dimension)  # the other half is the same
        outer, at = np.empty((stages, states, len(first))), 0
        for row in range(dimension):
            np.multiply(rows[:, :, row, None], rows[:, :, row:], out=outer[:, :, at : at + dimension - row])
            at += dimension - row
        means, half = laws @ rows, laws @ outer
        covariances = np.empty((*laws.shape[:2], dimension, dimension))
        covariances[:, :, first, second] = covariances[:, :, second, first] = half
        covariances -= means[:, :, :, None] * means[:, :, None, :]
        return covariances


def square_roots(metrics: FloatArray) -> FloatArray:
    """R with RRᵀ = M, (stages, d, d), for positive semi-definite M."""
    values, vectors = np.linalg.eigh(metrics)
    roots: FloatArray = vectors * np.sqrt(np.clip(values, 0.0, None))[:, None, :]
    return roots


def _lemma(
    traces: FloatArray,
    n: IntArray | int,
    rest: FloatArray,
    referred: FloatArray | float,
    multiples: FloatArray | float,
    error: float,
    size: float,
) -> FloatArray:
    """Right side of Lemma E, with room for rounding."""
    room = 16 * error * size * (1 + multiples) ** 2
    under = np.clip(rest, 0.0, None) + room
    bound: FloatArray = traces / n + referred + np.sqrt((n - 1) / n * under) + 2 * (1 + multiples) * error
    return bound


def _pieces(count: int, entries: int) -> list[slice]:
    """Cut so many things, of so many entries each, into pieces that stay in the cache."""
    step = max(1, _CHUNK // entries)
    return [slice(start, start + step) for start in range(0, count, step)]
