"""Bounds of the literature, each with what it is valid for and whether its constant is certain.

Two kinds, which must not be mixed up with the numeric lower bound of this room:

* *worst-case lower bounds*: some model of this size needs that many samples. They say nothing about the model at hand,
  which may be far easier;
* *orders of algorithms*: what an algorithm is proved to need in the worst case, up to logarithms and constants.

Many of the theorems have unspecified constants; those are set to 1 and the entry says so (`constant_certain` is
False), so the value is good for comparing exponents and nothing else. Episodes of online algorithms are not samples
of a generative model: one episode is H transitions that cannot be chosen freely. S·A counts the allowed pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, e, inf, log
from typing import Literal

from bestpolicy._numerics.inputs import number, of_type
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import Problem


@dataclass(frozen=True)
class LiteratureBound:
    """A bound from a paper.

    Attributes
    ----------
    name, reference : str
    kind : {"lower", "algorithm"}
        A worst-case lower bound, or the order of an algorithm's guarantee.
    setting : {"discounted", "episodic"}
    counts : {"samples", "episodes"}
    formula : str
    valid_for : str
        In words.
    constant_certain : bool
        Whether the value can be taken at face value; if not, it is an order of magnitude.
    """

    name: str
    reference: str
    kind: Literal["lower", "algorithm"]
    setting: Literal["discounted", "episodic"]
    counts: Literal["samples", "episodes"]
    formula: str
    valid_for: str
    constant_certain: bool
    _value: Callable[[Problem, float, float], float]
    _condition: Callable[[Problem, float, float], bool] = lambda problem, epsilon, delta: True

    def applies(self, problem: Problem, epsilon: float, delta: float) -> bool:
        """Whether the theorem's conditions on sizes, ε and δ hold. Conditions on the features are in `valid_for`."""
        of_type("problem", problem, Problem)
        number("epsilon", epsilon), number("delta", delta, above=0, below=1)
        setting = "discounted" if problem.horizon is None else "episodic"
        return setting == self.setting and epsilon > 0 and self._condition(problem, epsilon, delta)

    def value(self, problem: Problem, epsilon: float, delta: float) -> float:
        """Evaluate the formula; raises InvalidInput where the theorem does not apply."""
        if not self.applies(problem, epsilon, delta):
            raise InvalidInput(f"{self.name} does not apply here: {self.valid_for}.")
        try:
            return self._value(problem, epsilon, delta)
        except (OverflowError, ZeroDivisionError):  # of an ε whose square is 0
            return inf


def applicable_bounds(problem: Problem, epsilon: float, delta: float) -> list[LiteratureBound]:
    """Return the entries of `LITERATURE` whose conditions hold."""
    return [bound for bound in LITERATURE if bound.applies(problem, epsilon, delta)]


def _pairs(problem: Problem) -> int:
    return len(problem.pairs)


def _effective(problem: Problem) -> float:
    """1/(1-γ), or H."""
    return float(problem.value_limits[0])


def _tree_fits(problem: Problem, epsilon: float, delta: float) -> bool:
    """Conditions of Domingues et al.: the hard model is an A-ary tree of depth D with S = 3 + (A^D - 1)/(A - 1)."""
    states, actions, steps = problem.states, problem.actions, problem.stages
    sizes_fit = states >= 6 and actions >= 2 and steps >= 4
    if not (sizes_fit and epsilon <= steps / 24 and delta <= 1 / 16):
        return False
    depth, leaves = 0, 3
    while leaves < states:
        leaves += actions**depth
        depth += 1
    return leaves == states and steps >= 3 * depth


# fmt: off
LITERATURE: tuple[LiteratureBound, ...] = (
    LiteratureBound("tabular minimax, discounted", "Azar, Munos, Kappen 2013", "lower", "discounted", "samples",
        "SA log(SA/(72δ)) / (8100 (1-γ)³ε²)",
        "the worst tabular model with S·A pairs; constants quoted from memory", False,
        lambda p, eps, dl: max(0.0, _pairs(p) * _effective(p) ** 3 * log(_pairs(p) / (72 * dl)) / (8100 * eps**2))),
    LiteratureBound("linear minimax, discounted", "Yang, Wang 2019", "lower", "discounted", "samples",
        "d / ((1-γ)³ε²)", "the worst linear model of dimension d, up to logarithms and an unspecified constant", False,
        lambda p, eps, dl: p.dimension * _effective(p) ** 3 / eps**2),
    LiteratureBound("tabular minimax, episodic", "Dann, Brunskill 2015", "lower", "episodic", "episodes",
        "(H-2)²(A-1)(S-3)/ε² log(1/δ)",
        "the worst tabular model; online episodes; ε ≤ (H-2)/(640e⁴), δ ≤ e⁻⁴/80; unspecified constants", False,
        lambda p, eps, dl: (p.stages - 2) ** 2 * (p.actions - 1) * (p.states - 3) / eps**2 * log(1 / dl),
        lambda p, eps, dl: p.stages > 2 and p.states > 3 and eps <= (p.stages - 2) / (640 * e**4) and dl <= e**-4 / 80),
    LiteratureBound("tabular minimax, episodic, one law per step", "Domingues, Ménard, Kaufmann, Valko 2021",
        "lower", "episodic", "episodes",
        "H³SA log(1/δ) / (3456 ε²)",
        "the worst tabular model whose law changes with the step; online episodes; S ≥ 6, H ≥ 4, ε ≤ H/24, δ ≤ 1/16, "
        "S = 3 + (A^D - 1)/(A - 1) with H ≥ 3D; constant quoted from memory", False,
        lambda p, eps, dl: p.stages**3 * _pairs(p) * log(1 / dl) / (3456 * eps**2),
        _tree_fits),
    LiteratureBound("tabular minimax, episodic, one law", "Domingues, Ménard, Kaufmann, Valko 2021",
        "lower", "episodic", "episodes",
        "H²SA log(1/δ) / (3456 ε²)",
        "as above for models whose law is the same at every step; constant quoted from memory", False,
        lambda p, eps, dl: p.stages**2 * _pairs(p) * log(1 / dl) / (3456 * eps**2),
        _tree_fits),
    LiteratureBound("linear minimax, episodic", "Wagenmaker, Chen, Simchowitz, Du, Jamieson 2022",
        "lower", "episodic", "episodes",
        "d²H²/ε²", "the worst linear model; online episodes; unspecified constant, exponent of H from memory", False,
        lambda p, eps, dl: p.dimension**2 * p.stages**2 / eps**2),
    LiteratureBound("plug-in", "Hoeffding's inequality at V*, in the manner of Kakade 2003",
        "algorithm", "discounted", "samples",
        "SA ⌈2 log(2SA/δ) / ((1-γ)⁶ε²)⌉",
        "every tabular model, as many samples of each pair; features are not used", True,
        lambda p, eps, dl: _pairs(p) * ceil(2 * log(2 * _pairs(p) / dl) * _effective(p) ** 6 / eps**2)),
    LiteratureBound("phased Q-learning", "Kearns, Singh 1999", "algorithm", "discounted", "samples",
        "SA log(1/δ) / ((1-γ)⁷ε²)", "every tabular model, up to logarithms and constants", False,
        lambda p, eps, dl: _pairs(p) * log(1 / dl) * _effective(p) ** 7 / eps**2),
    LiteratureBound("variance-reduced QVI", "Sidford, Wang, Wu, Yang, Ye 2018", "algorithm", "discounted", "samples",
        "SA log(1/δ) / ((1-γ)³ε²)", "every tabular model and ε < 1, up to logarithms and constants", False,
        lambda p, eps, dl: _pairs(p) * log(1 / dl) * _effective(p) ** 3 / eps**2,
        lambda p, eps, dl: eps < 1),
    LiteratureBound("PPQ-learning", "Yang, Wang 2019", "algorithm", "discounted", "samples",
        "d log(1/δ) / ((1-γ)⁷ε²)",
        "linear models with a well-conditioned set of d pairs, up to logarithms and constants", False,
        lambda p, eps, dl: p.dimension * log(1 / dl) * _effective(p) ** 7 / eps**2),
    LiteratureBound("OPPQ-learning", "Yang, Wang 2019", "algorithm", "discounted", "samples",
        "d log(1/δ) / ((1-γ)³ε²)",
        "linear models with d anchor pairs whose convex hull has all features, up to logarithms and constants", False,
        lambda p, eps, dl: p.dimension * log(1 / dl) * _effective(p) ** 3 / eps**2),
    LiteratureBound("policy iteration with a G-optimal design", "Lattimore, Szepesvári, Weisz 2020",
        "algorithm", "discounted", "samples",
        "d² log(1/δ) / ((1-γ)⁸ε²)",
        "models whose policies all have linear values, up to logarithms and constants (d√d is sometimes quoted)", False,
        lambda p, eps, dl: p.dimension**2 * log(1 / dl) * _effective(p) ** 8 / eps**2),
    LiteratureBound("RFLIN", "Wagenmaker, Chen, Simchowitz, Du, Jamieson 2022", "algorithm", "episodic", "episodes",
        "d (d + log(1/δ)) H⁵/ε²", "linear models; online episodes, reward-free; up to logarithms and constants", False,
        lambda p, eps, dl: p.dimension * (p.dimension + log(1 / dl)) * p.stages**5 / eps**2),
    LiteratureBound("PEDEL, worst case", "Wagenmaker, Jamieson 2022", "algorithm", "episodic", "episodes",
        "d H⁵ (dH² + log(1/δ))/ε²",
        "linear models that some policy explores in every direction; online episodes; up to logarithms and constants",
        False, lambda p, eps, dl: p.dimension * p.stages**5 * (p.dimension * p.stages**2 + log(1 / dl)) / eps**2),
)
# fmt: on
