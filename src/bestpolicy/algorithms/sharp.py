"""sharp: certificates at a fraction of the samples, by testing few numbers; this is its course on tables.

    sample every pair a few times
    repeat
        plan a lag from the past (`table_plan`): a policy, counts, a template, bets
        if it is much larger than the past: sample in its proportions, and plan again; if a rehearsal says that these
            samples can certify some coarse ε, they are a lag by themselves, with one look
        else repeat: sample in exactly its proportions and look (Theorem U), until ε is certified or there is no hope
    until the certified ε is at most the asked one

Lag number e spends 0.65·0.35^(e-1)·δ, which sums to δ; its looks are free. No two lags have the same number: those for
the asked ε have numbers 1, 2, 4, 6, 8, …, early ones have 3, 5, 7, 9, …, so that what they spend is hardly missed.
Every look states an ε that holds, all of them together with probability 1 - δ, so a run may be stopped at any moment
and has the best of them. The claim is about every state, or about one start (a state or a distribution).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import count
from math import ceil, inf, nan
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.protocol import MAX_ROUNDS, About, Remembered, Request, Run, Task
from bestpolicy.algorithms.sharp_dense import LEFT, DenseCourse
from bestpolicy.algorithms.table_plan import EarlyLag, hopeless, plan_lag
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check
from bestpolicy.stopping.rule import Proof
from bestpolicy.stopping.tables.lag import PLANNED, Lag
from bestpolicy.stopping.tables.look import look
from bestpolicy.stopping.tables.model import Table, TableSamples, kernel_of

_FIRST_SHARE, _NEXT_SHARE = 0.65, 0.35  # of δ, for lag number 1, and of what is left for each later number
# (stage, pair)s of a table up to which Theorems I and UD need fewer samples than Theorem U on most: of any kind; if
# many states follow each pair; if ε = 0.
_SMALLEST, _SMALLER, _SMALL = 8, 48, 100
_STEPS, _FINE_STEPS = 2, 4  # of an episode up to which the second holds (Theorem I adds up over steps); if ε is small
_FINE = 0.02  # of the largest value: what is a small ε
_SEEN = 16  # samples of each (stage, pair) that show how many states follow it
_MANY, _FINE_MANY = 0.5, 0.38  # of all states: what many are; if ε is small
# Samples of each (stage, pair) after which Theorem I, if it sees no end, gives way to Theorem U; in episodes ties are
# more likely than small gaps.
_PATIENCE, _EPISODIC_PATIENCE = 50_000, 10_000
# Of the value that is seen: what is certified of it, before a lag was looked at; at least and at most.
_KNOWN, _LEAST_KNOWN, _MOST_KNOWN = 0.85, 0.2, 0.97
_RULE = {False: "Theorem U", True: "Theorem U-E"}  # discounted, episodic


def number_of(place: int, early: bool) -> int:
    """Return the number of the first, second, … lag for the asked ε, or of the first, second, … early one."""
    return 2 * place + 1 if early else max(2 * place - 2, 1)


def share_of(number: int) -> float:
    """Return the share of δ that a lag may spend."""
    return _FIRST_SHARE * _NEXT_SHARE ** (number - 1)


@dataclass(frozen=True)
class Sharp:
    """Theorem U for tables, I and UD for features and small tables: what a policy may lose is tested as few numbers."""

    name: ClassVar[str] = "sharp"
    about: ClassVar[About] = About(
        setting="discounted or episodic",
        features="linear",
        assumption="",
        guarantee="an ε for the policy at every check, and within the asked ε of optimal in every state at the end",
        complexity="Σ_k l·v_k·|y_k|²/tol² to first order, l = log(1/δ) without a union over pairs",
        constants="own proof, empirical Bernstein by betting",
        reference="bestpolicy, Theorems U, I and UD (stopping/tables, stopping/dense)",
        writes_certificates=True,
    )
    anytime: ClassVar[bool] = False  # a look needs exactly its planned counts
    takes_own_data: ClassVar[bool] = True
    takes_start: ClassVar[bool] = True
    takes_share: ClassVar[bool] = True  # of tables

    def unsuitable(self, problem: Problem) -> str:
        """Runs on every problem."""
        return ""

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone."""
        return nan

    def run(self, task: Task) -> Run:
        """Sample until the asked ε is certified; samples from elsewhere help to plan."""
        known = task.recall()
        course: _Course | DenseCourse = _Course(task) if by_table(task, known) else begun_dense(task)
        while True:
            if isinstance(course, DenseCourse) and (outpaced(course) if known is None else is_of_table(known.decided)):
                course = _Course(task, course)
            if known is None:
                course.look()
                decided = {} if course.over else course.decide()
                course.expect(decided)
            else:
                course.recall(known.check)
                decided = known.decided
            if course.over:
                break
            course.begin(decided)
            batch = yield Request(course.pulls(), course.check, decided)
            course.add(batch)
            known = task.recall()
        assert course.check is not None
        return course.check


def by_table(task: Task, begun: Remembered | None) -> bool:
    """Whether Theorem U is to be used from the start: for tables, but not for small ones.

    A run that is resumed goes on as it began: only Theorems I and UD begin with a design.
    """
    problem = task.problem
    if begun is not None or not problem.is_tabular:
        return begun is not None and "design" not in begun.decided
    most = _SMALL if task.epsilon == 0 else _SMALLER
    if task.epsilon > 0 and problem.stages > (_FINE_STEPS if _is_fine(problem, task.epsilon) else _STEPS):
        most = _SMALLEST
    small = problem.stages * len(problem.pairs) <= most
    small = small and (task.own_data is None or not _few_follow(problem, task.epsilon, task.own_data))
    return not small or task.share > 0 or task.start is not None or len(problem.ends) > 0


def begun_dense(task: Task) -> DenseCourse:
    """Begin a run by Theorems I and UD; where it may have to give way, first see how many states follow each pair."""
    problem = task.problem
    doubtful = problem.is_tabular and task.epsilon > 0 and problem.stages * len(problem.pairs) > _SMALLEST
    return DenseCourse(task, _SEEN) if doubtful else DenseCourse(task)


def outpaced(course: DenseCourse) -> bool:
    """Whether Theorem U is to go on with a table: actions seem to be tied, or few states follow each pair.

    What lags of Theorem I have spent stays spent; one may have begun by luck, and then the end is in sight no longer.
    """
    problem = course.problem
    if not problem.is_tabular or not course.samples:
        return False
    size = problem.stages * len(problem.pairs)
    patience = size * (_PATIENCE if problem.horizon is None else _EPISODIC_PATIENCE)
    if course.samples >= patience and not course.in_sight:
        return True
    return not course.lags and _few_follow(problem, course.epsilon, course.evidence.tally)


def _few_follow(problem: Problem, epsilon: float, tally: Tally) -> bool:
    """Whether few states follow each pair, as far as is known, so that Theorem U needs fewer samples if ε > 0.

    What Theorem I does not know counts by the span of all values, for Theorem U by that of those that follow.
    """
    size = problem.stages * len(problem.pairs)
    known = len(tally.pairs) == len(problem.pairs) and bool((tally.pulls >= _SEEN).all())
    if not epsilon or size <= _SMALLEST or not known:
        return False
    many = _FINE_MANY if _is_fine(problem, epsilon) else _MANY
    return len(tally.cells) < many * size * problem.states


def _is_fine(problem: Problem, epsilon: float) -> bool:
    return epsilon <= _FINE * float(problem.value_limits[0])


def first_number(lags: int) -> int:
    """Return the number of the first lag of Theorem U after so many of Theorem I: all from it on spend what is left."""
    left, number = LEFT**lags, 1
    while _NEXT_SHARE ** (number - 1) > left:
        number += 1
    return number


def is_of_table(decided: dict[str, Any]) -> bool:
    """Whether Theorem U has decided this, after no look yet."""
    return "pilot" in decided or "early" in decided


class _Course:
    """How far a run is: the samples of the past, the lag under test and its fresh samples, the best check."""

    def __init__(self, task: Task, before: DenseCourse | None = None) -> None:
        problem = task.problem
        self.problem, self.epsilon, self.delta = problem, task.epsilon, task.delta
        self.share, self.offset, self.most = task.share, task.offset, task.epsilon
        self.floor = 0.0  # what the largest |V* + offset| is certified to be at least, if ε is a share of it
        self.table = table_of(problem, task.start)
        self.past = TableSamples.none(self.table.pairs)
        if before is not None:
            self.past = self.past + samples_of(problem, before.evidence.tally)  # has samples from elsewhere, too
        elif task.own_data is not None:
            self.past = self.past + samples_of(problem, task.own_data)
        self.seed = int(task.rng.integers(2**62))  # each plan has a random stream of its own, whatever was recalled
        self.samples, self.plans = 0 if before is None else before.samples, 0
        self.ahead = nan  # samples until the end, as the last plan sees it
        self.lags = {False: 0, True: 0}  # how many there were for the asked ε, and how many early ones
        least = first_number(0 if before is None else before.lags)
        for early in self.lags:  # lags of Theorem I have spent what those before would
            while number_of(self.lags[early] + 1, early) < least:
                self.lags[early] += 1
        self.lag: Lag | None = None
        self.number, self.used = 0, set[int]()  # of the lag; of all so far
        self.place = 0  # which of the lag's looks is next
        self.units = 0  # that it has got
        self.bounds: list[tuple[int, float]] = []  # units and ε of those that were taken
        self.fresh = TableSamples.none(self.table.pairs)
        self.wanted = np.zeros(self.table.pairs, np.int64)
        self.started = 0  # number of samples before the lag
        self.check: Check | None = None if before is None else before.check

    @property
    def over(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.check is not None and (self.check.passed or self.samples >= MAX_ROUNDS)

    @property
    def goal(self) -> float:
        """The ε that ends the run: as asked, or the asked share of what the largest value is certified to be."""
        return min(self.most, self.share * self.floor) if self.share else self.epsilon

    def _aim(self, past: TableSamples) -> None:
        """Choose the ε to plan for, if it is a share of the largest value: what the past says that this will be."""
        if not self.share or (past.pulls < 1).any():
            return
        chain = self.table.chain
        values = estimated_values(self.table, past)[1] + self.offset
        seen = float(np.abs(values[chain.claimed]).max()) if chain.start is None else abs(float(chain.start @ values))
        # How far the certified value stays behind is known once a lag was looked at.
        behind = min(max(self.floor / seen, _LEAST_KNOWN), _MOST_KNOWN) if self.floor and seen else _KNOWN
        least = self.share * _LEAST_KNOWN * 1e-2 * float(chain.longest.max())
        self.epsilon = float(steady(np.array(min(self.most, max(self.share * behind * seen, least)))))

    def decide(self) -> dict[str, Any]:
        """Fix what the next samples are for; if they are for the lag under test, remember what its last look said."""
        decided = self._decide()
        return decided | {"floor": self.floor, "aim": self.epsilon} if self.share else decided

    def _decide(self) -> dict[str, Any]:
        lag = self.lag
        more = lag is not None and not isinstance(lag, EarlyLag) and self.place < len(lag.looks)
        if lag is not None and more and not hopeless(lag, self.bounds, self.epsilon):
            return {"bound": self.bounds[-1][1]}
        past = self.past + self.fresh
        self._aim(past)
        numbers = [self._next_number(early) for early in (False, True)]
        confidence, early = (share_of(number) * self.delta for number in numbers)
        known = inf if self.check is None else self.check.epsilon
        rng = np.random.default_rng([self.seed, self.plans])
        self.ahead = nan
        plan = plan_lag(self.table, past, self.epsilon, confidence, rng, early=(early, known), foresee=self._foresee)
        if not isinstance(plan, Lag):
            return {"pilot": plan}
        early_one = isinstance(plan, EarlyLag)
        return {"lag": fields_of(plan), "number": numbers[early_one], "early": early_one}

    def _next_number(self, early: bool) -> int:
        """Number of the next lag: one that no lag has had, whatever the version that began the run gave them."""
        places = count(self.lags[early] + 1)
        return next(number for number in (number_of(place, early) for place in places) if number not in self.used)

    def _foresee(self, ahead: float) -> None:
        self.ahead = ahead

    def expect(self, decided: dict[str, Any]) -> None:
        """Say with the check how many samples the run should need in all, once something is planned."""
        lag, place = (Lag(**decided["lag"]), 0) if "lag" in decided else (self.lag, self.place)
        if self.check is None or self.over:
            return
        if lag is None or "pilot" in decided or decided.get("early"):
            self.check = replace(self.check, forecast=float(ceil(self.samples + self.ahead)) if self.ahead > 0 else nan)
            return
        have = 0 if place == 0 else int(lag.looks[place - 1])
        ahead = max(PLANNED, int(lag.looks[place])) - have
        self.check = replace(self.check, forecast=float(self.samples + ahead * int(lag.unit.sum())))

    def begin(self, decided: dict[str, Any]) -> None:
        """Take up what was decided."""
        self.floor, self.epsilon = decided.get("floor", self.floor), decided.get("aim", self.epsilon)
        if "bound" in decided and len(self.bounds) < self.place:  # of a run that is resumed
            assert self.lag is not None
            self.bounds.append((self.units, float(decided["bound"])))
        if "bound" not in decided:
            self.past, self.fresh = self.past + self.fresh, TableSamples.none(self.table.pairs)
            self.lag, self.plans = None, self.plans + 1
        if "lag" in decided:
            early = bool(decided.get("early", False))
            self.lag, self.bounds = (EarlyLag if early else Lag)(**decided["lag"]), []
            self.units, self.place = 0, self.lag.looks.tolist().index(PLANNED) if early else 0
            self.lags[early] += 1
            self.number = int(decided.get("number", self.lags[early]))  # older files have no numbers
            self.used.add(self.number)
            self.started = int(self.past.counts.sum())
        if self.lag is None:
            self.wanted = np.asarray(decided["pilot"], np.int64)
        else:
            self.wanted = (int(self.lag.looks[self.place]) - self.units) * self.lag.unit

    def pulls(self) -> Pulls:
        """What to simulate next."""
        return Pulls(self.problem.open_pairs, self.wanted.reshape(self.problem.stages, -1))

    def add(self, batch: Tally) -> None:
        """Take in what was simulated."""
        samples = samples_of(self.problem, batch)
        self.samples += batch.samples
        if self.lag is None:
            self.past = self.past + samples
        else:
            self.fresh, self.units, self.place = self.fresh + samples, int(self.lag.looks[self.place]), self.place + 1

    def look(self) -> None:
        """Look at the lag's fresh samples; without a lag, say which policy seems best."""
        if not self.samples:
            return
        policy, gap = best_of(self.problem, self.table, self.past + self.fresh)
        rounds = self.samples // self.problem.stages
        rule = _RULE[self.problem.horizon is not None]
        check = Check(rounds, self.samples, policy, 0.0, 1.0, False, inf, gap, rule)
        if self.check is not None and self.check.epsilon < inf:
            check = replace(self.check, rounds=rounds, samples=self.samples, gap=gap, forecast=nan)
        if self.lag is not None:
            verdict = look(self.table, self.lag, self.fresh, self.units)
            self.bounds.append((self.units, verdict.epsilon))
            if self.share:  # all looks hold together, so the best of what they say does
                self.floor = max(
                    self.floor, float(steady(np.array((1 - 1e-8) * verdict.value_floor(self.table.chain, self.offset))))
                )
            # What no policy can lose is not worth saying.
            if verdict.epsilon < min(check.epsilon, self.table.chain.longest.max()):
                tested = played(self.problem, verdict.policy)
                check = replace(check, policy=tested, epsilon=verdict.epsilon, rule=rule)
                check = replace(check, lag=self.number, proof=self.proof())
        passed = check.epsilon <= self.goal and (self.goal > 0 or not self.share)
        reached = 1.0 if passed else min(self.goal / check.epsilon, 1 - 1e-9) if check.epsilon > 0 else 0.0
        floor = self.floor if self.share else nan
        self.check = replace(check, passed=passed, statistic=reached, value_floor=floor)

    def recall(self, check: Check | None) -> None:
        """Take a check from the study's file; if it states something new, this moment's samples prove it."""
        if check is None:
            return
        before = self.check
        improved = before is None or check.epsilon < before.epsilon
        proof = self.proof() if improved and check.epsilon < inf else None if before is None else before.proof
        self.check = replace(check, proof=proof)

    def proof(self) -> Proof | None:
        """Return what shows what the lag says now."""
        if self.lag is None or not self.place:
            return None
        fixed = fields_of(self.lag) | {"number": self.number, "started": self.started}
        return Proof("U", fixed=fixed, fresh=fields_of(self.fresh) | {"units": self.units})


def fields_of(one: Lag | TableSamples) -> dict[str, Any]:
    """Return numbers and arrays by name, without what was computed from them."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


def table_of(problem: Problem, start: Any = None) -> Table:
    """Return the table of a problem: the pairs that are open, and what its ends are worth."""
    values = None
    if len(problem.ends):
        values = np.where(problem.is_end, problem.end_reward * problem.value_limits[:, None], nan)
        values = values[0] if problem.horizon is None else values
    state = problem.open_pairs // problem.actions
    return Table(problem.states, state, problem.discount, problem.horizon, start, values)


def samples_of(problem: Problem, tally: Tally) -> TableSamples:
    """Return a tally as sums over the problem's open pairs, stage after stage; nothing is learned from ends."""
    if len(problem.ends):
        tally = tally.at(np.intersect1d(tally.pairs, problem.open_pairs))
    row, state = np.divmod(tally.cells, problem.states)
    stage, column = np.divmod(row, max(1, len(tally.pairs)))
    place, pairs = np.searchsorted(problem.open_pairs, tally.pairs), len(problem.open_pairs)
    squares = np.zeros((problem.stages, pairs))
    squares[:, place] = tally.squared_rewards
    return TableSamples.of(stage * pairs + place[column], state, tally.counts, tally.rewards, squares.ravel())


def played(problem: Problem, policy: np.ndarray[Any, Any]) -> Any:
    """Return a policy of the chain, a pair for each live (stage, state), as actions (stages, S); 0 at ends."""
    actions = np.zeros((problem.stages, problem.states), np.int64)
    chosen = problem.open_pairs[policy % len(problem.open_pairs)] % problem.actions
    actions[:, ~problem.is_end] = chosen.reshape(problem.stages, -1)
    return actions


def best_of(problem: Problem, table: Table, samples: TableSamples) -> tuple[Any, float]:
    """Return the best policy of the model that was seen, and the smallest difference of two actions' values."""
    chain, (q, _) = table.chain, estimated_values(table, samples)
    policy = chain.greedy(q, float(chain.longest.max()))
    behind = np.delete(chain.best(q)[chain.state] - q, policy)
    return played(problem, policy), float(behind.min(initial=inf))


def estimated_values(table: Table, samples: TableSamples) -> tuple[FloatArray, FloatArray]:
    """Return the optimal values of pairs (M,) and of states (N,) in the model that was seen."""
    chain = table.chain
    seen = chain.successors(table, samples)
    pulls = np.maximum(seen.pulls, 1)
    kernel = kernel_of(seen.pair, seen.next_state, seen.counts / pulls[seen.pair], (len(chain.state), chain.size))
    rewards = seen.reward_sums / pulls
    values = chain.optimal(kernel, rewards, chain.known)
    q: FloatArray = rewards + chain.step * (kernel @ values)
    return q, values
