"""Episodes on record: who stops in the midst of many loses the one that is being simulated, and nothing else.

A row of the record (`calls`) is a step: its reward, and the pair and the next state as one number. Whoever can begin in
any state goes on in the midst of an episode; an environment that can only be reset begins the episode anew, with the
stream as it was then, so that it is the same episode.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.simulators.calls import Calls

_KEPT = 2**16  # steps that are kept as they are before they are counted


def pieces(problem: Problem, count: int, at_once: int = 1) -> list[int]:
    """Divide episodes into pieces whose steps fit into memory; they depend on nothing but the numbers."""
    most = max(at_once, _KEPT // problem.stages, 1)
    return [min(most, count - begin) for begin in range(0, count, most)]


class Room:
    """Room for some episodes. What is on record of them is in it already, and the stream goes on from there.

    Attributes
    ----------
    states, actions, rewards : array (n, H + 1), (n, H), (n, H)
        To be filled in; zeros where nothing is known.
    done, part : int
        Number of episodes that are known, and of steps of the next one.
    """

    def __init__(self, problem: Problem, count: int, calls: Calls, rng: np.random.Generator) -> None:
        self._problem, self._calls = problem, calls
        self._paid, self._cells, self._noted = calls.block(count * problem.stages, rng)
        self._paid[self._noted :] = 0.0
        self.rewards = self._paid.reshape(count, problem.stages)
        self.states = np.zeros((count, problem.stages + 1), np.int64)
        self.actions = np.zeros((count, problem.stages), np.int64)
        self.done, self.part = divmod(self._noted, problem.stages)
        row, step = np.divmod(np.arange(self._noted), problem.stages)
        pair, following = np.divmod(self._cells[: self._noted], problem.states)
        self.states[row, step], self.actions[row, step] = np.divmod(pair, problem.actions)
        self.states[row, step + 1] = following

    def note(self, steps: int, rng: np.random.Generator, more: Callable[[], bytes] = bytes) -> None:
        """Put the first so many steps on record, if it is time to, or if these are all.

        Raises
        ------
        Paused
            If it is time to stop.
        """
        if steps < len(self._paid) and time.monotonic() < self._calls.due:
            return
        if self._calls.keeps:
            row, step = np.divmod(np.arange(self._noted, steps), self._problem.stages)
            pair = self.states[row, step] * self._problem.actions + self.actions[row, step]
            self._cells[self._noted : steps] = pair * self._problem.states + self.states[row, step + 1]
        self._noted = steps
        self._calls.note(self._paid, self._cells, steps, rng, more())

    def counted(self, episodes: int | None = None, lengths: object = None) -> Tally:
        """Return the tally of the first so many episodes, all by default; `lengths` as in `Tally.from_episodes`."""
        some = slice(0, episodes)
        part = None if lengths is None else np.asarray(lengths)[some]
        return Tally.from_episodes(self._problem, self.states[some], self.actions[some], self.rewards[some], part)
