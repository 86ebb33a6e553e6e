"""How many samples a plan for a table needs: the fewest with which rehearsals close."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.table_planner import PATIENCE, Planner
from bestpolicy.stopping.tables.lag import Lag
from bestpolicy.stopping.tables.look import Observed

_CLOSES = 0.95  # of epsilon: what a rehearsal must reach
_GROWTH, _STEP = 1.25, 1.12  # of counts, on the way up and when it is tried with fewer
_DRAWS = 3
_FARTHEST = 5.5 * PATIENCE  # times the past: a larger plan asks for no more samples before the next one
_POLISHED = 1.3 * PATIENCE  # times the past: up to here it is tried with fewer samples


class Search:
    """The cheapest counts whose rehearsal closes: a multiple of those of the first order, and a level of the start."""

    def __init__(
        self,
        planner: Planner,
        counts: FloatArray,
        template: FloatArray,
        seed: int,
        say: Callable[[str], None] | None,
    ) -> None:
        self.planner, self.counts, self.template = planner, counts, template
        self.levels, self.seed, self.say = planner.start_counts(), seed, say
        self.known: dict[tuple[float, int], tuple[float, Lag, Observed]] = {}
        self.worst: dict[tuple[float, int], float] = {}  # of several draws

    def planned(self, factor: float, level: int) -> FloatArray:
        """Counts (M,)."""
        planned = self.counts * factor
        played = self.planner.past.policy
        planned[played] = np.maximum(planned[played], self.levels[level])
        return planned

    def cost(self, factor: float, level: int) -> float:
        """Samples in all."""
        return float(self.planned(factor, level).sum())

    def rehearse(self, factor: float, level: int, near: tuple[float, int] | None = None) -> float:
        """Bound that a rehearsal ends with; squares and ranges are expected to be those of the plan nearby, if any."""
        if (factor, level) not in self.known:
            self.known[factor, level] = self._rehearsed(factor, level, near)
        return self.known[factor, level][0]

    def _rehearsed(
        self, factor: float, level: int, near: tuple[float, int] | None, draw: int = 0
    ) -> tuple[float, Lag, Observed]:
        planned = self.planned(factor, level)
        expected = None if near is None else self.known[near][2]
        # Every rehearsal draws the same random numbers, so that luck does not decide between plans.
        rng = np.random.default_rng([self.seed, draw])
        lag, verdict = self.planner.rehearse(planned, self.template, rng, expected)
        if self.say is not None:
            shown = verdict.forms / (self.planner.epsilon or 1.0)
            self.say(f"rehearsed {planned.sum():.4g} samples, factor {factor:.3g}, level {level}: {shown}")
        return float(steady(np.array(verdict.epsilon))), lag, verdict.observed

    def close(self) -> tuple[FloatArray, Lag | None]:
        """Return planned counts, and the lag if its rehearsal closes."""
        goal = _CLOSES * self.planner.epsilon
        had, limited = float(self.planner.past.samples.pulls.sum()), self.planner.limited
        most = _FARTHEST * had
        factor, level = self._first(1.0 if limited else 0.25)
        if limited:
            return self.planned(factor, level), None
        while self.cost(factor, level) <= most and self.rehearse(factor, level) > goal:
            factor, level = self._better(factor, level, goal)
        if self.cost(factor, level) > most:
            return self.planned(factor, level), None
        if self.cost(factor, level) > _POLISHED * had and self.rehearse(factor, level) > 0.75 * goal:
            return self.planned(factor, level), None  # it will wait and be planned anew: no need to be exact
        self.known[factor, level] = self._rehearsed(factor, level, (factor, level))  # with bets for what it showed
        while not self._closes(factor, level, goal) and self.cost(factor, level) <= most:
            here, factor = (factor, level), factor * _STEP
            self.rehearse(factor, level, here)
        for shrink, lower in ((1.0, 1), (_STEP, 0)):  # fewer, as long as it closes
            while level >= lower and factor > 0.2:
                here, there = (factor, level), (factor / shrink, level - lower)
                # A bound falls at least like the root of the counts.
                if self.worst[here] * (self.cost(*here) / self.cost(*there)) ** 0.5 > goal:
                    break
                self.rehearse(*there, here)
                if not self._closes(*there, goal):
                    break
                factor, level = there
                if self.cost(*there) > 0.97 * self.cost(*here):
                    break
        return self.planned(factor, level), self.known[factor, level][1]

    def filling(self, room: float, shares: list[float]) -> tuple[float, Lag]:
        """Give the start some share of so many samples; return the best bound that a rehearsal has, and the lag."""
        found = []
        for share in shares:
            level = max([i for i, each in enumerate(self.levels) if each.sum() <= share * room], default=0)
            factor = max(room - float(self.levels[level].sum()), (1 - share) * room) / float(self.counts.sum())
            found.append((self.rehearse(factor, level), factor, level))
        _, factor, level = min(found)
        return self._rehearsed(factor, level, (factor, level))[:2]  # with bets for what it showed

    def _first(self, share: float) -> tuple[float, int]:
        """Where to begin: the finest start that takes so much of what the first order takes."""
        spent = share * float(self.counts.sum())
        return 1.0, max([i for i, each in enumerate(self.levels) if each.sum() <= spent], default=0)

    def _closes(self, factor: float, level: int, goal: float) -> bool:
        """Whether the bound is reached with other draws, too: one may be lucky."""
        self.worst[factor, level] = self.known[factor, level][0]
        for number in range(1, _DRAWS):
            if self.worst[factor, level] > goal:
                return False
            another = self._rehearsed(factor, level, (factor, level), number)[0]
            self.worst[factor, level] = max(self.worst[factor, level], another)
        return self.worst[factor, level] <= goal

    def _better(self, factor: float, level: int, goal: float) -> tuple[float, int]:
        """Return more counts for the first order or for the start: what lowers the bound more for its price."""
        epsilon, cost = self.rehearse(factor, level), self.cost(factor, level)
        steps = 2 if epsilon > 3 * goal else 1
        moves = [(factor * _GROWTH**steps, level)]
        if level + 1 < len(self.levels):
            moves.append((factor, min(level + steps, len(self.levels) - 1)))
        gains = []
        for move in moves:
            after = self.rehearse(*move, (factor, level))
            least = min(max(after, goal / 2, 1e-300), 1e300)  # more counts may say nothing at all
            gained = log(epsilon / least) if np.isfinite(epsilon) else float(after < epsilon)
            gains.append(gained / max(log(self.cost(*move) / cost), 1e-6))
        return moves[int(np.argmax(gains))]
