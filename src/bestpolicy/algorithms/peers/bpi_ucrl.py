"""BPI-UCRL: optimistic and pessimistic values over Kullback-Leibler balls (Kaufmann, Ménard, Domingues, Jonsson,
Leurent and Valko 2021).

    for steps h from the last to the first, n visits of (h, s, a), β the size of the ball:
        U(s,a) = r⁺ + max { q·U_{h+1} : n·KL(p̂, q) ≤ β },       L(s,a) = r⁻ + min { q·L_{h+1} : n·KL(p̂, q) ≤ β }
        U(s) = max_a U(s,a),  L(s) = max_a L(s,a)                 (vacuous without visits, never beyond [0, H-h])
    play the greedy policy of U
    until U - L ≤ ε at the start; return the greedy policy of L

With T triples (h, s, a): β = log(2T/δ) + (S-1)·log(e(1 + n/(S-1))), and mean rewards, which the reference takes as
known, in n·kl(r̂, r) ≤ log(2T/δ) + log(e(1+n)).

*Guarantee.* By `kl_ball` each of the 2T statements fails with probability at most δ/2T, at all n together. Where all
hold, U ≥ V* by induction over the steps, and the greedy policy π of L has V^π ≥ L: Q^π = r + pV^π ≥ r⁻ + pL ≥ L(s,
π(s)) = L(s). So V* - V^π ≤ U - L at the start. Thresholds are the reference's; the proof in `kl_ball` is our own. (The
authors' code pools the steps, leaves all but log(1/δ) out of β and takes the upper bound of a reward for its lower
one.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import greedy
from bestpolicy.algorithms.peers.kl_ball import largest_means, threshold
from bestpolicy.algorithms.peers.online import Bounds, Counting, FollowsPolicies, StepMeans, about, best_values
from bestpolicy.algorithms.protocol import About, Task


@dataclass(frozen=True)
class BPIUCRL(FollowsPolicies):
    """Best policy identification with KL balls, from episodes. Its parameters are those of `Explores`."""

    name: ClassVar[str] = "bpi-ucrl"
    about: ClassVar[About] = about(
        features="tabular",
        complexity="S A H⁴ (S + log 1/δ) / ε² episodes",
        constants="exact; for unknown rewards own proof",
        reference="Kaufmann, Ménard, Domingues, Jonsson, Leurent, Valko: Adaptive Reward-Free Exploration (2021)",
    )
    rule: ClassVar[str] = "BPI-UCRL"

    def learner(self, task: Task, start: FloatArray) -> KLBounds:
        """Return bounds over KL balls."""
        return KLBounds(self, task, start)


class KLBounds(Counting[BPIUCRL]):
    """U and L over KL balls around all that was seen."""

    def bounds(self, number: int) -> Bounds:
        """Bound V* from both sides, from the last step to the first."""
        problem, means = self.problem, StepMeans.of(self.problem, self.tally)
        share, pairs = self.delta / (2 * means.visits.size), len(problem.pairs)
        radius = _per_visit(threshold(share, means.visits, problem.states), means.visits)
        highest, lowest = self._rewards(means, share)
        upper, lower = np.zeros(problem.states), np.zeros(problem.states)
        q_upper, q_lower = (np.empty((problem.stages, *problem.mask.shape)) for _ in range(2))
        for h in reversed(range(problem.stages)):
            both = np.concatenate([np.broadcast_to(f, (pairs, problem.states)) for f in (upper, -lower)])
            best = largest_means(np.tile(means.transitions[h], (2, 1)), both, np.tile(radius[h], 2))
            limit = problem.stages - h
            q_upper[h], upper = best_values(problem, np.minimum(highest[h] + best[:pairs], limit))
            q_lower[h], lower = best_values(problem, np.clip(lowest[h] - best[pairs:], 0.0, limit))
        epsilon = float(self.start @ (upper - lower))
        return Bounds(greedy(q_upper), greedy(q_lower), epsilon, q_upper)

    def _rewards(self, means: StepMeans, share: float) -> tuple[FloatArray, FloatArray]:
        """Bounds on mean rewards, (H, n) each."""
        if self.rewards is not None:
            return self.rewards, self.rewards
        coins = np.stack([1 - means.rewards, means.rewards], axis=2) * ~means.unvisited[:, :, None]
        radius = _per_visit(threshold(share, means.visits, 2), means.visits).ravel()
        flat = coins.reshape(-1, 2)  # heads up, and heads down, in one call
        means_of = largest_means(np.concatenate([flat, flat[:, ::-1]]), np.array([0.0, 1.0]), np.tile(radius, 2))
        highest, lowest = means_of[: len(flat)], 1 - means_of[len(flat) :]
        return highest.reshape(means.visits.shape), lowest.reshape(means.visits.shape)


def _per_visit(limits: FloatArray, visits: FloatArray) -> FloatArray:
    return np.where(visits > 0, limits / np.maximum(visits, 1), np.inf)
