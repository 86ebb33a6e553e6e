"""The page says what the files say, in words that never promise more, and is well-formed whatever it is about."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shlex
import sys
from dataclasses import asdict
from html import unescape
from html.parser import HTMLParser
from math import inf
from pathlib import Path

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy import report
from bestpolicy.algorithms import GSS
from bestpolicy.algorithms.protocol import Request
from bestpolicy.comparison import InstanceBound, Skipped, Trial
from bestpolicy.pictures.labels import Labels
from bestpolicy.report import accounts, words
from bestpolicy.report.accounts import from_result, from_store
from bestpolicy.report.live import study_version
from bestpolicy.study.store import Store
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
    if steps is None:
        bp.drive(study, bp.ExactSimulator(mdp))
    else:
        advance(study, steps, model)
    study.close()


def advance(study: bp.Study, steps: int, model: str = "two-state") -> None:
    """Answer what a study asks, so many times."""
    simulator = bp.ExactSimulator(bp.instances.load(model))
    for _ in range(steps):
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))


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


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Pages without pictures, where the words are what is tested: most of the time goes into drawing."""
    monkeypatch.setattr(sys.modules["bestpolicy.report.study_part"], "_pictures", lambda *_: [])


def policy_of(outline: Outline) -> list[dict[str, str]]:
    link = next(a for a in outline.named("a") if a.get("id") == "policy-csv")
    assert link["download"] == "policy.csv"
    text = base64.b64decode(str(link["href"]).split(",")[1]).decode()
    return list(csv.DictReader(io.StringIO(text)))


# ------------------------------------------------------------------------------------------------- words


def test_short_counts():
    assert [words.compact(n) for n in (12, 999, 166_448, 999_900, 1.19e9)] == ["12", "999", "166k", "1M", "1.19G"]


def test_the_winner_of_a_comparison():
    trials = [trial("gss", "a", 1000), trial("tight", "a", 10), trial("gss", "b", 30), trial("tight", "b", 10)]
    lone = trial("gss", "c", 5)
    unsure = trial("quick", "a", 1, certified=False)
    assert headline(*trials, lone, unsure) == (
        "tight needed the fewest simulator calls on 2 of 2 instances; the next best needed 52 times as many (median)."
    )
    assert headline(lone) == "gss certified policies on 1 instance."
    assert headline(unsure) == "No algorithm was certified in all its runs."
    assert headline() == "There are no runs."


def trial(algorithm: str, instance: str, samples: int, seed: int = 0, **other) -> Trial:
    known = {"asked_epsilon": 0.1, "delta": 0.05, "loss": 0.01 * seed, "certified": True, "epsilon": 0.09}
    return Trial(
        algorithm, instance, seed, samples=samples, **(known | {"outcome": "certified", "seconds": 0.1} | other)
    )


def headline(*trials: Trial) -> str:
    return words.comparison_headline(bp.Comparison({}, trials).summary)


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
    assert float(outline.facts["Certified ε"]) == result["epsilon"] == account.epsilon
    assert outline.facts["Seed"] == "0"
    headline = words.headline(account, float(outline.facts["Lower bound for any algorithm"]))
    assert "Lower bound if every step is sampled equally often" not in outline.facts
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


@pytest.mark.usefixtures("undrawn")
def test_the_commands_on_the_page_make_and_check_a_certificate(certified, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = report.report_page(certified, bounds=False)
    commands = re.findall(r"<pre[^>]*>(bestpolicy (?:resume|verify) [^<]*)</pre>", page)
    assert len(commands) == 2
    for command in commands:
        done = run(*command.split()[1:])
        assert done.returncode == 0, done.stderr
    of_file = report.report_page(tmp_path / "certificate.json")
    assert policy_of(check_page(of_file)) == policy_of(check_page(page))
    for item in bp.verify(tmp_path / "certificate.json").trusted[1:]:
        assert item in unescape(of_file)
    with_model = report.report_page(tmp_path / "certificate.json", model=bp.instances.load("two-state"))
    assert "no algorithm could do with fewer" in with_model


@pytest.mark.parametrize(
    ("mdp", "asked"),
    [
        (bp.instances.load("riverswim"), {}),
        (bp.instances.load("riverswim-episodic"), {}),
        (random_mdp(3), {}),
        (random_mdp(3, horizon=2), {}),
        (bp.instances.load("riverswim-episodic"), {"algorithm": "forward", "start": 0}),
    ],
    ids=["table", "table of episodes", "features", "features of episodes", "followed"],
)
def test_certificates_of_every_kind_have_a_page(tmp_path, mdp, asked):
    epsilon = 0.2 * float(mdp.problem.value_limits[0])
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, seed=1, **asked)
    result.save(tmp_path / "c.json")
    page = report.report_page(tmp_path / "c.json", bounds=False)
    assert result.rule in page
    assert len(policy_of(check_page(page))) == result.policy.size


def test_a_result_in_memory():
    model = bp.ExactSimulator(random_mdp(3))
    result = bp.identify(model, epsilon=0.5, delta=0.1, algorithm="tight", seed=1)
    outline = check_page(report.report_page(result))
    assert [int(row["action"]) for row in policy_of(outline)] == result.policy.tolist()
    assert "Lower bound for any algorithm" not in outline.facts
    looked = bp.identify(model, epsilon=0.001, delta=0.1, algorithm="tight", seed=1, max_samples=100)
    assert looked.epsilon == inf
    page = report.report_page(looked)
    outline = check_page(page)
    assert [int(row["action"]) for row in policy_of(outline)] == looked.policy.tolist()
    assert len(outline.named("svg")) > 1  # what was measured is shown though it proves nothing
    assert "budget of simulator calls is spent" in page


class GivesUp(GSS):
    """Somebody's own algorithm, which looks once and ends without a certificate."""

    name = "gives-up"

    def predicted_samples(self, problem, gap, epsilon, delta):
        """Say nothing."""
        return np.nan

    def run(self, task):
        """Sample once what gss would, and give up."""
        request = next(super().run(task))
        yield Request(request.pulls)
        policy = np.zeros((task.problem.stages, task.problem.states), dtype=int)
        return bp.Check(1, request.pulls.total, policy, np.nan, np.nan, False, inf, np.nan, "none")


@pytest.fixture(scope="module")
def studies(tmp_path_factory) -> Path:
    """One file with a study of every kind, each called what it is."""
    path = tmp_path_factory.mktemp("studies") / "run.db"
    make_study(path, "begun", steps=0)
    make_study(path, "waiting", steps=1, algorithm="vqvi")  # answers, but no check yet
    make_study(path, "running", steps=45, epsilon=0.01)
    make_study(path, "certified")
    make_study(path, "sample budget spent", epsilon=0.01, max_samples=2000)
    make_study(path, "finished without a guarantee", algorithm="plug-in-no-guarantee")
    make_study(path, "fixed budget", algorithm="plug-in", epsilon=1.0)
    make_study(path, "gave up", algorithm=GivesUp())
    make_study(path, "episodic", model="riverswim-episodic", algorithm="gss", steps=2)
    make_study(path, "grid", model="grid", algorithm="gss", steps=2)
    return path


@pytest.fixture(scope="module")
def listed(studies) -> dict[str, float | None]:
    """What `bestpolicy studies` forecasts."""
    return {each["name"]: each["forecast"] for each in json.loads(run("studies", studies, "--json").stdout)}


@pytest.mark.parametrize(
    ("name", "said", "resumes"),
    [
        ("begun", "This study has just begun", True),
        ("waiting", "This study has just begun", True),
        ("running", "simulator calls should be needed in all", True),
        ("certified", "This policy is within", False),
        ("sample budget spent", "The budget of simulator calls is spent.", True),
        ("finished without a guarantee", "this algorithm proves nothing of its policy", False),
        ("fixed budget", "This policy is within 1 of optimal", False),
        ("gave up", "has made all samples of its plan without a proof", False),
    ],
)
def test_pages_of_studies_of_all_kinds(studies, listed, name, said, resumes, request):
    if name in ("certified", "sample budget spent", "finished without a guarantee"):
        request.getfixturevalue("undrawn")
    page = report.report_page(studies, name=name, bounds=False)
    outline = check_page(page)
    with Store(studies) as store:
        record = store.read(store.find(name))
    trace = record.trace
    assert said in page
    assert ("Go on with the run" in page) == resumes
    assert outline.facts["Simulator calls"] == str(record.samples)
    forecast = outline.facts.get("Forecast of calls in all")
    assert forecast == (str(listed[name]) if listed[name] and resumes else None)
    if trace:  # the policy is the one that the last check certifies, not an estimate
        assert [int(row["action"]) for row in policy_of(outline)] == trace[-1].policy.ravel().tolist()
        assert ("The policy of the last check" in page) == (not record.result or not record.result["certified"])
    else:
        assert "policy-csv" not in outline.ids
    provable = name in ("running", "certified", "sample budget spent")
    assert ("bestpolicy verify certificate.json" in page) == provable
    assert "8 studies of this problem" in page
    assert not re.search(r">[^<]*\b(nan|inf)\b[^<]*</(td|dd|h1|p)>", page)


@pytest.mark.usefixtures("undrawn")
def test_the_forecast_is_that_of_the_study_and_a_spent_budget_is_raised(studies):
    account = from_store(studies, "running")
    study = bp.Study.resume(studies, "running")
    assert account.forecast == study.forecast() > study.samples
    study.close()
    page = report.report_page(studies, name="sample budget spent", bounds=False)
    budget = re.search(r"bestpolicy resume [^<]* --max-samples (\d+)", page)
    assert int(budget[1]) > 2000


@pytest.mark.usefixtures("undrawn")
def test_a_study_that_ends_and_goes_on(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=4, epsilon=0.001)
    study = bp.Study.resume(path)
    assert not from_store(path).over  # while another connection writes
    study.stop()
    assert "was interrupted" in report.report_page(path, bounds=False)
    goes_on = bp.Study.resume(path)
    advance(goes_on, 1)
    account = from_store(path)
    assert not account.over
    assert account.samples == goes_on.samples
    assert (account.policy == goes_on.checks[-1].policy).all()
    goes_on.close()


@pytest.mark.parametrize("model", ["episodic", "grid"])
def test_episodic_and_grid_pages(studies, model):
    page = report.report_page(studies, name=model, bounds=False)
    rows = policy_of(check_page(page))
    assert ("The policy on the grid" in page) == (model == "grid")
    if model == "grid":
        assert len(rows) == 16
    else:
        assert [(row["step"], row["state"]) for row in rows[:5]] == [*[("0", str(s)) for s in range(4)], ("1", "0")]


@pytest.mark.usefixtures("undrawn")
def test_an_episodic_page_has_a_bound_for_any_sampling_and_one_for_rounds(studies, monkeypatch):
    monkeypatch.setattr(report, "BOUND_SECONDS", 1.0)
    facts = check_page(report.report_page(studies, name="episodic")).facts
    free, in_rounds = (
        float(facts[label])
        for label in ("Lower bound for any algorithm", "Lower bound if every step is sampled equally often")
    )
    assert 1 <= free <= in_rounds <= 6 * free


def test_a_file_with_several_studies_wants_a_name(studies):
    with pytest.raises(bp.InvalidInput, match="10 studies"):
        report.report_page(studies)


# ------------------------------------------------------------------------------------------------- labels


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Path:
    """A study of FrozenLake, with its certificate."""
    gymnasium = pytest.importorskip("gymnasium")
    folder = tmp_path_factory.mktemp("lake")
    simulator = bp.GymSimulator(gymnasium.make("FrozenLake-v1"), discount=0.5)
    result = bp.identify(simulator, epsilon=0.3, delta=0.1, seed=0, algorithm="gss", store=folder / "lake.db")
    result.save(folder / "lake.json")
    (folder / "policy.json").write_text(json.dumps(result.policy.tolist()))
    return folder


def check_lake(page: str, lake: Path) -> None:
    rows = policy_of(check_page(page))
    assert [row["state"] for row in rows] == [*map(str, range(16)), "the end"]
    assert [int(row["action"]) for row in rows[:16]] == json.loads((lake / "policy.json").read_text())
    assert "<title>FrozenLake-v1: certified" in page


def test_an_environment_is_shown_in_its_own_terms(lake):
    page = report.report_page(lake / "lake.db")
    check_lake(page, lake)
    assert "Grid of 4 by 4 states" in page


@pytest.mark.usefixtures("undrawn")
def test_a_certificate_knows_the_environment_too(lake):
    check_lake(report.report_page(lake / "lake.json"), lake)


def test_values_are_in_the_units_of_the_environment():
    gymnasium = pytest.importorskip("gymnasium")
    simulator = bp.GymSimulator(gymnasium.make("CliffWalking-v1"), discount=0.5)
    problem, truth = simulator.problem, simulator.truth()
    pulls = bp.Pulls(problem.pairs, np.full((1, len(problem.pairs)), 10_000))
    tally = simulator.sample(pulls, np.random.default_rng(0))
    policy = truth.policy.reshape(1, -1)
    units = simulator.units
    found = report.estimate(problem, tally, policy, scale=units.reward_scale, offset=units.reward_offset)
    own = simulator.env_values(truth.policy_values(truth.policy))
    np.testing.assert_allclose(found.values[0, : len(own)], own, atol=1e-3)
    assert found.values.min() < -1


def test_the_command_to_repeat_a_run_gives_the_same_answer(tmp_path):
    """Also with workers, whose answer is another one, and in Python with all that decides it."""
    asked = ("identify", "two-state", "--epsilon", 0.3, "--delta", 0.1, "--algorithm", "tight", "--workers", 1)
    first = run(*asked, "--store", tmp_path / "run.db", "--json")
    command = re.search(r"<pre[^>]*>bestpolicy (identify [^<]*)</pre>", report.report_page(tmp_path / "run.db"))
    again = run(*shlex.split(command[1]), "--json")
    for key in ("samples", "statistic", "policy"):
        assert json.loads(first.stdout)[key] == json.loads(again.stdout)[key]

    simulator = bp.ExactSimulator(bp.instances.load("two-state"))
    result = bp.identify(
        simulator,
        epsilon=0.3,
        delta=0.1,
        algorithm=bp.algorithms.Tight(check_ratio=1.3),
        calls_per_query=77,
        max_samples=10**6,
    )
    call = re.search(r"<pre[^>]*>(bestpolicy\.identify\([^<]*)</pre>", report.report_page(result))
    repeated = eval(unescape(call[1]), {"bestpolicy": bp, "simulator": simulator})
    assert repeated.samples == result.samples
    assert repeated.statistic == result.statistic


def test_hostile_labels_are_text_and_those_that_do_not_fit_are_left_out(tmp_path):
    problem = bp.instances.load("two-state").problem
    labels = {"environment": HOSTILE, "states": [HOSTILE, [1, {"a": "é"}]], "actions": ["left", "right", "none"]}
    read = Labels.of(bp.Units(**labels), problem)
    assert read.state(1) == '(1, {"a": "é"})'
    assert read.action(1) == "1"  # three names for two actions
    assert Labels.of(bp.Units(states=3), problem) == Labels()
    path = tmp_path / "run.db"
    study = bp.Study(problem, epsilon=0.5, delta=0.1, algorithm="tight", seed=0, store=path, units=bp.Units(**labels))
    advance(study, 30)
    study.close()
    page = report.report_page(path)
    outline = check_page(page)
    assert len(outline.named("script")) == 1
    assert not outline.named("img")
    assert policy_of(outline)[0]["state"] == HOSTILE
    assert "action left" not in page


def test_hostile_names_are_text(tmp_path):
    path = tmp_path / "run.db"
    mdp = bp.instances.load("two-state")
    study = bp.Study(
        mdp.problem, epsilon=0.5, delta=0.1, algorithm="gss", store=path, name=HOSTILE, origin={"model": HOSTILE}
    )
    bp.drive(study, bp.ExactSimulator(mdp))
    outline = check_page(report.report_page(path))
    assert len(outline.named("script")) == 1
    assert not outline.named("img")
    found = bp.Comparison(
        {HOSTILE: HOSTILE}, (trial(HOSTILE, HOSTILE, 10, outcome=HOSTILE),), (Skipped(HOSTILE, HOSTILE, HOSTILE),)
    )
    outline = check_page(report.report_page(found))
    assert len(outline.named("script")) == 1
    assert not outline.named("img")


def test_a_huge_problem_makes_a_small_page():
    rng = np.random.default_rng(0)
    features = rng.dirichlet(np.ones(3), size=(600, 2))
    features[:3, 0] = np.eye(3)
    problem = bp.Problem(features, horizon=2)
    mu = np.swapaxes(rng.dirichlet(np.ones(600), size=(2, 3)), -1, -2)
    mdp = bp.LinearMDP(problem, theta=rng.uniform(size=(2, 3)), mu=mu)
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=1.0, delta=0.1, algorithm="gss", seed=0)
    page = report.report_page(result)
    outline = check_page(page)
    assert len(page.encode()) < 1_000_000
    assert "The 200 least decided of 600 states are drawn." in page
    rows = policy_of(outline)
    assert [int(row["action"]) for row in rows] == result.policy.ravel().tolist()


def test_versions_follow_the_checks(tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=0, epsilon=0.001)
    seen = [study_version(path, None)]
    study = bp.Study.resume(path)
    for _ in range(3):
        advance(study, 1)
        seen.append(study_version(path, None))
    study.stop()
    seen.append(study_version(path, None))
    assert len(set(seen)) == len(seen)


# ------------------------------------------------------------------------------------------------- comparisons


def comparison() -> bp.Comparison:
    trials = [
        trial(name, instance, scale * (seed + 1), seed)
        for instance in ("queue", "river")
        for name, scale in (("gss", 10_000), ("tight", 100))
        for seed in range(3)
    ]
    return bp.Comparison(
        {
            "asked_epsilon": 0.1,
            "delta": 0.05,
            "instances": [{"name": "queue"}],
            "max_samples": 10**6,
            "interrupted": False,
        },
        tuple(trials),
        (Skipped("gss-e", "queue", "it is for episodic problems."),),
        (InstanceBound("queue", 50.0, "x"), InstanceBound("river", None, "x")),
    )


def test_a_comparison(tmp_path):
    path = tmp_path / "table.json"
    comparison().save(path)
    page = report.report_page(path)
    check_page(page)
    assert "<h1>tight needed the fewest simulator calls on 2 of 2 instances; the next best needed 100 times" in page
    assert 'data-value="20000.0">20,000</td>' in page
    assert "it is for episodic problems." in page
    assert 'data-value="4.0">4</td>' in page  # 200 over a lower bound of 50
    assert 'data-value="100.0">100</td>' in page  # times as many as the best
    assert "<dd>1,000,000</dd>" in page
    assert "interrupted" not in page


def test_a_comparison_tells_of_failures_and_of_what_is_missing():
    wrong = trial("gss", "queue", 10, loss=0.5)
    page = report.report_page(bp.Comparison({"interrupted": True}, (wrong,)))
    check_page(page)
    assert 'class="number bad" data-value="1">1</td>' in page
    assert "runs are missing" in page


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        ({"version": 4}, "version 4"),
        ({"rows": 3}, "'rows' must be a list"),
        ({"settings": None}, "'settings' must be"),
        ({"rows": [{"algorithm": "a"}]}, "entry 0 of 'rows' lacks 'asked_epsilon'"),
        ({"rows": [asdict(trial("a", "b", 1)) | {"samples": "many"}]}, "'samples' must be of type int"),
        ({"rows": [asdict(trial("a", "b", 1)) | {"loss": inf}]}, "'loss' must be of type float"),
        ({"skipped": [{"algorithm": "a", "instance": "b", "reason": "c", "more": 1}]}, "has 'more' besides"),
    ],
)
def test_a_damaged_comparison_says_what_is_wrong(tmp_path, change, words_):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(comparison().to_dict() | change))
    with pytest.raises(bp.InvalidInput, match=words_):
        report.report_page(path)


def test_an_empty_comparison_is_a_page():
    check_page(report.report_page(bp.Comparison({}, ())))


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


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_the_extra_one_line_says_how_to_get_it(certified, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    done = run("report", certified, "--no-bounds", "--output", tmp_path / "report.html")
    assert_one_error_line(done, package, "bestpolicy[report]")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_demo_ends_with_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bestpolicy.cli.demo"], "INSTANCES", ("universal",))
    done = run("demo", "--output", tmp_path)
    assert done.returncode == 0
    assert f"Written: {tmp_path}/report.html" in done.stdout.replace("\n", "")
    page = (tmp_path / "report.html").read_text()
    outline = check_page(page)
    assert "sharp needed the fewest simulator calls on universal" in page
    assert "One run in detail: universal" in page
    rows = json.loads((tmp_path / "demo.json").read_text())
    assert [f"{row['samples']:,}</td>" in page for row in rows] == [True]
    assert int(outline.facts["Simulator calls"]) < rows[0]["paper_samples"]


def test_a_policy_without_a_choice():
    problem = bp.Problem(np.ones((3, 1, 1)), discount=0.5)
    mdp = bp.LinearMDP(problem, theta=[0.5], mu=np.full((3, 1), 1 / 3))
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.1, delta=0.1, algorithm="gss", seed=0)
    assert from_result(result).epsilon < inf
    page = report.report_page(result)
    check_page(page)
    assert "Every policy is optimal" in page


def test_values_of_an_own_simulator_are_in_its_units(tmp_path):
    """V = 10/(1-γ) where every reward is 10, whatever range it is mapped from."""
    problem = bp.Problem(np.eye(4).reshape(2, 2, 4), discount=0.5)
    simulator = bp.CallableSimulator(problem, lambda state, action, rng: (10.0, state), reward_range=(-5.0, 15.0))
    bp.identify(simulator, epsilon=5, delta=0.1, algorithm="tight", seed=0, store=tmp_path / "run.db")
    account = accounts.from_store(tmp_path / "run.db")
    low, high = account.settings.units.reward_range
    found = report.estimate(account.problem, account.tally, account.policy, scale=high - low, offset=low)
    np.testing.assert_allclose(found.values, 20.0, atol=0.05)
