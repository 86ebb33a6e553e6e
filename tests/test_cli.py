"""The command line, as a user sees it: a subprocess."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.cli import main
from bestpolicy.study.store import Store
from tests.models import random_mdp

COMMAND = [str(Path(sys.executable).parent / "bestpolicy")]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call the command in this process, with its own output and exit code."""
    command = ["bestpolicy", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", command),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def run_installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call the installed command as a user does."""
    return subprocess.run(
        COMMAND + [str(a) for a in arguments], capture_output=True, text=True, timeout=600, check=False
    )


def assert_one_error_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in done.stderr


def test_identify_prints_one_json_object():
    done = run_installed(
        "identify", "two-state", "--epsilon", 0.1, "--delta", 0.05, "--algorithm", "gss", "--seed", 7, "--json"
    )
    assert done.returncode == 0
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    keys = "algorithm model epsilon delta certified outcome policy rounds samples statistic threshold gap seed"
    assert set(keys.split()) | {"seconds", "version"} <= set(answer)
    assert (answer["algorithm"], answer["model"], answer["seed"]) == ("gss", "two-state", 7)
    assert answer["certified"] is True
    assert bp.instances.load("two-state").loss(answer["policy"]) <= 0.1
    again = json.loads(
        run(
            "identify", "two-state", "--epsilon", 0.1, "--delta", 0.05, "--algorithm", "gss", "--seed", 7, "--json"
        ).stdout
    )
    assert {k: v for k, v in answer.items() if k != "seconds"} == {k: v for k, v in again.items() if k != "seconds"}


def test_identify_for_people(tmp_path):
    mdp = random_mdp(2, states=3, actions=2, dimension=3, horizon=2)
    mdp.save(tmp_path / "mine.npz")
    done = run("identify", tmp_path / "mine.npz", "--epsilon", 0.5, "--delta", 0.1, "--algorithm", "gss", "--seed", 0)
    assert done.returncode == 0
    for word in (
        "certified",
        "within 0.5 of optimal in every state with probability at least 0.9",
        "gss-e",
        "seed 0",
        "policy",
    ):
        assert word in done.stdout


def test_a_spent_budget_exits_with_3_and_was_predicted():
    done = run(
        "identify",
        "riverswim",
        "--epsilon",
        0.01,
        "--delta",
        0.05,
        "--algorithm",
        "gss",
        "--max-samples",
        "1e6",
        "--json",
    )
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "sample budget spent"
    assert answer["certified"] is False
    assert answer["samples"] <= 10**6
    assert "predicted to need about" in done.stderr


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    random_mdp(0, states=1500, actions=4, dimension=8).save(tmp_path / "large.npz")
    store = tmp_path / "run.db"
    arguments = [
        "identify",
        str(tmp_path / "large.npz"),
        "--epsilon",
        "0",
        "--delta",
        "0.1",
        "--json",
        "--seed",
        "1",
        "--algorithm",
        "gss",
    ]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--store", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not _answers(store):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"bestpolicy resume {store}" in err
    answer = json.loads(out)
    assert answer["outcome"] == "interrupted"
    assert answer["samples"] > 0
    listed = json.loads(run("studies", store, "--json").stdout)
    assert listed[0]["samples"] == answer["samples"]
    assert listed[0]["result"]["outcome"] == "interrupted"
    assert "interrupted" in run("studies", store).stdout


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
import bestpolicy_command
bestpolicy_command.main()
"""


@pytest.mark.parametrize("module", ["bestpolicy", "datetime", "scipy.linalg", "bestpolicy.cli.console"])
def test_ctrl_c_is_quiet_from_the_first_moment_on(module):
    """While a module is looked for: the second is loaded by a library in C, which makes another error of it."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def strict_json(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_json_is_valid(tmp_path):
    store, certificate = tmp_path / "run.db", tmp_path / "certificate.json"
    asked = ("--epsilon", 0.5, "--delta", 0.1)
    for arguments in (
        ("identify", "two-state", *asked, "--algorithm", "tight", "--store", store, "--certificate", certificate),
        ("identify", "two-state", *asked, "--max-samples", 3, "--store", store, "--name", "short"),
        ("resume", store, "--name", "study"),
        ("resume", store, "--name", "short"),
        ("studies", store),
        ("verify", certificate, "--model", "two-state"),
        ("bounds", "two-state", *asked, "--max-seconds", 600),
        ("design", "two-state"),
        ("check", "two-state", "--samples", 100),
        ("instances",),
    ):
        done = run(*arguments, "--json")
        assert done.returncode in (0, 3), done.stderr
        strict_json(done.stdout)


def test_a_study_that_has_ended_is_answered_from_its_file(tmp_path):
    """At once, also when its model is gone; a certificate can still be had."""
    model, store, certificate = tmp_path / "mine.npz", tmp_path / "run.db", tmp_path / "certificate.json"
    bp.instances.load("two-state").save(model)
    arguments = ("--epsilon", 0.3, "--delta", 0.1, "--seed", 1, "--algorithm", "tight", "--store", store, "--json")
    first = run("identify", model, *arguments)
    model.unlink()
    with mock.patch.object(bp.algorithms.Tight, "run", side_effect=AssertionError("replayed")):
        again = run("resume", store, "--json")
        assert "within" in run("resume", store).stdout
    assert again.returncode == 0
    assert "has ended" in again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)
    with Store(store) as file:
        assert file.read(file.find(None)).result["model"] == str(model)
    assert run("resume", store, "--certificate", certificate).returncode == 0
    assert run("verify", certificate).returncode == 0


def test_a_file_that_takes_long_to_read_says_so(tmp_path, monkeypatch):
    store = tmp_path / "run.db"
    run(
        "identify",
        "two-state",
        "--epsilon",
        0.01,
        "--delta",
        0.1,
        "--algorithm",
        "gss",
        "--seed",
        1,
        "--store",
        store,
        "--max-samples",
        1000,
    )
    monkeypatch.setattr("bestpolicy.cli.progress._PATIENCE", -1.0)
    done = run("resume", store, "--max-samples", 2000)
    assert done.stderr.count("Note: reading ") == 1
    assert "stored answers" in done.stderr
    monkeypatch.undo()
    assert "reading" not in run("resume", store, "--max-samples", 3000).stderr


def test_to_go_on_says_what_to_type(tmp_path):
    store, certificate = tmp_path / "my run.db", tmp_path / "certificate.json"
    settings = ("--epsilon", 0.1, "--delta", 0.05, "--algorithm", "gss", "--seed", 0, "--store", store)
    done = run("identify", "riverswim", *settings, "--max-samples", "1e6", "--certificate", certificate)
    assert done.returncode == 3
    assert f"Note: {certificate} was not written, because nothing is certified" in " ".join(done.stderr.split())
    assert not certificate.exists()
    for _ in range(3):
        line = next(line for line in done.stderr.splitlines() if line.startswith("To go on: bestpolicy resume"))
        assert "--max-samples" in line
        assert f"--certificate {certificate}" in line
        done = run(*shlex.split(line.removeprefix("To go on: bestpolicy ")))
        if done.returncode == 0:
            break
    assert done.returncode == 0
    assert bp.verify(certificate).valid
    assert_one_error_line(run("verify", store), "is a file of studies, not a certificate")
    assert_one_error_line(run("resume", store, "--max-samples", 5), "--max-samples must be at least", "used so far")
    line = run("identify", "riverswim", *settings, "--name", "tight", "--algorithm", "tight", "--max-samples", "2e5")
    assert "so far the policy is certified to be within" in " ".join(line.stdout.split())
    listed = {row["name"]: row for row in json.loads(run("studies", store, "--json").stdout)}
    assert listed["tight"]["forecast"] == pytest.approx(bp.Study.resume(store, "tight").forecast())


def test_a_certificate_that_cannot_be_written_loses_no_result():
    settings = ("--epsilon", 0.5, "--delta", 0.1, "--certificate", "/dev/full", "--json")
    done = run("identify", "two-state", *settings)
    assert json.loads(done.stdout)["certified"]
    assert_one_error_line(done, "cannot write /dev/full: No space left on device")


def test_studies_whose_simulator_is_not_known(tmp_path):
    store, mdp = tmp_path / "run.db", random_mdp(0)
    bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.1, algorithm="gss", seed=0, max_samples=100, store=store)
    assert_one_error_line(run("resume", store, "--max-samples", 1000), "not written by", "Study.resume")
    mdp.save(tmp_path / "model.npz")
    settings = ("--epsilon", 0.5, "--delta", 0.1, "--store", store, "--name", "moved", "--max-samples", 100)
    assert run("identify", tmp_path / "model.npz", *settings).returncode == 3
    (tmp_path / "model.npz").rename(tmp_path / "elsewhere.npz")
    more = ("resume", store, "--name", "moved", "--max-samples", 200)
    assert_one_error_line(run(*more), "no such file", "If it has moved: --model PATH")
    assert run(*more, "--model", tmp_path / "elsewhere.npz").returncode == 3


def test_without_matplotlib_a_figure_is_refused_before_the_search():
    with mock.patch("bestpolicy.cli.bounds.find_spec", return_value=None):
        done = run("bounds", "two-state", "--epsilon", 0, "--delta", 0.1, "--figure", "x.svg")
    assert_one_error_line(done, "--figure needs matplotlib", "bestpolicy[report]")


def _answers(store: Path) -> int:
    try:
        with Store(store) as file:
            return file.read(file.find(None)).answers
    except bp.BestPolicyError:
        return 0


def test_a_resumed_run_is_the_uninterrupted_run(tmp_path):
    arguments = ["riverswim", "--epsilon", "0.3", "--delta", "0.1", "--algorithm", "gss", "--seed", "5", "--json"]
    whole = json.loads(run("identify", *arguments).stdout)
    store = tmp_path / "run.db"
    for budget in ("1e6", "1e8", "3e8"):
        command = ("identify", *arguments, "--store", store) if budget == "1e6" else ("resume", store, "--json")
        assert run(*command, "--max-samples", budget).returncode == 3
    resumed = json.loads(run("resume", store, "--max-samples", "1e13", "--json").stdout)
    assert resumed["certified"]
    again = json.loads(run("resume", store, "--json").stdout)
    for key in ("policy", "samples", "certified"):
        assert resumed[key] == again[key]
    assert whole["policy"] == resumed["policy"]
    for wrong, words in (
        (("resume", tmp_path / "nowhere.db"), "no such file"),
        (("resume", store, "--name", "stduy"), "Did you mean 'study'"),
        (("resume", store, "--model", "grid"), "not the model of this study"),
        (("identify", *arguments, "--store", store), "already has a study"),
    ):
        assert_one_error_line(run(*wrong), words)


def broken_files(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    mdp = random_mdp(0)
    good = {"features": mdp.problem.features, "theta": mdp.theta[0], "mu": mdp.mu[0], "discount": 0.9}
    flat = np.concatenate([mdp.problem.features] * 2, axis=2)
    nan = good["features"].copy()
    nan[1, 2, 0] = np.nan
    negative = good["mu"].copy()
    negative[0] -= 1.0
    negative[1] += 1.0
    cases: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
        "nan": (good | {"features": nan}, ("state 1, action 2", "finite")),
        "shape": (good | {"theta": np.ones(7)}, ("theta must have shape", "(7,)")),
        "transposed": (good | {"mu": good["mu"].T}, ("mu must have shape", "Transpose it")),
        "rows": (good | {"mu": 1.3 * good["mu"]}, ("0.3", "Rescale mu")),
        "negative": (good | {"mu": negative}, ("smallest transition probability", "Correct mu")),
        "rewards": (good | {"theta": 3 * good["theta"]}, ("largest mean reward", "affinely")),
        "endless": ({k: v for k, v in good.items() if k != "discount"} | {"horizon": np.inf}, ("whole number",)),
        "complex": (good | {"theta": good["theta"] * 1j}, ("real numbers",)),
        "discount1": (good | {"discount": 1.0}, ("discount", "horizon instead")),
        "both": (good | {"horizon": 3}, ("Got both",)),
        "neither": ({k: v for k, v in good.items() if k != "discount"}, ("Got neither",)),
        "rank": (
            good | {"features": flat, "theta": np.tile(good["theta"], 2) / 2, "mu": np.tile(good["mu"], 2) / 2},
            ("rank", "rank_reduction"),
        ),
        "nofeatures": ({"theta": good["theta"]}, ("lacks the key 'features'",)),
        "typo": (good | {"thetta": good["theta"]}, ("Did you mean 'theta'",)),
        "objects": ({"features": np.array([{"a": 1}], dtype=object)}, ("pickled",)),
        "nomodel": ({k: v for k, v in good.items() if k not in ("theta", "mu")}, ("lacks theta or mu",)),
    }
    files = {}
    for name, (arrays, words) in cases.items():
        np.savez(folder / f"{name}.npz", **arrays)
        files[name] = (folder / f"{name}.npz", words)
    (folder / "pickle.npz").write_bytes(pickle.dumps({"features": 1}))
    files["pickle"] = (folder / "pickle.npz", ("npz",))
    (folder / "empty.npz").write_bytes(b"")
    files["empty"] = (folder / "empty.npz", ("npz",))
    np.savez(folder / "truncated.npz", **good)
    (folder / "truncated.npz").write_bytes((folder / "truncated.npz").read_bytes()[:200])
    files["truncated"] = (folder / "truncated.npz", ("npz",))
    np.save(folder / "array.npy", np.ones(3))
    os.rename(folder / "array.npy", folder / "array.npz")
    files["single array"] = (folder / "array.npz", ("single array",))
    files["missing"] = (folder / "missing.npz", ("no such file",))
    return files


def test_bad_files_give_one_error_line(tmp_path):
    for name, (path, words) in broken_files(tmp_path).items():
        done = run("identify", path, "--epsilon", 0.1, "--delta", 0.1)
        try:
            assert_one_error_line(done, *words)
        except AssertionError as error:
            raise AssertionError(f"{name}: {done.stderr}") from error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("identify", "riverswm", "--epsilon", 0.1, "--delta", 0.1), ("riverswm", "'riverswim'")),
        (("identify", "riverswim", "--epsilon", -1, "--delta", 0.1), ("epsilon", "≥ 0", "-1")),
        (("identify", "riverswim", "--epsilon", "nan", "--delta", 0.1), ("epsilon",)),
        (("identify", "riverswim", "--epsilon", 0.1, "--delta", 0), ("delta", "between 0 and 1")),
        (("identify", "riverswim", "--epsilon", 0.1, "--delta", 1), ("delta",)),
        (("identify", "riverswim", "--epsilon", "tiny", "--delta", 0.1), ("tiny", "--help")),
        (("identify", "riverswim", "--epsilon", 0.1), ("--delta", "--help")),
        (("identify", "riverswim", "--epsilon", 0.1, "--delta", 0.1, "--algorithm", "gsss"), ("'gss'",)),
        (("identify", "riverswim", "--epsilon", 0.1, "--delta", 0.1, "--seed", -3), ("seed",)),
        (("identify", "riverswim", "--epsilon", 0.1, "--delta", 0.1, "--max-samples", "1.5"), ("1.5",)),
        (
            ("identify", "riverswim", "--epsilon", 0.1, "--delta", 0.1, "--max-seconds", "-1"),
            ("--max-seconds must be",),
        ),
        (("identfy", "riverswim"), ("identfy", "--help")),
        (("identify", "grid", "--epsilon", 1, "--delta", 0.1, "--name", "x"), ("--name", "--store FILE")),
        (("identify", "/", "--epsilon", 1, "--delta", 0.1), ("/ is a folder",)),
        (("studies", "nowhere.db"), ("no such file: nowhere.db. Give a file that",)),
        (("studies", __file__), ("is not a file of studies. Give a file that",)),
        (("design", "riverswim", "--tolerance", "-1"), ("tolerance",)),
        (("design", "nowhere.npz"), ("no such file",)),
        (("check", "gridd"), ("'grid'",)),
        (("bounds", "grid", "--epsilon", 0, "--delta", 0.1, "--tolerance", -1), ("tolerance",)),
        (("identify", "grid", "--epsilon", 1, "--delta", 0.1, "--certificate", "no/such/c.json"), ("no/such",)),
        (("identify", "grid", "--epsilon", 1, "--delta", 0.1, "--workers", 0), ("--workers must",)),
        (("identify", "grid", "--epsilon", 1, "--delta", 0.1, "--max-samples", 0), ("--max-samples must be",)),
        (("demo", "--output", "/proc/nowhere"), ("/proc/nowhere",)),
    ],
)
def test_bad_usage_gives_one_error_line(arguments, words):
    assert_one_error_line(run(*arguments), *words)


def test_design_json_certifies_itself(tmp_path):
    mdp = random_mdp(9, states=10, actions=4, dimension=5, masked=True)
    problem = mdp.problem
    np.savez(tmp_path / "problem.npz", features=problem.features, discount=0.9, mask=problem.mask)
    done = run("design", tmp_path / "problem.npz", "--tolerance", "1e-6", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert set(answer) == {"states", "actions", "weights", "worst_leverage", "tolerance"}
    chosen = problem.features[answer["states"], answer["actions"]]
    assert problem.mask[answer["states"], answer["actions"]].all()
    assert sum(answer["weights"]) == pytest.approx(1)
    matrix = (chosen.T * answer["weights"]) @ chosen
    features = problem.pair_features
    leverage = np.einsum("ni,ij,nj->n", features, np.linalg.inv(matrix), features)
    assert leverage.max() == pytest.approx(answer["worst_leverage"], rel=1e-9)
    assert leverage.max() <= 5 * (1 + 1e-6)
    assert len(answer["states"]) <= 15
    text = run("design", tmp_path / "problem.npz").stdout
    assert "worst leverage" in text


def test_check_reports_every_assumption(tmp_path):
    done = run("check", "inventory")
    assert done.returncode == 0
    for word in (
        "rank of the features",
        "all-ones",
        "smallest transition probability",
        "largest mean reward",
        "whitened",
    ):
        assert word in done.stdout
    assert "FAILS" not in done.stdout
    mdp = random_mdp(0)
    np.savez(
        tmp_path / "bad.npz", features=mdp.problem.features, theta=2 * mdp.theta[0], mu=1.3 * mdp.mu[0], discount=0.9
    )
    done = run("check", tmp_path / "bad.npz")
    assert done.returncode == 2
    assert done.stdout.count("FAILS") == 2
    assert "state" in done.stdout
    assert done.stderr.startswith("Error: 2 of")
    report = json.loads(run("check", tmp_path / "bad.npz", "--json").stdout)
    assert report["passed"] is False
    assert {f["name"] for f in report["findings"] if not f["passed"] and f["required"]} == {
        "largest |sum of a row of transition probabilities - 1|",
        "largest mean reward",
    }


def test_check_of_a_rank_deficient_file_still_reports(tmp_path):
    mdp = random_mdp(0)
    np.savez(tmp_path / "flat.npz", features=np.concatenate([mdp.problem.features] * 2, axis=2), discount=0.9)
    done = run("check", tmp_path / "flat.npz")
    assert done.returncode == 2
    assert "FAILS" in done.stdout
    assert "rank" in done.stderr


def test_instances_lists_all():
    done = run("instances", "--json")
    rows = json.loads(done.stdout)
    assert {row["name"] for row in rows} == {instance.name for instance in bp.instances.catalogue()}
    assert {"B1", "B15"} <= {row["alias"] for row in rows}
    text = run("instances").stdout
    assert "riverswim" in text
    assert "γ = 0.9" in text


def test_bounds_for_people_and_programs(tmp_path):
    done = run("bounds", "two-state", "--epsilon", 0, "--delta", 0.05, "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    keys = {"characteristic_time", "allocation", "samples_lower_bound", "alternatives", "upper", "predicted", "scopes"}
    assert keys <= set(answer)
    assert np.sum(answer["allocation"]) == pytest.approx(1)
    assert 0 < answer["characteristic_time"] <= answer["upper"]
    assert answer["samples_lower_bound"] == pytest.approx(0.9 * np.log(19) * answer["characteristic_time"])
    assert answer["rounds_lower_bound"] == answer["samples_lower_bound"]
    assert answer["alternatives"]["count"] >= 1
    assert answer["alternatives"]["closest"]["state"] in (0, 1)
    assert answer["predicted"]["gss"] > answer["samples_lower_bound"]
    picture = tmp_path / "closest.svg"
    limits = ("--tolerance", 0.5, "--max-seconds", 600)
    text = run("bounds", "universal-episodic", "--epsilon", 0, "--delta", 0.1, "--figure", picture, *limits)
    assert text.returncode == 0
    assert "any algorithm, at least" in text.stdout
    assert "any that samples in rounds, at least" in text.stdout
    assert "rounds of 3" in text.stdout
    assert "closest alternative" in text.stdout
    assert picture.read_text().startswith("<?xml")
    assert_one_error_line(run("bounds", "two-state", "--epsilon", -1, "--delta", 0.05), "epsilon")
    assert_one_error_line(run("bounds", "two-state", "--epsilon", 0, "--delta", 2), "delta")


def test_a_certificate_from_the_command_line(tmp_path):
    path = tmp_path / "certificate.json"
    arguments = ("--epsilon", 0.3, "--delta", 0.1, "--seed", 1, "--algorithm", "tight", "--certificate", path)
    assert run("identify", "universal", *arguments).returncode == 0
    done = run("verify", path, "--model", "universal")
    assert done.returncode == 0
    assert done.stdout.startswith("valid")
    path.write_text(path.read_text().replace('"epsilon": 0', '"epsilon": 1', 1))
    assert run("verify", path).returncode == 1
    assert_one_error_line(run("verify", tmp_path / "nowhere.json"), "nowhere.json")


def test_demo_writes_its_table(tmp_path, monkeypatch):
    shown = sys.modules["bestpolicy.cli.demo"]
    assert set(shown.INSTANCES) <= {instance.name for instance in bp.instances.catalogue()}  # test_gss.py runs all
    monkeypatch.setattr(shown, "INSTANCES", ("universal", "riverswim-episodic"))
    monkeypatch.setattr(shown, "write_page", lambda *_: None)  # has a test of its own
    monkeypatch.setattr(shown, "_BOUND_SECONDS", 0.01)
    done = run("demo", "--output", tmp_path / "results")
    assert done.returncode == 0
    rows = json.loads((tmp_path / "results" / "demo.json").read_text())
    assert all(row["certified"] and row["true_loss"] <= row["asked_epsilon"] for row in rows)
    assert all(row["paper_certified"] and row["paper_loss"] <= row["asked_epsilon"] for row in rows)
    assert all(0.8 < row["paper_samples_over_formula"] < 1.6 for row in rows)
    assert all(row["samples"] < row["paper_samples"] / 100 for row in rows)
    with open(tmp_path / "results" / "demo.csv") as file:
        assert [row["instance"] for row in csv.DictReader(file)] == [row["instance"] for row in rows]


def test_bad_input_as_a_user_sees_it():
    assert_one_error_line(run_installed("check", "gridd"), "'grid'")


def test_help_teaches():
    for arguments in (
        (),
        ("identify",),
        ("resume",),
        ("studies",),
        ("bounds",),
        ("design",),
        ("check",),
        ("instances",),
        ("demo",),
    ):
        done = run(*arguments, "--help")
        assert done.returncode == 0
        assert len(done.stdout) > 200
    assert run("--version").stdout.strip().endswith(bp.__version__)
