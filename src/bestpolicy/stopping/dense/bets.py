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

**Turns.** What a look loses to not knowing ξ is, to first order, what the gradient ℓ of L (`theorem_i`) has across y,
in the coordinates Jᵀℓ: the errors of all snapshots so far, and what the squares in L contribute. So bets on a new
snapshot may be *turned*: y - u·yᵀG⁻¹y/n takes the place of y in the enumerator of τ, u the part of Jᵀℓ that is across
y in the metric G⁻¹, ℓ from all batches before (squares with ψ = 1/2, for a usual size, each batch at the ξ of the
snapshot after it) and n the samples that will rest on the snapshot. Stakes are predictable as before: they hang on
earlier batches only.

Several batches in a row may have the same snapshot: it is known before each of them. `entries` keep of these together
what a look needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, by_stage
from bestpolicy.problem import Problem
from bestpolicy.stopping.evidence import second_moments
from bestpolicy.stopping.lemmas.propagation import propagate

_WORST_CONDITION = 1e9  # of the planned G of a batch; beyond it the batch is not bet on
_CHUNK = 2**21  # stakes at a time
_KEPT = 2_000_000  # numbers up to which directions of all rivals are kept
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
    rewards : array (stages, U)
        r̃.
    centre, centred : arrays (stages, 1, d), (stages, U, d)
        The mean of φ(s,π(s)) over the states, and f less that.
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
        self.sampled = sampled if len(self.used) == len(sampled) else sampled[self.used]
        self.variances = snapshot.variances[:, self.used]
        self.shares = snapshot.shares[:, self.used]
        self.rewards = np.clip(snapshot.theta @ self.sampled.T, 0.0, 1.0)
        self.centre = response.following(response.played).mean(axis=1, keepdims=True)
        means = self.sampled[None] @ (snapshot.mu.swapaxes(1, 2) @ response.following(response.played))
        self.centred = means - self.centre
        directions = response.directions(rivals.stage, rivals.differences)
        pulled = by_stage(directions, precision)
        self.spread = np.maximum(np.einsum("jhd,jhd->j", pulled, directions), 1e-300)
        self.factor = np.ones(len(rivals))
        self._directions = pulled / self.spread[:, None, None] if pulled.size <= _KEPT else None
        dimension = problem.dimension
        self.with_moments = dimension <= EXACT and self.variances.size * dimension**2 <= _MOMENTS

    @property
    def means(self) -> FloatArray:
        """f of every pair, (stages, U, d)."""
        means: FloatArray = self.centred + self.centre
        return means

    def turn(self, left: FloatArray, count: float, most: float) -> None:
        """Turn the bets of every rival so that `count` samples take back what is across y in Jᵀ`left` (J, stages, d).

        They are turned by at most `most` times their own length. To be called before anything is asked of them.
        """
        assert self._directions is not None
        directions = self.response.directions(self.rivals.stage, self.rivals.differences)
        pulled = by_stage(left, self.precision)
        along = np.einsum("jhd,jhd->j", pulled, directions) / self.spread
        across = pulled - (along * self.spread)[:, None, None] * self._directions
        length = np.einsum("jhd,jhd->j", across, left - along[:, None, None] * directions)
        length = np.sqrt(np.clip(length, 0.0, None) * self.spread) / count  # of the turn, in terms of y
        self._directions = self._directions - across * (most / np.maximum(length, most) / count)[:, None, None]

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
        pulled = by_stage(directions, self.precision)
        scaled: FloatArray = pulled * (self.factor / self.spread)[some, None, None]
        return scaled

    def stakes(self, some: IntArray) -> FloatArray:
        """τ/α of some rivals, (n, stages, U); 0 where a pair has no share."""
        directions = self.directions(some)
        flat = directions.reshape(-1, directions.shape[2]) @ self.sampled.T  # one product, not one for each rival
        stakes: FloatArray = flat.reshape(len(directions), *self.variances.shape)
        stakes /= self.variances
        stakes[:, self.shares <= 0] = 0.0
        return stakes

    @property
    def peaks(self) -> FloatArray:
        """The largest |τ|/α of every rival, (J,)."""
        peaks: FloatArray = self._peaks[0] * self.factor
        return peaks

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

    @cached_property
    def _peaks(self) -> tuple[FloatArray, FloatArray]:
        """The largest |τ|/α of every rival, and the largest |τ|R/α that the snapshot expects, without the factor."""
        up, down = self.expected_reach()
        peaks, boldest = np.empty(len(self.rivals)), np.empty(len(self.rivals))
        for some in self.pieces():
            stakes = self.stakes(some)
            reach = np.where(stakes > 0, up, down)
            np.abs(stakes, out=stakes)
            peaks[some] = stakes.max(axis=(1, 2))
            stakes *= reach
            boldest[some] = stakes.max(axis=(1, 2))
        return peaks / self.factor, boldest / self.factor

    def boldest(self) -> FloatArray:
        """The largest |τ|R of every rival, as the snapshot expects it, for size 1, (J,)."""
        return np.maximum(self._peaks[1] * self.factor, 1e-300)
