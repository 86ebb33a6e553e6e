"""`bestpolicy bounds`: what no algorithm can beat, beside what ours are predicted to need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bestpolicy.bounds.lower import Progress, lower_bound, verification_floor
from bestpolicy.bounds.summary import summarise, table_rows
from bestpolicy.cli import options
from bestpolicy.cli.console import echo_json, notes, output
from bestpolicy.cli.progress import changing_line
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.loading import load_model


@click.command()
@click.argument("model")
@options.epsilon
@options.delta
@click.option(
    "--max-seconds", type=options.a_number(above=0), default=60.0, show_default=True, help="Give the best bound then."
)
@click.option(
    "--tolerance", type=options.a_number(above=0), default=1e-3, show_default=True, help="Stop at this relative gap."
)
@options.rewards
@click.option("--literature", is_flag=True, help="List the worst-case bounds of the literature too.")
@click.option("--figure", type=options.NEW_FILE, help="Picture to write (SVG, PNG, PDF); needs bestpolicy[report].")
@options.as_json
def bounds(model: str, literature: bool, figure: str | None, as_json: bool, **asked: Any) -> None:
    """Bound the samples that any algorithm needs on MODEL, on average, to be (EPSILON, DELTA)-correct.

    The bound is certified: each alternative model behind it was verified to be a linear MDP in which no policy that
    is good in MODEL is good. If MODEL is episodic there is a second bound, on algorithms that sample every step
    equally often, in rounds of one call per step. Ctrl-C ends the search; the best bounds so far are printed.

    With EPSILON > 0 there are several right answers, and the bound is weaker than what any of them takes. Beside it
    stands what it takes to verify the optimal policy as DELTA goes to 0: that is not a bound at this DELTA.
    """
    mdp = load_model(model)
    if figure is not None:
        _check_figure(figure)  # not after the search
    with changing_line(notes()) as show:

        def follow(progress: Progress) -> None:
            show(f"T ≥ {progress.characteristic_time:.4g} from {progress.alternatives} alternatives")

        bound = lower_bound(mdp, callback=follow, **asked)
        floor = None
        if asked["epsilon"] > 0 and bound.samples_lower_bound > 0 and not bound.interrupted:
            policy = mdp.plan.policy if mdp.problem.horizon is not None else mdp.plan.policy[0]
            limits = {"max_seconds": asked["max_seconds"] / 3, "rewards": asked["rewards"]}
            floor = verification_floor(mdp, policy, asked["epsilon"], **limits)
    if figure is not None:
        from bestpolicy.report import bounds_figure

        bounds_figure(mdp, bound).savefig(figure)
    if as_json:
        echo_json(summarise(mdp, bound, floor) | {"model": model})
        return
    console = output()
    console.print(f"{mdp.name}: {mdp.problem!r}, gap {mdp.gap:.3g}; ε = {asked['epsilon']:g}, δ = {asked['delta']:g}")
    table = Table("", "simulator calls", "ratio", "", box=None)
    for row in table_rows(mdp, bound, literature=literature, floor=floor):
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(row.what, f"{row.samples:.4g}", ratio, row.note)
    console.print(table)
    if bound.closest is not None:
        console.print("closest alternative: " + bound.closest.describe(mdp.problem.horizon is not None))
    console.print(f"{bound.reason} after {bound.seconds:.1f} s. {bound.assumptions}")


def _check_figure(path: str) -> None:
    if find_spec("matplotlib") is None:
        raise InvalidInput("--figure needs matplotlib: pip install 'bestpolicy[report]'.")
    if Path(path).suffix not in (".svg", ".png", ".pdf"):
        raise InvalidInput(f"figure must end with .svg, .png or .pdf. Got {path!r} instead.")
