"""Why a competitor cannot run on a problem, where several share the reason; empty if it can."""

from __future__ import annotations

from bestpolicy.design.anchors import why_no_anchors
from bestpolicy.problem import Problem


def only_discounted(problem: Problem, instead: str = "gss-e") -> str:
    """Refuse episodic problems, for which there is another algorithm."""
    return "" if problem.horizon is None else f"it is for discounted problems; use {instead!r}."


def only_anchored(problem: Problem) -> str:
    """Refuse episodic problems, and those without anchors."""
    if problem.horizon is not None:
        return only_discounted(problem, "lavi")
    reason = why_no_anchors(problem)
    return reason and f"{reason}. Use 'ppq', which does without."
