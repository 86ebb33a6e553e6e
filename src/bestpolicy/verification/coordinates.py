"""Coordinates and design of a certificate: φ' = φT, and weights w on some pairs.

The rules are run in coordinates in which the features are well conditioned. For Theorem T these are no more than
coordinates: any invertible T will do. The product is formed accurately, whatever the condition of the features, and the
error that is left is known (`rounding`). For Theorem R coordinates carry the norms that its proof uses:

    ‖φ'‖ ≤ 1,        ‖θ'‖² ≤ 1.1 d for rewards in [0, 1],        ‖μ'ᵀV‖² ≤ 1.1 d ‖V‖²∞.

With Λ' = Σ_k w_k φ'_kφ'_kᵀ, Σw = 1: ‖θ'‖² ≤ θ'ᵀΛ'θ'/λ_min(Λ') = Σ_k w_k r_k²/λ_min(Λ') ≤ 1/λ_min(Λ'), and the same for
μ'ᵀV. So λ_min(Λ') ≥ 1/(1.1 d) is all that has to be seen; which w shows it does not matter.

For Theorems T, P and F the design decides the prior. That it is nearly G-optimal, φ'ᵀΛ'⁻¹φ' ≤ 1.1 d at all allowed
pairs, can be seen; that it was fixed before the samples cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.rounding import EPS, exact_product, misfit_of_ones

_SLACK = 1e-9
_DESIGN_ALLOWANCE = 1.1  # what the constants of Theorem R absorb, and more than any design of these programs needs


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Features in the coordinates of the rule, and what is known about them.

    Attributes
    ----------
    features : array (S, A, d)
    information : array (d, d)
        Λ' of the design.
    design_pairs : int array
    error, longest, ones : float
        Bounds on ‖φ' - φT‖ and ‖φ'‖ at allowed pairs, and the misfit of the all-ones function.
    plain_error : float
        What ‖φ' - φT‖ may be after a plain product in double precision.
    """

    features: Floats
    information: Floats
    design_pairs: Ints
    error: float
    longest: float
    ones: float
    plain_error: float

    @classmethod
    def read(cls, node: Node, case: Case) -> Coordinates:
        """Read T and w, and check that they are what they have to be."""
        dimension = case.features.shape[2]
        transform = node.array("transform", "f", (dimension, dimension))
        pairs = case.pairs(node, "design_pairs")
        weights = node.array("design_weights", "f", (len(pairs),))
        if (weights < 0).any() or abs(weights.sum() - 1) > _SLACK:
            raise Rejected("the weights of the design are not shares that sum to 1")
        allowed, error = exact_product(case.features[case.mask], transform)
        plain = dimension * EPS * np.linalg.norm(np.abs(case.features[case.mask]) @ np.abs(transform), axis=1).max()
        features = np.zeros(case.features.shape)  # what is not allowed does not matter
        features[case.mask] = allowed
        if not np.isfinite(allowed).all():
            raise Rejected("the coordinates overflow")
        rows = features.reshape(-1, dimension)[pairs]
        longest = float(np.sqrt((allowed**2).sum(axis=1).max())) * (1 + dimension * EPS)
        ones = misfit_of_ones(allowed)
        return cls(features, (rows.T * weights) @ rows, pairs, error, longest, ones, float(plain))

    def require_design(self, case: Case) -> None:
        """Check that the design is nearly G-optimal."""
        dimension = len(self.information)
        allowed = self.features[case.mask]
        leverages = np.einsum("nd,dn->n", allowed, np.linalg.solve(self.information, allowed.T))
        worst = float(leverages.max())
        if not (leverages >= 0).all() or not worst <= _DESIGN_ALLOWANCE * dimension * (1 + 1e-6):
            raise Rejected(
                f"the design is far from G-optimal: worst leverage {worst:.6g}, at most {_DESIGN_ALLOWANCE} d = "
                f"{_DESIGN_ALLOWANCE * dimension:g} is allowed"
            )

    def require_norms(self, case: Case) -> None:
        """Check what Theorem R needs of the coordinates."""
        longest = float((self.features[case.mask] ** 2).sum(axis=1).max())
        if longest > 1 + _SLACK:
            raise Rejected(f"a feature vector has squared length {longest:.9g} in the coordinates of the rule, above 1")
        smallest = float(np.linalg.eigvalsh(self.information)[0])
        if smallest * _DESIGN_ALLOWANCE * len(self.information) < 1 - _SLACK:
            raise Rejected("the coordinates do not bound the norms as Theorem R needs (design worse than 1.1 d)")
