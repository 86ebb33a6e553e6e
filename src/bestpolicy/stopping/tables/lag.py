"""What Theorem U fixes before a fresh sample is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import log
from typing import TypeVar

import numpy as np

from bestpolicy._numerics.arrays import FloatArray, IntArray, Matrix
from bestpolicy.errors import InvalidInput
from bestpolicy.stopping.lemmas.betting import best_bets
from bestpolicy.stopping.tables.model import Chain, kernel_of, resolvent

PLANNED = 10  # the look, in units, that bets are best for
LOOKS = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 17, 20)
SHARES = {"law": 0.03, "out": 0.02, "loc": 0.03, "ref": 0.02, "pair": 0.02, "start": 0.03}  # the rest is for `forms`

Known = TypeVar("Known")


@dataclass(frozen=True, eq=False)
class Lag:
    """Everything that is a function of the past: plain numbers and arrays. States are those of ``Table.chain``.

    Attributes
    ----------
    delta : float
        Confidence that this lag spends.
    unit : int array (M,)
        n0: a look at c has c·n0 fresh samples of each pair.
    looks : int array
        The c at which one may look.
    policy : int array (n,)
        π: one pair for each live state.
    pair, successor : int arrays (entries,)
        Supports B_k: what followed each pair in the past, in order; at least one for each pair.
    probability : array (entries,)
        P̃.
    values : array (N,)
        Ṽ; at ends the known value.
    centres : array (M,)
        m̃.
    reference : int array (M,)
        ref_k, a state that may follow pair k.
    hub : array (N,)
        ν: a distribution on each block of states.
    template : array (N,)
        U; 0 at ends.
    squares, template_squares, start_squares : arrays (M,)
        Expected mean squares of R + γV^π(S') around its centre, of the same with γU(S') added (at the pairs of π: of
        γU(S') alone), and of R + γṼ(S'). Bets are best for these.
    up, down : arrays (M,)
        Expected ranges above and below the centre.
    bets : array (2, M)
        λ0 of event adv, without and with the template.
    shares : array (2,)
        Shares of delta of event adv, without and with the template; 0 means that the form is not used.
    """

    delta: float
    unit: IntArray
    looks: IntArray
    policy: IntArray
    pair: IntArray
    successor: IntArray
    probability: FloatArray
    values: FloatArray
    centres: FloatArray
    reference: IntArray
    hub: FloatArray
    template: FloatArray
    squares: FloatArray
    template_squares: FloatArray
    start_squares: FloatArray
    up: FloatArray
    down: FloatArray
    bets: FloatArray
    shares: FloatArray

    def check(self, chain: Chain) -> None:
        """Raise InvalidInput unless the theorem allows these numbers."""
        pairs, live = len(chain.state), len(chain.live)
        for field in fields(self):
            if not np.isfinite(getattr(self, field.name)).all():
                raise InvalidInput(f"{field.name} of a lag must be finite.")
        wrong = (
            not 0 < self.delta < 1
            or self.shares.min() < 0
            or self.shares.sum() + sum(SHARES.values()) > 1 + 1e-12
            or self.unit.shape != (pairs,)
            or self.unit.min() < 1
            or (self.looks < 1).any()
            or self.policy.shape != (live,)
            or (chain.state[self.policy] != chain.live).any()
            or self.bets.shape != (2, pairs)
            or self.bets.min() <= 0
            or self.probability.min() <= 0
            or not np.allclose(np.bincount(self.pair, self.probability, pairs), 1, rtol=0, atol=1e-9)
        )
        ends = np.setdiff1d(np.arange(chain.size), chain.live)
        wrong = wrong or self.template[ends].any() or (self.values[ends] != chain.known[ends]).any()
        wrong = wrong or self.values.min() < 0 or (self.values > np.maximum(chain.longest, chain.known) + 1e-9).any()
        block_of = np.searchsorted(chain.blocks, np.arange(chain.size), side="right") - 1
        wrong = wrong or (block_of[self.reference] != chain.block).any()
        wrong = wrong or (block_of[self.successor] != chain.block[self.pair]).any()
        sums = np.add.reduceat(self.hub, chain.blocks)
        wrong = wrong or self.hub.min() < 0 or not np.allclose(sums, 1, rtol=0, atol=1e-12)
        wrong = wrong or (np.diff(self.pair * chain.size + self.successor) <= 0).any()
        if wrong:
            raise InvalidInput("This lag is none that the theorem allows: its numbers contradict one another.")

    def kernel(self, chain: Chain) -> Matrix:
        """P̃ as a sparse matrix (M, N); its rows sum to 1 as nearly as they can."""
        sums = np.bincount(self.pair, self.probability, len(chain.state))
        return kernel_of(self.pair, self.successor, self.probability / sums[self.pair], (len(chain.state), chain.size))

    def resolvent(self, chain: Chain) -> FloatArray:
        """Ψ̃ (N, n); looks measure how exact it is and allow for it."""
        return self.remember("_resolvent", lambda: resolvent(chain, self.kernel(chain), self.policy))

    def remember(self, name: str, make: Callable[[], Known]) -> Known:
        """Return what follows from the lag alone, which is computed once: all its looks need it."""
        if name not in vars(self):
            vars(self)[name] = make()
        known: Known = vars(self)[name]
        return known

    def nats(self, event: str, union: int) -> float:
        """Return log(union / (share·delta)) of an event."""
        return log(union / (SHARES[event] * self.delta))

    def form_nats(self, form: int) -> float:
        """Return the nats of event adv: no union."""
        return -log(float(self.shares[form]) * self.delta)


def planned_bets(nats: float, squares: FloatArray, reach: FloatArray) -> FloatArray:
    """Bets that are best at the planned look."""
    return best_bets(nats / PLANNED, squares, reach)
