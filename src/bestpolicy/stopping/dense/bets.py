"""Bets on the rivals of a policy, batch by batch, and what they have earned at a hypothesis.

For a policy π and any ξ (stages, d) let V_ξ(s) = φ(s,π(s))ᵀξ and η(ξ) = r + gV_ξ(s') - φᵀξ the noise that a sample
would have if ξ were the parameter ξ^π of π's values; V_ξ is that of the stage that follows (0 after the last), g =
γ or 1. At ξ^π its mean is 0 whatever the past. A rival j = (stage, s, a) has c_j = φ(s,a) - φ(s,π(s)) ≠ 0; its
advantage is c_jᵀξ^π.

A *snapshot* is all that bets on a batch depend on, and it is taken before the batch is drawn: an estimated model
(θ̃, μ̃), guessed variances ṽ of pairs and the *planned* shares w of pairs. With G = Σ_k w_k φ_kφ_kᵀ/ṽ_k and y =
J̃ᵀc_j, J̃ the response of π's values in the snapshot (`propagation`), rival j has the stakes

    τ_k = α·(yᵀG⁻¹φ_k/ṽ_k)/(yᵀG⁻¹y),        so that Σ_k w_k τ_k φ_k = α y/(yᵀG⁻¹y).

The size α is fixed by the lag, but for a factor of the batch, at most 1, which the snapshot fixes: allocations
change, and what was a moderate stake at the lag may be a bold one now. Then -Σ τη(ξ), over the batch, has a
gradient that is nearly a multiple of c_j: what is left is the error of the snapshot's J̃. Centres are those of the
snapshot, too: m_k(ξ) = r̃_k + g f_kᵀξ, with r̃_k = φ_kᵀθ̃ clipped to [0, 1] and f_k = K̃ᵀφ_k, K̃ = μ̃ᵀΦ_π, what the
snapshot expects of φ(S',π(S')). As φᵀμ̃ᵀ1 = 1, ζ(ξ) = r + gV_ξ(s') - m_k(ξ) does not see the level of V_ξ.

Several batches in a row may have the same snapshot: it is known before each of them. `Entry` keeps of these together
what a look needs: sums by pair and next state, never single samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import second_moments
from bestpolicy.stopping.lemmas.propagation import propagate

_WORST_CONDITION = 1e9  # of the planned G of a batch; beyond it the batch is not bet on
_CHUNK = 2**21  # stakes at a time
_KEPT = 2_000_000  # numbers up to which directions of all rivals are kept
_FULL = 0.1  # of next states that occurred, for a matrix with zeros to be faster
EXACT = 40  # dimension up to which second moments of each pair are kept
_MOMENTS = 4_000_000  # numbers up to which they are


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is known before a batch is drawn; all that its bets depend on.

    Attributes
    ----------
    theta : array (stages, d)
    mu : array (stages, S, d)
        The estimated model, in the coordinates of the tests.
    variances : array (stages, K)
        Guesses ṽ for the pairs that may be sampled, positive.
    shares : array (stages, K)
        Of the batch that are planned for each of them; only pairs with a share are sampled.
    counts : int array (stages, K)
        How often each of them is planned to be sampled.
    weights : array (stages, K)
        u: samples of the batch count with 1/u in the regression.
    """

    theta: FloatArray
    mu: FloatArray
    variances: FloatArray
    shares: FloatArray
    counts: IntArray
    weights: FloatArray

    def same(self, other: Snapshot) -> bool:
        """Whether another one is this one, taken over for a batch with counts of its own."""
        names = ("theta", "mu", "variances", "shares", "weights")
        return all(getattr(self, name) is getattr(other, name) for name in names)

    def precision(self, sampled: FloatArray) -> FloatArray | None:
        """G⁻¹ (stages, d, d) for the features of the pairs (K, d); None if the plan does not determine it."""
        gram = second_moments(sampled, self.shares / self.variances)
        values = np.linalg.eigvalsh(gram)
        if not (values[:, 0] * _WORST_CONDITION > values[:, -1]).all():
            return None
        inverse: FloatArray = np.linalg.inv(gram).astype(np.float64)
        return inverse


@dataclass(frozen=True, eq=False)
class Rivals:
    """The actions that a policy might play instead, in order of their stages.

    Attributes
    ----------
    stage, state, action : int arrays (J,)
    differences : array (J, d)
        c_j = φ(s,a) - φ(s,π(s)).
    """

    stage: IntArray
    state: IntArray
    action: IntArray
    differences: FloatArray

    @classmethod
    def of(cls, problem: Problem, policy: IntArray) -> Rivals:
        """Return all whose features, as the user gave them, differ from those of what is played."""
        states, given = np.arange(problem.states), problem.source.features
        differ = [(given != given[states, actions][:, None, :]).any(axis=2) & problem.mask for actions in policy]
        stage, state, action = np.nonzero(np.stack(differ))
        features = problem.features
        return cls(stage, state, action, features[state, action] - features[state, policy[stage, state]])

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def place(self) -> tuple[IntArray, IntArray, IntArray]:
        """Where they are in arrays (stages, S, A)."""
        return self.stage, self.state, self.action


class Bets:
    """The bets on one batch for the rivals of a policy, for size α = 1.

    Parameters
    ----------
    problem : Problem
    rivals : Rivals
    policy : int array (stages, S)
    snapshot : Snapshot
    sampled : array (K, d)
        Features of the pairs that may be sampled.

    Attributes
    ----------
    possible : bool
        Whether the plan and the snapshot allow bets; if not, the batch is not bet on. It does not hang on its outcome.
    used : int array (U,)
        Which of the pairs have a share, at some stage; what follows is about these.
    sampled, variances, shares : arrays (U, d), (stages, U), (stages, U)
    response : Propagation
        Of the policy in the snapshot.
    precision : array (stages, d, d)
        G⁻¹.
    spread : array (J,)
        yᵀG⁻¹y: the variance, roughly, of what one sample says of the advantage of each rival.
    rewards, means : arrays (stages, U), (stages, U, d)
        r̃ and f.
    factor : array (J,)
        By which sizes are smaller at this batch.
    """

    def __init__(
        self, problem: Problem, rivals: Rivals, policy: IntArray, snapshot: Snapshot, sampled: FloatArray
    ) -> None:
        self.problem, self.rivals, self.snapshot = problem, rivals, snapshot
        response, precision = propagate(problem, snapshot.theta, snapshot.mu, policy), snapshot.precision(sampled)
        self.possible = response is not None and precision is not None
        if response is None or precision is None:
            return
        self.response, self.precision = response, precision
        self.used = np.flatnonzero((snapshot.shares > 0).any(axis=0))
        self.sampled, self.variances = sampled[self.used], snapshot.variances[:, self.used]
        self.shares = snapshot.shares[:, self.used]
        self.rewards = np.clip(snapshot.theta @ self.sampled.T, 0.0, 1.0)
        self.means = self.sampled[None] @ (snapshot.mu.swapaxes(1, 2) @ response.following(response.played))
        directions = response.directions(rivals.stage, rivals.differences)
        pulled = np.einsum("jhd,hde->jhe", directions, precision, optimize=True)
        self.spread = np.maximum(np.einsum("jhd,jhd->j", pulled, directions), 1e-300)
        self.factor = np.ones(len(rivals))
        self._directions = pulled / self.spread[:, None, None] if pulled.size <= _KEPT else None
        dimension = problem.dimension
        self.with_moments = dimension <= EXACT and self.variances.size * dimension**2 <= _MOMENTS
        self.centre = response.following(response.played).mean(axis=1, keepdims=True)

    def soften(self, factor: FloatArray) -> None:
        """Make all stakes of every rival smaller by a factor (J,), before anything is asked of them."""
        self.factor = factor
        if self._directions is not None:
            self._directions = self._directions * factor[:, None, None]

    def directions(self, some: IntArray) -> FloatArray:
        """yᵀG⁻¹/(yᵀG⁻¹y) of some rivals, in order, times the factor, (n, stages, d)."""
        if self._directions is not None:
            chosen: FloatArray = self._directions if len(some) == len(self.rivals) else self._directions[some]
            return chosen
        directions = self.response.directions(self.rivals.stage[some], self.rivals.differences[some])
        pulled = np.einsum("jhd,hde->jhe", directions, self.precision, optimize=True)
        scaled: FloatArray = pulled * (self.factor / self.spread)[some, None, None]
        return scaled

    def stakes(self, some: IntArray) -> FloatArray:
        """τ/α of some rivals, (n, stages, U); 0 where a pair has no share."""
        return np.where(self.shares > 0, (self.directions(some) @ self.sampled.T) / self.variances, 0.0)

    @cached_property
    def peaks(self) -> FloatArray:
        """The largest |τ|/α of every rival, (J,)."""
        found = np.empty(len(self.rivals))
        for some in self.pieces():
            found[some] = np.abs(self.stakes(some)).max(axis=(1, 2))
        return found

    def pieces(self) -> Iterator[IntArray]:
        """All rivals, so few at a time that their stakes take little memory."""
        step = max(1, _CHUNK // max(1, self.variances.size))
        for start in range(0, len(self.rivals), step):
            yield np.arange(start, min(start + step, len(self.rivals)))

    def reach(self, rise: FloatArray, fall: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far above and below its centre R + gV(S') may lie, if V is at most so far above and below its own."""
        gamma = self.problem.continuation
        return 1 - self.rewards + gamma * np.clip(rise, 0.0, None), self.rewards + gamma * np.clip(fall, 0.0, None)

    def expected_reach(self) -> tuple[FloatArray, FloatArray]:
        """`reach`, as the snapshot expects it, (stages, U) each."""
        values = self.response.following(self.response.values)
        middle = np.einsum("hkd,hd->hk", self.means, self.response.following(self.response.parameters))
        return self.reach(values.max(axis=1)[:, None] - middle, middle - values.min(axis=1)[:, None])

    def boldest(self) -> FloatArray:
        """The largest |τ|R of every rival, as the snapshot expects it, for size 1, (J,)."""
        up, down = self.expected_reach()
        found = np.empty(len(self.rivals))
        for some in self.pieces():
            stakes = self.stakes(some)
            found[some] = (np.abs(stakes) * np.where(stakes > 0, up, down)).max(axis=(1, 2))
        return np.maximum(found, 1e-300)


class Entry:
    """Batches with the bets on them, for one policy, that rest on one snapshot.

    All that looks need of them are sums by pair. With x = φ(s',π(s')) - c, c the mean over all states (so that sums of
    squares do not cancel), V' = xᵀξ and f' = f - c, ζ(ξ) = r - r̃ + g(x - f')ᵀξ, so Σζ(ξ)² and its gradient follow from
    n, Σr, Σr², Σx, Σrx and Σxxᵀ; where the last would take too much room, ΣV'² and ΣV'x from counts of next states.

    Parameters
    ----------
    bets : Bets
    tally : Tally
        What was drawn, over the pairs that may be sampled.
    """

    def __init__(self, bets: Bets, tally: Tally) -> None:
        self.bets, self.tally = bets, tally.at(tally.pairs[bets.used])
        self.weights = bets.snapshot.weights[:, bets.used]
        _, pairs, states = self.tally.shape
        self.row, self.next = np.divmod(self.tally.cells, states)
        self.stage = self.row // max(1, pairs)
        self.centre = bets.centre
        self.means = bets.means - self.centre  # f'
        self.first = self._summed(self.tally.counts)  # Σx
        self.rewarded = self._summed(self.tally.rewards)  # Σrx
        self.second = self._second_moments() if bets.with_moments else None  # Σxxᵀ

    def joined(self, other: Entry) -> Entry:
        """Return this and more of the same snapshot, as one."""
        both: Entry = object.__new__(Entry)
        both.__dict__.update(
            bets=self.bets,
            tally=self.tally + other.tally,
            weights=self.weights,
            centre=self.centre,
            means=self.means,
            first=self.first + other.first,
            rewarded=self.rewarded + other.rewarded,
            second=None if self.second is None or other.second is None else self.second + other.second,
        )
        both.row, both.next = np.divmod(both.tally.cells, both.tally.shape[2])
        both.stage = both.row // max(1, both.tally.shape[1])
        return both

    @cached_property
    def _ahead(self) -> FloatArray:
        """x of every state, (stages, S, d)."""
        ahead: FloatArray = self.bets.response.following(self.bets.response.played) - self.centre
        return ahead

    def _matrix(self, weights: FloatArray | IntArray) -> Any:
        """Weights of cells as a matrix of pairs and next states; with zeros, if there are few of them."""
        stages, pairs, states = self.tally.shape
        place = (self.row, self.stage * states + self.next)
        matrix = csr_array((weights, place), shape=(stages * pairs, stages * states))
        return matrix.toarray() if matrix.nnz > _FULL * matrix.shape[0] * matrix.shape[1] else matrix

    @cached_property
    def counts(self) -> Any:
        """Next states by pair, (stages·U, stages·S), a sparse or a full matrix."""
        return self._matrix(self.tally.counts.astype(np.float64))

    def by_pair(self, values: FloatArray) -> FloatArray:
        """Σ of a function (stages, S, …) of the next state by pair, (stages, U, …)."""
        stages, pairs, states = self.tally.shape
        sums: FloatArray = self.counts @ values.reshape(stages * states, -1)
        return sums.reshape(stages, pairs, *values.shape[2:])

    def _summed(self, weights: FloatArray | IntArray) -> FloatArray:
        """Sum of x, weighted cell by cell, by pair, (stages, U, d)."""
        stages, pairs, states = self.tally.shape
        sums: FloatArray = self._matrix(weights) @ self._ahead.reshape(stages * states, -1)
        return sums.reshape(stages, pairs, -1)

    def _second_moments(self) -> FloatArray:
        """Σxxᵀ by pair, (stages, U, d, d)."""
        stages, pairs, _ = self.tally.shape
        rows = self._ahead[self.stage, self.next]
        rows *= np.sqrt(self.tally.counts)[:, None]
        starts = np.searchsorted(self.row, np.arange(stages * pairs + 1))
        found = np.zeros((stages * pairs, rows.shape[1], rows.shape[1]))
        for place, (begin, end) in enumerate(pairwise(starts)):
            if end > begin:
                found[place] = rows[begin:end].T @ rows[begin:end]
        return found.reshape(stages, pairs, *found.shape[1:])

    def following(self) -> FloatArray:
        """Sum of φ(S',π(S')) by pair, (stages, U, d)."""
        sums: FloatArray = self.first + self.tally.pulls[:, :, None] * self.centre
        return sums

    def earned(self) -> tuple[FloatArray, FloatArray]:
        """-Σ τη(ξ)/α of every rival as a number (J,) and a functional of ξ (J, stages, d): a + bᵀξ."""
        return self._earned

    @cached_property
    def _earned(self) -> tuple[FloatArray, FloatArray]:
        bets, problem = self.bets, self.bets.problem
        weighted = (bets.sampled[None] / bets.variances[:, :, None]).swapaxes(1, 2)  # φ/ṽ, (stages, d, U)
        rewards = np.einsum("hdk,hk->hd", weighted, self.tally.reward_sums)
        own = weighted @ (self.tally.pulls[:, :, None] * bets.sampled[None])
        ahead = problem.continuation * (weighted @ self.following())
        directions = bets.directions(np.arange(len(bets.rivals)))
        staged = directions.swapaxes(0, 1)
        if problem.horizon is None:
            functional = staged @ (own - ahead)  # (stages, J, d)
        else:
            functional = staged @ own
            functional[1:] -= staged[:-1] @ ahead[:-1]
        return -np.einsum("jhd,hd->j", directions, rewards), np.ascontiguousarray(functional.swapaxes(0, 1))

    @cached_property
    def absolute(self) -> FloatArray:
        """A bound on Σ|τ|/α of every rival, (J, stages), by Cauchy and Schwarz: for rounding it will do."""
        bets, pulls = self.bets, self.tally.pulls
        form = second_moments(bets.sampled, pulls / bets.variances**2)
        directions = bets.directions(np.arange(len(bets.rivals)))
        squares = np.einsum("jhd,jhd->jh", np.einsum("jhd,hde->jhe", directions, form, optimize=True), directions)
        found: FloatArray = np.sqrt(np.clip(squares, 0.0, None) * pulls.sum(axis=1)) * (1 + 1e-9)
        return found

    def squares(self, values: FloatArray, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ ζ(ξ)² by pair, (stages, U), and its gradient in the ξ of the stage that follows, (stages, U, d).

        Given V_ξ (stages, S) and ξ (stages, d) of the stages that follow.
        """
        return self.squared(values, parameters), self.slopes(values, parameters)

    def _moved(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ΣV' by pair, and f'ᵀξ, (stages, U) each."""
        return tuple(np.einsum("hkd,hd->hk", rows, parameters) for rows in (self.first, self.means))

    def squared(self, values: FloatArray, parameters: FloatArray) -> FloatArray:
        """Σ ζ(ξ)² by pair, (stages, U)."""
        tally, reward, gamma = self.tally, self.bets.rewards, self.bets.problem.continuation
        level = np.einsum("hd,hd->h", self.centre[:, 0], parameters)[:, None]
        ahead, own = self._moved(parameters)
        if self.second is not None:
            twice = np.einsum("hkde,hd,he->hk", self.second, parameters, parameters, optimize=True)
        else:
            twice = self.by_pair((values - level) ** 2)
        plain = tally.squared_rewards - reward * (2 * tally.reward_sums - tally.pulls * reward)
        earned = np.einsum("hkd,hd->hk", self.rewarded, parameters)
        mixed = earned - tally.reward_sums * own - reward * (ahead - tally.pulls * own)
        found: FloatArray = plain + 2 * gamma * mixed + gamma**2 * (twice - own * (2 * ahead - tally.pulls * own))
        return np.clip(found, 0.0, None)

    def slopes(self, values: FloatArray, parameters: FloatArray) -> FloatArray:
        """The gradient of Σ ζ(ξ)² in the ξ of the stage that follows, (stages, U, d)."""
        tally, reward, gamma = self.tally, self.bets.rewards, self.bets.problem.continuation
        level = np.einsum("hd,hd->h", self.centre[:, 0], parameters)[:, None]
        ahead, own = self._moved(parameters)
        if self.second is not None:
            twice = np.einsum("hkde,he->hkd", self.second, parameters, optimize=True)
        else:
            twice = self.by_pair((values - level)[:, :, None] * self._ahead)
        noise = tally.reward_sums - reward * tally.pulls + gamma * (ahead - tally.pulls * own)  # Σζ
        gradient = self.rewarded + gamma * twice - (reward + gamma * own)[:, :, None] * self.first
        found: FloatArray = 2 * gamma * (gradient - noise[:, :, None] * self.means)
        return found

    def moments(self) -> FloatArray:
        """Σ (x - f')(x - f')ᵀ by pair, (stages, U, d, d), and no less in any direction, whatever was rounded."""
        second = self._second_moments() if self.second is None else self.second
        mixed = self.first[:, :, :, None] * self.means[:, :, None, :]
        own = self.tally.pulls[:, :, None, None] * (self.means[:, :, :, None] * self.means[:, :, None, :])
        states, dimension = self.bets.problem.states, second.shape[-1]
        sizes = np.trace(second + own, axis1=2, axis2=3)  # mixed terms are at most that
        room = (2 * states + 8 * dimension + 32) * EPS * sizes[:, :, None, None] * np.eye(dimension)
        found: FloatArray = second - mixed - mixed.swapaxes(2, 3) + own + room
        return found


def entered(entries: list[Entry], bets: Callable[[], Bets], snapshot: Snapshot, tally: Tally) -> Entry | None:
    """Put a batch to those before it, with them if the snapshot is still theirs; None if there are no bets on it."""
    if entries and entries[-1].bets.snapshot.same(snapshot):
        entry = Entry(entries[-1].bets, tally)
        entries[-1] = entries[-1].joined(entry)
        return entry
    new = bets()
    if not new.possible or not len(new.rivals):
        return None
    entries.append(Entry(new, tally))
    return entries[-1]


def lengths(vectors: FloatArray, power: int) -> FloatArray:
    """1- or 2-norms along the last axis."""
    found: FloatArray = np.abs(vectors).sum(axis=-1) if power == 1 else np.sqrt((vectors**2).sum(axis=-1))
    return found
