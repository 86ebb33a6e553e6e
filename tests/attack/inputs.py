"""Bad inputs: every argument of the public functions, and every option of the commands, with values that nobody means.

Calls are kept as text, so that each failure is a line that can be run:
``python -c "from tests.attack.inputs import *; …"``.
"""

from __future__ import annotations

import io
import os
import random
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from unittest import mock

import click
import numpy as np

import bestpolicy as bp
from bestpolicy.cli import commands, main
from tests.attack.sandbox import Found, attempt
from tests.models import random_mdp

MDP = random_mdp(1, states=3, actions=2, dimension=3)
EPISODIC = random_mdp(2, states=3, actions=2, dimension=3, horizon=2)
SIM = bp.ExactSimulator(MDP)
TALLY = SIM.sample(bp.Pulls(MDP.problem.pairs, np.full((1, 6), 50)), np.random.default_rng(0))
DESIGN = bp.g_optimal_design(MDP.problem.pair_features)
ESTIMATES = bp.report.estimate(MDP.problem, TALLY)


@cache
def bound() -> bp.bounds.LowerBound:
    """A bound, once it is asked for."""
    return bp.bounds.lower_bound(MDP, 0.5, 0.1, max_seconds=1.0)


def step(state: int, action: int, rng: np.random.Generator) -> tuple[float, int]:
    """Simulate one call."""
    return 0.5, int(rng.integers(3))


_CALLS = {
    "bp.Problem": {"features": "MDP.problem.features", "discount": "0.9", "horizon": "None", "mask": "None"},
    "bp.LinearMDP": {"problem": "MDP.problem", "theta": "MDP.theta[0]", "mu": "MDP.mu[0]", "name": "'x'"},
    "bp.Units": {"reward_scale": "1.0", "reward_offset": "0.0", "states": "None", "actions": "None"},
    "bp.Pulls": {"pairs": "TALLY.pairs", "counts": "TALLY.pulls"},
    "bp.Tally": {
        "pairs": "TALLY.pairs",
        "next_counts": "TALLY.next_counts",
        "next_rewards": "TALLY.next_rewards",
        "squared_rewards": "TALLY.squared_rewards",
    },
    "bp.Tally.from_samples": {
        "problem": "MDP.problem",
        "states": "[0]",
        "actions": "[1]",
        "rewards": "[0.5]",
        "next_states": "[2]",
        "stages": "0",
    },
    "bp.Tally.empty": {"problem": "MDP.problem", "pairs": "[0, 1]"},
    "bp.ExactSimulator": {"mdp": "MDP", "rewards": "'bernoulli'"},
    "bp.CallableSimulator": {
        "problem": "MDP.problem",
        "step": "step",
        "vectorized": "False",
        "reward_range": "(0.0, 1.0)",
    },
    "bp.identify": {
        "model": "SIM",
        "epsilon": "1.0",
        "delta": "0.1",
        "algorithm": "'tight'",
        "seed": "0",
        "max_samples": "3000",
        "max_seconds": "2.0",
        "store": "None",
        "name": "'study'",
        "executor": "None",
        "calls_per_query": "None",
        "query_seconds": "None",
        "own_data": "None",
        "linearity": "None",
        "progress": "None",
    },
    "bp.Study": {
        "problem": "MDP.problem",
        "epsilon": "1.0",
        "delta": "0.1",
        "algorithm": "'gss'",
        "seed": "0",
        "max_samples": "3000",
        "calls_per_query": "None",
        "store": "None",
        "name": "'study'",
        "origin": "None",
        "units": "None",
        "own_data": "None",
    },
    "bp.Study.resume": {"store": "'run.db'", "name": "None", "max_samples": "None"},
    "bp.drive": {
        "study": "bp.Study(MDP.problem, epsilon=1.0, delta=0.1, max_samples=2000)",
        "model": "SIM",
        "max_seconds": "2.0",
        "executor": "None",
        "query_seconds": "None",
        "progress": "None",
    },
    "bp.studies": {"path": "'run.db'"},
    "bp.verify": {"path": "'certificate.json'", "model": "None"},
    "bp.compare": {
        "models": "[MDP]",
        "algorithms": "['tight']",
        "epsilon": "1.0",
        "delta": "0.1",
        "runs": "1",
        "seed": "0",
        "max_samples": "3000",
        "max_seconds": "2.0",
        "executor": "None",
        "workers": "None",
        "store": "None",
        "lower_bounds": "False",
        "bound_seconds": "1.0",
        "progress": "None",
    },
    "bp.least_squares": {"features": "MDP.problem.features", "tally": "TALLY", "ridge": "0.1"},
    "bp.optimal_plan": {"problem": "MDP.problem", "theta": "MDP.theta", "mu": "MDP.mu", "start": "None"},
    "bp.evaluate_policy": {
        "problem": "MDP.problem",
        "theta": "MDP.theta",
        "mu": "MDP.mu",
        "policy": "MDP.plan.policy",
    },
    "MDP.loss": {"policy": "MDP.policy"},
    "MDP.is_near_optimal": {"policy": "MDP.policy", "epsilon": "0.1"},
    "MDP.save": {"path": "'model.npz'"},
    "bp.LinearMDP.load": {"path": "'model.npz'"},
    "bp.g_optimal_design": {"features": "MDP.problem.pair_features", "tolerance": "0.01"},
    "bp.design.leverages": {"features": "MDP.problem.pair_features", "gram": "np.eye(3)"},
    "bp.design.rank_reduction": {"features": "MDP.problem.pair_features"},
    "bp.design.rounded_counts": {"weights": "DESIGN.weights", "total": "10"},
    "bp.design.whiten": {"features": "MDP.problem.pair_features", "design": "DESIGN"},
    "bp.diagnostics.check_linearity": {"problem": "MDP.problem", "tally": "TALLY", "level": "0.01"},
    "bp.diagnostics.sample_for_diagnostics": {
        "model": "SIM",
        "samples_per_pair": "5",
        "rng": "np.random.default_rng(0)",
        "max_pairs": "None",
    },
    "bp.testing.check_generative_model": {"model": "SIM", "samples": "20", "seed": "0"},
    "bp.bounds.lower_bound": {
        "mdp": "MDP",
        "epsilon": "0.5",
        "delta": "0.1",
        "tolerance": "0.01",
        "max_seconds": "1.0",
        "rewards": "'bernoulli'",
    },
    "bp.bounds.predicted_samples": {
        "problem": "MDP.problem",
        "gap": "0.1",
        "epsilon": "0.1",
        "delta": "0.1",
        "leverage": "None",
    },
    "bp.bounds.expected_samples_bound": {
        "problem": "MDP.problem",
        "gap": "0.1",
        "epsilon": "0.1",
        "delta": "0.1",
        "grid_ratio": "1.05",
    },
    "bp.bounds.time_upper_bound": {
        "problem": "MDP.problem",
        "gap": "0.1",
        "epsilon": "0.1",
        "leverage": "None",
        "divergence_constant": "1.2",
    },
    "bp.bounds.concentration_rounds": {
        "dimension": "3",
        "delta": "0.1",
        "accuracy": "0.5",
        "design_tolerance": "0.0",
    },
    "bp.bounds.applicable_bounds": {"problem": "MDP.problem", "epsilon": "0.1", "delta": "0.1"},
    "bp.bounds.confidence_divergence": {"delta": "0.1"},
    "bp.bounds.design_phase": {"dimension": "3"},
    "bp.bounds.model_divergence": {"mdp": "MDP", "other": "MDP"},
    "bp.bounds.table_rows": {"mdp": "MDP", "bound": "bound()", "literature": "True"},
    "bp.report.report_page": {"source": "'run.db'", "name": "None", "model": "None", "bounds": "False", "grid": "None"},
    "bp.report.write_report": {"source": "'run.db'", "path": "'page.html'", "bounds": "False"},
    "bp.report.estimate": {"problem": "MDP.problem", "tally": "TALLY", "policy": "None", "scale": "1.0"},
    "bp.instances.load": {"name": "'riverswim'", "states": "4", "discount": "0.9"},
    "bp.instances.riverswim": {"states": "4", "left_reward": "0.05", "discount": "0.9", "horizon": "None"},
    "bp.instances.tabular": {
        "transitions": "MDP.transitions",
        "rewards": "np.clip(MDP.rewards, 0, 1)",
        "mask": "None",
        "discount": "0.9",
        "horizon": "None",
    },
    "bp.instances.simplex": {
        "states": "5",
        "actions": "2",
        "dimension": "3",
        "concentration": "1.0",
        "spread": "1.0",
        "seed": "0",
        "horizon": "None",
    },
    "bp.instances.hard_episodic": {"dimension": "4", "horizon": "4", "tilt": "0.1", "seed": "0"},
    "bp.instances.queue": {"capacity": "4", "arrival": "0.4", "service_levels": "(0.0, 1.0)", "waiting_cost": "0.5"},
    "bp.algorithms.GSS": {"design_tolerance": "0.01", "check_ratio": "1.1", "sampling": "'rounded'"},
    "bp.algorithms.Tight": {"design_tolerance": "0.01", "check_ratio": "1.1", "value_span": "2.0", "lag_share": "0.3"},
    "bp.algorithms.Adaptive": {"redesign_ratio": "1.3", "exploration": "0.1"},
}

_VALUES = (
    *("None", "True", "-1", "0", "1", "2.5", "-0.0", "10**9", "10**400", "-(10**400)", "1e308", "1e-320"),
    *("float('nan')", "float('inf')", "-float('inf')", "1j", "'x'", "''", "'\\0'", "'a' * 100000", "b'x'", "[]", "{}"),
    *("[[]]", "[None]", "[1, 'x']", "[[1], [2, 3]]", "object()", "lambda: 1", "print", "set()", "Ellipsis", "type"),
    *("np.nan * np.ones((3, 2, 3))", "np.zeros((3, 2, 3))", "np.zeros((0, 2, 3))", "np.full((3, 2, 3), 1e308)"),
    *("np.array('x')", "np.array([object()])", "np.ma.masked", "np.datetime64('2020')", "np.ones(3, '>f2')"),
    *("np.array([[0, 0]])", "np.array([-1, 5])", "np.float32(0.5)", "np.int8(-5)", "EPISODIC", "EPISODIC.problem"),
    *("MDP", "MDP.problem", "SIM", "TALLY", "'/'", "'/dev/null'", "'/nonexistent/x'", "[10**400]", "range(3)"),
    *("np.broadcast_to(0.5, (10**6, 10**6))", "__import__('decimal').Decimal('NaN')", "Exception('x')"),
)

_COMMANDS = {
    "identify": ["two-state", "--epsilon", "1", "--delta", "0.1", "--max-samples", "2000", "--seed", "0"],
    "resume": ["run.db", "--max-seconds", "2"],
    "studies": ["run.db"],
    "verify": ["certificate.json"],
    "report": ["run.db", "--no-bounds"],
    "watch": ["missing.db", "--no-open"],
    "bounds": ["two-state", "--epsilon", "0.5", "--delta", "0.1", "--max-seconds", "1"],
    "design": ["two-state"],
    "check": ["two-state", "--samples", "5", "--seed", "0"],
    "instances": [],
    "demo": ["--output", "/dev/null/x"],
    "algorithms": [],
    "compare": [
        *("two-state", "--algorithms", "tight", "--epsilon", "1", "--delta", "0.1"),
        *("--runs", "1", "--max-samples", "2000", "--no-bounds"),
    ],
}
_WORDS = (
    *("", " ", "x", "-1", "0", "1", "2.5", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 400, "1_0", "0x10", "٣", "½"),
    *("é‮", "\udcff", "'; DROP TABLE study; --", "<script>", "/", "/dev/null", "/dev/zero", "/nonexistent/x", "."),
    *("run.db", "certificate.json", "model.npz", "two-state", "a" * 5000, "--", "-", "%s", "\n", "tight,tight", "~"),
)
_NO_SUCCESS = {"demo": {"--output"}, "watch": {"file"}}  # what would run for long if it were right


def python_calls() -> list[str]:
    """Every argument of every call with every value, as text."""
    found = []
    for function, arguments in _CALLS.items():
        for name in arguments:
            for value in _VALUES:
                if (name, value) == ("progress", "lambda: 1"):  # what a user's function raises is the user's
                    continue
                listed = ", ".join(f"{key}={given}" for key, given in (arguments | {name: value}).items())
                found.append(f"{function}({listed})")
    return found


def command_lines() -> list[list[str]]:
    """Every option of every command with every word."""
    found = []
    for name, base in _COMMANDS.items():
        for parameter in commands.commands[name].params:
            if getattr(parameter, "is_flag", False) or parameter.opts[0] in _NO_SUCCESS.get(name, ()):
                continue
            for word in _WORDS:
                if isinstance(parameter, click.Argument):
                    rest = base[1:] if base and not base[0].startswith("-") else base
                    found.append([name, *rest, "--", word] if word.startswith("-") else [name, word, *rest])
                else:
                    found.append([name, *base, parameter.opts[0], word])
    return found


def run_python(call: str) -> None:
    """Make one call; what it may raise is up to the caller."""
    with np.errstate(all="ignore"):
        eval(call)


def run_command(arguments: list[str]) -> str:
    """Give one command in this process; return what is wrong with how it ended."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with mock.patch.object(sys, "argv", ["bestpolicy", *arguments]), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        lines = [line for line in err.getvalue().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("Error: ")]
        if ended.code == 2 and (len(errors) != 1 or lines[-1] != errors[0]):
            return f"exit code 2 with {len(errors)} error lines of {len(lines)}: {err.getvalue()[-300:]}"
        if ended.code not in (0, 1, 2, 3, 4, None):
            return f"exit code {ended.code}"
    return ""


def prepare() -> None:
    """Write the files that calls and commands speak of into the working folder."""
    MDP.save("model.npz")
    result = bp.identify(SIM, epsilon=1.0, delta=0.1, algorithm="tight", seed=0, store="run.db")
    result.save("certificate.json")


def attack(count: int, seed: int = 0, interfaces: tuple[str, ...] = ("calls", "commands")) -> Found:
    """Try bad inputs, as many of the Python interface as of the command line."""
    found, chance = Found("bad inputs"), random.Random(seed)
    calls, lines = python_calls(), command_lines()
    chance.shuffle(calls)
    chance.shuffle(lines)
    share = count // len(interfaces)
    calls, lines = calls[: share * ("calls" in interfaces)], lines[: share * ("commands" in interfaces)]
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            prepare()
            original = {name: Path(name).read_bytes() for name in os.listdir(".")}
            for call in calls:
                found.note(call, attempt(partial(run_python, call)))
                _restore(original)
            for line in lines:
                found.note(f"run_command({line!r})", attempt(partial(run_command, line)))
                _restore(original)
        finally:
            os.chdir(home)
    return found


def _restore(original: dict[str, bytes]) -> None:
    """Undo what an attack did to the files."""
    for name in os.listdir("."):
        if name not in original and os.path.isfile(name):
            os.unlink(name)
    for name, content in original.items():
        if not os.path.exists(name) or Path(name).read_bytes() != content:
            Path(name).write_bytes(content)
