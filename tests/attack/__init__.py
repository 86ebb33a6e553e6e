"""Attacks: bad inputs, damaged and hostile files, killed processes, dying workers, counted.

Each file has one class of them, as a function ``attack(count, seed)`` that tries `count` of them and returns what came
out. `make attack` runs them all (``python -m tests.attack``); `make test` runs a few of each.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
