"""`bestpolicy resume`, `studies` and `rescue`: files in which runs survive."""

from __future__ import annotations

import shlex
from math import inf
from typing import Any

import click
from rich.table import Table

from bestpolicy.algorithms import ALGORITHMS, require_proof
from bestpolicy.cli import options
from bestpolicy.cli.console import echo_json, notes, output
from bestpolicy.cli.identify import run_study
from bestpolicy.cli.progress import reading_progress
from bestpolicy.cli.simulators import is_simulator, load_simulator
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP
from bestpolicy.study import Record, Study
from bestpolicy.study import rescue as rescue_studies
from bestpolicy.study import studies as study_records
from bestpolicy.study.result import at_most
from bestpolicy.study.store import Store


@click.command()
@click.argument("file")
@options.name
@click.option("--model", help="Where the model is now, if not where it was; FILE.py:NAME for a simulator of your own.")
@click.option("--max-samples", type=options.a_count(), help="A new budget of simulator calls, those so far included.")
@options.max_seconds
@options.workers("Simulate on this many processes; pays if it began with --workers.")
@options.certificate
@options.as_json
def resume(
    file: str, name: str | None, model: str | None, max_samples: int | None, certificate: str | None, **how: Any
) -> int:
    """Go on with a study from its FILE; the result is bit for bit that of an uninterrupted run.

    A study that has ended is answered from its file at once. Any other takes up what its file says was asked, answered
    and decided, on whatever machine. Exit codes are those of `bestpolicy identify`.

    A simulator of your own must be named again, --model FILE.py:NAME: no file of studies can make this command run
    a program.
    """
    with Store(file) as store:
        record = store.read(store.find(name))
    if certificate is not None and record.settings.algorithm in ALGORITHMS:
        require_proof(ALGORITHMS[record.settings.algorithm]())
    source = record.settings.origin.get("model", "") if model is None else model
    own = load_simulator(source) if model is not None and is_simulator(source) else None
    mdp, why_not = (None, "") if own is not None else _model_of(record, file, source)
    if why_not and (record.result is None or model is not None or max_samples is not None):
        raise InvalidInput(why_not)  # before the file has a new budget
    with reading_progress(notes()) as progress:
        study = Study.resume(file, record.name, max_samples=max_samples, progress=progress)
    try:
        if why_not and not study.done:
            raise InvalidInput(why_not)
        return run_study(study, mdp, source, file, simulator=own, certificate=certificate, **how)
    finally:
        study.close()


def _model_of(record: Record, file: str, source: str) -> tuple[LinearMDP | None, str]:
    """Load the model of a study, or say why that cannot be done."""
    origin = record.settings.origin
    if "simulator" in origin:
        return None, (
            f"{file} was written with a simulator of your own. Name it again to go on: --model "
            f"{shlex.quote(origin['simulator'])}."
        )
    if "model" not in origin:
        return None, (
            f"{file} was not written by 'bestpolicy identify', so its simulator is not known here. Go on in Python: "
            f"bestpolicy.drive(bestpolicy.Study.resume({file!r}), your_simulator)."
        )
    try:
        mdp = load_model(source)
    except InvalidInput as error:
        return None, f"the model of this study cannot be loaded: {error} If it has moved: --model PATH."
    if mdp.fingerprint == origin["fingerprint"]:
        return mdp, ""
    return None, (
        f"{source} is not the model of this study: its features, theta, mu or discount differ from those at the "
        "beginning. Give the file as it was (--model PATH), or begin a new study."
    )


@click.command()
@click.argument("file")
@options.as_json
def studies(file: str, as_json: bool) -> None:
    """List the studies in FILE: what they ask, how far they are, how many samples they may still need."""
    _show(study_records(file), as_json)


@click.command()
@click.argument("file")
@click.argument("new", type=options.NEW_FILE)
@options.as_json
def rescue(file: str, new: str, as_json: bool) -> None:
    """Copy what is whole of a damaged FILE into the file NEW, and list it.

    Every row of a study is chained to the one before it by a checksum. All rows up to the first that is damaged are
    kept; `bestpolicy resume NEW` goes on from there.
    """
    _show(rescue_studies(file, new), as_json)


def _show(listed: list[Record], as_json: bool) -> None:
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
