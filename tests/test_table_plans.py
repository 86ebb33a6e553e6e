"""Plans for tables: claims at a start, early lags, ties. All of it is about samples; what is certified stays true."""

import numpy as np
import pytest
from benchmarks.sparse import garnet, riverswim, run

import bestpolicy as bp
from bestpolicy.algorithms import table_planner
from bestpolicy.algorithms.protocol import Task
from bestpolicy.algorithms.sharp import _Course, number_of, share_of
from bestpolicy.algorithms.table_past import Past
from bestpolicy.algorithms.table_plan import EarlyLag, plan_lag
from bestpolicy.algorithms.table_planner import Planner
from bestpolicy.stopping.tables.look import look
from tests.test_tables import REST, jackpot, river, world

RIVER = bp.instances.load("riverswim")


def first_counts(problem, where, past):
    table = problem.starting(where).table
    planner = Planner(Past.of(table, past), 0.05 * problem.largest(), 0.05, np.array([0.05, REST - 0.05]))
    return planner, planner.first_plan()[0]


@pytest.mark.parametrize(
    ("problem", "where"),
    [(garnet(20, 3, 0.9), "uniform"), (garnet(20, 3, 0.9), "one"), (riverswim(6, 0.9), "uniform")],
)
def test_a_start_needs_fewer_samples_than_every_state(problem, where):
    past = problem.sample(np.full(problem.table.pairs, 300), np.random.default_rng(0))
    assert first_counts(problem, where, past)[1].sum() < 0.9 * first_counts(problem, "all", past)[1].sum()


def test_states_that_the_start_never_reaches_get_few_samples():
    """Two tables that do not meet; the start is in the first."""
    one = garnet(6, 2, 0.9, seed=3)
    outcomes = [
        [(one.probability[i], int(one.successor[i]) + 6 * island, one.reward[i]) for i in np.flatnonzero(one.pair == k)]
        for island in range(2)
        for k in range(12)
    ]
    both = world(np.repeat(np.arange(12), 2).tolist(), outcomes, coins=True, discount=0.9)
    past = both.sample(np.full(24, 2000), np.random.default_rng(0))
    _, counts = first_counts(both, "one", past)
    _, everywhere = first_counts(both, "all", past)
    assert counts[12:].sum() < 0.5 * everywhere[12:].sum()
    assert counts.sum() < 0.9 * everywhere.sum()


def test_unequal_accuracies_keep_what_is_asked():
    """The optimal value of the gains that widths leave is at most the goal: in each state, or at the start."""
    problem = garnet(12, 3, 0.9)
    past = problem.sample(np.full(36, 300), np.random.default_rng(1))
    for where in ("all", "uniform", "one"):
        planner, _ = first_counts(problem, where, past)
        (choice,) = planner.unequal(0.3)
        chain, gains = planner.past.chain, choice(1.0) - planner.past.gaps
        gains[planner.past.policy] = 0.0
        assert chain.worth(chain.optimal(planner.past.kernel, gains, np.zeros(12))) <= 0.3 * (1 + 1e-6)


def test_no_pair_gets_next_to_nothing_if_something_may_be_lost(monkeypatch):
    """Two coins that are nearly the same want nearly all samples; the other state's actions are told apart at once."""
    outcomes = [[(1.0, 1, 0.5)], [(1.0, 1, 0.51)], [(1.0, 0, 0.0)], [(1.0, 0, 1.0)]]
    problem = world([0, 0, 1, 1], outcomes, coins=True, discount=0.5)
    model = Past.of(problem.table, problem.sample(np.full(4, 4000), np.random.default_rng(0)))

    def least(epsilon):
        shares = np.array([REST, 0.0]) if epsilon == 0 else np.array([0.05, REST - 0.05])
        counts, _ = Planner(model, epsilon, 0.05, shares).first_plan()
        return counts.min() / counts.mean(), counts.sum()

    share, total = least(0.02)
    assert 0.05 / 1.05 <= share <= 0.06  # of the mean, which is a little larger for it
    assert least(0.0)[0] < 0.01  # ties would take the others with them
    monkeypatch.setattr(table_planner, "_CHEAP", 0.0)
    bare, before = least(0.02)
    assert bare < 0.01
    assert total <= 1.06 * before


def test_no_two_lags_have_the_same_number():
    numbers = [number_of(place, early) for place in range(1, 40) for early in (False, True)]
    assert len(set(numbers)) == len(numbers)
    assert sum(share_of(number) for number in numbers) <= 1
    assert [number_of(place, False) for place in (1, 2, 3)] == [1, 2, 4]


def test_a_run_that_an_older_version_began_spends_no_share_twice():
    """There early lags had numbers 4, 5, 7, …, the third lag for the asked ε had 3."""
    problem, rng = RIVER.problem, np.random.default_rng(0)
    course = _Course(Task(problem, 0.1, 0.05, rng=rng))
    course.lags, course.used = {False: 2, True: 1}, {1, 2, 4}
    assert (course._next_number(False), course._next_number(True)) == (6, 5)
    course.lags, course.used = {False: 3, True: 0}, {1, 2, 3}
    assert (course._next_number(False), course._next_number(True)) == (6, 5)


def test_a_long_run_certifies_something_early_which_verifies_and_survives(tmp_path):
    store, path = tmp_path / "run.db", tmp_path / "certificate.json"
    asked = {"epsilon": 0.01 * float(RIVER.plan.values.max()), "delta": 0.05, "seed": 0, "algorithm": "sharp"}
    whole = bp.identify(bp.ExactSimulator(RIVER), **asked)
    stated = [check for check in whole.checks if check.epsilon < np.inf]
    assert stated[0].samples < 0.3 * whole.samples
    assert stated[0].lag % 2 == 1  # an early one
    assert stated[0].lag > 1
    assert all(RIVER.loss(check.policy[0]) <= check.epsilon for check in stated)
    part = bp.identify(bp.ExactSimulator(RIVER), **asked, store=store, max_samples=stated[0].samples)
    assert part.epsilon == stated[0].epsilon
    part.save(path)
    assert bp.verify(path, store=store).valid

    other = tmp_path / "other.db"
    study = bp.Study(RIVER.problem, **asked, store=other)
    while not study.done:
        for query in study.ask():
            study.tell(query, bp.ExactSimulator(RIVER).sample(query.pulls, query.rng()))
        study.close()
        study = bp.Study.resume(other)
    assert [(c.samples, c.epsilon, c.lag) for c in study.checks] == [
        (c.samples, c.epsilon, c.lag) for c in whole.checks
    ]


def test_an_early_lag_is_one_of_samples_that_are_wanted_anyway():
    problem = riverswim(6, 0.9)
    past = problem.sample(np.full(12, 200), np.random.default_rng(0))
    rng = np.random.default_rng
    pilot = plan_lag(problem.table, past, 0.02, 0.05, rng(1))
    early = plan_lag(problem.table, past, 0.02, 0.05, rng(1), early=(0.001, np.inf))
    assert isinstance(early, EarlyLag)
    assert 10 * early.unit.sum() <= 2 * pilot.sum() + 10 * 12  # the next pilot is there as well
    assert early.delta == 0.001
    fresh = problem.sample(10 * early.unit, rng(2))
    assert problem.loss(early.policy) <= look(problem.table, early, fresh, 10).epsilon < 10
    # What is known already is not certified again.
    assert not isinstance(plan_lag(problem.table, past, 0.02, 0.05, rng(1), early=(0.001, 0.03)), EarlyLag)


@pytest.mark.parametrize("seed", [71, 72])
def test_a_short_run_certifies_something_early(seed):
    """Without early lags it is the looks of the last lag that certify first, after half of the samples or more."""
    done = run(riverswim(6, 0.9), 0.05 * riverswim(6, 0.9).largest(), seed)
    assert done.first is not None
    assert done.first[0] < 0.45 * done.samples
    assert done.early > 0


def test_nothing_is_stated_that_no_policy_could_lose():
    for mdp, largest in ((RIVER, 10.0), (bp.instances.load("riverswim", horizon=4), 4.0)):
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.3, delta=0.05, seed=0, algorithm="sharp")
        assert all(check.epsilon < largest or check.epsilon == np.inf for check in result.checks)


def test_ties_do_not_keep_the_rest_from_being_certified():
    """At the last stage all actions of most states are tied, so no policy can be proved optimal; nearly so, it can."""
    mdp = bp.instances.load("riverswim", horizon=4)
    result = bp.identify(
        bp.ExactSimulator(mdp), epsilon=0, delta=0.05, seed=0, algorithm="sharp", max_samples=5_000_000
    )
    assert not result.certified
    assert mdp.loss(result.policy) <= result.epsilon < 1e-3


def test_runs_from_a_start_are_as_good_as_they_say():
    for problem in (river(start=np.array([1.0, 0.0, 0.0])), jackpot().starting("one")):
        done = run(problem, 0.1, seed=3, delta=0.1, most=1e7)
        assert done.loss - 1e-9 <= done.epsilon <= 0.1
