"""`bestpolicy demo`: the main job on the built-in instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bestpolicy import instances
from bestpolicy.algorithms import find_algorithm
from bestpolicy.cli import options
from bestpolicy.cli.console import INTERRUPTED, notes, output, say
from bestpolicy.cli.progress import work_progress
from bestpolicy.comparison import Comparison, compare
from bestpolicy.comparison.comparison import to_csv
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.report import write_comparison_and_run
from bestpolicy.run import identify
from bestpolicy.simulators import ExactSimulator
from bestpolicy.study.result import confidence

INSTANCES = tuple(
    family + kind
    for kind in ("", "-episodic")
    for family in ("queue", "inventory", "riverswim", "simplex", "ball", "universal")
)
SHOWN = "riverswim"  # in detail
_BOUND_SECONDS = 0.5


@click.command()
@click.option("--output", "folder", type=options.NEW_FOLDER, default="results", show_default=True)
@click.option("--delta", type=options.a_number(above=0, below=1), default=0.05, show_default=True)
@click.option("--seed", type=options.a_count(0), default=0, show_default=True)
def demo(folder: Path, delta: float, seed: int) -> int:
    """Certify policies of a queue, an inventory, RiverSwim and random families with GSS and GSS-E.

    Asks for 5 % of the largest possible value; writes the table to OUTPUT as JSON and CSV, and a page that compares
    with the algorithm `tight` and with what any algorithm needs.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad path costs nothing
    console, models = output(), [instances.load(name) for name in INSTANCES]
    comparison = run_all(models, delta, seed)
    if comparison.interrupted:
        say("Interrupted: nothing was written.", err=True)
        return INTERRUPTED
    rows = [row_of(mdp, comparison) for mdp in models]
    table = Table(*(key.replace("_", " ") for key in rows[0]), box=None)
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    certified = sum(row["certified"] for row in rows)
    within = sum(row["true_loss"] <= row["asked_epsilon"] for row in rows)
    surely = f"certified with probability {confidence(delta)} each"
    console.print(f"{certified} of {len(rows)} {surely}; {within} truly within ε.")
    console.print(
        "samples: simulator calls of the paper's algorithm, and as a multiple of its formula; tight samples: those of "
        "our own. A built-in model is sampled by drawing counts, so a thousand million calls take no time."
    )
    (folder / "demo.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "demo.csv").write_text(to_csv(list(rows[0]), (row.values() for row in rows)))
    console.print(f"Written: {folder / 'demo.json'}, {folder / 'demo.csv'}")
    page = folder / "report.html"
    try:
        write_page(comparison, models, page)
    except InvalidInput as error:  # without the extra `report`
        notes().print(f"Note: no page was written: {error}")
    else:
        console.print(f"Written: {page} (open it in a browser)")
    return 0


def run_all(models: list[LinearMDP], delta: float, seed: int) -> Comparison:
    """Compare the paper's algorithm with `tight` on each model, within 5 % of the largest possible value."""
    parts: list[Comparison] = []
    with work_progress(notes()) as show:
        for mdp in models:
            comparison = compare(
                mdp,
                [find_algorithm(None, mdp.problem), "tight"],
                epsilon=asked_epsilon(mdp),
                delta=delta,
                runs=1,
                seed=seed,
                bound_seconds=_BOUND_SECONDS,
                progress=lambda _, __, what: show(len(parts), len(models), what),
            )
            parts.append(comparison)
            if comparison.interrupted:
                break
    return Comparison(
        {"command": "bestpolicy demo", "delta": delta, "seed": seed, "interrupted": parts[-1].interrupted},
        tuple(row for part in parts for row in part.rows),
        lower_bounds=tuple(bound for part in parts for bound in part.lower_bounds),
    )


def asked_epsilon(mdp: LinearMDP) -> float:
    """Return 5 % of the largest possible value."""
    return 0.05 * float(mdp.problem.value_limits[0])


def row_of(mdp: LinearMDP, comparison: Comparison) -> dict[str, Any]:
    """What the table says of a model."""
    paper, sharper = (row for row in comparison.rows if row.instance == mdp.name)
    problem = mdp.problem
    formula = find_algorithm(None, problem).predicted_samples(problem, mdp.gap, paper.asked_epsilon, paper.delta)
    return {
        "instance": mdp.name,
        "algorithm": paper.algorithm,
        "states": problem.states,
        "actions": problem.actions,
        "dimension": problem.dimension,
        "asked_epsilon": paper.asked_epsilon,
        "delta": paper.delta,
        "certified": paper.certified,
        "samples": paper.samples,
        "samples_over_formula": paper.samples / formula,
        "true_loss": paper.loss,
        "seconds": paper.seconds,
        "tight_samples": sharper.samples,
    }


def write_page(comparison: Comparison, models: list[LinearMDP], path: Path) -> None:
    """Write the page of the demo: the paper's algorithms beside `tight` and the lower bounds, and one run in detail."""
    mdp = next((mdp for mdp in models if mdp.name == SHOWN), models[0])
    delta, seed = comparison.settings["delta"], comparison.settings["seed"]
    run = identify(
        ExactSimulator(mdp), epsilon=asked_epsilon(mdp), delta=delta, algorithm="tight", seed=seed, progress=False
    )
    write_comparison_and_run(comparison, run, mdp, path)
