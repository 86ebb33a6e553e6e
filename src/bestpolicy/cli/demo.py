"""`bestpolicy demo`: the main job on the built-in instances."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

import click
from rich.table import Table

from bestpolicy import instances
from bestpolicy.algorithms import ALGORITHMS
from bestpolicy.bounds.lower import lower_bound
from bestpolicy.cli.console import notes, output
from bestpolicy.cli.progress import Progress
from bestpolicy.comparison import Comparison, InstanceBound, Trial
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP
from bestpolicy.report import write_comparison_and_run
from bestpolicy.run import identify
from bestpolicy.simulators import ExactSimulator
from bestpolicy.study import Result

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
    tight_samples: int


def certify(mdp: LinearMDP, algorithm: str | None, delta: float, seed: int, progress: Progress) -> Result:
    """Certify a policy of a model, within 5 % of the largest possible value."""
    epsilon = 0.05 * float(mdp.problem.value_limits[0])
    simulator = ExactSimulator(mdp)
    return identify(simulator, epsilon=epsilon, delta=delta, algorithm=algorithm, seed=seed, progress=progress.show)


def row_of(mdp: LinearMDP, result: Result, sharper: Result) -> Row:
    """What the table says of a run."""
    epsilon, delta = result.asked_epsilon, result.delta
    formula = ALGORITHMS[result.algorithm]().predicted_samples(mdp.problem, mdp.gap, epsilon, delta)
    return Row(
        instance=mdp.name,
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
        tight_samples=sharper.samples,
    )


def trial_of(mdp: LinearMDP, result: Result) -> Trial:
    """What a comparison says of a run."""
    return Trial(
        algorithm=result.algorithm,
        instance=mdp.name,
        seed=result.seed,
        epsilon=result.asked_epsilon,
        delta=result.delta,
        samples=result.samples,
        loss=mdp.loss(result.policy),
        certified=result.certified,
        certified_epsilon=result.epsilon if isfinite(result.epsilon) else None,
        outcome=str(result.outcome),
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
    with Progress(notes()) as progress:
        models = [instances.load(name) for name in INSTANCES]
        runs = []
        for mdp in models:
            result, sharper = (certify(mdp, name, delta, seed, progress) for name in (None, "tight"))
            runs.append((mdp, result, sharper))
    rows = [row_of(*run) for run in runs]
    headings = ("instance", "algorithm", "S", "A", "d", "ε", "samples", "÷ formula", "true loss", "seconds", "tight")
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
            f"{row.tight_samples:,}",
        )
    console.print(table)
    certified = sum(row.certified for row in rows)
    within = sum(row.true_loss <= row.epsilon for row in rows)
    console.print(f"{certified} of {len(rows)} certified with probability {1 - delta:g} each; {within} truly within ε.")
    console.print(
        "samples: simulator calls of the paper's algorithm, and as a multiple of its formula; tight: those of our own, "
        "for the same ε and δ. A built-in model is sampled by drawing counts, so a thousand million calls take no time."
    )
    records = [asdict(row) for row in rows]
    (folder / "demo.json").write_text(json.dumps(records, indent=1) + "\n")
    with open(folder / "demo.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    console.print(f"Written: {folder / 'demo.json'}, {folder / 'demo.csv'}")
    page = folder / "report.html"
    try:
        write_page(runs, page)
    except InvalidInput as error:  # without the extra `report`
        notes().print(f"Note: no page was written: {error}")
    else:
        console.print(f"Written: {page} (open it in a browser)")


def write_page(runs: list[tuple[LinearMDP, Result, Result]], path: Path) -> None:
    """Write the page of the demo: the paper's algorithms beside `tight` and the lower bounds, and one run in detail."""
    trials: list[Trial] = []
    bounds: list[InstanceBound] = []
    shown: tuple[Result, LinearMDP] | None = None
    for mdp, result, sharper in runs:
        trials += [trial_of(mdp, result), trial_of(mdp, sharper)]
        bound = lower_bound(mdp, result.asked_epsilon, result.delta, max_seconds=_BOUND_SECONDS)
        bounds.append(InstanceBound(mdp.name, bound.samples_lower_bound, bound.reason))
        if shown is None or mdp.name == SHOWN:
            shown = sharper, mdp
    assert shown is not None
    settings = {"command": "bestpolicy demo", "delta": shown[0].delta, "seed": shown[0].seed}
    write_comparison_and_run(Comparison(settings, tuple(trials), lower_bounds=tuple(bounds)), *shown, path)
