"""G-optimal designs: seconds, certified gap and support, and cvxpy's log_det on the same features in the same run."""

from __future__ import annotations

import warnings

import cvxpy
import numpy as np

from benchmarks.timing import CLOCK, best_of, line, one_thread, timed
from bestpolicy.design import Design, g_optimal_design

TOLERANCE = 1e-6
PEER_SECONDS = 120.0  # a peer that takes longer is stopped, and the ratio is a lower bound


def gaussian(rows: int, columns: int) -> np.ndarray:
    """Return independent Gaussian features."""
    return np.random.default_rng(0).standard_normal((rows, columns))


def families(rows: int, columns: int) -> dict[str, np.ndarray]:
    """Return feature sets that are hard in different ways."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((rows, columns))
    sphere = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    base = rng.standard_normal((rows // 100, columns))
    points, centres = rng.random((rows, 3)), rng.random((columns, 3))
    distances = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * points @ centres.T
    return {
        "simplex": rng.dirichlet(np.ones(columns), rows),
        "one-hot": np.eye(columns)[rng.integers(0, columns, rows)],
        "radial basis": np.exp(-2 * np.maximum(distances, 0)),
        "near duplicates (1e-9)": base[rng.integers(0, len(base), rows)] + 1e-9 * normal,
        "columns from 1e-8 to 1e8": normal * np.logspace(-8, 8, columns),
        "unit sphere": sphere,
        "unit ball": sphere * rng.random((rows, 1)) ** (1 / columns),
    }


def cvxpy_seconds(features: np.ndarray) -> tuple[float, str, float]:
    """Return the time, name and gap of the faster open solver; building the problem is not counted."""
    rows, columns = features.shape
    moments = np.einsum("ni,nj->ijn", features, features).reshape(columns**2, rows)
    best = (float("inf"), "", float("inf"))
    limits = {"CLARABEL": {"time_limit": PEER_SECONDS}, "SCS": {"eps": 1e-6, "time_limit_secs": PEER_SECONDS}}
    for solver, options in limits.items():
        weights = cvxpy.Variable(rows, nonneg=True)
        information = cvxpy.reshape(moments @ weights, (columns, columns), order="C")
        problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.log_det(information)), [cvxpy.sum(weights) == 1])
        problem.get_problem_data(solver)  # compiles, and keeps what it compiled
        started = CLOCK()
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")
            try:
                problem.solve(solver=solver, **options)
            except cvxpy.SolverError:
                continue
        seconds = CLOCK() - started
        if seconds < best[0] and weights.value is not None:
            best = (seconds, solver, _gap(features, np.maximum(weights.value, 0)))
    return best


def _gap(features: np.ndarray, weights: np.ndarray) -> float:
    weights = weights / weights.sum()
    leverages = np.einsum("ni,ij,nj->n", features, np.linalg.inv((features.T * weights) @ features), features)
    return float(leverages.max() / features.shape[1] - 1)


def _describe(design: Design) -> str:
    return f"gap {design.worst_leverage / design.dimension - 1:.1e}, {len(design.indices)} points"


def main() -> None:
    """Print the table: cvxpy on the two smaller sets, targets in seconds on the larger, then the hard families."""
    g_optimal_design(np.eye(2))  # what the first call loads is not measured
    for rows, columns, target in ((1000, 10, 5), (5000, 20, 100)):
        features = gaussian(rows, columns)
        seconds, design = best_of(5, lambda f=features: g_optimal_design(f, tolerance=TOLERANCE))
        peer, solver, gap = cvxpy_seconds(features)
        ratio = f"{peer / seconds:.0f} × faster than {solver} ({peer:.2f} s, gap {gap:.0e})"
        more = f"{_describe(design)}; {ratio if solver else 'no solver of cvxpy answered'}"
        # A ratio to a peer that failed would prove nothing.
        met = peer / seconds >= target if solver else None
        line(f"design {rows} × {columns} gaussian", seconds, f"≥ {target} ×", met, more)
    for rows, columns in ((100_000, 50), (1_000_000, 20)):
        features = gaussian(rows, columns)
        seconds, design = best_of(2, lambda f=features: g_optimal_design(f, tolerance=TOLERANCE))
        timed(f"design {rows} × {columns} gaussian", seconds, 2.0, _describe(design))
    for name, features in families(10_000, 20).items():
        seconds, design = best_of(2, lambda f=features: g_optimal_design(f, tolerance=TOLERANCE))
        line(f"design 10000 × 20 {name}", seconds, more=_describe(design))


if __name__ == "__main__":
    main()
