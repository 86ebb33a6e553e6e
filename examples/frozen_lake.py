"""Certify a policy for the slippery FrozenLake: within 0.05 of optimal in the game's own rewards, 90 % sure."""

import gymnasium
import numpy as np

import bestpolicy as bp

env = gymnasium.make("FrozenLake-v1", is_slippery=True)
model = bp.GymSimulator(env, discount=0.9)
result = bp.identify(model, epsilon=0.05, delta=0.1, algorithm="sharp", seed=0)

print(result.explanation)
print(f"{result.samples} simulator calls in {result.seconds:.1f} s")
arrows = np.array(list("←↓→↑"))[result.policy].reshape(4, 4)
tiles = env.unwrapped.desc.astype(str)
print("\n".join(" ".join(row) for row in np.where(np.isin(tiles, ["H", "G"]), tiles, arrows)))
result.plot().savefig("policy.svg")
