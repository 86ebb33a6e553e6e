"""Theorems I and UD at an exact tie: thresholds are attained nearly, and half of one would be noticed. Lemma N's box.

All of the confidence is on one lag, one size of bets and one policy, and the truth is a tie, so each time that the bets
against the tied rival reach the threshold counts as false. Given the lag that happens with probability LEVEL at most;
if the threshold were half as many nats it would happen more often, and these tests have the power to see it.
"""

from dataclasses import replace
from math import inf, log

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import sharp_dense
from bestpolicy.algorithms.protocol import Task
from bestpolicy.stopping.dense import theorem_i, theorem_ud
from bestpolicy.stopping.dense.box import Box, Frame, LeastInBox
from bestpolicy.stopping.dense.nuisance import Spread, Surroundings
from bestpolicy.stopping.dense.policies import PolicyPrior
from bestpolicy.stopping.dense.theorem_i import Book
from bestpolicy.stopping.dense.theorem_ud import PathBook
from bestpolicy.stopping.lemmas.betting import psi
from tests.models import random_mdp, tabular_mdp
from tests.test_dense import Lagged, exponents

LEVEL, RUNS, BATCHES = 0.05, 160, 12
DISCOUNTED = random_mdp(3, states=5, actions=2, dimension=4, discount=0.6)
EPISODIC = random_mdp(4, states=4, actions=2, dimension=3, horizon=3)


def tied(mean):
    """One state with two actions that pay 1 equally often."""
    return tabular_mdp(np.ones((1, 2, 1)), np.full((1, 2), mean), discount=0.02)


def largest(mean, kind, share, statistic):
    """The largest multiple of its threshold that a statistic reaches in each run after one lag."""
    one = Lagged(tied(mean), 0, pilot=1000, batches=(), delta=LEVEL / share)
    policy = np.array([[0]])
    one.lag = replace(one.lag, policies=PolicyPrior(policy, np.array([[[0.0, -40.0]]])))
    truth, snapshot = one.truth(policy), one.known().snapshot(one.shares, one.counts(300))
    found = []
    for seed in range(RUNS):
        one.rng = np.random.default_rng(seed)
        won = 0.0, -inf
        for _ in range(BATCHES):  # sizes of bets are those of the first batch, whose snapshot all have: they add up
            book = kind(one.problem, one.sampled, one.lag, policy)
            book.enter(snapshot, one.draw(300))
            total = won[0] + statistic(book, truth)
            won = total, max(won[1], total)
        found.append(won[1])
    return np.array(found)


def won_by_one_size(book, truth):
    """What bets of the middle size have won at the truth, over what Theorem I asks if that size has all shares."""
    return exponents(book, truth)[2, 0] / book.nats


def won_along_the_path(book, truth):
    """The same for Theorem UD, in the direction of the one rival."""
    xi, ahead, after = truth
    u = book.rivals.differences[0]
    u = u / np.sqrt(u @ book.lag.sigma @ u)
    size = book.sizes[2]
    total = size * (u @ (book.features @ xi[0] - book.rewards))
    for entry, vectors in zip(book.entries, book.vectors, strict=True):
        middle = np.einsum("hkd,hd->hk", entry.bets.means, after)
        up, down = entry.bets.reach(ahead.max(axis=1)[:, None] - middle, middle - ahead.min(axis=1)[:, None])
        tau, squares = size * (vectors @ u), entry.squares(ahead, after)[0][0]
        total = total - (psi(np.abs(tau) * np.where(tau > 0, up[0], down[0])) * tau**2 * squares).sum()
    return total / (-log(theorem_ud.SHARES[0]) - book.log_share)


@pytest.mark.parametrize(
    ("mean", "kind", "share", "statistic"),
    [
        (0.5, Book, theorem_i.SHARES[0], won_by_one_size),
        (0.1, Book, theorem_i.SHARES[0], won_by_one_size),
        (0.5, PathBook, theorem_ud.SHARES[0], won_along_the_path),
    ],
    ids=["I", "I jackpot", "UD"],
)
def test_half_of_a_threshold_would_be_noticed(mean, kind, share, statistic):
    most = largest(mean, kind, share, statistic)
    counts = [int((most >= part).sum()) for part in (1.0, 0.5)]
    right, half = (binomtest(count, RUNS, LEVEL, alternative="greater").pvalue for count in counts)
    assert right > 0.01, counts
    assert half < 0.005, counts


@pytest.mark.parametrize("mdp", [DISCOUNTED, EPISODIC], ids=["discounted", "episodic"])
def test_a_look_never_says_more_than_the_bets_at_the_truth(mdp):
    held = 0
    for seed in range(3):
        one = Lagged(mdp, seed, pilot=400, batches=(150, 200, 400))
        book, fresh, policy = one.book(), one.running.evidence, one.lag.policies.favourite
        around = Surroundings.of(book.test, fresh)
        around, spreads = around.refined(book.entries, one.lag.frame, 0.01, True)
        truth = one.truth(policy)
        won = np.logaddexp.reduce(np.log(theorem_i.SIZE_SHARES)[:, None] + exponents(book, truth), axis=0)
        advantages = np.einsum("jd,jd->j", book.rivals.differences, truth[0][book.rivals.stage])
        evidence = theorem_i._Evidence(book, around, spreads)
        for rival, advantage in enumerate(advantages):
            # the truth is among the hypotheses with at least this excess, so no infimum over them is larger
            assert evidence.at(float(advantage) - 1e-9)[rival] <= won[rival] + 1e-6
        refuted = bool((evidence.at(0.0) >= book.nats).all())
        assert (book.look(fresh).epsilon == 0) == refuted
        assert book.nats == pytest.approx(-log(theorem_i.SHARES[0] * 0.2) - one.lag.policies.log_weight(policy))
        held += 1
    assert held == 3


def test_the_box_holds_the_noise_as_often_as_it_says():
    missed, half, runs, failure = 0, 0, 40, 0.5
    for seed in range(runs):
        one = Lagged(tied(0.5), seed, pilot=200, batches=(100,) * 4)
        book, fresh = one.book(), one.running.evidence
        around = Surroundings.of(book.test, fresh)
        vectors = np.eye(2)[None]
        frame = Frame(vectors, one.lag.frame.sizes[:1])  # two directions, one size of each
        spreads = [Spread.of(entry, around) for entry in book.entries]
        xi, _, after = one.truth(one.lag.policies.favourite)
        noise = np.abs(
            frame.vectors[0].T
            @ (
                fresh.rewards[0]
                + one.problem.continuation * fresh.following[0] @ after[0][:1]
                - fresh.inverse_weights[0] * (one.sampled @ xi[0])
            )
        )
        missed += bool((noise > frame.half_widths(spreads, failure)[0]).any())
        half += bool((noise > 0.3 * frame.half_widths(spreads, failure)[0]).any())
    assert binomtest(missed, runs, failure, alternative="greater").pvalue > 0.01
    assert half > missed


@pytest.mark.parametrize("seed", range(3))
def test_the_least_functional_in_a_box_is_that_of_a_linear_programme(seed):
    rng = np.random.default_rng(seed)
    y, ell = rng.normal(size=(2, 1, 6))
    y[0, 2] = ell[0, 3] = 0.0
    least = LeastInBox(y, ell)
    for share in (-1.5, -0.3, 0.0, 0.6, 0.99):
        start = share * np.abs(y).sum()
        found = linprog(ell[0], A_ub=-y, b_ub=[-start], bounds=[(-1, 1)] * 6)
        assert least.over(np.array([start]))[0] == pytest.approx(found.fun, abs=1e-9)
    assert least.over(1.001 * least.width)[0] == inf


def test_sizes_that_are_too_bold_for_the_ranges_are_left_out_not_clipped():
    one = Lagged(DISCOUNTED, 1, pilot=2000, batches=(800, 900))
    book, fresh = one.book(), one.running.evidence
    assert book.look(fresh).epsilon < inf
    book.sizes = book.sizes * 1e6
    around = Surroundings.of(book.test, fresh)
    around, spreads = around.refined(book.entries, one.lag.frame, 0.01, True)
    found = theorem_i._Evidence(book, around, spreads)
    hard = found.close.levels
    assert np.isneginf(hard).all()  # no size is left
    far = float(10 * book.problem.value_limits[0])
    assert np.isposinf(found.at(far)).all()  # no ξ is left: refuted, though there are no bets
    frame = replace(one.lag.frame, sizes=one.lag.frame.sizes * 1e9)
    assert np.isinf(frame.half_widths(spreads, 0.01)).all()


def test_a_box_only_where_all_batches_are_there_and_never_wider():
    one = Lagged(DISCOUNTED, 1, pilot=2000, batches=(800, 900))
    book, fresh = one.book(), one.running.evidence
    around = Surroundings.of(book.test, fresh)
    assert around.refined(book.entries, one.lag.frame, 0.01, False)[0].box is None
    boxed, spreads = around.refined(book.entries, one.lag.frame, 0.01, True)
    plain = [Spread.of(entry, around) for entry in book.entries]
    assert isinstance(boxed.box, Box)
    assert all(
        (a.up <= b.up + 1e-9).all() and (a.drifts <= b.drifts + 1e-9).all() for a, b in zip(spreads, plain, strict=True)
    )
    xi = one.truth(one.lag.policies.favourite)[0]
    error = xi - around.propagation.parameters
    inside = np.linalg.solve(boxed.box.root[0], error[0])
    assert np.abs(inside).max() <= 1.0


def test_ties_do_not_keep_a_lag_from_beginning(monkeypatch):
    monkeypatch.setattr(sharp_dense, "_LATE", 500)
    course = sharp_dense.DenseCourse(Task(tied(0.5).problem, 0.0, 0.1, np.random.default_rng(0)))
    simulator, rng = bp.ExactSimulator(tied(0.5)), np.random.default_rng(1)
    for _ in range(40):
        course.look()
        if course.over:  # a tied action that seems worse: no loss
            break
        course.begin(course.decide())
        course.add(simulator.sample(course.pulls(), rng))
    assert course.lags
    assert course.check.epsilon < 0.5
