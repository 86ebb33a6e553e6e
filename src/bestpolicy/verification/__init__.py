"""Check a certificate without trusting whoever made it.

`verify` reads one file and recomputes from it that the policy is within ε of optimal with probability at least 1-δ:
the problem, the samples, the estimates, the plan, the confidence sets. It shares no code with the run that made the
file, only NumPy and SciPy, and follows the theorems as they are stated in the modules here:

- `reading`, `case`: the file, the problem and the samples, and all that must be true of them;
- `rounding`: by how much a claim has to hold so that floating point cannot have made it up;
- `coordinates`, `paper`: Theorems R and R-E, the rule of `gss` and `gss-e`;
- `noise`, `regression`, `kernel`, `tight`, `protocol`: Theorems T, T-E, P and F, the rules of `tight` and `adaptive`.

What no file can show is listed with the verdict (`Verification.trusted`): that the samples were really drawn,
independently, from one linear MDP with rewards in [0, 1]; that nobody ran with new seeds until it fired; and that what
had to be fixed before the samples was. Whoever chooses weights, a design, pairs or shares of δ in hindsight can make a
file that is false and passes every test. The file says how many studies of the problem its store held; with more than
one, each may be wrong with probability δ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isfinite
from os import PathLike
from typing import Any, Protocol

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification import paper, protocol
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected, digest, parse, read_text

THEOREMS = ("R", *protocol.THEOREMS, "no choice")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9  # by how much another order of the same operations may differ
_DOWN = Context(rounding=ROUND_FLOOR)


class TrueModel(Protocol):
    """What is read of a model that a certificate is compared with; a `LinearMDP` has it."""

    theta: Floats
    mu: Floats

    @property
    def problem(self) -> Any:
        """Features, mask, discount and horizon."""
        ...


@dataclass(frozen=True)
class Verification:
    """What came out of checking a certificate.

    Attributes
    ----------
    valid : bool
        Whether the file proves its claim.
    reasons : list of str
        Why not; empty if valid.
    epsilon, delta : float
        The claim: within ε of optimal (in the user's units of reward) with probability at least 1-δ.
    recomputed_epsilon : float or None
        What the checker certifies by itself; refinement ends once that confirms the claim.
    theorem : str
    samples, attempts : int
        Simulator calls of the run, and studies of this problem in its store.
    true_loss : float or None
        Loss of the policy in the model that was given for comparison.
    trusted : list of str
        What the file cannot show.
    missed_epsilon : float or None
        The ε that was asked, if it was not reached.
    warnings : list of str
        What casts doubt on the guarantee, such as data that are not linear in the features.
    """

    valid: bool
    reasons: list[str]
    epsilon: float
    delta: float
    recomputed_epsilon: float | None
    theorem: str
    samples: int
    attempts: int
    true_loss: float | None = None
    trusted: list[str] = field(default_factory=list)
    missed_epsilon: float | None = None
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.valid:
            return "NOT valid: " + "; ".join(self.reasons) + "."
        quality = "optimal" if self.epsilon == 0 else f"within {_up(self.epsilon):f} of optimal"
        confidence = (
            ""
            if self.theorem == "no choice"
            else f" with probability at least {_DOWN.subtract(Decimal(1), _up(self.delta)):f}"
        )
        # The criteria of Theorems T and P: (A) certifies an optimal policy, (B) one within some ε.
        criterion = (" (A)" if self.epsilon == 0 else " (B)") if self.theorem[0] in "TP" else ""
        why = (
            "no state has two distinct actions" if self.theorem == "no choice" else f"Theorem {self.theorem}{criterion}"
        )
        loss = "" if self.true_loss is None else f"; its true loss in the given model is {self.true_loss:.6g}"
        missed = "" if self.missed_epsilon is None else f" (ε = {self.missed_epsilon:g} was asked, and not reached)"
        doubt = "".join(f" BUT IN DOUBT: {warning}" for warning in self.warnings)
        return (
            f"valid: the policy is {quality}{confidence}{missed} ({why}), from {self.samples:,} simulator calls; "
            f"studies of this problem in the store: {self.attempts}{loss}{doubt and '.' + doubt}"
        )


def verify(path: str | PathLike[str], model: TrueModel | None = None) -> Verification:
    """Check a certificate file.

    Parameters
    ----------
    path : path
        A file that `Result.save` wrote.
    model : LinearMDP, optional
        The truth, if it is known: the certificate must be about its problem, and the policy's true loss is computed.

    Raises
    ------
    InvalidInput
        If the file cannot be understood. A file that can, but proves nothing, gives a `Verification` that says so.
    """
    return verify_text(read_text(path), model)


def verify_text(text: str, model: TrueModel | None = None) -> Verification:
    """Check the text of a certificate; the parameters are those of `verify`."""
    with np.errstate(all="ignore"):  # absurd numbers are rejected where they would count
        return _verify(text, model)


def _verify(text: str, model: TrueModel | None) -> Verification:
    document = parse(text)
    claim, run, reasons = document.child("claim"), document.child("run"), list[str]()
    if document.text("sha256") != digest(document.fields):
        reasons.append("the file was changed after it was written (its checksum does not fit)")
    scale = claim.number("reward_scale", 1e-300, 1e300)
    epsilon, delta = claim.number("epsilon", 0.0, 1e300), claim.number("delta", 0.0, 1.0)
    theorem, stated = claim.text("theorem"), claim.text("theorem")
    samples, attempts = run.whole("samples", 0), run.whole("attempts", 1)
    low = claim.number("reward_offset", -1e300, 1e300)
    trusted = [
        "the samples were drawn independently from one linear MDP with these features and rewards in "
        f"[{low:g}, {low + scale:g}]",
        f"the run was not repeated until it certified something (studies of this problem in the store: {attempts})",
    ]
    own_data = run.whole("own_data", 0)
    if own_data:
        trusted.append(f"{own_data:,} samples came from elsewhere, of pairs chosen without regard to outcomes")
    warnings = run.texts("warnings")
    asked = claim.number("asked_epsilon", 0.0, 1e300)
    recomputed: float | None = None
    loss: float | None = None
    try:
        case = Case.read(document.child("problem"))
        stated += "-E" if case.horizon is not None and theorem != "no choice" else ""
        policy = case.policy(claim)
        found, used, more = _certified(case, theorem, document, policy, epsilon / scale, delta, own_data, scale)
        trusted += more
        recomputed = found * scale
        if run.whole("rounds", 0) != samples // case.stages:
            reasons.append("the numbers of rounds and of samples do not fit together")
        if used > samples + own_data:
            reasons.append(f"the proof uses {used:,} samples, the run had {samples + own_data:,}")
        # That a policy is optimal is claimed without any tolerance.
        if not recomputed <= (epsilon * (1 + _RELATIVE) + _ABSOLUTE * scale if epsilon > 0 else 0.0):
            known = f"only ε = {recomputed:.6g}" if isfinite(found) else "no ε at all"
            reasons.append(f"the samples certify {known} for this policy at δ = {delta:g}, not ε = {epsilon:.6g}")
        if model is not None:
            loss = _true_loss(case, policy, model) * scale
            if loss > epsilon + 1e-9 * scale * case.limits[0]:
                reasons.append(
                    f"in the given model the policy loses {loss:.6g}, more than ε = {epsilon:.6g} (an event of "
                    f"probability at most {delta:g}, if the samples came from that model)"
                )
    except Rejected as error:
        reasons.append(str(error))
    except InvalidInput:
        raise
    except (np.linalg.LinAlgError, ValueError, ArithmeticError) as error:
        reasons.append(f"the numbers cannot be computed with ({error})")
    recomputed = recomputed if recomputed is not None and isfinite(recomputed) else None
    missed = asked if epsilon > asked * (1 + _RELATIVE) else None
    return Verification(
        not reasons,
        reasons,
        epsilon,
        delta,
        recomputed,
        stated,
        samples,
        attempts,
        loss,
        trusted,
        missed,
        warnings,
    )


def _certified(
    case: Case, theorem: str, document: Node, policy: Ints, epsilon: float, delta: float, own_data: int, scale: float
) -> tuple[float, int, list[str]]:
    """Return the ε that is certified in the problem's units, the samples used for it, and what is trusted."""
    if theorem not in THEOREMS:
        raise InvalidInput(f"unknown theorem {theorem!r}. This program checks {', '.join(THEOREMS)}.")
    if theorem == "no choice":
        if case.rivals(policy).any():
            raise Rejected("some state has two distinct actions")
        return 0.0, 0, []
    if not 0 < delta < 1:
        raise Rejected("δ does not lie strictly between 0 and 1")
    proof = document.child("proof")
    if theorem == "R":
        trusted = ["δ and the design, which decides the coordinates, were fixed before sampling"]
        return *paper.certified_epsilon(case, proof, policy, delta), trusted
    asked = document.child("claim").number("asked_epsilon", 0.0, 1e300)
    target = epsilon * (1 + _RELATIVE) + _ABSOLUTE if epsilon > 0 else 0.0
    return protocol.certified_epsilon(case, theorem, proof, policy, delta, asked, target, own_data, scale)


def _true_loss(case: Case, policy: Ints, model: TrueModel) -> float:
    """max_s V*(s) - V^π(s) in a known model, at the first stage; by its own policy iteration."""
    problem = model.problem
    same = np.array_equal(problem.features, case.features) and np.array_equal(problem.mask, case.mask)
    if not same or (problem.discount, problem.horizon) != (case.discount, case.horizon):
        raise Rejected("the certificate is about another problem than the given model (features, mask or discount)")
    features, states = case.features, np.arange(len(case.features))
    theta = np.asarray(model.theta, dtype=np.float64).reshape(case.stages, -1)
    mu = np.asarray(model.mu, dtype=np.float64).reshape(case.stages, len(states), -1)

    def best_actions(parameters: Floats) -> Ints:
        actions: Ints = np.where(case.mask, features @ parameters, -np.inf).argmax(axis=1).astype(np.int64)
        return actions

    if case.horizon is not None:
        best, own = np.zeros(len(states)), np.zeros(len(states))
        for stage in reversed(range(case.stages)):
            best = np.where(case.mask, features @ (theta[stage] + mu[stage].T @ best), -np.inf).max(axis=1)
            own = (features @ (theta[stage] + mu[stage].T @ own))[states, policy[stage]]
        return max(0.0, float((best - own).max()))

    def evaluate(actions: Ints) -> tuple[Floats, Floats]:
        played = features[states, actions]
        parameters = np.linalg.solve(np.eye(len(theta[0])) - case.gamma * (mu[0].T @ played), theta[0])
        return parameters, played @ parameters

    parameters, own = evaluate(policy[0])
    best = own
    for _ in range(200):
        actions = best_actions(parameters)
        parameters, values = evaluate(actions)
        if values.max() <= best.max() + 1e-13 and np.allclose(values, best, rtol=0, atol=1e-13 * case.limits[0]):
            break
        best = np.maximum(best, values)
    return max(0.0, float((np.maximum(best, values) - own).max()))


def _up(number: float) -> Decimal:
    """Four digits, rounded up, as no claim may be rounded in its favour; the last bit of a float is no digit."""
    exact = Decimal(f"{number:.15g}")
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - 3), rounding=ROUND_CEILING).normalize()


__all__ = ["Verification", "verify", "verify_text"]
