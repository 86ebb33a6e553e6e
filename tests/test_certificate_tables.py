"""Certificates of Theorem U: what `sharp` saves is recomputed by a program of its own, and nothing else passes."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.sparse import World, garnet
from scipy.sparse import csr_array
from scipy.stats import binomtest

import bestpolicy as bp
from bestpolicy.algorithms import sharp
from bestpolicy.certificate import _table_proof, make_certificate
from bestpolicy.errors import InvalidInput, TooLarge
from bestpolicy.stopping.rule import Proof
from bestpolicy.stopping.tables import look as rule
from bestpolicy.stopping.tables.lag import LOOKS, PLANNED, SHARES, Lag, planned_bets
from bestpolicy.stopping.tables.look import Look, look
from bestpolicy.stopping.tables.model import TableSamples
from bestpolicy.study.journal import pack, unpack
from bestpolicy.verification import look as checker
from bestpolicy.verification import tables, verify_text
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import VERSION, digest
from tests.journals import rewrite
from tests.test_certificate import array, stored, verdict_on
from tests.test_tables import HOSTILE, bad_policy, batches, make_lag, trapdoor, world, worst_laws


def case_of(problem: World) -> Case:
    table = problem.table
    numbers = np.bincount(table.state, minlength=table.states)
    mask = np.arange(numbers.max()) < np.maximum(numbers, 1)[:, None]
    ends = np.flatnonzero(numbers == 0)
    reward = float((problem.table.chain.known[ends] / problem.table.most[0]).max(initial=0.0))
    return Case(
        np.zeros((*mask.shape, 0)), mask, table.discount, table.horizon, ends=ends, end_reward=round(reward, 12)
    )


def document_of(problem: World, lag: Lag, fresh: TableSamples, units: int, epsilon: float, number: int = 1) -> dict:
    """A certificate that states what a lag says, with the size of the table in place of its features."""
    case, table, delta = case_of(problem), problem.table, lag.delta / (0.65 * 0.35 ** (number - 1))
    going = np.setdiff1d(np.arange(table.states), case.ends)
    actions = np.zeros((case.stages, table.states))
    chosen = (lag.policy % len(table.state)).reshape(case.stages, -1)
    actions[:, going] = chosen - np.searchsorted(table.state, going)
    fixed = vars(lag) | {"number": number, "started": 10**6}
    encoded = make_certificate.__globals__["_encoded"]
    samples = 10**6 + int(fresh.pulls.sum())
    document = {
        "format": "bestpolicy certificate",
        "version": VERSION if len(case.ends) else 2,
        "problem": {
            "tabular": {"states": table.states, "actions": case.mask.shape[1]},
            "mask": None if case.mask.all() else encoded(case.mask, "|b1"),
            "discount": table.discount,
            "horizon": table.horizon,
            "fingerprint": case.fingerprint,
            "labels": None,
        },
        "claim": {
            "policy": encoded(actions, "<i8"),
            "epsilon": epsilon,
            "asked_epsilon": epsilon,
            "asked_was_certified": True,
            "delta": delta,
            "reward_scale": 1.0,
            "reward_offset": 0.0,
            "theorem": "U",
            "rule": "Theorem U" if table.horizon is None else "Theorem U-E",
        },
        "proof": _table_proof(Proof("U", fixed=fixed, fresh=vars(fresh) | {"units": units}), table.states),
        "run": {
            "algorithm": "sharp",
            "parameters": {},
            "seed": 0,
            "samples": samples,
            "own_data": 0,
            "rounds": samples // case.stages,
            "attempts": 1,
            "warnings": [],
            "versions": {},
        },
        "assumptions": [],
    }
    if len(case.ends):
        document["problem"]["ends"] = {"states": encoded(case.ends, "<i8"), "reward": case.end_reward}
    if table.start is not None:
        document["claim"]["start"] = encoded(table.start, "<f8")
    return document | {"sha256": digest(document)}


def verified(problem: World, lag: Lag, fresh: TableSamples, units: int, epsilon: float, **options) -> bp.Verification:
    return verify_text(json.dumps(document_of(problem, lag, fresh, units, epsilon, **options)))


def example(name: str, seed: int = 0, units: int = 10, **options) -> tuple[World, Lag, TableSamples, int]:
    problem, rng = HOSTILE[name](), np.random.default_rng(seed)
    lag = make_lag(problem, rng, **options)
    return problem, lag, next(fresh for c, fresh in batches(problem, lag, rng) if c == units), units


@pytest.fixture(autouse=True)
def _theorem_u_everywhere(monkeypatch):
    """Else Theorems I and UD would prove what is asked of small tables."""
    for name in ("_SMALLEST", "_SMALLER"):
        monkeypatch.setattr(sharp, name, 0)


# --- what a run saves

RIVER = bp.instances.load("riverswim", states=4, discount=0.8)
EPISODES = bp.instances.random_tabular(states=3, actions=2, seed=2, horizon=3)
MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]], dtype=bool)
MASKED = bp.instances.tabular(
    np.random.default_rng(0).dirichlet(np.full(4, 0.3), (4, 3)),
    np.random.default_rng(1).random((4, 3)),
    mask=MASK,
    discount=0.7,
)
MODELS = {"river": RIVER, "episodes": EPISODES, "masked": MASKED}


def identified(model, epsilon, **options):
    asked = {"delta": 0.1, "seed": 3, "algorithm": "sharp"} | options
    return bp.identify(bp.ExactSimulator(model), epsilon=epsilon, **asked)


@pytest.mark.parametrize("epsilon", [0.2, 0.0])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_valid(tmp_path, monkeypatch, name, epsilon):
    monkeypatch.setattr(sharp, "_SMALL", 0)  # else Theorem I would begin where ε = 0
    result = identified(MODELS[name], epsilon * MODELS[name].problem.value_limits[0])
    assert result.certified
    result.save(tmp_path / "certificate.json")
    found = bp.verify(tmp_path / "certificate.json", MODELS[name])
    assert found.valid
    assert found.recomputed_epsilon <= result.epsilon * (1 + 1e-6)
    assert found.epsilon == pytest.approx(result.epsilon, rel=1e-6)
    assert found.true_loss <= found.epsilon + 1e-9
    assert found.theorem == ("U-E" if name == "episodes" else "U")


def test_a_run_that_was_stopped_can_be_saved(tmp_path):
    whole = identified(RIVER, 0.0)
    some = next(check for check in whole.checks if 0 < check.epsilon < np.inf)
    result = identified(RIVER, 0.0, max_samples=some.samples)
    assert not result.certified
    assert result.epsilon == some.epsilon
    result.save(tmp_path / "certificate.json")
    found = bp.verify(tmp_path / "certificate.json")
    assert found.valid
    assert found.missed_epsilon == 0.0


def test_own_data_rewards_of_ones_own_and_a_start(tmp_path):
    pulls = bp.Pulls(RIVER.problem.pairs, np.full((1, len(RIVER.problem.pairs)), 50))
    own = bp.ExactSimulator(RIVER).sample(pulls, np.random.default_rng(0))
    result = identified(RIVER, 1.0, own_data=own, start=1)
    result.save(tmp_path / "certificate.json")
    found = bp.verify(tmp_path / "certificate.json", RIVER)
    assert found.valid
    assert found.where == "from state 1"
    assert "from state 1" in str(found)
    assert any("start" in item for item in found.trusted)
    document = json.loads((tmp_path / "certificate.json").read_text())
    del document["claim"]["start"]
    assert verdict_on(document).recomputed_epsilon > found.recomputed_epsilon


def test_what_is_claimed_is_what_both_programs_say(tmp_path):
    """A run that says a little too much has its certificate state what can be confirmed."""
    result = identified(RIVER, 1.0)
    boast = replace(result, epsilon=0.2 * result.epsilon)
    boast.save(tmp_path / "certificate.json")
    found = bp.verify(tmp_path / "certificate.json")
    assert found.valid
    assert boast.epsilon < found.epsilon <= result.epsilon * (1 + 1e-6)


# --- two programs, one theorem


@pytest.mark.parametrize("name", HOSTILE)
def test_both_programs_agree(name, monkeypatch):
    for seed in range(2):
        # So close to γ = 1 a thousand samples say nothing: both bounds are far above every loss.
        example_of = example(name, seed, past=200, planned=100_000 if name == "trapdoor" else 1000)
        problem, lag, fresh, units = example_of
        epsilon = look(problem.table, lag, fresh, units).epsilon
        assert verified(*example_of, epsilon).valid
        alone = verified(*example_of, 0.0).recomputed_epsilon or 0.0
        assert alone <= epsilon * (1 + 1e-6)  # it is more patient
        with monkeypatch.context() as patch:
            for constant in ("_COARSE", "_FINE", "_STILL"):
                patch.setattr(checker, constant, getattr(rule, constant))
            mine = verified(*example_of, 0.0).recomputed_epsilon
            assert mine == pytest.approx(epsilon, rel=0.03, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_floor_proves_is_confirmed_and_is_true_of_every_law(seed, monkeypatch):
    """Laws that events law and out allow make a value of the gains that no bound of the checker's may be below."""
    problem, lag, fresh, units = example("trapdoor", seed, past=300, planned=4000)
    lag = replace(lag, shares=lag.shares * [0, 1])  # with template
    epsilon = look(problem.table, lag, fresh, units).epsilon
    assert verified(problem, lag, fresh, units, epsilon).valid

    def over(self, gains, template, floor, usual=checker.Look._over):
        found.append((gains, template, floor, usual(self, gains, template, floor)))
        return found[-1][-1]

    found, harder = [], []
    monkeypatch.setattr(checker.Look, "_over", over)
    assert problem.loss(lag.policy) <= verified(problem, lag, fresh, units, 0.0).recomputed_epsilon
    chain = problem.table.chain
    mine = Look(chain, lag, chain.successors(problem.table, fresh), units)
    for gains, template, floor, bound in found:
        values = easy = chain.optimal(mine.seen, gains, np.zeros(chain.size))
        for _ in range(4):
            values = chain.optimal(csr_array(worst_laws(mine, values)), gains, np.zeros(chain.size))
        assert bound >= max(chain.worth(template + values), 0.0) - 1e-6, floor
        harder.append(chain.worth(template + values) > 1.01 * chain.worth(template + easy))
    assert any(harder)  # than the laws that were seen
    assert {floor for _, _, floor, _ in found} > {0.0}


@pytest.mark.parametrize(
    ("chance", "seed", "is_needed"), [(0.01, 2, lambda floor: floor < 0), (0.003, 5, lambda floor: floor == 0)]
)
def test_the_checker_needs_each_of_its_floors(chance, seed, is_needed, monkeypatch):
    """Without a floor that the rule has used the checker would refuse what the rule says, by far more than rounding."""
    problem, rng = trapdoor(chance), np.random.default_rng(seed)
    lag = make_lag(problem, rng, past=300, planned=4000)
    lag = replace(lag, shares=lag.shares * [0, 1])  # with template
    fresh = next(fresh for units, fresh in batches(problem, lag, rng) if units == 10)
    epsilon = look(problem.table, lag, fresh, 10).epsilon
    assert verified(problem, lag, fresh, 10, epsilon).valid

    def over(self, gains, template, floor, usual=checker.Look._over):
        return np.inf if floor > -checker._HUGE and is_needed(floor) else usual(self, gains, template, floor)

    monkeypatch.setattr(checker.Look, "_over", over)
    found = verified(problem, lag, fresh, 10, epsilon)
    assert not found.valid
    assert found.recomputed_epsilon > 1.01 * epsilon


def test_no_function_proves_too_much_where_ends_come_early(monkeypatch):
    """Without ends a function that is too large everywhere may be lowered by multiples of L; with them it may not."""
    soon = [[(0.5, 0, 0.4), (0.5, 1, 0.4)], [(0.5, 0, 0.6), (0.5, 1, 0.6)]]
    problem, rng = world([0, 0], soon, coins=True, discount=0.9, end=0.5), np.random.default_rng(0)
    lag = make_lag(problem, rng, policy=bad_policy(problem), past=200, planned=1000)
    fresh = problem.sample(10 * lag.unit, rng)
    usual = verified(problem, lag, fresh, 10, 0.0).recomputed_epsilon
    far_off = lambda self, gains, values, floor=0.0: self.process.spread(np.full(1, 9.0))  # noqa: E731
    monkeypatch.setattr(checker.Look, "_optimal", far_off)
    assert verified(problem, lag, fresh, 10, 0.0).recomputed_epsilon >= 0.999 * usual > 0


def test_the_constants_are_the_same():
    assert tables.LOOKS == LOOKS
    assert tables.EVENTS == SHARES
    assert checker.PLANNED == PLANNED
    assert checker.STAKES == rule._STAKES
    expected = np.array([0.0, 1e-9, 0.3, 40.0]), np.array([0.1, 2.0, 1.0, 0.5])
    np.testing.assert_allclose(checker.planned_bets(3.0, *expected), planned_bets(3.0, *expected), rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    ["near tie", pytest.param("river", marks=pytest.mark.study), "jackpot", "episodes", "trapdoor in episodes"],
)
def test_a_fixed_lag_is_seldom_wrong(name):
    """Given the lag, fresh samples make the checker's bound smaller than the loss with probability δ at most."""
    problem, rng, wrong, runs = HOSTILE[name](), np.random.default_rng(5), 0, 30
    policy = bad_policy(problem)
    lag = make_lag(problem, rng, policy=policy, past=200, planned=400)
    for _ in range(runs):
        fresh = problem.sample(10 * lag.unit, rng)
        found = verified(problem, lag, fresh, 10, 0.0).recomputed_epsilon
        wrong += found is not None and found < problem.loss(policy) - 1e-9
    assert binomtest(wrong, runs, 0.5, "greater").pvalue > 1e-3


def test_a_level_that_is_switched_off_is_noticed(monkeypatch):
    """The test above has the power to see that."""
    monkeypatch.setattr(checker, "log", lambda _: 1e-9)
    problem, wrong, runs = HOSTILE["near tie"](), 0, 40
    policy = bad_policy(problem)
    for seed in range(runs):
        rng = np.random.default_rng([6, seed])
        lag = make_lag(problem, rng, policy=policy, delta=0.002, past=2000, planned=20_000)
        fresh = problem.sample(10 * lag.unit, rng)
        found = verified(problem, lag, fresh, 10, 0.0).recomputed_epsilon
        wrong += found is not None and found < problem.loss(policy) - 1e-9
    assert binomtest(wrong, runs, 0.002, "greater").pvalue < 1e-3


# --- forgeries


@pytest.fixture(scope="module")
def honest() -> dict:
    problem, lag, fresh, units = example("river", past=200, planned=200, delta=0.05)
    document = document_of(problem, lag, fresh, units, look(problem.table, lag, fresh, units).epsilon)
    assert verify_text(json.dumps(document)).valid
    assert document["claim"]["epsilon"] > 0
    return document


def forged(document, path, change):
    """A copy in which an array, or a number, is changed."""
    copy = deepcopy(document)
    *way, last = path.split(".")
    node = copy["proof"]
    for name in way:
        node = node[name]
    if isinstance(node[last], dict):
        values = array(node[last])
        new = change(values)
        node[last]["shape"] = list(np.shape(new))
        stored(new, node[last])
    else:
        node[last] = change(node[last])
    return copy


def at(place, value):
    def change(values):
        values.reshape(-1)[place] = value
        return values

    return change


REFUSED = {
    "delta": ("lag.delta", lambda x: 1.5 * x, "δ of lag 1"),
    "another number": ("lag.number", lambda x: 2, "δ of lag 2"),
    "too many lags": ("lag.started", lambda x: -1, "started"),
    "shares": ("lag.shares", lambda x: 1.2 * x, "sum to more than 1"),
    "negative share": ("lag.shares", at(0, -0.1), "sum to more"),
    "looks": ("lag.looks", lambda x: x + 1, "looks"),
    "units": ("units", lambda x: 13, "no look"),
    "fewer units": ("units", lambda x: 8, "exactly as many samples"),
    "unit": ("lag.unit", lambda x: x + 1, "exactly as many samples"),
    "no unit": ("lag.unit", lambda x: 0 * x, "at least one sample"),
    "counts": ("samples.counts", lambda x: 2 * x, "exactly as many samples"),
    "moved counts": ("samples.cells", lambda x: x[::-1], "not increasing"),
    "bets": ("lag.bets", lambda x: -x, "bet"),
    "supports": ("lag.successor", lambda x: x[::-1], "in order"),
    "absent states": ("lag.successor", at(0, 5), "cannot follow"),
    "absent pairs": ("lag.pair", at(0, 7), "support"),
    "probabilities": ("lag.probability", lambda x: 2 * x, "sum to 1"),
    "negative probabilities": ("lag.probability", lambda x: -x, "no probability"),
    "reference": ("lag.reference", at(0, 9), "reference"),
    "values": ("lag.values", lambda x: x + 100, "impossible"),
    "hub": ("lag.hub", lambda x: 2 * x, "hub"),
    "squares expected": ("lag.squares", lambda x: -x - 1, "negative"),
    "rewards": ("samples.rewards", lambda x: 0 * x - 1, "negative"),
    "rewards above 1": ("samples.rewards", lambda x: 0 * x + 1e6, "exceeds"),
    "squares": ("samples.squares", lambda x: 0 * x, "smaller than the rewards allow"),
    "huge": ("lag.centres", lambda x: 0 * x + 1e200, "too large"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_theorem_forbids_is_refused(honest, name):
    path, change, reason = REFUSED[name]
    try:
        reasons = verdict_on(forged(honest, path, change)).reasons
    except InvalidInput as error:
        reasons = [str(error)]
    assert any(reason in text for text in reasons), reasons


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_bets_that_are_not_the_best_prove_less(honest, scale):
    found = verdict_on(forged(honest, "lag.bets", lambda x: scale * x))
    assert not found.valid
    assert found.recomputed_epsilon is None or found.recomputed_epsilon > honest["claim"]["epsilon"]


def test_a_better_claim_another_policy_and_more_confidence_are_refused(honest):
    for field, value in (("epsilon", 0.5), ("delta", 0.1)):
        copy = deepcopy(honest)
        copy["claim"][field] *= value
        assert not verdict_on(copy).valid
    copy = deepcopy(honest)
    stored(1 - array(copy["claim"]["policy"]), copy["claim"]["policy"])
    found = verdict_on(copy)
    assert not found.valid
    assert found.recomputed_epsilon is None or found.recomputed_epsilon > honest["claim"]["epsilon"]


def test_rewards_may_be_raised_for_nobody(honest):
    """Better outcomes of an action that is not played are a reason to doubt the policy."""
    policy = array(honest["claim"]["policy"])[0]
    pair = array(honest["proof"]["samples"]["cells"]) // 3
    rival = policy[pair // 2] != pair % 2
    counts = array(honest["proof"]["samples"]["counts"])
    copy = forged(honest, "samples.rewards", lambda x: np.where(rival, counts, x))
    sums = np.bincount(pair, array(copy["proof"]["samples"]["rewards"]))
    copy = forged(copy, "samples.squares", lambda x: np.where(policy[np.arange(6) // 2] != np.arange(6) % 2, sums, x))
    found = verdict_on(copy)
    assert not found.valid
    assert "certify" in found.reasons[0]


def test_the_table_is_known_by_its_size_or_by_its_features(honest):
    copy = deepcopy(honest)
    del copy["problem"]["tabular"]
    encoded = make_certificate.__globals__["_encoded"]
    copy["problem"]["features"] = encoded(np.eye(6).reshape(3, 2, 6), "<f8")
    assert verdict_on(copy).valid  # the fingerprint is the same
    copy["problem"]["tabular"] = honest["problem"]["tabular"]
    with pytest.raises(InvalidInput, match="either features or"):
        verdict_on(copy)
    copy = deepcopy(honest)
    copy["problem"]["tabular"]["states"] = 4
    assert not verdict_on(copy).valid
    shared = np.repeat(np.eye(3), 2, axis=0).reshape(3, 2, 3)
    case = Case(shared, np.ones((3, 2), bool), honest["problem"]["discount"], None)
    copy = deepcopy(honest)
    del copy["problem"]["tabular"]
    copy["problem"] |= {"features": encoded(shared, "<f8"), "fingerprint": case.fingerprint}
    assert verdict_on(copy).reasons == ["Theorem U is for problems whose pairs share no features"]


def test_what_a_file_asks_for_is_charged_first(honest):
    copy = deepcopy(honest)
    copy["problem"]["tabular"] = {"states": 2**26, "actions": 2**26}
    with pytest.raises(TooLarge):
        verdict_on(copy)
    large = garnet(40, 2, 0.5)
    lag = make_lag(large, np.random.default_rng(0), past=50)
    text = json.dumps(document_of(large, lag, large.sample(10 * lag.unit, np.random.default_rng(1)), 10, 1.0))
    with pytest.raises(TooLarge, match="states and 80 pairs"):
        verify_text(text, limit_gb=5e-3)


def test_two_thousand_pairs():
    problem, rng = garnet(400, 5, 0.9), np.random.default_rng(0)
    lag = make_lag(problem, rng, delta=0.05, past=300, planned=1500)
    fresh = problem.sample(10 * lag.unit, rng)
    document = document_of(problem, lag, fresh, 10, look(problem.table, lag, fresh, 10).epsilon)
    text = json.dumps(document)
    assert len(text) < 2**20
    assert verify_text(text).valid


# --- the study's file


def test_the_file_shows_the_order(tmp_path):
    result = identified(RIVER, 1.0, store=tmp_path / "run.db", calls_per_query=500)
    result.save(tmp_path / "certificate.json")
    found = bp.verify(tmp_path / "certificate.json", store=tmp_path / "run.db")
    assert found.order_shown
    assert not any("before" in item or "lag" in item for item in found.trusted)
    bp.Study.resume(tmp_path / "run.db").result().save(tmp_path / "again.json")
    first, again = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("certificate", "again"))
    assert first["proof"] == again["proof"]
    assert first["claim"] == again["claim"]


def test_what_was_fixed_later_is_noticed(tmp_path):
    store, path = tmp_path / "run.db", tmp_path / "certificate.json"
    identified(RIVER, 1.0, store=store).save(path)
    document = json.loads(path.read_text())
    for field in tables.FIELDS:
        change = (
            (lambda x: x * (1 - 1e-12)) if field not in ("looks", "pair", "successor", "reference", "unit") else None
        )
        if change is None:
            continue
        copy = forged(document, f"lag.{field}", change)
        path.write_text(json.dumps(copy | {"sha256": digest(copy)}))
        found = bp.verify(path, store=store)
        assert "not what was decided" in found.reasons[0], field

    copy = forged(document, "lag.started", lambda x: x - 1)
    path.write_text(json.dumps(copy | {"sha256": digest(copy)}))
    assert "began after" in bp.verify(path, store=store).reasons[0]

    def later(rows):
        """Move what was decided for the lag behind the first batch of its samples."""
        place = next(i for i, (k, c) in enumerate(rows) if k == "asked" and "lag" in unpack(c)["decided"])
        answer = next(i for i, (k, _) in enumerate(rows) if k == "answer" and i > place)
        one = unpack(rows[place][1])
        moved = one | {"decided": {}}
        return [
            *rows[:place],
            ("asked", pack(moved)),
            *rows[place + 1 : answer + 1],
            ("asked", pack(one)),
            *rows[answer + 1 :],
        ]

    rewrite(store, "study", later)
    (record,) = bp.studies(store)
    copy = deepcopy(document)
    copy["run"]["chain"] = record.chain
    path.write_text(json.dumps(copy | {"sha256": digest(copy)}))
    assert "began after" in bp.verify(path, store=store).reasons[0]


def test_only_what_was_to_be_claimed_is(tmp_path):
    """A lag is about one number, the loss at the start that was fixed: not about other states, nor all of them."""
    store, path = tmp_path / "run.db", tmp_path / "certificate.json"
    identified(RIVER, 3.0, store=store, start=1).save(path)
    document = json.loads(path.read_text())
    document["claim"]["epsilon"] = 3.0  # all that was asked
    for start in (None, 1, 3):
        copy = deepcopy(document)
        if start is None:
            del copy["claim"]["start"]
        else:
            stored(np.eye(4)[start], copy["claim"]["start"])
        path.write_text(json.dumps(copy | {"sha256": digest(copy)}))
        found = bp.verify(path, store=store)
        assert found.valid is (start == 1)
        assert start == 1 or any("start" in text for text in found.reasons), found.reasons


def test_other_samples_are_noticed(tmp_path):
    store, path = tmp_path / "run.db", tmp_path / "certificate.json"
    identified(RIVER, 1.0, store=store).save(path)
    document = json.loads(path.read_text())
    for field, reason in (("rewards", "rewards"), ("squares", "rewards")):
        copy = forged(document, f"samples.{field}", lambda x: x * (1 - 1e-7))
        path.write_text(json.dumps(copy | {"sha256": digest(copy)}))
        found = bp.verify(path, store=store)
        assert not found.valid
        assert not found.order_shown
        assert any(reason in text for text in found.reasons)


def test_a_plan_may_meet_bets_that_say_nothing(tmp_path):
    """Of one of its rehearsals with more samples nothing follows; the run goes on."""
    rng = np.random.default_rng(2)
    transitions = np.zeros((5, 3, 5))
    for state in range(5):
        for action in range(3):
            following = rng.choice(5, 3, replace=False)
            transitions[state, action, following] = rng.dirichlet(np.ones(3))
    model = bp.instances.tabular(transitions, rng.random((5, 3)), discount=0.97)
    result = identified(model, 0.08 / 0.03, seed=2)
    assert result.certified
    result.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json", model).valid
