"""Sampling from a fixed design, and the times at which to look at the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from bestpolicy.design import Design, rounded_counts
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import Problem

MAX_ROUNDS = 10**16  # counts stay exact in float64, and no simulator will ever get there

Rounding = Literal["rounded", "random"]


@dataclass(frozen=True)
class DesignSampling:
    """Pull pairs in the proportions of a design.

    Attributes
    ----------
    problem : Problem
    design : Design
        Over the rows of ``problem.pair_features``.
    rounding : {"rounded", "random"}
        Deterministic rounding, which follows the design as closely as whole numbers can, or independent draws
        from it as in the paper.
    """

    problem: Problem
    design: Design
    rounding: Rounding = "rounded"

    def __post_init__(self) -> None:
        if self.rounding not in ("rounded", "random"):
            raise InvalidInput(f"sampling must be 'rounded' or 'random'. Got {self.rounding!r} instead.")

    def empty_tally(self) -> Tally:
        """Return a tally of the design's pairs without samples."""
        return Tally.empty(self.problem, self.problem.pairs[self.design.indices])

    def until(self, rounds: int, tally: Tally, rng: np.random.Generator) -> Pulls:
        """Return the pulls that lead from `tally` to `rounds` rounds; every stage pulls the same pairs."""
        if self.rounding == "rounded":
            counts = rounded_counts(self.design.weights, rounds) - rounded_counts(self.design.weights, tally.rounds)
        else:
            counts = rng.multinomial(rounds - tally.rounds, self.design.weights)
        return Pulls(tally.pairs, np.tile(counts, (self.problem.stages, 1)))


def check_times(first: float, ratio: float) -> Iterator[int]:
    """Rounds after which to look at the data: geometric, every one if the ratio is 1.

    The rules hold at all times together, so looking on a sparse grid keeps their guarantee.
    """
    rounds = max(1, min(ceil(first), MAX_ROUNDS))
    while rounds < MAX_ROUNDS:
        yield rounds
        rounds = max(rounds + 1, ceil(rounds * ratio))
    yield MAX_ROUNDS
