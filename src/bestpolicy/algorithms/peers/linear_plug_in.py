"""Linear plug-in: sample the anchors, plan in the model that they give.

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    draw N samples of each:  r̂_k, P̂_k
    return an optimal policy of the model  r̂ = F r̂_K,  P̂ = F P̂_K

    N = the smaller of  ⌈ 2 L⁶ log(2K/δ) / ε² ⌉  and  1 + ⌈ 2 log(4K/δ) / a² ⌉,    L = 1/(1-γ)
    a = positive root of  (7/6)L² a² + (s L^{3/2} + γLη) a = η,    s = √(1+γ)/2,  η = ε/(2L)

The idea is that of Wang, Yan and Fan (2021), who show K/((1-γ)³ε²) without naming a constant. These N are *our own
proofs*, the two of `plug_in` with K anchors in the place of its n pairs. The estimated model, which takes an anchor k
with probability F_k(s,a) and then draws one of its N samples again, reward and next state together, is an MDP because F
≥ 0 and Σ_k F_k = 1. Let e_k be the error of the mean of r + γV*(s') at anchor k, where V* is fixed and the variable in
[0, L]. Q* = F Q*_K in a linear MDP, so the estimated backup T̂ has T̂Q* = Q* + e with e = F e_K. All that `plug_in`
needs to know of the errors beyond that is one of two bounds.

* ``hoeffding``: with probability 1 - δ all |e_k| ≤ L √(log(2K/δ)/2N), hence |e| as well: F has averages.
* ``bernstein``: with probability 1 - δ all |e_k| ≤ a σ̂_k + (7/6)L a², with σ̂_k the standard deviation of r + γV*(s')
  among the samples of anchor k. What `plug_in` uses is |e| ≤ a σ̂ + (7/6)L a² at every pair, with σ̂ the standard
  deviation in the estimated model. A mixture varies at least as much as its parts,

      σ̂² = Σ_k F_k σ̂_k² + variance of the means of the anchors ≥ Σ_k F_k σ̂_k² ≥ (Σ_k F_k σ̂_k)²,

  so |e| ≤ Σ_k F_k |e_k| ≤ a Σ_k F_k σ̂_k + (7/6)L a² ≤ a σ̂ + (7/6)L a². The rest is there: it is about the policies of
  an MDP and the variance of their returns in it, and does not ask where its rows come from.

With combinations that are not convex T̂ need not contract, and nothing is proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bestpolicy._numerics.inputs import choice
from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, only_anchored
from bestpolicy.algorithms.peers.plug_in import samples_each
from bestpolicy.algorithms.peers.tabular import equal_pulls
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.design.anchors import anchors
from bestpolicy.planning import optimal_plan
from bestpolicy.problem import Problem

Budget = Literal["smallest", "hoeffding", "bernstein"]
BUDGETS: tuple[Budget, ...] = ("smallest", "hoeffding", "bernstein")


@dataclass(frozen=True)
class LinearPlugIn(Budgeted):
    """Plan in a model estimated at the anchors, for discounted problems and ε > 0.

    Attributes
    ----------
    budget : {"smallest", "hoeffding", "bernstein"}
        Which bound sets the number of samples; by default the one that asks for fewer.
    """

    name: ClassVar[str] = "linear-plug-in"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="anchors: pairs whose features have all others in their convex hull",
        guarantee="within ε of optimal in every state",
        complexity="K / ((1-γ)⁵ ε²), where K ≥ d is the number of anchors; (1-γ)⁶ with budget 'hoeffding'",
        constants="own proof",
        reference="cf. Wang, Yan, Fan: Sample-Efficient Reinforcement Learning for Linearly-Parameterized MDPs with a "
        "Generative Model",
    )

    budget: Budget = "smallest"

    def __post_init__(self) -> None:
        choice("budget", self.budget, BUDGETS)

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems with anchors only."""
        return only_anchored(problem)

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """K·N."""
        return len(anchors(problem).pairs) * self.samples_per_anchor(problem, epsilon, delta)

    def samples_per_anchor(self, problem: Problem, epsilon: float, delta: float) -> int:
        """Return N."""
        return samples_each(problem, len(anchors(problem).pairs), epsilon, delta, self.budget)

    def run(self, task: Task) -> Run:
        """Sample once, plan once."""
        budget = FixedBudget.of(self, task, f"linear plug-in, {self.budget} budget (own proof)")
        problem, corners = task.problem, anchors(task.problem)
        samples = int(budget.samples) // len(corners.pairs)
        tally = yield Request(equal_pulls(corners.pairs, samples))
        # The estimated model is linear in the coefficients F, which serve as features.
        features = np.zeros((problem.mask.size, len(corners.pairs)))
        features[problem.pairs] = corners.coefficients
        model = problem.with_features(features.reshape(*problem.mask.shape, -1))
        plan = optimal_plan(model, tally.reward_sums / samples, tally.next_counts.swapaxes(1, 2) / samples)
        return budget.check(tally.samples, plan.policy, plan.q_values)
