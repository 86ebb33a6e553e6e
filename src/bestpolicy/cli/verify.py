"""`bestpolicy verify`: check someone's certificate."""

from __future__ import annotations

import click

from bestpolicy.cli import options
from bestpolicy.cli.console import NOT_VALID, echo_json, say
from bestpolicy.instances.loading import load_model
from bestpolicy.verification import verify as check_certificate


@click.command()
@click.argument("file")
@click.option("--model", help="The true model, if it is known: also compute the policy's true loss.")
@options.as_json
def verify(file: str, model: str | None, as_json: bool) -> int:
    """Check a certificate FILE: recompute from it alone that the policy is as good as it says.

    Exit codes: 0 valid, 1 not valid, 2 the file cannot be read.
    """
    verdict = check_certificate(file, None if model is None else load_model(model))
    if as_json:
        echo_json(verdict.to_dict())
    else:
        say(verdict)
        for item in verdict.trusted if verdict.valid else []:
            say(f"  taken on trust: {item}")
    return 0 if verdict.valid else NOT_VALID
