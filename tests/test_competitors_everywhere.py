"""The competitors ask for the same samples on every processor, whatever the last bits of their linear algebra."""

import json

from tests.everywhere import on_machines
from tests.kernels import outputs

RUN = """
import json
from dataclasses import dataclass
from hashlib import sha256
import bestpolicy as bp

CASES = [
    ("hard-discounted", "ppq", 0.5),
    ("inventory", "ppq", 0.5),
    ("ball", "ppq", 0.5),
    ("ball-episodic", "lavi", 0.5),
    ("two-state", "lspi-g", 1.0),
    ("inventory", "linear-plug-in", 0.5),
    ("low-rank", "oppq", 0.5),
    ("two-state", "vqvi", 0.5),
    ("two-state", "phased-q", 0.5),
    ("two-state", "plug-in", 0.5),
    ("two-state", "klb-ts", 0.0),
    ("simplex-gap", "klb-ts", 0.0),
]

@dataclass
class Recorder:
    mdp: object

    def __post_init__(self):
        self.problem, self.exact, self.asked = self.mdp.problem, bp.ExactSimulator(self.mdp), sha256()

    def sample(self, pulls, rng):
        self.asked.update(pulls.pairs.tobytes() + pulls.counts.tobytes())
        return self.exact.sample(pulls, rng)

found = {}
for name, algorithm, epsilon in CASES:
    recorder = Recorder(bp.instances.load(name))
    result = bp.identify(recorder, epsilon=epsilon, delta=0.1, algorithm=algorithm, seed=3)
    assert result.certified
    found[f"{algorithm} on {name}"] = [result.samples, recorder.asked.hexdigest(), result.policy.ravel().tolist()]
print(json.dumps(found))
"""


@on_machines
def test_the_competitors_ask_for_the_same_on_every_processor(machines):
    first, *others = (json.loads(text) for text in outputs(RUN, machines=machines()).values())
    for other in others:
        assert other == first
