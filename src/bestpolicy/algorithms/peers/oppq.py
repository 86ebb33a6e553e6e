"""OPPQ-Learning: variance-reduced value iteration at anchors [Yang, Wang 2019, Algorithm 2].

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    come nearer to V* from below as in `variance_reduced`, with samples of the anchors alone

Structure and orders are the reference's. It hides its constants: those here are what *our own proof*, in
`variance_reduced`, needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.peers.budget import only_anchored
from bestpolicy.algorithms.peers.variance_reduced import VarianceReduced
from bestpolicy.algorithms.protocol import About
from bestpolicy.design.anchors import anchors
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class OPPQ(VarianceReduced):
    """Optimal parametric phased Q-learning, for discounted problems with anchors and ε > 0.

    Attributes
    ----------
    rewards : table (S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    name: ClassVar[str] = "oppq"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="anchors: pairs whose features have all others in their convex hull",
        guarantee="an ε for the policy after every halving, at the end the asked one, in every state",
        complexity="K / ((1-γ)³ ε²), where K ≥ d is the number of anchors",
        constants="own proof",
        reference="Yang, Wang: Sample-Optimal Parametric Q-Learning Using Linearly Additive Features, Algorithm 2",
    )
    rule: ClassVar[str] = "OPPQ-Learning budget (own proof)"

    def why_not(self, problem: Problem) -> str:
        """Discounted problems with anchors only."""
        return only_anchored(problem)

    def pairs(self, problem: Problem) -> tuple[IntArray, Callable[[FloatArray], FloatArray]]:
        """Return the anchors."""
        corners = anchors(problem)
        return corners.pairs, corners.table
