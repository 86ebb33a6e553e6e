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
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import BoolArray, FloatArray, IntArray, Problem, as_floats, frozen
from bestpolicy.simulators.user import CallableSimulator

_KINDS = (
    "Give set_state=function(env, state) and reward_range=(low, high), use a functional environment (FuncEnv), or "
    "wrap your own function in CallableSimulator."
)
# Wrappers that change nothing of what a single step from a given state returns.
_HARMLESS = frozenset(
    "TimeLimit OrderEnforcing PassiveEnvChecker RecordEpisodeStatistics RecordVideo HumanRendering RenderCollection".split()
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
        functional = isinstance(env, import_module("gymnasium.experimental.functional").FuncEnv)
        tabular = not functional and set_state is None
        if tabular and getattr(getattr(env, "unwrapped", None), "P", None) is None:
            raise InvalidInput(f"{env} has no transition table (env.unwrapped.P). {_KINDS}")
        self.states = _labels("observation", env, states, "states")
        self.actions = _labels("action", env, actions, "actions")
        shape = len(self.states), len(self.actions)
        allowed = np.ones(shape, np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        if allowed.shape != shape:
            raise InvalidInput(f"mask must have shape (states, actions) = {shape}. Got {allowed.shape} instead.")

        self._position = {_key(state): i for i, state in enumerate(self.states)}
        self._set_state, self._convert = set_state, convert_rng or (lambda rng: rng)
        outcomes = _Outcomes(env, self.states, self.actions, self._position, allowed) if tabular else None
        if outcomes is not None:
            live, ends = outcomes.live_states(everywhere)
            low, high = outcomes.reward_range(live) if reward_range is None else reward_range
        elif reward_range is None:
            raise InvalidInput("reward_range=(low, high) is needed: it cannot be read off this environment.")
        else:
            over = {_key(state) for state in terminal_states}
            if functional:
                over |= {_key(s) for s in self.states if env.terminal(s, self._convert(np.random.default_rng(0)))}
            live, ends = np.array([_key(state) not in over for state in self.states]), True
            low, high = reward_range
        if not (np.isfinite([low, high]).all() and low <= high):
            raise InvalidInput(f"reward_range must be (low, high) with low ≤ high. Got {reward_range!r} instead.")
        low, high = (min(low, 0.0), max(high, 0.0)) if ends else (low, high)
        self.reward_offset, self.reward_scale = float(low), float(high - low) or 1.0
        played = allowed & live[:, None]
        if not played[live].any(axis=1).all():
            stuck = self.states[int(np.flatnonzero(live & ~played.any(axis=1))[0])]
            raise InvalidInput(f"no action is allowed in state {stuck}, which an episode can visit.")
        self._live = live
        self._problem = Problem(
            _features(features, self.states, self.actions, played, ends),
            discount=discount,
            horizon=horizon,
            mask=_with_end(played, live, ends),
        )
        self._one_hot = isinstance(features, str)
        self._table = None if outcomes is None else outcomes.compiled(live, ends, self._normalised)
        self._env = env if outcomes is None else None  # a table needs no environment any more
        self._stepper = CallableSimulator(self._problem, self._transition if functional else self._reset_and_step)

    def __repr__(self) -> str:
        return f"GymSimulator({self.problem!r}, rewards {self.reward_offset:g} + {self.reward_scale:g}·r)"

    @property
    def problem(self) -> Problem:
        """The normalised problem, the end included."""
        return self._problem

    def sample(self, pulls: Pulls, rng: np.random.Generator) -> Tally:
        """Simulate each pair as often as asked."""
        if self._table is not None:
            return self._draw(pulls, rng, *self._table)
        if self._set_state is not None:
            self._env.reset(seed=int(rng.integers(2**31)))  # for whatever the environment seeds besides np_random
            self._env.unwrapped.np_random = rng
        return self._stepper.sample(pulls, rng)

    def env_policy(self, policy: ArrayLike) -> IntArray:
        """Return a policy of `problem` as the environment's own actions, one per state of `states`: (n,) or (H, n)."""
        staged = self.problem.stage_policy(policy)[:, : len(self.states)]
        own: IntArray = np.asarray(self.actions)[staged]
        return own[0] if self.problem.horizon is None else own

    def env_values(self, values: ArrayLike) -> FloatArray:
        """Return values of `problem`, (S,) or (H, S), in the environment's units, without the end's."""
        array = np.asarray(values, dtype=np.float64).reshape(self.problem.stages, self.problem.states)
        own = self.reward_scale * array + self.reward_offset * self.problem.value_limits[:, None]
        own = own[:, : len(self.states)]
        return own[0] if self.problem.horizon is None else own

    def truth(self) -> LinearMDP:
        """Return the table as a linear MDP in normalised units, to judge policies by; for one-hot features only."""
        if self._table is None or not self._one_hot:
            raise InvalidInput("the true model is known only for a transition table with one-hot features.")
        problem, (probabilities, successors, rewards) = self.problem, self._table
        coordinate = problem.pair_features.argmax(axis=1)
        theta, mu = np.zeros(problem.dimension), np.zeros((problem.states, problem.dimension))
        theta[coordinate] = (probabilities * rewards).sum(axis=1)[problem.pairs]
        # Pairs that share the end's coordinate agree, so only one of them is added up.
        first = np.unique(coordinate, return_index=True)[1]
        rows = problem.pairs[first]
        np.add.at(mu, (successors[rows], coordinate[first][:, None]), probabilities[rows])
        repeat = () if problem.horizon is None else (problem.horizon,)
        return LinearMDP(problem, theta=np.tile(theta, (*repeat, 1))[()] if repeat else theta,
                         mu=np.tile(mu, (*repeat, 1, 1)) if repeat else mu, name="gymnasium")
