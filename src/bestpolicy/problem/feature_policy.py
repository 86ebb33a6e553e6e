"""A policy as a function: what to do in states that nobody has listed, and what can be said of their values there."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import file_path, of_type, whole
from bestpolicy.errors import InvalidInput
from bestpolicy.problem.feature_files import feature_problem_from
from bestpolicy.problem.feature_problem import FeatureProblem
from bestpolicy.problem.units import Units


@dataclass(frozen=True, eq=False)
class FeaturePolicy:
    """Plays the first maximiser of g + φᵀξ.

    Attributes
    ----------
    problem : FeatureProblem
        In units in which rewards lie in [0, 1].
    vectors : array (stages, d)
        ξ of each step.
    """

    problem: FeatureProblem
    vectors: FloatArray

    def __call__(self, states: ArrayLike, step: int = 0) -> IntArray:
        """Return what to do in states (n, k) at a step (of an episodic problem), (n,)."""
        if not whole("step", step, 0) < self.problem.stages:
            raise InvalidInput(f"step must be below {self.problem.stages}. Got {step} instead.")
        return self.problem.greedy(self.problem.states_of(states), self.vectors[step])

    def __repr__(self) -> str:
        return f"FeaturePolicy({self.problem!r})"


def load_policy(path: str | PathLike[str], problem: FeatureProblem | None = None) -> FeaturePolicy:
    """Return the policy of a certificate that was saved for a `FeatureProblem`; nothing in the file is executed.

    ``bestpolicy verify`` checks what the certificate claims of it.

    Parameters
    ----------
    path : path
        What `Result.save` wrote.
    problem : FeatureProblem, optional
        Needed if the problem has functions of yours (a point, a mask, known rewards, a map of your own), which no file
        can hold. It must be the one that the certificate is about.
    """
    name = file_path("path", path)
    try:
        with open(name, "rb") as file:
            document = json.loads(file.read())
        described, claimed = document["problem"], document["claim"]
        if "description" not in described:
            raise InvalidInput(f"{name} is about a problem whose states are listed: read its policy from the file.")
        vectors = _array(claimed["vectors"])
        scale, offset = float(claimed["reward_scale"]), float(claimed["reward_offset"])
        fingerprint = str(described["fingerprint"])
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror or error}.") from None
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{name} is no certificate ({error!r:.100}). Give a file that Result.save wrote.") from None
    if problem is None:
        problem = feature_problem_from(described["description"], f"the problem of {name}")
    of_type("problem", problem, FeatureProblem)
    if problem.fingerprint != fingerprint:
        raise InvalidInput(
            f"{name} is about another problem: features, mask, known rewards, discount or horizon differ."
        )
    if vectors.shape != (2, problem.stages, problem.dimension + 1):
        raise InvalidInput(f"{name} is damaged: its vectors have shape {vectors.shape}.")
    return FeaturePolicy(problem.in_units(Units(scale, offset)), vectors[0, :, :-1])


def _array(node: dict[str, Any]) -> FloatArray:
    shape = [int(size) for size in node["shape"]]
    size = 8 * prod(shape)
    content = zlib.decompressobj().decompress(base64.b64decode(node["data"], validate=True), size + 1)
    if node["dtype"] != "<f8" or len(content) != size:
        raise ValueError("an array does not fit")
    return np.frombuffer(content, "<f8").reshape(shape).astype(np.float64)
