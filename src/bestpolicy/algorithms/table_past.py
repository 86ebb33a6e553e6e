"""The model that past samples of a table show, and what is drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bestpolicy._numerics.arrays import BoolArray, FloatArray, IntArray, Matrix
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms.table_rows import EstimatedRows, KeptRows
from bestpolicy.stopping.tables.model import Chain, Table, TableSamples, kernel_of
from bestpolicy.stopping.tables.rows import is_small
from bestpolicy.stopping.tables.solve import Solver


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
    centres: FloatArray
    gaps: FloatArray
    rival: BoolArray
    variances: FloatArray
    up: FloatArray
    down: FloatArray
    solver: Solver
    rows: KeptRows | EstimatedRows

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
        variances = mean_squares(samples, chain.step * values, -q)
        up = 1 + chain.step * chain.highest(values) - q
        down = q + chain.step * chain.highest(-values)
        solver, rivals = Solver(chain, kernel, policy), np.flatnonzero(rival)
        rows: KeptRows | EstimatedRows
        if is_small(chain):
            rows = KeptRows(chain, kernel, policy, rivals)
        else:
            rows = EstimatedRows(chain, kernel, policy, rivals, solver)
        return cls(
            table, chain, past, samples, kernel, rewards, values, policy, q, gaps, rival, variances, up, down,
            solver, rows,
        )  # fmt: skip


def mean_squares(samples: TableSamples, function: FloatArray, offsets: FloatArray) -> FloatArray:
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
    sums = np.bincount(samples.pair, rewards, len(pulls))
    squares = np.clip(samples.squares * (pulls / samples.pulls), sums**2 / np.maximum(pulls, 1), sums)
    return TableSamples.of(samples.pair, samples.next_state, counts, rewards, squares)


def least_counts(
    forward: Callable[[FloatArray], FloatArray],
    backward: Callable[[FloatArray], FloatArray],
    own: FloatArray,
    played: FloatArray,
    targets: FloatArray,
    rounds: int = 8,
) -> tuple[FloatArray, FloatArray]:
    """Return the cheapest counts with own_k/n_k + Σ_j row_kj·played_j/n_j ≤ target_k, nearly.

    Returns those of the pairs k themselves and those of the played pairs j. By multipliers μ: n_j = √(played_j Σ_k
    μ_k row_kj), n_k = √(own_k μ_k), and μ_k grows with what is missing at k. `forward` multiplies the rows by a vector
    over j, `backward` one over k by the rows.
    """
    weights = 1 / targets**2
    weights *= np.maximum(own, 1e-30)
    counts, others = np.ones(len(own)), np.ones(len(played))
    for turn in range(rounds + 1):
        counts, others = np.sqrt(own * weights) + 1e-9, np.sqrt(played * backward(weights)) + 1e-9
        ratio = (own / counts + forward(played / others)) / targets
        if turn < rounds:
            weights = weights * np.clip(ratio, 1e-3, 1e3) + 1e-300
    worst = min(float(ratio.max()), 2.0)
    return counts * worst, others * worst
