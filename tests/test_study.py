"""identify, ask and tell: budgets, seeds, interruptions, faults."""

from __future__ import annotations

import numpy as np
import pytest

import bestpolicy as bp
from tests.models import near_tie, random_mdp

MDP = near_tie(0.3)
EPISODIC = random_mdp(2, states=3, actions=2, dimension=3, horizon=2)


def run_by_hand(mdp, **settings):
    study = bp.Study(mdp.problem, **settings)
    simulator = bp.ExactSimulator(mdp)
    while not study.done:
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    return study.result()


@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
def test_owning_the_loop_gives_the_same_as_identify(mdp):
    settings = {"epsilon": 0.2, "delta": 0.1, "algorithm": "gss", "seed": 4}
    ours, theirs = run_by_hand(mdp, **settings, linearity=0), bp.identify(bp.ExactSimulator(mdp), **settings)
    assert ours.samples == theirs.samples
    assert ours.statistic == theirs.statistic
    np.testing.assert_array_equal(ours.policy, theirs.policy)
    assert ours.certified
    assert theirs.outcome is bp.Outcome.CERTIFIED


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    runs = [
        bp.identify(bp.ExactSimulator(MDP), epsilon=0.2, delta=0.1, algorithm="gss", seed=seed) for seed in (1, 1, 2)
    ]
    assert runs[0].statistic == runs[1].statistic != runs[2].statistic
    unseeded = bp.identify(bp.ExactSimulator(MDP), epsilon=0.2, delta=0.1, algorithm="gss")
    again = bp.identify(bp.ExactSimulator(MDP), epsilon=0.2, delta=0.1, algorithm="gss", seed=unseeded.seed)
    assert again.statistic == unseeded.statistic


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": -0.1}, "epsilon must be a finite number ≥ 0. Got -0.1"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"epsilon": "small"}, "epsilon"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1"),
        ({"delta": 1.0}, "delta"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed"),
        ({"max_samples": 0}, "max_samples must be a whole number of at least 1"),
        ({"algorithm": "gs"}, "Did you mean 'gss'"),
        ({"algorithm": "gss-e"}, "use 'gss'"),
        ({"algorithm": bp.algorithms.GSS}, "algorithm must be an Algorithm or the name of one"),
        ({"algorithm": 3}, r"algorithm must be .*\(gss.*Got 3"),
        ({"max_seconds": -1}, "max_seconds must be a finite number > 0. Got -1"),
        ({"query_seconds": -1}, "query_seconds must be"),
        ({"calls_per_query": 0}, "calls_per_query must be a whole number of at least 1"),
        ({"executor": 3}, "executor must be a function.*Got 3"),
        ({"progress": 3}, r"progress must be a function, called as progress\(study\)"),
        ({"name": 3}, "name must be a text"),
        ({"name": ""}, "name must be a text"),
        ({"store": 3}, "store must be the path of a file"),
        ({"own_data": 3}, "own_data must be a Tally"),
        ({"linearity": 1.5}, "linearity must be"),
        ({"linearity": -0.1}, "linearity must be"),
        ({"linearity": "no"}, "linearity must be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(bp.InvalidInput, match=message):
        bp.identify(bp.ExactSimulator(MDP), **({"epsilon": 0.1, "delta": 0.1, "algorithm": "gss"} | settings))


def test_nonsense_elsewhere(tmp_path):
    simulator, study = bp.ExactSimulator(MDP), bp.Study(MDP.problem, epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
    (query,) = study.ask()
    tally = simulator.sample(query.pulls, query.rng())
    result = bp.identify(simulator, epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
    for act, message in (
        (lambda: bp.drive(3, simulator), "study must be a Study"),
        (lambda: bp.drive(study, 3), "model must be a function, .* or have a `problem`"),
        (lambda: study.tell(3, tally), "3 was never asked"),
        (lambda: study.tell(bp.Query(0, query.pulls, 5), tally), "was never asked"),
        (lambda: study.tell(query, 3), "must be a Tally"),
        (lambda: study.tell(query, bp.Tally.empty(EPISODIC.problem)), "another problem"),
        (lambda: result.save(tmp_path), "cannot write .*Is a directory. Give a file"),
        (lambda: result.save(tmp_path / "no" / "file"), "cannot write"),
        (lambda: result.save(3), "path must be the path of a file"),
        (lambda: result.save("/dev/full"), "cannot write /dev/full: No space left"),
        (lambda: MDP.save(tmp_path), "cannot write"),
        (lambda: MDP.save("bad\0path"), "path must be"),
        (lambda: bp.Study.resume(3), "store must be the path"),
        (lambda: bp.Study.resume(tmp_path), "is a folder"),
    ):
        with pytest.raises(bp.InvalidInput, match=message):
            act()
    assert study.samples == 0


def test_results_print_what_matters():
    result = bp.identify(bp.ExactSimulator(MDP), epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
    assert str(result).splitlines()[0] == result.explanation
    assert f"{result.samples:,} simulator calls" in str(result)
    assert repr(result).startswith("Result(certified: ε = 0.5 certified with probability 0.9, gss, ")
    assert len(repr(result)) < 200
    assert len(str(result)) < 400


def test_any_exception_of_a_simulator_keeps_the_study():
    class Careless(bp.ExactSimulator):
        calls = 0

        def sample(self, pulls, rng):
            self.calls += 1
            if self.calls == 3:
                raise KeyError("no such\nstate")
            return super().sample(pulls, rng)

    with pytest.raises(bp.SimulatorError, match=r"raised KeyError: .*no such") as caught:
        bp.identify(Careless(MDP), epsilon=0.01, delta=0.1, seed=0, algorithm="tight")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "error.study holds" in caught.value.__notes__[0]
    assert caught.value.study.samples > 0
    assert not caught.value.study.done


def test_bad_models():
    with pytest.raises(bp.InvalidInput, match="ExactSimulator"):
        bp.identify(MDP, epsilon=0.1, delta=0.1, algorithm="gss")
    features = np.random.default_rng(0).standard_normal((4, 3, 3))
    with pytest.raises(bp.InvalidInput, match="all-ones"):
        bp.Study(bp.Problem(features, discount=0.9), epsilon=0.1, delta=0.1, algorithm="gss")
    flat = np.concatenate([MDP.problem.features, MDP.problem.features], axis=2)
    with pytest.raises(bp.InvalidInput, match="rank_reduction"):
        bp.Study(bp.Problem(flat, discount=0.9), epsilon=0.1, delta=0.1, algorithm="gss")


@pytest.mark.parametrize("budget", [1, 3, 1000, 50_000])
@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
def test_a_spent_budget_is_an_outcome(mdp, budget):
    result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.01, delta=0.1, algorithm="gss", seed=0, max_samples=budget)
    assert result.outcome is bp.Outcome.BUDGET
    assert not result.certified
    assert result.epsilon == float("inf")
    assert 0.9 * budget - 20 <= result.samples <= budget
    mdp.loss(result.policy)  # a policy all the same
    assert "budget" in result.explanation
    assert result.to_dict()["epsilon"] is None


def test_time_budget():
    result = bp.identify(
        bp.ExactSimulator(near_tie(0.0)), epsilon=0, delta=0.1, algorithm="gss", seed=0, max_seconds=0.05
    )
    assert result.outcome is bp.Outcome.TIME


def test_a_tie_is_never_certified_optimal():
    result = bp.identify(bp.ExactSimulator(near_tie(0.0)), epsilon=0, delta=0.1, algorithm="gss", seed=0)
    assert result.outcome is bp.Outcome.GAVE_UP
    assert "tied" in result.explanation


@pytest.mark.parametrize("time", [{"discount": 0.9}, {"horizon": 2}])
def test_nothing_to_choose_needs_no_sample(time):
    features = np.array([[[1.0, 0], [1, 0]], [[0, 1], [0, 1]]])
    study = bp.Study(bp.Problem(features, **time), epsilon=0, delta=0.1, algorithm="gss")
    assert study.done
    assert study.ask() == []
    result = study.result()
    assert result.certified
    assert (result.samples, result.epsilon) == (0, 0.0)
    assert result.to_dict()["gap"] is None


def test_tell_refuses_what_was_not_asked_and_loses_nothing():
    study = bp.Study(MDP.problem, epsilon=0.2, delta=0.1, algorithm="gss", seed=0)
    simulator = bp.ExactSimulator(MDP)
    (query,) = study.ask()
    tally = simulator.sample(query.pulls, query.rng())
    half = simulator.sample(bp.Pulls(query.pulls.pairs, query.pulls.counts // 2), query.rng())
    with pytest.raises(bp.InvalidInput, match="partial=True"):
        study.tell(query, half)
    with pytest.raises(bp.InvalidInput, match="more samples"):
        study.tell(query, tally + half)
    with pytest.raises(bp.InvalidInput, match="never asked"):
        study.tell(bp.Query(7, query.pulls, 0), tally)
    assert study.samples == 0
    assert study.ask() == [query]
    study.tell(query, tally)
    samples = study.samples
    study.tell(query, tally)  # told twice: nothing happens
    assert study.samples == samples == tally.samples


def test_pairs_that_were_not_simulated_may_be_left_out():
    study, simulator = bp.Study(MDP.problem, epsilon=0.2, delta=0.1, seed=0, algorithm="tight"), bp.ExactSimulator(MDP)
    for _ in range(3):
        (query,) = study.ask()
        used = query.pulls.counts.any(axis=0)
        pulls = bp.Pulls(query.pulls.pairs[used], query.pulls.counts[:, used])
        study.tell(query, simulator.sample(pulls, query.rng()))
    assert not used.all()
    assert study.ask()[0].index == 3


def test_partial_answers_add_up():
    study = bp.Study(MDP.problem, epsilon=0.2, delta=0.1, algorithm="gss", seed=0)
    simulator = bp.ExactSimulator(MDP)
    (query,) = study.ask()
    half = simulator.sample(bp.Pulls(query.pulls.pairs, query.pulls.counts // 3), query.rng())
    study.tell(query, half, partial=True)
    (rest,) = study.ask()
    assert rest.pulls.total == query.pulls.total - half.samples
    study.tell(rest, simulator.sample(rest.pulls, rest.rng()))
    assert study.samples == query.pulls.total
    assert study.ask()[0].index == query.index + 1


def test_a_failing_simulator_loses_nothing_and_can_be_mended():
    calls = 0

    def step(states, actions, rng):
        nonlocal calls
        calls += len(states)
        rewards = (rng.random(len(states)) < MDP.rewards[states, actions]).astype(float)
        following = rng.integers(2, size=len(states))
        if 30_000 < calls < 10**9:
            rewards[-1] = np.nan
        return rewards, following

    simulator = bp.CallableSimulator(MDP.problem, step, vectorized=True)
    with pytest.raises(bp.SimulatorError, match="nan") as caught:
        bp.identify(simulator, epsilon=0.5, delta=0.1, algorithm="gss", seed=0)
    study = caught.value.study
    assert study.samples == calls - 1
    calls = 10**9  # mended
    result = bp.drive(study, simulator)
    assert result.certified
    assert result.samples > 10_000


def test_ctrl_c_returns_what_is_known():
    class Interrupted(bp.ExactSimulator):
        calls = 0

        def sample(self, pulls, rng):
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return super().sample(pulls, rng)

    result = bp.identify(Interrupted(MDP), epsilon=0.01, delta=0.1, algorithm="gss", seed=0)
    assert result.outcome is bp.Outcome.INTERRUPTED
    assert len(result.checks) >= 2
    assert result.samples > 0


def test_progress_is_called_and_the_forecast_is_near():
    seen = []
    result = bp.identify(
        bp.ExactSimulator(MDP),
        epsilon=0.1,
        delta=0.1,
        algorithm="gss",
        seed=0,
        progress=lambda study: seen.append(study.forecast()),
    )
    assert len(seen) >= 5
    assert 0.7 < seen[-1] / result.samples < 1.4


@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
def test_answers_in_any_order_give_the_same_bits(mdp):
    """Queries are split by calls_per_query alone; the order of the answers does not matter."""

    def run(shuffle):
        study = bp.Study(mdp.problem, epsilon=0.5, delta=0.1, algorithm="gss", seed=4, calls_per_query=500)
        simulator, order = bp.ExactSimulator(mdp), np.random.default_rng(shuffle)
        sizes = []
        while not study.done:
            queries = study.ask()
            assert all(query.pulls.total <= 500 for query in queries)
            sizes.append(len(queries))
            for i in order.permutation(len(queries)) if shuffle else range(len(queries)):
                study.tell(queries[i], simulator.sample(queries[i].pulls, queries[i].rng()))
                study.tell(queries[i], simulator.sample(queries[i].pulls, queries[i].rng()))  # twice: no effect
        assert max(sizes) > 3
        return study.result()

    first, second = run(0), run(7)
    assert first.statistic == second.statistic
    assert first.samples == second.samples
    assert first.certified


def test_split_pulls_add_up():
    pulls = bp.Pulls(np.array([0, 2, 5]), np.array([[3, 0, 4], [1, 2, 0]]))
    pieces = pulls.split(4)
    assert [piece.total for piece in pieces] == [4, 4, 2]
    total = np.zeros((2, 6), int)
    for piece in pieces:
        total[:, piece.pairs] += piece.counts
    np.testing.assert_array_equal(total[:, [0, 2, 5]], pulls.counts)


@pytest.mark.parametrize("mdp", [MDP, EPISODIC])
@pytest.mark.parametrize("algorithm", ["gss", "tight", "adaptive"])
def test_own_data_save_samples_and_survive_in_the_store(mdp, algorithm, tmp_path):
    simulator, settings = bp.ExactSimulator(mdp), {"epsilon": 0.5, "delta": 0.1, "seed": 3, "algorithm": algorithm}
    plain = bp.identify(simulator, **settings)
    pairs = mdp.problem.pairs
    pulls = bp.Pulls(pairs, np.full((mdp.problem.stages, len(pairs)), plain.rounds // len(pairs)))
    own = simulator.sample(pulls, np.random.default_rng(99))
    helped = bp.identify(simulator, **settings, own_data=own)
    assert helped.certified
    assert helped.samples < 0.85 * plain.samples
    assert mdp.is_near_optimal(helped.policy, 0.5)
    store = tmp_path / "run.db"
    bp.Study(mdp.problem, **settings, own_data=own, store=store).close()
    resumed = bp.drive(bp.Study.resume(store), simulator)
    assert resumed.statistic == helped.statistic
    helped.save(tmp_path / "certificate.json")
    assert any(
        f"{own.samples:,} samples came from elsewhere" in item
        for item in bp.verify(tmp_path / "certificate.json").trusted
    )


def test_data_that_are_not_linear_are_doubted():
    mdp = random_mdp(3, states=6, actions=3, dimension=4)

    class Bent(bp.ExactSimulator):
        """One pair pays more than its features say."""

        def sample(self, pulls, rng):
            tally = super().sample(pulls, rng)
            bent = np.where((tally.pairs == 7)[None, :, None], tally.next_counts, tally.next_rewards)
            squares = np.where(tally.pairs == 7, tally.pulls, tally.squared_rewards)
            return bp.Tally(tally.pairs, tally.next_counts, bent.astype(float), squares)

    settings = {"epsilon": 0.3, "delta": 0.1, "algorithm": "tight", "seed": 0, "linearity": 0.05}
    straight, bent = bp.identify(bp.ExactSimulator(mdp), **settings), bp.identify(Bent(mdp), **settings)
    assert straight.certified
    assert straight.warnings == ()
    assert (bent.certified, bent.outcome) == (False, "in doubt")
    assert len(bent.warnings) == 1
    assert "state 2, action 1" in bent.warnings[0]
    assert bent.to_dict()["warnings"] == list(bent.warnings)


@pytest.mark.parametrize(
    ("instance", "epsilon"), [("riverswim", 0.5), ("queue", 0.5), ("inventory", 0.5), ("simplex", 0.5)]
)
def test_forecasts_without_a_formula_say_nothing_or_are_near(instance, epsilon):
    seen = []
    result = bp.identify(
        bp.ExactSimulator(bp.instances.load(instance)),
        epsilon=epsilon,
        delta=0.05,
        algorithm="tight",
        seed=0,
        progress=lambda study: seen.append((study.checks[-1].epsilon, study.forecast(), study.samples)),
    )
    ratios = [forecast / result.samples for _, forecast, _ in seen if not np.isnan(forecast)]
    assert all(np.isnan(forecast) for known, forecast, _ in seen if known == np.inf)
    assert all(not forecast < samples for _, forecast, samples in seen)
    assert len(ratios) >= 5
    assert np.mean([0.25 < ratio < 4 for ratio in ratios]) >= 0.8
    assert seen[-1][1] == result.samples


@pytest.mark.parametrize("algorithm", ["gss", "tight", "ppq", "linear-plug-in", "klb-ts"])
def test_answers_may_list_pairs_that_were_not_sampled(algorithm):
    simulator = bp.ExactSimulator(bp.instances.load("B11"))

    class Wide:
        problem = simulator.problem

        def sample(self, pulls, rng):
            return simulator.sample(pulls, rng) + bp.Tally.empty(self.problem, self.problem.pairs)

    settings = {"epsilon": 1.0, "delta": 0.1, "algorithm": algorithm, "seed": 0, "max_samples": 10**9}
    plain, wide = bp.identify(simulator, **settings), bp.identify(Wide(), **settings, linearity=0)
    assert plain.samples == wide.samples
    np.testing.assert_array_equal(plain.policy, wide.policy)


def test_a_batch_that_does_not_fit_the_budget_is_named():
    model = bp.ExactSimulator(bp.instances.load("B1"))
    settings = {"epsilon": 0.5, "delta": 0.1, "seed": 0}
    result = bp.identify(model, **settings, algorithm="ppq", max_samples=3)
    assert "The first batch of" in result.explanation
    assert "does not fit into the budget of 3 simulator calls" in result.explanation
    first = result.explanation.split()[4]
    assert "The next batch of" in bp.identify(model, **settings, algorithm="ppq", max_samples=int(first)).explanation
    assert "is spent" in bp.identify(model, **settings, algorithm="gss", max_samples=10**5).explanation


def test_samples_of_another_range_of_rewards_are_not_pooled(tmp_path):
    def step(state, action, rng):
        return float(rng.random() < 0.5), int(rng.integers(MDP.problem.states))

    problem, store = MDP.problem, tmp_path / "run.db"
    bp.identify(
        bp.CallableSimulator(problem, step),
        epsilon=0.1,
        delta=0.1,
        algorithm="gss",
        seed=0,
        store=store,
        max_samples=50,
    )
    other = bp.CallableSimulator(problem, step, reward_range=(-100.0, 100.0))
    with pytest.raises(bp.InvalidInput, match=r"from \[0, 1\].*from \[-100, 100\]"):
        bp.drive(bp.Study.resume(store, max_samples=100), other)


def test_doubt_is_part_of_what_is_said():
    study = bp.Study(MDP.problem, epsilon=0.5, delta=0.1, algorithm="tight", seed=0)
    study.warn("the features do not fit")
    result = bp.drive(study, bp.ExactSimulator(MDP))
    assert result.explanation.endswith("BUT IN DOUBT: the features do not fit")


def test_doubt_is_told_in_the_users_own_units():
    """A wrong aggregation of two states, with rewards in [-90, 10]."""
    features = np.eye(4)[[[0, 1], [2, 3], [2, 3]]]
    problem = bp.Problem(features, discount=0.5)
    simulator = bp.CallableSimulator(
        problem, lambda state, action, rng: ((10.0, 0.0, -90.0)[state], 0), reward_range=(-90.0, 10.0)
    )
    result = bp.identify(simulator, epsilon=100, delta=0.1, algorithm="tight", seed=0)
    assert result.outcome is bp.Outcome.DOUBT
    assert "90 off" in result.explanation


def test_a_name_resumes_a_study(tmp_path):
    store = tmp_path / "run.db"
    bp.Study(MDP.problem, epsilon=0.5, delta=0.1, algorithm="tight", seed=0, store=store).close()
    bp.Study.resume(store, algorithm="tight").close()
    with pytest.raises(bp.InvalidInput, match=r"'tight'.*Got 'gss'"):
        bp.Study.resume(store, algorithm="gss")
