"""Sums over rows of the past's resolvent that plans need: exact if it is small, else estimates from a few vectors.

A direction of rival k is y_k = (g p̃_k - e_{s_k})Ψ̃. With random signs z the mean of (y·√c z)² is Σ y²c, and with Cauchy
numbers z the median of |y·(m z)| is Σ |y|m: thirty-two vectors, thirty-two sparse systems, give a plan all it needs,
for every direction at once. What a plan is for, the look, makes no use of them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix
from bestpolicy.stopping.tables.lag import Lag
from bestpolicy.stopping.tables.model import Chain, resolvent
from bestpolicy.stopping.tables.rows import Sums, at_hub, directions
from bestpolicy.stopping.tables.solve import Solver

_VECTORS = 32
_KEPT = 4_000_000  # entries of directions that are kept rather than formed anew
_STEPS = 100  # back from a pair, to see whose value hangs on it


class KeptRows:
    """All directions themselves; `rounds` says how often it pays to pass over them.

    Parameters
    ----------
    chain : Chain
    kernel : sparse matrix (M, N)
    policy : int array (n,)
    rivals : int array
        All pairs but those of the policy.
    """

    rounds = 8

    def __init__(self, chain: Chain, kernel: Matrix, policy: IntArray, rivals: IntArray) -> None:
        self.chain, self.kernel, self.rivals = chain, kernel, rivals
        self.psi = resolvent(chain, kernel, policy)

    @property
    def size(self) -> int:
        """Number of entries of all directions."""
        return int(self.psi.shape[1]) * len(self.rivals)

    @property
    def rows(self) -> FloatArray:
        """All directions, (rivals, n)."""
        return np.concatenate([rows for _, rows in self._parts()])

    def _parts(self) -> list[tuple[slice, FloatArray]]:
        return self._all if self.size <= _KEPT else self._form()

    @cached_property
    def _all(self) -> list[tuple[slice, FloatArray]]:
        return self._form()

    def _form(self) -> list[tuple[slice, FloatArray]]:
        found, begin = [], 0
        chosen = np.zeros(len(self.chain.state), dtype=np.bool_)
        chosen[self.rivals] = True
        for part, rows in directions(self.chain, self.kernel, self.psi):
            kept = rows[chosen[part]]
            found.append((slice(begin, begin + len(kept)), kept))
            begin += len(kept)
        return found

    def forward(self, weights: FloatArray) -> FloatArray:
        """Σ_j y_kj²·weights_j at the rivals."""
        found: FloatArray = np.concatenate([rows**2 @ weights for _, rows in self._parts()])
        return found

    def backward(self, weights: FloatArray) -> FloatArray:
        """Σ_k weights_k·y_kj² at the pairs of the policy."""
        total = np.zeros(self.psi.shape[1])
        for part, rows in self._parts():
            total += weights[part] @ rows**2
        return total

    def largest(self, weights: FloatArray, up: FloatArray, down: FloatArray) -> FloatArray:
        """max_k weights_k·max(y_kj·up_j, -y_kj·down_j)."""
        most = np.zeros(self.psi.shape[1])
        for part, rows in self._parts():
            if len(rows):
                scaled = rows * weights[part, None]
                most = np.maximum(most, np.maximum(scaled.max(0) * up, -scaled.min(0) * down))
        return most

    def of_rivals(self, squares: FloatArray, up: FloatArray, down: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ_j y_kj²·squares_j and max_j max(y_kj·up_j, -y_kj·down_j)."""
        reach = [np.maximum(rows * up, -rows * down).max(1, initial=0.0) for _, rows in self._parts()]
        return self.forward(squares), np.concatenate(reach)


class EstimatedRows:
    """The same, estimated."""

    rounds = 4

    def __init__(self, chain: Chain, kernel: Matrix, policy: IntArray, rivals: IntArray, solver: Solver) -> None:
        self.chain, self.kernel, self.rivals, self.solver = chain, kernel, rivals, solver
        rng = np.random.default_rng(0)
        self.signs = rng.choice([-1.0, 1.0], size=(len(policy), _VECTORS))
        self.own_signs = rng.choice([-1.0, 1.0], size=(len(rivals), _VECTORS))
        self.cauchy = np.clip(rng.standard_cauchy((len(policy), _VECTORS)), -1e6, 1e6)
        self.rows = csr_array(kernel[rivals][:, chain.live])
        self.columns = csr_array(self.rows.T)
        self.state = np.searchsorted(chain.live, chain.state[rivals])
        self.at_state = csr_array(
            (np.ones(len(rivals)), (self.state, np.arange(len(rivals)))), shape=(len(policy), len(rivals))
        )
        back = csr_array(kernel[policy][:, chain.live].T)
        self.back_starts, self.back = back.indptr[:-1], back

    @cached_property
    def tops(self) -> FloatArray:
        """Ψ̃_jj, nearly."""
        found = self.solver.solve(self.signs)[0]
        tops: FloatArray = np.clip((found * self.signs).mean(1), 1.0, self.solver.longest)
        return tops

    def forward(self, weights: FloatArray) -> FloatArray:
        """Σ_j y_kj²·weights_j at the rivals, nearly."""
        found = self.solver.solve(np.sqrt(weights)[:, None] * self.signs)[0]
        moved = self.chain.step * (self.rows @ found) - found[self.state]
        sums: FloatArray = np.square(moved).mean(1)
        return sums

    def backward(self, weights: FloatArray) -> FloatArray:
        """Σ_k weights_k·y_kj² at the pairs of the policy, nearly."""
        given = np.sqrt(weights)[:, None] * self.own_signs
        found = self.solver.solve_transposed(self.chain.step * (self.columns @ given) - self.at_state @ given)
        sums: FloatArray = np.square(found).mean(1)
        return sums

    def largest(self, weights: FloatArray, up: FloatArray, down: FloatArray) -> FloatArray:
        """max_k weights_k·max(y_kj·up_j, -y_kj·down_j), by the likeliest way to j."""
        size = len(self.tops)
        here, near = np.zeros(size), np.zeros(size)
        np.maximum.at(here, self.state, weights)
        entry = np.repeat(np.arange(len(weights)), np.diff(self.rows.indptr))
        np.maximum.at(near, self.rows.indices, self.chain.step * self.rows.data * weights[entry])
        lengths = np.diff(self.back.indptr)
        for _ in range(_STEPS):
            for values in (here, near):
                steps = self.chain.step * self.back.data * values[self.back.indices]
                best = np.zeros(size)
                if len(steps):
                    best[lengths > 0] = np.maximum.reduceat(steps, self.back_starts[lengths > 0])
                np.maximum(values, best, out=values)
        most: FloatArray = self.tops * np.maximum(near * up, here * down)
        return most

    def of_rivals(self, squares: FloatArray, up: FloatArray, down: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ_j y_kj²·squares_j and max_j max(y_kj·up_j, -y_kj·down_j), nearly."""
        ahead = self._ahead(np.maximum(up, down))  # a look of a large table does not tell the two apart either
        return self.forward(squares), np.maximum(self.chain.step * (self.rows @ ahead), ahead[self.state])

    def _ahead(self, weights: FloatArray) -> FloatArray:
        """max_j Ψ̃_sj·weights_j, or a little more: the best that a game that stops at some j could pay."""
        own = self.tops * weights
        most = np.full(len(own), own.max())
        for _ in range(_STEPS):  # from above
            most = np.minimum(most, np.maximum(own, self.chain.step * (self.solver.rows @ most)))
        return most

    def sums(self, lag: Lag) -> Sums:
        """What a rehearsed look needs of all directions, nearly."""
        chain, (keys, expected, reach, sums) = self.chain, Sums.weights(self.chain, lag)
        left, right = keys // chain.size, keys % chain.size
        signed, heavy = (np.zeros((chain.size, _VECTORS)) for _ in range(2))
        signed[chain.live] = self.solver.solve(np.sqrt(expected)[:, None] * self.signs)[0]
        heavy[chain.live] = self.solver.solve(sums[:, None] * self.cauchy)[0]
        squares, absolute = (
            [
                measure(values - at_hub(chain, lag.hub, values)),
                measure(values[left] - values[right]),
                measure(chain.step * (self.kernel @ values) - values[chain.state]),
            ]
            for values, measure in ((signed, _mean_square), (heavy, _median))
        )
        top = np.zeros(chain.size)
        top[chain.live] = self._ahead(reach)
        ahead = chain.step * (self.kernel @ top)
        largest = [top, np.maximum(top[left], top[right]), np.maximum(ahead, top[chain.state])]
        return Sums(keys, expected, reach, sums, self.tops, squares, largest, absolute)


def _mean_square(y: FloatArray) -> FloatArray:
    found: FloatArray = np.square(y).mean(1)
    return found


def _median(y: FloatArray) -> FloatArray:
    """Median of the sizes of each row, roughly."""
    sizes = np.abs(y)
    half = sizes.shape[1] // 2
    sizes.partition(half, axis=1)
    found: FloatArray = sizes[:, half]
    return found
