"""`bestpolicy identify`: run an algorithm on a model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from scipy.optimize import nnls

from bestpolicy.algorithms import ALGORITHMS, find_algorithm, require_proof
from bestpolicy.cli.console import notes, output
from bestpolicy.cli.models import Count, load_model
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.run import drive
from bestpolicy.simulators import ExactSimulator
from bestpolicy.study import Outcome, Result, Study

UNCERTIFIED = 3
INTERRUPTED = 130
CALLS_PER_QUERY = 10**6
_STATES_SHOWN = 25


@click.command()
@click.argument("model")
@click.option("--epsilon", type=float, required=True, help="How far from optimal the policy may be; 0 for optimal.")
@click.option("--delta", type=float, required=True, help="Allowed probability of error, between 0 and 1.")
@click.option("--algorithm", help=f"One of {', '.join(ALGORITHMS)}.  [default: gss, or gss-e if episodic]")
@click.option("--seed", type=Count(), help="The same seed gives the same answer.  [default: drawn and printed]")
@click.option("--max-samples", type=Count(), help="Budget of simulator calls, e.g. 1e8.")
@click.option("--max-seconds", type=float, help="Budget of time.")
@click.option(
    "--rewards",
    type=click.Choice(["bernoulli", "deterministic"]),
    default="bernoulli",
    show_default=True,
    help="Law of the simulated rewards around their means.",
)
@click.option("--store", type=click.Path(dir_okay=False), help="File in which the run survives (SQLite).")
@click.option("--name", default="study", show_default=True, help="Name of the study in that file.")
@click.option("--workers", type=Count(), help="Simulate on this many processes; the answer does not depend on it.")
@click.option("--certificate", type=click.Path(dir_okay=False), help="Write a certificate for `bestpolicy verify`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def identify(
    model: str,
    epsilon: float,
    delta: float,
    algorithm: str | None,
    seed: int | None,
    max_samples: int | None,
    max_seconds: float | None,
    rewards: Any,
    store: str | None,
    name: str,
    workers: int | None,
    certificate: str | None,
    as_json: bool,
) -> int:
    """Find a policy of MODEL that is within EPSILON of optimal with probability 1 - DELTA.

    Exit codes: 0 certified, 2 bad input, 3 budget spent without a certificate, 130 interrupted (Ctrl-C: what is in
    flight is finished and what is known by then is printed; a second Ctrl-C stops at once).
    """
    mdp = load_model(model)
    _warn_of_small_budget(notes(), mdp, algorithm, epsilon, delta, max_samples)
    if certificate is not None:
        require_proof(find_algorithm(algorithm, mdp.problem))  # before the study leaves a trace in a file
    study = Study(
        mdp.problem,
        epsilon=epsilon,
        delta=delta,
        algorithm=algorithm,
        seed=seed,
        max_samples=max_samples,
        calls_per_query=None if workers is None else CALLS_PER_QUERY,
        store=store,
        name=name,
        origin={"model": model, "fingerprint": mdp.fingerprint, "rewards": rewards},
    )
    return run_study(study, mdp, rewards, model, store, max_seconds, workers, certificate, as_json)


def run_study(
    study: Study,
    mdp: LinearMDP,
    rewards: Any,
    model: str,
    store: str | None,
    max_seconds: float | None,
    workers: int | None,
    certificate: str | None,
    as_json: bool,
) -> int:
    """Drive a study to its end with the model's own simulator, print the result, return the exit code."""
    if certificate is not None and not os.access(os.path.dirname(certificate) or ".", os.W_OK):
        raise InvalidInput(f"cannot write {certificate}. Give a path in a folder that exists.")  # not after the run
    if certificate is not None:
        require_proof(study.algorithm)
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be a whole number of at least 1. Got {workers} instead.")
    executor = None if workers is None else partial(ProcessPoolExecutor, workers, get_context("spawn"))
    name = study.name
    with Progress(notes()) as progress, stop_politely(study):
        result = drive(
            study,
            ExactSimulator(mdp, rewards=rewards),
            max_seconds=max_seconds,
            executor=executor,
            progress=progress.show,
        )
    if as_json:
        click.echo(json.dumps(result.to_dict(model)))
    else:
        _print_result(output(), mdp, result)
    if certificate is not None and result.epsilon < float("inf"):
        result.save(certificate)
    if store is not None and not result.certified:
        click.echo(f"To go on: bestpolicy resume {shlex.quote(store)} --name {shlex.quote(name)}", err=True)
    if result.outcome is Outcome.INTERRUPTED:
        return INTERRUPTED
    return 0 if result.certified else UNCERTIFIED


@contextmanager
def stop_politely(study: Study) -> Iterator[None]:
    """Let the first Ctrl-C finish what is in flight; the second one stops at once."""

    def first(*_: object) -> None:
        study.request_stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class Progress:
    """One line on a terminal: samples so far, how far the statistic is, the gap, the end in sight."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._history: list[tuple[float, float]] = [(time.monotonic(), 0.0)]
        self._shown = 0.0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, study: Study) -> None:
        """Show where the study stands."""
        if self._live is None or not study.checks:
            return
        now = time.monotonic()
        self._history.append((now, float(study.samples)))
        if now - self._shown >= 0.1:
            self._shown = now
            line = Text(progress_line(study, self._history), no_wrap=True, overflow="ellipsis")
            self._live.update(line, refresh=True)


def progress_line(study: Study, history: list[tuple[float, float]]) -> str:
    """Describe the state of a study in one line; `history` has (time, samples) after each look at the data."""
    check = study.checks[-1]
    done = min(1.0, check.statistic / check.threshold) if check.threshold > 0 else 1.0
    bar = "█" * round(10 * done) + "░" * (10 - round(10 * done))
    forecast = study.forecast()
    end = "end not in sight"
    if 0 < forecast < float("inf"):
        end = f"~{forecast:.2g} in all"
        left = seconds_left(history, forecast)
        end += "" if left is None else f", {left:.0f} s left"
    return f"{study.samples:.3g} samples {bar} {done:.2f}, gap {check.gap:.2g}, {end}"


def seconds_left(history: list[tuple[float, float]], forecast: float) -> float | None:
    """Extrapolate a run whose time goes into looks (a fixed price each) and into samples (a price each)."""
    times, samples = np.array(history[-30:]).T
    if len(times) < 4 or samples[-2] <= 0:
        return None
    looks = np.arange(len(times))
    price, _ = nnls(np.column_stack([looks, samples - samples[0]]), times - times[0])
    growth = max(samples[-1] / samples[-2], 1.001)
    looks_left = max(0.0, np.log(forecast / samples[-1]) / np.log(growth))
    return float(price[0] * looks_left + price[1] * max(0.0, forecast - samples[-1]))


def _warn_of_small_budget(
    err: Console, mdp: LinearMDP, algorithm: str | None, epsilon: float, delta: float, budget: int | None
) -> None:
    if budget is None or budget < 1 or not epsilon >= 0 or not 0 < delta < 1:
        return
    method = find_algorithm(algorithm, mdp.problem)
    needed = method.predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    if needed > budget:
        err.print(
            f"Note: {method.name} is predicted to need about {needed:.2g} simulator calls here (gap {mdp.gap:.3g}), "
            f"more than the budget of {budget:.2g}."
        )


def _print_result(console: Console, mdp: LinearMDP, result: Result) -> None:
    console.print(f"{mdp.name}: {mdp.problem!r}")
    console.print(f"{result.outcome}: {result.explanation}", style="bold green" if result.certified else "bold yellow")
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    per_round = f" ({result.rounds:,} rounds)" if mdp.problem.horizon is not None else ""
    facts.add_row("algorithm", f"{result.algorithm}, seed {result.seed}")
    facts.add_row("simulator calls", f"{result.samples:,}{per_round} in {result.seconds:.2f} s")
    facts.add_row("statistic / threshold", f"{result.statistic:.4g} / {result.threshold:.4g}")
    facts.add_row("estimated gap", f"{result.gap:.4g}")
    facts.add_row("true loss", f"{mdp.loss(result.policy):.3g} (known here because the model is)")
    console.print(facts)
    if mdp.problem.states > _STATES_SHOWN:
        console.print(f"policy: {mdp.problem.states} states; use --json to see it")
        return
    policy = Table(title="policy", title_justify="left", box=None, padding=(0, 1))
    policy.add_column("step" if result.policy.ndim == 2 else "state")
    for state in range(mdp.problem.states):
        policy.add_column(str(state), justify="right")
    for stage, row in enumerate(result.policy.reshape(-1, mdp.problem.states)):
        policy.add_row(str(stage) if result.policy.ndim == 2 else "action", *map(str, row))
    console.print(policy)
