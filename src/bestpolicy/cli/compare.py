"""`bestpolicy compare`: algorithms side by side, on instances and model files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bestpolicy.cli import options
from bestpolicy.cli.console import BAD_INPUT, INTERRUPTED, echo_json, notes, output, say, styled
from bestpolicy.cli.progress import work_progress
from bestpolicy.comparison import Comparison, InstancePlugIn, Summary, compare
from bestpolicy.errors import InvalidInput

_WIDE = 100


@click.command("compare")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--algorithms",
    default="all",
    show_default=True,
    help="Which ones, with commas (see `bestpolicy algorithms`), or all that fit.",
)
@options.epsilon
@options.delta
@click.option(
    "--runs", type=options.a_count(1, 10**5), default=10, show_default=True, help="Of each algorithm on each model."
)
@click.option(
    "--seed", type=options.a_count(0), default=0, show_default=True, help="Of the first run; the next has the next."
)
@options.max_samples
@options.max_seconds
@click.option(
    "--start",
    type=options.a_count(0),
    default=0,
    show_default=True,
    help="State in which episodes begin, of algorithms that follow policies: they claim something of it alone.",
)
@options.workers("Run on this many processes; the rows do not depend on it.")
@click.option("--store", type=options.NEW_FILE, help="File in which finished runs survive (SQLite).")
@click.option("--output", "target", type=options.NEW_FILE, help="File to write, .json or .csv.")
@options.as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print one row per run as CSV and nothing else.")
@click.option("--no-bounds", is_flag=True, help="Leave out the lower bounds (up to 20 s for each model).")
@click.option("--price", is_flag=True, help="Compare with the plug-in without a guarantee, too (up to 20 s for each).")
def compare_command(
    models: tuple[str, ...],
    algorithms: str,
    target: str | None,
    as_json: bool,
    as_csv: bool,
    no_bounds: bool,
    **how: Any,
) -> int:
    """Run algorithms on each MODEL, several times, and compare what they needed and how good the policies are.

    The table has median samples with quartiles, their ratio to a lower bound on any algorithm's mean, the worst true
    loss, and failures: runs that vouched for a policy that is not within EPSILON, with an upper limit on their
    probability (confidence 95 %). A star marks algorithms with runs that ended without a certificate. Algorithms that
    follow policies have a table of their own: their claims, and losses, are about the start.

    With --price there is the price of certainty, too: samples over those with which the plug-in, an optimal policy of
    the model estimated from equally many samples of every pair, is within EPSILON in 95 % of 60 runs, uncertified.

    Run i of every algorithm has the seed SEED + i, so runs are paired. With --store the same command again does only
    what is missing. Ctrl-C: what is finished is printed and saved (exit code 130).
    """
    if as_json and as_csv:
        raise InvalidInput("choose one of --json and --csv.")
    if target is not None and Path(target).suffix not in (".json", ".csv"):
        raise InvalidInput(f"output must end with .json or .csv. Got {target!r} instead.")
    chosen = [name.strip() for name in algorithms.split(",") if name.strip()]
    with work_progress(notes()) as show:
        names = "all" if chosen == ["all"] else chosen
        comparison = compare(models, names, lower_bounds=not no_bounds, progress=show, **how)
    if target is not None:
        comparison.save(target)
        more = f" Make a page of it: bestpolicy report {shlex.quote(target)}" if target.endswith(".json") else ""
        say(f"Written: {target}.{more}", err=True)
    if as_json:
        echo_json(comparison.to_dict())
    elif as_csv:
        for line in comparison.to_csv().rstrip("\n").split("\n"):
            say(line)
    else:
        print_comparison(output(), comparison)
    if comparison.interrupted:
        again = "The same command goes on with the rest." if how["store"] else "Give --store to keep finished runs."
        say(f"Interrupted: {len(comparison.rows)} runs are finished. {again}", err=True)
        return INTERRUPTED
    if not comparison.rows:
        say("Error: none of the algorithms can run on any of the models. Try --algorithms all.", err=True)
        return BAD_INPUT
    return 0


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a table per instance, and another one of algorithms that follow policies."""
    settings = comparison.settings
    console.print(f"ε = {settings['asked_epsilon']:g}, δ = {settings['delta']:g}, {settings['runs']} runs each")
    bounds = {bound.instance: bound for bound in comparison.lower_bounds}
    plug_in = {entry.instance: entry for entry in comparison.plug_in}
    for instance in settings["instances"]:
        name = instance["name"]
        time = f"γ = {instance['discount']:g}" if instance["horizon"] is None else f"H = {instance['horizon']}"
        sizes = f"S = {instance['states']}, A = {instance['actions']}, d = {instance['dimension']}, {time}"
        console.print()
        console.print(styled((name, "bold"), (f": {sizes}, gap {_short(instance['gap'])}", "")))
        if name in bounds and bounds[name].samples:
            limited = ", found in the time given" if bounds[name].reason == "time limit" else ""
            console.print(f"any algorithm needs {_short(bounds[name].samples)} samples on average{limited}")
        if name in plug_in:
            console.print(_plug_in(plug_in[name]))
        entries = [entry for entry in comparison.summary if entry.instance == name]
        pairs = [entry for entry in entries if entry.simulates_pairs]
        followers = [entry for entry in entries if not entry.simulates_pairs]
        if pairs:
            console.print(_table(pairs, settings["runs"], width=console.width))
        if followers:
            console.print("following policies, as a simulator must that can only be reset and stepped:")
            console.print(_table(followers, settings["runs"], width=console.width))
        for skipped in comparison.skipped:
            if skipped.instance == name:
                console.print(f"{skipped.algorithm} left out: {skipped.reason}", style="dim")
    if any(entry.certified < entry.runs for entry in comparison.summary):
        console.print()
        console.print("* not every run ended with a certificate: what it needs may be more, or nothing is promised")


def _plug_in(found: InstancePlugIn) -> str:
    """What the price is a multiple of."""
    goal = f"to be within ε in {100 * found.share:.4g} % of {found.runs} runs"
    if found.samples is None:
        return f"what the uncertified plug-in needs {goal} was not found: {found.reason}"
    return f"the uncertified plug-in needs {_short(found.samples)} samples {goal}"


def _table(entries: list[Summary], runs: int, *, width: int) -> Table:
    """Medians with their quartiles; the ratio to the best gives way to other ratios if there is no room."""
    with_bound = any(entry.ratio_to_bound is not None for entry in entries)
    with_price = any(entry.price is not None for entry in entries)
    with_best = not (with_bound or with_price) or width >= _WIDE
    with_scope = any(not entry.simulates_pairs for entry in entries)
    headings = ["samples", "quartiles"] + ["÷ bound"] * with_bound + ["÷ best"] * with_best + ["price"] * with_price
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("algorithm")
    if with_scope:
        table.add_column("claim about", no_wrap=True)
    for heading in (*headings, "loss", "failures", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in sorted(entries, key=lambda entry: (entry.ratio_to_best is None, entry.median_samples)):
        star = "*" if entry.certified < entry.runs else " "
        cells = [
            f"{_short(entry.median_samples)}{star}",
            f"{_short(entry.lower_quartile, 2)}–{_short(entry.upper_quartile, 2)}",
            *([_short(entry.ratio_to_bound)] if with_bound else []),
            *([_short(entry.ratio_to_best)] if with_best else []),
            *([_short(entry.price)] if with_price else []),
            _short(entry.worst_loss, 2),
            f"{entry.failures} (≤{entry.failure_limit:.2f})",
            f"{entry.median_seconds:.2f}",
        ]
        name = entry.algorithm if entry.runs == runs else f"{entry.algorithm}, {entry.runs} runs"
        scope = [entry.scope if entry.certified else "nothing"] if with_scope else []
        table.add_row(name, *scope, *cells, style="red" if entry.failures else "")
    return table


def _short(number: float | None, digits: int = 3) -> str:
    return "–" if number is None else f"{number:.{digits}g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
