"""`bestpolicy estimate`: what a run will cost, after a short pilot."""

from __future__ import annotations

from typing import Any

import click

from bestpolicy.cli import options
from bestpolicy.cli.console import echo_json, say
from bestpolicy.cli.identify import typed_start
from bestpolicy.cli.simulators import is_simulator, load_simulator
from bestpolicy.instances.loading import load_model
from bestpolicy.run import estimate as estimate_cost
from bestpolicy.simulators import ExactSimulator


@click.command()
@click.argument("model")
@options.epsilon_or_share
@options.delta
@options.algorithm
@options.seed
@options.start
@click.option("--pilot", type=options.a_count(), help="Simulator calls to make at most.  [default: 64 a pair]")
@click.option(
    "--max-seconds",
    type=options.a_number(above=0),
    default=30.0,
    show_default=True,
    help="Time that the pilot may take.",
)
@options.rewards
@options.as_json
def estimate(model: str, rewards: str, as_json: bool, **how: Any) -> int:
    """Say what `identify` would cost on MODEL: simulator calls, time, memory, and which algorithm fits.

    Makes a short pilot; MODEL may be a simulator of your own, FILE.py:NAME.
    """
    law: Any = rewards
    own = is_simulator(model)
    simulator = load_simulator(model) if own else ExactSimulator(load_model(model), rewards=law)
    how["start"] = typed_start(how["start"], simulator.problem, simulator)
    cost = estimate_cost(simulator, **how)
    if as_json:
        echo_json(cost.to_dict())
    else:
        for line in str(cost).splitlines():
            say(line)
    return 0
