"""What a study has asked, been told and decided so far, as its file remembers it.

A request of the algorithm is followed by another only once it was answered completely. So of all requests but the last
the answers are added up as they are; the queries of the last one may still be waiting for theirs.

Files of the first versions do not hold the requests. For the paper's algorithms and ours, whose rules hold for any
sampling that does not look ahead, what was asked is read off the answers: those between two looks belong together. The
looks are then taken again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, nextafter

import numpy as np

from bestpolicy.algorithms.protocol import Remembered
from bestpolicy.errors import StoreError
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check
from bestpolicy.study.journal import Asked, Record
from bestpolicy.study.queries import Batch

_ANY_SAMPLING = ("gss", "gss-e", "tight", "adaptive")

Answers = deque[tuple[int, int, Tally]]


@dataclass(frozen=True, eq=False)
class Past:
    """Requests and checks of a study that is resumed; nothing for a new one.

    Attributes
    ----------
    requests : list of Asked
    checks : list of Check
        In the user's units.
    rebuilt : bool
        Whether the file held no requests, so that they were read off the answers.
    """

    requests: list[Asked] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    rebuilt: bool = False

    @classmethod
    def of(cls, record: Record, answers: Answers) -> Past:
        """Take what the file knows."""
        if record.requests or not answers or record.settings.algorithm not in _ANY_SAMPLING:
            return cls(record.requests, record.trace)
        from_elsewhere = 0 if record.own_data is None else record.own_data.samples
        looks = [check["samples"] - from_elsewhere for check in record.checks]
        return cls(_read_off(answers, looks), record.trace, rebuilt=True)

    def request(self, position: int) -> Asked | None:
        """Return the request of that position, if there was one."""
        return self.requests[position] if position < len(self.requests) else None

    @cached_property
    def complete(self) -> list[tuple[int, float]]:
        """First query of each request that was answered completely, and of what followed it."""
        ends = [*(request.first for request in self.requests), inf][1:]
        known = [(request.first, end) for request, end in zip(self.requests, ends, strict=True)]
        return known if self.rebuilt else known[:-1]

    def memory(self, reward_scale: float, lost: float = 0.0) -> list[Remembered]:
        """What the algorithm shall recall request by request, in its own units of reward."""
        if self.rebuilt:
            return []
        if any(request.looks > len(self.checks) for request in self.requests):
            raise StoreError("a look at the data is missing: the file is damaged. Take a copy that is whole.")
        recalled, seen = [], 0
        for request in self.requests:
            check = self._unscaled(request.looks - 1, reward_scale, lost) if request.looks > seen else None
            recalled.append(Remembered(check, request.decided))
            seen = request.looks
        if self.requests and len(self.checks) > seen:  # the last look ended the run
            recalled.append(Remembered(self._unscaled(-1, reward_scale, lost), {}))
        return recalled

    def _unscaled(self, position: int, reward_scale: float, lost: float) -> Check:
        check = self.checks[position]
        gap, floor = (_divided(value, reward_scale) for value in (check.gap, check.value_floor))
        return replace(check, epsilon=_divided(check.epsilon, reward_scale, lost), gap=gap, value_floor=floor)


def _divided(product: float, factor: float, added: float = 0.0) -> float:
    """Return a number that gives exactly this with the factor and what is added, if there is one."""
    quotient = max(0.0, product - added) / factor if added else product / factor
    near = (quotient, nextafter(quotient, inf), nextafter(quotient, -inf))
    return next((number for number in near if number * factor + added == product), quotient)


def _read_off(answers: Answers, looks: list[int]) -> list[Asked]:
    """Return the requests that the answers belong to, given the number of samples at each look."""
    requests, batch, first, following, seen = list[Asked](), Batch(), 0, 0, 0
    ends = set(looks)
    for position, (query, _, tally) in enumerate(answers, start=1):
        batch.add(query, tally)
        following, seen = max(following, query + 1), seen + tally.samples
        if seen in ends or position == len(answers):
            whole = batch.total()
            assert whole is not None
            asked = np.flatnonzero(whole.pulls.any(axis=0))
            requests.append(Asked(first, 0, Pulls(whole.pairs[asked], whole.pulls[:, asked]), {}))
            batch, first = Batch(), following
    return requests
