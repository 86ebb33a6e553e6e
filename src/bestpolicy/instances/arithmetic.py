"""Linear algebra whose bits are the same on every processor.

A name of the catalogue means the same numbers everywhere, down to the last bit: models are compared and stored runs
are resumed by their fingerprints. BLAS and LAPACK add in an order that depends on the processor. Here every product
is rounded by itself and the terms of a sum are added in an order that is written down, by the four operations and
square roots, which are correctly rounded on every processor.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.errors import ConvergenceError, InvalidInput

_ROUNDS, _STEPS_A_ROUND, _ROOT_STEPS = 400, 50, 60


def product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return left · right, (..., k) times (k, m) or (k,).

    Every fourth term is added to the same one of four sums, as in most BLAS libraries, and the last one to three that
    are left over to a fifth.
    """
    if right.ndim == 1:
        return product(left, right[:, None])[..., 0]

    def added(terms: range) -> FloatArray:
        total: FloatArray = left[..., terms[0], None] * right[terms[0]]
        for k in terms[1:]:
            total += left[..., k, None] * right[k]
        return total

    rest = len(right) % 4
    whole = len(right) - rest
    if whole == 0:
        return added(range(rest))
    first, second, third, fourth = (added(range(lane, whole, 4)) for lane in range(4))
    total = (first + third) + (second + fourth)
    return total + added(range(whole, len(right))) if rest else total


def lengths(vectors: FloatArray) -> FloatArray:
    """Return the Euclidean norms (...) of vectors (..., k)."""
    root: FloatArray = np.sqrt(product(vectors * vectors, np.ones(vectors.shape[-1])))
    return root


def powers(numbers: FloatArray, exponent: int) -> FloatArray:
    """Return whole powers of a vector, correctly rounded."""
    return np.array([float(Fraction(number) ** exponent) for number in numbers.tolist()])


def inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of a positive definite matrix, by Gauss-Jordan elimination."""
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size)], axis=1)
    for k in range(size):
        work[k] /= work[k, k]
        others = np.arange(size) != k
        work[others] -= work[others, k, None] * work[k]
    return work[:, size:]


def square_root(matrix: FloatArray) -> FloatArray:
    """Return the positive definite square root of a positive definite matrix, by Denman and Beavers' iteration."""
    root, inverse_root = matrix, np.eye(len(matrix))
    for _ in range(_ROOT_STEPS):
        following = (root + inverse(inverse_root)) / 2
        inverse_root = (inverse_root + inverse(root)) / 2
        change = np.abs(following - root).max()
        root = (following + following.T) / 2
        if change <= 1e-15 * np.abs(root).max():
            break
    return root


def optimal_information(features: FloatArray, tolerance: float) -> FloatArray:
    """Return Σ ω φφᵀ (d, d) of a design ω on the features (n, d) that is G-optimal up to a factor 1 + tolerance.

    Frank-Wolfe with away steps (Wynn and Atwood, see Todd 2016, Section 3.3): move weight to the feature of the largest
    leverage, or away from that of the smallest, whichever is farther from d, as far as helps most. Features that no
    optimal design uses are dropped on the way (Harman and Pronzato 2007, Theorem 3).
    """
    dimension = features.shape[1]
    weights = np.zeros(len(features))
    weights[_independent_rows(features)] = 1 / dimension
    for _ in range(_ROUNDS):
        used = weights > 0
        information = product((features[used] * weights[used, None]).T, features[used])
        inverted = inverse(information)
        leverages = product(product(features, inverted) * features, np.ones(dimension))
        excess = leverages.max() / dimension - 1
        if excess <= tolerance:
            return information
        limit = dimension * (1 + excess / 2 - np.sqrt(excess * (4 + excess - 4 / dimension)) / 2)
        useful = used | (leverages >= (1 - 1e-9) * limit)
        features, weights, leverages = features[useful], weights[useful], leverages[useful]
        for _ in range(_STEPS_A_ROUND):  # from time to time all is computed afresh, lest rounding errors add up
            highest, lowest = leverages.argmax(), np.where(weights > 0, leverages, np.inf).argmin()
            up = leverages[highest] - dimension >= dimension - leverages[lowest]
            chosen = highest if up else lowest
            own, least = leverages[chosen], -weights[chosen] / (1 - weights[chosen])
            step = max(least, (own / dimension - 1) / (own - 1)) if own > 1 else least
            direction = product(inverted, features[chosen])
            share = step / (1 - step + step * own)
            leverages = (leverages - share * product(features, direction) ** 2) / (1 - step)
            inverted = (inverted - share * (direction[:, None] * direction)) / (1 - step)
            weights *= 1 - step
            weights[chosen] = 0.0 if step == least else weights[chosen] + step
    raise ConvergenceError(
        f"no design within {tolerance:g} of the optimum was found: the largest leverage is too large by {excess:.1e}. "
        "Take a smaller concentration, so that the features differ more, or another seed."
    )


def _independent_rows(features: FloatArray) -> IntArray:
    """Indices of d linearly independent rows, each as far as possible from what those before it span."""
    rest, chosen = features, []
    for rank in range(features.shape[1]):
        remaining = lengths(rest)
        chosen.append(int(remaining.argmax()))
        if remaining[chosen[-1]] <= 1e-9:
            raise InvalidInput(
                f"the mixtures that were drawn span {rank} of {features.shape[1]} dimensions only. "
                "Take more states or actions, a larger concentration or another seed."
            )
        axis = rest[chosen[-1]] / remaining[chosen[-1]]
        rest = rest - product(rest, axis)[:, None] * axis
    return np.array(chosen)
