"""A certified lower bound on the samples of *every* algorithm, for this very model.

Let δ < 1/2 and let M_1 … M_K be alternatives of M: linear models with M ≪ M_k and no policy ε-optimal in both M and
M_k. An algorithm that returns an ε-optimal policy with probability 1-δ in each of these models satisfies, for every λ
in the simplex [TJP Prop 1, Prop 4; Kaufmann, Cappé, Garivier 2016],

    E_M[τ] ≥ kl(δ, 1-δ) / max_{s,a} Σ_k λ_k KL_{M|M_k}(s, a)              (discounted; τ counts samples),
    E_M[τ] ≥ kl(δ, 1-δ) / Σ_h max_{s,a} Σ_k λ_k KL_{M|M_k}(h, s, a)       (episodic; τ counts rounds of H samples).

Proof: the event "the answer is ε-optimal in M" has probability ≥ 1-δ under M and ≤ δ under each M_k, so
Σ E[N(s,a)] KL_k(s,a) ≥ kl(δ, 1-δ) by transportation of measure; average with λ.

*Every* λ and every set of alternatives give a true bound, so neither the search nor the linear programme can make it
false, only weak. The best λ for given alternatives is a linear programme whose dual variable is an allocation ω,
max_ω min_k Σ ω KL_k; its value decreases to 1/T*(M) as alternatives are added where ω is fooled most easily: cutting
planes. What is reported is 1/(the weak-duality value), a certified lower value of the characteristic time T*(M).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal

import numpy as np

from bestpolicy.bounds.alternatives import Alternative, Verifier
from bestpolicy.bounds.cutting import CuttingPlanes
from bestpolicy.bounds.divergence import confidence_divergence
from bestpolicy.bounds.search import Search
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FloatArray, frozen
from bestpolicy.threads import one_thread

if TYPE_CHECKING:
    from bestpolicy.mdp import LinearMDP

RewardLaw = Literal["bernoulli", "deterministic"]


@dataclass(frozen=True)
class Progress:
    """Where the search stands.

    Attributes
    ----------
    characteristic_time : float
        Certified so far.
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


@dataclass(frozen=True, eq=False)
class LowerBound:
    """What no algorithm can beat on this model.

    Attributes
    ----------
    epsilon, delta : float
    characteristic_time : float
        Certified lower value of T*(M), in rounds (= samples if discounted); 0 if no alternative was found.
    rounds_lower_bound, samples_lower_bound : float
        kl(δ, 1-δ) times it; H samples a round if episodic. They bound the *mean* of what an algorithm uses.
    allocation : array (S, A) or (H, S, A)
        ω: where samples tell M from the alternatives best. Sums to 1 (per step); the best one tried, nearly optimal
        once the search gap is small.
    alternatives : tuple of Alternative
        Those with a positive weight.
    weights : array (K,)
        λ.
    search_gap : float
        The value of the linear programme over that of the most confusing alternative found at the best allocation,
        minus 1. An estimate of how much better the bound could still be, not a certificate.
    seconds : float
    interrupted : bool
        Whether the time limit or Ctrl-C ended the search. The bound is valid all the same.
    reason : str
        Why the search ended.
    rewards : {"bernoulli", "deterministic"}
    """

    epsilon: float
    delta: float
    characteristic_time: float
    rounds_lower_bound: float
    samples_lower_bound: float
    allocation: FloatArray
    alternatives: tuple[Alternative, ...]
    weights: FloatArray
    search_gap: float
    seconds: float
    interrupted: bool
    reason: str
    rewards: RewardLaw

    @property
    def closest(self) -> Alternative | None:
        """The alternative with the largest weight, None if there is none."""
        return self.alternatives[int(self.weights.argmax())] if self.alternatives else None

    @property
    def all_policies(self) -> bool:
        """Whether algorithms that may return stochastic policies are covered; deterministic ones always are."""
        return all(alternative.certificate.all_policies for alternative in self.alternatives)

    @property
    def assumptions(self) -> str:
        """What the bound takes for granted, in words."""
        law = {
            "bernoulli": "rewards are Bernoulli and independent of the next state",
            "deterministic": "rewards are observed without noise and known",
        }[self.rewards]
        kind = "policies, stochastic ones included" if self.all_policies else "deterministic policies"
        outside = sum(not alternative.within_norms for alternative in self.alternatives)
        norms = f"; {outside} alternatives exceed the norms of the paper's class as given" if outside else ""
        return (
            f"Mean number of samples of any algorithm that returns {kind} and is correct with probability 1-δ on "
            f"every linear MDP with these features and rewards in [0, 1]; {law}{norms}."
        )


def lower_bound(
    mdp: LinearMDP,
    epsilon: float,
    delta: float,
    *,
    tolerance: float = 1e-3,
    max_seconds: float = 60.0,
    rewards: RewardLaw = "bernoulli",
    also: Iterable[Alternative] = (),
    callback: Callable[[Progress], object] | None = None,
) -> LowerBound:
    """Bound the expected samples of every (ε, δ)-correct algorithm from below. Deterministic: needs no seed.

    Parameters
    ----------
    mdp : LinearMDP
    epsilon, delta : float
        ε ≥ 0 and δ in (0, 1). For δ ≥ 1/2 the bound is 0.
    tolerance : float, optional
        Stop when the search gap is below this; after 30 iterations a gap of 1 % will do.
    max_seconds : float, optional
        Return the best bound found by then.
    rewards : {"bernoulli", "deterministic"}, optional
        Law of the rewards: 1 with probability r(s,a) and else 0, or always r(s,a) and known to be so.
    also : iterable of Alternative, optional
        Alternatives of the same model found before. Those of a larger ε are valid for a smaller one.
    callback : callable, optional
        Called with a `Progress` after each iteration. A KeyboardInterrupt, from there or from the keyboard, ends the
        search and returns the bound so far.
    """
    if not (np.isfinite(epsilon) and epsilon >= 0):
        raise InvalidInput(f"epsilon must be a number of at least 0. Got {epsilon!r} instead.")
    if rewards not in ("bernoulli", "deterministic"):
        raise InvalidInput(f"rewards must be 'bernoulli' or 'deterministic'. Got {rewards!r} instead.")
    cost_of_confidence = confidence_divergence(delta)
    begin = monotonic()
    planes: CuttingPlanes | None = None
    interrupted, reason = False, "interrupted before any alternative was found"
    with one_thread():
        try:
            verifier = Verifier(mdp, float(epsilon), rewards_known=rewards == "deterministic")
            planes = CuttingPlanes(Search(verifier), deadline=begin + max_seconds)
            for alternative in also:
                adopted = verifier.adopt(alternative)
                if adopted is not None:
                    planes.add(adopted)
            reason = _search(planes, tolerance, begin, callback)
            interrupted = planes.out_of_time
        except KeyboardInterrupt:
            interrupted = True
            reason = "interrupted by the user"
    return _conclude(mdp, planes, float(epsilon), delta, cost_of_confidence, begin, interrupted, reason, rewards)


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
        also = () if previous is None else previous.alternatives
        result = lower_bound(mdp, epsilon, delta, also=also, max_seconds=max(share, 0.0), **options)  # type: ignore[arg-type]
        if previous is not None and result.characteristic_time < previous.characteristic_time:
            result = replace(previous, epsilon=float(epsilon))
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
            callback(Progress(planes.time, planes.gap, len(planes.alternatives), monotonic() - begin))
        if planes.out_of_time:
            return "time limit"
        if planes.finished:
            return "search gap below the tolerance" if planes.gap <= tolerance else "no further progress worth the time"


def _conclude(
    mdp: LinearMDP,
    planes: CuttingPlanes | None,
    epsilon: float,
    delta: float,
    cost_of_confidence: float,
    begin: float,
    interrupted: bool,
    reason: str,
    rewards: RewardLaw,
) -> LowerBound:
    problem = mdp.problem
    shape = problem.mask.shape if problem.horizon is None else (problem.stages, *problem.mask.shape)
    allocation = np.broadcast_to(problem.mask / problem.mask.sum(), shape)
    time, weights, gap = 0.0, np.zeros(0), float("inf")
    kept: tuple[Alternative, ...] = ()
    if planes is not None and planes.active:
        kept, weights, gap = planes.active, planes.active_weights, planes.gap
        time = _weak_duality(kept, weights)
        allocation = planes.search.truth.on_pairs(planes.centre).reshape(shape)
    elif planes is not None and not interrupted and planes.search.targets:
        reason = "no alternative model was found"
    rounds = cost_of_confidence * time
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        characteristic_time=time,
        rounds_lower_bound=rounds,
        samples_lower_bound=problem.stages * rounds,
        allocation=frozen(allocation),
        alternatives=kept,
        weights=frozen(weights),
        search_gap=gap,
        seconds=monotonic() - begin,
        interrupted=interrupted,
        reason=reason,
        rewards=rewards,
    )


def _weak_duality(alternatives: Sequence[Alternative], weights: FloatArray) -> float:
    """1 / Σ_h max Σ_k λ_k KL_k from the very alternatives that are reported, rounded down."""
    average = np.einsum("k,khsa->hsa", weights, np.stack([alternative.divergences for alternative in alternatives]))
    return float((1 - 1e-12) / average.max(axis=(1, 2)).sum())
