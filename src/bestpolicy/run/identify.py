"""The loop: from a simulator to a certified policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bestpolicy._numerics.inputs import function, number, whole
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import Algorithm
from bestpolicy.diagnostics import check_linearity, sample_for_diagnostics
from bestpolicy.errors import InvalidInput, SimulatorError
from bestpolicy.problem import Problem
from bestpolicy.problem.units import Units
from bestpolicy.run.measure import measure, simulating
from bestpolicy.run.workers import Crew, failed, with_study
from bestpolicy.samples import Tally
from bestpolicy.simulators import GenerativeModel
from bestpolicy.study import Outcome, Result, Study

CALLS_PER_QUERY = 100  # with workers: they are hired for calls that take long

logger = logging.getLogger(__name__)


def identify(
    model: GenerativeModel,
    *,
    epsilon: float,
    delta: float,
    algorithm: str | Algorithm | None = None,
    seed: int | None = None,
    max_samples: int | None = None,
    max_seconds: float | None = None,
    store: str | PathLike[str] | None = None,
    name: str = "study",
    executor: Executor | Callable[[], Executor] | None = None,
    calls_per_query: int | None = None,
    query_seconds: float | None = None,
    own_data: Tally | None = None,
    start: int | ArrayLike | None = None,
    diagnose: int | None = None,
    progress: Callable[[Study], None] | None = None,
) -> Result:
    """Find a policy within `epsilon` of optimal with probability at least 1 - `delta`.

    Parameters
    ----------
    model : GenerativeModel
        The simulator: `ExactSimulator`, `CallableSimulator`, or anything with ``problem`` and ``sample``.
    epsilon, delta : float
        What to certify. ``epsilon=0`` asks for an optimal policy (and never ends if two actions are tied).
    algorithm : str or Algorithm, optional
        "gss" if the problem is discounted, "gss-e" if episodic, by default.
    seed : int, optional
        The same seed gives the same answer. Drawn and recorded in the result if not given.
    max_samples, max_seconds : optional
        Budgets. A spent budget is an outcome, not an error: the result says what is certified.
    store : path, optional
        SQLite file in which the run survives anything; go on with ``drive(Study.resume(path), model)``.
    name : str
        Name of the study in that file.
    executor : Executor, or a function that makes one, optional
        Workers to answer queries. With a function, broken or hanging workers are replaced.
    calls_per_query : int, optional
        Simulator calls per query; 100 with an executor, else all at once. The answer depends on it, but not on the
        number of workers.
    query_seconds : float, optional
        Time limit for one query on a worker, counted from when it begins; then the worker is replaced (on Dask,
        restarted by its nanny) and the query tried again.
    own_data : Tally, optional
        Samples from elsewhere, of pairs chosen without regard to outcomes; see `Study`.
    start : int or array (S,), optional
        Claim something of this start state, or of this distribution over states, only; see `Study`.
    diagnose : int, optional
        First simulate this many times each of up to 500 pairs, and test whether rewards and transitions are linear in
        the features at all; if not, the result carries a warning. These calls come on top of `samples`.
    progress : callable, optional
        Called with the `Study` after every look at the data.

    Returns
    -------
    Result
        Ctrl-C ends the run with the outcome "interrupted"; what was measured until then is in the result.

    Raises
    ------
    SimulatorError
        If the simulator or its workers fail for good. Its attribute ``study`` holds everything measured so far: mend
        the simulator and go on with ``drive(error.study, model)``, or from the file.
    """
    _check_arguments(model, executor, max_seconds, query_seconds, progress)
    if diagnose is not None:
        whole("diagnose", diagnose, 1)
    if calls_per_query is None and executor is not None:
        calls_per_query = CALLS_PER_QUERY
    study = Study(
        model.problem,
        epsilon=epsilon,
        delta=delta,
        algorithm=algorithm,
        seed=seed,
        max_samples=max_samples,
        calls_per_query=calls_per_query,
        store=store,
        name=name,
        units=Units.of(model),
        own_data=own_data,
        start=start,
    )
    with closing(study):
        if diagnose is not None:
            try:
                with simulating():
                    study.warn(*linearity_warnings(model, diagnose, study.seed))
            except SimulatorError as error:
                raise with_study(study, error) from error.__cause__
        return drive(
            study, model, max_seconds=max_seconds, executor=executor, query_seconds=query_seconds, progress=progress
        )


def linearity_warnings(model: GenerativeModel, samples_per_pair: int, seed: int) -> tuple[str, ...]:
    """Test whether a simulator is linear in its features; return what to warn of."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    report = check_linearity(model.problem, sample_for_diagnostics(model, samples_per_pair, rng))
    return () if report.passed else (report.sentence(Units.of(model).reward_scale),)


def drive(
    study: Study,
    model: GenerativeModel,
    *,
    max_seconds: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    query_seconds: float | None = None,
    progress: Callable[[Study], None] | None = None,
) -> Result:
    """Answer the queries of a study with a simulator until it is done; the parameters are those of `identify`.

    The study's file is free again afterwards, however it ends; a study that is not done takes it again when it is told
    more, by `drive` or by hand.
    """
    if not isinstance(study, Study):
        raise InvalidInput(f"study must be a Study. Got {study!r} instead; to begin one, use identify.")
    with closing(study):
        _check_arguments(model, executor, max_seconds, query_seconds, progress)
        _require_same_problem(study, model)
        study.reopen()
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        crew = None if executor is None else Crew(model, executor, query_seconds=query_seconds)
        logger.info("%s with seed %d", study, study.seed)
        try:
            with one_thread():
                while not study.done:
                    if crew is not None:
                        crew.answer(study)
                    else:
                        _answer_here(study, model)
                    if progress is not None:
                        progress(study)
                    if study.stop_requested:
                        study.stop(Outcome.INTERRUPTED)
                    elif deadline is not None and time.monotonic() > deadline:
                        study.stop(Outcome.TIME)
        except KeyboardInterrupt:
            study.stop(Outcome.INTERRUPTED)
        finally:
            if crew is not None:
                crew.dismiss()
        logger.info("%s", study)
        return study.result()


def _answer_here(study: Study, model: GenerativeModel) -> None:
    for query in study.ask():
        if study.stop_requested:
            break
        try:
            tally = measure(model, query)
        except SimulatorError as error:
            raise failed(study, query, error) from error.__cause__
        study.tell(query, tally)


def _require_same_problem(study: Study, model: GenerativeModel) -> None:
    if model.problem.fingerprint != study.problem.fingerprint:
        raise InvalidInput(
            "the simulator belongs to another problem than the study: features, mask, discount or horizon differ. "
            "Build it as it was when the study began."
        )
    own, mapping = (units.reward_range for units in (study.units, Units.of(model, study.units)))
    if mapping != own:
        was, now = (f"[{low:g}, {high:g}]" for low, high in (own, mapping))
        raise InvalidInput(
            f"the study maps rewards from {was} into [0, 1], the simulator from {now}: their samples must not be "
            "pooled. Give the reward_range with which the study began."
        )


def _check_arguments(model: Any, executor: Any, max_seconds: Any, query_seconds: Any, progress: Any) -> None:
    if not isinstance(model, GenerativeModel) or not isinstance(model.problem, Problem):
        raise InvalidInput(
            f"model must have a `problem` and a method `sample(pulls, rng)`. Got {type(model).__name__}; wrap a model "
            "in ExactSimulator, a function in CallableSimulator, an environment in GymSimulator."
        )
    if executor is not None and not isinstance(executor, Executor):
        function("executor", executor, "executor() -> concurrent.futures.Executor, unless it is an Executor itself")
    if progress is not None:
        function("progress", progress, "progress(study)")
    for name, seconds in (("max_seconds", max_seconds), ("query_seconds", query_seconds)):
        if seconds is not None:
            number(name, seconds, above=0)
