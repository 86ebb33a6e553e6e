"""Theorem O (`stopping/episodes.py`): a policy that is certified from its start, by episodes alone.

    until U(start) - L of some candidate is at most ε:
        follow the policy that is greedy for the upper values Q̄; or, once that promises to end sooner, the candidate:
        the policy that seems best (its own returns bound it from below).

Episodes come in batches of one policy, each a twentieth of all that went before: the theorem holds at all times, so
that costs a twentieth at most. Only candidates are *named*: what the theorem pays for is the number of policies whose
returns are looked at, and only episodes that were asked for as a candidate's, after it was named, count for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nan
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_floats
from bestpolicy._numerics.inputs import number
from bestpolicy._numerics.reproducible import greedy, steady, steady_above
from bestpolicy.algorithms.protocol import MAX_CALLS, About, Request, Run, Task
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.episodes import Optimism, Seen
from bestpolicy.stopping.lemmas.means import samples_needed
from bestpolicy.stopping.rule import Proof

_BETTER = 0.05  # of ε, or of what is not yet known, by which a policy must seem better to take the candidate's place
_NEAR = 2.0  # times ε: a candidate is named once what is possible is no farther from what it seems to earn, and
_SPARED = 0.03  # of all episodes are a candidate's even if that is far: some ε is to be certified at any time
_LARGEST_SHARE = 0.75  # of all episodes that a candidate gets: the others keep looking for a better one
_OUTLOOKS = 1.2 ** np.arange(0, 30)  # how many times as many episodes there might be
_RULE = "Theorem O"


@dataclass(frozen=True)
class Forward:
    """Optimistic episodes until a policy's own returns come within ε of what is possible at all.

    Parameters
    ----------
    return_limits : float or sequence of float
        The rewards from step h on never sum to more than the h-th (all alike, if it is one number). In the problem's
        units, in which rewards lie in [0, 1]; a `ResetSimulator` passes on its own. The guarantee then relies on it.
    stationary : bool
        Whether all steps are alike, so that what is seen at one of them counts for all. The guarantee then relies on
        it.
    check_ratio : float
        Number of episodes at one look at the data over that at the look before.
    """

    return_limits: float | Sequence[float] = inf
    stationary: bool = False
    check_ratio: float = 1.05

    name: ClassVar[str] = "forward"
    about: ClassVar[About] = About(
        setting="episodic",
        features="tabular",
        assumption="",
        guarantee="an ε for the policy at every check, and within the asked ε of optimal at the end, at the start only",
        complexity="H⁴SA(S + log(1/δ))/ε², up to logarithms",
        constants="own proof, betting (K_inf) and empirical Bernstein",
        reference="bestpolicy, Theorem O (stopping/episodes.py)",
        writes_certificates=True,
        sampling="episodes",
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False
    takes_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if np.ndim(self.return_limits):
            given = as_floats("return_limits", self.return_limits, ("H",))
            if not (given > 0).all():
                raise InvalidInput("return_limits must be positive.")
            object.__setattr__(self, "return_limits", tuple(given.tolist()))
        else:
            number("return_limits", self.return_limits, above=0, infinite=True)
        number("check_ratio", self.check_ratio, above=1)
        if not isinstance(self.stationary, bool | np.bool_):
            raise InvalidInput(f"stationary must be True or False. Got {self.stationary!r} instead.")

    def unsuitable(self, problem: Problem) -> str:
        """Episodes only."""
        if problem.horizon is None:
            return "it follows episodes, which need a horizon; for a discount use 'sharp', 'tight' or 'adaptive'."
        if np.ndim(self.return_limits) and len(self.return_limits) != problem.horizon:  # type: ignore[arg-type]
            return f"return_limits must be one number, or {problem.horizon}, one for each step."
        return ""

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone."""
        return nan

    def limits(self, problem: Problem) -> FloatArray:
        """Return what rewards from each step on sum to at most, (H,)."""
        limits: FloatArray = np.minimum(problem.value_limits, np.broadcast_to(self.return_limits, problem.stages))
        return limits

    def run(self, task: Task) -> Run:
        """Follow policies until one is certified."""
        rule = Optimism(task.problem, task.delta, self.limits(task.problem), self.stationary, task.start)
        course = _Course(rule, task, self.check_ratio)
        while True:
            known = task.recall()
            if known is None:
                course.look()
                if course.over:
                    break
                decided = course.decide()
            else:
                course.recall(known.check)
                if course.over:
                    break
                decided = known.decided
            batch = yield Request(course.begin(decided), course.check, decided)
            course.add(batch)
        assert course.check is not None
        return course.check


@dataclass(eq=False)
class Candidate:
    """A policy that was named, and its own episodes since."""

    policy: IntArray
    tally: Tally | None = None
    episodes: int = 0
    returns: float = 0.0
    squares: float = 0.0

    def add(self, tally: Tally) -> None:
        self.episodes += tally.episodes
        self.returns += tally.returns
        self.squares += tally.squared_returns
        if self.tally is not None:
            self.tally = self.tally + tally

    @property
    def variance(self) -> float:
        return max(self.squares / self.episodes - (self.returns / self.episodes) ** 2, 0.0) if self.episodes else 0.0


class _Course:
    """How far a run is."""

    def __init__(self, rule: Optimism, task: Task, ratio: float) -> None:
        self.ratio = ratio
        self.rule, self.problem, self.epsilon = rule, task.problem, task.epsilon
        self.tally = Tally.empty(task.problem)
        self.all = Candidate(np.zeros(0, np.int64))  # the returns of all episodes, whatever their policy
        self.named: list[Candidate] = []
        self.playing: Candidate | None = None  # the candidate whose episodes are awaited
        self.check: Check | None = None

    @property
    def over(self) -> bool:
        return self.check is not None and (self.check.passed or self.tally.samples >= MAX_CALLS // 4)

    def look(self) -> None:
        """Bound everything, and see what is certified."""
        self.seen = Seen.of(self.problem, self.tally, self.rule.stationary)
        self.q, self.upper = self.rule.upper_values(self.seen)
        self.most = self.rule.at_start(self.seen, self.upper[0])
        if not self.tally.episodes:
            return
        least = [self.rule.lower_value(j, c.episodes, c.returns, c.squares) for j, c in enumerate(self.named, 1)]
        best = int(np.argmax(steady(np.array(least)))) if least else -1
        epsilon = steady_above(max(0.0, self.most - least[best])) if least else inf
        rounds = self.tally.samples // self.problem.stages
        self.best = self.seeming()
        check = Check(rounds, self.tally.samples, self.best.policy, 0.0, 1.0, False, inf, self._gap(), _RULE)
        if self.check is not None and self.check.epsilon < inf:
            check = replace(self.check, rounds=rounds, samples=self.tally.samples, gap=check.gap)
        if epsilon < min(check.epsilon, float(self.rule.limits[0])):  # no policy loses more than the limit
            check = replace(check, policy=self.named[best].policy, epsilon=epsilon, proof=self.proof(best + 1))
        reached = 1.0 if check.epsilon <= self.epsilon else self.epsilon / check.epsilon
        self.check = replace(check, passed=check.epsilon <= self.epsilon, statistic=reached)

    def recall(self, check: Check | None) -> None:
        """Take a check from the study's file; if it states something new, this moment's samples prove it."""
        if check is None:
            return
        before = self.check
        if check.epsilon < (inf if before is None else before.epsilon):
            played = [j for j, one in enumerate(self.named, 1) if np.array_equal(one.policy, check.policy)]
            self.check = replace(check, proof=self.proof(played[0]))
        else:
            self.check = replace(check, proof=None if before is None else before.proof)

    def decide(self) -> dict[str, Any]:
        """Choose the policy of the next episodes, and their number; name it if it is a new candidate."""
        count = max(1, ceil((self.ratio - 1) * self.tally.episodes))
        if not self.tally.episodes:
            return {"policy": greedy(self.q), "count": 1, "candidate": 0}
        candidate, named = self.best, [one.policy for one in self.named]
        far = float(self.rule.limits[0]) / 2
        known = any(candidate is one for one in self.named)
        if not known and self.most - self.value < max(far, _NEAR * self.epsilon):
            named.append(candidate.policy)  # from now on episodes that happen to be asked of it count
            known = True
        play = known and self._should_play(candidate, len(named))  # those of a policy without a name would be lost
        policy = candidate.policy if play else greedy(self.q)
        number = next((j for j, one in enumerate(named, 1) if np.array_equal(one, policy)), 0)
        news = {"named": candidate.policy} if len(named) > len(self.named) else {}
        return {"policy": policy, "count": count, "candidate": number} | news

    def begin(self, decided: dict[str, Any]) -> Episodes:
        """Take up what was decided."""
        number, policy = int(decided["candidate"]), np.asarray(decided["policy"], np.int64)
        if "named" in decided:
            self.named.append(Candidate(np.asarray(decided["named"], np.int64), Tally.empty(self.problem)))
        self.playing = self.named[number - 1] if number else None
        start = self.rule.start
        if start is not None and np.count_nonzero(start) == 1:
            return Episodes(policy, int(decided["count"]), int(start.argmax()))
        return Episodes(policy, int(decided["count"]), start)

    def add(self, batch: Tally) -> None:
        """Take in episodes."""
        limit, slack = float(self.rule.limits[0]), 1e-9 * (1 + batch.episodes)
        if batch.returns > limit * batch.episodes + slack or batch.squared_returns > limit * batch.returns + slack:
            raise InvalidInput(f"returns exceed their limit of {limit:g}: give a larger one, or none.")
        self.tally = self.tally + batch
        self.all.add(batch)
        if self.playing is not None:
            self.playing.add(batch)

    def seeming(self) -> Candidate:
        """The policy that seems best: the latest candidate, unless another one seems better by more than a little."""
        q = np.where(np.isfinite(self.q), 0.0, -inf)
        values = self._backwards(q)
        seen = q.max(axis=2) > 0
        policy = np.where(seen, greedy(q), greedy(self.q))
        self.value = float(steady(np.array(self._at_start(values[0]))))
        if self.named:
            last = self.named[-1]
            own = float(steady(np.array(self._at_start(self._backwards(None, last.policy)[0]))))
            if self.value <= own + _BETTER * max(self.epsilon, (self.most - own) / 2):
                self.value = own
                return last
        return next((one for one in self.named if np.array_equal(one.policy, policy)), Candidate(policy))

    def _backwards(self, q: FloatArray | None, policy: IntArray | None = None) -> FloatArray:
        """Values of the model that was seen, the best or a policy's, (H + 1, S); fill in `q`, if given."""
        problem, states = self.problem, np.arange(self.problem.states)
        values = np.zeros((problem.stages + 1, problem.states))
        for stage in reversed(range(problem.stages)):
            here, flat = self.seen.at(stage), np.where(problem.mask, 0.0, -inf).reshape(-1)
            flat[here.visited] = here.mean(values[stage + 1])
            table = flat.reshape(problem.mask.shape)
            values[stage] = table.max(axis=1) if policy is None else table[states, policy[stage]]
            values[stage, self.rule.over] = self.rule.end_values(stage)
            if q is not None:
                q[stage] = table
        return values

    def _at_start(self, values: FloatArray) -> float:
        first = self.rule.start
        if first is None:
            first = self.seen.first / max(1, self.seen.first.sum())
        return float((first * values).sum())

    def _should_play(self, candidate: Candidate, number: int) -> bool:
        """Whether the candidate's own returns would certify it with fewer episodes than to look further takes."""
        behind, everything = self.most - self.value, self.tally.episodes
        if candidate.episodes < _SPARED * everything:
            return True
        if behind >= self.epsilon or candidate.episodes > _LARGEST_SHARE * everything:
            return False
        variance = candidate.variance if candidate.episodes >= 20 else self.all.variance
        limit, delta = float(self.rule.limits[0]), self.rule.delta_of(number)
        left = self.epsilon - behind / np.sqrt(_OUTLOOKS)
        costs = [
            (factor - 1) * everything + max(0.0, samples_needed(room, variance, limit, delta) - candidate.episodes)
            for factor, room in zip(_OUTLOOKS.tolist(), left.tolist(), strict=True)
        ]
        return int(np.argmin(steady(np.array(costs)))) == 0

    def _gap(self) -> float:
        """Distance between what is possible and what the candidate seems to earn."""
        return max(0.0, self.most - self.value)

    def proof(self, number: int) -> Proof:
        """Return what shows that the so-manyth candidate is certified now."""
        one, rule = self.named[number - 1], self.rule
        fixed = {"limits": rule.limits, "stationary": bool(rule.stationary), "start": rule.start}
        return Proof("O", fixed=fixed, fresh={"number": number, "own": one.tally, "tally": self.tally})
