"""G-optimal designs: which feature vectors to sample so that every prediction is accurate.

Given feature vectors x_1, ..., x_n in R^d, weights w on the simplex have the information matrix
Lambda(w) = sum_i w_i x_i x_i' and the leverages g_i(w) = x_i' Lambda(w)^-1 x_i. Least squares from t samples drawn by w
predicts x_i . theta with variance proportional to g_i(w) / t, so a *G-optimal* design minimises max_i g_i(w).

Kiefer and Wolfowitz [1]_: the minimum is d, and the minimisers are those of - log det Lambda(w) (D-optimal designs).
Because sum_i w_i g_i(w) = d for every w, the number max_i g_i(w) >= d that comes with a design is its own certificate:
a design with max_i g_i <= (1 + eta) d is optimal up to the factor 1 + eta, and that is how it enters every theorem.
An optimal design needs at most d (d + 1) / 2 points.

Method. Column generation:

1. Choose coordinates in which the features are well conditioned (`conditioning`).
2. Solve for the weights on a working set of some hundred points (`interior_point`), loosely at first.
3. Compute the leverages of all rows. If the largest is below (1 + tolerance) d, stop; if not, the rows that violate the
   optimality conditions most, and that are not nearly parallel to each other, join the working set. Rows that no
   optimal design can use, by the bound of Harman and Pronzato, leave for good.
4. Reduce the support (`support`) and compute the leverages of all rows once more, for the certificate that is returned.

First-order methods (Frank-Wolfe, multiplicative updates) need a number of passes that grows like 1 / tolerance; here it
is about ten whatever the tolerance.

References
----------
.. [1] J. Kiefer, J. Wolfowitz. The equivalence of two extremum problems. Canadian Journal of Mathematics 12, 1960.
.. [2] M. J. Todd. Minimum-Volume Ellipsoids: Theory and Algorithms. SIAM, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, solve_triangular
from threadpoolctl import ThreadpoolController

from bestpolicy.design.conditioning import Floats, as_feature_matrix, row_chunks, squared_norms, well_conditioned
from bestpolicy.design.interior_point import d_optimal_weights, support_threshold
from bestpolicy.design.support import caratheodory, drop_negligible, moment_count
from bestpolicy.errors import ConvergenceError, InvalidInput

Indices = NDArray[np.int64]

_MAX_ROUNDS = 200


@dataclass(frozen=True)
class Design:
    """A design with its certificate.

    Attributes
    ----------
    indices : ndarray of int64, shape (K,)
        Rows of the feature matrix that carry weight, in increasing order; K <= d (d + 1) / 2.
    weights : ndarray of float64, shape (K,)
        Positive, with sum 1.
    worst_leverage : float
        max over all rows of x' Lambda(w)^-1 x, at least d up to rounding: the certificate.
    worst_index : int
        The row that attains it.
    tolerance : float
        What was asked: worst_leverage <= (1 + tolerance) * dimension.
    dimension : int
        Dimension d, the rank of the features.
    """

    indices: Indices
    weights: Floats
    worst_leverage: float
    worst_index: int
    tolerance: float
    dimension: int


def g_optimal_design(features: ArrayLike, *, tolerance: float = 1e-3) -> Design:
    matrix = as_feature_matrix(features)
    if not 1e-10 <= tolerance <= 1:
        raise InvalidInput(f"tolerance must be between 1e-10 and 1. Got {tolerance!r}.")
    with _blas().limit(limits=1, user_api="blas"):
        return _certified_design(matrix, tolerance)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Frame:
    """Coordinates z = x T in which the information matrix of the latest design is the identity."""

    def __init__(self, rows: Floats, transform: Floats) -> None:
        self.rows = rows
        self.transform = transform
        self.dimension = rows.shape[1]

    def take(self, indices: Indices) -> Floats:
        return self.rows[indices] @ self.transform

    def adopt(self, indices: Indices, weights: Floats) -> None:
        points = self.take(indices)
        factor = np.linalg.cholesky((points * weights[:, None]).T @ points)
        self.transform = np.ascontiguousarray(solve_triangular(factor, self.transform.T, lower=True).T)
        return 2*np.log(np.diag(factor)).sum()

    def leverages(self, rows: Floats) -> Floats:
        result = np.empty(len(rows))
        for chunk in row_chunks(*rows.shape):
            result[chunk] = squared_norms(rows[chunk] @ self.transform)
        return result


import time
VERBOSE=False
DROP=1.0
FLOOR=50
ADD=6
GOAL=1.
def _certified_design(features: Floats, tolerance: float) -> Design:
    t0=time.perf_counter()
    frame = _Frame(*well_conditioned(features, tolerance / 20))
    dimension = frame.dimension
    t1=time.perf_counter()
    working = _initial_working_set(frame)
    if VERBOSE: print('well %.3f init %.3f'%(t1-t0,time.perf_counter()-t1))
    weights = np.full(len(working), 1.0 / len(working))
    for target in (tolerance / 2, tolerance / 20, tolerance / 200):
        working, weights = _column_generation(frame, working, weights, target)
        t0=time.perf_counter()
        indices, final = _reduced_support(frame, working, weights, tolerance / 8)
        t1=time.perf_counter()
        frame.adopt(indices, final)
        leverages = frame.leverages(frame.rows)
        worst = int(leverages.argmax())
        if VERBOSE: print('reduced %.3f'%(t1-t0), len(working),len(indices),leverages[worst]/dimension-1, 'cert %.3f'%(time.perf_counter()-t1))
        if leverages[worst] <= (1 + tolerance) * dimension:
            order = np.argsort(indices)
            return Design(indices[order], final[order], float(leverages[worst]), worst, tolerance, dimension)
    raise ConvergenceError("..")


def _column_generation(frame, working, weights, tolerance):
    dimension = frame.dimension
    candidates, rows = np.arange(len(frame.rows)), frame.rows
    goal = GOAL*min(tolerance*2, 1e-6)/10
    for rnd in range(_MAX_ROUNDS):
        t0=time.perf_counter()
        m0=len(working)
        kept, weights = d_optimal_weights(frame.take(working), weights, goal)
        working = working[kept]
        t1=time.perf_counter()
        gain = frame.adopt(working, weights)
        leverages = frame.leverages(rows)
        worst = float(leverages.max())
        gap = worst / dimension - 1
        t2=time.perf_counter()
        if VERBOSE: print('   round',rnd,m0,'->',len(working),'goal %.1e gap %.1e'%(goal,gap),'rows',len(rows),'viol',(leverages>dimension*(1+tolerance)).sum(),'%.3f %.3f'%(t1-t0,t2-t1))
        if gap <= tolerance:
            return working, weights
        stay = leverages >= support_threshold(worst, dimension)
        if stay.sum() < len(stay) / 2:
            candidates, rows, leverages = candidates[stay], rows[stay], leverages[stay]
        over = _largest(leverages, 8*int(max(20, ADD * dimension)))
        over = over[leverages[over] > dimension * (1 + max(tolerance, gap / 20))]
        new = _spread(frame, candidates[over], leverages[over], int(max(20, ADD * dimension)))
        new = np.setdiff1d(new, working)
        goal = GOAL*min(tolerance*2, 1e-6)/10 if len(new) else goal / 10
        if DROP and len(new) and rnd<50:
            lv = squared_norms(frame.take(working))
            st = weights*len(weights)*DROP >= 1-lv/lv.max()
            if VERBOSE: print('   drop',len(working)-st.sum())
            working, weights = working[st], weights[st]
        working = np.append(working, new)
        weights = np.append(0.9 * weights, np.full(len(new), 0.1 / max(1, len(new))))
    raise ConvergenceError("..")


def _spread(frame, candidates, leverages, limit):
    """At most `limit` of the candidates by decreasing leverage, no two of them nearly parallel."""
    order = np.argsort(-leverages, kind="stable")
    candidates = candidates[order]
    points = frame.take(candidates)
    points /= np.sqrt(squared_norms(points))[:, None]
    free = np.ones(len(order), dtype=bool)
    chosen = []
    for position in range(len(order)):
        if free[position]:
            chosen.append(position)
            if len(chosen)==limit: break
            free &= (points @ points[position])**2 < 1 - _PARALLEL
    return candidates[chosen]

_PARALLEL=1e-4
def _largest(values, count):
    """Positions of the `count` largest values, in no order"""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(-values, count)[:count]

def _initial_working_set(frame: _Frame) -> Indices:
    n, dimension = frame.rows.shape
    leverages = frame.leverages(frame.rows)
    limit = max(200, 8 * dimension)
    pool = np.union1d(_largest(leverages, 4 * limit), np.arange(0, n, max(1, n // (4 * limit))))
    pool = pool[leverages[pool] > 0]
    top = _spread(frame, pool, leverages[pool], limit)
    return np.union1d(top, _spanning_rows(frame, top))


def _spanning_rows(frame: _Frame, pool: Indices) -> Indices:
    dimension = frame.dimension
    chosen = np.zeros(0, dtype=np.int64)
    basis = np.zeros((dimension, 0))
    significant = 0.1 / np.sqrt(len(frame.rows))
    while True:
        points = frame.take(pool)
        points -= points @ basis @ basis.T
        _, factor, order = qr(points.T, mode="economic", pivoting=True)
        count = np.count_nonzero(np.abs(np.diag(factor)) >= significant)
        chosen = np.append(chosen, pool[order[:count]])
        if VERBOSE: print('span',count,len(chosen))
        if len(chosen) >= dimension:
            return chosen
        basis = np.linalg.qr(frame.take(chosen).T)[0]
        residual = frame.transform - frame.transform @ basis @ basis.T
        left = _Frame(frame.rows, residual).leverages(frame.rows)
        pool = np.argsort(-left)[: 4 * dimension]


def _reduced_support(frame, working, weights, share):
    kept = drop_negligible(frame.take(working), weights, share)
    indices, weights = working[kept], weights[kept]
    if len(indices) > moment_count(frame.dimension):
        frame.adopt(indices, weights)
        weights = caratheodory(frame.take(indices), weights)
        indices, weights = indices[weights > 0], weights[weights > 0]
    return indices, weights / weights.sum()
