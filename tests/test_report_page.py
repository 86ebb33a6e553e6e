"""The page says what the files say, in words that never promise more, and is well-formed whatever it is about."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import sys
from html.parser import HTMLParser
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bestpolicy as bp
from bestpolicy import report
from bestpolicy.report import words
from bestpolicy.report.accounts import from_result, from_store
from bestpolicy.report.layout import find_grid
from bestpolicy.report.live import study_version
from bestpolicy.study import Outcome
from tests.models import random_mdp
from tests.test_cli import assert_one_error_line, run

PROGRAM = str(Path(sys.executable).parent / "bestpolicy")
HOSTILE = "\"><script>document.title='owned'</script><img src=x onerror=alert(1)>'{{ 7*7 }}&amp;"


def make_study(path: Path, name: str = "study", model: str = "two-state", steps: int | None = None, **settings) -> None:
    """Run a study in a file, to its end or for some queries."""
    mdp = bp.instances.load(model)
    origin = {"model": model, "fingerprint": mdp.fingerprint, "rewards": "bernoulli"}
    asked = {"epsilon": 0.3, "delta": 0.05, "algorithm": "tight", "seed": 0} | settings
    study = bp.Study(mdp.problem, store=path, name=name, origin=origin, **asked)
    simulator = bp.ExactSimulator(mdp)
    if steps is None:
        bp.drive(study, simulator)
        return
    for _ in range(steps):
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    study.close()


class Outline(HTMLParser):
    """Collects what a page is made of, and whether its tags fit together."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.facts: dict[str, str | None] = {}
        self._text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(str(attributes["id"]))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "dd" and "data-value" in attributes:
            self.facts[self._text.strip()] = attributes["data-value"]
        if tag not in self.VOID:
            self.open.append(tag)
        self._text = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self._text = data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check_page(page: str) -> Outline:
    """What every page must be: well-formed, accessible, and free of the network."""
    outline = Outline(page)
    assert outline.named("html")[0]["lang"] == "en"
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(outline.headings, outline.headings[1:], strict=False))
    assert len(outline.named("caption")) == len(outline.named("table"))
    assert all(svg["aria-label"] and svg["role"] == "img" for svg in outline.named("svg"))
    for _, attributes in outline.tags:
        for key, value in attributes.items():
            if key in ("src", "href", "xlink:href", "action") and value:
                assert value.startswith(("#", "data:")), value
            assert not key.startswith("on")
    assert "url(http" not in page
    assert "@import" not in page
    return outline


def policy_of(outline: Outline) -> list[dict[str, str]]:
    link = next(a for a in outline.named("a") if a.get("id") == "policy-csv")
    assert link["download"] == "policy.csv"
    text = base64.b64decode(str(link["href"]).split(",")[1]).decode()
    return list(csv.DictReader(io.StringIO(text)))


# ------------------------------------------------------------------------------------------------- words


@given(st.floats(1e-12, 1e12))
@example(0.2344)
@example(0.0999999999)
def test_a_promise_is_never_rounded_in_its_favour(bound):
    stated = float(words.at_most(bound).replace(",", ""))
    assert bound <= stated <= bound * 1.011


@given(st.floats(1e-9, 0.999))
@example(0.05)
@example(1e-6)
def test_a_probability_is_never_rounded_up(delta):
    text = words.percent(delta)
    assert text.endswith("\N{NO-BREAK SPACE}%")
    stated = float(text[:-2])
    assert stated <= 100 * (1 - delta) * (1 + 1e-12)
    assert stated >= 100 * (1 - delta) - 1.01 * delta - 1e-12


def test_probabilities_read_well():
    assert [words.percent(d).replace("\N{NO-BREAK SPACE}", " ") for d in (0.05, 0.1, 0.01, 1e-6, 0.123)] == [
        "95 %",
        "90 %",
        "99 %",
        "99.9999 %",
        "87.7 %",
    ]


def test_short_counts():
    assert [words.compact(n) for n in (12, 999, 166_448, 999_900, 1.19e9)] == ["12", "999", "166k", "1M", "1.19G"]


def test_the_winner_of_a_comparison():
    medians = {"a": {"gss": 1000.0, "tight": 10.0}, "b": {"gss": 30.0, "tight": 10.0}, "c": {"gss": 5.0}}
    assert words.comparison_headline(medians) == (
        "tight needed the fewest simulator calls on 2 of 2 instances; the next best needed 52 times as many (median)."
    )
    assert words.comparison_headline({"c": {"gss": 5.0}}) == "gss certified policies on 1 instance."
    assert words.comparison_headline({}) == "No run was certified."


# ------------------------------------------------------------------------------------------------- studies


@pytest.fixture(scope="module")
def certified(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("certified") / "run.db"
    make_study(path)
    return path


def test_a_certified_study(certified):
    page = report.report_page(certified)
    outline = check_page(page)
    account = from_store(certified)
    result = json.loads(run("studies", str(certified), "--json").stdout)[0]["result"]
    assert outline.facts["Simulator calls"] == str(result["samples"])
    assert float(outline.facts["Certified ε"]) == result["certified_epsilon"] == account.epsilon
    assert outline.facts["Seed"] == "0"
    headline = words.headline(account, float(outline.facts["Lower bound for any algorithm"]))
    assert f"<h1>{headline}</h1>" in page
    assert "95\N{NO-BREAK SPACE}%" in headline
    assert "no algorithm could do with fewer than" in headline
    assert [int(row["action"]) for row in policy_of(outline)] == result["policy"]
    mdp = bp.instances.load("two-state")
    assert float(outline.facts["True loss (the model is known)"]) == mdp.loss(np.array(result["policy"]))
    assert "--seed 0" in page
    command = re.search(r"<pre[^>]*>(bestpolicy identify [^<]*)</pre>", page)
    again = json.loads(run(*command[1].split()[1:], "--json").stdout)  # the page's own command gives the same run
    assert again["samples"] == result["samples"]


def test_the_commands_on_the_page_make_and_check_a_certificate(certified, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = report.report_page(certified, bounds=False)
    commands = re.findall(r"<pre[^>]*>(bestpolicy (?:resume|verify) [^<]*)</pre>", page)
    assert len(commands) == 2
    for command in commands:
        done = run(*command.split()[1:])
        assert done.returncode == 0, done.stderr
    outline = check_page(report.report_page(tmp_path / "certificate.json"))
    assert policy_of(outline) == policy_of(check_page(page))
    with_model = report.report_page(tmp_path / "certificate.json", model=bp.instances.load("two-state"))
    assert "no algorithm could do with fewer" in with_model


def test_a_result_in_memory_and_what_was_not_certified():
    mdp = random_mdp(3)
    model = bp.ExactSimulator(mdp)
    result = bp.identify(model, epsilon=0.5, delta=0.1, algorithm="tight", seed=1)
    outline = check_page(report.report_page(result))
    assert [int(row["action"]) for row in policy_of(outline)] == result.policy.tolist()
    assert "Lower bound for any algorithm" not in outline.facts
    spent = bp.identify(model, epsilon=0.001, delta=0.1, algorithm="tight", seed=1, max_samples=2000)
    page = report.report_page(spent)
    check_page(page)
    assert "budget of simulator calls is spent" in page
    nothing = bp.identify(model, epsilon=0.001, delta=0.1, algorithm="gss", seed=1, max_samples=10)
    page = report.report_page(nothing)
    check_page(page)
    assert "nothing is certified yet" in page.lower()
    looked = bp.identify(model, epsilon=0.001, delta=0.1, algorithm="tight", seed=1, max_samples=100)
    assert looked.epsilon == inf  # no proof, so its samples are not in the result
    outline = check_page(report.report_page(looked))
    assert [int(row["action"]) for row in policy_of(outline)] == looked.policy.tolist()
    assert len(outline.named("svg")) == 1


def test_a_study_that_is_begun_runs_ends_and_goes_on(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=0, epsilon=0.001)
    begun = report.report_page(path)
    check_page(begun)
    assert "has just begun" in begun
    simulator = bp.ExactSimulator(bp.instances.load("two-state"))
    study = bp.Study.resume(path)
    for _ in range(4):
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    account = from_store(path)  # while another connection writes
    assert not account.over
    assert account.samples == study.samples
    assert account.forecast == pytest.approx(study.forecast())
    check_page(report.report_page(path))
    study.stop()
    assert from_store(path).outcome == Outcome.INTERRUPTED
    assert "was interrupted" in report.report_page(path)
    goes_on = bp.Study.resume(path)
    for query in goes_on.ask():
        goes_on.tell(query, simulator.sample(query.pulls, query.rng()))
    assert not from_store(path).over  # the stored result is older than the samples
    goes_on.close()


@pytest.mark.parametrize("model", ["riverswim-episodic", "grid"])
def test_episodic_and_grid_pages(tmp_path, model):
    path = tmp_path / "run.db"
    make_study(path, model=model, algorithm=None, steps=2)
    page = report.report_page(path, bounds=False)
    outline = check_page(page)
    assert ("The policy on the grid" in page) == (model == "grid")
    rows = policy_of(outline)
    if model == "grid":
        assert len(rows) == 16
    else:
        assert [(r["step"], r["state"]) for r in rows[:5]] == [
            ("0", "0"),
            ("0", "1"),
            ("0", "2"),
            ("0", "3"),
            ("1", "0"),
        ]


def test_two_studies_of_a_problem_are_told(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, "first")
    make_study(path, "second", seed=1)
    page = report.report_page(path, name="second", bounds=False)
    assert "holds 2 studies of this problem" in page
    with pytest.raises(bp.InvalidInput, match="2 studies"):
        report.report_page(path)


def test_hostile_names_are_text(tmp_path):
    path = tmp_path / "run.db"
    mdp = bp.instances.load("two-state")
    study = bp.Study(mdp.problem, epsilon=0.5, delta=0.1, store=path, name=HOSTILE, origin={"model": HOSTILE})
    bp.drive(study, bp.ExactSimulator(mdp))
    outline = check_page(report.report_page(path))
    assert len(outline.named("script")) == 1
    assert not outline.named("img")
    row = {"algorithm": HOSTILE, "instance": HOSTILE, "samples": 10, "certified": True, HOSTILE: HOSTILE}
    document = {"format": "bestpolicy comparison", "version": 1, "rows": [row], "settings": {HOSTILE: HOSTILE}}
    outline = check_page(report.report_page(document | {"skipped": [row | {"reason": HOSTILE}]}))
    assert len(outline.named("script")) == 1
    assert not outline.named("img")


def test_a_huge_problem_makes_a_small_page(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(3), size=(5000, 2))
    features[:3, 0] = np.eye(3)
    problem = bp.Problem(features, horizon=4)
    mu = np.swapaxes(rng.dirichlet(np.ones(5000), size=(4, 3)), -1, -2)
    mdp = bp.LinearMDP(problem, theta=rng.uniform(size=(4, 3)), mu=mu)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=2.0, delta=0.1, seed=0)
    page = report.report_page(result)
    outline = check_page(page)
    assert len(page.encode()) < 5_000_000
    assert "The 200 least decided of 5,000 states are drawn." in page
    rows = policy_of(outline)
    assert len(rows) == 20_000
    assert [int(row["action"]) for row in rows] == result.policy.ravel().tolist()


def test_known_grids():
    square = bp.Problem(np.eye(16 * 4).reshape(16, 4, -1), discount=0.9)
    assert find_grid(square, "grid") == find_grid(square, "B12") == report.Grid(4, 4, "↑↓←→")
    assert find_grid(square, "FrozenLake-v1").arrows == "←↓→↑"
    assert find_grid(square, "queue") is None
    cliff = bp.Problem(np.eye(49 * 4).reshape(49, 4, -1), discount=0.9)
    assert find_grid(cliff, "CliffWalking-v1") == report.Grid(4, 12, "↑→↓←")  # not 7 by 7


def test_versions_follow_the_checks(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=0, epsilon=0.001)
    seen = [study_version(path, None)]
    study = bp.Study.resume(path)
    simulator = bp.ExactSimulator(bp.instances.load("two-state"))
    for _ in range(3):
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
        seen.append(study_version(path, None))
    study.stop()
    seen.append(study_version(path, None))
    assert len(set(seen)) == len(seen)


# ------------------------------------------------------------------------------------------------- comparisons


def comparison() -> dict:
    rows = [
        {
            "algorithm": name,
            "instance": instance,
            "seed": seed,
            "epsilon": 0.1,
            "delta": 0.05,
            "samples": scale * (seed + 1),
            "loss": 0.01 * seed,
            "certified": True,
            "certified_epsilon": 0.09,
            "outcome": "certified",
            "seconds": 0.1,
        }
        for instance in ("queue", "river")
        for name, scale in (("gss", 10_000), ("tight", 100))
        for seed in range(3)
    ]
    return {
        "format": "bestpolicy comparison",
        "version": 1,
        "settings": {"epsilon": 0.1, "delta": 0.05, "instances": [{"name": "queue"}], "interrupted": False},
        "rows": rows,
        "skipped": [{"algorithm": "gss-e", "instance": "queue", "reason": "it is for episodic problems."}],
        "lower_bounds": [{"instance": "queue", "samples": 50.0, "reason": "x"}, {"instance": "river", "samples": None}],
    }


def test_a_comparison(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(comparison()))
    page = report.report_page(path)
    check_page(page)
    assert "<h1>tight needed the fewest simulator calls on 2 of 2 instances; the next best needed 100 times" in page
    assert 'data-value="20000.0">20,000</td>' in page
    assert "it is for episodic problems." in page
    assert 'data-value="4.0">4</td>' in page  # 200 over a lower bound of 50


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        ({"version": 2}, "version 2"),
        ({"rows": 3}, "'rows' must be a list"),
        ({"rows": [{"algorithm": "a"}]}, "row 0 lacks 'instance'"),
        ({"rows": [{"algorithm": "a", "instance": "b", "samples": "many", "certified": True}]}, "no number of samples"),
    ],
)
def test_a_damaged_comparison_says_what_is_wrong(change, words_):
    with pytest.raises(bp.InvalidInput, match=words_):
        report.report_page(comparison() | change)


def test_an_empty_comparison_is_a_page():
    check_page(report.report_page(comparison() | {"rows": []}))


# ------------------------------------------------------------------------------------------------- commands


def test_the_command_writes_a_page(certified, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("report", certified, "--no-bounds", "--grid", "1x2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Written: report.html (")
    page = (tmp_path / "report.html").read_text()
    check_page(page)
    assert "The policy on the grid" in page
    assert "no algorithm" not in page


def test_wrong_input_gives_one_error_line(certified, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign.json").write_text('{"a": 1}')
    (tmp_path / "picture.bin").write_bytes(b"\x89PNG\xff")
    mdp = bp.instances.load("two-state")
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.3, delta=0.05, algorithm="tight", seed=0)
    result.save(tmp_path / "good.json")
    document = json.loads((tmp_path / "good.json").read_text())
    document["claim"]["epsilon"] = 1e-9
    (tmp_path / "forged.json").write_text(json.dumps(document))
    for arguments, expected in (
        (["report", "missing.db"], "no such file"),
        (["report", "foreign.json"], "neither a file of studies"),
        (["report", "picture.bin"], "neither a file of studies"),
        (["report", "forged.json"], "NOT valid"),
        (["report", str(certified), "--model", "queue"], "not the model of this study"),
        (["report", str(certified), "--grid", "four"], "ROWSxCOLUMNS"),
        (["report", str(certified), "--grid", "9x9", "--no-bounds"], "81 cells"),
        (["report", str(certified), "--output", "nowhere/report.html"], "folder that exists"),
        (["report", str(certified), "--name", "other"], "no study named"),
        (["watch", "missing.db"], "no such file"),
        (["watch", "foreign.json"], "is not a"),
        (["watch", "picture.bin"], "is not a"),
        (["watch", str(certified), "--port", "99999"], "cannot listen"),
    ):
        assert_one_error_line(run(*arguments), expected)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_the_extra_one_line_says_how_to_get_it(certified, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    done = run("report", certified, "--no-bounds", "--output", tmp_path / "report.html")
    assert_one_error_line(done, package, "bestpolicy[report]")
    assert not (tmp_path / "report.html").exists()


def test_the_demo_ends_with_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bestpolicy.cli.demo"], "INSTANCES", ("universal", "universal-episodic"))
    done = run("demo", "--output", tmp_path)
    assert done.returncode == 0
    assert f"Written: {tmp_path}/report.html" in done.stdout.replace("\n", "")
    page = (tmp_path / "report.html").read_text()
    outline = check_page(page)
    assert "tight needed the fewest simulator calls on 2 of 2 instances" in page
    assert "One run in detail: universal" in page
    rows = json.loads((tmp_path / "demo.json").read_text())
    assert [f"{row['samples']:,}</td>" in page for row in rows] == [True, True]
    assert int(outline.facts["Simulator calls"]) < rows[0]["samples"]


def test_a_policy_without_a_choice():
    problem = bp.Problem(np.ones((3, 1, 1)), discount=0.5)
    mdp = bp.LinearMDP(problem, theta=[0.5], mu=np.full((3, 1), 1 / 3))
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.1, delta=0.1, seed=0)
    assert from_result(result).epsilon < inf
    page = report.report_page(result)
    check_page(page)
    assert "Every policy is optimal" in page
