"""What a look needs of B = (I - gP̃_π)⁻¹ and B̂ = (I - gP̂_π)⁻¹: differences y of rows of B, and ŷ of rows of B̂.

Differences are between two states, between a state and the hub, and (g p̃_k - 1_s)B at pair k. Wanted are G = Σ y_j²c_j,
β = max |y_j|b_j and |ŷ|m, for squares c, ranges b and bounds m ≥ 0. `Matrices` holds both inverses. `Columns` is for
larger tables: it computes the columns of B one after the other, keeps of each difference only

    G⁰ = Σ y²c⁰,   β⁰ = max |y|b⁰,   D⁰ = Σ |y|m⁰        with c⁰, b⁰ of the lag and m⁰ of the samples, any of them ≥ 0,

and answers with bounds. (i) B_sj = (chance to reach j from s, discounted)·B_jj ≤ t_j := B_jj. A difference of two
numbers ≥ 0 is at most the larger in size, so y_j² ≤ t_j(sum of the two), and with e = (c - κc⁰)⁺ and E = B(te)

    G ≤ κG⁰ + (E on both sides of the difference),      any κ ≥ 0;

(ii) β ≤ β⁰·max b/b⁰; (iii) |y|m ≤ κD⁰ + (B(m - κm⁰)⁺ on both sides). (iv) B̂ = B + gB(P̂_π - P̃_π)B̂. Rows of P̂ - P̃ sum to
0, so |(p̂_j - p̃_j)B̂|m ≤ h_j = Σ_s' |p̂_j - p̃_j|(s')·|B̂_s' - B̂_ref|m; hence |ŷ|m ≤ |y|(m + g h) for two states and for
the hub, and g h_k more at pair k. What h needs is first bounded by M = B̂m on both sides, then by (iv) itself. (v) At a
pair also |ŷ|m ≤ m_s + g|p̂_k - p̂_π(s)|M, since B̂_s = 1_s + g p̂_π(s)B̂.

Systems are solved with a residual r, so what is solved for is off by at most L·max|r|, which is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array, identity
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from bestpolicy.verification.reading import Floats, Ints, Rejected
from bestpolicy.verification.rounding import EPS
from bestpolicy.verification.tables import Fixed, Process

HELD = 1500  # states up to which the inverses are held
_CHUNK = 2**17
_COLUMNS = 32
_CLOSE = 1e-8  # of residuals
_LEVELS = (0.3, 0.6, 0.8, 0.9, 0.97, 1.0)  # which quantiles of ratios are tried as κ


class Given(NamedTuple):
    """What is compared: P̃ and P̂, pairs of states (left, right), and |p̂ - p̃| by pair and index of such a pair."""

    process: Process
    fixed: Fixed
    past: csr_array
    seen: csr_array
    left: Ints
    right: Ints
    pair: Ints
    direction: Ints
    moved: Floats


def _parts(size: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(width, 1))
    return (slice(begin, begin + step) for begin in range(0, size, step))


def at_hub(given: Given, values: Floats) -> Floats:
    """Mean at the hub of each state's set, of functions on states (N, …)."""
    weights = given.fixed.hub if values.ndim == 1 else given.fixed.hub[:, None]
    found: Floats = np.add.reduceat(weights * values, given.process.blocks[:-1])[given.process.block_of]
    return found


class Matrices:
    """Both inverses."""

    def __init__(self, given: Given) -> None:
        self.given = given
        process, live, n = given.process, given.process.live, len(given.process.live)
        found, defects = [], []
        for kernel, left in ((given.past, True), (given.seen, False)):
            rows = kernel[given.fixed.policy][:, live]
            system = np.eye(n) - process.step * rows.toarray()
            inverse = np.zeros((process.size, n))
            inverse[live] = np.linalg.inv(system)
            # The past's is measured as a right inverse, since columns are noise; that of the samples by its rows.
            moved = rows @ inverse[live] if left else (rows.T @ inverse[live].T).T
            rest = inverse[live] - process.step * moved
            rest[np.arange(n), np.arange(n)] -= 1.0
            size = float(np.abs(inverse).sum(axis=1).max())
            defects.append(float(np.abs(rest).sum(axis=1).max()) + (n + 8) * EPS * 2 * max(size, 1.0))
            found.append(inverse)
        self.past, self.seen = found
        self.defect_past, self.defect = defects
        if not max(defects) < 1e-3:
            raise Rejected("the table is too badly conditioned for a certificate in double precision")
        blocks = len(process.blocks) - 1
        place = (process.block_of, np.arange(process.size))
        means = csr_array((given.fixed.hub, place), shape=(blocks, process.size))
        self.hub_past, self.hub_seen = means @ self.past, means @ self.seen

    def times(self, vector: Floats) -> Floats:
        """B̂ times a vector."""
        found: Floats = self.seen @ vector
        return found

    def from_hub(self, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
        """G and β between states and the hub, (N,)."""
        size, block_of = self.given.process.size, self.given.process.block_of
        total, largest = np.zeros(size), np.zeros(size)
        for part in _parts(size, len(squares)):
            rows = self.past[part] - self.hub_past[block_of[part]]
            total[part], largest[part] = _square_and_reach(rows, squares, reach)
        return total, largest

    def between(self, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
        """G and β between two states."""
        left, right = self.given.left, self.given.right
        total, largest = np.zeros(len(left)), np.zeros(len(left))
        for part in _parts(len(left), len(squares)):
            rows = self.past[left[part]] - self.past[right[part]]
            total[part], largest[part] = _square_and_reach(rows, squares, reach)
        return total, largest

    def at_pairs(self, squares: Floats, up: Floats, down: Floats) -> tuple[Floats, Floats]:
        """G and β at pairs; ranges above count where y > 0, those below where y < 0."""
        process, kernel = self.given.process, self.given.past
        total, largest = np.zeros(len(process.state)), np.zeros(len(process.state))
        for part in _parts(len(process.state), len(squares)):
            rows = process.step * (kernel[part] @ self.past) - self.past[process.state[part]]
            total[part] = rows**2 @ squares
            largest[part] = np.maximum(rows * up, -rows * down).max(axis=1)
        return total, largest

    def seen_from_hub(self, both: Floats) -> Floats:
        """|ŷ| times two vectors between states and the hub."""
        process, found = self.given.process, np.zeros((self.given.process.size, 2))
        for part in _parts(process.size, len(both)):
            found[part] = np.abs(self.seen[part] - self.hub_seen[process.block_of[part]]) @ both
        return found

    def seen_between(self, both: Floats) -> Floats:
        """The same between two states."""
        left, right = self.given.left, self.given.right
        found = np.zeros((len(left), 2))
        for part in _parts(len(left), len(both)):
            found[part] = np.abs(self.seen[left[part]] - self.seen[right[part]]) @ both
        return found

    def seen_at_pairs(self, both: Floats) -> Floats:
        """The same at pairs."""
        process, kernel = self.given.process, self.given.seen
        found = np.zeros((len(process.state), 2))
        for part in _parts(len(process.state), len(both)):
            rows = process.step * (kernel[part] @ self.seen) - self.seen[process.state[part]]
            found[part] = np.abs(rows) @ both
        return found


def _square_and_reach(rows: Floats, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
    """Σ row²·squares and max |row|·reach; the rows are used up."""
    np.abs(rows, out=rows)
    largest = (rows * reach).max(axis=1)
    np.square(rows, out=rows)
    return rows @ squares, largest


class System:
    """I - gP along the policy: factorised if successors are near in some order, else solved step by step."""

    def __init__(self, given: Given, kernel: csr_array) -> None:
        process = given.process
        self.step, self.limit, self.size = process.step, float(process.longest.max()), len(process.live)
        self.rows = csr_array(kernel[given.fixed.policy][:, process.live])
        self.terms = int(np.diff(self.rows.indptr).max(initial=0)) + 4
        order = reverse_cuthill_mckee(self.rows, symmetric_mode=False)
        place = np.argsort(order)
        far = np.abs(place[np.repeat(np.arange(self.size), np.diff(self.rows.indptr))] - place[self.rows.indices])
        self.factors = None
        if self.step == 1.0 or 16 * int(far.max(initial=0)) <= self.size:
            system = csc_array(identity(self.size, format="csc") - self.step * self.rows)
            way = "NATURAL" if self.step == 1.0 else "MMD_AT_PLUS_A"
            self.factors = splu(system, permc_spec=way, diag_pivot_thresh=0.0, options={"SymmetricMode": True})
            return
        self.often = np.full(self.size, 1 / self.size)  # where the process is in the long run
        for _ in range(30):
            self.often = self.rows.T @ self.often
            self.often /= max(float(self.often.sum()), 1e-300)

    def above(self, vectors: Floats) -> Floats:
        """Return the solution for vectors (n, …) and as much more as it may be off."""
        flat = vectors.reshape(self.size, -1)
        scale = np.maximum(np.abs(flat).max(axis=0), 1e-300)
        flat = flat / scale
        found = self.factors.solve(flat) if self.factors is not None else self._stepwise(flat)
        rest = np.abs(flat + self.step * (self.rows @ found) - found).max(axis=0)
        off = self.limit * (rest + self.terms * EPS * (1 + 2 * np.abs(found).max(axis=0)))
        return np.asarray(((found + off) * scale).reshape(vectors.shape))

    def _stepwise(self, given: Floats) -> Floats:
        """Add what is left, and 1/(1-g) times its mean in the long run, again and again."""
        found, rest, before, mean_helps = np.zeros_like(given), given, np.inf, True
        for _ in range(40_000):
            size = float(np.abs(rest).max())
            if size <= _CLOSE or (size >= before and not mean_helps):
                break
            mean_helps = mean_helps and size < 0.95 * before
            before = size
            constant = (self.often @ rest) * (self.step / (1 - self.step)) if mean_helps else 0.0
            found = found + rest + constant
            rest = given + self.step * (self.rows @ found) - found
        return found


class Columns:
    """Bounds from three sums of each difference."""

    defect_past = defect = 0.0

    def __init__(self, given: Given) -> None:
        self.given = given
        process, fixed = given.process, given.fixed
        self.system_past, self.system = System(given, given.past), System(given, given.seen)
        along = fixed.policy
        self.expected = (fixed.squares / fixed.unit)[along]
        self.reach = (np.maximum(fixed.up, fixed.down) / fixed.unit)[along]
        own = np.zeros(process.size)
        own[process.live] = self.expected
        self.place = np.searchsorted(process.live, process.state)  # of each pair's state among those that have pairs
        self.differ = given.left != given.right
        noise = np.where(self.differ, np.sqrt(own[given.left] + own[given.right]), 0.0)
        moved = np.bincount(given.pair, given.moved * noise[given.direction], len(process.state))
        self.shape: Floats = moved.astype(np.float64)[along]
        self._pass()
        played = fixed.policy[self.place]
        self.apart_from_played = abs(given.seen - given.seen[played])
        self._prepared: Floats | None = None
        self._squares: Floats | None = None

    def _pass(self) -> None:
        """All columns of B, some at a time."""
        process, left, right = self.given.process, self.given.left, self.given.right
        sizes = (process.size, len(left), len(process.state))
        self.total, self.largest, self.absolute = ([np.zeros(size) for size in sizes] for _ in range(3))
        live, n = process.live, len(process.live)
        self.tops, off = np.zeros(n), 0.0
        for begin in range(0, n, _COLUMNS):
            chosen = np.arange(begin, min(begin + _COLUMNS, n))
            units = np.zeros((n, len(chosen)))
            units[chosen, np.arange(len(chosen))] = 1.0
            columns = np.zeros((process.size, len(chosen)))
            columns[live] = self.system_past.above(units)
            rest = units + process.step * (self.system_past.rows @ columns[live]) - columns[live]
            off = max(off, self.system_past.limit * (float(np.abs(rest).max()) + 64 * EPS * float(columns.max())))
            self.tops[chosen] = columns[live[chosen], np.arange(len(chosen))]
            after, hub = process.step * (self.given.past @ columns), at_hub(self.given, columns)
            for kind, size in enumerate(sizes):
                for part in _parts(size, len(chosen)):
                    if kind == 0:
                        rows = columns[part] - hub[part]
                    elif kind == 1:
                        rows = columns[left[part]] - columns[right[part]]
                    else:
                        rows = after[part] - columns[process.state[part]]
                    np.abs(rows, out=rows)
                    self.absolute[kind][part] += rows @ self.shape[chosen]
                    reach = (rows * self.reach[chosen]).max(axis=1)
                    self.largest[kind][part] = np.maximum(self.largest[kind][part], reach)
                    self.total[kind][part] += np.square(rows, out=rows) @ self.expected[chosen]
        self.tops += off
        room = 1 + (n + 8) * EPS
        for kind in range(3):
            self.total[kind] = (np.sqrt(self.total[kind]) * room + 2 * off * np.sqrt(self.expected.sum())) ** 2
            self.largest[kind] = self.largest[kind] * room + 2 * off * float(self.reach.max())
            self.absolute[kind] = self.absolute[kind] * room + 2 * off * float(self.shape.sum())

    def _everywhere(self, system: System, vectors: Floats) -> Floats:
        found = np.zeros((self.given.process.size, *vectors.shape[1:]))
        found[self.given.process.live] = system.above(vectors)
        return found

    def _sides(self, kind: int, values: Floats) -> Floats:
        """Add up a function on states, (N, …) ≥ 0, over both sides of each difference."""
        given = self.given
        if kind == 0:
            return values + at_hub(given, values)
        if kind == 1:
            return np.asarray(values[given.left] + values[given.right])
        return np.asarray(given.process.step * (given.past @ values) + values[given.process.state])

    def _excess(self, vector: Floats, shape: Floats, tops: Floats) -> tuple[Floats, Floats]:
        """Several κ, and B·tops·(vector - κ·shape)⁺ of each, (N, κ)."""
        positive = shape > 0
        ratios = vector[positive] / shape[positive]
        levels = np.append(0.0, np.quantile(ratios, _LEVELS)) if len(ratios) else np.zeros(1)
        excess = np.maximum(vector[:, None] - levels * shape[:, None], 0.0) * tops[:, None]
        return levels, self._everywhere(self.system_past, excess)

    def _first(self, kind: int, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
        if squares is not self._squares:
            self._squares, self._levels = squares, self._excess(squares, self.expected, self.tops)
        levels, added = self._levels
        bound = (levels * self.total[kind][:, None] + self._sides(kind, added)).min(axis=1)
        positive = self.reach > 0
        ratio = float((reach[positive] / self.reach[positive]).max(initial=0.0))
        ratio = 1e200 if (reach[~positive] > 0).any() else ratio
        return bound, ratio * self.largest[kind]

    def times(self, vector: Floats) -> Floats:
        """B̂ times a vector, or a little more."""
        return self._everywhere(self.system, vector)

    def from_hub(self, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
        """Bounds on G and β between states and the hub, (N,)."""
        return self._first(0, squares, reach)

    def between(self, squares: Floats, reach: Floats) -> tuple[Floats, Floats]:
        """Bounds on G and β between two states."""
        return self._first(1, squares, reach)

    def at_pairs(self, squares: Floats, up: Floats, down: Floats) -> tuple[Floats, Floats]:
        """Bounds on G and β at pairs."""
        return self._first(2, squares, np.maximum(up, down))

    def _prepare(self, both: Floats) -> None:
        """Steps (iii) and (iv) for two vectors m."""
        if both is self._prepared:
            return
        given, self._prepared = self.given, both
        self._crude = self._everywhere(self.system, both)
        self._apart = self._sides(1, self._crude) * self.differ[:, None]
        for turn in range(3):
            terms = given.moved[:, None] * self._apart[given.direction]
            self._h = np.stack([np.bincount(given.pair, each, len(given.process.state)) for each in terms.T], axis=1)
            whole = both + given.process.step * self._h[given.fixed.policy]
            self._whole = [self._excess(vector, self.shape, np.ones(len(vector))) for vector in whole.T]
            if turn < 2:
                self._apart = np.minimum(self._apart, self._second(1))

    def _second(self, kind: int) -> Floats:
        known = self.absolute[kind][:, None]
        found = [(levels * known + self._sides(kind, added)).min(axis=1) for levels, added in self._whole]
        return np.stack(found, axis=1)

    def seen_from_hub(self, both: Floats) -> Floats:
        """Bounds on |ŷ| times two vectors between states and the hub."""
        self._prepare(both)
        found: Floats = np.minimum(self._second(0), self._sides(0, self._crude))
        return found

    def seen_between(self, both: Floats) -> Floats:
        """The same between two states."""
        self._prepare(both)
        found: Floats = self._apart
        return found

    def seen_at_pairs(self, both: Floats) -> Floats:
        """The same at pairs."""
        self._prepare(both)
        step = self.given.process.step
        directly = both[self.place] + step * (self.apart_from_played @ self._crude)
        found: Floats = np.minimum(directly, self._second(2) + step * self._h)
        return found
