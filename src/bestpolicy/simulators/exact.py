"""Draw whole tallies from a known model.

m independent samples of one pair have multinomial next-state counts, and given those the rewards that came with
each next state are a sum of independent draws. So the cost of a batch does not depend on the number of samples:
10¹¹ of them take about as long as ten, and the tally has exactly the distribution of drawing one by one.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from bestpolicy._numerics.inputs import choice
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally, require_pulls

RewardLaw = Literal["bernoulli", "deterministic"]
_LAWS = ("bernoulli", "deterministic")


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

    @property
    def problem(self) -> Problem:
        """The problem that the model solves."""
        return self.mdp.problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        require_pulls(pulls, self.problem, rng)
        counts = np.stack(
            [
                rng.multinomial(stage_counts, self.mdp.transition_rows(pulls.pairs, stage))
                for stage, stage_counts in enumerate(pulls.counts)
            ]
        )
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
