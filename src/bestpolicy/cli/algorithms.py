"""`bestpolicy algorithms`: what there is to choose from, and what each promises and costs."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from inspect import getdoc
from typing import Any

import click
from rich.console import Console, Group
from rich.table import Table

from bestpolicy.algorithms import ALGORITHMS, Algorithm
from bestpolicy.cli import options
from bestpolicy.cli.console import echo_json, output, styled
from bestpolicy.comparison.work import parameters
from bestpolicy.errors import InvalidInput, did_you_mean


@click.command("algorithms")
@click.argument("name", required=False)
@options.as_json
def algorithms_command(name: str | None, as_json: bool) -> None:
    """List the algorithms: setting, assumption, guarantee, order of samples, reference; or all of NAME.

    S, A: states and actions; d: dimension of the features; gamma, H: discount, horizon; Delta: gap.
    """
    if name is not None and name not in ALGORITHMS:
        raise InvalidInput(
            f"unknown algorithm {name!r}. Known: {', '.join(ALGORITHMS)}.{did_you_mean(name, ALGORITHMS)}"
        )
    if as_json:
        entries = [_entry(kind) for kind in ALGORITHMS.values()]
        echo_json(entries if name is None else _entry(ALGORITHMS[name]))
    elif name is None:
        print_all(output())
    else:
        print_one(output(), ALGORITHMS[name])


def print_all(console: Console) -> None:
    """Print a table of all algorithms."""
    table = Table(box=None, padding=(0, 2, 1, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for kind in ALGORITHMS.values():
        about = kind.about
        where = "discounted, episodic" if " or " in about.setting else about.setting
        name = Group(styled((kind.name, "bold")), styled((where, "dim")), styled((about.features, "dim")))
        table.add_row(name, _lines(_facts(kind)))
    console.print(table)
    console.print("All about one of them, with its parameters: bestpolicy algorithms NAME", style="dim")


def _facts(kind: type[Algorithm]) -> dict[str, str]:
    about = kind.about
    return {
        "promises": about.guarantee,
        "assumes": about.assumption,
        "simulates": about.sampling,
        "samples": about.complexity,
        "constants": about.constants,
        "reference": about.reference,
    }


def _lines(facts: dict[str, str]) -> Table:
    lines = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    lines.add_column(no_wrap=True, style="dim")
    lines.add_column(overflow="fold")
    for what, text in facts.items():
        if text:
            lines.add_row(what, text)
    return lines


def print_one(console: Console, kind: type[Algorithm]) -> None:
    """Print all there is to know of an algorithm, with its parameters."""
    facts = {
        "setting": f"{kind.about.setting}, {kind.about.features}",
        **_facts(kind),
        "at any time": "yes: a budget may end anywhere" if kind.anytime else "no: samples come in fixed batches",
        "own data": "accepted" if kind.takes_own_data else "not accepted",
    }
    console.print(styled((kind.name, "bold"), (f": {(getdoc(kind) or '').splitlines()[0]}", "")))
    console.print(_lines(facts))
    if is_dataclass(kind) and fields(kind):
        table = Table("parameter", "default", "", box=None, padding=(0, 2, 0, 0), title_justify="left")
        for field in fields(kind):
            table.add_row(field.name, repr(field.default), _explanation(kind, field.name))
        console.print()
        console.print(table)


def _entry(kind: type[Algorithm]) -> dict[str, Any]:
    return {
        "name": kind.name,
        **asdict(kind.about),
        "anytime": kind.anytime,
        "takes_own_data": kind.takes_own_data,
        "parameters": parameters(kind()),
    }


def _explanation(kind: type[Algorithm], parameter: str) -> str:
    """What the docstring says of a parameter, its own or that of the options it shares; empty if nothing."""
    lines = [line for one in kind.__mro__[:-1] for line in (getdoc(one) or "").splitlines()]
    heads = [
        i for i, line in enumerate(lines) if line.split(" : ")[0].strip() == parameter and not line.startswith(" ")
    ]
    explanation = []
    for line in lines[heads[0] + 1 :] if heads else ():
        if line and not line.startswith(" "):
            break
        explanation.append(line.strip())
    return " ".join(filter(None, explanation))
