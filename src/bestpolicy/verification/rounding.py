"""What floating point may have done to the numbers of this check.

A claim is confirmed if it holds by a margin that is larger than all that rounding can have changed. Nothing is assumed
about solves and inverses: their residuals are measured, and sums of n products are taken to be off by nε times the sum
of their absolute values (ε = 2⁻⁵², twice what it is).

Let φ be the features in the coordinates of the certificate, e ≥ ‖φ - φ_givenT‖, τ the distance of the all-ones function
from their span, G = ΣW_kφ_kφ_kᵀ, n = ΣW_k, λ ≤ λ_min(G), A = ‖φ‖√(n/λ), Ξ = (1+τ)√(n/λ)/(1 - e√(n/λ)).

- For a fixed function V with values in [0, L] whose backup Q = r + γpV lies there too, and its noise x = G⁻¹Σbη,
  Q = φᵀ(θ̂ + γμ̂ᵀV - x) up to z = z_r + z_p L, where z_p = (eΞ + τ)(1 + A) + 2aA + ‖φ‖‖Σ_s|Gμ̂(s) - …|‖/λ and
  z_r = (a_r + a)A + ‖φ‖‖Gθ̂ - …‖/λ: the features' errors, seen at the pair and through least squares, those of the
  sums over samples (relative a for weights, a_r for rewards), and what the solves left.
- A gap of the policy is then known up to 2(z + p) + Σ_j(γz‖m‖ + ‖ξ̂ - θ̂ - γμ̂ᵀV̂‖)_j‖y_j‖: m = Σ_s|μ̂(s)|, y_j the
  response to x at stage j (one if discounted), p the error of the products φᵀξ̂.
- The response is Jᵀ times a difference of features. If J leaves R = I - (I - γK)J then exact responses are (I - R)⁻ᵀ
  times those computed, within r = ‖R‖/(1-‖R‖) of them. Widths in M become widths in (1+r)(M + r tr(M) I).

Everything is multiplied by `MARGIN`, so that this check is not less strict than the run, which knows the same bounds.
The run takes them four times: what it claims is confirmed here in spite of the rounding errors on both sides.
"""

from __future__ import annotations

from math import ceil, inf, log2, sqrt

import numpy as np

from bestpolicy.verification.case import Samples
from bestpolicy.verification.reading import Floats, Rejected

EPS = float(np.finfo(np.float64).eps)
MARGIN = 1.25
WEIGHTED = 2.0**-42  # a, if there are weights: they are added up over a few thousand looks at most


def exact_product(rows: Floats, matrix: Floats) -> tuple[Floats, float]:
    """Rows (n, d) times a matrix (d, k) with hardly more error than its rounding, and a bound on that (a row's norm).

    Both are written as heads of a few bits plus remainders; heads times heads are exact in double precision.
    """
    dimension = rows.shape[1]
    if np.count_nonzero(matrix) == np.count_nonzero(np.diag(matrix)):  # only scales: every entry is one product
        scaled = rows * np.diag(matrix)
        return scaled, EPS * float(np.sqrt((scaled**2).sum(axis=1).max()))
    powers = np.floor(np.log2(np.maximum(np.abs(rows).max(axis=0), 1e-290)))
    rows, matrix = rows * 2.0**-powers, matrix * (2.0**powers)[:, None]
    bits = (52 - ceil(log2(max(dimension, 2)))) // 2

    def heads(array: Floats, axis: int) -> tuple[Floats, Floats, Floats]:
        first = _rounded(array, axis, bits)
        second = _rounded(array - first, axis, bits)
        return first, second, (array - first) - second

    left, right = heads(rows, 1), heads(matrix, 0)
    total = np.zeros((len(rows), matrix.shape[1]))
    for order in (4, 3, 2, 1, 0):  # the smallest first
        for i in range(max(0, order - 2), min(order, 2) + 1):
            total = total + left[i] @ right[order - i]
    size = float(np.abs(rows).max()) * float(np.linalg.norm(np.abs(matrix).max(axis=0)))
    longest = float(np.sqrt((total**2).sum(axis=1).max()))
    return total, EPS * longest + 32 * dimension * EPS * 2.0**-bits * size


def _rounded(array: Floats, axis: int, bits: int) -> Floats:
    """Entries rounded to `bits` bits of the largest in their row (axis 1) or column (axis 0)."""
    largest = np.abs(array).max(axis=axis, keepdims=True)
    step = 2.0 ** (np.floor(np.log2(np.maximum(largest, 1e-290))) + 1 - bits)
    rounded: Floats = np.round(array / step) * step
    return rounded


def misfit_of_ones(rows: Floats) -> float:
    """τ: by how much the all-ones function misses the span of the columns, or a little more."""
    gram, vector, rest = rows.T @ rows, np.zeros(rows.shape[1]), np.ones(len(rows))
    for _ in range(3):
        vector = vector + np.linalg.solve(gram, rows.T @ rest)
        rest = 1 - rows @ vector
    sizes = 1 + np.abs(rows) @ np.abs(vector)
    return float((np.abs(rest) + (len(vector) + 2) * EPS * sizes).max())


ADDED = 2**33  # more rewards than that are never added up one by one, but as counts of outcomes


def reward_sum_errors(samples: Samples) -> Floats:
    """a_r per stage: sums of n rewards are off by n roundings, unless all rewards are 0 or 1."""
    whole = samples.squares == samples.rewards.sum(axis=2)
    terms = np.where(whole, 0, np.minimum(samples.pulls, ADDED) + samples.rewards.shape[2])
    errors: Floats = terms.max(axis=1) * (EPS / 2)
    return errors


def least_squares(
    rows: Floats, weights: Floats, targets: Floats, *, error: float, ones: float, longest: float, sums: float, a: float
) -> tuple[Floats, Floats, Floats, float, float, float, float]:
    """Solve G X = Σφ·targets for targets (K, 1 + S), rewards first; the other parameters are e, τ, ‖φ‖, a_r and a.

    Returns G⁻¹, θ̂, μ̂ (S, d), the relative error δ/(1-δ) of G⁻¹ with δ ≥ ‖I - G⁻¹G‖, ‖Σ_s|μ̂(s)|‖, z_r and z_p.
    """
    gram, right = (rows.T * weights) @ rows, rows.T @ targets
    values = np.linalg.eigvalsh(gram)
    trace, total = float(np.trace(gram)), float(weights.sum())
    unit = (len(rows) + rows.shape[1] + 6) * EPS
    smallest = float(values[0]) - 2 * unit * trace
    if not smallest * 1e11 > values[-1]:
        raise Rejected("the samples do not determine a model: their features do not span all directions")
    inverse, found = np.linalg.inv(gram), np.linalg.solve(gram, right)
    left = np.eye(len(gram)) - inverse @ gram
    defect = float(np.linalg.norm(left)) + unit * float(np.linalg.norm(inverse)) * trace
    root = sqrt(total / smallest)
    if defect > 0.3 or error * root > 0.5:
        raise Rejected("the features are too badly conditioned for a certificate in double precision")
    reach = longest * root
    residuals, sizes = np.abs(gram @ found - right), np.abs(found)
    length, size = float(np.linalg.norm(sizes[:, 0])), float(np.linalg.norm(sizes[:, 1:].sum(axis=1)))
    missed = float(np.linalg.norm(residuals[:, 0])) + unit * (trace * length + longest * total)
    strayed = float(np.linalg.norm(residuals[:, 1:].sum(axis=1))) + unit * (trace * size + longest * total)
    misfit = error * root * (1 + ones) / (1 - error * root) + ones
    return (
        inverse.astype(np.float64),
        found[:, 0].astype(np.float64),
        np.ascontiguousarray(found[:, 1:].T, dtype=np.float64),
        MARGIN * defect / (1 - defect),
        size,
        MARGIN * ((sums + a) * reach + longest / smallest * missed),
        MARGIN * (misfit * (1 + reach) + 2 * a * reach + longest / smallest * strayed),
    )


def relative_error(defect: float) -> float:
    """r of a residual matrix of this norm."""
    return MARGIN * defect / (1 - defect) if defect < 0.25 else inf


def dominating(matrices: Floats, r: float) -> Floats:
    """(1+r)(M + r tr(M) I) for matrices (m, stages, d, d); the largest trace of all stages serves for each."""
    traces = np.trace(matrices, axis1=2, axis2=3).max(axis=1, initial=0.0)
    larger: Floats = (1 + r) * (matrices + r * traces[:, None, None, None] * np.eye(matrices.shape[-1]))
    return larger
