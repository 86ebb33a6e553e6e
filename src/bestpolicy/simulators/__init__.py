"""Generative models: anything that can simulate a given (state, action) pair, any number of times.

`ExactSimulator` draws whole tallies from a known `LinearMDP`; `CallableSimulator` wraps a user's function. A class
of your own needs two things, the attribute ``problem`` and the method ``sample(pulls, rng) -> Tally``; test it with
`bestpolicy.testing.check_generative_model`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators.exact import ExactSimulator
from bestpolicy.simulators.gymnasium import GymSimulator
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


__all__ = ["CallableSimulator", "ExactSimulator", "GenerativeModel", "GymSimulator"]
