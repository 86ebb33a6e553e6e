"""Are rewards and transitions really linear in the features? A test from samples, with its level proved.

Each sampled pair is predicted from the others (`held_out`). In a linear model none of the T residuals exceeds its
sampling error: with half of the level for rewards and half for transitions, a union bound takes L = log(10 T/level)
for rewards and L = log(2T(5S + 1)/level) for transitions. **A linear model is rejected with probability at most
`level`.** Nothing is asymptotic; the only condition is that the numbers of samples were not chosen with an eye on the
outcomes, as they are when a run stops by what it saw: use `sample_for_diagnostics`.

**By how much.** Let ζ be the largest distance of a sampled pair from the best linear fit (for transitions in total
variation). Any contrast gives ζ ≥ |E e_k|/‖c‖₁, because |Σ c_j(m_j - φ_jᵀθ)| ≤ ‖c‖₁ζ; and ζ ≤ max_k (1-h_k)|E e_k|, the
distance from one particular fit. On the event above both hold with E e_k replaced by e_k ∓ radius, for all pairs
at once. A misspecification ζ of the action values costs up to about √d·ζ/(1-γ)² on top of ε (Lattimore, Szepesvári and
Weisz 2020); with H instead of 1/(1-γ) if episodic. Here ζ = ζ_rewards + γ·ζ_transitions/(1-γ).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._numerics.inputs import number, of_type, shown, whole
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.diagnostics.assumptions import check_features, require
from bestpolicy.diagnostics.held_out import HeldOut, Residuals
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally

if TYPE_CHECKING:
    from bestpolicy.simulators import GenerativeModel


@dataclass(frozen=True)
class Misfit:
    """The held-out residuals of the rewards or of the transitions, summed up.

    Attributes
    ----------
    quantity : str
        ``"mean reward"`` or ``"next-state distribution"``.
    passed : bool
        Whether every residual is within its sampling error.
    failing : int
        Number of pairs (times steps if episodic) with a residual that is not.
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
    failing: int
    state: int
    action: int
    stage: int
    next_state: int | None
    residual: float
    radius: float
    estimate: float
    lower: float
    upper: float

    def scaled(self, scale: float) -> Misfit:
        """Return the same in another unit."""
        numbers = ("residual", "radius", "estimate", "lower", "upper")
        return replace(self, **{name: scale * getattr(self, name) for name in numbers})


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

    def sentence(self, scale: float = 1.0) -> str:
        """Say what was found, where, by how much, and what it does to a guarantee.

        Parameters
        ----------
        scale : float, optional
            Your unit of reward: high - low, if rewards were mapped from [low, high] into [0, 1].
        """
        rewards = self.rewards.scaled(scale)
        if self.tabular:
            return "Nothing to test: there are as many features as pairs, so every model is linear in them."
        if not self.tested:
            return (
                f"Cannot tell: no other pair says anything about any of the {self.pairs} sampled ones. Sample more "
                "pairs, at least one more than there are features and at least twice each."
            )
        bounds = (
            f"At the sampled pairs mean rewards are linear in the features up to {_range(rewards)}, next-state "
            f"distributions up to {_range(self.transitions)} in total variation"
        )
        factor = "√d·H²·ζ" if self.episodic else "√d·ζ/(1-γ)²"
        factor += f", and no policy loses more than {scale * self.value_limit:g}"
        _, low, high = (scale * loss for loss in self.extra_loss)
        if self.passed:
            return (
                f"No sign of misspecification ({self.tested} pairs tested with {self.samples} samples, false-alarm "
                f"level {self.level:g}). {bounds}; what has not been excluded may cost up to about {high:.2g} on top "
                f"of epsilon ({factor})."
            )
        worst = rewards if self.worst is self.rewards else self.worst
        step = f" at step {worst.stage}" if self.episodic else ""
        what = worst.quantity if worst.next_state is None else f"probability of next state {worst.next_state}"
        return (
            f"The features do not fit (false-alarm level {self.level:g}): the {what} of (state {worst.state}, action "
            f"{worst.action}){step} is {worst.residual:.3g} off what other pairs predict, at most {worst.radius:.3g} "
            f"of it by chance. So many pairs do not fit: {self.rewards.failing} of {self.tested} in their rewards, "
            f"{self.transitions.failing} in their next states. {bounds}. A policy may lose up to about "
            f"{_interval(low, high)} more than its epsilon ({factor}). Add features that tell such pairs from others."
        )


def sample_for_diagnostics(
    model: GenerativeModel, samples_per_pair: int, rng: np.random.Generator, *, max_pairs: int | None = None
) -> Tally:
    """Simulate many pairs equally often, for `check_linearity`.

    Parameters
    ----------
    model : GenerativeModel
    samples_per_pair : int
        At least 2, per step if episodic. Residuals shrink like its square root.
    rng : Generator
    max_pairs : int, optional
        If there are more allowed pairs, so many of them are drawn at random. More than d are needed; 500, or 2d if
        that is more, by default.
    """
    of_type("problem of the model", getattr(model, "problem", None), Problem)
    samples_per_pair = whole("samples_per_pair", samples_per_pair, 2)
    limit = max(500, 2 * model.problem.dimension) if max_pairs is None else whole("max_pairs", max_pairs, 1)
    of_type("rng", rng, np.random.Generator)
    pairs = model.problem.open_pairs  # what is known needs no test
    if samples_per_pair * len(pairs) * model.problem.stages > 2**62:
        raise InvalidInput(f"samples_per_pair is too large to count all samples. Got {shown(samples_per_pair)}.")
    if len(pairs) > limit:
        pairs = np.sort(rng.choice(pairs, limit, replace=False))
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
    number("level", level, above=0, below=1)
    of_type("problem", problem, Problem)
    of_type("tally", tally, Tally)
    if tally.shape != (problem.stages, len(tally.pairs), problem.states):
        raise InvalidInput("the tally does not belong to this problem: its numbers of steps or states differ.")
    if not np.isin(tally.pairs, problem.pairs).all():
        raise InvalidInput("the tally has samples of a pair that is not allowed.")
    require(check_features(problem))
    with one_thread():
        designs = [HeldOut(problem, tally, stage) for stage in range(problem.stages)]
        tested = sum(len(design.tested) for design in designs)
        count = max(tested, 1)
        tabular = len(problem.pairs) == problem.dimension or problem.is_tabular
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


def _misfit(problem: Problem, quantity: str, parts: list[Residuals], cap: float) -> Misfit:
    """Sum residuals up; `cap` bounds ζ whatever the model."""
    if not parts:
        return Misfit(quantity, True, 0, -1, -1, -1, None, 0.0, 1.0, 0.0, 0.0, cap)
    ratios = [part.sizes / part.radii for part in parts]
    most = max(range(len(parts)), key=lambda i: ratios[i].max())
    part, at = parts[most], int(ratios[most].argmax())
    state, action = problem.pair(int(part.pairs[at]))
    failing = {(part.stage, pair) for part in parts for pair in part.pairs[part.sizes > part.radii].tolist()}
    lower = max(0.0, *(float((part.shares * (part.sizes - part.radii)).max()) for part in parts))
    upper = min(cap, max(float((part.covers * (part.sizes + part.radii)).max()) for part in parts))
    return Misfit(
        quantity,
        not failing,
        len(failing),
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


def _interval(low: float, high: float) -> str:
    return f"{high:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"
