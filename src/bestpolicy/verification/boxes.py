"""Lemma N of certificates of Theorems I and UD, recomputed: a box for the noise of the regression.

Let S = Σ b_iη_i, b = φ/u, over the samples since the lag: the error vector of the regression is x = G⁻¹S. The
lag has fixed
vectors a_1, …, a_D, D = stages·d, and m sizes s of each. With probability at least 1 - α, at all times,

    |aᵀS| ≤ log(2Dm/α)/s + s Σ_i ψ(s|aᵀb_i|R_i)(aᵀb_i)²ζ_i²

for all of them with s|aᵀb_i|R_i < 1: bets of size s on aᵀS and against it are supermartingales (Lemma E), and
none of 2Dm ever
exceeds 2Dm/α but with probability α. Ranges R and sums of ζ² come from what is known of ξ, so a box makes the next one
smaller. With |aᵀS| ≤ h a functional v of ξ is known up to ‖vᵀB‖₁, B = JG⁻¹A⁻ᵀdiag(h). (Where Theorem P's ellipsoids say
more of aᵀS = (Ga)ᵀx, they are used.)

*The least* ℓᵀz over |z_i| ≤ 1 with yᵀz ≥ t is at least μt - ‖ℓ - μy‖₁ for every μ ≥ 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np

from bestpolicy.verification.bets import Around, Batch
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Node, Rejected
from bestpolicy.verification.regression import Regression, Response

_ROUNDS = 8
_BOLDEST = 0.9
_KINKS = 64
_GROWTH = 1.1
_MOST = 400  # stages·d


@dataclass(frozen=True, eq=False)
class Frame:
    """Vectors in columns (stages, d, d), and sizes (m, stages, d)."""

    vectors: Floats
    sizes: Floats

    @classmethod
    def read(cls, node: Node, stages: int, dimension: int) -> Frame | None:
        """Read what a lag has fixed; None if there are no vectors."""
        node.only("vectors", "sizes")
        vectors, sizes = (
            node.array("vectors", "f", (stages, dimension, None)),
            node.array("sizes", "f", (None, None, None)),
        )
        if not vectors.size and not sizes.size:
            return None
        if vectors.shape[2] != dimension or sizes.shape[1:] != (stages, dimension) or stages * dimension > _MOST:
            raise Rejected("the frame of the lag does not have a direction for every dimension")
        if not 1 <= len(sizes) <= 50 or not (sizes > 0).all() or not np.isfinite(sizes).all():
            raise Rejected("the sizes of bets of the lag's frame are not positive")
        if not (np.linalg.cond(vectors) < 1e10).all():
            raise Rejected("the vectors of the lag's frame do not span the space")
        return cls(vectors, sizes)

    def limits(self, batches: list[Batch], around: Around, failure: float) -> Floats:
        """h (stages, d); inf where no size can be used."""
        costs, bold = np.zeros(self.sizes.shape), np.zeros(self.sizes.shape)
        for batch in batches:
            squares, _, up, down, drift = batch.seen(around)
            along = np.abs(np.einsum("kd,hde->hke", batch.rows, self.vectors)) / batch.weights[:, :, None]
            reach = along * np.where(batch.pulls > 0, np.maximum(up, down), 0.0)[:, :, None]
            total = (np.sqrt(squares) + np.sqrt(drift)) ** 2
            for place, size in enumerate(self.sizes):
                x = size[:, None, :] * reach
                bold[place] = np.maximum(bold[place], x.max(axis=1))
                costs[place] += (_psi(np.minimum(x, _BOLDEST)) * along**2 * total[:, :, None]).sum(axis=1)
        found = log(2 * self.sizes.size / failure) / self.sizes + self.sizes * costs
        limits: Floats = np.where(bold < _BOLDEST, found, np.inf).min(axis=0)
        return limits


def _psi(x: Floats) -> Floats:
    """(-log(1-x) - x)/x², from above where x is small."""
    safe = np.where(x > 1e-3, x, 0.5)
    return np.where(x > 1e-3, (-np.log1p(-safe) - safe) / safe**2, 0.5 + x / 3 + x**2 / 2)


def boxed(around: Around, model: Regression, frame: Frame | None, batches: list[Batch], failure: float) -> Around:
    """What is known of ξ, with the smallest box that a few rounds find."""
    if frame is None or any(not batch.usable for batch in batches):
        return around
    case, response = model.case, around.response
    gram = np.linalg.inv(model.inverse)
    own = gram @ frame.vectors
    known = np.full(own[:, 0].shape, np.inf)
    for matrix in around.matrices:
        known = np.minimum(known, np.sqrt(np.maximum(np.einsum("hdn,hde,hen->hn", own, matrix, own), 0.0)))
    turned = np.linalg.inv(frame.vectors).swapaxes(1, 2)
    for _ in range(_ROUNDS):
        size = np.minimum(known, frame.limits(batches, around, failure))
        block = model.inverse @ turned * size[:, None, :]
        # Errors of the inverse and of responses, relative in norm, against widths in the box.
        back = (frame.vectors / size[:, None, :]).swapaxes(1, 2) @ gram
        sizes = np.linalg.norm(block) * np.linalg.norm(back, axis=(1, 2)).max() * np.sqrt(size.size)
        growth = 1 + (response.r + model.defect) * float(sizes)
        if not growth < _GROWTH:
            break
        block *= growth
        around = replace(around, block=block, box=case.following(spread_out(case, response, block)))
        if (size > 0.98 * known).all():
            break
        known = size
    return around


def spread_out(case: Case, response: Response, block: Floats) -> Floats:
    """What blocks (stages, d, n) of x do to ξ, (stages, d, stages·n)."""
    if case.horizon is None:
        moved: Floats = response.links @ block
        return moved
    stages, dimension, width = block.shape
    found = np.zeros((stages, dimension, stages * width))
    for stage in range(stages):
        moved = block[stage]
        for before in range(stage, -1, -1):
            found[before, :, stage * width : (stage + 1) * width] = moved
            if before:
                moved = response.links[before - 1] @ moved
    return found


class LeastBoxed:
    """The least ℓᵀx over a box with yᵀx ≥ t; y and ℓ (n, stages, d) are functionals of x."""

    def __init__(self, block: Floats, y: Floats, ell: Floats) -> None:
        y = np.einsum("jhd,hde->jhe", y, block).reshape(len(y), -1)
        ell = np.einsum("jhd,hde->jhe", ell, block).reshape(len(y), -1)
        self.width = np.abs(y).sum(axis=1)
        kinks = np.zeros(y.shape)
        np.divide(ell, y, out=kinks, where=y != 0)
        kinks = np.sort(np.where(np.isfinite(kinks), np.maximum(kinks, 0.0), 0.0), axis=1)
        step = max(1, -(-len(kinks.T) // _KINKS))
        self.kinks = np.hstack([np.zeros((len(y), 1)), kinks[:, ::step], kinks[:, -1:]])
        self.norms = np.stack([np.abs(ell - kink[:, None] * y).sum(axis=1) for kink in self.kinks.T], axis=1)

    def over(self, start: Floats) -> Floats:
        """For t (n,)."""
        found: Floats = (self.kinks * start[:, None] - self.norms).max(axis=1)
        return found
