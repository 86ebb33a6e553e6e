"""Gymnasium environments as generative models.

A generative model simulates any pair (s, a), any number of times; an environment only steps from where it stands.
Three kinds of environments close that gap:

* those with a transition table ``env.unwrapped.P`` (FrozenLake, CliffWalking, Taxi). Only the table is sampled, in
  whole tallies, at a cost that does not depend on the number of samples;
* functional environments (`gymnasium.experimental.functional.FuncEnv`), whose transition takes the state;
* any environment with a function ``set_state(env, state)``: reset, set the state, step once.

**The end of an episode.** Termination belongs to a transition, not to a state: the rows that a table holds for
"terminal" states are never used by an episode and may say anything (CliffWalking's goal can be left again at a price
of -1, Taxi's passenger picked up again). So every transition that terminates leads to one extra state, *the end*,
which leads to itself with reward 0. States in which no decision is ever taken (entered only by termination, or
not at all) have one action that leads to the end; they share its feature and so cost nothing. The policy is
certified in all other states. Truncation is no termination: a time limit is no part of the state.

**Rewards** r ∈ [low, high] become (r - low)/scale with scale = high - low. The end pays the image of 0, so the range
is widened to hold 0, and every pair, the end included, is shifted alike. Hence for every policy

    V_env(s) = scale · V(s) + low/(1-γ)            (episodic: + low·(H-h) at step h),

losses and gaps are `reward_scale` times those of the normalised problem, and ε in the environment's own units is
ε/scale in the normalised ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import BoolArray, FloatArray, IntArray, Problem
from bestpolicy.simulators.user import CallableSimulator

_OTHER_WAYS = (
    "Give set_state=function(env, state) and reward_range=(low, high), use a functional environment (FuncEnv), or "
    "wrap your own function in CallableSimulator."
)
# Wrappers that change nothing of what a single step from a given state returns.
_HARMLESS = (
    "TimeLimit",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RecordEpisodeStatistics",
    "RecordVideo",
    "HumanRendering",
    "RenderCollection",
)


class GymSimulator:
    """Simulator of a Gymnasium environment with finitely many states and actions.

    Parameters
    ----------
    env : gymnasium.Env, FuncEnv or str
        An environment, or the name that ``gymnasium.make`` knows it by.
    discount, horizon : optional
        Give one of them, as in `Problem`. The environment's own time limit plays no role.
    features : "one-hot", int array (n,), array (n, A, d) or callable
        One coordinate per pair (exact for every environment); the cluster of each state, for one coordinate per
        (cluster, action), an approximation unless the states of a cluster behave alike (see
        `diagnostics.check_linearity`); or φ(s, a) as an array or as a function of (state, action).
    reward_range : (low, high), optional
        Bounds on the environment's rewards. Read off the table if there is one, needed otherwise.
    set_state : callable, optional
        ``set_state(env, state)`` puts a freshly reset environment into a state. All randomness of the environment
        must come from its ``np_random`` or from the seed given to ``reset``.
    states, actions : sequence, optional
        All states (for `set_state`: observations) and actions, where the spaces are not Discrete.
    terminal_states : iterable, optional
        With `set_state`: states in which the episode is over. Known otherwise.
    mask : bool array (n, A), optional
        Actions that are allowed. All (that the table has) by default.
    everywhere : bool
        Certify the policy also in states of the table that no episode can reach.
    convert_rng : callable, optional
        For functional environments: makes their source of randomness from a NumPy generator, such as
        ``lambda rng: jax.random.PRNGKey(rng.integers(2**31))``. NumPy's generator itself by default.

    Attributes
    ----------
    problem : Problem
        State i < n is ``states[i]``; state n, if there is one, is the end.
    states, actions : list
        The environment's own.
    reward_scale, reward_offset : float
        A reward of the environment is offset + scale · (normalised reward).
    """

    def __init__(
        self,
        env: Any,
        *,
        discount: float | None = None,
        horizon: int | None = None,
        features: str | ArrayLike | Callable[[Any, Any], ArrayLike] = "one-hot",
        reward_range: tuple[float, float] | None = None,
        set_state: Callable[[Any, Any], Any] | None = None,
        states: Sequence[Any] | None = None,
        actions: Sequence[Any] | None = None,
        terminal_states: Iterable[Any] = (),
        mask: ArrayLike | None = None,
        everywhere: bool = False,
        convert_rng: Callable[[np.random.Generator], Any] | None = None,
    ) -> None:
        gymnasium = _gymnasium()
        env = gymnasium.make(env) if isinstance(env, str) else env
        self._functional = isinstance(env, import_module("gymnasium.experimental.functional").FuncEnv)
        tabular = set_state is None and not self._functional
        if tabular:
            _require_table(env)
        self.states = _labels(gymnasium, env, "observation_space", "states", states)
        self.actions = _labels(gymnasium, env, "action_space", "actions", actions)
        self._env, self._set_state, self._convert_rng = env, set_state, convert_rng
        self._position = {_key(state): index for index, state in enumerate(self.states)}
        allowed = _checked_mask(mask, (len(self.states), len(self.actions)))
        self._table: _Table | None = None
        if tabular:
            table = _Table.read(env.unwrapped.P, self.states, self.actions, self._position, allowed)
            initial = _initial_states(env) if states is None else None
            allowed, self._live = table.allowed, table.live_states(initial, everywhere)
            ends = table.ends(self._live)
            low, high = table.reward_range(self._live) if reward_range is None else _checked_range(reward_range)
        else:
            self._live, ends = self._not_over(terminal_states), True
            low, high = _checked_range(reward_range)
        low, high = (min(low, 0.0), max(high, 0.0)) if ends else (low, high)
        self.reward_offset, self.reward_scale = low, (high - low) or 1.0
        features_array = _features(features, self.states, self.actions, allowed & self._live[:, None], ends)
        mask_array = _played(allowed, self._live, self.states, ends)
        self._problem = Problem(features_array, discount=discount, horizon=horizon, mask=mask_array)
        self._one_hot = isinstance(features, str)
        if tabular:
            # From here on the table is all that is needed, and it travels to workers more easily than `env`.
            self._table, self._env = table.normalised(self._live, low, self.reward_scale), None
        self._stepper = CallableSimulator(self._problem, self._step)

    def __repr__(self) -> str:
        return f"GymSimulator({self.problem!r}, reward = {self.reward_offset:g} + {self.reward_scale:g}·normalised)"

    @property
    def problem(self) -> Problem:
        """The normalised problem, the end included."""
        return self._problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        if self._table is not None:
            return self._table.sample(self.problem, pulls, rng)
        if not self._functional:
            self._env.reset(seed=int(rng.integers(2**31)))  # for whatever the environment seeds besides np_random
            self._env.unwrapped.np_random = rng
        return self._stepper.sample(pulls, rng)

    def env_policy(self, policy: ArrayLike) -> IntArray:
        """Return a policy of `problem` as the environment's own actions, one per state of `states`: (n,) or (H, n)."""
        staged = self.problem.stage_policy(policy)[:, : len(self.states)]
        own: IntArray = np.asarray(self.actions)[staged]
        return own[0] if self.problem.horizon is None else own

    def env_values(self, values: ArrayLike) -> FloatArray:
        """Return values of `problem`, (S,) or (H, S), in the environment's units and states: (n,) or (H, n)."""
        staged = np.asarray(values, dtype=np.float64).reshape(self.problem.stages, self.problem.states)
        own: FloatArray = self.reward_scale * staged + self.reward_offset * self.problem.value_limits[:, None]
        return own[0, : len(self.states)] if self.problem.horizon is None else own[:, : len(self.states)]

    def truth(self) -> LinearMDP:
        """Return the table as a linear MDP in normalised units, to judge policies by; for one-hot features only."""
        if self._table is None or not self._one_hot:
            raise InvalidInput("the true model is known only for a transition table with one-hot features.")
        # Pairs that share a coordinate (those of the end) agree, so one of them is enough.
        _, first = np.unique(self.problem.pair_features.argmax(axis=1), return_index=True)
        pairs = self.problem.pairs[first]
        theta = (self._table.probabilities * self._table.rewards).sum(axis=1)[pairs]
        mu = np.zeros((self.problem.states, len(pairs)))
        np.add.at(mu, (self._table.successors[pairs], np.arange(len(pairs))[:, None]), self._table.probabilities[pairs])
        stages = () if self.problem.horizon is None else (self.problem.horizon,)
        theta, mu = np.broadcast_to(theta, (*stages, *theta.shape)), np.broadcast_to(mu, (*stages, *mu.shape))
        return LinearMDP(self.problem, theta=theta, mu=mu, name="gymnasium")

    def _step(self, state: int, action: int, rng: np.random.Generator) -> tuple[float, int]:
        """Take one step of an environment without a table, from and to states of `problem`."""
        end = len(self.states)
        if state == end or not self._live[state]:
            return self._normalised(0.0), end
        own_action = self.actions[action]
        if self._functional:
            start, keys = self.states[state], [self._randomness(rng) for _ in range(3)]
            arrival = self._env.transition(start, own_action, keys[0])
            reward = self._env.reward(start, own_action, arrival, keys[1])
            terminated = self._env.terminal(arrival, keys[2])
        else:
            self._env.reset()
            assert self._set_state is not None
            self._set_state(self._env, self.states[state])
            arrival, reward, terminated, _, _ = self._env.step(own_action)
        if terminated:
            return self._normalised(float(reward)), end
        if _key(arrival) not in self._position:
            raise InvalidInput(f"next state {arrival!r} is not one of the {end} states.")
        return self._normalised(float(reward)), self._position[_key(arrival)]

    def _normalised(self, reward: float) -> float:
        share = (reward - self.reward_offset) / self.reward_scale
        if not 0.0 <= share <= 1.0:  # also catches NaN
            raise InvalidInput(_outside(reward, self.reward_offset, self.reward_scale))
        return share

    def _randomness(self, rng: np.random.Generator) -> Any:
        return rng if self._convert_rng is None else self._convert_rng(rng)

    def _not_over(self, terminal_states: Iterable[Any]) -> BoolArray:
        over = {_key(state) for state in terminal_states}
        unknown = over - self._position.keys()
        if unknown:
            raise InvalidInput(f"terminal state {unknown.pop()!r} is not one of the states.")
        if self._functional:
            key = self._randomness(np.random.default_rng(0))
            over |= {_key(state) for state in self.states if self._env.terminal(state, key)}
        return np.array([_key(state) not in over for state in self.states])


@dataclass(frozen=True, eq=False)
class _Table:
    """The possible outcomes of each pair, at most M of them; first as the environment has them, then normalised.

    Attributes
    ----------
    allowed : bool array (n, A)
    probabilities, rewards : array ((n + 1)·A, M)
        The last A rows are for the end.
    successors : int array ((n + 1)·A, M)
    terminates : bool array ((n + 1)·A, M)
    """

    allowed: BoolArray
    probabilities: FloatArray
    rewards: FloatArray
    successors: IntArray
    terminates: BoolArray

    @classmethod
    def read(
        cls, rows: Any, states: list[Any], actions: list[Any], position: dict[Hashable, int], mask: BoolArray
    ) -> _Table:
        """Read ``P[s][a] = [(probability, next state, reward, terminated), …]``; an action may be missing."""
        pairs = [(state, action) for state in states for action in actions]
        lists = [_outcomes(rows, *pair) if allowed else [] for pair, allowed in zip(pairs, mask.flat, strict=True)]
        shape = len(lists) + len(actions), max(map(len, lists))
        probabilities, rewards = np.zeros(shape), np.zeros(shape)
        successors, terminates = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        for row, (pair, outcomes) in enumerate(zip(pairs, lists, strict=True)):
            for column, (probability, successor, reward, terminated) in enumerate(outcomes):
                if _key(successor) not in position or not np.isfinite(reward):
                    raise InvalidInput(
                        f"table entry (state, action) = {pair}: next state {successor}, reward {reward}."
                    )
                probabilities[row, column], rewards[row, column] = probability, reward
                successors[row, column], terminates[row, column] = position[_key(successor)], terminated
            total = probabilities[row].sum()
            if outcomes and not (abs(total - 1) <= 1e-8 and probabilities[row].min() >= 0):
                raise InvalidInput(f"table entry (state, action) = {pair}: probabilities sum to {total:g}, not 1.")
            probabilities[row] /= total if outcomes else 1.0
        allowed = np.array([len(outcomes) > 0 for outcomes in lists]).reshape(mask.shape)
        return cls(allowed, probabilities, rewards, successors, terminates)

    def live_states(self, initial: BoolArray | None, everywhere: bool) -> BoolArray:
        """Return the states in which an episode takes decisions, (n,)."""
        n, actions = self.allowed.shape
        origins = np.arange(n + 1).repeat(actions)[:, None]
        possible, states = self.probabilities > 0, np.arange(n)
        if initial is None or everywhere:
            only_ended = np.isin(states, self.successors[possible & self.terminates])
            only_ended &= ~np.isin(states, self.successors[possible & ~self.terminates])
            return ~only_ended if initial is None else initial | ~only_ended
        live, before = initial, np.zeros_like(initial)
        while (live != before).any():
            before, onward = live, possible & ~self.terminates & np.isin(origins, np.flatnonzero(live))
            live = live | np.isin(states, self.successors[onward])
        return live

    def ends(self, live: BoolArray) -> bool:
        """Whether the end is needed: something terminates, or some state is not live."""
        return bool(((self.probabilities > 0) & self.terminates).any() or not live.all())

    def reward_range(self, live: BoolArray) -> tuple[float, float]:
        """Return the smallest and the largest reward that an episode can see."""
        rewards = self.rewards[(self.probabilities > 0) & self._of(live)[:, None]]
        return float(rewards.min()), float(rewards.max())

    def normalised(self, live: BoolArray, offset: float, scale: float) -> _Table:
        """Return the table of the normalised problem, in which all that terminates leads to the end."""
        (end, actions), over = self.allowed.shape, ~self._of(live)[:, None]
        probabilities = np.where(over, np.eye(1, self.rewards.shape[1]), self.probabilities)
        own = np.where(over, 0.0, self.rewards)
        rewards = np.where(probabilities > 0, (own - offset) / scale, 0.0)
        outside = (rewards < 0) | (rewards > 1)
        outside[end * actions :] = False  # without an end its rows are not used, and 0 may lie outside
        if outside.any():
            row, column = np.argwhere(outside)[0]
            state, action = divmod(int(row), actions)
            raise InvalidInput(f"pair (state {state}, action {action}): {_outside(own[row, column], offset, scale)}")
        terminates = self.terminates | over
        successors = np.where(terminates, end, self.successors)
        return _Table(self.allowed, probabilities, rewards, successors, terminates)

    def sample(self, problem: Problem, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Draw the counts of the outcomes and add them up by next state."""
        rewards, successors = self.rewards[pulls.pairs], self.successors[pulls.pairs]
        drawn = rng.multinomial(pulls.counts, self.probabilities[pulls.pairs])
        tally = Tally.empty(problem, pulls.pairs)
        cells = np.arange(problem.stages)[:, None, None], np.arange(len(pulls.pairs))[:, None], successors
        np.add.at(tally.next_counts, cells, drawn)
        np.add.at(tally.next_rewards, cells, drawn * rewards)
        return Tally(pulls.pairs, tally.next_counts, tally.next_rewards, (drawn * rewards**2).sum(axis=2))

    def _of(self, live: BoolArray) -> BoolArray:
        """Spread a property of states over the rows; the end does not have it."""
        return np.append(live, False).repeat(self.allowed.shape[1])


def _gymnasium() -> ModuleType:
    try:
        return import_module("gymnasium")
    except ImportError:
        raise InvalidInput("GymSimulator needs Gymnasium 1.0 or later: pip install bestpolicy[gym]") from None


def _require_table(env: Any) -> None:
    """Raise InvalidInput unless the environment has a table that says all there is to say about its steps."""
    core = getattr(env, "unwrapped", None)
    if getattr(core, "P", None) is None:
        raise InvalidInput(f"{env} has no transition table (env.unwrapped.P). {_OTHER_WAYS}")
    if getattr(core, "fickle_passenger", False):
        raise InvalidInput("with fickle_passenger=True, Taxi's steps are not those of its table, nor Markov.")
    while env is not core:
        if type(env).__name__ not in _HARMLESS:
            raise InvalidInput(
                f"wrapper {type(env).__name__} may change what a step returns, which the transition table does not "
                "know. Pass env.unwrapped to do without it, or set_state= to sample through it."
            )
        env = env.env


def _labels(gymnasium: ModuleType, env: Any, space: str, name: str, listed: Sequence[Any] | None) -> list[Any]:
    """Return all states or actions of the environment: those listed, else those of its Discrete space."""
    found = getattr(env, space, None)
    if listed is not None:
        labels = list(listed)
        if not labels or len({_key(label) for label in labels}) < len(labels):
            raise InvalidInput(f"{name} must list each one once, and there must be some.")
        return labels
    if not isinstance(found, gymnasium.spaces.Discrete):
        raise InvalidInput(f"the environment's {space} is {found}, not Discrete. List all of them: {name}=[…].")
    return list(range(int(found.start), int(found.start + found.n)))


def _key(label: Any) -> Hashable:
    """Return something hashable that equal states share, be they numbers, arrays or tuples of them."""
    if hasattr(label, "tolist"):
        label = label.tolist()
    return tuple(map(_key, label)) if isinstance(label, list | tuple) else label


def _outcomes(rows: Any, state: Any, action: Any) -> list[Any]:
    try:
        return list(rows[state][action])
    except (KeyError, IndexError):
        return []


def _initial_states(env: Any) -> BoolArray | None:
    """Return where episodes begin, (n,), or None if the environment does not tell."""
    law = getattr(env.unwrapped, "initial_state_distrib", None)
    return None if law is None else np.asarray(law) > 0


def _checked_mask(mask: ArrayLike | None, shape: tuple[int, int]) -> BoolArray:
    allowed = np.ones(shape, np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
    if allowed.shape != shape:
        raise InvalidInput(f"mask must have shape (states, actions) = {shape}. Got {allowed.shape} instead.")
    return allowed


def _checked_range(limits: tuple[float, float] | None) -> tuple[float, float]:
    if limits is None:
        raise InvalidInput(
            "reward_range=(low, high) is needed: this environment does not tell the range of its rewards."
        )
    low, high = (float(limit) for limit in limits)
    if not -np.inf < low < high < np.inf:
        raise InvalidInput(f"reward_range must be two finite numbers, low < high. Got {limits!r} instead.")
    return low, high


def _played(allowed: BoolArray, live: BoolArray, states: list[Any], ends: bool) -> BoolArray:
    """Return the mask of the problem, (n, A) or (n + 1, A): where nothing is decided, the first action alone."""
    stuck = np.flatnonzero(live & ~allowed.any(axis=1))
    if len(stuck):
        raise InvalidInput(f"no action is allowed in state {states[stuck[0]]}, where an episode can be.")
    first = np.eye(1, allowed.shape[1], dtype=np.bool_)
    played = np.where(live[:, None], allowed, first)
    return np.vstack([played, first]) if ends else played


def _features(features: Any, states: list[Any], actions: list[Any], played: BoolArray, ends: bool) -> FloatArray:
    """Return φ of the problem's pairs, (n, A, d), or (n + 1, A, d + 1) with a coordinate that belongs to the end."""
    if isinstance(features, str) and features != "one-hot":
        raise InvalidInput(f"features must be 'one-hot', an array or a function. Got {features!r} instead.")
    if callable(features):
        vectors = [features(states[state], actions[action]) for state, action in np.argwhere(played)]
        array = np.zeros((*played.shape, np.size(vectors[0])))
        try:
            array[played] = vectors
        except ValueError as error:
            raise InvalidInput(f"features(state, action) must return vectors of equal length ({error}).") from None
    else:
        array = np.arange(len(states)) if isinstance(features, str) else np.asarray(features)
        if array.shape == (len(states),):
            array = _one_hot(array, played)
    if array.shape[:-1] != played.shape:
        raise InvalidInput(
            f"features must be the clusters of the {len(states)} states or an array of shape (states, actions, d), "
            f"here {(*played.shape, 'd')}. Got shape {array.shape} instead."
        )
    if not ends:
        return array.astype(np.float64)
    full = np.zeros((len(states) + 1, len(actions), array.shape[2] + 1))
    full[:-1, :, :-1][played] = array[played]
    full[..., -1] = 1.0  # what is not played belongs to the end, or is masked
    full[:-1, :, -1][played] = 0.0
    return full


def _one_hot(clusters: IntArray, played: BoolArray) -> FloatArray:
    """Return one coordinate per pair of cluster and action, (n, A, d)."""
    state, action = np.nonzero(played)
    group = np.unique(clusters, return_inverse=True)[1][state] * played.shape[1] + action
    groups, coordinate = np.unique(group, return_inverse=True)
    array = np.zeros((*played.shape, len(groups)))
    array[state, action, coordinate] = 1.0
    return array


def _outside(reward: float, offset: float, scale: float) -> str:
    return f"reward {reward:g} is outside reward_range=({offset:g}, {offset + scale:g}). Widen the range."
