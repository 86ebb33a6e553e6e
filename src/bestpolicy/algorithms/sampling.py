"""Sampling from a fixed design or towards an allocation, and the times at which to look at the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.protocol import Task
from bestpolicy.design import Design, g_optimal_design, rounded_counts
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally

MAX_ROUNDS = 10**16  # counts stay exact in float64, and no simulator will ever get there
MAX_CALLS = 2**62  # of all steps of an episode together, which are counted in 64 bits

Rounding = Literal["rounded", "random"]


def begin_with_design(task: Task, tolerance: float) -> tuple[Design, dict[str, Any]]:
    """Return a G-optimal design, and what to decide with the first request; a run that is resumed keeps its own."""
    past = task.recall()
    if past is not None and "design" in past.decided:
        design = Design(**past.decided["design"])
    else:
        design = g_optimal_design(task.problem.pair_features, tolerance=tolerance)
    return design, {"design": vars(design)}


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


@dataclass(frozen=True, eq=False)
class AllocationSampling:
    """Pull pairs towards shares that may change on the way.

    Attributes
    ----------
    everywhere, allocation : arrays (stages, K)
        Shares of the G-optimal design, the stages alike, and shares to aim at; both sum to 1.
    weights : array (stages, K)
        u of the samples to be drawn next, for the regression.
    designed : int
        Number of samples when the allocation was last changed.
    """

    everywhere: FloatArray
    allocation: FloatArray
    weights: FloatArray
    designed: int = 0

    def redirected(self, allocation: FloatArray, weights: FloatArray, designed: int) -> AllocationSampling:
        """Return the sampling that goes on towards other shares."""
        return AllocationSampling(self.everywhere, allocation, weights, designed)

    @property
    def direction(self) -> dict[str, Any]:
        """What `redirected` needs to come back to this sampling."""
        return {"allocation": self.allocation, "weights": self.weights, "designed": self.designed}

    @classmethod
    def of(cls, shares: FloatArray, stages: int) -> AllocationSampling:
        """Return the sampling of a design, in the same way at every stage."""
        everywhere = np.tile(shares / stages, (stages, 1))
        return cls(everywhere, everywhere, np.ones(everywhere.shape))

    def until(self, samples: int, tally: Tally) -> Pulls:
        """Pulls that lead from a tally to `samples` samples, as near to the allocation as the batch allows."""
        missing = np.maximum(_whole(self.allocation * samples) - tally.pulls, 0)
        batch = samples - tally.samples
        return Pulls(tally.pairs, missing if missing.sum() <= batch else _whole(missing * (batch / missing.sum())))


def check_times(first: float, ratio: float, calls: int = 1) -> Iterator[int]:
    """Rounds of so many calls after which to look at the data: geometric, every one if the ratio is 1.

    The rules hold at all times together, so looking on a sparse grid keeps their guarantee.
    """
    most = min(MAX_ROUNDS, MAX_CALLS // calls)
    rounds = max(1, min(ceil(min(first, most)), most))
    while rounds < most:
        yield rounds
        rounds = max(rounds + 1, ceil(rounds * ratio))
    yield most


def _whole(counts: FloatArray) -> IntArray:
    """Round counts to whole numbers with the same total, by largest remainders."""
    rounded = np.floor(counts)
    short = round(float(counts.sum() - rounded.sum()))
    largest = np.argsort(np.round(rounded - counts, 6).ravel(), kind="stable")[:short]
    rounded.ravel()[largest] += 1
    return rounded.astype(np.int64)
