"""`bestpolicy identify`: run an algorithm on a model."""

from __future__ import annotations

import shlex
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bestpolicy.algorithms import Algorithm, require_proof
from bestpolicy.cli import options
from bestpolicy.cli.console import INTERRUPTED, UNCERTIFIED, echo_json, notes, output, say
from bestpolicy.cli.progress import stop_politely, study_progress
from bestpolicy.cli.simulators import is_simulator, load_simulator
from bestpolicy.errors import BestPolicyError, InvalidInput, SimulatorError, one_line
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import Problem, Units
from bestpolicy.run import drive
from bestpolicy.run.arguments import calls_a_function, numbered_start, suited
from bestpolicy.run.identify import CALLS_PER_QUERY as OWN_CALLS_PER_QUERY
from bestpolicy.run.identify import LARGEST_BATCH
from bestpolicy.simulators import ExactSimulator, Model
from bestpolicy.study import Outcome, Result, Study
from bestpolicy.study.checked import start_distribution
from bestpolicy.study.patience import until
from bestpolicy.study.result import FINAL, at_most
from bestpolicy.study.settings import absolute_epsilon

CALLS_PER_QUERY = 10**6
_NAME = "study"
_STATES_SHOWN = 25


@click.command()
@click.argument("model")
@options.epsilon_or_share
@options.delta
@options.algorithm
@options.seed
@options.start
@options.max_samples
@options.max_seconds
@options.rewards
@click.option(
    "--linearity",
    type=options.a_number(least=0, below=1),
    help="Share of the calls, at least, that tests whether the features fit; 0 for no test.  [default: 0.05 for a "
    "simulator of your own, unless features are one-hot]",
)
@click.option("--store", type=options.NEW_FILE, help="File in which the run survives (SQLite).")
@click.option("--name", type=options.WORD, default=_NAME, show_default=True, help="Name of the study in that file.")
@options.workers(
    "Simulate on this many processes, a million calls at a time (a hundred of your own simulator). The answer does not "
    "depend on how many, but differs from that without --workers, which draws whole batches at once."
)
@options.certificate
@options.as_json
def identify(
    model: str, rewards: str, store: str | None, name: str, workers: int | None, certificate: str | None, **how: Any
) -> int:
    """Find a policy of MODEL that is within EPSILON of optimal with probability 1 - DELTA.

    MODEL may also be a simulator of your own, FILE.py:NAME, which is imported: bestpolicy.NamedSimulator(step, …), say,
    or bestpolicy.ResetSimulator(env, …) for an environment that can only be reset and stepped.

    Exit codes: 0 certified, 2 bad input, 3 not certified (the budget is spent, or the features are in doubt), 130
    interrupted (Ctrl-C: what is in flight is finished and what is known by then is printed; a second Ctrl-C stops at
    once).
    """
    if name != _NAME and store is None:
        raise InvalidInput("--name names the study in a file. Give the file, too: --store FILE.")
    own = load_simulator(model) if is_simulator(model) else None
    mdp = None if own is not None else load_model(model)
    problem = own.problem if own is not None else mdp.problem  # type: ignore[union-attr]
    units = Units.of(own)
    max_seconds, as_json = how.pop("max_seconds"), how.pop("as_json")
    how["start"] = typed_start(how["start"], problem, own)
    simulator = own if own is not None else ExactSimulator(mdp, rewards=rewards)  # type: ignore[arg-type]
    how["algorithm"] = suited(how["algorithm"], simulator, start=how["start"] is not None)
    method = how["algorithm"].algorithm
    if mdp is not None:
        most = absolute_epsilon(how["epsilon"], problem, units)
        _warn_of_small_budget(notes(), mdp, method, most, how["delta"], how["max_samples"])
    if certificate is not None:
        require_proof(method)
    calls = CALLS_PER_QUERY if mdp is not None else OWN_CALLS_PER_QUERY
    known = {"simulator": model}
    if mdp is not None:
        known = {"model": model, "fingerprint": mdp.fingerprint, "rewards": rewards}
        how["linearity"] = how["linearity"] or 0.0  # a model is linear
    begun = time.monotonic()
    with until(None if max_seconds is None else begun + max_seconds):
        study = Study(
            problem,
            **how,
            calls_per_query=None if workers is None else calls,
            store=store,
            name=name,
            units=units,
            largest_batch=LARGEST_BATCH if calls_a_function(own) and how["max_samples"] is None else None,
            origin=known,
        )
    left = None if max_seconds is None else max(1e-9, begun + max_seconds - time.monotonic())
    limits = {"max_seconds": left, "workers": workers}
    return run_study(study, mdp, model, store, simulator=own, **limits, certificate=certificate, as_json=as_json)


def typed_start(start: Any, problem: Problem, own: Any) -> Any:
    """Return what was typed as a start by the numbers of states."""
    if start == "uniform":
        return [1 / problem.states] * problem.states
    return start if own is None else numbered_start(own, start)


def run_study(
    study: Study,
    mdp: LinearMDP | None,
    model: str,
    store: str | None,
    *,
    simulator: Model | None = None,
    max_seconds: float | None,
    workers: int | None,
    certificate: str | None,
    as_json: bool,
) -> int:
    """Drive a study to its end with the model's own simulator, print the result, return the exit code.

    All that was typed must have been checked: a refused command leaves no trace. Without a model or a simulator the
    study must have ended.
    """
    err = notes()
    if simulator is None and mdp is not None:
        simulator = ExactSimulator(mdp, rewards=study.settings.origin["rewards"])  # type: ignore[arg-type]
    if study.done or simulator is None:
        err.print("Note: this study has ended; its file says:")
        result = study.result()
    else:
        executor = None if workers is None else partial(ProcessPoolExecutor, workers, get_context("spawn"))
        try:
            with study_progress(err) as progress, stop_politely(study):
                result = drive(study, simulator, max_seconds=max_seconds, executor=executor, progress=progress)
        except SimulatorError as error:
            if store is None:
                raise
            go_on = _go_on(study, mdp, model, store, certificate)
            kept = SimulatorError(f"{one_line(error)} (What was measured is kept: mend it, and go on with: {go_on})")
            raise kept from error
    failure = None if certificate is None else _save(err, result, certificate)  # first: a pipe may be closed by now
    if as_json:
        echo_json(result.to_dict(model))
    else:
        _print_result(output(), study.problem, mdp, result)
    if failure is not None:
        raise failure
    if store is not None and not result.certified and result.outcome not in FINAL:
        more = f" --max-samples {_larger_budget(study):.2g}" if result.outcome is Outcome.BUDGET else ""
        say(f"To go on: {_go_on(study, mdp, model, store, certificate, more)}", err=True)
    if result.outcome is Outcome.INTERRUPTED:
        return INTERRUPTED
    return 0 if result.certified else UNCERTIFIED


def _go_on(study: Study, mdp: LinearMDP | None, model: str, store: str, certificate: str | None, more: str = "") -> str:
    """Return the command that goes on with a study."""
    more += f" --model {shlex.quote(model)}" if mdp is None else ""
    more += "" if certificate is None else f" --certificate {shlex.quote(certificate)}"
    return f"bestpolicy resume {shlex.quote(store)} --name {shlex.quote(study.name)}{more}"


def _save(err: Console, result: Result, certificate: str) -> BestPolicyError | None:
    """Write the certificate and say what it is worth, or return why that failed."""
    if not result.epsilon < float("inf"):
        err.print(f"Note: {certificate} was not written, because nothing is certified so far.")
        return None
    try:
        result.save(certificate)
    except BestPolicyError as error:
        return error
    if not result.certified:
        known, asked = at_most(result.epsilon), f"{result.asked_epsilon:g}"
        err.print(f"Note: {certificate} certifies ε = {known}, not the {asked} that was asked.")
    return None


def _larger_budget(study: Study) -> float:
    """Simulator calls that should do, with a margin; ten times what was used if nothing is known."""
    forecast = study.forecast()
    return max(1.5 * forecast, 1.5 * study.samples) if 0 < forecast < float("inf") else 10.0 * study.samples


def _warn_of_small_budget(
    err: Console, mdp: LinearMDP, method: Algorithm, epsilon: float, delta: float, budget: int | None
) -> None:
    if budget is None:
        return
    needed = method.predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    if needed > budget:
        err.print(
            f"Note: {method.name} is predicted to need about {needed:.2g} simulator calls here (gap {mdp.gap:.3g}), "
            f"more than the budget of {budget:.2g}."
        )


def _print_result(console: Console, problem: Problem, mdp: LinearMDP | None, result: Result) -> None:
    console.print(repr(problem) if mdp is None else f"{mdp.name}: {problem!r}")
    console.print(f"{result.outcome}: {result.explanation}", style="bold green" if result.certified else "bold yellow")
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    per_round = f" ({result.rounds:,} rounds)" if problem.horizon is not None else ""
    why = f" ({result.chosen})" if result.chosen else ""
    facts.add_row("algorithm", f"{result.algorithm}{why}, seed {result.seed}")
    facts.add_row("simulator calls", f"{result.samples:,}{per_round} in {result.seconds:.2f} s")
    if result.broken_episodes:
        facts.add_row("episodes that broke off", f"{result.broken_episodes:,}, each counted as a return of 0")
    facts.add_row("statistic / threshold", f"{result.statistic:.4g} / {result.threshold:.4g}")
    facts.add_row("estimated gap", f"{result.gap:.4g}")
    if result.linearity is not None:
        facts.add_row("test of the features", f"{result.linearity.calls:,} of the calls")
    if mdp is not None:
        start = None if result.origin is None else start_distribution(problem, result.origin.settings)
        where = "" if start is None else f" {result.where}"
        loss = mdp.loss(result.policy, start=start)
        facts.add_row("true loss", f"{loss:.3g}{where} (known here because the model is)")
    console.print(facts)
    for warning in result.warnings:
        console.print(f"Warning: {warning}", style="yellow")
    if result.names is not None:
        console.print(str(result).splitlines()[-1])
        return
    columns = result.policy.shape[-1]  # an environment's own states, which the problem has more than
    if columns > _STATES_SHOWN:
        console.print(f"policy: {columns} states; use --json to see it")
        return
    names = None if result.origin is None else result.origin.settings.units.states
    policy = Table(title="policy", title_justify="left", box=None, padding=(0, 1))
    policy.add_column("step" if result.policy.ndim == 2 else "state")
    for state in range(columns):
        policy.add_column(escape(str(state if names is None else names[state])), justify="right")
    for stage, row in enumerate(result.policy.reshape(-1, columns)):
        policy.add_row(str(stage) if result.policy.ndim == 2 else "action", *map(str, row))
    console.print(policy)
