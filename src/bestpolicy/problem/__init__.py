"""What the learner knows: features, discount or horizon, the actions that are allowed; and files of it."""

from bestpolicy.problem.problem import Problem

__all__ = ["Problem"]
