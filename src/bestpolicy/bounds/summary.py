"""One table for a person, one dictionary for a program: what is needed, what is predicted, what is proved.

Rows are ordered as a reader asks: what can no algorithm beat on this model; what none that samples in rounds, if the
problem is episodic; what will the paper's algorithm need; what is it proved to need; what does the literature say for
models of this size. The ratio of a row is its number of samples over the certified lower bound for any algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bestpolicy._numerics.inputs import of_type
from bestpolicy.bounds.alternatives import Alternative
from bestpolicy.bounds.certified import LowerBound, VerificationFloor
from bestpolicy.bounds.divergence import PINSKER_CONSTANT, confidence_divergence
from bestpolicy.bounds.literature import applicable_bounds
from bestpolicy.bounds.paper import expected_samples_bound, predicted_samples, time_upper_bound
from bestpolicy.mdp import LinearMDP

SCOPES = {
    "samples_lower_bound": "any algorithm, whichever steps it samples how often",
    "rounds_lower_bound": "algorithms that sample every step equally often, as gss-e does: rounds of one call per step",
    "asymptotic_time": "any algorithm as δ → 0, times log(1/δ); not a bound at this δ",
    "verification": "any algorithm that returns this policy as δ → 0, times log(1/δ); not a bound at this δ",
}
"""For which algorithms a bound holds."""


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes
    ----------
    what : str
    samples : float
        Simulator calls; inf if it never stops.
    ratio : float or None
        Over the certified bound for any algorithm; None if that is 0 or the row does not count simulator calls.
    note : str
    """

    what: str
    samples: float
    ratio: float | None
    note: str


def summarise(mdp: LinearMDP, bound: LowerBound, floor: VerificationFloor | None = None) -> dict[str, Any]:
    """Everything of `bounds --json` for a bound, and what verifying a policy takes, at hand."""
    problem, epsilon, delta = mdp.problem, bound.epsilon, bound.delta
    name = _algorithm(mdp)
    closest = bound.closest
    return {
        "model": mdp.name,
        "epsilon": epsilon,
        "delta": delta,
        "gap": _finite(mdp.gap),
        "samples_lower_bound": bound.samples_lower_bound,
        "characteristic_time": bound.characteristic_time,
        "allocation": bound.allocation.tolist(),
        "rounds_lower_bound": bound.rounds_lower_bound,
        "calls_per_round": problem.stages,
        "characteristic_rounds": bound.characteristic_rounds,
        "rounds_allocation": bound.in_rounds.allocation.tolist(),
        "grouped_samples": bound.grouped_samples,
        "asymptotic_time": bound.asymptotic_time,
        "verification": None if floor is None else _verification(mdp, floor),
        "scopes": dict(SCOPES),
        "alternatives": {
            "count": len(bound.alternatives),
            "closest": None if closest is None else _describe(mdp, closest),
            "all_policies": bound.all_policies,
        },
        "search_gap": _finite(bound.search_gap),
        "rounds_search_gap": _finite(bound.in_rounds.search_gap),
        "seconds": bound.seconds,
        "interrupted": bound.interrupted,
        "reason": bound.reason,
        "upper": _finite(time_upper_bound(problem, mdp.gap, epsilon)),
        "upper_pinsker": _finite(time_upper_bound(problem, mdp.gap, epsilon, divergence_constant=PINSKER_CONSTANT)),
        "predicted": {name: _finite(predicted_samples(problem, mdp.gap, epsilon, delta))},
        "proved": {name: _finite(expected_samples_bound(problem, mdp.gap, epsilon, delta))},
        "assumptions": bound.assumptions,
    }


def table_rows(
    mdp: LinearMDP, bound: LowerBound, *, literature: bool = True, floor: VerificationFloor | None = None
) -> list[Row]:
    """Lines of the table for a bound at hand, and for what verifying a policy takes."""
    of_type("mdp", mdp, LinearMDP)
    of_type("bound", bound, LowerBound)
    of_type("literature", literature, bool)
    problem, epsilon, delta, gap = mdp.problem, bound.epsilon, bound.delta, mdp.gap
    least = bound.samples_lower_bound

    def row(what: str, samples: float, note: str, *, comparable: bool = True) -> Row:
        return Row(what, samples, samples / least if comparable and least > 0 else None, note)

    name = _algorithm(mdp)
    ceiling = problem.stages * time_upper_bound(problem, gap, epsilon) * confidence_divergence(delta)
    grouped = least == bound.grouped_samples > 0
    proof = "groups of answers" if grouped else f"{len(bound.alternatives)} alternative models"
    rows = [row("any algorithm, at least", least, f"certified by {proof}")]
    if problem.stages > 1:
        calls = problem.stages * bound.rounds_lower_bound
        note = f"every step equally often: {bound.rounds_lower_bound:.4g} rounds of {problem.stages} calls"
        rows.append(row("any that samples in rounds, at least", calls, note))
    if floor is not None:
        own = "the optimal policy" if (floor.policy == mdp.plan.policy).all() else "this policy"
        note = "asymptotic: not a bound at this δ, nor for other policies"
        rows.append(row(f"verifying {own}, as δ → 0", floor.samples(delta), note))
    rows += [
        row("the paper's estimate of that bound", ceiling, "U* kl(δ, 1-δ) ≥ T* kl(δ, 1-δ): not a lower bound"),
        row(f"{name}, predicted", predicted_samples(problem, gap, epsilon, delta), "solves t = U* β(δ, t)"),
        row(
            f"{name}, proved on average",
            expected_samples_bound(problem, gap, epsilon, delta),
            "Theorem 3 of the paper, corrected" if problem.horizon is None else "Theorem 5 of the paper, corrected",
        ),
    ]
    for entry in applicable_bounds(problem, epsilon, delta) if literature else ():
        samples = (1 if entry.counts == "samples" else problem.stages) * entry.value(problem, epsilon, delta)
        kind = "worst model of this size" if entry.kind == "lower" else "guarantee"
        note = f"{kind}: {entry.formula}{'' if entry.constant_certain else '; order of magnitude only'}"
        rows.append(row(f"{entry.name} ({entry.reference})", samples, note, comparable=False))
    return rows


def _algorithm(mdp: LinearMDP) -> str:
    return "gss" if mdp.problem.horizon is None else "gss-e"


def _verification(mdp: LinearMDP, floor: VerificationFloor) -> dict[str, Any]:
    policy = floor.policy if mdp.problem.horizon is not None else floor.policy[0]
    return {
        "policy": policy.tolist(),
        "characteristic_time": floor.characteristic_time,
        "characteristic_rounds": floor.characteristic_rounds,
        "interrupted": floor.interrupted,
    }


def _describe(mdp: LinearMDP, alternative: Alternative) -> dict[str, Any]:
    episodic = mdp.problem.horizon is not None
    return {
        "step": alternative.stage if episodic else None,
        "state": alternative.state,
        "action": alternative.action,
        "reward_distance": alternative.reward_distance,
        "row_distance": alternative.row_distance,
        "loss_of_optimal_policy": alternative.loss,
        "test": alternative.certificate.test,
        "description": alternative.describe(episodic),
    }


def _finite(value: float) -> float | None:
    return float(value) if abs(value) < float("inf") else None
