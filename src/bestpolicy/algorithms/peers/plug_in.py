"""Plug-in: sample every pair equally often, return the optimal policy of the model that the counts make.

    draw N samples of every pair
    return an optimal policy of the empirical model (rewards are learned too)

Three numbers N, with n allowed pairs and L = 1/(1-γ). All rest on proofs of our own, for random rewards in [0, 1]. The
smallest is taken by default: which one that is does not depend on the samples, so its own proof is enough. Let e be the
error of the empirical mean of r + γV*(s'), a *fixed* variable in [0, L], and T̂ the backup of the empirical model, so
that T̂Q* = Q* + e. A greedy policy of Q̂ loses at most 2L ‖Q̂ - Q*‖, so Q̂ has to be within η = ε/(2L).

- ``hoeffding``: N = ⌈ 2 L⁶ log(2n/δ) / ε² ⌉. T̂ is a γ-contraction, so ‖Q̂ - Q*‖ ≤ L‖e‖, and ‖e‖ ≤ L √(log(2n/δ)/2N).

- ``bernstein``: N = 1 + ⌈ 2 log(4n/δ) / a² ⌉ with a the positive root of (7/6)L² a² + (s L^{3/2} + γLη) a = η and s =
  √(1+γ)/2; about 2(1+γ) L⁵ log(4n/δ)/ε². The argument is that of Azar, Munos and Kappen. With π* optimal and π̂
  greedy for Q̂,

      Q* - Q̂ ≤ Q* - Q̂^{π*} = -(I - γP̂^{π*})⁻¹ e,        Q̂ - Q* ≤ (I - γP̂^{π̂})⁻¹ e,

  because T̂^{π*}Q* = Q* + e and T̂^{π̂}Q* ≤ Q* + e. By empirical Bernstein (Maurer and Pontil 2009, Theorem 4), at
  all pairs and to both sides with probability 1 - δ, |e| ≤ a σ̂(V*) + (7/6) L a² with a² = 2 log(4n/δ)/(N-1) and
  σ̂(V) the standard deviation of r + γV(s') in the empirical model. To replace V* by the empirical value V̂^π of the
  policy π at hand costs at most γ‖V* - V̂^π‖ ≤ γ‖Q* - Q̂^π‖. And (I - γ²P̂^π)⁻¹ σ̂²(V̂^π) is the variance of the
  return in the empirical model (which draws its samples of a pair again, rewards and next states together), at most
  L²/4, hence (I - γP̂^π)⁻¹ σ̂(V̂^π) ≤ √(L (1+γ) L²/4) = s L^{3/2}. So z = ‖Q* - Q̂^{π*}‖ obeys z ≤ a (s L^{3/2} + γLz)
  + (7/6) L² a², which makes z ≤ η by the choice of a. And if ‖Q̂ - Q*‖ were more than η, it would be the maximum of Q̂ -
  Q* and obey the same inequality. For small ε this N is some L/(1+γ) times less than the first.

- ``azar``: N = ⌈ 68 L³ log(12n/δ) / η² ⌉ (Azar, Munos, Kappen 2013; constants from memory of the reference, where
  rewards are known). For η ≤ 1 it is never less than ``bernstein``, where 1/a² ≤ (2s²L³ + 2γ²L²η² + (7/3)L²η)/η² ≤
  (16/3)L³/η²: so it is proved here too.

The model is solved by policy iteration, exactly up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import ClassVar, Literal

from bestpolicy._numerics.inputs import choice
from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, useful
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, equal_pulls, plan
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.problem import Problem

Budget = Literal["smallest", "hoeffding", "bernstein", "azar"]
BUDGETS: tuple[Budget, ...] = ("smallest", "hoeffding", "bernstein", "azar")


@dataclass(frozen=True)
class PlugIn(Budgeted):
    """The optimal policy of the empirical model, for discounted problems and ε > 0.

    Attributes
    ----------
    budget : {"smallest", "hoeffding", "bernstein", "azar"}
        Which theorem sets the number of samples; by default the one that asks for the fewest.
    """

    name: ClassVar[str] = "plug-in"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="S A / ((1-γ)⁵ ε²); S A / ((1-γ)⁶ ε²) with budget 'hoeffding'",
        constants="own proof; budget 'azar' from memory of the reference, proved here",
        reference="Azar, Munos, Kappen: Minimax PAC Bounds on the Sample Complexity of Reinforcement Learning (2013)",
    )

    budget: Budget = "smallest"

    def __post_init__(self) -> None:
        choice("budget", self.budget, BUDGETS, "Those without a proof are in 'plug-in-no-guarantee'.")

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """n·N."""
        return len(problem.pairs) * samples_each(problem, len(problem.pairs), epsilon, delta, self.budget)

    def run(self, task: Task) -> Run:
        """Draw N samples of every pair, plan."""
        budget, pairs = FixedBudget.of(self, task, f"plug-in, {self.budget} budget (own proof)"), task.problem.pairs
        tally = yield Request(equal_pulls(pairs, int(budget.samples) // len(pairs)))
        best = plan(EmpiricalModel.of(task.problem, tally))
        return budget.check(tally.samples, best.policy, best.q_values)


def samples_each(problem: Problem, pairs: int, epsilon: float, delta: float, budget: Budget) -> int:
    """Return the N of a budget, if so many pairs are sampled."""
    if budget == "smallest":
        return min(samples_each(problem, pairs, epsilon, delta, proved) for proved in ("hoeffding", "bernstein"))
    epsilon, gamma = useful(epsilon, problem), problem.continuation
    limit: float = 1 / (1 - gamma)
    accuracy = epsilon / (2 * limit)
    if budget == "hoeffding":
        return ceil(2 * limit**6 * log(2 * pairs / delta) / epsilon**2)
    if budget == "azar":
        return ceil(68 * limit**3 * log(12 * pairs / delta) / accuracy**2)
    linear = sqrt((1 + gamma) * limit**3) / 2 + gamma * limit * accuracy
    root = 2 * accuracy / (linear + sqrt(linear**2 + 14 / 3 * limit**2 * accuracy))
    return 1 + ceil(2 * log(4 * pairs / delta) / root**2)
