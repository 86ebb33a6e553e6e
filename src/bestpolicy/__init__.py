"""bestpolicy: a provably near-optimal policy from a simulator, with as few simulator calls as possible.

>>> import bestpolicy as bp
>>> mdp = bp.instances.load("two-state")                     # or bp.LinearMDP.load("model.npz")
>>> model = bp.ExactSimulator(mdp)                            # or bp.CallableSimulator(problem, step)
>>> result = bp.identify(model, epsilon=0.2, delta=0.1, seed=0)
>>> result.certified
True
>>> mdp.loss(result.policy) <= 0.2
True

To own the loop, use `Study` with ask and tell.
"""

import logging as _logging

from bestpolicy import bounds, design, diagnostics, features, instances, report, testing
from bestpolicy._version import __version__
from bestpolicy.comparison import Comparison, compare
from bestpolicy.design import g_optimal_design
from bestpolicy.errors import BestPolicyError, ConvergenceError, InvalidInput, SimulatorError, StoreError
from bestpolicy.estimation import Estimate, least_squares
from bestpolicy.mdp import LinearMDP
from bestpolicy.planning import Evaluation, Plan, evaluate_policy, optimal_plan
from bestpolicy.problem import FeatureProblem, Problem, Truncated, Units
from bestpolicy.problem.feature_policy import load_policy
from bestpolicy.run import CostEstimate, audit, drive, estimate, identify, misfit
from bestpolicy.samples import Episodes, Pulls, Tally
from bestpolicy.simulators import (
    CallableSimulator,
    ExactSimulator,
    ForwardModel,
    GenerativeModel,
    GymSimulator,
    NamedSimulator,
    ResetSimulator,
)
from bestpolicy.stopping import Check
from bestpolicy.study import Outcome, Query, Result, Study, rescue, studies
from bestpolicy.verification import Verification, verify

_logging.getLogger(__name__).addHandler(_logging.NullHandler())

__all__ = [
    "BestPolicyError",
    "CallableSimulator",
    "Check",
    "Comparison",
    "ConvergenceError",
    "CostEstimate",
    "Episodes",
    "Estimate",
    "Evaluation",
    "ExactSimulator",
    "FeatureProblem",
    "ForwardModel",
    "GenerativeModel",
    "GymSimulator",
    "InvalidInput",
    "LinearMDP",
    "NamedSimulator",
    "Outcome",
    "Plan",
    "Problem",
    "Pulls",
    "Query",
    "ResetSimulator",
    "Result",
    "SimulatorError",
    "StoreError",
    "Study",
    "Tally",
    "Truncated",
    "Units",
    "Verification",
    "__version__",
    "audit",
    "bounds",
    "compare",
    "design",
    "diagnostics",
    "drive",
    "estimate",
    "evaluate_policy",
    "features",
    "g_optimal_design",
    "identify",
    "instances",
    "least_squares",
    "load_policy",
    "misfit",
    "optimal_plan",
    "report",
    "rescue",
    "studies",
    "testing",
    "verify",
]
