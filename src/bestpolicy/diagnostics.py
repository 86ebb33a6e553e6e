"""Are rewards and transitions really linear in the features? A test from samples, with its level proved.

Let m_k be the mean, at the k-th sampled pair, of something in [0, 1]: the reward, or the indicator of a next state.
If m = Φθ for some θ, then the mean of pair k follows from those of the others. With n_k samples of pair k, G = Σ n_k
φ_kφ_kᵀ and leverages h_k = n_k φ_kᵀG⁻¹φ_k < 1, its least-squares prediction from the *other* pairs misses by

    e_k = m̂_k - φ_kᵀθ̂₍₋ₖ₎ = Σ_j c_j m̂_j,    c_j = (1{j=k} - n_j φ_kᵀG⁻¹φ_j)/(1 - h_k),    Σ_j c_j φ_j = 0 .

The *held-out residual* e_k is a weighted sum of independent samples with weights c_j/n_j that do not depend on the
outcomes. It has mean zero in every linear model, and Σ_j c_j²/n_j = 1/(n_k(1-h_k)) =: v. Let B = max_j |c_j|/n_j,
V̂ = Σ_j c_j² s_j²/n_j with the sample variances s_j², and a = max_j n_j/(n_j-1). Whatever the model, |e_k - E e_k| is at
most

* √(vL/2) except with probability 2e⁻ᴸ (Hoeffding);
* √(2LV) + BL/3 except with probability 2e⁻ᴸ (Bernstein), where √V ≤ √(V̂ + aB²L/2) + B√(aL/2) except with probability
  e⁻ᴸ: Z = V̂/B² is a sum over pairs of (weights ≤ 1) · n_j s_j², so that one sample changes it by at most 1 and the
  squared changes sum to at most aZ (Maurer and Pontil 2009, proof of Theorem 10, applied pair by pair), which gives
  P(EZ - Z > t) ≤ exp(-t²/(2a EZ)).

The smaller of the two radii fails with probability at most 5e⁻ᴸ. For all next states together, e_k is a vector whose
L1 norm around its mean is at most (√S + √(2L))√v except with probability e⁻ᴸ (its expectation by Jensen and
Cauchy-Schwarz, the deviation by McDiarmid: one sample moves it by at most 2|c_j|/n_j). With T residuals in all, half of
the level for rewards and half for transitions, a union bound takes L = log(10 T/level) for rewards and L =
log(2T(5S + 1)/level) for transitions. **A linear model is rejected with probability at most `level`.** Nothing is
asymptotic; the only condition is that the numbers of samples were not chosen with an eye on the outcomes, as they are
when a run stops by what it saw: use `sample_for_diagnostics`.

**By how much.** Let ζ be the largest distance of a sampled pair from the best linear fit (for transitions in total
variation). Any contrast gives ζ ≥ |E e_k|/‖c‖₁, because |Σ c_j(m_j - φ_jᵀθ)| ≤ ‖c‖₁ζ; and ζ ≤ max_k (1-h_k)|E e_k|, the
distance from one particular fit. On the event above both hold with E e_k replaced by e_k ∓ radius, for all pairs
at once. A misspecification ζ of the action values costs up to about √d·ζ/(1-γ)² on top of ε (Lattimore, Szepesvári and
Weisz 2020); with H instead of 1/(1-γ) if episodic. Here ζ = ζ_rewards + γ·ζ_transitions/(1-γ).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy.assumptions import check_features, require
from bestpolicy.errors import InvalidInput
from bestpolicy.estimation import Pulls, Tally
from bestpolicy.problem import FloatArray, IntArray, Problem
from bestpolicy.threads import one_thread

if TYPE_CHECKING:
    from bestpolicy.simulators import GenerativeModel

_BLOCK = 256  # residuals worked out in one go
_DETERMINED = 1e-8  # 1 - leverage from which on other pairs say something about a pair


@dataclass(frozen=True)
class Misfit:
    """The held-out residuals of the rewards or of the transitions, summed up.

    Attributes
    ----------
    quantity : str
        ``"mean reward"`` or ``"next-state distribution"``.
    passed : bool
        Whether every residual is within its sampling error.
    state, action, stage : int
        The pair whose residual is largest in units of its error (-1 if nothing could be tested).
    next_state : int or None
        Of transitions: the next state whose probability is off, or None if it is the distribution as a whole.
    residual, radius : float
        That residual, and what it cannot exceed in a linear model. Of a distribution as a whole: in L1 norm.
    estimate, lower, upper : float
        Misspecification ζ at the sampled pairs, with its bounds (rewards: ≤ 1/2, transitions in total variation: ≤ 1).
    """

    quantity: str
    passed: bool
    state: int
    action: int
    stage: int
    next_state: int | None
    residual: float
    radius: float
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class LinearityReport:
    """Verdict on whether a model is linear in its features.

    Attributes
    ----------
    level : float
        Probability, at most, with which a linear model fails, and with which any of the bounds is wrong.
    pairs, tested : int
        Pairs (times steps if episodic) with samples, and those among them that the others say something about.
    samples : int
    tabular : bool
        Whether there are as many dimensions as pairs, so that every model is linear in the features.
    rewards, transitions : Misfit
    dimension : int
    value_limit : float
        1/(1-γ) or H.
    episodic : bool
    """

    level: float
    pairs: int
    tested: int
    samples: int
    tabular: bool
    rewards: Misfit
    transitions: Misfit
    dimension: int
    value_limit: float
    episodic: bool

    @property
    def verdict(self) -> str:
        """``"passed"``, ``"failed"`` or ``"cannot tell"``."""
        if not (self.rewards.passed and self.transitions.passed):
            return "failed"
        return "passed" if self.tested or self.tabular else "cannot tell"

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against linearity; see `verdict` for whether anything was tested."""
        return self.verdict != "failed"

    @property
    def worst(self) -> Misfit:
        """The part that fits worse, in units of its sampling error."""
        return max(self.rewards, self.transitions, key=lambda part: part.residual / part.radius)

    @property
    def misspecification(self) -> tuple[float, float, float]:
        """Estimate, lower and upper bound of ζ = ζ_rewards + γ·ζ_transitions/(1-γ) at the sampled pairs."""
        a, b, weight = self.rewards, self.transitions, self.value_limit - 1  # which is γ/(1-γ), or H - 1
        return a.estimate + weight * b.estimate, a.lower + weight * b.lower, a.upper + weight * b.upper

    @property
    def extra_loss(self) -> tuple[float, float, float]:
        """What each of these three may cost on top of ε, up to constants; no policy loses more than `value_limit`."""
        factor = sqrt(self.dimension) * self.value_limit**2
        estimate, lower, upper = (min(factor * zeta, self.value_limit) for zeta in self.misspecification)
        return estimate, lower, upper

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        summary = {"verdict": self.verdict, "sentence": self.sentence(), "passed": self.passed}
        return {**summary, **asdict(self), "misspecification": self.misspecification, "extra_loss": self.extra_loss}

    def sentence(self) -> str:
        """Say what was found, where, by how much, and what it does to a guarantee."""
        if self.tabular:
            return "Nothing to test: there are as many features as pairs, so every model is linear in them."
        if not self.tested:
            return (
                f"Cannot tell: no other pair says anything about any of the {self.pairs} sampled ones. Sample more "
                "pairs, at least one more than there are features and at least twice each."
            )
        bounds = (
            f"At the sampled pairs mean rewards are linear in the features up to {_range(self.rewards)}, next-state "
            f"distributions up to {_range(self.transitions)} in total variation"
        )
        factor = "√d·H²·ζ" if self.episodic else "√d·ζ/(1-γ)²"
        factor += f", and no policy loses more than {self.value_limit:g}"
        _, low, high = self.extra_loss
        if self.passed:
            return (
                f"No sign of misspecification ({self.tested} pairs tested with {self.samples} samples, false-alarm "
                f"level {self.level:g}). {bounds}; what has not been excluded may cost up to about {high:.2g} on top "
                f"of epsilon ({factor})."
            )
        worst = self.worst
        step = f" at step {worst.stage}" if self.episodic else ""
        what = worst.quantity if worst.next_state is None else f"probability of next state {worst.next_state}"
        return (
            f"The features do not fit (false-alarm level {self.level:g}): the {what} of (state {worst.state}, action "
            f"{worst.action}){step} is {worst.residual:.3g} off what other pairs predict, at most {worst.radius:.3g} "
            f"of it by chance. {bounds}. A policy may lose up to about {low:.2g} to {high:.2g} more than its epsilon "
            f"({factor}). Add features that tell this pair from others."
        )


def sample_for_diagnostics(
    model: GenerativeModel, samples_per_pair: int, rng: np.random.Generator, *, max_pairs: int = 500
) -> Tally:
    """Simulate many pairs equally often, for `check_linearity`.

    Parameters
    ----------
    model : GenerativeModel
    samples_per_pair : int
        At least 2, per step if episodic. Residuals shrink like its square root.
    rng : Generator
    max_pairs : int
        If there are more allowed pairs, so many of them are drawn at random. More than d are needed.
    """
    if samples_per_pair < 2 or max_pairs < 1:
        raise InvalidInput("samples_per_pair must be at least 2 and max_pairs at least 1.")
    pairs = model.problem.pairs
    if len(pairs) > max_pairs:
        pairs = np.sort(rng.choice(pairs, max_pairs, replace=False))
    return model.sample(Pulls(pairs, np.full((model.problem.stages, len(pairs)), samples_per_pair)), rng)


def check_linearity(problem: Problem, tally: Tally, *, level: float = 0.01) -> LinearityReport:
    """Test whether mean rewards and next-state distributions are linear in the features.

    Parameters
    ----------
    problem : Problem
        Its features must have full rank and span the constants, as `bestpolicy check` tests.
    tally : Tally
        Samples of more pairs than there are features; pairs with a single sample are left out. How many samples a
        pair has must not depend on outcomes.
    level : float
        Probability, at most, of rejecting a linear model.

    Returns
    -------
    LinearityReport
    """
    if not 0 < level < 1:
        raise InvalidInput(f"level must lie strictly between 0 and 1. Got {level!r} instead.")
    if tally.next_counts.shape != (problem.stages, len(tally.pairs), problem.states):
        raise InvalidInput("the tally does not belong to this problem: its numbers of steps or states differ.")
    if not np.isin(tally.pairs, problem.pairs).all():
        raise InvalidInput("the tally has samples of a pair that is not allowed.")
    require(check_features(problem))
    with one_thread():
        designs = [_HeldOut(problem, tally, stage) for stage in range(problem.stages)]
        tested = sum(len(design.tested) for design in designs)
        count = max(tested, 1)
        tabular = len(problem.pairs) == problem.dimension
        half = 2.0 * count / level
        rewards = [part for design in designs for part in design.reward_residuals(log(5 * half))]
        states = problem.states
        transitions = [part for design in designs for part in design.next_state_residuals(log((5 * states + 1) * half))]
    return LinearityReport(
        level=level,
        pairs=sum(len(design.index) for design in designs),
        tested=tested,
        samples=tally.samples,
        tabular=tabular,
        rewards=_misfit(problem, "mean reward", rewards, 0.0 if tabular else 0.5),
        transitions=_misfit(problem, "next-state distribution", transitions, 0.0 if tabular else 1.0),
        dimension=problem.dimension,
        value_limit=float(problem.value_limits[0]),
        episodic=problem.horizon is not None,
    )


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Some held-out residuals of a stage, all arrays (b,).

    Attributes
    ----------
    stage : int
    pairs, next_states : int array
        Next state -1: not about a single one.
    sizes, radii : array
        Absolute residuals and the bounds on their errors.
    shares : array
        What a unit of E e_k implies for ζ at least: 1/‖c‖₁, or half of it for a residual in L1 norm.
    covers : array
        What a unit of E e_k allows for ζ at most: 1 - h_k, or half of it; 0 if the residual covers only a part.
    """

    stage: int
    pairs: IntArray
    next_states: IntArray
    sizes: FloatArray
    radii: FloatArray
    shares: FloatArray
    covers: FloatArray


class _HeldOut:
    """The contrasts that predict each pair of a stage from the others.

    Attributes
    ----------
    index : int array (K,)
        Positions in the tally of the pairs with two samples or more.
    tested : int array
        Positions in `index` of the pairs that the others determine.
    """

    def __init__(self, problem: Problem, tally: Tally, stage: int) -> None:
        self.tally, self.stage = tally, stage
        self.index = np.flatnonzero(tally.pulls[stage] >= 2)
        self.counts = tally.pulls[stage, self.index].astype(np.float64)
        scaled = (
            np.sqrt(self.counts)[:, None] * problem.features.reshape(-1, problem.dimension)[tally.pairs[self.index]]
        )
        lengths = np.sqrt((scaled**2).sum(axis=0))
        scaled /= np.where(lengths > 0, lengths, 1.0)
        left, singular, _ = np.linalg.svd(scaled, full_matrices=False)
        precision = max(scaled.shape) * np.finfo(np.float64).eps
        self.basis = left[:, singular > precision * singular.max(initial=0.0)]
        self.slack = 1.0 - (self.basis**2).sum(axis=1)  # 1 - h
        self.tested = np.flatnonzero(self.slack > _DETERMINED)

    def contrasts(self, rows: IntArray) -> FloatArray:
        """Coefficients c of the held-out residuals of some pairs, (b, K)."""
        projection = -self.basis[rows] @ self.basis.T
        projection[np.arange(len(rows)), rows] += 1.0
        roots = np.sqrt(self.counts)
        coefficients: FloatArray = projection * roots / (roots[rows] * self.slack[rows])[:, None]
        return coefficients

    def reward_residuals(self, confidence: float) -> list[_Residuals]:
        """Return how far mean rewards are from their predictions."""
        sums = self.tally.reward_sums[self.stage, self.index]
        squares = self.tally.squared_rewards[self.stage, self.index]
        variances = np.clip(squares - sums**2 / self.counts, 0.0, None) / (self.counts - 1)
        found = []
        for rows in self._blocks():
            contrasts = self.contrasts(rows)
            sizes = np.abs(contrasts @ (sums / self.counts))
            radii = sampling_error(contrasts, self.counts, variances[:, None], confidence)[:, 0]
            whole = np.full(len(rows), -1)
            shares = 1.0 / np.abs(contrasts).sum(axis=1)
            found.append(_Residuals(self.stage, self._pairs(rows), whole, sizes, radii, shares, self.slack[rows]))
        return found

    def next_state_residuals(self, confidence: float) -> list[_Residuals]:
        """Return how far next-state distributions are from their predictions: state by state, and in L1 norm."""
        shares_of = self.tally.next_counts[self.stage, self.index] / self.counts[:, None]
        variances = shares_of * (1 - shares_of) * (self.counts / (self.counts - 1))[:, None]
        found = []
        for rows in self._blocks():
            contrasts, pairs, every = self.contrasts(rows), self._pairs(rows), np.arange(len(rows))
            sizes = np.abs(contrasts @ shares_of)
            radii = sampling_error(contrasts, self.counts, variances, confidence)
            shares = 1.0 / np.abs(contrasts).sum(axis=1)
            top = (sizes / radii).argmax(axis=1)
            one = _Residuals(self.stage, pairs, top, sizes[every, top], radii[every, top], shares, np.zeros(len(rows)))
            spread = np.sqrt((contrasts**2 / self.counts).sum(axis=1))
            norm_radii = (np.sqrt(shares_of.shape[1]) + np.sqrt(2 * confidence)) * spread
            whole = np.full(len(rows), -1)
            norms = sizes.sum(axis=1)
            found += [one, _Residuals(self.stage, pairs, whole, norms, norm_radii, shares / 2, self.slack[rows] / 2)]
        return found

    def _blocks(self) -> list[IntArray]:
        return [self.tested[begin : begin + _BLOCK] for begin in range(0, len(self.tested), _BLOCK)]

    def _pairs(self, rows: IntArray) -> IntArray:
        pairs: IntArray = self.tally.pairs[self.index[rows]]
        return pairs


def sampling_error(contrasts: FloatArray, counts: FloatArray, variances: FloatArray, confidence: float) -> FloatArray:
    """Bound |Σ_j c_j m̂_j - its mean| except with probability 5e⁻ᴸ each, for means of samples in [0, 1].

    Parameters
    ----------
    contrasts : array (b, K)
        The coefficients c.
    counts : array (K,)
        Samples per pair, at least 2.
    variances : array (K, F)
        Sample variances of F quantities.
    confidence : float
        L.

    Returns
    -------
    array (b, F)
    """
    weights = contrasts**2 / counts
    largest = (np.abs(contrasts) / counts).max(axis=1)[:, None]
    correction = (counts / (counts - 1)).max() * confidence / 2
    deviation = np.sqrt(weights @ variances + correction * largest**2) + largest * np.sqrt(correction)
    bernstein = np.sqrt(2 * confidence) * deviation + largest * confidence / 3
    hoeffding = np.sqrt(weights.sum(axis=1) * confidence / 2)[:, None]
    radii: FloatArray = np.minimum(bernstein, hoeffding)
    return radii


def _misfit(problem: Problem, quantity: str, parts: list[_Residuals], cap: float) -> Misfit:
    """Sum residuals up; `cap` bounds ζ whatever the model."""
    if not parts:
        return Misfit(quantity, True, -1, -1, -1, None, 0.0, 1.0, 0.0, 0.0, cap)
    ratios = [part.sizes / part.radii for part in parts]
    most = max(range(len(parts)), key=lambda i: ratios[i].max())
    part, at = parts[most], int(ratios[most].argmax())
    state, action = problem.pair(int(part.pairs[at]))
    lower = max(0.0, *(float((part.shares * (part.sizes - part.radii)).max()) for part in parts))
    upper = min(cap, max(float((part.covers * (part.sizes + part.radii)).max()) for part in parts))
    return Misfit(
        quantity,
        bool(ratios[most][at] <= 1.0),
        state,
        action,
        part.stage,
        None if part.next_states[at] < 0 else int(part.next_states[at]),
        float(part.sizes[at]),
        float(part.radii[at]),
        min(max(lower, float(part.shares[at] * part.sizes[at])), upper),
        lower,
        upper,
    )


def _range(part: Misfit) -> str:
    return f"{part.upper:.2g}" if part.lower == 0 else f"between {part.lower:.2g} and {part.upper:.2g}"
