"""GSS and GSS-E: sample a G-optimal design, stop when the gap is resolved [TJP Alg 1, 2].

    compute ω* = argmin_ω max_{s,a} ‖φ(s,a)‖²_{Λ(ω)⁻¹}
    repeat
        sample pairs in the proportions of ω*
        update the least-squares estimates θ̂, μ̂
    until Z(t) > β(δ, t)
    return the optimal policy of the estimated model

E[τ] = Õ( d (1-γ)⁻⁴ (Δ+ε)⁻² (log 1/δ + d) ) [TJP Thm 3]. The rule that is run is `PaperRule`: the paper's threshold,
with the repairs that make its guarantee true of the code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from bestpolicy._numerics.arrays import frozen
from bestpolicy._numerics.inputs import choice, number
from bestpolicy.algorithms.protocol import About, Request, Run, Task, begin_with_design, check_times
from bestpolicy.design import Design, rounded_counts, whiten
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem
from bestpolicy.samples import Pulls, Tally
from bestpolicy.stopping import Check, Evidence, PaperRule, Past, Terms
from bestpolicy.stopping.paper import predicted_rounds

Rounding = Literal["rounded", "random"]


@dataclass(frozen=True)
class GSS:
    """G-Sampling-and-Stop for discounted problems.

    Attributes
    ----------
    design_tolerance : float
        The worst leverage of the design is at most (1 + tolerance)·d. The proof allows up to 0.1.
    check_ratio : float
        Look at the data each time the number of rounds has grown by this factor; 1 looks after every round.
    sampling : {"rounded", "random"}
        Follow the design by deterministic rounding, or draw from it as the paper does.
    """

    name: ClassVar[str] = "gss"
    about: ClassVar[About] = About(
        setting="discounted",
        features="linear",
        assumption="",
        guarantee="within ε of optimal in every state",
        complexity="d (d + log 1/δ) / ((1-γ)⁴ (Δ+ε)²)",
        constants="exact, with repairs of the threshold",
        reference="Taupin, Jedra, Proutière: Best Policy Identification in Linear MDPs, Algorithm 1",
        writes_certificates=True,
    )
    anytime: ClassVar[bool] = True
    takes_own_data: ClassVar[bool] = True

    design_tolerance: float = 1e-3
    check_ratio: float = 1.05
    sampling: Rounding = "rounded"

    def __post_init__(self) -> None:
        if number("design_tolerance", self.design_tolerance, above=0) > 0.1:
            raise InvalidInput(f"design_tolerance must lie in (0, 0.1]. Got {self.design_tolerance} instead.")
        number("check_ratio", self.check_ratio, least=1)
        choice("sampling", self.sampling, ("rounded", "random"))

    def unsuitable(self, problem: Problem) -> str:
        """Discounted problems only, or episodic ones only."""
        setting, other = ("discounted", "gss") if problem.horizon is None else ("episodic", "gss-e")
        return "" if self.about.setting == setting else f"it is for {self.about.setting} problems; use {other!r}."

    def predicted_samples(self, problem: Problem, gap: float, epsilon: float, delta: float) -> float:
        """Solution of t = U·β(δ, t) at the given gap, in simulator calls."""
        return predicted_rounds(problem, gap, epsilon, delta) * problem.stages

    def run(self, task: Task) -> Run:
        """Sample the design until the rule passes; samples from elsewhere are pooled with ours."""
        problem, epsilon, delta = task.problem, task.epsilon, task.delta
        design, decided = begin_with_design(task, self.design_tolerance)
        whitened = problem.with_features(frozen(whiten(problem.pair_features, design).features(problem.features)))
        sampling = DesignSampling(problem, design, self.sampling)
        test = PaperRule().fix(Terms(whitened, epsilon), Past(), delta)

        tally = sampling.empty_tally()
        check: Check | None = None
        for rounds in check_times(self.first_check(problem, epsilon, delta), self.check_ratio, problem.stages):
            tally += yield Request(sampling.until(rounds, tally, task.rng), check, {} if check else decided)
            data = tally if task.own_data is None else tally + task.own_data
            past = task.recall()
            if past is not None and past.check is not None:
                check = past.check
            else:
                verdict = test.look(Evidence.of(data), None if check is None else check.policy)
                check = verdict.check(data, epsilon)
            if check.passed:
                break
        assert check is not None
        return replace(check, proof=test.proof(Evidence.of(data)).with_design(design) if check.passed else None)

    def first_check(self, problem: Problem, epsilon: float, delta: float) -> float:
        """Rounds before which no gap between values could pass the rule, so that looking would be idle."""
        if self.check_ratio == 1:
            return 1
        return predicted_rounds(problem, float(problem.value_limits[0]), epsilon, delta)


@dataclass(frozen=True)
class GSSE(GSS):
    """G-Sampling-and-Stop for episodic problems [TJP Alg 2]; the parameters are those of `GSS`.

    A round simulates one pair of the design at every step h = 0..H-1, so it costs H simulator calls; there is one
    least-squares model per step, planned by backward induction, and the rule compares Z(t) with H·β(δ/H, t). All of
    that follows from the problem having H stages instead of one. E[τ] = Õ( d H⁴ (Δ+ε)⁻² (log 1/δ + d) ) rounds [TJP
    Thm 5].
    """

    name: ClassVar[str] = "gss-e"
    about: ClassVar[About] = replace(
        GSS.about,
        setting="episodic",
        complexity="d H⁵ (d + log 1/δ) / (Δ+ε)²",
        reference=GSS.about.reference.replace("Algorithm 1", "Algorithm 2"),
    )


@dataclass(frozen=True)
class DesignSampling:
    """Pull pairs in the proportions of a design.

    Attributes
    ----------
    problem : Problem
    design : Design
        Over the rows of ``problem.pair_features``.
    rounding : {"rounded", "random"}
        Deterministic rounding, which follows the design as closely as whole numbers can, or independent draws
        from it as in the paper.
    """

    problem: Problem
    design: Design
    rounding: Rounding = "rounded"

    def empty_tally(self) -> Tally:
        """Return a tally of the design's pairs without samples."""
        return Tally.empty(self.problem, self.problem.pairs[self.design.indices])

    def until(self, rounds: int, tally: Tally, rng: np.random.Generator) -> Pulls:
        """Return the pulls that lead from `tally` to `rounds` rounds; every stage pulls the same pairs."""
        if self.rounding == "rounded":
            counts = rounded_counts(self.design.weights, rounds) - rounded_counts(self.design.weights, tally.rounds)
        else:
            counts = rng.multinomial(rounds - tally.rounds, self.design.weights)
        return Pulls(tally.pairs, np.tile(counts, (self.problem.stages, 1)))
