"""`bestpolicy design`, `check` and `instances`: look at a problem before spending samples on it."""

from __future__ import annotations

from dataclasses import asdict

import click
import numpy as np
from rich.table import Table

from bestpolicy import instances as catalogue
from bestpolicy.cli import options
from bestpolicy.cli.console import BAD_INPUT, echo_json, output, say, styled
from bestpolicy.comparison import describe
from bestpolicy.design import g_optimal_design
from bestpolicy.diagnostics import check_linearity, sample_for_diagnostics
from bestpolicy.diagnostics.assumptions import check_features, check_model, check_norms
from bestpolicy.instances.loading import load_arrays, load_model
from bestpolicy.simulators import ExactSimulator

_PAIRS_SHOWN = 40


@click.command()
@click.argument("model")
@click.option(
    "--tolerance", type=options.a_number(above=0), default=1e-3, show_default=True, help="Relative excess of the worst."
)
@options.as_json
def design(model: str, tolerance: float, as_json: bool) -> None:
    """Compute the G-optimal design of MODEL: which pairs to simulate, in which proportions.

    MODEL may lack theta and mu. The certificate is the worst leverage over all allowed pairs: no design
    has less than d, and the one printed has at most (1 + tolerance) d.
    """
    problem, _, _ = load_arrays(model)
    optimal = g_optimal_design(problem.pair_features, tolerance=tolerance)
    states, actions = np.divmod(problem.pairs[optimal.indices], problem.actions)
    if as_json:
        answer = {
            "states": states.tolist(),
            "actions": actions.tolist(),
            "weights": optimal.weights.tolist(),
            "worst_leverage": optimal.worst_leverage,
            "tolerance": optimal.tolerance,
        }
        echo_json(answer)
        return
    console = output()
    console.print(
        f"{len(states)} of {len(problem.pairs)} pairs carry weight; worst leverage {optimal.worst_leverage:.9g}, "
        f"at least {problem.dimension} for any design (tolerance {optimal.tolerance:g})"
    )
    table = Table("state", "action", "weight", box=None)
    for i in np.argsort(-optimal.weights, kind="stable")[:_PAIRS_SHOWN]:
        table.add_row(str(states[i]), str(actions[i]), f"{optimal.weights[i]:.6f}")
    console.print(table)
    if len(states) > _PAIRS_SHOWN:
        console.print(f"… and {len(states) - _PAIRS_SHOWN} more; use --json to see all")


@click.command()
@click.argument("model")
@click.option(
    "--samples",
    type=options.a_count(1, 10**12),
    help="Also simulate each pair this often and test linearity from samples.",
)
@click.option("--seed", type=options.a_count(0), default=0, show_default=True, help="Of those samples.")
@options.as_json
def check(model: str, samples: int | None, seed: int, as_json: bool) -> int:
    """Check every assumption on MODEL: measured value, limit, verdict, worst pair, and what to do.

    Exits with 2 if a required assumption fails. Norms are for information: the algorithms whiten the features.
    """
    problem, theta, mu = load_arrays(model)
    findings = check_features(problem)
    full_rank = findings[0].passed
    if theta is not None and mu is not None:
        findings += check_model(problem, theta, mu)
    if full_rank:
        findings += check_norms(problem, theta, mu)
    failed = [finding for finding in findings if finding.required and not finding.passed]
    linearity = None
    if samples is not None and not failed:
        simulator = ExactSimulator(load_model(model))
        linearity = check_linearity(problem, sample_for_diagnostics(simulator, samples, np.random.default_rng(seed)))
    if as_json:
        answer = {"model": model, "passed": not failed, "findings": [asdict(f) for f in findings]}
        if linearity is not None:
            answer["linearity"] = linearity.to_dict()
        echo_json(answer)
    else:
        table = Table("assumption", "measured", "limit", "verdict", "worst pair", "what to do", box=None)
        for finding in findings:
            failure = ("FAILS", "red") if finding.required else ("exceeds", "yellow")
            table.add_row(
                finding.name,
                f"{finding.measured:.6g}",
                f"{finding.relation} {finding.limit:.6g}",
                styled(("holds", "green") if finding.passed else failure),
                finding.where,
                "" if finding.passed else finding.remedy,
            )
        output(200).print(table)
        if linearity is not None:
            output(200).print(f"from samples: {linearity.sentence()}")
    if failed:
        count = f"{len(failed)} of {len(findings)} assumptions fail" if len(failed) > 1 else "1 assumption fails"
        say(f"Error: {count} on {model}; first: {failed[0].sentence()}", err=True)
        return BAD_INPUT
    return 0


@click.command()
@options.as_json
def instances(as_json: bool) -> None:
    """List the built-in instances with their sizes and gaps."""
    rows = [
        describe(each.name, each.load()) | {"alias": each.alias, "family": each.family, "summary": each.summary}
        for each in catalogue.catalogue()
    ]
    if as_json:
        echo_json(rows)
        return
    table = Table("name", "alias", "S", "A", "d", "discount/horizon", "gap", "what it models", box=None)
    for row in rows:
        time = f"γ = {row['discount']:g}" if row["horizon"] is None else f"H = {row['horizon']}"
        sizes = [str(row[key]) for key in ("states", "actions", "dimension")]
        table.add_row(str(row["name"]), str(row["alias"]), *sizes, time, f"{row['gap']:.3g}", str(row["summary"]))
    output(160).print(table)
