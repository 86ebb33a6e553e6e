"""Systems (I - gP_π)x = b of the size of what was seen, with a bound on how far the answer is off.

A sparse factorisation where it stays sparse (stages, grids, chains: states can be put in an order in which they lead to
near ones only), else sweeps, x ← x + rest, which shrink what is left by g at least. Where the process mixes they do far
better: what is left is nearly constant after a few sweeps, and constants are solved exactly, (I - gP)1 = (1 - g)1. So
the mean of the rest under the stationary law ν is taken out at each sweep, and rest ← g(P - 1νᵀ)rest.

Whatever was done, with rest = b - (I - gP)x the error is (I - gP)⁻¹rest, at most L·max|rest|, since the rows of the
inverse are non-negative and sum to at most L. The rest is computed from x at the end, and what rounding may hide in it
is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, eye_array
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
            self.transposed = csr_array(self.rows.T)
            self.mean += 1 / size
            for _ in range(_POWERS):
                self.mean = self.transposed @ self.mean
                self.mean /= self.mean.sum() or 1.0

    def solve(self, given: FloatArray, accuracy: float = EXACT) -> tuple[FloatArray, FloatArray]:
        """Solve for vectors (n, …) on live states.

        Returns
        -------
        solution : array (n, …)
        error : array (…)
            Bound on the error of every entry.
        """
        columns = given.reshape(len(given), -1)
        sizes = np.maximum(np.abs(columns).max(axis=0), 1e-300)  # each column has an accuracy of its own
        columns = columns / sizes
        if self.factors is not None:
            with one_thread():
                found = self.factors.solve(columns)
        else:
            found = self._sweep(self.rows, np.ones(len(given)), self.mean, columns, accuracy)
        rest = np.abs(columns - found + self.step * (self.rows @ found)).max(axis=0)
        hidden = self.terms * EPS * (1 + 2 * np.abs(found).max(axis=0))
        error = self.longest * (rest + hidden) * sizes
        return (found * sizes).reshape(given.shape), error.reshape(given.shape[1:])

    def solve_transposed(self, given: FloatArray) -> FloatArray:
        """The transposed inverse times vectors, nearly: good enough to plan with."""
        if self.factors is not None:
            with one_thread():
                return np.asarray(self.factors.solve(given, trans="T"))
        return self._sweep(self.transposed, self.mean, np.ones(len(given)), given, ROUGH)

    def _sweep(
        self, rows: Matrix, fixed: FloatArray, weights: FloatArray, given: FloatArray, accuracy: float
    ) -> FloatArray:
        """Sweeps that take out what `weights` see of the rest along `fixed`, as long as that helps."""
        rest = np.array(given.reshape(len(given), -1))
        found, jumped = np.zeros_like(rest), np.zeros(rest.shape[1])
        jump = self.step / (1 - self.step)
        lost = jump * (fixed - self.step * (rows @ fixed))  # what a jump along `fixed` takes from the rest
        size, before, jumps = _size(rest), np.inf, True
        goal = accuracy * size
        while size > goal:
            if size > 0.98 * before and jumps:
                jumps = False
            elif size > 0.9999 * before:  # as exact as it gets
                break
            found += rest
            seen = weights @ rest if jumps else jumped * 0
            rest = rows @ rest
            rest *= self.step
            if jumps:
                jumped += jump * seen
                rest -= lost[:, None] * seen
            size, before = _size(rest), size
        found += fixed[:, None] * jumped
        return found.reshape(given.shape)


def _size(values: FloatArray) -> float:
    return max(float(values.max()), -float(values.min()))


def _band(rows: Matrix) -> int:
    """How far apart a state and its successors are, at most, in an order that tries to keep them close."""
    order = reverse_cuthill_mckee(csr_array(rows), symmetric_mode=False)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    start = np.repeat(np.arange(len(order)), np.diff(rows.indptr))
    return int(np.abs(place[start] - place[rows.indices]).max(initial=0))
