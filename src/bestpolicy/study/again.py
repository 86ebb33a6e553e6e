"""The same call once more: go on with the study that its file holds."""

from __future__ import annotations

import json
import os
from math import inf
from typing import Any

from bestpolicy._numerics.inputs import file_path
from bestpolicy.algorithms import ALGORITHMS, choose_algorithm, make_algorithm
from bestpolicy.errors import InvalidInput
from bestpolicy.problem import FeatureProblem, Problem
from bestpolicy.samples import Tally
from bestpolicy.study.checked import settings_of
from bestpolicy.study.journal import Record, tally_to_bytes
from bestpolicy.study.settings import Settings
from bestpolicy.study.store import Store
from bestpolicy.study.study import Study


def resume_same(
    problem: Problem,
    *,
    store: Any,
    name: str,
    own_data: Tally | None,
    seed: int | None,
    calls_per_query: int | None,
    algorithm: Any,
    max_samples: int | None,
    linearity: float | None = None,
    **how: Any,
) -> Study | None:
    """Go on with the study of that name in the file, if there is one and it was begun by the same call.

    The parameters are those of `Study`. Where `seed`, `calls_per_query`, `algorithm` and `linearity` are not given, it
    is as the study in the file began. The budget is the one that is given now.
    """
    known = _record(file_path("store", store), name)
    if known is None:
        return None
    before, stored = known.settings, known.own_data
    named, why = choose_algorithm(algorithm, problem)
    # If it was not named now, it is as it began: the rule may have been another one then.
    began = bool(why) and before.algorithm in ALGORITHMS
    algorithm = make_algorithm(before.algorithm, before.parameters) if began else named
    asked, _ = settings_of(
        problem,
        algorithm=algorithm,
        seed=before.seed if seed is None else seed,
        calls_per_query=before.calls_per_query if calls_per_query is None else calls_per_query,
        max_samples=max_samples,
        linearity=before.linearity if linearity is None else linearity,
        **how,
    )
    same_data = own_data is None if stored is None else _bytes(own_data) == _bytes(stored)
    differ = _differences(before, asked) + ["own_data"] * (not same_data)
    if known.fingerprint != problem.fingerprint:
        differ.insert(0, "the problem (features, mask, discount or horizon)")
    if differ:
        raise InvalidInput(
            f"{os.fspath(store)} has a study named {name!r} that was begun with other settings: {'; '.join(differ)}. "
            "Give another name= or another store= to begin a new one, or the settings as they were to go on with it."
        )
    given = problem if isinstance(problem, FeatureProblem) else None
    return Study.resume(
        store, name, algorithm=algorithm, max_samples=inf if max_samples is None else max_samples, problem=given
    )


def _record(store: str, name: str) -> Record | None:
    """Return what the file says of a study, if it has it."""
    if not os.path.isfile(store) or not os.path.getsize(store):
        return None
    with Store(store) as reader:
        number = reader.names().get(name)
        return None if number is None else reader.read(number)


def _differences(before: Settings, asked: Settings) -> list[str]:
    """Name what decides the answer and is another one now."""
    names = (
        "asked_epsilon",
        "share",
        "delta",
        "algorithm",
        "parameters",
        "seed",
        "calls_per_query",
        "start",
        "linearity",
    )
    old, new = (json.loads(json.dumps({name: getattr(each, name) for name in names})) for each in (before, asked))
    found = [f"{name.removeprefix('asked_')} was {old[name]!r:.60}, not {new[name]!r:.60}" for name in names]
    differ = [said for name, said in zip(names, found, strict=True) if old[name] != new[name]]
    for name in ("reward_range", "reward_bias", "states", "actions"):
        if not _agree(getattr(before.units, name), getattr(asked.units, name)):
            differ.append(f"the {name.replace('_', ' ')} of the simulator")
    return differ


def _agree(before: Any, asked: Any) -> bool:
    """Whether these are the same; what has no name yet may get one: observations that are numbered as they appear."""
    if isinstance(before, list) and isinstance(asked, list) and len(before) == len(asked):
        return all(a == b or a is None or b is None for a, b in zip(before, asked, strict=True))
    return bool(before == asked)


def _bytes(tally: Tally | None) -> bytes:
    return b"" if tally is None else tally_to_bytes(tally)
