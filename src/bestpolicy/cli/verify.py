"""`bestpolicy verify`: check someone's certificate."""

from __future__ import annotations

import click

from bestpolicy.cli.console import JSON_HELP, echo_json, plain
from bestpolicy.errors import LIMIT_GB
from bestpolicy.instances.loading import load_model
from bestpolicy.verification import verify as check_certificate

NOT_VALID = 1


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--model", help="The true model, if it is known: also compute the policy's true loss.")
@click.option(
    "--limit-gb",
    type=float,
    default=LIMIT_GB,
    show_default=True,
    help="How much memory the file may ask for; about a minute of work comes with each GB.",
)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def verify(file: str, model: str | None, limit_gb: float, as_json: bool) -> int:
    """Check a certificate FILE: recompute from it alone that the policy is as good as it says.

    Exit codes: 0 valid, 1 not valid, 2 the file cannot be read, or asks for more than the limit.
    """
    found = check_certificate(file, None if model is None else load_model(model), limit_gb=limit_gb)
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(plain(str(found)))
        for item in found.trusted if found.valid else []:
            click.echo(f"  taken on trust: {plain(item)}")
    return 0 if found.valid else NOT_VALID
