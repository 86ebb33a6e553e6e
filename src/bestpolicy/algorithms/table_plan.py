"""What to sample of a table, how often, and what to bet on it: everything that Theorem U lets the past decide.

All of this is about efficiency. Whatever is planned here is a function of past samples and of random numbers of its
own, so the theorem holds for it; a bad plan costs samples.

1. The past's model: its optimal policy π, values Ṽ, gaps, variances of R + γṼ(S').
2. Accuracies. The width of rival k may be max(σ, κ·gap_k), σ the largest for which the optimal value of the gains
   max(σ, κ·gap) - gap stays below what is asked, in each state or at the start; or widths differ, being larger where
   the claim can afford it (`Planner.unequal`). Whichever is cheaper. Four fifths of it are for the first order.
3. Counts. The cheapest that make √(2l·Σ y²v/n) and l·max|y|B/n small enough (multipliers), and those along π that make
   the start cheap enough.
4. Template: the optimal value of the gains that are left at these counts.
5. Rehearsal: draw the look's data from the past's model, look, learn squares and ranges for the bets, look again. Raise
   counts until it closes.
6. Go, or wait: a plan that is much larger than the past is no plan yet. Sample in its proportions and plan again. If
   a rehearsal says that these samples might certify something better than what is known, they are an early lag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import inf, log

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray
from bestpolicy._numerics.reproducible import one_thread, steady
from bestpolicy.algorithms.table_past import Past, draw, least_counts, mean_squares
from bestpolicy.algorithms.table_rows import EstimatedRows, KeptRows
from bestpolicy.stopping.tables.lag import LOOKS, PLANNED, SHARES, Lag, planned_bets
from bestpolicy.stopping.tables.look import Observed, Verdict, look, observe
from bestpolicy.stopping.tables.model import Table, TableSamples
from bestpolicy.stopping.tables.rows import Sums

PILOT = 32
_LEAST = 8
_KAPPAS = (0.5, 0.65, 0.8, 0.92)
_SHARE_FIRST = 0.8  # of an accuracy that the first order may use
_CLOSES = 0.95  # of epsilon: what a rehearsal must reach
_GROWTH, _STEP = 1.25, 1.12  # of counts, on the way up and when it is tried with fewer
_DRAWS = 3
_HOPE = 1.15
_PATIENCE = 3.0  # a plan of more than so many times the past waits
_FARTHEST = 5.5 * _PATIENCE  # times the past: a larger plan asks for no more samples before the next one
_POLISHED = 1.3 * _PATIENCE  # times the past: up to here it is tried with fewer samples
_LEVELS = 22  # of the start, each 0.6 times as coarse as the one before
_MORE_SQUARES, _MORE_RANGE = 1.1, 1.05  # what bets are prepared for, in terms of what was observed
_MOST = 1e12  # samples of a pair that a plan may ask for: ties would ask for infinitely many
_SMALL_SHARE = 0.05  # of the form without template where the other one is used
_FINEST = 1e-5  # of the largest value: accuracies are not finer, as nobody has the samples
_WORTH = 0.7  # of the best certified ε: an early lag that is not expected to say so much is none
_NARROWEST = 1e-10  # of the largest value: whoever checks a bet on a smaller range would bet on rounding errors
_UNSEEN = 4.0  # times what is asked: the largest loss that is allowed to states which the start hardly reaches
_FEW = 10_000_000  # entries of directions up to which accuracies at a start are unequal
_ROUNDS = 100  # of the search for what is allowed where
Accuracies = Callable[[float], FloatArray]  # widths (M,) that rivals may have, at a scale of at most 1


class EarlyLag(Lag):
    """A lag for some coarse ε, of samples that the plan for the asked one wants first: one look, at planned counts."""


class Planner:
    """One plan: a past, an accuracy and a confidence."""

    def __init__(self, past: Past, epsilon: float, delta: float, shares: FloatArray) -> None:
        self.past, self.epsilon, self.delta, self.shares = past, epsilon, delta, shares
        self.form = 1 if shares[1] > 0 else 0
        self.nats = -log(float(shares[self.form]) * delta)
        self.most = 30 * _PATIENCE * float(past.samples.pulls.sum())  # samples that a plan may take
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
        return np.clip(best, _LEAST, _MOST)

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
        pulls = np.maximum(self.past.seen.pulls, (PLANNED / _PATIENCE) * lag.unit).astype(np.int64)
        return draw(draw(self.past.seen, pulls, rng), PLANNED * lag.unit, rng)


@one_thread()
def plan_lag(
    table: Table,
    past: TableSamples,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    say: Callable[[str], None] | None = None,
    early: tuple[float, float] | None = None,
    foresee: Callable[[float], None] | None = None,
) -> Lag | EarlyLag | IntArray:
    """Plan the next lag, or say what to sample first.

    Parameters
    ----------
    table : Table
    past : TableSamples
        All samples so far.
    epsilon : float
        The loss that is to be certified; 0 for an optimal policy.
    delta : float
        Confidence that this lag may spend.
    rng : numpy Generator
        For rehearsals alone.
    say : function, optional
        Is told what is tried.
    early : two floats, optional
        Confidence that an early lag may spend, and the best ε that is certified so far (inf if there is none).
    foresee : function, optional
        Is told how many more samples there should be until what is asked is certified, once there is a plan.

    Returns
    -------
    Lag, EarlyLag or int array (M,)
        Samples to draw of each pair, which are no test, before a plan is worth it.
    """
    lacking = np.maximum(PILOT - past.pulls, 0)
    if lacking.any():
        return lacking
    model = Past.of(table, past)
    rest = 1 - sum(SHARES.values())
    shares = np.array([rest, 0.0]) if epsilon == 0 else np.array([_SMALL_SHARE, rest - _SMALL_SHARE])
    planner = Planner(model, epsilon, delta, shares)
    counts, template = planner.first_plan()
    planned, lag = Search(planner, counts, template, int(rng.integers(2**62)), say).close()
    total, had = float(planned.sum()), float(past.pulls.sum())
    if lag is not None and total <= _PATIENCE * had:
        return lag
    wanted = min(max(total / _PATIENCE * 1.1 - had, 0.25 * had), 4 * had)
    pulls = np.ceil(planned * (wanted / total))
    if foresee is not None:
        foresee(total + max(float(pulls.sum()), 1.1 * total / _PATIENCE - had))
    soon = None if early is None else _early_lag(model, pulls, *early, rng)
    return pulls.astype(np.int64) if soon is None else soon


def _early_lag(
    model: Past, counts: FloatArray, delta: float, known: float, rng: np.random.Generator
) -> EarlyLag | None:
    """Make a lag of so many samples, unless a rehearsal says that it would certify too little."""
    chain, none = model.chain, np.zeros(model.chain.size)
    worth = _WORTH * min(known, float(chain.longest.max()))
    rest = 1 - sum(SHARES.values())
    lag, verdict = Planner(model, 0.0, delta, np.array([rest, 0.0])).rehearse(counts, none, rng)
    if verdict.epsilon <= 2 * worth and verdict.epsilon > 0:
        # The gains that these samples leave are the best template.
        template = chain.optimal(model.kernel, verdict.gains, none)
        planner = Planner(model, verdict.epsilon, delta, np.array([_SMALL_SHARE, rest - _SMALL_SHARE]))
        other, second = planner.rehearse(counts, template, rng)
        if second.epsilon < verdict.epsilon:
            lag, verdict = other, second
    if not verdict.epsilon <= worth:
        return None
    return EarlyLag(**{field.name: getattr(lag, field.name) for field in fields(lag)})


def hopeless(lag: Lag, bounds: list[tuple[int, float]], epsilon: float) -> bool:
    """Whether a lag had better be left: going on as between its last two looks, the last one will not reach epsilon.

    Its samples are the past of the next lag then. Whether later looks are made is free; nothing else may change.

    Parameters
    ----------
    lag : Lag
    bounds : list of (units, bound)
        What its looks have said so far.
    epsilon : float
    """
    # Up to the planned look bounds may stay high and then fall all at once, as soon as the start is good enough.
    if len(bounds) < 2 or bounds[-1][0] <= PLANNED or not np.isfinite(bounds[-2][1]) or bounds[-1][1] <= epsilon:
        return False
    (before, old), (units, new) = bounds[-2:]
    slope = log(old / new) / log(units / before) if new < old else 0.0
    return bool(new * (units / float(lag.looks[-1])) ** slope > _HOPE * epsilon)


class Search:
    """The cheapest counts whose rehearsal closes: a multiple of those of the first order, and a level of the start."""

    def __init__(
        self,
        planner: Planner,
        counts: FloatArray,
        template: FloatArray,
        seed: int,
        say: Callable[[str], None] | None,
    ) -> None:
        self.planner, self.counts, self.template = planner, counts, template
        self.levels, self.seed, self.say = planner.start_counts(), seed, say
        self.known: dict[tuple[float, int], tuple[float, Lag, Observed]] = {}
        self.worst: dict[tuple[float, int], float] = {}  # of several draws

    def planned(self, factor: float, level: int) -> FloatArray:
        """Counts (M,)."""
        planned = self.counts * factor
        played = self.planner.past.policy
        planned[played] = np.maximum(planned[played], self.levels[level])
        return planned

    def cost(self, factor: float, level: int) -> float:
        """Samples in all."""
        return float(self.planned(factor, level).sum())

    def rehearse(self, factor: float, level: int, near: tuple[float, int] | None = None) -> float:
        """Bound that a rehearsal ends with; squares and ranges are expected to be those of the plan nearby, if any."""
        if (factor, level) not in self.known:
            self.known[factor, level] = self._rehearsed(factor, level, near)
        return self.known[factor, level][0]

    def _rehearsed(
        self, factor: float, level: int, near: tuple[float, int] | None, draw: int = 0
    ) -> tuple[float, Lag, Observed]:
        planned = self.planned(factor, level)
        expected = None if near is None else self.known[near][2]
        # Every rehearsal draws the same random numbers, so that luck does not decide between plans.
        rng = np.random.default_rng([self.seed, draw])
        lag, verdict = self.planner.rehearse(planned, self.template, rng, expected)
        if self.say is not None:
            shown = verdict.forms / (self.planner.epsilon or 1.0)
            self.say(f"rehearsed {planned.sum():.4g} samples, factor {factor:.3g}, level {level}: {shown}")
        return float(steady(np.array(verdict.epsilon))), lag, verdict.observed

    def close(self) -> tuple[FloatArray, Lag | None]:
        """Return planned counts, and the lag if its rehearsal closes."""
        goal = _CLOSES * self.planner.epsilon
        had, limited = float(self.planner.past.samples.pulls.sum()), self.planner.limited
        most = _FARTHEST * had
        spent = float(self.counts.sum()) * (1.0 if limited else 0.25)  # on the start, at first
        factor, level = 1.0, max([i for i, each in enumerate(self.levels) if each.sum() <= spent], default=0)
        if limited:
            return self.planned(factor, level), None
        while self.cost(factor, level) <= most and self.rehearse(factor, level) > goal:
            factor, level = self._better(factor, level, goal)
        if self.cost(factor, level) > most:
            return self.planned(factor, level), None
        if self.cost(factor, level) > _POLISHED * had and self.rehearse(factor, level) > 0.75 * goal:
            return self.planned(factor, level), None  # it will wait and be planned anew: no need to be exact
        self.known[factor, level] = self._rehearsed(factor, level, (factor, level))  # with bets for what it showed
        while not self._closes(factor, level, goal) and self.cost(factor, level) <= most:
            here, factor = (factor, level), factor * _STEP
            self.rehearse(factor, level, here)
        for shrink, lower in ((1.0, 1), (_STEP, 0)):  # fewer, as long as it closes
            while level >= lower and factor > 0.2:
                here, there = (factor, level), (factor / shrink, level - lower)
                # A bound falls at least like the root of the counts.
                if self.worst[here] * (self.cost(*here) / self.cost(*there)) ** 0.5 > goal:
                    break
                self.rehearse(*there, here)
                if not self._closes(*there, goal):
                    break
                factor, level = there
                if self.cost(*there) > 0.97 * self.cost(*here):
                    break
        return self.planned(factor, level), self.known[factor, level][1]

    def _closes(self, factor: float, level: int, goal: float) -> bool:
        """Whether the bound is reached with other draws, too: one may be lucky."""
        self.worst[factor, level] = self.known[factor, level][0]
        for number in range(1, _DRAWS):
            if self.worst[factor, level] > goal:
                return False
            another = self._rehearsed(factor, level, (factor, level), number)[0]
            self.worst[factor, level] = max(self.worst[factor, level], another)
        return self.worst[factor, level] <= goal

    def _better(self, factor: float, level: int, goal: float) -> tuple[float, int]:
        """Return more counts for the first order or for the start: what lowers the bound more for its price."""
        epsilon, cost = self.rehearse(factor, level), self.cost(factor, level)
        steps = 2 if epsilon > 3 * goal else 1
        moves = [(factor * _GROWTH**steps, level)]
        if level + 1 < len(self.levels):
            moves.append((factor, min(level + steps, len(self.levels) - 1)))
        gains = []
        for move in moves:
            after = self.rehearse(*move, (factor, level))
            least = min(max(after, goal / 2, 1e-300), 1e300)  # more counts may say nothing at all
            gained = log(epsilon / least) if np.isfinite(epsilon) else float(after < epsilon)
            gains.append(gained / max(log(self.cost(*move) / cost), 1e-6))
        return moves[int(np.argmax(gains))]
