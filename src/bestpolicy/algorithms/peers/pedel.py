"""PEDEL: eliminate policies with data that are gathered to tell them apart (Wagenmaker and Jamieson 2022).

    Π: all deterministic policies (of the first step only what they do at the start)
    for epochs j = 1, 2, … with accuracies ε_l = 2^-l, l from ⌈log₂ 1/H⌉ on:
        for steps h from the first to the last, with fresh episodes:
            until max_{π∈Π} ‖φ̂_{π,h}‖²_{Λ⁻¹} ≤ ε_l²/β:   aim at the direction of the worst π, Λ = Σφφᵀ
            θ̂_h, P̂_h by least squares;  q̂_{π,h+1} = φ̂_{π,h}ᵀP̂_h,  φ̂_{π,h+1} = Σ_s q̂_{π,h+1}(s)φ(s, π(s))
        V̂_π = Σ_h φ̂_{π,h}ᵀθ̂_h;   Π ← { π : V̂_π ≥ max V̂ - 2ε_l }
    until 4ε_l ≤ ε, or one policy is left; return the best of Π

    β = H(H+1)(2H+1)/12 · log( 2|Π|·j(j+1)/δ ),      printed in the reference: 36H⁴·log( 4H²|Π|·l²/δ ).

*Guarantee.* V̂_π - V^π = Σ_h φ̂_{π,h}ᵀΛ_h⁻¹Σφη with η = r + V^π_{h+1}(s') - Q^π_h, exactly: Q^π_h is linear in φ, so
φ̂_{π,h}ᵀ(θ̂_h + P̂_hV^π_{h+1}) differs from φ̂_{π,h}ᵀ(its parameter) by the h-th term, and the sums telescope (φ̂ must
lie in the range of Λ). φ̂_{π,h} follows from the data of earlier steps, and the episodes of a step are steered without
a look at what (r_h, s_{h+1}) they have shown (`navigation` sees the steps before h only), so given the past and the
design the h-th term is sub-Gaussian with scale ((H-h)/2)·‖φ̂_{π,h}‖_{Λ⁻¹} ≤ ((H-h)/2)·ε_l/√β. The squares of the
scales add up: with Σ(H-h)² = H(H+1)(2H+1)/6 the sum exceeds ε_l with probability at most 2exp(-ε_l²/(2·Σ)) =
δ/(j(j+1)|Π|). So all V̂ are within ε_l of V: the best policy is never dropped, and who is left is within 4ε_l of it.
Our β is 250 to 1000 times smaller than the printed one, which the reference needs for other reasons.

Which states can be reached is not known beforehand, so |Π| = A^{1+S(H-1)} for one first state: tiny problems only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log, log2, prod
from typing import ClassVar, Literal

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.inputs import choice
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.peers.navigation import way_to
from bestpolicy.algorithms.peers.online import (
    Bounds,
    Explores,
    about,
    certified_look,
    only_whole,
    played,
    rewards_by_step,
    start_of,
)
from bestpolicy.algorithms.peers.rflin import nothing_yet
from bestpolicy.algorithms.peers.ridge import Coordinates
from bestpolicy.algorithms.protocol import About, Request, Run, Task
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally

MOST_POLICIES = 20_000
_COVERED = 1e-7  # of a vector of length 1 may lie outside of the range of Λ: rounding
_RANK = 1e-12  # of the largest eigenvalue: below it there are no data


@dataclass(frozen=True)
class PEDEL(Explores):
    """Elimination of policies by experimental design, from episodes of tiny problems.

    Attributes
    ----------
    check_ratio : float
        Choose the next direction each time the number of episodes for a step has grown by this factor.
    rewards : table (S, A) or (H, S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    constants : {"derived", "printed"}
        β: what the proof needs, or that of the reference.
    """

    name: ClassVar[str] = "pedel"
    about: ClassVar[About] = about(
        features="linear",
        assumption=f"at most {MOST_POLICIES:,} deterministic policies",
        guarantee="within ε of optimal at the start",
        complexity="H⁴ Σ_h min_Λ max_π ‖φ_π‖²_{Λ⁻¹} / max(V* - V^π, Δ, ε)² · log(|Π|/δ) episodes",
        constants='own proof, or exact (constants="printed")',
        reference="Wagenmaker, Jamieson: Instance-Dependent Near-Optimal Policy Identification in Linear MDPs (2022)",
    )
    rule: ClassVar[str] = "PEDEL"

    check_ratio: float = 1.1
    constants: Literal["derived", "printed"] = "derived"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("constants", self.constants, ("derived", "printed"))

    def unsuitable(self, problem: Problem) -> str:
        """Tiny episodic problems only."""
        reason = super().unsuitable(problem)
        least = log(prod(problem.mask.sum(axis=1).tolist()) or 1) * (problem.stages - 1)
        if reason or least <= log(MOST_POLICIES):
            return reason
        return (
            f"it goes through all deterministic policies, here more than 10^{int(least / log(10))}; it can do with "
            f"{MOST_POLICIES:,}. Use 'rflin' or 'lsvi-ucb'."
        )

    def beta(self, horizon: int, policies: int, epoch: int, accuracy: int, delta: float) -> float:
        """β of an epoch with the accuracy 2^-l."""
        if self.constants == "printed":
            return 36 * horizon**4 * log(4 * horizon**2 * policies * max(accuracy, 1) ** 2 / delta)
        return horizon * (horizon + 1) * (2 * horizon + 1) / 12 * log(2 * policies * epoch * (epoch + 1) / delta)

    def run(self, task: Task) -> Run:
        """Eliminate until what is left is good enough."""
        problem, start, steps = task.problem, start_of(task), task.problem.stages
        features, rewards = Coordinates.of(problem).features, rewards_by_step(self.rewards, problem)
        policies, check = all_policies(problem, start), nothing_yet(problem, self.rule)
        seen = Tally.empty(problem, problem.pairs)
        accuracy, epoch = ceil(log2(1 / steps)), 1
        while True:
            least = 4.0**-accuracy / self.beta(steps, len(policies), epoch, accuracy, task.delta)
            values = np.zeros(len(policies))
            occupied = np.broadcast_to(start, (len(policies), problem.states))
            for h in range(steps):
                chosen = played(problem, policies[:, h])
                expected = np.einsum("ps,psd->pd", occupied, features[chosen])
                design, shown = (
                    Design.of(features, problem, Tally.empty(problem), h),
                    Tally.empty(problem, problem.pairs),
                )
                while True:
                    goal = design.goal(expected, least)
                    if goal is None:
                        break
                    way = way_to(problem, features, seen, goal, h, start)
                    count = max(1, ceil(int(shown.pulls[h].sum()) * (self.check_ratio - 1)))
                    so_far = replace(check, samples=seen.samples, rounds=seen.samples // problem.stages)
                    more = only_whole(self, (yield Request(Episodes(way.policy, count, start), so_far)))
                    shown, seen = shown + more, seen + more
                    design = Design.of(features, problem, shown, h)
                full = shown.at(problem.pairs)
                weights = expected @ design.inverse @ features.T  # of the visits of each pair
                values = values + (
                    weights @ full.reward_sums[h] if rewards is None else (occupied * rewards[h][chosen]).sum(axis=1)
                )
                occupied = weights @ full.next_counts[h]
            best = int(steady(values).argmax())
            kept = steady(values) >= steady(values)[best] - 2.0 * 2.0**-accuracy
            certified = 4 * 2.0**-accuracy if kept.sum() > 1 else 0.0
            known = Bounds(policies[best], policies[best], certified, nothing_known(problem))
            check = certified_look(known, task, seen.samples, self.rule)
            if check.passed:
                return check
            policies, accuracy, epoch = policies[kept], accuracy + 1, epoch + 1


@dataclass(frozen=True, eq=False)
class Design:
    """What the episodes for a step tell: Λ⁺, and the projection onto the range of Λ."""

    features: FloatArray
    inverse: FloatArray
    range: FloatArray

    @classmethod
    def of(cls, features: FloatArray, problem: Problem, shown: Tally, step: int) -> Design:
        """Return Λ of the visits at a step."""
        visits = shown.at(problem.pairs).pulls[step].astype(np.float64)
        values, vectors = np.linalg.eigh((features.T * visits) @ features)
        seen = values > _RANK * max(float(values.max(initial=0.0)), 1e-9)
        basis, inverse = vectors[:, seen], 1 / values[seen]
        return cls(features, (basis * inverse) @ basis.T, basis @ basis.T)

    def goal(self, expected: FloatArray, least: float) -> FloatArray | None:
        """Return what to aim at, (n,) numbers of pairs, for vectors φ̂ (P, d); None if all are known well enough."""
        outside = expected - expected @ self.range
        missing = steady((outside**2).sum(axis=1))
        if missing.max() > _COVERED**2:
            target = outside[int(missing.argmax())]
        else:
            lengths = steady(((expected @ self.inverse) * expected).sum(axis=1))
            worst = int(lengths.argmax())
            if lengths[worst] <= least:
                return None
            target = self.inverse @ expected[worst]
        gains = (self.features @ target) ** 2
        shares: FloatArray = gains / gains.max()
        return shares


def all_policies(problem: Problem, start: FloatArray) -> IntArray:
    """Return all deterministic policies, (P, H, S); of the first step only what they do where episodes may begin."""
    first = problem.mask.argmax(axis=1)
    allowed = [np.flatnonzero(row) for row in problem.mask]
    free = [(h, s) for h in range(problem.stages) for s in range(problem.states) if h or start[s] > 0]
    count = prod(len(allowed[s]) for _, s in free)
    if count > MOST_POLICIES:
        raise InvalidInput(
            f"'pedel' goes through all deterministic policies, here {count:.3g}; it can do with {MOST_POLICIES:,}. Use "
            "'rflin' or 'lsvi-ucb'."
        )
    policies = np.tile(first, (count, problem.stages, 1))
    for i, actions in enumerate(product(*(allowed[s] for _, s in free))):
        for (h, s), action in zip(free, actions, strict=True):
            policies[i, h, s] = action
    return policies


def nothing_known(problem: Problem) -> FloatArray:
    """Return action values from which no gap can be told."""
    return np.tile(np.where(problem.mask, 0.0, -np.inf), (problem.stages, 1, 1))
