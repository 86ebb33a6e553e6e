"""Is it a linear MDP? Each assumption of the theory, measured.

A linear MDP has transition probabilities φ(s,a)ᵀμ(s') and mean rewards φ(s,a)ᵀθ. What that takes:

* the features of the allowed pairs span R^d;
* the all-ones vector lies in the column space of the features. Rows of probabilities sum to 1, so
  φ(s,a)ᵀ Σ_s' μ(s') = 1 for every pair: without such a vector no linear MDP with these features exists;
* rows are distributions and mean rewards lie in [0, 1];
* the norms ‖φ‖ ≤ 1, ‖θ‖ ≤ √d, ‖Σ_s |μ(s)|‖ ≤ √d [TJP Sec. 3.1]. These need no care by the user: the algorithms
  work in whitened coordinates, in which all that the proofs use holds by itself (up to the design's tolerance).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsFloat, SupportsInt
from weakref import WeakKeyDictionary

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, Sparse, enough_memory
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.design import g_optimal_design, rank_reduction, whiten
from bestpolicy.design.whitening import whitening_transform
from bestpolicy.errors import InvalidInput
from bestpolicy.problem.problem import Problem

TOLERANCE = 1e-8
_CHUNK = 2**22  # entries of the transition matrix looked at in one go
_FEATURE_FINDINGS: WeakKeyDictionary[Problem, list[Finding]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Finding:
    """One assumption with its measured value.

    Attributes
    ----------
    name : str
    measured, limit : float
    relation : str
        ``"≤"`` or ``"≥"`` or ``"="``: measured relation limit is what is wanted.
    passed : bool
    required : bool
        False for norms as printed in the paper, which whitening makes irrelevant.
    where : str
        The worst (state, action), if there is one.
    remedy : str
        What to do if it fails.
    """

    name: str
    measured: float
    relation: str
    limit: float
    passed: bool
    required: bool
    where: str
    remedy: str

    def sentence(self) -> str:
        """Say what is wrong and what to do."""
        place = f" at {self.where}" if self.where else ""
        return f"{self.name}: {self.measured:.6g}{place}, expected {self.relation} {self.limit:g}. {self.remedy}"


def check_features(problem: Problem) -> list[Finding]:
    """Check what can be known before any sample: rank and all-ones."""
    if problem not in _FEATURE_FINDINGS:
        if problem.columns is not None:  # one-hot features span everything, and sum to 1
            _FEATURE_FINDINGS[problem] = _feature_findings(problem, problem.dimension, np.zeros(1))
        else:
            with enough_memory("examining the features", problem.features.nbytes), one_thread():
                _FEATURE_FINDINGS[problem] = _examine_features(problem)
    return list(_FEATURE_FINDINGS[problem])


def _examine_features(problem: Problem) -> list[Finding]:
    features = problem.pair_features
    try:
        transform, _ = whitening_transform(features)
    except InvalidInput:
        features = features @ rank_reduction(features)
        transform, _ = whitening_transform(features)
    return _feature_findings(problem, features.shape[1], np.abs(_residual_of_ones(features, transform)))


def _feature_findings(problem: Problem, rank: int, misfit: FloatArray) -> list[Finding]:
    d = problem.dimension
    basis = "Express those of the allowed pairs in a basis of their span: features @ rank_reduction(features[mask])"
    distance = "distance of all-ones from the span of the features"
    append = "No linear MDP has these features; append a constant feature, or make each φ(s,a) sum to 1."
    place = _pair_name(problem, int(misfit.argmax()))
    return [
        Finding("rank of the features", rank, "=", d, rank == d, True, "", f"{basis} (bestpolicy.design)."),
        _required(distance, misfit.max(), "≤", TOLERANCE, misfit.max(), place, append),
    ]


def _residual_of_ones(features: FloatArray, transform: FloatArray) -> FloatArray:
    """All-ones minus its projection on the column space of features that `transform` whitens, (n,)."""
    residual = np.ones(len(features))
    for _ in range(3):  # the repetitions refine what rounding left over
        residual = residual - features @ (transform @ (transform.T @ (features.T @ residual)))
    return residual


def check_model(problem: Problem, theta: FloatArray, mu: FloatArray | Sparse) -> list[Finding]:
    """Check that (θ, μ) with these features is a linear MDP; θ is (stages, d), μ is (stages, S, d).

    Of a tabular problem μ may be a tuple of sparse (S, d), one for each stage.
    """
    if isinstance(mu, tuple):
        return _examine_table(problem, theta, mu)
    with enough_memory("examining the model", problem.features.nbytes + mu.nbytes), one_thread():
        return _examine_model(problem, theta, mu)


def _examine_model(problem: Problem, theta: FloatArray, mu: FloatArray) -> list[Finding]:
    features = problem.pair_features
    sums = np.abs(features @ mu.sum(axis=1).T - 1.0)
    return _model_findings(problem, sums, features @ theta.T, _smallest_probability(problem, mu))


def _examine_table(problem: Problem, theta: FloatArray, mu: Sparse) -> list[Finding]:
    columns = problem.columns
    if columns is None:
        raise InvalidInput("a sparse mu needs one-hot features. Give it as an array.")
    steps = {id(one): one for one in mu}  # most tables are the same at every step
    sums = {key: np.abs(one.sum(axis=0) - 1.0)[columns] for key, one in steps.items()}
    lowest = {key: one.min(axis=0).toarray().ravel()[columns] for key, one in steps.items()}
    least = [float(lowest[id(one)].min()) for one in mu]
    stage = int(np.argmin(least))
    smallest = (least[stage], int(lowest[id(mu[stage])].argmin()), stage)
    all_sums = np.stack([sums[id(one)] for one in mu], axis=1)
    rescale, correct = "Rescale this row of the transitions.", "Correct this row of the transitions."
    return _model_findings(problem, all_sums, theta[:, columns].T, smallest, rescale, correct)


def _model_findings(
    problem: Problem,
    sums: FloatArray,
    rewards: FloatArray,
    smallest: tuple[float, int, int],
    rescale: str = "Rescale mu so that φ(s,a)·Σ mu = 1 for every pair.",
    correct: str = "Correct mu: φ(s,a)·mu(s') must not be negative.",
) -> list[Finding]:
    """Judge distances of the sums of rows from 1 (n, stages), mean rewards (n, stages) and the least probability."""
    lowest, lowest_at, lowest_stage = smallest
    row_sums = "largest |sum of a row of transition probabilities - 1|"
    map_rewards = "Map rewards affinely into [0, 1] (epsilon scales with them)."
    largest_sum, least, most = (
        _place(problem, *np.unravel_index(at, rewards.shape))
        for at in (sums.argmax(), rewards.argmin(), rewards.argmax())
    )
    where = _place(problem, lowest_at, lowest_stage)
    return [
        _required(row_sums, sums.max(), "≤", TOLERANCE, sums.max(), largest_sum, rescale),
        _required("smallest transition probability", lowest, "≥", 0.0, -lowest, where, correct),
        _required("smallest mean reward", rewards.min(), "≥", 0.0, -rewards.min(), least, map_rewards),
        _required("largest mean reward", rewards.max(), "≤", 1.0, rewards.max() - 1, most, map_rewards),
    ]


def _required(
    name: str, measured: SupportsFloat, relation: str, limit: float, excess: SupportsFloat, where: str, remedy: str
) -> Finding:
    """Return a finding that passes unless the limit is missed by more than the tolerance."""
    return Finding(name, float(measured), relation, limit, float(excess) <= TOLERANCE, True, where, remedy)


def check_norms(
    problem: Problem, theta: FloatArray | None = None, mu: FloatArray | None = None, *, tolerance: float = 1e-3
) -> list[Finding]:
    """Measure the norms, as given and after whitening; needs features of full rank. None of a very large table."""
    if problem.given_features is None and problem.is_large:
        return []
    features = problem.pair_features
    whitening = whiten(features, g_optimal_design(features, tolerance=tolerance))
    d = problem.dimension
    white_theta, white_mu = (None if part is None else whitening.parameters(part) for part in (theta, mu))
    limit = np.sqrt((1 + tolerance) * d)
    return [
        *_norms(problem, features, theta, mu, 1.0, np.sqrt(d), "as given"),
        *_norms(problem, whitening.features(features), white_theta, white_mu, 1.0 + 1e-9, limit, "whitened"),
    ]


def require(findings: list[Finding]) -> None:
    """Raise InvalidInput for the first required finding that failed."""
    for finding in findings:
        if finding.required and not finding.passed:
            raise InvalidInput(finding.sentence())


def _norms(
    problem: Problem,
    features: FloatArray,
    theta: FloatArray | None,
    mu: FloatArray | None,
    feature_limit: float,
    limit: float,
    coordinates: str,
) -> list[Finding]:
    lengths = np.sqrt(np.einsum("nd,nd->n", features, features))
    measured = [("largest ‖φ‖", float(lengths.max()), feature_limit, _pair_name(problem, int(lengths.argmax())))]
    if theta is not None:
        measured.append(("‖θ‖", float(np.linalg.norm(theta, axis=-1).max()), limit, ""))
    if mu is not None:
        absolute = np.linalg.norm(np.abs(mu).sum(axis=-2), axis=-1)
        measured.append(("‖Σ|μ|‖", float(absolute.max()), limit, ""))
    remedy = "Nothing to do: the algorithms whiten the features themselves."
    return [
        Finding(f"{name} ({coordinates})", value, "≤", float(bound), bool(value <= bound + 1e-12), False, where, remedy)
        for name, value, bound, where in measured
    ]


def _smallest_probability(problem: Problem, mu: FloatArray) -> tuple[float, int, int]:
    """Return the smallest φᵀμ(s') over allowed pairs, next states and stages, with its pair and stage."""
    features = problem.pair_features
    huge = len(features) * mu[..., 0].size > 2**28
    if huge and features.min() >= 0 and mu.min() >= 0:
        # No product can be negative; a bound suffices where the full matrix would be huge.
        return 0.0, 0, 0
    best = (np.inf, 0, 0)
    rows = max(1, _CHUNK // problem.states)
    for stage in range(problem.stages):
        for begin in range(0, len(features), rows):
            lowest = (features[begin : begin + rows] @ mu[stage].T).min(axis=1)
            at = int(lowest.argmin())
            if lowest[at] < best[0]:
                best = (float(lowest[at]), begin + at, stage)
    return best


def _pair_name(problem: Problem, position: int) -> str:
    state, action = problem.pair(int(problem.pairs[position]))
    return f"(state {state}, action {action})"


def _place(problem: Problem, position: SupportsInt, stage: SupportsInt) -> str:
    return _pair_name(problem, int(position)) + (f" at step {int(stage)}" if problem.horizon is not None else "")
