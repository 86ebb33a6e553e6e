"""Samples per second through the simulators, tallies included."""

from __future__ import annotations

import numpy as np

import bestpolicy as bp
from benchmarks.timing import best_of, line, timed


def main() -> None:
    """Time exact batches, and a user's simulator called one by one and in blocks."""
    mdp = bp.instances.load("simplex-large")
    pairs = mdp.problem.pairs[:50]
    huge = bp.Pulls(pairs, np.full((1, 50), 2 * 10**9))
    seconds, _ = best_of(3, lambda: bp.ExactSimulator(mdp).sample(huge, np.random.default_rng(0)))
    timed("exact simulator, 10¹¹ samples of 50 pairs, S=100", seconds, 0.01)

    cumulative = mdp.transitions.cumsum(axis=2).reshape(-1, mdp.problem.states)
    rewards = mdp.rewards.ravel()

    def step(states, actions, rng):
        index = states * mdp.problem.actions + actions
        following = np.empty(len(index), dtype=np.int64)
        draws = rng.random(len(index))
        for pair in np.unique(index):
            own = index == pair
            following[own] = np.searchsorted(cumulative[pair], draws[own]).clip(max=mdp.problem.states - 1)
        return (rng.random(len(index)) < rewards[index]).astype(float), following

    count = 2_000_000
    simulator = bp.CallableSimulator(mdp.problem, step, vectorized=True)
    blocks = bp.Pulls(pairs, np.full((1, 50), count // 50))
    seconds, _ = best_of(3, lambda: simulator.sample(blocks, np.random.default_rng(0)))
    timed("vectorised user simulator, 2·10⁶ samples", seconds, 1.0, f"{count / seconds:.2g} samples/s")

    one = bp.CallableSimulator(mdp.problem, lambda state, action, rng: (0.5, 3))
    few = bp.Pulls(pairs, np.full((1, 50), 4000))
    seconds, _ = best_of(3, lambda: one.sample(few, np.random.default_rng(0)))
    line("user simulator called one by one, 2·10⁵ samples", seconds, "", None, f"{2e5 / seconds:.2g} samples/s")


if __name__ == "__main__":
    main()
