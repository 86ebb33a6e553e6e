"""Theorem I, recomputed: every rival of the policy is refuted by one of the bets against it.

With probability at least 1 - δ' (δ' the lag's share of δ), at all times and for all policies π of the prior q: if
for every rival j

    log Σ_m q_m exp inf {L_m(ξ): ξ in these sets, c_jᵀξ ≥ e·p} ≥ log 1/(0.9 δ' q(π)),
    L_m(ξ) = Σ_i [-τη(ξ) - ψ(|τ|R)τ²ζ(ξ)²],  ψ(x) = (-log(1-x) - x)/x²,

then V* - V^π ≤ e/(1-γ), or eH; p is 1, or in an episodic problem what the lag has fixed for the rival's step, at
most H in all. Why: V* - V^π is at most the sum over steps of the largest advantages, so if it exceeds eH then the
largest c_jᵀξ/p exceeds e. At the true ξ the e-process Σ_m q_m exp L_m of *the* rival with the largest ratio,
an unknown but fixed one, stays below 1/(0.9δ'q(π)) but with that probability (Lemma E, Ville), and the
true ξ is in Theorem P's set and in Lemma N's (`boxes`) but with probability 0.05δ'q(π) each; if its ratio
exceeded e it would be among those of the infimum.

Sizes: τ = α_m × (stake per unit), α_m = α·2^(-m/2), α the larger of √(2(l + 1.5)·yᵀG⁻¹y/(soonest·started)) and
`above` × the gap that the first batch's estimate has, but at most `caution` over the largest expected stake times
range, at the first batch. At later batches τ is smaller by a factor that keeps the largest expected |τ|R below
`caution`, too. (Files before version 6: 1.5 and 0; before version 5: 0.4, at the first batch only.) From version 6 on
stakes of a batch have y - u·yᵀG⁻¹y/n for y in the enumerator, u the part across y (in the metric G⁻¹) of what the
gradients of L_2 of all batches before it add up to, each at the estimate that the next batch has; n is a
fifth of all samples before it. At most `steering` × the length of y is subtracted.

A size with |τ|R ≥ 0.9 anywhere is left out. Here L_m is bounded pair by pair for all rivals; with ψ(x) ≤ 1/2 + x/3 +
x²/(4(1-x)), the last with the batch's largest x; the quadratic part of ζ² by (largest τ² of the batches) × drift, or
for all pairs together by a largest eigenvalue; or in one sum, Σ ω(√Σζ(ξ̂)² + √drift)², ω = ψ(largest x)τ²."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np

from bestpolicy.verification.bets import EIGENVALUES, Around, Batch, merged, require_sum
from bestpolicy.verification.boxes import Frame, LeastBoxed, boxed, spread_out
from bestpolicy.verification.case import Case, Samples
from bestpolicy.verification.claim import Claim
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.noise import Prior
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.regression import Regression
from bestpolicy.verification.rounding import EPS, MARGIN
from bestpolicy.verification.steering import USUAL, Steering
from bestpolicy.verification.tight import Rounds, Spending

_SCALES = (0.35, 0.35, 0.15, 0.05, 0.04, 0.03, 0.02, 0.01)  # of Theorem P's ellipsoids
_EVENTS = (0.1, 0.75, 0.15, 0.0)  # of Theorem P
SIZES = 2.0 ** (-np.arange(5) / 2)
_OLD_SIZE_SHARES = (0.25, 0.3, 0.25, 0.12, 0.08)  # before version 5
_SHARES = (0.9, 0.05, 0.05)  # bets, ellipsoids, box
# δ of the first lag, and what each later one has of that before it: now, in version 5, before.
_LAGS, _LAGS_5, _LAGS_4 = (0.7, 0.3), (0.55, 0.45), (0.42, 0.58)
_OLD_CAUTION, _OLD_SOONEST = 0.4, 1.5
_TOGETHER = 60  # stages·d up to which all pairs are looked at together
BOLDEST = 0.9
_STEPS = 60  # of the bisection for ε
LAG = "number started delta favourite log_odds drawn frequencies frame sigma gamma bet size_shares caution "
LAG += "soonest above steering spikes portions"
_HARD = 512  # rivals that a box is asked about


class Proof:
    """What certificates of Theorems I and UD have in common, read and required."""

    def __init__(self, case: Case, claim: Claim, proof: Node, policy: Ints) -> None:
        proof.only("transform", "design_pairs", "design_weights", "samples", "prior", "lag", "batches")
        self.case, self.policy = case, policy
        coordinates = Coordinates.read(proof, case)
        coordinates.require_design(case)
        self.samples = samples = Samples.read(proof.child("samples"), case)
        if not np.isin(coordinates.design_pairs, samples.pairs).all():
            raise Rejected("the pairs that might be sampled lack some of the design's")
        if len(samples.pairs) not in (len(coordinates.design_pairs), int(case.mask.sum())) and not claim.own_data:
            raise Rejected("the pairs that might be sampled are neither those of the design nor all")
        self.model = model = Regression.fit(case, samples, coordinates)
        self.prior = Prior.read(proof.child("prior"), case.stages, model.rows)
        if not np.array_equal(self.prior.shares, _SCALES):
            raise Rejected("the shares of the scales are not those of the format")
        self.lag = lag = proof.child("lag")
        lag.only(*LAG.split())
        self.number, self.started = lag.whole("number", 1, 400), lag.whole("started", 1)
        self._read_sizes()
        self._read_portions()
        first, following = _LAGS if lag.has("steering") else _LAGS_5 if self.caution < inf else _LAGS_4
        own, stated = first * following ** (self.number - 1) * claim.delta, lag.number("delta", 0.0, 1.0)
        if abs(stated - own) > 1e-9 * own:
            raise Rejected(f"δ of lag {self.number} is {own:.6g}, the file says {stated:.6g}")
        self.log_share = log(min(own, stated)) + self._log_weight()
        self.frame = Frame.read(lag.child("frame"), case.stages, model.rows.shape[1])
        states = np.arange(len(case.features))
        played = case.following(model.features[states, policy])
        nodes = proof.children("batches")
        case.budget.hold(len(nodes) * samples.counts.size * 2, "its batches")
        case.budget.work(len(nodes) * samples.counts.size * 50, "its batches")
        self.batches = [Batch.read(node, case, samples, model.rows, played) for node in nodes]
        require_sum(self.batches, samples)
        self.bets = merged(self.batches)
        self.rivals = np.argwhere(case.rivals(policy))
        features = model.features
        stage, state, action = self.rivals.T
        self.differences = features[state, action] - features[state, policy[stage, state]]
        pairs, dimension = len(model.rows), features.shape[2]
        work = len(self.rivals) * case.stages * dimension * (pairs + dimension) * (len(nodes) + 1)
        case.budget.work(20 * work, "its bets")
        case.budget.hold(8 * len(self.rivals) * case.stages * (pairs + 6 * dimension), "its bets")

    def _read_sizes(self) -> None:
        """Shares of the sizes of bets, and what they are kept below at every batch."""
        self.size_shares, self.caution = np.array(_OLD_SIZE_SHARES), inf
        if self.lag.has("size_shares"):
            self.size_shares = self.lag.array("size_shares", "f", (len(SIZES),))
            self.caution = self.lag.number("caution", 0.0, 1.0) or inf
        self.first_caution = self.caution if self.caution < inf else _OLD_CAUTION
        self.soonest, self.above, self.steering = _OLD_SOONEST, 0.0, 0.0
        if self.lag.has("steering"):
            self.soonest, self.above = self.lag.number("soonest", 0.0, 1e6), self.lag.number("above", 0.0, 1e6)
            self.steering = self.lag.number("steering", 0.0, 1e6)
            if not self.soonest > 0:
                raise Rejected("sizes of bets that are best for an end before the beginning")
        if not (self.size_shares > 0).all() or not self.size_shares.sum() <= 1 + 1e-9:
            raise Rejected("the shares of sizes of bets are not positive, or sum to more than 1")

    def _read_portions(self) -> None:
        """By how much rivals of each step may be better, in terms of e; not before version 8."""
        self.portions = np.ones(self.case.stages)
        if self.lag.has("portions"):
            self.portions = self.lag.array("portions", "f", (self.case.stages,))
        if not (self.portions > 0).all() or not self.portions.sum() <= self.case.stages * (1 + 1e-12):
            raise Rejected("the portions of steps are not positive, or sum to more than there are steps")

    def _log_weight(self) -> float:
        """log q(π): half on the favourite; the rest, or 0.15 beside 0.35 on listed policies, on independent choices."""
        case, shape = self.case, self.policy.shape
        favourite = self.lag.array("favourite", "i", shape)
        odds = self.lag.array("log_odds", "f", (case.stages, *case.mask.shape))
        chances = np.where(case.mask, np.exp(np.minimum(odds, 1.0)), 0.0)
        if np.isnan(odds).any() or (chances.sum(axis=2) > 1 + 1e-9).any():
            raise Rejected("the odds of actions sum to more than 1")
        chosen = float(np.take_along_axis(odds, self.policy[:, :, None], axis=2).sum())
        listed = self._listed()
        parts = [log(0.5) if np.array_equal(favourite, self.policy) else -inf]
        parts += [log(0.5) + chosen] if listed is None else [log(0.15) + chosen, listed]
        return float(np.logaddexp.reduce(parts))

    def _listed(self) -> float | None:
        """log(0.35·frequency) of the policy among those that the lag lists; None if it lists none."""
        if not self.lag.has("frequencies"):
            return None
        frequencies = self.lag.array("frequencies", "f", (None,))
        if not len(frequencies):
            return None
        drawn = self.lag.array("drawn", "i", (len(frequencies), *self.policy.shape))
        if not (frequencies > 0).all() or not frequencies.sum() <= 1 + 1e-9:
            raise Rejected("the weights of the policies that the lag lists are not positive, or sum to more than 1")
        if len(np.unique(drawn.reshape(len(drawn), -1), axis=0)) != len(drawn):
            raise Rejected("the lag lists a policy twice")
        same = (drawn == self.policy).all(axis=(1, 2))
        return log(0.35 * float(frequencies[same][0])) if same.any() else -inf

    def around(self, share: float, box: float) -> tuple[Around, Rounds]:
        """Theorem P and Lemma N with shares of the lag's δ and of the policy's weight."""
        spending = Spending(self.prior, *(share * exp(self.log_share) * event for event in _EVENTS))
        rounds = Rounds(self.model, self.policy, spending, True)
        rounds.epsilon(inf, -1.0)
        around = Around.of(rounds)
        return boxed(around, self.model, self.frame, self.bets, box * exp(self.log_share)), rounds

    @property
    def trusted(self) -> list[str]:
        """What the file cannot show."""
        return [
            "δ, the design and the list of pairs that might be sampled were fixed before sampling",
            f"it was lag {self.number} of the run, and all that it has fixed was chosen from the first "
            f"{self.started:,} samples only",
            "what is said to be fixed before a batch was chosen from the samples before it only, so were the weights "
            "of its samples in the regression",
        ]

    @property
    def used(self) -> int:
        """Samples that the proof rests on."""
        return int(self.samples.pulls.sum()) + self.started


def certified_epsilon(case: Case, claim: Claim, proof: Node, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that the samples certify, their number, and what has to be taken on trust."""
    read = Proof(case, claim, proof, policy)
    if read.lag.array("sigma", "f", (None, None)).size or read.lag.array("gamma", "f", (None, None)).size:
        raise Rejected("the lag is one of Theorem UD")
    if read.lag.fields["bet"] != 0:
        raise Rejected("the lag is one of Theorem UD")
    if not len(read.rivals):
        return 0.0, read.used, read.trusted
    refutation = Refutation(read)
    limit = float(case.limits[0])
    if refutation.holds(0.0):
        return 0.0, read.used, read.trusted
    low, high = 0.0, limit
    target = claim.target
    if target < limit and refutation.holds(target / limit):
        high = target
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if refutation.holds(middle / limit) else (middle, high)
    return (high if high < limit else inf), read.used, read.trusted


class Refutation:
    """The left side of Theorem I's condition for every rival."""

    def __init__(self, read: Proof) -> None:
        self.nats, self.shares = -log(_SHARES[0]) - read.log_share, read.size_shares
        case, model = read.case, read.model
        around, rounds = read.around(*_SHARES[1:])
        response, stage = around.response, read.rivals[:, 0]
        count, stages, dimension = len(stage), case.stages, model.rows.shape[1]
        batches = [batch for batch in read.bets if batch.usable]
        if not batches:
            raise Rejected("no batch was bet on")
        place = tuple(read.rivals.T)
        gaps = (response.values[:, :, None] - response.q_values)[place]
        self.start, self.portions = gaps - rounds.margins[place], read.portions[stage]
        unit = (dimension + len(case.features) + len(model.rows)) * EPS * (1 + case.limits[0])
        shift = response.equation_rounding + MARGIN * unit
        number, functional, sizes = np.zeros(count), np.zeros((count, stages, dimension)), None
        joint, once, top = np.zeros(count), np.zeros(count), np.zeros(count)
        largest = np.zeros((count, *batches[0].pulls.shape))
        total: Floats | None = None
        drifts = np.zeros(batches[0].pulls.shape)
        exact = dimension <= EIGENVALUES
        moments = sum(batch.moments() for batch in batches) if exact else None
        steering = Steering(read.steering, read.started, count * stages * max(model.rows.shape))
        together = moments is not None and stages * dimension <= _TOGETHER
        forms = np.zeros((count, stages, dimension, dimension)) if together else None
        for batch in batches:
            y = batch.answers(stage, read.differences)
            assert batch.precision is not None
            pulled = np.einsum("jhd,hde->jhe", y, batch.precision)
            spread = np.maximum(np.einsum("jhd,jhd->j", pulled, y), 1e-300)
            pulled = steering.turned(batch, y, pulled, spread)
            stakes = np.where(batch.shares > 0, (pulled @ batch.rows.T) / batch.variances, 0.0) / spread[:, None, None]
            up, down = batch.expected_reach()
            expected = np.maximum((np.abs(stakes) * np.where(stakes > 0, up, down)).max(axis=(1, 2)), 1e-300)
            if sizes is None:
                boldest = np.sqrt(2 * (self.nats + 1.5) * spread / (read.soonest * read.started))
                boldest = np.maximum(boldest, read.above * batch.gaps(stage, read.differences))
                sizes = SIZES[:, None] * np.minimum(boldest, read.first_caution / expected)
                total = np.zeros(sizes.shape)
                gradients = np.zeros((*sizes.shape, stages, dimension))
            assert total is not None
            stakes *= np.minimum(1.0, read.caution / (sizes[0] * expected))[:, None, None]
            number -= np.einsum("jhk,hk->j", stakes, batch.rewards.sum(axis=2))
            once += np.einsum("jhk,hk,h->j", np.abs(stakes), batch.pulls, shift)
            functional += batch.functional(stakes)
            steering.add(batch, stakes, sizes[USUAL])
            squares, slopes, up, down, drift = batch.seen(around)
            reach = np.abs(stakes) * np.where(stakes > 0, up, down)
            highest, square = reach.max(axis=(1, 2)), stakes**2
            top, largest = np.maximum(top, highest), np.maximum(largest, square)
            if forms is not None:
                forms += np.einsum("jhk,hkde->jhde", square, batch.moments(), optimize=True)
            joint += np.einsum("jhk,hk->j", square, (np.sqrt(squares) + np.sqrt(drift)) ** 2)
            drifts += drift
            last = sizes**2 / (4 * (1 - np.minimum(sizes * highest, BOLDEST)))
            for factor, weight in ((0.5 + 0 * sizes, square), (sizes / 3, square * reach), (last, square * reach**2)):
                total += sizes**2 * factor * np.einsum("jhk,hk->j", weight, squares)
                slope = np.einsum("jhk,hkd->jhd", weight, slopes, optimize=True)
                gradients += (sizes**2 * factor)[:, :, None, None] * slope
        assert sizes is not None
        assert total is not None
        if moments is not None:
            root = around.root[:, None]
            shapes = root.swapaxes(2, 3) @ moments @ root
            drifts = np.minimum(drifts, case.gamma**2 * np.maximum(np.linalg.eigvalsh(shapes)[..., -1], 0.0))
        bold = sizes * top
        inside = np.minimum(bold, BOLDEST)
        psi = 0.5 + inside / 3 + inside**2 / (4 * (1 - inside))
        drift = np.einsum("jhk,hk->j", largest, drifts)
        if forms is not None:
            drift = np.minimum(drift, _joint_drift(case, around, forms))
        costs = total + psi * sizes**2 * drift
        rough = psi * sizes**2 * joint
        here = number + np.einsum("jhd,hd->j", functional, response.parameters) - once
        y = _answered(case, response.links, _at(stage, read.differences, stages))
        out = np.where(bold < BOLDEST, 0.0, -inf)
        self.levels = [out + sizes * here - costs, out + sizes * here - rough]
        functionals = [
            [
                _answered(case, response.links, size[:, None, None] * functional - turn)
                for size, turn in zip(sizes, turns, strict=True)
            ]
            for turns in ([case.placed(one) for one in gradients], [0.0] * len(sizes))
        ]
        self.leasts = [[[_Least(matrix, y, one) for matrix in around.matrices] for one in each] for each in functionals]
        self.widths = np.min([one.width for one in self.leasts[0][0]], axis=0)
        self.boxes: list[LeastBoxed] = []
        self.hard = np.argsort(np.nan_to_num(self._level(self.start)), kind="stable")[:_HARD]
        if around.block is not None:
            self.boxes = [LeastBoxed(around.block, y[self.hard], one[self.hard]) for one in functionals[0]]
            self.widths[self.hard] = np.minimum(self.widths[self.hard], self.boxes[0].width)

    def _level(self, start: Floats) -> Floats:
        """The left side by ellipsoids alone."""
        best = np.full(len(start), -inf)
        for levels, leasts in zip(self.levels, self.leasts, strict=True):
            parts = [
                log(share) + level + np.max([one.over(start) for one in each], axis=0)
                for share, level, each in zip(self.shares, levels, leasts, strict=True)
            ]
            best = np.fmax(best, np.logaddexp.reduce(np.array(parts), axis=0))
        return best

    def holds(self, excess: float) -> bool:
        """Whether every rival with at least its portion of this excess is refuted."""
        start = self.start + excess * self.portions
        best = self._level(start)
        if self.boxes:
            here, hard = start[self.hard], self.hard
            parts = [
                log(share)
                + level[hard]
                + np.maximum(box.over(here), np.max([one.over(start)[hard] for one in each], 0))
                for share, level, each, box in zip(self.shares, self.levels[0], self.leasts[0], self.boxes, strict=True)
            ]
            best[hard] = np.fmax(best[hard], np.logaddexp.reduce(np.array(parts), axis=0))
        return bool(((self.widths < start) | (best >= self.nats)).all())


class _Least:
    """The least ℓᵀx over xᵀM⁻¹x ≤ 1, yᵀx ≥ t."""

    def __init__(self, matrix: Floats, y: Floats, ell: Floats) -> None:
        my = np.einsum("hde,jhe->jhd", matrix, y)
        self.width = np.sqrt(np.maximum((my * y).sum(axis=(1, 2)), 1e-300))
        self.slope = (my * ell).sum(axis=(1, 2)) / self.width**2
        rest = ell - self.slope[:, None, None] * y
        self.side = np.sqrt(np.maximum((np.einsum("hde,jhe->jhd", matrix, rest) * rest).sum(axis=(1, 2)), 0.0))

    def over(self, start: Floats) -> Floats:
        """For t (J,); at t beyond the width there is no such x, which the caller looks for."""
        length = np.hypot(self.side, self.slope * self.width)
        free = -self.slope * self.width**2 / np.maximum(length, 1e-300)
        height = np.sqrt(np.maximum(1 - (start / self.width) ** 2, 0.0))
        found: Floats = np.where(start <= free, -length, self.slope * start - self.side * height)
        return found


def _joint_drift(case: Case, around: Around, forms: Floats) -> Floats:
    """The most of xᵀJᵀ(Σ forms)Jx over the ellipsoids, for forms (J, stages, d, d) at the next stage, (J,)."""
    found = np.full(len(forms), inf)
    for matrix in around.matrices:
        values, vectors = np.linalg.eigh(matrix)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        spread = case.following(spread_out(case, around.response, root))
        shapes = np.einsum("hdn,jhde,hem->jnm", spread, forms, spread, optimize=True)
        found = np.minimum(found, np.maximum(np.linalg.eigvalsh(shapes)[:, -1], 0.0))
    return case.gamma**2 * found


def _at(stage: Ints, vectors: Floats, stages: int) -> Floats:
    """Vectors (J, d) in the blocks of their stages, (J, stages, d)."""
    found = np.zeros((len(stage), stages, vectors.shape[1]))
    found[np.arange(len(stage)), stage] = vectors
    return found


def _answered(case: Case, links: Floats, functional: Floats) -> Floats:
    """Functionals of ξ as functionals of x."""
    if case.horizon is None:
        answered: Floats = functional @ links[0]
        return answered
    found = functional.copy()
    for stage in range(case.stages - 1):
        found[:, stage + 1] += found[:, stage] @ links[stage]
    return found
