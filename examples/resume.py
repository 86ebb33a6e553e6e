"""A run that is interrupted and goes on: the file remembers everything that was told."""

import tempfile
from pathlib import Path

import bestpolicy as bp

simulator = bp.ExactSimulator(bp.instances.load("riverswim"))
settings = {"epsilon": 0.5, "delta": 0.1, "algorithm": "tight", "seed": 1}

with tempfile.TemporaryDirectory() as folder:
    store = Path(folder) / "run.db"
    first = bp.identify(simulator, **settings, store=store, max_samples=50_000)
    print(first.explanation)

    study = bp.Study.resume(store, max_samples=10**7)
    second = bp.drive(study, simulator)
    print(second.explanation, second.samples, "samples")

    print(bp.Study.resume(store).result())  # it has ended: the file knows the answer
