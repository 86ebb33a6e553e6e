"""What a stopping rule says when it looks at the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from bestpolicy._numerics.arrays import IntArray

if TYPE_CHECKING:
    from bestpolicy.stopping.rule import Proof


@dataclass(frozen=True, eq=False)
class Check:
    """One look of a stopping rule at the data.

    Attributes
    ----------
    rounds, samples : int
        Rounds t and simulator calls so far (the same if discounted, H calls a round if episodic).
    policy : int array (stages, S)
        The policy that would be returned now.
    statistic, threshold : float
        The run may stop once the statistic exceeds the threshold.
    passed : bool
        Whether what was asked is certified.
    epsilon : float
        What is certified for `policy` at this check (inf if nothing yet).
    gap : float
        Smallest estimated difference of best and second-best action.
    rule : str
        The statement that certifies.
    proof : Proof, optional
        What a certificate needs to show it to others: the samples and all that was fixed before them.
    lag : int
        Number of the lag whose statement it is; 0 for a statement about all samples.
    """

    rounds: int
    samples: int
    policy: IntArray
    statistic: float
    threshold: float
    passed: bool
    epsilon: float
    gap: float
    rule: str
    proof: Proof | None = field(default=None, repr=False)
    lag: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the check, ready for JSON (those that are not finite become None)."""
        numbers = {name: getattr(self, name) for name in ("statistic", "threshold", "epsilon", "gap")}
        finite = {name: float(value) if isfinite(value) else None for name, value in numbers.items()}
        known = {"rounds": self.rounds, "samples": self.samples, "passed": bool(self.passed), "rule": self.rule}
        return known | finite | ({"lag": self.lag} if self.lag else {})
