"""What is known of a study, from wherever it is kept: a file of studies, a certificate, or a result in memory."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any

import numpy as np
import scipy

from bestpolicy import instances
from bestpolicy._version import __version__
from bestpolicy.algorithms import ALGORITHMS, make_algorithm
from bestpolicy.certificate import count_attempts
from bestpolicy.errors import BestPolicyError, InvalidInput
from bestpolicy.estimation import Tally
from bestpolicy.mdp import LinearMDP
from bestpolicy.problem import IntArray, Problem
from bestpolicy.report.figures.states import Grid
from bestpolicy.store import Store
from bestpolicy.study import Outcome, Result
from bestpolicy.verify import Verification, verify_text
from bestpolicy.verify.reading import Node, parse


@dataclass(frozen=True, eq=False)
class Account:
    """All that a page tells of a study.

    Attributes
    ----------
    name : str
        Of the study; may be hostile.
    problem : Problem
    settings : dict
        As `Study.settings` has them: epsilon, delta, algorithm, parameters, seed, origin, reward_scale, …
    samples, rounds : int
    certified : bool
        Whether what was asked is certified.
    epsilon : float
        What is certified; inf if nothing.
    outcome : str
    explanation, rule : str
    checks : list of dict
        The trace; empty if it is not known.
    policy : int array (stages, S), optional
        The one that the certificate is about, if it is known.
    tally : Tally, optional
        The samples, those from elsewhere included.
    versions : dict
    attempts : int
        Studies of the same problem in the same file.
    warnings : tuple of str
    source : str
        Path of the file, or empty.
    verification : Verification, optional
        Of a certificate.
    created : str
    seconds : float, optional
    """

    name: str
    problem: Problem
    settings: dict[str, Any]
    samples: int
    rounds: int
    certified: bool
    epsilon: float
    outcome: str
    explanation: str
    rule: str
    checks: list[dict[str, Any]]
    policy: IntArray | None
    tally: Tally | None
    versions: dict[str, str]
    attempts: int = 1
    warnings: tuple[str, ...] = ()
    source: str = ""
    verification: Verification | None = None
    created: str = ""
    seconds: float | None = None

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.outcome != Outcome.RUNNING

    @property
    def model(self) -> str:
        """What the study remembers its model as; empty if nothing."""
        return str(self.settings.get("origin", {}).get("model", ""))

    @property
    def forecast(self) -> float | None:
        """Simulator calls that the whole run should need, if that can be said."""
        settings = self.settings
        if not self.checks or self.certified or settings["algorithm"] not in ALGORITHMS:
            return None
        last, scale = self.checks[-1], settings.get("reward_scale", 1.0)
        gap = inf if last["gap"] is None else last["gap"] / scale
        algorithm = make_algorithm(settings["algorithm"], settings["parameters"])
        needed = algorithm.predicted_samples(self.problem, gap, settings["epsilon"] / scale, settings["delta"])
        statistic, threshold = last["statistic"] or 0.0, last["threshold"] or inf
        if isnan(needed) and 0 < statistic < threshold < inf:
            needed = last["samples"] * (threshold / statistic) ** 2  # widths shrink like the root of the samples
        return needed if 0 < needed < inf else None


def from_store(path: str | os.PathLike[str], name: str | None = None) -> Account:
    """Read a study from a file of studies; it may still be running."""
    with Store(path) as store:
        study = store.find(name)
        record, problem = store.read(study), store.problem(study)
        parts = [tally for _, _, tally in store.answers(study)]
        own = store.own_data(study)
        prints = [store.read(store.find(other)).fingerprint for other in store.names()]
    ended = record.result is not None and record.result["samples"] >= record.samples
    result = record.result if ended and record.result is not None else {}
    last = record.checks[-1] if record.checks else {}
    known = last.get("epsilon")
    account = Account(
        name=record.name,
        problem=problem,
        settings=record.settings,
        samples=record.samples,
        rounds=record.samples // problem.stages,
        certified=bool(result.get("certified", False)),
        epsilon=inf if known is None else float(known),
        outcome=str(result.get("outcome", Outcome.RUNNING)),
        explanation=str(result.get("explanation", "")),
        rule=str(result.get("rule", last.get("rule", ""))),
        checks=record.checks,
        policy=np.array(result["policy"], dtype=np.int64).reshape(problem.stages, -1) if "policy" in result else None,
        tally=_total([*parts, *([] if own is None else [own])]),
        versions=record.versions,
        attempts=max(1, prints.count(record.fingerprint)),
        warnings=tuple(result.get("warnings", ())),
        source=os.fspath(path),
        created=record.created,
        seconds=result.get("seconds"),
    )
    return account if record.checks else replace(account, policy=None)


def from_result(result: Result, model: str = "") -> Account:
    """Take a result from memory; of its samples only those that prove something are known."""
    origin = result.origin
    if origin is None:
        raise InvalidInput("this result does not say where it comes from, so there is nothing to report on it.")
    last = result.checks[-1] if result.checks else None
    proof = (last.proof if last else None) or {}
    tally = proof.get("tally")
    if tally is None and "evidence" in proof:
        tally = proof["evidence"].tally
    return Account(
        name="",
        problem=origin.problem,
        settings=origin.settings | {"origin": origin.settings["origin"] or {"model": model}},
        samples=result.samples,
        rounds=result.rounds,
        certified=result.certified,
        epsilon=result.epsilon,
        outcome=str(result.outcome),
        explanation=result.explanation,
        rule=result.rule,
        checks=[check.to_dict() for check in result.checks],
        policy=None if last is None else last.policy,
        tally=tally,
        versions=_versions(),
        attempts=count_attempts(origin),
        warnings=result.warnings,
        source="" if origin.store is None else os.fspath(origin.store),
        seconds=result.seconds,
    )


def from_certificate(text: str, path: str) -> Account:
    """Read and check a certificate."""
    document = parse(text)
    verification = verify_text(text)
    claim, run, stated = document.child("claim"), document.child("run"), document.child("problem")
    features = stated.array("features", "f", (None, None, None))
    problem = Problem(
        features,
        mask=stated.array("mask", "b", features.shape[:2]) if stated.has("mask") else None,
        discount=stated.fields["discount"],
        horizon=stated.fields["horizon"],
    )
    if not verification.valid:
        raise InvalidInput(f"{path} is {verification} No page is made of a certificate that does not hold.")
    versions = run.child("versions").fields
    return Account(
        name="",
        problem=problem,
        settings={
            "epsilon": claim.number("asked_epsilon", 0.0, 1e300),
            "delta": claim.number("delta", 0.0, 1.0),
            "algorithm": run.text("algorithm"),
            "parameters": run.child("parameters").fields,
            "seed": run.whole("seed", 0, 10**30),
            "reward_scale": claim.number("reward_scale", 1e-300, 1e300),
        },
        samples=verification.samples,
        rounds=run.whole("rounds", 0),
        certified=claim.fields.get("asked_was_certified") is True,
        epsilon=verification.epsilon,
        outcome=str(Outcome.CERTIFIED) if claim.fields.get("asked_was_certified") is True else "ended early",
        explanation="",
        rule=claim.text("rule"),
        checks=[],
        policy=claim.array("policy", "i", (problem.stages, problem.states)),
        tally=_certificate_tally(document, problem),
        versions={str(key): str(value) for key, value in versions.items()},
        attempts=verification.attempts,
        warnings=tuple(run.texts("warnings")),
        source=path,
        verification=verification,
    )


def remembered_model(account: Account) -> LinearMDP | None:
    """Load the model that a study says it ran on, if it is still there and still the same."""
    origin = account.settings.get("origin", {})
    name = account.model
    try:
        mdp = LinearMDP.load(name) if name.endswith(".npz") else instances.load(name)
    except BestPolicyError:
        return None
    return mdp if mdp.fingerprint == origin.get("fingerprint") else None


def find_grid(problem: Problem, model: str) -> Grid | None:
    """Lay out the states of those models that are known to be grids."""
    if problem.actions != 4:
        return None
    grids = {n.lower() for each in instances.catalogue() if each.construct is instances.grid for n in _names(each)}
    side = int(np.sqrt(problem.states))
    if model.lower() in grids and side * side == problem.states:
        return Grid(side, side, "↑↓←→")
    if "FrozenLake" in model and side * side in (problem.states, problem.states - 1):
        return Grid(side, side, "←↓→↑")
    if "CliffWalking" in model and problem.states in (48, 49):
        return Grid(4, 12, "↑→↓←")
    return None


def _names(instance: Any) -> list[str]:
    return [name for name in (instance.name, instance.alias) if name]


def _total(parts: list[Tally]) -> Tally | None:
    """Sum of tallies, pairwise: few unions of large tables."""
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], start=parts[i]) for i in range(0, len(parts), 2)]
    return parts[0] if parts and parts[0].samples else None


def _certificate_tally(document: Node, problem: Problem) -> Tally | None:
    """Samples of a certificate that was found valid."""
    proof = document.child("proof")
    if "samples" not in proof.fields:
        return None
    samples = proof.child("samples")
    pairs, cells = samples.array("pairs", "i", (None,)), samples.array("cells", "i", (None,))
    shape = (problem.stages, len(pairs), problem.states)
    counts, rewards = np.zeros(shape, np.int64), np.zeros(shape)
    counts.reshape(-1)[cells] = samples.array("counts", "i", (len(cells),))
    rewards.reshape(-1)[cells] = samples.array("rewards", "f", (len(cells),))
    return Tally(pairs, counts, rewards, samples.array("squares", "f", shape[:2]))


def _versions() -> dict[str, str]:
    own = {"bestpolicy": __version__, "numpy": np.__version__, "scipy": scipy.__version__}
    return own | {"python": sys.version.split()[0]}
