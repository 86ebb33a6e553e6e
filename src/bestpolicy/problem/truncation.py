"""Rewards without a bound: they are truncated, and what that can cost is part of the ε that is stated.

Every theorem here is about rewards in a known range. Where there is none (Poisson demand times a price, waiting times),
a reward R beyond [l, h] counts as the end that it is beyond, R' = min(max(R, l), h), and somebody who knows the
simulator says how much that matters: b⁺ ≥ E(R - h)⁺ and b⁻ ≥ E(l - R)⁺, whatever the pair (0 on a side where nothing is
truncated).

Claim. If π is within ε' of optimal for R', it is within ε' + (b⁺ + b⁻)L of optimal for R, with L = 1/(1-γ) or H.

Proof. R - R' = (R - h)⁺ - (l - R)⁺, so its mean lies in [-b⁻, b⁺] at every pair. The value of a policy is the
(discounted) sum of mean rewards along its path, with weights that sum to at most L, so V - V' lies in [-b⁻L, b⁺L] for
each policy. With π* optimal for R,

    V* - V^π = (V^π* - V'^π*) + (V'^π* - V'^π) + (V'^π - V^π) ≤ b⁺L + ε' + b⁻L.

With a bound b on each of the two, that is bL if one side is truncated, and 2bL if both are.

Second moments. If ER² ≤ M at every pair, then for h > 0

    E(R - h)⁺ ≤ M/(4h),    because r - h ≤ r²/(4h) for every r:  r² - 4hr + 4h² = (r - 2h)² ≥ 0,

and E(l - R)⁺ ≤ M/(4|l|) for l < 0 in the same way. Neither constant can be improved: a reward that is 2h with
probability M/(4h²), else 0, has equality.

Features. In a table every pair has a mean of its own, and truncation changes nothing else. With features that pairs
share the means of R' need not be linear in them even if those of R are, so this is for tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from bestpolicy._numerics.inputs import choice, interval, number
from bestpolicy.errors import InvalidInput


@dataclass(frozen=True)
class Truncated:
    """A range that rewards are truncated to, with a bound on what that does to their means.

    >>> Truncated(0, 50, second_moment=30).bias        # 30/(4·50)
    0.15

    Parameters
    ----------
    low, high : float
        Rewards beyond them count as these.
    bias : float, optional
        At every pair, E(R - high)⁺ and E(low - R)⁺ are at most this (of the sides that are truncated): what lies beyond
        the range, on average over all rewards. The guarantee relies on it.
    second_moment : float, optional
        Instead of that: at every pair, E R² is at most this.
    side : {"above", "below", "both"}
        Where rewards may lie beyond the range; on the other side that is an error, as always.
    """

    low: float
    high: float
    bias: float | None = None
    second_moment: float | None = None
    side: str = "above"

    def __post_init__(self) -> None:
        low, high = interval("low and high", (self.low, self.high))
        choice("side", self.side, ("above", "below", "both"))
        if (self.bias is None) == (self.second_moment is None):
            raise InvalidInput("give either bias, a bound on what lies beyond the range on average, or second_moment.")
        if self.second_moment is not None:
            moment = number("second_moment", self.second_moment)
            sides = [high] * (self.side != "below") + [-low] * (self.side != "above")
            if min(sides) <= 0:
                raise InvalidInput(
                    "a second moment bounds what lies above a positive number and below a negative one. Got "
                    f"[{low:g}, {high:g}], truncated {self.side}; give bias= instead."
                )
            object.__setattr__(self, "bias", moment / (4 * min(sides)))
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "bias", number("bias", self.bias))

    @property
    def charge(self) -> float:
        """What a step can add to the loss of a policy."""
        assert self.bias is not None
        return self.bias * (2.0 if self.side == "both" else 1.0)

    @property
    def accepted(self) -> tuple[bool, bool]:
        """Whether rewards below, and above, the range are truncated."""
        return self.side != "above", self.side != "below"
