"""`bestpolicy demo`: the main job on the built-in instances."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bestpolicy import instances
from bestpolicy.algorithms import ALGORITHMS
from bestpolicy.bounds.lower import lower_bound
from bestpolicy.cli.console import notes, output
from bestpolicy.cli.progress import Progress
from bestpolicy.errors import InvalidInput
from bestpolicy.report import write_comparison_and_run
from bestpolicy.report.comparison import FORMAT, VERSION
from bestpolicy.run import identify
from bestpolicy.simulators import ExactSimulator

INSTANCES = (
    "queue",
    "inventory",
    "riverswim",
    "simplex",
    "ball",
    "universal",
    "queue-episodic",
    "inventory-episodic",
    "riverswim-episodic",
    "simplex-episodic",
    "ball-episodic",
    "universal-episodic",
)
SHOWN = "riverswim"  # in detail
_BOUND_SECONDS = 0.5


@dataclass(frozen=True)
class Row:
    """One certified run."""

    instance: str
    algorithm: str
    states: int
    actions: int
    dimension: int
    epsilon: float
    delta: float
    certified: bool
    samples: int
    samples_over_formula: float
    true_loss: float
    seconds: float


def run_instance(name: str, delta: float, seed: int, progress: Progress) -> Row:
    """Certify a policy of an instance, within 5 % of the largest possible value."""
    mdp = instances.load(name)
    epsilon = 0.05 * float(mdp.problem.value_limits[0])
    result = identify(ExactSimulator(mdp), epsilon=epsilon, delta=delta, seed=seed, progress=progress.show)
    formula = ALGORITHMS[result.algorithm]().predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    return Row(
        instance=name,
        algorithm=result.algorithm,
        states=mdp.problem.states,
        actions=mdp.problem.actions,
        dimension=mdp.problem.dimension,
        epsilon=epsilon,
        delta=delta,
        certified=result.certified,
        samples=result.samples,
        samples_over_formula=result.samples / formula,
        true_loss=mdp.loss(result.policy),
        seconds=result.seconds,
    )


@click.command()
@click.option(
    "--output", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("results"), show_default=True
)
@click.option("--delta", type=float, default=0.05, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def demo(folder: Path, delta: float, seed: int) -> None:
    """Certify policies of a queue, an inventory, RiverSwim and random families with GSS and GSS-E.

    Asks for 5 % of the largest possible value; writes the table to OUTPUT as JSON and CSV, and a page that compares
    with the algorithm `tight` and with what any algorithm needs.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad path costs nothing
    console = output()
    rows = []
    with Progress(notes()) as progress:
        for name in INSTANCES:
            rows.append(run_instance(name, delta, seed, progress))
    headings = ("instance", "algorithm", "S", "A", "d", "ε", "samples", "samples/formula", "true loss", "seconds")
    table = Table(*headings, box=None)
    for row in rows:
        table.add_row(
            row.instance,
            row.algorithm,
            *map(str, (row.states, row.actions, row.dimension)),
            f"{row.epsilon:g}",
            f"{row.samples:.3g}" + ("" if row.certified else " (not certified)"),
            f"{row.samples_over_formula:.2f}",
            f"{row.true_loss:.2g}",
            f"{row.seconds:.2f}",
        )
    console.print(table)
    certified = sum(row.certified for row in rows)
    within = sum(row.true_loss <= row.epsilon for row in rows)
    console.print(f"{certified} of {len(rows)} certified with probability {1 - delta:g} each; {within} truly within ε.")
    records = [asdict(row) for row in rows]
    (folder / "demo.json").write_text(json.dumps(records, indent=1) + "\n")
    with open(folder / "demo.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    console.print(f"Written: {folder / 'demo.json'}, {folder / 'demo.csv'}")
    page = folder / "report.html"
    try:
        write_page(rows, page, seed)
    except InvalidInput as error:  # without the extra `report`
        notes().print(f"Note: no page was written: {error}")
    else:
        console.print(f"Written: {page} (open it in a browser)")


def write_page(rows: list[Row], path: Path, seed: int) -> None:
    """Write the page of the demo: the paper's algorithms beside `tight` and the lower bounds, and one run in detail."""
    runs: list[dict[str, Any]] = []
    bounds: list[dict[str, Any]] = []
    shown = None
    with Progress(notes()) as progress:
        for row in rows:
            mdp = instances.load(row.instance)
            result = identify(
                ExactSimulator(mdp),
                epsilon=row.epsilon,
                delta=row.delta,
                algorithm="tight",
                seed=seed,
                progress=progress.show,
            )
            own = {"instance": row.instance, "seed": seed, "epsilon": row.epsilon, "delta": row.delta}
            tight = {"algorithm": result.algorithm, "samples": result.samples, "loss": mdp.loss(result.policy)}
            runs.append(
                own
                | {"algorithm": row.algorithm, "samples": row.samples, "loss": row.true_loss}
                | {"certified": row.certified, "seconds": row.seconds}
            )
            runs.append(own | tight | {"certified": result.certified, "seconds": result.seconds})
            bound = lower_bound(mdp, row.epsilon, row.delta, max_seconds=_BOUND_SECONDS)
            bounds.append({"instance": row.instance, "samples": bound.samples_lower_bound})
            if shown is None or row.instance == SHOWN:
                shown = (result, mdp)
    assert shown is not None
    settings = {"command": "bestpolicy demo", "seed": seed}
    document = {"format": FORMAT, "version": VERSION, "settings": settings, "rows": runs, "lower_bounds": bounds}
    write_comparison_and_run(document, *shown, path)
