"""What is known of a tabular problem, what was seen of it, and planning in it, all of the size of what was seen.

**Ends.** A process that is over, and pays e in [0, 1] at every later step, is worth c = e/(1-γ), or e·(H - h) at
stage h of an episode, whatever is done. So an end needs no pair: it is a state of the chain with known value, and all
that `look`'s theorem asks of it is that functions on states have the right value there.

*Why that is sound.* (a) V^π and V̂ solve V = r_π + gP_πV on live states, with true and with fresh frequencies, and both
are c at ends. Hence u = V̂ - V^π is 0 there, and u = x_π + gP̂_πu on live states, which is (1) with Ψ̂ the inverse of
I - gP̂_π restricted to live states; it exists as g < 1, or as stages only go forward. (2) to (4) follow as without
ends, ũ being 0 there too; (5) needs rows of P̂ - P̃ to sum to 0 over *all* states, and they do. (b) V* = V^π at ends,
so D* is 0 there; the performance difference lemma and the telescoped sum of a function f, f(s0) = Σ occ*_k (f(s_k) -
g p_k f), run until an end is reached and need f = 0 there: template and Z are. (c) L = 1/(1-γ), or H - h, at live
states and 0 at ends satisfies 1 + g p_k L ≤ L(s_k), which is all that lifting Z by a multiple c ≥ 0 of L asks. (d)
Ranges go over all states that may follow, ends with their value among them, and values lie in [0, L] or are c.

*Units.* A user's end pays 0. The map r -> (r - low)/(high - low) of rewards takes it to e = -low/(high - low), and is
the same at every step in every state; so values of all states, ends too, change by one affine map, and losses by the
factor high - low alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import coo_array, csr_array, diags_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.errors import InvalidInput
from bestpolicy.stopping.tables.solve import Solver

_SMALL = 400  # states up to which a policy is evaluated by a dense solve
_TINY = 2**14  # entries up to which a kernel is also kept as an array: to take rows of a sparse one takes longer
_SWEEPS = 60
_TIED = 1e-10  # actions closer than this, relative to the longest value, are tied


@dataclass(frozen=True, eq=False)
class Table:
    """A tabular problem without its probabilities.

    Attributes
    ----------
    states : int
    state : int array (K,)
        State of each pair, in increasing order. Actions that are not allowed have no pair.
    discount, horizon
        One of them; the other is None. An episodic problem has the K pairs at every stage.
    start : array (S,), optional
        Claims are about the value of this distribution; without it, about every state (at the first stage).
    end_values : array (S,), or (H, S) if episodic, optional
        Known value of each state without pairs, nan elsewhere. The process is over there; in an episode an end may be
        reached at every stage, and is worth what the stages that are left pay.
    """

    states: int
    state: IntArray
    discount: float | None = None
    horizon: int | None = None
    start: FloatArray | None = None
    end_values: FloatArray | None = None

    def __post_init__(self) -> None:
        state = np.asarray(self.state, dtype=np.int64)
        if (self.discount is None) == (self.horizon is None):
            raise InvalidInput("A table needs either a discount or a horizon.")
        if self.discount is not None and not 0 <= self.discount < 1:
            raise InvalidInput(f"discount must lie in [0, 1). Got {self.discount} instead.")
        if self.horizon is not None and self.horizon < 1:
            raise InvalidInput(f"horizon must be at least 1. Got {self.horizon} instead.")
        if state.size == 0 or (np.diff(state) < 0).any() or state[0] < 0 or state[-1] >= self.states:
            raise InvalidInput(f"state must list the states of the pairs in order, each below {self.states}.")
        without = np.bincount(state, minlength=self.states) == 0
        shape = (self.states,) if self.horizon is None else (self.horizon, self.states)
        known = np.zeros(shape, dtype=np.bool_)
        if self.end_values is not None:
            if self.end_values.shape != shape:
                raise InvalidInput(f"end_values must have shape {shape}. Got {self.end_values.shape} instead.")
            known = np.isfinite(self.end_values)
            shares = (np.nan_to_num(self.end_values).reshape(self.stages, -1).T / self.most).T
            if shares.min() < 0 or shares.max() > 1 + 1e-12:
                raise InvalidInput("end_values must be those of rewards in [0, 1] at every step that is left.")
        if (known != without).any():
            raise InvalidInput(
                f"State {np.argwhere(known != without)[0][-1]}: a state has pairs, or a known end value, not both."
            )
        if self.start is not None and (
            self.start.shape != (self.states,) or self.start.min() < 0 or abs(self.start.sum() - 1) > 1e-9
        ):
            raise InvalidInput("start must be a distribution over the states.")

    @property
    def stages(self) -> int:
        """Number of stages: 1 if discounted."""
        return 1 if self.horizon is None else self.horizon

    @property
    def most(self) -> FloatArray:
        """What a process that earns 1 at every step is worth at each stage, (stages,)."""
        if self.discount is not None:
            return np.array([1 / (1 - self.discount)])
        return np.arange(self.stages, 0, -1, dtype=np.float64)

    @property
    def pairs(self) -> int:
        """Number of (stage, pair)s."""
        return self.stages * len(self.state)

    @cached_property
    def chain(self) -> Chain:
        """The same problem with one state for every (stage, state)."""
        return Chain.of(self)


@dataclass(frozen=True, eq=False)
class TableSamples:
    """Sums over samples: one entry for every (pair, next state) that was seen. They add up.

    Attributes
    ----------
    pair, next_state : int arrays (entries,)
        In increasing order of pair, then state. Episodic: pair number stage·K + k.
    counts : int array (entries,)
    rewards : array (entries,)
        Sum of the rewards of these samples.
    squares : array (pairs,)
        Sum of squared rewards at each pair.
    """

    pair: IntArray
    next_state: IntArray
    counts: IntArray
    rewards: FloatArray
    squares: FloatArray

    @classmethod
    def of(
        cls, pair: IntArray, next_state: IntArray, counts: IntArray, rewards: FloatArray, squares: FloatArray
    ) -> TableSamples:
        """Put entries in order, and those of the same pair and state together."""
        keep = np.flatnonzero(counts)
        pair, next_state = np.asarray(pair, np.int64)[keep], np.asarray(next_state, np.int64)[keep]
        order = np.lexsort((next_state, pair))
        pair, next_state = pair[order], next_state[order]
        first = np.ones(len(pair), dtype=np.bool_)
        first[1:] = (np.diff(pair) != 0) | (np.diff(next_state) != 0)
        starts = np.flatnonzero(first)
        merged = [
            np.add.reduceat(np.asarray(values)[keep][order], starts) if len(starts) else np.asarray(values)[:0]
            for values in (counts, rewards)
        ]
        return cls(pair[starts], next_state[starts], merged[0].astype(np.int64), merged[1].astype(np.float64), squares)

    @classmethod
    def of_matrices(cls, counts: Matrix, rewards: Matrix, squares: FloatArray) -> TableSamples:
        """Read counts and sums of rewards by pair and next state, (pairs, S) each, sparse or not."""
        seen, paid = coo_array(counts), coo_array(rewards)
        samples = cls.of(seen.row, seen.col, seen.data, np.zeros(len(seen.data)), squares)
        width = seen.shape[1]
        keys = samples.pair * width + samples.next_state
        kept = np.flatnonzero(paid.data)
        paid_keys = paid.row[kept].astype(np.int64) * width + paid.col[kept]
        place = np.searchsorted(keys, paid_keys)
        if len(kept) and (place.max() == len(keys) or (keys[place] != paid_keys).any()):
            raise InvalidInput("Rewards must belong to samples: some (pair, next state) has a reward but no count.")
        np.add.at(samples.rewards, place, paid.data[kept])
        return samples

    @classmethod
    def none(cls, pairs: int) -> TableSamples:
        """No samples of so many pairs."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, np.zeros(0), np.zeros(pairs))

    def __add__(self, other: TableSamples) -> TableSamples:
        joined = [
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("pair", "next_state", "counts", "rewards")
        ]
        return TableSamples.of(joined[0], joined[1], joined[2], joined[3], self.squares + other.squares)

    @cached_property
    def pulls(self) -> IntArray:
        """Number of samples of each pair."""
        return np.bincount(self.pair, self.counts, len(self.squares)).astype(np.int64)

    @cached_property
    def reward_sums(self) -> FloatArray:
        """Sum of the rewards of each pair."""
        return np.bincount(self.pair, self.rewards, len(self.squares)).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Chain:
    """A table as one process: the states of stage h + 1 follow those of stage h, and an end follows the last stage.

    Its ends are all states without pairs: that one, and at each stage those of the table, each with its own value.

    Attributes
    ----------
    size : int
        N, number of states with ends.
    step : float
        Discount of one step: γ, or 1 in episodes.
    state : int array (M,)
        State of each pair, in increasing order.
    live : int array (n,)
        States that have pairs.
    first : int array (n,)
        First pair of each of them.
    longest : array (N,)
        What a process that earns 1 at each step is worth: 1/(1-γ), or the number of stages left; 0 at ends.
    known : array (N,)
        Values of ends, 0 elsewhere.
    blocks : int array (blocks,)
        First state of each set of states that may follow one another's pairs; the sets are contiguous.
    block : int array (M,)
        Set of the states that may follow each pair.
    claimed : int array
        States that claims are about: all live ones, or those of the first stage.
    start : array (N,) or None
    """

    size: int
    step: float
    state: IntArray
    live: IntArray
    first: IntArray
    longest: FloatArray
    known: FloatArray
    blocks: IntArray
    block: IntArray
    claimed: IntArray
    start: FloatArray | None

    @classmethod
    def of(cls, table: Table) -> Chain:
        state = np.asarray(table.state, dtype=np.int64)
        states, pairs = table.states, len(state)
        if table.horizon is None:
            assert table.discount is not None
            live, first = np.unique(state, return_index=True)
            longest = np.zeros(states)
            longest[live] = table.most[0]
            known = np.zeros(states) if table.end_values is None else np.nan_to_num(table.end_values)
            one = np.zeros(1, dtype=np.int64)
            block = np.zeros(pairs, dtype=np.int64)
            return cls(states, table.discount, state, live, first, longest, known, one, block, live, table.start)
        stage = np.repeat(np.arange(table.horizon), pairs)
        all_states = np.tile(state, table.horizon) + states * stage
        live, first = np.unique(all_states, return_index=True)
        size = states * table.horizon + 1
        longest, known = np.zeros(size), np.zeros(size)
        longest[live] = np.repeat(table.most, states)[live]
        if table.end_values is not None:
            known[:-1] = np.nan_to_num(table.end_values).reshape(-1)
        blocks = np.arange(table.horizon + 1) * states
        start = None if table.start is None else np.append(table.start, np.zeros(size - states))
        claimed = live[live < states]
        return cls(size, 1.0, all_states, live, first, longest, known, blocks, stage + 1, claimed, start)

    def successors(self, table: Table, samples: TableSamples) -> TableSamples:
        """Return samples with the next states as states of the chain."""
        if table.horizon is None:
            return samples
        stage = samples.pair // len(table.state) + 1
        states = np.where(stage < table.horizon, samples.next_state + stage * table.states, self.size - 1)
        return TableSamples.of(samples.pair, states, samples.counts, samples.rewards, samples.squares)

    def highest(self, values: FloatArray) -> FloatArray:
        """Largest value (M,) of the states that may follow each pair."""
        return np.maximum.reduceat(values, self.blocks)[self.block]

    def best(self, q: FloatArray) -> FloatArray:
        """Largest number (N,) of the pairs of each state; 0 at ends."""
        values = np.zeros(self.size)
        values[self.live] = np.maximum.reduceat(q, self.first)
        return values

    def greedy(self, q: FloatArray, scale: float) -> IntArray:
        """Return for each live state the first of its best pairs; `scale` is what ties are measured by."""
        near = q >= self.best(q)[self.state] - _TIED * scale
        index = np.where(near, np.arange(len(q)), len(q))
        return np.minimum.reduceat(index, self.first)

    def worth(self, values: FloatArray) -> float:
        """What a function on states says about the claim: its largest value, or its mean at the start."""
        return float(values[self.claimed].max() if self.start is None else self.start @ values)

    @one_thread()
    def evaluate(self, kernel: Matrix, policy: IntArray, gains: FloatArray, ends: FloatArray) -> FloatArray:
        """Value (N,) of a policy (one pair a live state) with these gains (M,) and values of ends."""
        if len(policy) <= _SMALL:
            after = kernel @ self._only_ends(ends)
            return self._solve(self._among_live(kernel[policy]), gains[policy] + self.step * after[policy], ends)
        values = np.array(ends)
        given = gains[policy] + self.step * (kernel[policy] @ self._only_ends(ends))
        values[self.live] = Solver(self, kernel, policy).solve(given)[0]
        return values

    @one_thread()
    def _solve(self, system: FloatArray, given: FloatArray, ends: FloatArray) -> FloatArray:
        """Value (N,) if this array (n, n) of probabilities, which is used up, and gains (n,) belong to live states."""
        system *= -self.step
        np.einsum("ii->i", system)[:] += 1.0
        values = np.array(ends)
        _, _, values[self.live], failed = lapack.dgesv(system, given, overwrite_a=True)
        if failed:
            raise np.linalg.LinAlgError("Singular matrix")
        return values

    def _among_live(self, rows: Matrix) -> FloatArray:
        """Probabilities (n, n) of live states in rows (n, N), in the order that LAPACK computes in, where it stands."""
        found: FloatArray = rows[:, self.live].toarray("F")
        return found

    def _only_ends(self, values: FloatArray) -> FloatArray:
        kept = np.array(values)
        kept[self.live] = 0.0
        return kept

    def optimal(
        self,
        kernel: Matrix,
        gains: FloatArray,
        ends: FloatArray,
        start: FloatArray | None = None,
        rounds: int = 100,
        floor: float = -inf,
    ) -> FloatArray:
        """Largest value (N,) with these gains (M,): policy iteration, with sweeps in place of solves if large.

        Wherever it is better one may stop, which is worth `floor`. The answer is accurate enough to plan with; who
        needs a bound checks what it needs.
        """
        values = np.array(ends) if start is None else np.array(start)
        if start is not None:
            ended = np.ones(self.size, dtype=np.bool_)
            ended[self.live] = False
            values[ended] = ends[ended]
        scale = float(np.abs(gains).max()) * float(self.longest.max())
        before: IntArray | None = None
        small, after, whole = len(self.live) <= _SMALL, None, None
        for _ in range(rounds):
            q = gains + self.step * (kernel @ values)
            policy, better = self.greedy(q, scale), np.maximum(self.best(q)[self.live], floor)
            moved = float(np.abs(better - values[self.live]).max())
            values[self.live] = better
            stopped = better <= floor
            choice = np.where(stopped, -1, policy)
            if moved <= 1e-9 * scale or (before is not None and (choice == before).all() and small):
                break
            before = choice
            fixed = np.where(stopped, max(floor, -1e300), gains[policy])
            if small:
                if after is None:
                    after = kernel @ self._only_ends(ends)
                    whole = kernel.toarray()[:, self.live] if kernel.shape[0] * self.size <= _TINY else None
                system = self._among_live(kernel[policy]) if whole is None else np.asfortranarray(whole[policy])
                system[stopped] = 0.0
                values = self._solve(system, fixed + self.step * np.where(stopped, 0.0, after[policy]), ends)
                del system  # before the next one is made
            else:
                rows = kernel[policy]
                if stopped.any():
                    rows = csr_array(diags_array(1.0 - stopped) @ rows)
                for _ in range(_SWEEPS):
                    values[self.live] = fixed + self.step * (rows @ values)
        return values


def kernel_of(pair: IntArray, state: IntArray, weights: FloatArray, shape: tuple[int, int]) -> Matrix:
    """Return a sparse matrix (M, N) from entries in order."""
    starts = np.searchsorted(pair, np.arange(shape[0] + 1))
    return csr_array((weights, state, starts), shape=shape)


@one_thread()
def resolvent(chain: Chain, kernel: Matrix, policy: IntArray) -> FloatArray:
    """(I - gP_π)⁻¹ with a row for every state, zero at ends, and a column for every live state: (N, n).

    It is inverted where it stands: whoever has many states has no room for copies.
    """
    whole, size = np.zeros((chain.size, len(policy))), len(policy)
    rows = csr_array(kernel[policy][:, chain.live])
    system = whole[:size]
    system[np.repeat(np.arange(size), np.diff(rows.indptr)), rows.indices] = -chain.step * rows.data
    system[np.arange(size), np.arange(size)] += 1.0
    # The transposed array is in the order that LAPACK computes in, and its inverse is the transposed inverse.
    factors, swaps, failed = lapack.dgetrf(system.T, overwrite_a=True)
    inverse, also = lapack.dgetri(factors, swaps, lwork=64 * size, overwrite_lu=True)
    if failed or also:
        raise np.linalg.LinAlgError("Singular matrix")
    if not np.shares_memory(inverse, whole):
        system[:] = inverse.T
    if (chain.live != np.arange(size)).any():  # the last first, since rows only move down
        for place in range(size - 1, -1, -1):
            whole[chain.live[place]] = whole[place]
        ends = np.ones(chain.size, dtype=np.bool_)
        ends[chain.live] = False
        whole[ends] = 0.0
    return whole
