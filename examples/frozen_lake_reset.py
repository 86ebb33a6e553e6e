"""Certify a policy for the slippery FrozenLake by reset and step alone: within 0.1 of the best chance, 90 % sure."""

import gymnasium
import numpy as np

import bestpolicy as bp

env = gymnasium.make("FrozenLake-v1", is_slippery=True)
# All there is to win is one reward of 1, and no step differs from another: both save most of the episodes.
model = bp.ResetSimulator(env, horizon=15, reward_range=(0, 1), return_limit=1, stationary=True)
result = bp.identify(model, epsilon=0.1, delta=0.1, seed=0)

print(result.explanation)
print(f"{result.rounds} episodes in {result.seconds:.1f} s")
arrows = np.array(list("←↓→↑"))[result.policy[0]].reshape(4, 4)
tiles = env.unwrapped.desc.astype(str)
print("the first step:")
print("\n".join(" ".join(row) for row in np.where(np.isin(tiles, ["H", "G"]), tiles, arrows)))
