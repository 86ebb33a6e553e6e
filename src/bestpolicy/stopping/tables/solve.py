"""Systems (I - gP_π)x = b of the size of what was seen, with a bound on how far the answer is off.

A sparse factorisation where it stays sparse (stages, grids, chains: states can be put in an order in which they lead to
near ones only), else sweeps, x ← x + rest, which shrink what is left by g at least. Where the process mixes they do far
better: what is left is nearly constant after a few sweeps, and constants are solved exactly, (I - gP)1 = (1 - g)1. So
the mean of the rest under the stationary law ν is taken out at each sweep, and rest ← g(P - 1νᵀ)rest.

Whatever was done, with rest = b - (I - gP)x the error is (I - gP)⁻¹rest, at most L·max|rest|, since the rows of the
inverse are non-negative and sum to at most L. The rest is computed from x at the end, and what rounding may hide in it
is added. So sweeps for a rough answer may use numbers of single precision, which takes half the time: what they leave
is computed in double precision, and swept again if it is too much.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix
from bestpolicy._numerics.reproducible import EPS, one_thread

if TYPE_CHECKING:
    from bestpolicy.stopping.tables.model import Chain

EXACT, ROUGH = 1e-12, 1e-7  # of a rest, relative to what was given
_NARROW = 16  # a band of at most a sixteenth of the states is factorised
_SMALL = 400  # states whose systems are always factorised
_POWERS = 40
_BETWEEN = 3  # sweeps until one sees what is left
_SPARSE = 150  # entries of a row, on average, up to which powers of a matrix are kept
_TURNS = 4  # sweeps in single precision, each for what the one before has left
_SINGLE = 3e-7  # what they can reach, relative to what was given


class Solver:
    """(I - gP_π)⁻¹ times vectors on live states."""

    def __init__(self, chain: Chain, kernel: Matrix, policy: IntArray) -> None:
        self.step, self.longest = chain.step, float(chain.longest.max())
        self.rows = csr_array(kernel[policy][:, chain.live])
        self.terms = int(np.diff(self.rows.indptr).max(initial=0)) + 4
        size = len(policy)
        self.factors, self.mean = None, np.zeros(size)
        if chain.step == 1 or size <= _SMALL or _band(self.rows) * _NARROW <= size:
            order = "NATURAL" if chain.step == 1 else "MMD_AT_PLUS_A"
            system = (eye_array(size) - chain.step * self.rows).tocsc()
            with one_thread():
                self.factors = splu(system, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        else:
            transposed = csr_array(self.rows.T)
            self.mean += 1 / size
            for _ in range(_POWERS):
                self.mean = transposed @ self.mean
                self.mean /= self.mean.sum() or 1.0
            self.sweeps = _Sweeps(self.rows, chain.step, np.ones(size), self.mean)
            self.back = _Sweeps(transposed, chain.step, self.mean, np.ones(size))

    def solve(self, given: FloatArray, accuracy: float = EXACT) -> tuple[FloatArray, FloatArray]:
        """Solve for vectors (n, …) on live states.

        Returns
        -------
        solution : array (n, …)
        error : array (…)
            Bound on the error of every entry.
        """
        columns = given.reshape(len(given), -1)
        sizes = np.maximum(_largest(columns), 1e-300)  # each column has an accuracy of its own
        columns, rest = columns / sizes, None
        if self.factors is not None:
            with one_thread():
                found = self.factors.solve(columns)
        elif accuracy < ROUGH:
            found = self.sweeps.solve(columns, accuracy)
        else:
            found, rest = self._in_single(columns, accuracy, np.zeros_like(columns), columns)
        error = self._error(self._rest(columns, found) if rest is None else rest, found) * sizes
        return (found * sizes).reshape(given.shape), error.reshape(given.shape[1:])

    def columns(self, index: IntArray, accuracy: float) -> tuple[FloatArray, FloatArray]:
        """Solve for unit vectors: the same as by `solve`, but sweeps begin with what is sparse of the answer."""
        given = np.zeros((self.rows.shape[0], len(index)))
        given[index, np.arange(len(index))] = 1.0
        if self.factors is not None:
            return self.solve(given, accuracy)
        found, rest = self._in_single(given, accuracy, *(each[:, index].toarray("C") for each in self._begun))
        return found, self._error(rest, found)

    @cached_property
    def _begun(self) -> tuple[Matrix, Matrix]:
        """I + gP + … + (gP)^(m-1), and (gP)^m, which is what that leaves; m as large as keeps them sparse."""
        size, step = self.rows.shape[0], csr_array(self.step * self.rows)
        sums, power = csr_array(eye_array(size)), step
        while power.nnz * step.nnz <= _SPARSE * size**2 and power.nnz:
            sums, power = sums + power, step @ power
        return csc_array(sums), csc_array(power)

    def _in_single(
        self, given: FloatArray, accuracy: float, found: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Improve an answer that leaves this rest; return it with what it leaves then."""
        for _ in range(_TURNS):
            found += self.sweeps.single.solve(rest, max(accuracy / max(_size(rest), 1e-300), _SINGLE))
            rest = self._rest(given, found)
            if _size(rest) <= accuracy:
                break
        return found, rest

    def _error(self, rest: FloatArray, found: FloatArray) -> FloatArray:
        """Bound on the error of every entry, for each column."""
        hidden = self.terms * EPS * (1 + 2 * _largest(found))
        error: FloatArray = self.longest * (_largest(rest) + hidden)
        return error

    def _rest(self, given: FloatArray, found: FloatArray) -> FloatArray:
        rest: FloatArray = self.rows @ found
        rest *= self.step
        rest -= found
        rest += given
        return rest

    def solve_transposed(self, given: FloatArray) -> FloatArray:
        """The transposed inverse times vectors, nearly: good enough to plan with."""
        if self.factors is not None:
            with one_thread():
                return np.asarray(self.factors.solve(given, trans="T"))
        return self.back.solve(given.reshape(len(given), -1), ROUGH).reshape(given.shape)


class _Sweeps:
    """Sweeps that take out what `weights` see of the rest along `fixed`, as long as that helps."""

    def __init__(
        self, rows: Matrix, step: float, fixed: FloatArray, weights: FloatArray, kind: Any = np.float64
    ) -> None:
        self.made_of = rows, step, fixed, weights
        self.rows = csr_array(((step * rows.data).astype(kind), rows.indices, rows.indptr), shape=rows.shape)
        self.weights, self.kind = weights.astype(kind), kind
        self.jump = (fixed / (1 - step)).astype(kind)[:, None]
        self.lost = ((fixed - step * (rows @ fixed)) / (1 - step)).astype(kind)[:, None]  # what a jump takes off a rest

    @cached_property
    def single(self) -> _Sweeps:
        """The same in single precision."""
        return _Sweeps(*self.made_of, np.float32)

    def solve(self, given: FloatArray, accuracy: float) -> FloatArray:
        """Solve for vectors (n, v) until what is left is so small in terms of what was given, or will not shrink."""
        rest, before, jumps = given.astype(self.kind), np.inf, True
        found, goal = np.zeros_like(rest), accuracy * _size(rest)
        while True:
            for _ in range(_BETWEEN):
                found += rest
                rest = self.rows @ rest
            if jumps:
                seen = self.weights @ rest
                found += self.jump * seen
                rest -= self.lost * seen
            size = _size(rest)
            if size <= goal or (size > 0.9999 * before and not jumps):  # as exact as it gets
                found += rest
                return found
            jumps = jumps and size <= 0.93 * before
            before = size


def _size(values: FloatArray) -> float:
    return max(float(values.max()), -float(values.min()))


def _largest(values: FloatArray) -> FloatArray:
    """Largest size in each column."""
    sizes: FloatArray = np.maximum(values.max(axis=0), -values.min(axis=0))
    return sizes


def _band(rows: Matrix) -> int:
    """How far apart a state and its successors are, at most, in an order that tries to keep them close."""
    order = reverse_cuthill_mckee(csr_array(rows), symmetric_mode=False)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    start = np.repeat(np.arange(len(order)), np.diff(rows.indptr))
    return int(np.abs(place[start] - place[rows.indices]).max(initial=0))
