"""What a look needs of rows of Ψ̃ and Ψ̂: by the rows themselves if there are few states, else by sums that are kept.

A look asks, for directions y that are differences of rows of Ψ̃ = (I - gP̃_π)⁻¹ (between two states, between a state and
the hub, and (g p̃_k - e_{s_k})Ψ̃ at each pair), for Σ y_j²c_j and max |y_j|b_j, c and b being squares and ranges for each
unit; and for |ŷ|m, ŷ the same differences of rows of Ψ̂, m ≥ 0. With few states both matrices are held (`DenseRows`).

*Without the matrices* (`SparseRows`), in time and memory of what was seen, once three sums of each direction are known
for the numbers c⁰, b⁰ that the lag expects, and any m⁰: C⁰ = Σ y_j²c⁰_j, B⁰ ≥ max |y_j|b⁰_j, D⁰ = |y|m⁰, and the tops
t_j = Ψ̃_jj. They take one pass over the columns of Ψ̃, some at a time (`Sums`). All of what follows is algebra; it
is true for any c⁰, b⁰, m⁰ ≥ 0, and no event is needed for it.

1. Ψ̃_sj ≤ t_j: it is the discounted chance to come from s to j, times the visits from there on. So for the excess e =
   (c - κc⁰)⁺, Σ_j Ψ̃_sj²e_j ≤ E(s) := Ψ̃(te)(s), and, since (a - b)² ≤ a² + b² for a, b ≥ 0,

       Σ y²c ≤ κC⁰ + E(a) + E(b) between states a and b, κC⁰ + E(s) + νE from the hub, κC⁰ + g p̃_kE + E(s_k) at pair k,

   for every κ ≥ 0: some are tried, and the least bound is taken, for each direction.
2. max |y_j|b_j ≤ max_j(b_j/b⁰_j)·B⁰. Between two states, where most directions are, B⁰ is the larger of T(a) and T(b),
   T(s) = max_j Ψ̃_sj b⁰_j: a difference of two numbers ≥ 0 is at most the larger of them. Elsewhere it is the maximum.
3. |y|m ≤ κD⁰ + F(a) + F(b), F = Ψ̃f, f = (m - κm⁰)⁺, and alike for the others.
4. Ψ̂ = Ψ̃(I + g(P̂_π - P̃_π)Ψ̂), so |ŷ|m ≤ |y|(m + g h) for differences of the same two states, where h_j = Σ_s' |p̂_j -
   p̃_j|(s')·Δ(s', ref_j) and Δ(a, b) ≥ |Ψ̂_a - Ψ̂_b|m: rows of P̂ - P̃ sum to 0. To begin with, Δ(a, b) = M(a) + M(b), where
   M = Ψ̂m; then by this very bound. At a pair, (g p̂_k - e_s)Ψ̂ = (g p̃_k - e_s)Ψ̂ + g(p̂_k - p̃_k)Ψ̂, and the second part
   is at most h_k, by the same reason. Also (g p̂_k - e_s)Ψ̂ = g(p̂_k - p̂_π(s))Ψ̂ - e_s, hence another bound, m_s + g|p̂_k -
   p̂_π(s)|M.

*Rounding.* Systems are solved with known errors (`solve`), which are added: a direction is off by at most twice the
error of each entry's column, so √(Σ y²c⁰) by twice √(Σ error²c⁰), and so on. The pass is in single precision, whose
unit is u = 2⁻²⁴. A column of numbers of at most t is off by ut once it is rounded; g p̃_k times it, m terms, by
(m + 2)ut more; a difference and its size or square by a factor 1 + 3u; a sum of at most w products of non-negative
numbers, one of them rounded before, by a factor 1 + (w + 2)u, in whatever order it is taken. Weights are divided by
the largest one first, so what is too small for single precision is lost in what is added anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix
from bestpolicy.stopping.tables.lag import Lag
from bestpolicy.stopping.tables.model import Chain, resolvent
from bestpolicy.stopping.tables.solve import EXACT, ROUGH, Solver

DENSE_STATES = 1000  # up to which matrices are held
_CHUNK, _LEAST_CHUNK = 2**17, 2**12  # numbers of a block of directions: they should stay near the processor
_COLUMNS = 64  # of Ψ̃ at a time
_SINGLE = np.float32
_INFLATED = 1e-2  # how much errors of columns may add to sums
_TURNS = 1
_QUANTILES = (0.6, 0.9, 1.0)  # of ratios, as multiples to try


def is_small(chain: Chain) -> bool:
    """Whether the resolvents of a chain are held as matrices."""
    return len(chain.live) <= DENSE_STATES


def directions(chain: Chain, kernel: Matrix, psi: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    """Yield (g p_k - e_{s_k})Ψ, (pairs, n), for all pairs, some at a time."""
    for part in _parts(len(chain.state), _few(psi.shape[1])):
        yield part, chain.step * (kernel[part] @ psi) - psi[chain.state[part]]


def at_hub(chain: Chain, hub: FloatArray, values: FloatArray) -> FloatArray:
    """Mean at the hub of each state's block, of functions on states (N, …)."""
    weights = hub if values.ndim == 1 else hub[:, None]
    block_of = np.searchsorted(chain.blocks, np.arange(chain.size), side="right") - 1
    means: FloatArray = np.add.reduceat(weights * values, chain.blocks)[block_of]
    return means


class DenseRows:
    """The two matrices themselves; what is local takes more work than what goes by way of the hub.

    Parameters
    ----------
    chain : Chain
    lag : Lag
    past, seen : sparse matrices (M, N)
        P̃, P̂.
    left, right : int arrays (directions,)
        Pairs of states.
    """

    local_is_cheap = False

    def __init__(self, chain: Chain, lag: Lag, past: Matrix, seen: Matrix, left: IntArray, right: IntArray) -> None:
        self.chain, self.past, self.seen, self.left, self.right = chain, past, seen, left, right
        self.psi_past = lag.resolvent(chain)
        self.psi = resolvent(chain, seen, lag.policy)
        self.hub = lag.hub
        self.defect_past = self.defect = 0.0
        rows_past, rows = past[lag.policy], csr_array(seen[lag.policy][:, chain.live].T)
        for part in _parts(len(lag.policy), _few(len(lag.policy))):
            place = np.arange(len(lag.policy))[part]
            rest = chain.step * (rows_past[part] @ self.psi_past) - self.psi_past[chain.live[part]]
            rest[np.arange(len(place)), place] += 1.0
            self.defect_past = max(self.defect_past, float(np.abs(rest).sum(1).max()))
            own = self.psi[chain.live[part]]
            rest = chain.step * (rows @ own.T).T - own
            rest[np.arange(len(place)), place] += 1.0
            self.defect = max(self.defect, float(np.abs(rest).sum(1).max()))

    def times(self, vectors: FloatArray) -> FloatArray:
        """Ψ̂ times vectors (n, …)."""
        found: FloatArray = self.psi @ vectors
        return found

    def _chunks(self) -> Iterator[slice]:
        return _parts(len(self.left), _few(self.psi.shape[1]))

    def _from_hub(self, psi: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        chain = self.chain
        blocks = np.append(chain.blocks, chain.size)
        for begin, end in itertools.pairwise(blocks):
            hub = self.hub[begin:end] @ psi[begin:end]
            for part in _parts(end - begin, _few(psi.shape[1])):
                whole = slice(begin + part.start, min(begin + part.stop, end))
                yield whole, np.abs(psi[whole] - hub)

    def first_hub(self, squares: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ y²·squares and max |y|·reach, (N,), between states and the hub."""
        total, largest = np.zeros(self.chain.size), np.zeros(self.chain.size)
        for part, rows in self._from_hub(self.psi_past):
            largest[part] = (rows * reach).max(1)
            total[part] = np.square(rows, out=rows) @ squares
        return total, largest

    def first_local(self, squares: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same between pairs of states."""
        total, largest = np.zeros(len(self.left)), np.zeros(len(self.left))
        for part in self._chunks():
            rows = self.psi_past[self.left[part]]
            rows -= self.psi_past[self.right[part]]
            np.abs(rows, out=rows)
            largest[part] = (rows * reach).max(1)
            total[part] = np.square(rows, out=rows) @ squares
        return total, largest

    def first_rival(self, squares: FloatArray, up: FloatArray, down: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same at pairs; ranges above matter where y > 0, those below where y < 0."""
        total, reach = np.zeros(len(self.chain.state)), np.zeros(len(self.chain.state))
        for part, rows in directions(self.chain, self.past, self.psi_past):
            total[part] = rows**2 @ squares
            reach[part] = np.maximum(rows * up, -rows * down).max(1)
        return total, reach

    def second_hub(self, both: FloatArray) -> FloatArray:
        """|ŷ| times vectors (n, 2) ≥ 0, between states and the hub."""
        found = np.zeros((self.chain.size, 2))
        for part, rows in self._from_hub(self.psi):
            found[part] = rows @ both
        return found

    def second_local(self, both: FloatArray) -> FloatArray:
        """The same between pairs of states."""
        found = np.zeros((len(self.left), 2))
        for part in self._chunks():
            rows = self.psi[self.left[part]]
            rows -= self.psi[self.right[part]]
            found[part] = np.abs(rows, out=rows) @ both
        return found

    def second_rival(self, both: FloatArray) -> FloatArray:
        """The same at pairs."""
        found = np.zeros((len(self.chain.state), 2))
        for part, rows in directions(self.chain, self.seen, self.psi):
            found[part] = np.abs(rows) @ both
        return found


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of directions: arrays for states (N,), for pairs of states (directions,), for pairs (M,).

    Attributes
    ----------
    keys : int array (directions,)
        low·N + high for the two states of each direction, in order.
    expected, reach, sums : arrays (n,)
        c⁰, b⁰, m⁰.
    tops : array (n,)
        t.
    squares, largest, absolute : lists of three arrays
        C⁰, B⁰, D⁰.
    """

    keys: IntArray
    expected: FloatArray
    reach: FloatArray
    sums: FloatArray
    tops: FloatArray
    squares: list[FloatArray]
    largest: list[FloatArray]
    absolute: list[FloatArray]

    @classmethod
    def of(cls, chain: Chain, lag: Lag, past: Matrix, solver: Solver) -> Sums:
        """Pass over all columns of Ψ̃."""
        keys, expected, reach, sums = cls.weights(chain, lag)
        left, right = keys // chain.size, keys % chain.size
        sizes, count = (chain.size, len(keys), len(chain.state)), len(lag.policy)
        squares, absolute = ([np.zeros(size) for size in sizes] for _ in range(2))
        given_weights = sums, reach, expected
        scales = [float(each.max(initial=0.0)) or 1.0 for each in given_weights]
        most = {kind: np.zeros((sizes[kind], min(_COLUMNS, count)), _SINGLE) for kind in (0, 2)}  # in each column
        tops, error, top = np.zeros(count), np.zeros(count), np.zeros(chain.size)
        kernel = csr_array(((chain.step * past.data).astype(_SINGLE), past.indices, past.indptr), shape=past.shape)
        block_of = np.searchsorted(chain.blocks, np.arange(chain.size), side="right") - 1
        accuracy = max(_INFLATED / (solver.longest * count**0.5), ROUGH)
        for begin in range(0, count, _COLUMNS):
            index = np.arange(begin, min(begin + _COLUMNS, count))
            weights = [(each[index] / scale).astype(_SINGLE) for each, scale in zip(given_weights, scales, strict=True)]
            solved, error[index] = solver.columns(index, accuracy)
            tops[index] = solved[index, np.arange(len(index))] + error[index]
            top[chain.live] = np.maximum(top[chain.live], (solved * reach[index]).max(1))
            columns = np.zeros((chain.size, len(index)), _SINGLE)
            columns[chain.live] = solved
            hub = np.add.reduceat(lag.hub[:, None] * columns, chain.blocks).astype(_SINGLE)
            moved = kernel @ columns
            pieces = (
                (columns, None, hub, block_of),
                (columns, left, columns, right),
                (moved, None, columns, chain.state),
            )
            for kind, (one, at, other, there) in enumerate(pieces):
                for rows in _parts(sizes[kind], _CHUNK // len(index)):
                    y = other.take(there[rows], 0, mode="clip")
                    y -= one[rows] if at is None else one.take(at[rows], 0, mode="clip")
                    absolute[kind][rows] += np.abs(y, out=y) @ weights[0]
                    if at is None:
                        widest = most[kind][rows, : len(index)]
                        np.maximum(widest, y * weights[1], out=widest)
                    squares[kind][rows] += np.square(y, out=y) @ weights[2]
        unit, terms = 2.0**-24, int(np.diff(past.indptr).max()) + 8
        off = 2 * error + 2 * unit * terms * float(tops.max())
        whole = 1 + (_COLUMNS + 8) * unit
        largest = [most[0].max(1), np.maximum(top[left], top[right]) / scales[1], most[2].max(1)]
        return cls(
            keys, expected, reach, sums, tops,
            [(np.sqrt(scales[2] * each) * whole + np.sqrt(off**2 @ expected)) ** 2 for each in squares],
            [scales[1] * (each * whole + off.max()) for each in largest],
            [scales[0] * each * whole + off @ sums for each in absolute],
        )  # fmt: skip

    @staticmethod
    def weights(chain: Chain, lag: Lag) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """Directions between states of a support and references, and c⁰, b⁰, m⁰."""
        reference = lag.reference[lag.pair]
        low, high = np.minimum(lag.successor, reference), np.maximum(lag.successor, reference)
        keys = np.unique((low * chain.size + high)[low != high])
        expected = (lag.squares / lag.unit)[lag.policy]
        reach = (np.maximum(lag.up, lag.down) / lag.unit)[lag.policy]
        own = np.zeros(chain.size)
        own[chain.live] = expected
        apart = np.where(lag.successor == reference, 0.0, own[lag.successor] + own[reference])
        moved = np.sqrt(lag.probability * (1 - lag.probability) / lag.unit[lag.pair] * apart)
        return keys, expected, reach, np.bincount(lag.pair, moved, len(lag.unit)).astype(np.float64)[lag.policy]


def _few(states: int) -> int:
    """How many directions to hold at once: a quarter of what a matrix takes, unless that is very little or much."""
    return max(1, min(max(states**2 // 4, _LEAST_CHUNK), _CHUNK) // states)


def _parts(size: int, step: int) -> Iterator[slice]:
    return (slice(begin, begin + step) for begin in range(0, size, step))


class SparseRows:
    """The same answers as `DenseRows`, as bounds, without the matrices.

    Parameters
    ----------
    chain, lag, past, seen, left, right
        As there.
    pair, direction, moved : arrays (entries,)
        What followed each pair; its direction among (left, right), which is their number if there is none; |p̂ - p̃|.
    sums : Sums, optional
        Estimates for a rehearsal.
    """

    local_is_cheap = True
    defect = defect_past = 0.0

    def __init__(
        self, chain: Chain, lag: Lag, past: Matrix, seen: Matrix, left: IntArray, right: IntArray,
        pair: IntArray, direction: IntArray, moved: FloatArray, sums: Sums | None = None,
    ) -> None:  # fmt: skip
        self.chain, self.lag, self.past, self.seen, self.left, self.right = chain, lag, past, seen, left, right
        self.pair, self.direction, self.moved = pair, direction, moved
        self.solver_past = lag.remember("_solver", lambda: Solver(chain, past, lag.policy))
        self.solver = Solver(chain, seen, lag.policy)
        self.known = sums or lag.remember("_sums", lambda: Sums.of(chain, lag, past, self.solver_past))
        keys = left * chain.size + right
        place = np.minimum(np.searchsorted(self.known.keys, keys), max(len(self.known.keys) - 1, 0))
        self.found = self.known.keys[place] == keys if len(self.known.keys) else np.zeros(len(keys), np.bool_)
        self.place = place[self.found]
        played = np.empty(chain.size, dtype=np.int64)
        played[chain.live] = lag.policy
        self.against = abs(seen - seen[played[chain.state]])  # |p̂_k - p̂_π(s_k)|
        self.state = np.searchsorted(chain.live, chain.state)
        self._squares, self._both = np.zeros(0), np.zeros((0, 2))

    def times(self, vectors: FloatArray) -> FloatArray:
        """Ψ̂ times vectors (n, …), and as little more as can be."""
        return self._times(self.solver, vectors, EXACT)

    def _times(self, solver: Solver, vectors: FloatArray, accuracy: float = ROUGH) -> FloatArray:
        found, error = solver.solve(vectors, accuracy)
        whole = np.zeros((self.chain.size, *vectors.shape[1:]))
        whole[self.chain.live] = found + error
        return whole

    def _over(self, kind: int, values: FloatArray) -> FloatArray:
        """Add up a function on states (N, …) ≥ 0 over both sides of a direction."""
        chain = self.chain
        if kind == 0:
            found: FloatArray = values + at_hub(chain, self.lag.hub, values)
        elif kind == 1:
            found = values[self.left[self.found]] + values[self.right[self.found]]
        else:
            found = chain.step * (self.past @ values) + values[chain.state]
        return found

    def _excess(
        self, vectors: FloatArray, expected: FloatArray, tops: FloatArray
    ) -> list[tuple[FloatArray, FloatArray]]:
        """For each of the vectors (n, v) multiples κ, and what the excess over κ·expected adds at states, (N, κ)."""
        ratios = vectors[expected > 0] / expected[expected > 0, None]
        some = np.quantile(ratios, _QUANTILES, axis=0) if len(ratios) else np.zeros((0, vectors.shape[1]))
        multiples = np.vstack([np.zeros((1, vectors.shape[1])), some])
        excess = np.maximum(vectors[:, None] - multiples * expected[:, None, None], 0.0) * tops[:, None, None]
        added = self._times(self.solver_past, excess.reshape(len(vectors), -1)).reshape(-1, *multiples.shape)
        return [(multiples[:, each], added[:, :, each]) for each in range(vectors.shape[1])]

    def _least(self, kind: int, known: FloatArray, excess: tuple[FloatArray, FloatArray]) -> FloatArray:
        """Least of the bounds κ·known + what is added."""
        multiples, added = excess
        bound: FloatArray = (multiples * known[:, None] + self._over(kind, added)).min(1)
        return bound

    def _first(self, kind: int, squares: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        known = self.known
        if squares is not self._squares:
            self._squares = squares
            (self._added,) = self._excess(squares[:, None], known.expected, known.tops)
        sums, largest = known.squares[kind], known.largest[kind]
        if kind == 1:
            sums, largest = sums[self.place], largest[self.place]
        ratio = float((reach[known.reach > 0] / known.reach[known.reach > 0]).max(initial=0.0))
        if (reach[known.reach == 0] > 0).any():
            ratio = np.inf
        return self._least(kind, sums, self._added), ratio * np.maximum(largest, 1e-300)

    def first_hub(self, squares: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on Σ y²·squares and max |y|·reach, (N,), between states and the hub."""
        return self._first(0, squares, reach)

    def first_local(self, squares: FloatArray, reach: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same between pairs of states; nothing is known of those that the past has not seen."""
        total, largest = np.zeros(len(self.left)), np.full(len(self.left), 1e300)
        total[self.found], largest[self.found] = self._first(1, squares, reach)
        return total, largest

    def first_rival(self, squares: FloatArray, up: FloatArray, down: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same at pairs."""
        return self._first(2, squares, np.maximum(up, down))

    def second_hub(self, both: FloatArray) -> FloatArray:
        """Bounds on |ŷ| times vectors (n, 2) ≥ 0, between states and the hub."""
        self._prepare(both)
        return np.minimum(self._over(0, self._sums), self._by_past(0))

    def second_local(self, both: FloatArray) -> FloatArray:
        """The same between pairs of states."""
        self._prepare(both)
        return self._apart

    def second_rival(self, both: FloatArray) -> FloatArray:
        """The same at pairs."""
        self._prepare(both)
        crude: FloatArray = both[self.state] + self.chain.step * (self.against @ self._sums)
        return np.minimum(crude, self._by_past(2) + self.chain.step * self._moved)

    def _prepare(self, both: FloatArray) -> None:
        """M = Ψ̂m, Δ and h of statement 4; they serve all three kinds of directions."""
        if both is self._both:
            return
        self._both, self._sums = both, self._times(self.solver, both)
        self._apart = self._sums[self.left] + self._sums[self.right]
        for _ in range(_TURNS):
            self._move()
            self._apart[self.found] = np.minimum(self._apart[self.found], self._by_past(1))
        self._move()

    def _move(self) -> None:
        """h (M, 2), and m + g h along the policy."""
        terms = self.moved[:, None] * np.vstack([self._apart, np.zeros((1, 2))])[self.direction]
        columns = [np.bincount(self.pair, terms[:, each], len(self.lag.unit)) for each in range(2)]
        self._moved = np.stack(columns, axis=1)
        whole = self._both + self.chain.step * self._moved[self.lag.policy]
        self._added_sums = self._excess(whole, self.known.sums, np.ones(len(whole)))

    def _by_past(self, kind: int) -> FloatArray:
        known = self.known.absolute[kind]
        known = known[self.place] if kind == 1 else known
        return np.stack([self._least(kind, known, each) for each in self._added_sums], axis=1)
