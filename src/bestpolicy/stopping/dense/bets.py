"""Bets on the rivals of a policy, batch by batch, and what they have earned at a hypothesis.

For a policy π and any ξ (stages, d) let V_ξ(s) = φ(s,π(s))ᵀξ and η(ξ) = r + gV_ξ(s') - φᵀξ the noise that a sample
would have if ξ were the parameter ξ^π of π's values; V_ξ is that of the stage that follows (0 after the last), g =
γ or 1. At ξ^π its mean is 0 whatever the past. A rival j = (stage, s, a) has c_j = φ(s,a) - φ(s,π(s)) ≠ 0; its
advantage is c_jᵀξ^π.

A *snapshot* is all that bets on a batch depend on, and it is taken before the batch is drawn: an estimated model
(θ̃, μ̃), guessed variances ṽ of pairs and the *planned* shares w of pairs. With G = Σ_k w_k φ_kφ_kᵀ/ṽ_k and y =
J̃ᵀc_j, J̃ the response of π's values in the snapshot (`propagation`), rival j has the stakes

    τ_k = α·(yᵀG⁻¹φ_k/ṽ_k)/(yᵀG⁻¹y),        so that Σ_k w_k τ_k φ_k = α y/(yᵀG⁻¹y).

The size α is fixed by the lag, but for a factor of the batch, at most 1, which the snapshot fixes: allocations change,
and what was a moderate stake at the lag may be a bold one now. Then -Σ τη(ξ), over the batch, has a gradient that is
nearly a multiple of c_j: what is left is the error of the snapshot's J̃. Centres are those of the snapshot, too: m_k(ξ) = r̃_k + g f_kᵀξ, with
r̃_k = φ_kᵀθ̃ clipped to [0, 1] and f_k = K̃ᵀφ_k, K̃ = μ̃ᵀΦ_π, what the snapshot expects of φ(S',π(S')). As φᵀμ̃ᵀ1 =
1, ζ(ξ) = r + gV_ξ(s') - m_k(ξ) does not see the level of V_ξ.

`Entry` keeps of a batch what a look needs: sums by pair and next state, never single samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import second_moments
from bestpolicy.stopping.lemmas.propagation import propagate

_WORST_CONDITION = 1e9  # of the planned G of a batch; beyond it the batch is not bet on
_CHUNK = 2**21  # stakes at a time


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

    def directions(self, some: IntArray) -> FloatArray:
        """yᵀG⁻¹/(yᵀG⁻¹y) of some rivals, in order, times the factor, (n, stages, d)."""
        directions = self.response.directions(self.rivals.stage[some], self.rivals.differences[some])
        pulled = np.einsum("jhd,hde->jhe", directions, self.precision, optimize=True)
        scaled: FloatArray = pulled * (self.factor / self.spread)[some, None, None]
        return scaled

    def stakes(self, some: IntArray) -> FloatArray:
        """τ/α of some rivals, (n, stages, U); 0 where a pair has no share."""
        return np.where(self.shares > 0, (self.directions(some) @ self.sampled.T) / self.variances, 0.0)

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
    """A batch with the bets on it, for one policy.

    Parameters
    ----------
    bets : Bets
    tally : Tally
        What was drawn, over the pairs that may be sampled.
    """

    def __init__(self, bets: Bets, tally: Tally) -> None:
        self.bets, self.tally = bets, tally.at(tally.pairs[bets.used])
        self.weights = bets.snapshot.weights[:, bets.used]
        self._row, self._next = np.divmod(self.tally.cells, self.tally.shape[2])
        self._stage = self._row // max(1, self.tally.shape[1])
        self._ahead = bets.response.following(bets.response.played)

    def _by_pair(self, values: FloatArray) -> FloatArray:
        """Add up values of cells, (stages, U)."""
        size = self.tally.shape[0] * self.tally.shape[1]
        sums = np.bincount(self._row, weights=values, minlength=size).astype(np.float64, copy=False)
        return sums.reshape(self.tally.shape[:2])

    def _summed(self, weights: FloatArray | IntArray) -> FloatArray:
        """Sum of φ(S',π(S')), weighted cell by cell, by pair, (stages, U, d)."""
        stages, pairs, states = self.tally.shape
        place = (self._row, self._stage * states + self._next)
        kernel = csr_array((weights, place), shape=(stages * pairs, stages * states))
        sums: FloatArray = kernel @ self._ahead.reshape(stages * states, -1)
        return sums.reshape(stages, pairs, -1)

    def following(self) -> FloatArray:
        """Sum of φ(S',π(S')) by pair, (stages, U, d)."""
        return self._summed(self.tally.counts)

    def earned(self) -> tuple[FloatArray, FloatArray]:
        """-Σ τη(ξ)/α of every rival as a number (J,) and a functional of ξ (J, stages, d): a + bᵀξ."""
        bets, problem = self.bets, self.bets.problem
        weighted = (bets.sampled[None] / bets.variances[:, :, None]).swapaxes(1, 2)  # φ/ṽ, (stages, d, U)
        rewards = np.einsum("hdk,hk->hd", weighted, self.tally.reward_sums)
        own = weighted @ (self.tally.pulls[:, :, None] * bets.sampled[None])
        ahead = problem.continuation * (weighted @ self.following())
        directions = bets.directions(np.arange(len(bets.rivals)))
        staged = directions.swapaxes(0, 1)
        functional = staged @ own  # (stages, J, d)
        if problem.horizon is None:
            functional = functional - staged @ ahead
        else:
            functional[1:] -= staged[:-1] @ ahead[:-1]
        return -np.einsum("jhd,hd->j", directions, rewards), np.ascontiguousarray(functional.swapaxes(0, 1))

    def squares(self, values: FloatArray, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ ζ(ξ)² by pair, (stages, U), and its gradient in the ξ of the stage that follows, (stages, U, d).

        Given V_ξ (stages, S) and ξ (stages, d) of the stages that follow.
        """
        tally, bets, gamma = self.tally, self.bets, self.bets.problem.continuation
        level = np.einsum("hkd,hd->hk", bets.means, parameters).ravel()
        centre = bets.rewards.ravel()[self._row]
        moved = gamma * (values[self._stage, self._next] - level[self._row])
        noise = tally.rewards + (moved - centre) * tally.counts  # Σζ of every cell
        mixed = self._by_pair(moved * (tally.rewards - centre * tally.counts + noise))
        plain = tally.squared_rewards - bets.rewards * (2 * tally.reward_sums - tally.pulls * bets.rewards)
        gradient = self._summed(noise) - self._by_pair(noise)[:, :, None] * bets.means
        return np.clip(plain + mixed, 0.0, None), 2 * gamma * gradient

    def drifts(self, root: FloatArray, room: FloatArray, power: int) -> FloatArray:
        """Σ (‖(φ(S',π(S')) - f)ᵀA‖ + room)² by pair, (stages, U), for A (stages, d, n), room (stages,), a p-norm."""
        ahead, means = self._ahead @ root, (self.bets.means @ root).reshape(-1, root.shape[2])
        widths = lengths(ahead[self._stage, self._next] - means[self._row], power) + room[self._stage]
        return self._by_pair(self.tally.counts * widths**2)

    def moments(self) -> FloatArray:
        """Σ (φ(S',π(S')) - f)(…)ᵀ by pair, (stages, U, d, d)."""
        stages, pairs, _ = self.tally.shape
        dimension = self._ahead.shape[2]
        rows = self._ahead[self._stage, self._next] - self.bets.means.reshape(-1, dimension)[self._row]
        rows *= np.sqrt(self.tally.counts)[:, None]
        starts = np.searchsorted(self._row, np.arange(stages * pairs + 1))
        found = np.zeros((stages * pairs, dimension, dimension))
        for place, (begin, end) in enumerate(pairwise(starts)):
            if end > begin:
                found[place] = rows[begin:end].T @ rows[begin:end]
        return found.reshape(stages, pairs, dimension, dimension)


def lengths(vectors: FloatArray, power: int) -> FloatArray:
    """1- or 2-norms along the last axis."""
    found: FloatArray = np.abs(vectors).sum(axis=-1) if power == 1 else np.sqrt((vectors**2).sum(axis=-1))
    return found
