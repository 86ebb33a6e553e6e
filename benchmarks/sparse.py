"""Samples that Theorem U needs on tables of a dozen to thousands of pairs: ``python -m benchmarks.sparse [NAME ...]``.

Counts are drawn as multinomials from the tables, so times are those of planning and looking alone. Printed are samples
until a loss of 5 % and of 1 % of the largest |V*| (in the problem's own units) is certified with δ = 0.05, processor
seconds, seconds per look and per plan, peak memory, and the loss that the policy really has.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import bestpolicy as bp
from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.table_plan import hopeless, plan_lag
from bestpolicy.stopping.tables.lag import Lag
from bestpolicy.stopping.tables.look import look
from bestpolicy.stopping.tables.model import Table, TableSamples, kernel_of

DELTA = 0.05


@dataclass(frozen=True, eq=False)
class World:
    """A table with its outcomes: (pair, next state, reward) with probabilities; a reward may be a coin's mean.

    Attributes
    ----------
    table : Table
    pair, successor, probability, reward : arrays (outcomes,)
        In order of pairs.
    coins : bool
        Whether rewards are means of Bernoulli rewards.
    scale, offset : float
        A reward in the problem's own units is offset + scale·reward.
    """

    table: Table
    pair: IntArray
    successor: IntArray
    probability: FloatArray
    reward: FloatArray
    coins: bool = False
    scale: float = 1.0
    offset: float = 0.0

    def sample(self, pulls: IntArray, rng: np.random.Generator) -> TableSamples:
        """Draw so many samples of each pair."""
        first = np.searchsorted(self.pair, np.arange(self.table.pairs + 1))
        lengths = np.diff(first)
        counts = np.zeros(len(self.pair), dtype=np.int64)
        left, mass = np.array(pulls, dtype=np.int64), np.ones(self.table.pairs)
        for place in range(int(lengths.max())):
            rows = np.flatnonzero(lengths > place)
            entry = first[rows] + place
            chance = np.clip(self.probability[entry] / np.maximum(mass[rows], 1e-300), 0, 1)
            chance[lengths[rows] == place + 1] = 1.0
            counts[entry] = rng.binomial(left[rows], chance)
            left[rows] -= counts[entry]
            mass[rows] -= self.probability[entry]
        rewards = rng.binomial(counts, self.reward).astype(np.float64) if self.coins else counts * self.reward
        squares = rewards if self.coins else counts * self.reward**2
        by_pair = np.bincount(self.pair, squares, self.table.pairs)
        return TableSamples.of(self.pair, self.successor, counts, rewards, by_pair)

    @cached_property
    def model(self) -> tuple[object, FloatArray, FloatArray]:
        """Kernel, mean rewards and V* of the chain."""
        chain, table = self.table.chain, self.table
        stage = self.pair // len(table.state) + 1
        states = self.successor
        if table.horizon is not None:
            states = np.where(stage < table.horizon, self.successor + stage * table.states, chain.size - 1)
        order = np.lexsort((states, self.pair))
        kernel = kernel_of(self.pair[order], states[order], self.probability[order], (table.pairs, chain.size))
        rewards = np.bincount(self.pair, self.probability * self.reward, table.pairs)
        values = chain.optimal(kernel, rewards, chain.known, rounds=2000)
        return kernel, rewards, values

    def loss(self, policy: IntArray) -> float:
        """max_s (V* - V^π)(s), or at the start."""
        kernel, rewards, values = self.model
        chain = self.table.chain
        return chain.worth(values - chain.evaluate(kernel, policy, rewards, chain.known))

    def largest(self) -> float:
        """max |V*| of the problem's own units, in units of normalised rewards."""
        chain = self.table.chain
        own = self.scale * self.model[2] + self.offset * chain.longest
        return float(np.abs(own[chain.claimed]).max()) / self.scale


def world(
    states: int,
    state: list[int],
    outcomes: list[list[tuple[float, int, float]]],
    discount: float | None,
    end: bool = False,
    coins: bool = False,
    horizon: int | None = None,
) -> World:
    """Build a world from lists of (probability, next state, reward) a pair; the end, if any, is the last state."""
    stages = horizon or 1
    pair = np.repeat(np.arange(stages * len(outcomes)), [len(each) for each in outcomes] * stages)
    flat = [outcome for each in outcomes for outcome in each] * stages
    probability = np.array([each[0] for each in flat])
    successor = np.array([each[1] for each in flat], dtype=np.int64)
    reward = np.array([each[2] for each in flat])
    low, high = (min(reward.min(), 0.0), max(reward.max(), 0.0)) if end else (0.0, 1.0)
    scale = high - low
    ends = None
    if end and discount is not None:
        ends = np.full(states, np.nan)
        ends[-1] = -low / scale / (1 - discount)
    table = Table(states, np.array(state), discount=discount, horizon=horizon, end_values=ends)
    return World(table, pair, successor, probability, (reward - low) / scale, coins, scale, low)


def gym_world(name: str, discount: float, **options: object) -> World:
    """A table of Gymnasium's, all that terminates led to one end."""
    import gymnasium

    env = gymnasium.make(name, **options).unwrapped
    live = {int(s) for s in np.flatnonzero(np.asarray(env.initial_state_distrib) > 0)}
    waiting = list(live)
    while waiting:
        for rows in env.P[waiting.pop()].values():
            for probability, successor, _, over in rows:
                if probability > 0 and not over and int(successor) not in live:
                    live.add(int(successor))
                    waiting.append(int(successor))
    order = sorted(live)
    position = {s: i for i, s in enumerate(order)}
    state, outcomes = [], []
    for s in order:
        for rows in env.P[s].values():
            state.append(position[s])
            outcomes.append(
                [(float(p), len(order) if over else position[int(t)], float(r)) for p, t, r, over in rows if p > 0]
            )
    return world(len(order) + 1, state, outcomes, discount, end=True)


def riverswim(states: int, discount: float | None = None, horizon: int | None = None) -> World:
    """The built-in instance."""
    mdp = bp.instances.load("riverswim", states=states, discount=discount or 0.9)
    rows, rewards = mdp.transitions, np.clip(mdp.rewards, 0, 1)
    state, outcomes = [], []
    for s in range(states):
        for a in range(2):
            state.append(s)
            outcomes.append([(float(p), int(t), float(rewards[s, a])) for t, p in enumerate(rows[s, a]) if p > 0])
    return world(states, state, outcomes, discount, coins=True, horizon=horizon)


def garnet(
    states: int, actions: int, discount: float | None = None, seed: int = 0, horizon: int | None = None
) -> World:
    """Five distinct successors a pair, Dirichlet weights, coins with uniform means."""
    rng = np.random.default_rng(seed)
    state, outcomes = [], []
    for s in range(states):
        for _ in range(actions):
            successors = rng.choice(states, 5, replace=False)
            weights, mean = rng.dirichlet(np.ones(5)), float(rng.uniform())
            state.append(s)
            outcomes.append([(float(p), int(t), mean) for p, t in zip(weights, successors, strict=True)])
    return world(states, state, outcomes, discount, coins=True, horizon=horizon)


def inventory(stock: int = 200, orders: int = 50, discount: float = 0.99) -> World:
    """Lost sales, Poisson(20) demand cut at 55; the reward comes with the demand."""
    from scipy.stats import poisson

    demand = np.arange(56)
    weights = poisson.pmf(demand, 20)
    weights /= weights.sum()
    state, outcomes = [], []
    for s in range(stock):
        for a in range(orders):
            level = s + a
            if level >= stock:
                break
            sold = np.minimum(demand, level)
            rewards = 0.46 + 0.5625 * sold / 55 - 0.15 * level / 199 - 0.3 * a / 50
            state.append(s)
            outcomes.append(
                [(float(p), int(level - x), float(r)) for p, x, r in zip(weights, sold, rewards, strict=True)]
            )
    return world(stock, state, outcomes, discount)


def grid(size: int, discount: float = 0.99) -> World:
    """Four moves, 0.8 as meant, 0.1 to either side; entering the last corner pays 1 and ends."""
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    goal = size * size - 1
    state, outcomes = [], []
    for s in range(goal):
        row, column = divmod(s, size)
        for a in range(4):
            each: dict[int, float] = {}
            for turn, p in ((0, 0.8), (1, 0.1), (3, 0.1)):
                down, right = moves[(a + turn) % 4]
                i, j = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
                each[i * size + j] = each.get(i * size + j, 0) + p
            state.append(s)
            outcomes.append([(p, t, float(t == goal)) for t, p in sorted(each.items())])
    return world(goal + 1, state, outcomes, discount, end=True)


PROBLEMS: dict[str, tuple[Callable[[], World], float, float]] = {  # with the samples that are aimed at
    "riverswim6": (lambda: riverswim(6, 0.9), 4.5e4, 4e5),
    "riverswim20": (lambda: riverswim(20, 0.99), 1.2e5, 1.3e5),
    "frozen4": (lambda: gym_world("FrozenLake-v1", 0.99, map_name="4x4"), 3e5, 8e5),
    "frozen8": (lambda: gym_world("FrozenLake-v1", 0.99, map_name="8x8"), 5e6, 1e7),
    "cliff": (lambda: gym_world("CliffWalking-v1", 0.99), 2.5e5, 6e5),
    "taxi": (lambda: gym_world("Taxi-v4", 0.99), 1.5e6, 5e6),
    "inventory": (lambda: inventory(), 6e6, 1.8e7),
    "garnet100": (lambda: garnet(100, 4, 0.9), 6e5, 1.5e6),
    "garnet100-99": (lambda: garnet(100, 4, 0.99), 6e5, 1.5e6),
    "garnet1000": (lambda: garnet(1000, 4, 0.9), 7e6, 2.4e7),
    "grid20": (lambda: grid(20), 1.6e7, 5e7),
    "riverswim6-h20": (lambda: riverswim(6, horizon=20), np.nan, np.nan),
    "garnet20-h10": (lambda: garnet(20, 4, horizon=10), np.nan, np.nan),
}


@dataclass
class Run:
    """What a run took."""

    samples: int = 0
    epsilon: float = np.inf
    loss: float = np.inf
    lags: int = 0
    plans: int = 0
    looks: int = 0
    plan_seconds: float = 0.0
    look_seconds: float = 0.0


def run(
    problem: World, epsilon: float, seed: int, *, delta: float = DELTA, most: float = 1e10, trace: bool = False
) -> Run:
    """Pilot, lags and looks until epsilon is certified."""
    rng, rehearsals = (np.random.default_rng([seed, stream]) for stream in range(2))
    done, past = Run(), TableSamples.none(problem.table.pairs)
    while done.samples < most:
        began = time.process_time()
        share = 0.65 * 0.35**done.lags * delta
        plan = plan_lag(problem.table, past, epsilon, share, rehearsals, print if trace else None)
        done.plan_seconds += time.process_time() - began
        done.plans += 1
        if not isinstance(plan, Lag):
            past = past + problem.sample(plan, rng)
            done.samples = int(past.pulls.sum())
            if trace:
                print(f"  pilot to {done.samples:.4g}")
            continue
        done.lags += 1
        fresh, have, bounds = TableSamples.none(problem.table.pairs), 0, []
        for units in plan.looks.tolist():
            fresh = fresh + problem.sample((units - have) * plan.unit, rng)
            have = units
            began = time.process_time()
            verdict = look(problem.table, plan, fresh, units)
            done.look_seconds += time.process_time() - began
            done.looks += 1
            done.samples = int(past.pulls.sum() + fresh.pulls.sum())
            if trace:
                print(f"  look {units} samples {done.samples:.4g} forms/eps {verdict.forms / max(epsilon, 1e-12)}")
            if verdict.epsilon < done.epsilon:
                done.epsilon, done.loss = verdict.epsilon, problem.loss(verdict.policy)
            if done.epsilon <= epsilon:
                return done
            bounds.append((units, verdict.epsilon))
            if hopeless(plan, bounds, epsilon):
                break
        past = past + fresh
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="NAME", help=", ".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--percent", type=float, nargs="*", default=[5.0, 1.0])
    parser.add_argument("--trace", action="store_true")
    chosen = parser.parse_args()
    print(f"{'problem':14} {'%':>4} {'seed':>4} {'samples':>9} {'aim':>8} {'lags':>4} {'plans':>5} {'looks':>5} "
          f"{'cpu s':>7} {'s/look':>7} {'s/plan':>7} {'MB':>5} {'eps/asked':>9} {'loss/asked':>10}")  # fmt: skip
    for name in chosen.problems:
        build, *aims = PROBLEMS[name]
        problem = build()
        for percent in chosen.percent:
            for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
                epsilon = percent / 100 * problem.largest()
                done = run(problem, epsilon, seed, trace=chosen.trace)
                aim = aims[0] if percent >= 5 else aims[1]
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                cpu, per_look = done.plan_seconds + done.look_seconds, done.look_seconds / max(done.looks, 1)
                print(
                    f"{name:14} {percent:4g} {seed:4} {done.samples:9.3g} {aim:8.2g} {done.lags:4} {done.plans:5} "
                    f"{done.looks:5} {cpu:7.2f} {per_look:7.3f} "
                    f"{done.plan_seconds / done.plans:7.3f} {memory:5.0f} {done.epsilon / epsilon:9.3f} "
                    f"{done.loss / epsilon:10.3g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
