"""Certify a policy for the Taxi (500 states, 6 actions, d = 2401): within 3 of optimal in the game's own rewards."""

import gymnasium

import bestpolicy as bp
from bestpolicy.algorithms.gss import GSS

env = gymnasium.make("Taxi-v4")
model = bp.GymSimulator(env, discount=0.9)
# The table is sampled at no cost per call; looking at the data takes the time, so look less often.
result = bp.identify(model, epsilon=3.0, delta=0.1, algorithm=GSS(check_ratio=1.3), seed=0)

print(result.explanation)
state, _ = env.reset(seed=1)
total, steps, over = 0.0, 0, False
while not over:
    state, reward, terminated, truncated, _ = env.step(result.policy[state])
    total, steps, over = total + reward, steps + 1, terminated or truncated
print(f"One ride: {steps} steps, reward {total:g}")
