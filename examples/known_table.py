"""A table that is known needs no samples: when to cut a forest that may burn, as in pymdptoolbox's example."""

import numpy as np

import bestpolicy as bp

WAIT = [[0.1, 0.9, 0.0], [0.1, 0.0, 0.9], [0.1, 0.0, 0.9]]  # the forest burns down with probability 0.1
CUT = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
REWARDS = np.array([[0, 0], [0, 1], [4, 2]])  # by age and action

forest = bp.LinearMDP.from_table(
    np.array([WAIT, CUT]), REWARDS, 0.9, layout="mdptoolbox", reward_range=(0, 4)
)  # fmt: skip
solution = forest.solve()
print("values:", solution.values.round(4).tolist())  # exact up to solution.error_bound
print("policy:", [("wait", "cut")[action] for action in solution.policy])
