"""What the algorithms share that follow policies: the loop, the counts of each step, known rewards, the claim at the
start.

    repeat
        play an optimistic policy for some episodes
        bound V* and the value of the policy to be returned
    until the bounds differ by at most ε at the start

The guarantee is about the start alone: states that episodes seldom reach keep the bounds that are true without data,
and the policy may do anything there. Bounds hold at all times together (or look by look, with shares of δ that sum to
δ), so a policy may be played for many episodes before anybody looks again: the number of episodes grows by a factor
from look to look, and is rounded up by that much.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import number
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.peers.budget import look
from bestpolicy.algorithms.peers.tabular import table
from bestpolicy.algorithms.protocol import About, Request, Run, Task, check_times
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import Check

RewardTable = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Bounds:
    """What a look at the data leads to.

    Attributes
    ----------
    play : int array (H, S)
        The policy to follow next.
    policy : int array (H, S)
        The policy that would be returned.
    epsilon : float
        Bound on V* - V^policy at the start.
    q_values : array (H, S, A)
        Upper bounds on Q*, from which the gap is estimated.
    """

    play: IntArray
    policy: IntArray
    epsilon: float
    q_values: FloatArray


class Learner(Protocol):
    """What an algorithm knows of its samples."""

    def add(self, tally: Tally) -> None:
        """Take the samples of the policy that was to be played last."""
        ...

    def bounds(self, number: int) -> Bounds:
        """Look at all samples, for the n-th time; n = 0 is before the first one."""
        ...


@dataclass(frozen=True)
class Explores:
    """What all algorithms share that learn from episodes, and claim something of their start.

    Attributes
    ----------
    check_ratio : float
        Look at the data each time the number of episodes has grown by this factor.
    rewards : table (S, A) or (H, S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = False
    takes_start: ClassVar[bool] = True
    rule: ClassVar[str]

    check_ratio: float = 1.05
    rewards: RewardTable | None = None

    def __post_init__(self) -> None:
        number("check_ratio", self.check_ratio, above=1)
        object.__setattr__(self, "rewards", known_rewards(self.rewards))

    def unsuitable(self, problem: Problem) -> str:
        """Episodic problems only; known rewards must fit."""
        return only_episodic(problem) or misfit(self.rewards, problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone: the cost depends on what episodes reach."""
        return nan


@dataclass(frozen=True)
class FollowsPolicies(Explores, ABC):
    """What algorithms share that play optimistic policies until bounds on values meet."""

    @abstractmethod
    def learner(self, task: Task, start: FloatArray) -> Learner:
        """Return what knows nothing yet."""

    def run(self, task: Task) -> Run:
        """Follow optimistic policies until the bounds meet at the start."""
        problem, start = task.problem, start_of(task)
        learner = self.learner(task, start)
        known, check, samples = learner.bounds(0), None, 0
        for looks, episodes in enumerate(check_times(1, self.check_ratio, problem.stages), 1):
            asked = Episodes(known.play, episodes - samples // problem.stages, start)
            more = only_whole(self, (yield Request(asked, check)))
            learner.add(more)
            known, samples = learner.bounds(looks), samples + more.samples  # a budget may have cut it
            check = self.check(known, task, samples)
            if check.passed:
                break
        assert check is not None
        return check

    def check(self, known: Bounds, task: Task, samples: int) -> Check:
        """Say which ε is certified at the start. The statistic is the share reached of what is asked."""
        return certified_look(known, task, samples, self.rule)


Peer = TypeVar("Peer", bound=Explores)


class Counting(Generic[Peer]):
    """A learner to whom all that was seen is one sum.

    Attributes
    ----------
    algorithm : Explores
    problem, delta, start
        What was asked.
    rewards : array (H, n), optional
        Mean rewards of the allowed pairs, if they are known.
    tally : Tally
        All samples.
    """

    def __init__(self, algorithm: Peer, task: Task, start: FloatArray) -> None:
        self.algorithm, self.problem, self.delta, self.start = algorithm, task.problem, task.delta, start
        self.rewards = rewards_by_step(algorithm.rewards, task.problem)
        self.tally = Tally.empty(task.problem, task.problem.pairs)

    def add(self, tally: Tally) -> None:
        """Take samples."""
        self.tally += tally


def about(**more: Any) -> About:
    """Return what is said of all that play optimistic policies until bounds meet at the start, and more."""
    guarantee = "an ε for the policy at the start at every look, at the end the asked one"
    return About(**{"setting": "episodic", "assumption": "", "guarantee": guarantee, "sampling": "episodes"} | more)


def certified_look(known: Bounds, task: Task, samples: int, rule: str) -> Check:
    """Return the check of bounds after so many samples; the last bits of a bound decide nothing."""
    problem = task.problem
    certified = max(float(steady(np.array(known.epsilon))), 0.0)
    passed = certified <= task.epsilon
    share = 1.0 if passed else task.epsilon / certified if certified < inf else 0.0
    return look(problem, samples, known.policy, known.q_values, share, certified, passed, rule)


def only_whole(algorithm: Any, tally: Tally) -> Tally:
    """Return a tally of episodes that did not break off; of others nobody knows what they would have shown."""
    if tally.broken_episodes:
        raise InvalidInput(
            f"{tally.broken_episodes} episodes broke off, and {algorithm.name!r} has no rule for them. Mend the "
            "simulator, or use 'forward', which counts them as lost."
        )
    return tally


def start_of(task: Task) -> FloatArray:
    """Return the law of the first state, which these algorithms have to know."""
    if task.start is None:
        raise InvalidInput(
            "this algorithm certifies at a start that it knows: give start=, a state or a distribution over states. "
            "'forward' learns where a simulator begins."
        )
    return task.start


def only_episodic(problem: Problem) -> str:
    """Refuse discounted problems, which have no episodes."""
    return "it follows policies through episodes; give the problem a horizon." if problem.horizon is None else ""


def known_rewards(rewards: RewardTable | None) -> Any:
    """Return known mean rewards as nested tuples, ready to be a parameter; None if they are to be learned."""
    if rewards is None:
        return None
    values: FloatArray
    try:
        values = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim not in (2, 3) or not ((values >= 0) & (values <= 1)).all():
        raise InvalidInput(
            "rewards must be a table (S, A), or (H, S, A), of mean rewards in [0, 1]; leave it out to learn them."
        )
    return nested(values.tolist())


def nested(values: Any) -> Any:
    """Return nested lists as nested tuples."""
    return tuple(nested(value) for value in values) if isinstance(values, list | tuple) else values


def misfit(rewards: RewardTable | None, problem: Problem) -> str:
    """Say why known rewards do not fit the problem; empty if they do."""
    shapes = (problem.mask.shape, (problem.stages, *problem.mask.shape))
    if rewards is None or np.shape(rewards) in shapes:
        return ""
    return f"rewards must have shape {shapes[0]} or {shapes[1]}, one mean reward for each pair, or pair and step."


def rewards_by_step(rewards: RewardTable | None, problem: Problem) -> FloatArray | None:
    """Return known rewards of the allowed pairs, (H, n); None if they are to be learned."""
    if rewards is None:
        return None
    full = np.broadcast_to(np.asarray(rewards, dtype=np.float64), (problem.stages, *problem.mask.shape))
    return full.reshape(problem.stages, -1)[:, problem.pairs]


@dataclass(frozen=True, eq=False)
class StepMeans:
    """Means over the visits of each allowed pair at each step, in the order of ``problem.pairs``.

    Attributes
    ----------
    problem : Problem
    visits : array (H, n)
    rewards : array (H, n)
        Mean rewards; 0 without a visit.
    transitions : array (H, n, S)
        Frequencies of next states; zeros without a visit.
    squares : array (H, n)
        Means of the squared rewards.
    """

    problem: Problem
    visits: FloatArray
    rewards: FloatArray
    transitions: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, problem: Problem, tally: Tally, pooled: bool = False) -> StepMeans:
        """Return the means of a tally; pooled over the steps, where the law is the same at all of them."""
        full = tally.at(problem.pairs)
        visits, sums = full.pulls.astype(np.float64), full.reward_sums
        counts, squares = full.next_counts.astype(np.float64), full.squared_rewards
        if pooled:
            visits, sums, counts, squares = (
                np.broadcast_to(part.sum(axis=0), part.shape) for part in (visits, sums, counts, squares)
            )
        each = np.maximum(visits, 1)
        return cls(problem, visits, sums / each, counts / each[:, :, None], squares / each)

    @cached_property
    def unvisited(self) -> Any:
        """Where there are no visits, (H, n)."""
        return self.visits == 0


def best_values(problem: Problem, q_values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return values (n,) of pairs as a table (S, A), and its largest entries (S,)."""
    filled = table(problem, q_values)
    return filled, filled.max(axis=1)


def played(problem: Problem, policy: IntArray) -> IntArray:
    """Return the places, among the allowed pairs, of the pairs that policies (…, S) play."""
    position = np.cumsum(problem.mask).reshape(problem.mask.shape) - 1
    found: IntArray = position[np.arange(problem.states), policy]
    return found
