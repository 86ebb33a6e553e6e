"""Coordinates and design of a certificate: φ' = φT, and weights w on some pairs.

The rules are run in coordinates in which the features are well conditioned. For Theorem T these are no more than
coordinates: any invertible T will do. For Theorem R they carry the norms that its proof uses:

    ‖φ'‖ ≤ 1,        ‖θ'‖² ≤ 1.1 d for rewards in [0, 1],        ‖μ'ᵀV‖² ≤ 1.1 d ‖V‖²∞.

With Λ' = Σ_k w_k φ'_kφ'_kᵀ, Σw = 1: ‖θ'‖² ≤ θ'ᵀΛ'θ'/λ_min(Λ') = Σ_k w_k r_k²/λ_min(Λ') ≤ 1/λ_min(Λ'), and the same for
μ'ᵀV. So λ_min(Λ') ≥ 1/(1.1 d) is all that has to be seen; which w shows it does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected

_SLACK = 1e-9
_NORM_ALLOWANCE = 1.1  # what the constants of Theorem R absorb


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Features in the coordinates of the rule, (S, A, d), and Λ' of the design, (d, d)."""

    features: Floats
    information: Floats
    design_pairs: Ints

    @classmethod
    def read(cls, node: Node, case: Case) -> Coordinates:
        """Read T and w, and check that they are what they have to be."""
        dimension = case.features.shape[2]
        transform = node.array("transform", "f", (dimension, dimension))
        pairs = node.array("design_pairs", "i", (None,))
        weights = node.array("design_weights", "f", (len(pairs),))
        if not len(pairs) or (np.diff(pairs) <= 0).any() or pairs[0] < 0 or pairs[-1] >= case.mask.size:
            raise Rejected("the pairs of the design are not strictly increasing indices of pairs")
        if not case.mask.reshape(-1)[pairs].all():
            raise Rejected("the design has a pair that is not allowed")
        if (weights < 0).any() or abs(weights.sum() - 1) > _SLACK:
            raise Rejected("the weights of the design are not shares that sum to 1")
        features = (case.features.reshape(-1, dimension) @ transform).reshape(case.features.shape)
        if not np.isfinite(features).all():
            raise Rejected("the coordinates overflow")
        rows = features.reshape(-1, dimension)[pairs]
        return cls(features, (rows.T * weights) @ rows, pairs)

    def require_norms(self, case: Case) -> None:
        """Check what Theorem R needs of the coordinates."""
        longest = float((self.features[case.mask] ** 2).sum(axis=1).max())
        if longest > 1 + _SLACK:
            raise Rejected(f"a feature vector has squared length {longest:.9g} in the coordinates of the rule, above 1")
        smallest = float(np.linalg.eigvalsh(self.information)[0])
        if smallest * _NORM_ALLOWANCE * len(self.information) < 1 - _SLACK:
            raise Rejected("the coordinates do not bound the norms as Theorem R needs (design worse than 1.1 d)")
