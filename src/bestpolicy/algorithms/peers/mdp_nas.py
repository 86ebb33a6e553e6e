"""MDP-NaS: navigate and stop, the best policy from one trajectory (Al Marjani, Garivier and Proutière 2021).

    follow the uniform policy until every pair was met
    repeat
        plan in the empirical model: policy π, its times T₁…T₄ as in `klb_ts`
        ω: the shares of pairs that the model's own law can keep up, Σ_a ω(s,a) = Σ ω(s',a')p(s|s',a'), with the least
            U(ω) = max_{a≠π} (T₁+T₂)(s,a)/ω(s,a) + max_s (T₃+T₄)/ω(s,π(s))
        follow (1-ε_t)·ω(s,a)/ω(s) + ε_t·uniform,  ε_t = t^{-1/(m+1)}, m the longest of the shortest ways between states
    until t/U(n/t) ≥ log(1/δ) + Σ_{s,a} ( (S-1)·log(e(1 + n/(S-1))) + log(e(1+n)) )
    return π

Guarantee: the policy is optimal in every state with probability 1 - δ, whatever ε is asked. If the optimum is not
unique, or the chain does not let every state be met again, the run does not end.

*Proof.* The mixtures of likelihood ratios of `kl_ball`, one for the transitions and one for the rewards of each pair,
are supermartingales of which each step of the trajectory moves two, so their product is one: Σ n·(KL(p̂, p) + kl(r̂,
r)) stays below the threshold at all times with probability 1 - δ (Ville once, no union). If π is not optimal in the
true model, then by the proof of `klb_ts` 1 ≤ √(T₁k₁) + √(T₂k₂) + √(T₃k₃) + √(T₄k₄) for the divergences k of a rival
pair and of two pairs that π plays, each of which appears once, n times, in the sum. Cauchy and Schwarz: 1 ≤
√(sum)·√(U(n/t)/t), that is t/U ≤ the sum, below the threshold.

The threshold is our own, of one proof, and as large as those quoted for the reference. With κ = y/x the best ω solves
linear programmes: maximise x subject to ω(s,a) ≥ (T₁+T₂)x, ω(s,π(s)) ≥ (T₃+T₄)κx; the least 1/x + 1/(κx) over κ is
looked for on two grids, to about 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, nan
from typing import ClassVar

import numpy as np
from scipy.sparse.csgraph import shortest_path

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import grid_shares, steady
from bestpolicy.algorithms.peers.budget import look
from bestpolicy.algorithms.peers.kl_ball import threshold
from bestpolicy.algorithms.peers.klb_ts import KLBTS, Times
from bestpolicy.algorithms.peers.tabular import EmpiricalModel, LooksAgain, plan
from bestpolicy.algorithms.peers.walks import last_state, uniform_policy
from bestpolicy.algorithms.protocol import About, Request, Run, Task, check_times
from bestpolicy.problem import Problem
from bestpolicy.samples import Episodes, Tally
from bestpolicy.stopping import Check

_PLAN_RATIO = 1.5  # growth of t after which shares are computed again
_COARSE, _FINE, _LEVELS = 3.0, 0.25, 2  # steps of log κ: 9 values from -12 to 12, then 6 more between them
_GRID = 2.0**-20  # of the probabilities of a policy


@dataclass(frozen=True)
class MDPNaS(LooksAgain):
    """Navigate-and-stop from one trajectory, for discounted problems with a unique optimal policy.

    Attributes
    ----------
    check_ratio : float
        Look whether to stop each time the number of steps has grown by this factor.
    """

    name: ClassVar[str] = "mdp-nas"
    about: ClassVar[About] = About(
        setting="discounted",
        features="tabular",
        assumption="unique optimal policy, at least two states, each of which can be reached from all others",
        guarantee="optimal, whatever ε is asked, in every state",
        complexity="U* log 1/δ steps, with U* from gaps and variances of the model and from what can be reached",
        constants="exact times; the threshold has a proof of our own",
        reference="Al Marjani, Garivier, Proutière: Navigating to the Best Policy in Markov Decision Processes (2021)",
        sampling="one trajectory",
    )

    check_ratio: float = 1.1

    def unsuitable(self, problem: Problem) -> str:
        """As for KLB-TS."""
        return KLBTS().unsuitable(problem)

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Nothing can be said from the gap alone."""
        return nan

    def run(self, task: Task) -> Run:
        """Follow the shares of the empirical model until its policy is certified optimal."""
        problem = task.problem
        tally, check = Tally.empty(problem, problem.pairs), None
        state = 0 if task.start is None else int(task.start.argmax())
        policy, planned = uniform_policy(problem), 0
        for steps in check_times(len(problem.pairs), self.check_ratio):
            more = yield Request(Episodes(policy, 1, state, steps - tally.samples), check)
            state, tally = last_state(problem, state, more), tally + more
            if not tally.pulls.all():
                continue
            model = EmpiricalModel.of(problem, tally)
            best = plan(model)
            times = Times.of(model, best)
            done = tally.samples  # a budget may have cut the last steps
            unresolved = float(steady(np.array(price(times, tally) * limit(problem, tally, task.delta) / done)))
            passed = unresolved < 1
            certified = 0.0 if passed else inf
            check = look(problem, done, best.policy, best.q_values, 1 / unresolved, certified, passed, "MDP-NaS")
            if passed:
                break
            if done >= _PLAN_RATIO * planned:
                policy, planned = navigating_policy(model, times, done), done
        return unseen(problem) if check is None else check


def unseen(problem: Problem) -> Check:
    """Return the check of a trajectory that has not met every pair."""
    first, rewards = problem.mask.argmax(axis=1), np.where(problem.mask, 0.0, -inf)
    return look(problem, 0, first, rewards, 0.0, inf, False, "MDP-NaS")


def price(times: Times, tally: Tally) -> float:
    """U of the shares that were visited."""
    shares = tally.pulls[0] / tally.samples
    rivals = (times.rewards + times.transitions) / shares[times.rivals]
    return float(
        rivals.max(initial=0.0) + (times.played_rewards + times.played_transitions) / shares[times.played].min()
    )


def limit(problem: Problem, tally: Tally, delta: float) -> float:
    """The threshold of t/U."""
    visits = tally.pulls[0].astype(np.float64)
    of_pairs = threshold(1.0, visits, problem.states) + threshold(1.0, visits, 2)
    return float(np.log(1 / delta) + of_pairs.sum())


def navigating_policy(model: EmpiricalModel, times: Times, steps: int) -> FloatArray:
    """Return probabilities (S, A) that lead to the best shares, with some of the uniform policy."""
    problem, uniform = model.problem, uniform_policy(model.problem)
    shares = best_shares(model, times)
    if shares is None:  # the model does not connect its states yet
        return uniform
    full = np.zeros(problem.mask.shape)
    full.ravel()[problem.pairs] = shares
    followed = full / full.sum(axis=1, keepdims=True)
    mixed = steps ** (-1 / (_longest_way(model) + 1))
    chances = (1 - mixed) * followed + mixed * uniform
    return np.stack([grid_shares(row, _GRID) for row in chances])


def best_shares(model: EmpiricalModel, times: Times) -> FloatArray | None:
    """Return the shares (n,) with the least price among those that the model can keep up; None if there are none.

    Times are rounded first: a programme with many solutions may have another one for other last bits.
    """
    from scipy.optimize import linprog  # it takes as long to load as all of NumPy

    problem, size = model.problem, len(model.problem.pairs)
    rivals = times.rewards + times.transitions
    ours = times.played_rewards + times.played_transitions
    scale = max(float(rivals.max(initial=0.0)), ours)
    rivals, ours = steady(rivals / scale), float(steady(np.array(ours / scale)))
    flow = np.zeros((problem.states + 1, size + 1))
    flow[problem.pairs // problem.actions, np.arange(size)] = 1.0
    flow[: problem.states, :size] -= model.transitions.T
    flow[problem.states, :size] = 1.0
    tried: dict[float, tuple[float, FloatArray]] = {}

    def attempt(log_kappa: float) -> None:
        kappa = exp(log_kappa)
        at_least = np.zeros(size)
        at_least[times.rivals], at_least[times.played] = rivals, ours * kappa
        solved = linprog(
            np.append(np.zeros(size), -1.0),
            A_ub=np.column_stack([-np.eye(size), at_least]),
            b_ub=np.zeros(size),
            A_eq=flow,
            b_eq=np.append(np.zeros(problem.states), 1.0),
            method="highs",
        )
        if solved.status == 0 and solved.x[-1] > 0:
            tried[log_kappa] = float(steady(np.array((1 + 1 / kappa) / solved.x[-1]))), solved.x[:-1]

    step, centres = _COARSE, [_COARSE * i for i in range(-4, 5)]
    for _ in range(_LEVELS):
        for log_kappa in centres:
            attempt(log_kappa)
        if not tried:
            return None
        best, step = min(tried, key=lambda known: (tried[known][0], known)), step * _FINE
        centres = [best + step * i for i in (-3, -2, -1, 1, 2, 3)]
    return np.maximum(tried[best][1], 1e-12)


def _longest_way(model: EmpiricalModel) -> int:
    """Return the longest of the shortest ways between two states, as far as is known; S - 1 if one is not known."""
    problem = model.problem
    linked = np.zeros((problem.states, problem.states))
    np.maximum.at(linked, problem.pairs // problem.actions, model.transitions > 0)
    longest = shortest_path(linked, unweighted=True).max()
    return int(max(1, min(longest, problem.states - 1)))
