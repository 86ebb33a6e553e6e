"""What is claimed of a policy, in words. Digits that are left out are never left out in the claim's favour.

>>> claim(0.284400378, 0.05)
'within 0.2845 of optimal with probability at least 0.95'
>>> claim(0.0, 1e-9)
'optimal with probability at least 0.999999999'
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import inf

_DIGITS = 4
_DOWN = Context(rounding=ROUND_FLOOR)
_EXACT = 15  # decimal digits that a float holds whatever its last bits: 0.1 * 3 is 0.3


def claim(epsilon: float, delta: float) -> str:
    """State what is certified, and how surely."""
    return f"{quality(epsilon)} with probability at least {confidence(delta)}"


def quality(epsilon: float) -> str:
    """How good a policy is: optimal, or within ε of it."""
    return "optimal" if epsilon == 0 else f"within {at_most(epsilon)} of optimal"


def at_most(bound: float) -> str:
    """An upper bound with four digits, rounded up: ``0.2845``, ``12,350``."""
    if bound == 0 or not bound < inf:
        return "0" if bound == 0 else "∞"
    text = f"{_up(bound):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def confidence(delta: float) -> str:
    """The probability 1 - δ, rounded down: ``0.95``."""
    return _plain(_DOWN.subtract(Decimal(1), _up(delta)))


def percent(delta: float) -> str:
    """The probability 1 - δ in per cent, rounded down: ``95 %``, ``99.9999 %``."""
    return _plain(100 * _DOWN.subtract(Decimal(1), _up(delta))) + "\N{NO-BREAK SPACE}%"


def _up(number: float) -> Decimal:
    exact = Decimal(f"{number:.{_EXACT}g}")
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1), rounding=ROUND_CEILING)


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
