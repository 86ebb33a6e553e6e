"""Plug-in with numbers of samples that are of the right order but not proved: nothing is certified.

The best known rate, N of the order of L³ log(nL/δ)/ε² samples of each of n pairs (L = 1/(1-γ)), is proved with
constants that the papers leave open. Here that constant is a parameter, 1 by default, which is an empirical choice
(reconstructed: no theorem covers it). So a run ends with a policy and without a certificate.

- ``aky``: plan in the empirical model (Agarwal, Kakade, Yang 2020: for ε ≤ √L);
- ``li``: add independent uniform numbers in [0, ξ] to its rewards first, ξ = (1-γ) ε / n⁵, which makes the optimum
  unique (Li, Wei, Chi, Gu, Chen 2020: for ε ≤ L, with a constant in ξ that is open too). In floating point ξ often
  vanishes beside the rewards; the two then agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log
from typing import ClassVar, Literal

from bestpolicy._numerics.inputs import choice, require_positive
from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, useful
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, equal_pulls, plan
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class PlugInNoGuarantee(Budgeted):
    """Plug-in with N = constant · L³ log(nL/δ)/ε², for discounted problems and ε > 0.

    Attributes
    ----------
    budget : {"aky", "li"}
    constant : float
        What the theorems leave open.
    """

    name: ClassVar[str] = "plug-in-no-guarantee"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="",
        guarantee="none",
        complexity="S A / ((1-γ)³ ε²)",
        constants="reconstructed: open in the references, 1 here",
        reference="Agarwal, Kakade, Yang (2020); Li, Wei, Chi, Gu, Chen (2020)",
    )

    budget: Literal["aky", "li"] = "aky"
    constant: float = 1.0

    def __post_init__(self) -> None:
        choice("budget", self.budget, ("aky", "li"))
        require_positive(constant=self.constant)

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """n·N."""
        limit, pairs = float(problem.value_limits[0]), len(problem.pairs)
        return pairs * ceil(self.constant * limit**3 * log(pairs * limit / delta) / useful(epsilon, problem) ** 2)

    def run(self, task: Task) -> Run:
        """Draw N samples of every pair, plan, certify nothing."""
        problem, pairs = task.problem, len(task.problem.pairs)
        budget = FixedBudget.of(self, task, "none")
        tally = yield Request(equal_pulls(problem.pairs, int(budget.samples) // pairs))
        model = EmpiricalModel.of(problem, tally)
        if self.budget == "li":
            perturbation = (1 - problem.continuation) * task.epsilon / pairs**5
            model = replace(model, rewards=model.rewards + task.rng.uniform(0, perturbation, pairs))
        best = plan(model)
        return replace(budget.check(tally.samples, best.policy, best.q_values), passed=False, epsilon=inf)
