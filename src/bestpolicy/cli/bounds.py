"""`bestpolicy bounds`: what no algorithm can beat, beside what ours are predicted to need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bestpolicy.bounds.lower import Progress, lower_bound
from bestpolicy.bounds.summary import summarise, table_rows
from bestpolicy.cli.console import notes, output
from bestpolicy.cli.models import load_model
from bestpolicy.errors import InvalidInput


@click.command()
@click.argument("model")
@click.option("--epsilon", type=float, required=True, help="How far from optimal the policy may be; 0 for optimal.")
@click.option("--delta", type=float, required=True, help="Allowed probability of error, between 0 and 1.")
@click.option("--max-seconds", type=float, default=60.0, show_default=True, help="Give the best bound found by then.")
@click.option("--tolerance", type=float, default=1e-3, show_default=True, help="Stop at this relative search gap.")
@click.option(
    "--rewards",
    type=click.Choice(["bernoulli", "deterministic"]),
    default="bernoulli",
    show_default=True,
    help="Law of the rewards around their means.",
)
@click.option("--literature", is_flag=True, help="List the worst-case bounds of the literature too.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Picture to write (SVG, PNG).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def bounds(
    model: str,
    epsilon: float,
    delta: float,
    max_seconds: float,
    tolerance: float,
    rewards: Any,
    literature: bool,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Bound the samples that any algorithm needs on MODEL, on average, to be (EPSILON, DELTA)-correct.

    The bound is certified: each alternative model behind it was verified to be a linear MDP in which no policy that
    is good in MODEL is good. Ctrl-C ends the search; the best bound so far is printed.
    """
    mdp = load_model(model)
    if not max_seconds > 0:
        raise InvalidInput(f"max-seconds must be positive. Got {max_seconds} instead.")
    if not tolerance > 0:
        raise InvalidInput(f"tolerance must be positive. Got {tolerance} instead.")
    err = notes()
    with err.status("searching for alternatives …") if err.is_terminal else _Quiet() as status:

        def show(progress: Progress) -> None:
            status.update(f"T* ≥ {progress.characteristic_time:.4g} from {progress.alternatives} alternatives")

        bound = lower_bound(
            mdp, epsilon, delta, tolerance=tolerance, max_seconds=max_seconds, rewards=rewards, callback=show
        )
    if figure is not None:
        _draw(mdp, bound, figure)
    if as_json:
        click.echo(json.dumps(summarise(mdp, bound) | {"model": model}))
        return
    console = output()
    console.print(f"{mdp.name}: {mdp.problem!r}, gap {mdp.gap:.3g}; ε = {epsilon:g}, δ = {delta:g}")
    table = Table("", "simulator calls", "ratio", "", box=None)
    for row in table_rows(mdp, bound, literature=literature):
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(row.what, f"{row.samples:.4g}", ratio, row.note)
    console.print(table)
    if bound.closest is not None:
        console.print("closest alternative: " + bound.closest.describe(mdp.problem.horizon is not None))
    console.print(f"{bound.reason} after {bound.seconds:.1f} s. {bound.assumptions}")


class _Quiet:
    """A status line that nobody sees."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, text: str) -> None:
        """Say nothing."""


def _draw(mdp: Any, bound: Any, path: Path) -> None:
    from bestpolicy.report.figures import bounds_figure

    try:
        bounds_figure(mdp, bound).savefig(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"cannot write {path}: {error}.") from None
