"""Check a certificate without trusting whoever made it.

`verify` reads one file and recomputes from it that the policy is within ε of optimal with probability at least 1-δ:
the problem, the samples, the estimates, the plan, the confidence sets. It shares no code with the run that made the
file, only NumPy and SciPy, and follows the theorems as they are stated in the modules here:

- `reading`, `case`: the file, the problem and the samples, and all that must be true of them;
- `claim`: what the file says, and whether it contradicts itself;
- `rounding`: by how much a claim has to hold so that floating point cannot have made it up;
- `coordinates`, `paper`: Theorems R and R-E, the rule of `gss` and `gss-e`;
- `tables`, `look`: Theorem U, the rule of `sharp` for tables; `bets`, `intersection`,
  `paths`: Theorems I and UD, its rules for features;
- `episodes`: Theorem O, the rule of `forward`; `hull`, `hull_gaps`: Theorems F± and H, where nobody lists states;
- `journal`: what the study's file shows of the order of things;
- `noise`, `regression`, `kernel`, `tight`, `protocol`: Theorems T, T-E, P and F, the rules of `tight` and `adaptive`.

What no file can show is listed with the verdict (`Verification.trusted`): that the samples were really drawn,
independently, from one linear MDP with rewards in [0, 1]; that nobody ran with new seeds until it fired; and that what
had to be fixed before the samples was. Whoever chooses weights, a design, pairs or shares of δ in hindsight can make a
file that is false and passes every test. The file says how many studies of the problem its store held; with more than
one, each may be wrong with probability δ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import inf, isfinite
from os import PathLike
from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import spsolve

from bestpolicy.errors import LIMIT_GB, BestPolicyError, InvalidInput, TooLarge
from bestpolicy.verification import episodes, hull, hull_gaps, intersection, look, paper, paths, protocol
from bestpolicy.verification.case import Case
from bestpolicy.verification.claim import ABSOLUTE, MISFIT, NO_CHOICE, Claim, rule_name
from bestpolicy.verification.journal import check_journal
from bestpolicy.verification.reading import Budget, Floats, Ints, Rejected, digest, parse, read_text, visible

THEOREMS = ("R", *protocol.THEOREMS, "U", "O", "I", "UD", "F±", "H", NO_CHOICE)
_THEIR_WORD = "the user's word"
_DOWN = Context(rounding=ROUND_FLOOR)


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
    chain : dict or None
        Root, head and number of rows of the hashes over the study's file, if the certificate names them.
    order_shown : bool
        Whether that file was given and shows that what had to be fixed before the samples was.
    where : str
        Where the claim holds: in every state, or from a start.
    epsilon_per_misfit : float
        By how much ε grows with the misfit ζ of a feature map, on which the claim rests; 0 if it rests on none.
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
    chain: dict[str, str | int] | None = None
    order_shown: bool = False
    where: str = "in every state"
    epsilon_per_misfit: float = 0.0

    @property
    def rule(self) -> str:
        """The statement that certifies."""
        return rule_name(self.theorem.removesuffix("-E"), self.theorem.endswith("-E"), self.epsilon)

    @property
    def in_doubt(self) -> bool:
        """Whether the run itself found that its features do not fit: then the claim is worth nothing, proved or not."""
        return any(warning.startswith(MISFIT) for warning in self.warnings)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self) | {"in_doubt": self.in_doubt}

    def __str__(self) -> str:
        if not self.valid:
            return "NOT valid: " + "; ".join(self.reasons) + "."
        quality = "optimal" if self.epsilon == 0 else f"within {_up(self.epsilon):f} of optimal"
        sure = f"{_DOWN.subtract(Decimal(1), _up(self.delta)):f}"
        confidence = "" if self.theorem == NO_CHOICE else f" {self.where} with probability at least {sure}"
        if self.epsilon_per_misfit:
            grown = f"{_up(self.epsilon):f} + {_up(self.epsilon_per_misfit):f}ζ"
            confidence += f", if the features fit; with an interpolation error of up to ζ, within {grown}"
        loss = "" if self.true_loss is None else f"; its true loss in the given model is {self.true_loss:.6g}"
        missed = "" if self.missed_epsilon is None else f" (ε = {self.missed_epsilon:g} was asked, and not reached)"
        doubt = "".join(f" BUT IN DOUBT: {warning}" for warning in self.warnings)
        verdict = "in doubt, although the samples would show it if the features fitted" if self.in_doubt else "valid"
        return (
            f"{verdict}: the policy is {quality}{confidence}{missed} ({self.rule}), from {self.samples:,} simulator "
            f"calls; studies of this problem on record: {self.attempts}{loss}{doubt and '.' + doubt}"
        )


def verify(
    path: str | PathLike[str],
    model: Any = None,
    *,
    store: str | PathLike[str] | None = None,
    limit_gb: float = LIMIT_GB,
) -> Verification:
    """Check a certificate file.

    Parameters
    ----------
    path : path
        A file that `Result.save` wrote.
    model : LinearMDP, optional
        The truth, if it is known: the certificate must be about its problem, and the policy's true loss is computed.
    store : path, optional
        The file of studies that the certificate comes from: it shows that what had to be fixed before the samples was.
        Without it, that is taken on trust.
    limit_gb : float
        How much memory a file may ask for before it is refused; about a minute of work comes with each GB.

    Raises
    ------
    InvalidInput
        If the file cannot be understood (`TooLarge`: it asks for more than the limit). A file that can, but proves
        nothing, gives a `Verification` that says so.
    """
    if store is not None and not isinstance(store, str | PathLike):
        raise InvalidInput(f"store must be the path of a file of studies. Got a {type(store).__name__} instead.")
    budget = Budget(limit_gb)
    return _guarded(lambda: _verify(read_text(path, budget), model, budget, store))


def verify_text(text: str, model: Any = None, *, limit_gb: float = LIMIT_GB) -> Verification:
    """Check the text of a certificate; the parameters are those of `verify`."""
    return _guarded(lambda: _verify(text, model, Budget(limit_gb)))


def _guarded(check: Callable[[], Verification]) -> Verification:
    """Whatever a hostile file provokes becomes one exception of ours."""
    try:
        with np.errstate(all="ignore"):  # absurd numbers are rejected where they would count
            return check()
    except BestPolicyError:
        raise
    except MemoryError:
        raise TooLarge("the certificate needs more memory than there is. Check it on a larger computer.") from None
    except Exception as error:
        what = visible(f"{type(error).__name__}: {error}")[:200]
        raise InvalidInput(f"the certificate cannot be checked ({what}). Ask for the file again.") from error


def _verify(text: str, model: Any, budget: Budget, store: str | PathLike[str] | None = None) -> Verification:
    document = parse(text, budget)
    claim, reasons = Claim.read(document), list[str]()
    if document.text("sha256") != digest(document.fields):
        reasons.append("the file was changed after it was written (its checksum does not fit)")
    epsilon, scale, theorem, more = claim.epsilon, claim.reward_scale, claim.theorem, list[str]()
    if theorem not in THEOREMS:
        raise InvalidInput(f"unknown theorem {theorem[:60]!r}. This program checks {', '.join(THEOREMS)}.")
    recomputed: float | None = None
    loss: float | None = None
    shown = tabular = False
    per_misfit = 0.0
    try:
        if theorem in ("F±", "H"):
            reasons += hull.contradictions(document, claim)
            found, used, more = (hull if theorem == "F±" else hull_gaps).certified(document, claim)
            theorem += "-E" if document.child("problem").has("horizon") else ""
            per_misfit = hull.per_misfit(document)
            case, policy = None, None
            if model is not None:
                raise InvalidInput("model must be left out: no listed model is about states that cannot be listed.")
        else:
            case = Case.read(document.child("problem"))
            tabular = case.is_table
            policy = case.policy(document.child("claim"))
            reasons += claim.contradictions(case)
            found, used, more = _certified(case, claim, policy)
        theorem += "-E" if case is not None and case.horizon is not None and theorem not in (NO_CHOICE, "O") else ""
        if store is not None and claim.chain is None:
            reasons.append("it does not name a study, so no file of studies can show more of it")
        elif store is not None:
            check_journal(document, store)
            shown = True
            more = ["the study's file was not made up as a whole", *(item for item in more if _THEIR_WORD in item)]
        elif claim.chain is not None and more:
            more.insert(0, "what follows was fixed before sampling, which the study's file (--store) can show")
        recomputed = found * scale + claim.lost if isfinite(found) else None
        if used > claim.samples + claim.own_data:
            reasons.append(f"the proof uses {used:,} samples, the run had {claim.samples + claim.own_data:,}")
        if not found <= claim.target:
            told = found < (inf if case is None else float(case.limits[0]))  # no policy loses more than that
            known = f"only ε = {recomputed:.6g}" if told else "no ε at all"
            reasons.append(f"the samples certify {known} for this policy at δ = {claim.delta:g}, not ε = {epsilon:.6g}")
        if model is not None and case is not None and policy is not None:
            start, chance = claim.start, 0.0
            if claim.theorem == "O" and start is None:
                start, chance = episodes.own_starts(case, claim)
            loss = _true_loss(case, policy, model, start) * scale
            if loss > epsilon + (ABSOLUTE + chance) * scale * case.limits[0]:
                reasons.append(
                    f"in the given model the policy loses {loss:.6g}, more than ε = {epsilon:.6g} (an event of "
                    f"probability at most {claim.delta:g}, if the samples came from that model)"
                )
    except Rejected as error:
        reasons.append(str(error))
    except InvalidInput:
        raise
    except (ValueError, ArithmeticError) as error:
        reasons.append(f"the numbers cannot be computed with ({error})")
    return Verification(
        not reasons,
        reasons,
        epsilon,
        claim.delta,
        recomputed,
        theorem,
        claim.samples,
        claim.attempts,
        loss,
        [*claim.trusted(tabular), *more, claim.hearsay],
        claim.missed,
        claim.warnings,
        claim.chain,
        shown and not reasons,
        claim.where,
        per_misfit,
    )


def _certified(case: Case, claim: Claim, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that is certified in the problem's units, the samples used for it, and what is trusted."""
    if not 0 < claim.delta < 1:
        raise Rejected("δ does not lie strictly between 0 and 1")
    proof = claim.document.child("proof")
    if claim.theorem == NO_CHOICE:
        if case.rivals(policy).any():
            raise Rejected("some state has two distinct actions")
        proof.only()
        return 0.0, 0, []
    if claim.theorem == "O":
        return episodes.certified_epsilon(case, claim, proof, policy)
    if claim.theorem == "U":
        return look.certified_epsilon(case, claim, proof, policy)
    if not case.has_features:
        raise Rejected(f"Theorem {claim.theorem} needs the features")
    if claim.theorem == "I":
        return intersection.certified_epsilon(case, claim, proof, policy)
    if claim.theorem == "UD":
        return paths.certified_epsilon(case, claim, proof, policy)
    if claim.theorem == "R":
        trusted = ["δ and the design, which decides the coordinates, were fixed before sampling"]
        return *paper.certified_epsilon(case, proof, policy, claim.delta), trusted
    return protocol.certified_epsilon(case, claim, proof, policy)


def _true_loss(case: Case, policy: Ints, model: Any, start: Floats | None = None) -> float:
    """max_s V*(s) - V^π(s) in a known model at the first stage, or its mean at a start; by its own policy iteration."""
    if not all(hasattr(model, name) for name in ("problem", "theta", "mu")):
        raise InvalidInput(f"model must be a LinearMDP. Got {type(model).__name__} instead.")
    problem = model.problem
    if problem.fingerprint != case.fingerprint:
        raise Rejected(
            "the certificate is about another problem than the given model (features, mask, ends, discount or horizon)"
        )
    states = np.arange(len(case.mask))
    theta = np.asarray(model.theta, dtype=np.float64).reshape(case.stages, -1)
    mu = model.mu if isinstance(model.mu, tuple) else np.asarray(model.mu).reshape(case.stages, len(states), -1)
    features = case.features.reshape(case.mask.size, -1) if case.has_features else _one_hot(case)

    def q_values(stage: int, values: Floats) -> Floats:
        numbers = features @ (theta[stage] + case.gamma * (mu[stage].T @ values))
        return np.where(case.mask, numbers.reshape(case.mask.shape), -np.inf)

    def evaluated(actions: Ints) -> Floats:
        played = features[states * case.mask.shape[1] + actions]
        if case.has_features:
            system = np.eye(theta.shape[1]) - case.gamma * (mu[0].T @ played)
            values: Floats = played @ np.linalg.solve(system, theta[0])
            return values
        kernel = csr_array(played @ csr_array(mu[0]).T)
        solved = spsolve((eye_array(len(states)) - case.gamma * kernel).tocsc(), played @ theta[0])
        return np.atleast_1d(np.asarray(solved, dtype=np.float64))

    if case.horizon is not None:
        best, own = np.zeros(len(states)), np.zeros(len(states))
        for stage in reversed(range(case.stages)):
            best, own = q_values(stage, best).max(axis=1), q_values(stage, own)[states, policy[stage]]
    else:
        best = own = evaluated(policy[0])
        for _ in range(200):
            better = evaluated(q_values(0, best).argmax(axis=1))
            if not (better > best + 1e-13 * case.limits[0]).any():
                break
            best = better
    return max(0.0, float((best - own).max() if start is None else start @ (best - own)))


def _one_hot(case: Case) -> Any:
    """Features of a table, (S·A, d): a coordinate for each pair, and one for all ends."""
    rows, own = np.flatnonzero(case.mask), case.open.reshape(-1)
    columns = np.where(own, np.cumsum(own) - 1, own.sum())[rows]
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(case.mask.size, columns.max() + 1))


def _up(number: float) -> Decimal:
    """Four digits, rounded up, as no claim may be rounded in its favour; the last bit of a float is no digit."""
    exact = Decimal(f"{number:.15g}")
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - 3), rounding=ROUND_CEILING).normalize()


__all__ = ["Verification", "verify", "verify_text"]
