"""Run every benchmark, or those named on the command line."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = ("identify", "simulators", "tells", "checks", "planning", "design", "growth")


def main() -> None:
    """Print one table after another."""
    for name in sys.argv[1:] or NAMES:
        print(f"\n== {name}", flush=True)
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
