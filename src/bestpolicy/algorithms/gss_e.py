"""GSS-E: GSS for episodic problems [TJP Alg 2].

A round simulates one pair of the design at every step h = 0..H-1, so it costs H simulator calls; there is one
least-squares model per step, planned by backward induction, and the rule compares Z(t) with H·β(δ/H, t). All of that
follows from the problem having H stages instead of one: the code is GSS's.

E[τ] = Õ( d H⁴ (Δ+ε)⁻² (log 1/δ + d) ) rounds [TJP Thm 5].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bestpolicy.algorithms.gss import GSS
from bestpolicy.algorithms.protocol import About
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class GSSE(GSS):
    """G-Sampling-and-Stop for episodic problems; the parameters are those of `GSS`."""

    name: ClassVar[str] = "gss-e"
    about: ClassVar[About] = replace(
        GSS.about,
        setting="episodic",
        complexity="d H⁵ (d + log 1/δ) / (Δ+ε)²",
        reference=GSS.about.reference.replace("Algorithm 1", "Algorithm 2"),
    )

    def unsuitable(self, problem: Problem) -> str:
        """Episodic problems only."""
        return "" if problem.horizon is not None else "it is for episodic problems; use 'gss'."
