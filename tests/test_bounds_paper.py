"""Calculators of the paper against definitions, brute force and errata; of the literature against their labels."""

from __future__ import annotations

from math import e, inf, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bestpolicy as bp
from bestpolicy.bounds import (
    LITERATURE,
    PAPER_CONSTANT,
    PINSKER_CONSTANT,
    applicable_bounds,
    bernoulli_kl,
    concentration_rounds,
    confidence_divergence,
    design_phase,
    expected_rounds_bound,
    expected_samples_bound,
    model_divergence,
    predicted_rounds,
    predicted_samples,
    refined_divergence,
    stopping_phase,
    time_upper_bound,
)
from bestpolicy.bounds.divergence import excess
from bestpolicy.stopping.paper import threshold
from tests.models import random_mdp, tabular_mdp

ZETA_2 = pi**2 / 6


def discounted(dimension: int, discount: float = 0.9) -> bp.Problem:
    return bp.Problem(np.eye(dimension)[None], discount=discount)


def episodic(dimension: int, horizon: int) -> bp.Problem:
    return bp.Problem(np.eye(dimension)[None], horizon=horizon)


# --- divergences


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_bernoulli_kl_is_its_definition(x, y):
    direct = x * log(x / y) + (1 - x) * log((1 - x) / (1 - y))
    assert float(bernoulli_kl(x, y)) == pytest.approx(direct, rel=1e-9, abs=1e-14)


def test_bernoulli_kl_at_the_ends():
    np.testing.assert_allclose(bernoulli_kl([0.0, 1.0, 0.5, 0.0], [0.3, 0.3, 0.5, 0.0]), [-log(0.7), -log(0.3), 0, 0])
    assert np.isinf(bernoulli_kl([0.2, 0.2], [0.0, 1.0])).all()
    with pytest.raises(bp.InvalidInput):
        bernoulli_kl(0.5, 1.2)


def test_divergences_of_neighbours_keep_their_digits():
    # u - log(1+u) = u²/2 - u³/3 + …; the naive formula is off by a factor of millions here.
    assert float(excess(np.array(1e-9))) == pytest.approx(5e-19, rel=1e-8)
    u = np.array([-0.5, -0.19, -0.05, 0.05, 0.19, 0.21, 3.0])
    np.testing.assert_allclose(excess(u), u - np.log1p(u), rtol=1e-12)
    assert float(bernoulli_kl(0.3, 0.3 + 1e-8)) == pytest.approx(1e-16 / (2 * 0.3 * 0.7), rel=1e-6)


@given(st.floats(1e-6, 0.4999))
def test_confidence_divergence(delta):
    assert confidence_divergence(delta) == pytest.approx(float(bernoulli_kl(delta, 1 - delta)), rel=1e-9)
    assert confidence_divergence(delta) == pytest.approx(float(bernoulli_kl(1 - delta, delta)), rel=1e-9)


def test_no_confidence_no_bound():
    assert confidence_divergence(0.5) == confidence_divergence(0.9) == 0.0
    with pytest.raises(bp.InvalidInput):
        confidence_divergence(0.0)


@pytest.mark.parametrize("time", [{"discount": 0.8}, {"horizon": 2}])
def test_model_divergence_is_a_plain_sum(time):
    first, second = (random_mdp(seed, masked=True, **time) for seed in (1, 1))
    other_theta, other_mu = 0.5 * (second.theta + 0.5), 0.7 * second.mu + 0.3 / 6
    if first.problem.horizon is None:
        other_theta, other_mu = other_theta[0], other_mu[0]
    second = bp.LinearMDP(first.problem, theta=other_theta, mu=other_mu)
    divergence = model_divergence(first, second)
    r, q, p, o = first.rewards, second.rewards, first.transitions, second.transitions
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(p > 0, p * np.log(p / o), 0.0).sum(axis=-1)
        rewards = r * np.log(r / q) + (1 - r) * np.log((1 - r) / (1 - q))
    mask = np.broadcast_to(first.problem.mask, divergence.shape)
    np.testing.assert_allclose(divergence[mask], (rows + rewards)[mask], rtol=1e-9, atol=1e-15)
    assert not divergence[~mask].any()


def test_lost_support_has_infinite_divergence():
    rewards = np.full((2, 1), 0.5)
    dense = tabular_mdp(np.full((2, 1, 2), 0.5), rewards, discount=0.5)
    sparse = tabular_mdp(np.array([[[1.0, 0.0]], [[0.5, 0.5]]]), rewards, discount=0.5)
    np.testing.assert_allclose(model_divergence(dense, sparse)[:, 0], [inf, 0.0])
    np.testing.assert_allclose(model_divergence(sparse, dense)[:, 0], [log(2), 0.0])
    with pytest.raises(bp.InvalidInput):
        model_divergence(dense, random_mdp(0))


def test_pinsker_and_the_papers_constant_by_brute_force():
    grid = np.linspace(0.001, 0.999, 333)
    p, q = np.meshgrid(grid, grid)
    apart = np.abs(p - q) > 1e-9
    ratios = bernoulli_kl(p, q)[apart] / (p - q)[apart] ** 2
    # KL ≥ k (E f - E' f)²/M² holds for k = 2 and for no larger k; 6/5 is true but loose (errata E7, E8).
    assert PAPER_CONSTANT < PINSKER_CONSTANT <= ratios.min() <= 2.0001


def test_slips_in_the_proof_of_the_divergence_bound():
    # Centred f = ±1/2: its variance equals ‖f‖², so Var ≤ ‖f‖²/4 fails if ‖f‖ is the centred norm (E7 i).
    f = np.array([-0.5, 0.5])
    assert f.var() == np.abs(f).max() ** 2 > np.abs(f).max() ** 2 / 4
    # With 8 (1 + 4/3) the printed steps give 6/7, not 6/5 (E7 ii). The statement is true all the same, see above.
    assert pytest.approx(6 / 7) == 2 / (1 + 4 / 3)


@given(st.integers(0, 10**6), st.floats(0.01, 30))
@settings(max_examples=200, deadline=None)
def test_refined_divergence(seed, concentration):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(5, concentration), size=2) + 1e-12
    p, q = p / p.sum(), q / q.sum()
    f = rng.uniform(size=5) * 3
    shift, mean = abs(p @ f - q @ f), p @ f
    bound = refined_divergence(shift, p @ (f - mean) ** 2, f.max())
    assert (p * np.log(p / q)).sum() >= bound * (1 - 1e-9) - 1e-15


def test_refined_divergence_beats_pinsker_where_the_variance_is_small():
    assert refined_divergence(0.01, 1e-4, 10.0) > PINSKER_CONSTANT * 0.01**2 / 10.0**2
    assert refined_divergence(0.0, 0.0, 1.0) == 0.0
    assert refined_divergence(0.5, 0.0, 1.0) == 0.1


# --- U, predictions, T₁, T₂


def test_upper_bounds_on_the_characteristic_time():
    problem = discounted(4, 0.8)
    assert time_upper_bound(problem, 0.1, 0.05) == pytest.approx(10 * 4 / (3 * 0.2**4 * 0.15**2))
    assert time_upper_bound(problem, 0.1, 0.05, leverage=7.0) == pytest.approx(70 / (3 * 0.2**4 * 0.15**2))
    pinsker = time_upper_bound(problem, 0.1, 0.05, divergence_constant=PINSKER_CONSTANT)
    assert pinsker == pytest.approx(2 * 4 / (0.2**4 * 0.15**2))
    assert time_upper_bound(episodic(4, 5), 0.1, 0.05) == pytest.approx(10 * 125 * 4 / (3 * 0.15**2))
    assert time_upper_bound(problem, 0.0, 0.0) == inf
    assert time_upper_bound(problem, inf, 0.0) == 0.0


problems = st.one_of(
    st.builds(discounted, st.integers(1, 40), st.floats(0.01, 0.9999)),
    st.builds(episodic, st.integers(1, 40), st.integers(1, 50)),
)


@given(problems, st.floats(1e-9, 1), st.floats(0, 1), st.floats(1e-12, 0.99))
@settings(max_examples=200, deadline=None)
def test_prediction_is_the_last_crossing(problem, gap, epsilon, delta):
    rounds = predicted_rounds(problem, gap, epsilon, delta)
    upper = time_upper_bound(problem, gap, epsilon)
    assert rounds >= 1
    for factor in (1.0001, 2.0, 1e6):
        assert rounds * factor / upper > threshold(problem, delta, rounds * factor)
    if rounds > 1.001:
        assert rounds / 1.0001 / upper < threshold(problem, delta, rounds / 1.0001)
    assert predicted_samples(problem, gap, epsilon, delta) == problem.stages * rounds


def test_prediction_at_the_ends():
    problem = discounted(3)
    assert predicted_rounds(problem, 0.0, 0.0, 0.1) == inf
    assert predicted_rounds(problem, inf, 0.0, 0.1) == 1.0
    assert predicted_rounds(problem, 1e9, 0.0, 0.1) == 1.0
    assert 1e300 < predicted_rounds(problem, 1e-149, 0.0, 0.1) < inf
    assert predicted_rounds(problem, 0.1, 0.1, 0.1, leverage=6.0) > predicted_rounds(problem, 0.1, 0.1, 0.1)
    for bad in ({"gap": -1.0}, {"epsilon": -0.1}, {"delta": 0.0}, {"gap": float("nan")}):
        with pytest.raises(bp.InvalidInput):
            predicted_rounds(problem, **({"gap": 0.1, "epsilon": 0.0, "delta": 0.1} | bad))


@given(problems, st.floats(1e-6, 1e12), st.floats(1e-12, 0.99))
@settings(max_examples=200, deadline=None)
def test_t2_is_large_enough(problem, upper, delta):
    last = stopping_phase(problem, upper, delta)
    assert last < 1 or 24 * upper * threshold(problem, delta, last) <= last * (1 + 1e-12)


def test_t2_as_printed_is_not_large_enough():
    upper, d, delta = 1e6, 5, 0.05
    start = 2 * log(sqrt(e) * ZETA_2 / delta) + d * log(8 * e**4 * d)
    printed = upper * 576 / 5 * start + upper * 576 * (d + 2) / 5 * log(576 * (d + 2) / 5)
    assert printed == pytest.approx(1.075e10, rel=1e-3)
    problem = discounted(d)
    assert 24 * upper * threshold(problem, delta, printed) > printed
    assert 24 * upper * threshold(problem, delta, 2.19e10) == pytest.approx(2.19e10, rel=2e-3)
    corrected = upper * 576 / 5 * start + 1152 * (d + 2) / 5 * upper * log(1152 * (d + 2) * upper / 5)
    assert stopping_phase(problem, upper, delta) == pytest.approx(corrected, rel=1e-12)


def test_t2_episodic():
    upper, d, delta, steps = 3e4, 3, 0.1, 4
    start = 2 * log(sqrt(e) * ZETA_2 * steps / delta) + d * log(8 * e**4 * d)
    a = 1152 * (d + 2) * steps / 5 * upper
    expected = 576 * steps / 5 * upper * start + a * log(a)
    assert stopping_phase(episodic(d, steps), upper, delta) == pytest.approx(expected, rel=1e-12)


def test_t1_and_its_second_form():
    d = 7
    assert design_phase(d) == pytest.approx(56 * d / 3 * log(25088 * ZETA_2 * d**3 / 9))
    assert design_phase(d) != pytest.approx(56 * d / 3 * log(6272 * ZETA_2 * d**3 / 3), rel=1e-3)  # as printed
    t = design_phase(d)
    assert t >= 28 * d / 3 * log(2 * ZETA_2 * d * t**2)


def test_expected_rounds():
    problem = discounted(4)
    bound = expected_rounds_bound(problem, 0.1, 0.1, 0.05)
    assert bound == int(bound) > predicted_rounds(problem, 0.1, 0.1, 0.05)
    assert expected_rounds_bound(problem, inf, 0.0, 0.05) == np.ceil(design_phase(4)) + 2
    assert expected_rounds_bound(problem, 0.0, 0.0, 0.05) == inf
    assert 1.2 * bound < expected_rounds_bound(problem, 0.1, 0.1, 0.05, grid_ratio=1.2) + 3 < 1.2 * bound + 7
    assert expected_samples_bound(episodic(4, 3), 0.1, 0.1, 0.05) == 3 * expected_rounds_bound(
        episodic(4, 3), 0.1, 0.1, 0.05
    )
    with pytest.raises(bp.InvalidInput):
        expected_rounds_bound(problem, 0.1, 0.1, 0.05, grid_ratio=0.5)


def test_design_concentrates_after_the_stated_time():
    d, delta = 6, 0.3
    assert concentration_rounds(d, delta) == pytest.approx(28 / 3 * d * log(2 * d / delta))
    assert concentration_rounds(d, delta, design_tolerance=0.1) == pytest.approx(1.1 * 28 / 3 * d * log(2 * d / delta))
    rounds = int(np.ceil(concentration_rounds(d, delta)))
    counts = np.random.default_rng(0).multinomial(rounds, np.full(d, 1 / d), size=400)
    failures = (np.abs(counts / rounds * d - 1) > 0.5).any(axis=1).mean()
    assert failures <= delta
    with pytest.raises(bp.InvalidInput):
        concentration_rounds(d, delta, accuracy=1.5)


# --- literature


def test_literature_entries_are_labelled():
    large = bp.Problem(np.eye(60).reshape(20, 3, 60), discount=0.9)
    assert len({(bound.name, bound.reference) for bound in LITERATURE}) == len(LITERATURE)
    for bound in LITERATURE:
        assert bound.formula
        assert bound.valid_for
        assert bound.kind in ("lower", "algorithm")
    for bound in applicable_bounds(large, 0.1, 0.05):
        assert bound.setting == "discounted"
        assert 0 <= bound.value(large, 0.1, 0.05) < inf
    assert sum(bound.constant_certain for bound in LITERATURE) == 1


def test_literature_conditions():
    tree = bp.Problem(np.eye(12).reshape(6, 2, 12), horizon=12)  # S = 3 + (2² - 1)/(2 - 1)
    names = {bound.name for bound in applicable_bounds(tree, 0.4, 0.05)}
    assert "tabular minimax, episodic, one law per step" in names
    assert "tabular minimax, discounted" not in names
    per_step, one_law = (bound for bound in LITERATURE if bound.reference.startswith("Domingues"))
    assert per_step.value(tree, 0.4, 0.05) == pytest.approx(12**3 * 12 * log(20) / (3456 * 0.16))
    assert per_step.value(tree, 0.4, 0.05) == pytest.approx(12 * one_law.value(tree, 0.4, 0.05))
    for epsilon, delta in ((0.6, 0.05), (0.4, 0.1), (0.0, 0.05)):
        with pytest.raises(bp.InvalidInput, match="does not apply"):
            per_step.value(tree, epsilon, delta)
    assert not per_step.applies(bp.Problem(np.eye(14).reshape(7, 2, 14), horizon=12), 0.4, 0.05)
