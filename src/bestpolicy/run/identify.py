"""The loop: from a simulator to a certified policy."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

from bestpolicy._numerics.inputs import choice, file_path
from bestpolicy._numerics.reproducible import one_thread
from bestpolicy.algorithms import Algorithm
from bestpolicy.errors import InvalidInput, SimulatorError
from bestpolicy.features import FeatureMap
from bestpolicy.problem import FeatureProblem, Truncated
from bestpolicy.problem.units import Units
from bestpolicy.run.arguments import (
    as_simulator,
    calls_a_function,
    check_arguments,
    numbered_start,
    require_same_problem,
    require_sampling,
    share_names,
    suited,
    tested_share,
    wants_line,
)
from bestpolicy.run.measure import Record, measure, remove_records
from bestpolicy.run.misfit import examine
from bestpolicy.run.progress import ProgressLine
from bestpolicy.run.workers import Crew, failed
from bestpolicy.samples import Tally
from bestpolicy.simulators import Model
from bestpolicy.simulators.calls import Paused
from bestpolicy.study import Outcome, Result, Study
from bestpolicy.study.again import resume_same
from bestpolicy.study.patience import TimeUp, until
from bestpolicy.study.result import FINAL

CALLS_PER_QUERY = 100  # with workers: they are hired for calls that take long
LARGEST_BATCH = 10**8  # of calls of a user's function: a day, if one takes a millisecond

logger = logging.getLogger(__name__)


def identify(
    model: Model | Callable[..., tuple[Any, Any]],
    *,
    epsilon: float | str,
    delta: float,
    states: Iterable[Any] | None = None,
    actions: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
    discount: float | None = None,
    horizon: int | None = None,
    reward_range: tuple[float, float] | Truncated | None = None,
    ends: Iterable[Any] | None = None,
    features: FeatureMap | None = None,
    algorithm: str | Algorithm | None = None,
    seed: int | None = None,
    max_samples: int | None = None,
    max_seconds: float | None = None,
    store: str | PathLike[str] | None = None,
    name: str = "study",
    if_exists: Literal["resume", "fail"] = "resume",
    executor: Executor | Callable[[], Executor] | None = None,
    calls_per_query: int | None = None,
    query_seconds: float | None = None,
    own_data: Tally | None = None,
    start: Any = None,
    linearity: float | None = None,
    largest_batch: float | None = None,
    progress: bool | Callable[[Study], None] | None = None,
) -> Result:
    """Find a policy within `epsilon` of optimal with probability at least 1 - `delta`.

    >>> import bestpolicy as bp
    >>> def step(state, action, rng):            # the reward, and the next state
    ...     return (0.3, "good") if action == "repair" else (float(state == "good"), rng.choice(["good", "worn"]))
    >>> result = bp.identify(step, states=["good", "worn"], actions=["run", "repair"], discount=0.5,
    ...                      epsilon=0.5, delta=0.1, algorithm="tight", seed=0)
    >>> result.certified, result.action("worn")
    (True, 'repair')

    Parameters
    ----------
    model : callable, GenerativeModel or ForwardModel
        The simulator: a function ``step(state, action, rng) -> (reward, next_state)``, with `states` and `actions`; or
        `ExactSimulator`, `CallableSimulator`, or anything with ``problem`` and ``sample``; for algorithms that follow
        policies, such as "forward", anything with ``problem`` and ``rollout``.
    epsilon, delta : float
        What to certify. ``epsilon=0`` asks for an optimal policy (and never ends if two actions are tied);
        ``epsilon="5%"`` for that share of the range that values can take, see `Study`.
    states, actions, discount, horizon, reward_range, ends : optional
        Of a function: all states and actions, by whatever names, and what else `NamedSimulator` wants to know.
    features : FeatureMap, optional
        Of a function: features of its pairs (`bestpolicy.features`), in which the problem is linear. States are listed
        if the features of all pairs are few enough to be kept (2·10⁷ numbers), else not; the result says which.
    algorithm : str or Algorithm, optional
        By default, or if it is "auto", the one that fits: "forward" if the environment can only be reset and stepped,
        "adaptive" with samples from elsewhere, else "sharp" (`bestpolicy.algorithms.default_name`); the result says
        which it was. The paper's own are "gss" and "gss-e".
    seed : int, optional
        The same seed gives the same answer. Drawn and recorded in the result if not given.
    max_samples, max_seconds : optional
        Budgets. A spent budget is an outcome, not an error: the result says what is certified. `max_seconds` is kept
        within one simulator call or two seconds, in the midst of a batch, too.
    store : path, optional
        SQLite file in which the run survives anything. The same call again goes on where it was, to the last bit; what
        has ended is answered from the file. (``drive(Study.resume(path), model)`` is the same.)
    name : str
        Name of the study in that file.
    if_exists : {"resume", "fail"}
        What to do if the file has a study of that name: go on with it if it was begun by the same call, or fail.
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
    start : optional
        Claim something of this start state only, or of a distribution over states, as {state: probability} or as an
        array (S,); see `Study`.
    linearity : float, optional
        Whether rewards and transitions are linear in the features is tested while the run goes on, with as many calls
        as the claim needs and at least this share of the others: 0.05 by default, 0 for no test. Not with one-hot
        features, nor with an `ExactSimulator`, which is linear. If the features do not fit, the outcome is "in doubt".
        Feature maps are tested with that share of the calls once something is certified (`misfit`): the result says
        what ε is at the misfit that was found, and is "in doubt" if a misfit is shown that moves ε by more than ε.
    largest_batch : float, optional
        Refuse to begin if the first batch is of more simulator calls than this: 10⁸ by default where your own function
        is called and there is no `max_samples`. Where there is no `max_seconds` either, a run ends, with what it would
        need, as soon as that is in sight to be more.
    progress : bool or callable, optional
        Whether to show on standard error how far it is; by default on a terminal and in a notebook. Or a function that
        is called with the `Study` after every look at the data.

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
    told = {
        "states": states,
        "actions": actions,
        "discount": discount,
        "horizon": horizon,
        "reward_range": reward_range,
        "ends": ends,
        "features": features,
    }
    model = as_simulator(model, {name: value for name, value in told.items() if value is not None})
    check_arguments(model, executor, max_seconds, query_seconds, progress)
    choice("if_exists", if_exists, ("resume", "fail"))
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    store = None if store is None else file_path("store", store)
    how: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "algorithm": suited(algorithm, model, own_data=own_data is not None, start=start is not None),
        "seed": seed,
        "max_samples": max_samples,
        "calls_per_query": calls_per_query,
        "store": store,
        "name": name,
        "units": Units.of(model),
        "own_data": own_data,
        "start": numbered_start(model, start),
        "linearity": tested_share(model, linearity),
    }
    with until(deadline):
        resumed = None
        if if_exists == "resume" and store is not None and os.path.isfile(store):
            resumed = resume_same(model.problem, **how)
        if executor is not None and calls_per_query is None:
            how["calls_per_query"] = CALLS_PER_QUERY
        if largest_batch is None and max_samples is None and calls_a_function(model):
            largest_batch = LARGEST_BATCH
        study = resumed or Study(model.problem, **how, largest_batch=largest_batch)
        if max_seconds is None and largest_batch is not None:
            study.largest_plan = largest_batch
    with closing(study):
        left = None if deadline is None else max(1e-9, deadline - time.monotonic())
        return drive(study, model, max_seconds=left, executor=executor, query_seconds=query_seconds, progress=progress)


def drive(
    study: Study,
    model: Model,
    *,
    max_seconds: float | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    query_seconds: float | None = None,
    progress: bool | Callable[[Study], None] | None = None,
) -> Result:
    """Answer the queries of a study with a simulator until it is done; the parameters are those of `identify`.

    The study's file is free again afterwards, however it ends; a study that is not done takes it again when it is told
    more, by `drive` or by hand.
    """
    if not isinstance(study, Study):
        raise InvalidInput(f"study must be a Study. Got {study!r} instead; to begin one, use identify.")
    begun = time.monotonic()
    with closing(study):
        check_arguments(model, executor, max_seconds, query_seconds, progress)
        require_same_problem(study, model)
        require_sampling(study.algorithm, model)
        study.reopen()
        share_names(study, model, executor)
        deadline = None if max_seconds is None else begun + max_seconds
        crew = None if executor is None else Crew(model, executor, query_seconds=query_seconds)
        logger.info("%s with seed %d", study, study.seed)
        line = None if callable(progress) or not wants_line(progress) else ProgressLine()
        try:
            with one_thread(), until(deadline):
                while not study.done:
                    if crew is not None:
                        crew.answer(study, deadline)
                    else:
                        _answer_here(study, model, deadline, line)
                    if callable(progress):
                        progress(study)
                    elif line is not None:
                        line.look(study)
                    if study.stop_requested:
                        study.stop(Outcome.INTERRUPTED)
                    elif study.outlook().low > study.largest_plan:
                        study.stop(Outcome.BUDGET)
                    elif deadline is not None and time.monotonic() > deadline:
                        study.stop(Outcome.TIME)
        except (Paused, TimeUp):
            study.stop(Outcome.INTERRUPTED if study.stop_requested else Outcome.TIME)
        except KeyboardInterrupt:
            study.stop(Outcome.INTERRUPTED)
        finally:
            if crew is not None:
                crew.dismiss()
            if line is not None:
                line.end()
            if study.outcome in FINAL:
                remove_records(study)
        if isinstance(study.problem, FeatureProblem) and study.outcome is Outcome.CERTIFIED:
            with one_thread(), suppress(KeyboardInterrupt):  # then the same call again tests
                examine(study, model, deadline)
        logger.info("%s", study)
        return replace(study.result(), names=getattr(model, "names", None))


def _answer_here(study: Study, model: Model, until: float | None, line: ProgressLine | None) -> None:
    def stopping() -> bool:
        if line is not None:
            line.tick(study, calls.made)
        return study.stop_requested

    for query in study.ask():
        if study.stop_requested:
            break
        record = Record.of(study, query, until)
        calls = record.open(stopping)
        try:
            tally = measure(model, query, calls=calls)
        except SimulatorError as error:
            record.remove()
            _share_numbers(study, model)
            raise failed(study, query, error) from error.__cause__
        finally:
            study.unfinished = calls.kept
        study.unfinished = 0
        _share_numbers(study, model)
        study.tell(query, tally)
        record.remove()


def _share_numbers(study: Study, model: Model) -> None:
    """Have the study know the numbers that observations have got, before it is told of samples that have them."""
    if getattr(model, "numbers_as_they_appear", False):
        study.name_states(Units.of(model).states)
