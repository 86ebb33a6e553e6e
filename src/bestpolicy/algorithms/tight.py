"""tight: sample a G-optimal design, certify at any time by Theorem T (T-E if episodic) and, since lags, by T, P and F.

The run is that of `anytime`; it samples in the proportions of the design from the first to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bestpolicy._numerics.arrays import IntArray
from bestpolicy.algorithms.anytime import Anytime, run_anytime
from bestpolicy.algorithms.protocol import About, Run, Task
from bestpolicy.algorithms.sampling import AllocationSampling
from bestpolicy.design import Design
from bestpolicy.problem import Problem
from bestpolicy.stopping.lags import Schedule
from bestpolicy.stopping.verdict import Verdict


@dataclass(frozen=True)
class Tight(Anytime):
    """Theorem T on a G-optimal design, for discounted and episodic problems; the parameters are those of `Anytime`."""

    name: ClassVar[str] = "tight"
    about: ClassVar[About] = About(
        setting="discounted or episodic",
        features="linear",
        assumption="",
        guarantee="an ε for the policy at every check, and within the asked ε of optimal in every state at the end",
        complexity="max over (s,a) of ‖y(s,a)‖² (d + log 1/δ) / (Δ(s,a) + (1-γ)ε)², y the direction that decides it",
        constants="own proof",
        reference="bestpolicy, Theorem T (docs/explanation/tight.md)",
        writes_certificates=True,
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = True

    def run(self, task: Task) -> Run:
        """Sample the design until the asked ε is certified."""
        return run_anytime(task, self, StraightOn())


class StraightOn:
    """Sample the design, whatever comes out."""

    def candidates(self, problem: Problem, design: Design) -> IntArray:
        """Those of the design."""
        return design.indices

    def steer(self, sampling: AllocationSampling, schedule: Schedule, verdict: Verdict) -> AllocationSampling:
        """Go on as before."""
        return sampling
