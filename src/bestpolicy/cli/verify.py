"""`bestpolicy verify`: check someone's certificate."""

from __future__ import annotations

import click

from bestpolicy.cli import options
from bestpolicy.cli.console import NOT_VALID, echo_json, say
from bestpolicy.errors import LIMIT_GB
from bestpolicy.instances.loading import load_model
from bestpolicy.verification import verify as check_certificate


@click.command()
@click.argument("file")
@click.option("--model", help="The true model, if it is known: also compute the policy's true loss.")
@click.option("--store", help="The file of studies it comes from: shows that what had to be fixed before sampling was.")
@click.option(
    "--limit-gb",
    type=options.a_number(above=0),
    default=LIMIT_GB,
    show_default=True,
    help="How much memory the file may ask for; about a minute of work comes with each GB.",
)
@options.as_json
def verify(file: str, model: str | None, store: str | None, limit_gb: float, as_json: bool) -> int:
    """Check a certificate FILE: recompute from it alone that the policy is as good as it says.

    Exit codes: 0 valid, 1 not valid, or in doubt (the run found that its features do not fit), 2 the file cannot be
    read, or asks for more than the limit.
    """
    known = None if model is None else load_model(model)
    verdict = check_certificate(file, known, store=store, limit_gb=limit_gb)
    if as_json:
        echo_json(verdict.to_dict())
    else:
        say(verdict)
        if verdict.order_shown:
            say("  shown by the study's file: all that had to be fixed before the samples was")
        for item in verdict.trusted if verdict.valid else []:
            say(f"  taken on trust: {item}")
    return 0 if verdict.valid and not verdict.in_doubt else NOT_VALID
