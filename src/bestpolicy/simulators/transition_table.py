"""A transition table ``P[s][a] = [(probability, next state, reward, terminated), …]`` that is sampled in whole tallies.

The counts of the outcomes of m independent steps are multinomial, so the cost does not depend on m. See `gymnasium`
for what becomes of transitions that terminate and of states in which nothing is decided.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.problem.names import key_of
from bestpolicy.samples import Pulls, Tally

_ENTRY = "a list of (probability, next state, reward, terminated)"


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """The possible outcomes of each pair, at most M of them; first as the environment has them, then normalised.

    Attributes
    ----------
    allowed : bool array (n, A)
    probabilities, rewards : array ((n + 1)·A, M)
        The last A rows are for the end.
    successors : int array ((n + 1)·A, M)
    terminates : bool array ((n + 1)·A, M)
    """

    allowed: BoolArray
    probabilities: FloatArray
    rewards: FloatArray
    successors: IntArray
    terminates: BoolArray

    @classmethod
    def read(
        cls, rows: Any, states: list[Any], actions: list[Any], position: dict[Hashable, int], mask: BoolArray
    ) -> TransitionTable:
        """Read ``P[s][a] = [(probability, next state, reward, terminated), …]``; an action may be missing."""
        pairs = [(state, action) for state in states for action in actions]
        lists = [_outcomes(rows, *pair) if allowed else [] for pair, allowed in zip(pairs, mask.flat, strict=True)]
        shape = len(lists) + len(actions), max(1, *map(len, lists))
        probabilities, rewards = np.zeros(shape), np.zeros(shape)
        successors, terminates = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        for row, (pair, outcomes) in enumerate(zip(pairs, lists, strict=True)):
            for column, (probability, successor, reward, terminated) in enumerate(outcomes):
                if key_of(successor) not in position or not np.isfinite(reward):
                    raise InvalidInput(
                        f"table entry (state, action) = {pair}: next state {successor}, reward {reward}. Expected one "
                        f"of the {len(states)} states and a finite number."
                    )
                probabilities[row, column], rewards[row, column] = probability, reward
                successors[row, column], terminates[row, column] = position[key_of(successor)], terminated
            total, least = probabilities[row].sum(), probabilities[row].min()
            if outcomes and not (abs(total - 1) <= 1e-8 and least >= 0):
                wrong = f"include {least:g}" if least < 0 else f"sum to {total:g}, not 1"
                raise InvalidInput(
                    f"table entry (state, action) = {pair}: probabilities {wrong}. Mend env.unwrapped.P."
                )
            probabilities[row] /= total if outcomes else 1.0
        allowed = np.array([len(outcomes) > 0 for outcomes in lists]).reshape(mask.shape)
        return cls(allowed, probabilities, rewards, successors, terminates)

    def live_states(self, initial: BoolArray | None, everywhere: bool) -> BoolArray:
        """Return the states in which an episode takes decisions, (n,)."""
        n, actions = self.allowed.shape
        origins = np.arange(n + 1).repeat(actions)[:, None]
        possible, states = self.probabilities > 0, np.arange(n)
        if initial is None or everywhere:
            only_ended = np.isin(states, self.successors[possible & self.terminates])
            only_ended &= ~np.isin(states, self.successors[possible & ~self.terminates])
            return ~only_ended if initial is None else initial | ~only_ended
        live, before = initial, np.zeros_like(initial)
        while (live != before).any():
            before, onward = live, possible & ~self.terminates & np.isin(origins, np.flatnonzero(live))
            live = live | np.isin(states, self.successors[onward])
        return live

    def ends(self, live: BoolArray) -> bool:
        """Whether the end is needed: something terminates, or some state is not live."""
        return bool(((self.probabilities > 0) & self.terminates).any() or not live.all())

    def reward_range(self, live: BoolArray) -> tuple[float, float]:
        """Return the smallest and the largest reward that an episode can see."""
        rewards = self.rewards[(self.probabilities > 0) & self._of(live)[:, None]]
        return float(rewards.min(initial=np.inf)), float(rewards.max(initial=-np.inf))

    def normalised(self, live: BoolArray, offset: float, scale: float) -> TransitionTable:
        """Return the table of the normalised problem, in which all that terminates leads to the end."""
        (end, actions), over = self.allowed.shape, ~self._of(live)[:, None]
        probabilities = np.where(over, np.eye(1, self.rewards.shape[1]), self.probabilities)
        paid = np.where(over, 0.0, self.rewards)
        rewards = np.where(probabilities > 0, (paid - offset) / scale, 0.0)
        wrong = (rewards < 0) | (rewards > 1)
        wrong[end * actions :] = False  # without an end its rows are not used, and 0 may lie outside
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            state, action = divmod(int(row), actions)
            raise InvalidInput(f"pair (state {state}, action {action}): {outside(paid[row, column], offset, scale)}")
        terminates = self.terminates | over
        successors = np.where(terminates, end, self.successors)
        return TransitionTable(self.allowed, probabilities, rewards, successors, terminates)

    def sample(self, problem: Problem, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Draw the counts of the outcomes and add them up by next state."""
        rewards, successors = self.rewards[pulls.pairs], self.successors[pulls.pairs]
        drawn = rng.multinomial(pulls.counts, self.probabilities[pulls.pairs])
        stage, pair, outcome = np.nonzero(drawn)
        counts = drawn[stage, pair, outcome]
        return Tally._counted(
            (problem.stages, len(pulls.pairs), problem.states),
            pulls.pairs,
            stage * len(pulls.pairs) + pair,
            successors[pair, outcome],
            counts,
            counts * rewards[pair, outcome],
            (drawn * rewards**2).sum(axis=2),
        )

    def outcomes(self, stage: int, pairs: IntArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """What can follow pairs, at every stage alike: probabilities, next states and rewards, each (n, M)."""
        return self.probabilities[pairs], self.successors[pairs], self.rewards[pairs]

    def _of(self, live: BoolArray) -> BoolArray:
        """Spread a property of states over the rows; the end does not have it."""
        return np.append(live, False).repeat(self.allowed.shape[1])


def outside(reward: float, offset: float, scale: float) -> str:
    """Say that a reward does not lie where it was said to."""
    return f"reward {reward:g} is outside reward_range=({offset:g}, {offset + scale:g}). Widen the range."


def _outcomes(rows: Any, state: Any, action: Any) -> list[tuple[float, Any, float, bool]]:
    """Return the entry of a pair; none if the table lacks it, because the action is not allowed there."""
    try:
        entry = rows[state][action]
    except (KeyError, IndexError):
        return []
    except TypeError:
        raise InvalidInput(
            f"env.unwrapped.P must hold {_ENTRY} as P[state][action]. Got {type(rows).__name__} instead."
        ) from None
    try:
        return [(float(p), following, float(reward), bool(end)) for p, following, reward, end in entry]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"table entry (state, action) = {(state, action)}: expected {_ENTRY}. Got {entry!r:.80}."
        ) from None
