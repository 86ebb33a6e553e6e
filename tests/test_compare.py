"""Many algorithms side by side: the table says what single runs say, and loses nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS
from bestpolicy.algorithms.gss import GSS
from bestpolicy.algorithms.protocol import Request
from bestpolicy.algorithms.tight import Tight
from bestpolicy.cli.algorithms import print_all
from bestpolicy.comparison import Skipped, Trial, label
from bestpolicy.comparison.comparison import binomial_limit
from bestpolicy.comparison.ledger import Ledger
from bestpolicy.study.store import Store
from tests.models import near_tie, random_mdp
from tests.test_cli import COMMAND, assert_one_error_line, run

ASKED = {"epsilon": 0.2, "delta": 0.1}
OTHER = GSS(check_ratio=1.4)  # quick to run


DIE = "die"


@dataclass(frozen=True)
class Liar:
    """Draws each pair once and vouches for a policy of its choice."""

    name: ClassVar[str] = "liar"
    about: ClassVar = GSS.about
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    policy: tuple[int, ...] = (0, 0)
    complaint: str = ""

    def unsuitable(self, problem):
        return ""

    def predicted_samples(self, problem, gap, epsilon, delta):
        return float("nan")

    def run(self, task):
        problem = task.problem
        if self.complaint == DIE:
            os._exit(1)
        if self.complaint:
            raise bp.InvalidInput(self.complaint)
        yield Request(bp.Pulls(problem.pairs, np.ones((1, len(problem.pairs)), int)))
        policy = np.array([self.policy])
        return bp.Check(1, len(problem.pairs), policy, 1.0, 0.0, True, task.epsilon, 1.0, "a lie", {})


def without_seconds(comparison: bp.Comparison) -> list[Trial]:
    return [replace(row, seconds=0.0) for row in comparison.rows]


def test_rows_are_those_of_single_runs():
    mdp = random_mdp(2)
    found = bp.compare([mdp, "two-state"], ["gss", OTHER], **ASKED, runs=2, seed=5, lower_bounds=False)
    assert [(row.instance, row.algorithm, row.seed) for row in found.rows] == [
        (instance, algorithm, seed)
        for instance in ("random-2", "two-state")
        for algorithm in ("gss", label(OTHER))
        for seed in (5, 6)
    ]
    for row in found.rows:
        truth = mdp if row.instance == "random-2" else bp.instances.load("two-state")
        method = "gss" if row.algorithm == "gss" else OTHER
        result = bp.identify(bp.ExactSimulator(truth), **ASKED, algorithm=method, seed=row.seed)
        assert (row.samples, row.certified) == (result.samples, result.certified)
        assert row.epsilon == result.epsilon
        assert row.loss == pytest.approx(truth.loss(result.policy), abs=1e-12)
        assert row.outcome == "certified"


def test_ratios_are_to_the_bound_for_any_sampling():
    mdp = random_mdp(2, states=3, actions=2, dimension=3, horizon=3)
    found = bp.compare(mdp, "adaptive", epsilon=0.0, delta=0.1, runs=1)
    bound = bp.bounds.lower_bound(mdp, 0.0, 0.1)
    assert found.lower_bounds[0].samples == pytest.approx(bound.samples_lower_bound)
    assert bound.samples_lower_bound < 0.95 * 3 * bound.rounds_lower_bound
    assert found.summary[0].ratio_to_bound == pytest.approx(found.rows[0].samples / bound.samples_lower_bound)


def test_summary_against_plain_numpy():
    found = bp.compare("two-state", ["gss", Tight()], **ASKED, runs=3)
    gss, tight = found.summary
    samples = {name: [row.samples for row in found.rows if row.algorithm == name] for name in ("gss", "tight")}
    assert (gss.median_samples, tight.median_samples) == (np.median(samples["gss"]), np.median(samples["tight"]))
    assert (tight.lower_quartile, tight.upper_quartile) == tuple(np.quantile(samples["tight"], [0.25, 0.75]))
    assert tight.ratio_to_best == 1.0
    assert gss.ratio_to_best == pytest.approx(gss.median_samples / tight.median_samples)
    bound = bp.bounds.lower_bound(bp.instances.load("two-state"), 0.2, 0.1).samples_lower_bound
    assert found.lower_bounds[0].samples == pytest.approx(bound)
    assert tight.ratio_to_bound == pytest.approx(tight.median_samples / bound)
    assert (tight.runs, tight.certified, tight.failures) == (3, 3, 0)


def test_failures_are_counted():
    mdp = near_tie(0.3)
    good, bad = tuple(mdp.policy), tuple(1 - mdp.policy)
    honest, liar = Liar(good), Liar(bad)
    assert mdp.loss(bad) > ASKED["epsilon"]
    found = bp.compare(mdp, [honest, liar], **ASKED, runs=4, lower_bounds=False)
    by_name = {entry.algorithm: entry for entry in found.summary}
    truthful, lying = by_name[label(honest)], by_name[label(liar)]
    assert (truthful.failures, truthful.worst_loss) == (0, 0.0)
    assert (lying.failures, lying.certified, lying.failure_limit) == (4, 4, 1.0)
    assert lying.worst_loss == pytest.approx(mdp.loss(bad))


def test_an_optimal_policy_is_no_failure_at_epsilon_zero():
    mdp = bp.instances.load("riverswim", states=3, discount=0.9)
    found = bp.compare(mdp, Liar(tuple(mdp.policy.tolist())), epsilon=0.0, delta=0.1, runs=1, lower_bounds=False)
    assert found.rows[0].loss == 0.0
    assert found.summary[0].failures == 0


@pytest.mark.parametrize(("failures", "runs"), [(0, 1), (0, 20), (3, 20), (20, 20)])
def test_the_limit_on_the_failure_probability_is_exact(failures, runs):
    limit = binomtest(failures, runs, alternative="less").proportion_ci(0.95, "exact").high
    assert binomial_limit(failures, runs) == pytest.approx(limit)


def test_what_cannot_run_is_skipped_with_its_reason():
    episodic = random_mdp(1, states=3, actions=2, dimension=3, horizon=2)
    found = bp.compare(
        episodic, ["gss", "tight", Liar(complaint="no luck today.")], **ASKED, runs=1, lower_bounds=False
    )
    complainer = label(Liar(complaint="no luck today."))
    assert complainer == "liar(complaint='no luck today.')"
    assert found.skipped == (
        Skipped("gss", "random-1", GSS().unsuitable(episodic.problem)),
        Skipped(complainer, "random-1", "no luck today."),
    )
    assert {row.algorithm for row in found.rows} == {"tight"}


def test_all_means_every_algorithm():
    found = bp.compare("two-state", **ASKED, runs=1, max_samples=1000, lower_bounds=False)
    assert {row.algorithm for row in found.rows} | {entry.algorithm for entry in found.skipped} == set(ALGORITHMS)


def test_a_spent_budget_has_no_ratio():
    found = bp.compare("two-state", ["gss", "tight"], **ASKED, runs=2, max_samples=2000, lower_bounds=False)
    gss, tight = found.summary
    assert (gss.certified, gss.ratio_to_best, tight.ratio_to_best) == (0, None, 1.0)
    assert all(row.samples <= 2000 for row in found.rows)
    assert {row.outcome for row in found.rows if row.algorithm == "gss"} == {"sample budget spent"}


def test_parameters_tell_algorithms_apart():
    found = bp.compare("two-state", [GSS(), GSS(check_ratio=2.0)], **ASKED, runs=1, lower_bounds=False)
    assert [row.algorithm for row in found.rows] == ["gss", "gss(check_ratio=2.0)"]
    assert found.rows[0].samples != found.rows[1].samples


def test_workers_change_nothing():
    question = {"models": near_tie(0.3), "algorithms": GSS(check_ratio=1.02, sampling="random"), **ASKED, "runs": 3}
    alone = bp.compare(**question)
    together = bp.compare(**question, workers=2)
    with ThreadPoolExecutor(2) as executor:
        elsewhere = bp.compare(**question, executor=executor, lower_bounds=False)
    assert without_seconds(alone) == without_seconds(together) == without_seconds(elsewhere)
    assert len({row.samples for row in alone.rows}) > 1  # seeds matter
    assert alone.lower_bounds == together.lower_bounds
    assert alone.settings == together.settings


def test_a_worker_that_dies_is_an_error_with_a_remedy():
    with pytest.raises(bp.BestPolicyError, match="fewer workers"):
        bp.compare(near_tie(0.3), Liar(complaint=DIE), **ASKED, runs=2, workers=1, lower_bounds=False)


def test_json_round_trip(tmp_path):
    found = bp.compare("two-state", ["gss", "tight", "gss-e"], **ASKED, runs=2, max_samples=500)
    assert found.rows[0].epsilon is None  # nothing is known of it, and NaN is not JSON
    found.save(tmp_path / "found.json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((tmp_path / "found.json").read_text(), parse_constant=refuse)
    assert content["format"] == "bestpolicy comparison"
    assert content["version"] == 3
    assert content["summary"] == [asdict(entry) for entry in found.summary]
    assert bp.Comparison.load(tmp_path / "found.json") == found
    found.save(tmp_path / "found.csv")
    with open(tmp_path / "found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["samples"]) for row in rows] == [row.samples for row in found.rows]
    assert rows[0]["epsilon"] == ""


def test_files_of_the_first_version_open(tmp_path):
    """There `epsilon` was what was asked, and `certified_epsilon` what is certified."""
    path = Path(__file__).parent / "data" / "comparison-1.json"
    old, found = json.loads(path.read_text()), bp.Comparison.load(path)
    assert found.settings["asked_epsilon"] == old["settings"]["epsilon"] == 0.3
    assert [row.epsilon for row in found.rows] == [row["certified_epsilon"] for row in old["rows"]]
    assert {row.asked_epsilon for row in found.rows} == {0.3}
    new = {"price": None, "scope": "every state", "sampling": "pairs"}
    assert [asdict(entry) for entry in found.summary] == [entry | new for entry in old["summary"]]
    assert "median calls" in bp.report.report_page(path)

    options = {**ASKED, "runs": 2, "store": tmp_path / "runs.db", "lower_bounds": False}
    first = bp.compare("two-state", "tight", **options)
    with sqlite3.connect(tmp_path / "runs.db") as file:
        finished = file.execute("SELECT key, record FROM finished").fetchall()
    file.close()
    with Ledger(tmp_path / "runs.db") as ledger:
        for key, record in finished:
            ledger.put(key, json.loads(record.replace('"epsilon"', '"certified_epsilon"')))
    assert bp.compare("two-state", "tight", **options) == first  # seconds too: nothing was run


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "bestpolicy comparison", "version": 3}', None])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(bp.InvalidInput, match=r"other\.json"):
        bp.Comparison.load(path)


def test_the_store_does_only_what_is_missing(tmp_path):
    done: list[str] = []
    options = {**ASKED, "store": tmp_path / "runs.db", "progress": lambda at, total, what: done.append(what)}
    first = bp.compare("two-state", ["gss", OTHER], runs=2, **options)
    done.clear()
    again = bp.compare("two-state", ["gss", OTHER], runs=2, **options)
    assert again == first  # seconds too: nothing was run
    assert done == []
    more = bp.compare("two-state", ["gss", OTHER], runs=3, **options)
    assert done == ["gss on two-state"] * 2 + [f"{label(OTHER)} on two-state"]  # announced once at the beginning
    assert [row for row in more.rows if row.seed < 2] == list(first.rows)
    for change in ({"epsilon": 0.3}, {"delta": 0.2}, {"seed": 9}, {"max_samples": 10**9}, {"models": "lock"}):
        done.clear()
        asked = {"models": "two-state", "algorithms": ["gss"], "runs": 1, "lower_bounds": False, **options, **change}
        bp.compare(**asked)
        assert len(done) == 2, change
    done.clear()
    bp.compare("two-state", GSS(check_ratio=1.2), runs=1, lower_bounds=False, **options)
    assert len(done) == 2


def test_the_store_has_one_user_at_a_time_and_refuses_foreign_files(tmp_path):
    with Ledger(tmp_path / "runs.db"), pytest.raises(bp.StoreError, match="another process"):
        bp.compare("two-state", "gss", **ASKED, runs=1, store=tmp_path / "runs.db")
    (tmp_path / "text").write_text("not a database at all, but long enough to be read as one" * 10)
    with Store(tmp_path / "studies.db", write=True):
        pass
    with sqlite3.connect(tmp_path / "foreign.db") as foreign:
        foreign.execute("CREATE TABLE finished (key TEXT)")
    foreign.close()
    for name in ("text", "studies.db", "foreign.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(bp.StoreError, match=name):
            bp.compare("two-state", "gss", **ASKED, runs=1, store=tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_an_interrupted_comparison_keeps_what_is_finished(tmp_path):
    def interrupt(done: int, total: int, what: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    options = {**ASKED, "runs": 2, "store": tmp_path / "runs.db", "lower_bounds": False}
    found = bp.compare("two-state", ["gss", OTHER], **options, progress=interrupt)
    assert found.interrupted
    assert len(found.rows) == 3
    whole = bp.compare("two-state", ["gss", OTHER], **options)
    assert not whole.interrupted
    assert set(found.rows) < set(whole.rows)
    assert len(whole.rows) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithms": "tigth"}, "Did you mean 'tight'"),
        ({"algorithms": []}, "nothing to compare"),
        ({"algorithms": ["gss", "gss"]}, "two algorithms are called 'gss'"),
        ({"models": ["B1", "two-state"]}, "two models are called 'two-state'"),
        ({"models": ["two-stat"]}, "Did you mean 'two-state'"),
        ({"models": bp.ExactSimulator(near_tie(0.1))}, "LinearMDP"),
        ({"epsilon": -1}, "epsilon"),
        ({"delta": float("nan")}, "delta"),
        ({"runs": 0}, "runs"),
        ({"runs": 1.5}, "runs"),
        ({"seed": -1}, "seed"),
        ({"max_samples": 0}, "max_samples"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"workers": 0}, "workers"),
        ({"workers": 1, "executor": ThreadPoolExecutor(1)}, "not both"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.compare(**({"models": "two-state", "algorithms": "gss", **ASKED, "runs": 1} | change))


def test_the_command_line(tmp_path):
    near_tie(0.3).save(tmp_path / "mine.npz")
    command = ("compare", tmp_path / "mine.npz", "two-state", "--algorithms", "gss,tight,gss-e", "--no-bounds")
    command += ("--epsilon", 0.2, "--delta", 0.1, "--runs", 2, "--max-samples", "1e5", "--store", tmp_path / "runs.db")
    done = run(*command, "--json", "--output", tmp_path / "out.csv")
    assert done.returncode == 0
    assert done.stderr.startswith("Written: ")
    printed = bp.Comparison.from_dict(json.loads(done.stdout))
    assert (tmp_path / "out.csv").read_text() == printed.to_csv() == run(*command, "--csv").stdout
    table = run(*command).stdout
    assert "gss-e left out: it is for episodic problems" in table
    assert "1e5* " in table  # gss has spent its budget
    assert "two-state: S = 2, A = 2, d = 4, γ = 0.5" in table
    tight = next(entry for entry in printed.summary if (entry.algorithm, entry.instance) == ("tight", "two-state"))
    assert any(line.startswith("tight") and f"{tight.median_samples:.3g}"[:3] in line for line in table.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--algorithms", "gss,tigt"), "Did you mean 'tight'"),
        (("--output", "x.txt"), ".json or .csv"),
        (("--output", "/nowhere/x.json"), "folder that exists"),
        (("--json", "--csv"), "choose one"),
        (("--workers", "0"), "workers"),
    ],
)
def test_one_error_line(arguments, words):
    done = run("compare", "two-state", "--epsilon", 0.2, "--delta", 0.1, *arguments)
    assert_one_error_line(done, words)
    assert done.stdout == ""


@pytest.mark.parametrize("workers", [(), ("--workers", "1")])
def test_ctrl_c_prints_and_saves_what_is_finished(tmp_path, workers):
    command = [*COMMAND, "compare", "two-state", "--algorithms", "gss", "--no-bounds", "--json"]
    command += [
        "--epsilon",
        "0.2",
        "--delta",
        "0.1",
        "--runs",
        "1000",
        "--output",
        str(tmp_path / "out.json"),
        *workers,
    ]
    command += ["--store", str(tmp_path / "runs.db")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while _keys_in(tmp_path / "runs.db") < 8:  # the last of the runs may not have been counted yet
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted: " in err
    found = bp.Comparison.from_dict(json.loads(out))
    assert found.interrupted
    assert 0 < len(found.rows) < 1000
    assert bp.Comparison.load(tmp_path / "out.json") == found


def _keys_in(path: Path) -> int:
    """Keys in the pages of a file that its writer keeps to itself, and of its log: up to 6 after two runs."""
    files = [path, path.with_name(path.name + "-wal")]
    return sum(file.read_bytes().count(b"budgets") for file in files if file.exists())


@pytest.mark.parametrize("width", [80, 120])
def test_algorithms_are_listed(width):
    console = Console(width=width, file=io.StringIO())
    print_all(console)
    table = console.file.getvalue()
    begins = [line.split()[0] for line in table.splitlines() if line[:1].strip()]
    for kind in ALGORITHMS.values():
        assert kind.name in begins
        for word in f"{kind.about.guarantee} {kind.about.complexity} {kind.about.reference}".split():
            assert word in table
    assert "…" not in table  # nothing is cut off
    assert max(map(len, table.splitlines())) <= width


def test_algorithms_for_programs():
    entries = json.loads(run("algorithms", "--json").stdout)
    assert [entry["name"] for entry in entries] == list(ALGORITHMS)
    keys = {"setting", "features", "assumption", "guarantee", "complexity", "constants", "reference", "parameters"}
    assert all(keys <= set(entry) for entry in entries)


def test_one_algorithm_in_full():
    text = run("algorithms", "tight").stdout
    assert "value_span" in text
    assert "inf" in text
    assert "A bound on span(V*)" in text
    assert json.loads(run("algorithms", "tight", "--json").stdout)["parameters"]["check_ratio"] == Tight().check_ratio
    assert "Did you mean 'tight'" in run("algorithms", "tigth").stderr
