"""The pictures show the numbers they are given, in colours that can be told apart, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import bestpolicy as bp
from bestpolicy import report
from bestpolicy.comparison import InstanceBound
from bestpolicy.pictures.drawing import INK, SERIES, appearance, plain, power_of_ten, to_svg
from bestpolicy.report.figures.comparing import MOST_LINES
from bestpolicy.report.figures.states import MOST_STATES, decision
from tests.models import near_tie, random_mdp
from tests.test_report_page import trial

CSS = (Path(report.__file__).parent / "templates" / "page.css").read_text()


def sampled(mdp: bp.LinearMDP, calls: int, seed: int = 0) -> bp.Tally:
    """So many calls of every pair."""
    problem = mdp.problem
    pulls = bp.Pulls(problem.pairs, np.full((problem.stages, len(problem.pairs)), calls))
    return bp.ExactSimulator(mdp).sample(pulls, np.random.default_rng(seed))


def checks(*numbers: tuple[int, float | None, float]) -> list[dict]:
    return [
        {"samples": n, "epsilon": e, "statistic": s, "threshold": 1.0, "gap": 0.1, "rule": "Theorem T", "passed": s > 1}
        for n, e, s in numbers
    ]


RUNS = 80


# ------------------------------------------------------------------------------------------------- estimates


@pytest.mark.parametrize("horizon", [None, 4])
def test_estimates_agree_with_the_truth_and_their_errors_with_repetition(horizon):
    mdp = random_mdp(1, states=5, actions=3, horizon=horizon)
    stages = mdp.problem.stages
    policy = np.reshape(mdp.policy, (stages, -1))
    repeated = [report.estimate(mdp.problem, sampled(mdp, 400, seed), policy) for seed in range(RUNS)]
    truth = np.reshape(mdp.policy_values(mdp.policy), (stages, -1))
    q_values = np.reshape(mdp.policy_q_values(mdp.policy), (stages, 5, 3))
    values = np.stack([found.values for found in repeated])
    errors = np.stack([found.value_errors for found in repeated]).mean(axis=0)
    assert np.abs(values.mean(axis=0) - truth).max() < 5 * errors.max() / np.sqrt(RUNS) + 0.01
    np.testing.assert_allclose(values.std(axis=0), errors, rtol=0.25)
    for stage in range(stages):
        for state in range(5):
            same = [found.rivals[stage, state] for found in repeated]
            rival = max(set(same), key=same.count)
            gaps = [f.gaps[stage, state] for f in repeated if f.rivals[stage, state] == rival]
            stated = np.mean([f.gap_errors[stage, state] for f in repeated if f.rivals[stage, state] == rival])
            true_gap = q_values[stage, state, policy[stage, state]] - q_values[stage, state, rival]
            if len(gaps) == RUNS:  # otherwise the rival was chosen by the noise
                assert abs(np.mean(gaps) - true_gap) < 5 * stated / np.sqrt(RUNS) + 0.01
                assert np.std(gaps) == pytest.approx(stated, rel=0.25)


def test_the_best_policy_is_described_if_none_is_given_and_units_scale():
    mdp = random_mdp(2)
    tally = sampled(mdp, 10**6)
    found = report.estimate(mdp.problem, tally)
    assert (found.policy[0] == mdp.policy).all()
    scaled = report.estimate(mdp.problem, tally, scale=10.0)
    np.testing.assert_allclose(scaled.gaps, 10 * found.gaps)
    np.testing.assert_allclose(scaled.sureness, found.sureness)


def test_a_state_without_a_choice_has_no_rival():
    features = np.eye(3)[[[0, 0], [1, 2]]]  # both actions of state 0 are the same
    mdp = bp.LinearMDP(bp.Problem(features, discount=0.5), theta=[0.5, 0.2, 0.8], mu=np.full((2, 3), 0.5))
    found = report.estimate(mdp.problem, sampled(mdp, 100))
    assert found.rivals[0].tolist() == [-1, 1 - found.policy[0, 1]]
    assert found.gaps[0, 0] == np.inf
    assert found.hardest(10) == [(0, 1)]
    assert report.gaps_figure(found) is not None


def test_the_hardest_decision_is_the_near_tie():
    found = report.estimate(near_tie(0.01).problem, sampled(near_tie(0.01), 10_000))
    stage, state = found.hardest(1)[0]
    assert (stage, state) == (0, 0)
    assert decision(found, 0, 0).startswith("state 0: action")


# ------------------------------------------------------------------------------------------------- pictures


def test_progress_shows_the_checks():
    trace = checks((100, None, 0.1), (1000, 2.0, 0.5), (10_000, 0.5, 1.2))
    figure = report.progress_figure(trace, asked=0.6, forecast=5e4, lower_bound=20)
    assert isinstance(figure, Figure)
    upper, lower = figure.axes
    np.testing.assert_allclose(upper.lines[0].get_xydata(), [[1000, 2.0], [10_000, 0.5]])
    data = next(line for line in lower.lines if len(line.get_xdata()) == 3)
    np.testing.assert_allclose(data.get_xydata(), [[100, 0.1], [1000, 0.5], [10_000, 1.2]])
    verticals = {line.get_xdata()[0] for line in lower.lines if len(set(line.get_xdata())) == 1}
    assert {20, 5e4} <= verticals
    low, high = lower.get_xlim()
    assert low < 20
    assert high > 5e4


def test_progress_without_a_certificate_has_one_panel_and_thins_long_traces():
    long = checks(*((n, None, n / 1e6) for n in range(1, 5000)))
    figure = report.progress_figure(long, asked=0.1)
    assert len(figure.axes) == 1
    drawn = max(len(line.get_xdata()) for line in figure.axes[0].lines)
    assert 300 <= drawn <= 400
    report.progress_figure(checks((0, None, 0.0)), asked=0.0)  # nothing at all to draw


@pytest.mark.parametrize("horizon", [None, 3])
def test_pictures_of_states(horizon):
    mdp = random_mdp(4, states=9, actions=4, horizon=horizon, masked=True)
    found = report.estimate(mdp.problem, sampled(mdp, 50))
    design = report.design_figure(found)
    shares = design.axes[0].collections[0].get_array()
    assert len(shares) == mdp.problem.mask.sum()
    assert shares.sum() == pytest.approx(100)
    states = report.states_figure(found)
    if horizon is None:
        drawn = sorted((x, y) for box in states.axes[0].containers for x, y in box.lines[0].get_xydata().tolist())
        np.testing.assert_allclose([y for _, y in drawn], found.values[0])
    grid = report.grid_figure(found, report.Grid(3, 3, "↑↓←→"))
    signs = [text.get_text() for text in grid.axes[0].texts]
    for sign, action, rival in zip(signs, found.policy[0], found.rivals[0], strict=True):
        assert sign == ("·" if rival < 0 else "↑↓←→"[action])
    with pytest.raises(bp.InvalidInput, match="16 cells"):
        report.grid_figure(found, report.Grid(4, 4))


def test_large_problems_are_cut_and_stay_small():
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(4), size=(2000, 3))
    features[0, 0], features[1, 0], features[2, 0], features[3, 0] = np.eye(4)
    problem = bp.Problem(features, discount=0.9)
    mdp = bp.LinearMDP(problem, theta=rng.uniform(size=4), mu=rng.dirichlet(np.ones(2000), size=4).T)
    pairs = np.array([0, 3, 6, 9])
    tally = bp.ExactSimulator(mdp).sample(bp.Pulls(pairs, np.full((1, 4), 1000)), rng)
    found = report.estimate(problem, tally)
    figure = report.states_figure(found)
    assert sum(len(box.lines[0].get_xdata()) for box in figure.axes[0].containers) == MOST_STATES
    drawn = {int(t.get_text()) for t in figure.axes[0].get_xticklabels()}
    least_sure = set(np.argsort(found.sureness[0])[:MOST_STATES].tolist())
    assert drawn <= least_sure
    for name, picture in (("states", figure), ("design", report.design_figure(found))):
        assert len(to_svg(picture, name, "x")) < 300_000


def test_comparison_shows_medians_spread_and_the_bound():
    trials = [
        trial(name, "river", scale * k, k, certified=name == "b")
        for name, scale in (("a", 1000), ("b", 10))
        for k in range(1, 6)
    ]
    bounds = (InstanceBound("river", 5.0, ""), InstanceBound("other", 3.0, ""))
    axis = report.comparison_figure(bp.Comparison({}, tuple(trials), lower_bounds=bounds)).axes[0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["river", "b", "a"]  # what is certified comes first
    by_label = {line.get_label(): line for line in axis.lines}
    assert by_label["certified"].get_xydata().tolist() == [[30, axis.get_yticks()[1]]]
    assert by_label["not always certified"].get_xydata().tolist() == [[3000, axis.get_yticks()[2]]]
    assert by_label["certified"].get_markerfacecolor() != "none"
    assert by_label["not always certified"].get_markerfacecolor() == "none"
    assert by_label["lower bound"].get_xdata().tolist() == [5.0, 5.0]
    bars = [line.get_xdata().tolist() for line in axis.lines if line.get_linewidth() == 3.5]
    assert sorted(bars) == [[20, 40], [2000, 4000]]
    with pytest.raises(bp.InvalidInput, match="no runs"):
        report.comparison_figure(bp.Comparison({}, ()))


def test_many_algorithms_have_a_line_each_and_the_rest_is_left_out():
    names = [f"algorithm-{number}" for number in range(MOST_LINES + 5)]
    figure = report.comparison_figure(bp.Comparison({}, tuple(trial(name, "river", 10) for name in names)))
    assert len(figure.axes[0].get_yticklabels()) == MOST_LINES + 1
    room = 72 * figure.get_figheight() / (MOST_LINES + 5)  # points a line, with what is above and below
    assert room > 1.5 * figure.axes[0].get_yticklabels()[0].get_fontsize()


def test_scaling_draws_the_theorems_slope():
    x = np.array([1.0, 2.0, 4.0])
    axis = report.scaling_figure(x, 7 * x**2, slope=2, labels=["tight"], xlabel="1/ε").axes[0]
    measured, theorem = axis.lines
    np.testing.assert_allclose(theorem.get_ydata(), measured.get_ydata())
    repeated = report.scaling_figure(x, np.full((2, 3, 5), 10.0), labels=["a", "b"], slope=1).axes[0]
    assert [text.get_text() for text in repeated.get_legend().get_texts()] == ["a", "b", "slope 1"]
    for bad in ((x, [1.0, 2.0]), (x, -x), (-x, x)):
        with pytest.raises(bp.InvalidInput):
            report.scaling_figure(*bad)
    with pytest.raises(bp.InvalidInput, match="one label per series"):
        report.scaling_figure(x, x, labels=["a", "b"])


# ------------------------------------------------------------------------------------------------- appearance


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def variables(css: str) -> dict[str, str]:
    found = dict(re.findall(r"--(\w+): (#\w+);", css))
    return {name: "#" + "".join(c * 2 for c in v[1:]) if len(v) == 4 else v for name, v in found.items()}


def test_colours_can_be_read_in_light_and_dark():
    light, dark = CSS.split("@media (prefers-color-scheme: dark)")[:2]
    for palette in (variables(light), variables(dark)):
        for text in ("ink", "soft", "accent", "good", "warn"):
            assert contrast(palette[text], palette["paper"]) >= 4.5, text
        assert contrast(palette["ink"], palette["wash"]) >= 4.5
        for colour in SERIES:
            assert contrast(colour, palette["paper"]) >= 3, colour
    assert contrast(INK, "#ffffff") >= 4.5
    assert contrast(INK, "#000000") >= 4.5


def test_no_two_series_look_the_same():
    looks = [tuple(appearance(number).values()) for number in range(64)]
    assert len(set(looks)) == 64


def test_svg_takes_the_pages_colour_and_has_its_own_names():
    def picture() -> Figure:
        return report.scaling_figure([1, 2], [3, 4], labels=["a"])

    one, two = to_svg(picture(), "one", 'says "<this>"'), to_svg(picture(), "two", "that")
    assert one == to_svg(picture(), "one", 'says "<this>"')  # nothing random, no date
    ids = re.findall(r' id="([^"]+)"', one)
    assert ids
    assert not set(ids) & set(re.findall(r' id="([^"]+)"', two))
    for used in re.findall(r'(?:href="#|url\(#)([^")]+)', one):
        assert used in ids
    assert "currentColor" in one
    assert INK not in one
    assert 'aria-label="says &quot;&lt;this&gt;&quot;"' in one
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]+"', "", one)
    assert "://" not in without_namespaces


def test_any_name_is_drawn_literally():
    names = ["$x^2$ and $", "<script>alert(1)</script>", "a\x00b\nc", "中文", "x" * 500, r"\$\frac"]
    found = bp.Comparison({}, tuple(trial(name, name, 10) for name in names))
    series = report.scaling_figure([1], np.ones((len(names), 1)), labels=names, xlabel=names[0])
    for figure in (report.comparison_figure(found), series):
        svg = to_svg(figure, "c", "".join(names))
        assert "<script" not in svg
        assert "\x00" not in svg
        assert len(svg) < 60_000
        for literal in ("$x^2$ and $", "&lt;script&gt;", r"a\x00b\nc", "中文", r"\$\frac"):
            assert svg.count(literal) >= 2  # in the picture and in its description


def test_tick_labels():
    assert [power_of_ten(v) for v in (0.01, 1, 100, 2000, 1e4, 5e6, 1.5, 0)] == [
        "0.01", "1", "100", "2,000", "10⁴", "5·10⁶", "", "",
    ]  # fmt: skip
    assert plain("a$b") == r"a\$b"


def test_what_is_slow_to_load_is_lazy_and_no_global_state_is_touched():
    script = """
import sys
import bestpolicy as bp
assert not {"matplotlib", "jinja2", "scipy.optimize"} & set(sys.modules)
figure = bp.report.scaling_figure([1, 2], [3, 4])
import matplotlib
def settings():  # to ask for the backend would choose one, and load pyplot for it
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
before = settings()
from bestpolicy.pictures.drawing import to_svg
to_svg(bp.report.scaling_figure([1, 2], [3, 4], labels=["a"]), "a", "b")
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
