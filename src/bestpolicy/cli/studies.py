"""`bestpolicy resume` and `studies`: files in which runs survive."""

from __future__ import annotations

from math import inf

import click
from rich.table import Table

from bestpolicy.cli.console import JSON_HELP, echo_json, notes, output
from bestpolicy.cli.counts import Count
from bestpolicy.cli.identify import run_study
from bestpolicy.cli.progress import Replay
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP
from bestpolicy.study import Study
from bestpolicy.study import studies as study_records
from bestpolicy.study.claim import at_most


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--name", help="Name of the study, if the file has several.")
@click.option("--model", help="Where the model is now, if not where it was.")
@click.option("--max-samples", type=Count(), help="A new budget of simulator calls, those so far included.")
@click.option("--max-seconds", type=float, help="Budget of time.")
@click.option("--workers", type=Count(), help="Simulate on this many processes; pays if it began with --workers.")
@click.option("--certificate", type=click.Path(dir_okay=False), help="Write a certificate for `bestpolicy verify`.")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
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

    A study that has ended is answered from its file at once. Any other takes up what its file says was asked, answered
    and decided, on whatever machine. Exit codes are those of `bestpolicy identify`.

    For a simulator of your own, use `bestpolicy.Study.resume` and `bestpolicy.drive` in Python.
    """
    with Replay(notes()) as replay:
        study = Study.resume(file, name, max_samples=max_samples, progress=replay.show)
    try:
        source = model or study.settings.origin.get("model", "")
        mdp = _model_of(study, file, source, given=model is not None)
        return run_study(study, mdp, source, file, max_seconds, workers, certificate, as_json)
    finally:
        study.close()


def _model_of(study: Study, file: str, source: str, given: bool) -> LinearMDP | None:
    """Load the model of a study; a study that has ended can do without it."""
    needed = given or not study.done
    if "model" not in study.settings.origin:
        if not needed:
            return None
        raise InvalidInput(
            f"{file} was not written by 'bestpolicy identify', so its simulator is not known here. Go on in Python: "
            f"bestpolicy.drive(bestpolicy.Study.resume({file!r}), your_simulator)."
        )
    try:
        mdp = load_model(source)
    except InvalidInput as error:
        if not needed:
            return None
        raise InvalidInput(
            f"the model of this study cannot be loaded: {error} If it has moved: --model PATH."
        ) from None
    if mdp.fingerprint == study.settings.origin["fingerprint"]:
        return mdp
    if not needed:
        return None
    raise InvalidInput(
        f"{source} is not the model of this study: its features, theta, mu or discount differ from those at the "
        "beginning. Give the file as it was (--model PATH), or begin a new study."
    )


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def studies(file: str, as_json: bool) -> None:
    """List the studies in FILE: what they ask, how far they are, how many samples they may still need."""
    listed = study_records(file)
    if as_json:
        echo_json([record.to_dict() for record in listed])
        return
    table = Table("name", "algorithm", "ε", "δ", "samples", "certified ε", "forecast", "outcome", "begun", box=None)
    for record in listed:
        table.add_row(
            record.name,
            record.settings.algorithm,
            f"{record.settings.asked_epsilon:g}",
            f"{record.settings.delta:g}",
            f"{record.samples:,}",
            "–" if record.epsilon == inf else at_most(record.epsilon),
            "too early" if record.forecast is None else f"{record.forecast:.2g}",
            ("not over" if record.result is None else record.outcome) + (", in doubt" * bool(record.settings.doubts)),
            record.created,
        )
    output().print(table)
