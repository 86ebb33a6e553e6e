"""Samples whose next states are kept, with all that can be done there: a model of d vectors.

Next states are looked at a block at a time; their features are sparse and stay so. As many of them as fit are kept, the
others are made anew each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import FeatureProblem
from bestpolicy.problem.feature_problem import Choices
from bestpolicy.samples.draws import Drawn

_CACHED = 4 * 10**7  # non-zero features of next states that are kept


class Kept:
    """Samples in order of stages and pairs.

    Parameters
    ----------
    problem : FeatureProblem
    drawn : Drawn
        Of which rewards and next states were kept.

    Attributes
    ----------
    stage, place : int arrays (n,)
    rewards : array (n,)
    states : array (n, k)
    counts : int array (stages, K)
    """

    def __init__(self, problem: FeatureProblem, drawn: Drawn) -> None:
        self.problem = problem
        order = np.lexsort((drawn.place, drawn.stage))
        self.stage, self.place = drawn.stage[order], drawn.place[order]
        self.rewards, self.states = drawn.rewards[order], drawn.states[order]
        self.counts = np.zeros((problem.stages, problem.places), np.int64)
        np.add.at(self.counts, (self.stage, self.place), 1)
        self._ends = np.searchsorted(self.stage, np.arange(problem.stages + 1))
        self._cache: dict[int, list[tuple[slice, Choices]]] = {}
        self._cached = 0

    def of_stage(self, stage: int) -> slice:
        """Return where the samples of a stage are."""
        return slice(int(self._ends[stage]), int(self._ends[stage + 1]))

    def drawn(self, some: slice) -> Drawn:
        """Return some of the samples."""
        shape = self.counts.shape
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, (self.stage[some], self.place[some]), 1)
        empty = np.zeros((0, *shape))
        kept = self.stage[some], self.place[some], self.rewards[some], self.states[some]
        return Drawn(counts, empty, empty, np.zeros((0, *shape, 0)), *kept)

    def blocks(self, stage: int) -> Iterator[tuple[slice, Choices]]:
        """Next states of samples at a stage, with all that can be done there."""
        if stage in self._cache:
            yield from self._cache[stage]
            return
        begin, end = self._ends[stage : stage + 2]
        found: list[tuple[slice, Choices]] | None = []
        for part, choices in self.problem.blocks(self.states[begin:end]):
            block = slice(begin + part.start, begin + part.stop), choices
            yield block
            self._cached += choices.features.nnz if found is not None else 0
            if found is not None:
                found.append(block)
            if self._cached > _CACHED:
                found = None
        if found is not None:
            self._cache[stage] = found

    def means(self, stage: int, numbers: FloatArray) -> FloatArray:
        """Return means (K,) by pair of numbers that the samples of a stage have."""
        total = np.bincount(self.place[self.of_stage(stage)], numbers, self.problem.places)
        found: FloatArray = total / np.maximum(self.counts[stage], 1)
        return found

    def step(self, stage: int, following: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return means of R' + γg, (K,), and of features, (K, d), for the policy of a vector at the next states."""
        problem, own = self.problem, self.of_stage(stage)
        totals = np.zeros(problem.places) + np.bincount(self.place[own], self.rewards[own], problem.places)
        kernel = np.zeros((problem.places, problem.dimension))
        if following is not None:
            for part, choices in self.blocks(stage):
                rows = choices.greedy(following)
                place = self.place[part]
                totals += problem.continuation * np.bincount(place, choices.known[rows], problem.places)
                kernel += added(place, choices.features[rows], problem.places)
        n = np.maximum(self.counts[stage], 1)
        return totals / n, kernel / n[:, None]


def added(place: IntArray, rows: csr_array, places: int) -> FloatArray:
    """Return sums of rows by place, (places, d), for places in increasing order."""
    total = np.zeros((places, rows.shape[1]))
    present, first = np.unique(place, return_index=True)
    ends = np.append(first, len(place))
    adding = csr_array((np.ones(len(place)), np.arange(len(place)), ends), (len(present), len(place)))
    total[present] = (adding @ rows).toarray()
    return total
