"""A model by what people call it: the name of an instance, or a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bestpolicy import instances
from bestpolicy._numerics.arrays import LARGEST_TABLE, FloatArray
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP, stage_parameters
from bestpolicy.problem import Problem
from bestpolicy.problem.files import read_arrays


def load_model(model: str | os.PathLike[str]) -> LinearMDP:
    """Load an instance by name or a model file."""
    return LinearMDP.load(os.fspath(model)) if _is_file(model) else instances.load(os.fspath(model))


def load_arrays(model: str | os.PathLike[str]) -> tuple[Problem, FloatArray | None, Any]:
    """Load a problem and, if known, θ (stages, d) and μ (stages, S, d), as a model has them, without judging them."""
    if not _is_file(model):
        mdp = instances.load(os.fspath(model))
        return mdp.problem, mdp.theta, mdp.mu
    problem, theta, mu = read_arrays(model)
    if (theta is None) != (mu is None):
        raise InvalidInput(f"{model} has only one of theta and mu. Give both, or neither.")
    if theta is None or mu is None:
        return problem, None, None
    theta, mu = stage_parameters(problem, theta, mu)
    if isinstance(mu, tuple) and problem.stages * problem.states * problem.dimension <= LARGEST_TABLE:
        mu = np.stack([step.toarray() for step in mu])
    return problem, theta, mu


def _is_file(model: str | os.PathLike[str]) -> bool:
    """Whether a user who names a model so means a file rather than a built-in instance."""
    name = os.fspath(model)
    if os.path.isdir(name):
        raise InvalidInput(f"{name} is a folder. Give an .npz file, or the name of a built-in instance.")
    return name.endswith(".npz") or os.sep in name or os.path.isfile(name)
