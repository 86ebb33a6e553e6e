"""What to sample of a table, how often, and what to bet on it: everything that Theorem U lets the past decide.

All of this is about efficiency. Whatever is planned here is a function of past samples and of random numbers of its
own, so the theorem holds for it; a bad plan costs samples.

1. The past's model: its optimal policy π, values Ṽ, gaps, variances of R + γṼ(S').
2. Accuracies. The width of rival k may be max(σ, κ·gap_k), σ the largest for which the optimal value of the gains
   max(σ, κ·gap) - gap stays below what is asked. Four fifths of it are for the first order.
3. Counts. The cheapest that make √(2l·Σ y²v/n) and l·max|y|B/n small enough (multipliers), and those along π that make
   the start cheap enough.
4. Template: the optimal value of the gains that are left at these counts.
5. Rehearsal: draw the look's data from the past's model, look, learn squares and ranges for the bets, look again. Raise
   counts until it closes.
6. Go, or wait: a plan that is much larger than the past is no plan yet. Sample in its proportions and plan again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray, Matrix
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.stopping.tables.lag import LOOKS, PLANNED, SHARES, Lag, planned_bets
from bestpolicy.stopping.tables.look import Verdict, directions, look, resolvent
from bestpolicy.stopping.tables.model import Chain, Table, TableSamples, kernel_of

PILOT = 32
_LEAST = 8
_KAPPAS = (0.5, 0.65, 0.8, 0.92)
_SHARE_FIRST = 0.8  # of an accuracy that the first order may use
_CLOSES = 0.95  # of epsilon: what a rehearsal must reach
_GROWTH = 1.25
_PATIENCE = 4.0  # a plan of more than so many times the past waits
_KEPT = 4_000_000  # entries of directions that are kept rather than formed anew
_LEVELS = 22
_NARROWEST = 1e-10  # of the largest value: whoever checks a bet on a smaller range would bet on rounding errors


@dataclass(frozen=True, eq=False)
class Past:
    """The past's model."""

    table: Table
    chain: Chain
    seen: TableSamples  # with states of the table
    samples: TableSamples  # the same with states of the chain
    kernel: Matrix
    rewards: FloatArray
    values: FloatArray
    policy: IntArray
    gaps: FloatArray
    rival: BoolArray
    variances: FloatArray
    up: FloatArray
    down: FloatArray
    psi: FloatArray

    @classmethod
    @one_thread()
    def of(cls, table: Table, past: TableSamples, policy: IntArray | None = None) -> Past:
        """The model of these samples, with its optimal policy unless one is given."""
        chain = table.chain
        samples = chain.successors(table, past)
        pulls = samples.pulls
        kernel = kernel_of(
            samples.pair, samples.next_state, samples.counts / pulls[samples.pair], (len(chain.state), chain.size)
        )
        rewards = samples.reward_sums / pulls
        values = chain.optimal(kernel, rewards, chain.known)
        q = rewards + chain.step * (kernel @ values)
        policy = chain.greedy(q, float(chain.longest.max())) if policy is None else policy
        values = np.clip(
            chain.evaluate(kernel, policy, rewards, chain.known), 0, np.maximum(chain.longest, chain.known)
        )
        q = rewards + chain.step * (kernel @ values)
        rival = np.ones(len(q), dtype=np.bool_)
        rival[policy] = False
        gaps = np.where(rival, np.maximum(values[chain.state] - q, 0), 0.0)
        variances = _mean_squares(samples, chain.step * values, -q)
        up = 1 + chain.step * chain.highest(values) - q
        down = q + chain.step * chain.highest(-values)
        psi = resolvent(chain, kernel, policy)
        return cls(table, chain, past, samples, kernel, rewards, values, policy, gaps, rival, variances, up, down, psi)

    def directions(self) -> Iterator[tuple[slice, FloatArray]]:
        """Rows (g p̃_k - e_s)Ψ̃ of all pairs, 0 at the pairs of π; kept if they are few."""
        if self.psi.shape[1] * len(self.gaps) > _KEPT:
            yield from directions(self.chain, self.kernel, self.psi)
            return
        if not hasattr(self, "_rows"):
            object.__setattr__(self, "_rows", list(directions(self.chain, self.kernel, self.psi)))
        yield from self._rows  # type: ignore[attr-defined]


def _mean_squares(samples: TableSamples, function: FloatArray, offsets: FloatArray) -> FloatArray:
    """Mean squares (M,) of R + function(S') + offset."""
    moved = function[samples.next_state] + offsets[samples.pair]
    terms = np.bincount(samples.pair, 2 * samples.rewards * moved + samples.counts * moved**2, len(samples.squares))
    return np.maximum(samples.squares + terms, 0.0) / np.maximum(samples.pulls, 1)


def draw(samples: TableSamples, pulls: IntArray, rng: np.random.Generator) -> TableSamples:
    """Draw so many samples of each pair from what was seen: successors as multinomials, rewards near their means."""
    first = np.searchsorted(samples.pair, np.arange(len(pulls) + 1))
    lengths = np.diff(first)
    counts = np.zeros(len(samples.pair), dtype=np.int64)
    left, mass = pulls.astype(np.int64), samples.pulls.astype(np.float64)
    for place in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > place)
        entry = first[rows] + place
        chance = np.clip(samples.counts[entry] / np.maximum(mass[rows], 1), 0, 1)
        chance[lengths[rows] == place + 1] = 1.0
        drawn = rng.binomial(left[rows], chance)
        counts[entry] = drawn
        left[rows] -= drawn
        mass[rows] -= samples.counts[entry]
    means = samples.rewards / samples.counts
    within = np.bincount(samples.pair, samples.rewards * means, len(pulls))
    variance = np.maximum(samples.squares - within, 0) / samples.pulls
    noise = np.sqrt(counts * variance[samples.pair]) * rng.standard_normal(len(counts))
    rewards = np.clip(counts * means + noise, 0, counts)
    return TableSamples.of(samples.pair, samples.next_state, counts, rewards, samples.squares * (pulls / samples.pulls))


def least_counts(
    passes: Callable[[], Iterator[tuple[slice, FloatArray]]],
    own: FloatArray,
    played: FloatArray,
    targets: FloatArray,
    rounds: int = 8,
) -> tuple[FloatArray, FloatArray]:
    """Return the cheapest counts with own_k/n_k + Σ_j row_kj·played_j/n_j ≤ target_k, nearly.

    Returns those of the pairs k themselves and those of the played pairs j. By multipliers μ: n_j = √(played_j Σ_k
    μ_k row_kj), n_k = √(own_k μ_k), and μ_k grows with what is missing at k.
    """
    weights = 1 / targets**2
    weights *= np.maximum(own, 1e-30)
    counts, others = np.ones(len(own)), np.ones(len(played))
    for turn in range(rounds + 1):
        total = np.zeros(len(played))
        for part, rows in passes():
            total += weights[part] @ rows
        counts, others = np.sqrt(own * weights) + 1e-9, np.sqrt(played * total) + 1e-9
        ratio = own / counts
        for part, rows in passes():
            ratio[part] += rows @ (played / others)
        ratio /= targets
        if turn < rounds:
            weights = weights * np.clip(ratio, 1e-3, 1e3) + 1e-300
    worst = min(float(ratio.max()), 2.0)
    return counts * worst, others * worst


class Planner:
    """One plan: a past, an accuracy and a confidence."""

    def __init__(self, past: Past, epsilon: float, delta: float, shares: FloatArray) -> None:
        self.past, self.epsilon, self.delta, self.shares = past, epsilon, delta, shares
        self.form = 1 if shares[1] > 0 else 0
        self.nats = -log(float(shares[self.form]) * delta)
        self.templates: dict[int, FloatArray] = {}

    # --- accuracies and counts

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

    def counts(self, accuracies: FloatArray, variances: FloatArray) -> FloatArray:
        """Counts (M,) that give rivals these accuracies."""
        past, played = self.past, self.past.policy
        widths = _SHARE_FIRST * accuracies
        index = np.flatnonzero(past.rival)
        linear = np.where(past.rival, self.nats * past.up / widths, 0.0)
        largest = np.zeros(len(played))
        for part, rows in past.directions():
            scaled = rows[past.rival[part]] / widths[part][past.rival[part]][:, None]
            if len(scaled):
                reach = np.maximum(scaled.max(0) * past.up[played], -scaled.min(0) * past.down[played])
                largest = np.maximum(largest, reach)
        linear[played] = self.nats * largest

        def passes() -> Iterator[tuple[slice, FloatArray]]:
            begin = 0
            for part, rows in past.directions():
                chosen = rows[past.rival[part]]
                yield slice(begin, begin + len(chosen)), chosen**2
                begin += len(chosen)

        targets = widths[index] ** 2 / (2 * self.nats)
        own, others = least_counts(passes, variances[index], past.variances[played], targets)
        square = np.zeros(len(linear))
        square[index], square[played] = own, others
        best = min(
            (np.maximum(square / (1 - eta) ** 2, linear / eta) for eta in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8)),
            key=lambda counts: float(counts.sum()),
        )
        return np.maximum(best, _LEAST)

    def start_counts(self) -> list[FloatArray]:
        """Counts along π for many limits on the first bound of |V^π - Ṽ|, the coarsest first."""
        past, played = self.past, self.past.policy
        live = past.chain.live
        nats = log(2 * len(played) / (SHARES["start"] * self.delta))
        reach = nats * np.maximum(past.up, past.down)[played]

        def passes() -> Iterator[tuple[slice, FloatArray]]:
            yield slice(0, len(live)), past.psi[live]

        targets = past.chain.longest[live]
        _, counts = least_counts(passes, np.zeros(len(live)), reach, targets, rounds=12)
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

    def lag(self, counts: FloatArray, template: FloatArray, learned: Verdict | None = None) -> Lag:
        """Everything fixed, with bets that are best for what was learned, or else for what the past shows."""
        past, chain, played = self.past, self.past.chain, self.past.policy
        unit = np.maximum(np.ceil(counts / PLANNED - 1e-6), 1).astype(np.int64)
        centres = past.rewards + chain.step * (past.kernel @ past.values)
        mean = past.kernel @ template
        if learned is None:
            own = _mean_squares(past.samples, chain.step * (past.values + template), -centres - chain.step * mean)
            alone = chain.step**2 * np.maximum(past.kernel @ template**2 - mean**2, 0)
            own[played] = alone[played]
            squares, up, down = past.variances, past.up, past.down
            total, reach = np.zeros(len(up)), np.zeros(len(up))
            start = past.variances
        else:
            own, start = 1.1 * learned.template_squares, 1.1 * learned.start_squares
            squares, up, down = 1.1 * learned.squares, 1.05 * learned.up, 1.05 * learned.down
            total, reach = 1.1 * learned.direction_squares, 1.05 * learned.direction_reach
        rise = chain.step * (chain.highest(template) - mean)
        bets = np.ones((2, len(up)))
        for form in range(2):
            if self.shares[form] > 0:
                g0 = (own if form else squares) / unit + total
                b0 = np.maximum((up + form * rise) / unit, reach)
                g0[played], b0[played] = own[played] / unit[played], (rise / unit)[played]
                b0 = np.maximum(b0, _NARROWEST * chain.longest.max() / unit)
                bets[form] = planned_bets(-log(float(self.shares[form]) * self.delta), g0, b0)
        samples = past.samples
        order = np.lexsort((-samples.counts, samples.pair))
        starts = np.searchsorted(samples.pair, np.arange(len(up)))
        reference = samples.next_state[order[starts]]
        return Lag(
            self.delta, unit, np.array(LOOKS), played, samples.pair, samples.next_state,
            samples.counts / samples.pulls[samples.pair], past.values, centres, reference, self._hub(), template,
            squares, own, start, up, down, np.minimum(bets, 1e200), self.shares,
        )  # fmt: skip

    def _hub(self) -> FloatArray:
        """Where π spends its time, as a distribution on each block."""
        past, chain = self.past, self.past.chain
        time = np.zeros(chain.size)
        time[chain.live] = past.psi[chain.live].mean(0)
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

    def rehearse(self, counts: FloatArray, template: FloatArray, rng: np.random.Generator) -> tuple[Lag, Verdict]:
        """Fix bets by a look at data that the past's model draws; return the look that they then allow."""
        past = self.past
        lag = self.lag(counts, template)
        data = self._data(lag, rng)
        learned = look(past.table, lag, data, PLANNED)
        lag = self.lag(counts, template, learned)
        return lag, look(past.table, lag, data, PLANNED)

    def _data(self, lag: Lag, rng: np.random.Generator) -> TableSamples:
        # The past is only one draw of the truth: fresh samples differ from it by its error, too. A plan that is larger
        # than the past allows will not begin before the past has grown, so it is rehearsed with such a past.
        pulls = np.maximum(self.past.seen.pulls, (PLANNED / _PATIENCE) * lag.unit).astype(np.int64)
        return draw(draw(self.past.seen, pulls, rng), PLANNED * lag.unit, rng)


@one_thread()
def plan_lag(
    table: Table, past: TableSamples, epsilon: float, delta: float, rng: np.random.Generator, trace: bool = False
) -> Lag | IntArray:
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

    Returns
    -------
    Lag or int array (M,)
        Samples to draw of each pair, which are no test, before a plan is worth it.
    """
    lacking = np.maximum(PILOT - past.pulls, 0)
    if lacking.any():
        return lacking
    model = Past.of(table, past)
    rest = 1 - sum(SHARES.values())
    shares = np.array([rest, 0.0]) if epsilon == 0 else np.array([0.05, rest - 0.05])
    planner = Planner(model, epsilon, delta, shares)
    options = []
    for kappa in _KAPPAS:
        accuracies, sigma = planner.accuracies(kappa, 0.9 * epsilon)
        counts = planner.counts(accuracies, model.variances)
        options.append((float(counts.sum()), kappa, sigma, accuracies, counts))
    _, kappa, sigma, accuracies, counts = min(options, key=lambda option: option[0])
    if trace:
        print("  kappas", [(f"{o[0]:.3g}", o[1], f"{o[2]:.3g}") for o in options], "past", past.pulls.sum())
    template = planner.template(accuracies, counts)
    if epsilon > 0:
        for _ in range(30):
            if model.chain.worth(template) <= 0.93 * epsilon:
                break
            sigma *= 0.9
            accuracies = np.maximum(sigma, kappa * model.gaps)
            counts = planner.counts(accuracies, model.variances)
            template = planner.template(accuracies, counts)
    levels = planner.start_counts()
    search = Search(planner, counts, template, levels, int(rng.integers(2**62)), trace)
    planned, lag = search.close()
    total, had = float(planned.sum()), float(past.pulls.sum())
    if lag is not None and total <= _PATIENCE * had:
        return lag
    wanted = min(max(total / _PATIENCE * 1.1 - had, 0.25 * had), 4 * had)
    return np.ceil(planned * (wanted / total)).astype(np.int64)


class Search:
    """The cheapest counts whose rehearsal closes: a multiple of those of the first order, and a level of the start."""

    def __init__(
        self,
        planner: Planner,
        counts: FloatArray,
        template: FloatArray,
        levels: list[FloatArray],
        seed: int,
        trace: bool,
    ) -> None:
        self.planner, self.counts, self.template, self.levels = planner, counts, template, levels
        self.seed, self.trace = seed, trace
        self.known: dict[tuple[float, int], tuple[float, Lag]] = {}

    def planned(self, factor: float, level: int) -> FloatArray:
        planned = self.counts * factor
        played = self.planner.past.policy
        planned[played] = np.maximum(planned[played], self.levels[level])
        return planned

    def rehearse(self, factor: float, level: int) -> tuple[float, Lag]:
        key = (factor, level)
        if key not in self.known:
            planned = self.planned(factor, level)
            # Every rehearsal draws the same random numbers, so that luck does not decide between plans.
            lag, verdict = self.planner.rehearse(planned, self.template, np.random.default_rng(self.seed))
            self.known[key] = verdict.epsilon, lag
            if self.trace:
                shown = verdict.forms / max(self.planner.epsilon, 1e-9)
                print(f"  rehearse factor {factor:.3g} level {level} total {planned.sum():.4g} forms/eps {shown}")
        return self.known[key]

    def close(self) -> tuple[FloatArray, Lag | None]:
        """Return planned counts, and the lag if the rehearsal closes."""
        goal = _CLOSES * self.planner.epsilon
        most = 30 * _PATIENCE * float(self.planner.past.samples.pulls.sum())
        total = float(self.counts.sum())
        level = max([i for i, each in enumerate(self.levels) if each.sum() <= total / 4], default=0)
        factor = 1.0
        for _ in range(60):
            epsilon, lag = self.rehearse(factor, level)
            cost = float(self.planned(factor, level).sum())
            if epsilon <= goal or cost > most:
                break
            moves = [(factor * _GROWTH, level)]
            if level + 1 < len(self.levels):
                moves.append((factor, level + 1))
            gains = []
            for move in moves:
                after = self.rehearse(*move)[0]
                more = log(float(self.planned(*move).sum()) / cost)
                gained = log(epsilon / max(after, goal / 2, 1e-300)) if np.isfinite(epsilon) else float(after < epsilon)
                gains.append(gained / max(more, 1e-6))
            factor, level = moves[int(np.argmax(gains))]
        if epsilon > goal:
            return self.planned(factor, level), None
        for move in ((factor, level - 1), (factor / 1.12, level)):  # fewer
            while move[1] >= 0 and move[0] > 0.2:
                epsilon, other = self.rehearse(*move)
                if epsilon > goal:
                    break
                factor, level, lag = *move, other
                move = (factor, level - 1) if move[1] != level else (factor / 1.12, level)
                move = (factor / 1.12, level)
        return self.planned(factor, level), lag
