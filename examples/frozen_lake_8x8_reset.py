"""Certify a policy for the large slippery FrozenLake by reset and step alone: 100 steps, within 0.2 of the best."""

import gymnasium
import numpy as np

import bestpolicy as bp

env = gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=True)
model = bp.ResetSimulator(env, horizon=100, reward_range=(0, 1), return_limit=1, stationary=True)
result = bp.identify(model, epsilon=0.2, delta=0.1, seed=0)

print(result.explanation)
print(f"{result.rounds} episodes in {result.seconds:.0f} s")
arrows = np.array(list("←↓→↑"))[result.policy[0]].reshape(8, 8)
tiles = env.unwrapped.desc.astype(str)
print("the first step:")
print("\n".join(" ".join(row) for row in np.where(np.isin(tiles, ["H", "G"]), tiles, arrows)))
