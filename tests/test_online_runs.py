"""Runs that follow policies: the same answer in pieces, on workers, and after they were stopped and resumed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy import instances
from bestpolicy.algorithms import BPIUCBVI, BPIUCRL, LSVIUCB, PEDEL, RFLIN, UCFH, UCLK, UCRLVTR, Algorithm, MDPNaS
from bestpolicy.algorithms.peers.online import only_whole
from bestpolicy.errors import InvalidInput
from bestpolicy.samples import Episodes, Followed
from tests.everywhere import on_machines
from tests.kernels import outputs

TINY = instances.simplex(states=3, actions=3, dimension=3, seed=0, horizon=2)
UNIVERSAL = instances.load("universal-episodic")
MIXTURE = instances.universal_mixture()
CASES: list[tuple[Algorithm, bp.LinearMDP, float, int | None]] = [
    (BPIUCRL(check_ratio=1.5), TINY, 1.0, 0),
    (UCFH(check_ratio=1.5), TINY, 1.0, 0),
    (BPIUCBVI(check_ratio=2.0), TINY, 1.0, 0),
    (LSVIUCB(check_ratio=2.0), TINY, 1.0, 0),
    (RFLIN(check_ratio=2.0), TINY, 1.0, 0),
    (PEDEL(check_ratio=2.0), TINY, 1.5, 0),
    (
        UCRLVTR(check_ratio=1.5, kernels=instances.universal_mixture(actions=2, seed=29, horizon=3).kernels.tolist()),
        UNIVERSAL,
        1.5,
        0,
    ),
    (
        UCLK(check_ratio=1.7, kernels=instances.universal_mixture().kernels.tolist()),
        instances.load("universal"),
        4.0,
        None,
    ),
    (MDPNaS(check_ratio=2.0), instances.load("two-state"), 0.0, None),
]
NAMED = pytest.mark.parametrize(("algorithm", "mdp", "epsilon", "start"), CASES, ids=[case[0].name for case in CASES])


def said(result: bp.Result) -> tuple[object, ...]:
    return result.samples, result.epsilon, result.policy.tolist(), [check.samples for check in result.checks]


@NAMED
def test_the_same_on_workers_and_after_a_stop(tmp_path, algorithm, mdp, epsilon, start):
    asked = {"epsilon": epsilon, "delta": 0.1, "algorithm": algorithm, "seed": 5, "start": start}
    model = bp.ExactSimulator(mdp)
    whole = bp.identify(model, **asked)
    assert whole.certified

    store = tmp_path / "run.db"
    study = bp.Study(mdp.problem, **asked, store=store)
    for _ in range(6):
        for query in study.ask():
            study.tell(query, model.rollout(query.wanted, query.rng()))
    study.close()
    resumed = bp.Study.resume(store)
    assert said(bp.drive(resumed, model)) == said(whole)

    if algorithm.about.sampling == "episodes":  # a walk is one piece
        pieces = max(20, whole.samples // 50)
        alone = bp.identify(model, **asked, calls_per_query=pieces)
        with ThreadPoolExecutor(2) as executor:
            assert said(bp.identify(model, **asked, calls_per_query=pieces, executor=executor)) == said(alone)


def test_a_budget_ends_a_run_where_it_is():
    asked = {"epsilon": 0.1, "delta": 0.1, "seed": 5, "start": 0, "max_samples": 1001}
    result = bp.identify(bp.ExactSimulator(TINY), algorithm=BPIUCRL(), **asked)
    assert not result.certified
    assert result.samples == result.checks[-1].samples == 1000  # whole episodes of two steps
    assert 0.1 < result.epsilon <= 2


def test_comparisons_keep_those_who_follow_policies_apart():
    found = bp.compare(TINY, ["tight", BPIUCRL(check_ratio=1.5)], epsilon=1.0, delta=0.1, runs=2, lower_bounds=False)
    pairs, followed = found.summary
    assert (pairs.scope, followed.scope) == ("every state", "state 0")
    assert pairs.ratio_to_best == followed.ratio_to_best == 1.0
    trial = found.rows[-1]
    assert trial.sampling == "episodes"
    assert trial.loss <= trial.loss_anywhere
    again = bp.comparison.Comparison.from_dict(found.to_dict())
    assert again.rows == found.rows
    older = found.to_dict() | {"version": 2}
    older["rows"] = [
        {key: row[key] for key in row if key not in ("scope", "sampling", "loss_anywhere")} for row in older["rows"]
    ]
    assert bp.comparison.Comparison.from_dict(older).rows[0].scope == "every state"
    asked = {"epsilon": 1.5, "delta": 0.1, "runs": 1, "lower_bounds": False}
    law = bp.compare(TINY, UCFH(check_ratio=2.0), start=[0.5, 0.5, 0], **asked)
    assert law.summary[0].scope == "the start"
    with pytest.raises(InvalidInput, match="start must be a state"):
        bp.compare(TINY, "ucfh", start=[0.5, 0.1, 0], **asked)


def test_episodes_that_break_off_are_refused():
    """Of them nobody knows what they would have shown; only `forward` has a rule for it."""
    tally = bp.ExactSimulator(TINY).rollout(Episodes(np.zeros((2, 3), int), 1, 0), np.random.default_rng(0))
    assert only_whole(UCFH(), tally) is tally
    broken = tally.with_followed(Followed(0.0, 0.0, np.array([[0, 0]])))
    with pytest.raises(InvalidInput, match="1 episodes broke off, and 'ucfh' has no rule"):
        only_whole(UCFH(), broken)


RUN = """
import json
from hashlib import sha256
import numpy as np
import bestpolicy as bp
from bestpolicy.algorithms import BPIUCBVI, BPIUCRL, LSVIUCB, PEDEL, RFLIN, UCFH, UCLK, UCRLVTR, MDPNaS
from bestpolicy.instances import load, simplex, universal_mixture as mixture

tiny = simplex(states=3, actions=3, dimension=3, seed=0, horizon=2)
ball = bp.instances.ball(states=5, actions=3, dimension=4, seed=1, horizon=2)
kernels = mixture().kernels.tolist(), mixture(actions=2, seed=29, horizon=3).kernels.tolist()
CASES = [
    (BPIUCRL(check_ratio=2.0), ball, 1.0, 0), (UCFH(check_ratio=2.0), ball, 1.0, 0),
    (BPIUCBVI(check_ratio=2.0), ball, 1.0, 0), (LSVIUCB(check_ratio=3.0), ball, 1.0, 0),
    (RFLIN(check_ratio=3.0), ball, 1.0, 0), (PEDEL(check_ratio=3.0), tiny, 1.5, 0),
    (UCRLVTR(check_ratio=1.5, kernels=kernels[1]), load("universal-episodic"), 1.0, 0),
    (UCLK(check_ratio=1.7, kernels=kernels[0]), load("universal"), 3.5, 2),
    (MDPNaS(check_ratio=2.0), load("two-state"), 0.0, None),
]
found = {}
for algorithm, mdp, epsilon, start in CASES:
    asked, exact = sha256(), bp.ExactSimulator(mdp)
    limit = 1000 if algorithm.name == "mdp-nas" else None
    said = {"epsilon": epsilon, "delta": 0.1, "algorithm": algorithm, "seed": 3, "start": start, "max_samples": limit}
    study = bp.Study(mdp.problem, **said)
    while not study.done:
        for query in study.ask():
            asked.update(query.wanted.policy.tobytes() + repr((query.wanted.count, query.wanted.length)).encode())
            study.tell(query, exact.rollout(query.wanted, query.rng()))
    result = study.result()
    found[algorithm.name] = [asked.hexdigest(), result.samples, result.epsilon, result.policy.ravel().tolist()]
print(json.dumps(found))
"""


@on_machines
def test_the_same_is_asked_for_on_every_processor(machines):
    first, *others = (json.loads(text) for text in outputs(RUN, machines=machines()).values())
    assert len(first) == 9
    for other in others:
        assert other == first
