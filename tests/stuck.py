"""A run on worker processes whose simulator answers some queries and is stuck in the others: to be killed.

``python -m tests.stuck METHOD FOLDER`` leaves a file for each answer and for each process that is stuck.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import bestpolicy as bp
from tests.models import near_tie

MDP = near_tie(0.3)
FEW_LOOKS = bp.algorithms.GSS(check_ratio=2.0)
SETTINGS = {"epsilon": 1.5, "delta": 0.1, "seed": 2, "calls_per_query": 1000, "algorithm": FEW_LOOKS}


class Stuck(bp.ExactSimulator):
    """Answers queries that begin with the first pair."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MDP)
        self.folder = folder

    def sample(self, pulls, rng):
        if pulls.pairs[0] > 0:
            (self.folder / f"stuck-{os.getpid()}").touch()
            # On Linux in code that lets no other thread of the process run.
            ctypes.PyDLL(None).sleep(600) if sys.platform == "linux" else time.sleep(600)
        (self.folder / f"answer-{pulls.total}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return super().sample(pulls, rng)


if __name__ == "__main__":
    pool = partial(ProcessPoolExecutor, 2, multiprocessing.get_context(sys.argv[1]))
    marks = Path(sys.argv[2], "marks")
    result = bp.identify(Stuck(marks), **SETTINGS, executor=pool, store=Path(sys.argv[2], "run.db"))
    print(result.outcome, result.samples)
