"""ε as a share of the largest |V*|, which the run finds out: whatever it says of V* holds when its ε does."""

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.stopping.tables.look import Observed, Verdict
from bestpolicy.stopping.tables.model import Table

RIVER = bp.instances.load("riverswim")
ASKED = {"epsilon": "20% of V*", "delta": 0.1}


class Costs(bp.ExactSimulator):
    """The same river, but every step costs between 5 and 0: the best value is the one nearest to 0."""

    units = bp.Units(reward_scale=5.0, reward_offset=-5.0)


@pytest.mark.parametrize(("kind", "scale", "offset"), [(bp.ExactSimulator, 1.0, 0.0), (Costs, 5.0, -5.0)])
def test_what_is_said_of_the_largest_value_is_true(kind, scale, offset, tmp_path):
    seen = []
    values = scale * RIVER.solve().values + offset * RIVER.problem.value_limits[0]
    largest = np.abs(values).max()
    store = tmp_path / "run.db"
    result = bp.identify(
        kind(RIVER), **ASKED, seed=2, store=store, progress=lambda study: seen.append(study.checks[-1])
    )
    assert result.certified
    floors = [check.value_floor for check in seen]
    assert floors == sorted(floors)
    assert 0.5 * largest < floors[-1] <= largest
    assert result.epsilon <= 0.2 * floors[-1]
    assert "at most 20 % of the largest |V*|, which is at least" in result.explanation
    assert scale * RIVER.loss(result.policy) <= result.epsilon
    result.save(tmp_path / "certificate.json")
    assert bp.verify(tmp_path / "certificate.json").valid
    assert bp.Study.resume(store).result().explanation == result.explanation
    if kind is bp.ExactSimulator:
        return
    # A run that is interrupted goes on as if it had not been, in units of its own, too.
    other, simulator = tmp_path / "other.db", kind(RIVER)
    study = bp.Study(RIVER.problem, **ASKED, seed=2, units=bp.Units.of(simulator), store=other)
    while not study.done:
        if study.checks:
            study.close()
            study = bp.Study.resume(other)
        for query in study.ask():
            study.tell(query, simulator.sample(query.pulls, query.rng()))
    assert (study.result().epsilon, study.samples) == (result.epsilon, result.samples)


def test_the_floor_of_a_look():
    """V^π in [low, high] and V* ≤ V^π + ε: the largest |V* + offset| is no less than this, and may be just that."""
    nothing = np.zeros(0)
    chain = Table(2, np.array([0, 1]), 0.5, None).chain
    verdict = Verdict(
        np.array([0, 1]), 0.1, nothing, nothing, Observed(*[nothing] * 5), np.array([0.5, 0.8]), np.array([0.6, 1.0])
    )
    assert verdict.value_floor(chain, 0.0) == pytest.approx(0.8)  # at state 1, if V* = V^π = low
    assert verdict.value_floor(chain, -2.0) == pytest.approx(1.3)  # at state 0: V* + offset ≤ 0.6 + 0.1 - 2
    assert verdict.value_floor(chain, -0.75) == pytest.approx(0.05)
    assert verdict.value_floor(chain, -0.85) == pytest.approx(0.15)
    start = Table(2, np.array([0, 1]), 0.5, None, np.array([0.5, 0.5])).chain
    assert verdict.value_floor(start, 0.0) == pytest.approx(0.65)


def test_shares_that_cannot_be_had_are_refused():
    simplex = bp.ExactSimulator(bp.instances.load("simplex"))
    for model, more, words in (
        (simplex, {}, "is for tables"),
        (bp.ExactSimulator(RIVER), {"algorithm": "tight"}, "with algorithm 'sharp'"),
        (bp.ExactSimulator(RIVER), {"epsilon": "0% of V*"}, "between 0% and 100%"),
        (bp.ExactSimulator(RIVER), {"epsilon": "5% of W"}, "'5% of V\\*'"),
    ):
        with pytest.raises(bp.InvalidInput, match=words):
            bp.identify(model, **ASKED | more)
