"""Numbers that do not hang on the processor.

*Threads.* The bits of a result may depend on the number of BLAS threads, and many small calls with several threads can
be 30 times slower on a busy machine than with one. So there is one thread where it matters.

*Decisions.* Processors round differently: the order in which a matrix product adds up its terms depends on the kernel
that the BLAS library picks for them, and so do a few functions of NumPy. Estimates may differ by that, in digits that
nobody reads. What is *decided* from them must not: which pairs to sample and how often, which of two tied actions to
play, which random numbers a simulator draws. So whatever is decided is first rounded to a grid that is coarse against
rounding errors and fine against everything that matters; and what is drawn from is added up term by term. Sums,
products, quotients and square roots of single numbers are the same on every processor.

*Digits.* Where factors are so badly conditioned that their product would lose too many digits, rows of the left and
columns of the right one are cut into slices of so few bits that products of leading slices are exact; only their sum is
rounded [1]_. With β bits a slice, α and b the largest entries of a row and a column,

    |error of an entry| ≤ ε|entry| + 32 d·ε·2^-β·α·b,        ε = 2⁻⁵².

References
----------
.. [1] K. Ozaki, T. Ogita, S. Oishi, S. M. Rump. Error-free transformations of matrix multiplication by using fast
   routines of matrix multiplication and its applications. Numerical Algorithms 59, 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil, log2
from threading import Lock, local
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bestpolicy._numerics.arrays import FloatArray, IntArray

EPS = 2.0**-52  # twice the largest relative error of one operation: room for all products of errors
_SIGNIFICANT_BITS = 30
_TIED = 1e-10  # actions closer than this, relative to the largest value, are tied: rounding errors are far smaller


def steady(values: FloatArray) -> FloatArray:
    """Round to nine digits, so that numbers that differ by rounding errors only are equal."""
    fraction, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.rint(fraction * 2.0**_SIGNIFICANT_BITS), exponent - _SIGNIFICANT_BITS)
    return rounded


def steady_above(value: float) -> float:
    """Round to nine digits, upwards: a unit of the last digit or two are added first, and half of one is lost at most.

    (To round a number such as 1 up as it is would hang on its last bit.)
    """
    return float(steady(np.array(value * (1 + 2.0 ** (1 - _SIGNIFICANT_BITS)))))


def grid_shares(weights: FloatArray, step: float) -> FloatArray:
    """Round shares to whole multiples of a power of two of at most `step`, and let them sum to 1 again."""
    units = np.rint(weights * 2.0 ** ceil(-log2(step)))
    shares: FloatArray = units / units.sum()
    return shares


def greedy(q_values: FloatArray) -> IntArray:
    """Best action (…,) for values (…, A); of tied ones the first."""
    finite = np.where(np.isfinite(q_values), q_values, 0.0)
    best = q_values.max(axis=-1, keepdims=True)
    chosen: IntArray = (q_values >= best - _TIED * np.abs(finite).max(initial=0.0)).argmax(axis=-1).astype(np.int64)
    return chosen


def ordered_product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return left·rightᵀ, (n, m), for matrices (n, d) and (m, d), adding up column by column."""
    product = np.zeros((len(left), len(right)))
    for column, entries in enumerate(left.T):
        rows = np.flatnonzero(entries)
        if len(rows) < len(left):
            product[rows] += entries[rows, None] * right[:, column]
        else:
            product += entries[:, None] * right[:, column]
    return product


def accurate_product(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the product of (n, d) and (d, k) matrices, and bounds (n,) on the Euclidean error of its rows."""
    dimension = left.shape[1]
    # Units of the columns cancel; powers of two do so exactly.
    exponents = np.frexp(np.abs(left).max(axis=0))[1]
    left, right = np.ldexp(left, -exponents), np.ldexp(right, exponents[:, None])
    bits = (52 - ceil(log2(max(dimension, 2)))) // 2
    a, b = _slices(left, bits), [piece.T for piece in _slices(right.T, bits)]
    small = a[1] @ b[1] + (a[0] @ b[2] + a[2] @ b[0]) + (a[1] @ b[2] + a[2] @ b[1]) + a[2] @ b[2]
    product = a[0] @ b[0] + ((a[0] @ b[1] + a[1] @ b[0]) + small)
    sizes = np.abs(left).max(axis=1) * float(np.linalg.norm(np.abs(right).max(axis=0)))
    errors = EPS * np.sqrt((product**2).sum(axis=1)) + 32 * dimension * EPS * 2.0**-bits * sizes
    return product, errors


def _slices(matrix: FloatArray, bits: int) -> list[FloatArray]:
    """Three matrices with exactly the given sum; rows of the first two lie on grids of `bits` bits."""
    slices, rest = [], matrix
    for _ in range(2):
        exponents = np.frexp(np.abs(rest).max(axis=1, keepdims=True))[1]
        anchor = np.ldexp(0.75, exponents + 53 - bits)  # adding and subtracting it rounds to the grid
        leading = (rest + anchor) - anchor
        slices.append(leading)
        rest = rest - leading
    return [*slices, rest]


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which BLAS uses one thread; inside another such context it costs next to nothing."""
    if _here.depth == 0:
        _enter()
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            _leave()


class _Here(local):
    """What holds for one thread: how deep it is inside, and the limits that are its own."""

    depth = 0
    before: tuple[int, ...] = ()


class _Everywhere:
    """What holds for the whole process: how many threads are inside, and the limits that they share."""

    inside = 0
    before: tuple[int, ...] = ()
    lock = Lock()


_here = _Here()


def _enter() -> None:
    common, per_thread = _libraries()
    with _Everywhere.lock:
        if _Everywhere.inside == 0:  # the first one limits BLAS, the last one lets it go
            _Everywhere.before = _set_threads(common, (1,) * len(common))
        _Everywhere.inside += 1
    _here.before = _set_threads(per_thread, (1,) * len(per_thread))


def _leave() -> None:
    common, per_thread = _libraries()
    _set_threads(per_thread, _here.before)
    with _Everywhere.lock:
        _Everywhere.inside -= 1
        if _Everywhere.inside == 0:
            _set_threads(common, _Everywhere.before)


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """Return the BLAS libraries whose threads belong to the process, and those with a number for each thread."""
    loaded = [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]
    common = [each for each in loaded if each.internal_api == "openblas" and each.threading_layer != "openmp"]
    return common, [each for each in loaded if each not in common]


def _set_threads(libraries: list[Any], numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Let each library use so many threads; return how many it had."""
    before = tuple(each.num_threads for each in libraries)
    for each, had, number in zip(libraries, before, numbers, strict=True):
        if had != number:
            # From threadpoolctl 3.8 on the public method does nothing in any thread but the one that called it first.
            getattr(each, "_real_set_num_threads", each.set_num_threads)(number)
    return before
