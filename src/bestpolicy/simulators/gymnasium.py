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
not at all) are ends as well: one action that leads to the end; they share its feature and so cost nothing. With
one-hot features they are ends of the problem (`Problem.ends`), known beforehand. The policy is certified in all other
states. Truncation is no termination: a time limit is no part of the state.

**Rewards** r ∈ [low, high] become (r - low)/scale with scale = high - low. The end pays the image of 0, so the range
is widened to hold 0, and every pair, the end included, is shifted alike. Hence for every policy

    V_env(s) = scale · V(s) + low/(1-γ)            (episodic: + low·(H-h) at step h),

losses and gaps are `reward_scale` times those of the normalised problem, and ε in the environment's own units is
ε/scale in the normalised ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray, as_numbers
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem
from bestpolicy.problem.names import key_of, plain, positions_of
from bestpolicy.problem.units import Units
from bestpolicy.samples import Episodes, Pulls, Tally, require_episodes, require_pulls
from bestpolicy.simulators.environments import (
    checked_mask,
    checked_options,
    checked_range,
    import_gymnasium,
    initial_states,
    list_labels,
    make_environment,
    name_of,
    require_table,
)
from bestpolicy.simulators.feature_maps import feature_array
from bestpolicy.simulators.population import roll_out
from bestpolicy.simulators.transition_table import TransitionTable, outside
from bestpolicy.simulators.user import CallableSimulator


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
    units : Units
        Its rewards, and all this, ready for JSON.
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
        gymnasium = import_gymnasium()
        env = make_environment(gymnasium, env) if isinstance(env, str) else env
        self._functional = isinstance(env, import_module("gymnasium.experimental.functional").FuncEnv)
        tabular = set_state is None and not self._functional
        if tabular:
            require_table(env)
        over = checked_options(set_state, convert_rng, terminal_states, tabular, self._functional)
        self.states = list_labels(gymnasium, env, "observation_space", "states", states)
        self.actions = list_labels(gymnasium, env, "action_space", "actions", actions)
        positions_of(self.actions, "actions")
        self._position = positions_of(self.states, "states")
        self._env, self._set_state, self._convert_rng = env, set_state, convert_rng
        self._name = name_of(env)
        allowed = checked_mask(mask, (len(self.states), len(self.actions)))
        self._table: TransitionTable | None = None
        if tabular:
            table = TransitionTable.read(env.unwrapped.P, self.states, self.actions, self._position, allowed)
            initial = initial_states(env, len(self.states)) if states is None else None
            allowed, self._live = table.allowed, table.live_states(initial, everywhere)
            ends = table.ends(self._live)
            low, high = table.reward_range(self._live) if reward_range is None else checked_range(reward_range)
        else:
            self._live, ends = self._not_over(over), True
            low, high = checked_range(reward_range)
        mask_array = _played(allowed, self._live, self.states, ends)
        low, high = (min(low, 0.0), max(high, 0.0)) if ends else (low, high)
        scale = (high - low) or 1.0
        if not np.isfinite(scale):
            raise InvalidInput(f"rewards from {low:g} to {high:g} span more than a float can hold. Scale them down.")
        self._one_hot = isinstance(features, str) and features == "one-hot"
        if self._one_hot:
            closed = np.flatnonzero(~np.append(self._live, np.zeros(int(ends), np.bool_)))
            problem = Problem.tabular(
                *mask_array.shape, discount=discount, horizon=horizon, mask=mask_array, ends=closed
            )
            self._problem = problem.in_units(Units(scale, low))
        else:
            array = feature_array(features, self.states, self.actions, allowed & self._live[:, None], ends)
            self._problem = Problem(array, discount=discount, horizon=horizon, mask=mask_array)
        if tabular:
            # From here on the table is all that is needed, and it travels to workers more easily than `env`.
            self._table, self._env = table.normalised(self._live, low, scale), None
        self._stepper = CallableSimulator(self._problem, self._step)
        self._lock = Lock()  # an environment is in one place at a time
        self._beginnings = _beginnings(env, self._problem.states) if tabular and states is None else None
        end = ["the end"] if self._problem.states > len(self.states) else []
        self.units = Units(
            scale,
            low,
            states=[plain(state) for state in self.states] + end,
            actions=[plain(action) for action in self.actions],
            environment=self._name,
            own_states=len(self.states),
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def __repr__(self) -> str:
        units = self.units
        return f"GymSimulator({self.problem!r}, reward = {units.reward_offset:g} + {units.reward_scale:g}·normalised)"

    @property
    def problem(self) -> Problem:
        """The normalised problem, the end included."""
        return self._problem

    @property
    def has_table(self) -> bool:
        """Whether a transition table is sampled, at a cost that does not depend on how often."""
        return self._table is not None

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        require_pulls(pulls, self.problem, rng)
        if self._table is not None:
            return self._table.sample(self.problem, pulls, rng)
        with self._prepared(rng):
            return self._stepper.sample(pulls, rng)

    def rollout(self, episodes: Episodes, rng: np.random.Generator) -> Tally:
        """Simulate episodes from a start, or from where a table says that they begin; or one walk."""
        require_episodes(episodes, self.problem, rng)
        if episodes.start is None and self._beginnings is None:
            raise InvalidInput("start is needed, a state or a distribution over states: the environment tells none.")
        episodes = episodes if episodes.start is not None else replace(episodes, start=self._beginnings)
        if self._table is not None:
            return roll_out(self.problem, episodes, self._table.outcomes, rng)
        with self._prepared(rng):
            return self._stepper.rollout(episodes, rng)

    @contextmanager
    def _prepared(self, rng: np.random.Generator) -> Iterator[None]:
        """Have an environment draw from the generator, and nobody else use it meanwhile."""
        if self._functional:  # it has no place of its own
            yield
            return
        with self._lock:
            self._env.reset(seed=int(rng.integers(2**31)))  # for whatever the environment seeds besides np_random
            self._env.unwrapped.np_random = rng
            yield

    def env_policy(self, policy: ArrayLike) -> IntArray:
        """Return a policy of `problem` as the environment's own actions, one per state of `states`: (n,) or (H, n)."""
        staged = self.units.policy(self.problem.stage_policy(policy))
        return staged[0] if self.problem.horizon is None else staged

    def env_values(self, values: ArrayLike) -> FloatArray:
        """Return values of `problem`, (S,) or (H, S), in the environment's units and states: (n,) or (H, n)."""
        problem, units, n = self.problem, self.units, len(self.states)
        given = as_numbers("values", values).astype(np.float64, copy=False)
        if given.size != problem.stages * problem.states:
            raise InvalidInput(f"values must be one per state and step of the problem. Got {given.shape} instead.")
        staged = given.reshape(problem.stages, problem.states)
        in_units: FloatArray = units.reward_scale * staged + units.reward_offset * problem.value_limits[:, None]
        return in_units[0, :n] if problem.horizon is None else in_units[:, :n]

    def truth(self) -> LinearMDP:
        """Return the table as a linear MDP in normalised units, to judge policies by; for one-hot features only."""
        if self._table is None or not self._one_hot:
            raise InvalidInput("the true model is known only for a transition table with one-hot features.")
        # Pairs that share a coordinate (those of ends) agree, so one of them is enough.
        columns = self.problem.columns
        assert columns is not None
        _, first = np.unique(columns, return_index=True)
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
        if key_of(arrival) not in self._position:
            raise InvalidInput(f"next state {arrival!r} is not one of the {end} states. List all of them: states=[…].")
        return self._normalised(float(reward)), self._position[key_of(arrival)]

    def _normalised(self, reward: float) -> float:
        share = (reward - self.units.reward_offset) / self.units.reward_scale
        if not 0.0 <= share <= 1.0:  # also catches NaN
            raise InvalidInput(outside(reward, self.units.reward_offset, self.units.reward_scale))
        return share

    def _randomness(self, rng: np.random.Generator) -> Any:
        return rng if self._convert_rng is None else self._convert_rng(rng)

    def _not_over(self, terminal_states: Iterable[Any]) -> BoolArray:
        over = {key_of(state) for state in terminal_states}
        unknown = over - self._position.keys()
        if unknown:
            raise InvalidInput(f"terminal state {unknown.pop()!r} is not one of the states.")
        if self._functional:
            key = self._randomness(np.random.default_rng(0))
            over |= {key_of(state) for state in self.states if self._env.terminal(state, key)}
        return np.array([key_of(state) not in over for state in self.states])


def _beginnings(env: Any, states: int) -> FloatArray | None:
    """Return the distribution of the first state over those of the problem, if the environment tells."""
    law = getattr(env.unwrapped, "initial_state_distrib", None)
    if law is None:
        return None
    chances = np.asarray(law, np.float64)
    padded: FloatArray = np.append(chances, np.zeros(states - len(chances))) / chances.sum()
    return padded


def _played(allowed: BoolArray, live: BoolArray, states: list[Any], ends: bool) -> BoolArray:
    """Return the mask of the problem, (n, A) or (n + 1, A): where nothing is decided, the first action alone."""
    stuck = np.flatnonzero(live & ~allowed.any(axis=1))
    if len(stuck):
        raise InvalidInput(
            f"no action is allowed in state {states[stuck[0]]!r}, where an episode can be. Give it one, in the table "
            "or in mask=."
        )
    first = np.eye(1, allowed.shape[1], dtype=np.bool_)
    played = np.where(live[:, None], allowed, first)
    return np.vstack([played, first]) if ends else played
