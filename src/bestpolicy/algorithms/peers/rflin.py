"""RFLIN: reward-free exploration of a linear MDP, a set of episodes for each step (Wagenmaker, Chen, Simchowitz, Du
and Jamieson 2022), stopped by a certificate.

    for rounds j = 1, 2, …, with the aim ε/2^{j-1} and the share δ/(j(j+1)):
        for steps h from the last to the first:          (D_h: what the episodes of *this* loop show of step h)
            until the largest mean of min(2β_h‖φ‖_{G_h⁻¹}, H-h) that a policy can hope for is at most aim/H:
                play that policy for some episodes, G_h = I + Σ_{D_h} φφᵀ
        for steps h from the last to the first, by least squares on D_h:
            U(s,a) = min( H-h, φᵀŵ_U + β_h‖φ‖_{G_h⁻¹} ), U(s) = max_a U(s,a);  π greedy
            L(s) = max( 0, φᵀŵ_L - β_h‖φ‖_{G_h⁻¹} ) at π
    until U - L ≤ ε at the start; return π

    β_h = ((H-h)/2)·√(2 log(4H·j(j+1)/δ) + log det G_h) + (H-h)√σ.

Rewards are looked at in the last lines only, so one set of episodes serves any reward. The reference explores until
fixed numbers of episodes are over (`bounds.rflin_episodes`: 10¹⁰ and more) and needs no certificate; its regret
minimiser is replaced by `navigation`, on which nothing rests.

*Guarantee.* Steps are explored from the last to the first, and **transitions of step h that episodes for later steps
have shown stay out of D_h**. So U_{h+1} and L_{h+1}, which follow from D_{h+1}, …, D_{H-1}, are fixed before the first
episode of D_h, and so is r + U_{h+1}(s') as a target: by the statement of `ridge`, with the H - h that it lies in, one
event for U and one for L at each step, no cover of functions. (In the order from the first step to the last, with
episodes that steer by all data, which transitions enter D_{h+1} would depend on D_h.) Then U ≥ V* and L ≤ V^π by
induction; Σ_j 1/(j(j+1)) = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import greedy, steady
from bestpolicy.algorithms.peers.budget import look
from bestpolicy.algorithms.peers.navigation import way_to
from bestpolicy.algorithms.peers.online import (
    Bounds,
    Explores,
    about,
    best_values,
    certified_look,
    only_whole,
    played,
    rewards_by_step,
    start_of,
)
from bestpolicy.algorithms.peers.ridge import Coordinates, Fit
from bestpolicy.algorithms.protocol import MAX_CALLS, About, Request, Run, Task
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class RFLIN(Explores):
    """Reward-free exploration with a certificate, from episodes.

    Attributes
    ----------
    check_ratio : float
        Choose the next policy each time the number of episodes for a step has grown by this factor.
    rewards : table (S, A) or (H, S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    name: ClassVar[str] = "rflin"
    about: ClassVar[About] = about(
        features="linear",
        guarantee="within ε of optimal at the start",
        complexity="d (d + log 1/δ) H⁵ / ε² episodes",
        constants="own proof: data in the order of the last step first, with a certificate",
        reference="Wagenmaker, Chen, Simchowitz, Du, Jamieson: Reward-Free RL is No Harder Than Reward-Aware RL (2022)",
    )
    rule: ClassVar[str] = "RFLIN (own proof)"

    check_ratio: float = 1.1

    def run(self, task: Task) -> Run:
        """Explore step after step until the bounds meet at the start."""
        problem, start = task.problem, start_of(task)
        coordinates, rewards = Coordinates.of(problem), rewards_by_step(self.rewards, problem)
        seen = Tally.empty(problem, problem.pairs)
        check, number, aim = nothing_yet(problem, self.rule), 0, task.epsilon
        while not check.passed and seen.samples < MAX_CALLS // 4 and aim > 0:
            number += 1
            radii = Radii(coordinates, problem.stages, task.delta / (number * (number + 1)))
            explored: list[Tally] = []  # D_{H-1}, …, D_0
            for step in reversed(range(problem.stages)):
                shown = Tally.empty(problem, problem.pairs)
                while True:
                    fit = fit_of(coordinates.features, shown, step)
                    goal = np.minimum(2 * radii.of(fit, step) * fit.widths, problem.stages - step)
                    way = way_to(problem, coordinates.features, seen, goal, step, start)
                    if float(steady(np.array(way.value))) <= aim / problem.stages:
                        break
                    done = int(shown.pulls[step].sum())
                    count = max(1, ceil(done * (self.check_ratio - 1)))
                    so_far = replace(check, samples=seen.samples, rounds=seen.samples // problem.stages)
                    more = only_whole(self, (yield Request(Episodes(way.policy, count, start), so_far)))
                    shown, seen = shown + more, seen + more
                explored.append(shown)
            known = bounds(problem, radii, explored[::-1], rewards, start)
            check, aim = certified_look(known, task, seen.samples, self.rule), aim / 2
        return check


@dataclass(frozen=True, eq=False)
class Radii:
    """β_h of a round."""

    coordinates: Coordinates
    horizon: int
    delta: float

    def of(self, fit: Fit, step: int) -> float:
        """β of the data of a step."""
        left = self.horizon - step
        return fit.radius(left, self.delta / (4 * self.horizon), left * self.coordinates.norm)


def fit_of(features: FloatArray, shown: Tally, step: int) -> Fit:
    """Return G of a step from the episodes that explored it."""
    return Fit.of(features, shown.pulls[step].astype(np.float64))


def bounds(
    problem: Problem, radii: Radii, explored: list[Tally], rewards: FloatArray | None, start: FloatArray
) -> Bounds:
    """Bound V* and the value of the greedy policy; the h-th tally holds the episodes that explored step h."""
    upper, lower = np.zeros(problem.states), np.zeros(problem.states)
    q_values = np.empty((problem.stages, *problem.mask.shape))
    policy = np.empty((problem.stages, problem.states), np.int64)
    for h in reversed(range(problem.stages)):
        limit, shown = problem.stages - h, explored[h].at(problem.pairs)
        fit = fit_of(radii.coordinates.features, shown, h)
        targets = shown.next_counts[h] @ np.column_stack([upper, lower])
        if rewards is None:
            targets = targets + shown.reward_sums[h][:, None]
        means = fit.predict(targets) + (0.0 if rewards is None else rewards[h][:, None])
        width = radii.of(fit, h) * fit.widths
        q_values[h], upper = best_values(problem, np.clip(means[:, 0] + width, 0.0, limit))
        policy[h] = greedy(q_values[h])
        lower = np.clip(means[:, 1] - width, 0.0, limit)[played(problem, policy[h])]
    return Bounds(policy, policy, float(start @ (upper - lower)), q_values)


def nothing_yet(problem: Problem, rule: str) -> Check:
    """Return the check before anything is certified."""
    first = np.tile(problem.mask.argmax(axis=1), (problem.stages, 1))
    values = np.tile(np.where(problem.mask, 0.0, -inf), (problem.stages, 1, 1))
    return look(problem, 0, first, values, 0.0, inf, False, rule)
