"""Samples that Theorem U needs on tables of a dozen to thousands of pairs: ``python -m benchmarks.sparse [NAME ...]``.

Counts are drawn as multinomials from the tables, so times are those of planning and looking alone. Printed are samples
until a loss of 5 % and of 1 % of the largest |V*| (in the problem's own units) is certified with δ = 0.05, processor
seconds, seconds per look and per plan, peak memory, the loss that the policy really has, and after which part of the
samples what was certified first. With ``--user`` the same problems go through `bestpolicy.identify`, those of Gymnasium
as `GymSimulator`, with the time that simulating takes.

With ``--start`` the same ε is certified in every state, on average over all states as starts, and from the one state
that the problem begins in; printed are samples and how many times fewer they are than for every state.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

import bestpolicy as bp
from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.sharp import number_of, share_of
from bestpolicy.algorithms.table_plan import EarlyLag, hopeless, plan_lag
from bestpolicy.stopping.tables.lag import PLANNED, Lag
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
    begin : int
        State that the problem begins in.
    """

    table: Table
    pair: IntArray
    successor: IntArray
    probability: FloatArray
    reward: FloatArray
    coins: bool = False
    scale: float = 1.0
    offset: float = 0.0
    begin: int = 0

    def starting(self, where: str) -> World:
        """Return the same world with claims about "all" states, a "uniform" start, or the "one" that it begins in."""
        start = None if where == "all" else np.zeros(self.table.states)
        if start is not None:
            start[self.table.chain.claimed if where == "uniform" else self.begin] = 1.0
            start /= start.sum()
        return replace(self, table=replace(self.table, start=start))

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
    first = np.asarray(env.initial_state_distrib)
    live = {int(s) for s in np.flatnonzero(first > 0)}
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
    return replace(world(len(order) + 1, state, outcomes, discount, end=True), begin=position[int(np.argmax(first))])


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


HANDS = [(total, ace) for ace in (False, True) for total in range(12 if ace else 4, 22)]  # of Blackjack


def blackjack(discount: float = 0.99) -> World:
    """Gymnasium's Blackjack without bonus for a natural: the player's hand and the dealer's card, or the end.

    Cards are drawn with replacement, four of thirteen count ten. An ace counts eleven where that is not too much.
    """
    chance = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}

    def added(total: int, ace: bool, card: int) -> tuple[int, bool]:
        hard, some = total - 10 * ace + card, ace or card == 1
        return (hard + 10, True) if some and hard + 10 <= 21 else (hard, False)

    @cache
    def dealt(total: int, ace: bool) -> dict[int, float]:
        """Law of the dealer's final total, 0 if that is too much."""
        if total >= 17:
            return {total if total <= 21 else 0: 1.0}
        law: dict[int, float] = {}
        for card, p in chance.items():
            for final, q in dealt(*added(total, ace, card)).items():
                law[final] = law.get(final, 0.0) + p * q
        return law

    states = [(*hand, card) for card in range(1, 11) for hand in HANDS]
    place, end = {each: i for i, each in enumerate(states)}, len(states)
    state, outcomes = [], []
    for i, (total, ace, card) in enumerate(states):
        ended = {-1.0: 0.0, 0.0: 0.0, 1.0: 0.0}
        for final, p in dealt(*added(0, False, card)).items():
            ended[float(np.sign(total - final))] += p
        hit = [(added(total, ace, drawn), p) for drawn, p in chance.items()]
        lost = sum(p for (new, _), p in hit if new > 21)
        state += [i, i]
        outcomes.append([(p, end, r) for r, p in ended.items() if p > 0])
        outcomes.append([(p, place[*hand, card], 0.0) for hand, p in hit if hand[0] <= 21])
        outcomes[-1] += [(lost, end, -1.0)] if lost > 0 else []
    return world(end + 1, state, outcomes, discount, end=True)


PROBLEMS: dict[str, tuple[Callable[[], World], float, float]] = {  # with the samples that are aimed at
    "riverswim6": (lambda: riverswim(6, 0.9), 4.5e4, 4e5),
    "riverswim20": (lambda: riverswim(20, 0.99), 1.2e5, 1.3e5),
    "frozen4": (lambda: gym_world("FrozenLake-v1", 0.99, map_name="4x4"), 3e5, 8e5),
    "frozen8": (lambda: gym_world("FrozenLake-v1", 0.99, map_name="8x8"), 5e6, 1e7),
    "cliff": (lambda: gym_world("CliffWalking-v1", 0.99), 2.5e5, 6e5),
    "taxi": (lambda: gym_world("Taxi-v4", 0.99), 1.5e6, 5e6),
    "blackjack": (lambda: blackjack(), np.nan, np.nan),
    "inventory": (lambda: inventory(), 6e6, 1.8e7),
    "garnet100": (lambda: garnet(100, 4, 0.9), 6e5, 1.5e6),
    "garnet100-99": (lambda: garnet(100, 4, 0.99), 6e5, 1.5e6),
    "garnet1000": (lambda: garnet(1000, 4, 0.9), 7e6, 2.4e7),
    "grid20": (lambda: grid(20), 1.6e7, 5e7),
    "garnet10000": (lambda: garnet(10_000, 4, 0.9), np.nan, np.nan),
    "grid100": (lambda: grid(100), np.nan, np.nan),
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
    early: int = 0
    first: tuple[int, float] | None = None  # samples at the first certified ε, and that ε
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
        shares = [share_of(number_of(lags + 1, early)) * delta for early, lags in enumerate((done.lags, done.early))]
        say = print if trace else None
        plan = plan_lag(problem.table, past, epsilon, shares[0], rehearsals, say, (shares[1], done.epsilon))
        done.plan_seconds += time.process_time() - began
        done.plans += 1
        if not isinstance(plan, Lag):
            past = past + problem.sample(plan, rng)
            done.samples = int(past.pulls.sum())
            if trace:
                print(f"  pilot to {done.samples:.4g}")
            continue
        early = isinstance(plan, EarlyLag)
        done.lags, done.early = done.lags + (not early), done.early + early
        fresh, have, bounds = TableSamples.none(problem.table.pairs), 0, []
        for units in [PLANNED] if early else plan.looks.tolist():
            fresh = fresh + problem.sample((units - have) * plan.unit, rng)
            have = units
            began = time.process_time()
            verdict = look(problem.table, plan, fresh, units)
            done.look_seconds += time.process_time() - began
            done.looks += 1
            done.samples = int(past.pulls.sum() + fresh.pulls.sum())
            if trace:
                print(f"  look {units} samples {done.samples:.4g} forms/eps {verdict.forms / max(epsilon, 1e-12)}")
            if verdict.epsilon < min(done.epsilon, problem.table.chain.longest.max()):
                done.epsilon, done.loss = verdict.epsilon, problem.loss(verdict.policy)
                done.first = done.first or (done.samples, done.epsilon)
            if done.epsilon <= epsilon:
                return done
            bounds.append((units, verdict.epsilon))
            if hopeless(plan, bounds, epsilon):
                break
        past = past + fresh
    return done


GAMES = {
    "frozen4": ("FrozenLake-v1", {"map_name": "4x4"}),
    "frozen8": ("FrozenLake-v1", {"map_name": "8x8"}),
    "cliff": ("CliffWalking-v1", {}),
    "taxi": ("Taxi-v4", {}),
}


class Simulated:
    """A world as a simulator of a user's: a table with ends, and rewards in units of its own."""

    def __init__(self, world: World) -> None:
        self.world, table = world, world.table
        actions = np.bincount(table.state, minlength=table.states)
        mask = np.arange(actions.max()) < actions[:, None]
        self.units = bp.Units(world.scale, world.offset)
        kind = {"discount": table.discount, "horizon": table.horizon}
        problem = bp.Problem.tabular(*mask.shape, **kind, mask=mask, ends=np.flatnonzero(actions == 0))
        self.problem = problem.in_units(self.units)

    def sample(self, pulls: bp.Pulls, rng: np.random.Generator) -> bp.Tally:
        """Draw from the world, whose pairs are those of the problem that are open."""
        place = np.searchsorted(self.problem.open_pairs, pulls.pairs)
        wanted = np.zeros((len(pulls.counts), len(self.problem.open_pairs)), np.int64)
        wanted[:, place] = pulls.counts
        drawn, shape = self.world.sample(wanted.ravel(), rng), wanted.shape
        stage, pair = np.divmod(drawn.pair, shape[1])
        cells = (stage * len(place) + np.searchsorted(place, pair)) * self.problem.states + drawn.next_state
        squares = drawn.squares.reshape(shape)[:, place]
        return bp.Tally.from_cells(self.problem, pulls.pairs, cells, drawn.counts, drawn.rewards, squares)

    def loss(self, policy: IntArray) -> float:
        """Loss of a policy (stages, S), in the world's own units."""
        table, going = self.world.table, ~self.problem.is_end
        first = np.searchsorted(table.state, np.flatnonzero(going))
        stages = len(table.state) * np.arange(table.stages)[:, None]
        return self.world.scale * self.world.loss((first + policy[:, going] + stages).ravel())


def as_user(name: str, epsilon: float, seed: int) -> tuple[bp.Result, float]:
    """Certify a problem as a user does, by `identify`; return the result and the policy's true loss."""
    if name in GAMES:
        import gymnasium

        game, options = GAMES[name]
        simulator = bp.GymSimulator(gymnasium.make(game, **options), discount=0.99)
        loss = lambda policy: simulator.units.reward_scale * simulator.truth().loss(policy[0])  # noqa: E731
    else:
        simulator = Simulated(PROBLEMS[name][0]())
        loss = simulator.loss
    result = bp.identify(simulator, epsilon=epsilon, delta=DELTA, algorithm="sharp", seed=seed)
    return result, loss(result.checks[-1].policy)


def show_users(names: list[str], percents: list[float], seeds: range) -> None:
    """Print what `identify` needs, with the simulator's time."""
    print(f"{'problem':14} {'%':>4} {'seed':>4} {'samples':>9} {'aim':>8} {'cpu s':>7} {'eps/asked':>9} loss/asked")
    for name in names:
        build, *aims = PROBLEMS[name]
        problem = build()
        for percent in percents:
            for seed in seeds:
                epsilon, began = percent / 100 * problem.largest() * problem.scale, time.process_time()
                result, loss = as_user(name, epsilon, seed)
                cpu, aim = time.process_time() - began, aims[0] if percent >= 5 else aims[1]
                print(
                    f"{name:14} {percent:4g} {seed:4} {result.samples:9.3g} {aim:8.2g} {cpu:7.2f} "
                    f"{result.epsilon / epsilon:9.3f} {loss / epsilon:10.3g}",
                    flush=True,
                )


def compare_starts(name: str, problem: World, percent: float, seeds: range, trace: bool) -> None:
    """Print median samples for every state, a uniform start and one start."""
    samples, seconds, losses, epsilon = {}, 0.0, [], percent / 100 * problem.largest()
    for where in ("all", "uniform", "one"):
        runs = [run(problem.starting(where), epsilon, seed, trace=trace) for seed in seeds]
        samples[where] = float(np.median([each.samples for each in runs]))
        seconds += sum(each.plan_seconds + each.look_seconds for each in runs)
        losses += [each.loss / each.epsilon if each.epsilon > 0 else 0.0 for each in runs]
    all_states, uniform, one = samples.values()
    print(
        f"{name:14} {percent:4g} {all_states:9.3g} {uniform:9.3g} {all_states / uniform:6.2f} {one:9.3g} "
        f"{all_states / one:6.2f} {seconds:7.1f} {max(losses):10.3g}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="NAME", help=", ".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--percent", type=float, nargs="*", default=[5.0, 1.0])
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--user", action="store_true", help="by bestpolicy.identify, Gymnasium's games by GymSimulator")
    parser.add_argument("--start", action="store_true", help="compare every state, a uniform start and one start")
    chosen = parser.parse_args()
    if chosen.user:
        show_users(chosen.problems, chosen.percent, range(chosen.first_seed, chosen.first_seed + chosen.seeds))
        return
    if chosen.start:
        print(f"{'problem':14} {'%':>4} {'all':>9} {'uniform':>9} {'factor':>6} {'one':>9} {'factor':>6} {'cpu s':>7} "
              f"{'loss/eps':>10}")  # fmt: skip
        for name in chosen.problems:
            problem = PROBLEMS[name][0]()
            for percent in chosen.percent:
                seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
                compare_starts(name, problem, percent, seeds, chosen.trace)
        return
    print(f"{'problem':14} {'%':>4} {'seed':>4} {'samples':>9} {'aim':>8} {'lags':>4} {'plans':>5} {'looks':>5} "
          f"{'cpu s':>7} {'s/look':>7} {'s/plan':>7} {'MB':>5} {'eps/asked':>9} {'loss/asked':>10} {'first at':>8} "
          f"{'eps/asked':>9}")  # fmt: skip
    for name in chosen.problems:
        build, *aims = PROBLEMS[name]
        problem = build()
        for percent in chosen.percent:
            for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
                epsilon = percent / 100 * problem.largest()
                done = run(problem, epsilon, seed, trace=chosen.trace)
                aim = aims[0] if percent >= 5 else aims[1]
                assert done.first is not None
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                cpu, per_look = done.plan_seconds + done.look_seconds, done.look_seconds / max(done.looks, 1)
                print(
                    f"{name:14} {percent:4g} {seed:4} {done.samples:9.3g} {aim:8.2g} {done.lags:4} {done.plans:5} "
                    f"{done.looks:5} {cpu:7.2f} {per_look:7.3f} "
                    f"{done.plan_seconds / done.plans:7.3f} {memory:5.0f} {done.epsilon / epsilon:9.3f} "
                    f"{done.loss / epsilon:10.3g} {done.first[0] / done.samples:7.0%} {done.first[1] / epsilon:9.3g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
