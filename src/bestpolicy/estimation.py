"""The least-squares model of a tally.

Ridge regression [TJP eq. ThetaLSE, MuLSE] with Gram matrix G = Σ φφᵀ + λI:

    θ̂ = G⁻¹ Σ φ r,      μ̂(s') = G⁻¹ Σ φ 1{next state = s'},

in d dimensions and from counts, whatever the number of samples. The estimated kernel φᵀμ̂ may have negative
entries and rows that do not sum to 1; planners and certificates have to live with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from scipy.sparse import issparse

from bestpolicy._numerics.arrays import FloatArray, Matrix, as_numbers, gram_matrix, solve
from bestpolicy._numerics.inputs import number, of_type
from bestpolicy._numerics.memory import usable_memory
from bestpolicy.errors import InvalidInput
from bestpolicy.samples import Pulls as Pulls  # was here once, as Tally was
from bestpolicy.samples import Tally


@dataclass(frozen=True, eq=False)
class Estimate:
    """A least-squares model in the coordinates of the features it was made from.

    Attributes
    ----------
    theta : array (stages, d)
    mu : array (stages, S, d)
    gram : tuple of matrices (d, d)
        G of each stage, the ridge included; sparse if the features are.
    """

    theta: FloatArray
    mu: FloatArray
    gram: tuple[Matrix, ...]


def least_squares(features: Matrix, tally: Tally, *, ridge: float) -> Estimate:
    """Estimate (θ, μ) by ridge regression from a tally.

    Parameters
    ----------
    features : array (S, A, d), or matrix (S·A, d) such as ``problem.matrix``
        Coordinates in which to regress.
    tally : Tally
    ridge : float
        λ. The paper takes 1/d; with 0 the sampled features must span R^d.
    """
    of_type("tally", tally, Tally)
    ridge = number("ridge", ridge)
    if not issparse(features):
        features = as_numbers("features", features)
    dimension = features.shape[-1] if features.ndim in (2, 3) else 0
    if not dimension or tally.pairs.max(initial=0) >= prod(features.shape[:-1]):
        raise InvalidInput(
            f"features must have shape (S, A, d) or (S·A, d), with all pairs of the tally. Got {features.shape}."
        )
    if not issparse(features) and 8 * dimension**2 > usable_memory():
        raise InvalidInput(f"{dimension} features take more memory than there is. Use fewer.")
    sampled = (features.reshape(-1, dimension) if features.ndim == 3 else features)[tally.pairs]
    weights = tally.pulls.astype(np.float64)
    targets = np.concatenate([tally.reward_sums[:, :, None], tally.next_counts], axis=2)
    try:
        if (weights == weights[:1]).all():  # as many pulls at every stage: one matrix, and one system for all of them
            gram = (gram_matrix(sampled, weights[0], ridge),) * len(weights)
            columns = targets.transpose(1, 0, 2).reshape(len(tally.pairs), -1)
            solution = solve(gram[0], sampled.T @ columns).reshape(dimension, *targets.shape[::2]).swapaxes(0, 1)
        else:
            gram = tuple(gram_matrix(sampled, pulls, ridge) for pulls in weights)
            solution = np.stack([solve(gram[h], sampled.T @ targets[h]) for h in range(len(targets))])
    except np.linalg.LinAlgError:
        raise InvalidInput("without a ridge the sampled features must span R^d. Give ridge > 0.") from None
    return Estimate(
        theta=np.ascontiguousarray(solution[:, :, 0]),
        mu=np.ascontiguousarray(solution[:, :, 1:].swapaxes(1, 2)),
        gram=gram,
    )


__all__ = ["Estimate", "least_squares"]
