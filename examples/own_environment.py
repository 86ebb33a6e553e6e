"""Certify a policy for your own Gymnasium environment: say how to put it into a state, and what rewards may be."""

import gymnasium
import numpy as np

import bestpolicy as bp


class Pump(gymnasium.Env):
    """Keep a tank of 4 levels from running empty or over: pump or wait while the demand is random."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = 2
        return self.level, {}

    def step(self, action):
        level = self.level + int(action) - int(self.np_random.random() < 0.5)
        self.level = int(np.clip(level, 0, 3))
        reward = (-5.0 if level != self.level or self.level == 0 else 0.0) - 1.0 * action
        return self.level, reward, False, False, {}


def set_state(env, level):
    env.unwrapped.level = level


model = bp.GymSimulator(Pump(), discount=0.6, set_state=set_state, reward_range=(-6, 0))
result = bp.identify(model, epsilon=2.0, delta=0.05, algorithm="tight", seed=0)
print(result.explanation)
print(f"pump at level {np.flatnonzero(result.policy).tolist()}")
