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
   rehearsals say that as many samples, divided otherwise, might certify something better than what is known, they are
   an early lag: for a run that may be stopped.

Points 1 to 5 for given numbers are `table_planner`, how many it takes until a rehearsal closes is `table_search`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import log

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy._numerics.reproducible import one_thread, steady
from bestpolicy.algorithms.table_past import Past
from bestpolicy.algorithms.table_planner import PATIENCE, Planner
from bestpolicy.algorithms.table_search import Search
from bestpolicy.stopping.tables.lag import PLANNED, SHARES, Lag
from bestpolicy.stopping.tables.model import Table, TableSamples
from bestpolicy.stopping.tables.rows import is_small

PILOT = 32
_HOPE = 1.15
_SMALL_SHARE = 0.05  # of the form without template where the other one is used
_WORTH = 0.7  # of the best certified ε: an early lag that is not expected to say so much is none
_COARSEST = 0.01  # of what an early lag must certify: finer ones are not planned
_AHEAD = 8  # times the past: samples of an early lag
_DIVISIONS = [0.3, 0.5, 0.7]  # what the start may take of them


class EarlyLag(Lag):
    """A lag for some coarse ε, of as many samples as the plan for the asked one wants first: it has one look."""


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
    seed, plans = int(rng.integers(2**62)), []
    # What is claimed in every state is true at the start, so a plan for that is one for the start, too.
    for claim in [table] if table.start is None else [table, replace(table, start=None)]:
        planner = Planner(replace(model, table=claim, chain=claim.chain), epsilon, delta, shares)
        planned, lag = Search(planner, *planner.first_plan(), seed, say).close()
        plans.append((float(steady(planned.sum())), planned, lag))
    total, planned, lag = min(plans, key=lambda plan: plan[0])
    had = float(past.pulls.sum())
    if lag is not None and total <= PATIENCE * had:
        return lag
    room = max(total / PATIENCE * 1.1 - had, 0.25 * had)
    pulls = np.ceil(planned * (min(room, 4 * had) / total))
    if foresee is not None:
        foresee(total + max(float(pulls.sum()), 1.1 * total / PATIENCE - had))
    soon = None if early is None else _early_lag(model, epsilon, min(room, _AHEAD * had), *early, seed, say)
    return pulls.astype(np.int64) if soon is None else soon


def _early_lag(
    model: Past,
    epsilon: float,
    room: float,
    delta: float,
    known: float,
    seed: int,
    say: Callable[[str], None] | None,
) -> EarlyLag | None:
    """Plan a lag of the samples that there is room for, unless rehearsals say that it would certify too little."""
    worth = _WORTH * min(known, float(model.chain.longest.max()))
    if epsilon > _WORTH * worth:
        return None
    rest, plans, small = 1 - sum(SHARES.values()), [], is_small(model.chain)
    finer = (worth * max(epsilon, _COARSEST * worth)) ** 0.5
    for coarse in [worth, finer] if small else [worth]:  # rehearsals of large tables take long
        planner = Planner(model, coarse, delta, np.array([_SMALL_SHARE, rest - _SMALL_SHARE]))
        plans.append(Search(planner, *planner.first_plan(), seed, say).filling(room, _DIVISIONS if small else [0.5]))
    bound, lag = min(plans, key=lambda plan: plan[0])
    if bound > worth:
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
