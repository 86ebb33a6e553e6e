"""Compare algorithms: many of them, on many instances, over many seeds, one tidy table.

>>> import bestpolicy as bp
>>> found = bp.compare(["two-state"], ["gss", "tight", "gss-e"], epsilon=0.2, delta=0.1, runs=2, lower_bounds=False)
>>> found
Comparison(2 algorithms on 1 instances: 4 runs, 0 failures, 1 skipped)
>>> [(entry.algorithm, entry.certified, entry.ratio_to_best) for entry in found.summary if entry.algorithm == "tight"]
[('tight', 2, 1.0)]

Run i of every algorithm has the seed ``seed + i``: runs are paired, and the same whatever the number of workers. What
was finished is kept when the comparison is interrupted, and in a file if one is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import fields, is_dataclass
from math import isfinite
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.arrays import as_floats
from bestpolicy._numerics.inputs import file_path, function, number, of_type, whole
from bestpolicy._version import __version__
from bestpolicy.algorithms import ALGORITHMS, Algorithm, require_algorithm
from bestpolicy.comparison.comparison import (
    Comparison,
    InstanceBound,
    InstancePlugIn,
    Skipped,
    Summary,
    Trial,
    up_to_date,
)
from bestpolicy.comparison.work import (
    UNFIT,
    Bound,
    Price,
    Progress,
    Run,
    Start,
    Task,
    carry_out,
    in_words,
    parameters,
)
from bestpolicy.errors import InvalidInput, did_you_mean
from bestpolicy.instances.loading import load_model
from bestpolicy.mdp import LinearMDP

Model = str | PathLike[str] | LinearMDP
Thing = TypeVar("Thing")

_LONGEST_VALUE = 20
_MOST_RUNS = 10**6  # of an algorithm on an instance


def compare(
    models: Model | Sequence[Model],
    algorithms: str | Algorithm | Sequence[str | Algorithm] = "all",
    *,
    epsilon: float,
    delta: float,
    runs: int,
    seed: int = 0,
    max_samples: int | None = None,
    max_seconds: float | None = None,
    start: int | ArrayLike = 0,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | None = None,
    lower_bounds: bool = True,
    bound_seconds: float = 20.0,
    price: bool = False,
    price_seconds: float = 20.0,
    progress: Progress | None = None,
) -> Comparison:
    """Run algorithms on models and compare what they needed with what they promised.

    Parameters
    ----------
    models : str, path or LinearMDP, or several
        Names of instances, ``.npz`` files, or models. The truth must be known, to say how good the policies are.
    algorithms : str or Algorithm, or several
        "all" for every algorithm of bestpolicy. Those that cannot run on an instance are listed in `skipped`.
    epsilon, delta : float
        What to ask of each run.
    runs : int
        Runs of each algorithm on each instance, with the seeds ``seed``, ``seed + 1``, …
    max_samples, max_seconds : optional
        Budgets of a single run. With `max_seconds` the results depend on the machine.
    start : int or array (S,)
        Where the episodes begin of algorithms that follow policies: a state, or a distribution over states. Their
        claims and losses are about it alone; those of all others are about every state.
    executor : Executor, optional
        Where to run, such as Dask's ``Client.get_executor()``; the runs are sent there as wholes.
    workers : int, optional
        Or on this many processes of this machine. In this process by default.
    store : path, optional
        SQLite file in which finished runs survive: the same call again does only what is missing. A run is known by
        its model, its algorithm with all parameters, ε, δ, seed, budgets and the version of bestpolicy.
    lower_bounds : bool
        Also bound the samples that any algorithm needs.
    bound_seconds : float
        How long to look for that bound on an instance, at most.
    price : bool
        Also find out what the uncertified plug-in needs (`bestpolicy.bounds.plug_in_samples`, with `seed`): the price
        of certainty is the ratio to it.
    price_seconds : float
        How long that may take on an instance, at most.
    progress : callable, optional
        Called as ``progress(done, total, what)`` at the beginning and after each finished piece of work.

    Returns
    -------
    Comparison
        After Ctrl-C with the runs that were finished by then.
    """
    epsilon, delta = number("epsilon", epsilon), number("delta", delta, above=0, below=1)
    runs, seed = whole("runs", runs, 1), whole("seed", seed, 0)
    if runs > _MOST_RUNS:
        raise InvalidInput(f"runs must be at most {_MOST_RUNS:,}. Got {runs:,} instead.")
    max_samples = None if max_samples is None else whole("max_samples", max_samples, 1)
    max_seconds = None if max_seconds is None else number("max_seconds", max_seconds, above=0)
    workers = None if workers is None else whole("workers", workers, 1)
    bound_seconds = number("bound_seconds", bound_seconds, above=0)
    price_seconds = number("price_seconds", price_seconds, above=0)
    store = None if store is None else file_path("store", store)
    if executor is not None:
        of_type("executor", executor, Executor)
    if progress is not None:
        function("progress", progress, "progress(done, total, what)")
    of_type("lower_bounds", lower_bounds, bool)
    if executor is not None and workers is not None:
        raise InvalidInput("give an executor or a number of workers, not both.")
    begins = _start(start)
    mdps = _by_name([_load(model) for model in _several(models)], lambda mdp: mdp.name, "models")
    methods = _by_name(_algorithms(algorithms), label, "algorithms")

    skipped: dict[tuple[str, str], str] = {}
    tasks: list[Task] = []
    for instance, mdp in mdps.items():
        for name, method in methods.items():
            reason = _why_not(method, mdp)
            if reason:
                skipped[instance, name] = reason
                continue
            tasks += [
                Run(instance, name, mdp, method, epsilon, delta, n, max_samples, max_seconds, begins)
                for n in range(seed, seed + runs)
            ]
    if lower_bounds:  # last: they cannot hold up a run
        tasks += [Bound(instance, mdp, epsilon, delta, bound_seconds) for instance, mdp in mdps.items()]

    if price:
        tasks += [Price(instance, mdp, epsilon, seed, price_seconds) for instance, mdp in mdps.items()]

    records, interrupted = carry_out(tasks, executor, workers, store, progress)

    rows, bounds, plug_in = [], [], []
    for task in tasks:
        record = records.get(task.key)
        if record is None:
            continue
        if isinstance(task, Bound):
            bounds.append(InstanceBound(task.instance, **record))
        elif isinstance(task, Price):
            plug_in.append(InstancePlugIn(task.instance, **record))
        elif "cannot" in record:
            skipped.setdefault((task.instance, task.name), record["cannot"])
        else:
            rows.append(Trial(task.name, task.instance, task.seed, task.epsilon, task.delta, **up_to_date(record)))
    settings = {
        "asked_epsilon": epsilon,
        "delta": delta,
        "runs": runs,
        "seed": seed,
        "max_samples": max_samples,
        "max_seconds": max_seconds,
        "start": begins if isinstance(begins, int) else list(begins),
        "algorithms": [{"label": name, "name": m.name, "parameters": parameters(m)} for name, m in methods.items()],
        "instances": [describe(instance, mdp) for instance, mdp in mdps.items()],
        "interrupted": interrupted,
        "version": __version__,
    }
    left_out = (Skipped(name, instance, reason) for (instance, name), reason in skipped.items())
    return Comparison(settings, tuple(rows), tuple(left_out), tuple(bounds), tuple(plug_in))


def _why_not(method: Algorithm, mdp: LinearMDP) -> str:
    """Say why an algorithm cannot run on a model, or nothing; one that cannot even say so is left out alone."""
    try:
        return method.unsuitable(mdp.problem)
    except UNFIT as error:
        return in_words(error)


def label(algorithm: Algorithm) -> str:
    """Name of an algorithm with the parameters that differ from its defaults: ``gss(check_ratio=1.5)``."""
    if not is_dataclass(algorithm):
        return algorithm.name
    changed = []
    for field in fields(algorithm):
        value = getattr(algorithm, field.name)
        if value != field.default:
            text = repr(value)
            changed.append(f"{field.name}={text if len(text) <= _LONGEST_VALUE else '…'}")
    return f"{algorithm.name}({', '.join(changed)})" if changed else algorithm.name


def _start(start: Any) -> Start:
    if np.ndim(start) == 0:
        return whole("start", start, 0)
    chances = as_floats("start", start, ("states",))
    if not ((chances >= 0).all() and abs(chances.sum() - 1) < 1e-9):
        raise InvalidInput("start must be a state, or a distribution over states with sum 1.")
    return tuple(chances.tolist())


def _load(model: Model) -> LinearMDP:
    if isinstance(model, LinearMDP):
        mdp = model
    elif isinstance(model, str | PathLike):
        mdp = load_model(model)
    else:
        raise InvalidInput(
            f"models must be names of instances, .npz files or LinearMDPs. Got {type(model).__name__}; of a simulator "
            "without a known model the loss of a policy cannot be told."
        )
    _ = mdp.plan  # solved once here, sent along to the workers
    return mdp


def _algorithms(algorithms: str | Algorithm | Sequence[str | Algorithm]) -> list[Algorithm]:
    if isinstance(algorithms, str) and algorithms == "all":
        return [kind() for kind in ALGORITHMS.values()]
    chosen: list[Algorithm] = []
    for algorithm in _several(algorithms):
        if isinstance(algorithm, str):
            if algorithm not in ALGORITHMS:
                hint = did_you_mean(algorithm, ALGORITHMS)
                raise InvalidInput(f"unknown algorithm {algorithm!r}. Known: {', '.join(ALGORITHMS)}.{hint}")
            chosen.append(ALGORITHMS[algorithm]())
        else:
            chosen.append(require_algorithm(algorithm))
    return chosen


def _several(things: Any) -> list[Any]:
    try:
        several = [things] if isinstance(things, str | PathLike) or not isinstance(things, Iterable) else list(things)
    except TypeError:  # an array without axes
        several = [things]
    if not several:
        raise InvalidInput("there is nothing to compare: give at least one model and one algorithm.")
    return several


def _by_name(things: Iterable[Thing], name: Callable[[Thing], str], what: str) -> dict[str, Thing]:
    named: dict[str, Thing] = {}
    for thing in things:
        if name(thing) in named:
            raise InvalidInput(f"two {what} are called {name(thing)!r}. Give each once, and different names.")
        named[name(thing)] = thing
    return named


def describe(instance: str, mdp: LinearMDP) -> dict[str, Any]:
    """Name, sizes and gap of a model, ready for JSON."""
    problem = mdp.problem
    return {
        "name": instance,
        "fingerprint": mdp.fingerprint,
        "states": problem.states,
        "actions": problem.actions,
        "dimension": problem.dimension,
        "discount": problem.discount,
        "horizon": problem.horizon,
        "gap": mdp.gap if isfinite(mdp.gap) else None,
    }


__all__ = ["Comparison", "InstanceBound", "InstancePlugIn", "Skipped", "Summary", "Trial", "compare", "label"]
