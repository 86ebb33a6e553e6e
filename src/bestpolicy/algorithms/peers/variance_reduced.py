"""Variance-reduced value iteration from below, at K pairs from which all others follow.

    v = 0, π = any policy, β = 1/(1-γ)
    for u = β, 2^{R'-1}ε, ..., 4ε, 2ε: R' rounds                        (V* - v ≤ u when one begins, u/2 when it ends)
        v₀ = v;  y = lower estimate of r + γP v₀ from m samples of each of the K pairs
        for j = 0, ..., R
            g = lower estimate of γP(v - v₀) from m₁ fresh samples of each of them        (0 if j = 0)
            Q = F clip(y + g, 0, β);   where max_a Q > v, set v to it and π to its action
    return π

    R' = ⌈log₂(β/ε)⌉,  δ' = δ/R',    R = ⌈log 16 / log(1/γ)⌉ - 1,    b + c = 1/2 - γ^{R+1}
    m = 1 + ⌈2ℓ/x²⌉,  ℓ = log(8K/δ'),  x = root of (7/3)β²x² + (2sβ^{3/2} + γβu)x = cu,  s = √(1+γ)/2;  x² = 2ℓ/(m-1)
    m₁ = ⌈2γ²β²ℓ₁/b²⌉,  ℓ₁ = log(4RK/δ')
    y = mean - x·(standard deviation) - (7/6)B x²  of r + γv₀(s'), whose range is B = 1 + γ(max v₀ - min v₀) ≤ β
    g = mean - (1-γ)bu/2  of γ(v - v₀)(s')

F extends numbers at the K pairs to all: φ(s,a) = Σ_k F_k(s,a) φ_k with F ≥ 0 and Σ_k F_k = 1. With anchors this is
`OPPQ`; with all pairs, F = 1, it is `VQVI`. The increments v - v₀ are small, so few samples do for them; the many
samples for v₀ are drawn once in a round.

The structure is that of Sidford et al. (2018). They call R = 4β log(β/u), m = 8192 β³ℓ/u² and m₁ = 128 β²ℓ₁ sufficient
(but R is 0 at first, and every round is given all of δ), with a term in (ℓ/m)^¾ in y; what is needed is far less. The
proof of what is run here is our own. With probability 1 - δ' a round keeps v ≤ T_π v, hence v ≤ V^π ≤ V*, and if V* - v
≤ u before it, V* - v ≤ u/2 after it:

* Lower estimates. Let μ and σ be mean and standard deviation of r + γv₀(s') at one of the pairs. By Bernstein's
  inequality for the mean and Theorem 10 of Maurer and Pontil (2009) for the standard deviation, each to both sides, y ≤
  μ ≤ y + 2xσ + (7/3)βx² at all K pairs but for 4K e^{-ℓ} = δ'/2. As long as v₀ ≤ v ≤ V* ≤ v₀ + u, Hoeffding with range
  γu gives g ≤ γP(v - v₀) ≤ g + (1-γ)bu in all R steps but for 2RK e^{-ℓ₁} = δ'/2.
* From below. Then Q is at most the true reward plus γPv, because F ≥ 0; so v ≤ T_π v is kept where an action is
  replaced and, v growing, where it is not.
* Progress. Each of the R + 1 steps leads from V* - v to at most γP_{π*}(V* - v), plus the widths above along π*: in the
  end V* - v ≤ γ^{R+1}u + bu + (7/3)β²x² + 2x (I - γP_{π*})⁻¹ F σ. The MDP that takes pair k with probability F_k and
  draws reward and next state there has the values of the true one. In it mixtures vary at least as much as their parts:
  F σ ≤ σ(v₀) ≤ σ(V*) + γu/2, as 0 ≤ V* - v₀ ≤ u. And (I - γ²P_{π*})⁻¹ σ²(V*) is the variance of a return in [0, β], at
  most β²/4, hence (I - γP_{π*})⁻¹ σ(V*) ≤ √(β (1+γ) β²/4) = sβ^{3/2}. By the choice of x this is (γ^{R+1} + b + c)u.

Any b and c with that sum will do. With A = R m₁ b² and D = 2ℓ(2sβ^{3/2} + γβu)²/u², a round takes about A/b² + D/c²
samples of each pair, which b : c = A^{1/3} : D^{1/3} makes least. The references take mean rewards as known. Users who
know them may say so: then they are left out of y, whose limit is γβ, and added to Q. Otherwise they are learned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, log2, sqrt
from typing import Any, ClassVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.algorithms.peers.budget import Budgeted, FixedBudget
from bestpolicy.algorithms.peers.tabular import equal_pulls
from bestpolicy.algorithms.protocol import Request, Run, Task
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally


@dataclass(frozen=True)
class VarianceReduced(Budgeted):
    """What `OPPQ` and `VQVI` share: all but the pairs that they sample.

    Attributes
    ----------
    rewards : table (S, A), optional
        Mean rewards, if they are known: the guarantee then relies on them. Learned by default.
    """

    rule: ClassVar[str]

    rewards: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", reward_table(self.rewards))

    @abstractmethod
    def why_not(self, problem: Problem) -> str:
        """Say why the pairs of a problem cannot be sampled; empty if they can."""

    @abstractmethod
    def pairs(self, problem: Problem) -> tuple[IntArray, Callable[[FloatArray], FloatArray]]:
        """Return the pairs (K,) to sample, and F, which extends numbers (K,) at them to all, (S, A)."""

    def unsuitable(self, problem: Problem) -> str:
        """Known rewards must fit, too."""
        table, shape = self.rewards, problem.mask.shape
        fits = table is None or (len(table), len(table[0]) if table else 0) == shape
        reason = self.why_not(problem)
        return reason or ("" if fits else f"rewards must have shape (S, A) = {shape}, one mean reward for each pair.")

    def samples(self, problem: Problem, epsilon: float, delta: float) -> float:
        """K·Σ(m + R·m₁)."""
        count = len(self.pairs(problem)[0])
        return count * sum(each.samples for each in rounds(problem, count, epsilon, delta))

    def run(self, task: Task) -> Run:
        """Halve the distance to V* from below, round by round."""
        budget = FixedBudget.of(self, task, self.rule)
        rewards = None if self.rewards is None else np.asarray(self.rewards, dtype=np.float64)
        return (yield from halve_the_error(budget, task.delta, *self.pairs(task.problem), rewards))


def reward_table(rewards: Sequence[Sequence[float]] | None) -> tuple[tuple[float, ...], ...] | None:
    """Return known mean rewards as nested tuples, ready to be a parameter of a frozen algorithm; None if to be learned.

    Raises
    ------
    InvalidInput
        Unless they are a table of numbers in [0, 1].
    """
    if rewards is None:
        return None
    table: FloatArray
    try:
        table = np.asarray(rewards, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.ndim != 2 or not ((table >= 0) & (table <= 1)).all():
        raise InvalidInput("rewards must be a table (S, A) of mean rewards in [0, 1]; leave it out to learn them.")
    rows: Any = table.tolist()
    return tuple(tuple(row) for row in rows)


@dataclass(frozen=True)
class Round:
    """What is fixed of a round before the first sample.

    Attributes
    ----------
    error : float
        u, the error with which it begins.
    references : int
        m, the samples of each pair at its beginning.
    width : float
        x, by how many standard deviations means of these are lowered.
    steps, increments : int
        R, and the samples m₁ of each pair in a step.
    shift : float
        By how much means of increments are lowered.
    """

    error: float
    references: int
    width: float
    steps: int
    increments: int
    shift: float

    @property
    def samples(self) -> int:
        """Samples of each pair."""
        return self.references + self.steps * self.increments

    @classmethod
    def halving(cls, gamma: float, pairs: int, error: float, delta: float) -> Round:
        """Return the round that halves an error, at so many pairs and with probability 1 - δ'."""
        limit = 1 / (1 - gamma)
        steps = max(1, ceil(log(16) / log(1 / gamma))) - 1
        confidence, of_increments = log(8 * pairs / delta), log(4 * max(steps, 1) * pairs / delta)
        linear, square = sqrt((1 + gamma) * limit**3) + gamma * limit * error, 7 / 3 * limit**2

        price = 2 * (gamma * limit) ** 2 * of_increments
        weights = (steps * price) ** (1 / 3), (2 * confidence) ** (1 / 3) * (linear / error) ** (2 / 3)
        share = (1 / 2 - gamma ** (steps + 1)) / sum(weights)
        for_increments, allowed = share * weights[0], share * weights[1] * error
        root = 2 * allowed / (linear + sqrt(linear**2 + 4 * square * allowed))
        references = 1 + ceil(2 * confidence / root**2)
        return cls(
            error,
            references,
            width=sqrt(2 * confidence / (references - 1)),
            steps=steps,
            increments=ceil(price / for_increments**2) if steps else 0,
            shift=for_increments * error / (2 * limit),
        )


def rounds(problem: Problem, pairs: int, epsilon: float, delta: float) -> list[Round]:
    """Compute all numbers of samples of K pairs from (ε, δ); one round at least, which any ε ≥ β is content with."""
    limit = float(problem.value_limits[0])
    number = max(1, ceil(log2(limit / epsilon)))
    errors = (min(limit, epsilon * 2**left) for left in range(number, 0, -1))
    return [Round.halving(problem.continuation, pairs, error, delta / number) for error in errors]


def halve_the_error(
    budget: FixedBudget,
    delta: float,
    pairs: IntArray,
    table: Callable[[FloatArray], FloatArray],
    known_rewards: FloatArray | None,
) -> Run:
    """Come nearer to V* from below, round by round.

    Parameters
    ----------
    budget : FixedBudget
    delta : float
    pairs : int array (K,)
        The pairs to sample.
    table : callable
        F: extends numbers (K,) at these pairs to all, (S, A); -inf where an action is not allowed.
    known_rewards : array (S, A), optional
        Learned if not given.
    """
    problem, done, check = budget.problem, 0, None
    gamma, learned = problem.continuation, known_rewards is None
    rewards = 0.0 if known_rewards is None else known_rewards
    largest = float(problem.value_limits[0]) * (1.0 if learned else gamma)

    values, policy = np.zeros(problem.states), problem.mask.argmax(axis=1)
    for each in rounds(problem, len(pairs), budget.epsilon, delta):
        start = values
        tally = yield Request(equal_pulls(pairs, each.references), check)
        reference = following = lower_means(tally, gamma * start, each.width, learned)
        for step in range(each.steps + 1):
            if step > 0:
                tally = yield Request(equal_pulls(pairs, each.increments))
                increment = gamma * (tally.next_counts[0] @ (values - start)) / each.increments
                following = reference + increment - each.shift
            q_values = rewards + table(np.clip(following, 0.0, largest))
            values, policy = improved(values, policy, q_values)
        done += len(pairs) * each.samples
        check = budget.check(done, policy, q_values)
        check = replace(check, epsilon=each.error / 2)
    assert check is not None
    return check


def lower_means(tally: Tally, values: FloatArray, width: float, with_rewards: bool) -> FloatArray:
    """Lower estimates (K,) of the mean of values(s'), plus the reward if so wanted, at the pairs of a tally.

    Parameters
    ----------
    tally : Tally
        Of one stage.
    values : array (S,)
    width : float
        x = √(2ℓ/(m-1)) with m samples of each pair. The estimates are above the means at any of K pairs with
        probability at most 2K e^{-ℓ}.
    with_rewards : bool
    """
    samples, above = tally.pulls[0], values - values.min()
    sums, squares = tally.next_counts[0] @ above, tally.next_counts[0] @ above**2
    if with_rewards:
        sums = sums + tally.reward_sums[0]
        squares = squares + tally.squared_rewards[0] + 2 * (tally.next_rewards[0] @ above)
    means = sums / samples
    deviations = np.sqrt(np.maximum(squares / samples - means**2, 0.0))
    largest = above.max() + with_rewards
    lower: FloatArray = values.min() + means - width * deviations - 7 / 6 * largest * width**2
    return lower


def improved(values: FloatArray, policy: IntArray, q_values: FloatArray) -> tuple[FloatArray, IntArray]:
    """Take over the better action values (S, A), and keep value and action elsewhere."""
    best = q_values.max(axis=1)
    better = best > values
    return np.where(better, best, values), np.where(better, q_values.argmax(axis=1), policy)
