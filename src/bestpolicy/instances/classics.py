"""Classical exploration problems, as tabular models with one-hot features.

* *RiverSwim* (Strehl and Littman 2008): swim against the current to a large reward, or drift to a small one
  at once.
* *Forked RiverSwim*: two such rivers with one spring, and a jump from one to the other. The two ends pay
  almost the same, so each has to be measured well.
* *Grid*: walk to the far corner on slippery ground. Tiny random rewards make the shortest path unique.
* *Combination lock*: one right action after the other, or back to the start.
* *SixArms* (Strehl and Littman 2008): the better an arm pays, the less often it can be reached.
* *Double chain*: two chains that differ in the reward at their ends only.

What they have in common is that the reward is far from where the choice is made, so it arrives with the
weight γ^n, and gaps are small far from it. With a horizon the same model repeats at every step; then choices
too late to be paid for do not matter, and the gap is 0 unless every action has a reward of its own. A
simulator that can be asked about any pair removes the difficulty of getting there, not that of telling the
values apart.

Where actions do the same (at an absorbing state, or two wrong actions of a lock), only one of them is
allowed.
"""

from __future__ import annotations

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import require_fraction, require_whole, shown
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.construction import default_discount, require_room, require_sizes
from bestpolicy.instances.tabular import tabular
from bestpolicy.mdp import LinearMDP

LEFT, RIGHT, SWITCH = 0, 1, 2
_RETREAT, _STAY, _ADVANCE = 0.1, 0.6, 0.3  # swimming against the current, anywhere but at the ends


def riverswim(
    *,
    states: int = 6,
    left_reward: float = 0.05,
    right_reward: float = 1.0,
    rest_reward: float = 0.0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "riverswim",
) -> LinearMDP:
    """Return RiverSwim: action 0 drifts left for sure, action 1 swims right against the current.

    Parameters
    ----------
    states : int
    left_reward : float
        For drifting in state 0.
    right_reward : float
        For swimming in the last state.
    rest_reward : float
        For drifting elsewhere. A small one keeps the two actions apart when too few steps remain to get
        anywhere.
    discount, horizon
        At most one of them; discount 0.9 by default.
    name : str, optional
        Shown in reports.
    """
    require_sizes(2, states=states)
    require_room("states", (2 * states) ** 2)
    require_fraction(left_reward=left_reward, right_reward=right_reward, rest_reward=rest_reward)
    rewards = np.zeros((states, 2))
    rewards[:, LEFT] = rest_reward
    rewards[0, LEFT] = left_reward
    rewards[-1, RIGHT] = right_reward
    discount = default_discount(discount, horizon, 0.9)
    return tabular(_river(states), rewards, discount=discount, horizon=horizon, name=name)


def forked_riverswim(
    *,
    branch: int = 4,
    left_reward: float = 0.05,
    first_reward: float = 1.0,
    second_reward: float = 0.95,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "forked-riverswim",
) -> LinearMDP:
    """Return two rivers with a common spring: drift left, swim right, or switch to the other river.

    State 0 is the spring, 1 to n-1 are the first river, n to 2n-2 the second. Swimming from the spring leads
    into the first; switching is possible between the spring and the ends.

    Parameters
    ----------
    branch : int
        n ≥ 3: states of a river, the spring included.
    left_reward : float
        For drifting in state 0.
    first_reward, second_reward : float
        For swimming at the end of either river.
    discount, horizon
        At most one of them; discount 0.9 by default.
    name : str, optional
        Shown in reports.
    """
    require_sizes(3, branch=branch)
    require_room("branch", (6 * branch) ** 2)
    require_fraction(left_reward=left_reward, first_reward=first_reward, second_reward=second_reward)
    states, first_end, second_end = 2 * branch - 1, branch - 1, 2 * branch - 2
    second = np.r_[0, branch:states]  # the second river, from the spring to its end
    transitions = np.zeros((states, 3, states))
    # The first river is written last: it is the one that the spring leads into.
    for river in (second, np.arange(branch)):
        rows = np.zeros((branch, 2, states))
        rows[:, :, river] = _river(branch)
        transitions[river, :SWITCH] = rows
    inner = np.arange(1, first_end)
    transitions[inner, SWITCH, inner + first_end] = 1.0
    transitions[inner + first_end, SWITCH, inner] = 1.0
    rewards = np.zeros((states, 3))
    rewards[0, LEFT] = left_reward
    rewards[first_end, RIGHT] = first_reward
    rewards[second_end, RIGHT] = second_reward
    mask = np.ones((states, 3), dtype=np.bool_)
    mask[[0, first_end, second_end], SWITCH] = False
    discount = default_discount(discount, horizon, 0.9)
    return tabular(transitions, rewards, mask=mask, discount=discount, horizon=horizon, name=name)


def grid(
    *,
    side: int = 4,
    slip: float = 0.2,
    goal_reward: float = 1.0,
    tie_break: float = 0.02,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "grid",
) -> LinearMDP:
    """Return a slippery grid: up, down, left, right from the first corner to the last, and back to the first.

    Drawn: the rewards that break ties, pair by pair.

    Parameters
    ----------
    side : int
        There are side² states, row by row.
    slip : float
        Probability of a step in a random direction instead of the chosen one. Walls stop a step.
    goal_reward : float
        In the last corner, which leads back to the first.
    tie_break : float
        Rewards elsewhere are uniform on [0, tie_break].
    seed : int
    discount, horizon
        At most one of them; discount 0.9 by default.
    name : str, optional
        Shown in reports.
    """
    require_sizes(2, side=side)
    require_room("side", (4 * side**2) ** 2)
    require_whole(0, seed=seed)
    require_fraction(slip=slip, goal_reward=goal_reward, tie_break=tie_break)
    states = side * side
    row, column = np.divmod(np.arange(states), side)
    steps = np.zeros((states, 4, states))
    for direction, (down, right) in enumerate(((-1, 0), (1, 0), (0, -1), (0, 1))):
        reached = np.clip(row + down, 0, side - 1) * side + np.clip(column + right, 0, side - 1)
        steps[np.arange(states), direction, reached] = 1.0
    transitions = (1 - slip) * steps + slip * steps.mean(axis=1, keepdims=True)
    rewards = tie_break * np.random.default_rng(seed).uniform(size=(states, 4))
    mask = np.ones((states, 4), dtype=np.bool_)
    transitions[-1], transitions[-1, :, 0] = 0.0, 1.0
    rewards[-1] = goal_reward
    mask[-1, 1:] = False
    discount = default_discount(discount, horizon, 0.9)
    return tabular(transitions, rewards, mask=mask, discount=discount, horizon=horizon, name=name)


def lock(
    *,
    length: int = 5,
    actions: int = 3,
    slip: float = 0.1,
    wrong_reward: float = 0.01,
    seed: int = 0,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "lock",
) -> LinearMDP:
    """Return a combination lock: the right action of each state leads on, any other back to the start.

    Drawn: the right actions, state by state. Wrong ones do the same, so one of them is allowed in a state.
    The open lock, the last state, pays 1 and closes.

    Parameters
    ----------
    length : int
        Right actions in a row that open the lock; there is one state more.
    actions : int
    slip : float
        Probability that the right action leads back to the start.
    wrong_reward : float
        For a wrong action, to tempt.
    seed : int
    discount, horizon
        At most one of them; discount 0.8 by default.
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, length=length)
    require_sizes(2, actions=actions)
    require_room("length or actions", (length + 1) * actions * (length + 1))
    require_whole(0, seed=seed)
    require_fraction(slip=slip, wrong_reward=wrong_reward)
    places = np.arange(length)
    code = np.random.default_rng(seed).integers(actions, size=length)
    transitions = np.zeros((length + 1, actions, length + 1))
    transitions[:, :, 0] = 1.0
    transitions[places, code, 0] = slip
    transitions[places, code, places + 1] = 1 - slip
    rewards = np.full((length + 1, actions), wrong_reward)
    rewards[places, code] = 0.0
    rewards[-1] = 1.0
    mask = np.zeros((length + 1, actions), dtype=np.bool_)
    mask[places, code] = True
    mask[places, np.where(code == 0, 1, 0)] = True
    mask[-1, 0] = True
    discount = default_discount(discount, horizon, 0.8)
    return tabular(transitions, rewards, mask=mask, discount=discount, horizon=horizon, name=name)


def sixarms(
    *, arms: int = 6, discount: float | None = None, horizon: int | None = None, name: str = "sixarms"
) -> LinearMDP:
    """Return SixArms: from the hub try one of the arms; at an arm stay and collect, or leave.

    State 0 is the hub, state i + 1 arm i. The arms are reached with probabilities 1, .15, .1, .05, .03, .01
    and pay 50, 133, 300, 800, 1660, 6000, divided by 6000. At arm i action i stays, and all others leave: the
    next one stands for them.

    Parameters
    ----------
    arms : int
        2 to 6: the first so many of them.
    discount, horizon
        At most one of them; discount 0.9 by default.
    name : str, optional
        Shown in reports.
    """
    require_whole(2, arms=arms)
    if arms > 6:
        raise InvalidInput(f"arms must be at most 6. Got {shown(arms)} instead.")
    chances = np.array([1, 0.15, 0.1, 0.05, 0.03, 0.01])[:arms]
    arm = np.arange(arms)
    transitions = np.zeros((arms + 1, arms, arms + 1))
    transitions[0, arm, arm + 1] = chances
    transitions[0, :, 0] = 1 - chances
    transitions[1:, :, 0] = 1.0
    transitions[arm + 1, arm, 0] = 0.0
    transitions[arm + 1, arm, arm + 1] = 1.0
    rewards = np.zeros((arms + 1, arms))
    rewards[arm + 1, arm] = np.array([50, 133, 300, 800, 1660, 6000])[:arms] / 6000
    mask = np.zeros((arms + 1, arms), dtype=np.bool_)
    mask[0] = True
    mask[arm + 1, arm] = mask[arm + 1, (arm + 1) % arms] = True
    discount = default_discount(discount, horizon, 0.9)
    return tabular(transitions, rewards, mask=mask, discount=discount, horizon=horizon, name=name)


def double_chain(
    *,
    length: int = 4,
    advance: float = 0.7,
    first_reward: float = 1.0,
    second_reward: float = 0.95,
    centre_reward: float = 0.05,
    discount: float | None = None,
    horizon: int | None = None,
    name: str = "double-chain",
) -> LinearMDP:
    """Return two chains that leave state 0: states 1 to n are the first, n+1 to 2n the second.

    In a chain, action 1 advances or else retreats, and action 0 retreats for sure. In state 0, action 1 tries
    to enter the first chain and action 0 the second. At an end, advancing stays there. Rewards belong to the
    state.

    Parameters
    ----------
    length : int
        n, states of a chain.
    advance : float
        Probability that an attempt to advance succeeds.
    first_reward, second_reward : float
        At the ends of the chains; different, or the two would be equally good.
    centre_reward : float
        In state 0.
    discount, horizon
        At most one of them; discount 0.9 by default.
    name : str, optional
        Shown in reports.
    """
    require_sizes(1, length=length)
    require_room("length", (4 * length + 2) ** 2)
    require_fraction(
        advance=advance, first_reward=first_reward, second_reward=second_reward, centre_reward=centre_reward
    )
    transitions = np.zeros((2 * length + 1, 2, 2 * length + 1))
    for entrance, begin in ((1, 1), (0, length + 1)):
        chain = np.arange(begin, begin + length)
        inward = np.r_[0, chain[:-1]]
        outward = np.minimum(chain + 1, chain[-1])
        transitions[chain, 0, inward] = 1.0
        transitions[chain, 1, inward] = 1 - advance
        transitions[chain, 1, outward] = advance
        transitions[0, entrance, [0, begin]] = 1 - advance, advance
    rewards = np.zeros((2 * length + 1, 2))
    rewards[[0, length, 2 * length]] = np.array([[centre_reward], [first_reward], [second_reward]])
    discount = default_discount(discount, horizon, 0.9)
    return tabular(transitions, rewards, discount=discount, horizon=horizon, name=name)


def _river(states: int) -> FloatArray:
    """Transitions (S, 2, S) of one river."""
    transitions = np.zeros((states, 2, states))
    transitions[0, LEFT, 0] = 1.0
    transitions[np.arange(1, states), LEFT, np.arange(states - 1)] = 1.0
    inner = np.arange(1, states - 1)
    for shift, chance in ((-1, _RETREAT), (0, _STAY), (1, _ADVANCE)):
        transitions[inner, RIGHT, inner + shift] = chance
    transitions[0, RIGHT, :2] = 1 - _ADVANCE, _ADVANCE
    transitions[-1, RIGHT, -2:] = 1 - _ADVANCE, _ADVANCE
    return transitions
