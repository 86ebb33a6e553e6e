"""Certified lower bounds on the samples of *every* algorithm, for this very model.

Let δ < 1/2 and let M_1 … M_K be alternatives of M: linear models with M ≪ M_k and no policy ε-optimal in both M and
M_k. An algorithm that returns an ε-optimal policy with probability 1-δ in each of these models satisfies, for every λ
in the simplex [TJP Prop 1, Prop 4; Kaufmann, Cappé, Garivier 2016],

    E_M[samples] ≥ kl(δ, 1-δ) / max_{h,s,a} Σ_k λ_k KL_{M|M_k}(h, s, a)         (any algorithm; discounted: one step h),
    E_M[rounds]  ≥ kl(δ, 1-δ) / Σ_h max_{s,a} Σ_k λ_k KL_{M|M_k}(h, s, a)       (if a round samples every step once).

Proof: the event "the answer is ε-optimal in M" has probability ≥ 1-δ under M and ≤ δ under each M_k, so with N counting
samples Σ E[N(h,s,a)] KL_k(h,s,a) ≥ kl(δ, 1-δ) by transportation of measure, whatever rule chose the pairs. Average with
λ, and bound the average divergence by its maximum: over everything, Σ E[N] being E[samples]; or over the pairs of each
step, where Σ_{s,a} E[N(h,s,a)] is E[rounds] for every h.

The second line is the paper's, whose algorithm samples in rounds. H times it is *not* a bound on algorithms that may
sample a hard step more often than others: it can be H times too large (`programme`).

*Every* λ and every set of alternatives give a true bound, so neither the search nor the linear programme can make it
false, only weak. The best λ for given alternatives is a linear programme whose dual variable is an allocation ω,
max_ω min_k Σ ω KL_k; its value decreases to 1/T*(M) as alternatives are added where ω is fooled most easily: cutting
planes, for both bounds in turn. What is reported is 1/(the weak-duality value) of each, a certified lower value of the
characteristic time T*(M).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import BoolArray, frozen
from bestpolicy._numerics.inputs import choice, function, number, of_type
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.bounds.alternatives import Alternative, Verifier
from bestpolicy.bounds.certified import LowerBound, RewardLaw, VerificationFloor, Weighing
from bestpolicy.bounds.cutting import CuttingPlanes
from bestpolicy.bounds.divergence import confidence_divergence
from bestpolicy.bounds.groups import Grouping, covers, only
from bestpolicy.bounds.membership import Reference
from bestpolicy.bounds.programme import characteristic
from bestpolicy.bounds.search import Search
from bestpolicy.bounds.tables import Truth
from bestpolicy.errors import InvalidInput
from bestpolicy.mdp import LinearMDP

_BY_THE_USER = "interrupted by the user"
_GROUPS = 1 / 3  # share of the time for groups of answers
_ROUGH = 0.02  # search gap that will do for them


@dataclass(frozen=True)
class Progress:
    """Where the search stands.

    Attributes
    ----------
    characteristic_time : float
        Certified so far, for any sampling.
    search_gap : float
        Relative distance to the best alternative found at the allocation in hand; inf at first.
    alternatives : int
        Found so far.
    seconds : float
    """

    characteristic_time: float
    search_gap: float
    alternatives: int
    seconds: float


def lower_bound(
    mdp: LinearMDP,
    epsilon: float,
    delta: float,
    *,
    tolerance: float = 1e-3,
    max_seconds: float = 60.0,
    rewards: RewardLaw = "bernoulli",
    also: Sequence[Alternative] = (),
    callback: Callable[[Progress], object] | None = None,
) -> LowerBound:
    """Bound the expected samples of every (ε, δ)-correct algorithm from below. Deterministic: needs no seed.

    For episodic problems a second bound, on algorithms that sample every step equally often, comes with it.

    Parameters
    ----------
    mdp : LinearMDP
    epsilon, delta : float
        ε ≥ 0 and δ in (0, 1). For δ ≥ 1/2 the bound is 0.
    tolerance : float, optional
        Stop when the search gap is below this; after 30 iterations a gap of 1 % will do.
    max_seconds : float, optional
        Return the best bounds found by then. An episodic search spends up to a third of it on the bound on rounds, and
        with ε > 0 up to a third of it goes to groups of answers.
    rewards : {"bernoulli", "deterministic"}, optional
        Law of the rewards: 1 with probability r(s,a) and else 0, or always r(s,a) and known to be so.
    also : sequence of Alternative, optional
        Alternatives of the same model found before. Those of a larger ε are valid for a smaller one.
    callback : callable, optional
        Called with a `Progress` after each iteration. A KeyboardInterrupt, from there or from the keyboard, ends the
        search and returns the bound so far.
    """
    of_type("mdp", mdp, LinearMDP)
    number("epsilon", epsilon)
    number("tolerance", tolerance, above=0)
    number("max_seconds", max_seconds, infinite=True)
    if callback is not None:
        function("callback", callback, "callback(progress)")
    choice("rewards", rewards, ("bernoulli", "deterministic"))
    confidence_divergence(delta)  # rejects what is no probability before the search, not after it
    known = tuple(also) if isinstance(also, tuple | list) else (also,)
    for alternative in known:
        of_type("also", alternative, Alternative)
    begin = monotonic()
    # With ε > 0 a last third is kept for groups of answers.
    time = max_seconds * (1 - _GROUPS if epsilon > 0 else 1)
    bound = _searched(mdp, float(epsilon), delta, rewards, known, tolerance, begin + time, callback)
    if 0 < epsilon < mdp.problem.value_limits[0] and delta < 0.5 and bound.reason != _BY_THE_USER:
        bound = _grouped(mdp, bound, tolerance, begin + max_seconds)
    return replace(bound, seconds=monotonic() - begin)


def verification_floor(
    mdp: LinearMDP,
    policy: ArrayLike,
    epsilon: float,
    *,
    tolerance: float = 1e-2,
    max_seconds: float = 20.0,
    rewards: RewardLaw = "bernoulli",
) -> VerificationFloor:
    """What it takes to verify that a policy is ε-optimal, per unit of log(1/δ) and as δ → 0 (`groups`).

    No algorithm that returns this policy does with fewer than that times log(1/δ) samples in the limit; it is *not* a
    bound at any given δ, and other ε-optimal policies may be easier to verify.

    Parameters
    ----------
    mdp : LinearMDP
    policy : int array (S,) or (H, S)
        It must lose at most ε in the model.
    epsilon : float
    tolerance, max_seconds, rewards
        As for `lower_bound`.
    """
    of_type("mdp", mdp, LinearMDP)
    number("epsilon", epsilon)
    number("tolerance", tolerance, above=0)
    number("max_seconds", max_seconds, infinite=True)
    choice("rewards", rewards, ("bernoulli", "deterministic"))
    problem = mdp.problem
    if not mdp.is_near_optimal(policy, epsilon):
        raise InvalidInput(f"policy must lose at most ε = {epsilon:g} in the model: else there is nothing to verify.")
    actions = problem.stage_policy(policy)
    within = only(actions, np.broadcast_to(problem.mask, (problem.stages, *problem.mask.shape)))
    deadline = monotonic() + max_seconds
    bound = _searched(mdp, float(epsilon), 0.05, rewards, (), tolerance, deadline, None, within)
    return VerificationFloor(
        frozen(actions), float(epsilon), bound.characteristic_time, bound.characteristic_rounds, bound.interrupted
    )


def _searched(
    mdp: LinearMDP,
    epsilon: float,
    delta: float,
    rewards: RewardLaw,
    known: Sequence[Alternative],
    tolerance: float,
    deadline: float,
    callback: Callable[[Progress], object] | None,
    within: BoolArray | None = None,
) -> LowerBound:
    """Search until the deadline, for models in which no ε-optimal policy (that uses actions `within`) is one."""
    # No policy loses more than the largest value, so a larger ε asks for nothing more.
    searched = min(epsilon, 2.0 * float(mdp.problem.value_limits[0]))
    begin = monotonic()
    planes: CuttingPlanes | None = None
    interrupted, reason = False, "interrupted before any alternative was found"
    with one_thread():
        try:
            verifier = Verifier(mdp, searched, rewards_known=rewards == "deterministic", within=within)
            planes = CuttingPlanes(Search(verifier), deadline=deadline)
            for alternative in known:
                adopted = verifier.adopt(alternative)
                if adopted is not None:
                    planes.add(adopted)
            reason = _search(planes, tolerance, begin, callback)
            interrupted = planes.out_of_time
        except KeyboardInterrupt:
            interrupted = True
            reason = _BY_THE_USER
        if planes is not None:
            planes.exchange()
            if not (planes.alternatives or interrupted) and planes.search.targets:
                reason = "no alternative model was found"
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        any_sampling=_weighing(mdp, planes, in_rounds=False),
        in_rounds=_weighing(mdp, planes, in_rounds=True),
        seconds=monotonic() - begin,
        interrupted=interrupted,
        reason=reason,
        rewards=rewards,
    )


def _grouped(mdp: LinearMDP, bound: LowerBound, tolerance: float, deadline: float) -> LowerBound:
    """Add what groups of answers say, as far as the time allows."""
    limit = min(bound.epsilon, 2.0 * float(mdp.problem.value_limits[0]))
    reference = Reference(Truth(mdp).table, limit)
    found = []
    try:
        for place, sets in covers(reference):
            parts = []
            for number_of, within in enumerate(sets):
                now = monotonic()
                share = now + (deadline - now) / (2 * (len(sets) - number_of))
                if now >= deadline:
                    break
                known = bound.every_alternative
                rough = max(tolerance, _ROUGH)
                part = _searched(mdp, bound.epsilon, bound.delta, bound.rewards, known, rough, share, None, within)
                parts.append(part)
            if len(parts) == len(sets):
                times, rounds = (
                    tuple(max(getattr(part, name), getattr(bound, name)) for part in parts)
                    for name in ("characteristic_time", "characteristic_rounds")
                )
                stage, state = place or (None, None)
                found.append(Grouping(stage, state, times, rounds))
    except KeyboardInterrupt:
        return replace(bound, groupings=tuple(found), interrupted=True, reason=_BY_THE_USER)
    bound = replace(bound, groupings=tuple(found))
    if bound.grouped_samples > 0 and not bound.alternatives:
        bound = replace(bound, reason="no model makes all answers bad, but each of them has to be verified")
    return bound


def lower_bounds(
    mdp: LinearMDP, epsilons: Sequence[float], delta: float, *, max_seconds: float = 60.0, **options: object
) -> list[LowerBound]:
    """Lower bounds for several ε, in the order given; never increasing in ε.

    Alternatives for a larger ε are shared with all smaller ones. `max_seconds` is for all of them together.
    """
    results: dict[float, LowerBound] = {}
    begin, previous = monotonic(), None
    ordered = sorted(set(epsilons), reverse=True)
    for position, epsilon in enumerate(ordered):
        share = (max_seconds - (monotonic() - begin)) / (len(ordered) - position)
        also = () if previous is None else previous.every_alternative
        result = lower_bound(mdp, epsilon, delta, also=also, max_seconds=max(share, 0.0), **options)  # type: ignore[arg-type]
        if previous is not None:
            better = max(previous.any_sampling, result.any_sampling, key=_time)
            better_in_rounds = max(previous.in_rounds, result.in_rounds, key=_time)
            # Who is correct for an ε is so for every larger one, whose groups therefore say something of him, too.
            groupings = (*result.groupings, *previous.groupings)
            result = replace(result, any_sampling=better, in_rounds=better_in_rounds, groupings=groupings)
        results[epsilon] = previous = result
    return [results[epsilon] for epsilon in epsilons]


def _search(
    planes: CuttingPlanes, tolerance: float, begin: float, callback: Callable[[Progress], object] | None
) -> str:
    if not planes.search.targets:
        return "nothing has to be told apart: every policy is ε-optimal"
    while True:
        planes.iterate(tolerance)
        if callback is not None:
            free = planes.free
            callback(Progress(free.time, free.gap, len(planes.alternatives), monotonic() - begin))
        if planes.out_of_time:
            return "time limit"
        if planes.finished:
            close = max(programme.gap for programme in planes.programmes) <= tolerance
            return "search gap below the tolerance" if close else "no further progress worth the time"


def _weighing(mdp: LinearMDP, planes: CuttingPlanes | None, *, in_rounds: bool) -> Weighing:
    """Weak duality from the very alternatives that are reported."""
    problem = mdp.problem
    shape = problem.mask.shape if problem.horizon is None else (problem.stages, *problem.mask.shape)
    programme = None if planes is None else planes.rounds if in_rounds else planes.free
    if planes is None or programme is None or programme.time == 0:
        pairs = problem.mask.sum() * (1 if in_rounds else problem.stages)
        return Weighing(0.0, (), frozen(np.zeros(0)), frozen(np.broadcast_to(problem.mask / pairs, shape)), np.inf)
    used = np.flatnonzero(programme.weights)
    kept, weights = tuple(planes.alternatives[k] for k in used), programme.weights[used]
    divergences = np.stack([alternative.divergences for alternative in kept])
    return Weighing(
        characteristic_time=characteristic(divergences, weights, in_rounds=in_rounds),
        alternatives=kept,
        weights=frozen(weights),
        allocation=frozen(planes.search.truth.on_pairs(programme.centre).reshape(shape)),
        search_gap=programme.gap,
    )


def _time(weighing: Weighing) -> float:
    return weighing.characteristic_time
