"""Generative models: anything that can simulate a given (state, action) pair, any number of times.

Forward models can only be followed: ``rollout(episodes, rng) -> Tally`` simulates whole episodes of a policy. All
simulators here do that, too.

`ExactSimulator` draws whole tallies from a known `LinearMDP`; `CallableSimulator` wraps a user's function,
`NamedSimulator` one of states and actions that have names. A class
of your own needs two things, the attribute ``problem`` and the method ``sample(pulls, rng) -> Tally``; test it with
`bestpolicy.testing.check_generative_model`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Pulls, Tally
from bestpolicy.simulators.exact import ExactSimulator
from bestpolicy.simulators.feature_user import FeatureSimulator
from bestpolicy.simulators.gymnasium import GymSimulator
from bestpolicy.simulators.named import NamedSimulator
from bestpolicy.simulators.resetting import ResetSimulator
from bestpolicy.simulators.user import CallableSimulator


@runtime_checkable
class GenerativeModel(Protocol):
    """What `identify` needs of a simulator."""

    @property
    def problem(self) -> Problem:
        """Features, discount or horizon, mask."""
        ...

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked, with no other randomness than `rng`."""
        ...


@runtime_checkable
class ForwardModel(Protocol):
    """What `identify` needs of a simulator for algorithms that follow policies."""

    @property
    def problem(self) -> Problem:
        """Features, horizon, mask."""
        ...

    def rollout(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        """Simulate as many episodes of the policy as asked, with no other randomness than `rng`."""
        ...


Model = GenerativeModel | ForwardModel

__all__ = [
    "CallableSimulator",
    "ExactSimulator",
    "FeatureSimulator",
    "ForwardModel",
    "GenerativeModel",
    "GymSimulator",
    "NamedSimulator",
    "ResetSimulator",
]
