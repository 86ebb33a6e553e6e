"""What a search for alternatives has proved: two numbers, each with the alternatives and weights it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.divergence import confidence_divergence
from bestpolicy.bounds.groups import Grouping

RewardLaw = Literal["bernoulli", "deterministic"]


@dataclass(frozen=True, eq=False)
class Weighing:
    """Alternatives, weighed for one way of spending samples.

    Attributes
    ----------
    characteristic_time : float
        1/max Σ_k λ_k KL_k over steps and pairs if samples are spent freely, 1/Σ_h max Σ_k λ_k KL_k if they come in
        rounds; rounded down, 0 if no alternative was found.
    alternatives : tuple of Alternative
        Those with a positive weight.
    weights : array (K,)
        λ.
    allocation : array (S, A) or (H, S, A)
        ω: where samples tell M from the alternatives best. Sums to 1, in rounds to 1 per step; the best one tried,
        nearly optimal once the search gap is small.
    search_gap : float
        The value of the linear programme over that of the most confusing alternative found at the best allocation,
        minus 1. An estimate of how much better the bound could still be, not a certificate.
    """

    characteristic_time: float
    alternatives: tuple[Alternative, ...]
    weights: FloatArray
    allocation: FloatArray
    search_gap: float


@dataclass(frozen=True, eq=False)
class LowerBound:
    """What no algorithm can beat on this model.

    An episodic problem has two bounds. `samples_lower_bound` is for *any* algorithm, whichever steps it samples how
    often. `rounds_lower_bound` is for algorithms that sample every step equally often, as GSS-E does, and for no
    others: an algorithm that samples a hard step more often than the easy ones may need fewer than H times as many
    calls. In a discounted problem the two are the same.

    Attributes
    ----------
    epsilon, delta : float
    any_sampling, in_rounds : Weighing
        What the two bounds follow from.
    seconds : float
    interrupted : bool
        Whether the time limit or Ctrl-C ended the search. The bounds are valid all the same.
    reason : str
        Why the search ended.
    rewards : {"bernoulli", "deterministic"}
    groupings : tuple of Grouping
        With ε > 0: what groups of answers say. What is reported is the larger of their bound and that of all together.
    """

    epsilon: float
    delta: float
    any_sampling: Weighing
    in_rounds: Weighing
    seconds: float
    interrupted: bool
    reason: str
    rewards: RewardLaw
    groupings: tuple[Grouping, ...] = ()

    @property
    def samples_lower_bound(self) -> float:
        """Mean simulator calls of any algorithm: kl(δ, 1-δ) times `characteristic_time`, or what groups say if more."""
        return max(self.grouped_samples, confidence_divergence(self.delta) * self.characteristic_time)

    @property
    def rounds_lower_bound(self) -> float:
        """Mean rounds, of one simulator call per step each, of any algorithm that samples in rounds."""
        together = confidence_divergence(self.delta) * self.characteristic_rounds
        return max([together, *(grouping.rounds_bound(self.delta) for grouping in self.groupings)])

    @property
    def grouped_samples(self) -> float:
        """Mean simulator calls of any algorithm, from groups of answers alone; 0 if there are none."""
        return max((grouping.samples(self.delta) for grouping in self.groupings), default=0.0)

    @property
    def asymptotic_time(self) -> float:
        """Samples per unit of log(1/δ) that no algorithm does without as δ → 0. Not a bound at any given δ."""
        return max([self.characteristic_time, *(min(grouping.times) for grouping in self.groupings)])

    @property
    def characteristic_time(self) -> float:
        """Certified samples per unit of kl(δ, 1-δ), for any sampling."""
        return self.any_sampling.characteristic_time

    @property
    def characteristic_rounds(self) -> float:
        """Certified lower value of the paper's T*(M), which counts rounds."""
        return self.in_rounds.characteristic_time

    @property
    def allocation(self) -> FloatArray:
        """Where an optimal algorithm samples, as shares of all samples: (S, A) or (H, S, A)."""
        return self.any_sampling.allocation

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Alternatives behind the bound on any algorithm."""
        return self.any_sampling.alternatives

    @property
    def weights(self) -> FloatArray:
        """Their weights λ, (K,)."""
        return self.any_sampling.weights

    @property
    def search_gap(self) -> float:
        """Estimate of how much better the bound on any algorithm could still be, as a share of it."""
        return self.any_sampling.search_gap

    @property
    def closest(self) -> Alternative | None:
        """The alternative with the largest weight, None if there is none."""
        return self.alternatives[int(self.weights.argmax())] if self.alternatives else None

    @property
    def all_policies(self) -> bool:
        """Whether algorithms that may return stochastic policies are covered; deterministic ones always are."""
        together = confidence_divergence(self.delta) * self.characteristic_time
        if self.samples_lower_bound > together:  # groups are of deterministic policies
            return False
        return all(alternative.certificate.all_policies for alternative in self.every_alternative)

    @property
    def every_alternative(self) -> tuple[Alternative, ...]:
        """The alternatives behind both bounds, each once."""
        return tuple({id(a): a for a in (*self.any_sampling.alternatives, *self.in_rounds.alternatives)}.values())

    @property
    def assumptions(self) -> str:
        """What the bounds take for granted, in words."""
        law = {
            "bernoulli": "rewards are Bernoulli and independent of the next state",
            "deterministic": "rewards are observed without noise and known",
        }[self.rewards]
        kind = "policies, stochastic ones included" if self.all_policies else "deterministic policies"
        outside = sum(not alternative.within_norms for alternative in self.every_alternative)
        norms = f"; {outside} alternatives exceed the norms of the paper's class as given" if outside else ""
        return (
            f"Mean number of samples of any algorithm that returns {kind} and is correct with probability 1-δ on "
            f"every linear MDP with these features and rewards in [0, 1]; {law}{norms}."
        )


@dataclass(frozen=True, eq=False)
class VerificationFloor:
    """What it takes to verify one policy, per unit of log(1/δ) and as δ → 0; not a bound at any given δ.

    Attributes
    ----------
    policy : int array (stages, S)
    epsilon : float
    characteristic_time : float
        Certified samples per unit of log(1/δ), for any sampling.
    characteristic_rounds : float
        The same in rounds of one sample per step, for algorithms that sample every step equally often.
    interrupted : bool
        Whether the time limit or Ctrl-C ended the search. The number is valid all the same.
    """

    policy: IntArray
    epsilon: float
    characteristic_time: float
    characteristic_rounds: float
    interrupted: bool

    def samples(self, delta: float) -> float:
        """`characteristic_time` times kl(δ, 1-δ), which is log(1/δ) in the limit: to compare with a bound at δ."""
        return confidence_divergence(delta) * self.characteristic_time
