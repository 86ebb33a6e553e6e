"""Your own simulator in twenty lines: when to repair a machine."""

import numpy as np

import bestpolicy as bp

GOOD, WORN, BROKEN = range(3)
RUN, REPAIR = range(2)


def step(state, action, rng):
    """One day: what was earned (between 0 and 1), and the state of the machine tomorrow."""
    if action == REPAIR:
        return 0.2, GOOD
    earned = float(rng.random() < (0.9, 0.7, 0.0)[state])
    return earned, min(BROKEN, state + int(rng.random() < 0.3))


problem = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=0.6)  # one-hot features: any finite problem is linear
simulator = bp.CallableSimulator(problem, step)
bp.testing.check_generative_model(simulator)
result = bp.identify(simulator, epsilon=0.3, delta=0.05, algorithm="tight", seed=0, max_samples=200_000)
print(result.explanation)
print({("good", "worn", "broken")[s]: ("run", "repair")[a] for s, a in enumerate(result.policy)})
