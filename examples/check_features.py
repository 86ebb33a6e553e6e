"""Do my features fit my simulator? Group the cells of a line by fours, see by how much that is wrong, and mend it."""

import numpy as np

import bestpolicy as bp
from bestpolicy.diagnostics import check_linearity, sample_for_diagnostics

CELLS = 12


def step(cell, action, rng):
    arrival = int(np.clip(cell + (2 * action - 1) * (rng.random() < 0.8), 0, CELLS - 1))
    return float(arrival == CELLS - 1), arrival


for size in (4, 1):
    groups = np.arange(CELLS) // size
    features = np.zeros((CELLS, 2, 2 * groups.max() + 2))
    for cell, action in np.ndindex(CELLS, 2):
        features[cell, action, 2 * groups[cell] + action] = 1.0
    problem = bp.Problem(features, discount=0.8)
    tally = sample_for_diagnostics(bp.CallableSimulator(problem, step), 1000, np.random.default_rng(0))
    print(f"{size} to a group: {check_linearity(problem, tally).sentence()}\n")
