"""`bestpolicy bounds`: what no algorithm can beat, beside what ours are predicted to need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bestpolicy._numerics.inputs import number
from bestpolicy.bounds.certified import LowerBound
from bestpolicy.bounds.lower import Progress, lower_bound
from bestpolicy.bounds.summary import summarise, table_rows
from bestpolicy.cli.console import JSON_HELP, echo_json, notes, output
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP


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
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Picture to write (SVG, PNG); needs bestpolicy[report].",
)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
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
    is good in MODEL is good. If MODEL is episodic there is a second bound, on algorithms that sample every step
    equally often, in rounds of one call per step. Ctrl-C ends the search; the best bounds so far are printed.
    """
    mdp = load_model(model)
    number("max_seconds", max_seconds, above=0)
    number("tolerance", tolerance, above=0)
    if figure is not None and find_spec("matplotlib") is None:  # not after the search
        raise InvalidInput("--figure needs matplotlib: pip install 'bestpolicy[report]'.")
    err = notes()
    with err.status("searching for alternatives …") if err.is_terminal else _Quiet() as status:

        def show(progress: Progress) -> None:
            status.update(f"T ≥ {progress.characteristic_time:.4g} from {progress.alternatives} alternatives")

        bound = lower_bound(
            mdp, epsilon, delta, tolerance=tolerance, max_seconds=max_seconds, rewards=rewards, callback=show
        )
    if figure is not None:
        _draw(mdp, bound, figure)
    if as_json:
        echo_json(summarise(mdp, bound) | {"model": model})
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


def _draw(mdp: LinearMDP, bound: LowerBound, path: Path) -> None:
    from bestpolicy.report.figures import bounds_figure

    try:
        bounds_figure(mdp, bound).savefig(path)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot write {path}: {error}. Give a file that ends in .svg, .png or .pdf.") from None
