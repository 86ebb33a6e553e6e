"""States are drawn where people would draw them, whatever they are called."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.pictures import Axis, Chart, Drawn, chart_of, grid_chart, list_chart, policy_figure
from bestpolicy.pictures.labels import Labels
from bestpolicy.pictures.maps import MOST_PANELS
from bestpolicy.problem.units import Units
from bestpolicy.report.layout import find_chart

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def problem_of(states: int, actions: int, horizon: int | None = None) -> bp.Problem:
    return bp.Problem.tabular(states, actions, discount=None if horizon else 0.9, horizon=horizon)


def chart(states: list, actions: list | None = None, tally=None) -> Chart | None:
    count = 2 if actions is None else len(actions)
    return chart_of(problem_of(len(states), count), Units(states=states, actions=actions), tally)


def cells(found: Chart) -> list[tuple[str, ...]]:
    """Coordinates of every state, as they are printed."""
    return [
        tuple(axis.levels[i] for axis, i in zip(found.axes, place, strict=True)) if min(place) >= 0 else ()
        for place in found.places.tolist()
    ]


def test_numbers_tuples_texts_and_dictionaries_have_coordinates():
    assert cells(chart([3, 1, 2])) == [("3",), ("1",), ("2",)]
    pairs = [[i, j] for i in range(3) for j in range(4)]
    expected = [(str(i), str(j)) for i, j in pairs]
    assert cells(chart(pairs)) == expected
    assert cells(chart([f"({i}, {j})" for i, j in pairs])) == expected
    texts = chart([f"day {i}, stock {j}" for i, j in pairs])
    assert cells(texts) == expected
    assert [axis.name for axis in texts.axes] == ["day", "stock"]
    named = chart([{"x": i, "y": j} for i, j in pairs])
    assert cells(named) == expected
    assert [axis.name for axis in named.axes] == ["x", "y"]
    mixed = chart([[i, word] for i in range(3) for word in ("open", "closed")])
    assert mixed.axes[1].levels == ("open", "closed")


def test_the_longest_axes_are_drawn_and_the_others_get_pictures_of_their_own():
    hands = [[total, card, ace] for total in range(12, 22) for card in range(1, 11) for ace in (False, True)]
    found = chart(hands)
    assert [len(axis.levels) for axis in found.axes] == [10, 10, 2]
    assert found.axes[2].levels == ("False", "True")


def test_ends_have_no_place_and_what_makes_no_picture_is_listed():
    grid = [[i, j] for i in range(3) for j in range(3)]
    found = chart([*grid, "the end"])
    assert found.left_out == 1
    assert cells(found)[-1] == ()
    for states in (
        ["good", "worn", "broken"],
        ["a1", "b2", "c3"],
        [[37 * i % 101, 53 * i % 97] for i in range(20)],
        [[i, f"customer {i}"] for i in range(30)],
        ["stock 1", "stock 01", "stock 2"],
        [None, True, "x"],
        [[], [], []],
    ):
        assert chart(states) is None, states
    assert chart_of(problem_of(9, 2), Units()) is None
    assert chart_of(problem_of(9, 2), Units(states=grid[:4])) is None  # names of something else


def test_known_environments():
    def found(states: int, actions: int, name: str) -> Chart | None:
        return chart_of(problem_of(states, actions), Units(environment=name, states=list(range(states)), own_states=1))

    lake = found(17, 4, "FrozenLake-v1")
    assert lake.signs == tuple("←↓→↑")
    assert cells(lake)[:5] == [("0", "0"), ("1", "0"), ("2", "0"), ("3", "0"), ("0", "1")]
    assert not lake.upwards
    assert lake.left_out == 1
    assert [len(axis.levels) for axis in found(65, 4, "FrozenLake8x8-v1").axes] == [8, 8]
    assert [len(axis.levels) for axis in found(49, 4, "CliffWalking-v1").axes] == [12, 4]  # not 7 by 7
    taxi = found(501, 6, "Taxi-v4")
    assert cells(taxi)[328] == ("1", "3", "Y", "R")  # as the game says: row 3, column 1, waiting at Y, bound for R
    assert found(17, 4, "Queue-v0") is None
    square = problem_of(16, 4)
    for name in ("grid", "B12"):
        assert find_chart(square, name, Units()).signs == tuple("↑↓←→")


def walk(row_first: bool, up: int, side: int = 3) -> Chart:
    """A chart whose samples come from walking about: which coordinate is vertical, and which way is up?"""
    states = [(a, b) for a in range(side) for b in range(side)]

    def step(state, action, rng):
        down, right = MOVES[action]
        a, b = (down * -up, right) if row_first else (right, down * -up)
        moved = (min(max(state[0] + a, 0), side - 1), min(max(state[1] + b, 0), side - 1))
        return 0.5, moved

    simulator = bp.NamedSimulator(step, states=states, actions=list(MOVES), discount=0.9)
    problem = simulator.problem
    pulls = bp.Pulls(np.arange(problem.mask.size), np.full((1, problem.mask.size), 2))
    return chart_of(problem, simulator.units, simulator.sample(pulls, np.random.default_rng(0)))


@pytest.mark.parametrize(("row_first", "up"), [(True, -1), (True, 1), (False, -1), (False, 1)])
def test_up_is_where_the_samples_go_when_the_action_is_up(row_first, up):
    found = walk(row_first, up)
    assert found.signs == ("↑", "↓", "←", "→")
    assert found.upwards == (up == 1)
    states = [(a, b) for a in range(3) for b in range(3)]
    assert cells(found) == [(str(b), str(a)) if row_first else (str(a), str(b)) for a, b in states]


def test_without_samples_the_first_coordinate_is_the_row():
    states = [[i, j] for i in range(3) for j in range(3)]
    found = chart(states, list(MOVES))
    assert not found.upwards
    assert cells(found)[1] == ("1", "0")
    assert chart(states, ["up", "down", "sideways"]).signs == ()


def texts(figure, axis: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axis].texts]


def test_queue_by_queue():
    states = [[i, j] for i in range(3) for j in range(2)]
    found = chart(states, ["serve first", "serve second"])
    policy = np.array([[0, 1, 0, 1, 1, 0]])
    labels = Labels(actions=("serve first", "serve second"))
    figure = policy_figure(found, Drawn(policy, np.arange(6.0)[None]), labels)
    assert texts(figure) == ["s", "s", "f", "f", "f", "s"]  # the second queue upwards, the first one to the right
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["f: serve first", "s: serve second"]


def test_cells_have_the_colours_of_the_legend():
    """With three kinds of actions: with two of them 0 and 1 would be the ends of any scale."""
    names = ("idle", "first", "second")
    found = chart([[i, j] for i in range(3) for j in range(2)], list(names))
    policy = np.array([[0, 1, 2, 1, 2, 0]])
    figure = policy_figure(found, Drawn(policy), Labels(actions=names))
    (tiles,) = figure.axes[0].collections
    legend = [patch.get_facecolor() for patch in figure.legends[0].get_patches()]
    cells = np.array([0, 2, 2, 1, 1, 0])  # actions row by row, the second coordinate upwards
    np.testing.assert_allclose(tiles.to_rgba(tiles.get_array()), np.array(legend)[cells])


def test_stock_by_time_and_amounts():
    found = chart_of(problem_of(3, 3, horizon=4), Units(states=[0, 1, 2], actions=[0, 5, 10]))
    policy = np.array([[2, 1, 0]] * 3 + [[0, 0, 0]])
    labels = Labels(actions=("0", "5", "10"), amounts=(0.0, 5.0, 10.0))
    figure = policy_figure(found, Drawn(policy, np.ones((4, 3))), labels, episodic=True)
    assert texts(figure) == ["0", "0", "0", "0", "5", "5", "5", "0", "10", "10", "10", "0"]
    assert figure.axes[1].get_xlabel() == "step"


def test_one_coordinate_is_a_line():
    figure = policy_figure(chart([0, 1, 2]), Drawn(np.array([[2, 1, 0]])), Labels(amounts=(0.0, 5.0, 10.0)))
    assert figure.axes[0].lines[0].get_ydata().tolist() == [10, 5, 0]
    named = policy_figure(list_chart(["good", "bad"]), Drawn(np.array([[1, 0]])), Labels(actions=("run", "mend")))
    assert [tick.get_text() for tick in named.axes[0].get_yticklabels()] == ["run", "mend"]
    assert [tick.get_text() for tick in named.axes[0].get_xticklabels()] == ["good", "bad"]


def test_a_map_of_each_step_and_signs_without_a_choice():
    found = grid_chart(2, 2, 5, "←↓→↑")
    policy = np.array([[0, 1, 2, 3, 0]] * 9)
    drawn = Drawn(policy, np.ones((9, 5)), choice=np.array([True, True, True, False, False]))
    figure = policy_figure(found, drawn, Labels(), episodic=True)
    assert [axis.get_title(loc="left") for axis in figure.axes[:4]] == ["step 0", "step 3", "step 5", "step 8"]
    assert texts(figure) == ["←", "↓", "→", "·"]


@pytest.mark.parametrize(("sides", "pictures"), [((2, 2, 4), 4), ((2, 2, 40), MOST_PANELS), ((2, 2, 6, 2), 10)])
def test_not_more_pictures_than_can_be_looked_at(sides, pictures):
    places = np.array(list(np.ndindex(*sides)))
    found = Chart(tuple(Axis("", tuple(map(str, range(side)))) for side in sides), places)
    figure = policy_figure(found, Drawn(np.zeros((1, len(places)), int)), Labels())
    assert sum(axis.axison for axis in figure.axes) == pictures


def test_hostile_names_are_text():
    names = ["<b>$x$</b> 1", "<b>$x$</b> 2", "<b>$x$</b> 3"]
    found = chart(names, ["$a", "$b"])
    figure = policy_figure(found, Drawn(np.array([[0, 1, 0]])), Labels(actions=("$a", "$b")))
    assert "b x b" in figure.axes[0].get_xlabel()
    figure.canvas.draw()


def test_results_draw_themselves():
    def step(state, action, rng):
        return float(rng.random() < 0.5), min(max(state + action, 0), 2)

    result = bp.identify(
        step, states=range(3), actions=[-1, 1], discount=0.5, epsilon=0.9, delta=0.1, algorithm="sharp", seed=0
    )
    drawn = result.plot().axes[0].lines[0].get_ydata().tolist()
    assert drawn == [result.action(state) for state in range(3)]
    assert result.plot("run").axes[-1].get_xlabel() == "simulator calls"
    with pytest.raises(bp.InvalidInput, match="what must be"):
        result.plot("something")
