"""D-optimal weights over a great many rows, by column generation.

A design on n rows needs few of them. The weights are optimised on a *working set* of some hundred rows; the
leverages g_i of all rows under those weights then say which rows it lacks, since g_i <= d holds for every row at
the optimum [KW]_:

1. Solve for the weights on the working set, nearly exactly: digits are cheap in an interior-point method, and
   with them the rows that carry no weight stand out.
2. Compute the leverages of all rows. If max g <= (1 + gap) d, stop.
3. Rows of the working set without weight leave; the worst violators enter, no two of them nearly parallel. Near
   duplicates therefore cost nothing, and neighbours on a smooth set of features do not crowd out the others.

Rows that no optimal design can use (`support_threshold`) are not looked at again. About ten rounds are enough,
twenty where almost every row is extreme.

.. [KW] J. Kiefer, J. Wolfowitz. The equivalence of two extremum problems. Canadian Journal of Mathematics 12, 1960.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

from bestpolicy._numerics.quantised import steady
from bestpolicy.design.conditioning import Floats, row_chunks, squared_norms
from bestpolicy.design.interior_point import d_optimal_weights, support_threshold
from bestpolicy.errors import ConvergenceError

Indices: TypeAlias = NDArray[np.int64]

_MAX_ROUNDS = 300
# From here on no row leaves the working set, which rules out cycles.
_LAST_ROUND_WITH_LEAVERS = 60
# Two rows are nearly parallel when the squared cosine between them, in whitened coordinates, exceeds 1 minus this.
_NEARLY_PARALLEL = 1e-2


class Frame:
    """Coordinates z = x T of the rows x in which the information matrix of the latest design is the identity.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
        Feature vectors.
    transform : ndarray, shape (d, d)
        The matrix T.
    """

    def __init__(self, rows: Floats, transform: Floats) -> None:
        self.rows = rows
        self.transform = transform

    @property
    def dimension(self) -> int:
        return int(self.rows.shape[1])

    def points(self, indices: Indices) -> Floats:
        """Coordinates (k, d) of some rows."""
        return self.rows[indices] @ self.transform

    def information(self, indices: Indices, weights: Floats) -> Floats:
        """Information matrix (d, d) of a design in these coordinates."""
        points = self.points(indices)
        return (points * weights[:, None]).T @ points

    def adopt(self, indices: Indices, weights: Floats) -> None:
        """Change coordinates so that the information matrix of this design becomes the identity."""
        factor = np.linalg.cholesky(self.information(indices, weights))
        self.transform = np.ascontiguousarray(solve_triangular(factor, self.transform.T, lower=True).T)

    def leverages(self, rows: Floats | None = None) -> Floats:
        """Leverages |z|^2 of the given rows, by default of all of them."""
        rows = self.rows if rows is None else rows
        leverages = np.empty(len(rows))
        for chunk in row_chunks(*rows.shape):
            leverages[chunk] = squared_norms(rows[chunk] @ self.transform)
        return leverages


def optimal_weights(frame: Frame, working: Indices, weights: Floats, gap: float) -> tuple[Indices, Floats]:
    """Improve a design until no leverage exceeds (1 + gap) d.

    Parameters
    ----------
    frame : Frame
        Rows and coordinates; on return the design is adopted.
    working, weights : ndarray, shape (m,)
        Rows that span R^d and positive weights on them.
    gap : float
        Relative excess that is tolerated.

    Returns
    -------
    working, weights : ndarray, shape (k,)
        Rows and positive weights with sum 1. Most of the smaller weights are numerically zero.

    Raises
    ------
    ConvergenceError
        If the gap cannot be reached.
    """
    dimension = frame.dimension
    candidates, rows = np.arange(len(frame.rows)), frame.rows
    goal = min(gap, 1e-6) / 10
    for round_ in range(_MAX_ROUNDS):
        kept, weights = d_optimal_weights(frame.points(working), weights, goal)
        working = working[kept]
        frame.adopt(working, weights)
        leverages = frame.leverages(rows)
        worst = float(leverages.max())
        if worst <= (1 + gap) * dimension:
            return working, weights
        possible = leverages >= support_threshold(worst, dimension)
        if possible.sum() < len(possible) / 2:
            candidates, rows, leverages = candidates[possible], rows[possible], leverages[possible]
        entering = np.setdiff1d(_violators(frame, candidates, leverages), working)
        if len(entering) == 0:
            goal /= 10
            continue
        if round_ < _LAST_ROUND_WITH_LEAVERS:
            stay = _carry_weight(frame.points(working), weights)
            working, weights = working[stay], weights[stay]
        working = np.append(working, entering)
        weights = np.append(0.9 * weights, np.full(len(entering), 0.1 / len(entering)))
    raise ConvergenceError(
        f"the design did not reach a gap of {gap:.1e} in {_MAX_ROUNDS} rounds; it is at "
        f"{worst / dimension - 1:.1e}. Ask for a larger tolerance."
    )


def _violators(frame: Frame, candidates: Indices, leverages: Floats) -> Indices:
    """The rows of largest leverage above d, no two of them nearly parallel."""
    dimension = frame.dimension
    limit = max(20, 5 * dimension)
    top = _largest(leverages, 8 * limit)
    # A violation far below the worst one says little yet: the next solution moves it.
    level = dimension + 0.05 * (leverages[top].max() - dimension)
    top = top[leverages[top] > level]
    return spread(frame, candidates[top], leverages[top], limit)


def _carry_weight(points: Floats, weights: Floats) -> NDArray[np.bool_]:
    """Tell support points from the others by what is larger on the central path: weight or slack."""
    leverages = squared_norms(points)
    carries: NDArray[np.bool_] = weights * len(weights) >= 1 - leverages / leverages.max()
    return carries


def _largest(values: Floats, count: int) -> Indices:
    """Positions of the `count` largest values, in no particular order."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(-steady(values), count)[:count]


def spread(frame: Frame, candidates: Indices, leverages: Floats, limit: int) -> Indices:
    """At most `limit` candidates by decreasing leverage, without those nearly parallel to an earlier one."""
    candidates = candidates[np.argsort(-steady(leverages), kind="stable")]
    points = frame.points(candidates)
    points /= np.sqrt(squared_norms(points))[:, None]
    free = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    for position in range(len(candidates)):
        if free[position] and len(chosen) < limit:
            chosen.append(position)
            free &= (points @ points[position]) ** 2 < 1 - _NEARLY_PARALLEL
    return candidates[chosen]


def initial_working_set(frame: Frame) -> Indices:
    """Rows of large leverage under uniform weights, and enough others to span R^d.

    The frame must be that of `well_conditioned`, in which the Gram matrix of all rows is the identity.
    """
    count = len(frame.rows)
    leverages = frame.leverages()
    limit = max(200, 8 * frame.dimension)
    # Regularly spaced rows join the pool because the top may consist of copies of one row.
    pool = np.union1d(_largest(leverages, 4 * limit), np.arange(0, count, max(1, count // (4 * limit))))
    pool = pool[leverages[pool] > 0]
    top = spread(frame, pool, leverages[pool], limit)
    return np.union1d(top, _spanning_rows(frame, top))


def _spanning_rows(frame: Frame, pool: Indices) -> Indices:
    """Return d rows that span R^d, from the pool as far as possible.

    With the identity for Gram matrix of all n rows, the squared distances of the rows from a subspace of
    dimension r add up to d - r. So some row is at a distance of at least 1 / sqrt(n), and a row much nearer than
    that need not be taken.
    """
    dimension = frame.dimension
    significant = 0.1 / np.sqrt(len(frame.rows))
    chosen = np.zeros(0, dtype=np.int64)
    complement = np.eye(dimension)
    while True:
        factor, order = qr(complement @ frame.points(pool).T, mode="r", pivoting=True)
        count = np.count_nonzero(np.abs(np.diag(factor)) >= significant)
        chosen = np.append(chosen, pool[order[:count]])
        if len(chosen) >= dimension:
            return chosen[:dimension]
        basis = np.linalg.qr(frame.points(chosen).T)[0]
        complement = np.eye(dimension) - basis @ basis.T
        distances = Frame(frame.rows, frame.transform @ complement).leverages()
        pool = _largest(distances, 4 * dimension)
