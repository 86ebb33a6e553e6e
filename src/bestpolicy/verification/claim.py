"""What a certificate says: its claim, and all that it states of its problem and its run.

Every field of a file has one of three places. It is recomputed; or it follows from others, and must agree with them; or
nothing of the verdict rests on it, and it is listed as trusted. A field without a place is refused, and so is one that
contradicts another: whoever reads the file would believe one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification.case import Case
from bestpolicy.verification.reading import Floats, Node, visible

RELATIVE, ABSOLUTE = 1e-6, 1e-9  # by how much another order of the same operations may differ
NO_CHOICE = "no choice"
MISFIT = "The features do not fit"  # how a warning begins that takes the ground from under a claim
LINEAR = "transition probabilities and mean rewards are linear in the features"
CHECKED = (
    "the features have full rank",
    "the all-ones function is linear in the features",
    "rewards lie in [0, 1] (sums of rewards and of their squares fit to that)",
)
_FIELDS = {
    "": "format version problem claim proof run assumptions sha256",
    "claim": "policy vectors epsilon asked_epsilon asked_was_certified delta reward_scale reward_offset theorem rule "
    "start reward_bias",
    "run": "algorithm parameters seed samples own_data rounds attempts warnings versions chain",
    "labels": "reward_scale reward_offset states actions environment own_states",
}
_PAPER = ("gss", "gss-e")
_OTHERS = ("tight", "adaptive", "sharp", "forward")
_WITH_ENDS, _WITH_BIAS = 3, 4
_HONEST = 2  # files of version 1 may give the rule, and whether ε was reached, of another check: nobody shows theirs


@dataclass(frozen=True)
class Claim:
    """What is claimed (in the user's units of reward), what was asked, and what the file tells of the run."""

    document: Node
    version: int
    theorem: str
    epsilon: float
    asked: float
    delta: float
    reward_scale: float
    reward_offset: float
    samples: int
    own_data: int
    attempts: int
    warnings: list[str]
    chain: dict[str, str | int] | None
    start: Floats | None = None
    bias: float = 0.0

    @classmethod
    def read(cls, document: Node) -> Claim:
        """Read what is stated, each field by itself."""
        claim, run = document.child("claim"), document.child("run")
        for node, name in ((document, ""), (claim, "claim"), (run, "run")):
            node.only(*_FIELDS[name].split())
        run.text("algorithm")
        run.whole("seed", 0, inf)
        for name in run.child("versions").fields:
            run.child("versions").text(name)
        return cls(
            document,
            document.whole("version", 1),
            claim.text("theorem"),
            claim.number("epsilon", 0.0, 1e300),
            claim.number("asked_epsilon", 0.0, 1e300),
            claim.number("delta", 0.0, 1.0),
            claim.number("reward_scale", 1e-300, 1e300),
            claim.number("reward_offset", -1e300, 1e300),
            run.whole("samples", 0),
            run.whole("own_data", 0),
            run.whole("attempts", 1),
            [visible(text) for text in run.texts("warnings")],
            _chain(run.child("chain")) if run.has("chain") else None,
            _start(claim) if claim.has("start") else None,
            claim.number("reward_bias", 0.0, 1e300) if claim.has("reward_bias") else 0.0,
        )

    @property
    def lost(self) -> float:
        """What truncated rewards may add to the loss of a policy: what a step can, times the longest life."""
        if self.bias == 0:
            return 0.0
        problem = self.document.child("problem")
        if problem.has("horizon"):
            return self.bias * problem.whole("horizon", 1)
        return self.bias / (1 - problem.number("discount", 0.0, 1.0 - 1e-12))

    @property
    def target(self) -> float:
        """ε in the problem's units, with what rounding may add; that a policy is optimal has no tolerance."""
        epsilon = max(0.0, self.epsilon - self.lost) / self.reward_scale
        return epsilon * (1 + RELATIVE) + min(ABSOLUTE, epsilon)

    @property
    def where(self) -> str:
        """Where the claim holds, in words."""
        if self.start is None:
            return "in every state" if self.theorem != "O" else "on average over the simulator's own starts"
        single = np.flatnonzero(self.start)
        return f"from state {single[0]}" if len(single) == 1 else "on average over the start distribution"

    @property
    def missed(self) -> float | None:
        """The ε that was asked, if it was not reached."""
        return None if reached(self.epsilon, self.asked) else self.asked

    def trusted(self, tabular: bool) -> list[str]:
        """What no file can show, whatever the theorem; every table is linear in one-hot features."""
        low = self.reward_offset
        model = "MDP with" if tabular else "linear MDP with these features and"
        found = [
            f"the samples were drawn independently from one {model} rewards in "
            f"[{low:g}, {low + self.reward_scale:g}]{'' if tabular else self._tested}",
            "the run was not repeated until it certified something (studies of this problem on record: "
            f"{self.attempts})",
        ]
        if self.bias > 0:
            found.append(
                "rewards beyond that range count as its ends, which adds no more than "
                f"{self.bias:g} a step to what a policy loses (the user's word; {self.lost:.6g} of ε is for it)"
            )
        if self.own_data:
            found.append(f"{self.own_data:,} samples came from elsewhere, of pairs chosen without regard to outcomes")
        names = self.document.child("problem")
        states = names.child("labels").fields.get("states") if names.has("labels") else None
        if isinstance(states, list) and None in states:  # they got their numbers as they appeared
            seen = sum(state is not None for state in states[:-1])
            found.append(
                f"no more than {len(states) - 1:,} observations can occur, of which {seen:,} did (the user's word)"
            )
        return found

    @property
    def _tested(self) -> str:
        """What the file says of a test of its features."""
        said = [node.text("assumption") for node in self.document.children("assumptions")]
        return "".join(f" ({visible(text[len(LINEAR) + 2 :])})" for text in said if text.startswith(LINEAR + ", "))

    @property
    def hearsay(self) -> str:
        """What the file says and the verdict does not rest on."""
        names = ", the names of states and actions" if self.document.child("problem").has("labels") else ""
        algorithm = visible(self.document.child("run").text("algorithm"))
        return f"the algorithm ({algorithm}), its parameters, the seed{names} and versions are as the file says"

    def contradictions(self, case: Case) -> list[str]:
        """Return the fields that contradict others, in words."""
        claim, run, problem = (self.document.child(name) for name in ("claim", "run", "problem"))
        algorithm, paper = run.text("algorithm"), self.theorem == "R"
        stated, rule = claim.flag("asked_was_certified"), claim.text("rule")
        expected = rule_name(self.theorem, case.horizon is not None, self.epsilon)
        agreements = [
            ("rounds", run.whole("rounds", 0) == self.samples // case.stages),
            ("algorithm", self.theorem == NO_CHOICE or algorithm not in (_OTHERS if paper else _PAPER)),
            ("algorithm", algorithm not in _PAPER or (algorithm == "gss") == (case.horizon is None)),
            ("algorithm", self.theorem == NO_CHOICE or (algorithm == "sharp") <= (self.theorem in ("U", "I", "UD"))),
            ("algorithm", self.theorem == NO_CHOICE or (algorithm == "forward") <= (self.theorem == "O")),
            ("start", self.start is None or (self.theorem in ("U", "O") and len(self.start) == len(case.features))),
            ("asked_was_certified", stated == reached(self.epsilon, self.asked) or self.version < _HONEST),
            ("version", self.version >= _WITH_ENDS or not len(case.ends)),
            ("version", self.version >= _WITH_BIAS or self.bias == 0),
            ("reward_bias", self.epsilon >= self.lost * (1 - RELATIVE)),
            ("rule", rule == expected or self.version < _HONEST),
        ]
        if problem.has("labels"):
            labels = problem.child("labels")
            labels.only(*_FIELDS["labels"].split())
            for name, size in (("states", len(case.features)), ("actions", case.mask.shape[1])):
                names = labels.fields[name] if labels.has(name) else [None] * size
                agreements.append((f"labels: {name}", isinstance(names, list) and len(names) == size))
            if labels.has("own_states"):
                agreements.append(("labels: own_states", labels.whole("own_states", 1) <= len(case.features)))
            if labels.has("environment"):
                labels.text("environment")
            for name in ("reward_scale", "reward_offset"):
                same = not labels.has(name) or labels.number(name, -1e300, 1e300) == getattr(self, name)
                agreements.append((f"labels: {name}", same))
        parameters, proof = run.child("parameters"), self.document.child("proof")
        for name, unit in (("lag_share", 1.0), ("value_span", self.reward_scale)):
            if parameters.has(name) and name in proof.fields:
                own = proof.number(name, -1e300, 1e300) * unit if proof.has(name) else inf
                said = inf if parameters.fields[name] == "inf" else parameters.number(name, -1e300, 1e300)
                agreements.append((name, own == said or abs(own - said) <= RELATIVE * said < inf))
        if self.theorem == "O" and parameters.has("stationary"):
            agreements.append(("stationary", parameters.flag("stationary") == proof.flag("stationary")))
            agreements.append(("return_limits", _same_limits(case, parameters, proof)))
        for node in self.document.children("assumptions"):
            node.only("assumption", "checked")
            known, checked = node.text("assumption") in CHECKED, node.flag("checked")
            agreements.append(("assumptions", known or not checked))
        return [f"the field {field!r} contradicts what was found" for field, agrees in agreements if not agrees]


def _same_limits(case: Case, parameters: Node, proof: Node) -> bool:
    """Whether the limits of returns in the proof are those that the run was given."""
    said = parameters.fields.get("return_limits")
    given = [inf if value in ("inf", inf) else value for value in (said if isinstance(said, list) else [said])]
    if not all(isinstance(value, int | float) for value in given) or len(given) not in (1, case.stages):
        return False
    limits = np.minimum(case.limits, np.array(given, np.float64))
    return bool(np.allclose(proof.array("limits", "f", (case.stages,)), limits, rtol=RELATIVE, atol=0.0))


def reached(epsilon: float, asked: float) -> bool:
    """Whether what is certified is what was asked."""
    return epsilon <= asked * (1 + RELATIVE)


def rule_name(theorem: str, episodic: bool, epsilon: float) -> str:
    """Name what certifies; Theorems T and P certify an optimal policy by (A), one within some ε by (B)."""
    if theorem == NO_CHOICE:
        return "no state has two distinct actions"
    criterion = (" (A)" if epsilon == 0 else " (B)") if theorem in ("T", "P") else ""
    return f"Theorem {theorem}{'-E' if episodic and theorem != 'O' else ''}{criterion}"


def _start(node: Node) -> Floats:
    """Return the distribution over states that the claim is about; without one it is about every state."""
    start = node.array("start", "f", (None,))
    if not len(start) or start.min() < 0 or abs(start.sum() - 1) > 1e-9:
        raise InvalidInput(f"{node.name}: 'start' must be a distribution over the states.")
    shares: Floats = start / start.sum()
    return shares


def _chain(node: Node) -> dict[str, str | int]:
    """Root and head of the chain of hashes over what the study's file holds, and its length."""
    node.only("root", "head", "rows")
    for name in ("root", "head"):
        if not re.fullmatch("[0-9a-f]{64}", node.text(name)):
            raise InvalidInput(f"{node.name}: {name!r} must be 64 hexadecimal digits.")
    return {"root": node.text("root"), "head": node.text("head"), "rows": node.whole("rows", 1)}
