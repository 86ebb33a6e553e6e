"""What is known of a study, from wherever it is kept: a file of studies, a certificate, or a result in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from bestpolicy._numerics.arrays import IntArray
from bestpolicy._version import versions
from bestpolicy.errors import BestPolicyError, InvalidInput
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP
from bestpolicy.pictures.labels import Labels
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.report.unlisted import Unlisted
from bestpolicy.samples import Tally
from bestpolicy.study import FeatureResult, Outcome, Result
from bestpolicy.study.forecast import Outlook, stored_outlook
from bestpolicy.study.linearity import Linearity
from bestpolicy.study.result import FINAL
from bestpolicy.study.settings import Settings
from bestpolicy.study.store import Store
from bestpolicy.verification import Verification, verify_text
from bestpolicy.verification.reading import Node, parse

_ENDS = FINAL


@dataclass(frozen=True, eq=False)
class Account:
    """All that a page tells of a study.

    Attributes
    ----------
    name : str
        Of the study; may be hostile.
    problem : Problem
    settings : Settings
    samples, rounds : int
    certified : bool
        Whether what was asked is certified.
    epsilon : float
        What is certified; inf if nothing.
    outcome : str
    rule : str
    checks : list of dict
        The trace; empty if it is not known.
    policy : int array (stages, S), optional
        That of the last check: what is certified is about it. None before the first check.
    tally : Tally, optional
        The samples, those from elsewhere included.
    versions : dict
    outlook : Outlook, optional
        Range of the simulator calls that the whole run should need, as `Study.outlook` says; None if it cannot be said,
        or if the run has come to its end.
    attempts : int
        Studies of the same problem in the same file.
    warnings : tuple of str
    source : str
        Path of the file, or empty.
    verification : Verification, optional
        Of a certificate.
    created : str
    seconds : float, optional
    linearity : Linearity, optional
        What was tested of the features.
    unlisted : Unlisted, optional
        The problem, if nobody lists its states; `problem`, `policy` and `tally` are None then.
    """

    name: str
    problem: Problem
    settings: Settings
    samples: int
    rounds: int
    certified: bool
    epsilon: float
    outcome: str
    rule: str
    checks: list[dict[str, Any]]
    policy: IntArray | None
    tally: Tally | None
    versions: dict[str, str]
    outlook: Outlook | None = None
    attempts: int = 1
    warnings: tuple[str, ...] = ()
    source: str = ""
    verification: Verification | None = None
    created: str = ""
    seconds: float | None = None
    linearity: Linearity | None = None
    unlisted: Unlisted | None = None

    @property
    def forecast(self) -> float | None:
        """What is expected in that range; None if it is too early to tell."""
        return None if self.outlook is None or not 0 < self.outlook.expected < inf else self.outlook.expected

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.outcome != Outcome.RUNNING

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end, so that it cannot go on."""
        return self.outcome in _ENDS

    @property
    def model(self) -> str:
        """What the study remembers its model as; empty if nothing."""
        return str(self.settings.origin.get("model", ""))

    @cached_property
    def labels(self) -> Labels:
        """What states and actions are called."""
        return Labels.of(self.settings.units, self.problem)

    @property
    def subject(self) -> str:
        """What the study is about: its model, its environment, or else its own name."""
        return self.model or (self.labels.environment if self.unlisted is None else "") or self.name


def from_store(path: str | os.PathLike[str], name: str | None = None) -> Account:
    """Read a study from a file of studies; it may still be running."""
    with Store(path) as store:
        record = store.read(store.find(name))
        attempts = store.attempts(record.fingerprint)
    result, trace = record.result or {}, record.trace
    unlisted: Unlisted | None = None
    problem: Any = None
    parts, own = list[Tally](), record.own_data
    if record.is_listed:
        problem, parts = record.problem, [tally for _, _, tally in record.told()]
    else:
        vectors = trace[-1].policy if trace else None
        unlisted = Unlisted.described(record.description, vectors, record.settings.units, result)
    last = record.checks[-1] if record.checks else {}
    known = last.get("epsilon")
    outcome = str(result.get("outcome", Outcome.RUNNING))
    return Account(
        name=record.name,
        problem=problem,
        settings=record.settings,
        samples=record.samples,
        rounds=record.samples // (1 if problem is None else problem.stages),
        certified=bool(result.get("certified", False)),
        epsilon=inf if known is None else float(known),
        outcome=outcome,
        rule=str(last.get("rule", "")),
        checks=record.checks,
        policy=trace[-1].policy if trace and unlisted is None else None,
        tally=_total([*parts, *([] if own is None else [own])]),
        versions=record.versions,
        outlook=None if outcome in _ENDS or problem is None else stored_outlook(record.settings, problem, trace),
        attempts=attempts,
        warnings=record.settings.doubts,
        source=os.fspath(path),
        created=record.created,
        seconds=result.get("seconds"),
        linearity=Linearity.from_dict(result["linearity"]) if "linearity" in result else None,
        unlisted=unlisted,
    )


def from_result(result: Result, model: str = "") -> Account:
    """Take a result from memory."""
    origin = result.origin
    if origin is None:
        raise InvalidInput("this result does not say where it comes from, so there is nothing to report on it.")
    last = result.checks[-1] if result.checks else None
    unlisted: Unlisted | None = None
    if isinstance(result, FeatureResult):
        own, vectors = result.policy.problem, None if last is None else last.policy
        told = Unlisted.described(
            own.description | {"functions": {"": True}}, vectors, origin.settings.units, result.to_dict()
        )
        unlisted = replace(told, problem=own)
    tally = None if unlisted is not None else origin.measured()
    if unlisted is None and tally is None and last is not None and last.proof is not None:
        tally = last.proof.tally
    return Account(
        name="",
        problem=origin.problem,
        settings=replace(origin.settings, origin=origin.settings.origin or {"model": model}),
        samples=result.samples,
        rounds=result.rounds,
        certified=result.certified,
        epsilon=result.epsilon,
        outcome=str(result.outcome),
        rule=result.rule,
        checks=[check.to_dict() for check in result.checks],
        policy=None if last is None or unlisted is not None else last.policy,
        tally=tally,
        versions=versions(),
        outlook=result.outlook,
        attempts=origin.attempts(),
        warnings=result.warnings,
        source="" if origin.store is None else os.fspath(origin.store),
        seconds=result.seconds,
        linearity=result.linearity,
        unlisted=unlisted,
    )


def from_certificate(text: str, path: str) -> Account:
    """Read and check a certificate."""
    document = parse(text)
    verification = verify_text(text)
    claim, run, stated = document.child("claim"), document.child("run"), document.child("problem")
    if not verification.valid:
        raise InvalidInput(f"{path} is {verification} No page is made of a certificate that does not hold.")
    problem: Any = None
    if not stated.has("description"):
        features = stated.array("features", "f", (None, None, None))
        problem = Problem(
            features,
            mask=stated.array("mask", "b", features.shape[:2]) if stated.has("mask") else None,
            discount=stated.fields["discount"],
            horizon=stated.fields["horizon"],
        )
    units = Units(
        claim.number("reward_scale", 1e-300, 1e300),
        claim.number("reward_offset", -1e300, 1e300),
        reward_bias=claim.number("reward_bias", 0.0, 1e300) if claim.has("reward_bias") else 0.0,
        **_names(stated.fields.get("labels")),
    )
    unlisted: Unlisted | None = None
    if problem is None:
        described: Any = stated.child("description").fields
        unlisted = Unlisted.described(described, claim.array("vectors", "f", (2, None, None)), units, {})
    return Account(
        name="",
        problem=problem,
        settings=Settings(
            claim.number("asked_epsilon", 0.0, 1e300),
            claim.number("delta", 0.0, 1.0),
            run.text("algorithm"),
            run.child("parameters").fields,
            run.whole("seed", 0, 10**30),
            units=units,
        ),
        samples=verification.samples,
        rounds=run.whole("rounds", 0),
        certified=verification.missed_epsilon is None,
        epsilon=verification.epsilon,
        outcome=str(Outcome.CERTIFIED) if verification.missed_epsilon is None else "ended early",
        rule=verification.rule,
        checks=[],
        policy=None if problem is None else claim.array("policy", "i", (problem.stages, problem.states)),
        tally=None if problem is None else _certificate_tally(document, problem),
        versions={str(key): str(value) for key, value in run.child("versions").fields.items()},
        attempts=verification.attempts,
        warnings=tuple(run.texts("warnings")),
        source=path,
        verification=verification,
        unlisted=unlisted,
    )


def remembered_model(account: Account) -> LinearMDP | None:
    """Load the model that a study says it ran on, if it is still there and still the same."""
    try:
        mdp = load_model(account.model)
    except BestPolicyError:
        return None
    return mdp if mdp.fingerprint == account.settings.origin.get("fingerprint") else None


def _names(labels: Any) -> dict[str, Any]:
    """Names of states and actions in a certificate; they may be hostile."""
    known = labels if isinstance(labels, dict) else {}
    return {name: known[name] for name in ("states", "actions", "environment") if name in known}


def _total(parts: list[Tally]) -> Tally | None:
    """Sum of tallies, pairwise: few unions of large tables."""
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], start=parts[i]) for i in range(0, len(parts), 2)]
    return parts[0] if parts and parts[0].samples else None


def _certificate_tally(document: Node, problem: Problem) -> Tally | None:
    """Samples of a certificate that was found valid; None if it lists them in another way (Theorems U and O)."""
    proof = document.child("proof")
    samples = proof.child("samples") if proof.has("samples") else None
    if samples is None or not (samples.has("pairs") and samples.has("squares")):
        return None
    pairs, cells = samples.array("pairs", "i", (None,)), samples.array("cells", "i", (None,))
    shape = (problem.stages, len(pairs), problem.states)
    counts, rewards = np.zeros(shape, np.int64), np.zeros(shape)
    counts.reshape(-1)[cells] = samples.array("counts", "i", (len(cells),))
    rewards.reshape(-1)[cells] = samples.array("rewards", "f", (len(cells),))
    return Tally(pairs, counts, rewards, samples.array("squares", "f", shape[:2]))
