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
    """Certify policies of a queue, an inventory, RiverSwim and random families, as `identify` does by default.

    Asks for 5 % of the largest possible value; writes the table to OUTPUT as JSON and CSV, and a page that compares
    with the paper's algorithms, GSS and GSS-E, and with what any algorithm needs.
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
        "samples: simulator calls of the default algorithm; paper samples: those of the paper's own, and as a multiple "
        "of its formula. A built-in model is sampled by drawing counts, so a thousand million calls take no time."
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
    """Compare the default algorithm with the paper's on each model, within 5 % of the largest possible value."""
    parts: list[Comparison] = []
    with work_progress(notes()) as show:
        for mdp in models:
            comparison = compare(
                mdp,
                [find_algorithm(each, mdp.problem) for each in (None, "gss")],
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
    default, paper = (row for row in comparison.rows if row.instance == mdp.name)
    problem = mdp.problem
    formula = find_algorithm("gss", problem).predicted_samples(problem, mdp.gap, paper.asked_epsilon, paper.delta)
    return {
        "instance": mdp.name,
        "states": problem.states,
        "actions": problem.actions,
        "dimension": problem.dimension,
        "asked_epsilon": default.asked_epsilon,
        "delta": default.delta,
        "algorithm": default.algorithm,
        "certified": default.certified,
        "samples": default.samples,
        "true_loss": default.loss,
        "seconds": default.seconds,
        "paper_algorithm": paper.algorithm,
        "paper_certified": paper.certified,
        "paper_samples": paper.samples,
        "paper_samples_over_formula": paper.samples / formula,
        "paper_loss": paper.loss,
    }


def write_page(comparison: Comparison, models: list[LinearMDP], path: Path) -> None:
    """Write the page of the demo: the default beside the paper's algorithms and the lower bounds, and one run."""
    mdp = next((mdp for mdp in models if mdp.name == SHOWN), models[0])
    delta, seed = comparison.settings["delta"], comparison.settings["seed"]
    run = identify(ExactSimulator(mdp), epsilon=asked_epsilon(mdp), delta=delta, seed=seed, progress=False)
    write_comparison_and_run(comparison, run, mdp, path)
