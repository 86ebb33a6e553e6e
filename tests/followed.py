"""Run an algorithm that follows policies without a study around it, and keep all that was said."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import bestpolicy as bp
from bestpolicy.algorithms import Algorithm, Request, Task
from bestpolicy.samples import Tally
from bestpolicy.stopping import Check


@dataclass
class Course:
    """A run: its requests with their answers, and its last check."""

    requests: list[Request] = field(default_factory=list)
    answers: list[Tally] = field(default_factory=list)
    last: Check | None = None

    @property
    def checks(self) -> list[Check]:
        """All looks that certify something, or nothing yet."""
        return [*(request.check for request in self.requests if request.check is not None), self.last]

    @property
    def samples(self) -> int:
        return sum(answer.samples for answer in self.answers)


def follow(
    algorithm: Algorithm,
    mdp: bp.LinearMDP,
    epsilon: float,
    delta: float = 0.1,
    seed: int = 0,
    start: int | None = 0,
    simulator: object = None,
) -> Course:
    """Run to the end."""
    rng, course = np.random.default_rng(seed), Course()
    law = None if start is None else np.eye(mdp.problem.states)[start]
    simulator = simulator or bp.ExactSimulator(mdp)
    run = algorithm.run(Task(mdp.problem, epsilon, delta, rng, start=law))
    try:
        course.requests.append(next(run))
        while True:
            course.answers.append(simulator.rollout(course.requests[-1].wanted, rng))
            course.requests.append(run.send(course.answers[-1]))
    except StopIteration as end:
        course.last = end.value
    return course


def losses(mdp: bp.LinearMDP, check: Check) -> np.ndarray:
    """V* - V^π at the first step, (S,)."""
    policy = check.policy if mdp.problem.horizon is not None else check.policy[0]
    return mdp.plan.values[0] - mdp.evaluate(policy).values[0]


def broken(course: Course, mdp: bp.LinearMDP, start: int | None = 0) -> bool:
    """Whether some look, not only the last, certified less than the policy loses where the claim is."""
    for check in course.checks:
        lost = losses(mdp, check)
        if check.epsilon < (lost.max() if start is None else lost[start]) - 1e-9:
            return True
    return False
