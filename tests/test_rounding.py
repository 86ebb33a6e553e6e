"""Floating point against exact arithmetic: margins cover the errors, and nothing is claimed for lack of digits.

Counts and features are rational numbers, so what the program computes in 53 bits can be computed exactly with
`fractions`. Features are made as badly conditioned as one likes without rounding: short binary numbers, and columns
that differ in their last bits.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import inf

import numpy as np
import pytest

import bestpolicy as bp
import bestpolicy.stopping.paper as paper
from bestpolicy._numerics.reproducible import EPS, accurate_product
from bestpolicy.algorithms.tight import Tight, whitened_problem
from bestpolicy.certificate import make_certificate
from bestpolicy.design import g_optimal_design, whiten
from bestpolicy.diagnostics.assumptions import TOLERANCE
from bestpolicy.errors import InvalidInput
from bestpolicy.samples import Pulls
from bestpolicy.stopping import rounding
from bestpolicy.stopping import rule as rule_module
from bestpolicy.stopping.evidence import Evidence, fit
from bestpolicy.stopping.fresh import FreshTest
from bestpolicy.stopping.paper import PaperTest
from bestpolicy.stopping.rounding import ALLOWANCE, Rounding, coordinates_of
from bestpolicy.stopping.rule import Past
from bestpolicy.verification import protocol
from bestpolicy.verification import regression as checked_regression
from bestpolicy.verification import rounding as checked_rounding
from bestpolicy.verification.case import ONES_TOLERANCE, Case, Samples
from bestpolicy.verification.coordinates import Coordinates
from bestpolicy.verification.paper import _equation_errors as checked_equation_errors
from bestpolicy.verification.paper import _plan as checked_plan
from bestpolicy.verification.protocol import Spending
from bestpolicy.verification.reading import Rejected, parse
from bestpolicy.verification.regression import Regression
from bestpolicy.verification.rounding import exact_product
from bestpolicy.verification.tight import Rounds, rounding_of_f
from tests.models import first_test, near_tie, paper_check, random_mdp, tabular_mdp
from tests.test_certificate import verdict_on

# --- exact arithmetic ------------------------------------------------------------------------------------------------


def exact(array):
    """The same numbers as fractions, in an array of objects."""
    return np.vectorize(lambda number: Fraction(float(number)), otypes=[object])(array)


def solved(matrix, right):
    """Solution of a linear system of fractions, by elimination."""
    size = len(matrix)
    table = np.concatenate([matrix, right], axis=1)
    for column in range(size):
        pivot = column + int(np.argmax([abs(entry) for entry in table[column:, column]]))
        table[[column, pivot]] = table[[pivot, column]]
        table[column] = table[column] / table[column, column]
        for row in range(size):
            if row != column and table[row, column]:
                table[row] = table[row] - table[row, column] * table[column]
    return table[:, size:]


def exact_least_squares(rows, weights, targets, ridge=None):
    """X with (Σ weight φφᵀ + ridge) X = Σ φ target, all exact; targets are (K, n)."""
    gram = (rows.T * weights) @ rows
    return solved(gram if ridge is None else gram + ridge, rows.T @ targets)


def exact_gaps(problem, evidence, policy):
    """V(s) - Q(s, a) of a policy in the exact least-squares model, (stages, S, A), and y if discounted, (S, A, d)."""
    states, actions, dimension = problem.features.shape
    features, gamma = exact(problem.features), Fraction(problem.continuation)
    rows, everywhere = features.reshape(-1, dimension)[evidence.tally.pairs], np.arange(states)
    staged, following = [], None
    for stage in reversed(range(problem.stages)):
        targets = np.column_stack([evidence.rewards[stage], evidence.following[stage]])
        model = exact_least_squares(rows, exact(evidence.inverse_weights[stage]), exact(targets))
        theta, mu = model[:, :1], model[:, 1:]  # (d, 1) and (d, S)
        identity = exact(np.eye(dimension))
        if problem.horizon is None:
            system = identity - gamma * (mu @ features[everywhere, policy[0]])
            inverse = solved(system, identity)
            parameters = inverse @ theta
        else:
            parameters = theta if following is None else theta + mu @ following[:, None]
        q_values = (features.reshape(-1, dimension) @ parameters)[:, 0].reshape(states, actions)
        following = q_values[everywhere, policy[stage]]
        staged.append(following[:, None] - q_values)
    if problem.horizon is not None:
        return np.array(staged[::-1]), None
    return np.array(staged), (features - features[everywhere, policy[0]][:, None]) @ inverse


# --- instances -------------------------------------------------------------------------------------------------------


def dyadic_mdp(seed, *, states=3, actions=2, dimension=3, discount=0.9, horizon=None):
    """Like `random_mdp`, with features of eight bits that sum to 1 exactly."""
    mdp = random_mdp(seed, states, actions, dimension, discount, horizon)
    features = np.floor(mdp.problem.features * 256) / 256
    features[..., 0] = 1 - features[..., 1:].sum(axis=-1)
    problem = bp.Problem(features, discount=mdp.problem.discount, horizon=horizon)
    theta, mu = (mdp.theta, mdp.mu) if horizon else (mdp.theta[0], mdp.mu[0])
    return bp.LinearMDP(problem, theta=theta, mu=mu)


def badly_conditioned(problem, shift):
    """The same linear functions in features (1, x, x + 2^-shift y, …): exact, with condition number about 2^shift."""
    features = problem.features.copy()
    features[..., 0] = 1.0
    features[..., 2:] = features[..., 1:2] + 2.0**-shift * features[..., 2:]
    return bp.Problem(features, discount=problem.discount, horizon=problem.horizon)


def condition(problem):
    rows = problem.pair_features
    return np.linalg.cond(rows / np.linalg.norm(rows, axis=0))


def rule_and_evidence(mdp, problem, samples, seed, *, weighted=False, epsilon=0.1, explored=0.2):
    """A rule in the algorithm's coordinates for the features of `problem`, and evidence from a model that has them."""
    design = g_optimal_design(problem.pair_features)
    shares = np.zeros(len(problem.pairs))
    shares[design.indices] = design.weights
    rule = first_test(whitened_problem(problem, design), np.arange(len(shares)), shares, epsilon, 0.05)
    rng = np.random.default_rng(seed)
    counts = np.maximum(1, samples * ((1 - explored) * shares + explored / len(shares))).astype(int)
    pulls = Pulls(problem.pairs, np.tile(counts, (problem.stages, 1)))
    weights = np.exp(rng.uniform(0, np.log(16), pulls.counts.shape)) if weighted else None
    tally = bp.ExactSimulator(mdp).sample(pulls, rng)
    return rule, Evidence.empty(problem, problem.pairs).add(tally, weights)


def margins_of(rule, evidence, verdict):
    """Of w(y) - Δ̂ at a look, (stages, S, A)."""
    model = fit(rule.problem, evidence)
    return Rounding.of(rule.coordinates, evidence, model, verdict.propagation).margins


def patient(exponent):
    return 1 - 2.0**-exponent


# --- the run's margins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [None, 20, 36], ids=["well conditioned", "condition 1e6", "condition 1e11"])
@pytest.mark.parametrize("exponent", [3, 12, 22])
def test_gaps_are_known_up_to_the_margin(exponent, shift):
    for seed in range(4):
        mdp = dyadic_mdp(seed, dimension=3 + seed % 2, discount=patient(exponent))
        problem = mdp.problem if shift is None else badly_conditioned(mdp.problem, shift)
        assert shift is None or condition(problem) > 2.0**shift
        rule, evidence = rule_and_evidence(mdp, problem, 10 ** (4 + 2 * seed), seed, weighted=seed % 2 == 1)
        verdict = replace(rule, policy=mdp.plan.policy).look(evidence)  # Theorem P needs no contraction
        errors = np.abs((exact(verdict.gaps) - exact_gaps(problem, evidence, verdict.policy)[0]).astype(float))
        assert (100 * errors <= margins_of(rule, evidence, verdict) / ALLOWANCE).all()
        # They are no larger than they have to be: far below what the values are, at any γ.
        assert margins_of(rule, evidence, verdict).max() <= (1e-10 if shift is None else 1e-6) * problem.value_limits[0]


@pytest.mark.parametrize("shift", [None, 30])
def test_episodic_gaps_are_known_up_to_the_margin(shift):
    for seed in range(3):
        mdp = dyadic_mdp(seed, dimension=4, horizon=4)
        problem = mdp.problem if shift is None else badly_conditioned(mdp.problem, shift)
        rule, evidence = rule_and_evidence(mdp, problem, 10**6, seed, weighted=seed == 1)
        verdict = rule.look(evidence)
        errors = np.abs((exact(verdict.gaps) - exact_gaps(problem, evidence, verdict.policy)[0]).astype(float))
        assert (errors <= margins_of(rule, evidence, verdict) / ALLOWANCE).all()
        assert margins_of(rule, evidence, verdict).max() < 1e-6


@pytest.mark.parametrize("exponent", [4, 22, 26])
def test_widths_are_not_too_small(exponent):
    """Along constant functions the response is as large as 1/(1-γ); squares of it must not eat the widths."""
    for seed in range(4):
        mdp = dyadic_mdp(seed, discount=patient(exponent))
        rule, evidence = rule_and_evidence(mdp, mdp.problem, 10**13, seed)
        verdict = replace(rule, policy=mdp.plan.policy).look(evidence)
        assert len(verdict.metrics)
        _, directions = exact_gaps(rule.problem, evidence, verdict.policy)
        squares = [(directions @ exact(metric[0]) * directions).sum(axis=-1) for metric in verdict.metrics]
        smallest = np.sqrt(np.min(np.array(squares).astype(float), axis=0))
        rival = verdict.slopes[0] > 0
        assert (verdict.slopes[0] >= smallest * (1 - 1e-14))[rival].all()
        assert (verdict.slopes[0] <= smallest * (1 + 1e-4))[rival].all()


def test_no_false_optimum_at_long_horizons():
    """Two actions that differ by 1/1000, a few samples, γ = 1 - 2⁻²⁸: there is nothing to claim."""
    for seed in range(20):
        transitions = np.random.default_rng(seed).dirichlet(np.ones(2), size=(2, 2))
        transitions[0, 1] = transitions[0, 0]
        mdp = tabular_mdp(transitions, np.array([[0.5, 0.501], [0.2, 0.9]]), discount=patient(28))
        for samples in (120, 1200, 12_000):
            rule, evidence = rule_and_evidence(mdp, mdp.problem, samples, seed, epsilon=0.0)
            assert rule.look(evidence).epsilon > 0


def nearly_tied(seed):
    """A model whose optimal policy hangs on the seventh digit of a reward; None if its policy does not depend on it."""
    mdp = dyadic_mdp(seed, states=4)

    def with_reward(reward):
        return bp.LinearMDP(mdp.problem, theta=np.append(reward, mdp.theta[0][1:]), mu=mdp.mu[0])

    low, high = 0.0, 1.0
    first = with_reward(low).policy
    if (with_reward(high).policy == first).all():
        return None
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if (with_reward(middle).policy == first).all() else (low, middle)
    return with_reward(max(0.0, low - 1e-7))


def finished(mdp, problem, seed, budget=10**15):
    """Result of `tight` with ε = 0 on a model in other features."""
    asked = {"epsilon": 0.0, "delta": 0.05, "seed": seed, "max_samples": budget}
    study = bp.Study(problem, algorithm=Tight(check_ratio=4.0), linearity=0, **asked)  # the features fit
    simulator = bp.ExactSimulator(mdp)
    while not study.done:
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    return study.result()


def test_no_false_optimum_with_badly_conditioned_features():
    """At condition numbers around 10¹¹, with so many samples that only rounding can be wrong.

    Without the margins four of the sixteen are.
    """
    runs = 0
    for seed in range(60):
        mdp = nearly_tied(seed)
        if mdp is None:
            continue
        problem = badly_conditioned(mdp.problem, 35)
        assert condition(problem) > 3e10
        result = finished(mdp, problem, seed)
        assert mdp.loss(result.policy) <= result.epsilon
        assert result.epsilon < 1e-3  # not by refusing to say anything
        runs += 1
        if runs == 16:
            break
    assert runs == 16


def test_a_run_without_margins_is_found_out(monkeypatch):
    """What the rule would claim in the coordinates of the algorithm, and without margins, the checker rejects."""

    def trusting(problem):
        known = coordinates_of(problem)
        return replace(known, problem=problem, transform=None, error=0.0, moved=0.0, ones=0.0)

    monkeypatch.setattr(rule_module, "coordinates_of", trusting)
    monkeypatch.setattr(rounding, "ALLOWANCE", 0.0)
    rejected = 0
    for seed in range(12):
        mdp = nearly_tied(seed)
        if mdp is None:
            continue
        result = finished(mdp, badly_conditioned(mdp.problem, 36), seed)
        if mdp.loss(result.policy) > result.epsilon:
            found = verdict_on(make_certificate(result))
            assert not found.valid
            assert "certify" in str(found)
            rejected += 1
            break
    assert rejected


# --- Theorems F and R ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [None, 36])
@pytest.mark.parametrize("exponent", [4, 22])
def test_backups_of_theorem_f_are_known_up_to_its_margin(exponent, shift):
    for seed in range(3):
        mdp = dyadic_mdp(seed, discount=patient(exponent))
        problem = mdp.problem if shift is None else badly_conditioned(mdp.problem, shift)
        rule, evidence = rule_and_evidence(mdp, problem, 10**6, seed)
        fresh = FreshTest(rule.problem, Past(rule.prior, policy=mdp.plan.policy, values=mdp.plan.values), 0.05)
        model = fit(fresh.problem, evidence)
        parameters = model.theta[0] + problem.discount * (model.mu[0].T @ fresh.values[0])
        features = exact(problem.features).reshape(-1, problem.dimension)
        ahead = exact(evidence.following[0]) @ exact(fresh.values[0]) * Fraction(problem.discount)
        targets = (exact(evidence.rewards[0]) + ahead)[:, None]
        true = features @ exact_least_squares(features, exact(evidence.inverse_weights[0]), targets)
        computed = (fresh.problem.features @ parameters).ravel()
        errors = np.abs((exact(computed) - true[:, 0]).astype(float))
        assert errors.max() <= fresh.rounding(evidence, model, parameters)


def paper_rule_and_tally(mdp, problem, seed, rounds=10**6):
    features = problem.pair_features
    design = g_optimal_design(features)
    whitened = problem.with_features(whiten(features, design).features(problem.features))
    pulls = Pulls(problem.pairs[design.indices], np.maximum(1, design.weights * rounds).astype(int)[None])
    tally = bp.ExactSimulator(mdp).sample(pulls, np.random.default_rng(seed))
    return PaperTest(whitened, Past(), 0.1, 0.1), tally


def exact_coordinates(problem, rule):
    known = coordinates_of(rule.problem)
    features = exact(problem.features).reshape(-1, problem.dimension)
    return features if known.transform is None else features @ exact(known.transform)


@pytest.mark.parametrize("shift", [None, 36])
@pytest.mark.parametrize("exponent", [2, 22])
def test_theorem_r_knows_its_backups_up_to_its_margin(exponent, shift, monkeypatch):
    seen = []

    def spy(problem, tally, plan, *rest, measure=paper.equation_errors):
        seen.append((plan, measure(problem, tally, plan, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(paper, "equation_errors", spy)
    for seed in range(3):
        mdp = dyadic_mdp(seed, discount=patient(exponent))
        problem = mdp.problem if shift is None else badly_conditioned(mdp.problem, shift)
        rule, tally = paper_rule_and_tally(mdp, problem, seed)
        rule.look(Evidence.of(tally))
        plan, bounds = seen[-1]
        features = exact_coordinates(problem, rule)
        ahead = exact(tally.next_counts[0]) @ exact(plan.values[0]) * Fraction(problem.discount)
        targets = (exact(tally.reward_sums[0]) + ahead)[:, None]
        ridge = exact(np.eye(problem.dimension)) / problem.dimension
        true = features @ exact_least_squares(features[tally.pairs], exact(tally.pulls[0]), targets, ridge)
        errors = np.abs((exact(plan.q_values.ravel()) - true[:, 0]).astype(float))
        assert errors.max() <= bounds[0]
        assert bounds[0] <= 1e-7 * problem.value_limits[0]


def test_theorem_r_pays_for_a_policy_that_is_not_quite_greedy(monkeypatch):
    mdp = random_mdp(0, discount=0.7)
    rule, tally = paper_rule_and_tally(mdp, mdp.problem, 1)
    honest = rule.look(Evidence.of(tally))
    planned, seen = paper.optimal_plan, []

    def other_choice(*arguments):
        """The second-best action in the state where that costs least."""
        plan = planned(*arguments)
        ordered = np.sort(plan.q_values[0], axis=1)
        state = int((ordered[:, -1] - ordered[:, -2]).argmin())
        policy = plan.policy.copy()
        policy[0, state] = int(np.argsort(plan.q_values[0, state])[-2])
        seen.append(plan.gap)
        return replace(plan, policy=policy)

    monkeypatch.setattr(paper, "optimal_plan", other_choice)
    verdict = rule.look(Evidence.of(tally))
    # Instead of the gap Δ it has -Δ, and Δ more of the residual at this policy.
    gap = seen[0]
    resolved = -gap + rule.epsilon - 0.7 * gap / 0.3
    assert verdict.resolved == pytest.approx(honest.resolved * (resolved / (gap + rule.epsilon)) ** 2, rel=1e-6)
    assert verdict.resolved < honest.resolved
    exact_answer = replace(rule, epsilon=0.0).look(Evidence.of(tally))
    assert exact_answer.resolved == 0.0
    assert exact_answer.epsilon == inf


def test_the_gap_of_a_played_copy():
    features = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    problem = bp.Problem(features, discount=0.5)
    q_values = np.array([[[2.0, 1.5, 2.0], [1.0, 1.0, 1.0]]])
    for copy in (0, 2):
        gap, short = paper.played_gap(problem, q_values, np.array([[copy, 1]]))
        assert (gap, short.tolist()) == (0.5, [0.0])
    gap, short = paper.played_gap(problem, q_values, np.array([[1, 0]]))
    assert (gap, short.tolist()) == (-0.5, [0.5])
    single = bp.Problem(features[1:], discount=0.5)
    assert paper.played_gap(single, q_values[:, 1:], np.array([[2]]))[0] == inf


# --- coordinates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", [accurate_product, exact_product])
@pytest.mark.parametrize("size", [1e0, 1e8, 1e-8, 1e11])
def test_products_are_as_accurate_as_they_say(product, size):
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((6, 4)), rng.standard_normal((4, 4))
    left[:, 3] = left[:, 2] + left[:, 3] / size  # what is large in the right factor cancels
    right[3], right[2] = right[3] * size, right[2] - right[3] * size
    found, bounds = product(left, right)
    errors = np.linalg.norm((exact(found) - exact(left) @ exact(right)).astype(float), axis=1)
    assert (errors <= bounds).all()
    assert np.max(bounds) <= 1e-14 * max(1.0, np.abs(found).max()) + 1e-20 * np.abs(right).max()


def test_coordinates_are_recomputed_where_digits_were_lost():
    mdp = dyadic_mdp(0)
    problem = badly_conditioned(mdp.problem, 36)
    whitened = whitened_problem(problem, g_optimal_design(problem.pair_features))
    known = coordinates_of(whitened)
    true = exact(problem.features) @ exact(known.transform)
    assert coordinates_of(known.problem).problem is known.problem
    assert known.error < 1e-8 < known.moved
    for features, limit in ((known.problem.features, known.error), (whitened.features, 1e-3)):
        errors = np.linalg.norm((exact(features) - true).astype(float), axis=-1)
        assert errors.max() <= limit
    assert known.longest <= 1 + 1e-9
    assert problem.source is problem
    assert known.problem.source is problem


def test_coordinates_of_one_hot_features_are_left_alone():
    problem = near_tie(0.1).problem
    whitened = whitened_problem(problem, g_optimal_design(problem.pair_features))
    known = coordinates_of(whitened)
    assert known.problem is whitened
    assert known.error <= 4 * EPS
    assert known.ones <= 1e-14


def test_features_that_are_no_linear_map_certify_nothing():
    mdp = dyadic_mdp(0, states=5)
    noise = 0.1 * np.random.default_rng(0).standard_normal(mdp.problem.features.shape)
    other = mdp.problem.with_features(mdp.problem.features + noise)
    rule, evidence = rule_and_evidence(mdp, mdp.problem, 10**9, 0)
    assert rule.look(evidence).epsilon < inf
    strange = replace(rule, problem=other)
    assert strange.look(evidence).epsilon == inf
    assert (
        FreshTest(other, Past(rule.prior, policy=mdp.plan.policy, values=mdp.plan.values), 0.05).loss(evidence) == inf
    )
    assert not paper_check(other, 1.0, 0.1, evidence.tally).passed


# --- the all-ones function -------------------------------------------------------------------------------------------


def rounded_features(misfit, discount=0.9):
    """Features whose rows sum to 1 up to ±misfit, in a way that no other combination mends."""
    mdp = random_mdp(0, states=6, actions=3, dimension=3, discount=discount)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=mdp.problem.features.shape[:2])
    return mdp, bp.Problem(mdp.problem.features * (1 + misfit * signs)[:, :, None], discount=discount)


def test_one_tolerance_for_all_ones():
    assert TOLERANCE == ONES_TOLERANCE
    for misfit, good in ((TOLERANCE / 2, True), (TOLERANCE * 4, False)):
        _, problem = rounded_features(misfit)
        case = Case(problem.features, problem.mask, problem.discount, None)
        if good:
            bp.Study(problem, epsilon=0.1, delta=0.1, algorithm="gss")
            case._check_features()
        else:
            with pytest.raises(InvalidInput, match="all-ones"):
                bp.Study(problem, epsilon=0.1, delta=0.1, algorithm="gss")
            with pytest.raises(Rejected, match="all-ones"):
                case._check_features()


def test_the_misfit_of_all_ones_is_part_of_the_margin():
    margins = []
    for misfit in (0.0, 5e-9):
        mdp, problem = rounded_features(misfit)
        rule, evidence = rule_and_evidence(mdp, problem, 10**6, 0)
        margins.append(margins_of(rule, evidence, rule.look(evidence)).min())
        assert coordinates_of(rule.problem).ones >= 0.5 * misfit
    assert margins[0] < 1e-9
    assert margins[1] > 5e-9 * 10  # misfit times 1/(1-γ) at the least


# --- the checker's margins -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents():
    """Certificates with their verdicts: discounted, weighted, patient, badly conditioned and episodic."""
    found = {}
    for name, options in {
        "discounted": {},
        "weighted": {"weighted": True},
        "patient": {"discount": patient(22)},
        "condition 1e11": {"shift": 36},
        "episodic": {"horizon": 3, "discount": None},
    }.items():
        mdp = dyadic_mdp(1, dimension=4, discount=options.get("discount", 0.9), horizon=options.get("horizon"))
        problem = badly_conditioned(mdp.problem, options["shift"]) if "shift" in options else mdp.problem
        rule, evidence = rule_and_evidence(mdp, problem, 10**11, 0, weighted="weighted" in options, explored=0.0)
        span = 5.0 if name == "patient" else inf
        rule = replace(rule, value_span=span)
        verdict = rule.look(evidence)
        study = bp.Study(problem, epsilon=0.1, delta=0.05, algorithm=Tight(lag_share=0.0, value_span=span), seed=0)
        check = replace(verdict.check(evidence.tally, 0.1), proof=rule.proof(evidence))
        result = replace(study.result(), samples=10**12, rounds=10**12 // problem.stages, certified=check.passed)
        result = replace(result, policy=check.policy, epsilon=check.epsilon, rule=check.rule, checks=(check,))
        found[name] = (make_certificate(result), rule, evidence, verdict)
    return found


KINDS = ["discounted", "weighted", "patient", "condition 1e11", "episodic"]


@pytest.mark.parametrize("fixed", [False, True], ids=["T", "P"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_is_not_less_strict_than_the_run(documents, kind, fixed):
    document, rule, evidence, verdict = documents[kind]
    case, model = read(document)
    rounds = Rounds(model, verdict.policy, Spending(None, 0.1, 0.1, 0.1, 0.0), fixed)
    margins = margins_of(rule, evidence, verdict)
    assert (rounds.margins >= margins / ALLOWANCE).all()
    # What the run claims is confirmed in spite of two roundings: its margin is three of the checker's.
    assert (margins >= 2 * rounds.margins + margins / ALLOWANCE).all()
    assert np.abs(rounds.response.values - verdict.propagation.values).max() <= 1e-6 * case.limits[0]
    assert verdict_on(document).valid


def read(document):
    case = Case.read(parse_node(document, "problem"))
    proof = parse_node(document, "proof")
    coordinates = Coordinates.read(proof, case)
    return case, Regression.fit(case, Samples.read(proof.child("samples"), case), coordinates)


def parse_node(document, name):
    return parse(json.dumps(document)).child(name)


def test_the_checker_is_not_less_strict_than_theorem_f(documents):
    document, rule, evidence, verdict = documents["discounted"]
    _, model = read(document)
    values = np.clip(verdict.propagation.values, 0.0, 10.0)
    fresh = FreshTest(rule.problem, Past(rule.prior, policy=verdict.policy, values=values), 0.05)
    fitted = fit(fresh.problem, evidence)
    parameters = fitted.theta[0] + 0.9 * (fitted.mu[0].T @ values[0])
    own = fresh.rounding(evidence, fitted, parameters)
    assert own <= rounding_of_f(model, values, parameters) <= (ALLOWANCE - 1) / 2 * own


def test_the_checker_is_not_less_strict_than_theorem_r(monkeypatch):
    seen = []

    def spy(*arguments, measure=paper.equation_errors):
        seen.append(measure(*arguments))
        return seen[-1]

    monkeypatch.setattr(paper, "equation_errors", spy)
    for mdp in (dyadic_mdp(0, discount=0.6), dyadic_mdp(0, horizon=3)):
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
        case = Case.read(parse_node(document := make_certificate(result), "problem"))
        proof = parse_node(document, "proof")
        coordinates, samples = Coordinates.read(proof, case), Samples.read(proof.child("samples"), case)
        rows = coordinates.features.reshape(-1, 3)[samples.pairs]
        grams = [(rows.T * pulls) @ rows + np.eye(3) / 3 for pulls in samples.pulls]
        solutions = [
            np.linalg.solve(gram, rows.T @ np.column_stack([rewards.sum(axis=1), counts]))
            for gram, rewards, counts in zip(grams, samples.rewards, samples.counts, strict=True)
        ]
        theta, mu = np.array([x[:, 0] for x in solutions]), np.array([x[:, 1:].T for x in solutions])
        policy = result.checks[-1].policy
        plan = checked_plan(case, coordinates.features, theta, mu, policy)
        allowed = coordinates.features[case.mask]
        leverage = max(float((allowed @ np.linalg.inv(gram) * allowed).sum(axis=1).max()) for gram in grams)
        least = [float(np.linalg.eigvalsh(gram)[0]) for gram in grams]
        found = checked_equation_errors(case, coordinates, samples, plan, least, leverage)
        assert (found >= seen[-1]).all()
        assert ((ALLOWANCE - 1) / 2 * seen[-1] >= found).all()


def test_a_claim_that_hangs_on_the_margin_is_rejected(documents, monkeypatch):
    """The same file, with a checker that knows of larger rounding errors: no optimum is confirmed any more."""
    document, rule, evidence, verdict = documents["discounted"]
    assert verdict.epsilon == 0
    room = (verdict.gaps - verdict.slopes)[verdict.slopes > 0].min()
    factor = 2 * room / (margins_of(rule, evidence, verdict).min() / ALLOWANCE)
    for module in (checked_rounding, checked_regression):
        monkeypatch.setattr(module, "MARGIN", factor)
    found = verdict_on(document)
    assert not found.valid
    assert found.recomputed_epsilon is None or found.recomputed_epsilon > 0


def test_an_optimum_is_claimed_without_tolerance(documents, monkeypatch):
    document = documents["discounted"][0]
    for loss, valid in ((0.0, True), (1e-10, False)):
        monkeypatch.setattr(protocol, "certified_epsilon", lambda *arguments, loss=loss: (loss, 1, []))
        assert verdict_on(document).valid == valid
