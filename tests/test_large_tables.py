"""Looks without matrices, for tables of many states: what they bound is bounded, and the truth stays inside."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.sparse import World, garnet, grid
from scipy.stats import binomtest

from bestpolicy.algorithms.table_past import Past
from bestpolicy.algorithms.table_plan import plan_lag
from bestpolicy.algorithms.table_rows import EstimatedRows, KeptRows
from bestpolicy.stopping.tables import rows as rows_module
from bestpolicy.stopping.tables import solve
from bestpolicy.stopping.tables.lag import LOOKS, PLANNED, Lag
from bestpolicy.stopping.tables.look import Look, look
from bestpolicy.stopping.tables.model import TableSamples, resolvent
from bestpolicy.stopping.tables.rows import DenseRows, SparseRows, Sums
from bestpolicy.stopping.tables.solve import EXACT, ROUGH, Solver
from bestpolicy.verification import look as checker
from bestpolicy.verification import rows as checker_rows
from tests.test_certificate_tables import verified
from tests.test_tables import HOSTILE, bad_policy, batches, check_events, count_failures, make_lag

SMALL = {
    "garnet": lambda: garnet(30, 3, 0.9, seed=1),
    "slow garnet": lambda: garnet(12, 2, 0.99, seed=2),
    "grid": lambda: grid(5),
    "episodes": lambda: garnet(8, 2, horizon=4, seed=3),
}


@pytest.fixture
def without_matrices(monkeypatch):
    monkeypatch.setattr(rows_module, "DENSE_STATES", 0)
    monkeypatch.setattr(checker_rows, "HELD", 0)
    monkeypatch.setattr(checker, "HELD", 0)


def case(name: str, seed: int = 0, past: int = 100, planned: int = 600) -> tuple[World, Lag, TableSamples]:
    problem, rng = (SMALL | HOSTILE)[name](), np.random.default_rng(seed)
    lag = make_lag(problem, rng, past=past, planned=planned)
    return problem, lag, problem.sample(PLANNED * lag.unit, rng)


# --- systems


@pytest.mark.parametrize("factorised", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_solutions_are_as_exact_as_they_say(name, factorised, monkeypatch):
    monkeypatch.setattr(solve, "_SMALL", 1000 if factorised else 0)
    monkeypatch.setattr(solve, "_NARROW", 1000)
    problem = SMALL[name]()
    chain, kernel = problem.table.chain, problem.model[0]
    solver, rng = Solver(chain, kernel, chain.first), np.random.default_rng(0)
    assert (solver.factors is not None) == (factorised or chain.step == 1)
    given = rng.normal(size=(len(chain.first), 3)) * [1.0, 1e-9, 1e50]  # each column has its own accuracy
    exact = resolvent(chain, kernel, chain.first)[chain.live]
    for accuracy in (EXACT, ROUGH):
        found, error = solver.solve(given, accuracy)
        off = np.abs(found - exact @ given).max(0)
        assert (off <= error + 1e-12 * np.abs(found).max(0)).all()
        assert (error <= 3 * accuracy * chain.longest.max() * np.abs(given).max(0) + 1e-9 * np.abs(found).max(0)).all()
    back = solver.solve_transposed(given)
    np.testing.assert_allclose(back, exact.T @ given, rtol=0, atol=1e-4 * np.abs(back).max(0).min() + 1e-4 * 1e50)


# --- bounds of sums


def both_kinds(problem: World, lag: Lag, fresh: TableSamples) -> tuple[Look, DenseRows, SparseRows]:
    chain = problem.table.chain
    one = Look(chain, lag, chain.successors(problem.table, fresh), PLANNED)
    given = (chain, lag, one.past, one.seen, one.left, one.right)
    return one, DenseRows(*given), SparseRows(*given, one.pair, one.direction, one.difference)


def worst_ratios(name: str, seed: int, as_expected: bool = False) -> dict[str, float]:
    """The smallest quotient of what is said without matrices by what is true; a bound has none below 1."""
    problem, lag, fresh = case(name, seed)
    _, dense, sparse = both_kinds(problem, lag, fresh)
    rng, size, ratios = np.random.default_rng(seed), len(lag.policy), {}
    squares = sparse.known.expected * rng.exponential(size=size)
    squares[rng.random(size) < 0.2] *= 20.0
    reach = sparse.known.reach * rng.uniform(0.5, 1.5, size)
    both = rng.exponential(size=(size, 2)) ** 3
    if as_expected:
        squares, both = sparse.known.expected, np.stack([sparse.known.sums] * 2, axis=1)
    for method, arguments in (
        ("first_hub", (squares, reach)),
        ("first_local", (squares, reach)),
        ("first_rival", (squares, reach, reach)),
        ("second_hub", (both,)),
        ("second_local", (both,)),
        ("second_rival", (both,)),
    ):
        said, true = getattr(sparse, method)(*arguments), getattr(dense, method)(*arguments)
        known = slice(None)
        if method == "first_local":
            known = sparse.found  # the past has not seen the others
        elif method.endswith("rival"):
            known = np.setdiff1d(np.arange(len(lag.unit)), lag.policy)
        said, true = (
            np.asarray(each)[..., known] if method.startswith("first") else each[known] for each in (said, true)
        )
        floor = 1e-9 * true.max()
        ratios[method] = float(((said + floor) / (true + floor)).min())
    return ratios


@pytest.mark.parametrize("name", SMALL)
def test_nothing_that_is_said_without_matrices_is_too_small(name):
    for seed in range(3):
        for as_expected in (False, True):
            assert min(worst_ratios(name, seed, as_expected).values()) >= 1 - 1e-9


def test_a_bound_that_forgets_something_is_noticed(monkeypatch):
    """Without the tops, or as if the kernel had not changed, bounds are too small."""
    sums = Sums.of
    with monkeypatch.context() as patch:
        patch.setattr(Sums, "of", lambda *given: replace(sums(*given), tops=0 * given[3].mean))
        assert worst_ratios("garnet", 0)["first_local"] < 0.99

    def forget(self):
        self._moved = np.zeros((len(self.lag.unit), 2))
        self._added_sums = self._excess(self._both, self.known.sums, np.ones(len(self._both)))

    monkeypatch.setattr(SparseRows, "_move", forget)
    assert worst_ratios("garnet", 0, as_expected=True)["second_local"] < 0.99


def test_what_is_expected_is_known_nearly():
    problem, lag, fresh = case("garnet")
    _, dense, sparse = both_kinds(problem, lag, fresh)
    expected, reach = sparse.known.expected, sparse.known.reach
    for method in ("first_hub", "first_local"):
        said, true = getattr(sparse, method)(expected, reach), getattr(dense, method)(expected, reach)
        found = sparse.found if method == "first_local" else slice(None)
        np.testing.assert_allclose(said[0][found], true[0][found], rtol=0.02)
        ratios = said[1][found] / true[1][found]
        assert 1 - 1e-9 <= ratios.min() <= np.median(ratios) < 2.0  # of the larger side to the difference


# --- the look


@pytest.mark.parametrize("name", ["garnet", "grid", "episodes"])
def test_a_look_without_matrices_is_a_little_weaker(name, monkeypatch):
    problem, lag, fresh = case(name, past=4000, planned=20_000)
    exact = look(problem.table, lag, fresh, PLANNED).epsilon
    monkeypatch.setattr(rows_module, "DENSE_STATES", 0)
    bound = look(problem.table, replace(lag), fresh, PLANNED).epsilon
    assert exact * (1 - 1e-6) <= bound <= 1.5 * exact


@pytest.mark.parametrize("name", ["near tie", "trapdoor", "episodes"])
def test_events_fail_as_rarely_without_matrices(name, without_matrices, monkeypatch):
    """The truth needs matrices to compare with; the look does not have them."""
    chain = HOSTILE[name]().table.chain
    monkeypatch.setattr(
        SparseRows, "psi_past", property(lambda self: resolvent(chain, self.past, self.lag.policy)), raising=False
    )
    check_events(count_failures(name, 8, 1, looks=(6, 10, 20), past=300, planned=2000), 8, 0.5)


def false_lags(name: str, runs: int, delta: float = 0.5) -> int:
    """How many lags of a bad policy state a loss that is too small, at some look."""
    problem = HOSTILE[name]()
    policy, wrong = bad_policy(problem), 0
    for number in range(runs):
        rng = np.random.default_rng([9, number])
        lag = make_lag(problem, rng, policy=policy, delta=delta, past=500, planned=3000)
        loss = problem.loss(policy)
        wrong += any(
            look(problem.table, lag, fresh, c).epsilon < loss - 1e-9 for c, fresh in batches(problem, lag, rng)
        )
    return wrong


@pytest.mark.study
@pytest.mark.parametrize("name", ["near tie", "slow river", "jackpot", "trapdoor", "episodes"])
def test_lags_are_false_as_rarely_as_they_say(name, without_matrices):
    assert binomtest(false_lags(name, 300), 300, 0.5, "greater").pvalue > 1e-4


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "rare rewards"])
def test_both_programs_agree_without_matrices(name, without_matrices):
    problem, rng = HOSTILE[name](), np.random.default_rng(5)
    lag = make_lag(problem, rng, past=500, planned=10**5 if name == "trapdoor" else 3000)  # fewer say nothing there
    fresh = problem.sample(PLANNED * lag.unit, rng)
    epsilon = look(problem.table, lag, fresh, PLANNED).epsilon
    assert verified(problem, lag, fresh, PLANNED, epsilon).valid
    assert epsilon == 0 or not verified(problem, lag, fresh, PLANNED, 0.5 * epsilon).valid


# --- plans


def test_estimates_are_near(monkeypatch):
    problem, rng = garnet(120, 3, 0.9, seed=4), np.random.default_rng(0)
    past = Past.of(problem.table, problem.sample(np.full(problem.table.pairs, 200), rng))
    chain, kernel, rivals = past.chain, past.kernel, np.flatnonzero(past.rival)
    kept = KeptRows(chain, kernel, past.policy, rivals)
    near = EstimatedRows(chain, kernel, past.policy, rivals, past.solver)
    played, others = rng.exponential(size=len(past.policy)), rng.exponential(size=len(rivals))
    for found, exact in (
        (near.forward(played), kept.forward(played)),
        (near.backward(others), kept.backward(others)),
        (near.largest(others, played, played), kept.largest(others, played, played)),
    ):
        ratio = found / exact
        assert 0.8 < np.median(ratio) < 1.25
        assert ratio.min() > 0.2
        assert ratio.max() < 4
    lag = make_lag(problem, rng)
    exactly = Sums.of(chain, lag, lag.kernel(chain), Solver(chain, lag.kernel(chain), lag.policy))
    roughly = EstimatedRows(chain, lag.kernel(chain), lag.policy, rivals, Solver(chain, lag.kernel(chain), lag.policy))
    guessed = roughly.sums(lag)
    for kind in range(3):
        for name in ("squares", "largest", "absolute"):
            found, exact = getattr(guessed, name)[kind], getattr(exactly, name)[kind]
            positive = exact > 1e-6 * exact.max()
            assert 0.7 < np.median(found[positive] / exact[positive]) < 1.4


def test_a_large_table_is_certified(without_matrices):
    """Plans rehearse with estimates; what is certified is computed."""
    problem, rng = garnet(40, 3, 0.9, seed=6), np.random.default_rng(1)
    epsilon = 0.1 * problem.largest()
    past = problem.sample(np.full(problem.table.pairs, 1500), rng)
    lag = plan_lag(problem.table, past, epsilon, 0.05, np.random.default_rng(2))
    assert isinstance(lag, Lag)
    assert not any(name.startswith("_sums") for name in vars(lag))  # nothing that was estimated is left behind
    fresh = problem.sample(LOOKS[-1] * lag.unit, rng)
    verdict = look(problem.table, lag, fresh, LOOKS[-1])
    assert problem.loss(verdict.policy) <= verdict.epsilon <= epsilon
