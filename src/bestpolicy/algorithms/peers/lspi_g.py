"""LSPI-G: policy iteration with rollouts from a G-optimal design [Lattimore, Szepesvári, Weisz 2020].

    (C, ρ) = G-optimal design, g = max_{s,a} ‖φ(s,a)‖² in G⁻¹, where G = Σ_{z∈C} ρ(z) φ(z)φ(z)ᵀ
    π = any policy
    repeat K times
        R̂(z) = mean return of m rollouts of length H from each pair z of C, following π
        θ̂ = G⁻¹ Σ_z ρ(z) R̂(z) φ(z)
        π = greedy policy of Φθ̂
    return π

    γᴷ ≤ γε(1-γ)/2,    γᴴ ≤ (1-γ)³ε/(8√g),    m = ⌈ 32 g log(2|C|K/δ) / ((1-γ)⁶ε²) ⌉

The constants are *exact*: those of the theorem (in the form of Szepesvári's lecture notes on RL theory), with the
measured g ≤ 1.001 d where it has d, and with 2|C| where it has the bound (d+1)². Checked: rollouts are cut off at a
loss of γᴴ/(1-γ), and by Hoeffding their means err by √(log(2|C|K/δ)/2m)/(1-γ), each at most (1-γ)²ε/(8√g). By
Cauchy-Schwarz Φθ̂ is within √g times the sum of both, e = (1-γ)²ε/4, of Q^π; a step of policy iteration with that error
leads from V* - V to at most γ(V* - V) + 2e/(1-γ); so V* - V^π ≤ γᴷ/(1-γ) + 2e/(1-γ)² ≤ ε/2 + ε/2. The rollouts of one
iteration follow a policy that was fixed before them, so the union is over |C|K means alone.

It needs that the action values of every policy are linear in the features, no more, and pays for it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy._numerics.inputs import number
from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, only_discounted, rounded_up, useful
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.design import Design, g_optimal_design
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class LSPIG(Budgeted):
    """Least-squares policy iteration with a G-optimal design.

    Attributes
    ----------
    design_tolerance : float
        The worst leverage g of the design is at most (1 + tolerance)·d.
    """

    name: ClassVar[str] = "lspi-g"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="d |C| / ((1-γ)⁸ ε²), where |C| ≤ d(d+1)/2 is the number of pairs in the design",
        constants="exact",
        reference="Lattimore, Szepesvári, Weisz: Learning with Good Feature Representations in Bandits and in RL with "
        "a Generative Model",
    )

    design_tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if not 1e-10 <= number("design_tolerance", self.design_tolerance) <= 1:
            raise InvalidInput(f"design_tolerance must lie in [1e-10, 1]. Got {self.design_tolerance} instead.")

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only."""
        return only_discounted(problem, "lavi")

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """K·|C|·m·H."""
        design = self.design(problem)
        iterations, length, rollouts = self.sizes(problem, design, epsilon, delta)
        return iterations * len(design.indices) * rollouts * length

    def design(self, problem: Problem) -> Design:
        """Return the pairs to start from, rows of ``problem.pair_features``."""
        return g_optimal_design(problem.pair_features, tolerance=self.design_tolerance)

    def sizes(self, problem: Problem, design: Design, epsilon: float, delta: float) -> tuple[int, int, int]:
        """Return the iterations K, the length H of a rollout, and the rollouts m of each pair in an iteration."""
        epsilon, remaining = useful(epsilon, problem), 1 - problem.continuation
        leverage = rounded_up(design.worst_leverage)
        steps = 1 / log(1 / problem.continuation)
        iterations = 1 + ceil(steps * log(2 / (epsilon * remaining)))
        length = max(1, ceil(steps * log(8 * leverage**0.5 / (remaining**3 * epsilon))))
        confidence = log(2 * len(design.indices) * iterations / delta)
        return iterations, length, ceil(32 * leverage * confidence / (remaining**6 * epsilon**2))

    def run(self, task: Task) -> Run:
        """Evaluate by rollouts, improve, and so on."""
        budget, problem = FixedBudget.of(self, task, "LSPI-G budget"), task.problem
        design = self.design(problem)
        iterations, length, rollouts = self.sizes(problem, design, task.epsilon, task.delta)
        roots = np.sqrt(design.weights)
        regressors = roots[:, None] * problem.pair_features[design.indices]

        policy = problem.mask.argmax(axis=1)
        check = None
        for iteration in range(1, iterations + 1):
            returns = np.empty(len(roots))
            for k, start in enumerate(problem.pairs[design.indices]):
                returns[k] = yield from mean_return(problem, int(start), policy, rollouts, length, check)
                check = None
            theta = np.linalg.lstsq(regressors, roots * returns)[0]
            q_values = np.where(problem.mask, problem.features @ theta, -np.inf)
            policy = q_values.argmax(axis=1)
            done = iteration * len(roots) * rollouts * length
            check = budget.check(done, policy, q_values)
        assert check is not None
        return check


def mean_return(
    problem: Problem, start: int, policy: IntArray, rollouts: int, length: int, check: Check | None = None
) -> Generator[Request, Tally, float]:
    """Estimate Q^π of a pair: ``value = yield from mean_return(...)``.

    Rollouts that follow the same policy do not care which of them is where, so it is enough to know how many are in
    each state: these counts are the pulls of the next step, and the counts of next states are those of the step after.
    A million million rollouts cost what one does, and their mean return has exactly the law of drawing them one by one.
    Rollouts from different start pairs are asked for one after the other, because a `Tally` does not say which of two
    rollouts that meet in a state came from where.

    Parameters
    ----------
    problem : Problem
    start : int
        Flat index of the pair from which all rollouts start.
    policy : int array (S,)
        Followed from the second step on.
    rollouts, length : int
        How many, and how many steps each takes; rollouts · length simulator calls in all.
    check : Check, optional
        What to report on the way.

    Returns
    -------
    float
        Mean of Σ_{t < length} γᵗ r_t.
    """
    pairs, counts = np.array([start]), np.array([rollouts])
    total, weight = 0.0, 1.0
    for _ in range(length):
        tally = yield Request(Pulls(pairs, counts[None]), check)
        total += weight * float(tally.next_rewards.sum())
        weight *= problem.continuation
        population = tally.next_counts[0].sum(axis=0)
        states = np.flatnonzero(population)
        pairs, counts, check = states * problem.actions + policy[states], population[states], None
    return total / rollouts
