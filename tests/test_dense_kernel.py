"""How wrong the kernel of Theorem UD may be: sums against single samples, bets at the truth, levels, coverage."""

from math import log

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import binomtest

from bestpolicy.stopping.dense.kernel import CAUTION, Doubt, Kernel, with_spikes
from bestpolicy.stopping.dense.theorem_ud import PathBook
from bestpolicy.stopping.lemmas.betting import psi
from tests.models import random_mdp, tabular_mdp
from tests.test_dense import DISCOUNTED, Lagged

MU = np.reshape(DISCOUNTED.mu, (5, -1))


def entered(seed):
    """A lag with batches, and what these say of the kernel."""
    one = Lagged(DISCOUNTED, seed)
    book = PathBook(one.problem, one.sampled, one.lag, one.lag.policies.favourite)
    for batch in one.running.batches:
        book.enter(*batch)
    return one, book.kernel


def test_sums_are_sums_over_single_samples():
    one, kernel = entered(0)
    root = np.linalg.cholesky(np.linalg.inv(one.lag.gamma)).T  # |root q| is the length of q in Γ0⁻¹
    counts, sums, squares = np.zeros(3), np.zeros(kernel.own_sums.shape), np.zeros(kernel.squares.shape)
    for snapshot, tally in one.running.batches:
        planned = snapshot.counts[0]
        q = planned.sum() * np.linalg.inv((one.sampled.T * planned) @ one.sampled) @ one.sampled.T
        lengths = np.linalg.norm(root @ q, axis=0)
        for pair, state in zip(*np.nonzero(tally.next_counts[0]), strict=True):
            for _ in range(tally.next_counts[0, pair, state]):
                for m, size in enumerate(one.lag.bet * one.lag.spikes):
                    factor = min(1.0, CAUTION / (size * lengths.max()))
                    x = size * factor * lengths[pair]
                    counts[m] += factor
                    sums[m, state] += factor * q[:, pair]
                    bound = 0.5 + x / 3 + x**2 / (4 * (1 - x))
                    assert bound >= psi(np.array(x)) - 1e-12
                    squares[m, state] += bound * factor**2 * np.outer(q[:, pair], q[:, pair])
    assert counts == pytest.approx(kernel.counts)
    np.testing.assert_allclose(sums, kernel.own_sums, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(squares, kernel.squares, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.sampled @ (kernel.sums / kernel.count).sum(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(one.sampled @ (kernel.own_sums / kernel.counts[:, None, None]).sum(axis=1).T, 1)


def test_bets_on_single_states_have_mean_one_at_the_truth():
    runs, above = 60, {2: 0, 5: 0}
    for seed in range(runs):
        one, kernel = entered(seed)
        rng = np.random.default_rng(seed)
        v = rng.dirichlet(np.ones(len(one.sampled))) @ one.sampled
        v = v / np.sqrt(v @ one.lag.gamma @ v)
        m, state = rng.integers(3), rng.integers(5)
        size, count = kernel.sizes[m], kernel.counts[m]
        won = size * count * (v @ (MU[state] - kernel.own_sums[m, state] / count))
        won -= size**2 * (v @ kernel.squares[m, state] @ v)
        for level in above:
            above[level] += bool(won >= log(level))
    for level, number in above.items():
        assert binomtest(number, runs, 1 / level, alternative="greater").pvalue > 1e-3, (level, number)
    assert above[2] > 0


def test_the_kernel_along_an_unknown_path_is_known_as_well_as_said():
    missed, runs = np.zeros(3, np.int64), 40
    for seed in range(runs):
        one, kernel = entered(seed)
        doubt, law = kernel.doubt(one.problem, one.lag.bet, 0.0), kernel.sums / kernel.count
        rng = np.random.default_rng(seed)
        occupancy = rng.dirichlet(np.ones(len(one.sampled)))  # δ = 1/2 for all functions, and as much for single states
        errors = occupancy @ one.sampled @ (MU - law).T
        missed[0] += bool(np.abs(errors).sum() > occupancy @ doubt.widths.reshape(-1))  # the worst f in {-1, 1}^S
        missed[1] += bool((errors > occupancy @ doubt.spikes.reshape(5, -1).T).any())
        functions = rng.exponential(size=(200, 5)) ** 4  # large at few states
        bounds = doubt.of(functions).reshape(200, -1) @ occupancy
        missed[2] += bool((functions @ errors > bounds).any())
    for number, share in zip(missed, (0.5, 0.5, 1.0), strict=True):
        assert binomtest(int(number), runs, share, alternative="greater").pvalue > 0.01, missed


def test_half_of_a_width_would_be_noticed():
    """One pair that leads to one of two states, bets of one size; the worst of many looks."""
    problem = tabular_mdp(np.full((2, 1, 2), 0.5), np.full((2, 1), 0.5), discount=0.5).problem
    sampled, runs, looks = problem.pair_features, 200, 12
    missed = np.zeros(2, np.int64)
    for seed in range(runs):
        rng, worst = np.random.default_rng(seed), -np.inf
        kernel = Kernel(2, sampled, 2 * np.eye(2), np.array([0.12]))
        for look in range(looks):
            counts = np.full(2, 20 * 1.5**look).astype(np.int64)
            first = rng.binomial(counts, 0.5)
            kernel.add(2 * sampled, counts, csr_array(np.array([first, counts - first])))
            doubt = kernel.doubt(problem, 0.12, log(0.2))  # δ = 0.1 for single states
            errors = 0.5 - (kernel.sums / kernel.count) @ sampled[0]
            worst = max(worst, float((errors / doubt.spikes[:, 0, 0]).max()))
        missed += [worst > 1, worst > 0.5]
    right, half = (binomtest(int(number), runs, 0.1, alternative="greater").pvalue for number in missed)
    assert right > 0.01, missed
    assert half < 0.005, missed


def test_the_level_costs_least_on_the_average_and_is_one_for_all_pairs():
    rng = np.random.default_rng(0)
    doubt = Doubt(rng.uniform(0.5, 1.5, (6, 2)), rng.uniform(0.05, 0.25, (6, 6, 2)))
    for values in rng.exponential(size=(20, 6)) ** 3:
        every = [
            doubt.widths * (level - values.min()) / 2
            + np.einsum("s,sta->ta", np.maximum(values - level, 0.0), doubt.spikes)
            for level in values
        ]
        best = min(every, key=np.mean)
        np.testing.assert_allclose(doubt.of(values[None])[0], best, rtol=1e-12)
    plain = Doubt(doubt.widths)
    np.testing.assert_allclose(plain.of(values[None])[0], doubt.widths * np.ptp(values) / 2)
    constant = np.full((1, 6), 3.0)
    assert not doubt.of(constant).any()


def test_functions_that_are_large_at_few_states_are_known_better():
    mdp = random_mdp(1, states=30, actions=2, dimension=4, discount=0.9)
    one = Lagged(mdp, 0, pilot=1000, batches=(500, 1000, 2000))
    book = PathBook(one.problem, one.sampled, one.lag, one.lag.policies.favourite)
    for batch in one.running.batches:
        book.enter(*batch)
    doubt = book.doubt()
    spike = np.eye(30)[:1]
    assert doubt.of(spike).mean() < 0.5 * Doubt(doubt.widths).of(spike).mean()
    assert with_spikes(mdp.problem, 60)
    assert not with_spikes(random_mdp(1, states=400, actions=3, dimension=20, discount=0.9).problem, 100)
