"""Draw whole tallies from a known model.

m independent samples of one pair have multinomial next-state counts, and given those the rewards that came with
each next state are a sum of independent draws. So the cost of a batch does not depend on the number of samples:
10¹¹ of them take about as long as ten, and the tally has exactly the distribution of drawing one by one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, Sparse
from bestpolicy._numerics.inputs import choice
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Pulls, Tally, require_episodes, require_pulls
from bestpolicy.simulators.population import roll_out

RewardLaw = Literal["bernoulli", "deterministic"]
_LAWS = ("bernoulli", "deterministic")
_ENTRIES = 1_000_000  # of tables of probabilities that are used at a time
_LOOKED_UP = 2**17  # outcomes of a model up to which they are kept as a table


class ExactSimulator:
    """Simulator of a known linear MDP.

    Parameters
    ----------
    mdp : LinearMDP
    rewards : {"bernoulli", "deterministic"}
        Law of the reward given the pair, independent of the next state: 1 with probability r(s,a) and else 0, or
        always r(s,a).
    """

    def __init__(self, mdp: LinearMDP, rewards: RewardLaw = "bernoulli") -> None:
        if not isinstance(mdp, LinearMDP):
            raise InvalidInput(
                f"mdp must be a LinearMDP, which knows theta and mu. Got {type(mdp).__name__}; wrap a simulator "
                "of your own in CallableSimulator."
            )
        choice("rewards", rewards, _LAWS)
        self.mdp = mdp
        self.rewards = rewards
        self._mean_rewards = np.clip(mdp.rewards, 0.0, 1.0).reshape(mdp.problem.stages, -1)
        self._known: dict[tuple[int, int], tuple[IntArray, FloatArray, IntArray, FloatArray]] = {}

    @property
    def problem(self) -> Problem:
        """The problem that the model solves."""
        return self.mdp.problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        require_pulls(pulls, self.problem, rng)
        if self.mdp.kernel is not None:
            return self._sample_table(self.mdp.kernel, pulls, rng)
        counts = np.empty((*pulls.counts.shape, self.problem.states), np.int64)
        step = max(1, _ENTRIES // max(1, counts[0].size))
        for start in range(0, len(counts), step):
            some = slice(start, start + step)
            counts[some] = rng.multinomial(pulls.counts[some], self.mdp.transition_rows(pulls.pairs, some))
        means = self._mean_rewards[:, pulls.pairs]
        if self.rewards == "bernoulli":
            sums = np.zeros(counts.shape)
            drawn = counts > 0
            sums[drawn] = rng.binomial(counts[drawn], np.broadcast_to(means[:, :, None], counts.shape)[drawn])
            squares = sums.sum(axis=2)
        else:
            sums = counts * means[:, :, None]
            squares = pulls.counts * means**2
        return Tally._trusted(pulls.pairs, counts, sums, squares)

    def rollout(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        """Simulate episodes, or one walk; the cost of episodes does not depend on their number."""
        require_episodes(episodes, self.problem, rng)
        if episodes.start is None:
            raise InvalidInput("start is needed, a state or a distribution over states: an exact model has none.")
        return roll_out(self.problem, episodes, self._outcomes, rng)

    def _outcomes(self, stage: int, pairs: IntArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """What can follow pairs: probabilities, next states and rewards, each (n, M); of small models looked up."""
        if len(self.problem.pairs) * self.problem.states * self.problem.stages > _LOOKED_UP:
            return self._made_outcomes(stage, pairs)
        width = int(self._widths[stage, pairs].max(initial=1))  # of the wider ones nothing is asked, nor in their table
        if (stage, width) not in self._known:
            some = self.problem.pairs[self._widths[stage, self.problem.pairs] <= width]
            place = np.zeros(self.problem.mask.size, np.int64)
            place[some] = np.arange(len(some))
            self._known[stage, width] = (place, *self._made_outcomes(stage, some))
        place, chances, following, paid = self._known[stage, width]
        rows = place[pairs]
        return chances[rows], following[rows], paid[rows]

    @cached_property
    def _widths(self) -> IntArray:
        """How many next states each pair is drawn with, (stages, S·A)."""
        widths = np.full((self.problem.stages, self.problem.mask.size), self.problem.states)
        if self.mdp.kernel is not None:
            widths[:, self.problem.pairs] = [np.diff(rows.indptr) for rows in self.mdp.kernel]
        return widths

    def _made_outcomes(self, stage: int, pairs: IntArray) -> tuple[FloatArray, IntArray, FloatArray]:
        if self.mdp.kernel is None:
            chances = self.mdp.transition_rows(pairs, stage)
            following = np.broadcast_to(np.arange(self.problem.states), chances.shape)
        else:
            rows, places = self.mdp.kernel[stage], np.searchsorted(self.problem.pairs, pairs)
            begins, ends = rows.indptr[places], rows.indptr[places + 1]
            entries = begins[:, None] + np.arange((ends - begins).max(initial=1))
            inside = entries < ends[:, None]
            entries = np.where(inside, entries, begins[:, None])
            chances, following = np.where(inside, rows.data[entries], 0.0), rows.indices[entries].astype(np.int64)
        means = self._mean_rewards[stage, pairs][:, None]
        if self.rewards == "deterministic":
            return chances, following, np.broadcast_to(means, chances.shape)
        paid = np.repeat([[0.0, 1.0]], chances.shape[1], axis=1)
        return (
            np.concatenate([chances * (1 - means), chances * means], axis=1),
            np.concatenate([following, following], axis=1),
            np.broadcast_to(paid, (len(pairs), paid.shape[1])),
        )

    def _sample_table(self, kernel: Sparse, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Draw among the possible next states alone, for all pairs with equally many of them at once."""
        shape = (*pulls.counts.shape, self.problem.states)
        places = np.searchsorted(self.problem.pairs, pulls.pairs)
        cells, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for stage, (rows, wanted) in enumerate(zip(kernel, pulls.counts, strict=True)):
            begins = rows.indptr[places]
            sizes = rows.indptr[places + 1] - begins
            for size in np.unique(sizes):
                some = np.flatnonzero(sizes == size)
                entries = begins[some, None] + np.arange(size)
                drawn = rng.multinomial(wanted[some], rows.data[entries])
                following = (stage * shape[1] + some[:, None]) * shape[2] + rows.indices[entries]
                cells.append(following[drawn > 0])
                counts.append(drawn[drawn > 0])
        cell, count = np.concatenate(cells), np.concatenate(counts)
        order = np.argsort(cell)
        cell, count = cell[order], count[order]
        means, row = self._mean_rewards[:, pulls.pairs], cell // shape[2]
        if self.rewards == "bernoulli":
            paid = np.asarray(rng.binomial(count, means.reshape(-1)[row]), np.float64)
            squares = np.bincount(row, weights=paid, minlength=means.size).astype(np.float64, copy=False)
        else:
            paid = count * means.reshape(-1)[row]
            squares = (pulls.counts * means**2).reshape(-1)
        return Tally._of_cells(shape, pulls.pairs, cell, count, paid, squares.reshape(means.shape))
