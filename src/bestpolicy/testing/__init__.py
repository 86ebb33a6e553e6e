"""Conformance checks for other people's simulators and algorithms.

`check_generative_model` samples a few pairs of a simulator and checks what the guarantee rests on: the right shapes and
counts, no randomness but the one passed in, rewards in [0, 1], disallowed actions never simulated, independence of the
batch. `check_algorithm` runs an algorithm on a small model whose truth is known and checks all that the loop needs of
it, and that what it certifies is true as often as it says.
"""

from bestpolicy.testing.algorithms import check_algorithm
from bestpolicy.testing.simulators import check_generative_model, check_tally

__all__ = ["check_algorithm", "check_generative_model", "check_tally"]
