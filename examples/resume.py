"""A run that is interrupted and goes on: the file remembers everything that was told."""

import tempfile
from pathlib import Path

import bestpolicy as bp

simulator = bp.ExactSimulator(bp.instances.load("riverswim"))
settings = {"epsilon": 0.5, "delta": 0.1, "algorithm": "gss", "seed": 1}

with tempfile.TemporaryDirectory() as folder:
    store = Path(folder) / "run.db"
    first = bp.identify(simulator, **settings, store=store, max_samples=10**8)
    print(first.outcome, "after", first.samples)

    study = bp.Study.resume(store, max_samples=10**12)
    second = bp.drive(study, simulator)
    print(second.outcome, "after", second.samples)
