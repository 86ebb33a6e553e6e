"""Episodes of a policy, which a simulator may be asked for where it can only be reset and stepped.

`Episodes` has the verbs of `Pulls`, so whoever asks, splits, cuts and counts need not know which of them it holds. What
a trajectory must satisfy and a mere pull need not is checked at the border (`check`): every episode begins at the
start, plays the actions of its policy, and is at each step where the step before has led.

A *walk* is the same for a discounted problem: one trajectory of a given length, which no reset interrupts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray, as_floats, as_numbers, as_whole, frozen
from bestpolicy._numerics.inputs import of_type, whole
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples.tally import Tally

_ROUNDING = 1e-9  # of probabilities that must add up to 1, and of sums of returns, per episode


@dataclass(frozen=True, eq=False)
class Episodes:
    """How many episodes of which policy to simulate, and where they begin.

    Attributes
    ----------
    policy : int array (H, S), or array (H, S, A)
        The action at each step and state, or its probabilities. For a walk, probabilities (S, A).
    count : int
        Number of episodes; 1 for a walk.
    start : int or array (S,), optional
        The first state, or its distribution; wherever the simulator itself begins by default. A walk needs a state.
    length : int, optional
        Number of steps of a walk.
    """

    policy: IntArray | FloatArray
    count: int
    start: int | FloatArray | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        given = as_numbers("policy", self.policy)
        if self.length is not None:
            policy: Any = as_floats("policy of a walk", given, ("S", "A"))
            if self.count not in (0, 1) or self.start is None or np.ndim(self.start):
                raise InvalidInput("a walk is one trajectory from one state: count must be 1 and start a state.")
            object.__setattr__(self, "length", whole("length", self.length, 0))
        elif given.dtype.kind in "biu":
            policy = frozen(as_whole("policy", given).copy())
            if policy.ndim != 2:
                raise InvalidInput(f"a policy of actions must have shape (H, S). Got {policy.shape} instead.")
        else:
            policy = as_floats("policy of probabilities", given, ("H", "S", "A"))
        if policy.dtype.kind == "f" and not (
            (policy >= 0).all() and (np.abs(policy.sum(axis=-1) - 1) <= _ROUNDING).all()
        ):
            raise InvalidInput("probabilities of a policy must not be negative, and sum to 1 in every state.")
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "count", whole("count", self.count, 0))
        if self.start is not None:
            object.__setattr__(self, "start", _checked_start(self.start, policy.shape[0 if self.is_walk else 1]))

    @property
    def is_walk(self) -> bool:
        """Whether it is one trajectory of a discounted problem."""
        return self.length is not None

    @property
    def is_stochastic(self) -> bool:
        """Whether the policy gives probabilities."""
        return self.policy.dtype.kind == "f"

    @property
    def steps(self) -> int:
        """Number of steps of an episode."""
        return len(self.policy) if self.length is None else self.length

    @property
    def total(self) -> int:
        """Number of simulator calls."""
        return self.steps * self.count

    def split(self, limit: int | None) -> list[Episodes]:
        """Cut into pieces of at most `limit` simulator calls, but of an episode at least; a walk is never cut."""
        if limit is None or self.total <= limit or self.is_walk:
            return [self]
        most = max(1, limit // self.steps)
        return [self._of(min(most, self.count - begin)) for begin in range(0, self.count, most)]

    def cut(self, left: int, anytime: bool) -> Episodes:
        """Cut to what is left of a budget; what means nothing unless it is complete is not begun."""
        if self.total <= left:
            return self
        if self.is_walk:
            return replace(self, length=max(0, left) if anytime else 0)
        return self._of(max(0, left) // self.steps if anytime else 0)

    def _of(self, count: int) -> Episodes:
        """Return so many of these episodes, which need not be checked again."""
        some = object.__new__(Episodes)
        some.__dict__.update(self.__dict__, count=count)
        return some

    def equals(self, other: Any) -> bool:
        """Whether the same is to be simulated."""
        return (
            isinstance(other, Episodes)
            and (self.count, self.length) == (other.count, other.length)
            and self.policy.dtype == other.policy.dtype
            and np.array_equal(self.policy, other.policy)
            and (self.start is None) == (other.start is None)
            and (self.start is None or np.array_equal(self.start, other.start))  # type: ignore[arg-type]
        )

    def answered_by(self, tally: Tally) -> bool:
        """Whether the tally has as many episodes as are to be simulated; `check` looks at them."""
        return tally.samples == self.total if self.is_walk else tally.episodes == self.count

    def minus(self, tally: Tally) -> Episodes:
        """Return what is still to be simulated once `tally` is in; episodes that broke off are in."""
        done = tally.samples if self.is_walk else tally.episodes
        if done > (self.total if self.is_walk else self.count):
            raise InvalidInput(f"the tally has {done} {'steps' if self.is_walk else 'episodes'}, more than asked for.")
        if not self.is_walk:
            return self._of(self.count - done)
        return replace(self, length=self.steps - done, start=self._last_state(tally))

    def fitted(self, tally: Tally) -> Tally:
        """Return an answer as it is: which pairs are visited is up to chance."""
        return tally

    def sign(self, digest: Any) -> None:
        """Have a hash stand for it."""
        kind = "<f8" if self.is_stochastic else "<i8"
        digest.update(f"{self.policy.shape} {kind} {self.count} {self.length} ".encode())
        digest.update(np.ascontiguousarray(self.policy, dtype=kind).data)
        digest.update(str(np.asarray(-1 if self.start is None else self.start).tolist()).encode())

    def describe(self, problem: Problem) -> str:
        """Say what it is, for an error."""
        return f"a walk of {self.steps} steps" if self.is_walk else f"{self.count} episodes of a policy"

    def check(self, problem: Problem, tally: Tally) -> None:
        """Raise InvalidInput unless trajectories of the policy from the start can have these sums."""
        pair, actions = tally.pairs, problem.actions
        stage, place = np.nonzero(tally.pulls)
        visited = np.concatenate([np.stack([stage, pair[place]], axis=1), tally.followed.broken])
        state, action = np.divmod(visited[:, 1], actions)
        played = self.policy[None] if self.is_walk else self.policy
        if self.is_stochastic:
            wrong = played[visited[:, 0], state, action] == 0
        else:
            wrong = played[visited[:, 0], state] != action
        if wrong.any():
            h, s, a = (int(x[wrong][0]) for x in (visited[:, 0], state, action))
            raise InvalidInput(
                f"the tally has action {a} in state {s} at step {h}, which the policy that was asked for does not play."
            )
        visits, arrivals = self._flow(problem, tally)
        if self.is_walk:
            last = visits[0] - arrivals[0]
            last[self.start] -= 1
            if np.count_nonzero(last) != 1 or last.min() != -1:
                raise InvalidInput("the tally is not one trajectory from the start: its steps do not join up.")
            return
        if self.start is not None:
            chance = start_law(self.start, problem.states)
            if visits[0, chance == 0].any():
                first = int(np.flatnonzero((visits[0] > 0) & (chance == 0))[0])
                raise InvalidInput(f"an episode of the tally begins in state {first}, which is not the start.")
        if (visits[1:] != arrivals[:-1]).any():
            h, s = (int(x) for x in np.argwhere(visits[1:] != arrivals[:-1])[0])
            raise InvalidInput(
                f"the tally is not one of episodes: step {h} leads {arrivals[h, s]} times into state {s}, and step "
                f"{h + 1} begins there {visits[h + 1, s]} times."
            )
        _check_returns(tally, problem.stages)

    def _flow(self, problem: Problem, tally: Tally) -> tuple[IntArray, IntArray]:
        """How often a step begins in a state, and leads into it, (stages, S)."""
        shape, states = (problem.stages, problem.states), tally.pairs // problem.actions
        visits, arrivals = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        if len(states):  # pairs are in order, and so are their states
            first = np.flatnonzero(np.diff(states, prepend=-1))
            visits[:, states[first]] = np.add.reduceat(tally.pulls, first, axis=1)
        broken = tally.followed.broken
        if len(broken):
            np.add.at(visits, (broken[:, 0], broken[:, 1] // problem.actions), 1)
        row, state = np.divmod(tally.cells, problem.states)
        np.add.at(arrivals, (row // max(1, len(tally.pairs)), state), tally.counts)
        return visits, arrivals

    def _last_state(self, tally: Tally) -> int:
        """Where a walk is: visits minus arrivals is 1 at its first state and -1 at its last."""
        states, actions = self.policy.shape
        balance = np.zeros(states, np.int64)
        balance[self.start] = 1
        np.add.at(balance, tally.cells % states, tally.counts)
        np.add.at(balance, tally.pairs // actions, -tally.pulls[0])
        return int(balance.argmax())


def _check_returns(tally: Tally, horizon: int) -> None:
    """Refuse squared returns that do not fit the returns of so many episodes in [0, H]."""
    whole, total, squares = tally.episodes - tally.broken_episodes, tally.returns, tally.squared_returns
    slack = _ROUNDING * (1 + whole) * horizon**2
    if not (-slack <= total <= horizon * whole + slack and total**2 <= whole * (squares + slack)):
        raise InvalidInput("the tally has squared returns that are too small for its rewards. See Tally.from_episodes.")
    if not squares <= horizon * total + slack:
        raise InvalidInput("the tally has squared returns that are too large for its rewards. See Tally.from_episodes.")


def _checked_start(start: Any, states: int) -> int | FloatArray:
    if not np.ndim(start):
        state = whole("start", start, 0)
        if state >= states:
            raise InvalidInput(f"start must be one of the states 0 to {states - 1}. Got {state} instead.")
        return state
    chances = as_floats("start", start, ("S",))
    if len(chances) != states or not ((chances >= 0).all() and abs(chances.sum() - 1) <= _ROUNDING):
        raise InvalidInput(f"start must be a state, or a distribution over the {states} states with sum 1.")
    return chances


def require_episodes(episodes: Episodes, problem: Problem, rng: np.random.Generator) -> None:
    """Raise InvalidInput unless a simulator of the problem can simulate the episodes with the generator."""
    of_type("episodes", episodes, Episodes)
    of_type("rng", rng, np.random.Generator)
    if episodes.is_walk != (problem.horizon is None):
        kind = "a walk (length=)" if problem.horizon is None else "episodes, without a length,"
        raise InvalidInput(f"{kind} is what a problem with {problem.time_description} can be asked for.")
    shape = (problem.states, problem.actions) if episodes.is_stochastic else (problem.states,)
    expected = shape if episodes.is_walk else (problem.stages, *shape)
    if episodes.policy.shape != expected:
        raise InvalidInput(f"policy must have shape {expected}. Got {episodes.policy.shape} instead.")
    if not episodes.is_stochastic:
        problem.stage_policy(episodes.policy)
    elif (episodes.policy[..., ~problem.mask] > 0).any():
        raise InvalidInput("policy plays an action that is not allowed in its state.")


def start_law(start: int | ArrayLike, states: int) -> FloatArray:
    """Return the distribution of the first state."""
    law = np.eye(1, states, start)[0] if isinstance(start, int) else np.asarray(start, dtype=np.float64)
    chances: FloatArray = law / law.sum()
    return chances
