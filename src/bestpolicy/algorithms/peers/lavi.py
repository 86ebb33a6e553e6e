"""LAVI: value iteration backwards from samples of a few pairs [Zanette, Lazaric, Kochenderfer, Brunskill 2019].

    choose K pairs from which every feature is φ(s,a) = Σ_k c_k(s,a) φ_k,  C = max Σ_k |c_k|
    V_H = 0
    for h = H-1, ..., 0
        y_k    = mean of r + V_{h+1}(s') over n_h fresh samples of each of the K pairs at step h
        Q_h    = Σ_k c_k y_k,   π_h = greedy policy of Q_h
        V_h(s) = max_a Q_h(s,a), clipped to [0, H-h]
    return π

    n_h = ⌈ 2 C² W² (H-h)^{2/3} log(2KH/δ) / ε² ⌉,    W = Σ_h (H-h)^{2/3} = 1 + 2^{2/3} + ... + H^{2/3} ≈ (3/5) H^{5/3}

The pairs are the anchors (C = 1) or a barycentric spanner (K = d), whichever needs fewer samples. The structure is the
reference's, n_h is *our own proof*. V_{h+1} is fixed before the samples of step h, and r + V_{h+1}(s') is in [0, H-h],
so by Hoeffding and a union over KH means |y - (r + P V_{h+1})| ≤ e_h = (H-h)√(log(2KH/δ)/2n_h). In a linear MDP r + P
V_{h+1} is itself linear in the features, so extrapolation multiplies the noise by C but not the error of V_{h+1}, and
clipping brings V_h no farther from V*_h or V^π_h, which are in [0, H-h] too: both V* - V_0 and V_0 - V^π are at most C
Σ_h e_h. Here e_h = ε (H-h)^{2/3}/(2CW), which makes that ε/2. Of all n_h with the same sum of errors these have the
least sum (Lagrange: the derivative of e_h is proportional to e_h/n_h, so all e_h/n_h are equal).

(The reference assumes only that Q* is linear; then errors grow by C at every step, and C e_h becomes C^{h+1} e_h.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar

import numpy as np

from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget, rounded_up, useful
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.design.anchors import Extrapolation, anchors, barycentric_spanner
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls


@dataclass(frozen=True)
class LAVI(Budgeted):
    """Linear approximate value iteration with few pairs; nothing to set."""

    name: ClassVar[str] = "lavi"
    about: ClassVar[About] = About(
        setting="episodic",
        features="linear",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="K C² H⁵ / ε², with K anchors (C = 1) or K = d pairs of extrapolation constant C ≤ d",
        constants="own proof",
        reference="Zanette, Lazaric, Kochenderfer, Brunskill: Limiting Extrapolation in Linear Approximate Value "
        "Iteration",
    )

    def unsuitable(self, problem: Problem) -> str:
        """Episodic problems only."""
        return "" if problem.horizon is not None else "it is for episodic problems; use 'ppq'."

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """K·Σn."""
        chosen, samples = self.sizes(problem, epsilon, delta)
        return len(chosen.pairs) * sum(samples)

    def sizes(self, problem: Problem, epsilon: float, delta: float) -> tuple[Extrapolation, list[int]]:
        """Return the pairs to sample, and the number of samples n of each at every step."""
        shares = [float(limit) ** (2 / 3) for limit in problem.value_limits]

        def samples(chosen: Extrapolation) -> list[int]:
            confidence = log(2 * len(chosen.pairs) * problem.stages / delta)
            root = rounded_up(chosen.constant) * sum(shares) / useful(epsilon, problem)
            return [ceil(2 * root**2 * share * confidence) for share in shares]

        choices = (anchors(problem), barycentric_spanner(problem))
        chosen = min(choices, key=lambda choice: len(choice.pairs) * sum(samples(choice)))
        return chosen, samples(chosen)

    def run(self, task: Task) -> Run:
        """Induct backwards, with fresh samples at each step."""
        budget, problem = FixedBudget.of(self, task, "LAVI budget (own proof)"), task.problem
        chosen, samples = self.sizes(problem, task.epsilon, task.delta)

        values, done = np.zeros(problem.states), 0
        q_values = np.tile(np.where(problem.mask, 0.0, -np.inf), (problem.stages, 1, 1))
        check = None
        for stage in reversed(range(problem.stages)):
            counts = np.zeros((problem.stages, len(chosen.pairs)), dtype=np.int64)
            counts[stage] = samples[stage]
            tally = yield Request(Pulls(chosen.pairs, counts), check)
            sums = tally.reward_sums[stage] + tally.next_counts[stage] @ values
            q_values[stage] = chosen.table(sums / samples[stage])
            values = np.clip(q_values[stage].max(axis=1), 0.0, problem.value_limits[stage])
            done += tally.samples
            check = budget.check(done, q_values.argmax(axis=2), q_values)
        assert check is not None
        return check
