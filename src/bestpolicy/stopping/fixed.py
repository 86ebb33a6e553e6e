"""Theorem P: a policy that the past has chosen.

**Theorem P** (fixed policy). Let π be chosen by the past and x = θ̂ - θ + γ(μ̂ - μ)ᵀV^π, the noise of the
fixed function V^π on the samples to come. Then ξ^π = θ̂ + γμ̂ᵀΦ_πξ^π - x, so ξ^π = J(θ̂ - x) exactly as soon
as I - γμ̂ᵀΦ_π is invertible: *no contraction is needed*, |P̂| plays no part, and A^π(s,a) = -Δ̂(s,a) - yᵀx ≤
ρ(s,a). Range and variances are refined as in Theorem T with ω = 0 (V^π = V̂ - Ψx). If ρ ≤ 0 everywhere then π
is optimal (policy improvement); always V* - V^π ≤ max ρ⁺/(1-γ), or Σ_h max ρ_h⁺ (performance difference). It
certifies where Theorem T cannot: many states, few samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bestpolicy.stopping.rule import Past, Terms
from bestpolicy.stopping.tight import TightTest
from bestpolicy.stopping.verdict import Split


@dataclass(frozen=True)
class TheoremP:
    """The rule: it needs a policy."""

    theorem: ClassVar[str] = "P"

    def fix(self, terms: Terms, past: Past, delta: float) -> TightTest | None:
        """Return the test around V^π, without the event about the kernel."""
        if past.policy is None:
            return None
        return TightTest(terms.problem, past, delta, Split(0.1, 0.75, 0.15, 0.0), terms.value_span, past.policy)
