"""The same seed gives the same samples, policies and ε on every processor, and a study may move between them."""

import json
from itertools import cycle, islice

import pytest

from tests.everywhere import MACHINES, NAMES, on_machines
from tests.kernels import outputs, runnable_kernels

CASES = """
CASES = [
    ("two-state", "gss", 0.3),
    ("simplex-episodic", "gss-e", 0.6),
    ("two-state", "tight", 0.0),
    ("inventory", "tight", 0.6),
    ("simplex-episodic", "tight", 0.1),
    ("riverswim", "adaptive", 0.3),
    ("low-rank", "adaptive", 0.4),
    ("simplex-episodic", "adaptive", 0.1),
    ("universal-episodic", "forward", 1.2),
    ("universal-episodic", "ucfh", 1.2),
]
FEW_LOOKS = {name: bp.algorithms.make_algorithm(name, {"check_ratio": 1.5}) for name in ("forward", "ucfh")}

def asked(name, epsilon):  # who follows policies does so from state 0
    start = 0 if name in FEW_LOOKS else None
    how = {"epsilon": epsilon, "delta": 0.1, "algorithm": FEW_LOOKS.get(name, name), "seed": 3, "start": start}
    return how | {"linearity": 0.05 if name == "tight" else 0}
"""
RUN = (
    """
import json
import bestpolicy as bp
"""
    + CASES
    + """
found = {}
for name, algorithm, epsilon in CASES:
    model = bp.ExactSimulator(bp.instances.load(name))
    result = bp.identify(model, **asked(algorithm, epsilon))
    found[f"{algorithm} on {name}"] = [result.samples, [c.samples for c in result.checks], result.rule,
                                       result.policy.ravel().tolist(), result.epsilon]
print(json.dumps(found))
"""
)
MOVE = (
    """
import json, sys
import bestpolicy as bp
"""
    + CASES
    + """
store, stop = sys.argv[1], float(sys.argv[2])
found = {}
for name, algorithm, epsilon in CASES:
    study_name, model = f"{algorithm} on {name}", bp.ExactSimulator(bp.instances.load(name))
    try:
        study = bp.Study.resume(store, study_name)
    except bp.InvalidInput:
        study = bp.Study(model.problem, **asked(algorithm, epsilon), store=store, name=study_name)
    looks = len(study.checks) + stop
    while not study.done and len(study.checks) < looks:
        for query in study.ask():
            answer = model.rollout if algorithm in FEW_LOOKS else model.sample
            study.tell(query, answer(query.wanted, query.rng()))
    result = study.result()
    study.close()
    found[study_name] = [result.samples, [c.samples for c in result.checks], result.rule,
                         result.policy.ravel().tolist(), result.epsilon]
print(json.dumps(found))
"""
)


def agree(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, (*decided, epsilon) in found.items():
        *others, other_epsilon = expected[name]
        assert decided == others, name
        assert epsilon == pytest.approx(other_epsilon, rel=1e-9, abs=1e-9), name


@pytest.fixture(scope="module", params=MACHINES, ids=NAMES)
def machines(request) -> dict[str, dict[str, str]]:
    return request.param()


@pytest.fixture(scope="module")
def everywhere(machines) -> dict[str, dict]:
    return {machine: json.loads(text) for machine, text in outputs(RUN, machines=machines).items()}


def test_the_same_seed_gives_the_same_answer_on_every_processor(everywhere):
    assert len(runnable_kernels()) >= 3
    first, *others = everywhere.values()
    for other in others:
        agree(other, first)


def test_a_study_may_move_from_processor_to_processor(tmp_path, machines, everywhere):
    store = str(tmp_path / "run.db")
    moves = [*islice(cycle(machines.items()), 3), list(machines.items())[-1]]
    for looks, (name, environment) in zip((12, 20, 15, "inf"), moves, strict=True):
        (text,) = outputs(MOVE, store, str(looks), machines={name: environment}).values()
    agree(json.loads(text), next(iter(everywhere.values())))


PLUG_IN = """
import json
import bestpolicy as bp
cases = [("two-state", 0.0), ("riverswim", 0.1), ("simplex-episodic", 0.03), ("low-rank", 0.1)]
found = [bp.bounds.plug_in_samples(bp.instances.load(name), epsilon, runs=20, max_seconds=float("inf")).samples
         for name, epsilon in cases]
print(json.dumps(found))
"""


@on_machines
def test_the_plug_in_needs_the_same_on_every_processor(machines):
    first, *others = (json.loads(text) for text in outputs(PLUG_IN, machines=machines()).values())
    assert None not in first
    for other in others:
        assert other == first
