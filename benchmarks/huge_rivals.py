"""What users would take instead, where states cannot be listed: ``python -m benchmarks.huge --rivals``.

The inventory with 7 x 7 nodes, exactly linear; everybody gets as many calls as `hull` took for 5 %. Values are measured
by rollouts from one start, and what a policy really loses by the fine lattice of `huge_truth`, which none of them sees.
stable-baselines3 runs in an interpreter that has it (``--python``), and is left out where there is none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import bestpolicy as bp
from benchmarks import huge_truth
from benchmarks.huge_families import inventory
from bestpolicy.run.audit import mean_limits

GRID, START, ROLLOUTS = 7, np.array([5.0, 5.0]), 4000
BINS = 11  # of a product's stock, for a table
SWEEPS = 300

DEEP = """
import sys
import gymnasium
import numpy as np
from stable_baselines3 import DQN, PPO
folder, name, calls, grid = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
nodes = np.linspace(0, 10, grid)
orders = np.array([(a, b) for a in (0.0, 2.5, 5.0) for b in (0.0, 2.5, 5.0) if a + b <= 7.5])
class Shop(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(len(orders))
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.stock, self.days = self.np_random.uniform(0, 10, 2), 0
        return np.float32(self.stock / 10), {}
    def step(self, action):
        order = orders[action]
        point = np.minimum(self.stock + order, 10.0)
        low = np.minimum((point / nodes[1]).astype(int), grid - 2)
        node = nodes[low + (self.np_random.random(2) < point / nodes[1] - low)]
        sold = np.minimum(node, np.minimum(self.np_random.gamma([2.0, 4.0], [1.6, 0.7]), 8.0))
        self.stock, self.days = node - sold, self.days + 1
        reward = sold @ [1.0, 1.3] - self.stock @ [0.06, 0.08] - order @ [0.45, 0.6] - 0.6 * order.any()
        return np.float32(self.stock / 10), float(reward) / 10, False, self.days >= 100, {}
model = {"DQN": DQN, "PPO": PPO}[name]("MlpPolicy", Shop(), gamma=0.95, seed=0, device="cpu")
model.learn(total_timesteps=calls)
states = np.load(folder + "/states.npy")
np.save(folder + "/actions.npy", model.predict(np.float32(states / 10), deterministic=True)[0])
"""


def compare(python: str) -> None:
    """Print a table of policies: calls, value by rollouts, true loss, and what each says of it."""
    model, lattice = inventory(GRID), huge_truth.inventory(GRID)
    result = bp.identify(model, epsilon="5%", delta=0.05, seed=0, linearity=0)
    span = (model.high - model.low) / (1 - model.problem.discount)
    rivals = {
        "hull": (result.samples, result.policy, f"within {100 * result.epsilon / span:.2g} % in every state, δ = 0.05"),
        "fitted Q iteration": (result.samples, fitted_q(model, result.samples), "nothing"),
        f"a table of {BINS} x {BINS} cells": (result.samples, table(model, result.samples), "nothing"),
    }
    print(f"{'':<24} {'calls':>9} {'value by rollouts':>18} {'true loss':>10}  says of its distance from optimal")
    for name, (calls, policy, says) in rivals.items():
        _print(name, calls, model, lattice, policy, span, says)
    for name, calls in (("DQN", result.samples), ("PPO", result.samples)):
        policy = deep(python, name, calls, lattice)
        if policy is None:
            print(f"stable-baselines3 {name}: not installed (give --python an interpreter that has it)")
        else:
            _print(f"stable-baselines3 {name}", calls, model, lattice, policy, span, "nothing")


def _print(name, calls, model, lattice, policy, span, says) -> None:
    low, high = value(model, policy)
    lost = 100 * huge_truth.loss(lattice, policy) / span
    print(f"{name:<24} {calls:>9,} {low:>8.1f} to {high:>6.1f} {lost:>8.2f} %  {says}", flush=True)


def value(model, policy):
    """Limits of the discounted value of a policy from the start, by rollouts, level 0.05."""
    discount, rng = model.problem.discount, np.random.default_rng(1)
    states, returns, weight = np.repeat(START[None], ROLLOUTS, axis=0), np.zeros(ROLLOUTS), 1.0
    while weight > 1e-3:
        rewards, states = model.call(states, policy(states), rng)
        returns += weight * (rewards - model.low)
        weight *= discount
    limit = (model.high - model.low) / (1 - discount)
    low, high = mean_limits(returns, limit, np.log(2 / 0.05))
    return low + model.low / (1 - discount), high + weight * limit + model.low / (1 - discount)


def fitted_q(model, samples: int):
    """Fitted Q iteration with the same hats, from uniformly random pairs."""
    known, rng = model.problem, np.random.default_rng(0)
    states, actions = rng.uniform(0, 10, (samples, 2)), rng.integers(0, known.actions, samples)
    rewards, following = model.call(states, actions, rng)
    scaled = (rewards - model.low) / model.units.reward_scale - known.known(states, actions)
    features, choices = known.feature_map(states, actions), known.choices(following)
    gram = (features.T @ features).toarray() + 1e-6 * np.eye(known.dimension)
    vector = np.zeros(known.dimension)
    for _ in range(SWEEPS):
        targets = scaled + known.continuation * choices.best(vector[:, None])[:, 0]
        vector = np.linalg.solve(gram, features.T @ targets)
    return lambda states: known.greedy(states, vector)


def table(model, samples: int):
    """Discretise and solve: a table of cells, each pair simulated from random states of its cell equally often."""
    actions, rng = model.problem.actions, np.random.default_rng(0)
    many = max(1, samples // (BINS**2 * actions))
    cell, action = (np.repeat(each, many) for each in np.divmod(np.arange(BINS**2 * actions), actions))
    corner = np.stack(np.divmod(cell, BINS), axis=1)
    rewards, following = model.call((corner + rng.random(corner.shape)) * 10 / BINS, action, rng)

    def cells(states):
        place = np.minimum((states * BINS / 10).astype(int), BINS - 1)
        return place[:, 0] * BINS + place[:, 1]

    mean, arrived = rewards.reshape(-1, many).mean(axis=1), cells(following).reshape(-1, many)
    values = np.zeros(BINS**2)
    for _ in range(SWEEPS):
        q = (mean + model.problem.discount * values[arrived].mean(axis=1)).reshape(BINS**2, actions)
        values = q.max(axis=1)
    return lambda states: q.argmax(axis=1)[cells(states)]


def deep(python: str, name: str, calls: int, lattice):
    """Train a network; what it plays is read at the lattice, and at its nearest point elsewhere."""
    if subprocess.run([python, "-c", "import stable_baselines3"], capture_output=True).returncode:
        return None
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "states.npy", lattice.states)
        told = [folder, name, str(calls), str(GRID)]
        subprocess.run([python, "-c", DEEP, *told], check=True, capture_output=True)
        actions = np.load(Path(folder) / "actions.npy").reshape(huge_truth.FINE, huge_truth.FINE)

    def policy(states):
        place = np.rint(states * (huge_truth.FINE - 1) / 10).astype(int)
        return actions[place[:, 0], place[:, 1]]

    return policy


if __name__ == "__main__":
    compare(sys.executable)
