"""PPQ-Learning: phased Q-learning at d pairs [Yang, Wang 2019, Algorithm 1].

    choose d pairs from which every feature is φ(s,a) = Σ_k c_k(s,a) φ_k,  L = max Σ_k |c_k|     (barycentric spanner)
    Q = 0
    for t = 1, ..., T
        V(s) = max_a Q(s,a), clipped to [0, 1/(1-γ)]
        y_k  = mean of r + γV(s') over m_t fresh samples of each of the d pairs
        Q    = Σ_k c_k y_k
    return the greedy policy of Q

    η = ε(1-γ)/2,    q = γ^{2/3},    T = ⌈ log(64/(η(1-γ))) / log(1/γ) ⌉
    w = (η - γᵀ/(1-γ))(1-q)/(1-q^T),    m_t = ⌈ q^{T-t} L² log(2dT/δ) / (2(1-γ)²w²) ⌉

The algorithm is the reference's, but for its rewards, which are known there and learned here along with the rest
(r is linear in the same features), and but for its phases, which are equally long there: those here grow, as in
`phased_q`. T and m_t are *our own proof*; the reference hides them in a Θ. V is fixed before its samples, so E y_k is
TV at pair k, and TV = Σ_k c_k TV_k everywhere. By Hoeffding a single mean of phase t misses TV_k by more than e_t =
√(log(2dT/δ)/2m_t)/(1-γ) with probability at most δ/(dT); there are d in each of T phases, so all hold together with
probability 1 - δ. Then |Q - TV| ≤ L e_t ≤ w γ^{-(T-t)/3}, and clipping brings V only nearer to V*. Hence

    |Q - Q*| ≤ γᵀ/(1-γ) + Σ_t γ^{T-t} L e_t ≤ γᵀ/(1-γ) + w Σ_t q^{T-t} = η

in the end, and a greedy policy loses at most 2|Q - Q*|/(1-γ) ≤ ε. Fresh samples in every phase are essential: with
L > 1 an estimated model need not contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, only_discounted, rounded_up
from bestpolicy.algorithms.peers.phased_q import Phases, back_up
from bestpolicy.algorithms.protocol import About, Run, Task
from bestpolicy.design.anchors import barycentric_spanner
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class PPQ(Budgeted):
    """Parametric phased Q-learning; nothing to set."""

    name: ClassVar[str] = "ppq"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="d L² / ((1-γ)⁷ ε²), where L ≤ d is the extrapolation constant of d pairs",
        constants="own proof",
        reference="Yang, Wang: Sample-Optimal Parametric Q-Learning Using Linearly Additive Features, Algorithm 1",
    )

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return only_discounted(problem, "lavi")

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """d·Σm."""
        return problem.dimension * self.phases(problem, epsilon, delta).samples

    def phases(self, problem: Problem, epsilon: float, delta: float) -> Phases:
        """Return the sizes of all phases."""
        growth = rounded_up(barycentric_spanner(problem).constant)
        return Phases.of(problem, problem.dimension, epsilon, delta, growth)

    def run(self, task: Task) -> Run:
        """Repeat value iteration from fresh samples of d pairs."""
        budget = FixedBudget.of(self, task, "PPQ-Learning budget (own proof)")
        spanner = barycentric_spanner(task.problem)
        phases = self.phases(task.problem, task.epsilon, task.delta)
        return (yield from back_up(budget, phases, spanner.pairs, spanner.table))
