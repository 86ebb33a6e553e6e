"""From the MODEL argument of a command to a model, and numbers as people write them."""

from __future__ import annotations

import os
from typing import Any

import click

from bestpolicy import instances
from bestpolicy._numerics.arrays import FloatArray
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP, stage_parameters
from bestpolicy.problem import Problem
from bestpolicy.problem.files import is_file_name, read_arrays


class Count(click.ParamType[int]):
    """A whole number, also written 1e6."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        try:
            number = float(value)
            if number != int(number):
                raise ValueError
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return int(value) if str(value).lstrip("-").isdigit() else int(number)


def load_model(model: str) -> LinearMDP:
    """Load an instance by name or a model file."""
    _refuse_folder(model)
    return LinearMDP.load(model) if is_file_name(model) else instances.load(model)


def load_arrays(model: str) -> tuple[Problem, FloatArray | None, FloatArray | None]:
    """Load a problem and, if known, θ (stages, d) and μ (stages, S, d), without judging them."""
    _refuse_folder(model)
    if not is_file_name(model):
        mdp = instances.load(model)
        return mdp.problem, mdp.theta, mdp.mu
    problem, theta, mu = read_arrays(model)
    if (theta is None) != (mu is None):
        raise InvalidInput(f"{model} has only one of theta and mu. Give both, or neither.")
    if theta is None or mu is None:
        return problem, None, None
    return problem, *stage_parameters(problem, theta, mu)


def _refuse_folder(model: str) -> None:
    if os.path.isdir(model):
        raise InvalidInput(f"{model} is a folder. Give an .npz file, or the name of a built-in instance.")
