"""Certify a policy for the Taxi by reset and step alone, on average over its 300 starts: within 10 of the best."""

import gymnasium

import bestpolicy as bp

env = gymnasium.make("Taxi-v4")
# Some minutes. From any step on a ride earns 20 at most, for the passenger who gets out.
model = bp.ResetSimulator(env, horizon=20, reward_range=(-10, 20), return_limit=20, stationary=True)
result = bp.identify(model, epsilon=10, delta=0.1, seed=0)

print(result.explanation)
print(f"{result.rounds} rides in {result.seconds:.0f} s")
state, _ = env.reset(seed=1)
total, step, over = 0.0, 0, False
while not over and step < 20:
    state, reward, over, _, _ = env.step(result.policy[step, state])
    total, step = total + reward, step + 1
print(f"one more ride: {step} steps, reward {total:g}")
