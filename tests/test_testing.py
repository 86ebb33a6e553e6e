"""The conformance test for algorithms: ours pass it, and it catches what breaks a run or a promise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, nan
from typing import ClassVar

import numpy as np
import pytest

import bestpolicy as bp
from bestpolicy.algorithms import ALGORITHMS, About, Request
from bestpolicy.testing import check_algorithm

RUNS = 10


SLOW = ("mdp-nas", "pedel", "rflin", "sharp")  # whose claims are counted by other tests, too
ELSEWHERE = ("ucrl-vtr", "uclk", "hull")  # they need kernels, or states that nobody lists


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.study] * (name in SLOW)) for name in ALGORITHMS if name not in ELSEWHERE],
)
def test_ours_pass(name):
    """On a coarse grid of looks, if there is one to choose: what is wrong shows there as well."""
    kind = ALGORITHMS[name]
    check_algorithm(kind(check_ratio=2.0) if hasattr(kind, "check_ratio") else kind(), runs=RUNS)


@dataclass(frozen=True)
class Sound:
    """Ten samples of every pair, twice; every policy is within the largest value of optimal, and that is claimed."""

    name: ClassVar[str] = "sound"
    about: ClassVar[About] = About("discounted", "tabular", "", "within the largest value", "20 S A", "exact", "here")
    anytime: ClassVar[bool] = False
    takes_own_data: ClassVar[bool] = False

    def unsuitable(self, problem):
        return "" if problem.horizon is None else "it is for discounted problems."

    def predicted_samples(self, problem, gap, epsilon, delta):
        return 20 * len(problem.pairs)

    def run(self, task):
        problem, tally, check = task.problem, bp.Tally.empty(task.problem, task.problem.pairs), None
        for _ in range(2):
            tally += yield Request(bp.Pulls(problem.pairs, np.full((1, len(problem.pairs)), 10)), check)
            check = self.look(task, tally)
        return check

    def look(self, task, tally):
        means = np.full(task.problem.mask.shape, -inf)
        means[task.problem.mask] = tally.reward_sums[0] / np.maximum(tally.pulls[0], 1)
        epsilon = float(task.problem.value_limits[0])
        policy = means.argmax(axis=1)[None]
        return bp.Check(tally.rounds, tally.samples, policy, 0.5, 1.0, False, epsilon, nan, "trivial")


class TooSure(Sound):
    """Claims of the policy that looks worst that it is optimal."""

    def look(self, task, tally):
        check = super().look(task, tally)
        return replace(check, policy=1 - check.policy, epsilon=0.0, passed=True)


class Unrepeatable(Sound):
    """Draws pulls from a random generator of its own."""

    own: ClassVar[np.random.Generator] = np.random.default_rng(0)

    def run(self, task):
        pairs = task.problem.pairs
        tally = yield Request(bp.Pulls(pairs, 1 + self.own.integers(0, 1000, (1, len(pairs)))))
        return self.look(task, tally)


class AsksNothing(Sound):
    """Yields an empty request."""

    def run(self, task):
        pairs = task.problem.pairs
        tally = yield Request(bp.Pulls(pairs, np.zeros((1, len(pairs)), dtype=np.int64)))
        return self.look(task, tally)


class Meddles(Sound):
    """Writes into the tally that it was sent."""

    def run(self, task):
        pairs = task.problem.pairs
        tally = yield Request(bp.Pulls(pairs, np.ones((1, len(pairs)), dtype=np.int64)))
        tally.next_counts[:] += 1
        return self.look(task, tally)


class Unlocks(Sound):
    """Replaces what is in the tally that it was sent."""

    def run(self, task):
        pairs = task.problem.pairs
        for _ in range(2):
            tally = yield Request(bp.Pulls(pairs, np.ones((1, len(pairs)), dtype=np.int64)))
            object.__setattr__(tally, "next_counts", tally.next_counts + 1)
        return self.look(task, tally)


class Forgets(Sound):
    """Recalls that it has been there before, and then does something else."""

    def run(self, task):
        problem, tally = task.problem, bp.Tally.empty(task.problem, task.problem.pairs)
        again = False
        for _ in range(4):
            again = again or task.recall() is not None
            tally += yield Request(bp.Pulls(problem.pairs, np.full((1, len(problem.pairs)), 10)))
        return replace(self.look(task, tally), statistic=0.25 if again else 0.5)


class WrongShape(Sound):
    """Leaves out the stage axis of the policy."""

    def look(self, task, tally):
        check = super().look(task, tally)
        return replace(check, policy=check.policy[0])


class Endless(Sound):
    """Asks for one sample after the other."""

    def run(self, task):
        while True:
            yield Request(bp.Pulls(task.problem.pairs[:1], np.ones((1, 1), dtype=np.int64)))


class NoGenerator(Sound):
    """Returns where it should yield."""

    def run(self, task):
        return [task]


class PassesWithoutProof(Sound):
    """Says that it has done what was asked, with an ε that is larger."""

    def look(self, task, tally):
        return replace(super().look(task, tally), passed=True)


class Nameless(Sound):
    """Has no words on itself."""

    about = None


def test_a_sound_one_passes():
    check_algorithm(Sound(), runs=RUNS)
    check_algorithm(Sound(), bp.instances.load("riverswim"), epsilon=0.5, runs=RUNS, seed=3)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (TooSure, r"in \d+ of 30 runs at δ = 0.5 some check claims"),
        (Unrepeatable, "two runs with equal random numbers and equal samples differ"),
        (AsksNothing, "asks for nothing"),
        (Meddles, "A tally must not be changed"),
        (Unlocks, "it changed a tally that it was sent"),
        (WrongShape, r"policy must be an integer array of shape \(stages, states\) = \(1, 2\)"),
        (Endless, "it has not ended after"),
        (NoGenerator, "must be a generator"),
        (PassesWithoutProof, "only once what was asked is certified"),
        (Nameless, "needs an attribute 'about' of type About"),
    ],
)
def test_broken_ones_are_caught(broken, said, monkeypatch):
    monkeypatch.setattr("bestpolicy.testing.algorithms._MOST_REQUESTS", 1000)
    with pytest.raises(bp.InvalidInput, match=said):
        check_algorithm(broken(), runs=30)


def test_an_algorithm_that_does_otherwise_when_resumed_is_caught():
    with pytest.raises(bp.InvalidInput, match="interrupted and resumed ends differently"):
        check_algorithm(Forgets(), runs=RUNS)


def test_parameters_must_survive_a_file():
    @dataclass(frozen=True)
    class Odd(Sound):
        """Has a parameter that no file keeps."""

        weights: object = frozenset({1})

    with pytest.raises(bp.InvalidInput, match="a file keeps numbers, texts and lists"):
        check_algorithm(Odd(), runs=RUNS)


def test_a_class_is_not_an_algorithm():
    with pytest.raises(bp.InvalidInput, match=r"pass Sound\(\)"):
        check_algorithm(Sound, runs=RUNS)


def test_it_says_when_no_model_suits():
    class Picky(Sound):
        def unsuitable(self, problem):
            return "it wants a moon." if problem.states < 5 else ""

    with pytest.raises(bp.InvalidInput, match=r"it wants a moon. .* Give one that suits it"):
        check_algorithm(Picky(), runs=RUNS)


def test_fewer_runs_could_not_fail():
    with pytest.raises(bp.InvalidInput, match="runs must be a whole number of at least 10"):
        check_algorithm(Sound(), runs=9)
