"""Which tests run, what the past may choose for them, and who spends which share of δ.

The first test is fixed before the first sample and sees all of them. Whenever the end is in sight, the samples so far
fix a new past (a *lag*) and with it one test of every rule in the table below; these start from nothing, on the samples
to come only. When to do so is a matter of efficiency alone: any stopping time is as valid, because each test spends a
share of δ that was fixed beforehand:

    test of all samples   (1 - lag_share)·δ          Theorem T
    tests of lag j        lag_share·δ/(j(j+1))       shared between the rules as the table says

These sum to at most δ. A test that is dropped stays spent. The lemmas of `deviations` need Γ, and Theorem P needs its
policy, to be fixed before the samples that they are used on, not before *all* samples: what they say of a lag holds
conditionally on its past, hence also without condition. Everything else is Theorem T word for word, with "before
sampling" read as "before the lag".

**Why it pays.** The price of knowing *all* directions at once is log det(I + Γ⁻¹Σ), of order d. But only the
directions y(s,a) of the smallest gaps decide, and those are known roughly from the past. With Γ small along
them and large elsewhere, log det counts only the few directions that matter, and ‖b‖ in Γ⁻¹, hence
Bernstein's κ, falls too. Γ is chosen in coordinates in which Σ is the identity: Γ⁻¹ = τ·(second moment of the
critical directions) + a floor, τ and the floor by a small search. That search is a heuristic; any positive
definite Γ is as valid.
"""

from __future__ import annotations

from math import log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.problem import Problem
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence, fit, second_moments
from bestpolicy.stopping.fresh import TheoremF
from bestpolicy.stopping.lemmas.deviations import Prior, largest_norms, make_prior
from bestpolicy.stopping.rule import Past, Proof, Rule, Terms, Test, Verdict
from bestpolicy.stopping.tight import TheoremP, TheoremT

RULES: dict[str, tuple[Rule, float]] = {"T": (TheoremT(), 0.55), "P": (TheoremP(), 0.35), "F": (TheoremF(), 0.1)}

# The moment of the decision is known within a factor of a few, so a few scales suffice.
LAG_SHARES = np.array([0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01])
_CRITICAL = 300  # directions that a prior or a design is made for
_ENTRIES = 3_000_000  # of all of them together, which are fewer if each is as long as an episode of many steps
_IN_SIGHT = 0.2  # share of what is asked from which on a lag pays
_LEAST_REACHED = 0.18  # what is counted as reached at least, for the guess of how many samples are still to come
_LAG_RATIO = 4.0


def reached_share(verdict: Verdict, epsilon: float) -> float:
    """How far a verdict is on its way to the asked ε; the samples still needed go roughly with its inverse square."""
    return max(verdict.resolved, epsilon / verdict.epsilon if verdict.epsilon > 0 else 1.0)


def critical_directions(problem: Problem, verdict: Verdict, epsilon: float) -> FloatArray:
    """The directions y(s, a) that are hardest to resolve, over the accuracy they need, (J, stages·d).

    With ε > 0 a gap need not be told from 0 but from about (1-γ)ε (ε/H if episodic).
    """
    assert verdict.propagation is not None
    allowance = epsilon / problem.value_limits[0]
    rivals = np.argwhere(verdict.slopes > 0)
    slopes, gaps = (array[tuple(rivals.T)] for array in (verdict.slopes, verdict.gaps))
    # Gaps far below their widths are not known; half a width is what they may well be.
    accuracies = np.maximum(gaps, 0.5 * slopes) + allowance
    worst = np.argsort(steady(-slopes / accuracies), kind="stable")
    worst = worst[: max(1, min(_CRITICAL, _ENTRIES // (problem.stages * problem.dimension)))]
    worst = worst[np.argsort(rivals[worst, 0], kind="stable")]
    stage, state, action = rivals[worst].T
    vectors = problem.features[state, action] - verdict.propagation.played[stage, state]
    directions = verdict.propagation.directions(stage, vectors / accuracies[worst, None])
    return directions.reshape(len(worst), problem.stages * problem.dimension)


def first_past(problem: Problem, candidates: IntArray, shares: FloatArray, delta: float) -> Past:
    """Return what is fixed before the first sample.

    Parameters
    ----------
    problem : Problem
        In the coordinates of the tests.
    candidates : int array (K,)
        Positions in ``problem.pairs`` of the only pairs that will ever be sampled.
    shares : array (K,)
        The G-optimal design on them.
    delta : float
        What the test of all samples may spend.
    """
    sampled = problem.pair_features[candidates]
    information = (sampled.T * shares) @ sampled
    prior = make_prior(
        np.broadcast_to(information, (problem.stages, *information.shape)),
        sampled,
        first_rounds=10.0 * problem.dimension,
        least_variance=0.01,
        delta=delta,
    )
    return Past(prior)


def lagged_prior(
    problem: Problem, evidence: Evidence, verdict: Verdict, directions: FloatArray, growth: float, delta: float
) -> Prior:
    """Γ that is small along the critical directions, (stages, d, d), with what else belongs to a prior.

    Parameters
    ----------
    problem : Problem
        In the coordinates of the tests.
    evidence, verdict : Evidence, Verdict
        All samples so far, and what the test of all samples says of them.
    directions : array (J, stages·d)
        Critical directions y over the accuracy they need.
    growth : float
        By what factor the evidence will probably have grown when it decides.
    delta : float
        What the tests of this past may spend together.
    """
    model = fit(problem, evidence)
    assert model is not None
    stages, dimension = problem.stages, problem.dimension
    spread = growth * second_moments(model.sampled, evidence.inverse_squares * verdict.variances)
    spread += 1e-9 * np.trace(spread, axis1=1, axis2=2)[:, None, None] * np.eye(dimension)
    factor = np.linalg.cholesky(spread)
    blocks = directions.reshape(-1, stages, dimension)
    # In the coordinates z = LᵀG⁻¹y, Σ is the identity and the width of y is ‖z‖ in I + C.
    critical = np.einsum("jhd,hde,hef->jhf", blocks, model.gram_inverse, factor, optimize=True)
    norms = np.sqrt((critical**2).sum(axis=(1, 2)))
    critical = critical / norms.max()
    shares = (norms / norms.max()) ** 8
    moment = np.einsum("j,jhd,jhe->hde", shares / shares.sum(), critical, critical, optimize=True)
    values, vectors = np.linalg.eigh(moment)
    values = values / values.max()
    values = np.where(values < 1e-9, 0.0, values)  # rounding errors, whose roots would be felt
    loads = np.einsum("jhd,hde->jhe", critical, vectors) ** 2
    loads = loads.reshape(len(loads), -1)
    log_term = 2 * log(2 / (LAG_SHARES[0] * delta))
    best, chosen = np.inf, np.ones_like(values)
    for power in (0.5, 1.0):
        for sharpness in (0.3, 1.0, 3.0, 10.0, 30.0):
            for floor in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
                precision = sharpness * values**power + floor
                cost = (loads @ (1 + 1 / precision).ravel()).max() * (log_term + np.log1p(precision).sum())
                if cost < best:
                    best, chosen = cost, precision
    root = factor @ vectors
    base = (root / chosen[:, None, :]) @ root.swapaxes(1, 2) / 4  # the scales 4ⁱ start a step below the guess
    return Prior(base, float(np.log1p(6 * chosen).sum()), largest_norms(base, model.sampled), LAG_SHARES)


class Running:
    """The tests of one past, by the letters of their theorems, and the samples that they have seen: none at first."""

    def __init__(self, past: Past, tests: dict[str, Test], evidence: Evidence) -> None:
        self.past, self.tests, self.evidence = past, tests, evidence

    def look(self) -> list[tuple[Verdict, Proof]]:
        """Return the verdicts of all tests, with what proves them."""
        return [(test.look(self.evidence), test.proof(self.evidence)) for test in self.tests.values()]


class Schedule:
    """The tests of a run.

    Parameters
    ----------
    terms : Terms
    pairs : int array (K,)
        The only pairs that will ever be sampled.
    first : Past
        What is fixed before the first sample.
    delta, lag_share : float
        What all tests together may spend, and the share of it for lags.
    """

    def __init__(self, terms: Terms, pairs: IntArray, first: Past, delta: float, lag_share: float) -> None:
        self.terms, self._delta = terms, delta * lag_share
        self._nothing = Evidence.empty(terms.problem, pairs)
        self.main = Running(first, {"T": TheoremT().fix(terms, first, delta * (1 - lag_share))}, self._nothing)
        self.lags = list[Running]()
        self._started = 0

    def add(self, batch: Tally, weights: FloatArray | None = None) -> None:
        """Take in a batch."""
        if len(self.lags) == 2 and self.lags[1].evidence.tally.samples > self.lags[1].past.started:
            self.lags = self.lags[1:]  # the newer one has seen half of all samples by now
        for running in (self.main, *self.lags):
            running.evidence = running.evidence.add(batch, weights)

    def look(self) -> list[tuple[Verdict, Proof]]:
        """Return all verdicts with what proves them, that on all samples first."""
        return [statement for running in (self.main, *self.lags) for statement in running.look()]

    def choose(self, verdict: Verdict) -> Past | None:
        """Say what new tests shall start from, if the end is in sight and the last ones lie far enough back."""
        evidence, problem = self.main.evidence, self.terms.problem
        reached = reached_share(verdict, self.terms.epsilon)
        samples = evidence.tally.samples
        stuck = verdict.propagation is not None and not len(verdict.metrics)  # Theorem T cannot speak at all
        recent = bool(self.lags) and samples < _LAG_RATIO * self.lags[-1].past.started
        if self._delta == 0 or recent or not verdict.slopes.any() or (reached < _IN_SIGHT and not stuck):
            return None
        number = self._started + 1
        growth = 0.5 / max(reached, _LEAST_REACHED) ** 2  # of the evidence until it decides, probably
        directions = critical_directions(problem, verdict, self.terms.epsilon)
        prior = lagged_prior(problem, evidence, verdict, directions, growth, self._share(number))
        values = None
        if problem.horizon is None and verdict.propagation is not None:
            values = np.clip(verdict.propagation.values, 0.0, problem.value_limits[:, None])
        return Past(prior, number, samples, verdict.policy, values)

    def start(self, past: Past) -> None:
        """Start the tests of a lag."""
        self._started = past.number
        share = self._share(past.number)
        fixed = {letter: rule.fix(self.terms, past, share * part) for letter, (rule, part) in RULES.items()}
        tests = {letter: test for letter, test in fixed.items() if test is not None}
        self.lags = [*self.lags[-1:], Running(past, tests, self._nothing)]

    def proof(self, number: int, theorem: str) -> Proof:
        """Return what proves the latest statement of a theorem about the samples since a past."""
        running = next(one for one in (self.main, *self.lags) if one.past.number == number)
        return running.tests[theorem].proof(running.evidence)

    def _share(self, number: int) -> float:
        return self._delta / (number * (number + 1))
