"""BPI-UCBVI: empirical Bernstein bonuses, and a bound of its own on what the played policy loses (Ménard, Domingues,
Jonsson, Kaufmann, Leurent and Valko 2021).

With n visits of (h, s, a), T such triples, β = log(3T/δ) + S·log(8e(n+1)) and β* = log(3T/δ) + log(8e(n+1)):

    b = 3√(Var_p̂(U)β*/n) + c·H²β/n + p̂(U - L)/H  [+ √(β*/2n) if rewards are learned]
    U(s,a) = min( H-h, r̂ + p̂U + b ),   L(s,a) = max( 0, r̂ + p̂L - b ),   U(s) and L(s) their largest
    G(s,a) = min( H, 6√(Var_p̂(U)β*/n) + C·H²β/n + (1 + 3/H)·p̂G(·, π) [+ 2√(β*/2n)] )
    play the greedy policy π of U until G(s, π(s)) ≤ ε at the start; return π

The reference has c = 14, C = 36. Our own proof below needs c = 8, C = 21.

*Guarantee.* Three events, δ/3 each and at all n: n·KL(p̂, p) ≤ β (`kl_ball`); |(p̂-p)V*| ≤ √(2Var_p(V*)β*/n) + 3Hβ*/n
(Bernstein's inequality at all times, in a form of the reference that is quoted from memory; a test compares it with
what Freedman's inequality on a grid of times gives); |r̂ - r| ≤ √(β*/2n) (`kl_ball` for m = 2, Pinsker's inequality).
In a ball KL(p̂, p) ≤ α, for 0 ≤ f ≤ H: p̂f - pf ≤ √(2Var_p(f)α) + Hα/3 in either direction (Donsker and Varadhan,
Bernstein), and Var_p(f) ≤ 2Var_p̂(f) + 2H²α (the same from below, p̂g ≥ pg - √(2H²α·pg), for g = (f - p̂f)²).

1. Let L ≤ V* ≤ U at the next step. Var_p̂(V*) ≤ 2Var_p̂(U) + 2Hp̂(U-L), so √(2Var_p(V*)β*/n) is at most the sum of
   √(8Var_p̂(U)β*/n), √(8Hp̂(U-L)β*/n) ≤ p̂(U-L)/H + 2H²β*/n, and √8·Hβ/n: b covers |(p̂-p)V*| with c = 8, and L ≤ V* ≤
   U at this step.
2. U - L ≤ G at π without any event: U(s) - L(s) ≤ U(s,π) - L(s,π) ≤ 2b + p̂(U-L), and induction.
3. Let f = V* - V^π at the next step: |(p̂-p)f| ≤ √(4Hp̂f·β/n) + 3.5Hβ/n ≤ p̂f/H + 4.5H²β/n. U - V^π at (s, π(s)) is at
   most 2b + p̂(U - V^π) + |(p̂-p)f|, that is 6√(Var_p̂(U)β*/n) + (2c + 4.5)H²β/n + (1 + 3/H)p̂G: by induction it is at
   most G.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log
from typing import ClassVar, Literal

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.inputs import choice
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.online import Bounds, Counting, FollowsPolicies, StepMeans, about, best_values, played
from bestpolicy.algorithms.protocol import About, Task
from bestpolicy.problem import Problem

CONSTANTS = {"printed": (14.0, 36.0), "derived": (8.0, 21.0)}


@dataclass(frozen=True)
class BPIUCBVI(FollowsPolicies):
    """Best policy identification with Bernstein bonuses, from episodes.

    Its parameters are those of `Explores`, and

    Attributes
    ----------
    constants : {"derived", "printed"}
        c and C: the smaller ones that the proof needs, or those of the reference.
    """

    name: ClassVar[str] = "bpi-ucbvi"
    about: ClassVar[About] = about(
        features="tabular",
        complexity="S A H³ log(1/δ) / ε² episodes, for small ε",
        constants='own proof, or exact (constants="printed"); one inequality is quoted from memory',
        reference="Ménard, Domingues, Jonsson, Kaufmann, Leurent, Valko: Fast Active Learning (2021)",
    )
    rule: ClassVar[str] = "BPI-UCBVI"

    check_ratio: float = 1.1
    constants: Literal["derived", "printed"] = "derived"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("constants", self.constants, tuple(CONSTANTS))

    def learner(self, task: Task, start: FloatArray) -> BernsteinBounds:
        """Return bounds with bonuses."""
        return BernsteinBounds(self, task, start)


class BernsteinBounds(Counting[BPIUCBVI]):
    """U, L and G from all that was seen."""

    def bounds(self, number: int) -> Bounds:
        """Bound V* from both sides, and the loss of the greedy policy."""
        problem, means = self.problem, StepMeans.of(self.problem, self.tally)
        steps, (small, large) = problem.stages, CONSTANTS[self.algorithm.constants]
        n = np.maximum(means.visits, 1)
        of_value, of_law = log_terms(problem, means.visits, self.delta)
        rewards = means.rewards if self.rewards is None else self.rewards
        of_reward = np.sqrt(of_value / (2 * n)) * (self.rewards is None)
        upper, lower, loss = (np.zeros(problem.states) for _ in range(3))
        q_values = np.empty((steps, *problem.mask.shape))
        policy = np.empty((steps, problem.states), np.int64)
        for h in reversed(range(steps)):
            p, unknown = means.transitions[h], means.unvisited[h]
            mean = p @ upper
            variance = np.maximum(p @ upper**2 - mean**2, 0.0)
            deviation, rest = np.sqrt(variance * of_value[h] / n[h]), steps**2 * of_law[h] / n[h]
            bonus = 3 * deviation + small * rest + p @ (upper - lower) / steps + of_reward[h]
            highest = np.where(unknown, steps - h, np.minimum(rewards[h] + mean + bonus, steps - h))
            lowest = np.where(unknown, 0.0, np.maximum(rewards[h] + p @ lower - bonus, 0.0))
            losses = 6 * deviation + large * rest + (1 + 3 / steps) * (p @ loss) + 2 * of_reward[h]
            losses = np.where(unknown, steps, np.minimum(losses, steps))
            q_values[h], upper = best_values(problem, highest)
            lower = best_values(problem, lowest)[1]
            policy[h] = greedy(q_values[h])
            loss = losses[played(problem, policy[h])]
        return Bounds(policy, policy, float(self.start @ loss), q_values)


def log_terms(problem: Problem, visits: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Return β* and β of every number of visits."""
    of_triples, of_visits = log(3 * visits.size / delta), np.log(8 * e * (visits + 1))
    return of_triples + of_visits, of_triples + problem.states * of_visits
