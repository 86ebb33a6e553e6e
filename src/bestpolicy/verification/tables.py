"""What Theorem U looks at: a table as one process, what was fixed before the fresh samples, and those samples.

All of it is read from the file, and whatever the theorem needs of it is required here: supports, references and the hub
lie among the states that may follow, the hub is a distribution, the template vanishes where nothing is played any more,
values are possible ones, and the known ones at ends (what is paid at each step there, times the steps that are left),
bets are positive, the shares of δ are those of the format, and there are exactly as many fresh samples of every pair as
the look was planned to have. Expected squares and ranges only decide how much is bet,
centres and probabilities only how good the bound is: they may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected

LOOKS = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 17, 20)  # in units
EVENTS = {"law": 0.03, "out": 0.02, "loc": 0.03, "ref": 0.02, "pair": 0.02, "start": 0.03}  # shares of a lag's δ
_FIRST, _NEXT = 0.65, 0.35  # of δ for the first lag that looks, and of what is left for each later one
_LATEST = 400  # lag after which nothing of δ is left
_SUMS = 1e-9  # how far sums of probabilities may be from 1
_ROUNDING = 1e-9  # relative error that long sums of rewards may have
_BY_PAIR = "centres squares start_squares up down"
FIELDS = f"delta unit looks pair successor probability values reference hub template bets shares {_BY_PAIR}".split()


@dataclass(frozen=True, eq=False)
class Process:
    """A table with one state for every (stage, state), and an end after the last stage of an episode.

    The problem's own ends are states without pairs, at each stage of an episode.

    Attributes
    ----------
    step : float
        γ, or 1 in episodes.
    size : int
        N states.
    live : (n,)
        Those that have pairs; the others are ends.
    state : (M,)
        State of each pair, in increasing order.
    first : (n,)
        First pair of each live state.
    longest : (N,)
        L: the largest value of each live state; 0 at ends.
    known : (N,)
        Value of ends; 0 elsewhere.
    blocks : (blocks + 1,)
        Where the sets of states that may follow the same pairs begin, and N.
    block : (M,)
        Set of the states that may follow each pair.
    is_level : bool
        Whether L(s) = 1 + g p_k L whatever p_k is: not if ends may come early.
    """

    step: float
    size: int
    live: Ints
    state: Ints
    first: Ints
    longest: Floats
    known: Floats
    blocks: Ints
    block: Ints
    is_level: bool

    @classmethod
    def of(cls, case: Case) -> Process:
        """Unroll a problem over its stages."""
        states, stages, episodic = len(case.mask), case.stages, case.horizon is not None
        own = np.flatnonzero(case.open) // case.mask.shape[1]
        stage = np.repeat(np.arange(stages), len(own))
        state = np.tile(own, stages) + states * stage
        live, first = np.unique(state, return_index=True)
        size = states * stages + episodic
        most = np.append(np.repeat(case.limits, states), [0.0] * episodic)
        longest, known = np.zeros(size), case.end_reward * most
        longest[live], known[live] = most[live], 0.0
        blocks = np.append(np.arange(stages + episodic) * states, size)
        is_level = len(case.ends) == 0
        return cls(case.gamma, size, live, state, first, longest, known, blocks, stage + episodic, is_level)

    @property
    def block_of(self) -> Ints:
        """Set that each state lies in, (N,)."""
        return np.repeat(np.arange(len(self.blocks) - 1), np.diff(self.blocks))

    def largest(self, values: Floats) -> Floats:
        """Largest value of the states that may follow each pair, (M,)."""
        found: Floats = np.maximum.reduceat(values, self.blocks[:-1])[self.block]
        return found

    def best(self, numbers: Floats) -> Floats:
        """Largest of the numbers of each state's pairs, (N,); 0 at ends."""
        return self.spread(np.maximum.reduceat(numbers, self.first))

    def spread(self, numbers: Floats) -> Floats:
        """Numbers (n,) of live states as a function of all, (N,), that is 0 at ends."""
        found = np.zeros(self.size)
        found[self.live] = numbers
        return found


@dataclass(frozen=True, eq=False)
class Fixed:
    """What the past has fixed, by the names that the theorem's statement gives in `look`.

    Attributes
    ----------
    number, started : int
        Which lag of those that looked, and how many samples there were before it.
    delta : float
        What it may spend.
    policy : (n,)
        The pair that is played in each state.
    unit : (M,)
        n0.
    pair, successor, probability : (entries,)
        P̃; its entries are the supports B.
    values, hub, template : (N,)
        Ṽ, ν, U.
    centres, squares, start_squares, up, down : (M,)
        m̃, and what is expected of squares and ranges.
    reference : (M,)
    bets : (2, M)
    shares : (2,)
        Of the forms without and with the template.
    """

    number: int
    started: int
    delta: float
    policy: Ints
    unit: Ints
    pair: Ints
    successor: Ints
    probability: Floats
    values: Floats
    hub: Floats
    template: Floats
    centres: Floats
    squares: Floats
    start_squares: Floats
    up: Floats
    down: Floats
    reference: Ints
    bets: Floats
    shares: Floats

    @classmethod
    def read(cls, node: Node, process: Process, policy: Ints, delta: float) -> Fixed:
        """Read the lag and require of it what the theorem does; `policy` is in pairs."""
        node.only("number", "started", *FIELDS)
        number, started = node.whole("number", 1, _LATEST), node.whole("started", 0)
        own = _FIRST * _NEXT ** (number - 1) * delta
        stated = node.number("delta", 0.0, 1.0)
        require(abs(stated - own) <= 1e-9 * own, f"δ of lag {number} is {own:.6g}, the file says {stated:.6g}")
        pairs, size = len(process.state), process.size
        looks = node.array("looks", "i", (None,))
        require(np.array_equal(looks, LOOKS), "the looks are not those of the format")
        unit = node.array("unit", "i", (pairs,))
        require(unit.min() >= 1 and unit.max() < 2**53, "a lag needs at least one sample of every pair in its unit")
        entries = node.array("pair", "i", (None,))
        successor = node.array("successor", "i", (len(entries),))
        probability = node.array("probability", "f", (len(entries),))
        require(
            len(entries) > 0 and entries.min() >= 0 and entries.max() < pairs and len(np.unique(entries)) == pairs,
            "a pair has no support, or the supports are of pairs that do not exist",
        )
        inside = process.blocks[process.block[entries]] <= successor
        inside &= successor < process.blocks[process.block[entries] + 1]
        require(bool(inside.all()), "a support has a state that cannot follow")
        require(bool((np.diff(entries * size + successor) > 0).all()), "the supports are not in order")
        require(probability.min() > 0, "a state of a support has no probability")
        sums = np.bincount(entries, probability, pairs)
        require(bool((np.abs(sums - 1) <= _SUMS).all()), "the past's probabilities do not sum to 1")
        reference = node.array("reference", "i", (pairs,))
        follows = (process.blocks[process.block] <= reference) & (reference < process.blocks[process.block + 1])
        require(bool(follows.all()), "a reference state cannot follow its pair")
        values, hub, template = (node.array(name, "f", (size,)) for name in ("values", "hub", "template"))
        lowest, highest = process.known * (1 - 1e-9), (process.known + process.longest) * (1 + 1e-9)
        possible = (values >= lowest) & (values <= highest)
        require(bool(possible.all()), "the values of the lag are impossible ones")
        over = np.setdiff1d(np.arange(size), process.live)
        sums_of_hub = np.add.reduceat(hub, process.blocks[:-1])
        require(hub.min() >= 0 and bool((np.abs(sums_of_hub - 1) <= _SUMS).all()), "the hub is no distribution")
        require(not template[over].any(), "the template does not vanish at the end")
        by_pair = {name: node.array(name, "f", (pairs,)) for name in _BY_PAIR.split()}
        for name in ("squares", "start_squares", "up", "down"):
            require(by_pair[name].min() >= 0, f"the lag's {name!r} are negative")
        largest = max(np.abs(array).max() for array in (*by_pair.values(), template))
        require(largest <= 1e30, "the numbers of the lag are too large to compute with")
        bets, shares = node.array("bets", "f", (2, pairs)), node.array("shares", "f", (2,))
        require(bets.min() > 0, "a bet is not positive")
        spent = float(shares.sum()) + sum(EVENTS.values())
        require(shares.min() >= 0 and spent <= 1 + 1e-12, "the shares of δ sum to more than 1")
        return cls(
            number=number,
            started=started,
            delta=min(stated, own),
            policy=policy,
            unit=unit,
            pair=entries,
            successor=successor,
            probability=probability / sums[entries],
            values=np.where(np.isin(np.arange(size), over), process.known, values),
            hub=hub / np.repeat(sums_of_hub, np.diff(process.blocks)),
            template=template,
            reference=reference,
            bets=bets,
            shares=shares,
            **by_pair,
        )


@dataclass(frozen=True, eq=False)
class Fresh:
    """Sums over the fresh samples.

    Attributes
    ----------
    pair, successor, counts, rewards : (entries,)
        What followed each pair, how often, and the sum of the rewards that came with it.
    squares : (M,)
        Sums of squared rewards.
    pulls : (M,)
    """

    pair: Ints
    successor: Ints
    counts: Floats
    rewards: Floats
    squares: Floats
    pulls: Floats

    @classmethod
    def read(cls, node: Node, case: Case, process: Process, planned: Ints) -> Fresh:
        """Read the sums, which must be possible ones of exactly so many samples of each pair."""
        node.only("cells", "counts", "rewards", "squares")
        pairs, states = len(process.state), len(case.mask)
        cells, counts = node.array("cells", "i", (None,)), node.array("counts", "i", (None,))
        rewards, squares = node.array("rewards", "f", (len(cells),)), node.array("squares", "f", (pairs,))
        in_order = len(cells) == len(counts) > 0 and cells[0] >= 0 and cells[-1] < pairs * states
        require(in_order and bool((np.diff(cells) > 0).all()), "the cells of the counts are not increasing indices")
        require(counts.min() >= 1 and counts.sum(dtype=np.float64) < 2.0**62, "a count is not positive, or too large")
        pair, state = np.divmod(cells, states)
        pulls = np.zeros(pairs, np.int64)
        np.add.at(pulls, pair, counts)
        require(np.array_equal(pulls, planned), "there are not exactly as many samples of every pair as were planned")
        number = counts.astype(np.float64)
        sums, least = np.bincount(pair, rewards, pairs), np.bincount(pair, rewards**2 / number, pairs)
        for complaint, smaller, larger in (
            ("a sum of rewards is negative", 0 * rewards, rewards),
            ("a sum of rewards exceeds the number of samples", rewards, number),
            ("a sum of squared rewards exceeds the sum of the rewards", squares, sums),
            ("a sum of squared rewards is smaller than the rewards allow", least, squares),
        ):
            good = smaller <= larger + _ROUNDING * (1 + np.abs(larger))
            require(bool(good.all()), f"the samples do not fit together: {complaint}")
        if case.horizon is not None:  # after the last stage all states are one
            stage = process.block[pair]
            state = np.where(stage < case.stages, state + stage * states, process.size - 1)
        keys, place = np.unique(pair * process.size + state, return_inverse=True)
        counted: Floats = np.bincount(place, number, len(keys)).astype(np.float64)
        earned: Floats = np.bincount(place, np.clip(rewards, 0, number), len(keys)).astype(np.float64)
        return cls(keys // process.size, keys % process.size, counted, earned, squares, pulls.astype(np.float64))


def require(good: bool | np.bool_, complaint: str) -> None:
    """Refuse the certificate unless something holds."""
    if not good:
        raise Rejected(complaint)
