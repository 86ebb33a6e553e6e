"""Environments of Gymnasium through reset and step alone: what a certificate at the start takes, and what is true.

δ = 0.1, one seed, steps taken as alike. A line has the horizon, the asked ε, the episodes and the environment's own
steps, seconds of processor time (Gymnasium's own included), the certified ε, the value of the best policy from the
start, and what the policy loses against it there, both worked out from the true model, which `forward` does not see.
Options: ``python -m benchmarks.resets [--only TEXT] [--seed N]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import bestpolicy as bp
from benchmarks.sparse import HANDS, blackjack

DELTA = 0.1


@dataclass(frozen=True)
class Game:
    """The law of a game: what steps lead to, (S, A, S + 1) with the end last, what they pay, and where it begins."""

    transitions: Any
    rewards: Any
    start: Any

    def value(self, horizon: int, policy: Any = None) -> float:
        """What a policy (H, S) earns from the start; the best one by default."""
        after = np.zeros(len(self.start) + 1)
        for step in reversed(range(horizon)):
            q = self.rewards + self.transitions @ after
            here = q.max(axis=1) if policy is None else np.take_along_axis(q, policy[step][:, None], axis=1)[:, 0]
            after = np.append(here, 0.0)
        return float(self.start @ after[:-1])


def of_table(env: Any) -> Game:
    """Read the table of an environment that has one."""
    core = env.unwrapped
    states, actions = int(core.observation_space.n), int(core.action_space.n)
    transitions, rewards = np.zeros((states, actions, states + 1)), np.zeros((states, actions))
    for state in range(states):
        for action in range(actions):
            for chance, following, reward, over in core.P[state][action]:
                transitions[state, action, states if over else following] += chance
                rewards[state, action] += chance * reward
    return Game(transitions, rewards, np.asarray(core.initial_state_distrib))


def of_cards(env: Any) -> Game:
    """Blackjack as worked out in `benchmarks.sparse`, in the order in which its space is listed: (total, card, ace)."""
    shape = tuple(int(space.n) for space in env.observation_space)
    place = np.array([np.ravel_multi_index((t, card, int(ace)), shape) for card in range(1, 11) for t, ace in HANDS])
    kernel, paid, _ = blackjack().model
    size = int(np.prod(shape))
    transitions, rewards = np.zeros((size, 2, size + 1)), np.zeros((size, 2))
    transitions[:, :, -1] = 1.0
    transitions[place] = 0.0
    transitions[place[:, None, None], np.arange(2)[:, None], np.append(place, size)] = kernel.toarray().reshape(
        len(place), 2, -1
    )
    rewards[place] = 2 * np.asarray(paid).reshape(-1, 2) - 1  # they were mapped to [0, 1]
    start, cards = np.zeros(size), [(card, (4 if card == 10 else 1) / 13) for card in range(1, 11)]
    for one, p in cards:
        for two, q in cards:
            ace = 1 in (one, two)
            for shown, r in cards:
                start[np.ravel_multi_index((one + two + 10 * ace, shown, int(ace)), shape)] += p * q * r
    return Game(transitions, rewards, start)


@dataclass(frozen=True)
class Case:
    """An environment, and what is asked of it."""

    name: str
    horizon: int
    epsilon: float
    low: float
    high: float
    made: dict[str, Any] = field(default_factory=dict)
    law: Callable[[Any], Game] = of_table


LAKE_8 = {"map_name": "8x8"}
CASES = (
    Case("FrozenLake-v1", 15, 0.2, 0, 1),
    Case("FrozenLake-v1", 15, 0.1, 0, 1),
    Case("FrozenLake-v1", 60, 0.1, 0, 1, LAKE_8),
    Case("FrozenLake-v1", 100, 0.2, 0, 1, LAKE_8),
    Case("Blackjack-v1", 5, 0.5, -1, 1, law=of_cards),
    Case("Taxi-v4", 20, 10.0, -10, 20),
    Case("Taxi-v4", 20, 5.0, -10, 20),
)


def measure(case: Case, seed: int) -> str:
    """Certify a policy, and judge it."""
    import gymnasium

    class Counted(gymnasium.Wrapper):  # type: ignore[type-arg,misc]
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            return self.env.step(action)

    env = Counted(gymnasium.make(case.name, **case.made))
    model = bp.ResetSimulator(
        env, horizon=case.horizon, reward_range=(case.low, case.high), return_limit=case.high, stationary=True
    )
    begun = time.process_time()
    result = bp.identify(model, epsilon=case.epsilon, delta=DELTA, seed=seed)
    took, game = time.process_time() - begun, case.law(env)
    assert result.certified
    best = game.value(case.horizon)
    lost = best - game.value(case.horizon, np.asarray(result.policy))
    assert lost <= result.epsilon, "a policy that was vouched for is not within ε"
    name = " ".join([case.name, *map(str, case.made.values())])
    return (
        f"{name:19s}{case.horizon:4d} {case.epsilon:5g} {result.rounds:9,d} {env.steps:10,d} {took:6.0f} "
        f"{result.epsilon:9.3g} {best:7.3f} {max(lost, 0.0):7.4f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="environments whose names have this text")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args([] if arguments is None else arguments)
    print(f"{'':19s}   H     ε  episodes      steps      s certified    best    loss")
    for case in CASES:
        if options.only in " ".join([case.name, *map(str, case.made.values())]):
            print(measure(case, options.seed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
