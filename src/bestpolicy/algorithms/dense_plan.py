"""What `sharp` knows of a problem with features on its way: estimates, guesses of variances, where to sample next.

Nothing here has to be right: it decides how many samples a run needs, not what is true. All of it is a function of the
samples so far, so bets and lags may rest on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, sqrt

import numpy as np
from scipy.sparse import csr_array

from bestpolicy._numerics.arrays import FloatArray, IntArray, by_stage
from bestpolicy._numerics.reproducible import greedy, grid_shares, one_thread, steady
from bestpolicy.design.transductive import transductive_design
from bestpolicy.planning import action_gap, optimal_plan
from bestpolicy.problem import Problem
from bestpolicy.stopping.dense.bets import Rivals, Snapshot
from bestpolicy.stopping.dense.box import LARGEST, Frame
from bestpolicy.stopping.dense.kernel import SPIKES, Doubt, Kernel, with_spikes
from bestpolicy.stopping.dense.paths import Planning
from bestpolicy.stopping.dense.policies import PolicyPrior
from bestpolicy.stopping.evidence import Evidence, fit, second_moments
from bestpolicy.stopping.lags import LAG_SHARES
from bestpolicy.stopping.lemmas.deviations import Prior, best_ratio, largest_norms, sample_variances
from bestpolicy.stopping.lemmas.propagation import propagate

_PRIOR_SAMPLES = 5.0  # what a pair's own variance is mixed with: so many samples of the average one
_QUIETEST = 0.02  # of the average variance: no pair is taken to be quieter
_BOLD = 0.4  # of stake times range, at the hardest rivals: beyond it a pair is taken to be noisier
_AHEAD = 3.0  # times the samples so far: where the end is expected, for that
_LEAST_MISSING = 0.02  # of what bets have to earn: what has been refuted shall stay so
_CRITICAL = 300  # rivals that a design is made for
_ENTRIES = 6_000_000  # of pairs, dimensions and these rivals together
_LEAST_PORTION, _PORTION_HALVINGS = 0.2, 60  # of the rivals of a step, and how accurately all of them are found
_GROWTH = 4.0  # of the samples since a lag, in terms of those before it, that its ellipsoids are best for
_ENDS = (
    (1.5, 1.3),
    (6.0, 1.3),
    (24.0, 1.3),
    (6.0, 3.0),
    (24.0, 3.0),
    (100.0, 3.0),
    (400.0, 3.0),
)  # of a lag, over the past; ranges, over expected
_FARTHEST, _HALVINGS = 64.0, 4  # standard deviations along paths, and how often a factor of 2 of them is halved
_APART = 1e-6  # of a trace: how far eigenvalues are moved apart
_LARGEST_WEIGHT, _STEP = 16.0, 1 / 64  # of regression weights, and what they and shares are rounded to
_DRAWS, _FEWEST_DRAWS, _DRAWN_ENTRIES = 400, 20, 20_000_000  # of policies, for a prior; of numbers to evaluate them


@dataclass(frozen=True, eq=False)
class Paths:
    """What a lag fixes for Theorem UD, and how wrong the kernel may still be when it ends."""

    sigma: FloatArray
    gamma: FloatArray
    bet: float
    spikes: FloatArray
    doubt: Doubt


class Knowledge:
    """The samples so far.

    Parameters
    ----------
    problem : Problem
        In accurate coordinates.
    evidence : Evidence
    allocation : array (stages, K)
        Shares that are sampled now.
    nats : float
        What bets are to earn, roughly.
    allowance : float
        By how much rivals may be better: (1-γ)ε or ε/H.

    Attributes
    ----------
    ready : bool
        Whether there is an estimate; else there is nothing else either.
    policy : int array (stages, S)
        The best one in the estimated model.
    variances : array (stages, K)
        ṽ for the bets to come.
    rivals : Rivals
    gaps, errors : arrays (J,)
        Estimated gaps of the rivals, and their standard deviations.
    portions : array (stages,)
        By how much rivals of each step may be better, in terms of the allowance; 1 on average.
    allowances : array (J,)
        By how much each rival may be.
    """

    def __init__(
        self, problem: Problem, evidence: Evidence, allocation: FloatArray, nats: float, allowance: float
    ) -> None:
        self.problem, self.evidence, self.allowance = problem, evidence, allowance
        model = fit(problem, evidence)
        response = None
        if model is not None:
            self.policy = optimal_plan(problem, model.theta, model.mu).policy
            response = propagate(problem, model.theta, model.mu, self.policy)
        self.ready = response is not None
        if model is None or response is None:
            return
        self.model, self.response = model, response
        self.rivals = Rivals.of(problem, self.policy)
        self.gap = action_gap(problem, response.q_values)
        self.gaps = (response.values[:, :, None] - response.q_values)[self.rivals.place]
        self.directions = response.directions(self.rivals.stage, self.rivals.differences)
        pulls = evidence.tally.pulls
        plan = 0.5 * (pulls + pulls.sum() * allocation)
        self.variances = self._first_variances()
        self.portions = self._best_portions() if problem.stages > 1 and allowance > 0 else np.ones(problem.stages)
        self.allowances = allowance * self.portions[self.rivals.stage]
        ranges = 1 + problem.continuation * np.ptp(response.following(response.values), axis=1)[:, None]
        for _ in range(4):
            pulled = self._pulled(plan)
            spread = np.maximum(np.einsum("jhd,jhd->j", pulled, self.directions), 1e-300)
            worst = self._hardest(np.sqrt(spread), 100)
            sizes = np.sqrt(2 * nats / (_AHEAD * spread[worst]))
            stakes = np.abs(pulled[worst] @ model.sampled.T) / self.variances * sizes[:, None, None]
            bold = np.where(allocation > 0, stakes * 0.75 * ranges, 0.0).max(axis=0, initial=0.0) / _BOLD
            if bold.max() <= 1:
                break
            self.variances = self.variances * np.maximum(bold, 1.0)
        pulled = self._pulled(pulls)
        self.errors = np.sqrt(np.maximum(np.einsum("jhd,jhd->j", pulled, self.directions), 1e-300))

    def _best_portions(self) -> FloatArray:
        """The portions with which samples that refute all rivals are fewest, if each step has samples of its own.

        With c samples for each rival seen to an accuracy of 1 these are Σ_h c_h/(gap_h + allowance·p_h)², and least
        where accuracies are like the cube roots of the c_h.
        """
        stages, pulls = self.problem.stages, self.evidence.tally.pulls
        pulled = self._pulled(pulls / np.maximum(pulls.sum(axis=1, keepdims=True), 1))
        roots = np.cbrt(np.maximum(np.einsum("jhd,jhd->j", pulled, self.directions), 1e-300))

        def needed(scale: float) -> FloatArray:
            most = np.full(stages, _LEAST_PORTION)
            np.maximum.at(most, self.rivals.stage, (scale * roots - self.gaps) / self.allowance)
            return most

        low, high = 1e-100, 1e100
        for _ in range(_PORTION_HALVINGS):
            middle = sqrt(low * high)
            low, high = (middle, high) if needed(middle).sum() <= stages else (low, middle)
        found = needed(low)
        return stages * grid_shares(found / found.sum(), _STEP / stages)

    def _first_variances(self) -> FloatArray:
        tally, limits = self.evidence.tally, self.problem.value_limits
        values = self.response.following(np.clip(self.response.values, 0.0, limits[:, None]))
        own = sample_variances(tally, values, self.problem.continuation)
        weights = np.maximum(tally.pulls - 1, 0)
        mean = max(float((weights * own).sum() / max(weights.sum(), 1)), 1e-4)
        mixed = (weights * own + _PRIOR_SAMPLES * mean) / (weights + _PRIOR_SAMPLES)
        return np.maximum(mixed, _QUIETEST * mean)

    def _pulled(self, counts: FloatArray | IntArray) -> FloatArray:
        """yᵀG⁻¹ for the information of some counts."""
        gram = second_moments(self.model.sampled, counts / self.variances)
        gram = gram + 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
        return by_stage(self.directions, np.linalg.inv(gram))

    def _hardest(self, errors: FloatArray, number: int) -> IntArray:
        accuracy = np.maximum(self.gaps, errors) + self.allowances
        return np.argsort(steady(-errors / accuracy), kind="stable")[:number]

    @property
    def resolved(self) -> float:
        """How many standard deviations what has to be seen is at least."""
        return float(steady(((self.gaps + self.allowances) / self.errors).min(initial=1e300)))

    def snapshot(self, shares: FloatArray, counts: IntArray) -> Snapshot:
        """What bets on the next batch rest on."""
        return Snapshot(self.model.theta, self.model.mu, self.variances, shares, counts, self.weights)

    def path_resolved(self, epsilon: float, path: Paths) -> float:
        """How many standard deviations fit between the estimated gaps and ε, where losses add up along paths.

        Up to a few per cent; 0 if there are fewer than rival by rival.
        """
        gains = np.where(self.problem.mask, 0.0, -inf)
        place = self.rivals.place[1:]

        planning = Planning(self.problem, self.model.mu[0], path.doubt)

        def bound(deviations: float) -> float:
            gains[place] = deviations * self.errors - self.gaps
            return planning.largest(gains[None], epsilon)

        low = max(self.resolved, 1e-3)
        if bound(low) > epsilon:  # no more than rival by rival
            return 0.0
        while low < _FARTHEST and bound(2 * low) <= epsilon:
            low *= 2
        high = 2 * low
        for _ in range(_HALVINGS):
            middle = sqrt(low * high)
            low, high = (middle, high) if bound(middle) <= epsilon else (low, middle)
        return low

    def paths(self, shares: FloatArray, delta: float) -> Paths:
        """What a lag fixes that may spend delta on the kernel."""
        problem, sampled = self.problem, self.model.sampled
        precision = np.linalg.inv(second_moments(sampled, shares / self.variances)[0])
        response = self.response.moved(np.eye(problem.dimension)[None])[0]
        sigma = response @ precision @ response.T
        sigma = sigma + 1e-9 * np.trace(sigma) / len(sigma) * np.eye(len(sigma))
        gamma = np.linalg.inv(second_moments(sampled, shares)[0])
        count = _GROWTH * float(self.evidence.tally.samples)
        bet = sqrt(2 * (problem.states * log(2) - log(delta)) / count)
        spikes = np.array(SPIKES if with_spikes(problem, len(sampled)) else ())
        kernel, counts = Kernel(problem.states, sampled, gamma, bet * spikes), count * shares[0]
        led = csr_array((problem.states, len(sampled)))  # how often pairs should lead to each state
        if len(spikes):
            led = csr_array(counts * np.clip(self.model.mu[0] @ sampled.T, 0.0, None))
        kernel.add(sampled @ gamma, counts, led)
        return Paths(sigma, gamma, bet, spikes, kernel.doubt(problem, bet, log(delta)))

    @property
    def weights(self) -> FloatArray:
        """u of the next samples in the regression, (stages, K)."""
        relative = np.clip(self.variances / self.variances.min(axis=1, keepdims=True), 1.0, _LARGEST_WEIGHT)
        weights: FloatArray = np.rint(relative / _STEP) * _STEP
        return weights

    @one_thread()
    def allocation(self, missing: FloatArray | None = None) -> tuple[FloatArray, float]:
        """Shares (stages, K) that refute the hardest rivals soonest, and how many samples that takes for each nat.

        Rivals may be missing different parts (J,) of all that bets have to earn.
        """
        stages, pairs = self.variances.shape
        number = max(20, min(_CRITICAL, _ENTRIES // (stages * pairs * self.problem.dimension)))
        needs = np.ones(len(self.gaps)) if missing is None else np.sqrt(np.maximum(missing, _LEAST_MISSING))
        worst = self._hardest(self.errors * needs, number)
        accuracy = ((np.maximum(self.gaps, self.errors) + self.allowances) / needs)[worst]
        directions = (self.directions[worst] / accuracy[:, None, None]).reshape(len(worst), -1)
        design = transductive_design(
            self.model.sampled / np.sqrt(self.variances)[:, :, None], directions, tolerance=0.1
        )
        return grid_shares(design.weights, _STEP / len(design.weights)).reshape(stages, pairs), 2 * design.value

    def policies(self) -> PolicyPrior:
        """A prior over policies: odds exp(-z²/2) of each action; if ε > 0, policies that may turn out to be good."""
        scores = np.full((self.problem.stages, *self.problem.mask.shape), np.inf)  # copies of what is played
        scores[self.rivals.place] = np.maximum(self.gaps, 0.0) / self.errors
        np.put_along_axis(scores, self.policy[:, :, None], 0.0, axis=2)
        prior = PolicyPrior.of(self.policy, scores, self.problem.mask)
        number = min(_DRAWS, _DRAWN_ENTRIES // (self.problem.states * self.problem.dimension**2))
        if self.problem.horizon is not None or self.allowance <= 0 or number < _FEWEST_DRAWS:
            return prior
        drawn, counts = np.unique(self._draws(number), axis=0, return_counts=True)
        return replace(prior, drawn=drawn[:, None, :], frequencies=counts / number)

    def _draws(self, number: int) -> IntArray:
        """Greedy policies (n, S) for errors of ξ̂ as they may be."""
        problem, rng = self.problem, np.random.default_rng(self.evidence.tally.samples)
        gram = second_moments(self.model.sampled, self.evidence.tally.pulls / self.variances)[0]
        gram = gram + 1e-12 * np.trace(gram) * np.eye(len(gram))
        # A root by Cholesky: eigenvectors are not the same on all processors.
        errors: FloatArray = np.linalg.inv(np.linalg.cholesky(gram)).T.astype(np.float64)
        errors = errors @ rng.standard_normal((len(gram), number))
        parameters = self.response.parameters[0][:, None] + self.response.moved(errors[None])[0]
        q_values = np.einsum("sad,dn->nsa", problem.features, parameters)
        return greedy(np.where(problem.mask, q_values, -inf))

    def losses(self, policies: IntArray, theorem: str) -> FloatArray:
        """What policies (n, S) of a discounted problem lose, as far as is known and a theorem can see it, (n,).

        Theorem I takes the largest advantage of a rival to be there at every step.
        """
        problem, theta, mu = self.problem, self.model.theta[0], self.model.mu[0]
        played = problem.features[np.arange(problem.states), policies]
        systems = np.eye(problem.dimension) - problem.continuation * (mu.T @ played)
        parameters = np.linalg.solve(systems, theta[:, None])  # of their values, (n, d, 1)
        values = (played @ parameters)[:, :, 0]
        if theorem == "UD":
            lost: FloatArray = (self.response.values[0] - values).max(axis=1)
            return lost
        flat = np.flatnonzero(problem.mask)
        q_values = parameters[:, :, 0] @ problem.features.reshape(-1, problem.dimension)[flat].T
        advantages = q_values - values[:, flat // problem.actions]
        excess: FloatArray = float(problem.value_limits[0]) * advantages.max(axis=1)
        return excess

    def ellipsoids(self, delta: float) -> Prior:
        """Γ for the ellipsoids of a lag that may spend delta on them."""
        sampled, dimension = self.model.sampled, self.problem.stages * self.problem.dimension
        ratio = best_ratio(dimension, log(2 / (LAG_SHARES[0] * delta)))
        spread = second_moments(sampled, self.evidence.inverse_squares * self.variances)
        spread = spread + 1e-9 * np.trace(spread, axis1=1, axis2=2)[:, None, None] * np.eye(spread.shape[1])
        base = ratio * _GROWTH * spread / 4  # the scales 4ⁱ start a step below the guess
        return Prior(base, dimension * log(1 + 6 / ratio), largest_norms(base, sampled), LAG_SHARES)

    def frame(self, shares: FloatArray, delta: float) -> Frame:
        """Directions of bets on all of ξ^π, and their sizes: for some numbers of samples to come, and ranges."""
        problem, response, sampled = self.problem, self.response, self.model.sampled
        stages, dimension = problem.stages, problem.dimension
        if stages * dimension > LARGEST:
            return Frame(np.zeros((stages, dimension, 0)), np.zeros((0, stages, dimension)))
        nats = log(2 * len(_ENDS) * stages * dimension / delta)
        noise = second_moments(sampled, shares * self._first_variances() / self.weights**2)
        noise = noise + 1e-9 * np.trace(noise, axis1=1, axis2=2)[:, None, None] * np.eye(dimension)
        # A root by Cholesky: eigenvectors are not the same on all processors.
        root = np.linalg.cholesky(noise)
        vectors: FloatArray = np.linalg.inv(root).swapaxes(1, 2).astype(np.float64)  # in these directions noise is 1
        if not problem.is_tabular:
            gram = second_moments(sampled, shares / self.weights)
            gram = gram + 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(dimension)
            ahead = response.played - response.played.mean(axis=1, keepdims=True)
            stage = np.repeat(np.arange(stages), problem.states)
            answers = response.directions(stage, ahead.reshape(-1, dimension))
            white = np.einsum("nhd,hde,hef->hnf", answers, np.linalg.inv(gram), root, optimize=True)
            forms = white.swapaxes(1, 2) @ white
            # Values that would be equal are made to differ: else the vectors would hang on the processor.
            apart = np.trace(forms, axis1=1, axis2=2)[:, None] * np.linspace(0.0, _APART, dimension)
            vectors = vectors @ np.linalg.eigh(forms + apart[:, :, None] * np.eye(dimension))[1]
        values = response.following(response.values)
        expected = 1 + problem.continuation * np.ptp(values, axis=1)[:, None]
        largest = 1 + problem.continuation * response.following(problem.value_limits)[:, None]
        stakes = np.where(shares > 0, 1 / self.weights, 0.0)[:, :, None] * np.abs(sampled @ vectors)
        sizes = np.empty((len(_ENDS), stages, dimension))
        for place, (end, room) in enumerate(_ENDS):
            best = sqrt(2 * nats / (end * self.evidence.tally.samples))
            reach = (stakes * np.minimum(room * expected, largest)[:, :, None]).max(axis=1)
            sizes[place] = np.minimum(best, 0.6 / np.maximum(reach, 1e-300))
        return Frame(vectors, sizes)
