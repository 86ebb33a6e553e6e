"""Problems whose states nobody lists, as bytes: what a file can hold of them, which is everything but functions."""

from __future__ import annotations

import json
from typing import Any

from bestpolicy.errors import InvalidInput
from bestpolicy.features import from_dict
from bestpolicy.problem.feature_problem import FeatureProblem

MARK = b"feature problem 1\n"


def feature_problem_to_bytes(problem: FeatureProblem) -> bytes:
    """Return the description of a problem as JSON, after a mark."""
    return MARK + json.dumps(problem.description, sort_keys=True).encode()


def feature_problem_from(description: dict[str, Any], what: str) -> FeatureProblem:
    """Return the problem that a file describes.

    Raises
    ------
    InvalidInput
        If it holds functions of the user's, which no file can.
    """
    functions = [name for name, has in description["functions"].items() if has]
    if functions:
        raise InvalidInput(
            f"{what} has functions of yours that no file can hold ({', '.join(functions)}). Pass the FeatureProblem "
            "that it was made with: problem=…."
        )
    limits = {name: description[name] for name in ("known_best", "remainder") if description[name] is not None}
    return FeatureProblem(
        from_dict(description["feature_map"]),
        actions=description["actions"],
        discount=description["discount"],
        horizon=description["horizon"],
        **limits,
    )
