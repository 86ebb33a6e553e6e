"""What a look needs of batches: sums by pair and next state, never single samples. Letters are those of `bets`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, by_stage
from bestpolicy._numerics.reproducible import EPS
from bestpolicy.samples import Tally
from bestpolicy.stopping.dense.bets import Bets, Snapshot
from bestpolicy.stopping.evidence import second_moments

_FULL = 0.1  # of next states that occurred, for a matrix with zeros to be faster


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
        self.centre, self.means = bets.centre, bets.centred  # f'
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
        return both

    @cached_property
    def places(self) -> tuple[IntArray, IntArray]:
        """stage·U + pair and next state of the cells."""
        return self._places()

    def _places(self) -> tuple[IntArray, IntArray]:
        """The same, not to be kept."""
        row, following = np.divmod(self.tally.cells, self.tally.shape[2])
        return row, following

    @cached_property
    def _ahead(self) -> FloatArray:
        """x of every state, (stages, S, d)."""
        ahead: FloatArray = self.bets.response.following(self.bets.response.played) - self.centre
        return ahead

    def _matrix(self, weights: FloatArray | IntArray) -> Any:
        """Weights of cells as a matrix of pairs and next states; with zeros, if there are few of them."""
        stages, pairs, states = self.tally.shape
        row, following = self._places()
        place = (row, row // max(1, pairs) * states + following)
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
        row, following = self._places()
        rows = self._ahead[row // max(1, pairs), following]
        rows *= np.sqrt(self.tally.counts)[:, None]
        starts = np.searchsorted(row, np.arange(stages * pairs + 1))
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

    def forget(self) -> None:
        """What has been earned is added up elsewhere."""
        for name in ("_earned", "absolute"):
            self.__dict__.pop(name, None)

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
        squares = np.einsum("jhd,jhd->jh", by_stage(directions, form), directions)
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
            twice = np.einsum("hkd,hd->hk", (self.second @ parameters[:, None, :, None])[..., 0], parameters)
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
            twice = (self.second @ parameters[:, None, :, None])[..., 0]
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
