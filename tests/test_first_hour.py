"""The obvious call is the right one: which algorithm it takes, what it will cost, and when it will end."""

import json
from math import inf, nan

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS, default_name
from bestpolicy.run.progress import progress_line
from bestpolicy.stopping import Check
from bestpolicy.study.forecast import Outlook, Pace, in_time, outlook
from bestpolicy.study.settings import Settings
from tests.test_cli import run

RIVER = bp.instances.load("riverswim")
SIMPLEX = bp.instances.load("simplex")


def test_the_rule_is_as_the_documentation_says():
    table, features = RIVER.problem, SIMPLEX.problem
    assert default_name(table)[0] == default_name(features)[0] == "sharp"
    assert default_name(table, own_data=True)[0] == "adaptive"
    assert default_name(table, own_data=True, start=True)[0] == "sharp"
    assert default_name(table, pairs=False)[0] == "forward"
    wide = bp.Problem(np.tile(np.eye(50)[:, None], (40, 9, 1)) * [[1.0]], discount=0.5)
    assert default_name(wide)[0] == "sharp"
    assert len({default_name(table)[1], default_name(features)[1], default_name(table, pairs=False)[1]}) == 3


def test_no_first_batch_is_out_of_reach():
    """The paper's begins with 6.7·10⁹ calls here."""
    study = bp.Study(bp.Problem.tabular(200, 2, discount=0.9), epsilon=0.5, delta=0.05)
    assert study.algorithm.name == "sharp"
    assert sum(query.pulls.total for query in study.ask()) == 32 * 400


@pytest.mark.parametrize("word", [None, "auto"])
def test_a_result_says_which_algorithm_was_chosen_and_a_file_keeps_its_name(word, tmp_path):
    store, simulator = tmp_path / "run.db", bp.ExactSimulator(RIVER)
    asked = {"epsilon": 2.0, "delta": 0.1, "seed": 0, "max_samples": 500}
    result = bp.identify(simulator, **asked, algorithm=word, store=store)
    assert "sharp (the default for a table), seed 0" in str(result)
    assert result.to_dict()["chosen"] == "the default for a table"
    (record,) = bp.studies(store)
    assert (record.settings.algorithm, record.settings.chosen) == ("sharp", "the default for a table")
    named = bp.identify(simulator, **asked, algorithm="sharp")
    assert named.samples == result.samples == 384
    assert named.chosen == ""


def test_a_file_that_began_with_another_default_goes_on_with_it(tmp_path):
    store, asked = tmp_path / "run.db", {"epsilon": 0.5, "delta": 0.1, "seed": 0}
    begun = bp.identify(bp.ExactSimulator(RIVER), **asked, algorithm="gss", store=store, max_samples=10**6)
    gone_on = bp.identify(bp.ExactSimulator(RIVER), **asked, store=store, max_samples=2 * 10**6)
    assert begun.algorithm == gone_on.algorithm == "gss"
    assert gone_on.samples > begun.samples


def test_an_estimate_is_the_beginning_of_the_run(tmp_path):
    simulator, asked = (
        bp.ExactSimulator(RIVER),
        {"epsilon": "5%", "delta": 0.05, "seed": 3, "store": tmp_path / "run.db"},
    )
    cost = bp.estimate(simulator, **asked)
    assert cost.pilot_calls == 32 * 12
    assert cost.paper_calls > 10**9
    result = bp.identify(simulator, **asked)
    assert result.certified
    made = [check["samples"] for check in bp.studies(tmp_path / "run.db")[0].checks]
    assert cost.pilot_calls in made  # nothing was lost
    assert cost.low <= result.samples <= cost.high
    assert cost.seconds[0] <= cost.seconds[1] < inf
    again = bp.estimate(simulator, **asked)  # it has ended
    assert again.low == again.high == result.samples
    assert "all of them made" in str(again)


def test_an_estimate_of_what_cannot_be_tried_says_so():
    cost = bp.estimate(bp.ExactSimulator(RIVER), epsilon=0.5, delta=0.05, algorithm="gss", seed=0)
    assert (cost.pilot_calls, cost.high) == (0, inf)
    assert cost.low > 10**6
    assert "more than" in str(cost)
    assert json.loads(json.dumps(cost.to_dict()))["high"] is None


def test_an_estimate_on_the_command_line():
    done = run("estimate", "riverswim", "--epsilon", "5%", "--delta", 0.05, "--seed", 0)
    assert done.returncode == 0
    assert "by sharp (the default for a table)" in done.stdout
    assert "from a pilot of 384 calls" in done.stdout
    plain = json.loads(run("estimate", "riverswim", "--epsilon", "5%", "--delta", 0.05, "--seed", 0, "--json").stdout)
    assert plain["low"] < plain["high"]


def looks(*points, forecast=nan, rule="Theorem T (B)"):
    policy = np.zeros((1, 2), np.int64)
    return [
        Check(
            samples,
            samples,
            policy,
            min(1.0, 0.1 / epsilon),
            1.0,
            epsilon <= 0.1,
            epsilon,
            0.1,
            rule,
            forecast=forecast,
        )
        for samples, epsilon in points
    ]


def test_ranges_lie_ahead_and_close_in():
    settings, problem = Settings(0.1, 0.1, "tight", seed=0), RIVER.problem
    tight = ALGORITHMS["tight"]()
    assert outlook(settings, tight, problem, []) == Outlook(0.0, inf, nan)
    assert outlook(settings, tight, problem, looks((100, inf))).high == inf
    widths = []
    for epsilon in (1.0, 0.5, 0.2, 0.11):
        found = outlook(settings, tight, problem, looks((100, 2.0), (200, epsilon)))
        assert 200 <= found.low <= found.expected <= found.high
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)
    planned = outlook(settings, ALGORITHMS["sharp"](), problem, looks((100, inf), forecast=1000.0, rule="Theorem U"))
    assert planned.low < 1000 == planned.expected < planned.high
    assert outlook(settings, tight, problem, looks((300, 0.1))) == Outlook(300, 300, 300)
    assert [str(Outlook(low, high)) for low, high in ((1234, 5678), (3e9, inf), (9, 9), (0, inf))] == [
        "1,200 to 5,700",
        "more than 3e+09",
        "9",
        "too early to tell",
    ]


def test_time_is_calls_and_looks():
    pace, checks = Pace(calls=1000, simulating=10.0, looks=4, looking=2.0, last=1.0), looks((500, 1.0), (1000, 0.5))
    assert pace.seconds(checks, 2000) == pytest.approx(10 + 1)  # one more look, as the last one doubled
    assert pace.seconds(checks, inf) == inf
    assert pace.seconds(checks, 10) == 0
    assert [in_time(seconds) for seconds in (3, 240, 3 * 3600, 8e5)] == ["3 s", "4.0 min", "3.0 h", "9.3 days"]


def test_the_line_shows_a_range():
    study = bp.Study(RIVER.problem, epsilon=0.5, delta=0.05, seed=0)
    simulator, lines = bp.ExactSimulator(RIVER), []
    while len(lines) < 2:
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
        lines.append(progress_line(study))
    ahead = study.outlook()
    assert f"{ahead} in all" in lines[-1]
    assert lines[-1].endswith(" left")
    study.stop()
    result = study.result()
    assert result.to_dict()["expected_samples"] == [ahead.low, ahead.high]
    assert f"{ahead} calls would be needed in all" in result.explanation


def test_a_run_that_will_not_end_soon_ends_with_what_it_would_need():
    def step(state, action, rng):
        return float(rng.random() < (0.5, 0.501)[action]), int(rng.integers(4))

    how = {"states": range(4), "actions": [0, 1], "discount": 0.9, "epsilon": 0.5, "delta": 0.05, "seed": 0}
    result = bp.identify(step, **how, largest_batch=2000)
    assert result.outcome == "sample budget spent"
    assert result.samples < 2000
    assert "it should need" in result.explanation
    assert "largest_batch=math.inf" in result.explanation
