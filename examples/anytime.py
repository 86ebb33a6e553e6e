"""Certified at any time: what a run has proved after how many simulator calls, as a picture."""

import numpy as np
from matplotlib.figure import Figure

import bestpolicy as bp

model = bp.ExactSimulator(bp.instances.load("two-state"))
figure = Figure(figsize=(5, 3), layout="constrained")
axes = figure.subplots()
for algorithm in ("tight", "adaptive"):
    result = bp.identify(model, epsilon=0.05, delta=0.1, algorithm=algorithm, seed=0)
    checks = [check for check in result.checks if np.isfinite(check.epsilon)]
    samples, certified = zip(*((check.samples, check.epsilon) for check in checks), strict=True)
    axes.step(samples, certified, where="post", label=algorithm)
    for epsilon in (1.0, 0.1):
        reached = next(check.samples for check in checks if check.epsilon <= epsilon)
        print(f"{algorithm}: ε = {epsilon} is certified after {reached} calls")
axes.set(yscale="log", xlabel="simulator calls", ylabel="certified ε")
axes.legend()
figure.savefig("certified.svg")
