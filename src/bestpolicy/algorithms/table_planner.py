"""One plan for a table: accuracies, counts, template and bets for a given past, and a rehearsal of the look.

The points 1 to 5 of `table_plan`, which says what they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray
from bestpolicy._numerics.reproducible import steady
from bestpolicy.algorithms.table_past import Past, draw, least_counts, mean_squares
from bestpolicy.algorithms.table_rows import EstimatedRows, KeptRows
from bestpolicy.stopping.tables.lag import LOOKS, PLANNED, SHARES, Lag, planned_bets
from bestpolicy.stopping.tables.look import Observed, Verdict, look, observe
from bestpolicy.stopping.tables.model import TableSamples
from bestpolicy.stopping.tables.rows import Sums

PATIENCE = 3.0  # a plan of more than so many times the past waits
_LEAST = 8
_CHEAP = 0.05  # of the mean of all counts: no pair is given less, since such pairs would fail for nothing
_KAPPAS = (0.5, 0.65, 0.8, 0.92)
_SHARE_FIRST = 0.8  # of an accuracy that the first order may use
_LEVELS = 22  # of the start, each 0.6 times as coarse as the one before
_MORE_SQUARES, _MORE_RANGE = 1.1, 1.05  # what bets are prepared for, in terms of what was observed
_MOST = 1e12  # samples of a pair that a plan may ask for: ties would ask for infinitely many
_FINEST = 1e-5  # of the largest value: accuracies are not finer, as nobody has the samples
_NARROWEST = 1e-10  # of the largest value: whoever checks a bet on a smaller range would bet on rounding errors
_UNSEEN = 4.0  # times what is asked: the largest loss that is allowed to states which the start hardly reaches
_FEW = 10_000_000  # entries of directions up to which accuracies at a start are unequal
_ROUNDS = 100  # of the search for what is allowed where
Accuracies = Callable[[float], FloatArray]  # widths (M,) that rivals may have, at a scale of at most 1


class Planner:
    """One plan: a past, an accuracy and a confidence."""

    def __init__(self, past: Past, epsilon: float, delta: float, shares: FloatArray) -> None:
        self.past, self.epsilon, self.delta, self.shares = past, epsilon, delta, shares
        self.form = 1 if shares[1] > 0 else 0
        self.nats = -log(float(shares[self.form]) * delta)
        self.most = 30 * PATIENCE * float(past.samples.pulls.sum())  # samples that a plan may take
        self.limited = False  # whether they are too few for what is asked

    # --- accuracies and counts

    def first_plan(self) -> tuple[FloatArray, FloatArray]:
        """Counts of the first order for the cheapest accuracies, and their template."""
        goal = 0.9 * self.epsilon
        choices = [self.equal(kappa, goal) for kappa in _KAPPAS] + self.unequal(goal)
        options = []
        for choice in choices:
            counts = self.counts(choice(1.0))
            options.append((float(steady(counts.sum())), choice, counts))
        _, choice, counts = min(options, key=lambda option: option[0])
        if self.epsilon == 0:
            return self.within_reach(choice, counts), np.zeros(self.past.chain.size)
        scale, template = 1.0, self.template(choice(1.0), counts)
        for _ in range(30):
            if self.past.chain.worth(template) <= 0.93 * self.epsilon:
                break
            scale *= 0.9
            counts = self.counts(choice(scale))
            template = self.template(choice(scale), counts)
        return counts, template

    def within_reach(self, choice: Accuracies, counts: FloatArray) -> FloatArray:
        """Counts for accuracies no finer than a plan can be after this past.

        Two actions that are tied, or nearly, would get all samples, and the others, of which something could be said,
        none. What is planned instead says less than asked.
        """
        finest, narrow = _FINEST * float(self.past.chain.longest.max()), choice(1.0)
        for _ in range(12):
            total = float(steady(counts.sum()))
            if total <= self.most:
                break
            finest *= max((total / self.most) ** 0.5, 1.05)
            self.limited = True
            counts = self.counts(np.maximum(narrow, finest))
        return counts

    def equal(self, kappa: float, goal: float) -> Accuracies:
        """Accuracies max(σ, κ·gap) with the same σ for all pairs."""
        gaps, finest = self.past.gaps, _FINEST * float(self.past.chain.longest.max())
        sigma = self.accuracies(kappa, goal)[1]
        return lambda scale: np.maximum(np.maximum(scale * sigma, kappa * gaps), 0.0 if sigma > 0 else finest)

    def unequal(self, goal: float) -> list[Accuracies]:
        """Accuracies that are wider where the claim can afford it: where it takes losses to get to.

        Whatever loss Z(s) is allowed at the states, with Z ≥ gP_πZ and worth (at most goal in each state, or ρ·Z at a
        start), rivals may have the width gap_k + Z(s_k) - g p_k Z. Z = Ψ̃h, h ≥ 0, is chosen so that what the widths
        cost is small: a convex problem. h_j grows with how much more widths gain by it than they and the claim lose.
        The claim about all states prices the worst ones: its ρ is where Z is largest.
        """
        past, chain = self.past, self.past.chain
        if self.epsilon == 0 or not isinstance(past.rows, KeptRows) or past.rows.size > _FEW:
            return []
        psi, rows = past.rows.psi, -past.rows.rows
        gains, gaps = np.maximum(rows, 0), _KAPPAS[-1] * past.gaps[past.rival]
        square, linear = 2 * self.nats * past.variances[past.rival], self.nats * past.up[past.rival]
        begin = np.zeros(chain.size)
        begin[chain.claimed] = 1.0
        begin = begin if chain.start is None else chain.start
        slack, best, least = np.ones(rows.shape[1]), np.ones(rows.shape[1]), inf
        for _ in range(_ROUNDS):
            allowed = psi @ slack
            size = chain.worth(allowed) / goal
            if size == 0:  # the claim is about ends alone
                return []
            slack, allowed = slack / size, allowed / size
            widths = np.maximum(gaps + rows @ slack, 1e-3 * goal)
            cost = float(steady(np.array((square / widths**2 + linear / widths).sum())))
            if cost < least:
                best, least = allowed, cost
            pull = 2 * square / widths**3 + linear / widths**2
            more, net = pull @ gains, pull @ rows
            if chain.start is None:
                begin = begin * (np.maximum(allowed, 0) / goal) ** 4
            if not begin.any():  # the worst states have changed too often
                break
            price = begin @ psi / begin.sum()
            rate = max(float(slack @ net), 1e-3 * float(slack @ more)) / float(price @ slack)
            slack = slack * np.clip(more / (more - net + rate * price + 1e-300), 0.1, 10) ** 0.3
            # Whatever is allowed anywhere, each pair may lead there without having shown it.
            slack = slack * np.minimum(1, _UNSEEN * goal / np.maximum(allowed[chain.live], 1e-300))
        room = best[chain.state] - chain.step * (past.kernel @ best)
        return [lambda scale: np.maximum(_KAPPAS[-1] * past.gaps + scale * room, 1e-3 * goal)]

    def accuracies(self, kappa: float, goal: float) -> tuple[FloatArray, float]:
        """Widths (M,) that rivals may have, and σ."""
        past, chain = self.past, self.past.chain
        ends = np.zeros(chain.size)
        if self.epsilon == 0:
            return np.maximum(kappa * past.gaps, 1e-12), 0.0
        low, high, warm = 0.0, self.epsilon, None
        for _ in range(14):
            sigma = (low + high) / 2 if low > 0 or high < 1e-6 * self.epsilon else high / 4
            gains = np.where(past.rival, np.maximum(sigma, kappa * past.gaps) - past.gaps, 0.0)
            warm = chain.optimal(past.kernel, gains, ends, warm)
            if chain.worth(warm) <= goal:
                low = sigma
            else:
                high = sigma
            if high - low < 0.02 * high:
                break
        sigma = max(low, 1e-6 * self.epsilon)
        return np.maximum(sigma, kappa * past.gaps), sigma

    def counts(self, accuracies: FloatArray) -> FloatArray:
        """Counts (M,) that give rivals these accuracies."""
        past, played = self.past, self.past.policy
        widths = _SHARE_FIRST * accuracies
        index = np.flatnonzero(past.rival)
        linear = np.where(past.rival, self.nats * past.up / widths, 0.0)
        linear[played] = self.nats * past.rows.largest(1 / widths[index], past.up[played], past.down[played])
        targets = widths[index] ** 2 / (2 * self.nats)
        spread = past.variances[index], past.variances[played]
        own, others = least_counts(past.rows.forward, past.rows.backward, *spread, targets, rounds=past.rows.rounds)
        square = np.zeros(len(linear))
        square[index], square[played] = own, others
        best = min(
            (np.maximum(square / (1 - eta) ** 2, linear / eta) for eta in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8)),
            key=lambda counts: float(counts.sum()),
        )
        least = _CHEAP * float(best.mean()) if self.epsilon > 0 else 0.0  # ties, if ε = 0, take nearly all
        return np.clip(best, max(_LEAST, least), _MOST)

    def start_counts(self) -> list[FloatArray]:
        """Counts along π for many limits on the first bound of |V^π - Ṽ|, the coarsest first."""
        past, played = self.past, self.past.policy
        live = past.chain.live
        nats = log(2 * len(played) / (SHARES["start"] * self.delta))
        reach = nats * np.maximum(past.up, past.down)[played]

        def forward(weights: FloatArray) -> FloatArray:
            return past.solver.solve(weights)[0]

        targets = past.chain.longest[live]
        nothing = np.zeros(len(live))
        _, counts = least_counts(forward, past.solver.solve_transposed, nothing, reach, targets, rounds=12)
        return [counts / 0.6**level for level in range(_LEVELS)]

    # --- template and bets

    def template(self, accuracies: FloatArray, counts: FloatArray) -> FloatArray:
        """U: the optimal value of what is left of the gains, with what U's own noise needs along π."""
        past, chain = self.past, self.past.chain
        template = np.zeros(chain.size)
        if self.form == 0:
            return template
        for _ in range(4):
            gains = accuracies - past.gaps
            gains[past.policy] = self.own_noise(template, counts)[past.policy]
            template = chain.optimal(past.kernel, gains, np.zeros(chain.size), template)
            if chain.worth(template) > 4 * self.epsilon:
                break
        return template

    def own_noise(self, template: FloatArray, counts: FloatArray) -> FloatArray:
        """Width (M,) of gU(S') at these counts."""
        past, chain = self.past, self.past.chain
        mean = past.kernel @ template
        squares = chain.step**2 * np.maximum(past.kernel @ template**2 - mean**2, 0)
        rise = chain.step * (chain.highest(template) - mean)
        width: FloatArray = np.sqrt(2 * self.nats * squares / counts) + self.nats * rise / counts
        return width

    def from_the_past(self, template: FloatArray) -> Observed:
        """Squares and ranges as the past shows them."""
        past, chain = self.past, self.past.chain
        mean = past.kernel @ template
        squares = mean_squares(past.samples, chain.step * (past.values + template), -past.centres - chain.step * mean)
        alone = chain.step**2 * np.maximum(past.kernel @ template**2 - mean**2, 0)
        squares[past.policy] = alone[past.policy]
        return Observed(past.variances, squares, past.variances, past.up, past.down)

    def lag(self, counts: FloatArray, template: FloatArray, expected: Observed) -> Lag:
        """Everything fixed, with bets that are best for what is expected, and a little more."""
        past, chain, played = self.past, self.past.chain, self.past.policy
        unit = np.maximum(np.ceil(steady(counts / PLANNED)), 1).astype(np.int64)
        squares, own, start = (
            _MORE_SQUARES * each for each in (expected.squares, expected.template_squares, expected.start_squares)
        )
        up, down = _MORE_RANGE * expected.up, _MORE_RANGE * expected.down
        total, reach = np.zeros(len(up)), np.zeros(len(up))
        weights = (each[played] for each in (squares / unit, up / unit, down / unit))
        total[past.rival], reach[past.rival] = past.rows.of_rivals(*weights)
        rise = chain.step * (chain.highest(template) - past.kernel @ template)
        bets = np.ones((2, len(up)))
        for form in range(2):
            if self.shares[form] > 0:
                g0 = (own if form else squares) / unit + total
                b0 = np.maximum((up + form * rise) / unit, reach)
                g0[played], b0[played] = (own / unit)[played], (rise / unit)[played]
                b0 = np.maximum(b0, _NARROWEST * chain.longest.max() / unit)
                bets[form] = planned_bets(-log(float(self.shares[form]) * self.delta), g0, b0)
        samples = past.samples
        order = np.lexsort((-samples.counts, samples.pair))
        starts = np.searchsorted(samples.pair, np.arange(len(up)))
        reference = samples.next_state[order[starts]]
        lag = Lag(
            self.delta, unit, np.array(LOOKS), played, samples.pair, samples.next_state,
            samples.counts / samples.pulls[samples.pair], past.values, past.centres, reference, self._hub(), template,
            squares, own, start, up, down, np.minimum(bets, 1e200), self.shares,
        )  # fmt: skip
        rows = past.rows
        if isinstance(rows, KeptRows):
            lag.remember("_resolvent", lambda: rows.psi)
        return lag

    def _hub(self) -> FloatArray:
        """Where π spends its time, as a distribution on each block."""
        past, chain = self.past, self.past.chain
        time = np.zeros(chain.size)
        live = len(chain.live)
        time[chain.live] = past.solver.solve_transposed(np.full(live, 1 / live))
        ends = np.setdiff1d(np.arange(chain.size), chain.live)
        if len(ends):
            arrived = chain.step * (past.kernel[past.policy].T @ time[chain.live])
            time[ends] = arrived[ends] * float(chain.longest.max())
        time += 1e-12
        sums = np.add.reduceat(time, chain.blocks)
        block_of = np.searchsorted(chain.blocks, np.arange(chain.size), side="right") - 1
        hub: FloatArray = time / sums[block_of]
        return hub

    # --- rehearsal

    def rehearse(
        self, counts: FloatArray, template: FloatArray, rng: np.random.Generator, expected: Observed | None = None
    ) -> tuple[Lag, Verdict]:
        """Look at data that the past's model draws; if nothing is expected of them, look first for what they show."""
        table = self.past.table
        lag = self.lag(counts, template, expected or self.from_the_past(template))
        data = self._data(lag, rng)
        if expected is None:
            lag = self.lag(counts, template, observe(table, lag, data, PLANNED, self._sums(lag)))
        return lag, look(table, lag, data, PLANNED, self._sums(lag))

    def _sums(self, lag: Lag) -> Sums | None:
        """Return what a look would compute itself, as estimates, where that takes long."""
        rows = self.past.rows
        return rows.sums(lag) if isinstance(rows, EstimatedRows) else None

    def _data(self, lag: Lag, rng: np.random.Generator) -> TableSamples:
        # The past is only one draw of the truth: fresh samples differ from it by its error, too. A plan that is larger
        # than the past allows will not begin before the past has grown, so it is rehearsed with such a past.
        pulls = np.maximum(self.past.seen.pulls, (PLANNED / PATIENCE) * lag.unit).astype(np.int64)
        return draw(draw(self.past.seen, pulls, rng), PLANNED * lag.unit, rng)
