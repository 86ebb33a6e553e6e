"""LSVI-UCB with a constant of one's own choice in its bonus: nothing is certified.

    as `lsvi_ucb`, with β = c·d·H·√log(2dkH/δ)

The reference proves its regret for some c that it leaves open; what our own proof needs is about c = 3. Smaller ones
are what people run. The run ends where the bounds would meet if they were true, with a policy and without a
certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import ClassVar

from bestpolicy._numerics.inputs import require_positive
from bestpolicy.algorithms.peers.lsvi_ucb import LSVIUCB
from bestpolicy.algorithms.peers.online import Bounds
from bestpolicy.algorithms.protocol import Run, Task
from bestpolicy.problem import Problem
from bestpolicy.stopping import Check


@dataclass(frozen=True)
class LSVIUCBNoGuarantee(LSVIUCB):
    """Optimistic least-squares value iteration with β = c·d·H·√log(2dkH/δ), from episodes.

    Attributes
    ----------
    constant : float
        c, which the reference leaves open.
    """

    name: ClassVar[str] = "lsvi-ucb-no-guarantee"
    about = replace(LSVIUCB.about, guarantee="none", constants="reconstructed: open in the reference, 1 here")
    rule: ClassVar[str] = "none"

    constant: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(constant=self.constant)

    def radius(self, problem: Problem, episodes: int, delta: float, looks: int) -> float:
        """β of the reference."""
        d, steps = problem.dimension, problem.stages
        return self.constant * d * steps * sqrt(log(2 * d * max(1, episodes) * steps / delta))

    def run(self, task: Task) -> Run:
        """Play until the bounds would meet; certify nothing."""
        return replace((yield from super().run(task)), passed=False)

    def check(self, known: Bounds, task: Task, samples: int) -> Check:
        """Say how far it is, and that nothing is certified."""
        return replace(super().check(known, task, samples), epsilon=inf)
