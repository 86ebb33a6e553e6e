"""LSVI-UCB: optimistic least-squares value iteration (Jin, Yang, Wang and Jordan 2020), stopped by a certificate.

    for steps h from the last to the first, data of step h only, G = I + Σφφᵀ:
        ŵ = G⁻¹Σφ(r + U_{h+1}(s')),     U(s,a) = min( H-h, φᵀŵ + β‖φ‖_{G⁻¹} ),   U(s) = max_a U(s,a)
        the same from below:            L(s,a) = max( 0, φᵀw̃ - β‖φ‖_{G⁻¹} ),    L(s) = max_a L(s,a)
    play the greedy policy of U
    until U - L ≤ ε at the start; return the greedy policy of L

The reference plays for a number of episodes that follows from its regret and returns a policy drawn from those played
(`bounds.lsvi_ucb_episodes` says how many); the certificate is ours. L uses max_a: its policy has V^π ≥ L, and L is a
function of (w̃, G) alone, as U is. (Values of the *played* policy from below would need a cover of functions that jump
where actions tie.)

At the j-th look, after k episodes, δ_j = 6δ/(π²j²), with η = dH/k and β the solution of

    β = 4H√d + √( 4H²( (d/2)·log(1+k) + log N + log(2H/δ_j) ) + 8k²η² ),
    log N = d·log(1 + 8H√(dk)/η) + d²·log(1 + 8√d·β²/η²),     or 2S·log(1 + H/η) with cover="states".

*Proof.* Fix a step, k, and a function V: S → [0, H-h-1]. r + V(s') has noise in an interval of length H, so with
probability 1 - δ' ‖Σφη‖²_{G⁻¹} ≤ 2H²( (d/2)·log(1+k) + log 1/δ' ) (`ridge`, with R/2 replaced by H). V is not fixed,
but within η of one of N functions: noise changes by 2η at most, ‖Σφ·2η‖²_{G⁻¹} ≤ 4η²k², and (a+b)² ≤ 2a² + 2b² gives
what is under the root, with δ' = δ_j/(2HN) for U and for L. The parameter of r + V has norm at most √σ·H ≤ 4H√d
(`ridge`). So |φᵀŵ - E(r + V)| ≤ β‖φ‖_{G⁻¹}. Functions U are given by w, ‖w‖ ≤ H√(dk), and the matrix β²G⁻¹ of
Frobenius norm at most √d·β²: balls of radius η/2 and η²/4 around (1 + 8H√(dk)/η)^d·(1 + 8√dβ²/η²)^{d²} of them (a ball
of radius ρ has an x-net of (1 + 2ρ/x)^dim points), as |min, max_a and the root of a sum| change by no more than their
arguments. L: the same. Functions S → [0, H]: a grid of steps 2η. Σδ_j = δ. QED

Looks are after numbers of episodes that are fixed beforehand, so k needs no union. Optimism and pessimism then follow
by induction over the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, log1p, pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import choice
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.online import Bounds, Counting, FollowsPolicies, about, best_values
from bestpolicy.algorithms.peers.ridge import Coordinates, Fit
from bestpolicy.algorithms.protocol import About, Task
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class LSVIUCB(FollowsPolicies):
    """Optimistic least-squares value iteration with a certificate, from episodes.

    Its parameters are those of `Explores`, and

    Attributes
    ----------
    cover : {"states", "features"}
        Which functions β has to cover: all of finitely many states, if those are fewer, or those of the features, as in
        the reference.
    """

    name: ClassVar[str] = "lsvi-ucb"
    about: ClassVar[About] = about(
        features="linear",
        complexity="d³ H³ log(1/δ) / ε² episodes",
        constants="own proof, of an explicit β in the form of the reference",
        reference="Jin, Yang, Wang, Jordan: Provably Efficient RL with Linear Function Approximation (2020)",
    )
    rule: ClassVar[str] = "LSVI-UCB (own proof)"

    check_ratio: float = 1.1
    cover: Literal["states", "features"] = "states"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("cover", self.cover, ("states", "features"))

    def radius(self, problem: Problem, episodes: int, delta: float, looks: int) -> float:
        """β at a look."""
        covered = problem.states if self.cover == "states" else None
        share = 6 * delta / (pi * looks) ** 2
        return explicit_radius(problem.dimension, problem.stages, episodes, share, covered)

    def learner(self, task: Task, start: FloatArray) -> Regression:
        """Return the regressions of all steps."""
        return Regression(self, task, start)


class Regression(Counting[LSVIUCB]):
    """U and L by least squares on all that was seen."""

    def __init__(self, algorithm: LSVIUCB, task: Task, start: FloatArray) -> None:
        super().__init__(algorithm, task, start)
        self.features = Coordinates.of(task.problem).features

    def bounds(self, number: int) -> Bounds:
        """Bound V* from both sides, from the last step to the first."""
        problem, steps = self.problem, self.problem.stages
        full = self.tally.at(problem.pairs)
        visits, counts = full.pulls.astype(np.float64), full.next_counts.astype(np.float64)
        beta = self.algorithm.radius(problem, int(visits[0].sum()), self.delta, max(1, number))
        upper, lower = np.zeros(problem.states), np.zeros(problem.states)
        q_upper, q_lower = (np.empty((steps, *problem.mask.shape)) for _ in range(2))
        for h in reversed(range(steps)):
            fit = Fit.of(self.features, visits[h])
            targets = counts[h] @ np.column_stack([upper, lower])
            if self.rewards is None:
                targets += full.reward_sums[h][:, None]
            means = fit.predict(targets) + (0.0 if self.rewards is None else self.rewards[h][:, None])
            q_upper[h], upper = best_values(problem, np.minimum(means[:, 0] + beta * fit.widths, steps - h))
            q_lower[h], lower = best_values(problem, np.clip(means[:, 1] - beta * fit.widths, 0.0, steps - h))
        return Bounds(greedy(q_upper), greedy(q_lower), float(self.start @ (upper - lower)), q_upper)


def explicit_radius(dimension: int, horizon: int, episodes: int, delta: float, states: int | None = None) -> float:
    """Return β for k episodes; with a number of states it covers all functions of them, if those are fewer."""
    d, k = dimension, max(1, episodes)
    eta = d * horizon / k
    of_states = inf if states is None else 2 * states * log1p(horizon / eta)
    beta = 4 * horizon * sqrt(d)
    for _ in range(100):  # the right side grows like √log β: a contraction
        log_n = d * log1p(8 * horizon * sqrt(d * k) / eta) + d**2 * log1p(8 * sqrt(d) * beta**2 / eta**2)
        nats = d / 2 * log1p(k) + min(log_n, of_states) + log(2 * horizon / delta)
        beta = 4 * horizon * sqrt(d) + sqrt(4 * horizon**2 * nats + 8 * (k * eta) ** 2)
    return beta
