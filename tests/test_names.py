"""States and actions by their names, from one call to files, pages and certificates; and tables in others' layouts."""

from __future__ import annotations

import json
from collections import namedtuple
from enum import Enum

import numpy as np
import pytest
from scipy.sparse import csr_array

import bestpolicy as bp

STATES, ACTIONS = ["good", "worn", "broken"], ["run", "repair"]


def step(state, action, rng):
    if action == "repair":
        return 0.2, "good"
    number = STATES.index(state)
    return float(rng.random() < (0.9, 0.7, 0.0)[number]), STATES[min(2, number + int(rng.random() < 0.3))]


def numbered_step(state, action, rng):
    reward, following = step(STATES[state], ACTIONS[action], rng)
    return reward, STATES.index(following)


HOW = {"epsilon": 0.5, "delta": 0.05, "algorithm": "tight", "seed": 0}
NAMED = {"states": STATES, "actions": ACTIONS, "discount": 0.6}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "run.db"
    return bp.identify(step, **NAMED, **HOW, store=path), path


def test_names_change_nothing_of_the_answer(stored):
    problem = bp.Problem(np.eye(6).reshape(3, 2, 6), discount=0.6)
    plain = bp.identify(bp.CallableSimulator(problem, numbered_step), **HOW)
    result, _ = stored
    assert (result.samples, result.epsilon) == (plain.samples, plain.epsilon)
    assert result.policy.tolist() == plain.policy.tolist()
    assert result.origin.problem.fingerprint == problem.fingerprint


def test_the_result_speaks_the_users_language(stored):
    result, _ = stored
    assert [result.action(state) for state in STATES] == ["run", "run", "repair"]
    assert "policy: good: run, worn: run, broken: repair" in str(result)
    assert result.to_dict()["names"] == {"states": STATES, "actions": ACTIONS}
    with pytest.raises(bp.InvalidInput, match=r"'gone' is not one of the states: 'good', 'worn', 'broken'"):
        result.action("gone")
    with pytest.raises(bp.InvalidInput, match="says nothing of state 'good' at step 1"):
        result.action("good", 1)


def test_names_survive_in_files_pages_and_certificates(stored, tmp_path):
    result, path = stored
    assert bp.Study.resume(path).result().action("broken") == "repair"
    page = bp.report.report_page(str(path))
    assert "broken" in page
    assert "repair" in page
    result.save(tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text())["problem"]["labels"]["states"] == STATES
    assert bp.verify(tmp_path / "certificate.json").valid


class Level(Enum):
    LOW = 0
    HIGH = 1


Place = namedtuple("Place", "row column")


@pytest.mark.parametrize(
    "states",
    [
        [("a", 1), ("b", (2, 3))],
        [Level.LOW, Level.HIGH],
        [10, 20],
        [frozenset("xyz"), frozenset()],
        [Place(0, 1), Place(1, 1)],
        [np.int64(3), np.int64(4)],
        [None, 0.5],
        [b"left", b"right"],
    ],
    ids=lambda states: type(states[0]).__name__,
)
def test_any_hashable_state_will_do(states, tmp_path):
    def flip(state, action, rng):
        assert state in states
        return float(action is Level.HIGH), states[int(rng.integers(2))]

    result = bp.identify(
        flip, states=states, actions=list(Level), discount=0.4, **HOW | {"epsilon": 1.0}, store=tmp_path / "run.db"
    )
    assert [result.action(state) for state in states] == [Level.HIGH] * 2
    again = bp.Study.resume(tmp_path / "run.db").result()
    assert [again.action(state) for state in states] == ["HIGH", "HIGH"]  # what files have


def test_a_next_state_that_is_not_listed_is_named():
    def lost(state, action, rng):
        return 0.5, "lost" if state == "worn" else state

    with pytest.raises(bp.SimulatorError) as caught:
        bp.identify(lost, **NAMED, **HOW)
    said = str(caught.value)
    assert said.startswith("pair (state 'worn', action 'run'): next state 'lost' is not one of the states")
    assert "'good', 'worn', 'broken'. Add it to states=" in said
    assert caught.value.study.samples > 0


def test_actions_of_a_state_are_a_mask():
    def allowed(stock):
        return [f"order {n}" for n in range(3 - stock)]

    def shop(stock, action, rng):
        assert action in allowed(stock)
        after = stock + int(action.split()[1])
        sold = min(after, int(rng.integers(3)))
        return (2 * sold - (after - stock) + 2) / 6, after - sold

    simulator = bp.NamedSimulator(shop, states=range(3), actions=allowed, discount=0.5)
    assert simulator.problem.mask.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    bp.testing.check_generative_model(simulator)
    result = bp.identify(shop, states=range(3), actions=allowed, discount=0.5, **HOW)
    assert result.certified
    assert result.action(2) == "order 0"


def test_episodes_and_a_start_by_name():
    def corridor(state, action, rng, stage):
        assert stage in (0, 1)
        return float(action == "go" and stage == 1), "b" if action == "go" else "a"

    how = {"states": ["a", "b"], "actions": ["stay", "go"], "horizon": 2, "epsilon": 1.0, "delta": 0.1, "seed": 0}
    result = bp.identify(corridor, **how, algorithm="sharp", start="b")
    assert result.where == "from state b"
    assert result.action("b", step=1) == "go"
    spread = bp.identify(corridor, **how, algorithm="sharp", start={"a": 0.25, "b": 0.75})
    assert spread.origin.settings.start == (0.25, 0.75)
    with pytest.raises(bp.InvalidInput, match="'c' is not one of the states"):
        bp.identify(corridor, **how, algorithm="sharp", start="c")


def test_another_order_of_names_is_another_simulator(tmp_path):
    bp.identify(step, **NAMED, **HOW, store=tmp_path / "run.db", max_samples=100)
    turned = bp.NamedSimulator(step, **NAMED | {"states": STATES[::-1]})
    with pytest.raises(bp.InvalidInput, match=r"simulator's states are others .* or in another order"):
        bp.drive(bp.Study.resume(tmp_path / "run.db", max_samples=10**5), turned)


class Nameless:
    pass


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"states": 12}, r"states must be a list of all of them \(range\(12\) for twelve.* Got 12"),
        ({"states": "abc"}, "states must be a list"),
        ({"states": []}, "states must not be empty"),
        ({"states": ["b", "a", "a"]}, "states must list each one once. 'a' is there more than once"),
        ({"states": [Nameless(), Nameless()]}, "states must have names: .* has none"),
        ({"states": [1, "x", Level.LOW, "LOW"]}, "'LOW' are both called 'LOW'"),
        ({"states": ["a", float("nan")]}, "states of units must be ready for JSON"),
        ({"actions": lambda state: []}, r"actions\('good'\) must not be empty"),
        ({"actions": lambda state: 3}, r"actions\('good'\) must be a list of all of them. Got 3"),
        ({"actions": None}, "a function needs the states and actions"),
        ({"horizon": 3}, "either discount or horizon"),
        ({"reward_range": (1, 1)}, "reward_range must be two finite numbers"),
    ],
)
def test_what_cannot_be_named_is_refused(changed, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.identify(step, **NAMED | changed, **HOW)


def test_names_go_with_a_function():
    with pytest.raises(bp.InvalidInput, match=r"states goes with a function.* NamedSimulator knows its own"):
        bp.identify(bp.NamedSimulator(step, **NAMED), states=STATES, **HOW)
    with pytest.raises(bp.InvalidInput, match="step must take three arguments"):
        bp.identify(lambda state: (0, state), **NAMED, **HOW)
    with pytest.raises(bp.InvalidInput, match=r"wrap a model in ExactSimulator .or solve it"):
        bp.identify(bp.instances.load("two-state"), **HOW)


# --- tables


def solved_by_iteration(rows, rewards, discount):
    values = np.zeros(len(rewards))
    for _ in range(2000):
        values = (rewards + discount * rows @ values).max(axis=1)
    return values


@pytest.mark.parametrize(
    "states", [2, 5]
)  # with two states and two actions, shapes alone cannot tell the layouts apart
def test_layouts_of_others_are_solved_exactly(states):
    rng = np.random.default_rng(states)
    rows = rng.dirichlet(np.ones(states), (states, 2))  # (S, A, S), QuantEcon's Q
    paid = rng.uniform(-3, 7, (2, states, states))  # (A, S, S), by next state
    rewards = np.einsum("sat,ast->sa", rows, paid)
    expected = solved_by_iteration(rows, rewards, 0.9)
    limits = {"reward_range": (-3, 7)}
    by_action = rows.transpose(1, 0, 2)
    for model in (
        bp.LinearMDP.from_table(rows, rewards, 0.9, **limits),
        bp.LinearMDP.from_table(csr_array(rows.reshape(-1, states)), rewards, 0.9, **limits),
        bp.LinearMDP.from_table(by_action, rewards, 0.9, layout="mdptoolbox", **limits),
        bp.LinearMDP.from_table(by_action, paid, 0.9, layout="mdptoolbox", **limits),
        bp.LinearMDP.from_table([csr_array(p) for p in by_action], rewards, 0.9, layout="mdptoolbox", **limits),
        bp.LinearMDP.from_table(list(by_action), [csr_array(r) for r in paid], 0.9, layout="mdptoolbox", **limits),
    ):
        solution = model.solve()
        assert np.allclose(solution.values, expected, rtol=0, atol=1e-9 + solution.error_bound)
        assert np.allclose(solution.q_values.max(axis=1), expected)
        best = (rewards + 0.9 * rows @ expected).argmax(axis=1)
        assert solution.policy.tolist() == best.tolist()


def test_a_reward_of_a_state_and_steps():
    swap, stay = np.eye(2)[::-1], np.eye(2)
    solution = bp.LinearMDP.from_table(
        [stay, swap], np.array([-1.0, 2.0]), horizon=3, layout="mdptoolbox", reward_range=(-1, 2)
    ).solve()
    assert np.allclose(solution.values, [[3, 6], [1, 4], [-1, 2]])
    assert solution.policy[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"transitions": np.eye(2)}, r"one matrix \(S, S\) for each action"),
        ({"transitions": np.ones((2, 3, 2))}, r"one matrix \(S, S\) for each action"),
        ({"layout": "other"}, "layout must be one of quantecon, mdptoolbox"),
        ({"rewards": np.array([[0, 2.0], [0, 0]])}, r"in reward_range, \[0, 1\]. Got 2 at \(state 0, action 1\)"),
        ({"rewards": np.array([[0, 0], [np.nan, 0]])}, r"Got nan at \(state 1, action 0\)"),
        ({"rewards": np.full((2, 2), 7), "reward_range": (-1, 6)}, r"in reward_range, \[-1, 6\]. Got 7 at"),
        ({"transitions": np.full((2, 2, 2), 0.6)}, "Rescale this row of the transitions"),
    ],
)
def test_wrong_tables_are_refused(changed, message):
    given = {"transitions": np.stack([np.eye(2)] * 2), "rewards": np.zeros((2, 2)), "layout": "mdptoolbox"} | changed
    with pytest.raises(bp.InvalidInput, match=message):
        bp.LinearMDP.from_table(**given, discount=0.9)


def test_a_process_may_be_over():
    """A game of heads: it ends with the first tail, or when it is left with what was won."""

    def step(state, action, rng):
        assert state != "over"
        if action == "leave":
            return 0.6 * state, "over"
        return (0.0, min(state + 1, 2)) if rng.random() < 0.7 else (0.0, "over")

    for actions in (["leave", "toss"], lambda state: ["leave", "toss"] if state < 2 else ["leave"]):
        result = bp.identify(
            step, states=[0, 1, 2], actions=actions, ends=["over"], discount=0.9, reward_range=(0, 2), epsilon=0.2,
            delta=0.1, algorithm="sharp", seed=0,
        )  # fmt: skip
        assert result.certified
        assert [result.action(state) for state in range(3)] == ["toss", "toss", "leave"]
