"""Run every benchmark, or those named on the command line; the exit status is 1 if a limit is missed."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from benchmarks import timing

NAMES = ("identify", "simulators", "tells", "checks", "planning", "design", "growth", "forecasts")


def main() -> int:
    """Print one table after another, and what was missed."""
    os.environ.update(timing.one_thread_each())
    for name in sys.argv[1:] or NAMES:
        print(f"\n== {name}", flush=True)
        import_module(f"benchmarks.{name}").main()
    if timing.missed:
        print(f"\nMissed: {'; '.join(timing.missed)}.")
    return 1 if timing.missed else 0


if __name__ == "__main__":
    sys.exit(main())
