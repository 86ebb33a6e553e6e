"""Tight and adaptive from the outside: what they return, what they promise, and what the fallbacks certify."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import Task
from bestpolicy.algorithms.adaptive import Adaptive
from bestpolicy.algorithms.tight import AllocationSampling, Tight, whitened_problem
from bestpolicy.design import g_optimal_design
from bestpolicy.design.transductive import transductive_design
from bestpolicy.errors import InvalidInput
from bestpolicy.samples import Pulls, Tally
from bestpolicy.simulators import ExactSimulator
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.fresh import FreshTest
from bestpolicy.stopping.lemmas.deviations import make_prior
from bestpolicy.stopping.lemmas.propagation import EstimatedKernel
from bestpolicy.stopping.rule import Past
from bestpolicy.stopping.tight import TightTest

from .models import near_tie, random_mdp
from .test_tight_coverage import understated
from .test_tight_lemmas import drawn


def finished(mdp, algorithm, epsilon, delta=0.05, seed=0):
    """All checks of a run, the last one included."""
    rng = np.random.default_rng(seed)
    simulator, checks = ExactSimulator(mdp), []
    run = algorithm.run(Task(mdp.problem, epsilon, delta, rng))
    request = next(run)
    while True:
        try:
            request = run.send(simulator.sample(request.pulls, rng))
            checks.append(request.check)
        except StopIteration as end:
            return [*checks, end.value]


def rule_for(mdp, delta=0.05, **options):
    problem, sampled = mdp.problem, mdp.problem.pair_features
    information = np.broadcast_to(sampled.T @ sampled / len(sampled), (problem.stages, *2 * [problem.dimension]))
    prior = make_prior(information, sampled, first_rounds=40, least_variance=0.05, delta=0.05)
    return TightTest(problem, Past(prior), delta, **options)


@pytest.mark.parametrize("algorithm", [Tight(check_ratio=1.5), Adaptive(check_ratio=1.5)], ids=["tight", "adaptive"])
@pytest.mark.parametrize("horizon", [None, 2])
def test_a_run_ends_with_a_certified_policy(algorithm, horizon):
    mdp = random_mdp(7, states=4, actions=2, dimension=3, discount=0.7, horizon=horizon, masked=True)
    checks = finished(mdp, algorithm, epsilon=0.2)
    last = checks[-1]
    assert last.passed
    assert last.epsilon <= 0.2
    assert last.statistic >= last.threshold == 1.0
    assert last.rule.startswith("Theorem ")
    assert ("-E" in last.rule) == (horizon is not None)
    assert mdp.is_near_optimal(last.policy if horizon else last.policy[0], last.epsilon)
    certified = [check.epsilon for check in checks]
    assert certified == sorted(certified, reverse=True)  # the best pair is kept
    assert not any(check.passed for check in checks[:-1])


def test_zero_epsilon_asks_for_the_optimum():
    mdp = near_tie(0.2)
    last = finished(mdp, Tight(check_ratio=1.5), epsilon=0.0)[-1]
    assert last.epsilon == 0.0
    assert last.rule.endswith("(A)")
    assert mdp.loss(last.policy[0]) == 0.0


def test_copies_of_an_action_do_not_prevent_a_certified_optimum():
    base = near_tie(0.2)
    features = np.concatenate([base.problem.features, base.problem.features[:, ::-1]], axis=1)
    mdp = bp.LinearMDP(bp.Problem(features, discount=0.5), theta=base.theta[0], mu=base.mu[0])
    problem = whitened_problem(mdp.problem, g_optimal_design(mdp.problem.pair_features))
    assert (problem.features[:, 0] == problem.features[:, 3]).all()
    assert finished(mdp, Tight(check_ratio=1.5), epsilon=0.0)[-1].epsilon == 0.0


def test_a_smaller_delta_certifies_less():
    mdp = random_mdp(0, states=4, actions=2, dimension=3, discount=0.7)
    evidence = drawn(mdp, 2000)
    found = [rule_for(mdp, delta).look(evidence).epsilon for delta in (0.5, 0.1, 1e-3, 1e-9)]
    assert found == sorted(found)
    assert found[0] < inf


def test_the_users_word_on_the_span_starts_the_range():
    mdp = random_mdp(0, discount=0.9)
    assert rule_for(mdp).initial_ranges()[0] == pytest.approx(10.0)
    assert rule_for(mdp, value_span=0.5).initial_ranges()[0] == pytest.approx(1.45)
    policy = mdp.plan.policy
    assert rule_for(mdp, value_span=0.5, policy=policy).initial_ranges()[0] == pytest.approx(10.0)
    span = float(np.ptp(mdp.values))
    evidence = drawn(mdp, 200)
    assert rule_for(mdp, value_span=span).look(evidence).epsilon <= rule_for(mdp).look(evidence).epsilon


def test_nothing_is_certified_before_the_samples_span():
    mdp = random_mdp(0)
    evidence = Evidence.empty(mdp.problem, mdp.problem.pairs)
    assert rule_for(mdp).look(evidence).epsilon == inf


def test_samples_of_other_pairs_are_refused():
    mdp = random_mdp(0)
    tally = ExactSimulator(mdp).sample(Pulls(np.array([5]), np.array([[3]])), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="not to be sampled"):
        Evidence.empty(mdp.problem, np.array([0, 1])).add(tally)


def test_bad_parameters_are_refused():
    with pytest.raises(InvalidInput, match="check_ratio"):
        Tight(check_ratio=1.0)
    with pytest.raises(InvalidInput, match="value_span"):
        Tight(value_span=-1.0)


# --- fallbacks -----------------------------------------------------------------------------------------------------


def many_states(states=400):
    """Features on a sphere, so that estimated rows have negative entries: no contraction with few samples."""
    return bp.instances.ball(states=states, actions=3, dimension=4, seed=0, discount=0.9)


def test_without_contraction_theorem_t_is_silent_and_the_run_goes_on():
    mdp = many_states()
    evidence = drawn(mdp, 1)
    kernel_is_wild = rule_for(mdp).look(evidence)
    assert kernel_is_wild.epsilon == inf
    rules = [check.rule for check in finished(mdp, Tight(check_ratio=2.0), epsilon=6.0) if check.epsilon < inf]
    assert rules
    assert {rule.split(" (")[0] for rule in rules} & {"Theorem P", "Theorem F"}


def test_theorem_f_is_exact_on_exact_data():
    """With V = V* and no widths the bound would be 0; with widths it is the widths' doing alone."""
    mdp = near_tie(0.02)
    rule = rule_for(mdp)
    losses = [
        FreshTest(mdp.problem, Past(rule.prior, policy=mdp.plan.policy, values=mdp.plan.values), 0.05).loss(
            drawn(mdp, size)
        )
        for size in (100, 10_000, 10_000_000)
    ]
    assert losses[0] > losses[1] > losses[2] == 0.0


@pytest.mark.parametrize("name", ["P", "F"])
def test_fallbacks_cover_the_loss_of_any_fixed_policy(name):
    """Random policies, most of them bad: the certified loss is above the true one."""
    mdp = random_mdp(1, states=4, actions=2, dimension=3, discount=0.6)
    rng, wrong, runs = np.random.default_rng(0), 0, 60
    for seed in range(runs):
        policy = rng.integers(2, size=(1, 4))
        rule = rule_for(mdp, 0.5, policy=policy)
        for size in (20, 200, 2000):
            evidence = drawn(mdp, size, seed)
            if name == "P":
                bound = rule.look(evidence).epsilon
            else:
                values = mdp.evaluate(policy[0]).values
                bound = FreshTest(mdp.problem, Past(rule.prior, policy=policy, values=values), 0.5).loss(evidence)
            if bound < mdp.loss(policy[0]) - 1e-9:
                wrong += 1
                break
    assert binomtest(wrong, runs, 0.5, alternative="greater").pvalue > 1e-3


def test_large_kernels_are_never_formed():
    """The bound with the negative mass dominates |P̂|v."""
    mdp = many_states()
    model_mu = mdp.mu + 1e-3 * np.random.default_rng(0).standard_normal(mdp.mu.shape)
    kernel = EstimatedKernel(mdp.problem, model_mu)
    assert kernel._dense is None
    rows = mdp.problem.features @ model_mu[0].T
    values = np.random.default_rng(1).uniform(size=mdp.problem.states)
    excess = kernel.negative_mass[0] - np.clip(-rows, 0, None).sum(axis=2)
    assert excess.min() >= 0
    assert excess.max() < 1e-5
    assert (kernel.absolute(0, values) >= np.abs(rows) @ values - 1e-9).all()


def test_interrupted_runs_keep_what_they_certified():
    mdp = random_mdp(3, states=4, actions=2, dimension=3, discount=0.6)
    result = bp.identify(ExactSimulator(mdp), epsilon=0.0, delta=0.1, algorithm=Tight(), seed=0, max_samples=3000)
    assert result.epsilon < inf
    assert mdp.is_near_optimal(result.policy, result.epsilon)


# --- the design problem ----------------------------------------------------------------------------------------------


def test_transductive_designs_carry_their_certificate():
    rng = np.random.default_rng(0)
    features, directions = rng.standard_normal((30, 4)), rng.standard_normal((10, 4))
    design = transductive_design(features, directions, tolerance=0.02)
    assert design.gap <= 0.02 + 1e-9
    inverse = np.linalg.inv((features.T * design.weights) @ features)
    assert np.einsum("jd,de,je->j", directions, inverse, directions).max() == pytest.approx(design.value)
    for weights in rng.dirichlet(np.full(30, 0.2), size=200):
        inverse = np.linalg.pinv((features.T * weights) @ features)
        assert np.einsum("jd,de,je->j", directions, inverse, directions).max() >= design.lower_bound


def test_g_optimal_design_is_a_special_case():
    features = np.random.default_rng(1).standard_normal((25, 3))
    design = transductive_design(features, features, tolerance=0.01)
    assert design.lower_bound <= 3 + 1e-9 <= design.value * 1.001


def test_one_coordinate_needs_one_pair():
    design = transductive_design(np.eye(3), np.array([[2.0, 0.0, 0.0]]), tolerance=0.01)
    assert design.weights[0] > 0.98
    assert design.value == pytest.approx(4.0, rel=0.02)


def test_adaptive_spends_samples_where_gaps_are_small():
    rng = np.random.default_rng(0)
    rewards = np.tile([0.1, 0.9], (4, 1))
    rewards[0] = [0.5, 0.54]
    mdp = bp.instances.tabular(rng.dirichlet(np.ones(4), size=(4, 2)), rewards, discount=0.6)
    samples = {
        algorithm.name: np.mean([finished(mdp, algorithm, 0.0, seed=seed)[-1].samples for seed in range(3)])
        for algorithm in (Tight(check_ratio=1.3), Adaptive(check_ratio=1.3))
    }
    assert samples["adaptive"] <= 0.75 * samples["tight"]


def test_no_understatement_along_a_run_with_many_states():
    mdp = many_states(250)
    assert not any(understated(mdp, check) for check in finished(mdp, Tight(check_ratio=1.6), epsilon=2.0))


@pytest.mark.parametrize("horizon", [None, 3])
def test_sampling_follows_its_allocation(horizon):
    """Every batch leads to exactly the wanted number of samples, and all of them together to the shares."""
    mdp = random_mdp(0, states=4, actions=2, dimension=3, horizon=horizon)
    problem = mdp.problem
    shares = np.random.default_rng(0).uniform(1, 2, len(problem.pairs))
    shares /= shares.sum()
    sampling, tally = AllocationSampling.of(shares, problem.stages), Tally.empty(problem, problem.pairs)
    for samples in (50, 173, 174, 2000):
        tally += ExactSimulator(mdp).sample(sampling.until(samples, tally), np.random.default_rng(samples))
        assert tally.samples == samples
        assert np.abs(tally.pulls - samples * np.tile(shares / problem.stages, (problem.stages, 1))).max() <= 1.5
    # With another allocation the samples so far count: what is already there is not drawn again.
    turned = replace(sampling, allocation=sampling.allocation[:, ::-1])
    tally += ExactSimulator(mdp).sample(turned.until(200_000, tally), np.random.default_rng(1))
    assert np.abs(tally.pulls - 200_000 * turned.allocation).max() <= 1.5
