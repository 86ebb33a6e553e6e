"""Algorithm sharp as users run it: on tables of all kinds, from a file, at a start, on every processor."""

import numpy as np
import pytest
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import sharp, sharp_dense
from bestpolicy.algorithms.protocol import Task
from bestpolicy.algorithms.sharp import by_table
from bestpolicy.algorithms.sharp_dense import LEFT
from tests.everywhere import on_machines
from tests.kernels import outputs
from tests.models import tabular_mdp

RIVER = bp.instances.load("riverswim")
EPISODIC = bp.instances.load("riverswim", horizon=4)


def random_table(seed, states, **kind):
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(states), size=(states, 2))
    return tabular_mdp(transitions, rng.uniform(size=(states, 2)), **kind)


def identify(mdp, **asked):
    return bp.identify(bp.ExactSimulator(mdp), **{"delta": 0.05, "seed": 1, "algorithm": "sharp"} | asked)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 100.0])
@pytest.mark.parametrize("kind", ["discounted", "episodic", "two actions", "masked"])
def test_the_policy_is_as_good_as_certified(kind, epsilon):
    mdp = {
        "discounted": lambda: random_table(6, 5, discount=0.8),
        "episodic": lambda: random_table(3, 3, horizon=3),
        "two actions": lambda: bp.instances.load("two-state"),
        "masked": lambda: bp.instances.load("riverswim", states=5),
    }[kind]()
    result = identify(mdp, epsilon=epsilon)
    assert result.certified
    assert result.epsilon <= epsilon
    assert mdp.loss(result.policy) <= result.epsilon + 1e-9
    tiny = mdp.problem.stages * len(mdp.problem.pairs) <= 8
    rivals = tiny or epsilon == 0 or kind == "discounted"  # where many states follow each pair
    suffix = "" if mdp.problem.horizon is None else "-E"
    assert result.rule in [f"Theorem {name}{suffix}" for name in (("I", "UD") if rivals else ("U",))]


def test_it_takes_a_fraction_of_the_samples_of_tight():
    asked = {"epsilon": 0.05 * float(RIVER.plan.values.max()), "seed": 0}
    assert identify(RIVER, **asked).samples * 3 < identify(RIVER, algorithm="tight", **asked).samples


@pytest.mark.parametrize("mdp", [RIVER, EPISODIC], ids=["discounted", "episodic"])
def test_a_run_that_is_killed_all_the_time_is_that_of_one_piece(tmp_path, mdp):
    asked = {"epsilon": 0.4, "delta": 0.05, "seed": 2, "algorithm": "sharp", "calls_per_query": 2000}
    simulator, store = bp.ExactSimulator(mdp), tmp_path / "run.db"
    study = bp.Study(mdp.problem, **asked, store=store)
    while not study.done:
        query = study.ask()[-1]
        study.tell(query, simulator.sample(query.pulls, query.rng()))
        study.close()
        study = bp.Study.resume(store)
    straight = bp.identify(simulator, **asked)
    assert [(c.samples, c.epsilon, c.lag) for c in study.checks] == [
        (c.samples, c.epsilon, c.lag) for c in straight.checks
    ]
    np.testing.assert_array_equal(study.result().policy, straight.policy)


# Two states that follow one another. Of the first one's actions neither pays, so nothing tells them apart; or one does.
AROUND = np.array([[[0.0, 1.0]] * 2, [[1.0, 0.0]] * 2])
TIED = tabular_mdp(AROUND, np.array([[0.0, 0.0], [0.2, 0.9]]), discount=0.5)
CLEAR = tabular_mdp(AROUND, np.array([[0.2, 0.8], [0.2, 0.9]]), discount=0.5)


def course_of(checks):
    return [(check.samples, check.epsilon, check.lag, check.rule) for check in checks]


@pytest.mark.parametrize(("mdp", "last"), [(TIED, "Theorem U"), (CLEAR, "Theorem I")], ids=["tied", "clear"])
def test_a_small_table_with_tied_actions_is_handed_over_and_can_be_stopped_anywhere(tmp_path, monkeypatch, mdp, last):
    """ε = 0: Theorem I begins. If it sees no end it has spent nothing, and Theorem U goes on with all of δ."""
    monkeypatch.setattr(sharp, "_PATIENCE", 25)
    monkeypatch.setattr(sharp, "_EPISODIC_PATIENCE", 25)
    asked = {"epsilon": 0.0, "delta": 0.1, "algorithm": "sharp", "seed": 1}
    simulator, store, path = bp.ExactSimulator(mdp), tmp_path / "run.db", tmp_path / "certificate.json"
    straight = bp.identify(simulator, **asked, max_samples=4000)
    rules = [check.rule for check in straight.checks]
    change = rules.index("Theorem U") if last == "Theorem U" else len(rules)
    assert set(rules[:change]) == {"Theorem I"}
    assert set(rules[change:]) <= {"Theorem U"}
    assert change > 1
    if last == "Theorem U":  # nothing was spent before, nor was the change made too soon
        assert all(check.lag == 0 and check.epsilon == np.inf for check in straight.checks[:change])
        assert straight.checks[change - 1].samples < 25 * 4 <= straight.checks[change].samples
    assert straight.rule == last
    assert straight.certified is (last == "Theorem I")
    assert mdp.loss(straight.policy) <= straight.epsilon < 2.0

    # Stopped before the change, at it, after it, and before the end.
    places = sorted({change - 2, min(change, len(rules) - 1), min(change + 1, len(rules) - 2), len(rules) - 2})
    for budget in [straight.checks[place].samples for place in places] + [4000]:
        part = (
            bp.drive(bp.Study.resume(store, max_samples=budget), simulator)
            if store.exists()
            else bp.identify(simulator, **asked, store=store, max_samples=budget)
        )
        assert course_of(part.checks) == course_of(straight.checks[: len(part.checks)])
        if part.epsilon < np.inf:
            part.save(path)
            found = bp.verify(path, mdp, store=store)
            assert found.valid
            assert found.order_shown
            assert found.true_loss <= found.epsilon
    assert course_of(part.checks) == course_of(straight.checks)
    np.testing.assert_array_equal(part.policy, straight.policy)


def test_theorem_u_goes_on_with_what_a_lag_that_began_by_luck_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(sharp, "_PATIENCE", 250)
    monkeypatch.setattr(sharp_dense, "_EXACT_IN_SIGHT", 0.15)  # luck is more common
    noisy = tabular_mdp(AROUND, np.array([[0.5, 0.5], [0.2, 0.9]]), discount=0.5)
    asked = {"epsilon": 0.0, "delta": 0.1, "algorithm": "sharp", "seed": 4}
    simulator, store, path = bp.ExactSimulator(noisy), tmp_path / "run.db", tmp_path / "certificate.json"
    straight = bp.identify(simulator, **asked, max_samples=9000)
    rules = [check.rule for check in straight.checks]
    change = rules.index("Theorem U")
    before = max(check.lag for check in straight.checks[:change])
    numbers = {check.lag for check in straight.checks[change:] if check.rule == "Theorem U" and check.lag}
    assert before > 0  # some of δ is spent
    assert 0.35 ** (min(numbers) - 1) <= LEFT**before  # and all that Theorem U may spend is at most what is left
    for budget in (straight.checks[change - 1].samples, straight.checks[change].samples, 9000):
        part = (
            bp.drive(bp.Study.resume(store, max_samples=budget), simulator)
            if store.exists()
            else bp.identify(simulator, **asked, store=store, max_samples=budget)
        )
        assert course_of(part.checks) == course_of(straight.checks[: len(part.checks)])
        part.save(path)
        found = bp.verify(path, noisy, store=store)
        assert found.valid, found.reasons
        assert found.order_shown
    assert course_of(part.checks) == course_of(straight.checks)


@pytest.mark.parametrize(
    ("states", "steps", "share", "table"),
    [
        (4, 2, 0.05, False),
        (4, 3, 0.05, True),
        (4, 3, 0.01, False),
        (4, 4, 0.01, False),
        (4, 5, 0.01, True),
        (24, None, 0.05, False),
        (25, None, 0.05, True),
    ],
)
def test_small_tables_and_those_of_few_steps_begin_with_bets_on_rivals(states, steps, share, table):
    """Theorem I adds up what steps may lose, Theorem U follows paths."""
    kind = {"discount": 0.8} if steps is None else {"horizon": steps}
    problem = bp.instances.random_tabular(states=states, actions=2, **kind).problem
    epsilon = share * float(problem.value_limits[0])
    assert by_table(Task(problem, epsilon, 0.1, np.random.default_rng(0)), None) == table


@pytest.mark.parametrize(("states", "local"), [(6, False), (8, True)])
def test_small_tables_are_bet_on_where_many_states_follow_each_pair(states, local):
    chain, mixing = (
        bp.instances.riverswim(states=states),
        bp.instances.random_tabular(states=6, actions=3, discount=0.8),
    )
    mdp = chain if local else mixing
    for share in (0.01, 0.05):
        epsilon = share * float(mdp.problem.value_limits[0])
        result = bp.identify(bp.ExactSimulator(mdp), epsilon=epsilon, delta=0.1, algorithm="sharp", seed=3)
        assert result.checks[-1].rule in (["Theorem U"] if local else ["Theorem I", "Theorem UD"])
        assert mdp.is_near_optimal(result.policy, result.epsilon)
        if local:  # nothing of δ was spent before
            assert {check.lag for check in result.checks if check.lag} <= {1, 2, 3}


def test_a_later_share_leaves_what_is_spent():
    for lags in range(12):
        first = sharp.first_number(lags)
        rest = sum(sharp.share_of(number) for number in range(first, first + 60))
        assert 1 - LEFT**lags + rest <= 1 + 1e-12
        assert first == 1 or 1 - LEFT**lags + rest / 0.35 > 1  # no later than need be


def test_a_budget_ends_a_run_with_what_is_certified():
    whole = identify(RIVER, epsilon=0.05)
    spent = identify(RIVER, epsilon=0.05, max_samples=whole.samples - 1)
    assert spent.outcome is bp.Outcome.BUDGET
    assert not spent.certified
    assert spent.samples < whole.samples
    assert RIVER.loss(spent.policy) <= spent.epsilon


def test_own_data_help_to_plan():
    simulator, pairs = bp.ExactSimulator(RIVER), RIVER.problem.pairs
    own = simulator.sample(bp.Pulls(pairs, np.full((1, len(pairs)), 200)), np.random.default_rng(0))
    result = identify(RIVER, epsilon=0.3, own_data=own)
    assert result.certified
    assert result.checks[0].samples > 32 * len(pairs)  # no pilot: the first samples are those of a plan


@pytest.mark.parametrize("start", [0, 5, [0.5, 0.5, 0, 0, 0, 0]])
def test_a_claim_at_a_start_says_so(tmp_path, start):
    result = identify(RIVER, epsilon=1.0, start=start, store=tmp_path / "run.db")
    begin = np.eye(6)[start] if isinstance(start, int) else np.array(start)
    assert RIVER.loss(result.policy, begin) <= result.epsilon
    assert result.where == (
        f"from state {start}" if isinstance(start, int) else "on average over the start distribution"
    )
    assert result.where in result.explanation
    assert result.where in bp.report.report_page(tmp_path / "run.db")
    again = bp.Study.resume(tmp_path / "run.db").result()
    assert again.to_dict() == result.to_dict()
    assert again.to_dict()["where"] == result.where


def test_what_cannot_be_started_from():
    for start, message in (
        (6, "one of the states 0 to 5"),
        (-1, "at least 0"),
        ("0", "a state or a distribution"),
        ([0.5, 0.6, 0, 0, 0, 0], "sum 1"),
        ([0.5, 0.5], "Got 2 numbers"),
        ([np.nan] * 6, "start"),
    ):
        with pytest.raises(bp.InvalidInput, match=message):
            identify(RIVER, epsilon=0.3, start=start)
    with pytest.raises(bp.InvalidInput, match="start is not for algorithm 'tight'"):
        identify(RIVER, epsilon=0.3, start=0, algorithm="tight")


SCRIPT = """
import bestpolicy as bp
asked = (("riverswim", {}, 0.3), ("riverswim", {"horizon": 4}, 0.4), ("two-state", {}, 0.0))
for name, options, epsilon in (*asked, ("aggregated-riverswim", {}, 0.1)):  # the last one has equal eigenvalues
    model = bp.ExactSimulator(bp.instances.load(name, **options))
    result = bp.identify(model, epsilon=epsilon, delta=0.05, seed=3, algorithm="sharp", linearity=0)
    print(name, result.samples, result.policy.tolist(), [(c.samples, float(f"{c.epsilon:.9g}")) for c in result.checks])
"""


@on_machines
def test_the_same_seed_gives_the_same_answer_on_every_processor(machines):
    assert len(set(outputs(SCRIPT, machines=machines()).values())) == 1


@pytest.mark.study
def test_certificates_are_seldom_wrong():
    """At δ = 0.5, with two nearly tied actions: at most half of the runs may state an ε below the true loss."""
    features = np.eye(2).reshape(1, 2, 2)
    problem = bp.Problem(features, discount=0.5)
    mdp = bp.LinearMDP(problem, theta=[0.5, 0.56], mu=[[1.0, 1.0]])
    runs, wrong = 16, 0
    for seed in range(runs):
        result = identify(mdp, epsilon=0.1, delta=0.5, seed=seed, max_samples=600)
        wrong += mdp.loss(result.policy) > result.epsilon + 1e-12
    assert binomtest(wrong, runs, 0.5, alternative="greater").pvalue > 1e-4


def test_progress_shows_what_is_planned(tmp_path):
    seen = []
    store, note = tmp_path / "run.db", lambda study: seen.append(study.forecast())
    result = identify(RIVER, epsilon=0.1, store=store, progress=note)
    known = [forecast for forecast in seen[:-1] if forecast == forecast]
    assert known
    assert 0.5 * result.samples <= known[-1] <= 2 * result.samples
    assert [c.to_dict() for c in bp.Study.resume(store).checks] == [c.to_dict() for c in result.checks]
