"""What the learner knows: features, discount or horizon, the actions that are allowed; and files of it."""

from bestpolicy.problem.feature_problem import FeatureProblem
from bestpolicy.problem.problem import Problem
from bestpolicy.problem.truncation import Truncated
from bestpolicy.problem.units import Units

__all__ = ["FeatureProblem", "Problem", "Truncated", "Units"]
