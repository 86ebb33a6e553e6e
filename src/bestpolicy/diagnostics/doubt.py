"""Doubt in linearity while a run goes on: bets on held-out pairs, valid at any time.

**What is tested.** In a linear model the mean of Y = R + γV(S') at a pair is φᵀ(θ + γ∫V dμ), for every function V. A
*base* of pairs j that span the features, n_j samples each, predicts each *held-out* pair k: with G = Σ_j n_jφ_jφ_jᵀ
and c_kj = n_jφ_kᵀG⁻¹φ_j is φ_k = Σ_j c_kjφ_j, so that the contrast D_k = Ȳ_k - Σ_j c_kjȲ_j has mean zero. If the model
is not linear, its mean is the *misfit* ζ_k(V) of the pair.

**Theorem D.** A round consists of fresh samples: n_k of each held-out pair and n_j of each pair of the base. Let V, the
numbers of samples, centres m_i in the range of Y, whose length is Λ, and stakes τ_k > 0 be functions of what was seen
before the round. Write q_k = 1 and q_j = -c_kj, ψ(x) = -log(1-x) - x, let τ_kΛ|q_i|/n_i < 1 for all i, and put

    e_k± = exp(±τ_kD_k - Σ_i n_iψ(τ_kΛ|q_i|/n_i)/Λ² · (mean of (Y_i - m_i)² over the samples at i)).

For each k, sign and stake let E be the product of these over the rounds so far, and E̅ the average of the E's over k,
signs and stakes. **In a linear MDP the probability that E̅ ≥ 1/α at the end of some round is at most α**, however the
run is stopped and whatever else is sampled meanwhile.

*Proof.* For |y| ≤ 1 and 0 ≤ x < 1, exp(±xy - ψ(x)y²) ≤ 1 ± xy (Fan, Grama and Liu 2015). A sample at i with y = (Y -
m_i)/Λ and x = τΛ|q_i|/n_i, with the sign of ±q_i, gives a factor whose conditional mean is at most 1 ± (τq_i/n_i)(μ_i -
m_i) ≤ exp(±(τq_i/n_i)(μ_i - m_i)), where μ_i is the mean of Y at i. Samples are independent given the past: the product
over all of the round has conditional mean at most exp(±τ Σ_i q_i(μ_i - m_i)). What is multiplied is exp(±τ Σ_i
q_i(Ȳ_i - m_i) - …), in which Σ_i q_im_i cancels on both sides, and Σ_i q_iμ_i = 0. So E[e_k± | past] ≤ 1: each E is a
non-negative supermartingale that starts at 1, and so is their average. Ville's inequality. ∎ (n_i, ΣY and ΣY² are all
that is needed of samples, and a `Tally` has them.)

**What a misfit may move.** Let V be the value function that the run has estimated, π its greedy policy, |ζ(V)| ≤ ζ at
all pairs, and φᵀξ with ξ off by at most e the estimate of TV, so that V = max_a φᵀξ. Then TV ≤ V + e + ζ and T_πV ≥ V -
e - ζ, hence V* ≤ V + (e+ζ)L and V^π ≥ V - (e+ζ)L with L = 1/(1-γ), or H if episodic: the loss is at most 2eL, which the
certificate is about, plus **2ζL**. So a misfit below ε/(2L) cannot move a claim by ε. Only the misfit of V counts.

**Which pairs.** Drawn at random are 24 pairs, and 168 more to be screened: a first round, the pilot, on which nothing
is staked, samples all of them a few times. Then the 24 are held out, and with them the 12 of the others that seem to
misfit most, given the values as they are estimated by then. All of it is fixed before the samples that bets are about.

**Size.** With a misfit x at the pair, log E grows by τx minus the sums above, with standard deviation τ·sd(D). So E
exceeds (number of E's)/α, and the doubt is raised, with probability about .95 if for one of the stakes

    x Στ ≥ log(number of E's/α) + Σ(what was subtracted) + 1.645·√(Σ τ² Var D).

The largest over held-out pairs of the smallest such x is what could *hide*. The test is large enough once that is at
most ε/(2L). Stakes are those at which misfits of 1, 4 and 16 times ε/(2L) would gain most, given earlier samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.design import g_optimal_design
from bestpolicy.design.whitening import column_scales
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally

LEVEL = 0.01  # false alarms, at most
PAIRS = 24  # held out at least, if there are so many: one of them is of those that misfit if one in eight of all does
_SCREENED, _SUSPECTS = 7.0, 0.5  # times as many more are screened, and so many of these are held out, too
POWER = 1.645  # standard deviations: .95
_LEAST_A_STEP = 4
_PILOT = 12  # samples of a pair before the first bet
_MULTIPLES = (1.0, 4.0, 16.0)  # of the smallest misfit that counts
_BOLDEST, _STAKES = 0.75, 48  # of what may be staked, and how many stakes are tried
_TOLERANCE = 0.1  # of the design
_TIED = 1e-9  # lengths closer than this, relative to the largest, are tied: rounding errors are far smaller
_GRAIN = 2.0**16  # values are rounded to so many steps, so that no decision hangs on their last bits


@dataclass(frozen=True, eq=False)
class Round:
    """What is fixed before the samples of a round are drawn.

    Attributes
    ----------
    held_out : int array (stages, m)
        Flat indices of the pairs that are tested, or screened.
    base_counts : int array (B,)
        Samples of each pair of the base at each stage.
    count : int
        Samples of each held-out pair.
    values : array (stages, S)
        V at the next states of each stage.
    base_centres, centres : array (stages, B), (stages, m)
    stakes : array (stages, m, 3)
        All zero in a pilot.
    """

    held_out: IntArray
    base_counts: IntArray
    count: int
    values: FloatArray
    base_centres: FloatArray
    centres: FloatArray
    stakes: FloatArray


@dataclass(frozen=True, eq=False)
class Suspect:
    """The held-out pair with the most evidence, and by how much it is off what the others predict."""

    stage: int
    pair: int
    misfit: float


class Doubt:
    """The test of a run.

    Parameters
    ----------
    problem : Problem
    base : int array (B,)
        Flat indices of pairs that span the features.
    weights : array (B,)
        Shares of the samples of the base.
    screened : int array (stages, M)
        Flat indices of other pairs.
    size : int
        The first so many of them at each stage are held out.

    Attributes
    ----------
    held_out : int array (stages, m)
        The pairs that are tested; those that are screened before the first bet.
    rounds, calls : int
        Rounds taken so far, and their samples.
    """

    def __init__(self, problem: Problem, base: IntArray, weights: FloatArray, screened: IntArray, size: int) -> None:
        self.problem, self.base, self.weights, self.screened, self.size = problem, base, weights, screened, size
        self.rounds = self.calls = 0
        self._past: Tally | None = None
        self._pairs = np.unique(np.concatenate([base, screened.ravel()]))
        self._best = -np.inf
        self._hold_out(screened)

    def _hold_out(self, pairs: IntArray) -> None:
        """Begin to bet on these pairs."""
        self.held_out, shape = pairs, (*pairs.shape, len(_MULTIPLES))
        self._wealth = np.zeros((*shape, 2))  # log E
        self._staked, self._lost, self._variance = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._contrasts = np.zeros(pairs.shape)  # of the last round

    @classmethod
    def begin(cls, problem: Problem, rng: np.random.Generator) -> Doubt | None:
        """Draw pairs to hold out; None if there is nothing to test: every model is linear in these features."""
        if problem.is_tabular or len(problem.pairs) <= problem.dimension:
            return None
        features = problem.pair_features
        design = g_optimal_design(features, tolerance=_TOLERANCE)
        chosen, weights = design.indices, design.weights
        if len(chosen) == len(features):  # keep some to test
            chosen = _spanning(features)
            weights = np.full(len(chosen), 1 / len(chosen))
        others = np.setdiff1d(np.arange(len(features)), chosen)
        wanted = ceil(max(PAIRS, problem.dimension / 4) / problem.stages)
        size = min(len(others), max(wanted, _LEAST_A_STEP))
        screened = min(len(others), ceil((1 + _SCREENED) * size))
        drawn = [rng.choice(others, screened, replace=False) for _ in range(problem.stages)]
        return cls(problem, problem.pairs[chosen], weights, problem.pairs[np.stack(drawn)], size)

    @classmethod
    def from_dict(cls, problem: Problem, known: dict[str, Any]) -> Doubt:
        """Read what `to_dict` wrote."""
        return cls(problem, known["base"], known["weights"], known["screened"], int(known["size"]))

    def to_dict(self) -> dict[str, Any]:
        """Return which pairs are tested, for a file."""
        return {"base": self.base, "weights": self.weights, "screened": self.screened, "size": self.size}

    # --- what was found

    @property
    def nats(self) -> float:
        """Log E̅ at which there is doubt, for one of the E's alone."""
        return log(self._wealth.size / LEVEL)

    @property
    def evidence(self) -> float:
        """The largest log E̅ so far."""
        return max(self._best, 0.0)

    @property
    def in_doubt(self) -> bool:
        """Whether the features are refuted."""
        return self._best >= -log(LEVEL)

    @property
    def suspect(self) -> Suspect:
        """Where the evidence is."""
        stage, place = np.unravel_index(self._wealth.max(axis=(2, 3)).argmax(), self.held_out.shape)
        return Suspect(int(stage), int(self.held_out[stage, place]), float(self._contrasts[stage, place]))

    @property
    def hidden(self) -> float:
        """The misfit of a held-out pair that could still hide; inf before the first bet."""
        return self._hiding(self._staked, self._lost, self._variance)

    def _hiding(self, staked: FloatArray, lost: FloatArray, variance: FloatArray) -> float:
        with np.errstate(divide="ignore"):
            needed = (self.nats + lost + POWER * np.sqrt(variance)) / staked
        return float(needed.min(axis=2).max())

    # --- rounds

    @property
    def smallest(self) -> int:
        """Calls of a pilot, or of any round that is worth its while."""
        return self._calls_of(_PILOT)

    def calls_to_find(self, misfit: float, values: FloatArray) -> float:
        """Calls that it should take until a misfit of this size cannot hide; 0 if it cannot already."""
        if self.hidden <= misfit:
            return 0.0
        self._choose(self._rounded(values))
        staked, lost, variance = self._rates(misfit, self._rounded(values))
        low, high = 0.0, 1.0
        while self._hiding_after(high, staked, lost, variance) > misfit:
            low, high = high, 2 * high
            if high > 1e15:
                return np.inf
        for _ in range(20):
            middle = (low + high) / 2
            enough = self._hiding_after(middle, staked, lost, variance) <= misfit
            low, high = (low, middle) if enough else (middle, high)
        return float(self._calls_of(ceil(1.05 * high)))

    def plan(self, calls: float, misfit: float, values: FloatArray) -> Round:
        """Fix a round of about so many calls, and never more of them if it is larger than the smallest.

        Parameters
        ----------
        calls : float
        misfit : float
            The smallest one that counts.
        values : array (stages, S)
            The estimated value function at the next states of each stage; rounded here.
        """
        values = self._rounded(values)
        self._choose(values)
        count = max(_PILOT, int(calls / self._calls_of(1000) * 1000))
        while count > _PILOT and self._calls_of(count) > calls:
            count -= max(1, count // 1000)
        counts = self._base_counts(count)
        if self._past is None:
            stages, size = self.held_out.shape
            middle = np.zeros((stages, len(self.base))), np.zeros((stages, size))
            return Round(self.held_out, counts, count, values, *middle, np.zeros((stages, size, len(_MULTIPLES))))
        stakes = count * self._rates(misfit, values)[0]
        limit = _BOLDEST / (self._span(values)[:, None] * self._largest(counts, count))
        base, own = self._moments(self._past, values)
        return Round(self.held_out, counts, count, values, base[0], own[0], np.minimum(stakes, limit[..., None]))

    def _choose(self, values: FloatArray) -> None:
        """Hold out what was drawn for it, and what misfits most of the others, once they are screened."""
        more = min(ceil(_SUSPECTS * self.size), self.screened.shape[1] - self.size)
        if self.rounds != 1 or self.held_out.shape[1] != self.screened.shape[1] or not more:
            return
        assert self._past is not None
        base, own = self._moments(self._past, values)
        predicted = np.einsum("hmb,hb->hm", self._coefficients(self._base_counts(_PILOT)), base[0])
        misfits = np.abs(own[0] - predicted)[:, self.size :]
        worst = self.size + np.argsort(-misfits, axis=1, kind="stable")[:, :more]
        self._hold_out(np.concatenate([self.screened[:, : self.size], np.take_along_axis(self.screened, worst, 1)], 1))

    def pulls(self, bets: Round) -> Pulls:
        """Return what a round asks for."""
        counts = np.zeros((self.problem.stages, len(self._pairs)), np.int64)
        counts[:, np.searchsorted(self._pairs, self.base)] = bets.base_counts
        np.put_along_axis(counts, np.searchsorted(self._pairs, bets.held_out), bets.count, axis=1)
        return Pulls(self._pairs, counts)

    def take(self, bets: Round, tally: Tally) -> None:
        """Settle the bets of a round with its samples."""
        if not np.array_equal(bets.held_out, self.held_out):
            self._hold_out(bets.held_out)
        tally = tally.at(self._pairs)
        base, own = self._moments(tally, bets.values, bets.base_centres, bets.centres)
        coefficients = self._coefficients(bets.base_counts)
        predicted = np.einsum("hmb,hb->hm", coefficients, base[0])
        self._contrasts = own[0] - predicted
        span = self._span(bets.values)
        lost, variance = self._penalty(bets.stakes, bets.base_counts, bets.count, span, base[1], own[1])
        gained = bets.stakes * self._contrasts[..., None]
        self._wealth += np.stack([gained - lost, -gained - lost], axis=-1)
        self._staked, self._lost = self._staked + bets.stakes, self._lost + lost
        self._variance = self._variance + variance
        highest = self._wealth.max()
        self._best = max(self._best, float(highest + np.log(np.exp(self._wealth - highest).mean())))
        self._past = tally if self._past is None else self._past + tally
        self.rounds, self.calls = self.rounds + 1, self.calls + tally.samples

    # --- mathematics

    def _base_counts(self, count: int) -> IntArray:
        total = count * sqrt(self.held_out.shape[1] * self.problem.dimension)  # least variance for the calls
        counts: IntArray = np.maximum(1, np.ceil(total * self.weights)).astype(np.int64)
        return counts

    def _calls_of(self, count: int) -> int:
        stages, size = (int(number) for number in self.held_out.shape)
        return stages * (size * count + int(self._base_counts(count).sum()))

    def _rounded(self, values: FloatArray) -> FloatArray:
        grain = self.problem.value_limits[0] / _GRAIN
        rounded: FloatArray = np.round(values / grain) * grain
        return rounded

    def _span(self, values: FloatArray) -> FloatArray:
        """Λ of each stage, (stages,)."""
        span: FloatArray = 1.0 + self.problem.continuation * (values.max(axis=1) - values.min(axis=1))
        return span

    def _coefficients(self, counts: IntArray) -> FloatArray:
        """Of the base in each held-out pair, (stages, m, B)."""
        features = self.problem.features.reshape(-1, self.problem.dimension)
        base = features[self.base]
        scales, roots = column_scales(base), np.sqrt(counts.astype(np.float64))
        inverse = np.linalg.pinv(roots[:, None] * base / scales)  # (d, B)
        found: FloatArray = (features[self.held_out] / scales) @ inverse * roots
        return found

    def _largest(self, counts: IntArray, count: int) -> FloatArray:
        """Largest |q|/n of each contrast, (stages, m)."""
        weights: FloatArray = np.abs(self._coefficients(counts) / counts).max(axis=2)
        return np.maximum(weights, 1.0 / count)

    def _moments(
        self,
        tally: Tally,
        values: FloatArray,
        base_centres: FloatArray | None = None,
        centres: FloatArray | None = None,
    ) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Means of Y, and mean squares around centres (around the means themselves if not given); base and held-out."""
        gamma = self.problem.continuation
        following, rewards = tally.next_counts, tally.next_rewards
        n = np.maximum(tally.pulls, 1)
        sums = tally.reward_sums + gamma * np.einsum("hps,hs->hp", following, values)
        squares = tally.squared_rewards + 2 * gamma * np.einsum("hps,hs->hp", rewards, values)
        squares = squares + gamma**2 * np.einsum("hps,hs->hp", following, values**2)
        low = gamma * values.min(axis=1)[:, None]
        means = np.clip(sums / n, low, low + self._span(values)[:, None])

        def at(pairs: IntArray, around: FloatArray | None) -> tuple[FloatArray, FloatArray]:
            place = np.searchsorted(self._pairs, pairs)
            mean, square = (np.take_along_axis(array, place, axis=1) for array in (means, squares / n))
            centre = mean if around is None else around
            return mean, np.maximum(square - 2 * centre * mean + centre**2, 0.0)

        return at(np.tile(self.base, (len(values), 1)), base_centres), at(self.held_out, centres)

    def _penalty(
        self,
        stakes: FloatArray,
        counts: IntArray,
        count: int,
        span: FloatArray,
        base_squares: FloatArray,
        squares: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return what is subtracted in log E, and the variance of what is won, both as the stakes."""
        weights = np.abs(self._coefficients(counts)) / counts  # |q|/n
        width = span[:, None, None]
        lost, variance = np.zeros_like(stakes), np.zeros_like(stakes)
        for g in range(stakes.shape[2]):
            stake = stakes[:, :, g, None]
            lost[:, :, g] = np.einsum("hmb,b,hb->hm", _psi(stake * width * weights), counts, base_squares)
            variance[:, :, g] = np.einsum("hmb,b,hb->hm", (stake * weights) ** 2, counts, base_squares)
        lost = (lost + count * _psi(stakes * width / count) * squares[..., None]) / width**2
        return lost, variance + stakes**2 / count * squares[..., None]

    def _rates(self, misfit: float, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the best stakes for multiples of a misfit, with loss and variance, per sample of a held-out pair."""
        assert self._past is not None
        span, count = self._span(values), 1000
        counts = self._base_counts(count)
        base, own = self._moments(self._past, values)
        base_squares, squares = self._expected_squares(base[1], own[1], span)
        unit = _BOLDEST / (span[:, None] * self._largest(counts, count))  # the largest stake
        stakes = unit[..., None] * 0.8 ** np.arange(_STAKES)
        lost, variance = self._penalty(stakes, counts, count, span, base_squares, squares)
        found = []
        for multiple in _MULTIPLES:
            best = (multiple * misfit * stakes - lost).argmax(axis=2)[..., None]
            found.append([np.take_along_axis(array, best, axis=2)[..., 0] for array in (stakes, lost, variance)])
        rates = np.stack(found, axis=-1) / count  # (3, stages, m, multiples)
        return rates[0], rates[1], rates[2]

    def _expected_squares(self, base: FloatArray, own: FloatArray, span: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Variances as the past has them, drawn a little towards each other: few samples may show none by chance."""
        assert self._past is not None
        place = np.searchsorted(self._pairs, self.base), np.searchsorted(self._pairs, self.held_out)
        n = self._past.pulls[:, place[0]], np.take_along_axis(self._past.pulls, place[1], axis=1)
        total = n[0].sum() + n[1].sum()
        pooled = ((n[0] * base).sum() + (n[1] * own).sum() + (span.max() / 4) ** 2) / total
        drawn = [(size * square + 2 * pooled) / (size + 1) for size, square in zip(n, (base, own), strict=True)]
        return drawn[0], drawn[1]

    def _hiding_after(self, count: float, staked: FloatArray, lost: FloatArray, variance: FloatArray) -> float:
        return self._hiding(self._staked + count * staked, self._lost + count * lost, self._variance + count * variance)


def _psi(x: FloatArray) -> FloatArray:
    found: FloatArray = -np.log1p(-x) - x
    return found


def _spanning(features: FloatArray) -> IntArray:
    """Indices of as many rows as there are features, which span all of them.

    Each is the longest beyond the span of those before it; of tied ones the first, on every processor.
    """
    rest, chosen = features / column_scales(features), list[int]()
    for _ in range(features.shape[1]):
        sizes = (rest**2).sum(axis=1)
        sizes[chosen] = 0.0
        chosen.append(int((sizes >= sizes.max() * (1 - _TIED)).argmax()))
        along = rest[chosen[-1]] / np.linalg.norm(rest[chosen[-1]])
        rest = rest - np.outer(rest @ along, along)
    return np.sort(np.array(chosen, np.int64))
