"""Which targets to search next.

There are as many targets as suboptimal actions, and a search costs milliseconds to a second. Each iteration searches
those with the lowest predicted cost: the quadratic estimate, corrected by what the target's last search gave, or the
cost of its best known alternative if that is lower. Kinds of targets that mostly come to nothing wait, targets that
only repeat what others found sleep for a while, and at ε > 0, where estimates are poor, some never tried get a chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.search import Search

_TARGETS, _ATTEMPTS = 6, 12  # successful and other searches per iteration
_SWEEP, _SWEEP_RANGE = 40, 1.3  # searches of the last look around, up to this multiple of the lowest cost
_SLEEP = 8
_HOPELESS = 1e9
_SHRUNK, _NODE_LIMIT = 2, 60  # alternatives per iteration that branch and bound tries to improve, and its effort


class Explorer:
    """Chooses targets and remembers how they fared.

    Parameters
    ----------
    search : Search
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        count = len(search.targets)
        self._corrections = np.ones(count)
        self._tried = np.zeros(count, dtype=np.bool_)
        self._asleep_until = np.zeros(count, dtype=np.int64)
        self._kinds = np.array([int(target.seeded) for target in search.targets], dtype=np.int64)
        self._luck = np.ones((2, 2))  # (kind, failures and successes)
        self._calls = 0

    @property
    def exhausted(self) -> bool:
        """Whether every target has been searched at least once."""
        return bool(self._tried.all())

    def explore(
        self,
        query: FloatArray,
        known: dict[int, tuple[Alternative, float]],
        deadline: float,
        *,
        sweep: bool = False,
    ) -> Iterator[tuple[int, Alternative]]:
        """Search a number of targets at the allocation `query`.

        Parameters
        ----------
        query : array (stages, n)
        known : dict
            For targets that have one, their cheapest known alternative with its cost at `query`; -1 for alternatives
            of unknown origin.
        deadline : float
        sweep : bool, optional
            Look at every target whose prediction is near the lowest cost, known or not.

        Yields
        ------
        (target, Alternative)
            One by one, so that an interruption loses nothing.
        """
        self._calls += 1
        search = self.search
        estimates = search.estimates(query)
        predictions = self._predictions(estimates, known)
        lowest = min((cost for _, cost in known.values()), default=np.inf)
        found: list[tuple[float, int, Alternative]] = []
        for target in self._order(predictions, lowest, sweep):
            if len(found) >= (_SWEEP if sweep else _TARGETS) or monotonic() > deadline:
                break
            start = known[target][0] if target in known else None
            result = search.find(
                query,
                search.targets[target],
                None if start is None else (start.theta_change, start.mu_change),
                expected=float(predictions[target]),
                deadline=deadline,
            )
            self._tried[target] = True
            self._luck[self._kinds[target], int(result is not None)] += 1
            if result is None:
                self._corrections[target] = min(10 * self._corrections[target], _HOPELESS)
                continue
            cost = search.cost(query, result)
            self._corrections[target] = cost / estimates[target]
            others = [alternative for _, _, alternative in found] + [entry[0] for entry in known.values()]
            if any(self._alike(query, cost, result, other) for other in others):
                self._asleep_until[target] = self._calls + _SLEEP
            else:
                found.append((cost, target, result))
                yield target, result
        if search.reference.epsilon > 0:
            for cost, target, alternative in sorted(found, key=lambda entry: entry[0])[:_SHRUNK]:
                closer = alternative if cost > 1.2 * lowest else search.shrunk(alternative, _NODE_LIMIT, deadline)
                if closer is not alternative:
                    yield target, closer

    def _predictions(self, estimates: FloatArray, known: dict[int, tuple[Alternative, float]]) -> FloatArray:
        doubts = self._luck.sum(axis=1) / self._luck[:, 1]
        predictions = estimates * self._corrections * np.where(self._tried, 1.0, doubts[self._kinds])
        for target, (_, cost) in known.items():
            if target >= 0:
                predictions[target] = min(predictions[target], cost)
        return predictions

    def _order(self, predictions: FloatArray, lowest: float, sweep: bool) -> list[int]:
        order = np.argsort(predictions)
        if sweep:
            order = order[predictions[order] <= _SWEEP_RANGE * lowest]
            return [int(target) for target in order[:_SWEEP]]
        order = order[self._asleep_until[order] <= self._calls]
        fresh = order[~self._tried[order]][: _ATTEMPTS // 4] if self.search.reference.epsilon > 0 else order[:0]
        promising = order[:_ATTEMPTS]
        return [int(target) for target in (*promising[~np.isin(promising, fresh)], *fresh)]

    def _alike(self, query: FloatArray, cost: float, first: Alternative, second: Alternative) -> bool:
        """Whether two alternatives look the same at the allocation."""
        pairs = self.search.truth.problem.pairs
        difference = np.abs(first.divergences - second.divergences).reshape(len(query), -1)[:, pairs]
        return float((query * difference).sum()) < 1e-3 * cost
