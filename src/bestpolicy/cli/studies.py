"""`bestpolicy resume` and `studies`: files in which runs survive."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Table

from bestpolicy.algorithms import make_algorithm
from bestpolicy.cli.console import output
from bestpolicy.cli.identify import run_study
from bestpolicy.cli.models import Count, load_model
from bestpolicy.errors import InvalidInput
from bestpolicy.store import Record, Store
from bestpolicy.study import Study


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--name", help="Name of the study, if the file has several.")
@click.option("--model", help="Where the model is now, if not where it was.")
@click.option("--max-samples", type=Count(), help="A new budget of simulator calls, in all.")
@click.option("--max-seconds", type=float, help="Budget of time.")
@click.option("--workers", type=Count(), help="Simulate on this many processes.")
@click.option("--certificate", type=click.Path(dir_okay=False), help="Write a certificate for `bestpolicy verify`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def resume(
    file: str,
    name: str | None,
    model: str | None,
    max_samples: int | None,
    max_seconds: float | None,
    workers: int | None,
    certificate: str | None,
    as_json: bool,
) -> int:
    """Go on with a study from its FILE; the result is bit for bit that of an uninterrupted run.

    For a simulator of your own, use `bestpolicy.Study.resume` and `bestpolicy.drive` in Python.
    """
    study = Study.resume(file, name, max_samples=max_samples)
    try:
        origin = study.origin
        if "model" not in origin:
            raise InvalidInput(f"{file} was not written by 'bestpolicy identify'. Use Study.resume in Python.")
        source = model or origin["model"]
        mdp = load_model(source)
        if mdp.fingerprint != origin["fingerprint"]:
            raise InvalidInput(f"{source} is not the model of this study: it has changed. Give the right one: --model.")
        return run_study(study, mdp, origin["rewards"], source, file, max_seconds, workers, certificate, as_json)
    finally:
        study.close()


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array and nothing else.")
def studies(file: str, as_json: bool) -> None:
    """List the studies in FILE: what they ask, how far they are, how many samples they may still need."""
    with Store(file) as store:
        records = [(record, forecast(store, record)) for record in map(store.read, map(store.find, store.names()))]
    if as_json:
        click.echo(json.dumps([asdict(record) | {"forecast": expected} for record, expected in records]))
        return
    table = Table("name", "algorithm", "ε", "δ", "samples", "certified ε", "forecast", "outcome", "begun", box=None)
    for record, expected in records:
        last = record.checks[-1] if record.checks else {}
        known = last.get("epsilon")
        table.add_row(
            record.name,
            record.settings["algorithm"],
            f"{record.settings['epsilon']:g}",
            f"{record.settings['delta']:g}",
            f"{record.samples:,}",
            "–" if known is None else f"{known:g}",
            "–" if expected is None else f"{expected:.2g}",
            record.result["outcome"] if record.result else "not over",
            record.created,
        )
    output().print(table)


def forecast(store: Store, record: Record) -> float | None:
    """Simulator calls that the whole study should need, judged by its last check."""
    if not record.checks or record.checks[-1]["gap"] is None:
        return None
    settings = record.settings
    problem = store.problem(store.find(record.name))
    algorithm = make_algorithm(settings["algorithm"], settings["parameters"])
    scale = settings["reward_scale"]
    needed = algorithm.predicted_samples(
        problem, record.checks[-1]["gap"] / scale, settings["epsilon"] / scale, settings["delta"]
    )
    return needed if 0 < needed < float("inf") else None
