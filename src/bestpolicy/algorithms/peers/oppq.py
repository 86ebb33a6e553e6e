"""OPPQ-Learning: variance-reduced value iteration at anchors [Yang, Wang 2019, Algorithm 2].

    anchors k = 1..K: corners of the convex hull of the features; φ(s,a) = Σ_k F_k(s,a) φ_k,  F ≥ 0,  Σ_k F_k = 1
    come nearer to V* from below as in `variance_reduced`, with samples of the anchors alone

Structure and orders are the reference's. It hides its constants: those here are what *our own proof*, in
`variance_reduced`, needs. Rewards are known to the reference. Here they are learned from the same samples, unless
`rewards` are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bestpolicy.algorithms.peers.budget import FixedBudget
from bestpolicy.algorithms.peers.rewards import known_rewards, reward_table, why_not_these
from bestpolicy.algorithms.peers.suitability import only_anchored
from bestpolicy.algorithms.peers.variance_reduced import halve_the_error, samples_in_all
from bestpolicy.algorithms.protocol import About, Run, Task
from bestpolicy.design.anchors import anchors
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class OPPQ:
    """Optimal parametric phased Q-learning, for discounted problems with anchors and ε > 0.

    Attributes
    ----------
    rewards : table (S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    name: ClassVar[str] = "oppq"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="anchors: pairs whose features have all others in their convex hull",
        guarantee="an ε for the policy after every halving, at the end the asked one, in every state",
        complexity="K / ((1-γ)³ ε²), where K ≥ d is the number of anchors",
        constants="own proof",
        reference="Yang, Wang: Sample-Optimal Parametric Q-Learning Using Linearly Additive Features, Algorithm 2",
    )
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    rewards: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", reward_table(self.rewards))

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems with anchors only."""
        return only_anchored(problem) or why_not_these(self.rewards, problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """All K·Σ(m + R·m₁) of them."""
        return samples_in_all(problem, len(anchors(problem).pairs), epsilon, delta)

    def run(self, task: Task) -> Run:
        """Halve the distance to V* from below, round by round."""
        budget, corners = FixedBudget.of(self, task, "OPPQ-Learning budget (own proof)"), anchors(task.problem)
        rewards = known_rewards(self.rewards)
        return (yield from halve_the_error(budget, task.delta, corners.pairs, corners.table, rewards))
