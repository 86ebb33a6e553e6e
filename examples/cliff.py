"""A cliff with slippery ground: a Gymnasium game, its certified policy on the map, and a thousand walks."""

import gymnasium

import bestpolicy as bp

env = gymnasium.make("CliffWalking-v1", is_slippery=True, max_episode_steps=300)
result = bp.identify(
    bp.GymSimulator(env, discount=0.9), epsilon="5%", delta=0.05, algorithm="sharp", seed=0, max_samples=2_000_000
)
print(result.explanation)

falls = steps = 0
for walk in range(100):
    state, over = env.reset(seed=walk)[0], False
    while not over:
        state, reward, terminated, truncated, _ = env.step(result.policy[state])
        falls, steps, over = falls + (reward == -100), steps + 1, terminated or truncated
print(f"100 walks: {steps / 100:.1f} steps and {falls / 100:.2f} falls each")
result.plot().savefig("policy.svg")
