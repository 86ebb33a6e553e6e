"""How much memory there is, and how large a number is."""

from __future__ import annotations

import os
import sys
from math import log10


def usable_memory() -> int:
    """Bytes that this process may use: those of the machine, or fewer if somebody has set a limit."""
    limits = [sys.maxsize]
    try:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        import resource

        limits += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    except (AttributeError, ImportError, OSError, ValueError):  # not every system tells
        pass
    return min(limit for limit in limits if limit > 0)


def about(number: int) -> str:
    """Return a number of any size, roughly: 1,200, 1.4e+10, 10^400."""
    if number < 10**6:
        return f"{number:,}"
    return f"{number:.2g}" if number < 10**15 else f"10^{round(number.bit_length() * log10(2))}"
