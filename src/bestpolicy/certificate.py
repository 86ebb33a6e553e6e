"""Certificates: what was certified, with all that someone else needs to check it.

A certificate is one JSON file:

- ``problem``: features (of a large table only its size), mask, discount or horizon, ends and what they pay, if there
  are any, and their fingerprint;
- ``claim``: the policy, the certified and the asked ε, δ, the theorem; the start, if the claim is about one only; what
  a step may cost because rewards were truncated, if they were;
- ``proof``: the sums over samples that the theorem looks at, the coordinates and the design of the run, and what had to
  be fixed before the samples (the prior; for Theorems P and F the function V; which share of δ it may spend). For
  Theorem U the lag as it was fixed, the samples since, and after how many units of them the look was; for Theorem O
  limits of what rewards sum to, whether steps are alike, all episodes, the policy's own among them, and the
  squares of their returns;
- ``run``: algorithm, parameters, seed, samples, versions; ``attempts``, the number of studies of this problem that the
  store held: with several, δ holds for each of them and not for the best of them; and, if the study keeps one, the
  ``chain`` of hashes over all that its file holds: ``root``, ``head`` and the number of ``rows``;
- ``assumptions``: what the guarantee rests on, and which of it was checked;
- ``sha256`` of all that, in canonical form.

Arrays are exact: bytes in base64, never pickled. A certificate is checked (`bestpolicy.verify`) before it is written,
so a file that does not hold is never handed out.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from bestpolicy._version import versions
from bestpolicy.design import g_optimal_design, whiten
from bestpolicy.errors import BestPolicyError, InvalidInput
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.problem.files import write_file
from bestpolicy.problem.units import Units
from bestpolicy.samples import Tally
from bestpolicy.stopping.evidence import Evidence
from bestpolicy.stopping.rule import Proof
from bestpolicy.verification import verify_text
from bestpolicy.verification.case import Case
from bestpolicy.verification.claim import CHECKED, LINEAR, reached, rule_name
from bestpolicy.verification.protocol import THEOREMS
from bestpolicy.verification.reading import FORMAT, VERSION, digest
from bestpolicy.verification.tables import FIELDS

if TYPE_CHECKING:
    from bestpolicy.study import Result
    from bestpolicy.study.linearity import Linearity
    from bestpolicy.study.settings import Settings

_PLAIN, _WITH_ENDS, _WITH_BIAS = 2, 3, 4  # versions that programs with less of an idea of problems can read
_NEWEST = ("I", "UD")  # theorems that need the newest
_LARGE = 2**20  # features of a table from which on only its size is written


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a result comes from.

    Attributes
    ----------
    problem : Problem
    settings : Settings
    store : path, optional
        The file of studies that it is in.
    attempts : callable
        Returns the number of studies of the same problem in that file by now, this one included; 1 without a file.
    own_samples : int
        Number of samples that came from elsewhere.
    prove : callable, optional
        Returns what proves the last check, where that is not kept: of a study that had ended when it was resumed.
    chain : dict, optional
        Root, head and number of rows of the study's journal in that file.
    measured : callable
        Returns all samples together; None if there are none.
    """

    problem: Problem
    settings: Settings
    store: str | os.PathLike[str] | None
    attempts: Callable[[], int]
    own_samples: int = 0
    prove: Callable[[], Proof | None] | None = None
    chain: dict[str, Any] | None = None
    measured: Callable[[], Tally | None] = lambda: None


def write_certificate(result: Result, path: str | os.PathLike[str]) -> None:
    """Write the certificate of a result.

    Raises
    ------
    InvalidInput
        If nothing is certified.
    BestPolicyError
        If the certificate does not stand its own check; nothing is written then.
    """
    text = _text(make_certificate(result))
    verification = verify_text(text, limit_gb=inf)  # this file is our own
    own = verification.recomputed_epsilon
    if (
        own is not None
        and own > result.epsilon
        and not verification.valid
        and verification.theorem in ("U", "U-E", "UD")
    ):
        text = _text(
            make_certificate(result, own)
        )  # two programs differ in when they stop refining: state what both say
        verification = verify_text(text, limit_gb=inf)
    if not verification.valid:
        raise BestPolicyError(f"no certificate was written, because it does not stand its own check: {verification}")
    write_file(path, text.encode())


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def make_certificate(result: Result, epsilon: float | None = None) -> dict[str, Any]:
    """Return the document of a result, ready for JSON; it claims `epsilon` if that is given and larger."""
    check, origin = result.checks[-1] if result.checks else None, result.origin
    if check is None or not result.epsilon < inf:
        raise InvalidInput(
            "nothing is certified yet, so there is no certificate to save. Let the run go on (a larger budget, or "
            "resume), or ask for a larger epsilon."
        )
    proof = check.proof
    if proof is None and origin is not None and origin.prove is not None:
        proof = origin.prove()
    if proof is None or origin is None:
        raise InvalidInput(
            f"algorithm {result.algorithm!r} does not say what proves its answer, so there is no certificate to save. "
            "Use gss, gss-e, tight, adaptive, sharp or forward."
        )
    stated = result.epsilon if epsilon is None else max(result.epsilon, epsilon)
    if isinstance(origin.problem, FeatureProblem):
        document = _hull_document(result, origin, proof, stated)
        return document | {"sha256": digest(document)}
    problem, settings, theorem = origin.problem, origin.settings, proof.theorem
    document = {
        "format": FORMAT,
        "version": VERSION if theorem in _NEWEST else _version(problem, settings.units),
        "problem": {
            **_features(problem),
            "mask": None if problem.mask.all() else _encoded(problem.mask, "|b1"),
            "discount": problem.discount,
            "horizon": problem.horizon,
            **_ends(problem),
            "fingerprint": problem.fingerprint,
            "labels": _labels(settings.units, problem),
        },
        "claim": {
            "policy": _encoded(check.policy, "<i8"),
            "epsilon": stated,
            "asked_epsilon": result.asked_epsilon,
            "asked_was_certified": reached(stated, result.asked_epsilon),
            "delta": result.delta,
            "reward_scale": settings.units.reward_scale,
            "reward_offset": settings.units.reward_offset,
            "theorem": theorem,
            "rule": rule_name(theorem, problem.horizon is not None, stated),
            **_start(settings.start if theorem in ("U", "O") else None, problem.states),
            **({"reward_bias": settings.units.reward_bias} if settings.units.reward_bias else {}),
        },
        "proof": _proof(problem, proof, settings.parameters),
        "run": _run(result, origin),
        "assumptions": _assumptions(proof, settings.units.reward_scale, problem, result.linearity),
    }
    return document | {"sha256": digest(document)}


def _run(result: Result, origin: Origin) -> dict[str, Any]:
    return {
        "algorithm": result.algorithm,
        "parameters": {name: _finite(value) for name, value in origin.settings.parameters.items()},
        "seed": result.seed,
        "samples": result.samples,
        "own_data": origin.own_samples,
        "rounds": result.rounds,
        "attempts": origin.attempts(),
        "warnings": list(result.warnings),
        "versions": versions(),
        **({} if origin.chain is None else {"chain": origin.chain}),
    }


def _hull_document(result: Result, origin: Origin, proof: Proof, epsilon: float) -> dict[str, Any]:
    """Return the document of a result about states that nobody lists, without its checksum."""
    problem: Any = origin.problem
    units, fixed, fresh = origin.settings.units, proof.fixed, proof.fresh
    if proof.theorem not in ("F±", "H") or fixed is None or fresh is None:
        raise InvalidInput("there is nothing to decide, so there is no certificate to save.")
    combined = problem.coefficients is not None
    pair_features = problem.feature_map(*problem.feature_map.pairs).toarray() if combined else None
    assumed = [
        "the kernel and mean rewards (without their known part) are linear in the features",
        "features are convex combinations in every state; limits of known rewards and remainders are as stated",
        "samples are independent given the sampled pairs",
        f"lag {fixed['number']} was chosen from the first {fixed['started']:,} samples only",
        "δ and how lags share it were fixed before sampling",
    ]
    return {
        "format": FORMAT,
        "version": _PLAIN,
        "problem": {
            "description": problem.description,
            "fingerprint": problem.fingerprint,
            "dimension": problem.dimension,
            "places": problem.places,
            "actions": problem.actions,
            "discount": problem.discount,
            "horizon": problem.horizon,
            "best": None if problem.best_limits is None else _encoded(problem.best_limits, "<f8"),
            "remainder": _encoded(problem.remainder_limits, "<f8"),
            "coefficients": _encoded(problem.coefficients, "<f8") if combined else None,
            "pair_features": _encoded(pair_features, "<f8") if combined else None,
            "labels": None,
        },
        "claim": {
            "vectors": _encoded(result.checks[-1].policy, "<f8"),
            "epsilon": epsilon,
            "asked_epsilon": result.asked_epsilon,
            "asked_was_certified": reached(epsilon, result.asked_epsilon),
            "delta": result.delta,
            "reward_scale": units.reward_scale,
            "reward_offset": units.reward_offset,
            "theorem": proof.theorem,
            "rule": rule_name(proof.theorem, problem.horizon is not None, epsilon),
        },
        "proof": _evidence(fixed, fresh) if proof.theorem == "F±" else _evidence_of_gaps(fixed, fresh),
        "run": _run(result, origin),
        "assumptions": [{"assumption": text, "checked": False} for text in assumed],
    }


def _evidence(fixed: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """What proves a claim by Theorem F±."""
    lag = {name: fixed[name] for name in ("number", "started", "delta")}
    arrays = {name: fixed["bets"][name] for name in ("vectors", "low", "high", "stakes", "grid")}
    arrays |= {"directions": fixed["stakes"], "centres": fixed["centres"]}
    return {
        "lag": lag
        | {name: _encoded(value, "<f8") for name, value in arrays.items()}
        | {"unit": _encoded(fixed["unit"], "<i8")},
        "counts": _encoded(fresh["counts"], "<i8"),
        **{name: _encoded(fresh[name], "<f8") for name in ("sums", "squares", "gains")},
        "candidate": fresh["candidate"],
    }


def _evidence_of_gaps(fixed: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """What proves a claim by Theorem H: numbers as they are, arrays encoded."""

    def written(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return _encoded(value, "<i8" if value.dtype.kind == "i" else "<f8")

    proof = {name: written(value) for name, value in fresh.items()}
    return {"lag": {name: written(value) for name, value in fixed.items()}, **proof}


def _version(problem: Problem, units: Units) -> int:
    """The oldest format that has all that is to be said."""
    return _WITH_BIAS if units.reward_bias else _WITH_ENDS if len(problem.ends) else _PLAIN


def _features(problem: Problem) -> dict[str, Any]:
    """The features; of a large table, in which every pair has a coordinate of its own, only its size."""
    states, actions = problem.mask.shape
    if problem.mask.size * problem.dimension >= _LARGE and problem.is_tabular:
        table = Case(
            np.zeros((states, actions, 0)),
            problem.mask,
            problem.discount,
            problem.horizon,
            ends=problem.ends,
            end_reward=problem.end_reward,
        )
        if table.fingerprint == problem.fingerprint:
            return {"tabular": {"states": states, "actions": actions}}
    return {"features": _encoded(problem.features, "<f8")}


def _ends(problem: Problem) -> dict[str, Any]:
    """The states in which the process is over, and what each step pays there; nothing if there are none."""
    if not len(problem.ends):
        return {}
    return {"ends": {"states": _encoded(problem.ends, "<i8"), "reward": problem.end_reward}}


def _start(start: int | tuple[float, ...] | str | None, states: int) -> dict[str, Any]:
    """The distribution over states that the claim is about; nothing if it is about every state."""
    if start is None or isinstance(start, str):
        return {}
    return {"start": _encoded(start if isinstance(start, tuple) else np.eye(1, states, start)[0], "<f8")}


def _table_proof(proof: Proof, states: int) -> dict[str, Any]:
    """Theorem U: what its lag has fixed, and the samples since."""
    fixed, fresh = proof.fixed, proof.fresh
    assert fixed is not None
    assert fresh is not None
    whole = ("unit", "looks", "pair", "successor", "reference")
    return {
        "lag": {name: fixed[name] for name in ("number", "started", "delta")}
        | {name: _encoded(fixed[name], "<i8" if name in whole else "<f8") for name in FIELDS if name != "delta"},
        "units": fresh["units"],
        "samples": {
            "cells": _encoded(fresh["pair"] * states + fresh["next_state"], "<i8"),
            "counts": _encoded(fresh["counts"], "<i8"),
            "rewards": _encoded(fresh["rewards"], "<f8"),
            "squares": _encoded(fresh["squares"], "<f8"),
        },
    }


def _episodes_proof(proof: Proof) -> dict[str, Any]:
    """Theorem O: what was known beforehand, all episodes, and the policy's own."""
    fixed, fresh = proof.fixed, proof.fresh
    assert fixed is not None
    assert fresh is not None
    own = fresh["own"]
    return {
        "limits": _encoded(fixed["limits"], "<f8"),
        "stationary": fixed["stationary"],
        "policy": {
            "number": fresh["number"],
            "squares": own.squared_returns,
            "forfeited": own.followed.forfeited,
            "samples": _visits(own),
        },
        "samples": _visits(fresh["tally"]),
    }


def _visits(tally: Tally) -> dict[str, Any]:
    """The steps of episodes that have an outcome, and those that broke one off."""
    return {
        "pairs": _encoded(tally.pairs, "<i8"),
        "cells": _encoded(tally.cells, "<i8"),
        "counts": _encoded(tally.counts, "<i8"),
        "rewards": _encoded(tally.rewards, "<f8"),
        "broken": _encoded(tally.followed.broken, "<i8"),
    }


def _dense_proof(proof: Proof) -> dict[str, Any]:
    """Theorems I and UD: what their lag has fixed, and each batch since with what was fixed before it."""
    assert proof.fixed is not None
    assert proof.fresh is not None
    whole = ("favourite", "drawn", "planned", "cells", "counts")

    def written(fields: dict[str, Any]) -> dict[str, Any]:
        found = dict(fields)
        for name, value in fields.items():
            if isinstance(value, dict):
                found[name] = written(value)
            elif isinstance(value, np.ndarray):
                found[name] = _encoded(value, "<i8" if name in whole else "<f8")
        return found

    return {"lag": written(proof.fixed), "batches": [written(batch) for batch in proof.fresh["batches"]]}


def _proof(problem: Problem, proof: Proof, parameters: dict[str, Any]) -> dict[str, Any]:
    if proof.theorem == "no choice":
        return {}
    if proof.theorem == "U":
        return _table_proof(proof, problem.states)
    if proof.theorem == "O":
        return _episodes_proof(proof)
    features, tolerance = problem.pair_features, parameters.get("design_tolerance", 1e-3)
    design = proof.design or g_optimal_design(features, tolerance=tolerance)
    transform = whiten(features, design).transform if proof.transform is None else proof.transform
    shared = {
        "transform": _encoded(transform, "<f8"),
        "design_pairs": _encoded(problem.pairs[design.indices], "<i8"),
        "design_weights": _encoded(design.weights, "<f8"),
        "samples": _samples(proof),
    }
    if proof.past is None or proof.past.prior is None:
        return shared
    past, prior, span = proof.past, proof.past.prior, proof.value_span
    shared["prior"] = {
        "base": _encoded(prior.base, "<f8"),
        "capacity": prior.capacity,
        "shares": _encoded(prior.shares, "<f8"),
    }
    if proof.fixed is not None:
        return shared | _dense_proof(proof)
    return shared | {
        "lag_share": parameters.get("lag_share", 0.0),
        "lag": {"number": past.number, "started": past.started} if past.number else None,
        "value_span": span if isfinite(span) else None,
        "values": _encoded(past.values, "<f8") if proof.theorem == "F" else None,
    }


def _samples(proof: Proof) -> dict[str, Any]:
    """Sums over samples; of the next states only those that occurred."""
    tally, evidence, weighted = proof.tally, proof.samples, None
    assert tally is not None
    if isinstance(evidence, Evidence) and not evidence.unweighted:
        weighted = {
            "weights": _encoded(evidence.inverse_weights, "<f8"),
            "weights_squared": _encoded(evidence.inverse_squares, "<f8"),
            "rewards": _encoded(evidence.rewards, "<f8"),
            "counts": _encoded(evidence.following.reshape(-1)[tally.cells], "<f8"),
        }
    return {
        "pairs": _encoded(tally.pairs, "<i8"),
        "cells": _encoded(tally.cells, "<i8"),
        "counts": _encoded(tally.counts, "<i8"),
        "rewards": _encoded(tally.rewards, "<f8"),
        "squares": _encoded(tally.squared_rewards, "<f8"),
        "weighted": weighted,
    }


def _assumptions(
    proof: Proof, reward_scale: float, problem: Problem, linearity: Linearity | None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"assumption": assumption, "checked": True} for assumption in CHECKED]
    if not problem.is_tabular:  # every table is linear in one-hot features
        tested = "" if linearity is None else f", {linearity.words}"
        found.append({"assumption": LINEAR + tested, "checked": False})
    found.append({"assumption": "samples are independent given the sampled pairs", "checked": False})
    ends = len(problem.ends)
    if ends:
        found.append({"assumption": f"in {ends:,} of the states the process is over", "checked": False})
    if proof.theorem == "no choice":
        return found
    if proof.theorem == "O":
        return found + [{"assumption": text, "checked": False} for text in _known_of_episodes(proof)]
    if proof.fixed is not None:
        return found + [
            {"assumption": assumption, "checked": False}
            for assumption in (
                "δ and how lags share it were fixed before sampling",
                f"lag {proof.fixed['number']}, all that is said to be fixed, was chosen from the first "
                f"{proof.fixed['started']:,} samples only",
            )
        ]
    before = ["δ and the design were fixed before sampling"]
    if proof.theorem != "R":
        before += [
            "the list of pairs that might be sampled was fixed before sampling",
            "lag_share, and whether ε = 0 was asked, were fixed before sampling",
        ]
        if isinstance(proof.samples, Evidence) and not proof.samples.unweighted:
            before.append("the weights of the samples in the regression were fixed before the samples were drawn")
    if proof.past is not None and proof.past.number:
        chosen = f"from the first {proof.past.started:,} simulator calls only"
        before.append(f"{THEOREMS[proof.theorem].fixed} of lag {proof.past.number} were chosen {chosen}")
    if isfinite(proof.value_span) and proof.theorem == "T":
        before.append(f"optimal values differ by at most {proof.value_span * reward_scale:g} between states")
    return found + [{"assumption": assumption, "checked": False} for assumption in before]


def _known_of_episodes(proof: Proof) -> list[str]:
    """What Theorem O takes for granted."""
    assert proof.fixed is not None
    assert proof.fresh is not None
    known = [
        "δ was fixed before sampling",
        f"the policy was named as number {proof.fresh['number']}, before the episodes that count for its value, and "
        "all of its own since do",
    ]
    if proof.fixed["stationary"]:
        known.append("the environment behaves alike at every step")
    limits = proof.fixed["limits"]
    if (limits < np.arange(len(limits), 0, -1)).any():
        known.append(f"the rewards of an episode never sum to more than {float(limits[0]):g}, in units in [0, 1]")
    return known


def _encoded(array: Any, dtype: str) -> dict[str, Any]:
    own = np.ascontiguousarray(array, dtype=dtype)
    packed = base64.b64encode(zlib.compress(own.tobytes()))  # features are often mostly zeros
    return {"dtype": dtype, "shape": list(own.shape), "data": packed.decode("ascii")}


def _labels(units: Units, problem: Problem) -> dict[str, Any] | None:
    """Names of states and actions, and what rewards mean; None where nothing has a name."""
    known = {name: value for name, value in units.to_dict().items() if value and name != "reward_bias"}
    for name, number in (("states", problem.states), ("actions", problem.actions)):
        if len(known.get(name, [])) != number:  # names that do not fit mislead
            known.pop(name, None)
    return known if "states" in known or "actions" in known else None


def _finite(value: Any) -> Any:
    """Return a parameter as JSON can hold it: numbers that are not finite become text."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


__all__ = ["Origin"]
